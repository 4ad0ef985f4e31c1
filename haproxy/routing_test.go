package haproxy

import (
	"slices"
	"strings"
	"testing"
)

func TestRequestsFindTheRouteKubernetesMeans(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		backends := map[string]*Backend{}
		cfg := &Config{Shape: Shape{Bind: r.config().Bind}}
		for _, name := range []string{
			"root", "api", "apiv1", "healthz", "slash", "exactslash", "wild", "wildapi",
			"known", "hostless", "hostlessapi", "deep", "semi", "rest",
		} {
			backends[name] = backend(name, origin(t, name))
			cfg.Backends = append(cfg.Backends, backends[name])
		}
		cfg.Backends = append(cfg.Backends, backend("empty"))
		slices.SortFunc(cfg.Backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
		cfg.Routes = []*Route{
			{Host: "app.example.com", Path: "/", Match: Prefix, Backend: "root"},
			{Host: "app.example.com", Path: "/api", Match: Prefix, Backend: "api"},
			{Host: "app.example.com", Path: "/api", Match: Prefix, Backend: "root"}, // the second claim
			{Host: "app.example.com", Path: "/api/v1", Match: Prefix, Backend: "apiv1"},
			{Host: "app.example.com", Path: "/slash/", Match: Prefix, Backend: "slash"},
			{Host: "app.example.com", Path: "/healthz", Match: Exact, Backend: "healthz"},
			{Host: "app.example.com", Path: "/api/exact", Match: Exact, Backend: "healthz"},
			{Host: "app.example.com", Path: "/api/exact", Match: Prefix, Backend: "deep"},
			{Host: "app.example.com", Path: "/end/", Match: Exact, Backend: "exactslash"},
			{Host: "app.example.com", Path: "/gone", Match: Prefix},
			{Host: "app.example.com", Path: "/void", Match: Prefix, Backend: "empty"},
			{Host: "app.example.com", Path: "/lost", Match: Prefix, Backend: "nosuchbackend"},
			{Host: "app.example.com", Path: "/a;b'c", Match: Prefix, Backend: "semi"},
			{Host: "known.example.com", Path: "/only", Match: Prefix, Backend: "known"},
			{Host: "*.example.com", Path: "/", Match: Prefix, Backend: "wild"},
			{Host: "*.example.com", Path: "/api", Match: Prefix, Backend: "wildapi"},
			{Host: "*.part.test", Path: "/only", Match: Prefix, Backend: "wild"},
			{Host: "secure.test", Path: "/", Match: Prefix, Backend: "root", TLSOnly: true},
			{Host: "secure.test", Path: "/plain", Match: Prefix, Backend: "api"},
			{Host: "www.bare.test", Path: "/", Match: Prefix, Backend: WWW},
			{Host: "named.test", Path: "/", Match: Prefix, Backend: WWW},
			{Host: "", Path: "/", Match: Prefix, Backend: "hostless"},
			{Host: "", Path: "/api", Match: Prefix, Backend: "hostlessapi"},
		}
		r.settle(cfg, states(cfg, Open))
		port := r.https.String()[len("127.0.0.1"):]
		type row struct{ name, host, path, want string }
		for _, c := range []row{
			{"host and root", "app.example.com", "/", "root"},
			{"any path under root", "app.example.com", "/x/y", "root"},
			{"port in the Host header", "app.example.com:8080", "/api", "api"},
			{"upper case host", "APP.Example.COM", "/api", "api"},
			{"upper case path is another path", "app.example.com", "/API", "root"},
			{"prefix itself", "app.example.com", "/api", "api"},
			{"prefix with slash", "app.example.com", "/api/", "api"},
			{"prefix and element", "app.example.com", "/api/x", "api"},
			{"prefix ends at an element", "app.example.com", "/apix", "root"},
			{"longest prefix wins", "app.example.com", "/api/v1/x", "apiv1"},
			{"longest prefix ends at an element", "app.example.com", "/api/v1x", "api"},
			{"prefix written with slash, asked without", "app.example.com", "/slash", "slash"},
			{"prefix written with slash, asked with", "app.example.com", "/slash/x", "slash"},
			{"query is not path", "app.example.com", "/api?x=/api/v1", "api"},
			{"exact", "app.example.com", "/healthz", "healthz"},
			{"exact with query", "app.example.com", "/healthz?a", "healthz"},
			{"exact is not a prefix", "app.example.com", "/healthz/x", "root"},
			{"exact has no slash", "app.example.com", "/healthz/", "root"},
			{"exact beats prefix", "app.example.com", "/api/exact", "healthz"},
			{"prefix beside exact", "app.example.com", "/api/exact/x", "deep"},
			{"exact with slash", "app.example.com", "/end/", "exactslash"},
			{"exact with slash, asked without", "app.example.com", "/end", "root"},
			{"the mark in a path is refused", "app.example.com", "/healthz/\x01", "400"},
			{"the mark percent-encoded is a path", "app.example.com", "/healthz/%01", "root"},
			{"a path in the Host header is refused", "app.example.com/api", "/admin", "400"},
			{"a path in the Host header after a port is refused", "app.example.com:80/api", "/admin", "400"},
			{"known and answered with 404", "app.example.com", "/gone/x", "404"},
			{"backend without servers", "app.example.com", "/void", "503"},
			{"backend that is not there", "app.example.com", "/lost", "404"},
			{"characters the command line minds", "app.example.com", "/a;b'c/x", "semi"},
			{"known host, unknown path", "known.example.com", "/other", "404"},
			{"known host, known path", "known.example.com", "/only/x", "known"},
			{"known host never falls to the wildcard", "known.example.com", "/api", "404"},
			{"wildcard", "foo.example.com", "/", "wild"},
			{"wildcard, upper case and port", "FOO.example.com:1", "/api/x", "wildapi"},
			{"wildcard is one label", "a.b.example.com", "/", "hostless"},
			{"wildcard is not none", "example.com", "/", "hostless"},
			{"wildcard host, unknown path", "x.part.test", "/other", "404"},
			{"unknown host", "who.test", "/x", "hostless"},
			{"unknown host, longest prefix", "who.test", "/api/x", "hostlessapi"},
			{"host of one label", "localhost", "/api", "hostlessapi"},
			{"host that is an address", "127.0.0.1:80", "/api", "hostlessapi"},
			{"host that is an IPv6 address", "[::1]:80", "/api", "hostlessapi"},
			{"no host", "", "/api", "hostlessapi"},
			{"TLS only", "secure.test", "/x?y=1", "302 https://secure.test" + port + "/x?y=1"},
			{"TLS only, port in Host", "secure.test:80", "/", "302 https://secure.test" + port + "/"},
			{"not TLS only, same host", "secure.test", "/plain", "api"},
			{"without www.", "www.bare.test", "/x?y=1", "308 http://bare.test/x?y=1"},
			{"without www., upper case and port", "WWW.Bare.test:81", "/X/", "308 http://bare.test:81/X/"},
			{"with www.", "named.test", "/", "308 http://www.named.test/"},
		} {
			if got := r.get(c.host, c.path); got != c.want {
				t.Errorf("%s: %q %q: got %q, want %q", c.name, c.host, c.path, got, c.want)
			}
			path, _, _ := strings.Cut(c.path, "?")
			if found, why := cfg.Find(c.host, path); c.want != "400" && (found.Backend != c.want || why != "") {
				special := c.want == "404" && (why != "" || found.Backend == "nosuchbackend") ||
					c.want == "503" && found.Backend == "empty" || found.TLSOnly || found.Backend == WWW
				if !special {
					t.Errorf("%s: %q %q: found %q, %q; want %q", c.name, c.host, c.path, found.Backend, why, c.want)
				}
			}
		}

		reloads := r.p.Info().Reloads
		cfg.DefaultBackend = "rest"
		cfg.Routes = cfg.Routes[:len(cfg.Routes)-2]
		r.settle(cfg, states(cfg, Open))
		for _, c := range []row{
			{"default backend, unknown host", "who.test", "/x", "rest"},
			{"default backend, known host, unknown path", "known.example.com", "/other", "rest"},
			{"default backend, wildcard host, unknown path", "x.part.test", "/other", "rest"},
			{"default backend does not hide a 404", "app.example.com", "/gone", "404"},
			{"default backend, no host", "", "/", "rest"},
		} {
			if got := r.get(c.host, c.path); got != c.want {
				t.Errorf("%s: %q %q: got %q, want %q", c.name, c.host, c.path, got, c.want)
			}
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("routes changed with %d reloads, want none", got-reloads)
		}
	})
}

// FuzzRoutes holds every route that is accepted to be a line of its own in a map
// file, whatever its host and path are.
func FuzzRoutes(f *testing.F) {
	f.Add("a.test", "/x", "b", uint8(0))
	f.Add("*.test", "/x/\x01", "b", uint8(1))
	f.Add("", "/#\u2028", "b c", uint8(2))
	f.Add("", "/#[^ ]", "b", uint8(4))
	f.Fuzz(func(t *testing.T, host, path, backend string, match uint8) {
		r := &Route{
			Host: host, Path: path, Match: []PathMatch{Prefix, Exact, Passthrough, Begin, Regexp}[match%5],
			Backend: backend,
		}
		if r.Validate() != nil {
			return
		}
		for _, want := range rows(&Config{
			Shape:  Shape{Inspect: true},
			Routes: []*Route{r, {Host: "other.test", Path: "/", Match: Prefix, Backend: "other"}},
		}, "", nil) {
			if got := parseMap(renderMap(want)); !slices.Equal(got, want) {
				t.Errorf("want %q, got %q", want, got)
			}
		}
	})
}

func TestRegularExpressionsGoBetweenExactAndPrefix(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := &Config{Shape: Shape{Bind: r.config().Bind}}
		for _, name := range []string{
			"begin", "canary", "exact", "free", "long", "old", "prefix", "rest", "short",
			"wild", "wildroot",
		} {
			cfg.Backends = append(cfg.Backends, backend(name, origin(t, name)))
		}
		cfg.Routes = []*Route{
			{Host: "a.test", Path: "/", Match: Prefix, Backend: "prefix"},
			{Host: "a.test", Path: "/v1/x", Match: Exact, Backend: "exact"},
			{Host: "a.test", Path: "/v[0-9]+/", Match: Regexp, Backend: "short"},
			{Host: "a.test", Path: "/v[0-9]+/(long|longer)$", Match: Regexp, Backend: "long"},
			{Host: "a.test", Path: "/be", Match: Begin, Backend: "begin"},
			{Host: "a.test", Path: "/secure[0-9]", Match: Regexp, Backend: "short", TLSOnly: true},
			{Host: "a.test", Path: "/mixed[0-9]", Match: Regexp, Backend: "old", Canary: "canary", CanaryWeight: 100},
			{Host: "b.test", Path: "/[a-z]$", Match: Regexp, Backend: "short"},
			{Host: "c.test", Path: "/", Match: Prefix, Backend: "prefix"},
			{Host: "d.test", Path: "/", Match: Prefix, Backend: "old", Canary: "canary", CanaryWeight: 100},
			{Host: "d.test", Path: "/(?i)x", Match: Regexp, Backend: "short"},
			{Host: "*.w.test", Path: "/", Match: Prefix, Backend: "wildroot"},
			{Host: "*.w.test", Path: "/v[0-9]", Match: Regexp, Backend: "wild"},
			{Path: "/free[0-9]", Match: Regexp, Backend: "free"},
		}
		cfg.DefaultBackend = "rest"
		r.settle(cfg, states(cfg, Open))
		port := r.https.String()[len("127.0.0.1"):]
		hold := func() {
			t.Helper()
			for _, c := range []struct{ host, path, want string }{
				{"a.test", "/", "prefix"},
				{"a.test", "/v1/x", "exact"},
				{"a.test", "/v1/y", "short"},
				{"a.test", "/v12/long", "long"},
				{"a.test", "/v12/longest", "short"},
				{"a.test", "/x/v1/", "prefix"}, // from the beginning
				{"a.test", "/beginning", "begin"},
				{"a.test", "/be", "begin"},
				{"a.test", "/b", "prefix"},
				{"a.test", "/secure1?a", "302 https://a.test" + port + "/secure1?a"},
				{"a.test", "/mixed1", "canary"},
				{"A.test:80", "/v1/y", "short"},
				{"b.test", "/q", "short"},
				{"b.test", "/qq", "rest"},
				{"c.test", "/v1/y", "prefix"},
				{"d.test", "/", "canary"},
				{"d.test", "/X", "short"},
				{"x.w.test", "/v1", "wild"},
				{"x.w.test", "/w", "wildroot"},
				{"y.x.w.test", "/v1", "rest"},
				{"who.test", "/free1", "free"},
				{"who.test", "/free", "rest"},
				{"", "/free1", "free"},
			} {
				if got := r.get(c.host, c.path); got != c.want {
					t.Errorf("%q %q: got %q, want %q", c.host, c.path, got, c.want)
				}
			}
		}
		hold()
		// They come and go by command, in their order.
		reloads := r.p.Info().Reloads
		all := cfg.Routes
		cfg.Routes = []*Route{{Host: "a.test", Path: "/", Match: Prefix, Backend: "prefix"}}
		r.settle(cfg, states(cfg, Open))
		if got := r.get("a.test", "/v1/y"); got != "prefix" {
			t.Errorf("without the regular expression: got %q", got)
		}
		cfg.Routes = all
		r.settle(cfg, states(cfg, Open))
		hold()
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("routes changed with %d reloads, want none", got-reloads)
		}
	})
}

func TestACanaryTakesItsShare(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("new", origin(t, "new")), backend("old", origin(t, "old")))
		at := func(weight int) *Config {
			next := *cfg
			next.Routes = []*Route{{
				Host: "a.test", Path: "/", Match: Prefix, Backend: "old", Canary: "new",
				CanaryWeight: weight,
			}, {Host: "b.test", Path: "/", Match: Prefix, Backend: "old"}}
			return &next
		}
		r.apply(at(25), states(cfg, Open))
		share := func(host string) int {
			n := 0
			for range 400 {
				if r.get(host, "/") == "new" {
					n++
				}
			}
			return n
		}
		if n := share("a.test"); n < 50 || n > 150 {
			t.Errorf("%d of 400 requests went to the canary, want about 100", n)
		}
		if n := share("b.test"); n != 0 {
			t.Errorf("%d requests for another host went to the canary", n)
		}
		for weight, want := range map[int]int{0: 0, 100: 400} {
			if res := r.apply(at(weight), states(cfg, Open)); res.Reloaded {
				t.Error("another weight took a reload")
			}
			if n := share("a.test"); n != want {
				t.Errorf("with a weight of %d, %d of 400 went to the canary, want %d", weight, n, want)
			}
		}
	})
}

// TestTheLongestHostAndPathAreServed adds a row of the greatest length by a command.
func TestTheLongestHostAndPathAreServed(t *testing.T) {
	host := strings.Repeat("a", 61) + strings.Repeat("."+strings.Repeat("b", 63), 3)
	path := "/" + strings.Repeat("p", MaxPath-1)
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "ok")))
		r.settle(cfg, states(cfg, Open))
		next := *cfg
		next.Routes = append([]*Route{{Host: host, Path: path, Match: Exact, Backend: "app"}}, cfg.Routes...)
		if res := r.apply(&next, states(&next, Open)); res.Reloaded || !res.RetryAt.IsZero() {
			t.Errorf("the row took a reload: %+v", res)
		}
		if got := r.get(host, path); got != "ok" {
			t.Errorf("got %.80q, want ok", got)
		}
		if got := r.get(host, path[:len(path)-1]); got != "404" {
			t.Errorf("a shorter path: got %.80q, want 404", got)
		}
	})
}
