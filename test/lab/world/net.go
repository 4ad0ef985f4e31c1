package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netns"
)

const (
	lanHost   = "lan"  // the namespace that holds the bridge, and the bridge in it
	uplink    = "host" // the bridge's port towards the real machine, when it is asked for
	hostOctet = 1      // the real machine's address on the lan
	netnsDir  = "/run/netns"
)

// ip runs one ip command.
func ip(ctx context.Context, args ...string) error {
	_, err := output(exec.CommandContext(ctx, "ip", args...))
	return err
}

// ipBatch runs lines of ip commands in one process inside a namespace.
func ipBatch(ctx context.Context, ns string, lines ...string) error {
	cmd := exec.CommandContext(ctx, "ip", "-netns", ns, "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	_, err := output(cmd)
	return err
}

// output runs a command and returns its standard output. The error has its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(complaint.String())
		if said == "" {
			said = strings.TrimSpace(out.String())
		}
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return out.String(), nil
}

// makeLan creates the namespace with the bridge.
func makeLan(ctx context.Context, ns string) error {
	if err := ip(ctx, "netns", "add", ns); err != nil {
		return err
	}
	return ipBatch(ctx, ns,
		"link set lo up",
		"link add name "+lanHost+" type bridge forward_delay 0 mcast_snooping 0",
		"link set "+lanHost+" up",
	)
}

// makeHost creates a host's namespace and connects it to the lan.
func makeHost(ctx context.Context, lan string, h Host) error {
	return connect(ctx, lan, h, fmt.Sprintf("link set dev %s master %s up", h.Name, lanHost))
}

// connect creates a host's namespace and a cable from it to another namespace. There the cable's
// end has the host's name, and the lines of ip commands set it up.
func connect(ctx context.Context, to string, h Host, lines ...string) error {
	if err := ip(ctx, "netns", "add", h.Netns); err != nil {
		return err
	}
	// loose, as systemd sets it
	settings := []string{"net.ipv4.conf.all.rp_filter=2", "net.ipv4.conf.default.rp_filter=2"}
	if h.Node {
		settings = append(settings, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	}
	if err := sysctl(ctx, h.Netns, settings...); err != nil {
		return err
	}
	if err := ipBatch(ctx, to,
		append([]string{fmt.Sprintf("link add name %s type veth peer name eth0 netns %s", h.Name, h.Netns)},
			lines...)...); err != nil {
		return err
	}
	lines = []string{
		"link set lo up",
		fmt.Sprintf("address add %s broadcast + dev eth0", h.Addr),
		"link set eth0 up",
	}
	if h.Addr6.IsValid() {
		lines = append(lines, fmt.Sprintf("address add %s dev eth0 nodad", h.Addr6))
	}
	// A node answers its pods' ARP for their gateway only if it has a route to it. Whether anything
	// answers at the lan's first address does not matter.
	if h.Node {
		for _, p := range []netip.Prefix{h.Addr, h.Addr6} {
			if p.IsValid() {
				lines = append(lines, fmt.Sprintf("route add default via %s", p.Masked().Addr().Next()))
			}
		}
	}
	return ipBatch(ctx, h.Netns, lines...)
}

// sysctl sets kernel parameters of one network namespace.
func sysctl(ctx context.Context, ns string, settings ...string) error {
	_, err := output(exec.CommandContext(ctx, "ip",
		append([]string{"netns", "exec", ns, "sysctl", "-qw"}, settings...)...))
	return err
}

// giveHostAccess connects this machine to the lan, unless this machine uses the lan's addresses
// for something else: then it returns what uses them.
func (o Options) giveHostAccess(ctx context.Context, lan string) (reason string, err error) {
	prefixes := []netip.Prefix{o.lan4()}
	if o.IPv6 {
		prefixes = append(prefixes, o.lan6())
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addrs {
			have, err := netip.ParsePrefix(a.String())
			if err == nil && slices.ContainsFunc(prefixes, have.Masked().Overlaps) {
				return fmt.Sprintf("this machine already has %s on %s", have, i.Name), nil
			}
		}
	}
	for _, p := range prefixes {
		family := "-4"
		if p.Addr().Is6() {
			family = "-6"
		}
		for _, relation := range []string{"root", "match"} { // within the prefix; around it
			out, err := output(exec.CommandContext(ctx, "ip", family, "route", "show", relation, p.String()))
			if err != nil {
				return "", err
			}
			for route := range strings.Lines(out) {
				if !strings.HasPrefix(route, "default") {
					return fmt.Sprintf("this machine already has the route %q", strings.TrimSpace(route)), nil
				}
			}
		}
	}
	name := "sp-" + o.Name
	if err := ip(ctx, "link", "add", "name", name, "type", "veth", "peer", "name", uplink, "netns", lan); err != nil {
		return "", err
	}
	if err := ipBatch(ctx, lan, fmt.Sprintf("link set dev %s master %s up", uplink, lanHost)); err != nil {
		return "", err
	}
	me := o.host("", hostOctet)
	if err := ip(ctx, "address", "add", me.Addr.String(), "broadcast", "+", "dev", name); err != nil {
		return "", err
	}
	if err := ip(ctx, "link", "set", name, "up"); err != nil {
		return "", err
	}
	if o.IPv6 {
		return "", ip(ctx, "address", "add", me.Addr6.String(), "dev", name, "nodad")
	}
	return "", nil
}

// Lend gives each appliance of another lab, which must have another site, an interface in this lab: that of this
// lab's own appliance of the same number, with its address. This lab's own appliances have no network from then on.
func (l *Lab) Lend(ctx context.Context, to *Lab) error {
	for _, h := range l.appliances() {
		if err := ip(ctx, "-n", h.Netns, "link", "set", "eth0", "netns", to.Netns(h.Name), "name",
			l.Name()); err != nil {
			return err
		}
		if err := ipBatch(ctx, to.Netns(h.Name),
			fmt.Sprintf("address add %s broadcast + dev %s", h.Addr, l.Name()),
			"link set "+l.Name()+" up",
		); err != nil {
			return err
		}
	}
	return nil
}

// namespaces lists the network namespaces of a lab: those of hosts and those of pods.
func namespaces(lab string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), netnsName(lab, "")) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// dialer returns a dialer that connects from inside a namespace.
func dialer(ns string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var conn net.Conn
		err := within(ns, func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}

// within runs f inside the namespace, on a thread of its own. A socket belongs for life to the
// namespace it was made in, so the caller may use f's sockets.
func within(ns string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer home.Close() //nolint:errcheck // a read-only handle
		err = enter(ns)
		if err == nil {
			err = f()
		}
		// A thread that cannot return to its namespace stays locked, and ends with its goroutine.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// enter moves the calling thread into the namespace.
func enter(ns string) error {
	there, err := netns.GetFromPath(filepath.Join(netnsDir, ns))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", ns, err)
	}
	defer there.Close() //nolint:errcheck // a read-only handle
	if err := netns.Set(there); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns, err)
	}
	return nil
}
