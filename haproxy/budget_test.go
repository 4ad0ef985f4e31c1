package haproxy

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// longAnswer starts a server that answers with "begun", and with "ended" once end is closed.
func longAnswer(t *testing.T) (server Server, end chan struct{}) {
	t.Helper()
	end = make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "ended")
	}))
	t.Cleanup(s.Close)
	addr := netip.MustParseAddrPort(s.Listener.Addr().String())
	return Server{Name: ServerName(addr), Addr: addr}, end
}

// begin sends a request and returns once its answer has begun.
func (r *rig) begin(host string) net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.http.String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", host); err != nil {
		r.t.Fatal(err)
	}
	r.read(conn, "begun")
	return conn
}

// read reads until the answer ends in a text.
func (r *rig) read(conn net.Conn, text string) {
	r.t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var got []byte
	for b := make([]byte, 1); !slices.Equal(got[max(len(got)-len(text), 0):], []byte(text)); {
		if _, err := conn.Read(b); err != nil {
			r.t.Fatalf("want %q at the end of %q: %v", text, got, err)
		}
		got = append(got, b[0])
	}
}

// of returns a backend of a namespace, with these directives.
func of(namespace string, b *Backend, with ...Directive) *Backend {
	own := *b
	own.Namespace, own.Directives = namespace, with
	return &own
}

func TestATenantCausesNoMoreReloadsThanItsBudget(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		const budget, rounds = 3, 100
		held, end := longAnswer(t)
		evil, victim, slow := backend("evil", origin(t, "evil")), backend("victim", origin(t, "victim")),
			backend("slow", held)
		config := func(evil, victim *Backend) *Config {
			cfg := r.config(evil, victim, of("victim", slow, Timeout("server", time.Hour)))
			cfg.Reloads = map[string]int{"": budget}
			return cfg
		}
		plain := of("victim", victim)
		cfg := config(of("evil", evil), plain)
		r.settle(cfg, states(cfg, Open))
		conn := r.begin("slow.test")

		reloads := r.p.Info().Reloads
		var res Result
		for i := range rounds {
			cfg = config(of("evil", evil, Timeout("server", time.Duration(i+1)*time.Minute)), plain)
			if res = r.apply(cfg, states(cfg, Open)); !res.Reloaded && (res.RetryAt.IsZero() || res.Reason == "") {
				t.Fatalf("round %d: got %+v, want a reload that has a time", i, res)
			}
		}
		if got := r.p.Info().Reloads - reloads; got != budget {
			t.Errorf("%d changes of one tenant: got %d reloads, want %d", rounds, got, budget)
		}
		want := []Wait{{Tenant: Tenant{"", "evil"}, Most: budget, Until: res.RetryAt, Backends: []string{"evil"}}}
		if got := fmt.Sprint(r.p.Info().Waits); got != fmt.Sprint(want) || time.Until(res.RetryAt) > refillEvery {
			t.Errorf("got %s, want %s", got, fmt.Sprint(want))
		}
		if got := r.get("evil.test", "/"); got != "evil" {
			t.Errorf("while a timeout waits: got %q, want evil", got)
		}

		// What others change takes its reload at once, and brings what waits along.
		r.eventually("victim's change is in effect", func() bool {
			cfg = config(cfg.Backends[0], of("victim", victim, Timeout("server", time.Minute)))
			return r.apply(cfg, states(cfg, Open)).Reloaded
		})
		if res := r.apply(cfg, states(cfg, Open)); res.Reason != "" || len(r.p.Info().Waits) > 0 {
			t.Errorf("after a reload for another: got %+v, %v, want nothing to wait for", res, r.p.Info().Waits)
		}
		r.eventually("victim's guard is in force", func() bool {
			cfg = config(of("evil", evil, Timeout("server", time.Hour)), of("victim", victim, Deny(Networks{}, true)))
			return r.apply(cfg, states(cfg, Open)).Reloaded
		})
		if got := r.get("victim.test", "/"); got != "403" {
			t.Errorf("victim's guard: got %q, want 403", got)
		}
		close(end)
		r.read(conn, "ended")
	})
}

func TestAGuardBeyondTheBudgetClosesItsPathAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		evil, shared := backend("evil", origin(t, "evil")), backend("shared", origin(t, "shared"))
		deny := Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, true)
		config := func(own ...Directive) *Config {
			cfg := r.config(of("evil", evil, own...), of("evil", shared))
			cfg.Reloads = map[string]int{"": 1}
			return cfg
		}
		cfg := config()
		r.settle(cfg, states(cfg, Open))
		r.eventually("the budget is used up", func() bool {
			cfg = config(Timeout("server", time.Minute))
			return r.apply(cfg, states(cfg, Open)).Reloaded
		})
		expect := func(when string, want map[string]string) {
			t.Helper()
			for url, want := range want {
				host, path := url, "/"
				if at := slices.Index([]byte(url), '/'); at >= 0 {
					host, path = url[:at], url[at:]
				}
				if got := r.get(host+".test", path); got != want {
					t.Errorf("%s: %s: got %q, want %q", when, url, got, want)
				}
			}
		}

		// A guard is added to a backend that the worker has, and a new one with a guard takes
		// over a path; a third one comes with a path of its own.
		next := config(deny)
		guarded, fresh := of("evil", backend("guarded", origin(t, "guarded")), deny),
			of("evil", backend("fresh", origin(t, "fresh")), deny)
		guarded.Service, fresh.Service = "evil/shared:80", "evil/fresh:80"
		next.Backends = []*Backend{next.Backends[0], fresh, guarded, next.Backends[1]}
		next.Routes[1].Backend = "guarded"
		next.Routes = append(next.Routes, &Route{Host: "other.test", Path: "/", Match: Prefix, Backend: "shared"},
			&Route{Host: "other.test", Path: "/admin", Match: Prefix, Backend: "fresh"})
		for n := range 3 {
			next.Former = r.p.Former(next)
			if res := r.apply(next, states(next, Open)); res.Reloaded || res.RetryAt.IsZero() {
				t.Fatalf("got %+v, want no reload", res)
			}
			expect(fmt.Sprint("round ", n),
				map[string]string{
					"evil": "503", "shared": "503", "other": "shared", "other/admin": "503",
					"other//admin": "400",
				})
		}
		waits := r.p.Info().Waits
		if len(waits) != 1 || !slices.Equal(waits[0].Closed, []string{"evil", "fresh", "guarded"}) {
			t.Errorf("got %+v, want three backends that are closed", waits)
		}

		// A guard that goes away leaves a path as strict as it was.
		r.p.schedule.budgets = nil
		r.eventually("the guards are in force", func() bool { return r.apply(next, states(next, Open)).Reloaded })
		expect("after the reload",
			map[string]string{"evil": "403", "shared": "403", "other": "shared", "other/admin": "403"})
		cfg = config()
		r.apply(cfg, states(cfg, Open))
		expect("the guard is removed", map[string]string{"evil": "403"})
	})
}

func TestABudgetComesBackWithTime(t *testing.T) {
	var b budgets
	evil, now := Tenant{"c", "evil"}, time.Unix(1_700_000_000, 0)
	wait := func(after time.Duration) time.Duration {
		now = now.Add(after)
		return b.due(evil, 2, now, time.Minute).Sub(now)
	}
	for _, step := range []struct {
		after, wait time.Duration
		spends      bool
	}{
		{0, 0, true},
		{0, 0, true}, // two at once
		{0, time.Minute, false},
		{20 * time.Second, 40 * time.Second, false},
		{40 * time.Second, 0, true},
		{time.Second, 59 * time.Second, true}, // along with another's: nothing is left to take
		{59 * time.Second, time.Second, false},
		{time.Hour, 0, true},
		{0, 0, true},
		{0, time.Minute, false}, // no more than two, after any time
	} {
		if got := wait(step.after); got.Round(time.Second) != step.wait {
			t.Fatalf("at %s: got a wait of %s, want %s", now, got, step.wait)
		}
		if step.spends {
			b.spend(evil, 2, now, time.Minute)
		}
	}
	if b.due(Tenant{"c", "victim"}, 2, now, time.Minute) != now || b.due(Tenant{}, 0, now, time.Minute) != now ||
		b.due(evil, 0, now, time.Minute) != now {
		t.Error("another tenant, the operator, or one without a bound waits")
	}
	if b.forget(now.Add(time.Hour), time.Minute); len(b) > 0 {
		t.Errorf("an hour later %v is remembered", b)
	}
}

// TestOldWorkersEndBeforeTheyAreTooMany lets workers finish for as long as they may, while
// somebody asks for a reload all the time.
func TestOldWorkersEndBeforeTheyAreTooMany(t *testing.T) {
	const seconds = 6 * 60 * 60
	for name, every := range map[string]func(old int) time.Duration{
		"one tenant":  func(old int) time.Duration { return max(refill(old), pace(old), time.Second) },
		"all of them": func(old int) time.Duration { return max(pace(old), time.Second) },
	} {
		var ends []int // of the old workers, in order
		last, most, killed := 0, 0, seconds
		for now := range seconds {
			for len(ends) > 0 && ends[0] <= now {
				ends = ends[1:]
			}
			if now-last < int(every(len(ends)).Seconds()) {
				continue
			}
			last, ends = now, append(ends, now+int(hardStop.Seconds()))
			if len(ends) > oldWorkers { // HAProxy ends the oldest
				killed = min(killed, int(hardStop.Seconds())-(ends[0]-now))
				ends = ends[1:]
			}
			most = max(most, len(ends))
		}
		t.Logf("%s: at most %d old workers; the first that had to end had %ds", name, most, killed)
		if name == "one tenant" && most >= freeWorkers {
			t.Errorf("%s: got %d old workers, want fewer than %d: others do not wait then", name, most, freeWorkers)
		}
		if killed < 200 {
			t.Errorf("%s: an old worker had to end after %ds", name, killed)
		}
	}
}

// TestEachDifferenceHasWhoMadeIt changes each part of a configuration that a tenant brings.
func TestEachDifferenceHasWhoMadeIt(t *testing.T) {
	table := Table{Name: "t", Size: 10, Period: time.Second}
	auth, err := BasicAuth{Userlist: "members", Realm: "realm"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	condition, err := Condition("req.hdr(X-Beta) yes", nil)
	if err != nil {
		t.Fatal(err)
	}
	capture, err := Capture("src", 0)
	if err != nil {
		t.Fatal(err)
	}
	ask, err := Ask{Backend: "sso", Host: "sso.test", Path: "/"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	source, err := Source("X-Real-IP")
	if err != nil {
		t.Fatal(err)
	}
	user := func(hash string) *Userlist { return &Userlist{Name: "members", Users: []User{{"ann", hash}}} }
	base := func() *Config {
		cfg := &Config{Shape: Shape{Process: Process{MaxConn: 1}}}
		for _, namespace := range []string{"evil", "victim"} {
			cfg.Backends = append(cfg.Backends, &Backend{Name: namespace, Cluster: "c", Namespace: namespace})
		}
		return cfg
	}
	evils := func(cfg *Config, with ...Directive) *Config {
		cfg.Backends[0] = &Backend{Name: "evil", Cluster: "c", Namespace: "evil", Directives: with}
		return cfg
	}
	tcp := func(cfg *Config) *Config {
		cfg.Backends = append(cfg.Backends, &Backend{Name: "xtcp", Cluster: "c", Namespace: "evil", TCP: true})
		return cfg
	}
	with := func(cfg *Config, change func(*Config)) *Config { change(cfg); return cfg }
	ca := func(content string) []*Extra { return []*Extra{{"ca.ca.pem", []byte(content)}} }
	asking := func(cfg *Config, optional bool) *Config {
		cfg.Certs = []*Cert{{
			Name: "_evil.pem", Hosts: []string{"evil.test"}, ClientCA: "ca.ca.pem",
			ClientOptional: optional, Owner: "c/evil",
		}}
		return evils(cfg, OnlyOwnTLS(optional))
	}
	for name, x := range map[string]struct {
		have, want *Config
		who        string // "operator", or a namespace
		guard      bool
		stale      string
	}{
		"a timeout":          {base(), evils(base(), Timeout("server", time.Minute)), "evil", false, ""},
		"a guard is added":   {base(), evils(base(), Deny(Networks{}, true)), "evil", true, "evil"},
		"a guard is removed": {evils(base(), Deny(Networks{}, true)), base(), "evil", false, ""},
		"whom a guard means": {
			evils(base(), Deny(Networks{}, true), source),
			evils(base(), Deny(Networks{}, true)), "evil", true, "evil",
		},
		"the period of a limit": {with(evils(base(), Limit(table, 1, 429, Networks{})), func(c *Config) {
			c.Tables = []Table{table}
		}), with(evils(base(), Limit(table, 1, 429, Networks{})), func(c *Config) {
			c.Tables = []Table{{"t", 10, time.Minute}}
		}), "evil", true, "evil"},
		"a password": {with(evils(base(), auth), func(c *Config) {
			c.Userlists = []*Userlist{user("a")}
		}), with(evils(base(), auth), func(c *Config) { c.Userlists = []*Userlist{user("b")} }), "evil", true, "evil"},
		"an authority for clients": {
			with(asking(base(), false), func(c *Config) { c.Extras = ca("a") }),
			with(asking(base(), false), func(c *Config) { c.Extras = ca("b") }), "evil", true, "evil",
		},
		"whether clients have to": {
			with(asking(base(), true), func(c *Config) { c.Extras = ca("a") }),
			with(asking(base(), false), func(c *Config) { c.Extras = ca("a") }), "evil", true, "evil",
		},
		"an authentication service": {
			base(),
			with(evils(base(), ask), func(c *Config) { c.Extras = []*Extra{AskScript()} }), "evil", true, "evil",
		},
		"the length of a capture": {
			evils(base(), capture.Sized(1)),
			with(evils(base(), capture.Sized(2)), func(c *Config) { c.Captures = []int{2} }), "evil", false, "",
		},
		"a choice": {
			base(),
			with(base(), func(c *Config) { c.Choices = []*Choice{NewChoice([]Case{{If: condition, Backend: "evil"}})} }), "evil",
			true, "",
		},
		"a TCP port": {
			tcp(base()),
			with(tcp(base()), func(c *Config) { c.Streams = []Stream{{Port: 1, Backend: "xtcp"}} }), "evil", true, "",
		},
		"TLS is passed through": {
			tcp(base()), with(tcp(base()), func(c *Config) { c.Inspect = true }), "evil", true,
			"",
		},
		"and not any more": {with(tcp(base()), func(c *Config) { c.Inspect = true }), base(), "evil", true, ""},
		"a backend goes":   {tcp(base()), base(), "evil", false, ""},
		"for somebody's objects": {base(), with(base(), func(c *Config) {
			c.Backends = append(c.Backends, &Backend{Name: "z", Cluster: "c", Namespace: "victim", By: "evil"})
		}), "evil", false, ""},
		"the process": {
			base(), with(base(), func(c *Config) { c.Process.MaxConn = 2 }), "operator", false,
			"",
		},
		"what all clients show": {
			base(), with(base(), func(c *Config) { c.Process.ClientCA = Nobody }), "operator",
			true, "",
		},
		"the appliance leaves":   {base(), with(base(), func(c *Config) { c.Leaving = true }), "operator", true, ""},
		"a file of the operator": {base(), with(base(), func(c *Config) { c.Extras = ca("a") }), "operator", false, ""},
	} {
		got := causesOf(x.have, x.want, nil)
		who := Tenant{"c", x.who}
		if x.who == "operator" {
			who = Tenant{}
		}
		c := got[who]
		if len(got) != 1 || c == nil {
			t.Errorf("%s: got %v, want %s alone", name, got, x.who)
			continue
		}
		if stale := fmt.Sprint(slices.Sorted(maps.Keys(c.stale))); c.guard != x.guard || stale != "["+x.stale+"]" {
			t.Errorf("%s: got guard %t, stale %s; want %t, [%s]", name, c.guard, stale, x.guard, x.stale)
		}
	}
}
