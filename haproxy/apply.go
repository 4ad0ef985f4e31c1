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
// in these states; a server that states does not name is Absent. It is safe to
// repeat. What needs a reload before one is allowed, or after the same one
// failed, stays as it was, and everything else is done: then RetryAt says when
// to come again, and Changed knocks at that time.
//
// An error means that something was not confirmed. What is believed of the
// worker is then read anew by the next call.
func (p *Proxy) Apply(ctx context.Context, cfg *Config, states map[ServerID]State) (Result, error) {
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

func (p *Proxy) apply(ctx context.Context, cfg *Config, states map[ServerID]State) (Result, error) {
	var res Result
	if err := ctx.Err(); err != nil {
		return res, err
	}
	if err := p.validate(cfg); err != nil {
		return res, err
	}
	if err := p.ensure(); err != nil {
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
		due := p.reloadDue(want.Shape, urgent)
		if due.After(time.Now()) {
			res.RetryAt, failure = due, p.failureOf(want.Shape)
		} else if failure = p.reload(ctx, cfg, want, why); failure == nil {
			res.Reloaded = true
		} else {
			res.RetryAt = p.reloadDue(want.Shape, urgent)
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
	if err := p.disk.sync(want.Content, want.sums); err != nil {
		return res, errors.Join(failure, err)
	}
	if err := p.tellAll(cfg, states, want, &res); err != nil {
		p.unheard++
		return res, errors.Join(failure, err)
	}
	p.unheard = 0
	return res, failure
}

// validate is cfg.Validate, with a memory for the parts that are shared by
// pointer, and for the routes.
func (p *Proxy) validate(cfg *Config) error {
	var errs []error
	next := make(map[any]bool, len(cfg.Backends)+len(cfg.Certs)+1)
	once := func(part any, check func() error) {
		if !p.valid[part] {
			if err := check(); err != nil {
				errs = append(errs, err)
				return
			}
		}
		next[part] = true
	}
	names := make(map[string]bool, len(cfg.Backends))
	for _, b := range cfg.Backends {
		if names[b.Name] {
			errs = append(errs, fmt.Errorf("backend %q: listed twice", b.Name))
		}
		names[b.Name] = true
		once(b, b.Validate)
	}
	clear(names)
	for _, c := range cfg.Certs {
		if names[c.Name] {
			errs = append(errs, fmt.Errorf("certificate %q: listed twice", c.Name))
		}
		names[c.Name] = true
		once(c, c.Validate)
	}
	p.valid = next
	head := Config{Bind: cfg.Bind, Tune: cfg.Tune, DefaultBackend: cfg.DefaultBackend}
	if !slices.Equal(p.text.routesOf, cfg.Routes) {
		head.Routes = cfg.Routes
	}
	if p.text.headOf.Tune == cfg.Tune {
		head.Tune = Tune{}
	}
	errs = append(errs, head.Validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("HAProxy's configuration: %w", err)
	}
	return nil
}

// tellServers changes servers, and nothing else, in the backends the worker
// has.
func (p *Proxy) tellServers(cfg *Config, states map[ServerID]State, res *Result) error {
	steps := p.serverSteps(cfg, states, nil)
	res.Commands += len(steps.cmds)
	if len(steps.cmds) == 0 {
		return nil
	}
	if err := p.worker.tell(steps.cmds); err != nil {
		return err
	}
	p.run.servers = steps.after
	return nil
}

// serverSteps are the commands that bring servers to their states.
type serverSteps struct {
	cmds   []string          // in order: close, drain, add, open
	remove []ServerID        // closed, and no longer wanted
	after  map[ServerID]Live // the servers once the commands are done; nil if there are none
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

func (p *Proxy) serverSteps(cfg *Config, states map[ServerID]State, fragments map[*Backend]*fragment) serverSteps {
	var s serverSteps
	var up []string
	have := p.run.servers
	set := func(id ServerID, live Live) {
		if s.after == nil {
			s.after = maps.Clone(have)
		}
		s.after[id] = live
	}
	found := 0
	for _, b := range cfg.Backends {
		if f := fragments[b]; f != nil && f == p.run.told[b] {
			found += f.present
			continue
		}
		for i := range b.Servers {
			srv := &b.Servers[i]
			id := ServerID{b.Name, srv.Name}
			state := states[id]
			live, there := have[id]
			if there {
				found++
			}
			switch {
			case state == Absent && there:
				found-- // the sweep below takes it
			case state == Absent || there && live.State == state:
			case there:
				cmd := "set server " + id.String() + " state " + stateCommand[state]
				if state < live.State {
					s.cmds = append(s.cmds, cmd)
				} else {
					up = append(up, cmd)
				}
				live.State = state
				set(id, live)
			case p.run.backends[b.Name]:
				live = Live{Addr: srv.Addr, State: state, Check: "no check"}
				up = append(up, "add server "+id.String()+" "+serverText(b, srv))
				if b.Check {
					live.Check = "UP"
					up = append(up, "enable health "+id.String())
				}
				if state != Closed {
					up = append(up, "set server "+id.String()+" state "+stateCommand[state])
				}
				set(id, live)
			}
		}
	}
	if found < len(have) {
		wanted := make(map[ServerID]bool, len(have))
		for _, b := range cfg.Backends {
			for i := range b.Servers {
				if id := (ServerID{b.Name, b.Servers[i].Name}); states[id] > Absent {
					wanted[id] = true
				}
			}
		}
		for id, live := range have {
			if wanted[id] {
				continue
			}
			s.remove = append(s.remove, id)
			if live.State != Closed {
				s.cmds = append(s.cmds, "set server "+id.String()+" state maint")
				live.State = Closed
				set(id, live)
			}
		}
		slices.SortFunc(s.remove, func(a, b ServerID) int { return strings.Compare(a.String(), b.String()) })
		slices.Sort(s.cmds)
	}
	s.cmds = append(s.cmds, up...)
	return s
}

// tellAll makes the worker equal to want by commands: doors close, then open,
// then certificates and routes change, then servers nobody wants are removed.
// The generation is set when all of it is confirmed.
func (p *Proxy) tellAll(cfg *Config, states map[ServerID]State, want Files, res *Result) error {
	steps := p.serverSteps(cfg, states, want.fragments)
	var mapCmds []string
	var replace []func() error
	if len(cfg.Bind.HTTP)+len(cfg.Bind.HTTPS) > 0 {
		for _, m := range []struct {
			path       string
			have, want []row
		}{{routeMap, p.run.exact, want.exact}, {wildMap, p.run.wild, want.wild}} {
			cmds, few := mapCommands(p.path(m.path), m.have, m.want)
			if few {
				mapCmds = append(mapCmds, cmds...)
			} else {
				replace = append(replace, func() error { return p.worker.replaceMap(p.path(m.path), m.want) })
				res.Commands += 2
			}
		}
	}
	sameCerts := len(cfg.Bind.HTTPS) == 0 || p.run.certs != nil && maps.EqualFunc(p.run.certs, want.certs, func(a, b certEntry) bool {
		return a.line == b.line && string(a.pem) == string(b.pem)
	})
	mark := []string{"experimental-mode on", "set var proc.gen str(" + want.Gen + ")"}
	cmds := slices.Concat(steps.cmds, mapCmds)
	res.Commands += len(cmds) + len(steps.remove)

	// In the usual case, servers only, one exchange does everything.
	if len(cmds) > 0 && len(mapCmds)+len(replace)+len(steps.remove) == 0 && sameCerts {
		cmds = append(cmds, mark...)
		mark = nil
	}
	if err := p.worker.tell(cmds); err != nil {
		return err
	}
	if steps.after != nil {
		p.run.servers = steps.after
	}
	if !sameCerts {
		if err := p.tellCerts(want.certs, res); err != nil {
			return err
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
	if mark != nil && p.run.gen != want.Gen {
		if err := p.worker.tell(mark); err != nil {
			return err
		}
	}
	p.run.gen, p.run.exact, p.run.wild, p.run.certs, p.run.told = want.Gen, want.exact, want.wild, want.certs, want.fragments
	if res.Commands > 0 {
		p.note(func(i *Info) { i.Generation = want.Gen })
	}
	return nil
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
	after := maps.Clone(p.run.servers)
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
				delete(after, ids[n])
			case strings.Contains(v, "still has connections"):
				res.RetryAt = earlier(res.RetryAt, time.Now().Add(lingerRetry))
			default:
				return fmt.Errorf("HAProxy's worker: %s: %s", cmds[n], v)
			}
			n++
		}
	}
	p.run.servers = after
	return nil
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// tellCerts makes the worker's certificates equal to want.
func (p *Proxy) tellCerts(want map[string]certEntry, res *Result) error {
	have := p.run.certs
	files, err := p.worker.certFiles()
	if err != nil {
		return err
	}
	lines := make(map[string]string, len(want))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		c, path := want[name], p.path(certDir+name)
		lines[path] = c.line
		if old, ok := have[name]; files[path] && ok && string(old.pem) == string(c.pem) {
			continue
		}
		if len(c.pem) > maxPayload {
			continue // the worker has it from its start
		}
		if err := p.worker.setCert(path, c.pem, !files[path]); err != nil {
			return err
		}
		res.Commands += 2
	}
	if err := p.worker.listCerts(p.path(crtList), p.path(certDir+defaultCert), lines); err != nil {
		return err
	}
	var cmds []string
	for path := range files {
		if strings.HasPrefix(path, p.path(certDir)) && path != p.path(certDir+defaultCert) && lines[path] == "" {
			cmds = append(cmds, "del ssl cert "+path)
		}
	}
	res.Commands += len(cmds)
	return p.worker.tell(cmds)
}
