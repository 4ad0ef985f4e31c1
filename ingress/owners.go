package ingress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

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
