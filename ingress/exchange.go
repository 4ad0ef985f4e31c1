package ingress

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/gateway"
	"sallyport/ingress/linked"
	"sallyport/ingress/listen"
)

// readRoutes reads the links of the routes that came, and leaves out the routes that are not ours.
func (c *Compiler) readRoutes(d *edit, now []*world) {
	b := &builder{
		Compiler: c, snapshots: snapshots(now),
		routing: &routing{of: now, attached: make([]*gateway.Attachment, len(now))},
	}
	b.gateways.pairs, b.opener = make(map[*corev1.Secret]*pair), b.newOpener()
	for i, a := range c.routing.attached {
		var routes gateway.Objects
		for _, m := range d.come {
			if m.World == i {
				routes.Add(m.Object)
			}
		}
		if a == nil || reflect.ValueOf(routes).IsZero() {
			continue
		}
		w := b.apiOf(i)
		w.Objects = routes
		b.attached[i] = a.Alone(w)
		for _, r := range b.attached[i].Routes {
			if known := b.readRoute(i, r); known != nil {
				c.parsed[r.Object] = known
			}
			d.links[placed{World: i, Object: r.Object}] = linked.LinksOf(i, r, c.parsed[r.Object])
		}
	}
	d.come = slices.DeleteFunc(d.come, func(m placed) bool { _, ours := d.links[m]; return !ours })
}

// replaceRoutes replaces the routes of Gateway API of a part, and all that comes of them. replace did the
// rest. was and is are the objects of the two parts. replaceRoutes returns false if the whole routing
// has to be made anew.
func (r *routing) replaceRoutes(then, now *routing, was, is []placed) bool {
	lost, found := make(map[*gateway.Route]bool), make(map[*gateway.Route]bool)
	r.attached = slices.Clone(r.attached)
	for i, a := range r.attached {
		if a == nil {
			continue
		}
		gone, come := routesOf(i, was, a), routesOf(i, is, now.attached[i])
		for _, r := range gone {
			lost[r] = true
		}
		for _, r := range come {
			found[r] = true
		}
		if !sameBeside(then.attached[i], now.attached[i], found) {
			return false
		}
		r.attached[i] = a.Exchange(r.of[i].API, gone, come)
	}
	if !r.replaceMatches(then, now, found) {
		return false
	}
	rest := slices.Clone(r.listening.Leads)
	if len(lost) > 0 {
		rest = slices.DeleteFunc(rest, func(one *listen.Lead) bool { return lost[one.Rule.Route] })
	}
	r.replaceNeeds(then.needs, now.needs, rest)
	for _, one := range now.listening.Leads {
		if found[one.Rule.Route] {
			rest = append(rest, one)
		}
	}
	r.listening.Leads = rest
	r.tellStatuses()
	return true
}

// routesOf returns the routes that an Attachment has of objects of a world.
func routesOf(world int, these []placed, a *gateway.Attachment) (all []*gateway.Route) {
	for _, m := range these {
		if m.World != world || m.IsIngress() {
			continue
		}
		if r := a.RouteOf(m.Object); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// sameBeside reports whether two parts say the same about the routes that are there only because
// requests fall to their hosts.
func sameBeside(then, now *gateway.Attachment, changed map[*gateway.Route]bool) bool {
	said := make(map[metav1.Object]*gateway.Status)
	for _, r := range then.Routes {
		said[r.Object] = then.StatusOf(r)
	}
	return !slices.ContainsFunc(now.Routes, func(r *gateway.Route) bool {
		return !changed[r] && !reflect.DeepEqual(said[r.Object], now.StatusOf(r))
	})
}

// replaceMatches replaces the conditions of routes, and who takes their requests. It returns false if
// something new would count for a limit. found are the routes of the part now. The other routes of its
// rows stay as they are.
func (r *routing) replaceMatches(then, now *routing, found map[*gateway.Route]bool) bool {
	others := func(e gateway.Entry) *gateway.Route {
		for _, a := range r.attached {
			if a != nil && !found[e.Route] && a.RouteOf(e.Route.Object) != nil {
				return a.RouteOf(e.Route.Object)
			}
		}
		return nil
	}
	most := func(of tenant) int { return r.of[of.World].Options.Limits.Paths }
	if !r.listening.Exchange(&then.listening, &now.listening, others, most) {
		return false
	}
	r.weight = maps.Clone(r.weight)
	for of, n := range now.weight {
		r.weight[of] += n // what the part took before is not taken off: other routes may share it
	}
	picks := make(map[string]bool) // that may have no route now
	for _, p := range then.Config.Picks {
		picks[p.Name] = true
	}
	byName := func(p *haproxy.Pick, name string) int { return cmp.Compare(p.Name, name) }
	var come []*haproxy.Pick
	for _, p := range now.Config.Picks {
		delete(picks, p.Name)
		if _, known := slices.BinarySearchFunc(r.Config.Picks, p.Name, byName); !known {
			come = append(come, p)
		}
	}
	if len(picks) > 0 {
		for _, route := range r.Config.Routes {
			delete(picks, route.Pick)
		}
	}
	var gone []*haproxy.Pick
	for _, p := range then.Config.Picks {
		if picks[p.Name] {
			gone = append(gone, p)
		}
	}
	r.Config.Picks = gateway.Replace(r.Config.Picks, gone, come,
		func(a, b *haproxy.Pick) int { return cmp.Compare(a.Name, b.Name) })
	if !reflect.DeepEqual(then.Config.Forms, now.Config.Forms) {
		r.Config.Forms = haproxy.FormsOf(r.Config.Picks)
	}
	return true
}

// replaceNeeds replaces needs. The rules in rest lead to backends as well, and are in neither part.
// All Ingresses that lead to a backend of a part are in it.
func (r *routing) replaceNeeds(then, now []need, rest []*listen.Lead) {
	was, is := needsByName(then), needsByName(now)
	same := func(n *need) bool { return was[n.name] != nil && is[n.name] != nil && *was[n.name] == *is[n.name] }
	others := make(map[string]*need) // of those that differ: with the oldest object in rest that leads there
	sought := make(map[string]bool)  // the oldest object is in the part
	for _, list := range [][]need{then, now} {
		for i := range list {
			n := &list[i]
			if same(n) {
				continue
			}
			others[n.name] = nil
			if at, known := r.findNeed(n.name); known && was[n.name] != nil && was[n.name].by == r.needs[at].by {
				sought[n.name] = true
			} else if known {
				others[n.name] = &r.needs[at]
			}
		}
	}
	if len(others) == 0 {
		return
	}
	if len(sought) > 0 {
		r.seek(sought, rest, others)
	}
	var gone, come []need
	for _, name := range sortedKeys(others) {
		at, known := r.findNeed(name)
		var next *need
		switch {
		case is[name] != nil:
			next = is[name]
			if others[name] != nil {
				next.byOlder(others[name])
			}
		case others[name] != nil:
			n := r.needs[at]
			n.by, n.asked = others[name].by, others[name].asked
			next = &n
		}
		if known && next != nil && r.needs[at] == *next {
			continue
		}
		if known {
			gone = append(gone, r.needs[at])
		}
		if next != nil {
			come = append(come, *next)
		}
	}
	r.exchangeNeeds(gone, come)
}

// findNeed returns the index of a need.
func (r *routing) findNeed(name string) (at int, known bool) {
	return slices.BinarySearchFunc(r.needs, name, func(n need, name string) int { return cmp.Compare(n.name, name) })
}

// seek adds to others, for each of the names, a need with the oldest of the objects that lead there.
func (r *routing) seek(names map[string]bool, leads []*listen.Lead, others map[string]*need) {
	for _, lead := range leads {
		for _, name := range lead.Backends {
			if !names[name] {
				continue
			}
			n := needOf(lead, r.of)
			if others[name] == nil {
				others[name] = &n
			}
			others[name].byOlder(&n)
		}
	}
}

func needsByName(list []need) map[string]*need {
	all := make(map[string]*need, len(list))
	for i := range list {
		all[list[i].name] = &list[i]
	}
	return all
}

// exchangeNeeds removes the needs of gone, and adds those of come.
func (r *routing) exchangeNeeds(gone, come []need) {
	r.needs = gateway.Replace(r.needs, gone, come, func(a, b need) int { return cmp.Compare(a.name, b.name) })
	r.users = slices.Clone(r.users)
	mine := make(map[int]bool) // the worlds that have a clone of their map
	change := func(n need, to func(names []string) []string) {
		for _, i := range sharers(r.of, &n) {
			if !mine[i] {
				r.users[i], mine[i] = maps.Clone(r.users[i]), true
			}
			users := r.users[i]
			for _, service := range n.services() {
				if users[service] = to(slices.Clone(users[service])); len(users[service]) == 0 {
					delete(users, service)
				}
			}
		}
	}
	for _, n := range gone {
		change(n, func(names []string) []string {
			return slices.DeleteFunc(names, func(name string) bool { return name == n.name })
		})
	}
	for _, n := range come {
		change(n, func(names []string) []string { return append(names, n.name) })
	}
}
