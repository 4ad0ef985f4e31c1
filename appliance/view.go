package appliance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/watch"
	"sallyport/routes"
)

// view holds what one round saw and decided, for the status endpoint. It is never
// changed afterwards.
type view struct {
	settings  settings
	file      ConfigStatus
	at        time.Time
	took      time.Duration
	clusters  []clusterView
	peers     []bgp.PeerState
	unguarded []string // clusters whose pods could take a node's BGP session
	contested []string // BGP addresses that several clusters claim, a sentence each
	offers    int
	refusals  []routes.Refusal
	static    map[string]time.Time // clusters that lost every session at once, and until when their routes stay
	withheld  map[netip.Addr]int   // nodes that announce none of their blocks, and how many they own
	want      plan.Want
	have      plan.Have
	config    *haproxy.Config
	problems  []ingress.Problem
	compiled  ingress.Result
	steps     []plan.Step // that the round planned, taken or not
	err       error
	notReady  []string
	warnings  []string
	capacity  []haproxy.Capacity
	fit       group.Fitness
	behind    bool                  // the process before may have served what this one does not know yet
	left      bool                  // drained: nothing is announced, and HAProxy ends what is kept
	group     *GroupStatus          // nil: in no group
	troubles  []trouble             // with the group's addresses and routers
	waits     []haproxy.Wait        // whose changes wait for a reload
	closed    map[netip.Addr]string // addresses of the pools that no Service gets, each with what it is

	connections int // that HAProxy is configured to accept; 0: nobody says
}

type clusterView struct {
	name     string
	health   watch.Health
	known    bool
	live     bool
	pictured time.Time
	topology routes.Topology
	gone     bool          // the configuration does not have the cluster any more
	next     *watch.Health // health of the watcher with newer settings, while it has not read the whole cluster; nil: there is none
}

// judge fills in notReady and warnings: why the appliance is not ready, and what needs
// attention, one sentence each.
func (l *loop) judge(v *view) {
	const soon = 10 * time.Second // a failure that is shorter does not make the appliance unready
	notReady := func(format string, args ...any) { v.notReady = append(v.notReady, fmt.Sprintf(format, args...)) }
	warn := func(format string, args ...any) { v.warnings = append(v.warnings, fmt.Sprintf(format, args...)) }

	for _, mistake := range v.file.Errors {
		warn("the configuration file has a mistake, so the previous configuration stays in use: %s", mistake)
	}
	for _, sentence := range slices.Concat(v.file.Waiting, v.settings.cfg.Warnings) {
		warn("%s", sentence)
	}
	if c := v.settings.certificate; c != nil && v.at.Add(expiresSoon).After(c.Leaf.NotAfter) {
		warn("the certificate of the status endpoint is valid until %s: put a new one into the file of status.tls.certificate, then systemctl reload sallyport", c.Leaf.NotAfter.Format(time.RFC3339))
	}
	for _, sentence := range l.crashed.warnings() {
		warn("%s", sentence)
	}
	for _, c := range v.clusters {
		switch {
		case !c.known:
			notReady("cluster %s: its objects are not known yet: %s", c.name, c.health.Error)
		case !c.live:
			notReady("cluster %s: its API has not answered since the start, so it is served from the picture of %s: %s", c.name, c.pictured.Format(time.RFC3339), c.health.Error)
		case c.health.Error != "":
			warn("cluster %s: %s", c.name, c.health.Error)
		}
		if err := l.pictures.Fault(c.name); err != nil {
			warn("cluster %s: the last good picture cannot be saved in %s: %v; a start without the API uses an older one", c.name, l.pictures.Dir(), err)
		}
		if c.gone {
			warn("cluster %s: it was removed from the configuration, and is served until the other clusters are known", c.name)
		}
		if c.next != nil {
			warn("cluster %s: its new settings take effect once its API has answered: %s", c.name, c.next.Error)
		}
		for _, sentence := range slices.Concat(c.health.Missing, c.health.Odd) {
			warn("cluster %s: %s", c.name, sentence)
		}
	}
	for _, cluster := range sorted(v.static) {
		until := v.static[cluster]
		warn("cluster %s: every BGP session was lost at once; look at what its nodes share: the network to them, a firewall that drops port 179, our BGPPeer; its routes stay until %s, and health checks decide until then", cluster, until.UTC().Format("15:04:05 MST"))
	}
	for _, cluster := range v.unguarded {
		warn("cluster %s: its nodes connect to us (bgp.mode: passive), and any pod can do so in the place of its node while calico-node restarts; leave bgp.mode out, or set bgp.password or bgp.ttlSecurity here and in the BGPPeer", cluster)
	}
	for _, sentence := range v.contested {
		warn("%s", sentence)
	}
	if v.group != nil {
		for _, sentence := range v.group.warnings(v) {
			warn("%s", sentence)
		}
	}
	l.measure(v, warn)
	l.miss(v, warn)
	l.withheld(v, warn)
	if age := v.at.Sub(l.started); age < patience {
		nodes := countFunc(v.peers, func(p bgp.PeerState) bool { return !p.Upstream })
		if silent := countFunc(v.peers, func(p bgp.PeerState) bool { return !p.Upstream && !l.heard[p.Addr] }); silent > 0 {
			notReady("%d of %d BGP peers have not sent all their routes yet (End-of-RIB); the appliance waits for another %s", silent, nodes, (patience - age).Round(time.Second))
		}
	}
	if !l.settled {
		notReady("the first rounds have not ended yet")
	}
	if lasted := since(&l.brokenAt, v.err != nil, v.at); v.err != nil {
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
	if lasted := since(&l.missingAt, missing > 0, v.at); lasted > soon {
		notReady("%d wanted routes have not been in the kernel for %s", missing, lasted.Round(time.Second))
	}
}

// measure warns of each limit that is near, and of a setting that exceeds one. It logs a
// limit once, when it gets near.
func (l *loop) measure(v *view, warn func(string, ...any)) {
	for _, c := range v.capacity {
		if c.Far() {
			delete(l.near, c.Resource)
		}
		if !c.Near() {
			continue
		}
		if !l.near[c.Resource] {
			l.log.Warn("a limit is near", "resource", c.Resource, "used", c.Used, "limit", c.Limit, "remedy", c.Remedy)
			l.changes.add(Change{At: v.at, Kind: limitChange, What: c.Resource + ": " + c.Amount() + " in use", Why: c.Remedy, Bad: true})
		}
		l.near[c.Resource] = true
		warn("%s", c)
	}
	if v.config == nil {
		return
	}
	if granted := v.config.Tune.MaxConn; granted < v.connections {
		warn("HAProxy accepts %d connections instead of the %d that are configured (haproxy.maxConnections, or maxconn of a ConfigMap): it may have too few files open; raise LimitNOFILE of the unit that starts HAProxy", granted, v.connections)
	}
}

// miss warns of each peer that has had no session for a while. It leaves out nodes that
// the cluster itself reports as unreachable.
func (l *loop) miss(v *view, warn func(string, ...any)) {
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
		lasted := lasting(l.absent, absent, p.Addr, v.at)
		expected := fmt.Sprintf("AS %d is expected of it", p.ASN)
		if p.Node != "" && p.ASN != asn[p.Cluster] {
			expected += fmt.Sprintf(", not the cluster's %d, by annotation projectcalico.org/ASNumber of its Node (kubectl get node %s -o yaml) or by localASNumber of our BGPPeer", asn[p.Cluster], p.Node)
		}
		how := ended(p)
		switch {
		case lasted < patience || down[p.Addr]:
		case how != "" && p.Upstream:
			warn("there has been no BGP session with the router %s for %s, so nothing is announced to it: %s; look whether the router is up, has this appliance as a neighbour, and has the same settings of BFD", p.Addr, lasted, how)
		case how != "":
			missed.add(fault{p.Cluster, noSession, "", ": " + how}, "", named(p.Peer, p.Addr), lasted)
		case p.Upstream:
			warn("the router %s has accepted no BGP session for %s, so nothing is announced to it: does it have this appliance as a neighbour, may we reach its port, and are AS numbers, password, TTL security and BFD the same on both sides?", netip.AddrPortFrom(p.Addr, p.Port), lasted)
		case p.Active:
			missed.add(fault{p.Cluster, "", " have accepted no BGP session", ": does calico-node run there, does it have our BGPPeer, may we reach its port, and " + same + " " + expected},
				" has accepted no BGP session", named(p.Peer, netip.AddrPortFrom(p.Addr, p.Port)), lasted)
		default:
			missed.add(fault{p.Cluster, "", " have not opened a BGP session", ": does calico-node run there, does it have our BGPPeer, may it reach our port, and " + same + " " + expected},
				" has not opened a BGP session", named(p.Peer, p.Addr), lasted)
		}
	}
	missed.tell(warn)
	l.absent = absent
}

// withheld warns of each peer that has announced none of its node's blocks for a while,
// although its session is established.
func (l *loop) withheld(v *view, warn func(string, ...any)) {
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
		lasted := lasting(l.quiet, quiet, p.Addr, v.at)
		if lasted < patience {
			continue
		}
		if last := l.view.Load(); last == nil || last.at.Sub(quiet[p.Addr]) < patience {
			l.log.Warn("node announces none of its blocks", "cluster", p.Cluster, "node", p.Node, "peer", p.Addr, "blocks", blocks)
		}
		withheld.add(fault{p.Cluster, "", " have announced none of their blocks", fmt.Sprintf(", although BGP is established, so their pods have no route: does a BGPFilter of our BGPPeer reject them? See kubectl get bgppeers.%[1]s,bgpfilters.%[1]s -o yaml, and on the node birdc show route export", group[p.Cluster])},
			fmt.Sprintf(" has announced none of its blocks (%d)", blocks), named(p.Peer, p.Addr), lasted)
	}
	withheld.tell(warn)
	l.quiet = quiet
}

// A fault is what a sentence tells of one or more nodes: before their names, after them if they are
// several, and at its end.
type fault struct{ cluster, before, several, end string }

// alike holds faults with the nodes that have them. Nodes that share a fault share its sentence:
// among hundreds of nodes without a BGPPeer, another fault has to be seen.
type alike struct {
	faults []fault
	nodes  map[fault]*faultyNodes
}

type faultyNodes struct {
	names  []string
	one    string        // after the name if there is one
	lasted time.Duration // of the last one to have the fault
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
func (a *alike) tell(warn func(string, ...any)) {
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

// lasting returns for how long a peer is in a state, of which before holds the beginning.
// It adds the peer to now.
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
