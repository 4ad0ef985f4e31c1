package appliance

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/appliance/plan"
	"sallyport/haproxy"
	"sallyport/routes"
)

const (
	blueSource, greenSource = "192.168.50.21", "192.168.51.21"
	greenNode1, greenNode2  = "192.168.51.23", "192.168.51.24"
)

// newTwins returns a scene with two clusters that have the same blocks, and pods with the same addresses. The machine
// connects to those of demo from 192.168.50.21, and to those of green from 192.168.51.21.
func newTwins(t *testing.T) *scene {
	t.Helper()
	s := newScene(t)
	s.kernel.networks, s.kernel.primary = prefixes("192.168.50.0/24", "192.168.51.0/24"), addrs(greenSource)
	pools := prefixes("172.16.0.0/16")
	blue := &s.watcher.snapshot.Topology
	blue.Bounds, blue.Source = pools, netip.MustParsePrefix("192.168.50.0/24")
	green := demoSnapshot("green")
	green.Topology.Bounds, green.Topology.Source = pools, netip.MustParsePrefix("192.168.51.0/24")
	for i, node := range []string{greenNode1, greenNode2} {
		n := &green.Topology.Nodes[i]
		n.BGP, n.Addresses = prefixes(node+"/24"), addrs(node)
	}
	green.Ingresses[0].Spec.Rules[0].Host = "green.local"
	s.clusters = append(s.clusters, &cluster{name: "green", opened: opened{watcher: &fakeWatcher{snapshot: green}}})
	for block, node := range map[string]string{block1: node1, block2: node2} {
		s.speaker.announce(block, node)
	}
	for block, node := range map[string]string{block1: greenNode1, block2: greenNode2} {
		s.speaker.announce(block, node)
		s.speaker.offers[len(s.speaker.offers)-1].Cluster = "green"
	}
	return s
}

// sourcesOf returns the source and the state of each server at an address, sorted.
func (s *scene) sourcesOf(pod string) string {
	var all []string
	for live := range (plan.Have{Backends: s.proxy.backends}).Servers() {
		if live.Addr.Addr().String() == pod {
			all = append(all, live.State.String()+" from "+live.Source.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func TestTwoClustersWithTheSamePodsAreServed(t *testing.T) {
	s := newTwins(t)
	s.settle(t)
	if got, want := s.sourcesOf(pod1), "open from "+blueSource+", open from "+greenSource; got != want {
		t.Errorf("servers at %s: %s, want %s", pod1, got, want)
	}
	from := func(source, prefix string) routes.Selector {
		return routes.Selector{From: netip.MustParseAddr(source), To: netip.MustParsePrefix(prefix)}
	}
	want := routes.Table{
		from(blueSource, block1): netip.MustParseAddr(node1), from(blueSource, block2): netip.MustParseAddr(node2),
		from(greenSource, block1): netip.MustParseAddr(greenNode1), from(greenSource, block2): netip.MustParseAddr(greenNode2),
	}
	if !s.kernel.routes.Equal(want) {
		t.Errorf("got routes\n%swant\n%s", s.kernel.routes, want)
	}

	// Somebody removes the rule of green.
	delete(s.kernel.rules, from(greenSource, "172.16.0.0/16"))
	s.round(t.Context())
	if got, want := s.sourcesOf(pod1), "closed from "+greenSource+", open from "+blueSource; got != want {
		t.Errorf("a round after the rule went: %s, want %s", got, want)
	}
	if _, back := s.kernel.rules[from(greenSource, "172.16.0.0/16")]; !back {
		t.Error("a round after the rule went, it is not back")
	}
	s.settle(t)
	if got, want := s.sourcesOf(pod1), "open from "+blueSource+", open from "+greenSource; got != want {
		t.Errorf("afterwards: %s, want %s", got, want)
	}

	// The machine loses its address in the network of green.
	s.kernel.primary = nil
	s.settle(t)
	if got, want := s.sourcesOf(pod1), "closed from invalid IP, open from "+blueSource; got != want {
		t.Errorf("without an address: %s, want %s", got, want)
	}
	refused := s.view.Load().BGP.Refusals
	if len(refused) != 2 || refused[0].Reason != routes.NoSource {
		t.Errorf("got refusals %v, want two for want of a source", refused)
	}
	const why = "cluster green: this machine has no address of its own in 192.168.51.0/24"
	if warnings := strings.Join(s.view.Load().Warnings, "\n"); !strings.Contains(warnings, why) {
		t.Errorf("got warnings %s, want %q", warnings, why)
	}
	if got := len(s.kernel.rules); got != 1 {
		t.Errorf("%d rules are left, want that of demo", got)
	}
}

func TestAClusterThatGetsASourceGoesOn(t *testing.T) {
	s := running(t)
	s.settle(t)
	top := &s.watcher.snapshot.Topology
	top.Bounds, top.Source = prefixes("172.16.0.0/16"), netip.MustParsePrefix("192.168.50.0/24")
	gaps := 0
	for range roundsAtOnce {
		progress := s.round(t.Context())
		open := 0
		for live := range (plan.Have{Backends: s.proxy.backends}).Servers() {
			if live.State == haproxy.Open {
				open++
			}
		}
		if open == 0 {
			gaps++
		}
		if !progress {
			break
		}
	}
	if gaps > 1 {
		t.Errorf("no server was open after %d rounds, want one at most", gaps)
	}
	if got, want := s.sourcesOf(pod1), "open from "+blueSource; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for to := range s.kernel.routes {
		if to.From.String() != blueSource {
			t.Errorf("the route %s is left", to)
		}
	}
}
