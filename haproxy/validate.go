package haproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Names of our own backends. No backend of a Config may have such a name.
const (
	nowhere    = "notfound"    // answers 404
	refused    = "refused"     // closes connections of Listeners that no route matches
	waiting    = "waiting"     // answers 503 for paths that wait for a reload, see closed
	elsewhere  = "misdirected" // answers requests for a host of Passthrough, which should go to its backend by TLS
	terminator = "terminator"  // passes other TLS connections on to the frontend for HTTPS, where their TLS ends

	// keysBackend makes HAProxy read the files of "crt" and "ca-file", because a command can name
	// only a file that HAProxy has read. It has a server for every certificate that HAProxy shows
	// to servers, and for every authority of servers.
	keysBackend = "servercerts"
)

var reserved = []string{
	nowhere, Invalid, WWW, refused, waiting, elsewhere, terminator, keysBackend, rightTable, wrongTable,
}

// ownBackend reports whether a name is the name of a backend of our own.
func ownBackend(name string) bool {
	return slices.Contains(reserved, name) || strings.HasPrefix(name, terminators)
}

// Validate returns why Render cannot write the configuration, or nil if it can. It joins one error
// for each fault. If a Config has parts of several owners, the caller first validates each part by
// its own Validate, so that a fault affects only its owner.
func (c *Config) Validate() error { return c.validate(&Config{}) }

// validate does the same as Validate, but skips the parts that valid, a valid configuration, has in
// common with c.
func (c *Config) validate(valid *Config) error {
	backends, err1 := news("backend", c.Backends, valid.Backends, backendName)
	certs, err2 := news("certificate", c.Certs, valid.Certs, certName)
	errs := []error{err1, err2, named("list", c.Lists, listName), c.choices(), c.validateRows(valid)}
	if !c.Shape.equal(&valid.Shape) {
		errs = append(errs, c.Shape.validate())
	}
	if c.DefaultBackend != "" && !isName(c.DefaultBackend) {
		errs = append(errs, notAName("default backend", c.DefaultBackend))
	}
	for _, r := range between(c.Routes, valid.Routes) {
		errs = append(errs, r.Validate())
	}
	for _, b := range backends {
		errs = append(errs, b.Validate())
	}
	for _, cert := range certs {
		errs = append(errs, cert.Validate())
	}
	for _, l := range others(c.Lists, valid.Lists, listName) {
		errs = append(errs, l.validate())
	}
	return errors.Join(errs...)
}

// validateRows validates the Picks and the Hostnames.
func (c *Config) validateRows(valid *Config) error {
	errs := []error{named("pick", c.Picks, pickName)}
	picks := c.Picks
	if slices.EqualFunc(c.Forms, valid.Forms, func(a, b *Form) bool { return a.Name == b.Name }) {
		picks = others(c.Picks, valid.Picks, pickName)
	}
	for _, p := range picks {
		errs = append(errs, p.validate(c.Forms))
	}
	if !SameList(c.Hostnames, valid.Hostnames) {
		for i, h := range c.Hostnames {
			errs = append(errs, h.validate())
			if i > 0 && compareHostnames(c.Hostnames[i-1], h) >= 0 {
				errs = append(errs, fmt.Errorf("host %q at %s comes after %q at %s: the list must be sorted by scope "+
					"and host, with each once", h.Host, h.Scope, c.Hostnames[i-1].Host, c.Hostnames[i-1].Scope))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Shape) validate() error {
	errs := []error{
		s.Bind.validate(), s.Tune.validate(), s.Process.validate(), s.Group.validate(),
		named("file", s.Extras, func(e *Extra) string { return e.Name }),
		named("userlist", s.Userlists, func(u *Userlist) string { return u.Name }),
		named("choice", s.Choices, func(c *Choice) string { return c.Name }),
		named("table", s.Tables, func(t Table) string { return t.Name }),
		named("form", s.Forms, formName), s.listen(),
	}
	if len(s.Forms) > MaxForms {
		errs = append(errs, fmt.Errorf("conditions have %d forms; at most %d are allowed", len(s.Forms), MaxForms))
	}
	for _, f := range s.Forms {
		errs = append(errs, f.validate())
	}
	for _, u := range s.Userlists {
		errs = append(errs, u.validate())
	}
	if len(s.DefaultCert) > 0 {
		if _, err := ReadPair(s.DefaultCert, s.DefaultCert); err != nil {
			errs = append(errs, fmt.Errorf("the default certificate: %w", err))
		}
	}
	for _, n := range s.Captures {
		if n < 1 || n > 65535 {
			errs = append(errs, fmt.Errorf("a capture of %d bytes: allowed are 1 to 65535", n))
		}
	}
	for i, stream := range s.Streams {
		errs = append(errs, stream.validate(s.Bind))
		if i > 0 && compareStreams(s.Streams[i-1], stream) >= 0 {
			errs = append(errs, fmt.Errorf("frontend %s comes after %s: TCP ports must be sorted by address and "+
				"port, with each once", stream.name(), s.Streams[i-1].name()))
		}
	}
	for _, t := range s.Tables {
		errs = append(errs, t.validate())
	}
	return errors.Join(errs...)
}

// SameList reports whether two lists are equal. It takes no time if both have the same array.
func SameList[T comparable](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// sameRoutes reports whether two lists have equal routes.
func sameRoutes(a, b []*Route) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.EqualFunc(a, b, (*Route).Equal))
}

// Equal reports whether two routes are the same. It is quick where both are the same pointer.
func (r *Route) Equal(o *Route) bool { return r == o || *r == *o }

// between returns a list without the beginning and the end that it has in common with another list.
func between(list, other []*Route) []*Route {
	if sameRoutes(list, other) {
		return nil
	}
	for len(list) > 0 && len(other) > 0 && list[0].Equal(other[0]) {
		list, other = list[1:], other[1:]
	}
	for len(list) > 0 && len(other) > 0 && list[len(list)-1].Equal(other[len(other)-1]) {
		list, other = list[:len(list)-1], other[:len(other)-1]
	}
	return list
}

// news returns the elements of a list that a valid list lacks. The error says where the list is not
// sorted by name.
func news[T any](kind string, of, valid []*T, name func(*T) string) (out []*T, err error) {
	if len(of) != len(valid) {
		return others(of, valid, name), ascending(kind, of, name)
	}
	var errs []error
	for i, e := range of {
		if e != valid[i] {
			out = append(out, e)
			errs = append(errs, ascending(kind, of[max(i-1, 0):min(i+2, len(of))], name))
		}
	}
	return out, errors.Join(errs...)
}

// others returns the elements of a list that another list lacks. Both lists are sorted by name.
func others[T any](of, without []*T, name func(*T) string) (out []*T) {
	i := 0
	for _, e := range of {
		for i < len(without) && name(without[i]) < name(e) {
			i++
		}
		if i == len(without) || without[i] != e {
			out = append(out, e)
		}
	}
	return out
}

func backendName(b *Backend) string { return b.Name }
func certName(c *Cert) string       { return c.Name }
func listName(l *List) string       { return l.Name }

// ascending returns an error if a list is not sorted by name, or has a name twice.
func ascending[T any](kind string, list []T, name func(T) string) error {
	for i := 1; i < len(list); i++ {
		if this, last := name(list[i]), name(list[i-1]); this <= last {
			return fmt.Errorf("%s %q comes after %q: the list must be sorted by name, with each name once", kind, this,
				last)
		}
	}
	return nil
}

// named returns the error of ascending, and an error for each name that HAProxy cannot use.
func named[T any](kind string, list []T, name func(T) string) error {
	errs := []error{ascending(kind, list, name)}
	for _, e := range list {
		if !isName(name(e)) {
			errs = append(errs, notAName(kind, name(e)))
		}
	}
	return errors.Join(errs...)
}

func notAName(kind, name string) error {
	return fmt.Errorf("%s %q: not a name that HAProxy can use; allowed are up to 200 letters, digits and _ - . :, "+
		"without a dot at the beginning", kind, name)
}

func (b Bind) validate() error {
	var errs []error
	seen := make(map[netip.AddrPort]bool)
	for _, list := range [][]netip.AddrPort{b.HTTP, b.HTTPS} {
		for _, a := range list {
			switch {
			case !a.IsValid() || a.Port() == 0:
				errs = append(errs, fmt.Errorf("listen address %q: needs an address and a port from 1 to 65535", a))
			case seen[a]:
				errs = append(errs, fmt.Errorf("listen address %s: listed twice", a))
			}
			seen[a] = true
		}
	}
	return errors.Join(errs...)
}

func (s Stream) validate(b Bind) error {
	if !isName(s.Backend) {
		return notAName(fmt.Sprintf("TCP port %d: backend", s.Port), s.Backend)
	}
	if s.Addr.IsValid() && (s.Addr.IsUnspecified() || s.Addr.Is4In6() || s.Addr.Zone() != "" || s.Port == 0) {
		return fmt.Errorf("TCP port %d at %s: it needs the address of one interface, and a port from 1 to 65535",
			s.Port, s.Addr)
	}
	if !s.Addr.IsValid() && (s.Port == 0 ||
		slices.ContainsFunc(slices.Concat(b.HTTP, b.HTTPS), func(a netip.AddrPort) bool {
			return a.Port() == s.Port
		})) {
		return fmt.Errorf("TCP port %d: HTTP or HTTPS uses it, or it is no port; allowed are the other ports "+
			"from 1 to 65535", s.Port)
	}
	return nil
}

func (t Tune) validate() error {
	var errs []error
	if t.Threads < 0 || t.Threads > 64 {
		errs = append(errs, fmt.Errorf("threads %d: HAProxy takes 1 to 64, or 0 to choose itself", t.Threads))
	}
	if t.MaxConn < 0 {
		errs = append(errs, fmt.Errorf("maxconn %d: must not be negative", t.MaxConn))
	}
	if _, err := parseBase(t.Base); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// MaxPath bounds the path of a Route, in bytes. HAProxy rejects a request if its first line is
// longer than the buffer (16 kB).
const MaxPath = 2048

// Validate returns why Render cannot write the route into a map.
func (r *Route) Validate() error {
	switch {
	case r.Host != "" && !isHost(r.Host):
		return fmt.Errorf("route %q %q: the host is not a lower-case DNS name, with or without a leading \"*.\"",
			r.Host, r.Path)
	case !strings.HasPrefix(r.Path, "/"):
		return fmt.Errorf("route %q %q: the path must begin with \"/\"", r.Host, r.Path)
	case strings.ContainsFunc(r.Path, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return fmt.Errorf("route %q %q: a space or control character in a path never matches; write it as %%XX", r.Host,
			r.Path)
	case len(r.Path) > MaxPath:
		return fmt.Errorf("route %q: the path is %d bytes long; %d is the limit", r.Host, len(r.Path), MaxPath)
	case r.Scope == "" && (r.To != Target{} || r.Pick != "" || r.Match == Terminate):
		return fmt.Errorf("route %q %q: shares, picks and terminated TLS need a scope", r.Host, r.Path)
	case r.Scope != "":
		return r.validateScoped()
	case r.Match == Passthrough && (r.Host == "" || r.Path != "/" || r.Canary != ""):
		return fmt.Errorf("route %q %q: TLS passthrough needs a host, the path \"/\" and no canary", r.Host, r.Path)
	case !slices.Contains([]PathMatch{Prefix, Exact, Begin, Regexp, Passthrough}, r.Match):
		return fmt.Errorf("route %q %q: %q is not a kind of match", r.Host, r.Path, r.Match)
	case r.Match == Regexp && CheckPath(r.Path) != nil:
		return fmt.Errorf("route %q %q: %w", r.Host, r.Path, CheckPath(r.Path))
	case r.TLSCode != 0 && !slices.Contains(RedirectCodes, r.TLSCode):
		return fmt.Errorf("route %q %q: %d is not the status of a redirect", r.Host, r.Path, r.TLSCode)
	case r.Backend != "" && !isName(r.Backend), r.Canary != "" && !isName(r.Canary):
		return fmt.Errorf("route %q %q: backend %q or canary %q is not a name that HAProxy can use", r.Host, r.Path,
			r.Backend, r.Canary)
	case r.Choice != "" && !isName(r.Choice):
		return fmt.Errorf("route %q %q: it cannot have choice %q", r.Host, r.Path, r.Choice)
	case r.CanaryWeight < 0 || r.CanaryWeight > 100:
		return fmt.Errorf("route %q %q: a weight of %d, allowed are 0 to 100", r.Host, r.Path, r.CanaryWeight)
	}
	return nil
}

// validateScoped validates the parts of a route that are different with a Scope.
func (r *Route) validateScoped() error {
	stream := r.Match == Passthrough || r.Match == Terminate
	switch {
	case !isScope(r.Scope):
		return fmt.Errorf("route %q %q: scope %q is not an address with a port", r.Host, r.Path, r.Scope)
	case r.Backend != "" || r.Canary != "" || r.CanaryWeight != 0 || r.Choice != "":
		return fmt.Errorf("route %q %q: with a scope it cannot have a backend, canary or choice", r.Host, r.Path)
	case r.Pick != "" && (!isName(r.Pick) || stream):
		return fmt.Errorf("route %q %q: it cannot have pick %q", r.Host, r.Path, r.Pick)
	case stream && (r.Path != "/" || r.TLSOnly):
		return fmt.Errorf("route %q %q: connections have only the path \"/\", and no redirect", r.Host, r.Path)
	case !stream && !slices.Contains([]PathMatch{Prefix, Exact, Begin, Regexp}, r.Match):
		return fmt.Errorf("route %q %q: %q is not a kind of match", r.Host, r.Path, r.Match)
	case r.Match == Regexp && CheckPath(r.Path) != nil:
		return fmt.Errorf("route %q %q: %w", r.Host, r.Path, CheckPath(r.Path))
	case r.TLSCode != 0 && !slices.Contains(RedirectCodes, r.TLSCode):
		return fmt.Errorf("route %q %q: %d is not the status of a redirect", r.Host, r.Path, r.TLSCode)
	}
	if err := r.To.validate(); err != nil {
		return fmt.Errorf("route %q %q: %w", r.Host, r.Path, err)
	}
	return nil
}

// Validate returns why Render cannot write the backend.
func (b *Backend) Validate() error {
	switch {
	case !isName(b.Name):
		return notAName("backend", b.Name)
	case ownBackend(b.Name):
		return fmt.Errorf("backend %q: the name is reserved", b.Name)
	}
	for _, d := range b.Directives {
		if b.TCP && !d.tcp {
			return fmt.Errorf("backend %s: the directive %q is for HTTP, and the backend for TCP", b.Name, d)
		}
	}
	if slices.Contains(b.Directives, Directive{}) {
		return fmt.Errorf("backend %s: one of its directives is empty", b.Name)
	}
	if err := errors.Join(b.Options.validate(),
		ascending("server", b.Servers, func(s Server) string { return s.Name })); err != nil {
		return fmt.Errorf("backend %s: %w", b.Name, err)
	}
	for _, s := range b.Servers {
		switch {
		case !s.Addr.IsValid() || s.Addr.Port() == 0:
			return fmt.Errorf("backend %s: server %q has no address or no port", b.Name, s.Name)
		case s.Addr.Addr().Zone() != "":
			return fmt.Errorf("backend %s: server %q has an address with a zone", b.Name, s.Name)
		case s.Source.IsValid() && s.Source.BitLen() != s.Addr.Addr().Unmap().BitLen():
			return fmt.Errorf("backend %s: server %q has the source %s, which is not of the family of its address",
				b.Name, s.Name, s.Source)
		case s.Name != NameOf(s):
			return fmt.Errorf("backend %s: server %q should be named %s after its address", b.Name, s.Name, NameOf(s))
		case s.Weight < 0 || s.Weight > MaxWeight:
			return fmt.Errorf("backend %s: server %q has a weight of %d; allowed are 0 to %d", b.Name, s.Name, s.Weight,
				MaxWeight)
		case s.Cluster == b.Cluster && s.Cluster != "":
			return fmt.Errorf("backend %s: server %q repeats the cluster of the backend", b.Name, s.Name)
		case s.Cluster != "" && !isName(s.Cluster):
			return notAName("cluster", s.Cluster)
		}
	}
	return nil
}

func (o ServerOptions) validate() error {
	switch {
	case o.MaxConn < 0:
		return fmt.Errorf("%d connections: must not be negative", o.MaxConn)
	case o.CheckInterval < 0:
		return fmt.Errorf("a check every %s: must not be negative", o.CheckInterval)
	case o.CA != "" && !isName(o.CA), o.Crt != "" && !isName(o.Crt):
		return fmt.Errorf("%q or %q is not the name of a file", o.CA, o.Crt)
	case o.SNI != "" && CheckServerName(o.SNI) != nil, o.VerifyHost != "" && CheckServerName(o.VerifyHost) != nil:
		return fmt.Errorf("%q or %q is not the name of a server", o.SNI, o.VerifyHost)
	case o.SNI != "" && o.VerifyHost != "" && o.SNI != o.VerifyHost:
		return fmt.Errorf("HAProxy verifies the name of the SNI, %q, and not %q", o.SNI, o.VerifyHost)
	case !slices.Contains([]string{"", "h1", "h2"}, o.Proto):
		return fmt.Errorf("%q is not a protocol to servers: allowed are h1 and h2", o.Proto)
	case !slices.Contains([]string{"", "proxy", "proxy-v1", "proxy-v2", "proxy-v2-ssl", "proxy-v2-ssl-cn"},
		o.SendProxy):
		return fmt.Errorf("%q is not a version of the PROXY protocol: allowed are proxy, proxy-v1, proxy-v2, "+
			"proxy-v2-ssl and proxy-v2-ssl-cn", o.SendProxy)
	}
	return nil
}

// Validate returns why HAProxy would reject the certificate: for example, it is not PEM, or the key
// does not belong to the chain (see ReadPair). One such file makes HAProxy reject its whole
// configuration.
func (c *Cert) Validate() error {
	if !isName(c.Name) || !strings.HasSuffix(c.Name, ".pem") || c.Name == defaultCert || c.Name == namedCert {
		return fmt.Errorf("certificate %q: the name must end in .pem and be made of letters, digits and _ - . : only",
			c.Name)
	}
	if c.Scope != "" && !isScope(c.Scope) {
		return fmt.Errorf("certificate %s: scope %q is not an address with a port", c.Name, c.Scope)
	}
	if c.ClientCA != "" && !isName(c.ClientCA) || (c.ClientCA != "" || c.Ciphers != "") && !fixed(c.Name) {
		return fmt.Errorf("certificate %s: with authorities of clients (%q) or with ciphers its name must begin with _",
			c.Name, c.ClientCA)
	}
	if c.ClientMatch != "" {
		if _, err := otherSubject(c.ClientMatch); err != nil || c.ClientCA == "" {
			return fmt.Errorf("certificate %s: subjects of clients without an authority, or %w", c.Name, err)
		}
	}
	if c.Ciphers != "" {
		if err := CheckCiphers(c.Ciphers); err != nil {
			return fmt.Errorf("certificate %s: %w", c.Name, err)
		}
	}
	if size := len(strings.Join(c.filters(), " ")); size > maxLine {
		return fmt.Errorf("certificate %s: its %d names do not fit on a line of %d bytes", c.Name, len(c.filters()),
			maxLine)
	}
	for _, h := range slices.Concat(c.Hosts, c.Except) {
		if !isHost(h) {
			return fmt.Errorf("certificate %s: %q is not a lower-case DNS name, with or without a leading \"*.\"",
				c.Name, h)
		}
	}
	if _, err := ReadPair(c.PEM, c.PEM); err != nil {
		return fmt.Errorf("certificate %s: %w", c.Name, err)
	}
	return nil
}

// isName reports whether s may be the name of a proxy (HAProxy manual, section 4: letters, digits,
// '-', '_', '.' and ':'), and of a file.
func isName(s string) bool {
	if s == "" || len(s) > 200 || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && !strings.ContainsRune("_-.:", rune(s[i])) {
			return false
		}
	}
	return true
}

// isHost reports whether s is a lower-case DNS name (RFC 1123, section 2.1), which may have "*" as
// its first label. It allows underscores, because they occur in practice.
func isHost(s string) bool {
	s = strings.TrimPrefix(s, "*.")
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			if c := label[i]; !isAlnum(c) && c != '-' && c != '_' || 'A' <= c && c <= 'Z' {
				return false
			}
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
