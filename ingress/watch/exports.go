package watch

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress"
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
func readsExports(o *input.Options) bool { return o.InSet.Name != "" && !o.InSet.ExportsAll }

// exported returns the ServiceExports of a cluster that is in a set.
func (w *Watcher) exported() *optional[*input.ServiceExport] {
	return &optional[*input.ServiceExport]{
		plural: "ServiceExports", resource: exports, versions: exportsVersions, open: w.shelfOfExports,
		lacks: "the cluster does not serve ServiceExports of " + exportsGroup + ", so it shares no Service with the " +
			"other clusters of its set: install their CRD, or remove clusters[].set",
		mute: "the CRD of ServiceExports in the cluster has no subresource status, so no ServiceExport says whether " +
			"its pods are shared: install a CRD that has one",
	}
}

func (w *Watcher) shelfOfExports(version schema.GroupVersion) *shelf[*input.ServiceExport] {
	s := shelfOf[*input.ServiceExport](w, version, exports, "ServiceExport",
		"their Services are served by the pods of this cluster alone")
	s.same = func(a, b *input.ServiceExport) bool { return a.UID == b.UID } // Compile reads nothing else of it
	s.strip = func(e *input.ServiceExport) { e.Annotations, e.Labels, e.ManagedFields = nil, nil, nil }
	s.without = "ServiceExports cannot be read: no Service is shared with another cluster of the set"
	return s
}

// exportStatuses returns the statuses of ServiceExports that are not as wished. A JSON patch changes the own
// condition alone, whatever the others are. The version of the object in the patch proves the place of the
// condition: the API server refuses the patch of another version.
func (p *publisher) exportStatuses(wish *Publication, now metav1.Time) (all []statusPatch) {
	if len(wish.Exports) == 0 || p.exports == nil {
		return nil
	}
	shelf, version := p.exports()
	if shelf == nil {
		return nil
	}
	for _, want := range wish.Exports {
		is, has := shelf.newestOf(types.NamespacedName{Namespace: want.Namespace, Name: want.Name})
		if !has || string(is.UID) != want.UID {
			continue
		}
		own, written := is.Status.Own, 0
		if own != nil {
			written = 1
		}
		next := conditionOf(want, is, now)
		if own != nil && *own == next || !wish.may(written) {
			continue
		}
		all = append(all, p.exportPatch(version.WithResource(exports), is, next))
	}
	return all
}

// conditionOf returns the condition that a ServiceExport is to have. It keeps its time while its Status stays.
func conditionOf(want *ingress.Export, is *input.ServiceExport, now metav1.Time) metav1.Condition {
	c := metav1.Condition{
		Type: input.SharedCondition, Status: metav1.ConditionFalse, ObservedGeneration: is.Generation,
		Reason: want.Reason, Message: want.Why, LastTransitionTime: now.Rfc3339Copy(),
	}
	if want.Shared {
		c.Status = metav1.ConditionTrue
	}
	if own := is.Status.Own; own != nil && own.Status == c.Status {
		c.LastTransitionTime = own.LastTransitionTime
	}
	return c
}

// exportPatch returns the patch that gives a ServiceExport its condition.
func (p *publisher) exportPatch(
	of schema.GroupVersionResource, is *input.ServiceExport, next metav1.Condition,
) statusPatch {
	right := exports + "/status"
	fill := func(one *statusPatch) {
		one.body = []map[string]any{
			{"op": "test", "path": "/metadata/uid", "value": is.UID},
			{"op": "replace", "path": "/metadata/resourceVersion", "value": is.ResourceVersion},
			placed(is.Status, next),
		}
		one.text, _ = json.Marshal(next) // texts and a time
		one.done = "status published"
		one.denied = "the appliance may not write the status of ServiceExports (verb patch; API group " + exportsGroup +
			"; resource " + right + "): apply what `sallyport manifests` prints"
		one.log = p.log.With("namespace", is.Namespace, "resource", exports, "name", is.Name)
		one.send = func(ctx context.Context, patch []byte) error {
			to := p.kube.API(of, is.Namespace)
			_, err := to.Patch(ctx, is.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "status")
			return err
		}
	}
	return statusPatch{of: is, kindName: "ServiceExport", kind: types.JSONPatchType, right: right, fill: fill}
}

// placed returns the operation of a JSON patch that puts the own condition into a status.
func placed(in input.ExportStatus, own metav1.Condition) map[string]any {
	switch {
	case in.Own != nil:
		return map[string]any{"op": "replace", "path": fmt.Sprint("/status/conditions/", in.Place), "value": own}
	case in.Listed:
		return map[string]any{"op": "add", "path": "/status/conditions/-", "value": own}
	case in.Exists:
		return map[string]any{"op": "add", "path": "/status/conditions", "value": []metav1.Condition{own}}
	default:
		return map[string]any{"op": "add", "path": "/status", "value": map[string]any{
			"conditions": []metav1.Condition{own},
		}}
	}
}
