package pages

import (
	"bytes"
	"fmt"
	"net/http"
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
	q.status.Clusters = q.index.Clusters() // which the head has not whole
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
		return listOf(q, size, status.ClusterTable, q.status.Clusters, "name", "Calico", "credentials until")
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

func (q *request) nodeList(nodes []*status.Node, size int) (page.Section, int) {
	return listBy(q, size, status.NodeTable, nodes, func(n *status.Node, text string) bool {
		return q.inState(broken(n.Level().Fault())) && has(text, n.Name, n.Cluster, n.Where(false))
	}, func(n *status.Node) status.NodeRow {
		return status.NodeRow{Node: n, Why: q.index.WhyPath(n)}
	}, q.shown(&status.NodeTable.Head, true),
		q.filter("name or address", "broken", "good"))
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
	return listBy(q, size, status.RouteTable, blocks, func(b *status.Block, text string) bool {
		return q.inState(status.Either(b.Installed, "installed", "missing")) &&
			has(text, b.Affinity.Prefix.String(), b.Affinity.Node, b.Cluster, b.Via.String())
	}, q.index.RouteRow, q.shown(&status.RouteTable.Head, true),
		q.filter("block, next hop or node", "installed", "missing"))
}

func (q *request) ingressList(all []*status.Ingress, size int) (page.Section, int) {
	if size == rowsShown {
		all = firstOf(all, size, func(in *status.Ingress) bool { return in.Level().Fault() })
	}
	return listBy(q, size, status.IngressTable, all, func(in *status.Ingress, text string) bool {
		return q.inState(broken(in.Level().Fault())) && (text == "" ||
			has(text, in.Ref.Namespace+"/"+in.Ref.Name) || has(text, in.Hosts...))
	}, func(in *status.Ingress) status.IngressRow {
		row := status.IngressRow{Ingress: in}
		if certs := q.index.CertsOf(in.Hosts); len(certs) > 0 {
			row.Cert = certs[0]
		}
		return row
	}, q.shown(&status.IngressTable.Head, true),
		q.filter("host, namespace or name", "broken", "good"))
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
		all = firstOf(all, size, func(i int) bool { return at(i).Level().Fault() })
	}
	f := q.filter("name or Service", "broken", "good")
	for _, k := range []string{"", "requests", "errors", "connections", "response", "open"} {
		f.Orders = append(f.Orders, page.Choice{Value: k, Text: orderNames[k], Chosen: k == key})
	}
	section, n := listBy(q, size, status.BackendTable, all, func(i int, text string) bool {
		return q.inState(broken(at(i).Level().Fault())) && (text == "" || has(text, at(i).Name, at(i).Origin()))
	}, func(i int) status.BackendRow {
		row := status.BackendRow{Backend: at(i), Why: brief(q.index.WhyBackend(at(i)))}
		if r, known := q.pages.Samples.Rates.Of(row.Name); known {
			row.Rate = &r
		}
		return row
	}, q.shown(&status.BackendTable.Head, true),
		f)
	section.Note = q.serversInWords(q.index.All)
	return section, n
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

// inOneTable returns a function for the reasons of the rows of a table, in their order. It shortens
// a reason that an earlier row has in full: on a telephone, ten rows with the same five lines hide
// the differences.
func inOneTable() func(why status.Why) string {
	seen := map[status.Why]bool{}
	return func(why status.Why) string {
		if why.Rest != "" && seen[why.Kind()] {
			return why.Short + ", as above"
		}
		seen[why.Kind()] = true
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
	return listBy(q, size, status.ServerTable, which, func(i int, text string) bool {
		s := at(i)
		if !q.inState(state(s)) {
			return false
		}
		if has(text, s.Pod(), s.Node.Name, q.index.Backends[s.Backend].Name) {
			return true
		}
		address = s.Addr().AppendTo(address[:0])
		return bytes.Contains(address, []byte(text))
	}, func(i int) status.ServerRow {
		row := q.index.ServerRow(at(i))
		row.Server.Why = brief(q.index.Why(at(i)))
		return row
	}, q.shown(&status.ServerTable.Head, true, "name"),
		q.filter("pod, address, node or backend", "open", "failing", "drain", "closed"))
}

func (q *request) certificateList(size int) (page.Section, int) {
	var certs []*haproxy.Cert
	if q.index.View.Config != nil {
		certs = q.index.Certs()
	}
	section, n := listBy(q, size, status.CertificateTable, certs, func(c *haproxy.Cert, text string) bool {
		return q.inState(status.Either(status.EndsSoon(q.status.Now, c), "expires soon", "good")) &&
			(has(text, c.Name) || has(text, c.Hosts...))
	}, func(c *haproxy.Cert) *haproxy.Cert { return c }, q.shown(&status.CertificateTable.Head, true),
		q.filter("name", "expires soon", "good"))
	section.Note = "those first that expire first"
	return section, n
}

// changes lists the last changes, the newest first. With a name, it lists those that have
// the name in their text.
func (q *request) changes(size int, name string) page.Section {
	section, _ := listBy(q, size, status.ChangeTable, q.pages.Changes.Since(time.Time{}),
		func(c status.Change, text string) bool {
			return has(text, c.What, c.Why) && q.inState(c.Kind) && (name == "" || strings.Contains(c.What, name))
		}, func(c status.Change) status.Change { return c }, q.shown(&status.ChangeTable.Head, true),
		q.filter("text", status.Kinds...))
	return section
}
