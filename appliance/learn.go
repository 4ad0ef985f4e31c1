package appliance

import (
	"time"

	"sallyport/appliance/group"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

// A process that starts does not know whom hosts and addresses are kept for, or its picture of that
// is old. The other members of its group know it. When the API of a cluster first answers, the
// process therefore asks them for their memory of the owners there. It uses the objects from that
// API only after an answer, or after lesson. Otherwise it could give a host or an address away that
// is kept for another owner.

const (
	// listening is the shortest time for which a member hears the others when an API answers for
	// the first time. Their API servers may report the last changes to them later than to this
	// process.
	listening = time.Second
	// lesson is how long a member waits for another member that does not tell its memory.
	lesson = 10 * time.Second
)

// awaits reports whether a cluster has to wait for the other members' memory of its owners, when
// its API answers for the first time. As soon as a member has told its memory, awaits takes it
// over.
func (l *loop) awaits(c *cluster) bool {
	if l.member == nil {
		return false
	}
	heard, now := l.member.pulse.Heard(), l.now()
	if c.answered.IsZero() {
		c.answered = now
	}
	age := now.Sub(c.answered)
	memory, from, mute := l.remembered(c.name, heard)
	switch {
	case len(heard) == 0:
	case age < listening:
		return true
	case from != "":
		c.snapshot.Owners, _ = memory.Owners(c.name, c.snapshot.Owners)
		l.log.Info("another member told whom hosts and addresses are kept for", "cluster", c.name, "member", from)
	case mute != "" && age < lesson:
		return true
	case mute != "":
		l.log.Warn("no member tells whom hosts and addresses are kept for: this one may give away what others keep",
			"cluster", c.name, "member", mute)
	}
	return false
}

// remembered returns the memory of the longest-standing member that knows a cluster. from is the
// name of that member, or "" if no member has told its memory. mute is a member that may still tell
// it. A member that asks itself does not count, because it does not know more.
func (l *loop) remembered(cluster string, heard []group.Heard) (memory input.Memory, from, mute string) {
	var best group.Word
	for _, h := range heard {
		if !h.Alive {
			continue
		}
		if h.Told == "" {
			if !h.Asks {
				mute = h.Member.Name
			}
			continue
		}
		m, err := input.Learn([]byte(h.Told))
		if err != nil {
			l.log.Warn("what a member remembers cannot be read", "member", h.Member.Name, "err", err)
			mute = h.Member.Name
			continue
		}
		if m.Clusters[cluster] != nil && (from == "" || longerStanding(h.Word, best)) {
			memory, from, best = m, h.Member.Name, h.Word
		}
	}
	return memory, from, mute
}

// longerStanding reports whether a member is longer-standing than a second member. Full members
// come before those that are not full. After that, the member that has had its class for longer
// comes first.
func longerStanding(one, other group.Word) bool {
	if a, b := one.Class == group.Full, other.Class == group.Full; a != b {
		return a
	}
	return one.Since > other.Since
}

// teach tells the memory of this member to the members that ask. It asks for theirs while a cluster
// waits.
func (l *loop) teach(newest ingress.Result) {
	if l.member == nil {
		return
	}
	m := l.member
	m.learns = false
	var clusters []string
	for _, c := range l.clusters {
		m.learns = m.learns || !c.live && !c.answered.IsZero()
		if c.live {
			clusters = append(clusters, c.name)
		}
	}
	m.pulse.Ask(m.learns)
	asked := false
	for _, h := range m.pulse.Heard() {
		asked = asked || h.Alive && h.Asks
	}
	if !asked || len(clusters) == 0 {
		m.pulse.Tell("")
		return
	}
	text, told := newest.Memory(clusters).Encode(group.MostTold)
	m.pulse.Tell(string(text))
	if told.Left > 0 && !m.crowded {
		l.log.Warn("a member that starts does not hear of all that is kept: it may give away some hosts and addresses",
			"beyond", told.Left)
	}
	m.crowded = told.Left > 0
}
