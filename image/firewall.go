package image

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/config"
)

// firewall returns the ruleset (nft(8)) of a machine with this file. cfg is nil if the machine has
// no file.
//
// TCP is not tracked: an ingress has more connections than conntrack's table, and would lose the
// new ones when the table is full. QUIC and pings are not tracked either, for anybody may send them
// from invented addresses. A TCP packet with ACK or RST passes: the kernel knows its connections,
// and resets a packet that belongs to none, on open and closed ports alike. A TCP packet without
// ACK and RST opens a connection, so it passes only to a port that is open. Any other packet has to
// be an answer.
//
// The sets bgp4 and bgp6 hold the nodes that may open BGP sessions. The sets services_tcp and
// services_udp hold the ports of TCP services and of QUIC. The sets listeners4 and listeners6 hold
// the TCP ports of Services at addresses of their own. The other sets hold the addresses that
// HAProxy may connect to. The process fills the sets as it learns the clusters (Admit). Until then
// a SYN is dropped and not rejected, so that the node sends it again after a second. A cluster
// opens no port that the machine itself uses.
func firewall(cfg *config.Config) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	// TCP by its number: names are in /etc/protocols, which the image does not have.
	// nft does all of it in one transaction. A flush removes rules, but no elements of sets.
	line("add table inet sallyport")
	line("flush table inet sallyport")
	line("table inet sallyport {")
	for _, set := range sets {
		line("\tset %s { %s; }", set.name, set.kind)
	}
	for _, chain := range []struct {
		name, hook, to, from string
	}{{"untracked_in", "prerouting", "dport", "echo-request"}, {"untracked_out", "output", "sport", "echo-reply"}} {
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
	line("\t\ticmpv6 type { echo-request, destination-unreachable, packet-too-big, time-exceeded, " +
		"parameter-problem } accept")
	// RFC 4890 section 4.4.1: a hop limit of 255 proves that the sender is on the link.
	line("\t\tip6 hoplimit 255 icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept")
	line("\t\tip6 saddr fe80::/10 icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, " +
		"mld2-listener-report } accept")
	if asksDHCP(cfg) {
		// conntrack does not recognise the answer to a broadcast.
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
		joinGroup(line, cfg)
		if len(cfg.System.MaintenanceKey) > 0 {
			// On the address of the status endpoint, unless that is loopback.
			at := cfg.Status.Listen.Addr()
			if at.IsLoopback() {
				at = netip.IPv6Unspecified()
			}
			openOne(line, netip.AddrPortFrom(at, config.SSHPort))
		}
		line("\t\ttcp dport != { %s } tcp dport @services_tcp accept", strings.Join(ownPorts(cfg), ", "))
		line("\t\tip daddr . tcp dport @listeners4 accept")
		line("\t\tip6 daddr . tcp dport @listeners6 accept")
		line("\t\tudp dport @services_udp accept")
	}
	line("\t}")
	if cfg != nil {
		confine(line, cfg)
	}
	line("}")
	return b.String()
}

// joinGroup writes the rules for the group: the heartbeat, HAProxy's peers and VRRP of the
// other members, and BFD of the routers. A TTL of 255 proves that the sender is on the link
// (RFC 5798, section 5.1.1.3; RFC 5881, section 5).
func joinGroup(line func(string, ...any), cfg *config.Config) {
	g := &cfg.Group
	for _, m := range others(cfg) {
		line("\t\t%s udp dport %d accept", from(m.Address), g.Port)
		if g.Share {
			line("\t\t%s tcp dport %d accept", from(m.Address), g.Port)
		}
		if g.VRRP.Exists() {
			line("\t\t%s %s meta l4proto 112 accept", from(m.Address), onLink(m.Address))
		}
	}
	if g.Upstream.BFD == (config.BFD{}) {
		return
	}
	for _, r := range g.Upstream.Peers {
		line("\t\t%s %s udp dport %d accept", from(r.Address), onLink(r.Address), config.BFDPort)
	}
}

// ownPorts returns the TCP ports on which programs of this machine listen, without HAProxy. The
// process opens none of haproxy.reservedPorts either (Admission).
func ownPorts(cfg *config.Config) []string {
	ports := []string{fmt.Sprint(config.SSHPort)}
	for _, p := range cfg.Ports() {
		number := fmt.Sprint(p.At.Port())
		if p.Protocol == config.TCP && !p.HAProxy && !p.Reserved && !slices.Contains(ports, number) {
			ports = append(ports, number)
		}
	}
	return ports
}

// onLink returns an nft expression for packets that no router has forwarded, of the family
// of an address.
func onLink(addr netip.Addr) string {
	if addr.Is4() {
		return "ip ttl 255"
	}
	return "ip6 hoplimit 255"
}

// others returns the other members of the group.
func others(cfg *config.Config) []config.Member {
	return slices.DeleteFunc(slices.Clone(cfg.Group.Members), func(m config.Member) bool {
		return m.Name == cfg.Identity
	})
}

// from returns an nft expression for packets from an address.
func from(addr netip.Addr) string {
	if addr.Is4() {
		return fmt.Sprintf("ip saddr %s", addr)
	}
	return fmt.Sprintf("ip6 saddr %s", addr)
}

// sets lists the sets that the process fills.
var sets = []struct{ name, kind string }{
	{"bgp4", "type ipv4_addr"},
	{"bgp6", "type ipv6_addr"},
	{"services_tcp", "type inet_service"},
	{"services_udp", "type inet_service"},
	{"pods4", "type ipv4_addr; flags interval"},
	{"pods6", "type ipv6_addr; flags interval"},
	{"sourced4", "type ipv4_addr . ipv4_addr; flags interval"},
	{"servers4", "type ipv4_addr . inet_service"},
	{"servers6", "type ipv6_addr . inet_service"},
	{"listeners4", "type ipv4_addr . inet_service"},
	{"listeners6", "type ipv6_addr . inet_service"},
	{"logs4", "type ipv4_addr . inet_service"},
	{"logs6", "type ipv6_addr . inet_service"},
}

// opens is an nft expression for a TCP packet that opens a connection.
const opens = "tcp flags & (fin | syn | rst | ack) == syn"

// confine writes the rules that let HAProxy's worker connect only to its servers. The worker reads
// data from strangers: an attacker who controls the worker reaches no node, no other service of
// this machine and no resolver. It cannot forge packets, so the rules match only packets that open
// a connection.
//
// A rule by user does not match sockets that root opened for the worker: those that listen. A
// listening TCP socket can be made to connect, but keeps its port. No other program opens a
// connection from this port. A QUIC socket can send anywhere. Its rule rejects ports below 1024:
// clients do not use these, and HAProxy does not answer to them
// (harden.reject-privileged-ports.quic).
func confine(line func(string, ...any), cfg *config.Config) {
	line("\tchain output {")
	line("\t\ttype filter hook output priority filter; policy accept;")
	var ports []uint16
	for _, at := range served(cfg) {
		ports = append(ports, at.Port())
	}
	if cfg.Group.Exists() && cfg.Group.Share {
		ports = append(ports, cfg.Group.Port)
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		line("\t\ttcp sport %d %s goto refused", port, opens)
	}
	line("\t\ttcp sport @services_tcp %s goto refused", opens)
	line("\t\tip saddr . tcp sport @listeners4 %s goto refused", opens)
	line("\t\tip6 saddr . tcp sport @listeners6 %s goto refused", opens)
	line("\t\tudp sport @services_udp udp dport < 1024 goto refused")
	line("\t\tudp sport @services_udp accept")
	line("\t\tmeta skuid haproxy goto worker")
	line("\t}")
	line("\tchain worker {")
	line("\t\ttcp flags & (ack | rst) != 0 accept")
	line("\t\tmeta l4proto 6 ip daddr @pods4 accept")
	line("\t\tmeta l4proto 6 ip6 daddr @pods6 accept")
	line("\t\tmeta l4proto 6 ip saddr . ip daddr @sourced4 accept")
	line("\t\tip daddr . tcp dport @servers4 accept")
	line("\t\tip6 daddr . tcp dport @servers6 accept")
	line("\t\tip daddr 127.0.0.1 udp dport 514 accept") // HAProxy's default log server
	line("\t\tip daddr . udp dport @logs4 accept")
	line("\t\tip6 daddr . udp dport @logs6 accept")
	if cfg.Group.Share {
		for _, m := range others(cfg) {
			line("\t\t%stcp dport %d accept", to(m.Address), cfg.Group.Port)
		}
	}
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

// asksDHCP reports whether any interface uses DHCP. Without a list of interfaces, all
// do.
func asksDHCP(cfg *config.Config) bool {
	return cfg == nil || len(cfg.System.Interfaces) == 0 ||
		slices.ContainsFunc(cfg.System.Interfaces, func(in config.Interface) bool { return in.DHCP })
}

// open writes a rule that accepts connections to an address.
func open(line func(string, ...any), at netip.AddrPort) {
	if at.Addr().IsLoopback() {
		return // nobody outside reaches it
	}
	line("\t\t%stcp dport %d accept", to(at.Addr()), at.Port())
}

// openOne does the same for a program that listens on one socket: [::] accepts both
// families.
func openOne(line func(string, ...any), at netip.AddrPort) {
	if at.Addr() == netip.IPv6Unspecified() {
		line("\t\ttcp dport %d accept", at.Port())
		return
	}
	open(line, at)
}

// to returns an nft expression for packets to an address; for all packets of its
// family if the address is a wildcard.
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

// Admission lists the connections that the firewall accepts in addition to those that the file
// allows: from outside, and from HAProxy's worker.
type Admission struct {
	Peers    []netip.Addr   // may open BGP sessions
	TCP, UDP []uint16       // ports of this machine that everyone reaches
	Pods     []netip.Prefix // HAProxy may connect to every port in them
	// Sourced are the same for connections from an address of this machine.
	Sourced  map[netip.Addr][]netip.Prefix
	Servers  []netip.AddrPort // HAProxy may connect to these
	Logs     []netip.AddrPort // HAProxy may send to these by UDP
	Services []netip.AddrPort // TCP listeners of this machine that everyone reaches
}

// Admit replaces the elements of the firewall's sets by this Admission.
func (m Machine) Admit(ctx context.Context, a Admission) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := m.start(ctx, a.commands(), "nft", "-f", "-"); err != nil {
		return fmt.Errorf("fill the sets of the firewall: %w", err)
	}
	return nil
}

// commands returns nft commands that fill the sets of the firewall. nft runs them in
// one transaction.
func (a Admission) commands() string {
	elements := map[string][]string{}
	add := func(set string, addr netip.Addr, element any) {
		if addr.Is4() {
			set += "4"
		} else {
			set += "6"
		}
		elements[set] = append(elements[set], fmt.Sprint(element))
	}
	for _, addr := range a.Peers {
		add("bgp", addr, addr)
	}
	for _, p := range outermost(a.Pods) {
		add("pods", p.Addr(), p)
	}
	for _, from := range slices.SortedFunc(maps.Keys(a.Sourced), netip.Addr.Compare) {
		for _, p := range outermost(a.Sourced[from]) {
			add("sourced", from, fmt.Sprintf("%s . %s", from, p))
		}
	}
	for set, list := range map[string][]netip.AddrPort{"servers": a.Servers, "logs": a.Logs, "listeners": a.Services} {
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

// outermost removes prefixes that lie in another prefix, since nft rejects intervals that overlap.
func outermost(prefixes []netip.Prefix) (out []netip.Prefix) {
	for _, p := range slices.SortedFunc(slices.Values(prefixes), netip.Prefix.Compare) {
		// A prefix that contains p comes before p, and between them only prefixes that it contains.
		if last := len(out) - 1; last < 0 || !out[last].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
