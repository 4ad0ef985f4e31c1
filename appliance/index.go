package appliance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sallyport/appliance/page"
	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// An index counts the servers and routes of a view, by node, block and backend. It is made at the
// first request after a round, and serves all requests until the next round. It holds no sentences:
// each page makes only those that it shows.
type index struct {
	*view
	nodes    []*nodeIndex // by cluster in the order of the configuration, then by name
	node     map[nodeName]*nodeIndex
	homeless nodeIndex // servers at addresses of no known node
	blocks   []*blockIndex
	servers  []serverIndex // of all backends, in the order of their names
	backends []backendIndex
	backend  map[string]int
	granted  []ingress.ObjectRef // of each route of config

	ingresses func() []*ingressIndex
	certs     func() []*haproxy.Cert            // those first that expire first
	certOf    func() map[string][]*haproxy.Cert // by each name that they have
	all       serverCounts
	planned   map[haproxy.ServerID]plan.SetServer
	match     func(netip.Addr) (netip.Prefix, netip.Addr, bool) // the wanted routes
	owns      func(netip.Addr) *blockIndex                      // the block of an address
}

type nodeName struct{ cluster, name string }

// serverCounts holds the number of servers, and how many are in each state.
type serverCounts struct{ all, open, failing, draining int }

func (c *serverCounts) add(s serverIndex) {
	c.all++
	switch {
	case s.state == haproxy.Open && s.check == haproxy.Down:
		c.failing++
	case s.state == haproxy.Open:
		c.open++
	case s.state == haproxy.Drain:
		c.draining++
	}
}

func (c *serverCounts) sum(o serverCounts) {
	c.all, c.open, c.failing, c.draining = c.all+o.all, c.open+o.open, c.failing+o.failing, c.draining+o.draining
}

// closed returns how many servers are neither open nor draining.
func (c serverCounts) closed() int { return c.all - c.open - c.failing - c.draining }

type nodeIndex struct {
	nodeName
	node   routes.Node
	peers  []bgp.PeerState
	blocks []*blockIndex
	counts serverCounts
	broken []int // of index.servers, the first few that do not serve
}

type blockIndex struct {
	cluster   string
	affinity  routes.Affinity
	via       netip.Addr // of the wanted route; zero without a wanted route
	installed bool
	why       string // why the kernel does not follow the route
	counts    serverCounts
}

type backendIndex struct {
	name    string
	want    *haproxy.Backend // nil once no Service has it any more
	counts  serverCounts
	from, n int // its servers in index.servers
}

type serverIndex struct {
	backend int
	want    *haproxy.Server // nil once its endpoint is gone
	live    *haproxy.Live   // nil if HAProxy does not have it
	state   haproxy.State
	check   string
	node    *nodeIndex
	block   *blockIndex
}

// addr returns the address of the server.
func (s serverIndex) addr() netip.AddrPort {
	if s.want != nil {
		return s.want.Addr
	}
	return s.live.Addr
}

const brokenKept = 40 // of a node, to find different reasons among them

// newIndex returns the index of a view.
func newIndex(v *view) *index {
	x := &index{
		view: v, node: map[nodeName]*nodeIndex{}, backend: map[string]int{},
		planned: map[haproxy.ServerID]plan.SetServer{}, match: v.want.Routes.Finder(),
	}
	for _, step := range v.steps {
		if s, ok := step.(plan.SetServer); ok {
			x.planned[s.ID] = s
		}
	}
	byAddr := map[netip.Addr]*nodeIndex{}
	owned := routes.Table{}
	byPrefix := map[netip.Prefix]*blockIndex{}
	for _, c := range v.clusters {
		for _, n := range c.topology.Nodes {
			ni := &nodeIndex{nodeName: nodeName{c.name, n.Name}, node: n}
			x.nodes, x.node[ni.nodeName] = append(x.nodes, ni), ni
			for _, a := range n.All() {
				byAddr[a] = ni
			}
		}
		affinities := c.topology.Affinities
		if c.topology.HostLocal {
			affinities = nil
			for _, n := range c.topology.Nodes {
				for _, p := range n.PodCIDRs {
					affinities = append(affinities, routes.Affinity{Name: p.String(), Node: n.Name, Prefix: p})
				}
			}
		}
		for _, a := range affinities {
			if a.Deleted || byPrefix[a.Prefix] != nil {
				continue
			}
			via := v.want.Routes[a.Prefix]
			b := &blockIndex{
				cluster: c.name, affinity: a, via: via,
				installed: via.IsValid() && v.have.Routes[a.Prefix] == via,
			}
			x.blocks, byPrefix[a.Prefix] = append(x.blocks, b), b
			owned[a.Prefix] = netip.Addr{}
			if ni := x.node[nodeName{c.name, a.Node}]; ni != nil {
				ni.blocks = append(ni.blocks, b)
			}
		}
	}
	slices.SortStableFunc(x.blocks, func(a, b *blockIndex) int { return a.affinity.Prefix.Compare(b.affinity.Prefix) })
	for _, c := range v.have.Conflicts {
		if b := byPrefix[c.Prefix]; b != nil {
			b.why = c.Why
		}
	}
	for _, p := range v.peers {
		if ni := x.node[nodeName{p.Cluster, p.Node}]; ni != nil {
			ni.peers = append(ni.peers, p)
		}
	}
	find := owned.Finder()
	x.owns = func(a netip.Addr) *blockIndex {
		p, _, _ := find(a)
		return byPrefix[p]
	}
	x.countServers(byAddr)
	x.granted = v.compiled.Granted()
	x.ingresses = sync.OnceValue(x.findIngresses)
	x.certs = sync.OnceValue(func() []*haproxy.Cert {
		return slices.SortedStableFunc(slices.Values(v.config.Certs), func(a, b *haproxy.Cert) int {
			return a.Expires.Compare(b.Expires)
		})
	})
	x.certOf = sync.OnceValue(func() map[string][]*haproxy.Cert {
		of := make(map[string][]*haproxy.Cert, len(v.config.Certs))
		for _, c := range v.config.Certs {
			for _, host := range c.Hosts {
				of[host] = append(of[host], c)
			}
		}
		return of
	})
	return x
}

// certsOf returns the certificates of some hosts, those first that expire first.
func (x *index) certsOf(hosts []string) (certs []*haproxy.Cert) {
	for _, host := range hosts {
		of := x.certOf()[host]
		if _, parent, is := strings.Cut(host, "."); is && of == nil {
			of = slices.DeleteFunc(slices.Clone(x.certOf()["*."+parent]), func(c *haproxy.Cert) bool {
				return slices.Contains(c.Except, host)
			})
		}
		for _, c := range of {
			if !slices.Contains(certs, c) {
				certs = append(certs, c)
			}
		}
	}
	slices.SortStableFunc(certs, func(a, b *haproxy.Cert) int { return a.Expires.Compare(b.Expires) })
	return certs
}

func (x *index) countServers(byAddr map[netip.Addr]*nodeIndex) {
	if x.config == nil {
		return
	}
	total := 0
	for _, b := range x.want.Backends {
		total += len(b.Servers)
	}
	x.servers = make([]serverIndex, 0, total)
	backend := func(name string, want *haproxy.Backend) {
		at := len(x.backends)
		bi := backendIndex{name: name, want: want, from: len(x.servers)}
		var servers []haproxy.Server
		cluster := ""
		if want != nil {
			servers, cluster = want.Servers, want.Cluster
		}
		for i, live := range x.have.Backends.Get(name).Match(servers) {
			s := serverIndex{backend: at, live: live}
			if live != nil {
				s.state, s.check = live.State, live.Check
			}
			if i >= 0 {
				s.want = &servers[i]
			}
			a := s.addr().Addr()
			s.block = x.owns(a)
			if s.want != nil {
				s.node = x.node[nodeName{cluster, s.want.Node}]
			}
			switch {
			case s.node != nil:
			case s.block != nil && x.node[nodeName{s.block.cluster, s.block.affinity.Node}] != nil:
				s.node = x.node[nodeName{s.block.cluster, s.block.affinity.Node}]
			case byAddr[a] != nil:
				s.node = byAddr[a]
			default:
				s.node = &x.homeless
			}
			bi.counts.add(s)
			s.node.counts.add(s)
			x.all.add(s)
			if s.block != nil {
				s.block.counts.add(s)
			}
			if s.mark() != page.Good && len(s.node.broken) < brokenKept {
				s.node.broken = append(s.node.broken, len(x.servers))
			}
			x.servers = append(x.servers, s)
		}
		bi.n = len(x.servers) - bi.from
		x.backends, x.backend[name] = append(x.backends, bi), at
	}
	for _, b := range x.want.Backends {
		backend(b.Name, b)
	}
	for _, name := range haproxy.Unwanted(x.want.Backends, x.have.Backends) {
		backend(name, nil)
	}
}

// mark returns the mark of a server.
func (s serverIndex) mark() page.Mark {
	switch {
	case s.state == haproxy.Open && s.check == haproxy.Down:
		return page.Bad
	case s.state == haproxy.Open:
		return page.Good
	case s.state == haproxy.Drain, s.want == nil, s.want.Drain:
		return page.Idle
	}
	return page.Bad
}

// word returns the state of a server, with the result of its check where that matters.
func (s serverIndex) word() string {
	if s.state == haproxy.Open && s.check == haproxy.Down {
		return "open, fails its check"
	}
	return s.state.String()
}

// why returns why a server is not open, or why it fails its check. It returns "" if the server
// serves.
func (x *index) why(s serverIndex) string {
	switch {
	case s.want == nil:
		return "endpoint is gone; deleted once its last connection ends"
	case s.live != nil && s.state == haproxy.Open:
		return whyDown(s.live.Failure)
	}
	b, a := x.backends[s.backend].want, s.addr().Addr()
	if why := x.want.Allocations.Refuse(b.Cluster, b.Namespace, s.addr()); why != "" {
		return why
	}
	if step, is := x.planned[haproxy.ServerID{Backend: b.Name, Server: s.want.Name}]; is && step.State < haproxy.Open &&
		step.Why != plan.NoRoute {
		return step.Why
	}
	if s.want.Drain {
		return "endpoint is terminating"
	}
	p, via, routed := x.match(a)
	switch {
	case !routed && !x.have.Direct[a]:
		block := s.block
		if block == nil { // of no node
			block = &blockIndex{cluster: b.Cluster, affinity: routes.Affinity{Prefix: netip.PrefixFrom(a, a.BitLen())}}
		}
		return fmt.Sprintf("no route to %s: %s", a, x.whyNoRouteTo(s.node, block))
	case x.have.Routes[p] != via:
		return fmt.Sprintf("the route %s via %s is not in the kernel", p, via)
	case s.state == haproxy.Absent:
		return "its backend is not in HAProxy yet"
	}
	return "being opened"
}

// ingressIndex is one Ingress, with the routes that it was granted.
type ingressIndex struct {
	ref      ingress.ObjectRef
	hosts    []string
	routes   []int // of config.Routes
	problems int
	counts   serverCounts // of the backends that the routes lead to
	mark     page.Mark
}

// findIngresses returns the Ingresses that are served or have a problem, by cluster,
// namespace and name.
func (x *index) findIngresses() []*ingressIndex {
	of := map[ingress.ObjectRef]*ingressIndex{}
	get := func(ref ingress.ObjectRef) *ingressIndex {
		ref.UID = ""
		if of[ref] == nil {
			of[ref] = &ingressIndex{ref: ref}
		}
		return of[ref]
	}
	for _, ref := range x.compiled.Served {
		if ref.Kind == "Ingress" {
			get(ref)
		}
	}
	for i, ref := range x.granted {
		if ref.Name == "" {
			continue
		}
		in := get(ref)
		in.routes = append(in.routes, i)
		if host := cmp.Or(x.config.Routes[i].Host, "any host"); !slices.Contains(in.hosts, host) {
			in.hosts = append(in.hosts, host)
		}
	}
	for _, p := range x.problems {
		if p.Kind == "Ingress" {
			get(p.ObjectRef).problems++
		}
	}
	all := make([]*ingressIndex, 0, len(of))
	for _, in := range of {
		for i, route := range in.routes {
			name := x.config.Routes[route].Backend
			at, known := x.backend[name]
			if known && !slices.ContainsFunc(in.routes[:i], func(before int) bool {
				return x.config.Routes[before].Backend == name
			}) {
				in.counts.sum(x.backends[at].counts)
			}
		}
		in.mark = in.counts.mark()
		if in.counts.all == 0 {
			in.mark = page.Bad
		}
		if in.problems > 0 {
			in.mark = in.mark.Worse(page.Warn)
		}
		all = append(all, in)
	}
	slices.SortFunc(all, func(a, b *ingressIndex) int {
		return cmp.Or(strings.Compare(a.ref.Cluster, b.ref.Cluster), strings.Compare(a.ref.Namespace, b.ref.Namespace),
			strings.Compare(a.ref.Name, b.ref.Name))
	})
	return all
}

// indexed returns a function that returns the index of the last view. It keeps one index. Requests
// that come at the same time wait for it together.
func indexed(view func() *view) func() *index {
	var mu sync.Mutex
	var last *index
	return func() *index {
		mu.Lock()
		defer mu.Unlock()
		if v := view(); last == nil || last.view != v {
			last = newIndex(v)
		}
		return last
	}
}
