package watch

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// The API group of ServiceExports, and their resource.
const (
	exportsGroup = gateway.SetGroup
	exports      = "serviceexports"
)

// exportsVersions are the versions of ServiceExports that are read, the preferred one first.
var exportsVersions = []schema.GroupVersion{
	{Group: exportsGroup, Version: "v1beta1"}, {Group: exportsGroup, Version: "v1alpha1"},
}

// readsExports reports whether a ServiceExport says anything to a cluster: it is in a set, and not all of
// its Services are exported.
func readsExports(o *input.Options) bool { return o.Set != "" && !o.ExportsAll }

// exported returns the ServiceExports of a cluster that is in a set.
func (w *Watcher) exported() *optional[*input.ServiceExport] {
	return &optional[*input.ServiceExport]{
		plural: "ServiceExports", resource: exports, versions: exportsVersions, open: w.shelfOfExports,
		lacks: "the cluster does not serve ServiceExports of " + exportsGroup + ", so it shares no Service with the " +
			"other clusters of its set: install their CRD, or remove clusters[].set",
	}
}

func (w *Watcher) shelfOfExports(version schema.GroupVersion) *shelf[*input.ServiceExport] {
	s := shelfOf[*input.ServiceExport](w, version, exports, "ServiceExport",
		"their Services are served by the pods of this cluster alone")
	s.same = func(a, b *input.ServiceExport) bool { return a.UID == b.UID } // nothing else of it is read
	s.strip = func(e *input.ServiceExport) { e.Annotations, e.Labels, e.ManagedFields = nil, nil, nil }
	s.without = "ServiceExports cannot be read: no Service is shared with another cluster of the set"
	return s
}
