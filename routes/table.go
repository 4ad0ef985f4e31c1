package routes

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Table maps the packets to pods to next hops. The prefix of a Selector is a block, or a single
// borrowed address; a next hop is a node's address. The nil Table is empty. In JSON it is an object
// of selector to address.
type Table map[Selector]netip.Addr

// Equal reports whether both tables hold the same routes.
func (t Table) Equal(other Table) bool { return maps.Equal(t, other) }

// All yields the routes in the order of Selector.Compare.
func (t Table) All() iter.Seq2[Selector, netip.Addr] {
	return func(yield func(Selector, netip.Addr) bool) {
		for _, p := range slices.SortedFunc(maps.Keys(t), Selector.Compare) {
			if !yield(p, t[p]) {
				return
			}
		}
	}
}

// String prints a line per route, "172.16.171.64/26 via 192.168.50.23", sorted.
func (t Table) String() string {
	var b strings.Builder
	for p, via := range t.All() {
		b.WriteString(p.String() + " via " + via.String() + "\n")
	}
	return b.String()
}

// Finder returns a function for longest-prefix matches: it returns the route of the packets from
// a source to an address, and its next hop, or false. A zero source stands for the main table. A
// look-up costs one map access for each prefix length in the table. The table must not change while
// the function is in use.
func (t Table) Finder() func(source, a netip.Addr) (Selector, netip.Addr, bool) {
	l := lengthsOf(prefixes(t))
	return func(source, a netip.Addr) (Selector, netip.Addr, bool) {
		for _, bits := range l.of(a) {
			p, err := a.Prefix(bits)
			if err != nil {
				break
			}
			if via, ok := t[Selector{From: source, To: p}]; ok {
				return Selector{From: source, To: p}, via, true
			}
		}
		return Selector{}, netip.Addr{}, false
	}
}

// prefixes yields the prefix of each selector.
func prefixes[V any](of map[Selector]V) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for s := range of {
			if !yield(s.To) {
				return
			}
		}
	}
}

// lengths holds the prefix lengths in a set, longest first. A longest-prefix match tries
// them in this order.
type lengths struct{ v4, v6 []int }

func lengthsOf(prefixes iter.Seq[netip.Prefix]) lengths {
	var v4, v6 [129]bool
	for p := range prefixes {
		switch {
		case !p.IsValid():
		case p.Addr().Is4():
			v4[p.Bits()] = true
		default:
			v6[p.Bits()] = true
		}
	}
	var l lengths
	for bits := 128; bits >= 0; bits-- {
		if v4[bits] {
			l.v4 = append(l.v4, bits)
		}
		if v6[bits] {
			l.v6 = append(l.v6, bits)
		}
	}
	return l
}

func (l lengths) of(a netip.Addr) []int {
	if a.Is4() {
		return l.v4
	}
	return l.v6
}

// An index finds a prefix that covers another, or lies within another, in a few map
// accesses: a flood of offers causes no scans. Its prefixes are canonical: no bit is set
// after the prefix length.
type index[T any] struct {
	at     map[netip.Prefix]T
	sorted []netip.Prefix
	lengths
}

func newIndex[T any](at map[netip.Prefix]T) index[T] {
	return index[T]{
		at:      at,
		sorted:  slices.SortedFunc(maps.Keys(at), netip.Prefix.Compare),
		lengths: lengthsOf(maps.Keys(at)),
	}
}

// covering returns the longest entry that contains all of p, p itself included.
func (x index[T]) covering(p netip.Prefix) (netip.Prefix, T, bool) {
	for _, bits := range x.of(p.Addr()) {
		if bits > p.Bits() {
			continue
		}
		q, err := p.Addr().Prefix(bits)
		if err != nil {
			break
		}
		if v, ok := x.at[q]; ok {
			return q, v, true
		}
	}
	var none T
	return netip.Prefix{}, none, false
}

// within returns the first entry that lies in p, p itself included.
func (x index[T]) within(p netip.Prefix) (netip.Prefix, T, bool) {
	i, _ := slices.BinarySearchFunc(x.sorted, p, netip.Prefix.Compare)
	if i < len(x.sorted) && p.Contains(x.sorted[i].Addr()) {
		return x.sorted[i], x.at[x.sorted[i]], true
	}
	var none T
	return netip.Prefix{}, none, false
}

// overlapping returns an entry that shares addresses with p.
func (x index[T]) overlapping(p netip.Prefix) (netip.Prefix, T, bool) {
	if q, v, ok := x.covering(p); ok {
		return q, v, true
	}
	return x.within(p)
}

func canonical(p netip.Prefix) bool {
	return p.IsValid() && p == p.Masked() && !p.Addr().Is4In6()
}

func single(a netip.Addr) netip.Prefix {
	a = a.WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}
