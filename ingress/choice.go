package ingress

import (
	"cmp"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// A choosing is a claim whose Service takes only some of the requests.
type choosing struct {
	petition *petition
	when     annotations.Condition
	backend  string
}

// choose takes a claim whose Service says which requests it wants. It is false
// for one that wants them all.
func (k *clerk) choose(p *petition, claim claim, key routeKey) bool {
	w := k.worlds[p.world]
	service, ok := find(w.Services, serviceKey{p.object.Namespace, claim.to.service})
	if !ok {
		return false
	}
	when, said, problems := annotations.RouteACL(k.env(w, p.object.Namespace, nil), k.layer(service))
	if !said {
		return false
	}
	k.tell(p, service, problems)
	k.asked = append(k.asked, when.Asked...)
	switch first := k.claimed[key]; {
	case key.match == haproxy.Regexp:
		k.complain(p, "RouteACLConflict", "%s is not served: Service %s has a route-acl, which does not go with a regular expression", claim, keyOf(service))
	case first != nil && !together(first, p):
		k.complain(p, "PathConflict", "%s is not served: %s is older and has it already", claim, k.spell(first))
	case k.owner[key] != nil && !together(k.owner[key], p):
		k.complain(p, "PathConflict", "%s is not served: %s is older and has it already", claim, k.spell(k.owner[key]))
	default:
		k.claimed[key] = cmp.Or(first, p)
		k.chosen[key] = append(k.chosen[key], choosing{p, when, k.need(p, claim.to, claim)})
		p.effective = p.effective || when.Usable
	}
	return true
}

// together says whether two Ingresses may share a path: nobody takes requests
// from another namespace.
func together(a, b *petition) bool {
	return a.world == b.world && a.object.Namespace == b.object.Namespace
}

// chain makes the choices of the routes that have conditions. A request for
// which none holds goes the way it would go without the path: which that is
// does not depend on the request, since of all keys that are the beginning of
// one the next shorter is the same for all that begin with this.
func (k *clerk) chain() {
	keys := make([]routeKey, 0, len(k.chosen))
	for key := range k.chosen {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b routeKey) int {
		return cmp.Or(cmp.Compare(len(a.reach()), len(b.reach())), cmp.Compare(a.reach(), b.reach()), cmp.Compare(a.host, b.host), cmp.Compare(a.match, b.match))
	})
	cases := make(map[string][]haproxy.Case) // by the name of the choice
	for _, key := range keys {
		var own []haproxy.Case
		var tls *petition
		for _, c := range k.chosen[key] {
			if c.when.Usable {
				own = append(own, haproxy.Case{If: c.when.Text, Backend: c.backend})
				if tls == nil && c.petition.tlsOnly(key) {
					tls = c.petition
				}
			}
		}
		if len(own) == 0 {
			continue
		}
		route, has := k.routed[key]
		if !has {
			route = k.below(key)
			own = append(own, cases[route.Choice]...)
		}
		if tls != nil && !route.TLSOnly {
			route.TLSOnly, route.TLSCode, route.TLSPort = true, tls.redirect.Code, tls.redirect.Port
		}
		choice := haproxy.NewChoice(own)
		if cases[choice.Name] == nil {
			cases[choice.Name] = own
			k.choices = append(k.choices, choice)
		}
		route.Host, route.Path, route.Match, route.Choice = key.host, key.path, key.match, choice.Name
		k.routed[key] = route
	}
	slices.SortFunc(k.choices, func(a, b *haproxy.Choice) int { return cmp.Compare(a.Name, b.Name) })
}

// below is the route that requests for a key would take without it.
func (k *clerk) below(key routeKey) haproxy.Route {
	best, found := haproxy.Route{Backend: k.defaultFor(key.host)}, -1
	for other, route := range k.routed {
		if reach := other.reach(); other.host == key.host && other.match != haproxy.Regexp && other.match != haproxy.Passthrough && len(reach) > found && len(reach) < len(key.reach()) && strings.HasPrefix(key.reach(), reach) {
			best, found = route, len(reach)
		}
	}
	return best
}

// reach is what a request's path, with a "/" behind it, has to begin with. The
// byte at its end is where a path ends.
func (r routeKey) reach() string {
	switch r.match {
	case haproxy.Exact:
		return r.path + "/\x01"
	case haproxy.Begin:
		return r.path
	}
	return strings.TrimRight(r.path, "/") + "/"
}
