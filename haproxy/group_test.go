package haproxy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestAReloadForgetsNoRateLimit(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		const most = 3
		cfg := r.rateLimited(limitedTo(most, backend("app", origin(t, "ok"))))
		r.settle(cfg, states(cfg, Open))
		r.mayPassOn()
		for n := range most {
			if got := r.get("app.test", "/"); got != "ok" {
				t.Fatalf("request %d: %s", n+1, got)
			}
		}
		for n := range 3 { // a worker that has learned must pass it on at once
			next := *cfg
			next.Process.MaxConn = 1000 + n
			if !r.apply(&next, states(&next, Open)).Reloaded {
				t.Fatal("there was no reload")
			}
			r.eventually("the new worker has counted what the old one has", func() bool {
				return r.counted("rate") >= most
			})
			if got := r.get("app.test", "/"); got != "429" {
				t.Errorf("after %d reloads a client that has used up its limit gets %s, want 429", n+1, got)
			}
			r.eventually("the old worker ends", func() bool {
				procs, err := r.p.master.show()
				return err == nil && len(procs.old) == 0
			})
		}
	})
}

func TestAGroupSharesRateLimitsAndCookies(t *testing.T) {
	all := binaries(t)
	for i, binary := range all {
		other := all[(i+1)%len(all)] // members are updated one by one
		t.Run(filepath.Base(filepath.Dir(binary))+" and "+filepath.Base(filepath.Dir(other)), func(t *testing.T) {
			const most = 3
			// The last update of a count wins. Only one counts: a request to two could undo it.
			app, free := limitedTo(most, backend("app", origin(t, "ok"))), sticky(t, backend("free", origin(t, "ok")))
			one, two, stranger := newMember(t, binary, "one"), newMember(t, other, "two"), newMember(t, binary, "three")
			group := []*member{one, two, stranger}
			t.Cleanup(func() { // before those of the members, which end them
				for _, m := range group {
					if t.Failed() {
						m.tell()
					}
				}
			})
			for _, m := range group {
				m.wish = m.rateLimited(app, free).grouped(m, "a secret of the group", group...)
			}
			stranger.wish.Group.Secret = secretOf("another")
			for _, m := range group {
				m.settle(m.wish, states(m.wish, Open))
			}
			one.mayPassOn()
			if a, b, c := one.cookie(), two.cookie(), stranger.cookie(); a != b || a == "" || a == c {
				t.Errorf("cookies of one server: %q at one, %q at two, %q at a stranger; want one and two equal, and "+
					"the stranger's different", a, b, c)
			}
			one.eventually("the limit is used up", func() bool { return one.get("app.test", "/") == "429" })
			// The client goes on: the next update of a count replaces an update that a HAProxy has kept back.
			two.eventually("two has counted what one has", func() bool {
				return one.get("app.test", "/") == "429" && two.counted("rate") >= most
			})
			if got := two.get("app.test", "/"); got != "429" {
				t.Errorf("two answers %q to a client that has used up its limit at one, want 429", got)
			}
			stranger.eventually("the stranger has tried in vain", func() bool {
				failed := []string{"CONN", "HSHK"} // connected, and no handshake; HSHK since 3.4
				return slices.Contains(failed, stranger.peer("one")) && slices.Contains(failed, stranger.peer("two"))
			})
			if got := one.peer("three"); got == "ESTA" {
				t.Error("one has a session with a stranger")
			}
			if got := stranger.counted("rate"); got > 0 {
				t.Errorf("a stranger has counted %d requests, want none", got)
			}

			// The order of members is that of their names everywhere, and a change takes a reload.
			next := *one.wish
			next.Group = &Group{Self: "one", At: one.at, Secret: next.Group.Secret, Others: next.Group.Others[1:]}
			if res := one.apply(&next, states(&next, Open)); !res.Reloaded ||
				res.Reason != "the group of appliances changed" {
				t.Errorf("without the stranger: got %+v, want a reload", res)
			}
			one.eventually("the new worker has counted what the old one has", func() bool {
				return one.counted("rate") >= most
			})
			one.eventually("the old worker ends", func() bool {
				procs, err := one.p.master.show()
				return err == nil && len(procs.old) == 0
			})
			one.end() // Run would start it again
			one.settle(&next, states(&next, Open))
			one.eventually("a HAProxy that starts learns what the group has counted", func() bool {
				return one.counted("rate") >= most
			})
		})
	}
}

func TestASecretIsNotShown(t *testing.T) {
	cfg := &Config{Shape: Shape{Group: &Group{Self: "one", Secret: secretOf("word")}}}
	var text strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Info("group", "group", *cfg.Group, "secret", cfg.Group.Secret)
	for _, form := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&text, form, *cfg.Group)
	}
	if word := fmt.Sprintf("%d", []byte(secretOf("word"))[:4]); strings.Contains(text.String(), "word") ||
		strings.Contains(text.String(), strings.Trim(word, "[]")) || strings.Contains(text.String(), "0x77") {
		t.Errorf("it is in %s", text.String())
	}
}

func TestAGroupThatHAProxyCannotHaveIsRejected(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:9179")
	for want, g := range map[string]Group{
		"not a name that HAProxy can use": {Self: "one two", Secret: secretOf("a")},
		"has 3 bytes":                     {Self: "one", Secret: Secret("abc")},
		"is this one":                     {Self: "one", Secret: secretOf("a"), Others: []Peer{{"one", at}}},
		"must be sorted by name": {
			Self: "one", Secret: secretOf("a"),
			Others: []Peer{{"two", at}, {"three", at}},
		},
		"needs an address": {Self: "one", Secret: secretOf("a"), Others: []Peer{{"two", netip.AddrPort{}}}},
	} {
		if err := (&Config{Shape: Shape{Group: &g}}).Validate(); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "abc") {
			t.Errorf("%+v: got %v, want %q", g, err, want)
		}
	}
}

// member is a HAProxy of a group.
type member struct {
	*rig
	name string
	at   netip.AddrPort
	wish *Config
}

// tell logs what the worker has counted, and its sessions with its peers.
func (m *member) tell() {
	for _, command := range []string{"show table rate", "show peers"} {
		answer, err := m.p.worker.read(command)
		m.t.Logf("%s: %s: %s%v", m.name, command, answer, err)
	}
}

func newMember(t *testing.T, binary, name string) *member {
	return &member{rig: newRig(t, binary), name: name, at: freePort(t)}
}

// grouped returns the configuration for a member of a group.
func (c *Config) grouped(self *member, secret string, all ...*member) *Config {
	next := *c
	next.Group = &Group{Self: self.name, At: self.at, Secret: secretOf(secret)}
	for _, m := range all {
		if m != self {
			next.Group.Others = append(next.Group.Others, Peer{m.name, m.at})
		}
	}
	slices.SortFunc(next.Group.Others, func(a, b Peer) int { return strings.Compare(a.Name, b.Name) })
	return &next
}

func secretOf(text string) Secret { return Secret(strings.Repeat(text+" ", 32)) }

// sticky gives the clients of a backend a cookie.
func sticky(t *testing.T, b *Backend) *Backend {
	t.Helper()
	d, err := Cookie{Name: "SRV"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	b.Directives = append(b.Directives, d)
	return b
}

func TestWithoutALimitNothingIsPassedOn(t *testing.T) {
	for name, tables := range map[string][]Table{"no table": nil, "concurrent requests": {{Name: "conns", Size: 10}}} {
		cfg := &Config{Shape: Shape{Tables: tables}}
		files := Render(cfg, nil,
			RenderOptions{Dir: "/etc/sallyport/haproxy", StatsSocket: "/run/sallyport/worker.sock"})
		for path, f := range files.Content {
			if strings.Contains(path, "peers") || strings.Contains(string(f.Content), "peer") {
				t.Errorf("%s: %s has peers", name, path)
			}
		}
	}
}

func TestAClientThatATableHasNoPlaceForIsLimited(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		arrived, answer := make(chan struct{}, 2), make(chan struct{})
		slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/slow" {
				arrived <- struct{}{}
				<-answer
			}
		}))
		defer slow.Close()
		defer close(answer)
		rate, conns := Table{Name: "rate", Size: 1, Period: time.Hour}, Table{Name: "conns", Size: 1}
		limited := func(name string, d Directive) *Backend {
			b := backend(name, serverAt(slow.Listener.Addr()))
			b.Directives = []Directive{d}
			return b
		}
		cfg := r.config(limited("a", Limit(rate, 100, 429, Networks{})), limited("b", LimitConcurrent(conns, 100)))
		cfg.Tables = []Table{conns, rate}
		r.apply(cfg, states(cfg, Open))
		from := func(client, host, path string) string {
			conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).Dial("tcp", r.http.String())
			if err != nil {
				t.Error(err)
				return ""
			}
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host)
			text, _ := io.ReadAll(conn)
			_, status, _ := strings.Cut(string(text), " ")
			status, _, _ = strings.Cut(status, " ")
			return status
		}
		for _, host := range []string{"a.test", "b.test"} {
			if got := from("127.0.0.3", host, "/"); got != "200" {
				t.Errorf("%s, alone: got %s, want 200", host, got)
			}
			go func() {
				for from("127.0.0.2", host, "/slow") == "429" { // the last request still has the one place
				}
			}()
			<-arrived
			// HAProxy 3.2 gives the client a place beyond the size of the table.
			got := from("127.0.0.3", host, "/")
			table, err := r.p.worker.read("show table " + map[string]string{"a.test": "rate", "b.test": "conns"}[host])
			if err != nil {
				t.Fatal(err)
			}
			if got != "429" && !strings.Contains(table, "127.0.0.3") {
				t.Errorf("%s, beside a client that has the one place: got %s and is not counted, want 429: %s", host,
					got, table)
			}
			if got := from("127.0.0.2", host, "/"); got != "200" {
				t.Errorf("%s, the client that has the place: got %s, want 200", host, got)
			}
		}
	})
}

// rateTable is the table of limitedTo.
var rateTable = Table{Name: "rate", Size: 1000, Period: time.Hour}

// limitedTo lets each client of a backend send that many requests in an hour.
func limitedTo(requests int, b *Backend) *Backend {
	b.Directives = append(b.Directives, Limit(rateTable, requests, 429, Networks{}))
	return b
}

// rateLimited returns a configuration of backends with limitedTo.
func (r *rig) rateLimited(backends ...*Backend) *Config {
	cfg := r.config(backends...)
	cfg.Tables = []Table{rateTable}
	return cfg
}

// cookie returns the cookie that leads a client of the backend free to the server of its first
// request.
func (r *rig) cookie() string {
	r.t.Helper()
	_, cookie := r.visitWith("free.test", "")
	return cookie
}

// counted returns how many requests the worker has counted in a table with one client.
func (r *rig) counted(table string) (n int) {
	r.t.Helper()
	answer, err := r.p.worker.read("show table " + table)
	if err != nil {
		r.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(answer, "http_req_rate(3600000)=")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// peer returns what the worker reports of its last session with a peer: ESTA, if there is
// one now; CONN, if it did not come about.
func (r *rig) peer(name string) string {
	r.t.Helper()
	answer, err := r.p.worker.read("show peers")
	if err != nil {
		r.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(answer, " id="+name+"(")
	_, rest, _ = strings.Cut(rest, " last_status=")
	word, _, _ := strings.Cut(rest, " ")
	return word
}

// mayPassOn waits until the worker would pass on its tables: HAProxy 2.6 has then learned
// from another worker, or has waited in vain. HAProxy's src/peers.c has the two flags.
func (r *rig) mayPassOn() {
	r.t.Helper()
	if r.p.version[0] != '2' {
		return
	}
	r.eventually("the worker may pass on its tables", func() bool {
		answer, err := r.p.worker.read("show peers")
		_, rest, _ := strings.Cut(answer, " flags=0x")
		word, _, _ := strings.Cut(rest, " ")
		flags, wrong := strconv.ParseUint(word, 16, 64)
		return err == nil && wrong == nil && flags&3 == 3
	})
}
