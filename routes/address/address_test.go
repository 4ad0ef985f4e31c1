package address

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// set calls Set on the host, and expects that it succeeds.
func (h *host) set(want ...string) {
	h.t.Helper()
	var have []netip.Addr
	var err error
	h.do(func() { have, err = Set(addrs(want...)) })
	must(h.t, err)
	if !slices.Equal(have, addrs(want...)) {
		h.t.Errorf("Set returned %v, want %v", have, want)
	}
}

// wantOnLo compares the addresses on lo, except its own two.
func (h *host) wantOnLo(want ...string) {
	h.t.Helper()
	var got []string
	for line := range strings.Lines(h.run("ip -o addr show dev lo")) {
		if p := strings.Fields(line)[3]; p != "127.0.0.1/8" && p != "::1/128" {
			got = append(got, p)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.t.Errorf("lo has %v, want %v", got, want)
	}
}

func TestServiceAddressesAreOnLo(t *testing.T) {
	h := newHost(t)
	h.set("203.0.113.10", "2001:db8::10")
	h.wantOnLo("203.0.113.10/32", "2001:db8::10/128")
	h.set("203.0.113.10", "2001:db8::10")
	h.set("203.0.113.11", "2001:db8::10")
	h.wantOnLo("203.0.113.11/32", "2001:db8::10/128")
	h.set()
	h.wantOnLo()
}

// A fresh process has nothing but the kernel: the addresses of an earlier one have to
// carry the mark.
func TestAddressesCarryAMarkByWhichTheyAreGivenBack(t *testing.T) {
	h := newHost(t)
	h.run("ip addr add 198.51.100.1/32 dev lo && ip addr add 2001:db8::1/128 dev lo && ip addr add " +
		"203.0.113.99/24 dev lo")
	h.set("203.0.113.10", "2001:db8::10", "198.51.100.1", "2001:db8::1")
	h.set()
	h.wantOnLo("198.51.100.1/32", "2001:db8::1/128", "203.0.113.99/24")
}

func TestAnAddressThatSomebodyRemovedComesBack(t *testing.T) {
	h := newHost(t)
	h.set("203.0.113.10", "2001:db8::10")
	h.run("ip addr del 203.0.113.10/32 dev lo && ip addr del 2001:db8::10/128 dev lo")
	h.wantOnLo()
	h.set("203.0.113.10", "2001:db8::10")
	h.wantOnLo("203.0.113.10/32", "2001:db8::10/128")
}

// The interface of the route has no address of its own here, so that the kernel chooses
// among those of the other interfaces.
func TestNoConnectionStartsFromAServiceAddress(t *testing.T) {
	h := newHost(t)
	h.run("ip link add near type veth peer name far && ip link set near up && ip link set far up")
	h.run("ip addr add 192.168.50.21/24 dev far && ip addr add 2001:db8:50::21/64 dev far nodad")
	h.run("ip route add default dev near && ip -6 route add default dev near")
	h.set("203.0.113.10", "2001:db8::10")
	for to, from := range map[string]string{"203.0.113.200": "192.168.50.21", "2001:db8::11": "2001:db8:50::21"} {
		if got := h.run("ip route get " + to); !strings.Contains(got, " src "+from+" ") {
			t.Errorf("a connection to %s has the source of %q, want %s", to, got, from)
		}
	}
}

func TestARPIsSettledWithAnIPv4AddressAlone(t *testing.T) {
	arp := "cat /proc/sys/net/ipv4/conf/all/arp_ignore /proc/sys/net/ipv4/conf/all/arp_announce | xargs"
	h := newHost(t)
	h.run("echo 0 >/proc/sys/net/ipv4/conf/all/arp_ignore; echo 0 >/proc/sys/net/ipv4/conf/all/arp_announce")
	h.set("2001:db8::10")
	if got := h.run(arp); got != "0 0" {
		t.Errorf("without an IPv4 address arp_ignore and arp_announce are %s, want 0 0", got)
	}
	h.set("203.0.113.10")
	if got := h.run(arp); got != "1 2" {
		t.Errorf("arp_ignore and arp_announce are %s, want 1 2", got)
	}
	h.run("echo 8 >/proc/sys/net/ipv4/conf/all/arp_ignore")
	h.set("203.0.113.10")
	if got := h.run(arp); got != "8 2" {
		t.Errorf("a stricter arp_ignore became %s, want 8 2", got)
	}
}

// The unit of the service mounts /proc/sys read-only.
func TestASettingThatMayNotBeWrittenIsASentence(t *testing.T) {
	h := newHost(t)
	runtime.LockOSThread() // and never unlock: the thread ends with its mounts
	h.do(func() {
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("0"), 0o644))
		must(t, os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_announce", []byte("2"), 0o644))
		must(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
		must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND|unix.MS_REC, ""))
		must(t, unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		defer func() { must(t, unix.Unmount("/proc/sys", 0)) }()
		have, err := Set(addrs("203.0.113.10"))
		want := "net.ipv4.conf.all.arp_ignore is 0, so that this machine speaks by ARP for addresses that another " +
			"appliance holds: write net.ipv4.conf.all.arp_ignore=1 into a file in /etc/sysctl.d: open " +
			"/proc/sys/net/ipv4/conf/all/arp_ignore: read-only file system"
		if err == nil || err.Error() != want {
			t.Errorf("got error %v\nwant %s", err, want)
		}
		if !slices.Equal(have, addrs("203.0.113.10")) {
			t.Errorf("got %v, want the address all the same", have)
		}
	})
}

func TestAnAddressThatIsImpossibleCostsOnlyItself(t *testing.T) {
	h := newHost(t)
	for _, bad := range []string{
		"127.0.0.2", "224.0.0.1", "0.0.0.0", "fe80::1", "fe80::1%lo", "::", "ff02::1",
		"::ffff:192.0.2.1", "255.255.255.255",
	} {
		h.do(func() {
			have, err := Set(addrs(bad, "203.0.113.10"))
			if err == nil || !strings.Contains(err.Error(), "serving the address "+bad+": it must be") {
				t.Errorf("%s: got error %v", bad, err)
			}
			if !slices.Equal(have, addrs("203.0.113.10")) {
				t.Errorf("%s: got %v, want the other address", bad, have)
			}
		})
	}
	h.wantOnLo("203.0.113.10/32")
}

func TestWithoutIPv6TheErrorSaysWhatToSet(t *testing.T) {
	h := newHost(t)
	h.run("echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	h.do(func() {
		have, err := Set(addrs("203.0.113.10", "2001:db8::10"))
		if err == nil || !strings.Contains(err.Error(), "set net.ipv6.conf.lo.disable_ipv6=0") {
			t.Errorf("got error %v", err)
		}
		if !slices.Equal(have, addrs("203.0.113.10")) {
			t.Errorf("got %v, want what the kernel has", have)
		}
	})
}

// HAProxy binds to the address of a Service as soon as Set has returned.
func TestAnAddressCanBeBoundAtOnce(t *testing.T) {
	for range 50 {
		h := newHost(t)
		h.do(func() {
			_, err := Set(addrs(service6, service4))
			must(t, err)
			for _, a := range []string{service6, service4} {
				l, err := net.Listen("tcp", net.JoinHostPort(a, "80"))
				must(t, err)
				must(t, l.Close())
			}
		})
	}
}
