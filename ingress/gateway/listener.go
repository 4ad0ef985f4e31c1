package gateway

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Listener is a listener of a Gateway, or of a ListenerSet that belongs to it.
type Listener struct {
	Gateway      *Gateway
	Name         string
	Namespace    string // of the object that has it
	Port         uint16
	Protocol     gatewayv1.ProtocolType
	Hostname     string
	Passthrough  bool                   // TLS goes to the servers as it is
	Certificates []types.NamespacedName // Secrets; those that are usable
	Clients      *Clients               // nil if clients need no certificate; the same for all listeners of a port

	spec       *gatewayv1.Listener
	set        *listenerSet // nil if the Gateway has it
	kinds      []string
	refused    *Refusal // it is not accepted
	conflict   *Refusal // an earlier listener has the same port and hostname, or another protocol
	unresolved *Refusal // some of its references cannot be used
	closed     *Refusal // it cannot be served, for another reason than refused; its routes stay attached
}

// Serves reports whether the listener can be served.
func (l *Listener) Serves() bool {
	return l.Gateway.unusable == nil && l.refused == nil && l.conflict == nil && l.closed == nil
}

// Close says that the listener cannot be served. Its routes stay attached. With the reason PortUnavailable
// the listener is also not accepted. With the reason Pending nothing is wrong with it.
func (l *Listener) Close(r Refusal) { l.closed = &r }

// pending reports whether nothing is wrong with the listener, and it only waits to be opened.
func (l *Listener) pending() bool {
	return l.unaccepted() == nil && l.closed != nil && l.closed.Reason == string(gatewayv1.ListenerReasonPending)
}

// faulty reports whether something is wrong with the listener itself.
func (l *Listener) faulty() bool {
	return l.refused != nil || l.conflict != nil || l.unresolved != nil || l.closed != nil && !l.pending()
}

// unaccepted returns why the listener is not accepted, or nil.
func (l *Listener) unaccepted() *Refusal {
	why := cmp.Or(l.refused, l.conflict)
	if why == nil && l.closed != nil && l.closed.Reason == string(gatewayv1.ListenerReasonPortUnavailable) {
		return l.closed
	}
	return why
}

// HTTP reports whether the routes of the listener see requests.
func (l *Listener) HTTP() bool {
	return l.Protocol == gatewayv1.HTTPProtocolType || l.Protocol == gatewayv1.HTTPSProtocolType
}

// String returns the name of the listener for people.
func (l *Listener) String() string {
	if l.set != nil {
		return fmt.Sprintf("listener %s of ListenerSet %s", l.Name, keyOf(l.set.object))
	}
	return fmt.Sprintf("listener %s of Gateway %s", l.Name, l.Gateway.Key())
}

// object returns the object that has the listener.
func (l *Listener) object() metav1.Object {
	if l.set != nil {
		return l.set.object
	}
	return l.Gateway.Object
}

// kindsOf returns the kinds of routes that go with a protocol.
func kindsOf(protocol gatewayv1.ProtocolType) []string {
	switch protocol {
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType:
		return []string{"HTTPRoute", "GRPCRoute"}
	case gatewayv1.TLSProtocolType:
		return []string{"TLSRoute"}
	case gatewayv1.TCPProtocolType:
		return []string{"TCPRoute"}
	}
	return nil
}

// listener reads a listener. set is nil if the Gateway has it.
func (a *Attachment) listener(g *Gateway, set *listenerSet, spec *gatewayv1.Listener) *Listener {
	l := &Listener{
		Gateway: g, Name: string(spec.Name), Namespace: g.Object.Namespace,
		Port:     uint16(spec.Port), //nolint:gosec // checked below
		Protocol: spec.Protocol, spec: spec, set: set, kinds: kindsOf(spec.Protocol),
	}
	if set != nil {
		l.Namespace = set.object.Namespace
	}
	var clean bool
	l.Hostname, clean = cleanHostname(string(value(spec.Hostname, "")))
	switch {
	case l.kinds == nil:
		l.refused = &Refusal{string(gatewayv1.ListenerReasonUnsupportedProtocol), fmt.Sprintf(
			"protocol %s is not supported; allowed are HTTP, HTTPS, TLS and TCP", quote(string(spec.Protocol)))}
	case spec.Port < 1 || spec.Port > 65535:
		l.refused = &Refusal{string(gatewayv1.ListenerReasonPortUnavailable), fmt.Sprintf(
			"port %d is not from 1 to 65535", spec.Port)}
	case !clean:
		l.refused = &Refusal{string(gatewayv1.ListenerReasonUnsupportedValue), fmt.Sprintf(
			`hostname %s is not a DNS name, with or without "*." in front`, quote(string(*spec.Hostname)))}
	default:
		l.refused = a.world.Port(l.Port, l.Protocol, g.Shared)
	}
	if l.Protocol == gatewayv1.TCPProtocolType {
		l.Hostname = ""
	}
	a.resolveKinds(l)
	if l.Protocol == gatewayv1.HTTPSProtocolType || l.Protocol == gatewayv1.TLSProtocolType {
		a.resolveTLS(l)
	}
	return l
}

// resolveKinds reads which kinds of routes a listener takes.
func (a *Attachment) resolveKinds(l *Listener) {
	if l.spec.AllowedRoutes == nil || len(l.spec.AllowedRoutes.Kinds) == 0 {
		return
	}
	can := l.kinds
	l.kinds = nil
	for _, k := range l.spec.AllowedRoutes.Kinds {
		kind := string(k.Kind)
		if value(k.Group, gatewayv1.GroupName) != gatewayv1.GroupName || !slices.Contains(can, kind) {
			l.unresolved = &Refusal{string(gatewayv1.ListenerReasonInvalidRouteKinds), fmt.Sprintf(
				"allowedRoutes.kinds has %s, which does not go with protocol %s", quote(kind),
				quote(string(l.Protocol)))}
			continue
		}
		if !slices.Contains(l.kinds, kind) {
			l.kinds = append(l.kinds, kind)
		}
	}
}

// resolveTLS reads the settings of TLS of a listener. A listener without a usable certificate is
// closed.
func (a *Attachment) resolveTLS(l *Listener) {
	tls := l.spec.TLS
	if tls == nil {
		tls = new(gatewayv1.ListenerTLSConfig)
	}
	switch mode := value(tls.Mode, gatewayv1.TLSModeTerminate); {
	case mode == gatewayv1.TLSModePassthrough && l.Protocol == gatewayv1.TLSProtocolType:
		l.Passthrough = true
		return
	case mode != gatewayv1.TLSModeTerminate:
		l.refused = cmp.Or(l.refused, &Refusal{string(gatewayv1.ListenerReasonUnsupportedValue), fmt.Sprintf(
			"tls.mode %s does not go with protocol %s", quote(string(mode)), l.Protocol)})
		return
	}
	kind := "Gateway"
	if l.set != nil {
		kind = "ListenerSet"
	}
	var wrong *Refusal
	for _, ref := range tls.CertificateRefs {
		key := types.NamespacedName{Namespace: namespaceOf(ref.Namespace, l.Namespace), Name: string(ref.Name)}
		var why *Refusal
		switch {
		case value(ref.Group, "") != "" || value(ref.Kind, "Secret") != "Secret":
			why = &Refusal{string(gatewayv1.ListenerReasonInvalidCertificateRef), fmt.Sprintf(
				"certificateRefs has a %s; allowed are Secrets", quote(string(value(ref.Kind, "Secret"))))}
		case !a.grants.allow(kind, l.Namespace, "Secret", key):
			why = &Refusal{string(gatewayv1.ListenerReasonRefNotPermitted), fmt.Sprintf(
				"Secret %s is in another namespace, and no ReferenceGrant there lets %ss of namespace %s name it",
				key, kind, l.Namespace)}
		default:
			why = a.world.Certificate(key)
		}
		if why == nil {
			l.Certificates = append(l.Certificates, key)
		}
		wrong = cmp.Or(wrong, why)
	}
	if len(tls.CertificateRefs) == 0 {
		wrong = &Refusal{
			string(gatewayv1.ListenerReasonInvalidCertificateRef),
			"tls.certificateRefs names no certificate: name a Secret of type kubernetes.io/tls",
		}
	}
	l.unresolved = cmp.Or(wrong, l.unresolved)
	if len(l.Certificates) == 0 {
		l.closed = wrong
	}
}

// settleConflicts refuses each listener that conflicts with one before it.
func settleConflicts(listeners []*Listener) {
	protocols := make(map[uint16]*Listener)
	hostnames := make(map[uint16]map[string]*Listener)
	for _, l := range listeners {
		if l.refused != nil {
			continue
		}
		first := protocols[l.Port]
		if first == nil {
			protocols[l.Port], hostnames[l.Port] = l, map[string]*Listener{l.Hostname: l}
			continue
		}
		same := hostnames[l.Port][l.Hostname]
		switch {
		case !together(first.Protocol, l.Protocol):
			l.conflict = &Refusal{string(gatewayv1.ListenerReasonProtocolConflict), fmt.Sprintf(
				"%s has port %d already, with protocol %s", first, l.Port, first.Protocol)}
		case same != nil:
			l.conflict = &Refusal{string(gatewayv1.ListenerReasonHostnameConflict), fmt.Sprintf(
				"%s has port %d already, with the same hostname", same, l.Port)}
		default:
			hostnames[l.Port][l.Hostname] = l
		}
	}
}

// together reports whether listeners of two protocols can have the same port. A handshake of HTTPS or TLS
// has a hostname, which tells to which listener a connection belongs.
func together(a, b gatewayv1.ProtocolType) bool {
	secure := func(p gatewayv1.ProtocolType) bool {
		return p == gatewayv1.HTTPSProtocolType || p == gatewayv1.TLSProtocolType
	}
	return a == b || secure(a) && secure(b)
}

// allows reports whether a listener takes routes of a namespace.
func (a *Attachment) allows(l *Listener, namespace string) bool {
	from := gatewayv1.NamespacesFromSame
	if l.spec.AllowedRoutes == nil || l.spec.AllowedRoutes.Namespaces == nil {
		return a.world.from(from, nil, l.Namespace, namespace)
	}
	n := l.spec.AllowedRoutes.Namespaces
	return a.world.from(value(n.From, from), n.Selector, l.Namespace, namespace)
}
