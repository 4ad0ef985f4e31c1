package haproxy

import (
	"maps"
	"slices"
	"time"
)

// A belief is the knowledge of this process about HAProxy: the last configuration that HAProxy
// took, the files on disk, and the state of the worker. Only the methods in this file change it.
type belief struct {
	told    *outline  // the last configuration that HAProxy took from this Proxy; nil before the first
	ready   bool      // the worker has all of told, and nothing else
	unheard int       // how many times in a row the worker did not confirm the commands
	filed   *outline  // the configuration that the files have; nil if it is not known
	aheadAt time.Time // when the worker's routes or certificates last became newer than the files
	shaped  *Config   // a configuration with the shape shapeID
	shapeID string
	run     *running // nil if the worker is not known
}

// running is the belief about the worker. Any error discards it.
type running struct {
	picture
	rows    map[string][]row     // rows of maps and lists, by path
	entries map[string]certEntry // entries of certificates; nil if they are not known
	tickets []string             // keys of TLS tickets; empty if the worker has not loaded any

	// These are the values that the worker has confirmed, or nil if they are not known. They are
	// compared by pointer. A backend with the same fragment in told has the right servers.
	told   []*fragment
	tables *tableFiles
	certs  *certFiles
	strays []string // backends that have servers, and that no configuration wants

	places placing // the keys of backends are their names in a Config
}

// nothing returns the belief about a worker without any configuration of ours.
func nothing() *running { return &running{places: spares{}} }

// names returns the backends that have another name in the worker.
func (r *running) names() workerNames { return r.places.names() }

// loaded returns the configuration of the worker: the one that it has loaded, with the backends
// that have places.
func (b *belief) loaded() *Config {
	if b.run == nil {
		return b.shaped
	}
	return b.run.places.loaded(b.shaped)
}

// placed notes the places of backends, and the backends of the worker by their names in a Config.
func (b *belief) placed(in placing, backends LiveBackends) {
	b.run.places, b.run.backends = in, backends
}

// learned notes the result of a reading of the worker.
func (b *belief) learned(run *running) { b.run = run }

// forgot discards the belief about the worker, so that the next call of know reads the worker.
func (b *belief) forgot() { b.run = nil }

// shapedLike notes that the worker has loaded the shape of an outline, or is about to.
func (b *belief) shapedLike(o *outline) { b.shaped, b.shapeID = o.cfg, o.shape }

// recognise finds out the configuration of a worker. An earlier process has found places for
// backends of want in that worker. recognise changes nothing if the worker has another
// configuration.
func (b *belief) recognise(want *outline, shapeOf func(*Config) string) {
	if have, in := b.run.places.recognise(want, b.run.shape, shapeOf); have != nil {
		b.shaped, b.shapeID, b.run.places = have, b.run.shape, in
	}
}

// accepted notes that HAProxy has taken an outline, and that its files are on disk.
func (b *belief) accepted(o *outline) {
	b.shapedLike(o)
	b.told, b.ready = o, true
}

// reloaded notes that a worker runs an outline since a reload.
func (b *belief) reloaded(o *outline) {
	b.accepted(o)
	b.unheard = 0
}

// wrote notes the outline that the files have, or nil if it is not known.
func (b *belief) wrote(o *outline) { b.filed = o }

// telling notes that commands go to the worker. Until the worker confirms all of them, told may
// have open servers that the worker has closed.
func (b *belief) telling() { b.ready = false }

// misheard notes that the worker has not confirmed all commands.
func (b *belief) misheard() { b.unheard++ }

// confirmed notes that the worker has confirmed an outline.
func (b *belief) confirmed(o *outline) { b.unheard, b.ready, b.told = 0, true, o }

// gotAhead notes that no files have the rows and certificates of the worker.
func (b *belief) gotAhead(now time.Time) { b.run.gen, b.aheadAt = ahead, now }

// caughtUp notes that the worker has the configuration in the files of this generation.
func (b *belief) caughtUp(gen string) { b.run.gen = gen }

// reshaped notes that commands have given the worker the shape of an outline.
func (b *belief) reshaped(o *outline, now time.Time) {
	b.gotAhead(now)
	b.shapedLike(o)
	b.run.shape, b.run.places = o.shape, additions(nil)
}

// changed notes the new state of some backends of the worker. A nil backend no longer exists there.
func (b *belief) changed(after map[string]*LiveBackend) {
	b.run.backends = b.run.backends.With(after)
}

// heard notes that the worker has confirmed the servers, maps and certificates of an outline, after
// these steps. If a server of a backend is still to be added or removed, told has no confirmed fragment
// for the backend.
func (r *running) heard(o *outline, steps serverSteps) {
	r.told = o.backends
	unfinished := maps.Clone(steps.later)
	for _, id := range steps.remove {
		if _, left := r.backends.Get(id.Backend).Find(id.Server); left {
			unfinished[id.Backend] = true
		}
	}
	if len(unfinished) > 0 {
		r.told = slices.Clone(r.told)
	}
	for name := range unfinished {
		if i, ours := BackendAt(o.cfg.Backends, name); ours {
			r.told[i] = &fragment{of: o.cfg.Backends[i]}
		}
	}
	r.strays = slices.DeleteFunc(steps.strays, func(name string) bool { return len(r.backends.Get(name).Servers) == 0 })
	r.tables, r.rows = o.tables(), o.tables().rows
	r.certs, r.entries = o.certs, o.certs.entries
	if len(r.tickets) > 0 {
		r.tickets = o.tickets
	}
}

// looked notes the states of checks and the load that a reading of the worker has found.
func (b *belief) looked(p picture) { b.run.picture = p }

// A finding compares a reading of the worker with what is believed.
type finding int

const (
	agrees    finding = iota // the worker has the configuration that it was told
	differs                  // the worker has something else: the belief is wrong
	overtaken                // the belief has changed so much in the meantime that the reading decides nothing
)

// merge merges a reading of the worker into the belief. before is the belief at the beginning of
// the reading, and now the belief at its end. Where the two differ, a command has changed the
// worker in the meantime. There the belief overrides the reading, which may be older or newer than
// the command.
func merge(before, read, now picture) (picture, finding) {
	if !before.sameFiles(now) {
		return now, overtaken
	}
	meanwhile := map[string]*LiveBackend{}
	for _, name := range now.backends.Differ(before.backends) {
		meanwhile[name] = now.backends.Get(name).checked(read.backends.Get(name))
	}
	read.backends = read.backends.With(meanwhile)
	other := func(name string) bool { return !sameDoors(read.backends.Get(name), now.backends.Get(name)) }
	if !read.sameFiles(now) || slices.ContainsFunc(read.backends.Differ(now.backends), other) {
		return now, differs
	}
	return read, agrees
}

// sameFiles reports whether both pictures show the same worker, with the same files and shape.
func (p picture) sameFiles(o picture) bool {
	return p.pid == o.pid && p.gen == o.gen && p.shape == o.shape
}

// sameDoors reports whether both backends exist, with the same servers in the same states, and with the same
// weights.
func sameDoors(a, b *LiveBackend) bool {
	same := func(x, y Live) bool { return x.Name == y.Name && x.State == y.State && x.Weight == y.Weight }
	return a != nil && b != nil && slices.EqualFunc(a.Servers, b.Servers, same)
}
