package ingress

import (
	"maps"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints are the EndpointSlices of a cluster. Each namespace has a share of the
// memory for them.
type endpoints struct {
	shelf  *shelf[*discoveryv1.EndpointSlice]
	served atomic.Pointer[map[serviceKey][]string] // the Services that something served leads to; nil: not known yet
}

// stripSlice removes the fields of an EndpointSlice that nobody reads, and the addresses
// of each endpoint after the first, which all lead to the same pod.
func stripSlice(s *discoveryv1.EndpointSlice) {
	s.Annotations, s.OwnerReferences, s.Finalizers = nil, nil, nil
	maps.DeleteFunc(s.Labels, func(key, _ string) bool { return key != discoveryv1.LabelServiceName })
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		kept := discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName}
		if len(e.Addresses) > 1 {
			kept.Addresses = slices.Clone(e.Addresses[:1])
		}
		if to := e.TargetRef; to != nil {
			kept.TargetRef = &corev1.ObjectReference{Kind: to.Kind, Namespace: to.Namespace, Name: to.Name}
		}
		*e = kept
	}
}

// Serve says which Services something served leads to, by the last Result. These Services and
// their EndpointSlices displace others of their namespace where there are too many.
func (w *Watcher) Serve(r Result) {
	now, _ := r.services(w.cfg.Name)
	was := w.endpoints.served.Swap(&now)
	others := func(namespace string) bool {
		return was == nil ||
			!maps.EqualFunc(only(*was, namespace), only(now, namespace), func(_, _ []string) bool { return true })
	}
	w.endpoints.shelf.refer(others)
	w.services.refer(others)
}

// services returns the Services of a cluster that something leads to. It reports whether
// the Result has the cluster.
func (r Result) services(cluster string) (users map[serviceKey][]string, known bool) {
	if r.routing == nil {
		return nil, false
	}
	i := slices.IndexFunc(r.routing.of, func(w *world) bool { return w.Cluster == cluster })
	if i < 0 {
		return nil, false
	}
	return r.routing.users[i], true
}

// only returns the entries of a namespace.
func only(all map[serviceKey][]string, namespace string) map[serviceKey][]string {
	of := make(map[serviceKey][]string)
	for key, value := range all {
		if key.namespace == namespace {
			of[key] = value
		}
	}
	return of
}

// kubernetes is the Service of the API server.
var kubernetes = serviceKey{"default", "kubernetes"}

// referred reports whether something that is served leads to the Service of a slice. The
// slices of the API server are needed in any case.
func (e *endpoints) referred(s *discoveryv1.EndpointSlice) bool {
	return serviceOf(s) == kubernetes || e.needed(serviceOf(s))
}

// needed reports whether something that is served leads to a Service.
func (e *endpoints) needed(service serviceKey) bool {
	served := e.served.Load()
	if served == nil {
		return false
	}
	_, is := (*served)[service]
	return is
}
