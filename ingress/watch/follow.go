package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/ingress"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// followers keep only the Secrets that something names. Secrets of type
// kubernetes.io/tls are listed and watched together; those that nothing names are
// dropped as they arrive. Every other Secret that something names is left to the
// secretReader of its namespace.
//
// A Secret that is awaited holds back only the objects that name it.
type followers struct {
	mu    sync.Mutex
	begin func(namespace string) *secretReader // nil unless Run runs
	list  func()                               // starts to list and watch TLS Secrets; nil after its first call
	of    map[string]*secretReader             // by namespace
	since time.Time                            // when the TLS Secrets were known

	// tls has the Secrets of type kubernetes.io/tls that something names, by namespace; "" is all.
	tls     map[string]*shelf[*corev1.Secret]
	reading chan struct{} // has an entry for each request of a secretReader that is under way

	// patience bounds how long an awaited Secret holds back a change of the objects that
	// name it, and how long it holds back the first snapshot.
	patience time.Duration

	sum *secretSum // of the bytes of all of them

	// The names, and the objects they were read from.
	from   ingress.Snapshot
	names  []types.NamespacedName
	beyond []ingress.Problem
	wanted atomic.Pointer[map[types.NamespacedName]bool] // names and those of handed, for lookups

	handed ingress.Objects        // those of the last snapshot
	kept   []types.NamespacedName // the names in handed, which differ from names while objects are held back
}

// patience is the usual one of followers.
const patience = 2 * time.Second

// idleReader is how long a secretReader goes on that nothing needs. A list of names then
// costs one request in this time, however often a tenant names a Secret and takes the
// name back.
const idleReader = time.Minute

// named reports whether something names a Secret.
func (f *followers) named(key types.NamespacedName) bool {
	all := f.wanted.Load()
	return all != nil && (*all)[key]
}

// referred adds to a snapshot the Secrets that its objects name, and replaces objects
// that are held back. Until synced, it returns the Secrets that the first snapshot waits for.
func (w *Watcher) referred(s *ingress.Snapshot, synced bool) (waiting []string) {
	f := &w.followers
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read(s)
	if f.list != nil {
		f.list()
		f.list, f.since = nil, time.Now()
	}
	s.NoSecrets = true
	for _, namespace := range sortedKeys(w.followers.tls) {
		shelf := w.followers.tls[namespace]
		shelf.drop()
		if shelf.awaited() {
			waiting = append(waiting, shelf.name())
		}
		s.NoSecrets = s.NoSecrets && shelf.barred()
		s.Secrets = append(s.Secrets, shelf.list()...)
	}
	if len(waiting) > 0 {
		f.since = time.Now() // patience begins once the TLS Secrets are known
		return waiting
	}
	slices.SortFunc(s.Secrets, ingress.ByName)
	more, awaited := f.follow(s.Secrets)
	s.Secrets = append(s.Secrets, more...)
	slices.SortFunc(s.Secrets, ingress.ByName)
	w.readAgain(f.sum.count(s.Secrets))
	if !synced {
		if time.Since(f.since) <= f.patience {
			for _, key := range slices.SortedFunc(maps.Keys(awaited), ingress.CompareKeys) {
				waiting = append(waiting, "Secret "+key.String())
			}
			if len(waiting) > 0 {
				return waiting
			}
		}
		clear(awaited) // no earlier snapshot has objects that could stay
	}
	if f.hold(s, awaited) {
		for _, shelf := range w.followers.tls {
			shelf.drop()
		}
	}
	return nil
}

// readAgain reads Secrets again that have room now. A TLS Secret that its shelf does not have is read
// by the secretReader of its namespace.
func (w *Watcher) readAgain(keys []types.NamespacedName) {
	if len(keys) == 0 {
		return
	}
	for _, shelf := range w.followers.tls {
		shelf.forget(keys)
	}
	for _, r := range w.followers.of {
		r.reread(keys)
	}
	w.tell()
}

// withoutSlices returns the objects without EndpointSlices, which name no Secrets.
func withoutSlices(o ingress.Objects) ingress.Objects {
	o.Slices = nil
	return o
}

// read finds the names in the objects of a snapshot, if these have changed.
func (f *followers) read(s *ingress.Snapshot) {
	now := ingress.Snapshot{
		Cluster: s.Cluster, Options: s.Options, NoClasses: s.NoClasses, Objects: withoutSlices(s.Objects),
	}
	if f.wanted.Load() == nil || now.NoClasses != f.from.NoClasses || !now.Same(f.from.Objects) {
		f.from = now
		f.names, f.beyond = now.NamedSecrets()
		f.want()
	}
	s.Beyond = append(s.Beyond, f.beyond...)
}

// want renews wanted.
func (f *followers) want() {
	wanted := make(map[types.NamespacedName]bool, len(f.names))
	for _, keys := range [][]types.NamespacedName{f.names, f.kept} {
		for _, key := range keys {
			wanted[key] = true
		}
	}
	f.wanted.Store(&wanted)
}

// follow returns the Secrets that are wanted and are not among the TLS Secrets, and the
// names of those that are awaited. It starts the readers that are missing.
func (f *followers) follow(tls []*corev1.Secret) (have []*corev1.Secret, awaited map[types.NamespacedName]bool) {
	awaited = make(map[types.NamespacedName]bool)
	if f.begin == nil {
		return nil, awaited
	}
	missing := make(map[string]map[types.NamespacedName]bool)
	for key := range *f.wanted.Load() {
		if _, has := ingress.Find(tls, key); has {
			continue
		}
		if missing[key.Namespace] == nil {
			missing[key.Namespace] = make(map[types.NamespacedName]bool)
		}
		missing[key.Namespace][key] = true
	}
	now := time.Now()
	for namespace, r := range f.of {
		if missing[namespace] == nil && r.idle(now) {
			r.stop()
			delete(f.of, namespace)
		}
	}
	for namespace := range missing {
		if f.of[namespace] == nil {
			f.of[namespace] = f.begin(namespace)
		}
	}
	for namespace, r := range f.of {
		r.want(missing[namespace], now)
		have = append(have, r.answers(now, awaited)...)
	}
	return have, awaited
}

// hold holds back each object of a snapshot that names an awaited Secret. The snapshot then has the
// version that was handed out before, or lacks the object if no version was. So the object changes
// in one step, with its Secrets. hold reports whether other Secrets are wanted now.
func (f *followers) hold(s *ingress.Snapshot, awaited map[types.NamespacedName]bool) (changed bool) {
	waits := f.from.Naming(awaited)
	kept := f.names
	if len(waits) > 0 {
		s.Ingresses = holdBack(s.Ingresses, f.handed.Ingresses, waits)
		s.Services = holdBack(s.Services, f.handed.Services, waits)
		s.ConfigMaps = holdBack(s.ConfigMaps, f.handed.ConfigMaps, waits)
		s.API.Gateways = holdBack(s.API.Gateways, f.handed.API.Gateways, waits)
		s.API.ListenerSets = holdBack(s.API.ListenerSets, f.handed.API.ListenerSets, waits)
		now := f.from
		now.Objects = withoutSlices(s.Objects)
		kept, _ = now.NamedSecrets()
	}
	changed = !slices.Equal(kept, f.kept)
	if changed {
		f.kept = kept
		f.want()
		s.Secrets = slices.DeleteFunc(s.Secrets, func(one *corev1.Secret) bool { return !f.named(ingress.KeyOf(one)) })
	}
	f.handed = withoutSlices(s.Objects)
	return changed
}

// holdBack returns the list with the former version of each object that waits.
func holdBack[T object](list, former []T, waits map[metav1.Object]bool) []T {
	if !slices.ContainsFunc(list, func(o T) bool { return waits[o] }) {
		return list
	}
	held := make([]T, 0, len(list))
	for _, o := range list {
		if waits[o] {
			var has bool
			if o, has = ingress.Find(former, ingress.KeyOf(o)); !has {
				continue
			}
		}
		held = append(held, o)
	}
	return held
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
	w.followers.of = make(map[string]*secretReader)
	w.followers.wanted.Store(nil)
	w.followers.begin = func(namespace string) *secretReader { return w.startReader(ctx, wg, namespace) }
	w.followers.list = func() {
		if ctx.Err() != nil {
			return
		}
		for namespace, s := range w.followers.tls {
			w.startSecrets(ctx, wg, s, namespace)
		}
	}
}

// secretsPage bounds the TLS Secrets of one request. A Secret can have a megabyte
// although nothing names it. The page does not grow after small Secrets, because
// the tenant who writes them chooses their order.
const secretsPage = 8

// startSecrets lists and watches the Secrets of type kubernetes.io/tls of a
// namespace. At most one page of Secrets that nothing names is in memory at a time.
func (w *Watcher) startSecrets(
	ctx context.Context, wg *sync.WaitGroup, s *shelf[*corev1.Secret], namespace string,
) {
	from := w.kube.Secrets(namespace)
	const fields = "type=" + string(corev1.SecretTypeTLS)
	wg.Go(func() {
		s.run(ctx, func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			first := metav1.ListOptions{FieldSelector: fields, Limit: secretsPage}
			return inPages(first, func(o metav1.ListOptions) (*corev1.SecretList, error) {
				page, err := from.List(ctx, o)
				if err != nil {
					return nil, err
				}
				page.Items = slices.DeleteFunc(page.Items,
					func(one corev1.Secret) bool { return !s.wants(ingress.KeyOf(&one)) })
				for i := range page.Items {
					s.clean(&page.Items[i])
				}
				return page, nil
			})
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return from.Watch(ctx, o)
		})
	})
}

// inPages reads a whole list, page by page. It asks for no revision: for an older one the
// API server ignores the limit.
func inPages(
	o metav1.ListOptions, list func(metav1.ListOptions) (*corev1.SecretList, error),
) (*corev1.SecretList, error) {
	all := &corev1.SecretList{}
	for {
		page, err := list(o)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, page.Items...)
		all.ListMeta = page.ListMeta
		if o.Continue = page.Continue; o.Continue == "" {
			return all, nil
		}
	}
}
