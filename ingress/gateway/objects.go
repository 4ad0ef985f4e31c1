package gateway

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

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

// Add adds a route to the list of its kind.
func (o *Objects) Add(route metav1.Object) {
	switch r := route.(type) {
	case *gatewayv1.HTTPRoute:
		o.HTTPRoutes = append(o.HTTPRoutes, r)
	case *gatewayv1.GRPCRoute:
		o.GRPCRoutes = append(o.GRPCRoutes, r)
	case *gatewayv1.TLSRoute:
		o.TLSRoutes = append(o.TLSRoutes, r)
	case *gatewayv1.TCPRoute:
		o.TCPRoutes = append(o.TCPRoutes, r)
	}
}

// WithoutRoutes returns the objects of all other kinds.
func (o Objects) WithoutRoutes() Objects {
	o.HTTPRoutes, o.GRPCRoutes, o.TLSRoutes, o.TCPRoutes = nil, nil, nil, nil
	return o
}

// RoutesBut returns the routes of all kinds that other objects do not have.
func (o *Objects) RoutesBut(others *Objects) (all []metav1.Object) {
	all = addObjects(all, Missing(o.HTTPRoutes, others.HTTPRoutes))
	all = addObjects(all, Missing(o.GRPCRoutes, others.GRPCRoutes))
	all = addObjects(all, Missing(o.TLSRoutes, others.TLSRoutes))
	return addObjects(all, Missing(o.TCPRoutes, others.TCPRoutes))
}

func addObjects[T metav1.Object](all []metav1.Object, list []T) []metav1.Object {
	for _, o := range list {
		all = append(all, o)
	}
	return all
}

// Missing returns the entries of a list that another list does not have. Most of both are
// the same, in the same order.
func Missing[T comparable](list, from []T) (all []T) {
	for len(list) > 0 && len(from) > 0 && list[0] == from[0] {
		list, from = list[1:], from[1:]
	}
	for len(list) > 0 && len(from) > 0 && list[len(list)-1] == from[len(from)-1] {
		list, from = list[:len(list)-1], from[:len(from)-1]
	}
	has := make(map[T]bool, len(from))
	for _, x := range from {
		has[x] = true
	}
	for _, x := range list {
		if !has[x] {
			all = append(all, x)
		}
	}
	return all
}
