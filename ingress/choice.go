package ingress

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
	"sallyport/ingress/listen"
)

// A conditional is a path that takes only requests that meet a condition: that of a Service, or that of a
// match of a route.
type conditional struct {
	by      *claim
	when    annotations.Condition
	backend string
	path    pathClaim
}

// narrower compares two conditionals for one path: the one that takes a request comes first. The older one
// takes it, but matches of routes have the order of Gateway API, and come before Services.
func narrower(a, b conditional) int {
	none := new(gateway.Match)
	return gateway.CompareConditions(cmp.Or(a.path.If, none), cmp.Or(b.path.If, none))
}

// choose grants a path if its Service has a condition (route-acl). It returns false if the Service
// has no condition.
func (b *builder) choose(c *claim, path pathClaim, key routeKey) bool {
	w := b.worlds[c.World]
	service, ok := input.Find(w.Services, path.To.Service)
	if !ok {
		return false
	}
	layer := b.memory.Layer(service)
	if !annotations.Conditional(layer) {
		return false
	}
	when, problems := annotations.RouteACL(b.env(w, c.Ref.Namespace, new(keys.Found)), layer)
	b.reportKeys(c.Petitioner, service, problems)
	b.asked = append(b.asked, when.Asked...)
	switch first := cmp.Or(b.claimed[key], b.owner[key]); {
	case key.Match == haproxy.Regexp:
		b.report(c, "RouteACLConflict", "%s is not served: Service %s has a route-acl, which does not go with "+
			"a regular expression", path, input.KeyOf(service))
	case first != nil && !claims.Together(first, c):
		b.conflict(c, path, first)
	default:
		b.claimed[key] = cmp.Or(b.claimed[key], c)
		b.chosen[key] = append(b.chosen[key], conditional{
			by: c, when: when, backend: b.need(c.Petitioner, path.To, path), path: path,
		})
		c.Effective = c.Effective || when.Usable
	}
	return true
}

// conflict reports that an older claim has a path.
func (b *builder) conflict(c *claim, path pathClaim, older *claim) {
	why := fmt.Sprintf("%s is not served: %s is older and has it already", path, b.spell(older))
	b.report(c, "PathConflict", "%s", why)
	if c.Route != nil {
		c.Route.Note(why)
	}
}

// chain makes the choice of each key with conditions. If none of them holds, a request
// takes the route that it would take without this key: the route of the longest other
// key that this key begins with. That route is the same for all requests that match
// this key.
func (b *builder) chain() {
	hosts := make(map[string]bool) // those with conditions
	for key := range b.picked {
		hosts[key.Host] = true
	}
	keys := make([]routeKey, 0, len(b.chosen))
	for key := range b.chosen {
		hosts[key.Host] = true
		if _, has := b.routed[key]; !has {
			keys = append(keys, key)
		}
	}
	for key := range b.routed {
		if hosts[key.Host] {
			keys = append(keys, key)
		}
	}
	// Each key comes after its prefixes. If two keys match the same requests, the key that takes
	// effect comes last (see keys).
	slices.SortFunc(keys, func(a, b routeKey) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Reach(), b.Reach()),
			cmp.Compare(b.Path, a.Path), cmp.Compare(b.Match, a.Match))
	})
	cases := make(map[string][]haproxy.Case) // by the name of the choice
	var below []routeKey                     // keys with routes that the present key begins with, the longest last
	for _, key := range keys {
		for len(below) > 0 && !below[len(below)-1].Covers(key) {
			below = below[:len(below)-1]
		}
		without := haproxy.Route{Backend: b.defaultFor(key.Host)}
		if len(below) > 0 {
			without = b.routed[below[len(below)-1]]
		}
		b.chooseFrom(key, without, cases)
		if _, has := b.routed[key]; has && key.Match != haproxy.Regexp && key.Match != haproxy.Passthrough {
			below = append(below, key)
		}
	}
	slices.SortFunc(b.Config.Choices, func(a, b *haproxy.Choice) int { return cmp.Compare(a.Name, b.Name) })
}

// chooseFrom makes the choice of one key, if it has usable conditions. If no condition holds, a
// request takes the key's own route. without is the route for a key without a route of its own.
func (b *builder) chooseFrom(key routeKey, without haproxy.Route, cases map[string][]haproxy.Case) {
	var own []haproxy.Case
	var tls *claim
	sealed := len(b.chosen[key]) > 0 // no case takes plain HTTP
	for _, c := range slices.SortedStableFunc(slices.Values(b.chosen[key]), narrower) {
		if !c.when.Usable {
			continue
		}
		own = append(own, haproxy.Case{If: c.when.Text, Backend: c.backend})
		sealed = sealed && c.path.Rule != nil && c.path.Rule.TLSOnly
		if tls == nil && c.path.Rule == nil && c.by.TLSOnly(key) {
			tls = c.by
		}
	}
	if own = append(own, b.picked[key]...); len(own) == 0 {
		return
	}
	route, has := b.routed[key]
	if !has {
		route = without
		own = append(own, cases[route.Choice]...)
	}
	if tls != nil && !route.TLSOnly {
		route.TLSOnly, route.TLSCode, route.TLSPort = true, tls.Redirect.Code, tls.Redirect.Port
	}
	if sealed && route.Backend == "" && route.Choice == "" && !route.TLSOnly {
		route.TLSOnly = true // plain HTTP would be answered with 404
	}
	choice := haproxy.NewChoice(own)
	if cases[choice.Name] == nil {
		cases[choice.Name] = own
		b.Config.Choices = append(b.Config.Choices, choice)
		for name, directives := range choice.Stays() {
			n := b.needed[name]
			n.settings = b.memory.Derive(n.settings, listen.Effects{Directives: directives})
			b.needed[name] = n
		}
	}
	route.Host, route.Path, route.Match, route.Choice = key.Host, key.Path, key.Match, choice.Name
	b.routed[key] = route
}
