package haproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A ledger is a server that notes each request: a line with its method, URL, host and body.
type ledger struct {
	Server
	mu   sync.Mutex
	seen []*http.Request
	said []string
	come chan struct{} // receives for each request, before its body is read
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{come: make(chan struct{}, 1000)}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		l.come <- struct{}{}
		body, _ := io.ReadAll(q.Body)
		text := string(body)
		if len(text) > 20 {
			text = fmt.Sprint(len(text), " bytes")
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.seen, l.said = append(l.seen, q), append(l.said, strings.Join([]string{q.Method, q.RequestURI, q.Host, text}, " "))
	}))
	t.Cleanup(s.Close)
	l.Server = serverAt(s.Listener.Addr())
	return l
}

// lines returns the lines so far.
func (l *ledger) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// header returns the header of the request of a line.
func (l *ledger) header(line string) http.Header {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[slices.Index(l.said, line)].Header
}

// copying returns a backend whose requests are copied for a tenant, and one for each target.
func copying(t *testing.T, name, tenant string, server Server, targets ...Server) (all []*Backend) {
	t.Helper()
	var copies []Copy
	for i, target := range targets {
		b := backend(fmt.Sprintf("%s-copy%d", name, i), target)
		b.Directives = append([]Directive{Option("forwardfor", true)}, CopyTarget()...)
		copies, all = append(copies, Copy{Backend: b.Name, Tenant: tenant, Part: 1, Of: 1}), append(all, b)
	}
	b := backend(name, server)
	b.Directives = []Directive{
		must[Directive](t)(SetRequestHeader("X-Set", "a b")), must[Directive](t)(SetHost("set.test")),
		must[Directive](t)(Mirror(copies)),
	}
	return append(all, b)
}

func TestARequestIsCopiedAndNeverWaitsForTheCopy(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app, one, two := newLedger(t), newLedger(t), newLedger(t)
		mute, again := newMute(t), copying(t, "again", "c/shop", refusing(t), two.Server)
		last := again[len(again)-1]
		last.Directives = append(last.Directives, must[Directive](t)(Retry(1, true, []int{503})))
		SortDirectives(last.Directives)
		cfg := r.config(slices.Concat(copying(t, "app", "c/shop", app.Server, one.Server, two.Server),
			copying(t, "evil", "c/evil", app.Server, mute.Server), again)...)
		cfg.Routes = slices.DeleteFunc(cfg.Routes, func(r *Route) bool { return strings.Contains(r.Backend, "-copy") })
		cfg.Extras, cfg.Tune.Threads = []*Extra{MirrorScript()}, 1
		r.settle(cfg, states(cfg, Open))
		client := r.client("")
		send := func(method, url string, body io.Reader, headers ...string) {
			t.Helper()
			request, err := http.NewRequestWithContext(t.Context(), method, url, body)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range headers {
				name, value, _ := strings.Cut(h, ": ")
				request.Header.Add(name, value)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("%s %s: status %d", method, url, response.StatusCode)
			}
		}
		text := func(s string) io.Reader { return strings.NewReader(s) }

		send("POST", "http://app.test/a?b=c", text("a body"), "X-A: 1", "X-A: 2", "X-Sallyport-Backend: evil",
			"X_Sallyport_Source: 192.0.2.1", "X-Sallyport-Secret: x", "Cookie: s=1")
		const line = "POST /a?b=c set.test a body"
		for _, l := range []*ledger{app, one, two} {
			r.eventually("the request arrives", func() bool { return slices.Contains(l.lines(), line) })
			h := l.header(line)
			got := fmt.Sprint(h["X-A"], h["X-Set"], h["Cookie"], h["X-Forwarded-Proto"])
			if got != "[1 2] [a b] [s=1] [http]" {
				t.Errorf("the server saw %s", got)
			}
		}
		if h := one.header(line); fmt.Sprint(h["X-Forwarded-For"]) != "[127.0.0.1]" ||
			fmt.Sprint(h["X-Sallyport-Backend"], h["X-Sallyport-Secret"], h["X_sallyport_source"]) != "[] [] []" {
			t.Errorf("the copy has the header %q", h)
		}

		// Not copied: what is large, or asks for another protocol.
		send("PUT", "http://app.test/large", text(strings.Repeat("x", 100_000)))
		send("PUT", "http://app.test/odd", io.MultiReader(text("a"), text("b")))
		send("GET", "http://app.test/up", nil, "Upgrade: other", "Connection: upgrade")
		send("PUT", "http://app.test/fits", text(strings.Repeat("x", 16000)))
		client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
		send("PUT", "https://app.test/h2", text("by h2"))
		want := []string{line, "PUT /odd set.test ab", "PUT /fits set.test 16000 bytes", "PUT /h2 set.test by h2"}
		r.eventually("the copies arrive", func() bool { return len(one.lines()) >= len(want) })
		if got := one.lines(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
			t.Errorf("copied: %q, want %q", got, want)
		}

		r.holdsUpNobody(t, client, mute)
		send("GET", "http://app.test/beside", nil)
		r.eventually("another tenant's copy arrives", func() bool {
			return slices.Contains(one.lines(), "GET /beside set.test ")
		})

		r.slowBody(app)

		send("GET", "http://again.test/again", nil)
		r.eventually("a request that is repeated is copied", func() bool {
			return slices.Contains(two.lines(), "GET /again set.test ")
		})

		// A server gets copies only while it is open.
		closed := states(cfg, Open)
		for id := range closed {
			if strings.HasPrefix(id.Backend, "app-copy") {
				closed[id] = Closed
			}
		}
		r.settle(cfg, closed)
		before := len(one.lines())
		send("GET", "http://app.test/closed", nil)
		r.settle(cfg, states(cfg, Open))
		send("GET", "http://app.test/open", nil)
		r.eventually("the copy arrives", func() bool { return slices.Contains(one.lines(), "GET /open set.test ") })
		if got := one.lines()[before:]; slices.Contains(got, "GET /closed set.test ") {
			t.Errorf("a closed server got %q", got)
		}

		r.admitsNoStranger("mirror")
	})
}

func TestACopyHasAnotherHostPathAndNoBodyAsAsked(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app, one := newLedger(t), newLedger(t)
		all := copying(t, "app", "c/shop", app.Server, one.Server)
		last := all[len(all)-1]
		last.Directives = append(last.Directives, must[Directive](t)(ReplacePath("^/a", "/b")),
			must[Directive](t)(CopyAs("copy.test:81", "/x%%20%[pathq]", true)))
		SortDirectives(last.Directives)
		cfg := r.config(all...)
		cfg.Routes = slices.DeleteFunc(cfg.Routes, func(r *Route) bool { return strings.Contains(r.Backend, "-copy") })
		cfg.Extras = []*Extra{MirrorScript()}
		r.settle(cfg, states(cfg, Open))
		body := strings.NewReader(strings.Repeat("x", 100_000))
		request, err := http.NewRequestWithContext(t.Context(), "PUT", "http://app.test/a?b", body)
		if err != nil {
			t.Fatal(err)
		}
		response, err := r.client("").Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		const line = "PUT /x%20/a?b copy.test:81 "
		r.eventually("the copy arrives", func() bool { return slices.Contains(one.lines(), line) })
		if got := app.lines(); !slices.Equal(got, []string{"PUT /b?b set.test 100000 bytes"}) {
			t.Errorf("the server saw %q", got)
		}
	})
}

// refusing returns a server that answers the first request with 503.
func refusing(t *testing.T) Server {
	t.Helper()
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() { w.WriteHeader(http.StatusServiceUnavailable) })
	}))
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

// A muteServer takes requests and never answers. It counts its connections.
type muteServer struct {
	Server
	mu    sync.Mutex
	count int
}

func newMute(t *testing.T) *muteServer {
	t.Helper()
	m := new(muteServer)
	m.Server = serving(t, func(conn net.Conn) {
		m.mu.Lock()
		m.count++
		m.mu.Unlock()
		_, _ = io.Copy(io.Discard, conn)
	})
	return m
}

func (m *muteServer) connections() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// holdsUpNobody sends requests whose copies get no answer. One tenant has 16 copies under way in a
// thread.
func (r *rig) holdsUpNobody(t *testing.T, client *http.Client, mute *muteServer) {
	t.Helper()
	began := time.Now()
	for range 100 {
		if status, _ := ask(t, client, "http://evil.test/"); status != http.StatusOK {
			t.Fatalf("a request whose copy gets no answer: status %d", status)
		}
	}
	// Those that ended made room for others.
	most := 16 * (1 + int(time.Since(began)/(5*time.Second)))
	r.eventually("copies reach the server", func() bool { return mute.connections() >= 16 })
	if got := mute.connections(); got > most {
		t.Errorf("%d copies under way at once, want at most %d", got, most)
	}
}

// slowBody sends the body of a request only when the server has seen the request.
func (r *rig) slowBody(app *ledger) {
	r.t.Helper()
	for len(app.come) > 0 {
		<-app.come
	}
	conn, err := net.Dial("tcp", r.http.String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "PUT /slow HTTP/1.1\r\nhost: app.test\r\ncontent-length: 4\r\n\r\n")
	<-app.come
	_, _ = io.WriteString(conn, "body")
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		r.t.Errorf("a request whose body is late: %q, %v, want 200", line, err)
	}
}
