package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sallyport/test/namespace"
)

func TestMain(m *testing.M) {
	os.Exit(namespace.Main(m, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}))
}

const (
	patience = time.Minute
	block    = "172.16.171.64/26"
	node1    = "192.168.50.23"
	node2    = "192.168.50.24"
)

// wire creates a pair of interfaces that are up, and returns both. The near one has
// addresses in the network of the nodes.
func wire(t *testing.T, addrs ...string) (near, far netlink.Link) {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"192.168.50.21/24", "fd00:50::21/64"}
	}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}))
	near, err := netlink.LinkByName("near")
	must(t, err)
	t.Cleanup(func() {
		if err := netlink.LinkDel(near); err != nil {
			t.Errorf("removing the wire: %v", err)
		}
	})
	far, err = netlink.LinkByName("far")
	must(t, err)
	must(t, netlink.LinkSetUp(far))
	must(t, netlink.LinkSetUp(near))
	for _, a := range addrs {
		give(t, near, a)
	}
	return near, far
}

func give(t *testing.T, l netlink.Link, a string) {
	t.Helper()
	parsed, err := netlink.ParseAddr(a)
	must(t, err)
	parsed.Flags = unix.IFA_F_NODAD
	must(t, netlink.AddrAdd(l, parsed))
}

func open(t *testing.T, cfg KernelConfig) *Kernel {
	t.Helper()
	k, err := OpenKernel(t.Context(), cfg)
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

// to returns the selector of all packets to a prefix.
func to(prefix string) Selector { return To(pfx(prefix)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func route(prefix, via string) *netlink.Route {
	return &netlink.Route{Dst: ipNet(pfx(prefix)), Gw: net.ParseIP(via), Table: unix.RT_TABLE_MAIN}
}

// foreign adds a route that is not ours.
func foreign(t *testing.T, prefix, via string, protocol netlink.RouteProtocol, metric int) {
	t.Helper()
	r := route(prefix, via)
	r.Protocol, r.Priority = protocol, metric
	must(t, netlink.RouteAdd(r))
}

// present prints the kernel's routes that have a gateway.
func present(t *testing.T) []string {
	t.Helper()
	all, err := (&Kernel{cfg: KernelConfig{Table: unix.RT_TABLE_MAIN}, netlink: &netlink.Handle{}}).read()
	must(t, err)
	var lines []string
	for _, e := range all {
		if e.via.IsValid() {
			lines = append(lines, fmt.Sprintf("%s metric %d", e, e.metric))
		}
	}
	slices.Sort(lines)
	return lines
}

func wantPresent(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := present(t); !slices.Equal(got, want) {
		t.Errorf("got routes\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func wantList(t *testing.T, k *Kernel, want Table, conflicts ...string) {
	t.Helper()
	l, err := k.List()
	must(t, err)
	got, cs := l.Routes, l.Conflicts
	if !got.Equal(want) {
		t.Errorf("got table\n%swant\n%s", got, want)
	}
	var why []string
	for _, c := range cs {
		why = append(why, fmt.Sprintf("%s: %s", c.Selector, c.Why))
	}
	if len(why) != len(conflicts) {
		t.Fatalf("got conflicts %q, want %q", why, conflicts)
	}
	for i := range why {
		if !strings.Contains(why[i], conflicts[i]) {
			t.Errorf("got conflict %q, want %q", why[i], conflicts[i])
		}
	}
}

// knocksUntil waits for a condition, and checks it only after knocks.
func knocksUntil(t *testing.T, k *Kernel, what string, so func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !so() {
		select {
		case <-k.Changed():
		case <-deadline:
			t.Fatalf("no knock after which %s", what)
		}
	}
}

// lists reports whether List returns this table.
func lists(t *testing.T, k *Kernel, want Table) func() bool {
	return func() bool {
		l, err := k.List()
		must(t, err)
		return l.Routes.Equal(want)
	}
}

func TestRoutesAreAddedReplacedAndDropped(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	six, via6 := to("fd00:172::40/122"), addr("fd00:50::23")
	wantList(t, k, Table{})

	must(t, k.Add(to(block), addr(node1)))
	must(t, k.Add(six, via6))
	wantList(t, k, Table{to(block): addr(node1), six: via6})
	wantPresent(t, block+" via "+node1+" of protocol 78 metric 50",
		"fd00:172::40/122 via fd00:50::23 of protocol 78 metric 50")

	must(t, k.Add(to(block), addr(node2)))
	must(t, k.Add(six, addr("fd00:50::24")))
	wantList(t, k, Table{to(block): addr(node2), six: addr("fd00:50::24")})
	wantPresent(t, block+" via "+node2+" of protocol 78 metric 50",
		"fd00:172::40/122 via fd00:50::24 of protocol 78 metric 50")

	must(t, k.Drop(to(block)))
	must(t, k.Drop(six))
	wantList(t, k, Table{})
	wantPresent(t)
	must(t, k.Drop(to(block)))
	must(t, k.Drop(six))
}

func TestAddingWhatIsThereWritesNothing(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))

	updates, done := make(chan netlink.RouteUpdate, 16), make(chan struct{})
	defer close(done)
	must(t, netlink.RouteSubscribe(updates, done))
	must(t, k.Add(to(block), addr(node1)))
	last := pfx("172.16.0.0/26")
	must(t, k.Add(To(last), addr(node1)))
	for deadline, got := time.After(patience), (netip.Prefix{}); got != last; {
		select {
		case u := <-updates:
			if got = prefixOf(u.Dst); got == pfx(block) {
				t.Errorf("got a message about %s, want none", got)
			}
		case <-deadline:
			t.Fatalf("no message about %s", last)
		}
	}
	must(t, k.Drop(to(block)))
	must(t, k.Drop(to("172.16.0.0/26")))
}

func TestAForeignRouteIsLeftAlone(t *testing.T) {
	for name, test := range map[string]struct{ prefix, own, other string }{
		"IPv4": {block, node1, node2},
		"IPv6": {"fd00:172::40/122", "fd00:50::23", "fd00:50::24"},
	} {
		t.Run(name, func(t *testing.T) {
			wire(t)
			k := open(t, KernelConfig{})
			p := to(test.prefix)
			line := test.prefix + " via " + test.other + " of protocol static metric 50"
			foreign(t, test.prefix, test.other, unix.RTPROT_STATIC, 50)

			err := k.Add(p, addr(test.own))
			if err == nil || !strings.Contains(err.Error(), "protocol static") ||
				!strings.Contains(err.Error(), "metric 50") {
				t.Errorf("got error %v, want one that names protocol static and metric 50", err)
			}
			must(t, k.Drop(p))
			wantPresent(t, line)
			wantList(t, k, Table{})

			// beside it, under another metric, it stays too
			better := open(t, KernelConfig{Metric: 40})
			must(t, better.Add(p, addr(test.own)))
			wantList(t, better, Table{p: addr(test.own)})
			must(t, better.Drop(p))
			wantPresent(t, line)
		})
	}
}

func TestARouteBehindAnotherIsAConflict(t *testing.T) {
	for name, test := range map[string]struct {
		prefix, via string
		metric      int
		conflict    string // empty if it does no harm
	}{
		"the same prefix with a better metric": {block, node2, 10, "protocol bird, metric 10; remove that route"},
		"the same prefix with no metric":       {block, node2, 0, "metric 0"},
		"the same prefix with a worse metric":  {block, node2, 51, ""},
		"the same prefix, the same way":        {block, node1, 10, ""},
		"a more specific": {
			"172.16.171.70/32", node2, 1000,
			"a part of it goes elsewhere: 172.16.171.70/32 via 192.168.50.24 of protocol bird",
		},
		"a more specific, the same way": {"172.16.171.64/27", node1, 0, ""},
		"a less specific":               {"172.16.171.0/24", node2, 0, ""},
		"beside it":                     {"172.16.171.128/26", node2, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wire(t)
			k := open(t, KernelConfig{})
			must(t, k.Add(to(block), addr(node1)))
			ours := Table{to(block): addr(node1)}
			foreign(t, test.prefix, test.via, unix.RTPROT_BIRD, test.metric)
			if test.conflict == "" {
				wantList(t, k, ours)
				must(t, k.Drop(to(block)))
				return
			}
			wantList(t, k, Table{}, test.conflict)
			if err := k.Add(to(block), addr(node1)); err == nil || !strings.Contains(err.Error(), test.conflict) {
				t.Errorf("adding it again: got error %v, want %q", err, test.conflict)
			}
			r := route(test.prefix, test.via)
			r.Protocol = unix.RTPROT_BIRD
			must(t, netlink.RouteDel(r))
			knocksUntil(t, k, "the route is used again", lists(t, k, ours))
			must(t, k.Drop(to(block)))
			wantPresent(t)
		})
	}
}

func TestABlackholeInABlockIsAConflict(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))
	r := route("172.16.171.70/32", "")
	r.Gw, r.Type = nil, unix.RTN_BLACKHOLE
	must(t, netlink.RouteAdd(r))
	wantList(t, k, Table{}, "172.16.171.70/32 to no single next hop")
	must(t, netlink.RouteDel(r))
	wantList(t, k, Table{to(block): addr(node1)})
	must(t, k.Drop(to(block)))
}

func TestOurOwnMoreSpecificIsNoConflict(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	want := Table{to(block): addr(node1), to("172.16.171.70/32"): addr(node2)}
	for p, via := range want {
		must(t, k.Add(p, via))
	}
	wantList(t, k, want)
	for p := range want {
		must(t, k.Drop(p))
	}
}

func TestARouteSomeoneChangedIsRepaired(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))
	r := route(block, "")
	r.Gw, r.Protocol, r.Priority = nil, 78, 50
	hops := []*netlink.NexthopInfo{{Gw: net.ParseIP(node1)}, {Gw: net.ParseIP(node2)}}
	for name, change := range map[string]func(){
		"two next hops": func() { r.MultiPath, r.Type = hops, unix.RTN_UNICAST },
		"a blackhole":   func() { r.MultiPath, r.Type = nil, unix.RTN_BLACKHOLE },
	} {
		t.Log(name)
		change()
		must(t, netlink.RouteReplace(r))
		wantList(t, k, Table{}, "not one next hop")
		must(t, k.Add(to(block), addr(node1)))
		wantList(t, k, Table{to(block): addr(node1)})
	}
	must(t, k.Drop(to(block)))
	wantPresent(t)
}

func TestADeletionBySomeoneElseKnocks(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))
	must(t, netlink.RouteDel(route(block, node1)))
	knocksUntil(t, k, "the route is gone", lists(t, k, Table{}))
}

func TestALinkThatGoesDownTakesItsRoutesAndKnocks(t *testing.T) {
	near, _ := wire(t)
	k := open(t, KernelConfig{})
	routes := Table{to(block): addr(node1), to("fd00:172::40/122"): addr("fd00:50::23")}
	for p, via := range routes {
		must(t, k.Add(p, via))
	}
	must(t, netlink.LinkSetDown(near))
	knocksUntil(t, k, "both routes are gone", lists(t, k, Table{}))
	if err := k.Add(to(block), addr(node1)); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("adding over a link that is down: got %v, want %v", err, unix.ENETUNREACH)
	}
	knocksUntil(t, k, "the network is gone", func() bool {
		l, err := k.Local()
		must(t, err)
		return len(l.Networks) == 0
	})

	must(t, netlink.LinkSetUp(near))
	knocksUntil(t, k, "the network is back", func() bool {
		l, err := k.Local()
		must(t, err)
		return slices.Contains(l.Networks, pfx("192.168.50.0/24"))
	})
	wantList(t, k, Table{})
	must(t, k.Add(to(block), addr(node1)))
	wantList(t, k, Table{to(block): addr(node1)})
}

// The kernel sends messages about the IPv6 routes of a link that goes down, but none about
// its IPv4 routes. So this link has no IPv6: there is only the message about the link.
func TestIPv4RoutesThatGoInSilenceAreMissed(t *testing.T) {
	near, _ := wire(t, "192.168.50.21/24")
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/near/disable_ipv6", []byte("1"), 0))
	must(t, os.WriteFile("/proc/sys/net/ipv6/conf/far/disable_ipv6", []byte("1"), 0))
	k := open(t, KernelConfig{})
	must(t, k.Add(to(block), addr(node1)))
	wantList(t, k, Table{to(block): addr(node1)})

	events, err := subscribe() // one that has not heard of the route being added
	must(t, err)
	fresh := &Kernel{changed: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- fresh.receive(events) }()
	defer func() {
		events.close()
		if err := <-ended; err == nil {
			t.Error("receiving ended without a reason")
		}
	}()
	must(t, netlink.LinkSetDown(near))
	wantList(t, k, Table{})
	select {
	case <-fresh.Changed():
	case <-time.After(patience):
		t.Fatal("no knock when the link went down")
	}
}

func TestARouteOverALinkWithoutCarrierIsNotUsed(t *testing.T) {
	_, far := wire(t)
	k := open(t, KernelConfig{})
	routes := Table{to(block): addr(node1), to("fd00:172::40/122"): addr("fd00:50::23")}
	for p, via := range routes {
		must(t, k.Add(p, via))
	}
	must(t, netlink.LinkSetDown(far))
	knocksUntil(t, k, "no route is used", lists(t, k, Table{}))
	l, err := k.List()
	must(t, err)
	for _, c := range l.Conflicts {
		if c.Why != "its link is down" {
			t.Errorf("got %s: %s, want its link is down", c.Selector, c.Why)
		}
	}
	must(t, netlink.LinkSetUp(far))
	knocksUntil(t, k, "the routes are used again", lists(t, k, routes))
}

func TestAnAddressThatComesOrGoesKnocks(t *testing.T) {
	near, _ := wire(t)
	k := open(t, KernelConfig{})
	has := func(p string) bool {
		l, err := k.Local()
		must(t, err)
		return slices.Contains(l.Networks, pfx(p))
	}
	give(t, near, "10.7.7.7/24")
	knocksUntil(t, k, "the network is there", func() bool { return has("10.7.7.0/24") })
	a, err := netlink.ParseAddr("10.7.7.7/24")
	must(t, err)
	must(t, netlink.AddrDel(near, a))
	knocksUntil(t, k, "the network is gone", func() bool { return !has("10.7.7.0/24") })
}

func TestLocalIsWhatTheMachineIsConnectedTo(t *testing.T) {
	near, far := wire(t, "192.168.50.21/24", "192.168.50.121/24", "203.0.113.5/32", "fd00:50::21/64")
	point, err := netlink.ParseAddr("10.9.9.1/32")
	must(t, err)
	_, point.Peer, err = net.ParseCIDR("10.9.9.2/32")
	must(t, err)
	must(t, netlink.AddrAdd(near, point))
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	give(t, lo, "198.51.100.1/32")
	t.Cleanup(func() {
		a, err := netlink.ParseAddr("198.51.100.1/32")
		must(t, err)
		must(t, netlink.AddrDel(lo, a))
	})
	give(t, far, "10.8.8.8/24")
	must(t, netlink.LinkSetDown(far)) // near loses its carrier, but stays up and keeps its networks

	got, err := open(t, KernelConfig{}).Local()
	must(t, err)
	want := Local{
		Addrs: []netip.Addr{
			addr("10.9.9.1"), addr("192.168.50.21"), addr("192.168.50.121"), addr("198.51.100.1"),
			addr("203.0.113.5"), addr("fd00:50::21"),
		},
		Networks: []netip.Prefix{pfx("10.9.9.2/32"), pfx("192.168.50.0/24"), pfx("fd00:50::/64")},
		Primary:  []netip.Addr{addr("192.168.50.21"), addr("fd00:50::21")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestANextProcessFindsWhatAnEarlierOneLeft(t *testing.T) {
	wire(t)
	first, err := OpenKernel(t.Context(), KernelConfig{})
	must(t, err)
	must(t, first.Add(to(block), addr(node1)))
	must(t, first.Add(to("fd00:172::40/122"), addr("fd00:50::23")))
	first.Close()

	want := Table{to(block): addr(node1), to("fd00:172::40/122"): addr("fd00:50::23")}
	wantList(t, open(t, KernelConfig{}), want)

	// under another metric they move to it, one of them already begun
	begun := route(block, node1)
	begun.Protocol, begun.Priority = 78, 70
	must(t, netlink.RouteAdd(begun))
	for _, metric := range []int{70, 40} {
		k := open(t, KernelConfig{Metric: metric})
		wantList(t, k, want)
		wantPresent(t, fmt.Sprintf("%s via %s of protocol 78 metric %d", block, node1, metric),
			fmt.Sprintf("fd00:172::40/122 via fd00:50::23 of protocol 78 metric %d", metric))
	}
}

func TestDropTakesOurRoutesOfEveryMetric(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	for _, p := range []string{block, "fd00:172::40/122"} {
		via := node1
		if pfx(p).Addr().Is6() {
			via = "fd00:50::23"
		}
		must(t, k.Add(to(p), addr(via)))
		foreign(t, p, via, 78, 49)
		foreign(t, p, via, 78, 51)
		must(t, k.Drop(to(p)))
		wantPresent(t)
	}
}

func TestWhatPacketsReallyTakeIsToldFromOneDump(t *testing.T) {
	ours := entry{Selector: to(block), via: addr(node1), protocol: 78, metric: 50, kind: unix.RTN_UNICAST}
	for name, test := range map[string]struct {
		rival entry
		used  bool
	}{
		"the same metric": {entry{
			Selector: to(block), via: addr(node2), protocol: 4, metric: 50,
			kind: unix.RTN_UNICAST,
		}, false},
		"ours, a better metric": {entry{
			Selector: to(block), via: addr(node2), protocol: 78, metric: 49,
			kind: unix.RTN_UNICAST,
		}, false},
		"a worse metric": {entry{
			Selector: to(block), via: addr(node2), protocol: 4, metric: 51,
			kind: unix.RTN_UNICAST,
		}, true},
		"dead": {entry{
			Selector: to(block), via: addr(node2), protocol: 4, kind: unix.RTN_UNICAST,
			flags: unix.RTNH_F_DEAD,
		}, true},
		"several next hops": {entry{Selector: to(block), protocol: 4, kind: unix.RTN_UNICAST}, false},
		"the default route": {
			entry{Selector: to("0.0.0.0/0"), via: addr(node2), protocol: 4, kind: unix.RTN_UNICAST},
			true,
		},
		"unreadable": {entry{protocol: 4}, true},
	} {
		for _, all := range [][]entry{{ours, test.rival}, {test.rival, ours}} {
			table, conflicts := assess(all, 78, 50)
			if got := table[to(block)] == addr(node1); got != test.used || len(conflicts) == 1 == test.used {
				t.Errorf("%s: got used %v and conflicts %v, want used %v", name, got, conflicts, test.used)
			}
		}
	}
}

func TestTwoMarksDoNotTouchEachOther(t *testing.T) {
	wire(t)
	a, b := open(t, KernelConfig{}), open(t, KernelConfig{Protocol: 79, Metric: 60})
	must(t, a.Add(to(block), addr(node1)))
	must(t, b.Add(to(block), addr(node1)))
	must(t, b.Drop(to(block)))
	wantList(t, a, Table{to(block): addr(node1)})
	wantList(t, b, Table{})
	must(t, a.Drop(to(block)))
}

func TestAnotherTableIsKeptApart(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{Table: 5000})
	must(t, k.Add(to(block), addr(node1)))
	wantList(t, k, Table{to(block): addr(node1)})
	wantPresent(t)
	wantList(t, open(t, KernelConfig{}), Table{})
	must(t, k.Drop(to(block)))
	wantList(t, k, Table{})
}

func TestThousandsOfRoutesAreReadBack(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	want := Table{}
	for i := range 2000 {
		p := To(netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + i/1024), byte(i / 4), byte(i % 4 * 64)}), 26))
		want[p] = addr(node1)
		must(t, k.Add(p, addr(node1)))
	}
	start := time.Now()
	wantList(t, k, want)
	t.Logf("%d routes read in %v", len(want), time.Since(start))
	for p := range want {
		must(t, k.Drop(p))
	}
	wantList(t, k, Table{})
}

func TestAReadDuringChangesIsWhole(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	stays := Table{}
	for i := range 500 {
		p := To(netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i / 4), byte(i % 4 * 64)}), 26))
		stays[p] = addr(node1)
		must(t, k.Add(p, addr(node1)))
	}
	ctx, stop := context.WithCancel(t.Context())
	stirred := make(chan error, 1)
	go func() {
		other := route("10.99.0.0/24", node2)
		for ctx.Err() == nil {
			if err := errors.Join(netlink.RouteAdd(other), netlink.RouteDel(other)); err != nil {
				stirred <- err
				return
			}
		}
		stirred <- nil
	}()
	for range 100 {
		wantList(t, k, stays)
	}
	stop()
	must(t, <-stirred)
	for p := range stays {
		must(t, k.Drop(p))
	}
}

func TestWithoutTheCapabilityTheErrorSaysWhatToDo(t *testing.T) {
	got := make(chan error, 1)
	go func() {
		// Only this thread loses the capability. It is never unlocked, so it ends with the
		// goroutine.
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			got <- err
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &caps[0]); err != nil {
			got <- err
			return
		}
		k, err := OpenKernel(t.Context(), KernelConfig{})
		if err == nil {
			k.Close()
		}
		got <- err
	}()
	err := <-got
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "AmbientCapabilities=CAP_NET_ADMIN") {
		t.Errorf("got %v, want a sentence about CAP_NET_ADMIN", err)
	}
}

func TestABrokenSubscriptionIsRenewed(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	events, err := subscribe()
	must(t, err)
	events.close() // as if the kernel had ended it
	ctx, cancel := context.WithCancel(t.Context())
	second := &Kernel{cfg: k.cfg, netlink: k.netlink, changed: make(chan struct{}, 1), done: make(chan struct{})}
	go second.listen(ctx, events)
	defer func() { cancel(); <-second.done }()

	select {
	case <-second.Changed():
	case <-time.After(patience):
		t.Fatal("no knock after the subscription broke")
	}
	must(t, k.Add(to(block), addr(node1)))
	select {
	case <-second.Changed():
	case <-time.After(patience):
		t.Fatal("no knock from the new subscription")
	}
	must(t, k.Drop(to(block)))
}

func TestAnOverrunSubscriptionGoesOn(t *testing.T) {
	wire(t)
	k := open(t, KernelConfig{})
	events, err := subscribe()
	must(t, err)
	must(t, events.raw.Control(func(fd uintptr) {
		// the kernel rounds up, to a few messages
		must(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1))
	}))
	for i := range 200 {
		p := To(netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 26))
		must(t, k.Add(p, addr(node1)))
	}
	second := &Kernel{cfg: k.cfg, changed: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() { ended <- second.receive(events) }()
	select {
	case <-second.Changed():
	case <-time.After(patience):
		t.Fatal("no knock after an overrun")
	}
	events.close()
	select {
	case err := <-ended:
		if errors.Is(err, unix.ENOBUFS) {
			t.Errorf("got %v, want it to go on until the socket is closed", err)
		}
	case <-time.After(patience):
		t.Fatal("receiving did not end when the socket was closed")
	}
}

func TestTheKernelEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	k, err := OpenKernel(ctx, KernelConfig{})
	must(t, err)
	cancel()
	select {
	case <-k.done:
	case <-time.After(patience):
		t.Fatal("still listening after its context ended")
	}
	k.Close()
}

func TestASenselessConfigurationIsRefused(t *testing.T) {
	for name, cfg := range map[string]KernelConfig{
		"the administrator's protocol": {Protocol: 4},
		"protocol of nine bits":        {Protocol: 256},
		"negative table":               {Table: -1},
		"negative metric":              {Metric: -1},
	} {
		if k, err := OpenKernel(t.Context(), cfg); err == nil {
			k.Close()
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestASenselessRouteIsRefused(t *testing.T) {
	k := open(t, KernelConfig{})
	for _, p := range []netip.Prefix{
		{},
		netip.PrefixFrom(addr("172.16.171.65"), 26),
		netip.PrefixFrom(addr("::ffff:172.16.171.64"), 122),
	} {
		if k.Add(To(p), addr(node1)) == nil {
			t.Errorf("adding %v: got no error", p)
		}
		if k.Drop(To(p)) == nil {
			t.Errorf("dropping %v: got no error", p)
		}
	}
	if k.Add(to(block), addr("fd00:50::23")) == nil || k.Add(to(block), netip.Addr{}) == nil {
		t.Error("got no error for a next hop of another family, or none")
	}
}
