package status

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// WhyNoRoute returns why blocks of a node have no route in the kernel, a sentence each.
func (x *Index) WhyNoRoute(n *Node) (whys []string) {
	add := func(format string, args ...any) {
		if why := fmt.Sprintf(format, args...); len(whys) < WhysOfRow && !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
	}
	for _, b := range n.Blocks {
		if !b.Installed {
			add("%s", x.WhyNoRouteTo(n, b))
		}
	}
	return whys
}

// WhyNoRouteTo returns why a block has no route in the kernel. A block without a node stands for
// one address that no node owns.
func (x *Index) WhyNoRouteTo(n *Node, b *Block) string {
	p := b.Affinity.Prefix
	switch {
	case b.why != "":
		return b.why
	case b.Via.IsValid():
		return fmt.Sprintf("the route %s via %s is not in the kernel", p, b.Via)
	}
	var speakers []bgp.PeerState
	if n != nil {
		speakers = n.Peers
	}
	for _, s := range speakers {
		if !s.Up() && s.Addr.Is4() == p.Addr().Is4() {
			return SessionDown(s, x.View.At)
		}
	}
	for _, r := range x.View.BGP.Refusals {
		if o := r.Offer.Prefix; o == p || b.Affinity.Node == "" && o.Bits() > 0 && o.Contains(p.Addr()) {
			return fmt.Sprintf("the offer of %s by %s was refused: %s", r.Offer.Prefix, r.Offer.Peer, r.Why)
		}
	}
	for _, c := range x.View.Clusters {
		for _, pool := range c.Topology.Pools {
			if c.Name == b.Cluster && pool.NoExport && pool.CIDR.Contains(p.Addr()) {
				return fmt.Sprintf("no node announces its block, because IP pool %s (%s) has disableBGPExport: %s",
					pool.Name, pool.CIDR, ExportPool(c.Health.APIGroup, pool.Name))
			}
		}
	}
	for _, s := range speakers {
		if s.Up() && x.View.BGP.Withheld[s.Addr] > 0 {
			return fmt.Sprintf("node %s announces none of its blocks, although its BGP session is established: does "+
				"a BGPFilter reject them?", n.Name)
		}
	}
	if b.Affinity.State != "" && b.Affinity.State != "confirmed" {
		return fmt.Sprintf("node %s does not own %s yet: the BlockAffinity is %s", b.Affinity.Node, p, b.Affinity.State)
	}
	return "no BGP peer offers its block"
}

// SessionDown returns a sentence: since when a peer has had no session, how the last session ended,
// and a remedy.
func SessionDown(s bgp.PeerState, now time.Time) string {
	why := fmt.Sprintf("there is no BGP session with %s (%s)", Whose(s.Peer), s.Addr)
	how := ended(s)
	if how == "" {
		return why + "; there has been none yet"
	}
	if !s.LastLoss.At.IsZero() {
		why += " for " + Ago(now, s.LastLoss.At)
	}
	return why + "; " + how
}

// WhyNoSession returns why a node has no BGP session, a sentence for each of its addresses.
func (x *Index) WhyNoSession(n *Node) (whys []string) {
	for _, p := range n.Peers {
		if !p.Up() {
			whys = append(whys, SessionDown(p, x.View.At))
		}
	}
	return whys
}

// Whose returns the kind of a peer in words, with the name of its node.
func Whose(p bgp.Peer) string {
	switch {
	case p.Upstream:
		return "the router"
	case p.Node == "":
		return "a route reflector"
	}
	return "node " + p.Node
}

// Why returns why a server is not open, or why it fails its check. It returns "" if the server
// serves.
func (x *Index) Why(s Server) string {
	switch {
	case s.Want == nil:
		return "endpoint is gone; deleted once its last connection ends"
	case s.Live != nil && s.State == haproxy.Open:
		return whyDown(s.Live.Failure)
	}
	b, a := x.Backends[s.Backend].want, s.Addr().Addr()
	if why := x.View.Want.Allocations.Refuse(b.Cluster, b.Namespace, s.Addr()); why != "" {
		return why
	}
	if step, is := x.planned[haproxy.ServerID{Backend: b.Name, Server: s.Want.Name}]; is && step.State < haproxy.Open &&
		step.Why != plan.NoRoute {
		return step.Why
	}
	if s.Want.Drain {
		return "endpoint is terminating"
	}
	p, via, routed := x.match(a)
	switch {
	case !routed && !x.View.Have.Direct[a]:
		block := s.Block
		if block == nil { // of no node
			block = &Block{Cluster: b.Cluster, Affinity: routes.Affinity{Prefix: netip.PrefixFrom(a, a.BitLen())}}
		}
		return fmt.Sprintf("no route to %s: %s", a, x.WhyNoRouteTo(s.Node, block))
	case x.View.Have.Routes[p] != via:
		return fmt.Sprintf("the route %s via %s is not in the kernel", p, via)
	case s.State == haproxy.Absent:
		return "its backend is not in HAProxy yet"
	}
	return "being opened"
}

// whyDown returns in one sentence how the check of a server failed, by the name that
// HAProxy's statistics have for it.
func whyDown(failure string) string {
	switch failure {
	case "":
		return ""
	case "L4TOUT":
		return "the check gets no answer from the pod (L4TOUT): look for a NetworkPolicy or a firewall that does not " +
			"admit the appliance: kubectl get networkpolicies -A"
	case "L4CON":
		return "the pod refuses connections to this port, or cannot be reached (L4CON)"
	case "HANA":
		return "requests failed one after another (HANA)"
	}
	return "the pod answers the check wrongly or too late (" + failure + ")"
}

// WhysOfRow bounds the different reasons of a node.
const WhysOfRow = 3

// Ago returns the time since t in words, coarse enough that a page does not change each
// second. It returns "" for the zero time.
func Ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Lasting(now.Sub(t))
}

// Lasting returns a duration in words, by its largest unit.
func Lasting(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds())/10*10)
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
