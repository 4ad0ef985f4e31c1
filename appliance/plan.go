package appliance

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

// Want is what should be: the servers of the cluster's endpoints, and the
// verified routes.
type Want struct {
	Backends []*haproxy.Backend // no two have the same name; servers sorted by theirs
	Routes   routes.Table
	// Allocations say which of the servers are their Services' own.
	Allocations *routes.Allocations
}

// Have is what is: read from HAProxy and from the kernel.
type Have struct {
	Backends map[string]*haproxy.LiveBackend
	Routes   routes.Table
	// Conflicts are routes of ours that the kernel holds and does not follow,
	// and so are not in Routes.
	Conflicts []routes.Conflict
	// Direct holds the addresses that need no route of ours: known nodes on a
	// network we are connected to, where the pods with hostNetwork answer.
	Direct map[netip.Addr]bool
}

// servers yields every server there is.
func (h Have) servers() iter.Seq[haproxy.Live] {
	return func(yield func(haproxy.Live) bool) {
		for _, b := range h.Backends {
			for _, s := range b.Servers {
				if !yield(s) {
					return
				}
			}
		}
	}
}

func (h Have) shadowed(s AddRoute) bool {
	return slices.ContainsFunc(h.Conflicts, func(c routes.Conflict) bool { return c.Prefix == s.Prefix && c.Via == s.Via })
}

// A Step changes one server or one route. The kinds below are all there are.
type Step interface {
	String() string
	kind() stepKind
}

type stepKind int

const (
	setServer stepKind = iota
	addRoute
	dropRoute
)

// SetServer brings a server to a state, adding or deleting it where needed.
type SetServer struct {
	ID    haproxy.ServerID
	State haproxy.State
	Why   string
}

// AddRoute adds a route to the kernel, or turns ours for the prefix to another
// next hop.
type AddRoute struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// DropRoute deletes our route for a prefix.
type DropRoute struct {
	Prefix netip.Prefix
}

func (s SetServer) String() string {
	return fmt.Sprintf("set %s/%s %s: %s", s.ID.Backend, s.ID.Server, s.State, s.Why)
}
func (s AddRoute) String() string  { return fmt.Sprintf("add route %s via %s", s.Prefix, s.Via) }
func (s DropRoute) String() string { return fmt.Sprintf("drop route %s", s.Prefix) }

func (SetServer) kind() stepKind { return setServer }
func (AddRoute) kind() stepKind  { return addRoute }
func (DropRoute) kind() stepKind { return dropRoute }

// Plan names every step that is safe in the world as it is. Each is safe by
// itself and beside all others: a caller may take them in any order and leave
// any out, and what a step makes possible is found by planning again. From any
// world the wanted one is reached in at most three rounds: close, turn the
// route, open.
//
// The argument, for an open server whose longest match among our routes is h:
// no step drops or turns h while the server is open, and none adds a route
// that would become its longest match. So its packets keep their way whatever
// subset is taken. And a step opens a server only where h is wanted as it is
// and nothing longer is wanted, so no step of the same round touches it either.
//
// A server at an address that is not its Service's, by the records of the
// cluster, is closed whatever the routes are. That closes more, and opens and
// turns nothing, so the argument holds.
func Plan(want Want, have Have) []Step { return new(planner).plan(want, have) }

// A planner is Plan with a memory: of the backends in which nothing was to be
// done, until they, the routes or the allocations of their addresses change. It
// changes how long planning takes and nothing else.
type planner struct {
	want, have  routes.Table // of the last call
	direct      map[netip.Addr]bool
	allocations *routes.Allocations
	settled     map[*haproxy.Backend]*haproxy.LiveBackend
}

// recall forgets what does not hold any more.
func (p *planner) recall(want Want, have Have) {
	same := want.Routes.Equal(p.want) && have.Routes.Equal(p.have) && maps.Equal(have.Direct, p.direct)
	if !same || p.settled == nil || len(p.settled) > 2*len(want.Backends)+100 {
		p.settled = make(map[*haproxy.Backend]*haproxy.LiveBackend, len(want.Backends))
	} else if touched := want.Allocations.Since(p.allocations); touched != nil {
		// Each pod that comes or goes is a change, of one address in thousands.
		maps.DeleteFunc(p.settled, func(b *haproxy.Backend, _ *haproxy.LiveBackend) bool {
			return slices.ContainsFunc(b.Servers, func(s haproxy.Server) bool { return touched(s.Addr.Addr()) })
		})
	}
	p.want, p.have, p.direct, p.allocations = want.Routes, have.Routes, have.Direct, want.Allocations
}

func (p *planner) plan(want Want, have Have) []Step {
	p.recall(want, have)
	var steps []Step
	set := func(backend, server string, from, to haproxy.State, why string) {
		if from != to {
			steps = append(steps, SetServer{ID: haproxy.ServerID{Backend: backend, Server: server}, State: to, Why: why})
		}
	}
	astray := follow(want.Routes, have)
	seen := 0 // backends with servers
	for _, b := range want.Backends {
		there := have.Backends[b.Name]
		if there != nil && len(there.Servers) > 0 {
			seen++
		}
		if last, known := p.settled[b]; known && last == there {
			continue
		}
		before := len(steps)
		for i, live := range there.Match(b.Servers) {
			switch {
			case i < 0:
				set(b.Name, live.Name, live.State, haproxy.Absent, "endpoint is gone")
				continue
			case live == nil:
				live = &haproxy.Live{Addr: b.Servers[i].Addr}
			}
			w := &b.Servers[i]
			why := want.Allocations.Refuse(b.Cluster, b.Namespace, w.Addr)
			if why == "" {
				why = astray(w.Addr.Addr())
			}
			switch {
			case live.Addr != w.Addr:
				// Somebody gave our name another address: made anew next.
				set(b.Name, w.Name, live.State, haproxy.Absent, "its address was changed")
			case why != "":
				set(b.Name, w.Name, live.State, haproxy.Closed, why)
			case w.Drain && live.State == haproxy.Absent:
				// It ends already: nothing is gained by adding it.
			case w.Drain:
				set(b.Name, w.Name, live.State, haproxy.Drain, "endpoint is terminating")
			default:
				set(b.Name, w.Name, live.State, haproxy.Open, "routed")
			}
		}
		if len(steps) == before {
			p.settled[b] = there
		}
	}
	for _, b := range have.Backends {
		if len(b.Servers) > 0 {
			seen--
		}
	}
	if seen < 0 { // there are servers in backends that nobody wants
		rest := maps.Clone(have.Backends)
		for _, b := range want.Backends {
			delete(rest, b.Name)
		}
		for name, b := range rest {
			for _, live := range b.Servers {
				set(name, live.Name, live.State, haproxy.Absent, "endpoint is gone")
			}
		}
	}
	return append(steps, planRoutes(want.Routes, have)...)
}

// follow returns a function that says why packets to an address do not go the
// wanted way now; empty: they do.
func follow(want routes.Table, have Have) func(netip.Addr) string {
	wantVia, haveVia := want.Finder(), have.Routes.Finder()
	same := want.Equal(have.Routes) // the usual case, and then one look is enough
	return func(a netip.Addr) string {
		if have.Direct[a] {
			return ""
		}
		wp, wv, ok := wantVia(a)
		if !ok {
			return "no verified route"
		}
		if same {
			return ""
		}
		hp, hv, ok := haveVia(a)
		switch {
		case !ok:
			return "route not in the kernel yet"
		case hp != wp || hv != wv:
			return "route is being changed"
		}
		return ""
	}
}

// planRoutes names the route changes under which no open server's packets turn.
func planRoutes(want routes.Table, have Have) []Step {
	changed := routes.Table{} // prefix to the new next hop; zero: drop
	for p, via := range want {
		if have.Routes[p] != via {
			changed[p] = via
		}
	}
	for p := range have.Routes {
		if _, wanted := want[p]; !wanted {
			changed[p] = netip.Addr{}
		}
	}
	for _, c := range have.Conflicts {
		if _, wanted := want[c.Prefix]; !wanted {
			changed[c.Prefix] = netip.Addr{}
		}
	}
	if len(changed) == 0 {
		return nil
	}
	lengths := map[int]bool{}
	for p := range changed {
		lengths[p.Bits()] = true
	}
	match := have.Routes.Finder()
	for s := range have.servers() {
		if s.State < haproxy.Drain {
			continue
		}
		a := s.Addr.Addr()
		m, _, ok := match(a)
		for n := range lengths {
			// A change at n bits turns this server's packets if it is at, or
			// longer than, the match they follow now.
			if p, err := a.Prefix(n); err == nil && (!ok || n >= m.Bits()) {
				delete(changed, p)
			}
		}
	}
	steps := make([]Step, 0, len(changed))
	for p, via := range changed {
		if via.IsValid() {
			steps = append(steps, AddRoute{p, via})
		} else {
			steps = append(steps, DropRoute{p})
		}
	}
	slices.SortFunc(steps, func(a, b Step) int { return cmp.Compare(a.String(), b.String()) })
	return steps
}
