package routes

import (
	"maps"
	"net/netip"
	"slices"
)

// An Overlap is a network of a cluster that has addresses in common with a network of another
// cluster.
type Overlap struct {
	First, Second string       // the clusters; the addresses in common belong to First
	Of, Network   netip.Prefix // the network of First, and that of Second
}

// Overlaps returns the networks that clusters have in common. The networks of a cluster are its bounds
// in our configuration. Without bounds they are those of its records. First is the cluster that
// outranks the other in Verify. Clusters with different sources have nothing in common, and neither has a cluster
// whose source the machine lacks.
func Overlaps(topologies []Topology, local Local) (all []Overlap) {
	w := survey(Facts{Topologies: topologies, Local: local})
	for _, t := range byRank(topologies) {
		c := w.clusters[t.Cluster]
		if !c.sourced {
			continue
		}
		for _, p := range slices.SortedFunc(maps.Keys(c.territory()), netip.Prefix.Compare) {
			if q, first, found := c.foreign.overlapping(p); found {
				all = append(all, Overlap{First: first, Second: t.Cluster, Of: q, Network: p})
			}
		}
	}
	return all
}
