package haproxy

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// gateway returns a Config with a Listener for HTTP at an address of its own, and backends that
// answer with their names.
func (r *rig) gateway(names ...string) (cfg *Config, at netip.AddrPort) {
	r.t.Helper()
	at = freePort(r.t)
	cfg = &Config{Shape: Shape{
		Bind:      Bind{HTTP: []netip.AddrPort{r.http}},
		Listeners: []Listener{{At: at, Kind: ListenHTTP}},
	}}
	slices.Sort(names)
	for _, name := range names {
		cfg.Backends = append(cfg.Backends, backend(name, origin(r.t, name)))
	}
	return cfg, at
}

// ask sends a request with header lines to an address, and returns as get does.
func (r *rig) ask(at netip.AddrPort, method, host, path string, lines ...string) string {
	r.t.Helper()
	got, err := request(at, method, host, path, lines...)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

func TestAListenerHasRoutesOfItsOwn(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg, at := r.gateway("api", "deep", "exact", "hostless", "other", "root", "wide", "wider")
		scope := ScopeOf(at)
		route := func(host, path string, match PathMatch, to string) *Route {
			return &Route{Scope: scope, Host: host, Path: path, Match: match, To: To(to)}
		}
		cfg.Routes = []*Route{
			{Host: "app.test", Path: "/", Match: Prefix, Backend: "other"},
			route("app.test", "/", Prefix, "root"),
			route("app.test", "/api", Prefix, "api"),
			route("app.test", "/api", Exact, "exact"),
			route("app.test", "/gone", Prefix, Invalid),
			route("app.test", "/none", Prefix, ""),
			route("app.test", "/v[0-9]/", Regexp, "deep"),
			route("part.test", "/only", Prefix, "root"),
			route("*.test", "/", Prefix, "wider"),
			route("*.wide.test", "/", Prefix, "wide"),
			route("*.wide.test", "/r[0-9]", Regexp, "deep"),
			route("", "/all", Prefix, "hostless"),
			{Scope: scope, Host: "safe.test", Path: "/", Match: Prefix, TLSOnly: true, TLSCode: 301},
			{Scope: scope, Host: "safe.test", Path: "/p", Match: Prefix, TLSOnly: true, TLSPort: 8443},
		}
		r.settle(cfg, states(cfg, Open))
		for _, c := range []struct{ host, path, want string }{
			{"app.test", "/", "root"},
			{"APP.test:80", "/x", "root"},
			{"app.test", "/api", "exact"},
			{"app.test", "/api/", "api"},
			{"app.test", "/apix", "root"},
			{"app.test", "/v1/x", "deep"},
			{"app.test", "/gone/x", "500"},
			{"app.test", "/none", "404"},
			{"part.test", "/", "404"},
			{"part.test", "/only/x", "root"},
			{"x.test", "/", "wider"},
			{"x.y.z.test", "/", "wider"},
			{"a.b.c.d.e.f.g.h.test", "/", "wider"},
			{"a.wide.test", "/", "wide"},
			{"a.b.wide.test", "/", "wide"},
			{"a.b.wide.test", "/r5", "deep"},
			{"wide.test", "/", "wider"},
			{"test", "/", "404"},
			{"test", "/all", "hostless"},
			{"else.where", "/all/x", "hostless"},
			{"127.0.0.1:80", "/all", "hostless"},
			{"[::1]", "/all", "hostless"},
			{"else.where", "/", "404"},
			{"", "/all", "hostless"},
			{"safe.test", "/x?y", "301 https://safe.test/x?y"},
			{"safe.test:80", "/p", "302 https://safe.test:8443/p"},
			{"app.test/api", "/", "400"},
			{"*.test", "/", "400"},
		} {
			if got := r.ask(at, "GET", c.host, c.path); got != c.want {
				t.Errorf("%q %q: got %q, want %q", c.host, c.path, got, c.want)
			}
			found, to, why := cfg.FindAt(Request{Scope: scope, Method: "GET", Host: c.host, Path: c.path})
			switch text := to.String(); {
			case c.want == "400", text == Invalid && c.want == "500", why != "" && c.want == "404":
			case found.TLSOnly && c.want[0] == '3', text == c.want && why == "":
			default:
				t.Errorf("%q %q: found %q, %q; want %q", c.host, c.path, text, why, c.want)
			}
		}
		if got := r.get("app.test", "/"); got != "other" {
			t.Errorf("the same host outside of the listener: got %q, want other", got)
		}
		if got := r.get("x.test", "/"); got != "404" {
			t.Errorf("a host of the listener, outside of it: got %q, want 404", got)
		}
	})
}

// conditionCases returns conditions, and targets with names of their own.
func conditionCases() []PickCase {
	header := func(name, value string) []Field { return []Field{{Name: name, Value: value}} }
	return []PickCase{
		{When{Method: "PATCH", Headers: header("X-Who", "a b")}, To("both")},
		{When{Method: "PATCH"}, To("method")},
		{When{Headers: header("x-who", "a b")}, To("header")},
		{When{Headers: header("X-Who", "a b")}, To("rest")}, // the second one for the same
		{When{Headers: []Field{{Name: "X-A", Value: "1"}, {Name: "X-B", Value: "2"}}}, To("two")},
		{When{Params: header("q", "1")}, To("param")},
		{When{Params: header("q", "a b/ä")}, To("decoded")},
		{
			When{Headers: []Field{{Name: "X-P", Value: "^[a-c ]+$", Pattern: true}}, Params: header("p", "x+y")},
			To("pattern"),
		},
		{When{Headers: header("X-S", `%[src] '"\;#`)}, To("strange")},
	}
}

// conditionRequests are requests, and the targets of conditionCases that they get. Those that meet no
// condition get "rest".
var conditionRequests = []struct {
	method, path string
	lines        []string
	want         string
}{
	{"GET", "/", nil, "rest"},
	{"PATCH", "/x", nil, "method"},
	{"PROPFIND", "/", nil, "rest"},
	{"GET", "/", []string{"X-Who: a b"}, "header"},
	{"GET", "/", []string{"x-who: a b "}, "header"},
	{"GET", "/", []string{"X-Who: a  b"}, "rest"},
	{"GET", "/", []string{"X-Who: A b"}, "rest"},
	{"PATCH", "/", []string{"X-Who: a b"}, "both"},
	{"GET", "/", []string{"X-A: 1"}, "rest"},
	{"GET", "/", []string{"X-B: 2", "X-A: 1"}, "two"},
	{"GET", "/", []string{"X-A: 12"}, "rest"},
	{"GET", "/?x=2&q=1", nil, "param"},
	{"GET", "/?q=2&q=1", nil, "rest"},
	{"GET", "/?q=a%20b%2f%C3%A4", nil, "decoded"},
	{"GET", "/?p=x%2By", []string{"X-P: abc cba"}, "pattern"},
	{"GET", "/?p=x%2By", []string{"X-P: abcd"}, "rest"},
	{"GET", "/?p=x%2By", nil, "rest"},
	{"GET", "/?p=xxy", []string{"X-P: abc"}, "rest"},
	{"GET", "/?p=x%2By%0a", []string{"X-P: abc"}, "rest"},
	{"GET", "/", []string{`X-S: %[src] '"\;#`}, "strange"},
	{"GET", "/", []string{"X-S: " + strings.Repeat("x", 9000)}, "rest"},
}

func TestConditionsOfARequestPickItsTarget(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg, at := r.gateway("both", "decoded", "header", "method", "param", "pattern", "rest", "strange", "two")
		cases := conditionCases()
		pick := NewPick(cases)
		scope := ScopeOf(at)
		cfg.Routes = []*Route{{Scope: scope, Host: "a.test", Path: "/", Match: Prefix, To: To("rest"), Pick: pick.Name}}
		cfg.Picks, cfg.Forms = []*Pick{pick}, FormsOf([]*Pick{pick})
		r.settle(cfg, states(cfg, Open))
		ask := func(method, path string, lines ...string) string { return r.ask(at, method, "a.test", path, lines...) }
		for _, c := range conditionRequests {
			if got := ask(c.method, c.path, c.lines...); got != c.want {
				t.Errorf("%s %s %.60q: got %q, want %q", c.method, c.path, c.lines, got, c.want)
			}
			q := Request{Scope: scope, Method: c.method, Host: "a.test", Path: c.path, Header: http.Header{}}
			for _, line := range c.lines {
				name, value, _ := strings.Cut(line, ":")
				q.Header.Add(name, strings.TrimSpace(value))
			}
			if _, to, why := cfg.FindAt(q); to.String() != c.want || why != "" {
				t.Errorf("%s %s %.60q: found %s, %q; want %q", c.method, c.path, c.lines, to, why, c.want)
			}
		}
		reloads := r.p.Info().Reloads
		cases[1].To = To("two")
		other := NewPick(cases)
		cfg = &Config{Shape: cfg.Shape, Routes: slices.Clone(cfg.Routes), Backends: cfg.Backends, Picks: []*Pick{other}}
		cfg.Routes[0] = new(*cfg.Routes[0])
		cfg.Routes[0].Pick = other.Name
		r.settle(cfg, states(cfg, Open))
		if got := ask("PATCH", "/x"); got != "two" {
			t.Errorf("after a change: got %q, want two", got)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("another value took %d reloads, want none", got-reloads)
		}
	})
}

func TestSharesGetTheirPartOfTheRequests(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg, at := r.gateway("a", "b", "c")
		share := func(a, b, c, invalid int) Target {
			to, err := Split([]Share{{"a", a}, {"b", b}, {"c", c}, {Invalid, invalid}})
			if err != nil {
				t.Fatal(err)
			}
			return to
		}
		with := func(plain, picked Target) *Config {
			pick := NewPick([]PickCase{{When{Method: "PUT"}, picked}})
			return &Config{
				Shape: Shape{Bind: cfg.Bind, Listeners: cfg.Listeners, Forms: FormsOf([]*Pick{pick})}, Backends: cfg.Backends,
				Picks: []*Pick{pick},
				Routes: []*Route{{
					Scope: ScopeOf(at), Host: "a.test", Path: "/", Match: Prefix, To: plain, Pick: pick.Name,
				}, {Scope: ScopeOf(at), Host: "b.test", Path: "/", Match: Prefix, To: plain}},
			}
		}
		const n = 1000
		counts := func(method, host string) map[string]int {
			got := make(map[string]int)
			for range n {
				got[r.ask(at, method, host, "/")]++
			}
			return got
		}
		about := func(what string, got, want map[string]int) {
			t.Helper()
			for name := range got {
				if d := got[name] - want[name]; d < -60 || d > 60 || want[name] == 0 {
					t.Errorf("%s: got %v of %d, want about %v", what, got, n, want)
					return
				}
			}
		}
		cfg1 := with(share(90, 9, 1, 0), share(1, 1, 0, 2))
		r.settle(cfg1, states(cfg1, Open))
		about("a row", counts("GET", "b.test"), map[string]int{"a": 900, "b": 90, "c": 10})
		about("a row with a pick", counts("GET", "a.test"), map[string]int{"a": 900, "b": 90, "c": 10})
		about("a pick", counts("PUT", "a.test"), map[string]int{"a": 250, "b": 250, "500": 500})
		reloads := r.p.Info().Reloads
		cfg2 := with(share(0, 0, 7, 0), share(1, 1, 0, 2))
		cfg2.Routes[0].To = share(90, 9, 1, 0)
		res := r.apply(cfg2, states(cfg2, Open))
		if fmt.Sprint(res.made) != "[set map "+r.p.path(gatewayMap)+" "+escape(ScopeOf(at)+"/b.test/")+" c]" ||
			r.p.Info().Reloads != reloads {
			t.Errorf("another weight took %q and %d reloads", res.made, r.p.Info().Reloads-reloads)
		}
		about("all of one", counts("GET", "b.test"), map[string]int{"c": n})
	})
}

// TestWhatRoutesOfAListenerChangeTakesNoReload adds a host, a path, a match and more, one after another.
func TestWhatRoutesOfAListenerChangeTakesNoReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		cfg, _ := r.gateway("one", "two")
		listeners, at := listenersAt(t, ListenHTTP, ListenHTTPS)
		open, secure := ScopeOf(at[0]), ScopeOf(at[1])
		toHTTPS := func(name string) *Backend {
			d, err := Redirection{Scheme: "https", Code: 301}.Directive()
			if err != nil {
				t.Fatal(err)
			}
			b := backend(name)
			b.Directives = []Directive{d}
			return b
		}
		cfg.Listeners, cfg.Backends = listeners, append(cfg.Backends, toHTTPS("redirects"))
		slices.SortFunc(cfg.Backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
		when := func(value, to string) *Pick {
			return NewPick([]PickCase{{When{Headers: []Field{{Name: "X-A", Value: value}}}, To(to)}})
		}
		known := when("1", "two")
		cfg.Picks, cfg.Forms = []*Pick{known}, FormsOf([]*Pick{known})
		cfg.Certs = []*Cert{{Name: "a.gw.pem", Scope: secure, Hosts: []string{"a.test"}, PEM: a.issue(t, "a")}}
		route := func(scope, host, path, to string) *Route {
			return &Route{Scope: scope, Host: host, Path: path, Match: Prefix, To: To(to)}
		}
		picks := route(open, "picks.test", "/", "one")
		picks.Pick = known.Name
		cfg.Routes = []*Route{
			picks, route(open, "a.test", "/", "one"), route(open, "old.test", "/", "redirects"),
			route(secure, "a.test", "/", "one"),
		}
		r.settle(cfg, states(cfg, Open))
		reloads := r.p.Info().Reloads
		plain := func(host, path, want string, lines ...string) func() bool {
			return func() bool {
				got, err := request(at[0], "GET", host, path, lines...)
				return err == nil && got == want
			}
		}
		halves, err := Split([]Share{{"one", 1}, {"two", 1}})
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			what   string
			change func(*Config)
			served func() bool
		}{
			{"a host", func(c *Config) {
				c.Routes = append(c.Routes, route(open, "b.test", "/", "two"))
			}, plain("b.test", "/", "two")},
			{"a path", func(c *Config) {
				c.Routes = append(c.Routes, route(open, "a.test", "/p", "two"))
			}, plain("a.test", "/p/x", "two")},
			{"a match of a known form", func(c *Config) {
				pick := when("2", "one")
				c.Picks = append(c.Picks, pick)
				slices.SortFunc(c.Picks, func(a, b *Pick) int { return strings.Compare(a.Name, b.Name) })
				c.Routes = append(c.Routes, route(open, "more.test", "/", "two"))
				c.Routes[len(c.Routes)-1].Pick = pick.Name
			}, plain("more.test", "/", "one", "X-A: 2")},
			{"weights", func(c *Config) {
				c.Routes[1] = route(open, "a.test", "/", "one")
				c.Routes[1].To = halves
			}, plain("a.test", "/", "two")},
			{"a redirect to https", func(c *Config) {
				c.Backends = append(c.Backends, toHTTPS("redirects-too"))
				c.Routes = append(c.Routes, route(open, "new.test", "/", "redirects-too"))
			}, plain("new.test", "/x", "301 https://new.test/x")},
			{"a certificate", func(c *Config) {
				c.Certs = append(c.Certs, &Cert{Name: "c.gw.pem", Scope: secure, Hosts: []string{"c.test"}, PEM: a.issue(t, "c")})
				c.Routes = append(c.Routes, route(secure, "c.test", "/", "one"))
			}, func() bool {
				conn, err := tls.Dial("tcp", at[1].String(), &tls.Config{ServerName: "c.test", InsecureSkipVerify: true}) //nolint:gosec // the certificate is looked at
				if err != nil {
					return false
				}
				defer conn.Close()
				return conn.ConnectionState().PeerCertificates[0].Subject.CommonName == "c"
			}},
			{"a Service of known settings", func(c *Config) {
				c.Backends = append(c.Backends, backend("three", origin(t, "three")))
				c.Routes = append(c.Routes, route(open, "three.test", "/", "three"))
			}, plain("three.test", "/", "three")},
		} {
			next := *cfg
			next.Routes, next.Picks, next.Certs = slices.Clone(cfg.Routes), slices.Clone(cfg.Picks), slices.Clone(cfg.Certs)
			next.Backends = slices.Clone(cfg.Backends)
			step.change(&next)
			slices.SortFunc(next.Backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
			cfg = &next
			r.eventually(step.what+" is served", func() bool {
				r.p.schedule.idleSince = time.Now() // a reload that nobody waits for never comes
				r.apply(cfg, states(cfg, Open))
				return step.served()
			})
			if got := r.p.Info().Reloads; got != reloads {
				t.Errorf("%s took %d reloads, want none", step.what, got-reloads)
				reloads = got
			}
		}
	})
}

// gateways returns a Config with Listeners of every kind.
func gateways(t testing.TB, key, certificate []byte) *Config {
	t.Helper()
	at := netip.MustParseAddrPort
	web, safe, six := "127.0.0.1:80", "127.0.0.1:443", "[::1]:8080"
	shared, err := Split([]Share{{"a", 90}, {"b", 9}, {Invalid, 1}})
	if err != nil {
		t.Fatal(err)
	}
	pick := NewPick([]PickCase{
		{When{Method: "PATCH", Headers: []Field{{Name: "X-Who", Value: "a b"}}}, shared},
		{When{Params: []Field{{Name: "q", Value: "1"}}}, To("b")},
		{When{Headers: []Field{{Name: "X-Who", Value: "^a .*$", Pattern: true}, {Name: "X-B", Value: "%'"}}}, To("b")},
	})
	return &Config{
		Shape: Shape{
			Tune:   Tune{MaxConn: 2000},
			Extras: []*Extra{{"b.ca.pem", certificate}},
			Listeners: []Listener{
				{At: at(web), Kind: ListenHTTP},
				{At: at(safe), Kind: ListenHTTPS},
				{At: at("127.0.0.1:5432"), Kind: ListenTCP},
				{At: at("127.0.0.1:8443"), Kind: ListenHTTPS, ClientCA: "b.ca.pem"},
				{At: at("127.0.0.1:8444"), Kind: ListenHTTPS, ClientCA: "b.ca.pem", Insecure: true},
				{At: at("127.0.0.1:8445"), Kind: ListenHTTPS, ClientCA: Nobody},
				{At: at("127.0.0.1:9443"), Kind: ListenTLS},
				{At: at(six), Kind: ListenHTTP},
			},
			Forms: FormsOf([]*Pick{pick}),
		},
		Picks: []*Pick{pick},
		Hostnames: []Hostname{
			{safe, "", "all", false}, {safe, "*.b.test", "b", false}, {safe, "a.test", "a", false},
		},
		Routes: []*Route{
			{Scope: web, Host: "a.test", Path: "/", Match: Prefix, TLSOnly: true, TLSCode: 301, TLSPort: 8443},
			{Scope: six, Host: "a.test", Path: "/", Match: Prefix, To: To("a")},
			{Scope: six, Host: "*.a.test", Path: "/x", Match: Exact, To: shared},
			{Scope: six, Path: "/", Match: Prefix, To: To(Invalid)},
			{Scope: safe, Host: "a.test", Path: "/", Match: Prefix, To: To("a"), Pick: pick.Name},
			{Scope: safe, Host: "*.b.test", Path: "/v[0-9]", Match: Regexp, To: To("b")},
			{Scope: "127.0.0.1:5432", Path: "/", Match: Passthrough, To: To("c")},
			{Scope: "127.0.0.1:9443", Host: "a.test", Path: "/", Match: Passthrough, To: To("c")},
			{Scope: "127.0.0.1:9443", Host: "*.a.test", Path: "/", Match: Terminate, To: To("c")},
		},
		Certs: []*Cert{
			{Name: "a.gw.pem", Scope: safe, Hosts: []string{"a.test"}, PEM: key},
			{Name: "b.gw.pem", Scope: "127.0.0.1:8443", Hosts: []string{"a.test"}, PEM: key},
			{Name: "c.pem", Hosts: []string{"a.test"}, PEM: key},
			{Name: "d.pem", Scope: "192.0.2.1:8443", Hosts: []string{"a.test"}, PEM: key},
		},
		Backends: []*Backend{{Name: "a"}, {Name: "b"}, {Name: "c", TCP: true}},
	}
}

// TestARouteOfAListenerStaysWholeUntilAReload gives routes other shares and conditions, of backends
// and Forms that the worker lacks, while a reload has to wait.
func TestARouteOfAListenerStaysWholeUntilAReload(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		at := freePort(t)
		of := func(name, namespace string) *Backend {
			b := distinct(backend(name, origin(t, name)))
			b.Namespace, b.Service = namespace, namespace+"/"+name+":80"
			return b
		}
		one, two, three, theirs := of("one", "a"), of("two", "a"), of("three", "a"), of("theirs", "b")
		half, err := Split([]Share{{"one", 1}, {"three", 1}})
		if err != nil {
			t.Fatal(err)
		}
		patch := NewPick([]PickCase{{When{Method: "PATCH"}, To("one")}})
		header := NewPick([]PickCase{{When{Headers: []Field{{Name: "X-A", Value: "1"}}}, To("one")}})
		config := func(picks []*Pick, backends []*Backend, routes ...*Route) *Config {
			cfg := &Config{
				Shape: Shape{Listeners: []Listener{{At: at, Kind: ListenHTTP}}, Forms: FormsOf(picks)}, Picks: picks,
				Backends: backends,
			}
			for _, route := range routes {
				route.Scope, route.Match = ScopeOf(at), Prefix
				cfg.Routes = append(cfg.Routes, route)
			}
			return cfg
		}
		was := config([]*Pick{patch}, []*Backend{one, theirs, two},
			&Route{Host: "picks.test", Path: "/", To: To("two"), Pick: patch.Name},
			&Route{Host: "plain.test", Path: "/", To: To("two")},
			&Route{Host: "shares.test", Path: "/", To: To("one")},
			&Route{Host: "taken.test", Path: "/", To: To("theirs")})
		r.settle(was, states(was, Open))

		// The condition of picks.test looks at a header, and two is gone.
		next := config([]*Pick{header}, []*Backend{one, three},
			&Route{Host: "picks.test", Path: "/", To: To("one"), Pick: header.Name},
			&Route{Host: "plain.test", Path: "/", To: To("one")},
			&Route{Host: "shares.test", Path: "/", To: half},
			&Route{Host: "taken.test", Path: "/", To: To("three")})
		r.p.schedule.least, r.p.schedule.last = time.Hour, time.Now()
		for range 3 {
			next.Former = r.p.Former(next)
			if res := r.apply(next, states(next, Open)); res.Reloaded || res.Reason == "" {
				t.Fatalf("got %+v, want a reload in an hour", res)
			}
			for _, c := range []struct{ method, host, header, want string }{
				{"GET", "picks.test", "X-A: 2", "two"},
				{"PATCH", "picks.test", "X-A: 2", "one"},
				{"GET", "picks.test", "X-A: 1", "two"},
				{"GET", "plain.test", "X-A: 1", "one"},
				{"GET", "shares.test", "X-A: 1", "one"},
				{"GET", "taken.test", "X-A: 1", "404"}, // its backend of before is of another namespace
			} {
				if got := r.ask(at, c.method, c.host, "/", c.header); got != c.want {
					t.Errorf("before the reload: %s %s %s: got %q, want %q", c.method, c.host, c.header, got, c.want)
				}
			}
		}
		r.later()
		next.Former = r.p.Former(next)
		if res := r.apply(next, states(next, Open)); !res.Reloaded {
			t.Fatalf("got %+v, want a reload", res)
		}
		next.Former = nil
		r.settle(next, states(next, Open))
		for _, c := range []struct{ method, host, header, want string }{
			{"PATCH", "picks.test", "X-A: 2", "one"},
			{"GET", "picks.test", "X-A: 1", "one"},
			{"GET", "taken.test", "X-A: 1", "three"},
		} {
			if got := r.ask(at, c.method, c.host, "/", c.header); got != c.want {
				t.Errorf("after the reload: %s %s %s: got %q, want %q", c.method, c.host, c.header, got, c.want)
			}
		}
	})
}

// TestEveryRowThatARowNamesIsThere changes maps step by step, and looks after each step for rows of
// gateway.map that name a row of pick.map that is missing.
func TestEveryRowThatARowNamesIsThere(t *testing.T) {
	scope := "192.0.2.1:80"
	world := func(n int, methods ...string) map[string][]row {
		cfg := &Config{Shape: Shape{Listeners: []Listener{{At: netip.MustParseAddrPort(scope), Kind: ListenHTTP}}}}
		for i := range n {
			pick := methodPick(methods[i%len(methods)] + fmt.Sprint(i))
			cfg.Picks = merged(cfg.Picks, []*Pick{pick})
			cfg.Routes = append(cfg.Routes, &Route{
				Scope: scope, Host: fmt.Sprintf("h%03d.test", i), Path: "/", Match: Prefix, To: To("a"), Pick: pick.Name,
			})
		}
		cfg.Forms = FormsOf(cfg.Picks)
		if n == 0 {
			cfg.Forms = FormsOf([]*Pick{methodPick("X")})
		}
		r := renderer{}
		return r.renderTables(cfg, nil).rows
	}
	for name, pair := range map[string][2]map[string][]row{
		"the first":    {world(0, "x"), world(3, "GET")},
		"the last":     {world(3, "GET"), world(0, "x")},
		"another":      {world(3, "GET"), world(3, "PUT")},
		"many":         {world(0, "x"), world(100, "GET")},
		"many others":  {world(100, "GET"), world(100, "PUT")},
		"many go":      {world(100, "GET"), world(0, "x")},
		"some of many": {world(100, "GET"), world(100, "GET", "PUT")},
	} {
		t.Run(name, func(t *testing.T) {
			have, want := maps.Clone(pair[0]), pair[1]
			check := func(after string) {
				for _, r := range have[gatewayMap] {
					fields := strings.Split(r.value, "/")
					if len(fields) > 4 && !slices.ContainsFunc(have[pickMap], func(p row) bool {
						return strings.HasPrefix(p.key, fields[4]+".")
					}) {
						t.Fatalf("after %s: %s names %s, which is missing", after, r.key, fields[4])
					}
				}
			}
			for _, step := range mapSteps(have, want, func(string) bool { return true }, "") {
				if step.cmds == nil {
					have[step.path] = step.rows
					check(step.path)
				}
				for _, cmd := range step.cmds {
					words := strings.Fields(cmd)
					rows := slices.Clone(have[step.path])
					i := slices.IndexFunc(rows, func(r row) bool { return r.key == words[3] })
					switch words[0] {
					case "add":
						rows = append(rows, row{words[3], words[4]})
					case "set":
						rows[i].value = words[4]
					case "del":
						rows = slices.Delete(rows, i, i+1)
					}
					have[step.path] = rows
					check(cmd)
				}
			}
			for path, rows := range want {
				got := slices.SortedFunc(slices.Values(have[path]), func(a, b row) int { return strings.Compare(a.key, b.key) })
				if !patternTable(slices.Index(mapFiles[:], path)) && !slices.Equal(got, rows) {
					t.Errorf("%s: got %v, want %v", path, got, rows)
				}
			}
		})
	}
}

// FuzzScopedRoutes holds every route and condition of a Listener to be lines of their own in the map
// files, whatever their texts are.
func FuzzScopedRoutes(f *testing.F) {
	f.Add("a.test", "/x", "b", "PUT", "x-a", "1", uint8(0))
	f.Add("*.test", "/x/\x01", "b", "", "x-a", "a b\n\x00", uint8(1))
	f.Add("", "/#[^ ]", "b+c", "", "x a", "^a (b)$", uint8(14))
	f.Fuzz(func(t *testing.T, host, path, backend, method, header, value string, match uint8) {
		when := When{Method: method, Headers: []Field{{Name: header, Value: value, Pattern: match >= 8}}}
		pick := NewPick([]PickCase{{when, To(backend)}})
		r := &Route{
			Scope: "[2001:db8::1]:80", Host: host, Path: path, To: To(backend), Pick: pick.Name,
			Match: []PathMatch{Prefix, Exact, Begin, Regexp}[match%4],
		}
		cfg := &Config{Shape: Shape{Forms: FormsOf([]*Pick{pick})}, Picks: []*Pick{pick}, Routes: []*Route{r}}
		if r.Validate() != nil || pick.validate(cfg.Forms) != nil {
			return
		}
		for i, want := range rows(cfg, "", nil) {
			if got := parseMap(renderMap(want)); !slices.Equal(got, want) {
				t.Errorf("%s: want %q, got %q", mapFiles[i], want, got)
			}
		}
	})
}

func TestAHostOfAListenerWithDifferentGuardsIsMarked(t *testing.T) {
	guarded := &Backend{Name: "guarded", Directives: []Directive{Deny(Networks{}, true)}}
	pick := NewPick([]PickCase{{When{Method: "PUT"}, To("guarded")}})
	half, err := Split([]Share{{"guarded", 1}, {"plain", 1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		to     Target
		pick   string
		scope  string
		marked bool
	}{
		"the same everywhere":       {To("plain"), "", "192.0.2.1:80", false},
		"another path":              {To("guarded"), "", "192.0.2.1:80", true},
		"a share":                   {half, "", "192.0.2.1:80", true},
		"a condition":               {To("plain"), pick.Name, "192.0.2.1:80", true},
		"the host in another scope": {To("guarded"), "", "192.0.2.2:80", false},
	} {
		cfg := &Config{
			Backends: []*Backend{guarded, {Name: "plain"}}, Picks: []*Pick{pick},
			Routes: []*Route{
				{Scope: "192.0.2.1:80", Host: "a.test", Path: "/", Match: Prefix, To: To("plain")},
				{Scope: c.scope, Host: "a.test", Path: "/admin", Match: Prefix, To: c.to, Pick: c.pick},
			},
		}
		if got := guards(cfg)[site{"192.0.2.1:80", "a.test"}] != ""; got != c.marked {
			t.Errorf("%s: marked is %t, want %t", name, got, c.marked)
		}
	}
}

func TestAListenerWithARejectedAuthorityTakesNobody(t *testing.T) {
	cfg := &Config{Shape: Shape{
		Extras: []*Extra{{"a.ca.pem", []byte("a")}, {"b.ca.pem", []byte("b")}},
		Listeners: []Listener{
			{At: netip.MustParseAddrPort("192.0.2.1:443"), Kind: ListenHTTPS, ClientCA: "a.ca.pem", Insecure: true},
			{At: netip.MustParseAddrPort("192.0.2.2:443"), Kind: ListenHTTPS, ClientCA: "b.ca.pem"},
		},
	}}
	left := cfg.with([]Part{cfg.Extras[1].Part()})
	if got := left.Listeners[0]; got.ClientCA != Nobody || got.Insecure {
		t.Errorf("without its authority: got %+v, want one that takes nobody", got)
	}
	if got := left.Listeners[1]; got != cfg.Listeners[1] {
		t.Errorf("with its authority: got %+v, want it as it was", got)
	}
}
