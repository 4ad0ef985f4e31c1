package status

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"sallyport/bgp"
	"sallyport/routes"
)

func TestALostSessionSaysWhatToDo(t *testing.T) {
	for loss, want := range map[bgp.LossCode]string{
		bgp.PeerDeconfigured:   "sallyport manifests",
		bgp.ConnectionRejected: "sallyport manifests",
		bgp.BadPeerAS:          "bgp.asn",
		bgp.BadIdentifier:      "bgp.routerID",
		bgp.Shutdown:           "BIRD was stopped",
		bgp.HoldTimeExpired:    "firewall",
		bgp.NoHoldTime:         "hold time of 0",
		bgp.ConnectionEnded:    "calico-node was restarted",
		bgp.PrefixLimit:        "prefixLimit",
		"notification-6-8":     "look at calico-node",
	} {
		got, remedy := ended(bgp.PeerState{LossCode: loss, LossReason: "in words"})
		if !strings.Contains(got, "in words") || !strings.Contains(remedy, want) {
			t.Errorf("%s: %q and %q, want the reason and %q", loss, got, remedy, want)
		}
	}
	if got, _ := ended(bgp.PeerState{}); got != "" {
		t.Errorf("without a session before: %q", got)
	}
	if got, _ := ended(bgp.PeerState{LastLoss: routes.Loss{Cause: routes.Closed}}); !strings.Contains(got,
		string(routes.Closed)) {
		t.Errorf("without a reason in words: %q, want the cause", got)
	}
	router := bgp.PeerState{LossReason: "BFD is down"}
	router.Upstream = true
	if _, remedy := ended(router); remedy != "" {
		t.Errorf("of a router: %q, want no remedy for a node", remedy)
	}
}

func TestServersWithoutTrafficAreCountedByReason(t *testing.T) {
	closed := func(addr string, reason Code, detail, why string) ServerStatus {
		return ServerStatus{
			Addr: netip.MustParseAddrPort(addr), State: "closed", Reason: reason, Detail: detail, Why: why,
		}
	}
	for name, row := range map[string]struct {
		servers []ServerStatus
		want    string
	}{
		"one that serves": {
			[]ServerStatus{{Addr: netip.MustParseAddrPort("172.16.0.1:80"), State: "open", Check: "UP"}}, "",
		},
		"one reason for two servers on two nodes": {
			[]ServerStatus{
				closed("172.16.0.2:80", NoSession, "hold-time-expired", "no route to 172.16.0.2: node a"),
				closed("172.16.0.3:80", NoSession, "hold-time-expired", "no route to 172.16.0.3: node b"),
			},
			"no-session 2 no route to 172.16.0.2: node a",
		},
		"two losses of sessions": {
			[]ServerStatus{
				closed("172.16.0.2:80", NoSession, "hold-time-expired", "silent"),
				closed("172.16.0.3:80", NoSession, "peer-deconfigured", "deconfigured"),
			},
			"no-session 1 silent, no-session 1 deconfigured",
		},
		"a server in two backends counts once": {
			[]ServerStatus{
				closed("172.16.0.2:80", NoOffer, "", "nobody"), closed("172.16.0.2:80", NoOffer, "", "nobody"),
			},
			"no-offer 1 nobody",
		},
		"sentences of an earlier version": {
			[]ServerStatus{closed("172.16.0.2:80", "", "", "this"), closed("172.16.0.3:80", "", "", "that")},
			" 1 this,  1 that",
		},
	} {
		var got []string
		for _, i := range (&Status{Backends: []BackendStatus{{Servers: row.servers}}}).Idle() {
			got = append(got, fmt.Sprintf("%s %d %s", i.Reason, len(i.Servers), i.Why))
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
}
