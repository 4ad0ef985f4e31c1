package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// A Why is a reason for which a server takes no traffic, or a block has no route. The zero Why is no
// reason.
type Why struct {
	Code   Code   // one of Reasons
	Detail string // what the code leaves open, as Reasons says; "" for most codes
	Short  string // in words, with the address of the server where that matters
	Rest   string // in words, without that address: a table shows it once for several servers
	// Unrouted reports that no route leads to the server. The row of its node says why, too.
	Unrouted bool
}

// String returns the reason in one sentence.
func (w Why) String() string {
	if w.Rest == "" {
		return w.Short
	}
	return w.Short + ": " + w.Rest
}

// Kind returns the reason without the words that differ between servers.
func (w Why) Kind() Why { return Why{Code: w.Code, Detail: w.Detail, Rest: w.Rest} }

// WhyPath returns the faults of the path over a node, a sentence each: of its routes or else of its
// sessions, and then of its servers. Reasons of the same kind count as one.
func (x *Index) WhyPath(n *Node) (whys []string) {
	unrouted := n.Routes().Level.Fault()
	if unrouted {
		whys = x.WhyNoRoute(n)
	} else {
		whys = x.WhyNoSession(n)
	}
	seen := map[Why]bool{}
	for _, i := range n.Broken {
		s := x.Servers[i]
		why := x.Why(s)
		kind := why.Kind()
		if kind == (Why{}) || s.Level() != Failed || seen[kind] || unrouted && why.Unrouted {
			continue
		}
		seen[kind] = true
		if len(whys) < WhysOfRow {
			whys = append(whys, fmt.Sprintf("%s: %s", cmp.Or(s.Pod(), s.Addr().String()), why))
		}
	}
	return whys
}

// WhyBackend returns the first reason why a server of a backend does not serve.
func (x *Index) WhyBackend(b Backend) Why {
	if b.Counts.All == 0 {
		return Why{Short: "its Service has no endpoint that is ready"}
	}
	if !b.Level().Fault() {
		return Why{}
	}
	for _, s := range x.Servers[b.From : b.From+b.N] {
		if s.Level() == Failed {
			return x.Why(s)
		}
	}
	return Why{}
}

// WhyNoRoute returns why blocks of a node have no route in the kernel, a sentence each.
func (x *Index) WhyNoRoute(n *Node) (whys []string) {
	for _, b := range n.Blocks {
		if b.Installed {
			continue
		}
		if why := x.WhyNoRouteTo(n, b).String(); len(whys) < WhysOfRow && !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
	}
	return whys
}

// WhyNoRouteTo returns why a block has no route in the kernel. A block without a node stands for
// one address that no node owns.
func (x *Index) WhyNoRouteTo(n *Node, b *Block) Why {
	why := func(code Code, detail, format string, args ...any) Why {
		return Why{Code: code, Detail: detail, Short: fmt.Sprintf(format, args...)}
	}
	p := b.Affinity.Prefix
	switch {
	case b.why != "":
		return why(RouteNotFollowed, "", "%s", b.why)
	case b.Via.IsValid():
		return why(RouteMissing, "", "the route %s via %s is not in the kernel", p, b.Via)
	}
	var speakers []bgp.PeerState
	if n != nil {
		speakers = n.Peers
	}
	for _, s := range speakers {
		if !s.Up() && s.Addr.Is4() == p.Addr().Is4() {
			return why(NoSession, string(s.LossCode), "%s", SessionDown(s, x.View.At))
		}
	}
	for _, r := range x.View.BGP.Refusals {
		if o := r.Offer.Prefix; o == p || b.Affinity.Node == "" && o.Bits() > 0 && o.Contains(p.Addr()) {
			return why(OfferRefused, string(r.Reason), "the offer of %s by %s was refused: %s", r.Offer.Prefix,
				r.Offer.Peer, r.Why)
		}
	}
	for _, c := range x.View.Clusters {
		for _, pool := range c.Topology.Pools {
			if c.Name == b.Cluster && pool.NoExport && pool.CIDR.Contains(p.Addr()) {
				return why(PoolNotExported, pool.Name,
					"no node announces its block, because IP pool %s (%s) has disableBGPExport: %s",
					pool.Name, pool.CIDR, ExportPool(c.Health.APIGroup, pool.Name))
			}
		}
	}
	for _, s := range speakers {
		if s.Up() && x.View.BGP.Withheld[s.Addr] > 0 {
			return why(BlocksWithheld, "", "node %s announces none of its blocks, although its BGP session is "+
				"established: does a BGPFilter reject them?", n.Name)
		}
	}
	if b.Affinity.State != "" && b.Affinity.State != "confirmed" {
		return why(BlockUnconfirmed, b.Affinity.State, "node %s does not own %s yet: the BlockAffinity is %s",
			b.Affinity.Node, p, b.Affinity.State)
	}
	return why(NoOffer, "", "no BGP peer offers its block")
}

// SessionDown returns a sentence: since when a peer has had no session, how the last session ended,
// and a remedy.
func SessionDown(s bgp.PeerState, now time.Time) string {
	why := fmt.Sprintf("there is no BGP session with %s (%s)", Whose(s.Peer), s.Addr)
	how, remedy := ended(s)
	if how == "" {
		return why + "; there has been none yet"
	}
	if !s.LastLoss.At.IsZero() {
		why += " for " + Ago(now, s.LastLoss.At)
	}
	if remedy != "" {
		how += "; " + remedy
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

// Why returns why a server is not open, or why it fails its check. It returns the zero Why if the
// server serves.
func (x *Index) Why(s Server) Why {
	switch {
	case s.Want == nil:
		return Why{Code: EndpointGone, Short: "endpoint is gone; deleted once its last connection ends"}
	case s.Live != nil && s.State == haproxy.Open:
		return whyDown(s.Live.Failure)
	}
	b, a := x.Backends[s.Backend].want, s.Addr().Addr()
	if denial := x.View.Want.Allocations.Refuse(b.ClusterOf(s.Want), b.Namespace, s.Addr()); !denial.None() {
		return Why{Code: AddressDenied, Detail: string(denial.Code), Short: denial.Why}
	}
	if step, is := x.planned[haproxy.ServerID{Backend: b.Name, Server: s.Want.Name}]; is && step.State < haproxy.Open {
		if code, is := planned[step.Why]; is {
			return Why{Code: code, Short: step.Why}
		}
	}
	if s.Want.Drain {
		return Why{Code: Terminating, Short: plan.Terminating}
	}
	if s.State == haproxy.Drain && x.View.Want.Drained[b.ClusterOf(s.Want)] {
		return Why{Code: ClusterDrained, Short: plan.Drained}
	}
	if s.State == haproxy.Drain && x.View.Want.Silent[b.ClusterOf(s.Want)] {
		return Why{Code: ClusterSilent, Short: plan.Silent}
	}
	if s.State == haproxy.Drain && x.View.Want.Scarce[b.Name][b.ClusterOf(s.Want)] {
		return Why{Code: ClusterScarce, Short: plan.Scarce}
	}
	p, via, routed := x.match(s.Source(), a)
	switch {
	case !routed && !x.View.Have.Direct[a]:
		block := s.Block
		if block == nil { // of no node
			single := netip.PrefixFrom(a, a.BitLen())
			block = &Block{Cluster: b.ClusterOf(s.Want), Affinity: routes.Affinity{Prefix: single}}
		}
		why := x.WhyNoRouteTo(s.Node, block)
		why.Short, why.Rest, why.Unrouted = fmt.Sprintf("no route to %s", a), why.Short, true
		return why
	case x.View.Have.Routes[p] != via:
		return Why{Code: RouteMissing, Short: fmt.Sprintf("the route %s via %s is not in the kernel", p, via)}
	case s.State == haproxy.Absent:
		return Why{Code: BackendMissing, Short: "its backend is not in HAProxy yet"}
	}
	return Why{Code: Opening, Short: "being opened"}
}

// planned holds the codes of the reasons of Plan that say all. For NoRoute, the index says more.
var planned = map[string]Code{
	plan.Gone: EndpointGone, plan.Terminating: Terminating, plan.Readdressed: Readdressed,
	plan.NotInKernel: RouteMissing, plan.Changing: RouteChanging, plan.Drained: ClusterDrained,
	plan.Silent: ClusterSilent, plan.Scarce: ClusterScarce,
}

// whyDown returns how the check of a server failed, by the name that HAProxy's statistics have for
// it.
func whyDown(failure string) Why {
	switch failure {
	case "":
		return Why{}
	case "L4TOUT":
		return Why{
			Code: CheckTimeout, Detail: failure, Short: "the check gets no answer from the pod (L4TOUT)",
			Rest: "look for a NetworkPolicy or a firewall that does not admit the appliance: " +
				"kubectl get networkpolicies -A",
		}
	case "L4CON":
		return Why{
			Code: CheckRefused, Detail: failure,
			Short: "the pod refuses connections to this port, or cannot be reached (L4CON)",
		}
	case "HANA":
		return Why{Code: RequestsFailed, Detail: failure, Short: "requests failed one after another (HANA)"}
	}
	return Why{
		Code: CheckFailed, Detail: failure, Short: "the pod answers the check wrongly or too late (" + failure + ")",
	}
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
