package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// A Row is for the requests with one host and one path at a port. A request finds the Row of its most
// specific host there, and of this host the Row of its path: an Exact one, then a Regexp, then the
// longest Prefix. The first Entry of the Chain with a match that holds takes the
// request. If none holds, the answer is 404.
type Row struct {
	Host  string
	Path  string
	Type  PathType
	Chain []Entry // at most the last one looks at nothing but the path
}

// An Entry is a match of a rule.
type Entry struct {
	*Rule
	*Match
	place int // of the Match in its Rule
}

// Of returns the same entry in another reading of its route.
func (e Entry) Of(r *Route) Entry {
	rule := r.Rules[e.Index-1]
	return Entry{rule, &rule.Matches[e.place], e.place}
}

// A pathKey is a path with its type.
type pathKey struct {
	path string
	kind PathType
}

// A hostTable holds the entries of one host by their paths.
type hostTable map[pathKey][]Entry

// Hosts answers questions about the hosts of rows.
type Hosts struct {
	// More get rows of their own, even if no route names them.
	More []string
	// May reports whether routes of a namespace may have a host.
	May func(namespace, host string) bool
	// Takes counts the copies of matches of wider hosts for the oldest route of a host. If it returns
	// false, there are no copies: requests that match nothing of the host itself are answered with 404.
	Takes func(r *Route, host string, copies int) bool
	// Only reports whether a host of a listener gets rows. If it is nil, all hosts get rows.
	Only func(l *Listener, host string) bool
}

// RowsOf returns the rows of one port, sorted by host and path. The listeners are those of the port.
//
// A request belongs to the listener with the most specific hostname, and sees only the routes of that
// listener. A match that fails lets the next match try, also a match of a wider hostname of this
// listener. The chains of the narrower host therefore contain copies of the matches of the wider
// hosts.
func (a *Attachment) RowsOf(listeners []*Listener, hosts Hosts) []Row {
	owners := OwnersOf(listeners)
	tables := make(map[*Listener]hostTables)
	for _, l := range listeners {
		tables[l] = hostTables{l.Hostname: {}}
	}
	for _, l := range listeners {
		for _, r := range a.attached[l] {
			for _, host := range r.At {
				if owners.Of(host) == l {
					tables[l].add(host, r.Route)
				}
			}
		}
	}
	for _, host := range hosts.More {
		if l := owners.Of(host); l != nil && tables[l][host] == nil {
			tables[l][host] = hostTable{}
		}
	}
	var all []Row
	for _, l := range listeners {
		sizes := make(map[string]int)
		for host, t := range tables[l] {
			sizes[host] = t.size()
		}
		for _, host := range slices.SortedFunc(maps.Keys(tables[l]), compareHostnames) {
			if owners.Of(host) != l {
				continue // its own hostname, in conflict
			}
			if hosts.Only != nil && !hosts.Only(l, host) {
				continue
			}
			r, these := tables[l][host].oldest(), []hostTable{tables[l][host].only(host, hosts.May)}
			for wider := range WiderThan(host) {
				if these[len(these)-1].ends() {
					break
				}
				if sizes[wider] == 0 {
					continue
				}
				if r != nil && !hosts.Takes(r, host, sizes[wider]) {
					these = these[:1]
					break
				}
				these = append(these, tables[l][wider].only(host, hosts.May))
			}
			all = append(all, rowsOf(host, these)...)
		}
	}
	slices.SortFunc(all, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Type, b.Type))
	})
	return all
}

// hostTables hold the tables of one listener by their host.
type hostTables map[string]hostTable

// add adds the matches of a route to a host.
func (t hostTables) add(host string, r *Route) {
	if t[host] == nil {
		t[host] = make(hostTable)
	}
	for _, rule := range r.Rules {
		for i := range rule.Matches {
			m := &rule.Matches[i]
			key := pathKey{m.Path, m.Type}
			t[host][key] = append(t[host][key], Entry{rule, m, i})
		}
	}
}

// only returns the entries of routes that may have a host, each list in order.
func (t hostTable) only(host string, may func(namespace, host string) bool) hostTable {
	out := make(hostTable, len(t))
	for key, entries := range t {
		for _, e := range entries {
			if may(e.Route.Object.GetNamespace(), host) {
				out[key] = append(out[key], e)
			}
		}
		slices.SortFunc(out[key], compareEntries)
	}
	return out
}

// size returns the number of entries.
func (t hostTable) size() (n int) {
	for _, entries := range t {
		n += len(entries)
	}
	return n
}

// oldest returns the oldest route with an entry. It returns nil if there is no entry.
func (t hostTable) oldest() (r *Route) {
	for _, entries := range t {
		for _, e := range entries {
			if r == nil || olderRoute(e.Route, r) < 0 {
				r = e.Route
			}
		}
	}
	return r
}

// ends reports whether some entry takes every request for the host.
func (t hostTable) ends() bool {
	all := t[pathKey{"/", Prefix}]
	return len(all) > 0 && all[len(all)-1].Bare()
}

// Owners has the listeners of one port by their hostnames.
type Owners map[string]*Listener

// OwnersOf returns the owners of the hosts of a port. If two listeners have the same hostname, the
// first has it.
func OwnersOf(listeners []*Listener) Owners {
	o := make(Owners, len(listeners))
	for _, l := range listeners {
		if o[l.Hostname] == nil {
			o[l.Hostname] = l
		}
	}
	return o
}

// Of returns the listener that requests for a host belong to: the one with the most specific hostname
// that contains the host. It returns nil if no hostname does. It takes as many steps as the host has
// labels, since a ListenerSet may bring many listeners.
func (o Owners) Of(host string) *Listener {
	if l := o[host]; l != nil {
		return l
	}
	for wider := range WiderThan(host) {
		if l := o[wider]; l != nil {
			return l
		}
	}
	return nil
}

// compareEntries orders the entries of a host, the one that takes a request first (HTTPRouteRule,
// matches).
func compareEntries(a, b Entry) int {
	return cmp.Or(
		cmp.Compare(a.Type, b.Type),
		cmp.Compare(len(b.Path), len(a.Path)),
		CompareConditions(a.Match, b.Match),
		olderObject(a.Route.Object, b.Route.Object),
		cmp.Compare(a.Route.Kind, b.Route.Kind),
		cmp.Compare(a.Index, b.Index),
		cmp.Compare(a.place, b.place),
	)
}

// rowsOf returns the rows of a host. tables are its own, and those of wider hosts that its requests
// fall to.
func rowsOf(host string, tables []hostTable) (rows []Row) {
	keys := map[pathKey]bool{{"/", Prefix}: true}
	for _, t := range tables {
		for key := range t {
			keys[key] = true
		}
	}
	for key := range keys {
		row := Row{Host: host, Path: key.path, Type: key.kind}
		for _, t := range tables {
			if row.Chain = t.extend(row.Chain, key); row.ended() {
				break
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// ended reports whether the last entry of a chain takes all requests.
func (r *Row) ended() bool { return len(r.Chain) > 0 && r.Chain[len(r.Chain)-1].Bare() }

// extend adds the entries of a table that can match a request of a row, up to the first that takes
// all of them.
func (t hostTable) extend(chain []Entry, key pathKey) []Entry {
	take := func(k pathKey) (end bool) {
		for _, e := range t[k] {
			chain = append(chain, e)
			if e.Bare() {
				return true
			}
		}
		return false
	}
	if key.kind != Prefix && take(key) {
		return chain
	}
	path := key.path
	if key.kind == Regexp {
		path = "/" // which longer path applies is not known here
	}
	for {
		if take(pathKey{path, Prefix}) || path == "/" {
			return chain
		}
		path = above(path)
	}
}

// above returns a path without its last element: the longest other prefix of it by elements.
func above(path string) string {
	if cut := strings.LastIndexByte(path, '/'); cut > 0 {
		return path[:cut]
	}
	return "/"
}
