package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/haproxy"
	"sallyport/routes"
)

// A world is a wanted and an actual state. It is small on purpose: with few addresses,
// few nested prefixes and few next hops, a few thousand draws cover every kind of
// collision.
type world struct {
	want    Want
	have    Have                              // without Backends
	servers map[haproxy.ServerID]haproxy.Live // the servers of have.Backends
	owners  map[netip.Addr]string             // the namespace of each address; empty: unknown; nobody: no pod has it
}

const nobody = "-"

// allocate makes the Allocations of the owners. The addresses of nodes belong to
// nobody.
func allocate(owners map[netip.Addr]string) *routes.Allocations {
	t := routes.Topology{Cluster: "demo"}
	for _, p := range prefixes("172.16.0.0/26", "172.16.0.64/26", "172.16.1.0/26", "172.16.1.64/26",
		"172.16.171.64/26") {
		b := &routes.IPAMBlock{Prefix: p, Pods: map[netip.Addr]string{}}
		for a, namespace := range owners {
			if p.Contains(a) && namespace != nobody {
				b.Pods[a] = namespace
			}
		}
		t.Blocks = append(t.Blocks, b)
	}
	if node := netip.MustParseAddr("192.168.50.23"); owners[node] != nobody {
		t.HostNetwork, t.Nodes = true, []routes.Node{{Name: "worker1", Addresses: []netip.Addr{node}}}
	}
	return routes.Allocate(routes.Facts{Topologies: []routes.Topology{t}})
}

func drawOwners(r *rand.Rand) map[netip.Addr]string {
	owners := map[netip.Addr]string{}
	for _, a := range worldAddrs {
		owners[a] = draw(r, []string{"web", "web", "api", "api", "", nobody})
	}
	if node := netip.MustParseAddr("192.168.50.23"); owners[node] != nobody {
		owners[node] = "" // a node belongs to no namespace
	}
	return owners
}

// may reports whether a backend may have a server at an address. It is the tests' own
// answer.
func (w world) may(backend string, a netip.Addr) bool {
	return w.owners[a] == "" || w.owners[a] == backend
}

// now returns the actual state, as routes.Kernel reads it: a route of the table of a source to which no rule leads
// is a conflict.
func (w world) now() Have {
	h := w.have
	h.Backends, h.Routes = live(w.servers), routes.Table{}
	for s, via := range w.have.Routes {
		if s.From.IsValid() && !ruled(w.have.Rules, s) {
			h.Conflicts = append(h.Conflicts, routes.Conflict{Selector: s, Via: via, Why: "no rule"})
		} else {
			h.Routes[s] = via
		}
	}
	return h
}

// ruled reports whether a rule leads the packets of a selector into the table of their source.
func ruled(rules map[routes.Selector]routes.Rule, packets routes.Selector) bool {
	for s := range rules {
		if s.From == packets.From && s.To.Bits() <= packets.To.Bits() && s.To.Contains(packets.To.Addr()) {
			return true
		}
	}
	return false
}

// packetsTo returns the selector of the packets to a server.
func packetsTo(s haproxy.Live) routes.Selector {
	a := s.Addr.Addr()
	return routes.Selector{From: s.Source, To: netip.PrefixFrom(a, a.BitLen())}
}

func live(servers map[haproxy.ServerID]haproxy.Live) haproxy.LiveBackends {
	backends := map[string]*haproxy.LiveBackend{}
	for _, id := range slices.SortedFunc(maps.Keys(servers), compareIDs) {
		if backends[id.Backend] == nil {
			backends[id.Backend] = &haproxy.LiveBackend{}
		}
		l := servers[id]
		l.Name, l.Source = id.Server, sourceIn(id.Server)
		backends[id.Backend].Servers = append(backends[id.Backend].Servers, l)
	}
	return haproxy.NewLiveBackends(backends)
}

func compareIDs(a, b haproxy.ServerID) int { return strings.Compare(a.String(), b.String()) }

var (
	worldAddrs    = addrs("172.16.0.1", "172.16.0.2", "172.16.0.65", "172.16.1.1", "172.16.1.65", "192.168.50.23")
	worldPrefixes = prefixes("172.16.0.0/26", "172.16.0.64/26", "172.16.1.0/26", "172.16.0.0/24", "172.16.0.1/32",
		"172.16.1.65/32", "172.16.0.0/16")
	worldHops = addrs("192.168.50.22", "192.168.50.23", "192.168.50.24")
)

func addrs(ss ...string) (as []netip.Addr) {
	for _, s := range ss {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func prefixes(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func draw[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// green is the source of the second cluster. The first has none.
var green = netip.MustParseAddr("192.168.51.21")

func drawSelector(r *rand.Rand) routes.Selector {
	return routes.Selector{From: draw(r, []netip.Addr{{}, {}, green}), To: draw(r, worldPrefixes)}
}

func drawTable(r *rand.Rand) routes.Table {
	t := routes.Table{}
	for range r.IntN(6) {
		t[drawSelector(r)] = draw(r, worldHops)
	}
	return t
}

// drawRules draws rules that lead to each route of a table.
func drawRules(r *rand.Rand, t routes.Table) map[routes.Selector]bool {
	rules := map[routes.Selector]bool{}
	for range r.IntN(3) {
		rules[routes.Selector{From: green, To: draw(r, prefixes("172.16.0.0/16", "172.16.0.0/24", "172.16.1.0/24"))}] = true
	}
	for s := range t {
		if s.From.IsValid() && r.IntN(2) == 0 {
			rules[routes.Selector{From: green, To: netip.MustParsePrefix("172.16.0.0/16")}] = true
		} else if s.From.IsValid() {
			rules[routes.Selector{From: green, To: s.To}] = true
		}
	}
	return rules
}

func drawID(r *rand.Rand) (haproxy.ServerID, haproxy.Server) {
	s := haproxy.Server{
		Addr: netip.AddrPortFrom(draw(r, worldAddrs), 8080), Source: draw(r, []netip.Addr{{}, {}, green}),
	}
	s.Name = haproxy.NameOf(s)
	return haproxy.ServerID{Backend: draw(r, []string{"web", "api"}), Server: s.Name}, s
}

// sourceIn returns the source of a server, by its name.
func sourceIn(name string) netip.Addr {
	if strings.Contains(name, green.String()) {
		return green
	}
	return netip.Addr{}
}

func drawWorld(r *rand.Rand) world {
	w := world{
		want: Want{Routes: drawTable(r)},
		have: Have{Routes: drawTable(r), Direct: map[netip.Addr]bool{}}, servers: map[haproxy.ServerID]haproxy.Live{},
		owners: drawOwners(r),
	}
	w.want.Allocations = allocate(w.owners)
	w.want.Rules = drawRules(r, w.want.Routes)
	rules := drawRules(r, w.have.Routes)
	if r.IntN(2) == 0 { // often the two tables are nearly equal
		w.have.Routes = maps.Clone(w.want.Routes)
		if r.IntN(2) == 0 {
			w.have.Routes[drawSelector(r)] = draw(r, worldHops)
		}
		rules = maps.Clone(w.want.Rules)
	}
	w.have.Rules = map[routes.Selector]routes.Rule{}
	for s := range rules {
		if r.IntN(6) > 0 { // sometimes one is missing
			w.have.Rules[s] = routes.Rule{}
		}
	}
	if r.IntN(2) == 0 {
		w.have.Direct[netip.MustParseAddr("192.168.50.23")] = true
	}
	wanted := map[haproxy.ServerID]haproxy.Server{}
	for range r.IntN(8) {
		id, server := drawID(r)
		server.Drain = r.IntN(5) == 0
		wanted[id] = server
	}
	w.want.Backends = backendsOf(wanted)
	for range r.IntN(8) {
		id, server := drawID(r)
		if r.IntN(20) == 0 {
			server.Addr = netip.AddrPortFrom(draw(r, worldAddrs), 9999) // somebody changed the address
		}
		w.servers[id] = haproxy.Live{Addr: server.Addr, Source: server.Source, State: haproxy.Closed + haproxy.State(r.IntN(3))}
	}
	return w
}

func backendsOf(wanted map[haproxy.ServerID]haproxy.Server) []*haproxy.Backend {
	byName := map[string]*haproxy.Backend{}
	for _, id := range slices.SortedFunc(maps.Keys(wanted), compareIDs) {
		if byName[id.Backend] == nil {
			byName[id.Backend] = &haproxy.Backend{Name: id.Backend, Cluster: "demo", Namespace: id.Backend}
		}
		byName[id.Backend].Servers = append(byName[id.Backend].Servers, wanted[id])
	}
	return slices.Collect(maps.Values(byName))
}

// each returns the wanted servers.
func (w Want) each() map[haproxy.ServerID]haproxy.Server {
	all := map[haproxy.ServerID]haproxy.Server{}
	for _, b := range w.Backends {
		for _, s := range b.Servers {
			all[haproxy.ServerID{Backend: b.Name, Server: s.Name}] = s
		}
	}
	return all
}

// way returns the route of the packets from a source to an address, by the tests' own longest match: linear and
// simple.
func way(t routes.Table, source, a netip.Addr) string {
	best, via := netip.Prefix{}, "nowhere"
	for s, v := range t {
		if s.From == source && s.To.Contains(a) && (!best.IsValid() || s.To.Bits() > best.Bits()) {
			best, via = s.To, fmt.Sprintf("%s via %s", s, v)
		}
	}
	return via
}

// way returns the way of the packets of a server in the kernel. Without a rule, the main table leads them.
func (w world) way(s haproxy.Live) string {
	source := s.Source
	if !ruled(w.have.Rules, packetsTo(s)) {
		source = netip.Addr{}
	}
	return way(w.have.Routes, source, s.Addr.Addr())
}

// lost reports whether a server has a source, and no rule leads its packets into the table of this source.
func lost(w world, s haproxy.Live) bool {
	return s.Source.IsValid() && !ruled(w.have.Rules, packetsTo(s))
}

// wanted returns the wanted way of the packets of a server.
func (w world) wanted(s haproxy.Live) string { return way(w.want.Routes, s.Source, s.Addr.Addr()) }

func (w world) clone() world {
	w.servers = maps.Clone(w.servers)
	w.have.Routes, w.have.Rules = maps.Clone(w.have.Routes), maps.Clone(w.have.Rules)
	return w
}

// take changes the world by one step, as the kernel and HAProxy would.
func (w world) take(s Step) {
	switch s := s.(type) {
	case AddRoute:
		w.have.Routes[s.Selector] = s.Via
	case DropRoute:
		delete(w.have.Routes, s.Selector)
	case AddRule:
		w.have.Rules[s.Selector] = routes.Rule{}
	case DropRule:
		delete(w.have.Rules, s.Selector)
	case SetServer:
		if s.State == haproxy.Absent {
			delete(w.servers, s.ID)
			return
		}
		live, known := w.servers[s.ID]
		if !known {
			live.Addr = w.want.each()[s.ID].Addr
			live.Source = sourceIn(s.ID.Server)
		}
		live.State = s.State
		w.servers[s.ID] = live
	}
}

type planFunc func(Want, Have) []Step

// safe plans in a world and takes a random part of the steps in a random order. It
// returns the first violation.
func safe(plan planFunc, r *rand.Rand, w world) error {
	steps := plan(w.want, w.now())
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for id, live := range w.servers {
		if live.State >= haproxy.Drain && lost(w, live) && !w.have.Direct[live.Addr.Addr()] && !closes(steps, id) {
			return fmt.Errorf("%v has lost its rule, and no step closes it", id)
		}
	}
	w = w.clone()
	opened := map[haproxy.ServerID]bool{}
	for _, s := range steps[:r.IntN(len(steps)+1)] {
		before := w.clone()
		w.take(s)
		for id, live := range w.servers {
			if was, there := before.servers[id]; live.State >= haproxy.Drain && (!there || was.State < haproxy.Drain) &&
				!w.may(id.Backend, live.Addr.Addr()) {
				return fmt.Errorf("%s opened %v, whose address is of %q", s, id, w.owners[live.Addr.Addr()])
			}
			if live.State < haproxy.Drain || w.have.Direct[live.Addr.Addr()] {
				continue
			}
			now := w.way(live)
			was, there := before.servers[id]
			switch {
			case there && was.State >= haproxy.Drain && lost(before, live):
				// It has lost its way before, and is being closed.
			case there && was.State >= haproxy.Drain:
				if then := before.way(live); then != now {
					return fmt.Errorf("%s turned the packets of open %v from %s to %s", s, id, then, now)
				}
			case now == "nowhere" || now != w.wanted(live):
				return fmt.Errorf("%s opened %v, whose way is %s, wanted %s", s, id, now, w.wanted(live))
			default:
				opened[id] = true
			}
		}
	}
	for id := range opened { // and packets to the opened servers take the wanted route
		if live := w.servers[id]; w.way(live) != w.wanted(live) {
			return fmt.Errorf("%v was opened and then stranded: %s", id, w.way(live))
		}
	}
	return nil
}

// closes reports whether a step closes or deletes a server.
func closes(steps []Step, id haproxy.ServerID) bool {
	return slices.ContainsFunc(steps, func(s Step) bool {
		set, is := s.(SetServer)
		return is && set.ID == id && set.State < haproxy.Drain
	})
}

const worlds = 100_000

func TestAnySubsetInAnyOrderIsSafe(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range worlds {
		w := drawWorld(r)
		if err := safe(Plan, r, w); err != nil {
			t.Fatalf("world %d: %v\nwant %+v\nhave %+v", i, err, w.want, w.now())
		}
	}
}

func TestThePropertyCatchesBrokenPlanners(t *testing.T) {
	mutants := map[string]planFunc{
		"route changes do not wait for open servers": func(want Want, have Have) []Step {
			steps := slices.DeleteFunc(Plan(want, have), func(s Step) bool { _, set := s.(SetServer); return !set })
			return append(steps, planRoutes(want.Routes, Have{Routes: have.Routes})...)
		},
		"a rule is dropped although it leads to open servers": func(want Want, have Have) []Step {
			return append(Plan(want, have), planRules(Want{Rules: want.Rules}, Have{Rules: have.Rules})...)
		},
		"a route counts without its rule": func(want Want, have Have) []Step {
			lax := have
			lax.Routes = maps.Clone(have.Routes)
			for _, c := range have.Conflicts {
				lax.Routes[c.Selector] = c.Via
			}
			return Plan(want, lax)
		},
		"the source of a server is forgotten": func(want Want, have Have) []Step {
			lax := want
			lax.Backends = nil
			for _, b := range want.Backends {
				other := *b
				other.Servers = slices.Clone(b.Servers)
				for i := range other.Servers {
					other.Servers[i].Source = netip.Addr{}
				}
				lax.Backends = append(lax.Backends, &other)
			}
			return Plan(lax, have)
		},
		"a server opens on any route in the kernel": func(want Want, have Have) []Step {
			lax := want
			lax.Routes = have.Routes
			return Plan(lax, have)
		},
		"a server opens before its route is there": func(want Want, have Have) []Step {
			early := have
			early.Routes = want.Routes
			return slices.Concat(Plan(want, early), planRoutes(want.Routes, have))
		},
		"a server opens at the address of another namespace's pod": func(want Want, have Have) []Step {
			// As if each Service were in the namespace of its first server.
			lax := want
			lax.Backends = nil
			for _, b := range want.Backends {
				other := *b
				other.Namespace = map[string]string{"web": "api", "api": "web"}[b.Namespace]
				lax.Backends = append(lax.Backends, &other)
			}
			return Plan(lax, have)
		},
		"a server opens at the address of no pod": func(want Want, have Have) []Step {
			lax := want
			lax.Allocations = routes.Allocate(
				routes.Facts{Topologies: []routes.Topology{{
					Cluster: "demo", HostLocal: true,
					Nodes: []routes.Node{{PodCIDRs: prefixes("172.16.0.0/16")}},
				}}})
			return Plan(lax, have)
		},
		"only the next hop is compared, not the block": func(want Want, have Have) []Step {
			steps := Plan(want, have)
			hv, wv := have.Routes.Finder(), want.Routes.Finder()
			for id, w := range want.each() {
				_, a, ok := hv(w.Source, w.Addr.Addr())
				_, b, ok2 := wv(w.Source, w.Addr.Addr())
				if live, _ := have.Backends.Get(id.Backend).Find(id.Server); ok && ok2 && a == b &&
					live.State < haproxy.Drain && (live.Addr == w.Addr || !live.Addr.IsValid()) {
					steps = append(steps, SetServer{ID: id, State: haproxy.Open})
				}
			}
			return steps
		},
	}
	for name, plan := range mutants {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			for range worlds {
				if safe(plan, r, drawWorld(r)) != nil {
					return
				}
			}
			t.Errorf("%d worlds and nothing noticed", worlds)
		})
	}
}

func TestSettlesInThreeRounds(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range worlds {
		w := drawWorld(r)
		start := w.clone()
		rounds := 0
		for steps := Plan(w.want, w.now()); len(steps) > 0; steps = Plan(w.want, w.now()) {
			if rounds++; rounds > 3 {
				t.Fatalf("world %d is not settled after 3 rounds, next: %v\nwant %+v\nhave %+v", i, steps, start.want,
					start.have)
			}
			for _, s := range steps {
				w.take(s)
			}
		}
		if !maps.Equal(w.want.Routes, w.have.Routes) {
			t.Fatalf("world %d settled on routes %v, want %v", i, w.have.Routes, w.want.Routes)
		}
		if len(w.have.Rules) != len(w.want.Rules) {
			t.Fatalf("world %d settled on rules %v, want %v", i, w.have.Rules, w.want.Rules)
		}
		for id, wanted := range w.want.each() {
			a := wanted.Addr.Addr()
			want := w.may(id.Backend, a) && (way(w.want.Routes, wanted.Source, a) != "nowhere" || w.have.Direct[a])
			if got := w.servers[id].State; !wanted.Drain && want != (got == haproxy.Open) ||
				!want && got == haproxy.Drain {
				t.Fatalf("world %d: %v may be open: %t, but is %s", i, id, want, got)
			}
		}
		for id := range w.servers {
			if _, wanted := w.want.each()[id]; !wanted {
				t.Fatalf("world %d: %v is not wanted and still there", i, id)
			}
		}
	}
}

func TestPlanningFromMemoryIsPlanningFromNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for history := range 2_000 {
		w := drawWorld(r)
		var p Planner
		have := w.now()
		for range 20 {
			other := drawWorld(r)
			switch r.IntN(8) {
			case 0:
				w.want.Routes, w.want.Rules = other.want.Routes, other.want.Rules
			case 1:
				now := other.now()
				have.Routes, have.Rules, have.Conflicts = now.Routes, now.Rules, now.Conflicts
			case 2:
				have.Direct = other.have.Direct
			case 3: // one wanted backend changes or disappears
				w.want.Backends = slices.Concat(w.want.Backends[:min(len(w.want.Backends), r.IntN(2))],
					other.want.Backends)
				slices.SortFunc(w.want.Backends, func(a, b *haproxy.Backend) int {
					return strings.Compare(a.Name, b.Name)
				})
				w.want.Backends = slices.CompactFunc(w.want.Backends, func(a, b *haproxy.Backend) bool {
					return a.Name == b.Name
				})
			case 4: // one backend changes in HAProxy
				have.Backends = have.Backends.With(maps.Collect(other.now().Backends.All()))
			case 5: // the planned steps are taken, and the routes are as wanted
				w = w.clone() // the planner keeps the old tables
				for _, s := range Plan(w.want, have) {
					w.take(s)
				}
				have.Routes, have.Conflicts = w.want.Routes, nil
			case 6: // one address goes to another pod or to nobody
				w.owners = maps.Clone(w.owners)
				a := draw(r, worldAddrs[:len(worldAddrs)-1])
				w.owners[a] = other.owners[a]
				w.want.Allocations = allocate(w.owners)
			case 7:
				w.want.Allocations = other.want.Allocations
				w.owners = other.owners
			}
			fresh := new(Planner)
			got, want := p.Plan(w.want, have), fresh.Plan(w.want, have)
			if !slices.EqualFunc(p.states, fresh.states, slices.Equal) {
				t.Fatalf("history %d: got states %v, want %v", history, p.states, fresh.states)
			}
			for _, steps := range [][]Step{got, want} {
				slices.SortFunc(steps, func(a, b Step) int { return strings.Compare(a.String(), b.String()) })
			}
			if !slices.Equal(got, want) {
				t.Fatalf("history %d: got %v, want %v", history, got, want)
			}
		}
	}
}

// Routes vanish, endpoints come and go, and only some of the steps get done. Once this
// ends, the world settles.
func TestSettlesAfterChaos(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 2_000 {
		w := drawWorld(r).clone()
		for range 20 {
			switch other := drawWorld(r); r.IntN(5) {
			case 0:
				w.want.Routes, w.want.Rules = other.want.Routes, other.want.Rules
			case 1:
				w.want.Backends = other.want.Backends
			case 2:
				for p := range w.have.Routes {
					delete(w.have.Routes, p) // somebody flushed a route
					break
				}
			case 4:
				for s := range w.have.Rules {
					delete(w.have.Rules, s) // somebody flushed a rule
					break
				}
			case 3:
				w.owners, w.want.Allocations = other.owners, other.want.Allocations
			}
			if err := safe(Plan, r, w); err != nil {
				t.Fatalf("history %d: %v", i, err)
			}
			steps := Plan(w.want, w.now())
			r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
			for _, s := range steps[:r.IntN(len(steps)+1)] {
				w.take(s)
			}
		}
		for range 3 {
			for _, s := range Plan(w.want, w.now()) {
				w.take(s)
			}
		}
		if left := Plan(w.want, w.now()); len(left) > 0 {
			t.Fatalf("history %d does not settle: %v", i, left)
		}
	}
}

func TestJourneys(t *testing.T) {
	web3 := netip.MustParseAddrPort("172.16.171.66:80")
	id := haproxy.ServerID{Backend: "web", Server: haproxy.ServerName(web3)}
	block := netip.MustParsePrefix("172.16.171.64/26")
	w1, w2 := netip.MustParseAddr("192.168.50.23"), netip.MustParseAddr("192.168.50.24")
	wanted := []*haproxy.Backend{{
		Name: "web", Cluster: "demo", Namespace: "default",
		Servers: []haproxy.Server{{Name: id.Server, Addr: web3}},
	}}
	at := func(s haproxy.State) haproxy.LiveBackends {
		return live(map[haproxy.ServerID]haproxy.Live{id: {Addr: web3, State: s}})
	}
	ours := allocate(map[netip.Addr]string{web3.Addr(): "default"})
	via := func(hop netip.Addr) routes.Table { return routes.Table{routes.To(block): hop} }

	for name, c := range map[string]struct {
		want   Want
		have   Have
		rounds []string
	}{
		"endpoint added, block already routed": {
			Want{Backends: wanted, Routes: via(w1), Allocations: ours},
			Have{Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 open: routed]"},
		},
		"endpoint added, block new too": {
			Want{Backends: wanted, Routes: via(w1), Allocations: ours},
			Have{},
			[]string{
				"[set web/s_172-16-171-66_80 closed: route not in the kernel yet add route 172.16.171.64/26 via " +
					"192.168.50.23]",
				"[set web/s_172-16-171-66_80 open: routed]",
			},
		},
		"endpoint added, nobody offers its block": {
			Want{Backends: wanted, Allocations: ours},
			Have{},
			[]string{"[set web/s_172-16-171-66_80 closed: no verified route]"},
		},
		"node lost": {
			Want{Backends: wanted, Allocations: ours},
			Have{Backends: at(haproxy.Open), Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 closed: no verified route]", "[drop route 172.16.171.64/26]"},
		},
		"node lost, its endpoints are gone too": {
			Want{Allocations: ours},
			Have{Backends: at(haproxy.Open), Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 absent: endpoint is gone]", "[drop route 172.16.171.64/26]"},
		},
		"kernel lost the route by itself": {
			Want{Backends: wanted, Routes: via(w1), Allocations: ours},
			Have{Backends: at(haproxy.Open)},
			[]string{
				"[set web/s_172-16-171-66_80 closed: route not in the kernel yet]",
				"[add route 172.16.171.64/26 via 192.168.50.23]",
				"[set web/s_172-16-171-66_80 open: routed]",
			},
		},
		"block moved to another node": {
			Want{Backends: wanted, Routes: via(w2), Allocations: ours},
			Have{Backends: at(haproxy.Open), Routes: via(w1)},
			[]string{
				"[set web/s_172-16-171-66_80 closed: route is being changed]",
				"[add route 172.16.171.64/26 via 192.168.50.24]",
				"[set web/s_172-16-171-66_80 open: routed]",
			},
		},
		"endpoint terminates while serving": {
			Want{Backends: []*haproxy.Backend{{
				Name: "web", Cluster: "demo", Namespace: "default",
				Servers: []haproxy.Server{{Name: id.Server, Addr: web3, Drain: true}},
			}}, Routes: via(w1), Allocations: ours},
			Have{Backends: at(haproxy.Open), Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 drain: endpoint is terminating]"},
		},
		"the address is another namespace's pod by now": {
			Want{Backends: wanted, Routes: via(w1), Allocations: allocate(map[netip.Addr]string{web3.Addr(): "shop"})},
			Have{Backends: at(haproxy.Open), Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 closed: 172.16.171.66 is assigned to a pod of namespace shop, and " +
				"the Service is of namespace default]"},
		},
		"the pod is gone, and its endpoint drains": {
			Want{Backends: []*haproxy.Backend{{
				Name: "web", Cluster: "demo", Namespace: "default",
				Servers: []haproxy.Server{{Name: id.Server, Addr: web3, Drain: true}},
			}}, Routes: via(w1), Allocations: allocate(nil)},
			Have{Backends: at(haproxy.Drain), Routes: via(w1)},
			[]string{"[set web/s_172-16-171-66_80 closed: 172.16.171.66 is assigned to no pod]"},
		},
		"a pod on the host's network needs no route of ours": {
			Want{Backends: wanted, Allocations: ours},
			Have{Direct: map[netip.Addr]bool{web3.Addr(): true}},
			[]string{"[set web/s_172-16-171-66_80 open: routed]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{want: c.want, have: c.have, servers: map[haproxy.ServerID]haproxy.Live{}}.clone()
			for s := range c.have.Servers() {
				w.servers[id] = s
			}
			if w.have.Routes == nil {
				w.have.Routes = routes.Table{}
			}
			if w.have.Rules == nil {
				w.have.Rules = map[routes.Selector]routes.Rule{}
			}
			for i, want := range append(c.rounds, "[]") {
				steps := Plan(w.want, w.now())
				if got := fmt.Sprint(steps); got != want {
					t.Fatalf("round %d:\n got %s\nwant %s", i+1, got, want)
				}
				for _, s := range steps {
					w.take(s)
				}
			}
		})
	}
}
