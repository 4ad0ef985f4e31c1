package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sallyport/test/lab/debian"
)

// RouterKind says how a router finds the appliance that has a service address.
type RouterKind string

// RouterBIRD learns service addresses by BGP, with BFD, and spreads connections over the
// appliances that announce one. RouterPlain speaks no routing protocol: a service address is one of
// the lan's, and the router asks for it by ARP.
const (
	RouterBIRD  RouterKind = "bird"
	RouterPlain RouterKind = "plain"
)

// RouterAS is the AS number of the router that speaks BGP.
const RouterAS = 64512

// appliances returns the hosts for appliances.
func (l *Lab) appliances() (all []Host) {
	for n := range l.opts.Appliances {
		h, _ := l.Host(ApplianceHost(n + 1))
		all = append(all, h)
	}
	return all
}

// startRouter makes the router's host forward between the client's network and the lan, and starts
// its BIRD, if it has one. The appliances reach the client through it.
func (l *Lab) startRouter(ctx context.Context) error {
	h, _ := l.Host(Router)
	client, _ := l.Host(Client)
	inside := l.opts.outside(Router, 1)
	lines := []string{"link set dev client up", fmt.Sprintf("address add %s broadcast + dev client", inside.Addr)}
	if inside.Addr6.IsValid() {
		lines = append(lines, fmt.Sprintf("address add %s dev client nodad", inside.Addr6))
	}
	// A hash of addresses and ports chooses among equal routes, as in routers' hardware.
	if err := sysctl(ctx, h.Netns, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.ipv4.fib_multipath_hash_policy=1", "net.ipv6.fib_multipath_hash_policy=1"); err != nil {
		return err
	}
	if err := connect(ctx, h.Netns, client, lines...); err != nil {
		return err
	}
	for _, to := range append(l.appliances(), client) {
		via := h
		if to.Name == Client {
			via = inside
		}
		for _, a := range via.addrs() {
			if err := ipBatch(ctx, to.Netns, "route add default via "+a.String()); err != nil {
				return err
			}
		}
	}
	if l.opts.Router != RouterBIRD {
		return nil
	}
	programs, err := debian.BIRD(ctx, 2, l.progress)
	if err != nil {
		return err
	}
	d := &daemon{
		name: "bird-" + Router, ns: h.Netns, program: filepath.Join(programs, "bird"),
		client: filepath.Join(programs, "birdc"),
		dir:    l.path("nodes", Router, "4"),
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	l.router = &node{Host: h, birds: []*daemon{d}}
	return d.applyText(l, l.routerConfig(h, "", 0))
}

// RestartRouter kills the router's BIRD, and starts it again after a time.
func (l *Lab) RestartRouter(ctx context.Context, down time.Duration) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.router == nil {
		return errNoBIRD
	}
	if err := l.router.holdBird(); err != nil {
		return err
	}
	select {
	case <-time.After(down):
	case <-ctx.Done(): // up again all the same
	}
	return errors.Join(ctx.Err(), l.router.freeBird(l))
}

// FloodFromRouter makes the router announce so many prefixes to an appliance, and none to any other;
// zero: none at all, as it should be.
func (l *Lab) FloodFromRouter(appliance string, prefixes int) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.router == nil {
		return errNoBIRD
	}
	return l.router.birds[0].applyText(l, l.routerConfig(l.router.Host, appliance, prefixes))
}

var errNoBIRD = errors.New("the lab has no router that speaks BGP")

// routerConfig returns the router's configuration: sessions of each family with each appliance,
// which connects, in whatever AS it is. BIRD refuses a peer for a minute after its BFD went down,
// unless "error wait time" is shorter. It announces
// prefixes to the flooded appliance alone.
func (l *Lab) routerConfig(h Host, flooded string, prefixes int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `log stderr all;
router id %s;
protocol device { scan time 1; }
protocol bfd { interface "eth0" { interval 250 ms; multiplier 3; }; }
protocol kernel kernel4 { scan time 2; merge paths on; ipv4 { import none; export where source = RTS_BGP; }; }
protocol kernel kernel6 { scan time 2; merge paths on; ipv6 { import none; export where source = RTS_BGP; }; }
`, h.Addr.Addr())
	if prefixes > 0 {
		b.WriteString("protocol static flood { ipv4;\n")
		for n := range prefixes {
			fmt.Fprintf(&b, "route 10.%d.%d.%d/32 blackhole;\n", n>>16, n>>8&255, n&255)
		}
		b.WriteString("}\n")
	}
	for _, appliance := range l.appliances() {
		export := "none"
		if prefixes > 0 && appliance.Name == flooded {
			export = "where source = RTS_STATIC"
		}
		for i, a := range appliance.addrs() {
			local, channel := h.addrs()[i], map[bool]string{true: "ipv4", false: "ipv6"}[a.Is4()]
			fmt.Fprintf(&b, `protocol bgp %s_%s {
  local %s as %d;
  neighbor %s external;
  passive on;
  bfd on;
  error wait time 1, 1;
  %s { import where net.len = %d; export %s; };
}
`, strings.ReplaceAll(appliance.Name, "-", "_"), channel, local, RouterAS, a, channel, a.BitLen(), export)
		}
	}
	return []byte(b.String())
}
