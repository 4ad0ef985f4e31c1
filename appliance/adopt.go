package appliance

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"sallyport/appliance/picture"
	"sallyport/bgp"
	"sallyport/routes"
)

// An adoption holds the state that this process has taken over from the process before. The
// goroutine of the loop owns it.
type adoption struct {
	adopted  routes.Table        // found in the kernel at the start, until their peers have spoken
	fresh    bool                // HAProxy served nothing when this process began
	caughtUp bool                // this process knows everything that the process before may have served: see behind
	heard    map[netip.Addr]bool // peers that have sent all their routes since the start
}

// adopt remembers the routes that an earlier process of ours left in the kernel.
func (l *loop) adopt(found routes.Table) {
	l.adopted = maps.Clone(found)
	if l.adopted == nil {
		l.adopted = routes.Table{}
	}
	if len(found) > 0 {
		l.log.Info("adopted the routes found in the kernel", "routes", len(found))
	}
}

// overtaken bounds how long a process that finds HAProxy serving waits for the API before it acts
// on a picture. The process before may have served changes for a picture.Interval before it saved
// them.
const overtaken = 2 * picture.Interval

// behind reports whether the process before may have served an object that this process does not
// know yet. A picture is older than the crash, and an object may wait for a verdict. Meanwhile
// nothing that is served is removed. sure is false while an object waits for a verdict.
func (l *loop) behind(now time.Time, sure bool) bool {
	live := !slices.ContainsFunc(l.clusters, func(c *cluster) bool { return !c.live && !c.gone })
	l.caughtUp = l.caughtUp || live && sure || now.Sub(l.started) >= overtaken
	return !l.caughtUp
}

// reflection returns the BGP addresses of the nodes of a cluster that do not peer with
// us, and those of the cluster's route reflectors.
func reflection(t routes.Topology) (behind, reflectors []netip.Addr) {
	reflectors = slices.Clone(t.Reflectors)
	for _, n := range t.Nodes {
		for _, a := range n.BGP {
			switch {
			case n.Behind:
				behind = append(behind, a.Addr())
			case n.Reflector:
				reflectors = append(reflectors, a.Addr())
			}
		}
	}
	return behind, reflectors
}

// ownerOf returns the node that has a BGP address, and its cluster. If several clusters claim the address, it
// belongs to the first of them in the configuration, as the session does (peers).
func ownerOf(addr netip.Addr, topologies []routes.Topology) (cluster string, node routes.Node) {
	for _, t := range topologies {
		for _, n := range t.Nodes {
			if slices.ContainsFunc(n.BGP, func(p netip.Prefix) bool { return p.Addr() == addr }) {
				return t.Cluster, n
			}
		}
	}
	return "", routes.Node{}
}

// adoptedOffers returns an offer for each adopted route, as if the session of the route had closed
// when this process started. Verify applies the same rules and the same retention time to these
// offers as to any other offer. Once a peer has sent all its own offers (End-of-RIB), they replace
// the adopted offers. For a node that does not peer with us, the End-of-RIB of all route reflectors
// counts.
func (l *loop) adoptedOffers(topologies []routes.Topology, peers []bgp.PeerState) (offers []routes.Offer) {
	for _, p := range peers {
		if p.EndOfRIB {
			l.heard[p.Addr] = true
		}
	}
	for _, t := range topologies {
		behind, reflectors := reflection(t)
		if len(reflectors) > 0 && !slices.ContainsFunc(reflectors, func(a netip.Addr) bool { return !l.heard[a] }) {
			for _, a := range behind {
				l.heard[a] = true
			}
		}
	}
	lapsed := l.now().Sub(l.started) > max(l.cfg.BGP.Retain, l.cfg.BGP.FailStatic)
	for to, via := range l.adopted {
		if l.heard[via] || lapsed {
			delete(l.adopted, to)
			continue
		}
		offer := routes.Offer{
			Peer: via, Prefix: to.To, NextHop: via,
			Lost: routes.Loss{Cause: routes.Closed, At: l.started},
		}
		var node routes.Node
		offer.Cluster, node = ownerOf(via, topologies)
		if offer.PeerAS = node.ASN; node.ASN != l.cfg.ASNTowards(offer.Cluster) {
			offer.ASPath = []uint32{node.ASN}
		}
		offers = append(offers, offer)
	}
	return offers
}
