package address

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Ring gives packets a second chance. When an address moves, packets of established
// connections arrive at an appliance that does not know them, which would reset them. In
// a ring it hands each on to the next appliance, until one knows the connection. That one
// answers the client itself.
//
// Packets that open a connection never go on. Nor does UDP: HTTP/3 clients connect again
// by themselves. Where a client uses a port again within a minute, another appliance may
// still hold the old connection in TIME_WAIT: see Forget. A kernel that sends SYN cookies
// cannot tell the last packet of such a handshake from a foreign one, and hands it on:
// leave no ring while SYNCookies grows.
type Ring struct {
	Addresses []netip.Addr     // that the members serve, IPv4 and IPv6
	Listeners []netip.AddrPort // ports of Addresses at which a socket listens that is bound to the address itself
	Self      netip.Addr       // of this appliance among the members
	Members   []netip.Addr     // that are alive, with Self or without; a dead one loses packets
	Silent    []netip.Addr     // other members: no packet goes there, but their hops are believed
	Limit     int              // packets a second that this appliance hands on; 0 means no limit
}

const (
	// table is the name of our tables of rules, one in the family ip and one in ip6. Nobody
	// else uses this name.
	table = "sallyport_ring"
	// lease is how long the rules work after SetRing. A process that died watches over no
	// ring, and a dead member in one is worse than no ring.
	lease = 30 * time.Second
	// largest is the greatest number of members in a ring. The DSCP of a packet, which has six bits,
	// counts its hops.
	largest = 8
)

// hop6 stands for the next member in IPv6, where it may have no address that we know: a
// permanent entry in the table of neighbours maps it to the member's MAC address. It is
// in the network fe80::/64, which every interface has.
var hop6 = netip.MustParseAddr("fe80::5a11:9017:7277:1")

// ErrUnknown is the error of SetRing while the kernel does not know the MAC address of a member.
// It knows it soon after this machine has sent something there.
var ErrUnknown = errors.New("not known")

// SetRing makes the kernel follow a Ring, in one step: no packet meets half of it. It has to be
// called again within lease, also if nothing changed. Each call starts nft(8). A ring of one member
// has no rules.
//
// The members are on one link. All members order the ring by these addresses, so they agree on it.
// After an error there is no ring.
func SetRing(ctx context.Context, r Ring) error {
	err := r.set(ctx)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("second chance is off: %w", err)
	if errors.Is(err, exec.ErrNotFound) {
		return err // ClearRing needs the same program
	}
	return errors.Join(err, ClearRing(ctx))
}

func (r Ring) set(ctx context.Context) error {
	after := r.after()
	if len(after) == 0 {
		return ClearRing(ctx)
	}
	if len(after) >= largest {
		return fmt.Errorf("%d members: a group has at most %d", len(after)+1, largest)
	}
	link, err := shared(after)
	if err != nil {
		return err
	}
	macs, err := neighbours(link, slices.Concat(after, r.Silent))
	if err != nil {
		return err
	}
	var trusted []string
	for i, m := range slices.Concat(after, r.Silent) {
		switch mac := macs[m]; {
		case mac != nil:
			trusted = append(trusted, mac.String())
		case i < len(after):
			return fmt.Errorf("the MAC address of the member %s is %w on %s: nothing was heard from there", m,
				ErrUnknown, link.Attrs().Name)
		}
	}
	if len(r.Listeners) > 0 {
		if err := demuxesEarly(); err != nil {
			return err
		}
	}
	slices.Sort(trusted)
	rules := rules{name: link.Attrs().Name, hops: len(after), trusted: slices.Compact(trusted), limit: r.Limit}
	var text strings.Builder
	for _, f := range families {
		foreign := func(a netip.Addr) bool { return a.Is4() != (f.name == "ip") }
		wanted := slices.DeleteFunc(slices.Clone(r.Addresses), foreign)
		bound := slices.DeleteFunc(slices.Clone(r.Listeners), func(l netip.AddrPort) bool { return foreign(l.Addr()) })
		switch {
		case len(wanted) == 0:
			text.WriteString(f.none())
			continue
		case f.name == "ip6":
			if err := point(link, macs[after[0]]); err != nil {
				return err
			}
			rules.next = hop6
		case after[0].Is4():
			rules.next = after[0]
		default:
			return fmt.Errorf("the address %s is IPv4, and the members have only IPv6 addresses: give them IPv4 "+
				"addresses in group.members", wanted[0])
		}
		text.WriteString(rules.text(f, wanted, bound))
	}
	if err := nft(ctx, text.String()); err != nil || rules.next == hop6 {
		return err
	}
	return unpoint()
}

// demuxesEarly returns an error if the kernel does not look for the connection of a packet
// before the hook input. Then the rules would take each connection to a listener for one that
// this machine does not know.
func demuxesEarly() error {
	for _, name := range []string{"ip_early_demux", "tcp_early_demux"} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		if err != nil {
			return fmt.Errorf("reading net.ipv4.%s: %w", name, err)
		}
		if strings.TrimSpace(string(text)) == "0" {
			return fmt.Errorf("net.ipv4.%[1]s is 0, so that the kernel does not tell connections to the addresses of "+
				"Services from others: write net.ipv4.%[1]s=1 into a file in /etc/sysctl.d", name)
		}
	}
	return nil
}

// ClearRing removes all rules of ours. No rules is success.
func ClearRing(ctx context.Context) error {
	var text strings.Builder
	for _, f := range families {
		text.WriteString(f.none())
	}
	return errors.Join(nft(ctx, text.String()), unpoint())
}

// A Count has the packets that met the rules of a ring since the rules were loaded first.
type Count struct {
	Passed  uint64 // packets that went on to the next member
	Dropped uint64 // packets beyond Limit
}

// Counted returns the counts of the rules. If there are no rules, the counts are zero.
func Counted(ctx context.Context) (sum Count, err error) {
	out, err := exec.CommandContext(ctx, "nft", "-j", "list", "counters").Output()
	if err != nil {
		return sum, fmt.Errorf("reading the counters of second chance: %w", err)
	}
	var all struct {
		Nftables []struct {
			Counter struct {
				Table, Name string
				Packets     uint64
			}
		}
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return sum, fmt.Errorf("reading the counters of second chance: %w", err)
	}
	for _, o := range all.Nftables {
		switch c := o.Counter; {
		case c.Table != table:
		case c.Name == "over":
			sum.Dropped += c.Packets
		default:
			sum.Passed += c.Packets
		}
	}
	return sum, nil
}

// after returns the living members after this one, in the order of the ring.
func (r Ring) after() []netip.Addr {
	all := append(slices.Clone(r.Members), r.Self)
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	i := slices.Index(all, r.Self)
	return slices.Concat(all[i+1:], all[:i])
}

// shared returns the link on which all members are neighbours of this machine.
func shared(members []netip.Addr) (netlink.Link, error) {
	index := 0
	for _, m := range members {
		found, err := netlink.RouteGet(m.AsSlice())
		switch {
		case err != nil:
			return nil, fmt.Errorf("looking for the link of the member %s: %w", m, err)
		case len(found) == 0 || found[0].Gw != nil || found[0].Via != nil || found[0].Type != unix.RTN_UNICAST:
			return nil,
				fmt.Errorf("the member %s is no neighbour of this machine: all members have to be in one network", m)
		case index != 0 && index != found[0].LinkIndex:
			return nil,
				fmt.Errorf("the members %s and %s are on different links: all members have to be in one network",
					members[0], m)
		}
		index = found[0].LinkIndex
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("reading the link of the members: %w", err)
	}
	return link, nil
}

// neighbours returns the MAC addresses on a link that the kernel knows. Heartbeats keep
// them fresh.
func neighbours(link netlink.Link, members []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	var list []netlink.Neigh
	var err error
	for range 20 { // a dump that a change interrupted may lack entries
		if list, err = netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL); !errors.Is(err,
			netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the neighbours on %s: %w", link.Attrs().Name, err)
	}
	const valid = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
		netlink.NUD_PERMANENT
	macs := map[netip.Addr]net.HardwareAddr{}
	for _, n := range list {
		a, _ := netip.AddrFromSlice(n.IP)
		if a = a.Unmap(); n.State&valid != 0 && len(n.HardwareAddr) == 6 && slices.Contains(members, a) {
			macs[a] = n.HardwareAddr
		}
	}
	return macs, nil
}

// point makes hop6 mean the member with this MAC address.
func point(link netlink.Link, mac net.HardwareAddr) error {
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT,
		IP: hop6.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("writing the next member into the neighbours on %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// unpoint removes hop6 from all links.
func unpoint() error {
	list, err := netlink.NeighList(0, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("reading the neighbours: %w", err)
	}
	var errs []error
	for _, n := range list {
		if a, _ := netip.AddrFromSlice(n.IP); a == hop6 {
			if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("removing the next member from the neighbours: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}

// nft runs commands of nft(8) in one transaction.
func nft(ctx context.Context, commands string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("the program nft is missing: install the package nftables: %w", err)
	case err != nil:
		return fmt.Errorf("loading the rules of second chance: nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// A family is one of the two tables.
type family struct{ name, kind string }

var families = []family{{"ip", "ipv4_addr"}, {"ip6", "ipv6_addr"}}

// none returns the commands that remove the table, whether it is there or not.
func (f family) none() string {
	return fmt.Sprintf("add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", f.name, table)
}

// rules are the values that the rules of both families share, and the next hop of one family.
type rules struct {
	name    string // of the link
	next    netip.Addr
	hops    int // members after this one
	trusted []string
	limit   int // packets a second; 0 means no limit
}

// text returns the commands that replace the table of a family, but not its counter.
func (r rules) text(f family, addresses []netip.Addr, bound []netip.AddrPort) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	pass := fmt.Sprintf("counter name passed dup to %s device %q drop", r.next, r.name)
	line("add table %s %s", f.name, table)
	line("flush table %s %s", f.name, table)
	line("table %s %s {", f.name, table)
	line("\tcounter passed { }")
	line("\tcounter over { }")
	line("\tset addresses { type %s; flags timeout; }", f.kind)
	line("\tset listeners { type %s . inet_service; flags timeout; }", f.kind)
	line("\tchain arrive {")
	line("\t\ttype filter hook prerouting priority mangle; policy accept;")
	line("\t\t%s daddr @addresses tcp flags & (syn | ack) != syn goto look", f.name)
	line("\t}")
	line("\tchain look {")
	line("\t\t%s daddr . tcp dport @listeners return", f.name) // to the chain deliver
	// A socket that listens on all addresses is found for every packet.
	line("\t\tsocket wildcard 1 goto foreign")
	line("\t\tsocket transparent 0 return") // a connection of this machine, in TIME_WAIT too
	line("\t\tsocket transparent 1 return")
	line("\t\tgoto foreign") // HAProxy is down here, and others may know the connection
	line("\t}")
	if len(bound) > 0 {
		line("\tchain deliver {")
		line("\t\ttype filter hook input priority mangle; policy accept;")
		line("\t\t%s daddr . tcp dport @listeners tcp flags & (syn | ack) != syn goto find", f.name)
		line("\t}")
		// The expression socket cannot distinguish a listener that is bound to the address from its
		// connections. The kernel has looked only for a connection before this hook (early demux).
		// meta cgroup exists, with any value, only if the kernel found a connection. This includes
		// a connection that HAProxy has closed and the kernel still empties. For such a connection
		// meta skuid fails.
		line("\tchain find {")
		line("\t\tmeta cgroup 0 return")
		line("\t\tmeta cgroup != 0 return")
		line("\t\tsocket wildcard 0 goto foreign")
		line("\t\tsocket wildcard 1 goto foreign")
		line("\t\tsocket transparent 0 return") // TIME_WAIT
		line("\t\tsocket transparent 1 return")
		line("\t\tgoto foreign")
		line("\t}")
	}
	line("\tchain foreign {")
	if r.limit > 0 {
		// Anybody may send packets of no connection, and each goes to all members. What belongs to a
		// connection is sent again.
		line("\t\tlimit rate over %[1]d/second burst %[1]d packets counter name over drop", r.limit)
	}
	// The DSCP counts hops. Only from a member it is believed.
	line("\t\tiif %q ether saddr { %s } goto hop", r.name, strings.Join(r.trusted, ", "))
	line("\t\t%s dscp set 1 %s", f.name, pass)
	line("\t}")
	line("\tchain hop {")
	for k := 1; k < r.hops; k++ {
		line("\t\t%[1]s dscp %[2]d %[1]s dscp set %[3]d %[4]s", f.name, k, k+1, pass)
	}
	line("\t}") // it was everywhere: the kernel resets the connection
	line("}")
	fill := func(set string, elements []string) {
		line("flush set %s %s %s", f.name, table, set)
		for i := range elements {
			elements[i] += fmt.Sprintf(" timeout %ds", int(lease.Seconds()))
		}
		if len(elements) > 0 {
			line("add element %s %s %s { %s }", f.name, table, set, strings.Join(elements, ", "))
		}
	}
	var at, open []string
	for _, a := range addresses {
		at = append(at, a.String())
	}
	for _, l := range bound {
		open = append(open, fmt.Sprintf("%s . %d", l.Addr(), l.Port()))
	}
	fill("addresses", at)
	fill("listeners", open)
	return b.String()
}
