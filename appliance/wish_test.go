package appliance

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/ingress"
)

func TestMembersShareByTheirAddressesAndOneSecret(t *testing.T) {
	addr, port := netip.MustParseAddr, netip.MustParseAddrPort
	cfg := &config.Config{Identity: "gate-2"}
	if got := sharing(cfg, nil); got != nil {
		t.Errorf("without a group: got %+v, want nothing", got)
	}
	cfg.Group = config.Group{
		Name: "edge", Port: 9179, Share: true,
		Secret: config.NewSecret("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="),
		Members: []config.Member{
			{Name: "gate-3", Address: addr("2001:db8::23")},
			{Name: "gate-2", Address: addr("192.0.2.22")},
			{Name: "gate-1", Address: addr("192.0.2.21")},
		},
	}
	here := []netip.Addr{addr("192.0.2.22")}
	want := &haproxy.Group{
		Self: "gate-2", At: port("192.0.2.22:9179"),
		Others: []haproxy.Peer{
			{Name: "gate-1", At: port("192.0.2.21:9179")},
			{Name: "gate-3", At: port("[2001:db8::23]:9179")},
		},
	}
	got := sharing(cfg, here)
	if want.Secret = got.Secret; string(got.Secret) == string(cfg.Group.Key()) || len(got.Secret) == 0 {
		t.Error("HAProxy has the secret of the group, want a key derived from it")
	}
	values := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, got, values); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if err := (&haproxy.Config{Shape: haproxy.Shape{Group: got}}).Validate(); err != nil {
		t.Error(err)
	}
	if got := sharing(cfg, nil).At; got.IsValid() {
		t.Errorf("without its address this machine listens at %s, want nowhere", got)
	}
	other := *cfg
	other.Identity = "gate-1"
	if string(sharing(&other, here).Secret) != string(got.Secret) {
		t.Error("two members have two secrets")
	}
	cfg.Group.Share = false
	if got := sharing(cfg, here); got != nil {
		t.Errorf("with share: false: got %+v, want nothing", got)
	}
}

// TestTheConfigurationOfHAProxyIsFinishedInOnePlace tries each fact that the wish depends on beside
// the clusters' objects. A row changes one fact, and names the whole difference in the wish.
func TestTheConfigurationOfHAProxyIsFinishedInOnePlace(t *testing.T) {
	addr, port := netip.MustParseAddr, netip.MustParseAddrPort
	held := addr("203.0.113.80")
	type given struct {
		compiled ingress.Result
		settings settings
		machine  machine
		standing standing
	}
	base := func() given {
		return given{
			compiled: ingress.Result{Servers: 2, Config: haproxy.Config{
				Shape: haproxy.Shape{Streams: []haproxy.Stream{
					{Port: 5000, Backend: "any"}, {Addr: held, Port: 5432, Backend: "own"},
				}},
				DefaultBackend: "any",
			}},
			settings: settings{cfg: &config.Config{Identity: "gate-1"}},
			machine:  machine{now: time.Unix(0, 0)},
		}
	}
	group := config.Group{
		Name: "edge", Port: 9179, Share: true,
		Secret:  config.NewSecret("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA=="),
		Members: []config.Member{{Name: "gate-1", Address: addr("192.0.2.21")}},
	}
	whole := cmp.Exporter(func(reflect.Type) bool { return true })
	values := cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
	log := haproxy.Process{}.Requests(port("192.0.2.9:514"))
	for name, row := range map[string]struct {
		given func(*given)
		want  func(*haproxy.Config)
	}{
		"nothing else": {func(*given) {}, func(*haproxy.Config) {}},
		"listen addresses": {
			func(g *given) {
				g.settings.cfg.HAProxy.HTTP = []netip.AddrPort{port("0.0.0.0:80")}
				g.settings.cfg.HAProxy.HTTPS = []netip.AddrPort{port("0.0.0.0:443")}
			},
			func(c *haproxy.Config) {
				c.Bind = haproxy.Bind{
					HTTP: []netip.AddrPort{port("0.0.0.0:80")}, HTTPS: []netip.AddrPort{port("0.0.0.0:443")},
				}
			},
		},
		"an access log": {
			func(g *given) { g.settings.cfg.HAProxy.AccessLog.Syslog = port("192.0.2.9:514") },
			func(c *haproxy.Config) { c.Process = log },
		},
		"threads and a base": {
			func(g *given) { g.settings.cfg.HAProxy.Threads, g.settings.base = 4, "global\n" },
			func(c *haproxy.Config) { c.Tune.Threads, c.Tune.Base = 4, "global\n" },
		},
		"a limit of connections": {
			func(g *given) { g.settings.cfg.HAProxy.MaxConnections = 1000 },
			func(c *haproxy.Config) { c.Tune.MaxConn = 1000 },
		},
		"a limit of connections in a cluster": {
			func(g *given) { g.compiled.Config.Process.MaxConn = 900 },
			func(c *haproxy.Config) { c.Process.MaxConn, c.Tune.MaxConn = 900, 900 },
		},
		"both limits": {
			func(g *given) {
				g.compiled.Config.Process.MaxConn, g.settings.cfg.HAProxy.MaxConnections = 900, 1000
			},
			func(c *haproxy.Config) { c.Process.MaxConn, c.Tune.MaxConn = 900, 1000 },
		},
		"another day": {
			func(g *given) { g.machine.now = time.Unix(0, 0).AddDate(0, 0, 2) },
			func(c *haproxy.Config) { c.Period = haproxy.PeriodOf(time.Unix(0, 0).AddDate(0, 0, 2)) },
		},
		"a group with the member's address": {
			func(g *given) {
				g.settings.cfg.Group, g.machine.addrs = group, []netip.Addr{addr("192.0.2.21")}
			},
			func(c *haproxy.Config) {
				c.Group = sharing(&config.Config{Identity: "gate-1", Group: group}, []netip.Addr{addr("192.0.2.21")})
			},
		},
		"an address of a Service that is held": {
			func(g *given) { g.standing = standing{grouped: true, held: []netip.Addr{held}} },
			func(*haproxy.Config) {},
		},
		"an address of a Service that is not held": {
			func(g *given) { g.standing.grouped = true },
			func(c *haproxy.Config) { c.Streams = c.Streams[:1] },
		},
		"a drain": {
			func(g *given) { g.standing = standing{grouped: true, held: []netip.Addr{held}, leaving: true} },
			func(c *haproxy.Config) { c.Leaving = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, want := base(), base().compiled.Config
			want.Period = haproxy.PeriodOf(time.Unix(0, 0))
			row.given(&g)
			row.want(&want)
			before := slices.Clone(g.compiled.Config.Streams)
			got := wish(g.compiled, g.settings, g.machine, g.standing)
			if diff := cmp.Diff(want, got, whole, values); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if !slices.Equal(before, g.compiled.Config.Streams) {
				t.Errorf("the streams of the compiler became %v, want %v", g.compiled.Config.Streams, before)
			}
		})
	}
}
