package haproxy

import (
	"regexp"
	"slices"
	"strings"
)

// Marks at the end of a route in a map. No name has the character "!".
const (
	guarded         = "!"
	guardedStrictly = "!!"
)

// ambiguous matches a path that a server may read in another way than HAProxy, which compares paths
// byte for byte (RFC 3986, section 6). Servers decode escapes, once or twice; merge slashes;
// resolve dot segments; cut off parameters and fragments; treat a backslash as a slash; and decode
// overlong UTF-8. An escape such as %20 or %C3%A9 is not ambiguous. No decoder turns it into a
// control character, a letter, a digit or one of - . _ ~ / \\ ; %.
const ambiguous = `'(?i)//|/\.\.?(?:/|$)|[;\\#\x80-\xff]|%(?:[01][0-9a-f]|2[5def]|3[0-9b]|4[1-9a-f]|5[0-9acf]|6[1-9a-f]|7[0-9aef]|c[01]|e0%[89]|f0%8|f[5-9a-f]|(?![0-9a-f]{2}))'`

// escaped matches more escapes than ambiguous. It is for a host with a path that has other
// characters than letters, digits and - . _ ~ /. Clients can write each of these other characters
// as an escape, with digits in upper or lower case.
const escaped = `'%(?:[0-9A-F]?[a-f]|2[1-46-9A-C]|3[AC-F]|40|5[BDE]|60|7[B-D])'`

// otherPaths matches the headers that some servers read as the path of a request, instead of its
// URL. A client that may send them bypasses a guard without another spelling.
const otherPaths = `'(?i)^x[-_.](?:original|rewrite)[-_.]ur[il]$'`

var plain = regexp.MustCompile(`^[A-Za-z0-9._~/-]*$`)

// guards returns a mark for each site that has paths with different guards. There a client could
// bypass a guard if a server reads the path of a request as another path. If all paths of a host
// have the same guard, another path gives no advantage, so HAProxy accepts every path.
func guards(cfg *Config) map[site]string {
	of := make(map[string]string) // by backend
	for _, b := range cfg.Backends {
		if g := b.guard(); g != "" {
			of[b.Name] = g
		}
	}
	if slices.ContainsFunc(cfg.Routes, func(r *Route) bool { return r.Backend == waiting || r.To == To(waiting) }) {
		of[waiting] = waiting
	}
	// A host without a guarded path, and without a condition, has no mark.
	unguarded, comparing := of[cfg.DefaultBackend] == "", cfg.comparing()
	suspect := make(map[site]bool)
	for _, r := range cfg.Routes {
		is := comparing[r.Choice] || r.Plain
		if len(of) > 0 {
			for name := range cfg.Targets(r) {
				is = is || of[name] != ""
			}
		}
		if is {
			suspect[r.site()] = true
		}
	}
	type host struct {
		seen, differ, strict, root, scoped bool
		guard                              string // guard of the first path that leads to a backend
	}
	hosts := make(map[site]*host)
	for _, r := range cfg.Routes {
		if unguarded && !suspect[r.site()] {
			continue
		}
		h := hosts[r.site()]
		if h == nil {
			h = &host{scoped: r.Scope != ""}
			hosts[r.site()] = h
		}
		if r.streams() { // its row answers the other paths of the host, and leads to no backend
			h.root = true
			continue
		}
		for backend := range cfg.Targets(r) {
			if !h.seen {
				h.seen, h.guard = true, of[backend]
			}
			h.differ = h.differ || of[backend] != h.guard || strings.Contains(h.guard, byPath)
		}
		h.root = h.root || r.Path == "/" && (r.Match == Prefix || r.Match == Begin)
		h.strict = h.strict || r.Match == Regexp || !plain.MatchString(r.Path)
		h.differ = h.differ || comparing[r.Choice] || r.Plain
	}
	marks := make(map[site]string)
	for at, h := range hosts {
		switch {
		// If no path leads to a backend, the default backend is the only one.
		case !h.differ && (h.root || h.scoped || !h.seen || cfg.DefaultBackend == "" ||
			of[cfg.DefaultBackend] == h.guard):
		case h.strict:
			marks[at] = guardedStrictly
		default:
			marks[at] = guarded
		}
	}
	return marks
}

// byPath marks a guard that may depend on the path: an authentication service sees the path, and a
// text may compare it.
const byPath = "\x00"

var ends = regexp.MustCompile(`\b(?:deny|reject|return|redirect|tarpit|silent-drop|auth|lua\.)`)

// guard returns the rules that reject clients of a backend, or "" if it has no such rules. A limit
// of requests is not a guard.
func (b *Backend) guard() string {
	var rules []string
	keeps := false
	for _, d := range b.Directives {
		switch d.phase {
		case phaseClosed, phaseShown, phaseDeny, phaseAuth, phaseToken:
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

// sameRules reports whether two backends have the same name and directives.
func (b *Backend) sameRules(o *Backend) bool {
	return b == o || b.Name == o.Name && slices.Equal(b.Directives, o.Directives)
}

// rejects reports whether a Directive may reject clients, for example by a limit, or sets the
// address that such a Directive compares. It counts every text, since a text may reject clients.
func (d Directive) rejects() bool {
	switch d.phase {
	case phaseClosed, phaseSource, phaseShown, phaseDeny, phaseLimit, phaseAuth, phaseToken, phaseAsk, phaseText:
		return true
	}
	return false
}

// rejects reports whether a backend may reject clients.
func (b *Backend) rejects() bool { return slices.ContainsFunc(b.Directives, Directive.rejects) }

// covers reports whether b is at least as strict as o: it rejects every client that o rejects, and
// trusts no server that o does not trust.
func (b *Backend) covers(o *Backend) bool {
	for _, d := range o.Directives {
		if d.rejects() && !slices.Contains(b.Directives, d) {
			return false
		}
	}
	for _, d := range b.Directives {
		if (d.phase == phaseSource || d.phase == phaseText || d.admits()) && !slices.Contains(o.Directives, d) {
			return false
		}
	}
	trusts := func(o ServerOptions) ServerOptions {
		return ServerOptions{
			TLS: o.TLS, CA: o.CA, Crt: o.Crt, SNI: o.SNI, VerifyHost: o.VerifyHost,
			Ciphers: o.Ciphers, MinTLS: o.MinTLS, MaxTLS: o.MaxTLS,
		}
	}
	return b.TCP == o.TCP && trusts(b.Options) == trusts(o.Options)
}
