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
	"sallyport/appliance/status"
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
	held  []netip.Addr // that this appliance has by VRRP
}

// cut reports whether the interface of VRRP has lost its link.
func (t *turns) cut(*status.View, bool) bool { return t.runs != nil && t.runs.Cut() }

func (t *turns) note(_ *status.View, a *status.AddressOfGroup) {
	a.VRRP = slices.Contains(t.held, a.Address)
}

func (t *turns) troubles(*status.View) []status.Finding { return nil }

// giveUp gives the addresses to the others before VRRP ends.
func (t *turns) giveUp(log *slog.Logger) {
	if t.runs == nil {
		return
	}
	if err := t.runs.Set(address.Released); err != nil {
		log.Error("keepalived may keep the addresses of the group", "err", err)
	}
}

// move tells VRRP the class of this appliance and the addresses of Services. If the group has no
// VRRP, move does nothing.
//
// An appliance that drains keeps its addresses until another member has them, provided its HAProxy
// answers.
func (t *turns) move(o *offer) error {
	t.held = nil
	if !o.of.VRRP.Exists() {
		return nil
	}
	not := slices.DeleteFunc(slices.Clone(o.of.Addresses), func(a netip.Addr) bool {
		return slices.Contains(o.mine, a)
	})
	services := slices.DeleteFunc(slices.Clone(o.mine), func(a netip.Addr) bool {
		return slices.Contains(o.of.Addresses, a)
	})
	if t.runs != nil && !slices.Equal(not, t.not) {
		t.end()
		t.runs, t.tried = nil, time.Time{}
	}
	if len(not) == len(o.of.Addresses) {
		return nil
	}
	if t.runs == nil {
		if !t.tried.IsZero() && o.now.Sub(t.tried) < vrrpRetry {
			return t.err
		}
		t.tried, t.not = o.now, not
		if t.runs, t.end, t.err = t.start(not, services); t.err != nil {
			t.end()
			t.runs = nil
			return t.err
		}
	}
	err := errors.Join(t.runs.Set(priority(o.class, o.draining && o.answers)), t.runs.Serve(services))
	held, failed := t.runs.Held()
	t.held = held
	return errors.Join(err, failed)
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
