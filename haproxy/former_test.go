package haproxy

import (
	"fmt"
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
			cfg.Routes = append(cfg.Routes, Route{Host: host + ".test", Path: "/", Match: Prefix, Backend: backend})
		}
		pod, main := origin(t, "pod"), origin(t, "main")
		first := choice("beta1")
		was := config(first, "rest1",
			of("app1", "default", "default/app:80", pod), of("blue", "default", "default/blue:80", origin(t, "blue")),
			of("beta1", "default", "default/beta:80", origin(t, "beta")), of("main", "default", "default/main:80", main),
			of("rest1", "default", "default/rest:80", origin(t, "rest")), of("tenant1", "one", "one/app:80", origin(t, "one")))
		for host, backend := range map[string]string{"app": "app1", "color": "blue", "main": "main", "tenant": "tenant1"} {
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
			of("app2", "default", "default/app:80", origin(t, "new pod")), of("beta2", "default", "default/beta2:80", origin(t, "beta2")),
			of("green", "default", "default/green:80", origin(t, "green")), of("main", "default", "default/main:80", main),
			of("rest2", "default", "default/rest2:80", origin(t, "rest2")), of("tenant2", "two", "two/app:80", origin(t, "two")))
		for host, backend := range map[string]string{"app": "app2", "color": "green", "main": "main", "tenant": "tenant2"} {
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
		r.p.opt.MinReload, r.p.lastReload = time.Hour, time.Now()
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

		r.p.opt.MinReload = time.Millisecond
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
