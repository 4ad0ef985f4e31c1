package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
	"sallyport/ingress/listen"
	"sallyport/ingress/owners"
)

// limit removes from the claims of each namespace everything beyond its limits. It closes a claim
// if its keys are beyond a limit. Older claims are counted first, so a younger claim never ends a
// claim that is served.
func (b *builder) limit() {
	unguarded := make(map[tenant]map[string]*claim) // hosts with a left-out guarded path, and its claim
	for _, c := range b.claims {
		w, of := b.worlds[c.World], c.Tenant()
		if c.Route != nil {
			b.limitShared(c)
			continue
		}
		if b.accounts[of] == nil {
			b.accounts[of] = claims.NewAccount(w.Options)
		}
		layerOf := func(service serviceKey) annotations.Layer {
			s, _ := input.Find(w.Services, service)
			return b.memory.Layer(s)
		}
		kept, refused := b.accounts[of].Admit(c, func(service serviceKey) bool {
			return annotations.Conditional(layerOf(service))
		})
		if len(refused) > 0 {
			if c.Layer.Guards() {
				if unguarded[of] == nil {
					unguarded[of] = make(map[string]*claim)
				}
				for _, host := range c.Hosts {
					unguarded[of][host] = c
				}
			}
			*c = kept
			b.bounds(of)
			b.report(c, "LimitReached", "the Ingresses of namespace %s have more than %s", c.Ref.Namespace,
				strings.Join(refused, "; and more than "))
		}
		bytesOf := func(l annotations.Layer) int { return w.keys.Bytes(l, of.Namespace) }
		ofService := func(service serviceKey) int { return bytesOf(layerOf(service)) }
		if most := w.Options.Limits.ConfigBytes; most > 0 && !c.Closed &&
			!b.accounts[of].Bears(c, bytesOf(c.Layer), most, ofService) {
			c.Closed = true
			b.bounds(of)
			b.report(c, "LimitReached",
				"the keys of the Ingresses of namespace %s, and of their Services, take more than %d bytes of "+
					"HAProxy's configuration "+
					"(clusters[].ingress.limits.configBytes), which repeats them for each backend; with the %d bytes "+
					"of this Ingress: "+
					"all clients of its paths are rejected until its keys are shorter, or it leads to fewer "+
					"Services; older Ingresses are counted first",
				c.Ref.Namespace, most, c.Bytes)
		}
	}
	b.closeUnguarded(unguarded)
}

// bounds notes that something of a namespace is beyond a limit.
func (b *builder) bounds(of tenant) {
	var who owners.Party // of listen.Everybody
	if of != listen.Everybody {
		who = owners.PartyIn(b.snapshots[of.World], of.Namespace)
	}
	b.limited[who] = true
}

// bounded reports whether the namespace of an object has something beyond a limit. A change of the object may
// then change which other objects of the namespace are served.
func (r *routing) bounded(m placed) bool {
	return r.limited[owners.PartyIn(&r.of[m.World].Snapshot, m.Object.GetNamespace())]
}

// closeUnguarded closes all claims to a host if a guarded path of the host is left out. Otherwise a
// wider path of the same namespace would serve these requests without the guard.
func (b *builder) closeUnguarded(hosts map[tenant]map[string]*claim) {
	for _, c := range b.claims {
		for _, host := range c.Hosts {
			left := hosts[c.Tenant()][host]
			if left == nil || c.Closed {
				continue
			}
			c.Closed = true
			b.report(c, "LimitReached",
				"all clients of this %s are rejected, because paths of host %s are beyond a limit of "+
					"the namespace, "+
					"and Ingress %s restricts access to them: see what is told of that one", c.Ref.Kind,
				cmp.Or(host, "any host"), left.Ref.Name)
		}
	}
}

// bound returns the parts without the servers beyond the limit of each namespace, and how many
// servers these are. Backends that come first by name keep their servers. A server takes memory
// in HAProxy even while it is closed. Parts that did not change come back with the same pointers.
func (c *Compiler) bound() (parts []part, servers int) {
	over := make(map[tenant]int) // how many servers more the namespace has a place for
	for of, count := range c.counted.servers {
		most := c.worlds[of.World].Options.Limits.Servers
		if most > 0 && count > most {
			over[of], count = most, most
		}
		servers += count
	}
	if len(over) == 0 { // as nearly always: nobody looks at every part
		c.counted.bounded = nil
		return c.counted.parts, servers
	}
	bounded := make(map[*haproxy.Backend]*haproxy.Backend)
	parts = slices.Clone(c.counted.parts)
	for i := range c.routing.needs {
		n, b := &c.routing.needs[i], parts[i].backend
		kept, left := c.within(n, b, over)
		if len(left) == 0 {
			continue
		}
		bounded[b] = c.counted.bounded[b]
		if bounded[b] == nil || !slices.Equal(bounded[b].Servers, kept) {
			less := *b
			less.Servers = kept
			bounded[b] = &less
		}
		parts[i].backend = bounded[b]
		parts[i].problems = slices.Clip(parts[i].problems)
		for _, world := range slices.Sorted(maps.Keys(left)) {
			w := c.worlds[world]
			service, _ := input.Find(w.Services, n.Service)
			on := n.ref(w.Cluster)
			if service != nil {
				on = w.serviceRef(service)
			}
			parts[i].problems = append(parts[i].problems, Problem{
				ObjectRef: on, Reason: "LimitReached",
				Why: fmt.Sprintf("the backends of namespace %s have more than %d servers "+
					"(clusters[].ingress.limits.servers): %d servers of %s are not served",
					n.Service.Namespace, w.Options.Limits.Servers, left[world], b.Origin),
			})
		}
	}
	c.counted.bounded = bounded
	return parts, servers
}

// within returns the servers of a backend that are within the limits of their namespaces, and how many
// are not, by world. It takes them off over, which has how many servers more each namespace may have.
func (c *Compiler) within(n *need, b *haproxy.Backend, over map[tenant]int) (kept []haproxy.Server, left map[int]int) {
	if _, limited := over[n.tenant()]; !limited && n.set == "" {
		return b.Servers, nil
	}
	for i := range b.Servers {
		of := c.tenantOf(n, &b.Servers[i])
		rest, limited := over[of]
		switch {
		case !limited:
		case rest == 0:
			if left == nil {
				left = make(map[int]int)
			}
			left[of.World]++
			continue
		default:
			over[of]--
		}
		kept = append(kept, b.Servers[i])
	}
	return kept, left
}
