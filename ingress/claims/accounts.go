package claims

import (
	"cmp"
	"fmt"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// An Account counts the things that a tenant has so far.
type Account struct {
	hosts, paths, regexps, conditions, backends, certs quota
	acls                                               bool               // a route-acl has an effect
	bytes                                              int                // of configuration
	weighed                                            map[BackendOf]bool // the backends that these are of
}

// NewAccount returns an account with the limits that Options have, and without things.
func NewAccount(o input.Options) *Account {
	l := o.Limits
	return &Account{
		acls:    o.OneTenant,
		weighed: make(map[BackendOf]bool),
		hosts:   quota{limit: "hosts", noun: "hosts", most: l.Hosts},
		paths:   quota{limit: "paths", noun: "paths", most: l.Paths},
		regexps: quota{
			limit: "regularExpressions", noun: "regular expressions as paths",
			most: l.RegularExpressions,
		},
		conditions: quota{limit: "conditions", noun: "paths with a condition", most: l.Conditions},
		backends:   quota{limit: "backends", noun: "backends", most: l.Backends},
		certs:      quota{limit: "certificates", noun: "certificates", most: l.Certificates},
	}
}

// A quota counts the things of one kind, and those of the present claim that are beyond
// the limit.
type quota struct {
	limit, noun string // limit is its key in the configuration file
	most        int    // if 0, there is no bound, and nothing is counted
	have        map[any]bool
	more        int // things that nothing else can have, which are not in the map
	refused     int
	first       any // the first that was refused, to be printed
}

func (q *quota) has(thing any) bool { return q.most == 0 || q.have[thing] }

// admit reports whether a thing is within the limit. It counts a thing only once. The argument what
// names the thing in a sentence.
func (q *quota) admit(thing, what any) bool {
	if q.has(thing) {
		return true
	}
	if len(q.have)+q.more >= q.most {
		if q.refused++; q.refused == 1 {
			q.first = what
		}
		return false
	}
	if q.have == nil {
		q.have = make(map[any]bool)
	}
	q.have[thing] = true
	return true
}

// admitAll counts n things that nothing else can have. The function what returns the name of one of them
// for a sentence.
func (q *quota) admitAll(n int, what func(i int) any) {
	if q.most == 0 {
		return
	}
	room := max(q.most-len(q.have)-q.more, 0)
	if n > room {
		if q.refused == 0 {
			q.first = what(room)
		}
		q.refused, n = q.refused+n-room, room
	}
	q.more += n
}

// A BackendOf stands for at most one backend. An Ingress with keys may have one of
// its own.
type BackendOf struct {
	Ingress string // "" if all Ingresses share the backend
	To      Reference
}

// A subject is an expression for the subjects of the certificates of clients.
type subject string

// Admit counts a claim against the limits. It returns the part of the claim that is
// within them, and a sentence for each limit that something is beyond.
func (a *Account) Admit(c *Claim, conditional func(service ServiceKey) bool) (kept Claim, refused []string) {
	kept = *c
	kept.Paths, kept.Hosts, kept.TLS = nil, nil, nil
	owner := ""
	if !c.Layer.Empty() {
		owner = c.Ref.Name
	}
	if to := c.Fallback; to != nil && !a.backends.admit(BackendOf{owner, *to}, DefaultOf("")) {
		kept.Fallback = nil
	}
	for _, host := range c.Hosts {
		if a.hosts.admit(host, cmp.Or(host, "any host")) {
			kept.Hosts = append(kept.Hosts, host)
		}
	}
	picks := annotations.PicksRequests(c.Layer)
	conditions := func(to ServiceKey) bool { return a.conditions.most > 0 && (picks || a.acls && conditional(to)) }
	for i := range c.Paths {
		path := &c.Paths[i]
		if a.hosts.has(path.Host) &&
			a.paths.admit(path, path) &&
			(path.Match != haproxy.Regexp || a.regexps.admit(path, path)) &&
			(!conditions(path.To.Service) || a.conditions.admit(path, path)) &&
			a.backends.admit(BackendOf{owner, path.To}, path) {
			kept.Paths = append(kept.Paths, *path)
		}
	}
	ciphers, _ := annotations.ClientCiphers(c.Layer)
	match := annotations.ClientMatch(c.Layer)
	// Requests for every host are compared with the hosts of each expression.
	if match != "" && len(c.TLS) > 0 && !a.conditions.admit(subject(match), "client-crt-match of its certificates") {
		return kept, a.refusals("Ingress")
	}
	for _, t := range c.TLS {
		// A Secret takes one certificate for each client-ca, each client-crt-match and each list of ciphers that it is
		// served with.
		as := [4]string{t.Secret, annotations.ClientCAOf(c.Layer), match, ciphers}
		if t.Secret != "" && !a.certs.admit(as, "Secret "+t.Secret) {
			continue
		}
		one := TLS{Secret: t.Secret}
		for _, host := range t.Hosts {
			if a.hosts.admit(host, cmp.Or(host, "any host")) {
				one.Hosts = append(one.Hosts, host)
			}
		}
		if len(one.Hosts) > 0 || len(t.Hosts) == 0 { // without hosts it would be for the names of the certificate
			kept.TLS = append(kept.TLS, one)
		}
	}
	return kept, a.refusals("Ingress")
}

// refusals returns a sentence for each limit that something of an object is beyond.
func (a *Account) refusals(kind string) (refused []string) {
	for _, q := range []*quota{&a.hosts, &a.paths, &a.regexps, &a.conditions, &a.backends, &a.certs} {
		if q.refused > 0 {
			refused = append(refused,
				fmt.Sprintf("%d %s (clusters[].ingress.limits.%s): %d of this %s are not served, the first is %s",
					q.most, q.noun, q.limit, q.refused, kind, q.first))
			q.refused = 0
		}
	}
	return refused
}

// Bears counts the bytes of configuration that the backends of a claim take in addition to those of
// the claims before. own are the bytes of its keys in one backend, and bytesOf returns those of the keys of a
// Service. Bears reports whether they are within the limit; if not, they count for nothing.
func (a *Account) Bears(c *Claim, own, most int, bytesOf func(ServiceKey) int) bool {
	owner := ""
	if !c.Layer.Empty() {
		owner = c.Ref.Name
	}
	var added []BackendOf
	c.Bytes = 0
	weigh := func(to Reference) {
		of := BackendOf{owner, to}
		if bytes := own + bytesOf(to.Service); bytes > 0 && a.Weigh(of) {
			added, c.Bytes = append(added, of), c.Bytes+bytes
		}
	}
	for _, path := range c.Paths {
		weigh(path.To)
	}
	if c.Fallback != nil {
		weigh(*c.Fallback)
	}
	return a.Spend(c.Bytes, most, added)
}

// Weigh reports whether the bytes of a backend are not counted yet, and notes that they are.
func (a *Account) Weigh(of BackendOf) bool {
	if a.weighed[of] {
		return false
	}
	a.weighed[of] = true
	return true
}

// Spend counts bytes of configuration, and reports whether they are within the limit. If not, they and
// the backends that were weighed for them count for nothing.
func (a *Account) Spend(bytes, most int, weighed []BackendOf) bool {
	if most > 0 && a.bytes+bytes > most {
		for _, of := range weighed {
			delete(a.weighed, of)
		}
		return false
	}
	a.bytes += bytes
	return true
}

// AdmitRoute counts a route against the limits. It returns a sentence for each limit that something
// is beyond.
func (a *Account) AdmitRoute(r *gateway.Route) (refused []string) {
	var matches, patterns []string // paths
	for _, rule := range r.Rules {
		for i := range rule.Matches {
			m := &rule.Matches[i]
			matches = append(matches, m.Path)
			if m.Type == gateway.Regexp {
				patterns = append(patterns, m.Path)
			}
		}
	}
	for _, l := range r.Listeners() {
		for _, host := range r.HostsAt(l) {
			name := cmp.Or(host, "any host")
			a.hosts.admit([2]any{l, host}, name)
			a.paths.admitAll(len(matches), func(i int) any { return name + matches[i] })
			a.regexps.admitAll(len(patterns), func(i int) any { return patterns[i] })
		}
	}
	conditional := 0
	for _, rule := range r.Rules {
		conditional += rule.Conditions()
	}
	if conditional > 0 {
		for _, at := range r.SharedHosts() { // elsewhere a condition is a row
			a.conditions.admitAll(conditional, func(int) any { return cmp.Or(at.Host, "any host") })
		}
	}
	for _, rule := range r.Rules {
		refs := rule.All()
		a.backends.admitAll(len(refs), func(i int) any { return "Service " + refs[i].Service.String() })
	}
	return a.refusals(r.Kind)
}

// Amounts are how many things a namespace may have.
type Amounts struct{ Hosts, paths, regexps, backends, certs, Bytes int }

// Within reports whether no limit is exceeded.
func (n *Amounts) Within(limits *input.Limits) bool {
	fits := func(count, most int) bool { return most == 0 || count <= most }
	return fits(n.Hosts, limits.Hosts) && fits(n.paths, limits.Paths) && fits(n.backends, limits.Backends) &&
		fits(n.regexps, limits.RegularExpressions) && fits(n.certs, limits.Certificates) &&
		fits(n.Bytes, limits.ConfigBytes)
}

// CountClaim adds the things of a claim. Each path counts for a backend of its own.
func (n *Amounts) CountClaim(c *Claim) {
	n.Hosts, n.paths, n.backends = n.Hosts+len(c.Names), n.paths+len(c.Paths), n.backends+len(c.Paths)
	if c.Fallback != nil {
		n.backends++
	}
	n.certs, n.Bytes, n.regexps = n.certs+len(c.TLS), n.Bytes+c.Bytes, n.regexps+c.patterns()
}

// Count adds the things of a route. Each of its hostnames at a listener takes a path, even if no rule of
// it looks at paths (gateway.World.Paths).
func (n *Amounts) Count(r *gateway.Route) {
	matches, patterns := 0, 0
	for _, rule := range r.Rules {
		matches += len(rule.Matches)
		n.backends += rule.Size()
		for i := range rule.Matches {
			if rule.Matches[i].Type == gateway.Regexp {
				patterns++
			}
		}
	}
	for _, l := range r.Listeners() {
		hosts := len(r.HostsAt(l))
		n.Hosts, n.paths, n.regexps = n.Hosts+hosts, n.paths+hosts*max(matches, 1), n.regexps+hosts*patterns
	}
}
