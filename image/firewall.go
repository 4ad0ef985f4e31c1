package image

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sallyport/appliance/config"
)

// firewall is the ruleset (nft(8)) of a machine with this file, or with none.
//
// TCP is not tracked: an ingress has more connections than a table of them, and
// loses the new ones when it is full. A packet that does not open a connection
// goes on to the kernel, which knows its connections and resets what belongs to
// none. Everything else that comes in has to be an answer.
//
// The nodes that may speak BGP are in the sets bgp4 and bgp6, the ports of TCP
// services and of QUIC in services_tcp and services_udp. The process fills them as it learns what is
// in the clusters (Admit). Until then a SYN is dropped and not refused, so the node
// sends it again a second later. A cluster opens no port that is the machine's own.
func firewall(cfg *config.Config) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	// TCP by its number: names are in /etc/protocols, which the image does not have.
	// nft does all of it in one transaction. A flush takes the rules, and leaves what is in sets.
	line("add table inet sallyport")
	line("flush table inet sallyport")
	line("table inet sallyport {")
	line("\tset bgp4 { type ipv4_addr; }")
	line("\tset bgp6 { type ipv6_addr; }")
	line("\tset services_tcp { type inet_service; }")
	line("\tset services_udp { type inet_service; }")
	line("\tchain untracked_in { type filter hook prerouting priority raw; meta l4proto 6 notrack; }")
	line("\tchain untracked_out { type filter hook output priority raw; meta l4proto 6 notrack; }")
	line("\tchain forward { type filter hook forward priority filter; policy drop; }")
	line("\tchain input {")
	line("\t\ttype filter hook input priority filter; policy drop;")
	line("\t\tiif lo accept")
	line("\t\ttcp flags & (fin | syn | rst | ack) != syn accept")
	line("\t\tct state established,related accept")
	line("\t\ticmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem } accept")
	line("\t\ticmpv6 type { echo-request, destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept")
	// RFC 4890 section 4.4.1: neighbours and routers are on the link, which a hop limit of 255 shows.
	line("\t\tip6 hoplimit 255 icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept")
	line("\t\tip6 saddr fe80::/10 icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } accept")
	// An answer to a broadcast is not known as an answer.
	line("\t\tudp sport 67 udp dport 68 accept")
	line("\t\tip6 saddr fe80::/10 udp sport 547 udp dport 546 accept")
	if cfg == nil {
		line("\t\ttcp dport %d accept", StatusPort)
	} else {
		for _, at := range append(append([]netip.AddrPort{}, cfg.HAProxy.HTTP...), cfg.HAProxy.HTTPS...) {
			open(line, at)
		}
		openOne(line, cfg.Status.Listen)
		for _, addr := range cfg.BGP.Listen {
			family, set := "ip", "@bgp4"
			if addr.Is6() {
				family, set = "ip6", "@bgp6"
			}
			line("\t\t%s%s saddr %s tcp dport %d accept", to(addr), family, set, cfg.BGP.Port)
		}
		if len(cfg.System.MaintenanceKey) > 0 {
			// On the management address, if there is one.
			at := cfg.Status.Listen.Addr()
			if at.IsLoopback() {
				at = netip.IPv6Unspecified()
			}
			openOne(line, netip.AddrPortFrom(at, 22))
		}
		line("\t\ttcp dport != { 22, %d, %d } tcp dport @services_tcp accept", cfg.BGP.Port, cfg.Status.Listen.Port())
		line("\t\tudp dport @services_udp accept")
	}
	line("\t}")
	line("}")
	return b.String()
}

// open lets connections to an address in.
func open(line func(string, ...any), at netip.AddrPort) {
	if at.Addr().IsLoopback() {
		return // nobody outside reaches it
	}
	line("\t\t%stcp dport %d accept", to(at.Addr()), at.Port())
}

// openOne does so for a single socket: one on [::] is both families'.
func openOne(line func(string, ...any), at netip.AddrPort) {
	if at.Addr() == netip.IPv6Unspecified() {
		line("\t\ttcp dport %d accept", at.Port())
		return
	}
	open(line, at)
}

// to matches packets to an address, or of its family if it is a wildcard.
func to(addr netip.Addr) string {
	switch {
	case addr == netip.IPv4Unspecified():
		return "meta nfproto ipv4 "
	case addr == netip.IPv6Unspecified():
		return "meta nfproto ipv6 "
	case addr.Is4():
		return fmt.Sprintf("ip daddr %s ", addr)
	default:
		return fmt.Sprintf("ip6 daddr %s ", addr)
	}
}

// Admit lets these addresses speak BGP to this machine and everyone reach these
// ports, and nobody else and no others beside those of the file.
func (m Machine) Admit(ctx context.Context, peers []netip.Addr, tcp, udp []uint16) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := m.start(ctx, admission(peers, tcp, udp), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("tell the firewall what to let in: %w", err)
	}
	return nil
}

// admission fills the sets of the firewall, in one transaction.
func admission(peers []netip.Addr, tcp, udp []uint16) string {
	var b strings.Builder
	for _, set := range []string{"bgp4", "bgp6", "services_tcp", "services_udp"} {
		fmt.Fprintf(&b, "flush set inet sallyport %s\n", set)
	}
	add := func(set string, element any) { fmt.Fprintf(&b, "add element inet sallyport %s { %v }\n", set, element) }
	for _, addr := range peers {
		if addr.Is4() {
			add("bgp4", addr)
		} else {
			add("bgp6", addr)
		}
	}
	for _, port := range tcp {
		add("services_tcp", port)
	}
	for _, port := range udp {
		add("services_udp", port)
	}
	return b.String()
}
