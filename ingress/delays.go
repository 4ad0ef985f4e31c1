package ingress

import (
	"cmp"
	"fmt"
	"slices"

	"sallyport/haproxy"
)

// Delayed returns the Result with a Problem on each object that waits for a reload of HAProxy to
// have its settings in effect. The Problem does not say until when, since each other text of it
// would be another Event.
func (r Result) Delayed(waits []haproxy.Wait) Result {
	if len(waits) == 0 || r.routing == nil {
		return r
	}
	problems := slices.Clip(r.Problems)
	for _, w := range waits {
		for _, name := range w.Backends {
			i, known := slices.BinarySearchFunc(r.routing.needs, name, func(n need, name string) int {
				return cmp.Compare(n.name, name)
			})
			if !known {
				continue // it waits to be removed
			}
			n := &r.routing.needs[i]
			on := n.by
			if n.settings.By != nil {
				on = n.settings.By.Ref
			}
			p := Problem{ObjectRef: on, Reason: "ReloadDelayed"}
			p.Why = fmt.Sprintf("the settings of backend %s are not in effect yet: many old workers of HAProxy "+
				"still finish their connections, and a reload would end those of the oldest; `sallyport status` "+
				"shows how long they wait at most", name)
			if w.Most > 0 {
				p.Reason = "LimitReached"
				p.Why = fmt.Sprintf("the settings of backend %s are not in effect yet: they take a reload of HAProxy, "+
					"and namespace %s has caused more than %d in a short time (clusters[].ingress.limits.reloads); "+
					"`sallyport status` shows how long they wait at most: make several changes at once",
					name, w.Namespace, w.Most)
			}
			if slices.Contains(w.Closed, name) {
				p.Why += "; since its guards change, it takes no requests until then"
			}
			problems = append(problems, p)
		}
	}
	if len(problems) == len(r.Problems) {
		return r
	}
	r.Problems = sorted(r.routing.of, problems)
	return r
}
