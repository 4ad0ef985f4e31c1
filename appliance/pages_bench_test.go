package appliance

import (
	"fmt"
	"net/http/httptest"
	"testing"
)

// BenchmarkPage measures a page that is made of a new view, with an index of its own, and
// a page of a view that has been shown before, in a cluster of 10,000 Ingresses and 50,000
// servers.
func BenchmarkPage(b *testing.B) {
	s, _ := largeScene(b, 10_000)
	h, _ := endpoint(s)
	for _, path := range []string{"/", "/servers?q=172.16.9&page=2", "/ingresses?q=svc-09", "/backend/default_svc_svc-00007_80", "/search?q=svc-0777"} {
		for _, fresh := range []bool{true, false} {
			b.Run(fmt.Sprintf("path=%s,fresh=%v", path, fresh), func(b *testing.B) {
				for b.Loop() {
					if fresh {
						v := *s.view.Load()
						s.view.Store(&v)
					}
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), "GET", path, nil))
					if w.Code != 200 {
						b.Fatal(w.Code)
					}
				}
			})
		}
	}
}

// BenchmarkRoundWithViewers measures a round in which one endpoint changes, with and
// without somebody who loads the first page again and again.
func BenchmarkRoundWithViewers(b *testing.B) {
	for _, viewers := range []int{0, 1} {
		b.Run(fmt.Sprintf("viewers=%d", viewers), func(b *testing.B) {
			s, toggle := largeScene(b, 10_000)
			h, _ := endpoint(s)
			for range viewers {
				go func() {
					for b.Context().Err() == nil {
						h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(b.Context(), "GET", "/", nil))
					}
				}()
			}
			for b.Loop() {
				toggle()
				s.round(b.Context())
			}
		})
	}
}
