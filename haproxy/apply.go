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

// Apply makes the files and the running HAProxy equal to cfg with its servers in these states. It
// is safe to repeat. A reload may have to wait, because the last reload is too recent, or because a
// reload to the same files has failed. Apply then makes only the changes that need no reload.
// RetryAt is the time for the next call, and Changed signals at that time.
//
// An error means that the worker did not confirm something. The next call reads the worker anew. If
// the files cannot be written, Apply does not reload HAProxy, and makes only the changes that need
// no reload. With an External HAProxy it then only closes and drains servers.
func (p *Proxy) Apply(ctx context.Context, cfg *Config, states States) (Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		p.alarm.Stop()
	}
	as, eased, asked := p.compare(cfg, states), p.schedule.eased, p.last.retryAt
	res, err := p.apply(ctx, cfg, states)
	if came(asked) {
		as = another
	}
	p.publish()
	p.noteWaits(res.Waits)
	if err == nil && (res.more || p.belief.unfinished(cfg)) {
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

// unfinished reports whether the next call of Apply has something to do at once. It needs fewer
// former backends, or a backend in a place has lost its last server.
func (b *belief) unfinished(cfg *Config) bool {
	former := len(cfg.Former)
	return former > 0 && former > len(b.held(cfg).kept) ||
		b.run != nil && b.run.shape == b.shapeID && b.run.places.vacant(cfg, b.run.backends)
}

// apply makes one round: validate, find or start HAProxy, read its state, render, find places,
// reload if necessary, send commands.
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
			// The configuration of the worker is not known well enough for commands to routes.
			// Commands to its servers are possible.
			return res, errors.Join(failure, unread, p.tellServers(cfg, states, &res))
		}
		kept.close(p.schedule.late, p.belief.told, cfg)
		cfg, states = within(cfg, states, p.belief.loaded(), p.belief.run.names(), kept)
		want = p.text.outline(cfg, states)
	}
	return res, errors.Join(failure, p.tell(want.in(p.belief.run.names()), states, &res))
}

// ensureFrom finds HAProxy, or prepares the files of cfg and starts HAProxy from them. With an
// error it also returns when to try again, or the zero time.
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

// tell makes the worker equal to want by commands only. The files follow before HAProxy reads them
// again: see settle.
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

// unfile undoes the last call of file, before which the files had the outline former.
func (p *Proxy) unfile(former *outline) error {
	p.belief.wrote(nil)
	err := p.disk.restore()
	if err == nil {
		p.belief.wrote(former)
	}
	return err
}

// settle writes the configuration that the worker was told to the files, and sets the worker's
// proc.gen to that of the files. The next process then reads the worker's maps and certificates
// from the files. After a crash in between it reads them from the worker, so nothing is lost.
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

// tellServers changes only servers, in the backends that the worker has.
func (p *Proxy) tellServers(cfg *Config, states States, res *Result) error {
	steps := p.belief.run.serverSteps(cfg, states, nil, p.files.cookieKey(&cfg.Shape))
	cmds := steps.inOrder(nil, nil)
	res.Commands += len(cmds)
	res.made = cmds
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.belief.changed(steps.after)
	res.more = len(steps.later) > 0
	return nil
}

// tellClosings only closes and drains servers, which cannot wait until the files can be written.
func (p *Proxy) tellClosings(cfg *Config, states States, res *Result) error {
	steps := p.belief.run.serverSteps(cfg, states, nil, p.files.cookieKey(&cfg.Shape))
	cmds := slices.Concat(steps.down, steps.drop)
	res.Commands += len(cmds)
	return p.worker.tell(cmds)
}

// tellAll makes the worker equal to want by commands (see inOrder). At first servers close, and then others
// open. Routes and certificates change next. Then the servers of backends that go close. At last HAProxy
// removes the servers that want lacks.
func (p *Proxy) tellAll(want *outline, states States, res *Result) error {
	o := p.belief.run.orders(want, states, p.opt.Dir)
	made := p.belief.run.places.commands()
	rows, laterRows := o.atOnce()
	drop := o.drop // told last, since later rows may lead away, too
	o.drop = nil
	cmds := o.inOrder(made, rows)
	res.made = slices.Concat(cmds, drop, o.others())
	res.Commands += len(cmds) + len(drop) + len(o.remove) + len(o.turns)
	for _, step := range laterRows {
		res.Commands += max(len(step.cmds), 2)
	}
	if len(o.maps) > 0 || o.certs {
		if p.belief.run.gen != ahead {
			cmds = append(generationIs(ahead), cmds...)
		}
		p.belief.gotAhead(time.Now())
	}
	unfit, err := p.tellRows(want, cmds, &o, len(made) > 0, laterRows, res)
	if err := errors.Join(err, p.worker.tell(drop)); err != nil { // also after an error
		return err
	}
	if err := p.worker.turn(p.path(ticketFile), o.turns); err != nil {
		return err
	}
	if err := errors.Join(p.remove(o.remove, res), unfit); err != nil {
		return err
	}
	p.belief.run.heard(want, o.serverSteps)
	res.more = len(o.later) > 0
	return nil
}

// tellRows tells the commands of a round, then its certificates, and then the rows that come later. It
// returns apart from other errors that HAProxy does not take some certificates.
func (p *Proxy) tellRows(
	want *outline, cmds []string, o *orders, reshaped bool, later []mapStep, res *Result,
) (unfit, err error) {
	if err := p.worker.tell(cmds); err != nil {
		return nil, err
	}
	p.belief.changed(o.after)
	if reshaped {
		if err := p.reshape(want); err != nil {
			return nil, err
		}
	}
	if o.certs {
		if unfit = p.tellCerts(want, res); unfit != nil && !errors.Is(unfit, ErrUnfit) {
			return nil, unfit
		}
	}
	for _, step := range later {
		if step.cmds != nil {
			err = p.worker.tell(step.cmds)
		} else {
			err = p.worker.replaceMap(p.path(step.path), step.rows)
		}
		if err != nil {
			return nil, err
		}
	}
	return unfit, nil
}

// ahead is the generation of a worker that has newer routes or certificates than the files.
const ahead = "ahead"

// generationIs returns the commands that set proc.gen, the generation of the files that the worker
// has.
func generationIs(gen string) []string {
	return []string{"experimental-mode on", "set var proc.gen str(" + gen + ")"}
}

// remove deletes closed servers. A server with connections stays, so that its requests can finish.
// The next Apply then tries again.
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

// tellCerts makes the worker's certificates equal to those of an outline. If it rejects a
// certificate, the other certificates still change.
func (p *Proxy) tellCerts(o *outline, res *Result) error {
	want, have := o.certs.entries, p.belief.run.entries
	files, err := p.worker.certFiles()
	if err != nil {
		return err
	}
	lines := make(map[string]map[string]string) // by list and file
	for _, list := range o.cfg.certLists() {
		lines[list] = make(map[string]string)
	}
	listed := make(map[string]bool)
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		c, path := want[name], p.path(certDir+name)
		list := lines[c.list]
		listed[path] = true
		if list == nil {
			continue // HAProxy loads no such list
		}
		list[path] = c.line
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
				delete(list, path)
			} // the worker keeps the previous certificate
		case err != nil:
			return err
		}
		res.Commands += 2
	}
	for _, list := range slices.Sorted(maps.Keys(lines)) {
		if err := p.worker.listCerts(p.path(list), p.path(certDir), lines[list]); err != nil {
			return err
		}
	}
	var cmds []string
	for path := range files {
		if name, is := strings.CutPrefix(path, p.path(certDir)); is && !fixed(name) && !listed[path] {
			cmds = append(cmds, "del ssl cert "+path)
		}
	}
	res.Commands += len(cmds)
	return errors.Join(append(refused, p.worker.tell(cmds))...)
}
