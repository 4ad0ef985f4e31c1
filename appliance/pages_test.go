package appliance

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// allocations returns how many objects a request for a page allocates, once its view was shown.
func allocations(t *testing.T, s *scene, path string) float64 {
	t.Helper()
	h, _ := endpoint(s)
	return testing.AllocsPerRun(2, func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if w.Code != 200 {
			t.Fatalf("%s: %d", path, w.Code)
		}
	})
}

// A page costs what it shows. What grows with the clusters is counted once for each round, by the
// first request, and a search looks at every server without a copy of each.
func TestAPageCostsWhatItShows(t *testing.T) {
	small, _ := largeScene(t, 100)
	large, _ := largeScene(t, 10_000)
	for _, path := range largePages {
		if path == "/node/demo/worker1" { // it shows each block
			continue
		}
		in := strings.NewReplacer("svc-09", "svc-00", "svc-0777", "svc-0007", "page=1000", "page=2", "172.16.9", "172.16.1")
		few, many := allocations(t, small, in.Replace(path)), allocations(t, large, path)
		t.Logf("%s: %.0f and %.0f", path, few, many)
		if bound := 2*few + 500; many > bound {
			t.Errorf("%s allocates %.0f objects among 500 servers, and %.0f among 50,000, want at most %.0f", path, few, many, bound)
		}
	}
}

// Whoever reads no further than the heading learns that clients get no answer.
func TestTheHeadingSaysThatNoServerIsOpen(t *testing.T) {
	for name, row := range map[string]struct {
		routed bool
		want   string
	}{
		"there are routes": {true, ">gate-1 is ready</h1>"},
		"there are none":   {false, ">gate-1 is ready, but no server is open</h1>"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.speaker.announce(block1, node1)
			s.speaker.announce(block2, node2)
			if !row.routed {
				s.speaker.offers = nil // nodes have spoken, and announce nothing
			}
			s.settle(t)
			h, _ := endpoint(s)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
			if !strings.Contains(w.Body.String(), row.want) {
				t.Errorf("want %q in:\n%.1500s", row.want, w.Body)
			}
		})
	}
}
