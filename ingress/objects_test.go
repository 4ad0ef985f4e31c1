package ingress

import (
	"reflect"
	"testing"
)

func TestEveryKindOfObjectsIsListed(t *testing.T) {
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
}
