package haproxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// uri returns a web server that says what it was asked for, as it was written.
func uri(t testing.TB) Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RequestURI)
	}))
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

// locked returns a backend that lets nobody in who is on this machine.
func locked(name string, servers ...Server) *Backend {
	b := backend(name, servers...)
	b.Directives = []Directive{Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, false)}
	return b
}

func TestAPathThatCanBeReadInTwoWaysDoesNotPassAGuard(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := uri(t)
		cfg := r.config(backend("open", app), locked("shut", app), backend("other", app), locked("whole", app))
		cfg.Routes = []*Route{
			{Host: "part.test", Path: "/", Match: Prefix, Backend: "open"},
			{Host: "part.test", Path: "/admin", Match: Prefix, Backend: "shut"},
			{Host: "*.wild.test", Path: "/", Match: Prefix, Backend: "open"},
			{Host: "*.wild.test", Path: "/admin", Match: Exact, Backend: "shut"},
			{Path: "/", Match: Prefix, Backend: "open"},
			{Path: "/admin", Match: Begin, Backend: "shut"},
			{Host: "pattern.test", Path: "/", Match: Prefix, Backend: "open"},
			{Host: "pattern.test", Path: "/adm[i]n", Match: Regexp, Backend: "shut"},
			{Host: "canary.test", Path: "/", Match: Prefix, Backend: "open", Canary: "shut"},
			{Host: "odd.test", Path: "/", Match: Prefix, Backend: "open"},
			{Host: "odd.test", Path: "/ad:min", Match: Prefix, Backend: "shut"},
			{Host: "odd.test", Path: "/%C3%A9", Match: Prefix, Backend: "shut"},
			{Host: "free.test", Path: "/", Match: Prefix, Backend: "open"},
			{Host: "free.test", Path: "/other", Match: Prefix, Backend: "other"},
			{Host: "whole.test", Path: "/", Match: Prefix, Backend: "whole"},
			{Host: "whole.test", Path: "/x", Match: Prefix, Backend: "shut"},
			{Host: "only.test", Path: "/admin", Match: Prefix, Backend: "shut"},
		}
		r.apply(cfg, states(cfg, Open))
		tricks := []string{
			"/%61dmin", "/%41dmin", "/a/..%2fadmin", "/a/..%2Fadmin", "//admin", "/admin;x", "/;x/admin", "/./admin",
			"/a/../admin", "/%2e/admin", "/a/%2E%2e/admin", "/a/.%2e/admin",
			"/admin/.", "/admin/..", "/admin%2f", "/%2fadmin", "/%5cadmin", "/a\\..\\admin", "/admin%00", "/admin%3bx",
			"/%2561dmin", "/%252e%252e/admin", "/admi%6e", "/admin%0a", "/admin%09", "/%7fadmin",
			"/%c0%afadmin", "/%C0%AEadmin", "/%e0%80%afadmin", "/%f0%80%80%afadmin", "/%u0061dmin", "/%", "/%6", "/%zz",
			"/ad%2Dmin", "/%7Eadmin", "/%5Fadmin", "/a//", "/..", "/.", "/a/..", "/a/..;/admin", "/%30", "//x",
			"/admin#", "/a#/../admin", "/\xc3\xa9", "/a%ff",
		}
		for _, host := range []string{
			"part.test", "PART.test:80", "a.wild.test", "nobody.test", "", "pattern.test",
			"canary.test", "odd.test",
		} {
			for _, path := range tricks {
				if got := r.get(host, path); got != "400" {
					t.Errorf("%s%s: got %s, want 400", host, path, got)
				}
			}
			for _, path := range []string{
				"/", "/a", "/a/", "/a/b.c", "/a/.well-known/x", "/a/...", "/..a", "/a../b",
				"/%20", "/%C3%A9t%C3%A9", "/a-b_c~d", "/a?x=//../%61;", "/~a/b+c,d=e&f@g:h!i$j'k(l)m*n", "/%E3%81%82",
			} {
				if got := r.get(host, path); got != path && (host != "odd.test" || path != "/%C3%A9") &&
					(host != "canary.test" || got != "403") {
					t.Errorf("%s%s: got %s, want it passed on", host, path, got)
				}
			}
		}
		for host, paths := range map[string][]string{
			"part.test": {"/%3a", "/%3F", "/%23", "/%26", "/%40", "/%c3%a9"},
			"free.test": {"/%61dmin", "//admin", "/a;x", "/a/../b", "/api/a%2fb", "/%c3%a9", "/%00"},
		} {
			for _, path := range paths {
				if got := r.get(host, path); got != path {
					t.Errorf("%s%s: got %s, want it passed on", host, path, got)
				}
			}
		}
		for path, want := range map[string]string{
			"/ad%3amin": "400", "/ad%3Amin": "400", "/%c3%A9": "400",
			"/%C3%a9": "400", "/ad:min": "403", "/%C3%A9": "403", "/%40": "400",
		} {
			if got := r.get("odd.test", path); got != want {
				t.Errorf("odd.test%s: got %s, want %s", path, got, want)
			}
		}
		for _, path := range []string{"/%61dmin", "//", "/a;x"} {
			if got := r.get("whole.test", path); got != "403" {
				t.Errorf("whole.test%s: got %s, want 403: the guard is the same for all", path, got)
			}
			if got := r.get("only.test", path); got != "404" {
				t.Errorf("only.test%s: got %s, want 404", path, got)
			}
		}

		// What is guarded is in the maps: it comes and goes without a reload.
		reloads := r.p.Info().Reloads
		cfg.Routes = append(cfg.Routes, &Route{Host: "free.test", Path: "/admin", Match: Prefix, Backend: "shut"})
		r.settle(cfg, states(cfg, Open))
		if got := r.get("free.test", "/%61dmin"); got != "400" {
			t.Errorf("free.test with a guarded path: got %s, want 400", got)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("a guarded path came with %d reloads, want none", got-reloads)
		}
	})
}

func TestAHostWhosePathsHaveTheSameGuardIsNotMarked(t *testing.T) {
	must := must[Directive](t)
	deny := Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, false)
	text, err := ParseText(BackendSection, "http-request deny if { path /x }")
	if err != nil {
		t.Fatal(err)
	}
	harmless, err := ParseText(BackendSection, "http-request set-header X-A b")
	if err != nil {
		t.Fatal(err)
	}
	shared, err := CORS{Origin: "*", Methods: "*", Headers: "*"}.Directives()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		first, second []Directive
		want          string
	}{
		"none":             {nil, nil, ""},
		"the same":         {[]Directive{deny}, []Directive{deny, Timeout("server", 1)}, ""},
		"one of two":       {[]Directive{deny}, nil, guarded},
		"the other of two": {nil, []Directive{Close()}, guarded},
		"two lists":        {[]Directive{deny}, []Directive{Deny(Networks{List: "a"}, true)}, guarded},
		"passwords": {
			[]Directive{must(BasicAuth{Userlist: "a", Realm: "b"}.Directive())},
			nil,
			guarded,
		},
		"certificates": {nil, []Directive{OnlyOwnTLS(false)}, guarded},
		"a service, for both": {
			[]Directive{must(Ask{Backend: "a", Host: "a", Path: "/"}.Directive())},
			[]Directive{must(Ask{Backend: "a", Host: "a", Path: "/"}.Directive())},
			guarded,
		},
		"another source for the same list":  {[]Directive{must(Source("X-A")), deny}, []Directive{deny}, guarded},
		"a source alone":                    {[]Directive{must(Source("X-A"))}, nil, ""},
		"a limit":                           {[]Directive{LimitBody(1)}, nil, ""},
		"a text that denies by path":        {[]Directive{text.Directive()}, []Directive{text.Directive()}, guarded},
		"a text that does not keep out":     {[]Directive{harmless.Directive()}, nil, ""},
		"CORS, which keeps nobody out here": {shared, nil, ""},
	} {
		cfg := &Config{
			Backends: []*Backend{{Name: "a", Directives: c.first}, {Name: "b", Directives: c.second}},
			Routes: []*Route{
				{Host: "a.test", Path: "/", Match: Prefix, Backend: "a"},
				{Host: "a.test", Path: "/b", Match: Prefix, Backend: "b"},
			},
		}
		if got := guards(cfg)[site{host: "a.test"}]; got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// The default backend answers no path of a host whose TLS is passed through, so its guard is none of
// the host's guards.
func TestTheGuardOfTheDefaultBackendMarksNoHostThatPassesTLSThrough(t *testing.T) {
	for rest, want := range map[PathMatch]string{Passthrough: "", Exact: guarded} {
		cfg := &Config{
			DefaultBackend: "b",
			Backends: []*Backend{
				{Name: "a", Directives: []Directive{Close()}},
				{Name: "b", Directives: []Directive{OnlyOwnTLS(false)}},
			},
			Routes: []*Route{
				{Host: "a.test", Path: "/", Match: rest, Backend: "a"},
				{Host: "a.test", Path: "/a", Match: Prefix, Backend: "a"},
			},
		}
		if got := guards(cfg)[site{host: "a.test"}]; got != want {
			t.Errorf("a path of the kind %s, and a default with another guard: got %q, want %q", rest, got, want)
		}
	}
}
