package cert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/owners"
)

// Hosts assign certificates to hosts. The first claim to a host with a certificate brings it.
type Hosts struct {
	Owned  *owners.Hosts
	Spell  func(*claims.Claim) string // the name of a claim in the problem of another claim
	Report func(on *claims.Claim, reason, format string, args ...any)

	files    map[string]*file         // by name
	holder   map[string]string        // by host: the name of its file
	granted  map[string]*claims.Claim // by host: the claim that brought its certificate
	children map[string][]string      // hosts by their parent; nil until spare needs them
}

// A file is a certificate with the clients that it is for.
type file struct {
	*Pair
	clients annotations.Clients
	ciphers string
	tenant  string   // CLUSTER/NAMESPACE
	hosts   []string // that it is served for
}

// An Entry is a TLS entry of a claim with a usable certificate.
type Entry struct {
	Prefix  string // of all names that are made for the cluster
	Cluster string
	At      time.Time // in the cluster
	*Pair
	Clients annotations.Clients
	Ciphers string // of TLS up to 1.2; empty for the usual ones
}

// Add serves the certificate of a TLS entry for the hosts of the entry. Without hosts, these are the names
// in the certificate.
func (h *Hosts) Add(c *claims.Claim, t claims.TLS, e Entry) {
	key := t.Key(c)
	if reason, why := e.Doubts(e.At, t.Hosts); reason != "" {
		h.Report(c, reason, "the certificate in Secret %s %s", key, why)
	}
	name := Name(e.Prefix, key)
	if e.Clients.CA != nil {
		name = ClientName(name, e.Clients)
	}
	if e.Ciphers != "" {
		name = CipherName(name, e.Ciphers)
	}
	if h.files == nil {
		h.files, h.holder = make(map[string]*file), make(map[string]string)
		h.granted = make(map[string]*claims.Claim)
	}
	if h.files[name] == nil {
		h.files[name] = &file{
			Pair: e.Pair, clients: e.Clients, ciphers: e.Ciphers, tenant: e.Cluster + "/" + key.Namespace,
		}
	}
	c.Secure = true
	names := t.Hosts
	if len(names) == 0 {
		names = e.Names
	}
	for _, host := range names {
		h.assign(c, host, name, key)
	}
	for _, other := range c.WWW {
		if claims.Covers(names, haproxy.OtherName(other)) && e.Leaf.VerifyHostname(other) == nil {
			h.assign(c, other, name, key)
		}
	}
}

// assign serves a certificate for a host, unless the host has another one already.
func (h *Hosts) assign(c *claims.Claim, host, name string, key types.NamespacedName) {
	if err := h.Owned.May(c, host); err != nil { // a name of the certificate that the Ingress does not have
		h.Report(c, "HostOwned", "the certificate in Secret %s is not served for %s: %v", key, host, err)
		return
	}
	c.Covered = append(c.Covered, host)
	switch other := h.holder[host]; {
	case other == "":
		h.holder[host], h.granted[host] = name, c
		h.files[name].hosts = append(h.files[name].hosts, host)
	case other != name && h.shares(h.granted[host], c, host):
		// Each cluster of a set has its own copy of the certificate. The first one's is served.
	case other != name && (h.files[other].clients.CA != nil || h.files[name].clients.CA != nil):
		h.Report(c, "CertificateConflict", "%s is older and decides which certificates clients of %s need",
			h.Spell(h.granted[host]), host)
	case other != name && h.files[other].ciphers != h.files[name].ciphers:
		h.Report(c, "CertificateConflict", "%s is older and decides which certificate and which ciphers %s has",
			h.Spell(h.granted[host]), host)
	case other != name:
		h.Report(c, "CertificateConflict", "the certificate in Secret %s is not served for %s: %s already "+
			"names another one", key, host, h.Spell(h.granted[host]))
	}
}

// shares reports whether claims of two clusters belong to one party for a host.
func (h *Hosts) shares(one, other *claims.Claim, host string) bool {
	held, _ := h.Owned.Of(host)
	return one.World != other.World && held.Set != ""
}

// Certs returns the certificates with their hosts, sorted by name, and the authorities of their clients.
func (h *Hosts) Certs() (all []*haproxy.Cert, authorities []*haproxy.Extra) {
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		f := h.files[name]
		if len(f.hosts) == 0 {
			continue
		}
		if f.clients.CA != nil {
			authorities = append(authorities, f.clients.CA)
		}
		for _, one := range h.listings(name, f.hosts) {
			one.PEM, one.Expires, one.Owner, one.Ciphers = f.PEM, f.Leaf.NotAfter, f.tenant, f.ciphers
			if f.clients.CA != nil {
				one.ClientCA, one.ClientOptional = f.clients.CA.Name, f.clients.Optional
				one.ClientMatch = f.clients.Match
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b *haproxy.Cert) int { return cmp.Compare(a.Name, b.Name) })
	return all, authorities
}

// maxNames bounds the names on one line of HAProxy's list of certificates, in
// bytes. A command sets a line, and HAProxy reads at most 16 kB of a command.
const maxNames = 7 << 10

// listings splits the hosts of a certificate over as many entries as they need.
func (h *Hosts) listings(name string, hosts []string) (all []*haproxy.Cert) {
	slices.Sort(hosts)
	room := 0
	for _, host := range hosts {
		var spared []string
		if strings.HasPrefix(host, "*.") {
			var fits bool
			if spared, fits = h.spare(host); !fits {
				h.Report(h.granted[host], "CertificateConflict", "the certificate for %s is not served for it: too "+
					"many older hosts of others are below it; name the hosts one by one", host)
				continue
			}
		}
		size := len(host) + len(strings.Join(spared, " !")) + len(" !")
		if room -= size; room < 0 {
			each := name
			if len(all) > 0 {
				each = fmt.Sprintf("%s_%d.pem", strings.TrimSuffix(name, ".pem"), len(all)+1)
			}
			all = append(all, &haproxy.Cert{Name: each})
			room = maxNames - size
		}
		c := all[len(all)-1]
		c.Hosts, c.Except = append(c.Hosts, host), append(c.Except, spared...)
	}
	return all
}

// spare returns hosts below a wildcard host that do not get its certificate: hosts of other owners
// that have no certificate of their own. If they do not fit into maxNames, spare returns the
// oldest. fits is false if a host that does not fit is older than the wildcard host. Then the
// wildcard host gets no certificate. A younger host that does not fit gets the wildcard host's
// certificate.
func (h *Hosts) spare(wildcard string) (spared []string, fits bool) {
	if h.children == nil {
		h.children = make(map[string][]string)
		for host := range h.Owned.All() {
			if first, parent, found := strings.Cut(host, "."); found && first != "*" {
				h.children[parent] = append(h.children[parent], host)
			}
		}
	}
	above, _ := h.Owned.Of(wildcard)
	since := func(host string) int { // its oldest claim
		held, _ := h.Owned.Of(host)
		return held.Since
	}
	for _, host := range h.children[strings.TrimPrefix(wildcard, "*.")] {
		if held, _ := h.Owned.Of(host); held.Party != above.Party && h.holder[host] == "" {
			spared = append(spared, host)
		}
	}
	slices.SortFunc(spared, func(x, y string) int {
		return cmp.Or(cmp.Compare(since(x), since(y)), cmp.Compare(x, y))
	})
	size := len(wildcard)
	for i, host := range spared {
		if size += len(" !") + len(host); size > maxNames {
			if since(host) < above.Since {
				return nil, false
			}
			spared = spared[:i]
			break
		}
	}
	slices.Sort(spared)
	return spared, true
}
