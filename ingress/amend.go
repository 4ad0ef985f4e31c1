package ingress

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// Most changes concern few of many Ingresses. amend routes only these few, once as they were and
// once as they are. It then replaces the old part of the routing by the new part.
//
// That is right only if no other Ingress changes their routes, and they change no other Ingress's
// routes. So amend also routes each Ingress that shares a link with one of the few: a host, a
// Service, or a Secret. Some things concern all Ingresses: wildcard hosts and defaults, conditions
// and regular expressions, limits that are reached, keys of the whole process. If a change concerns
// one of these, amend returns nil, and the caller makes the whole routing anew.

// A link is a thing through which one Ingress changes the routes of another Ingress.
type link struct {
	kind  linkKind
	world int // of a Service or Secret
	name  serviceKey
}

type linkKind int

const (
	byHost linkKind = iota
	toService
	toSecret
	toAnyHost
)

// anyHost is the link of a claim to the hosts that its certificate names.
var anyHost = link{kind: toAnyHost}

func hostLink(host string) link { return link{kind: byHost, name: serviceKey{Name: host}} }

// links returns the links of a claim.
func (c *claim) links(world int) (all []link) {
	for _, host := range c.names {
		all = append(all, hostLink(host))
	}
	for _, p := range c.paths {
		all = append(all, link{toService, world, p.to.service})
	}
	if c.fallback != nil {
		all = append(all, link{toService, world, c.fallback.service})
	}
	for _, t := range c.tls {
		all = append(all, link{toSecret, world, serviceKey{Namespace: c.ref.Namespace, Name: t.secret}})
		if len(t.hosts) == 0 {
			all = append(all, anyHost)
		}
	}
	return all
}

// A placedIngress is an Ingress with its world.
type placedIngress struct {
	world int
	*networkingv1.Ingress
}

// mostPlaced bounds how many Ingresses may change, and how many others may share links with them,
// for amend.
const mostPlaced = 200

// An edit is the difference between two rounds.
type edit struct {
	gone, come []placedIngress
	open       []link       // of gone and come, and to changed Services
	lost       map[any]bool // objects and claimants of before
}

// amend returns the routing of the worlds now. They may differ from the worlds before only in their
// objects. amend returns nil if the whole routing has to be made anew.
func (c *Compiler) amend(before, now []*world) *routing {
	d, ok := c.compare(before, now)
	if !ok {
		c.linked = nil
		return nil
	}
	if c.linked == nil {
		c.linked = make(map[link][]placedIngress, 2*len(c.parsed))
		for i, w := range before {
			for _, ing := range w.Ingresses {
				c.join(placedIngress{i, ing})
			}
		}
	}
	few, ok := c.neighbours(d.open)
	few = slices.DeleteFunc(few, func(m placedIngress) bool { return slices.Contains(d.gone, m) })
	for _, m := range d.gone {
		c.leave(m)
	}
	for _, m := range d.come {
		c.join(m)
	}
	if !ok || c.routing.limited || !c.plain(now, slices.Concat(few, d.come)) {
		return nil
	}
	hosts := c.hostsOf(slices.Concat(few, d.gone, d.come))
	was := c.routeAlone(before, slices.Concat(few, d.gone), hosts)
	r := c.routing.replace(was, c.routeAlone(now, slices.Concat(few, d.come), hosts), hosts, now)
	if r == nil || !r.roomy(slices.Concat(d.come, d.gone)) {
		return nil
	}
	for _, m := range d.gone {
		delete(c.parsed, m.Ingress)
	}
	c.forget(func(o any) bool { return d.lost[o] })
	return r
}

// compare finds the differences, and reads the Ingresses that came. ok is false if objects other
// than Ingresses, Services and endpoints changed, or too many objects.
func (c *Compiler) compare(before, now []*world) (d edit, ok bool) {
	d.lost = make(map[any]bool)
	for i, w := range now {
		was := before[i]
		if !others(w.Objects).Same(others(was.Objects)) {
			return d, false
		}
		ours := input.ClassesOf(&w.Snapshot)
		gone, come := missing(was.Ingresses, w.Ingresses), missing(w.Ingresses, was.Ingresses)
		if len(gone)+len(come) > mostPlaced {
			return d, false
		}
		for _, ing := range gone {
			if known := c.parsed[ing]; known != nil {
				d.gone, d.open = append(d.gone, placedIngress{i, ing}), append(d.open, known.links(i)...)
				d.lost[known.claimant] = true
			}
		}
		for _, ing := range come {
			if ours.Has(ing) {
				c.made.claims++
				c.parsed[ing] = readIngress(w.Cluster, ing)
				d.come, d.open = append(d.come, placedIngress{i, ing}), append(d.open, c.parsed[ing].links(i)...)
			}
		}
		for _, s := range missing(was.Services, w.Services) {
			d.open, d.lost[s] = append(d.open, link{toService, i, input.KeyOf(s)}), true
		}
		for _, s := range missing(w.Services, was.Services) {
			d.open = append(d.open, link{toService, i, input.KeyOf(s)})
		}
	}
	return d, true
}

// others returns the objects that amend takes to be unchanged.
func others(o Objects) Objects {
	o.Ingresses, o.Services, o.Slices = nil, nil, nil
	return o
}

// missing returns the entries of a list that another list does not have. Most of both are
// the same, in the same order.
func missing[T comparable](list, from []T) (all []T) {
	for len(list) > 0 && len(from) > 0 && list[0] == from[0] {
		list, from = list[1:], from[1:]
	}
	for len(list) > 0 && len(from) > 0 && list[len(list)-1] == from[len(from)-1] {
		list, from = list[:len(list)-1], from[:len(from)-1]
	}
	has := setOf(from)
	for _, x := range list {
		if !has[x] {
			all = append(all, x)
		}
	}
	return all
}

// join adds an Ingress to those with its links.
func (c *Compiler) join(m placedIngress) {
	if known := c.parsed[m.Ingress]; known != nil {
		for _, l := range known.links(m.world) {
			c.linked[l] = append(c.linked[l], m)
		}
	}
}

// leave removes an Ingress from those with its links.
func (c *Compiler) leave(m placedIngress) {
	for _, l := range c.parsed[m.Ingress].links(m.world) {
		c.linked[l] = slices.DeleteFunc(c.linked[l], func(o placedIngress) bool { return o == m })
		if len(c.linked[l]) == 0 {
			delete(c.linked, l)
		}
	}
}

// neighbours returns all Ingresses with one of the open links, and all that share a link with one of
// these. ok is false if there are too many Ingresses, or if a link concerns hosts that are
// not named.
func (c *Compiler) neighbours(open []link) (all []placedIngress, ok bool) {
	if len(c.linked[anyHost])+len(c.linked[hostLink("")]) > 0 {
		return nil, false
	}
	seen, in := make(map[link]bool), make(map[placedIngress]bool)
	for len(open) > 0 {
		l := open[0]
		open = open[1:]
		if c.routing.routesTo[l] {
			return nil, false // routes of Gateway API lead to the Service, too
		}
		if seen[l] {
			continue
		}
		seen[l] = true
		if host := l.name.Name; l.kind == byHost {
			_, parent, _ := strings.Cut(host, ".")
			if host == "" || strings.HasPrefix(host, "*") || len(c.linked[hostLink("*."+parent)]) > 0 {
				return nil, false
			}
		}
		if l == anyHost || len(c.linked[l]) > mostPlaced {
			return nil, false
		}
		for _, m := range c.linked[l] {
			if in[m] {
				continue
			}
			in[m], all = true, append(all, m)
			open = append(open, c.parsed[m.Ingress].links(m.world)...)
		}
		if len(all) > mostPlaced {
			return nil, false
		}
	}
	return all, true
}

// plain reports whether no Ingress has a path that counts for a limit of its own: a regular
// expression, or a Service with a condition.
func (c *Compiler) plain(worlds []*world, placed []placedIngress) bool {
	return !slices.ContainsFunc(placed, func(m placedIngress) bool {
		return slices.ContainsFunc(c.parsed[m.Ingress].paths, func(p pathClaim) bool {
			service, ok := input.Find(worlds[m.world].Services, p.to.service)
			return p.match == haproxy.Regexp ||
				ok && annotations.Conditional(annotations.Read(annotations.Service, service.Annotations))
		})
	})
}

// hostsOf returns the hosts that Ingresses name.
func (c *Compiler) hostsOf(placed []placedIngress) map[string]bool {
	hosts := make(map[string]bool)
	for _, m := range placed {
		for _, host := range c.parsed[m.Ingress].names {
			hosts[host] = true
		}
	}
	return hosts
}

// routeAlone returns the routing of worlds with only these Ingresses, and with a memory of only
// these hosts.
func (c *Compiler) routeAlone(worlds []*world, placed []placedIngress, hosts map[string]bool) *routing {
	alone := *c // it shares what is remembered
	alone.routing, alone.about, alone.worlds = nil, hosts, make([]*world, len(worlds))
	for i, w := range worlds {
		part := *w
		part.Ingresses, part.API, part.Options.Gateway.Enabled = nil, gateway.Objects{}, false
		for _, m := range placed {
			if m.world == i {
				part.Ingresses = append(part.Ingresses, m.Ingress)
			}
		}
		slices.SortFunc(part.Ingresses, input.ByName)
		alone.worlds[i] = &part
	}
	r := alone.route(alone.worlds)
	c.made.routed += len(r.claims)
	maps.Copy(c.pairs, alone.pairs)
	maps.Copy(c.api.derived, alone.api.derived)
	return r
}

// rest returns the routing without the fields that replace exchanges or makes anew. What remains has
// to be the same in both parts: a field that is missing here is not exchanged, so a change of it
// makes the whole routing anew.
func (r *routing) rest() routing {
	rest := *r
	rest.of, rest.limited, rest.certain, rest.keeps = nil, false, period{}, period{}
	rest.claims, rest.owner, rest.canaries, rest.chosen = nil, nil, nil, nil
	rest.needs, rest.users = nil, nil
	rest.Config.Routes, rest.Config.Certs = nil, nil
	rest.Served, rest.Problems, rest.Owners, rest.Refused = nil, nil, nil, nil
	return rest
}

// replace returns the routing with its part then replaced by the part now. It returns nil if the
// two parts differ in something that concerns the rest of the routing (see rest).
func (r *routing) replace(then, now *routing, hosts map[string]bool, worlds []*world) *routing {
	asks := func(n need) bool { return n.traffic == checks } // auth-url names a Service that is no link
	if now.limited || !reflect.DeepEqual(then.rest(), now.rest()) || len(then.Refused)+len(now.Refused) > 0 ||
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
			if lost[p] != found[p] && p.Kind == "ConfigMap" {
				return nil // others may have caused it as well
			}
			if !lost[p] {
				next.Problems = append(next.Problems, p)
			}
		}
	}
	next.certain, next.keeps = r.certain.both(now.certain), r.keeps.both(now.keeps)
	next.claims = exchange(r.claims, then.claims, now.claims, older)
	next.owner = exchangeKeys(r.owner, then.owner, now.owner)
	next.canaries = exchangeKeys(r.canaries, then.canaries, now.canaries)
	next.chosen = exchangeKeys(r.chosen, then.chosen, now.chosen)
	next.Config.Routes = exchange(r.Config.Routes, then.Config.Routes, now.Config.Routes, compareScoped)
	next.Config.Certs = exchange(r.Config.Certs, then.Config.Certs, now.Config.Certs,
		func(a, b *haproxy.Cert) int { return cmp.Compare(a.Name, b.Name) })
	next.exchangeNeeds(then.needs, now.needs)
	next.Owners = maps.Clone(r.Owners)
	for cluster, o := range next.Owners {
		if next.Owners[cluster] = o.Replace(hosts, now.Owners[cluster]); next.Owners[cluster].Equal(o) {
			next.Owners[cluster] = o
		}
	}
	next.serve()
	return &next
}

// exchangeNeeds replaces needs. It keeps the needs that both lists have, since other claims may
// share them.
func (r *routing) exchangeNeeds(then, now []need) {
	lost, found := setOf(then), setOf(now)
	then = slices.DeleteFunc(slices.Clone(then), func(n need) bool { return found[n] })
	now = slices.DeleteFunc(slices.Clone(now), func(n need) bool { return lost[n] })
	r.needs = exchange(r.needs, then, now, func(a, b need) int { return cmp.Compare(a.name, b.name) })
	r.users = slices.Clone(r.users)
	mine := make(map[int]bool) // the worlds that have a clone of their map
	change := func(n need, to func(names []string) []string) {
		if !mine[n.world] {
			r.users[n.world], mine[n.world] = maps.Clone(r.users[n.world]), true
		}
		users := r.users[n.world]
		if users[n.service] = to(slices.Clone(users[n.service])); len(users[n.service]) == 0 {
			delete(users, n.service)
		}
	}
	for _, n := range then {
		change(n, func(names []string) []string {
			return slices.DeleteFunc(names, func(name string) bool { return name == n.name })
		})
	}
	for _, n := range now {
		change(n, func(names []string) []string { return append(names, n.name) })
	}
}

// roomy reports whether the namespaces of these Ingresses are within their limits even if no
// thing of theirs is counted twice.
func (r *routing) roomy(come []placedIngress) bool {
	tenants := make(map[tenant]bool)
	for _, m := range come {
		tenants[tenant{m.world, m.Namespace}] = true
	}
	for of := range tenants {
		limits := r.of[of.world].Options.Limits
		if r.routesOf[of] {
			return false // its routes count, too
		}
		var hosts, paths, certs, bytes int
		for _, c := range r.claims {
			if c.world == of.world && c.ref.Namespace == of.namespace {
				hosts, paths, certs, bytes = hosts+len(c.names), paths+len(c.paths)+1, certs+len(c.tls), bytes+c.bytes
			}
		}
		if len(r.Owners[r.of[of.world].Cluster].Left) > 0 {
			hosts = r.hostsOf(of)
		}
		within := func(count, most int) bool { return most == 0 || count <= most }
		if !within(hosts, limits.Hosts) || !within(paths, limits.Paths) || !within(paths, limits.Backends) ||
			!within(certs, limits.Certificates) || !within(bytes, limits.ConfigBytes) {
			return false
		}
	}
	return true
}

// hostsOf returns how many hosts a tenant has, with those that are kept for it. It counts a
// host of several Ingresses several times.
func (r *routing) hostsOf(of tenant) (n int) {
	w := r.of[of.world]
	o, who := r.Owners[w.Cluster], w.owner(of.namespace)
	for host := range o.Left {
		if o.Namespaces[host] == who {
			n++
		}
	}
	for _, c := range r.claims {
		if c.world == of.world && w.owner(c.ref.Namespace) == who {
			n += len(c.names)
		}
	}
	return n
}

// exchange returns a sorted list without the entries of gone, and with those of come. Both are
// sorted lists.
func exchange[T any](list, gone, come []T, compare func(a, b T) int) []T {
	if len(gone)+len(come) == 0 {
		return list
	}
	out := make([]T, 0, len(list)+len(come))
	for _, x := range list {
		for len(come) > 0 && compare(come[0], x) < 0 {
			out, come = append(out, come[0]), come[1:]
		}
		if len(gone) > 0 && compare(gone[0], x) == 0 {
			gone = gone[1:]
			continue
		}
		out = append(out, x)
	}
	return append(out, come...)
}

// exchangeKeys returns a map without the keys of gone, and with the entries of come.
func exchangeKeys[K comparable, V any](m, gone, come map[K]V) map[K]V {
	if len(gone)+len(come) == 0 {
		return m
	}
	out := maps.Clone(m)
	for k := range gone {
		delete(out, k)
	}
	maps.Copy(out, come)
	return out
}

func setOf[T comparable](list []T) map[T]bool {
	set := make(map[T]bool, len(list))
	for _, x := range list {
		set[x] = true
	}
	return set
}
