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
	certs bool     // certificates change; only the worker can tell which commands that takes
	turns []string // keys of TLS tickets to tell
}

// orders compares the worker with the outline that it should run, in the directory
// dir.
func (r *running) orders(want *outline, states States, dir string) orders {
	o := orders{serverSteps: r.serverSteps(want.cfg, states, want.backends), turns: turns(r.tickets, want.tickets)}
	if tables := want.tables(); r.tables != tables {
		for _, path := range slices.Sorted(maps.Keys(tables.rows)) {
			if strings.HasPrefix(path, mapDir) && len(want.cfg.Bind.HTTP)+len(want.cfg.Bind.HTTPS) == 0 {
				continue // without a frontend HAProxy loads no map of routes
			}
			have, rows := r.rows[path], tables.rows[path]
			if cmds, few := mapCommands(dir+"/"+path, have, rows); few && !strings.HasPrefix(path, regexpMap) {
				o.rows = append(o.rows, cmds...)
			} else if !slices.Equal(have, rows) { // patterns keep their order, and a command adds at the end
				o.whole = append(o.whole, path)
			}
		}
	}
	o.certs = r.certs != want.certs && len(want.cfg.Bind.HTTPS) > 0 &&
		(r.entries == nil || !maps.EqualFunc(r.entries, want.certs.entries, func(a, b certEntry) bool {
			return a.line == b.line && string(a.pem) == string(b.pem)
		}))
	return o
}

// others names the changes that are no commands by themselves.
func (o *orders) others() []string {
	all := slices.Clone(o.whole)
	if o.certs {
		all = append(all, "certificates")
	}
	if len(o.turns) > 0 {
		all = append(all, "keys of TLS tickets")
	}
	return all
}

// serverSteps holds the commands that bring servers to their wanted states.
type serverSteps struct {
	down, up []string                // commands: to close and drain, then to add and open
	remove   []ServerID              // closed, and no longer wanted
	after    map[string]*LiveBackend // the backends that change, once the commands are done
	strays   []string                // backends that have servers, and that no configuration wants
	names    workerNames
	worker   picture
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

// serverSteps compares the worker with the wanted states. It skips a backend if the worker has
// confirmed its fragment. fragments may be nil.
func (r *running) serverSteps(cfg *Config, states States, fragments []*fragment) serverSteps {
	s := serverSteps{after: map[string]*LiveBackend{}, names: r.names(), worker: r.picture}
	known, j := r.told != nil, 0 // known: each name is one of those told, and the other way round
	for i, b := range cfg.Backends {
		if j < len(r.told) && fragments != nil && r.told[j] == fragments[i] {
			j++
			continue
		}
		for j < len(r.told) && r.told[j].of.Name < b.Name {
			j++
			known = false
		}
		if j < len(r.told) && r.told[j].of.Name == b.Name {
			j++
			if fragments != nil && r.told[j-1] == fragments[i] {
				continue
			}
		} else {
			known = false
		}
		if have := r.backends.Get(b.Name); have != nil { // else it waits for a reload
			s.bring(b, have, states.of(i))
		}
	}
	s.strays = slices.Clone(r.strays)
	if !known || j < len(r.told) {
		s.strays = Unwanted(cfg.Backends, r.backends)
	}
	for _, name := range s.strays {
		stray, its := &Backend{Name: name}, []State(nil)
		if i := slices.IndexFunc(cfg.Former, func(b *Backend) bool { return b.Name == name }); i >= 0 {
			stray, its = cfg.Former[i], states.of(len(cfg.Backends)+i) // the next call closes it
		}
		s.bring(stray, r.backends.Get(name), its)
	}
	return s
}

// bring adds the commands that bring the servers of one backend to their states.
func (s *serverSteps) bring(b *Backend, have *LiveBackend, states []State) {
	worker := s.names.of(b.Name) // the name that the backend has there
	next := make([]Live, 0, max(len(have.Servers), len(b.Servers)))
	same := true
	for i, there := range have.Match(b.Servers) {
		state := Absent
		if i >= 0 && i < len(states) {
			state = states[i]
		}
		var live Live
		switch {
		case there != nil:
			live = *there
			if state == Absent {
				s.remove = append(s.remove, ServerID{b.Name, live.Name})
				state = Closed
			}
			switch cmd := "set server " + worker + "/" + live.Name + " state " + stateCommand[state]; {
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
			id := ServerID{worker, srv.Name}
			live = Live{Name: srv.Name, Addr: srv.Addr, State: state, Check: Unchecked}
			add := "add server " + id.String() + " " + serverText(b, srv)
			if b.hashes() && s.worker.atLeast3(0) {
				add += " " + hashKey
			}
			if b.Options.TLS && s.worker.atLeast3(3) {
				add += " " + onlyGivenNames
			}
			s.up = append(s.up, add)
			if b.Options.Check {
				s.up = append(s.up, "enable health "+id.String())
			}
			if b.sticky() {
				// It gives every server its cookie; before 3.0 a server that is
				// added gets none by itself.
				s.up = append(s.up, "enable dynamic-cookie backend "+worker)
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

// opened returns the result of checks for a server of b that has just been opened: it is up until a
// check fails.
func opened(b *Backend) string {
	if b.Options.Check {
		return Up
	}
	return Unchecked
}

// within returns the part of want that a worker with the shape of have can take by command. This is
// the shape and the backends of have, with the servers, routes and certificates of want that fit
// them. It also has the parts that h keeps. within returns the states of its servers with it.
func within(want *Config, states States, have *Config, in workerNames, h held) (*Config, States) {
	out, outStates := &Config{Shape: have.Shape, DefaultBackend: want.DefaultBackend, Period: want.Period,
		Picks: want.Picks, Hostnames: want.Hostnames},
		make(States, len(have.Backends))
	for _, l := range have.Lists {
		if i, found := slices.BinarySearchFunc(want.Lists, l.Name, func(w *List, name string) int {
			return strings.Compare(w.Name, name)
		}); found {
			l = want.Lists[i]
		}
		out.Lists = append(out.Lists, l)
	}
	if h.rest != "" {
		out.DefaultBackend = h.rest
	}
	formers := make(map[string]int, len(want.Former)) // the places of their states
	for i, b := range want.Former {
		formers[b.Name] = len(want.Backends) + i
	}
	out.Backends = make([]*Backend, 0, len(have.Backends))
	unknown := map[string]*Backend{} // backends of want that the worker lacks
	lacks := func(b *Backend) {
		if !in.has(b.Name) {
			unknown[b.Name] = b
		}
	}
	j := 0
	for i, b := range have.Backends { // sorted by name, as those of want
		for j < len(want.Backends) && want.Backends[j].Name < b.Name {
			lacks(want.Backends[j])
			j++
		}
		next, at := (*Backend)(nil), 0
		if j < len(want.Backends) && want.Backends[j].Name == b.Name {
			next, at = want.Backends[j], j
			j++
		} else if former, is := formers[b.Name]; is {
			next, at = want.Former[former-len(want.Backends)], former
		}
		switch {
		case next == nil && len(b.Servers) > 0:
			next = b.serving(nil)
		case next == nil:
			next = b
		default:
			outStates[i] = states.of(at)
			if !next.sameShape(b) {
				next = b.serving(next.Servers)
			}
		}
		out.Backends = append(out.Backends, next)
	}
	for _, b := range want.Backends[j:] {
		lacks(b)
	}
	for _, b := range want.Former {
		if find(have.Backends, b.Name) == nil {
			lacks(b)
		}
	}
	h.shutServers(out.Backends, outStates)
	out.Routes = routesWithin(want.Routes, have, in, unknown, h)
	kept := make(map[string]*Cert)
	for _, c := range have.reloadedCerts() {
		kept[c.Name] = c
	}
	for _, c := range want.Certs {
		if len(c.PEM) <= maxPayload && !fixed(c.Name) && kept[c.Name] == nil {
			out.Certs = append(out.Certs, c)
		}
	}
	out.Certs = append(out.Certs, slices.Collect(maps.Values(kept))...)
	slices.SortFunc(out.Certs, func(a, b *Cert) int { return strings.Compare(a.Name, b.Name) })
	return out, outStates
}

// routesWithin returns the routes that the worker can take. It leaves out routes to backends that
// the worker lacks, and any canary or Choice that the worker lacks. If such a backend has guards,
// its route is shut. If all routes can stay as they are, routesWithin returns the same list.
func routesWithin(routes []Route, have *Config, in workerNames, unknown map[string]*Backend, h held) []Route {
	lacksChoice := func(name string) bool {
		return name != "" && !slices.ContainsFunc(have.Choices, func(c *Choice) bool { return c.Name == name })
	}
	lacksCanary := func(name string) bool {
		return name != "" && !in.has(name) && find(have.Backends, name) == nil
	}
	lacks := func(r Route) bool { return lacksCanary(r.Canary) || lacksChoice(r.Choice) }
	if len(unknown)+len(h.routes)+len(h.stale) == 0 && !slices.ContainsFunc(routes, lacks) {
		return routes
	}
	out := make([]Route, 0, len(routes))
	for i, r := range routes {
		former, is := h.routes[i]
		switch next := unknown[r.Backend]; {
		case h.shuts(&r, former.Backend, lacksChoice(r.Choice)), next != nil && !is && next.rejects():
			r = r.shut()
		case is:
			r = former
		}
		if lacksCanary(r.Canary) {
			r.Canary, r.CanaryWeight = "", 0
		}
		if lacksChoice(r.Choice) {
			r.Choice = ""
		}
		if unknown[r.Backend] == nil {
			out = append(out, r)
		}
	}
	return out
}
