package routes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Facts are the inputs of Verify besides the offers.
type Facts struct {
	Now        time.Time
	Topologies []Topology    // in the order of our configuration
	Local      Local         // of the machine the routes are for
	Retain     time.Duration // how long offers count after their session was closed without a NOTIFICATION
	// FailStatic is how long the offers of a cluster count after it lost every session at once. If
	// it is 0, they do not count.
	FailStatic time.Duration
}

// Local holds the machine's own addresses and networks, by the kernel.
type Local struct {
	Addrs    []netip.Addr   `json:"addrs,omitempty"`    // its addresses
	Networks []netip.Prefix `json:"networks,omitempty"` // networks it is directly connected to
	// Primary are those of Addrs that the kernel gives to its own packets into a connected network.
	Primary []netip.Addr `json:"primary,omitempty"`
}

// atOnce is the longest time between two losses of one common cause. The hold timers of
// sessions that are cut at once expire up to a keepalive interval apart. That is a third
// of the hold time (RFC 4271, 4.4): 30 s at the 90 s that the RFC suggests.
const atOnce = 30 * time.Second

// Verify returns the table of offers that may become routes, and a refusal for each other
// offer. An offer becomes a route only if
//
//   - its session is with a node the cluster knows, or with a reflector, in the
//     right AS, and the path comes from no further than the owner;
//   - its prefix is exactly a confirmed block of a node, or an address lent to
//     a node out of another's block, and that node is the owner;
//   - its next hop is the owner's own address, directly connected to us;
//   - it lies within the bounds of our configuration and in a pool that is
//     exported, and touches nothing that is ours, protected or another cluster's
//     (clusters with different sources may have the same addresses);
//   - its session is up, or was lost in a way that says nothing about the node.
//
// The order of offers and duplicates do not change the result. The refusals are sorted. If two
// clusters claim the same addresses, a cluster with bounds in our configuration outranks a cluster
// that has only pools. If that does not decide, the cluster that is configured first outranks the
// other.
func Verify(offers []Offer, f Facts) (Table, []Refusal) { return new(Policy).Verify(offers, f) }

// A Policy applies the rules of Verify, Static, Withheld and Allocate. It remembers its findings in
// the records of the clusters, and uses them again while the records and the machine's addresses stay
// the same. A pod that comes or goes changes only the allocations. The memory saves time and changes no
// result. Callers share the results, and do not change them. The zero Policy is ready for use, by one
// goroutine.
type Policy struct {
	world       *world
	allocations *Allocations // nil until somebody asks
	last        *findings    // of the last Verify in this world; nil before it
}

// findings hold the results for some offers, and the time in which the clock does not change them.
type findings struct {
	offers      []Offer
	from, until time.Time // until is zero if the clock changes nothing
	retain      time.Duration
	failStatic  time.Duration
	table       Table
	refusals    []Refusal
	static      map[string]blackout
	withheld    map[netip.Addr]int // nil until somebody asks
}

// expire notes that the clock may change the findings at a time.
func (k *findings) expire(at time.Time) {
	if at.After(k.from) && (k.until.IsZero() || at.Before(k.until)) {
		k.until = at
	}
}

// recall brings the memory up to date.
func (p *Policy) recall(f Facts) {
	if p.world == nil || !reflect.DeepEqual(p.world.Local, f.Local) ||
		!slices.EqualFunc(p.world.Topologies, f.Topologies, sameButPods) {
		p.world, p.allocations, p.last = survey(f), nil, nil
		return
	}
	if !slices.EqualFunc(p.world.Topologies, f.Topologies, samePods) {
		p.allocations = nil
	}
	w := *p.world
	w.Facts = f
	p.world = &w
}

// knows reports whether the memory has the findings for these offers.
func (p *Policy) knows(offers []Offer, f Facts) bool {
	p.recall(f)
	k := p.last
	return k != nil && k.retain == f.Retain && k.failStatic == f.FailStatic && !f.Now.Before(k.from) &&
		(k.until.IsZero() || f.Now.Before(k.until)) && slices.EqualFunc(k.offers, offers, sameOffer)
}

// sameButPods reports whether two topologies have the same records, except for the pods of their
// blocks.
func sameButPods(a, b Topology) bool {
	if !same(a.Affinities, b.Affinities) || !samePods(a, b) && !slices.EqualFunc(a.Blocks, b.Blocks, sameOwners) {
		return false
	}
	a.Affinities, b.Affinities, a.Blocks, b.Blocks = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

// samePods reports whether two topologies have the same blocks with the same pods.
func samePods(a, b Topology) bool { return same(a.Blocks, b.Blocks) }

// same reports whether two lists are equal. That is found at once if they are one list.
func same[T comparable](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// sameOwners reports whether two blocks differ in their pods at most.
func sameOwners(a, b *IPAMBlock) bool {
	return a == b || a.Prefix == b.Prefix && a.Affinity == b.Affinity && maps.Equal(a.Borrowed, b.Borrowed)
}

// sameOffer reports whether two offers are equal.
func sameOffer(a, b Offer) bool {
	return a.Prefix == b.Prefix && a.Peer == b.Peer && a.NextHop == b.NextHop && a.Cluster == b.Cluster &&
		a.PeerAS == b.PeerAS && slices.Equal(a.ASPath, b.ASPath) && a.Since.Equal(b.Since) &&
		a.Announced.Equal(b.Announced) && a.Lost == b.Lost && a.Silent == b.Silent
}

// Verify returns what the function Verify returns.
func (p *Policy) Verify(offers []Offer, f Facts) (Table, []Refusal) {
	if !p.knows(offers, f) {
		p.last = p.world.verify(offers)
	}
	return p.last.table, p.last.refusals
}

// verify applies the rules of Verify.
func (w *world) verify(offers []Offer) *findings {
	k := &findings{
		offers: slices.Clone(offers), from: w.Now, retain: w.Retain, failStatic: w.FailStatic,
		table: make(Table, len(offers)), static: w.static(offers),
	}
	for _, o := range offers {
		owner, no := w.judge(o)
		if no == nil {
			no = w.fresh(o, owner, k.static[o.Cluster])
		}
		if o.Lost.Cause != "" {
			k.expire(o.Lost.At.Add(w.Retain))
			k.expire(k.static[o.Cluster].until)
		}
		if no == nil {
			k.table[Selector{From: w.clusters[o.Cluster].source, To: o.Prefix}] = o.NextHop
			continue
		}
		passing := no.reason == WrongLength && w.passing(o)
		if passing {
			k.expire(o.Announced.Add(settled))
		}
		k.refusals = append(k.refusals, Refusal{Offer: o, Reason: no.reason, Why: no.why, Passing: passing})
	}
	slices.SortFunc(k.refusals, func(a, b Refusal) int { return compareOffers(a.Offer, b.Offer) })
	return k
}

// Static returns the clusters that lost every session at once, if their lost offers therefore still
// count. The value is the time until which they count.
func Static(offers []Offer, f Facts) map[string]time.Time { return new(Policy).Static(offers, f) }

// Static returns what the function Static returns.
func (p *Policy) Static(offers []Offer, f Facts) map[string]time.Time {
	var dark map[string]blackout
	if p.knows(offers, f) {
		dark = p.last.static
	} else {
		dark = p.world.static(offers)
	}
	until := map[string]time.Time{}
	for cluster, s := range dark {
		if f.Now.Before(s.until) {
			until[cluster] = s.until
		}
	}
	return until
}

// Allocate returns what the function Allocate returns.
func (p *Policy) Allocate(f Facts) *Allocations {
	if p.recall(f); p.allocations == nil {
		p.allocations = Allocate(f)
	}
	return p.allocations
}

// Withheld returns what the function Withheld returns.
func (p *Policy) Withheld(offers []Offer, f Facts) map[netip.Addr]int {
	if !p.knows(offers, f) {
		return Withheld(offers, f.Topologies)
	}
	if p.last.withheld == nil {
		p.last.withheld = Withheld(offers, f.Topologies)
	}
	return p.last.withheld
}

// Withheld returns the BGP addresses of the nodes that own blocks and offer none of them,
// with the number of these blocks. A block of a pool that is not exported does not count.
func Withheld(offers []Offer, topologies []Topology) map[netip.Addr]int {
	type way struct {
		to  netip.Prefix
		via netip.Addr
	}
	offered := make(map[way]bool, 2*len(offers))
	for _, o := range offers {
		offered[way{o.Prefix, o.Peer}], offered[way{o.Prefix, o.NextHop}] = true, true
	}
	owned, speak := map[netip.Addr]int{}, map[netip.Addr]bool{}
	for _, t := range topologies {
		addrs := map[string][]netip.Prefix{}
		own := func(node string, block netip.Prefix) {
			kept := func(p Pool) bool { return p.NoExport && p.CIDR.Overlaps(block) }
			for _, p := range addrs[node] {
				if a := p.Addr(); a.Is4() == block.Addr().Is4() && !slices.ContainsFunc(t.Pools, kept) {
					owned[a]++
					speak[a] = speak[a] || offered[way{block, a}]
				}
			}
		}
		for _, n := range t.Nodes {
			addrs[n.Name] = n.BGP
			for _, block := range n.PodCIDRs {
				if t.HostLocal {
					own(n.Name, block)
				}
			}
		}
		for _, a := range t.Affinities {
			if usable(a) {
				own(a.Node, a.Prefix)
			}
		}
	}
	maps.DeleteFunc(owned, func(a netip.Addr, _ int) bool { return speak[a] })
	return owned
}

// A verdict is a reason to refuse, with its sentence. A nil verdict means that there is no such
// reason.
type verdict struct {
	reason Reason
	why    string
}

func refuse(r Reason, format string, args ...any) *verdict {
	return &verdict{reason: r, why: fmt.Sprintf(format, args...)}
}

// A world holds the facts, indexed for look-ups.
type world struct {
	Facts
	clusters  map[string]*cluster
	own       index[string] // addresses and networks of this machine, with a description
	protected index[string] // single addresses of API servers, with the cluster of each
}

type cluster struct {
	*Topology
	source   netip.Addr // of the packets to its pods; zero if any
	sourced  bool       // source is known, or the cluster has none
	nodes    map[string]*Node
	speakers map[netip.Addr]*speaker
	blocks   index[claim]
	lent     map[netip.Addr]claim
	bounds   index[bool]
	pools    index[Pool]
	foreign  index[string] // as returned by claims.of
	servers  index[bool]   // single addresses of the API server, by the cluster's own records
}

// A speaker is a node or reflector that may open a session from an address.
type speaker struct {
	node      *Node    // nil for a reflector that is no node
	namesakes []string // nodes that claim the address, if more than one does
	asn       uint32
	reflector bool
}

func (s *speaker) String() string {
	if s.node == nil {
		return "a route reflector"
	}
	return "node " + s.node.Name
}

// A claim is the owner of a prefix by the cluster's records, or the reason why it has no owner.
type claim struct {
	owner string
	no    *verdict
}

// special holds the ranges that have no unicast routes to pods: those of RFC 6890 and its
// registries that a kernel treats differently.
var special = newIndex(map[netip.Prefix]string{
	netip.MustParsePrefix("0.0.0.0/8"):      "this network",
	netip.MustParsePrefix("127.0.0.0/8"):    "loopback",
	netip.MustParsePrefix("169.254.0.0/16"): "link-local",
	netip.MustParsePrefix("224.0.0.0/4"):    "multicast",
	netip.MustParsePrefix("240.0.0.0/4"):    "reserved",
	netip.MustParsePrefix("::/8"):           "reserved",
	netip.MustParsePrefix("fe80::/10"):      "link-local",
	netip.MustParsePrefix("ff00::/8"):       "multicast",
})

func survey(f Facts) *world {
	w := &world{Facts: f, clusters: map[string]*cluster{}}
	own, protected := map[netip.Prefix]string{}, map[netip.Prefix]string{}
	for _, n := range f.Local.Networks {
		own[n.Masked()] = "the network " + n.Masked().String() + " this machine is connected to"
	}
	for _, a := range f.Local.Addrs {
		own[single(a)] = "this machine's own address " + a.String()
	}
	for _, t := range slices.Backward(f.Topologies) {
		for _, a := range t.Protected {
			protected[single(a.Addr())] = t.Cluster
		}
	}
	w.own, w.protected = newIndex(own), newIndex(protected)

	var taken claims
	for _, t := range byRank(f.Topologies) {
		if w.clusters[t.Cluster] != nil {
			continue // the configuration does not allow two of one name
		}
		own := *t
		c := &cluster{Topology: &own}
		c.source, c.sourced = f.Local.SourceOf(own.Source)
		c.foreign = taken.of(c.source)
		c.meetNodes()
		c.readBlocks()
		c.Blocks = nil // read; the memory keeps no pods of earlier rounds
		c.readNetworks()
		if c.sourced {
			for p := range c.territory() {
				taken = append(taken, claimed{Selector{From: c.source, To: p}, t.Cluster})
			}
		}
		w.clusters[t.Cluster] = c
	}
	return w
}

// byRank sorts clusters with bounds in our configuration before clusters without: a cluster's own
// records must not claim addresses that we configured for another cluster.
func byRank(topologies []Topology) []*Topology {
	ranked := make([]*Topology, 0, len(topologies))
	for i := range topologies {
		ranked = append(ranked, &topologies[i])
	}
	slices.SortStableFunc(ranked, func(a, b *Topology) int {
		return cmp.Compare(min(len(b.Bounds), 1), min(len(a.Bounds), 1))
	})
	return ranked
}

func (c *cluster) meetNodes() {
	c.nodes = map[string]*Node{}
	c.speakers = map[netip.Addr]*speaker{}
	for _, a := range c.Reflectors {
		c.speakers[a] = &speaker{asn: c.ASN, reflector: true}
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if c.nodes[n.Name] != nil {
			continue // the API does not allow two of one name
		}
		c.nodes[n.Name] = n
		for _, p := range n.BGP {
			if !p.IsValid() {
				continue
			}
			s := c.speakers[p.Addr()]
			switch {
			case s == nil || s.node == nil:
				c.speakers[p.Addr()] = &speaker{node: n, asn: n.ASN, reflector: n.Reflector || s != nil}
			case s.node != n:
				if s.namesakes == nil {
					s.namesakes = []string{s.node.Name}
				}
				s.namesakes = append(s.namesakes, n.Name)
				slices.Sort(s.namesakes)
			}
		}
	}
}

// readBlocks finds the one owner of each block, and of each address lent out.
func (c *cluster) readBlocks() {
	affinities := map[netip.Prefix][]Affinity{}
	arbiters := map[netip.Prefix][]string{}
	lent := map[netip.Addr][]string{}
	if c.HostLocal {
		for _, n := range c.Nodes {
			for _, p := range n.PodCIDRs {
				affinities[p] = append(affinities[p],
					Affinity{Name: "podCIDR", Node: n.Name, Prefix: p, State: "confirmed"})
			}
		}
	} else {
		for _, a := range c.Affinities {
			affinities[a.Prefix] = append(affinities[a.Prefix], a)
		}
		for _, b := range c.Blocks {
			if b.Affinity != "" {
				arbiters[b.Prefix] = append(arbiters[b.Prefix], b.Affinity)
			}
			for a, node := range b.Borrowed {
				if b.Prefix.Contains(a) {
					lent[a] = append(lent[a], node)
				}
			}
		}
	}
	blocks := map[netip.Prefix]claim{}
	for p, as := range affinities {
		if canonical(p) {
			blocks[p] = settle(p, as, distinct(arbiters[p]))
		}
	}
	c.blocks = newIndex(blocks)
	c.lent = map[netip.Addr]claim{}
	for a, nodes := range lent {
		nodes = distinct(nodes)
		if len(nodes) > 1 {
			c.lent[a] = claim{no: refuse(Ambiguous, "IPAMBlocks lend %s to more than one node: %s", a,
				strings.Join(nodes, ", "))}
			continue
		}
		c.lent[a] = claim{owner: nodes[0]}
	}
}

// settle returns the owner of a block. BIRD announces by BlockAffinities, and Calico assigns
// addresses by the affinity of the IPAMBlock. A BlockAffinity of a lost race can stay for ever. If
// two records contradict each other, the IPAMBlock decides, and a BlockAffinity that contradicts it
// is no proof.
func settle(p netip.Prefix, affinities []Affinity, arbiters []string) claim {
	slices.SortFunc(affinities, func(a, b Affinity) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	})
	var owners []string
	for _, a := range affinities {
		if usable(a) {
			owners = append(owners, a.Node)
		}
	}
	owners = distinct(owners)
	if len(owners) == 0 {
		a := affinities[0]
		switch {
		case a.Type != "" && a.Type != "host":
			return claim{no: refuse(NoAffinity, "block %s is of type %s: it belongs to no node", p, a.Type)}
		case a.Deleted:
			return claim{no: refuse(NoAffinity, "node %s is giving up block %s: its BlockAffinity is deleted", a.Node,
				p)}
		}
		return claim{no: refuse(NoAffinity, "node %s's claim to block %s is %s, not confirmed", a.Node, p, a.State)}
	}
	switch {
	case len(arbiters) > 1:
		return claim{no: refuse(Ambiguous, "IPAMBlocks give block %s to more than one owner: %s", p,
			strings.Join(arbiters, ", "))}
	case len(arbiters) == 1:
		if node, ok := strings.CutPrefix(arbiters[0], "host:"); ok && slices.Contains(owners, node) {
			return claim{owner: node}
		}
		return claim{no: refuse(Ambiguous, "block %s belongs to %s by its BlockAffinity and to %s by its IPAMBlock", p,
			strings.Join(owners, ", "), arbiters[0])}
	case len(owners) > 1:
		return claim{no: refuse(Ambiguous, "nodes %s all claim block %s and no IPAMBlock decides",
			strings.Join(owners, ", "), p)}
	}
	return claim{owner: owners[0]}
}

func usable(a Affinity) bool {
	return !a.Deleted && (a.State == "confirmed" || a.State == "") && (a.Type == "host" || a.Type == "")
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// readNetworks indexes the bounds, the pools, and the addresses of the API server.
func (c *cluster) readNetworks() {
	bounds, pools := map[netip.Prefix]bool{}, map[netip.Prefix]Pool{}
	for _, b := range c.Bounds {
		bounds[b.Masked()] = true
	}
	for _, p := range c.Pools {
		if !p.CIDR.IsValid() {
			continue
		}
		if known, ok := pools[p.CIDR.Masked()]; ok && known.NoExport {
			continue // of two pools of one CIDR the stricter counts
		}
		pools[p.CIDR.Masked()] = p
	}
	servers := map[netip.Prefix]bool{}
	for _, server := range c.Endpoints {
		servers[single(server.Addr())] = true
	}
	c.bounds, c.pools, c.servers = newIndex(bounds), newIndex(pools), newIndex(servers)
}

// territory returns the prefixes that contain every route of a cluster. A cluster of lower
// rank must keep out of them.
func (c *cluster) territory() map[netip.Prefix]bool {
	if len(c.bounds.at) > 0 {
		return c.bounds.at
	}
	all := map[netip.Prefix]bool{}
	for p := range c.pools.at {
		all[p] = true
	}
	if c.HostLocal {
		for p := range c.blocks.at {
			all[p] = true
		}
	}
	return all
}

// settled is the age from which a node's offer of a single address of its own block is reported.
// With Calico 3.32 a pod's route has no metric for 0.1 to 0.25 s, from the CNI plugin until Felix
// replaces it. BIRD announces a route if its metric is below 1024. So such an offer comes with each
// pod that starts.
const settled = 10 * time.Second

// passing reports whether a node offers a single address of its own block, and has done
// so for no longer than a pod takes to start.
func (w *world) passing(o Offer) bool {
	c, s, no := w.introduce(o)
	if no != nil || s.node == nil || !o.Prefix.IsSingleIP() || w.Now.Sub(o.Announced) >= settled {
		return false
	}
	_, block, ok := c.blocks.covering(o.Prefix)
	return ok && block.owner == s.node.Name
}

// judge applies all checks but those of time. It returns the owner of the prefix, or a
// refusal.
func (w *world) judge(o Offer) (*Node, *verdict) {
	c, s, no := w.introduce(o)
	if no != nil {
		return nil, no
	}
	if no := w.trespass(o.Prefix, c); no != nil {
		return nil, no
	}
	owner, no := c.owner(o.Prefix)
	if no != nil {
		return nil, no
	}
	if s.node != owner && !s.reflector {
		return nil, refuse(NotOwner, "%s belongs to node %s, but %s (%s) offers it", o.Prefix, owner.Name, s, o.Peer)
	}
	if no := c.path(o, s, owner); no != nil {
		return nil, no
	}
	if no := c.bounded(o.Prefix); no != nil {
		return nil, no
	}
	if _, ok := w.own.at[single(o.NextHop)]; ok {
		return nil, refuse(BadNextHop, "node %s's address %s is this machine's own", owner.Name, o.NextHop)
	}
	connected := func(n netip.Prefix) bool { return n.Contains(o.NextHop) }
	if !slices.ContainsFunc(w.Local.Networks, connected) {
		return nil, refuse(NotOnLink,
			"node %s's address %s is in no network this machine is directly connected to: give the machine an "+
				"address in the nodes' network", owner.Name, o.NextHop)
	}
	return owner, nil
}

// introduce returns the cluster and the speaker of an offer, or a refusal.
func (w *world) introduce(o Offer) (*cluster, *speaker, *verdict) {
	c := w.clusters[o.Cluster]
	if c == nil {
		return nil, nil, refuse(UnknownCluster, "nothing is known about cluster %q", o.Cluster)
	}
	s := c.speakers[o.Peer]
	if s == nil {
		return nil, nil, refuse(UnknownPeer, "%s is the BGP address of no node of cluster %s", o.Peer, c.Cluster)
	}
	if s.namesakes != nil {
		return nil, nil, refuse(Ambiguous, "nodes %s all have the BGP address %s: none of them is believed",
			strings.Join(s.namesakes, ", "), o.Peer)
	}
	// A session opens in the AS of that time only. The offers of one that is lost outlive a
	// change of the AS, as they outlive any other restart.
	if o.PeerAS != s.asn && o.Lost.Cause == "" {
		return nil, nil, refuse(WrongAS, "%s (%s) speaks for AS %d, expected AS %d", s, o.Peer, o.PeerAS, s.asn)
	}
	return c, s, nil
}

// trespass returns a refusal if the prefix would take traffic that is not for the cluster's pods.
func (w *world) trespass(p netip.Prefix, c *cluster) *verdict {
	if !canonical(p) {
		return refuse(Malformed, "%s is no canonical prefix", p)
	}
	if p.Bits() == 0 {
		return refuse(DefaultRoute, "%s is the default route: a node answers for its own blocks only", p)
	}
	if q, what, ok := special.overlapping(p); ok {
		return refuse(SpecialRange, "%s overlaps %s (%s)", p, q, what)
	}
	if _, what, ok := w.own.overlapping(p); ok {
		return refuse(OwnNetwork, "%s overlaps %s", p, what)
	}
	if a, of, ok := w.protected.within(p); ok {
		return refuse(Protected, "%s covers %s, the API server of cluster %s", p, a.Addr(), of)
	}
	if a, _, ok := c.servers.within(p); ok {
		return refuse(Protected, "%s covers %s, the API server of cluster %s", p, a.Addr(), c.Cluster)
	}
	if !c.sourced {
		return refuse(NoSource, "this machine has no address of its own in %s, the source of cluster %s: give it one",
			c.Source, c.Cluster)
	}
	if c.source.IsValid() && !p.Addr().Is4() {
		return refuse(NoSource, "%s is not IPv4, and the source of cluster %s leads to IPv4 alone", p, c.Cluster)
	}
	if q, other, ok := c.foreign.overlapping(p); ok {
		return refuse(OtherCluster, "%s overlaps %s, which belongs to cluster %s", p, q, other)
	}
	return nil
}

// owner returns the node a prefix belongs to.
func (c *cluster) owner(p netip.Prefix) (*Node, *verdict) {
	found, ok := claim{}, false
	if p.IsSingleIP() {
		found, ok = c.lent[p.Addr()]
	}
	if !ok {
		found, ok = c.blocks.at[p]
	}
	if !ok {
		return nil, c.nobody(p)
	}
	if found.no != nil {
		return nil, found.no
	}
	n := c.nodes[found.owner]
	if n == nil {
		return nil, refuse(UnknownNode, "%s belongs to node %q, and the cluster has no such node", p, found.owner)
	}
	return n, nil
}

// nobody returns the refusal of a prefix without an owner.
func (c *cluster) nobody(p netip.Prefix) *verdict {
	if q, b, ok := c.blocks.covering(p); ok {
		return refuse(WrongLength, "%s is a part of block %s%s: only whole blocks are routed", p, q, b.of())
	}
	if q, b, ok := c.blocks.within(p); ok {
		return refuse(WrongLength, "%s is more than block %s%s: only whole blocks are routed", p, q, b.of())
	}
	_, _, inPool := c.pools.overlapping(p)
	_, _, inBounds := c.bounds.overlapping(p)
	if inPool || inBounds || len(c.pools.at)+len(c.bounds.at) == 0 {
		return refuse(NoAffinity, "%s is no block of any node", p)
	}
	return refuse(NotPods, "%s is in no IP pool: nodes announce service and node networks too, and no route to them "+
		"is needed here", p)
}

func (c claim) of() string {
	if c.owner == "" {
		return ""
	}
	return " of node " + c.owner
}

// path checks that the path leads to the owner itself, by NEXT_HOP and AS_PATH
// (RFC 4271, 5.1.2 and 5.1.3). A reflector on a session within the AS changes
// neither (RFC 4456, 10); one outside would put itself in both.
func (c *cluster) path(o Offer, s *speaker, owner *Node) *verdict {
	asn := owner.ASN
	if s.node == owner {
		asn = o.PeerAS // of a lost session, it may be the AS before
	}
	direct := len(o.ASPath) == 0 || len(o.ASPath) == 1 && o.ASPath[0] == asn
	switch {
	case s.node == owner && !direct:
		return refuse(BadASPath, "the AS path to %s is %v, expected none or only node %s's AS %d", o.Prefix, o.ASPath,
			owner.Name, owner.ASN)
	case s.node != owner && (len(o.ASPath) > 0 || s.asn != owner.ASN):
		return refuse(BadASPath, "%s (%s) reflects %s of node %s, and is believed only within the node's AS %d", s,
			o.Peer, o.Prefix, owner.Name, owner.ASN)
	}
	i := slices.IndexFunc(owner.BGP, func(p netip.Prefix) bool { return p.Addr().Is4() == o.Prefix.Addr().Is4() })
	if i < 0 {
		return refuse(BadNextHop, "node %s has no BGP address of the family of %s", owner.Name, o.Prefix)
	}
	want := owner.BGP[i].Addr()
	if o.NextHop != want {
		return refuse(BadNextHop, "the next hop of %s is %s, expected node %s's address %s", o.Prefix, o.NextHop,
			owner.Name, want)
	}
	if ns := c.speakers[want].namesakes; ns != nil {
		return refuse(Ambiguous, "nodes %s all have the BGP address %s: none of them is believed",
			strings.Join(ns, ", "), want)
	}
	return nil
}

// bounded checks the prefix against our own bounds and the cluster's pools. A block stays
// after its pool is deleted; then the bounds decide.
func (c *cluster) bounded(p netip.Prefix) *verdict {
	bounds := len(c.bounds.at) > 0
	if bounds {
		if _, _, ok := c.bounds.covering(p); !ok {
			return refuse(OutOfBounds, "%s is outside the pools configured for cluster %s", p, c.Cluster)
		}
	}
	q, pool, ok := c.pools.covering(p)
	switch {
	case ok && pool.NoExport:
		return refuse(NoExport, "%s is in IP pool %s (%s), which is not to be exported", p, pool.Name, q)
	case c.HostLocal:
		return nil // podCIDRs are cut by the cluster, not by the pool's block size
	case ok:
		if _, lent := c.lent[p.Addr()]; lent && p.IsSingleIP() {
			return nil
		}
		if size := pool.blockSize(); size != p.Bits() {
			return refuse(WrongLength, "%s is not of the size of the blocks of IP pool %s (/%d)", p, pool.Name, size)
		}
		return nil
	case bounds:
		return nil
	case len(c.pools.at) == 0:
		return refuse(OutOfBounds, "nothing bounds %s: no IP pool of cluster %s is known and none is configured", p,
			c.Cluster)
	}
	return refuse(OutOfBounds, "%s is in no IP pool of cluster %s, and none is configured", p, c.Cluster)
}

func (p Pool) blockSize() int {
	switch {
	case p.BlockSize != 0:
		return p.BlockSize
	case p.CIDR.Addr().Is4():
		return 26
	}
	return 122
}

// A blackout is the loss of every session of a cluster at once. It is more likely our
// fault than the fault of so many nodes.
type blackout struct {
	since, until time.Time // until is FailStatic after the last loss, or Retain after the first return
}

// static returns the clusters that lost every session at once, whether or not their lost offers
// still count.
//
// If a session stayed up and its peer is not silent, the fault is not ours. If a session came back,
// the network works again; the others then have the same time to follow as after any restart.
// Sessions that are cut at once end up to a keepalive interval apart: at the first loss the others
// are silent. static ignores earlier losses if their offers no longer counted then.
func (w *world) static(offers []Offer) map[string]blackout {
	type losses struct {
		at       []time.Time
		last     time.Time
		up       bool      // a session outlived the last loss
		returned time.Time // when the first one came back after it
	}
	if !slices.ContainsFunc(offers, func(o Offer) bool { return o.Lost.Cause != "" }) {
		return nil
	}
	byCluster := map[string]*losses{}
	var live []Offer
	for _, o := range offers {
		if _, _, no := w.introduce(o); no != nil {
			continue
		}
		if o.Lost.Cause == "" {
			live = append(live, o)
			continue
		}
		l := byCluster[o.Cluster]
		if l == nil {
			l = &losses{}
			byCluster[o.Cluster] = l
		}
		l.at = append(l.at, o.Lost.At)
		if o.Lost.At.After(l.last) {
			l.last = o.Lost.At
		}
	}
	for _, o := range live {
		l := byCluster[o.Cluster]
		switch {
		case l == nil || o.Silent:
		case !o.Since.After(l.last):
			l.up = true
		case l.returned.IsZero() || o.Since.Before(l.returned):
			l.returned = o.Since
		}
	}
	dark := map[string]blackout{}
	for cluster, l := range byCluster {
		b := blackout{since: l.last, until: l.last.Add(w.FailStatic)}
		if back := l.returned.Add(w.Retain); !l.returned.IsZero() && back.Before(b.until) {
			b.until = back
		}
		one := true
		for _, at := range l.at {
			switch before := l.last.Sub(at); {
			case before <= atOnce:
				if at.Before(b.since) {
					b.since = at
				}
			case before <= w.Retain:
				one = false
			}
		}
		if one && !l.up && w.FailStatic > 0 {
			dark[cluster] = b
		}
	}
	return dark
}

// fresh decides whether an offer still counts after its session. A restart of calico-node
// closes the session without a NOTIFICATION, and new settings close it with one that says
// so; the node goes on forwarding. Silence, or another NOTIFICATION, is no such restart.
func (w *world) fresh(o Offer, owner *Node, b blackout) *verdict {
	if o.Lost.Cause == "" {
		return nil
	}
	at := o.Lost.At.UTC().Format(time.RFC3339)
	inBlackout := !b.until.IsZero() && !o.Lost.At.Before(b.since)
	switch {
	case inBlackout && w.Now.Before(b.until):
		return nil
	case inBlackout && b.until.After(o.Lost.At.Add(w.Retain)):
		return refuse(Stale, "every session of cluster %s was lost at %s, and the routes were kept until %s", o.Cluster,
			b.since.UTC().Format(time.RFC3339), b.until.UTC().Format(time.RFC3339))
	case o.Lost.Cause != Closed && o.Lost.Cause != Reconfigured:
		return refuse(Stale, "the session with %s ended at %s: %s", o.Peer, at, o.Lost.Cause)
	case owner.Down:
		return refuse(Stale, "the session with %s was closed at %s, and the cluster calls node %s unreachable", o.Peer,
			at, owner.Name)
	case !w.Now.Before(o.Lost.At.Add(w.Retain)):
		return refuse(Stale, "the session with %s was closed at %s and did not come back within %s", o.Peer, at,
			w.Retain)
	}
	return nil
}

func compareOffers(a, b Offer) int {
	return cmp.Or(
		cmp.Compare(a.Cluster, b.Cluster),
		a.Peer.Compare(b.Peer),
		a.Prefix.Compare(b.Prefix),
		a.NextHop.Compare(b.NextHop),
		slices.Compare(a.ASPath, b.ASPath),
		cmp.Compare(a.PeerAS, b.PeerAS),
		a.Since.Compare(b.Since),
		a.Announced.Compare(b.Announced),
		cmp.Compare(a.Lost.Cause, b.Lost.Cause),
		a.Lost.At.Compare(b.Lost.At),
	)
}
