package ingress

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/balance"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
	"sallyport/ingress/linked"
	"sallyport/ingress/listen"
)

// A Result is compiled from the objects of all clusters.
type Result struct {
	Config   haproxy.Config     // Bind and Tune are left to the caller
	Served   []ObjectRef        // Ingresses with at least one rule or default in effect
	Problems []Problem          // sorted by object
	Owners   map[string]*Owners // by cluster; for the Snapshot after
	Refused  []haproxy.Part     // parts left out because HAProxy refuses them
	// Statuses hold, by cluster, the status of each object of Gateway API that is ours.
	Statuses map[string][]*gateway.Status // never changed
	// Unmet hold, as Problems, what the conditions in Statuses say. They become no Events.
	Unmet     []Problem
	Balancers []Balancer // Services of type LoadBalancer and Gateways that are ours, the older first
	// Exports hold, by cluster, whether the Service of each ServiceExport is shared with other clusters.
	Exports map[string][]*Export // sorted by name; never changed
	// Percent holds how much of its share each cluster of a set takes, if its ConfigMap lowers the share.
	Percent map[string]int
	Servers int // that the clusters have within their limits, whether there is Room for them or not

	// Awaits is the name of an unknown cluster without which nothing may be served: its ConfigMap sets the
	// keys of the whole process, among them guards for every host. It is empty if no cluster is awaited.
	Awaits string

	// Questions are for HAProxy. The Config is complete only with their answers, see
	// Compiler.Judge.
	Questions []haproxy.Question

	routing *routing // for Explain
}

// Compile makes the Result of snapshots, one per cluster in the order of
// configuration, from nothing.
func Compile(snaps []Snapshot) Result { return new(Compiler).Compile(snaps) }

// A Compiler makes the same Result as the function Compile, but remembers the last one and does
// again only the work for changed objects. A backend, a certificate, or the slice of routes that
// did not change keeps its pointer. The zero value is ready to use, by one goroutine.
//
// Routing (Ingresses, classes, Services, Secrets) and endpoints (slices) are remembered separately:
// a new or lost endpoint changes only the backends of its Service. As a rule, a changed Ingress
// changes only the routing of Ingresses that share a host, a Service or a Secret with it (see
// amend).
type Compiler struct {
	// Taken are the ports that no TCP service can have, each with its owner, as
	// "HTTPS". TakenUDP are the ports that QUIC cannot have.
	Taken, TakenUDP map[uint16]string

	// Reserved are the ports of Taken that no Service can have even at an address of its own.
	Reserved map[uint16]string

	Used map[netip.Addr]input.Use // addresses of the Pools that something else than a Service has

	// Shared are the ports at the addresses of Ingresses, and what HAProxy serves there: HTTP or
	// HTTPS.
	Shared map[uint16]haproxy.ListenerKind

	// Local are the addresses of the Pools that the machine has, if the Pools are Local.
	Local []netip.Addr

	// Unknown are the configured clusters that have no Snapshot yet: their names and Options. Hosts
	// that the Options keep for such a cluster are closed to the other clusters.
	Unknown []Snapshot

	// Room is the number of servers that HAProxy can hold; 0 means any number.
	Room int

	// last has Room, Used, Local and Unknown as they were at the last call. speaker is the last world
	// that set the keys of the whole process, or nil.
	last struct {
		room    int
		used    map[netip.Addr]input.Use
		local   []netip.Addr
		unknown []Snapshot
		speaker *world
	}

	worlds      []*world
	parsed      map[metav1.Object]*claim
	pairs       map[*corev1.Secret]*pair
	memory      keys.Memory
	authorities *listen.Memory
	demanded    annotations.Clients // the clients that the Settings in memory were made for

	verdicts haproxy.Verdicts
	judged   bool // they have changed since

	// What the last Compile did not find in its memory, for tests and for Whole.
	made struct {
		claims, routed, parts int
		amended               bool // the routing is the last routing, with a part replaced
		whole                 bool // the routing is made anew
	}

	routing *routing
	about   *subject        // what the routing is about; nil means everything
	linked  *linked.Linkage // of the Ingresses and routes of the worlds; nil until amend needs it
	counted counted         // the backends of the routing, with their servers
	result  Result
}

// counted are the backends of a routing with their servers, and what the servers of each namespace count
// for its limits.
type counted struct {
	parts   []part         // one for each of routing.needs
	clashes []clash        // of the parts
	servers map[tenant]int // of the parts, by namespace
	checks  map[tenant]int // that they take in 1,000 seconds

	// Backends that replace those of the parts.
	bounded map[*haproxy.Backend]*haproxy.Backend // those with fewer servers, see bound
	paced   map[*haproxy.Backend]*haproxy.Backend // of those, the ones that are checked less often, see pace
	fitted  map[*haproxy.Backend]*haproxy.Backend // of those, the ones with still fewer servers, see fit
}

// A world is a Snapshot with sorted lists. It is kept to compare the next Snapshot with it.
type world struct {
	Snapshot
	keys   *keys.World // the same cluster, as package keys sees it
	leader string      // the cluster that sets the keys of the whole process

	defaults   annotations.Layer // keys of the ConfigMap for all Ingresses
	found      keys.Found        // that the ConfigMap names
	acme       bool              // the challenges of ACME servers pass the guards of defaults
	percent    int               // that the cluster takes of its share in its set
	global     annotations.Global
	set        []annotations.Effective // keys that global is made from
	odd        []annotations.Problem   // problems of global
	oddKeys    []annotations.Problem   // problems of acme and percent
	badFiles   []annotations.Problem   // problems of the error files
	refused    []haproxy.Part          // parts of global that HAProxy refuses
	streams    []annotations.Stream
	badStreams []annotations.Problem // problems of the TCP services

	rules rules
}

// A part is a backend with its servers, and the problems of its endpoints.
type part struct {
	backend  *haproxy.Backend
	problems []Problem
	clashes  []clash       // with clusters whose pods do not serve it
	refused  *haproxy.Part // the part of it that HAProxy refuses, if any
}

// Judge replaces HAProxy's verdicts about parts. A text without a verdict is left out of the
// configuration. A part that HAProxy refuses is also left out: a refused certificate is not served,
// and a refused backend is closed.
func (c *Compiler) Judge(verdicts haproxy.Verdicts) {
	if !maps.Equal(c.verdicts, verdicts) {
		c.verdicts, c.judged = maps.Clone(verdicts), true
		c.memory.Unsettle()
	}
}

// Compile returns the Result of snapshots. Results share memory: nothing in them may
// be changed.
func (c *Compiler) Compile(snaps []Snapshot) Result {
	r, _ := c.compileWithin(snaps, false)
	return r
}

// Amend returns the Result of snapshots, as Compile does, unless that takes the whole routing anew. Then it
// reports false, and the Compiler is as it was before.
func (c *Compiler) Amend(snaps []Snapshot) (Result, bool) {
	before := *c
	r, ok := c.compileWithin(snaps, true)
	if !ok {
		before.linked = c.linked // what amend has found is right as long as it is there
		*c = before
	}
	return r, ok
}

// Whole reports whether the last call made the whole routing anew.
func (c *Compiler) Whole() bool { return c.made.whole }

// compileWithin returns the Result of snapshots. If small is true, it reports false instead of making the
// whole routing anew.
func (c *Compiler) compileWithin(snaps []Snapshot, small bool) (r Result, ok bool) {
	old := c.worlds
	c.made.claims, c.made.routed, c.made.parts, c.made.amended, c.made.whole = 0, 0, 0, false, false
	worlds, news := c.renew(snaps)
	resized := c.Room != c.last.room
	c.judged, c.last.unknown, c.last.room, c.last.used = false, c.Unknown, c.Room, c.Used
	c.last.local = c.Local
	c.worlds = worlds
	if i := slices.IndexFunc(worlds, (*world).leads); i >= 0 {
		c.last.speaker = worlds[i]
	}
	if c.routing != nil && !c.routing.keeps.Has(c.now()) {
		news.rerouted = true
	}
	if !news.rerouted && !news.amended && !news.moved && !resized {
		return c.result, true
	}

	needed := c.routing
	if news.amended && !news.rerouted {
		if next := c.amend(old, worlds); next != nil {
			c.routing, c.made.amended = next, true
		} else {
			news.rerouted = true
		}
	}
	if news.rerouted && small {
		return r, false
	}
	if news.rerouted {
		c.made.whole = true
		c.linked = nil // it has listeners of the routing before
		c.routing = c.route(worlds)
		c.forgetOthers()
	}
	if needed != nil && needed != c.routing {
		c.routing.reuse(needed)
	}
	c.build(needed, news.touched)
	c.finish(news.exports)
	return c.result, true
}

// news are the differences between Snapshots and the worlds of the round before.
type news struct {
	rerouted bool // everything has to be routed again
	amended  bool // an Ingress, a class, a Service, a Secret or a ConfigMap differs
	moved    bool // EndpointSlices or problems differ

	// touched has for each world the Services with changed EndpointSlices, or nil if those of
	// every Service may have changed.
	touched []map[serviceKey]bool
	exports newsOfExports
}

// renew makes the new worlds from snapshots and the last worlds, and returns the differences.
func (c *Compiler) renew(snaps []Snapshot) (worlds []*world, n news) {
	n.rerouted = c.worlds == nil || c.judged || len(c.worlds) != len(snaps) ||
		!reflect.DeepEqual(c.Unknown, c.last.unknown) || !maps.Equal(c.Used, c.last.used) ||
		!slices.Equal(c.Local, c.last.local)
	n.moved = n.rerouted
	n.exports.all = len(c.worlds) != len(snaps) || !reflect.DeepEqual(c.Unknown, c.last.unknown)
	n.exports.services = make(map[serviceKey]bool)
	n.touched = make([]map[serviceKey]bool, len(snaps))
	leader := c.leader(snaps)
	for i, s := range snaps {
		var was world
		if i < len(c.worlds) {
			was = *c.worlds[i]
		}
		w := c.renewWorld(was, s, leader, &n)
		if i < len(c.worlds) && w.Cluster == was.Cluster {
			n.touched[i] = input.Touched(was.Slices, w.Slices)
			n.exports.reexported(n.touched[i], &was, w)
		}
		worlds = append(worlds, w)
	}
	return worlds, n
}

// renewWorld makes the new world of a Snapshot from the last world, and adds the differences to the
// news. The keys of its ConfigMaps stay until they change.
func (c *Compiler) renewWorld(was world, s Snapshot, leader string, n *news) *world {
	w := new(was)
	w.Snapshot, w.leader = s, leader
	w.Options = s.Options.WithDefaults()
	w.Objects = s.Objects.Reuse(was.Objects)
	w.keys = keys.NewWorld(&w.Snapshot, prefixOf(s.Cluster), w.leads(), was.keys)
	same := w.WithoutSlices().Same(was.WithoutSlices())
	other := w.Cluster != was.Cluster || w.leader != was.leader || !reflect.DeepEqual(w.Options, was.Options)
	if other || !slices.Equal(w.ownConfigMaps(), was.ownConfigMaps()) || was.found.Changed(w.keys) {
		w.found = keys.Found{}
		w.defaults = annotations.Read(annotations.ConfigMap, w.ConfigMap(w.Options.ConfigMap).Data).
			WithSections(c.env(w, "", &w.found))
		w.acme, w.oddKeys = annotations.ACME(w.defaults)
		var odd []annotations.Problem
		w.percent, odd = annotations.ClusterWeight(w.defaults)
		w.oddKeys = append(w.oddKeys, odd...)
		c.memory.Unsettle() // settings depend on options and ConfigMaps, which keys.For does not have
	}
	if other || w.Options.NamespaceSelector != "" && !slices.Equal(w.Namespaces, was.Namespaces) {
		n.exports.all = true
	}
	if other || !same || c.judged {
		c.readProcess(w)
	}
	if w.rereads(&was) {
		c.parsed = make(map[metav1.Object]*claim)
	}
	if n.amended = n.amended || !same; other || !same {
		w.rules = readRules(&w.Snapshot)
	}
	if other || w.NoSecrets != was.NoSecrets || w.NoClasses != was.NoClasses || w.APIBundle != was.APIBundle ||
		w.APIChannel != was.APIChannel ||
		!slices.Equal(w.Incomplete, was.Incomplete) {
		n.rerouted = true
	}
	// The owners of the last Result change nothing when they come back.
	if !w.Owners.Equal(was.Owners) && w.Owners != c.result.Owners[w.Cluster] {
		n.rerouted = true
	}
	if c.routing != nil && !c.routing.certain.Has(w.At) {
		n.rerouted = true
	}
	n.moved = n.moved || !slices.Equal(w.Slices, was.Slices) || !slices.Equal(w.Beyond, was.Beyond)
	return w
}

// Unnamed is the name of a cluster that the configuration file gives no name.
const Unnamed = "default"

// prefixOf returns the beginning of every name that is made for a cluster. It depends on nothing but
// the cluster's name: a cluster that comes or goes renames nothing of another one. No name of
// Kubernetes has a "_", and names put one between two parts. Only a prefix ends in "__", so no two
// clusters share a name.
func prefixOf(cluster string) string {
	if cluster == Unnamed {
		return ""
	}
	return cluster + "__"
}

// readProcess reads the ConfigMaps of a world that concern the whole process.
func (c *Compiler) readProcess(w *world) {
	services := w.ConfigMap(w.Options.TCPServices).Data
	w.streams, w.badStreams = annotations.Streams(services)
	found := new(keys.Found)
	env := c.env(w, "", found)
	w.global, w.set, w.odd = annotations.Process(env, annotations.StreamLayer(services), w.defaults)
	w.badFiles = w.global.AddErrorFiles(env, w.ConfigMap(w.Options.ErrorFiles).Data)
	w.refused = found.Refused
}

// finish makes the Result of the routing and the parts.
func (c *Compiler) finish(news newsOfExports) {
	exports := c.result.Exports
	c.result = c.routing.Result
	c.result.routing = c.routing
	c.result.Config.Backends = make([]*haproxy.Backend, len(c.counted.parts))
	c.result.Refused = slices.Clone(c.result.Refused)
	var odd []Problem
	var clashes []clash
	parts, servers := c.bound()
	for i, p := range c.fit(c.pace(parts), servers) {
		c.result.Config.Backends[i] = p.backend
		odd, clashes = append(odd, p.problems...), append(clashes, p.clashes...)
		if p.refused != nil {
			c.result.Refused = append(c.result.Refused, *p.refused)
		}
	}
	for _, w := range c.worlds {
		odd = slices.Concat(odd, w.Beyond, w.rules.odd)
	}
	c.result.Exports = c.tellExports(exports, news, clashes)
	c.result.Percent = percents(c.worlds)
	c.result.Problems = sorted(c.worlds, append(odd, c.routing.Problems...))
	c.result.Balancers = balance.Explain(c.routing.Balancers, c.result.Problems)
}

// leader returns the name of the cluster that sets the keys of the whole process by its ConfigMaps. While
// that cluster is unknown, the last one that set them goes on, so that no guard is lost. If there was none,
// the unknown cluster keeps its right. leader returns "" if no cluster has it.
func (c *Compiler) leader(snaps []Snapshot) string {
	for i, s := range slices.Concat(snaps, c.Unknown) {
		switch {
		case !s.Options.Process:
		case i >= len(snaps) && c.last.speaker != nil:
			return c.last.speaker.Cluster
		default:
			return s.Cluster
		}
	}
	if len(snaps) > 0 && len(c.Unknown) == 0 {
		return snaps[0].Cluster
	}
	return ""
}

// leads reports whether the ConfigMaps of a world set the keys of the whole process.
func (w *world) leads() bool { return w.Cluster == w.leader }

// speaker returns the world that sets the keys of the whole process. If that is none of these worlds, it is
// the last one that did. If no call had such a world, speaker returns an empty one.
func (c *Compiler) speaker(worlds []*world) *world {
	if i := slices.IndexFunc(worlds, (*world).leads); i >= 0 {
		return worlds[i]
	}
	return cmp.Or(c.last.speaker, new(world))
}

// awaited returns the name of the cluster that is to set the keys of the whole process by a ConfigMap, if it is
// unknown and no cluster has set them so far. Otherwise awaited returns "".
func (c *Compiler) awaited() string {
	if c.last.speaker != nil {
		return ""
	}
	for _, s := range c.Unknown {
		if s.Options.Process && s.Options.ConfigMap != "" {
			return s.Cluster
		}
	}
	return ""
}

// build makes a part for each need of the routing. It keeps a part that neither the
// new routing nor an endpoint has changed; before is the routing of the parts so far.
func (c *Compiler) build(before *routing, touched []map[serviceKey]bool) {
	if before == c.routing {
		c.touch(touched)
		return
	}
	var was []need
	spelledAlike := true // names of objects have their cluster if there are several
	if before != nil {
		was, spelledAlike = before.needs, len(before.of) > 1 == (len(c.worlds) > 1)
	}
	parts := make([]part, len(c.routing.needs))
	counts := before != nil && slices.EqualFunc(before.of, c.worlds, // a tenant has the place of its world
		func(a, b *world) bool { return a.Cluster == b.Cluster })
	if !counts {
		c.counted.servers, c.counted.checks = make(map[tenant]int), make(map[tenant]int)
	}
	j := 0 // the place in was: both are sorted by name
	gone := func() {
		if counts {
			c.count(&was[j], c.counted.parts[j].backend, -1)
		}
		j++
	}
	for i := range c.routing.needs {
		n := &c.routing.needs[i]
		for j < len(was) && was[j].name < n.name {
			gone()
		}
		known := j < len(was) && was[j].name == n.name
		alike := (spelledAlike || !n.named) && (counts || n.set == "") // a cluster that has left a set is not touched
		if known && was[j] == *n && !c.touches(touched, n) && alike {
			parts[i] = c.counted.parts[j]
			if !counts {
				c.count(n, parts[i].backend, 1)
			}
			j++
			continue
		}
		parts[i] = c.part(*n)
		c.count(n, parts[i].backend, 1)
		if known {
			if reflect.DeepEqual(parts[i].backend, c.counted.parts[j].backend) {
				parts[i].backend = c.counted.parts[j].backend
			}
			gone()
		}
	}
	for j < len(was) {
		gone()
	}
	c.counted.parts = parts
}

// touch rebuilds only the parts of Services with changed EndpointSlices.
func (c *Compiler) touch(touched []map[serviceKey]bool) {
	for w, services := range touched {
		for service := range services {
			for _, name := range c.routing.users[w][service] {
				i, _ := slices.BinarySearchFunc(c.routing.needs, name,
					func(n need, name string) int { return cmp.Compare(n.name, name) })
				p := c.part(c.routing.needs[i])
				if reflect.DeepEqual(p.backend, c.counted.parts[i].backend) {
					p.backend = c.counted.parts[i].backend
				}
				c.count(&c.routing.needs[i], c.counted.parts[i].backend, -1)
				c.count(&c.routing.needs[i], p.backend, 1)
				c.counted.parts[i] = p // no Result has the list itself
			}
		}
	}
}

// sorted sorts problems by cluster, as configured, and object, and drops repetitions.
func sorted(worlds []*world, problems []Problem) []Problem {
	place := make(map[string]int, len(worlds))
	for i, w := range worlds {
		place[w.Cluster] = i
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(place[a.Cluster], place[b.Cluster]),
			cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Why, b.Why),
			cmp.Compare(a.As, b.As),
		)
	})
	return input.Brief(slices.Compact(problems))
}

// sortedKeys returns the keys of m in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// Services returns the Services of a cluster that something leads to, each with the names of its
// backends. It reports whether the Result has the cluster.
func (r Result) Services(cluster string) (users map[types.NamespacedName][]string, known bool) {
	if r.routing == nil {
		return nil, false
	}
	i := slices.IndexFunc(r.routing.of, func(w *world) bool { return w.Cluster == cluster })
	if i < 0 {
		return nil, false
	}
	return r.routing.users[i], true
}

// LeadsAs reports whether something leads to the same Services of a cluster in two Results.
func (r Result) LeadsAs(other Result, cluster string) bool {
	if r.routing == other.routing {
		return true
	}
	mine, known := r.Services(cluster)
	theirs, knownToo := other.Services(cluster)
	return known == knownToo && maps.EqualFunc(mine, theirs, func(_, _ []string) bool { return true })
}
