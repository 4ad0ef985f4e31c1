package watch

import (
	"maps"
	"sync/atomic"

	"sallyport/ingress"
	"sallyport/ingress/input"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// endpoints are the EndpointSlices of a cluster. Each namespace has a share of the
// memory for them.
type endpoints struct {
	shelf *shelf[*discoveryv1.EndpointSlice]
	// served has the Services that something served leads to, or nil before the first Result.
	served atomic.Pointer[map[types.NamespacedName][]string]
}

// Serve says which Services something served leads to, by the last Result. These Services and
// their EndpointSlices displace others of their namespace where there are too many.
func (w *Watcher) Serve(r ingress.Result) {
	now, _ := r.Services(w.cfg.Name)
	was := w.endpoints.served.Swap(&now)
	others := func(namespace string) bool {
		return was == nil ||
			!maps.EqualFunc(only(*was, namespace), only(now, namespace), func(_, _ []string) bool { return true })
	}
	w.endpoints.shelf.refer(others)
	w.services.refer(others)
}

// only returns the entries of a namespace.
func only(all map[types.NamespacedName][]string, namespace string) map[types.NamespacedName][]string {
	of := make(map[types.NamespacedName][]string)
	for key, value := range all {
		if key.Namespace == namespace {
			of[key] = value
		}
	}
	return of
}

// referred reports whether something that is served leads to the Service of a slice. The
// slices of the API server are needed in any case.
func (e *endpoints) referred(s *discoveryv1.EndpointSlice) bool {
	return input.ServiceOf(s) == input.APIServer || e.needed(input.ServiceOf(s))
}

// needed reports whether something that is served leads to a Service.
func (e *endpoints) needed(service types.NamespacedName) bool {
	served := e.served.Load()
	if served == nil {
		return false
	}
	_, is := (*served)[service]
	return is
}
