package haproxy

import (
	"bufio"
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"
)

// oneSession is a cache that has the last session for every name.
type oneSession struct{ last *tls.ClientSessionState }

func (c *oneSession) Get(string) (*tls.ClientSessionState, bool)    { return c.last, c.last != nil }
func (c *oneSession) Put(_ string, session *tls.ClientSessionState) { c.last = session }

// visit asks for a page of a host by a connection of its own. It returns the
// status, 0 if there is no answer, and whether a session was resumed.
func (r *rig) visit(host string, version uint16, sessions *oneSession,
	own *tls.Certificate,
) (status int, resumed bool) {
	r.t.Helper()
	conn, err := tls.Dial("tcp", r.https.String(), &tls.Config{
		ServerName: host, InsecureSkipVerify: true, ClientSessionCache: sessions, MaxVersion: version, //nolint:gosec // what the server does is looked at
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if own == nil {
				return &tls.Certificate{}, nil
			}
			return own, nil
		},
	})
	if err != nil {
		return 0, false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	request, err := http.NewRequest(http.MethodGet, "https://"+host+"/", http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := request.Write(conn); err != nil {
		return 0, false
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return 0, false
	}
	_ = response.Body.Close()
	return response.StatusCode, conn.ConnectionState().DidResume
}

func TestNoTLSSessionIsResumedWhereClientsShowCertificates(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
		victims, evils := must[*Extra](t)(Authorities("victim", ours.pem())),
			must[*Extra](t)(Authorities("evil", theirs.pem()))
		victim, evil := backend("victim", origin(t, "the secret")), backend("evil", origin(t, "evil"))
		cfg := r.config(victim, evil, backend("open", origin(t, "all")))
		cfg.Certs = []*Cert{{
			Name: "open.pem", Hosts: []string{"open.test", "evil.test", "victim.test"},
			PEM: ours.issue(t, "open.test"),
		}}
		// What the operator says of the cache counts as long as nobody asks for certificates.
		cfg.Tune.Base = "global\n  tune.ssl.cachesize 1000\n"
		r.apply(cfg, states(cfg, Open))
		versions := map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13}
		sessions := &oneSession{}
		_, _ = r.visit("open.test", tls.VersionTLS13, sessions, nil) // Go resumes those of TLS 1.2 by tickets alone
		if status, resumed := r.visit("open.test", tls.VersionTLS13, sessions, nil); status != 200 || !resumed {
			t.Errorf("status %d, resumed: %t; want a session to be resumed while no name asks for certificates", status,
				resumed)
		}

		victim.Directives, evil.Directives = []Directive{OnlyOwnTLS(false)}, []Directive{OnlyOwnTLS(false)}
		next := r.config(backend("open", cfg.Backends[1].Servers...),
			&Backend{Name: "victim", Servers: victim.Servers, Directives: victim.Directives},
			&Backend{Name: "evil", Servers: evil.Servers, Directives: evil.Directives})
		next.Tune = cfg.Tune
		next.Extras = []*Extra{evils, victims}
		next.Certs = []*Cert{
			{Name: "_evil.pem", Hosts: []string{"evil.test"}, PEM: theirs.issue(t, "evil.test"), ClientCA: evils.Name},
			{
				Name: "_victim.pem", Hosts: []string{"victim.test"}, PEM: ours.issue(t, "victim.test"),
				ClientCA: victims.Name,
			},
			{Name: "open.pem", Hosts: []string{"open.test"}, PEM: cfg.Certs[0].PEM},
		}
		r.settle(next, states(next, Open))
		mine, eves := keyPair(t, ours.issue(t, "ann")), keyPair(t, theirs.issue(t, "eve"))
		r.eventually("clients are asked for certificates", func() bool {
			status, _ := r.visit("evil.test", tls.VersionTLS13, &oneSession{}, nil)
			return status == 0
		})
		for name, version := range versions {
			for _, made := range []string{"evil.test", "open.test"} {
				sessions := &oneSession{}
				if status, _ := r.visit(made, version, sessions, &eves); status != 200 {
					t.Errorf("%s: %s: status %d, want 200", name, made, status)
				}
				if status, resumed := r.visit("victim.test", version, sessions, &eves); status != 0 || resumed {
					t.Errorf("%s: with a session made under %s: status %d, resumed: %t; want no handshake", name, made,
						status, resumed)
				}
			}
			sessions := &oneSession{}
			for range 2 {
				if status, resumed := r.visit("victim.test", version, sessions, &mine); status != 200 || resumed {
					t.Errorf("%s: a member: status %d, resumed: %t; want 200 by a handshake of its own", name, status,
						resumed)
				}
			}
		}
		text := string(r.p.disk.have[configFile].Content)
		if strings.Contains(text, "cachesize 1000") || strings.Count(text, cacheSize) != 1 {
			t.Error("the operator's text has a word in how many sessions are kept")
		}
	})
}

func TestWhatIsDemandedOfAllClientsHoldsOnEveryWayIn(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
		all, evils := must[*Extra](t)(Authorities("all", ours.pem())),
			must[*Extra](t)(Authorities("evil", theirs.pem()))
		app := backend("app", origin(t, "the secret"))
		app.Directives = []Directive{must[Directive](t)(SetResponseHeader("X-Who", "%[ssl_c_s_dn(CN)]"))}
		cfg := r.config(app, backend("evil", origin(t, "evil")), backend("tls"))
		cfg.Routes[2].TLSOnly = true
		cfg.Extras = []*Extra{all, evils}
		cfg.Process.ClientCA = all.Name
		// Package ingress rejects every Ingress that asks for this.
		weaker := &Cert{
			Name: "_evil.pem", Hosts: []string{"evil.test"}, PEM: theirs.issue(t, "evil.test"),
			ClientCA: evils.Name, ClientOptional: true,
		}
		cfg.Certs = []*Cert{weaker}
		r.apply(cfg, states(cfg, Open))
		mine, eves := keyPair(t, ours.issue(t, "ann")), keyPair(t, theirs.issue(t, "root"))
		hold := func(when string, rows []clientRow) {
			t.Helper()
			for _, c := range rows {
				if status, body := ask(t, c.client, c.address); status != c.status || status == 200 && c.body != body {
					t.Errorf("%s: %s: %d %q, want %d %q", when, c.what, status, body, c.status, c.body)
				}
			}
		}
		plain := r.client("")
		plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		hold("demanded", []clientRow{
			{"a member", "https://app.test/", r.client("", mine), 200, "the secret"},
			{"nobody", "https://app.test/", r.client(""), 0, ""},
			{"in the clear", "http://app.test/", plain, 403, ""},
			{"in the clear, where it is redirected", "http://tls.test/", plain, 302, ""},
			{"nobody, by the weaker host", "https://app.test/", r.client("evil.test"), 403, ""},
			{"nobody, at the weaker host", "https://evil.test/", r.client("evil.test"), 403, ""},
			{"one of the other authority, by its host", "https://app.test/", r.client("evil.test", eves), 421, ""},
		})

		// Where it is optional, nobody passes for another by another authority.
		next := *cfg
		next.Process.ClientOptional = true
		r.settle(&next, states(&next, Open))
		r.eventually("it is optional", func() bool {
			status, _ := ask(t, r.client(""), "https://app.test/")
			return status == 200
		})
		hold("optional", []clientRow{
			{"a member", "https://app.test/", r.client("", mine), 200, "the secret"},
			{"nobody", "https://app.test/", r.client(""), 200, "the secret"},
			{"in the clear", "http://app.test/", r.client(""), 200, "the secret"},
			{"one of the other authority", "https://app.test/", r.client("", eves), 0, ""},
			{"one of the other authority, by its host", "https://app.test/", r.client("evil.test", eves), 421, ""},
			{"one of the other authority, at its host", "https://evil.test/", r.client("", eves), 200, "evil"},
		})
	})
}

type clientRow struct {
	what, address string
	client        *http.Client
	status        int
	body          string
}
