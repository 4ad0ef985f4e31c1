package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/metrics"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/budget"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
	"sallyport/routes"
)

// These interfaces are the edges of the loop. bgp.Speaker, watch.Watcher, routes.Kernel and
// haproxy.Proxy implement them; tests use fakes.
type (
	speaker interface {
		Listen([]netip.Addr, uint16) error
		SetPeers([]bgp.Peer) error
		Peers() []bgp.PeerState
		Offers() ([]routes.Offer, error)
		Announce([]bgp.Announcement) error
		Changed() <-chan struct{}
	}
	watcher interface {
		Snapshot() (input.Snapshot, error)
		Health() watch.Health
		Serve(ingress.Result)
		Publish(watch.Publication)
		Changed() <-chan struct{}
	}
	kernel interface {
		List() (routes.Listing, error)
		Local() (routes.Local, error)
		Add(routes.Selector, netip.Addr) error
		Drop(routes.Selector) error
		AddRule(routes.Selector) error
		DropRule(routes.Selector) error
		Mute() (map[routes.End]bool, error)
		Abort(map[routes.End]bool) (int, error)
		Changed() <-chan struct{}
	}
	proxy interface {
		Servers() (haproxy.LiveBackends, error)
		Apply(context.Context, *haproxy.Config, haproxy.States) (haproxy.Result, error)
		Former(*haproxy.Config) []*haproxy.Backend
		Vet(context.Context, []haproxy.Question) (haproxy.Verdicts, error)
		Blame(context.Context, *haproxy.Config) (haproxy.Verdicts, error)
		Info() haproxy.Info
		Changed() <-chan struct{}
	}
)

const (
	// tick bounds how long the loop rests. It limits the cost of a missed knock, and
	// serves deadlines, which send no knock.
	tick = time.Second
	// HAProxy gets the configuration again although nothing changed: reapplySoon after an Apply
	// that changed something, and then at intervals of reapply. This ends an error of ours that no
	// reading of HAProxy shows. Package haproxy counts the changes that only such a repetition
	// made.
	reapplySoon, reapply = time.Second, 10 * time.Second
	// roundsAtOnce bounds the rounds after one knock. Three rounds settle any state
	// (see plan.Plan); more are needed only if the state changes meanwhile.
	roundsAtOnce = 8
)

// A cluster is a cluster of the configuration file, with its watcher and its last known objects.
type cluster struct {
	name     string
	gone     bool           // it was removed from the configuration; it stays until the other clusters are known
	peering  config.Peering // the BGP settings for its nodes
	opened                  // the watcher in use
	next     *opened        // the watcher with newer settings, until it has read the whole cluster; else nil
	snapshot input.Snapshot
	known    bool      // snapshot holds something: live, or the last good picture
	live     bool      // snapshot has come from the API since the start
	pictured time.Time // when the picture in use was taken; zero once live
	answered time.Time // when its API first answered, if this appliance is in a group: awaits may wait after that

	told    ingress.Result // the last Result published to the cluster
	toldOf  input.Snapshot // the snapshot of that Result
	toldMay consent        // the changes of statuses that were allowed with that Result

	toldPending map[string]bool // the Gateways that HAProxy did not serve yet with that Result
}

// A loop computes the wanted state from the clusters' objects and the peers' offers, and brings
// kernel and HAProxy to it. Each of its parts with a state of their own has a type. A follower
// holds the configuration and the clusters. A membership is this appliance's part in its group. An
// adoption holds the state that the process before left. A firewall holds the last order to the
// machine's firewall. A judge remembers since when something is wrong. The goroutine of run owns
// every field except view and counts.
type loop struct {
	follower
	membership
	adoption
	firewall
	log     *slog.Logger
	now     func() time.Time
	speaker speaker
	kernel  kernel
	proxy   proxy
	alive   func()        // called after each knock or tick
	knock   chan struct{} // receives after a change of any edge

	policy   routes.Policy
	compiler *budget.Compiler
	vetter   *vetter
	certs    *certs
	planner  plan.Planner
	scarcity plan.Scarcity
	applied  applied
	settled  bool // a round has ended with nothing left to do
	judge    status.Judge
	doubt    plan.Doubt

	failing error // of the last round: why it could not read or act

	view    atomic.Pointer[status.View]
	counts  metrics.Loop
	changes status.Timeline
}

// begin makes the loop ready for its first round.
func (l *loop) begin() {
	l.started = l.now()
	l.knock = make(chan struct{}, 1)
	f := &l.follower
	f.log, f.now, f.changes, f.knock = l.log, l.now, &l.changes, l.knock
	f.file.Read = l.started
	g := &l.membership
	g.log, g.now, g.announcer.speaker, g.knock = l.log, l.now, l.speaker, l.knock
	l.vetter = newVetter(l.proxy, l.log)
	l.certs = &certs{
		proxy: l.proxy, log: l.log, refuse: l.vetter.refuse, changed: l.vetter.changed, suspect: map[string]bool{},
	}
	l.heard = map[netip.Addr]bool{}
	l.judge = status.Judge{Log: l.log, Changes: &l.changes}
}

// run plans and acts until ctx ends. It then leaves kernel and HAProxy as they are.
func (l *loop) run(ctx context.Context) {
	doors := []<-chan struct{}{l.speaker.Changed(), l.kernel.Changed(), l.proxy.Changed(), l.vetter.changed}
	for _, door := range doors {
		go relay(ctx, door, l.knock)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		reloaded := func() {}
		select {
		case <-ctx.Done():
			return
		case <-l.again:
			l.reload(ctx)
			reloaded = l.reloaded
		case <-l.knock:
		case <-timer.C:
		}
		for range roundsAtOnce {
			if !l.round(ctx) || ctx.Err() != nil {
				break
			}
		}
		reloaded()
		l.alive()
		rest := tick
		if at := l.applied.retryAt; !at.IsZero() {
			rest = max(min(rest, at.Sub(l.now())), time.Millisecond)
		}
		if l.member != nil && l.member.learns {
			rest = min(rest, listening/10)
		}
		if l.doubt.Fresh(l.now()) || l.fit.Doubted() || l.ring.unmet(l.now()) {
			rest = min(rest, plan.DoubtTick)
		}
		timer.Reset(rest)
	}
}

// reload reads the configuration file again, and uses it if it has no mistake.
func (l *loop) reload(ctx context.Context) {
	if s, ok := l.follower.readFile(); ok {
		l.use(ctx, s)
	}
}

// use replaces the settings. It adapts the compiler, the membership, the watchers and the status
// endpoint to them.
func (l *loop) use(ctx context.Context, s settings) {
	if l.compiler == nil || !slices.Equal(l.ports, s.ports) {
		l.compiler = budget.New(CompilerOf(s.ports))
	}
	l.follower.set(s)
	l.membership.enter(ctx, s.cfg)
	l.follower.follow(ctx)
}

// relay knocks on the channel to for each value that it receives from the channel from, until ctx
// ends.
func relay(ctx context.Context, from <-chan struct{}, to chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-from:
			knock(to)
		}
	}
}

// knock sends on a channel with room for one value, and does not wait. If the channel is full, the
// loop has not handled an earlier knock yet, and the next round serves both.
func knock(door chan<- struct{}) {
	select {
	case door <- struct{}{}:
	default:
	}
}

// A reading holds everything that a round has read, and whether the round may act on it.
type reading struct {
	snapshots, unknown []input.Snapshot
	topologies         []routes.Topology
	local              routes.Local
	peers              []bgp.Peer // the nodes and route reflectors of the clusters
	info               haproxy.Info
	refusals           []routes.Refusal
	mayAct             bool

	kernelErr, proxyErr, peersErr, offersErr error
}

// round reads everything once and takes the steps that are safe now. It reports whether it changed
// something, because another round may then find more to do.
func (l *loop) round(ctx context.Context) (progress bool) {
	v := &status.View{At: l.now(), Settings: l.settings.shown(), File: l.file}
	if last := l.view.Load(); last != nil {
		v.Have = last.Have // shown while the actual state cannot be read
	}
	defer l.finish(v)

	l.obey()
	r, err := l.read(v)
	if err != nil {
		v.Err = err
		return false
	}
	l.wantRoutes(v, r)
	l.compile(ctx, v, r)
	v.Want.Drained, v.Want.Silent, v.Want.Shares = l.drained(v), l.silent(v), l.shares(v)
	v.Err = errors.Join(r.peersErr, r.offersErr, r.kernelErr, r.proxyErr)
	var facts group.Facts
	if l.member != nil {
		facts = l.facts(v, r.silent())
	}
	standing, groupErr := l.membership.represent(ctx, v, r.local, facts, l.applied.config)
	l.wantServers(v, r, standing)
	// An error about one peer, the firewall or an address does not count against the class of the
	// appliance: such an error stops no traffic here.
	l.failing = errors.Join(r.offersErr, r.kernelErr)
	defer func() { v.Err = errors.Join(v.Err, groupErr) }()
	if r.offersErr != nil || r.kernelErr != nil || r.proxyErr != nil || !r.mayAct {
		return false
	}

	// The firewall comes first, so that it does not block the ports and servers that this round
	// opens.
	admitErr := l.firewall.letIn(r.peers, v.Want, v.Have, v.Config)

	v.Steps = l.planner.Plan(v.Want, v.Have)
	weighed, n := l.planner.Backends(), len(v.Config.Backends)
	v.Config.Backends, v.Config.Former = weighed[:n:n], weighed[n:]
	progress, err = l.take(ctx, v)
	v.Err, l.failing = errors.Join(v.Err, admitErr, err), err
	l.settled = l.settled || err == nil && !progress
	v.Left = v.Config.Leaving && v.Err == nil && l.applied.retryAt.IsZero()
	if err == nil {
		l.publish(v)
		l.follower.keep(v.Compiled)
	}
	l.judge.LogRefusals(r.refusals, l.now())
	return progress && err == nil
}

// finish judges the view of a round, and publishes it.
func (l *loop) finish(v *status.View) {
	v.Took, v.Have.Listeners = l.now().Sub(v.At), l.applied.served
	last := l.view.Load()
	l.judge.Assess(v, last, status.Background{
		Age: v.At.Sub(l.started), Settled: l.settled, Heard: l.heard, Crashes: l.crashed.warnings(),
	})
	l.changes.NoteView(last, v)
	l.view.Store(v)
	l.counts.Round(v)
}

// read reads the clusters and the actual state. It returns an error only if the round cannot decide
// anything after the failure.
func (l *loop) read(v *status.View) (*reading, error) {
	r := new(reading)
	r.snapshots, r.unknown, r.mayAct = l.look()
	for _, c := range l.clusters {
		seen := status.Cluster{
			Name: c.name, Health: c.watcher.Health(), Known: c.known, Live: c.live, Pictured: c.pictured,
			Topology: c.snapshot.Topology, Gone: c.gone, Drained: l.retired.get(c.name),
		}
		if err := l.pictures.Fault(c.name); err != nil {
			seen.Unsaved = fmt.Errorf("the last good picture cannot be saved in %s: %w", l.pictures.Dir(), err)
		}
		if c.next != nil {
			health := c.next.watcher.Health()
			seen.Next = &health
		}
		v.Clusters = append(v.Clusters, seen)
	}
	var err error
	if r.local, err = l.kernel.Local(); err != nil {
		return nil, fmt.Errorf("reading our own networks: %w", err)
	}
	r.topologies = make([]routes.Topology, 0, len(r.snapshots))
	for i := range r.snapshots {
		s := &r.snapshots[i]
		r.topologies = append(r.topologies, s.Topology)
		s.Options.Source, _ = r.local.SourceOf(s.Topology.Source) // without one, the cluster gets no routes
	}
	for i := range v.Clusters {
		v.Clusters[i].Source, _ = r.local.SourceOf(v.Clusters[i].Topology.Source)
	}
	have, kernelErr, proxyErr := l.have(r.topologies, r.local)
	r.kernelErr, r.proxyErr = kernelErr, proxyErr
	if kernelErr != nil || proxyErr != nil {
		return r, nil
	}
	v.Have = have
	if l.adopted == nil {
		l.adopt(have.Routes)
		l.fresh = l.proxy.Info().Worker == 0
		l.caughtUp = l.fresh
	}
	r.mayAct = r.mayAct || l.mayBegin()
	if err := l.forsake(v); err != nil {
		l.log.Warn("connections to unreachable servers cannot be closed", "err", err)
	}
	return r, nil
}

// wantRoutes computes the wanted routes from the offers of the BGP peers.
func (l *loop) wantRoutes(v *status.View, r *reading) {
	routers := routers(l.cfg)
	var offers []routes.Offer
	r.peers, v.BGP.Contested = l.peers(r.topologies, routers)
	r.peersErr = errors.Join(
		l.speaker.Listen(l.follower.doors(), l.cfg.BGP.Port), l.speaker.SetPeers(slices.Concat(r.peers, routers)))
	v.BGP.Peers, v.BGP.Unguarded = l.speaker.Peers(), unguarded(r.peers)
	offers, r.offersErr = l.speaker.Offers()
	v.BGP.Offers = len(offers)
	l.counts.Offers(offers)
	offers = append(offers, l.adoptedOffers(r.topologies, v.BGP.Peers)...)
	facts := routes.Facts{
		Now: v.At, Topologies: r.topologies, Local: r.local, Retain: l.cfg.BGP.Retain, FailStatic: l.cfg.BGP.FailStatic,
	}
	v.Want.Routes, r.refusals = l.policy.Verify(offers, facts)
	v.Want.Rules = routes.Rules(r.topologies, r.local)
	v.BGP.Refusals = slices.DeleteFunc(slices.Clone(r.refusals), func(r routes.Refusal) bool { return r.Passing })
	v.Want.Allocations = l.policy.Allocate(facts)
	v.BGP.Static, v.BGP.Withheld = l.policy.Static(offers, facts), l.policy.Withheld(offers, facts)
	v.Used = uses(l.cfg.Pools(), r.topologies, l.member.strangers())
}

// compile computes the Result of the clusters' objects. It clears mayAct while an earlier process may
// have served an object that this process does not know yet, and while guards for every host are unknown.
func (l *loop) compile(ctx context.Context, v *status.View, r *reading) {
	r.info = l.proxy.Info()
	l.compiler.Unknown, l.compiler.Used, l.compiler.Local = r.unknown, v.Used, within(l.cfg.Pools(), r.local.Addrs)
	l.compiler.Room = r.info.Room.Servers()
	l.compiler.Judge(l.vetter.known(v.At))
	newest := l.compiler.Compile(r.snapshots)
	for _, c := range l.clusters {
		if owners := newest.Owners[c.name]; owners != nil {
			c.snapshot.Owners = owners
		}
		c.watcher.Serve(newest)
	}
	l.teach(newest)
	compiled, sure := l.vetter.vetted(ctx, newest, v.At)
	usable, waits := l.certs.usable(ctx, compiled.Config.Certs)
	compiled.Config.Certs = usable
	if (!sure || waits) && !l.settled && v.At.Sub(l.started) < status.Patience {
		r.mayAct = false // an earlier process may have served a text that still waits for a verdict
	}
	v.Behind = l.behind(v.At, sure && !waits)
	r.mayAct = r.mayAct && !v.Behind && newest.Awaits == ""
	v.Waits = r.info.Waits
	v.Compiled = compiled.Delayed(r.info.Waits)
	v.Problems = v.Compiled.AllProblems()
}

// wantServers computes the configuration of HAProxy, and the wanted servers.
func (l *loop) wantServers(v *status.View, r *reading, s standing) {
	config := wish(v.Compiled, l.settings, machine{now: v.At, addrs: r.local.Addrs, haproxy: r.info}, s)
	// A new listener opens together with its certificates. Until then clients would see another one.
	config.Listeners = slices.DeleteFunc(slices.Clone(config.Listeners), func(one haproxy.Listener) bool {
		return l.settled && slices.Contains(l.certs.closed, haproxy.ScopeOf(one.At)) &&
			!slices.Contains(l.applied.served, one)
	})
	if r.proxyErr == nil { // else nothing is applied, and a HAProxy that starts answers late
		config.Former = l.proxy.Former(&config)
	}
	v.Config, v.Connections = &config, connections(l.cfg, v.Compiled.Config.Process)
	v.Capacity = slices.Concat(r.info.Room.Capacity(v.Compiled.Servers, config.Tables), r.info.Capacity)
	v.Want.Backends = config.Backends
	if len(config.Former) > 0 {
		v.Want.Backends = slices.Concat(config.Backends, config.Former)
	}
	if r.proxyErr == nil {
		v.Want.Scarce = l.scarcity.Update(v.Want.Backends, v.Have.Backends, l.least(), v.At)
	}
}

// silent returns why HAProxy does not answer, or "" if it answers.
func (r *reading) silent() string {
	switch {
	case r.proxyErr != nil:
		return r.proxyErr.Error()
	case r.info.Worker == 0:
		return "it has no worker"
	}
	return ""
}

// facts returns the facts from which group.Fit decides the class of this appliance. The membership
// adds those that it knows.
func (l *loop) facts(v *status.View, silent string) group.Facts {
	f := group.Facts{Starting: v.At.Sub(l.started) < status.Patience, HAProxy: silent, Settled: l.settled}
	if l.failing != nil {
		f.Failing = l.failing.Error()
	}
	if silent == "" {
		for p, via := range v.Want.Routes {
			if v.Have.Routes[p] != via {
				f.Missing++
			}
		}
		for s := range v.Have.Servers() {
			if s.State == haproxy.Open && s.Check == haproxy.Up {
				f.Down = false
				break
			}
			f.Down = f.Down || s.State == haproxy.Open && s.Check == haproxy.Down
		}
	}
	for _, c := range l.clusters {
		if c.gone {
			continue
		}
		cf, up := group.ClusterFacts{Name: c.name, Live: c.live}, false
		for _, p := range v.BGP.Peers {
			if p.Cluster == c.name && !p.Upstream {
				cf.Peers++
				up = up || p.Up()
				if l.heard[p.Addr] {
					cf.Heard++
				}
			}
		}
		// The sessions of an earlier process do not count as lost. This process gets its own sessions one
		// after another, and until then it has adopted routes.
		_, static := v.BGP.Static[c.name]
		// Giving up the class moves connections, and is for nothing if other clusters serve instead.
		cf.Lost = static && cf.Heard > 0 && (!up || len(l.adopted) == 0) && !v.Replaced(c.name)
		f.Clusters = append(f.Clusters, cf)
	}
	return f
}

// once sorts a list and drops repeated elements.
func once[T comparable](list []T, compare func(a, b T) int) []T {
	slices.SortFunc(list, compare)
	return slices.Compact(list)
}

// look reads the clusters. unknown holds the options of each cluster that is not known yet. mayAct
// reports whether enough clusters are known to act: all of them, or at least one after the patience
// of a start. Acting earlier would treat a cluster that has not answered yet as an empty cluster. See
// mayBegin for the exception.
//
// After a reload, a cluster that was removed from the configuration stays until the other clusters
// are known, or patience has passed. Until then a cluster that is not known counts as not
// configured, because it may be the removed cluster under a new name.
func (l *loop) look() (snapshots, unknown []input.Snapshot, mayAct bool) {
	known, missing := 0, 0
	for _, c := range l.clusters {
		c.turn()
		if s, err := c.watcher.Snapshot(); err == nil && (c.live || !l.awaits(c)) {
			var held []ingress.Problem
			s.Objects, held = l.crashed.use(c.name, s.Objects)
			s.Owners = c.snapshot.Owners
			s.Beyond = slices.Concat(s.Beyond, l.pictures.LeftOut(c.name), held)
			c.snapshot, c.known, c.live, c.pictured = s, true, true, time.Time{}
		}
		switch {
		case c.gone:
		case c.known:
			known++
		default:
			missing++
		}
	}
	awaited := slices.ContainsFunc(l.clusters, func(c *cluster) bool { return !c.live })
	l.crashed.advance(l.now(), !awaited || l.now().Sub(l.started) > status.Patience)
	if missing == 0 || known > 0 && l.now().Sub(l.file.Read) > status.Patience {
		l.clusters = slices.DeleteFunc(l.clusters, func(c *cluster) bool {
			if c.gone {
				l.drop(c)
			}
			return c.gone
		})
	}
	waits := slices.ContainsFunc(l.clusters, func(c *cluster) bool { return c.gone })
	for _, c := range l.clusters {
		switch {
		case c.known:
			snapshots = append(snapshots, c.snapshot)
		case !waits:
			unknown = append(unknown, input.Snapshot{Cluster: c.name, Options: c.snapshot.Options})
		}
	}
	return snapshots, unknown, missing == 0 || len(snapshots) > 0 && l.now().Sub(l.started) > status.Patience
}

// mayBegin reports whether the known clusters can be served before the patience of a start has passed. Two
// things must hold:
//
//   - HAProxy served nothing when this process began. Nothing of a cluster that is not known yet is removed.
//   - The known clusters come before the others in the configuration file. No other cluster has a host of theirs
//     but by an entry of ingress.hosts, which is in the file.
func (l *loop) mayBegin() bool {
	first := slices.IndexFunc(l.clusters, func(c *cluster) bool { return !c.known })
	return l.fresh && first > 0 && !slices.ContainsFunc(l.clusters[first:], func(c *cluster) bool { return c.known })
}

// peers returns the BGP peers: one for each address of each node that peers with us,
// and the route reflectors that are not nodes. An address that several clusters claim
// goes to the first of them in the configuration; contested reports each other claim. A
// router (group.upstream.peers) keeps its address, and conflicts reports that.
func (l *loop) peers(topologies []routes.Topology, routers []bgp.Peer) (peers []bgp.Peer, contested []string) {
	by := map[netip.Addr]bgp.Peer{}
	add := func(cluster string, node routes.Node, addr netip.Addr) {
		p := l.peer(cluster, node, addr)
		if slices.ContainsFunc(routers, func(r bgp.Peer) bool { return r.Addr == addr }) {
			return
		}
		if first, twice := by[addr]; twice {
			contested = append(contested,
				fmt.Sprintf("cluster %s: the BGP address %s of %s also belongs to %s in cluster %s, "+
					"which keeps it: give each node an address of its own",
					cluster, addr, status.Whose(p), status.Whose(first), first.Cluster))
			return
		}
		by[addr] = p
		peers = append(peers, p)
	}
	for _, t := range topologies {
		for _, node := range t.Nodes {
			if node.Behind {
				continue
			}
			for _, addr := range node.BGP {
				add(t.Cluster, node, addr.Addr())
			}
		}
		for _, addr := range t.Reflectors {
			add(t.Cluster, routes.Node{ASN: t.ASN}, addr)
		}
	}
	return peers, contested
}

// unguarded returns the clusters with nodes that connect to us without a password or TTL security.
// Any pod there can connect under the address of its node.
func unguarded(peers []bgp.Peer) (clusters []string) {
	for _, p := range peers {
		if !p.Active && p.Password == "" && !p.TTLSecurity && !slices.Contains(clusters, p.Cluster) {
			clusters = append(clusters, p.Cluster)
		}
	}
	return clusters
}

// have reads the actual state from the kernel and HAProxy.
func (l *loop) have(topologies []routes.Topology, local routes.Local) (have plan.Have, kernelErr, proxyErr error) {
	listing, kernelErr := l.kernel.List()
	if kernelErr != nil {
		kernelErr = fmt.Errorf("reading our routes from the kernel: %w", kernelErr)
	}
	have.Routes, have.Conflicts, have.Rules = listing.Routes, listing.Conflicts, listing.Rules
	if have.Backends, proxyErr = l.proxy.Servers(); proxyErr != nil {
		proxyErr = fmt.Errorf("reading the servers from HAProxy: %w", proxyErr)
	}
	have.Direct = map[netip.Addr]bool{}
	for _, t := range topologies {
		if !t.HostNetwork {
			continue
		}
		for _, n := range t.Nodes {
			for _, a := range n.Addresses {
				if slices.ContainsFunc(local.Networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
					have.Direct[a] = true
				}
			}
		}
	}
	return have, kernelErr, proxyErr
}

// take takes the steps of the view: the routes one by one, the servers by one Apply. It takes the
// remaining steps even if a step fails.
func (l *loop) take(ctx context.Context, v *status.View) (progress bool, err error) {
	var errs []error
	var servers []plan.SetServer
	var changed []plan.Step                          // routes
	turned := make(routes.Table, len(v.Have.Routes)) // the routes in the kernel, with the changes made here
	maps.Copy(turned, v.Have.Routes)
	for _, step := range v.Steps {
		if v.Have.Shadowed(step) {
			continue // it is there, and another program's route or rule shadows it
		}
		var err error
		switch s := step.(type) {
		case plan.AddRoute:
			if err = l.kernel.Add(s.Selector, s.Via); err == nil {
				l.counts.Routed(s, l.now())
				turned[s.Selector] = s.Via
			}
		case plan.DropRoute:
			if err = l.kernel.Drop(s.Selector); err == nil {
				delete(turned, s.Selector)
			}
		case plan.AddRule:
			err = l.kernel.AddRule(s.Selector)
		case plan.DropRule:
			err = l.kernel.DropRule(s.Selector)
		case plan.SetServer:
			servers = append(servers, s)
			continue
		default:
			err = fmt.Errorf("nothing takes a step of type %T: please report this bug of Sallyport", s)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step, err))
			continue
		}
		changed = append(changed, step)
		l.counts.Step(step)
	}
	l.logRoutes(changed)
	status.NoteSteps(&l.changes, l.now(), v, changed)
	progress = len(changed) > 0
	if progress {
		if err := l.abort(plan.Stranded(v.Have, turned), "their route was removed"); err != nil {
			errs = append(errs, err)
		}
	}
	if len(servers) == 0 && !l.proxy.Info().Reread && l.applied.still(v.Config, v.At) {
		return progress, errors.Join(errs...)
	}
	result, err := l.order(ctx, v)
	if err != nil { // Apply did the rest all the same
		errs = append(errs, fmt.Errorf("bringing HAProxy to the wanted state: %w", err))
	}
	// HAProxy may not have reached every state: a server stays while connections are still on it,
	// or while its backend waits for a reload.
	reached, err := l.proxy.Servers()
	if err != nil {
		return progress, errors.Join(append(errs, fmt.Errorf("reading the servers back from HAProxy: %w", err))...)
	}
	var done []plan.SetServer
	for _, s := range servers {
		if live, _ := reached.Get(s.ID.Backend).Find(s.ID.Server); live.State == s.State {
			done = append(done, s)
			l.counts.Step(s)
		}
	}
	l.counts.Servers(servers, done, v.At, l.now())
	done = status.InTurns(done, func(s plan.SetServer) string { return status.TenantOf(s.ID.Backend) })
	l.logServers(done)
	status.NoteSteps(&l.changes, l.now(), v, done)
	return progress || len(done) > 0 || result.Reloaded, errors.Join(errs...)
}

// order gives HAProxy the configuration and the states of the servers.
func (l *loop) order(ctx context.Context, v *status.View) (haproxy.Result, error) {
	before, missed := l.now(), l.proxy.Info().Missed
	result, err := l.proxy.Apply(ctx, v.Config, l.planner.States())
	if result.Reloaded {
		took := l.now().Sub(before)
		l.changes.Add(status.Change{
			At: l.now(), Kind: status.ReloadChange, What: "HAProxy reloaded", Why: result.Reason, Took: took,
		})
		l.counts.Reloaded(took)
	}
	if l.proxy.Info().Missed > missed {
		l.changes.Add(status.Change{
			At: l.now(), Kind: status.StateChange, What: "HAProxy got what an order before had left out",
			Why: "an error of Sallyport: the log has the commands", Bad: true,
		})
	}
	served := l.applied.served
	if err == nil && (result.RetryAt.IsZero() || result.Reloaded) {
		served = v.Config.Listeners
	}
	l.applied = applied{config: v.Config, until: v.At.Add(reapply), retryAt: result.RetryAt, served: served}
	changed := result.Commands > 0 || result.Reloaded
	later := result.RetryAt.IsZero() || result.RetryAt.After(l.applied.until)
	if soon := v.At.Add(reapplySoon); changed && later {
		l.applied.until = soon
	}
	switch {
	case errors.Is(err, haproxy.ErrUnfit):
		l.vetter.blame(ctx, v.Config, v.At)
	case err != nil:
		l.vetter.doubtPorts()
	}
	if err != nil {
		l.applied.config = nil
	}
	return result, err
}

// abort ends the connections to servers that will not answer. HAProxy then sends the requests that
// may be repeated to another server.
func (l *loop) abort(ends map[routes.End]bool, why string) error {
	n, err := l.kernel.Abort(ends)
	if n > 0 {
		l.log.Info("connections closed", "count", n, "servers", len(ends), "why", why)
		what := status.Counted(n, "connection") + " to " + status.Counted(len(ends), "server") + " closed"
		l.changes.Add(status.Change{At: l.now(), Kind: status.ServerChange, What: what, Why: why})
	}
	return err
}

// forsake ends the connections to failing servers on nodes that are gone (see plan.Doubt).
func (l *loop) forsake(v *status.View) error {
	l.doubt.Update(v.Have, v.At)
	if !l.doubt.Fresh(v.At) {
		return nil
	}
	mute, err := l.kernel.Mute()
	if err != nil || len(mute) == 0 {
		return err
	}
	return l.abort(l.doubt.Forsaken(v.Have, mute), "their node does not answer")
}

// applied is the last configuration that HAProxy got, without the states of its servers.
type applied struct {
	config  *haproxy.Config // nil before the first Apply, and after one that failed
	until   time.Time       // when to apply it again in any case
	retryAt time.Time       // when Apply asks to be called again; zero if it does not ask

	served []haproxy.Listener // those that HAProxy has for certain
}

// still reports whether there is nothing new to apply.
func (a applied) still(c *haproxy.Config, now time.Time) bool {
	return a.config != nil && now.Before(a.until) && (a.retryAt.IsZero() || now.Before(a.retryAt)) &&
		a.config.Same(c)
}

// logRoutes logs each route that changed. After a screenful of routes it logs only how many more
// changed.
func (l *loop) logRoutes(done []plan.Step) {
	for _, step := range done[:min(len(done), status.Screenful)] {
		switch s := step.(type) {
		case plan.AddRoute:
			l.log.Info("route added", "prefix", s.Selector, "via", s.Via)
		case plan.DropRoute:
			l.log.Info("route dropped", "prefix", s.Selector)
		case plan.AddRule:
			l.log.Info("rule added", "packets", s.Selector)
		case plan.DropRule:
			l.log.Info("rule dropped", "packets", s.Selector)
		}
	}
	if more := len(done) - status.Screenful; more > 0 {
		l.log.Info("more routes changed: see the status page", "count", more)
	}
}

// logServers logs each server that changed. After a screenful of servers it logs only how many
// more changed. The caller orders the servers by inTurns.
func (l *loop) logServers(done []plan.SetServer) {
	for _, s := range done[:min(len(done), status.Screenful)] {
		l.log.Info("server changed", "backend", s.ID.Backend, "server", s.ID.Server, "state", s.State.String(), "why",
			s.Why)
	}
	if more := len(done) - status.Screenful; more > 0 {
		l.log.Info("more servers changed: see the status page", "count", more)
	}
}

// pending returns the UIDs of the Gateways of a cluster with a listener or a certificate that HAProxy
// does not have yet.
func (l *loop) pending(cluster string, v *status.View) map[string]bool {
	var missing []netip.Addr
	for _, one := range v.Config.Listeners {
		if !slices.Contains(l.applied.served, one) {
			missing = append(missing, one.At.Addr())
		}
	}
	for _, scope := range l.certs.closed {
		if at, err := netip.ParseAddrPort(scope); err == nil {
			missing = append(missing, at.Addr())
		}
	}
	all := map[string]bool{}
	for _, b := range v.Compiled.Balancers {
		if b.Cluster == cluster && b.Kind == "Gateway" && slices.ContainsFunc(missing, func(a netip.Addr) bool {
			return slices.Contains(b.Recorded, a)
		}) {
			all[b.UID] = true
		}
	}
	return all
}

// publish tells each cluster which of its Ingresses and Services are served, and which problems
// they have. It does so only when one of these, an object or the consent has changed.
func (l *loop) publish(v *status.View) {
	may, changed, r := l.membership.consent(), false, l.membership.known(v.Compiled)
	for _, c := range l.clusters {
		if !c.live {
			continue
		}
		pending := l.pending(c.name, v)
		if haproxy.SameList(c.told.Served, r.Served) && slices.Equal(c.told.Problems, r.Problems) &&
			slices.Equal(c.told.Statuses[c.name], r.Statuses[c.name]) && maps.Equal(c.toldPending, pending) &&
			slices.Equal(c.toldOf.Ingresses, c.snapshot.Ingresses) &&
			reflect.DeepEqual(c.told.Balancers, r.Balancers) &&
			slices.Equal(c.told.Exports[c.name], r.Exports[c.name]) &&
			slices.Equal(c.toldOf.Services, c.snapshot.Services) && c.toldMay == may {
			continue
		}
		c.told, c.toldOf, c.toldMay, c.toldPending, changed = r, c.snapshot, may, pending, true
		c.watcher.Publish(watch.Publication{
			Served: slices.DeleteFunc(slices.Clone(r.Served), func(o ingress.ObjectRef) bool {
				return o.Cluster != c.name
			}),
			Balancers: slices.DeleteFunc(slices.Clone(r.Balancers), func(b ingress.Balancer) bool {
				return b.Cluster != c.name
			}),
			Problems: slices.DeleteFunc(slices.Clone(r.Problems), func(p ingress.Problem) bool {
				return p.Cluster != c.name
			}),
			Statuses: r.Statuses[c.name], Pending: pending, Exports: r.Exports[c.name],
			Add: may.add, Replace: may.replace,
		})
	}
	if changed && l.member != nil {
		l.claimed = sumOfClaims(r)
	}
}
