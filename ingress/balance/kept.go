package balance

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/ingress/allot"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// keptAddresses returns the addresses that Services had when they were remembered. If two clusters
// had an address, the cluster that is configured first has it. If ReleaseAfter is 0, it returns
// only the addresses that the round before gave, each with a zero until.
func (g *giver) keptAddresses(pools input.Pools) map[netip.Addr]allot.Kept {
	all, now := make(map[netip.Addr]allot.Kept), g.Now
	for i, w := range g.Worlds {
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

// remember adds to the Outcome who has each address, and who had it.
func (g *giver) remember() {
	g.Owners = make(map[string]map[netip.Addr]input.AddressOwner)
	note := func(cluster string, addr netip.Addr, who input.AddressOwner) {
		if g.Owners[cluster] == nil {
			g.Owners[cluster] = make(map[netip.Addr]input.AddressOwner)
		}
		g.Owners[cluster][addr] = who
	}
	recorded := make(map[netip.Addr]bool)
	for _, one := range g.Balancers {
		for _, addr := range one.Addresses {
			if !recorded[addr] {
				recorded[addr] = true
				first := g.allotter.First(addr)
				own := func(w *input.Snapshot) bool { return w.Cluster == first.Cluster }
				w := g.Worlds[slices.IndexFunc(g.Worlds, own)]
				note(w.Cluster, addr, input.AddressOwner{
					Namespace: w.Options.Owner(first.Namespace), Kind: allot.OwnerKind(first.Kind),
					Service: first.Namespace + "/" + first.Name,
				})
			}
		}
	}
	for addr, k := range g.allotter.Kept {
		if !recorded[addr] {
			note(g.Worlds[k.Of.Cluster].Cluster, addr, k.AddressOwner)
			g.Keeps = g.Keeps.Both(claims.Period{Since: k.Left, Until: k.Until})
		}
	}
}

// reportKept reports each kept address that another Service or Gateway asks for, on the
// oldest one of its namespace. Allot reports it on the one that asks.
func (g *giver) reportKept(all []balancer) {
	for i := range all {
		for _, addr := range all[i].Asked {
			k, kept := g.allotter.KeptForOther(&all[i].Demand, addr)
			if !kept || g.allotter.Gave(addr) {
				continue
			}
			own := func(o balancer) bool { return o.Of.Cluster == k.Of.Cluster && o.Owner == k.Namespace }
			if j := slices.IndexFunc(all, own); j >= 0 {
				g.report(all[j].Petitioner.Ref, "AddressKept",
					"%s, which %s had, is kept for its namespace until %s (clusters[].ingress.releaseAfter); "+
						"then it goes to %s %s, which asks for it",
					addr, k.AddressOwner, k.Until.Format(time.RFC3339), all[i].Petitioner.Ref.Kind,
					all[i].Petitioner.Ref.Namespace+"/"+all[i].Petitioner.Ref.Name)
			}
		}
	}
}
