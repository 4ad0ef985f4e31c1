package haproxy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestANewBackendTakesASparePlace(t *testing.T) {
	withThose(t, func(p picture) bool { return !p.atLeast3(4) }, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
		r.settle(r.config(a), states(r.config(a), Open))
		worker := r.p.Info().Worker

		cfg := r.config(a, b)
		res := r.apply(cfg, states(cfg, Open))
		if res.Reloaded || res.Reason != "backend default_b_80 moved out of its spare place" ||
			time.Until(res.RetryAt) < time.Second {
			t.Errorf("got %+v, want a reload that nobody waits for", res)
		}
		if got := r.get("default_b_80.test", "/"); got != "b" {
			t.Errorf("got %q, want b", got)
		}
		if res := r.apply(cfg, states(cfg, Open)); res.Commands > 0 {
			t.Errorf("again: got %+v, want nothing to do", res)
		}
		if err := check(r.opt.Binary, r.opt.Dir); err != nil {
			t.Error(err)
		}

		// The next process learns of it from the worker.
		r.p = r.fresh()
		servers, err := byID(r.p.Servers())
		if id := (ServerID{"default_b_80", b.Servers[0].Name}); err != nil || servers[id].State != Open {
			t.Errorf("another process: got %v, %v, want an open server of b", servers, err)
		}
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded || res.Commands > 0 || res.RetryAt.IsZero() {
			t.Errorf("another process: got %+v, want nothing to do but a reload later", res)
		}
		if got := r.get("default_b_80.test", "/"); got != "b" {
			t.Errorf("another process: got %q, want b", got)
		}
		r.later()
		if res := r.apply(cfg, states(cfg, Open)); !res.Reloaded {
			t.Errorf("after a while: got %+v, want a reload", res)
		}
		if pic, err := r.p.worker.look(); err != nil || pic.pid == worker ||
			len(pic.backends.Get("default_b_80").Servers) != 1 {
			t.Errorf("after the reload: got %v, %v, want the backend under its own name", pic.backends, err)
		}

		// A request may still wait in a place that nobody wants any more: nobody else gets it.
		for i := range minSpares + 1 {
			c := backend(fmt.Sprintf("default_c%02d_80", i), origin(t, fmt.Sprint("c", i)))
			cfg = r.config(a, b, c)
			var res Result
			r.eventually("it is served", func() bool {
				res = r.apply(cfg, states(cfg, Open))
				got, err := r.try(c.Name+".test", "/")
				return err == nil && got == fmt.Sprint("c", i)
			})
			if used := len(r.p.belief.run.names()); res.Reloaded != (i == minSpares) || used != (i+1)%(minSpares+1) {
				t.Fatalf("backend %d: got %+v with %d places in use or used up", i, res, used)
			}
			cfg = r.config(a, b)
			r.eventually("the server is gone", func() bool {
				r.apply(cfg, states(cfg, Open))
				return !r.p.belief.run.names().active()
			})
			if i == 0 {
				r.p = r.fresh()
				r.apply(cfg, states(cfg, Open))
				if len(r.p.belief.run.names()) != 1 {
					t.Errorf("another process takes %v for the places that are used up", r.p.belief.run.names())
				}
			}
		}
		// More than there are places.
		var all []*Backend
		for i := range minSpares + 1 {
			all = append(all, backend(fmt.Sprintf("default_d%d_80", i), origin(t, "d")))
		}
		cfg = r.config(append(slices.Clone(all), a, b)...)
		r.eventually("the reload is done", func() bool { return r.apply(cfg, states(cfg, Open)).Reloaded })
		for _, b := range all {
			if got := r.get(b.Name+".test", "/"); got != "d" {
				t.Errorf("%s: got %q, want d", b.Name, got)
			}
		}
	})
}

func TestASparePlaceHasTheSettings(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		plain, special := backend("a", origin(t, "a")), backend("b", origin(t, "b"))
		header, err := SetResponseHeader("X-Special", "yes")
		if err != nil {
			t.Fatal(err)
		}
		special.Directives = []Directive{header}
		cookie, err := Cookie{Name: "SRV"}.Directive()
		if err != nil {
			t.Fatal(err)
		}
		sticky := backend("c", origin(t, "c"))
		sticky.Directives = []Directive{cookie}
		r.settle(r.config(plain, special, sticky), states(r.config(plain, special, sticky), Open))

		alike := backend("special2", origin(t, "ok"))
		alike.Directives = []Directive{header}
		kept := backend("sticky2", origin(t, "ok"))
		kept.Directives = []Directive{cookie}
		canary := backend("canary", origin(t, "ok"))
		cfg := r.config(plain, special, sticky, alike, kept, canary)
		cfg.Routes = append(cfg.Routes,
			&Route{Host: "split.test", Path: "/", Match: Prefix, Backend: "a", Canary: "canary", CanaryWeight: 100})
		cfg.DefaultBackend = "canary"
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Errorf("got %+v, want no reload", res)
		}
		for _, host := range []string{"split.test", "unknown.test"} {
			if got := r.get(host, "/"); got != "ok" {
				t.Errorf("%s: got %q, want ok", host, got)
			}
		}
		for name, want := range map[string]string{"special2": "X-Special: yes", "sticky2": "Set-Cookie: SRV="} {
			if got := headOf(t, r.http, name+".test"); !strings.Contains(strings.ToLower(got), strings.ToLower(want)) {
				t.Errorf("%s: got %q, want %q in it", name, got, want)
			}
		}
		// Without servers a backend takes a place of other settings.
		empty := *alike
		empty.Name, empty.Servers, empty.Directives = "empty", nil, nil
		cfg = r.config(plain, special, sticky, alike, kept, canary, &empty)
		was := r.apply(cfg, states(cfg, Open))
		filled := *alike
		filled.Name = "empty"
		cfg = r.config(plain, special, sticky, alike, kept, canary, &filled)
		if res := r.apply(cfg, states(cfg, Open)); was.Reloaded || res.Reloaded ||
			strings.Contains(res.Reason, "changed") {
			t.Errorf("got %+v, then %+v, want no reload", was, res)
		}
		if got := headOf(t, r.http, "empty.test"); !strings.Contains(strings.ToLower(got), "x-special: yes") {
			t.Errorf("empty.test: got %q, want the header of its new settings", got)
		}
		// Other settings need a reload, and until then the old ones apply.
		r.p.schedule.least, r.p.schedule.last = time.Hour, time.Now()
		changed := *alike
		changed.Directives = nil
		cfg = r.config(plain, special, sticky, &changed, kept, canary)
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded ||
			!strings.Contains(res.Reason, "backend special2 changed") {
			t.Errorf("got %+v, want a reload in an hour", res)
		}
		if got := headOf(t, r.http, "special2.test"); !strings.Contains(strings.ToLower(got), "x-special: yes") {
			t.Errorf("before the reload: got %q", got)
		}
	})
}

// headOf returns the head of an answer.
func headOf(t *testing.T, addr netip.AddrPort, host string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", host); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 4096)
	n, err := conn.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	got, _, _ := strings.Cut(string(text[:n]), "\r\n\r\n")
	return got
}

func TestTheLogHasTheNamesOfBackends(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		for name, logging := range map[string]func(Line, netip.AddrPort) Process{
			"HAProxy's format": func(to Line, _ netip.AddrPort) Process {
				return Process{Lines: append([]Line{to}, Traffic(true)...)}
			},
			"one of a cluster": func(to Line, _ netip.AddrPort) Process {
				return Process{
					Lines: append([]Line{to}, Traffic(false)...),
					Texts: []Text{mustFormat(t, "%b/%s %bq %% %{+Q}b %ST")},
				}
			},
			"the operator's log": func(_ Line, at netip.AddrPort) Process { return Process{}.Requests(at) },
			"the operator's and the cluster's": func(to Line, at netip.AddrPort) Process {
				return Process{Lines: append([]Line{to}, Traffic(true)...)}.Requests(at).Requests(at)
			},
		} {
			t.Run(name, func(t *testing.T) {
				logs, err := net.ListenPacket("udp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer logs.Close()
				target := netip.MustParseAddrPort(logs.LocalAddr().String())
				line, err := Syslog{Address: target.Addr().String(), Port: target.Port(), Facility: "local0"}.Line()
				if err != nil {
					t.Fatal(err)
				}
				r := newRig(t, binary)
				lines := logging(line, target)
				a, b := backend("default_a_80", origin(t, "a")), backend("default_b_80", origin(t, "b"))
				config := func(backends ...*Backend) *Config {
					cfg := r.config(backends...)
					cfg.Process = lines
					return cfg
				}
				r.settle(config(a), states(config(a), Open))
				cfg := config(a, b)
				if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
					t.Fatalf("got %+v, want no reload", res)
				}
				for host, want := range map[string]string{
					"default_a_80.test": " default_a_80/" + a.Servers[0].Name + " ",
					"default_b_80.test": " default_b_80/" + b.Servers[0].Name + " ", "x.test": " notfound/",
				} {
					r.get(host, "/")
					text := make([]byte, 4096)
					for got := ""; !strings.Contains(got, want); {
						_ = logs.SetReadDeadline(time.Now().Add(patience))
						n, _, err := logs.ReadFrom(text)
						if err != nil {
							t.Fatalf("%s: no line with %q, the last was %q", host, want, got)
						}
						got = strings.ReplaceAll(string(text[:n]), "]: ", "]:  ")
					}
				}
			})
		}
	})
}

// TestHalogReadsTheLog has halog, a program of HAProxy, count the requests of a log.
func TestHalogReadsTheLog(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		r.opt.Stdout = out
		r.p = r.fresh()
		b := backend("default_a_80", origin(t, "a"))
		cfg := r.config(b)
		cfg.Process = Process{}.Requests(netip.AddrPort{})
		r.settle(cfg, states(cfg, Open))
		for range 3 {
			r.get("default_a_80.test", "/a?b=c")
		}
		r.get("x.test", "/")
		var log string
		for deadline := time.Now().Add(time.Minute); strings.Count(log, "GET /") < 4; {
			if time.Now().After(deadline) {
				t.Fatalf("not four requests: %q", log)
			}
			text, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			log = string(text)
		}
		// journalctl writes as a syslog server does.
		journal := regexp.MustCompile(`(?m)^.`).ReplaceAllString(log, "Nov 23 05:00:00 gate sallyport[7]: $0")
		for argument, want := range map[string]string{
			"-srv": "default_a_80/" + b.Servers[0].Name + " 0 3 0 0 0 0 3 3 ",
			"-st":  "404 1", "-u": "3 ",
		} {
			halog := exec.CommandContext(t.Context(), "halog", "-q", argument)
			halog.Stdin = strings.NewReader(journal)
			got, err := halog.CombinedOutput()
			if err != nil || !strings.Contains(strings.ReplaceAll(string(got), "\t", " "), want) {
				t.Errorf("halog %s: %v, %q, want %q in it; the log is\n%s", argument, err, got, want, journal)
			}
		}
	})
}

func mustFormat(t *testing.T, format string) Text {
	t.Helper()
	text, err := LogFormat(format)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
