package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"sallyport/haproxy"
	"sallyport/routes"
)

// Want is the wanted state: the servers of the clusters' endpoints, and the verified
// routes.
type Want struct {
	Backends []*haproxy.Backend // each name once; the servers of each sorted by name
	Routes   routes.Table
	// Rules lead the packets of sources into their tables.
	Rules map[routes.Selector]bool
	// Allocations tell whether a server's address belongs to the namespace of its
	// Service.
	Allocations *routes.Allocations
	// Drained are the clusters whose servers get no new traffic where another cluster has a server
	// for it.
	Drained map[string]bool
	// Silent are the clusters without any BGP session left, as long as their routes stay. Their servers get
	// no new traffic where a cluster with sessions has a server for it.
	Silent map[string]bool
	// Scarce are, by backend, the clusters with too few ready servers for it (see Scarcity). Their servers get
	// no new traffic where a cluster with enough has a server for it.
	Scarce map[string]map[string]bool
	// Shares are those of the clusters that are in a set. Without any, each pod is equal.
	Shares map[string]Share
}

// Have is the actual state, read from HAProxy and from the kernel.
type Have struct {
	Backends haproxy.LiveBackends
	Routes   routes.Table
	// Conflicts are our routes that the kernel holds but does not follow. Routes does
	// not contain them.
	Conflicts []routes.Conflict
	// Rules are ours. Routes contains no route of a table to which none of them leads.
	Rules map[routes.Selector]routes.Rule
	// Direct holds the addresses that need no route of ours: known nodes on a network
	// we are connected to. Pods with hostNetwork answer there.
	Direct map[netip.Addr]bool
	// Listeners are those that HAProxy has for certain.
	Listeners []haproxy.Listener
}

// Servers yields every server in HAProxy.
func (h Have) Servers() iter.Seq[haproxy.Live] {
	return func(yield func(haproxy.Live) bool) {
		for _, b := range h.Backends.All() {
			for _, s := range b.Servers {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// Shadowed reports whether the kernel holds the route of a step, or the rule, already and does not follow it.
func (h Have) Shadowed(step Step) bool {
	switch s := step.(type) {
	case AddRoute:
		return slices.ContainsFunc(h.Conflicts, func(c routes.Conflict) bool {
			return c.Selector == s.Selector && c.Via == s.Via
		})
	case AddRule:
		return h.Rules[s.Selector].Shadowed
	}
	return false
}

// A Step changes one server or one route. The kinds below are all there are.
type Step interface {
	String() string
	step()
}

// SetServer brings a server to a state, adding or deleting it where needed.
type SetServer struct {
	ID    haproxy.ServerID
	State haproxy.State
	Why   string
}

// AddRoute adds a route to the kernel, or changes the next hop of our route for the
// selector.
type AddRoute struct {
	routes.Selector
	Via netip.Addr
}

// DropRoute deletes our route for a selector.
type DropRoute struct {
	routes.Selector
}

// AddRule leads the packets of a selector into the table of its source.
type AddRule struct {
	routes.Selector
}

// DropRule deletes our rule for a selector.
type DropRule struct {
	routes.Selector
}

func (s SetServer) String() string {
	return fmt.Sprintf("set %s/%s %s: %s", s.ID.Backend, s.ID.Server, s.State, s.Why)
}
func (s AddRoute) String() string  { return fmt.Sprintf("add route %s via %s", s.Selector, s.Via) }
func (s DropRoute) String() string { return fmt.Sprintf("drop route %s", s.Selector) }
func (s AddRule) String() string   { return fmt.Sprintf("add rule %s", s.Selector) }
func (s DropRule) String() string  { return fmt.Sprintf("drop rule %s", s.Selector) }

func (SetServer) step() {}
func (AddRoute) step()  {}
func (DropRoute) step() {}
func (AddRule) step()   {}
func (DropRule) step()  {}

// Plan returns every step that is safe now. Each step is safe by itself and together with any other
// steps: a caller may take them in any order, and may leave some out. A step may make other steps
// safe, and the next call returns those. Three rounds at most lead from any actual state to the
// wanted state: close the server, change the route, open the server.
//
// Why this is safe: let h be the longest match among our routes for an open server. While the
// server is open, no step drops or changes h, and no step adds a route that would be a longer
// match. Its packets therefore keep their path, even if the caller takes only some of the steps. A
// step opens a server only if h is wanted as it is and no longer match is wanted. So no step of the
// same round changes that path.
//
// Plan adds a missing rule at once, even if the rule leads packets of an open server. Without its
// rule the route of this server does not count, so that Plan also closes the server. Its packets take
// the main table until the rule is back, and may reach another cluster's pod there. With the rule
// they take the verified route, or are refused. Plan drops a rule only if it leads to no open server.
//
// Plan also closes each server with an address that, according to the cluster's records, does not
// belong to the namespace of its Service. This is also safe, because it opens no server and changes
// no route.
func Plan(want Want, have Have) []Step { return new(Planner).Plan(want, have) }

// A Planner plans as Plan does, and remembers the backends that needed no step. It
// skips such a backend until the backend, its servers in HAProxy, the routes or the
// allocations of its addresses change. The memory saves time and changes no step.
type Planner struct {
	// These are of the last call.
	want, have  routes.Table
	direct      map[netip.Addr]bool
	drained     map[string]bool
	silent      map[string]bool
	scarce      map[string]map[string]bool
	shares      map[string]Share
	allocations *routes.Allocations
	live        haproxy.LiveBackends
	backends    []*haproxy.Backend
	places      map[string]int // of backends, by name
	unwanted    []string       // names in live that are not in backends

	settled []bool         // whether each backend needed no step
	states  haproxy.States // of each backend, once the steps of the last call are taken
	weighed []weighed      // each backend with the weights of its servers
	planned int            // backends that the last call did not skip
}

// recall forgets the backends that may need a step after a change of routes,
// allocations or backends. It returns the names of the backends that are no longer wanted.
func (p *Planner) recall(want Want, have Have) (gone []string) {
	gone = p.align(want.Backends)
	if !want.Routes.Equal(p.want) || !have.Routes.Equal(p.have) || !maps.Equal(have.Direct, p.direct) ||
		!maps.Equal(want.Drained, p.drained) || !maps.Equal(want.Silent, p.silent) ||
		!maps.Equal(want.Shares, p.shares) {
		clear(p.settled)
	} else if touched := want.Allocations.Since(p.allocations); touched != nil {
		// Each pod that comes or goes changes the allocation of one address among
		// thousands.
		for i, b := range want.Backends {
			if p.settled[i] && slices.ContainsFunc(b.Servers, func(s haproxy.Server) bool {
				return touched(s.Addr.Addr())
			}) {
				p.settled[i] = false
			}
		}
	}
	p.want, p.have, p.direct, p.allocations = want.Routes, have.Routes, have.Direct, want.Allocations
	for _, scarce := range []map[string]map[string]bool{p.scarce, want.Scarce} {
		for name := range scarce {
			if at, wanted := p.places[name]; wanted && !maps.Equal(p.scarce[name], want.Scarce[name]) {
				p.settled[at] = false
			}
		}
	}
	p.scarce = want.Scarce
	p.drained, p.silent, p.shares = want.Drained, want.Silent, want.Shares
	return gone
}

// align moves the memory of each backend to the place that the backend has in want. It returns the
// names that are not in want any more.
func (p *Planner) align(want []*haproxy.Backend) (gone []string) {
	was := p.backends
	p.backends = want
	if slices.EqualFunc(was, want, func(a, b *haproxy.Backend) bool { return a == b || a.Name == b.Name }) {
		for i, b := range want {
			if was[i] != b {
				p.settled[i] = false
			}
		}
		return nil
	}
	place := make(map[*haproxy.Backend]int, len(was))
	for i, b := range was {
		place[b] = i
	}
	before, states, weights := p.settled, p.states, p.weighed
	p.settled, p.states = make([]bool, len(want)), make(haproxy.States, len(want))
	p.weighed = make([]weighed, len(want))
	p.places = make(map[string]int, len(want))
	for i, b := range want {
		p.places[b.Name] = i
		if at, known := place[b]; known {
			p.settled[i], p.states[i], p.weighed[i] = before[at], states[at], weights[at]
		}
	}
	for _, b := range was {
		if _, wanted := p.places[b.Name]; !wanted {
			gone = append(gone, b.Name)
		}
	}
	return gone
}

// Plan returns the same steps as the function Plan.
func (p *Planner) Plan(want Want, have Have) []Step {
	gone := p.recall(want, have)
	p.meet(have.Backends, gone)
	p.planned = 0
	own := false
	var steps []Step
	set := func(backend, server string, from, to haproxy.State, why string) {
		if from != to {
			steps = append(steps, SetServer{
				ID: haproxy.ServerID{Backend: backend, Server: server}, State: to,
				Why: why,
			})
		}
	}
	astray := follow(want.Routes, have)
	for at, b := range want.Backends {
		if p.settled[at] {
			continue
		}
		p.planned++
		before, t := len(steps), turnsOf(b, have.Backends.Get(b.Name), func(w *haproxy.Server) string {
			denied := want.Allocations.Refuse(b.ClusterOf(w), b.Namespace, w.Addr)
			return cmp.Or(denied.Why, astray(w.Source, w.Addr.Addr()))
		})
		t.drain(want.Drained, Drained)
		t.drain(want.Silent, Silent)
		t.drain(want.Scarce[b.Name], Scarce)
		next := make([]haproxy.State, len(b.Servers))
		for _, one := range t.all {
			set(b.Name, one.live.Name, one.live.State, one.to, one.why)
			if one.at >= 0 {
				next[one.at] = one.to
			}
		}
		if !own {
			p.states, own = slices.Clone(p.states), true // the ones before were handed over
		}
		p.states[at], p.settled[at] = next, len(steps) == before
		p.weighed[at] = p.weighed[at].with(b, t.weigh(want.Shares))
	}
	for _, name := range p.unwanted {
		for _, live := range have.Backends.Get(name).Servers {
			set(name, live.Name, live.State, haproxy.Absent, Gone)
		}
	}
	return append(steps, append(planRoutes(want.Routes, have), planRules(want, have)...)...)
}

// meet forgets a backend if its servers in HAProxy have changed since the last call. Then it finds the
// unwanted backends: they have servers in HAProxy and no place in the wanted state. It looks only at
// backends that were unwanted before, that changed in HAProxy, or that gone names.
func (p *Planner) meet(live haproxy.LiveBackends, gone []string) {
	perhaps := slices.Concat(p.unwanted, gone)
	for _, name := range live.Differ(p.live) {
		if at, wanted := p.places[name]; wanted {
			p.settled[at] = false
		} else {
			perhaps = append(perhaps, name)
		}
	}
	slices.Sort(perhaps)
	p.live, p.unwanted = live, slices.DeleteFunc(slices.Compact(perhaps), func(name string) bool {
		_, wanted := p.places[name]
		b := live.Get(name)
		return wanted || b == nil || len(b.Servers) == 0
	})
}

// The reasons why Plan does not open a server, except those that Allocations give.
const (
	Gone        = "endpoint is gone"
	Terminating = "endpoint is terminating"
	Readdressed = "its address was changed"
	NoRoute     = "no verified route" // the status adds why there is none
	NotInKernel = "route not in the kernel yet"
	Changing    = "route is being changed"
	Drained     = "its cluster is drained, and another one serves"
	Scarce      = "its cluster has too few ready servers for the Service, and another one serves"
	Silent      = "its cluster has lost every BGP session, and another one serves"
)

// States returns the states of the servers of Want.Backends once all steps of the last call of
// Plan are taken. The next call leaves them as they are.
func (p *Planner) States() haproxy.States { return p.states }

// Backends returns Want.Backends of the last call of Plan, with the weights of their servers. A backend whose
// weights have not changed is the same pointer as before.
func (p *Planner) Backends() []*haproxy.Backend {
	same := func(b *haproxy.Backend, w weighed) bool { return b == w.as }
	if slices.EqualFunc(p.backends, p.weighed, same) {
		return p.backends
	}
	all := make([]*haproxy.Backend, len(p.weighed))
	for i, w := range p.weighed {
		all[i] = w.as
	}
	return all
}

// Planned returns how many backends the last call of Plan did not skip.
func (p *Planner) Planned() int { return p.planned }

// follow returns a function. For a source and an address, that function returns why packets do not take the
// wanted route now, or "" if they take it.
func follow(want routes.Table, have Have) func(source, a netip.Addr) string {
	wantVia, haveVia := want.Finder(), have.Routes.Finder()
	same := want.Equal(have.Routes) // the usual case: one lookup is enough then
	return func(source, a netip.Addr) string {
		if have.Direct[a] {
			return ""
		}
		wp, wv, ok := wantVia(source, a)
		if !ok {
			return NoRoute
		}
		if same {
			return ""
		}
		hp, hv, ok := haveVia(source, a)
		switch {
		case !ok:
			return NotInKernel
		case hp != wp || hv != wv:
			return Changing
		}
		return ""
	}
}

// planRoutes names the route changes that redirect no open server's packets.
func planRoutes(want routes.Table, have Have) []Step {
	changed := routes.Table{} // selector to the new next hop; zero to drop the route
	for s, via := range want {
		if have.Routes[s] != via {
			changed[s] = via
		}
	}
	for s := range have.Routes {
		if _, wanted := want[s]; !wanted {
			changed[s] = netip.Addr{}
		}
	}
	for _, c := range have.Conflicts {
		if _, wanted := want[c.Selector]; !wanted {
			changed[c.Selector] = netip.Addr{}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	lengths := map[int]bool{}
	for s := range changed {
		lengths[s.To.Bits()] = true
	}
	match := have.Routes.Finder()
	for s := range have.Servers() {
		if s.State < haproxy.Drain {
			continue
		}
		a := s.Addr.Addr()
		m, _, ok := match(s.Source, a)
		for n := range lengths {
			// A change of a prefix of n bits redirects this server's packets if that
			// prefix is at least as long as the one they match now.
			if p, err := a.Prefix(n); err == nil && (!ok || n >= m.To.Bits()) {
				delete(changed, routes.Selector{From: s.Source, To: p})
			}
		}
	}
	steps := make([]Step, 0, len(changed))
	for _, s := range slices.SortedFunc(maps.Keys(changed), routes.Selector.Compare) {
		if via := changed[s]; via.IsValid() {
			steps = append(steps, AddRoute{s, via})
		} else {
			steps = append(steps, DropRoute{s})
		}
	}
	return steps
}

// planRules names the rules that do not hold, and those that are not wanted. It leaves an unwanted rule as long as
// it alone leads packets to an open server, or to one that opens because its route is wanted.
func planRules(want Want, have Have) (steps []Step) {
	var holding []routes.Selector
	for _, s := range slices.SortedFunc(maps.Keys(want.Rules), routes.Selector.Compare) {
		if state, there := have.Rules[s]; there && state.Why == "" {
			holding = append(holding, s)
		} else {
			steps = append(steps, AddRule{s})
		}
	}
	unwanted := maps.Clone(have.Rules)
	maps.DeleteFunc(unwanted, func(s routes.Selector, _ routes.Rule) bool { return want.Rules[s] })
	if len(unwanted) == 0 {
		return steps
	}
	keep := func(packets routes.Selector) {
		leads := func(s routes.Selector) bool { return s.Contains(packets) }
		if !slices.ContainsFunc(holding, leads) {
			maps.DeleteFunc(unwanted, func(s routes.Selector, _ routes.Rule) bool { return leads(s) })
		}
	}
	for s := range want.Routes {
		keep(s)
	}
	for s := range have.Servers() {
		if a := s.Addr.Addr(); s.State >= haproxy.Drain && a.IsValid() {
			keep(routes.Selector{From: s.Source, To: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	for _, s := range slices.SortedFunc(maps.Keys(unwanted), routes.Selector.Compare) {
		steps = append(steps, DropRule{s})
	}
	return steps
}
