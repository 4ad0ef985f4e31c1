package haproxy

import (
	"errors"
	"maps"
	"slices"
	"strings"
)

// A placing has the backends that the worker got without loading them from the files, so that new
// ones need no reload. For HAProxy before 3.4 they are in spare backends (spares), and HAProxy
// since 3.4 adds them by command (additions). The rest of the package uses only this interface. A
// placing never changes: place returns a new placing.
type placing interface {
	// place finds places for the backends of want that the worker lacks, and frees the places that
	// nobody needs any more. The worker has loaded the backends of have. place returns the backends
	// of the worker by the names that they then have in a Config.
	place(want *outline, have *Config, worker picture) (placing, LiveBackends)
	// vacant reports whether place would free something.
	vacant(want *Config, backends LiveBackends) bool
	// leaving returns the backends of have that want does not need, and that a command can remove.
	leaving(want, told *outline, have *Config, worker picture) []*Backend
	// loaded returns have with the backends that have places.
	loaded(have *Config) *Config
	// names returns the backends that have another name in the worker.
	names() workerNames
	// commands returns the commands that make the places, before any other command needs them.
	commands() []string
	// recognise returns the Config that a worker of a shape has loaded, if an earlier process found
	// places in the worker for the other backends of want. It returns nil if the worker has loaded
	// another Config.
	recognise(want *outline, shape string, shapeOf func(*Config) string) (*Config, placing)
}

// placingOf returns the placing of a worker with these rows in its maps.
func placingOf(worker picture, rows map[string][]row) placing {
	if worker.addsBackends() {
		return additions(nil)
	}
	return spares{in: namesIn(rows[namesMap])}
}

// addsBackends reports whether backends come and go by command.
func (p picture) addsBackends() bool { return len(p.classes) > 0 }

// place finds places in the worker for the backends of want that it has not loaded, and frees those
// that nobody needs any more. It removes no backend that has servers.
func (p *Proxy) place(want *outline) error {
	b := &p.belief
	if b.run.shape != b.shapeID && b.run.shape != want.shape {
		b.recognise(want, func(cfg *Config) string { return p.text.outline(cfg, nil).shape })
	}
	if b.run.shape != b.shapeID || b.run.shape == want.shape && !b.run.names().active() {
		return nil
	}
	if err := p.release(want); err != nil {
		b.forgot()
		return errors.Join(err, p.knowOrNothing())
	}
	b.placed(b.run.places.place(want, b.shaped, b.run.picture))
	return nil
}

// release removes the backends that want does not need from the worker, if they go by command.
// HAProxy keeps a backend while a request is under way in it.
func (p *Proxy) release(want *outline) error {
	b := &p.belief
	if !b.ready || b.told == nil || b.told.cfg != b.shaped {
		return nil
	}
	gone, err := p.worker.removeBackends(b.run.places.leaving(want, b.told, b.shaped, b.run.picture))
	if err != nil || len(gone) == 0 {
		return err
	}
	left, states := *b.shaped, States(nil)
	left.Backends = nil
	for _, f := range b.told.backends {
		if !gone[f.of.Name] {
			left.Backends, states = append(left.Backends, f.of), append(states, f.states)
		}
	}
	if err := p.reshape(p.text.outline(&left, states)); err != nil {
		return err
	}
	p.schedule.waitAnew() // a reload is for those that HAProxy keeps
	without := make(map[string]*LiveBackend, len(gone))
	for name := range gone {
		without[name] = nil
	}
	b.changed(without)
	return nil
}

// withBackends returns a Config with more backends, which it sorts.
func (c *Config) withBackends(more []*Backend) *Config {
	if len(more) == 0 {
		return c
	}
	slices.SortFunc(more, func(a, b *Backend) int { return strings.Compare(a.Name, b.Name) })
	out, rest := *c, c.Backends
	out.Backends = make([]*Backend, 0, len(rest)+len(more))
	for _, b := range more {
		at, _ := BackendAt(rest, b.Name)
		out.Backends = append(append(out.Backends, rest[:at]...), b)
		rest = rest[at:]
	}
	out.Backends = append(out.Backends, rest...)
	return &out
}

// workerNames holds the names in the worker by the names in a Config, for backends with different
// names. A spare backend that is used up has an entry with its own name.
type workerNames map[string]string

// active reports whether a backend has another name in the worker.
func (n workerNames) active() bool {
	for name, there := range n {
		if name != there {
			return true
		}
	}
	return false
}

// of returns the name that a backend has in the worker.
func (n workerNames) of(backend string) string {
	if there, is := n[backend]; is {
		return there
	}
	return backend
}

func (n workerNames) has(backend string) bool {
	_, is := n[backend]
	return is
}

// given gives each backend of the worker its name in the Config.
func (n workerNames) given(backends LiveBackends) LiveBackends {
	moved := map[string]*LiveBackend{}
	for name, there := range n {
		if b := backends.Get(there); b != nil && name != there {
			moved[name], moved[there] = b, nil
		}
	}
	return backends.With(moved)
}

// A legend has the meaning of the names in HAProxy's statistics. It never changes.
type legend struct {
	own map[string]string // names in a Config, by names in the worker, of backends with different names
	cfg *Config           // that the worker was told; nil if it was told none
}

// publish publishes the legend for those who read HAProxy's statistics. The caller holds mu.
func (p *Proxy) publish() {
	if p.belief.run == nil {
		return
	}
	last := p.reading()
	next := legend{own: map[string]string{}, cfg: last.cfg}
	for name, there := range p.belief.run.names() {
		if name != there {
			next.own[there] = name
		}
	}
	if p.belief.told != nil {
		next.cfg = p.belief.told.cfg
	}
	if next.cfg != last.cfg || !maps.Equal(last.own, next.own) {
		p.legend.Store(&next)
	}
}

// reading returns the legend that publish published last.
func (p *Proxy) reading() legend {
	if last := p.legend.Load(); last != nil {
		return *last
	}
	return legend{}
}

// sets reports whether a backend is of a set of clusters.
func (l *legend) sets() bool {
	return l.cfg != nil && slices.ContainsFunc(l.cfg.Backends, func(b *Backend) bool { return b.Set != "" })
}

// nameOf returns the name in a Config of a backend of the worker. It is empty for a spare backend that
// stands for nothing.
func (l *legend) nameOf(there string) string {
	if name, other := ownName(l.own, there); other {
		return name
	}
	return there
}

// backend returns the backend of a name in a Config, or nil if the worker was told of no such backend.
func (l *legend) backend(name string) *Backend {
	if l.cfg == nil {
		return nil
	}
	return find(l.cfg.Backends, name)
}

// ownName returns the name in a Config of a backend that has another one in the worker, and whether
// it is such a backend. It is empty for a spare backend that stands for nothing.
func ownName[T string | []byte](own map[string]string, there T) (name string, other bool) {
	if !strings.HasPrefix(string(there[:min(len(there), len(spareName))]), spareName) {
		return "", false
	}
	return own[string(there)], true
}
