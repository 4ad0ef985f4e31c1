package haproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// HAProxy since 3.4 adds and removes backends by command. "add backend" makes a backend of the
// section of its class. After the next reload it is an ordinary backend of the file, and nothing
// else distinguishes it from such a backend. The worker therefore counts as having loaded it, and
// the variable proc.shape in the worker is changed to that effect. No process has to remember the
// added backends.
//
// If we crash after a command and before proc.shape changes, the next process finds a worker
// of another configuration, or one that lost a backend, and reloads.

// additions are the backends that the next commands add.
type additions []*fragment

func (a additions) names() workerNames                    { return nil }
func (a additions) vacant(_ *Config, _ LiveBackends) bool { return false }

// recognise recognises nothing: a backend that was added counts as loaded.
func (a additions) recognise(_ *outline, _ string, _ func(*Config) string) (*Config, placing) {
	return nil, nil
}

// place returns the backends of want that "add backend" can add. The worker has no backends of
// their names, and has loaded their classes.
func (a additions) place(want *outline, have *Config, worker picture) (placing, LiveBackends) {
	added, empty := additions(nil), map[string]*LiveBackend{}
	for _, f := range want.backends {
		name := f.of.Name
		if worker.backends.Get(name) == nil && find(have.Backends, name) == nil &&
			slices.Contains(worker.classes, f.class()) {
			added, empty[name] = append(added, f), &LiveBackend{}
		}
	}
	return added, worker.backends.With(empty)
}

func (a additions) loaded(have *Config) *Config {
	more := make([]*Backend, len(a))
	for i, f := range a {
		more[i] = f.of
	}
	return have.withBackends(more)
}

// grows reports whether commands can give the worker all of want.
func (p *Proxy) grows(want *outline) bool {
	if len(p.belief.run.places.commands()) == 0 {
		return false
	}
	cfg, states := within(want.cfg, want.states(), p.belief.loaded(), nil, held{})
	return p.text.outline(cfg, states).shape == want.shape
}

// lost returns a backend that the worker has loaded, but no longer has, because an error
// interrupted its removal. It looks only if the worker has just been read.
func (b *belief) lost(want *outline) string {
	if !b.run.addsBackends() || b.run.told != nil {
		return ""
	}
	var loaded []*Backend
	switch b.run.shape {
	case want.shape:
		loaded = want.cfg.Backends
	case b.shapeID:
		loaded = b.shaped.Backends
	}
	for _, one := range loaded {
		if b.run.backends.Get(one.Name) == nil {
			return one.Name
		}
	}
	return ""
}

// commands adds the backends. No request reaches a backend before it is published.
func (a additions) commands() []string {
	cmds := make([]string, len(a))
	for i, f := range a {
		cmds[i] = "add backend " + f.of.Name + " from " + className + f.class() + ";publish backend " + f.of.Name
	}
	return cmds
}

// reshape notes that the worker now has the shape of an outline, and is ahead of the files. It also
// sets proc.shape and proc.gen in the worker.
func (p *Proxy) reshape(o *outline) error {
	if err := p.worker.tell(append(generationIs(ahead), "set var proc.shape str("+o.shape+")")); err != nil {
		return err
	}
	p.belief.reshaped(o, time.Now())
	return nil
}

// leaving returns backends without servers: those that want lacks, if no route leads to them any
// more, and those that can be added again with new settings.
func (a additions) leaving(want, told *outline, have *Config, worker picture) (leave []*Backend) {
	used := map[string]bool{told.cfg.DefaultBackend: true}
	for _, r := range told.cfg.Routes {
		for name := range told.cfg.Targets(r) {
			used[name] = true
		}
	}
	for _, b := range want.cfg.Former {
		used[b.Name] = true
	}
	wanted := make(map[string]*fragment, len(want.backends))
	for _, f := range want.backends {
		wanted[f.of.Name] = f
	}
	for _, b := range have.Backends {
		f, live := wanted[b.Name], worker.backends.Get(b.Name)
		if live == nil || len(live.Servers) > 0 {
			continue
		}
		if f == nil && !used[b.Name] || f != nil && !f.of.sameShape(b) && slices.Contains(worker.classes, f.class()) {
			leave = append(leave, b)
		}
	}
	return leave
}

// removeBackends removes the backends that HAProxy can remove now, and returns their names.
func (w worker) removeBackends(all []*Backend) (gone map[string]bool, err error) {
	cmds := make([]string, len(all))
	for i, b := range all {
		// A backend that HAProxy keeps takes requests as before.
		cmds[i] = "unpublish backend " + b.Name + ";del backend " + b.Name + ";publish backend " + b.Name
	}
	gone = make(map[string]bool)
	n := 0
	for batch := range batches(cmds) {
		answer, err := w.ask(strings.Join(batch, ";"))
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
