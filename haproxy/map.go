package haproxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// row is a line of a map or a list.
type row struct{ key, value string }

// Indexes of tables. Each table has the rows of one map.
const (
	exactTable = iota
	wildTable
	sniTable    // only with Config.Inspect
	regexpTable // the first of patternMaps tables
)

// Indexes of the tables for Listeners.
const (
	gatewayTable = regexpTable + patternMaps + iota
	pickTable
	hostnameTable
	streamTable
	gatewayRegexpTable                                    // the first of patternMaps tables
	pickRegexpTable    = gatewayRegexpTable + patternMaps // the first of patternMaps tables
)

// tables holds the rows of all maps. The rows of a map of patterns are in the order that HAProxy
// tries them. The rows of all other maps are sorted by key.
type tables [len(mapFiles)][]row

// mapFiles holds the paths of the maps, by the index of their table.
var mapFiles = func() (files [pickRegexpTable + patternMaps]string) {
	files[exactTable], files[wildTable], files[sniTable] = routeMap, wildMap, sniMap
	files[gatewayTable], files[pickTable] = gatewayMap, pickMap
	files[hostnameTable], files[streamTable] = hostnameMap, streamMap
	for i := range patternMaps {
		name := strconv.Itoa(i) + ".map"
		files[regexpTable+i] = regexpMap + name
		files[gatewayRegexpTable+i], files[pickRegexpTable+i] = gatewayRegexpMap+name, pickRegexpMap+name
	}
	return files
}()

// patternTable reports whether a table has regular expressions.
func patternTable(i int) bool {
	return i >= gatewayRegexpTable || i >= regexpTable && i < regexpTable+patternMaps
}

// mapOrder holds the paths of the maps in the order in which they change. A map whose rows name
// rows of another map comes after it.
var mapOrder = func() (order []string) {
	order = append(order, namesMap)
	order = append(order, mapFiles[pickRegexpTable:]...)
	order = append(order, pickMap)
	for i := range mapFiles {
		if i != pickTable && i < pickRegexpTable {
			order = append(order, mapFiles[i])
		}
	}
	return order
}()

// hasMap reports whether the files of a Shape have a map.
func (s *Shape) hasMap(table int) bool {
	switch {
	case table == sniTable:
		return s.Inspect
	case table < gatewayTable:
		return true
	case table == streamTable:
		return s.listens(ListenerKind.Connections)
	case table == hostnameTable:
		return s.listens(ListenHTTPS.is) || s.listens(ListenMixed.is)
	case table == pickTable:
		return s.listens(ListenerKind.Requests) && len(s.Forms) > 0
	case table >= pickRegexpTable:
		return s.listens(ListenerKind.Requests) &&
			slices.ContainsFunc(s.Forms, func(f *Form) bool { return f.Patterns })
	}
	return s.listens(ListenerKind.Requests)
}

// loads reports whether HAProxy loads the maps of a path. It loads none that no frontend names.
func (s *Shape) loads(path string) bool {
	requests := len(s.Bind.HTTP)+len(s.Bind.HTTPS) > 0
	switch table := slices.Index(mapFiles[:], path); {
	case path == namesMap:
		return requests || s.listens(ListenerKind.Requests)
	case table >= 0 && table < gatewayTable:
		return requests
	}
	return true
}

// patternMaps is the number of maps of patterns. HAProxy tries the rows of such a map one after the
// other, even those of other hosts, and takes half a microsecond for each. A secret decides which
// map the patterns of a host are in, so that nobody can choose a map with certain other hosts.
const patternMaps = 16

// patternMap returns the number of the map with the patterns of a host.
func patternMap(host, secret string) int {
	sum := sha256.Sum256([]byte(secret + "\n" + host))
	return int(sum[0]) % patternMaps
}

// isMap reports whether a path is the path of a map or a list.
func isMap(path string) bool {
	return strings.HasPrefix(path, mapDir) || strings.HasPrefix(path, listDir)
}

// tableFiles holds the rows of the maps and the lists.
type tableFiles struct {
	of    Config      // the Config that the rows were made for
	names workerNames // the names in the worker that the rows were made for
	rows  map[string][]row
}

// tables returns the maps and the lists of an outline. The first call makes them. While a reload
// has to wait, nothing calls it for the outline of that reload.
func (o *outline) tables() *tableFiles {
	if o.made == nil {
		o.made = o.by.renderTables(o.cfg, o.names)
	}
	return o.made
}

// renderTables returns the maps and the lists of a Config. If nothing has changed, it returns the
// last result.
func (r *renderer) renderTables(cfg *Config, in workerNames) *tableFiles {
	was, sameMaps := &tableFiles{}, false
	if r.tables != nil {
		was = r.tables
		of := &was.of
		sameMaps = maps.Equal(was.names, in) && of.Shape.equal(&cfg.Shape) && of.DefaultBackend == cfg.DefaultBackend &&
			sameRoutes(of.Routes, cfg.Routes) && of.sameRows(cfg) &&
			slices.EqualFunc(of.Backends, cfg.Backends, (*Backend).sameRules)
		if sameMaps && SameList(of.Lists, cfg.Lists) {
			was.of = *cfg // the next comparison finds most pointers equal
			return was
		}
	}
	set := &tableFiles{of: *cfg, names: in, rows: make(map[string][]row, len(mapFiles)+1+len(cfg.Lists))}
	if sameMaps {
		for path, rows := range was.rows {
			if strings.HasPrefix(path, mapDir) {
				set.rows[path] = rows
			}
		}
	} else {
		set.rows[namesMap] = in.rows(cfg)
		for i, rows := range r.hosts.tables(cfg, r.opt.Secret, in) {
			if cfg.hasMap(i) {
				set.rows[mapFiles[i]] = rows
			}
		}
	}
	known := make(map[*List]bool, len(was.of.Lists))
	for _, l := range was.of.Lists {
		known[l] = true
	}
	for _, l := range cfg.Lists {
		if path := listDir + l.Name; known[l] {
			set.rows[path] = was.rows[path]
		} else {
			set.rows[path] = l.rows()
		}
	}
	r.tables = set
	return set
}

func renderMap(rows []row) []byte {
	text := make([]byte, 0, 64+64*len(rows))
	text = append(text, "# what is looked up, then what it comes to\n"...)
	for _, r := range rows {
		text = append(append(append(append(text, r.key...), ' '), r.value...), '\n')
	}
	return text
}

// parseMap returns the rows that renderMap has written.
func parseMap(text []byte) []row {
	var out []row
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if ok && key[0] != '#' {
			out = append(out, row{key, value})
		}
	}
	return out
}

// tlsPort returns the port to which HAProxy redirects plain HTTP if a Route names no port.
func tlsPort(b Bind) uint16 {
	if len(b.HTTPS) == 0 {
		return 443
	}
	return b.HTTPS[0].Port()
}

// rows turns routes into the rows of all maps.
//
// A key of route.map begins with a host. A key of wild.map begins with a wildcard
// host without its "*.", or with the "/" of the path, for a host that no route names.
// Each host that a route names has a row for "/", so that no request for it reaches
// a wildcard.
//
// A value is BACKEND/STATUS/:PORT/CANARY/WEIGHT/PATTERNS/CHOICE/GUARD, without the empty fields at
// its end. STATUS is the status of the redirect of plain HTTP, and PORT is the port of the
// redirect, empty for 443. PATTERNS names a map that HAProxy tries before it uses the value. It
// consists of the number of the map, ":", and the beginning of its keys: the host, or "_" for any
// host. GUARD is the mark of the host (see guards).
//
// A key of sni.map is a host, or a wildcard host without "*." and with a "/" at its end, which no
// name has. A value is a backend. A host with routes of its own also has a row in sni.map if a
// wildcard there covers it. Its TLS ends in HAProxy.
func rows(cfg *Config, secret string, in workerNames) tables {
	return new(hostRows).tables(cfg, secret, in)
}

// hostRows remembers the rows of each host until its routes change. The memory saves time and
// changes no row.
type hostRows struct {
	port    uint16 // the rows were made with these
	inspect bool
	rest    string
	forms   []*Form
	hosts   []*hostTables      // of the last call, sorted by scope and host
	sizes   [len(mapFiles)]int // of the tables that the last call made
}

// hostTables holds the routes of one host, and the rows for them.
type hostTables struct {
	routes []*Route
	guard  string
	moved  bool // the rows have names of backends that may change without the routes
	rows   []placedRow
}

// placedRow is a row with its table.
type placedRow struct {
	table int
	row
}

func (m *hostRows) tables(cfg *Config, secret string, in workerNames) (out tables) {
	if port := tlsPort(cfg.Bind); m.port != port || m.inspect != cfg.Inspect || m.rest != cfg.DefaultBackend ||
		!slices.EqualFunc(m.forms, cfg.Forms, func(a, b *Form) bool { return a.Name == b.Name }) {
		m.port, m.inspect, m.rest, m.forms, m.hosts = port, cfg.Inspect, cfg.DefaultBackend, cfg.Forms, nil
	}
	routes := cfg.Routes
	byHost := func(a, b *Route) int {
		return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.Host, b.Host))
	}
	if !slices.IsSortedFunc(routes, byHost) {
		routes = slices.Clone(routes)
		slices.SortStableFunc(routes, byHost)
	}
	guard, anywhere, was := guards(cfg), in.has(cfg.DefaultBackend), m.hosts
	all := make([]*hostTables, 0, len(was)+1)
	for len(routes) > 0 {
		n := 1
		for n < len(routes) && byHost(routes[0], routes[n]) == 0 {
			n++
		}
		for len(was) > 0 && byHost(was[0].routes[0], routes[0]) < 0 {
			was = was[1:]
		}
		var one *hostTables
		if len(was) > 0 && byHost(was[0].routes[0], routes[0]) == 0 {
			one = was[0]
		}
		at, moved := routes[0].site(), anywhere || len(in) > 0 && cfg.anyIn(routes[:n], in)
		if moved || one == nil || one.moved || one.guard != guard[at] || !sameRoutes(one.routes, routes[:n]) {
			made := m.rows
			if routes[0].Scope != "" {
				made = m.scopedRows
			}
			// A clone, since a part of the list would keep the whole list in memory as long as the host stays.
			one = &hostTables{
				routes: slices.Clone(routes[:n]), guard: guard[at], moved: moved,
				rows: made(cfg, routes[:n], guard[at], secret, in),
			}
		}
		all = append(all, one)
		routes = routes[n:]
	}
	m.hosts = all
	for i, n := range m.sizes {
		out[i] = make([]row, 0, n+1)
	}
	for _, one := range all {
		for _, r := range one.rows {
			out[r.table] = append(out[r.table], r.row)
		}
	}
	cfg.pickRows(&out, secret, in)
	cfg.hostnameRows(&out)
	if !slices.ContainsFunc(out[wildTable], func(r row) bool { return r.key == "/" }) {
		out[wildTable] = append(out[wildTable], row{"/", cmp.Or(in.of(cfg.DefaultBackend), nowhere)})
	}
	out[sniTable] = append(out[sniTable], covered(all, out[sniTable])...)
	for i := range out[:pickRegexpTable] {
		slices.SortFunc(out[i], func(a, b row) int { return strings.Compare(a.key, b.key) })
		if patternTable(i) {
			slices.SortStableFunc(out[i], func(a, b row) int { return cmp.Compare(len(b.key), len(a.key)) })
		}
	}
	for i := range out {
		m.sizes[i] = len(out[i])
	}
	return out
}

// anyIn reports whether the worker has another name for a backend of some routes.
func (c *Config) anyIn(routes []*Route, in workerNames) bool {
	for _, r := range routes {
		for name := range c.Targets(r) {
			if in.has(name) {
				return true
			}
		}
	}
	return false
}

// tableOf returns the table of a host's routes, and the beginning of their keys.
func tableOf(host string) (table int, key string) {
	if rest, ok := strings.CutPrefix(host, "*."); ok {
		return wildTable, rest
	}
	if host == "" {
		return wildTable, ""
	}
	return exactTable, host
}

// rows returns the rows of the routes of one host.
func (m *hostRows) rows(_ *Config, routes []*Route, guard, secret string, in workerNames) (out []placedRow) {
	host := routes[0].Host
	table, key := tableOf(host)
	add := firstRows(&out)
	first := ""
	if slices.ContainsFunc(routes, func(r *Route) bool { return r.Match == Regexp }) {
		first = strconv.Itoa(patternMap(host, secret)) + ":" + cmp.Or(host, "_")
	}
	for _, r := range routes {
		switch r.Match {
		case Regexp:
			add(regexpTable+patternMap(r.Host, secret), pattern(r.Host, r.Path), r.value(m.port, in, "", guard))
		case Exact:
			add(table, key+r.Path+"/\x01", r.value(m.port, in, "", guard))
		case Begin:
			add(table, key+r.Path, r.value(m.port, in, first, guard))
		case Prefix:
			add(table, key+strings.TrimRight(r.Path, "/")+"/", r.value(m.port, in, first, guard))
		case Passthrough:
			to, closed := r.Backend, *r
			closed.Backend = nowhere
			if m.inspect {
				name := r.Host
				if table == wildTable {
					name = key + "/"
				}
				add(sniTable, name, cmp.Or(to, terminator))
				closed.Backend = elsewhere
			}
			add(table, key+"/", closed.value(m.port, in, "", ""))
		}
	}
	implied := Route{Backend: m.rest}
	add(table, key+"/", implied.value(m.port, in, first, guard))
	return out
}

// firstRows returns a function that adds a row, unless its table has a row with that key.
func firstRows(out *[]placedRow) func(table int, key, value string) {
	type at struct {
		table int
		key   string
	}
	known := make(map[at]bool)
	return func(table int, key, value string) {
		if !known[at{table, key}] {
			known[at{table, key}] = true
			*out = append(*out, placedRow{table, row{key, value}})
		}
	}
}

// covered returns the rows of sni.map for hosts that a wildcard there covers, although they have
// routes of their own.
func covered(all []*hostTables, names []row) (more []row) {
	known := make(map[string]bool, len(names))
	for _, r := range names {
		known[r.key] = true
	}
	if len(known) == 0 {
		return nil
	}
	for _, one := range all {
		host := one.routes[0].Host
		table, _ := tableOf(host)
		if one.routes[0].Scope != "" {
			continue
		}
		if _, parent, _ := strings.Cut(host, "."); table == exactTable && known[parent+"/"] && !known[host] {
			more = append(more, row{host, terminator})
		}
	}
	return more
}

// plainHTTP stands in the value of a Route of Plain, in the place of the status of a redirect.
const plainHTTP = "plain"

// value returns the value of a Route in a map (see rows).
func (r *Route) value(port uint16, in workerNames, patterns, guard string) string {
	words := []string{cmp.Or(in.of(r.Backend), nowhere), "", "", "", "", patterns, r.Choice, guard}
	if r.TLSOnly {
		words[1] = strconv.Itoa(cmp.Or(r.TLSCode, 302))
		if port := cmp.Or(r.TLSPort, port); port != 443 {
			words[2] = ":" + strconv.Itoa(int(port))
		}
	} else if r.Plain {
		words[1] = plainHTTP
	}
	if r.Canary != "" {
		words[3], words[4] = in.of(r.Canary), strconv.Itoa(r.CanaryWeight)
	}
	return strings.TrimRight(strings.Join(words, "/"), "/")
}

// pattern returns the key of a regular expression in a map of patterns.
func pattern(host, path string) string {
	return matchLimit + "^" + regexp.QuoteMeta(cmp.Or(host, "_")) + "(?:" + path + ")"
}

// fewRows is the largest number of rows that change by a command for each row. HAProxy 2.6 searches
// the whole map for each such command.
const fewRows = 32

// mapCommands returns the commands that turn have into want, row by row. It reports false if there
// are more than fewRows. have and want are sorted by key.
func mapCommands(path string, have, want []row) ([]string, bool) {
	var cmds []string
	i, j := 0, 0
	for (i < len(have) || j < len(want)) && len(cmds) <= fewRows {
		switch {
		case j == len(want) || i < len(have) && have[i].key < want[j].key:
			cmds = append(cmds, "del map "+path+" "+escape(have[i].key))
			i++
		case i == len(have) || want[j].key < have[i].key:
			cmds = append(cmds, "add map "+path+" "+escape(want[j].key)+" "+want[j].value)
			j++
		default:
			if have[i].value != want[j].value {
				cmds = append(cmds, "set map "+path+" "+escape(want[j].key)+" "+want[j].value)
			}
			i++
			j++
		}
	}
	return cmds, len(cmds) <= fewRows
}

// escape quotes an argument of a command (HAProxy Management Guide, 9.3).
func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `;`, `\;`, ` `, `\ `, `#`, `\#`, `"`, `\"`, `'`, `\'`).Replace(s)
}
