package appliance

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkEndpointChange is one endpoint that comes or goes in a cluster of n
// Services with five endpoints each: what the loop adds to the time of the
// edges.
func BenchmarkEndpointChange(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			s := newScene(b)
			s.speaker.announce(block1, node1)
			s.speaker.announce(block2, node2)
			one := s.watcher.snapshot
			all := one
			all.Ingresses, all.Services, all.Slices = nil, nil, nil
			for i := range n {
				ing, svc, slice := one.Ingresses[0].DeepCopy(), one.Services[0].DeepCopy(), one.Slices[0].DeepCopy()
				name := fmt.Sprintf("svc-%04d", i)
				ing.Name, svc.Name, slice.Name, slice.Labels[discoveryv1.LabelServiceName] = name, name, name, name
				ing.Spec.Rules[0].Host = name + ".local"
				ing.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = name
				for e := range 3 {
					more := slice.Endpoints[0]
					more.Addresses = []string{fmt.Sprintf("172.16.171.%d", 70+e)}
					slice.Endpoints = append(slice.Endpoints, more)
				}
				all.Ingresses, all.Services, all.Slices = append(all.Ingresses, ing), append(all.Services, svc), append(all.Slices, slice)
			}
			changed := all.Slices[0].DeepCopy()
			changed.Endpoints = changed.Endpoints[:4]
			versions := [][]*discoveryv1.EndpointSlice{all.Slices, append([]*discoveryv1.EndpointSlice{changed}, all.Slices[1:]...)}
			s.watcher.snapshot = all
			for range 4 {
				s.round(b.Context())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s.watcher.snapshot.Slices = versions[(i+1)%2]
				s.round(b.Context())
			}
		})
	}
}
