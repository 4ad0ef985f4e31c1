package haproxy

import (
	"cmp"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Find returns the Route that takes a request, as the maps of HAProxy do, for people who ask for
// it. The host may have a port. If no Route takes the request, why describes the answer to it. Go's
// regular expressions differ from HAProxy's (PCRE2): Find reports a Route of Regexp that Go cannot
// read as not matching.
func (c *Config) Find(host, path string) (r Route, why string) {
	hosts := bindHosts(hostOf(host))
	return c.finder(func(of string) bool { return slices.Contains(hosts, of) }).Find(host, path)
}

// A Finder finds the Routes of many requests. Its Config must not change.
type Finder struct {
	of   map[string][]found // by host
	rest string             // the end of a sentence about a request that no Route takes
}

// A found is a Route of a Finder, with its compiled expression.
type found struct {
	*Route
	compiled   bool
	expression *regexp.Regexp // nil until it is compiled, and if Go cannot read it
}

// Finder returns a Finder of the Routes of Bind.
func (c *Config) Finder() *Finder { return c.finder(func(string) bool { return true }) }

// finder returns a Finder of the Routes of Bind for some hosts.
func (c *Config) finder(has func(host string) bool) *Finder {
	f := &Finder{of: make(map[string][]found), rest: "is answered with 404"}
	if c.DefaultBackend != "" {
		f.rest = "goes to the default backend"
	}
	for _, r := range c.Routes {
		if r.Scope == "" && has(r.Host) {
			f.of[r.Host] = append(f.of[r.Host], found{Route: r})
		}
	}
	return f
}

// Find returns the same as Find of Config. It compiles the expressions of a host once.
func (f *Finder) Find(host, path string) (r Route, why string) {
	for _, known := range bindHosts(hostOf(host)) {
		var best *Route
		all, named := f.of[known]
		for i := range all {
			if r := &all[i]; r.takes(path) && (best == nil || r.before(best)) {
				best = r.Route
			}
		}
		switch {
		case best != nil && best.Backend == "":
			return *best, "the rule answers with 404"
		case best != nil:
			return *best, ""
		case named && known != "":
			return r, "a rule names the host " + known + ", and none of its paths match, so the request " + f.rest
		}
	}
	return r, "no rule names the host, so the request " + f.rest
}

// takes reports whether the path of a request matches.
func (r *found) takes(path string) bool {
	if r.Match != Regexp {
		return r.Route.takes(path)
	}
	if !r.compiled {
		r.expression, r.compiled = r.Route.expression(), true
	}
	return r.expression != nil && r.expression.MatchString(path)
}

// expression returns the regular expression of a Route, or nil if Go cannot read it.
func (r *Route) expression() *regexp.Regexp {
	e, err := regexp.Compile("^(?:" + r.Path + ")")
	if err != nil {
		return nil
	}
	return e
}

// bindHosts returns the hosts of Routes of Bind that cover a host, the longest first.
func bindHosts(host string) []string {
	_, parent, _ := strings.Cut(host, ".")
	return []string{host, "*." + parent, ""}
}

// hostOf returns the host of a request as Routes name it: in lower case, without a port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// takes reports whether the path of a request matches.
func (r *Route) takes(path string) bool {
	switch r.Match {
	case Exact:
		return path == r.Path
	case Prefix:
		return strings.HasPrefix(path+"/", strings.TrimRight(r.Path, "/")+"/")
	case Regexp:
		e := r.expression()
		return e != nil && e.MatchString(path)
	case Begin:
		return strings.HasPrefix(path, r.Path)
	}
	return true // Passthrough compares no path
}

// before reports whether r overrides o. Both match the request, and have the same host.
func (r *Route) before(o *Route) bool {
	rank := func(r *Route) int {
		switch r.Match {
		case Passthrough:
			return 0
		case Exact:
			return 1
		case Regexp:
			return 2
		}
		return 3
	}
	length := func(r *Route) int {
		if r.Match == Prefix {
			return len(strings.TrimRight(r.Path, "/")) + 1
		}
		return len(r.Path)
	}
	return cmp.Or(cmp.Compare(rank(r), rank(o)), cmp.Compare(length(o), length(r))) < 0
}

// A Request is a request at a Listener, as far as its Routes look at it.
type Request struct {
	Scope  string // ScopeOf the Listener
	Method string
	Host   string // with or without a port
	Path   string // may have a query
	Header http.Header
}

// FindAt returns the Route that takes a request at a Listener, and where the request goes, as the
// maps of HAProxy do. If no Route takes the request, why describes the answer to it. The limits of
// Find apply.
func (c *Config) FindAt(q Request) (r Route, to Target, why string) {
	host := hostOf(q.Host)
	path, _, _ := strings.Cut(q.Path, "?")
	for _, known := range hostsFor(host) {
		var best *Route
		named := false
		for _, r := range c.Routes {
			if r.Scope == q.Scope && r.Host == known && !r.streams() {
				named = true
				if r.takes(path) && (best == nil || r.before(best)) {
					best = r
				}
			}
		}
		if best == nil && !named {
			continue
		}
		if best == nil {
			return r, to, "a rule names the host " + cmp.Or(known, "*") +
				", and none of its paths match, so the request is answered with 404"
		}
		to = best.To
		if pick := c.pick(best.Pick); pick != nil {
			if i := c.CaseOf(best, q); i < len(pick.Cases) {
				to = pick.Cases[i].To
			}
		}
		if to == (Target{}) && !best.TLSOnly {
			return *best, to, "the rule answers with 404"
		}
		return *best, to, ""
	}
	return r, to, "no rule names the host, so the request is answered with 404"
}

// CaseOf returns the index of the first case of a Route's Pick with a condition that holds for a
// request. It returns the number of cases if none holds.
func (c *Config) CaseOf(r *Route, q Request) int {
	pick := c.pick(r.Pick)
	if pick == nil {
		return 0
	}
	_, query, _ := strings.Cut(q.Path, "?")
	if i := slices.IndexFunc(pick.Cases, func(one PickCase) bool { return one.If.holds(&q, query) }); i >= 0 {
		return i
	}
	return len(pick.Cases)
}

// hostsFor returns the hosts of Routes at a Listener that cover a host, the longest first.
func hostsFor(host string) (all []string) {
	all = append(all, host)
	for range wideLabels {
		_, rest, more := strings.Cut(host, ".")
		if !more {
			break
		}
		all, host = append(all, "*."+rest), rest
	}
	if all[0] != "" {
		all = append(all, "")
	}
	return all
}

// holds reports whether the condition holds for a request with this query.
func (w When) holds(q *Request, query string) bool {
	if w.Method != "" && w.Method != q.Method {
		return false
	}
	for _, f := range w.Headers {
		lines := q.Header.Values(f.Name)
		if len(lines) == 0 || !f.matches(lines[len(lines)-1]) { // HAProxy looks at the last line
			return false
		}
	}
	for _, f := range w.Params {
		value, found := param(query, f.Name)
		if !found || !f.matches(value) {
			return false
		}
	}
	return true
}

// param returns the first parameter of a name in a query.
func param(query, name string) (value string, found bool) {
	for part := range strings.SplitSeq(query, "&") {
		if key, value, is := strings.Cut(part, "="); is && key == name {
			text, err := url.QueryUnescape(value)
			return text, err == nil
		}
	}
	return "", false
}

// matches reports whether a header or a parameter has the wanted value.
func (f Field) matches(value string) bool {
	if !f.Pattern {
		return value == f.Value
	}
	e, err := regexp.Compile(`\A(?:` + f.Value + `)\z`)
	return err == nil && !strings.Contains(value, "\n") && e.MatchString(value)
}
