package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"sallyport/ingress"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// A secretReader reads the Secrets of one namespace that something names but that are not among the
// TLS Secrets. These are Secrets of other types, and TLS Secrets that were dropped before something
// named them.
//
// It watches only the names of the namespace's Secrets. It reads each wanted Secret when that comes
// or changes. If no Secret has a wanted name, that name costs no request. The requests of one
// namespace run one at a time, within a budget, so no namespace delays the requests of another
// namespace.
type secretReader struct {
	names *shelf[*corev1.Secret] // all Secrets of the namespace, with their names and versions alone
	stop  context.CancelFunc
	tell  func()        // called after a change
	wake  chan struct{} // knocks after a change of names or wanted

	// fetch returns a Secret, or nil if the Secret does not exist.
	fetch func(context.Context, types.NamespacedName) (*corev1.Secret, error)

	patience time.Duration // that of followers

	mu      sync.Mutex
	budget  *rate.Limiter
	wanted  map[types.NamespacedName]time.Time // since when
	have    map[types.NamespacedName]answer
	unused  time.Time // since when nothing is wanted; zero while something is
	reminds bool      // a timer calls tell when patience ends
}

// An answer is a Secret as it was read. secret is nil if there was none any more.
type answer struct {
	version string // in names, when it was asked for
	secret  *corev1.Secret
}

// These are the budget of a namespace. It may read as many Secrets at once as it may name, for
// a start, and then so many in a second. secretsAtOnce is for a namespace without a limit.
const (
	secretsPerSecond = 10
	secretsAtOnce    = 3000
)

// readersAtOnce bounds the requests of all readers that are under way. Each reader has at
// most one, so that namespaces take turns.
const readersAtOnce = 16

// namesPage bounds the names in one answer.
const namesPage = 500

// startReader starts the reader of a namespace. It runs until ctx ends or it is stopped.
func (w *Watcher) startReader(ctx context.Context, wg *sync.WaitGroup, namespace string) *secretReader {
	each, stop := context.WithCancel(ctx)
	most := w.cfg.Options.Limits.Secrets
	if most == 0 {
		most = secretsAtOnce
	}
	r := &secretReader{
		names: newShelf[*corev1.Secret](w, "", "secrets", ingress.ByName), stop: stop, tell: w.tell,
		wake: make(chan struct{}, 1), budget: rate.NewLimiter(secretsPerSecond, most),
		have: make(map[types.NamespacedName]answer), patience: w.followers.patience,
	}
	r.fetch = func(ctx context.Context, key types.NamespacedName) (found *corev1.Secret, err error) {
		err = w.inTurn(ctx, func(ctx context.Context) error {
			found, err = w.readSecret(ctx, key)
			return err
		})
		return found, err
	}
	r.names.knock = func() { knock(r.wake) }
	r.names.same = func(a, b *corev1.Secret) bool { return a.ResourceVersion == b.ResourceVersion }
	if ctx.Err() != nil {
		return r
	}
	from := w.kube.SecretNames(namespace)
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

// listNames lists the names of Secrets.
func (w *Watcher) listNames(ctx context.Context, from reader[*corev1.SecretList]) (*corev1.SecretList, error) {
	first := metav1.ListOptions{Limit: namesPage}
	return inPages(first, func(o metav1.ListOptions) (page *corev1.SecretList, err error) {
		err = w.inTurn(ctx, func(ctx context.Context) error {
			page, err = from.List(ctx, o)
			return err
		})
		return page, err
	})
}

// inTurn makes a request of a reader, once fewer than readersAtOnce are under way.
func (w *Watcher) inTurn(ctx context.Context, request func(context.Context) error) error {
	select {
	case w.followers.reading <- struct{}{}:
		defer func() { <-w.followers.reading }()
	case <-ctx.Done():
		return ctx.Err()
	}
	call, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	return request(call)
}

// readSecret reads a Secret by its name: as a list, since the appliance may not get
// Secrets.
func (w *Watcher) readSecret(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	list, err := w.kube.Secrets(key.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + key.Name})
	if !errors.Is(err, context.Canceled) {
		w.answered("", "secrets", err, false)
	}
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if one := &list.Items[i]; ingress.KeyOf(one) == key {
			one.SetManagedFields(nil)
			w.cfg.Options.Strip(one)
			w.followers.sum.admit(one)
			return one, nil
		}
	}
	return nil, nil
}

// want replaces the list of wanted Secrets.
func (r *secretReader) want(keys map[types.NamespacedName]bool, now time.Time) {
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
			r.tell()
		})
	}
}

// reread reads Secrets again, which stay as they are until then.
func (r *secretReader) reread(keys []types.NamespacedName) {
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
func (r *secretReader) idle(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.unused.IsZero() && now.Sub(r.unused) >= idleReader && r.budget.TokensAt(now) >= float64(r.budget.Burst())
}

// answers returns the wanted Secrets as they were read, and adds to awaited the names of
// those that were not read yet, and are not wanted for longer than patience.
func (r *secretReader) answers(now time.Time, awaited map[types.NamespacedName]bool) (have []*corev1.Secret) {
	full, err := r.names.state()
	refused := !full && err != nil && isAnswer(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, since := range r.wanted {
		got, read := r.have[key]
		if got.secret != nil {
			have = append(have, got.secret)
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

// run reads the wanted Secrets until ctx ends. It repeats failed requests for ever.
func (r *secretReader) run(ctx context.Context) {
	known := false
	for pause := firstPause; ctx.Err() == nil; {
		due, changed := r.due()
		if full, _ := r.names.state(); full && !known {
			known, changed = true, true
		}
		read, rest, failed := r.read(ctx, due)
		if changed || read {
			r.tell()
		}
		var again <-chan time.Time
		switch {
		case failed:
			again = time.After(pause)
			pause = min(2*pause, longestPause)
		case rest:
			again, pause = time.After(time.Second/secretsPerSecond), firstPause
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

// read reads Secrets that are due, as far as the budget goes. It reports whether there is
// an answer, whether a rest is due for which the budget has no room, and whether a read
// failed.
func (r *secretReader) read(ctx context.Context, due []dueSecret) (read, rest, failed bool) {
	for _, one := range due {
		if !r.wants(one.key) {
			continue
		}
		if !r.budget.Allow() {
			return read, true, failed
		}
		secret, err := r.fetch(ctx, one.key)
		switch {
		case err == nil:
			r.take(one.key, answer{one.version, secret})
			read = true
		case !isAnswer(err): // the API server is away
			return read, false, true
		default:
			failed = true
		}
	}
	return read, false, failed
}

func (r *secretReader) wants(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, wanted := r.wanted[key]
	return wanted
}

// A dueSecret is a Secret that has to be read, at this version or later.
type dueSecret struct {
	key     types.NamespacedName
	version string
}

// due returns the wanted Secrets that came or changed since they were read, in order. It
// forgets those that are gone, and reports whether there were any.
func (r *secretReader) due() (due []dueSecret, gone bool) {
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
			due = append(due, dueSecret{key, name.ResourceVersion})
		}
	}
	slices.SortFunc(due, func(a, b dueSecret) int { return ingress.CompareKeys(a.key, b.key) })
	return due, gone
}

// take keeps an answer, if it is still wanted. An unchanged Secret keeps its pointer: a
// Compiler remembers it by the pointer.
func (r *secretReader) take(key types.NamespacedName, now answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, wanted := r.wanted[key]; !wanted {
		return
	}
	if old := r.have[key].secret; old != nil && now.secret != nil && sameButVersion(old, now.secret) {
		now.secret = old
	}
	r.have[key] = now
}
