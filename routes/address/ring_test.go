package address

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	service4 = "203.0.113.10"
	service6 = "2001:db8:113::10"
)

// A world is a client, a router and appliances that serve the same two addresses.
//
//	client ── router ── switch ── gate 1, 2, …
type world struct {
	t                      *testing.T
	client, router, bridge *host
	gates                  []*gate
	bound                  []netip.AddrPort // where they listen at the address itself
}

// A gate is an appliance with the server behind an address.
type gate struct {
	*host
	at4, at6  string
	listeners []net.Listener
	mu        sync.Mutex
	conns     []net.Conn
}

func newWorld(t *testing.T, gates int) *world {
	t.Helper()
	w := &world{t: t, client: newHost(t), router: newHost(t), bridge: newHost(t)}
	w.bridge.run("ip link add lan type bridge && ip link set lan up")
	w.client.wire("eth0", w.router, "wan")
	w.client.run("ip addr add 198.51.100.2/24 dev eth0 && ip addr add 2001:db8:100::2/64 dev eth0 nodad && ip route " +
		"add default via 198.51.100.1 && ip -6 route add default via 2001:db8:100::1")
	w.router.wire("eth0", w.bridge, "router")
	w.bridge.run("ip link set router master lan")
	w.router.run("ip addr add 198.51.100.1/24 dev wan && ip addr add 2001:db8:100::1/64 dev wan nodad && ip addr add " +
		"192.168.50.1/24 dev eth0 && ip addr add 2001:db8:50::1/64 dev eth0 nodad")
	w.router.run("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; echo 1 " +
		">/proc/sys/net/ipv4/fib_multipath_hash_policy; echo 1 >/proc/sys/net/ipv6/fib_multipath_hash_policy")
	for i := range gates {
		g := &gate{host: newHost(t), at4: fmt.Sprintf("192.168.50.%d", 21+i), at6: fmt.Sprintf("2001:db8:50::%d", 21+i)}
		port := fmt.Sprintf("gate%d", i+1)
		g.wire("nodes", w.bridge, port)
		w.bridge.run("ip link set " + port + " master lan")
		g.run("ip addr add " + g.at4 + "/24 dev nodes && ip addr add " + g.at6 +
			"/64 dev nodes nodad && ip route add default via 192.168.50.1 && ip -6 route add default via " +
			"2001:db8:50::1")
		g.set(service4, service6)
		w.gates = append(w.gates, g)
		g.serve("tcp4", "tcp6")
	}
	for _, g := range w.gates {
		// A route of IPv6 leaves out a next hop whose neighbour is not known yet.
		w.router.run("ping -c 1 -W 30 " + g.at6 + " >&2")
		// What heartbeats do: the members are neighbours that know each other.
		for _, other := range w.gates {
			if other != g {
				g.run("ping -c 1 -W 30 " + other.at4 + " >&2 && ping -c 1 -W 30 " + other.at6 + " >&2")
			}
		}
	}
	return w
}

// serve listens on port 80 of all addresses, and returns to each client what it sends.
func (g *gate) serve(networks ...string) {
	g.t.Helper()
	for _, network := range networks {
		g.serveAt(network, ":80")
	}
}

func (g *gate) serveAt(network, address string) {
	g.t.Helper()
	g.do(func() {
		l, err := net.Listen(network, address)
		must(g.t, err)
		g.listeners = append(g.listeners, l)
		g.t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				g.mu.Lock()
				g.conns = append(g.conns, c)
				g.mu.Unlock()
				go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
			}
		}()
	})
}

func (g *gate) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.conns)
}

// die closes the listeners, as if HAProxy were down. Connections stay.
func (g *gate) die() {
	for _, l := range g.listeners {
		_ = l.Close()
	}
}

// route makes the router send the connections to these gates, counted from 1.
func (w *world) route(gates ...int) {
	w.t.Helper()
	four, six := "ip route replace "+service4, "ip -6 route replace "+service6
	for _, i := range gates {
		four += " nexthop via " + w.gates[i-1].at4
		six += " nexthop via " + w.gates[i-1].at6
	}
	w.router.run(four + " && " + six)
}

// ring makes a ring of these gates on each of them; on the others there is none.
func (w *world) ring(gates ...int) {
	w.t.Helper()
	var members, silent []netip.Addr
	for i, g := range w.gates {
		if slices.Contains(gates, i+1) {
			members = append(members, addr(g.at4))
		} else {
			silent = append(silent, addr(g.at4))
		}
	}
	for _, i := range gates {
		g := w.gates[i-1]
		g.do(func() {
			must(w.t, SetRing(w.t.Context(),
				Ring{
					Addresses: addrs(service4, service6), Listeners: w.bound, Self: addr(g.at4), Members: members,
					Silent: silent,
				}))
		})
	}
}

// bind makes the gates listen at the addresses themselves, in place of all addresses.
func (w *world) bind() {
	w.t.Helper()
	for _, a := range []string{service4, service6} {
		w.bound = append(w.bound, netip.AddrPortFrom(addr(a), 80))
	}
	for _, g := range w.gates {
		g.die()
		for _, at := range w.bound {
			g.serveAt("tcp", at.String())
		}
	}
}

// listening runs a test in a world whose gates listen at all addresses, as for the addresses of the
// group, and in one whose gates listen at the addresses themselves, as for those of Services.
func listening(t *testing.T, gates int, test func(*testing.T, *world)) {
	t.Helper()
	t.Run("at all addresses", func(t *testing.T) { test(t, newWorld(t, gates)) })
	t.Run("at the address itself", func(t *testing.T) {
		w := newWorld(t, gates)
		w.bind()
		test(t, w)
	})
}

// connect opens connections to the service, half of them to each address.
func (w *world) connect(n int, dscp int) (all []net.Conn) {
	w.t.Helper()
	mark := func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, dscp<<2), nil)
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, dscp<<2)
		})
		return err
	}
	w.client.do(func() {
		for i := range n {
			to := []string{service4, service6}[i%2]
			d := net.Dialer{Timeout: time.Minute, Control: mark}
			c, err := d.DialContext(w.t.Context(), "tcp", net.JoinHostPort(to, "80"))
			must(w.t, err)
			w.t.Cleanup(func() { _ = c.Close() })
			all = append(all, c)
		}
	})
	if got := broken(all); len(got) > 0 {
		w.t.Fatalf("new connections: %v", got)
	}
	return all
}

// broken asks over each connection, and returns the errors of those that do not answer.
func broken(all []net.Conn) (errs []error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, c := range all {
		asking.Go(func() {
			if err := ask(c); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	asking.Wait()
	return errs
}

func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 5))
	return err
}

func wantUnbroken(t *testing.T, when string, all []net.Conn) {
	t.Helper()
	if errs := broken(all); len(errs) > 0 {
		t.Errorf("%s: %d of %d connections are broken: %v", when, len(errs), len(all), errs[0])
	}
}

const many = 60

func TestConnectionsSurviveAMoveOfTheAddressWithARing(t *testing.T) {
	for n := 2; n <= largest; n++ {
		if n > 3 && n < largest && testing.Short() {
			continue
		}
		move := func(t *testing.T, w *world) {
			all := make([]int, n)
			for i := range all {
				all[i] = i + 1
			}
			w.route(all...)
			conns := w.connect(many, 0)
			idle := func(g *gate) bool { return g.held() == 0 }
			for slices.ContainsFunc(w.gates, idle) { // the router's hash left one out
				conns = append(conns, w.connect(1, 0)...)
			}
			w.ring(all...)
			wantUnbroken(t, "before a move", conns)
			w.route(all[1:]...) // the first leaves
			wantUnbroken(t, "after one left", conns)
			w.route(all...)
			wantUnbroken(t, "after it came back", conns)
			w.route(all[n-1]) // only the last
			wantUnbroken(t, "with one left", conns)
			w.connect(4, 0)
		}
		t.Run(fmt.Sprintf("%d members", n), func(t *testing.T) { listening(t, n, move) })
	}
}

// Without rules the same moves break connections: the test above shows something.
func TestConnectionsBreakWithoutARing(t *testing.T) {
	w := newWorld(t, 3)
	w.route(1, 2, 3)
	conns := w.connect(many, 0)
	w.ring(1, 2, 3)
	for _, g := range w.gates {
		g.do(func() { must(t, ClearRing(t.Context())) })
		if got := g.run("nft list ruleset; ip -6 neigh show nud permanent dev nodes"); got != "" {
			t.Errorf("ClearRing leaves\n%s", got)
		}
	}
	w.route(2, 3)
	if got := len(broken(conns)); got == 0 {
		t.Error("no connection is broken")
	}
}

// HAProxy's "bind :::80 v4v6" is one socket for both families.
func TestASocketOfBothFamiliesIsFoundAsAListener(t *testing.T) {
	w := newWorld(t, 2)
	for _, g := range w.gates {
		g.die()
		g.serve("tcp")
	}
	w.route(1)
	conns := w.connect(10, 0)
	w.ring(1, 2)
	w.route(2)
	wantUnbroken(t, "after the move", conns)
}

func TestARingWithoutIPv6LeavesNothingOfIt(t *testing.T) {
	w := newWorld(t, 2)
	w.ring(1, 2)
	g := w.gates[0]
	g.do(func() {
		must(t, SetRing(t.Context(),
			Ring{Addresses: addrs(service4), Self: addr(g.at4), Members: addrs(w.gates[1].at4)}))
	})
	if got := g.run("nft list tables; ip -6 neigh show nud permanent dev nodes"); got != "table ip "+table {
		t.Errorf("got %s, want the table of IPv4 alone", got)
	}
}

func TestAConnectionIsFoundThroughAnApplianceWithoutHAProxy(t *testing.T) {
	listening(t, 3, func(t *testing.T, w *world) {
		w.route(1, 2)
		conns := w.connect(many, 0)
		w.ring(1, 2, 3)
		w.gates[2].die()
		w.route(3)
		wantUnbroken(t, "behind an appliance that does not listen", conns)
	})
}

// A server may close a connection before the client has all of it. The socket then belongs to no
// process, and still is the only one that can send the rest.
func TestTheRestOfAClosedConnectionArrives(t *testing.T) {
	listening(t, 2, func(t *testing.T, w *world) {
		const size = 1 << 18
		w.route(1)
		conns := w.connect(10, 0)
		w.ring(1, 2)
		w.gates[0].mu.Lock()
		for _, c := range w.gates[0].conns {
			must(t, c.(*net.TCPConn).SetWriteBuffer(4*size))
			_, err := c.Write(make([]byte, size)) // the client reads later
			must(t, err)
			must(t, c.Close())
		}
		w.gates[0].mu.Unlock()
		for _, c := range conns {
			if n, err := io.Copy(io.Discard, c); n != size || err != nil {
				t.Errorf("%d of %d bytes, error %v", n, size, err)
			}
		}
	})
}

// Without the table of connections nobody could tell which packets are foreign: all would be.
func TestWithoutEarlyDemuxThereIsNoRingForServices(t *testing.T) {
	w := newWorld(t, 2)
	w.bind()
	g := w.gates[0]
	g.run("echo 0 >/proc/sys/net/ipv4/tcp_early_demux")
	ring := Ring{Addresses: addrs(service4, service6), Self: addr(g.at4), Members: addrs(w.gates[1].at4)}
	g.do(func() {
		must(t, SetRing(t.Context(), ring))
		ring.Listeners = w.bound
		if err := SetRing(t.Context(), ring); err == nil ||
			!strings.Contains(err.Error(), "net.ipv4.tcp_early_demux is 0") {
			t.Errorf("got error %v", err)
		}
	})
	if got := g.run("nft list ruleset"); got != "" {
		t.Errorf("there is a ring:\n%s", got)
	}
}

// A packet of no connection goes round once, and is reset.
func TestAPacketOfNoConnectionIsReset(t *testing.T) {
	listening(t, 3, func(t *testing.T, w *world) {
		w.route(1, 2)
		conns := w.connect(many, 0)
		w.ring(1, 2, 3)
		for _, g := range w.gates {
			g.mu.Lock()
			for _, c := range g.conns { // vanish without a word
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			g.mu.Unlock()
		}
		w.route(3)
		for _, g := range w.gates {
			g.run("nft add table inet mute && nft 'add chain inet mute out { type filter hook output priority 0; }' " +
				"&& nft 'add rule inet mute out tcp sport 80 tcp flags & rst == rst drop'")
			for _, c := range g.conns {
				_ = c.Close()
			}
			g.run("nft delete table inet mute")
		}
		if got := len(broken(conns)); got != many {
			t.Errorf("%d of %d connections are reset, want all", got, many)
		}
		for i, g := range w.gates {
			n := g.counted()
			if want := i+1 != 2; (n.Passed > 0) != want { // 3 → 1 → 2, and no further
				t.Errorf("gate %d passed on %d packets", i+1, n.Passed)
			}
		}
	})
}

// A client and a neighbour may write any DSCP. It counts only from a member's MAC
// address.
func TestAForgedDSCPChangesNothing(t *testing.T) {
	for dscp := range 8 {
		w := newWorld(t, 3)
		w.route(1, 2, 3)
		conns := w.connect(many/3, dscp)
		w.ring(1, 2, 3)
		w.route(3)
		wantUnbroken(t, fmt.Sprintf("with DSCP %d", dscp), conns)
	}
}

// Members may see different rings for a moment. No packet goes round for ever.
func TestPacketsEndWhereMembersDisagree(t *testing.T) {
	w := newWorld(t, 3)
	w.route(1)
	for i, members := range [][]netip.Addr{{addr(w.gates[1].at4)}, {addr(w.gates[2].at4)}, {addr(w.gates[0].at4)}} {
		g := w.gates[i]
		var silent []netip.Addr
		for _, other := range w.gates {
			if a := addr(other.at4); other != g && a != members[0] {
				silent = append(silent, a)
			}
		}
		g.do(func() {
			must(t, SetRing(t.Context(),
				Ring{
					Addresses: addrs(service4, service6), Listeners: w.bound, Self: addr(g.at4), Members: members,
					Silent: silent,
				}))
		})
	}
	w.stray(50)
	w.connect(4, 0) // comes after them
	for i, g := range w.gates {
		if passed := g.counted().Passed; passed > 50 {
			t.Errorf("gate %d passed on %d packets of 50", i+1, passed)
		}
	}
}

// The rules of the machine stay as they are, and the ring works through them.
func TestTheRingAndTheFirewallOfTheImageDoNotDisturbEachOther(t *testing.T) {
	wall, err := os.ReadFile("../../image/testdata/default.nft")
	must(t, err)
	listening(t, 3, func(t *testing.T, w *world) {
		var before []string
		for _, g := range w.gates {
			file := t.TempDir() + "/wall"
			must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(wall), "meta skuid haproxy goto worker", "")),
				0o600))
			g.run("nft -f " + file)
			before = append(before, g.run("nft list table inet sallyport"))
		}
		w.route(1, 2, 3)
		conns := w.connect(many, 0)
		w.ring(1, 2, 3)
		w.route(2)
		wantUnbroken(t, "through the firewall", conns)
		for i, g := range w.gates {
			if got := g.run("nft list table inet sallyport"); got != before[i] {
				t.Errorf("the firewall became\n%s\nbefore\n%s", got, before[i])
			}
			g.do(func() { must(t, ClearRing(t.Context())) })
			if got := g.run("nft list ruleset"); got != before[i] {
				t.Errorf("after ClearRing the rules are\n%s\nwant\n%s", got, before[i])
			}
		}
	})
}

// A process that died renews nothing, and the kernel forgets the addresses by itself.
func TestTheRulesEndWithTheirLease(t *testing.T) {
	w := newWorld(t, 2)
	w.ring(1, 2)
	for _, f := range families {
		if got := w.gates[0].run("nft list set " + f.name + " " + table + " addresses"); !strings.Contains(got,
			" timeout 30s expires ") {
			t.Errorf("the addresses have no lease:\n%s", got)
		}
	}
}

func TestTheCounterSurvivesANewRing(t *testing.T) {
	w := newWorld(t, 2)
	w.route(1)
	conns := w.connect(10, 0)
	w.ring(1, 2)
	w.route(2)
	wantUnbroken(t, "after the move", conns)
	passed := func() uint64 { return w.gates[1].counted().Passed }
	before := passed()
	w.ring(1, 2)
	if got := passed(); before == 0 || got < before {
		t.Errorf("passed %d packets, and %d after a new ring", before, got)
	}
}

func TestARingThatCannotBeIsNone(t *testing.T) {
	w := newWorld(t, 2)
	g := w.gates[0]
	for _, c := range []struct {
		what    string
		members []netip.Addr
		before  string
		want    string
	}{
		{
			"a member that never spoke", addrs(w.gates[1].at4, "192.168.50.99"), "",
			"second chance is off: the MAC address of the member 192.168.50.99 is not known on nodes: nothing was " +
				"heard from there",
		},
		{
			"a member behind the router", addrs(w.gates[1].at4, "198.51.100.2"), "",
			"the member 198.51.100.2 is no neighbour of this machine: all members have to be in one network",
		},
		{"nine members", addrs("192.168.50.22", "192.168.50.23", "192.168.50.24", "192.168.50.25", "192.168.50.26",
			"192.168.50.27", "192.168.50.28", "192.168.50.29"), "", "9 members: a group has at most 8"},
		{
			"an IPv4 address and members of IPv6", addrs(w.gates[1].at6), "",
			"the address 203.0.113.10 is IPv4, and the members have only IPv6 addresses",
		},
	} {
		w.ring(1, 2)
		g.do(func() {
			self := addr(g.at4)
			if c.members[0].Is6() {
				self = addr(g.at6)
			}
			err := SetRing(t.Context(), Ring{Addresses: addrs(service4, service6), Self: self, Members: c.members})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got error %v, want %s", c.what, err, c.want)
			}
		})
		if got := g.run("nft list ruleset"); got != "" {
			t.Errorf("%s: the old ring stays:\n%s", c.what, got)
		}
	}
}

func TestWithoutNftTheErrorNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := ClearRing(context.Background()); err == nil ||
		!strings.Contains(err.Error(), "install the package nftables") {
		t.Errorf("got error %v", err)
	}
}

func TestSYNCookiesAreCounted(t *testing.T) {
	_, err := SYNCookies()
	must(t, err)
}

// counted returns what the gate's rules have done.
func (g *gate) counted() (n Count) {
	g.t.Helper()
	var err error
	g.do(func() { n, err = Counted(g.t.Context()) })
	must(g.t, err)
	return n
}

// stray sends packets of no connection to a service address. They have no answer but a reset.
func (w *world) stray(n int) {
	w.t.Helper()
	w.client.do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
		must(w.t, err)
		defer unix.Close(fd) //nolint:errcheck // nothing was buffered
		segment := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0}
		for range n {
			must(w.t, unix.Sendto(fd, segment, 0, &unix.SockaddrInet4{Addr: [4]byte{203, 0, 113, 10}}))
		}
	})
}

func TestPacketsOfNoConnectionGoOnWithinALimit(t *testing.T) {
	w := newWorld(t, 2)
	w.route(1)
	const sent, limit = 2000, 10
	began := time.Now()
	w.gates[0].do(func() {
		must(t, SetRing(t.Context(),
			Ring{Addresses: addrs(service4), Self: addr(w.gates[0].at4), Members: addrs(w.gates[1].at4), Limit: limit}))
	})
	w.stray(sent)
	w.connect(4, 0) // comes after them
	n := w.gates[0].counted()
	most := limit * uint64(2+time.Since(began)/time.Second)
	if n.Passed+n.Dropped != sent || n.Passed < limit || n.Passed > most {
		t.Errorf("%d passed and %d dropped of %d, want %d to %d passed", n.Passed, n.Dropped, sent, limit, most)
	}
}
