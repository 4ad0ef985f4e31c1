package appliance

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/routes/address"
)

// vrrp is keepalived. address.VRRP implements it; tests use a fake.
type vrrp interface {
	Set(address.Priority) error
	Serve(services []netip.Addr) error
	Held() ([]netip.Addr, error)
	Cut() bool
}

// vrrpRetry is the time after which keepalived is tried again if it is missing, or rejects
// its configuration.
const vrrpRetry = 10 * time.Second

// turns is the VRRP of this member. The goroutine of the loop owns it.
type turns struct {
	start func(not, services []netip.Addr) (vrrp, func(), error)
	runs  vrrp         // nil while VRRP does not run
	end   func()       // ends runs
	not   []netip.Addr // the addresses that runs leaves out
	tried time.Time    // when it was started last
	err   error        // why it does not run
}

// cut reports whether the interface of VRRP has lost its link.
func (t *turns) cut() bool { return t.runs != nil && t.runs.Cut() }

// giveUp gives the addresses to the others before VRRP ends.
func (t *turns) giveUp(log *slog.Logger) {
	if t.runs == nil {
		return
	}
	if err := t.runs.Set(address.Released); err != nil {
		log.Error("keepalived may keep the addresses of the group", "err", err)
	}
}

// takeTurns tells VRRP the class of this appliance and the addresses of Services, and returns the
// addresses that this appliance has by VRRP. If the group has no VRRP, takeTurns does nothing. mine
// are the addresses that this appliance may take: those of the group, and those of Services.
//
// An appliance that drains keeps its addresses until another member has them, provided its HAProxy
// answers.
func (ms *membership) takeTurns(now time.Time, mine []netip.Addr, draining, answers bool) ([]netip.Addr, error) {
	m := ms.member
	if !m.of.VRRP.Exists() {
		return nil, nil
	}
	t := &m.turns
	not := slices.DeleteFunc(slices.Clone(m.of.Addresses), func(a netip.Addr) bool { return slices.Contains(mine, a) })
	services := slices.DeleteFunc(slices.Clone(mine), func(a netip.Addr) bool {
		return slices.Contains(m.of.Addresses, a)
	})
	if t.runs != nil && !slices.Equal(not, t.not) {
		t.end()
		t.runs, t.tried = nil, time.Time{}
	}
	if len(not) == len(m.of.Addresses) {
		return nil, nil
	}
	if t.runs == nil {
		if !t.tried.IsZero() && now.Sub(t.tried) < vrrpRetry {
			return nil, t.err
		}
		t.tried = now
		t.not = not
		if t.runs, t.end, t.err = t.start(not, services); t.err != nil {
			t.end()
			t.runs = nil
			return nil, t.err
		}
	}
	err := errors.Join(t.runs.Set(priority(ms.fit.Class, draining && answers)), t.runs.Serve(services))
	held, failed := t.runs.Held()
	return held, errors.Join(err, failed)
}

// priority returns the VRRP priority of an appliance with a class. waits is true if it drains and
// its HAProxy still answers.
func priority(c group.Class, waits bool) address.Priority {
	switch {
	case c == group.Full:
		return address.Normal
	case c == group.Spare:
		return address.Lower
	case waits:
		return address.Lowest
	}
	return address.Released
}

// vrrpOptions returns the options of package address for a configuration with VRRP.
func vrrpOptions(cfg *config.Config, not []netip.Addr) address.VRRPOptions {
	g := &cfg.Group
	o := address.VRRPOptions{
		Folder: filepath.Join(cfg.HAProxy.RunDir, "vrrp"), Interface: g.VRRP.Interface, ID: g.VRRP.ID,
		Interval: g.VRRP.Interval, Addresses: g.Addresses, Not: not,
	}
	for _, m := range g.Members {
		o.Members = append(o.Members, m.Address)
		if m.Name == cfg.Identity {
			o.Self = m.Address
		}
	}
	return o
}
