package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
	"sallyport/ingress"
)

// gatewayPage returns the page of a Gateway: its listeners, its routes, and its conditions.
func (q *request) gatewayPage(cluster, namespace, name string) (page.Page, bool) {
	all := q.index.Gateways()
	i := slices.IndexFunc(all, func(g ingress.GatewayReport) bool {
		return g.Cluster == cluster && g.Namespace == namespace && g.Name == name
	})
	e, ok := q.index.View.Compiled.ExplainAPI(cluster, "gateway", namespace, name)
	if i < 0 || !ok {
		return page.Page{}, false
	}
	listeners := status.ListenerRows(all[i : i+1])
	routes := slices.DeleteFunc(status.PlaceRows(q.index.GatewayRoutes()), func(r status.PlaceRow) bool {
		return r.Route.Cluster != cluster || r.Place.Gateway != namespace+"/"+name
	})
	mark := page.Good
	for _, r := range listeners {
		for _, c := range status.GatewayTable.Row(&q.status, r) {
			mark = mark.Worse(marks[c.Level])
		}
	}
	p := q.detail(mark, "Gateway "+namespace+"/"+name, "", []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: cluster, Href: pathOf("cluster", cluster)}},
		{Name: "addresses", Cell: page.Cell{Text: status.Listed(all[i].Addresses), Mono: true}},
	}, page.Link{Text: "Gateways", Href: "/gateways"}, page.Link{Text: namespace + "/" + name})
	p.Sections[0].Lines = problemLines(e)
	rest := routes[:min(len(routes), rowsPaged)]
	section := page.Section{
		ID: "routes", Title: status.GatewayRouteTable.Title,
		Table: tableOf(q, status.GatewayRouteTable, rest, "gateway"),
	}
	if len(routes) > len(rest) {
		section.Note = fmt.Sprintf("the first %d of %s", len(rest), page.Comma(len(routes)))
	}
	p.Sections = append(p.Sections,
		page.Section{
			ID: "listeners", Title: "Listeners",
			Table: tableOf(q, status.GatewayTable, listeners, "gateway", "addresses"),
		},
		section, conditions(e))
	return p, true
}

// routePage returns the page of a route of Gateway API: where it is attached, its rules, its servers,
// and its conditions. kind is in lower case.
func (q *request) routePage(cluster, kind, namespace, name string) (page.Page, bool) {
	e, ok := q.index.View.Compiled.ExplainAPI(cluster, kind, namespace, name)
	if !ok || kind == "gateway" {
		return page.Page{}, false
	}
	servers, sum := q.serversOf(e)
	mark := marks[sum.Level()]
	if slices.ContainsFunc(e.Conditions, func(c ingress.Condition) bool { return !c.Good() }) {
		mark = mark.Worse(page.Warn)
	}
	p := q.detail(mark, e.Ingress.Kind+" "+namespace+"/"+name, q.serversInWords(sum), []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: cluster, Href: pathOf("cluster", cluster)}},
		{Name: "attached", Cell: page.Cell{Text: strings.Join(e.Attached, "; ")}},
	}, page.Link{Text: "Routes of Gateways", Href: "/gateway-routes"}, page.Link{Text: namespace + "/" + name})
	p.Sections[0].Lines = problemLines(e)
	if len(servers) > 0 {
		p.Sections = append(p.Sections,
			page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.index.Only(servers))})
	}
	rules := &page.Table{
		Columns: columns(">rule", "host", "path", "match", "~if", "~filters", "backend"), Empty: "none",
	}
	for _, r := range e.Rules[:min(len(e.Rules), rowsPaged)] {
		rules.Rows = append(rules.Rows, []page.Cell{
			{Text: page.Comma(r.Rule)},
			{Text: cmp.Or(r.Host, "any host")},
			{Text: r.Path, Mono: true},
			{Text: string(r.Match)},
			{Text: r.When},
			{Text: strings.Join(r.Filters, "; ")},
			{Text: cmp.Or(r.Backend, "none")},
		})
	}
	p.Sections = append(p.Sections, page.Section{ID: "rules", Title: "Rules", Table: rules}, q.theServers(servers),
		conditions(e))
	return p, true
}

// serversOf returns the servers of the backends of an Explanation, and counts them.
func (q *request) serversOf(e ingress.Explanation) (some []int, sum status.Counts) {
	for _, b := range e.Backends {
		at, known := q.index.Backend[b.Name]
		if !known {
			continue
		}
		for i := range q.index.Backends[at].N {
			some = append(some, q.index.Backends[at].From+i)
			sum.Add(q.index.Servers[q.index.Backends[at].From+i])
		}
	}
	return some, sum
}

// problemLines returns the problems of an Explanation. The problems of other objects have their name.
func problemLines(e ingress.Explanation) (all []page.Line) {
	for _, p := range e.Problems {
		text := p.Why
		if p.Kind != e.Ingress.Kind || p.Namespace != e.Ingress.Namespace || p.Name != e.Ingress.Name {
			text = fmt.Sprintf("%s %s/%s: %s", p.Kind, p.Namespace, p.Name, p.Why)
		}
		all = append(all, page.Line{Mark: page.Warn, Text: text})
	}
	return all
}

// conditions lists the conditions that the status of an object is to have.
func conditions(e ingress.Explanation) page.Section {
	t := &page.Table{Columns: columns("of", "condition", "status", "reason", "~message"), Empty: "none"}
	for _, c := range e.Conditions {
		mark := page.Good
		if !c.Good() {
			mark = page.Warn
		}
		t.Rows = append(t.Rows, []page.Cell{
			{Text: c.Of}, {Text: c.Type}, {Text: c.Status, Mark: mark}, {Text: c.Reason}, {Text: c.Message},
		})
	}
	return page.Section{ID: "conditions", Title: "Conditions", Table: t}
}
