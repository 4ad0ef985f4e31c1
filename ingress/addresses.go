package ingress

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Who gets which address
//
// The members of a group give the same addresses to the same Services without a leader:
//
//   - allot is a function of the objects of the clusters and of the configuration, which all
//     members have, and of the addresses that are kept for namespaces that had them (owners.go).
//   - An address is derived from the name of its Service, and then recorded in the status of
//     the Service. A record overrides what would be derived now: whatever comes or goes, a
//     Service keeps its address. A record overrides what is kept, too: so the members agree,
//     and the operator can give an address away by writing it into a status.
//   - Of two records of one address, as two members may write them before each has seen both
//     Services, the one of the older Service counts.
//   - Nothing is served at an address before its record is there (see balance). So while two
//     members disagree, neither serves.

// A demand is a Service that asks for addresses: at most one of each family.
type demand struct {
	ref    ObjectRef
	of     tenant
	owner  string       // its namespace, or input.Everyone
	holder string       // Services with the same holder may share an address
	ports  []uint16     // that it opens at its addresses
	four   bool         // it asks for an IPv4 address
	six    bool         // it asks for an IPv6 address
	spare  bool         // one of the two is enough
	asked  []netip.Addr // particular addresses; any address will do for a family without an entry
	had    []netip.Addr // addresses that its status records
}

// An allotment is the answer to a demand.
type allotment struct {
	addresses []netip.Addr // IPv4 first
	problems  []refusal
}

// A refusal says why a Service does not get an address.
type refusal struct{ reason, why string }

// An allotter gives addresses to demands.
type allotter struct {
	Pools
	local  []netip.Addr     // those of the Pools that the machine has, if the Pools are Local
	ranges []AddressRange   // of the addresses that can be given
	most   func(tenant) int // how many addresses a tenant may have; 0 means a share of each family
	kept   map[netip.Addr]keptAddress
	// closed are addresses of the Pools that no Service can have, each with its owner, as "the
	// address of node worker1".
	closed map[netip.Addr]string

	holds  map[netip.Addr]*lease
	counts map[tenant][2]int // addresses of each tenant, by family
}

// addressShare bounds the addresses of a tenant: it may have the addressShare-th part of each
// family, and at least one address. So only four tenants together can use up the pools.
const addressShare = 4

// lacks reports whether an address is in the Pools, but the machine does not have it.
func (a *allotter) lacks(addr netip.Addr) bool {
	return a.Local && a.Contain(addr) && !slices.Contains(a.local, addr)
}

// without returns the end of a sentence that says why there are no addresses of a family.
func (a *allotter) without() string {
	if a.Local {
		return " that the machine has: add some to an interface, and to haproxy.addresses"
	}
	return " (group.pools)"
}

// total returns how many addresses of a family can be given.
func (a *allotter) total(six bool) (n uint64) {
	for _, r := range a.ranges {
		if r.First.Is6() == six {
			n += r.Size()
		}
	}
	return n
}

// full returns why a tenant gets no further address of a family. It returns "" if the tenant may
// have a further address.
func (a *allotter) full(d *demand, addr netip.Addr) string {
	has := a.counts[d.of]
	if most := a.most(d.of); most > 0 {
		if has[0]+has[1] < most {
			return ""
		}
		return fmt.Sprintf("the Services of namespace %s have %d addresses, as many as they may have "+
			"(clusters[].ingress.limits.addresses)", d.ref.Namespace, most)
	}
	// A share that has become smaller ends nothing that is served already.
	most := max(1, a.total(addr.Is6())/addressShare)
	if uint64(has[family(addr)]) < most || slices.Contains(d.had, addr) { //nolint:gosec // a count
		return ""
	}
	return fmt.Sprintf("the Services of namespace %s have %d %s addresses, a quarter of those of the pools; the "+
		"operator of the appliance can allow more (clusters[].ingress.limits.addresses)", d.ref.Namespace,
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
	first  ObjectRef         // the first Service that got it
	ports  map[uint16]string // by port: the Service that opens it
}

// allot answers demands, the older first. Recorded addresses come first, then the addresses that
// the round before gave, then the particular addresses that Services ask for. If fresh is false,
// allot gives no address that is not recorded.
//
// A namespace that gets an address may lose an address that is kept for it, and other namespaces
// may have the lost address. So allot looks again, with the given addresses as records, until
// nothing changes. Once they are recorded, the next round gives the same Services the same
// addresses.
func (a *allotter) allot(demands []demand, fresh bool) (all []allotment) {
	const looks = 4 // in thousands of random cases three were enough
	a.ranges = a.Usable(a.local)
	demands = slices.Clone(demands)
	for range looks {
		all = a.look(demands, fresh)
		settled := true
		for i := range demands {
			settled = settled && slices.Equal(demands[i].had, all[i].addresses)
			demands[i].had = all[i].addresses
		}
		if settled {
			break
		}
	}
	return all
}

// look answers demands once.
func (a *allotter) look(demands []demand, fresh bool) []allotment {
	a.holds, a.counts = make(map[netip.Addr]*lease), make(map[tenant][2]int)
	all := make([]allotment, len(demands))
	done := make([][2]bool, len(demands)) // by family
	each := func(do func(d *demand, six bool) (netip.Addr, refusal)) {
		for i := range demands {
			d := &demands[i]
			for family, wanted := range [2]bool{d.four, d.six} {
				if !wanted || done[i][family] {
					continue
				}
				switch addr, no := do(d, family == 1); {
				case addr.IsValid():
					done[i][family] = true
					all[i].addresses = append(all[i].addresses, addr)
				case no != refusal{}:
					done[i][family] = true
					all[i].problems = append(all[i].problems, no)
				}
			}
		}
	}
	each(func(d *demand, six bool) (netip.Addr, refusal) { // what is recorded
		asked := inFamily(d.asked, six)
		for _, addr := range d.had {
			if addr.Is6() == six && (!asked.IsValid() || addr == asked) && a.take(d, addr) == (refusal{}) {
				return addr, refusal{}
			}
		}
		return netip.Addr{}, refusal{}
	})
	a.boundKept(demands, done)
	// The addresses that the round before gave are about to be recorded. Otherwise a Service that
	// has come since, and sorts before the owner of such an address, would have another address
	// beyond the limit.
	each(func(d *demand, six bool) (netip.Addr, refusal) {
		asked := inFamily(d.asked, six)
		for _, addr := range a.hadBefore(d, six) {
			if fresh && a.kept[addr].given && (!asked.IsValid() || addr == asked) && a.take(d, addr) == (refusal{}) {
				return addr, refusal{}
			}
		}
		return netip.Addr{}, refusal{}
	})
	maps.DeleteFunc(a.kept, func(_ netip.Addr, k keptAddress) bool { return k.until.IsZero() })
	each(func(d *demand, six bool) (netip.Addr, refusal) { // what is asked for
		asked := inFamily(d.asked, six)
		if !asked.IsValid() || !fresh && !slices.Contains(d.had, asked) {
			return netip.Addr{}, refusal{}
		}
		if no := a.take(d, asked); no != (refusal{}) {
			return netip.Addr{}, no
		}
		return asked, refusal{}
	})
	if fresh {
		each(a.choose)
	}
	for i, d := range demands {
		slices.SortFunc(all[i].addresses, netip.Addr.Compare)
		if d.spare && len(all[i].addresses) > 0 {
			all[i].problems = slices.DeleteFunc(all[i].problems, func(r refusal) bool { return r.reason == noAddress })
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

// take gives an address to a demand, or says why not.
func (a *allotter) take(d *demand, addr netip.Addr) refusal {
	if !a.Contain(addr) {
		return refusal{
			"AddressOutsidePools",
			fmt.Sprintf("%s is in none of the pools of the appliance (%s)", addr, a.Key()),
		}
	}
	// A record stays while the address is away from the machine for a moment.
	if a.lacks(addr) && !slices.Contains(d.had, addr) {
		return refusal{
			"AddressNotUsable",
			fmt.Sprintf("the appliance does not have %s: add it to an interface of that machine, or ask for another "+
				"address of %s", addr, a.Key()),
		}
	}
	if by := a.closed[addr]; by != "" {
		return refusal{"AddressInUse", fmt.Sprintf("%s is %s", addr, by)}
	}
	l := a.holds[addr]
	if l != nil && l.holder != d.holder {
		return refusal{
			"AddressInUse",
			fmt.Sprintf("%s is in use by %s %s/%s; two Services of one namespace may share it if both have the "+
				"annotation sallyport.dev/share-address with the same value", addr, l.first.Kind, l.first.Namespace,
				l.first.Name),
		}
	}
	if k, is := a.keptForOther(d, addr); is {
		return refusal{
			"AddressInUse",
			fmt.Sprintf("%s was an address of %s until %s, and is kept for its namespace until %s "+
				"(clusters[].ingress.releaseAfter)",
				addr, k.AddressOwner, k.Left.Format(time.RFC3339), k.until.Format(time.RFC3339)),
		}
	}
	if l == nil {
		if why := a.full(d, addr); why != "" {
			return refusal{"LimitReached", why}
		}
		l = &lease{holder: d.holder, first: d.ref, ports: make(map[uint16]string)}
	}
	for _, port := range d.ports {
		if by := l.ports[port]; by != "" {
			return refusal{
				"PortConflict",
				fmt.Sprintf("port %d of %s is in use by Service %s: Services that share an address need ports "+
					"of their own", port, addr, by),
			}
		}
	}
	for _, port := range d.ports {
		l.ports[port] = d.ref.Namespace + "/" + d.ref.Name
	}
	if a.holds[addr] == nil {
		a.holds[addr] = l
		has := a.counts[d.of]
		has[family(addr)]++
		a.counts[d.of] = has
	}
	return refusal{}
}

// choose finds an address for a demand that asks for no particular address. It prefers an address
// that its holder has already. Otherwise it starts at a place that the name of the holder
// determines, and takes the first free address.
func (a *allotter) choose(d *demand, six bool) (netip.Addr, refusal) {
	var ours []netip.Addr
	for addr, l := range a.holds {
		if addr.Is6() == six && l.holder == d.holder {
			ours = append(ours, addr)
		}
	}
	slices.SortFunc(ours, netip.Addr.Compare)
	for _, addr := range slices.Concat(ours, a.hadBefore(d, six)) {
		if a.take(d, addr) == (refusal{}) {
			return addr, refusal{}
		}
	}
	total, family := a.total(six), families[0]
	if six {
		family = families[1]
	}
	if total == 0 {
		return netip.Addr{}, refusal{
			noAddress,
			fmt.Sprintf("the pools of the appliance have no %s addresses%s", family, a.without()),
		}
	}
	sum := sha256.Sum256([]byte(family + "\x00" + d.holder))
	start := binary.BigEndian.Uint64(sum[:]) % total
	for i := range total {
		addr := a.place((start+i)%total, six)
		if _, kept := a.keptForOther(d, addr); kept || a.holds[addr] != nil || a.closed[addr] != "" {
			continue
		}
		if no := a.take(d, addr); no != (refusal{}) {
			return netip.Addr{}, no
		}
		return addr, refusal{}
	}
	use := "in use"
	if len(a.kept) > 0 {
		use = "in use, or kept for namespaces that had them"
	}
	return netip.Addr{}, refusal{
		noAddress,
		fmt.Sprintf("all %d %s addresses of the pools are %s (%s)", total, family, use, a.Key()),
	}
}

// place returns the address at a place among all of a family.
func (a *allotter) place(place uint64, six bool) netip.Addr {
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

// A keptAddress is an address that a Service or Gateway had, and that is kept for its namespace.
type keptAddress struct {
	AddressOwner
	of    tenant
	until time.Time // if zero, only the Service that was given it can have it
	given bool      // the round before gave it: the record of it may be under way
}

// keptForOther returns the owner that an address is kept for, if a demand cannot have it for this
// reason. A recorded address overrides this, and so does an earlier cluster.
func (a *allotter) keptForOther(d *demand, addr netip.Addr) (k keptAddress, is bool) {
	k, is = a.kept[addr]
	mine := d.of.world == k.of.world && d.owner == k.Namespace
	return k, is && !mine && !k.until.IsZero() && d.of.world >= k.of.world && !slices.Contains(d.had, addr)
}

// hadBefore returns the addresses of a family that are kept for the Service of a demand.
func (a *allotter) hadBefore(d *demand, six bool) (all []netip.Addr) {
	for addr, k := range a.kept {
		if addr.Is6() == six && k.of == d.of && k.Kind == ownerKind(d.ref.Kind) && k.Service == d.service() {
			all = append(all, addr)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// service returns the name of the demand's Service.
func (d *demand) service() string { return d.ref.Namespace + "/" + d.ref.Name }

// boundKept drops kept addresses of a namespace that are beyond its limit. It drops those that were
// left first. The addresses that the Services of the namespace ask for count before kept addresses;
// a Service that comes back takes the address that is kept for it. done reports for each demand, by
// family, whether its addresses are recorded again. A record that its Service can no longer use
// does not count.
func (a *allotter) boundKept(demands []demand, done [][2]bool) {
	type slot struct {
		of            tenant
		kind, service string
		family        int
	}
	wants, back := make(map[tenant][2]int), make(map[slot]bool)
	for i := range demands {
		d := &demands[i]
		has := wants[d.of]
		for family, asks := range [2]bool{d.four, d.six} {
			if asks {
				has[family]++
				at := slot{of: d.of, kind: ownerKind(d.ref.Kind), service: d.service(), family: family}
				back[at] = !done[i][family]
			}
		}
		wants[d.of] = has
	}
	all := slices.SortedFunc(maps.Keys(a.kept), func(x, y netip.Addr) int {
		return cmp.Or(a.kept[y].Left.Compare(a.kept[x].Left), x.Compare(y))
	})
	for _, addr := range all {
		k, f := a.kept[addr], family(addr)
		own := slot{of: k.of, kind: k.Kind, service: k.Service, family: f}
		if a.holds[addr] != nil || back[own] {
			delete(back, own)
			continue
		}
		has, most := wants[k.of], uint64(a.most(k.of)) //nolint:gosec // not negative
		count := uint64(has[0] + has[1])               //nolint:gosec // a count
		if most == 0 {
			count, most = uint64(has[f]), max(1, a.total(addr.Is6())/addressShare) //nolint:gosec // a count
		}
		if count >= most {
			delete(a.kept, addr)
			continue
		}
		has[f]++
		wants[k.of] = has
	}
}
