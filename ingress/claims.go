package ingress

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
)

// A claimant is an object of any kind that claims hosts and paths. The claimant decides who owns a
// host, and which of two claims is older. It is never changed: an object that does not change keeps
// its pointer.
type claimant struct {
	ref     ObjectRef         // where its problems are reported
	created time.Time         // the older of two claims to the same thing takes effect
	layer   annotations.Layer // its keys
	usual   annotations.Layer // the values, in its dialect, of keys that no object sets
}

// A petitioner is a claimant of a world. Backends are made for petitioners.
type petitioner struct {
	*claimant
	world  int
	closed bool // something is beyond a limit of its namespace: every client of its backends is rejected
}

// A claim is all that one claimant asks for. A source reads it only from its object. Each round
// works on a copy.
type claim struct {
	petitioner // each round sets its world, and whether it is closed
	paths      []pathClaim
	hosts      []string   // every valid host of its rules, once; "" is any host
	names      []string   // hosts, the hosts of its TLS entries, and "" for the default of all; once
	fallback   *reference // for what no path matches
	ruleless   bool       // it has no rules: its fallback is the default of all hosts
	tls        []tlsClaim
	aliases    []string // more names of the first host of its rules
	problems   []Problem
	route      *gateway.Route // nil for an Ingress

	// Each round sets the fields below.
	covered   []string // hosts of its TLS entries that have a usable certificate
	secure    bool     // it has a usable certificate
	redirect  annotations.Redirect
	effective bool // something of it is in effect
	canary    bool // it takes over some requests of other claims
	weight    int  // how many of 100
	bytes     int  // of configuration that its keys and those of its Services take
}

// A pathClaim is one path of one host.
type pathClaim struct {
	host, path string
	match      haproxy.PathMatch
	to         reference // of an Ingress
	rule       *ruleAt   // of a route; nil for an Ingress
	alias      bool      // the host is another name of a host of a rule
}

func (c *pathClaim) key() routeKey { return routeKey{c.host, c.path, c.match} }

// patterns returns how many paths of a claim are regular expressions.
func (c *claim) patterns() (n int) {
	for i := range c.paths {
		if c.paths[i].match == haproxy.Regexp {
			n++
		}
	}
	return n
}

// isChallenge reports whether an ACME server may ask for the path, to check who has the host
// (RFC 8555, 8.3).
func (c pathClaim) isChallenge() bool {
	return c.match != haproxy.Regexp && strings.HasPrefix(c.path, "/.well-known/acme-challenge/")
}

func (c pathClaim) String() string { return spell(c.host, c.path, c.match) }

func spell(host, path string, match haproxy.PathMatch) string {
	if host == "" {
		host = "any host"
	}
	return fmt.Sprintf("%s, %s path %s", host, match, path)
}

// A reference names one port of a Service, by name or by number.
type reference struct {
	service serviceKey
	port    string
	number  int32
	traffic annotations.Traffic
	open    bool // no guard of the ConfigMap keeps clients out (sallyport.dev/acme)
}

// referTo returns a reference to a port as a ConfigMap names it: by name or by
// number, in one text.
func referTo(service serviceKey, port string, traffic annotations.Traffic) reference {
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		return reference{service: service, number: int32(number), traffic: traffic}
	}
	return reference{service: service, port: port, traffic: traffic}
}

func (r reference) portText() string {
	if r.port != "" {
		return r.port
	}
	return strconv.Itoa(int(r.number))
}

// checks is the traffic of HAProxy's own requests, which ask a Service whether a
// client's request is allowed (auth-url).
const checks annotations.Traffic = 0

// A tlsClaim asks for a certificate for some hosts. If hosts is empty, it asks for the names that
// the certificate itself carries.
type tlsClaim struct {
	secret    string
	namespace string // of the secret; empty stands for that of the claim
	hosts     []string
}

// key returns the Secret of a claim to a certificate.
func (t *tlsClaim) key(c *claim) serviceKey {
	return serviceKey{Namespace: cmp.Or(t.namespace, c.ref.Namespace), Name: t.secret}
}

// cleanHost checks a host as the API server does (Ingress v1, IngressRule.Host): a
// DNS name, or "*." and a DNS name, without a port, and no address. It does not rely
// on the API server, which may be an impostor.
func cleanHost(host string) (clean, why string) {
	if host == "" {
		return "", ""
	}
	host = strings.ToLower(host)
	name, wild := strings.CutPrefix(host, "*.")
	switch {
	case wild && len(validation.IsWildcardDNS1123Subdomain(host)) == 0:
		return host, ""
	case !wild && len(validation.IsDNS1123Subdomain(host)) == 0 && len(validation.IsValidIP(nil, name)) > 0:
		return host, ""
	case len(validation.IsValidIP(nil, name)) == 0:
		return "", `is an address; allowed is a DNS name, or no host at all`
	}
	return "", `is not a DNS name; allowed are letters, digits, "-" and ".", with "*." in front for one more label`
}
