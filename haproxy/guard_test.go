package haproxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// authority is a certificate authority.
type authority struct {
	der []byte
	crt *x509.Certificate
	key *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{key: key}
	if a.der, err = x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key); err != nil {
		t.Fatal(err)
	}
	if a.crt, err = x509.ParseCertificate(a.der); err != nil {
		t.Fatal(err)
	}
	return a
}

// pem returns the certificate of the authority, by which clients and servers trust it.
func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der})
}

// issue returns a certificate for a name, with its key.
func (a *authority) issue(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.crt, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
}

func keyPair(t *testing.T, text []byte) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client returns a client that reaches the rig by any host name. Its TLS has the server
// name sni, or the host of the URL if sni is empty.
func (r *rig) client(sni string, certificates ...tls.Certificate) *http.Client {
	jar, _ := cookiejar.New(nil) // it never fails
	// The client shows its certificate even if no authority that the server names has
	// issued it.
	show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(certificates) == 0 {
			return &tls.Certificate{}, nil
		}
		return &certificates[0], nil
	}
	return &http.Client{Jar: jar, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			to := r.http
			if strings.HasSuffix(addr, ":443") {
				to = r.https
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: sni, GetClientCertificate: show}, //nolint:gosec // the test is about the certificates of clients
	}}
}

// ask returns the status and the body of a response.
func ask(t *testing.T, c *http.Client, address string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if u := request.URL.User; u != nil {
		password, _ := u.Password()
		request.SetBasicAuth(u.Username(), password)
	}
	response, err := c.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, strings.TrimSpace(string(body))
}

// reload applies cfg with another setting of the process, so that HAProxy reloads.
func (r *rig) reload(cfg *Config) *Config {
	r.t.Helper()
	next := *cfg
	next.Process = Process{MaxConn: 500}
	if res := r.apply(&next, states(&next, Open)); !res.Reloaded {
		r.t.Error("it did not reload")
	}
	return &next
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// secretHash is a hash of "secret", from `openssl passwd -6 -salt salt`.
const secretHash = "$6$salt$egUxKNxDs8kPfh8iPMNcosMhb2eWah6d3R44JDm5Rj/j/XWR5E33QPd0YmHXoDHOIDR6kL5D3JcQcz0O8FHE00"

func TestOnlyWhoMayComesIn(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
		ca := must[*Extra](t)(Authorities("ours", ours.pem()))
		secret := backend("secret", origin(t, "the secret"))
		secret.Directives = []Directive{must[Directive](t)(BasicAuth{Userlist: "users", Realm: "A realm"}.Directive())}
		members, guests := backend("members", origin(t, "the members")), backend("guests", origin(t, "the guests"))
		members.Directives, guests.Directives = []Directive{OnlyOwnTLS(false)}, []Directive{OnlyOwnTLS(true)}
		closed := backend("closed", origin(t, "nobody"))
		closed.Directives = []Directive{Close()}
		cfg := r.config(secret, members, guests, closed, backend("open", origin(t, "all")))
		for host, path := range map[string]string{
			"members.test": "/other", "a.wild.test": "/", "b.a.wild.test": "/", "spared.wild.test": "/",
			"nobody.test": "/", "ann.test": "/", "a.some.test": "/", "own.some.test": "/", "spared.some.test": "/", "maybe.test": "/",
		} {
			cfg.Routes = append(cfg.Routes, &Route{Host: host, Path: path, Match: Prefix, Backend: "open"})
		}
		cfg.Extras = []*Extra{ca}
		cfg.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("ann", secretHash))}}}
		cfg.Certs = []*Cert{
			{
				Name: "_guests.pem", Hosts: []string{"guests.test"}, PEM: ours.issue(t, "guests.test"), ClientCA: ca.Name,
				ClientOptional: true,
			},
			{
				Name: "_members.pem", Hosts: []string{"members.test"}, PEM: ours.issue(t, "members.test"),
				ClientCA: ca.Name,
			},
			{
				Name: "_wild.pem", Hosts: []string{"*.wild.test"}, Except: []string{"spared.wild.test"},
				PEM: ours.issue(t, "*.wild.test"), ClientCA: ca.Name,
			},
			{Name: "open.pem", Hosts: []string{"open.test"}, PEM: ours.issue(t, "open.test")},
			{
				Name: "_ann.pem", Hosts: []string{"ann.test"}, PEM: ours.issue(t, "ann.test"), ClientCA: ca.Name,
				ClientMatch: "^CN=ann$",
			},
			{
				Name: "_nobody.pem", Hosts: []string{"nobody.test"}, PEM: ours.issue(t, "nobody.test"), ClientCA: ca.Name,
				ClientMatch: NoSubject,
			},
			{
				Name: "_maybe.pem", Hosts: []string{"maybe.test"}, PEM: ours.issue(t, "maybe.test"), ClientCA: ca.Name,
				ClientMatch: "^CN=ann$", ClientOptional: true,
			},
			{
				Name: "_some.pem", Hosts: []string{"*.some.test"}, Except: []string{"spared.some.test"},
				PEM: ours.issue(t, "*.some.test"), ClientCA: ca.Name, ClientMatch: "it's ann",
			},
			{
				Name: "_own.pem", Hosts: []string{"own.some.test"}, PEM: ours.issue(t, "own.some.test"),
				ClientCA: ca.Name,
			},
		}
		slices.SortFunc(cfg.Certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
		r.apply(cfg, states(cfg, Open))

		mine, foreign := keyPair(t, ours.issue(t, "ann")), keyPair(t, theirs.issue(t, "eve"))
		bob := keyPair(t, ours.issue(t, "bob"))
		for _, c := range []struct {
			what    string
			address string
			client  *http.Client
			status  int
			body    string
		}{
			{"nobody", "http://secret.test/", r.client(""), 401, ""},
			{"the password", "http://ann:secret@secret.test/", r.client(""), 200, "the secret"},
			{"another password", "http://ann:other@secret.test/", r.client(""), 401, ""},
			{"another name", "http://eve:secret@secret.test/", r.client(""), 401, ""},
			{"a closed backend", "http://closed.test/", r.client(""), 503, ""},

			{"a member", "https://members.test/", r.client("", mine), 200, "the members"},
			{"one without a certificate", "https://members.test/", r.client(""), 0, ""},
			{"one of another authority", "https://members.test/", r.client("", foreign), 0, ""},
			{"one by another name's connection", "https://members.test/", r.client("open.test", mine), 421, ""},
			{
				"one by another name's connection, certificate or not", "https://members.test/",
				r.client("guests.test", mine), 421, "",
			},
			{"another backend of the host", "https://members.test/other", r.client("", mine), 200, "all"},
			{
				"another backend of the host, without a certificate, by another name's connection",
				"https://members.test/other", r.client("open.test"), 421, "",
			},
			{"without a name", "https://members.test/other", r.client("192.0.2.1"), 421, ""},
			{"a host of a wildcard", "https://a.wild.test/", r.client("", mine), 200, "all"},
			{"a host of a wildcard, by another name's connection", "https://a.wild.test/", r.client("open.test"), 421, ""},
			{"a host that is spared", "https://spared.wild.test/", r.client("open.test"), 200, "all"},
			{"a host that is below the wildcard's", "https://b.a.wild.test/", r.client("open.test"), 200, "all"},
			{"a subject that matches", "https://ann.test/", r.client("", mine), 200, "all"},
			{"another subject", "https://ann.test/", r.client("", bob), 403, ""},
			{"a subject that matches, by another name's connection", "https://ann.test/", r.client("members.test", mine), 421, ""},
			{"a host whose subjects are invalid", "https://nobody.test/", r.client("", mine), 503, ""},
			{"no certificate, where it is optional", "https://maybe.test/", r.client(""), 403, ""},
			{"a subject that matches, where it is optional", "https://maybe.test/", r.client("", mine), 200, "all"},
			{"another subject at a host of a wildcard", "https://a.some.test/", r.client("", mine), 403, ""},
			{"a host with a certificate of its own", "https://own.some.test/", r.client("", bob), 200, "all"},
			{"a host that is spared", "https://spared.some.test/", r.client(""), 200, "all"},
			{"another subject at another host", "https://members.test/", r.client("", bob), 200, "the members"},
			{"one in the clear", "http://members.test/", r.client(""), 403, ""},
			{"a guest with a certificate", "https://guests.test/", r.client("", mine), 200, "the guests"},
			{"a guest without", "https://guests.test/", r.client(""), 200, "the guests"},
			{"a guest of another authority", "https://guests.test/", r.client("", foreign), 0, ""},
			{"all", "https://open.test/", r.client(""), 200, "all"},
		} {
			if status, body := ask(t, c.client, c.address); status != c.status || c.body != "" && body != c.body {
				t.Errorf("%s: %d %q, want %d %q", c.what, status, body, c.status, c.body)
			}
		}

		// A change of the authority takes a reload. Then clients with its certificates
		// are admitted.
		next := *cfg
		next.Extras = []*Extra{must[*Extra](t)(Authorities("ours", theirs.pem()))}
		if res := r.apply(&next, states(&next, Open)); !res.Reloaded {
			t.Errorf("no reload: %+v", res)
		}
		r.eventually("who was a member is none", func() bool {
			status, _ := ask(t, r.client("", mine), "https://members.test/")
			return status == 0
		})
		if status, body := ask(t, r.client("", foreign), "https://members.test/"); status != 200 {
			t.Errorf("the new members: %d %q", status, body)
		}

		// Process.ClientCA applies to every name without a ClientCA of its own.
		next.Process = Process{ClientCA: Nobody}
		r.settle(&next, states(&next, Open))
		r.eventually("nobody comes in", func() bool {
			status, _ := ask(t, r.client("", mine, foreign), "https://open.test/")
			return status == 0
		})
	})
}

func TestServersAreShownACertificateAndShowOne(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
		pool := x509.NewCertPool()
		pool.AddCert(ours.crt)
		secure := func(by *authority) Server {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
			}))
			s.TLS = &tls.Config{
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
				Certificates: []tls.Certificate{keyPair(t, by.issue(t, "server"))},
			}
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			t.Cleanup(s.Close)
			return serverAt(s.Listener.Addr())
		}
		ca, crt := must[*Extra](t)(Authorities("ours", ours.pem())),
			must[*Extra](t)(ClientCertificate("appliance", ours.issue(t, "appliance")))
		options := ServerOptions{TLS: true, CA: ca.Name, Crt: crt.Name}
		good, bad := backend("good"), backend("bad")
		good.Options, bad.Options = options, options
		cfg := r.config(good, bad)
		cfg.Extras = []*Extra{crt, ca}
		r.apply(cfg, nil)

		// Servers that are added by command have all options, too.
		good, bad = backend("good", secure(ours)), backend("bad", secure(theirs))
		good.Options, bad.Options = options, options
		next := r.config(good, bad)
		next.Extras = cfg.Extras
		if res := r.apply(next, states(next, Open)); res.Reloaded {
			t.Error("it reloaded")
		}
		check := func(how string) {
			t.Helper()
			if got := r.get("good.test", "/"); got != "appliance" {
				t.Errorf("%s: the server saw the certificate of %q, want the appliance's", how, got)
			}
			if got := r.get("bad.test", "/"); got != "503" {
				t.Errorf("%s: a server with a certificate of another authority answered: %q", how, got)
			}
		}
		check("by command")
		r.reload(next)
		check("from the file")
	})
}

func TestServersAreAskedByNameAndHaveToBeIt(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		ours := newAuthority(t, "ours")
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.TLS.ServerName)
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{keyPair(t, ours.issue(t, "server.test"))}}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		ca := must[*Extra](t)(Authorities("ours", ours.pem()))
		rows := map[string]struct {
			options ServerOptions
			want    string
		}{
			"nothing":       {ServerOptions{}, ""},
			"name":          {ServerOptions{SNI: "server.test"}, "server.test"},
			"unverified":    {ServerOptions{SNI: "other.test"}, "other.test"},
			"host":          {ServerOptions{SNI: SNIOfHost}, "host.test"},
			"client":        {ServerOptions{SNI: SNIOfClient}, "client.test"},
			"verified":      {ServerOptions{CA: ca.Name, SNI: "server.test"}, "server.test"},
			"verified-host": {ServerOptions{CA: ca.Name, VerifyHost: "server.test"}, ""},
			"verified-both": {ServerOptions{CA: ca.Name, SNI: "server.test", VerifyHost: "server.test"}, "server.test"},
			"wrong":         {ServerOptions{CA: ca.Name, SNI: "other.test"}, "503"},
			"wrong-host":    {ServerOptions{CA: ca.Name, VerifyHost: "other.test"}, "503"},
		}
		at := func(servers ...Server) *Config {
			var all []*Backend
			for name, row := range rows {
				b := backend(name, servers...)
				b.Options = row.options
				b.Options.TLS, b.Options.Check = true, true
				all = append(all, b)
			}
			cfg := r.config(all...)
			cfg.Extras = []*Extra{ca}
			return cfg
		}
		cfg := at()
		r.apply(cfg, nil)
		cfg = at(serverAt(s.Listener.Addr()))
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Error("it reloaded")
		}
		check := func(how string) {
			t.Helper()
			for name, row := range rows {
				status, got := ask(t, r.client(""), "https://"+name+".test/")
				if status != 200 {
					got = strconv.Itoa(status)
				}
				if got != row.want {
					t.Errorf("%s, %s: the server was asked for %q, want %q", how, name, got, row.want)
				}
			}
		}
		check("by command")
		r.reload(cfg)
		check("from the file")
	})
}

func TestACookieLeadsBack(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		d := must[Directive](t)(Cookie{Name: "SRV", HTTPOnly: true}.Directive())
		var servers []Server
		for i := range 4 {
			servers = append(servers, origin(t, strconv.Itoa(i)))
		}
		at := func(servers ...Server) *Config {
			b := backend("app", servers...)
			b.Directives = []Directive{d}
			return r.config(b)
		}
		cfg := at()
		r.apply(cfg, nil)
		cfg = at(slices.Clone(servers)...)
		if res := r.apply(cfg, states(cfg, Open)); res.Reloaded {
			t.Error("it reloaded")
		}
		first := make(map[*http.Client]string)
		seen := make(map[string]bool)
		for range 8 {
			c := r.client("")
			_, first[c] = ask(t, c, "http://app.test/")
			seen[first[c]] = true
		}
		if len(seen) != len(servers) {
			t.Fatalf("8 clients came to %d servers, want all %d", len(seen), len(servers))
		}
		back := func(how string) {
			t.Helper()
			for c, want := range first {
				for range 3 {
					if _, got := ask(t, c, "http://app.test/"); got != want {
						u, _ := url.Parse("http://app.test/")
						t.Errorf("%s: a client of server %s came to %s, with %v", how, want, got, c.Jar.Cookies(u))
					}
				}
			}
		}
		back("by command")
		next := r.reload(cfg)
		back("after a reload")

		// A client whose server is gone goes to another one, and stays there.
		fewer := at(slices.DeleteFunc(slices.Clone(servers), func(s Server) bool { return s == servers[0] })...)
		fewer.Process = next.Process
		r.settle(fewer, states(fewer, Open))
		for c, was := range first {
			if was == "0" {
				_, first[c] = ask(t, c, "http://app.test/")
				if first[c] == "0" {
					t.Error("the server that is gone answers")
				}
			}
		}
		back("after one is gone")
	})
}

func TestTheDefaultCertificateCanBeNamed(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "a")
		cfg := r.config(backend("app", origin(t, "app")))
		cfg.Bind.HTTPS = []netip.AddrPort{r.https}
		r.apply(cfg, states(cfg, Open))
		if got := r.served("unknown.test"); !strings.HasPrefix(got, "default certificate") {
			t.Errorf("first %q is served", got)
		}
		named := *cfg
		named.DefaultCert = a.issue(t, "named.test")
		r.settle(&named, states(&named, Open))
		r.eventually("the named one is served", func() bool { return r.served("unknown.test") == "named.test" })
		r.settle(cfg, states(cfg, Open))
		r.eventually("the first one is served again", func() bool {
			return strings.HasPrefix(r.served("unknown.test"), "default certificate")
		})
	})
}

func TestCertificatesAreMadeWhenAskedFor(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		a := newAuthority(t, "signer")
		private, err := x509.MarshalPKCS8PrivateKey(a.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Signer("a", a.issue(t, "nobody")); err == nil ||
			!strings.Contains(err.Error(), "not that of an authority") {
			t.Errorf("a certificate that may sign nothing: %v", err)
		}
		signer := must[*Extra](t)(
			Signer("a", append(a.pem(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)))
		cfg := r.config(backend("app", origin(t, "app")))
		cfg.Extras, cfg.Process.Signer = []*Extra{signer}, signer.Name
		cfg.Certs = []*Cert{{Name: "own.pem", Hosts: []string{"own.test"}, PEM: a.issue(t, "own.test")}}
		r.apply(cfg, states(cfg, Open))
		for _, name := range []string{"own.test", "any.test", "other.test"} {
			if got := r.served(name); got != name {
				t.Errorf("%s is served the certificate of %q", name, got)
			}
		}
	})
}

func TestAHashIsNeverShown(t *testing.T) {
	u := User{"ann", secretHash}
	if s := fmt.Sprint(u, &Userlist{"users", []User{u}}); s != "ann users" {
		t.Errorf("it reads %q", s)
	}
}

// TestOneOfSeveralGuardsIsEnough has each pair of a list, a password and a service, for clients within the list and
// outside.
func TestOneOfSeveralGuardsIsEnough(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		var asked atomic.Pointer[http.Request]
		list := func(network string) Directive {
			return Admit(Networks{Of: []netip.Prefix{netip.MustParsePrefix(network)}})
		}
		within, outside := list("127.0.0.0/8"), list("10.0.0.0/8")
		basic := func(last bool) Directive {
			return must[Directive](t)(BasicAuth{Userlist: "users", Realm: "R", Guesses: 1, Any: true, Last: last}.Directive())
		}
		service := must[Directive](t)(Ask{
			Backend: "door", Host: "door", Path: "/", Any: true, SignIn: "https://login.test/",
		}.Directive())
		denied := Deny(Networks{Of: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, false)
		backends := []*Backend{backend("door", doorman(t, &asked))}
		for name, directives := range map[string][]Directive{
			"inpass": {within, basic(true)}, "outpass": {outside, basic(true)},
			"inask": {within, service}, "outask": {outside, service},
			"passask": {basic(false), service}, "outall": {outside, basic(false), service},
			"inall": {within, basic(false), service}, "denied": {within, denied, basic(true)},
		} {
			b := backend(name, origin(t, name))
			b.Directives = directives
			SortDirectives(b.Directives)
			backends = append(backends, b)
		}
		cfg := r.config(backends...)
		cfg.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("ann", secretHash))}}}
		cfg.Extras = []*Extra{AskScript()}
		r.apply(cfg, states(cfg, Open))
		const right, wrong, bearer = "Basic YW5uOnNlY3JldA==", "Basic YW5uOndyb25n", "Bearer YW5uOndyb25n"
		status := func(host, credentials, who string) int {
			t.Helper()
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+".test/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{"Authorization": credentials, "X-Who": who} {
				if value != "" {
					request.Header.Set(name, value)
				}
			}
			client := r.client("")
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			return response.StatusCode
		}
		for _, c := range []struct {
			host, credentials, who string
			want                   int
		}{
			{"inpass", "", "", 200},
			{"inpass", "x" + strings.Repeat("y", 300), "", 200},
			{"outpass", "", "", 401},
			{"outpass", right, "", 200},
			{"outpass", "b YW5uOnNlY3JldA==", "", 401},
			{"inask", "", "eve", 200},
			{"inask", "", "", 200},
			{"outask", "", "eve", 403},
			{"outask", "", "", 302},
			{"outask", "", "ann", 200},
			{"outask", "", "broken", 503},
			{"passask", right, "eve", 200},
			{"passask", "", "ann", 200},
			{"passask", "", "eve", 403},
			{"passask", "", "", 302},
			{"passask", "Basic " + strings.Repeat("y", 300), "ann", 400},
			{"passask", "", "broken", 503},
			{"outall", "", "", 302},
			{"outall", right, "broken", 200},
			{"outall", "", "ann", 200},
			{"outall", "", "eve", 403},
			{"inall", "", "broken", 200},
			{"denied", right, "", 403},
		} {
			if got := status(c.host, c.credentials, c.who); got != c.want {
				t.Errorf("%s with %q of %q: %d, want %d", c.host, c.credentials, c.who, got, c.want)
			}
		}
		// Tokens for the service are no wrong passwords.
		for range 20 {
			if got := status("passask", bearer, "ann"); got != 200 {
				t.Fatalf("a token for the service: %d", got)
			}
		}
		r.eventually("wrong passwords are too many", func() bool { return status("passask", wrong, "eve") == 429 })
		if got := status("passask", bearer, "ann"); got != 200 {
			t.Errorf("a token beside too many wrong passwords: %d", got)
		}
	})
}

// TestABackendWithAnotherGuardIsNoStricter adds an alternative to a guard.
func TestABackendWithAnotherGuardIsNoStricter(t *testing.T) {
	list := Admit(Networks{Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	service := must[Directive](t)(Ask{Backend: "door", Host: "door", Path: "/", Any: true}.Directive())
	password := must[Directive](t)(BasicAuth{Userlist: "users", Any: true}.Directive())
	two := &Backend{Directives: []Directive{password, service}}
	three := &Backend{Directives: []Directive{list, password, service}}
	if three.covers(two) || two.covers(three) || !two.covers(two) {
		t.Error("a guard that may be passed in place of others makes a backend stricter")
	}
}
