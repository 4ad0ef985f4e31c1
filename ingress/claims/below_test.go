package claims

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/haproxy"
)

// TestEachPathBelowIsFoundOnce compares PathsBelow with a look at every path, for rules from the longest
// path to the shortest.
func TestEachPathBelowIsFoundOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Custom(func(t *rapid.T) Key {
			return Key{
				Host: "a.test", Path: "/" + rapid.StringMatching(`(a|b|a/|b/|ab/){0,5}`).Draw(t, "path"),
				Match: rapid.SampledFrom([]haproxy.PathMatch{haproxy.Prefix, haproxy.Exact, haproxy.Begin, haproxy.Regexp}).
					Draw(t, "match"),
			}
		})
		keys := rapid.SliceOfDistinct(key, func(k Key) Key { return k }).Draw(t, "keys")
		wide := rapid.SliceOfDistinct(key, func(k Key) string { return k.Reach() }).Draw(t, "rules")
		slices.SortStableFunc(wide, func(x, y Key) int { return len(y.Path) - len(x.Path) })

		below := NewPathsBelow(slices.Clone(keys))
		got, want := make(map[Key]Key), make(map[Key]Key)
		for _, w := range wide {
			below.Take(w, func(k Key) {
				if _, twice := got[k]; twice {
					t.Fatalf("%v is found twice", k)
				}
				got[k] = w
			})
			for _, k := range keys {
				if _, found := want[k]; !found && w.Covers(k) {
					want[k] = w
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}
