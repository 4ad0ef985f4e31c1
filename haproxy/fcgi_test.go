package haproxy

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/fcgi"
	"slices"
	"strings"
	"testing"
)

// scripts returns a server that speaks FastCGI, and answers with what it sees.
func scripts(t *testing.T) Server {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		_ = fcgi.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			body, _ := io.ReadAll(q.Body)
			_, _ = fmt.Fprintf(w, "%s %s %s\n", q.Method, q.URL.RequestURI(), body)
			env := fcgi.ProcessEnv(q)
			for _, name := range []string{"DOCUMENT_ROOT", "SCRIPT_FILENAME", "APP", "EMPTY"} {
				_, _ = fmt.Fprintf(w, "%s=%s\n", name, env[name])
			}
			for _, name := range []string{"Proxy", "X-Mode", "X-Other"} {
				_, _ = fmt.Fprintf(w, "%s=%s\n", name, strings.Join(q.Header[name], ","))
			}
		}))
	}()
	return serverAt(l.Addr())
}

// speaking returns a backend with servers of FastCGI.
func speaking(t *testing.T, name string, f FCGI, servers ...Server) *Backend {
	t.Helper()
	b := backend(name, servers...)
	b.Directives = must[[]Directive](t)(f.Directives())
	b.Options.Check = true
	b.Directives = append(b.Directives, must[Directive](t)(HTTPCheck("GET", "/ping", "")),
		must[Directive](t)(ReplacePath("^/old/(.*)", `/new/\1`)))
	SortDirectives(b.Directives)
	return b
}

// TestServersSpeakFastCGI has a backend in the files, one without servers there, and one that comes later.
func TestServersSpeakFastCGI(t *testing.T) {
	withThose(t, func(p picture) bool { return p.atLeast3(0) }, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		f := FCGI{Root: "/srv/app", Index: "index.php", Params: []FCGIParam{
			{"APP", "a%% 'b' %[method] " + FCGIURI},
			{"EMPTY", ""},
			{"HTTP_PROXY", ""},
			{"HTTP_X_MODE", "ours"},
			{"REQUEST_URI", FCGIURI},
			{"SCRIPT_FILENAME", "/other" + FCGIScript},
		}}
		a := speaking(t, "a", f, scripts(t))
		cfg := r.config(a, speaking(t, "b", f))
		r.settle(cfg, states(cfg, Open))
		b := speaking(t, "b", f, scripts(t))
		cfg = r.config(a, b)
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Errorf("a server that comes: %+v", res)
		}
		c := speaking(t, "c", f, scripts(t))
		cfg = r.config(a, b, c)
		r.eventually("c is there", func() bool {
			r.apply(cfg, states(cfg, Open))
			got, err := r.try("c.test", "/")
			return err == nil && strings.HasPrefix(got, "GET / ")
		})
		if res := r.apply(cfg, states(cfg, Open)); res.Commands > 0 {
			t.Errorf("again: got %+v, want nothing to do", res)
		}
		for _, host := range []string{"a.test", "b.test", "c.test"} {
			q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/old/x%20y/?q=%2f",
				strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			q.Header = http.Header{
				"Proxy": {"evil"}, "X-Mode": {"theirs"}, "x_mode": {"theirs"}, "X-Other": {"theirs"},
			}
			answer, err := r.client("").Do(q)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			const want = "POST /old/x%20y/?q=%2f body\nDOCUMENT_ROOT=/srv/app\n" +
				"SCRIPT_FILENAME=/other/new/x y/index.php\nAPP=a% 'b' POST /old/x%20y/?q=%2f\nEMPTY=\nProxy=\n" +
				"X-Mode=ours\nX-Other=theirs\n"
			if string(got) != want {
				t.Errorf("%s: got\n%swant\n%s", host, got, want)
			}
			for path, want := range map[string]int{
				"/a/../b": 400, "/a/%2e%2E": 400, "/./a": 400, "/a%0ab": 400, "/a%00b": 400,
				"/a..b/.well-known/...": 200, "/%252e%252e/": 200,
			} {
				if status, _ := ask(t, r.client(""), "http://"+host+path); status != want {
					t.Errorf("%s%s: %d, want %d", host, path, status, want)
				}
			}
		}
		r.eventually("the checks of all servers succeed", func() bool {
			servers, err := byID(r.p.Servers())
			up := slices.Collect(maps.Values(servers))
			return err == nil && len(up) == 3 && !slices.ContainsFunc(up, func(l Live) bool { return l.Check != Up })
		})

		// b and c go.
		cfg = r.config(a)
		r.eventually("they are gone", func() bool {
			r.apply(cfg, states(cfg, Open))
			servers, err := byID(r.p.Servers())
			return err == nil && len(servers) == 1
		})
		r.later()
		r.settle(cfg, states(cfg, Open))
		if got := r.get("a.test", "/"); !strings.HasPrefix(got, "GET / ") {
			t.Errorf("got %q", got)
		}
	})
}

// TestFastCGINeedsAHAProxyThatSurvivesIt has HAProxy's own answer.
func TestFastCGINeedsAHAProxyThatSurvivesIt(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		verdicts, err := r.p.Vet(t.Context(), []Question{FCGISupport()})
		if err != nil {
			t.Fatal(err)
		}
		old := strings.Contains(t.Name(), "2.6")
		switch why := verdicts[FCGISupport().Part()].Why; {
		case !old && why != "":
			t.Error(why)
		case old && !strings.Contains(why, "it is before 3.0"):
			t.Errorf("got %q, want a refusal", why)
		}
	})
}

func TestAnFCGIThatIsNone(t *testing.T) {
	for _, f := range []FCGI{
		{Root: ""},
		{Root: "srv"},
		{Root: "/a b"},
		{Root: "/a\nb"},
		{Root: "/a'"},
		{Root: "/%[src]"},
		{Root: "/a", Index: "../x"},
		{Root: "/a", Index: "a/b"},
		{Root: "/a", Index: "a)"},
		{Root: "/a", Index: ".x"},
		{Root: "/a", Params: []FCGIParam{{"A B", "x"}}},
		{Root: "/a", Params: []FCGIParam{{"", "x"}}},
		{Root: "/a", Params: []FCGIParam{{"A", "a\nb"}}},
		{Root: "/a", Params: []FCGIParam{{"A", "%[env(HOME)]"}}},
		{Root: "/a", Params: []FCGIParam{{"A", "%[var(txn.x)]"}}},
		{Root: "/a", Params: []FCGIParam{{"A", "%[" + FCGIScript + "]"}}},
		{Root: "/a", Params: []FCGIParam{{"A", strings.Repeat("x", 1025)}}},
	} {
		if got, err := f.Directives(); err == nil {
			t.Errorf("%+v: got %v", f, got)
		}
	}
}
