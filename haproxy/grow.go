package haproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// HAProxy since 3.4 adds and removes backends by command. A backend that "add backend"
// makes of the section of its class is, after the next reload, an ordinary backend of the
// file: nothing else tells the two apart. So the worker counts as one that has loaded it,
// and the variable proc.shape in the worker says so. Nobody has to remember it.
//
// If we crash after a command and before proc.shape changes, the next process finds a worker
// of another configuration, or one that lost a backend, and reloads.

// grow notes the backends of want that "add backend" brings: the worker, which has loaded
// the backends of have, has neither them nor others of their names, and knows their
// classes.
func (r *running) grow(want *outline, have *Config) {
	r.added = nil
	for _, f := range want.backends {
		if name := f.of.Name; r.backends.Get(name) == nil && find(have.Backends, name) == nil && slices.Contains(r.classes, f.class()) {
			r.added = append(r.added, f)
		}
	}
	if len(r.added) == 0 {
		return
	}
	empty := make(map[string]*LiveBackend, len(r.added))
	for _, f := range r.added {
		empty[f.of.Name] = &LiveBackend{}
	}
	r.backends = r.backends.With(empty)
}

// grown returns have with the backends that grow noted.
func (r *running) grown(have *Config) *Config {
	if len(r.added) == 0 {
		return have
	}
	out := *have
	out.Backends = slices.Clone(have.Backends)
	for _, f := range r.added {
		out.Backends = append(out.Backends, f.of)
	}
	slices.SortFunc(out.Backends, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
	return &out
}

// grows reports whether the worker gets to all of want by commands.
func (p *Proxy) grows(want *outline) bool {
	cfg, states := within(want.cfg, want.states(), p.belief.run.grown(p.belief.shaped), nil, held{})
	return p.text.outline(cfg, states, nil).shape == want.shape
}

// lost returns a backend that the worker has loaded and does not have: something failed while
// it was removed. Only a worker that has just been read can be such a one.
func (p *Proxy) lost(want *outline) string {
	if len(p.belief.run.classes) == 0 || p.belief.run.told != nil {
		return ""
	}
	var loaded []*Backend
	switch p.belief.run.shape {
	case want.shape:
		loaded = want.cfg.Backends
	case p.belief.shapeID:
		loaded = p.belief.shaped.Backends
	}
	for _, b := range loaded {
		if p.belief.run.backends.Get(b.Name) == nil {
			return b.Name
		}
	}
	return ""
}

// additions returns the commands that bring the backends that grow noted. No request
// reaches a backend before it is published.
func (r *running) additions() []string {
	cmds := make([]string, len(r.added))
	for i, f := range r.added {
		cmds[i] = "add backend " + f.of.Name + " from " + className + f.class() + ";publish backend " + f.of.Name
	}
	return cmds
}

// reshape notes, in the worker too, that the worker now has the shape of an outline, and is
// ahead of the files.
func (p *Proxy) reshape(o *outline) error {
	if err := p.worker.tell(append(generationIs(ahead), "set var proc.shape str("+o.shape+")")); err != nil {
		return err
	}
	p.belief.reshaped(o, time.Now())
	return nil
}

// shrink removes backends without servers from the worker: those that want lacks, if no
// route leads there any more, and those that can be added again with new settings. HAProxy
// keeps a backend while a request is under way in it.
func (p *Proxy) shrink(want *outline) error {
	if !p.belief.ready || p.belief.told == nil || p.belief.told.cfg != p.belief.shaped {
		return nil
	}
	used := map[string]bool{p.belief.told.cfg.DefaultBackend: true}
	for _, r := range p.belief.told.cfg.Routes {
		used[r.Backend], used[r.Canary] = true, true
	}
	for _, b := range want.cfg.Former {
		used[b.Name] = true
	}
	wanted := make(map[string]*fragment, len(want.backends))
	for _, f := range want.backends {
		wanted[f.of.Name] = f
	}
	var leave []*Backend
	for _, b := range p.belief.shaped.Backends {
		f, live := wanted[b.Name], p.belief.run.backends.Get(b.Name)
		if live == nil || len(live.Servers) > 0 {
			continue
		}
		if f == nil && !used[b.Name] || f != nil && !f.of.sameShape(b) && slices.Contains(p.belief.run.classes, f.class()) {
			leave = append(leave, b)
		}
	}
	gone, err := p.worker.removeBackends(leave)
	if err != nil || len(gone) == 0 {
		return err
	}
	left, states := *p.belief.shaped, States(nil)
	left.Backends = nil
	for _, f := range p.belief.told.backends {
		if !gone[f.of.Name] {
			left.Backends, states = append(left.Backends, f.of), append(states, f.states)
		}
	}
	o := p.text.outline(&left, states, nil)
	if err := p.reshape(o); err != nil {
		return err
	}
	p.schedule.waitAnew() // a reload is for those that HAProxy keeps
	without := make(map[string]*LiveBackend, len(gone))
	for name := range gone {
		without[name] = nil
	}
	p.belief.changed(without)
	return nil
}

// removeBackends removes backends as far as HAProxy lets them go, and returns the names of
// those that are gone.
func (w worker) removeBackends(all []*Backend) (gone map[string]bool, err error) {
	cmds := make([]string, len(all))
	for i, b := range all {
		// One that HAProxy keeps takes requests as before.
		cmds[i] = "unpublish backend " + b.Name + ";del backend " + b.Name + ";publish backend " + b.Name
	}
	gone = make(map[string]bool)
	n := 0
	for batch := range batches(cmds) {
		answer, _, err := w.ask(strings.Join(batch, ";"))
		if err != nil {
			return nil, err
		}
		said := verdicts(answer)
		if len(said) != 3*len(batch) {
			return nil, fmt.Errorf("HAProxy's worker: %d answers to the removal of %d backends", len(said), len(batch))
		}
		for i := range batch {
			if strings.HasPrefix(said[3*i+1], "Backend deleted") {
				gone[all[n].Name] = true
			}
			n++
		}
	}
	return gone, nil
}
