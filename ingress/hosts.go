package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/haproxy"
)

// Who owns a host
//
// A host belongs to one party: by default the namespace whose Ingress named it
// first, in a rule or in spec.tls. Nothing that another party says of the host
// goes any further than this file: own takes it off the petitions before any
// route, certificate or canary is made of them. So the rest of the package
// compiles for each host what its owner says, as if nobody else had spoken of
// it. What one party can still do to another is what all hosts have in common,
// and that is settled where it is made:
//
//   - a wildcard host and a rule without a host: every host beneath that is
//     another party's has a row for "/", so that no request falls through (shut);
//   - the certificate of a wildcard host: it is not shown for such a host (spare);
//   - the default backend: what a tenant makes it is for its own hosts, and for
//     those that nobody has (defaultFor).
//
// An owner keeps the host while any Ingress of its names it, although the oldest
// of these may be younger than one of another namespace by then. That is all
// the memory there is, and it comes with the Snapshot (HostOwners).

// A HostRule says which namespaces may use the hosts that a pattern matches.
type HostRule struct {
	// Host is a name; "*.name", which matches every name below it, and the
	// wildcard host of that spelling; or "*", which matches every host, and
	// rules without one.
	Host string
	// Namespaces share these hosts: the oldest claim to a path counts. "*" is
	// every namespace. Empty: nobody may use them.
	Namespaces []string
}

func (r *HostRule) matches(host string) bool {
	if below, many := strings.CutPrefix(r.Host, "*"); many {
		return strings.HasSuffix(host, below)
	}
	return r.Host == host
}

func (r *HostRule) admits(namespace string) bool {
	return slices.Contains(r.Namespaces, namespace) || slices.Contains(r.Namespaces, "*")
}

// hostRule returns the first rule for a host; nil if there is none.
func (o *Options) hostRule(host string) *HostRule {
	for i := range o.Hosts {
		if o.Hosts[i].matches(host) {
			return &o.Hosts[i]
		}
	}
	return nil
}

// HostOwners are the hosts of one cluster that belong to a namespace each. It is
// never changed.
type HostOwners struct {
	Namespaces map[string]string `json:"namespaces"` // by host; "" is every host that nobody names
}

func (o *HostOwners) equal(p *HostOwners) bool {
	return o == p || o != nil && p != nil && maps.Equal(o.Namespaces, p.Namespaces)
}

// A party is everybody who has the same say about a host: one namespace of a
// cluster; or all that the operator lets share it, in which case both are empty
// but for the reason.
type party struct{ cluster, namespace, shared string }

var (
	listed   = party{shared: "listed"}   // by a HostRule
	trusting = party{shared: "trusting"} // by Options.OneTenant
)

// A hold is the possession of a host.
type hold struct {
	party
	since int // index of the owner's first petition that names it
}

// party returns who an Ingress is for a host; an error says why it is not
// admitted.
func (b *builder) party(c *claim, host string) (party, error) {
	w := b.worlds[c.world]
	if rule := w.options.hostRule(host); rule != nil {
		if rule.admits(c.ref.Namespace) {
			return listed, nil
		}
		return party{}, fmt.Errorf("the configuration file keeps it for %s", keptFor(rule))
	}
	for i, other := range b.worlds {
		// A last rule for "*" is about its own cluster alone.
		if rule := other.options.hostRule(host); i != c.world && rule != nil && rule.Host != "*" && len(rule.Namespaces) > 0 {
			return party{}, fmt.Errorf("the configuration file keeps it for cluster %s, %s", other.cluster, keptFor(rule))
		}
	}
	if w.options.OneTenant {
		return trusting, nil
	}
	return party{cluster: w.cluster, namespace: c.ref.Namespace}, nil
}

func keptFor(rule *HostRule) string {
	if len(rule.Namespaces) == 0 {
		return "nobody"
	}
	return "namespace " + list(rule.Namespaces)
}

// own finds the owner of each host, and takes off every petition what it says
// of hosts that are not its own. The petitions are in order.
func (b *builder) assignHosts() {
	had := make(map[string]party)
	for _, w := range b.worlds {
		if w.owners == nil {
			continue
		}
		for host, namespace := range w.owners.Namespaces {
			had[host] = party{cluster: w.cluster, namespace: namespace}
		}
	}
	b.holds = make(map[string]hold, len(b.claims))
	for i, c := range b.claims {
		for _, host := range c.names {
			who, err := b.party(c, host)
			if err != nil {
				continue
			}
			held, taken := b.holds[host]
			if !taken || held.party != who && had[host] == who {
				b.holds[host] = hold{who, i}
			}
		}
	}
	for _, c := range b.claims {
		b.withdraw(c)
	}
	b.owners = make(map[string]*HostOwners, len(b.worlds))
	for _, w := range b.worlds {
		b.owners[w.cluster] = &HostOwners{Namespaces: make(map[string]string)}
	}
	for host, h := range b.holds {
		if h.shared == "" {
			b.owners[h.cluster].Namespaces[host] = h.namespace
		}
	}
	for _, w := range b.worlds {
		if b.owners[w.cluster].equal(w.owners) {
			b.owners[w.cluster] = w.owners
		}
	}
}

// may returns nil if what an Ingress says of a host counts.
func (b *builder) may(c *claim, host string) error {
	who, err := b.party(c, host)
	if err != nil {
		return err
	}
	h, taken := b.holds[host]
	if !taken || h.party == who {
		return nil
	}
	owner := "the namespaces that the configuration file names"
	if first := b.claims[h.since]; h.shared == "" {
		owner = "namespace " + h.namespace + ", for " + b.spell(first)
	}
	return fmt.Errorf("it belongs to %s", owner)
}

// yield takes off a petition what it says of hosts that are not its own, and
// complains once for each.
func (b *builder) withdraw(c *claim) {
	refused := make(map[string]bool)
	for _, host := range c.names {
		if err := b.may(c, host); err != nil {
			refused[host] = true
			b.report(c, "HostOwned", "nothing that this Ingress says of %s is served: %v; who runs the appliance can share a host (clusters[].ingress.hosts)", cmp.Or(host, "any host"), err)
		}
	}
	if len(refused) == 0 {
		return
	}
	c.paths = slices.DeleteFunc(slices.Clone(c.paths), func(of pathClaim) bool { return refused[of.host] })
	c.hosts = slices.DeleteFunc(slices.Clone(c.hosts), func(host string) bool { return refused[host] })
	asked := c.tls
	c.tls = nil
	for _, t := range asked {
		if len(t.hosts) > 0 {
			t.hosts = slices.DeleteFunc(slices.Clone(t.hosts), func(host string) bool { return refused[host] })
			if len(t.hosts) == 0 {
				continue // an entry without hosts means the names of its certificate
			}
		}
		c.tls = append(c.tls, t)
	}
	if c.ruleless && refused[""] {
		c.fallback = nil
	}
}

// shut sees to it that the requests for a host are answered by its owner. What
// a host that rules name has no path for goes to its default, or is 404. One
// that only spec.tls names is left to a wildcard host, or to any host, of the
// same owner; where a wildcard host of another stands between, it gets what any
// host has.
func (b *builder) isolate() {
	ruled := make(map[string]bool, len(b.claims)) // hosts that have rows
	for _, c := range b.claims {
		for _, host := range c.hosts {
			ruled[host] = true
		}
	}
	beneath := func(host string) string { // whose rows take the requests for one that has none
		if _, parent, _ := strings.Cut(host, "."); ruled["*."+parent] {
			return "*." + parent
		}
		return ""
	}
	for _, wild := range []bool{true, false} {
		for _, c := range b.claims {
			for _, host := range c.names {
				key := routeKey{host, "/", haproxy.Prefix}
				_, has := b.routed[key]
				if has || host == "" || strings.HasPrefix(host, "*") != wild || b.passer(host) != nil {
					continue
				}
				owner := b.holds[host].party
				switch {
				case ruled[host]:
				case b.may(c, host) != nil || owner == b.holds[beneath(host)].party:
					continue
				case owner == b.holds[""].party:
					b.copyAny(host)
				}
				ruled[host] = true
				if _, has := b.routed[key]; !has {
					b.routed[key] = haproxy.Route{Host: host, Path: "/", Match: haproxy.Prefix, Backend: b.defaultFor(host)}
				}
			}
		}
	}
}

// copyAny gives a host the routes of any host.
func (b *builder) copyAny(host string) {
	for _, key := range b.keys() {
		to := routeKey{host, key.path, key.match}
		if key.host != "" {
			continue
		}
		route := b.routed[key]
		route.Host = host
		b.routed[to] = route
		for _, of := range []map[routeKey]*claim{b.owner, b.canaries} {
			if p := of[key]; p != nil {
				of[to] = p
			}
		}
	}
	for key, chosen := range b.chosen {
		if key.host == "" {
			b.chosen[routeKey{host, key.path, key.match}] = chosen
		}
	}
}

// defaultFor returns the backend for what a host has no path for; empty is 404.
// The operator's default is for all hosts, a tenant's for its own.
func (b *builder) defaultFor(host string) string {
	if b.fallbackOf != nil && b.holds[""].party != b.holds[host].party {
		return ""
	}
	return b.routing.fallback
}

// maxNames bounds the names on one line of HAProxy's list of certificates, in
// bytes. A line is given by a command, which HAProxy reads 16 kB of at most.
const maxNames = 7 << 10

// spare names the hosts that a certificate for a wildcard host is not shown for:
// those of other owners that have none themselves. Of too many hosts the oldest
// count; if one more is older than the wildcard host, this has no certificate,
// and if it is younger it has that one.
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
