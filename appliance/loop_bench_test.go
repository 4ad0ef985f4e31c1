package appliance

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/ingress/input"
	"sallyport/routes"
)

// largeScene returns a scene that has settled with n Services of five endpoints each, and
// a function that lets one endpoint go, or come back. Its address goes or comes in its
// IPAMBlock, too.
func largeScene(t testing.TB, n int) (s *scene, toggle func()) {
	s = newScene(t)
	one := s.watcher.snapshot
	all := one
	all.Ingresses, all.Services, all.Slices, all.Topology.Affinities, all.Topology.Blocks = nil, nil, nil, nil, nil
	address := func(i int) netip.Addr {
		var text [4]byte
		binary.BigEndian.PutUint32(text[:], 172<<24|16<<16+uint32(i))
		return netip.AddrFrom4(text)
	}
	for i := 0; i < endpointsEach*n; i += 64 {
		block := netip.PrefixFrom(address(i), 26)
		all.Topology.Affinities = append(all.Topology.Affinities,
			routes.Affinity{Name: block.String(), Node: "worker1", Prefix: block, State: "confirmed"})
		all.Topology.Blocks = append(all.Topology.Blocks,
			&routes.IPAMBlock{Prefix: block, Affinity: "host:worker1", Pods: podsOf(block.String())})
		s.speaker.announce(block.String(), node1)
	}
	s.speaker.announce(block2, node2)
	addServices(&all.Objects, one.Objects, n, address)
	changed := all.Slices[0].DeepCopy()
	changed.Endpoints = changed.Endpoints[:4]
	versions := [][]*discoveryv1.EndpointSlice{
		all.Slices,
		append([]*discoveryv1.EndpointSlice{changed}, all.Slices[1:]...),
	}
	without := *all.Topology.Blocks[0]
	without.Pods = maps.Clone(without.Pods)
	delete(without.Pods, address(4))
	blocks := [][]*routes.IPAMBlock{
		all.Topology.Blocks,
		append([]*routes.IPAMBlock{&without}, all.Topology.Blocks[1:]...),
	}
	s.watcher.snapshot = all
	for range 4 {
		s.round(t.Context())
	}
	if got := len(s.view.Load().Want.Routes); got < endpointsEach*n/64 {
		t.Fatalf("%d routes", got)
	}
	turn := 0
	return s, func() {
		turn = 1 - turn
		s.watcher.snapshot.Slices, s.watcher.snapshot.Topology.Blocks = versions[turn], blocks[turn]
	}
}

// endpointsEach is the number of endpoints of a Service of addServices.
const endpointsEach = 5

// addServices adds n Services like the one of another snapshot, each with an Ingress. The endpoints of
// a Service have the addresses from endpointsEach times its number on.
func addServices(to *input.Objects, like input.Objects, n int, address func(i int) netip.Addr) {
	for i := range n {
		ing, svc, slice := like.Ingresses[0].DeepCopy(), like.Services[0].DeepCopy(), like.Slices[0].DeepCopy()
		name := fmt.Sprintf("svc-%05d", i)
		ing.Name, svc.Name, slice.Name, slice.Labels[discoveryv1.LabelServiceName] = name, name, name, name
		ing.Spec.Rules[0].Host = name + ".local"
		ing.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = name
		slice.Endpoints = slice.Endpoints[:1]
		for e := range endpointsEach {
			if e > 0 {
				slice.Endpoints = append(slice.Endpoints, slice.Endpoints[0])
			}
			slice.Endpoints[e].Addresses = []string{address(endpointsEach*i + e).String()}
		}
		to.Ingresses, to.Services = append(to.Ingresses, ing), append(to.Services, svc)
		to.Slices = append(to.Slices, slice)
	}
}

// BenchmarkEndpointChange measures the time that the loop takes for one endpoint that
// comes or goes, without the time of the edges, in a cluster of n Services.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s, toggle := largeScene(b, n)
			b.ReportAllocs()
			for b.Loop() {
				toggle()
				s.round(b.Context())
			}
		})
	}
}

// An endpoint that goes or comes makes the loop look at as many backends in a large
// cluster as in a small one.
func TestAnEndpointChangePlansTheSameInAnyCluster(t *testing.T) {
	for _, n := range []int{20, 2000} {
		s, toggle := largeScene(t, n)
		for range 4 {
			toggle()
			planned := 0
			for range 3 {
				s.round(t.Context())
				planned += s.planner.Planned()
			}
			// In the round of the change, and in the one after it, which sees it done.
			if planned != 2 {
				t.Errorf("%d Services: %d backends planned, want 2", n, planned)
			}
		}
	}
}
