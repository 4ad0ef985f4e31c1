package ingress

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects holds the objects of a cluster that are compiled, by kind. An object is
// never changed: a new version of an object is a new pointer.
//
// A new kind takes a field here, its line in lists, a line in watchAll (see
// [Watcher]), and its rule in [Rules].
type Objects struct {
	Ingresses  []*networkingv1.Ingress
	Classes    []*networkingv1.IngressClass
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Secrets    []*corev1.Secret    // that something names
	ConfigMaps []*corev1.ConfigMap // those that Options name, if they exist
	Namespaces []*corev1.Namespace // if Options select by their labels
}

// lists returns the list of each kind, in the order of a kept picture. A new
// kind goes to the end, with a new version of the picture.
func (o *Objects) lists() []objectList {
	return []objectList{
		listAt(&o.Ingresses, byName),
		listAt(&o.Classes, byName),
		listAt(&o.Services, byName),
		listAt(&o.Slices, byService),
		listAt(&o.Secrets, byName),
		listAt(&o.ConfigMaps, byName),
		listAt(&o.Namespaces, byName),
	}
}

// Same reports whether both hold the same objects, by their pointers, in the
// same order.
func (o Objects) Same(p Objects) bool {
	others := p.lists()
	for i, l := range o.lists() {
		if !l.equal(others[i]) {
			return false
		}
	}
	return true
}

// withoutSlices returns the objects on which routing depends.
func (o Objects) withoutSlices() Objects {
	o.Slices = nil
	return o
}

// All returns the objects, one list for each kind, as Read wants them.
func (o Objects) All() (lists [][]any) {
	for _, l := range o.lists() {
		lists = append(lists, l.all())
	}
	return lists
}

// Read appends objects in the order of All. counts has the length of each list.
func (o *Objects) Read(counts []int, from *json.Decoder) error {
	lists := o.lists()
	if len(counts) != len(lists) {
		return fmt.Errorf("it has %d lists of objects, not %d", len(counts), len(lists))
	}
	for i, l := range lists {
		for range counts[i] {
			if err := l.read(from); err != nil {
				return err
			}
		}
	}
	return nil
}

// add puts objects into the list of their type, a slice of pointers.
func (o *Objects) add(objects any) {
	for _, l := range o.lists() {
		l.add(objects)
	}
}

// keep returns the objects in order, in slices of our own. A list that holds
// the same as in old is the very slice of old.
func (o Objects) keep(old Objects) Objects {
	before := old.lists()
	for i, l := range o.lists() {
		l.keep(before[i])
	}
	return o
}

// An objectList is the list of one kind, whatever its type.
type objectList interface {
	all() []any
	add(objects any)
	read(from *json.Decoder) error
	equal(other objectList) bool
	keep(old objectList)
}

type listOf[T any] struct {
	at    *[]*T
	order func(a, b *T) int
}

func listAt[T any](at *[]*T, order func(a, b *T) int) objectList { return listOf[T]{at, order} }

func (l listOf[T]) all() (objects []any) {
	for _, o := range *l.at {
		objects = append(objects, o)
	}
	return objects
}

func (l listOf[T]) add(objects any) {
	more, ok := objects.([]*T)
	switch {
	case !ok:
	case len(*l.at) == 0:
		*l.at = more
	default:
		*l.at = slices.Concat(*l.at, more)
		slices.SortStableFunc(*l.at, l.order)
	}
}

func (l listOf[T]) read(from *json.Decoder) error {
	o := new(T)
	if err := from.Decode(o); err != nil {
		return err
	}
	*l.at = append(*l.at, o)
	return nil
}

func (l listOf[T]) equal(other objectList) bool { return slices.Equal(*l.at, *other.(listOf[T]).at) }

func (l listOf[T]) keep(old objectList) { *l.at = keep(*l.at, *old.(listOf[T]).at, l.order) }

// keep returns list in order, as a slice of our own, or old itself where both
// hold the same.
func keep[T comparable](list, old []T, order func(a, b T) int) []T {
	if slices.Equal(list, old) {
		return old
	}
	list = slices.Clone(list)
	if !inOrder(list, old, order) {
		slices.SortStableFunc(list, order)
		if slices.Equal(list, old) {
			return old
		}
	}
	return list
}

// inOrder reports whether list is sorted. old is sorted: only objects whose neighbour
// in list is new need to be compared.
func inOrder[T comparable](list, old []T, order func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if i < len(old) && list[i] == old[i] && list[i-1] == old[i-1] {
			continue
		}
		if order(list[i-1], list[i]) > 0 {
			return false
		}
	}
	return true
}

// find looks an object up in a list sorted by name.
func find[T metav1.Object](list []T, key serviceKey) (found T, ok bool) {
	i, ok := slices.BinarySearchFunc(list, key, func(o T, k serviceKey) int { return compareKeys(keyOf(o), k) })
	if ok {
		found = list[i]
	}
	return found, ok
}

// slicesOf returns the EndpointSlices of a Service out of a sorted list.
func slicesOf(all []*discoveryv1.EndpointSlice, service serviceKey) []*discoveryv1.EndpointSlice {
	from, _ := slices.BinarySearchFunc(all, service, func(s *discoveryv1.EndpointSlice, k serviceKey) int { return compareKeys(serviceOf(s), k) })
	to := from
	for to < len(all) && serviceOf(all[to]) == service {
		to++
	}
	return all[from:to]
}
