package haproxy

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
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

// TestAFewServersOfALargeBackendArePatient counts the servers that stay in service until a check fails.
func TestAFewServersOfALargeBackendArePatient(t *testing.T) {
	for _, among := range []int{1, 3, 4, 10, 100} {
		const rounds = 1000
		all, none := 0, 0
		for round := range rounds {
			patient := 0
			for i := range among {
				at := netip.AddrFrom4([4]byte{10, byte(round), byte(round >> 8), byte(i)})
				s := Server{Name: ServerName(netip.AddrPortFrom(at, 8080)), Addr: netip.AddrPortFrom(at, 8080)}
				if s.patient(among) {
					patient++
				}
			}
			all += patient
			if patient == 0 {
				none++
			}
		}
		want := float64(min(among, patientServers))
		if got := float64(all) / rounds; got < want-0.3 || got > want+0.3 {
			t.Errorf("of %d servers %.2f are patient on average, want about %.0f", among, got, want)
		}
		if none > rounds/10 {
			t.Errorf("of %d servers none is patient %d times in %d", among, none, rounds)
		}
	}
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
