package ingress

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/listen"
)

// Gateways at the addresses of Ingresses
//
// A Gateway may share the addresses of Ingresses (GatewayOptions.Shared). At these addresses each host
// belongs to one party, and each path of a host to one object of any kind. A route at such a Gateway is
// therefore a claim like that of an Ingress, and the same steps decide about it. The ports are those of
// the Bind.
//
// A route that only HTTPS listeners take is like an Ingress with a certificate: plain HTTP for its
// paths is redirected. A rule that redirects to https takes plain HTTP, and no requests over TLS. It
// also sets the status of the redirects below its path.

// sharesAddresses reports whether a Gateway of a world shares the addresses of Ingresses. It does if it
// asks for no address, or for nothing but these addresses.
func (w *world) sharesAddresses(g *gatewayv1.Gateway) bool {
	return len(w.Options.Gateway.Shared) > 0 &&
		!slices.ContainsFunc(g.Spec.Addresses, func(a gatewayv1.GatewaySpecAddress) bool {
			addr, err := netip.ParseAddr(a.Value)
			return !gateway.IsIP(a.Type) ||
				a.Value != "" && (err != nil || !slices.Contains(w.Options.Gateway.Shared, addr))
		})
}

// refuseShared returns why no listener with a protocol may have a port at the addresses of Ingresses.
func (c *Compiler) refuseShared(port uint16, protocol gatewayv1.ProtocolType) *gateway.Refusal {
	kind := listen.KindOf(protocol)
	if protocol == gatewayv1.HTTPProtocolType || protocol == gatewayv1.HTTPSProtocolType {
		if c.Shared[port] == kind {
			return nil
		}
		return &gateway.Refusal{
			Reason: string(gatewayv1.ListenerReasonPortUnavailable),
			Why: fmt.Sprintf("port %d is none of those for %s at the addresses of Ingresses, which the Gateway shares "+
				"(haproxy.http, haproxy.https)", port, protocol),
		}
	}
	return &gateway.Refusal{
		Reason: string(gatewayv1.ListenerReasonUnsupportedProtocol),
		Why: fmt.Sprintf("protocol %s is not supported at the addresses of Ingresses, which the Gateway shares; "+
			"allowed are HTTP and HTTPS", protocol),
	}
}

// sharedRoutes yields the claims of the routes of a world at Gateways that share the addresses of
// Ingresses.
func (b *builder) sharedRoutes(world int) iter.Seq[*claim] {
	return func(yield func(*claim) bool) {
		if b.attached[world] == nil {
			return
		}
		for _, r := range b.attached[world].Routes {
			if c := b.readRoute(world, r); c != nil && !yield(c) {
				return
			}
		}
	}
}

// readRoute reads the claim of a route. It returns nil if the route claims nothing.
func (b *builder) readRoute(world int, r *gateway.Route) *claim {
	hosts := r.SharedHosts()
	if len(hosts) == 0 {
		return nil
	}
	c := &claim{Petitioner: b.petitionerOf(world, r.Kind, r.Object), Route: r}
	for _, h := range hosts {
		c.Names = append(c.Names, h.Host)
		if !h.Plain && len(h.TLS) == 0 {
			continue
		}
		c.Hosts = append(c.Hosts, h.Host)
		b.addCertificate(c, h)
		for _, rule := range r.Rules {
			at := &claims.RuleAt{Rule: rule, Gate: b.gateOf(world, h.Gateway), TLSOnly: !h.Plain}
			if h.Plain {
				at.Redirects = listen.OnlyToTLS(rule)
			}
			for i := range rule.Matches {
				m := &rule.Matches[i]
				path := pathClaim{Host: h.Host, Path: m.Path, Match: listen.MatchOf(m.Type), Rule: at}
				like := haproxy.Route{Host: path.Host, Path: path.Path, Match: path.Match}
				if err := like.Validate(); err != nil {
					rule.Drop(fmt.Sprintf("path %s cannot be used: %v", m.Path, err))
					continue
				}
				if !m.Bare() {
					path.If = m
				}
				c.Paths = append(c.Paths, path)
			}
		}
	}
	slices.Sort(c.Names)
	return c
}

// gateOf returns a Gateway of a world as a gate.
func (b *builder) gateOf(world int, g *gateway.Gateway) *gate {
	if b.gateways.sharing == nil {
		b.gateways.sharing = make(map[*gateway.Gateway]*gate)
	}
	if b.gateways.sharing[g] == nil {
		b.gateways.sharing[g] = &gate{Petitioner: b.petitionerOf(world, "Gateway", g.Object), Gateway: g}
	}
	return b.gateways.sharing[g]
}

// addCertificate adds the certificates of listeners for a host to a claim.
func (b *builder) addCertificate(c *claim, h gateway.SharedHost) {
	for _, l := range h.TLS {
		if len(l.Certificates) == 0 {
			continue
		}
		best := l.Certificates[0]
		for _, key := range l.Certificates {
			if read, why := b.pairIn(b.worlds[c.World], key); why == "" && claims.Covers(read.Names, h.Host) {
				best = key
				break
			}
		}
		if h.Host == "" { // the names of the certificate itself
			c.TLS = append(c.TLS, claims.TLS{Secret: best.Name, Namespace: best.Namespace})
			continue
		}
		i := slices.IndexFunc(c.TLS, func(t claims.TLS) bool {
			return t.Secret == best.Name && t.Namespace == best.Namespace && len(t.Hosts) > 0
		})
		if i < 0 {
			i, c.TLS = len(c.TLS), append(c.TLS, claims.TLS{Secret: best.Name, Namespace: best.Namespace})
		}
		c.TLS[i].Hosts = append(c.TLS[i].Hosts, h.Host)
	}
}

// grantRule gives a path to the claim of a route, or reports why not.
func (b *builder) grantRule(c *claim, path pathClaim) {
	key := path.Key()
	switch {
	case path.If != nil:
		b.grantCondition(c, path)
		return
	case path.Rule.Redirects != nil:
		return // see grantRedirects
	}
	if first := cmp.Or(b.owner[key], b.claimed[key]); first != nil && first != c &&
		(b.owner[key] != nil || !claims.Together(first, c)) {
		b.conflict(c, path, first)
		return
	}
	if b.owner[key] == c || !b.tries(c, path) { // an earlier rule takes its requests
		return
	}
	b.owner[key], c.Effective = c, true
	route := haproxy.Route{Host: key.Host, Path: key.Path, Match: key.Match, TLSOnly: path.Rule.TLSOnly}
	route.Plain = b.isOpen(c, path) && !route.TLSOnly && b.demanded.Required()
	route.Backend, route.Canary, route.CanaryWeight = b.sharesOf(c, path)
	b.routed[key] = route
}

// grantCondition gives the requests for a path that meet a condition to the claim of a route, or reports why
// not. If only listeners for HTTPS take the route, plain HTTP never meets the condition.
func (b *builder) grantCondition(c *claim, path pathClaim) {
	key := path.Key()
	if first := cmp.Or(b.claimed[key], b.owner[key]); first != nil && !claims.Together(first, c) {
		b.conflict(c, path, first)
		return
	}
	text, err := listen.WhenOf(path.If).Text(path.Rule.TLSOnly)
	if err != nil {
		path.Rule.Drop(fmt.Sprintf("a match cannot be used at the addresses of Ingresses: %v", err))
		return
	}
	backend := b.opener.Shared(&c.Petitioner, path.Rule, path.Path, b.isOpen(c, path))[0].Backend
	b.claimed[key], c.Effective = cmp.Or(b.claimed[key], c), true
	when := annotations.Condition{Text: text, Usable: true}
	b.chosen[key] = append(b.chosen[key], conditional{by: c, when: when, backend: backend, path: path})
}

// sharesOf returns the backends of a path of a route, and how many of 100 requests the second one takes.
func (b *builder) sharesOf(c *claim, path pathClaim) (backend, canary string, weight int) {
	shares := b.opener.Shared(&c.Petitioner, path.Rule, path.Path, b.isOpen(c, path))
	if len(shares) < 2 {
		return shares[0].Backend, "", 0
	}
	sum := shares[0].Weight + shares[1].Weight
	part := int(math.Round(100 * float64(shares[1].Weight) / float64(sum)))
	return shares[0].Backend, shares[1].Backend, min(max(part, 1), 99)
}

// A redirect is a rule of a claim that redirects plain HTTP to https, at one path.
type redirect struct {
	by   *claim
	path pathClaim
}

// grantRedirects redirects plain HTTP as the rules of routes say. Such a rule decides for its own path,
// unless an older object serves plain HTTP there. It also sets the status for the paths of routes below
// its own that have no requests without TLS.
func (b *builder) grantRedirects() {
	var all []redirect
	for _, c := range b.claims {
		for _, path := range c.Paths {
			if path.Rule != nil && path.Rule.Redirects != nil {
				all = append(all, redirect{c, path})
			}
		}
	}
	if len(all) == 0 {
		return
	}
	// The longest path decides first, and of one path the older object.
	slices.SortStableFunc(all, func(x, y redirect) int { return cmp.Compare(len(y.path.Path), len(x.path.Path)) })
	below := b.redirectable()
	set := make(map[routeKey]*claim)
	firsts := make(map[*claim]map[routeKey]*claims.RuleAt)
	for _, one := range all {
		if firsts[one.by] == nil {
			firsts[one.by] = firstRules(one.by)
		}
		first := firsts[one.by][one.path.Key()]
		if first.Redirects == nil && !first.TLSOnly {
			continue // an earlier rule of the route takes the requests
		}
		b.redirect(one, below[site{one.by.Tenant(), one.path.Host}], set)
	}
}

// firstRules returns the first rule that a claim has for each path.
func firstRules(c *claim) map[routeKey]*claims.RuleAt {
	first := make(map[routeKey]*claims.RuleAt, len(c.Paths))
	for _, path := range c.Paths {
		if key := path.Key(); first[key] == nil && path.If == nil {
			first[key] = path.Rule
		}
	}
	return first
}

// redirect redirects plain HTTP as one rule says, at its path and at those below it. set has the claims of
// the rules before.
func (b *builder) redirect(one redirect, below *claims.PathsBelow, set map[routeKey]*claim) {
	c, key, to := one.by, one.path.Key(), one.path.Rule.Redirects
	plain := b.owner[key] != nil && set[key] == nil && !b.routed[key].TLSOnly && claims.Older(b.owner[key], c) < 0
	for _, first := range []*claim{b.claimed[key], b.owner[key], set[key]} {
		if first != nil && first != c &&
			(!claims.Together(first, c) || first == set[key] || first == b.owner[key] && plain) {
			b.conflict(c, one.path, first)
			return
		}
	}
	if b.owner[key] == nil {
		b.owner[key] = c
	}
	if _, has := b.routed[key]; !has {
		b.routed[key] = haproxy.Route{Host: key.Host, Path: key.Path, Match: key.Match}
	}
	c.Effective = true
	take := func(other routeKey) {
		if set[other] == nil {
			route := b.routed[other]
			route.TLSOnly, route.TLSCode, route.TLSPort = true, to.Code, to.Port
			b.routed[other], set[other] = route, c
		}
	}
	take(key)
	if key.Match == haproxy.Prefix {
		below.Take(key, take)
	}
}

// A site is a host as one namespace has it.
type site struct {
	of   tenant
	host string
}

// redirectable returns the paths of routes that have no requests without TLS. A rule for a wider path sets
// how they are redirected.
func (b *builder) redirectable() map[site]*claims.PathsBelow {
	keys := make(map[site][]routeKey)
	for key, route := range b.routed {
		if owner := b.owner[key]; route.TLSOnly && owner.Route != nil {
			at := site{owner.Tenant(), key.Host}
			keys[at] = append(keys[at], key)
		}
	}
	all := make(map[site]*claims.PathsBelow, len(keys))
	for at, these := range keys {
		all[at] = claims.NewPathsBelow(these)
	}
	return all
}

// withdrawRoute says in the status of a route which hosts it does not have. A route without any host
// is not attached.
func (b *builder) withdrawRoute(c *claim, refused map[string]error) {
	var why []string
	for _, host := range sortedKeys(refused) {
		why = append(why, fmt.Sprintf("%s is not served: %v", cmp.Or(host, "any host"), refused[host]))
	}
	if len(refused) == len(c.Names) {
		b.attached[c.World].Withdraw(c.Route, gateway.Refusal{Reason: "HostOwned", Why: strings.Join(why, "; ")})
		return
	}
	for _, text := range why {
		c.Route.Note("hostname " + text)
	}
}

// limitShared counts the claim of a route against the limits of its namespace, in the order of all
// claims there.
func (b *builder) limitShared(c *claim) {
	if len(c.Hosts) > 0 && !b.admitRoute(c.World, c.Route) {
		c.Paths, c.Hosts, c.TLS = nil, nil, nil
	}
}
