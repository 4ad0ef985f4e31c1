package ingress

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/listen"
)

// An Explanation describes how one Ingress is served, or a Service of type LoadBalancer.
type Explanation struct {
	Ingress  ObjectRef          `json:"ingress"`
	Rules    []ExplainedRule    `json:"rules,omitempty"`    // the granted ones, in the order of hosts and paths
	Backends []ExplainedBackend `json:"backends,omitempty"` // backends of the rules, by name
	Problems []Problem          `json:"problems,omitempty"` // of the Ingress, its Services, and the ConfigMap
	// Attached says in sentences where a route is attached, or why not, and which listeners a
	// Gateway has.
	Attached   []string    `json:"attached,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"` // of an object of Gateway API
}

// An ExplainedRule is a host and path that was granted to an Ingress.
type ExplainedRule struct {
	Host    string            `json:"host,omitempty"` // any host without a rule if empty
	Path    string            `json:"path"`
	Match   haproxy.PathMatch `json:"match"`
	Backend string            `json:"backend"`        // or several, with their shares of the requests
	Rule    int               `json:"rule,omitempty"` // its number in a route of Gateway API, from 1
	// Filters are the filters, timeouts and retries of the rule of a route, a phrase each.
	Filters []string `json:"filters,omitempty"`
	// When is the condition of a route's match, as "method GET, header a = 1".
	When string `json:"when,omitempty"`
	// Choices are backends that requests with a condition go to instead, as
	// "default_svc_new_80 if { 'cookie(beta)' '-m' 'found' }".
	Choices []string `json:"choices,omitempty"`
	// Canary is the backend that some of the requests go to, as "25 % to default_svc_new_80".
	Canary string `json:"canary,omitempty"`
	// HTTPS says how plain HTTP is redirected, as "302" or "301 to port 8443". It is empty if plain
	// HTTP is served.
	HTTPS string `json:"https,omitempty"`
}

// An ExplainedBackend is a backend, and the keys that were set for it.
type ExplainedBackend struct {
	Name   string `json:"name"`
	Origin string `json:"origin"`
	Own    bool   `json:"own,omitempty"` // no other Ingress uses it
	// Keys are those that take effect; keys at their default are left out.
	Keys       []annotations.Effective `json:"keys,omitempty"`
	Directives []string                `json:"directives,omitempty"`
}

// Granted returns the Ingress that each route of the Config was granted to, in the order
// of the routes. The reference is zero for a route that no Ingress has.
func (r Result) Granted() []ObjectRef {
	refs := make([]ObjectRef, len(r.Config.Routes))
	if r.routing == nil {
		return refs
	}
	for i, route := range r.Config.Routes {
		c := r.routing.owner[claims.KeyOf(route)]
		if c != nil && c.Ref.Kind == "Ingress" && route.Scope == "" {
			refs[i] = c.Ref
		}
	}
	return refs
}

// Twins returns the Ingresses that the routes of Ingresses in other clusters of their set serve, by the index of the
// route in the Config.
func (r Result) Twins() map[int][]ObjectRef {
	if r.routing == nil {
		return nil
	}
	by := make(map[routeKey][]ObjectRef)
	for _, c := range r.routing.claims {
		for _, key := range c.Twins {
			if c.Ref.Kind == "Ingress" {
				by[key] = append(by[key], c.Ref)
			}
		}
	}
	if len(by) == 0 {
		return nil
	}
	all := make(map[int][]ObjectRef)
	for i, route := range r.Config.Routes {
		if refs := by[claims.KeyOf(route)]; len(refs) > 0 && route.Scope == "" {
			all[i] = refs
		}
	}
	return all
}

// Explain returns how an Ingress is served. It returns false for an Ingress that is
// not ours or does not exist.
func (r Result) Explain(cluster, namespace, name string) (Explanation, bool) {
	if r.routing == nil {
		return Explanation{}, false
	}
	var p *claim
	for _, x := range r.routing.claims {
		if o := x.Ref; o.Kind == "Ingress" && o.Cluster == cluster && o.Namespace == namespace && o.Name == name {
			p = x
		}
	}
	if p == nil {
		return Explanation{}, false
	}
	mine := func(c conditional) bool { return c.by == p }
	return r.explain(p, p.Ruleless && p.Effective, func(key routeKey) bool {
		return r.routing.owner[key] == p || r.routing.canaries[key] == p || slices.Contains(p.Twins, key) ||
			slices.ContainsFunc(r.routing.chosen[key], mine)
	}), true
}

// ExplainAPI returns how an object of Gateway API is served: a route, or a Gateway. kind is in lower
// case, as "httproute". ExplainAPI returns false for an object that is not ours or does not exist.
func (r Result) ExplainAPI(cluster, kind, namespace, name string) (e Explanation, ok bool) {
	if r.routing == nil {
		return e, false
	}
	world := slices.IndexFunc(r.routing.of, func(w *world) bool { return w.Cluster == cluster })
	if world < 0 || r.routing.attached == nil || r.routing.attached[world] == nil {
		return e, false
	}
	a, key, leads := r.routing.attached[world], serviceKey{Namespace: namespace, Name: name}, map[string]bool{}
	refer := func(kind, uid string) {
		e.Ingress = ObjectRef{Cluster: cluster, Kind: kind, Namespace: namespace, Name: name, UID: uid}
		ok = true
	}
	for _, g := range a.Gateways {
		if kind == "gateway" && g.Key() == key {
			refer("Gateway", string(g.Object.UID))
			e.Attached = a.Explain(g)
		}
	}
	for _, route := range a.Routes {
		if kind != strings.ToLower(route.Kind) || route.Key() != key {
			continue
		}
		refer(route.Kind, string(route.Object.GetUID()))
		e.Attached = route.Explain()
		for _, one := range r.routing.listening.Leads {
			if one.Rule.Route != route {
				continue
			}
			for _, s := range one.To.Shares() {
				leads[s.Backend] = true
			}
		}
		e.Rules = r.rulesOf(route)
		if c := r.claimOf(route); c != nil {
			e.Rules = append(e.Rules, r.sharedRulesOf(c, leads)...)
		}
	}
	if ok {
		e.Conditions = r.conditionsOf(e.Ingress)
		r.describe(&e, leads, []ObjectRef{e.Ingress})
	}
	return e, ok
}

// conditionsOf returns the conditions that the status of an object is to have.
func (r Result) conditionsOf(o ObjectRef) []Condition {
	for _, s := range r.Statuses[o.Cluster] {
		if s.Kind == o.Kind && s.Namespace == o.Namespace && s.Name == o.Name {
			return s.Conditions()
		}
	}
	return nil
}

// ExplainAt returns how a request at a listener of a Gateway is served: the match that takes it, and
// the rule and the route of this match. If no match takes the request, why says how it is answered.
func (r Result) ExplainAt(q haproxy.Request) (e Explanation, why string) {
	if r.routing == nil {
		return e, "nothing is known of the clusters yet"
	}
	if !slices.ContainsFunc(r.Config.Listeners, func(l haproxy.Listener) bool {
		return haproxy.ScopeOf(l.At) == q.Scope && l.Kind.Requests()
	}) {
		return e, "no Gateway has a listener for requests at " + q.Scope +
			": `sallyport status gateways` lists them all"
	}
	found, to, why := r.Config.FindAt(q)
	at := r.Config.CaseOf(&found, q)
	takers := r.routing.listening.EntriesOf(&found)
	switch {
	case found.Path == "":
		return e, why
	case at >= len(takers):
		return e, "no match of a route takes the request, so it is answered with 404"
	}
	taker := takers[at]
	rule := explainMatch(found.Host, taker.Rule, taker.Match)
	rule.Path, rule.Match, rule.Backend = found.Path, found.Match, to.Words()
	e.Rules = []ExplainedRule{rule}
	for i, a := range r.routing.attached {
		if a == nil || !slices.Contains(a.Routes, taker.Route) {
			continue
		}
		e.Ingress = listen.Ref(r.routing.of[i].Cluster, taker.Route.Kind, taker.Route.Key(),
			string(taker.Route.Object.GetUID()))
	}
	e.Attached, e.Conditions = taker.Route.Explain(), r.conditionsOf(e.Ingress)
	leads := make(map[string]bool)
	for _, s := range to.Shares() {
		leads[s.Backend] = true
	}
	r.describe(&e, leads, []ObjectRef{e.Ingress})
	return e, why
}

// rulesOf returns the rules of a route at Gateways with addresses of their own, in the order of its rules. A
// route that is attached nowhere has all its rules.
func (r Result) rulesOf(route *gateway.Route) (all []ExplainedRule) {
	at := route.Listeners()
	if len(at) > 0 && !slices.ContainsFunc(at, func(l *gateway.Listener) bool { return !l.Gateway.Shared }) {
		return nil
	}
	to := make(map[*gateway.Rule]string)
	for _, one := range r.routing.listening.Leads {
		to[one.Rule] = one.To.Words()
	}
	for _, rule := range route.Rules {
		hosts := route.Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, host := range hosts {
			for i := range rule.Matches {
				one := explainMatch(host, rule, &rule.Matches[i])
				one.Backend = to[rule]
				all = append(all, one)
			}
		}
	}
	return all
}

// explainMatch returns a match of a rule without the backends that its requests go to.
func explainMatch(host string, rule *gateway.Rule, m *gateway.Match) ExplainedRule {
	one := ExplainedRule{
		Host: host, Path: m.Path, Match: listen.MatchOf(m.Type), Rule: rule.Index, Filters: rule.Does(),
	}
	if !m.Bare() {
		one.When = m.When()
	}
	return one
}

// claimOf returns the claim of a route at the addresses of Ingresses, or nil.
func (r Result) claimOf(route *gateway.Route) *claim {
	i := slices.IndexFunc(r.routing.claims, func(c *claim) bool { return c.Route == route })
	if i < 0 {
		return nil
	}
	return r.routing.claims[i]
}

// sharedRulesOf returns the paths that the claim of a route has at the addresses of Ingresses, in the order of
// its rules. It adds the backends of these paths to leads.
func (r Result) sharedRulesOf(c *claim, leads map[string]bool) (all []ExplainedRule) {
	routed := make(map[routeKey]*haproxy.Route)
	for _, one := range r.Config.Routes {
		if one.Scope == "" && one.Match != haproxy.Passthrough {
			routed[claims.KeyOf(one)] = one
		}
	}
	seen := make(map[routeKey]bool) // the first rule has the path
	for _, path := range c.Paths {
		key := path.Key()
		row := routed[key]
		one := explainMatch(path.Host, path.Rule.Rule, cmp.Or(path.If, &gateway.Match{}))
		one.Path, one.Match = path.Path, path.Match
		switch {
		case row == nil:
			continue
		case path.If != nil:
			i := slices.IndexFunc(r.routing.chosen[key], func(o conditional) bool {
				return o.by == c && o.path.If == path.If
			})
			if i < 0 {
				continue
			}
			one.Backend = r.routing.chosen[key][i].backend
		case path.Rule.Redirects != nil:
			if !row.TLSOnly || row.TLSCode != path.Rule.Redirects.Code {
				continue // another rule decides
			}
		case seen[key] || r.routing.owner[key] != c:
			continue
		default:
			seen[key] = true
			one.Backend, one.Canary = row.Backend, canaryOf(row)
			leads[row.Canary] = true
		}
		leads[one.Backend] = true
		if row.TLSOnly {
			one.HTTPS = redirectOf(row)
		}
		all = append(all, one)
	}
	return all
}

// ExplainBalancer returns how a Service of type LoadBalancer is served: the backends that its
// ports lead to, and its problems. It returns false for a Service that is not ours or does not
// exist.
func (r Result) ExplainBalancer(cluster, namespace, name string) (b Balancer, e Explanation, ok bool) {
	i := slices.IndexFunc(r.Balancers,
		func(b Balancer) bool {
			return b.Kind == "Service" && b.Cluster == cluster && b.Namespace == namespace && b.Name == name
		})
	if i < 0 || r.routing == nil {
		return b, e, false
	}
	b, e.Ingress = r.Balancers[i], r.Balancers[i].ObjectRef
	leads := map[string]bool{}
	for _, s := range b.Streams(&r.Config) {
		leads[s.Backend] = true
	}
	r.describe(&e, leads, []ObjectRef{b.ObjectRef})
	return b, e, true
}

// ExplainRequest returns how a request is served: the rule that takes it, and the Ingress that has
// the rule, or the default backend. If no rule takes the request, why says how it is answered.
func (r Result) ExplainRequest(host, path string) (e Explanation, why string) {
	if r.routing == nil {
		return e, "nothing is known of the clusters yet"
	}
	route, why := r.Config.Find(host, path)
	if why != "" {
		name := strings.ToLower(host)
		if only, _, err := net.SplitHostPort(name); err == nil {
			name = only
		}
		for _, k := range r.Kept() {
			if k.Host == name {
				why += fmt.Sprintf("; the host is kept for namespace %s of cluster %s, which had it last, until %s "+
					"(clusters[].ingress.releaseAfter)", k.Namespace, k.Cluster, k.Until.Format(time.RFC3339))
			}
		}
	}
	taken := claims.KeyOf(&route)
	if why != "" && route.Path == "" {
		var of *claim
		if i := slices.IndexFunc(r.routing.claims, func(c *claim) bool { return c.Ruleless && c.Effective }); i >= 0 {
			of = r.routing.claims[i]
		}
		return r.explain(of, true, func(routeKey) bool { return false }), why
	}
	return r.explain(r.routing.owner[taken], false, func(key routeKey) bool { return key == taken }), why
}

// explain returns how the rules that were asked for are served, and the default backend if fallback
// is true. p is the owner of the rules, or nil if their owner is not known.
func (r Result) explain(p *claim, fallback bool, asked func(routeKey) bool) (e Explanation) {
	var objects []ObjectRef
	if p != nil {
		e.Ingress = p.Ref
		objects = []ObjectRef{e.Ingress, r.routing.of[p.World].refer(r.routing.of[p.World].Options.ConfigMap)}
	}
	leads := map[string]bool{}
	for _, route := range r.Config.Routes {
		if !asked(claims.KeyOf(route)) {
			continue
		}
		rule := ExplainedRule{Host: route.Host, Path: route.Path, Match: route.Match, Backend: route.Backend}
		for _, c := range r.Config.Choices {
			if c.Name == route.Choice {
				for _, one := range c.Cases {
					rule.Choices = append(rule.Choices, one.Backend+" if "+one.If.String())
					leads[one.Backend] = true
				}
			}
		}
		if route.Canary != "" {
			rule.Canary = canaryOf(route)
			leads[route.Canary] = true
		}
		if route.TLSOnly {
			rule.HTTPS = redirectOf(route)
		}
		if route.Backend == haproxy.WWW {
			rule.Backend = "redirect to " + haproxy.OtherName(route.Host)
		}
		e.Rules = append(e.Rules, rule)
		leads[route.Backend] = true
	}
	if fallback {
		leads[r.Config.DefaultBackend] = true
	}
	r.describe(&e, leads, objects)
	return e
}

// canaryOf returns which part of the requests for a route its canary gets, or "".
func canaryOf(r *haproxy.Route) string {
	if r.Canary == "" {
		return ""
	}
	return strconv.Itoa(r.CanaryWeight) + " % to " + r.Canary
}

// redirectOf returns how plain HTTP for a route is redirected.
func redirectOf(r *haproxy.Route) string {
	text := strconv.Itoa(cmp.Or(r.TLSCode, http.StatusFound))
	if r.TLSPort != 0 {
		text += " to port " + strconv.Itoa(int(r.TLSPort))
	}
	return text
}

// describe adds to an Explanation the backends of these names, and the problems of objects and
// backends.
func (r Result) describe(e *Explanation, leads map[string]bool, objects []ObjectRef) {
	for i, n := range r.routing.needs {
		if !leads[n.name] {
			continue
		}
		b := ExplainedBackend{
			Name: n.name, Origin: r.Config.Backends[i].Origin, Own: n.settings.By != nil, Keys: n.settings.Used,
		}
		for _, d := range n.settings.Directives {
			b.Directives = append(b.Directives, d.String())
		}
		e.Backends = append(e.Backends, b)
		for _, world := range sharers(r.routing.of, &n) {
			objects = append(objects, n.ref(r.routing.of[world].Cluster))
		}
	}
	for _, problem := range r.Problems {
		if slices.ContainsFunc(objects, func(o ObjectRef) bool {
			problem := problem.ObjectRef
			problem.UID, o.UID = "", ""
			return problem == o
		}) {
			e.Problems = append(e.Problems, problem)
		}
	}
}
