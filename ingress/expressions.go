package ingress

import (
	"slices"

	"sallyport/haproxy"
)

// ingress-nginx has one kind of paths for a host. If one of its Ingresses has use-regex or a
// rewrite-target, all paths of the host are regular expressions, in any case of their letters. Here that
// concerns the Ingresses of one namespace with annotations of ingress-nginx. No namespace changes the paths
// of another one.

// expressHosts makes regular expressions of the paths of such hosts. A host that would have too many
// expressions stays as it is, as a whole.
func (b *builder) expressHosts() {
	causes := make(map[site]*claim) // the oldest claim that makes expressions of the host's paths
	var hosts []site                // in the order of their causes
	for _, c := range b.claims {
		if !c.Expressions || c.Canary {
			continue
		}
		for _, host := range c.Hosts {
			if at := (site{c.Tenant(), host}); causes[at] == nil {
				causes[at], hosts = c, append(hosts, at)
			}
		}
	}
	if len(hosts) == 0 {
		return
	}
	n := b.countExpressions(causes)
	for _, at := range hosts {
		most := b.worlds[at.of.World].Options.Limits.RegularExpressions
		if n.host[at.host]+n.more[at] > maxPatterns || most > 0 && n.tenant[at.of]+n.more[at]*n.names[at] > most {
			b.bounds(at.of)
			b.report(causes[at], "TooManyPatterns",
				"with use-regex or rewrite-target all %d paths of host %s would be regular expressions; a host may "+
					"have %d, and a namespace as many as clusters[].ingress.limits.regularExpressions: the paths of "+
					"other Ingresses, and those of type Exact and Prefix, stay as they are",
				n.host[at.host]+n.more[at], at.host, maxPatterns)
			delete(causes, at)
			continue
		}
		n.host[at.host], n.tenant[at.of] = n.host[at.host]+n.more[at], n.tenant[at.of]+n.more[at]*n.names[at]
	}
	for _, c := range b.claims {
		expressed := func(host string) bool { return causes[site{c.Tenant(), host}] != nil }
		if c.OfNginx && slices.ContainsFunc(c.Hosts, expressed) {
			c.Express(expressed)
		}
	}
}

// expressionCount counts regular expressions.
type expressionCount struct {
	host   map[string]int // that a host has
	tenant map[tenant]int // that a namespace has
	more   map[site]int   // that come with the paths of a host
	names  map[site]int   // how often the paths of a host are there: once, and for each further name (server-alias)
}

func (b *builder) countExpressions(causes map[site]*claim) expressionCount {
	n := expressionCount{
		host: make(map[string]int), tenant: make(map[tenant]int), more: make(map[site]int), names: make(map[site]int),
	}
	for _, c := range b.claims {
		of := c.Tenant()
		for _, p := range c.Paths {
			at := site{of, p.Host}
			switch {
			case p.Match == haproxy.Regexp:
				n.host[p.Host]++
				n.tenant[of]++
			case causes[at] != nil && c.OfNginx && p.Expressible():
				n.more[at]++
			}
		}
		for i, host := range c.Hosts {
			at := site{of, host}
			n.names[at] = max(n.names[at], 1)
			if i == 0 {
				n.names[at] += len(c.Aliases)
			}
		}
	}
	return n
}
