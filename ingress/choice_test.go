package ingress

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/haproxy"
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
	const backends = "backend default_svc_beta_http: s_172-16-1-1_8080\nbackend default_svc_web_http: s_172-16-1-1_8080\n"
	const mainToo = "prefix a.test/ -> default_svc_web_http\n"
	rules := func(paths ...string) string { return "rules: [" + rule("a.test", paths...) + "]" }
	for name, tt := range map[string]struct{ manifests, acl, want string }{
		"of a path that another takes": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/", "Prefix", "beta"))), "cookie(beta) -m found",
			"prefix a.test/ -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" + backends,
		},
		"of an Ingress of its own, older or not": {
			ingress("i", 2020, rules(path("/", "Prefix", "beta"))) + ingress("j", 2021, rules(path("/", "Prefix", "web"))), "cookie(beta) -m found",
			"prefix a.test/ -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" + backends,
		},
		"of a path that nobody else takes: the rest goes where it would go without": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x/y", "Exact", "beta"), path("/x", "Prefix", "beta"), path("/z", "Prefix", "web"))), "cookie(beta) -m found",
			mainToo + "prefix a.test/x -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"exact a.test/x/y -> default_svc_web_http, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"prefix a.test/z -> default_svc_web_http\n" + backends,
		},
		"of a host that nobody else takes": {
			ingress("i", 2020, rules(path("/x", "Prefix", "beta"))), "cookie(beta) -m found",
			"prefix a.test/ -> 404\nprefix a.test/x -> 404, default_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\nbackend default_svc_beta_http: s_172-16-1-1_8080\n",
		},
		"of no request while HAProxy was not asked": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x", "Prefix", "beta"))), "cookie(new) -m found",
			mainToo + backends,
		},
		"of no request if it cannot be read": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"), path("/x", "Prefix", "beta"))), "{ cookie(beta) -m found }",
			mainToo + backends + "problem Service default/beta InvalidAnnotation\n",
		},
		"but not of another namespace's": {
			ingress("i", 2020, rules(path("/", "Prefix", "web"))) +
				strings.ReplaceAll(ingress("j", 2021, rules(path("/", "Prefix", "beta"), path("/x", "Prefix", "beta")))+app("beta"), "namespace: default", "namespace: other"), "cookie(beta) -m found",
			mainToo + "prefix a.test/x -> default_svc_web_http, other_svc_beta_http if { 'cookie(beta)' '-m' 'found' }\n" +
				"backend default_svc_web_http: s_172-16-1-1_8080\nbackend other_svc_beta_http: s_172-16-1-1_8080\nproblem Ingress other/j PathConflict\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, "c", app("web")+app("beta")+tt.manifests)
			s.Options.OneTenant = true
			for _, service := range s.Services {
				if service.Name == "beta" {
					service.Annotations = map[string]string{"haproxy.org/route-acl": tt.acl}
				}
			}
			var c Compiler
			c.Judge(taken(t, "cookie(beta) -m found"))
			r := c.Compile([]Snapshot{s})
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			if len(r.Questions) == 0 != strings.HasPrefix(tt.acl, "{") {
				t.Errorf("HAProxy is asked about %q", r.Questions)
			}
			s.Options.OneTenant = false
			if r := c.Compile([]Snapshot{s}); len(r.Config.Choices) > 0 || !strings.Contains(read(r), "beta InvalidAnnotation") && !strings.Contains(read(r), "other/j HostOwned") {
				t.Errorf("without trust:\n%s", read(r))
			}
		})
	}
}
