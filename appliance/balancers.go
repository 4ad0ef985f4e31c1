package appliance

import (
	"net/netip"
	"slices"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// within returns the addresses that are in one of the pools, once, in order.
func within(pools []config.Pool, all []netip.Addr) []netip.Addr {
	return once(slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool {
		return !slices.ContainsFunc(pools, func(p config.Pool) bool { return p.Contains(a) })
	}), netip.Addr.Compare)
}

// withoutPools returns a group without the settings that only its Services need.
func withoutPools(g config.Group) config.Group {
	g.Pools, g.DefaultLoadBalancer = nil, false
	return g
}

// uses returns the addresses of the pools that a node or another machine has. On lo such an address
// would cut the node off from this machine. If several clusters claim an address, the first counts.
func uses(
	pools []config.Pool, topologies []routes.Topology, strangers map[netip.Addr]string,
) map[netip.Addr]input.Use {
	var all map[netip.Addr]input.Use
	add := func(a netip.Addr, cluster int, by string) {
		_, known := all[a]
		if known || !slices.ContainsFunc(pools, func(p config.Pool) bool { return p.Contains(a) }) {
			return
		}
		if all == nil {
			all = make(map[netip.Addr]input.Use)
		}
		all[a] = input.Use{By: by, Cluster: cluster}
	}
	if len(pools) == 0 {
		return nil
	}
	for a, owner := range strangers {
		add(a, 0, owner)
	}
	for i, t := range topologies {
		for _, n := range t.Nodes {
			for _, a := range n.All() {
				add(a, i, "an address of node "+n.Name)
			}
		}
		for _, at := range slices.Concat(t.Protected, t.Endpoints) {
			add(at.Addr(), i, "an address of the API server of cluster "+t.Cluster)
		}
	}
	return all
}

// recorded returns the addresses that Services of type LoadBalancer have.
func recorded(balancers []ingress.Balancer) (all []netip.Addr) {
	for _, b := range balancers {
		all = append(all, b.Recorded...)
	}
	return once(all, netip.Addr.Compare)
}

// allotted returns the addresses that Services of type LoadBalancer have, or are to have.
func allotted(balancers []ingress.Balancer) (all []netip.Addr) {
	for _, b := range balancers {
		all = append(all, b.Addresses...)
	}
	return once(all, netip.Addr.Compare)
}

// known returns a Result with the addresses that belong into the statuses of Services and Gateways
// now: the allotted addresses that this member may take, and those that the status has already.
// Another address waits until it turns out that no other machine has it.
func (ms *membership) known(r ingress.Result) ingress.Result {
	if ms.member == nil {
		return r
	}
	taken := ms.member.claims.taken
	balancers := slices.Clone(r.Balancers)
	for i, b := range balancers {
		balancers[i].Addresses = slices.DeleteFunc(slices.Clone(b.Addresses), func(a netip.Addr) bool {
			return !taken[a] && !slices.Contains(b.Recorded, a)
		})
	}
	return r.WithBalancers(balancers)
}

// consent says which statuses in the clusters this appliance may write.
type consent struct{ add, replace bool }

// consent returns what this appliance may write. A member of a group adds to statuses while it is
// full. One full member alone writes over a status, or removes it: the first of the list that does
// not drain. Other members remove nothing, even if their files or their knowledge differ.
func (ms *membership) consent() consent {
	if ms.member == nil {
		return consent{true, true}
	}
	if ms.fit.Class != group.Full {
		return consent{}
	}
	return consent{true, ms.drains.get() == nil && ms.member.writes()}
}

// writes reports whether no member before this one in the list is alive, full and stays.
func (m *member) writes() bool {
	heard := m.pulse.Heard()
	for _, of := range m.of.Members {
		if of.Name == m.self {
			return true
		}
		if slices.ContainsFunc(heard, func(h group.Heard) bool {
			return h.Member.Name == of.Name && h.Alive && h.Word.Class == group.Full && !h.Word.Draining
		}) {
			return false
		}
	}
	return true
}

// sumOfClaims returns a sum of the statuses that a Result puts into the clusters.
func sumOfClaims(r ingress.Result) string {
	balancers := make([]any, 0, len(r.Balancers))
	for _, b := range r.Balancers {
		balancers = append(balancers, []any{b.ObjectRef, b.Addresses})
	}
	return digest([]any{r.Served, balancers})
}
