package status

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// Tables are all tables of the status, in the order of the terminal.
var Tables = []Listing{
	ClusterTable, MemberTable, AddressTable, ServiceTable, GatewayTable, GatewayRouteTable, PeerTable, RouteTable,
	RefusalTable, CapacityTable, RuleTable, ServerTable, ProblemTable,
}

// ClusterTable lists the clusters of the configuration.
var ClusterTable = &Table[ClusterStatus]{
	Head: Head{
		Name: "clusters", Title: "Clusters", Empty: "none",
		Columns: []Column{
			{Name: "cluster"},
			{Name: "state"},
			{Name: "API"},
			{Name: "sessions"},
			{Name: "open servers"},
			{Name: "hosts", Kind: KindNumber},
			{Name: "why", Kind: KindProse},
			{Name: "set", Wide: true},
			{Name: "source", Wide: true, Kind: KindCode},
			{Name: "nodes", Kind: KindNumber, Wide: true},
			{Name: "blocks", Kind: KindNumber, Wide: true},
			{Name: "Calico", Wide: true},
			{Name: "credentials until", Wide: true},
		},
	},
	Rows: func(s *Status) []ClusterStatus { return s.Clusters },
	Row: func(s *Status, c ClusterStatus) []Cell {
		api := Cell{Text: "in sync", Level: Healthy}
		switch {
		case !c.Live && c.Picture != nil:
			api = Cell{Text: "served from the picture of " + c.Picture.UTC().Format(time.DateTime), Level: Doubt}
		case !c.Live:
			api = Cell{Text: "not known yet", Level: Failed}
		case c.Error != "":
			api = Cell{Text: "not in sync", Level: Doubt}
		}
		state, why, until := Cell{Text: inSet(c), Level: Healthy}, text(c.Why), ""
		if c.Error != "" {
			why.Text = strings.TrimPrefix(c.Why+"; "+c.Error, "; ")
		}
		if c.Why != "" {
			state.Level = Doubt
		}
		if !c.Since.IsZero() {
			why.Age = s.Now.Sub(c.Since)
		}
		if why.Text != "" {
			why.Level = Doubt
		}
		if !c.CredentialsExpire.IsZero() {
			until = c.CredentialsExpire.UTC().Format(time.DateTime)
		}
		return []Cell{
			{Text: c.Name, Link: []string{"cluster", c.Name}},
			state, api, outOf(c.Established, c.Peers), outOf(c.Open, c.Servers), count(c.Hosts), why,
			text(c.Set), text(addressOf(c.Source)), count(c.Nodes), count(c.Blocks), text(c.APIGroup), text(until),
		}
	},
	JSON: func(s *Status) any { return s.Clusters },
}

// addressOf returns an address as text, and an empty text for the zero address.
func addressOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// inSet returns the state of a cluster with its share in its set, and with the share that it should have if that is
// another one.
func inSet(c ClusterStatus) string {
	percent := func(part float64) string { return strconv.FormatFloat(math.Round(1000*part)/10, 'f', -1, 64) + " %" }
	switch {
	case c.Share == nil:
		return c.State
	case c.Asked == nil || math.Abs(*c.Share-*c.Asked) < near:
		return c.State + ", " + percent(*c.Share)
	}
	return c.State + ", " + percent(*c.Share) + " in place of " + percent(*c.Asked)
}

// ShareInWords returns the share of a cluster in its set, which it must have, in a few letters: "0 % of 50 %".
func (c *ClusterStatus) ShareInWords() string {
	words := fmt.Sprintf("%.0f %%", 100**c.Share)
	switch {
	case c.State != string(config.Serving):
		words += ", " + c.State
	case c.Asked != nil && c.Why != "":
		words += fmt.Sprintf(" of %.0f %%", 100**c.Asked)
	}
	return words
}

// near is a difference between two shares that only rounding makes.
const near = 0.005

// MemberTable lists the members of the group.
var MemberTable = &Table[MemberStatus]{
	Head: Head{
		Name: "members", Title: "Members of the group", Brief: true, Empty: "none: this appliance is in no group",
		Columns: []Column{
			{Name: "member"},
			{Name: "address", Kind: KindCode},
			{Name: "class"},
			{Name: "for"},
			{Name: "heard"},
			{Name: "version"},
			{Name: "problem", Kind: KindProse},
		},
	},
	Rows: func(s *Status) []MemberStatus {
		if s.Group == nil {
			return nil
		}
		return s.Group.Members
	},
	Row: func(_ *Status, m MemberStatus) []Cell {
		levels := map[group.Class]Level{group.Full: Healthy, group.Spare: Doubt, group.None: Failed}
		class, lasts, heard := Cell{Text: string(m.Class), Level: levels[m.Class]}, Cell{For: m.For}, Cell{Age: m.Age}
		if m.Draining {
			class = Cell{Text: class.Text + ", drains", Level: Doubt}
		}
		switch {
		case m.Self:
			heard = text("this one")
		case !m.Alive && m.Class == "":
			class, lasts, heard = Cell{Text: "silent", Level: Failed}, Cell{}, text("never")
		case !m.Alive:
			class, lasts = Cell{Text: "silent", Level: Failed}, Cell{}
		}
		problem := text(m.Trouble())
		if problem.Text != "" {
			problem.Level = Doubt
		}
		return []Cell{
			text(m.Name), text(m.Address.String()), class, lasts, heard, text(m.Version), problem,
		}
	},
	JSON: func(s *Status) any { return s.Group },
}

// AddressTable lists the addresses of the group and of its Services and Gateways.
var AddressTable = &Table[AddressOfGroup]{
	Head: Head{
		Name: "addresses", Title: "Service addresses", Brief: true, Empty: "none yet: nothing has an address",
		Columns: []Column{
			{Name: "address", Kind: KindCode},
			{Name: "held"},
			{Name: "announced to", Kind: KindCode},
			{Name: "services"},
		},
	},
	Rows: func(s *Status) []AddressOfGroup {
		if s.Group == nil {
			return nil
		}
		return s.Group.Addresses
	},
	Row: func(s *Status, a AddressOfGroup) []Cell {
		held := Cell{Text: "yes", Level: Healthy}
		if !a.Held {
			held = Cell{Text: "no", Level: Failed}
		}
		to := text(cmp.Or(strings.Join(a.By(), ","), "nobody"))
		if s.Unheard(a) {
			to.Level = Failed
		}
		return []Cell{text(a.Address.String()), held, to, text(strings.Join(a.Services, ","))}
	},
	JSON: func(s *Status) any { return s.Group },
}

// ServiceTable lists the Services of type LoadBalancer.
var ServiceTable = &Table[ServiceStatus]{
	Head: Head{
		Name: "services", Title: "Services of type LoadBalancer", Brief: true, Empty: "none",
		Columns: []Column{
			{Name: "service"},
			{Name: "addresses", Kind: KindCode},
			{Name: "ports", Kind: KindCode},
			{Name: "why", Kind: KindProse},
			{Name: "cluster", Kind: KindCluster, Wide: true},
		},
	},
	Rows: func(s *Status) []ServiceStatus {
		if s.Group == nil {
			return nil
		}
		return s.Group.Services
	},
	Row: func(_ *Status, one ServiceStatus) []Cell {
		at, why := Cell{Text: joined(one.Addresses), Level: Healthy}, text(one.Why)
		if len(one.Addresses) == 0 {
			at.Level = Doubt
		}
		if one.Why != "" {
			why.Level = Doubt
		}
		var ports []string
		for _, p := range one.Ports {
			ports = append(ports, strconv.Itoa(int(p)))
		}
		return []Cell{text(one.Service), at, text(strings.Join(ports, ",")), why, text(one.Cluster)}
	},
	JSON: func(s *Status) any { return s.Group },
}

// PeerTable lists the BGP peers.
var PeerTable = &Table[bgp.PeerState]{
	Head: Head{
		Name: "peers", Title: "BGP peers", Empty: "none: no node of any cluster has a BGP address",
		Columns: []Column{
			{Name: "node"},
			{Name: "address", Kind: KindCode},
			{Name: "AS"},
			{Name: "state"},
			{Name: "for"},
			{Name: "prefixes", Kind: KindNumber},
			{Name: "last loss", Kind: KindProse},
			{Name: "cluster", Kind: KindCluster, Wide: true},
			{Name: "losses", Kind: KindNumber, Wide: true},
			{Name: "End-of-RIB", Wide: true},
			{Name: "hold time", Wide: true},
			{Name: "refused", Kind: KindNumber, Wide: true},
		},
	},
	Rows: func(s *Status) []bgp.PeerState { return s.Peers },
	Row: func(s *Status, p bgp.PeerState) []Cell {
		name := Cell{Text: p.Node, Link: []string{"node", p.Cluster, p.Node}}
		switch {
		case p.Upstream:
			name = text("(router)")
		case p.Node == "":
			name = text("(reflector)")
		}
		state := Cell{Text: p.State, Level: Healthy}
		if p.BFD == "down" {
			state.Level = Doubt
		}
		if !p.Up() {
			state.Level = Failed
		}
		if p.BFD != "" {
			state.Text += ",BFD-" + p.BFD
		}
		refused := count(s.Refused.ByPeer[p.Addr])
		if refused.Text != "0" {
			refused.Level = Doubt
		}
		loss, hold := Cell{Text: p.LossReason}, ""
		if loss.Text != "" {
			loss.Age = s.Now.Sub(p.LastLoss.At)
		}
		if p.HoldTime > 0 {
			hold = p.HoldTime.String()
		}
		return []Cell{
			name, text(p.Addr.String()), text(fmt.Sprint(p.ASN)), state, sinceThen(s.Now, p.Since), count(p.Received),
			loss,
			text(p.Cluster), count(p.Flaps), yesOrNo(p.EndOfRIB), text(hold), refused,
		}
	},
	JSON: func(s *Status) any { return s.Peers },
}

// RouteTable lists the wanted routes.
var RouteTable = &Table[RouteStatus]{
	Head: Head{
		Name: "routes", Title: "Routes", Empty: "none",
		Columns: []Column{
			{Name: "prefix", Kind: KindCode},
			{Name: "via", Kind: KindCode},
			{Name: "node"},
			{Name: "kernel"},
			{Name: "open servers", Kind: KindNumber},
			{Name: "cluster", Kind: KindCluster, Wide: true},
			{Name: "why", Kind: KindProse, Wide: true},
		},
	},
	Rows: func(s *Status) []RouteStatus { return s.Routes },
	Row: func(_ *Status, r RouteStatus) []Cell {
		kernel := Cell{Text: "yes", Level: Healthy}
		if !r.Installed {
			kernel = Cell{Text: "NO", Level: Failed}
		}
		at := r.Prefix
		return []Cell{
			{
				Text: routes.Selector{From: r.Source, To: at}.String(),
				Link: []string{"block", r.Cluster, at.Addr().String(), strconv.Itoa(at.Bits())},
			},
			text(addressOf(r.Via)),
			{Text: r.Node, Link: []string{"node", r.Cluster, r.Node}},
			kernel, count(r.Servers), text(r.Cluster),
			text(r.Why),
		}
	},
	JSON: func(s *Status) any { return s.Routes },
}

// RefusalTable lists the offers that did not become routes.
var RefusalTable = &Table[RefusalStatus]{
	Head: Head{
		Name: "refusals", Title: "Refused offers", Brief: true, Empty: "none: every offer became a route",
		Columns: []Column{
			{Name: "prefix", Kind: KindCode},
			{Name: "from", Kind: KindCode},
			{Name: "reason"},
			{Name: "why", Kind: KindProse},
			{Name: "cluster", Kind: KindCluster, Wide: true},
		},
	},
	Rows: func(s *Status) []RefusalStatus { return s.Refused.Shown },
	Row: func(_ *Status, r RefusalStatus) []Cell {
		return []Cell{
			text(r.Prefix.String()), text(r.Peer.String()), text(string(r.Reason)), text(r.Why), text(r.Cluster),
		}
	},
	More: func(s *Status) int { return s.Refused.Total - len(s.Refused.Shown) },
	JSON: func(s *Status) any { return s.Refused },
}

// CapacityTable lists the limits of the machine.
var CapacityTable = &Table[haproxy.Capacity]{
	Head: Head{
		Name: "capacity", Title: "Capacity", Brief: true, Empty: "not known",
		Columns: []Column{{Name: "resource"}, {Name: "used"}, {Name: "remedy", Kind: KindProse, Wide: true}},
	},
	Rows: func(s *Status) []haproxy.Capacity { return s.Capacity },
	Row: func(_ *Status, c haproxy.Capacity) []Cell {
		used := Cell{Text: c.Amount(), Level: Healthy}
		if c.Near() {
			used.Level = Doubt
		}
		return []Cell{text(c.Resource), used, text(c.Remedy)}
	},
	JSON: func(s *Status) any { return s.Capacity },
}

// RuleTable lists the hosts and paths.
var RuleTable = &Table[RuleStatus]{
	Head: Head{
		Name: "rules", Title: "Rules", Empty: "none",
		Columns: []Column{
			{Name: "host"},
			{Name: "path", Kind: KindCode},
			{Name: "match"},
			{Name: "backend"},
			{Name: "at", Kind: KindCode, Wide: true},
			{Name: "when", Wide: true},
		},
	},
	Rows: func(s *Status) []RuleStatus { return s.Rules },
	Row: func(_ *Status, r RuleStatus) []Cell {
		return []Cell{
			text(cmp.Or(r.Host, "*")), text(r.Path), text(r.Match), text(cmp.Or(r.Backend, "answered with 404")),
			text(r.At), text(r.When),
		}
	},
	JSON: func(s *Status) any { return s.Rules },
}

// A ServerRow is a server in its backend. Of a backend without servers the server is nil.
type ServerRow struct {
	Backend string
	Server  *ServerStatus
	Cluster string // of the node that has it; "" if the status does not name it
}

// ServerTable lists the servers.
var ServerTable = &Table[ServerRow]{
	Head: Head{
		Name: "servers", Title: "Servers", Empty: "none: no endpoint",
		Columns: []Column{
			{Name: "backend"},
			{Name: "address", Kind: KindCode},
			{Name: "state"},
			{Name: "pod"},
			{Name: "node"},
			{Name: "check"},
			{Name: "why", Kind: KindProse},
			{Name: "connections", Kind: KindNumber, Wide: true},
			{Name: "name", Wide: true},
		},
	},
	Rows: func(s *Status) (rows []ServerRow) {
		for _, b := range s.Backends {
			for i := range b.Servers {
				rows = append(rows, ServerRow{Backend: b.Name, Server: &b.Servers[i]})
			}
			if len(b.Servers) == 0 {
				rows = append(rows, ServerRow{Backend: b.Name})
			}
		}
		return rows
	},
	Row: func(_ *Status, r ServerRow) []Cell {
		name := Cell{Text: r.Backend, Link: []string{"backend", r.Backend}}
		if r.Server == nil {
			return []Cell{name, {}, text("no servers")}
		}
		x := r.Server
		namespace, pod, _ := strings.Cut(x.Pod, "/")
		return []Cell{
			name, text(x.Addr.String()),
			{Text: x.Place(), Level: x.Level()},
			{Text: x.Pod, Link: []string{"pod", r.Cluster, namespace, pod}},
			{Text: x.Node, Link: []string{"node", r.Cluster, x.Node}},
			text(x.Check), text(x.Why),
			some(x.Connections), text(x.Name),
		}
	},
	JSON: func(s *Status) any { return s.Backends },
}

// Place returns the state of a server, and its cluster and weight if they are known.
func (s ServerStatus) Place() string {
	words := s.State
	if s.Cluster != "" {
		words += " in " + s.Cluster
	}
	if s.Weight > 0 {
		words += ", weight " + strconv.Itoa(s.Weight)
	}
	return words
}

// ProblemTable lists the problems of the clusters' objects.
var ProblemTable = &Table[ProblemStatus]{
	Head: Head{
		Name: "problems", Title: "Problems", Brief: true, Empty: "none",
		Columns: []Column{
			{Name: "object"},
			{Name: "cluster"},
			{Name: "reason"},
			{Name: "why", Kind: KindProse},
		},
	},
	Rows: func(s *Status) []ProblemStatus { return s.Problems },
	Row: func(_ *Status, p ProblemStatus) []Cell {
		return []Cell{
			{Text: p.Object, Link: p.link()}, text(p.Cluster), {Text: p.Reason, Level: Doubt}, text(p.Why),
		}
	},
	JSON: func(s *Status) any { return s.Problems },
}

// link returns the page of the object, or nil if objects of this kind have no page.
func (p ProblemStatus) link() []string {
	kind, key, _ := strings.Cut(p.Object, " ")
	namespace, name, _ := strings.Cut(key, "/")
	switch kind {
	case "Ingress", "Gateway":
		return []string{strings.ToLower(kind), p.Cluster, namespace, name}
	case "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute":
		return []string{"route", p.Cluster, strings.ToLower(kind), namespace, name}
	}
	return nil
}

// joined returns values with commas between them.
func joined[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = e.String()
	}
	return strings.Join(words, ",")
}

// sinceThen returns a cell with the time since then.
func sinceThen(now, then time.Time) Cell {
	if then.IsZero() || !now.After(then) {
		return text("0s")
	}
	return Cell{For: now.Sub(then)}
}

func yesOrNo(is bool) Cell {
	if is {
		return text("yes")
	}
	return text("no")
}
