package routes

import (
	"net/netip"
	"slices"
)

// SourceOf returns the address of the machine from which it connects to the pods of a cluster with this source. It is
// zero for a cluster without a source, and ok is false if the machine does not have such an address.
func (l Local) SourceOf(t Topology) (source netip.Addr, ok bool) {
	if !t.Source.IsValid() {
		return netip.Addr{}, true
	}
	among := l.Primary
	if t.Source.IsSingleIP() {
		among = l.Addrs
	}
	i := slices.IndexFunc(among, t.Source.Contains)
	if i < 0 {
		return netip.Addr{}, false
	}
	return among[i], true
}

// Rules returns the rules that clusters with a source need: one for each network of their pods.
func Rules(topologies []Topology, local Local) map[Selector]bool {
	all := map[Selector]bool{}
	for _, t := range topologies {
		source, ok := local.SourceOf(t)
		if !ok || !source.IsValid() {
			continue
		}
		for _, p := range t.Bounds {
			all[Selector{From: source, To: p.Masked()}] = true
		}
	}
	return all
}

// claims map the networks of clusters, with the source of the packets to their pods, to the name of the cluster that
// has them.
type claims map[Selector]string

// add gives a network to a cluster, if no other cluster has it.
func (c *claims) add(source netip.Addr, p netip.Prefix, cluster string) {
	if *c == nil {
		*c = claims{}
	}
	if _, taken := (*c)[Selector{From: source, To: p}]; !taken {
		(*c)[Selector{From: source, To: p}] = cluster
	}
}

// of returns the networks that a cluster with a source has to keep out of. Two clusters may have the same
// addresses if each has a source of its own: then no packet for one of them takes a route of the other.
func (c claims) of(source netip.Addr) index[string] {
	at := map[netip.Prefix]string{}
	for s, cluster := range c {
		if s.From == source || !s.From.IsValid() || !source.IsValid() {
			at[s.To] = cluster
		}
	}
	return newIndex(at)
}
