package haproxy

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// withCommands runs a test with every HAProxy that adds backends by command.
func withCommands(t *testing.T, test func(t *testing.T, binary string)) {
	t.Helper()
	withThose(t, func(p picture) bool { return p.atLeast3(4) }, test)
}

func TestABackendComesAndGoesByCommand(t *testing.T) {
	withCommands(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
		with := func(more ...*Backend) *Config { return r.config(append([]*Backend{a}, more...)...) }
		r.settle(with(), states(with(), Open))
		worker := r.p.Info().Worker

		cfg := with(b)
		if res := r.apply(cfg, states(cfg, Open)); res.Reason != "" || !res.RetryAt.IsZero() {
			t.Errorf("got %+v, want nothing left to do", res)
		}
		if got := r.get("default_b_80.test", "/"); got != "b" {
			t.Errorf("got %q, want b", got)
		}
		if res := r.apply(cfg, states(cfg, Open)); res.Commands > 0 {
			t.Errorf("again: got %+v, want nothing to do", res)
		}

		// The next process finds an ordinary backend, before and after the files have it.
		for _, when := range []string{"ahead of the files", "with the files"} {
			r.p = r.fresh()
			if servers, err := byID(r.p.Servers()); err != nil ||
				servers[ServerID{"default_b_80", b.Servers[0].Name}].State != Open {
				t.Errorf("%s: got %v, %v, want an open server of b", when, servers, err)
			}
			if res := r.apply(cfg, states(cfg, Open)); res.Reason != "" || res.Commands > 0 {
				t.Errorf("%s: another process: got %+v, want nothing to do", when, res)
			}
			if err := r.p.settle(); err != nil {
				t.Fatal(err)
			}
			if err := check(r.opt.Binary, r.opt.Dir); err != nil {
				t.Error(err)
			}
		}

		// A request under way keeps the backend, and ends well.
		slow, err := net.Dial("tcp", r.http.String())
		if err != nil {
			t.Fatal(err)
		}
		defer slow.Close()
		_ = slow.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprint(slow, "POST / HTTP/1.1\r\nHost: default_b_80.test\r\nContent-Length: 1\r\n\r\n"); err !=
			nil {
			t.Fatal(err)
		}
		r.eventually("the request is under way", func() bool {
			pic, err := r.p.worker.look()
			return err == nil && pic.backends.Get("default_b_80").Servers[0].Sessions > 0
		})
		if res := r.apply(with(), states(with(), Open)); res.Reason != "backend default_b_80 removed" ||
			time.Until(res.RetryAt) > lingerRetry {
			t.Errorf("while a request is under way: got %+v, want another attempt soon", res)
		}
		if got := r.get("default_b_80.test", "/"); got != "404" {
			t.Errorf("another request: got %q, want 404", got)
		}
		if res := r.apply(with(), states(with(), Open)); res.Reason == "" {
			t.Errorf("the backend of a request under way is gone")
		}
		// As long as others go, nobody reloads for it.
		cfg = with(backend("default_c_80", b.Servers...))
		r.apply(cfg, states(cfg, Open))
		r.p.schedule.idleSince = time.Now().Add(-idleReload / 2)
		r.eventually("the other backend is gone", func() bool {
			return r.apply(with(), states(with(), Open)).Reason == "backend default_b_80 removed" &&
				r.p.belief.run.backends.Get("default_c_80") == nil
		})
		if waits := time.Since(r.p.schedule.idleSince); waits > idleReload/2 {
			t.Errorf("the reload waits for %s, want it to wait anew", waits)
		}
		if _, err := fmt.Fprint(slow, "x"); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 15)
		if _, err := slow.Read(answer); err != nil || string(answer) != "HTTP/1.1 200 OK" {
			t.Errorf("the request that was under way: got %q, %v", answer, err)
		}
		_ = slow.Close()
		r.eventually("the backend is gone", func() bool { return r.apply(with(), states(with(), Open)).Reason == "" })
		if pic, err := r.p.worker.look(); err != nil || pic.backends.Get("default_b_80") != nil {
			t.Errorf("the worker has %v, %v, want no backend b", pic.backends, err)
		}

		// It comes back, with more than there are spare places, and all of them leave.
		cfg = with(b)
		for i := range 2 * maxSpares {
			cfg.Backends = append(cfg.Backends, backend(fmt.Sprintf("default_c%03d_80", i), b.Servers...))
		}
		cfg = r.config(cfg.Backends...)
		if res := r.apply(cfg, states(cfg, Open)); res.Reason != "" {
			t.Errorf("many: got %+v, want no reload", res)
		}
		for _, b := range cfg.Backends[1:] {
			if got := r.get(b.Name+".test", "/"); got != "b" {
				t.Errorf("%s: got %q, want b", b.Name, got)
			}
		}
		r.eventually("all are gone", func() bool { return r.apply(with(), states(with(), Open)).Reason == "" })
		pic, err := r.p.worker.look()
		if err != nil || pic.pid != worker {
			t.Fatalf("worker %d: %v, want an answer of worker %d", pic.pid, err, worker)
		}
		if got, want := slices.Sorted(maps.Keys(maps.Collect(pic.backends.All()))),
			[]string{a.Name, nowhere, waiting, WWW}; !slices.Equal(got, want) {
			t.Errorf("the worker has the backends %q, want %q", got, want)
		}

		// Settings that HAProxy has not loaded take a reload.
		cfg = with(distinct(backend("default_d_80", b.Servers...)))
		if res := r.apply(cfg, states(cfg, Open)); res.Reason != "backend default_d_80 added" {
			t.Errorf("other settings: got %+v, want a reload", res)
		}
	})
}

func TestABackendThatHAProxyKeepsServesAsBefore(t *testing.T) {
	withCommands(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("a", origin(t, "a")), backend("b"))
		r.settle(cfg, states(cfg, Open))
		gone, err := r.p.worker.removeBackends(cfg.Backends)
		if err != nil || len(gone) != 1 || !gone["b"] {
			t.Errorf("got %v, %v, want b alone to be gone: a has a server", gone, err)
		}
		if got := r.get("a.test", "/"); got != "a" {
			t.Errorf("got %q, want a", got)
		}
	})
}

func TestAPassedThroughNameComesByCommand(t *testing.T) {
	withCommands(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		by := newAuthority(t, "a")
		one, two := backend("one", secureOrigin(t, by, "one.test")), backend("two", secureOrigin(t, by, "two.test"))
		one.TCP, two.TCP = true, true
		with := func(all ...*Backend) *Config {
			cfg := r.config(all...)
			for i := range cfg.Routes {
				cfg.Routes[i] = &Route{
					Host: cfg.Routes[i].Host, Path: "/", Match: Passthrough,
					Backend: cfg.Routes[i].Backend,
				}
			}
			cfg.Inspect = true
			return cfg
		}
		r.settle(with(one), states(with(one), Open))
		if res := r.apply(with(one, two), states(with(one, two), Open)); res.Reason != "" {
			t.Errorf("got %+v, want no reload", res)
		}
		c, err := secured(t, r.https.String(), "127.0.0.1", "", "two.test")
		if err != nil {
			t.Fatal(err)
		}
		if got := over(c, "two.test"); !strings.HasPrefix(got, "two.test 200") {
			t.Errorf("got %q, want an answer of two", got)
		}
	})
}

// The process ends between a command and the note of it in the worker.
func TestACrashWhileABackendComesOrGoesLosesNothing(t *testing.T) {
	withCommands(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := backend("a", origin(t, "a")), backend("b", origin(t, "b"))
		first, both := r.config(a), r.config(a, b)
		r.settle(first, states(first, Open))
		class := r.p.belief.told.backends[0].class()
		for _, row := range []struct {
			what    string
			fresh   bool
			command string
			before  *Config
			reason  string
		}{
			{
				"b was added", true, "add backend b from " + className + class, first,
				"HAProxy runs another configuration than that of the files",
			},
			{
				"b was added, and the connection broke", false, "add backend b from " + className + class, first,
				"backend b added",
			},
			{"b was removed", true, "set server b/" + b.Servers[0].Name + " state maint;del server b/" +
				b.Servers[0].Name + ";unpublish backend b;del backend b", both, "HAProxy lost backend b"},
			{
				"b was removed, and the connection broke", false,
				"set server b/" + b.Servers[0].Name + " state maint;del server b/" + b.Servers[0].Name +
					";unpublish backend b;del backend b", both, "HAProxy lost backend b",
			},
		} {
			t.Run(row.what, func(t *testing.T) {
				r.p.schedule.least = time.Millisecond
				r.settle(row.before, states(row.before, Open))
				r.eventually("the command is done", func() bool {
					answer, err := r.p.worker.ask(row.command)
					return err == nil && (strings.Contains(answer, "New backend registered") ||
						strings.Contains(answer, "Backend deleted"))
				})
				if row.fresh {
					r.p = r.fresh()
				} else {
					r.p.belief.forgot()
				}
				res := r.apply(both, states(both, Open))
				if res.Reason != row.reason {
					t.Errorf("got %+v, want %q", res, row.reason)
				}
				r.settle(both, states(both, Open))
				for _, b := range both.Backends {
					if got := r.get(b.Name+".test", "/"); got != b.Name {
						t.Errorf("%s: got %q", b.Name, got)
					}
				}
			})
		}
	})
}

// Whatever may stand in a backend, HAProxy takes it in defaults, and a backend that a command
// adds does the same as one of the file.
func TestAnAddedBackendDoesWhatOneOfTheFileDoes(t *testing.T) {
	withCommands(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cookie := must[Directive](t)(Cookie{Name: "SRV"}.Directive())
		rewrite := must[Directive](t)(ReplacePath("^/old(.*)", `/new\1`))
		source := Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}}, false)
		hash := must[Directive](t)(Balance("uri"))
		limit := Table{Name: "limit", Size: 100, Period: time.Hour}
		for name, directives := range map[string][]Directive{
			"cookie": {cookie}, "path": {rewrite}, "deny": {source}, "hash": {hash},
			"limit": {Limit(limit, 3, 429, Networks{Of: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")}})},
		} {
			t.Run(name, func(t *testing.T) {
				with := func(names ...string) *Config {
					var all []*Backend
					for _, name := range names {
						b := backend(name, origin(t, "ok"))
						b.Directives = directives
						all = append(all, b)
					}
					cfg := r.config(all...)
					cfg.Tables = []Table{limit}
					return cfg
				}
				r.settle(with("one"), states(with("one"), Open))
				cfg := with("one", "two")
				if res := r.apply(cfg, states(cfg, Open)); res.Reason != "" {
					t.Errorf("got %+v, want no reload", res)
				}
				heads := map[string]string{}
				for _, host := range []string{"one", "two"} {
					var statuses []string
					for range 5 {
						head := headOf(t, r.http, host+".test")
						lines := slices.DeleteFunc(strings.Split(head, "\r\n"), func(l string) bool {
							return strings.HasPrefix(strings.ToLower(l), "date:")
						})
						if name == "cookie" { // each has a server of its own
							for i := range lines {
								lines[i], _, _ = strings.Cut(lines[i], "SRV=")
							}
						}
						statuses = append(statuses, strings.Join(lines, " "))
					}
					heads[host] = strings.Join(statuses, "\n")
				}
				if name == "limit" { // both count in one table
					if !strings.Contains(heads["one"], " 429 ") || strings.Contains(heads["two"], " 200 ") {
						t.Errorf("got %q, want the limit to be used up", heads)
					}
					return
				}
				if heads["one"] != heads["two"] {
					t.Errorf("the one of the file: %q, the added one: %q", heads["one"], heads["two"])
				}
			})
		}
	})
}
