package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// The edges, as the loop sees them. The real ones are bgp.Speaker,
// ingress.Watcher, routes.Kernel and haproxy.Proxy; the tests put small worlds
// in their place.
type (
	speaker interface {
		SetPeers([]bgp.Peer) error
		Peers() []bgp.PeerState
		Offers() ([]routes.Offer, error)
		Changed() <-chan struct{}
	}
	watcher interface {
		Snapshot() (ingress.Snapshot, error)
		Health() ingress.Health
		Publish(served []ingress.ObjectRef, problems []ingress.Problem)
		Changed() <-chan struct{}
	}
	kernel interface {
		List() (routes.Table, []routes.Conflict, error)
		Local() (routes.Local, error)
		Add(netip.Prefix, netip.Addr) error
		Drop(netip.Prefix) error
		Changed() <-chan struct{}
	}
	proxy interface {
		Servers() (map[haproxy.ServerID]haproxy.Live, error)
		Apply(context.Context, *haproxy.Config, map[haproxy.ServerID]haproxy.State) (haproxy.Result, error)
		Info() haproxy.Info
		Changed() <-chan struct{}
	}
)

// settings are the parts of the config file the loop itself needs.
type settings struct {
	asn        uint32
	retain     time.Duration
	failStatic time.Duration
	bind       haproxy.Bind
	tune       haproxy.Tune
	peer       func(cluster string, node routes.Node, addr netip.Addr) bgp.Peer
}

const (
	// tick is how long the loop rests at most: the bound on what a missed
	// knock can cost, and the time for deadlines that knock on no door.
	tick = time.Second
	// patience is how long a start waits for clusters and peers that do not
	// answer before it goes on without them.
	patience = 30 * time.Second
	// screenful is how many changes of one kind a round logs one by one.
	screenful = 20
	// roundsAtOnce bounds how often one knock plans again. Three rounds settle
	// any world (see Plan); more means that the world moves meanwhile.
	roundsAtOnce = 8
)

// cluster is one cluster of the config file, and what is known of it.
type cluster struct {
	name     string
	watcher  watcher
	snapshot ingress.Snapshot
	known    bool      // snapshot holds something: live, or the last good picture
	live     bool      // it has come from the API in this life
	pictured time.Time // when the picture in use was taken; zero once live
}

// loop makes the wanted world of the clusters' objects and the peers' offers,
// and leads the real one there. Every field is owned by the goroutine of run,
// but view and counts.
type loop struct {
	settings
	log      *slog.Logger
	now      func() time.Time
	started  time.Time
	clusters []*cluster
	speaker  speaker
	kernel   kernel
	proxy    proxy
	alive    func() // told once a round

	compiler  *ingress.Compiler
	adopted   routes.Table // found in the kernel at the start, until their peers have spoken
	heard     map[netip.Addr]bool
	retryAt   time.Time // when HAProxy wants to be asked again
	settled   bool      // a round has ended with nothing left to do
	brokenAt  time.Time // since when rounds fail; zero: they do not
	missingAt time.Time // since when wanted routes are not in the kernel
	refused   map[string]bool
	pictures  *pictures

	view   atomic.Pointer[view]
	counts counts
}

// view is what one round saw and decided, kept whole for the status endpoint.
// It is never written again.
type view struct {
	at       time.Time
	took     time.Duration
	clusters []clusterView
	peers    []bgp.PeerState
	offers   int
	refusals []routes.Refusal
	static   map[string]time.Time // clusters that lost every session at once, and until when that is overlooked
	want     Want
	have     Have
	config   *haproxy.Config
	problems []ingress.Problem
	steps    []Step // named in the last round, done or not
	err      error
	notReady []string
	warnings []string
}

type clusterView struct {
	name     string
	health   ingress.Health
	known    bool
	live     bool
	pictured time.Time
	topology routes.Topology
}

// begin makes the loop ready for its first round.
func (l *loop) begin() {
	l.started = l.now()
	l.heard, l.refused = map[netip.Addr]bool{}, map[string]bool{}
}

// run plans and acts until ctx ends, which leaves kernel and HAProxy as they are.
func (l *loop) run(ctx context.Context) {
	knock := l.knocks(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-knock:
		case <-timer.C:
		}
		for range roundsAtOnce {
			if !l.round(ctx) || ctx.Err() != nil {
				break
			}
		}
		l.alive()
		rest := tick
		if !l.retryAt.IsZero() {
			rest = max(min(rest, l.retryAt.Sub(l.now())), time.Millisecond)
		}
		timer.Reset(rest)
	}
}

// knocks joins the doors' channels into one.
func (l *loop) knocks(ctx context.Context) <-chan struct{} {
	joined := make(chan struct{}, 1)
	doors := []<-chan struct{}{l.speaker.Changed(), l.kernel.Changed(), l.proxy.Changed()}
	for _, c := range l.clusters {
		doors = append(doors, c.watcher.Changed())
	}
	for _, door := range doors {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-door:
					select {
					case joined <- struct{}{}:
					default:
					}
				}
			}
		}()
	}
	return joined
}

// round looks at everything once and takes the steps that are safe now. It
// says whether it changed something, so that another round may find more.
func (l *loop) round(ctx context.Context) (progress bool) {
	begin := l.now()
	v := &view{at: begin}
	if last := l.view.Load(); last != nil {
		v.have = last.have // shown as it was while it cannot be read
	}
	defer func() {
		v.took = l.now().Sub(begin)
		l.judge(v)
		l.view.Store(v)
		l.counts.round(v)
	}()

	snapshots, mayAct := l.look()
	for _, c := range l.clusters {
		v.clusters = append(v.clusters, clusterView{c.name, c.watcher.Health(), c.known, c.live, c.pictured, c.snapshot.Topology})
	}
	local, err := l.kernel.Local()
	if err != nil {
		v.err = fmt.Errorf("reading our own networks: %w", err)
		return false
	}
	topologies := make([]routes.Topology, 0, len(snapshots))
	for _, s := range snapshots {
		topologies = append(topologies, s.Topology)
	}

	// What is.
	have, haveErr := l.have(topologies, local)
	if haveErr == nil {
		v.have = have
		if l.adopted == nil {
			l.adopt(have.Routes)
		}
	}

	// What should be.
	peersErr := l.speaker.SetPeers(l.peers(topologies))
	v.peers = l.speaker.Peers()
	offers, offersErr := l.speaker.Offers()
	v.offers = len(offers)
	offers = append(offers, l.adoptedOffers(topologies, v.peers)...)
	facts := routes.Facts{Now: begin, Topologies: topologies, Local: local, Retain: l.retain, FailStatic: l.failStatic}
	v.want.Routes, v.refusals = routes.Verify(offers, facts)
	v.static = routes.Static(offers, facts)
	compiled := l.compiler.Compile(snapshots)
	compiled.Config.Bind, compiled.Config.Tune = l.bind, l.tune
	v.config, v.problems = &compiled.Config, compiled.Problems
	v.want.Servers = wantedServers(v.config)
	if v.err = errors.Join(peersErr, offersErr, haveErr); offersErr != nil || haveErr != nil || !mayAct {
		return false
	}

	// The steps from one to the other.
	v.steps = Plan(v.want, v.have)
	progress, err = l.take(ctx, v)
	v.err = errors.Join(v.err, err)
	l.settled = l.settled || err == nil && !progress
	if err == nil {
		l.publish(compiled)
		l.keep()
	}
	l.tellRefusals(v.refusals)
	return progress && err == nil
}

// look reads the clusters. It says whether enough is known to act on: every
// cluster, or what there is of them once the patience of a start is at its end.
// Acting earlier would take a cluster that has not answered yet for an empty one.
func (l *loop) look() (snapshots []ingress.Snapshot, mayAct bool) {
	missing := 0
	for _, c := range l.clusters {
		if s, err := c.watcher.Snapshot(); err == nil {
			c.snapshot, c.known, c.live, c.pictured = s, true, true, time.Time{}
		}
		if !c.known {
			missing++
			continue
		}
		snapshots = append(snapshots, c.snapshot)
	}
	return snapshots, missing == 0 || len(snapshots) > 0 && l.now().Sub(l.started) > patience
}

// peers are the nodes to have a BGP session with, one for each of their addresses.
func (l *loop) peers(topologies []routes.Topology) (peers []bgp.Peer) {
	for _, t := range topologies {
		for _, node := range t.Nodes {
			for _, addr := range node.BGP {
				peers = append(peers, l.peer(t.Cluster, node, addr.Addr()))
			}
		}
		for _, addr := range t.Reflectors {
			peers = append(peers, l.peer(t.Cluster, routes.Node{ASN: t.ASN}, addr))
		}
	}
	return peers
}

// adopt remembers the routes that a former life of ours left in the kernel.
func (l *loop) adopt(found routes.Table) {
	l.adopted = maps.Clone(found)
	if l.adopted == nil {
		l.adopted = routes.Table{}
	}
	if len(found) > 0 {
		l.log.Info("adopted the routes found in the kernel", "routes", len(found))
	}
}

// adoptedOffers makes offers of the adopted routes, as of sessions that closed
// when this life began. Verify holds them to the same rules as any other, and to
// the same time. What a peer has to say itself replaces them once it has said
// all of it.
func (l *loop) adoptedOffers(topologies []routes.Topology, peers []bgp.PeerState) (offers []routes.Offer) {
	for _, p := range peers {
		if p.EndOfRIB {
			l.heard[p.Addr] = true
		}
	}
	for prefix, via := range l.adopted {
		if l.heard[via] {
			delete(l.adopted, prefix)
			continue
		}
		offer := routes.Offer{Peer: via, Prefix: prefix, NextHop: via, Lost: routes.Loss{Cause: routes.Closed, At: l.started}}
		for _, t := range topologies {
			for _, n := range t.Nodes {
				if slices.ContainsFunc(n.BGP, func(p netip.Prefix) bool { return p.Addr() == via }) {
					offer.Cluster, offer.PeerAS = t.Cluster, n.ASN
					if n.ASN != l.asn {
						offer.ASPath = []uint32{n.ASN}
					}
				}
			}
		}
		offers = append(offers, offer)
	}
	return offers
}

func wantedServers(config *haproxy.Config) map[haproxy.ServerID]Wanted {
	n := 0
	for _, b := range config.Backends {
		n += len(b.Servers)
	}
	servers := make(map[haproxy.ServerID]Wanted, n)
	for _, b := range config.Backends {
		for _, s := range b.Servers {
			servers[haproxy.ServerID{Backend: b.Name, Server: s.Name}] = Wanted{s.Addr, s.Drain}
		}
	}
	return servers
}

// have reads the world back from its owners.
func (l *loop) have(topologies []routes.Topology, local routes.Local) (have Have, err error) {
	if have.Routes, have.Conflicts, err = l.kernel.List(); err != nil {
		return have, fmt.Errorf("reading our routes from the kernel: %w", err)
	}
	if have.Servers, err = l.proxy.Servers(); err != nil {
		return have, fmt.Errorf("reading the servers from HAProxy: %w", err)
	}
	have.Direct = map[netip.Addr]bool{}
	for _, t := range topologies {
		for _, n := range t.Nodes {
			for _, a := range n.Addresses {
				if slices.ContainsFunc(local.Networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
					have.Direct[a] = true
				}
			}
		}
	}
	return have, nil
}

// take does the steps of the view: the routes one by one, the servers as one
// wish. A step that fails leaves the others as they are.
func (l *loop) take(ctx context.Context, v *view) (progress bool, err error) {
	states := make(map[haproxy.ServerID]haproxy.State, len(v.have.Servers))
	for id, live := range v.have.Servers {
		states[id] = live.State
	}
	var errs []error
	for _, step := range v.steps {
		var err error
		switch s := step.(type) {
		case AddRoute:
			if v.have.shadowed(s) {
				continue // it is there; what keeps the kernel from following it is not ours to remove
			}
			err = l.kernel.Add(s.Prefix, s.Via)
		case DropRoute:
			err = l.kernel.Drop(s.Prefix)
		case SetServer:
			states[s.ID] = s.State
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step, err))
			continue
		}
		progress = true
		l.counts.step(step)
		switch s := step.(type) {
		case AddRoute:
			l.log.Info("route added", "prefix", s.Prefix, "via", s.Via)
		case DropRoute:
			l.log.Info("route dropped", "prefix", s.Prefix)
		}
	}
	maps.DeleteFunc(states, func(_ haproxy.ServerID, s haproxy.State) bool { return s == haproxy.Absent })

	result, err := l.proxy.Apply(ctx, v.config, states)
	l.retryAt = result.RetryAt
	if err != nil { // what could be done was done all the same
		errs = append(errs, fmt.Errorf("bringing HAProxy to the wanted state: %w", err))
	}
	// What was reached is HAProxy's to say, at the next reading: a server may
	// have stayed because connections are still on it, or because its backend
	// waits for a reload.
	reached, err := l.proxy.Servers()
	if err != nil {
		return progress, errors.Join(append(errs, fmt.Errorf("reading the servers back from HAProxy: %w", err))...)
	}
	var done []SetServer
	for _, step := range v.steps {
		if s, ok := step.(SetServer); ok && reached[s.ID].State == s.State {
			done = append(done, s)
			l.counts.step(step)
		}
	}
	l.tellServers(done)
	return progress || len(done) > 0 || result.Reloaded, errors.Join(errs...)
}

// tellServers logs each server that changed; beyond a screenful, only how many.
func (l *loop) tellServers(done []SetServer) {
	for _, s := range done[:min(len(done), screenful)] {
		l.log.Info("server changed", "backend", s.ID.Backend, "server", s.ID.Server, "state", s.State.String(), "why", s.Why)
	}
	if more := len(done) - screenful; more > 0 {
		l.log.Info("more servers changed, see the status page", "count", more)
	}
}

// publish tells each cluster which of its Ingresses are served, and what is wrong.
func (l *loop) publish(r ingress.Result) {
	for _, c := range l.clusters {
		if !c.live {
			continue
		}
		c.watcher.Publish(
			slices.DeleteFunc(slices.Clone(r.Served), func(o ingress.ObjectRef) bool { return o.Cluster != c.name }),
			slices.DeleteFunc(slices.Clone(r.Problems), func(p ingress.Problem) bool { return p.Cluster != c.name }),
		)
	}
}

// keep saves the picture of each live cluster, in time.
func (l *loop) keep() {
	for _, c := range l.clusters {
		if c.live {
			l.pictures.keep(c.snapshot)
		}
	}
}

// tellRefusals logs each refusal once, when it appears, and no more than a
// screenful at a time: a peer that offers 100,000 prefixes is one fact.
func (l *loop) tellRefusals(refusals []routes.Refusal) {
	now := make(map[string]bool, len(refusals))
	told := 0
	for _, r := range refusals {
		key := fmt.Sprint(r.Offer.Peer, r.Offer.Prefix, r.Reason)
		now[key] = true
		if l.refused[key] {
			continue
		}
		if told++; told <= screenful {
			l.log.Warn("offer refused", "cluster", r.Offer.Cluster, "peer", r.Offer.Peer, "prefix", r.Offer.Prefix, "reason", r.Reason, "why", r.Why)
		}
	}
	if told > screenful {
		l.log.Warn("more offers refused, see the status page", "count", told-screenful)
	}
	l.refused = now
}

// judge says whether the world is as it should be, and why not, in sentences.
func (l *loop) judge(v *view) {
	const soon = 10 * time.Second // what is mended within this time is not worth a page
	notReady := func(format string, args ...any) { v.notReady = append(v.notReady, fmt.Sprintf(format, args...)) }
	warn := func(format string, args ...any) { v.warnings = append(v.warnings, fmt.Sprintf(format, args...)) }

	for _, c := range v.clusters {
		switch {
		case !c.known:
			notReady("cluster %s: nothing is known of it yet: %s", c.name, c.health.Error)
		case !c.live:
			notReady("cluster %s: its API has not answered since the start, so it is served from the picture of %s: %s", c.name, c.pictured.Format(time.RFC3339), c.health.Error)
		case c.health.Error != "":
			warn("cluster %s: %s", c.name, c.health.Error)
		}
	}
	for cluster, until := range v.static {
		warn("cluster %s: every BGP session was lost at once; its routes are kept until %s, and health checks decide meanwhile", cluster, until.Format(time.TimeOnly))
	}
	if age := v.at.Sub(l.started); age < patience {
		if silent := countFunc(v.peers, func(p bgp.PeerState) bool { return !l.heard[p.Addr] }); silent > 0 {
			notReady("%d of %d BGP peers have not told their routes yet; waiting for another %s", silent, len(v.peers), (patience - age).Round(time.Second))
		}
	}
	if !l.settled {
		notReady("the first rounds are not done yet")
	}
	if lasted := since(&l.brokenAt, v.err != nil, v.at); v.err != nil {
		warn("%s", v.err)
		if lasted > soon {
			notReady("rounds have been failing for %s: %s", lasted.Round(time.Second), v.err)
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

// since keeps the time at which a condition began, and says how long it lasts.
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
