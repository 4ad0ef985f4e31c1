package haproxy

import (
	"regexp"
	"slices"
	"strings"
)

// Marks at the end of a route in a map. No name has such a character.
const (
	guarded         = "!"
	guardedStrictly = "!!"
)

// ambiguous matches a path that a server may read in another way than HAProxy, which
// compares paths byte for byte (RFC 3986, section 6). Servers decode escapes, once or
// twice; merge slashes; resolve dot segments; cut off parameters and fragments; take a
// backslash for a slash; and decode overlong UTF-8. An escape such as %20 or %C3%A9 is
// not ambiguous: no decoder turns it into a control character, a letter, a digit or one
// of - . _ ~ / \\ ; %.
const ambiguous = `'(?i)//|/\.\.?(?:/|$)|[;\\#\x80-\xff]|%(?:[01][0-9a-f]|2[5def]|3[0-9b]|4[1-9a-f]|5[0-9acf]|6[1-9a-f]|7[0-9aef]|c[01]|e0%[89]|f0%8|f[5-9a-f]|(?![0-9a-f]{2}))'`

// escaped matches more escapes, for a host with a path that has other characters than
// letters, digits and - . _ ~ /. Each of these characters may be escaped, too, and the
// digits of an escape may be of either case.
const escaped = `'%(?:[0-9A-F]?[a-f]|2[1-46-9A-C]|3[AC-F]|40|5[BDE]|60|7[B-D])'`

// otherPaths matches the headers that some servers read as the path of a request, instead of its
// URL. A client that may send them bypasses a guard without another spelling.
const otherPaths = `'(?i)^x[-_.](?:original|rewrite)[-_.]ur[il]$'`

var plain = regexp.MustCompile(`^[A-Za-z0-9._~/-]*$`)

// guards returns a mark for each host whose paths have different guards. On such a host
// a client bypasses a guard by making a server read one path as another. Where all
// paths have the same guard, that gains nothing, so paths are passed on as they are.
func guards(cfg *Config) map[string]string {
	of := make(map[string]string) // by backend
	for _, b := range cfg.Backends {
		if g := b.guard(); g != "" {
			of[b.Name] = g
		}
	}
	if slices.ContainsFunc(cfg.Routes, func(r Route) bool { return r.Backend == waiting }) {
		of[waiting] = waiting
	}
	// A host without a guarded path, and without a condition, has no mark.
	unguarded := of[cfg.DefaultBackend] == ""
	suspect := make(map[string]bool)
	for i := range cfg.Routes {
		if r := &cfg.Routes[i]; r.Choice != "" || len(of) > 0 && (of[r.Backend] != "" || of[r.Canary] != "") {
			suspect[r.Host] = true
		}
	}
	type host struct {
		seen, differ, strict, root bool
		guard                      string // of the first path that leads somewhere
	}
	hosts := make(map[string]*host)
	for i := range cfg.Routes {
		r := &cfg.Routes[i]
		if r.Match == Passthrough || unguarded && !suspect[r.Host] {
			continue
		}
		h := hosts[r.Host]
		if h == nil {
			h = &host{}
			hosts[r.Host] = h
		}
		for _, backend := range []string{r.Backend, r.Canary} {
			if backend == "" {
				continue
			}
			if !h.seen {
				h.seen, h.guard = true, of[backend]
			}
			h.differ = h.differ || of[backend] != h.guard || strings.Contains(h.guard, byPath)
		}
		h.root = h.root || r.Path == "/" && (r.Match == Prefix || r.Match == Begin)
		h.strict = h.strict || r.Match == Regexp || !plain.MatchString(r.Path)
		h.differ = h.differ || r.Choice != "" // a condition may look at the path itself
	}
	marks := make(map[string]string)
	for name, h := range hosts {
		switch {
		case !h.differ && (h.root || cfg.DefaultBackend == "" || of[cfg.DefaultBackend] == h.guard):
		case h.strict:
			marks[name] = guardedStrictly
		default:
			marks[name] = guarded
		}
	}
	return marks
}

// byPath marks a guard that may decide by the path: an authentication service sees the
// path, and a text may compare it.
const byPath = "\x00"

var ends = regexp.MustCompile(`\b(?:deny|reject|return|redirect|tarpit|silent-drop|auth|lua\.)`)

// guard returns the rules that keep clients out of a backend; empty: there are none. A
// limit of requests is not a guard.
func (b *Backend) guard() string {
	var rules []string
	keeps := false
	for _, d := range b.Directives {
		switch d.phase {
		case phaseClosed, phaseShown, phaseDeny, phaseAuth:
			keeps = true
			rules = append(rules, d.text)
		case phaseAsk:
			keeps = true
			rules = append(rules, d.text, byPath)
		case phaseSource:
			rules = append(rules, d.text)
		case phaseText:
			if ends.MatchString(d.text) {
				keeps = true
				rules = append(rules, byPath)
			}
		}
	}
	if !keeps {
		return ""
	}
	return strings.Join(rules, "\n")
}

// sameRules reports whether two backends differ only in their servers, or not at all.
func (b *Backend) sameRules(o *Backend) bool {
	return b == o || b.Name == o.Name && slices.Equal(b.Directives, o.Directives)
}

// rejects reports whether a Directive may keep clients out, limits among others, or decides
// whom such a Directive means. Nobody knows what a text does.
func (d Directive) rejects() bool {
	switch d.phase {
	case phaseClosed, phaseSource, phaseShown, phaseDeny, phaseLimit, phaseAuth, phaseAsk, phaseText:
		return true
	}
	return false
}

// rejects reports whether a backend may keep clients out.
func (b *Backend) rejects() bool { return slices.ContainsFunc(b.Directives, Directive.rejects) }

// covers reports whether a backend keeps out every client that another one keeps out, and
// trusts no server that the other one does not trust.
func (b *Backend) covers(o *Backend) bool {
	for _, d := range o.Directives {
		if d.rejects() && !slices.Contains(b.Directives, d) {
			return false
		}
	}
	for _, d := range b.Directives {
		if (d.phase == phaseSource || d.phase == phaseText) && !slices.Contains(o.Directives, d) {
			return false
		}
	}
	trusts := func(o ServerOptions) ServerOptions {
		return ServerOptions{TLS: o.TLS, CA: o.CA, Crt: o.Crt, SNI: o.SNI, VerifyHost: o.VerifyHost}
	}
	return b.TCP == o.TCP && trusts(b.Options) == trusts(o.Options)
}
