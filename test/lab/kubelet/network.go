package kubelet

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const netnsDir = "/run/netns"

// The addresses that Calico uses between a node and its pods: one link-layer
// address for every host side, and gateways that exist on no interface. gateway6
// is the link-local address that the kernel makes of hostMAC.
var (
	hostMAC  = net.HardwareAddr{0xee, 0xee, 0xee, 0xee, 0xee, 0xee}
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::ecee:eeff:feee:eeee")
)

// A wire is a pod's network: its namespace, and the veth pair that joins it to the
// namespace of the node.
type wire struct {
	Netns string `json:"netns"` // name under /run/netns
	Link  string `json:"link"`  // host side, in the node's namespace
}

// wireOf returns the names of a pod's network. They depend only on prefix and the
// pod's UID, so that the network can be found again after a crash.
func wireOf(prefix, uid string) wire {
	sum := sha256.Sum256([]byte(uid))
	h := hex.EncodeToString(sum[:])
	return wire{Netns: prefix + "-" + h[:10], Link: "cali" + h[:11]}
}

// within runs do on a thread that is in the named network namespace. Sockets,
// processes and /proc/sys/net belong to the namespace of the thread that opens
// them.
func within(name string, do func() error) error {
	target, err := netns.GetFromPath(filepath.Join(netnsDir, name))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", name, err)
	}
	defer target.Close()
	return onThread(func() error {
		if err := netns.Set(target); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return do()
	})
}

// onThread runs do on a thread of its own and puts the thread back into the
// namespace it came from. A thread that cannot go back stays locked, and ends
// with its goroutine.
func onThread(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		err = do()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// lay builds the network of a pod with its addresses. It may be called again after a failure.
func (w wire) lay(node string, addrs []netip.Addr) error {
	w.tear(node)
	if err := makeNetns(w.Netns); err != nil {
		return err
	}
	pod, err := openLinks(w.Netns)
	if err != nil {
		return err
	}
	defer pod.close()
	host, err := openLinks(node)
	if err != nil {
		return err
	}
	defer host.close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = w.Link, hostMAC
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod.ns)}
	if err := host.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s: %w", w.Link, err)
	}
	err = within(node, func() error {
		return errors.Join(
			sysctl("ipv4/conf/"+w.Link+"/proxy_arp", "1"),
			sysctl("ipv4/neigh/"+w.Link+"/proxy_delay", "0"),
			sysctl("ipv4/conf/"+w.Link+"/forwarding", "1"),
			sysctl("ipv6/conf/"+w.Link+"/accept_dad", "0"),
			sysctl("ipv6/conf/"+w.Link+"/proxy_ndp", "1"),
			sysctl("ipv6/conf/"+w.Link+"/forwarding", "1"),
		)
	})
	if err != nil {
		return err
	}
	return errors.Join(w.layPod(pod, addrs), w.layHost(host, addrs))
}

// makeNetns makes the network namespace of a pod.
func makeNetns(name string) error {
	return onThread(func() error {
		ns, err := netns.NewNamed(name)
		if err != nil {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		defer ns.Close()
		// Skip duplicate address detection: nobody else can have these addresses.
		return sysctl("ipv6/conf/default/accept_dad", "0")
	})
}

func (w wire) layPod(pod links, addrs []netip.Addr) error {
	lo, err := pod.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo of %s: %w", w.Netns, err)
	}
	eth0, err := pod.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 of %s: %w", w.Netns, err)
	}
	if err := errors.Join(pod.LinkSetUp(lo), pod.LinkSetUp(eth0)); err != nil {
		return fmt.Errorf("set links of %s up: %w", w.Netns, err)
	}
	at := eth0.Attrs().Index
	for _, addr := range addrs {
		gateway := gateway4
		if addr.Is6() {
			gateway = gateway6
		}
		err := errors.Join(
			pod.AddrAdd(eth0, &netlink.Addr{IPNet: single(addr), Flags: unix.IFA_F_NODAD}),
			pod.RouteReplace(&netlink.Route{LinkIndex: at, Dst: single(gateway), Scope: netlink.SCOPE_LINK}),
			pod.RouteReplace(&netlink.Route{LinkIndex: at, Dst: everywhere(addr), Gw: gateway.AsSlice()}),
		)
		if err != nil {
			return fmt.Errorf("give %s to %s: %w", addr, w.Netns, err)
		}
	}
	return nil
}

func (w wire) layHost(host links, addrs []netip.Addr) error {
	link, err := host.LinkByName(w.Link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", w.Link, err)
	}
	if err := host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", w.Link, err)
	}
	for _, addr := range addrs {
		err := host.RouteReplace(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: single(addr), Scope: netlink.SCOPE_LINK, Protocol: unix.RTPROT_BOOT,
		})
		if err != nil {
			return fmt.Errorf("route %s to %s: %w", addr, w.Link, err)
		}
	}
	return nil
}

// tear removes the network of a pod, also an incomplete one. It deletes the link by name, because
// the end of a namespace is asynchronous.
func (w wire) tear(node string) {
	if host, err := openLinks(node); err == nil {
		if link, err := host.LinkByName(w.Link); err == nil {
			_ = host.LinkDel(link)
		}
		host.close()
	}
	_ = deleteNetns(w.Netns)
}

func deleteNetns(name string) error {
	path := filepath.Join(netnsDir, name)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// inhabitants lists the processes in a network namespace.
func inhabitants(name string) []int {
	var want syscall.Stat_t
	if err := syscall.Stat(filepath.Join(netnsDir, name), &want); err != nil {
		return nil
	}
	var pids []int
	for _, pid := range allPIDs() {
		var got syscall.Stat_t
		if syscall.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &got) == nil && got.Ino == want.Ino &&
			got.Dev == want.Dev {
			pids = append(pids, pid)
		}
	}
	return pids
}

// links is a netlink handle inside a named namespace.
type links struct {
	*netlink.Handle
	ns netns.NsHandle
}

func openLinks(name string) (links, error) {
	ns, err := netns.GetFromPath(filepath.Join(netnsDir, name))
	if err != nil {
		return links{}, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		_ = ns.Close()
		return links{}, fmt.Errorf("open netlink in %s: %w", name, err)
	}
	return links{handle, ns}, nil
}

func (l links) close() {
	l.Close()
	_ = l.ns.Close()
}

// sysctl writes below /proc/sys/net of the calling thread's namespace. A missing key means that
// the kernel lacks the family, and is no error.
func sysctl(key, value string) error {
	err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644)
	if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(key, "ipv6/") {
		return nil
	}
	return wrap("set sysctl", err)
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func everywhere(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, a.BitLen()/8), Mask: net.CIDRMask(0, a.BitLen())}
}
