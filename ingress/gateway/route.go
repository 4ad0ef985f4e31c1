package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Route is a route of any kind that names a Gateway of ours. A GRPCRoute has the matches and
// filters of the HTTPRoute for the same requests.
type Route struct {
	Kind      string // HTTPRoute, GRPCRoute, TLSRoute or TCPRoute
	Object    metav1.Object
	Hostnames []string // empty stands for all
	Rules     []*Rule

	parents    []*parent
	at         map[*Listener]*Attached
	said       *Status  // nil until Statuses is called
	unresolved *Refusal // some of its references cannot be used
	refused    *Refusal // nothing of it can be served
	asked      int      // paths that it has asked for at listeners, also at those that it does not have now
	beyond     bool     // refused, since its namespace asks for more than World.Paths
	odd        []string // the parts of it that are not served as they ask, in sentences
}

// Key returns the namespace and name of the route.
func (r *Route) Key() types.NamespacedName { return keyOf(r.Object) }

// Created returns when the route was created.
func (r *Route) Created() time.Time { return r.Object.GetCreationTimestamp().Time }

// String returns the kind and name of the route.
func (r *Route) String() string { return r.Kind + " " + r.Key().String() }

// Refuse says that nothing of the route is served.
func (r *Route) Refuse(reason, why string) { r.refused = cmp.Or(r.refused, &Refusal{reason, why}) }

// Note says that a part of the route is not served as it asks.
func (r *Route) Note(what string) {
	if !slices.Contains(r.odd, what) {
		r.odd = append(r.odd, what)
	}
}

// A Rule is a rule of a route.
type Rule struct {
	Route    *Route
	Index    int // from 1
	Matches  []Match
	Filters  []gatewayv1.HTTPRouteFilter
	Refs     []Ref
	Mirrors  []Mirror
	Timeouts *gatewayv1.HTTPRouteTimeouts
	Retry    *gatewayv1.HTTPRouteRetry
	Session  *gatewayv1.SessionPersistence

	invalid bool // its requests are answered with an error
}

// Invalid reports whether requests that match the rule are answered with an error.
func (r *Rule) Invalid() bool { return r.invalid }

// Refuse says that requests that match the rule are answered with an error. It never drops the rule:
// a wider rule would then serve these requests, and would leave out the filters of the rule.
func (r *Rule) Refuse(why string) {
	if !r.invalid {
		r.invalid = true
		r.Route.odd = append(r.Route.odd, fmt.Sprintf("rule %d: %s; its requests are answered with status 500",
			r.Index, why))
	}
}

// A Ref is where a part of the requests for a rule goes.
type Ref struct {
	Service types.NamespacedName
	Port    int32
	Weight  int32
	Filters []gatewayv1.HTTPRouteFilter
	Mirrors []Mirror
	Refused *Refusal // its part of the requests is answered with an error
}

// A Mirror is where copies of a part of the requests go. If its Ref is refused, there are none.
type Mirror struct {
	Ref
	Part, Of int // how many of Of requests are copied
}

// All returns the Refs of a rule, and those of its Mirrors.
func (r *Rule) All() []Ref {
	all := slices.Clone(r.Refs)
	add := func(mirrors []Mirror) {
		for _, m := range mirrors {
			all = append(all, m.Ref)
		}
	}
	add(r.Mirrors)
	for _, ref := range r.Refs {
		add(ref.Mirrors)
	}
	return all
}

// Bytes returns the length of the filters, timeouts and retries of a rule. Each backend of the rule has
// them.
func (r *Rule) Bytes() int {
	n := bytesOf(r.Filters)
	if r.Timeouts != nil || r.Retry != nil {
		n += bytesOf([]any{r.Timeouts, r.Retry})
	}
	return n
}

// Bytes returns the length of the filters of a reference.
func (r *Ref) Bytes() int { return bytesOf(r.Filters) }

// bytesOf returns the length of values as JSON. The length of no values is 0.
func bytesOf[T any](values []T) int {
	if len(values) == 0 {
		return 0
	}
	text, _ := json.Marshal(values) // they came as JSON
	return len(text)
}

// Size returns the number of Refs that All returns.
func (r *Rule) Size() int {
	n := len(r.Refs) + len(r.Mirrors)
	for i := range r.Refs {
		n += len(r.Refs[i].Mirrors)
	}
	return n
}

// Listeners returns the listeners that the route is attached to, each once.
func (r *Route) Listeners() (all []*Listener) {
	if len(r.parents) == 1 { // as nearly always
		return slices.Clip(r.parents[0].on)
	}
	has := make(map[*Listener]bool)
	for _, p := range r.parents {
		for _, l := range p.on {
			if !has[l] {
				has[l], all = true, append(all, l)
			}
		}
	}
	return all
}

// HostsAt returns the hostnames that the route has at a listener.
func (r *Route) HostsAt(l *Listener) []string {
	if at := r.at[l]; at != nil {
		return at.At
	}
	return nil
}

// Drop says that nothing of a route is served, and removes it from its listeners.
func (a *Attachment) Drop(r *Route, why Refusal) {
	for _, l := range r.Listeners() {
		a.leave(r, l)
	}
	r.refused, r.at = &why, nil
}

// leave removes a route from the routes of a listener.
func (a *Attachment) leave(r *Route, l *Listener) {
	list := a.attached[l]
	i, _ := slices.BinarySearchFunc(list, r, func(at *Attached, r *Route) int { return olderRoute(at.Route, r) })
	for ; i < len(list) && olderRoute(list[i].Route, r) == 0; i++ {
		if list[i].Route == r {
			a.attached[l] = slices.Delete(list, i, i+1)
			return
		}
	}
}

// Drop says that a match of the rule is left out.
func (r *Rule) Drop(why string) { r.Note(why + "; it is left out") }

// Note says that a part of the rule is not served as it asks.
func (r *Rule) Note(what string) { r.Route.Note(fmt.Sprintf("rule %d: %s", r.Index, what)) }

// A parent is an entry of spec.parentRefs that names a Gateway or ListenerSet of ours.
type parent struct {
	ref     gatewayv1.ParentReference
	gateway *Gateway
	refused *Refusal
	on      []*Listener // where the route is attached by it
}

// An Attached is a route at a listener.
type Attached struct {
	*Route
	At []string // the hostnames of the listener and the route together
}

// At returns the routes that are attached to a listener, the older first.
func (a *Attachment) At(l *Listener) []*Attached { return a.attached[l] }

// attachRoutes reads the routes, and attaches each to listeners.
func (a *Attachment) attachRoutes() {
	for _, r := range a.world.HTTPRoutes {
		a.attach(&Route{Kind: "HTTPRoute", Object: r}, r.Spec.ParentRefs, r.Spec.Hostnames, func(to *Route) {
			for i := range r.Spec.Rules {
				a.httpRule(to, &r.Spec.Rules[i])
			}
		})
	}
	for _, r := range a.world.GRPCRoutes {
		a.attach(&Route{Kind: "GRPCRoute", Object: r}, r.Spec.ParentRefs, r.Spec.Hostnames, func(to *Route) {
			for i := range r.Spec.Rules {
				a.grpcRule(to, &r.Spec.Rules[i])
			}
		})
	}
	for _, r := range a.world.TLSRoutes {
		a.attach(&Route{Kind: "TLSRoute", Object: r}, r.Spec.ParentRefs, r.Spec.Hostnames, func(to *Route) {
			for _, rule := range r.Spec.Rules {
				a.plainRule(to, rule.BackendRefs)
			}
		})
	}
	for _, r := range a.world.TCPRoutes {
		a.attach(&Route{Kind: "TCPRoute", Object: r}, r.Spec.ParentRefs, nil, func(to *Route) {
			for _, rule := range r.Spec.Rules {
				a.plainRule(to, rule.BackendRefs)
			}
		})
	}
	slices.SortStableFunc(a.Routes, olderRoute)
	for _, r := range a.Routes {
		a.join(r)
	}
}

// olderRoute returns a negative number if x counts as older than y.
func olderRoute(x, y *Route) int {
	return cmp.Or(olderObject(x.Object, y.Object), cmp.Compare(x.Kind, y.Kind))
}

// attach reads a route that names a Gateway of ours.
func (a *Attachment) attach(
	r *Route, refs []gatewayv1.ParentReference, hostnames []gatewayv1.Hostname, rules func(*Route),
) {
	if !a.world.Admits(r.Object.GetNamespace()) {
		return
	}
	for _, ref := range refs {
		if g := a.parentOf(r, ref); g != nil {
			r.parents = append(r.parents, &parent{ref: ref, gateway: g})
		}
	}
	if len(r.parents) == 0 {
		return
	}
	for _, h := range hostnames {
		host, clean := cleanHostname(string(h))
		if !clean || host == "" {
			r.odd = append(r.odd, fmt.Sprintf(`hostname %s is not a DNS name, with or without "*." in front; it is left out`,
				quote(string(h))))
			continue
		}
		if refused := a.world.Host(r.Object.GetNamespace(), host); refused != nil {
			r.odd = append(r.odd, fmt.Sprintf("hostname %s: %s", host, refused.Why))
			if len(r.Hostnames) == 0 {
				r.refused = refused
			}
			continue
		}
		r.Hostnames, r.refused = append(r.Hostnames, host), nil
	}
	if len(hostnames) > 0 && len(r.Hostnames) == 0 {
		r.Refuse(string(gatewayv1.RouteReasonUnsupportedValue), "none of its hostnames can be served")
	}
	rules(r)
	a.Routes = append(a.Routes, r)
}

// parentOf returns the Gateway that a parentRef names, itself or by a ListenerSet. It returns nil if
// that is not ours.
func (a *Attachment) parentOf(r *Route, ref gatewayv1.ParentReference) *Gateway {
	key := types.NamespacedName{
		Namespace: namespaceOf(ref.Namespace, r.Object.GetNamespace()), Name: string(ref.Name),
	}
	switch {
	case isGateway(ref.Group, ref.Kind):
		return a.gateways[key]
	case isListenerSet(ref):
		if set := a.sets[key]; set != nil {
			return set.gateway
		}
	}
	return nil
}

func isListenerSet(ref gatewayv1.ParentReference) bool {
	return value(ref.Group, gatewayv1.GroupName) == gatewayv1.GroupName && value(ref.Kind, "Gateway") == "ListenerSet"
}

// join attaches a route to the listeners that its parentRefs name. If the route and the older ones of its
// namespace ask for too many paths, it is refused: see Beyond.
func (a *Attachment) join(r *Route) {
	r.at = make(map[*Listener]*Attached)
	for _, p := range r.parents {
		if a.joinBy(r, p); r.beyond {
			namespace := r.Object.GetNamespace()
			a.Drop(r, Refusal{"LimitReached", fmt.Sprintf("the routes of namespace %s ask for more than %d paths, one "+
				"for each match at each hostname of a listener (clusters[].ingress.limits.paths); older routes are "+
				"counted first", namespace, a.world.Paths)})
			return
		}
	}
}

// full counts the paths of a route at some hostnames, and reports whether the routes of its namespace now
// ask for more than they may have.
func (a *Attachment) full(r *Route, hosts int) bool {
	namespace, paths := r.Object.GetNamespace(), hosts*max(r.matches(), 1)
	r.asked, a.paths[namespace] = r.asked+paths, a.paths[namespace]+paths
	return a.world.Paths > 0 && a.paths[namespace] > a.world.Paths
}

// Asked returns how many paths a route has asked for at listeners. A route that was withdrawn from them has
// asked for them, too: each counts for the limit of its namespace (World.Paths).
func (r *Route) Asked() int { return r.asked }

// matches returns the number of matches of a route.
func (r *Route) matches() (n int) {
	for _, rule := range r.Rules {
		n += len(rule.Matches)
	}
	return n
}

// Beyond returns a sentence if the older routes of the namespace leave no room for a route. Nothing of such
// a route is served. For other routes the text is empty.
func (r *Route) Beyond() string {
	if !r.beyond {
		return ""
	}
	return r.refused.Why
}

// joinBy attaches a route by one of its parentRefs. It stops where the route is beyond its limit.
func (a *Attachment) joinBy(r *Route, p *parent) {
	namespace := r.Object.GetNamespace()
	of := p.gateway.Listeners[:len(p.gateway.Object.Spec.Listeners)] // its own
	if isListenerSet(p.ref) {
		set := types.NamespacedName{Namespace: namespaceOf(p.ref.Namespace, namespace), Name: string(p.ref.Name)}
		of = a.sets[set].listeners
	}
	var named, allowed []*Listener
	for _, l := range of {
		if p.ref.SectionName != nil && string(*p.ref.SectionName) != l.Name ||
			p.ref.Port != nil && *p.ref.Port != int32(l.Port) {
			continue
		}
		named = append(named, l)
		if slices.Contains(l.kinds, r.Kind) && a.allows(l, namespace) {
			allowed = append(allowed, l)
		}
	}
	switch {
	case len(named) == 0:
		p.refuse(string(gatewayv1.RouteReasonNoMatchingParent), "there is no listener with this sectionName and port")
		return
	case len(allowed) == 0:
		p.refuse(string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf(
			"allowedRoutes of the listener takes no %s of namespace %s", r.Kind, namespace))
		return
	}
	if why := r.unshared(); why != "" && p.gateway.Shared {
		p.refuse(string(gatewayv1.RouteReasonUnsupportedValue), why)
		return
	}
	valid, owned := false, (*Refusal)(nil)
	for _, l := range allowed {
		hosts, why := a.hostsAt(r, l)
		owned = cmp.Or(owned, why)
		if len(hosts) == 0 {
			continue
		}
		valid = true
		if l.refused != nil || l.conflict != nil || r.refused != nil {
			continue
		}
		if r.at[l] == nil && a.full(r, len(hosts)) {
			r.beyond = true
			return
		}
		if p.gateway.Shared {
			r.noteWildcards(hosts)
		}
		p.on = append(p.on, l)
		if r.at[l] == nil {
			r.at[l] = &Attached{Route: r, At: hosts}
			a.attached[l] = append(a.attached[l], r.at[l])
		}
	}
	switch {
	case !valid && owned != nil:
		p.refused = owned
	case !valid:
		p.refuse(string(gatewayv1.RouteReasonNoMatchingListenerHostname), fmt.Sprintf(
			"no hostname of the route is one of the listener: %s", strings.Join(r.Hostnames, ", ")))
	case len(p.on) == 0 && r.refused == nil:
		p.refuse(string(gatewayv1.RouteReasonNoMatchingParent), "the listener is not accepted")
	}
}

func (p *parent) refuse(reason, why string) { p.refused = &Refusal{reason, why} }

// hostsAt returns the hostnames that a route and a listener have in common. owned says why the route
// may not have one of them.
func (a *Attachment) hostsAt(r *Route, l *Listener) (all []string, owned *Refusal) {
	names := r.Hostnames
	if len(names) == 0 {
		names = []string{l.Hostname}
	}
	for _, h := range names {
		both, meet := intersect(l.Hostname, h)
		if !meet || slices.Contains(all, both) {
			continue
		}
		if why := a.world.Host(r.Object.GetNamespace(), both); why != nil {
			owned = why
			continue
		}
		all = append(all, both)
	}
	return all, owned
}

// httpRule reads a rule of an HTTPRoute.
func (a *Attachment) httpRule(r *Route, spec *gatewayv1.HTTPRouteRule) {
	rule := r.rule()
	rule.Filters, rule.Mirrors = a.mirrors(rule, spec.Filters)
	rule.Timeouts = spec.Timeouts
	rule.Retry, rule.Session = spec.Retry, spec.SessionPersistence
	for _, m := range spec.Matches {
		rule.match(readMatch(m))
	}
	if len(spec.Matches) == 0 {
		rule.Matches = []Match{{Path: "/", Type: Prefix}}
	}
	for _, ref := range spec.BackendRefs {
		filters, mirrors := a.mirrors(rule, ref.Filters)
		a.refer(rule, ref.BackendRef, filters)
		rule.Refs[len(rule.Refs)-1].Mirrors = mirrors
	}
}

// mirrors returns the filters without those that copy requests, and where the copies go.
func (a *Attachment) mirrors(
	rule *Rule, filters []gatewayv1.HTTPRouteFilter,
) (rest []gatewayv1.HTTPRouteFilter, mirrors []Mirror) {
	for _, f := range filters {
		m := f.RequestMirror
		if f.Type != gatewayv1.HTTPRouteFilterRequestMirror || m == nil {
			rest = append(rest, f)
			continue
		}
		out := Mirror{Part: 1, Of: 1}
		switch {
		case m.Percent != nil:
			out.Part, out.Of = int(*m.Percent), 100
		case m.Fraction != nil:
			out.Part, out.Of = int(m.Fraction.Numerator), int(value(m.Fraction.Denominator, 100))
		}
		out.Ref, out.Refused = a.resolve(rule.Route, m.BackendRef)
		if out.Of < 1 || out.Part < 0 || out.Part > out.Of {
			rule.Note(fmt.Sprintf("a mirror has %d of %d requests; it is left out", out.Part, out.Of))
			continue
		}
		mirrors = append(mirrors, out)
	}
	return rest, mirrors
}

// grpcRule reads a rule of a GRPCRoute.
func (a *Attachment) grpcRule(r *Route, spec *gatewayv1.GRPCRouteRule) {
	rule := r.rule()
	rule.Filters, rule.Session = httpFilters(spec.Filters), spec.SessionPersistence
	for _, m := range spec.Matches {
		rule.match(readGRPCMatch(m))
	}
	if len(spec.Matches) == 0 {
		rule.Matches = []Match{{Path: "/", Type: Prefix}}
	}
	for _, ref := range spec.BackendRefs {
		a.refer(rule, ref.BackendRef, httpFilters(ref.Filters))
	}
}

// httpFilters returns the filters of an HTTPRoute that do the same as those of a GRPCRoute.
func httpFilters(filters []gatewayv1.GRPCRouteFilter) (all []gatewayv1.HTTPRouteFilter) {
	for _, f := range filters {
		all = append(all, gatewayv1.HTTPRouteFilter{
			Type:                   gatewayv1.HTTPRouteFilterType(f.Type), // the names are the same
			RequestHeaderModifier:  f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier,
			RequestMirror:          f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return all
}

// plainRule reads a rule of a TLSRoute or TCPRoute.
func (a *Attachment) plainRule(r *Route, refs []gatewayv1.BackendRef) {
	rule := r.rule()
	for _, ref := range refs {
		a.refer(rule, ref, nil)
	}
}

// rule adds a rule to a route.
func (r *Route) rule() *Rule {
	rule := &Rule{Route: r, Index: len(r.Rules) + 1}
	r.Rules = append(r.Rules, rule)
	return rule
}

// match adds a match to a rule, or reports why HAProxy could not look at it.
func (r *Rule) match(m Match, why string) {
	if why != "" {
		r.Route.odd = append(r.Route.odd, fmt.Sprintf("rule %d: a match %s; it is left out", r.Index, why))
		return
	}
	r.Matches = append(r.Matches, m)
}

// refer adds a backendRef to a rule.
func (a *Attachment) refer(rule *Rule, ref gatewayv1.BackendRef, filters []gatewayv1.HTTPRouteFilter) {
	out, refused := a.resolve(rule.Route, ref.BackendObjectReference)
	out.Weight, out.Filters, out.Refused = value(ref.Weight, 1), filters, refused
	rule.Refs = append(rule.Refs, out)
}

// Resolve returns the Service that a reference of a route leads to, and why the route may not lead
// there. The status of the route says so.
func (a *Attachment) Resolve(r *Route, ref gatewayv1.BackendObjectReference) (Ref, *Refusal) {
	return a.resolve(r, ref)
}

func (a *Attachment) resolve(r *Route, ref gatewayv1.BackendObjectReference) (out Ref, why *Refusal) {
	namespace := r.Object.GetNamespace()
	out.Service = types.NamespacedName{Namespace: namespaceOf(ref.Namespace, namespace), Name: string(ref.Name)}
	out.Port = value(ref.Port, 0)
	group, kind := value(ref.Group, ""), value(ref.Kind, "Service")
	imported := group == SetGroup && kind == serviceImport
	switch {
	case !imported && (group != "" || kind != "Service"):
		why = &Refusal{string(gatewayv1.RouteReasonInvalidKind), fmt.Sprintf(
			"backendRefs has a %s of group %s; allowed are Services, and ServiceImports of group %s",
			quote(string(kind)), quote(string(group)), SetGroup)}
	case !a.grants.allow(r.Kind, namespace, string(kind), out.Service):
		why = &Refusal{string(gatewayv1.RouteReasonRefNotPermitted), fmt.Sprintf(
			"%s %s is in another namespace, and no ReferenceGrant there lets %ss of namespace %s name it",
			kind, out.Service, r.Kind, namespace)}
	case out.Port < 1 || out.Port > 65535:
		why = &Refusal{string(gatewayv1.RouteReasonBackendNotFound), fmt.Sprintf(
			"the backendRef to Service %s has port %d; allowed are 1 to 65535", out.Service, out.Port)}
	default:
		why = a.world.Service(out.Service, out.Port, r.Kind)
		if why == nil && imported {
			why = a.world.Exported(out.Service)
		}
	}
	r.unresolved = cmp.Or(r.unresolved, why)
	return out, why
}
