package ingress

import (
	"fmt"
	"strings"
	"testing"
)

// TestAClientStaysAtItsSideOfACanary has a canary of two hosts, of which one has a further name.
func TestAClientStaysAtItsSideOfACanary(t *testing.T) {
	spec := func(service string) string {
		return "rules: [" + rule("a.test", path("/", "Prefix", service)) + ", " +
			rule("b.test", path("/", "Prefix", service)) + "]"
	}
	cookies := make(map[string]bool)
	for name, tt := range map[string]struct {
		said string // canary-weight and the value of canary-affinity
		want int    // cases of each route
	}{
		"sticky": {"10 true", 2}, "not sticky": {"10 false", 0}, "of no request": {"0 true", 0}, "gone": {"", 0},
	} {
		manifest := app("web") + app("new") + ingress("main", 2020, spec("web"))
		if tt.said != "" {
			manifest += ingress("canary", 2021, spec("new"))
		}
		s := snapshot(t, Unnamed, manifest)
		s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/server-alias": "c.test"}
		if weight, affinity, is := strings.Cut(tt.said, " "); is {
			s.Ingresses[1].Annotations = map[string]string{
				"sallyport.dev/canary-weight": weight, "sallyport.dev/canary-affinity": affinity,
			}
		}
		r := Compile([]Snapshot{s})
		if err := r.Config.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(r.Config.Routes) != 3 || len(r.Problems) > 0 {
			t.Errorf("%s: %v, %v", name, r.Config.Routes, r.Problems)
		}
		for _, b := range r.Config.Backends {
			if got := strings.Count(fmt.Sprint(b.Directives), "Set-Cookie 'CANARY_"); got != tt.want/2 {
				t.Errorf("%s: %s has %d cookies for clients that stay", name, b.Name, got)
			}
		}
		for _, route := range r.Config.Routes {
			n := 0
			for _, c := range r.Config.Choices {
				if c.Name != route.Choice {
					continue
				}
				for _, one := range c.Cases {
					want := map[string]string{"always": route.Canary, "never": route.Backend}[one.Stay.Value]
					if n++; one.Backend != want || route.Canary == "" {
						t.Errorf("%s: %s: %+v", name, route.Host, one)
					}
					cookies[one.Stay.Cookie] = true
				}
			}
			if n != tt.want {
				t.Errorf("%s: %s has %d cases, want %d", name, route.Host, n, tt.want)
			}
		}
	}
	if len(cookies) != 1 {
		t.Errorf("the canary has the cookies %v", cookies)
	}
}
