package haproxy

import (
	"bytes"
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
// in these states. It is safe to
// repeat. What needs a reload before one is allowed, or after the same one
// failed, stays as it was, and everything else is done: then RetryAt says when
// to come again, and Changed knocks at that time.
//
// An error means that something was not confirmed. What is believed of the
// worker is then read anew by the next call. While the files cannot be written
// servers are closed and drained, and nothing else is done.
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

func (p *Proxy) apply(ctx context.Context, cfg *Config, states States) (Result, error) {
	var res Result
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := p.validate(cfg); err != nil {
		return res, err
	}
	err := p.ensure()
	if !p.ready && (errors.Is(err, errUnready) || errors.Is(err, errAway)) {
		if err := p.prepare(ctx, cfg, states); err != nil {
			if due := p.failedUntil; due.After(time.Now()) {
				res.RetryAt = due
			}
			return res, err
		}
		err = p.ensure()
	}
	if err != nil {
		return res, err
	}
	blind := p.know()
	if blind != nil {
		if !errors.Is(blind, syscall.ECONNREFUSED) && !errors.Is(blind, syscall.ENOENT) {
			return res, blind
		}
		// A master without a worker: only a reload brings one.
		p.run = &running{}
	}
	var failure error
	want := p.text.render(cfg, states)
	if why, urgent := p.reasonToReload(cfg, want); why != "" {
		res.Reason = why
		due := p.reloadDue(want, urgent)
		if due.After(time.Now()) {
			res.RetryAt, failure = due, p.failureOf(want)
		} else if failure = p.reload(ctx, cfg, want, why); failure == nil {
			res.Reloaded = true
		} else {
			res.RetryAt = p.reloadDue(want, urgent)
			if err := p.know(); err != nil && blind == nil {
				return res, errors.Join(failure, err)
			}
		}
		if blind != nil && !res.Reloaded {
			p.forget()
			return res, errors.Join(blind, failure)
		}
		if !res.Reloaded {
			if p.shaped == nil || p.run.shape != p.shapeID {
				// What the worker runs is not known well enough to write
				// files for it. Its servers can be told all the same.
				return res, errors.Join(failure, p.tellServers(cfg, states, &res))
			}
			cfg = within(cfg, p.shaped)
			want = p.text.render(cfg, states)
		}
	} else {
		p.idleSince = time.Time{}
	}
	p.shaped, p.shapeID = cfg, want.Shape
	// Until all of it is told, servers may be open in the files that are not in
	// the worker.
	p.ready = false
	if err := p.disk.sync(want.Content, want.sums); err != nil {
		return res, errors.Join(failure, err, p.tellClosings(cfg, states, &res))
	}
	if err := p.tellAll(cfg, states, want, &res); err != nil {
		p.unheard++
		return res, errors.Join(failure, err, p.disk.restore())
	}
	p.unheard, p.ready, p.last = 0, true, cfg
	return res, failure
}

// validate is cfg.Validate, with a memory: what was valid last is not looked
// at again.
func (p *Proxy) validate(cfg *Config) error {
	fresh := Config{
		Bind: cfg.Bind, Tune: cfg.Tune, DefaultBackend: cfg.DefaultBackend, Routes: cfg.Routes,
		Backends: others(cfg.Backends, p.valid.Backends, backendName),
		Certs:    others(cfg.Certs, p.valid.Certs, certName),
		Extras:   others(cfg.Extras, p.valid.Extras, extraName), Userlists: cfg.Userlists,
		Lists:  others(cfg.Lists, p.valid.Lists, listName),
		Tables: cfg.Tables, Captures: cfg.Captures, Process: cfg.Process, Streams: cfg.Streams, Choices: cfg.Choices,
	}
	if !bytes.Equal(p.valid.DefaultCert, cfg.DefaultCert) {
		fresh.DefaultCert = cfg.DefaultCert
	}
	if slices.Equal(p.valid.Routes, cfg.Routes) {
		fresh.Routes = nil
	}
	if p.valid.Tune == cfg.Tune {
		fresh.Tune = Tune{}
	}
	if err := errors.Join(cfg.order(), fresh.parts()); err != nil {
		return fmt.Errorf("HAProxy's configuration: %w", err)
	}
	p.valid = *cfg
	return nil
}

// others are the elements of a list sorted by name that another one does not
// hold.
func others[T any](of, without []*T, name func(*T) string) (out []*T) {
	i := 0
	for _, e := range of {
		for i < len(without) && name(without[i]) < name(e) {
			i++
		}
		if i == len(without) || without[i] != e {
			out = append(out, e)
		}
	}
	return out
}

// tellServers changes servers, and nothing else, in the backends the worker
// has.
func (p *Proxy) tellServers(cfg *Config, states States, res *Result) error {
	steps := p.serverSteps(cfg, states, nil)
	cmds := slices.Concat(steps.down, steps.up)
	res.Commands += len(cmds)
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.run.backends = p.run.changed(steps.after)
	return nil
}

// tellClosings closes and drains servers, and does nothing else: what must not
// wait for files that cannot be written.
func (p *Proxy) tellClosings(cfg *Config, states States, res *Result) error {
	steps := p.serverSteps(cfg, states, nil)
	res.Commands += len(steps.down)
	return p.worker.tell(steps.down)
}

// serverSteps are the commands that bring servers to their states.
type serverSteps struct {
	down, up []string                // commands: to close and drain, then to add and open
	remove   []ServerID              // closed, and no longer wanted
	after    map[string]*LiveBackend // the backends that change, once the commands are done
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

func (p *Proxy) serverSteps(cfg *Config, states States, fragments map[*Backend]*fragment) serverSteps {
	s := serverSteps{after: map[string]*LiveBackend{}}
	seen := 0 // backends with servers
	for _, b := range cfg.Backends {
		have := p.run.backends[b.Name]
		if have == nil {
			continue // it waits for a reload
		}
		if len(have.Servers) > 0 {
			seen++
		}
		if f := fragments[b]; f == nil || f != p.run.told[b.Name] || f.present != len(have.Servers) {
			s.bring(b, have, states)
		}
	}
	for _, have := range p.run.backends {
		if len(have.Servers) > 0 {
			seen--
		}
	}
	if seen < 0 { // the worker has servers in backends that nobody wants
		rest := maps.Clone(p.run.backends)
		for _, b := range cfg.Backends {
			delete(rest, b.Name)
		}
		for _, name := range slices.Sorted(maps.Keys(rest)) {
			s.bring(&Backend{Name: name}, rest[name], nil)
		}
	}
	return s
}

// bring adds what brings one backend's servers to their states.
func (s *serverSteps) bring(b *Backend, have *LiveBackend, states States) {
	next := make([]Live, 0, max(len(have.Servers), len(b.Servers)))
	same := true
	for i, there := range have.Match(b.Servers) {
		state := Absent
		if i >= 0 {
			state = states.of(b.Name, i)
		}
		var live Live
		switch {
		case there != nil:
			live = *there
			id := ServerID{b.Name, live.Name}
			if state == Absent {
				s.remove = append(s.remove, id)
				state = Closed
			}
			switch cmd := "set server " + id.String() + " state " + stateCommand[state]; {
			case state < live.State:
				s.down = append(s.down, cmd)
			case state > live.State:
				s.up = append(s.up, cmd)
			}
			same = same && live.State == state
			switch {
			case state == Closed:
				live.Check = Unchecked
			case live.State == Closed:
				live.Check = opened(b)
			}
			live.State = state
		case state == Absent:
			continue
		default:
			srv := &b.Servers[i]
			id := ServerID{b.Name, srv.Name}
			live = Live{Name: srv.Name, Addr: srv.Addr, State: state, Check: Unchecked}
			s.up = append(s.up, "add server "+id.String()+" "+serverText(b.Options, srv))
			if b.Options.Check {
				s.up = append(s.up, "enable health "+id.String())
			}
			if b.sticky() {
				// It gives every server its cookie; before 3.0 a server that is
				// added gets none by itself.
				s.up = append(s.up, "enable dynamic-cookie backend "+b.Name)
			}
			if state != Closed {
				s.up = append(s.up, "set server "+id.String()+" state "+stateCommand[state])
				live.Check = opened(b)
			}
			same = false
		}
		next = append(next, live)
	}
	if !same {
		s.after[b.Name] = &LiveBackend{next}
	}
}

// opened is what HAProxy's checks say of a server of b that is not closed any more:
// it is good until one fails.
func opened(b *Backend) string {
	if b.Options.Check {
		return Up
	}
	return Unchecked
}

// changed is the worker's backends with some of them replaced. Whoever was
// given the map before keeps what he has.
func (r *running) changed(by map[string]*LiveBackend) map[string]*LiveBackend {
	if len(by) == 0 {
		return r.backends
	}
	next := maps.Clone(r.backends)
	maps.Copy(next, by)
	return next
}

// tellAll makes the worker equal to want by commands: doors close, then open,
// then certificates and routes change, then servers nobody wants are removed.
// The generation is set when all of it is confirmed.
func (p *Proxy) tellAll(cfg *Config, states States, want Files, res *Result) error {
	steps := p.serverSteps(cfg, states, p.text.fragments)
	var mapCmds []string
	var replace []func() error
	change := func(path string, have, want []row) {
		cmds, few := mapCommands(p.path(path), have, want)
		if strings.HasPrefix(path, regexpMap) { // their order counts, and a command adds at the end
			cmds, few = nil, slices.Equal(have, want)
		}
		if few {
			mapCmds = append(mapCmds, cmds...)
			return
		}
		replace = append(replace, func() error { return p.worker.replaceMap(p.path(path), want) })
		res.Commands += 2
	}
	if len(cfg.Bind.HTTP)+len(cfg.Bind.HTTPS) > 0 {
		for i, path := range mapFiles {
			change(path, p.run.tables[i], want.tables[i])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(want.lists)) {
		change(path, p.run.lists[path], want.lists[path])
	}
	sameCerts := len(cfg.Bind.HTTPS) == 0 || p.run.certs != nil && maps.EqualFunc(p.run.certs, want.certs, func(a, b certEntry) bool {
		return a.line == b.line && string(a.pem) == string(b.pem)
	})
	mark := generationIs(want.Gen)
	cmds := slices.Concat(steps.down, steps.up, mapCmds)
	res.Commands += len(cmds) + len(steps.remove)
	if len(mapCmds)+len(replace) > 0 || !sameCerts {
		// If not all of it is told, the next life must not take the rows and
		// certificates of the files for those of the worker.
		cmds = append(generationIs("changing"), cmds...)
	}

	// In the usual case, servers only, one exchange does everything.
	if len(cmds) > 0 && len(mapCmds)+len(replace)+len(steps.remove) == 0 && sameCerts {
		cmds = append(cmds, mark...)
		mark = nil
	}
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	p.run.backends = p.run.changed(steps.after)
	var unfit error
	if !sameCerts {
		unfit = p.tellCerts(want.certs, res)
		if unfit != nil && !errors.Is(unfit, ErrUnfit) {
			return unfit
		}
	}
	for _, f := range replace {
		if err := f(); err != nil {
			return err
		}
	}
	if err := p.remove(steps.remove, res); err != nil {
		return err
	}
	if unfit != nil {
		return unfit
	}
	if mark != nil && p.run.gen != want.Gen {
		if err := p.worker.tell(mark); err != nil {
			return err
		}
	}
	p.run.gen, p.run.tables, p.run.lists, p.run.certs = want.Gen, want.tables, want.lists, want.certs
	if p.run.told == nil {
		p.run.told = make(map[string]*fragment, len(cfg.Backends))
	}
	for _, b := range cfg.Backends {
		if f := p.text.fragments[b]; p.run.told[b.Name] != f {
			p.run.told[b.Name] = f
		}
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

// remove deletes closed servers. One that still has connections stays, and is
// tried again later: its requests may finish.
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

// tellCerts makes the worker's certificates equal to want. One that it does not
// take costs no other.
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
			continue // the worker has it from its start
		}
		err := p.worker.setCert(path, c.pem, !files[path])
		switch {
		case errors.Is(err, errFault):
			refused = append(refused, fmt.Errorf("%w: certificate %s: %w", ErrUnfit, name, err))
			if !files[path] {
				delete(lines, path)
			} // else the one before is served on
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
