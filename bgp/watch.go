package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sallyport/routes"
)

// watch starts the one watcher of a GoBGP. The watcher gets the contents of UPDATEs before any
// policy, the End-of-RIBs, and the states of the peers, in one queue and so in true order. It does
// not see the UPDATEs of upstream routers.
//
// GoBGP's view after policy does not suffice: when a session ends, GoBGP withdraws its paths there
// before it reports the new state, and such a withdrawal looks like the peer's. The view before
// policy has no such withdrawals: GoBGP reports its own only to WatchAdjInWithdraw, which we do not
// use. GoBGP reports the new state after the reader of the session has ended. Therefore a
// withdrawal here always came in an UPDATE, and always before the loss.
func (s *Speaker) watch(ctx context.Context, b *server.BgpServer, of side) error {
	what := []server.WatchOption{server.WatchPeer()}
	if of == nodes {
		what = append(what, server.WatchUpdate(true, "", ""), server.WatchEor(true))
	}
	err := b.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnPathUpdate: func(paths []*apiutil.Path, at time.Time) { s.onPaths(b, paths, at) },
		OnPathEor:    func(p *apiutil.Path, _ time.Time) { s.onEndOfRIB(b, p) },
		OnPeerUpdate: func(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) { s.onState(b, e, at) },
	}, what...)
	if err != nil {
		return fmt.Errorf("bgp: watch the sessions: %w", err)
	}
	return nil
}

// inUse reports whether a GoBGP is in use. Events of a replaced GoBGP are ignored. Called with mu
// held.
func (s *Speaker) inUse(b *server.BgpServer) bool { return slices.Contains(s.servers(), b) }

func (s *Speaker) onPaths(b *server.BgpServer, paths []*apiutil.Path, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inUse(b) {
		return
	}
	change := false
	for _, p := range paths {
		x := s.sessions[p.PeerAddress.Unmap()]
		prefix, ok := prefixOf(p)
		if x == nil || !ok || prefix.Addr().Is4() != x.peer.Addr.Is4() {
			continue
		}
		if p.Withdrawal {
			change = x.withdraw(prefix) || change
		} else {
			change = x.announce(prefix, pathOf(p), at) || change
		}
	}
	if change {
		s.knock()
	}
}

func prefixOf(p *apiutil.Path) (netip.Prefix, bool) {
	n, ok := p.Nlri.(*bgp.IPAddrPrefix)
	if !ok || n == nil || !n.Prefix.IsValid() || (p.Family != bgp.RF_IPv4_UC && p.Family != bgp.RF_IPv6_UC) {
		return netip.Prefix{}, false
	}
	return n.Prefix.Masked(), true
}

// pathOf converts a path of GoBGP. A path without a next hop becomes an offer without a next hop,
// which Verify refuses with a reason.
func pathOf(p *apiutil.Path) path {
	out := path{peerAS: p.PeerASN}
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			if !out.nextHop.IsValid() {
				out.nextHop = a.Value.Unmap()
			}
		case *bgp.PathAttributeMpReachNLRI:
			out.nextHop = a.Nexthop
		case *bgp.PathAttributeAsPath:
			for _, segment := range a.Value {
				out.asPath = append(out.asPath, segment.GetAS()...)
			}
		}
	}
	return out
}

func (s *Speaker) onEndOfRIB(b *server.BgpServer, p *apiutil.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[p.PeerAddress.Unmap()]
	if !s.inUse(b) || x == nil || (p.Family == bgp.RF_IPv4_UC) != x.peer.Addr.Is4() {
		return
	}
	if x.endOfRIB() {
		s.knock()
	}
}

var stateNames = map[bgp.FSMState]string{
	bgp.BGP_FSM_IDLE:        idle,
	bgp.BGP_FSM_CONNECT:     connect,
	bgp.BGP_FSM_ACTIVE:      active,
	bgp.BGP_FSM_OPENSENT:    openSent,
	bgp.BGP_FSM_OPENCONFIRM: openConfirm,
	bgp.BGP_FSM_ESTABLISHED: established,
}

func (s *Speaker) onState(b *server.BgpServer, e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	now := e.Peer.State
	state, ok := stateNames[now.SessionState]
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[now.NeighborAddress.Unmap()]
	if !s.inUse(b) || x == nil || !x.added {
		return
	}
	if state == idle && now.DisconnectReason == api.PeerState_DISCONNECT_REASON_UNSPECIFIED {
		// The event of our own DeletePeer, for a peer that has been replaced.
		return
	}
	switch {
	case x.state == established && state != established:
		lasted := at.Sub(x.since)
		end := endingOf(now)
		x.leave(at, end)
		if now.AdminState != api.PeerState_ADMIN_STATE_UP {
			x.punish(at, lasted, s.pace)
		} else {
			x.renewSoon(at, s.pace)
		}
		level := slog.LevelWarn
		if x.peer.Upstream && now.AdminState == api.PeerState_ADMIN_STATE_PFX_CT {
			level = slog.LevelError // nothing is announced to it until it changes
		}
		r := slog.NewRecord(at, level, "BGP session lost", 0)
		r.Add("peer", x.peer, "cause", string(end.cause), "reason", end.words)
		s.unsaid = append(s.unsaid, r)
	case state == established:
		x.enter(state, at, s.pace)
		r := slog.NewRecord(at, slog.LevelInfo, "BGP session established", 0)
		r.Add("peer", x.peer)
		s.unsaid = append(s.unsaid, r)
	default:
		x.enter(state, at, s.pace)
	}
	s.knock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// endingOf returns how an established session ended.
func endingOf(p apiutil.PeerState) ending {
	if p.AdminState == api.PeerState_ADMIN_STATE_PFX_CT {
		// GoBGP sends the NOTIFICATION, closes, and then reports that it
		// could not read.
		return ending{
			routes.Refused, PrefixLimit,
			"more prefixes than the peer is allowed: an upstream router has to export none to us",
		}
	}
	switch p.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_READ_FAILED, api.PeerState_DISCONNECT_REASON_WRITE_FAILED:
		return ending{routes.Closed, ConnectionEnded, "the TCP connection ended without a NOTIFICATION"}
	case api.PeerState_DISCONNECT_REASON_HOLD_TIMER_EXPIRED:
		return ending{routes.HoldExpired, HoldTimeExpired, "nothing was heard for the hold time"}
	case api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, api.PeerState_DISCONNECT_REASON_HARD_RESET:
		code, words := notification(strings.TrimPrefix(p.DisconnectMessage, "notification-received "), "received")
		if code == Reconfigured {
			return ending{routes.Reconfigured, code, words}
		}
		return ending{routes.Notified, code, words}
	case api.PeerState_DISCONNECT_REASON_ADMIN_DOWN:
		return ending{
			routes.Refused, NoHoldTime,
			"the peer asked for a hold time of 0, which would leave its loss unseen",
		}
	default:
		code, words := notification(strings.TrimPrefix(p.DisconnectMessage, "notification-sent "), "sent")
		if code == AdministrativeReset { // we never reset a peer, but GoBGP's BFD does
			return ending{
				routes.Refused, BFDDown,
				"BFD is down: we did not hear the peer for the detection time, or it did not hear us",
			}
		}
		return ending{routes.Refused, code, words}
	}
}

// named matches GoBGP's name of a NOTIFICATION.
var named = regexp.MustCompile(`^code (\d+)\((.*)\) subcode (\d+)\((.*)\)$`)

// notification returns the code of a NOTIFICATION, and GoBGP's name of it in the words of RFC 4271
// with its numbers: "cease, peer deconfigured (NOTIFICATION 6/3 received)".
func notification(name, way string) (LossCode, string) {
	m := named.FindStringSubmatch(name)
	if m == nil {
		return UnknownLoss, name
	}
	numbers := m[1] + "/" + m[3]
	code, known := notifications[numbers]
	if !known {
		code = LossCode("notification-" + m[1] + "-" + m[3])
	}
	words := m[2]
	switch {
	case code == BFDDown:
		words += ", BFD down" // RFC 9384, which GoBGP does not know
	case m[4] != "undefined":
		words += ", " + m[4]
	}
	return code, fmt.Sprintf("%s (NOTIFICATION %s %s)", words, numbers, way)
}
