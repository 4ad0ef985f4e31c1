package watch

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/input"
)

// backends is the resource of Backends of HAProxy's own controller.
const backends = "backends"

// backendVersions are the API groups of Backends, with their versions. A Backend of the first group overrides
// one of the second group with its name.
var backendVersions = func() (all []schema.GroupVersion) {
	for _, text := range []string{input.BackendV3, input.BackendV1} {
		version, _ := schema.ParseGroupVersion(text) // both are well formed
		all = append(all, version)
	}
	return all
}()

// customResources returns the Backends of HAProxy's own controller, of one API group.
func (w *Watcher) customResources(version schema.GroupVersion) *optional[*input.Backend] {
	return &optional[*input.Backend]{
		plural: "Backends of " + version.Group, resource: backends, versions: []schema.GroupVersion{version},
		open: w.shelfOfBackends,
	}
}

func (w *Watcher) shelfOfBackends(version schema.GroupVersion) *shelf[*input.Backend] {
	share := newAllowance("objectBytes", "Backend", w.objectBytes(), func(*input.Backend) bool { return true })
	share.follows = "all clients of the objects that name one of the others are rejected"
	s := newShare(w, version.Group, backends, input.ByName, share, func(namespace string) reader[runtime.Object] {
		return w.kube.API(version.WithResource(backends), namespace)
	})
	s.strip = func(b *input.Backend) {
		b.Annotations, b.Labels, b.ManagedFields = nil, nil, nil
		b.APIVersion, b.Kind = version.String(), "Backend" // the entries of a list need not have them
	}
	s.without = "Backends of " + version.Group +
		" cannot be read: all clients of the objects that name one are rejected"
	return s
}

// dropOlder leaves out each Backend of ingress.v1.haproxy.org with the name of one of ingress.v3.haproxy.org,
// and reports it.
func dropOlder(s *input.Snapshot) {
	twice := func(a, b *input.Backend) bool { return input.KeyOf(a) == input.KeyOf(b) }
	list := slices.CompactFunc(slices.Clone(s.Backends), twice) // those of the newer group come first
	if len(list) == len(s.Backends) {
		return
	}
	for i, b := range s.Backends {
		if i > 0 && twice(b, s.Backends[i-1]) {
			ref := input.ObjectRef{
				Cluster: s.Cluster, Kind: "Backend", Namespace: b.Namespace, Name: b.Name, UID: string(b.UID),
			}
			s.Beyond = append(s.Beyond, input.Problem{
				ObjectRef: ref, Reason: "UnusedResource",
				Why: "a Backend of ingress.v3.haproxy.org with this name overrides it",
			})
		}
	}
	s.Backends = list
}
