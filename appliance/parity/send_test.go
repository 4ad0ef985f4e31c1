package parity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A server is a place that notes what it is asked.
type server struct {
	*httptest.Server
	sync.Mutex

	asked []string // "METHOD HOST TARGET", and the name in TLS
	leaks []string // headers that no request may have
}

// serve starts a server. An answer may be nil for 200.
func serve(t *testing.T, secure bool, answer http.HandlerFunc) *server {
	t.Helper()
	p := &server{}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Lock()
		line := r.Method + " " + r.Host + " " + r.RequestURI
		if r.TLS != nil {
			line += " " + r.TLS.ServerName
		}
		p.asked = append(p.asked, line)
		for _, name := range []string{"Authorization", "Cookie", "Referer"} {
			if r.Header.Get(name) != "" {
				p.leaks = append(p.leaks, name)
			}
		}
		p.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	if secure {
		p.StartTLS()
	} else {
		p.Start()
	}
	t.Cleanup(p.Close)
	return p
}

// heard returns what a server was asked.
func (p *server) heard() []string {
	p.Lock()
	defer p.Unlock()
	return slices.Clone(p.asked)
}

// ticks allows a number of requests at once.
func ticks(n int) <-chan time.Time {
	c := make(chan time.Time, n)
	for range n {
		c <- time.Time{}
	}
	return c
}

// send sends the requests of a log to two places.
func send(t *testing.T, log string, before, now *server, change func(*Sending)) Sent {
	t.Helper()
	s := Sending{Headers: UsualHeaders, Most: 100, Timeout: time.Minute, Tick: ticks(100)}
	var err error
	if s.Before, err = ParsePlace(before.URL); err != nil {
		t.Fatal(err)
	}
	if s.Now, err = ParsePlace(now.URL); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&s)
	}
	out, err := Send(t.Context(), strings.NewReader(log), s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// line returns a line of a log in JSON.
func line(method, host, uri string) string {
	return fmt.Sprintf(`{"host":%q,"uri":%q,"status":200,"method":%q}`+"\n", host, uri, method)
}

// differences returns the groups as lines.
func differences(s *Sent) (all []string) {
	for _, d := range s.Groups {
		all = append(all, fmt.Sprintf("%s %s %q %q %d %d %s", d.Host, d.What, d.Before, d.Now, d.Requests, d.Lines,
			d.Example))
	}
	return all
}

// TestOnlySafeRequestsOfALogAreSent checks what reaches the two places, and that nothing secret does.
func TestOnlySafeRequestsOfALogAreSent(t *testing.T) {
	for _, secure := range []bool{false, true} {
		before, now := serve(t, secure, nil), serve(t, secure, nil)
		scheme, other := "http", "https"
		if secure {
			scheme, other = other, scheme
		}
		log := line("GET", "a.example", "/x?token=secret") + line("GET", "a.example", "/x?token=other") +
			line("HEAD", "b.example", "/%2F//../y%20z") + line("POST", "a.example", "/x") +
			line("DELETE", "a.example", "/x") + "\x00\x01\n" + line("GET", "", "/x") +
			line("GET", "a.example", "/\r\nX-Evil: 1") + line("GET", "a.example", "/%zz") + line("GET", "*.example", "/") +
			`{"host":"c.example","uri":"/","status":200,"method":"GET","scheme":"` + other + `"}` + "\n" +
			`{"host":"d.example","uri":"/","status":200,"method":"GET","scheme":"` + scheme + `"}` + "\n" +
			`192.0.2.1 - bob [10/Oct/2026:13:55:36 +0000] "GET http://e.example/q HTTP/1.1" 200 1 "http://r/?s=1" "x"` + "\n" +
			`{"host":"f.example","uri":"/","status":400,"method":"GET"}` + "\n" + strings.Repeat("x", MaxLine+10) + "\n"
		got := send(t, log, before, now, nil)
		tls := func(host string) string {
			if secure {
				return " " + host
			}
			return ""
		}
		want := []string{
			"GET a.example /x" + tls("a.example"), "HEAD b.example /%2F//../y%20z" + tls("b.example"),
			"GET d.example /" + tls("d.example"),
		}
		sent := Sent{
			Lines: 15, Unreadable: 2, Hostless: 1, Gone: 1, Unsafe: 2, OtherPort: 1, Unsendable: 3, Requests: 3, Same: 3,
		}
		if secure {
			sent.OtherPort = 2 // that of e.example, too
		} else {
			want, sent.Requests, sent.Same = append(want, "GET e.example /q"), 4, 4
		}
		for _, p := range []*server{before, now} {
			if diff := cmp.Diff(want, p.heard()); diff != "" || len(p.leaks) > 0 {
				t.Errorf("TLS %t: %v; want (-), got (+):\n%s", secure, p.leaks, diff)
			}
		}
		got.Groups, got.index = nil, nil
		if diff := cmp.Diff(sent, got, cmp.AllowUnexported(Sent{})); diff != "" {
			t.Errorf("TLS %t: want (-), got (+):\n%s", secure, diff)
		}
	}
}

// TestAnswersThatDifferAreFound compares places that answer in different ways.
func TestAnswersThatDifferAreFound(t *testing.T) {
	header := func(name, value string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(name, value) }
	}
	to := func(status int, url string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", url)
			w.WriteHeader(status)
		}
	}
	for name, tt := range map[string]struct {
		before, now http.HandlerFunc
		want        []string
	}{
		"statuses": {
			before: nil, now: http.NotFound,
			want: []string{`a.example status "200" "404" 2 3 GET /1`},
		},
		"redirects": {
			before: to(301, "https://a.example/new"), now: to(301, "/new"),
			want: []string{`a.example Location "https://a.example/new" "http://a.example/new" 2 3 GET /1`},
		},
		"redirects to the usual port": {before: to(308, "https://a.example:443/"), now: to(308, "https://a.example/")},
		"secrets in a redirect": {
			before: to(302, "https://sso.example/start?state=s1&rd=x"), now: to(302, "https://sso.example/?rd=y&state=s2"),
			want: []string{
				`a.example Location "https://sso.example/start?rd&state" "https://sso.example/?rd&state" 2 3 GET /1`,
			},
		},
		"the type of the page beside a redirect": {
			before: func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				to(308, "https://a.example/")(w, r)
			}, now: to(308, "https://a.example/"),
		},
		"the same page with another state": {before: to(302, "/login?state=1"), now: to(302, "/login?state=2")},
		"a header": {
			before: header("Strict-Transport-Security", "max-age=1"), now: nil,
			want: []string{`a.example Strict-Transport-Security "max-age=1" "" 2 3 GET /1`},
		},
		"a header that nobody chose": {before: header("X-Request-Id", "1"), now: header("X-Request-Id", "2")},
		"values of cookies":          {before: header("Set-Cookie", "id=1"), now: header("Set-Cookie", "id=2")},
		"names of cookies": {
			before: header("Set-Cookie", "id=1"), now: header("Set-Cookie", "lb=2"),
			want: []string{`a.example Set-Cookie "id" "lb" 2 3 GET /1`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := line("GET", "a.example", "/1") + line("GET", "a.example", "/2") + line("GET", "a.example", "/2")
			got := send(t, log, serve(t, false, tt.before), serve(t, false, tt.now), func(s *Sending) {
				s.Headers = append(slices.Clone(UsualHeaders), "set-cookie")
			})
			if diff := cmp.Diff(tt.want, differences(&got)); diff != "" || got.Same+got.Different != 2 ||
				got.Different > 0 != (tt.want != nil) {
				t.Errorf("%d same, %d different; want (-), got (+):\n%s", got.Same, got.Different, diff)
			}
			text, err := json.Marshal(got)
			for _, secret := range []string{"s1", "s2", "x-secret"} {
				if err != nil || strings.Contains(string(text), secret) {
					t.Errorf("%v, %q is in %s", err, secret, text)
				}
			}
		})
	}
}

// TestACertificateForAnotherHostIsADifference asks places with a certificate for example.com.
func TestACertificateForAnotherHostIsADifference(t *testing.T) {
	before, now := serve(t, true, nil), serve(t, true, nil)
	got := send(t, line("GET", "example.com", "/")+line("GET", "a.example", "/"), before, now, nil)
	if got.Same != 2 {
		t.Errorf("the same certificate: %+v", got)
	}
	other := httptest.NewTLSServer(nil)
	t.Cleanup(other.Close)
	s := Sent{index: map[difference]int{}}
	s.compare(request{"GET", "a.example", "/"}, 1, reply{status: 200, trusted: true}, reply{status: 200})
	if diff := cmp.Diff([]string{`a.example certificate "for the host" "not for the host" 1 1 GET /`},
		differences(&s)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestAPlaceThatDoesNotAnswerIsADifference closes one of two places, and both.
func TestAPlaceThatDoesNotAnswerIsADifference(t *testing.T) {
	before, now := serve(t, false, nil), serve(t, false, nil)
	now.Close()
	got := send(t, line("GET", "a.example", "/"), before, now, nil)
	if len(got.Groups) != 1 || got.Groups[0].Before != "200" || !strings.HasPrefix(got.Groups[0].Now, "none: ") ||
		got.Different != 1 {
		t.Errorf("one: %+v", got)
	}
	before.Close()
	if got = send(t, line("GET", "a.example", "/"), before, now, nil); got.Unanswered != 1 || got.Same != 0 {
		t.Errorf("both: %+v", got)
	}
	slow := serve(t, false, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	got = send(t, line("GET", "a.example", "/"), slow, slow, func(s *Sending) { s.Timeout = time.Millisecond })
	if got.Unanswered != 1 {
		t.Errorf("slow: %+v", got)
	}
}

// TestRequestsWaitForTicks gives fewer ticks than the log has requests, and a bound.
func TestRequestsWaitForTicks(t *testing.T) {
	var log strings.Builder
	for i := range 50 {
		log.WriteString(line("GET", "a.example", fmt.Sprintf("/%d", i)))
	}
	before, now := serve(t, false, nil), serve(t, false, nil)
	if got := send(t, log.String(), before, now, func(s *Sending) { s.Most = 20 }); got.Requests != 20 ||
		got.Beyond != 30 || len(before.heard()) != 20 || len(now.heard()) != 20 {
		t.Errorf("%d requests, %d beyond", got.Requests, got.Beyond)
	}
	before, now = serve(t, false, nil), serve(t, false, nil)
	ctx, cancel := context.WithCancel(t.Context())
	tick := make(chan time.Time)
	done := make(chan error)
	first, second := mustParse(t, before.URL), mustParse(t, now.URL)
	go func() {
		_, err := Send(ctx, strings.NewReader(log.String()), Sending{
			Before: first, Now: second, Most: 50, Timeout: time.Minute, Tick: tick,
		})
		done <- err
	}()
	for range 3 {
		tick <- time.Time{}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(before.heard()) > 3 || len(now.heard()) > 3 {
		t.Errorf("%d and %d requests with 3 ticks", len(before.heard()), len(now.heard()))
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := ParsePlace(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAPlaceIsASchemeAndAnAddress(t *testing.T) {
	for text, good := range map[string]bool{
		"http://192.0.2.1": true, "https://[2001:db8::1]:8443": true, "https://lb.example/": true,
		"192.0.2.1": false, "ftp://x": false, "http://": false, "http://u:p@x": false, "http://x/path": false,
		"http://x?a": false, "http://x y": false, "": false,
	} {
		if _, err := ParsePlace(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
