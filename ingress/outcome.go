package ingress

import (
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
)

// An Outcome is the claim of an Ingress, and the part of it that takes effect.
type Outcome struct {
	*claims.Claim
	Closed bool    // it is the default of all hosts, and all clients are rejected there
	Places []Place // of its Paths, in their order
}

// A Place is the effect of a path of a claim.
type Place struct {
	Granted bool // requests go to a backend of the claim, at least in part
	Closed  bool // this backend rejects all clients
	Plain   bool // the route is the claim's own, and serves plain HTTP
}

// Outcomes are those of all Ingresses of a cluster.
type Outcomes struct {
	*Snapshot
	Claims   []Outcome // the older first
	Problems []Problem // all of Ingresses, also those that a Result only counts
	Others   []Problem // of other objects

	// Defines reports whether ValidationRules define an annotation.
	Defines func(annotation string) bool
}

// Outcomes returns the Outcome of each Ingress of a cluster. It reports whether the Result has the cluster.
func (r Result) Outcomes(cluster string) (all Outcomes, known bool) {
	if r.routing == nil {
		return all, false
	}
	i := slices.IndexFunc(r.routing.of, func(w *world) bool { return w.Cluster == cluster })
	if i < 0 {
		return all, false
	}
	w, ofIngress := r.routing.of[i], func(o ObjectRef) bool { return o.Kind == "Ingress" && o.Cluster == cluster }
	all.Snapshot, all.Defines = &w.Snapshot, w.rules.names.Define
	closed := make(map[string]bool) // backends that reject all clients
	for i := range r.routing.needs {
		n := &r.routing.needs[i]
		d := n.settings.Directives
		closed[n.name] = slices.Contains(d, haproxy.Close()) || slices.Contains(d, haproxy.CloseTCP())
	}
	routed := make(map[routeKey]haproxy.Route, len(r.Config.Routes))
	for _, route := range r.Config.Routes {
		if route.Scope == "" {
			routed[claims.KeyOf(route)] = *route
		}
	}
	for _, c := range r.routing.claims {
		if !ofIngress(c.Ref) {
			continue
		}
		one := Outcome{Claim: c, Closed: c.Ruleless && c.Effective && closed[r.Config.DefaultBackend]}
		for _, p := range c.Paths {
			place := Place{Plain: r.routing.owner[p.Key()] == c && !routed[p.Key()].TLSOnly}
			for _, name := range r.routing.backendsOf(c, p, routed) {
				place.Granted, place.Closed = true, place.Closed || closed[name]
			}
			one.Places = append(one.Places, place)
		}
		all.Claims = append(all.Claims, one)
	}
	for _, p := range slices.Concat(r.routing.Problems, w.Beyond, w.rules.odd) {
		if ofIngress(p.ObjectRef) {
			all.Problems = append(all.Problems, p)
		}
	}
	for _, p := range r.Problems {
		if p.Cluster == cluster && p.Kind != "Ingress" {
			all.Others = append(all.Others, p)
		}
	}
	return all, true
}

// backendsOf returns the backends that a claim has for a path.
func (r *routing) backendsOf(c *claim, p pathClaim, routed map[routeKey]haproxy.Route) (names []string) {
	for _, key := range []routeKey{p.Key(), {Host: p.Host, Path: "/", Match: haproxy.Passthrough}} {
		switch {
		case r.owner[key] == c || slices.Contains(c.Twins, key):
			names = append(names, routed[key].Backend)
		case r.canaries[key] == c:
			names = append(names, routed[key].Canary)
		}
		for _, one := range r.chosen[key] {
			if one.by == c && one.when.Usable {
				names = append(names, one.backend)
			}
		}
	}
	return names
}
