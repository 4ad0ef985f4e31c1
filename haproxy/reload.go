package haproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// reloadIfDue reloads HAProxy if want needs a reload, and the time for it has come. It notes the
// outcome in res. The reload is urgent if held is set. The error says why the worker still lacks a
// part of want. It is the error of this reload, or of the last reload to the same files.
func (p *Proxy) reloadIfDue(ctx context.Context, want *outline, held bool, res *Result) error {
	why, urgent := p.belief.reasonToReload(want, p.grows(want))
	urgent = urgent || held
	res.Reason = why
	if why == "" {
		p.schedule.nothing()
		return nil
	}
	if len(p.procs.old) >= crowd { // some may have ended since
		if now, err := p.master.show(); err == nil {
			p.procs = now
		}
	}
	d := p.belief.demand(want, len(p.procs.old))
	if held {
		d.by.hurry()
	}
	now := time.Now()
	if due := p.schedule.due(now, d); due.After(now) {
		res.RetryAt, res.Waits = due, p.schedule.waits(now, d)
		if !urgent && p.belief.run.addsBackends() {
			res.RetryAt = earlier(due, now.Add(lingerRetry)) // see release
		}
		return p.schedule.failure(want.refusable)
	}
	p.schedule.spend(now, d)
	err := p.reload(ctx, want, why)
	if res.Reloaded = err == nil; res.Reloaded {
		return nil
	}
	now, d.old = time.Now(), len(p.procs.old)
	res.RetryAt, res.Waits = p.schedule.due(now, d), p.schedule.waits(now, d)
	return errors.Join(err, p.knowOrNothing())
}

// reasonToReload returns in words which part of want takes a reload. It returns "" if no reload is
// needed, or if commands give the worker all of want (grows). A reload that nobody waits for is not
// urgent.
func (b *belief) reasonToReload(want *outline, grows bool) (why string, urgent bool) {
	cfg := want.cfg
	if broken := b.broken(want); broken != "" {
		return broken, true
	}
	if b.run.shape == want.shape {
		return "", false
	}
	if grows {
		return "", false
	}
	reasons := b.shaped.differences(&cfg.Shape)
	if !slices.EqualFunc(b.shaped.reloadedCerts(), cfg.reloadedCerts(), (*Cert).same) {
		reasons = append(reasons, "a certificate changed that needs a reload")
	}
	d := backendsDiffer(b.loaded().Backends, cfg.Backends, b.run.names())
	added, placed, changed, removed := namesOf(d.added), namesOf(d.placed), namesOf(d.changed), namesOf(d.removed)
	urgent = len(reasons)+len(added)+len(changed) > 0 || len(placed)+len(removed) == 0
	if urgent {
		added, placed = slices.Sorted(slices.Values(slices.Concat(added, placed))), nil
	}
	for _, r := range []struct {
		verb, verbs string
		names       []string
	}{
		{"added", "added", added},
		{"moved out of its spare place", "moved out of their spare places", placed},
		{"changed", "changed", changed},
		{"removed", "removed", removed},
	} {
		switch len(r.names) {
		case 0:
		case 1:
			reasons = append(reasons, "backend "+r.names[0]+" "+r.verb)
		default:
			reasons = append(reasons, fmt.Sprintf("%d backends %s", len(r.names), r.verbs))
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "HAProxy's configuration changed"), urgent
}

// broken returns why the worker takes no commands before a reload, or "" if it takes them. The
// changes of tenants do not cause that.
func (b *belief) broken(want *outline) string {
	if b.unheard >= 2 {
		return "commands to the worker failed"
	}
	if lost := b.lost(want); lost != "" {
		return "HAProxy lost backend " + lost
	}
	switch b.run.shape {
	case want.shape:
		return ""
	case b.shapeID:
		return ""
	}
	switch {
	case b.run.pid == 0:
		return "HAProxy has no worker that answers"
	case b.run.shape == "":
		return "HAProxy runs a configuration that is not ours"
	}
	return "HAProxy runs another configuration than that of the files"
}

// demand returns the demand for a reload to want, with that many old workers.
func (b *belief) demand(want *outline, old int) demand {
	d := demand{cfg: want.cfg, files: want.refusable, old: old}
	if b.broken(want) == "" {
		d.by = causesOf(b.loaded(), want.cfg, b.run.names())
	}
	return d
}

// prepare writes the files of a configuration for a start, and has HAProxy check them. Every server
// is closed in them, because nobody checked the routes to the servers while no HAProxy ran. If
// HAProxy rejects the files, prepare writes those of the last configuration that HAProxy accepted
// from this process.
func (p *Proxy) prepare(ctx context.Context, cfg *Config, states States) error {
	last := p.belief.told
	err := p.prepareOne(ctx, p.text.outline(cfg, shut(cfg.Backends, states)))
	if err == nil || last == nil {
		return err
	}
	if err2 := p.prepareOne(ctx, p.text.outline(last.cfg, shut(last.cfg.Backends, last.states()))); err2 != nil {
		return errors.Join(err, err2)
	}
	p.log.Warn("HAProxy starts with the last configuration that it accepted")
	return nil
}

// shut returns the states, but with Closed for each server in a greater state.
func shut(backends []*Backend, states States) States {
	out := make(States, len(backends))
	for i := range backends {
		out[i] = slices.Clone(states.of(i))
		for j, state := range out[i] {
			out[i][j] = min(state, Closed)
		}
	}
	return out
}

// prepareOne writes the files of one configuration, and has HAProxy check them.
func (p *Proxy) prepareOne(ctx context.Context, first *outline) error {
	if err := p.schedule.failure(first.refusable); err != nil && !p.schedule.retryAt(time.Now()).IsZero() {
		return err
	}
	former := p.belief.filed
	err := p.file(first)
	if err == nil {
		err = p.check(ctx)
	}
	if err != nil {
		return errors.Join(p.failed(first, err, "start"), p.unfile(former))
	}
	p.belief.accepted(first)
	p.belief.forgot()
	return nil
}

// reload writes the files, has HAProxy check them, and makes it start a worker from
// them. If that fails, the old worker goes on serving, and the files are as before.
func (p *Proxy) reload(ctx context.Context, want *outline, why string) error {
	offset := p.logSize()
	former := p.belief.filed
	err := p.file(want)
	if err == nil {
		err = p.check(ctx)
	}
	if err == nil {
		err = p.replaceWorker(ctx)
		if errors.Is(err, errRefused) {
			err = p.explain(err, want.cfg, offset)
		}
	}
	p.schedule.ended(time.Now())
	p.belief.forgot()
	if err != nil {
		return errors.Join(p.failed(want, err, "reload ("+why+")"), p.unfile(former))
	}
	p.schedule.accepted()
	p.belief.reloaded(want)
	p.note(func(i *Info) { i.Reloads, i.LastReload, i.LastReason = i.Reloads+1, p.schedule.last, why })
	p.log.Info("HAProxy reloaded", "reason", why)
	return p.know()
}

// replaceWorker makes the master start a worker from the files, and returns once that one answers.
// If it fails, the answers of the old worker count again.
func (p *Proxy) replaceWorker(ctx context.Context) error {
	runs, retired := p.worker.retire()
	gen := p.disk.gen()
	err := p.master.reload(ctx, func() bool {
		seen, err := p.worker.exchange("get var proc.gen")
		return err == nil && quoted(seen) == gen
	})
	if err != nil && retired == nil {
		err = errors.Join(err, p.worker.reinstate(runs))
	}
	return err
}

// failed records that HAProxy rejected these files, and how long they are not tried again.
func (p *Proxy) failed(want *outline, err error, doing string) error {
	err = fmt.Errorf("%s: %w", doing, err)
	kept := writeFile(p.path(failedFile), want.files(p.opt.Dir).Content[configFile])
	wait := p.schedule.failed(time.Now(), want.refusable(), err)
	p.log.Error("HAProxy rejected the configuration", "for", doing, "err", err, "retryIn", wait)
	return errors.Join(err, kept)
}

// check lets HAProxy read the files without acting on them.
func (p *Proxy) check(ctx context.Context) error {
	if p.opt.Binary == "" {
		return nil
	}
	why, err := p.refusal(ctx, p.path(configFile))
	if err == nil && why != "" {
		err = fmt.Errorf("%w (kept as %s): %s", ErrUnfit, p.path(failedFile), why)
	}
	return err
}

// refusal returns why HAProxy rejects a configuration, or "" if HAProxy accepts it.
func (p *Proxy) refusal(ctx context.Context, file string) (string, error) {
	report, err := p.report(ctx, file, checking)
	return complaints(report), err
}
