package ingress

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/ingress/allot"
	"sallyport/ingress/input"
)

// What is remembered of owners
//
// Compile gets the Owners of each cluster with its Snapshot, and returns those for the next one.
// They decide on three things, and on nothing else:
//
//   - of two namespaces that name a host, the one that had it keeps it (assignHosts);
//   - a host is kept for its namespace for a time after the namespace stops naming it (keep):
//     otherwise another namespace could take the host while its owner replaces an object;
//   - an address of a Service is kept for its namespace in the same way (package allot).
//
// A memory never overrides a cluster that is configured earlier, so it does not matter when a
// cluster became known. An entry of Options.Hosts overrides every memory.

// leaving returns since when something is left: as remembered, or since now. A time in the
// future is the mistake of a clock.
func leaving(remembered, now time.Time) time.Time {
	if remembered.IsZero() || remembered.After(now) {
		return now.Truncate(time.Second).UTC()
	}
	return remembered
}

// now returns the newest time of all worlds. The time of a cluster that is known only by its picture
// stands still.
func (c *Compiler) now() (now time.Time) {
	for _, w := range c.worlds {
		now = latest(now, w.At)
	}
	return now
}

// had reports whether a party had a host.
func (w *world) had(host string, who party) bool {
	if w.Owners == nil || who == listed {
		return false
	}
	namespace, known := w.Owners.Namespaces[host]
	return known && namespace == who.namespace
}

// A keptHost is a host that its last owner names no more.
type keptHost struct {
	host string
	hold
}

// keep holds each host that nothing of its last owner names any more, until it is released. A claim
// of an earlier cluster overrides that. The hosts that a namespace names and those kept for it count
// together for its limit of hosts. Of the kept ones, those that were left first go first.
func (b *builder) keep() {
	now := b.now()
	for i, w := range b.worlds {
		if w.Owners == nil || w.Options.ReleaseAfter <= 0 || now.IsZero() {
			continue
		}
		var all []keptHost
		for host, namespace := range b.remembered(w.Owners) {
			who, err := b.partyOf(i, namespace, host)
			if err != nil || who == listed || who.namespace != namespace ||
				namespace == input.Everyone && !w.Options.OneTenant {
				continue // the configuration file has changed
			}
			if held, taken := b.holds[host]; taken && (held.party == who || held.party == listed || held.world < i) {
				continue
			}
			left := leaving(w.Owners.Left[host], now)
			if until := w.Options.Release(left); now.Before(until) {
				all = append(all, keptHost{
					host,
					hold{party: who, world: i, since: len(b.claims), left: left, until: until},
				})
			}
		}
		if most := w.Options.Limits.Hosts; most > 0 && len(all) > 0 && b.about == nil {
			kept := b.within(all, most)
			b.limited = b.limited || len(kept) < len(all) // a part that is routed alone has no such limit
			all = kept
		}
		for _, k := range all {
			b.holds[k.host] = k.hold
			b.keeps = b.keeps.both(period{k.left, k.until})
			b.kept = append(b.kept, k)
		}
	}
	slices.SortFunc(b.kept, func(x, y keptHost) int { return cmp.Compare(x.host, y.host) })
	b.reportKept()
}

// remembered yields the hosts of Owners that this routing is about.
func (b *builder) remembered(o *Owners) iter.Seq2[string, string] {
	if b.about == nil {
		return maps.All(o.Namespaces)
	}
	return func(yield func(string, string) bool) {
		for host := range b.about.hosts {
			if namespace, known := o.Namespaces[host]; known && !yield(host, namespace) {
				return
			}
		}
	}
}

// within drops the hosts beyond the limit of each namespace. Those that were left first go first.
func (b *builder) within(all []keptHost, most int) []keptHost {
	has := make(map[party]int)
	for _, h := range b.holds {
		has[h.party]++
	}
	slices.SortFunc(all, func(x, y keptHost) int { return cmp.Or(y.left.Compare(x.left), cmp.Compare(x.host, y.host)) })
	return slices.DeleteFunc(all, func(k keptHost) bool {
		has[k.party]++
		return has[k.party] > most
	})
}

// reportKept reports each kept host that another party waits for, on the oldest claim of its owner.
// withdraw reports it on the claims that wait.
func (b *builder) reportKept() {
	if len(b.kept) == 0 {
		return
	}
	first := make(map[party]*claim)    // of each namespace
	waiting := make(map[string]*claim) // by host
	for _, c := range b.claims {
		who := b.worlds[c.World].partyIn(c.Ref.Namespace)
		if first[who] == nil {
			first[who] = c
		}
		for _, host := range c.Names {
			if h, held := b.holds[host]; held && h.isKept() && waiting[host] == nil {
				waiting[host] = c
			}
		}
	}
	for _, k := range b.kept {
		c := waiting[k.host]
		if c == nil {
			continue
		}
		b.limited = true // a change of others would change what is reported here
		if owner := first[k.party]; owner != nil {
			b.report(owner, "HostKept",
				"%s, which nothing of %s names any more, is kept for it until %s (clusters[].ingress.releaseAfter); "+
					"then it goes to %s, which waits for it",
				cmp.Or(k.host, "any host"), b.spellParty(k.party), k.until.Format(time.RFC3339), b.spell(c))
		}
	}
}

// remember sets the Owners of the result. Those that are equal to the ones before keep their
// pointer.
func (b *builder) remember() {
	b.Owners = make(map[string]*Owners, len(b.worlds))
	for _, w := range b.worlds {
		b.Owners[w.Cluster] = &Owners{Namespaces: make(map[string]string)}
	}
	for host, h := range b.holds {
		if h.party == listed {
			continue
		}
		o := b.Owners[b.worlds[h.world].Cluster]
		o.Namespaces[host] = h.namespace
		if h.isKept() {
			if o.Left == nil {
				o.Left = make(map[string]time.Time)
			}
			o.Left[host] = h.left
		}
	}
	// Each cluster of a set remembers the hosts that it names, so that it goes on with them when the
	// first cluster leaves the configuration file.
	for _, c := range b.claims {
		w := b.worlds[c.World]
		if w.Options.Set == "" {
			continue
		}
		for _, host := range c.Names {
			if h := b.holds[host]; h.set != "" && !h.isKept() && h.party == w.partyIn(c.Ref.Namespace) {
				b.Owners[w.Cluster].Namespaces[host] = h.namespace
			}
		}
	}
}

// owner returns how Owners name the owner of a thing of a namespace.
func (w *world) owner(namespace string) string {
	if w.Options.OneTenant {
		return input.Everyone
	}
	return namespace
}

// keptAddresses returns the addresses that Services had when they were remembered. If two clusters
// had an address, the cluster that is configured first has it. If ReleaseAfter is 0, it returns
// only the addresses that the round before gave, each with a zero until.
func (b *builder) keptAddresses(pools Pools) map[netip.Addr]allot.Kept {
	all, now := make(map[netip.Addr]allot.Kept), b.now()
	for i, w := range b.worlds {
		if w.Owners == nil || now.IsZero() {
			continue
		}
		for addr, was := range w.Owners.Addresses {
			namespace, _, _ := strings.Cut(was.Service, "/")
			if _, taken := all[addr]; taken || !pools.Contain(addr) || was.Namespace != w.owner(namespace) {
				continue
			}
			given := was.Left.IsZero()
			was.Left = leaving(was.Left, now)
			var until time.Time
			if w.Options.ReleaseAfter > 0 {
				until = w.Options.Release(was.Left)
			}
			if given || now.Before(until) {
				all[addr] = allot.Kept{
					AddressOwner: was, Of: allot.Tenant{Cluster: i, Namespace: namespace}, Until: until, Given: given,
				}
			}
		}
	}
	return all
}

// rememberAddresses adds to the Owners of the result who has each address, and who had it.
func (b *builder) rememberAddresses(a *allot.Allotter) {
	note := func(cluster string, addr netip.Addr, who AddressOwner) {
		o := b.Owners[cluster]
		if o.Addresses == nil {
			o.Addresses = make(map[netip.Addr]AddressOwner)
		}
		o.Addresses[addr] = who
	}
	recorded := make(map[netip.Addr]bool)
	for _, one := range b.Balancers {
		for _, addr := range one.Addresses {
			if !recorded[addr] {
				recorded[addr] = true
				first := a.First(addr)
				w := b.worlds[slices.IndexFunc(b.worlds, func(w *world) bool { return w.Cluster == first.Cluster })]
				note(w.Cluster, addr, AddressOwner{
					Namespace: w.owner(first.Namespace), Kind: allot.OwnerKind(first.Kind),
					Service: first.Namespace + "/" + first.Name,
				})
			}
		}
	}
	for addr, k := range a.Kept {
		if !recorded[addr] {
			note(b.worlds[k.Of.Cluster].Cluster, addr, k.AddressOwner)
			b.keeps = b.keeps.both(period{k.Left, k.Until})
		}
	}
}

// reportKeptAddresses reports each kept address that another Service or Gateway asks for, on the
// oldest one of its namespace. Allot reports it on the one that asks.
func (b *builder) reportKeptAddresses(all []balancer, a *allot.Allotter) {
	for i := range all {
		for _, addr := range all[i].Asked {
			k, kept := a.KeptForOther(&all[i].Demand, addr)
			if !kept || a.Gave(addr) {
				continue
			}
			own := func(o balancer) bool { return o.Of.Cluster == k.Of.Cluster && o.Owner == k.Namespace }
			if j := slices.IndexFunc(all, own); j >= 0 {
				b.reportOn(all[j].petitioner.Ref, "AddressKept",
					"%s, which %s had, is kept for its namespace until %s (clusters[].ingress.releaseAfter); "+
						"then it goes to %s %s, which asks for it",
					addr, k.AddressOwner, k.Until.Format(time.RFC3339), all[i].petitioner.Ref.Kind,
					all[i].petitioner.Ref.Namespace+"/"+all[i].petitioner.Ref.Name)
			}
		}
	}
}

// settleOwners lets Owners that are equal to the ones before keep their pointer.
func (b *builder) settleOwners() {
	for _, w := range b.worlds {
		if b.Owners[w.Cluster].Equal(w.Owners) {
			b.Owners[w.Cluster] = w.Owners
		}
	}
}

// A Kept is a host, or an address, that is kept for the namespace that had it last.
type Kept struct {
	Cluster   string     `json:"cluster"`
	Namespace string     `json:"namespace"` // "*" is all namespaces of a cluster that trusts them
	Host      string     `json:"host,omitempty"`
	Address   netip.Addr `json:"address,omitzero"`
	Until     time.Time  `json:"until"`
}

// Kept returns the hosts and addresses that are kept for namespaces that no longer use them.
func (r Result) Kept() (all []Kept) {
	if r.routing == nil {
		return nil
	}
	for _, w := range r.routing.of {
		o := r.Owners[w.Cluster]
		if o == nil {
			continue
		}
		for _, host := range sortedKeys(o.Left) {
			all = append(all, Kept{
				Cluster: w.Cluster, Namespace: o.Namespaces[host], Host: cmp.Or(host, "*"),
				Until: w.Options.Release(o.Left[host]),
			})
		}
		for _, addr := range slices.SortedFunc(maps.Keys(o.Addresses), netip.Addr.Compare) {
			if is := o.Addresses[addr]; !is.Left.IsZero() {
				all = append(all, Kept{
					Cluster: w.Cluster, Namespace: is.Namespace, Address: addr,
					Until: w.Options.Release(is.Left),
				})
			}
		}
	}
	return all
}

// Memory returns the facts about owners in some clusters that cannot be decided from the objects.
func (r Result) Memory(clusters []string) input.Memory {
	m := input.Memory{Clusters: make(map[string]*Owners)}
	if r.routing == nil {
		return m
	}
	first := make([]map[string]bool, len(r.routing.of)) // by world: the hosts with a claim seen so far
	for i, w := range r.routing.of {
		first[i] = make(map[string]bool)
		o := r.Owners[w.Cluster]
		if o == nil || !slices.Contains(clusters, w.Cluster) {
			continue
		}
		known := &Owners{
			Namespaces: make(map[string]string), Left: maps.Clone(o.Left),
			Addresses: maps.Clone(o.Addresses),
		}
		for host := range o.Left {
			known.Namespaces[host] = o.Namespaces[host]
		}
		m.Clusters[w.Cluster] = known
	}
	for _, c := range r.routing.claims {
		w := r.routing.of[c.World]
		known := m.Clusters[w.Cluster]
		if known == nil {
			continue
		}
		for _, host := range c.Names {
			if first[c.World][host] {
				continue
			}
			first[c.World][host] = true
			if owner, has := r.Owners[w.Cluster].Namespaces[host]; has && owner != w.owner(c.Ref.Namespace) {
				known.Namespaces[host] = owner
			}
		}
	}
	for _, b := range r.Balancers {
		if known := m.Clusters[b.Cluster]; known != nil {
			for _, addr := range b.Recorded {
				delete(known.Addresses, addr)
			}
		}
	}
	return m
}
