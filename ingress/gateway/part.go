package gateway

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Alone returns an Attachment with the Gateways, ListenerSets, grants and policies of a, and with the
// routes of w. Only the routes of w may differ from those of the World of a, and the answers about
// Services.
func (a *Attachment) Alone(w World) *Attachment {
	part := *a
	part.world, part.Routes, part.attached = &w, nil, make(map[*Listener][]*Attached)
	part.paths, part.said = make(map[string]int), nil
	part.attachRoutes()
	return &part
}

// RouteOf returns the route of an object, or nil if a does not have it.
func (a *Attachment) RouteOf(o metav1.Object) *Route {
	i, _ := slices.BinarySearchFunc(a.Routes, o,
		func(r *Route, o metav1.Object) int { return olderObject(r.Object, o) })
	for ; i < len(a.Routes) && olderObject(a.Routes[i].Object, o) == 0; i++ {
		if a.Routes[i].Object == o {
			return a.Routes[i]
		}
	}
	return nil
}

// Exchange returns an Attachment with other routes: without those of gone, and with those of come. All
// of them are attached to the Gateways of a, see Alone. o has all objects, with the routes.
func (a *Attachment) Exchange(o Objects, gone, come []*Route) *Attachment {
	next := *a
	next.world = &World{
		Objects: o, Controller: a.world.Controller, Bundle: a.world.Bundle, Channel: a.world.Channel,
		Mirrors: a.world.Mirrors,
	}
	next.attached, next.said, next.before = maps.Clone(a.attached), maps.Clone(a.said), a.said
	gone, come = slices.SortedFunc(slices.Values(gone), olderRoute), slices.SortedFunc(slices.Values(come), olderRoute)
	next.Routes = Replace(a.Routes, gone, come, olderRoute)
	those := func(routes []*Route) map[*Listener][]*Attached {
		at := make(map[*Listener][]*Attached)
		for _, r := range routes {
			for l, here := range r.at {
				at[l] = append(at[l], here)
			}
		}
		return at
	}
	leave, join := those(gone), those(come)
	for _, at := range []map[*Listener][]*Attached{leave, join} {
		for l := range at {
			next.attached[l] = Replace(a.attached[l], leave[l], join[l],
				func(a, b *Attached) int { return olderRoute(a.Route, b.Route) })
			delete(next.said, l.object()) // it tells how many routes are attached
		}
	}
	return &next
}

// Replace returns a sorted list without the entries of gone, and with those of come. Both are sorted
// lists, too.
func Replace[T any](list, gone, come []T, compare func(a, b T) int) []T {
	if len(gone)+len(come) == 0 {
		return list
	}
	out := make([]T, 0, len(list)+len(come))
	for len(gone)+len(come) > 0 {
		leaves := len(come) == 0 || len(gone) > 0 && compare(gone[0], come[0]) <= 0
		next := gone
		if !leaves {
			next = come
		}
		i, found := slices.BinarySearchFunc(list, next[0], compare)
		out, list = append(out, list[:i]...), list[i:]
		switch {
		case !leaves:
			out, come = append(out, come[0]), come[1:]
		case found:
			list, gone = list[1:], gone[1:]
		default:
			gone = gone[1:]
		}
	}
	return append(out, list...)
}

// ReplaceKeys returns a map without the keys of gone, and with the entries of come.
func ReplaceKeys[K comparable, V any](m, gone, come map[K]V) map[K]V {
	if len(gone)+len(come) == 0 {
		return m
	}
	out := maps.Clone(m)
	for k := range gone {
		delete(out, k)
	}
	maps.Copy(out, come)
	return out
}
