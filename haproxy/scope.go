package haproxy

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// A site is a host at a Listener, or a host of Ingresses if it has no scope. A request looks for its Route
// among those of one site.
type site struct{ scope, host string }

func (r *Route) site() site { return site{r.Scope, r.Host} }

// key returns the beginning of the keys for a host at a Listener. No host is "*".
func (s site) key() string { return s.scope + "/" + cmp.Or(s.host, "*") }

// streams reports whether a Route takes connections, and not requests.
func (r *Route) streams() bool { return r.Match == Passthrough || r.Match == Terminate }

// scopedRows returns the rows of the routes of one host at a Listener.
//
// A key of gateway.map is SCOPE/HOST/PATH. HOST may be "*.name", or "*" for every host. Each host
// has a row for "/", so that no request for it reaches a wider host. A value is
// TARGET/STATUS/:PORT/MASK/PICK/PATTERNS//GUARD, with the fields of a value of route.map but for
// these: TARGET is a Target. MASK has a bit for each Form of the Pick, by its index in Shape.Forms.
// The name of a PICK with regular expressions follows the number of their map, and ":".
//
// A key of stream.map is SCOPE/HOST. A value is a Target. If TLS ends in HAProxy, it begins with
// terminated. hostnameRows adds the Hostnames.
func (m *hostRows) scopedRows(cfg *Config, routes []*Route, guard, secret string, in workerNames) (out []placedRow) {
	add := firstRows(&out)
	site, first, plain := routes[0].site().key(), "", true
	prefix := strings.Replace(site, "/", "|", 1) // a field of a value has no slash
	for _, r := range routes {
		if r.Match == Regexp {
			first = strconv.Itoa(patternMap(site, secret)) + ":" + prefix
		}
		plain = plain && r.streams()
	}
	for _, r := range routes {
		value := func(patterns string) string { return cfg.scopedValue(r, in, secret, patterns, guard) }
		switch r.Match {
		case Passthrough:
			add(streamTable, site, r.To.connections(in))
		case Terminate:
			add(streamTable, site, terminated+r.To.connections(in))
		case Regexp:
			add(gatewayRegexpTable+patternMap(site, secret), pattern(prefix, r.Path), value(""))
		case Exact:
			add(gatewayTable, site+r.Path+"/\x01", value(""))
		case Begin:
			add(gatewayTable, site+r.Path, value(first))
		case Prefix:
			add(gatewayTable, site+strings.TrimRight(r.Path, "/")+"/", value(first))
		}
	}
	if !plain {
		add(gatewayTable, site+"/", cfg.scopedValue(&Route{}, in, secret, first, guard))
	}
	return out
}

// connections returns the text of a Target of TCP backends, as in does. HTTP backends of our own
// cannot answer connections, so HAProxy closes those.
func (t Target) connections(in workerNames) string {
	closed := workerNames{Invalid: refused, "": refused, waiting: refused}
	for _, s := range t.Shares() {
		if there, is := in[s.Backend]; is {
			closed[s.Backend] = there
		}
	}
	return t.in(closed)
}

// terminated begins the value of a Terminate Route in stream.map.
const terminated = "!"

// scopedValue returns the value of a Route in gateway.map (see scopedRows).
func (c *Config) scopedValue(r *Route, in workerNames, secret, patterns, guard string) string {
	words := []string{r.To.in(in), "", "", "", "", patterns, "", guard}
	if r.TLSOnly {
		words[1] = strconv.Itoa(cmp.Or(r.TLSCode, 302))
		if port := cmp.Or(r.TLSPort, 443); port != 443 {
			words[2] = ":" + strconv.Itoa(int(port))
		}
	}
	if pick := c.pick(r.Pick); pick != nil {
		if mask := c.mask(pick); mask > 0 {
			words[3], words[4] = strconv.FormatUint(mask, 10), pick.Name
			if pick.patterns() {
				words[4] = strconv.Itoa(patternMap(pick.Name, secret)) + ":" + pick.Name
			}
		}
	}
	return strings.TrimRight(strings.Join(words, "/"), "/")
}

// mask returns a number with the bits of the Forms of a Pick.
func (c *Config) mask(p *Pick) (mask uint64) {
	for i, f := range c.Forms {
		for _, has := range p.forms {
			if has.Name == f.Name {
				mask |= 1 << i
				break
			}
		}
	}
	return mask
}

// pickRows adds the rows of all Picks.
//
// A key of pick.map is PICK.FORM, and after "." each value of the condition in hexadecimal. Thus no
// value reaches into another one, and into no command. A value is RANK/TARGET, where RANK is the
// index of the case. A key of a map of patterns begins with PICK.FORM, and has a line for each
// value. Its rows are in the order of their ranks.
func (c *Config) pickRows(out *tables, secret string, in workerNames) {
	known := make(map[string]bool)
	for _, p := range c.Picks {
		for rank, one := range p.Cases {
			table, key := pickTable, p.Name+"."+p.forms[rank].Name
			if p.forms[rank].Patterns {
				table, key = pickRegexpTable+patternMap(p.Name, secret), matchLimit+"^"+p.Name+`\.`+p.forms[rank].Name
			}
			for _, f := range one.If.fields() {
				switch {
				case table == pickTable:
					key += "." + strings.ToUpper(hex.EncodeToString([]byte(f.Value)))
				case f.Pattern:
					// Each value is a line. A pattern may have its own anchors.
					key += `\n(?m:` + strings.ReplaceAll(f.Value, " ", `\x20`) + ")"
				default:
					key += `\n` + literal(f.Value)
				}
			}
			if table != pickTable {
				key += `\z`
			}
			if !known[key] {
				known[key] = true
				out[table] = append(out[table], row{key, strconv.Itoa(rank) + "/" + one.To.in(in)})
			}
		}
	}
}

// hostnameRows adds the rows of all Hostnames. A key of hostnames.map is SCOPE/HOST, and a value is a
// Part. In stream.map the connections for a Hostname get a row unless a Route has it: at a ListenMixed
// they lead to the frontend for requests, or nowhere.
func (c *Config) hostnameRows(out *tables) {
	known := make(map[string]bool)
	if len(c.Hostnames) > 0 {
		for _, r := range out[streamTable] {
			known[r.key] = true
		}
	}
	mixed := make(map[string]Listener)
	for _, l := range c.Listeners {
		if l.Kind == ListenMixed {
			mixed[l.scope()] = l
		}
	}
	for _, h := range c.Hostnames {
		key := site{h.Scope, h.Host}.key()
		out[hostnameTable] = append(out[hostnameTable], row{key, h.Part})
		switch l, is := mixed[h.Scope]; {
		case h.Streams && !known[key]:
			out[streamTable] = append(out[streamTable], row{key, refused})
		case !h.Streams && is:
			out[streamTable] = append(out[streamTable], row{key, l.requests()})
		}
	}
}

// literal returns a regular expression that matches one text, in characters that every map takes.
func literal(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		if isAlnum(c) {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, `\x%02x`, c)
		}
	}
	return out.String()
}
