package gateway

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// PathType says how a path is compared.
type PathType int

// The kinds of comparison. Exact applies first.
const (
	Exact  PathType = iota
	Regexp          // from the beginning of the path
	Prefix          // by path element
)

// A Match is a condition on a request.
type Match struct {
	Path    string
	Type    PathType
	Method  string  // "" for all methods
	Headers []Field // each name once, in lower case
	Params  []Field // each name once
}

// A Field is a header or a parameter of the query, and the value that it has to have.
type Field struct {
	Name, Value string
	Pattern     bool // Value is a regular expression
}

// Bare reports whether a match looks at nothing but the path.
func (m *Match) Bare() bool { return m.Method == "" && len(m.Headers)+len(m.Params) == 0 }

// CompareConditions orders the conditions of matches for one path, the one that takes a request first
// (HTTPRouteRule, matches).
func CompareConditions(a, b *Match) int {
	return cmp.Or(
		cmp.Compare(min(len(b.Method), 1), min(len(a.Method), 1)),
		cmp.Compare(len(b.Headers), len(a.Headers)),
		cmp.Compare(len(b.Params), len(a.Params)),
	)
}

// When returns the conditions of a match beside its path, for people.
func (m *Match) When() string {
	var all []string
	if m.Method != "" {
		all = append(all, "method "+m.Method)
	}
	for what, fields := range map[string][]Field{"header ": m.Headers, "parameter ": m.Params} {
		for _, f := range fields {
			is := " = "
			if f.Pattern {
				is = " ~ "
			}
			all = append(all, what+f.Name+is+quote(f.Value))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// readMatch reads a match of an HTTPRoute. why says why no request can be compared with it.
func readMatch(spec gatewayv1.HTTPRouteMatch) (m Match, why string) {
	m = Match{Path: "/", Type: Prefix}
	if p := spec.Path; p != nil {
		m.Path = value(p.Value, "/")
		switch kind := value(p.Type, gatewayv1.PathMatchPathPrefix); kind {
		case gatewayv1.PathMatchExact:
			m.Type = Exact
		case gatewayv1.PathMatchPathPrefix:
		case gatewayv1.PathMatchRegularExpression:
			m.Type = Regexp
		default:
			return m, fmt.Sprintf("has path type %s; allowed are Exact, PathPrefix and RegularExpression",
				quote(string(kind)))
		}
	}
	if m.Type == Regexp {
		why = checkRegexp(m.Path)
	} else {
		why = checkPath(m.Path)
	}
	if why != "" {
		return m, "has path " + quote(m.Path) + ", which " + why
	}
	if m.Type == Prefix && m.Path != "/" {
		m.Path = strings.TrimSuffix(m.Path, "/") // both match the same requests
	}
	m.Method = string(value(spec.Method, ""))
	for _, h := range spec.Headers {
		m.Headers = add(m.Headers, strings.ToLower(string(h.Name)), h.Value,
			value(h.Type, gatewayv1.HeaderMatchExact) == gatewayv1.HeaderMatchRegularExpression)
	}
	for _, q := range spec.QueryParams {
		m.Params = add(m.Params, string(q.Name), q.Value,
			value(q.Type, gatewayv1.QueryParamMatchExact) == gatewayv1.QueryParamMatchRegularExpression)
	}
	return m, m.alone()
}

// alone returns why a match cannot have a regular expression for the path. If the match looks at more
// than the path, a request that fails needs the next path, and that is not known before it comes.
func (m *Match) alone() string {
	if m.Type == Regexp && !m.Bare() {
		return "has a regular expression for the path, and looks at more than the path, which is not supported"
	}
	return ""
}

// add adds a field unless there is one of its name: only the first counts (HTTPRouteMatch, headers).
func add(fields []Field, name, val string, pattern bool) []Field {
	if slices.ContainsFunc(fields, func(f Field) bool { return f.Name == name }) {
		return fields
	}
	return append(fields, Field{name, val, pattern})
}

// readGRPCMatch reads a match of a GRPCRoute: the path of a call is /SERVICE/METHOD.
func readGRPCMatch(spec gatewayv1.GRPCRouteMatch) (m Match, why string) {
	m = Match{Path: "/", Type: Prefix}
	if s := spec.Method; s != nil {
		service, method := value(s.Service, ""), value(s.Method, "")
		pattern := value(s.Type, gatewayv1.GRPCMethodMatchExact) == gatewayv1.GRPCMethodMatchRegularExpression
		switch {
		case service == "" && method == "":
		case pattern:
			m.Type, m.Path = Regexp, "/"+cmp.Or(service, "[^/]+")+"/"+cmp.Or(method, "[^/]+")+"$"
		case method == "":
			m.Path = "/" + service
		case service == "":
			m.Type, m.Path = Regexp, "/[^/]+/"+regexp.QuoteMeta(method)+"$"
		default:
			m.Type, m.Path = Exact, "/"+service+"/"+method
		}
		if m.Type == Regexp {
			why = checkRegexp(m.Path)
		} else {
			why = checkPath(m.Path)
		}
		if why != "" {
			return m, "has service " + quote(service) + " and method " + quote(method) + ", of which one " + why
		}
	}
	for _, h := range spec.Headers {
		m.Headers = add(m.Headers, strings.ToLower(string(h.Name)), h.Value,
			value(h.Type, gatewayv1.GRPCHeaderMatchExact) == gatewayv1.GRPCHeaderMatchRegularExpression)
	}
	return m, m.alone()
}

// longestPath is the length of the longest path, in bytes. The API allows no more.
const longestPath = 1024

// checkPath returns why no request has a path. Only characters that the path of a request can hold
// (RFC 3986, 3.3) are allowed.
func checkPath(path string) string {
	switch {
	case !strings.HasPrefix(path, "/"):
		return `does not begin with "/"`
	case len(path) > longestPath:
		return fmt.Sprintf("has %d bytes; allowed are %d", len(path), longestPath)
	case strings.Contains(path, "//"):
		return `has an empty element ("//")`
	}
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			strings.IndexByte("/-._~!$&'()*+,;=:@", c) >= 0:
		case c == '%' && i+2 < len(path) && isHex(path[i+1]) && isHex(path[i+2]):
		default:
			return fmt.Sprintf("has the character %q, which the path of a request cannot hold: write it "+
				"percent-encoded", c)
		}
	}
	for element := range strings.SplitSeq(path[1:], "/") {
		if element == "." || element == ".." {
			return `has an element "." or "..", which clients resolve before they ask`
		}
	}
	return ""
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// checkRegexp returns why a regular expression cannot be used. The caller knows more about what
// HAProxy takes.
func checkRegexp(text string) string {
	if len(text) > longestPath {
		return fmt.Sprintf("has %d bytes; allowed are %d", len(text), longestPath)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "has a control character"
	}
	return ""
}
