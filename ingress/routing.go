package ingress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/cert"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
	"sallyport/ingress/listen"
	"sallyport/ingress/owners"
)

// A routing is the part of a Result that does not depend on endpoints. Its Config has no
// Backends.
type routing struct {
	Result
	of        []*world // the worlds it is made from
	claims    []*claim // the older first
	owner     map[routeKey]*claim
	canaries  map[routeKey]*claim
	chosen    map[routeKey][]conditional
	needs     []need                    // sorted by name
	users     []map[serviceKey][]string // by world and Service: the names of its needs
	attached  []*gateway.Attachment     // by world; nil if the cluster has none
	listening listen.Listening          // at the addresses of Gateways; its Config is part of that of the Result
	weight    map[tenant]int            // bytes of configuration that routes take, or more
	limited   map[owners.Party]bool     // who has something beyond a limit; the zero Party: all; see bounded

	certain claims.Period // no certificate expires or becomes valid, by the time of its cluster
	keeps   claims.Period // nothing is released that is kept for a namespace, by Compiler.now
}

// A need is a backend that has to exist. It holds everything that its servers are made
// from, except for endpoints. The port of its reference is the port's name in the
// EndpointSlices of the Service; "" is the name of a single port.
type need struct {
	reference
	name     string
	origin   string // for people: begins the Origin of the backend; "" if Ingresses share it
	named    bool   // the name of by comes before origin
	world    int
	set      string    // of clusters whose pods serve it; empty if its Service is not exported
	uid      string    // of the Service
	made     int64     // when the Service was created; in seconds of Unix time
	by       ObjectRef // the oldest that leads to it
	asked    int64     // when by was created; in seconds of Unix time
	exists   bool      // its Service and port exist, and their endpoints may be used
	settings *settings
	spare    reference // to the servers for want of others (default-backend); may be zero
}

// services returns the Services that a need has servers of.
func (n *need) services() []serviceKey {
	if n.spare == (reference{}) {
		return []serviceKey{n.Service}
	}
	return []serviceKey{n.Service, n.spare.Service}
}

// since returns since when the Service exists, and something leads to it.
func (n *need) since() int64 { return max(n.made, n.asked) }

// byOlder makes the older one of the objects that lead to n and to m that of n.
func (n *need) byOlder(m *need) {
	if cmp.Or(cmp.Compare(m.asked, n.asked), cmp.Compare(m.by.Namespace, n.by.Namespace),
		cmp.Compare(m.by.Name, n.by.Name), cmp.Compare(m.by.Kind, n.by.Kind)) < 0 {
		n.by, n.asked = m.by, m.asked
	}
}

// ref returns a reference to the Service of a need.
func (n need) ref(cluster string) ObjectRef {
	return ObjectRef{
		Cluster: cluster, Kind: "Service", Namespace: n.Service.Namespace, Name: n.Service.Name, UID: n.uid,
	}
}

// tenant returns the namespace of a need's Service.
func (n *need) tenant() tenant { return tenant{World: n.world, Namespace: n.Service.Namespace} }

// reuse replaces each route and certificate that is equal to one of before by the
// pointer in before.
func (r *routing) reuse(before *routing) {
	old := before.Config.Routes
	for i, route := range r.Config.Routes {
		for len(old) > 0 && old[0] != route && listen.CompareRoutes(old[0], route) < 0 {
			old = old[1:]
		}
		if len(old) == 0 || !old[0].Equal(route) {
			continue
		}
		if old[0] != route { // else the list may be that of before, which others read
			r.Config.Routes[i] = old[0]
		}
		old = old[1:]
	}
	if slices.Equal(r.Config.Routes, before.Config.Routes) {
		r.Config.Routes = before.Config.Routes
	}
	was := make(map[string]*haproxy.Cert, len(before.Config.Certs))
	for _, c := range before.Config.Certs {
		was[c.Name] = c
	}
	for i, c := range r.Config.Certs {
		if old := was[c.Name]; reflect.DeepEqual(c, old) {
			r.Config.Certs[i] = old
		}
	}
}

// A builder makes one routing.
type builder struct {
	*Compiler
	*routing
	snapshots  []*Snapshot                 // of the worlds
	speaker    *world                      // the world that sets the keys of the whole process
	owned      *owners.Hosts               // who has each host
	first      map[string]*claim           // the oldest claim to each host
	routed     map[routeKey]haproxy.Route  // routes so far
	claimed    map[routeKey]*claim         // the oldest claim to each path with a condition
	picked     map[routeKey][]haproxy.Case // requests that a canary takes over by a header or a cookie
	patterns   map[string]int              // how many regular expressions each host has
	needed     map[string]need             // by the name of the backend
	asked      []haproxy.Question          // about conditions
	fallbackOf *claim                      // its default backend is for all hosts; nil if no claim has this
	accounts   map[tenant]*claims.Account  // what each namespace has so far
	gateways   gates

	opener *listen.Opener
}

// route makes the routing of worlds. The older of two claims to a thing takes effect. The operator
// orders the clusters: claims of an earlier cluster count as older than claims of a later cluster.
func (c *Compiler) route(worlds []*world) *routing {
	size := 0 // as it was last time: maps that do not grow cost a third
	if c.routing != nil {
		size = len(c.routing.owner)
	}
	b := &builder{
		Compiler: c, snapshots: snapshots(worlds), speaker: c.speaker(worlds),
		first: make(map[string]*claim, size), routed: make(map[routeKey]haproxy.Route, size),
		claimed: make(map[routeKey]*claim), picked: make(map[routeKey][]haproxy.Case),
		patterns: make(map[string]int), needed: make(map[string]need, size),
		routing: &routing{
			of: worlds, owner: make(map[routeKey]*claim, size), canaries: make(map[routeKey]*claim),
			chosen: make(map[routeKey][]conditional), weight: make(map[tenant]int),
			limited: make(map[owners.Party]bool),
		},
	}
	all := b.speaker.global
	if !reflect.DeepEqual(all.Clients, b.demanded) {
		b.demanded = all.Clients
		b.memory.Unsettle()
	}
	b.memory.Begin()
	b.accounts = make(map[tenant]*claims.Account)
	b.authorities = b.authorities.Next()
	b.gateways = gates{pairs: make(map[*corev1.Secret]*pair), counted: make(map[*gateway.Route]bool)}
	b.Awaits = c.awaited()
	b.Config.Process, b.Config.DefaultCert = all.Process, all.DefaultCert
	b.Config.Standby = slices.ContainsFunc(worlds, func(w *world) bool { return w.Options.InSet.Name != "" })
	b.Config.Extras, b.Questions = slices.Clone(all.Extras), slices.Clone(all.Questions)
	for _, w := range worlds {
		b.Refused = append(b.Refused, w.refused...)
		if most := w.Options.Limits.Reloads; most > 0 {
			if b.Config.Reloads == nil {
				b.Config.Reloads = make(map[string]int, len(worlds))
			}
			b.Config.Reloads[w.Cluster] = most
		}
	}
	b.attach()        // routes of Gateway API to listeners
	b.collect()       // claims from every source, the older first
	b.assignHosts()   // each host to one owner; claims of others to it end here
	b.expressHosts()  // paths of hosts with regular expressions of ingress-nginx
	b.alias()         // paths of a host to its further names
	b.limit()         // what a namespace claims beyond its limits ends here
	b.redirectNames() // names with and without "www." that are redirected
	b.leadAsked()     // paths that auth-url names to Services
	b.certify()       // hosts to certificates
	b.grant()         // each path to the oldest claim
	b.addCanaries()   // part of a path's requests to a canary
	b.isolate()       // the rest of a host to its owner
	b.chain()         // paths with conditions
	b.admitRoutes()   // what is beyond a limit of a namespace ends here
	b.stream()        // TCP ports, and addresses
	b.listen()        // listeners at the addresses of Gateways
	maps.Copy(b.pairs, b.gateways.pairs)
	b.settleOwners()
	b.assemble()
	return b.routing
}

// assemble sorts the results of the steps before.
func (b *builder) assemble() {
	b.Config.Routes = make([]*haproxy.Route, 0, len(b.routed))
	for _, key := range b.keys() {
		b.Config.Routes = append(b.Config.Routes, new(b.routed[key]))
	}
	b.Config.Routes = append(b.Config.Routes, b.listening.Config.Routes...)
	b.listening.Config = haproxy.Config{}
	b.needs = make([]need, 0, len(b.needed))
	b.users = make([]map[serviceKey][]string, len(b.of))
	for i := range b.users {
		b.users[i] = make(map[serviceKey][]string)
	}
	seen := make(map[haproxy.Question]bool)
	ask := func(questions []haproxy.Question) {
		for _, q := range questions {
			if !seen[q] {
				seen[q] = true
				b.Questions = append(b.Questions, q)
			}
		}
	}
	ask(b.asked)
	for _, name := range sortedKeys(b.needed) {
		n := b.needed[name]
		b.needs = append(b.needs, n)
		for _, i := range sharers(b.of, &n) {
			for _, service := range n.services() {
				b.users[i][service] = append(b.users[i][service], name)
			}
		}
		b.Config.Userlists = append(b.Config.Userlists, n.settings.Userlists...)
		b.Config.Extras = append(b.Config.Extras, n.settings.Extras...)
		b.Config.Lists = append(b.Config.Lists, n.settings.Lists...)
		ask(n.settings.Questions)
		for _, d := range n.settings.Directives {
			b.Config.Reads |= d.Reads()
		}
		for slot, length := range n.settings.Captures {
			if slot == len(b.Config.Captures) {
				b.Config.Captures = append(b.Config.Captures, 0)
			}
			b.Config.Captures[slot] = max(b.Config.Captures[slot], length)
		}
	}
	b.Config.Tables = b.tables()
	b.Config.Userlists = distinct(b.Config.Userlists, func(u *haproxy.Userlist) string { return u.Name })
	b.Config.Lists = distinct(b.Config.Lists, func(l *haproxy.List) string { return l.Name })
	b.Config.Extras = distinct(b.Config.Extras, func(e *haproxy.Extra) string { return e.Name })
	b.serve()
}

// serve lists the claims that are in effect, at least in part.
func (r *routing) serve() {
	r.Served = make([]ObjectRef, 0, len(r.claims))
	for _, c := range r.claims {
		if c.Effective && c.Route == nil {
			r.Served = append(r.Served, c.Ref)
		}
	}
}

// distinct sorts by name and keeps one entry of each name. Entries of one name are
// equal: they are made from one Secret.
func distinct[T any](list []*T, name func(*T) string) []*T {
	slices.SortStableFunc(list, func(a, b *T) int { return cmp.Compare(name(a), name(b)) })
	return slices.CompactFunc(list, func(a, b *T) bool { return name(a) == name(b) })
}

// collect takes the claims of all sources, the older first. It reads only Ingresses that were not read
// before. What a route claims depends on its Gateways as well, so it is always read.
func (b *builder) collect() {
	parsed := make(map[metav1.Object]*claim, len(b.parsed))
	for i, w := range b.worlds {
		b.checkConfigMaps(w)
		for ing, read := range claims.Ingresses(&w.Snapshot) {
			known := b.parsed[ing]
			if known == nil || known.Ref.Cluster != w.Cluster {
				known = read()
				b.made.claims++
			}
			parsed[ing] = known
			c := b.take(i, known)
			var odd []annotations.Problem
			c.Redirect, odd = annotations.SSLRedirect(c.Layer, w.defaults, c.Usual)
			b.reportKeys(c.Petitioner, nil, odd)
			c.Takes, c.Canary, odd = annotations.Canary(c.Layer)
			b.reportKeys(c.Petitioner, nil, odd)
		}
		for c := range b.sharedRoutes(i) {
			parsed[c.Route.Object] = c
			b.take(i, c)
		}
	}
	b.parsed = parsed
	b.made.routed += len(b.claims)
	slices.SortStableFunc(b.claims, claims.Older)
}

// take adds a copy of a claim to those of this round, and returns it.
func (b *builder) take(world int, known *claim) *claim {
	c := *known
	c.World = world
	b.Problems = append(b.Problems, c.Problems...)
	if _, c.Closed = slices.BinarySearch(b.worlds[world].Incomplete, c.Ref.Namespace); c.Closed {
		b.bounds(c.Tenant())
		b.report(&c, "LimitReached", "all clients of this %s are rejected, because other Ingresses "+
			"of the namespace are beyond clusters[].ingress.limits.objectBytes, and each of those may "+
			"be a guard: the namespace needs fewer or smaller Ingresses", c.Ref.Kind)
	}
	b.claims = append(b.claims, &c)
	return &c
}

// maxPatterns bounds the regular expressions of a host. HAProxy tries them one after
// the other, and gives up on each after 10 µs: 100 of them cost a request at most
// one millisecond.
const maxPatterns = 100

// grant gives every host and path to the oldest claim.
func (b *builder) grant() {
	b.grantDefaults() // first: unmatched paths of known hosts fall to them
	for _, c := range b.claims {
		if c.Canary {
			continue
		}
		for _, host := range c.Hosts {
			if b.first[host] == nil {
				b.first[host] = c
			}
		}
		for _, path := range c.Paths {
			b.grantPath(c, path)
		}
	}
	b.grantImplicit()
	b.grantRedirected()
	b.grantRedirects()
	for key, c := range b.owner {
		if owner := b.passer(key.Host); owner != nil && key.Match != haproxy.Passthrough && b.routed[key].TLSOnly {
			b.report(c, "PassthroughConflict", "%s is not reached: plain HTTP is redirected to TLS, and TLS "+
				"connections for the host are passed through for %s",
				claims.Spell(key.Host, key.Path, key.Match), b.spell(owner))
		}
	}
}

// grantDefaults gives the default of all hosts to the oldest claim to it.
func (b *builder) grantDefaults() {
	operator := b.operatorSays()
	for _, c := range b.claims {
		if !c.Ruleless || c.Fallback == nil || c.Canary {
			continue
		}
		if w := b.worlds[c.World]; operator && (!w.leads() || !w.Options.OneTenant) {
			b.report(c, "DefaultBackendConflict", "spec.defaultBackend is not served: default-backend-service "+
				"of the ConfigMap is the default of all hosts already")
			continue
		}
		if first := b.fallbackOf; first != nil {
			b.report(c, "DefaultBackendConflict", "spec.defaultBackend is not served: %s is older and is the default "+
				"of all hosts already", b.spell(first))
			continue
		}
		if b.passes(c, *c.Fallback) {
			b.pass(c, "", *c.Fallback, claims.DefaultOf("all hosts"))
			continue
		}
		b.fallbackOf = c
		c.Effective = true
		b.Config.DefaultBackend = b.need(c.Petitioner, *c.Fallback, claims.DefaultOf("all hosts"))
	}
	if b.fallbackOf == nil {
		b.fallBack()
	}
}

// grantPath gives a path to a claim, or reports why not.
func (b *builder) grantPath(c *claim, path pathClaim) {
	if path.Rule != nil {
		b.grantRule(c, path)
		return
	}
	if b.passes(c, path.To) {
		b.pass(c, path.Host, path.To, path)
		return
	}
	key := path.Key()
	if b.choose(c, path, key) {
		return
	}
	if first := b.claimed[key]; first != nil && !claims.Together(first, c) {
		b.conflict(c, path, first)
		return
	}
	if other, taken := b.owner[key]; taken {
		if other != c {
			if !b.joinTwin(c, b.opened(c, path), key, path) {
				b.conflict(c, path, other)
			}
		} else if backend, _ := b.backend(c.Petitioner, b.opened(c, path)); backend.name != b.routed[key].Backend {
			b.report(c, "PathConflict", "%s is listed twice with different backends; the first one is served", path)
		}
		return
	}
	if b.tries(c, path) {
		b.give(key, c, b.opened(c, path), path)
	}
}

// tries counts the regular expressions of a host. It reports whether a path is within their bound.
func (b *builder) tries(c *claim, path pathClaim) bool {
	if path.Match != haproxy.Regexp {
		return true
	}
	if b.patterns[path.Host]++; b.patterns[path.Host] <= maxPatterns {
		return true
	}
	b.report(c, "TooManyPatterns", "%s is not served: the host has %d regular expressions, which each of its "+
		"requests tries; no more are allowed", path, maxPatterns)
	return false
}

// opened returns the reference of a path. It is open if the path is for the challenges of an ACME
// server, and the operator wants the ConfigMap's guards to let these pass.
func (b *builder) opened(c *claim, path pathClaim) reference {
	to := path.To
	to.Open = b.isOpen(c, path)
	return to
}

// isOpen reports whether no guard of the ConfigMap keeps clients from a path of a claim.
func (b *builder) isOpen(c *claim, path pathClaim) bool {
	return path.IsChallenge() && b.worlds[c.World].acme
}

// grantImplicit gives "/" of each host to the oldest claim that names the host and has a default.
// This comes after the paths of all claims: a default never replaces an explicit "/".
func (b *builder) grantImplicit() {
	implicit := make(map[routeKey]*claim)
	for _, c := range b.claims {
		if c.Fallback == nil || c.Canary {
			continue
		}
		for _, host := range c.Hosts {
			key := routeKey{Host: host, Path: "/", Match: haproxy.Prefix}
			if other := implicit[key]; other != nil {
				if b.joinTwin(c, *c.Fallback, key, claims.DefaultOf(host)) {
					continue
				}
				b.report(c, "DefaultBackendConflict", "spec.defaultBackend is not served for %s: %s is older and is "+
					"its default already", cmp.Or(host, "any host"), b.spell(other))
				continue
			}
			if _, taken := b.owner[key]; taken {
				continue
			}
			if b.passes(c, *c.Fallback) {
				b.pass(c, host, *c.Fallback, claims.DefaultOf(host))
				continue
			}
			implicit[key] = c
			b.give(key, c, *c.Fallback, claims.DefaultOf(host))
		}
	}
}

// passes reports whether TLS connections are passed on to a backend undecrypted.
func (b *builder) passes(c *claim, to reference) bool {
	w := b.worlds[c.World]
	service, _ := input.Find(w.Services, to.Service)
	yes, problems := annotations.Passthrough(b.memory.Layer(service), c.Layer, w.defaults)
	b.reportKeys(c.Petitioner, service, problems)
	return yes
}

// passer returns the claim that the TLS connections for a host are passed on for;
// nil if they end here.
func (b *builder) passer(host string) *claim {
	return b.owner[routeKey{Host: host, Path: "/", Match: haproxy.Passthrough}]
}

// pass grants the TLS connections for a host, and its plain HTTP if no other claim
// has that. The oldest claim to a host decides whether its TLS connections are
// passed on: no younger claim changes that.
func (b *builder) pass(c *claim, host string, to reference, what fmt.Stringer) {
	to.Traffic = annotations.Passed
	first, owner := b.first[host], b.passer(host)
	switch {
	case host == "":
		b.report(c, "PassthroughWithoutHost", "%s is not served: TLS connections are passed through by the server "+
			"name in their handshake: name a host in the rule", what)
		return
	case owner != nil && b.joinTwin(c, to, routeKey{Host: host, Path: "/", Match: haproxy.Passthrough}, what):
		return
	case first != nil && first != c:
		b.report(c, "PassthroughConflict", "%s is not served: %s is older and decides how TLS connections for the "+
			"host are served", what, b.spell(first))
		return
	case owner != nil:
		key := routeKey{Host: host, Path: "/", Match: haproxy.Passthrough}
		if n, _ := b.backend(c.Petitioner, to); n.name != b.routed[key].Backend {
			b.report(c, "PathConflict", "%s is not served: TLS connections that are passed through have no path, and "+
				"all go to the backend of the first path", what)
		}
		return
	}
	b.Config.Inspect = true
	b.give(routeKey{Host: host, Path: "/", Match: haproxy.Passthrough}, c, to, what)
	if plain := (routeKey{Host: host, Path: "/", Match: haproxy.Prefix}); b.owner[plain] == nil {
		b.owner[plain] = c
	}
}

// operatorSays reports whether a ConfigMap sets the default backend of all hosts.
func (b *builder) operatorSays() bool {
	_, said, _ := annotations.DefaultBackend(b.speaker.defaults)
	return said
}

// fallBack makes the Service that a ConfigMap names the default backend of all hosts.
func (b *builder) fallBack() {
	i := slices.Index(b.worlds, b.speaker)
	if i < 0 {
		return
	}
	w := b.speaker
	to, said, problems := annotations.DefaultBackend(w.defaults)
	c := petitioner{Claimant: &claimant{Ref: w.refer(w.Options.ConfigMap)}, World: i}
	b.reportKeys(c, nil, problems)
	if !said {
		return
	}
	named := serviceKey{Namespace: to.Service.Namespace, Name: to.Service.Name}
	ref := claims.ReferTo(named, to.Port, annotations.Requests)
	if service, ok := input.Find(w.Services, ref.Service); ok && to.Port == "" && len(service.Spec.Ports) > 0 {
		ref.Port, ref.Number = service.Spec.Ports[0].Name, service.Spec.Ports[0].Port
	}
	n, why := b.backend(c, ref)
	if why.Reason != "" {
		b.reportOn(c.Ref, why.Reason, "default-backend-service: %s"+unserved, why.Why)
	}
	b.add(n, c)
	b.Config.DefaultBackend = n.name
}

// addCanaries sends a part of the requests for a path to its canary. A canary
// takes requests only from claims of its own namespace.
func (b *builder) addCanaries() {
	for _, c := range b.claims {
		if !c.Canary {
			continue
		}
		if c.Fallback != nil {
			b.report(c, "CanaryDefault", "spec.defaultBackend is not served: a canary has the hosts and paths of "+
				"its rules alone")
		}
		for _, path := range c.Paths {
			key := path.Key()
			owner, first := b.owner[key], b.canaries[key]
			switch {
			case b.passer(path.Host) != nil:
				b.report(c, "CanaryOfNothing", "%s is not served: TLS connections for the host are passed through, "+
					"and HAProxy does not see their requests", path)
				continue
			case owner == nil || !claims.Together(owner, c):
				b.report(c, "CanaryOfNothing", "%s is not served: no other Ingress of the namespace serves this host "+
					"and path", path)
				continue
			case owner.Route != nil && (b.routed[key].Canary != "" || b.routed[key].Backend == ""):
				b.report(c, "CanaryOfNothing", "%s is not served: %s shares the requests by weights, or redirects them",
					path, b.spell(owner))
				continue
			case first != nil && first != c:
				b.report(c, "PathConflict", "%s is not served: %s is older and is its canary already",
					path, b.spell(first))
				continue
			case first == c:
				continue
			}
			route := b.routed[key]
			route.Canary, route.CanaryWeight = b.need(c.Petitioner, path.To, path), c.Takes.Weight
			b.picked[key] = stays(c, route)
			for _, rule := range c.Takes.Rules {
				to := route.Backend
				if rule.Take {
					to = route.Canary
				}
				b.picked[key] = append(b.picked[key], haproxy.Case{If: rule.If, Backend: to})
			}
			b.routed[key], b.canaries[key], c.Effective = route, c, true
		}
	}
}

// stays returns the cases of the clients that one side of a route with a canary has answered before. The paths of one
// Ingress have one cookie.
func stays(c *claim, route haproxy.Route) (all []haproxy.Case) {
	if !c.Takes.Stays {
		return nil
	}
	sum := sha256.Sum256([]byte(c.Ref.Cluster + "/" + c.Ref.Namespace + "/" + c.Ref.Name))
	cookie := "CANARY_" + hex.EncodeToString(sum[:6])
	for _, side := range []struct{ value, backend string }{{"always", route.Canary}, {"never", route.Backend}} {
		if one, err := haproxy.NewStay(cookie, side.value, side.backend); err == nil && side.backend != "" {
			all = append(all, one)
		}
	}
	return all
}

// give grants a route to a claim. The argument what names the route if its Service does not exist.
func (b *builder) give(key routeKey, c *claim, to reference, what fmt.Stringer) {
	b.owner[key] = c
	c.Effective = true
	route := haproxy.Route{
		Host: key.Host, Path: key.Path, Match: key.Match,
		Backend: b.need(c.Petitioner, to, what), TLSOnly: c.TLSOnly(key),
	}
	if to.Open {
		route.TLSOnly, route.Plain = c.Insists(), b.demanded.Required()
	}
	if route.TLSOnly {
		route.TLSCode, route.TLSPort = c.Redirect.Code, c.Redirect.Port
	}
	b.routed[key] = route
}

// backend finds the Service and port of a reference, and names its backend.
//
// The name is NAMESPACE_svc_SERVICE_PORT, after the prefix of the cluster (prefixOf). If the port has a
// name, PORT is this name: references by name and by number share a backend. No name of Kubernetes has
// a "_", so two ports never share a backend. The name ends in ".none" if the Service has no such port,
// so that number 80 and a port named "80" differ. It ends in ".tls" if TLS connections are passed on,
// and in ".acme" if the guards of the ConfigMap do not apply. An Ingress with keys that change the
// backend has a backend of its own, with "_ing_INGRESS" in the name. Its keys therefore change nothing
// for other Ingresses.
func (b *builder) backend(c petitioner, to reference) (n need, why Problem) {
	w, key := b.worlds[c.World], to.Service
	n = need{world: c.World, reference: to}
	service, ok := input.Find(w.Services, key)
	n.settings = b.settle(c, service, to)
	owner := ""
	if n.settings.By != nil {
		owner = "_ing_" + c.Ref.Name
		n.origin, n.named = ", ", true
	}
	named := func(port string) string {
		switch {
		case to.Traffic == annotations.Passed:
			port += ".tls"
		case to.Open:
			port += ".acme"
		}
		return claims.Shorten(w.keys.Prefix+key.Namespace+owner+"_svc_"+key.Name+"_"+port, ".")
	}
	why = n.find(service, ok)
	n.spare = b.spare(c, n.settings.Spare)
	switch {
	case n.exists:
		n.settings = b.spoken(n, service)
		if w.Exported(key) {
			n.set = w.Options.InSet.Name
		}
		n.name = named(cmp.Or(n.Port, strconv.Itoa(int(n.Number))))
	case why.Reason == "PortNotFound":
		n.name = named(to.PortText()) + ".none"
	default:
		n.name = named(to.PortText())
	}
	return n, why
}

// spare returns the first port of a Service that an object names in default-backend. It reports a Service that
// cannot be used.
func (b *builder) spare(c petitioner, name string) reference {
	if name == "" {
		return reference{}
	}
	key := serviceKey{Namespace: c.Ref.Namespace, Name: name}
	n := need{reference: claims.ReferTo(key, "", annotations.Requests)}
	service, ok := input.Find(b.worlds[c.World].Services, key)
	n.toFirstPort(service, ok)
	if why := n.find(service, ok); why.Reason != "" {
		b.reportOn(c.Ref, why.Reason, "sallyport.dev/default-backend: %s; it is ignored", why.Why)
		return reference{}
	}
	return n.reference
}

// toFirstPort refers to the first port of a Service. ok is false without a Service.
func (n *need) toFirstPort(service *corev1.Service, ok bool) {
	if ok && len(service.Spec.Ports) > 0 {
		n.Port, n.Number = service.Spec.Ports[0].Name, service.Spec.Ports[0].Port
	}
}

// spoken returns the settings of a need with the protocol that the port of its Service speaks
// (appProtocol). The key server-proto overrides it.
func (b *builder) spoken(n need, service *corev1.Service) *settings {
	if n.Traffic != annotations.Requests || n.settings.Options.Proto != "" {
		return n.settings
	}
	for _, port := range service.Spec.Ports {
		if port.Name != n.Port || port.Port != n.Number || port.AppProtocol == nil {
			continue
		}
		if proto := protocols[*port.AppProtocol]; proto != "" {
			return b.memory.Derive(n.settings, listen.Effects{Proto: proto})
		}
	}
	return n.settings
}

// protocols are the versions of HTTP of an appProtocol. Without TLS the default is HTTP/1.1, and
// with TLS the server's preference, which may be a version without WebSockets.
var protocols = map[string]string{
	"kubernetes.io/h2c": "h2", "kubernetes.io/ws": "h1", "kubernetes.io/wss": "h1",
}

// find looks the port up in its Service. ok is false without a Service.
func (n *need) find(service *corev1.Service, ok bool) Problem {
	if ok {
		n.uid, n.made = string(service.UID), service.CreationTimestamp.Unix()
	}
	if why := unusable(service, ok, n.Service); why.Reason != "" {
		return why
	}
	var has []string
	for _, port := range service.Spec.Ports {
		has = append(has, strings.TrimSpace(port.Name+" "+strconv.Itoa(int(port.Port))))
		if n.Port != "" && port.Name != n.Port || n.Port == "" && port.Port != n.Number {
			continue
		}
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		n.Port, n.Number, n.exists = port.Name, port.Port, true
		return Problem{}
	}
	why := fmt.Sprintf("Service %s has no TCP port %s, it has %s", n.Service, n.PortText(), claims.List(has))
	return Problem{Reason: "PortNotFound", Why: why}
}

const unserved = "; until that is corrected, requests get 503"

// need returns the name of the backend for a reference. A reference that leads
// nowhere gets a backend without servers. It answers 503, as a Service without
// endpoints does: the host is served here, and the application is missing. A 404
// would say that the host is unknown.
func (b *builder) need(c petitioner, to reference, what fmt.Stringer) string {
	n, why := b.backend(c, to)
	if why.Reason != "" {
		b.reportOn(c.Ref, why.Reason, "%s: %s"+unserved, what, why.Why)
	}
	b.add(n, c)
	for _, one := range n.settings.Asks {
		b.ask(c, one, what)
	}
	return n.name
}

// purposes hold for each annotations.Purpose the key that names the Service, the reason for the backend, and the
// effect while it cannot be used.
var purposes = map[annotations.Purpose]struct{ key, origin, lost string }{
	annotations.Checks: {"auth-url", "checks requests (auth-url): ", unserved},
	annotations.Copies: {
		"mirror-to", "gets copies of requests (mirror-to): ", "; requests are not copied",
	},
	annotations.Pages: {
		"error-pages", "answers for servers (error-pages): ", "; the answers of servers stay as they are",
	},
}

// ask adds the backend of a Service that a key names for a purpose.
func (b *builder) ask(c petitioner, one keys.Asked, what fmt.Stringer) {
	if _, known := b.needed[one.Backend]; known {
		return
	}
	purpose := purposes[one.Purpose]
	n := need{
		name: one.Backend, origin: purpose.origin, world: c.World,
		reference: claims.ReferTo(one.Key, one.Port, claims.Checks),
	}
	service, ok := input.Find(b.worlds[c.World].Services, one.Key)
	if one.Port == "" {
		n.toFirstPort(service, ok)
	}
	of := keys.For{Service: service, World: c.World, Traffic: claims.Checks}
	n.settings = b.compile("", of, b.memory.Layer(service), b.worlds[c.World].defaults)
	b.reportKeys(c, service, n.settings.Problems)
	if one.Purpose == annotations.Copies {
		n.settings = b.memory.Derive(n.settings, listen.Effects{Directives: haproxy.CopyTarget()})
	}
	why := n.find(service, ok)
	if why.Reason != "" {
		b.reportOn(c.Ref, why.Reason, "%s, sallyport.dev/%s: %s%s", what, purpose.key, why.Why, purpose.lost)
	}
	b.add(n, c)
}

// add adds a need of a claim. The backend is as old as the oldest of its claims.
func (b *builder) add(n need, c petitioner) {
	n.by, n.asked = c.Ref, c.Created.Unix()
	if was, known := b.needed[n.name]; known {
		n.byOlder(&was)
	}
	b.needed[n.name] = n
}

func (b *builder) keys() []routeKey {
	return slices.SortedFunc(maps.Keys(b.routed), claims.CompareKeys)
}

// certify finds the certificate of each host. The older claim to a host brings it.
func (b *builder) certify() {
	current := make(map[*corev1.Secret]*pair, len(b.pairs))
	all := cert.Hosts{Owned: b.owned, Spell: b.spell, Report: b.report}
	var holders map[string]*claim
	for _, c := range b.claims {
		w := b.worlds[c.World]
		var clients annotations.Clients
		if annotations.ClientCAOf(c.Layer) != "" {
			said := new(keys.Found)
			// The problems of client-ca are reported with those of the backend.
			clients, _ = annotations.ClientCA(b.env(w, c.Ref.Namespace, said), c.Layer)
			b.Refused = append(b.Refused, said.Refused...)
			clients.Match = annotations.ClientMatch(c.Layer)
		}
		if clients.CA != nil && len(c.TLS) == 0 {
			b.report(c, "NoCertificate", "client-ca is set on an Ingress without a certificate of its own: requests "+
				"are answered 403 or 421; add an entry to spec.tls")
		}
		if clients.CA != nil && !clients.Optional && annotations.HasClientPage(c.Layer) {
			if holders == nil {
				holders = b.oneHolder()
			}
			why := b.mustShow(c, holders)
			if clients.Optional = why == ""; why != "" {
				b.report(c, "UnusedAnnotation", "client-crt-error-page has no effect, and the handshake of a client "+
					"without a certificate fails, since %s", why)
			} else {
				clients.Match = "" // no other Ingress has the hosts, and the page is for clients without a certificate
			}
		}
		ciphers, _ := annotations.ClientCiphers(c.Layer) // their problems are reported with the claim
		if ciphers != "" && len(c.TLS) == 0 {
			b.report(c, "NoCertificate", "ssl-ciphers is set on an Ingress without a certificate of its own: it has "+
				"no effect; add an entry to spec.tls")
		}
		for _, t := range c.TLS {
			if read := b.readEntry(c, t, current); read != nil {
				all.Add(c, t, cert.Entry{
					Prefix: w.keys.Prefix, Cluster: w.Cluster, At: w.At, Pair: read, Clients: clients, Ciphers: ciphers,
				})
			}
		}
	}
	b.pairs = current
	certs, extras := all.Certs()
	b.Config.Certs, b.Config.Extras = append(b.Config.Certs, certs...), append(b.Config.Extras, extras...)
}

// oneHolder returns the claim to each host that one claim alone has, in its rules or in its TLS entries.
func (b *builder) oneHolder() map[string]*claim {
	holders := make(map[string]*claim)
	for _, c := range b.claims {
		hosts := slices.Clone(c.Hosts)
		for _, t := range c.TLS {
			hosts = append(hosts, t.Hosts...)
		}
		for _, host := range hosts {
			if other, has := holders[host]; has && other != c {
				holders[host] = nil
			} else {
				holders[host] = c
			}
		}
	}
	return holders
}

// mustShow returns why clients may not connect to the hosts of a claim without a certificate, or "" if they may. The
// handshake also guards the paths of other claims to these hosts, and those of the default backend.
func (b *builder) mustShow(c *claim, holders map[string]*claim) string {
	if b.demanded.Required() {
		return "the ConfigMap requires a certificate from all clients"
	}
	for _, t := range c.TLS {
		if len(t.Hosts) == 0 {
			return "an entry of spec.tls names no host"
		}
		for _, host := range t.Hosts {
			whole := func(p claims.Path) bool { return p.Host == host && p.Path == "/" && p.Match != haproxy.Exact }
			switch {
			case strings.HasPrefix(host, "*"):
				return host + " is a wildcard host"
			case holders[host] != c:
				return "another Ingress or Route has host " + host + ", too"
			case !slices.ContainsFunc(c.Paths, whole):
				return "the Ingress does not have path / of host " + host
			}
		}
	}
	return ""
}

// readEntry returns the certificate of a TLS entry, or nil if it has none that can be used, which readEntry
// reports.
func (b *builder) readEntry(c *claim, t claims.TLS, current map[*corev1.Secret]*pair) *pair {
	w := b.worlds[c.World]
	if through, _ := annotations.Passthrough(c.Layer, w.defaults); through && t.Secret == "" {
		return nil // the servers have their own
	}
	if t.Secret == "" {
		b.report(c, "NoCertificate", "the tls entry for %s names no Secret: it is served without a certificate of "+
			"its own", claims.List(t.Hosts))
		return nil
	}
	read, reason, why := b.readPair(w, t.Key(c), current)
	if read == nil {
		b.report(c, reason, "%s: %s is served without its certificate", why, claims.List(t.Hosts))
		return nil
	}
	b.watchClock(w.At, read)
	return read
}

// watchClock narrows the time in which this routing is valid. The routing becomes invalid when the
// validity of a certificate begins or ends.
func (b *builder) watchClock(at time.Time, p *pair) {
	if at.IsZero() {
		return
	}
	// doubts reports a certificate from the first instant after NotAfter.
	for _, edge := range []time.Time{p.Leaf.NotBefore, p.Leaf.NotAfter.Add(1)} {
		b.certain = b.certain.Narrow(at, edge)
	}
}

// spell returns the name of a claim, as the problem of another claim shows it.
func (b *builder) spell(c *claim) string { return b.spellOf(c.Petitioner) }

func (b *builder) spellOf(c petitioner) string {
	return b.spellRef(c.Ref)
}

func (c *Compiler) spellRef(o ObjectRef) string {
	name := o.Kind + " " + o.Namespace + "/" + o.Name
	if len(c.worlds) > 1 {
		name += " of cluster " + o.Cluster
	}
	return name
}

func (b *builder) report(c *claim, reason, format string, args ...any) {
	b.reportOn(c.Ref, reason, format, args...)
}

func (b *builder) reportOn(object ObjectRef, reason, format string, args ...any) {
	b.Problems = append(b.Problems, Problem{ObjectRef: object, Reason: reason, Why: fmt.Sprintf(format, args...)})
}
