package pages

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// search lists everything with a certain text in its name or address.
func (q *request) search() page.Page {
	text := strings.TrimSpace(q.query.Get("q"))
	p := page.Page{
		Title: "search, " + q.status.Identity, Mark: q.mark(), Query: text,
		Crumbs: []page.Link{{Text: "search"}},
	}
	state := page.Section{ID: "state", Title: "Search for " + text}
	found := 0
	q.state = ""
	q.query.Del("state")
	q.query.Del("page")
	if text == "" {
		state.Title = "Search"
		state.Lines = []page.Line{
			{Text: "Type a part of a host, of an address, or of the name of an Ingress, backend, pod or node."},
		}
	} else {
		for _, kind := range []string{
			"ingresses", "gateways", "gateway-routes", "backends", "servers", "nodes", "peers", "routes", "addresses",
			"services", "certificates", "problems", "refusals",
		} {
			section, total := q.list(kind, rowsShown)
			if total == 0 {
				continue
			}
			found += total
			section.Note = ""
			p.Sections = append(p.Sections, inShort(section, total, "/"+kind+"?"+q.query.Encode()))
		}
		state.Note = page.Count(found, "hit")
	}
	p.Sections = append([]page.Section{state}, p.Sections...)
	return p
}

// detail returns the page of one thing, with its mark and the first section.
func (q *request) detail(mark page.Mark, title, note string, facts []page.Fact, crumbs ...page.Link) page.Page {
	return page.Page{
		Title: title, Mark: mark, Crumbs: crumbs,
		Sections: []page.Section{{ID: "state", Title: title, Note: note, Facts: facts}},
	}
}

func (q *request) clusterPage(name string) (page.Page, bool) {
	for _, c := range q.status.Clusters {
		if c.Name != name {
			continue
		}
		var nodes []*status.Node
		mark := page.Good
		for _, n := range q.index.Nodes {
			if n.Cluster == name {
				nodes = append(nodes, n)
				mark = mark.Worse(marks[n.Level()])
			}
		}
		p := q.detail(mark, "Cluster "+name, "", factsOf(q, status.ClusterTable, c, "cluster"), page.Link{Text: name})
		list, _ := q.nodeList(nodes, rowsPaged)
		p.Sections = append(p.Sections, page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(nodes)},
			list)
		problems := slices.DeleteFunc(slices.Clone(q.index.View.Problems), func(p ingress.Problem) bool {
			return p.Cluster != name
		})
		if list, n := listOf(q, rowsPaged, status.ProblemTable, status.ProblemStatuses(problems), ""); n > 0 {
			list.Filter = nil
			p.Sections = append(p.Sections, list)
		}
		return p, true
	}
	return page.Page{}, false
}

func (q *request) nodePage(name status.NodeName) (page.Page, bool) {
	n := q.index.Node[name]
	if n == nil {
		return page.Page{}, false
	}
	facts := []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: n.Cluster, Href: pathOf("cluster", n.Cluster)}},
		{Name: "AS", Cell: page.Cell{Text: fmt.Sprint(n.Node.ASN)}},
	}
	for _, s := range n.Peers {
		state := q.stateOf(s)
		state.Note = strings.TrimPrefix(state.Note+"; holds "+page.Count(s.Received, "route"), "; ")
		facts = append(facts, page.Fact{Name: "BGP session with " + s.Addr.String(), Cell: state})
	}
	if n.Node.Down {
		facts = append(facts, page.Fact{
			Name: "Kubernetes",
			Cell: page.Cell{Text: "reports the node as unreachable", Mark: page.Bad},
		})
	}
	p := q.detail(marks[n.Level()], "Node "+n.Name, q.serversInWords(n.Counts), facts,
		page.Link{Text: n.Cluster, Href: pathOf("cluster", n.Cluster)}, page.Link{Text: n.Name})
	for _, s := range n.Peers {
		if !s.Up() {
			why := status.SessionDown(s, q.index.View.At)
			p.Sections[0].Lines = append(p.Sections[0].Lines, page.Line{Mark: page.Bad, Text: why})
		}
	}
	p.Sections = append(p.Sections,
		page.Section{ID: "paths", Title: "Path", Diagram: q.diagram([]*status.Node{n})})
	var rows []status.RouteStatus
	for _, b := range n.Blocks[:min(len(n.Blocks), blocksShown)] {
		rows = append(rows, q.index.RouteRow(b))
	}
	blocks := tableOf(q, status.RouteTable, rows)
	blocks.Empty = "none: the node has no pod yet"
	var some []int
	for i, s := range q.index.Servers {
		if s.Node == n {
			some = append(some, i)
		}
	}
	p.Sections = append(p.Sections, page.Section{ID: "blocks", Title: "Blocks", Table: blocks}, q.theServers(some))
	return q.withChanges(p, "node "+n.Name+" "), true
}

// withChanges adds the last changes that have a name in their text.
func (q *request) withChanges(p page.Page, name string) page.Page {
	changes := q.changes(rowsShown, name)
	changes.Table.Prev = ""
	if len(changes.Table.Rows) > 0 {
		p.Sections = append(p.Sections, inShort(changes, 0, ""))
	}
	return p
}

// theServers lists some servers. The list may be empty.
func (q *request) theServers(some []int) page.Section {
	if some == nil {
		some = []int{}
	}
	section, n := q.serverList(some, rowsPaged)
	if n <= rowsPaged && q.query.Get("q") == "" && q.state == "" {
		section.Filter, section.Table.Total = nil, 0
	}
	return section
}

func (q *request) blockPage(cluster, text string) (page.Page, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return page.Page{}, false
	}
	for _, b := range q.index.Blocks {
		if b.Cluster != cluster || b.Affinity.Prefix != prefix {
			continue
		}
		n := q.index.Node[status.NodeName{Cluster: cluster, Name: b.Affinity.Node}]
		route := page.Cell{Text: "none wanted", Mark: page.Bad}
		switch {
		case b.Installed:
			route = page.Cell{Text: "in the kernel, via " + b.Via.String(), Mark: page.Good}
		case b.Via.IsValid():
			route = page.Cell{Text: "wanted via " + b.Via.String() + ", and not in the kernel", Mark: page.Bad}
		}
		facts := []page.Fact{
			{Name: "node", Cell: page.Cell{Text: b.Affinity.Node, Href: pathOf("node", cluster, b.Affinity.Node)}},
			{Name: "BlockAffinity", Cell: page.Cell{Text: cmp.Or(b.Affinity.State, "confirmed")}},
			{Name: "route", Cell: route},
		}
		p := q.detail(route.Mark, "Block "+prefix.String(), q.serversInWords(b.Counts), facts,
			page.Link{Text: cluster, Href: pathOf("cluster", cluster)},
			page.Link{Text: b.Affinity.Node, Href: pathOf("node", cluster, b.Affinity.Node)},
			page.Link{Text: prefix.String()})
		if !b.Installed {
			p.Sections[0].Lines = []page.Line{{Mark: page.Bad, Text: q.index.WhyNoRouteTo(n, b).String()}}
		}
		var refused []routes.Refusal
		for _, r := range q.index.View.BGP.Refusals {
			if r.Offer.Prefix.Overlaps(prefix) {
				refused = append(refused, r)
			}
		}
		if len(refused) > 0 {
			few := status.RefusalStatuses(refused[:min(len(refused), rowsPaged)])
			p.Sections = append(p.Sections, page.Section{
				ID: "refusals", Title: status.RefusalTable.Title, Table: tableOf(q, status.RefusalTable, few),
			})
		}
		var some []int
		for i, s := range q.index.Servers {
			if s.Block == b {
				some = append(some, i)
			}
		}
		if len(some) > 0 {
			p.Sections = append(p.Sections,
				page.Section{ID: "paths", Title: "Path", Diagram: q.diagram(q.index.Only(some))})
		}
		p.Sections = append(p.Sections, q.theServers(some))
		return q.withChanges(p, prefix.String()), true
	}
	return page.Page{}, false
}

func (q *request) backendPage(name string) (page.Page, bool) {
	at, ok := q.index.Backend[name]
	if !ok {
		return page.Page{}, false
	}
	b := q.index.Backends[at]
	some := make([]int, b.N)
	for i := range some {
		some[i] = b.From + i
	}
	facts := []page.Fact{{Name: "stands for", Cell: page.Cell{Text: b.Origin()}}}
	if r, known := q.pages.Samples.Rates.Of(name); known {
		perSecond := func(rate float64) string { return thousands(status.PerSecond(rate)) + "/s" }
		failed := page.Cell{Text: perSecond(r.Errors)}
		if r.Errors > 0 {
			failed.Mark = page.Warn
		}
		facts = append(facts, page.Fact{Name: "requests", Cell: page.Cell{Text: perSecond(r.Requests)}},
			page.Fact{Name: "errors (5xx)", Cell: failed},
			page.Fact{Name: "connections", Cell: page.Cell{Text: page.Comma(r.Connections)}})
		if r.Response != nil {
			facts = append(facts, page.Fact{
				Name: "response time",
				Cell: page.Cell{Text: fmt.Sprintf("%.0f ms", *r.Response)},
			})
		}
	}
	p := q.detail(marks[b.Level()], "Backend "+name, q.serversInWords(b.Counts), facts,
		page.Link{Text: "backends", Href: "/backends"}, page.Link{Text: name})
	if why := q.index.WhyBackend(b).String(); why != "" {
		p.Sections[0].Lines = []page.Line{{Mark: marks[b.Level()], Text: why}}
	}
	if b.N > 0 {
		p.Sections = append(p.Sections,
			page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.index.Only(some))})
	}
	p.Sections = append(p.Sections, q.theServers(some), q.ruleList(func(i int) bool {
		c := q.index.View.Config
		for target := range c.Targets(c.Routes[i]) {
			if target == name {
				return true
			}
		}
		return false
	}))
	return q.withChanges(p, " of "+name+" "), true
}

// ruleList lists hosts and paths.
func (q *request) ruleList(of func(i int) bool) page.Section {
	t := &page.Table{
		Columns: columns("host", "path", "match", "Ingress", "backend"),
		Empty:   "none: only a canary, a condition or a default leads here",
	}
	n := 0
	for i, r := range q.index.View.Config.Routes {
		if !of(i) {
			continue
		}
		if n++; n > rowsPaged {
			continue
		}
		in := page.Cell{}
		if ref := q.index.Granted[i]; ref.Name != "" {
			in = page.Cell{
				Text: ref.Namespace + "/" + ref.Name,
				Href: pathOf("ingress", ref.Cluster, ref.Namespace, ref.Name),
			}
		}
		backend := page.Cell{Text: r.Backend, Href: pathOf("backend", r.Backend)}
		switch {
		case r.Scope != "":
			in = page.Cell{Text: "Gateway at " + r.Scope}
			backend = page.Cell{Text: cmp.Or(r.To.Words(), "404")}
		case r.Backend == haproxy.WWW:
			backend = page.Cell{Text: "redirect to " + haproxy.OtherName(r.Host)}
		case r.Backend == "":
			backend = page.Cell{Text: "404", Mark: page.Warn}
		}
		t.Rows = append(t.Rows, []page.Cell{
			{Text: cmp.Or(r.Host, "any host")},
			{Text: r.Path, Mono: true},
			{Text: string(r.Match)},
			in, backend,
		})
	}
	section := page.Section{ID: "rules", Title: "Hosts and paths", Table: t}
	if n > rowsPaged {
		section.Note = fmt.Sprintf("the first %d of %s", rowsPaged, page.Comma(n))
	}
	return section
}

func (q *request) podPage(cluster, pod string) (page.Page, bool) {
	var some []int
	sum := status.Counts{}
	for i, s := range q.index.Servers {
		if s.Node.Cluster == cluster && s.Pod() == pod {
			some = append(some, i)
			sum.Add(s)
		}
	}
	if len(some) == 0 {
		return page.Page{}, false
	}
	first := q.index.Servers[some[0]]
	facts := []page.Fact{{
		Name: "node",
		Cell: page.Cell{Text: first.Node.Name, Href: pathOf("node", cluster, first.Node.Name)},
	}}
	if b := first.Block; b != nil {
		facts = append(facts, page.Fact{
			Name: "block",
			Cell: page.Cell{
				Text: b.Affinity.Prefix.String(), Mono: true,
				Href: pathOf("block", b.Cluster) + "/" + b.Affinity.Prefix.String(),
			},
		})
	}
	mark := marks[sum.Level()]
	p := q.detail(mark, "Pod "+pod, q.serversInWords(sum), facts,
		page.Link{Text: cluster, Href: pathOf("cluster", cluster)},
		page.Link{Text: first.Node.Name, Href: pathOf("node", cluster, first.Node.Name)}, page.Link{Text: pod})
	for _, i := range some {
		if why := q.index.Why(q.index.Servers[i]).String(); why != "" {
			p.Sections[0].Lines = []page.Line{{Mark: mark, Text: why}}
			break
		}
	}
	p.Sections = append(p.Sections,
		page.Section{ID: "paths", Title: "Path", Diagram: q.diagram(q.index.Only(some))}, q.theServers(some))
	return p, true
}

func (q *request) ingressPage(cluster, namespace, name string) (page.Page, bool) {
	e, ok := q.index.View.Compiled.Explain(cluster, namespace, name)
	if !ok {
		return page.Page{}, false
	}
	some, sum := q.serversOf(e)
	p := q.detail(marks[sum.Level()], "Ingress "+namespace+"/"+name, q.serversInWords(sum), []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: cluster, Href: pathOf("cluster", cluster)}},
		{Name: "namespace", Cell: page.Cell{Text: namespace, Href: "/ingresses?q=" + namespace + "%2F"}},
	}, page.Link{Text: "Ingresses", Href: "/ingresses"}, page.Link{Text: namespace + "/" + name})
	p.Sections[0].Lines = problemLines(e)
	if len(some) > 0 {
		p.Sections = append(p.Sections,
			page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.index.Only(some))})
	}
	is := func(ref ingress.ObjectRef) bool {
		return ref.Cluster == cluster && ref.Namespace == namespace && ref.Name == name
	}
	p.Sections = append(p.Sections, q.ruleList(func(i int) bool {
		return is(q.index.Granted[i]) || slices.ContainsFunc(q.index.Twins[i], is)
	}))
	for _, in := range q.index.Ingresses() {
		if is(in.Ref) {
			if certs := q.index.CertsOf(in.Hosts); len(certs) > 0 {
				p.Sections = append(p.Sections, page.Section{
					ID: "certificates", Title: status.CertificateTable.Title,
					Table: tableOf(q, status.CertificateTable, certs[:min(len(certs), rowsPaged)]),
				})
			}
		}
	}
	keys := &page.Table{
		Columns: columns("backend", "key", "~value", "set by"),
		Empty:   "none: every key has its default",
	}
	for _, b := range e.Backends {
		for _, k := range b.Keys {
			keys.Rows = append(keys.Rows,
				[]page.Cell{
					{Text: b.Name, Href: pathOf("backend", b.Name)},
					{Text: k.Key, Mono: true},
					{Text: k.Value, Mono: true},
					{Text: k.Scope},
				})
		}
	}
	p.Sections = append(p.Sections, page.Section{ID: "keys", Title: "Keys in effect", Table: keys}, q.theServers(some))
	return p, true
}
