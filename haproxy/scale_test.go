package haproxy

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// TestARequestFindsTheOneServerThatLives sends requests of several clients to 20 servers, 19 of
// which refuse connections. The clients meet the dead ones in the same order, at the same time.
func TestARequestFindsTheOneServerThatLives(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		for _, clients := range []int{1, 2, 10} {
			r := newRig(t, binary)
			servers := []Server{origin(t, "alive")}
			for i := range 19 {
				servers = append(servers, nowhereServer(i))
			}
			b := backend("app", slices.Clone(servers)...)
			b.Options.Check = true
			cfg := r.config(b)
			r.settle(cfg, states(cfg, Open))
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for n := range 50 {
						if got, err := r.try("app.test", "/"); err != nil || got != "alive" {
							t.Errorf("%d clients, request %d: got %q, %v", clients, n, got, err)
							return
						}
					}
				})
			}
			all.Wait()
		}
	})
}

func TestARequestThatEndsServersEndsFewWithoutChecks(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		var reached atomic.Int32
		dying := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			reached.Add(1)
			panic(http.ErrAbortHandler)
		}))
		t.Cleanup(dying.Close)
		cfg := r.config(backend("app", serverAt(dying.Listener.Addr())))
		r.settle(cfg, states(cfg, Open))
		if got := r.get("app.test", "/"); got != "502" && got != "503" {
			t.Errorf("got %s", got)
		}
		if got := reached.Load(); got != 1+uncheckedRetries {
			t.Errorf("one request reached servers %d times", got)
		}
	})
}
