package haproxy

import (
	"slices"
	"strings"
	"testing"
)

func TestConditionsOfOneFormShareIt(t *testing.T) {
	a := When{Method: "GET", Headers: []Field{{Name: "X-B", Value: "1"}, {Name: "x-a", Value: "2"}}}
	b := When{Method: "PUT", Headers: []Field{{Name: "X-A", Value: "3"}, {Name: "x-b", Value: "4"}}}
	c := When{Method: "GET", Params: []Field{{Name: "X-B", Value: "1"}, {Name: "x-a", Value: "2"}}}
	d := When{Method: "GET", Headers: []Field{{Name: "X-B", Value: "1"}, {Name: "x-a", Value: "2", Pattern: true}}}
	if a.Form().Name != b.Form().Name || a.Form().Name == c.Form().Name || a.Form().Name == d.Form().Name {
		t.Errorf("forms %+v, %+v, %+v, %+v", a.Form(), b.Form(), c.Form(), d.Form())
	}
	if got, want := a.values(), []string{"=GET", "=2", "=1"}; !slices.Equal(got, want) {
		t.Errorf("got values %q, want %q", got, want)
	}
	picks := []*Pick{NewPick([]PickCase{{a, To("x")}, {b, To("y")}}), NewPick([]PickCase{{c, To("x")}})}
	if got := FormsOf(picks); len(got) != 2 || got[0].Name >= got[1].Name {
		t.Errorf("got %d forms, want 2 in order", len(got))
	}
	if p := NewPick([]PickCase{{a, To("x")}, {b, To("z")}}); p.Name == picks[0].Name {
		t.Error("another target has the same name of a pick")
	}
}

func TestConditionsThatHAProxyCannotLookAtAreRejected(t *testing.T) {
	for name, w := range map[string]When{
		"nothing":             {},
		"a method with \"]\"": {Method: "GE]T"},
		"a header with \")\"": {Headers: []Field{{Name: "a)", Value: "x"}}},
		"a header twice":      {Headers: []Field{{Name: "A", Value: "x"}, {Name: "a", Value: "y"}}},
		"no value":            {Params: []Field{{Name: "a"}}},
		"a bad pattern":       {Params: []Field{{Name: "a", Value: "(", Pattern: true}}},
		"too long":            {Headers: []Field{{Name: "a", Value: strings.Repeat("x", 4096)}}},
		"too many":            {Headers: make([]Field, 33)},
	} {
		if w.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, w := range []When{
		{Method: "PATCH"},
		{Headers: []Field{{Name: "A", Value: "x y\x00\n%[src]'\""}}, Params: []Field{{Name: "A", Value: "y"}}},
		{Headers: []Field{{Name: "a", Value: "[a-z]+ x", Pattern: true}}},
	} {
		if err := w.Validate(); err != nil {
			t.Errorf("%+v: %v", w, err)
		}
	}
}
