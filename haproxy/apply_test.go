package haproxy

import (
	"maps"
	"testing"
	"time"
)

func TestServersComeAndGoWithoutAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := origin(t, "a"), origin(t, "b")
		cfg := r.config(backend("app", a))
		if servers, err := r.p.Servers(); err != nil || servers.Len() != 0 || r.p.Info().Running {
			t.Errorf("before the first Apply: got servers %v, %v, running: %v", servers, err, r.p.Info().Running)
		}
		if res, info := r.apply(cfg, states(cfg, Open)), r.p.Info(); res.Reason != "" || info.Starts != 1 ||
			info.Reloads != 0 {
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
				r.p.belief.forgot()
				r.p.mu.Unlock()
			}
		}
	})
}

// TestAChangeByAnotherHandIsNoErrorOfOurs closes a server behind the Proxy's back.
func TestAChangeByAnotherHandIsNoErrorOfOurs(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		if info := r.p.Info(); info.Reread || info.Restored > 0 {
			t.Errorf("before: got %+v, want a worker that is known, and nothing restored", info)
		}
		if err := r.p.worker.tell(
			[]string{"set server app/" + cfg.Backends[0].Servers[0].Name + " state maint"}); err != nil {
			t.Fatal(err)
		}
		r.p.lookAgain()
		if servers, err := r.p.Servers(); err != nil || servers.Get("app").Servers[0].State != Closed ||
			!r.p.Info().Reread {
			t.Errorf("got %v, %v, want a closed server of a worker that was read anew", servers.Get("app"), err)
		}
		r.apply(cfg, states(cfg, Open))
		if info := r.p.Info(); info.Restored != 1 || info.Missed != 0 || info.Reread {
			t.Errorf("got %d orders restored, %d missed, read anew: %t; want 1, 0 and false", info.Restored,
				info.Missed, info.Reread)
		}
		if got := r.get("app.test", "/"); got != "a" {
			t.Errorf("got %q, want a", got)
		}
	})
}

// TestATimeThatComesDuringARepetitionIsNoErrorOfOurs has an order ask for a time that comes while its
// repetition is carried out.
func TestATimeThatComesDuringARepetitionIsNoErrorOfOurs(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	r.forgetRoutes()
	r.p.last.retryAt = time.Now().Add(100 * time.Microsecond) // less than a command to HAProxy takes
	r.apply(cfg, states(cfg, Open))
	if info := r.p.Info(); info.Missed != 0 {
		t.Errorf("got %d orders missed, want 0", info.Missed)
	}
	if got := r.get("app.test", "/"); got != "a" {
		t.Errorf("got %q, want a", got)
	}
}

// forgetRoutes makes the Proxy believe that it told the worker of no route.
func (r *rig) forgetRoutes() {
	r.t.Helper()
	if err := r.p.worker.tell([]string{"clear map " + r.p.path(routeMap)}); err != nil {
		r.t.Fatal(err)
	}
	r.p.belief.run.tables, r.p.belief.run.rows = nil, maps.Clone(r.p.belief.run.rows) // the files share them
	r.p.belief.run.rows[routeMap] = nil
}

// TestARepetitionThatFindsSomethingIsCounted makes the Proxy believe that it told the worker of
// no route. So the order before has left one out.
func TestARepetitionThatFindsSomethingIsCounted(t *testing.T) {
	r := newRig(t, binaries(t)[0])
	cfg := r.config(backend("app", origin(t, "a")))
	r.settle(cfg, states(cfg, Open))
	r.forgetRoutes()
	if _, err := r.p.Apply(t.Context(), cfg, inOrder(cfg, states(cfg, Open))); err != nil {
		t.Fatal(err)
	}
	if info := r.p.Info(); info.Missed != 1 || info.Restored != 0 {
		t.Errorf("got %d orders missed, %d restored; want 1 and 0", info.Missed, info.Restored)
	}
	r.p.note(func(i *Info) { i.Missed = 0 })
	r.apply(cfg, states(cfg, Open))
	if got := r.get("app.test", "/"); got != "a" {
		t.Errorf("got %q, want a", got)
	}
}

func TestServersOfANamespaceComeAndGoAFewAtATime(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		with := func(crowd int, victims ...Server) *Config {
			var many []Server
			for i := range crowd {
				many = append(many, nowhereServer(i))
			}
			a, b := backend("crowd", many...), backend("victim", victims...)
			a.Namespace, b.Namespace = "crowd", "victim"
			return r.config(a, b)
		}
		hold := func(when string, crowd, victims int) {
			t.Helper()
			servers, err := r.p.Servers()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(servers.Get("crowd").Servers); got != crowd {
				t.Errorf("%s: the crowd has %d servers, want %d", when, got, crowd)
			}
			if got := len(servers.Get("victim").Servers); got != victims {
				t.Errorf("%s: the victim has %d servers, want %d", when, got, victims)
			}
		}
		victim := origin(t, "victim")
		few, most := with(1), with(2*serversAtOnce+2, victim)
		r.settle(few, states(few, Open))
		hold("at first", 1, 0)
		if res := r.apply(most, states(most, Open)); res.RetryAt.IsZero() {
			t.Error("no other round follows the first")
		}
		hold("after one round", serversAtOnce+1, 1)
		r.settle(most, states(most, Open))
		hold("in the end", 2*serversAtOnce+2, 1)
		if res := r.apply(few, states(few, Open)); res.RetryAt.IsZero() {
			t.Error("no other round follows the one that removes the first servers")
		}
		hold("after servers went for one round", serversAtOnce+2, 0)
		r.settle(few, states(few, Open))
		hold("when they are gone", 1, 0)
		if got := r.p.Info().Missed; got != 0 {
			t.Errorf("a repetition changed something %d times", got)
		}
	})
}
