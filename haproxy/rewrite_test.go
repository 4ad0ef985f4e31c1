package haproxy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPathsAndAddressesChangeAsAsked(t *testing.T) {
	type row struct{ path, want string }
	table := []struct {
		name string
		make func() (Directive, error)
		rows []row
	}{
		{"full", PathChange{To: "/it's\\1%[src]"}.Directive, []row{{"/a/b?c=d", `/it's\1%[src]?c=d`}, {"/", `/it's\1%[src]`}}},
		{"prefix", PathChange{Prefix: "/p", To: "/to"}.Directive, []row{
			{"/p", "/to"}, {"/p/", "/to/"}, {"/p/x/y?q", "/to/x/y?q"}, {"/px", "/px"},
		}},
		{"prefix and slashes", PathChange{Prefix: "/p/", To: "/to/"}.Directive, []row{{"/p", "/to"}, {"/p/x", "/to/x"}}},
		{"prefix to root", PathChange{Prefix: "/p", To: "/"}.Directive, []row{
			{"/p", "/"}, {"/p/", "/"}, {"/p/x?q", "/x?q"}, {"/px", "/px"},
		}},
		{"root to prefix", PathChange{Prefix: "/", To: "/to"}.Directive, []row{{"/", "/to/"}, {"/x", "/to/x"}}},
		{"a strange prefix", PathChange{Prefix: "/a.(b", To: `/\1'`}.Directive, []row{{"/a.(b/x", `/\1'/x`}, {"/aa(b/x", "/aa(b/x"}}},
		{"code", Redirection{Host: "other.test", Code: 301}.Directive, []row{{"/x?y", "301 http://other.test:PORT/x?y"}}},
		{"scheme", Redirection{Scheme: "https", Code: 302}.Directive, []row{{"/x", "302 https://scheme.test/x"}}},
		{"scheme and port", Redirection{Scheme: "https", Port: 8443, Code: 307}.Directive, []row{
			{"/x", "307 https://scheme-and-port.test:8443/x"},
		}},
		{"usual port", Redirection{Scheme: "https", Port: 443, Code: 308}.Directive, []row{{"/", "308 https://usual-port.test/"}}},
		{"port 80", Redirection{Port: 80, Code: 302}.Directive, []row{{"/", "302 http://port-80.test/"}}},
		{"plain port 443", Redirection{Port: 443, Code: 302}.Directive, []row{{"/", "302 http://plain-port-443.test:443/"}}},
		{"host and path", Redirection{Host: "o.test", Port: 81, Path: PathChange{Prefix: "/p", To: "/t%"}, Code: 303}.Directive, []row{
			{"/p/x?y", "303 http://o.test:81/t%/x?y"},
		}},
		{"all", Redirection{Scheme: "http", Host: "o.test", Path: PathChange{To: "/"}, Code: 302}.Directive, []row{
			{"/p/x?y", "302 http://o.test/?y"},
		}},
	}
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		server := heads(t)
		cfg := &Config{Shape: Shape{Listeners: []Listener{{At: r.http, Kind: ListenHTTP}}}}
		for i, one := range table {
			d, err := one.make()
			if err != nil {
				t.Fatalf("%s: %v", one.name, err)
			}
			b := backend(fmt.Sprintf("b%02d", i), server)
			b.Directives = []Directive{d}
			cfg.Backends = append(cfg.Backends, b)
			cfg.Routes = append(cfg.Routes, &Route{
				Scope: ScopeOf(r.http), Host: strings.ToLower(strings.ReplaceAll(one.name, " ", "-")) + ".test", Path: "/",
				Match: Prefix, To: To(b.Name),
			})
		}
		r.settle(cfg, states(cfg, Open))
		for _, one := range table {
			host := strings.ReplaceAll(one.name, " ", "-") + ".test"
			for _, c := range one.rows {
				got := r.get(host, c.path)
				if line, _, is := strings.Cut(got, " HTTP/"); is {
					_, got, _ = strings.Cut(line, " ")
				}
				if want := strings.ReplaceAll(c.want, "PORT", fmt.Sprint(r.http.Port())); got != want {
					t.Errorf("%s: %s: got %q, want %q", one.name, c.path, got, want)
				}
			}
		}
	})
}

// TestAnswersOfServersChangeAsAsked has a server that answers with the headers that the query names.
func TestAnswersOfServersChangeAsAsked(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		maps.Copy(w.Header(), http.Header(q.URL.Query()))
	}))
	t.Cleanup(server.Close)
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := &Config{Shape: Shape{Listeners: []Listener{{At: r.http, Kind: ListenHTTP}}}}
		b := backend("b", serverAt(server.Listener.Addr()))
		b.Directives = []Directive{
			must[Directive](t)(ReplaceCookiePath("/o.e/", "/1%/")), must[Directive](t)(ReplaceCookieDomain(".In.test", "1.test")),
			must[Directive](t)(ReplaceLocation("http://in.test:8080/", "https://out.test/%/")),
		}
		cfg.Backends = []*Backend{b}
		cfg.Routes = []*Route{{Scope: ScopeOf(r.http), Host: "a.test", Path: "/", Match: Prefix, To: To(b.Name)}}
		r.settle(cfg, states(cfg, Open))
		many := strings.Repeat("; path", 1500)
		for _, tt := range []struct{ header, value, want string }{
			{"Set-Cookie", "a=b; Path=/o.e/x", "a=b; Path=/1%/x"},
			{"Set-Cookie", "a=b;path=/o.e/", "a=b;path=/1%/"},
			{"Set-Cookie", "a=b; Secure; Path=/o.e/x; Domain=x.test", "a=b; Secure; Path=/1%/x; Domain=x.test"},
			{"Set-Cookie", "a=b; Path=/one/x", "a=b; Path=/one/x"},
			{"Set-Cookie", "a=b; Path=/x/o.e/", "a=b; Path=/x/o.e/"},
			{"Set-Cookie", "Path=/o.e/; SomePath=/o.e/", "Path=/o.e/; SomePath=/o.e/"},
			{"Set-Cookie", "a=b; DOMAIN=in.TEST; Path=/o.e/", "a=b; DOMAIN=1.test; Path=/1%/"},
			{"Set-Cookie", "a=b; Domain=.in.test", "a=b; Domain=.1.test"},
			{"Set-Cookie", "a=b; Domain=x.in.test", "a=b; Domain=x.in.test"},
			{"Set-Cookie", "a=b; Domain=in.test.x", "a=b; Domain=in.test.x"},
			{"Set-Cookie", "a='\\" + many + "; Domain=in.test", "a='\\" + many + "; Domain=1.test"},
			{"Location", "http://in.test:8080/x?http://in.test:8080/", "https://out.test/%/x?http://in.test:8080/"},
			{"Location", "http://in.test:80801/", "http://in.test:80801/"},
			{"Location", "http://in-test:8080/", "http://in-test:8080/"},
			{"Refresh", "5; URL=http://in.test:8080/x", "5; URL=https://out.test/%/x"},
			{"Refresh", "5; url=http://other.test/?url=http://in.test:8080/", "5; url=http://other.test/?url=http://in.test:8080/"},
		} {
			_, header := r.answer("GET", "http://a.test/?"+url.Values{tt.header: {tt.value}}.Encode(), 0)
			if got := header.Get(tt.header); got != tt.want {
				t.Errorf("%s: %.200s: got %.200q, want %.200q", tt.header, tt.value, got, tt.want)
			}
		}
	})
}

func TestChangesThatHAProxyCannotMakeAreRejected(t *testing.T) {
	for name, try := range map[string]func() (Directive, error){
		"nothing":              PathChange{}.Directive,
		"no slash":             PathChange{To: "x"}.Directive,
		"a space":              PathChange{To: "/a b"}.Directive,
		"a line break":         PathChange{Prefix: "/a\nb", To: "/"}.Directive,
		"a NUL":                PathChange{To: "/a\x00"}.Directive,
		"a query":              PathChange{To: "/a?b"}.Directive,
		"a bad status":         Redirection{Code: 200}.Directive,
		"a bad scheme":         Redirection{Code: 301, Scheme: "javascript"}.Directive,
		"a host with a line":   Redirection{Code: 301, Host: "a\nb"}.Directive,
		"a host with a sample": Redirection{Code: 301, Host: "%[src]"}.Directive,
		"a cookie's attribute": func() (Directive, error) { return ReplaceCookiePath("/", "/; Secure") },
		"a cookie's quote":     func() (Directive, error) { return ReplaceCookiePath("/'", "/") },
		"a cookie's path":      func() (Directive, error) { return ReplaceCookiePath("/", "/\n") },
		"a cookie's group":     func() (Directive, error) { return ReplaceCookiePath("/", `/\2`) },
		"a cookie's domain":    func() (Directive, error) { return ReplaceCookieDomain("a.test", "*.test") },
		"no domain":            func() (Directive, error) { return ReplaceCookieDomain(".", "a.test") },
		"a sample in a URL":    func() (Directive, error) { return ReplaceLocation("http://a", "http://%[src]") },
		"no URL":               func() (Directive, error) { return ReplaceLocation("", "http://a") },
		"a long URL":           func() (Directive, error) { return ReplaceLocation(strings.Repeat("a", 1001), "b") },
		"a status to retry":    func() (Directive, error) { return Retry(3, true, []int{200}) },
		"two words to retry":   func() (Directive, error) { return RetryOn(3, []string{"404 500"}) },
		"too many retries":     func() (Directive, error) { return Retry(1000, true, nil) },
	} {
		if d, err := try(); err == nil {
			t.Errorf("%s: accepted as %s", name, d)
		}
	}
}

func TestHostileValuesStayValues(t *testing.T) {
	hostile := []string{
		`%[src]`, `%%`, `%ci %[env(HOME)]`, `it's "quoted" \"\' \\ \n`, "${HOME} $HOME", "# no comment", "a  b; c | d `e`",
		"}{ if TRUE", "ä€", strings.Repeat("x", 4096),
	}
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := &Config{Shape: Shape{Listeners: []Listener{{At: r.http, Kind: ListenHTTP}}}}
		for i, value := range hostile {
			d, err := SetRequestHeader("X-Set", Literal(value))
			if err != nil {
				t.Fatal(err)
			}
			b := backend(fmt.Sprintf("b%02d", i), heads(t))
			b.Directives = []Directive{d}
			cfg.Backends = append(cfg.Backends, b)
			cfg.Routes = append(cfg.Routes, &Route{
				Scope: ScopeOf(r.http), Host: b.Name + ".test", Path: "/", Match: Prefix, To: To(b.Name),
			})
		}
		r.settle(cfg, states(cfg, Open))
		for i, value := range hostile {
			got := r.get(cfg.Backends[i].Name+".test", "/")
			if !strings.Contains(strings.ToLower(got), "x-set: "+strings.ToLower(value)+"\r\n") {
				t.Errorf("want a header %.100q, got %.300q", value, got)
			}
		}
	})
	for _, value := range []string{"a\nb", "a\rb", "a\x00b", "a\x1bb"} {
		if d, err := SetRequestHeader("X-Set", Literal(value)); err == nil {
			t.Errorf("%q is accepted as %s", value, d)
		}
	}
}

// TestARequestIsSentAgainOnlyIfThatIsSafe has a server that fails for the first requests with a path.
func TestARequestIsSentAgainOnlyIfThatIsSafe(t *testing.T) {
	var seen sync.Map // how many requests with a path
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		count, _ := seen.LoadOrStore(q.URL.Path, new(atomic.Int32))
		n := count.(*atomic.Int32).Add(1)
		_, _ = io.Copy(io.Discard, q.Body)
		fails, _ := strconv.Atoi(q.URL.Query().Get("fails"))
		status, _ := strconv.Atoi(q.URL.Query().Get("status"))
		switch {
		case int(n) > fails:
		case status == 0:
			<-release
		default:
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := &Config{Shape: Shape{Listeners: []Listener{{At: r.http, Kind: ListenHTTP}}}}
		for name, late := range map[string]bool{"late": true, "prompt": false} {
			b := backend(name, serverAt(server.Listener.Addr()))
			b.Directives = []Directive{Timeout("server", 300*time.Millisecond), must[Directive](t)(Retry(2, late, []int{503}))}
			cfg.Backends = append(cfg.Backends, b)
			cfg.Routes = append(cfg.Routes, &Route{
				Scope: ScopeOf(r.http), Host: name + ".test", Path: "/", Match: Prefix, To: To(name),
			})
		}
		slices.SortFunc(cfg.Backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
		r.settle(cfg, states(cfg, Open))
		for name, c := range map[string]struct {
			host, method, query string
			body                int
			status, sent        int
		}{
			"within the retries":          {"late.test", "GET", "fails=2&status=503", 0, 200, 3},
			"beyond the retries":          {"late.test", "GET", "fails=9&status=503", 0, 503, 3},
			"another status":              {"late.test", "GET", "fails=9&status=500", 0, 500, 1},
			"a POST":                      {"late.test", "POST", "fails=2&status=503", 0, 503, 1},
			"a PUT":                       {"late.test", "PUT", "fails=2&status=503", 10, 503, 1},
			"a body":                      {"late.test", "GET", "fails=2&status=503", 1000, 200, 3},
			"a body beyond the buffer":    {"late.test", "GET", "fails=2&status=503", 100_000, 503, 1},
			"no answer in time":           {"late.test", "GET", "fails=2&status=0", 0, 200, 3},
			"no answer, and no more time": {"prompt.test", "GET", "fails=2&status=0", 0, 504, 1},
			"no answer to a POST":         {"late.test", "POST", "fails=2&status=0", 10, 504, 1},
		} {
			path := fmt.Sprintf("/%s/%s", filepath.Base(t.Name()), strings.ReplaceAll(name, " ", "-"))
			status, _ := r.answer(c.method, "http://"+c.host+path+"?"+c.query, c.body)
			count, _ := seen.Load(path)
			if got := int(count.(*atomic.Int32).Load()); status != c.status || got != c.sent {
				t.Errorf("%s: status %d after %d requests, want %d after %d", name, status, got, c.status, c.sent)
			}
		}
	})
}

// answer sends a request with a body of that length, and returns the status and the headers of the answer.
func (r *rig) answer(method, url string, body int) (int, http.Header) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, url, strings.NewReader(strings.Repeat("x", body)))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := r.client("").Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Header
}
