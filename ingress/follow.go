package ingress

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// followers keep the Secrets that something names, and no others. Secrets of type
// kubernetes.io/tls are listed and watched together; those that nothing names are
// dropped as they arrive. A Secret of any other type, or one that was dropped before
// something named it, is watched by its name. The API server never sends a Secret of
// another type that nothing names.
type followers struct {
	mu    sync.Mutex
	begin func(s *shelf[*corev1.Secret], key serviceKey) (stop func()) // nil unless Run runs
	list  func()                                                       // starts to list and watch TLS Secrets; nil after its first call
	of    map[serviceKey]*follower

	// The names, and the objects they were read from.
	from   world
	names  []serviceKey
	wanted atomic.Pointer[map[serviceKey]bool] // names, for lookups
}

type follower struct {
	shelf *shelf[*corev1.Secret]
	since time.Time
	stop  func()
}

// patience bounds the wait for a Secret that was just named. No other change takes
// effect during the wait.
const patience = 2 * time.Second

// fewMissed bounds the TLS Secrets that are watched one by one. For more of them, as
// when many Ingresses come at once, one new list is less work.
const fewMissed = 16

// settled reports whether a Secret needs no more waiting: it was read, or the API
// server refused to return it, or patience is over. At the start, until synced, only
// an answer settles it.
func (f *follower) settled(synced bool) bool {
	full, err := f.shelf.state()
	return full || f.shelf.barred() || synced && (err != nil && isAnswer(err) || time.Since(f.since) > patience)
}

// named reports whether something names a Secret.
func (f *followers) named(key serviceKey) bool {
	all := f.wanted.Load()
	return all != nil && (*all)[key]
}

// referred adds to a snapshot the Secrets that its objects name, and returns the names
// of those that are awaited. The rest of the snapshot is complete.
func (w *Watcher) referred(s *Snapshot, synced bool) (waiting []string) {
	f := &w.followers
	f.mu.Lock()
	defer f.mu.Unlock()
	now := world{Snapshot: Snapshot{Cluster: s.Cluster, Options: s.Options.withDefaults(), NoClasses: s.NoClasses, Objects: s.withoutSlices()}}
	if f.wanted.Load() == nil || now.NoClasses != f.from.NoClasses || !now.Same(f.from.Objects) {
		f.names, f.from = now.references(), now
		wanted := make(map[serviceKey]bool, len(f.names))
		for _, key := range f.names {
			wanted[key] = true
		}
		f.wanted.Store(&wanted)
	}
	if f.list != nil {
		f.list()
		f.list = nil
	}
	s.NoSecrets = true
	for _, namespace := range sortedKeys(w.secrets) {
		shelf := w.secrets[namespace]
		if late := shelf.drop(); len(late) > fewMissed {
			shelf.anew()
		}
		if shelf.awaited() {
			waiting = append(waiting, shelf.name())
		}
		s.NoSecrets = s.NoSecrets && shelf.barred()
		s.Secrets = append(s.Secrets, shelf.list()...)
	}
	if len(waiting) > 0 {
		return waiting
	}
	slices.SortFunc(s.Secrets, byName)
	follow := slices.DeleteFunc(slices.Clone(f.names), func(key serviceKey) bool {
		_, has := find(s.Secrets, key)
		for _, shelf := range w.secrets {
			has = has || shelf.brings(key)
		}
		return has
	})
	w.follow(follow)
	for _, key := range follow {
		one := f.of[key]
		if one == nil {
			continue
		}
		if !one.settled(synced) {
			waiting = append(waiting, "Secret "+key.String())
		}
		s.Secrets = append(s.Secrets, one.shelf.list()...)
	}
	slices.SortFunc(s.Secrets, byName)
	return waiting
}

// follow watches the Secrets of these names, which are sorted, and stops watching all
// others. The caller holds the followers' lock.
func (w *Watcher) follow(names []serviceKey) {
	f := &w.followers
	if f.begin == nil {
		return
	}
	for key, one := range f.of {
		if _, named := slices.BinarySearchFunc(names, key, compareKeys); !named {
			one.stop()
			delete(f.of, key)
		}
	}
	for _, key := range names {
		if f.of[key] != nil {
			continue
		}
		one := &follower{since: time.Now(), shelf: newShelf(w, "", "secrets", byName, w.stripSecret)}
		one.stop = f.begin(one.shelf, key)
		f.of[key] = one
		time.AfterFunc(patience+time.Millisecond, w.tell)
	}
}

// mayNotFollow prevents new watches.
func (w *Watcher) mayNotFollow() {
	w.followers.mu.Lock()
	defer w.followers.mu.Unlock()
	w.followers.begin, w.followers.list = nil, nil
}

// mayFollow lets followers start watches until ctx ends.
func (w *Watcher) mayFollow(ctx context.Context, wg *sync.WaitGroup) {
	w.followers.mu.Lock()
	defer w.followers.mu.Unlock()
	w.followers.of = make(map[serviceKey]*follower)
	w.followers.wanted.Store(nil)
	w.followers.begin = func(s *shelf[*corev1.Secret], key serviceKey) func() {
		each, stop := context.WithCancel(ctx)
		if ctx.Err() == nil {
			start(each, wg, s, w.kube.Secrets(key.namespace), "metadata.name="+key.name)
		}
		return stop
	}
	w.followers.list = func() {
		if ctx.Err() != nil {
			return
		}
		for namespace, s := range w.secrets {
			w.startSecrets(ctx, wg, s, namespace)
		}
	}
}

// secretsPage bounds the TLS Secrets of one request. A Secret can have a megabyte
// although nothing names it. The page does not grow when small Secrets came first:
// whoever may write Secrets chooses their order.
const secretsPage = 8

// startSecrets lists and watches the Secrets of type kubernetes.io/tls of a
// namespace. At most one page of Secrets that nothing names is in memory at a time.
func (w *Watcher) startSecrets(ctx context.Context, wg *sync.WaitGroup, s *shelf[*corev1.Secret], namespace string) {
	from := w.kube.Secrets(namespace)
	const fields = "type=" + string(corev1.SecretTypeTLS)
	wg.Go(func() {
		s.run(ctx, func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			all := &corev1.SecretList{}
			s.begin()
			// Without a revision: for an older one the API server ignores the limit.
			for o := (metav1.ListOptions{FieldSelector: fields, Limit: secretsPage}); ; {
				page, err := from.List(ctx, o)
				if err != nil {
					return nil, err
				}
				for i := range page.Items {
					one := &page.Items[i]
					if !s.skip(keyOf(one)) {
						s.clean(one)
						all.Items = append(all.Items, *one)
					}
				}
				all.ListMeta = page.ListMeta
				if o.Continue = page.Continue; o.Continue == "" {
					return all, nil
				}
			}
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return from.Watch(ctx, o)
		})
	})
}

// readsSecretsOf reports whether the Secrets of a namespace are read.
func (o Options) readsSecretsOf(namespace string) bool {
	all := o.secretNamespaces()
	return all[0] == metav1.NamespaceAll || slices.Contains(all, namespace)
}

// secretNamespaces returns the namespaces whose Secrets are read; "" is all.
func (o Options) secretNamespaces() []string {
	if len(o.Namespaces) == 0 || o.CrossNamespaceSecrets {
		return []string{metav1.NamespaceAll}
	}
	all := slices.Clone(o.Namespaces)
	if namespace, _, named := strings.Cut(o.ConfigMap, "/"); named {
		all = append(all, namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
