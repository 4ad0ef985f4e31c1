package bgp

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"sallyport/routes"
)

// States of a session, RFC 4271, 8.2.2.
const (
	idle        = "Idle"
	connect     = "Connect"
	active      = "Active"
	openSent    = "OpenSent"
	openConfirm = "OpenConfirm"
	established = "Established"
)

// A session is a peer and our own table of what it announced. It knows no
// clock and no GoBGP: time and events are handed in. Guarded by Speaker.mu.
//
// The table is fed by what came in UPDATE messages and by nothing else, so a
// withdrawal is always one that the peer sent; the loss of the session is a
// change of state, and only marks.
type session struct {
	peer  Peer
	added bool // GoBGP has the peer, with these settings

	state string
	since time.Time
	eor   bool
	eorBy time.Time // when the End-of-RIB counts as received; zero when it is not awaited
	asked bool      // the hold time of this session has been looked at

	heard    time.Time     // when something last came in on this session, as far as was looked
	messages uint64        // how many had come in by then
	hold     time.Duration // the hold time that was agreed; zero while not known

	paths map[netip.Prefix]path
	stale bool        // some of paths are lost
	loss  routes.Loss // the last
	why   string
	flaps int

	renewAt time.Time     // when GoBGP's peer is to be replaced; zero is not at all
	renewed time.Time     // when it last was
	penalty time.Duration // last pause for a session that we ended on principle; zero is none
}

// A path is what the peer announced for one prefix.
type path struct {
	peerAS  uint32
	nextHop netip.Addr
	asPath  []uint32
	lost    routes.Loss // zero while it is announced
}

func newSession(p Peer, now time.Time) *session {
	return &session{peer: p, state: idle, since: now, paths: make(map[netip.Prefix]path)}
}

// announce takes a path of a live session and reports a change. A path of any
// other session is what GoBGP still had in hand for one that is over.
func (x *session) announce(prefix netip.Prefix, p path) bool {
	if x.state != established {
		return false
	}
	old, had := x.paths[prefix]
	x.paths[prefix] = p
	return !had || old.lost != p.lost || old.peerAS != p.peerAS || old.nextHop != p.nextHop || !slices.Equal(old.asPath, p.asPath)
}

// withdraw forgets a path at once, also one of the session before: the peer
// has spoken of it.
func (x *session) withdraw(prefix netip.Prefix) bool {
	_, had := x.paths[prefix]
	if x.state != established || !had {
		return false
	}
	delete(x.paths, prefix)
	return true
}

// endOfRIB drops what the session before had announced and this one has not.
func (x *session) endOfRIB() bool {
	if x.state != established || x.eor {
		return false
	}
	x.eor, x.eorBy, x.stale = true, time.Time{}, false
	for prefix, p := range x.paths {
		if p.lost != (routes.Loss{}) {
			delete(x.paths, prefix)
		}
	}
	return true
}

// enter follows a change of state that is not the end of an established
// session; the end is leave.
func (x *session) enter(state string, at time.Time, t pace) {
	if x.state == state {
		return
	}
	was := x.state
	x.state, x.since = state, at
	x.renewAt = time.Time{}
	switch state {
	case established:
		x.eor, x.eorBy, x.asked = false, at.Add(t.endOfRIB), false
		x.heard, x.messages, x.hold = at, 0, 0
	case openSent:
		// Whoever connects from the peer's address and then says nothing
		// would hold the peer itself off for GoBGP's 4 minutes.
		x.renewAt = at.Add(t.handshake)
	case openConfirm:
		x.renewAt = at.Add(t.handshake)
	case active:
		// The same from the other side: GoBGP waits as long for the OPEN of
		// whoever answers when we dial, and stays in Active meanwhile.
		if x.peer.Active {
			x.renewAt = at.Add(t.dial)
		}
	case idle:
		if was != idle {
			x.renewSoon(at, t)
		}
	}
}

// leave ends the session: what it had announced is lost now, what an earlier
// one had announced and it had not keeps its earlier loss.
func (x *session) leave(at time.Time, cause routes.Cause, why string) {
	if x.state == established {
		x.loss, x.why = routes.Loss{Cause: cause, At: at}, why
		x.flaps++
		x.stale = len(x.paths) > 0
		for prefix, p := range x.paths {
			if p.lost == (routes.Loss{}) {
				p.lost = x.loss
				x.paths[prefix] = p
			}
		}
	}
	if x.state != idle {
		x.state, x.since = idle, at
	}
	x.eor, x.eorBy, x.renewAt = false, time.Time{}, time.Time{}
}

// renewSoon asks for a fresh peer: at once, but not more often than t allows.
func (x *session) renewSoon(at time.Time, t pace) {
	x.renewAt = at
	if next := x.renewed.Add(t.renew); next.After(at) {
		x.renewAt = next
	}
}

// punish asks for a fresh peer after a pause that doubles as long as the
// sessions between the pauses are shorter than the longest pause.
func (x *session) punish(at time.Time, lasted time.Duration, t pace) {
	if lasted > t.penaltyTo {
		x.penalty = 0
	}
	x.penalty = min(max(2*x.penalty, t.penalty), t.penaltyTo)
	x.renewAt = at.Add(x.penalty)
}

// forgive forgets the pauses: new settings are a new start.
func (x *session) forgive() {
	x.penalty, x.renewAt, x.renewed = 0, time.Time{}, time.Time{}
}

// renewNow reports whether a fresh peer is due, and takes note of it.
func (x *session) renewNow(now time.Time) bool {
	if x.renewAt.IsZero() || now.Before(x.renewAt) || x.state == established {
		return false
	}
	if x.state != idle {
		x.state, x.since = idle, now
	}
	x.renewAt, x.renewed = time.Time{}, now
	return true
}

// expire applies what happens by the passing of time and reports a change.
func (x *session) expire(now time.Time, t pace) bool {
	change := false
	if !x.eorBy.IsZero() && !now.Before(x.eorBy) {
		change = x.endOfRIB()
	}
	if !x.stale {
		return change
	}
	x.stale = false
	for prefix, p := range x.paths {
		switch {
		case p.lost == (routes.Loss{}):
		case now.Before(p.lost.At.Add(t.keep)):
			x.stale = true
		default:
			delete(x.paths, prefix)
			change = true
		}
	}
	return change
}

// hear takes note of how many messages have come in on the session.
func (x *session) hear(messages uint64, hold time.Duration, now time.Time) {
	if messages != x.messages {
		x.heard, x.messages = now, messages
	}
	x.hold = hold
}

// silent says whether a keepalive is overdue: they come each third of the hold
// time (RFC 4271, 4.4), and half of it is a moment more.
func (x *session) silent(now time.Time) bool {
	return x.state == established && x.hold > 0 && now.Sub(x.heard) > x.hold/2
}

func (x *session) all(now time.Time) iter.Seq[routes.Offer] {
	silent := x.silent(now)
	return func(yield func(routes.Offer) bool) {
		for prefix, p := range x.paths {
			o := routes.Offer{
				Cluster: x.peer.Cluster,
				Peer:    x.peer.Addr,
				PeerAS:  p.peerAS,
				Prefix:  prefix,
				NextHop: p.nextHop,
				ASPath:  slices.Clone(p.asPath),
				Lost:    p.lost,
			}
			if p.lost == (routes.Loss{}) {
				o.Since, o.Silent = x.since, silent
			}
			if !yield(o) {
				return
			}
		}
	}
}

func (x *session) report() PeerState {
	p := x.peer
	p.Password = ""
	return PeerState{
		Peer:       p,
		State:      x.state,
		Since:      x.since,
		EndOfRIB:   x.eor,
		Received:   len(x.paths),
		LastLoss:   x.loss,
		LossReason: x.why,
		Flaps:      x.flaps,
	}
}
