package haproxy

import (
	"cmp"
	"net"
	"regexp"
	"strings"
)

// Find returns the Route that takes a request, as the maps of HAProxy do, for people who ask for
// it. The host may have a port. If no Route takes the request, why describes the answer to it. Go's
// regular expressions differ from HAProxy's (PCRE2): Find reports a Route of Regexp that Go cannot
// read as not matching.
func (c *Config) Find(host, path string) (r Route, why string) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	_, parent, _ := strings.Cut(host, ".")
	rest := "is answered with 404"
	if c.DefaultBackend != "" {
		rest = "goes to the default backend"
	}
	for _, known := range []string{host, "*." + parent, ""} {
		var best *Route
		named := false
		for i := range c.Routes {
			if r := &c.Routes[i]; r.Host == known {
				named = true
				if r.takes(path) && (best == nil || r.before(best)) {
					best = r
				}
			}
		}
		switch {
		case best != nil && best.Backend == "":
			return *best, "the rule answers with 404"
		case best != nil:
			return *best, ""
		case named && known != "":
			return r, "a rule names the host " + known + ", and none of its paths match, so the request " + rest
		}
	}
	return r, "no rule names the host, so the request " + rest
}

// takes reports whether the path of a request matches.
func (r *Route) takes(path string) bool {
	switch r.Match {
	case Exact:
		return path == r.Path
	case Prefix:
		return strings.HasPrefix(path+"/", strings.TrimRight(r.Path, "/")+"/")
	case Regexp:
		e, err := regexp.Compile("^(?:" + r.Path + ")")
		return err == nil && e.MatchString(path)
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
