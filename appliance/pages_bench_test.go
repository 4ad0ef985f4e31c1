package appliance

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// nothing is a page of the same handler that asks for nothing: the floor of the benchmarks.
const nothing = "/healthz"

// largePages are pages of largeScene.
var largePages = []string{
	"/", "/ingresses", "/ingresses?q=svc-09&page=2", "/backends?q=svc-0777", "/servers?page=1000",
	"/servers?q=172.16.9&page=2", "/search?q=svc-0777",
	"/ingress/demo/default/svc-00007", "/backend/demo__default_svc_svc-00007_80", "/block/demo/172.16.0.64/26",
	"/node/demo/worker1", "/cluster/demo",
}

// again makes the last view a new one, which has no index.
func (s *scene) again() {
	v := *s.view.Load()
	s.view.Store(&v)
}

// used returns the processor time that this process has used.
func used(b *testing.B) time.Duration {
	b.Helper()
	var all syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &all); err != nil {
		b.Fatal(err)
	}
	return time.Duration(all.Utime.Nano() + all.Stime.Nano())
}

// BenchmarkPage measures pages of a cluster of 10,000 Ingresses and 50,000 servers: of a new view,
// whose index the first request makes, and of a view that was shown before. cpu-ms is the processor
// time of a page, which a busy machine lengthens less than ns/op.
func BenchmarkPage(b *testing.B) {
	s, _ := largeScene(b, 10_000)
	h, _ := endpoint(s)
	for _, path := range append([]string{nothing}, largePages...) {
		for _, view := range []string{"new", "shown"} {
			b.Run(fmt.Sprintf("path=%s,view=%s", path, view), func(b *testing.B) {
				before := used(b)
				for b.Loop() {
					if view == "new" {
						s.again()
					}
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), "GET", path, nil))
					if w.Code != 200 {
						b.Fatal(w.Code)
					}
				}
				b.ReportMetric((used(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
			})
		}
	}
}

// load asks for a page, and reads all of it. begun is called at its first byte.
func load(ctx context.Context, url string, begun func()) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if _, err = io.ReadFull(response.Body, make([]byte, 1)); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %w", url, response.Status, err)
	}
	begun()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// hold keeps the stream of a page open until the benchmark ends, and returns once it has begun.
func hold(b *testing.B, url string) {
	b.Helper()
	begun := make(chan error, 2)
	go func() { begun <- load(b.Context(), url, func() { begun <- nil }) }()
	if err := <-begun; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFirstByte measures the time to the first byte of a page in the same cluster, over a
// connection, while a viewer holds the stream of the first page open and each request follows a
// round that changed something.
func BenchmarkFirstByte(b *testing.B) {
	s, toggle := largeScene(b, 10_000)
	h, _ := endpoint(s)
	server := httptest.NewServer(h)
	defer server.Close()
	for _, path := range append([]string{nothing}, largePages...) {
		b.Run("path="+path, func(b *testing.B) {
			hold(b, server.URL+"/live?page=/")
			slowest := time.Duration(0)
			for b.Loop() {
				b.StopTimer()
				toggle()
				s.round(b.Context())
				b.StartTimer()
				began := time.Now()
				if err := load(b.Context(), server.URL+path, func() {
					b.StopTimer()
					slowest = max(slowest, time.Since(began))
				}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(slowest.Seconds()*1000, "slowest-ms")
		})
	}
}

// BenchmarkRoundWithViewers measures a round in which one endpoint changes: without viewers, with
// streams of the first page, and with somebody who loads that page again and again without a pause.
func BenchmarkRoundWithViewers(b *testing.B) {
	s, toggle := largeScene(b, 10_000)
	h, _ := endpoint(s)
	server := httptest.NewServer(h)
	defer server.Close()
	for _, who := range []struct {
		name           string
		streams, loads int
	}{{"nobody", 0, 0}, {"stream", 1, 0}, {"3 streams", 3, 0}, {"loads", 0, 1}} {
		b.Run("viewers="+who.name, func(b *testing.B) {
			for range who.streams {
				hold(b, server.URL+"/live?page=/")
			}
			for range who.loads {
				go func() {
					for b.Context().Err() == nil {
						h.ServeHTTP(httptest.NewRecorder(),
							httptest.NewRequestWithContext(b.Context(), "GET", "/", nil))
					}
				}()
			}
			slowest := time.Duration(0)
			for b.Loop() {
				toggle()
				began := time.Now()
				s.round(b.Context())
				slowest = max(slowest, time.Since(began))
			}
			b.ReportMetric(slowest.Seconds()*1000, "slowest-ms")
		})
	}
}

// BenchmarkDrawing measures the first page with 3 and with 300 nodes: all nodes have a session, some
// have a session, and no node has a session.
func BenchmarkDrawing(b *testing.B) {
	for _, nodes := range []int{3, 300} {
		for _, state := range []string{"some", "none"} {
			s := wide(b, nodes)
			if state == "none" {
				s.speaker.offers = nil
				for _, p := range s.speaker.peers {
					s.speaker.down[p.Addr] = true
				}
				s.clock = s.clock.Add(time.Hour)
				s.settle(b)
			}
			h, _ := endpoint(s)
			b.Run(fmt.Sprintf("nodes=%d,sessions=%s", nodes, state), func(b *testing.B) {
				for b.Loop() {
					s.again()
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequestWithContext(b.Context(), "GET", "/", nil))
					if w.Code != 200 {
						b.Fatal(w.Code)
					}
				}
			})
		}
	}
}
