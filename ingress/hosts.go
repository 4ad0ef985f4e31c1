package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// Who owns a host
//
// A host belongs to one party. By default this is the namespace of the oldest claim that names it,
// in a rule or in spec.tls. assignHosts removes the host from the claims of all other parties,
// before any route, certificate or canary is made of them. The rest of the package therefore sees
// only the owner's claims. Some things serve several hosts, and one party could change another's
// traffic through them. Three places prevent that:
//
//   - a wildcard host and a rule without a host: each host below that belongs to
//     another party has a row for "/", so that no request falls through (isolate);
//   - the certificate of a wildcard host: it is not shown for such a host (spare);
//   - the default backend: a tenant's is for its own hosts, and for hosts that
//     belong to nobody (defaultFor).
//
// An owner keeps the host while any of its claims names it, even if by then another
// namespace has an older claim, and for Options.ReleaseAfter after that (owners.go).

// A party is the owner of a host: one namespace of a cluster, or of a set of clusters; all namespaces
// of these; or all namespaces that the operator lets share the host.
type party struct{ cluster, set, namespace string }

// listed is the party of the namespaces that a HostRule lets share a host, in any cluster.
var listed = party{namespace: input.Everyone}

// A hold says which party has a host.
type hold struct {
	party
	world int
	since int       // index of the owner's oldest claim that names it
	left  time.Time // since when no claim of the owner names it; zero while a claim does
	until time.Time // until when it is kept then
}

// isKept reports whether the host is kept for an owner that does not name it.
func (h hold) isKept() bool { return !h.left.IsZero() }

// party returns the party that a claim belongs to for a host. An error says why
// the operator does not admit it.
func (b *builder) party(c *claim, host string) (party, error) {
	return b.partyOf(c.World, c.Ref.Namespace, host)
}

// partyOf is party for a namespace of a world. The namespace input.Everyone is admitted only where
// all are.
func (b *builder) partyOf(world int, namespace, host string) (party, error) {
	w := b.worlds[world]
	if rule := w.Options.HostRule(host); rule != nil {
		if rule.Admits(namespace) {
			return listed, nil
		}
		return party{}, fmt.Errorf("the configuration file reserves it for %s", keptFor(rule))
	}
	reserved := func(s *Snapshot) error {
		// A last rule for "*" concerns only its own cluster.
		if rule := s.Options.HostRule(host); rule != nil && rule.Host != "*" && len(rule.Namespaces) > 0 {
			return fmt.Errorf("the configuration file reserves it for cluster %s, %s", s.Cluster, keptFor(rule))
		}
		return nil
	}
	for i, other := range b.worlds {
		if err := reserved(&other.Snapshot); i != world && err != nil {
			return party{}, err
		}
	}
	for i := range b.Unknown {
		if err := reserved(&b.Unknown[i]); err != nil {
			return party{}, err
		}
	}
	return w.partyIn(namespace), nil
}

func keptFor(rule *HostRule) string {
	if len(rule.Namespaces) == 0 {
		return "nobody"
	}
	return "namespace " + claims.List(rule.Namespaces)
}

// assignHosts finds the owner of each host, and withdraws from every claim the hosts of other
// owners. The older claims come first.
func (b *builder) assignHosts() {
	b.holds = make(map[string]hold, len(b.claims))
	for i, c := range b.claims {
		for _, host := range c.Names {
			who, err := b.party(c, host)
			if err != nil {
				continue
			}
			held, taken := b.holds[host]
			// The operator orders the clusters: a remembered owner never overrides an earlier
			// cluster.
			if !taken || held.party != who && held.world == c.World && b.worlds[c.World].had(host, who) {
				b.holds[host] = hold{party: who, world: c.World, since: i}
			}
		}
	}
	b.keep()
	for _, c := range b.claims {
		b.withdraw(c)
	}
	b.remember()
}

// may returns nil if a claim to a host counts. Otherwise the error says to whom the host belongs.
func (b *builder) may(c *claim, host string) error {
	who, err := b.party(c, host)
	if err != nil {
		return err
	}
	h, taken := b.holds[host]
	if !taken || h.party == who {
		return nil
	}
	switch {
	case h.isKept():
		return fmt.Errorf("it belonged to %s until %s, and is kept for it until %s (clusters[].ingress.releaseAfter)",
			b.spellParty(h.party), h.left.Format(time.RFC3339), h.until.Format(time.RFC3339))
	case h.party == listed:
		return errors.New("it belongs to the namespaces that the configuration file names")
	}
	return fmt.Errorf("it belongs to %s, for %s", b.spellParty(h.party), b.spell(b.claims[h.since]))
}

// spellParty returns the name of a party that is not listed.
func (b *builder) spellParty(p party) string {
	switch {
	case p.namespace == input.Everyone && p.set != "":
		return "the clusters of set " + p.set
	case p.set != "":
		return "namespace " + p.namespace + " of set " + p.set
	case p.namespace == input.Everyone:
		return "cluster " + p.cluster
	case len(b.worlds) > 1:
		return "namespace " + p.namespace + " of cluster " + p.cluster
	}
	return "namespace " + p.namespace
}

// withdraw removes from a claim the hosts that belong to others, and reports each
// of them once.
func (b *builder) withdraw(c *claim) {
	refused := make(map[string]error)
	for _, host := range c.Names {
		if err := b.may(c, host); err != nil {
			refused[host] = err
			b.report(c, "HostOwned",
				"this %s is not served for %s: %v; the operator of the appliance can share a host "+
					"(clusters[].ingress.hosts)", c.Ref.Kind, cmp.Or(host, "any host"), err)
		}
	}
	if len(refused) == 0 {
		return
	}
	if c.Route != nil {
		b.withdrawRoute(c, refused)
	}
	c.Paths = slices.DeleteFunc(slices.Clone(c.Paths), func(of pathClaim) bool { return refused[of.Host] != nil })
	if len(c.Hosts) > 0 && refused[c.Hosts[0]] != nil {
		c.Aliases = nil
	}
	c.Hosts = slices.DeleteFunc(slices.Clone(c.Hosts), func(host string) bool { return refused[host] != nil })
	c.Aliases = slices.DeleteFunc(slices.Clone(c.Aliases), func(host string) bool { return refused[host] != nil })
	asked := c.TLS
	c.TLS = nil
	for _, t := range asked {
		if len(t.Hosts) > 0 {
			t.Hosts = slices.DeleteFunc(slices.Clone(t.Hosts), func(host string) bool { return refused[host] != nil })
			if len(t.Hosts) == 0 {
				continue // an entry without hosts means the names of its certificate
			}
		}
		c.TLS = append(c.TLS, t)
	}
	if c.Ruleless && refused[""] != nil {
		c.Fallback = nil
	}
}

// alias gives the paths of hosts to their further names (server-alias), for every Ingress of the namespace
// that has the host. The older claim to a name counts. A name that a rule has, with more than the paths of
// ACME challenges, belongs to that rule.
//
// The limit of paths of a namespace counts what is added here, before it is added. A name beyond it has no
// path at all: with a part of them, the path with a guard could be the one that is missing.
func (b *builder) alias() {
	sites := make(map[site][]*claim) // claims to the host
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
				b.limited = true
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
		held := b.holds[host]
		below, taken := b.holds[beneath(host)]
		taken = taken && !below.isKept() // nothing is served there
		switch {
		case challenged[host] && taken && held.party == below.party:
			b.copyHost(beneath(host), host)
		case ruled[host] && !challenged[host]:
		case taken && held.party == below.party, held.isKept() && !taken:
			return
		case held.party == b.holds[""].party:
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
				if strings.HasPrefix(host, "*") == wild && (ruled[host] || b.may(c, host) == nil) {
					apart(host)
				}
			}
		}
		for _, k := range b.kept {
			if strings.HasPrefix(k.host, "*") == wild {
				apart(k.host)
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
	if b.fallbackOf != nil && b.holds[""].party != b.holds[host].party {
		return ""
	}
	return b.Config.DefaultBackend
}

// maxNames bounds the names on one line of HAProxy's list of certificates, in
// bytes. A command sets a line, and HAProxy reads at most 16 kB of a command.
const maxNames = 7 << 10

// spare returns hosts below a wildcard host that do not get its certificate: hosts of other owners
// that have no certificate of their own. If they do not fit into maxNames, spare returns the
// oldest. fits is false if a host that does not fit is older than the wildcard host. Then the
// wildcard host gets no certificate. A younger host that does not fit gets the wildcard host's
// certificate.
func (b *builder) spare(wildcard string, certified map[string]string) (spared []string, fits bool) {
	if b.children == nil {
		b.children = make(map[string][]string)
		for host := range b.holds {
			if first, parent, found := strings.Cut(host, "."); found && first != "*" {
				b.children[parent] = append(b.children[parent], host)
			}
		}
	}
	for _, host := range b.children[strings.TrimPrefix(wildcard, "*.")] {
		if b.holds[host].party != b.holds[wildcard].party && certified[host] == "" {
			spared = append(spared, host)
		}
	}
	slices.SortFunc(spared, func(x, y string) int {
		return cmp.Or(cmp.Compare(b.holds[x].since, b.holds[y].since), cmp.Compare(x, y))
	})
	size := len(wildcard)
	for i, host := range spared {
		if size += len(" !") + len(host); size > maxNames {
			if b.holds[host].since < b.holds[wildcard].since {
				return nil, false
			}
			spared = spared[:i]
			break
		}
	}
	slices.Sort(spared)
	return spared, true
}
