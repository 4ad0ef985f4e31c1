package haproxy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// orders holds all commands that make the worker equal to a configuration.
type orders struct {
	serverSteps
	maps  []mapStep // changes of maps and lists, in order
	certs bool      // certificates change; only the worker can tell which commands that takes
	turns []string  // keys of TLS tickets to tell
}

// mapStep changes a map or a list: row by row, or in one piece.
type mapStep struct {
	path string
	cmds []string // for single rows
	rows []row    // the new content if there are no commands
}

// atOnce returns the commands for single rows before the first map that changes in one piece, and
// the steps after them.
func (o *orders) atOnce() (cmds []string, rest []mapStep) {
	for i, step := range o.maps {
		if step.cmds == nil {
			return cmds, o.maps[i:]
		}
		cmds = append(cmds, step.cmds...)
	}
	return cmds, nil
}

// mapSteps returns the changes of maps and lists from have to want, of those that HAProxy loads.
//
// A row of one map may name rows of another map, which then has to have them at any time. Maps
// therefore change in the order of mapOrder. The rows of pick.map that are no longer wanted go
// last, and until then the map has the old and the new rows. No row of it ever changes its meaning,
// because its key is derived from its content.
func mapSteps(have, want map[string][]row, loads func(path string) bool, dir string) (steps []mapStep) {
	step := func(path string, have, rows []row) {
		if !loads(path) {
			return
		}
		patterns := patternTable(slices.Index(mapFiles[:], path))
		if cmds, few := mapCommands(dir+"/"+path, have, rows); few && !patterns {
			if len(cmds) > 0 {
				steps = append(steps, mapStep{path: path, cmds: cmds})
			}
		} else if !slices.Equal(have, rows) { // patterns keep their order, and a command adds at the end
			steps = append(steps, mapStep{path: path, rows: rows})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if !strings.HasPrefix(path, mapDir) {
			step(path, have[path], want[path])
		}
	}
	var inner []string
	for _, path := range mapOrder {
		rows, is := want[path]
		if !is {
			continue
		}
		if path == pickMap || strings.HasPrefix(path, pickRegexpMap) {
			both := union(have[path], rows, path == pickMap)
			step(path, have[path], both)
			if len(both) > len(rows) {
				inner = append(inner, path)
			}
			continue
		}
		step(path, have[path], rows)
	}
	for _, path := range inner {
		step(path, union(have[path], want[path], path == pickMap), want[path])
	}
	return steps
}

// union returns the rows of want, and those of have with other keys. If sorted is set, it returns
// them by key.
func union(have, want []row, sorted bool) []row {
	keys := make(map[string]bool, len(want))
	for _, r := range want {
		keys[r.key] = true
	}
	all := slices.Clip(want)
	for _, r := range have {
		if !keys[r.key] {
			all = append(all, r)
		}
	}
	if sorted {
		all = slices.SortedFunc(slices.Values(all), func(a, b row) int { return strings.Compare(a.key, b.key) })
	}
	return all
}

// orders compares the worker with the outline that it should run, in the directory
// dir.
func (r *running) orders(want *outline, states States, dir string) orders {
	o := orders{
		serverSteps: r.serverSteps(want.cfg, states, want.backends, want.by.cookies),
		turns:       turns(r.tickets, want.tickets),
	}
	if tables := want.tables(); r.tables != tables {
		o.maps = mapSteps(r.rows, tables.rows, want.cfg.loads, dir)
	}
	o.certs = r.certs != want.certs && len(want.cfg.certLists()) > 0 &&
		(r.entries == nil || !maps.EqualFunc(r.entries, want.certs.entries, func(a, b certEntry) bool {
			return a.list == b.list && a.line == b.line && string(a.pem) == string(b.pem)
		}))
	return o
}

// others names the changes that are no commands by themselves.
func (o *orders) others() []string {
	var all []string
	for _, step := range o.maps {
		if step.cmds == nil {
			all = append(all, step.path)
		}
	}
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
	drop     []string                // commands that close servers of backends that go
	opens    map[netip.AddrPort]bool // addresses of the servers that open
	remove   []ServerID              // closed, and no longer wanted
	room     quota                   // for more servers of each tenant
	later    map[string]bool         // backends with servers that a later round adds or removes
	after    map[string]*LiveBackend // the backends that change, once the commands are done
	strays   []string                // backends that have servers, and that no configuration wants
	names    workerNames
	worker   picture
	cookies  string // the key of the cookies of servers
}

var stateCommand = map[State]string{Closed: "maint", Drain: "drain", Open: "ready"}

// serverSteps compares the worker with the wanted states. It skips a backend if the worker has
// confirmed its fragment. fragments may be nil.
func (r *running) serverSteps(cfg *Config, states States, fragments []*fragment, cookies string) serverSteps {
	s := serverSteps{
		after: map[string]*LiveBackend{}, opens: map[netip.AddrPort]bool{}, names: r.names(), worker: r.picture,
		cookies: cookies, room: quota{}, later: map[string]bool{},
	}
	var leaving []*Backend
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
		have := r.backends.Get(b.Name)
		if have == nil {
			continue // it waits for a reload
		}
		if cfg.Unused[b.Name] {
			leaving = append(leaving, b)
			continue
		}
		s.bring(b, have, states.of(i))
	}
	s.strays = slices.Clone(r.strays)
	if !known || j < len(r.told) {
		s.strays = Unwanted(cfg.Backends, r.backends)
	}
	for _, name := range s.strays {
		if i := slices.IndexFunc(cfg.Former, func(b *Backend) bool { return b.Name == name }); i >= 0 {
			s.bring(cfg.Former[i], r.backends.Get(name), states.of(len(cfg.Backends)+i)) // the next call closes it
			continue
		}
		leaving = append(leaving, &Backend{Name: name})
	}
	for _, b := range leaving {
		s.part(b, r.backends.Get(b.Name))
	}
	return s
}

// part adds the commands that close all servers of a backend that goes.
func (s *serverSteps) part(b *Backend, have *LiveBackend) {
	n := len(s.down)
	s.bring(b, have, nil)
	if !slices.ContainsFunc(have.Servers, func(l Live) bool { return s.opens[l.Addr] }) {
		s.drop, s.down = append(s.drop, s.down[n:]...), s.down[:n]
	}
}

// inOrder returns the commands of a round, among them those that make backends and change rows. Servers
// close before others open, since an address may change hands. The rows lead away from a backend that
// goes before its servers close, unless one of their addresses changes hands. Otherwise a request
// could find the backend without servers.
func (s *serverSteps) inOrder(made, rows []string) []string {
	return slices.Concat(s.down, made, s.up, rows, s.drop)
}

// bring adds the commands that bring the servers of one backend to their states.
func (s *serverSteps) bring(b *Backend, have *LiveBackend, states []State) {
	worker := s.names.of(b.Name) // the name that the backend has there
	next := make([]Live, 0, max(len(have.Servers), len(b.Servers)))
	same, open, late := true, false, []string(nil)
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
				if s.room.take(b) {
					s.remove = append(s.remove, ServerID{b.Name, live.Name})
				} else {
					s.later[b.Name] = true
				}
				state = Closed
			}
			set := "set server " + worker + "/" + live.Name
			if i >= 0 && state > Closed && b.Servers[i].weight() != live.Weight {
				live.Weight = b.Servers[i].weight()
				s.up = append(s.up, set+" weight "+strconv.Itoa(live.Weight))
				same = false
			}
			switch cmd := set + " state " + stateCommand[state]; {
			case i < 0 && live.State == Open && renamed(b, states, have, live.Addr):
				late = append(late, cmd)
			case state < live.State:
				s.down = append(s.down, cmd)
			case state > live.State:
				s.up = append(s.up, cmd)
				s.opens[live.Addr] = true
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
		case !s.room.take(b) && (open || state != Open): // a backend has its first open server at once
			s.later[b.Name] = true
			continue
		default:
			srv := &b.Servers[i]
			id := ServerID{worker, srv.Name}
			live = Live{
				Name: srv.Name, Addr: srv.Addr, Source: srv.Source, State: state, Check: Unchecked,
				Weight: srv.weight(),
			}
			add := "add server " + id.String() + " " + serverText(b, srv)
			if s.worker.atLeast3(0) {
				add += ownCookie(b, srv, s.cookies)
			}
			if b.hashes() && s.worker.atLeast3(0) {
				add += " " + hashKey
			}
			if !s.worker.atLeast3(0) { // HTTP/2 would take a connection for each request, see serverOptions
				add = strings.Replace(add, " alpn h2,"+http11, " alpn "+http11, 1)
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
				s.opens[srv.Addr] = true
				s.up = append(s.up, "set server "+id.String()+" state "+stateCommand[state])
				live.Check = opened(b)
			}
			same = false
		}
		next, open = append(next, live), open || live.State == Open
	}
	s.up = append(s.up, late...)
	if !same {
		s.after[b.Name] = &LiveBackend{next}
	}
}

// serversAtOnce is how many servers of a namespace come or go in one round. Each of these commands stops all
// threads of HAProxy, and the changes of other namespaces wait for the end of the round.
const serversAtOnce = 500

// quota counts the servers of each tenant that come or go in a round.
type quota map[Tenant]int

// take counts one more server for the tenant of a backend. It reports whether serversAtOnce allows the server.
func (q quota) take(of *Backend) bool {
	q[of.tenant()]++
	return q[of.tenant()] <= serversAtOnce
}

// renamed reports whether a server of another name at the same address is about to be opened. A server
// gets another name if it becomes a backup, or stops being one. The other server opens first then.
func renamed(b *Backend, states []State, have *LiveBackend, at netip.AddrPort) bool {
	for i := range b.Servers {
		if s := &b.Servers[i]; s.Addr == at && i < len(states) && states[i] == Open {
			live, _ := have.Find(s.Name)
			return live.State != Open
		}
	}
	return false
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
	out, outStates := &Config{
		Shape: have.Shape, DefaultBackend: want.DefaultBackend, Period: want.Period,
		Hostnames: want.Hostnames, Unused: make(map[string]bool),
	},
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
		if next == nil {
			out.Unused[b.Name] = true
			if next = b; len(b.Servers) > 0 {
				next = b.serving(nil)
			}
		} else {
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
	out.Routes, out.Picks = routesWithin(want, have, in, unknown, h), merged(want.Picks, h.picks)
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
func routesWithin(want, have *Config, in workerNames, unknown map[string]*Backend, h held) []*Route {
	routes := want.Routes
	lacksChoice := func(name string) bool {
		return name != "" && !slices.ContainsFunc(have.Choices, func(c *Choice) bool { return c.Name == name })
	}
	lacksCanary := func(name string) bool {
		return name != "" && !in.has(name) && find(have.Backends, name) == nil
	}
	missing := func(name string) bool { return unknown[name] != nil }
	lacks := func(r *Route) bool {
		return lacksCanary(r.Canary) || lacksChoice(r.Choice) || r.Pick != "" && want.lacks(r, have, missing)
	}
	if len(unknown)+len(h.routes)+len(h.stale) == 0 && !slices.ContainsFunc(routes, lacks) {
		return routes
	}
	out := make([]*Route, 0, len(routes))
	for i, r := range routes {
		former, is := h.routes[i]
		if r.Scope != "" {
			switch short := want.lacks(r, have, missing); {
			case h.shutsScoped(want, r, &former, is, unknown):
				out = append(out, r.shut())
			case !short:
				out = append(out, r)
			case is:
				out = append(out, &former)
			}
			continue
		}
		switch next := unknown[r.Backend]; {
		case h.shuts(r, former.Backend, lacksChoice(r.Choice)), next != nil && !is && next.rejects():
			r = r.shut()
		case is:
			r = &former
		}
		if canary, choice := lacksCanary(r.Canary), lacksChoice(r.Choice); canary || choice {
			r = new(*r)
			if canary {
				r.Canary, r.CanaryWeight = "", 0
			}
			if choice {
				r.Choice = ""
			}
		}
		if unknown[r.Backend] == nil {
			out = append(out, r)
		}
	}
	return out
}

// merged returns Picks, and more Picks among them, by name.
func merged(picks, more []*Pick) []*Pick {
	for _, p := range more {
		if byName(picks, p.Name, pickName) == nil {
			picks = slices.Concat(picks, []*Pick{p})
			slices.SortFunc(picks, func(a, b *Pick) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	return picks
}
