package routes

import (
	"net/netip"
	"slices"
)

// SourceOf returns the address from which the machine connects to the pods of a cluster, by Topology.Source. It returns
// the zero address for a cluster without a source. It returns false if the machine lacks the address.
func (l Local) SourceOf(network netip.Prefix) (source netip.Addr, ok bool) {
	if !network.IsValid() {
		return netip.Addr{}, true
	}
	among := l.Primary
	if network.IsSingleIP() {
		among = l.Addrs
	}
	i := slices.IndexFunc(among, network.Contains)
	if i < 0 {
		return netip.Addr{}, false
	}
	return among[i], true
}

// Rules returns the rules that clusters with a source need: one for each network of their pods.
func Rules(topologies []Topology, local Local) map[Selector]bool {
	all := map[Selector]bool{}
	for _, t := range topologies {
		source, ok := local.SourceOf(t.Source)
		if !ok || !source.IsValid() {
			continue
		}
		for _, p := range t.Bounds {
			all[Selector{From: source, To: p.Masked()}] = true
		}
	}
	return all
}

// claims are the networks that clusters have. Those of a cluster come before those of the clusters that it outranks.
type claims []claimed

// A claimed is a network of a cluster, with the source of the packets to the cluster's pods.
type claimed struct {
	Selector
	cluster string
}

// of returns the networks that a cluster with a source has to keep out of, with the first cluster that has each. Two
// clusters may have the same addresses if each has a source of its own: then no packet for one of them takes a route
// of the other.
func (c claims) of(source netip.Addr) index[string] {
	at := map[netip.Prefix]string{}
	for _, one := range c {
		_, taken := at[one.To]
		if !taken && (one.From == source || !one.From.IsValid() || !source.IsValid()) {
			at[one.To] = one.cluster
		}
	}
	return newIndex(at)
}
