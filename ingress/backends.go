package ingress

import (
	"slices"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/listen"
)

// Backend returns the backend of a port of a Service. Without effects all routes and Ingresses
// share it. Otherwise its name is made from the effects: all rules with the same ones share it.
func (b *builder) Backend(p petitioner, kind string, ref gateway.Ref, own listen.Effects) string {
	to := reference{Service: ref.Service, Number: ref.Port, Traffic: annotations.Requests, Open: own.Open}
	if kind == "TLSRoute" || kind == "TCPRoute" {
		to.Traffic = annotations.Ended
	}
	n, _ := b.backend(p, to) // Attach has found the Service and its port
	if to.Traffic == annotations.Ended {
		n.name = claims.Shorten(n.name+".tcp", ".")
	}
	if kind == "GRPCRoute" {
		own.Proto = "h2"
	}
	if to.Traffic == annotations.Ended && own.TLS.CA != nil {
		own.Proto = "h1" // the client's protocol is not known, so TLS offers none
	}
	if !own.None() {
		n.settings = b.memory.Derive(n.settings, own)
		n.name = claims.Shorten(n.name+".r-"+n.settings.Hash, ".")
		n.origin, n.named = ", ", true
	}
	b.add(n, p)
	for _, one := range n.settings.Asks {
		b.ask(p, one, ruleOf(kind))
	}
	return n.name
}

// Answer returns a backend without servers, which answers requests itself. kind is in its name, and
// does in its origin.
func (b *builder) Answer(p petitioner, kind, does string, own listen.Effects) string {
	n := need{
		world:     p.World,
		reference: reference{Service: serviceKey{Namespace: p.Ref.Namespace}, Traffic: annotations.Requests},
		settings:  b.memory.Derive(noSettings, own), origin: ", " + does, named: true,
	}
	n.name = claims.Shorten(b.worlds[p.World].keys.Prefix+p.Ref.Namespace+"_"+kind+".r-"+n.settings.Hash, ".")
	b.add(n, p)
	return n.name
}

// reservedHosts returns the hosts that the configuration file reserves. Routes for wider hosts have
// none of their requests.
func (b *builder) reservedHosts() (all []string) {
	add := func(s *Snapshot) {
		for _, rule := range s.Options.Hosts {
			if rule.Host != "*" {
				all = append(all, rule.Host)
			}
		}
	}
	for _, w := range b.of {
		add(&w.Snapshot)
	}
	for i := range b.Unknown {
		add(&b.Unknown[i])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// needOf returns a need with nothing but the route of a lead, as the object that leads there.
func needOf(l *listen.Lead, of []*world) need {
	r := l.Rule.Route
	return need{by: claims.ReferenceTo(of[l.World].Cluster, r.Kind, r.Object), asked: r.Created().Unix()}
}

// ruleOf names a rule in a sentence.
type ruleOf string

func (r ruleOf) String() string { return "a rule of this " + string(r) }

// noSettings are those of a backend of no Service.
var noSettings = new(settings)

// Certificate returns the certificate in a Secret for a listener, or why it cannot be used.
func (b *builder) Certificate(world int, key serviceKey) (c listen.Certificate, why string) {
	w := b.worlds[world]
	read, why := b.pairIn(w, key)
	if why != "" {
		return c, why
	}
	b.watchClock(w.At, read)
	return listen.Certificate{PEM: read.PEM, Expires: read.Leaf.NotAfter}, ""
}

// May returns why a namespace may not have the requests for a host, or nil.
func (b *builder) May(world int, namespace, host string) error {
	return b.admit(world, namespace, host)
}

// Verdict asks HAProxy a question, and returns the answer that is known by now.
func (b *builder) Verdict(q haproxy.Question) haproxy.Verdict {
	b.Questions = append(b.Questions, q)
	return b.verdicts[q.Part()]
}

// Refusal returns why HAProxy refuses a part, or "".
func (b *builder) Refusal(p haproxy.Part) string {
	why := b.verdicts[p].Why
	if why != "" {
		b.Refused = append(b.Refused, p)
	}
	return why
}
