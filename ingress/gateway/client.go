package gateway

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Clients say which certificates the clients of a listener have to show.
type Clients struct {
	Authorities []types.NamespacedName // ConfigMaps; one of their authorities has to have signed the certificate
	Insecure    bool                   // clients without such a certificate are accepted, too
}

// ClientAuthorities returns the references to authorities in the settings of a Gateway for the
// certificates of its clients.
func ClientAuthorities(g *gatewayv1.Gateway) (refs []gatewayv1.ObjectReference) {
	for _, v := range validationsOf(g) {
		refs = append(refs, v.CACertificateRefs...)
	}
	return refs
}

// validationsOf returns all validations of clients in the settings of a Gateway.
func validationsOf(g *gatewayv1.Gateway) (all []*gatewayv1.FrontendTLSValidation) {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return nil
	}
	add := func(of gatewayv1.TLSConfig) {
		if of.Validation != nil {
			all = append(all, of.Validation)
		}
	}
	add(g.Spec.TLS.Frontend.Default)
	for _, p := range g.Spec.TLS.Frontend.PerPort {
		add(p.TLS)
	}
	return all
}

// validationAt returns the validation of clients at a port, or nil. The settings of a port override
// the default of all ports.
func validationAt(f *gatewayv1.FrontendTLSConfig, port uint16) *gatewayv1.FrontendTLSValidation {
	for _, p := range f.PerPort {
		if int64(p.Port) == int64(port) {
			return p.TLS.Validation
		}
	}
	return f.Default.Validation
}

// resolveClients reads which certificates a Gateway wants from its clients.
func (a *Attachment) resolveClients(g *Gateway) {
	tls := g.Object.Spec.TLS
	if tls == nil || tls.Frontend == nil {
		return
	}
	for _, l := range g.Listeners {
		if l.Protocol != gatewayv1.HTTPSProtocolType {
			continue
		}
		switch v := validationAt(tls.Frontend, l.Port); {
		case v != nil && g.Shared:
			l.refused = cmp.Or(l.refused, &Refusal{
				string(gatewayv1.ListenerReasonUnsupportedValue),
				"spec.tls.frontend is set; clients cannot be asked for certificates at the addresses of Ingresses, " +
					"which the Gateway shares",
			})
		case v != nil:
			a.askClients(l, v)
		}
	}
}

// askClients reads which certificates the clients of a listener have to show. If no authority can be
// used, the listener is not accepted.
func (a *Attachment) askClients(l *Listener, v *gatewayv1.FrontendTLSValidation) {
	l.Clients = &Clients{Insecure: v.Mode == gatewayv1.AllowInsecureFallback}
	var wrong *Refusal
	home := l.Gateway.Object.Namespace
	for _, ref := range v.CACertificateRefs {
		key := types.NamespacedName{Namespace: namespaceOf(ref.Namespace, home), Name: string(ref.Name)}
		var why *Refusal
		switch {
		case ref.Group != "" || ref.Kind != "ConfigMap":
			why = &Refusal{string(gatewayv1.ListenerReasonInvalidCACertificateKind), fmt.Sprintf(
				"caCertificateRefs for the clients of port %d has a %s; allowed are ConfigMaps", l.Port,
				quote(string(ref.Kind)))}
		case !a.grants.allow("Gateway", home, "ConfigMap", key):
			why = &Refusal{string(gatewayv1.ListenerReasonRefNotPermitted), fmt.Sprintf(
				"ConfigMap %s is in another namespace, and no ReferenceGrant there lets Gateways of namespace %s "+
					"name it", key, home)}
		default:
			if why = a.world.Authorities(key); why != nil {
				why = &Refusal{string(gatewayv1.ListenerReasonInvalidCACertificateRef), why.Why}
			}
		}
		if why == nil {
			l.Clients.Authorities = append(l.Clients.Authorities, key)
		}
		wrong = cmp.Or(wrong, why)
	}
	l.unresolved = cmp.Or(wrong, l.unresolved)
	if len(l.Clients.Authorities) > 0 {
		return
	}
	why := "spec.tls.frontend names no authorities"
	if wrong != nil {
		why = wrong.Why
	}
	l.refused = cmp.Or(l.refused, &Refusal{string(gatewayv1.ListenerReasonNoValidCACertificate), why})
}

// resolveCertificate reads which certificate a Gateway shows to servers. Servers see no certificate if
// that one cannot be used.
func (a *Attachment) resolveCertificate(g *Gateway) {
	tls, home := g.Object.Spec.TLS, g.Object.Namespace
	if tls == nil || tls.Backend == nil || tls.Backend.ClientCertificateRef == nil {
		return
	}
	ref := tls.Backend.ClientCertificateRef
	key := types.NamespacedName{Namespace: namespaceOf(ref.Namespace, home), Name: string(ref.Name)}
	switch {
	case value(ref.Group, "") != "" || value(ref.Kind, "Secret") != "Secret":
		g.client = &Refusal{string(gatewayv1.GatewayReasonInvalidClientCertificateRef), fmt.Sprintf(
			"spec.tls.backend.clientCertificateRef names a %s; allowed are Secrets",
			quote(string(value(ref.Kind, "Secret"))))}
	case !a.grants.allow("Gateway", home, "Secret", key):
		g.client = &Refusal{string(gatewayv1.GatewayReasonRefNotPermitted), fmt.Sprintf(
			"Secret %s is in another namespace, and no ReferenceGrant there lets Gateways of namespace %s name it",
			key, home)}
	default:
		if why := a.world.Certificate(key); why != nil {
			g.client = &Refusal{string(gatewayv1.GatewayReasonInvalidClientCertificateRef), why.Why}
			return
		}
		g.Certificate = &key
	}
}
