package haproxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestASessionOfOneMemberIsResumedAtAnother(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		app, cert := backend("app", origin(t, "ok")), testCert(t, "app.pem", "app", "app.test")
		one, two, stranger := newMember(t, binary, "one"), newMember(t, binary, "two"), newMember(t, binary, "three")
		for _, m := range []*member{one, two, stranger} {
			m.wish = m.config(app).grouped(m, "a secret of the group", one, two)
			m.wish.Certs, m.wish.Period = []*Cert{cert}, 100
		}
		stranger.wish.Group.Secret = secretOf("another")
		at := func(m *member, period int) Result {
			t.Helper()
			next := *m.wish
			next.Period = period
			return m.apply(&next, states(&next, Open))
		}
		expect := func(what string, m *member, want bool) {
			t.Helper()
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				client := newResumer(t, version)
				if client.visits(one) {
					t.Errorf("%s: a first visit resumes a session", what)
				}
				if got := client.visits(m); got != want {
					t.Errorf("%s, %s: the session of one is resumed: %t, want %t", what, tls.VersionName(version), got,
						want)
				}
			}
		}
		for _, m := range []*member{one, two, stranger} {
			m.settle(m.wish, states(m.wish, Open))
		}
		expect("at the first itself", one, true)
		expect("in one period", two, true)
		expect("at a stranger", stranger, false)

		if res := at(one, 101); res.Reloaded || res.Commands != 1 {
			t.Errorf("in the next period: got %+v, want one command", res)
		}
		expect("one is ahead", two, true)
		if res := at(two, 102); res.Reloaded || res.Commands != 2 {
			t.Errorf("two periods later: got %+v, want two commands", res)
		}
		expect("one is behind", two, true)
		at(two, 103)
		expect("one is two periods behind", two, false)
		if res := at(two, 90); res.Reloaded || res.Commands != 3 {
			t.Errorf("with a clock that was wrong: got %+v, want three commands", res)
		}
		if res := at(two, 90); res.Commands > 0 {
			t.Errorf("once more: got %+v, want nothing to do", res)
		}
		at(two, 101)
		two.p = two.fresh()
		if res := at(two, 101); res.Reloaded || res.Commands > 0 {
			t.Errorf("after a restart of sallyport: got %+v, want nothing to do", res)
		}
		expect("after a restart of sallyport", two, true)

		next := *two.wish
		next.Period, next.Process.MaxConn = 102, 1000
		if res := two.apply(&next, states(&next, Open)); !res.Reloaded {
			t.Errorf("with another setting: got %+v, want a reload", res)
		}
		expect("after a reload in the next period", two, true)
		if info, err := os.Stat(filepath.Join(two.opt.Dir, ticketFile)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file of the keys: got %v, %v, want mode 0600", info, err)
		}
	})
}

func TestWithoutAGroupThereAreNoTickets(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		one, two := newMember(t, binary, "one"), newMember(t, binary, "two")
		app := backend("app", origin(t, "ok"))
		for _, m := range []*member{one, two} {
			cfg := m.config(app)
			m.settle(cfg, states(cfg, Open))
			if _, err := os.Stat(filepath.Join(m.opt.Dir, ticketFile)); err == nil {
				t.Error("there is a file of keys")
			}
		}
		client := newResumer(t, tls.VersionTLS12)
		if client.visits(one) || client.visits(two) {
			t.Error("a session is resumed at another HAProxy")
		}
	})
}

// A ticket would bring a client's certificate to another name, and to another member.
func TestThereAreNoTicketsWithCertificatesOfClients(t *testing.T) {
	a := newAuthority(t, "a")
	ca, err := Authorities("a", a.pem())
	if err != nil {
		t.Fatal(err)
	}
	withEach(t, func(t *testing.T, binary string) {
		one, two := newMember(t, binary, "one"), newMember(t, binary, "two")
		for _, m := range []*member{one, two} {
			cfg := m.config(backend("app", origin(t, "ok"))).grouped(m, "a secret of the group", one, two)
			cfg.Extras, cfg.Process.ClientCA, cfg.Process.ClientOptional = []*Extra{ca}, ca.Name, true
			m.settle(cfg, states(cfg, Open))
			cfg.Period++
			if res := m.apply(cfg, states(cfg, Open)); res.Commands > 0 {
				t.Errorf("in the next period: got %+v, want nothing to do", res)
			}
		}
		client := newResumer(t, tls.VersionTLS12)
		if client.visits(one) || client.visits(two) {
			t.Error("a session is resumed at another HAProxy")
		}
	})
}

func TestTheTurnsOfKeysAreTheFewestThatReachTheWish(t *testing.T) {
	for name, c := range map[string]struct{ have, want, turns string }{
		"the same":          {"a b c", "a b c", ""},
		"the next period":   {"a b c", "b c d", "d"},
		"two periods later": {"a b c", "c d e", "d e"},
		"all others":        {"a b c", "d e f", "d e f"},
		"back":              {"b c d", "a b c", "a b c"},
		"none are loaded":   {"", "a b c", ""},
		"none are wanted":   {"a b c", "", ""},
	} {
		if got := strings.Join(turns(strings.Fields(c.have), strings.Fields(c.want)), " "); got != c.turns {
			t.Errorf("%s: got %q, want %q", name, got, c.turns)
		}
	}
}

func TestTicketKeysFollowTheClock(t *testing.T) {
	g := &Group{Secret: secretOf("a")}
	at := func(clock string) []string {
		now, err := time.Parse(time.RFC3339, clock)
		if err != nil {
			t.Fatal(err)
		}
		return g.tickets(PeriodOf(now))
	}
	morning, noon, night := at("2026-11-23T00:00:00Z"), at("2026-11-23T11:59:59Z"), at("2026-11-23T12:00:00Z")
	if !slices.Equal(morning, noon) {
		t.Error("the keys change within a period")
	}
	if slices.Equal(noon, night) || !slices.Equal(noon[1:], night[:2]) {
		t.Error("the next period does not have the next key in the middle")
	}
	other := &Group{Secret: secretOf("b")}
	for _, key := range other.tickets(PeriodOf(time.Unix(0, 0))) {
		if slices.Contains(g.tickets(0), key) {
			t.Error("two secrets have the same key")
		}
	}
}

// resumer is a client that resumes a session wherever it can.
type resumer struct {
	t      *testing.T
	config *tls.Config
}

func newResumer(t *testing.T, version uint16) *resumer {
	return &resumer{t, &tls.Config{
		ServerName: "app.test", MinVersion: version, MaxVersion: version,
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
		InsecureSkipVerify: true, //nolint:gosec // each member has a certificate of its own
	}}
}

// visits sends a request, and reports whether it resumed a session.
func (c *resumer) visits(m *member) bool {
	c.t.Helper()
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", m.https.String(), c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil) // TLS 1.3 brings its ticket before the answer
	if err != nil {
		c.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		c.t.Fatalf("got %s", answer.Status)
	}
	return conn.ConnectionState().DidResume
}
