package haproxy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// TestRoutesLeadWhereTheyLedUntilAReload gives routes other backends, none of which has a
// spare place, while a reload has to wait.
func TestRoutesLeadWhereTheyLedUntilAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		of := func(name, namespace, service string, servers ...Server) *Backend {
			b := distinct(backend(name, servers...))
			b.Namespace, b.Service = namespace, service
			return b
		}
		choice := func(to string) *Choice {
			condition, err := Condition("req.hdr(X-Beta) yes", nil)
			if err != nil {
				t.Fatal(err)
			}
			return NewChoice([]Case{{If: condition, Backend: to}})
		}
		config := func(choice *Choice, rest string, backends ...*Backend) *Config {
			cfg := r.config(backends...)
			cfg.Choices, cfg.DefaultBackend, cfg.Routes = []*Choice{choice}, rest, nil
			return cfg
		}
		route := func(cfg *Config, host, backend string) {
			cfg.Routes = append(cfg.Routes, &Route{Host: host + ".test", Path: "/", Match: Prefix, Backend: backend})
		}
		pod, main := origin(t, "pod"), origin(t, "main")
		first := choice("beta1")
		was := config(first, "rest1",
			of("app1", "default", "default/app:80", pod), of("blue", "default", "default/blue:80", origin(t, "blue")),
			of("beta1", "default", "default/beta:80", origin(t, "beta")),
			of("main", "default", "default/main:80", main),
			of("rest1", "default", "default/rest:80", origin(t, "rest")),
			of("tenant1", "one", "one/app:80", origin(t, "one")))
		for host, backend := range map[string]string{
			"app": "app1", "color": "blue", "main": "main",
			"tenant": "tenant1",
		} {
			route(was, host, backend)
		}
		for i := range was.Routes {
			if was.Routes[i].Backend == "main" {
				was.Routes[i].Choice = first.Name
			}
		}
		r.settle(was, states(was, Open))

		// The pod of app is another one by now.
		second := choice("beta2")
		next := config(second, "rest2",
			of("app2", "default", "default/app:80", origin(t, "new pod")),
			of("beta2", "default", "default/beta2:80", origin(t, "beta2")),
			of("green", "default", "default/green:80", origin(t, "green")),
			of("main", "default", "default/main:80", main),
			of("rest2", "default", "default/rest2:80", origin(t, "rest2")),
			of("tenant2", "two", "two/app:80", origin(t, "two")))
		for host, backend := range map[string]string{
			"app": "app2", "color": "green", "main": "main",
			"tenant": "tenant2",
		} {
			route(next, host, backend)
		}
		for i := range next.Routes {
			if next.Routes[i].Backend == "main" {
				next.Routes[i].Choice = second.Name
			}
		}
		expect := func(when string, want map[string]string) {
			t.Helper()
			for host, want := range want {
				header := host + ".test"
				if host == "beta" {
					header = "main.test\r\nX-Beta: yes"
				}
				if got := r.get(header, "/"); got != want {
					t.Errorf("%s: %s: got %q, want %q", when, host, got, want)
				}
			}
		}
		r.p.schedule.least, r.p.schedule.last = time.Hour, time.Now()
		for n := range 3 {
			next.Former = r.p.Former(next)
			if res := r.apply(next, states(next, Open)); res.Reloaded || res.Reason == "" {
				t.Fatalf("got %+v, want a reload in an hour", res)
			}
			expect(fmt.Sprint("before the reload, round ", n), map[string]string{
				"app": "new pod", "color": "blue", "main": "main", "beta": "beta", "unknown": "rest", "tenant": "rest",
			})
		}
		// Who plans closes a server of a backend from before as any other.
		closed := states(next, Open)
		for _, b := range next.Former {
			for _, s := range b.Servers {
				closed[ServerID{b.Name, s.Name}] = Closed
			}
		}
		r.apply(next, closed)
		expect("closed", map[string]string{"color": "503"})

		r.later()
		next.Former = r.p.Former(next)
		if res := r.apply(next, states(next, Open)); !res.Reloaded {
			t.Fatalf("got %+v, want a reload", res)
		}
		expect("after the reload", map[string]string{
			"app": "new pod", "color": "green", "main": "main", "beta": "beta2", "unknown": "rest2", "tenant": "two",
		})
		if former := r.p.Former(next); len(former) > 0 {
			t.Errorf("after the reload: got %v, want no backends from before", former)
		}
	})
}

// TestAGuardThatOthersHaveHoldsAtOnce gives a path a guard, and another one a new Service, with
// settings that the worker has loaded for other backends. No reload can come.
func TestAGuardThatOthersHaveHoldsAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		nobody := Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, true)
		of := func(name, service string, server Server, directives ...Directive) *Backend {
			b := backend(name, server)
			b.Namespace, b.Service, b.Directives = "default", service, directives
			return b
		}
		pod := origin(t, "pod")
		app, office := of("app", "app:80", pod), of("office", "office:80", origin(t, "office"), nobody)
		config := func(admin, blue string, backends ...*Backend) *Config {
			cfg := r.config(backends...)
			for path, to := range map[string]string{"/": "app", "/admin": admin, "/blue": blue} {
				cfg.Routes = append(cfg.Routes, &Route{Host: "shop.test", Path: path, Match: Prefix, Backend: to})
			}
			return cfg
		}
		was := config("app", "app", app, office)
		r.settle(was, states(was, Open))
		if got := r.get("shop.test", "/admin"); got != "pod" {
			t.Fatalf("before: got %q, want pod", got)
		}

		r.p.schedule.least, r.p.schedule.last = time.Hour, time.Now()
		next := config("guarded", "blue", app, office, of("guarded", "app:80", pod, nobody),
			of("blue", "blue:80", origin(t, "blue")))
		if next.Former = r.p.Former(next); len(next.Former) > 0 {
			t.Errorf("got %v for former backends, want none: the one of before is still there", next.Former)
		}
		if res := r.apply(next, states(next, Open)); res.Reloaded {
			t.Fatalf("got %+v, want no reload", res)
		}
		for path, want := range map[string]string{"/": "pod", "/admin": "403", "/blue": "blue"} {
			if got := r.get("shop.test", path); got != want {
				t.Errorf("%s: got %q, want %q", path, got, want)
			}
		}
	})
}

// TestABackendFromBeforeLeavesWhenItsHeirHasAPlace replaces a backend by one of the same
// settings. Former cannot know yet that a place will be found for the new one.
func TestABackendFromBeforeLeavesWhenItsHeirHasAPlace(t *testing.T) {
	withThose(t, func(p picture) bool { return !p.atLeast3(4) }, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		of := func(name string, server Server) *Config {
			b := backend(name, server)
			b.Namespace, b.Service = "default", "app:80"
			cfg := r.config(b)
			cfg.Routes = []*Route{{Host: "app.test", Path: "/", Match: Prefix, Backend: name}}
			return cfg
		}
		was, next := of("one", origin(t, "one")), of("two", origin(t, "two"))
		r.settle(was, states(was, Open))
		r.p.schedule.least, r.p.schedule.last = time.Hour, time.Now()
		if next.Former = r.p.Former(next); len(next.Former) != 1 {
			t.Fatalf("got %v for former backends, want one", next.Former)
		}
		res := r.apply(next, states(next, Open))
		if got := r.get("app.test", "/"); got != "two" {
			t.Errorf("got %q, want two", got)
		}
		if res.RetryAt.After(time.Now()) {
			t.Errorf("got %+v, want the next order at once", res)
		}
		again := *next
		if again.Former = r.p.Former(&again); len(again.Former) > 0 {
			t.Errorf("got %v for former backends, want none", again.Former)
		}
		r.apply(&again, states(&again, Open))
		if live, err := r.p.Servers(); err != nil || live.Get("one") != nil && len(live.Get("one").Servers) > 0 {
			t.Errorf("got %v, %v, want no server of the former backend", live.Get("one"), err)
		}
	})
}
