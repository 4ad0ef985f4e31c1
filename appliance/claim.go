package appliance

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sallyport/routes"
	"sallyport/routes/address"
)

// A probe asks who else has one of the addresses. The real one is address.Probe; tests
// replace it with a fake.
type probe func(ctx context.Context, addresses, members []netip.Addr) (map[netip.Addr]address.Owner, error)

const (
	// claimAgain is the time after which an address is asked for again that another machine
	// has, or that nobody could ask for.
	claimAgain = 10 * time.Second
	// claimWatch is the time after which the addresses that this machine has are asked for
	// again: another machine may have come.
	claimWatch = time.Minute
)

// claims keeps this appliance from an address that another machine in its networks
// has. An appliance asks before it takes an address for the first time. Once it has the
// address it keeps it, and only reports who else answers: otherwise any neighbour could end
// the service. Owned by the goroutine of the loop.
type claims struct {
	taken  map[netip.Addr]bool
	owners map[netip.Addr]address.Owner // who else had an address at the last probe
	err    error                        // of the last probe
	at     time.Time                    // of the last probe; zero: there was none
	answer chan claimed                 // of the probe under way; nil: none is
}

type claimed struct {
	owners map[netip.Addr]address.Owner
	err    error
}

// claim returns those of the group's addresses that this appliance may take. A probe
// takes seconds: it runs beside the rounds, and knocks when it ends.
func (l *loop) claim(ctx context.Context, now time.Time, local routes.Local) []netip.Addr {
	g, c := &l.member.of, &l.member.claims
	if c.taken == nil {
		c.taken = map[netip.Addr]bool{}
	}
	select {
	case a := <-c.answer:
		c.answer, c.owners, c.err = nil, a.owners, a.err
		for _, a := range g.Addresses {
			if _, has := c.owners[a]; !has && c.err == nil {
				c.taken[a] = true
			}
		}
	default:
	}
	var all []netip.Addr
	for _, a := range g.Addresses {
		// An earlier process has taken it.
		c.taken[a] = c.taken[a] || slices.Contains(local.Addrs, a)
		if c.taken[a] {
			all = append(all, a)
		}
	}
	again := claimWatch
	if len(all) < len(g.Addresses) {
		again = claimAgain
	}
	if c.answer == nil && (c.at.IsZero() || now.Sub(c.at) >= again) {
		c.at, c.answer = now, make(chan claimed, 1)
		probe, answer, addresses, members := l.probe, c.answer, g.Addresses, []netip.Addr(nil)
		for _, m := range g.Members {
			if m.Name != l.member.self {
				members = append(members, m.Address)
			}
		}
		go func() {
			owners, err := probe(ctx, addresses, members)
			answer <- claimed{owners, err}
			knock(l.knock)
		}()
	}
	return all
}

// problems returns a sentence for each address that another machine has.
func (c *claims) problems(addresses []netip.Addr, vrrp bool) (all []string) {
	for _, a := range addresses {
		o, has := c.owners[a]
		switch {
		case !has && c.err != nil && !c.taken[a]:
			all = append(all, fmt.Sprintf("nobody could ask whether another machine has %s, so this appliance does not take it: %v", a, c.err))
		case !has:
		case !c.taken[a]:
			all = append(all, fmt.Sprintf("another machine (%s on %s) has the service address %s, so this appliance does not take it: give that machine or the group another address", o.MAC, o.Link, a))
		case vrrp:
			all = append(all, fmt.Sprintf("another machine (%s on %s) has the service address %s too, so clients reach one or the other: give that machine or the group another address", o.MAC, o.Link, a))
		default:
			all = append(all, fmt.Sprintf("another machine (%s on %s) has the service address %s too, and this appliance cannot reach that machine: give it or the group another address", o.MAC, o.Link, a))
		}
	}
	return all
}
