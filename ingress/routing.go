package ingress

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// routing is everything that does not depend on endpoints.
type routing struct {
	of        []*world // for which it was made
	petitions []*petition
	owner     map[routeKey]*petition
	canaries  map[routeKey]*petition
	chosen    map[routeKey][]choosing
	owners    map[string]*HostOwners // by cluster

	routes   []haproxy.Route
	fallback string // backend of requests no route takes
	needs    []need // backends that have to exist, sorted by name
	users    []map[serviceKey][]int
	certs    []*haproxy.Cert
	tables   []haproxy.Table
	captures []int

	userlists []*haproxy.Userlist
	extras    []*haproxy.Extra
	lists     []*haproxy.List
	choices   []*haproxy.Choice
	global    annotations.Global
	questions []haproxy.Question
	streams   []haproxy.Stream
	inspect   bool // a route is one of Passthrough

	served   []ObjectRef
	problems []Problem
	refused  []haproxy.Part // left out because HAProxy refuses it

	// Between since (included) and until (excluded) no certificate expires or
	// becomes valid. Zero is open.
	since, until time.Time
}

// A need is a backend, and all that its servers are made of but the endpoints.
type need struct {
	name     string
	origin   string // for people: whose it is, if not everybody's
	world    int
	service  serviceKey
	kind     kind
	uid      string
	port     string // name of the Service's port, which the slices repeat; "" is the name of a single port
	number   int32  // for people
	exists   bool   // there is such a Service and port, and its endpoints may be used
	settings *settings
}

func (r *routing) valid(at time.Time) bool {
	return !at.Before(r.since) && (r.until.IsZero() || at.Before(r.until))
}

// reuse takes over what is the same as before, pointer for pointer.
func (r *routing) reuse(before *routing) {
	if slices.Equal(r.routes, before.routes) {
		r.routes = before.routes
	}
	was := make(map[string]*haproxy.Cert, len(before.certs))
	for _, c := range before.certs {
		was[c.Name] = c
	}
	for i, c := range r.certs {
		if old := was[c.Name]; reflect.DeepEqual(c, old) {
			r.certs[i] = old
		}
	}
}

// petition is an Ingress of ours with its claims, in the order in which
// Ingresses are heard.
type petition struct {
	world  int
	object *networkingv1.Ingress
	on     *ObjectRef // who asks, if it is not an Ingress
	*claims
	covered   []string // hosts of its TLS entries that have a usable certificate
	secure    bool     // it has a usable certificate
	redirect  annotations.Redirect
	effective bool // something of it is in effect

	canary bool // it takes over some requests of other Ingresses
	weight int  // how many of 100
}

// routeKey is what a route matches: two claims with one key are in conflict.
type routeKey struct {
	host, path string
	match      haproxy.PathMatch
}

// clerk is the work in progress of one routing.
type clerk struct {
	*Compiler
	*routing
	needed   map[string]need
	routed   map[routeKey]haproxy.Route
	first    map[string]*petition // who named a host first
	asked    []haproxy.Question   // of conditions
	holds    map[string]hold      // by host
	children map[string][]string  // hosts by their parent, once spare has asked

	fallbackOf *petition // whose default backend it is; nil if the operator's

	claimed map[routeKey]*petition // by whom first, with a condition

	patterns map[string]int // regular expressions by host
}

// route hears every Ingress, the older first. Across clusters the first
// configured goes first, whatever its age: it is the operator who orders them.
func (c *Compiler) route(worlds []*world) *routing {
	k := &clerk{Compiler: c, routing: &routing{of: worlds, global: globalOf(worlds)}}
	if demanded := k.global.Clients; !reflect.DeepEqual(demanded, k.demanded) {
		k.demanded, k.settled = demanded, nil
	}
	k.extras, k.questions = slices.Clone(k.global.Extras), slices.Clone(k.global.Questions)
	for _, w := range worlds {
		k.refused = append(k.refused, w.refused...)
	}
	k.hear()
	k.own()
	most := len(k.petitions)
	k.remember()
	k.limit()
	k.needed, k.routed, k.owner = make(map[string]need, most), make(map[routeKey]haproxy.Route, most), make(map[routeKey]*petition, most)
	k.first = make(map[string]*petition, most)
	k.chosen, k.claimed = make(map[routeKey][]choosing), make(map[routeKey]*petition)
	k.patterns = make(map[string]int)
	k.certify()
	k.grant()
	k.stream()

	for _, key := range k.keys() {
		k.routes = append(k.routes, k.routed[key])
	}
	k.users = make([]map[serviceKey][]int, len(worlds))
	for i := range worlds {
		k.users[i] = make(map[serviceKey][]int)
	}
	seen := make(map[haproxy.Question]bool)
	ask := func(questions []haproxy.Question) {
		for _, q := range questions {
			if !seen[q] {
				seen[q] = true
				k.questions = append(k.questions, q)
			}
		}
	}
	ask(k.asked)
	for i, name := range sortedKeys(k.needed) {
		n := k.needed[name]
		k.needs = append(k.needs, n)
		k.users[n.world][n.service] = append(k.users[n.world][n.service], i)
		k.tables = append(k.tables, n.settings.Tables...)
		k.userlists, k.extras = append(k.userlists, n.settings.Userlists...), append(k.extras, n.settings.Extras...)
		k.lists = append(k.lists, n.settings.Lists...)
		ask(n.settings.Questions)
		for slot, length := range n.settings.Captures {
			if slot == len(k.captures) {
				k.captures = append(k.captures, 0)
			}
			k.captures[slot] = max(k.captures[slot], length)
		}
	}
	// The backends of one Ingress count in one table, which they all bring.
	slices.SortFunc(k.tables, func(a, b haproxy.Table) int { return cmp.Compare(a.Name, b.Name) })
	k.tables = slices.Compact(k.tables)
	k.userlists = distinct(k.userlists, func(u *haproxy.Userlist) string { return u.Name })
	k.lists = distinct(k.lists, func(l *haproxy.List) string { return l.Name })
	k.extras = distinct(k.extras, func(e *haproxy.Extra) string { return e.Name })
	for _, p := range k.petitions {
		if p.effective {
			k.served = append(k.served, k.refer(p))
		}
	}
	return k.routing
}

// distinct sorts by name and keeps one of each: what has one name was made of
// one Secret.
func distinct[T any](list []*T, name func(*T) string) []*T {
	slices.SortStableFunc(list, func(a, b *T) int { return cmp.Compare(name(a), name(b)) })
	return slices.CompactFunc(list, func(a, b *T) bool { return name(a) == name(b) })
}

// hear collects the Ingresses that are ours, reading those not yet read.
func (k *clerk) hear() {
	parsed := make(map[*networkingv1.Ingress]*claims, len(k.parsed))
	for i, w := range k.worlds {
		k.hearDefaults(w)
		ours := classesOf(w)
		for _, ing := range w.Ingresses {
			if !ours.has(ing) {
				continue
			}
			read, ok := k.parsed[ing]
			if !ok {
				read = readClaims(ing)
			}
			parsed[ing] = read
			p := &petition{world: i, object: ing, claims: read}
			redirect, odd := annotations.SSLRedirect(read.layer, w.defaults)
			p.redirect = redirect
			k.tell(p, nil, odd)
			p.weight, p.canary, odd = annotations.Canary(read.layer)
			k.tell(p, nil, odd)
			k.petitions = append(k.petitions, p)
			for _, p := range read.problems {
				p.Cluster = w.cluster
				k.problems = append(k.problems, p)
			}
		}
	}
	k.parsed = parsed
	slices.SortStableFunc(k.petitions, func(a, b *petition) int {
		return cmp.Or(
			cmp.Compare(a.world, b.world),
			a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time),
			byName(a.object, b.object),
		)
	})
}

// maxPatterns bounds the regular expressions of a host. HAProxy tries them one after
// the other, and gives up a match after 10 µs: for as many as that a request takes
// one millisecond.
const maxPatterns = 100

// grant gives every host and path to the first who claims it.
func (k *clerk) grant() {
	// Defaults for everybody come first: unmatched paths of known hosts fall to them.
	operator := k.operatorSays()
	for _, p := range k.petitions {
		if !p.ruleless || p.claims.fallback == nil || p.canary {
			continue
		}
		if operator && !k.worlds[p.world].options.OneTenant {
			k.complain(p, "DefaultBackendConflict", "spec.defaultBackend is not served: default-backend-service of the ConfigMap is the default of all hosts already")
			continue
		}
		if first := k.fallbackOf; first != nil {
			k.complain(p, "DefaultBackendConflict", "spec.defaultBackend is not served: %s is older and is the default of all hosts already", k.spell(first))
			continue
		}
		if k.passes(p, *p.claims.fallback) {
			k.pass(p, "", *p.claims.fallback, defaultOf("all hosts"))
			continue
		}
		k.fallbackOf = p
		p.effective = true
		k.routing.fallback = k.need(p, *p.claims.fallback, defaultOf("all hosts"))
	}
	if k.fallbackOf == nil {
		k.fallBack()
	}
	for _, p := range k.petitions {
		if p.canary {
			continue
		}
		for _, host := range p.hosts {
			if k.first[host] == nil {
				k.first[host] = p
			}
		}
		for _, claim := range p.rules {
			if k.passes(p, claim.to) {
				k.pass(p, claim.host, claim.to, claim)
				continue
			}
			key := routeKey{claim.host, claim.path, claim.match}
			if k.choose(p, claim, key) {
				continue
			}
			if first := k.claimed[key]; first != nil && !together(first, p) {
				k.complain(p, "PathConflict", "%s is not served: %s is older and has it already", claim, k.spell(first))
				continue
			}
			if other, taken := k.owner[key]; taken {
				if other != p {
					k.complain(p, "PathConflict", "%s is not served: %s is older and has it already", claim, k.spell(other))
				} else if backend, _ := k.backend(p, claim.to); backend.name != k.routed[key].Backend {
					k.complain(p, "PathConflict", "%s is there twice with different backends; the first one is served", claim)
				}
				continue
			}
			if claim.match == haproxy.Regexp {
				if k.patterns[claim.host]++; k.patterns[claim.host] > maxPatterns {
					k.complain(p, "TooManyPatterns", "%s is not served: the host has %d regular expressions, which each of its requests tries; no more are allowed", claim, maxPatterns)
					continue
				}
			}
			k.give(key, p, claim.to, claim)
		}
	}
	// The default of an Ingress with rules stands behind the rules of all
	// Ingresses for its hosts, so that it cannot take an explicit "/".
	implicit := make(map[routeKey]*petition)
	for _, p := range k.petitions {
		if p.claims.fallback == nil || p.canary {
			continue
		}
		for _, host := range p.hosts {
			key := routeKey{host, "/", haproxy.Prefix}
			if other := implicit[key]; other != nil {
				k.complain(p, "DefaultBackendConflict", "spec.defaultBackend is not served for %s: %s is older and is its default already", cmp.Or(host, "any host"), k.spell(other))
				continue
			}
			if _, taken := k.owner[key]; taken {
				continue
			}
			if k.passes(p, *p.claims.fallback) {
				k.pass(p, host, *p.claims.fallback, defaultOf(host))
				continue
			}
			implicit[key] = p
			k.give(key, p, *p.claims.fallback, defaultOf(host))
		}
	}
	k.share()
	for key, p := range k.owner {
		if owner := k.passer(key.host); owner != nil && key.match != haproxy.Passthrough && k.routed[key].TLSOnly {
			k.complain(p, "PassthroughConflict", "%s is not reached: plain HTTP is redirected to TLS, and TLS connections for the host are passed through for %s",
				spell(key.host, key.path, key.match), k.spell(owner))
		}
	}
	defer k.chain()
	k.shut()
}

// passes reports whether TLS connections go to a backend as they are.
func (k *clerk) passes(p *petition, to reference) bool {
	w := k.worlds[p.world]
	service, _ := find(w.Services, serviceKey{p.object.Namespace, to.service})
	yes, problems := annotations.Passthrough(k.layer(service), p.layer, w.defaults)
	k.tell(p, service, problems)
	return yes
}

// passer is whose the TLS connections for a host are; nil if they end here.
func (k *clerk) passer(host string) *petition {
	return k.owner[routeKey{host, "/", haproxy.Passthrough}]
}

// pass grants the TLS connections for a host, and plain HTTP for what of it
// nobody else has. Whether they end here is for the first to say who named the
// host: nobody takes them from others.
func (k *clerk) pass(p *petition, host string, to reference, what fmt.Stringer) {
	to.kind = passed
	first, owner := k.first[host], k.passer(host)
	switch {
	case host == "":
		k.complain(p, "PassthroughWithoutHost", "%s is not served: TLS connections are passed through by the name in their handshake, so it takes a host", what)
		return
	case first != nil && first != p:
		k.complain(p, "PassthroughConflict", "%s is not served: how TLS connections for the host are served is for %s to say, which is older", what, k.spell(first))
		return
	case owner != nil:
		if n, _ := k.backend(p, to); n.name != k.routed[routeKey{host, "/", haproxy.Passthrough}].Backend {
			k.complain(p, "PathConflict", "%s is not served: TLS connections that are passed through have no path, and go to the backend of the first one", what)
		}
		return
	}
	k.inspect = true
	k.give(routeKey{host, "/", haproxy.Passthrough}, p, to, what)
	if plain := (routeKey{host, "/", haproxy.Prefix}); k.owner[plain] == nil {
		k.owner[plain] = p
	}
}

// operatorSays reports whether a ConfigMap names the default of all.
func (k *clerk) operatorSays() bool {
	return slices.ContainsFunc(k.worlds, func(w *world) bool {
		_, said, _ := annotations.DefaultBackend(w.defaults)
		return said
	})
}

// fallBack makes the Service that a ConfigMap names the default of all. Of
// several the first configured counts.
func (k *clerk) fallBack() {
	for i, w := range k.worlds {
		to, said, problems := annotations.DefaultBackend(w.defaults)
		k.tell(&petition{world: i}, nil, problems)
		if !said || k.routing.fallback != "" {
			continue
		}
		p := &petition{world: i, object: &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: to.Service.Namespace}}, claims: &claims{}}
		ref := reference{service: to.Service.Name, port: to.Port}
		if number, err := strconv.ParseInt(to.Port, 10, 32); err == nil {
			ref.port, ref.number = "", int32(number)
		}
		if service, ok := find(w.Services, serviceKey{to.Service.Namespace, to.Service.Name}); ok && to.Port == "" && len(service.Spec.Ports) > 0 {
			ref.port, ref.number = service.Spec.Ports[0].Name, service.Spec.Ports[0].Port
		}
		n, why := k.backend(p, ref)
		if why.Reason != "" {
			k.problems = append(k.problems, Problem{ObjectRef: w.refer(w.options.ConfigMap), Reason: why.Reason, Why: "default-backend-service: " + why.Why + unserved})
		}
		k.needed[n.name], k.routing.fallback = n, n.name
	}
}

// share gives canaries their part of what others have. Nobody takes requests
// from another namespace.
func (k *clerk) share() {
	k.canaries = make(map[routeKey]*petition)
	for _, p := range k.petitions {
		if !p.canary {
			continue
		}
		if p.claims.fallback != nil {
			k.complain(p, "CanaryDefault", "spec.defaultBackend is not served: a canary has the hosts and paths of its rules alone")
		}
		for _, claim := range p.rules {
			key := routeKey{claim.host, claim.path, claim.match}
			owner, first := k.owner[key], k.canaries[key]
			switch {
			case k.passer(claim.host) != nil:
				k.complain(p, "CanaryOfNothing", "%s is not served: TLS connections for the host are passed through, and nobody sees their requests", claim)
				continue
			case owner == nil || owner.world != p.world || owner.object.Namespace != p.object.Namespace:
				k.complain(p, "CanaryOfNothing", "%s is not served: no Ingress of the namespace has it, of which this could be a canary", claim)
				continue
			case first != nil && first != p:
				k.complain(p, "PathConflict", "%s is not served: %s is older and its canary already", claim, k.spell(first))
				continue
			case first == p:
				continue
			}
			route := k.routed[key]
			route.Canary, route.CanaryWeight = k.need(p, claim.to, claim), p.weight
			k.routed[key], k.canaries[key], p.effective = route, p, true
		}
	}
}

// defaultOf is a host, as the place where a default backend is asked for.
type defaultOf string

func (d defaultOf) String() string { return "the default of " + cmp.Or(string(d), "any host") }

// give grants a route; what it is for is told when its Service is not there.
func (k *clerk) give(key routeKey, p *petition, to reference, what fmt.Stringer) {
	k.owner[key] = p
	p.effective = true
	k.routed[key] = haproxy.Route{
		Host: key.host, Path: key.path, Match: key.match,
		Backend: k.need(p, to, what),
		TLSOnly: p.tlsOnly(key),
	}
	if route := k.routed[key]; route.TLSOnly {
		route.TLSCode, route.TLSPort = p.redirect.Code, p.redirect.Port
		k.routed[key] = route
	}
}

// tlsOnly reports whether plain HTTP is redirected for a host of the Ingress:
// where the Ingress brings a certificate for it, unless the annotation says
// otherwise. A host the certificate was not meant for is not sent to a warning
// of the browser. Where TLS is passed through there is nothing but TLS.
func (p *petition) tlsOnly(key routeKey) bool {
	if p.redirect.Wanted != nil {
		return *p.redirect.Wanted
	}
	host := key.host
	if key.match == haproxy.Passthrough {
		return true
	}
	if host == "" {
		return p.secure
	}
	return covers(p.covered, host)
}

// backend finds the Service and port of a reference, and names its backend.
//
// The name is NAMESPACE_svc_SERVICE_PORT, PORT being the port's name where it
// has one, so that a port referred to by name and by number is one backend.
// Neither namespaces nor Services nor ports have "_" in their names: two ports
// never share a backend. A port the Service does not have ends in ".none",
// which keeps number 80 apart from a port that is named "80"; one to which TLS connections
// are passed through ends in ".tls". An Ingress that
// says more of a backend than its Service does has one of its own, with
// "_ing_INGRESS" in the name: what it says is not for others.
func (k *clerk) backend(p *petition, to reference) (n need, why Problem) {
	w := k.worlds[p.world]
	key := serviceKey{p.object.Namespace, to.service}
	n = need{world: p.world, service: key, kind: to.kind, port: to.port, number: to.number}
	service, ok := find(w.Services, key)
	n.settings = k.settle(p, service, to.kind)
	owner := ""
	if n.settings.own {
		owner = "_ing_" + p.object.Name
		n.origin = k.spell(p) + ", "
	}
	named := func(port string) string {
		if to.kind == passed {
			port += ".tls"
		}
		return shorten(w.prefix+key.namespace+owner+"_svc_"+key.name+"_"+port, ".")
	}
	why = n.find(service, ok)
	switch {
	case n.exists:
		n.name = named(cmp.Or(n.port, strconv.Itoa(int(n.number))))
	case why.Reason == "PortNotFound":
		n.name = named(to.portText()) + ".none"
	default:
		n.name = named(to.portText())
	}
	return n, why
}

// find looks the port up in its Service, if there is one.
func (n *need) find(service *corev1.Service, ok bool) Problem {
	if !ok {
		return Problem{Reason: "ServiceNotFound", Why: fmt.Sprintf("there is no Service %s", n.service)}
	}
	n.uid = string(service.UID)
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return Problem{Reason: "ExternalName", Why: fmt.Sprintf("Service %s is of type ExternalName: a server is an address with a verified route, not a name", n.service)}
	}
	var has []string
	for _, port := range service.Spec.Ports {
		has = append(has, strings.TrimSpace(port.Name+" "+strconv.Itoa(int(port.Port))))
		if n.port != "" && port.Name != n.port || n.port == "" && port.Port != n.number {
			continue
		}
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		n.port, n.number, n.exists = port.Name, port.Port, true
		return Problem{}
	}
	return Problem{Reason: "PortNotFound", Why: fmt.Sprintf("Service %s has no TCP port %s, it has %s", n.service, reference{port: n.port, number: n.number}.portText(), list(has))}
}

const unserved = "; until that is mended requests are answered with 503"

// need is the name of the backend for a reference. A reference that leads
// nowhere still has one, without servers: that is a 503, which says that the
// host is served here and the application is not there, as a Service without
// endpoints does. A 404 would be the answer of a host we do not know.
func (k *clerk) need(p *petition, to reference, what fmt.Stringer) string {
	n, why := k.backend(p, to)
	if why.Reason != "" {
		k.complain(p, why.Reason, "%s: %s"+unserved, what, why.Why)
	}
	k.needed[n.name] = n
	for _, one := range n.settings.asks {
		k.ask(p, one, what)
	}
	return n.name
}

// ask needs the backend of a Service that says who may come in. Without servers
// it says no.
func (k *clerk) ask(p *petition, one askedOne, what fmt.Stringer) {
	if _, known := k.needed[one.backend]; known {
		return
	}
	n := need{name: one.backend, origin: "to be asked who may come in: ", world: p.world, service: one.key, port: one.port}
	if number, err := strconv.ParseInt(one.port, 10, 32); err == nil {
		n.port, n.number = "", int32(number)
	}
	service, ok := find(k.worlds[p.world].Services, one.key)
	n.settings = k.compile("", settledFor{service: service, world: p.world, kind: questions}, k.layer(service), k.worlds[p.world].defaults)
	k.tell(p, service, n.settings.problems)
	why := n.find(service, ok)
	if why.Reason != "" {
		k.complain(p, why.Reason, "%s, sallyport.dev/auth-url: %s"+unserved, what, why.Why)
	}
	k.needed[n.name] = n
}

func (k *clerk) keys() []routeKey {
	keys := make([]routeKey, 0, len(k.routed))
	for key := range k.routed {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b routeKey) int {
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.path, b.path), cmp.Compare(a.match, b.match))
	})
	return keys
}

// certify finds the certificates. The older Ingress has a host's certificate.
func (k *clerk) certify() {
	pairs := make(map[*corev1.Secret]*pair, len(k.pairs))
	hosts := make(map[string][]string) // certificate to the hosts it is served for
	holder := make(map[string]string)  // host to the certificate
	asked := make(map[string]annotations.Clients)
	granted := make(map[string]*petition) // host to who brought it
	used := make(map[string]*pair)
	for _, p := range k.petitions {
		w := k.worlds[p.world]
		said := new(settings)
		clients, _ := annotations.ClientCA(k.env(w, p.object.Namespace, said), p.layer) // problems are told with the backend's
		k.refused = append(k.refused, said.refused...)
		if clients.CA != nil && len(p.tls) == 0 {
			k.complain(p, "NoCertificate", "client-ca is said of an Ingress without a certificate of its own: requests are answered 403 or 421; add an entry to spec.tls")
		}
		for _, t := range p.tls {
			if through, _ := annotations.Passthrough(p.layer, w.defaults); through && t.secret == "" {
				continue // the servers have their own
			}
			if t.secret == "" {
				k.complain(p, "NoCertificate", "the tls entry for %s names no Secret: it is served without a certificate of its own", list(t.hosts))
				continue
			}
			key := serviceKey{p.object.Namespace, t.secret}
			secret, ok := find(w.Secrets, key)
			if !ok {
				why := fmt.Sprintf("there is no Secret %s of type %s", key, corev1.SecretTypeTLS)
				if w.noSecrets {
					why = fmt.Sprintf("Secret %s cannot be read: the appliance may not list Secrets in this cluster", key)
				}
				k.complain(p, "SecretNotFound", "%s: %s is served without its certificate", why, list(t.hosts))
				continue
			}
			read, ok := k.pairs[secret]
			if !ok {
				read = readPair(secret)
			}
			pairs[secret] = read
			read = k.accepted(read)
			if read.unusable != "" {
				k.complain(p, "CertificateUnusable", "Secret %s %s: %s is served without its certificate", key, read.unusable, list(t.hosts))
				continue
			}
			k.watchClock(w.at, read)
			if reason, why := read.doubts(w.at, t.hosts); reason != "" {
				k.complain(p, reason, "the certificate in Secret %s %s", key, why)
			}
			name := certName(w.prefix, key)
			if clients.CA != nil {
				name = clientCertName(name, clients)
				asked[name] = clients
			}
			used[name] = read
			p.secure = true
			names := t.hosts
			if len(names) == 0 {
				names = read.names
			}
			for _, host := range names {
				if err := k.may(p, host); err != nil { // a name that only the certificate has
					k.complain(p, "HostOwned", "the certificate in Secret %s is not served for %s: %v", key, host, err)
					continue
				}
				p.covered = append(p.covered, host)
				switch other := holder[host]; {
				case other == "":
					holder[host], granted[host] = name, p
					hosts[name] = append(hosts[name], host)
				case other != name && (asked[other].CA != nil || asked[name].CA != nil):
					k.complain(p, "CertificateConflict", "which certificates clients of %s need is for %s to say, which is older: what it says holds for both", host, k.spell(granted[host]))
				case other != name:
					k.complain(p, "CertificateConflict", "the certificate in Secret %s is not served for %s: %s brings another", key, host, k.spell(granted[host]))
				}
			}
		}
	}
	k.pairs = pairs
	for _, name := range sortedKeys(hosts) {
		clients := asked[name]
		if clients.CA != nil {
			k.extras = append(k.extras, clients.CA)
		}
		for _, c := range k.listings(name, hosts[name], holder, granted) {
			c.PEM = used[name].pem
			if clients.CA != nil {
				c.ClientCA, c.ClientOptional = clients.CA.Name, clients.Optional
			}
			k.certs = append(k.certs, c)
		}
	}
	slices.SortFunc(k.certs, func(a, b *haproxy.Cert) int { return cmp.Compare(a.Name, b.Name) })
}

// listings spreads the hosts of a certificate over as many entries as they need.
func (k *clerk) listings(name string, hosts []string, certified map[string]string, granted map[string]*petition) (all []*haproxy.Cert) {
	slices.Sort(hosts)
	room := 0
	for _, host := range hosts {
		var spared []string
		if strings.HasPrefix(host, "*.") {
			var fits bool
			if spared, fits = k.spare(host, certified); !fits {
				k.complain(granted[host], "CertificateConflict", "the certificate for %s is not served for it: too many older hosts of others are below it; name the hosts one by one", host)
				continue
			}
		}
		size := len(host) + len(strings.Join(spared, " !")) + len(" !")
		if room -= size; room < 0 {
			each := name
			if len(all) > 0 {
				each = fmt.Sprintf("%s_%d.pem", strings.TrimSuffix(name, ".pem"), len(all)+1)
			}
			all = append(all, &haproxy.Cert{Name: each})
			room = maxNames - size
		}
		c := all[len(all)-1]
		c.Hosts, c.Except = append(c.Hosts, host), append(c.Except, spared...)
	}
	return all
}

// watchClock narrows the time for which this routing holds to the moments a
// certificate's validity begins and ends.
func (k *clerk) watchClock(at time.Time, p *pair) {
	if at.IsZero() {
		return
	}
	// doubts finds it invalid from the first instant after NotAfter.
	for _, edge := range []time.Time{p.leaf.NotBefore, p.leaf.NotAfter.Add(1)} {
		if edge.After(at) {
			if k.until.IsZero() || edge.Before(k.until) {
				k.until = edge
			}
		} else if edge.After(k.since) {
			k.since = edge
		}
	}
}

func (r *routing) refer(p *petition) ObjectRef {
	if p.on != nil {
		return *p.on
	}
	return ObjectRef{
		Cluster: r.of[p.world].cluster, Kind: "Ingress",
		Namespace: p.object.Namespace, Name: p.object.Name, UID: string(p.object.UID),
	}
}

// spell names an Ingress to the author of another.
func (k *clerk) spell(p *petition) string {
	name := "Ingress " + keyOf(p.object).String()
	if len(k.worlds) > 1 {
		name += " of cluster " + k.worlds[p.world].cluster
	}
	return name
}

func (k *clerk) complain(p *petition, reason, format string, args ...any) {
	k.problems = append(k.problems, Problem{ObjectRef: k.refer(p), Reason: reason, Why: fmt.Sprintf(format, args...)})
}
