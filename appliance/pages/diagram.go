package pages

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
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
	drawClusters(d, s.Clusters)
	d.Entrance = q.entrance()

	var broken []page.Row
	var good, more []*status.Node
	for _, n := range nodes {
		switch {
		case !n.Level().Fault():
			good = append(good, n)
		case len(broken) < brokenApart:
			broken = append(broken, q.row(n))
		default:
			more = append(more, n)
		}
	}
	if e := d.Entrance; e.Label != "" {
		d.Summary += "Entrance: " + e.Label + ". "
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

// drawClusters adds to the appliance each cluster of a set, with its share of the requests for exported Services.
func drawClusters(d *page.Diagram, clusters []status.ClusterStatus) {
	for i := range clusters {
		c := &clusters[i]
		if c.Share == nil || len(clusters) > clustersDrawn && c.Why == "" {
			continue
		}
		note := page.Line{Mark: page.Good, Text: c.Name + ": " + c.ShareInWords()}
		if c.Why != "" {
			note.Mark = page.Warn
			d.Summary += fmt.Sprintf("Cluster %s: %s. ", c.Name, c.Why)
		}
		d.Appliance.Notes = append(d.Appliance.Notes, note)
	}
}

// clustersDrawn is the largest number of clusters that are all in the drawing. Among more there are only those that
// have less than their share.
const clustersDrawn = 5

// row describes the path over one node.
func (q *request) row(n *status.Node) page.Row {
	x := q.index
	r := page.Row{Server: doorOf(n.Counts.Servers()), Route: doorOf(n.Routes()), Pods: boxOfPods(n.Counts)}
	r.Node = page.Box{
		Title: n.Name, Href: pathOf("node", n.Cluster, n.Name),
		Lines: []string{n.Where(len(x.View.Clusters) > 1)},
	}
	r.Pods.Href = pathOf("node", n.Cluster, n.Name) + "#servers"
	r.Node.Mark = r.Route.Mark.Worse(marks[n.Sessions()])
	if n.Name == "" {
		r.Node, r.Pods.Href = page.Box{
			Title: "no node", Lines: []string{"at addresses of no known node"},
			Mark: page.Bad,
		}, "/servers?state=closed"
	}
	r.Why = x.WhyPath(n)
	if r.Server.Mark == page.Bad && n.Counts.Failing == 0 {
		r.Pods.Mark, r.Pods.Lines = page.Idle, []string{"not reached"}
	}
	return r
}

// groupRow describes the paths over several nodes in one row.
func (q *request) groupRow(nodes []*status.Node, line, href string) page.Row {
	sum := status.Node{NodeName: status.NodeName{Name: line}}
	empty := 0
	for _, n := range nodes {
		sum.Counts.Sum(n.Counts)
		sum.Blocks = append(sum.Blocks, n.Blocks...)
		if n.Counts.All == 0 {
			empty++
		}
	}
	r := page.Row{Server: doorOf(sum.Counts.Servers()), Route: doorOf(sum.Routes()), Pods: boxOfPods(sum.Counts)}
	if empty > 0 {
		line += ", " + page.Comma(empty) + " unused"
	}
	r.Node = page.Box{Title: page.Count(len(nodes), "node"), Lines: []string{line}, Href: href, Mark: r.Route.Mark}
	r.Pods.Href = "/servers"
	return r
}

// boxOfPods describes the servers at the end of a path.
func boxOfPods(c status.Counts) page.Box {
	b := page.Box{Title: page.Count(c.All, "server"), Mark: marks[c.Answering()], Lines: []string{"no check fails"}}
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
