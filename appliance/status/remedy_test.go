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
	for reason, want := range map[string]string{
		"cease, peer deconfigured (NOTIFICATION 6/3 received)":              "sallyport manifests",
		"cease, connection rejected (NOTIFICATION 6/5 received)":            "sallyport manifests",
		"open, bad peer as (NOTIFICATION 2/2 received)":                     "bgp.asn",
		"open, bad bgp identifier (NOTIFICATION 2/3 received)":              "bgp.routerID",
		"cease, administrative shutdown (NOTIFICATION 6/2 received)":        "BIRD was stopped",
		"hold timer expired (NOTIFICATION 4/0 received)":                    "firewall",
		"nothing was heard for the hold time":                               "firewall",
		"the TCP connection ended without a NOTIFICATION":                   "calico-node was restarted",
		"cease, out of resources (NOTIFICATION 6/8 received), on this side": "look at calico-node",
	} {
		got := ended(bgp.PeerState{LossReason: reason})
		if !strings.Contains(got, reason) || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want the reason and %q", reason, got, want)
		}
	}
	if got := ended(bgp.PeerState{}); got != "" {
		t.Errorf("without a session before: %q", got)
	}
	if got := ended(bgp.PeerState{LastLoss: routes.Loss{Cause: routes.Closed}}); !strings.Contains(got,
		string(routes.Closed)) {
		t.Errorf("without a reason in words: %q, want the cause", got)
	}
	router := bgp.PeerState{LossReason: "BFD is down"}
	router.Upstream = true
	if got := ended(router); strings.Contains(got, "calico") {
		t.Errorf("of a router: %q, want nothing of Calico", got)
	}
}

func TestServersWithoutTrafficAreCountedByReason(t *testing.T) {
	server := func(addr, state, check, why string) ServerStatus {
		return ServerStatus{Addr: netip.MustParseAddrPort(addr), State: state, Check: check, Why: why}
	}
	s := Status{Backends: []BackendStatus{
		{Name: "a", Servers: []ServerStatus{
			server("172.16.0.1:80", "open", "UP", ""),
			server("172.16.0.2:80", "closed", "", "no route to 172.16.0.2: no peer offers 172.16.0.2/31"),
			server("172.16.0.3:80", "closed", "", "no route to 172.16.0.3: no peer offers 172.16.0.2/31"),
		}},
		{Name: "b", Servers: []ServerStatus{
			server("172.16.0.2:80", "closed", "", "no route to 172.16.0.2: no peer offers 172.16.0.2/31"),
			server("172.16.0.4:80", "open", "DOWN", "the check gets no answer"),
		}},
	}}
	got := s.Idle()
	if len(got) != 2 || len(got[0].Servers) != 2 || got[0].Servers[0] != s.Backends[0].Servers[1].Addr ||
		got[1].Why != "the check gets no answer" {
		t.Errorf("got %+v, want two reasons, the first of two servers", got)
	}
}

// Hundreds of nodes may have the same fault.
func TestServersWithoutTrafficAreCountedOverNodes(t *testing.T) {
	s := Status{Backends: []BackendStatus{{Name: "a"}}}
	for i := range 3 {
		node, at, pod := fmt.Sprintf("worker%d", i), netip.AddrFrom4([4]byte{192, 168, 50, byte(i)}),
			netip.AddrFrom4([4]byte{172, 16, 0, byte(i)})
		why := "the offer of 172.16.0.0/24 was refused"
		if i < 2 {
			why = fmt.Sprintf("there is no BGP session with node %s (%s) for 1 min", node, at)
		}
		s.Peers = append(s.Peers, bgp.PeerState{Peer: bgp.Peer{Node: node, Addr: at}})
		s.Backends[0].Servers = append(s.Backends[0].Servers,
			ServerStatus{
				Addr: netip.AddrPortFrom(pod, 80), Node: node, State: "closed",
				Why: fmt.Sprintf("no route to %s: %s", pod, why),
			})
	}
	if got := s.Idle(); len(got) != 2 || len(got[0].Servers) != 2 ||
		!strings.Contains(got[0].Why, "node worker0 (192.168.50.0)") {
		t.Errorf("got %+v, want two reasons, the first of two nodes", got)
	}
}
