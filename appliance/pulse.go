package appliance

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
)

// A latePulse is a heartbeat. Its socket may not open at first, because the machine may get the
// member's address later. Until then no member is heard.
type latePulse struct {
	members []config.Member // without this one
	opened  time.Time
	value   atomic.Pointer[group.Pulse]
	why     atomic.Pointer[error]
	changed chan struct{}
}

// run tries until the socket opens, and then beats. It gives up when ctx ends.
func (p *latePulse) run(ctx context.Context, open func() (*group.Pulse, error), failed func(error)) {
	for ctx.Err() == nil {
		pulse, err := open()
		if err == nil {
			p.value.Store(pulse)
			p.why.Store(nil)
			go relay(ctx, pulse.Changed(), p.changed)
			knock(p.changed)
			err = pulse.Run(ctx)
			p.value.Store(nil)
		}
		if ctx.Err() != nil {
			return
		}
		p.why.Store(&err)
		failed(err)
		knock(p.changed)
		select {
		case <-ctx.Done():
		case <-time.After(reopen):
		}
	}
}

func (p *latePulse) Say(w group.Word) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Say(w)
	}
}

func (p *latePulse) Ask(asks bool) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Ask(asks)
	}
}

func (p *latePulse) Tell(text string) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Tell(text)
	}
}

func (p *latePulse) Order(text string) {
	if pulse := p.value.Load(); pulse != nil {
		pulse.Order(text)
	}
}

func (p *latePulse) Heard() (all []group.Heard) {
	if pulse := p.value.Load(); pulse != nil {
		return pulse.Heard()
	}
	problem := ""
	if why := p.why.Load(); why != nil && *why != nil {
		problem = fmt.Sprintf("This appliance hears nobody: %s.", *why)
	}
	for _, m := range p.members {
		all = append(all, group.Heard{Member: group.Member(m), Age: time.Since(p.opened), Problem: problem})
	}
	return all
}

func (p *latePulse) Changed() <-chan struct{} { return p.changed }

// newPulse returns the heartbeat of a member, and a function that waits until the heartbeat has
// ended after ctx. In a group with one member the heartbeat does nothing.
func newPulse(ctx context.Context, cfg *config.Config, failed func(error)) (p *latePulse, wait func()) {
	p = &latePulse{opened: time.Now(), changed: make(chan struct{}, 1)}
	o := group.Options{Self: cfg.Identity, Secret: cfg.Group.Key(), Port: cfg.Group.Port}
	for _, m := range cfg.Group.Members {
		o.Members = append(o.Members, group.Member(m))
		if m.Name != cfg.Identity {
			p.members = append(p.members, m)
		}
	}
	if len(p.members) == 0 {
		return p, func() {}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx, func() (*group.Pulse, error) { return group.Listen(o) }, failed)
	}()
	return p, func() { <-ended }
}
