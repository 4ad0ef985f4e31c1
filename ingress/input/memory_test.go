package input

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// manyOwners returns a Memory of many hosts of one namespace, and of one host of another.
func manyOwners(n int) Memory {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	o := &Owners{
		Namespaces: map[string]string{"a.test": "shop"}, Left: map[string]time.Time{"a.test": at.Add(-time.Minute)},
	}
	for i := range n {
		host := fmt.Sprintf("x%d.test", i)
		o.Namespaces[host], o.Left[host] = "evil", at.Add(time.Duration(i)*time.Millisecond)
	}
	return Memory{Clusters: map[string]*Owners{"one": o}}
}

func TestANamespaceDisplacesNoOtherFromWhatMembersTell(t *testing.T) {
	const most = 2000
	text, told := manyOwners(5000).Encode(most)
	got, err := Learn(text)
	if err != nil || len(text) > most {
		t.Fatalf("%d bytes: %v", len(text), err)
	}
	o := got.Clusters["one"]
	if o.Namespaces["a.test"] != "shop" || o.Left["a.test"].IsZero() || o.Namespaces["x4999.test"] != "evil" {
		t.Errorf("the owner of a.test and the newest of evil are not among the %d that have room", len(o.Namespaces))
	}
	if len(o.Namespaces) < 50 || got.Left != 5001-len(o.Namespaces) || told.Left != got.Left {
		t.Errorf("%d owners have room, %d do not", len(o.Namespaces), got.Left)
	}
	own := &Owners{Namespaces: map[string]string{"mine.test": "shop", "a.test": "evil"}}
	if o, _ := got.Owners("one", own); o.Namespaces["mine.test"] != "shop" || o.Namespaces["a.test"] != "shop" {
		t.Errorf("what had no room is not what the member knew itself: %v", o.Namespaces)
	}
	if own.Namespaces["a.test"] != "evil" {
		t.Error("the owners that the member had are changed")
	}
}

func TestOnlyWhatIsValidIsLearned(t *testing.T) {
	at := func(addr, namespace, service string) map[string]any {
		who := map[string]any{"namespace": namespace, "service": service, "left": "2999-01-01T00:00:00Z"}
		return map[string]any{addr: who}
	}
	good := func() map[string]any {
		return map[string]any{
			"namespaces": map[string]any{"a.test": "shop", "*.b.test": "*", "": "shop"},
			"left":       map[string]any{"a.test": "2999-01-01T00:00:00Z"},
			"addresses":  at("203.0.113.1", "shop", "shop/db"),
		}
	}
	encode := func(o any) []byte {
		plain, err := json.Marshal(map[string]any{"clusters": map[string]any{"one": o}})
		if err != nil {
			t.Fatal(err)
		}
		return deflated(plain)
	}
	if _, err := Learn(encode(good())); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o map[string]any){
		"a host that is none": func(o map[string]any) { o["namespaces"] = map[string]any{"a b": "shop"} },
		"a wildcard in the middle": func(o map[string]any) {
			o["namespaces"] = map[string]any{"a.*.test": "shop"}
		},
		"a namespace that is none": func(o map[string]any) { o["namespaces"] = map[string]any{"a.test": "Shop"} },
		"no namespaces":            func(o map[string]any) { delete(o, "namespaces"); delete(o, "left") },
		"a host that nobody had":   func(o map[string]any) { o["namespaces"] = map[string]any{"b.test": "shop"} },
		"a time that is none":      func(o map[string]any) { o["left"] = map[string]any{"a.test": "soon"} },
		"an address that is none": func(o map[string]any) {
			o["addresses"] = map[string]any{"?": map[string]any{}}
		},
		"an address with a zone": func(o map[string]any) {
			o["addresses"] = at("fe80::1%eth0", "shop", "shop/db")
		},
		"a Service without a name": func(o map[string]any) { o["addresses"] = at("203.0.113.1", "shop", "shop") },
		"a Service of somebody else": func(o map[string]any) {
			o["addresses"] = at("203.0.113.1", "evil", "shop/db")
		},
		"owners that are a text":        func(o map[string]any) { o["namespaces"] = "shop" },
		"owners that are far too large": func(o map[string]any) { o["pad"] = strings.Repeat("x", mostMemory) },
	} {
		o := good()
		change(o)
		if m, err := Learn(encode(o)); err == nil || m.Clusters != nil {
			t.Errorf("%s: %+v is learned", name, m)
		}
	}
	text := encode(good())
	for i := range text {
		if m, err := Learn(text[:i]); err == nil {
			t.Fatalf("%+v is learned of the first %d of %d bytes", m, i, len(text))
		}
	}
}

// FuzzLearn learns of any bytes, and tells on what it learned.
func FuzzLearn(f *testing.F) {
	text, _ := manyOwners(2).Encode(1 << 20)
	f.Add(text)
	f.Add(deflated([]byte(`{"clusters":{"one":{"namespaces":{},` +
		`"addresses":{"203.0.113.1":{"namespace":"*","service":"a/b"}}}}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Learn(text)
		if err != nil {
			return
		}
		again, all := m.Encode(1 << 24)
		if got, err := Learn(again); err != nil || got.Left != m.Left || all.Left != m.Left {
			t.Errorf("%+v is told on as %+v: %v", m, got, err)
		}
	})
}
