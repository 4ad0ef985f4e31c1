package ingress

import (
	"testing"

	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress/claims"
)

// TestAPathIsFoundAsByALookAtEach compares hostPaths with a look at each path, the older first.
func TestAPathIsFoundAsByALookAtEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`/(a|b|a/|b/|ab/|/){0,4}`)
		h := &hostPaths{host: "a.test", texts: make(map[routeKey]*hostPath)}
		all, by := []claims.Path{}, []*claim{}
		for range rapid.IntRange(0, 12).Draw(t, "paths") {
			p := claims.Path{Host: "a.test", Path: text.Draw(t, "path"), Match: rapid.SampledFrom([]haproxy.PathMatch{
				haproxy.Exact, haproxy.Prefix, haproxy.Begin, haproxy.Regexp,
			}).Draw(t, "match")}
			if p.Match == haproxy.Regexp {
				p.Path += rapid.SampledFrom([]string{"", ".*", "(", "$"}).Draw(t, "expression")
			}
			c := new(claim)
			h.add(c, p)
			all, by = append(all, p), append(by, c)
		}
		path := text.Draw(t, "asked")
		var want *claim
		var to claims.Path
		for i, p := range all {
			if p.Matches(path) && (want == nil || p.Precedes(to)) {
				want, to = by[i], p
			}
		}
		if got, at := h.find(path); got != want || at != to {
			t.Errorf("for %s: got %v, want %v of %v", path, at, to, all)
		}
	})
}
