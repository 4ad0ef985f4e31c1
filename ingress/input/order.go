package input

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The lists of a Snapshot are sorted: EndpointSlices by their Service, everything else by name.
// Who fills a Snapshot and who reads it share the functions below.

// KeyOf returns the namespace and the name of an object.
func KeyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// ServiceOf returns the Service that an EndpointSlice belongs to.
func ServiceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// CompareKeys compares two names by namespace, and then by name.
func CompareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// ByName compares two objects by namespace and name.
func ByName[T metav1.Object](a, b T) int { return CompareKeys(KeyOf(a), KeyOf(b)) }

// ByService compares two EndpointSlices by their Service, and then by name.
func ByService(a, b *discoveryv1.EndpointSlice) int {
	return cmp.Or(CompareKeys(ServiceOf(a), ServiceOf(b)), cmp.Compare(a.Name, b.Name))
}

// Find looks an object up in a list sorted by name.
func Find[T metav1.Object](list []T, key types.NamespacedName) (found T, ok bool) {
	i, ok := slices.BinarySearchFunc(list, key,
		func(o T, k types.NamespacedName) int { return CompareKeys(KeyOf(o), k) })
	if ok {
		found = list[i]
	}
	return found, ok
}

// SlicesOf returns the EndpointSlices of a Service out of a list sorted by Service.
func SlicesOf(all []*discoveryv1.EndpointSlice, service types.NamespacedName) []*discoveryv1.EndpointSlice {
	from, _ := slices.BinarySearchFunc(all, service, func(s *discoveryv1.EndpointSlice, k types.NamespacedName) int {
		return CompareKeys(ServiceOf(s), k)
	})
	to := from
	for to < len(all) && ServiceOf(all[to]) == service {
		to++
	}
	return all[from:to]
}

// Touched returns the Services that have different EndpointSlices in two sorted lists. It never
// returns nil.
func Touched(old, new []*discoveryv1.EndpointSlice) map[types.NamespacedName]bool {
	changed := make(map[types.NamespacedName]bool)
	for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && old[len(old)-1] == new[len(new)-1] {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	gone := make(map[*discoveryv1.EndpointSlice]bool, len(old))
	for _, s := range old {
		gone[s] = true
	}
	for _, s := range new {
		if !gone[s] {
			changed[ServiceOf(s)] = true
		}
		delete(gone, s)
	}
	for s := range gone {
		changed[ServiceOf(s)] = true
	}
	return changed
}
