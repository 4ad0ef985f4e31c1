package status

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/bgp"
	"sallyport/routes"
)

const (
	// ExpiresSoon is how long before its end a certificate or token counts as one that expires soon.
	ExpiresSoon = 21 * 24 * time.Hour
	// Patience is how long a start waits for clusters and peers that do not answer before it goes on
	// without them. A fault that may end by itself is a fault after that time.
	Patience = 30 * time.Second
	// Screenful is how many changes of one kind a round logs on a line each.
	Screenful = 20
)

// A Judge warns of every fault of the appliance. It remembers since when each fault lasts, and
// nothing else depends on its memory. The goroutine of the loop owns it.
type Judge struct {
	Log     *slog.Logger
	Changes *Timeline

	brokenAt  time.Time                // since when rounds fail; zero while they succeed
	missingAt time.Time                // since when wanted routes are not in the kernel
	absent    map[netip.Addr]time.Time // peers, since when there is no session with them
	// peers with a session, since when they announce none of the blocks of their node
	quiet   map[netip.Addr]time.Time
	shutAt  map[string]time.Time // clusters, since when listeners of their Gateways are not served
	near    map[string]bool      // resources that were near their limit in the last round
	refused map[string]bool      // refusals of the last round
}

// Background holds the facts that a judge needs besides the view of a round.
type Background struct {
	Age     time.Duration       // of the process
	Settled bool                // a round has ended with nothing left to do
	Heard   map[netip.Addr]bool // peers that have sent all their routes
	Crashes []string            // warnings of the quarantine
}

// A finder adds a finding: why the appliance is not ready, or what needs attention.
type finder func(code Code, subject, format string, args ...any)

// Assess fills in the findings of v: why the appliance is not ready, and what needs attention. It
// fills in NotReady and Warnings with their words. In the first round last is nil; later it is the
// view of the round before.
func (j *Judge) Assess(v, last *View, b Background) {
	finds := func(level Level) finder {
		return func(code Code, subject, format string, args ...any) {
			saw := fmt.Sprintf(format, args...)
			v.Findings = append(v.Findings, Finding{Code: code, Subject: subject, Level: level, Saw: saw})
		}
	}
	notReady, warn := finds(Failed), finds(Doubt)

	warnOfFile(v, warn)
	for _, sentence := range b.Crashes {
		warn(Crashes, "", "%s", sentence)
	}
	for i := range v.Clusters {
		v.Clusters[i].report(v, notReady, warn)
	}
	v.sessions()
	for _, sentence := range v.BGP.Contested {
		warn(ContestedAddress, "", "%s", sentence)
	}
	if v.Group != nil {
		v.Findings = append(v.Findings, v.Group.findings(v.Troubles, v.Settings.Config.Group.Port)...)
	}
	j.measure(v, warn)
	j.miss(v)
	j.withheld(v, last)
	j.shut(v, warn)
	if b.Age < Patience {
		nodes := CountFunc(v.BGP.Peers, func(p bgp.PeerState) bool { return !p.Upstream })
		silent := CountFunc(v.BGP.Peers, func(p bgp.PeerState) bool { return !p.Upstream && !b.Heard[p.Addr] })
		if silent > 0 {
			notReady(RoutesAwaited, "",
				"%d of %d BGP peers have not sent all their routes yet (End-of-RIB); the appliance waits for "+
					"another %s",
				silent, nodes, (Patience - b.Age).Round(time.Second))
		}
	}
	if !b.Settled {
		notReady(Starting, "", "the first rounds have not ended yet")
	}
	j.fail(v, notReady, warn)
	v.NotReady, v.Warnings = Sentences(v.Findings, Failed), Sentences(v.Findings, Doubt)
}

// sessions adds the findings about all BGP sessions of a cluster.
func (v *View) sessions() {
	for _, cluster := range slices.Sorted(maps.Keys(v.BGP.Static)) {
		until := v.BGP.Static[cluster].UTC().Format("15:04:05 MST")
		v.doubt(SessionsLost, cluster, fmt.Sprintf("cluster %s: every BGP session was lost at once; its routes stay "+
			"until %s, and health checks decide until then", cluster, until),
			"look at what its nodes share: the network to them, a firewall that drops port 179, our BGPPeer")
	}
	for _, cluster := range v.BGP.Unguarded {
		v.doubt(OpenSessions, cluster, fmt.Sprintf("cluster %s: its nodes connect to us (bgp.mode: passive), and any "+
			"pod can do so in the place of its node while calico-node restarts", cluster),
			"leave bgp.mode out, or set bgp.password or bgp.ttlSecurity here and in the BGPPeer")
	}
}

// doubt adds something that needs attention, with its remedy.
func (v *View) doubt(code Code, subject, saw, remedy string) {
	v.Findings = append(v.Findings, Finding{Code: code, Subject: subject, Level: Doubt, Saw: saw, Remedy: remedy})
}

// warnOfFile warns of faults in the configuration file and in the files that it names.
func warnOfFile(v *View, warn finder) {
	for _, mistake := range v.File.Errors {
		warn(BadConfig, "",
			"the configuration file has a mistake, so the previous configuration stays in use: %s", mistake)
	}
	for _, sentence := range slices.Concat(v.File.Waiting, v.Settings.Config.Warnings) {
		warn(WaitingConfig, "", "%s", sentence)
	}
	if c := v.Settings.Certificate; c != nil && v.At.Add(ExpiresSoon).After(c.Leaf.NotAfter) {
		v.Findings = append(v.Findings, Finding{
			Code: CertificateEnds, Level: Doubt,
			Saw:    "the certificate of the status endpoint is valid until " + c.Leaf.NotAfter.Format(time.RFC3339),
			Remedy: NewCertificate, Command: Reload,
		})
	}
}

// report adds the faults of a cluster.
func (c *Cluster) report(v *View, notReady, warn finder) {
	switch {
	case !c.Known && v.Compiled.Awaits == c.Name:
		notReady(ClusterUnknown, c.Name, "cluster %s: its objects are not known yet, and nothing is served before "+
			"that: its ConfigMap sets the keys of the whole process, among them guards for every host (another "+
			"cluster can set them: clusters[].ingress.process): %s", c.Name, c.Health.Error)
	case !c.Known:
		notReady(ClusterUnknown, c.Name, "cluster %s: its objects are not known yet: %s", c.Name, c.Health.Error)
	case !c.Live:
		notReady(ClusterPictured, c.Name,
			"cluster %s: its API has not answered since the start, so it is served from the picture of %s: %s",
			c.Name, c.Pictured.Format(time.RFC3339), c.Health.Error)
	case c.Health.Error != "":
		warn(ClusterAPI, c.Name, "cluster %s: %s", c.Name, c.Health.Error)
	}
	if c.Unsaved != nil {
		warn(PictureUnsaved, c.Name, "cluster %s: %v; a start without the API uses an older one", c.Name, c.Unsaved)
	}
	if c.Gone {
		warn(ClusterRemoved, c.Name,
			"cluster %s: it was removed from the configuration, and is served until the other clusters are known",
			c.Name)
	}
	if c.Next != nil {
		warn(ClusterSettings, c.Name, "cluster %s: its new settings take effect once its API has answered: %s",
			c.Name, c.Next.Error)
	}
	if words := c.DrainInWords(v.At); words != "" {
		warn(ClusterRetired, c.Name, "%s: end that with sallyport undrain --cluster %s", words, c.Name)
	}
	if of := c.Topology.Source; of.IsValid() && !c.Source.IsValid() {
		v.Findings = append(v.Findings, Finding{
			Code: SourceMissing, Subject: c.Name, Level: Doubt,
			Saw: fmt.Sprintf("cluster %s: this machine has no address of its own in %s (clusters[].source), so the "+
				"cluster's pods get no requests", c.Name, of),
			Remedy: GiveSource, Command: "ip address",
		})
	}
	for _, sentence := range c.Health.Missing {
		warn(MissingRights, c.Name, "cluster %s: %s", c.Name, sentence)
	}
	for _, sentence := range c.Health.Hints {
		v.Findings = append(v.Findings, Finding{
			Code: MissingRights, Subject: c.Name, Level: Info, Saw: "cluster " + c.Name + ": " + sentence,
			Remedy: MoreRights, Command: Manifests("FILE"),
		})
	}
	for _, sentence := range c.Health.Rivals {
		warn(ContestedStatus, c.Name, "cluster %s: %s", c.Name, sentence)
	}
	for _, sentence := range c.Health.Odd {
		warn(OddObjects, c.Name, "cluster %s: %s", c.Name, sentence)
	}
}

// fail warns of rounds that fail. It adds to notReady only rounds that have been failing, or wanted
// routes that have been missing, for longer than soon.
func (j *Judge) fail(v *View, notReady, warn finder) {
	const soon = 10 * time.Second
	if lasted := since(&j.brokenAt, v.Err != nil, v.At); v.Err != nil {
		whys := strings.Split(v.Err.Error(), "\n") // of errors.Join
		for _, why := range whys {
			warn(RoundFailed, "", "%s", why)
		}
		if lasted > soon {
			notReady(RoundFailed, "", "rounds have been failing for %s: %s", lasted.Round(time.Second),
				strings.Join(whys, "; "))
		}
	}
	missing := 0
	for p, via := range v.Want.Routes {
		if v.Have.Routes[p] != via {
			missing++
		}
	}
	if lasted := since(&j.missingAt, missing > 0, v.At); lasted > soon {
		notReady(RouteMissing, "", "%d wanted routes have not been in the kernel for %s", missing,
			lasted.Round(time.Second))
	}
}

// measure warns of each limit that is near, and of a haproxy.maxConnections that HAProxy cannot
// grant. It logs a limit once, when it gets near.
func (j *Judge) measure(v *View, warn finder) {
	for _, c := range v.Capacity {
		if c.Far() {
			delete(j.near, c.Resource)
		}
		if !c.Near() {
			continue
		}
		if !j.near[c.Resource] {
			j.Log.Warn("a limit is near", "resource", c.Resource, "used", c.Used, "limit", c.Limit, "remedy", c.Remedy)
			j.Changes.Add(Change{
				At: v.At, Kind: LimitChange, What: c.Resource + ": " + c.Amount() + " in use", Why: c.Remedy, Bad: true,
			})
		}
		if j.near == nil {
			j.near = map[string]bool{}
		}
		j.near[c.Resource] = true
		v.Findings = append(v.Findings, Finding{
			Code: Capacity, Subject: c.Resource, Level: Doubt, Saw: c.Resource + ": " + c.Amount() + " in use",
			Remedy: c.Remedy, Command: "sallyport status capacity",
		})
	}
	if v.Config == nil {
		return
	}
	if granted := v.Config.Tune.MaxConn; granted < v.Connections {
		warn(Connections, "",
			"HAProxy accepts %d connections instead of the %d that are configured (haproxy.maxConnections, "+
				"or maxconn of a ConfigMap): it may have too few files open; raise LimitNOFILE of the unit that "+
				"starts HAProxy",
			granted, v.Connections)
	}
}

// miss warns of each peer that has had no session for a while. It leaves out nodes that
// the cluster itself reports as unreachable.
func (j *Judge) miss(v *View) {
	down, asn := map[netip.Addr]bool{}, map[string]uint32{}
	for _, c := range v.Clusters {
		asn[c.Name] = c.Topology.ASN
		for _, n := range c.Topology.Nodes {
			for _, p := range n.BGP {
				down[p.Addr()] = n.Down
			}
		}
	}
	absent := map[netip.Addr]time.Time{}
	var missed alike
	const same = "are AS numbers, password and TTL security the same on both sides? `sallyport doctor` says which; "
	for _, p := range v.BGP.Peers {
		if p.Up() {
			continue
		}
		lasted := lasting(j.absent, absent, p.Addr, v.At)
		expected := fmt.Sprintf("AS %d is expected of it", p.ASN)
		if p.Node != "" && p.ASN != asn[p.Cluster] {
			expected += fmt.Sprintf(", not the cluster's %d, by annotation projectcalico.org/ASNumber of its Node "+
				"(kubectl get node %s -o yaml) or by localASNumber of our BGPPeer", asn[p.Cluster], p.Node)
		}
		how, remedy := ended(p)
		switch {
		case lasted < Patience || down[p.Addr]:
		case how != "" && p.Upstream:
			v.doubt(RouterSession, p.Addr.String(), fmt.Sprintf("there has been no BGP session with the router %s for "+
				"%s, so nothing is announced to it: %s", p.Addr, lasted, how),
				"look whether the router is up, has this appliance as a neighbour, and has the same settings of BFD")
		case how != "":
			missed.add(fault{
				cluster: p.Cluster, before: "there has been no BGP session with ", end: ": " + how, remedy: remedy,
			}, "", named(p.Peer, p.Addr), lasted)
		case p.Upstream:
			v.doubt(RouterSession, p.Addr.String(), fmt.Sprintf("the router %s has accepted no BGP session for %s, so "+
				"nothing is announced to it", netip.AddrPortFrom(p.Addr, p.Port), lasted),
				"does it have this appliance as a neighbour, may we reach its port, and are AS numbers, password, TTL "+
					"security and BFD the same on both sides?")
		case p.Active:
			missed.add(fault{
				cluster: p.Cluster, several: " have accepted no BGP session",
				remedy: "does calico-node run there, does it have our BGPPeer, may we reach its port, and " + same +
					expected,
			},
				" has accepted no BGP session", named(p.Peer, netip.AddrPortFrom(p.Addr, p.Port)), lasted)
		default:
			missed.add(fault{
				cluster: p.Cluster, several: " have not opened a BGP session",
				remedy: "does calico-node run there, does it have our BGPPeer, may it reach our port, and " + same +
					expected,
			},
				" has not opened a BGP session", named(p.Peer, p.Addr), lasted)
		}
	}
	missed.report(NoSession, v)
	j.absent = absent
}

// withheld warns of each peer that has announced none of its node's blocks for a while,
// although its session is established.
func (j *Judge) withheld(v, last *View) {
	group := map[string]string{}
	for _, c := range v.Clusters {
		group[c.Name], _, _ = strings.Cut(c.Health.APIGroup, "/")
	}
	quiet := map[netip.Addr]time.Time{}
	var withheld alike
	for _, p := range v.BGP.Peers {
		blocks := v.BGP.Withheld[p.Addr]
		if blocks == 0 || !p.Up() || !p.EndOfRIB {
			continue
		}
		lasted := lasting(j.quiet, quiet, p.Addr, v.At)
		if lasted < Patience {
			continue
		}
		if last == nil || last.At.Sub(quiet[p.Addr]) < Patience {
			j.Log.Warn("node announces none of its blocks",
				"cluster", p.Cluster, "node", p.Node, "peer", p.Addr, "blocks", blocks)
		}
		withheld.add(fault{
			cluster: p.Cluster, several: " have announced none of their blocks",
			end: ", although BGP is established, so their pods have no route",
			remedy: fmt.Sprintf("does a BGPFilter of our BGPPeer reject them? See kubectl get "+
				"bgppeers.%[1]s,bgpfilters.%[1]s -o yaml, and on the node birdc show route export", group[p.Cluster]),
		},
			fmt.Sprintf(" has announced none of its blocks (%d)", blocks), named(p.Peer, p.Addr), lasted)
	}
	withheld.report(BlocksWithheld, v)
	j.quiet = quiet
}

// shut warns of each cluster with listeners of Gateways that have not been served for a while.
func (j *Judge) shut(v *View, warn finder) {
	now := map[string]time.Time{}
	closed, first := map[string]int{}, map[string]string{}
	for _, r := range ListenerRows(v.Gateways()) {
		if cluster := r.Gateway.Cluster; !r.Listener.Programmed {
			if closed[cluster]++; closed[cluster] == 1 {
				first[cluster] = fmt.Sprintf("%s/%s %s: %s", r.Gateway.Namespace, r.Gateway.Name, r.Listener.Name,
					r.Listener.Why)
			}
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(closed)) {
		if lasting(j.shutAt, now, cluster, v.At) >= Patience {
			warn(ClosedListeners, cluster, "cluster %s: %s of Gateways %s not served, %s; `sallyport status gateways` "+
				"shows each", cluster, Counted(closed[cluster], "listener"),
				Either(closed[cluster] == 1, "is", "are"), first[cluster])
		}
	}
	j.shutAt = now
}

// LogRefusals logs each refusal once, when it appears. It logs no more than a screenful in a
// round, because a peer that offers 100,000 prefixes is one fact. A refusal of an offer that will
// probably be withdrawn in a moment is a warning only once it stays.
func (j *Judge) LogRefusals(refusals []routes.Refusal, at time.Time) {
	now := make(map[string]bool, len(refusals))
	told := 0
	for _, r := range refusals {
		key := fmt.Sprint(r.Offer.Peer, r.Offer.Prefix, r.Reason, r.Passing)
		now[key] = true
		if j.refused[key] {
			continue
		}
		if r.Passing {
			j.Log.Debug("offer not routed, and likely to pass",
				"peer", r.Offer.Peer, "prefix", r.Offer.Prefix, "why", r.Why)
			continue
		}
		if told++; told <= Screenful {
			j.Log.Warn("offer refused", "cluster", r.Offer.Cluster,
				"peer", r.Offer.Peer, "prefix", r.Offer.Prefix, "reason", r.Reason, "why", r.Why)
			j.Changes.Add(Change{
				At: at, Kind: OfferChange, What: fmt.Sprintf("offer of %s by %s refused", r.Offer.Prefix, r.Offer.Peer),
				Why: r.Why, Bad: true,
			})
		}
	}
	if told > Screenful {
		j.Log.Warn("more offers refused: see the status page", "count", told-Screenful)
		j.Changes.Add(Change{
			At: at, Kind: OfferChange, What: fmt.Sprintf("%d more offers refused in the same round", told-Screenful),
			Bad: true,
		})
	}
	j.refused = now
}

// A fault is a sentence about one or more nodes without their names: the text before the names, the
// text after several names, the end, and the remedy.
type fault struct{ cluster, before, several, end, remedy string }

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

// report adds a finding for each fault.
func (a *alike) report(code Code, v *View) {
	const most = 5
	for _, f := range a.faults {
		n := a.nodes[f]
		names, verb := Few(n.names, most), n.one
		if len(n.names) > 1 {
			verb = f.several
		}
		saw := fmt.Sprintf("cluster %s: %s%s%s for %s%s", f.cluster, f.before, names, verb, n.lasted, f.end)
		v.doubt(code, f.cluster, saw, f.remedy)
	}
}

// named returns a node and its address.
func named(p bgp.Peer, at fmt.Stringer) string { return fmt.Sprintf("%s (%s)", Whose(p), at) }

// lasting returns for how long something has been in a state. before holds when each thing entered
// the state. lasting adds the thing to now.
func lasting[K comparable](before, now map[K]time.Time, of K, at time.Time) time.Duration {
	began, known := before[of]
	if !known {
		began = at
	}
	now[of] = began
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
