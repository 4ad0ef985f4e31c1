package address

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bfd returns a packet of RFC 5880 in the state Down.
func bfd(missed byte, every time.Duration) []byte {
	p := make([]byte, 24)
	p[0], p[1], p[2], p[3] = 1<<5, 1<<6, missed, 24
	binary.BigEndian.PutUint32(p[4:], 7)
	binary.BigEndian.PutUint32(p[12:], uint32(every.Microseconds()))
	binary.BigEndian.PutUint32(p[16:], 250_000)
	return p
}

// A lane is a gate, and a neighbour with several addresses in its network.
type lane struct {
	gate, neighbour *host
}

func newLane(t *testing.T) *lane {
	t.Helper()
	l := &lane{gate: newHost(t), neighbour: newHost(t)}
	l.gate.wire("nodes", l.neighbour, "eth0")
	l.gate.run("ip addr add 192.168.50.21/24 dev nodes && ip addr add 2001:db8:50::21/64 dev nodes nodad")
	for i := 1; i < 4; i++ {
		l.neighbour.run(fmt.Sprintf("ip addr add 192.168.50.%[1]d/24 dev eth0 && ip addr add 2001:db8:50::%[1]d/64 "+
			"dev eth0 nodad", i))
	}
	return l
}

// send sends a packet to a UDP port of the gate with a TTL.
func (l *lane) send(t *testing.T, from, to string, ttl int, packet []byte) {
	t.Helper()
	l.neighbour.do(func() {
		d := net.Dialer{
			LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(from), 0)),
			Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) {
					_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
					_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
				})
			},
		}
		c, err := d.DialContext(t.Context(), "udp", to)
		must(t, err)
		_, err = c.Write(packet)
		must(t, err)
		must(t, c.Close())
	})
}

func TestOnlyRoutersReachBFDAndNoneForLong(t *testing.T) {
	l := newLane(t)
	var conn net.PacketConn
	l.gate.do(func() {
		must(t, SetGuard(t.Context(), Guard{BFD: 3784, Routers: addrs("192.168.50.1", "2001:db8:50::1")}))
		must(t, SetGuard(t.Context(), Guard{BFD: 3784, Routers: addrs("192.168.50.1", "2001:db8:50::1")})) // again
		var err error
		conn, err = net.ListenPacket("udp", ":3784")
		must(t, err)
	})
	defer conn.Close() //nolint:errcheck // only read
	good := bfd(50, 10*time.Second)
	for i, family := range []struct{ router, other, gate string }{
		{"192.168.50.1", "192.168.50.2", "192.168.50.21:3784"},
		{"2001:db8:50::1", "2001:db8:50::2", "[2001:db8:50::21]:3784"},
	} {
		for name, row := range map[string]struct {
			from   string
			ttl    int
			packet []byte
			passes bool
		}{
			"the router":                        {family.router, 255, good, true},
			"the router, as fast as can be":     {family.router, 255, bfd(3, 10*time.Millisecond), true},
			"through another router":            {family.router, 254, good, false},
			"a neighbour":                       {family.other, 255, good, false},
			"an interval of more than 10 s":     {family.router, 255, bfd(3, 10*time.Second+time.Microsecond), false},
			"the longest interval":              {family.router, 255, bfd(255, (1<<32-1)*time.Microsecond), false},
			"more than 50 packets to be missed": {family.router, 255, bfd(51, time.Second), false},
			"something short":                   {family.router, 255, []byte("x"), false},
		} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				l.send(t, row.from, family.gate, row.ttl, row.packet)
				mark := bfd(9, time.Second)
				l.send(t, family.router, family.gate, 255, mark) // comes after it
				got := 0
				for buffer := make([]byte, 100); ; got++ {
					must(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
					n, _, err := conn.ReadFrom(buffer)
					must(t, err)
					if string(buffer[:n]) == string(mark) {
						break
					}
				}
				if (got == 1) != row.passes {
					t.Errorf("%d packets arrived, want that it arrives: %v", got, row.passes)
				}
			})
		}
	}
	l.gate.do(func() { must(t, ClearGuard(context.Background())) })
	if got := l.gate.run("nft list ruleset"); strings.Contains(got, guardTable) {
		t.Errorf("there is still %s", got)
	}
	l.gate.do(func() { must(t, ClearGuard(t.Context())) }) // again
}

func TestOnlyMembersReachThePeersOfHAProxy(t *testing.T) {
	l := newLane(t)
	l.gate.do(func() {
		must(t, SetGuard(t.Context(),
			Guard{Port: 7477, Members: addrs("192.168.50.21", "192.168.50.2", "2001:db8:50::2")}))
		for _, at := range []string{":7477", ":80"} {
			listener, err := net.Listen("tcp", at) //nolint:noctx // it ends with the test
			must(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					_ = c.Close()
				}
			}()
		}
	})
	dial := func(on *host, from, to string) (err error) {
		on.do(func() {
			d := net.Dialer{Timeout: 30 * time.Second}
			if from != "" {
				d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr(from), 0))
			}
			var c net.Conn
			if c, err = d.DialContext(t.Context(), "tcp", to); err == nil {
				_ = c.Close()
			}
		})
		return err
	}
	rejected := func() string {
		return l.gate.run("nft list table inet " + guardTable + " | grep -o 'counter packets [0-9]*'")
	}
	for _, row := range []struct {
		on       *host
		from, to string
		passes   bool
	}{
		{l.gate, "", "192.168.50.21:7477", true},
		{l.neighbour, "192.168.50.2", "192.168.50.21:7477", true},
		{l.neighbour, "2001:db8:50::2", "[2001:db8:50::21]:7477", true},
		{l.neighbour, "192.168.50.3", "192.168.50.21:80", true},
		{l.neighbour, "192.168.50.3", "192.168.50.21:7477", false},
		{l.neighbour, "2001:db8:50::3", "[2001:db8:50::21]:7477", false},
	} {
		before := rejected()
		err := dial(row.on, row.from, row.to)
		if now := rejected(); (now == before) != row.passes || (err == nil) != row.passes {
			t.Errorf("from %q to %s: %v, %s rejected before and %s after, want that it passes: %v", row.from, row.to,
				err, before, now, row.passes)
		}
		// The answer tells another member that the machine is alive.
		if !row.passes && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("from %q to %s: %v, want that it is refused", row.from, row.to, err)
		}
	}
}
