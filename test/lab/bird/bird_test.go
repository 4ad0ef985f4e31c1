package bird_test

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/test/lab/bird"
	"sallyport/test/lab/debian"
)

var update = flag.Bool("update", false, "write the golden files")

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func worker1() bird.Config {
	return bird.Config{
		Node:     "worker1",
		RouterID: addr("192.168.50.23"),
		Source:   addr("192.168.50.23"),
		AS:       65000,
		Blocks:   []bird.Block{{Prefix: prefix("172.16.171.64/26"), Confirmed: true}},
		Pools:    []bird.Pool{{Prefix: prefix("172.16.0.0/16")}},
	}
}

func appliance() bird.Peer {
	return bird.Peer{Name: "Global_192_168_50_21", Addr: addr("192.168.50.21"), AS: 65000}
}

var configs = map[string]func() bird.Config{
	"no block and no peer": func() bird.Config {
		c := worker1()
		c.Blocks = nil
		return c
	},
	"the appliance in the same AS": func() bird.Config {
		c := worker1()
		c.Peers = []bird.Peer{appliance()}
		return c
	},
	"the appliance in another AS and a mesh": func() bird.Config {
		c := worker1()
		p := appliance()
		p.AS = 65010
		c.Peers = []bird.Peer{
			p,
			{Name: "Mesh_192_168_50_22", Addr: addr("192.168.50.22"), AS: 65000, Mesh: true},
			{Name: "Mesh_192_168_50_24", Addr: addr("192.168.50.24"), AS: 65000, Mesh: true, Passive: true},
		}
		return c
	},
	"a route reflector": func() bird.Config {
		c := worker1()
		c.Peers = []bird.Peer{
			appliance(),
			{Name: "Node_192_168_50_22", Addr: addr("192.168.50.22"), AS: 65000},
			{Name: "Node_192_168_50_24", Addr: addr("192.168.50.24"), AS: 65000, Passive: true},
		}
		for i := range c.Peers {
			c.Peers[i].Client = addr("244.0.0.1")
		}
		return c
	},
	"IPv6": func() bird.Config {
		c := worker1()
		c.Source = addr("fd00:50::23")
		c.Blocks = []bird.Block{{Prefix: prefix("fd00:172:16:171::40/122"), Confirmed: true}}
		c.Pools = []bird.Pool{{Prefix: prefix("fd00:172:16::/48")}}
		c.Peers = []bird.Peer{{Name: "Global_fd00_50__21", Addr: addr("fd00:50::21"), AS: 65000}}
		return c
	},
	"everything at once": func() bird.Config {
		c := worker1()
		c.Port = 1790
		c.Blocks = append(c.Blocks,
			bird.Block{Prefix: prefix("172.16.99.0/26")},
			bird.Block{Prefix: prefix("172.16.98.7/32"), Confirmed: true})
		c.Pools = append(c.Pools, bird.Pool{Prefix: prefix("172.20.0.0/16"), NoExport: true},
			bird.Pool{Prefix: prefix("172.21.0.0/16"), VXLAN: true})
		c.Services, c.Foreign, c.Reflects = []netip.Prefix{prefix("10.96.0.0/16")},
			[]netip.Prefix{prefix("10.97.0.0/16")}, []netip.Prefix{prefix("80.15.0.0/24")}
		c.Ignored = []string{"docker*"}
		c.Tags = []bird.Tag{{
			Prefix:      prefix("172.16.0.0/16"),
			Communities: []bird.Community{{100, 6532}, {100, 555, 107}},
		}}
		p := appliance()
		p.Port, p.LocalAS, p.NoSource, p.Password = 1179, 65001, true, "open sesame"
		p.Restart, p.Keepalive, p.NextHop, p.AllowOwnAS = 30*time.Second, 20*time.Second, bird.NextHopKeep, 2
		p.Import = []bird.Rule{{}}
		p.Export = []bird.Rule{
			{FromPeers: true},
			{Prefix: prefix("172.16.171.0/24"), Match: bird.In, Min: 26, Max: 26, Accept: true},
			{Prefix: prefix("172.17.0.0/16"), Match: bird.NotIn, Interface: "tunl*"},
			{Prefix: prefix("172.18.0.0/16"), Match: bird.Equal},
		}
		near := appliance()
		near.Name, near.Addr, near.TTLHops, near.NextHop = "Node_192_168_50_31", addr("192.168.50.31"), 1,
			bird.NextHopSelf
		near.Gateway = addr("192.168.50.1")
		c.Peers = []bird.Peer{p, near}
		return c
	},
}

func TestBirdAcceptsEveryConfiguration(t *testing.T) {
	for name, config := range configs {
		for version, kind := range map[int]string{1: "bird1", 2: "bird2"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				c := config()
				c.Version = version
				got, err := bird.Render(c)
				if err != nil {
					t.Fatal(err)
				}
				golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+"."+kind+".conf")
				if *update {
					if err := os.WriteFile(golden, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(golden)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), string(got)); diff != "" {
					t.Errorf("not as in %s (-want +got):\n%s", golden, diff)
				}
				accepted(t, c, golden)
			})
		}
	}
}

// accepted runs the real BIRD on the configuration.
func accepted(t *testing.T, c bird.Config, file string) {
	t.Helper()
	program := "bird"
	if c.Version == 1 && c.Source.Is6() {
		program = "bird6"
	}
	if out, err := parse(t, c.Version, program, file); err != nil {
		t.Errorf("%s -p: %v: %s", program, err, out)
	}
}

func parse(t *testing.T, series int, program, file string) ([]byte, error) {
	t.Helper()
	programs, err := debian.BIRD(t.Context(), series, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(filepath.Join(programs, program), "-p", "-c", file).CombinedOutput()
}

func TestBirdIsReallyAsked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "broken.conf")
	if err := os.WriteFile(file, []byte("router id 192.168.50.23;\nprotocol bgp { neighbor nobody; }\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for series := 1; series <= 2; series++ {
		if _, err := parse(t, series, "bird", file); err == nil {
			t.Errorf("BIRD %d accepted nonsense", series)
		}
	}
}

func TestTheOrderOfTheListsDoesNotMatter(t *testing.T) {
	one := configs["everything at once"]()
	other := configs["everything at once"]()
	other.Blocks[0], other.Blocks[2] = other.Blocks[2], other.Blocks[0]
	other.Pools[0], other.Pools[1] = other.Pools[1], other.Pools[0]
	other.Peers[0], other.Peers[1] = other.Peers[1], other.Peers[0]
	want, err := bird.Render(one)
	if err != nil {
		t.Fatal(err)
	}
	got, err := bird.Render(other)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatCannotBeSaidIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*bird.Config){
		"no AS":                     func(c *bird.Config) { c.AS = 0 },
		"no source":                 func(c *bird.Config) { c.Source = netip.Addr{} },
		"block of the other family": func(c *bird.Config) { c.Blocks[0].Prefix = prefix("fd00::/122") },
		"block with host bits":      func(c *bird.Config) { c.Blocks[0].Prefix = prefix("172.16.171.65/26") },
		"peer of the other family":  func(c *bird.Config) { c.Peers[0].Addr = addr("fd00::1") },
		"client in another AS": func(c *bird.Config) {
			c.Peers[0].AS, c.Peers[0].Client = 65010, addr("244.0.0.1")
		},
		"peer without AS":             func(c *bird.Config) { c.Peers[0].AS = 0 },
		"peer twice":                  func(c *bird.Config) { c.Peers = append(c.Peers, c.Peers[0]) },
		"peer's name with a brace":    func(c *bird.Config) { c.Peers[0].Name = "a{}" },
		"password that ends a string": func(c *bird.Config) { c.Peers[0].Password = `"; }` },
		"interface that ends one":     func(c *bird.Config) { c.Peers[0].Export = []bird.Rule{{Interface: `"`}} },
		"community of one number": func(c *bird.Config) {
			c.Tags = []bird.Tag{{Prefix: prefix("172.16.0.0/16"), Communities: []bird.Community{{1}}}}
		},
		"ignored interface that ends": func(c *bird.Config) { c.Ignored = []string{`"`} },
		"gateway of the other family": func(c *bird.Config) { c.Peers[0].Gateway = addr("fd00::1") },
		"unknown version":             func(c *bird.Config) { c.Version = 3 },
	} {
		t.Run(name, func(t *testing.T) {
			c := worker1()
			c.Peers = []bird.Peer{appliance()}
			spoil(&c)
			if got, err := bird.Render(c); err == nil {
				t.Errorf("want an error, got\n%s", got)
			}
		})
	}
}
