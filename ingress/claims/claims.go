package claims

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
)

// A ServiceKey names a Service, or another object of a namespace, in its cluster.
type ServiceKey = types.NamespacedName

// A Claimant is an object of any kind that claims hosts and paths. The claimant decides who owns a
// host, and which of two claims is older. It is never changed: an object that does not change keeps
// its pointer.
type Claimant struct {
	Ref     input.ObjectRef   // where its problems are reported
	Created time.Time         // the older of two claims to the same thing takes effect
	Layer   annotations.Layer // its keys
	Usual   annotations.Layer // the values, in its dialect, of keys that no object sets
}

// A Petitioner is a claimant of a world, which is a cluster by its number. Backends are made for
// petitioners.
type Petitioner struct {
	*Claimant
	World  int
	Closed bool             // something is beyond a limit of its namespace: every client of its backends is rejected
	Lead   annotations.Lead // that auth-url names by a path of a host
}

// Tenant returns the namespace of a petitioner.
func (p *Petitioner) Tenant() Tenant { return Tenant{World: p.World, Namespace: p.Ref.Namespace} }

// A Claim is all that one claimant asks for. A source reads it only from its object. Each round
// works on a copy.
type Claim struct {
	Petitioner // each round sets its world, and whether it is closed
	Paths      []Path
	Hosts      []string   // every valid host of its rules, once; "" is any host
	Names      []string   // hosts, the hosts of its TLS entries, and "" for the default of all; once
	Fallback   *Reference // for what no path matches
	Ruleless   bool       // it has no rules: its fallback is the default of all hosts
	TLS        []TLS
	Aliases    []string // more names of the first host of its rules
	WWW        []string // names that are redirected to a host of its rules (haproxy.OtherName)
	Problems   []input.Problem
	Route      *gateway.Route // nil for an Ingress

	// With annotations of ingress-nginx, unless a key of ours says how paths match: its paths become regular
	// expressions if another Ingress of the host has some; and it has some itself.
	OfNginx, Expressions bool

	// Each round sets the fields below.
	Covered   []string // hosts of its TLS entries that have a usable certificate
	Secure    bool     // it has a usable certificate
	Redirect  annotations.Redirect
	Effective bool  // something of it is in effect
	Twins     []Key // paths that an object of another cluster has, and that lead to the same exported Service
	Canary    bool  // it takes over some requests of other claims
	Takes     annotations.Takeover
	Bytes     int // of configuration that its keys and those of its Services take
}

// A Path is one path of one host.
type Path struct {
	Host, Path string
	Match      haproxy.PathMatch
	To         Reference      // of an Ingress
	Rule       *RuleAt        // of a route; nil for an Ingress
	If         *gateway.Match // that a request has to meet; nil if the path takes all
	Alias      bool           // the host is another name of a host of a rule
}

// Key returns the key of the route that the path asks for.
func (c *Path) Key() Key { return Key{c.Host, c.Path, c.Match} }

// patterns returns how many paths of a claim are regular expressions.
func (c *Claim) patterns() (n int) {
	for i := range c.Paths {
		if c.Paths[i].Match == haproxy.Regexp {
			n++
		}
	}
	return n
}

// IsChallenge reports whether an ACME server may ask for the path, to check who has the host
// (RFC 8555, 8.3).
func (c Path) IsChallenge() bool {
	return c.Match != haproxy.Regexp && strings.HasPrefix(c.Path, "/.well-known/acme-challenge/")
}

// Matches reports whether the path has the requests for a path.
func (c Path) Matches(path string) bool {
	switch c.Match {
	case haproxy.Exact:
		return path == c.Path
	case haproxy.Begin:
		return strings.HasPrefix(path, c.Path)
	case haproxy.Regexp:
		e := c.Expression()
		return e != nil && e.MatchString(path)
	case haproxy.Prefix:
		return strings.HasPrefix(path+"/", strings.TrimSuffix(c.Path, "/")+"/")
	}
	return false
}

// Expression returns the regular expression that a path is, or nil if it cannot be used.
func (c Path) Expression() *regexp.Regexp {
	e, err := regexp.Compile("^" + c.Path)
	if err != nil {
		return nil
	}
	return e
}

// Precedes reports whether the path has the requests that both it and another one match (haproxy.Route).
func (c Path) Precedes(o Path) bool {
	rank := func(p Path) int {
		switch p.Match {
		case haproxy.Exact:
			return 0
		case haproxy.Regexp:
			return 1
		}
		return 2
	}
	return cmp.Or(rank(c)-rank(o), len(o.Path)-len(c.Path)) < 0
}

func (c Path) String() string { return Spell(c.Host, c.Path, c.Match) }

// Spell returns the words for a path of a host.
func Spell(host, path string, match haproxy.PathMatch) string {
	if host == "" {
		host = "any host"
	}
	return fmt.Sprintf("%s, %s path %s", host, match, path)
}

// A Reference names one port of a Service, by name or by number.
type Reference struct {
	Service ServiceKey
	Port    string
	Number  int32
	Traffic annotations.Traffic
	Open    bool // no guard of the ConfigMap keeps clients out (sallyport.dev/acme)
}

// ReferTo returns a reference to a port as a ConfigMap names it: by name or by
// number, in one text.
func ReferTo(service ServiceKey, port string, traffic annotations.Traffic) Reference {
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		return Reference{Service: service, Number: int32(number), Traffic: traffic}
	}
	return Reference{Service: service, Port: port, Traffic: traffic}
}

// PortText returns the port as the object names it.
func (r Reference) PortText() string {
	if r.Port != "" {
		return r.Port
	}
	return strconv.Itoa(int(r.Number))
}

// Checks is the traffic of HAProxy's own requests, which ask a Service whether a
// client's request is allowed (auth-url).
const Checks annotations.Traffic = 0

// A TLS asks for a certificate for some hosts. If hosts is empty, it asks for the names that
// the certificate itself carries.
type TLS struct {
	Secret    string
	Namespace string // of the secret; empty stands for that of the claim
	Hosts     []string
}

// Key returns the Secret of a claim to a certificate.
func (t *TLS) Key(c *Claim) ServiceKey {
	return ServiceKey{Namespace: cmp.Or(t.Namespace, c.Ref.Namespace), Name: t.Secret}
}

// A Key names the requests that a route matches. Two claims with one key are
// in conflict.
type Key struct {
	Host, Path string
	Match      haproxy.PathMatch
}

// KeyOf returns the key of a route.
func KeyOf(r *haproxy.Route) Key { return Key{Host: r.Host, Path: r.Path, Match: r.Match} }

// CompareKeys orders keys by host, path and match.
func CompareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Match, b.Match))
}

// Older compares two claims by age, as OlderOf does.
func Older(a, b *Claim) int { return OlderOf(a.Petitioner, b.Petitioner) }

// OlderOf compares two petitioners by age: it returns a negative number if a counts as older than b.
func OlderOf(a, b Petitioner) int {
	return cmp.Or(
		cmp.Compare(a.World, b.World),
		a.Created.Compare(b.Created),
		cmp.Compare(a.Ref.Namespace, b.Ref.Namespace),
		cmp.Compare(a.Ref.Name, b.Ref.Name),
		cmp.Compare(a.Ref.Kind, b.Ref.Kind),
	)
}

// A DefaultOf names the default backend of a host in a sentence.
type DefaultOf string

func (d DefaultOf) String() string { return "the default of " + cmp.Or(string(d), "any host") }

// Insists reports whether a key of the claim itself redirects plain HTTP to TLS.
func (c *Claim) Insists() bool {
	own, _ := annotations.SSLRedirect(c.Layer)
	return own.Wanted != nil && *own.Wanted
}

// TLSOnly reports whether plain HTTP is redirected to TLS. The annotation decides;
// without it, HTTP is redirected for the hosts that the claim has a certificate
// for. For any other host the browser would show a warning. A route that passes
// TLS on has no plain HTTP.
func (c *Claim) TLSOnly(key Key) bool {
	if c.Redirect.Wanted != nil {
		return *c.Redirect.Wanted
	}
	host := key.Host
	if key.Match == haproxy.Passthrough {
		return true
	}
	if host == "" {
		return c.Secure
	}
	return Covers(c.Covered, host)
}

// Together reports whether two claims may share a path: claims of one namespace may.
func Together(a, b *Claim) bool {
	return a.World == b.World && a.Ref.Namespace == b.Ref.Namespace
}

// Covers reports whether another key of the same host begins with this one, and is
// longer.
func (r Key) Covers(o Key) bool {
	reach, other := r.Reach(), o.Reach()
	return r.Host == o.Host && len(reach) < len(other) && strings.HasPrefix(other, reach)
}

// Reach returns the beginning that a request's path, with a "/" after it, has to
// have. The byte 0x01 at its end stands for the end of the path.
func (r Key) Reach() string {
	switch r.Match {
	case haproxy.Exact:
		return r.Path + "/\x01"
	case haproxy.Begin:
		return r.Path
	}
	return strings.TrimRight(r.Path, "/") + "/"
}

// CountPaths returns how many paths of a claim a host has.
func (c *Claim) CountPaths(host string) (n int) {
	for i := range c.Paths {
		if c.Paths[i].Host == host {
			n++
		}
	}
	return n
}

// Withdraw removes from a claim all that it asks for hosts that are lost to others. The names that the
// claim began with stay in Names.
func (c *Claim) Withdraw(lost func(host string) bool) {
	c.Paths = slices.DeleteFunc(slices.Clone(c.Paths), func(of Path) bool { return lost(of.Host) })
	if len(c.Hosts) > 0 && lost(c.Hosts[0]) {
		c.Aliases = nil // they are further names of that host
	}
	c.Hosts = slices.DeleteFunc(slices.Clone(c.Hosts), lost)
	c.Aliases = slices.DeleteFunc(slices.Clone(c.Aliases), lost)
	c.WWW = slices.DeleteFunc(slices.Clone(c.WWW), lost)
	asked := c.TLS
	c.TLS = nil
	for _, t := range asked {
		if len(t.Hosts) > 0 {
			t.Hosts = slices.DeleteFunc(slices.Clone(t.Hosts), lost)
			if len(t.Hosts) == 0 {
				continue // an entry without hosts means the names of its certificate
			}
		}
		c.TLS = append(c.TLS, t)
	}
	if c.Ruleless && lost("") {
		c.Fallback = nil
	}
}

// Rename adds to a claim the paths of one of its hosts under further names.
func (c *Claim) Rename(host string, names []string) {
	if len(names) == 0 {
		return
	}
	own := slices.DeleteFunc(slices.Clone(c.Paths), func(p Path) bool { return p.Host != host || p.Alias })
	c.Paths = slices.Clone(c.Paths)
	for _, name := range names {
		for _, p := range own {
			p.Host, p.Alias = name, true
			c.Paths = append(c.Paths, p)
		}
	}
	c.Hosts = with(c.Hosts, names)
	c.TLS = slices.Clone(c.TLS)
	for i, t := range c.TLS {
		if slices.Contains(t.Hosts, host) {
			c.TLS[i].Hosts = with(t.Hosts, names)
		}
	}
}

// with returns a list with those of more that it lacks.
func with(list, more []string) []string {
	has := make(map[string]bool, len(list))
	for _, s := range list {
		has[s] = true
	}
	list = slices.Clone(list)
	for _, s := range more {
		if !has[s] {
			list = append(list, s)
		}
	}
	return list
}

// Expressible reports whether ingress-nginx makes a regular expression of a path whose host has another
// expression. It refuses other paths. The challenge of an ACME server stays: an expression of it means the same.
func (c *Path) Expressible() bool {
	allowed := c.Match == haproxy.Begin || c.Match == haproxy.Prefix && nginx.Allows("Prefix", c.Path) ||
		c.Match == haproxy.Exact && nginx.Allows("Exact", c.Path)
	return allowed && c.Path != "/" && !c.IsChallenge() && haproxy.CheckPath(nginx.AnyCase(c.Path)) == nil
}

// Express makes regular expressions of the paths of some hosts, in any case of their letters. The path "/"
// becomes a prefix, since each path begins with it.
func (c *Claim) Express(of func(host string) bool) {
	c.Paths = slices.Clone(c.Paths)
	for i := range c.Paths {
		switch p := &c.Paths[i]; {
		case !of(p.Host):
		case p.Path == "/" && p.Match == haproxy.Exact:
			p.Match = haproxy.Prefix
		case p.Expressible():
			p.Path, p.Match = nginx.AnyCase(p.Path), haproxy.Regexp
		}
	}
}

// A RuleAt is a rule of a route at a Gateway that shares the addresses of Ingresses.
type RuleAt struct {
	*gateway.Rule
	Gate      *Gate
	TLSOnly   bool                 // no listener for plain HTTP takes its requests
	Redirects *haproxy.Redirection // nil unless it redirects plain HTTP to https, and does nothing else
}

// A Gate is a Gateway as a petitioner. The caller sets its At, and the Addresses and Refused of its Gateway.
type Gate struct {
	Petitioner
	*gateway.Gateway
	At []netip.Addr // where it listens: addresses that its status records, and that are its own
}

// ReferenceTo returns a reference to an object of a cluster.
func ReferenceTo(cluster, kind string, o metav1.Object) input.ObjectRef {
	return input.ObjectRef{
		Cluster: cluster, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
	}
}

// A Tenant is a namespace of a cluster.
type Tenant struct {
	World     int
	Namespace string
}

// PetitionerFor returns an object without keys as a petitioner.
func PetitionerFor(world int, ref input.ObjectRef, created time.Time) Petitioner {
	return Petitioner{World: world, Claimant: &Claimant{Ref: ref, Created: created}}
}
