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
// worker anew. While the files cannot be written, Apply closes and drains servers,
// and does nothing else.
func (p *Proxy) Apply(ctx context.Context, cfg *Config, states States) (Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarm != nil {
		p.alarm.Stop()
	}
	res, err := p.apply(ctx, cfg, states)
	if err != nil {
		p.forget()
		p.noteError(err)
	}
	if !res.RetryAt.IsZero() {
		p.alarm = time.AfterFunc(time.Until(res.RetryAt), p.knock)
	}
	return res, err
}

// apply walks one round: validate, have a HAProxy, render, reload or not, write,
// tell.
func (p *Proxy) apply(ctx context.Context, cfg *Config, states States) (res Result, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := cfg.validate(&p.valid); err != nil {
		return res, fmt.Errorf("HAProxy's configuration: %w", err)
	}
	p.valid = *cfg
	if res.RetryAt, err = p.ensureFrom(ctx, cfg, states); err != nil {
		return res, err
	}
	unread := p.know()
	if errors.Is(unread, syscall.ECONNREFUSED) || errors.Is(unread, syscall.ENOENT) {
		p.run = &running{} // a master without a worker: only a reload brings one
	} else if unread != nil {
		return res, unread
	}
	want := p.text.render(cfg, states)
	failure := p.reloadIfDue(ctx, cfg, want, &res)
	if res.Reason != "" && !res.Reloaded {
		if p.run.shape != p.shapeID {
			// What the worker runs is not known well enough to write files for it. Its
			// servers take commands all the same.
			return res, errors.Join(failure, unread, p.tellServers(cfg, states, &res))
		}
		cfg = within(cfg, p.shaped)
		want = p.text.render(cfg, states)
	}
	return res, errors.Join(failure, p.writeAndTell(cfg, states, want, &res))
}

// ensureFrom finds HAProxy, or prepares the files of cfg and starts HAProxy from
// them. With an error it returns when to try again, if that has a time.
func (p *Proxy) ensureFrom(ctx context.Context, cfg *Config, states States) (retryAt time.Time, err error) {
	err = p.ensure()
	if p.ready || !errors.Is(err, errUnready) && !errors.Is(err, errAway) {
		return time.Time{}, err
	}
	if err := p.prepare(ctx, cfg, states); err != nil {
		if p.failedUntil.After(time.Now()) {
			retryAt = p.failedUntil
		}
		return retryAt, err
	}
	return time.Time{}, p.ensure()
}

// writeAndTell makes the files and the worker equal to want, which takes commands
// alone.
func (p *Proxy) writeAndTell(cfg *Config, states States, want Files, res *Result) error {
	p.shaped, p.shapeID = cfg, want.Shape
	// Until the worker confirms all of it, the files may have servers open that the
	// worker has closed.
	p.ready = false
	if err := p.disk.sync(want.Content, want.sums); err != nil {
		return errors.Join(err, p.tellClosings(cfg, states, res))
	}
	if err := p.tellAll(cfg, states, want, res); err != nil {
		p.unheard++
		return errors.Join(err, p.disk.restore())
	}
	p.unheard, p.ready, p.last = 0, true, cfg
	return nil
}

// tellServers changes servers, and nothing else, in the backends that the worker
// has.
func (p *Proxy) tellServers(cfg *Config, states States, res *Result) error {
	steps := p.run.serverSteps(cfg, states, nil)
	cmds := slices.Concat(steps.down, steps.up)
	res.Commands += len(cmds)
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.run.backends = p.run.changed(steps.after)
	return nil
}

// tellClosings closes and drains servers, and does nothing else: this cannot wait
// until the files can be written.
func (p *Proxy) tellClosings(cfg *Config, states States, res *Result) error {
	steps := p.run.serverSteps(cfg, states, nil)
	res.Commands += len(steps.down)
	return p.worker.tell(steps.down)
}

// tellAll makes the worker equal to want by commands: servers close, then open,
// then routes and certificates change, then HAProxy removes servers that nobody
// wants. The generation changes when the worker has confirmed all of it.
func (p *Proxy) tellAll(cfg *Config, states States, want Files, res *Result) error {
	o := p.run.orders(cfg, states, want, p.text.fragments, p.opt.Dir)
	cmds, mark := slices.Concat(o.down, o.up, o.rows), generationIs(want.Gen)
	res.Commands += len(cmds) + 2*len(o.whole) + len(o.remove)
	switch {
	case len(o.rows)+len(o.whole) > 0 || o.certs:
		// If only some of it arrives, the next life must not take the rows and
		// certificates of the files for those of the worker.
		cmds = append(generationIs("changing"), cmds...)
	case len(cmds) > 0 && len(o.remove) == 0:
		// In the usual case, servers only, one exchange does everything.
		cmds, mark = append(cmds, mark...), nil
	case p.run.gen == want.Gen:
		mark = nil
	}
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.run.backends = p.run.changed(o.after)
	var unfit error
	if o.certs {
		if unfit = p.tellCerts(want.certs, res); unfit != nil && !errors.Is(unfit, ErrUnfit) {
			return unfit
		}
	}
	for _, path := range o.whole {
		if err := p.worker.replaceMap(p.path(path), want.rows[path]); err != nil {
			return err
		}
	}
	if err := errors.Join(p.remove(o.remove, res), unfit); err != nil {
		return err
	}
	if err := p.worker.tell(mark); err != nil {
		return err
	}
	p.run.gen, p.run.rows, p.run.certs = want.Gen, want.rows, want.certs
	if p.run.told == nil {
		p.run.told = make(map[string]*fragment, len(cfg.Backends))
	}
	for _, b := range cfg.Backends {
		p.run.told[b.Name] = p.text.fragments[b]
	}
	if res.Commands > 0 {
		p.note(func(i *Info) { i.Generation = want.Gen })
	}
	return nil
}

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
		cmds[i] = "del server " + id.String()
	}
	gone := make(map[ServerID]bool, len(ids))
	n := 0
	for batch := range batches(cmds) {
		answer, _, err := p.worker.ask(strings.Join(batch, ";"))
		if err != nil {
			return err
		}
		var verdicts []string
		for line := range strings.Lines(answer) {
			if len(line) > 4 && line[0] == '[' && line[2:4] == "]:" && !strings.Contains(line, "proc.gen") {
				verdicts = append(verdicts, strings.TrimSpace(line[4:]))
			}
		}
		if len(verdicts) != len(batch) {
			return fmt.Errorf("HAProxy's worker: %d answers to %d removals of servers", len(verdicts), len(batch))
		}
		for _, v := range verdicts {
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
			after[id.Backend] = &LiveBackend{slices.DeleteFunc(slices.Clone(p.run.backends[id.Backend].Servers), func(l Live) bool { return gone[ServerID{id.Backend, l.Name}] })}
		}
	}
	p.run.backends = p.run.changed(after)
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// tellCerts makes the worker's certificates equal to want. If it rejects one, the
// others change all the same.
func (p *Proxy) tellCerts(want map[string]certEntry, res *Result) error {
	have := p.run.certs
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
