// Package linked knows which Ingresses and routes of Gateway API may change the routes of another object:
// they share a host, a Service or a Secret with it. A [Linkage] holds all objects, and finds the neighbours
// of those that a change concerns.
//
// It promises completeness: two objects without a common [Link] change nothing for each other. Its limit: it
// gives up beyond [Most] neighbours, and if a host has requests in common with other hosts.
package linked

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
)

// A Link is a thing through which one object changes the routes of another object.
type Link struct {
	Kind  Kind
	World int // of a Service or Secret
	Name  types.NamespacedName
	At    *gateway.Listener // that has the host
}

// Kind is the kind of a Link.
type Kind int

const (
	ByHost    Kind = iota // of Ingresses
	ByHostAt              // of routes at a listener
	ToService             // from Ingresses
	FromRoute             // to a Service
	toSecret
	toAnyHost
	atListener
)

// anyHost is the link of a claim to the hosts that its certificate names.
var anyHost = Link{Kind: toAnyHost}

func hostLink(host string) Link { return Link{Kind: ByHost, Name: types.NamespacedName{Name: host}} }

// LinksOfClaim returns the links of a claim.
func LinksOfClaim(world int, c *claims.Claim) (all []Link) {
	for _, host := range c.Names {
		all = append(all, hostLink(host))
	}
	if host, _, is := annotations.LeadOf(c.Layer); is && host != "" {
		all = append(all, hostLink(host))
	}
	for _, p := range c.Paths {
		if c.Route == nil {
			all = append(all, Link{Kind: ToService, World: world, Name: p.To.Service})
		}
	}
	if c.Fallback != nil {
		all = append(all, Link{Kind: ToService, World: world, Name: c.Fallback.Service})
	}
	if name := annotations.SpareOf(c.Layer); name != "" {
		to := types.NamespacedName{Namespace: c.Ref.Namespace, Name: name}
		all = append(all, Link{Kind: ToService, World: world, Name: to})
	}
	for _, t := range c.TLS {
		all = append(all, Link{Kind: toSecret, World: world, Name: t.Key(c)})
		if len(t.Hosts) == 0 {
			all = append(all, anyHost)
		}
	}
	return all
}

// LinksOf returns the links of a route. The links of its claim are among them, if own is not nil. Many
// routes may lead to one Service: what they need there is the same, and none changes the routes of another
// by that.
func LinksOf(world int, r *gateway.Route, own *claims.Claim) (all []Link) {
	if own != nil {
		all = LinksOfClaim(world, own)
	}
	for _, l := range r.Listeners() {
		if l.Gateway.Shared {
			continue // the claim has these hosts
		}
		all = append(all, Link{Kind: atListener, At: l})
		for _, host := range r.HostsAt(l) {
			all = append(all, Link{Kind: ByHostAt, At: l, Name: types.NamespacedName{Name: host}})
		}
	}
	for _, rule := range r.Rules {
		for _, ref := range rule.All() {
			to := Link{Kind: FromRoute, World: world, Name: ref.Service} // it may not exist yet
			if !slices.Contains(all, to) {
				all = append(all, to)
			}
		}
	}
	return all
}

// A Placed is an Ingress or a route with its world.
type Placed struct {
	World  int
	Object metav1.Object
}

// IsIngress reports whether the object is an Ingress.
func (p Placed) IsIngress() bool {
	_, is := p.Object.(*networkingv1.Ingress)
	return is
}

// A Linkage holds objects and their links.
type Linkage struct {
	Of map[Placed][]Link
	By map[Link][]Placed
}

// Join adds an object.
func (k *Linkage) Join(m Placed, links []Link) {
	k.Of[m] = links
	for _, l := range links {
		k.By[l] = append(k.By[l], m)
	}
}

// Leave removes an object.
func (k *Linkage) Leave(m Placed) {
	for _, l := range k.Of[m] {
		k.By[l] = slices.DeleteFunc(k.By[l], func(o Placed) bool { return o == m })
		if len(k.By[l]) == 0 {
			delete(k.By, l)
		}
	}
	delete(k.Of, m)
}

// Opens returns the links through which an object with these links changes routes of other objects.
func Opens(links []Link) (all []Link) {
	for _, l := range links {
		switch l.Kind {
		case atListener:
		case FromRoute:
			all = append(all, Link{Kind: ToService, World: l.World, Name: l.Name})
		default:
			all = append(all, l)
		}
	}
	return all
}

// servicesOf returns the links of a route to the Ingresses that lead to its Services.
func servicesOf(links []Link) []Link {
	return slices.DeleteFunc(Opens(links), func(l Link) bool { return l.Kind != ToService })
}

// Neighbours returns all objects with one of the open links, and all that share a link with one of
// these. wider are the routes of the wider hosts that requests for their hosts may fall to. ok is false
// if there are too many objects, or if a link concerns hosts that are not named.
func (k *Linkage) Neighbours(open []Link) (all, wider []Placed, ok bool) {
	seen, in, beside := make(map[Link]bool), make(map[Placed]bool), make(map[Placed]bool)
	for len(open) > 0 {
		l := open[0]
		open = open[1:]
		if seen[l] {
			continue
		}
		seen[l] = true
		if l == anyHost || l.Kind == ByHost && k.concernsOthers(l.Name.Name) || len(k.By[l]) > Most {
			return nil, nil, false
		}
		if l.Kind == ByHostAt && IsWide(l.Name.Name) { // its matches are copied to narrower hosts
			open = append(open, Link{Kind: atListener, At: l.At})
		}
		for _, m := range k.above(l) {
			if !beside[m] {
				beside[m], wider = true, append(wider, m)
				open = append(open, servicesOf(k.Of[m])...)
			}
		}
		for _, m := range k.By[l] {
			if !in[m] {
				in[m], all = true, append(all, m)
				open = append(open, Opens(k.Of[m])...)
			}
		}
		if len(all)+len(wider) > Most {
			return nil, nil, false
		}
	}
	wider = slices.DeleteFunc(wider, func(m Placed) bool { return in[m] })
	return all, wider, true
}

// above returns the routes of hosts that are wider than a host at a listener.
func (k *Linkage) above(l Link) (all []Placed) {
	if l.Kind != ByHostAt {
		return nil
	}
	for host := range gateway.WiderThan(l.Name.Name) {
		l.Name.Name = host
		all = append(all, k.By[l]...)
	}
	return all
}

// IsWide reports whether a host of a listener stands for several hosts.
func IsWide(host string) bool { return host == "" || strings.HasPrefix(host, "*") }

// concernsOthers reports whether a host of Ingresses has requests in common with other hosts.
func (k *Linkage) concernsOthers(host string) bool {
	_, parent, _ := strings.Cut(host, ".")
	return len(k.By[anyHost])+len(k.By[hostLink("")]) > 0 ||
		IsWide(host) || len(k.By[hostLink("*."+parent)]) > 0
}

// Most bounds how many Ingresses and routes may change, and how many others may share links with
// them, for amend.
const Most = 200
