package haproxy

import (
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write the goldens in testdata anew")

// goldens returns configurations whose text is kept in testdata, in a file named
// like the row.
func goldens(t testing.TB) map[string]*Config {
	addr := netip.MustParseAddrPort
	server := func(a string) Server { return Server{Name: ServerName(addr(a)), Addr: addr(a)} }
	key, err := os.ReadFile("testdata/pair.pem")
	if err != nil {
		t.Fatal(err)
	}
	page, err := ErrorFile(404, "HTTP/1.1 404 Not Found\nContent-Type: text/html\n\n<p>none</p>\n")
	if err != nil {
		t.Fatal(err)
	}
	tcpLog, err := StreamLogFormat("%ci %b")
	if err != nil {
		t.Fatal(err)
	}
	chosen := NewChoice([]Case{
		must[Case](t)(NewStay("SIDE", "always", "one")),
		{If: condition(t, `cookie(as) -m str "it's me" you`), Backend: "one"},
		{If: condition(t, "src -f patterns/ours"), Backend: "two"},
	})
	asked, err := Ask{
		Backend: "b", Host: "door.ops", Path: "/it's?a=b", Pass: []string{"X-A", "Cookie"},
		SignIn: "https://login.test/?rd=%[url,url_enc]",
		Set:    []AskHeader{{"X-Auth-Request-Redirect", "%[pathq]"}, {"X_Team", "it's #1"}},
	}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(key)
	certificate := pem.EncodeToMemory(block)
	return map[string]*Config{
		"nothing": {},
		"one application": {
			Shape: Shape{Bind: Bind{
				HTTP:  []netip.AddrPort{addr("0.0.0.0:80")},
				HTTPS: []netip.AddrPort{addr("0.0.0.0:443")},
			}},
			Routes: []*Route{{Host: "test.local", Path: "/", Match: Prefix, Backend: "default_svc_app_80"}},
			Backends: []*Backend{{
				Name: "default_svc_app_80", Origin: "Service default/app port 80",
				Servers: []Server{server("172.16.171.65:8080"), server("172.16.189.66:8080")},
			}},
		},
		"IPv6 and checks": {
			Shape: Shape{Bind: Bind{
				HTTP:  []netip.AddrPort{addr("0.0.0.0:8080"), addr("[::]:8080")},
				HTTPS: []netip.AddrPort{addr("[::1]:8443")},
			}},
			Backends: []*Backend{{
				Name: "a", Options: ServerOptions{Check: true},
				Servers: []Server{server("10.0.0.1:80"), server("[fd00::1]:8080")},
			}},
		},
		"every kind of directive": {
			Shape: Shape{
				Bind: Bind{
					HTTP:  []netip.AddrPort{addr("127.0.0.1:80")},
					HTTPS: []netip.AddrPort{addr("127.0.0.1:443")},
				},
				Tables:    []Table{{"a_conns", 10, 0}, {"a_rate", 100000, time.Second}, {"b_rate", 1, longest}},
				Captures:  []int{128, 65535},
				Userlists: []*Userlist{{Name: "a"}},
			},
			Lists: []*List{
				{"c_empty", nil},
				{"c_ours", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
			},
			Backends: append([]*Backend{
				{Name: "_lists", Directives: []Directive{
					Deny(Networks{List: "c_ours"}, true),
					Deny(Networks{List: "c_empty"}, false),
					Limit(Table{"b_rate", 1, longest}, 1, 429, Networks{List: "c_ours"}),
				}},
				{Name: "a", Directives: written(t), Servers: []Server{server("10.0.0.1:80")}},
				{Name: "b", Options: ServerOptions{
					Check: true, CheckInterval: 5 * time.Second, MaxConn: 10, TLS: true,
					SendProxy: "proxy-v2",
				}, Servers: []Server{server("10.0.0.1:80")}},
				{
					Name: "c", Options: ServerOptions{Proto: "h2", SendProxy: "proxy"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "d", Options: ServerOptions{Proto: "h2", TLS: true, SendProxy: "proxy-v2-ssl"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "e", Options: ServerOptions{Proto: "h1", TLS: true, SendProxy: "proxy-v2-ssl-cn"},
					Servers: []Server{server("10.0.0.1:80")},
				},
			}, redirected(t)...),
		},
		"FastCGI": {
			Shape: Shape{Bind: Bind{HTTP: []netip.AddrPort{addr("127.0.0.1:80")}}},
			Backends: []*Backend{
				{
					Name: "a", Options: ServerOptions{Proto: "h2", TLS: true, Check: true},
					Directives: must[[]Directive](t)(FCGI{
						Root: "/srv", Index: "index.php", Params: []FCGIParam{{"APP", "a 'b' %[src]" + FCGIScript}},
					}.Directives()),
					Servers: []Server{server("10.0.0.1:80")},
				},
				{Name: "b", Directives: must[[]Directive](t)(FCGI{Root: "/"}.Directives())},
			},
		},
		"certificates of clients and to servers": {
			Shape: Shape{
				Bind: Bind{HTTPS: []netip.AddrPort{addr("127.0.0.1:443")}},
				Extras: []*Extra{
					page,
					{"a.ca.pem", certificate},
					{"a.crt.pem", key},
					AskScript(),
					{"b.ca.pem", certificate},
				},
				Userlists:   []*Userlist{{"a", []User{{"admin", "$5$salt$" + strings.Repeat("a", 43)}}}},
				DefaultCert: key,
				Process:     Process{ClientCA: "a.ca.pem", ClientOptional: true, ErrorFiles: []int{404}},
			},
			Certs: []*Cert{
				{
					Name: "_a.b.pem", Hosts: []string{"a.test"}, PEM: key, ClientCA: "b.ca.pem",
					ClientMatch: "^CN=it's [a-z]+$",
				},
				{Name: "_b.pem", Hosts: []string{"c.test"}, PEM: key, Ciphers: "HIGH:!aNULL"},
				{
					Name: "_c.pem", Hosts: []string{"d.test"}, PEM: key, ClientCA: "b.ca.pem", ClientOptional: true,
					Ciphers: "ECDHE-RSA-AES128-GCM-SHA256",
				},
				{Name: "a.pem", Hosts: []string{"b.test"}, PEM: key},
			},
			Backends: []*Backend{
				{Name: "a", Directives: []Directive{Close()}},
				{Name: "aa", Directives: []Directive{asked}},
				{
					Name: "b", Options: ServerOptions{TLS: true, CA: "b.ca.pem", Crt: "a.crt.pem"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "ba", Options: ServerOptions{TLS: true, Check: true, SNI: "a.test"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "bb", Options: ServerOptions{TLS: true, Check: true, CA: "b.ca.pem", VerifyHost: "b.test"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "bc", Options: ServerOptions{TLS: true, Check: true, SNI: SNIOfHost, CA: "b.ca.pem"},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{
					Name: "bd", Options: ServerOptions{TLS: true, SNI: SNIOfClient},
					Servers: []Server{server("10.0.0.1:80")},
				},
				{Name: "c", Directives: cookies(t), Servers: []Server{server("10.0.0.1:80")}},
			},
		},
		"what a cluster says of the process": {
			Shape: Shape{
				Bind: Bind{
					HTTP:  []netip.AddrPort{addr("127.0.0.1:80")},
					HTTPS: []netip.AddrPort{addr("127.0.0.1:443")},
				},
				Tune: Tune{Threads: 1},
				Process: Process{
					Lines: append(lines(t), Traffic(true)...), MaxConn: 1000, Threads: 2, ALPN: "http/1.1",
					StrictSNI: true, ClientCA: Nobody, ProxyFrom: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				},
			},
		},
		"tokens": tokensOf(t, certificate),
		"every kind of route": {
			Shape: Shape{Bind: Bind{HTTP: []netip.AddrPort{addr("127.0.0.1:80")}}, Choices: []*Choice{chosen}},
			Routes: []*Route{
				{Host: "a.test", Path: "/api", Match: Prefix, Backend: "one"},
				{Host: "a.test", Path: "/api/", Match: Exact, Backend: "two"},
				{Host: "*.a.test", Path: "/", Match: Prefix, Backend: "two", TLSOnly: true},
				{Host: "c.test", Path: "/", Match: Prefix, Backend: "one", TLSOnly: true, TLSCode: 301, TLSPort: 8443},
				{Path: "/free", Match: Prefix, Backend: "one"},
				{Host: "b.test", Path: "/", Match: Prefix},
				{Host: "d.test", Path: "/", Match: Prefix, Backend: "one", Canary: "two", CanaryWeight: 25},
				{
					Host: "e.test", Path: "/", Match: Prefix, Backend: "one", Canary: "two", CanaryWeight: 100,
					TLSOnly: true, TLSPort: 8443,
				},
				{Host: "f.test", Path: "/api", Match: Begin, Backend: "one"},
				{Host: "f.test", Path: "/v[0-9]+/", Match: Regexp, Backend: "two", TLSOnly: true, TLSPort: 443},
				{Host: "*.f.test", Path: "/(a|b'c)$", Match: Regexp, Backend: "one"},
				{Path: "/x.*", Match: Regexp, Backend: "one"},
				{Host: "www.g.test", Path: "/", Match: Prefix, Backend: WWW},
				{
					Host: "f.test", Path: "/choice", Match: Prefix, Backend: "two", Canary: "one", CanaryWeight: 5,
					Choice: chosen.Name,
				},
			},
			DefaultBackend: "two",
			Backends:       []*Backend{{Name: "one"}, {Name: "two"}},
		},
		"connections as they are": {
			Shape: Shape{
				Bind: Bind{
					HTTP:  []netip.AddrPort{addr("127.0.0.1:80")},
					HTTPS: []netip.AddrPort{addr("127.0.0.1:443"), addr("[::1]:443")},
				},
				Tune:    Tune{MaxConn: 2000},
				Inspect: true,
				Process: Process{
					Lines: Traffic(true), ProxyFrom: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
					Texts: []Text{
						tcpLog,
						{HTTPSection, "acl own path_beg /own\nhttp-request deny if own"},
						{HTTPSSection, "log-format \"%ci %b\"\nhttp-request set-header X-A b"},
						Shut(HTTPSection),
					},
				},
			},
			Routes: []*Route{
				{Host: "a.test", Path: "/", Match: Passthrough, Backend: "a", TLSOnly: true},
				{Host: "a.test", Path: "/.well-known", Match: Prefix, Backend: "b"},
				{Host: "*.test", Path: "/", Match: Passthrough, Backend: "a"},
				{Host: "b.test", Path: "/", Match: Prefix, Backend: "b"},
				{Host: "b.b.test", Path: "/", Match: Prefix, Backend: "b"},
			},
			Backends: []*Backend{
				{
					Name: "a", TCP: true, Directives: streamDirectives(t),
					Options: ServerOptions{Check: true, MaxConn: 5, SendProxy: "proxy-v2"},
					Servers: []Server{server("10.0.0.1:443")},
				},
				{Name: "b", Servers: []Server{server("10.0.0.1:80")}},
			},
		},
		"ports of their own": {
			Shape: Shape{
				Bind: Bind{
					HTTP:  []netip.AddrPort{addr("127.0.0.1:80"), addr("[::1]:80")},
					HTTPS: []netip.AddrPort{addr("127.0.0.1:443")},
				},
				Process: Process{
					Lines: Traffic(true), ProxyFrom: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
					StrictSNI: true,
				},
				Streams: []Stream{
					{Port: 5432, Backend: "db"},
					{Port: 5433, Backend: "db", Proxy: true},
					{Port: 8883, Backend: "db", TLS: true},
					{Addr: netip.MustParseAddr("203.0.113.5"), Port: 80, Backend: "db.lb"},
					{Addr: netip.MustParseAddr("2001:db8::5"), Port: 5432, Backend: "db.lb"},
				},
			},
			Backends: []*Backend{
				{Name: "closed", TCP: true, Directives: []Directive{CloseTCP()}},
				{
					Name: "db", TCP: true, Options: ServerOptions{Check: true},
					Servers: []Server{server("10.0.0.1:5432")},
				},
				{
					Name: "db.lb", TCP: true, Options: ServerOptions{Check: true},
					Servers: []Server{server("10.0.0.1:5432")},
					Directives: []Directive{Reject(Networks{Of: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
						true), RejectOthers([]netip.Prefix{
						netip.MustParsePrefix("198.51.100.0/24"),
						netip.MustParsePrefix("2001:db8::/32"),
					})},
				},
			},
		},
		"gateways": gateways(t, key, certificate),
		"a port for HTTPS and TLS": {
			Shape: Shape{
				Tune:    Tune{MaxConn: 2000},
				Process: Process{ProxyFrom: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
				Extras:  []*Extra{{"b.ca.pem", certificate}},
				Listeners: []Listener{
					{At: addr("127.0.0.1:443"), Kind: ListenMixed, ClientCA: "b.ca.pem"},
					{At: addr("127.0.0.1:8443"), Kind: ListenTLS},
				},
			},
			Hostnames: []Hostname{
				{"127.0.0.1:443", "*.test", "any.test", false},
				{"127.0.0.1:443", "a.test", "a.test", true},
				{"127.0.0.1:443", "b.test", "b.test", true},
				{"127.0.0.1:8443", "", "any", true},
			},
			Routes: []*Route{
				{Scope: "127.0.0.1:443", Host: "*.test", Path: "/", Match: Prefix, To: To("web")},
				{Scope: "127.0.0.1:443", Host: "a.test", Path: "/", Match: Passthrough, To: To("db")},
			},
			Certs:    []*Cert{{Name: "a.gw.pem", Scope: "127.0.0.1:443", Hosts: []string{"*.test"}, PEM: key}},
			Backends: []*Backend{{Name: "db", TCP: true}, {Name: "web"}},
		},
		"a group": {
			Shape: Shape{
				Bind: Bind{
					HTTP:  []netip.AddrPort{addr("127.0.0.1:80")},
					HTTPS: []netip.AddrPort{addr("127.0.0.1:443")},
				},
				Tables: []Table{{"a_conns", 10, 0}, {"a_rate", 100000, time.Second}},
				Group: &Group{
					Self: "gate-1", At: addr("[::1]:9179"), Secret: secretOf("a"),
					Others: []Peer{{"gate-2", addr("192.0.2.2:9179")}, {"gate-3", addr("[2001:db8::3]:9179")}},
				},
			},
			Backends: []*Backend{{Name: "a", Directives: cookies(t), Servers: []Server{server("10.0.0.1:80")}}},
		},
		"settings and base text": {
			Shape: Shape{
				Bind: Bind{HTTP: []netip.AddrPort{addr("127.0.0.1:80")}},
				Tune: Tune{
					Threads: 2, MaxConn: 2000,
					Base: "# ours\nglobal\n  log 192.0.2.1:514 local1 info # remote\n\ndefaults\n" +
						"  timeout server 5m\n  option httplog\n  log global\n",
				},
			},
		},
	}
}

func streamDirectives(t testing.TB) []Directive {
	t.Helper()
	balance, err := Balance("source")
	if err != nil {
		t.Fatal(err)
	}
	some := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	return []Directive{
		balance, Timeout("tunnel", time.Hour), Option("abortonclose", true),
		Reject(Networks{Of: some}, true), Reject(Networks{Of: some[:1]}, false),
	}
}

func cookies(t testing.TB) []Directive {
	t.Helper()
	d, err := Cookie{
		Name: "SRV", Domain: ".a.test", SameSite: "Lax", HTTPOnly: true, Secure: true, Preserve: true,
		MaxIdle: time.Minute, MaxLife: time.Hour,
	}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	return []Directive{d}
}

// moreSpares matches the spare backends that are like the first one of their kind.
var moreSpares = regexp.MustCompile(`\nbackend _spare-[0-9a-f]+-(?:[2-9]|[1-9][0-9]+)\n(?:  .*\n)*`)

func TestWhatIsRenderedIsAcceptedByHAProxy(t *testing.T) {
	for name, cfg := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			wish := states(cfg, Open)
			for i, id := range slices.SortedFunc(mapKeys(wish), func(a, b ServerID) int {
				return strings.Compare(a.String(), b.String())
			}) {
				wish[id] = []State{Open, Closed, Drain}[i%3]
			}
			var got strings.Builder
			files := Render(cfg, inOrder(cfg, wish),
				RenderOptions{
					Dir: "/etc/sallyport/haproxy", StatsSocket: "/run/sallyport/worker.sock",
					NoticeSocket: "/run/sallyport/jail/notices.sock", Jail: "/run/sallyport/jail",
					Secret: "0123456789abcdef", User: "haproxy", Group: "haproxy",
				})
			lists := []string{sniMap, crtList}
			for _, l := range cfg.scopesWithTLS() {
				lists = append(lists, l.crtList())
			}
			for _, path := range slices.Concat([]string{configFile, routeMap, wildMap}, mapFiles[regexpTable:], lists) {
				if file, there := files.Content[path]; !there ||
					patternTable(slices.Index(mapFiles[:], path)) && len(parseMap(file.Content)) == 0 {
					continue
				}
				text := strings.ReplaceAll(string(files.Content[path].Content), "\x01", `\x01`)
				fmt.Fprintf(&got, "=== %s\n%s", path, moreSpares.ReplaceAllString(text, ""))
			}
			golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil { //nolint:gosec // a golden
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			withEach(t, func(t *testing.T, binary string) {
				if err := accepted(t, binary, cfg); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// accepted returns why HAProxy rejects a configuration with every server open.
func accepted(t *testing.T, binary string, cfg *Config) error {
	t.Helper()
	dir := t.TempDir()
	d, _, err := openDisk(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.sync(Render(cfg, inOrder(cfg, states(cfg, Open)),
		RenderOptions{Dir: dir, StatsSocket: "/tmp/sp.sock", Secret: d.secret}).Content, nil); err != nil {
		t.Fatal(err)
	}
	return check(binary, dir)
}

func TestHAProxyRefusesWhatItDoesNotKnow(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		dir := t.TempDir()
		d, _, err := openDisk(dir)
		if err != nil {
			t.Fatal(err)
		}
		bad := &Config{Shape: Shape{Tune: Tune{Base: "defaults\n  timeout sever 5m\n"}}}
		if err := d.sync(Render(bad, nil, RenderOptions{Dir: dir, StatsSocket: "/tmp/sp.sock"}).Content,
			nil); err != nil {
			t.Fatal(err)
		}
		if err := check(binary, dir); err == nil || !strings.Contains(err.Error(), "sever") {
			t.Errorf("got %v, want a complaint about \"sever\"", err)
		}
	})
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// world is a small random history: a configuration and states that change a
// little at each step.
type world struct {
	rnd     *rand.Rand
	bind    Bind
	base    int
	pool    []*Backend
	certs   []*Cert
	routes  []*Route
	inspect bool
	rest    string
	wish    map[ServerID]State
	list    []netip.Prefix
}

func newWorld(seed uint64, bind Bind, certs []*Cert) *world {
	return &world{rnd: rand.New(rand.NewPCG(seed, 1)), bind: bind, certs: certs, wish: make(map[ServerID]State)} //nolint:gosec // a test
}

// step changes one thing and returns what it did. Shape says whether changes
// that need a reload may happen.
func (w *world) step(shape bool) string {
	pick := w.rnd.IntN(12)
	switch {
	case len(w.pool) == 0 || shape && pick == 0 && len(w.pool) < 6:
		w.base++
		b := &Backend{Name: fmt.Sprintf("b%d", w.base), Options: ServerOptions{Check: w.rnd.IntN(4) == 0}}
		if w.rnd.IntN(2) == 0 {
			b.Directives = []Directive{Deny(Networks{List: "l"}, false)}
		}
		w.pool = append(slices.Clone(w.pool), b)
		slices.SortFunc(w.pool, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
		return "add " + b.Name
	case shape && pick == 1:
		i := w.rnd.IntN(len(w.pool))
		name := w.pool[i].Name
		w.pool = slices.Delete(slices.Clone(w.pool), i, i+1)
		return "remove " + name
	case shape && pick == 2:
		w.inspect = !w.inspect
		return fmt.Sprintf("inspect %t", w.inspect)
	case pick == 2 && len(w.routes) > 0:
		i := w.rnd.IntN(len(w.routes))
		w.routes = slices.Delete(slices.Clone(w.routes), i, i+1)
		return "drop a route"
	case pick <= 4:
		n := 1
		if w.rnd.IntN(4) == 0 {
			n = 60 // more than are changed row by row
		}
		w.routes = slices.Clone(w.routes)
		for range n {
			if w.rnd.IntN(4) == 0 {
				w.routes = append(w.routes,
					&Route{
						Host: []string{"a.test", "b.test", "*.test"}[w.rnd.IntN(3)], Path: "/", Match: Passthrough,
						Backend: w.pool[0].Name, TLSOnly: true,
					})
			}
			w.routes = append(w.routes, &Route{
				Host:    []string{"", "a.test", "b.test", "*.test", "*.a.test"}[w.rnd.IntN(5)],
				Path:    fmt.Sprintf("/%c%d", `;"'#\$~x`[w.rnd.IntN(8)], w.rnd.IntN(40)),
				Match:   []PathMatch{Prefix, Exact, Begin}[w.rnd.IntN(3)],
				Backend: w.pool[w.rnd.IntN(len(w.pool))].Name,
				TLSOnly: w.rnd.IntN(3) == 0, TLSCode: []int{0, 301, 308}[w.rnd.IntN(3)],
				TLSPort: []uint16{0, 443, 8443}[w.rnd.IntN(3)],
			})
		}
		if w.rnd.IntN(2) == 0 {
			w.routes = append(w.routes,
				&Route{
					Host: []string{"", "a.test", "*.test"}[w.rnd.IntN(3)],
					Path: fmt.Sprintf("/[a-%c]+%d$", 'a'+w.rnd.IntN(26), w.rnd.IntN(40)), Match: Regexp,
					Backend: w.pool[0].Name,
				})
		}
		return fmt.Sprintf("add %d routes", n)
	case pick == 6:
		w.list = nil
		for range w.rnd.IntN(3 * fewRows) {
			w.list = append(w.list, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(w.rnd.IntN(256))}), 32))
		}
		slices.SortFunc(w.list, netip.Prefix.Compare)
		w.list = slices.Compact(w.list)
		return fmt.Sprintf("a list of %d", len(w.list))
	case pick == 5:
		w.rest = []string{"", w.pool[w.rnd.IntN(len(w.pool))].Name}[w.rnd.IntN(2)]
		return "default backend " + w.rest
	default:
		i := w.rnd.IntN(len(w.pool))
		b := *w.pool[i]
		b.Servers = nil
		for n := range 4 {
			if w.rnd.IntN(3) > 0 {
				b.Servers = append(b.Servers, nowhereServer(w.rnd.IntN(3)*10+n))
			}
		}
		for _, s := range b.Servers {
			w.wish[ServerID{b.Name, s.Name}] = State(w.rnd.IntN(4))
		}
		slices.SortFunc(b.Servers, func(a, b Server) int { return strings.Compare(a.Name, b.Name) })
		w.pool = slices.Clone(w.pool)
		w.pool[i] = &b
		return "servers of " + b.Name
	}
}

func (w *world) config() *Config {
	var certs []*Cert
	for _, c := range w.certs {
		if w.rnd.IntN(2) == 0 && !slices.ContainsFunc(certs, func(o *Cert) bool { return o.Name == c.Name }) {
			certs = append(certs, c)
		}
	}
	slices.SortFunc(certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
	cfg := &Config{
		Shape: Shape{Bind: w.bind, Inspect: w.inspect}, Backends: w.pool, Routes: w.routes,
		DefaultBackend: w.rest, Certs: certs,
	}
	if slices.ContainsFunc(w.pool, func(b *Backend) bool { return len(b.Directives) > 0 }) {
		cfg.Lists = []*List{{"l", w.list}}
	}
	return cfg
}

// TestRememberedRowsKeepNoListOfRoutes has hosts that come one by one, and a new list of all routes each time.
func TestRememberedRowsKeepNoListOfRoutes(t *testing.T) {
	var lists []weak.Pointer[*Route]
	m, cfg := new(hostRows), new(Config)
	for i := range 10 {
		cfg = &Config{Routes: append(slices.Clone(cfg.Routes), &Route{
			Scope: "192.0.2.1:80", Host: fmt.Sprintf("h%d.test", i), Path: "/", Match: Prefix, To: To("app"),
		})}
		lists = append(lists, weak.Make(&cfg.Routes[0]))
		m.tables(cfg, "", nil)
	}
	runtime.GC()
	for i, list := range lists[:len(lists)-1] {
		if list.Value() != nil {
			t.Errorf("the list of %d routes is still there", i+1)
		}
	}
	runtime.KeepAlive(m)
}

func TestRememberingChangesNothing(t *testing.T) {
	opt := RenderOptions{Dir: "/etc/sp", StatsSocket: "/run/sp.sock"}
	certs := []*Cert{
		testCert(t, "a.pem", "a", "a.test"), testCert(t, "b.pem", "b"),
		testCert(t, "a.pem", "c", "c.test"),
	}
	bind := Bind{
		HTTP:  []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")},
		HTTPS: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:443")},
	}
	for seed := range uint64(20) {
		w := newWorld(seed, bind, certs)
		r := renderer{opt: opt}
		for range 100 {
			did := w.step(true)
			cfg := w.config()
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			fresh := renderer{opt: opt}
			got, want := r.outline(cfg, inOrder(cfg, w.wish)), fresh.outline(cfg, inOrder(cfg, w.wish))
			if !reflect.DeepEqual(want.files(opt.Dir), got.files(opt.Dir)) {
				t.Fatalf("seed %d, %s: -want +got\n%s", seed, did,
					cmp.Diff(want.files(opt.Dir), got.files(opt.Dir), cmp.AllowUnexported(Files{})))
			}
			if !reflect.DeepEqual(want.tables().rows, got.tables().rows) || !reflect.DeepEqual(want.certs, got.certs) ||
				want.refusable() != got.refusable() {
				t.Fatalf("seed %d, %s: the rows or the certificates differ", seed, did)
			}
		}
	}
}

func TestAnyHistoryEndsWhereAFreshStartWould(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		certs := []*Cert{
			testCert(t, "a.pem", "a", "a.test"), testCert(t, "b.pem", "b"),
			testCert(t, "a.pem", "c", "a.test", "c.test"),
		}
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				r := newRig(t, binary)
				w := newWorld(seed, r.config().Bind, certs)
				for n := range 40 {
					did := w.step(n%10 == 0)
					cfg := w.config()
					r.eventually("every reload but an idle one is done", func() bool {
						res := r.apply(cfg, w.wish)
						return res.RetryAt.IsZero() || !urgentReason(res.Reason)
					})
					if n%8 == 7 {
						r.p = r.fresh() // the appliance restarts
					}
					r.believesTheTruth(did, cfg, w.wish)
				}
				// What a fresh HAProxy makes of the files.
				cfg := w.config()
				r.eventually("everything is done", func() bool {
					r.p.mu.Lock()
					r.later()
					r.p.mu.Unlock()
					return r.apply(cfg, w.wish).RetryAt.IsZero()
				})
				if err := r.p.settle(); err != nil {
					t.Fatal(err)
				}
				was := r.truth()
				r.end()
				r.p = r.fresh()
				if err := r.p.start(); err != nil {
					t.Fatal(err)
				}
				for id, live := range was.Servers {
					if live == Drain { // the one thing a file cannot say
						was.Servers[id] = Closed
					}
				}
				if diff := cmp.Diff(was, r.truth(), cmp.AllowUnexported(row{}), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("-running +started afresh\n%s", diff)
				}
			})
		}
	})
}

// urgentReason reports whether a reload for this reason comes at once.
func urgentReason(why string) bool {
	for part := range strings.SplitSeq(why, ", ") {
		if !strings.HasSuffix(part, " removed") && !strings.HasSuffix(part, " moved out of its spare place") &&
			!strings.HasSuffix(part, " moved out of their spare places") {
			return true
		}
	}
	return false
}

// truth holds the worker's own answers, read past the Proxy's memory.
type truth struct {
	Gen, Shape string
	Servers    map[ServerID]State
	Maps       [len(mapFiles)][]string
	List       []row
	Certs      []string
}

func (r *rig) truth() truth {
	r.t.Helper()
	if err := r.p.know(); err != nil {
		r.t.Fatal(err)
	}
	pic, err := r.p.worker.look()
	if err != nil {
		r.t.Fatal(err)
	}
	out := truth{Gen: pic.gen, Shape: pic.shape, Servers: make(map[ServerID]State)}
	servers, _ := byID(r.p.belief.run.names().given(pic.backends), nil)
	for id, live := range servers {
		out.Servers[id] = live.State
	}
	for i, path := range mapFiles {
		if _, there := r.p.disk.have[path]; !there {
			continue
		}
		table, err := r.p.worker.table(r.p.path(path))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, x := range table {
			out.Maps[i] = append(out.Maps[i], x.key+" "+x.value)
		}
	}
	if _, there := r.p.disk.have[listDir+"l"]; there {
		if out.List, err = r.p.worker.table(r.p.path(listDir + "l")); err != nil {
			r.t.Fatal(err)
		}
	}
	lines, err := r.p.worker.certLines(r.p.path(crtList))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, file := range lines {
		for _, l := range file {
			out.Certs = append(out.Certs, l.text)
		}
	}
	slices.Sort(out.Certs)
	return out
}

// markerOf returns the value that haproxy.cfg gives a process variable.
func markerOf(text []byte, name string) string {
	_, after, _ := bytes.Cut(text, []byte("set-var "+name+" str("))
	value, _, _ := bytes.Cut(after, []byte(")"))
	return string(value)
}

// believesTheTruth compares wish, files and worker.
func (r *rig) believesTheTruth(did string, cfg *Config, wish map[ServerID]State) {
	r.t.Helper()
	if err := r.p.settle(); err != nil {
		r.t.Fatal(err)
	}
	got := r.truth()
	want := truth{
		Gen: r.p.disk.gen(), Shape: markerOf(r.p.disk.have[configFile].Content, "proc.shape"),
		Servers: make(map[ServerID]State),
	}
	for id := range states(cfg, Open) {
		if wish[id] > Absent {
			want.Servers[id] = wish[id]
		}
	}
	for i, table := range rows(cfg, r.p.disk.secret, r.p.belief.run.names()) {
		slices.SortFunc(table, func(a, b row) int { return strings.Compare(a.key, b.key) }) // as the worker's are read
		for _, x := range table {
			want.Maps[i] = append(want.Maps[i], x.key+" "+x.value)
		}
	}
	want.Certs = append(want.Certs, r.p.path(certDir+defaultCert))
	for _, c := range cfg.Certs {
		want.Certs = append(want.Certs, strings.Join(append([]string{r.p.path(certDir + c.Name)}, c.Hosts...), " "))
	}
	slices.Sort(want.Certs)
	want.List = got.List // of a backend that waits for a reload to go
	for _, l := range cfg.Lists {
		want.List = l.rows()
	}
	switch {
	case len(r.p.belief.run.names()) > 0: // the files have what the next worker will be
		want.Gen, want.Shape = ahead, got.Shape
	case got.Gen == ahead && !r.p.belief.ready: // it has just begun, and the files are those of the life before
		want.Gen = ahead
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{}), cmpopts.EquateEmpty()); diff != "" {
		r.t.Fatalf("%s: -want +got\n%s", did, diff)
	}
	servers, err := byID(r.p.Servers())
	if err != nil {
		r.t.Fatal(err)
	}
	believed := make(map[ServerID]State)
	for id, live := range servers {
		believed[id] = live.State
	}
	if diff := cmp.Diff(want.Servers, believed); diff != "" {
		r.t.Fatalf("%s: -want +believed\n%s", did, diff)
	}
}

func TestEachInstallationHasItsOwnKeyForCookies(t *testing.T) {
	d, err := Cookie{Name: "SRV"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	cfg := &Config{Backends: []*Backend{{Name: "a", Directives: []Directive{d}}}}
	of := func(secret string) string {
		text := string(Render(cfg, nil, RenderOptions{Secret: secret}).Content[configFile].Content)
		_, key, _ := strings.Cut(text, "dynamic-cookie-key ")
		key, _, _ = strings.Cut(key, "\n")
		return key
	}
	if a, b := of("a"), of("b"); len(a) != 32 || a == b || a != of("a") {
		t.Errorf("the keys are %q and %q", a, b)
	}
}

func TestWhateverChangesIsNotTheSame(t *testing.T) {
	base := func() *Config {
		return &Config{
			Shape: Shape{
				Tables:      []Table{{Name: "a"}},
				Captures:    []int{1},
				Extras:      []*Extra{{"a", []byte("a")}},
				Userlists:   []*Userlist{{"a", []User{{"a", "a"}}}},
				DefaultCert: []byte("a"),
				Process: Process{
					MaxConn: 1, Texts: []Text{{GlobalSection, "a"}},
					ProxyFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, ErrorFiles: []int{404},
				},
			},
			Backends: []*Backend{},
			Certs:    []*Cert{},
			Routes:   []*Route{{Path: "/"}},
			Lists:    []*List{{Name: "a"}},
		}
	}
	if !base().Same(base()) {
		t.Error("nothing changed, and it is not the same")
	}
	for _, field := range leaves(reflect.TypeFor[Config]()) {
		c := base()
		switch f := reflect.ValueOf(c).Elem().FieldByIndex(field.Index); f.Kind() {
		case reflect.Slice:
			one := reflect.New(f.Type().Elem()).Elem()
			if one.Kind() == reflect.Pointer {
				one.Set(reflect.New(one.Type().Elem()))
			}
			f.Set(reflect.Append(f, one))
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.New(f.Type().Key()).Elem(), reflect.New(f.Type().Elem()).Elem())
		case reflect.String:
			f.SetString("other")
		case reflect.Int:
			f.SetInt(f.Int() + 1)
		case reflect.Uint8, reflect.Uint16:
			f.SetUint(f.Uint() + 1)
		case reflect.Bool:
			f.SetBool(!f.Bool())
		default:
			t.Fatalf("%s is a %s: teach this test to change one", field.Name, f.Kind())
		}
		if base().Same(c) {
			t.Errorf("%s changed, and it is the same", field.Name)
		}
		if inShape, diff := field.Index[0] == 0, base().differences(&c.Shape); inShape != (len(diff) == 1) {
			t.Errorf("%s changed, and the differences of the shapes are %q", field.Name, diff)
		}
	}
}

// leaves returns the fields of a struct type, and instead of a field that is a
// struct those of that one.
func leaves(of reflect.Type) (all []reflect.StructField) {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Type.Kind() != reflect.Struct {
			all = append(all, f)
			continue
		}
		for _, inner := range leaves(f.Type) {
			inner.Index = append([]int{i}, inner.Index...)
			all = append(all, inner)
		}
	}
	return all
}
