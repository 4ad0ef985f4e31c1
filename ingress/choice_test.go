package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/owners"
)

// taken returns verdicts that accept conditions.
func taken(t testing.TB, conditions ...string) haproxy.Verdicts {
	t.Helper()
	verdicts := haproxy.Verdicts{}
	for _, c := range conditions {
		text, err := haproxy.Condition(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		verdicts[text.Part()] = haproxy.Good
	}
	return verdicts
}

func TestAServiceTakesSomeOfTheRequests(t *testing.T) {
	const backends = "backend default_svc_beta_http: s_172-16-1-1_8080\n" +
		"backend default_svc_web_http: s_172-16-1-1_8080\n"
	const mainToo = "prefix a.test/ -> default_svc_web_http\n"
	rules := func(paths ...string) string { return "rules: [" + rule("a.test", paths...) + "]" }
	for name, tt := range map[string]struct{ manifests, acl, want string }{
		"of a path that another takes": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/", "Prefix", "beta"))), "cookie(beta) -m found",
			"prefix a.test/ -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				backends,
		},
		"of an Ingress of its own, older or not": {
			ingress("i", 2020, rules(path("/", "Prefix", "beta"))) +
				ingress("j", 2021, rules(path("/", "Prefix", "web"))), "cookie(beta) -m found",
			"prefix a.test/ -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				backends,
		},
		"of a path that nobody else takes: the rest goes where it would go without": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x/y", "Exact", "beta"),
				path("/x", "Prefix", "beta"), path("/z", "Prefix", "web"))), "cookie(beta) -m found",
			mainToo +
				"prefix a.test/x -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"exact a.test/x/y -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }, " +
				"default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"prefix a.test/z -> default_svc_web_http\n" + backends,
		},
		"of a host that nobody else takes": {
			ingress("i", 2020, rules(path("/x", "Prefix", "beta"))), "cookie(beta) -m found",
			"prefix a.test/ -> 404\n" +
				"prefix a.test/x -> 404, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"backend default_svc_beta_http: s_172-16-1-1_8080\n",
		},
		"of no request while HAProxy was not asked": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x", "Prefix", "beta"))), "cookie(new) -m found",
			mainToo + backends,
		},
		"of no request if it cannot be read": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x", "Prefix", "beta"))),
			"{ cookie(beta) -m found }",
			mainToo + backends + "problem Service default/beta InvalidAnnotation\n",
		},
		"but not of another namespace's": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"))) +
				strings.ReplaceAll(ingress("j", 2021, rules(path("/", "Prefix", "beta"), path("/x", "Prefix", "beta")))+
					app("beta"), "namespace: default", "namespace: other"), "cookie(beta) -m found",
			mainToo +
				"prefix a.test/x -> default_svc_web_http, other_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"backend default_svc_web_http: s_172-16-1-1_8080\nbackend other_svc_beta_http: s_172-16-1-1_8080\n" +
				"problem Ingress other/j PathConflict\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("web")+app("beta")+tt.manifests)
			s.Options.OneTenant = true
			for _, service := range s.Services {
				if service.Name == "beta" {
					service.Annotations = map[string]string{"haproxy.org/route-acl": tt.acl}
				}
			}
			var c Compiler
			c.Judge(taken(t, "cookie(beta) -m found"))
			r := c.Compile([]Snapshot{s})
			if diff := gocmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			if len(r.Questions) == 0 != strings.HasPrefix(tt.acl, "{") {
				t.Errorf("HAProxy is asked about %q", r.Questions)
			}
			s.Options.OneTenant = false
			if r := c.Compile([]Snapshot{s}); len(r.Config.Choices) > 0 ||
				!strings.Contains(read(r), "beta InvalidAnnotation") &&
					!strings.Contains(read(r), "other/j HostOwned") {
				t.Errorf("without trust:\n%s", read(r))
			}
		})
	}
}

// chosenAlone returns the backend and the conditional backends of a key, found by a
// look at every other key.
func chosenAlone(key routeKey, routed map[routeKey]haproxy.Route,
	chosen map[routeKey][]conditional,
) (backend string, cases []string) {
	for _, c := range chosen[key] {
		cases = append(cases, c.backend)
	}
	if route, has := routed[key]; has {
		return route.Backend, cases
	}
	var best *routeKey
	for _, keys := range [][]routeKey{slices.Collect(maps.Keys(routed)), slices.Collect(maps.Keys(chosen))} {
		for _, other := range keys {
			if !other.Covers(key) {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(len(best.Reach()), len(other.Reach())),
				cmp.Compare(other.Path, best.Path), cmp.Compare(other.Match, best.Match)) < 0 {
				best = &other
			}
		}
	}
	if best == nil {
		return "default", cases
	}
	backend, more := chosenAlone(*best, routed, chosen)
	return backend, append(cases, more...)
}

func TestWithoutItsConditionsAKeyLeadsWhereTheNextShorterOneDoes(t *testing.T) {
	never := false
	p := &claim{}
	p.Redirect.Wanted = &never
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		b := &builder{
			owned:   owners.Assign(owners.Round{}),
			routing: &routing{Result: Result{Config: haproxy.Config{DefaultBackend: "default"}}},
			routed:  make(map[routeKey]haproxy.Route),
		}
		b.chosen = make(map[routeKey][]conditional)
		for n := range 12 {
			key := routeKey{Host: []string{"a.test", "b.test"}[rnd.IntN(2)], Path: []string{"/", "/a", "/a/", "/a/b", "/ab", "/a/b/c"}[rnd.IntN(6)], Match: []haproxy.PathMatch{haproxy.Prefix, haproxy.Begin, haproxy.Exact}[rnd.IntN(3)]}
			if rnd.IntN(2) == 0 {
				b.routed[key] = haproxy.Route{
					Host: key.Host, Path: key.Path, Match: key.Match,
					Backend: fmt.Sprint("route", n),
				}
			}
			if rnd.IntN(2) == 0 {
				text, err := haproxy.Condition(fmt.Sprintf("src 192.0.2.%d", n), nil)
				if err != nil {
					t.Fatal(err)
				}
				b.chosen[key] = append(b.chosen[key],
					conditional{
						by: p, when: annotations.Condition{Text: text, Usable: true}, backend: fmt.Sprint("choice", n),
					})
			}
		}
		routed := maps.Clone(b.routed)
		b.chain()
		for key := range b.chosen {
			backend, cases := chosenAlone(key, routed, b.chosen)
			var got []string
			i := slices.IndexFunc(b.Config.Choices, func(c *haproxy.Choice) bool {
				return c.Name == b.routed[key].Choice
			})
			for _, c := range b.Config.Choices[max(i, 0)].Cases {
				got = append(got, c.Backend)
			}
			if i < 0 || b.routed[key].Backend != backend || !slices.Equal(got, cases) {
				t.Fatalf("seed %d, %v: got %q, then %q; want %q, then %q", seed, key, got, b.routed[key].Backend, cases,
					backend)
			}
		}
	}
}
