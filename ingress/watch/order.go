package watch

import (
	"cmp"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func byName[T metav1.Object](a, b T) int { return compareKeys(keyOf(a), keyOf(b)) }

// serviceOf returns the Service that an EndpointSlice belongs to.
func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// byService is the order of EndpointSlices in an ingress.Snapshot.
func byService(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Or(compareKeys(serviceOf(a), serviceOf(b)), cmp.Compare(a.Name, b.Name))
}

// find looks an object up in a list sorted by name.
func find[T metav1.Object](list []T, key types.NamespacedName) (found T, ok bool) {
	i, ok := slices.BinarySearchFunc(list, key,
		func(o T, k types.NamespacedName) int { return compareKeys(keyOf(o), k) })
	if ok {
		found = list[i]
	}
	return found, ok
}

// slicesOf returns the EndpointSlices of a Service out of a list sorted by Service.
func slicesOf(all []*discoveryv1.EndpointSlice, service types.NamespacedName) []*discoveryv1.EndpointSlice {
	from, _ := slices.BinarySearchFunc(all, service, func(s *discoveryv1.EndpointSlice, k types.NamespacedName) int {
		return compareKeys(serviceOf(s), k)
	})
	to := from
	for to < len(all) && serviceOf(all[to]) == service {
		to++
	}
	return all[from:to]
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// sortedBy returns the keys of a map in the order of a function.
func sortedBy[K comparable, V any](m map[K]V, order func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), order)
}
