package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// caller returns a server that writes its name, and the client's address if the connection
// begins with the PROXY protocol; then it echoes.
func caller(t *testing.T, name string, proxied bool) Server {
	t.Helper()
	return serving(t, func(conn net.Conn) {
		in, who := bufio.NewReader(conn), ""
		if proxied {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			who = " hears " + strings.Fields(line)[2]
		}
		fmt.Fprintf(conn, "%s%s\n", name, who)
		_, _ = io.Copy(conn, in)
	})
}

// said returns the first line that a server says on a connection to an address, from
// one of our own.
func said(t *testing.T, to netip.AddrPort, from, speaksFor string, config *tls.Config) (net.Conn, string) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp",
		to.String())
	if err != nil {
		return nil, "refused"
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if speaksFor != "" {
		fmt.Fprintf(conn, "PROXY TCP4 %s 127.0.0.1 1 443\r\n", speaksFor)
	}
	if config != nil {
		conn = tls.Client(conn, config)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return conn, "closed"
	}
	return conn, strings.TrimSpace(line)
}

func TestPortsLeadToTheirBackends(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		db := backend("db", caller(t, "first", false))
		cache := backend("cache", caller(t, "cache", true))
		db.TCP, cache.TCP, cache.Options.SendProxy = true, true, "proxy"
		shut := backend("shut", caller(t, "shut", false))
		shut.TCP, shut.Directives = true, []Directive{CloseTCP()}
		cfg := r.config(db, cache, shut, backend("web", origin(t, "web")))
		cfg.Routes, cfg.Tune.Base = cfg.Routes[3:], patient
		cfg.Certs = []*Cert{{Name: "db.pem", Hosts: []string{"db.test"}, PEM: a.issue(t, "db.test")}}
		ports := make([]netip.AddrPort, 5)
		for i := range ports {
			ports[i] = freePort(t)
		}
		cfg.Process.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		plain, secure, other, proxied, closed := ports[0], ports[1], ports[2], ports[3], ports[4]
		cfg.Streams = []Stream{
			{Port: plain.Port(), Backend: "db"},
			{Port: secure.Port(), Backend: "db", TLS: true},
			{Port: other.Port(), Backend: "cache"},
			{Port: proxied.Port(), Backend: "cache", Proxy: true},
			{Port: closed.Port(), Backend: "shut"},
		}
		for i := range cfg.Streams { // by port
			for j := range i {
				if cfg.Streams[i].Port < cfg.Streams[j].Port {
					cfg.Streams[i], cfg.Streams[j] = cfg.Streams[j], cfg.Streams[i]
				}
			}
		}
		r.settle(cfg, states(cfg, Open))
		named := &tls.Config{ServerName: "db.test", InsecureSkipVerify: true} //nolint:gosec // the certificate is what is looked at
		for _, c := range []struct {
			what            string
			to              netip.AddrPort
			from, speaksFor string
			config          *tls.Config
			want            string
		}{
			{"a port", plain, "127.0.0.1", "", nil, "first"},
			{"a port from where PROXY is not spoken to it", plain, "127.0.0.2", "", nil, "first"},
			{"with TLS", secure, "127.0.0.1", "", named, "first"},
			{"with PROXY to the servers", other, "127.0.0.1", "", nil, "cache hears 127.0.0.1"},
			{"with PROXY from clients", proxied, "127.0.0.2", "10.1.2.3", nil, "cache hears 10.1.2.3"},
			{"with PROXY from clients that may not", proxied, "127.0.0.1", "", nil, "cache hears 127.0.0.1"},
			{"a closed one", closed, "127.0.0.1", "", nil, "closed"},
		} {
			conn, got := said(t, c.to, c.from, c.speaksFor, c.config)
			if got != c.want {
				t.Errorf("%s: got %q, want %q", c.what, got, c.want)
			}
			if c, is := conn.(*tls.Conn); is &&
				c.ConnectionState().PeerCertificates[0].Subject.CommonName != "db.test" {
				t.Errorf("with TLS: the certificate of %v", c.ConnectionState().PeerCertificates[0].Subject)
			}
		}

		// Servers come and go by command, and what runs goes on.
		running, _ := said(t, plain, "127.0.0.1", "", nil)
		reloads := r.p.Info().Reloads
		was := db.Servers[0]
		next := *db
		next.Servers = backend("", was, caller(t, "second", false)).Servers
		more := *cfg
		more.Backends = []*Backend{cache, &next, shut, cfg.Backends[3]}
		only := states(&more, Open)
		only[ServerID{"db", was.Name}] = Closed
		r.settle(&more, only)
		if _, got := said(t, plain, "127.0.0.1", "", nil); got != "second" {
			t.Errorf("the other server: got %q", got)
		}
		fmt.Fprintln(running, "still here")
		if line, err := bufio.NewReader(running).ReadString('\n'); err != nil || line != "still here\n" {
			t.Errorf("what ran: got %q, %v", line, err)
		}
		r.settle(&more, states(&more, Closed))
		if _, got := said(t, plain, "127.0.0.1", "", nil); got != "closed" {
			t.Errorf("without a server: got %q", got)
		}
		if got := r.p.Info().Reloads; got != reloads {
			t.Errorf("servers changed with %d reloads", got-reloads)
		}

		// Its own ports are free to it, another's are not.
		strange, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer strange.Close()
		free, taken := FreePort(plain.Port()), FreePort(netip.MustParseAddrPort(strange.Addr().String()).Port())
		verdicts, err := r.fresh().Vet(t.Context(), []Question{free, taken})
		if want := fmt.Sprintf("in use by haproxy.test (pid %d)", os.Getpid()); err != nil ||
			verdicts[free.Part()] != Good || verdicts[taken.Part()] != Refused(want) {
			t.Errorf("ports: got %v, %v, want %q of the second", verdicts, err, want)
		}

		// A port that is gone takes a reload, and what runs goes on.
		r.settle(&more, states(&more, Open))
		fewer := more
		fewer.Streams = nil
		r.eventually("the port is closed", func() bool {
			_ = r.apply(&fewer, states(&fewer, Open))
			_, got := said(t, plain, "127.0.0.1", "", nil)
			return got == "refused"
		})
		if got, want := r.p.Info().LastReason, "TCP ports changed"; got != want {
			t.Errorf("the reason for the reload: got %q, want %q", got, want)
		}
		fmt.Fprintln(running, "and here")
		if line, err := bufio.NewReader(running).ReadString('\n'); err != nil || line != "and here\n" {
			t.Errorf("what ran: got %q, %v", line, err)
		}
	})
}

// TestAPortAtAnAddressOfItsOwnComesBeforeTheWildcard has HTTP on every address, and the same
// port for TCP on one.
func TestAPortAtAnAddressOfItsOwnComesBeforeTheWildcard(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		db := backend("db", caller(t, "db", false))
		db.TCP = true
		only := backend("only", caller(t, "only", false))
		only.TCP, only.Directives = true, []Directive{
			Reject(Networks{Of: []netip.Prefix{
				netip.MustParsePrefix("127.0.0.1/32"),
				netip.MustParsePrefix("127.0.0.2/32"),
			}}, true),
			RejectOthers([]netip.Prefix{netip.MustParsePrefix("127.0.0.2/32"), netip.MustParsePrefix("127.0.0.3/32")}),
		}
		cfg := r.config(db, only, backend("web", origin(t, "web")))
		cfg.Routes, cfg.Tune.Base = cfg.Routes[2:], patient
		port := r.http.Port()
		cfg.Bind.HTTP[0] = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		own, narrow := netip.MustParseAddrPort(fmt.Sprint("127.0.9.9:", port)),
			netip.MustParseAddrPort(fmt.Sprint("127.0.9.10:", port))
		cfg.Streams = []Stream{
			{Addr: own.Addr(), Port: port, Backend: "db"},
			{Addr: narrow.Addr(), Port: port, Backend: "only"},
		}
		r.settle(cfg, states(cfg, Open))
		check := func(when string) {
			t.Helper()
			if got := r.get("web.test", "/"); got != "web" {
				t.Errorf("%s: HTTP at the wildcard: got %q", when, got)
			}
			if _, got := said(t, own, "127.0.0.1", "", nil); got != "db" {
				t.Errorf("%s: TCP at the address: got %q", when, got)
			}
		}
		check("after the start")
		for from, want := range map[string]string{"127.0.0.1": "closed", "127.0.0.2": "only", "127.0.0.3": "closed"} {
			if _, got := said(t, narrow, from, "", nil); got != want {
				t.Errorf("a client has to pass both lists, %s: got %q, want %q", from, got, want)
			}
		}
		running, _ := said(t, own, "127.0.0.1", "", nil)
		next := r.reload(cfg)
		check("after a reload of something else")

		// Its own listener is free to it, another's is not, nor one at the wildcard.
		strange, err := net.Listen("tcp", "127.0.9.11:0")
		if err != nil {
			t.Fatal(err)
		}
		defer strange.Close()
		everywhere, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		defer everywhere.Close()
		taken := netip.MustParseAddrPort(strange.Addr().String())
		beside := netip.MustParseAddrPort(everywhere.Addr().String()).Port()
		questions := map[Question]bool{
			FreeListener(own): true, FreeListener(taken): false,
			FreeListener(netip.AddrPortFrom(own.Addr(), taken.Port())): true,
			FreeListener(netip.AddrPortFrom(own.Addr(), beside)):       false,
		}
		verdicts, err := r.fresh().Vet(t.Context(), slices.Collect(maps.Keys(questions)))
		if err != nil {
			t.Fatal(err)
		}
		for q, free := range questions {
			if got := verdicts[q.Part()]; got.Known != true || (got.Why == "") != free {
				t.Errorf("%v: got %+v, want free: %v", q, got, free)
			}
		}

		// The port goes, and what runs goes on. New connections meet the wildcard.
		fewer := *next
		fewer.Streams = nil
		r.settle(&fewer, states(&fewer, Open))
		r.eventually("the wildcard takes the address", func() bool {
			conn, err := net.DialTimeout("tcp", own.String(), time.Second)
			if err != nil {
				return false
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			fmt.Fprint(conn, "GET / HTTP/1.0\r\nHost: nobody.test\r\n\r\n")
			line, _ := bufio.NewReader(conn).ReadString('\n')
			return strings.Contains(line, "404")
		})
		fmt.Fprintln(running, "still here")
		if line, err := bufio.NewReader(running).ReadString('\n'); err != nil || line != "still here\n" {
			t.Errorf("what ran: got %q, %v", line, err)
		}
	})
}
