package ingress

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"sallyport/haproxy"
)

// Each namespace has a limit for the clients in all its tables of rate limits, and a limit for the
// checks of all its servers. If a namespace asks for more, each of its Ingresses gets less, but
// more than nothing: a rate limit that counts fewer clients still limits, and a server that is
// checked less often is still checked.

// tables returns the tables of all needs, sorted by name, with each once. Those of a namespace
// that would count more clients than its limit share the limit.
func (b *builder) tables() (all []haproxy.Table) {
	owners := make(map[string]*need) // by the table's name
	asked := make(map[tenant][]int)  // sizes
	for i := range b.needs {
		n := &b.needs[i]
		for _, t := range n.settings.Tables {
			if owners[t.Name] != nil {
				continue // the backends of one Ingress count in one table, which they all bring
			}
			owners[t.Name], all = n, append(all, t)
			if n.settings.By != nil { // else it is of the operator's ConfigMap alone
				asked[n.payer()] = append(asked[n.payer()], t.Size)
			}
		}
	}
	most := make(map[tenant]int, len(asked))
	for of, sizes := range asked {
		most[of] = level(sizes, b.worlds[of.World].Options.Limits.Clients)
	}
	for i := range all {
		t, n := &all[i], owners[all[i].Name]
		if n.settings.By == nil || t.Size <= most[n.payer()] {
			continue
		}
		t.Size = most[n.payer()]
		b.reportOn(n.settings.By.Ref, "LimitReached",
			"the Ingresses of namespace %s ask for limits that count more than %d clients together "+
				"(clusters[].ingress.limits.clients): this one counts fewer clients than it asks for, and limits "+
				"all the same; set a smaller rate-limit-size where fewer clients are enough",
			n.settings.By.Ref.Namespace, b.worlds[n.world].Options.Limits.Clients)
	}
	slices.SortFunc(all, func(a, b haproxy.Table) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// payer returns the namespace that the keys of a need count against: the namespace of their
// claimant.
func (n *need) payer() tenant { return tenant{World: n.world, Namespace: n.settings.By.Ref.Namespace} }

// level returns a bound for each size, so that the sum is at most most. Small sizes stay as they
// are, and the others get equal shares of the rest. If most is 0, there is no bound.
func level(sizes []int, most int) int {
	if most == 0 {
		return math.MaxInt
	}
	sizes = slices.Sorted(slices.Values(sizes))
	for i, size := range sizes {
		share := most / (len(sizes) - i)
		if size > share {
			return max(share, 1)
		}
		most -= size
	}
	return math.MaxInt
}

// costOfTLS is how many checks without TLS one check with TLS takes as long as.
const costOfTLS = 10

// checksOf returns how many checks the servers of a backend take in 1,000 seconds, while all of
// them are up.
func checksOf(b *haproxy.Backend) int {
	if !b.Options.Check {
		return 0
	}
	checks := len(b.Servers)
	if b.Options.TLS {
		checks *= costOfTLS
	}
	return checks * int(1000*time.Second/b.Options.Interval())
}

// pace returns the parts with longer times between the checks of each namespace that would take
// more checks than its limit. The times are doubled, as often as it takes: a new server seldom
// changes them, which would take a reload. Parts that did not change come back with the same
// pointers.
func (c *Compiler) pace(parts []part) []part {
	slower := make(map[tenant]int)
	for of, checks := range c.counted.checks {
		most := c.worlds[of.World].Options.Limits.Checks
		for f := 1; most > 0 && checks > f*most*1000; f *= 2 {
			slower[of] = 2 * f
		}
	}
	if len(slower) == 0 { // as nearly always: nobody looks at every part
		c.counted.paced = nil
		return parts
	}
	paced := make(map[*haproxy.Backend]*haproxy.Backend)
	told := make(map[tenant]bool)
	parts = slices.Clone(parts)
	for i := range c.routing.needs {
		n, b := &c.routing.needs[i], parts[i].backend
		times := 0
		for _, world := range sharers(c.worlds, n) {
			times = max(times, slower[tenant{World: world, Namespace: n.Service.Namespace}])
		}
		if times == 0 || !b.Options.Check {
			continue
		}
		paced[b] = c.counted.paced[b]
		if paced[b] == nil || paced[b].Options.Slower != times {
			one := *b
			one.Options.Slower = times
			paced[b] = &one
		}
		parts[i].backend = paced[b]
		if !told[n.tenant()] {
			told[n.tenant()] = true
			parts[i].problems = append(slices.Clip(parts[i].problems), Problem{
				ObjectRef: n.ref(b.Cluster), Reason: "LimitReached",
				Why: fmt.Sprintf("the servers of namespace %s would take more than %d checks a second "+
					"(clusters[].ingress.limits.checks): the time between two checks of each is %d times as long; "+
					"set a longer check-interval",
					n.Service.Namespace, c.worlds[n.world].Options.Limits.Checks, times),
			})
		}
	}
	c.counted.paced = paced
	return parts
}
