package haproxy

import (
	"encoding/base64"
	"strings"
	"testing"
)

// login returns how an attempt to log in with a password is answered: its status.
func (r *rig) login(host, password string) string {
	r.t.Helper()
	credentials := base64.StdEncoding.EncodeToString([]byte("ann:" + password))
	got := r.send("GET / HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: Basic " + credentials + "\r\nConnection: close\r\n\r\n")
	_, status, _ := strings.Cut(got, " ")
	status, _, _ = strings.Cut(status, " ")
	return status
}

// guessed sends wrong passwords until one of them is not compared.
func (r *rig) guessed(host string) {
	r.t.Helper()
	r.eventually("a wrong password is not compared", func() bool { return r.login(host, "wrong") == "429" })
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
		r.eventually("without wrong ones a password is compared again", func() bool { return r.login("other.test", "wrong") == "401" })

		// What was right is forgotten when the users change.
		next := *cfg
		next.Userlists = []*Userlist{{"users", []User{must[User](t)(NewUser("eve", secretHash))}}}
		if !r.apply(&next, states(&next, Open)).Reloaded {
			t.Fatal("there was no reload")
		}
		r.eventually("the password of a user who is gone is wrong", func() bool { return r.login("evil.test", "secret") == "401" })
	})
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
			{"app", []User{must[User](t)(NewUser("ann", secretHash))}}, {"bank", []User{must[User](t)(NewUser("bob", secretHash))}},
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
