package haproxy

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seen returns the picture of a worker that has one server in each of these backends.
func seen(gen string, servers map[string]Live) picture {
	all := map[string]*LiveBackend{}
	for name, s := range servers {
		s.Name = "s"
		all[name] = &LiveBackend{Servers: []Live{s}}
	}
	return picture{pid: 1, gen: gen, shape: "shape", backends: NewLiveBackends(all)}
}

// told returns a picture after commands have changed one backend of it.
func (p picture) told(name string, now *LiveBackend) picture {
	p.backends = p.backends.With(map[string]*LiveBackend{name: now})
	return p
}

func TestAReadingOfTheWorkerIsMergedIntoWhatItWasToldMeanwhile(t *testing.T) {
	open, shut := Live{State: Open, Check: Up}, Live{State: Closed, Check: Unchecked}
	down := Live{State: Open, Check: Down, Failure: "L4CON"}
	one := func(l Live) *LiveBackend { l.Name = "s"; return &LiveBackend{Servers: []Live{l}} }
	before := seen("gen", map[string]Live{"a": open, "b": open})
	other := before
	other.pid++
	for name, x := range map[string]struct {
		read, now picture
		want      map[string]Live // nil: as before the reading
		found     finding
	}{
		"nothing happened":                     {before, before, map[string]Live{"a": open, "b": open}, agrees},
		"a check failed":                       {before.told("a", one(down)), before, map[string]Live{"a": down, "b": open}, agrees},
		"closed meanwhile, read before":        {before, before.told("a", one(shut)), map[string]Live{"a": shut, "b": open}, agrees},
		"closed meanwhile, read after":         {before.told("a", one(shut)), before.told("a", one(shut)), map[string]Live{"a": shut, "b": open}, agrees},
		"closed meanwhile, and another down":   {before.told("b", one(down)), before.told("a", one(shut)), map[string]Live{"a": shut, "b": down}, agrees},
		"a backend came meanwhile":             {before, before.told("c", one(open)), map[string]Live{"a": open, "b": open, "c": open}, agrees},
		"a backend went meanwhile":             {before, before.told("b", nil), map[string]Live{"a": open}, agrees},
		"another hand closed a server":         {before.told("b", one(shut)), before, nil, differs},
		"another hand removed a server":        {before.told("b", &LiveBackend{}), before, nil, differs},
		"another hand added a backend":         {before.told("c", one(open)), before, nil, differs},
		"another hand removed a backend":       {before.told("b", nil), before, nil, differs},
		"another hand while we closed another": {before.told("b", one(shut)), before.told("a", one(shut)), nil, differs},
		"another worker":                       {other, before, nil, differs},
		"another generation":                   {seen("other", map[string]Live{"a": open, "b": open}), before, nil, differs},
		"nothing was read":                     {picture{}, before, nil, differs},
		"a reload meanwhile":                   {before, other, nil, overtaken},
		"the worker got ahead meanwhile":       {before, seen(ahead, map[string]Live{"a": open, "b": open}), nil, overtaken},
	} {
		got, found := merge(before, x.read, x.now)
		want := x.now
		if x.want != nil {
			want = seen(x.now.gen, x.want)
		}
		if diff := cmp.Diff(maps.Collect(want.backends.All()), maps.Collect(got.backends.All()), cmpopts.EquateComparable(netip.AddrPort{})); found != x.found || diff != "" || !got.sameFiles(want) {
			t.Errorf("%s: got finding %d, want %d; the backends: -want +got\n%s", name, found, x.found, diff)
		}
	}
}
