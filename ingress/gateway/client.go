package gateway

import (
	"fmt"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// checkClients reads which certificates a Gateway wants from its clients, and shows to its servers.
// Neither is supported. A listener whose clients would need a certificate is closed.
func checkClients(g *Gateway) {
	tls := g.Object.Spec.TLS
	if tls == nil {
		return
	}
	if tls.Backend != nil && tls.Backend.ClientCertificateRef != nil {
		g.client = &Refusal{
			string(gatewayv1.GatewayReasonInvalidClientCertificateRef),
			"spec.tls.backend.clientCertificateRef is not supported, so servers see no certificate; remove it",
		}
	}
	if tls.Frontend == nil {
		return
	}
	for _, l := range g.Listeners {
		if l.Protocol == gatewayv1.HTTPSProtocolType && validates(tls.Frontend, l.Port) {
			l.closed = &Refusal{string(gatewayv1.ListenerReasonInvalid), fmt.Sprintf(
				"spec.tls.frontend of Gateway %s asks clients for certificates, which is not supported: the listener "+
					"is closed; remove the validation for port %d", g.Key(), l.Port)}
		}
	}
}

// ClientAuthorities returns the references to authorities in the settings of a Gateway for the
// certificates of its clients.
func ClientAuthorities(g *gatewayv1.Gateway) (refs []gatewayv1.ObjectReference) {
	if g.Spec.TLS == nil || g.Spec.TLS.Frontend == nil {
		return nil
	}
	add := func(of gatewayv1.TLSConfig) {
		if of.Validation != nil {
			refs = append(refs, of.Validation.CACertificateRefs...)
		}
	}
	add(g.Spec.TLS.Frontend.Default)
	for _, p := range g.Spec.TLS.Frontend.PerPort {
		add(p.TLS)
	}
	return refs
}

// validates reports whether clients at a port need a certificate. The settings of a port override
// the default of all ports.
func validates(f *gatewayv1.FrontendTLSConfig, port uint16) bool {
	for _, p := range f.PerPort {
		if int64(p.Port) == int64(port) {
			return p.TLS.Validation != nil
		}
	}
	return f.Default.Validation != nil
}
