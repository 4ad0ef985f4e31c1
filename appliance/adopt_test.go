package appliance

import (
	"net/netip"
	"testing"
	"time"

	"sallyport/routes"
)

// reflect makes worker1 a route reflector and the only node that peers with us.
func (s *scene) reflect() {
	nodes := s.watcher.snapshot.Topology.Nodes
	nodes[0].Reflector, nodes[1].Behind = true, true
}

// A node behind a reflector never has a session of its own: its routes come only from
// the reflector.
func TestAnAdoptedRouteGoesWhenTheReflectorDoesNotOfferItAnyMore(t *testing.T) {
	s := running(t)
	s.reflect()
	s.settle(t)
	s.speaker.announce(block1, node1) // and End-of-RIB
	s.settle(t)
	if _, there := s.kernel.routes[to(block2)]; there {
		t.Errorf("routes %s, want none for %s", s.kernel.routes, block2)
	}
}

func TestAnAdoptedRouteBehindAReflectorIsNoRefusalForEver(t *testing.T) {
	s := running(t)
	s.reflect()
	s.settle(t)
	s.speaker.announce(block1, node1)
	s.speaker.offers = append(s.speaker.offers, routes.Offer{
		Cluster: "demo", Peer: netip.MustParseAddr(node1), PeerAS: 65000, Prefix: netip.MustParsePrefix(block2),
		NextHop: netip.MustParseAddr(node2),
	})
	s.clock = s.clock.Add(s.cfg.BGP.Retain + time.Hour)
	s.settle(t)
	if refused := s.view.Load().BGP.Refusals; len(refused) > 0 {
		t.Errorf("refused %+v, want nothing", refused)
	}
}

func TestARestartKeepsTheRoutesOverANodeWhoseAddressALaterClusterClaims(t *testing.T) {
	s := running(t)
	other := demoSnapshot("other")
	other.Ingresses, other.Topology.Affinities = nil, nil
	other.Topology.Nodes[0].Name = "liar"
	s.clusters = append(s.clusters, &cluster{name: "other", opened: opened{watcher: &fakeWatcher{snapshot: other}}})
	s.settle(t)
	if got := s.proxy.String(); got != bothOpen || len(s.kernel.routes) != 2 {
		t.Errorf("before any peer has spoken: servers %s and routes %v, want %s and two routes", got, s.kernel.routes,
			bothOpen)
	}
}

func TestAStartDoesNotWaitForNodesBehindAReflector(t *testing.T) {
	s := newScene(t)
	s.reflect()
	s.settle(t)
	s.speaker.announce(block1, node1)
	s.speaker.offers = append(s.speaker.offers, routes.Offer{
		Cluster: "demo", Peer: netip.MustParseAddr(node1), PeerAS: 65000, Prefix: netip.MustParsePrefix(block2),
		NextHop: netip.MustParseAddr(node2),
	})
	s.settle(t)
	s.settle(t)
	if why := s.view.Load().NotReady; len(why) > 0 {
		t.Errorf("not ready because %q, want ready", why)
	}
}
