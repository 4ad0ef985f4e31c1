package haproxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quic-go/quic-go/http3"
)

// speaksQUIC reports whether a HAProxy says that it is built with QUIC.
func speaksQUIC(t *testing.T, binary string) bool {
	t.Helper()
	out, err := exec.Command(binary, "-vv").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(out), "+QUIC ")
}

func TestHTTP3IsSpokenWhereHAProxyCan(t *testing.T) {
	var speaks atomic.Bool
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		verdicts, err := r.p.Vet(t.Context(), []Question{QUICSupport()})
		if err != nil {
			t.Fatal(err)
		}
		can := speaksQUIC(t, binary)
		if can {
			speaks.Store(true)
		}
		if why := verdicts[QUICSupport().Part()].Why; (why == "") != can ||
			!can && !strings.Contains(why, "QUIC is not compiled in") {
			t.Errorf("HAProxy's word on QUIC: %q, and it is built with it: %t", why, can)
		}
		if !can {
			return
		}
		a := newAuthority(t, "a")
		app, whole := backend("app", origin(t, "app")), backend("whole", secureOrigin(t, a, "whole.test"))
		whole.TCP = true
		cfg := r.config(app)
		cfg.Certs = []*Cert{{Name: "app.pem", Hosts: []string{"app.test"}, PEM: a.issue(t, "app.test")}}
		cfg.Process.QUIC = QUIC{Port: r.https.Port(), MaxAge: 60}
		cfg.Group = &Group{Self: "one", Secret: secretOf("a")} // TLS tickets, too
		cfg.Process.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		ask := func() string {
			transport := &http3.Transport{TLSClientConfig: &tls.Config{ServerName: "app.test", InsecureSkipVerify: true}} //nolint:gosec // the certificate is what is looked at
			defer transport.Close()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.https.String()+"/",
				http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Host = "app.test"
			response, err := transport.RoundTrip(request)
			if err != nil {
				return err.Error()
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			return fmt.Sprint(response.Proto, " ", response.StatusCode, " ", strings.TrimSpace(string(body)), " ",
				response.TLS.PeerCertificates[0].Subject.CommonName)
		}
		for _, through := range []bool{false, true} {
			next := *cfg
			if through {
				next.Inspect, next.Backends = true, []*Backend{app, whole}
				next.Routes = append(next.Routes,
					&Route{Host: "whole.test", Path: "/", Match: Passthrough, Backend: "whole"})
			}
			r.settle(&next, states(&next, Open))
			if got, want := ask(), "HTTP/3.0 200 app app.test"; got != want {
				t.Errorf("beside passing through, %t: got %q, want %q", through, got, want)
			}
			conn, err := secured(t, r.https.String(), "127.0.0.1", "", "app.test")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: app.test\r\n\r\n")
			text, _ := io.ReadAll(conn)
			if want := fmt.Sprintf("alt-svc: h3=\":%d\"; ma=60\r\n", r.https.Port()); !strings.Contains(string(text),
				want) {
				t.Errorf("over TCP: want %q in %q", want, text)
			}
			if err := check(binary, r.opt.Dir); err != nil {
				t.Error(err)
			}
		}
		if files, _ := filepath.Glob(filepath.Join(r.opt.RunDir, vetDir+"*")); len(files) > 0 {
			t.Errorf("it left %q", files)
		}
	})
	if !speaks.Load() {
		t.Error("no HAProxy here is built with QUIC")
	}
}

// Both families have their own way to be written.
func TestHTTP3IsAcceptedAtEveryAddress(t *testing.T) {
	addr := netip.MustParseAddrPort
	cfg := &Config{
		Shape: Shape{
			Bind: Bind{HTTPS: []netip.AddrPort{
				addr("127.0.0.1:443"), addr("[::1]:443"), addr("0.0.0.0:8443"),
				addr("[::]:8443"), addr("127.0.0.1:8443"),
			}},
			Process: Process{QUIC: QUIC{Port: 443, Announce: 8443, MaxAge: 3600}, StrictSNI: true, ALPN: "http/1.1"},
		},
	}
	text := string(Render(cfg, nil, RenderOptions{Dir: "/d", StatsSocket: "/s/w.sock"}).Content[configFile].Content)
	for _, want := range []string{
		"  limited-quic\n",
		"  bind quic4@127.0.0.1:443 ssl crt-list /d/certs/crt-list alpn h3 strict-sni\n",
		"  bind quic6@[::1]:443 v6only ssl ", "  bind quic4@0.0.0.0:443 ssl ",
		"  http-after-response set-header alt-svc 'h3=\":8443\"; ma=3600'\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	leaving := *cfg
	leaving.Leaving = true
	text = string(Render(&leaving, nil, RenderOptions{Dir: "/d", StatsSocket: "/s/w.sock"}).Content[configFile].Content)
	if want := "  http-after-response set-header alt-svc clear\n"; !strings.Contains(text, want) ||
		strings.Contains(text, "h3=") {
		t.Errorf("want %q alone in\n%s", want, text)
	}
	for _, binary := range binaries(t) {
		if speaksQUIC(t, binary) {
			if err := errors.Join(accepted(t, binary, cfg), accepted(t, binary, &leaving)); err != nil {
				t.Error(err)
			}
		}
	}
}
