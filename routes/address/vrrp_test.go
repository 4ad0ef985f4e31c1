package address

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/test/wait"
)

const (
	first  = "192.168.50.100"
	second = "192.168.50.101"
	sixth  = "2001:db8:50::100"
)

// A layer2 is a world whose gates give each other addresses by VRRP. Its router is a
// client in the same network.
type layer2 struct {
	*world
	vrrp []*VRRP
	stop []func()
}

func newLayer2(t *testing.T, gates int) *layer2 {
	t.Helper()
	l := &layer2{world: newWorld(t, gates), vrrp: make([]*VRRP, gates), stop: make([]func(), gates)}
	for i, g := range l.gates {
		g.set(service4, service6, first, second, sixth)
		l.start(i, t.TempDir())
	}
	return l
}

// members returns the addresses of all gates.
func (l *layer2) members() (all []netip.Addr) {
	for _, g := range l.gates {
		all = append(all, addr(g.at4))
	}
	return all
}

func (l *layer2) start(i int, folder string) {
	l.t.Helper()
	g := l.gates[i]
	var err error
	g.do(func() {
		l.vrrp[i], err = NewVRRP(VRRPOptions{
			Folder: folder, Interface: "nodes", ID: 50, Interval: 100 * time.Millisecond,
			Addresses: addrs(first, second, sixth), Self: addr(g.at4), Members: l.members(),
		})
	})
	must(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.do(func() { l.vrrp[i].Run(ctx) })
	}()
	l.stop[i] = sync.OnceFunc(func() { cancel(); <-done })
	l.t.Cleanup(l.stop[i])
}

func (l *layer2) set(priorities ...Priority) {
	l.t.Helper()
	for i, p := range priorities {
		must(l.t, l.vrrp[i].Set(p))
	}
}

// wantHolders waits until the gates hold these addresses, and no others.
func (l *layer2) wantHolders(when string, want ...string) {
	l.t.Helper()
	wait.For(l.t, when, func() (bool, string) {
		got := make([]string, len(l.gates))
		for i, g := range l.gates {
			var held []netip.Addr
			var err error
			g.do(func() { held, err = l.vrrp[i].Held() })
			for _, a := range held {
				got[i] = strings.TrimSpace(got[i] + " " + a.String())
			}
			if err != nil {
				got[i] = err.Error() // keepalived starts again
			}
		}
		return slices.Equal(got, want), fmt.Sprintf("got %q, want %q", got, want)
	})
}

func TestVRRPSpreadsTheAddressesAndMovesThemByPriority(t *testing.T) {
	l := newLayer2(t, 3)
	l.set(Released, Released, Released)
	l.set(Normal, Normal, Normal)
	l.wantHolders("each has its own", first+" "+sixth, second, "")
	l.set(Released)
	l.wantHolders("the first gave up", "", first+" "+second+" "+sixth, "")
	l.set(Normal)
	l.wantHolders("the first came back", first+" "+sixth, second, "")
	l.set(Lower)
	l.wantHolders("the first is spare", "", first+" "+second+" "+sixth, "")
	l.set(Lower, Lower, Lower)
	l.wantHolders("all are spare", first+" "+sixth, second, "")
	l.set(Lower, Released, Lowest)
	l.wantHolders("one is left", first+" "+second+" "+sixth, "", "")
	l.set(Released, Released, Lowest)
	l.wantHolders("one that drains is left", "", "", first+" "+second+" "+sixth)
	l.set(Released, Released, Released)
	l.wantHolders("nobody can serve", "", "", "")
	l.set(Normal, Normal, Normal)
	l.wantHolders("each has its own again", first+" "+sixth, second, "")
	l.stop[1]()
	l.wantHolders("the second stopped", first+" "+sixth, "", second)
}

// serve gives gates, counted from 1, further addresses.
func (l *layer2) serve(addresses []netip.Addr, gates ...int) {
	l.t.Helper()
	for _, i := range gates {
		must(l.t, l.vrrp[i-1].Serve(addresses))
	}
}

// Services come and go, and not every member knows it at the same moment.
func TestFurtherAddressesMoveNoOthers(t *testing.T) {
	const even, odd, next, six = "192.168.50.120", "192.168.50.121", "192.168.50.122", "2001:db8:50::120"
	l := newLayer2(t, 2)
	l.set(Normal, Normal)
	l.wantHolders("each has its own", first+" "+sixth, second)
	stop := l.watch(first, second, sixth)
	l.serve(addrs(even, odd, six), 1)
	l.wantHolders("the first knows more", first+" "+sixth+" "+even, second)
	l.serve(addrs(six, odd, even), 2)
	l.wantHolders("both know more", first+" "+sixth+" "+even, second+" "+odd+" "+six)
	stopMore := l.watch(odd, six)
	l.serve(addrs(next, odd, six), 2, 1)
	l.wantHolders("one went and one came", first+" "+sixth+" "+next, second+" "+odd+" "+six)
	for range 5 { // one right after another
		l.serve(addrs(odd, six), 1, 2)
		l.serve(addrs(odd, six, even), 1, 2)
	}
	l.wantHolders("the last one counts", first+" "+sixth+" "+even, second+" "+odd+" "+six)
	stopMore()
	stop()
	l.set(Lowest)
	l.wantHolders("the first drains", "", first+" "+second+" "+sixth+" "+even+" "+odd+" "+six)
	l.serve(nil, 1, 2)
	l.wantHolders("no Service is left", "", first+" "+second+" "+sixth)
	l.set(Normal)
	l.wantHolders("the first is back", first+" "+sixth, second)
}

// watch watches for changes of addresses until stop is called. There must be none.
func (l *layer2) watch(addresses ...string) (stop func()) {
	l.t.Helper()
	var stops []func()
	for i, g := range l.gates {
		var out bytes.Buffer
		cmd := exec.Command("ip", "-o", "monitor", "address")
		cmd.Stdout = &out
		g.do(func() { must(l.t, cmd.Start()) })
		stops = append(stops, func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			for _, a := range addresses {
				for line := range strings.Lines(out.String()) {
					// A line about an address that stays may come late.
					if strings.HasPrefix(line, "Deleted") && strings.Contains(line, " "+a+"/") {
						l.t.Errorf("gate %d: %s moved:\n%s", i+1, a, out.String())
					}
				}
			}
		})
	}
	once := sync.OnceFunc(func() {
		for _, stop := range stops {
			stop()
		}
	})
	l.t.Cleanup(once)
	return once
}

// By VRRP a move breaks all connections of an address. In a ring it breaks none.
func TestConnectionsSurviveAMoveByVRRPWithARing(t *testing.T) {
	for _, c := range []struct {
		what string
		ring bool
	}{{"with a ring", true}, {"without", false}} {
		t.Run(c.what, func(t *testing.T) {
			l := newLayer2(t, 3)
			l.set(Normal, Normal, Normal)
			l.wantHolders("each has its own", first+" "+sixth, second, "")
			conns := l.dial(first, second, sixth)
			if c.ring {
				for _, g := range l.gates {
					g.do(func() {
						must(t, SetRing(t.Context(),
							Ring{Addresses: addrs(first, second, sixth), Self: addr(g.at4), Members: l.members()}))
					})
				}
			}
			l.set(Lowest)
			l.wantHolders("the first drains", "", first+" "+second+" "+sixth, "")
			var got []error
			wait.For(t, "clients have learned who it is now", func() (bool, string) {
				return l.learned(first, l.gates[1]) && l.learned(sixth, l.gates[1]), l.router.run("ip neigh")
			})
			got = broken(conns)
			if c.ring && len(got) > 0 {
				t.Errorf("%d of %d connections are broken: %v", len(got), len(conns), got[0])
			}
			if !c.ring && len(got) == 0 {
				t.Error("no connection is broken: the ring shows nothing")
			}
			if !c.ring {
				return
			}
			l.set(Normal)
			l.wantHolders("the first is back", first+" "+sixth, second, "")
			if got := broken(conns); len(got) > 0 {
				t.Errorf("%d of %d connections are broken after it came back: %v", len(got), len(conns), got[0])
			}
		})
	}
}

// dial opens ten connections to each address from the neighbour.
func (l *layer2) dial(to ...string) (all []net.Conn) {
	l.t.Helper()
	l.router.do(func() {
		for _, a := range to {
			for range 10 {
				c, err := net.DialTimeout("tcp", net.JoinHostPort(a, "80"), time.Minute)
				must(l.t, err)
				l.t.Cleanup(func() { _ = c.Close() })
				all = append(all, c)
			}
		}
	})
	if got := broken(all); len(got) > 0 {
		l.t.Fatalf("new connections: %v", got)
	}
	return all
}

// learned reports whether the neighbour has the MAC address of a gate for an address.
func (l *layer2) learned(a string, g *gate) bool {
	return strings.Contains(l.router.run("ip neigh show "+a), strings.Fields(g.run("ip -br link show nodes"))[2])
}

func TestACableThatIsOutIsKnown(t *testing.T) {
	h, far := newHost(t), newHost(t)
	h.wire("nodes", far, "far")
	v := &VRRP{o: VRRPOptions{Interface: "nodes"}}
	for state, want := range map[string]bool{"up": false, "down": true} {
		far.run("ip link set far " + state)
		wait.For(t, "the cable at the other end is "+state, func() (bool, string) {
			var got bool
			h.do(func() { got = v.Cut() })
			return got == want, fmt.Sprint(got)
		})
	}
}

func TestAKilledKeepalivedStartsAgain(t *testing.T) {
	l := newLayer2(t, 2)
	l.set(Normal, Normal)
	l.wantHolders("each has its own", first+" "+sixth, second)
	for _, name := range []string{"keepalived.pid", "vrrp.pid"} { // the parent, and the one that works
		before := l.pid(0, name)
		must(t, syscall.Kill(before, syscall.SIGKILL))
		wait.For(t, "keepalived runs again", func() (bool, string) {
			text, err := os.ReadFile(l.vrrp[0].file(name))
			return err == nil && strings.TrimSpace(string(text)) != strconv.Itoa(before) && len(text) > 0, string(text)
		})
		l.wantHolders("each has its own again", first+" "+sixth, second)
	}
}

// The unit of the service gives no right to send ARP unless it is asked to.
func TestAKeepalivedThatMayNotSendARPIsASentence(t *testing.T) {
	folder := t.TempDir()
	h := newHost(t)
	h.wire("nodes", newHost(t), "far")
	h.run("ip addr add 192.168.50.21/24 dev nodes")
	real, err := exec.LookPath("keepalived")
	must(t, err)
	weak := t.TempDir()
	must(t, os.WriteFile(weak+"/keepalived",
		[]byte("#!/bin/sh\nexec setpriv --no-new-privs --bounding-set=-net_raw "+real+" \"$@\"\n"), 0o700))
	t.Setenv("PATH", weak+":"+os.Getenv("PATH"))
	var v *VRRP
	h.do(func() {
		v, err = NewVRRP(VRRPOptions{
			Folder: folder, Interface: "nodes", ID: 1, Addresses: addrs(first),
			Self: addr("192.168.50.21"), Members: addrs("192.168.50.21"),
		})
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.do(func() { v.Run(ctx) })
	}()
	defer func() { cancel(); <-done }()
	wait.For(t, "it is reported", func() (bool, string) {
		var err error
		h.do(func() { _, err = v.Held() })
		return err != nil && strings.Contains(err.Error(), "missing permission") &&
			strings.Contains(err.Error(), "CAP_NET_RAW"), fmt.Sprint(err)
	})
}

func (l *layer2) pid(i int, name string) int {
	l.t.Helper()
	text, err := os.ReadFile(l.vrrp[i].file(name))
	must(l.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(l.t, err)
	return pid
}

// A neighbour who is no member claims the addresses with the highest priority, without
// end. Only with the address of a member it would succeed.
func TestForgedAdvertisementsDoNothing(t *testing.T) {
	l := newLayer2(t, 2)
	l.set(Normal, Normal)
	l.wantHolders("each has its own", first+" "+sixth, second)
	forge := func(from string, ttl int) (stop func()) {
		fd := -1
		l.router.do(func() {
			var err error
			fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
			must(t, err)
		})
		done, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					_ = unix.Close(fd)
					return
				case <-tick.C:
					_ = unix.Sendto(fd, advertisement(from, l.gates[0].at4, ttl), 0,
						&unix.SockaddrInet4{Addr: addr(l.gates[0].at4).As4()})
				}
			}
		}()
		return sync.OnceFunc(func() { close(done); <-ended })
	}
	for from, ttl := range map[string]int{"192.168.50.1": 255, l.gates[1].at4: 254} {
		stop := forge(from, ttl)
		l.set(Released)
		l.wantHolders("the first gave up", "", first+" "+second+" "+sixth)
		l.set(Normal)
		l.wantHolders("the first came back while "+from+" claims its address", first+" "+sixth, second)
		stop()
	}
	stop := forge(l.gates[1].at4, 255)
	defer stop()
	wait.For(t, "the advertisement of a member counts, so that the ones above were right but for their sender",
		func() (bool, string) {
			held := ""
			l.gates[0].do(func() {
				all, err := l.vrrp[0].Held()
				must(t, err)
				held = fmt.Sprint(all)
			})
			return held == "[]", held
		})
}

// advertisement returns an IPv4 packet by which a router claims the first address.
func advertisement(from, to string, ttl int) []byte {
	src, dst, claimed := addr(from).As4(), addr(to).As4(), addr(first).As4()
	vrrp := []byte{0x31, 50, 255, 1, 0, 10, 0, 0}
	vrrp = append(vrrp, claimed[:]...)
	pseudo := slices.Concat(src[:], dst[:], []byte{0, 112, 0, byte(len(vrrp))}, vrrp)
	sum := uint32(0)
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(vrrp[6:], ^uint16(sum))
	ip := []byte{0x45, 0, 0, byte(20 + len(vrrp)), 0, 1, 0, 0, byte(ttl), 112, 0, 0}
	return slices.Concat(ip, src[:], dst[:], vrrp)
}

func TestAddressesAreSpreadOverTheMembers(t *testing.T) {
	four := addrs("192.168.50.21", "192.168.50.22", "192.168.50.23")
	six := addrs("fd00::21", "fd00::22")
	for _, c := range []struct {
		what      string
		addresses []netip.Addr
		members   []netip.Addr
		self      int
		want      string
	}{
		{"one address, first member", addrs(first), four, 0, "50 of 254: [192.168.50.100] []"},
		{"one address, third member", addrs(first), four, 2, "50 of 252: [192.168.50.100] []"},
		{
			"two addresses, second member", addrs(first, second), four, 1,
			"50 of 253: [192.168.50.100] [], 51 of 254: [192.168.50.101] []",
		},
		{
			"two addresses, third member", addrs(first, second), four, 2,
			"50 of 252: [192.168.50.100] [], 51 of 253: [192.168.50.101] []",
		},
		{
			"more addresses than members", addrs(first, second, "192.168.50.102"), four[:2], 0,
			"50 of 254: [192.168.50.100 192.168.50.102] [], 51 of 253: [192.168.50.101] []",
		},
		{"both families", addrs(sixth, first), four, 0, "50 of 254: [192.168.50.100] [2001:db8:50::100]"},
		{"members of IPv6", addrs(sixth, first), six, 1, "50 of 253: [2001:db8:50::100] [192.168.50.100]"},
		{"a group of one", addrs(first), four[:1], 0, "50 of 254: [192.168.50.100] []"},
	} {
		o := VRRPOptions{
			Interface: "nodes", ID: 50, Interval: time.Second, Addresses: c.addresses,
			Self: c.members[c.self], Members: c.members,
		}
		shares, err := o.spread()
		must(t, err)
		var got []string
		for _, s := range shares {
			got = append(got, fmt.Sprintf("%d of %d: %v %v", s.id, s.priority, s.main, s.other))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: got %s, want %s", c.what, text, c.want)
		}
	}
}

func TestAGroupOfOneHoldsItsAddressesByVRRP(t *testing.T) {
	l := newLayer2(t, 1)
	l.set(Normal)
	l.wantHolders("it has all", first+" "+second+" "+sixth)
}

// The addresses of a share that is left out are nowhere in keepalived's files.
func TestAnAddressThatMustNotBeTakenStaysOutWithThoseThatMoveWithIt(t *testing.T) {
	h := newHost(t)
	h.wire("nodes", newHost(t), "far")
	h.run("ip addr add 192.168.50.21/24 dev nodes")
	o := VRRPOptions{
		Folder: t.TempDir(), Interface: "nodes", ID: 50, Self: addr("192.168.50.21"),
		Members:   addrs("192.168.50.21", "192.168.50.22"),
		Addresses: addrs("203.0.113.1", "203.0.113.2", "203.0.113.3", "2001:db8::1"),
	}
	all := []string{"203.0.113.1/32", "203.0.113.2/32", "203.0.113.3/32", "2001:db8::1/128"}
	for _, c := range []struct {
		not  []netip.Addr
		want []string
	}{
		{nil, all},
		{addrs("203.0.113.2"), []string{all[0], all[2], all[3]}},
		{addrs("203.0.113.3"), []string{all[1]}},
		{addrs("2001:db8::1"), []string{all[1]}},
	} {
		o.Not = c.not
		var v *VRRP
		h.do(func() {
			var err error
			v, err = NewVRRP(o)
			must(t, err)
		})
		var got []string
		for _, a := range all {
			if strings.Contains(v.text(), a) {
				got = append(got, a)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("without %v: got %q, want %q", c.not, got, c.want)
		}
	}
	o.Not = o.Addresses
	if _, err := NewVRRP(o); err == nil || !strings.Contains(err.Error(), "VRRP has no address to move") {
		t.Errorf("without any: got error %v", err)
	}
}

func TestBadVRRPOptionsAreSentences(t *testing.T) {
	good := VRRPOptions{
		Folder: t.TempDir(), Interface: "lo", ID: 50, Addresses: addrs(first, second),
		Self: addr("192.168.50.21"), Members: addrs("192.168.50.21", "192.168.50.22"),
	}
	for _, c := range []struct {
		what   string
		change func(*VRRPOptions)
		want   string
	}{
		{"an interface with a quote", func(o *VRRPOptions) {
			o.Interface = `no"des`
		}, "it needs a name without spaces and special characters"},
		{
			"an interface with a line", func(o *VRRPOptions) { o.Interface = "nodes\n}" },
			"it needs a name without spaces and special characters",
		},
		{"no interface", func(o *VRRPOptions) { o.Interface = "" }, "it needs a name"},
		{"ID 0", func(o *VRRPOptions) { o.ID = 0 }, "the IDs from 0 to 1"},
		{"an ID too many", func(o *VRRPOptions) { o.ID = 255 }, "the IDs from 255 to 256"},
		{"an interval of a minute", func(o *VRRPOptions) { o.Interval = time.Minute }, "it must be 10ms to 40s"},
		{"not a member", func(o *VRRPOptions) { o.Self = addr("192.168.50.99") }, "it needs this one, 192.168.50.99"},
		{"nothing of the members' family", func(o *VRRPOptions) {
			o.Addresses = addrs(sixth)
		}, "has no address of the same family to move"},
		{"an interface that is not there", func(o *VRRPOptions) {
			o.Interface = "missing"
		}, "keepalived rejects its configuration"},
	} {
		o := good
		c.change(&o)
		if _, err := NewVRRP(o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %s", c.what, err, c.want)
		}
	}
}

func TestWithoutKeepalivedTheErrorNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := NewVRRP(VRRPOptions{})
	if err == nil || !strings.Contains(err.Error(), "install Debian's package keepalived") {
		t.Errorf("got error %v", err)
	}
}

// The files are in a folder of their own, and readable by root alone.
func TestTheFilesOfKeepalivedAreReadableByRootAlone(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "vrrp")
	h := newHost(t)
	h.wire("nodes", newHost(t), "far")
	h.run("ip addr add 192.168.50.21/24 dev nodes")
	h.do(func() {
		_, err := NewVRRP(VRRPOptions{
			Folder: folder, Interface: "nodes", ID: 1, Addresses: addrs(first),
			Self: addr("192.168.50.21"), Members: addrs("192.168.50.21"),
		})
		must(t, err)
	})
	must(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return nil
	}))
}

// NewVRRP relies on keepalived to reject what it cannot do.
func TestKeepalivedRejectsABadConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keepalived.conf")
	must(t, os.WriteFile(file, []byte("vrrp_instance x {\n\tinterface lo\n\tvirtual_router_id 0\n}\n"), 0o600))
	if out, err := exec.Command("keepalived", "--use-file", file, "--vrrp",
		"--config-test").CombinedOutput(); err == nil {
		t.Errorf("keepalived accepts it: %s", out)
	}
}

// unitFile is the unit that runs keepalived. Its command has the usual folder.
const unitFile = "../../image/units/usr/lib/systemd/system/sallyport-vrrp.service"

// fakeSystemd puts a systemctl in front of the PATH that starts and stops the command of the
// unit.
func fakeSystemd(t *testing.T, folder string) {
	t.Helper()
	unit, err := os.ReadFile(unitFile)
	must(t, err)
	var commands []string
	for line := range strings.Lines(string(unit)) {
		for _, key := range []string{"ExecStartPre=", "ExecStart="} {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), key); ok {
				commands = append(commands, strings.ReplaceAll(command, "/run/sallyport/vrrp", folder))
			}
		}
	}
	if len(commands) != 2 {
		t.Fatalf("the unit has the commands %q, want two", commands)
	}
	bin := t.TempDir()
	must(t, os.WriteFile(bin+"/systemctl", fmt.Appendf(nil, `#!/bin/sh
for unit; do :; done
[ "$unit" = sallyport-vrrp.service ] || exit 5
stop() {
	[ ! -e %[1]s/main ] || { kill "$(cat %[1]s/main)"; while kill -0 "$(cat %[1]s/main)" 2>&-; do sleep 0.01; done; rm %[1]s/main; }
}
case $1 in
restart) stop; %[2]s; setsid %[3]s >%[1]s/log 2>&1 & echo $! >%[1]s/main ;;
stop) stop ;;
esac
`, bin, commands[0], commands[1]), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func TestAUnitRunsKeepalived(t *testing.T) {
	folder := t.TempDir()
	fakeSystemd(t, folder)
	h := newHost(t)
	h.wire("nodes", newHost(t), "far")
	h.run("ip addr add 192.168.50.21/24 dev nodes")
	o := VRRPOptions{
		Folder: folder, Interface: "nodes", ID: 1, Interval: 100 * time.Millisecond, Unit: "sallyport-vrrp.service",
		Addresses: addrs(first), Self: addr("192.168.50.21"), Members: addrs("192.168.50.21"),
	}
	run := func() (v *VRRP, stop func()) {
		var err error
		h.do(func() { v, err = NewVRRP(o) })
		must(t, err)
		must(t, v.Set(Normal))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.do(func() { v.Run(ctx) })
		}()
		stop = sync.OnceFunc(func() { cancel(); <-done })
		t.Cleanup(stop)
		return v, stop
	}
	holds := func(v *VRRP, want []netip.Addr, problem string) {
		t.Helper()
		wait.For(t, fmt.Sprintf("it holds %v, with the problem %q", want, problem), func() (bool, string) {
			var held []netip.Addr
			var err error
			h.do(func() { held, err = v.Held() })
			said := ""
			if err != nil {
				said = err.Error()
			}
			return slices.Equal(held, want) && strings.Contains(said, problem) && (said == "") == (problem == ""),
				fmt.Sprint(held, " ", said)
		})
	}
	// main returns the process of keepalived; 0: there is none now.
	main := func() int {
		pid, err := os.ReadFile(folder + "/keepalived.pid")
		if err != nil {
			return 0
		}
		n, _ := strconv.Atoi(strings.TrimSpace(string(pid)))
		return n
	}
	v, stop := run()
	holds(v, addrs(first), "")
	must(t, v.Serve(addrs("192.168.50.120")))
	holds(v, addrs(first, "192.168.50.120"), "")
	must(t, v.Serve(nil))
	holds(v, addrs(first), "")
	must(t, syscall.Kill(main(), syscall.SIGTERM)) // and this systemd does not start it again
	holds(v, nil, "keepalived ended: systemctl status sallyport-vrrp.service")
	stop()

	v, stop = run()
	holds(v, addrs(first), "")
	before := main()
	stop()
	v, stop = run()
	holds(v, addrs(first), "")
	if after := main(); after != before {
		t.Errorf("a fresh process has another keepalived, %d and not %d", after, before)
	}
	// The stop of the process before comes after the adoption.
	must(t, syscall.Kill(before, syscall.SIGTERM))
	holds(v, nil, "keepalived ended")
	holds(v, addrs(first), "")
	stop()

	before = main()
	o.Interval *= 2
	v, stop = run()
	wait.For(t, "keepalived has the new configuration", func() (bool, string) {
		now := main()
		return now != 0 && now != before, fmt.Sprint("its process is ", now)
	})
	holds(v, addrs(first), "")
	must(t, v.Set(Released))
	stop()
	if held := h.run("ip addr show dev nodes"); strings.Contains(held, first) {
		t.Errorf("after the end the interface has %s", held)
	}

	o.Unit = "missing.service"
	v, _ = run()
	holds(v, nil, "systemctl restart missing.service: exit status 5")
}
