package address

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A Guard names the machines that may send to the ports of a group. All machines in the network of
// the members reach these ports if no firewall stands in between.
type Guard struct {
	Members []netip.Addr // all, with this appliance: they alone reach HAProxy's peers
	Port    uint16       // TCP port of HAProxy's peers; 0 if they are not used
	BFD     uint16       // UDP port of BFD; 0 if BFD is not used
	Routers []netip.Addr // they alone reach BFD, from the link
}

const (
	// guardTable is the name of our table of rules in the family inet. Nobody else uses it. Its
	// rules stay while the process is gone, since they protect HAProxy and BFD, which also stay.
	guardTable = "sallyport_guard"
	// slowestBFD and mostMissed bound the time after which a router counts as lost, as a packet of BFD
	// asks for it. The packet needs no password: without a bound one that carries the address of a
	// router keeps BFD from noticing a loss for 12 days. group.upstream.bfd has the same bounds.
	slowestBFD = 10 * time.Second
	mostMissed = 50
)

// SetGuard makes the kernel follow a Guard, in one step. Calling it again does no harm. It needs
// nft(8).
func SetGuard(ctx context.Context, g Guard) error {
	if err := nft(ctx, g.text()); err != nil {
		return fmt.Errorf("the ports of the group are open to the whole network: %w", err)
	}
	return nil
}

// ClearGuard removes the rules of SetGuard. No rules, or no nft(8), is success.
func ClearGuard(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil //nolint:nilerr // without it there were never any rules
	}
	return nft(ctx, Guard{}.none())
}

func (g Guard) none() string {
	return fmt.Sprintf("add table inet %[1]s\ndelete table inet %[1]s\n", guardTable)
}

// text returns the commands that replace the table.
func (g Guard) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	b.WriteString(g.none())
	line("table inet %s {", guardTable)
	line("\tchain arrive {")
	line("\t\ttype filter hook input priority filter - 10; policy accept;")
	line("\t\tiif lo return")
	if g.Port != 0 {
		// A packet without SYN belongs to a connection that a member has opened.
		line("\t\ttcp dport %d tcp flags & (syn | ack) == syn goto peers", g.Port)
	}
	if g.BFD != 0 {
		line("\t\tudp dport %d goto bfd", g.BFD)
	}
	line("\t}")
	from := func(addresses []netip.Addr, then func(match string)) {
		for _, a := range slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare) {
			if a.Is4() {
				then(fmt.Sprintf("ip saddr %s", a))
			} else {
				then(fmt.Sprintf("ip6 saddr %s", a))
			}
		}
	}
	if g.Port != 0 {
		line("\tchain peers {")
		from(g.Members, func(match string) { line("\t\t%s return", match) })
		// A member that this appliance does not list asks at this port whether the machine is alive,
		// and passes packets on as long as it answers.
		line("\t\tcounter reject with tcp reset")
		line("\t}")
	}
	if g.BFD != 0 {
		// RFC 5880, 4.1: after the 8 bytes of UDP, the third byte is Detect Mult, and the bytes 13 to 16
		// are Desired Min TX Interval, in microseconds.
		line("\tchain bfd {")
		from(g.Routers, func(match string) {
			// RFC 5881, 5: a TTL of 255 proves that the sender is on the link.
			onLink := "ip ttl 255"
			if strings.HasPrefix(match, "ip6") {
				onLink = "ip6 hoplimit 255"
			}
			line("\t\t%s %s @th,80,8 <= %d @th,160,32 <= %d return",
				match, onLink, mostMissed, slowestBFD.Microseconds())
		})
		line("\t\tcounter drop")
		line("\t}")
	}
	line("}")
	return b.String()
}
