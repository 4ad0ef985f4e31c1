package haproxy

import (
	"slices"
	"strings"
	"testing"
)

func TestWeightsChangeByCommandsAloneAndStayOverAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		blue, green := origin(t, "blue"), origin(t, "green")
		weighing := func(b *Backend, weights ...int) *Backend {
			b.Servers = slices.Clone(b.Servers)
			for i, w := range weights {
				b.Servers[i].Weight = w
			}
			return b
		}
		r := newRig(t, binary)
		apply := func(weights ...int) *Config {
			servers := []Server{blue, green}
			slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
			if servers[0].Name != blue.Name {
				slices.Reverse(weights)
			}
			cfg := r.config(weighing(backend("app", servers...), weights...))
			r.settle(cfg, states(cfg, Open))
			return cfg
		}
		// share returns how many of 400 requests go to green.
		share := func() (n int) {
			for range 400 {
				if strings.HasPrefix(r.get("app.test", "/"), "green") {
					n++
				}
			}
			return n
		}
		holds := func(what string, least, most int) {
			t.Helper()
			if got := share(); got < least || got > most {
				t.Errorf("%s: green has %d of 400 requests, want %d to %d", what, got, least, most)
			}
		}
		apply()
		holds("without weights", 190, 210)
		reloads := r.p.Info().Reloads
		apply(19, 1)
		holds("at 19 to 1", 15, 25)
		apply(1, 3)
		holds("at 1 to 3", 290, 310)
		apply(MaxWeight, 1)
		holds("at 256 to 1", 0, 4)
		cfg := apply(3, 1)
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("there were %d reloads for weights, want commands alone", got-reloads)
		}
		next := *cfg
		next.Process.MaxConn = 1000
		r.settle(&next, states(&next, Open))
		if got := r.p.Info().Reloads; got != reloads+1 {
			t.Fatalf("%d reloads, want one", got-reloads)
		}
		holds("at 3 to 1, after a reload", 90, 110)

		if err := r.p.worker.tell([]string{"set server app/" + green.Name + " weight 256"}); err != nil {
			t.Fatal(err)
		}
		r.p = r.fresh()
		r.settle(&next, states(&next, Open))
		holds("at 3 to 1, after somebody else has changed it", 90, 110)
	})
}
