package appliance

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"sallyport/appliance/page"
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
			"ingresses", "backends", "servers", "nodes", "peers", "routes", "addresses",
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
		facts := []page.Fact{
			{Name: "API", Cell: page.Cell{Text: "has answered", Mark: page.Good}},
			{Name: "Calico's objects", Cell: page.Cell{Text: c.APIGroup}},
			{Name: "nodes", Cell: page.Cell{Text: page.Comma(c.Nodes)}},
			{Name: "blocks", Cell: page.Cell{Text: page.Comma(c.Blocks)}},
		}
		if !c.Live {
			facts[0].Cell = page.Cell{Text: "has not answered since the start", Mark: page.Bad}
		}
		if !c.CredentialsExpire.IsZero() {
			facts = append(facts, page.Fact{
				Name: "credentials expire",
				Cell: page.Cell{Text: c.CredentialsExpire.UTC().Format("2006-01-02 15:04 MST")},
			})
		}
		var nodes []*nodeIndex
		mark := page.Good
		for _, n := range q.nodes {
			if n.cluster == name {
				nodes = append(nodes, n)
				mark = mark.Worse(n.mark())
			}
		}
		p := q.detail(mark, "Cluster "+name, "", facts, page.Link{Text: name})
		if c.Error != "" {
			p.Sections[0].Lines = append(p.Sections[0].Lines, page.Line{Mark: page.Warn, Text: c.Error})
		}
		list, _ := q.nodeList(nodes, rowsPaged)
		p.Sections = append(p.Sections, page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.status, nodes)},
			list)
		if problems, n := q.problemList(rowsPaged, func(p ingress.Problem) bool { return p.Cluster == name }); n > 0 {
			problems.Filter = nil
			p.Sections = append(p.Sections, problems)
		}
		return p, true
	}
	return page.Page{}, false
}

func (q *request) nodePage(name nodeName) (page.Page, bool) {
	n := q.node[name]
	if n == nil {
		return page.Page{}, false
	}
	facts := []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: n.cluster, Href: pathOf("cluster", n.cluster)}},
		{Name: "AS", Cell: page.Cell{Text: fmt.Sprint(n.node.ASN)}},
	}
	for _, s := range n.peers {
		state := q.stateOf(s)
		state.Note = strings.TrimPrefix(state.Note+"; holds "+page.Count(s.Received, "route"), "; ")
		facts = append(facts, page.Fact{Name: "BGP session with " + s.Addr.String(), Cell: state})
	}
	if n.node.Down {
		facts = append(facts, page.Fact{
			Name: "Kubernetes",
			Cell: page.Cell{Text: "reports the node as unreachable", Mark: page.Bad},
		})
	}
	p := q.detail(n.mark(), "Node "+n.name, q.serversInWords(n.counts), facts,
		page.Link{Text: n.cluster, Href: pathOf("cluster", n.cluster)}, page.Link{Text: n.name})
	for _, s := range n.peers {
		if s.State != established {
			p.Sections[0].Lines = append(p.Sections[0].Lines, page.Line{Mark: page.Bad, Text: sessionDown(s, q.at)})
		}
	}
	p.Sections = append(p.Sections,
		page.Section{ID: "paths", Title: "Path", Diagram: q.diagram(q.status, []*nodeIndex{n})})
	blocks := &page.Table{Columns: blockColumns, Empty: "none: the node has no pod yet"}
	for _, b := range n.blocks[:min(len(n.blocks), blocksShown)] {
		blocks.Rows = append(blocks.Rows, q.blockRow(b))
	}
	var some []int
	for i, s := range q.index.servers {
		if s.node == n {
			some = append(some, i)
		}
	}
	p.Sections = append(p.Sections, page.Section{ID: "blocks", Title: "Blocks", Table: blocks}, q.theServers(some))
	return q.withChanges(p, "node "+n.name+" "), true
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
	for _, b := range q.index.blocks {
		if b.cluster != cluster || b.affinity.Prefix != prefix {
			continue
		}
		n := q.node[nodeName{cluster, b.affinity.Node}]
		route := page.Cell{Text: "none wanted", Mark: page.Bad}
		switch {
		case b.installed:
			route = page.Cell{Text: "in the kernel, via " + b.via.String(), Mark: page.Good}
		case b.via.IsValid():
			route = page.Cell{Text: "wanted via " + b.via.String() + ", and not in the kernel", Mark: page.Bad}
		}
		facts := []page.Fact{
			{Name: "node", Cell: page.Cell{Text: b.affinity.Node, Href: pathOf("node", cluster, b.affinity.Node)}},
			{Name: "BlockAffinity", Cell: page.Cell{Text: cmp.Or(b.affinity.State, "confirmed")}},
			{Name: "route", Cell: route},
		}
		p := q.detail(route.Mark, "Block "+prefix.String(), q.serversInWords(b.counts), facts,
			page.Link{Text: cluster, Href: pathOf("cluster", cluster)},
			page.Link{Text: b.affinity.Node, Href: pathOf("node", cluster, b.affinity.Node)},
			page.Link{Text: prefix.String()})
		if !b.installed {
			p.Sections[0].Lines = []page.Line{{Mark: page.Bad, Text: q.whyNoRouteTo(n, b)}}
		}
		var refused []routes.Refusal
		for _, r := range q.refusals {
			if r.Offer.Prefix.Overlaps(prefix) {
				refused = append(refused, r)
			}
		}
		if len(refused) > 0 {
			t := &page.Table{Columns: refusalColumns}
			for _, r := range refused[:min(len(refused), rowsPaged)] {
				t.Rows = append(t.Rows, refusalRow(r))
			}
			p.Sections = append(p.Sections, page.Section{ID: "refusals", Title: "Refused offers", Table: t})
		}
		var some []int
		for i, s := range q.index.servers {
			if s.block == b {
				some = append(some, i)
			}
		}
		if len(some) > 0 {
			p.Sections = append(p.Sections,
				page.Section{ID: "paths", Title: "Path", Diagram: q.diagram(q.status, q.only(some))})
		}
		p.Sections = append(p.Sections, q.theServers(some))
		return q.withChanges(p, prefix.String()), true
	}
	return page.Page{}, false
}

func (q *request) backendPage(name string) (page.Page, bool) {
	at, ok := q.backend[name]
	if !ok {
		return page.Page{}, false
	}
	b := q.index.backends[at]
	some := make([]int, b.n)
	for i := range some {
		some[i] = b.from + i
	}
	facts := []page.Fact{{Name: "stands for", Cell: page.Cell{Text: b.origin()}}}
	if r, known := q.pages.samples.rates.of(name); known {
		failed := page.Cell{Text: perSecond(r.Errors) + "/s"}
		if r.Errors > 0 {
			failed.Mark = page.Warn
		}
		facts = append(facts, page.Fact{Name: "requests", Cell: page.Cell{Text: perSecond(r.Requests) + "/s"}},
			page.Fact{Name: "errors (5xx)", Cell: failed},
			page.Fact{Name: "connections", Cell: page.Cell{Text: page.Comma(r.Connections)}})
		if r.Response != nil {
			facts = append(facts, page.Fact{
				Name: "response time",
				Cell: page.Cell{Text: fmt.Sprintf("%.0f ms", *r.Response)},
			})
		}
	}
	p := q.detail(b.mark(), "Backend "+name, q.serversInWords(b.counts), facts,
		page.Link{Text: "backends", Href: "/backends"}, page.Link{Text: name})
	if why, _ := q.whyBackend(b); why != "" {
		p.Sections[0].Lines = []page.Line{{Mark: b.mark(), Text: why}}
	}
	if b.n > 0 {
		p.Sections = append(p.Sections,
			page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.status, q.only(some))})
	}
	p.Sections = append(p.Sections, q.theServers(some), q.ruleList(func(i int) bool {
		r := q.config.Routes[i]
		return r.Backend == name || r.Canary == name
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
	for i, r := range q.config.Routes {
		if !of(i) {
			continue
		}
		if n++; n > rowsPaged {
			continue
		}
		in := page.Cell{}
		if ref := q.granted[i]; ref.Name != "" {
			in = page.Cell{
				Text: ref.Namespace + "/" + ref.Name,
				Href: pathOf("ingress", ref.Cluster, ref.Namespace, ref.Name),
			}
		}
		backend := page.Cell{Text: r.Backend, Href: pathOf("backend", r.Backend)}
		if r.Backend == "" {
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
	sum := serverCounts{}
	for i, s := range q.index.servers {
		if s.node.cluster == cluster && s.pod() == pod {
			some = append(some, i)
			sum.add(s)
		}
	}
	if len(some) == 0 {
		return page.Page{}, false
	}
	first := q.index.servers[some[0]]
	facts := []page.Fact{{
		Name: "node",
		Cell: page.Cell{Text: first.node.name, Href: pathOf("node", cluster, first.node.name)},
	}}
	if b := first.block; b != nil {
		facts = append(facts, page.Fact{
			Name: "block",
			Cell: page.Cell{
				Text: b.affinity.Prefix.String(), Href: blockAddress(b.cluster, b.affinity.Prefix),
				Mono: true,
			},
		})
	}
	mark := sum.mark()
	p := q.detail(mark, "Pod "+pod, q.serversInWords(sum), facts,
		page.Link{Text: cluster, Href: pathOf("cluster", cluster)},
		page.Link{Text: first.node.name, Href: pathOf("node", cluster, first.node.name)}, page.Link{Text: pod})
	for _, i := range some {
		if why := q.why(q.index.servers[i]); why != "" {
			p.Sections[0].Lines = []page.Line{{Mark: mark, Text: why}}
			break
		}
	}
	p.Sections = append(p.Sections,
		page.Section{ID: "paths", Title: "Path", Diagram: q.diagram(q.status, q.only(some))}, q.theServers(some))
	return p, true
}

func (q *request) ingressPage(cluster, namespace, name string) (page.Page, bool) {
	e, ok := q.compiled.Explain(cluster, namespace, name)
	mine := func(p ingress.Problem) bool {
		return p.Kind == "Ingress" && p.Cluster == cluster && p.Namespace == namespace && p.Name == name
	}
	if !ok {
		return page.Page{}, false
	}
	var some []int
	sum := serverCounts{}
	for _, b := range e.Backends {
		if at, ok := q.backend[b.Name]; ok {
			for i := range q.index.backends[at].n {
				some = append(some, q.index.backends[at].from+i)
				sum.add(q.index.servers[q.index.backends[at].from+i])
			}
		}
	}
	mark := sum.mark()
	p := q.detail(mark, "Ingress "+namespace+"/"+name, q.serversInWords(sum), []page.Fact{
		{Name: "cluster", Cell: page.Cell{Text: cluster, Href: pathOf("cluster", cluster)}},
		{Name: "namespace", Cell: page.Cell{Text: namespace, Href: "/ingresses?q=" + namespace + "%2F"}},
	}, page.Link{Text: "Ingresses", Href: "/ingresses"}, page.Link{Text: namespace + "/" + name})
	for _, problem := range e.Problems {
		text := problem.Why
		if !mine(problem) {
			text = fmt.Sprintf("%s %s/%s: %s", problem.Kind, problem.Namespace, problem.Name, problem.Why)
		}
		p.Sections[0].Lines = append(p.Sections[0].Lines, page.Line{Mark: page.Warn, Text: text})
	}
	if len(some) > 0 {
		p.Sections = append(p.Sections,
			page.Section{ID: "paths", Title: "Paths", Diagram: q.diagram(q.status, q.only(some))})
	}
	p.Sections = append(p.Sections, q.ruleList(func(i int) bool {
		ref := q.granted[i]
		return ref.Cluster == cluster && ref.Namespace == namespace && ref.Name == name
	}))
	for _, in := range q.ingresses() {
		if in.ref.Cluster == cluster && in.ref.Namespace == namespace && in.ref.Name == name {
			if certs := q.certsOf(in.hosts); len(certs) > 0 {
				t := &page.Table{Columns: certificateColumns}
				for _, c := range certs[:min(len(certs), rowsPaged)] {
					t.Rows = append(t.Rows, q.certificateRow(c))
				}
				p.Sections = append(p.Sections, page.Section{ID: "certificates", Title: "Certificates", Table: t})
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
