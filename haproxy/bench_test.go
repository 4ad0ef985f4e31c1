package haproxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
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

// BenchmarkRewritesOfOthers asks one application for a page while more and more
// others each have a rewrite of their own: what they say costs it nothing.
func BenchmarkRewritesOfOthers(b *testing.B) {
	for _, others := range []int{0, 1000} {
		b.Run(strconv.Itoa(others), func(b *testing.B) {
			r := newRig(b, binaries(b)[0])
			page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
			b.Cleanup(page.Close)
			list := []*Backend{backend("app", serverAt(page.Listener.Addr()))}
			for i := range others {
				format, err := ParseFormat(fmt.Sprintf(`/%d\1`, i))
				if err != nil {
					b.Fatal(err)
				}
				d, err := ReplacePath(fmt.Sprintf("^/from%d(.*)", i), format)
				if err != nil {
					b.Fatal(err)
				}
				other := backend(fmt.Sprintf("other%d", i))
				other.Directives = []Directive{d}
				list = append(list, other)
			}
			cfg := r.config(list...)
			if _, err := r.p.Apply(b.Context(), cfg, inOrder(cfg, states(cfg, Open))); err != nil {
				b.Fatal(err)
			}
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+r.http.String()+"/page", http.NoBody)
					if err != nil {
						b.Error(err)
						return
					}
					request.Host = "app.test"
					response, err := client.Do(request)
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK {
						b.Errorf("status %d", response.StatusCode)
					}
				}
			})
		})
	}
}
