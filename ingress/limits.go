package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// Limits bound what one namespace may bring: all namespaces share HAProxy's memory,
// its reloads, and the time that some requests take. 0 is no bound.
type Limits struct {
	// Of all Ingresses of the namespace together.
	Hosts, Paths, RegularExpressions, Conditions, Backends, Servers, Certificates int
	// Of one annotation.
	Lines, ListEntries int
	// Of one Secret.
	SecretBytes int
}

// A tenant is a namespace of a cluster.
type tenant struct {
	world     int
	namespace string
}

// limit removes from the claims of each namespace what is beyond its limits. The
// older claims are counted first: a younger one never ends what is served already.
func (b *builder) limit() {
	over := b.excessive()
	if len(over) == 0 {
		return
	}
	accounts := make(map[tenant]*account, len(over))
	for _, c := range b.claims {
		of := tenant{c.world, c.ref.Namespace}
		if !over[of] {
			continue
		}
		a := accounts[of]
		if a == nil {
			a = &account{limits: b.worlds[c.world].options.Limits, hosts: make(map[string]bool), backends: make(map[backendOf]bool), certs: make(map[[2]string]bool)}
			accounts[of] = a
		}
		kept, refused := a.admit(c, func(service serviceKey) bool {
			s, _ := find(b.worlds[c.world].Services, service)
			return annotations.Conditional(b.layer(s))
		})
		if len(refused) > 0 {
			*c = kept
			b.report(c, "LimitReached", "the Ingresses of namespace %s bring more than %s", c.ref.Namespace, strings.Join(refused, "; and more than "))
		}
	}
}

// excessive returns the tenants that may be over a limit. It counts fast, and may
// count too much but never too little.
func (b *builder) excessive() map[tenant]bool {
	type sum struct{ hosts, paths, regexps, backends, certs int }
	sums := make(map[tenant]*sum)
	for _, c := range b.claims {
		of := tenant{c.world, c.ref.Namespace}
		s := sums[of]
		if s == nil {
			s = new(sum)
			sums[of] = s
		}
		s.hosts += len(c.hosts)
		s.paths += len(c.paths)
		s.backends += len(c.paths) + 1
		s.certs += len(c.tls)
		for _, t := range c.tls {
			s.hosts += len(t.hosts)
		}
		for i := range c.paths {
			if c.paths[i].match == haproxy.Regexp {
				s.regexps++
			}
		}
	}
	over := make(map[tenant]bool)
	for of, s := range sums {
		o := b.worlds[of.world].options
		conditions := 0
		if o.OneTenant { // else no condition is used
			conditions = s.paths
		}
		for _, bound := range [][2]int{
			{s.hosts, o.Limits.Hosts},
			{s.paths, o.Limits.Paths},
			{s.regexps, o.Limits.RegularExpressions},
			{conditions, o.Limits.Conditions},
			{s.backends, o.Limits.Backends},
			{s.certs, o.Limits.Certificates},
		} {
			if bound[1] > 0 && bound[0] > bound[1] {
				over[of] = true
			}
		}
	}
	return over
}

// An account counts what a tenant has so far.
type account struct {
	limits   Limits
	hosts    map[string]bool
	backends map[backendOf]bool
	certs    map[[2]string]bool // of a Secret, and the client-ca that it is served with

	paths, regexps, conditions int
}

// A backendOf stands for at most one backend. An Ingress with keys may have one of
// its own.
type backendOf struct {
	ingress string // empty: that of all Ingresses
	to      reference
}

// A shortage counts the parts of an Ingress that are beyond one limit.
type shortage struct {
	limit, first string
	most, count  int
}

// admit counts a claim against the limits. It returns the part of the claim that is
// within them, and a sentence for each limit that something is beyond.
func (a *account) admit(c *claim, conditional func(service serviceKey) bool) (kept claim, refused []string) {
	granted := *c
	granted.paths, granted.hosts, granted.tls = nil, nil, nil
	var short []*shortage
	refuse := func(limit string, most int, what fmt.Stringer) {
		for _, s := range short {
			if s.limit == limit {
				s.count++
				return
			}
		}
		short = append(short, &shortage{limit: limit, most: most, count: 1, first: what.String()})
	}
	host := func(name string, what fmt.Stringer) bool {
		if most := a.limits.Hosts; most > 0 && !a.hosts[name] && len(a.hosts) >= most {
			refuse("hosts", most, what)
			return false
		}
		a.hosts[name] = true
		return true
	}
	backend := func(to reference, what fmt.Stringer) bool {
		of := backendOf{to: to}
		if !c.layer.Empty() {
			of.ingress = c.ref.Name
		}
		if most := a.limits.Backends; most > 0 && !a.backends[of] && len(a.backends) >= most {
			refuse("backends", most, what)
			return false
		}
		a.backends[of] = true
		return true
	}
	counted := func(n *int, limit string, most int, what fmt.Stringer) bool {
		if most > 0 && *n >= most {
			refuse(limit, most, what)
			return false
		}
		*n++
		return true
	}

	if to := c.fallback; to != nil && !backend(*to, defaultOf("")) {
		granted.fallback = nil
	}
	for _, name := range c.hosts {
		if host(name, hostNamed(name)) {
			granted.hosts = append(granted.hosts, name)
		}
	}
	for _, path := range c.paths {
		if a.hosts[path.host] &&
			counted(&a.paths, "paths", a.limits.Paths, path) &&
			(path.match != haproxy.Regexp || counted(&a.regexps, "regularExpressions", a.limits.RegularExpressions, path)) &&
			(!conditional(path.to.service) || counted(&a.conditions, "conditions", a.limits.Conditions, path)) &&
			backend(path.to, path) {
			granted.paths = append(granted.paths, path)
		}
	}
	for _, t := range c.tls {
		cert := [2]string{t.secret, annotations.ClientCAOf(c.layer)}
		if most := a.limits.Certificates; t.secret != "" && most > 0 && !a.certs[cert] && len(a.certs) >= most {
			refuse("certificates", most, secretNamed(t.secret))
			continue
		}
		a.certs[cert] = a.certs[cert] || t.secret != ""
		one := tlsClaim{secret: t.secret}
		for _, name := range t.hosts {
			if host(name, hostNamed(name)) {
				one.hosts = append(one.hosts, name)
			}
		}
		if len(one.hosts) > 0 || len(t.hosts) == 0 { // without hosts it would be for the names of the certificate
			granted.tls = append(granted.tls, one)
		}
	}
	for _, s := range short {
		refused = append(refused, fmt.Sprintf("%d %s (clusters[].ingress.limits.%s): of this one %d are not served, the first is %s", s.most, limitNouns[s.limit], s.limit, s.count, s.first))
	}
	return granted, refused
}

// bound removes the servers beyond the limit of each namespace. Backends that come
// first by name keep their servers. A server takes memory in HAProxy even while it is
// closed. Parts that did not change come back with the same pointers.
func (c *Compiler) bound(parts []part) []part {
	have := make(map[tenant]int)
	bounded := make(map[*haproxy.Backend]*haproxy.Backend)
	for i, n := range c.routing.needs {
		b, of := parts[i].backend, tenant{n.world, n.service.namespace}
		most, count := c.worlds[n.world].options.Limits.Servers, len(b.Servers)
		rest := most - have[of]
		have[of] += count
		if most == 0 || count <= rest {
			continue
		}
		if len(bounded) == 0 {
			parts = slices.Clone(parts)
		}
		rest = max(rest, 0)
		less := c.bounded[b]
		if less == nil || len(less.Servers) != rest {
			fewer := *b
			fewer.Servers = b.Servers[:rest:rest]
			less = &fewer
		}
		bounded[b], parts[i].backend = less, less
		parts[i].problems = append(slices.Clip(parts[i].problems), Problem{
			ObjectRef: n.ref(b.Cluster), Reason: "LimitReached",
			Why: fmt.Sprintf("the backends of namespace %s bring more than %d servers (clusters[].ingress.limits.servers): of %s %d are not served",
				n.service.namespace, most, b.Origin, count-rest),
		})
	}
	c.bounded = bounded
	return parts
}

// limitNouns names, by its key in the configuration file, the things that a limit counts.
var limitNouns = map[string]string{
	"hosts": "hosts", "paths": "paths", "regularExpressions": "regular expressions as paths", "conditions": "paths with a route-acl",
	"backends": "backends", "certificates": "certificates",
}

type hostNamed string

func (h hostNamed) String() string { return cmp.Or(string(h), "any host") }

type secretNamed string

func (s secretNamed) String() string { return "Secret " + string(s) }

// mostTold bounds the problems of one object that are reported.
const mostTold = 20

// brief keeps the first mostTold problems of each object, and counts the rest. The
// problems of one object stand together. One object must not fill the status, nor
// use up the Events of all others.
func brief(problems []Problem) []Problem {
	var short []Problem
	for from := 0; from < len(problems); {
		to := from + 1
		for to < len(problems) && problems[to].ObjectRef == problems[from].ObjectRef {
			to++
		}
		if to-from <= mostTold {
			short = append(short, problems[from:to]...)
		} else {
			short = append(short, problems[from:from+mostTold]...)
			short = append(short, Problem{ObjectRef: problems[from].ObjectRef, Reason: "MoreProblems", Why: fmt.Sprintf("there are %d more problems with this object: mend the first %d, then see the next", to-from-mostTold, mostTold)})
		}
		from = to
	}
	return short
}
