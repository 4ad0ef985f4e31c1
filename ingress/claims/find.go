package claims

import (
	"regexp"

	"sallyport/haproxy"
)

// A hostPath is a path of a host, and the claim that has it.
type hostPath struct {
	by         *Claim
	path       Path
	expression *regexp.Regexp // of a path of type Regexp
	age        int            // the older is less
}

// HostPaths are the paths that claims have for a host. More paths make a search no longer, unless they are
// expressions.
type HostPaths struct {
	texts       map[Key]*hostPath // paths that are no expressions; of claims to the same one, the older
	expressions []*hostPath
	host        string
	begin       int // the length of the longest path of type Begin
	added       int
}

// PathsOf returns a host without paths.
func PathsOf(host string) *HostPaths { return &HostPaths{host: host, texts: make(map[Key]*hostPath)} }

// Add adds a path. Paths of older claims come first.
func (h *HostPaths) Add(c *Claim, p Path) {
	one := &hostPath{by: c, path: p, age: h.added}
	h.added++
	switch {
	case p.Match == haproxy.Regexp:
		if one.expression = p.Expression(); one.expression != nil {
			h.expressions = append(h.expressions, one)
		}
	case h.texts[p.Key()] == nil:
		h.texts[p.Key()] = one
		if p.Match == haproxy.Begin {
			h.begin = max(h.begin, len(p.Path))
		}
	}
}

// Find returns the path that has the requests for a path, and its claim. Without such a path the claim is nil.
func (h *HostPaths) Find(path string) (*Claim, Path) {
	if h == nil {
		return nil, Path{}
	}
	var best *hostPath
	try := func(one *hostPath) {
		if one != nil && (best == nil || one.path.Precedes(best.path) ||
			!best.path.Precedes(one.path) && one.age < best.age) {
			best = one
		}
	}
	for _, one := range h.expressions {
		if one.expression.MatchString(path) {
			try(one)
		}
	}
	text := func(p string, match haproxy.PathMatch) { try(h.texts[Key{Host: h.host, Path: p, Match: match}]) }
	text(path, haproxy.Exact)
	for end, c := range []byte(path + "/") {
		if c == '/' {
			text(path[:end], haproxy.Prefix)
			text(path[:end]+"/", haproxy.Prefix)
		}
	}
	for end := range min(len(path), h.begin) + 1 {
		text(path[:end], haproxy.Begin)
	}
	if best == nil {
		return nil, Path{}
	}
	return best.by, best.path
}
