package haproxy

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// near starts a web server that answers with the address from which it is reached.
func near(t *testing.T) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, host)
	}))
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

// from returns the server at an address that is reached from a source.
func from(source string, at netip.AddrPort) Server {
	s := Server{Addr: at, Source: netip.MustParseAddr(source)}
	s.Name = NameOf(s)
	return s
}

func TestTheNameOfAServerTellsItsSource(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:8080")
	for name, s := range map[string]Server{
		"s_10-0-0-1_8080":                                  {Addr: at},
		"s_10-0-0-1_8080_from_192.168.51.21":               {Addr: at, Source: netip.MustParseAddr("192.168.51.21")},
		"s_10-0-0-1_8080_from_192.168.51.21_green":         {Addr: at, Source: netip.MustParseAddr("192.168.51.21"), Cluster: "green"},
		"s_10-0-0-1_8080_from_192.168.51.21_green.backup":  {Addr: at, Source: netip.MustParseAddr("192.168.51.21"), Cluster: "green", Backup: true},
		"s_10-0-0-1_8080_from_192.168.51.21.backup":        {Addr: at, Source: netip.MustParseAddr("192.168.51.21"), Backup: true},
		"s_10-0-0-1_8080_green.backup":                     {Addr: at, Cluster: "green", Backup: true},
		"s_10-0-0-1_8080_from_192.168.51.21_from-21.local": {Addr: at, Source: netip.MustParseAddr("192.168.51.21"), Cluster: "from-21.local"},
	} {
		if got := NameOf(s); got != name {
			t.Errorf("got %s, want %s", got, name)
		}
		if got := sourceOf(name); got != s.Source {
			t.Errorf("%s: got the source %s, want %s", name, got, s.Source)
		}
	}
}

func TestAServerIsReachedFromItsSource(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		at := near(t)
		check := ServerOptions{Check: true}
		one, two := backend("one", from("127.0.0.2", at)), backend("two", Server{Name: ServerName(at), Addr: at})
		one.Options, two.Options = check, check
		cfg := r.config(one, two)
		r.settle(cfg, states(cfg, Open))
		seen := func(host, want string) {
			t.Helper()
			r.eventually(host+" is reached from "+want, func() bool {
				got, err := r.try(host+".test", "/")
				return err == nil && got == want
			})
		}
		seen("one", "127.0.0.2")
		seen("two", "127.0.0.1")

		// by a command, in place of the other one
		again := backend("one", from("127.0.0.3", at))
		again.Options = check
		next := r.config(again, two)
		if r.apply(next, states(next, Open)).Reloaded {
			t.Error("another source took a reload")
		}
		seen("one", "127.0.0.3")

		// both, beside each other
		both := backend("one", from("127.0.0.2", at), from("127.0.0.3", at))
		both.Options = check
		next = r.config(both, two)
		r.settle(next, states(next, Open))
		seen("one", "127.0.0.2")
		seen("one", "127.0.0.3")

		found, err := r.fresh().Servers()
		if err != nil {
			t.Fatal(err)
		}
		var sources []string
		for _, s := range found.Get("one").Servers {
			sources = append(sources, s.Source.String())
		}
		if got := strings.Join(sources, " "); got != "127.0.0.2 127.0.0.3" {
			t.Errorf("a fresh process reads the sources %s", got)
		}

		// An address that the machine does not have reaches nothing.
		none := backend("one", from("192.0.2.1", at))
		none.Options = check
		next = r.config(none, two)
		r.settle(next, states(next, Open))
		r.eventually("its check fails", func() bool {
			live, err := r.fresh().Servers()
			return err == nil && live.Get("one").Servers[0].Check == Down
		})
		if got := r.get("one.test", "/"); got != "503" {
			t.Errorf("from an address that the machine does not have: got %s, want 503", got)
		}
	})
}

// HAProxy before 3.0 takes no cookie of a server by a command.
func TestACookieLeadsToOneOfTwoPodsWithTheSameAddress(t *testing.T) {
	withThose(t, func(p picture) bool { return p.atLeast3(0) }, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		at := near(t)
		blue, green := from("127.0.0.2", at), from("127.0.0.3", at)
		green.Cluster = "green"
		green.Name = NameOf(green)
		b := sticky(t, backend("one", blue))
		cfg := r.config(b)
		r.settle(cfg, states(cfg, Open))
		both := backend("one", blue, green)
		both.Directives = b.Directives
		next := r.config(both)
		if r.apply(next, states(next, Open)).Reloaded {
			t.Error("a server more took a reload")
		}
		sticks := func() {
			t.Helper()
			seen := map[string]bool{}
			for len(seen) < 2 {
				where, cookie := r.visitWith("one.test", "")
				seen[where] = true
				for range 4 {
					if got, _ := r.visitWith("one.test", cookie); got != where {
						t.Fatalf("the cookie of %s led to %s", where, got)
					}
				}
			}
		}
		sticks()
		// A reload keeps the cookies.
		where, cookie := r.visitWith("one.test", "")
		other := r.config(both, distinct(backend("two", blue)))
		r.later()
		r.settle(other, states(other, Open))
		sticks()
		if got, _ := r.visitWith("one.test", cookie); got != where {
			t.Errorf("after a reload the cookie of %s leads to %s", where, got)
		}
	})
}

// visitWith sends a request to a host with a cookie, or without one if the cookie is empty. It returns the answer, and
// the cookie that the client has afterwards.
func (r *rig) visitWith(host, cookie string) (answer, now string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.http.String(), http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	request.Host = host
	if cookie != "" {
		request.AddCookie(&http.Cookie{Name: "SRV", Value: cookie})
	}
	got, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range got.Cookies() {
		cookie = c.Value
	}
	return string(body), cookie
}
