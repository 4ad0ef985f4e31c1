package ingress

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/haproxy"
)

// firstServers is how many servers of each backend get a place before any backend gets more. An
// older Service with thousands of pods therefore displaces few servers of other Services.
const firstServers = 16

// fit removes the servers beyond those that HAProxy can hold (Room). The older backends keep
// theirs: a backend is as old as the younger of its Service and the oldest Ingress that leads to
// it. So servers in use stay in use, and the newest servers wait. Parts that did not change keep
// their pointers.
func (c *Compiler) fit(parts []part, wanted int) []part {
	rest := c.Room
	c.result.Servers = wanted
	if c.Room == 0 || wanted <= c.Room {
		c.counted.fitted = nil
		return parts
	}
	needs := c.routing.needs
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(needs[a].since(), needs[b].since()), cmp.Compare(needs[a].name, needs[b].name))
	})
	places := make([]int, len(parts))
	for _, most := range []int{firstServers, wanted} {
		for _, i := range order {
			more := min(len(parts[i].backend.Servers), most) - places[i]
			more = min(max(more, 0), rest)
			places[i], rest = places[i]+more, rest-more
		}
	}
	parts = slices.Clone(parts)
	fitted := make(map[*haproxy.Backend]*haproxy.Backend)
	for i, n := range needs {
		b, count := parts[i].backend, len(parts[i].backend.Servers)
		if places[i] == count {
			continue
		}
		fitted[b] = fewer(b, places[i], c.counted.fitted[b])
		parts[i].backend = fitted[b]
		parts[i].problems = append(slices.Clip(parts[i].problems), Problem{
			ObjectRef: n.by, Reason: "NoRoom",
			Why: fmt.Sprintf("HAProxy holds at most %d servers on this machine, and older Ingresses and Services "+
				"have them: %d of %d servers of %s wait; \"sallyport status\" shows how to make room",
				c.Room, count-places[i], count, b.Origin),
		})
	}
	c.counted.fitted = fitted
	return parts
}

// fewer returns a backend with only the first servers. It returns before if that has the same
// number of servers.
func fewer(b *haproxy.Backend, servers int, before *haproxy.Backend) *haproxy.Backend {
	if before != nil && len(before.Servers) == servers {
		return before
	}
	less := *b
	less.Servers = b.Servers[:servers:servers]
	return &less
}
