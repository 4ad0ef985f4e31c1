package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
)

// A tenant is a namespace of a cluster.
type tenant struct {
	world     int
	namespace string
}

// limit removes from the claims of each namespace everything beyond its limits. It closes a claim
// if its keys are beyond a limit. Older claims are counted first, so a younger claim never ends a
// claim that is served.
func (b *builder) limit() {
	unguarded := make(map[tenant]map[string]*claim) // hosts with a left-out guarded path, and its claim
	for _, c := range b.claims {
		w, of := b.worlds[c.world], tenant{c.world, c.ref.Namespace}
		if c.route != nil {
			b.limitShared(c)
			continue
		}
		if b.accounts[of] == nil {
			b.accounts[of] = newAccount(w.Options)
		}
		layerOf := func(service serviceKey) annotations.Layer {
			s, _ := input.Find(w.Services, service)
			return b.layer(s)
		}
		kept, refused := b.accounts[of].admit(c, func(service serviceKey) bool {
			return annotations.Conditional(layerOf(service))
		})
		if len(refused) > 0 {
			if c.layer.Guards() {
				if unguarded[of] == nil {
					unguarded[of] = make(map[string]*claim)
				}
				for _, host := range c.hosts {
					unguarded[of][host] = c
				}
			}
			*c, b.limited = kept, true
			b.report(c, "LimitReached", "the Ingresses of namespace %s have more than %s", c.ref.Namespace,
				strings.Join(refused, "; and more than "))
		}
		if most := w.Options.Limits.ConfigBytes; most > 0 && !c.closed && !b.accounts[of].bears(c, most, layerOf) {
			c.closed, b.limited = true, true
			b.report(c, "LimitReached",
				"the keys of the Ingresses of namespace %s, and of their Services, take more than %d bytes of "+
					"HAProxy's configuration "+
					"(clusters[].ingress.limits.configBytes), which repeats them for each backend; with the %d bytes "+
					"of this Ingress: "+
					"all clients of its paths are rejected until its keys are shorter, or it leads to fewer "+
					"Services; older Ingresses are counted first",
				c.ref.Namespace, most, c.bytes)
		}
	}
	b.closeUnguarded(unguarded)
}

// closeUnguarded closes all claims to a host if a guarded path of the host is left out. Otherwise a
// wider path of the same namespace would serve these requests without the guard.
func (b *builder) closeUnguarded(hosts map[tenant]map[string]*claim) {
	for _, c := range b.claims {
		for _, host := range c.hosts {
			left := hosts[tenant{c.world, c.ref.Namespace}][host]
			if left == nil || c.closed {
				continue
			}
			c.closed = true
			b.report(c, "LimitReached",
				"all clients of this %s are rejected, because paths of host %s are beyond a limit of "+
					"the namespace, "+
					"and Ingress %s restricts access to them: see what is told of that one", c.ref.Kind,
				cmp.Or(host, "any host"), left.ref.Name)
		}
	}
}

// An account counts the things that a tenant has so far.
type account struct {
	hosts, paths, regexps, conditions, backends, certs quota
	bytes                                              int                // of configuration
	weighed                                            map[backendOf]bool // the backends that these are of
}

func newAccount(o Options) *account {
	l := o.Limits
	if !o.OneTenant {
		l.Conditions = 0 // no condition is used
	}
	return &account{
		weighed: make(map[backendOf]bool),
		hosts:   quota{limit: "hosts", noun: "hosts", most: l.Hosts},
		paths:   quota{limit: "paths", noun: "paths", most: l.Paths},
		regexps: quota{
			limit: "regularExpressions", noun: "regular expressions as paths",
			most: l.RegularExpressions,
		},
		conditions: quota{limit: "conditions", noun: "paths with a route-acl", most: l.Conditions},
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
	if len(q.have) >= q.most {
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

// A backendOf stands for at most one backend. An Ingress with keys may have one of
// its own.
type backendOf struct {
	ingress string // "" if all Ingresses share the backend
	to      reference
}

// admit counts a claim against the limits. It returns the part of the claim that is
// within them, and a sentence for each limit that something is beyond.
func (a *account) admit(c *claim, conditional func(service serviceKey) bool) (kept claim, refused []string) {
	kept = *c
	kept.paths, kept.hosts, kept.tls = nil, nil, nil
	owner := ""
	if !c.layer.Empty() {
		owner = c.ref.Name
	}
	if to := c.fallback; to != nil && !a.backends.admit(backendOf{owner, *to}, defaultOf("")) {
		kept.fallback = nil
	}
	for _, host := range c.hosts {
		if a.hosts.admit(host, cmp.Or(host, "any host")) {
			kept.hosts = append(kept.hosts, host)
		}
	}
	for i := range c.paths {
		path := &c.paths[i]
		if a.hosts.has(path.host) &&
			a.paths.admit(path, path) &&
			(path.match != haproxy.Regexp || a.regexps.admit(path, path)) &&
			(a.conditions.most == 0 || !conditional(path.to.service) || a.conditions.admit(path, path)) &&
			a.backends.admit(backendOf{owner, path.to}, path) {
			kept.paths = append(kept.paths, *path)
		}
	}
	for _, t := range c.tls {
		// A Secret takes one certificate for each client-ca that it is served with.
		if t.secret != "" && !a.certs.admit([2]string{t.secret, annotations.ClientCAOf(c.layer)}, "Secret "+t.secret) {
			continue
		}
		one := tlsClaim{secret: t.secret}
		for _, host := range t.hosts {
			if a.hosts.admit(host, cmp.Or(host, "any host")) {
				one.hosts = append(one.hosts, host)
			}
		}
		if len(one.hosts) > 0 || len(t.hosts) == 0 { // without hosts it would be for the names of the certificate
			kept.tls = append(kept.tls, one)
		}
	}
	return kept, a.refusals("Ingress")
}

// refusals returns a sentence for each limit that something of an object is beyond.
func (a *account) refusals(kind string) (refused []string) {
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

// bears counts the bytes of configuration that the backends of a claim take in addition to those of
// the claims before. It reports whether they are within the limit; if not, they count for nothing.
func (a *account) bears(c *claim, most int, layerOf func(serviceKey) annotations.Layer) bool {
	owner, own := "", c.layer.Bytes()
	if !c.layer.Empty() {
		owner = c.ref.Name
	}
	var added []backendOf
	c.bytes = 0
	weigh := func(to reference) {
		of := backendOf{owner, to}
		if bytes := own + layerOf(to.service).Bytes(); bytes > 0 && !a.weighed[of] {
			a.weighed[of] = true
			added, c.bytes = append(added, of), c.bytes+bytes
		}
	}
	for _, path := range c.paths {
		weigh(path.to)
	}
	if c.fallback != nil {
		weigh(*c.fallback)
	}
	if a.bytes+c.bytes > most {
		for _, of := range added {
			delete(a.weighed, of)
		}
		return false
	}
	a.bytes += c.bytes
	return true
}

// bound returns the parts without the servers beyond the limit of each namespace, and how many
// servers these are. Backends that come first by name keep their servers. A server takes memory
// in HAProxy even while it is closed. Parts that did not change come back with the same pointers.
func (c *Compiler) bound() (parts []part, servers int) {
	over := make(map[tenant]int) // how many servers more the namespace has a place for
	for of, count := range c.servers {
		most := c.worlds[of.world].Options.Limits.Servers
		if most > 0 && count > most {
			over[of], count = most, most
		}
		servers += count
	}
	if len(over) == 0 { // as nearly always: nobody looks at every part
		c.smaller.bounded = nil
		return c.parts, servers
	}
	bounded := make(map[*haproxy.Backend]*haproxy.Backend)
	parts = slices.Clone(c.parts)
	for i := range c.routing.needs {
		n, b := &c.routing.needs[i], parts[i].backend
		rest, limited := over[n.tenant()]
		if !limited {
			continue
		}
		count := len(b.Servers)
		over[n.tenant()] = max(rest-count, 0)
		if count <= rest {
			continue
		}
		bounded[b] = fewer(b, rest, c.smaller.bounded[b])
		parts[i].backend = bounded[b]
		parts[i].problems = append(slices.Clip(parts[i].problems), Problem{
			ObjectRef: n.ref(b.Cluster), Reason: "LimitReached",
			Why: fmt.Sprintf("the backends of namespace %s have more than %d servers "+
				"(clusters[].ingress.limits.servers): %d servers of %s are not served",
				n.service.Namespace, c.worlds[n.world].Options.Limits.Servers, count-rest, b.Origin),
		})
	}
	c.smaller.bounded = bounded
	return parts, servers
}

// mostTold bounds the problems of one object that are reported, and mostOfNamespace those of a
// namespace.
const (
	mostTold        = 20
	mostOfNamespace = 10_000
)

// brief keeps the first problems of each object, and of each namespace, and counts the rest.
// problems are sorted by namespace, and those of one object stand together. The bounds keep
// one object, and the objects of one namespace, from filling the status and using up the Events.
func brief(problems []Problem) []Problem {
	var short []Problem
	count, ofNamespace, left := 0, 0, 0
	for i, p := range problems {
		if i == 0 || p.ObjectRef != problems[i-1].ObjectRef {
			count = 0
		}
		if i == 0 || p.Cluster != problems[i-1].Cluster || p.Namespace != problems[i-1].Namespace {
			ofNamespace, left = 0, 0
		}
		next := Problem{}
		if i+1 < len(problems) {
			next = problems[i+1]
		}
		last, lastOfNamespace := p.ObjectRef != next.ObjectRef,
			p.Cluster != next.Cluster || p.Namespace != next.Namespace
		count++
		switch {
		case ofNamespace >= mostOfNamespace:
			left++
		case count <= mostTold:
			ofNamespace++
			short = append(short, p)
		case last:
			ofNamespace++
			short = append(short, Problem{
				ObjectRef: p.ObjectRef, Reason: "MoreProblems",
				Why: fmt.Sprintf("there are %d more problems with this object: correct the first %d to see the next",
					count-mostTold, mostTold),
			})
		}
		if lastOfNamespace && left > 0 {
			short = append(short, Problem{
				ObjectRef: p.ObjectRef, Reason: "MoreProblems",
				Why: fmt.Sprintf("there are %d more problems with objects of namespace %s: correct some of the first "+
					"%d to see them", left, p.Namespace, mostOfNamespace),
			})
		}
	}
	return short
}
