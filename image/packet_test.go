package image

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inside runs f in a network namespace. Sockets that f opens stay in it.
func inside(t *testing.T, ns string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			file, err := os.Open("/run/netns/" + ns)
			if err != nil {
				return err
			}
			defer file.Close() //nolint:errcheck // only read
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	if err := <-done; err != nil {
		t.Fatalf("in %s: %v", ns, err)
	}
}

// The flags of a TCP header (RFC 9293 section 3.1).
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
	urg
)

// tcpPacket returns an IPv4 packet with a TCP header of these flags.
func tcpPacket(from, to netip.AddrPort, flags byte) []byte {
	p := make([]byte, 40)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_TCP // the kernel fills in the length and its checksum
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	h := p[20:]
	binary.BigEndian.PutUint16(h, from.Port())
	binary.BigEndian.PutUint16(h[2:], to.Port())
	binary.BigEndian.PutUint32(h[4:], 1000)
	if flags&ack != 0 {
		binary.BigEndian.PutUint32(h[8:], 2000)
	}
	h[12], h[13] = 5<<4, flags
	binary.BigEndian.PutUint16(h[14:], 1024)
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(h))
	for _, part := range [][]byte{p[12:20], h} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(h[16:], ^uint16(sum)) //nolint:gosec // what is carried was added
	return p
}

// sender opens a raw socket that sends packets with their headers, and receives TCP.
func sender() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_HDRINCL, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}),
	)
}

func send(fd int, to netip.AddrPort, packet []byte) error {
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// listen opens a socket that listens.
func listen(at netip.AddrPort, backlog int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	return fd, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}),
		unix.Listen(fd, backlog))
}

// TestNoPacketTellsWhichPortsListen sends the packets of scanners to a port that is open
// for others, and to a closed one. Last it sends an ACK to the port of HTTP: once that is
// answered, no other answer is to come.
func TestNoPacketTellsWhichPortsListen(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	inside(t, s.machine, func() error {
		fd, err := listen(netip.MustParseAddrPort("192.168.50.21:179"), 10)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return err
	})
	for name, flags := range map[string]byte{
		"no flag": 0, "FIN": fin, "FIN, PSH and URG": fin | psh | urg, "SYN": syn, "SYN and FIN": syn | fin, "URG": urg,
		"ACK": ack, "FIN and ACK": fin | ack, "SYN and ACK": syn | ack, "RST": rst, "PSH and ACK": psh | ack,
	} {
		answers := map[uint16]string{}
		inside(t, s.neighbour, func() error {
			fd, err := sender()
			if err != nil {
				return err
			}
			defer unix.Close(fd) //nolint:errcheck // it is only asked
			from := netip.MustParseAddrPort("192.168.50.99:40000")
			for i, port := range []uint16{179, 180, 80} {
				to := netip.AddrPortFrom(netip.MustParseAddr("192.168.50.21"), port)
				if port == 80 {
					flags = ack
				}
				if err := send(fd, to, tcpPacket(netip.AddrPortFrom(from.Addr(), from.Port()+uint16(i)), to, flags)); err != nil { //nolint:gosec // three
					return err
				}
			}
			packet := make([]byte, 1500)
			for deadline := time.Now().Add(patience); answers[80] == ""; {
				n, _, err := unix.Recvfrom(fd, packet, 0)
				if err != nil && !errors.Is(err, unix.EAGAIN) {
					return err
				}
				if time.Now().After(deadline) {
					return errors.New("an ACK to port 80 has no answer")
				}
				if n >= 40 && [4]byte(packet[12:16]) == [4]byte{192, 168, 50, 21} {
					answers[binary.BigEndian.Uint16(packet[20:])] += fmt.Sprintf("flags %06b ", packet[33])
				}
			}
			return nil
		})
		if answers[179] != answers[180] {
			t.Errorf("%s: the port that listens answers %q, the other %q", name, answers[179], answers[180])
		}
	}
}

// worker runs a script as the user of HAProxy's worker.
func (s street) worker(script string) (string, error) {
	cmd := exec.CommandContext(s.t.Context(), "ip", "netns", "exec", s.machine, "setpriv", "--reuid", "haproxy",
		"--regid", "haproxy", "--clear-groups", "--no-new-privs",
		"bash", "-c", script)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestHAProxyReachesItsServersAndNothingElse connects as a worker that an attacker
// controls. Nobody listens at the allowed addresses, so the neighbour resets these
// connections. At all others the machine rejects them, and the neighbour receives
// nothing.
func TestHAProxyReachesItsServersAndNothingElse(t *testing.T) {
	s := newStreet(t)
	ruleset := firewall(machines(t)["static"])
	s.load(ruleset)
	for _, route := range []string{"172.16.171.64/26", "172.16.189.64/26"} {
		s.run("ip", "-n", s.machine, "route", "add", route, "via", "192.168.50.22")
	}
	for _, pod := range []string{"172.16.171.66/32", "172.16.189.66/32"} {
		s.run("ip", "-n", s.neighbour, "addr", "add", pod, "dev", "lo")
	}
	// What comes by the wire is counted there.
	const counters = `table inet heard {
	counter heard { }
	chain input { type filter hook input priority filter; meta l4proto { 6, 17 } counter name heard; }
}
`
	cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", s.neighbour, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(counters)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	heard := func() string {
		return counted.FindString(
			strings.ReplaceAll(s.run("ip", "netns", "exec", s.neighbour, "nft", "list", "counter", "inet", "heard",
				"heard"), "packets", "counter packets"))
	}
	allow := func(a Admission) {
		t.Helper()
		if err := s.house().Admit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	allow(Admission{
		Pods: []netip.Prefix{
			netip.MustParsePrefix("172.16.171.64/26"), netip.MustParsePrefix("172.16.171.66/32"),
			netip.MustParsePrefix("172.16.171.128/26"), netip.MustParsePrefix("fd00:50::/120"),
		},
		Servers: []netip.AddrPort{netip.MustParseAddrPort("192.168.50.22:8080")},
		Logs: []netip.AddrPort{
			netip.MustParseAddrPort("192.168.50.22:514"),
			netip.MustParseAddrPort("[fd00:50::22]:514"),
		},
		UDP: []uint16{443}, TCP: []uint16{3306},
	})
	s.load(ruleset) // as when the file changes
	udp := func(to string) string {
		at := netip.MustParseAddrPort(to)
		return fmt.Sprintf("echo >/dev/udp/%s/%d", at.Addr(), at.Port())
	}
	for name, row := range map[string]struct {
		how  string
		open bool
	}{
		"a pod":                           {tcp("", "172.16.171.66:8080"), true},
		"a pod by IPv6":                   {tcp("", "[fd00:50::22]:80"), true},
		"a pod without a route":           {tcp("", "172.16.189.66:8080"), false},
		"a server on a node":              {tcp("", "192.168.50.22:8080"), true},
		"that node's BGP":                 {tcp("", "192.168.50.22:179"), false},
		"that node's API server":          {tcp("", "192.168.50.22:6443"), false},
		"that node's kubelet":             {tcp("", "192.168.50.22:10250"), false},
		"the status port of the machine":  {tcp("", "10.0.0.21:9090"), false},
		"the same by loopback":            {tcp("", "127.0.0.1:9090"), false},
		"a resolver":                      {udp("192.168.50.22:53"), false},
		"a resolver by TCP":               {tcp("", "192.168.50.22:53"), false},
		"the resolver of the machine":     {udp("127.0.0.53:53"), false},
		"where its log goes":              {udp("192.168.50.22:514"), true},
		"where its log goes, by IPv6":     {udp("[fd00:50::22]:514"), true},
		"a ping":                          {"ping -c 1 -W 1 192.168.50.22", false},
		"a log server that nobody named":  {udp("192.168.50.99:514"), false},
		"a ping of the machine's own":     {"ping -c 1 -W 1 10.0.0.21", false},
		"itself, by HTTP":                 {tcp("", "192.168.50.21:80"), false},
		"another port of a log's machine": {udp("192.168.50.22:515"), false},
	} {
		before := heard()
		out, err := s.worker(row.how)
		if got := heard() != before; got != row.open || !row.open && err == nil {
			t.Errorf("%s (%s): got open %v, want %v: %v: %s", name, row.how, got, row.open, err, out)
		}
		// Of the user the firewall speaks, not of the machine.
		if !s.reaches(s.machine, row.how) {
			t.Errorf("%s: root is dropped", name)
		}
	}
	allow(Admission{})
	if out, err := s.worker(tcp("", "172.16.171.66:8080")); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("a pod whose route is gone: got %v: %s; want it refused", err, out)
	}
}

// TestASocketThatListenedConnectsNowhere connects with listening sockets that root
// opened, as HAProxy's worker inherits them from the master.
func TestASocketThatListenedConnectsNowhere(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	if err := s.house().Admit(t.Context(),
		Admission{
			TCP: []uint16{3306}, UDP: []uint16{443},
			Services: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.21:5432")},
		}); err != nil {
		t.Fatal(err)
	}
	status := &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 21}, Port: 9090}
	// turned connects a socket of that port which listened.
	turned := func(port uint16) (err error) {
		inside(t, s.machine, func() error {
			fd, failed := listen(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.21"), port), 10)
			if failed != nil {
				return failed
			}
			defer unix.Close(fd) //nolint:errcheck // it is only tried
			// AF_UNSPEC takes the listening away; unix.Connect does not know it.
			unspec := new(unix.RawSockaddrInet4)
			if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(unspec)),
				unsafe.Sizeof(*unspec)); errno != 0 {
				return errno
			}
			err = unix.Connect(fd, status)
			return nil
		})
		return err
	}
	inside(t, s.machine, func() error {
		fd, err := listen(netip.MustParseAddrPort("10.0.0.21:9090"), 10)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return err
	})
	if err := turned(8080); err != nil {
		t.Fatalf("a socket of another port: %v; want it to connect, or this shows nothing", err)
	}
	for _, port := range []uint16{80, 443, 3306, 5432} {
		if err := turned(port); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("port %d: got %v, want it refused", port, err)
		}
	}
	inside(t, s.machine, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // it is only tried
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 443}); err != nil {
			return err
		}
		for port, want := range map[int]bool{53: false, 123: false, 40000: true} {
			if err := unix.Sendto(fd, []byte("x"), 0,
				&unix.SockaddrInet4{Addr: [4]byte{192, 168, 50, 22}, Port: port}); (err == nil) != want {
				t.Errorf("from the port of QUIC to %d: %v, want it sent: %v", port, err, want)
			}
		}
		return nil
	})
}

// TestAFloodOfSYNsLeavesRoomForClients sends more SYNs from invented addresses than a
// machine of 512 MiB keeps as half-open connections.
func TestAFloodOfSYNsLeavesRoomForClients(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	s.run("ip", "-n", s.machine, "route", "add", "198.18.0.0/15", "via", "192.168.50.22")
	limit := backlog(512 << 20)
	s.run("ip", "netns", "exec", s.machine, "sysctl", "-q",
		fmt.Sprintf("net.core.somaxconn=%d", limit), fmt.Sprintf("net.ipv4.tcp_max_syn_backlog=%d", limit),
		"net.ipv4.tcp_syncookies=1")
	at := netip.MustParseAddrPort("192.168.50.21:80")
	inside(t, s.machine, func() error {
		fd, err := listen(at, 65535)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return err
	})
	const flood = 10_000
	inside(t, s.neighbour, func() error {
		fd, err := sender()
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // it is only asked
		for i := range flood {
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 40000) //nolint:gosec // bits
			if err := send(fd, at, tcpPacket(from, at, syn)); err != nil {
				return err
			}
		}
		return nil
	})
	cookies := func(which string) (n int) {
		lines := strings.Split(s.run("ip", "netns", "exec", s.machine, "cat", "/proc/net/netstat"), "\n")
		for i, name := range strings.Fields(lines[0]) {
			if name == which {
				_, _ = fmt.Sscan(strings.Fields(lines[1])[i], &n)
			}
		}
		return n
	}
	if !s.reaches(s.neighbour, tcp("", at.String())) {
		t.Error("a client is dropped")
	}
	half := strings.Count(s.run("ip", "netns", "exec", s.machine, "ss", "-Hnt", "state", "syn-recv"), "\n")
	t.Logf("%d SYNs, %d half open, %d cookies sent, %d came back", flood, half, cookies("SyncookiesSent"),
		cookies("SyncookiesRecv"))
	if half > limit+1 || half < limit/2 {
		t.Errorf("%d are half open, want about %d", half, limit)
	}
	if cookies("SyncookiesSent") == 0 || cookies("SyncookiesRecv") != 1 {
		t.Error("the client was not served by a cookie")
	}
	if small, large := backlog(64<<20), backlog(1<<40); small != 1024 || large != 65535 {
		t.Errorf("the limits are %d and %d", small, large)
	}
}

// TestStrangersFillNoTableOfConnections sends the packets that the firewall accepts from
// anywhere. A full conntrack table would drop answers to the machine itself.
func TestStrangersFillNoTableOfConnections(t *testing.T) {
	s := newStreet(t)
	s.load(firewall(machines(t)["static"]))
	if err := s.house().Admit(t.Context(), Admission{UDP: []uint16{443}}); err != nil {
		t.Fatal(err)
	}
	inside(t, s.machine, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return errors.Join(err, unix.Bind(fd, &unix.SockaddrInet4{Port: 443}))
	})
	tracked := func() (n int) {
		_, _ = fmt.Sscan(s.run("ip", "netns", "exec", s.machine, "cat", "/proc/sys/net/netfilter/nf_conntrack_count"),
			&n)
		return n
	}
	before := tracked()
	for _, how := range []string{
		"ping -c 1 -W 60 192.168.50.21", "ping -c 1 -W 60 fd00:50::21",
		"for i in {1..50}; do echo >/dev/udp/192.168.50.21/443; done", tcp("", "192.168.50.21:80"),
	} {
		if !s.reaches(s.neighbour, how) {
			t.Errorf("%s: dropped", how)
		}
	}
	if got := tracked(); got != before {
		t.Errorf("%d connections are tracked, want %d", got, before)
	}
	// The connections that the machine itself opens are tracked.
	if !s.reaches(s.machine, "ping -c 1 -W 60 192.168.50.22") || tracked() == before {
		t.Error("a ping of the machine's own is not tracked, or its answer is dropped")
	}
}

// plainPacket returns an IPv4 packet of a protocol, with the ports of UDP.
func plainPacket(protocol, ttl byte, from, to netip.Addr, port uint16) []byte {
	p := make([]byte, 28)
	p[0], p[8], p[9] = 0x45, ttl, protocol // the kernel fills in the length and its checksum
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[22:], port)
	binary.BigEndian.PutUint16(p[24:], 8) // UDP's length; without a checksum
	return p
}

// TestOnlyMembersAndRoutersReachTheGroup sends packets of members, routers and others, each
// of which arrives or is counted as dropped.
func TestOnlyMembersAndRoutersReachTheGroup(t *testing.T) {
	const udp, vrrp = unix.IPPROTO_UDP, 112
	const member, router, stranger = "192.168.50.22", "192.168.50.1", "192.168.50.99"
	with := machines(t)["group"]
	without := *with
	without.Group.VRRP.Interface = ""
	for name, row := range map[string]struct {
		without  bool // vrrp
		protocol byte
		from     string
		ttl      byte
		port     uint16
		open     bool
	}{
		"VRRP of a member":                    {false, vrrp, member, 255, 0, true},
		"VRRP of a member behind a router":    {false, vrrp, member, 254, 0, false},
		"VRRP of a stranger":                  {false, vrrp, stranger, 255, 0, false},
		"VRRP of a router":                    {false, vrrp, router, 255, 0, false},
		"VRRP where the file has none":        {true, vrrp, member, 255, 0, false},
		"the heartbeat of a member":           {false, udp, member, 64, 7477, true},
		"the heartbeat of a stranger":         {false, udp, stranger, 64, 7477, false},
		"BFD of a router":                     {false, udp, router, 255, 3784, true},
		"BFD of a router behind another one":  {false, udp, router, 254, 3784, false},
		"BFD of a member":                     {false, udp, member, 255, 3784, false},
		"BFD of a stranger":                   {false, udp, stranger, 255, 3784, false},
		"echo of BFD, which nobody asked for": {false, udp, router, 255, 3785, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t)
			cfg := with
			if row.without {
				cfg = &without
			}
			s.load(firewall(cfg) + "add rule inet sallyport input meta l4proto 112 counter\n")
			var ears int
			inside(t, s.machine, func() (err error) {
				ears, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(row.protocol))
				return err
			})
			t.Cleanup(func() { _ = unix.Close(ears) })
			count := func() string {
				return s.run("ip", "netns", "exec", s.machine, "nft", "list", "chain", "inet", "sallyport", "input")
			}
			before := count()
			to := netip.MustParseAddr("192.168.50.21")
			inside(t, s.neighbour, func() error {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
				if err != nil {
					return err
				}
				defer unix.Close(fd) //nolint:errcheck // only sent
				return send(fd, netip.AddrPortFrom(to, 0),
					plainPacket(row.protocol, row.ttl, netip.MustParseAddr(row.from), to, row.port))
			})
			limit := time.After(patience)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				packet := make([]byte, 100)
				if n, _, err := unix.Recvfrom(ears, packet, 0); err == nil && n == 28 &&
					binary.BigEndian.Uint16(packet[22:]) == row.port {
					if !row.open {
						t.Error("it arrives")
					}
					return
				}
				if count() != before {
					if row.open {
						t.Error("it is dropped")
					}
					return
				}
				select {
				case <-limit:
					t.Fatal("it neither arrives nor is dropped")
				case <-tick.C:
				}
			}
		})
	}
}
