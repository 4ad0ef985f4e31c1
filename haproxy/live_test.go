package haproxy

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// LiveBackends does what a map does that is copied before each change.
func TestLiveBackendsAreAMapThatNeverChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("b%d", rapid.IntRange(0, 300).Draw(t, "name"))
		})
		backend := rapid.Custom(func(t *rapid.T) *LiveBackend {
			if state := State(rapid.IntRange(int(Absent), int(Open)).Draw(t, "state")); state != Absent {
				return &LiveBackend{[]Live{{Name: "s", State: state}}}
			}
			return nil // not there
		})
		live, plain := LiveBackends{}, map[string]*LiveBackend{}
		for range 5 {
			before, beforePlain := live, maps.Clone(plain)
			change := rapid.MapOf(name, backend).Draw(t, "change")
			live = live.With(change)
			for name, b := range change {
				if plain[name] = b; b == nil {
					delete(plain, name)
				}
			}
			for want, have := range map[*map[string]*LiveBackend]LiveBackends{&plain: live, &beforePlain: before} {
				if got := maps.Collect(have.All()); !maps.Equal(got, *want) || have.Len() != len(*want) {
					t.Fatalf("got %v, want %v", got, *want)
				}
				for name := range change {
					if have.Get(name) != (*want)[name] {
						t.Fatalf("%s: got %v, want %v", name, have.Get(name), (*want)[name])
					}
				}
			}
			var differ []string
			for name := range change {
				if plain[name] != beforePlain[name] {
					differ = append(differ, name)
				}
			}
			if got := live.Differ(before); !slices.Equal(slices.Sorted(slices.Values(got)),
				slices.Sorted(slices.Values(differ))) {
				t.Fatalf("%q differ, want %q", got, differ)
			}
			// The same backends, read anew: only those that are not equal are new.
			again := map[string]*LiveBackend{}
			for name, b := range plain {
				again[name] = &LiveBackend{slices.Clone(b.Servers)}
			}
			changed := []string{}
			if len(plain) > 0 {
				first := slices.Sorted(maps.Keys(plain))[0]
				again[first].Servers[0].Check, changed = Down, []string{first}
			}
			if got := NewLiveBackends(again).sharing(live).Differ(live); !slices.Equal(
				slices.Sorted(slices.Values(got)), changed) {
				t.Fatalf("read anew %q differ, want %q", got, changed)
			}
		}
	})
}

// What was told while the worker was read stays, with the results of checks that were read.
func TestWhatWasToldMeanwhileIsKnownBetter(t *testing.T) {
	told := &LiveBackend{[]Live{
		{Name: "a", State: Open, Check: Up},
		{Name: "b", State: Closed, Check: Unchecked},
		{Name: "c", State: Open, Check: Up},
	}}
	read := &LiveBackend{[]Live{
		{Name: "a", State: Open, Check: Down},
		{Name: "b", State: Open, Check: Up},
		{Name: "d", State: Open, Check: Up},
	}}
	want := []Live{
		{Name: "a", State: Open, Check: Down},
		{Name: "b", State: Closed, Check: Unchecked},
		{Name: "c", State: Open, Check: Up},
	}
	if got := told.checked(read); !slices.Equal(got.Servers, want) {
		t.Errorf("got %v, want %v", got.Servers, want)
	}
	if got := told.checked(nil); !slices.Equal(got.Servers, told.Servers) {
		t.Errorf("without a reading: got %v, want %v", got.Servers, told.Servers)
	}
	if got := (*LiveBackend)(nil).checked(read); got != nil {
		t.Errorf("a backend that was removed is back: %v", got.Servers)
	}
}
