package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/input"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// An allowance bounds the objects of each namespace that a shelf keeps, because all
// namespaces share the memory of the appliance. What something served refers to
// displaces the rest. An object that was not kept is read again when there is room for
// it, or when something refers to it. The shelf's lock guards all but the first six
// fields, which never change.
type allowance[T object] struct {
	key, kind string        // the key of the bound in the configuration file; the kind of the objects
	plural    string        // of the kind
	follows   string        // a sentence about the consequence for objects that are not kept
	most      int           // bytes of the objects of a namespace together; 0 means no bound
	first     func(T) bool  // whether something served refers to an object
	wake      chan struct{} // knocked when a namespace has to be read again

	bytes   map[string]int               // of the objects that are kept, by namespace
	short   map[string]*shortage         // namespaces with objects that are not kept
	beyond  map[string]ingress.ObjectRef // of the list in progress: an object of each namespace that it left out
	reading *reading                     // of one namespace; nil if none is being read
}

// A shortage is about a namespace with objects that are not kept.
type shortage struct {
	example ingress.ObjectRef // one of those objects
	due     bool              // it may be possible to keep more of them
	after   time.Time         // when the namespace may be read again
}

// A reading reads the objects of one namespace again.
type reading struct {
	namespace string
	watched   map[types.NamespacedName]bool // objects that the watch has reported meanwhile: its word is newer
	refused   bool                          // an object was not kept
}

func newAllowance[T object](key, kind string, most int, first func(T) bool) *allowance[T] {
	return &allowance[T]{
		key: key, kind: kind, plural: kind + "s",
		follows: "those of Services that something served refers to are used first",
		most:    most, first: first, wake: make(chan struct{}, 1),
		bytes: map[string]int{}, short: map[string]*shortage{},
	}
}

// bytesOf returns the bytes of an object in the encoding of the API server: protobuf, or JSON for
// the objects of CRDs.
func bytesOf(o any) int {
	if sized, ok := o.(interface{ Size() int }); ok {
		return sized.Size()
	}
	text, _ := json.Marshal(o) // it came as JSON
	return len(text)
}

func (sh *allowance[T]) refer(o T) ingress.ObjectRef {
	return ingress.ObjectRef{Kind: sh.kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

// refuse notes that an object is not kept.
func (sh *allowance[T]) refuse(o T) {
	namespace := o.GetNamespace()
	if sh.short[namespace] == nil {
		sh.short[namespace] = &shortage{example: sh.refer(o)}
	}
	if sh.reading != nil && sh.reading.namespace == namespace {
		sh.reading.refused = true
	}
}

// due notes that more objects of a namespace may be kept now.
func (sh *allowance[T]) due(namespace string) {
	if sh == nil {
		return
	}
	if short := sh.short[namespace]; short != nil && !short.due {
		short.due = true
		knock(sh.wake)
	}
}

// hold notes that an object is kept, and drop that it is no more.
func (sh *allowance[T]) hold(o T) {
	if sh != nil {
		sh.bytes[o.GetNamespace()] += bytesOf(o)
	}
}

func (sh *allowance[T]) drop(o T) {
	if sh == nil {
		return
	}
	if sh.bytes[o.GetNamespace()] -= bytesOf(o); sh.bytes[o.GetNamespace()] <= 0 {
		delete(sh.bytes, o.GetNamespace())
	}
}

// room reports whether an object may be kept beside the others of its namespace, and
// removes those that it displaces. The shelf does not hold an older version. The caller
// holds mu.
func (s *shelf[T]) room(item T) (is, displaced bool) {
	sh := s.share
	if sh == nil || sh.most == 0 {
		return true, false
	}
	namespace := item.GetNamespace()
	over := sh.bytes[namespace] + bytesOf(item) - sh.most
	if over <= 0 {
		return true, false
	}
	var victims []T
	if sh.first(item) {
		from, _ := slices.BinarySearchFunc(s.items, namespace,
			func(o T, n string) int { return strings.Compare(o.GetNamespace(), n) })
		for _, o := range s.items[from:] {
			if over <= 0 || o.GetNamespace() != namespace {
				break
			}
			if !sh.first(o) {
				victims = append(victims, o)
				over -= bytesOf(s.latest[input.KeyOf(o)])
			}
		}
	}
	if over > 0 {
		sh.refuse(item)
		return false, false
	}
	for _, o := range victims {
		s.take(o)
		sh.drop(s.latest[input.KeyOf(o)])
		delete(s.latest, input.KeyOf(o))
		sh.refuse(o)
	}
	return true, true
}

// within returns the objects of a whole list that are kept, and removes the others from
// latest. The caller holds mu.
func (s *shelf[T]) within(items []T, latest map[types.NamespacedName]T) []T {
	sh := s.share
	if sh == nil {
		return items
	}
	before := sh.short
	sh.bytes, sh.short, sh.reading = map[string]int{}, map[string]*shortage{}, nil
	for namespace, example := range sh.beyond {
		sh.short[namespace] = &shortage{example: example}
	}
	sh.beyond = nil
	for _, first := range []bool{true, false} {
		for _, o := range items {
			last := latest[input.KeyOf(o)]
			switch {
			case sh.first(o) != first:
			case sh.most > 0 && sh.bytes[o.GetNamespace()]+bytesOf(last) > sh.most:
				sh.refuse(o)
				delete(latest, input.KeyOf(o))
			default:
				sh.hold(last)
			}
		}
	}
	for namespace, short := range sh.short {
		if was := before[namespace]; was != nil {
			short.example, short.after = was.example, was.after
		}
	}
	return slices.DeleteFunc(items, func(o T) bool { _, kept := latest[input.KeyOf(o)]; return !kept })
}

// refer notes that something else refers to objects now: namespaces with objects that were not kept
// are read again.
func (s *shelf[T]) refer(changed func(namespace string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for namespace := range s.share.short {
		if changed(namespace) {
			s.share.due(namespace)
		}
	}
}

// problems returns a problem for each namespace with objects that are not kept.
func (s *shelf[T]) problems(cluster string) (all []ingress.Problem) {
	if s.share == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, namespace := range sortedKeys(s.share.short) {
		on := s.share.short[namespace].example
		on.Cluster = cluster
		all = append(all, ingress.Problem{ObjectRef: on, Reason: "LimitReached", Why: fmt.Sprintf(
			"the %s of namespace %s have more than %d bytes (clusters[].ingress.limits.%s): some of them are not "+
				"used, this one among them; %s",
			s.share.plural, namespace, s.share.most, s.share.key, s.share.follows)})
	}
	return all
}

// incomplete returns the namespaces with objects that are not kept, in order.
func (s *shelf[T]) incomplete() []string {
	if s.share == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return sortedKeys(s.share.short)
}

// sharePage bounds the objects of one request: each may have a megabyte and a half,
// although nothing refers to it. The page does not grow after small objects,
// because the tenant who writes them chooses their order.
const sharePage = 64

// A lister asks for a page of the objects of a namespace; "" is all.
type lister[L runtime.Object] func(ctx context.Context, namespace string, o metav1.ListOptions) (L, error)

// pages calls each for every object, page by page.
func pages[T object, L runtime.Object](
	ctx context.Context, s *shelf[T], list lister[L], namespace string, each func(T),
) (metav1.ListMeta, error) {
	// It asks for no revision: the API server ignores the limit in a list of an older revision.
	for o := (metav1.ListOptions{Limit: sharePage}); ; {
		page, err := list(ctx, namespace, o)
		if err != nil {
			return metav1.ListMeta{}, err
		}
		_ = meta.EachListItem(page, func(o runtime.Object) error {
			if item, ok := s.clean(o); ok {
				each(item)
			}
			return nil
		})
		about, err := meta.ListAccessor(page)
		if err != nil {
			return metav1.ListMeta{}, err
		}
		if o.Continue = about.GetContinue(); o.Continue == "" {
			return metav1.ListMeta{ResourceVersion: about.GetResourceVersion()}, nil
		}
	}
}

// copied returns an object that does not keep the memory of its page.
func copied[T object](o T) T { return o.DeepCopyObject().(T) }

// whole reads all objects. It keeps at most twice the share of a namespace, until Replace has
// chosen.
func whole[T object, L runtime.Object](ctx context.Context, s *shelf[T], list lister[L]) (runtime.Object, error) {
	sh, all := s.share, &metav1.List{}
	bytes, beyond := map[bool]map[string]int{true: {}, false: {}}, map[string]ingress.ObjectRef{}
	about, err := pages(ctx, s, list, metav1.NamespaceAll, func(o T) {
		of, namespace := bytes[sh.first(o)], o.GetNamespace()
		if of[namespace]+bytesOf(o) > sh.most && sh.most > 0 {
			if beyond[namespace].Name == "" {
				beyond[namespace] = sh.refer(o)
			}
			return
		}
		of[namespace] += bytesOf(o)
		all.Items = append(all.Items, runtime.RawExtension{Object: copied(o)})
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	sh.beyond = beyond
	s.mu.Unlock()
	all.ListMeta = about
	return all, nil
}

// refill reads the objects of one namespace again, and keeps those for which there is
// room now.
func refill[T object, L runtime.Object](ctx context.Context, s *shelf[T], list lister[L], namespace string) error {
	now := &reading{namespace: namespace, watched: map[types.NamespacedName]bool{}}
	s.mu.Lock()
	s.share.reading = now
	s.mu.Unlock()
	_, err := pages(ctx, s, list, namespace, func(o T) {
		if s.offer(now, copied(o)) {
			s.knock()
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.share.reading != now {
		return err // a whole list was read meanwhile
	}
	s.share.reading = nil
	if short := s.share.short[namespace]; err == nil && !now.refused && short != nil && !short.due {
		delete(s.share.short, namespace)
		s.knock()
	}
	return err
}

// offer keeps an object of a reading if the shelf does not know it better. It reports
// whether the shelf has changed.
func (s *shelf[T]) offer(of *reading, o T) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.latest[input.KeyOf(o)]
	return s.share.reading == of && !known && !of.watched[input.KeyOf(o)] && s.set(o)
}

// refills reads namespaces again until ctx ends, whenever more of their objects may be kept. It
// spends a twentieth of its time on each namespace, so large objects of one namespace do not delay
// other namespaces.
func refills[T object, L runtime.Object](ctx context.Context, s *shelf[T], list lister[L]) {
	for ctx.Err() == nil {
		namespace, wait := s.nextShort(time.Now())
		if namespace == "" {
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
			case <-s.share.wake:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		begin := time.Now()
		err := refill(ctx, s, list, namespace)
		s.rest(namespace, max(firstPause, 20*time.Since(begin)), err != nil)
	}
}

// nextShort returns the namespace that has waited longest to be read again. If it returns "",
// no namespace is due for the time that it returns.
func (s *shelf[T]) nextShort(now time.Time) (namespace string, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = time.Hour
	for name, short := range s.share.short {
		if !s.full || !short.due {
			continue
		}
		if in := short.after.Sub(now); in > 0 {
			wait = min(wait, in)
		} else if namespace == "" || short.after.Before(s.share.short[namespace].after) {
			namespace = name
		}
	}
	if namespace != "" {
		s.share.short[namespace].due = false
	}
	return namespace, wait
}

// rest notes when a namespace may be read again.
func (s *shelf[T]) rest(namespace string, pause time.Duration, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if short := s.share.short[namespace]; short != nil {
		short.after, short.due = time.Now().Add(pause), short.due || failed
	}
}

// watchShare sets up a shelf that bounds the objects of each namespace, and that Run fills.
func watchShare[T object, L runtime.Object](
	w *Watcher, group, resource string, order func(a, b T) int, sh *allowance[T],
	from func(namespace string) reader[L],
) *shelf[T] {
	s := newShare(w, group, resource, order, sh, from)
	w.watched = append(w.watched, s)
	return s
}

// newShare returns a shelf that bounds the objects of each namespace.
func newShare[T object, L runtime.Object](
	w *Watcher, group, resource string, order func(a, b T) int, sh *allowance[T],
	from func(namespace string) reader[L],
) *shelf[T] {
	s := newShelf(w, group, resource, order)
	s.share = sh
	list := func(ctx context.Context, namespace string, o metav1.ListOptions) (L, error) {
		return from(namespace).List(ctx, o)
	}
	s.fill = func(ctx context.Context, wg *sync.WaitGroup) {
		wg.Go(func() { refills(ctx, s, list) })
		wg.Go(func() {
			s.run(ctx, func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				return whole(ctx, s, list)
			}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return from(metav1.NamespaceAll).Watch(ctx, o)
			})
		})
	}
	return s
}
