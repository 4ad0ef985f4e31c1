package world

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTheHostsAreThoseOfTheDocuments(t *testing.T) {
	type row struct{ Addr, Block string }
	want := map[string]row{
		"client":    {"192.168.50.10/24", ""},
		"appliance": {"192.168.50.21/24", ""},
		"master":    {"192.168.50.22/24", "172.16.49.64/26"},
		"worker1":   {"192.168.50.23/24", "172.16.171.64/26"},
		"worker2":   {"192.168.50.24/24", "172.16.189.64/26"},
	}
	got := map[string]row{}
	for _, h := range (Options{Name: "demo", Workers: 2}).plan() {
		r := row{Addr: h.Addr.String()}
		if h.Node {
			r.Block = h.Blocks[0].String()
		}
		got[h.Name] = r
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSeveralAppliancesAndARouterHaveHosts(t *testing.T) {
	want := []string{
		"client 198.51.100.10/24 2001:db8:100::10/64", "appliance 192.168.50.21/24 fd00:50::21/64",
		"master 192.168.50.22/24 fd00:50::22/64",
		"appliance2 192.168.50.12/24 fd00:50::12/64", "appliance3 192.168.50.13/24 fd00:50::13/64",
		"router 192.168.50.2/24 fd00:50::2/64",
	}
	var got []string
	for _, h := range (Options{Name: "demo", Appliances: 3, Router: RouterPlain, IPv6: true}).plan() {
		got = append(got, fmt.Sprint(h.Name, " ", h.Addr, " ", h.Addr6))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNoTwoNodesMeet(t *testing.T) {
	full := Options{Name: "demo", Workers: maxNodes - 1, Appliances: maxAppliances, IPv6: true}
	hosts := full.plan()
	seen := map[netip.Prefix]string{}
	beside := full
	beside.Name, beside.Site = "beside", 1
	for _, h := range append(beside.plan(), hosts...) {
		for _, p := range append([]netip.Prefix{
			netip.PrefixFrom(h.Addr.Addr(), 32),
			netip.PrefixFrom(h.Addr6.Addr(), 128),
		}, h.Blocks...) {
			if p != p.Masked() {
				t.Errorf("%s of %s is no whole prefix", p, h.Name)
			}
			if other, there := seen[p]; there {
				t.Errorf("%s is that of %s and of %s", p, other, h.Netns)
			}
			seen[p] = h.Netns
		}
	}
	if h, err := full.next("late", hosts); err == nil {
		t.Errorf("a full lab: want an error, got %v", h)
	}
}

func TestANewNodeTakesTheLowestFreeAddress(t *testing.T) {
	options := Options{Name: "demo", Workers: 3}
	hosts := options.plan()
	hosts = append(hosts[:3], hosts[4:]...) // without worker1
	got, err := options.next("new", hosts)
	if err != nil {
		t.Fatal(err)
	}
	want := options.node("new", 23)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNamesFitIntoTheKernel(t *testing.T) {
	for name, want := range map[string]bool{
		"demo": true, "a": true, "abcdefghijkl": true,
		"": false, "Demo": false, "1st": false, "a-b": false, "abcdefghijklm": false, "a/b": false, "..": false,
	} {
		if got := checkLab(name) == nil; got != want {
			t.Errorf("lab %q: want %t, got %t", name, want, got)
		}
	}
	for name, want := range map[string]bool{
		"worker1": true, "edge-1": true,
		"": false, "client": false, "appliance": false, "lan": false, "host": false, "a.b": false,
		"abcdefghijklmnop": false, "a-": false,
	} {
		if got := checkNode(name) == nil; got != want {
			t.Errorf("node %q: want %t, got %t", name, want, got)
		}
	}
}

func TestANodesPodsAreNotThoseOfANodeWithALongerName(t *testing.T) {
	options := Options{Name: "demo"}
	short, long := options.node("edge", 23), options.node("edge-1", 24)
	hosts := []Host{short, long}
	for ns, want := range map[string]bool{
		"sp-demo-edge-0123456789":   true,
		"sp-demo-edge-1":            false,
		"sp-demo-edge-1-0123456789": false,
		"sp-demo-edge":              false,
	} {
		if got := podOf(ns, short, hosts); got != want {
			t.Errorf("%s: want %t, got %t", ns, want, got)
		}
	}
}
