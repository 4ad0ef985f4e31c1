package appliance

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
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/routes"
)

// pages makes the pages for people from the index of the last view. A request reads an immutable
// view, and takes no lock of the loop.
type pages struct {
	index   func() *index
	head    func() Status
	changes *timeline
	samples *samples
}

const (
	rowsShown = 8  // of a table on the first page
	rowsPaged = 50 // of a page of a table

	blocksShown = 1000 // of a node, on its page

	linesShown = 4 // sentences on the first page
)

// request is a request for a page.
type request struct {
	*index
	pages    *pages
	status   Status
	path     string
	segments []string
	query    url.Values
	state    string // ?state=
}

// page returns the page of a request:
//
//	/                                    all in short
//	/group/drain                         whether a drain is possible, and the button for it
//	/cluster/NAME                        one cluster
//	/node/CLUSTER/NAME                   one node: its blocks and servers
//	/block/CLUSTER/PREFIX                one block: its offers, its route, its servers
//	/backend/NAME                        one backend: its servers, and what leads to it
//	/pod/CLUSTER/NAMESPACE/NAME          the servers of one pod
//	/ingress/CLUSTER/NAMESPACE/NAME      what became of one Ingress
//	/nodes, /peers, /routes, /ingresses, /backends, /servers, /certificates, /refusals, /problems, /changes,
//	/addresses, /services
//	                                     all of a kind; ?q= searches, ?state= filters, ?page= turns,
//	                                     ?sort= orders backends by one of SortKeys
//	/warnings                            all sentences that need attention
//	/search?q=                           what has that text in its name
func (p *pages) page(r *http.Request) (page.Page, bool) {
	q := &request{index: p.index(), pages: p, status: p.head(), path: r.URL.Path, query: r.URL.Query()}
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
		result, ok = q.nodePage(nodeName{names[0], names[1]})
	case kind == "block" && len(names) == 3:
		result, ok = q.blockPage(names[0], names[1]+"/"+names[2])
	case kind == "backend" && len(names) == 1:
		result, ok = q.backendPage(names[0])
	case kind == "pod" && len(names) == 3:
		result, ok = q.podPage(names[0], names[1]+"/"+names[2])
	case kind == "ingress" && len(names) == 3:
		result, ok = q.ingressPage(names[0], names[1], names[2])
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
	case len(q.status.Warnings) > 0 || q.all.closed()+q.all.failing > 0 || q.entrance(q.status).Mark == page.Bad:
		return page.Warn
	}
	return page.Good
}

func (q *request) first() page.Page {
	s := q.status
	state := page.Section{ID: "state", Title: s.Identity + " is ready", Note: "up " + page.Ago(s.Now, s.Started)}
	switch all := q.all; {
	case !s.Ready:
		state.Title = s.Identity + " is not ready"
	case all.all > 0 && all.open+all.failing == 0:
		state.Title += ", but no server is open"
	default:
		if e := q.entrance(s); e.Mark == page.Bad {
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
		ID: "paths", Title: "Paths", Note: q.serversInWords(q.all), Diagram: q.diagram(s, q.everything()),
	})
	p.Sections = append(p.Sections, q.groupSections(q.mayDrain())...)
	if plots := q.pages.samples.plots(); plots != nil {
		p.Sections = append(p.Sections, page.Section{ID: "load", Title: "Last hour", Plots: plots})
	}
	if changes := q.changes(rowsShown, ""); len(changes.Table.Rows) > 0 {
		changes.More = &page.Link{Text: "all", Href: "/changes"}
		p.Sections = append(p.Sections, inShort(changes, 0, ""))
	}
	for _, list := range []string{
		"problems", "refusals", "peers", "routes", "ingresses", "backends", "clusters",
		"certificates", "capacity",
	} {
		section, total := q.list(list, rowsShown)
		if total == 0 && (list == "problems" || list == "refusals" || list == "certificates" || list == "capacity") {
			continue
		}
		p.Sections = append(p.Sections, inShort(section, total, "/"+list))
	}
	p.Sections = append(p.Sections, q.versions())
	return p
}

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

func (q *request) serversInWords(c serverCounts) string {
	if c.all == 0 {
		return "no servers"
	}
	words := fmt.Sprintf("%s of %s open", page.Comma(c.open+c.failing), page.Count(c.all, "server"))
	if c.failing > 0 {
		words += ", " + page.Comma(c.failing) + " of them fail their checks"
	}
	if c.draining > 0 {
		words += ", " + page.Comma(c.draining) + " draining"
	}
	return words
}

func (q *request) versions() page.Section {
	s := q.status
	facts := []page.Fact{
		{Name: "Sallyport", Cell: page.Cell{Text: s.Version, Note: "up " + page.Ago(s.Now, s.Started)}},
		{Name: "HAProxy", Cell: page.Cell{Text: s.HAProxy.Version, Note: "mode " + string(s.HAProxy.Mode)}},
		{Name: "reloads of HAProxy", Cell: page.Cell{Text: page.Comma(s.HAProxy.Reloads)}},
	}
	if s.HAProxy.LastReason != "" {
		facts = append(facts, page.Fact{
			Name: "last reload",
			Cell: page.Cell{Text: page.Ago(s.Now, s.HAProxy.LastReload) + " ago", Note: s.HAProxy.LastReason},
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
		page.Fact{Name: "configuration file", Cell: page.Cell{Text: "read " + page.Ago(s.Now, s.Config.Read) + " ago"}},
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
		return q.nodeList(q.everything(), size)
	case "peers":
		return q.peerList(size)
	case "routes":
		return q.routeList(size)
	case "ingresses":
		return q.ingressList(q.ingresses(), size)
	case "backends":
		return q.backendList(size)
	case "servers":
		return q.serverList(nil, size)
	case "clusters":
		return q.clusterList(size)
	case "certificates":
		return q.certificateList(size)
	case "refusals":
		return q.refusalList(size)
	case "problems":
		return q.problemList(size, func(ingress.Problem) bool { return true })
	case "capacity":
		return q.capacityList(size)
	case "addresses":
		return q.addressList(size)
	case "services":
		return q.serviceList(size)
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
	if len(q.clusters) < 2 {
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

func (q *request) nodeList(nodes []*nodeIndex, size int) (page.Section, int) {
	t, n := paged(q, size, nodes, func(n *nodeIndex, text string) bool {
		return q.inState(faulty(n.mark())) && has(text, n.name, n.cluster, n.where(false))
	}, func(n *nodeIndex) []page.Cell {
		why := q.row(n).Why
		route, server := n.door(), n.counts.door()
		return []page.Cell{
			{Text: cmp.Or(n.name, "no node"), Href: pathOf("node", n.cluster, n.name)},
			{Text: n.where(false), Mono: true},
			q.clusterCell(n.cluster),
			{Text: route.Label, Mark: route.Mark},
			{Text: server.Label, Mark: server.Mark},
			{Text: strings.Join(why, "; ")},
		}
	}, columns("node", "address", "cluster", "routes", "open servers", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none: no cluster has a node")
	return page.Section{ID: "nodes", Title: "Nodes", Table: t, Filter: q.filter("name or address", "broken", "good")}, n
}

func (q *request) peerList(size int) (page.Section, int) {
	refusedBy := map[netip.Addr]int{}
	for _, r := range q.refusals {
		refusedBy[r.Offer.Peer]++
	}
	peers := slices.Clone(q.view.peers)
	rank := func(state string) int {
		if state == established {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(peers, func(a, b bgp.PeerState) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	t, n := paged(q, size, peers, func(p bgp.PeerState, text string) bool {
		return q.inState(map[bool]string{true: "established", false: "down"}[p.State == established]) &&
			has(text, p.Node, p.Cluster, p.Addr.String())
	}, func(p bgp.PeerState) []page.Cell {
		loss := page.Cell{Text: cmp.Or(p.LossReason, string(p.LastLoss.Cause))}
		if !p.LastLoss.At.IsZero() {
			loss.Note = page.Ago(q.status.Now, p.LastLoss.At) + " ago"
		}
		name := page.Cell{Text: p.Node, Href: pathOf("node", p.Cluster, p.Node)}
		if p.Node == "" {
			name = page.Cell{Text: map[bool]string{true: "router", false: "route reflector"}[p.Upstream]}
		}
		hold := page.Cell{}
		if p.HoldTime > 0 {
			hold.Text = p.HoldTime.String()
		}
		refused := some(refusedBy[p.Addr])
		if refusedBy[p.Addr] > 0 {
			refused.Mark, refused.Href = page.Warn, "/refusals?q="+url.QueryEscape(p.Addr.String())
		}
		return []page.Cell{
			name,
			{Text: p.Addr.String(), Mono: true},
			{Text: fmt.Sprint(p.ASN)},
			q.stateOf(p), hold,
			{Text: page.Comma(p.Received)},
			refused, some(p.Flaps), loss,
		}
	}, columns("node", "address", "AS", "state", ">hold time", ">prefixes", ">refused", ">losses", "~last loss")...)
	t.Empty = cmp.Or(t.Empty, "none: no node of any cluster has a BGP address")
	return page.Section{
		ID: "peers", Title: "BGP peers", Table: t,
		Filter: q.filter("node or address", "established", "down"),
	}, n
}

// stateOf describes the state of a session: since when, and how BFD sees the peer.
func (q *request) stateOf(p bgp.PeerState) page.Cell {
	state := page.Cell{Text: p.State, Mark: page.Good}
	if p.BFD == "down" {
		state.Mark = page.Warn
	}
	if p.State != established {
		state.Mark = page.Bad
	}
	var notes []string
	if since := page.Ago(q.status.Now, p.Since); since != "" {
		notes = append(notes, "for "+since)
	}
	if p.BFD != "" {
		notes = append(notes, "BFD "+p.BFD)
	}
	state.Note = strings.Join(notes, ", ")
	return state
}

func (q *request) routeList(size int) (page.Section, int) {
	blocks := slices.Clone(q.index.blocks)
	slices.SortStableFunc(blocks, func(a, b *blockIndex) int { return cmp.Compare(a.rank(), b.rank()) })
	t, n := paged(q, size, blocks, func(b *blockIndex, text string) bool {
		return q.inState(map[bool]string{true: "installed", false: "missing"}[b.installed]) &&
			has(text, b.affinity.Prefix.String(), b.affinity.Node, b.cluster, b.via.String())
	}, q.blockRow, blockColumns...)
	t.Empty = cmp.Or(t.Empty, "none: no node owns a block")
	return page.Section{
		ID: "routes", Title: "Routes", Table: t,
		Filter: q.filter("block, next hop or node", "installed", "missing"),
	}, n
}

// rank is 0 for a block without a route in the kernel, and 1 for a block with a route.
func (b *blockIndex) rank() int {
	if b.installed {
		return 1
	}
	return 0
}

var blockColumns = columns("block", "via", "node", "cluster", "in the kernel", ">open servers", "~why")

func (q *request) blockRow(b *blockIndex) []page.Cell {
	n := q.node[nodeName{b.cluster, b.affinity.Node}]
	state := page.Cell{Text: "installed", Mark: page.Good}
	why, via := "", ""
	if !b.installed {
		state, why = page.Cell{Text: "missing", Mark: page.Bad}, q.whyNoRouteTo(n, b)
	}
	if b.via.IsValid() {
		via = b.via.String()
	}
	return []page.Cell{
		{Text: b.affinity.Prefix.String(), Href: blockAddress(b.cluster, b.affinity.Prefix), Mono: true},
		{Text: via, Mono: true},
		{Text: b.affinity.Node, Href: pathOf("node", b.cluster, b.affinity.Node)},
		q.clusterCell(b.cluster),
		state,
		{Text: fmt.Sprintf("%s of %s", page.Comma(b.counts.open+b.counts.failing), page.Comma(b.counts.all))},
		{Text: why},
	}
}

func (q *request) ingressList(all []*ingressIndex, size int) (page.Section, int) {
	if size == rowsShown {
		all = firstOf(all, size, func(in *ingressIndex) bool { return faulty(in.mark) == "broken" })
	}
	t, n := paged(q, size, all, func(in *ingressIndex, text string) bool {
		return q.inState(faulty(in.mark)) && (text == "" || has(text, in.ref.Namespace+"/"+in.ref.Name) ||
			has(text, in.hosts...))
	}, func(in *ingressIndex) []page.Cell {
		problems := page.Cell{}
		if in.problems > 0 {
			problems = page.Cell{Text: page.Count(in.problems, "problem"), Mark: page.Warn}
		}
		certificate := page.Cell{}
		if certs := q.certsOf(in.hosts); len(certs) > 0 {
			certificate = q.expiry(certs[0])
		}
		return []page.Cell{
			{
				Text: in.ref.Namespace + "/" + in.ref.Name,
				Href: pathOf("ingress", in.ref.Cluster, in.ref.Namespace, in.ref.Name),
			},
			q.clusterCell(in.ref.Cluster),
			firstFew(in.hosts),
			{Text: page.Comma(len(in.routes))},
			{Text: in.counts.door().Label, Mark: in.mark},
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
		key = SortKeys[0]
	}
	all := q.byLoad(key)
	at, brief := func(i int) backendIndex { return q.index.backends[i] }, inOneTable()
	if size == rowsShown {
		all = firstOf(all, size, func(i int) bool { return faulty(at(i).mark()) == "broken" })
	}
	t, n := paged(q, size, all, func(i int, text string) bool {
		return q.inState(faulty(at(i).mark())) && (text == "" || has(text, at(i).name, at(i).origin()))
	}, func(i int) []page.Cell {
		b := at(i)
		var load [3]page.Cell
		if r, known := q.pages.samples.rates.of(b.name); known {
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
			{Text: b.name, Href: pathOf("backend", b.name)},
			{Text: b.origin()},
			{Text: b.counts.door().Label, Mark: b.mark()},
			some(b.counts.failing), some(b.counts.draining),
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
	return page.Section{ID: "backends", Title: "Backends", Note: q.serversInWords(q.all), Table: t, Filter: f}, n
}

// orderNames has the orders of backends in words, by their keys.
var orderNames = map[string]string{
	"": "by name", "requests": "most requests first", "errors": "most errors first",
	"connections": "most connections first", "response": "slowest first", "open": "fewest open servers first",
}

// byLoad returns the backends of the index by a key of SortKeys, and after them those that
// have no sample. Without such a key, it returns them by name.
func (q *request) byLoad(key string) []int {
	all := make([]int, 0, len(q.index.backends))
	seen := make([]bool, len(q.index.backends))
	if slices.Contains(SortKeys[:], key) {
		for _, name := range q.pages.samples.rates.names(key) {
			if i, is := q.backend[name]; is {
				all, seen[i] = append(all, i), true
			}
		}
	}
	for i := range q.index.backends {
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

func (b backendIndex) origin() string {
	if b.want == nil {
		return "no Service has it any more"
	}
	return b.want.Origin
}

// mark returns the mark of a backend.
func (b backendIndex) mark() page.Mark {
	if b.counts.all == 0 {
		return page.Warn
	}
	return b.counts.mark()
}

// whyBackend returns the first reason why a server of a backend does not serve.
func (q *request) whyBackend(b backendIndex) (why string, of netip.Addr) {
	if b.counts.all == 0 {
		return "its Service has no endpoint that is ready", of
	}
	if faulty(b.mark()) == "good" {
		return "", of
	}
	for _, s := range q.index.servers[b.from : b.from+b.n] {
		if s.mark() == page.Bad {
			return q.why(s), s.addr().Addr()
		}
	}
	return "", of
}

// inOneTable returns a function for the reasons of the rows of a table, in their order. It shortens
// a reason that an earlier row has in full with another address: on a telephone, ten rows with the
// same five lines hide the differences.
func inOneTable() func(why string, of netip.Addr) string {
	seen := map[string]bool{}
	return func(why string, of netip.Addr) string {
		kind := strings.ReplaceAll(why, of.String(), "")
		short, _, long := strings.Cut(why, ": ")
		if long && seen[kind] {
			return short + ", as above"
		}
		seen[kind] = true
		return why
	}
}

// serverList lists servers: some, or all if the indices are nil.
func (q *request) serverList(which []int, size int) (page.Section, int) {
	if which == nil {
		which = make([]int, len(q.index.servers))
		for i := range which {
			which[i] = i
		}
	}
	at := func(i int) serverIndex { return q.index.servers[i] }
	state := func(s serverIndex) string {
		if s.state == haproxy.Open && s.check == haproxy.Down {
			return "failing"
		}
		if s.state == haproxy.Absent {
			return "closed"
		}
		return s.state.String()
	}
	var address []byte
	brief := inOneTable()
	t, n := paged(q, size, which, func(i int, text string) bool {
		s := at(i)
		if !q.inState(state(s)) {
			return false
		}
		if has(text, s.pod(), s.node.name, q.index.backends[s.backend].name) {
			return true
		}
		address = s.addr().AppendTo(address[:0])
		return bytes.Contains(address, []byte(text))
	}, func(i int) []page.Cell {
		s := at(i)
		pod, sessions := page.Cell{Text: s.pod(), Href: podAddress(s.node.cluster, s.pod())}, page.Cell{}
		if s.live != nil {
			sessions = some(s.live.Sessions)
		}
		name := q.index.backends[s.backend].name
		return []page.Cell{
			{Text: s.word(), Mark: s.mark()},
			{Text: s.addr().String(), Mono: true},
			pod,
			{Text: s.node.name, Href: pathOf("node", s.node.cluster, s.node.name)},
			{Text: name, Href: pathOf("backend", name)},
			{Text: s.check},
			sessions,
			{Text: brief(q.why(s), s.addr().Addr())},
		}
	}, columns("state", "address", "pod", "node", "backend", "check", ">connections", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none: no endpoint")
	return page.Section{
		ID: "servers", Title: "Servers", Table: t,
		Filter: q.filter("pod, address, node or backend", "open", "failing", "drain", "closed"),
	}, n
}

func (q *request) clusterList(size int) (page.Section, int) {
	t, n := paged(q, size, q.status.Clusters, func(c ClusterStatus, text string) bool {
		return has(text, c.Name)
	}, func(c ClusterStatus) []page.Cell {
		state := page.Cell{Text: "in sync", Mark: page.Good}
		switch {
		case !c.Live && c.Picture != nil:
			state = page.Cell{
				Text: "from the picture of " + c.Picture.UTC().Format("2006-01-02 15:04:05 MST"),
				Mark: page.Warn,
			}
		case !c.Live:
			state = page.Cell{Text: "unknown", Mark: page.Bad}
		}
		return []page.Cell{
			{Text: c.Name, Href: pathOf("cluster", c.Name)},
			state,
			{Text: page.Comma(c.Nodes), Href: "/nodes?q=" + url.QueryEscape(c.Name)},
			{Text: page.Comma(c.Blocks), Href: "/routes?q=" + url.QueryEscape(c.Name)},
			{Text: c.APIGroup},
			{Text: c.Error},
		}
	}, columns("cluster", "API", ">nodes", ">blocks", "Calico's objects", "~error")...)
	t.Empty = cmp.Or(t.Empty, "none")
	return page.Section{ID: "clusters", Title: "Clusters", Table: t, Filter: q.filter("name")}, n
}

const expiresSoon = 21 * 24 * time.Hour

func (q *request) certificateList(size int) (page.Section, int) {
	if q.config == nil {
		return page.Section{ID: "certificates", Title: "Certificates", Table: &page.Table{}}, 0
	}
	states := map[bool]string{true: "good", false: "expires soon"}
	t, n := paged(q, size, q.certs(), func(c *haproxy.Cert, text string) bool {
		return q.inState(states[q.expiry(c).Mark == page.Good]) && (has(text, c.Name) || has(text, c.Hosts...))
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
		Text: "in " + page.Lasting(c.Expires.Sub(now)), Mark: page.Good,
		Note: c.Expires.UTC().Format("2006-01-02"),
	}
	switch {
	case c.Expires.IsZero():
		return page.Cell{Text: "not known", Mark: page.Warn}
	case c.Expires.Before(now):
		cell.Text, cell.Mark = "expired "+page.Lasting(now.Sub(c.Expires))+" ago", page.Bad
	case c.Expires.Before(now.Add(expiresSoon)):
		cell.Mark = page.Warn
	}
	return cell
}

func (q *request) refusalList(size int) (page.Section, int) {
	t, n := paged(q, size, q.refusals, func(r routes.Refusal, text string) bool {
		return has(text, r.Offer.Peer.String(), r.Offer.Prefix.String(), string(r.Reason), r.Offer.Cluster)
	}, refusalRow, refusalColumns...)
	t.Empty = cmp.Or(t.Empty, "none: every offer became a route")
	return page.Section{ID: "refusals", Title: "Refused offers", Table: t, Filter: q.filter("prefix, peer or reason")},
		n
}

var refusalColumns = columns("prefix", "peer", "reason", "~why")

func refusalRow(r routes.Refusal) []page.Cell {
	return []page.Cell{
		{Text: r.Offer.Prefix.String(), Mono: true},
		{Text: r.Offer.Peer.String(), Mono: true},
		{Text: string(r.Reason), Mark: page.Warn},
		{Text: r.Why},
	}
}

func (q *request) problemList(size int, of func(ingress.Problem) bool) (page.Section, int) {
	t, n := paged(q, size, q.view.problems, func(p ingress.Problem, text string) bool {
		return of(p) && has(text, p.Namespace+"/"+p.Name, p.Kind, p.Reason, p.Cluster)
	}, func(p ingress.Problem) []page.Cell {
		object := page.Cell{Text: fmt.Sprintf("%s %s/%s", p.Kind, p.Namespace, p.Name)}
		if p.Kind == "Ingress" {
			object.Href = pathOf("ingress", p.Cluster, p.Namespace, p.Name)
		}
		return []page.Cell{object, q.clusterCell(p.Cluster), {Text: p.Reason, Mark: page.Warn}, {Text: p.Why}}
	}, columns("object", "cluster", "reason", "~why")...)
	t.Empty = cmp.Or(t.Empty, "none")
	return page.Section{
		ID: "problems", Title: "Problems in the clusters' objects", Table: t,
		Filter: q.filter("object or reason"),
	}, n
}

func (q *request) capacityList(size int) (page.Section, int) {
	t, n := paged(q, size, q.status.Capacity, func(c haproxy.Capacity, text string) bool {
		return has(text, c.Resource)
	}, func(c haproxy.Capacity) []page.Cell {
		used := page.Cell{Text: c.Amount(), Mark: page.Good}
		remedy := page.Cell{}
		if c.Near() {
			used.Mark, remedy.Text = page.Warn, c.Remedy
		}
		return []page.Cell{{Text: c.Resource}, used, remedy}
	}, columns("resource", "in use", "~what to do")...)
	t.Empty = cmp.Or(t.Empty, "not known")
	return page.Section{ID: "capacity", Title: "Capacity", Table: t, Filter: q.filter("resource")}, n
}

// changes lists the last changes, the newest first. With a name, it lists those that have
// the name in their text.
func (q *request) changes(size int, name string) page.Section {
	t, _ := paged(q, size, q.pages.changes.since(time.Time{}), func(c Change, text string) bool {
		return has(text, c.What, c.Why) && q.inState(c.Kind) && (name == "" || strings.Contains(c.What, name))
	}, func(c Change) []page.Cell {
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
		Filter: q.filter("text", serverChange, routeChange, sessionChange, reloadChange, offerChange, limitChange,
			stateChange, configChange),
	}
}
