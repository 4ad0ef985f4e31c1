package address

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"sallyport/test/namespace"
)

// TestMain lets no test reach the machine: the threads of the tests begin in an empty
// network namespace.
func TestMain(m *testing.M) { os.Exit(namespace.Main(m, func() error { return nil })) }

// A host is a network namespace of a test.
type host struct {
	t  *testing.T
	ns netns.NsHandle
}

// newHost returns a host whose only interface, lo, is up.
func newHost(t *testing.T) *host {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	defer home.Close()
	ns, err := netns.New()
	must(t, err)
	must(t, netns.Set(home))
	t.Cleanup(func() { _ = ns.Close() })
	h := &host{t, ns}
	h.run("ip link set lo up")
	return h
}

// do calls f on the host. Sockets that f opens stay there.
func (h *host) do(f func()) {
	h.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(h.t, err)
	defer home.Close()
	must(h.t, netns.Set(h.ns))
	defer func() { must(h.t, netns.Set(home)) }()
	f()
}

// run runs a command line of the shell on the host, and returns what it wrote on its standard
// output. What it wrote on standard error is shown if it failed: ip warns there of a peer whose
// namespace goes, and succeeds.
func (h *host) run(line string) string {
	h.t.Helper()
	var out, warnings strings.Builder
	h.do(func() {
		cmd := exec.Command("sh", "-c", line)
		cmd.Stdout, cmd.Stderr = &out, &warnings
		if err := cmd.Run(); err != nil {
			h.t.Fatalf("%s: %v\n%s%s", line, err, out.String(), warnings.String())
		}
	})
	return strings.TrimSpace(out.String())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, addr(s))
	}
	return all
}

// wire connects an interface of the host with one of another.
func (h *host) wire(name string, to *host, there string) {
	h.t.Helper()
	h.do(func() {
		must(h.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer"}))
		peer, err := netlink.LinkByName("peer")
		must(h.t, err)
		must(h.t, netlink.LinkSetNsFd(peer, int(to.ns)))
	})
	to.run("ip link set peer name " + there + " && ip link set " + there + " up")
	h.run("ip link set " + name + " up")
}
