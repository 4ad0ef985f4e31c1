package watch

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/apiserver"
	"sallyport/ingress/input"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// An object can be held by a shelf.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// A shelf holds all objects of one resource, sorted, as the API server last reported
// them. It is the store of a reflector, which alone writes it. Its objects stay while
// they cannot be read again.
type shelf[T object] struct {
	resource string // plural, lower case
	group    string // API group without version
	order    func(a, b T) int
	wanted   func(types.NamespacedName) bool // which objects are kept; nil means all
	strip    func(T)                         // removes what nobody reads
	lands    func(T)                         // called with an object that is wanted, before it is kept; may be nil
	knock    func()                          // called after a change
	wary     bool                            // a deleted object stays until a new list does not have it
	told     func(err error, lasting bool)   // called with the outcome of each request; lasting: see the constant

	// same reports whether a new version of an object changes nothing for any reader. Without it,
	// versions are the same if all but the resourceVersion is.
	same func(a, b T) bool

	fill   func(context.Context, *sync.WaitGroup) // starts run; nil if the owner of the shelf does
	share  *allowance[T]                          // bounds the objects of each namespace; nil means no bound
	called string                                 // its name in sentences; "" if resource is its name
	// without is a sentence about the consequence while the objects are barred. If it is empty,
	// nothing is compiled then.
	without string

	mu     sync.Mutex
	items  []T // sorted; never changed once handed out
	lent   bool
	latest map[types.NamespacedName]T // the last version of each; items may hold an older one that says the same
	full   bool                       // a whole list was read at least once
	err    error                      // why the last request failed; nil when it was answered
	no     absence                    // of an answer: requests are refused
	doubt  *time.Timer                // of a wary shelf: asks for a new list after something was deleted
	again  func()                     // ends the watch that runs, so that a new list is read
}

// lasting is how long a refusal, or the absence of a resource, has to last before the
// shelf believes it. An API server that starts answers "forbidden" until it has read
// its own roles, and "not found" until it has read its CRDs.
const lasting = 10 * time.Second

// An absence is a refusal, or the absence of a resource, that may end by itself. The zero value is none.
type absence struct{ since time.Time }

// note begins the absence, or ends it.
func (a *absence) note(absent bool) {
	switch {
	case !absent:
		a.since = time.Time{}
	case a.since.IsZero():
		a.since = time.Now()
	}
}

// lasts reports whether the absence has been there for so long that it is believed.
func (a *absence) lasts() bool { return !a.since.IsZero() && time.Since(a.since) >= lasting }

// list returns the objects. Neither they nor the slice may be changed.
func (s *shelf[T]) list() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = true
	return s.items
}

// newest returns the last version of every object.
func (s *shelf[T]) newest() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.latest))
	for _, o := range s.latest {
		all = append(all, o)
	}
	return all
}

// newestOf returns the last version of an object.
func (s *shelf[T]) newestOf(key types.NamespacedName) (item T, has bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item, has = s.latest[key]
	return item, has
}

// objects returns the last version of every object.
func (s *shelf[T]) objects() (all []metav1.Object) {
	for _, o := range s.newest() {
		all = append(all, o)
	}
	return all
}

// empty reports whether there are no objects.
func (s *shelf[T]) empty() bool { return len(s.list()) == 0 }

func (s *shelf[T]) state() (full bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full, s.err
}

// barred reports whether the objects were never read, and cannot be read until
// somebody allows it.
func (s *shelf[T]) barred() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full && s.no.lasts()
}

// anyShelf is a shelf for objects of any type.
type anyShelf interface {
	start(context.Context, *sync.WaitGroup)
	of() (group, resource string)
	name() string
	state() (full bool, err error)
	awaited() bool
	lacking() string
	addTo(*input.Objects)
	problems(cluster string) []ingress.Problem
}

func (s *shelf[T]) start(ctx context.Context, wg *sync.WaitGroup) { s.fill(ctx, wg) }

func (s *shelf[T]) of() (group, resource string) { return s.group, s.resource }

// awaited reports whether nothing may be compiled before the objects are read.
func (s *shelf[T]) awaited() bool {
	full, _ := s.state()
	return !full && (s.without == "" || !s.barred())
}

// lacking returns a sentence if the objects are barred, and are not awaited.
func (s *shelf[T]) lacking() string {
	if !s.barred() {
		return ""
	}
	return s.without
}

// addTo puts the objects into the list of their kind, if all has such a list.
func (s *shelf[T]) addTo(all *input.Objects) { all.Add(s.list()) }

func (s *shelf[T]) name() string {
	if s.called != "" {
		return s.called
	}
	if s.group == "" {
		return s.resource
	}
	return s.resource + "." + s.group
}

// Add, Update, Delete, Replace, Resync and Transformer make a shelf the store of a
// reflector (cache.ReflectorStore, cache.TransformingStore).

// Add puts an object in its place.
func (s *shelf[T]) Add(o any) error { return s.Update(o) }

// Update puts an object in its place, instead of the one of its name.
func (s *shelf[T]) Update(o any) error {
	item, ok := s.clean(o)
	if !ok {
		return nil
	}
	if s.put(item) {
		s.knock()
	}
	return nil
}

func (s *shelf[T]) put(item T) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched(input.KeyOf(item))
	return s.set(item)
}

// watched notes that the watch has reported an object. The caller holds mu.
func (s *shelf[T]) watched(key types.NamespacedName) {
	if s.share != nil && s.share.reading != nil {
		s.share.reading.watched[key] = true
	}
}

// set does the work of put. The caller holds mu.
func (s *shelf[T]) set(item T) (changed bool) {
	old, known := s.latest[input.KeyOf(item)]
	if !s.wants(input.KeyOf(item)) {
		return false // drop has removed it when it was no longer wanted
	}
	if s.lands != nil {
		s.lands(item)
	}
	if known {
		s.share.drop(old)
	}
	if known && s.unchanged(old, item) {
		s.latest[input.KeyOf(item)] = item
		s.share.hold(item)
		return false
	}
	if known {
		delete(s.latest, input.KeyOf(item))
		s.take(old)
	}
	room, displaced := s.room(item)
	if known || room {
		s.share.due(item.GetNamespace()) // others may have room now, or nothing lacks any
	}
	if !room {
		return known || displaced
	}
	s.share.hold(item)
	if s.latest == nil {
		s.latest = make(map[types.NamespacedName]T)
	}
	s.latest[input.KeyOf(item)] = item
	i, _ := slices.BinarySearchFunc(s.items, item, s.order)
	s.own()
	s.items = slices.Insert(s.items, i, item)
	return true
}

// Delete removes the object of that name.
func (s *shelf[T]) Delete(o any) error {
	item, ok := o.(T)
	if !ok {
		return nil
	}
	s.mu.Lock()
	s.watched(input.KeyOf(item))
	old, known := s.latest[input.KeyOf(item)]
	if s.wary {
		if known && s.doubt == nil {
			s.doubt = time.AfterFunc(doubtful, s.relist)
		}
		s.mu.Unlock()
		return nil
	}
	if known {
		delete(s.latest, input.KeyOf(item))
		s.take(old)
		s.share.drop(old)
	}
	s.share.due(item.GetNamespace())
	s.mu.Unlock()
	if known {
		s.knock()
	}
	return nil
}

// doubtful is how long a wary shelf waits before it believes a deletion. When a CRD
// is deleted its objects are deleted first, one by one, and only then the resource
// that lists them.
const doubtful = 5 * time.Second

func (s *shelf[T]) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt = nil
	if s.again != nil {
		s.again()
	}
}

// Replace replaces all objects by those of a list.
func (s *shelf[T]) Replace(list []any, _ string) error {
	s.mu.Lock()
	held := make(map[types.NamespacedName]T, len(s.items))
	for _, o := range s.items {
		held[input.KeyOf(o)] = o
	}
	latest := make(map[types.NamespacedName]T, len(list))
	items := make([]T, 0, len(list))
	for _, o := range list {
		item, ok := s.clean(o)
		if !ok {
			continue
		}
		if !s.wants(input.KeyOf(item)) {
			continue
		}
		if s.lands != nil {
			s.lands(item)
		}
		latest[input.KeyOf(item)] = item
		// The list after a lost watch has a new pointer for every object. An unchanged object keeps
		// its old pointer, since others use the pointer as a key.
		if old, known := held[input.KeyOf(item)]; known && s.unchanged(old, item) {
			item = old
		}
		items = append(items, item)
	}
	slices.SortFunc(items, s.order)
	items = s.within(items, latest)
	changed := !s.full || !slices.Equal(items, s.items)
	s.items, s.latest, s.full, s.lent = items, latest, true, false
	s.mu.Unlock()
	if changed {
		s.knock()
	}
	return nil
}

func (s *shelf[T]) wants(key types.NamespacedName) bool { return s.wanted == nil || s.wanted(key) }

// drop removes objects that are no longer wanted. It is called after each change of
// wanted.
func (s *shelf[T]) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.latest {
		if !s.wants(key) {
			delete(s.latest, key)
			s.take(old)
		}
	}
}

// forget removes objects although they are wanted: something else reads them.
func (s *shelf[T]) forget(keys []types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if old, has := s.latest[key]; has {
			delete(s.latest, key)
			s.take(old)
		}
	}
}

// Resync does nothing: no reader needs to be notified twice.
func (s *shelf[T]) Resync() error { return nil }

// Transformer strips objects before they are kept anywhere.
func (s *shelf[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		s.clean(o)
		return o, nil
	}
}

// clean removes the fields of an object that nobody reads. A second call changes nothing.
func (s *shelf[T]) clean(o any) (T, bool) {
	item, ok := o.(T)
	if !ok {
		return item, false
	}
	item.SetManagedFields(nil)
	if notes := item.GetAnnotations(); notes["kubectl.kubernetes.io/last-applied-configuration"] != "" {
		delete(notes, "kubectl.kubernetes.io/last-applied-configuration")
		item.SetAnnotations(notes)
	}
	if s.strip != nil {
		s.strip(item)
	}
	return item, true
}

// take removes an object from items. The caller holds mu.
func (s *shelf[T]) take(old T) {
	if i, found := slices.BinarySearchFunc(s.items, old, s.order); found {
		s.own()
		s.items = slices.Delete(s.items, i, i+1)
	}
}

// own clones items if they were handed out. The caller holds mu.
func (s *shelf[T]) own() {
	if s.lent {
		s.items, s.lent = slices.Clone(s.items), false
	}
}

// unchanged reports whether item, a newer version of old, has the same content.
func (s *shelf[T]) unchanged(old, item T) bool {
	// The resourceVersion proves nothing: an etcd restored from a backup gives the
	// same numbers to other contents.
	if s.same != nil {
		return s.same(old, item)
	}
	return sameButVersion(old, item)
}

// sameButVersion compares all but the resourceVersion. It changes b for a moment, so no other
// goroutine may have b yet.
func sameButVersion[T object](a, b T) bool {
	version := b.GetResourceVersion()
	b.SetResourceVersion(a.GetResourceVersion())
	defer b.SetResourceVersion(version)
	return reflect.DeepEqual(a, b)
}

func (s *shelf[T]) outcome(err error) {
	s.mu.Lock()
	s.err = err
	s.no.note(apiserver.Refused(err))
	stands := err != nil && (!apiserver.Refused(err) || s.no.lasts())
	s.mu.Unlock()
	s.told(err, stands)
}

// A plainList makes a reflector use a list and then a watch. By default it streams
// the list, and then waits up to a second for the bookmark that ends it if a resource
// of a CRD is quiet.
type plainList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported turns the streamed list off (client-go,
// util/watchlist).
func (plainList) IsWatchListSemanticsUnSupported() bool { return true }

// Pauses between attempts to read a resource. The longest one bounds the time until
// the return of an API server is noticed.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
)

// errCutShort prevents a watch that would continue one that ended early. The server
// may have come back with an etcd restored from a backup. Its revisions are then lower
// than the ones we know, and a watch from a future revision stays silent until the
// server reaches it. Only a new list shows the truth.
var errCutShort = errors.New("the last watch ended before its time")

// run keeps the shelf filled until ctx ends. It repeats an attempt that fails, for
// ever.
func (s *shelf[T]) run(
	ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error),
	watcher func(context.Context, metav1.ListOptions) (watch.Interface, error),
) {
	quiet := logr.Discard() // outcome reports errors
	ctx = logr.NewContext(ctx, quiet)
	var failed atomic.Bool // a list that is abandoned may still write it
	var until time.Time    // when the server will end the current watch
	note := func(err error) {
		if ctx.Err() != nil || errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) ||
			apierrors.IsGone(err) {
			return // Run ends, or a new list is due: no failure
		}
		failed.Store(err != nil)
		s.outcome(err)
	}
	reflector := cache.NewReflectorWithOptions(plainList{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := list(ctx, o)
			note(err)
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			begun := time.Now()
			if begun.Before(until) {
				s.relist()
				return nil, errCutShort
			}
			w, err := watcher(ctx, o)
			note(err)
			if err != nil && !apiserver.IsAnswer(err) {
				s.relist()
			}
			if err == nil && o.TimeoutSeconds != nil {
				until = begun.Add(time.Duration(*o.TimeoutSeconds) * time.Second)
			}
			return w, err
		},
	}}, nil, s, cache.ReflectorOptions{
		Logger: &quiet, Name: "sallyport", TypeDescription: s.resource,
		Backoff: &wait.Backoff{Duration: firstPause, Cap: longestPause, Steps: 10, Factor: 2, Jitter: 0.5},
	})
	pause := firstPause
	for ctx.Err() == nil {
		attempt, again := context.WithCancel(ctx)
		s.mu.Lock()
		s.again = again
		s.mu.Unlock()
		until = time.Time{}
		_ = reflector.ListAndWatchWithContext(attempt) // note has its error already
		again()
		pause = min(2*pause, longestPause)
		if !failed.Load() {
			pause = firstPause
		}
		wake := time.NewTimer(pause)
		select {
		case <-wake.C:
		case <-ctx.Done():
			wake.Stop()
		}
	}
}
