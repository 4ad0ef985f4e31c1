package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
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

// exported are the ServiceExports of a cluster that is in a set.
type exported struct {
	known   bool    // it was found out once whether the cluster serves them
	none    absence // of ServiceExports in the cluster
	err     error   // why that cannot be found now
	version schema.GroupVersion
	shelf   *shelf[*input.ServiceExport] // nil if the cluster serves none
	stop    context.CancelFunc
}

// readsExports reports whether a ServiceExport says anything to the cluster: it is in a set, and not all of
// its Services are exported.
func (w *Watcher) readsExports() bool { return w.cfg.Options.Set != "" && !w.cfg.Options.ExportsAll }

// surveyExports opens the shelf of ServiceExports if the cluster serves them, and closes it if the
// cluster serves them no more. It returns how long to wait before the next survey.
func (w *Watcher) surveyExports(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	if !w.readsExports() {
		return surveyEvery
	}
	w.mu.Lock()
	known := w.exported.known
	w.mu.Unlock()
	ready := !known && w.ready(ctx)
	version, err := w.servedExports(ctx)
	if ctx.Err() != nil {
		return surveyEvery
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &w.exported
	if (err == nil) != (x.err == nil) {
		defer w.wake()
	}
	if x.err = err; err != nil {
		w.say(err.Error())
		return firstPause * 5
	}
	x.none.note(version.Empty())
	// An API server that starts answers "not found" until it has read its CRDs.
	if !x.known && (!version.Empty() || ready || x.none.lasts()) {
		x.known = true
		defer w.wake()
	}
	// Deletions of objects count at once. Those that are still there were never reported as deleted.
	if x.shelf != nil && (version.Empty() && len(x.shelf.list()) == 0 || !version.Empty() && version != x.version) {
		x.stop()
		x.shelf = nil
		defer w.wake()
	}
	if x.shelf == nil && !version.Empty() {
		ctx, stop := context.WithCancel(ctx)
		x.shelf, x.version, x.stop = w.shelfOfExports(version), version, stop
		x.shelf.start(ctx, wg)
	}
	if version.Empty() {
		return surveyNone
	}
	return surveyEvery
}

// servedExports returns the version of ServiceExports that the cluster serves. It is empty if the
// cluster serves no version.
func (w *Watcher) servedExports(ctx context.Context) (none schema.GroupVersion, err error) {
	for _, version := range exportsVersions {
		served, err := w.servedIn(ctx, version.String())
		if err != nil {
			return none, err
		}
		if slices.Contains(served, exports) {
			return version, nil
		}
	}
	return none, nil
}

func (w *Watcher) shelfOfExports(version schema.GroupVersion) *shelf[*input.ServiceExport] {
	share := newAllowance("objectBytes", "ServiceExport", w.objectBytes(),
		func(*input.ServiceExport) bool { return true })
	share.follows = "their Services are served by the pods of this cluster alone"
	s := newShare(w, exportsGroup, exports, input.ByName, share, func(namespace string) reader[runtime.Object] {
		return w.kube.API(version.WithResource(exports), namespace)
	})
	s.same = func(a, b *input.ServiceExport) bool { return a.UID == b.UID } // nothing else of it is read
	s.strip = func(e *input.ServiceExport) { e.Annotations, e.Labels, e.ManagedFields = nil, nil, nil }
	s.without = "ServiceExports cannot be read: no Service is shared with another cluster of the set"
	return s
}

// addExports adds the ServiceExports to a snapshot. It returns the names of the lists that the snapshot
// waits for. Without the right to read them nothing is exported.
func (w *Watcher) addExports(s *input.Snapshot) (waiting []string) {
	if !w.readsExports() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &w.exported
	switch {
	case !x.known:
		return []string{"whether there are ServiceExports"}
	case x.shelf == nil || x.shelf.lacking() != "":
		return nil
	case x.shelf.awaited():
		waiting = []string{x.shelf.name()}
	}
	x.shelf.addTo(&s.Objects)
	s.Beyond = append(s.Beyond, x.shelf.problems(s.Cluster)...)
	return waiting
}

// lacking returns a sentence if the cluster cannot have ServiceExports, or "".
func (x *exported) lacking() string {
	if x.known && x.shelf == nil {
		return "the cluster does not serve ServiceExports of " + exportsGroup + ", so it shares no Service with the " +
			"other clusters of its set: install their CRD, or remove clusters[].set"
	}
	return ""
}
