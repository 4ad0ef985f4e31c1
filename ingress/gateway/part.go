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
	next.world = &World{Objects: o, Controller: a.world.Controller, Bundle: a.world.Bundle, Mirrors: a.world.Mirrors}
	next.attached = maps.Clone(a.attached)
	gone, come = slices.SortedFunc(slices.Values(gone), olderRoute), slices.SortedFunc(slices.Values(come), olderRoute)
	next.Routes = exchange(a.Routes, gone, come, func(r *Route) *Route { return r })
	those := func(routes []*Route) map[*Listener][]*Route {
		at := make(map[*Listener][]*Route)
		for _, r := range routes {
			for l := range r.at {
				at[l] = append(at[l], r)
			}
		}
		return at
	}
	leave, join := those(gone), those(come)
	for _, at := range []map[*Listener][]*Route{leave, join} {
		for l := range at {
			var attached []*Attached
			for _, r := range join[l] {
				attached = append(attached, r.at[l])
			}
			next.attached[l] = exchange(a.attached[l], leave[l], attached,
				func(at *Attached) *Route { return at.Route })
		}
	}
	return &next
}

// exchange returns a list without the entries of gone, and with those of come. All are sorted by age.
func exchange[T any](list []T, gone []*Route, come []T, of func(T) *Route) []T {
	out := make([]T, 0, len(list)+len(come))
	upTo := func(r *Route) (found bool) {
		i, found := slices.BinarySearchFunc(list, r, func(x T, r *Route) int { return olderRoute(of(x), r) })
		out, list = append(out, list[:i]...), list[i:]
		return found
	}
	for len(gone)+len(come) > 0 {
		if len(come) == 0 || len(gone) > 0 && olderRoute(gone[0], of(come[0])) <= 0 {
			if upTo(gone[0]) {
				list = list[1:]
			}
			gone = gone[1:]
			continue
		}
		upTo(of(come[0]))
		out, come = append(out, come[0]), come[1:]
	}
	return append(out, list...)
}
