package ingress

import (
	"reflect"
	"slices"
	"testing"
)

func TestEveryKindOfObjectsIsListedWatchedAndAllowed(t *testing.T) {
	var all Objects
	fields := reflect.ValueOf(&all).Elem()
	for _, field := range fields.Fields() {
		field.Set(reflect.Append(field, reflect.New(field.Type().Elem().Elem())))
	}
	for i, list := range all.All() {
		if len(list) != 1 {
			t.Errorf("list %d has %d objects, want the one of its field", i, len(list))
		}
	}
	if got, want := len(all.lists()), fields.NumField(); got != want {
		t.Errorf("%d lists, want %d: one for each field of Objects", got, want)
	}

	options := Options{ConfigMap: "ops/defaults", NamespaceSelector: "team=web"}
	w := newWatcher(ClusterConfig{Options: options}, new(clients), nil, "", 0)
	rules := RulesFor(options)
	watched := map[string]bool{}
	for _, s := range w.shelves() {
		group, resource := s.of()
		watched[resource] = true
		if !slices.ContainsFunc(rules, func(r Rule) bool {
			return slices.Contains(r.Groups, group) && slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, "watch")
		}) {
			t.Errorf("%s is watched, and no rule allows it", s.name())
		}
	}
	if got, want := len(watched), fields.NumField()+1; got != want {
		t.Errorf("%d resources are watched, want %d: those of Objects, and nodes", got, want)
	}
}
