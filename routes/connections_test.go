package routes

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// echoes moves the far end of the wire to a network namespace of its own, with echo servers
// in it.
func echoes(t *testing.T, far netlink.Link, ends ...string) (away *netlink.Handle) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	there, err := netns.New() // and goes there
	must(t, err)
	t.Cleanup(func() { _ = there.Close() })
	defer func() { must(t, netns.Set(home)) }()
	away, err = netlink.NewHandleAt(there)
	must(t, err)
	t.Cleanup(away.Close)
	back, err := netlink.NewHandleAt(home)
	must(t, err)
	defer back.Close()
	must(t, back.LinkSetNsFd(far, int(there)))
	far, err = away.LinkByName("far")
	must(t, err)
	must(t, away.LinkSetUp(far))
	for _, end := range ends {
		bits := "/24"
		if addrPort(end).Addr().Is6() {
			bits = "/64"
		}
		a, err := netlink.ParseAddr(addrPort(end).Addr().String() + bits)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		must(t, away.AddrAdd(far, a))
		l, err := net.Listen("tcp", end)
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
	}
	return away
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// say sends a word, and reads it back.
func say(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("word"))
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 4))
	must(t, err)
}

func TestConnectionsToAMuteEndAreAborted(t *testing.T) {
	_, far := wire(t)
	k := open(t, KernelConfig{})
	ends := []string{node1 + ":8080", node2 + ":8080", "[fd00:50::23]:8080", "[fd00:50::24]:8080"}
	away := echoes(t, far, ends...)
	conns := make(map[string]net.Conn)
	for _, end := range ends {
		c, err := net.DialTimeout("tcp", end, patience)
		must(t, err)
		// a FIN that nobody acknowledges would outlive the test, in a namespace that all share
		must(t, c.(*net.TCPConn).SetLinger(0))
		t.Cleanup(func() { _ = c.Close() })
		say(t, c)
		conns[end] = c
	}
	if got, err := k.Mute(); err != nil || len(got) != 0 {
		t.Fatalf("while all answer: got %v, %v", got, err)
	}

	// Packets of the far end to us are lost.
	var holes []*netlink.Route
	for _, to := range []string{"192.168.50.21/32", "fd00:50::21/128"} {
		r := route(to, "")
		r.Gw, r.Type = nil, unix.RTN_BLACKHOLE
		must(t, away.RouteAdd(r))
		holes = append(holes, r)
	}
	lost := []string{ends[0], ends[2]}
	want := make(map[End]bool)
	for _, end := range lost {
		_, err := conns[end].Write([]byte("word"))
		must(t, err)
		want[End{From: addrPort(conns[end].LocalAddr().String()).Addr(), To: addrPort(end)}] = true
	}
	deadline, look := time.After(patience), time.NewTicker(10*time.Millisecond)
	defer look.Stop()
	for {
		got, err := k.Mute()
		must(t, err)
		all := len(got) == 2*len(want)
		for end := range want {
			all = all && got[end] && got[end.Any()]
		}
		if all {
			break
		}
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("got %v, want %v", got, want)
		}
	}

	if n, err := k.Abort(want); n != len(want) || err != nil {
		t.Errorf("got %d connections ended, %v, want %d", n, err, len(want))
	}
	for _, end := range lost {
		if _, err := conns[end].Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("the connection to %s: got %v, want %v", end, err, unix.ECONNABORTED)
		}
	}
	if n, err := k.Abort(want); n != 0 || err != nil {
		t.Errorf("a second time: got %d, %v, want none", n, err)
	}
	for _, r := range holes {
		must(t, away.RouteDel(r))
	}
	say(t, conns[ends[1]])
	say(t, conns[ends[3]])
}

func TestHeldConnectionsAreCountedByOwnAddress(t *testing.T) {
	wire(t, "192.168.50.21/24", "fd00:50::21/64", "203.0.113.10/32", "2001:db8::10/128")
	k := open(t, KernelConfig{})
	// A listener on the IPv6 wildcard takes IPv4 clients, too: the kernel then shows
	// their connections as IPv6. Package net asks once in a process whether the kernel can
	// do that, perhaps in a namespace that cannot, so the option is set here.
	both := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		}), err)
	}}
	l, err := both.Listen(t.Context(), "tcp6", "[::]:8080")
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	service := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")}
	var served []net.Conn
	for end, from := range map[string]string{
		"203.0.113.10:8080":   "192.168.50.21:0",
		"[2001:db8::10]:8080": "[fd00:50::21]:0", "192.168.50.21:8080": "192.168.50.21:0",
	} {
		dialer := &net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(addrPort(from))}
		c, err := dialer.Dial("tcp", end)
		// until the kernel's link watch has seen the wire's carrier, at most once a second
		for errors.Is(err, unix.EHOSTUNREACH) {
			c, err = dialer.Dial("tcp", end)
		}
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		s, err := l.Accept()
		must(t, err)
		served = append(served, s)
	}
	held := func(want int) {
		t.Helper()
		deadline, look := time.After(patience), time.NewTicker(10*time.Millisecond)
		defer look.Stop()
		for {
			n, err := k.Held(service)
			must(t, err)
			if n == want {
				return
			}
			select {
			case <-look.C:
			case <-deadline:
				t.Fatalf("%d connections are held, want %d", n, want)
			}
		}
	}
	held(2)
	for _, s := range served {
		must(t, s.Close())
	}
	held(0) // a client may keep its end open
}
