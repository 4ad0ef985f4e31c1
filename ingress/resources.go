package ingress

import (
	"fmt"
	"slices"

	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/ingress/kic"
)

// A resource is what a Backend of HAProxy's own controller says, or why nothing of it can be used.
type resource struct {
	*annotations.Resource
	err error
}

// backendFinder returns a function that looks up Backends of HAProxy's own controller for objects of a
// namespace, and notes them in found. A Backend of another namespace counts only if all namespaces are one
// tenant.
func (w *world) backendFinder(
	home string, found *[]foundBackend,
) func(annotations.Scope, annotations.Ref) (*annotations.Resource, error) {
	return func(scope annotations.Scope, ref annotations.Ref) (*annotations.Resource, error) {
		key, own := w.Named(scope, home, ref)
		switch {
		case !w.Options.CustomResources:
			return nil, nil //nolint:nilnil // as annotations.Env wants it
		case !own && !w.Options.OneTenant:
			return nil, fmt.Errorf("Backend %s is in another namespace, which the configuration file does not allow "+
				"(clusters[].ingress.trust)", key)
		}
		b, ok := input.Find(w.Backends, key)
		*found = append(*found, foundBackend{key, b})
		if !ok {
			return nil, fmt.Errorf("there is no Backend %s, or it cannot be read", key)
		}
		r := w.resource(b)
		if r.err != nil {
			return nil, fmt.Errorf("Backend %s: %w", key, r.err)
		}
		return r.Resource, nil
	}
}

// resource reads a Backend, unless it was read before.
func (w *world) resource(b *input.Backend) resource {
	r, known := w.resources[b]
	if !known {
		r.Resource, r.err = kic.Backend(b.Spec, b.Older())
		w.resources[b] = r
	}
	return r
}

// keepResources returns what was read of the Backends that are still there.
func (w *world) keepResources(was *world) map[*input.Backend]resource {
	if was.resources != nil && slices.Equal(w.Backends, was.Backends) {
		return was.resources
	}
	kept := make(map[*input.Backend]resource)
	for _, b := range w.Backends {
		if r, known := was.resources[b]; known {
			kept[b] = r
		}
	}
	return kept
}

// bytes returns how many bytes of configuration the keys of an object of a namespace take in one backend.
func (w *world) bytes(l annotations.Layer, home string) int {
	n := l.Bytes()
	ref, named := annotations.BackendOf(l)
	if !named {
		return n
	}
	r, err := w.backendFinder(home, new([]foundBackend))(l.Scope, ref)
	if err != nil || r == nil {
		return n
	}
	return n + r.Bytes()
}
