package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
)

const (
	rowsApart   = 8  // nodes that are all drawn apart
	brokenApart = 10 // broken nodes that are drawn apart among more
)

// diagram draws the paths over nodes. Among many nodes it draws apart those that are
// broken, and counts the rest.
func (q *request) diagram(nodes []*status.Node) *page.Diagram {
	x, s := q.index, q.status
	d := &page.Diagram{Clients: page.Box{Title: "clients"}, Appliance: page.Box{Title: s.Identity, Mark: page.Good}}
	if x.View.Config != nil {
		for _, a := range slices.Concat(x.View.Config.Bind.HTTP, x.View.Config.Bind.HTTPS) {
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
	d.Entrance = q.entrance()

	var broken []page.Row
	var good, more []*status.Node
	for _, n := range nodes {
		switch {
		case faulty(markOfNode(n)) == "good":
			good = append(good, n)
		case len(broken) < brokenApart:
			broken = append(broken, q.row(n))
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
			d.Rows = append(d.Rows, q.row(n))
		}
		return d
	}
	d.Rows = broken
	for _, group := range []struct {
		nodes []*status.Node
		state string
		line  string
	}{{more, "broken", "broken as well"}, {good, "", "without a fault"}} {
		if len(group.nodes) > 0 {
			d.Rows = append(d.Rows, q.groupRow(group.nodes, group.line, "/nodes?state="+group.state))
		}
	}
	return d
}

// row describes the path over one node.
func (q *request) row(n *status.Node) page.Row {
	x := q.index
	r := page.Row{Server: doorOfServers(n.Counts), Route: doorOfNode(n), Pods: boxOfPods(n.Counts)}
	r.Node = page.Box{
		Title: n.Name, Href: pathOf("node", n.Cluster, n.Name),
		Lines: []string{n.Where(len(x.View.Clusters) > 1)},
	}
	r.Pods.Href = pathOf("node", n.Cluster, n.Name) + "#servers"
	r.Node.Mark = r.Route.Mark.Worse(markOfSessions(n))
	if n.Name == "" {
		r.Node, r.Pods.Href = page.Box{
			Title: "no node", Lines: []string{"at addresses of no known node"},
			Mark: page.Bad,
		}, "/servers?state=closed"
		r.Route = page.Door{Mark: page.Bad, Label: "no block"}
	}
	if r.Route.Mark == page.Bad || r.Route.Mark == page.Warn {
		r.Why = x.WhyNoRoute(n)
	} else {
		r.Why = x.WhyNoSession(n)
	}
	if r.Server.Mark == page.Bad && n.Counts.Failing == 0 {
		r.Pods.Mark, r.Pods.Lines = page.Idle, []string{"not reached"}
	}
	unrouted := r.Route.Mark == page.Bad || r.Route.Mark == page.Warn
	seen := map[reason]bool{}
	for _, i := range n.Broken {
		s := x.Servers[i]
		why := x.Why(s)
		if kind := reasonOf(why); kind == (reason{}) || markOfServer(s) != page.Bad || seen[kind] ||
			unrouted && why.Unrouted {
			continue
		}
		seen[reasonOf(why)] = true
		if len(r.Why) < status.WhysOfRow {
			r.Why = append(r.Why, fmt.Sprintf("%s: %s", cmp.Or(s.Pod(), s.Addr().String()), why))
		}
	}
	return r
}

// groupRow describes the paths over several nodes in one row.
func (q *request) groupRow(nodes []*status.Node, line, href string) page.Row {
	var sum status.Node
	empty := 0
	for _, n := range nodes {
		sum.Counts.Sum(n.Counts)
		sum.Blocks = append(sum.Blocks, n.Blocks...)
		if n.Counts.All == 0 {
			empty++
		}
	}
	r := page.Row{Server: doorOfServers(sum.Counts), Route: doorOfNode(&sum), Pods: boxOfPods(sum.Counts)}
	if empty > 0 {
		line += ", " + page.Comma(empty) + " unused"
	}
	r.Node = page.Box{Title: page.Count(len(nodes), "node"), Lines: []string{line}, Href: href, Mark: r.Route.Mark}
	r.Pods.Href = "/servers"
	return r
}

// door describes the door "server": whether HAProxy sends requests.
func doorOfServers(c status.Counts) page.Door {
	passing := c.Open + c.Failing
	d := page.Door{Mark: passingOf(c), Label: fmt.Sprintf("%s of %s", page.Comma(passing), page.Comma(c.All))}
	switch {
	case c.All == 0:
		d.Label = "no servers"
	case d.Mark == page.Idle:
		d.Label = page.Count(c.Draining, "server") + " draining"
	}
	return d
}

// passing returns the mark of the door "server".
func passingOf(c status.Counts) page.Mark {
	switch closed := c.Closed() > 0; {
	case c.Open+c.Failing == 0 && !closed:
		return page.Idle
	case c.Open+c.Failing == 0:
		return page.Bad
	case closed:
		return page.Warn
	}
	return page.Good
}

// pods describes the servers at the end of a path.
func boxOfPods(c status.Counts) page.Box {
	b := page.Box{Title: page.Count(c.All, "server"), Mark: answeringOf(c), Lines: []string{"no check fails"}}
	switch {
	case c.All == 0:
		b.Title, b.Lines[0] = "no servers", "no Ingress leads here"
	case b.Mark == page.Bad:
		b.Lines[0] = "all fail their checks"
	case b.Mark == page.Warn:
		b.Lines[0] = fmt.Sprintf("%s of them fail their checks", page.Comma(c.Failing))
	case b.Mark == page.Idle:
		b.Lines[0] = "draining"
	}
	return b
}

// answering returns the mark for the health checks of the servers.
func answeringOf(c status.Counts) page.Mark {
	switch {
	case c.Failing > 0 && c.Open == 0:
		return page.Bad
	case c.Failing > 0:
		return page.Warn
	case c.All == 0, c.Open == 0 && c.Draining > 0:
		return page.Idle
	}
	return page.Good
}

// mark returns the mark of the servers.
func markOfCounts(c status.Counts) page.Mark { return passingOf(c).Worse(answeringOf(c)) }

// door describes the door "route": whether the kernel holds the routes to the blocks.
func doorOfNode(n *status.Node) page.Door {
	installed := 0
	for _, b := range n.Blocks {
		if b.Installed {
			installed++
		}
	}
	d := page.Door{Mark: page.Good, Label: fmt.Sprintf("%s of %s", page.Comma(installed), page.Comma(len(n.Blocks)))}
	switch {
	case len(n.Blocks) == 0 && n.Counts.All > 0:
		return page.Door{Mark: page.Idle, Label: "not needed"}
	case len(n.Blocks) == 0:
		return page.Door{Mark: page.Idle, Label: "no block yet"}
	case installed == 0:
		d.Mark = page.Bad
	case installed < len(n.Blocks):
		d.Mark = page.Warn
	}
	return d
}

// mark returns the mark of a node and the path over it.
func markOfNode(n *status.Node) page.Mark {
	if n.Name == "" { // servers at addresses of no known node
		return page.Bad
	}
	return doorOfNode(n).Mark.Worse(markOfCounts(n.Counts)).Worse(markOfSessions(n))
}

// session returns the mark for the BGP sessions with a node. It is never worse than Warn, because a
// path stays open for a while without a session.
func markOfSessions(n *status.Node) page.Mark {
	if slices.ContainsFunc(n.Peers, func(p bgp.PeerState) bool { return !p.Up() }) {
		return page.Warn
	}
	return page.Plain
}

// mark returns the mark of a server.
func markOfServer(s status.Server) page.Mark {
	switch {
	case s.State == haproxy.Open && s.Check == haproxy.Down:
		return page.Bad
	case s.State == haproxy.Open:
		return page.Good
	case s.State == haproxy.Drain, s.Want == nil, s.Want.Drain:
		return page.Idle
	}
	return page.Bad
}
