package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
)

// A conditional is a path with a Service that takes only requests that meet a condition.
type conditional struct {
	by      *claim
	when    annotations.Condition
	backend string
}

// choose grants a path if its Service has a condition (route-acl). It returns false if the Service
// has no condition.
func (b *builder) choose(c *claim, path pathClaim, key routeKey) bool {
	w := b.worlds[c.world]
	service, ok := input.Find(w.Services, path.to.service)
	if !ok {
		return false
	}
	layer := b.layer(service)
	if !annotations.Conditional(layer) {
		return false
	}
	when, problems := annotations.RouteACL(b.env(w, c.ref.Namespace, new(settings)), layer)
	b.reportKeys(c.petitioner, service, problems)
	b.asked = append(b.asked, when.Asked...)
	switch first := cmp.Or(b.claimed[key], b.owner[key]); {
	case key.match == haproxy.Regexp:
		b.report(c, "RouteACLConflict", "%s is not served: Service %s has a route-acl, which does not go with "+
			"a regular expression", path, input.KeyOf(service))
	case first != nil && !together(first, c):
		b.conflict(c, path, first)
	default:
		b.claimed[key] = cmp.Or(b.claimed[key], c)
		b.chosen[key] = append(b.chosen[key], conditional{c, when, b.need(c.petitioner, path.to, path)})
		c.effective = c.effective || when.Usable
	}
	return true
}

// conflict reports that an older claim has a path.
func (b *builder) conflict(c *claim, path pathClaim, older *claim) {
	why := fmt.Sprintf("%s is not served: %s is older and has it already", path, b.spell(older))
	b.report(c, "PathConflict", "%s", why)
	if c.route != nil {
		c.route.Note(why)
	}
}

// together reports whether two claims may share a path: claims of one namespace may.
func together(a, b *claim) bool {
	return a.world == b.world && a.ref.Namespace == b.ref.Namespace
}

// chain makes the choice of each key with conditions. If none of them holds, a request
// takes the route that it would take without this key: the route of the longest other
// key that this key begins with. That route is the same for all requests that match
// this key.
func (b *builder) chain() {
	hosts := make(map[string]bool) // those with conditions
	keys := make([]routeKey, 0, len(b.chosen))
	for key := range b.chosen {
		hosts[key.host] = true
		if _, has := b.routed[key]; !has {
			keys = append(keys, key)
		}
	}
	for key := range b.routed {
		if hosts[key.host] {
			keys = append(keys, key)
		}
	}
	// Each key comes after its prefixes. If two keys match the same requests, the key that takes
	// effect comes last (see keys).
	slices.SortFunc(keys, func(a, b routeKey) int {
		return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(a.reach(), b.reach()),
			cmp.Compare(b.path, a.path), cmp.Compare(b.match, a.match))
	})
	cases := make(map[string][]haproxy.Case) // by the name of the choice
	var below []routeKey                     // keys with routes that the present key begins with, the longest last
	for _, key := range keys {
		for len(below) > 0 && !below[len(below)-1].covers(key) {
			below = below[:len(below)-1]
		}
		without := haproxy.Route{Backend: b.defaultFor(key.host)}
		if len(below) > 0 {
			without = b.routed[below[len(below)-1]]
		}
		b.chooseFrom(key, without, cases)
		if _, has := b.routed[key]; has && key.match != haproxy.Regexp && key.match != haproxy.Passthrough {
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
	for _, c := range b.chosen[key] {
		if c.when.Usable {
			own = append(own, haproxy.Case{If: c.when.Text, Backend: c.backend})
			if tls == nil && c.by.tlsOnly(key) {
				tls = c.by
			}
		}
	}
	if len(own) == 0 {
		return
	}
	route, has := b.routed[key]
	if !has {
		route = without
		own = append(own, cases[route.Choice]...)
	}
	if tls != nil && !route.TLSOnly {
		route.TLSOnly, route.TLSCode, route.TLSPort = true, tls.redirect.Code, tls.redirect.Port
	}
	choice := haproxy.NewChoice(own)
	if cases[choice.Name] == nil {
		cases[choice.Name] = own
		b.Config.Choices = append(b.Config.Choices, choice)
	}
	route.Host, route.Path, route.Match, route.Choice = key.host, key.path, key.match, choice.Name
	b.routed[key] = route
}

// covers reports whether another key of the same host begins with this one, and is
// longer.
func (r routeKey) covers(o routeKey) bool {
	reach, other := r.reach(), o.reach()
	return r.host == o.host && len(reach) < len(other) && strings.HasPrefix(other, reach)
}

// reach returns the beginning that a request's path, with a "/" after it, has to
// have. The byte 0x01 at its end stands for the end of the path.
func (r routeKey) reach() string {
	switch r.match {
	case haproxy.Exact:
		return r.path + "/\x01"
	case haproxy.Begin:
		return r.path
	}
	return strings.TrimRight(r.path, "/") + "/"
}
