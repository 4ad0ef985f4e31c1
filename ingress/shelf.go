package ingress

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// object is what a shelf can hold.
type object interface {
	comparable
	metav1.Object
	runtime.Object
}

// A shelf holds all objects of one resource, in order, as the API server last
// told them. It is the store of a reflector, which alone writes it. What it
// once held stays through every failure to read it again.
type shelf[T object] struct {
	resource string // plural, lower case
	group    string // API group without version
	order    func(a, b T) int
	wanted   func(serviceKey) bool         // whose objects are kept; nil: all. Others leave their names
	strip    func(T)                       // takes off what nobody reads
	same     func(a, b T) bool             // whether a new version of an object is no change to anybody
	knock    func()                        // called after a change
	wary     bool                          // what is deleted goes only when a new list does not have it
	told     func(err error, lasting bool) // called with the outcome of each request; see lasting

	fill    func(context.Context, *sync.WaitGroup) // starts to run it; nil: something else does
	called  string                                 // in sentences; empty: by its resource
	without string                                 // a sentence, if the objects can be done without while they are barred

	mu      sync.Mutex
	items   []T // in order; never changed once handed out
	lent    bool
	latest  map[serviceKey]T    // the last version of each, of which items may hold one that is the same
	passed  map[serviceKey]bool // those that are there and were not wanted when they were read
	skipped []serviceKey        // what the list that is read now has passed over so far
	full    bool                // it was read whole at least once
	err     error               // why the last request failed; nil when it was answered
	no      time.Time           // since when it is refused; zero while it is not
	doubt   *time.Timer         // of a wary shelf: asks for a new list after something was deleted
	again   func()              // ends the watch that runs, so that a new list is read
}

// lasting is how long a refusal, or the absence of a resource, has to stand
// before it is believed. An API server that starts answers "forbidden" until
// it has read its own roles, and "not found" until it has read its CRDs.
const lasting = 10 * time.Second

// refused reports whether an error is an answer that waiting will not change:
// we may not read it, or there is no such resource.
func refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// list hands out the objects. They and the slice belong to everybody.
func (s *shelf[T]) list() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = true
	return s.items
}

// newest is the last version of every object.
func (s *shelf[T]) newest() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]T, 0, len(s.latest))
	for _, o := range s.latest {
		all = append(all, o)
	}
	return all
}

func (s *shelf[T]) state() (full bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full, s.err
}

// barred reports whether the objects were never read and will not be until
// somebody allows it.
func (s *shelf[T]) barred() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full && !s.no.IsZero() && time.Since(s.no) >= lasting
}

// anyShelf is a shelf, whatever the type of its objects.
type anyShelf interface {
	start(context.Context, *sync.WaitGroup)
	of() (group, resource string)
	name() string
	state() (full bool, err error)
	awaited() bool
	lacking() string
	addTo(*Objects)
}

func (s *shelf[T]) start(ctx context.Context, wg *sync.WaitGroup) { s.fill(ctx, wg) }

func (s *shelf[T]) of() (group, resource string) { return s.group, s.resource }

// awaited reports whether nothing may be compiled before the objects are read.
func (s *shelf[T]) awaited() bool {
	full, _ := s.state()
	return !full && (s.without == "" || !s.barred())
}

// lacking returns a sentence if the objects are barred and done without.
func (s *shelf[T]) lacking() string {
	if !s.barred() {
		return ""
	}
	return s.without
}

// addTo puts the objects into the list of their kind, if it has one.
func (s *shelf[T]) addTo(all *Objects) { all.add(s.list()) }

func (s *shelf[T]) name() string {
	if s.called != "" {
		return s.called
	}
	if s.group == "" {
		return s.resource
	}
	return s.resource + "." + s.group
}

// Add, Update, Delete, Replace, Resync and Transformer make it the store of a
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
	old, known := s.latest[keyOf(item)]
	if !s.wants(keyOf(item)) {
		s.pass(keyOf(item))
		return false // what was known went when it was no longer wanted: see drop
	}
	delete(s.passed, keyOf(item))
	if s.latest == nil {
		s.latest = make(map[serviceKey]T)
	}
	s.latest[keyOf(item)] = item
	if known && s.unchanged(old, item) {
		return false
	}
	if known {
		s.take(old)
	}
	i, _ := slices.BinarySearchFunc(s.items, item, s.order)
	s.own()
	s.items = slices.Insert(s.items, i, item)
	return true
}

// Delete takes the object of that name away.
func (s *shelf[T]) Delete(o any) error {
	item, ok := o.(T)
	if !ok {
		return nil
	}
	s.mu.Lock()
	delete(s.passed, keyOf(item))
	old, known := s.latest[keyOf(item)]
	if s.wary {
		if known && s.doubt == nil {
			s.doubt = time.AfterFunc(doubtful, s.relist)
		}
		s.mu.Unlock()
		return nil
	}
	if known {
		delete(s.latest, keyOf(item))
		s.take(old)
	}
	s.mu.Unlock()
	if known {
		s.knock()
	}
	return nil
}

// doubtful is how long a wary shelf waits before it believes a deletion. A CRD
// that is deleted takes its objects along one by one, each a deletion like any
// other, before the list of them is gone too.
const doubtful = 5 * time.Second

func (s *shelf[T]) relist() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubt = nil
	if s.again != nil {
		s.again()
	}
}

// Replace takes a whole list.
func (s *shelf[T]) Replace(list []any, _ string) error {
	s.mu.Lock()
	held := make(map[serviceKey]T, len(s.items))
	for _, o := range s.items {
		held[keyOf(o)] = o
	}
	latest := make(map[serviceKey]T, len(list))
	items := make([]T, 0, len(list))
	s.passed = nil
	for _, key := range s.skipped {
		s.pass(key)
	}
	s.skipped = nil
	for _, o := range list {
		item, ok := s.clean(o)
		if !ok {
			continue
		}
		if !s.wants(keyOf(item)) {
			s.pass(keyOf(item))
			continue
		}
		latest[keyOf(item)] = item
		// The list after a lost watch brings everything anew: what is the same
		// keeps its pointer, and so nobody's memory of it is lost.
		if old, known := held[keyOf(item)]; known && s.unchanged(old, item) {
			item = old
		}
		items = append(items, item)
	}
	slices.SortFunc(items, s.order)
	changed := !s.full || !slices.Equal(items, s.items) || len(s.passed) > 0
	s.items, s.latest, s.full, s.lent = items, latest, true, false
	s.mu.Unlock()
	if changed {
		s.knock()
	}
	return nil
}

func (s *shelf[T]) wants(key serviceKey) bool { return s.wanted == nil || s.wanted(key) }

// pass notes that an object is there and was not kept. The caller holds mu.
func (s *shelf[T]) pass(key serviceKey) {
	if s.passed == nil {
		s.passed = make(map[serviceKey]bool)
	}
	s.passed[key] = true
}

// skip reports whether the list that is read now can do without an object.
func (s *shelf[T]) skip(key serviceKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wants(key) {
		return false
	}
	s.skipped = append(s.skipped, key)
	return true
}

// begin begins a list that passes over what can be skipped.
func (s *shelf[T]) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped = nil
}

// anew reads the list anew, once for what was passed over until now.
func (s *shelf[T]) anew() {
	s.mu.Lock()
	s.passed = nil
	s.mu.Unlock()
	s.relist()
}

// drop drops what is no longer wanted, and reports which of those that are wanted
// now were passed over before. It is called after every change of what is wanted.
func (s *shelf[T]) drop() (missed []serviceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.latest {
		if !s.wants(key) {
			delete(s.latest, key)
			s.take(old)
			s.pass(key)
		}
	}
	for key := range s.passed {
		if s.wants(key) {
			missed = append(missed, key)
		}
	}
	slices.SortFunc(missed, compareKeys)
	return missed
}

// Resync does nothing: there is nothing to be told twice.
func (s *shelf[T]) Resync() error { return nil }

// Transformer strips objects before they are kept anywhere.
func (s *shelf[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		s.clean(o)
		return o, nil
	}
}

// clean takes off an object what nobody reads. Doing it twice changes nothing.
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

// own makes items a slice that nobody else has. The caller holds mu.
func (s *shelf[T]) own() {
	if s.lent {
		s.items, s.lent = slices.Clone(s.items), false
	}
}

// unchanged reports whether item, a newer version of old, says the same.
func (s *shelf[T]) unchanged(old, item T) bool {
	// The resourceVersion says nothing: an etcd restored from a backup gives the
	// same numbers to other texts.
	if s.same != nil {
		return s.same(old, item)
	}
	return sameButVersion(old, item)
}

// sameButVersion compares all but the resourceVersion. b is not shared yet.
func sameButVersion[T object](a, b T) bool {
	version := b.GetResourceVersion()
	b.SetResourceVersion(a.GetResourceVersion())
	defer b.SetResourceVersion(version)
	return reflect.DeepEqual(a, b)
}

func (s *shelf[T]) outcome(err error) {
	s.mu.Lock()
	s.err = err
	switch {
	case !refused(err):
		s.no = time.Time{}
	case s.no.IsZero():
		s.no = time.Now()
	}
	stands := err != nil && (s.no.IsZero() || time.Since(s.no) >= lasting)
	s.mu.Unlock()
	s.told(err, stands)
}

// plainList is read by a list and a watch. The streamed list that a reflector
// else prefers waits up to a second for the bookmark that ends it, where a
// resource of a CRD is quiet.
type plainList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how a reflector is told (client-go,
// util/watchlist).
func (plainList) IsWatchListSemanticsUnSupported() bool { return true }

// Pauses between attempts to read a resource. The longest one bounds how late
// an API server that is back is noticed.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
)

// errCutShort ends a watch that goes on from one which ended before its time.
// The server may have been away, and come back with an etcd restored from a
// backup: its revisions are then behind those we know, and a watch from one
// that is yet to come says nothing, for as long as it takes. Only a list tells.
var errCutShort = errors.New("the last watch ended before its time")

// run keeps the shelf filled until ctx ends. An attempt that fails is repeated
// for ever.
func (s *shelf[T]) run(ctx context.Context, list func(context.Context, metav1.ListOptions) (runtime.Object, error), watcher func(context.Context, metav1.ListOptions) (watch.Interface, error)) {
	quiet := logr.Discard() // what goes wrong is told by outcome
	ctx = logr.NewContext(ctx, quiet)
	failed := false
	var until time.Time // when the server will end the watch that runs
	note := func(err error) {
		if ctx.Err() != nil || errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return // the end, or a list that is due: not a failure
		}
		failed = err != nil
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
			if err != nil && !isAnswer(err) {
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
		_ = reflector.ListAndWatchWithContext(attempt) // what it returns was noted above
		again()
		pause = min(2*pause, longestPause)
		if !failed {
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
