package appliance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
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

	Config   ConfigStatus    `json:"config"`
	Clusters []ClusterStatus `json:"clusters"`
	Group    *GroupStatus    `json:"group,omitempty"` // nil if this appliance is in no group
	Peers    []bgp.PeerState `json:"peers"`
	Routes   []RouteStatus   `json:"routes"`
	Refused  RefusedStatus   `json:"refused"`
	Rules    []RuleStatus    `json:"rules"`
	Backends []BackendStatus `json:"backends"`
	Problems []ProblemStatus `json:"problems,omitempty"`
	// hosts and addresses that are kept for namespaces that do not use them any more
	Kept    []ingress.Kept `json:"kept,omitempty"`
	HAProxy haproxy.Info   `json:"haproxy"`

	Capacity []haproxy.Capacity `json:"capacity"`

	Round RoundStatus `json:"round"`
}

// ClusterStatus is one cluster of the config file.
type ClusterStatus struct {
	Name     string     `json:"name"`
	Live     bool       `json:"live"`              // its API has answered since the start
	Picture  *time.Time `json:"picture,omitempty"` // when the picture was taken that is served
	Nodes    int        `json:"nodes"`
	Blocks   int        `json:"blocks"`
	Error    string     `json:"error,omitempty"`
	APIGroup string     `json:"apiGroup,omitempty"` // the API group of its Calico objects

	// when the token or certificate in use expires; zero if no expiry is known
	CredentialsExpire time.Time `json:"credentialsExpire,omitzero"`
}

// RouteStatus is one wanted route.
type RouteStatus struct {
	Prefix    netip.Prefix `json:"prefix"`
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
	Backend string `json:"backend,omitempty"`
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
}

// Serves reports whether the server takes traffic.
func (s ServerStatus) Serves() bool {
	return s.State == haproxy.Open.String() && s.Check != haproxy.Down
}

// ProblemStatus is something in a cluster's objects that is not served, and why.
type ProblemStatus struct {
	Cluster string `json:"cluster"`
	Object  string `json:"object"` // Kind namespace/name
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

// Counted returns a number with its noun: "1 reload", "2 reloads".
func Counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// head describes the last round without the lists that grow with the clusters: routes, rules,
// backends and problems.
func (v *view) head(info haproxy.Info) Status {
	s := Status{
		Identity: v.settings.cfg.Identity, Config: v.file,
		Ready: len(v.notReady) == 0, NotReady: v.notReady, Warnings: v.warnings,
		Group: v.group, Peers: v.peers, Refused: refused(v.refusals), HAProxy: info, Capacity: v.capacity,
		Round: RoundStatus{At: v.at, Took: v.took},
	}
	for _, step := range v.steps[:min(len(v.steps), 100)] {
		s.Round.Steps = append(s.Round.Steps, step.String())
	}
	if v.err != nil {
		s.Round.Error = v.err.Error()
	}
	for _, c := range v.clusters {
		cs := ClusterStatus{
			Name: c.name, Live: c.live, Nodes: len(c.topology.Nodes),
			Blocks: len(c.topology.Affinities), Error: c.health.Error, APIGroup: c.health.APIGroup,
			CredentialsExpire: c.health.CredentialsExpire,
		}
		if !c.pictured.IsZero() {
			cs.Picture = &c.pictured
		}
		s.Clusters = append(s.Clusters, cs)
	}
	return s
}

// status describes the last round for people and programs.
func (x *index) status(info haproxy.Info) Status {
	v := x.view
	s := v.head(info)
	type owner struct{ cluster, node string }
	owners := map[netip.Addr]owner{}
	for _, c := range v.clusters {
		for _, n := range c.topology.Nodes {
			for _, p := range n.BGP {
				owners[p.Addr()] = owner{c.name, n.Name}
			}
		}
	}

	match := v.want.Routes.Finder()
	behind := map[netip.Prefix]int{}
	for live := range v.have.Servers() {
		if p, _, ok := match(live.Addr.Addr()); ok && live.State == haproxy.Open {
			behind[p]++
		}
	}
	for p, via := range v.want.Routes {
		o := owners[via]
		route := RouteStatus{
			Prefix: p, Via: via, Node: o.node, Cluster: o.cluster, Installed: v.have.Routes[p] == via,
			Servers: behind[p],
		}
		for _, c := range v.have.Conflicts {
			if c.Prefix == p {
				route.Why = c.Why
			}
		}
		s.Routes = append(s.Routes, route)
	}
	slices.SortFunc(s.Routes, func(a, b RouteStatus) int { return a.Prefix.Compare(b.Prefix) })

	if v.config != nil {
		for _, r := range v.config.Routes {
			s.Rules = append(s.Rules, RuleStatus{r.Host, r.Path, string(r.Match), r.Backend})
		}
		s.Backends = x.backendsOf(func(string) bool { return true })
	}
	s.Problems, s.Kept = problemStatuses(v.problems), v.compiled.Kept()
	return s
}

func problemStatuses(problems []ingress.Problem) (all []ProblemStatus) {
	for _, p := range problems {
		all = append(all, ProblemStatus{
			p.Cluster, fmt.Sprintf("%s %s/%s", p.Kind, p.Namespace, p.Name), p.Reason,
			p.Why,
		})
	}
	return all
}

// A tally counts what the status lists. Counting makes no garbage that grows with the
// clusters.
type tally struct {
	routes, installed int
	servers           [haproxy.Open + 1]int // by state
	backends          int
	unserved          int // backends that have servers, none of them open
	problems          map[problemKind]int
}

type problemKind struct{ cluster, reason string }

func (v *view) tally() tally {
	t := tally{routes: len(v.want.Routes), problems: map[problemKind]int{}}
	for p, via := range v.want.Routes {
		if v.have.Routes[p] == via {
			t.installed++
		}
	}
	count := func(live *haproxy.LiveBackend, want []haproxy.Server) {
		t.backends++
		all, open := 0, t.servers[haproxy.Open]
		for _, s := range live.Match(want) {
			all++
			if s == nil {
				t.servers[haproxy.Absent]++
			} else {
				t.servers[s.State]++
			}
		}
		if all > 0 && t.servers[haproxy.Open] == open {
			t.unserved++
		}
	}
	for _, b := range v.want.Backends {
		count(v.have.Backends.Get(b.Name), b.Servers)
	}
	for _, name := range haproxy.Unwanted(v.want.Backends, v.have.Backends) {
		count(v.have.Backends.Get(name), nil)
	}
	for _, p := range v.problems {
		t.problems[problemKind{p.Cluster, p.Reason}]++
	}
	return t
}

func refused(refusals []routes.Refusal) RefusedStatus {
	s := RefusedStatus{Total: len(refusals), Counts: map[routes.Reason]int{}}
	type kind struct {
		peer   netip.Addr
		reason routes.Reason
	}
	shown := map[kind]int{}
	for _, r := range refusals {
		s.Counts[r.Reason]++
		k := kind{r.Offer.Peer, r.Reason}
		if shown[k]++; shown[k] <= refusalsShown {
			s.Shown = append(s.Shown, RefusalStatus{r.Offer.Cluster, r.Offer.Peer, r.Offer.Prefix, r.Reason, r.Why})
		}
	}
	return s
}

// backendsOf describes the backends of some names.
func (x *index) backendsOf(of func(name string) bool) (all []BackendStatus) {
	for _, b := range x.backends {
		if of(b.name) {
			all = append(all, x.backendStatus(b))
		}
	}
	slices.SortFunc(all, func(a, b BackendStatus) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (x *index) backendStatus(b backendIndex) BackendStatus {
	bs := BackendStatus{Name: b.name}
	if b.want != nil {
		bs.Origin = b.want.Origin
	}
	for _, s := range x.servers[b.from : b.from+b.n] {
		if s.want != nil && s.state == haproxy.Open {
			bs.Open++
		}
		bs.Servers = append(bs.Servers, x.serverStatus(s))
	}
	return bs
}

func (x *index) serverStatus(s serverIndex) ServerStatus {
	ss := ServerStatus{Addr: s.addr(), Pod: s.pod(), State: s.state.String(), Check: s.check, Why: x.why(s)}
	if s.want != nil {
		ss.Name, ss.Node = s.want.Name, s.want.Node
	} else {
		ss.Name = s.live.Name
	}
	return ss
}

// whyDown returns in one sentence how the check of a server failed, by the name that
// HAProxy's statistics have for it.
func whyDown(failure string) string {
	switch failure {
	case "":
		return ""
	case "L4TOUT":
		return "the check gets no answer from the pod (L4TOUT): look for a NetworkPolicy or a firewall that does not " +
			"admit the appliance: kubectl get networkpolicies -A"
	case "L4CON":
		return "the pod refuses connections to this port, or cannot be reached (L4CON)"
	case "HANA":
		return "requests failed one after another (HANA)"
	}
	return "the pod answers the check wrongly or too late (" + failure + ")"
}
