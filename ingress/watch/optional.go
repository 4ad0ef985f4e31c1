package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/input"
)

// An optional is a kind of objects that a cluster may lack, with its CRD. Nobody reads the objects unless the
// configuration file asks for them.
type optional[T object] struct {
	plural   string                                      // for people
	resource string                                      // plural, lower case
	versions []schema.GroupVersion                       // that are read, the preferred one first
	open     func(version schema.GroupVersion) *shelf[T] // returns an empty shelf
	lacks    string                                      // a sentence about a cluster that lacks it; may be empty
	mute     string                                      // one about a cluster that lacks its status; may be empty

	known   bool    // it was found out once whether the cluster serves the kind
	none    absence // of the kind in the cluster
	err     error   // why that cannot be found now
	version schema.GroupVersion
	status  bool      // the cluster serves the status of the objects
	shelf   *shelf[T] // nil if the cluster does not serve the kind
	stop    context.CancelFunc
}

// An anyOptional is an optional of any kind. The caller of all but survey holds mu of the Watcher.
type anyOptional interface {
	survey(ctx context.Context, wg *sync.WaitGroup, w *Watcher) time.Duration
	addTo(s *input.Snapshot) (waiting []string)
	lacking() string
	fault() error
	shelves() []anyShelf
}

// survey opens the shelf if the cluster serves the kind, and closes it if the cluster serves the kind no
// more. It returns how long to wait before the next survey.
func (x *optional[T]) survey(ctx context.Context, wg *sync.WaitGroup, w *Watcher) time.Duration {
	w.mu.Lock()
	known := x.known
	w.mu.Unlock()
	ready := !known && w.ready(ctx)
	version, status, err := x.served(ctx, w)
	if ctx.Err() != nil {
		return surveyEvery
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if (err == nil) != (x.err == nil) {
		defer w.wake()
	}
	if x.err = err; err != nil {
		w.say(err.Error())
		return firstPause * 5
	}
	x.none.note(version.Empty())
	x.status = status
	// An API server that starts answers "not found" until it has read its CRDs.
	if !x.known && (!version.Empty() || ready || x.none.lasts()) {
		x.known = true
		defer w.wake()
	}
	// Deletions of objects count at once. Those that are still there were never reported as deleted.
	if x.shelf != nil && (version.Empty() && x.shelf.empty() || !version.Empty() && version != x.version) {
		x.stop()
		x.shelf = nil
		defer w.wake()
	}
	if x.shelf == nil && !version.Empty() {
		ctx, stop := context.WithCancel(ctx)
		x.shelf, x.version, x.stop = x.open(version), version, stop
		x.shelf.start(ctx, wg)
	}
	if version.Empty() && x.lacks != "" {
		return surveyNone
	}
	return surveyEvery
}

// served returns the version of the kind that the cluster serves, and whether it serves the status of the objects.
// The version is empty if the cluster serves none.
func (x *optional[T]) served(ctx context.Context, w *Watcher) (version schema.GroupVersion, status bool, err error) {
	for _, version := range x.versions {
		served, err := w.servedIn(ctx, version.String())
		if err != nil {
			return schema.GroupVersion{}, false, err
		}
		if slices.Contains(served, x.resource) {
			return version, slices.Contains(served, x.resource+"/status"), nil
		}
	}
	return schema.GroupVersion{}, false, nil
}

// addTo adds the objects to a snapshot. It returns the names of the lists that the snapshot waits for.
// Without the right to read the objects it adds none.
func (x *optional[T]) addTo(s *input.Snapshot) (waiting []string) {
	switch {
	case !x.known:
		return []string{"whether there are " + x.plural}
	case x.shelf == nil || x.shelf.lacking() != "":
		return nil
	case x.shelf.awaited():
		waiting = []string{x.shelf.name()}
	}
	x.shelf.addTo(&s.Objects)
	s.Beyond = append(s.Beyond, x.shelf.problems(s.Cluster)...)
	return waiting
}

// lacking returns a sentence if the cluster lacks the kind or its status, and somebody should know, or "".
func (x *optional[T]) lacking() string {
	switch {
	case !x.known || x.shelf != nil && x.status:
		return ""
	case x.shelf == nil:
		return x.lacks
	default:
		return x.mute
	}
}

// written returns the shelf and the version of the objects with a status that can be written. The shelf is nil if
// there are none.
func (x *optional[T]) written(w *Watcher) (*shelf[T], schema.GroupVersion) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !x.status {
		return nil, schema.GroupVersion{}
	}
	return x.shelf, x.version
}

func (x *optional[T]) fault() error { return x.err }

func (x *optional[T]) shelves() []anyShelf {
	if x.shelf == nil {
		return nil
	}
	return []anyShelf{x.shelf}
}

// shelfOf returns an empty shelf for a kind of an optional. follows says what follows for the objects of a
// namespace that are left out because they take too much memory.
func shelfOf[T object](w *Watcher, version schema.GroupVersion, resource, kind, follows string) *shelf[T] {
	share := newAllowance("objectBytes", kind, w.objectBytes(), func(T) bool { return true })
	share.follows = follows
	return newShare(w, version.Group, resource, input.ByName, share, func(namespace string) reader[runtime.Object] {
		return w.kube.API(version.WithResource(resource), namespace)
	})
}

// addOptionals adds the objects of all optionals to a snapshot. It returns the names of the lists that the
// snapshot waits for.
func (w *Watcher) addOptionals(s *input.Snapshot) (waiting []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.optionals {
		waiting = append(waiting, x.addTo(s)...)
	}
	s.DropOlder()
	return waiting
}
