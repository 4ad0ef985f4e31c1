package ingress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/ingress/allot"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// What is remembered of owners
//
// Compile gets the Owners of each cluster with its Snapshot, and returns those for the next one.
// They decide who has a host (package owners), and that an address of a Service is kept for its
// namespace after the namespace stops asking for it (package allot).

// now returns the newest time of all worlds. The time of a cluster that is known only by its picture
// stands still.
func (c *Compiler) now() (now time.Time) {
	for _, w := range c.worlds {
		if w.At.After(now) {
			now = w.At
		}
	}
	return now
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
			if _, taken := all[addr]; taken || !pools.Contain(addr) || was.Namespace != w.Options.Owner(namespace) {
				continue
			}
			given := was.Left.IsZero()
			was.Left = input.Leaving(was.Left, now)
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
					Namespace: w.Options.Owner(first.Namespace), Kind: allot.OwnerKind(first.Kind),
					Service: first.Namespace + "/" + first.Name,
				})
			}
		}
	}
	for addr, k := range a.Kept {
		if !recorded[addr] {
			note(b.worlds[k.Of.Cluster].Cluster, addr, k.AddressOwner)
			b.keeps = b.keeps.Both(claims.Period{Since: k.Left, Until: k.Until})
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
			if owner, has := r.Owners[w.Cluster].Namespaces[host]; has && owner != w.Options.Owner(c.Ref.Namespace) {
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
