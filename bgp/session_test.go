package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sallyport/routes"
)

var dawn = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestRenewalIsAtOnceButNotOften(t *testing.T) {
	t.Parallel()
	x := newSession(Peer{}, dawn)
	x.enter(active, dawn, usualPace)
	now := dawn
	for i, want := range []time.Duration{0, usualPace.renew, usualPace.renew} {
		x.enter(openSent, now, usualPace)
		x.enter(idle, now, usualPace)
		if got := x.renewAt.Sub(now); got != want {
			t.Errorf("renewal %d is due after %s, want %s", i, got, want)
		}
		now = x.renewAt
		if x.renewNow(now.Add(-1)) {
			t.Errorf("renewal %d is too early", i)
		}
		if !x.renewNow(now) || x.renewNow(now) {
			t.Errorf("renewal %d is not due once", i)
		}
		x.enter(active, now, usualPace)
	}
}

func TestThePauseDoublesUntilASessionHolds(t *testing.T) {
	t.Parallel()
	x := newSession(Peer{}, dawn)
	for _, row := range []struct{ lasted, want time.Duration }{
		{time.Second, 30 * time.Second},
		{time.Second, time.Minute},
		{time.Second, 2 * time.Minute},
		{time.Second, 4 * time.Minute},
		{time.Second, 5 * time.Minute},
		{time.Minute, 5 * time.Minute},
		{time.Hour, 30 * time.Second},
	} {
		x.punish(dawn, row.lasted, usualPace)
		if got := x.renewAt.Sub(dawn); got != row.want {
			t.Errorf("after a session of %s the pause is %s, want %s", row.lasted, got, row.want)
		}
	}
	x.forgive()
	x.punish(dawn, 0, usualPace)
	if got := x.renewAt.Sub(dawn); got != 30*time.Second {
		t.Errorf("after new settings the pause is %s, want 30s", got)
	}
}

func TestAnEventOfASessionThatIsOverChangesNothing(t *testing.T) {
	t.Parallel()
	x := newSession(Peer{}, dawn)
	prefix := netip.MustParsePrefix("172.16.1.0/26")
	x.enter(established, dawn, usualPace)
	if !x.announce(prefix, path{peerAS: 1}, dawn) || x.announce(prefix, path{peerAS: 1}, dawn) {
		t.Error("an announcement is news once")
	}
	x.leave(dawn.Add(time.Second), ending{cause: routes.Closed})
	lost := x.paths[prefix]
	if x.withdraw(prefix) || x.announce(prefix, path{}, dawn) || x.endOfRIB() {
		t.Error("something came of it")
	}
	if got := x.paths[prefix]; got.lost != lost.lost || got.peerAS != 1 {
		t.Errorf("path is %+v, want %+v", got, lost)
	}
	x.leave(dawn.Add(time.Minute), ending{cause: routes.Notified})
	if x.flaps != 1 || x.loss.Cause != routes.Closed {
		t.Errorf("%d flaps, the last by %q, want the first only", x.flaps, x.loss.Cause)
	}
}

func TestALossIsRememberedForAQuarterOfAnHour(t *testing.T) {
	t.Parallel()
	x := newSession(Peer{}, dawn)
	prefix := netip.MustParsePrefix("172.16.1.0/26")
	x.enter(established, dawn, usualPace)
	x.announce(prefix, path{}, dawn)
	x.leave(dawn, ending{cause: routes.Closed})
	if x.expire(dawn.Add(15*time.Minute-1), usualPace) || len(x.paths) != 1 {
		t.Error("the offer went too early")
	}
	if !x.expire(dawn.Add(15*time.Minute), usualPace) || len(x.paths) != 0 {
		t.Error("the offer stays")
	}
}

func TestAPrefixIsAnnouncedSinceItCameLast(t *testing.T) {
	t.Parallel()
	x := newSession(Peer{}, dawn)
	prefix := netip.MustParsePrefix("172.16.1.1/32")
	second := func(n int) time.Time { return dawn.Add(time.Duration(n) * time.Second) }
	since := func(when string, want time.Time) {
		t.Helper()
		for o := range x.all(second(100)) {
			if !o.Announced.Equal(want) {
				t.Errorf("%s: it is announced since %s, want %s", when, o.Announced, want)
			}
		}
	}
	x.enter(established, dawn, usualPace)
	x.announce(prefix, path{}, second(1))
	since("announced", second(1))
	x.announce(prefix, path{peerAS: 1}, second(2))
	since("announced with other attributes", second(1))
	x.withdraw(prefix)
	x.announce(prefix, path{}, second(3))
	since("withdrawn, and announced", second(3))
	x.leave(second(4), ending{cause: routes.Closed})
	since("lost", second(3))
	x.enter(established, second(5), usualPace)
	x.announce(prefix, path{}, second(6))
	since("announced on the next session", second(6))
}

func TestAReflectorsEndOfRIBRemovesItsOwnPathsAndLaterThoseOfOthers(t *testing.T) {
	t.Parallel()
	reflector, client := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	own, again, late, never := netip.MustParsePrefix("172.16.1.0/26"), netip.MustParsePrefix("172.16.2.0/26"),
		netip.MustParsePrefix("172.16.3.0/26"), netip.MustParsePrefix("172.16.4.0/26")
	x := newSession(Peer{Addr: reflector}, dawn)
	holds := func(when string, want ...netip.Prefix) {
		t.Helper()
		for _, p := range want {
			if _, ok := x.paths[p]; !ok {
				t.Errorf("%s: %s is gone", when, p)
			}
		}
		if len(x.paths) != len(want) {
			t.Errorf("%s: there are %d paths, want %d", when, len(x.paths), len(want))
		}
	}
	x.enter(established, dawn, usualPace)
	x.announce(own, path{nextHop: reflector}, dawn)
	for _, p := range []netip.Prefix{again, late, never} {
		x.announce(p, path{nextHop: client}, dawn)
	}
	x.endOfRIB()
	x.leave(dawn, ending{cause: routes.Closed})
	x.enter(established, dawn, usualPace)
	x.announce(again, path{nextHop: client}, dawn)
	if !x.endOfRIB() {
		t.Error("the End-of-RIB is no news")
	}
	holds("End-of-RIB", again, late, never)
	x.announce(late, path{nextHop: client}, dawn)
	if x.expire(dawn.Add(usualPace.endOfRIB-1), usualPace) {
		t.Error("something expired early")
	}
	holds("before the time", again, late, never)
	if !x.expire(dawn.Add(usualPace.endOfRIB), usualPace) {
		t.Error("nothing expired")
	}
	holds("after the time", again, late)
	if x.expire(dawn.Add(time.Hour), usualPace) {
		t.Error("something expired late")
	}
}

func TestALossIsToldInTheWordsOfTheRFC(t *testing.T) {
	t.Parallel()
	const received, sent = api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED,
		api.PeerState_DISCONNECT_REASON_NOTIFICATION_SENT
	code := func(code, subcode uint8) string { return bgp.NewNotificationErrorCode(code, subcode).String() }
	for want, p := range map[ending]apiutil.PeerState{
		{routes.Notified, PeerDeconfigured, "cease, peer deconfigured (NOTIFICATION 6/3 received)"}: {
			DisconnectReason: received,
			DisconnectMessage: "notification-received " + code(bgp.BGP_ERROR_CEASE,
				bgp.BGP_ERROR_SUB_PEER_DECONFIGURED),
		},
		{routes.Refused, BadPeerAS, "open, bad peer as (NOTIFICATION 2/2 sent)"}: {
			DisconnectReason: sent,
			DisconnectMessage: "notification-sent " + code(bgp.BGP_ERROR_OPEN_MESSAGE_ERROR,
				bgp.BGP_ERROR_SUB_BAD_PEER_AS),
		},
		{routes.Notified, HoldTimeExpired, "hold timer expired (NOTIFICATION 4/0 received)"}: {
			DisconnectReason:  received,
			DisconnectMessage: "notification-received " + code(bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0),
		},
		{routes.Reconfigured, Reconfigured, "cease, other configuration change (NOTIFICATION 6/6 received)"}: {
			DisconnectReason:  received,
			DisconnectMessage: "notification-received " + code(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_OTHER_CONFIGURATION_CHANGE),
		},
		{routes.Notified, BFDDown, "cease, BFD down (NOTIFICATION 6/10 received)"}: {
			DisconnectReason:  received,
			DisconnectMessage: "notification-received " + code(bgp.BGP_ERROR_CEASE, 10),
		},
		{routes.Notified, "notification-6-8", "cease, out of resources (NOTIFICATION 6/8 received)"}: {
			DisconnectReason:  received,
			DisconnectMessage: "notification-received " + code(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_OUT_OF_RESOURCES),
		},
		{
			routes.Refused, BFDDown,
			"BFD is down: we did not hear the peer for the detection time, or it did not hear us",
		}: {
			DisconnectReason: sent,
			DisconnectMessage: "notification-sent " +
				code(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET),
		},
		{routes.Refused, UnknownLoss, "something that GoBGP says otherwise"}: {
			DisconnectReason:  sent,
			DisconnectMessage: "something that GoBGP says otherwise",
		},
	} {
		if got := endingOf(p); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
