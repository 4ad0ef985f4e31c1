package listen

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// A Builder makes the backends that routes lead to, and knows which certificates, hosts and parts may be
// used.
type Builder interface {
	// Backend returns the name of the backend for a port of a Service and the effects of a rule. kind is
	// the kind of the route.
	Backend(p claims.Petitioner, kind string, ref gateway.Ref, own Effects) string
	// Answer returns the name of a backend without servers, which answers requests itself. kind is in its
	// name, and does in its origin.
	Answer(p claims.Petitioner, kind, does string, own Effects) string
	// Certificate returns the certificate in a Secret, or why it cannot be used.
	Certificate(world int, key types.NamespacedName) (c Certificate, why string)
	// May returns why a namespace may not have the requests for a host, or nil.
	May(world int, namespace, host string) error
	// Verdict asks HAProxy a question, and returns the answer that is known by now.
	Verdict(q haproxy.Question) haproxy.Verdict
	// Refusal returns why HAProxy refuses a part, or "".
	Refusal(p haproxy.Part) string
}

// A Certificate is a usable certificate of a Secret, with its key.
type Certificate struct {
	PEM     []byte
	Expires time.Time
}

// A World is a cluster with its routes.
type World struct {
	*input.Snapshot
	Prefix   string              // of every name made for this cluster
	Attached *gateway.Attachment // nil without Gateway API
}

// An OpenPort is an address and port where a Gateway listens.
type OpenPort struct {
	*claims.Gate
	scope     string
	kind      haproxy.ListenerKind
	listeners []*gateway.Listener
}

// A Listening is all that an Opener has made.
type Listening struct {
	// Config has the Routes, Listeners, Hostnames, Certs, Picks, Forms and Extras of Gateways.
	Config  haproxy.Config
	Ports   []OpenPort
	Leads   []*Lead
	Takers  []*Taker                          // of each route of Config, in their order
	Forms   map[claims.Tenant]map[string]bool // names of Forms, by the namespace that brings them
	Copied  map[claims.Tenant]int             // matches of wider hosts in the rows of hosts
	Limited map[claims.Tenant]bool            // namespaces with something beyond a limit; see Everybody
}

// Everybody stands for all namespaces in Listening.Limited. Something is beyond a limit that all of them
// share, or a part cannot know it.
var Everybody claims.Tenant

// Exchange replaces the takers of the part then by those of the part now, and counts its matches anew. It
// returns false if something new would count for a limit. most returns the limit for the copied matches of
// a namespace. stays returns the route of an entry that the parts do not change, and nil for other entries.
func (l *Listening) Exchange(
	then, now *Listening, stays func(gateway.Entry) *gateway.Route, most func(claims.Tenant) int,
) bool {
	for _, taker := range now.Takers {
		for i, e := range taker.Entries {
			if route := stays(e); route != nil {
				taker.Entries[i] = e.Of(route)
			}
		}
	}
	l.Takers = gateway.Replace(l.Takers, then.Takers, now.Takers, compareTakers)
	for namespace, forms := range now.Forms {
		for name := range forms {
			if !l.Forms[namespace][name] {
				return false
			}
		}
	}
	l.Copied = maps.Clone(l.Copied)
	for of, n := range then.Copied {
		l.Copied[of] -= n
	}
	for of, n := range now.Copied {
		l.Copied[of] += n
		if limit := most(of); limit > 0 && l.Copied[of] > limit {
			return false
		}
	}
	return true
}

// A Taker has the entries that take the requests of a route at a listener: by each condition, then the
// rest.
type Taker struct {
	scope   string
	key     claims.Key
	Entries []gateway.Entry
}

func compareTakers(a, b *Taker) int {
	return cmp.Or(cmp.Compare(a.scope, b.scope), claims.CompareKeys(a.key, b.key))
}

// EntriesOf returns the entries that take the requests of a route at a listener.
func (l *Listening) EntriesOf(r *haproxy.Route) []gateway.Entry {
	at, found := slices.BinarySearchFunc(l.Takers, &Taker{scope: r.Scope, key: claims.KeyOf(r)}, compareTakers)
	if !found {
		return nil
	}
	return l.Takers[at].Entries
}

// A Lead is a rule, and where its requests go.
type Lead struct {
	World    int
	Rule     *gateway.Rule
	To       haproxy.Target
	Backends []string // the names of its backends, with those of mirrors
}

// An Opener makes the part of a Config that belongs to Gateways.
type Opener struct {
	Builder
	// About reports whether the round is about a host at a listener. Part says that it is not about all
	// hosts.
	About func(l *gateway.Listener, host string) bool
	Part  bool
	// Reserved are the hosts that the configuration file reserves. Routes for wider hosts have none of
	// their requests.
	Reserved []string

	worlds  []World
	memory  *Memory
	targets map[targetFor]haproxy.Target
	picks   map[string]*haproxy.Pick // by name
	looks   map[string]bool          // names of all Forms
	added   []string                 // names of the backends of the present target
	made    Listening
}

// NewOpener returns an Opener for the routes of worlds.
func NewOpener(b Builder, worlds []World, memory *Memory) *Opener {
	return &Opener{
		Builder: b, About: func(*gateway.Listener, string) bool { return true }, worlds: worlds, memory: memory,
		targets: make(map[targetFor]haproxy.Target), picks: make(map[string]*haproxy.Pick),
		looks: make(map[string]bool),
		made: Listening{
			Forms: make(map[claims.Tenant]map[string]bool), Copied: make(map[claims.Tenant]int),
			Limited: make(map[claims.Tenant]bool),
		},
	}
}

// Attach sets the routes of a world.
func (o *Opener) Attach(world int, a *gateway.Attachment) { o.worlds[world].Attached = a }

// Open makes the listeners of Gateways at their addresses, and the routes there.
func (o *Opener) Open(gates []*claims.Gate) {
	for _, g := range gates {
		for _, addr := range g.At {
			for _, port := range g.Ports() {
				o.listenAt(g, netip.AddrPortFrom(addr, port))
			}
		}
	}
	o.Serve(o.made.Ports)
}

// Serve makes the routes at ports that are open.
func (o *Opener) Serve(ports []OpenPort) {
	o.countForms(ports)
	for _, one := range ports {
		if one.kind.Requests() {
			o.requests(one)
		}
		if one.kind.Connections() {
			o.connections(one)
		}
	}
}

// Finish returns all that was made, sorted.
func (o *Opener) Finish() Listening {
	c := &o.made.Config
	slices.SortFunc(c.Routes, CompareRoutes)
	slices.SortFunc(o.made.Takers, compareTakers)
	slices.SortFunc(c.Listeners, func(x, y haproxy.Listener) int { return x.At.Compare(y.At) })
	slices.SortFunc(c.Hostnames, func(x, y haproxy.Hostname) int {
		return cmp.Or(cmp.Compare(x.Scope, y.Scope), cmp.Compare(x.Host, y.Host))
	})
	for _, name := range slices.Sorted(maps.Keys(o.picks)) {
		c.Picks = append(c.Picks, o.picks[name])
	}
	c.Forms = haproxy.FormsOf(c.Picks)
	return o.made
}

// CompareRoutes orders routes as a Config has them.
func CompareRoutes(a, b *haproxy.Route) int {
	return cmp.Or(cmp.Compare(a.Scope, b.Scope), claims.CompareKeys(claims.KeyOf(a), claims.KeyOf(b)))
}

// listenAt makes the listener at one address and port, unless the port is in use there.
func (o *Opener) listenAt(g *claims.Gate, at netip.AddrPort) {
	var these []*gateway.Listener
	for _, l := range g.On(at.Port()) {
		if l.Serves() {
			these = append(these, l)
		}
	}
	if verdict := o.Verdict(haproxy.FreeListener(at)); !verdict.Known || verdict.Why != "" {
		why := gateway.Refusal{Reason: string(gatewayv1.ListenerReasonPending), Why: "the port is not open yet"}
		if verdict.Why != "" {
			why = gateway.Refusal{
				Reason: string(gatewayv1.ListenerReasonPortUnavailable),
				Why: fmt.Sprintf("port %d of %s is %s on the appliance: use another port, or stop that program; then "+
					"the listener opens by itself", at.Port(), at.Addr(), verdict.Why),
			}
		}
		for _, l := range these {
			l.Close(why)
		}
		return
	}
	listener := haproxy.Listener{At: at, Owner: haproxy.Tenant{Cluster: g.Ref.Cluster, Namespace: g.Ref.Namespace}}
	if i := slices.IndexFunc(these, asks); i >= 0 {
		c := these[i].Clients
		ca := o.authorities(&o.worlds[g.World], c.Authorities...)
		if why := o.Refusal(ca.Part()); why != "" {
			for _, l := range these {
				if asks(l) {
					l.Close(gateway.Refusal{
						Reason: string(gatewayv1.ListenerReasonInvalid),
						Why:    "the authorities of its clients cannot be used together: " + why,
					})
				}
			}
			if these = slices.DeleteFunc(these, asks); len(these) == 0 {
				return
			}
		} else {
			o.made.Config.Extras = append(o.made.Config.Extras, ca)
			listener.ClientCA, listener.Insecure = ca.Name, c.Insecure
		}
	}
	scope := haproxy.ScopeOf(at)
	listener.Kind = kindOf(these)
	o.made.Ports = append(o.made.Ports, OpenPort{Gate: g, scope: scope, kind: listener.Kind, listeners: these})
	o.certificates(g, scope, these)
	o.made.Config.Listeners = append(o.made.Config.Listeners, listener)
}

// kindOf returns the kind of a Listener for all listeners of a port.
func kindOf(these []*gateway.Listener) haproxy.ListenerKind {
	kind := KindOf(these[0].Protocol)
	if slices.ContainsFunc(these, func(l *gateway.Listener) bool { return KindOf(l.Protocol) != kind }) {
		return haproxy.ListenMixed // the only protocols that go together
	}
	return kind
}

// asks reports whether a listener asks clients for certificates.
func asks(l *gateway.Listener) bool { return l.Clients != nil }

// KindOf returns the kind of a listener for a protocol.
func KindOf(p gatewayv1.ProtocolType) haproxy.ListenerKind {
	switch p {
	case gatewayv1.HTTPSProtocolType:
		return haproxy.ListenHTTPS
	case gatewayv1.TLSProtocolType:
		return haproxy.ListenTLS
	case gatewayv1.TCPProtocolType:
		return haproxy.ListenTCP
	}
	return haproxy.ListenHTTP
}

// certificates adds the certificates and hostnames of the listeners of one port where clients begin with
// TLS.
func (o *Opener) certificates(g *claims.Gate, scope string, listeners []*gateway.Listener) {
	w := &o.worlds[g.World]
	certs := make(map[string]*haproxy.Cert)
	for _, l := range listeners {
		for _, key := range l.Certificates {
			read, why := o.Certificate(g.World, key)
			if why != "" {
				continue // as the status of the listener says
			}
			name := claims.Shorten(w.Prefix+key.Namespace+"_"+key.Name, "_") + "_" +
				strings.NewReplacer(":", "-", "[", "", "]", "").Replace(scope) + ".pem"
			c := certs[name]
			if c == nil {
				c = &haproxy.Cert{
					Name: name, Scope: scope, PEM: read.PEM, Expires: read.Expires,
					Owner: w.Cluster + "/" + key.Namespace, Hosts: []string{},
				}
				certs[name] = c
			}
			if l.Hostname == "" {
				c.Hosts = nil // for good: it is shown for every name that it has
			} else if c.Hosts != nil && !slices.Contains(c.Hosts, l.Hostname) {
				c.Hosts = append(c.Hosts, l.Hostname)
			}
		}
		if tls := l.Protocol == gatewayv1.TLSProtocolType; tls || l.Protocol == gatewayv1.HTTPSProtocolType {
			part := strings.ReplaceAll(cmp.Or(l.Hostname, "any"), "*", "any")
			o.made.Config.Hostnames = append(o.made.Config.Hostnames,
				haproxy.Hostname{Scope: scope, Host: l.Hostname, Part: part, Streams: tls})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(certs)) {
		slices.Sort(certs[name].Hosts)
		o.made.Config.Certs = append(o.made.Config.Certs, certs[name])
	}
}
