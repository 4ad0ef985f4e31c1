package appliance

import (
	"context"
	"reflect"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/routes/address"
)

// guardEvery is the time after which the same rules for the ports of the group are set again: an
// administrator who loads a firewall may remove the rules of all other programs.
const guardEvery = time.Minute

// guarded holds the rules for the ports of the group that this process has set last. The goroutine of
// the loop owns it.
type guarded struct {
	of  address.Guard
	at  time.Time // when they were set; zero if they never were
	err error     // why they could not be set
}

// guardOf returns the rules for the ports of a group: which machines may send to them.
func guardOf(g *config.Group) (guard address.Guard) {
	if g.Share && len(g.Members) > 1 {
		guard.Port = g.Port
		for _, m := range g.Members {
			guard.Members = append(guard.Members, m.Address)
		}
	}
	if g.Upstream.BFD != (config.BFD{}) {
		guard.BFD = config.BFDPort
		for _, r := range g.Upstream.Peers {
			guard.Routers = append(guard.Routers, r.Address)
		}
	}
	return guard
}

// guardPorts keeps the rules for the ports of the group in the kernel, and returns their troubles.
// A failure opens no port that was shut before.
func (ms *membership) guardPorts(ctx context.Context, now time.Time) (all []status.Finding) {
	p, want := &ms.guarded, guardOf(&ms.member.of)
	if again := now.Sub(p.at) >= guardEvery; p.at.IsZero() || again || !reflect.DeepEqual(want, p.of) {
		was := p.err
		p.of, p.at, p.err = want, now, ms.chance.Guard(context.WithoutCancel(ctx), want)
		if p.err != nil && (was == nil || was.Error() != p.err.Error()) {
			ms.log.Warn("the ports of the group are not guarded", "err", p.err)
		}
	}
	if p.err != nil {
		all = append(all, status.Finding{Code: status.GroupPorts, Level: status.Doubt, Saw: p.err.Error()})
	}
	return all
}
