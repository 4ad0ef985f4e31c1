package input

import (
	"reflect"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// listsOf returns the lists of objects in a struct, and in the structs within it.
func listsOf(of reflect.Value) (all []reflect.Value) {
	for _, field := range of.Fields() {
		if field.Kind() == reflect.Struct {
			all = append(all, listsOf(field)...)
		} else {
			all = append(all, field)
		}
	}
	return all
}

func TestEveryKindOfObjectsIsListed(t *testing.T) {
	var all Objects
	fields := listsOf(reflect.ValueOf(&all).Elem())
	for _, field := range fields {
		field.Set(reflect.Append(field, reflect.New(field.Type().Elem().Elem())))
	}
	for i, list := range all.All() {
		if len(list) != 1 {
			t.Errorf("list %d has %d objects, want the one of its field", i, len(list))
		}
	}
	if got, want := len(all.lists()), len(fields); got != want {
		t.Errorf("%d lists, want %d: one for each field of Objects", got, want)
	}
}

func TestAnOlderProgramReadsAPictureWithoutLaterKinds(t *testing.T) {
	var o Objects
	if got := len(o.All()); got != firstLists {
		t.Errorf("no objects: %d lists, want %d", got, firstLists)
	}
	o.API.Gateways = append(o.API.Gateways, new(gatewayv1.Gateway))
	if got := len(o.All()); got <= firstLists {
		t.Errorf("with a Gateway: %d lists, want more than %d", got, firstLists)
	}
}
