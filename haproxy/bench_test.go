package haproxy

import (
	"fmt"
	"testing"
)

// BenchmarkApply changes the state of one server among 5,000 in 1,000
// backends, with a real HAProxy: fragments are remembered, so what it costs is
// one write and one command.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%d backends", n), func(b *testing.B) {
			r := newRig(b, binaries(b)[0])
			var backends []*Backend
			for i := range n {
				var servers []Server
				for j := range 5 {
					servers = append(servers, nowhereServer(i*5+j))
				}
				backends = append(backends, backend(fmt.Sprintf("ns_svc_app%04d_80", i), servers...))
			}
			cfg := r.config(backends...)
			r.settle(cfg, states(cfg, Open))
			wish := inOrder(cfg, states(cfg, Open))
			b.ResetTimer()
			for i := range b.N {
				wish[backends[n/2].Name][2] = []State{Closed, Open}[i%2]
				if res, err := r.p.Apply(b.Context(), cfg, wish); err != nil || res.Reloaded || res.Commands != 1 {
					b.Fatalf("got %+v, %v", res, err)
				}
			}
		})
	}
}
