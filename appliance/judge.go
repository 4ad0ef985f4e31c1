package appliance

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/picture"
	"sallyport/bgp"
	"sallyport/routes"
)

// A judge warns of every fault of the appliance. It remembers since when each fault lasts, and
// nothing else depends on its memory. The goroutine of the loop owns it.
type judge struct {
	log     *slog.Logger
	changes *timeline

	brokenAt  time.Time                // since when rounds fail; zero while they succeed
	missingAt time.Time                // since when wanted routes are not in the kernel
	absent    map[netip.Addr]time.Time // peers, since when there is no session with them
	// peers with a session, since when they announce none of the blocks of their node
	quiet   map[netip.Addr]time.Time
	near    map[string]bool // resources that were near their limit in the last round
	refused map[string]bool // refusals of the last round
}

// background holds the facts that a judge needs besides the view of a round.
type background struct {
	age      time.Duration       // of the process
	settled  bool                // a round has ended with nothing left to do
	heard    map[netip.Addr]bool // peers that have sent all their routes
	crashes  []string            // warnings of the quarantine
	pictures *picture.Store
}

// A teller adds a sentence to a list.
type teller func(format string, args ...any)

// assess fills in notReady and warnings of v: why the appliance is not ready, and what needs
// attention. Each entry is one sentence. In the first round last is nil; later it is the view of
// the round before.
func (j *judge) assess(v, last *view, b background) {
	notReady := func(format string, args ...any) { v.notReady = append(v.notReady, fmt.Sprintf(format, args...)) }
	warn := func(format string, args ...any) { v.warnings = append(v.warnings, fmt.Sprintf(format, args...)) }

	warnOfFile(v, warn)
	for _, sentence := range b.crashes {
		warn("%s", sentence)
	}
	for i := range v.clusters {
		v.clusters[i].tell(b.pictures, notReady, warn)
	}
	for _, cluster := range sorted(v.static) {
		until := v.static[cluster]
		warn("cluster %s: every BGP session was lost at once; look at what its nodes share: the network to them, "+
			"a firewall that drops port 179, our BGPPeer; its routes stay until %s, and health checks "+
			"decide until then",
			cluster, until.UTC().Format("15:04:05 MST"))
	}
	for _, cluster := range v.unguarded {
		warn("cluster %s: its nodes connect to us (bgp.mode: passive), and any pod can do so in the place of its node "+
			"while calico-node restarts; leave bgp.mode out, or set bgp.password or bgp.ttlSecurity here and "+
			"in the BGPPeer",
			cluster)
	}
	for _, sentence := range v.contested {
		warn("%s", sentence)
	}
	if v.group != nil {
		for _, sentence := range v.group.warnings(v) {
			warn("%s", sentence)
		}
	}
	j.measure(v, warn)
	j.miss(v, warn)
	j.withheld(v, last, warn)
	if b.age < patience {
		nodes := countFunc(v.peers, func(p bgp.PeerState) bool { return !p.Upstream })
		silent := countFunc(v.peers, func(p bgp.PeerState) bool { return !p.Upstream && !b.heard[p.Addr] })
		if silent > 0 {
			notReady("%d of %d BGP peers have not sent all their routes yet (End-of-RIB); the appliance waits "+
				"for another %s",
				silent, nodes, (patience - b.age).Round(time.Second))
		}
	}
	if !b.settled {
		notReady("the first rounds have not ended yet")
	}
	j.fail(v, notReady, warn)
}

// warnOfFile warns of faults in the configuration file and in the files that it names.
func warnOfFile(v *view, warn teller) {
	for _, mistake := range v.file.Errors {
		warn("the configuration file has a mistake, so the previous configuration stays in use: %s", mistake)
	}
	for _, sentence := range slices.Concat(v.file.Waiting, v.settings.cfg.Warnings) {
		warn("%s", sentence)
	}
	if c := v.settings.certificate; c != nil && v.at.Add(expiresSoon).After(c.Leaf.NotAfter) {
		warn("the certificate of the status endpoint is valid until %s: put a new one into the file of "+
			"status.tls.certificate, then systemctl reload sallyport", c.Leaf.NotAfter.Format(time.RFC3339))
	}
}

// tell reports the faults of a cluster.
func (c *clusterView) tell(pictures *picture.Store, notReady, warn teller) {
	switch {
	case !c.known:
		notReady("cluster %s: its objects are not known yet: %s", c.name, c.health.Error)
	case !c.live:
		notReady("cluster %s: its API has not answered since the start, so it is served from the picture of %s: %s",
			c.name, c.pictured.Format(time.RFC3339), c.health.Error)
	case c.health.Error != "":
		warn("cluster %s: %s", c.name, c.health.Error)
	}
	if err := pictures.Fault(c.name); err != nil {
		warn("cluster %s: the last good picture cannot be saved in %s: %v; a start without the API uses an older one",
			c.name, pictures.Dir(), err)
	}
	if c.gone {
		warn("cluster %s: it was removed from the configuration, and is served until the other clusters are known",
			c.name)
	}
	if c.next != nil {
		warn("cluster %s: its new settings take effect once its API has answered: %s", c.name, c.next.Error)
	}
	for _, sentence := range slices.Concat(c.health.Missing, c.health.Odd) {
		warn("cluster %s: %s", c.name, sentence)
	}
}

// fail warns of rounds that fail. It adds to notReady only rounds that have been failing, or wanted
// routes that have been missing, for longer than soon.
func (j *judge) fail(v *view, notReady, warn teller) {
	const soon = 10 * time.Second
	if lasted := since(&j.brokenAt, v.err != nil, v.at); v.err != nil {
		whys := strings.Split(v.err.Error(), "\n") // of errors.Join
		for _, why := range whys {
			warn("%s", why)
		}
		if lasted > soon {
			notReady("rounds have been failing for %s: %s", lasted.Round(time.Second), strings.Join(whys, "; "))
		}
	}
	missing := 0
	for p, via := range v.want.Routes {
		if v.have.Routes[p] != via {
			missing++
		}
	}
	if lasted := since(&j.missingAt, missing > 0, v.at); lasted > soon {
		notReady("%d wanted routes have not been in the kernel for %s", missing, lasted.Round(time.Second))
	}
}

// measure warns of each limit that is near, and of a haproxy.maxConnections that HAProxy cannot
// grant. It logs a limit once, when it gets near.
func (j *judge) measure(v *view, warn teller) {
	for _, c := range v.capacity {
		if c.Far() {
			delete(j.near, c.Resource)
		}
		if !c.Near() {
			continue
		}
		if !j.near[c.Resource] {
			j.log.Warn("a limit is near", "resource", c.Resource, "used", c.Used, "limit", c.Limit, "remedy", c.Remedy)
			j.changes.add(Change{
				At: v.at, Kind: limitChange, What: c.Resource + ": " + c.Amount() + " in use", Why: c.Remedy, Bad: true,
			})
		}
		j.near[c.Resource] = true
		warn("%s", c)
	}
	if v.config == nil {
		return
	}
	if granted := v.config.Tune.MaxConn; granted < v.connections {
		warn("HAProxy accepts %d connections instead of the %d that are configured (haproxy.maxConnections, "+
			"or maxconn of a ConfigMap): it may have too few files open; raise LimitNOFILE of the unit that "+
			"starts HAProxy",
			granted, v.connections)
	}
}

// miss warns of each peer that has had no session for a while. It leaves out nodes that
// the cluster itself reports as unreachable.
func (j *judge) miss(v *view, warn teller) {
	down, asn := map[netip.Addr]bool{}, map[string]uint32{}
	for _, c := range v.clusters {
		asn[c.name] = c.topology.ASN
		for _, n := range c.topology.Nodes {
			for _, p := range n.BGP {
				down[p.Addr()] = n.Down
			}
		}
	}
	absent := map[netip.Addr]time.Time{}
	var missed alike
	const same = "are AS numbers, password and TTL security the same on both sides? `sallyport doctor` says which;"
	for _, p := range v.peers {
		if p.State == established {
			continue
		}
		lasted := lasting(j.absent, absent, p.Addr, v.at)
		expected := fmt.Sprintf("AS %d is expected of it", p.ASN)
		if p.Node != "" && p.ASN != asn[p.Cluster] {
			expected += fmt.Sprintf(", not the cluster's %d, by annotation projectcalico.org/ASNumber of its Node "+
				"(kubectl get node %s -o yaml) or by localASNumber of our BGPPeer", asn[p.Cluster], p.Node)
		}
		how := ended(p)
		switch {
		case lasted < patience || down[p.Addr]:
		case how != "" && p.Upstream:
			warn("there has been no BGP session with the router %s for %s, so nothing is announced to it: %s; "+
				"look whether the router is up, has this appliance as a neighbour, and has the same settings of BFD",
				p.Addr, lasted, how)
		case how != "":
			missed.add(fault{cluster: p.Cluster, before: noSession, end: ": " + how}, "", named(p.Peer, p.Addr), lasted)
		case p.Upstream:
			warn("the router %s has accepted no BGP session for %s, so nothing is announced to it: "+
				"does it have this appliance as a neighbour, may we reach its port, "+
				"and are AS numbers, password, TTL security and BFD the same on both sides?",
				netip.AddrPortFrom(p.Addr, p.Port), lasted)
		case p.Active:
			missed.add(fault{
				cluster: p.Cluster, several: " have accepted no BGP session",
				end: ": does calico-node run there, does it have our BGPPeer, may we reach its port, and " + same +
					" " + expected,
			},
				" has accepted no BGP session", named(p.Peer, netip.AddrPortFrom(p.Addr, p.Port)), lasted)
		default:
			missed.add(fault{
				cluster: p.Cluster, several: " have not opened a BGP session",
				end: ": does calico-node run there, does it have our BGPPeer, may it reach our port, and " + same +
					" " + expected,
			},
				" has not opened a BGP session", named(p.Peer, p.Addr), lasted)
		}
	}
	missed.tell(warn)
	j.absent = absent
}

// withheld warns of each peer that has announced none of its node's blocks for a while,
// although its session is established.
func (j *judge) withheld(v, last *view, warn teller) {
	group := map[string]string{}
	for _, c := range v.clusters {
		group[c.name], _, _ = strings.Cut(c.health.APIGroup, "/")
	}
	quiet := map[netip.Addr]time.Time{}
	var withheld alike
	for _, p := range v.peers {
		blocks := v.withheld[p.Addr]
		if blocks == 0 || p.State != established || !p.EndOfRIB {
			continue
		}
		lasted := lasting(j.quiet, quiet, p.Addr, v.at)
		if lasted < patience {
			continue
		}
		if last == nil || last.at.Sub(quiet[p.Addr]) < patience {
			j.log.Warn("node announces none of its blocks",
				"cluster", p.Cluster, "node", p.Node, "peer", p.Addr, "blocks", blocks)
		}
		withheld.add(fault{
			cluster: p.Cluster, several: " have announced none of their blocks",
			end: fmt.Sprintf(", although BGP is established, so their pods have no route: does a BGPFilter of "+
				"our BGPPeer "+
				"reject them? See kubectl get bgppeers.%[1]s,bgpfilters.%[1]s -o yaml, and on the node birdc show "+
				"route export",
				group[p.Cluster]),
		},
			fmt.Sprintf(" has announced none of its blocks (%d)", blocks), named(p.Peer, p.Addr), lasted)
	}
	withheld.tell(warn)
	j.quiet = quiet
}

// tellRefusals logs each refusal once, when it appears. It logs no more than a screenful in a
// round, because a peer that offers 100,000 prefixes is one fact. A refusal of an offer that will
// probably be withdrawn in a moment is a warning only once it stays.
func (j *judge) tellRefusals(refusals []routes.Refusal, at time.Time) {
	now := make(map[string]bool, len(refusals))
	told := 0
	for _, r := range refusals {
		key := fmt.Sprint(r.Offer.Peer, r.Offer.Prefix, r.Reason, r.Passing)
		now[key] = true
		if j.refused[key] {
			continue
		}
		if r.Passing {
			j.log.Debug("offer not routed, and likely to pass",
				"peer", r.Offer.Peer, "prefix", r.Offer.Prefix, "why", r.Why)
			continue
		}
		if told++; told <= screenful {
			j.log.Warn("offer refused", "cluster", r.Offer.Cluster,
				"peer", r.Offer.Peer, "prefix", r.Offer.Prefix, "reason", r.Reason, "why", r.Why)
			j.changes.add(Change{
				At: at, Kind: offerChange, What: fmt.Sprintf("offer of %s by %s refused", r.Offer.Prefix, r.Offer.Peer),
				Why: r.Why, Bad: true,
			})
		}
	}
	if told > screenful {
		j.log.Warn("more offers refused: see the status page", "count", told-screenful)
		j.changes.add(Change{
			At: at, Kind: offerChange, What: fmt.Sprintf("%d more offers refused in the same round", told-screenful),
			Bad: true,
		})
	}
	j.refused = now
}

// A fault is a sentence about one or more nodes without their names: the text before the names, the
// text after several names, and the end.
type fault struct{ cluster, before, several, end string }

// alike holds faults with the nodes that have them. Nodes that share a fault share one sentence, so
// that another fault shows even among hundreds of nodes without a BGPPeer.
type alike struct {
	faults []fault
	nodes  map[fault]*faultyNodes
}

type faultyNodes struct {
	names  []string
	one    string        // the text after the name, if only one node has the fault
	lasted time.Duration // of the node that got the fault last
}

func (a *alike) add(f fault, one, name string, lasted time.Duration) {
	n := a.nodes[f]
	if n == nil {
		if a.nodes == nil {
			a.nodes = map[fault]*faultyNodes{}
		}
		n = &faultyNodes{one: one, lasted: lasted}
		a.nodes[f], a.faults = n, append(a.faults, f)
	}
	n.names, n.lasted = append(n.names, name), min(n.lasted, lasted)
}

// tell warns of each fault.
func (a *alike) tell(warn teller) {
	const most = 5
	for _, f := range a.faults {
		n := a.nodes[f]
		names, verb := strings.Join(n.names[:min(len(n.names), most)], ", "), n.one
		if len(n.names) > 1 {
			verb = f.several
		}
		if more := len(n.names) - most; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		warn("cluster %s: %s%s%s for %s%s", f.cluster, f.before, names, verb, n.lasted, f.end)
	}
}

// named returns a node and its address.
func named(p bgp.Peer, at fmt.Stringer) string { return fmt.Sprintf("%s (%s)", whose(p), at) }

// lasting returns for how long a peer has been in a state. before holds when each peer entered the
// state. lasting adds the peer to now.
func lasting(before, now map[netip.Addr]time.Time, addr netip.Addr, at time.Time) time.Duration {
	began, known := before[addr]
	if !known {
		began = at
	}
	now[addr] = began
	return at.Sub(began).Round(time.Second)
}

// since records when a condition began, and returns how long it has lasted.
func since(began *time.Time, is bool, now time.Time) time.Duration {
	switch {
	case !is:
		*began = time.Time{}
		return 0
	case began.IsZero():
		*began = now
	}
	return now.Sub(*began)
}

func countFunc[T any](s []T, is func(T) bool) (n int) {
	for _, e := range s {
		if is(e) {
			n++
		}
	}
	return n
}
