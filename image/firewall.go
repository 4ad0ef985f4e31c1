package image

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
)

// firewall returns the ruleset (nft(8)) of a machine with this file, or with none.
//
// TCP is not tracked: an ingress has more connections than a table of them, and
// loses the new ones when it is full. The same holds for QUIC and for pings, which
// anybody may send from invented addresses. A TCP packet with ACK or RST goes on to
// the kernel, which knows its connections and resets what belongs to none, at a port
// that listens as at one that does not. A packet without them opens a connection or
// is none of ours: only a port that is open for everyone gets it. Everything else
// that comes in has to be an answer.
//
// The nodes that may speak BGP are in the sets bgp4 and bgp6, the ports of TCP
// services and of QUIC in services_tcp and services_udp, and the addresses that
// HAProxy may connect to in the other sets. The process fills them as it learns what is
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
	for _, set := range sets {
		line("\tset %s { %s; }", set.name, set.kind)
	}
	for _, chain := range []struct{ name, hook, to, from string }{{"untracked_in", "prerouting", "dport", "echo-request"}, {"untracked_out", "output", "sport", "echo-reply"}} {
		line("\tchain %s {", chain.name)
		line("\t\ttype filter hook %s priority raw;", chain.hook)
		line("\t\tmeta l4proto 6 notrack")
		line("\t\tudp %s @services_udp notrack", chain.to)
		line("\t\ticmp type %s notrack", chain.from)
		line("\t\ticmpv6 type %s notrack", chain.from)
		line("\t}")
	}
	line("\tchain forward { type filter hook forward priority filter; policy drop; }")
	line("\tchain input {")
	line("\t\ttype filter hook input priority filter; policy drop;")
	line("\t\tiif lo accept")
	line("\t\ttcp flags & (ack | rst) != 0 accept")
	line("\t\tct state established,related accept")
	line("\t\ticmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem } accept")
	line("\t\ticmpv6 type { echo-request, destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept")
	// RFC 4890 section 4.4.1: neighbours and routers are on the link, which a hop limit of 255 shows.
	line("\t\tip6 hoplimit 255 icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept")
	line("\t\tip6 saddr fe80::/10 icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } accept")
	if asksDHCP(cfg) {
		// An answer to a broadcast is not known as an answer.
		line("\t\tudp sport 67 udp dport 68 accept")
		line("\t\tip6 saddr fe80::/10 udp sport 547 udp dport 546 accept")
	}
	if cfg == nil {
		line("\t\ttcp dport %d accept", StatusPort)
	} else {
		for _, at := range served(cfg) {
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
	if cfg != nil {
		confine(line, cfg)
	}
	line("}")
	return b.String()
}

// sets are what the process fills.
var sets = []struct{ name, kind string }{
	{"bgp4", "type ipv4_addr"},
	{"bgp6", "type ipv6_addr"},
	{"services_tcp", "type inet_service"},
	{"services_udp", "type inet_service"},
	{"pods4", "type ipv4_addr; flags interval"},
	{"pods6", "type ipv6_addr; flags interval"},
	{"servers4", "type ipv4_addr . inet_service"},
	{"servers6", "type ipv6_addr . inet_service"},
	{"logs4", "type ipv4_addr . inet_service"},
	{"logs6", "type ipv6_addr . inet_service"},
}

// opens matches a TCP packet that opens a connection.
const opens = "tcp flags & (fin | syn | rst | ack) == syn"

// confine keeps HAProxy's worker, which reads what strangers send, to the servers it
// is for: whoever takes it over reaches no node, no other service of this machine and
// no resolver. The worker cannot forge packets, so only what opens a connection is
// looked at, and what belongs to one goes on.
//
// The worker has sockets that root opened for it, and a rule by user does not see
// those: the ones that listen. Such a socket can be made to connect, but keeps its
// port, from which nobody else opens a connection. That of QUIC can send anywhere;
// a client's port is none of the well-known ones, to which HAProxy does not answer
// either (harden.reject-privileged-ports.quic).
func confine(line func(string, ...any), cfg *config.Config) {
	line("\tchain output {")
	line("\t\ttype filter hook output priority filter; policy accept;")
	var ports []uint16
	for _, at := range served(cfg) {
		ports = append(ports, at.Port())
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		line("\t\ttcp sport %d %s goto refused", port, opens)
	}
	line("\t\ttcp sport @services_tcp %s goto refused", opens)
	line("\t\tudp sport @services_udp udp dport < 1024 goto refused")
	line("\t\tudp sport @services_udp accept")
	line("\t\tmeta skuid haproxy goto worker")
	line("\t}")
	line("\tchain worker {")
	line("\t\ttcp flags & (ack | rst) != 0 accept")
	line("\t\tmeta l4proto 6 ip daddr @pods4 accept")
	line("\t\tmeta l4proto 6 ip6 daddr @pods6 accept")
	line("\t\tip daddr . tcp dport @servers4 accept")
	line("\t\tip6 daddr . tcp dport @servers6 accept")
	line("\t\tip daddr 127.0.0.1 udp dport 514 accept") // its log, if nobody says where else
	line("\t\tip daddr . udp dport @logs4 accept")
	line("\t\tip6 daddr . udp dport @logs6 accept")
	line("\t\tgoto refused")
	line("\t}")
	line("\tchain refused {")
	line("\t\tmeta l4proto 6 reject with tcp reset")
	line("\t\treject with icmpx admin-prohibited")
	line("\t}")
}

// served returns the addresses of HTTP and HTTPS.
func served(cfg *config.Config) []netip.AddrPort {
	return slices.Concat(cfg.HAProxy.HTTP, cfg.HAProxy.HTTPS)
}

// asksDHCP reports whether any interface asks a DHCP server. Without a list each one
// does.
func asksDHCP(cfg *config.Config) bool {
	return cfg == nil || len(cfg.System.Interfaces) == 0 ||
		slices.ContainsFunc(cfg.System.Interfaces, func(in config.Interface) bool { return in.DHCP })
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

// Admission is what the firewall lets in and lets HAProxy's worker out to, beside
// what the file says.
type Admission struct {
	Peers    []netip.Addr     // may open BGP sessions
	TCP, UDP []uint16         // ports of this machine that everyone reaches
	Pods     []netip.Prefix   // HAProxy may connect to every port in them
	Servers  []netip.AddrPort // and to these
	Logs     []netip.AddrPort // and may send to these by UDP
}

// Admit makes the firewall let these in and out, and no others beside those of the
// file.
func (m Machine) Admit(ctx context.Context, a Admission) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := m.start(ctx, a.commands(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("tell the firewall what to let in and out: %w", err)
	}
	return nil
}

// commands fill the sets of the firewall, in one transaction.
func (a Admission) commands() string {
	elements := map[string][]string{}
	add := func(set string, addr netip.Addr, element any) {
		set += map[bool]string{true: "4", false: "6"}[addr.Is4()]
		elements[set] = append(elements[set], fmt.Sprint(element))
	}
	for _, addr := range a.Peers {
		add("bgp", addr, addr)
	}
	for _, p := range outermost(a.Pods) {
		add("pods", p.Addr(), p)
	}
	for set, list := range map[string][]netip.AddrPort{"servers": a.Servers, "logs": a.Logs} {
		for _, at := range list {
			add(set, at.Addr(), fmt.Sprintf("%s . %d", at.Addr(), at.Port()))
		}
	}
	for set, list := range map[string][]uint16{"services_tcp": a.TCP, "services_udp": a.UDP} {
		for _, port := range list {
			elements[set] = append(elements[set], fmt.Sprint(port))
		}
	}
	var b strings.Builder
	for _, set := range sets {
		fmt.Fprintf(&b, "flush set inet sallyport %s\n", set.name)
		if list := elements[set.name]; len(list) > 0 {
			fmt.Fprintf(&b, "add element inet sallyport %s { %s }\n", set.name, strings.Join(list, ", "))
		}
	}
	return b.String()
}

// outermost leaves out what lies in another of the prefixes: nft takes no
// intervals that overlap.
func outermost(prefixes []netip.Prefix) (out []netip.Prefix) {
	for _, p := range slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) {
		// What contains p comes before it, and after that only what it contains too.
		if last := len(out) - 1; last < 0 || !out[last].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
