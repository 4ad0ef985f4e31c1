package haproxy

import (
	"fmt"
	"slices"
	"testing"
)

// TestEitherPlacingServesANewBackend holds both placings to what the rest of the package relies on.
func TestEitherPlacingServesANewBackend(t *testing.T) {
	a, b := backend("a"), backend("b")
	other := distinct(backend("c"))
	config := func(all ...*Backend) *Config { return &Config{Backends: all} }
	text := renderer{opt: RenderOptions{Dir: "/sp", StatsSocket: "/sp.sock"}}
	have := config(a)
	class := text.outline(have, nil).backends[0].class()
	shapeOf := func(cfg *Config) string { return text.outline(cfg, nil).shape }
	empty := func(names ...string) LiveBackends {
		all := map[string]*LiveBackend{}
		for _, name := range names {
			all[name] = &LiveBackend{}
		}
		return NewLiveBackends(all)
	}
	one, two := spareName+class+"-1", spareName+class+"-2"
	for name, x := range map[string]struct {
		worker   picture
		names    string // of b in the worker, at first and when it comes again
		again    string
		commands int
		differs  differences
	}{
		"spare backends": {
			picture{backends: empty("a", one, two)},
			one, two, 0,
			differences{placed: []difference{{b, b}}},
		},
		"add backend": {picture{backends: empty("a"), classes: []string{class}}, "b", "b", 1, differences{}},
	} {
		t.Run(name, func(t *testing.T) {
			none := placingOf(x.worker, nil)
			got, cmds := none.loaded(have), none.commands()
			if got != have || len(cmds) > 0 || none.names().active() || none.vacant(have, x.worker.backends) {
				t.Errorf("before: got %v, %v, %v; want the worker as it has loaded its files", got, cmds, none.names())
			}
			want := text.outline(config(a, b, other), nil)
			in, backends := none.place(want, have, x.worker)
			if len(none.names()) > 0 || len(none.commands()) > 0 {
				t.Error("place has changed the placing before")
			}
			loaded := in.loaded(have)
			if !slices.Equal(loaded.Backends, []*Backend{a, b}) || len(have.Backends) != 1 {
				t.Errorf("got %v, want a place for b, and none for one with other settings", loaded.Backends)
			}
			if live := backends.Get("b"); live == nil || len(live.Servers) > 0 || backends.Get("c") != nil {
				t.Errorf("got %v, %v; want b without servers, and no c", live, backends.Get("c"))
			}
			if got := in.names().of("b"); got != x.names || in.names().of("a") != "a" ||
				len(in.commands()) != x.commands {
				t.Errorf("b is %s in the worker, by %v; want %s, by %d commands", got, in.commands(), x.names,
					x.commands)
			}
			if got := backendsDiffer(loaded.Backends, []*Backend{a, b},
				in.names()); fmt.Sprint(got) != fmt.Sprint(x.differs) {
				t.Errorf("got differences %v, want %v", got, x.differs)
			}
			if got, _ := within(want.cfg, nil, loaded, in.names(), held{}); !slices.Equal(got.Backends,
				loaded.Backends) {
				t.Errorf("within what the worker has: got %v, want %v", got.Backends, loaded.Backends)
			}

			// The next process finds out what this one did.
			next := placingOf(x.worker, map[string][]row{namesMap: in.names().rows(want.cfg)})
			if known, as := next.recognise(text.outline(config(a, b), nil), shapeOf(have),
				shapeOf); in.names().active() {
				if known == nil || !slices.Equal(as.loaded(known).Backends, []*Backend{a, b}) {
					t.Errorf("another process: got %v, %v; want a as loaded, and a place for b", known, as)
				}
			} else if known != nil {
				t.Errorf("another process: got %v, want nothing that was not loaded", known)
			}

			// b goes, and comes again.
			worker := x.worker
			worker.backends = backends
			if got := in.vacant(have, backends); got != in.names().active() {
				t.Errorf("without b: got vacant %t", got)
			}
			in, worker.backends = in.place(text.outline(have, nil), have, worker)
			if got := in.loaded(have); !slices.Equal(got.Backends, []*Backend{a}) || in.names().active() {
				t.Errorf("without b: got %v, %v; want a alone", got.Backends, in.names())
			}
			if x.commands > 0 {
				worker.backends = x.worker.backends // release removes it there
			}
			if in, _ = in.place(want, have, worker); in.names().of("b") != x.again {
				t.Errorf("again: b is %s in the worker, want %s", in.names().of("b"), x.again)
			}
		})
	}
}
