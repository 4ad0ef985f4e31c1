package appliance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sallyport/appliance/status"
	"sallyport/ingress"
	"sallyport/routes"
	"sallyport/routes/address"
)

// A probe asks which other machines have one of the addresses. address.Probe implements it; tests
// use a fake.
type probe func(ctx context.Context, addresses, members []netip.Addr) (map[netip.Addr]address.Owner, error)

const (
	// claimAgain is the time after which an address is probed again, if another machine has it or
	// the probe failed.
	claimAgain = 10 * time.Second
	// claimWatch is the time after which the addresses of this machine are probed again, because
	// another machine may have taken one meanwhile.
	claimWatch = time.Minute
)

// claims keeps this appliance from an address that another machine in its networks has. An
// appliance asks before it takes an address for the first time. Once it has the address, it keeps
// the address and only reports other machines that answer: otherwise any neighbour could end the
// service. The goroutine of the loop owns the claims.
type claims struct {
	taken  map[netip.Addr]bool
	owners map[netip.Addr]address.Owner // other machines that had an address in the last probe
	asked  map[netip.Addr]bool          // addresses of the last probe
	err    error                        // of the last probe
	at     time.Time                    // of the last probe; zero before the first
	answer chan claimed                 // of the running probe; nil if no probe runs
}

type claimed struct {
	asked  []netip.Addr
	owners map[netip.Addr]address.Owner
	err    error
}

// claim returns those of the wanted addresses that this appliance may take. A probe
// takes seconds: it runs beside the rounds, and knocks when it ends.
func (ms *membership) claim(ctx context.Context, now time.Time, wanted []netip.Addr, local routes.Local) []netip.Addr {
	c := &ms.member.claims
	c.learn()
	want := make(map[netip.Addr]bool, len(wanted))
	for _, a := range wanted {
		want[a] = true
	}
	maps.DeleteFunc(c.taken, func(a netip.Addr, _ bool) bool { return !want[a] })
	var all []netip.Addr
	again, fresh := claimWatch, false
	for _, a := range wanted {
		// An earlier process has taken it.
		if c.taken[a] || slices.Contains(local.Addrs, a) {
			c.taken[a] = true
			all = append(all, a)
			continue
		}
		again = claimAgain
		fresh = fresh || !c.asked[a]
	}
	// The probe includes the addresses that strangers have, because they are not in wanted once the
	// Service has another address.
	ask := once(slices.AppendSeq(slices.Clone(wanted), maps.Keys(c.owners)), netip.Addr.Compare)
	if c.answer == nil && len(ask) > 0 && (fresh || now.Sub(c.at) >= again) {
		ms.ask(ctx, now, ask)
	}
	return all
}

// learn takes over the result of a probe.
func (c *claims) learn() {
	if c.taken == nil {
		c.taken, c.owners = map[netip.Addr]bool{}, map[netip.Addr]address.Owner{}
	}
	select {
	case a := <-c.answer:
		c.answer, c.err, c.asked = nil, a.err, map[netip.Addr]bool{}
		for _, at := range a.asked {
			c.asked[at] = true
			if a.err != nil {
				continue
			}
			owner, has := a.owners[at]
			if delete(c.owners, at); has {
				c.owners[at] = owner
			} else {
				c.taken[at] = true
			}
		}
	default:
	}
}

// ask starts a probe.
func (ms *membership) ask(ctx context.Context, now time.Time, addresses []netip.Addr) {
	c := &ms.member.claims
	c.at, c.answer = now, make(chan claimed, 1)
	probe, answer, members := ms.probe, c.answer, []netip.Addr(nil)
	for _, m := range ms.member.of.Members {
		if m.Name != ms.member.self {
			members = append(members, m.Address)
		}
	}
	go func() {
		owners, err := probe(ctx, addresses, members)
		answer <- claimed{addresses, owners, err}
		knock(ms.knock)
	}()
}

// strangers returns the addresses that this appliance does not take, each with its owner.
func (m *member) strangers() map[netip.Addr]string {
	if m == nil {
		return nil
	}
	all := make(map[netip.Addr]string)
	for a, o := range m.claims.owners {
		if !m.claims.taken[a] {
			all[a] = fmt.Sprintf("an address of another machine (%s on %s)", o.MAC, o.Link)
		}
	}
	return all
}

// troubles returns a finding for each address that another machine has, or that could not be
// probed.
func (c *claims) troubles(addresses []netip.Addr, balancers []ingress.Balancer, vrrp bool) (all []status.Finding) {
	for _, a := range addresses {
		add := func(remedy, format string, args ...any) {
			all = append(all, status.Finding{
				Code: status.AddressClaimed, Subject: a.String(), Level: status.Doubt,
				Saw: fmt.Sprintf(format, args...), Remedy: remedy,
			})
		}
		what, whose := fmt.Sprintf("the service address %s", a), "the group"
		if i := slices.IndexFunc(balancers, func(b ingress.Balancer) bool {
			return slices.Contains(b.Addresses, a)
		}); i >= 0 {
			of := balancers[i].ObjectRef
			what, whose = fmt.Sprintf("the address %s of %s %s/%s", a, of.Kind, of.Namespace, of.Name), "the "+of.Kind
		}
		o, has := c.owners[a]
		remedy := "give that machine or " + whose + " another address"
		switch {
		case !has && c.err != nil && !c.taken[a]:
			add("", "nobody could ask whether another machine has %s, so this appliance does not take it: %v", a, c.err)
		case !has:
		case !c.taken[a]:
			add(remedy, "another machine (%s on %s) has %s, so this appliance does not take it", o.MAC, o.Link, what)
		case vrrp:
			add(remedy, "another machine (%s on %s) has %s too, so clients reach one or the other", o.MAC, o.Link, what)
		default:
			add(remedy, "another machine (%s on %s) has %s too, and this appliance cannot reach that machine", o.MAC,
				o.Link, what)
		}
	}
	return all
}
