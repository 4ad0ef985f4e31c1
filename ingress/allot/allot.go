// Package allot gives the addresses of pools to the Services of type LoadBalancer and the Gateways that
// ask for some.
//
// It owns the rules of this: which addresses a Demand gets, and the reason for each that it does not
// get. The members of a group give the same addresses to the same Services without a leader:
//
//   - Allot is a function of the objects of the clusters and of the configuration, which all
//     members have, and of the addresses that are kept for namespaces that had them.
//   - An address is derived from the name of its Service, and then recorded in the status of
//     the Service. A record overrides what would be derived now: whatever comes or goes, a
//     Service keeps its address. A record overrides what is kept, too: so the members agree,
//     and the operator can give an address away by writing it into a status.
//   - Of two records of one address, as two members may write them before each has seen both
//     Services, the one of the older Service counts.
//   - Nothing is served at an address before its record is there: the caller opens ports only at
//     recorded addresses. So while two members disagree, neither serves.
//
// It promises that no address is given to two holders, and that each namespace is bounded.
//
// Its limit: it knows neither Kubernetes nor HAProxy. Package balance reads demands from objects,
// and package ingress opens the ports.
package allot

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sallyport/ingress/input"
)

// A Tenant is a namespace of a cluster.
type Tenant struct {
	Cluster   int // its place in the order of the configuration
	Namespace string
}

// A Demand is a Service that asks for addresses: at most one of each family.
type Demand struct {
	Ref    input.ObjectRef
	Of     Tenant
	Owner  string       // its namespace, or input.Everyone
	Holder string       // Services with the same holder may share an address
	Ports  []uint16     // that it opens at its addresses
	Four   bool         // it asks for an IPv4 address
	Six    bool         // it asks for an IPv6 address
	Spare  bool         // one of the two is enough
	Asked  []netip.Addr // particular addresses; any address will do for a family without an entry
	Had    []netip.Addr // addresses that its status records
}

// An Allotment is the answer to a Demand.
type Allotment struct {
	Addresses []netip.Addr // IPv4 first
	Problems  []Refusal
}

// A Refusal says why a Service does not get an address.
type Refusal struct{ Reason, Why string }

// An Allotter gives addresses to Demands.
type Allotter struct {
	input.Pools
	Machine []netip.Addr     // those of the Pools that the machine has, if the Pools are Local
	Most    func(Tenant) int // how many addresses a tenant may have; 0 means a share of each family
	// Kept are addresses that are kept for namespaces. Allot removes those beyond a limit.
	Kept map[netip.Addr]Kept
	Used map[netip.Addr]input.Use // addresses of the Pools that something else has

	ranges []input.AddressRange // of the addresses that can be given
	holds  map[netip.Addr]*lease
	counts map[Tenant][2]int // addresses of each tenant, by family
}

// addressShare bounds the addresses of a tenant: it may have the addressShare-th part of each
// family, and at least one address. So only four tenants together can use up the pools.
const addressShare = 4

// Lacks reports whether an address is in the Pools, but the machine does not have it.
func (a *Allotter) Lacks(addr netip.Addr) bool {
	return a.Local && a.Contain(addr) && !slices.Contains(a.Machine, addr)
}

// without returns the end of a sentence that says why there are no addresses of a family.
func (a *Allotter) without() string {
	if a.Local {
		return " that the machine has: add some to an interface, and to haproxy.addresses"
	}
	return " (group.pools)"
}

// total returns how many addresses of a family can be given.
func (a *Allotter) total(six bool) (n uint64) {
	for _, r := range a.ranges {
		if r.First.Is6() == six {
			n += r.Size()
		}
	}
	return n
}

// full returns why a tenant gets no further address of a family. It returns "" if the tenant may
// have a further address.
func (a *Allotter) full(d *Demand, addr netip.Addr) string {
	has := a.counts[d.Of]
	if most := a.Most(d.Of); most > 0 {
		if has[0]+has[1] < most {
			return ""
		}
		return fmt.Sprintf("the Services of namespace %s have %d addresses, as many as they may have "+
			"(clusters[].ingress.limits.addresses)", d.Ref.Namespace, most)
	}
	// A share that has become smaller ends nothing that is served already.
	most := max(1, a.total(addr.Is6())/addressShare)
	if uint64(has[family(addr)]) < most || slices.Contains(d.Had, addr) { //nolint:gosec // a count
		return ""
	}
	return fmt.Sprintf("the Services of namespace %s have %d %s addresses, a quarter of those of the pools; the "+
		"operator of the appliance can allow more (clusters[].ingress.limits.addresses)", d.Ref.Namespace,
		has[family(addr)], families[family(addr)])
}

// families are the names of the families, by their number.
var families = [2]string{"IPv4", "IPv6"}

// family returns the number of an address's family.
func family(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}

// A lease is an address that is given away.
type lease struct {
	holder string
	first  input.ObjectRef   // the first Service that got it
	ports  map[uint16]string // by port: the Service that opens it
}

// Allot answers demands, the older first. Recorded addresses come first, then the addresses that
// the round before gave, then the particular addresses that Services ask for. If fresh is false,
// Allot gives no address that is not recorded.
//
// A namespace that gets an address may lose an address that is kept for it, and other namespaces
// may have the lost address. So Allot looks again, with the given addresses as records, until
// nothing changes. Once they are recorded, the next round gives the same Services the same
// addresses.
func (a *Allotter) Allot(demands []Demand, fresh bool) (all []Allotment) {
	const looks = 4 // in thousands of random cases three were enough
	a.ranges = a.Usable(a.Machine)
	demands = slices.Clone(demands)
	for range looks {
		all = a.look(demands, fresh)
		settled := true
		for i := range demands {
			settled = settled && slices.Equal(demands[i].Had, all[i].Addresses)
			demands[i].Had = all[i].Addresses
		}
		if settled {
			break
		}
	}
	return all
}

// look answers demands once.
func (a *Allotter) look(demands []Demand, fresh bool) []Allotment {
	a.holds, a.counts = make(map[netip.Addr]*lease), make(map[Tenant][2]int)
	all := make([]Allotment, len(demands))
	done := make([][2]bool, len(demands)) // by family
	each := func(do func(d *Demand, six bool) (netip.Addr, Refusal)) {
		for i := range demands {
			d := &demands[i]
			for family, wanted := range [2]bool{d.Four, d.Six} {
				if !wanted || done[i][family] {
					continue
				}
				switch addr, no := do(d, family == 1); {
				case addr.IsValid():
					done[i][family] = true
					all[i].Addresses = append(all[i].Addresses, addr)
				case no != Refusal{}:
					done[i][family] = true
					all[i].Problems = append(all[i].Problems, no)
				}
			}
		}
	}
	each(func(d *Demand, six bool) (netip.Addr, Refusal) { // what is recorded
		asked := inFamily(d.Asked, six)
		for _, addr := range d.Had {
			if addr.Is6() == six && (!asked.IsValid() || addr == asked) && a.take(d, addr) == (Refusal{}) {
				return addr, Refusal{}
			}
		}
		return netip.Addr{}, Refusal{}
	})
	a.boundKept(demands, done)
	// The addresses that the round before gave are about to be recorded. Otherwise a Service that
	// has come since, and sorts before the owner of such an address, would have another address
	// beyond the limit.
	each(func(d *Demand, six bool) (netip.Addr, Refusal) {
		asked := inFamily(d.Asked, six)
		for _, addr := range a.hadBefore(d, six) {
			if fresh && a.Kept[addr].Given && (!asked.IsValid() || addr == asked) && a.take(d, addr) == (Refusal{}) {
				return addr, Refusal{}
			}
		}
		return netip.Addr{}, Refusal{}
	})
	maps.DeleteFunc(a.Kept, func(_ netip.Addr, k Kept) bool { return k.Until.IsZero() })
	each(func(d *Demand, six bool) (netip.Addr, Refusal) { // what is asked for
		asked := inFamily(d.Asked, six)
		if !asked.IsValid() || !fresh && !slices.Contains(d.Had, asked) {
			return netip.Addr{}, Refusal{}
		}
		if no := a.take(d, asked); no != (Refusal{}) {
			return netip.Addr{}, no
		}
		return asked, Refusal{}
	})
	if fresh {
		each(a.choose)
	}
	for i, d := range demands {
		slices.SortFunc(all[i].Addresses, netip.Addr.Compare)
		if d.Spare && len(all[i].Addresses) > 0 {
			all[i].Problems = slices.DeleteFunc(all[i].Problems, func(r Refusal) bool { return r.Reason == noAddress })
		}
	}
	return all
}

const noAddress = "NoAddressLeft"

// inFamily returns the first address of a family, or the zero Addr.
func inFamily(addresses []netip.Addr, six bool) netip.Addr {
	for _, a := range addresses {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// Foreign returns why nobody can have an address, or the zero Refusal.
func (a *Allotter) Foreign(addr netip.Addr) Refusal {
	switch {
	case !a.Contain(addr):
		return Refusal{
			"AddressOutsidePools",
			fmt.Sprintf("%s is in none of the pools of the appliance (%s)", addr, a.Key()),
		}
	case a.Lacks(addr):
		return Refusal{
			"AddressNotUsable",
			fmt.Sprintf("the appliance does not have %s: add it to an interface of that machine, or ask for another "+
				"address of %s", addr, a.Key()),
		}
	}
	return Refusal{}
}

// take gives an address to a demand, or says why not.
func (a *Allotter) take(d *Demand, addr netip.Addr) Refusal {
	// A record stays while the address is away from the machine for a moment.
	away := a.Lacks(addr) && slices.Contains(d.Had, addr)
	if why := a.Foreign(addr); why.Reason != "" && !away {
		return why
	}
	if use := a.Used[addr]; use.Bars(d.Of.Cluster) {
		return Refusal{"AddressInUse", fmt.Sprintf("%s is %s", addr, use.By)}
	}
	l := a.holds[addr]
	if l != nil && l.holder != d.Holder {
		return Refusal{
			"AddressInUse",
			fmt.Sprintf("%s is in use by %s %s/%s; two Services of one namespace may share it if both have the "+
				"annotation sallyport.dev/share-address with the same value", addr, l.first.Kind, l.first.Namespace,
				l.first.Name),
		}
	}
	if k, is := a.KeptForOther(d, addr); is {
		return Refusal{
			"AddressInUse",
			fmt.Sprintf("%s was an address of %s until %s, and is kept for its namespace until %s "+
				"(clusters[].ingress.releaseAfter)",
				addr, k.AddressOwner, k.Left.Format(time.RFC3339), k.Until.Format(time.RFC3339)),
		}
	}
	if l == nil {
		if why := a.full(d, addr); why != "" {
			return Refusal{"LimitReached", why}
		}
		l = &lease{holder: d.Holder, first: d.Ref, ports: make(map[uint16]string)}
	}
	for _, port := range d.Ports {
		if by := l.ports[port]; by != "" {
			return Refusal{
				"PortConflict",
				fmt.Sprintf("port %d of %s is in use by Service %s: Services that share an address need ports "+
					"of their own", port, addr, by),
			}
		}
	}
	for _, port := range d.Ports {
		l.ports[port] = d.Ref.Namespace + "/" + d.Ref.Name
	}
	if a.holds[addr] == nil {
		a.holds[addr] = l
		has := a.counts[d.Of]
		has[family(addr)]++
		a.counts[d.Of] = has
	}
	return Refusal{}
}

// choose finds an address for a demand that asks for no particular address. It prefers an address
// that its holder has already. Otherwise it starts at a place that the name of the holder
// determines, and takes the first free address.
func (a *Allotter) choose(d *Demand, six bool) (netip.Addr, Refusal) {
	var ours []netip.Addr
	for addr, l := range a.holds {
		if addr.Is6() == six && l.holder == d.Holder {
			ours = append(ours, addr)
		}
	}
	slices.SortFunc(ours, netip.Addr.Compare)
	for _, addr := range slices.Concat(ours, a.hadBefore(d, six)) {
		if a.take(d, addr) == (Refusal{}) {
			return addr, Refusal{}
		}
	}
	total, family := a.total(six), families[0]
	if six {
		family = families[1]
	}
	if total == 0 {
		return netip.Addr{}, Refusal{
			noAddress,
			fmt.Sprintf("the pools of the appliance have no %s addresses%s", family, a.without()),
		}
	}
	sum := sha256.Sum256([]byte(family + "\x00" + d.Holder))
	start := binary.BigEndian.Uint64(sum[:]) % total
	var chosen netip.Addr
	reason := "in use"
	for i := range total {
		addr := a.place((start+i)%total, six)
		use, used := a.Used[addr]
		_, kept := a.KeptForOther(d, addr)
		switch {
		case a.holds[addr] != nil || use.Bars(d.Of.Cluster):
			continue
		case kept:
			reason = "in use, or kept for namespaces that had them"
			continue
		}
		if !used {
			chosen = addr
			break
		}
		if !chosen.IsValid() { // last, since what a later cluster says may be true
			chosen = addr
		}
	}
	if chosen.IsValid() {
		if no := a.take(d, chosen); no != (Refusal{}) {
			return netip.Addr{}, no
		}
		return chosen, Refusal{}
	}
	return netip.Addr{}, Refusal{
		noAddress,
		fmt.Sprintf("all %d %s addresses of the pools are %s (%s)", total, family, reason, a.Key()),
	}
}

// place returns the address at a place among all of a family.
func (a *Allotter) place(place uint64, six bool) netip.Addr {
	for _, r := range a.ranges {
		if r.First.Is6() != six {
			continue
		}
		if size := r.Size(); place >= size {
			place -= size
			continue
		}
		return r.At(place)
	}
	return netip.Addr{}
}

// A Kept is an address that a Service or Gateway had, and that is kept for its namespace.
type Kept struct {
	input.AddressOwner
	Of    Tenant
	Until time.Time // if zero, only the Service that was given it can have it
	Given bool      // the round before gave it: the record of it may be under way
}

// KeptForOther returns the owner that an address is kept for, if a demand cannot have it for this
// reason. A recorded address overrides this, and so does an earlier cluster.
func (a *Allotter) KeptForOther(d *Demand, addr netip.Addr) (k Kept, is bool) {
	k, is = a.Kept[addr]
	mine := d.Of.Cluster == k.Of.Cluster && d.Owner == k.Namespace
	return k, is && !mine && !k.Until.IsZero() && d.Of.Cluster >= k.Of.Cluster && !slices.Contains(d.Had, addr)
}

// OwnerKind returns the kind of an input.AddressOwner.
func OwnerKind(kind string) string {
	if kind == "Service" {
		return ""
	}
	return kind
}

// First returns the first Service that got an address.
func (a *Allotter) First(addr netip.Addr) input.ObjectRef { return a.holds[addr].first }

// Gave reports whether somebody has an address.
func (a *Allotter) Gave(addr netip.Addr) bool { return a.holds[addr] != nil }

// hadBefore returns the addresses of a family that are kept for the Service of a demand.
func (a *Allotter) hadBefore(d *Demand, six bool) (all []netip.Addr) {
	for addr, k := range a.Kept {
		if addr.Is6() == six && k.Of == d.Of && k.Kind == OwnerKind(d.Ref.Kind) && k.Service == d.service() {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// service returns the name of the demand's Service.
func (d *Demand) service() string { return d.Ref.Namespace + "/" + d.Ref.Name }

// boundKept drops kept addresses of a namespace that are beyond its limit. It drops those that were
// left first. The addresses that the Services of the namespace ask for count before kept addresses;
// a Service that comes back takes the address that is kept for it. done reports for each demand, by
// family, whether its addresses are recorded again. A record that its Service can no longer use
// does not count.
func (a *Allotter) boundKept(demands []Demand, done [][2]bool) {
	type slot struct {
		of            Tenant
		kind, service string
		family        int
	}
	wants, back := make(map[Tenant][2]int), make(map[slot]bool)
	for i := range demands {
		d := &demands[i]
		has := wants[d.Of]
		for family, asks := range [2]bool{d.Four, d.Six} {
			if asks {
				has[family]++
				at := slot{of: d.Of, kind: OwnerKind(d.Ref.Kind), service: d.service(), family: family}
				back[at] = !done[i][family]
			}
		}
		wants[d.Of] = has
	}
	all := slices.SortedFunc(maps.Keys(a.Kept), func(x, y netip.Addr) int {
		return cmp.Or(a.Kept[y].Left.Compare(a.Kept[x].Left), x.Compare(y))
	})
	for _, addr := range all {
		k, f := a.Kept[addr], family(addr)
		own := slot{of: k.Of, kind: k.Kind, service: k.Service, family: f}
		if a.holds[addr] != nil || back[own] {
			delete(back, own)
			continue
		}
		has, most := wants[k.Of], uint64(a.Most(k.Of)) //nolint:gosec // not negative
		count := uint64(has[0] + has[1])               //nolint:gosec // a count
		if most == 0 {
			count, most = uint64(has[f]), max(1, a.total(addr.Is6())/addressShare) //nolint:gosec // a count
		}
		if count >= most {
			delete(a.Kept, addr)
			continue
		}
		has[f]++
		wants[k.Of] = has
	}
}
