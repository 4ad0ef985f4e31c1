package ingress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
	"sallyport/ingress/survey"
)

// sampleValues are values that annotations of ingress-nginx have, good and bad.
var sampleValues = []string{
	"true", "false", "on", "off", "optional", "0", "5", "60", "300s", "8m", "1g", "basic", "digest", "cookie", "users", "pair",
	"10.0.0.0/8", "10.0.0.0/33", "/", "/$1", "/x?y", "https://a.test/", "http://web.default.svc/", "$host", "HTTPS", "GRPC",
	"FCGI", "ewma", "round_robin", "X-New", "GET, POST", "*", "https://*.a.test", "Lax", "None", "a b", "%[src]", "\x01", "",
}

// outside are the keys that are no setting of a backend.
var outside = []string{
	"sallyport.dev/path-type", "sallyport.dev/canary-weight", "sallyport.dev/canary-by-header",
	"sallyport.dev/canary-by-header-value", "sallyport.dev/canary-by-header-pattern", "sallyport.dev/canary-by-cookie",
	"ssl-redirect", "ssl-redirect-code", "ssl-redirect-port",
	"ssl-passthrough", "sallyport.dev/server-alias", "sallyport.dev/from-to-www-redirect", "sallyport.dev/path-rewrite-first",
	"client-crt-optional", "sallyport.dev/ssl-ciphers",
}

// TestASurveyPromisesOnlyWhatTakesEffect compares the Survey of random Ingresses with the keys that their
// backends have. What a Survey calls the same, or a difference, is in effect. An Ingress with a backend that
// rejects all clients is not served, and of an Ingress that is not served no key is.
func TestASurveyPromisesOnlyWhatTakesEffect(t *testing.T) {
	rows := nginx.Rows()
	promised := 0
	rapid.Check(t, func(t *rapid.T) {
		s := ingress.SnapshotOf(tb{}, "c", ingress.AppText("web")+
			ingress.IngressText("i", 2020, "rules: ["+ingress.RuleText("a.test", ingress.PathText("/a", "ImplementationSpecific", "web"))+"]"))
		s.Ingresses[0].Spec.IngressClassName = new("nginx")
		set := map[string]string{}
		s.Ingresses[0].Annotations = set
		for range rapid.IntRange(1, 14).Draw(t, "annotations") {
			row := rapid.SampledFrom(rows).Draw(t, "row")
			set[nginx.Prefix+row.Name] = rapid.SampledFrom(sampleValues).Draw(t, "value")
		}
		s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
		// What depends on an annotation that is not taken has no effect either. So such annotations are
		// removed until all are taken.
		for all := -1; all != len(set); {
			all = len(set)
			one, backends := surveyed(t, s)
			for _, a := range one.Annotations {
				if a.Verdict == nginx.Lost || a.Verdict == nginx.Refused {
					delete(set, nginx.Prefix+a.Name)
				}
			}
			if len(set) == all {
				promised += inEffect(t, one, backends)
			}
		}
	})
	if promised == 0 {
		t.Error("nothing was promised")
	}
}

// surveyed returns the Survey of the only Ingress, and its backends.
func surveyed(t *rapid.T, s input.Snapshot) (survey.Surveyed, []ingress.ExplainedBackend) {
	r := ingress.Compile([]input.Snapshot{s})
	v := survey.Of(r, "c", survey.FromNginx)
	if len(v.Ingresses) != 1 || len(v.Ingresses[0].Annotations) != len(s.Ingresses[0].Annotations) {
		t.Fatalf("got %+v", v)
	}
	one := v.Ingresses[0]
	e, _ := r.Explain("c", "default", "i")
	closed := slices.ContainsFunc(e.Backends, func(b ingress.ExplainedBackend) bool {
		return slices.ContainsFunc(b.Directives, func(d string) bool {
			return strings.Contains(d, "the access rules of this path are invalid") || d == "tcp-request content reject"
		})
	})
	if closed != one.Closed || closed && one.Verdict != nginx.Lost {
		t.Fatalf("closed is %t: %+v", closed, one)
	}
	return one, e.Backends
}

// inEffect demands that each key of the Survey is in effect in a backend, and returns how many there are.
func inEffect(t *rapid.T, one survey.Surveyed, backends []ingress.ExplainedBackend) (keys int) {
	if one.Closed || one.Served == 0 {
		return 0
	}
	for _, a := range one.Annotations {
		if a.Verdict != nginx.Same && a.Verdict != nginx.Differs {
			continue
		}
		for _, here := range a.Here {
			key, _, _ := strings.Cut(here, ": ")
			if slices.Contains(outside, key) {
				continue
			}
			keys++
			if !slices.ContainsFunc(backends, func(b ingress.ExplainedBackend) bool { return has(b, key) }) {
				t.Fatalf("%s is %q by %s, which is not in effect: %+v", a.Name, a.Verdict, key, backends)
			}
		}
	}
	return keys
}

// has reports whether a key is in effect in a backend.
func has(b ingress.ExplainedBackend, key string) bool {
	for _, k := range b.Keys {
		if k.Key == key {
			return true
		}
	}
	return false
}

// tb is a testing.TB within a rapid check: what fails there is a mistake of the test.
type tb struct{ testing.TB }

func (tb) Helper() {}

func TestASurveyKnowsHostsAndPaths(t *testing.T) {
	of := func(i *networkingv1.Ingress, set ...string) {
		i.Spec.IngressClassName = new("nginx")
		i.Annotations = map[string]string{}
		for _, one := range set {
			name, value, _ := strings.Cut(one, ": ")
			i.Annotations[nginx.Prefix+name] = value
		}
	}
	s := ingress.SnapshotOf(t, "c", ingress.AppText("web")+ingress.SecretText(t, "tls", ingress.CertificateFor("a.test"))+
		ingress.IngressText("a", 2020, "tls: [{hosts: [a.test], secretName: tls}], rules: ["+
			ingress.RuleText("a.test", ingress.PathText("/", "Prefix", "web"), ingress.PathText("/x", "Exact", "web"))+"]")+
		ingress.IngressText("b", 2021, "rules: ["+ingress.RuleText("a.test", ingress.PathText("/b/(.*)", "ImplementationSpecific", "web"))+"]")+
		ingress.IngressText("d", 2022, "rules: ["+ingress.RuleText("a.test", ingress.PathText("/", "Prefix", "web"), ingress.PathText("/d(e", "Prefix", "web"))+"]")+
		ingress.IngressText("o", 2022, "rules: ["+ingress.RuleText("o.test", ingress.PathText("/", "Prefix", "web"))+"]"))
	of(s.Ingresses[0])
	of(s.Ingresses[1], "use-regex: true", "force-ssl-redirect: false")
	of(s.Ingresses[2], "use-regex: maybe")
	s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
	v := survey.Of(ingress.Compile([]input.Snapshot{s}), "c", survey.FromNginx)
	var got []string
	for _, one := range v.Ingresses {
		got = append(got, fmt.Sprintf("%s: %s, %d of %d", one.Name, one.Verdict, one.Served, one.Paths))
	}
	want := "a: the same, 2 of 2; b: a difference, 1 of 1; d: not served, 0 of 2"
	if got := strings.Join(got, "; "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(v.Hosts) != 1 || len(v.Hosts[0].Why) != 2 || !strings.Contains(v.Hosts[0].Why[0], "default/b") ||
		!strings.Contains(v.Hosts[0].Why[0], "/d(e (default/d)") || strings.Contains(v.Hosts[0].Why[0], "/x") || !strings.Contains(v.Hosts[0].Why[1], "/b/(.*)") {
		t.Errorf("hosts are %q", v.Hosts)
	}
	// The paths of Ingress a are expressions because of Ingress b, as in ingress-nginx. Ingress d has a path
	// that ingress-nginx refuses.
	if told := v.Ingresses[0].Problems; len(told) != 0 {
		t.Errorf("told about a was %q", told)
	}
	if told := v.Ingresses[2].Problems; !slices.ContainsFunc(told, func(p survey.SurveyedProblem) bool {
		return p.Reason == "ExpressionsOfHost" && strings.Contains(p.Why, "because of default/b") &&
			strings.HasSuffix(p.Why, ": /d(e (prefix)")
	}) {
		t.Errorf("told about d was %q", told)
	}
	if told := v.Ingresses[1].Problems; len(told) != 0 {
		t.Errorf("told about b was %q", told)
	}
	if v.Others["haproxy"]+v.Others[""] != 1 {
		t.Errorf("others are %v", v.Others)
	}
}
