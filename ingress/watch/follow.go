package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/input"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// followers keep only the Secrets and the ConfigMaps that something names. Secrets of
// type kubernetes.io/tls are listed and watched together; those that nothing names are dropped as they
// arrive. Every other object that something names is left to the namedReader of its kind and
// namespace.
//
// An object that is awaited holds back only the objects that name it.
type followers struct {
	mu    sync.Mutex
	list  func()    // starts to list and watch TLS Secrets; nil after its first call, and unless Run runs
	since time.Time // when the TLS Secrets were known

	// tls has the Secrets of type kubernetes.io/tls that something names, by namespace; "" is all.
	tls     map[string]*shelf[*corev1.Secret]
	reading chan struct{} // has an entry for each request of a namedReader that is under way

	secrets    followed[*corev1.Secret]
	configMaps followed[*corev1.ConfigMap]

	// patience bounds how long an awaited object holds back a change of the objects that
	// name it, and how long it holds back the first snapshot.
	patience time.Duration

	from   input.Snapshot // the objects that the names were read from
	beyond []ingress.Problem
	handed input.Objects // those of the last snapshot
}

// A followed has the objects of one kind that something names.
type followed[T object] struct {
	kind, resource string
	list           func(ctx context.Context, namespace string, o metav1.ListOptions) ([]T, error)

	begin func(namespace string) *namedReader[T] // nil unless Run runs
	of    map[string]*namedReader[T]             // by namespace
	sum   *sum[T]                                // of the bytes of all of them

	names []types.NamespacedName
	// inUse are the names in handed. They differ from names while objects are held back.
	inUse  []types.NamespacedName
	wanted atomic.Pointer[map[types.NamespacedName]bool] // names and kept, for lookups
}

// patience is the usual one of followers.
const patience = 2 * time.Second

// idleReader is how long a namedReader goes on that nothing needs. A list of names then
// costs one request in this time, however often a tenant names an object and takes the
// name back.
const idleReader = time.Minute

// named reports whether something names an object.
func (f *followed[T]) named(key types.NamespacedName) bool {
	all := f.wanted.Load()
	return all != nil && (*all)[key]
}

// referred adds to a snapshot the Secrets and ConfigMaps that its objects name, and replaces objects
// that are held back. Until synced, it returns the objects that the first snapshot waits for.
func (w *Watcher) referred(s *input.Snapshot, synced bool) (waiting []string) {
	f := &w.followers
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read(s)
	if f.list != nil {
		f.list()
		f.list, f.since = nil, time.Now()
	}
	s.NoSecrets = true
	landed, landedMaps := f.secrets.sum.now(), f.configMaps.sum.now()
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
	slices.SortFunc(s.Secrets, input.ByName)
	secrets, awaited := f.secrets.follow(s.Secrets)
	s.Secrets = secrets
	if again := f.secrets.sum.count(s.Secrets, landed, f.secrets.named); len(again) > 0 {
		// A TLS Secret that its shelf does not have is read by the namedReader of its namespace.
		for _, shelf := range f.tls {
			shelf.forget(again)
		}
		f.secrets.reread(again)
		w.wake()
	}
	configMaps, awaitedMaps := f.configMaps.follow(s.ConfigMaps)
	s.ConfigMaps = configMaps
	read := f.configMaps.only(s.ConfigMaps)
	if again := f.configMaps.sum.count(read, landedMaps, f.configMaps.named); len(again) > 0 {
		f.configMaps.reread(again)
		w.wake()
	}
	if !synced {
		if time.Since(f.since) <= f.patience {
			waiting = append(f.secrets.called(awaited), f.configMaps.called(awaitedMaps)...)
			if len(waiting) > 0 {
				return waiting
			}
		}
		clear(awaited) // no earlier snapshot has objects that could stay
		clear(awaitedMaps)
	}
	f.hold(s, awaited, awaitedMaps)
	return nil
}

// called returns the names of objects for a sentence.
func (f *followed[T]) called(keys map[types.NamespacedName]bool) (all []string) {
	for _, key := range slices.SortedFunc(maps.Keys(keys), input.CompareKeys) {
		all = append(all, f.kind+" "+key.String())
	}
	return all
}

// reread reads objects again that have room now.
func (f *followed[T]) reread(keys []types.NamespacedName) {
	for _, r := range f.of {
		r.reread(keys)
	}
}

// only returns the objects that a namedReader has read.
func (f *followed[T]) only(list []T) (all []T) {
	for _, one := range list {
		if r := f.of[one.GetNamespace()]; r != nil && r.has(input.KeyOf(one)) {
			all = append(all, one)
		}
	}
	return all
}

// withoutSlices returns the objects without EndpointSlices, which name no Secrets.
func withoutSlices(o input.Objects) input.Objects {
	o.Slices = nil
	return o
}

// read finds the names in the objects of a snapshot, if these have changed.
func (f *followers) read(s *input.Snapshot) {
	now := input.Snapshot{
		Cluster: s.Cluster, Options: s.Options, NoClasses: s.NoClasses, Objects: withoutSlices(s.Objects),
	}
	if f.secrets.wanted.Load() == nil || now.NoClasses != f.from.NoClasses || !now.Same(f.from.Objects) {
		f.from = now
		f.secrets.names, f.configMaps.names, f.beyond = now.AllNamed()
		f.secrets.want()
		f.configMaps.want()
	}
	s.Beyond = append(s.Beyond, f.beyond...)
}

// want renews wanted.
func (f *followed[T]) want() {
	wanted := make(map[types.NamespacedName]bool, len(f.names))
	for _, keys := range [][]types.NamespacedName{f.names, f.inUse} {
		for _, key := range keys {
			wanted[key] = true
		}
	}
	f.wanted.Store(&wanted)
}

// follow returns the objects that shelves have together with those that are wanted beside them, in
// order, and the names of those that are awaited. It starts the readers that are missing.
func (f *followed[T]) follow(shelved []T) (have []T, awaited map[types.NamespacedName]bool) {
	awaited = make(map[types.NamespacedName]bool)
	if f.begin == nil {
		return shelved, awaited
	}
	missing := make(map[string]map[types.NamespacedName]bool)
	for key := range *f.wanted.Load() {
		if _, has := input.Find(shelved, key); has {
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
	if len(have) == 0 {
		return shelved, awaited
	}
	have = slices.Concat(shelved, have)
	slices.SortFunc(have, input.ByName)
	return have, awaited
}

// hold holds back each object of a snapshot that names an awaited object. The snapshot then has the
// version that was handed out before, or lacks the object if no version was. So the object changes
// in one step, with those that it names. A policy without an earlier version is not held back: without
// it, its Service would take requests that the policy forbids.
func (f *followers) hold(s *input.Snapshot, awaited, awaitedMaps map[types.NamespacedName]bool) {
	waits := f.from.Naming(awaited, awaitedMaps)
	secrets, configMaps := f.secrets.names, f.configMaps.names
	if len(waits) > 0 {
		s.Ingresses = holdBack(s.Ingresses, f.handed.Ingresses, waits)
		s.Services = holdBack(s.Services, f.handed.Services, waits)
		s.ConfigMaps = holdBack(s.ConfigMaps, f.handed.ConfigMaps, waits)
		s.API.Gateways = holdBack(s.API.Gateways, f.handed.API.Gateways, waits)
		s.API.ListenerSets = holdBack(s.API.ListenerSets, f.handed.API.ListenerSets, waits)
		for _, p := range s.API.TLSPolicies {
			if _, has := input.Find(f.handed.API.TLSPolicies, input.KeyOf(p)); !has {
				delete(waits, p)
			}
		}
		s.API.TLSPolicies = holdBack(s.API.TLSPolicies, f.handed.API.TLSPolicies, waits)
		now := f.from
		now.Objects = withoutSlices(s.Objects)
		secrets, configMaps, _ = now.AllNamed()
	}
	if f.secrets.handOut(secrets) {
		s.Secrets = slices.DeleteFunc(s.Secrets,
			func(one *corev1.Secret) bool { return !f.secrets.named(input.KeyOf(one)) })
		for _, shelf := range f.tls {
			shelf.drop()
		}
	}
	if f.configMaps.handOut(configMaps) {
		unnamed := f.configMaps.only(s.ConfigMaps)
		s.ConfigMaps = slices.DeleteFunc(slices.Clone(s.ConfigMaps), func(one *corev1.ConfigMap) bool {
			return slices.Contains(unnamed, one) && !f.configMaps.named(input.KeyOf(one))
		})
	}
	f.handed = withoutSlices(s.Objects)
}

// handOut notes the names in the objects that are handed out. It reports whether other objects are wanted
// now.
func (f *followed[T]) handOut(names []types.NamespacedName) (changed bool) {
	if slices.Equal(names, f.inUse) {
		return false
	}
	f.inUse = names
	f.want()
	return true
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
			if o, has = input.Find(former, input.KeyOf(o)); !has {
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
	w.followers.list, w.followers.secrets.begin, w.followers.configMaps.begin = nil, nil, nil
}

// mayFollow lets followers start watches until ctx ends.
func (w *Watcher) mayFollow(ctx context.Context, wg *sync.WaitGroup) {
	w.followers.mu.Lock()
	defer w.followers.mu.Unlock()
	mayRead(ctx, wg, w, &w.followers.secrets)
	mayRead(ctx, wg, w, &w.followers.configMaps)
	w.followers.list = func() {
		if ctx.Err() != nil {
			return
		}
		for namespace, s := range w.followers.tls {
			w.startSecrets(ctx, wg, s, namespace)
		}
	}
}

// mayRead lets the readers of a kind start until ctx ends.
func mayRead[T object](ctx context.Context, wg *sync.WaitGroup, w *Watcher, f *followed[T]) {
	f.of = make(map[string]*namedReader[T])
	f.wanted.Store(nil)
	f.begin = func(namespace string) *namedReader[T] { return startReader(ctx, wg, w, f, namespace) }
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
			w.followers.secrets.sum.abandon(namespace)
			first := metav1.ListOptions{FieldSelector: fields, Limit: secretsPage}
			return inPages(first, func(o metav1.ListOptions) (*corev1.SecretList, error) {
				page, err := from.List(ctx, o)
				if err != nil {
					return nil, err
				}
				page.Items = slices.DeleteFunc(page.Items,
					func(one corev1.Secret) bool { return !s.wants(input.KeyOf(&one)) })
				for i := range page.Items {
					s.clean(&page.Items[i])
				}
				return page, nil
			}, func(l *corev1.SecretList) *[]corev1.Secret { return &l.Items })
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return from.Watch(ctx, o)
		})
	})
}

// inPages reads a whole list, page by page. It asks for no revision: for an older one the
// API server ignores the limit.
func inPages[T any, L metav1.ListInterface](
	o metav1.ListOptions, list func(metav1.ListOptions) (L, error), items func(L) *[]T,
) (all L, err error) {
	if all, err = list(o); err != nil {
		return all, err
	}
	for all.GetContinue() != "" {
		o.Continue = all.GetContinue()
		page, err := list(o)
		if err != nil {
			return all, err
		}
		*items(all) = append(*items(all), *items(page)...)
		all.SetResourceVersion(page.GetResourceVersion())
		all.SetContinue(page.GetContinue())
	}
	return all, nil
}
