package pages

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/appliance/page"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
)

// Pages makes the pages for people from the index of the last view. A request reads an immutable
// view, and takes no lock of the loop.
type Pages struct {
	Index   func() *status.Index
	Head    func() status.Status
	Changes *status.Timeline
	Samples *status.Samples
}

const (
	rowsShown = 8  // of a table on the first page
	rowsPaged = 50 // of a page of a table

	blocksShown = 1000 // of a node, on its page

	linesShown = 4 // sentences on the first page
)

// request is a request for a page.
type request struct {
	index    *status.Index
	pages    *Pages
	status   status.Status
	path     string
	segments []string
	query    url.Values
	state    string // ?state=
}

// Page returns the page of a request:
//
//	/                                    all in short
//	/group/drain                         whether a drain is possible, and the button for it
//	/cluster/NAME                        one cluster
//	/node/CLUSTER/NAME                   one node: its blocks and servers
//	/block/CLUSTER/PREFIX                one block: its offers, its route, its servers
//	/backend/NAME                        one backend: its servers, and what leads to it
//	/pod/CLUSTER/NAMESPACE/NAME          the servers of one pod
//	/ingress/CLUSTER/NAMESPACE/NAME      what became of one Ingress
//	/gateway/CLUSTER/NAMESPACE/NAME      one Gateway: its listeners and routes
//	/route/CLUSTER/KIND/NAMESPACE/NAME   what became of one route of Gateway API
//	/nodes, /peers, /routes, /ingresses, /gateways, /gateway-routes, /backends, /servers, /certificates,
//	/refusals, /problems, /changes, /addresses, /services
//	                                     all of a kind; ?q= searches, ?state= filters, ?page= turns,
//	                                     ?sort= orders backends by one of SortKeys
//	/warnings                            all sentences that need attention
//	/search?q=                           what has that text in its name
func (p *Pages) Page(r *http.Request) (page.Page, bool) {
	q := &request{index: p.Index(), pages: p, status: p.Head(), path: r.URL.Path, query: r.URL.Query()}
	q.state = q.query.Get("state")
	for segment := range strings.SplitSeq(strings.Trim(r.URL.EscapedPath(), "/"), "/") {
		text, err := url.PathUnescape(segment)
		if err != nil {
			return page.Page{}, false
		}
		q.segments = append(q.segments, text)
	}
	kind, names := q.segments[0], q.segments[1:]
	var result page.Page
	ok := true
	switch {
	case kind == "" && len(names) == 0:
		result = q.first()
	case kind == "search" && len(names) == 0:
		result = q.search()
	case kind == "warnings" && len(names) == 0:
		result = q.warningsPage()
	case kind == "group" && len(names) == 1 && names[0] == "drain":
		result, ok = q.drainPage()
	case kind == "cluster" && len(names) == 1:
		result, ok = q.clusterPage(names[0])
	case kind == "node" && len(names) == 2:
		result, ok = q.nodePage(status.NodeName{Cluster: names[0], Name: names[1]})
	case kind == "block" && len(names) == 3:
		result, ok = q.blockPage(names[0], names[1]+"/"+names[2])
	case kind == "backend" && len(names) == 1:
		result, ok = q.backendPage(names[0])
	case kind == "pod" && len(names) == 3:
		result, ok = q.podPage(names[0], names[1]+"/"+names[2])
	case kind == "ingress" && len(names) == 3:
		result, ok = q.ingressPage(names[0], names[1], names[2])
	case kind == "gateway" && len(names) == 3:
		result, ok = q.gatewayPage(names[0], names[1], names[2])
	case kind == "route" && len(names) == 4:
		result, ok = q.routePage(names[0], names[1], names[2], names[3])
	case len(names) == 0:
		result, ok = q.listPage(kind)
	default:
		ok = false
	}
	if !ok {
		return page.Page{}, false
	}
	s := q.status
	result.Identity = s.Identity
	result.Crumbs = append([]page.Link{{Text: s.Identity, Href: "/"}}, result.Crumbs...)
	result.Crumbs[len(result.Crumbs)-1].Href = ""
	result.Version, result.AsOf = "Sallyport "+s.Version, s.Now.UTC().Format("2006-01-02 15:04:05 MST")
	return result, true
}

// pathOf returns the path of a page; each part may have any letters.
func pathOf(kind string, names ...string) string {
	for _, n := range names {
		kind += "/" + url.PathEscape(n)
	}
	return "/" + kind
}

func blockAddress(cluster string, p netip.Prefix) string {
	return pathOf("block", cluster) + "/" + p.String()
}

func podAddress(cluster, pod string) string {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok {
		return ""
	}
	return pathOf("pod", cluster, namespace, name)
}

// mark returns the mark of the appliance.
func (q *request) mark() page.Mark {
	switch {
	case !q.status.Ready:
		return page.Bad
	case len(q.status.Warnings) > 0 || q.index.All.Closed()+q.index.All.Failing > 0 || q.entrance().Mark == page.Bad:
		return page.Warn
	}
	return page.Good
}

func (q *request) first() page.Page {
	s := q.status
	state := page.Section{ID: "state", Title: s.Identity + " is ready", Note: "up " + status.Ago(s.Now, s.Started)}
	switch all := q.index.All; {
	case !s.Ready:
		state.Title = s.Identity + " is not ready"
	case all.All > 0 && all.Open+all.Failing == 0:
		state.Title += ", but no server is open"
	default:
		if e := q.entrance(); e.Mark == page.Bad {
			state.Title += ", but clients do not reach it: " + e.Label
		}
	}
	// At most so many lines that the drawing stays on the first screen.
	sentences := append(lines(page.Bad, s.NotReady), lines(page.Warn, s.Warnings)...)
	if n := len(sentences); n > linesShown {
		sentences = sentences[:linesShown]
		state.More = &page.Link{Text: "all " + page.Comma(n) + " warnings", Href: "/warnings"}
	}
	state.Lines = sentences
	p := page.Page{Title: s.Identity, Mark: q.mark()}
	p.Sections = append(p.Sections, state, page.Section{
		ID: "paths", Title: "Paths", Note: q.serversInWords(q.index.All), Diagram: q.diagram(q.index.Everything()),
	})
	p.Sections = append(p.Sections, q.groupSections(q.mayDrain())...)
	if curves := q.pages.Samples.Curves(); curves != nil {
		section := page.Section{ID: "load", Title: "Last hour"}
		for _, c := range curves {
			section.Plots = append(section.Plots, page.Plot(c))
		}
		p.Sections = append(p.Sections, section)
	}
	if changes := q.changes(rowsShown, ""); len(changes.Table.Rows) > 0 {
		changes.More = &page.Link{Text: "all", Href: "/changes"}
		p.Sections = append(p.Sections, inShort(changes, 0, ""))
	}
	for _, list := range []string{
		"problems", "refusals", "peers", "routes", "ingresses", "gateways", "gateway-routes", "backends", "clusters",
		"certificates", "capacity",
	} {
		section, total := q.list(list, rowsShown)
		if total == 0 && slices.Contains(briefLists, list) {
			continue
		}
		p.Sections = append(p.Sections, inShort(section, total, "/"+list))
	}
	p.Sections = append(p.Sections, q.versions())
	return p
}

// briefLists are left out of the first page while they are empty.
var briefLists = []string{"problems", "refusals", "gateways", "gateway-routes", "certificates", "capacity"}

// inShort returns a list without its filter and the links to its other pages. If the whole list is
// longer, the result has a link to it.
func inShort(list page.Section, total int, all string) page.Section {
	if total > rowsShown {
		list.More = &page.Link{Text: "all " + page.Comma(total), Href: all}
	}
	list.Filter, list.Table.Total, list.Table.Next = nil, 0, ""
	return list
}

// warningsPage returns the page with everything that needs attention.
func (q *request) warningsPage() page.Page {
	s := q.status
	return page.Page{
		Title: "warnings, " + s.Identity, Mark: q.mark(), Crumbs: []page.Link{{Text: "warnings"}},
		Sections: []page.Section{
			{
				ID: "state", Title: "Warnings",
				Lines: append(lines(page.Bad, s.NotReady), lines(page.Warn, s.Warnings)...),
			},
		},
	}
}

func lines(mark page.Mark, sentences []string) (all []page.Line) {
	for _, s := range sentences {
		all = append(all, page.Line{Mark: mark, Text: s})
	}
	return all
}

func (q *request) serversInWords(c status.Counts) string {
	if c.All == 0 {
		return "no servers"
	}
	words := fmt.Sprintf("%s of %s open", page.Comma(c.Open+c.Failing), page.Count(c.All, "server"))
	if c.Failing > 0 {
		words += ", " + page.Comma(c.Failing) + " of them fail their checks"
	}
	if c.Draining > 0 {
		words += ", " + page.Comma(c.Draining) + " draining"
	}
	return words
}

func (q *request) versions() page.Section {
	s := q.status
	facts := []page.Fact{
		{Name: "Sallyport", Cell: page.Cell{Text: s.Version, Note: "up " + status.Ago(s.Now, s.Started)}},
		{Name: "HAProxy", Cell: page.Cell{Text: s.HAProxy.Version, Note: "mode " + string(s.HAProxy.Mode)}},
		{Name: "reloads of HAProxy", Cell: page.Cell{Text: page.Comma(s.HAProxy.Reloads)}},
	}
	if s.HAProxy.LastReason != "" {
		facts = append(facts, page.Fact{
			Name: "last reload",
			Cell: page.Cell{Text: status.Ago(s.Now, s.HAProxy.LastReload) + " ago", Note: s.HAProxy.LastReason},
		})
	}
	if s.HAProxy.OldWorkers > 0 {
		facts = append(facts, page.Fact{
			Name: "old workers",
			Cell: page.Cell{Text: page.Comma(s.HAProxy.OldWorkers), Note: "finish their connections"},
		})
	}
	for _, w := range s.HAProxy.Waits {
		facts = append(facts, page.Fact{
			Name: "waits for a reload",
			Cell: page.Cell{Text: strings.TrimPrefix(w.Tenant.String(), "/"), Note: w.Words(s.Now)},
		})
	}
	return page.Section{ID: "versions", Title: "Versions", Facts: append(facts,
		page.Fact{
			Name: "configuration file",
			Cell: page.Cell{Text: "read " + status.Ago(s.Now, s.Config.Read) + " ago"},
		},
	)}
}

// listPage returns the page that lists all of a kind.
func (q *request) listPage(kind string) (page.Page, bool) {
	section, _ := q.list(kind, rowsPaged)
	if section.ID == "" {
		return page.Page{}, false
	}
	title := strings.ToLower(section.Title)
	section.ID = "state"
	return page.Page{
		Title: title + ", " + q.status.Identity, Mark: q.mark(), Crumbs: []page.Link{{Text: title}},
		Sections: []page.Section{section},
	}, true
}

// list returns a section with a table of all of a kind, or those that the query selects,
// and how many there are. The section has no ID if there is no such kind.
func (q *request) list(kind string, size int) (page.Section, int) {
	switch kind {
	case "nodes":
		return q.nodeList(q.index.Everything(), size)
	case "peers":
		peers := firstOf(q.index.View.BGP.Peers, len(q.index.View.BGP.Peers), func(p bgp.PeerState) bool {
			return !p.Up()
		})
		return listOf(q, size, status.PeerTable, peers, "node or address")
	case "routes":
		return q.routeList(size)
	case "ingresses":
		return q.ingressList(q.index.Ingresses(), size)
	case "gateways":
		return listOf(q, size, status.GatewayTable, status.ListenerRows(q.index.Gateways()),
			"Gateway, address or hostname")
	case "gateway-routes":
		return listOf(q, size, status.GatewayRouteTable, status.PlaceRows(q.index.GatewayRoutes()),
			"route, hostname or Gateway")
	case "backends":
		return q.backendList(size)
	case "servers":
		return q.serverList(nil, size)
	case "clusters":
		return listOf(q, size, status.ClusterTable, q.status.Clusters, "name")
	case "certificates":
		return q.certificateList(size)
	case "refusals":
		return listOf(q, size, status.RefusalTable, status.RefusalStatuses(q.index.View.BGP.Refusals),
			"prefix, peer or reason")
	case "problems":
		return listOf(q, size, status.ProblemTable, status.ProblemStatuses(q.index.View.Problems), "object or reason")
	case "capacity":
		return listOf(q, size, status.CapacityTable, q.status.Capacity, "resource")
	case "addresses":
		return listOf(q, size, status.AddressTable, status.AddressTable.Rows(&q.status), "address or Service")
	case "services":
		return listOf(q, size, status.ServiceTable, status.ServiceTable.Rows(&q.status), "Service or address")
	case "changes":
		return q.changes(size, ""), 0
	}
	return page.Section{}, 0
}

// paged returns a page of a table: of all items, those that keep accepts for the text that
// is searched. Only the items that are shown become rows.
func paged[T any](q *request, size int, items []T, keep func(item T, text string) bool, row func(T) []page.Cell,
	columns ...page.Column,
) (*page.Table, int) {
	text := strings.ToLower(strings.TrimSpace(q.query.Get("q")))
	var kept []T
	for _, item := range items {
		if keep(item, text) {
			kept = append(kept, item)
		}
	}
	number, _ := strconv.Atoi(q.query.Get("page"))
	number = min(max(number, 1), (len(kept)+size-1)/size)
	from := max(number-1, 0) * size
	t := &page.Table{Columns: columns, From: from + 1, Total: len(kept)}
	turn := func(to int) string {
		query := url.Values{"page": {strconv.Itoa(to)}}
		for _, key := range []string{"q", "state", "sort"} {
			if v := q.query.Get(key); v != "" {
				query.Set(key, v)
			}
		}
		return q.path + "?" + query.Encode()
	}
	if number > 1 {
		t.Prev = turn(number - 1)
	}
	if from+size < len(kept) {
		t.Next = turn(number + 1)
	}
	for _, item := range kept[from:min(from+size, len(kept))] {
		t.Rows = append(t.Rows, row(item))
	}
	if text != "" || q.state != "" {
		t.Empty = "none that matches"
	}
	return t, len(kept)
}

func columns(names ...string) (all []page.Column) {
	for _, n := range names {
		name, right := strings.CutPrefix(n, ">")
		name, wide := strings.CutPrefix(name, "~")
		all = append(all, page.Column{Name: name, Right: right, Wide: wide})
	}
	return all
}

// has reports whether one of several texts contains the searched text, which is in lower case.
func has(text string, in ...string) bool {
	return text == "" || slices.ContainsFunc(in, func(s string) bool { return contains(s, text) })
}

// contains reports whether s contains a text, ignoring the case of letters. It copies nothing,
// because a search asks for each server.
func contains(s, text string) bool {
	if strings.Contains(s, text) {
		return true
	}
	if !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf || 'A' <= r && r <= 'Z' }) {
		return false
	}
	for i := range s {
		if i+len(text) <= len(s) && strings.EqualFold(s[i:i+len(text)], text) {
			return true
		}
	}
	return false
}

func (q *request) filter(hint string, states ...string) *page.Filter {
	f := &page.Filter{Action: q.path, Query: q.query.Get("q"), Hint: hint}
	if len(states) > 0 {
		f.States = []page.Choice{{Value: "", Text: "any state"}}
	}
	for _, s := range states {
		f.States = append(f.States, page.Choice{Value: s, Text: s, Chosen: q.state == s})
	}
	return f
}

func (q *request) inState(is string) bool { return q.state == "" || q.state == is }

// clusterCell returns the name of a cluster if the configuration has several clusters.
func (q *request) clusterCell(name string) page.Cell {
	if len(q.index.View.Clusters) < 2 {
		return page.Cell{}
	}
	return page.Cell{Text: name, Href: pathOf("cluster", name)}
}

// faulty returns the state that a filter has for a mark.
func faulty(m page.Mark) string {
	if m == page.Bad || m == page.Warn {
		return "broken"
	}
	return "good"
}

func (q *request) nodeList(nodes []*status.Node, size int) (page.Section, int) {
	t, n := paged(q, size, nodes, func(n *status.Node, text string) bool {
		return q.inState(faulty(markOfNode(n))) && has(text, n.Name, n.Cluster, n.Where(false))
	}, func(n *status.Node) []page.Cell {
		why := q.row(n).Why
		route, server := doorOfNode(n), doorOfServers(n.Counts)
		return []page.Cell{
			{Text: cmp.Or(n.Name, "no node"), Href: pathOf("node", n.Cluster, n.Name)},
			{Text: n.Where(false), Mono: true},
			q.clusterCell(n.Cluster),
			{Text: route.Label, Mark: route.Mark},
			{Text: server.Label, Mark: server.Mark},
			{Text: strings.Join(why, "; ")},
		}
	}, columns("node", "address", "cluster", "routes", "open servers", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none: no cluster has a node")
	return page.Section{ID: "nodes", Title: "Nodes", Table: t, Filter: q.filter("name or address", "broken", "good")}, n
}

// stateOf describes the state of a session: since when, and how BFD sees the peer.
func (q *request) stateOf(p bgp.PeerState) page.Cell {
	state := page.Cell{Text: p.State, Mark: page.Good}
	if p.BFD == "down" {
		state.Mark = page.Warn
	}
	if !p.Up() {
		state.Mark = page.Bad
	}
	var notes []string
	if since := status.Ago(q.status.Now, p.Since); since != "" {
		notes = append(notes, "for "+since)
	}
	if p.BFD != "" {
		notes = append(notes, "BFD "+p.BFD)
	}
	state.Note = strings.Join(notes, ", ")
	return state
}

func (q *request) routeList(size int) (page.Section, int) {
	blocks := firstOf(q.index.Blocks, len(q.index.Blocks), func(b *status.Block) bool { return !b.Installed })
	t, n := paged(q, size, blocks, func(b *status.Block, text string) bool {
		return q.inState(status.Either(b.Installed, "installed", "missing")) &&
			has(text, b.Affinity.Prefix.String(), b.Affinity.Node, b.Cluster, b.Via.String())
	}, q.blockRow, blockColumns...)
	t.Empty = cmp.Or(t.Empty, "none: no node owns a block")
	return page.Section{
		ID: "routes", Title: "Routes", Table: t,
		Filter: q.filter("block, next hop or node", "installed", "missing"),
	}, n
}

var blockColumns = columns("block", "via", "node", "cluster", "in the kernel", ">open servers", "~why")

func (q *request) blockRow(b *status.Block) []page.Cell {
	n := q.index.Node[status.NodeName{Cluster: b.Cluster, Name: b.Affinity.Node}]
	state := page.Cell{Text: "installed", Mark: page.Good}
	why, via := "", ""
	if !b.Installed {
		state, why = page.Cell{Text: "missing", Mark: page.Bad}, q.index.WhyNoRouteTo(n, b).String()
	}
	if b.Via.IsValid() {
		via = b.Via.String()
	}
	return []page.Cell{
		{Text: b.Affinity.Prefix.String(), Href: blockAddress(b.Cluster, b.Affinity.Prefix), Mono: true},
		{Text: via, Mono: true},
		{Text: b.Affinity.Node, Href: pathOf("node", b.Cluster, b.Affinity.Node)},
		q.clusterCell(b.Cluster),
		state,
		{Text: fmt.Sprintf("%s of %s", page.Comma(b.Counts.Open+b.Counts.Failing), page.Comma(b.Counts.All))},
		{Text: why},
	}
}

func (q *request) ingressList(all []*status.Ingress, size int) (page.Section, int) {
	if size == rowsShown {
		all = firstOf(all, size, func(in *status.Ingress) bool { return faulty(markOfIngress(in)) == "broken" })
	}
	t, n := paged(q, size, all, func(in *status.Ingress, text string) bool {
		return q.inState(faulty(markOfIngress(in))) && (text == "" || has(text, in.Ref.Namespace+"/"+in.Ref.Name) ||
			has(text, in.Hosts...))
	}, func(in *status.Ingress) []page.Cell {
		problems := page.Cell{}
		if in.Problems > 0 {
			problems = page.Cell{Text: page.Count(in.Problems, "problem"), Mark: page.Warn}
		}
		certificate := page.Cell{}
		if certs := q.index.CertsOf(in.Hosts); len(certs) > 0 {
			certificate = q.expiry(certs[0])
		}
		return []page.Cell{
			{
				Text: in.Ref.Namespace + "/" + in.Ref.Name,
				Href: pathOf("ingress", in.Ref.Cluster, in.Ref.Namespace, in.Ref.Name),
			},
			q.clusterCell(in.Ref.Cluster),
			firstFew(in.Hosts),
			{Text: page.Comma(len(in.Routes))},
			{Text: doorOfServers(in.Counts).Label, Mark: markOfIngress(in)},
			certificate,
			problems,
		}
	}, columns("Ingress", "cluster", "~hosts", ">paths", "open servers", "certificate expires", "problems")...)
	t.Empty = cmp.Or(t.Empty, "none: no Ingress is served")
	return page.Section{
		ID: "ingresses", Title: "Ingresses", Table: t,
		Filter: q.filter("host, namespace or name", "broken", "good"),
	}, n
}

// firstOf moves the first few items that match to the front. It keeps the order of the rest.
func firstOf[T any](all []T, few int, first func(T) bool) []T {
	var front, rest []T
	for _, item := range all {
		if len(front) < few && first(item) {
			front = append(front, item)
		} else {
			rest = append(rest, item)
		}
	}
	return append(front, rest...)
}

func (q *request) backendList(size int) (page.Section, int) {
	key := q.query.Get("sort")
	if size == rowsShown {
		key = status.SortKeys[0]
	}
	all := q.byLoad(key)
	at, brief := func(i int) status.Backend { return q.index.Backends[i] }, inOneTable()
	if size == rowsShown {
		all = firstOf(all, size, func(i int) bool { return faulty(markOfBackend(at(i))) == "broken" })
	}
	t, n := paged(q, size, all, func(i int, text string) bool {
		return q.inState(faulty(markOfBackend(at(i)))) && (text == "" || has(text, at(i).Name, at(i).Origin()))
	}, func(i int) []page.Cell {
		b := at(i)
		var load [3]page.Cell
		if r, known := q.pages.Samples.Rates.Of(b.Name); known {
			load = [3]page.Cell{
				{Text: perSecond(r.Requests)},
				{Text: perSecond(r.Errors)},
				{Text: page.Comma(r.Connections)},
			}
			if r.Errors > 0 {
				load[1].Mark = page.Warn
			}
		}
		return []page.Cell{
			{Text: b.Name, Href: pathOf("backend", b.Name)},
			{Text: b.Origin()},
			{Text: doorOfServers(b.Counts).Label, Mark: markOfBackend(b)},
			some(b.Counts.Failing), some(b.Counts.Draining),
			load[0], load[1], load[2],
			{Text: brief(q.whyBackend(b))},
		}
	}, columns("backend", "of", "open servers", ">failing", ">draining", ">requests/s", ">errors/s", ">connections",
		"~why")...)
	t.Empty = cmp.Or(t.Empty, "none")
	f := q.filter("name or Service", "broken", "good")
	for _, k := range []string{"", "requests", "errors", "connections", "response", "open"} {
		f.Orders = append(f.Orders, page.Choice{Value: k, Text: orderNames[k], Chosen: k == key})
	}
	return page.Section{ID: "backends", Title: "Backends", Note: q.serversInWords(q.index.All), Table: t, Filter: f}, n
}

// orderNames has the orders of backends in words, by their keys.
var orderNames = map[string]string{
	"": "by name", "requests": "most requests first", "errors": "most errors first",
	"connections": "most connections first", "response": "slowest first", "open": "fewest open servers first",
}

// byLoad returns the backends of the index by a key of SortKeys, and after them those that
// have no sample. Without such a key, it returns them by name.
func (q *request) byLoad(key string) []int {
	all := make([]int, 0, len(q.index.Backends))
	seen := make([]bool, len(q.index.Backends))
	if slices.Contains(status.SortKeys[:], key) {
		for _, name := range q.pages.Samples.Rates.Names(key) {
			if i, is := q.index.Backend[name]; is {
				all, seen[i] = append(all, i), true
			}
		}
	}
	for i := range q.index.Backends {
		if !seen[i] {
			all = append(all, i)
		}
	}
	return all
}

// perSecond returns a rate in words, with as many digits as matter.
func perSecond(rate float64) string {
	if rate == 0 || rate >= 10 {
		return page.Comma(int(math.Round(rate)))
	}
	return strconv.FormatFloat(rate, 'f', 1, 64)
}

// firstFew names the first few hosts, and says how many more there are.
func firstFew(hosts []string) page.Cell {
	const few = 3
	cell := page.Cell{Text: strings.Join(hosts[:min(few, len(hosts))], ", ")}
	if more := len(hosts) - few; more > 0 {
		cell.Note = "and " + page.Comma(more) + " more"
	}
	return cell
}

// some returns a number unless it is zero, so that a column of zeros is left out.
func some(n int) page.Cell {
	if n == 0 {
		return page.Cell{}
	}
	return page.Cell{Text: page.Comma(n)}
}

// mark returns the mark of a backend.
func markOfBackend(b status.Backend) page.Mark {
	if b.Counts.All == 0 {
		return page.Warn
	}
	return markOfCounts(b.Counts)
}

// whyBackend returns the first reason why a server of a backend does not serve.
func (q *request) whyBackend(b status.Backend) status.Why {
	if b.Counts.All == 0 {
		return status.Why{Short: "its Service has no endpoint that is ready"}
	}
	if faulty(markOfBackend(b)) == "good" {
		return status.Why{}
	}
	for _, s := range q.index.Servers[b.From : b.From+b.N] {
		if markOfServer(s) == page.Bad {
			return q.index.Why(s)
		}
	}
	return status.Why{}
}

// A reason is a status.Why without the words that differ between servers.
type reason struct {
	code   status.Code
	detail string
	rest   string
}

func reasonOf(why status.Why) reason { return reason{why.Code, why.Detail, why.Rest} }

// inOneTable returns a function for the reasons of the rows of a table, in their order. It shortens
// a reason that an earlier row has in full: on a telephone, ten rows with the same five lines hide
// the differences.
func inOneTable() func(why status.Why) string {
	seen := map[reason]bool{}
	return func(why status.Why) string {
		if why.Rest != "" && seen[reasonOf(why)] {
			return why.Short + ", as above"
		}
		seen[reasonOf(why)] = true
		return why.String()
	}
}

// serverList lists servers: some, or all if the indices are nil.
func (q *request) serverList(which []int, size int) (page.Section, int) {
	if which == nil {
		which = make([]int, len(q.index.Servers))
		for i := range which {
			which[i] = i
		}
	}
	at := func(i int) status.Server { return q.index.Servers[i] }
	state := func(s status.Server) string {
		if s.State == haproxy.Open && s.Check == haproxy.Down {
			return "failing"
		}
		if s.State == haproxy.Absent {
			return "closed"
		}
		return s.State.String()
	}
	var address []byte
	brief := inOneTable()
	t, n := paged(q, size, which, func(i int, text string) bool {
		s := at(i)
		if !q.inState(state(s)) {
			return false
		}
		if has(text, s.Pod(), s.Node.Name, q.index.Backends[s.Backend].Name) {
			return true
		}
		address = s.Addr().AppendTo(address[:0])
		return bytes.Contains(address, []byte(text))
	}, func(i int) []page.Cell {
		s := at(i)
		pod, sessions := page.Cell{Text: s.Pod(), Href: podAddress(s.Node.Cluster, s.Pod())}, page.Cell{}
		if s.Live != nil {
			sessions = some(s.Live.Sessions)
		}
		name := q.index.Backends[s.Backend].Name
		return []page.Cell{
			{Text: s.Word(), Mark: markOfServer(s)},
			{Text: s.Addr().String(), Mono: true},
			pod,
			{Text: s.Node.Name, Href: pathOf("node", s.Node.Cluster, s.Node.Name)},
			{Text: name, Href: pathOf("backend", name)},
			{Text: s.Check},
			sessions,
			{Text: brief(q.index.Why(s))},
		}
	}, columns("state", "address", "pod", "node", "backend", "check", ">connections", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none: no endpoint")
	return page.Section{
		ID: "servers", Title: "Servers", Table: t,
		Filter: q.filter("pod, address, node or backend", "open", "failing", "drain", "closed"),
	}, n
}

func (q *request) certificateList(size int) (page.Section, int) {
	if q.index.View.Config == nil {
		return page.Section{ID: "certificates", Title: "Certificates", Table: &page.Table{}}, 0
	}
	t, n := paged(q, size, q.index.Certs(), func(c *haproxy.Cert, text string) bool {
		state := status.Either(q.expiry(c).Mark == page.Good, "good", "expires soon")
		return q.inState(state) && (has(text, c.Name) || has(text, c.Hosts...))
	}, q.certificateRow, certificateColumns...)
	t.Empty = cmp.Or(t.Empty, "none")
	return page.Section{
		ID: "certificates", Title: "Certificates", Note: "those first that expire first", Table: t,
		Filter: q.filter("name", "expires soon", "good"),
	}, n
}

var certificateColumns = columns("certificate", "~names", "expires")

func (q *request) certificateRow(c *haproxy.Cert) []page.Cell {
	return []page.Cell{{Text: strings.TrimSuffix(c.Name, ".pem")}, firstFew(c.Hosts), q.expiry(c)}
}

// expiry describes when a certificate expires.
func (q *request) expiry(c *haproxy.Cert) page.Cell {
	now := q.status.Now
	cell := page.Cell{
		Text: "in " + status.Lasting(c.Expires.Sub(now)), Mark: page.Good,
		Note: c.Expires.UTC().Format("2006-01-02"),
	}
	switch {
	case c.Expires.IsZero():
		return page.Cell{Text: "not known", Mark: page.Warn}
	case c.Expires.Before(now):
		cell.Text, cell.Mark = "expired "+status.Lasting(now.Sub(c.Expires))+" ago", page.Bad
	case c.Expires.Before(now.Add(status.ExpiresSoon)):
		cell.Mark = page.Warn
	}
	return cell
}

// changes lists the last changes, the newest first. With a name, it lists those that have
// the name in their text.
func (q *request) changes(size int, name string) page.Section {
	t, _ := paged(q, size, q.pages.Changes.Since(time.Time{}), func(c status.Change, text string) bool {
		return has(text, c.What, c.Why) && q.inState(c.Kind) && (name == "" || strings.Contains(c.What, name))
	}, func(c status.Change) []page.Cell {
		what := page.Cell{Text: c.What}
		if c.Bad {
			what.Mark = page.Warn
		}
		took := page.Cell{}
		if c.Took > 0 {
			took.Text = fmt.Sprintf("%.1f ms", c.Took.Seconds()*1000)
		}
		return []page.Cell{
			{Text: c.At.UTC().Format("2006-01-02 15:04:05"), Mono: true},
			{Text: c.Kind},
			what,
			{Text: c.Why},
			took,
		}
	}, columns("time (UTC)", "kind", "~what", "~why", ">took")...)
	t.Empty = cmp.Or(t.Empty, "none since the start of the process")
	return page.Section{
		ID: "changes", Title: "Recent changes", Table: t,
		Filter: q.filter("text", status.Kinds...),
	}
}

// markOfIngress returns the mark of an Ingress.
func markOfIngress(in *status.Ingress) page.Mark {
	mark := markOfCounts(in.Counts)
	if in.Counts.All == 0 {
		mark = page.Bad
	}
	if in.Problems > 0 {
		mark = mark.Worse(page.Warn)
	}
	return mark
}
