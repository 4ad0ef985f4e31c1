package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/cert"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/listen"
)

// Gateways
//
// Package gateway decides which routes attach to which listeners. The step attach asks it. The step
// admitRoutes counts the routes against the limits of their namespaces. The step balance gives addresses to the
// Gateways. The step listen makes listeners, routes and certificates of HAProxy at those of them that
// the statuses record. No host is claimed there: at the address of a Gateway those routes count that
// the owner of the Gateway allows (allowedRoutes). Options.Hosts reserve hosts there, too. Gateways that
// share the addresses of Ingresses are in shared.go.

// gates hold all that a builder makes of Gateways.
type gates struct {
	all     []*gate // that have addresses of their own
	sharing map[*gateway.Gateway]*gate
	pairs   map[*corev1.Secret]*pair // that were looked up for Gateways
	counted map[*gateway.Route]bool  // against the limits of their namespaces
}

// attach decides for each cluster which routes attach to which listeners.
func (b *builder) attach() {
	b.attached, b.opener = make([]*gateway.Attachment, len(b.worlds)), b.newOpener()
	for i, w := range b.worlds {
		if b.about != nil && b.about.whole.attached[i] != nil {
			b.attached[i] = b.about.whole.attached[i].Alone(b.apiOf(i))
			b.opener.Attach(i, b.attached[i])
			continue
		}
		if b.about != nil || !w.Options.Gateway.Enabled {
			continue
		}
		a := gateway.Attach(b.apiOf(i))
		b.attached[i] = a
		b.opener.Attach(i, a)
		for _, g := range a.Gateways {
			if !g.Shared {
				b.gateways.all = append(b.gateways.all,
					&gate{Petitioner: b.petitionerOf(i, "Gateway", g.Object), Gateway: g})
				continue
			}
			for _, addr := range w.Options.Gateway.Shared {
				g.Addresses = append(g.Addresses, addr.String())
			}
		}
	}
}

// petitionerOf returns an object of Gateway API as a petitioner.
func (b *builder) petitionerOf(world int, kind string, o metav1.Object) petitioner {
	ref := claims.ReferenceTo(b.worlds[world].Cluster, kind, o)
	return claims.PetitionerFor(world, ref, o.GetCreationTimestamp().Time)
}

// apiOf returns all that package gateway may know of a world.
func (b *builder) apiOf(world int) gateway.World {
	w := b.worlds[world]
	admitted := input.ClassesOf(&w.Snapshot)
	return gateway.World{
		Objects: w.API, Controller: w.Options.Gateway.Controller, Bundle: w.APIBundle, Channel: w.APIChannel,
		Mirrors: b.mirrors(), Named: w.Options.Gateway.Named, Paths: w.Options.Limits.Paths,
		Admits: admitted.Admits, Shares: w.sharesAddresses,
		Labels: func(namespace string) labels.Set {
			of, known := input.Find(w.Namespaces, serviceKey{Name: namespace})
			if !known {
				return nil
			}
			// The API server sets this label. A picture may lack it.
			return labels.Merge(labels.Set{corev1.LabelMetadataName: namespace}, of.Labels)
		},
		Port: func(port uint16, protocol gatewayv1.ProtocolType, shared bool) *gateway.Refusal {
			if shared {
				return b.refuseShared(port, protocol)
			}
			if owner := b.Reserved[port]; owner != "" {
				return &gateway.Refusal{
					Reason: string(gatewayv1.ListenerReasonPortUnavailable),
					Why:    fmt.Sprintf("port %d is in use by %s on the appliance", port, owner),
				}
			}
			return nil
		},
		Service: func(key serviceKey, port int32, _ string) *gateway.Refusal {
			service, ok := input.Find(w.Services, key)
			n := need{reference: reference{Service: key, Number: port}}
			if why := n.find(service, ok); why.Reason != "" {
				return &gateway.Refusal{Reason: string(gatewayv1.RouteReasonBackendNotFound), Why: why.Why}
			}
			return nil
		},
		Exported: func(key serviceKey) *gateway.Refusal {
			if w.Exported(key) {
				return nil
			}
			return &gateway.Refusal{
				Reason: string(gatewayv1.RouteReasonBackendNotFound),
				Why: fmt.Sprintf("ServiceImport %s needs a ServiceExport of that name, and a cluster in a set "+
					"(clusters[].set)", key),
			}
		},
		Certificate: func(key serviceKey) *gateway.Refusal {
			if _, why := b.pairIn(w, key); why != "" {
				return &gateway.Refusal{Reason: string(gatewayv1.ListenerReasonInvalidCertificateRef), Why: why}
			}
			return nil
		},
		Authorities: func(key serviceKey) *gateway.Refusal {
			if why := b.opener.Authorities(world, key); why != "" {
				return &gateway.Refusal{Why: why}
			}
			return nil
		},
		Host: func(namespace, host string) *gateway.Refusal {
			if err := b.admit(world, namespace, host); err != nil {
				return &gateway.Refusal{Reason: "HostOwned", Why: fmt.Sprintf("%s is not served for namespace %s: %v",
					cmp.Or(host, "any host"), namespace, err)}
			}
			return nil
		},
	}
}

// mirrors reports whether HAProxy can copy requests, and asks for it.
func (b *builder) mirrors() bool {
	verdict := b.Verdict(haproxy.LuaSupport())
	return verdict.Known && verdict.Why == ""
}

// accepted returns a pair that is unusable if HAProxy has refused it.
func (b *builder) accepted(p *pair) *pair {
	why := b.verdicts[p.Part].Why
	if why == "" {
		return p
	}
	b.Refused = append(b.Refused, p.Part)
	return &pair{Unusable: "has a certificate that cannot be used: " + why}
}

// pairIn returns the certificate in a Secret for a listener, or why it cannot be used.
func (b *builder) pairIn(w *world, key serviceKey) (read *pair, why string) {
	read, _, why = b.readPair(w, key, b.gateways.pairs)
	return read, why
}

// readPair returns the certificate in a Secret, or the reason and why it cannot be used. It remembers the
// certificate in used.
func (b *builder) readPair(w *world, key serviceKey, used map[*corev1.Secret]*pair) (read *pair, reason, why string) {
	secret, ok := input.Find(w.Secrets, key)
	switch {
	case !ok && w.NoSecrets:
		return nil, "SecretNotFound",
			fmt.Sprintf("Secret %s cannot be read: the appliance may not list Secrets in this cluster", key)
	case !ok:
		return nil, "SecretNotFound", fmt.Sprintf("there is no Secret %s", key)
	}
	if read = cmp.Or(b.gateways.pairs[secret], b.pairs[secret]); read == nil {
		read = cert.Read(secret)
	}
	used[secret] = read
	if read = b.accepted(read); read.Unusable != "" {
		return nil, "CertificateUnusable", fmt.Sprintf("Secret %s %s", key, read.Unusable)
	}
	return read, "", ""
}

// admitRoutes refuses each route that is beyond a limit of its namespace. Older routes are counted
// first, after the claims.
func (b *builder) admitRoutes() {
	for i, a := range b.attached {
		if a == nil {
			continue
		}
		b.made.routed += len(a.Routes)
		for _, r := range a.Routes {
			switch why := r.Beyond(); {
			case why != "":
				b.reportOn(b.petitionerOf(i, r.Kind, r.Object).Ref, "LimitReached", "%s", why)
				b.bounds(tenant{World: i, Namespace: r.Object.GetNamespace()})
			case !b.gateways.counted[r]:
				b.admitRoute(i, r)
			}
		}
	}
}

// admitRoute counts a route against the limits of its namespace. It reports whether the route is within
// them, and refuses it if not.
func (b *builder) admitRoute(world int, r *gateway.Route) bool {
	of := tenant{World: world, Namespace: r.Object.GetNamespace()}
	if b.accounts[of] == nil {
		b.accounts[of] = claims.NewAccount(b.worlds[world].Options)
	}
	b.gateways.counted[r] = true
	refused := b.accounts[of].AdmitRoute(r)
	if why := b.bearRoute(of, r); why != "" {
		refused = append(refused, why)
	}
	if len(refused) == 0 {
		return true
	}
	why := fmt.Sprintf("the Ingresses and routes of namespace %s have more than %s", of.Namespace,
		strings.Join(refused, "; and more than "))
	b.reportOn(b.petitionerOf(world, r.Kind, r.Object).Ref, "LimitReached", "%s", why)
	b.attached[world].Drop(r, gateway.Refusal{Reason: "LimitReached", Why: why})
	b.bounds(of)
	return false
}

// bearRoute counts the bytes of configuration that a route takes: its filters and the keys of its
// Services, which each backend repeats. It returns a part of a sentence if they are beyond the limit.
// Then they count for nothing.
func (b *builder) bearRoute(of tenant, r *gateway.Route) string {
	w, a := b.worlds[of.World], b.accounts[of]
	bytes, most := 0, w.Options.Limits.ConfigBytes
	var added []claims.BackendOf
	for _, rule := range r.Rules {
		own := rule.Bytes()
		if listen.ReplacesPrefix(rule.Filters) { // there are backends for the path of each match
			own *= max(len(rule.Matches), 1)
		}
		if len(rule.Refs) == 0 {
			bytes += own
		}
		for _, ref := range rule.All() {
			service, _ := input.Find(w.Services, ref.Service)
			keys := w.keys.Bytes(b.memory.Layer(service), ref.Service.Namespace)
			shared := claims.BackendOf{To: reference{Service: ref.Service, Number: ref.Port}}
			switch {
			case own+ref.Bytes() > 0: // the backend has a name of its own
				bytes += own + ref.Bytes() + keys
			case keys > 0 && a.Weigh(shared):
				added, bytes = append(added, shared), bytes+keys
			}
		}
	}
	if !a.Spend(bytes, most, added) {
		return fmt.Sprintf("%d bytes of HAProxy's configuration (clusters[].ingress.limits.configBytes): this %s "+
			"takes %d with its filters and the keys of its Services, which each backend repeats", most, r.Kind, bytes)
	}
	b.weight[of] += bytes
	return ""
}

// newOpener returns an Opener for this round, which has no routes yet.
func (b *builder) newOpener() *listen.Opener {
	worlds := make([]listen.World, len(b.of))
	for i, w := range b.of {
		worlds[i] = listen.World{Snapshot: &w.Snapshot, Prefix: w.keys.Prefix}
	}
	o := listen.NewOpener(b, worlds, b.authorities)
	o.About, o.Part, o.Reserved = b.about.has, b.about != nil, b.reservedHosts()
	return o
}

// listen makes the listeners of the Gateways at their addresses, and what is behind them.
func (b *builder) listen() {
	if !slices.ContainsFunc(b.attached, func(a *gateway.Attachment) bool { return a != nil }) {
		return
	}
	if b.about != nil {
		b.opener.Serve(b.about.whole.listening.Ports)
	} else {
		b.opener.Open(b.gateways.all)
	}
	made := b.opener.Finish()
	b.listening = made
	for of := range made.Limited {
		b.bounds(of)
	}
	c := &b.Config
	c.Listeners, c.Hostnames = made.Config.Listeners, made.Config.Hostnames
	c.Picks, c.Forms = made.Config.Picks, made.Config.Forms
	c.Extras = append(c.Extras, made.Config.Extras...)
	c.Certs = append(c.Certs, made.Config.Certs...)
	slices.SortFunc(c.Certs, func(x, y *haproxy.Cert) int { return cmp.Compare(x.Name, y.Name) })
	if b.about == nil {
		if before := b.Compiler.routing; before != nil {
			b.recall(before)
		}
		b.tellStatuses()
	}
}

// recall keeps each status of the routing before with the same content.
func (r *routing) recall(before *routing) {
	for i, a := range r.attached {
		if a != nil && i < len(before.attached) && before.attached[i] != nil {
			a.Recall(before.attached[i])
		}
	}
}

// tellStatuses makes the statuses of all objects of Gateway API, and the Problems that they tell.
func (r *routing) tellStatuses() {
	r.Statuses, r.Unmet = make(map[string][]*gateway.Status), nil
	for i, w := range r.of {
		if a := r.attached[i]; a != nil {
			r.Statuses[w.Cluster] = a.Statuses()
		}
	}
	for _, cluster := range sortedKeys(r.Statuses) {
		r.Unmet = append(r.Unmet, listen.Unmet(cluster, r.Statuses[cluster])...)
	}
}

// AllProblems returns the Problems, and those of Unmet that say something else of their object.
func (r Result) AllProblems() []Problem {
	if len(r.Unmet) == 0 {
		return r.Problems
	}
	type sentence struct {
		of  input.ObjectRef
		why string
	}
	told := make(map[sentence]bool, len(r.Problems))
	for _, p := range r.Problems {
		told[sentence{p.ObjectRef, p.Why}] = true
	}
	rest := slices.DeleteFunc(slices.Clone(r.Unmet), func(p Problem) bool { return told[sentence{p.ObjectRef, p.Why}] })
	return sorted(r.routing.of, slices.Concat(r.Problems, rest))
}

// Gateways returns how each Gateway is served, by cluster, and the older first.
func (r Result) Gateways() (all []GatewayReport) {
	r.attachments(func(cluster string, a *gateway.Attachment) {
		all = append(all, listen.ReportGateways(cluster, a)...)
	})
	return all
}

// Routes returns how each route of Gateway API is served, by cluster, and the older first.
func (r Result) Routes() (all []RouteReport) {
	r.attachments(func(cluster string, a *gateway.Attachment) {
		all = append(all, listen.ReportRoutes(cluster, a)...)
	})
	return all
}

// attachments calls do for each cluster with Gateway API.
func (r Result) attachments(do func(cluster string, a *gateway.Attachment)) {
	if r.routing == nil {
		return
	}
	for i, a := range r.routing.attached {
		if a != nil {
			do(r.routing.of[i].Cluster, a)
		}
	}
}
