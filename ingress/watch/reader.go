package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/input"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// A namedReader reads the objects of one kind in one namespace that something names but that no shelf
// has. These are ConfigMaps, Secrets of other types than kubernetes.io/tls, and TLS
// Secrets that were dropped before something named them.
//
// It watches only the names of the namespace's objects. It reads each wanted object when that comes
// or changes. If no object has a wanted name, that name costs no request. The requests of one
// namespace run one at a time, within a budget, so no namespace delays the requests of another
// namespace.
type namedReader[T object] struct {
	// names has only the names and versions of all objects of the kind in the namespace.
	names *shelf[*metav1.PartialObjectMetadata]
	stop  context.CancelFunc
	knock func()        // called after a change
	wake  chan struct{} // knocks after a change of names or wanted

	// fetch returns an object, or nil if the object does not exist.
	fetch func(context.Context, types.NamespacedName) (T, error)
	lands func(T) // called with an object before it is kept

	patience time.Duration // that of followers

	mu      sync.Mutex
	budget  *rate.Limiter
	wanted  map[types.NamespacedName]time.Time // since when
	have    map[types.NamespacedName]answer[T]
	unused  time.Time // since when nothing is wanted; zero while something is
	reminds bool      // a timer calls knock when patience ends
}

// An answer is an object as it was read. The object is nil if there was none any more.
type answer[T object] struct {
	version string // in names, when it was asked for
	object  T
}

// found reports whether there was an object.
func (a answer[T]) found() bool {
	var none T
	return a.object != none
}

// These are the budget of a namespace for each kind. It may read as many objects at once as it may
// name, for a start, and then so many in a second. readAtOnce is for a namespace without a limit.
const (
	readsPerSecond = 10
	readAtOnce     = 3000
)

// readersAtOnce bounds the requests of all readers that are under way. Each reader has at
// most one, so that namespaces take turns.
const readersAtOnce = 16

// namesPage bounds the names in one answer.
const namesPage = 500

// startReader starts the reader of a kind and a namespace. It runs until ctx ends or it is stopped.
func startReader[T object](
	ctx context.Context, wg *sync.WaitGroup, w *Watcher, f *followed[T], namespace string,
) *namedReader[T] {
	each, stop := context.WithCancel(ctx) //nolint:gosec // the reader has stop
	most := w.cfg.Options.Limits.Secrets
	if most == 0 {
		most = readAtOnce
	}
	r := &namedReader[T]{
		names: newShelf[*metav1.PartialObjectMetadata](w, "", f.resource, input.ByName), stop: stop, knock: w.wake,
		wake: make(chan struct{}, 1), budget: rate.NewLimiter(readsPerSecond, most),
		have: make(map[types.NamespacedName]answer[T]), patience: w.followers.patience, lands: f.sum.land,
	}
	r.fetch = func(ctx context.Context, key types.NamespacedName) (found T, err error) {
		err = w.inTurn(ctx, func(ctx context.Context) error {
			found, err = readNamed(ctx, w, f, key)
			return err
		})
		return found, err
	}
	r.names.knock = func() { knock(r.wake) }
	r.names.same = func(a, b *metav1.PartialObjectMetadata) bool { return a.ResourceVersion == b.ResourceVersion }
	if ctx.Err() != nil {
		return r
	}
	from := w.kube.Names(f.resource, namespace)
	wg.Go(func() {
		r.names.run(each, func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return w.listNames(ctx, from)
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return from.Watch(ctx, o)
		})
	})
	wg.Go(func() { r.run(each) })
	return r
}

// listNames lists the names of objects.
func (w *Watcher) listNames(
	ctx context.Context, from reader[*metav1.PartialObjectMetadataList],
) (*metav1.PartialObjectMetadataList, error) {
	first := metav1.ListOptions{Limit: namesPage}
	return inPages(first, func(o metav1.ListOptions) (page *metav1.PartialObjectMetadataList, err error) {
		err = w.inTurn(ctx, func(ctx context.Context) error {
			page, err = from.List(ctx, o)
			return err
		})
		return page, err
	}, func(l *metav1.PartialObjectMetadataList) *[]metav1.PartialObjectMetadata { return &l.Items })
}

// inTurn makes a request of a reader, once fewer than readersAtOnce are under way.
func (w *Watcher) inTurn(ctx context.Context, request func(context.Context) error) error {
	select {
	case w.followers.reading <- struct{}{}:
		defer func() { <-w.followers.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	call, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	return request(call)
}

// readNamed reads an object by its name: as a list, since the appliance may not get objects. It
// returns nil if there is no such object.
func readNamed[T object](
	ctx context.Context, w *Watcher, f *followed[T], key types.NamespacedName,
) (none T, err error) {
	list, err := f.list(ctx, key.Namespace, metav1.ListOptions{FieldSelector: "metadata.name=" + key.Name})
	if !errors.Is(err, context.Canceled) {
		w.answered("", f.resource, err, false)
	}
	if err != nil {
		return none, err
	}
	for _, one := range list {
		if input.KeyOf(one) == key {
			one.SetManagedFields(nil)
			w.cfg.Options.Strip(one)
			return one, nil
		}
	}
	return none, nil
}

// want replaces the list of wanted objects.
func (r *namedReader[T]) want(keys map[types.NamespacedName]bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := make(map[types.NamespacedName]time.Time, len(keys))
	fresh := false
	for key := range keys {
		since, known := r.wanted[key]
		if !known {
			since, fresh = now, true
		}
		wanted[key] = since
	}
	r.wanted = wanted
	for key := range r.have {
		if !keys[key] {
			delete(r.have, key)
		}
	}
	switch {
	case len(keys) > 0:
		r.unused = time.Time{}
	case r.unused.IsZero():
		r.unused = now
	}
	if fresh {
		knock(r.wake)
	}
	if fresh && !r.reminds {
		r.reminds = true
		time.AfterFunc(r.patience+time.Millisecond, func() {
			r.mu.Lock()
			r.reminds = false
			r.mu.Unlock()
			r.knock()
		})
	}
}

// reread reads objects again, which stay as they are until then.
func (r *namedReader[T]) reread(keys []types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		if got, read := r.have[key]; read {
			got.version = ""
			r.have[key] = got
			knock(r.wake)
		}
	}
}

// idle reports whether the reader can be stopped: nothing needs it, and a later one would
// begin with the same budget.
func (r *namedReader[T]) idle(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.unused.IsZero() && now.Sub(r.unused) >= idleReader && r.budget.TokensAt(now) >= float64(r.budget.Burst())
}

// has reports whether an object was read.
func (r *namedReader[T]) has(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.have[key].found()
}

// answers returns the wanted objects as they were read, and adds to awaited the names of
// those that were not read yet, and are not wanted for longer than patience.
func (r *namedReader[T]) answers(now time.Time, awaited map[types.NamespacedName]bool) (have []T) {
	full, err := r.names.state()
	refused := !full && err != nil && apiserver.IsAnswer(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, since := range r.wanted {
		got, read := r.have[key]
		if got.found() {
			have = append(have, got.object)
		}
		if read || refused || now.Sub(since) > r.patience {
			continue
		}
		if _, exists := r.names.newestOf(key); exists || !full {
			awaited[key] = true
		}
	}
	return have
}

// run reads the wanted objects until ctx ends. It repeats failed requests for ever.
func (r *namedReader[T]) run(ctx context.Context) {
	known := false
	for pause := firstPause; ctx.Err() == nil; {
		due, changed := r.due()
		if full, _ := r.names.state(); full && !known {
			known, changed = true, true
		}
		read, rest, failed := r.read(ctx, due)
		if changed || read {
			r.knock()
		}
		var again <-chan time.Time
		switch {
		case failed:
			again = time.After(pause)
			pause = min(2*pause, longestPause)
		case rest:
			again, pause = time.After(time.Second/readsPerSecond), firstPause
		default:
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-r.wake:
		}
	}
}

// read reads objects that are due, as far as the budget goes. It reports whether there is
// an answer, whether a rest is due for which the budget has no room, and whether a read
// failed.
func (r *namedReader[T]) read(ctx context.Context, due []dueObject) (read, rest, failed bool) {
	for _, one := range due {
		if !r.wants(one.key) {
			continue
		}
		if !r.budget.Allow() {
			return read, true, failed
		}
		object, err := r.fetch(ctx, one.key)
		switch {
		case err == nil:
			r.take(one.key, answer[T]{one.version, object})
			read = true
		case !apiserver.IsAnswer(err): // the API server is away
			return read, false, true
		default:
			failed = true
		}
	}
	return read, false, failed
}

func (r *namedReader[T]) wants(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, wanted := r.wanted[key]
	return wanted
}

// A dueObject is an object that has to be read, at this version or later.
type dueObject struct {
	key     types.NamespacedName
	version string
}

// due returns the wanted objects that came or changed since they were read, in order. It
// forgets those that are gone, and reports whether there were any.
func (r *namedReader[T]) due() (due []dueObject, gone bool) {
	full, _ := r.names.state()
	if !full {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.wanted {
		name, exists := r.names.newestOf(key)
		got, read := r.have[key]
		switch {
		case !exists && read:
			delete(r.have, key)
			gone = true
		case exists && (!read || got.version != name.ResourceVersion):
			due = append(due, dueObject{key, name.ResourceVersion})
		}
	}
	slices.SortFunc(due, func(a, b dueObject) int { return input.CompareKeys(a.key, b.key) })
	return due, gone
}

// take keeps an answer, if it is still wanted. An unchanged object keeps its pointer: a
// Compiler remembers it by the pointer.
func (r *namedReader[T]) take(key types.NamespacedName, now answer[T]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, wanted := r.wanted[key]; !wanted {
		return
	}
	if now.found() {
		r.lands(now.object)
	}
	if old := r.have[key]; old.found() && now.found() && sameButVersion(old.object, now.object) {
		now.object = old.object
	}
	r.have[key] = now
}
