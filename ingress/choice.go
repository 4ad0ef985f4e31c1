package ingress

import (
	"cmp"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// A conditional is a path whose Service takes only requests that meet a condition.
type conditional struct {
	by      *claim
	when    annotations.Condition
	backend string
}

// choose grants a path whose Service has a condition (route-acl). It returns false
// for a Service without one.
func (b *builder) choose(c *claim, path pathClaim, key routeKey) bool {
	w := b.worlds[c.world]
	service, ok := find(w.Services, path.to.service)
	if !ok {
		return false
	}
	when, said, problems := annotations.RouteACL(b.env(w, c.ref.Namespace, nil), b.layer(service))
	if !said {
		return false
	}
	b.reportKeys(c, service, problems)
	b.asked = append(b.asked, when.Asked...)
	switch first := b.claimed[key]; {
	case key.match == haproxy.Regexp:
		b.report(c, "RouteACLConflict", "%s is not served: Service %s has a route-acl, which does not go with a regular expression", path, keyOf(service))
	case first != nil && !together(first, c):
		b.report(c, "PathConflict", "%s is not served: %s is older and has it already", path, b.spell(first))
	case b.owner[key] != nil && !together(b.owner[key], c):
		b.report(c, "PathConflict", "%s is not served: %s is older and has it already", path, b.spell(b.owner[key]))
	default:
		b.claimed[key] = cmp.Or(first, c)
		b.chosen[key] = append(b.chosen[key], conditional{c, when, b.need(c, path.to, path)})
		c.effective = c.effective || when.Usable
	}
	return true
}

// together reports whether two claims may share a path: those of one namespace may.
func together(a, b *claim) bool {
	return a.world == b.world && a.ref.Namespace == b.ref.Namespace
}

// chain makes the choices of the routes with conditions. A request that meets no
// condition goes to the route that would match without the path. That route is the
// same for every such request: of all keys that a key begins with, the next shorter
// one.
func (b *builder) chain() {
	keys := make([]routeKey, 0, len(b.chosen))
	for key := range b.chosen {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b routeKey) int {
		return cmp.Or(cmp.Compare(len(a.reach()), len(b.reach())), cmp.Compare(a.reach(), b.reach()), cmp.Compare(a.host, b.host), cmp.Compare(a.match, b.match))
	})
	cases := make(map[string][]haproxy.Case) // by the name of their choice
	for _, key := range keys {
		var own []haproxy.Case
		var tls *claim
		for _, c := range b.chosen[key] {
			if c.when.Usable {
				own = append(own, haproxy.Case{If: c.when.Text, Backend: c.backend})
				if tls == nil && c.by.tlsOnly(key) {
					tls = c.by
				}
			}
		}
		if len(own) == 0 {
			continue
		}
		route, has := b.routed[key]
		if !has {
			route = b.below(key)
			own = append(own, cases[route.Choice]...)
		}
		if tls != nil && !route.TLSOnly {
			route.TLSOnly, route.TLSCode, route.TLSPort = true, tls.redirect.Code, tls.redirect.Port
		}
		choice := haproxy.NewChoice(own)
		if cases[choice.Name] == nil {
			cases[choice.Name] = own
			b.choices = append(b.choices, choice)
		}
		route.Host, route.Path, route.Match, route.Choice = key.host, key.path, key.match, choice.Name
		b.routed[key] = route
	}
	slices.SortFunc(b.choices, func(a, b *haproxy.Choice) int { return cmp.Compare(a.Name, b.Name) })
}

// below returns the route that would match requests for a key without that key.
func (b *builder) below(key routeKey) haproxy.Route {
	best, found := haproxy.Route{Backend: b.defaultFor(key.host)}, -1
	for other, route := range b.routed {
		if reach := other.reach(); other.host == key.host && other.match != haproxy.Regexp && other.match != haproxy.Passthrough && len(reach) > found && len(reach) < len(key.reach()) && strings.HasPrefix(key.reach(), reach) {
			best, found = route, len(reach)
		}
	}
	return best
}

// reach returns the beginning that a request's path, with "/" appended, has to
// have. The byte 1 at the end of an exact path stands for the end of the request's.
func (r routeKey) reach() string {
	switch r.match {
	case haproxy.Exact:
		return r.path + "/\x01"
	case haproxy.Begin:
		return r.path
	}
	return strings.TrimRight(r.path, "/") + "/"
}
