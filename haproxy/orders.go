package haproxy

import (
	"maps"
	"slices"
	"strings"
)

// orders holds all commands that make the worker equal to a configuration.
type orders struct {
	serverSteps
	rows  []string // commands for single rows of maps and lists
	whole []string // maps and lists, by path, that change in one piece
	certs bool     // certificates change; which commands that takes, only the worker can say
}

// orders compares the worker with the files that it should run, in the directory
// dir.
func (r *running) orders(cfg *Config, states States, want Files, fragments map[*Backend]*fragment, dir string) orders {
	o := orders{serverSteps: r.serverSteps(cfg, states, fragments)}
	for _, path := range slices.Sorted(maps.Keys(want.rows)) {
		if strings.HasPrefix(path, mapDir) && len(cfg.Bind.HTTP)+len(cfg.Bind.HTTPS) == 0 {
			continue // without a frontend HAProxy loads no map of routes
		}
		have, rows := r.rows[path], want.rows[path]
		if cmds, few := mapCommands(dir+"/"+path, have, rows); few && !strings.HasPrefix(path, regexpMap) {
			o.rows = append(o.rows, cmds...)
		} else if !slices.Equal(have, rows) { // patterns keep their order, and a command adds at the end
			o.whole = append(o.whole, path)
		}
	}
	o.certs = len(cfg.Bind.HTTPS) > 0 && (r.certs == nil || !maps.EqualFunc(r.certs, want.certs, func(a, b certEntry) bool {
		return a.line == b.line && string(a.pem) == string(b.pem)
	}))
	return o
}

// serverSteps holds the commands that bring servers to their states.
type serverSteps struct {
	down, up []string                // commands: to close and drain, then to add and open
	remove   []ServerID              // closed, and no longer wanted
	after    map[string]*LiveBackend // the backends that change, once the commands are done
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

// serverSteps compares the worker with the wish. It skips a backend that runs the
// fragment of the wish already.
func (r *running) serverSteps(cfg *Config, states States, fragments map[*Backend]*fragment) serverSteps {
	s := serverSteps{after: map[string]*LiveBackend{}}
	for _, b := range cfg.Backends {
		have := r.backends[b.Name]
		if have == nil {
			continue // it waits for a reload
		}
		if f := fragments[b]; f == nil || f != r.told[b.Name] || f.present != len(have.Servers) {
			s.bring(b, have, states)
		}
	}
	for _, name := range Unwanted(cfg.Backends, r.backends) {
		s.bring(&Backend{Name: name}, r.backends[name], nil)
	}
	return s
}

// bring adds the commands that bring the servers of one backend to their states.
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

// opened returns what HAProxy's checks say of a server of b that is no longer
// closed: it is up until a check fails.
func opened(b *Backend) string {
	if b.Options.Check {
		return Up
	}
	return Unchecked
}

// changed returns the worker's backends with some of them replaced. It leaves the
// map from before as it is, for those who hold it.
func (r *running) changed(by map[string]*LiveBackend) map[string]*LiveBackend {
	if len(by) == 0 {
		return r.backends
	}
	next := maps.Clone(r.backends)
	maps.Copy(next, by)
	return next
}

// within returns the part of want that a worker with the shape of have can take by
// command: the shape and the backends of have, with the servers, routes and
// certificates of want that fit them.
func within(want, have *Config) *Config {
	out := &Config{Shape: have.Shape, DefaultBackend: want.DefaultBackend}
	for _, l := range have.Lists {
		if i, found := slices.BinarySearchFunc(want.Lists, l.Name, func(w *List, name string) int { return strings.Compare(w.Name, name) }); found {
			l = want.Lists[i]
		}
		out.Lists = append(out.Lists, l)
	}
	wanted := make(map[string]*Backend, len(want.Backends))
	for _, b := range want.Backends {
		wanted[b.Name] = b
	}
	known := make(map[string]bool, len(have.Backends))
	for _, b := range have.Backends {
		known[b.Name] = true
		switch next := wanted[b.Name]; {
		case next == nil && len(b.Servers) == 0:
			out.Backends = append(out.Backends, b)
		case next == nil:
			out.Backends = append(out.Backends, &Backend{Name: b.Name, Origin: b.Origin, TCP: b.TCP, Directives: b.Directives, Options: b.Options})
		case next.sameShape(b):
			out.Backends = append(out.Backends, next)
		default:
			out.Backends = append(out.Backends, &Backend{Name: b.Name, Origin: next.Origin, TCP: b.TCP, Directives: b.Directives, Options: b.Options, Servers: next.Servers})
		}
	}
	for _, r := range want.Routes {
		if r.Canary != "" && !known[r.Canary] {
			r.Canary, r.CanaryWeight = "", 0
		}
		if !slices.ContainsFunc(have.Choices, func(c *Choice) bool { return c.Name == r.Choice }) {
			r.Choice = ""
		}
		if r.Backend == "" || known[r.Backend] || wanted[r.Backend] == nil {
			out.Routes = append(out.Routes, r)
		}
	}
	kept := make(map[string]*Cert)
	for _, c := range have.Certs {
		if len(c.PEM) > maxPayload || fixed(c.Name) {
			kept[c.Name] = c
		}
	}
	for _, c := range want.Certs {
		if len(c.PEM) <= maxPayload && !fixed(c.Name) && kept[c.Name] == nil {
			out.Certs = append(out.Certs, c)
		}
	}
	out.Certs = append(out.Certs, slices.Collect(maps.Values(kept))...)
	slices.SortFunc(out.Certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
	return out
}
