package haproxy

import (
	"slices"
	"time"
)

// A belief is what this process holds HAProxy to have: what HAProxy was told last, what the files
// on disk have, and what the worker runs. It changes by the methods in this file alone.
type belief struct {
	told    *outline  // what HAProxy has taken last, from this Proxy; nil: nothing yet
	ready   bool      // the worker has all of told, and nothing beyond it
	unheard int       // failures in a row to tell the worker
	filed   *outline  // what the files have; nil: not known
	aheadAt time.Time // when the worker last got ahead of the files in its routes or certificates
	shaped  *Config   // a configuration of the shape that is in shapeID
	shapeID string
	run     *running // nil: not known
}

// running is the belief about the worker. Any error discards it.
type running struct {
	picture
	rows    map[string][]row     // of maps and lists, by path
	entries map[string]certEntry // of certificates; nil: not known
	tickets []string             // the keys of TLS tickets; none: it has not loaded any

	// What the worker has confirmed, to compare by pointer; nil: not known. A backend whose
	// fragment is the same here has the right servers.
	told   []*fragment
	tables *tableFiles
	certs  *certFiles
	strays []string // backends that nobody wants, and that have servers

	places placing // the keys of backends are the names that a Config has for them
}

// nothing returns the belief about a worker that has nothing of ours.
func nothing() *running { return &running{places: spares{}} }

// names returns the backends that have another name in the worker.
func (r *running) names() workerNames { return r.places.names() }

// loaded returns what the worker has: what it has loaded, and the backends that have places.
func (b *belief) loaded() *Config {
	if b.run == nil {
		return b.shaped
	}
	return b.run.places.loaded(b.shaped)
}

// placed notes the places of backends, and what the worker has by their names then.
func (b *belief) placed(in placing, backends LiveBackends) {
	b.run.places, b.run.backends = in, backends
}

// learned notes what the worker was read to be.
func (b *belief) learned(run *running) { b.run = run }

// forgot discards what is believed about the worker: somebody has to read it.
func (b *belief) forgot() { b.run = nil }

// shapedLike notes that the worker has loaded the shape of an outline, or is about to.
func (b *belief) shapedLike(o *outline) { b.shaped, b.shapeID = o.cfg, o.shape }

// recognise finds out what a worker has loaded in which a process before this one found places for
// backends of want. It changes nothing if the worker has loaded something else.
func (b *belief) recognise(want *outline, shapeOf func(*Config) string) {
	if have, in := b.run.places.recognise(want, b.run.shape, shapeOf); have != nil {
		b.shaped, b.shapeID, b.run.places = have, b.run.shape, in
	}
}

// accepted notes that HAProxy has taken an outline, whose files are on disk.
func (b *belief) accepted(o *outline) {
	b.shapedLike(o)
	b.told, b.ready = o, true
}

// reloaded notes that a worker runs an outline since a reload.
func (b *belief) reloaded(o *outline) {
	b.accepted(o)
	b.unheard = 0
}

// wrote notes what the files have; nil: not known.
func (b *belief) wrote(o *outline) { b.filed = o }

// telling notes that commands are on their way. Until the worker confirms all of them, told may
// have servers open that the worker has closed.
func (b *belief) telling() { b.ready = false }

// misheard notes that the worker has not confirmed all commands.
func (b *belief) misheard() { b.unheard++ }

// confirmed notes that the worker has confirmed all of an outline.
func (b *belief) confirmed(o *outline) { b.unheard, b.ready, b.told = 0, true, o }

// gotAhead notes that the worker's rows and certificates are not those of any files.
func (b *belief) gotAhead(now time.Time) { b.run.gen, b.aheadAt = ahead, now }

// caughtUp notes that the worker has what the files of this generation have.
func (b *belief) caughtUp(gen string) { b.run.gen = gen }

// reshaped notes that commands have given the worker the shape of an outline.
func (b *belief) reshaped(o *outline, now time.Time) {
	b.gotAhead(now)
	b.shapedLike(o)
	b.run.shape, b.run.places = o.shape, additions(nil)
}

// changed notes what has become of some backends of the worker; nil: it has them no more.
func (b *belief) changed(after map[string]*LiveBackend) {
	b.run.backends = b.run.backends.With(after)
}

// heard notes that the worker has confirmed the servers, maps and certificates of an outline, after
// these steps. A backend from which a server is yet to be removed stays in doubt.
func (r *running) heard(o *outline, steps serverSteps) {
	r.told = o.backends
	doubted := false
	for _, id := range steps.remove {
		i, ours := BackendAt(o.cfg.Backends, id.Backend)
		if _, left := r.backends.Get(id.Backend).Find(id.Server); !ours || !left {
			continue
		}
		if !doubted {
			r.told, doubted = slices.Clone(r.told), true
		}
		r.told[i] = &fragment{of: o.cfg.Backends[i]}
	}
	r.strays = slices.DeleteFunc(steps.strays, func(name string) bool { return len(r.backends.Get(name).Servers) == 0 })
	r.tables, r.rows = o.tables(), o.tables().rows
	r.certs, r.entries = o.certs, o.certs.entries
	if len(r.tickets) > 0 {
		r.tickets = o.tickets
	}
}

// looked notes what a reading of the worker found that changes nothing: states of checks, and load.
func (b *belief) looked(p picture) { b.run.picture = p }

// A finding compares a reading of the worker with what is believed.
type finding int

const (
	agrees    finding = iota // the worker has what it was told
	differs                  // the worker has something else: the belief is void
	overtaken                // the belief has changed so much meanwhile that the reading says nothing
)

// merge merges a reading of the worker into what is believed. The reading began when before was
// believed, and took its time; now is believed at its end. What the worker was told meanwhile counts,
// whether it did it before it answered or after.
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

// sameFiles reports whether both are of one worker, with the same files and shape.
func (p picture) sameFiles(o picture) bool {
	return p.pid == o.pid && p.gen == o.gen && p.shape == o.shape
}

// sameDoors reports whether both are there, with the same servers in the same states.
func sameDoors(a, b *LiveBackend) bool {
	same := func(x, y Live) bool { return x.Name == y.Name && x.State == y.State }
	return a != nil && b != nil && slices.EqualFunc(a.Servers, b.Servers, same)
}
