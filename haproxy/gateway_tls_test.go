package haproxy

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// listenersAt returns Listeners of these kinds at free ports, in the order that a Config wants, and
// their addresses in the order of the kinds.
func listenersAt(t *testing.T, kinds ...ListenerKind) (all []Listener, at []netip.AddrPort) {
	t.Helper()
	for _, kind := range kinds {
		at = append(at, freePort(t))
		all = append(all, Listener{At: at[len(at)-1], Kind: kind})
	}
	slices.SortFunc(all, compareListeners)
	return all, at
}

func TestConnectionsAtAListenerLeadToTheirBackends(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		var backends []*Backend
		for _, name := range []string{"ended", "one", "two"} {
			backends = append(backends, backend(name, caller(t, name, false)))
		}
		whole, wide := backend("whole", secureOrigin(t, a, "whole")), backend("wide", secureOrigin(t, a, "wide"))
		backends = append(backends, whole, wide)
		for _, b := range backends {
			b.TCP = true
		}
		cfg := r.config(backends...)
		listeners, at := listenersAt(t, ListenTCP, ListenTCP, ListenTCP, ListenTLS, ListenTLS)
		scope := func(i int) string { return ScopeOf(at[i]) }
		shared, err := Split([]Share{{"one", 1}, {"two", 1}})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Listeners = listeners
		cfg.Certs = []*Cert{{Name: "e.pem", Scope: scope(3), Hosts: []string{"*.end.test"}, PEM: a.issue(t, "end")}}
		cfg.Routes = []*Route{
			{Scope: scope(0), Path: "/", Match: Passthrough, To: To("one")},
			{Scope: scope(1), Path: "/", Match: Passthrough, To: shared},
			{Scope: scope(2), Path: "/", Match: Passthrough, To: To(Invalid)},
			{Scope: scope(3), Host: "whole.test", Path: "/", Match: Passthrough, To: To("whole")},
			{Scope: scope(3), Host: "*.wide.test", Path: "/", Match: Passthrough, To: To("wide")},
			{Scope: scope(3), Host: "a.end.test", Path: "/", Match: Terminate, To: To("ended")},
			{Scope: scope(3), Host: "*.end.test", Path: "/", Match: Terminate, To: shared},
			{Scope: scope(3), Host: "gone.test", Path: "/", Match: Passthrough, To: To(Invalid)},
			{Scope: scope(4), Path: "/", Match: Passthrough, To: To("wide")},
		}
		r.settle(cfg, states(cfg, Open))
		tcp := func(i int, name string) string {
			var config *tls.Config
			if name != "" {
				config = &tls.Config{ServerName: name, InsecureSkipVerify: true} //nolint:gosec // the certificate is what is looked at
			}
			_, got := said(t, at[i], "127.0.0.1", "", config)
			return got
		}
		both := func(i int, name string) bool {
			got := make(map[string]bool)
			for range 40 {
				got[tcp(i, name)] = true
			}
			return got["one"] && got["two"] && len(got) == 2
		}
		if got := tcp(0, ""); got != "one" {
			t.Errorf("a port: got %q, want one", got)
		}
		if !both(1, "") || !both(3, "x.y.end.test") {
			t.Error("shares: 40 connections did not reach one and two, and nothing else")
		}
		for i, name := range map[int]string{2: "", 3: "gone.test"} {
			if got := tcp(i, name); got != "closed" {
				t.Errorf("an invalid backend: got %q, want closed", got)
			}
		}
		if got := tcp(3, "a.end.test"); got != "ended" {
			t.Errorf("TLS that ends here: got %q, want ended", got)
		}
		for _, c := range []struct {
			at         int
			name, want string
		}{
			{3, "whole.test", "whole 200 whole over HTTP/1.1"},
			{3, "WHOLE.test", "whole 200 whole over HTTP/1.1"},
			{3, "x.wide.test", "wide 200 wide over HTTP/1.1"},
			{3, "x.y.wide.test", "wide 200 wide over HTTP/1.1"},
			{3, "wide.test", ""},
			{3, "else.test", ""},
			{4, "else.test", "wide 200 wide over HTTP/1.1"},
		} {
			got := ""
			if conn, err := secured(t, at[c.at].String(), "127.0.0.1", "", c.name); err == nil {
				got = over(conn, c.name)
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.name, got, c.want)
			}
		}
		reloads := r.p.Info().Reloads
		next := *cfg
		next.Routes = slices.Clone(cfg.Routes)
		next.Routes[0], next.Routes[6] = new(*cfg.Routes[0]), new(*cfg.Routes[6])
		next.Routes[0].To, next.Routes[6].To = To("two"), To("two")
		r.settle(&next, states(&next, Open))
		if got := tcp(0, "") + tcp(3, "x.end.test"); got != "twotwo" {
			t.Errorf("after a change: got %q, want two and two", got)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("other targets took %d reloads, want none", got-reloads)
		}
	})
}

func TestEachListenerHasItsOwnCertificatesAndClients(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a, b := newAuthority(t, "a"), newAuthority(t, "b")
		cfg := r.config(backend("app", origin(t, "app")), backend("other", origin(t, "other")))
		listeners, at := listenersAt(t, ListenHTTPS, ListenHTTPS, ListenHTTPS)
		for i := range listeners {
			switch listeners[i].At {
			case at[1]:
				listeners[i].ClientCA = "a.ca.pem"
			case at[2]:
				listeners[i].ClientCA, listeners[i].Insecure = "a.ca.pem", true
			}
		}
		cfg.Listeners, cfg.Extras = listeners, []*Extra{{"a.ca.pem", a.pem()}}
		for i, name := range []string{"one.pem", "two.pem", "three.pem"} {
			cfg.Certs = append(cfg.Certs, &Cert{
				Name: name, Scope: ScopeOf(at[i]), Hosts: []string{"a.test", "*.b.test"}, PEM: a.issue(t, name),
			})
			cfg.Routes = append(cfg.Routes,
				&Route{Scope: ScopeOf(at[i]), Host: "a.test", Path: "/", Match: Prefix, To: To("app")},
				&Route{Scope: ScopeOf(at[i]), Host: "*.b.test", Path: "/", Match: Prefix, To: To("other")})
		}
		slices.SortFunc(cfg.Certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
		cfg.Hostnames = []Hostname{{ScopeOf(at[0]), "*.b.test", "b", false}, {ScopeOf(at[0]), "a.test", "a", false}}
		r.settle(cfg, states(cfg, Open))
		try := func(i int, name, host string, certs ...tls.Certificate) string {
			c, err := tls.Dial("tcp", at[i].String(), &tls.Config{ //nolint:gosec // the certificate is what is looked at
				ServerName: name, InsecureSkipVerify: true, Certificates: certs,
			})
			if err != nil {
				return "no handshake"
			}
			defer c.Close()
			if got := over(c, host); strings.Contains(got, "200") || strings.Contains(got, "4") {
				return got
			}
			return "no handshake"
		}
		mine, foreign := keyPair(t, a.issue(t, "client")), keyPair(t, b.issue(t, "client"))
		for _, c := range []struct {
			what       string
			at         int
			name, host string
			certs      []tls.Certificate
			want       string
		}{
			{"a host", 0, "a.test", "a.test", nil, "one.pem 200 app"},
			{"a wildcard", 0, "x.b.test", "x.b.test", nil, "one.pem 200 other"},
			{"another host of the same part", 0, "x.b.test", "y.b.test", nil, "one.pem 200 other"},
			{"a host of another part", 0, "x.b.test", "a.test", nil, "one.pem 421 not on this connection"},
			{"the other way round", 0, "a.test", "x.b.test", nil, "one.pem 421 not on this connection"},
			{"a host of no part", 0, "a.test", "c.test", nil, "one.pem 404 no such host or path here"},
			{"without parts", 1, "x.b.test", "a.test", []tls.Certificate{mine}, "two.pem 200 app"},
			{"a client with a certificate", 1, "a.test", "a.test", []tls.Certificate{mine}, "two.pem 200 app"},
			{"a client with none", 1, "a.test", "a.test", nil, "no handshake"},
			{"a client with another one", 1, "a.test", "a.test", []tls.Certificate{foreign}, "no handshake"},
			{"a client with one, insecure", 2, "a.test", "a.test", []tls.Certificate{mine}, "three.pem 200 app"},
			{"a client with none, insecure", 2, "a.test", "a.test", nil, "three.pem 200 app"},
			{"a client with another one, insecure", 2, "a.test", "a.test", []tls.Certificate{foreign}, "three.pem 200 app"},
		} {
			if got := try(c.at, c.name, c.host, c.certs...); got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
		}
		reloads := r.p.Info().Reloads
		next := *cfg
		next.Certs = slices.Clone(cfg.Certs)
		at0 := slices.IndexFunc(next.Certs, func(c *Cert) bool { return c.Name == "one.pem" })
		next.Certs[at0] = &Cert{Name: "one.pem", Scope: ScopeOf(at[0]), Hosts: []string{"a.test"}, PEM: a.issue(t, "new")}
		r.settle(&next, states(&next, Open))
		if got, want := try(0, "a.test", "a.test"), "new 200 app"; got != want {
			t.Errorf("after a change: got %q, want %q", got, want)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("another certificate took %d reloads, want none", got-reloads)
		}
		fresh := r.fresh()
		r.p = fresh
		if res := r.apply(&next, states(&next, Open)); res.Reloaded || !res.RetryAt.IsZero() {
			t.Errorf("a fresh process: got %+v, want no reload", res)
		}
	})
}

// TestOnePortTakesHTTPSAndOtherTLS has a Listener with names of HTTPS, of TLS that passes through, and of
// TLS that ends in HAProxy. The name in a handshake leads each connection to its kind of Routes.
func TestOnePortTakesHTTPSAndOtherTLS(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		web := backend("web", forwardedFor(t))
		web.Directives = []Directive{Option("forwardfor", true)}
		ended, whole := backend("ended", caller(t, "ended", false)), backend("whole", secureOrigin(t, a, "whole"))
		ended.TCP, whole.TCP = true, true
		cfg := r.config(ended, web, whole)
		cfg.Process.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		listeners, at := listenersAt(t, ListenMixed, ListenTLS)
		scope, other := ScopeOf(at[0]), ScopeOf(at[1])
		cfg.Listeners = listeners
		// A name of a certificate stands for one label.
		names := []string{"*.b.test", "*.test", "*.whole.test"}
		cfg.Certs = []*Cert{{Name: "s.pem", Scope: scope, PEM: a.issue(t, "here"), Hosts: names}}
		cfg.Hostnames = []Hostname{
			{scope, "*.test", "any.test", false},
			{scope, "*.whole.test", "any.whole.test", true},
			{scope, "end.test", "end.test", true},
			{scope, "lone.test", "lone.test", true},
			{other, "", "any", true},
			{other, "lone.test", "lone.test", true},
		}
		slices.SortFunc(cfg.Hostnames, compareHostnames)
		cfg.Routes = []*Route{
			{Scope: scope, Host: "*.test", Path: "/", Match: Prefix, To: To("web")},
			{Scope: scope, Host: "*.whole.test", Path: "/", Match: Passthrough, To: To("whole")},
			{Scope: scope, Host: "end.test", Path: "/", Match: Terminate, To: To("ended")},
			{Scope: other, Path: "/", Match: Passthrough, To: To("whole")},
		}
		r.settle(cfg, states(cfg, Open))
		ask := func(i int, from, speaksFor, name, host string) string {
			conn, err := secured(t, at[i].String(), from, speaksFor, name)
			if err != nil {
				return "closed"
			}
			return over(conn, host)
		}
		for _, c := range []struct {
			what                        string
			at                          int
			from, speaksFor, name, host string
			want                        string
		}{
			{"HTTPS", 0, "127.0.0.1", "", "a.test", "a.test", "here 200 127.0.0.1"},
			{"HTTPS for a longer name", 0, "127.0.0.1", "", "a.b.test", "a.b.test", "here 200 127.0.0.1"},
			{"HTTPS by a proxy", 0, "127.0.0.2", "192.0.2.7", "a.test", "a.test", "here 200 192.0.2.7"},
			{"passed through", 0, "127.0.0.1", "", "a.whole.test", "a.whole.test", "whole 200 whole over HTTP/1.1"},
			{"a host of TLS by HTTPS", 0, "127.0.0.1", "", "a.test", "a.whole.test", "here 421 not on this connection"},
			{"a name of TLS without a route", 0, "127.0.0.1", "", "lone.test", "lone.test", "closed"},
			{"a name of nobody", 0, "127.0.0.1", "", "else", "else", "closed"},
			{"no name", 0, "127.0.0.1", "", "", "a.test", "closed"},
			{"another listener", 1, "127.0.0.1", "", "a.test", "a.test", "whole 200 whole over HTTP/1.1"},
			{"a name without a route there", 1, "127.0.0.1", "", "lone.test", "lone.test", "closed"},
		} {
			if got := ask(c.at, c.from, c.speaksFor, c.name, c.host); got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
		}
		end := &tls.Config{ServerName: "end.test", InsecureSkipVerify: true} //nolint:gosec // any certificate will do
		if _, got := said(t, at[0], "127.0.0.1", "", end); got != "ended" {
			t.Errorf("TLS that ends here: got %q, want ended", got)
		}

		reloads := r.p.Info().Reloads
		next := *cfg
		next.Hostnames = append([]Hostname(nil), cfg.Hostnames...)
		i := slices.Index(next.Hostnames, Hostname{scope, "*.whole.test", "any.whole.test", true})
		next.Hostnames[i].Streams = false
		next.Routes = slices.Delete(slices.Clone(cfg.Routes), 1, 2)
		next.Routes = slices.Insert(next.Routes, 1,
			&Route{Scope: scope, Host: "*.whole.test", Path: "/", Match: Prefix, To: To("web")})
		r.settle(&next, states(&next, Open))
		if got, want := ask(0, "127.0.0.1", "", "a.whole.test", "a.whole.test"), "here 200 127.0.0.1"; got != want {
			t.Errorf("after the name became one of HTTPS: got %q, want %q", got, want)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("another kind of a name took %d reloads, want none", got-reloads)
		}

		// Only requests need the certificate of a client.
		asks := next
		asks.Listeners, asks.Extras = slices.Clone(listeners), []*Extra{{"a.ca.pem", a.pem()}}
		asks.Listeners[slices.IndexFunc(listeners, func(l Listener) bool { return l.At == at[0] })].ClientCA = "a.ca.pem"
		r.eventually("a reload", func() bool { return r.apply(&asks, states(&asks, Open)).Reloaded })
		r.eventually("a handshake without a certificate fails", func() bool {
			return !strings.Contains(ask(0, "127.0.0.1", "", "a.test", "a.test"), "200")
		})
		if _, got := said(t, at[0], "127.0.0.1", "", end); got != "ended" {
			t.Errorf("TLS that ends here, without a certificate: got %q, want ended", got)
		}
	})
}

// forwardedFor returns a server that answers with the addresses of the client in the request.
func forwardedFor(t *testing.T) Server {
	t.Helper()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-For"))
	}))
	t.Cleanup(echo.Close)
	return serverAt(echo.Listener.Addr())
}

// TestAnAddressOfListenersHasNoOtherPorts has the frontends for all Listeners' addresses at the wildcard,
// with and without the one that reads names in handshakes.
func TestAnAddressOfListenersHasNoOtherPorts(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("web", origin(t, "web")))
		cfg.Bind.HTTP[0] = netip.AddrPortFrom(netip.IPv4Unspecified(), r.http.Port())
		cfg.Bind.HTTPS[0] = netip.AddrPortFrom(netip.IPv4Unspecified(), r.https.Port())
		cfg.Certs = []*Cert{{Name: "web.pem", Hosts: []string{"web.test"}, PEM: newAuthority(t, "a").issue(t, "web.test")}}
		own := netip.MustParseAddr("127.0.9.20")
		at := netip.AddrPortFrom(own, freePort(t).Port())
		r.settle(cfg, states(cfg, Open))
		names := &tls.Config{ServerName: "web.test", InsecureSkipVerify: true} //nolint:gosec // only the handshake matters
		check := func(when string, want bool) {
			t.Helper()
			for _, address := range []netip.Addr{own, netip.MustParseAddr("127.0.9.21")} {
				answers := want || address != own
				if got, err := request(netip.AddrPortFrom(address, r.http.Port()), "GET", "web.test", "/"); answers != (got == "web") {
					t.Errorf("%s: HTTP at %s: got %q, %v", when, address, got, err)
				}
				dialer := tls.Dialer{Config: names}
				conn, err := dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(address, r.https.Port()).String())
				if answers != (err == nil) {
					t.Errorf("%s: a handshake at %s: %v", when, address, err)
				}
				if err == nil {
					_ = conn.Close()
				}
			}
		}
		check("without a Listener", true)
		with := *cfg
		with.Listeners = []Listener{{At: at, Kind: ListenHTTP}}
		with.Routes = append(slices.Clone(cfg.Routes),
			&Route{Scope: ScopeOf(at), Host: "g.test", Path: "/", Match: Prefix, To: To("web")})
		r.settle(&with, states(&with, Open))
		check("with a Listener", false)
		if got, err := request(at, "GET", "g.test", "/"); got != "web" {
			t.Errorf("the Listener: got %q, %v", got, err)
		}
		with.Inspect = true
		r.settle(&with, states(&with, Open))
		check("where names are read", false)
		cfg.Inspect = true
		r.settle(cfg, states(cfg, Open))
		check("after the Listener", true)
	})
}
