package routes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A cluster with a source has routes in a table of its own. Only packets from the source address to the
// networks of the cluster's pods are led there, by one rule of the kernel for each network:
//
//	100: from 192.168.51.21 to 172.16.0.0/16 lookup 3232248597 proto 78
//
// The number of the table is the source address itself, so that a fresh process knows the table of each of
// our rules, and the source of each of our tables, without a file. In the table, an unreachable default route
// refuses what no other route leads, so that nothing goes on to the main table. AddRule makes this
// route before the rule, and DropRule deletes it after the last rule. A crash between these steps leaves a table
// that nothing leads to.

// rulePriority is the priority of our rules. The kernel asks rules in order of priority: first the table of
// local addresses with priority 0, last the main table with 32766.
const rulePriority = 100

// tableOf returns the number of the table of a source.
func (k *Kernel) tableOf(source netip.Addr) int {
	if !source.IsValid() {
		return k.cfg.Table
	}
	a := source.As4()
	return int(binary.BigEndian.Uint32(a[:]))
}

// sourceOf returns the source whose table has a number, or false if no source has it.
func (k *Kernel) sourceOf(table int) (netip.Addr, bool) {
	if table == k.cfg.Table {
		return netip.Addr{}, true
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(table))
	// The numbers below belong to 0.0.0.0/8, where no source is.
	return netip.AddrFrom4(a), table > 1<<24 && table <= 1<<32-1
}

// refusal returns the default route of the table of a source, which refuses packets.
func (k *Kernel) refusal(source netip.Addr) *netlink.Route {
	r := k.route(Selector{From: source, To: netip.PrefixFrom(netip.IPv4Unspecified(), 0)})
	r.Type = unix.RTN_UNREACHABLE
	return r
}

func (k *Kernel) rule(s Selector) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Protocol = netlink.FAMILY_V4, rulePriority, uint8(k.cfg.Protocol)
	r.Table, r.Src, r.Dst = k.tableOf(s.From), ipNet(single(s.From)), ipNet(s.To)
	return r
}

// AddRule leads the packets of a selector into the table of its source. It changes nothing if that is so already.
// The selector has an IPv4 source, and a prefix of the same family.
func (k *Kernel) AddRule(s Selector) error {
	if !s.From.IsValid() || !s.routable() {
		return fmt.Errorf("adding the rule %s: not an IPv4 address and a prefix of the same family", s)
	}
	if err := k.netlink.RouteAdd(k.refusal(s.From)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the default route of the table of %s: %w", s.From, err)
	}
	if err := k.netlink.RuleAdd(k.rule(s)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("adding the rule %s: %w", s, err)
	}
	return nil
}

// DropRule deletes our rule for a selector. With the last rule of a source it deletes the default route of the
// table of this source. If there is no such rule, DropRule succeeds.
func (k *Kernel) DropRule(s Selector) error {
	if !s.From.IsValid() || !s.routable() {
		return fmt.Errorf("dropping the rule %s: not an IPv4 address and a prefix of the same family", s)
	}
	if err := k.netlink.RuleDel(k.rule(s)); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("dropping the rule %s: %w", s, err)
	}
	rules, err := k.readRules()
	if err != nil {
		return fmt.Errorf("dropping the rule %s: %w", s, err)
	}
	if slices.ContainsFunc(rules, func(p policy) bool { return p.ours && p.From == s.From }) {
		return nil
	}
	return k.dropRefusal(s.From)
}

// dropRefusal deletes the default route of the table of a source.
func (k *Kernel) dropRefusal(source netip.Addr) error {
	if err := k.netlink.RouteDel(k.refusal(source)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("dropping the default route of the table of %s: %w", source, err)
	}
	return nil
}

// A Rule is the state of a rule of ours in the kernel.
type Rule struct {
	// Why is one sentence about why the rule does not lead its packets. It is empty if the rule holds: the kernel
	// asks no rule before it that these packets may match, and the default route of its table refuses the rest.
	Why string
	// Shadowed reports that the cause is a rule of somebody else, so that adding the rule again does not help.
	Shadowed bool
}

// A policy is a rule of the kernel, ours or not.
type policy struct {
	Selector
	ours bool // it has our protocol number, and leads into the table of its source
	// never reports that no packet of HAProxy to a pod leaves by the rule: it leads to the table of local
	// addresses, or is for packets that have come in, that have a mark, or that leave by a certain interface.
	never bool
	what  string
}

// matches reports whether packets of the selector may match the rule.
func (p policy) matches(s Selector) bool {
	return !p.never && (!p.From.IsValid() || p.From == s.From) && (!p.To.IsValid() || p.To.Overlaps(s.To))
}

// readRules returns the rules for IPv4, in the kernel's order. A kernel without policy routing has none.
func (k *Kernel) readRules() ([]policy, error) {
	var list []netlink.Rule
	err := whole(func() (err error) {
		list, err = k.netlink.RuleList(netlink.FAMILY_V4)
		return err
	})
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("reading the kernel's routing rules: %w", err)
	}
	all := make([]policy, 0, len(list))
	for _, r := range list {
		all = append(all, k.policy(r))
	}
	return all, nil
}

func (k *Kernel) policy(r netlink.Rule) policy {
	p := policy{
		what:  r.String(),
		never: r.Table == unix.RT_TABLE_LOCAL || r.IifName != "" && r.IifName != "lo" || r.OifName != "" || r.Mark != 0,
	}
	if r.Invert { // it is for all packets but these
		return p
	}
	if p.To = prefixOf(r.Dst); p.To.IsValid() {
		p.To = p.To.Masked()
	}
	source := prefixOf(r.Src)
	if !source.IsValid() || !source.IsSingleIP() {
		return p
	}
	p.From = source.Addr()
	plain := r.IifName == "" && !p.never && r.Mask == nil && r.Tos == 0 && r.IPProto == 0 && r.Sport == nil &&
		r.Dport == nil && r.UIDRange == nil && r.TunID == 0 && r.SuppressPrefixlen < 0 && r.SuppressIfgroup < 0
	p.ours = plain && p.To.IsValid() && int(r.Protocol) == k.cfg.Protocol && r.Priority == rulePriority &&
		r.Table == k.tableOf(p.From)
	return p
}

// judgeRules returns the state of each rule of ours.
func judgeRules(rules []policy, all []entry) map[Selector]Rule {
	defaults := map[netip.Addr]entry{} // the one of each table that counts
	for _, e := range all {
		if e.To.Bits() != 0 || !e.To.Addr().Is4() {
			continue
		}
		if known, ok := defaults[e.From]; !ok || e.metric < known.metric {
			defaults[e.From] = e
		}
	}
	states := map[Selector]Rule{}
	for i, r := range rules {
		if !r.ours {
			continue
		}
		before := slices.IndexFunc(rules[:i], func(p policy) bool { return !p.ours && p.matches(r.Selector) })
		switch {
		case before >= 0:
			states[r.Selector] = Rule{
				Why: fmt.Sprintf("another rule goes before ours, %q: give it a priority above %d",
					rules[before].what, rulePriority),
				Shadowed: true,
			}
		case defaults[r.From].kind != unix.RTN_UNREACHABLE:
			states[r.Selector] = Rule{
				Why: fmt.Sprintf("the table of %s has no default route that refuses packets", r.From),
			}
		default:
			states[r.Selector] = Rule{}
		}
	}
	return states
}

// follow removes the routes from the listing to which no rule leads, and adds a conflict for each of them.
func (l *Listing) follow() {
	for s, via := range l.Routes {
		if !s.From.IsValid() {
			continue
		}
		held, why := false, ""
		for r, state := range l.Rules {
			if r.Contains(s) {
				held, why = held || state.Why == "", state.Why
			}
		}
		if held {
			continue
		}
		if why == "" {
			why = fmt.Sprintf("no rule leads packets from %s to its table", s.From)
		}
		delete(l.Routes, s)
		l.Conflicts = append(l.Conflicts, Conflict{Selector: s, Via: via, Why: why})
	}
	slices.SortFunc(l.Conflicts, func(a, b Conflict) int { return a.Compare(b.Selector) })
}

// adoptRules deletes the default routes of our tables to which no rule of ours leads: those of a process that ended
// between the two.
func (k *Kernel) adoptRules(all []entry) error {
	left := map[netip.Addr]bool{}
	for _, e := range all {
		if e.refuses(k.cfg.Protocol) {
			left[e.From] = true
		}
	}
	if len(left) == 0 {
		return nil
	}
	rules, err := k.readRules()
	if err != nil {
		return err
	}
	maps.DeleteFunc(left, func(source netip.Addr, _ bool) bool {
		return slices.ContainsFunc(rules, func(p policy) bool { return p.ours && p.From == source })
	})
	for source := range left {
		if err := k.dropRefusal(source); err != nil {
			return err
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
