package haproxy

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// login returns how an attempt to log in with a password is answered: its status.
func (r *rig) login(host, password string) string {
	r.t.Helper()
	return r.loginFrom("", host, password)
}

// userOf returns the name of a client's user. What one client proved must not let another one in.
func userOf(client string) string {
	return "ann" + strings.NewReplacer(".", "-", ":", "-").Replace(client)
}

// loginFrom is login with a header X-Client, and with the user of this client.
func (r *rig) loginFrom(client, host, password string) string {
	r.t.Helper()
	credentials := base64.StdEncoding.EncodeToString([]byte(userOf(client) + ":" + password))
	got := r.send("GET / HTTP/1.1\r\nHost: " + host + "\r\nX-Client: " + client + "\r\nAuthorization: Basic " +
		credentials + "\r\nConnection: close\r\n\r\n")
	_, status, _ := strings.Cut(got, " ")
	status, _, _ = strings.Cut(status, " ")
	return status
}

// guessed sends wrong passwords until one of them is not compared.
func (r *rig) guessed(host string) {
	r.t.Helper()
	r.guessedFrom("", host)
}

// guessedFrom is guessed with a header X-Client.
func (r *rig) guessedFrom(client, host string) {
	r.t.Helper()
	r.eventually("a wrong password is not compared", func() bool { return r.loginFrom(client, host, "wrong") == "429" })
}

func TestWrongPasswordsOfATenantKeepOutOnlyWhoIsNotKnown(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		guard := func(name, tenant string) *Backend {
			b := backend(name, heads(t))
			auth := BasicAuth{Userlist: "users", Realm: "a", Tenant: tenant, Guesses: 1}
			b.Directives = []Directive{must[Directive](t)(auth.Directive())}
			return b
		}
		evil := guard("evil", "evil")
		cfg := r.config(evil, guard("other", "evil"), guard("app", "victim"))
		cfg.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("ann", secretHash))}}}
		r.apply(cfg, states(cfg, Open))

		if got := r.login("evil.test", "secret"); got != "200" {
			t.Fatalf("the right password: got %s, want 200", got)
		}
		r.guessed("evil.test")
		if got := r.login("evil.test", "secret"); got != "200" {
			t.Errorf("a password that is remembered, among wrong ones: got %s, want 200", got)
		}
		if got := r.login("app.test", "another"); got != "401" {
			t.Errorf("a wrong password for another tenant, among wrong ones: got %s, want 401", got)
		}
		r.eventually("the wrong passwords of one Ingress keep strangers out of another one of the tenant", func() bool {
			r.guessed("evil.test")
			return r.login("other.test", "none") == "429"
		})
		r.eventually("without wrong ones a password is compared again", func() bool {
			return r.login("other.test", "wrong") == "401"
		})

		// What was right is forgotten when the users change.
		next := *cfg
		next.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("eve", secretHash))}}}
		if !r.apply(&next, states(&next, Open)).Reloaded {
			t.Fatal("there was no reload")
		}
		r.eventually("the password of a user who is gone is wrong", func() bool {
			return r.login("evil.test", "secret") == "401"
		})
	})
}

// TestWrongPasswordsOfAClientKeepOutFewOthers also holds behind a proxy, where a header has the
// address of the client.
func TestWrongPasswordsOfAClientKeepOutFewOthers(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := backend("app", heads(t))
		auth := BasicAuth{Userlist: "users", Realm: "a", Tenant: "evil", Guesses: 8}
		app.Directives = []Directive{must[Directive](t)(Source("X-Client")), must[Directive](t)(auth.Directive())}
		cfg := r.config(app)
		var clients []string
		users := &Userlist{Name: "users"}
		for i := range 32 {
			clients = append(clients, fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("2001:db8:0:%x::1", i+1))
		}
		for _, client := range clients {
			users.Users = append(users.Users, must[User](t)(NewUser(userOf(client), secretHash)))
		}
		cfg.Userlists = []*Userlist{users}
		r.apply(cfg, states(cfg, Open))

		r.guessedFrom(clients[0], "app.test")
		out := 0
		for _, client := range clients[1:] {
			switch got := r.loginFrom(client, "app.test", "secret"); got {
			case "200":
			case "429":
				out++
			default:
				t.Errorf("%s: the right password: got %s", client, got)
			}
		}
		if out > len(clients)/4 {
			t.Errorf("%d of %d other clients are kept out by the wrong passwords of one", out, len(clients)-1)
		}
		// One network of IPv6 is one client.
		r.eventually("another address of an IPv6 network is kept out with the first", func() bool {
			r.guessedFrom("2001:db8:0:1::1", "app.test")
			return r.loginFrom("2001:db8:0:1:ffff::2", "app.test", "wrong") == "429"
		})
		for _, client := range clients {
			r.guessedFrom(client, "app.test")
		}
		answer, err := r.p.worker.read("show table " + wrongTable)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(answer, ".evil "); got > guessParts {
			t.Errorf("the wrong passwords of %d clients have %d counters, want at most %d, which are the bound of "+
				"all together: %s", len(clients), got, guessParts, answer)
		}
	})
}

// TestWrongPasswordsAreCountedForTheClientBehindABalancer has a balancer speak the PROXY protocol for all
// clients: if the balancer's own address counted, the wrong passwords of one client kept out all others.
func TestWrongPasswordsAreCountedForTheClientBehindABalancer(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		app := backend("app", heads(t))
		auth := BasicAuth{Userlist: "users", Realm: "a", Tenant: "evil", Guesses: 8}
		app.Directives = []Directive{must[Directive](t)(auth.Directive())}
		cfg := r.config(app)
		cfg.Process.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		users := &Userlist{Name: "users"}
		const clients = 32
		client := func(i int) string { return fmt.Sprintf("192.0.2.%d", i+1) }
		for i := range clients {
			users.Users = append(users.Users, must[User](t)(NewUser(userOf(client(i)), secretHash)))
		}
		cfg.Userlists = []*Userlist{users}
		r.apply(cfg, states(cfg, Open))
		login := func(i int, password string) string {
			credentials := base64.StdEncoding.EncodeToString([]byte(userOf(client(i)) + ":" + password))
			got := r.send("PROXY TCP4 " + client(i) + " 127.0.0.1 1 80\r\nGET / HTTP/1.1\r\nHost: app.test\r\n" +
				"Authorization: Basic " + credentials + "\r\nConnection: close\r\n\r\n")
			_, status, _ := strings.Cut(got, " ")
			return status[:min(len(status), 3)]
		}
		r.eventually("a wrong password is not compared", func() bool { return login(0, "wrong") == "429" })
		out := 0
		for i := 1; i < clients; i++ {
			switch got := login(i, "secret"); got {
			case "200":
			case "429":
				out++
			default:
				t.Errorf("%s: the right password: got %s", client(i), got)
			}
		}
		if out > clients/4 {
			t.Errorf("%d of %d other clients of the balancer are kept out by the wrong passwords of one", out,
				clients-1)
		}
	})
}

func TestTheSharesOfClientsAreNoMoreThanTheLimitOfTheTenant(t *testing.T) {
	for guesses := 1; guesses <= 1000; guesses++ {
		parts, each := BasicAuth{Guesses: guesses}.shares()
		if sum := parts * each; each < 1 || parts > guessParts || sum > guesses*guessPeriod ||
			10*sum < 9*guesses*guessPeriod {
			t.Errorf("%d a second: %d parts with %d each", guesses, parts, each)
		}
	}
}

func TestAPasswordIsRememberedForItsUserlistAlone(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		guard := func(name string) *Backend {
			b := backend(name, heads(t))
			b.Directives = []Directive{must[Directive](t)(BasicAuth{Userlist: name, Realm: "a"}.Directive())}
			return b
		}
		cfg := r.config(guard("app"), guard("bank"))
		cfg.Userlists = []*Userlist{
			{"app", []User{must[User](t)(NewUser("ann", secretHash))}},
			{"bank", []User{must[User](t)(NewUser("bob", secretHash))}},
		}
		r.apply(cfg, states(cfg, Open))
		for range 2 {
			if got := r.login("app.test", "secret"); got != "200" {
				t.Errorf("app: got %s, want 200", got)
			}
			if got := r.login("bank.test", "secret"); got != "401" {
				t.Errorf("bank: got %s, want 401", got)
			}
		}
		answer, err := r.p.worker.read("show table " + rightTable)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(answer, "used:1") {
			t.Errorf("want one password remembered, got %s", answer)
		}
	})
}
