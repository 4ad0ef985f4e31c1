package haproxy

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// serving returns a server that does what speak does on each of its connections.
func serving(t testing.TB, speak func(net.Conn)) Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				speak(conn)
			}()
		}
	}()
	return serverAt(l.Addr())
}

// heads returns a server that answers each request with the head of that request, and accepts
// every upgrade.
func heads(t testing.TB) Server {
	t.Helper()
	return serving(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			head := ""
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if line == "\r\n" {
					break
				}
				head += line
			}
			status := "200 OK\r\ncontent-length: " + fmt.Sprint(len(head))
			if strings.Contains(strings.ToLower(head), "\nupgrade:") {
				status = "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other"
			}
			if _, err := io.WriteString(conn, "HTTP/1.1 "+status+"\r\n\r\n"+head); err != nil {
				return
			}
		}
	})
}

// send writes a request, and another one behind it. It returns all that comes back
// until that is answered or the connection ends.
func (r *rig) send(request string) string {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.http.String())
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn,
		request+"GET /last HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n"); err != nil {
		r.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	answer, part := "", make([]byte, 4096)
	for !strings.Contains(answer, "GET /last") {
		n, err := conn.Read(part)
		if answer += string(part[:n]); err != nil {
			break
		}
	}
	return answer
}

func TestNoRequestGoesOnInAnotherVersionOfHTTP(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", heads(t)))
		r.apply(cfg, states(cfg, Open))
		const websocket = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
		for _, upgrade := range []string{
			"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
			"Connection: upgrade\r\nUpgrade: H2C", "Connection: Upgrade\r\nUpgrade: h2",
			"Connection: Upgrade\r\nUpgrade: HTTP/2.0",
			"Connection: Upgrade\r\nUpgrade: foo, h2c", "Connection: Upgrade\r\nUpgrade: foo,\th2c\t,bar",
			"Connection: Upgrade\r\nUpgrade: foo\r\nUpgrade: h2c", "Connection: keep-alive, Upgrade\r\nupgrade:h2c",
			"Upgrade: h2c",
			"Connection: Upgrade\r\n" + websocket + "Upgrade: websocket, h2c",
			"Connection: Upgrade\r\n" + websocket + "Upgrade: websocket\r\nUpgrade: h2c",
		} {
			for _, before := range []string{"", "GET /first HTTP/1.1\r\nHost: app.test\r\n\r\n"} {
				got := strings.ToLower(r.send(before + "GET / HTTP/1.1\r\nHost: app.test\r\n" + upgrade + "\r\n\r\n"))
				if strings.Contains(got, "h2c") || strings.Contains(got, "upgrade: h2") ||
					strings.Contains(got, "upgrade: http") || !strings.Contains(got, "get / http/1.1") {
					t.Errorf("%q: got %q", upgrade, got)
				}
			}
		}
		for _, upgrade := range []string{
			websocket + "Upgrade: websocket", websocket + "Upgrade: WebSocket",
			"Upgrade: tcp", "Upgrade: SPDY/3.1",
		} {
			got := r.send("GET / HTTP/1.1\r\nHost: app.test\r\nConnection: Upgrade\r\n" + upgrade + "\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 101 ") || !strings.Contains(got, "GET / HTTP/1.1\r\n") {
				t.Errorf("%q: got %q, want to go on by that", upgrade, got)
			}
		}
	})
}

func TestARequestHasOneHostOrNone(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", heads(t)), backend("none", heads(t)))
		cfg.Routes = append(cfg.Routes, &Route{Path: "/", Match: Prefix, Backend: "none"})
		r.apply(cfg, states(cfg, Open))
		for name, c := range map[string]struct{ request, want string }{
			"one":             {"GET / HTTP/1.1\r\nHost: app.test\r\n", "GET / HTTP/1.1"},
			"one with a port": {"GET / HTTP/1.1\r\nHost: App.test:80\r\n", "GET / HTTP/1.1"},
			"an address":      {"GET / HTTP/1.1\r\nHost: [::1]:80\r\n", "GET / HTTP/1.1"},
			"none":            {"GET / HTTP/1.0\r\n", "GET / HTTP/1.0"},
			"the same in the URI": {
				"GET http://app.test/ HTTP/1.1\r\nHost: app.test\r\n",
				"host: app.test",
			},
			"a list":                  {"GET / HTTP/1.1\r\nHost: open.test,app.test\r\n", "400"},
			"a list with a space":     {"GET / HTTP/1.1\r\nHost: open.test, app.test\r\n", "400"},
			"two":                     {"GET / HTTP/1.1\r\nHost: open.test\r\nHost: app.test\r\n", "400"},
			"two, the first empty":    {"GET / HTTP/1.1\r\nHost:\r\nHost: app.test\r\n", "400"},
			"an empty one":            {"GET / HTTP/1.1\r\nHost:\r\n", "400"},
			"a user":                  {"GET / HTTP/1.1\r\nHost: open.test@app.test\r\n", "400"},
			"a space":                 {"GET / HTTP/1.1\r\nHost: open.test app.test\r\n", "400"},
			"a tab":                   {"GET / HTTP/1.1\r\nHost: open.test\tapp.test\r\n", "400"},
			"a path":                  {"GET / HTTP/1.1\r\nHost: app.test/x\r\n", "400"},
			"a fragment":              {"GET / HTTP/1.1\r\nHost: app.test#x\r\n", "400"},
			"an escape":               {"GET / HTTP/1.1\r\nHost: app%2etest\r\n", "400"},
			"a port that is none":     {"GET / HTTP/1.1\r\nHost: app.test:http\r\n", "400"},
			"two ports":               {"GET / HTTP/1.1\r\nHost: app.test:80:81\r\n", "400"},
			"another in the URI":      {"GET http://open.test/ HTTP/1.1\r\nHost: app.test\r\n", "400"},
			"another port in the URI": {"GET http://app.test:8080/ HTTP/1.1\r\nHost: app.test:81\r\n", "400"},
			"one in the URI alone":    {"GET http://app.test/ HTTP/1.0\r\n", "400"},
			"a user in the URI":       {"GET http://open.test@app.test/ HTTP/1.1\r\nHost: app.test\r\n", "400"},
			"a user and a password in it": {
				"GET http://open.test:x@app.test/ HTTP/1.1\r\nHost: app.test\r\n",
				"400",
			},
			"a tunnel":             {"CONNECT app.test:443 HTTP/1.1\r\nHost: app.test:443\r\n", "405"},
			"a tunnel for another": {"CONNECT open.test:443 HTTP/1.1\r\nHost: app.test\r\n", "40"},
			"an @ in the path and the query": {
				"GET /@a?b=http://c@d HTTP/1.1\r\nHost: app.test\r\n",
				"GET /@a?b=http://c@d HTTP/1.1",
			},
			"an @ behind the host of the URI": {
				"GET http://app.test/a@b HTTP/1.1\r\nHost: app.test\r\n",
				"a@b HTTP/1.1",
			},
		} {
			got := r.send(c.request + "\r\n")
			first, _, _ := strings.Cut(got, "\r\n")
			if strings.HasPrefix(c.want, "40") && !strings.HasPrefix(first, "HTTP/1.1 "+c.want) ||
				!strings.Contains(got, c.want) {
				t.Errorf("%s: got %q, want %s", name, got, c.want)
			}
		}
	})
}

func TestNoHeaderPassesForAnotherByItsSpelling(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := backend("app", heads(t))
		app.Directives = []Directive{
			must[Directive](t)(SetRequestHeader("X-User", "%[req.hdr(x-user),upper]")),
			must[Directive](t)(SetRequestHeader("X-Remote-User.Id", "7")),
			must[Directive](t)(DeleteRequestHeader("X-Is-Admin")),
			must[Directive](t)(SetRequestHeader("Plain", "ours")), Option("forwardfor", true),
		}
		cfg := r.config(app)
		r.apply(cfg, states(cfg, Open))
		got := r.send("GET / HTTP/1.1\r\nHost: app.test\r\nX_User: evil\r\nx_USER: evil\r\nX.User: evil\r\n" +
			"X-User: ann\r\nX-Remote_User.Id: evil\r\nX_Remote-User_id: evil\r\nX-Is-Admin: evil\r\n" +
			"X_Is-Admin: evil\r\n" +
			"Plain: evil\r\nX_Forwarded_For: evil\r\nX-Forwarded_Proto: evil\r\nX_Forwarded-Host: evil\r\n" +
			"X-Forwarded-Host: mine\r\nX_Userx: mine\r\nOther_Name: mine\r\nXXUser: mine\r\n\r\n")
		if strings.Contains(strings.ToLower(got), "evil") {
			t.Errorf("the server saw %q", got)
		}
		for _, want := range []string{
			"x-user: ANN", "x-remote-user.id: 7", "plain: ours", "x-forwarded-host: mine",
			"x_userx: mine", "other_name: mine", "xxuser: mine",
		} {
			if !strings.Contains(strings.ToLower(got), strings.ToLower(want)) {
				t.Errorf("the server saw no %s: %q", want, got)
			}
		}
	})
}

func TestNoHeaderReplacesThePathOfAGuardedHost(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app, admin := backend("app", heads(t)), backend("admin", heads(t))
		admin.Directives = []Directive{Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, true)}
		cfg := r.config(app, admin)
		cfg.Routes = append(cfg.Routes, &Route{Host: "free.test", Path: "/", Match: Prefix, Backend: "app"},
			&Route{Host: "app.test", Path: "/admin", Match: Prefix, Backend: "admin"})
		r.apply(cfg, states(cfg, Open))
		const headers = "X-Original-URL: /admin\r\nx_rewrite.Url: /admin\r\nX-Original-URI: /admin\r\n" +
			"X-Original-Urls: kept\r\n\r\n"
		if got := r.send("GET / HTTP/1.1\r\nHost: app.test\r\n" + headers); strings.Contains(got, "/admin") ||
			!strings.Contains(got, "kept") {
			t.Errorf("a host with a guarded path: the server saw %q", got)
		}
		if got := r.send("GET / HTTP/1.1\r\nHost: free.test\r\n" + headers); strings.Count(got, "/admin") != 3 {
			t.Errorf("a host without guards: the server saw %q, want it as it was sent", got)
		}
	})
}

func TestALongPasswordIsNotHashed(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := backend("app", heads(t))
		app.Directives = []Directive{must[Directive](t)(BasicAuth{Userlist: "users", Realm: "a"}.Directive())}
		cfg := r.config(app)
		cfg.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("ann", secretHash))}}}
		r.apply(cfg, states(cfg, Open))
		for name, c := range map[string]struct{ password, want string }{
			"the password": {"secret", "200"}, "another": {"other", "401"},
			"a long one": {strings.Repeat("a", 150), "401"}, "one that is too long": {strings.Repeat("a", 512), "400"},
		} {
			got := r.send("GET / HTTP/1.1\r\nHost: app.test\r\nAuthorization: Basic " +
				base64.StdEncoding.EncodeToString([]byte("ann:"+c.password)) + "\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 "+c.want) {
				t.Errorf("%s: got %.40q, want %s", name, got, c.want)
			}
		}
	})
}
