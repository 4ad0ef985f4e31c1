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

// A session is a peer and our own table of its paths. It reads no clock and does not know GoBGP:
// callers pass time and events. Speaker.mu guards it.
//
// UPDATE messages alone change the table, so the peer has sent each withdrawal. The loss of the
// session is a change of state, which only marks paths.
type session struct {
	peer  Peer
	added bool // GoBGP has the peer, with these settings

	state string
	since time.Time
	eor   bool
	eorBy time.Time // when the End-of-RIB counts as received, for all paths; zero if not awaited

	heard    time.Time     // when the last message came in, as seen by the last look
	messages uint64        // messages received by then
	hold     time.Duration // the negotiated hold time; zero if it is not known yet, or there is none
	refused  bool          // this session is being ended, since it has no hold time

	bfd string // up or down; empty without BFD

	paths map[netip.Prefix]path // none of an upstream router
	stale bool                  // some of paths are lost
	loss  routes.Loss           // the last
	end   ending                // of the last session
	flaps int

	renewAt time.Time     // when to replace GoBGP's peer; zero means never
	renewed time.Time     // when it was replaced last
	penalty time.Duration // last pause after a session that we ended on principle, or zero
}

// A path is the peer's announcement of one prefix.
type path struct {
	peerAS  uint32
	nextHop netip.Addr
	asPath  []uint32
	since   time.Time   // since when it is announced without a break
	lost    routes.Loss // zero while it is announced
}

func newSession(p Peer, now time.Time) *session {
	return &session{peer: p, state: idle, since: now, paths: make(map[netip.Prefix]path)}
}

// announce stores a path of an established session, and reports whether it is a change.
// After the end of a session GoBGP may still deliver its paths: these are ignored.
func (x *session) announce(prefix netip.Prefix, p path, at time.Time) bool {
	if x.state != established {
		return false
	}
	old, had := x.paths[prefix]
	if p.since = at; had && old.lost == (routes.Loss{}) {
		p.since = old.since
	}
	x.paths[prefix] = p
	return !had || old.lost != p.lost || old.peerAS != p.peerAS || old.nextHop != p.nextHop ||
		!slices.Equal(old.asPath, p.asPath)
}

// withdraw removes a path at once, even if an earlier session announced it.
func (x *session) withdraw(prefix netip.Prefix) bool {
	_, had := x.paths[prefix]
	if x.state != established || !had {
		return false
	}
	delete(x.paths, prefix)
	return true
}

// endOfRIB removes the peer's own paths of earlier sessions that this session has not announced.
// Those of other nodes stay until expire removes them: a route reflector that restarts sends its
// End-of-RIB before it has learned them again (seen with BIRD 1.6.8).
func (x *session) endOfRIB() bool {
	if x.state != established || x.eor {
		return false
	}
	x.eor, x.stale = true, false
	for prefix, p := range x.paths {
		switch {
		case p.lost == (routes.Loss{}):
		case p.nextHop == x.peer.Addr:
			delete(x.paths, prefix)
		default:
			x.stale = true
		}
	}
	return true
}

// enter applies a change of state, but for the end of an established session: see leave.
func (x *session) enter(state string, at time.Time, t pace) {
	if x.state == state {
		return
	}
	was := x.state
	x.state, x.since = state, at
	x.renewAt = time.Time{}
	switch state {
	case established:
		x.eor, x.refused = false, false
		if !x.peer.Upstream {
			x.eorBy = at.Add(t.endOfRIB)
		}
		x.heard, x.messages, x.hold = at, 0, 0
	case openSent:
		// GoBGP waits 4 minutes for an OPEN. Somebody who connects from the peer's address
		// and sends nothing would keep the peer out that long.
		x.renewAt = at.Add(t.handshake)
	case openConfirm:
		x.renewAt = at.Add(t.handshake)
	case active:
		// GoBGP waits as long for the OPEN of the peer that we dialled, and stays in Active
		// meanwhile.
		if x.peer.Active {
			x.renewAt = at.Add(t.dial)
		}
	case idle:
		if was != idle {
			x.renewSoon(at, t)
		}
	}
}

// leave ends the session, and marks its paths as lost now. Paths that only an earlier
// session announced keep their earlier loss.
func (x *session) leave(at time.Time, end ending) {
	if x.state == established {
		x.loss, x.end = routes.Loss{Cause: end.cause, At: at}, end
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

// renewSoon schedules a new GoBGP peer: at once, but not more often than t allows.
func (x *session) renewSoon(at time.Time, t pace) {
	x.renewAt = at
	if next := x.renewed.Add(t.renew); next.After(at) {
		x.renewAt = next
	}
}

// punish schedules a new GoBGP peer after a pause. The pause doubles while the sessions
// between two pauses are shorter than the longest pause.
func (x *session) punish(at time.Time, lasted time.Duration, t pace) {
	if lasted > t.penaltyTo {
		x.penalty = 0
	}
	x.penalty = min(max(2*x.penalty, t.penalty), t.penaltyTo)
	x.renewAt = at.Add(x.penalty)
}

// forgive resets the pause, after a change of the peer's settings.
func (x *session) forgive() {
	x.penalty, x.renewAt, x.renewed = 0, time.Time{}, time.Time{}
}

// renewNow reports whether a new GoBGP peer is due, and notes that it is made.
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

// expire applies everything that is due by now, and reports whether anything changed.
func (x *session) expire(now time.Time, t pace) bool {
	change, complete := false, !x.eorBy.IsZero() && !now.Before(x.eorBy)
	if complete {
		change, x.eorBy = x.endOfRIB(), time.Time{}
	}
	if !x.stale {
		return change
	}
	x.stale = false
	for prefix, p := range x.paths {
		switch {
		case p.lost == (routes.Loss{}):
		case !complete && now.Before(p.lost.At.Add(t.keep)):
			x.stale = true
		default:
			delete(x.paths, prefix)
			change = true
		}
	}
	return change
}

// hear notes the number of messages that the session has received.
func (x *session) hear(messages uint64, hold time.Duration, now time.Time) {
	if messages != x.messages {
		x.heard, x.messages = now, messages
	}
	x.hold = hold
}

// forward notes whether BFD is up, and reports whether that is a change.
func (x *session) forward(up bool) bool {
	was := x.bfd
	switch {
	case x.peer.BFD == BFD{}:
		x.bfd = ""
	case up:
		x.bfd = "up"
	default:
		x.bfd = "down"
	}
	return x.bfd != was
}

// silent reports whether a keepalive is overdue. Keepalives come every third of the hold
// time (RFC 4271, 4.4). One is overdue after half of the hold time.
func (x *session) silent(now time.Time) bool {
	return x.state == established && x.hold > 0 && now.Sub(x.heard) > x.hold/2
}

func (x *session) all(now time.Time) iter.Seq[routes.Offer] {
	silent := x.silent(now)
	return func(yield func(routes.Offer) bool) {
		for prefix, p := range x.paths {
			o := routes.Offer{
				Cluster:   x.peer.Cluster,
				Peer:      x.peer.Addr,
				PeerAS:    p.peerAS,
				Prefix:    prefix,
				NextHop:   p.nextHop,
				ASPath:    slices.Clone(p.asPath),
				Announced: p.since,
				Lost:      p.lost,
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
	hold := x.hold
	if x.state != established {
		hold = 0
	}
	return PeerState{
		Peer:       p,
		State:      x.state,
		Since:      x.since,
		EndOfRIB:   x.eor,
		Received:   len(x.paths),
		LastLoss:   x.loss,
		LossCode:   x.end.code,
		LossReason: x.end.words,
		Flaps:      x.flaps,
		HoldTime:   hold,
		BFD:        x.bfd,
	}
}
