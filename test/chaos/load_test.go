package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// served returns clients of a server on loopback that also speaks TLS.
func served(t *testing.T, answer http.HandlerFunc) *clients {
	t.Helper()
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	at := map[string]string{"80": plain.Listener.Addr().String(), "443": secure.Listener.Addr().String()}
	return newClients("test.local", func(ctx context.Context, port string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", at[port])
	})
}

// echo answers with the request line.
func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s\n", r.Method, r.RequestURI, r.Proto)
}

// hijack closes the connection without an answer, with or without a reset.
func hijack(reset bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		if tcp, ok := conn.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}

func TestWhatBecomesOfARequestIsCountedForWhatItIs(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string // reason, or empty if it is good
	}{
		"good":                  {echo, ""},
		"an error of the proxy": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "503"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/", http.StatusFound)
		}, "302"},
		"the answer to another": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "GET /?n=77 HTTP/1.1")
		}, "wrong answer"},
		"closed without a word": {hijack(false), "closed"},
		"reset":                 {hijack(true), "reset"},
		"broken off in its midst": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "GET")
		}, "closed"},
	} {
		t.Run(name, func(t *testing.T) {
			clients := served(t, c.answer)
			p := newPhase(name)
			// Both methods, on kept and on new connections. There is no TLS, because its
			// library has other words for the end of a connection.
			for _, n := range []int{1, 4, 5, 20} {
				p.add(clients.request(n, time.Now()))
			}
			r := p.end()
			for _, method := range []string{"GET", "POST"} {
				got := r.Classes[method]
				if got == nil || got.Sent != 2 {
					t.Fatalf("%s: got %+v, want two sent", method, got)
				}
				if want := map[bool]int{true: 2}[c.want != ""]; got.failures() != want || got.Failed[c.want] != want {
					t.Errorf("%s: failed %v, want %d of %q", method, got.Failed, want, c.want)
				}
			}
			if (len(r.First) > 0) != (c.want != "") {
				t.Errorf("first failures: %q", r.First)
			}
		})
	}
}

// A silent second attempt, as browsers make it, would hide failures.
func TestNoPostIsSentTwice(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	clients := served(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.RequestURI]++
		n := len(seen)
		mu.Unlock()
		if n%2 == 0 { // on a connection that has served before
			hijack(true)(w, r)
			return
		}
		echo(w, r)
	})
	for _, n := range []int{5, 10, 25, 35, 50} {
		clients.request(n, time.Now())
	}
	for uri, n := range seen {
		if n > 1 {
			t.Errorf("%s was sent %d times", uri, n)
		}
	}
}

func TestABoundThatDoesNotHoldIsNamed(t *testing.T) {
	good := report{Gap: 20, Classes: map[string]*tally{
		"GET": {Sent: 10, Max: 30}, "POST": {Sent: 5}, "websocket": {Sent: 1}, "download": {Sent: 1},
	}}
	strict := bounds{
		gets: true, posts: true, lasting: true, slowest: time.Second, gap: time.Second,
		settled: time.Second,
	}
	for name, c := range map[string]struct {
		spoil  func(*result, *report)
		bounds bounds
		want   string // empty: all held
	}{
		"nothing happened": {func(*result, *report) {}, strict, ""},
		"a GET failed": {func(_ *result, r *report) {
			r.Classes["GET"].Failed = map[string]int{"503": 1}
		}, strict, "1 GETs failed"},
		"it may fail": {func(_ *result, r *report) {
			r.Classes["GET"].Failed = map[string]int{"503": 1}
		}, bounds{}, ""},
		"a POST failed": {func(_ *result, r *report) {
			r.Classes["POST"].Failed = map[string]int{"reset": 2}
		}, strict, "2 POSTs failed"},
		"a WebSocket was cut": {func(_ *result, r *report) {
			r.Classes["websocket"].Failed = map[string]int{"closed": 1}
		}, strict, "1 lasting"},
		"a GET was slow":    {func(_ *result, r *report) { r.Classes["GET"].Max = 1500 }, strict, "took 1500 ms"},
		"nobody was served": {func(_ *result, r *report) { r.Gap = 1200 }, strict, "no good answer for 1200 ms"},
		"nobody asked": {func(_ *result, r *report) {
			delete(r.Classes, "GET")
		}, bounds{}, "nothing was asked"},
		"it took long":         {func(x *result, _ *report) { x.Settled = 2000 }, strict, "settled after 2000 ms"},
		"open without a route": {func(x *result, _ *report) { x.Exposed = 1 }, bounds{}, "open without a route"},
		"as the fault has it":  {func(x *result, _ *report) { x.Exposed = 1 }, bounds{inflicted: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			r.Classes = map[string]*tally{}
			for class, t := range good.Classes {
				same := *t
				r.Classes[class] = &same
			}
			x := result{}
			c.spoil(&x, &r)
			x.Report = r
			x.judge(c.bounds, nil, "app/s")
			if got := strings.Join(x.Broken, "; "); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
