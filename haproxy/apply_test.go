package haproxy

import (
	"testing"
)

func TestServersComeAndGoWithoutAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := origin(t, "a"), origin(t, "b")
		cfg := r.config(backend("app", a))
		if servers, err := r.p.Servers(); err != nil || servers.Len() != 0 || r.p.Info().Running {
			t.Errorf("before the first Apply: got servers %v, %v, running: %v", servers, err, r.p.Info().Running)
		}
		if res, info := r.apply(cfg, states(cfg, Open)), r.p.Info(); res.Reason != "" || info.Starts != 1 || info.Reloads != 0 {
			t.Errorf("the first Apply did not start HAProxy with all of it: %+v, %+v", res, info)
		}
		if got, want := r.get("app.test", "/"), "a"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		before := r.p.Info().Reloads

		cfg = r.config(backend("app", a, b))
		id := func(s Server) ServerID { return ServerID{"app", s.Name} }
		for _, step := range []struct {
			name string
			wish map[ServerID]State
			want []string
		}{
			{"b added closed", map[ServerID]State{id(a): Open, id(b): Closed}, []string{"a"}},
			{"b opened", map[ServerID]State{id(a): Open, id(b): Open}, []string{"a", "b"}},
			{"a drained", map[ServerID]State{id(a): Drain, id(b): Open}, []string{"b"}},
			{"a opened again", map[ServerID]State{id(a): Open, id(b): Open}, []string{"a", "b"}},
			{"a closed", map[ServerID]State{id(a): Closed, id(b): Open}, []string{"b"}},
			{"a absent", map[ServerID]State{id(b): Open}, []string{"b"}},
			{"all closed", map[ServerID]State{id(a): Closed, id(b): Closed}, []string{"503"}},
			{"a drained from closed", map[ServerID]State{id(a): Drain, id(b): Closed}, []string{"503"}},
			{"none", nil, []string{"503"}},
			{"both anew", map[ServerID]State{id(a): Open, id(b): Open}, []string{"a", "b"}},
		} {
			r.settle(cfg, step.wish)
			servers, err := byID(r.p.Servers())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []Server{a, b} {
				if got, want := servers[id(s)].State, step.wish[id(s)]; got != want {
					t.Errorf("%s: server %s: got %s, want %s", step.name, s.Name, got, want)
				}
			}
			got := make(map[string]bool)
			for range 8 {
				got[r.get("app.test", "/")] = true
			}
			for _, want := range step.want {
				if !got[want] {
					t.Errorf("%s: nothing answered %q", step.name, want)
				}
				delete(got, want)
			}
			if len(got) > 0 {
				t.Errorf("%s: unexpected answers %v", step.name, got)
			}
			if err := check(binary, r.opt.Dir); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
		}
		if got := r.p.Info().Reloads; got != before {
			t.Errorf("got %d reloads, want %d", got, before)
		}
	})
}

func TestWhatIsClosedIsNotCheckedAndWhatOpensIsUp(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")))
		cfg.Backends[0].Options.Check = true
		for _, step := range []struct {
			state State
			want  string
		}{{Closed, Unchecked}, {Open, Up}, {Closed, Unchecked}, {Drain, Up}} {
			r.settle(cfg, states(cfg, step.state))
			for _, from := range []string{"the command", "HAProxy"} {
				servers, err := r.p.Servers()
				if err != nil {
					t.Fatal(err)
				}
				if got := servers.Get("app").Servers[0]; got.State != step.state || got.Check != step.want {
					t.Errorf("%s, from %s: got %s, %s, want %s", step.state, from, got.State, got.Check, step.want)
				}
				r.p.mu.Lock()
				r.p.forget()
				r.p.mu.Unlock()
			}
		}
	})
}
