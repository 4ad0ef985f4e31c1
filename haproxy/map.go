package haproxy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// row is a line of a map or a list.
type row struct{ key, value string }

// The tables, each the rows of one map.
const (
	exactTable = iota
	wildTable
	sniTable    // only with Config.Inspect
	regexpTable // the first of patternMaps
)

// tables are the rows of all maps. Those of a map of patterns stand in the order in
// which HAProxy tries them, all others are sorted by key.
type tables [len(mapFiles)][]row

// mapFiles are the files of the tables.
var mapFiles = func() (files [regexpTable + patternMaps]string) {
	files[exactTable], files[wildTable], files[sniTable] = routeMap, wildMap, sniMap
	for i := range patternMaps {
		files[regexpTable+i] = regexpMap + strconv.Itoa(i) + ".map"
	}
	return files
}()

// patternMaps is the number of maps of patterns. HAProxy tries the rows of a map one
// after the other, half a microsecond each, whichever host they belong to. A secret
// decides which of the maps a host shares, so that nobody can choose a neighbour.
const patternMaps = 16

// patternMap returns the number of the map with the patterns of a host.
func patternMap(host, secret string) int {
	sum := sha256.Sum256([]byte(secret + "\n" + host))
	return int(sum[0]) % patternMaps
}

// isMap reports whether a path is that of a map or a list.
func isMap(path string) bool {
	return strings.HasPrefix(path, mapDir) || strings.HasPrefix(path, listDir)
}

// tableFiles holds the maps and the lists.
type tableFiles struct {
	of    Config // made for it,
	slots slots  // and for a worker with these
	files map[string]rendered
}

// renderTables returns the maps and the lists.
func (r *renderer) renderTables(cfg *Config, in slots) *tableFiles {
	var was tableFiles
	sameMaps := false
	if r.last != nil {
		was = *r.last.tables
		of := &was.of
		sameMaps = was.slots.equal(in) && of.Shape.equal(&cfg.Shape) && of.DefaultBackend == cfg.DefaultBackend &&
			same(of.Routes, cfg.Routes) && slices.EqualFunc(of.Backends, cfg.Backends, (*Backend).sameRules)
		if sameMaps && same(of.Lists, cfg.Lists) {
			return r.last.tables
		}
	}
	set := &tableFiles{of: *cfg, slots: in, files: make(map[string]rendered, len(mapFiles)+len(cfg.Lists))}
	var all tables
	if !sameMaps {
		all = rows(cfg, r.opt.Secret, in)
		set.files[namesMap] = renderMap(in.names(cfg))
	} else {
		set.files[namesMap] = was.files[namesMap]
	}
	for i, path := range mapFiles {
		switch {
		case i == sniTable && !cfg.Inspect:
		case sameMaps:
			set.files[path] = was.files[path]
		default:
			set.files[path] = renderMap(all[i])
		}
	}
	known := make(map[*List]bool)
	if r.last != nil {
		for _, l := range was.of.Lists {
			known[l] = true
		}
	}
	for _, l := range cfg.Lists {
		if known[l] {
			set.files[listDir+l.Name] = was.files[listDir+l.Name]
		} else {
			set.files[listDir+l.Name] = renderMap(l.rows())
		}
	}
	return set
}

func renderMap(rows []row) rendered {
	text := make([]byte, 0, 64+64*len(rows))
	text = append(text, "# what is looked up, then what it comes to\n"...)
	for _, r := range rows {
		text = append(append(append(append(text, r.key...), ' '), r.value...), '\n')
	}
	return rendered{file: File{text, 0o600}, sum: sha256.Sum256(text), rows: rows}
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

// tlsPort returns the port to which HAProxy redirects plain HTTP where a Route names
// none.
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
// A value is BACKEND/STATUS/:PORT/CANARY/WEIGHT/PATTERNS/CHOICE/GUARD, without the
// empty fields at its end. STATUS is that of the redirect of plain HTTP, and PORT the
// port it leads to, empty for 443. PATTERNS are the number of the map that HAProxy
// tries before the value counts, ":", and the beginning of its keys: the host, or
// "_" for any. GUARD is the mark of the host (see guards).
//
// A key of sni.map is a host, or a wildcard host without "*." and with a "/" at its
// end, which no name has. A value is a backend. A host that a wildcard would pass
// through, and that has routes of its own, has a row there too.
func rows(cfg *Config, secret string, in slots) (out tables) {
	routes, port := cfg.Routes, tlsPort(cfg.Bind)
	value := func(r Route, patterns, guard string) string { return r.value(port, in, patterns, guard) }
	var known [len(mapFiles)]map[string]string
	for i := range known {
		known[i] = make(map[string]string)
	}
	add := func(table int, key, value string) {
		if _, taken := known[table][key]; !taken {
			known[table][key] = value
		}
	}
	guard := guards(cfg)
	patterns := make(map[string]bool) // hosts with patterns
	for _, r := range routes {
		if r.Match == Regexp {
			patterns[r.Host] = true
			add(regexpTable+patternMap(r.Host, secret), pattern(r.Host, r.Path), value(r, "", guard[r.Host]))
		}
	}
	first := func(host string) string {
		if !patterns[host] {
			return ""
		}
		return strconv.Itoa(patternMap(host, secret)) + ":" + cmp.Or(host, "_")
	}
	place := func(host string) (int, string) {
		if rest, ok := strings.CutPrefix(host, "*."); ok {
			return wildTable, rest
		}
		if host == "" {
			return wildTable, ""
		}
		return exactTable, host
	}
	for _, r := range routes {
		table, key := place(r.Host)
		switch r.Match {
		case Exact:
			add(table, key+r.Path+"/\x01", value(r, "", guard[r.Host]))
		case Begin:
			add(table, key+r.Path, value(r, first(r.Host), guard[r.Host]))
		case Prefix:
			add(table, key+strings.TrimRight(r.Path, "/")+"/", value(r, first(r.Host), guard[r.Host]))
		case Passthrough:
			to := r.Backend
			r.Backend = nowhere
			if cfg.Inspect {
				name := r.Host
				if table == wildTable {
					name = key + "/"
				}
				add(sniTable, name, cmp.Or(to, terminator))
				r.Backend = elsewhere
			}
			add(table, key+"/", value(r, "", ""))
		}
	}
	for _, r := range routes {
		table, host := place(r.Host)
		implied := Route{Backend: cfg.DefaultBackend}
		add(table, host+"/", value(implied, first(r.Host), guard[r.Host]))
		if _, parent, _ := strings.Cut(host, "."); table == exactTable && known[sniTable][parent+"/"] != "" {
			add(sniTable, host, terminator)
		}
	}
	add(wildTable, "/", cmp.Or(in.of(cfg.DefaultBackend), nowhere))
	for i := range known {
		out[i] = make([]row, 0, len(known[i]))
		for key, value := range known[i] {
			out[i] = append(out[i], row{key, value})
		}
		slices.SortFunc(out[i], func(a, b row) int { return cmp.Compare(a.key, b.key) })
	}
	for _, table := range out[regexpTable:] {
		slices.SortStableFunc(table, func(a, b row) int { return cmp.Compare(len(b.key), len(a.key)) })
	}
	return out
}

// value returns the value of a Route in a map (see rows).
func (r *Route) value(port uint16, in slots, patterns, guard string) string {
	words := []string{cmp.Or(in.of(r.Backend), nowhere), "", "", "", "", patterns, r.Choice, guard}
	if r.TLSOnly {
		words[1] = strconv.Itoa(cmp.Or(r.TLSCode, 302))
		if port := cmp.Or(r.TLSPort, port); port != 443 {
			words[2] = ":" + strconv.Itoa(int(port))
		}
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

// fewRows is the most rows of a map that change one by one. HAProxy 2.6 searches the
// whole map for each of them.
const fewRows = 32

// mapCommands returns the commands that turn have into want, row by row; false if
// there are more than fewRows. Both are sorted by key.
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
