// Package budget bounds how much time the changes of one namespace take from the other namespaces.
//
// Most changes of an object are cheap, because package ingress routes few objects for them
// (ingress.Compiler.Amend). Other changes make the whole routing anew. That takes 0.15 to 0.3 seconds with
// 10,000 Ingresses, and the changes of all namespaces wait for it. Each namespace has a share of the time for
// such changes (Limits.Routing). They wait while the namespace has used up its share, and the namespace stays
// as it was. A change that is cheap by itself never waits, and neither do the endpoints of a Service.
package budget

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/input"
)

// saved is for how much time a namespace can save its share.
const saved = 10 * time.Second

// A Compiler compiles within the budget of each namespace. It is for one goroutine.
type Compiler struct {
	*ingress.Compiler

	now   func() time.Time
	last  map[string]input.Objects // by cluster: the objects of the last Result
	spent map[party]account
}

// A party is a namespace of a cluster.
type party struct{ cluster, namespace string }

// An account says how much time the changes of a party have taken, as of a moment. The party pays it back
// with its share of the time that passes.
type account struct {
	took time.Duration
	at   time.Time
}

// New returns a Compiler that compiles with another one, and measures the time that takes.
func New(c *ingress.Compiler) *Compiler {
	return &Compiler{Compiler: c, now: time.Now, spent: make(map[party]account)}
}

// Compile returns the Result of snapshots, as ingress.Compiler.Compile does. Objects of a namespace that has
// used up its budget may be as they were at the last call. Each such namespace has a Problem.
func (c *Compiler) Compile(snaps []input.Snapshot) ingress.Result {
	over := c.over(snaps, c.now())
	if len(over) == 0 {
		return c.compile(snaps)
	}
	held, waiting := c.hold(snaps, func(p party) bool { return over[p] })
	r := c.compile(held)
	for _, p := range slices.SortedFunc(maps.Keys(waiting), party.compare) {
		next, _ := c.hold(snaps, func(q party) bool { _, waits := waiting[q]; return waits && q != p })
		if amended, ok := c.Amend(next); ok {
			r = amended
			c.remember(next)
			delete(waiting, p)
		}
	}
	r.Problems = slices.Clip(r.Problems)
	for _, p := range slices.SortedFunc(maps.Keys(waiting), party.compare) {
		r.Problems = append(r.Problems, input.Problem{
			ObjectRef: waiting[p], Reason: "LimitReached",
			Why: fmt.Sprintf("the last changes of namespace %s are not in effect yet: they make all routes anew, and "+
				"the namespace has used up its share of the time for that (clusters[].ingress.limits.routing); they "+
				"take effect within seconds: make several changes at once, and fewer of regular expressions, wildcard "+
				"hosts, Gateways and exports", p.namespace),
		})
	}
	return r
}

// compile compiles snapshots, and charges the namespaces that have changed if the whole routing was made.
func (c *Compiler) compile(snaps []input.Snapshot) ingress.Result {
	start := c.now()
	r := c.Compiler.Compile(snaps)
	if end := c.now(); c.Whole() && c.last != nil {
		_, changed := c.hold(snaps, func(p party) bool { return p.namespace != "" })
		for p := range changed {
			if share := shareOf(p, snaps); share > 0 {
				c.spent[p] = account{c.owes(p, share, end) + end.Sub(start), end}
			}
		}
	}
	c.remember(snaps)
	return r
}

// remember notes the objects of the last Result.
func (c *Compiler) remember(snaps []input.Snapshot) {
	c.last = make(map[string]input.Objects, len(snaps))
	for _, s := range snaps {
		c.last[s.Cluster] = s.Objects
	}
}

// shareOf returns the share of a party in per cent. It returns 0 if the party has no bound. That is so if its
// cluster has no bound, is one tenant, or is not among the snapshots.
func shareOf(p party, snaps []input.Snapshot) int {
	i := slices.IndexFunc(snaps, func(s input.Snapshot) bool { return s.Cluster == p.cluster })
	if i < 0 || snaps[i].Options.OneTenant {
		return 0
	}
	return snaps[i].Options.Limits.Routing
}

// owes returns how much time a party has taken by now beyond what it has paid back with its share.
func (c *Compiler) owes(p party, share int, now time.Time) time.Duration {
	a := c.spent[p]
	return max(a.took-part(now.Sub(a.at), share), 0)
}

// over returns the parties that have used up their budget. It forgets those that owe nothing.
func (c *Compiler) over(snaps []input.Snapshot, now time.Time) map[party]bool {
	all := make(map[party]bool)
	for p := range c.spent {
		share := shareOf(p, snaps)
		switch owes := c.owes(p, share, now); {
		case share == 0 || owes == 0:
			delete(c.spent, p)
		case owes > part(saved, share):
			all[p] = true
		}
	}
	return all
}

// part returns a share of a time, in per cent. The time may be the longest one there is.
func part(of time.Duration, share int) time.Duration { return of / 100 * time.Duration(share) }

// hold returns snapshots with the objects of some parties as they were at the last call. EndpointSlices are
// never held. For each of these parties that differs, changed has one of the objects.
func (c *Compiler) hold(snaps []input.Snapshot, some func(party) bool) (
	held []input.Snapshot, changed map[party]input.ObjectRef,
) {
	held, changed = slices.Clone(snaps), make(map[party]input.ObjectRef)
	sums := make(input.Sums)
	for i := range held {
		s := &held[i]
		last, known := c.last[s.Cluster]
		if !known {
			continue
		}
		endpoints := s.Slices
		s.Objects = s.WithoutSlices().Holding(last.WithoutSlices(), sums,
			func(v input.Version) bool { return some(party{s.Cluster, v.Namespace}) },
			func(v input.Version, o input.ObjectRef) bool {
				o.Cluster = s.Cluster
				changed[party{s.Cluster, v.Namespace}] = o
				return true
			})
		s.Slices = endpoints
	}
	return held, changed
}

func (p party) compare(q party) int {
	return cmp.Or(cmp.Compare(p.cluster, q.cluster), cmp.Compare(p.namespace, q.namespace))
}
