package appliance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/page"
	"sallyport/bgp"
)

const (
	rowsApart   = 8  // nodes that are all drawn apart
	brokenApart = 10 // broken nodes that are drawn apart among more
	whysOfRow   = 3  // different reasons of a row
)

// diagram draws the paths over nodes. Among many nodes it draws apart those that are
// broken, and counts the rest.
func (x *index) diagram(s Status, nodes []*nodeIndex) *page.Diagram {
	d := &page.Diagram{Clients: page.Box{Title: "clients"}, Appliance: page.Box{Title: s.Identity, Mark: page.Good}}
	if x.config != nil {
		for _, a := range slices.Concat(x.config.Bind.HTTP, x.config.Bind.HTTPS) {
			line := fmt.Sprintf("port %d", a.Port())
			if !a.Addr().IsUnspecified() {
				line = a.String()
			}
			if !slices.Contains(d.Clients.Lines, line) && len(d.Clients.Lines) < 4 {
				d.Clients.Lines = append(d.Clients.Lines, line)
			}
		}
	}
	version, _, _ := strings.Cut(s.HAProxy.Version, "-") // without the distribution's
	d.Appliance.Lines = append(d.Appliance.Lines, "HAProxy "+version)
	switch {
	case !s.Ready:
		d.Appliance.Mark = page.Bad
		d.Appliance.Lines = append(d.Appliance.Lines, "not ready")
	case len(s.Warnings) > 0:
		d.Appliance.Mark = page.Warn
		d.Appliance.Lines = append(d.Appliance.Lines, page.Count(len(s.Warnings), "warning"))
	default:
		d.Appliance.Lines = append(d.Appliance.Lines, "ready")
	}

	if len(s.NotReady)+len(s.Warnings) > 0 {
		d.Appliance.Href = "/warnings"
	}
	drawGroup(d, s.Group)
	d.Entrance = x.entrance(s)

	var broken []page.Row
	var good, more []*nodeIndex
	for _, n := range nodes {
		switch {
		case faulty(n.mark()) == "good":
			good = append(good, n)
		case len(broken) < brokenApart:
			broken = append(broken, x.row(n))
		default:
			more = append(more, n)
		}
	}
	if e := d.Entrance; e.Label != "" {
		d.Summary = "Entrance: " + e.Label + ". "
	}
	d.Summary += fmt.Sprintf("%s; the path over %d of them has no fault.", page.Count(len(nodes), "node"), len(good))
	for _, row := range broken {
		d.Summary += " " + row.Node.Title + ": server " + row.Server.Label + ", route " + row.Route.Label + ". " +
			strings.Join(row.Why, " ")
	}
	if len(nodes) <= rowsApart {
		for _, n := range nodes {
			d.Rows = append(d.Rows, x.row(n))
		}
		return d
	}
	d.Rows = broken
	for _, group := range []struct {
		nodes []*nodeIndex
		state string
		line  string
	}{{more, "broken", "broken as well"}, {good, "", "without a fault"}} {
		if len(group.nodes) > 0 {
			d.Rows = append(d.Rows, x.groupRow(group.nodes, group.line, "/nodes?state="+group.state))
		}
	}
	return d
}

// row describes the path over one node.
func (x *index) row(n *nodeIndex) page.Row {
	r := page.Row{Server: n.counts.door(), Route: n.door(), Pods: n.counts.pods()}
	r.Node = page.Box{
		Title: n.name, Href: pathOf("node", n.cluster, n.name),
		Lines: []string{n.where(len(x.clusters) > 1)},
	}
	r.Pods.Href = pathOf("node", n.cluster, n.name) + "#servers"
	r.Node.Mark = r.Route.Mark.Worse(n.session())
	if n.name == "" {
		r.Node, r.Pods.Href = page.Box{
			Title: "no node", Lines: []string{"at addresses of no known node"},
			Mark: page.Bad,
		}, "/servers?state=closed"
		r.Route = page.Door{Mark: page.Bad, Label: "no block"}
	}
	if r.Route.Mark == page.Bad || r.Route.Mark == page.Warn {
		r.Why = x.whyNoRoute(n)
	} else {
		r.Why = x.whyNoSession(n)
	}
	if r.Server.Mark == page.Bad && n.counts.failing == 0 {
		r.Pods.Mark, r.Pods.Lines = page.Idle, []string{"not reached"}
	}
	unrouted := r.Route.Mark == page.Bad || r.Route.Mark == page.Warn
	seen := map[string]bool{}
	for _, i := range n.broken {
		s := x.servers[i]
		why := x.why(s)
		// Reasons that differ only in the server's address count as the same reason.
		kind := strings.ReplaceAll(why, s.addr().Addr().String(), "")
		if why == "" || s.mark() != page.Bad || seen[kind] || unrouted && strings.HasPrefix(why, "no route to ") {
			continue
		}
		seen[kind] = true
		if len(r.Why) < whysOfRow {
			r.Why = append(r.Why, fmt.Sprintf("%s: %s", cmp.Or(s.pod(), s.addr().String()), why))
		}
	}
	return r
}

// pod returns the pod of a server, or "".
func (s serverIndex) pod() string {
	if s.want == nil {
		return ""
	}
	return s.want.Pod
}

// groupRow describes the paths over several nodes in one row.
func (x *index) groupRow(nodes []*nodeIndex, line, href string) page.Row {
	var sum nodeIndex
	empty := 0
	for _, n := range nodes {
		sum.counts.sum(n.counts)
		sum.blocks = append(sum.blocks, n.blocks...)
		if n.counts.all == 0 {
			empty++
		}
	}
	r := page.Row{Server: sum.counts.door(), Route: sum.door(), Pods: sum.counts.pods()}
	if empty > 0 {
		line += ", " + page.Comma(empty) + " unused"
	}
	r.Node = page.Box{Title: page.Count(len(nodes), "node"), Lines: []string{line}, Href: href, Mark: r.Route.Mark}
	r.Pods.Href = "/servers"
	return r
}

// door describes the door "server": whether HAProxy sends requests.
func (c serverCounts) door() page.Door {
	passing := c.open + c.failing
	d := page.Door{Mark: c.passing(), Label: fmt.Sprintf("%s of %s", page.Comma(passing), page.Comma(c.all))}
	switch {
	case c.all == 0:
		d.Label = "no servers"
	case d.Mark == page.Idle:
		d.Label = page.Count(c.draining, "server") + " draining"
	}
	return d
}

// passing returns the mark of the door "server".
func (c serverCounts) passing() page.Mark {
	switch closed := c.closed() > 0; {
	case c.open+c.failing == 0 && !closed:
		return page.Idle
	case c.open+c.failing == 0:
		return page.Bad
	case closed:
		return page.Warn
	}
	return page.Good
}

// pods describes the servers at the end of a path.
func (c serverCounts) pods() page.Box {
	b := page.Box{Title: page.Count(c.all, "server"), Mark: c.answering(), Lines: []string{"no check fails"}}
	switch {
	case c.all == 0:
		b.Title, b.Lines[0] = "no servers", "no Ingress leads here"
	case b.Mark == page.Bad:
		b.Lines[0] = "all fail their checks"
	case b.Mark == page.Warn:
		b.Lines[0] = fmt.Sprintf("%s of them fail their checks", page.Comma(c.failing))
	case b.Mark == page.Idle:
		b.Lines[0] = "draining"
	}
	return b
}

// answering returns the mark for the health checks of the servers.
func (c serverCounts) answering() page.Mark {
	switch {
	case c.failing > 0 && c.open == 0:
		return page.Bad
	case c.failing > 0:
		return page.Warn
	case c.all == 0, c.open == 0 && c.draining > 0:
		return page.Idle
	}
	return page.Good
}

// mark returns the mark of the servers.
func (c serverCounts) mark() page.Mark { return c.passing().Worse(c.answering()) }

// door describes the door "route": whether the kernel holds the routes to the blocks.
func (n *nodeIndex) door() page.Door {
	installed := 0
	for _, b := range n.blocks {
		if b.installed {
			installed++
		}
	}
	d := page.Door{Mark: page.Good, Label: fmt.Sprintf("%s of %s", page.Comma(installed), page.Comma(len(n.blocks)))}
	switch {
	case len(n.blocks) == 0 && n.counts.all > 0:
		return page.Door{Mark: page.Idle, Label: "not needed"}
	case len(n.blocks) == 0:
		return page.Door{Mark: page.Idle, Label: "no block yet"}
	case installed == 0:
		d.Mark = page.Bad
	case installed < len(n.blocks):
		d.Mark = page.Warn
	}
	return d
}

// where returns the addresses of a node, and its cluster if there are several.
func (n *nodeIndex) where(clusters bool) string {
	var parts []string
	for _, a := range n.node.BGP {
		parts = append(parts, a.Addr().String())
	}
	if len(parts) == 0 {
		parts = append(parts, "no BGP address")
	}
	if clusters {
		parts = append(parts, n.cluster)
	}
	return strings.Join(parts, ", ")
}

// whyNoRoute returns why blocks of a node have no route in the kernel, a sentence each.
func (x *index) whyNoRoute(n *nodeIndex) (whys []string) {
	add := func(format string, args ...any) {
		if why := fmt.Sprintf(format, args...); len(whys) < whysOfRow && !slices.Contains(whys, why) {
			whys = append(whys, why)
		}
	}
	for _, b := range n.blocks {
		if !b.installed {
			add("%s", x.whyNoRouteTo(n, b))
		}
	}
	return whys
}

// whyNoRouteTo returns why a block has no route in the kernel. A block without a node stands for
// one address that no node owns.
func (x *index) whyNoRouteTo(n *nodeIndex, b *blockIndex) string {
	p := b.affinity.Prefix
	switch {
	case b.why != "":
		return b.why
	case b.via.IsValid():
		return fmt.Sprintf("the route %s via %s is not in the kernel", p, b.via)
	}
	var speakers []bgp.PeerState
	if n != nil {
		speakers = n.peers
	}
	for _, s := range speakers {
		if s.State != established && s.Addr.Is4() == p.Addr().Is4() {
			return sessionDown(s, x.at)
		}
	}
	for _, r := range x.refusals {
		if o := r.Offer.Prefix; o == p || b.affinity.Node == "" && o.Bits() > 0 && o.Contains(p.Addr()) {
			return fmt.Sprintf("the offer of %s by %s was refused: %s", r.Offer.Prefix, r.Offer.Peer, r.Why)
		}
	}
	for _, c := range x.clusters {
		for _, pool := range c.topology.Pools {
			if c.name == b.cluster && pool.NoExport && pool.CIDR.Contains(p.Addr()) {
				return fmt.Sprintf("no node announces its block, because IP pool %s (%s) has disableBGPExport: %s",
					pool.Name, pool.CIDR, exportPool(c.health.APIGroup, pool.Name))
			}
		}
	}
	for _, s := range speakers {
		if s.State == established && x.withheld[s.Addr] > 0 {
			return fmt.Sprintf("node %s announces none of its blocks, although its BGP session is established: does "+
				"a BGPFilter reject them?", n.name)
		}
	}
	if b.affinity.State != "" && b.affinity.State != "confirmed" {
		return fmt.Sprintf("node %s does not own %s yet: the BlockAffinity is %s", b.affinity.Node, p, b.affinity.State)
	}
	return "no BGP peer offers its block"
}

// sessionDown returns a sentence: since when a peer has had no session, how the last session ended,
// and a remedy.
func sessionDown(s bgp.PeerState, now time.Time) string {
	why := fmt.Sprintf("there is no BGP session with %s (%s)", whose(s.Peer), s.Addr)
	how := ended(s)
	if how == "" {
		return why + "; there has been none yet"
	}
	if !s.LastLoss.At.IsZero() {
		why += " for " + page.Ago(now, s.LastLoss.At)
	}
	return why + "; " + how
}

// only returns the nodes of some servers, with the counts and blocks of these servers.
func (x *index) only(servers []int) (nodes []*nodeIndex) {
	of := map[*nodeIndex]*nodeIndex{}
	for _, i := range servers {
		s := x.servers[i]
		n := of[s.node]
		if n == nil {
			n = &nodeIndex{nodeName: s.node.nodeName, node: s.node.node, peers: s.node.peers}
			of[s.node] = n
			nodes = append(nodes, n)
		}
		n.counts.add(s)
		if s.block != nil && !slices.Contains(n.blocks, s.block) {
			n.blocks = append(n.blocks, s.block)
		}
		if s.mark() != page.Good && len(n.broken) < brokenKept {
			n.broken = append(n.broken, i)
		}
	}
	slices.SortFunc(nodes, func(a, b *nodeIndex) int {
		return strings.Compare(a.cluster+"/"+a.name, b.cluster+"/"+b.name)
	})
	return nodes
}

// everything returns all nodes, and one more for the servers at addresses of no known node.
func (x *index) everything() []*nodeIndex {
	if x.homeless.counts.all > 0 {
		return append(slices.Clone(x.nodes), &x.homeless)
	}
	return x.nodes
}

// mark returns the mark of a node and the path over it.
func (n *nodeIndex) mark() page.Mark {
	if n.name == "" { // servers at addresses of no known node
		return page.Bad
	}
	return n.door().Mark.Worse(n.counts.mark()).Worse(n.session())
}

// session returns the mark for the BGP sessions with a node. It is never worse than Warn, because a
// path stays open for a while without a session.
func (n *nodeIndex) session() page.Mark {
	if slices.ContainsFunc(n.peers, func(p bgp.PeerState) bool { return p.State != established }) {
		return page.Warn
	}
	return page.Plain
}

// whyNoSession returns why a node has no BGP session, a sentence for each of its addresses.
func (x *index) whyNoSession(n *nodeIndex) (whys []string) {
	for _, p := range n.peers {
		if p.State != established {
			whys = append(whys, sessionDown(p, x.at))
		}
	}
	return whys
}
