package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress"
	"sallyport/ingress/gateway"
)

// Statuses of Gateway API
//
// An object has a status that names the generation it is about. One member of a group writes
// (Publication.Replace). Each write names the version of the object, so the API server refuses the
// second of two writers. That writer then sees the record of the first, and has nothing to write.

// lonely is how long a member that is not the writer of its group waits before it adds a status that
// is missing.
const lonely = republish

// longestRest bounds the time until a status is written again that somebody else has replaced.
const longestRest = time.Minute

// A record is a status that was written.
type record struct {
	text  []byte
	right string
	at    time.Time
	rest  time.Duration // until the same text may be written again
}

// rests reports whether a patch has to wait. A status that somebody else has replaced is written
// again, but more and more seldom.
func (s *statuses) rests(one statusPatch, now time.Time) bool {
	was, known := s.records[one.of.GetUID()]
	return known && now.Sub(was.at) < was.rest && was.repeats(one.filled())
}

// repeats reports whether a patch writes the status of the record again.
func (r record) repeats(one statusPatch) bool {
	return r.right == one.right && bytes.Equal(untimed(r.text), untimed(one.text))
}

// forget drops the records of objects that nobody else has replaced for some time.
func (s *statuses) forget(now time.Time) {
	for uid, of := range s.records {
		if now.Sub(of.at) >= 2*longestRest {
			delete(s.records, uid)
			s.contest(uid, nil)
		}
	}
}

// contest notes an object as one with a status that somebody else replaces, or no longer if it is nil.
func (s *statuses) contest(uid types.UID, o *ingress.ObjectRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case o == nil:
		delete(s.contested, uid)
	case s.contested == nil:
		s.contested = map[types.UID]ingress.ObjectRef{uid: *o}
	default:
		s.contested[uid] = *o
	}
}

// apiStatuses returns the statuses of objects of Gateway API that are not as wished.
func (s *statuses) apiStatuses(wish *Publication, now time.Time) (all []statusPatch) {
	if s.controller == "" {
		return nil
	}
	want := make(map[types.UID]*gateway.Status, len(wish.Statuses))
	for _, of := range wish.Statuses {
		want[types.UID(of.UID)] = of
	}
	if s.right == nil {
		s.right = make(map[types.UID]verdict)
	}
	lacking := make(map[types.UID]time.Time)
	for _, kind := range gatewayKinds {
		for _, o := range s.objects(kind.resource) {
			of := want[o.GetUID()]
			if of != nil && of.Generation < o.GetGeneration() {
				continue // a wish about the newer object is under way
			}
			is := verdict{o, of, of != nil && (wish.Pending[of.UID] || wish.Pending[of.Parent])}
			if of != nil && s.right[o.GetUID()] == is { // as of nearly all
				continue
			}
			next, ours := func() any { next, _ := s.next(o, of, wish, metav1.NewTime(now)); return next }, false
			if !s.lacksAll(o, of) {
				var status any
				if status, ours = s.next(o, of, wish, metav1.NewTime(now)); status == nil {
					s.right[o.GetUID()] = is
					continue
				}
				next = func() any { return status }
			}
			if !wish.Replace {
				if !wish.Add || ours || of == nil {
					continue
				}
				since, known := s.lacking[o.GetUID()]
				if !known {
					since = now
				}
				lacking[o.GetUID()] = since
				if now.Sub(since) < lonely {
					continue
				}
			}
			all = append(all, s.statusPatchOf(kind, o, next))
		}
	}
	s.lacking = lacking
	if len(s.right) > len(want) { // of objects that are gone
		maps.DeleteFunc(s.right, func(uid types.UID, is verdict) bool { return want[uid] != is.of })
	}
	return all
}

// lacksAll reports whether a route or a ListenerSet lacks the status of ours that it is to have. After a
// start all of them may lack one. Their statuses are made one by one, when they are written.
func (s *statuses) lacksAll(o metav1.Object, of *gateway.Status) bool {
	if set, is := o.(*gatewayv1.ListenerSet); is {
		return of != nil && of.Listeners != nil && !judged(set.Status.Conditions)
	}
	has, is := parentsOf(o)
	ours := func(p gatewayv1.RouteParentStatus) bool { return string(p.ControllerName) == s.controller }
	return is && of != nil && len(of.Parents) > 0 && !slices.ContainsFunc(has, ours)
}

// A verdict is an object that has the status it is to have. Neither is ever changed: a new version of one
// is a new pointer.
type verdict struct {
	object  metav1.Object
	of      *gateway.Status
	pending bool // HAProxy lacks a listener of the Gateway
}

// statusPatchOf returns the patch that gives an object a status. It calls next, which returns the status,
// when the patch is filled.
func (s *statuses) statusPatchOf(kind gatewayKind, o metav1.Object, next func() any) statusPatch {
	right := kind.resource + "/status"
	fill := func(one *statusPatch) {
		status := next()
		one.body = map[string]any{
			"metadata": map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}, "status": status,
		}
		one.text, _ = json.Marshal(status) // it came as JSON
		one.done = "status published"
		one.denied = "the appliance may not write the status of objects of Gateway API (verb patch; API group " +
			gatewayv1.GroupName + "; resource " + right + "): apply what `sallyport manifests` prints"
		one.log = s.log.With("namespace", o.GetNamespace(), "resource", kind.resource, "name", o.GetName())
		one.send = func(ctx context.Context, patch []byte) error {
			of := schema.GroupVersion(gatewayv1.GroupVersion).WithResource(kind.resource)
			to := s.kube.API(of, o.GetNamespace())
			_, err := to.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		}
	}
	return statusPatch{of: o, kindName: kind.name, kind: types.MergePatchType, right: right, fill: fill}
}

// untimed returns a status as JSON without the times of its conditions.
func untimed(status []byte) []byte {
	var value any
	if json.Unmarshal(status, &value) != nil {
		return status
	}
	var walk func(any)
	walk = func(v any) {
		switch of := v.(type) {
		case map[string]any:
			delete(of, "lastTransitionTime")
			for _, one := range of {
				walk(one)
			}
		case []any:
			for _, one := range of {
				walk(one)
			}
		}
	}
	walk(value)
	text, _ := json.Marshal(value)
	return text
}

// note notes that a status was written. The second time that the same text had to be written again,
// somebody else replaces it.
func (s *statuses) note(one statusPatch, now time.Time) {
	uid := one.of.GetUID()
	was, rest := s.records[uid], republish
	if was.repeats(one) {
		rest = min(2*was.rest, longestRest)
		if was.rest > republish {
			one.log.Warn("somebody else replaces a status that this appliance writes: two appliances or groups may "+
				"have one class", "again", rest)
			s.contest(uid, &ingress.ObjectRef{
				Kind: one.kindName, Namespace: one.of.GetNamespace(), Name: one.of.GetName(),
			})
		}
	}
	s.records[uid] = record{text: one.text, right: one.right, at: now, rest: rest}
}

// next returns the status that an object is to have, as JSON has it, or nil if it has that already.
// It reports whether the object has a status of ours now. If of is nil, nothing of the status is to
// be ours.
func (s *statuses) next(o metav1.Object, of *gateway.Status, wish *Publication, now metav1.Time) (next any, ours bool) {
	switch is := o.(type) {
	case *gatewayv1.GatewayClass:
		if of == nil || of.Class == nil {
			return nil, false
		}
		want := *of.Class
		want.Conditions = timed(want.Conditions, is.Status.Conditions, now)
		return changed(want, is.Status), judged(is.Status.Conditions)
	case *gatewayv1.Gateway:
		if of == nil || of.Gateway == nil {
			return nil, false
		}
		want := waiting(*of.Gateway, is.Status, wish.Pending[of.UID])
		want.Conditions = timed(want.Conditions, is.Status.Conditions, now)
		want.Listeners = timedListeners(want.Listeners, is.Status.Listeners, now)
		return changed(want, is.Status), judged(is.Status.Conditions)
	case *gatewayv1.ListenerSet:
		if of == nil || of.Listeners == nil {
			return nil, false
		}
		want := *of.Listeners
		if wish.Pending[of.Parent] {
			want.Conditions = unprogrammed(want.Conditions, is.Status.Conditions)
		}
		want.Conditions = timed(want.Conditions, is.Status.Conditions, now)
		was := make([]gatewayv1.ListenerStatus, len(is.Status.Listeners))
		for i, l := range is.Status.Listeners {
			was[i] = gatewayv1.ListenerStatus(l)
		}
		listeners := make([]gatewayv1.ListenerStatus, len(want.Listeners))
		for i, l := range want.Listeners {
			listeners[i] = gatewayv1.ListenerStatus(l)
		}
		want.Listeners = nil
		for _, l := range timedListeners(listeners, was, now) {
			want.Listeners = append(want.Listeners, gatewayv1.ListenerEntryStatus(l))
		}
		return changed(want, is.Status), judged(is.Status.Conditions)
	case *gatewayv1.BackendTLSPolicy:
		var want []gatewayv1.PolicyAncestorStatus
		if of != nil {
			want = of.Ancestors
		}
		all, had := merged(s.controller, is.Status.Ancestors, want, entryOfAncestor, now)
		return changed(gatewayv1.PolicyStatus{Ancestors: all}, is.Status), had
	}
	has, is := parentsOf(o)
	if !is {
		return nil, false
	}
	var want []gatewayv1.RouteParentStatus
	if of != nil {
		want = of.Parents
	}
	all, had := merged(s.controller, has, want, entryOfParent, now)
	return changed(gatewayv1.RouteStatus{Parents: all}, gatewayv1.RouteStatus{Parents: has}), had
}

// parentsOf returns the statuses of a route by its parents, if the object is a route.
func parentsOf(o metav1.Object) (all []gatewayv1.RouteParentStatus, is bool) {
	switch route := o.(type) {
	case *gatewayv1.HTTPRoute:
		return route.Status.Parents, true
	case *gatewayv1.GRPCRoute:
		return route.Status.Parents, true
	case *gatewayv1.TLSRoute:
		return route.Status.Parents, true
	case *gatewayv1.TCPRoute:
		return route.Status.Parents, true
	}
	return nil, false
}

// changed returns a wanted status as the values of a merge patch. It returns nil if the object has
// this status already. A field that goes is null.
func changed(want, has any) any {
	if reflect.DeepEqual(want, has) { // takes a fraction of the time of the comparison below
		return nil
	}
	next, now := fieldsOf(want), fieldsOf(has)
	if reflect.DeepEqual(next, now) {
		return nil
	}
	for name := range now {
		if _, stays := next[name]; !stays {
			next[name] = nil
		}
	}
	return next
}

func fieldsOf(status any) (fields map[string]any) {
	text, _ := json.Marshal(status) // it came as JSON
	_ = json.Unmarshal(text, &fields)
	return fields
}

// judged reports whether somebody has judged an object. The API server makes conditions of
// generation 0.
func judged(conditions []metav1.Condition) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.ObservedGeneration > 0 })
}

// timed returns wanted conditions with their times. A condition keeps its time while its Status
// stays.
func timed(want, has []metav1.Condition, now metav1.Time) []metav1.Condition {
	want = slices.Clone(want)
	for i := range want {
		c := &want[i]
		c.LastTransitionTime = now.Rfc3339Copy()
		for _, was := range has {
			if was.Type == c.Type && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return want
}

func timedListeners(want, has []gatewayv1.ListenerStatus, now metav1.Time) []gatewayv1.ListenerStatus {
	want = slices.Clone(want)
	for i := range want {
		var was []metav1.Condition
		for _, l := range has {
			if l.Name == want[i].Name {
				was = l.Conditions
			}
		}
		want[i].Conditions = timed(want[i].Conditions, was, now)
	}
	return want
}

// An entry is a part of a status that one controller writes: about a parent of a route, or an
// ancestor of a policy.
type entry struct {
	about      gatewayv1.ParentReference
	controller gatewayv1.GatewayController
	conditions *[]metav1.Condition
}

func entryOfParent(p *gatewayv1.RouteParentStatus) entry {
	return entry{p.ParentRef, p.ControllerName, &p.Conditions}
}

func entryOfAncestor(p *gatewayv1.PolicyAncestorStatus) entry {
	return entry{p.AncestorRef, p.ControllerName, &p.Conditions}
}

// merged returns wanted entries of a status with their times, among the entries that the status has.
// Entries of other controllers stay in their place. It reports whether any entry was ours.
func merged[T any](controller string, has, want []T, read func(*T) entry, now metav1.Time) (all []T, had bool) {
	want = slices.Clone(want)
	all = []T{}
	for _, p := range has {
		was := read(&p)
		if string(was.controller) != controller {
			all = append(all, p)
			continue
		}
		had = true
		i := slices.IndexFunc(want, func(w T) bool { return reflect.DeepEqual(read(&w).about, was.about) })
		if i >= 0 {
			one := want[i]
			conditions := read(&one).conditions
			*conditions = timed(*conditions, *was.conditions, now)
			all, want = append(all, one), slices.Delete(want, i, i+1)
		}
	}
	for _, p := range want {
		conditions := read(&p).conditions
		*conditions = timed(*conditions, nil, now)
		all = append(all, p)
	}
	return all, had
}

// waiting returns the status of a Gateway while HAProxy lacks one of its listeners. It is not
// programmed then, unless its present status says so about the same generation: a reload for
// something else changes nothing.
func waiting(want, has gatewayv1.GatewayStatus, pending bool) gatewayv1.GatewayStatus {
	if !pending {
		return want
	}
	want.Conditions = unprogrammed(want.Conditions, has.Conditions)
	want.Listeners = slices.Clone(want.Listeners)
	for i := range want.Listeners {
		var was []metav1.Condition
		for _, l := range has.Listeners {
			if l.Name == want.Listeners[i].Name {
				was = l.Conditions
			}
		}
		want.Listeners[i].Conditions = unprogrammed(want.Listeners[i].Conditions, was)
	}
	return want
}

func unprogrammed(want, has []metav1.Condition) []metav1.Condition {
	const programmed = string(gatewayv1.GatewayConditionProgrammed)
	want = slices.Clone(want)
	for i := range want {
		c := &want[i]
		stands := slices.ContainsFunc(has, func(was metav1.Condition) bool {
			return was.Type == programmed && was.Status == metav1.ConditionTrue &&
				was.ObservedGeneration == c.ObservedGeneration
		})
		if c.Type == programmed && c.Status == metav1.ConditionTrue && !stands {
			c.Status, c.Reason = metav1.ConditionFalse, string(gatewayv1.GatewayReasonPending)
			c.Message = "HAProxy does not have the listener yet: it is reloaded soon"
		}
	}
	return want
}
