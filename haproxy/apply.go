package haproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Apply makes the files and the running HAProxy equal to cfg with its servers
// in these states. It is safe to repeat. While a reload has to wait, because the
// last one is too recent or the same one failed, Apply leaves out what needs it and
// does everything else. Then RetryAt is the time for the next call, and Changed
// knocks at that time.
//
// An error means that the worker did not confirm something. The next call reads the
// worker anew. While the files cannot be written, nothing is reloaded, and Apply does
// everything else; with an External HAProxy it only closes and drains servers.
func (p *Proxy) Apply(ctx context.Context, cfg *Config, states States) (Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		p.alarm.Stop()
	}
	as, eased := p.compare(cfg, states), p.schedule.eased
	res, err := p.apply(ctx, cfg, states)
	p.publishNames()
	p.noteWaits(res.Waits)
	if err == nil && p.belief.unfinished(cfg) {
		res.RetryAt = time.Now()
	}
	p.last.states, p.last.done, p.last.retryAt = states, err == nil, res.RetryAt
	p.note(func(i *Info) { i.Reread = i.Reread && err != nil })
	if !res.Reloaded || !eased {
		p.countRepetition(as, &res)
	}
	if err != nil {
		p.belief.forgot()
		p.noteError(err)
	}
	if !res.RetryAt.IsZero() {
		p.alarm = time.AfterFunc(time.Until(res.RetryAt), p.knock)
	}
	return res, err
}

// unfinished reports whether the next order has something to do at once: it needs fewer
// backends from before, or a place has lost its last server.
func (b *belief) unfinished(cfg *Config) bool {
	former := len(cfg.Former)
	return former > 0 && former > len(b.held(cfg).kept) ||
		b.run != nil && b.run.shape == b.shapeID && b.run.places.vacant(cfg, b.run.backends)
}

// apply walks one round: validate, have a HAProxy, know what it has, render, find places, reload
// or not, tell.
func (p *Proxy) apply(ctx context.Context, cfg *Config, states States) (res Result, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := cfg.validate(&p.last.cfg); err != nil {
		return res, fmt.Errorf("HAProxy's configuration: %w", err)
	}
	p.last.cfg = *cfg
	if res.RetryAt, err = p.ensureFrom(ctx, cfg, states); err != nil {
		return res, err
	}
	unread := p.know()
	if errors.Is(unread, syscall.ECONNREFUSED) || errors.Is(unread, syscall.ENOENT) {
		p.belief.learned(nothing()) // a master without a worker: only a reload brings one
	} else if unread != nil {
		return res, unread
	}
	want := p.text.outline(cfg, states)
	misplaced := p.place(want)
	kept := p.belief.held(cfg)
	failure := errors.Join(misplaced, p.reloadIfDue(ctx, want, kept.any(), &res))
	if res.Reason != "" && !res.Reloaded {
		if p.belief.run.shape != p.belief.shapeID {
			// What the worker runs is not known well enough to tell it routes. Its servers
			// take commands all the same.
			return res, errors.Join(failure, unread, p.tellServers(cfg, states, &res))
		}
		kept.close(p.schedule.late, p.belief.told, cfg)
		cfg, states = within(cfg, states, p.belief.loaded(), p.belief.run.names(), kept)
		want = p.text.outline(cfg, states)
	}
	return res, errors.Join(failure, p.tell(want.in(p.belief.run.names()), states, &res))
}

// ensureFrom finds HAProxy, or prepares the files of cfg and starts HAProxy from
// them. With an error it returns when to try again, if that has a time.
func (p *Proxy) ensureFrom(ctx context.Context, cfg *Config, states States) (retryAt time.Time, err error) {
	err = p.ensure()
	if p.belief.ready || !errors.Is(err, errUnready) && !errors.Is(err, errAway) {
		return time.Time{}, err
	}
	if err := p.prepare(ctx, cfg, states); err != nil {
		return p.schedule.retryAt(time.Now()), err
	}
	return time.Time{}, p.ensure()
}

// tell makes the worker equal to want, which takes commands alone. The files follow
// when HAProxy reads them next: see settle.
func (p *Proxy) tell(want *outline, states States, res *Result) error {
	if want.shape == p.belief.run.shape && !want.names.active() {
		p.belief.shapedLike(want)
	}
	former := p.belief.filed
	if p.opt.Mode == External {
		if err := p.file(want); err != nil {
			return errors.Join(err, p.tellClosings(want.cfg, states, res))
		}
	}
	p.belief.telling()
	if err := p.tellAll(want, states, res); err != nil {
		p.belief.misheard()
		if p.opt.Mode == External {
			err = errors.Join(err, p.unfile(former))
		}
		return err
	}
	p.belief.confirmed(want)
	if p.opt.Mode == External {
		return p.settle()
	}
	return nil
}

// file makes the files on disk equal to an outline.
func (p *Proxy) file(o *outline) error {
	if p.belief.filed == o {
		return nil
	}
	p.belief.wrote(nil)
	files := o.in(nil).files(p.opt.Dir) // a worker that reads the files has each backend under its own name
	if err := p.disk.sync(files.Content, files.sums); err != nil {
		return err
	}
	p.belief.wrote(o)
	return nil
}

// unfile undoes the last call of file. Before that the files had former.
func (p *Proxy) unfile(former *outline) error {
	p.belief.wrote(nil)
	err := p.disk.restore()
	if err == nil {
		p.belief.wrote(former)
	}
	return err
}

// settle writes the files that the worker was told, and tells the worker that it has
// them. The next process then knows the worker's maps and certificates from the files.
// Otherwise it reads them from the worker, so a crash in between loses nothing.
func (p *Proxy) settle() error {
	if p.belief.run == nil || !p.belief.ready || p.belief.run.pid == 0 {
		return nil
	}
	if err := p.file(p.belief.told); err != nil {
		return err
	}
	gen := p.disk.gen()
	if p.belief.run.gen == gen || p.belief.run.shape != p.belief.told.shape || len(p.belief.run.names()) > 0 {
		return nil
	}
	if err := p.worker.tell(generationIs(gen)); err != nil {
		p.belief.forgot()
		return err
	}
	p.belief.caughtUp(gen)
	p.note(func(i *Info) { i.Generation = gen })
	return nil
}

// tellServers changes servers, and nothing else, in the backends that the worker
// has.
func (p *Proxy) tellServers(cfg *Config, states States, res *Result) error {
	steps := p.belief.run.serverSteps(cfg, states, nil)
	cmds := slices.Concat(steps.down, steps.up)
	res.Commands += len(cmds)
	res.made = cmds
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.belief.changed(steps.after)
	return nil
}

// tellClosings closes and drains servers, and does nothing else: this cannot wait
// until the files can be written.
func (p *Proxy) tellClosings(cfg *Config, states States, res *Result) error {
	steps := p.belief.run.serverSteps(cfg, states, nil)
	res.Commands += len(steps.down)
	return p.worker.tell(steps.down)
}

// tellAll makes the worker equal to want by commands: servers close, then open,
// then routes and certificates change, then HAProxy removes servers that nobody
// wants.
func (p *Proxy) tellAll(want *outline, states States, res *Result) error {
	o := p.belief.run.orders(want, states, p.opt.Dir)
	made := p.belief.run.places.commands()
	cmds := slices.Concat(o.down, made, o.up, o.rows)
	res.Commands += len(cmds) + 2*len(o.whole) + len(o.remove) + len(o.turns)
	res.made = slices.Concat(cmds, o.others())
	if len(o.rows)+len(o.whole) > 0 || o.certs {
		if p.belief.run.gen != ahead {
			cmds = append(generationIs(ahead), cmds...)
		}
		p.belief.gotAhead(time.Now())
	}
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.belief.changed(o.after)
	if len(made) > 0 {
		if err := p.reshape(want); err != nil {
			return err
		}
	}
	var unfit error
	if o.certs {
		if unfit = p.tellCerts(want.certs.entries, res); unfit != nil && !errors.Is(unfit, ErrUnfit) {
			return unfit
		}
	}
	for _, path := range o.whole {
		if err := p.worker.replaceMap(p.path(path), want.tables().rows[path]); err != nil {
			return err
		}
	}
	if err := p.worker.turn(p.path(ticketFile), o.turns); err != nil {
		return err
	}
	if err := errors.Join(p.remove(o.remove, res), unfit); err != nil {
		return err
	}
	p.belief.run.heard(want, o.serverSteps)
	return nil
}

// ahead is the generation of a worker whose routes or certificates are newer than
// those of the files.
const ahead = "ahead"

// generationIs returns the commands by which the worker says which files it runs.
func generationIs(gen string) []string {
	return []string{"experimental-mode on", "set var proc.gen str(" + gen + ")"}
}

// remove deletes closed servers. A server that still has connections stays, so that
// its requests may finish, and the next Apply tries again.
func (p *Proxy) remove(ids []ServerID, res *Result) error {
	if len(ids) == 0 {
		return nil
	}
	cmds := make([]string, len(ids))
	for i, id := range ids {
		cmds[i] = "del server " + p.belief.run.names().of(id.Backend) + "/" + id.Server
	}
	gone := make(map[ServerID]bool, len(ids))
	n := 0
	for batch := range batches(cmds) {
		answer, err := p.worker.ask(strings.Join(batch, ";"))
		if err != nil {
			return err
		}
		said := verdicts(answer)
		if len(said) != len(batch) {
			return fmt.Errorf("HAProxy's worker: %d answers to %d removals of servers", len(said), len(batch))
		}
		for _, v := range said {
			switch {
			case strings.HasPrefix(v, "Server deleted"), strings.HasPrefix(v, "No such server"):
				gone[ids[n]] = true
			case strings.Contains(v, "still has connections"):
				res.RetryAt = earlier(res.RetryAt, time.Now().Add(lingerRetry))
			default:
				return fmt.Errorf("HAProxy's worker: %s: %s", cmds[n], v)
			}
			n++
		}
	}
	after := make(map[string]*LiveBackend)
	for id := range gone {
		if after[id.Backend] == nil {
			left := slices.Clone(p.belief.run.backends.Get(id.Backend).Servers)
			is := func(l Live) bool { return gone[ServerID{id.Backend, l.Name}] }
			after[id.Backend] = &LiveBackend{Servers: slices.DeleteFunc(left, is)}
		}
	}
	p.belief.changed(after)
	return nil
}

// tellCerts makes the worker's certificates equal to want. If it rejects one, the
// others change all the same.
func (p *Proxy) tellCerts(want map[string]certEntry, res *Result) error {
	have := p.belief.run.entries
	files, err := p.worker.certFiles()
	if err != nil {
		return err
	}
	lines := make(map[string]string, len(want))
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		c, path := want[name], p.path(certDir+name)
		lines[path] = c.line
		if old, ok := have[name]; files[path] && ok && string(old.pem) == string(c.pem) {
			continue
		}
		if len(c.pem) > maxPayload {
			continue // only a reload changes it
		}
		err := p.worker.setCert(path, c.pem, !files[path])
		switch {
		case errors.Is(err, errFault):
			refused = append(refused, fmt.Errorf("%w: certificate %s: %w", ErrUnfit, name, err))
			if !files[path] {
				delete(lines, path)
			} // else the worker goes on with the one before
		case err != nil:
			return err
		}
		res.Commands += 2
	}
	if err := p.worker.listCerts(p.path(crtList), p.path(certDir), lines); err != nil {
		return err
	}
	var cmds []string
	for path := range files {
		if name, is := strings.CutPrefix(path, p.path(certDir)); is && !fixed(name) && lines[path] == "" {
			cmds = append(cmds, "del ssl cert "+path)
		}
	}
	res.Commands += len(cmds)
	return errors.Join(append(refused, p.worker.tell(cmds))...)
}
