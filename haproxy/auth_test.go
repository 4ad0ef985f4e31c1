package haproxy

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// doorman starts a service that decides by the header X-Who.
func doorman(t *testing.T, seen *atomic.Pointer[http.Request]) Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		switch r.Header.Get("X-Who") {
		case "ann":
			w.Header().Set("X-User", "ann@test")
			w.Header().Add("X-Group", "a")
			w.Header().Add("X-Group", "b")
			w.Header().Add("Set-Cookie", "s=2")
			w.Header().Add("Set-Cookie", "t=3")
		case "":
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.Header().Add("Set-Cookie", "a=1")
			w.Header().Add("Set-Cookie", "b=2")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, strings.Repeat("nobody reads this ", 10_000))
		case "eve":
			w.WriteHeader(http.StatusForbidden)
		case "lost":
			w.Header().Set("Location", "https://login.test/?a=b")
			w.WriteHeader(http.StatusFound)
		case "broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "mute":
			hold, _, _ := w.(http.Hijacker).Hijack()
			_ = hold.Close()
		}
	}))
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

func TestAServiceSaysWhoMayComeIn(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		var asked, served atomic.Pointer[http.Request]
		pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			served.Store(r)
			_, _ = io.WriteString(w, "in")
		}))
		t.Cleanup(pod.Close)
		app, other, signing := backend("app", serverAt(pod.Listener.Addr())),
			backend("other", serverAt(pod.Listener.Addr())), backend("signing", serverAt(pod.Listener.Addr()))
		ask := Ask{
			Backend: "door", Host: "door.ops", Method: "GET", Path: "/check?a='b'",
			Succeed: []string{"X-User", "X-Group"},
		}
		app.Directives = []Directive{must[Directive](t)(ask.Directive())}
		ask.SignIn, ask.Method, ask.Pass, ask.Fail = "https://login.test/?rd=%[url,url_enc]", "", []string{"x-who"},
			[]string{"X-None"}
		signing.Directives = []Directive{must[Directive](t)(ask.Directive())}
		ask.Set = []AskHeader{
			{"X-Auth-Request-Redirect", "https://%[req.hdr(host),lower]/back?%[url_param(to),url_dec]"},
			{"x_team", "a b"},
			{"X-Empty", "%[req.hdr(x-nothing)]"},
		}
		telling := backend("telling", serverAt(pod.Listener.Addr()))
		ask.Pass, ask.SignIn = nil, ""
		telling.Directives = []Directive{must[Directive](t)(ask.Directive())}
		ask.Backend = "gone"
		lost := backend("lost", serverAt(pod.Listener.Addr()))
		lost.Directives = []Directive{must[Directive](t)(ask.Directive())}
		cfg := r.config(app, other, signing, telling, lost, backend("door", doorman(t, &asked)))
		// clients cannot reach the service
		cfg.Routes = slices.DeleteFunc(cfg.Routes, func(r *Route) bool { return r.Backend == "door" })
		cfg.Extras = []*Extra{AskScript()}
		r.apply(cfg, states(cfg, Open))

		client := r.client("")
		client.Jar = nil
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		type reply struct {
			status int
			http.Header
		}
		get := func(address string, headers ...string) reply {
			t.Helper()
			request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, address,
				strings.NewReader("a body"))
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
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			return reply{response.StatusCode, response.Header}
		}
		hold := func(when string) {
			t.Helper()
			for _, c := range []struct {
				address, who string
				want         int
			}{
				{"http://app.test/a", "ann", 200},
				{"http://app.test/a", "", 401},
				{"http://app.test/a", "eve", 403},
				{"http://app.test/a", "lost", 302},
				{"http://app.test/a", "broken", 503},
				{"http://app.test/a", "mute", 503},
				{"https://app.test/a", "ann", 200},
				{"http://signing.test/a?b=c", "", 302},
				{"http://signing.test/a?b=c", "eve", 403},
				{"http://signing.test/a?b=c", "ann", 200},
				{"http://telling.test/a?to=%2Fb", "ann", 200},
				{"http://telling.test/a?to=b%0D%0AX-Who:+eve", "ann", 503},
				{"http://lost.test/", "ann", 503},
				{"http://other.test/", "eve", 200},
				{"http://door.test/", "ann", 404},
			} {
				if got := get(c.address, "X-Who: "+c.who).status; got != c.want {
					t.Errorf("%s: %s of %q: %d, want %d", when, c.address, c.who, got, c.want)
				}
			}
		}
		hold("at first")

		get("http://App.test:80/a?b=c", "X-Who: ann", "X-User: root", "X_User: root", "x_group: wheel",
			"X-Group: wheel", "X-Forwarded-Uri: /forged", "X_Forwarded_Uri: /forged", "X_Original-Url: /forged",
			"X-Sallyport-Backend: other", "Cookie: s=1")
		h := asked.Load().Header
		for name, want := range map[string]string{
			"X-Forwarded-Uri": "/a?b=c", "X-Forwarded-Host": "app.test", "X-Forwarded-Method": "POST",
			"X-Forwarded-For": "127.0.0.1",
			"X-Original-Url":  "http://app.test:80/a?b=c", "X-Original-Host": "App.test:80", "X-Sallyport-Backend": "",
			"Cookie": "s=1", "Content-Length": "0",
			"X_forwarded_uri": "", "X_original-Url": "",
		} {
			if got := strings.Join(h.Values(name), " | "); got != want {
				t.Errorf("the service saw %s: %q, want %q", name, got, want)
			}
		}
		if a := asked.Load(); a.Host != "door.ops" || a.URL.String() != "/check?a='b'" || a.Method != "GET" {
			t.Errorf("the service was asked %s %s as %s", a.Method, a.URL, a.Host)
		}
		for name := range served.Load().Header {
			if strings.EqualFold(name, "X_User") || strings.EqualFold(name, "X_Group") {
				t.Errorf("the server saw %s of the client", name)
			}
		}
		if h := served.Load().Header; strings.Join(h.Values("X-User"), "|") != "ann@test" ||
			strings.Join(h.Values("X-Group"), "|") != "a|b" {
			t.Errorf("the server saw %q", h)
		}
		if got := get("http://app.test/a", "X-Who: ann").Values("Set-Cookie"); !slices.Equal(got, []string{"s=2", "t=3"}) {
			t.Errorf("the client gets the cookies %q", got)
		}
		get("http://signing.test/", "X-Who: ann", "Cookie: s=1")
		if h := asked.Load().Header; h.Get("Cookie") != "" || asked.Load().Method != "POST" {
			t.Errorf("the service saw %s with %q", asked.Load().Method, h)
		}
		get("http://Telling.test/?to=b", "X-Who: ann", "X-Auth-Request-Redirect: /forged", "X_Auth_Request_Redirect: /forged",
			"X-Team: forged", "X-Empty: forged", "X-Other: own")
		told := asked.Load().Header
		for name, want := range map[string]string{
			"X-Auth-Request-Redirect": "https://telling.test/back?b", "X_auth_request_redirect": "", "X_team": "a b",
			"X-Team": "", "X-Empty": "", "X-Other": "own", "X-Forwarded-Uri": "/?to=b",
		} {
			if got := strings.Join(told.Values(name), " | "); got != want {
				t.Errorf("the service that is told more saw %s: %q, want %q", name, got, want)
			}
		}
		answer := get("http://app.test/")
		if h := answer.Header; h.Get("WWW-Authenticate") != "Bearer" || len(h.Values("Set-Cookie")) != 2 {
			t.Errorf("who is not let in sees %q", h)
		}
		if got := get("http://signing.test/a?b=c").Get("Location"); got != "https://login.test/?rd=%2Fa%3Fb%3Dc" {
			t.Errorf("who has to sign in is sent to %q", got)
		}
		if got := get("http://app.test/", "X-Who: lost").Get("Location"); got != "https://login.test/?a=b" {
			t.Errorf("the redirect of the service leads to %q", got)
		}

		for range 3 {
			cfg = r.reload(cfg)
			cfg.Process = Process{}
			r.settle(cfg, states(cfg, Open))
			hold("after a reload")
		}
		closed := states(cfg, Open)
		for id := range closed {
			if id.Backend == "door" {
				closed[id] = Closed
			}
		}
		r.apply(cfg, closed)
		if got := get("http://app.test/", "X-Who: ann").status; got != 503 {
			t.Errorf("while the service is not routed: %d, want 503", got)
		}

		r.admitsNoStranger("ask")
	})
}

// TestAnAnswerOfAServiceFitsBesideABody gives headers and cookies of the size of a session with tokens,
// while a body fills HAProxy's buffer.
func TestAnAnswerOfAServiceFitsBesideABody(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		const token, cookie = 3_000, 3_800
		pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Saw-Token", strconv.Itoa(len(r.Header.Get("X-Token"))))
			w.Header().Set("Saw-Cookie", strconv.Itoa(len(r.Header.Get("Cookie"))))
			_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
		}))
		t.Cleanup(pod.Close)
		service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Token", strings.Repeat("t", token))
			for range 3 {
				w.Header().Add("Set-Cookie", "s="+strings.Repeat("s", cookie))
			}
			w.WriteHeader(http.StatusAccepted)
		}))
		t.Cleanup(service.Close)
		app := backend("app", serverAt(pod.Listener.Addr()))
		ask := Ask{Backend: "door", Host: "door.ops", Method: "GET", Path: "/", Succeed: []string{"X-Token"}}
		app.Directives = []Directive{must[Directive](t)(ask.Directive())}
		cfg := r.config(app, backend("door", serverAt(service.Listener.Addr())))
		cfg.Extras = []*Extra{AskScript()}
		r.apply(cfg, states(cfg, Open))

		client := r.client("")
		client.Jar = nil
		try := func(body, cookies int) (int, http.Header, error) {
			t.Helper()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://app.test/",
				strings.NewReader(strings.Repeat("b", body)))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Cookie", strings.Repeat("c", cookies))
			response, err := client.Do(request)
			if err != nil {
				return 0, nil, err
			}
			defer response.Body.Close()
			_, _ = io.Copy(io.Discard, response.Body)
			return response.StatusCode, response.Header, nil
		}
		get := func(body, cookies int) (int, http.Header) {
			t.Helper()
			status, h, err := try(body, cookies)
			if err != nil {
				t.Fatal(err)
			}
			return status, h
		}
		for _, body := range []int{0, 50_000} {
			for _, cookies := range []int{1, 12_000, 15_000} {
				status, h := get(body, cookies)
				if status != 200 || h.Get("Saw-Token") != strconv.Itoa(token) ||
					h.Get("Saw-Cookie") != strconv.Itoa(cookies) || len(h.Values("Set-Cookie")) != 3 {
					t.Errorf("with a body of %d bytes and cookies of %d: %d, the server saw a token of %s bytes and "+
						"cookies of %s, the client %d cookies", body, cookies, status, h.Get("Saw-Token"),
						h.Get("Saw-Cookie"), len(h.Values("Set-Cookie")))
				}
			}
		}

		cfg.Tune.Base = "global\n  tune.bufsize 16384\n  tune.maxrewrite 1024\n"
		r.apply(cfg, states(cfg, Open))
		r.eventually("a request whose token has no room is rejected", func() bool {
			// HAProxy answers before it has the whole body, and then closes the connection: the client may see that first.
			status, _, err := try(50_000, 1)
			return err == nil && status == 503
		})
	})
}

// admitsNoStranger asks at the socket of a script, as another program on this machine could that finds
// it. The answer has to be 403.
func (r *rig) admitsNoStranger(script string) {
	r.t.Helper()
	name := "@" + r.opt.RunDir + "/" + script
	stranger, err := net.Dial("unix", name+strings.Repeat("\x00", 108-len(name)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer stranger.Close()
	_, _ = io.WriteString(stranger, "GET / HTTP/1.0\r\nx-sallyport-backend: app\r\n\r\n")
	if line, err := bufio.NewReader(stranger).ReadString('\n'); err != nil || !strings.Contains(line, "403") {
		r.t.Errorf("a stranger at the socket of %s: %q, %v, want 403", script, line, err)
	}
}

// FuzzAsk checks that each setting of an Ask stays one word.
func FuzzAsk(f *testing.F) {
	f.Add("GET", "/a?b='c'", "X-A", "%[src] ' #")
	f.Add("", "/ b", "x,y", "")
	f.Fuzz(func(t *testing.T, method, path, header, value string) {
		d, err := Ask{
			Backend: "b", Host: "h", Method: method, Path: path, Pass: []string{header},
			Succeed: []string{header}, Fail: []string{header}, Set: []AskHeader{{header, value}},
		}.Directive()
		if err != nil {
			return
		}
		lines := strings.Split(d.text, "\n")
		if words, err := splitWords(lines[0]); err != nil || len(words) != 3 || words[2] != value {
			t.Errorf("%q is written as %q, %v", value, words, err)
		}
		words, err := splitWords(lines[1])
		if err != nil || len(words) != 11 || words[5] != path || words[6] != strings.ToLower(header) ||
			words[10] != words[6] {
			t.Errorf("%q %q %q is written as %q, %v", method, path, header, words, err)
		}
	})
}
