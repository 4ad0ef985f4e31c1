package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// runningOf returns a worker that runs a configuration with its servers in these
// states, as a Proxy believes it after an Apply.
func runningOf(cfg *Config, states States, opt RenderOptions) *running {
	text := renderer{opt: opt}
	o := text.outline(cfg, states)
	r, all := &running{places: spares{}, rows: o.tables().rows, entries: o.certs.entries}, map[string]*LiveBackend{}
	for i, b := range cfg.Backends {
		live := &LiveBackend{}
		for j, state := range states.of(i) {
			if s := b.Servers[j]; state > Absent {
				live.Servers = append(live.Servers, Live{Name: s.Name, Addr: s.Addr, State: state, Weight: s.weight()})
			}
		}
		all[b.Name] = live
	}
	r.backends = NewLiveBackends(all)
	return r
}

func TestAChangeTakesExactlyTheseCommands(t *testing.T) {
	at := netip.MustParseAddrPort
	server := func(a string) Server { return Server{Name: ServerName(at(a)), Addr: at(a)} }
	one, two, three, six := server("10.0.0.1:80"), server("10.0.0.2:80"), server("10.0.0.3:80"), server("[fd00::1]:80")
	backup, guest := one, two
	backup.Backup, guest.Cluster = true, "green"
	backup.Name, guest.Name = NameOf(backup), NameOf(guest)
	weighing := func(s Server, weight int) Server {
		s.Weight = weight
		return s
	}
	app := func(b Backend, servers ...Server) []*Backend {
		b.Name, b.Servers = "app", servers
		return []*Backend{&b}
	}
	cookie, err := Cookie{Name: "SRV"}.Directive()
	if err != nil {
		t.Fatal(err)
	}
	shape := Shape{Bind: Bind{HTTP: []netip.AddrPort{at("127.0.0.1:80")}, HTTPS: []netip.AddrPort{at("127.0.0.1:443")}}}
	routed := func(routes ...*Route) Config { return Config{Shape: shape, Routes: routes} }
	route := func(host, path string, match PathMatch, backend string) *Route {
		return &Route{Host: host, Path: path, Match: match, Backend: backend}
	}
	listed := func(networks ...string) Config {
		l := &List{Name: "l"}
		for _, n := range networks {
			l.Of = append(l.Of, netip.MustParsePrefix(n))
		}
		return Config{Shape: shape, Lists: []*List{l}}
	}
	many := routed()
	for i := range fewRows + 1 {
		many.Routes = append(many.Routes, route("a.test", fmt.Sprintf("/%d", i), Prefix, "app"))
	}
	cert := testCert(t, "a.pem", "a", "a.test")
	type world struct {
		Config
		states []State // of app's servers
	}
	servers := func(states []State, b Backend, servers ...Server) world {
		return world{Config{Backends: app(b, servers...)}, states}
	}
	leads := func(to string, backends ...*Backend) world {
		cfg := routed()
		if to != "" {
			cfg = routed(route("a.test", "/", Prefix, to))
		}
		cfg.Backends = backends
		return world{cfg, []State{Open}}
	}
	reduced := func(want, have world) world { // to what the worker takes without a reload
		cfg, states := within(&want.Config, States{want.states}, &have.Config, nil, held{})
		return world{*cfg, states.of(0)}
	}
	plain := Backend{}
	for name, tt := range map[string]struct {
		have, want world
		cmds       []string // in one exchange, in this order
		remove     []string // servers, once the exchange is over
		whole      []string // maps that are exchanged in one piece
		certs      bool
	}{
		"nothing": {have: servers([]State{Open}, plain, one), want: servers([]State{Open}, plain, one)},
		"a server, to open": {
			have: servers(nil, plain), want: servers([]State{Open}, plain, one),
			cmds: []string{
				"add server app/s_10-0-0-1_80 10.0.0.1:80 pool-max-conn -1 pool-purge-delay 5000",
				"set server app/s_10-0-0-1_80 state ready",
			},
		},
		"a server, to close": {
			have: servers(nil, plain), want: servers([]State{Closed}, plain, six),
			cmds: []string{"add server app/s_fd00--1_80 [fd00::1]:80 pool-max-conn -1 pool-purge-delay 5000"},
		},
		"a server with checks": {
			have: servers(nil, plain), want: servers([]State{Open}, Backend{Options: ServerOptions{Check: true}}, one),
			cmds: []string{
				"add server app/s_10-0-0-1_80 10.0.0.1:80 check error-limit 3 fastinter 500 downinter 1000 observe " +
					"layer4 on-error sudden-death pool-max-conn -1 pool-purge-delay 5000",
				"enable health app/s_10-0-0-1_80",
				"set server app/s_10-0-0-1_80 state ready",
			},
		},
		"the fourth server with checks": {
			have: servers([]State{Open, Open, Open}, Backend{Options: ServerOptions{Check: true}}, one, two, three),
			want: servers([]State{Open, Open, Open, Open}, Backend{Options: ServerOptions{Check: true}}, one, two,
				three, six),
			cmds: []string{
				"add server app/s_fd00--1_80 [fd00::1]:80 check error-limit 2 fastinter 500 downinter 1000 observe " +
					"layer4 on-error mark-down pool-max-conn -1 pool-purge-delay 5000",
				"enable health app/s_fd00--1_80",
				"set server app/s_fd00--1_80 state ready",
			},
		},
		"a server over TLS to a name": {
			have: servers(nil, plain),
			want: servers([]State{Closed},
				Backend{Options: ServerOptions{TLS: true, CA: "a.ca.pem", SNI: "a.test", MaxConn: 5}}, one),
			cmds: []string{"add server app/s_10-0-0-1_80 10.0.0.1:80 ssl alpn http/1.1 ca-file a.ca.pem check-sni " +
				"a.test maxconn 5 pool-max-conn -1 pool-purge-delay 5000 sni str(a.test) verify required"},
		},
		"a server for clients with a cookie": {
			have: servers(nil, plain), want: servers([]State{Open}, Backend{Directives: []Directive{cookie}}, one),
			cmds: []string{
				"add server app/s_10-0-0-1_80 10.0.0.1:80 pool-max-conn -1 pool-purge-delay 5000",
				"enable dynamic-cookie backend app", "set server app/s_10-0-0-1_80 state ready",
			},
		},
		"a server that is absent":              {have: servers(nil, plain), want: servers([]State{Absent}, plain, one)},
		"a server of a backend that is absent": {want: servers([]State{Open}, plain, one)},
		"a server drains": {
			have: servers([]State{Open}, plain, one),
			want: servers([]State{Drain}, plain, one), cmds: []string{"set server app/s_10-0-0-1_80 state drain"},
		},
		"a server closes": {
			have: servers([]State{Drain}, plain, one),
			want: servers([]State{Closed}, plain, one), cmds: []string{"set server app/s_10-0-0-1_80 state maint"},
		},
		"a server opens": {
			have: servers([]State{Closed}, plain, one), want: servers([]State{Open}, plain, one),
			cmds: []string{"set server app/s_10-0-0-1_80 state ready"},
		},
		"a closed server drains": {
			have: servers([]State{Closed}, plain, one),
			want: servers([]State{Drain}, plain, one), cmds: []string{"set server app/s_10-0-0-1_80 state drain"},
		},
		"one closes after one that opens": {
			have: servers([]State{Closed, Open}, plain, one, two),
			want: servers([]State{Open, Closed}, plain, one, two),
			cmds: []string{"set server app/s_10-0-0-2_80 state maint", "set server app/s_10-0-0-1_80 state ready"},
		},
		"a server leaves": {
			have: servers([]State{Open, Open}, plain, one, two),
			want: servers([]State{Open}, plain, two), cmds: []string{"set server app/s_10-0-0-1_80 state maint"},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a closed server leaves": {
			have: servers([]State{Closed}, plain, one), want: servers(nil, plain),
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a backend leaves": {
			have: servers([]State{Drain}, plain, one),
			cmds: []string{"set server app/s_10-0-0-1_80 state maint"}, remove: []string{"app/s_10-0-0-1_80"},
		},

		"a host": {
			have: world{Config: routed()}, want: world{Config: routed(route("a.test", "/", Prefix, "app"))},
			cmds: []string{"add map /sp/maps/route.map a.test/ app"},
		},
		"a path to another backend": {
			have: world{Config: routed(route("a.test", "/x", Prefix, "app"))},
			want: world{Config: routed(route("a.test", "/x", Prefix, "other"))},
			cmds: []string{"set map /sp/maps/route.map a.test/x/ other"},
		},
		"a wildcard leaves": {
			have: world{Config: routed(route("*.test", "/", Prefix, "app"))}, want: world{Config: routed()},
			cmds: []string{"del map /sp/maps/wild.map test/"},
		},
		"a path that the socket would read as commands": {
			have: world{Config: routed(route("a.test", "/", Prefix, "app"))},
			want: world{Config: routed(route("a.test", "/", Prefix, "app"), route("a.test", `/;"'#\`, Exact, "app"))},
			cmds: []string{`add map /sp/maps/route.map a.test/\;\"\'\#\\/` + "\x01 app"},
		},
		"another default": {
			have: world{Config: Config{Shape: shape}}, want: world{Config: Config{Shape: shape, DefaultBackend: "app"}},
			cmds: []string{"set map /sp/maps/wild.map / app"},
		},
		"more rows than change one by one": {
			have: world{Config: routed()}, want: world{Config: many},
			whole: []string{"maps/route.map"},
		},
		"a pattern": {
			have: world{Config: routed(route("a.test", "/", Prefix, "app"))},
			want: world{Config: routed(route("a.test", "/", Prefix, "app"),
				route("a.test", "/v[0-9]", Regexp, "app"))},
			cmds: []string{fmt.Sprintf("set map /sp/maps/route.map a.test/ app/////%d:a.test",
				patternMap("a.test", ""))},
			whole: []string{mapFiles[regexpTable+patternMap("a.test", "")]},
		},
		"a server becomes a backup, and one of another cluster stays": {
			have: servers([]State{Open, Open}, plain, one, guest),
			want: servers([]State{Open, Open}, plain, backup, guest),
			cmds: []string{
				"add server app/s_10-0-0-1_80.backup " + serverText(&plain, &backup),
				"set server app/s_10-0-0-1_80.backup state ready", "set server app/s_10-0-0-1_80 state maint",
			},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a server gets another weight, and a new one has it at once": {
			have: servers([]State{Open}, plain, one),
			want: servers([]State{Open, Open}, plain, weighing(one, 19), weighing(two, 256)),
			cmds: []string{
				"set server app/s_10-0-0-1_80 weight 19",
				"add server app/s_10-0-0-2_80 10.0.0.2:80 pool-max-conn -1 pool-purge-delay 5000 weight 256",
				"set server app/s_10-0-0-2_80 state ready",
			},
		},
		"weights end": {
			have: servers([]State{Open, Drain}, plain, weighing(one, 19), weighing(two, 2)),
			want: servers([]State{Open, Drain}, plain, one, two),
			cmds: []string{"set server app/s_10-0-0-1_80 weight 1", "set server app/s_10-0-0-2_80 weight 1"},
		},
		"a server opens with another weight": {
			have: servers([]State{Closed}, plain, one), want: servers([]State{Open}, plain, weighing(one, 3)),
			cmds: []string{"set server app/s_10-0-0-1_80 weight 3", "set server app/s_10-0-0-1_80 state ready"},
		},
		"a server that is closed keeps its weight": {
			have: servers([]State{Open}, plain, one), want: servers([]State{Closed}, plain, weighing(one, 3)),
			cmds: []string{"set server app/s_10-0-0-1_80 state maint"},
		},
		"a backend that goes: its servers close once no row leads there": {
			have:   leads("app", app(plain, one)...),
			want:   leads("", &Backend{Name: "other"}),
			cmds:   []string{"del map /sp/maps/route.map a.test/", "set server app/s_10-0-0-1_80 state maint"},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a backend that goes: its servers close before one of another backend opens": {
			have: leads("app", app(plain, one)[0], &Backend{Name: "other"}),
			want: leads("", &Backend{Name: "other", Servers: []Server{one}}),
			cmds: []string{
				"set server app/s_10-0-0-1_80 state maint",
				"add server other/s_10-0-0-1_80 10.0.0.1:80 pool-max-conn -1 pool-purge-delay 5000",
				"set server other/s_10-0-0-1_80 state ready",
				"del map /sp/maps/route.map a.test/",
			},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a backend that goes: its servers close last while one at another address opens": {
			have: leads("app", app(plain, one)[0], &Backend{Name: "other"}),
			want: leads("", &Backend{Name: "other", Servers: []Server{two}}),
			cmds: []string{
				"add server other/s_10-0-0-2_80 10.0.0.2:80 pool-max-conn -1 pool-purge-delay 5000",
				"set server other/s_10-0-0-2_80 state ready",
				"del map /sp/maps/route.map a.test/",
				"set server app/s_10-0-0-1_80 state maint",
			},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a backend that only a reload removes: its servers close once no row leads there": {
			have:   leads("app", app(plain, one)...),
			want:   reduced(leads(""), leads("app", app(plain, one)...)),
			cmds:   []string{"del map /sp/maps/route.map a.test/", "set server app/s_10-0-0-1_80 state maint"},
			remove: []string{"app/s_10-0-0-1_80"},
		},
		"a route where nothing listens": {have: world{}, want: world{Config: Config{Routes: many.Routes}}},
		"networks of a list": {
			have: world{Config: listed("10.0.0.0/8", "192.0.2.0/24")},
			want: world{Config: listed("10.0.0.0/8", "198.51.100.0/24", "fd00::/8")},
			cmds: []string{
				"del map /sp/lists/l 192.0.2.0/24", "add map /sp/lists/l 198.51.100.0/24 1",
				"add map /sp/lists/l fd00::/8 1",
			},
		},
		"a certificate": {
			have: world{Config: routed()},
			want: world{Config: Config{Shape: shape, Certs: []*Cert{cert}}}, certs: true,
		},
		"a certificate where nothing listens": {have: world{}, want: world{Config: Config{Certs: []*Cert{cert}}}},
	} {
		t.Run(name, func(t *testing.T) {
			opt := RenderOptions{Dir: "/sp", StatsSocket: "/sp.sock"}
			states := func(w world) States { return States{w.states} }
			have := runningOf(&tt.have.Config, states(tt.have), opt)
			text := renderer{opt: opt}
			got := have.orders(text.outline(&tt.want.Config, states(tt.want)), states(tt.want), opt.Dir)
			var rows, whole, remove []string
			for _, step := range got.maps {
				rows = append(rows, step.cmds...)
				if step.cmds == nil {
					whole = append(whole, step.path)
				}
			}
			for _, id := range got.remove {
				remove = append(remove, id.String())
			}
			for what, pair := range map[string][2][]string{
				"commands": {
					tt.cmds,
					got.inOrder(nil, rows),
				}, "removals": {tt.remove, remove},
				"whole maps": {tt.whole, whole},
			} {
				if diff := cmp.Diff(pair[0], pair[1], cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s: -want +got\n%s", what, diff)
				}
			}
			if got.certs != tt.certs {
				t.Errorf("certificates change: got %t, want %t", got.certs, tt.certs)
			}
			have.backends = have.backends.With(got.after)
			for id := range slices.Values(got.remove) {
				live, _ := have.backends.Get(id.Backend).Find(id.Server)
				if live.State != Closed {
					t.Errorf("server %s would be removed while it is %s", id, live.State)
				}
			}
			again := have.serverSteps(&tt.want.Config, states(tt.want), nil, "")
			if cmds := again.inOrder(nil, nil); len(cmds) > 0 {
				t.Errorf("after the commands, the servers take these again: %s", strings.Join(cmds, "; "))
			}
		})
	}
}

func TestWhatAChangeTakesDoesNotDependOnTheOthers(t *testing.T) {
	type cost struct{ Fragments, Hosts, Commands int }
	for name, tt := range map[string]struct {
		change func(*Config)
		want   cost
	}{
		"an endpoint": {func(cfg *Config) {
			cfg.Backends = slices.Clone(cfg.Backends)
			cfg.Backends[3] = backend(cfg.Backends[3].Name,
				append(slices.Clone(cfg.Backends[3].Servers), nowhereServer(1))...)
		}, cost{1, 0, 2}},
		"a host": {func(cfg *Config) {
			cfg.Routes = slices.Insert(slices.Clone(cfg.Routes), 3,
				&Route{Host: cfg.Routes[2].Host + ".new", Path: "/", Match: Prefix, Backend: cfg.Backends[3].Name})
		}, cost{0, 1, 1}},
	} {
		for _, n := range []int{10, 10_000} {
			t.Run(fmt.Sprintf("%s among %d", name, n), func(t *testing.T) {
				cfg := &Config{Shape: Shape{
					Bind: Bind{HTTP: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:80")}},
				}}
				for i := range n {
					b := backend(fmt.Sprintf("b%05d", i), nowhereServer(0))
					cfg.Backends = append(cfg.Backends, b)
					cfg.Routes = append(cfg.Routes,
						&Route{Host: b.Name + ".test", Path: "/", Match: Prefix, Backend: b.Name})
				}
				open := func(cfg *Config) States { return inOrder(cfg, states(cfg, Open)) }
				text := renderer{opt: RenderOptions{Dir: "/sp", StatsSocket: "/sp.sock"}}
				before := text.outline(cfg, open(cfg))
				worker := runningOf(cfg, open(cfg), text.opt)
				worker.heard(before, serverSteps{})
				hosts := slices.Clone(text.hosts.hosts)

				next := *cfg
				tt.change(&next)
				after := text.outline(&next, open(&next))
				o := worker.orders(after, open(&next), "/sp")
				rows, whole := o.atOnce()
				got := cost{Commands: len(o.inOrder(nil, rows))}
				for i, f := range after.backends {
					if f != before.backends[i] {
						got.Fragments++
					}
				}
				for _, one := range text.hosts.hosts {
					if !slices.Contains(hosts, one) {
						got.Hosts++
					}
				}
				if got != tt.want || len(whole) > 0 {
					t.Errorf("got %+v and %v, want %+v", got, whole, tt.want)
				}
			})
		}
	}
}
