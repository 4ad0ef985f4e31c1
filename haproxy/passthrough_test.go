package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// secureOrigin starts a web server with a certificate of its own, for its name.
func secureOrigin(t *testing.T, by *authority, name string) Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, name+" over "+r.Proto)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{keyPair(t, by.issue(t, name))}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return serverAt(s.Listener.Addr())
}

// secured opens a TLS connection to an address, from one of our own, that begins
// with the PROXY protocol if it speaks for somebody.
func secured(t *testing.T, to, from, speaksFor, name string) (*tls.Conn, error) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp", to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if speaksFor != "" {
		if _, err := fmt.Fprintf(conn, "PROXY TCP4 %s 127.0.0.1 1 443\r\n", speaksFor); err != nil {
			return nil, err
		}
	}
	c := tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // the certificate is what is looked at
	return c, c.HandshakeContext(t.Context())
}

// over asks for a host over a connection, which stays open: the name in the
// certificate, the status and the body.
func over(c *tls.Conn, host string) string {
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName + " " + strconv.Itoa(response.StatusCode) + " " +
		strings.TrimSpace(string(body))
}

func TestTLSIsPassedThroughByName(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		whole, any := backend("whole", secureOrigin(t, a, "whole.test")), backend("any", secureOrigin(t, a, "any"))
		whole.TCP, any.TCP = true, true
		whole.Directives = []Directive{
			Reject(Networks{Of: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"),
				netip.MustParsePrefix("127.0.0.1/32"),
			}}, true),
		}
		ended := backend("ended", forwardedFor(t))
		ended.Directives = []Directive{Option("forwardfor", true)}
		cfg := r.config(whole, any, ended)
		cfg.Tune.Base = patient
		cfg.Process.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		cfg.Certs = []*Cert{{Name: "ended.pem", Hosts: []string{"ended.test", "*.any.test"}, PEM: a.issue(t, "ended")}}
		plain := []*Route{
			{Host: "ended.any.test", Path: "/", Match: Prefix, Backend: "ended"},
			{Host: "ended.test", Path: "/", Match: Prefix, Backend: "ended"},
		}
		none := *cfg
		none.Routes = plain
		r.settle(&none, states(&none, Open))
		kept, err := secured(t, r.https.String(), "127.0.0.1", "", "ended.test")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := over(kept, "ended.test"), "ended 200 127.0.0.1"; got != want {
			t.Errorf("before anything is passed through: got %q, want %q", got, want)
		}

		cfg.Inspect = true
		cfg.Routes = append([]*Route{{
			Host: "whole.test", Path: "/", Match: Passthrough, Backend: "whole", TLSOnly: true,
			TLSCode: 301, TLSPort: 443,
		}}, plain...)
		var res Result
		r.eventually("a reload", func() bool { res = r.apply(cfg, states(cfg, Open)); return res.Reloaded })
		if want := "TLS passthrough begins or ends"; res.Reason != want {
			t.Errorf("the reason for the reload: got %q, want %q", res.Reason, want)
		}
		reloads := r.p.Info().Reloads

		// Another host for a backend that is there takes no reload.
		cfg.Routes = append(slices.Clone(cfg.Routes),
			&Route{Host: "*.any.test", Path: "/", Match: Passthrough, Backend: "any"},
			&Route{Host: "other.whole.test", Path: "/", Match: Passthrough, Backend: "whole"})
		r.settle(cfg, states(cfg, Open))
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("two more hosts took %d reloads", got-reloads)
		}

		for _, c := range []struct{ what, from, speaksFor, sni, host, want string }{
			{"passed through", "127.0.0.1", "", "whole.test", "whole.test", "whole.test 200 whole.test over HTTP/1.1"},
			{
				"passed through, upper case", "127.0.0.1", "", "WHOLE.test", "whole.test",
				"whole.test 200 whole.test over HTTP/1.1",
			},
			{"a second host", "127.0.0.1", "", "other.whole.test", "x", "whole.test 200 whole.test over HTTP/1.1"},
			{"by a wildcard", "127.0.0.1", "", "x.any.test", "x.any.test", "any 200 any over HTTP/1.1"},
			{
				"a host of its own below the wildcard", "127.0.0.1", "", "ended.any.test", "ended.any.test",
				"ended 200 127.0.0.1",
			},
			{"ended here", "127.0.0.1", "", "ended.test", "ended.test", "ended 200 127.0.0.1"},
			{"ended here, by PROXY", "127.0.0.2", "10.1.2.3", "ended.test", "ended.test", "ended 200 10.1.2.3"},
			{
				"ended here, for a host that is passed through", "127.0.0.1", "", "ended.test", "whole.test",
				"ended 421 not on this connection",
			},
			{
				"allowed by PROXY", "127.0.0.2", "10.1.2.3", "whole.test", "whole.test",
				"whole.test 200 whole.test over HTTP/1.1",
			},
			{"not allowed by PROXY", "127.0.0.2", "11.1.2.3", "whole.test", "whole.test", "closed"},
			{"not allowed", "127.0.0.3", "", "whole.test", "whole.test", "closed"},
			{
				"nobody's name", "127.0.0.1", "", "nobody.test", "nobody.test",
				"default certificate of sallyport 404 no such host or path here",
			},
			{"no name", "127.0.0.1", "", "", "ended.test", "default certificate of sallyport 200 127.0.0.1"},
		} {
			got := "closed"
			if conn, err := secured(t, r.https.String(), c.from, c.speaksFor, c.sni); err == nil {
				got = over(conn, c.host)
			}
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
		}
		for host, want := range map[string]string{
			"whole.test": "301 https://whole.test/", "x.any.test": "404",
			"ended.test": "127.0.0.1",
		} {
			if got := r.get(host, "/"); got != want {
				t.Errorf("plain HTTP for %s: got %q, want %q", host, got, want)
			}
		}
		if servers, err := byID(r.p.Servers()); err != nil || len(servers) != 3 {
			t.Errorf("servers that are ours to open and close: %v, %v", servers, err)
		}

		// Who finds the way between the frontends speaks for nobody.
		inside := r.opt.RunDir + "/https" // HAProxy's names fill sun_path (unix(7))
		conn, err := net.Dial("unix", "@"+inside+strings.Repeat("\x00", 107-len(inside)))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "PROXY TCP4 10.1.2.3 127.0.0.1 1 443\r\n")
		stranger := tls.Client(conn, &tls.Config{ServerName: "ended.test", InsecureSkipVerify: true}) //nolint:gosec // as above
		if err := stranger.HandshakeContext(t.Context()); err == nil {
			if got := over(stranger, "ended.test"); strings.Contains(got, "10.1.2.3") {
				t.Errorf("a stranger spoke for a client: %q", got)
			}
		}
		_ = conn.Close()

		// What runs goes on, whether passing through begins, ends, or only reloads.
		running := map[string]*tls.Conn{}
		for _, name := range []string{"whole.test", "ended.test"} {
			if running[name], err = secured(t, r.https.String(), "127.0.0.1", "", name); err != nil {
				t.Fatal(err)
			}
		}
		again := *cfg
		again.Process.MaxConn = 500
		for _, next := range []*Config{&again, &none} {
			r.eventually("a reload", func() bool { return r.apply(next, states(next, Open)).Reloaded })
			if got, want := over(running["whole.test"], "whole.test"),
				"whole.test 200 whole.test over HTTP/1.1"; got != want {
				t.Errorf("what ran through the reload: got %q, want %q", got, want)
			}
			if err := check(binary, r.opt.Dir); err != nil {
				t.Error(err)
			}
		}
		if got, want := over(running["ended.test"], "ended.test"), "ended 200 127.0.0.1"; got != want {
			t.Errorf("what ran through the reload: got %q, want %q", got, want)
		}
		if got, want := over(kept, "ended.test"), "ended 200 127.0.0.1"; got != want {
			t.Errorf("what ran through every reload: got %q, want %q", got, want)
		}
		if conn, err := secured(t, r.https.String(), "127.0.0.1", "", "whole.test"); err != nil ||
			!strings.HasPrefix(over(conn, "whole.test"), "default certificate") {
			t.Errorf("it is passed through still, %v", err)
		}
	})
}
