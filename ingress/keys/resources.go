package keys

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
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
func (w *World) backendFinder(
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
func (w *World) resource(b *input.Backend) resource {
	r, known := w.resources[b]
	if !known {
		r.Resource, r.err = kic.Backend(b.Spec, b.Older())
		w.resources[b] = r
	}
	return r
}

// sectionFinder returns a function that looks up the resource about a section that the ConfigMap names, and
// notes it in found.
func (w *World) sectionFinder(
	found *[]foundSection,
) func(annotations.Kind, haproxy.Section, annotations.Ref) (*annotations.Section, error) {
	return func(kind annotations.Kind, into haproxy.Section, ref annotations.Ref) (*annotations.Section, error) {
		if !w.Options.CustomResources {
			return nil, nil //nolint:nilnil // as annotations.Env wants it
		}
		key, _ := w.Named(annotations.ConfigMap, "", ref)
		object, read := w.section(kind, key)
		*found = append(*found, foundSection{kind, key, object})
		if object == nil {
			return nil, fmt.Errorf("there is no %s %s, or it cannot be read", kind, key)
		}
		s, err := read(into)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", kind, key, err)
		}
		return s, nil
	}
}

// A sectionReader reads a resource about a section of HAProxy's configuration.
type sectionReader func(haproxy.Section) (*annotations.Section, error)

// section returns a ConfigMap, or a resource about a section and a function that reads it. If there is no such object,
// section returns nil.
func (w *World) section(kind annotations.Kind, key types.NamespacedName) (object metav1.Object, read sectionReader) {
	switch kind {
	case annotations.ConfigMapKind:
		if m, ok := input.Find(w.ConfigMaps, key); ok {
			return m, nil
		}
	case annotations.GlobalKind:
		if g, ok := input.Find(w.Globals, key); ok {
			return g, func(haproxy.Section) (*annotations.Section, error) { return kic.Global(g.Spec, g.Older()) }
		}
	case annotations.DefaultsKind:
		if d, ok := input.Find(w.Defaults, key); ok {
			return d, func(haproxy.Section) (*annotations.Section, error) { return kic.Defaults(d.Spec, d.Older()) }
		}
	case annotations.FrontendKind:
		if f, ok := input.Find(w.Frontends, key); ok {
			return f, func(into haproxy.Section) (*annotations.Section, error) { return kic.Frontend(f.Spec, into) }
		}
	}
	return nil, nil
}

// Bytes returns how many bytes of configuration the keys of an object of a namespace take in one backend.
func (w *World) Bytes(l annotations.Layer, home string) int {
	n := l.Bytes()
	for _, ref := range l.Refers(annotations.ConfigMapKind) {
		if key, err := w.ConfigMapNamedBy(l.Scope, home, ref); err == nil {
			if m, ok := input.Find(w.ConfigMaps, key); ok {
				n += input.Size(m)
			}
		}
	}
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
