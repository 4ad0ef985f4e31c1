package claims

import (
	"testing"

	"pgregory.net/rapid"

	"sallyport/haproxy"
)

// TestAPathIsFoundAsByALookAtEach compares HostPaths with a look at each path, the older first.
func TestAPathIsFoundAsByALookAtEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`/(a|b|a/|b/|ab/|/){0,4}`)
		h := PathsOf("a.test")
		all, by := []Path{}, []*Claim{}
		for range rapid.IntRange(0, 12).Draw(t, "paths") {
			p := Path{Host: "a.test", Path: text.Draw(t, "path"), Match: rapid.SampledFrom([]haproxy.PathMatch{
				haproxy.Exact, haproxy.Prefix, haproxy.Begin, haproxy.Regexp,
			}).Draw(t, "match")}
			if p.Match == haproxy.Regexp {
				p.Path += rapid.SampledFrom([]string{"", ".*", "(", "$"}).Draw(t, "expression")
			}
			c := new(Claim)
			h.Add(c, p)
			all, by = append(all, p), append(by, c)
		}
		path := text.Draw(t, "asked")
		var want *Claim
		var to Path
		for i, p := range all {
			if p.Matches(path) && (want == nil || p.Precedes(to)) {
				want, to = by[i], p
			}
		}
		if got, at := h.Find(path); got != want || at != to {
			t.Errorf("for %s: got %v, want %v of %v", path, at, to, all)
		}
	})
}
