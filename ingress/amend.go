package ingress

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/linked"
	"sallyport/ingress/listen"
	"sallyport/ingress/owners"
)

// Most changes concern few of many Ingresses and routes. amend routes only these few, once as they
// were and once as they are. It then replaces the old part of the routing by the new part.
//
// That is right only if no other object changes their routes, and they change no other object's
// routes. amend therefore also routes each object that shares a link with one of the few: a host, a
// Service, or a Secret. Some things concern all Ingresses: wildcard hosts and defaults, conditions and
// regular expressions, limits that all namespaces share, keys of the whole process. A limit of a namespace
// that is reached concerns all its objects, and nobody else's. If a change concerns one of these, amend
// returns nil, and the caller makes the whole routing anew.
//
// Routes of Gateway API are attached to the Gateways of the routing before, which a change of a route
// leaves as they are. A host at a listener links them. Requests for it may also fall to wider hosts,
// so the part has the routes of those as well, and makes no rows for them.

// A subject is all that the routing of a part is about.
type subject struct {
	hosts map[string]bool            // of Ingresses
	at    map[hostAt]bool            // of routes
	wide  map[*gateway.Listener]bool // it is about all hosts of these
	whole *routing                   // it has the Gateways
}

// A hostAt is a host at a listener of a Gateway.
type hostAt struct {
	listener *gateway.Listener
	host     string
}

// has reports whether a routing is about a host at a listener. If s is nil, it is about all.
func (s *subject) has(l *gateway.Listener, host string) bool {
	return s == nil || s.wide[l] || s.at[hostAt{l, host}]
}

// An edit is the difference between two rounds.
type edit struct {
	gone, come []placed
	links      map[placed][]linked.Link // of come
	open       []linked.Link            // to changed Services
	lost       map[any]bool             // objects and claimants of before
}

// amend returns the routing of the worlds now. They may differ from the worlds before only in their
// objects. amend returns nil if the whole routing has to be made anew.
func (c *Compiler) amend(before, now []*world) *routing {
	d, ok := c.compare(before, now)
	if !ok {
		return nil
	}
	if c.linked == nil {
		c.linked = c.link(before)
	}
	c.readRoutes(&d, now)
	d.gone = slices.DeleteFunc(d.gone, func(m placed) bool { _, is := c.linked.Of[m]; return !is })
	open := d.open
	about := &subject{
		hosts: make(map[string]bool), at: make(map[hostAt]bool), wide: make(map[*gateway.Listener]bool),
		whole: c.routing,
	}
	for _, m := range d.gone {
		open = append(open, linked.Opens(c.linked.Of[m])...)
		about.add(c.linked.Of[m])
	}
	for _, m := range d.come {
		open = append(open, linked.Opens(d.links[m])...)
		about.add(d.links[m])
	}
	few, wider, ok := c.linked.Neighbours(open)
	for _, m := range few {
		about.add(c.linked.Of[m])
	}
	few = slices.DeleteFunc(few, func(m placed) bool { return slices.Contains(d.gone, m) })
	wider = slices.DeleteFunc(wider, func(m placed) bool { return slices.Contains(d.gone, m) })
	if !ok || !c.alone(now, few, wider, &d) {
		return nil
	}
	for _, m := range d.gone {
		c.linked.Leave(m)
	}
	for _, m := range d.come {
		c.linked.Join(m, d.links[m])
	}
	was, is := slices.Concat(few, d.gone), slices.Concat(few, d.come)
	then, next := c.routeAlone(before, was, wider, about), c.routeAlone(now, is, wider, about)
	r := c.routing.replace(then, next, about.hosts, now)
	if r == nil || !r.replaceRoutes(then, next, was, is) || !r.roomy(slices.Concat(is, d.gone)) {
		c.linked = nil // it has the links of the objects that came
		return nil
	}
	for _, m := range d.gone {
		delete(c.parsed, m.Object)
	}
	if len(d.lost) > 0 {
		c.memory.Forget(func(o any) bool { return d.lost[o] })
	}
	c.memory.ForgetDerived(2*len(r.needs)+linked.Most, r.settings)
	return r
}

// add adds the hosts that links name.
func (s *subject) add(links []linked.Link) {
	for _, l := range links {
		switch l.Kind {
		case linked.ByHost:
			s.hosts[l.Name.Name] = true
		case linked.ByHostAt:
			s.at[hostAt{l.At, l.Name.Name}] = true
			s.wide[l.At] = s.wide[l.At] || linked.IsWide(l.Name.Name) // then the part has all routes of the listener
		}
	}
}

// link returns the links of all Ingresses and routes of the last routing.
func (c *Compiler) link(worlds []*world) *linked.Linkage {
	k := &linked.Linkage{Of: make(map[placed][]linked.Link), By: make(map[linked.Link][]placed)}
	for i, w := range worlds {
		for _, ing := range w.Ingresses {
			if known := c.parsed[ing]; known != nil {
				k.Join(placed{World: i, Object: ing}, linked.LinksOfClaim(i, known))
			}
		}
		if a := c.routing.attached[i]; a != nil {
			for _, r := range a.Routes {
				k.Join(placed{World: i, Object: r.Object}, linked.LinksOf(i, r, c.parsed[r.Object]))
			}
		}
	}
	return k
}

// compare finds the differences, and reads the Ingresses that came. ok is false if objects other
// than Ingresses, routes, Services and endpoints changed, or too many objects.
func (c *Compiler) compare(before, now []*world) (d edit, ok bool) {
	d.lost, d.links = make(map[any]bool), make(map[placed][]linked.Link)
	for i, w := range now {
		was := before[i]
		if !others(w.Objects).Same(others(was.Objects)) {
			return d, false
		}
		gone, come := gateway.Missing(was.Ingresses, w.Ingresses), gateway.Missing(w.Ingresses, was.Ingresses)
		lost, found := was.API.RoutesBut(&w.API), w.API.RoutesBut(&was.API)
		if len(gone)+len(come)+len(lost)+len(found) > linked.Most {
			return d, false
		}
		ours := input.ClassesOf(&w.Snapshot)
		for _, ing := range gone {
			if known := c.parsed[ing]; known != nil {
				d.gone = append(d.gone, placed{World: i, Object: ing})
				d.lost[known.Claimant] = true
			}
		}
		for _, ing := range come {
			if as := ours.Kind(ing); as != input.Strange {
				c.made.claims++
				c.parsed[ing] = claims.Read(&w.Snapshot, ing, as)
				at := placed{World: i, Object: ing}
				d.come, d.links[at] = append(d.come, at), linked.LinksOfClaim(i, c.parsed[ing])
			}
		}
		for _, r := range lost {
			d.gone = append(d.gone, placed{World: i, Object: r})
			if known := c.parsed[r]; known != nil {
				d.lost[known.Claimant] = true
			}
		}
		for _, r := range found {
			d.come = append(d.come, placed{World: i, Object: r})
		}
		old := gateway.Missing(was.Services, w.Services)
		for _, s := range old {
			d.lost[s] = true
		}
		for _, s := range slices.Concat(old, gateway.Missing(w.Services, was.Services)) {
			d.open = append(d.open, linked.Link{Kind: linked.ToService, World: i, Name: input.KeyOf(s)},
				linked.Link{Kind: linked.FromRoute, World: i, Name: input.KeyOf(s)})
		}
	}
	return d, true
}

// others returns the objects that amend takes to be unchanged.
func others(o Objects) Objects {
	o.Ingresses, o.Services, o.Slices, o.Rules = nil, nil, nil, nil
	o.API = o.API.WithoutRoutes()
	return o
}

// alone reports whether an edit changes nothing beyond itself and these objects: the few that share a link
// with it, and those that have wider hosts.
func (c *Compiler) alone(now []*world, few, wider []placed, d *edit) bool {
	all := slices.Concat(few, d.come, d.gone)
	claims := func(m placed) bool { return c.parsed[m.Object] != nil } // without its neighbours there
	return !c.routing.limited[owners.Party{}] && !slices.ContainsFunc(slices.Concat(all, wider), c.routing.bounded) &&
		c.plain(now, slices.Concat(few, d.come)) && !slices.ContainsFunc(wider, claims) &&
		!slices.ContainsFunc(all, c.aliased)
}

// plain reports whether no Ingress has a path that counts for a limit of its own: a regular
// expression, a Service with a condition, or a canary by header or cookie.
func (c *Compiler) plain(worlds []*world, these []placed) bool {
	return !slices.ContainsFunc(these, func(m placed) bool {
		known := c.parsed[m.Object]
		if known != nil && annotations.PicksRequests(known.Layer) {
			return true
		}
		return known != nil && slices.ContainsFunc(known.Paths, func(p pathClaim) bool {
			service, ok := input.Find(worlds[m.World].Services, p.To.Service)
			return p.Match == haproxy.Regexp || p.If != nil ||
				ok && annotations.Conditional(annotations.Read(annotations.Service, service.Annotations))
		})
	})
}

// aliased reports whether an object is an Ingress that gives further names to a host, redirects some, or
// makes expressions of the host's paths.
func (c *Compiler) aliased(m placed) bool {
	known := c.parsed[m.Object]
	return m.IsIngress() && known != nil && (known.Expressions || len(known.Aliases)+len(known.WWW) > 0)
}

// routeAlone returns the routing of worlds with only these Ingresses and routes, with the routes of
// wider hosts, and with a memory of only the hosts that it is about.
func (c *Compiler) routeAlone(worlds []*world, these, wider []placed, about *subject) *routing {
	alone := *c // it shares what is remembered
	alone.routing, alone.about, alone.worlds = nil, about, make([]*world, len(worlds))
	for i, w := range worlds {
		part := *w
		part.Ingresses, part.API = nil, gateway.Objects{}
		for _, m := range slices.Concat(these, wider) {
			if m.World != i {
				continue
			}
			if ing, is := m.Object.(*networkingv1.Ingress); is {
				part.Ingresses = append(part.Ingresses, ing)
			} else {
				part.API.Add(m.Object)
			}
		}
		slices.SortFunc(part.Ingresses, input.ByName)
		alone.worlds[i] = &part
	}
	alone.made.routed = 0
	r := alone.route(alone.worlds)
	c.made.routed += alone.made.routed
	maps.Copy(c.pairs, alone.pairs)
	c.memory.AddDerived(&alone.memory)
	return r
}

// rest returns the routing without the fields that replace exchanges or makes anew. What remains has
// to be the same in both parts: a field that is missing here is not exchanged, so a change of it
// makes the whole routing anew.
func (r *routing) rest() routing {
	rest := *r
	rest.of, rest.limited, rest.certain, rest.keeps = nil, nil, claims.Period{}, claims.Period{}
	rest.claims, rest.owner, rest.canaries, rest.chosen = nil, nil, nil, nil
	rest.needs, rest.users = nil, nil
	rest.Config.Routes, rest.Config.Certs = nil, nil
	rest.Served, rest.Problems, rest.Owners, rest.Refused = nil, nil, nil, nil
	rest.attached, rest.weight = nil, nil
	rest.listening.Leads, rest.listening.Takers, rest.listening.Forms = nil, nil, nil
	rest.listening.Copied, rest.listening.Limited = nil, nil
	rest.Config.Picks, rest.Config.Forms, rest.Statuses, rest.Unmet = nil, nil, nil, nil
	return rest
}

// replace returns the routing with its part then replaced by the part now. It returns nil if the
// two parts differ in something that concerns the rest of the routing (see rest).
func (r *routing) replace(then, now *routing, hosts map[string]bool, worlds []*world) *routing {
	asks := func(n need) bool { return n.Traffic == claims.Checks } // auth-url names a Service that is no link
	if len(then.limited)+len(now.limited) > 0 || !reflect.DeepEqual(then.rest(), now.rest()) ||
		len(then.Refused)+len(now.Refused) > 0 ||
		slices.ContainsFunc(slices.Concat(then.needs, now.needs), asks) {
		return nil
	}
	lost, found := setOf(then.Problems), setOf(now.Problems)
	next := *r
	next.of = worlds
	next.Problems = nil
	for _, p := range r.Problems {
		if !lost[p] || found[p] {
			next.Problems = append(next.Problems, p)
		}
	}
	for _, list := range [][]Problem{then.Problems, now.Problems} {
		for _, p := range list {
			shared := p.Kind == "ConfigMap" || p.Kind == "Service" && len(r.listening.Leads) > 0
			if lost[p] != found[p] && shared {
				return nil // others may have caused it as well
			}
			if !lost[p] {
				next.Problems = append(next.Problems, p)
			}
		}
	}
	next.certain, next.keeps = r.certain.Both(now.certain), r.keeps.Both(now.keeps)
	next.claims = gateway.Replace(r.claims, then.claims, now.claims, claims.Older)
	next.owner = gateway.ReplaceKeys(r.owner, then.owner, now.owner)
	next.canaries = gateway.ReplaceKeys(r.canaries, then.canaries, now.canaries)
	next.chosen = gateway.ReplaceKeys(r.chosen, then.chosen, now.chosen)
	next.Config.Routes = gateway.Replace(r.Config.Routes, then.Config.Routes, now.Config.Routes, listen.CompareRoutes)
	next.Config.Certs = gateway.Replace(r.Config.Certs, then.Config.Certs, now.Config.Certs,
		func(a, b *haproxy.Cert) int { return cmp.Compare(a.Name, b.Name) })
	next.Owners = maps.Clone(r.Owners)
	for cluster, o := range next.Owners {
		next.Owners[cluster] = o.Replace(hosts, now.Owners[cluster])
	}
	next.serve()
	return &next
}

// roomy reports whether the namespaces of these objects are within their limits even if no
// thing of theirs is counted twice.
func (r *routing) roomy(these []placed) bool {
	sums, asked := make(map[tenant]*claims.Amounts), make(map[tenant]int)
	for _, m := range these {
		of := tenant{World: m.World, Namespace: m.Object.GetNamespace()}
		sums[of] = &claims.Amounts{Bytes: r.weight[of]}
	}
	for _, c := range r.claims {
		if n := sums[c.Tenant()]; n != nil {
			n.CountClaim(c)
		}
	}
	for of, n := range sums {
		if len(r.Owners[r.of[of.World].Cluster].Left) > 0 {
			n.Hosts = r.hostsOf(of)
		}
	}
	for i, a := range r.attached {
		if a == nil {
			continue
		}
		for _, route := range a.Routes {
			of := tenant{World: i, Namespace: route.Object.GetNamespace()}
			if n := sums[of]; n != nil {
				n.Count(route)
				asked[of] += route.Asked()
			}
		}
	}
	for of, n := range sums {
		limits := &r.of[of.World].Options.Limits
		if !n.Within(limits) || limits.Paths > 0 && asked[of] > limits.Paths {
			return false
		}
	}
	return true
}

// hostsOf returns how many hosts a tenant has, with those that are kept for it. It counts a
// host of several Ingresses several times.
func (r *routing) hostsOf(of tenant) (n int) {
	w := r.of[of.World]
	o, who := r.Owners[w.Cluster], w.Options.Owner(of.Namespace)
	for host := range o.Left {
		if o.Namespaces[host] == who {
			n++
		}
	}
	for _, c := range r.claims {
		if c.World == of.World && w.Options.Owner(c.Ref.Namespace) == who {
			n += len(c.Names)
		}
	}
	return n
}

func setOf[T comparable](list []T) map[T]bool {
	set := make(map[T]bool, len(list))
	for _, x := range list {
		set[x] = true
	}
	return set
}
