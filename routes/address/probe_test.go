package address

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Three appliances and a stranger are on a link. The addresses 192.168.50.200 and
// 2001:db8:50::200 are in its networks.
func TestAProbeFindsWhoElseHasAnAddress(t *testing.T) {
	const at4, at6 = "192.168.50.200", "2001:db8:50::200"
	for _, c := range []struct {
		what  string
		setup func(w *world, stranger *host)
		want  []string // addresses that the stranger answers for
	}{
		{"nobody has it", func(*world, *host) {}, nil},
		{"a stranger has it", func(_ *world, s *host) {
			s.run("ip addr add " + at4 + "/24 dev eth0 && ip addr add " + at6 + "/64 dev eth0 nodad")
		}, []string{at4, at6}},
		{"a stranger and this appliance have it", func(w *world, s *host) {
			w.gates[0].set(at4, at6)
			s.run("ip addr add " + at4 + "/24 dev eth0 && ip addr add " + at6 + "/64 dev eth0 nodad")
		}, []string{at4, at6}},
		{"a stranger has it, and this appliance by VRRP", func(w *world, s *host) {
			w.gates[0].run("ip addr add " + at4 + "/32 dev nodes && ip addr add " + at6 + "/128 dev nodes nodad")
			s.run("ip addr add " + at4 + "/24 dev eth0 && ip addr add " + at6 + "/64 dev eth0 nodad")
		}, []string{at4}},
		{"another member has it on lo", func(w *world, _ *host) { w.gates[1].set(at4, at6) }, nil},
		{"another member has it by VRRP", func(w *world, _ *host) {
			w.gates[1].run("ip addr add " + at4 + "/32 dev nodes && ip addr add " + at6 + "/128 dev nodes nodad")
		}, nil},
		{"a stranger had it until now", func(w *world, s *host) {
			s.run("ip addr add " + at4 + "/24 dev eth0")
			w.gates[0].run("ping -c 1 -W 30 " + at4 + " >&2")
			s.run("ip addr del " + at4 + "/24 dev eth0")
		}, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			stranger := newHost(t)
			stranger.wire("eth0", w.bridge, "stranger")
			w.bridge.run("ip link set stranger master lan")
			stranger.run("ip addr add 192.168.50.99/24 dev eth0 && ip addr add 2001:db8:50::99/64 dev eth0 nodad")
			stranger.run("ping -c 1 -W 30 192.168.50.21 >&2 && ping -c 1 -W 30 2001:db8:50::21 >&2")
			c.setup(w, stranger)
			mac := strings.Fields(stranger.run("ip -o link show eth0 | sed 's/.*ether //'"))[0]
			for family, members := range map[string][]netip.Addr{
				"IPv4": addrs(w.gates[1].at4, w.gates[2].at4),
				"IPv6": addrs(w.gates[1].at6, w.gates[2].at6),
			} {
				var got map[netip.Addr]Owner
				w.gates[0].do(func() {
					var err error
					got, err = Probe(t.Context(), addrs(at4, at6, service4, service6), members)
					must(t, err)
				})
				want := map[netip.Addr]string{}
				for _, a := range c.want {
					want[addr(a)] = "nodes " + mac
				}
				seen := map[netip.Addr]string{}
				for a, o := range got {
					seen[a] = o.Link + " " + o.MAC.String()
				}
				if fmt.Sprint(seen) != fmt.Sprint(want) {
					t.Errorf("members of %s: got %v, want %v", family, seen, want)
				}
			}
			if out := w.gates[0].run("ip addr show dev lo"); strings.Contains(out, at4) != strings.Contains(c.what,
				"this appliance have") {
				t.Errorf("lo has\n%s", out)
			}
		})
	}
}

func TestAProbeAsksForManyAddressesInParts(t *testing.T) {
	w := newWorld(t, 1)
	stranger := newHost(t)
	stranger.wire("eth0", w.bridge, "stranger")
	w.bridge.run("ip link set stranger master lan")
	var many []netip.Addr
	for a := addr("192.168.50.100"); len(many) < atOnce+1; a = a.Next() {
		many = append(many, a)
	}
	for _, a := range []netip.Addr{many[0], many[atOnce]} {
		stranger.run("ip addr add " + a.String() + "/24 dev eth0")
	}
	w.gates[0].do(func() {
		got, err := Probe(t.Context(), many, nil)
		must(t, err)
		if len(got) != 2 || got[many[0]].MAC == nil || got[many[atOnce]].MAC == nil {
			t.Errorf("got %v, want the first and the last", got)
		}
	})
}
