package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
	"sallyport/ingress/owners"
)

// Who owns a host
//
// A host belongs to one party (package owners). assignHosts removes the host from the claims of all
// other parties, before any route, certificate or canary is made of them. The rest of the package
// therefore sees only the owner's claims. Some things serve several hosts, and one party could change
// another's traffic through them. Three places prevent that:
//
//   - a wildcard host and a rule without a host: each host below that belongs to
//     another party has a row for "/", so that no request falls through (isolate);
//   - the certificate of a wildcard host: it is not shown for such a host (spare);
//   - the default backend: a tenant's is for its own hosts, and for hosts that
//     belong to nobody (defaultFor).

// assignHosts finds the owner of each host, and withdraws from every claim the hosts of other
// owners. The older claims come first.
func (b *builder) assignHosts() {
	round := owners.Round{
		Worlds: b.snapshots, Unknown: b.Unknown, Claims: b.claims, Now: b.now(), Spell: b.spellRef,
	}
	if b.about != nil {
		round.Only = b.about.hosts
	}
	b.owned = owners.Assign(round)
	maps.Copy(b.limited, b.owned.Limited)
	for _, k := range b.owned.Kept {
		b.keeps = b.keeps.Both(claims.Period{Since: k.Left, Until: k.Until})
		if b.about != nil && b.about.whole.limited[k.Party] {
			b.limited[k.Party] = true // the part does not know whether the host is beyond the limit
		}
	}
	for _, n := range b.owned.Notices {
		b.report(n.On, n.Reason, "%s", n.Why)
	}
	for _, c := range b.claims {
		b.withdraw(c)
	}
	b.Owners = b.owned.Owners()
}

// snapshots returns the Snapshots of worlds.
func snapshots(worlds []*world) []*Snapshot {
	all := make([]*Snapshot, len(worlds))
	for i, w := range worlds {
		all[i] = &w.Snapshot
	}
	return all
}

// admit returns nil if the operator lets a namespace of a world have a host.
func (b *builder) admit(world int, namespace, host string) error {
	_, err := owners.PartyOf(b.snapshots, b.Unknown, world, namespace, host)
	return err
}

// withdraw removes from a claim the hosts that belong to others, and reports each
// of them once.
func (b *builder) withdraw(c *claim) {
	refused := b.owned.Refused(c)
	if len(refused) == 0 {
		return
	}
	for _, host := range c.Names {
		if err := refused[host]; err != nil {
			b.report(c, "HostOwned",
				"this %s is not served for %s: %v; the operator of the appliance can share a host "+
					"(clusters[].ingress.hosts)", c.Ref.Kind, cmp.Or(host, "any host"), err)
		}
	}
	if c.Route != nil {
		b.withdrawRoute(c, refused)
	}
	c.Withdraw(func(host string) bool { return refused[host] != nil })
}

// alias gives the paths of hosts to their further names (server-alias), for every Ingress of the namespace
// that has the host. The older claim to a name counts. A name that a rule has, with more than the paths of
// ACME challenges, belongs to that rule.
//
// The limit of paths of a namespace counts what is added here, before it is added. A name beyond it has no
// path at all: with a part of them, the path with a guard could be the one that is missing.
func (b *builder) alias() {
	if !slices.ContainsFunc(b.claims, func(c *claim) bool { return len(c.Aliases) > 0 }) {
		return
	}
	sites := make(map[site][]*claim) // claims to the host
	takers := b.takers()
	for _, c := range b.claims {
		for _, host := range c.Hosts {
			if c.Route == nil {
				at := site{c.Tenant(), host}
				sites[at] = append(sites[at], c)
			}
		}
	}
	takes := make(map[site]int)   // what a further name adds: paths, and one for each claim
	added := make(map[tenant]int) // all that is added
	names := make(map[site][]string)
	for _, c := range b.claims {
		if len(c.Aliases) == 0 {
			continue
		}
		as, at := c.Layer.Values["sallyport.dev/server-alias"].As, site{c.Tenant(), c.Hosts[0]}
		refuse := func(reason, format string, args ...any) {
			b.Problems = append(b.Problems, Problem{
				ObjectRef: c.Ref, Reason: reason, As: as, Why: fmt.Sprintf("annotation "+as+": "+format, args...),
			})
		}
		if _, known := takes[at]; !known {
			for _, d := range sites[at] {
				takes[at] += 1 + d.CountPaths(at.host)
			}
		}
		most := b.worlds[c.World].Options.Limits.Paths
		for _, name := range c.Aliases {
			other := takers[name]
			switch {
			case other != nil:
				refuse("AliasConflict", "%s is not served by it, since %s has that host", name, b.spell(other))
			case most > 0 && added[at.of]+takes[at] > most:
				b.bounds(at.of)
				refuse("LimitReached", "%s is not served by it, since further names add more than %d paths to the "+
					"Ingresses of namespace %s (clusters[].ingress.limits.paths)", name, most, at.of.Namespace)
			default:
				added[at.of] += takes[at]
				takers[name], names[at] = c, append(names[at], name)
			}
		}
	}
	for _, c := range b.claims {
		for _, host := range c.Hosts {
			if c.Route == nil {
				c.Rename(host, names[site{c.Tenant(), host}])
			}
		}
	}
}

// takers returns the oldest claim of each host that has a rule with more than the paths of ACME challenges.
func (b *builder) takers() map[string]*claim {
	takers := make(map[string]*claim)
	for _, c := range b.claims {
		for _, p := range c.Paths {
			if takers[p.Host] == nil && !p.IsChallenge() {
				takers[p.Host] = c
			}
		}
		for _, host := range c.Hosts {
			if takers[host] == nil && c.Fallback != nil {
				takers[host] = c
			}
		}
	}
	return takers
}

// redirectNames takes from claims the names that they cannot redirect to hosts of their rules
// (from-to-www-redirect). A name that a rule has belongs to that rule. What is left is at most one name for
// each host that is within the limits.
func (b *builder) redirectNames() {
	if !slices.ContainsFunc(b.claims, func(c *claim) bool { return len(c.WWW) > 0 }) {
		return
	}
	takers := b.takers()
	for _, c := range b.claims {
		as, names := c.Layer.Values["sallyport.dev/from-to-www-redirect"].As, c.WWW
		c.WWW = nil
		for _, name := range names {
			switch other := takers[name]; {
			case c.Canary, !slices.Contains(c.Hosts, haproxy.OtherName(name)):
			case other != nil:
				b.Problems = append(b.Problems, Problem{
					ObjectRef: c.Ref, Reason: "UnusedAnnotation", As: as, Why: fmt.Sprintf(
						"annotation %s: %s is not redirected, since %s has that host", as, name, b.spell(other)),
				})
			default:
				c.WWW = append(c.WWW, name)
			}
		}
	}
}

// grantRedirected gives "/" of each redirected name to the oldest claim to it.
func (b *builder) grantRedirected() {
	for _, c := range b.claims {
		for _, name := range c.WWW {
			key := routeKey{Host: name, Path: "/", Match: haproxy.Prefix}
			if b.owner[key] == nil {
				b.owner[key] = c
				b.routed[key] = haproxy.Route{Host: name, Path: "/", Match: haproxy.Prefix, Backend: haproxy.WWW}
			}
			c.Effective = true
		}
	}
}

// isolate makes sure that no request for a host is answered by another party. A
// request that no path of a ruled host matches goes to its default, or gets a 404.
// A host that only spec.tls names falls to the wildcard host above it, or to any
// host, if the same owner has that. If the wildcard host is another's, it gets the
// routes of any host. A host that is kept for its last owner is like one that only
// spec.tls names.
//
// A host with the paths of ACME challenges alone is such a host, too. A solver makes an Ingress with
// these paths for a short time. The other paths of the host are served as before.
func (b *builder) isolate() {
	ruled := make(map[string]bool, len(b.claims)) // hosts that have routes
	challenged := make(map[string]bool)           // hosts with the paths of challenges alone
	for _, c := range b.claims {
		for _, host := range c.Hosts {
			ruled[host] = true
		}
		for _, p := range c.Paths {
			was, known := challenged[p.Host]
			challenged[p.Host] = p.IsChallenge() && (was || !known)
		}
	}
	beneath := func(host string) string { // the host that serves a host without routes
		if _, parent, _ := strings.Cut(host, "."); ruled["*."+parent] {
			return "*." + parent
		}
		return ""
	}
	apart := func(host string) {
		key := routeKey{Host: host, Path: "/", Match: haproxy.Prefix}
		if _, has := b.routed[key]; has || host == "" || b.passer(host) != nil {
			return
		}
		held, _ := b.owned.Of(host)
		below, taken := b.owned.Of(beneath(host))
		anyHost, _ := b.owned.Of("")
		taken = taken && !below.IsKept() // nothing is served there
		switch {
		case challenged[host] && taken && held.Party == below.Party:
			b.copyHost(beneath(host), host)
		case ruled[host] && !challenged[host]:
		case taken && held.Party == below.Party, held.IsKept() && !taken:
			return
		case held.Party == anyHost.Party:
			b.copyHost("", host)
		}
		ruled[host] = true
		if _, has := b.routed[key]; !has {
			b.routed[key] = haproxy.Route{Host: host, Path: "/", Match: haproxy.Prefix, Backend: b.defaultFor(host)}
		}
	}
	for _, wild := range []bool{true, false} {
		for _, c := range b.claims {
			for _, host := range c.Names {
				if strings.HasPrefix(host, "*") == wild && (ruled[host] || b.owned.May(c, host) == nil) {
					apart(host)
				}
			}
		}
		for _, k := range b.owned.Kept {
			if strings.HasPrefix(k.Host, "*") == wild {
				apart(k.Host)
			}
		}
	}
}

// copyHost copies the routes of a host to another host. A path that the other host has stays as it is.
func (b *builder) copyHost(from, host string) {
	var keys []routeKey
	for key := range b.routed {
		if key.Host == from {
			keys = append(keys, key)
		}
	}
	for key := range b.chosen { // some have no other route
		if _, has := b.routed[key]; !has && key.Host == from {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		to := routeKey{Host: host, Path: key.Path, Match: key.Match}
		if _, has := b.routed[to]; has || b.chosen[to] != nil {
			continue
		}
		if route, has := b.routed[key]; has {
			route.Host = host
			b.routed[to] = route
		}
		for _, of := range []map[routeKey]*claim{b.owner, b.canaries} {
			if p := of[key]; p != nil {
				of[to] = p
			}
		}
		if chosen := b.chosen[key]; chosen != nil {
			b.chosen[to] = chosen
		}
		if picked := b.picked[key]; picked != nil {
			b.picked[to] = picked
		}
	}
}

// defaultFor returns the backend for requests that no path of a host matches; empty
// is a 404. The operator's default is for all hosts, a tenant's for its own.
func (b *builder) defaultFor(host string) string {
	anyHost, _ := b.owned.Of("")
	if own, _ := b.owned.Of(host); b.fallbackOf != nil && anyHost.Party != own.Party {
		return ""
	}
	return b.Config.DefaultBackend
}
