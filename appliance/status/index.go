package status

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// An Index counts the servers and routes of a view, by node, block and backend. It is made at the
// first request after a round, and serves all requests until the next round. It holds no sentences:
// each page makes only those that it shows.
type Index struct {
	View     *View
	Nodes    []*Node // by cluster in the order of the configuration, then by name
	Node     map[NodeName]*Node
	homeless Node // servers at addresses of no known node
	Blocks   []*Block
	Servers  []Server // of all backends, in the order of their names
	Backends []Backend
	Backend  map[string]int
	Granted  []ingress.ObjectRef         // of each route of config
	Twins    map[int][]ingress.ObjectRef // of other clusters of a set, which a route serves, too

	Clusters      func() []ClusterStatus // in the order of the configuration
	Ingresses     func() []*Ingress
	Gateways      func() []ingress.GatewayReport
	GatewayRoutes func() []ingress.RouteReport
	Certs         func() []*haproxy.Cert            // those first that expire first
	certOf        func() map[string][]*haproxy.Cert // by each name that they have
	All           Counts
	planned       map[haproxy.ServerID]plan.SetServer
	// match returns the wanted route from a source to an address, and owns the block of the address.
	match func(source, a netip.Addr) (routes.Selector, netip.Addr, bool)
	owns  func(source, a netip.Addr) *Block
}

type NodeName struct{ Cluster, Name string }

// Counts holds the number of servers, and how many are in each state.
type Counts struct{ All, Open, Failing, Draining int }

func (c *Counts) Add(s Server) {
	c.All++
	switch {
	case s.State == haproxy.Open && s.Check == haproxy.Down:
		c.Failing++
	case s.State == haproxy.Open:
		c.Open++
	case s.State == haproxy.Drain:
		c.Draining++
	}
}

func (c *Counts) Sum(o Counts) {
	c.All, c.Open, c.Failing, c.Draining = c.All+o.All, c.Open+o.Open, c.Failing+o.Failing, c.Draining+o.Draining
}

// Closed returns how many servers are neither open nor draining.
func (c Counts) Closed() int { return c.All - c.Open - c.Failing - c.Draining }

type Node struct {
	NodeName
	Node   routes.Node
	Peers  []bgp.PeerState
	Blocks []*Block
	Counts Counts
	Broken []int // of index.servers, the first few that do not serve
}

type Block struct {
	Cluster   string
	Affinity  routes.Affinity
	Via       netip.Addr // of the wanted route; zero without a wanted route
	Installed bool
	why       string // why the kernel does not follow the route
	Counts    Counts
}

type Backend struct {
	Name    string
	want    *haproxy.Backend // nil once no Service has it any more
	Counts  Counts
	From, N int // its servers in index.servers
}

type Server struct {
	Backend int
	Want    *haproxy.Server // nil once its endpoint is gone
	Live    *haproxy.Live   // nil if HAProxy does not have it
	State   haproxy.State
	Check   string
	Node    *Node
	Block   *Block
}

// Addr returns the address of the server.
func (s Server) Addr() netip.AddrPort {
	if s.Want != nil {
		return s.Want.Addr
	}
	return s.Live.Addr
}

// Source returns the address from which HAProxy connects to the server; zero if the kernel chooses.
func (s Server) Source() netip.Addr {
	if s.Want != nil {
		return s.Want.Source
	}
	return s.Live.Source
}

const brokenKept = 40 // of a node, to find different reasons among them

// NewIndex returns the index of a view.
func NewIndex(v *View) *Index {
	x := &Index{
		View: v, Node: map[NodeName]*Node{}, Backend: map[string]int{},
		planned: map[haproxy.ServerID]plan.SetServer{}, match: v.Want.Routes.Finder(),
	}
	for _, step := range v.Steps {
		if s, ok := step.(plan.SetServer); ok {
			x.planned[s.ID] = s
		}
	}
	byAddr := map[netip.Addr]*Node{}
	owned := routes.Table{}
	blocks := map[routes.Selector]*Block{}
	for _, c := range v.Clusters {
		for _, n := range c.Topology.Nodes {
			ni := &Node{NodeName: NodeName{c.Name, n.Name}, Node: n}
			x.Nodes, x.Node[ni.NodeName] = append(x.Nodes, ni), ni
			for _, a := range n.All() {
				byAddr[a] = ni
			}
		}
		affinities := c.Topology.Affinities
		if c.Topology.HostLocal {
			affinities = nil
			for _, n := range c.Topology.Nodes {
				for _, p := range n.PodCIDRs {
					affinities = append(affinities, routes.Affinity{Name: p.String(), Node: n.Name, Prefix: p})
				}
			}
		}
		for _, a := range affinities {
			to := routes.Selector{From: c.Source, To: a.Prefix}
			if a.Deleted || blocks[to] != nil {
				continue
			}
			via := v.Want.Routes[to]
			b := &Block{
				Cluster: c.Name, Affinity: a, Via: via,
				Installed: via.IsValid() && v.Have.Routes[to] == via,
			}
			x.Blocks, blocks[to] = append(x.Blocks, b), b
			owned[to] = netip.Addr{}
			if ni := x.Node[NodeName{c.Name, a.Node}]; ni != nil {
				ni.Blocks = append(ni.Blocks, b)
			}
		}
	}
	slices.SortStableFunc(x.Blocks, func(a, b *Block) int { return a.Affinity.Prefix.Compare(b.Affinity.Prefix) })
	for _, c := range v.Have.Conflicts {
		if b := blocks[c.Selector]; b != nil {
			b.why = c.Why
		}
	}
	for _, p := range v.BGP.Peers {
		if ni := x.Node[NodeName{p.Cluster, p.Node}]; ni != nil {
			ni.Peers = append(ni.Peers, p)
		}
	}
	find := owned.Finder()
	x.owns = func(source, a netip.Addr) *Block {
		to, _, _ := find(source, a)
		return blocks[to]
	}
	x.countServers(byAddr)
	x.Granted, x.Twins = v.Compiled.Granted(), v.Compiled.Twins()
	x.Clusters, x.Ingresses = sync.OnceValue(v.clusters), sync.OnceValue(x.findIngresses)
	x.Gateways, x.GatewayRoutes = sync.OnceValue(v.Gateways), sync.OnceValue(v.Compiled.Routes)
	x.Certs = sync.OnceValue(func() []*haproxy.Cert {
		return slices.SortedStableFunc(slices.Values(v.Config.Certs), func(a, b *haproxy.Cert) int {
			return a.Expires.Compare(b.Expires)
		})
	})
	x.certOf = sync.OnceValue(func() map[string][]*haproxy.Cert {
		of := make(map[string][]*haproxy.Cert, len(v.Config.Certs))
		for _, c := range v.Config.Certs {
			for _, host := range c.Hosts {
				of[host] = append(of[host], c)
			}
		}
		return of
	})
	return x
}

// CertsOf returns the certificates of some hosts, those first that expire first.
func (x *Index) CertsOf(hosts []string) (certs []*haproxy.Cert) {
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

func (x *Index) countServers(byAddr map[netip.Addr]*Node) {
	if x.View.Config == nil {
		return
	}
	total := 0
	for _, b := range x.View.Want.Backends {
		total += len(b.Servers)
	}
	x.Servers = make([]Server, 0, total)
	backend := func(name string, want *haproxy.Backend) {
		at := len(x.Backends)
		bi := Backend{Name: name, want: want, From: len(x.Servers)}
		var servers []haproxy.Server
		if want != nil {
			servers = want.Servers
		}
		for i, live := range x.View.Have.Backends.Get(name).Match(servers) {
			s := Server{Backend: at, Live: live}
			if live != nil {
				s.State, s.Check = live.State, live.Check
			}
			if i >= 0 {
				s.Want = &servers[i]
			}
			a := s.Addr().Addr()
			s.Block = x.owns(s.Source(), a)
			if s.Want != nil {
				s.Node = x.Node[NodeName{want.ClusterOf(s.Want), s.Want.Node}]
			}
			switch {
			case s.Node != nil:
			case s.Block != nil && x.Node[NodeName{s.Block.Cluster, s.Block.Affinity.Node}] != nil:
				s.Node = x.Node[NodeName{s.Block.Cluster, s.Block.Affinity.Node}]
			case byAddr[a] != nil:
				s.Node = byAddr[a]
			default:
				s.Node = &x.homeless
			}
			bi.Counts.Add(s)
			s.Node.Counts.Add(s)
			x.All.Add(s)
			if s.Block != nil {
				s.Block.Counts.Add(s)
			}
			if !s.serves() && len(s.Node.Broken) < brokenKept {
				s.Node.Broken = append(s.Node.Broken, len(x.Servers))
			}
			x.Servers = append(x.Servers, s)
		}
		bi.N = len(x.Servers) - bi.From
		x.Backends, x.Backend[name] = append(x.Backends, bi), at
	}
	for _, b := range x.View.Want.Backends {
		backend(b.Name, b)
	}
	for _, name := range haproxy.Unwanted(x.View.Want.Backends, x.View.Have.Backends) {
		backend(name, nil)
	}
}

// Ingress is one Ingress, with the routes that it was granted.
type Ingress struct {
	Ref      ingress.ObjectRef
	Hosts    []string
	Routes   []int // of config.Routes
	Problems int
	Counts   Counts // of the backends that the routes lead to
}

// findIngresses returns the Ingresses that are served or have a problem, by cluster,
// namespace and name.
func (x *Index) findIngresses() []*Ingress {
	of := map[ingress.ObjectRef]*Ingress{}
	get := func(ref ingress.ObjectRef) *Ingress {
		ref.UID = ""
		if of[ref] == nil {
			of[ref] = &Ingress{Ref: ref}
		}
		return of[ref]
	}
	for _, ref := range x.View.Compiled.Served {
		if ref.Kind == "Ingress" {
			get(ref)
		}
	}
	routed := func(ref ingress.ObjectRef, route int) {
		in := get(ref)
		in.Routes = append(in.Routes, route)
		if host := cmp.Or(x.View.Config.Routes[route].Host, "any host"); !slices.Contains(in.Hosts, host) {
			in.Hosts = append(in.Hosts, host)
		}
	}
	for i, ref := range x.Granted {
		if ref.Name != "" {
			routed(ref, i)
		}
		for _, twin := range x.Twins[i] {
			routed(twin, i)
		}
	}
	for _, p := range x.View.Problems {
		if p.Kind == "Ingress" {
			get(p.ObjectRef).Problems++
		}
	}
	all := make([]*Ingress, 0, len(of))
	for _, in := range of {
		for i, route := range in.Routes {
			name := x.View.Config.Routes[route].Backend
			at, known := x.Backend[name]
			if known && !slices.ContainsFunc(in.Routes[:i], func(before int) bool {
				return x.View.Config.Routes[before].Backend == name
			}) {
				in.Counts.Sum(x.Backends[at].Counts)
			}
		}
		all = append(all, in)
	}
	slices.SortFunc(all, func(a, b *Ingress) int {
		return cmp.Or(strings.Compare(a.Ref.Cluster, b.Ref.Cluster), strings.Compare(a.Ref.Namespace, b.Ref.Namespace),
			strings.Compare(a.Ref.Name, b.Ref.Name))
	})
	return all
}

// Indexed returns a function that returns the index of the last view. It keeps one index. Requests
// that come at the same time wait for it together.
func Indexed(view func() *View) func() *Index {
	var mu sync.Mutex
	var last *Index
	return func() *Index {
		mu.Lock()
		defer mu.Unlock()
		if v := view(); last == nil || last.View != v {
			last = NewIndex(v)
		}
		return last
	}
}

// Only returns the nodes of some servers, with the counts and blocks of these servers.
func (x *Index) Only(servers []int) (nodes []*Node) {
	of := map[*Node]*Node{}
	for _, i := range servers {
		s := x.Servers[i]
		n := of[s.Node]
		if n == nil {
			n = &Node{NodeName: s.Node.NodeName, Node: s.Node.Node, Peers: s.Node.Peers}
			of[s.Node] = n
			nodes = append(nodes, n)
		}
		n.Counts.Add(s)
		if s.Block != nil && !slices.Contains(n.Blocks, s.Block) {
			n.Blocks = append(n.Blocks, s.Block)
		}
		if !s.serves() && len(n.Broken) < brokenKept {
			n.Broken = append(n.Broken, i)
		}
	}
	slices.SortFunc(nodes, func(a, b *Node) int {
		return strings.Compare(a.Cluster+"/"+a.Name, b.Cluster+"/"+b.Name)
	})
	return nodes
}

// Everything returns all nodes, and one more for the servers at addresses of no known node.
func (x *Index) Everything() []*Node {
	if x.homeless.Counts.All > 0 {
		return append(slices.Clone(x.Nodes), &x.homeless)
	}
	return x.Nodes
}

// Where returns the addresses of a node, and its cluster if there are several.
func (n *Node) Where(clusters bool) string {
	var parts []string
	for _, a := range n.Node.BGP {
		parts = append(parts, a.Addr().String())
	}
	if len(parts) == 0 {
		parts = append(parts, "no BGP address")
	}
	if clusters {
		parts = append(parts, n.Cluster)
	}
	return strings.Join(parts, ", ")
}

// Pod returns the pod of a server, or "".
func (s Server) Pod() string {
	if s.Want == nil {
		return ""
	}
	return s.Want.Pod
}

func (b Backend) Origin() string {
	if b.want == nil {
		return "no Service has it any more"
	}
	return b.want.Origin
}

// serves reports whether the server takes traffic.
func (s Server) serves() bool { return s.State == haproxy.Open && s.Check != haproxy.Down }
