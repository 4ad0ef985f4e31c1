package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// Status is the answer of GET /status. It holds no secret: no credentials, no
// certificate, no request data.
type Status struct {
	Identity string    `json:"identity"`
	Version  string    `json:"version"`
	Now      time.Time `json:"now"`
	Started  time.Time `json:"started"`
	Ready    bool      `json:"ready"`
	NotReady []string  `json:"notReady,omitempty"` // why not, a sentence each
	Warnings []string  `json:"warnings,omitempty"` // what needs attention while traffic flows
	Findings []Finding `json:"findings,omitempty"` // NotReady (level failed), Warnings (level warning) and hints (level info)

	Config   ConfigStatus    `json:"config"`
	Clusters []ClusterStatus `json:"clusters"`
	Group    *GroupStatus    `json:"group,omitempty"` // nil if this appliance is in no group
	Peers    []bgp.PeerState `json:"peers"`
	Routes   []RouteStatus   `json:"routes"`
	Refused  RefusedStatus   `json:"refused"`
	Rules    []RuleStatus    `json:"rules"`
	Backends []BackendStatus `json:"backends"`
	Problems []ProblemStatus `json:"problems,omitempty"`
	// Gateways and GatewayRoutes are those of Gateway API that are ours.
	Gateways      []ingress.GatewayReport `json:"gateways,omitempty"`
	GatewayRoutes []ingress.RouteReport   `json:"gatewayRoutes,omitempty"`
	// hosts and addresses that are kept for namespaces that do not use them any more
	Kept    []ingress.Kept `json:"kept,omitempty"`
	HAProxy haproxy.Info   `json:"haproxy"`

	Capacity []haproxy.Capacity `json:"capacity"`

	Round RoundStatus `json:"round"`
}

// ClusterStatus is one cluster of the config file.
type ClusterStatus struct {
	Name     string     `json:"name"`
	Set      string     `json:"set,omitempty"`     // the set of clusters that it is in
	State    string     `json:"state"`             // active, standby, drained or silent
	Why      string     `json:"why,omitempty"`     // who drains it
	Since    time.Time  `json:"since,omitzero"`    // since when sallyport drain has drained it
	Asked    *float64   `json:"asked,omitempty"`   // part of the requests for exported Services that it should have
	Share    *float64   `json:"share,omitempty"`   // part that HAProxy sends to it, on average over these Services
	Scarce   int        `json:"scarce,omitempty"`  // exported Services for which it has too few ready servers
	Source   netip.Addr `json:"source,omitzero"`   // from which HAProxy connects to its pods; absent if the kernel chooses
	Hosts    int        `json:"hosts"`             // that its pods serve
	Open     int        `json:"open"`              // its open servers
	Servers  int        `json:"servers"`           // all its servers
	Peers    int        `json:"peers"`             // BGP peers of its nodes and route reflectors
	Live     bool       `json:"live"`              // its API has answered since the start
	Picture  *time.Time `json:"picture,omitempty"` // when the picture was taken that is served
	Nodes    int        `json:"nodes"`
	Blocks   int        `json:"blocks"`
	Error    string     `json:"error,omitempty"`
	APIGroup string     `json:"apiGroup,omitempty"` // the API group of its Calico objects

	Established int `json:"established"` // peers with a BGP session

	// when the token or certificate in use expires; zero if no expiry is known
	CredentialsExpire time.Time `json:"credentialsExpire,omitzero"`
}

// RouteStatus is one wanted route.
type RouteStatus struct {
	Prefix    netip.Prefix `json:"prefix"`
	Source    netip.Addr   `json:"source,omitzero"` // of the packets that take it; absent if any
	Via       netip.Addr   `json:"via"`
	Node      string       `json:"node,omitempty"`
	Cluster   string       `json:"cluster,omitempty"`
	Installed bool         `json:"installed"`     // the kernel holds it, read back
	Why       string       `json:"why,omitempty"` // why the kernel holds the route but does not follow it
	Servers   int          `json:"servers"`       // open servers that it leads to
}

// RefusedStatus counts the offers that did not become routes, and shows some
// of each kind.
type RefusedStatus struct {
	Total  int                   `json:"total"`
	Counts map[routes.Reason]int `json:"counts,omitempty"`
	Shown  []RefusalStatus       `json:"shown,omitempty"` // at most refusalsShown of a peer and reason
	ByPeer map[netip.Addr]int    `json:"byPeer,omitempty"`
}

// RefusalStatus is one refused offer.
type RefusalStatus struct {
	Cluster string        `json:"cluster,omitempty"`
	Peer    netip.Addr    `json:"peer"`
	Prefix  netip.Prefix  `json:"prefix"`
	Reason  routes.Reason `json:"reason"`
	Why     string        `json:"why"`
}

// RuleStatus is one host and path, and the backend that takes it.
type RuleStatus struct {
	Host    string `json:"host,omitempty"`
	Path    string `json:"path"`
	Match   string `json:"match"`
	Backend string `json:"backend,omitempty"` // or several, with their shares
	At      string `json:"at,omitempty"`      // ADDRESS:PORT of the listener of a Gateway that has the rule
	When    string `json:"when,omitempty"`    // which of the requests, as "method GET, header a = 1"
}

// BackendStatus is one backend and its servers.
type BackendStatus struct {
	Name    string         `json:"name"`
	Origin  string         `json:"origin,omitempty"`
	Open    int            `json:"open"`
	Servers []ServerStatus `json:"servers"`
}

// ServerStatus is one server, wanted or still there.
type ServerStatus struct {
	Name  string         `json:"name"`
	Addr  netip.AddrPort `json:"addr"`
	Pod   string         `json:"pod,omitempty"`
	Node  string         `json:"node,omitempty"`
	State string         `json:"state"`
	Check string         `json:"check,omitempty"` // the result of HAProxy's health check
	Why   string         `json:"why,omitempty"`   // why it is not open, or fails its check

	Connections int `json:"connections,omitempty"`

	Cluster string `json:"cluster,omitempty"` // of its pod, if the Service is exported to a set
	Weight  int    `json:"weight,omitempty"`  // beside the other servers of the backend, if it is not 1

	// Why for programs: one of Reasons, and what that leaves open.
	Reason Code   `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Serves reports whether the server takes traffic.
func (s ServerStatus) Serves() bool {
	return s.State == haproxy.Open.String() && s.Check != haproxy.Down
}

// ProblemStatus is something in a cluster's objects that is not served, and why.
type ProblemStatus struct {
	Cluster string `json:"cluster"`
	Object  string `json:"object"` // KIND NAMESPACE/NAME
	Reason  string `json:"reason"`
	Why     string `json:"why"`
}

// RoundStatus is the last round of the loop.
type RoundStatus struct {
	Count uint64        `json:"count"`
	At    time.Time     `json:"at"`
	Took  time.Duration `json:"tookNanoseconds"`
	Steps []string      `json:"steps,omitempty"`
	Error string        `json:"error,omitempty"`
}

const refusalsShown = 10

// Counted returns a number with its noun: "1 reload", "2 reloads", "2 Ingresses".
func Counted(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Few returns the first names of a list, at most so many, and how many more follow.
func Few(names []string, most int) string {
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Either returns yes if a condition holds, and no if it does not.
func Either(holds bool, yes, no string) string {
	if holds {
		return yes
	}
	return no
}

// Head describes the last round without the lists that grow with the clusters: routes, rules,
// backends and problems. A cluster in it lacks the numbers of sessions, servers and hosts, and its part in a
// set: these take a look at all servers.
func (v *View) Head(info haproxy.Info) Status {
	s := Status{
		Identity: v.Settings.Config.Identity, Config: v.File,
		Ready: len(v.NotReady) == 0, NotReady: v.NotReady, Warnings: v.Warnings, Findings: v.Findings,
		Group: v.Group, Peers: v.BGP.Peers, Refused: refused(v.BGP.Refusals), HAProxy: info, Capacity: v.Capacity,
		Round: RoundStatus{At: v.At, Took: v.Took},
	}
	for _, step := range v.Steps[:min(len(v.Steps), 100)] {
		s.Round.Steps = append(s.Round.Steps, step.String())
	}
	if v.Err != nil {
		s.Round.Error = v.Err.Error()
	}
	s.Clusters = v.known()
	return s
}

// known describes each cluster, but for the numbers and the part that Head leaves out.
func (v *View) known() (all []ClusterStatus) {
	for _, c := range v.Clusters {
		cs := ClusterStatus{
			Name: c.Name, Live: c.Live, Nodes: len(c.Topology.Nodes),
			Blocks: len(c.Topology.Affinities), Error: c.Health.Error, APIGroup: c.Health.APIGroup,
			CredentialsExpire: c.Health.CredentialsExpire, Source: c.Source,
		}
		if !c.Pictured.IsZero() {
			cs.Picture = &c.Pictured
		}
		all = append(all, cs)
	}
	return all
}

// Status describes the last round for people and programs.
func (x *Index) Status(info haproxy.Info) Status {
	v := x.View
	s := v.Head(info)
	s.Clusters = x.Clusters()
	type owner struct{ cluster, node string }
	owners := map[netip.Addr]owner{}
	for _, c := range v.Clusters {
		for _, n := range c.Topology.Nodes {
			for _, p := range n.BGP {
				owners[p.Addr()] = owner{c.Name, n.Name}
			}
		}
	}

	match := v.Want.Routes.Finder()
	behind := map[routes.Selector]int{}
	for live := range v.Have.Servers() {
		if p, _, ok := match(live.Source, live.Addr.Addr()); ok && live.State == haproxy.Open {
			behind[p]++
		}
	}
	for p, via := range v.Want.Routes {
		o := owners[via]
		route := RouteStatus{
			Prefix: p.To, Source: p.From, Via: via, Node: o.node, Cluster: o.cluster,
			Installed: v.Have.Routes[p] == via, Servers: behind[p],
		}
		for _, c := range v.Have.Conflicts {
			if c.Selector == p {
				route.Why = c.Why
			}
		}
		s.Routes = append(s.Routes, route)
	}
	slices.SortFunc(s.Routes, func(a, b RouteStatus) int {
		return cmp.Or(a.Prefix.Compare(b.Prefix), a.Source.Compare(b.Source))
	})

	if v.Config != nil {
		s.Rules = rules(v.Config)
		s.Backends = x.backendsOf(func(string) bool { return true })
	}
	s.Problems, s.Kept = ProblemStatuses(v.Problems), v.Compiled.Kept()
	s.Gateways, s.GatewayRoutes = x.Gateways(), x.GatewayRoutes()
	return s
}

// rules returns the rules of a configuration. The first rule of a path with a condition that holds
// applies.
func rules(c *haproxy.Config) (all []RuleStatus) {
	picks := make(map[string]*haproxy.Pick, len(c.Picks))
	for _, p := range c.Picks {
		picks[p.Name] = p
	}
	for _, r := range c.Routes {
		one := RuleStatus{Host: r.Host, Path: r.Path, Match: string(r.Match), Backend: r.Backend, At: r.Scope}
		if pick := picks[r.Pick]; pick != nil {
			for _, of := range pick.Cases {
				some := one
				some.Backend, some.When = of.To.Words(), of.If.String()
				all = append(all, some)
			}
		}
		if r.Scope != "" {
			one.Backend = r.To.Words()
		}
		all = append(all, one)
	}
	return all
}

// ProblemStatuses returns problems as the status has them.
func ProblemStatuses(problems []ingress.Problem) (all []ProblemStatus) {
	for _, p := range problems {
		object := p.Kind + " " + strings.TrimPrefix(p.Namespace+"/"+p.Name, "/")
		all = append(all, ProblemStatus{Cluster: p.Cluster, Object: object, Reason: p.Reason, Why: p.Why})
	}
	return all
}

// A Tally counts what the status lists. Counting makes no garbage that grows with the
// clusters.
type Tally struct {
	Routes, Installed int
	Clusters          map[string]Count // by cluster; "" has the backends that no cluster has any more
	Problems          map[ProblemKind]int
	Gateways          map[Programmed]int
	Listeners         map[Programmed]int  // of Gateways
	GatewayRoutes     map[ProblemKind]int // with reason Accepted those that are attached
}

// A Count counts the servers and backends of a cluster.
type Count struct {
	Servers  [haproxy.Open + 1]int // by state
	Backends int
	Unserved int // backends that have servers, none of them open
}

// Open returns the number of servers that are open.
func (t Tally) Open() (n int) {
	for _, c := range t.Clusters {
		n += c.Servers[haproxy.Open]
	}
	return n
}

// Programmed says whether Gateways or listeners of a cluster are programmed.
type Programmed struct {
	Cluster string
	Is      bool
}

type ProblemKind struct{ Cluster, Reason string }

func (v *View) Tally() Tally {
	t := Tally{Routes: len(v.Want.Routes), Clusters: map[string]Count{}, Problems: map[ProblemKind]int{}}
	for _, c := range v.Clusters {
		t.Clusters[c.Name] = Count{}
	}
	for p, via := range v.Want.Routes {
		if v.Have.Routes[p] == via {
			t.Installed++
		}
	}
	count := func(b *haproxy.Backend) {
		all, open := 0, false
		for i, s := range v.Have.Backends.Get(b.Name).Match(b.Servers) {
			all++
			of, state := b.Cluster, haproxy.Absent
			if i >= 0 {
				of = b.ClusterOf(&b.Servers[i])
			}
			if s != nil {
				state = s.State
			}
			open = open || state == haproxy.Open
			c := t.Clusters[of]
			c.Servers[state]++
			t.Clusters[of] = c
		}
		c := t.Clusters[b.Cluster]
		c.Backends++
		if all > 0 && !open {
			c.Unserved++
		}
		t.Clusters[b.Cluster] = c
	}
	for _, b := range v.Want.Backends {
		count(b)
	}
	for _, name := range haproxy.Unwanted(v.Want.Backends, v.Have.Backends) {
		count(&haproxy.Backend{Name: name})
	}
	for _, p := range v.Problems {
		t.Problems[ProblemKind{p.Cluster, p.Reason}]++
	}
	v.tallyGateways(&t)
	return t
}

func refused(refusals []routes.Refusal) RefusedStatus {
	s := RefusedStatus{Total: len(refusals), Counts: map[routes.Reason]int{}, ByPeer: map[netip.Addr]int{}}
	type kind struct {
		peer   netip.Addr
		reason routes.Reason
	}
	shown := map[kind]int{}
	for _, r := range refusals {
		s.Counts[r.Reason]++
		s.ByPeer[r.Offer.Peer]++
		k := kind{r.Offer.Peer, r.Reason}
		if shown[k]++; shown[k] <= refusalsShown {
			s.Shown = append(s.Shown, RefusalStatuses([]routes.Refusal{r})...)
		}
	}
	return s
}

// RefusalStatuses returns refused offers as the status has them.
func RefusalStatuses(refusals []routes.Refusal) (all []RefusalStatus) {
	for _, r := range refusals {
		all = append(all, RefusalStatus{
			Cluster: r.Offer.Cluster, Peer: r.Offer.Peer, Prefix: r.Offer.Prefix, Reason: r.Reason, Why: r.Why,
		})
	}
	return all
}

// backendsOf describes the backends of some names.
func (x *Index) backendsOf(of func(name string) bool) (all []BackendStatus) {
	for _, b := range x.Backends {
		if of(b.Name) {
			all = append(all, x.backendStatus(b))
		}
	}
	slices.SortFunc(all, func(a, b BackendStatus) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (x *Index) backendStatus(b Backend) BackendStatus {
	bs := BackendStatus{Name: b.Name}
	if b.want != nil {
		bs.Origin = b.want.Origin
	}
	for _, s := range x.Servers[b.From : b.From+b.N] {
		if s.Want != nil && s.State == haproxy.Open {
			bs.Open++
		}
		bs.Servers = append(bs.Servers, x.serverStatus(s))
	}
	return bs
}

// ServerRow describes a server for its table.
func (x *Index) ServerRow(s Server) ServerRow {
	one := x.serverStatus(s)
	one.Node = s.Node.Name // known of an endpoint that is gone, too
	return ServerRow{Backend: x.Backends[s.Backend].Name, Server: &one, Cluster: s.Node.Cluster}
}

// RouteRow describes a block for the table of routes, whether a route to it is wanted or not.
func (x *Index) RouteRow(b *Block) RouteStatus {
	r := RouteStatus{
		Prefix: b.Affinity.Prefix, Via: b.Via, Node: b.Affinity.Node, Cluster: b.Cluster, Installed: b.Installed,
		Servers: b.Counts.Open + b.Counts.Failing,
	}
	if !b.Installed {
		r.Why = x.WhyNoRouteTo(x.Node[NodeName{Cluster: b.Cluster, Name: r.Node}], b).String()
	}
	return r
}

func (x *Index) serverStatus(s Server) ServerStatus {
	why := x.Why(s)
	ss := ServerStatus{
		Addr: s.Addr(), Pod: s.Pod(), State: s.State.String(), Check: s.Check,
		Why: why.String(), Reason: why.Code, Detail: why.Detail,
	}
	if s.Live != nil {
		ss.Connections = s.Live.Sessions
	}
	if s.Want != nil {
		ss.Name, ss.Node = s.Want.Name, s.Want.Node
		if b := x.Backends[s.Backend].want; b.Set != "" {
			ss.Cluster = b.ClusterOf(s.Want)
			if s.Live != nil && s.Live.Weight > 1 {
				ss.Weight = s.Live.Weight
			}
		}
	} else {
		ss.Name = s.Live.Name
	}
	return ss
}

// ConfigStatus tells which part of the configuration file is in use.
type ConfigStatus struct {
	Read    time.Time `json:"read"`              // when the configuration in use was read
	Waiting []string  `json:"waiting,omitempty"` // keys that need a restart, a sentence each
	Errors  []string  `json:"errors,omitempty"`  // why the present file is not used, one mistake each
}

// RingStatus is second chance on this appliance.
type RingStatus struct {
	Members int    `json:"members"` // members in the ring for packets of unknown connections, with this one
	Passed  uint64 `json:"passed"`  // packets that went on to the next member
	Dropped uint64 `json:"dropped"` // packets beyond group.secondChanceLimit
	Problem string `json:"problem,omitempty"`
}
