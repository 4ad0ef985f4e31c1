package ingress

import (
	"maps"
	"slices"

	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/ingress/kic"
)

// rules has the ValidationRules of a world, and their problems: nothing here makes lines of the annotations that they
// define.
type rules struct {
	names kic.Rules
	odd   []Problem
}

// readRules returns the rules of a world. It reports each ValidationRules, and each annotation that they define: as a
// snippet, an annotation may keep clients out.
func readRules(s *Snapshot) (r rules) {
	if len(s.Rules) == 0 {
		return r
	}
	r.names = make(kic.Rules)
	tell := func(on ObjectRef, as, why string) {
		on.Cluster = s.Cluster
		r.odd = append(r.odd, Problem{ObjectRef: on, Reason: "NotServed", Why: why, As: as})
	}
	classes := input.ClassesOf(s)
	for _, v := range s.Rules {
		if !classes.Admits(v.Namespace) {
			continue
		}
		r.names.Add(v.Spec)
		tell(ObjectRef{Kind: input.RulesKind, Namespace: v.Namespace, Name: v.Name, UID: string(v.UID)}, "",
			"ValidationRules are not served: the annotations that they define have no effect; use the keys of "+
				"ingress/README.md, a Backend or a snippet")
	}
	each := func(on ObjectRef, written map[string]string) {
		for _, name := range slices.Sorted(maps.Keys(written)) {
			if r.names.Define(name) {
				tell(on, name, "annotation "+annotations.Quote(name)+" has no effect, since ValidationRules define "+
					"it: if it keeps clients out, they come in; use a key of ingress/README.md, a Backend or a snippet")
			}
		}
	}
	for _, one := range s.Services {
		if classes.Admits(one.Namespace) {
			each(ObjectRef{Kind: "Service", Namespace: one.Namespace, Name: one.Name, UID: string(one.UID)},
				one.Annotations)
		}
	}
	for _, one := range s.Ingresses {
		if classes.Kind(one) == input.OfHAProxy {
			each(ObjectRef{Kind: "Ingress", Namespace: one.Namespace, Name: one.Name, UID: string(one.UID)},
				one.Annotations)
		}
	}
	if m := s.ConfigMap(s.Options.ConfigMap); m.Name != "" {
		each(ObjectRef{Kind: "ConfigMap", Namespace: m.Namespace, Name: m.Name, UID: string(m.UID)}, m.Annotations)
	}
	return r
}
