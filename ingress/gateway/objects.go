package gateway

import gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

// Objects holds the objects of Gateway API of one cluster, by kind. Each list is sorted by namespace
// and name. An object is never changed: a new version of an object is a new pointer.
type Objects struct {
	Classes      []*gatewayv1.GatewayClass
	Gateways     []*gatewayv1.Gateway
	ListenerSets []*gatewayv1.ListenerSet
	HTTPRoutes   []*gatewayv1.HTTPRoute
	GRPCRoutes   []*gatewayv1.GRPCRoute
	TLSRoutes    []*gatewayv1.TLSRoute
	TCPRoutes    []*gatewayv1.TCPRoute
	Grants       []*gatewayv1.ReferenceGrant
	TLSPolicies  []*gatewayv1.BackendTLSPolicy
}
