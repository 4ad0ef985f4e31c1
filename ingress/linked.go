package ingress

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
)

// A link is a thing through which one object changes the routes of another object.
type link struct {
	kind  linkKind
	world int // of a Service or Secret
	name  serviceKey
	at    *gateway.Listener // that has the host
}

type linkKind int

const (
	byHost    linkKind = iota // of Ingresses
	byHostAt                  // of routes at a listener
	toService                 // from Ingresses
	fromRoute                 // to a Service
	toSecret
	toAnyHost
	atListener
)

// anyHost is the link of a claim to the hosts that its certificate names.
var anyHost = link{kind: toAnyHost}

func hostLink(host string) link { return link{kind: byHost, name: serviceKey{Name: host}} }

// linksOfClaim returns the links of a claim.
func linksOfClaim(world int, c *claim) (all []link) {
	for _, host := range c.Names {
		all = append(all, hostLink(host))
	}
	if host, _, is := annotations.LeadOf(c.Layer); is && host != "" {
		all = append(all, hostLink(host))
	}
	for _, p := range c.Paths {
		if c.Route == nil {
			all = append(all, link{kind: toService, world: world, name: p.To.Service})
		}
	}
	if c.Fallback != nil {
		all = append(all, link{kind: toService, world: world, name: c.Fallback.Service})
	}
	for _, t := range c.TLS {
		all = append(all, link{kind: toSecret, world: world, name: t.Key(c)})
		if len(t.Hosts) == 0 {
			all = append(all, anyHost)
		}
	}
	return all
}

// linksOf returns the links of a route. The links of its claim are among them, if claims is not nil. Many
// routes may lead to one Service: what they need there is the same, and none changes the routes of another
// by that.
func linksOf(world int, r *gateway.Route, claims *claim) (all []link) {
	if claims != nil {
		all = linksOfClaim(world, claims)
	}
	for _, l := range r.Listeners() {
		if l.Gateway.Shared {
			continue // the claim has these hosts
		}
		all = append(all, link{kind: atListener, at: l})
		for _, host := range r.HostsAt(l) {
			all = append(all, link{kind: byHostAt, at: l, name: serviceKey{Name: host}})
		}
	}
	for _, rule := range r.Rules {
		for _, ref := range rule.All() {
			to := link{kind: fromRoute, world: world, name: ref.Service} // it may not exist yet
			if !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
	}
	return all
}

// A placed is an Ingress or a route with its world.
type placed struct {
	world  int
	object metav1.Object
}

func (p placed) isIngress() bool {
	_, is := p.object.(*networkingv1.Ingress)
	return is
}

// A linkage holds objects and their links.
type linkage struct {
	of map[placed][]link
	by map[link][]placed
}

// join adds an object.
func (k *linkage) join(m placed, links []link) {
	k.of[m] = links
	for _, l := range links {
		k.by[l] = append(k.by[l], m)
	}
}

// leave removes an object.
func (k *linkage) leave(m placed) {
	for _, l := range k.of[m] {
		k.by[l] = slices.DeleteFunc(k.by[l], func(o placed) bool { return o == m })
		if len(k.by[l]) == 0 {
			delete(k.by, l)
		}
	}
	delete(k.of, m)
}

// opens returns the links through which an object with these links changes routes of other objects.
func opens(links []link) (all []link) {
	for _, l := range links {
		switch l.kind {
		case atListener:
		case fromRoute:
			all = append(all, link{kind: toService, world: l.world, name: l.name})
		default:
			all = append(all, l)
		}
	}
	return all
}

// servicesOf returns the links of a route to the Ingresses that lead to its Services.
func servicesOf(links []link) []link {
	return slices.DeleteFunc(opens(links), func(l link) bool { return l.kind != toService })
}

// neighbours returns all objects with one of the open links, and all that share a link with one of
// these. wider are the routes of the wider hosts that requests for their hosts may fall to. ok is false
// if there are too many objects, or if a link concerns hosts that are not named.
func (k *linkage) neighbours(open []link) (all, wider []placed, ok bool) {
	seen, in, beside := make(map[link]bool), make(map[placed]bool), make(map[placed]bool)
	for len(open) > 0 {
		l := open[0]
		open = open[1:]
		if seen[l] {
			continue
		}
		seen[l] = true
		if l == anyHost || l.kind == byHost && k.concernsOthers(l.name.Name) || len(k.by[l]) > mostPlaced {
			return nil, nil, false
		}
		if l.kind == byHostAt && isWide(l.name.Name) { // its matches are copied to narrower hosts
			open = append(open, link{kind: atListener, at: l.at})
		}
		for _, m := range k.above(l) {
			if !beside[m] {
				beside[m], wider = true, append(wider, m)
				open = append(open, servicesOf(k.of[m])...)
			}
		}
		for _, m := range k.by[l] {
			if !in[m] {
				in[m], all = true, append(all, m)
				open = append(open, opens(k.of[m])...)
			}
		}
		if len(all)+len(wider) > mostPlaced {
			return nil, nil, false
		}
	}
	wider = slices.DeleteFunc(wider, func(m placed) bool { return in[m] })
	return all, wider, true
}

// above returns the routes of hosts that are wider than a host at a listener.
func (k *linkage) above(l link) (all []placed) {
	if l.kind != byHostAt {
		return nil
	}
	for host := range gateway.WiderThan(l.name.Name) {
		l.name.Name = host
		all = append(all, k.by[l]...)
	}
	return all
}

func isWide(host string) bool { return host == "" || strings.HasPrefix(host, "*") }

// concernsOthers reports whether a host of Ingresses has requests in common with other hosts.
func (k *linkage) concernsOthers(host string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return len(k.by[anyHost])+len(k.by[hostLink("")]) > 0 ||
		isWide(host) || len(k.by[hostLink("*."+parent)]) > 0
}
