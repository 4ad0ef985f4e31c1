package haproxy

import (
	"regexp"
	"slices"
	"strings"
)

// The marks at the end of a route in a map. No name has such a byte in it.
const (
	guarded         = "!"
	guardedStrictly = "!!"
)

// Paths that a server may read as another one than HAProxy does, which compares
// them byte for byte (RFC 3986, section 6). Servers decode what is escaped, once or
// again; merge slashes; walk up by dot segments; cut off parameters and fragments;
// take a backslash for a slash; and take a character in a longer form than UTF-8
// has for it. What no decoder makes a letter, a digit or one of - . _ ~ / \\ ; % or a
// control character of, as %20 and %C3%A9, is not among them.
const ambiguous = `'(?i)//|/\.\.?(?:/|$)|[;\\#\x80-\xff]|%(?:[01][0-9a-f]|2[5def]|3[0-9b]|4[1-9a-f]|5[0-9acf]|6[1-9a-f]|7[0-9aef]|c[01]|e0%[89]|f0%8|f[5-9a-f]|(?![0-9a-f]{2}))'`

// Where a path of the host has other characters than letters, digits and - . _ ~ /,
// each of them may be escaped, too, and an escape has digits of either case.
const escaped = `'%(?:[0-9A-F]?[a-f]|2[1-46-9A-C]|3[AC-F]|40|5[BDE]|60|7[B-D])'`

var plain = regexp.MustCompile(`^[A-Za-z0-9._~/-]*$`)

// guards returns the marks of the hosts that have a path with a guard which another of
// their paths does not have: whoever makes a server read the one as the other has
// gone past the guard. Where all paths of a host have the same one, nobody gains by
// that, and paths are passed on as they are.
func guards(cfg *Config) map[string]string {
	of := make(map[string]string, len(cfg.Backends)) // by backend
	for _, b := range cfg.Backends {
		if g := b.guard(); g != "" {
			of[b.Name] = g
		}
	}
	type host struct {
		seen, differ, strict, root bool
		guard                      string // of the first path that leads somewhere
	}
	hosts := make(map[string]*host)
	for i := range cfg.Routes {
		r := &cfg.Routes[i]
		if r.Match == Passthrough {
			continue
		}
		h := hosts[r.Host]
		if h == nil {
			h = &host{}
			hosts[r.Host] = h
		}
		lead := func(backend string) {
			if !h.seen {
				h.seen, h.guard = true, of[backend]
			}
			h.differ = h.differ || of[backend] != h.guard || strings.Contains(h.guard, byPath)
		}
		for _, backend := range []string{r.Backend, r.Canary} {
			if backend != "" {
				lead(backend)
			}
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

// byPath marks the guard of a backend that may look at the path to keep somebody
// out: an authentication service sees the path, and a text may compare it.
const byPath = "\x00"

var ends = regexp.MustCompile(`\b(?:deny|reject|return|redirect|tarpit|silent-drop|auth|lua\.)`)

// guard returns what keeps somebody out of a backend; empty: nothing does. How often
// somebody may come is no guard.
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

// sameRules reports whether two backends differ in their servers at most.
func (b *Backend) sameRules(o *Backend) bool {
	return b == o || b.Name == o.Name && slices.Equal(b.Directives, o.Directives)
}
