package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

func TestANamespaceGetsNoMoreThanItsLimits(t *testing.T) {
	rules := func(rules ...string) string { return "rules: [" + strings.Join(rules, ", ") + "]" }
	older := ingress("older", 2020, rules(rule("a.test", path("/", "Prefix", "web"))))
	for name, row := range map[string]struct {
		limits  Limits
		younger string
		want    string // the routes besides those of a.test and of the other namespace
		why     string // of the problem
	}{
		"as many as allowed": {
			Limits{Hosts: 2, Paths: 2, RegularExpressions: 1, Conditions: 1, Backends: 2, Certificates: 1},
			ingress("younger", 2021, rules(rule("b.test", path("/", "Prefix", "web")))),
			"b.test/", "",
		},
		"hosts": {
			Limits{Hosts: 2},
			ingress("younger", 2021,
				rules(rule("b.test", path("/", "Prefix", "web")), rule("c.test", path("/", "Prefix", "web")),
					rule("d.test", path("/", "Prefix", "web")))),
			"b.test/",
			"more than 2 hosts (clusters[].ingress.limits.hosts): 2 of this Ingress are not served, the " +
				"first is c.test",
		},
		"hosts of certificates": {
			Limits{Hosts: 2},
			ingress("younger", 2021, rules(rule("b.test", path("/", "Prefix", "web")))+
				", tls: [{hosts: [b.test, c.test]}, {hosts: [d.test]}]"),
			"b.test/",
			"more than 2 hosts (clusters[].ingress.limits.hosts): 2 of this Ingress are not served, the " +
				"first is c.test",
		},
		"paths": {
			Limits{Paths: 2},
			ingress("younger", 2021,
				rules(rule("b.test", path("/", "Prefix", "web"), path("/b", "Prefix", "web"),
					path("/c", "Prefix", "web")))),
			"b.test/",
			"more than 2 paths (clusters[].ingress.limits.paths): 2 of this Ingress are not served, the first is " +
				"b.test, prefix path /b",
		},
		"regular expressions": {
			Limits{RegularExpressions: 1},
			strings.Replace(ingress("younger", 2021,
				rules(rule("b.test", path("/a.", "ImplementationSpecific", "web"),
					path("/b.", "ImplementationSpecific", "web"), path("/", "Prefix", "web")))),
				"namespace: default,", "namespace: default, annotations: {sallyport.dev/path-type: regex},", 1),
			"b.test/ b.test/a.",
			"more than 1 regular expressions as paths (clusters[].ingress.limits.regularExpressions): 1 of this " +
				"Ingress are not served, the first is b.test, regex path /b.",
		},
		"conditions": {
			Limits{Conditions: 1},
			ingress("younger", 2021,
				rules(rule("b.test", path("/", "Prefix", "choosy"), path("/b", "Prefix", "choosy")))),
			"b.test/",
			"more than 1 paths with a condition (clusters[].ingress.limits.conditions): 1 of this Ingress are not " +
				"served, the first is b.test, prefix path /b",
		},
		"backends": {
			Limits{Backends: 2},
			ingress("younger", 2021,
				rules(rule("b.test", path("/", "Prefix", "web"), path("/b", "Prefix", "more"),
					path("/c", "Prefix", "most")))),
			"b.test/ b.test/b",
			"more than 2 backends (clusters[].ingress.limits.backends): 1 of this Ingress are not served, the first " +
				"is b.test, prefix path /c",
		},
		"backends of its own": {
			Limits{Backends: 1},
			strings.Replace(ingress("younger", 2021, rules(rule("b.test", path("/", "Prefix", "web")))),
				"namespace: default,", "namespace: default, annotations: {set-host: c.test},", 1),
			"b.test/",
			"more than 1 backends (clusters[].ingress.limits.backends): 1 of this Ingress are not served, the first " +
				"is b.test, prefix path /",
		},
		"certificates": {
			Limits{Certificates: 1},
			ingress("younger", 2021, rules(rule("b.test", path("/", "Prefix", "web")))+
				", tls: [{hosts: [b.test], secretName: one}, {hosts: [b.test], secretName: two}]"),
			"b.test/",
			"more than 1 certificates (clusters[].ingress.limits.certificates): 1 of this Ingress are not served, " +
				"the first is Secret two",
		},
		"two limits": {
			Limits{Hosts: 1, Paths: 1},
			ingress("younger", 2021,
				rules(rule("b.test", path("/", "Prefix", "web")), rule("a.test", path("/b", "Prefix", "web")))),
			"", "more than 1 hosts (clusters[].ingress.limits.hosts): 1 of this Ingress are not served, the first is " +
				"b.test; and more than 1 paths (clusters[].ingress.limits.paths): 1 of this Ingress are not served, " +
				"the first is a.test, prefix path /b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			others := strings.ReplaceAll(strings.ReplaceAll(row.younger, "namespace: default", "namespace: other"),
				".test", ".example")
			s := snapshot(t, Unnamed, row.younger+older+others+app("web")+app("choosy"))
			s.Services[1].Annotations = map[string]string{"haproxy.org/route-acl": "path_beg /x"}
			s.Options.Limits, s.Options.OneTenant = row.limits, true
			r := Compile([]Snapshot{s})
			var routes []string
			for _, route := range r.Config.Routes {
				if route.Host == "b.test" && route.Backend != "" {
					routes = append(routes, route.Host+route.Path)
				}
			}
			if !slices.ContainsFunc(r.Config.Routes, func(route *haproxy.Route) bool {
				return route.Host == "a.test" && route.Path == "/" && route.Backend == "default_svc_web_http"
			}) {
				t.Errorf("the older Ingress has lost its host: %+v", r.Config.Routes)
			}
			want := row.want
			if strings.HasPrefix(name, "conditions") || name == "backends of its own" {
				want = "" // without a verdict no condition is in use
			}
			if got := strings.Join(routes, " "); got != want {
				t.Errorf("the younger one has %q, want %q", got, want)
			}
			var told []string
			for _, p := range r.Problems {
				if p.Reason == "LimitReached" && p.Namespace == "default" {
					told = append(told, p.Name+" "+p.Why)
				}
			}
			if row.why != "" {
				row.why = "younger the Ingresses of namespace default have " + row.why
			}
			if diff := cmp.Diff(row.why, strings.Join(told, "\n")); diff != "" {
				t.Errorf("told: -want +got\n%s", diff)
			}
		})
	}
}

// TestSubjectsOfClientsCountAsConditions has two expressions where one is allowed: HAProxy compares every request with
// the hosts of each.
func TestSubjectsOfClientsCountAsConditions(t *testing.T) {
	var manifest string
	for name, created := range map[string]int{"a": 2020, "b": 2021} {
		manifest += strings.Replace(ingress(name, created, "rules: ["+rule(name+".test", path("/", "Prefix", "web"))+
			"], tls: [{hosts: ["+name+".test], secretName: one}]"), "namespace: default,",
			"namespace: default, annotations: {sallyport.dev/client-crt-match: CN="+name+"},", 1)
	}
	for most, want := range map[int]string{
		1: "b more than 1 paths with a condition (clusters[].ingress.limits.conditions): 1 of this Ingress are not " +
			"served, the first is client-crt-match of its certificates",
		2: "",
	} {
		s := snapshot(t, Unnamed, manifest+app("web"))
		s.Options.Limits = Limits{Conditions: most}
		var told []string
		for _, p := range Compile([]Snapshot{s}).Problems {
			if why, is := strings.CutPrefix(p.Why, "the Ingresses of namespace default have "); is {
				told = append(told, p.Name+" "+why)
			}
		}
		if got := strings.Join(told, "\n"); got != want {
			t.Errorf("with %d: got %q, want %q", most, got, want)
		}
	}
}

// TestAGuardBeyondALimitClosesItsHost lets an older Ingress take the last path that the namespace
// may have: the guarded path of a younger one would lead to the wider path without a guard.
func TestAGuardBeyondALimitClosesItsHost(t *testing.T) {
	rules := func(rules ...string) string { return "rules: [" + strings.Join(rules, ", ") + "]" }
	guarded := strings.Replace(ingress("guarded", 2021, rules(rule("a.test", path("/admin", "Prefix", "web")))),
		"namespace: default,", "namespace: default, annotations: {haproxy.org/allow-list: 192.0.2.1},", 1)
	older := func(paths ...string) string {
		return ingress("older", 2020,
			rules(rule("a.test", append(paths, path("/", "Prefix", "web"))...),
				rule("b.test", path("/", "Prefix", "web"))))
	}
	elsewhere := ingress("elsewhere", 2020, rules(rule("c.test", path("/", "Prefix", "web"))))
	closed := func(text string) (all []string) {
		s := snapshot(t, Unnamed, text+app("web"))
		s.Options.Limits = Limits{Paths: 4}
		r := Compile([]Snapshot{s})
		for _, route := range r.Config.Routes {
			for _, b := range r.Config.Backends {
				if b.Name == route.Backend && strings.Contains(fmt.Sprint(b.Directives), haproxy.Close().String()) {
					all = append(all, route.Host+route.Path)
				}
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	if got := closed(older() + elsewhere + guarded); len(got) > 0 {
		t.Errorf("within the limit %v are closed", got)
	}
	got := closed(older(path("/more", "Prefix", "web")) + elsewhere + guarded)
	if diff := cmp.Diff([]string{"a.test/", "a.test/more", "b.test/"}, got); diff != "" {
		t.Errorf("closed: -want +got\n%s", diff)
	}
}

// TestTheKeysOfANamespaceTakeNoMoreBytesThanItsLimit also checks that a guard beyond the limit closes
// its paths, and gives them to no wider Ingress.
func TestTheKeysOfANamespaceTakeNoMoreBytesThanItsLimit(t *testing.T) {
	guard := func(name string, since int, length int, rules string) string {
		list := strings.TrimSuffix(strings.Repeat("192.0.2.1,", length/10), ",")
		return strings.Replace(ingress(name, since, "rules: ["+rules+"]"), "namespace: default,",
			fmt.Sprintf("namespace: default, annotations: {allow-list: %q},", list), 1)
	}
	objects := ingress("wide", 2019, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]") +
		guard("first", 2020, 300, rule("a.test", path("/first", "Prefix", "web"))) +
		guard("twice", 2021, 400, rule("a.test", path("/twice", "Prefix", "web"), path("/two", "Prefix", "more"))) +
		guard("again", 2022, 300, rule("a.test", path("/again", "Prefix", "web"), path("/and", "Prefix", "web"))) +
		ingress("by-service", 2023, "rules: ["+rule("a.test", path("/by-service", "Prefix", "long"))+"]") +
		ingress("plain", 2024, "rules: ["+rule("a.test", path("/plain", "Prefix", "more"))+"]")
	s := snapshot(t, Unnamed, objects+
		strings.ReplaceAll(guard("other", 2023, 900, rule("other.test", path("/", "Prefix", "web"))),
			"namespace: default", "namespace: other")+app("web")+app("more")+app("long"))
	for _, service := range s.Services {
		if service.Name == "long" {
			service.Annotations = map[string]string{"haproxy.org/load-balance": "uri len 1" + strings.Repeat("0", 400)}
		}
	}
	s.Options.Limits.ConfigBytes = 1000
	r := Compile([]Snapshot{s})
	backends := map[string]*haproxy.Backend{}
	for _, b := range r.Config.Backends {
		backends[b.Name] = b
	}
	got := map[string]string{}
	for _, route := range r.Config.Routes {
		what := "open"
		switch text := fmt.Sprint(backends[route.Backend].Directives); {
		case strings.Contains(text, "503"):
			what = "closed"
		case strings.Contains(text, "192.0.2.1"):
			what = "guarded"
		}
		got[route.Host+route.Path] = what
	}
	want := map[string]string{
		"a.test/": "open", "a.test/first": "guarded", "a.test/twice": "closed", "a.test/two": "closed",
		"a.test/again": "guarded", "a.test/and": "guarded",
		"a.test/by-service": "closed", "a.test/plain": "open", "other.test/": "guarded",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	var told []string
	for _, p := range r.Problems {
		if p.Reason == "LimitReached" && strings.Contains(p.Why,
			"than 1000 bytes of HAProxy's configuration (clusters[].ingress.limits.configBytes)") {
			told = append(told, p.Namespace+"/"+p.Name)
		}
	}
	if diff := cmp.Diff([]string{"default/by-service", "default/twice"}, told); diff != "" {
		t.Errorf("told: -want +got\n%s", diff)
	}
}

// TestANamespaceGetsNoMoreServersThanItsLimit also checks that a round without a change
// returns the same pointers.
func TestANamespaceGetsNoMoreServersThanItsLimit(t *testing.T) {
	objects := ""
	for i, name := range []string{"a", "b", "c"} {
		objects += service(name, "http", 80) + slice(name, "a", "http", 8080, fmt.Sprintf("172.16.%d.1", i),
			fmt.Sprintf("172.16.%d.2", i))
	}
	s := snapshot(t, Unnamed, objects+
		ingress("it", 2020, "rules: ["+rule("a.test", path("/a", "Prefix", "a"), path("/b", "Prefix", "b"),
			path("/c", "Prefix", "c"))+"]"))
	for most, want := range map[int][]int{0: {2, 2, 2}, 6: {2, 2, 2}, 5: {2, 2, 1}, 3: {2, 1, 0}, 1: {1, 0, 0}} {
		s.Options.Limits.Servers = most
		var c Compiler
		r := c.Compile([]Snapshot{s})
		var got []int
		for _, b := range r.Config.Backends {
			got = append(got, len(b.Servers))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("at most %d: -want +got\n%s", most, diff)
		}
		told := slices.IndexFunc(r.Problems, func(p Problem) bool { return p.Reason == "LimitReached" })
		if (told >= 0) != (most == 5 || most == 3 || most == 1) {
			t.Errorf("at most %d: problems %v", most, r.Problems)
		}
		other := s
		other.Slices = append(slices.Clone(s.Slices), s.Slices[0].DeepCopy())
		other.Slices[len(s.Slices)].Namespace = "elsewhere"
		next := c.Compile([]Snapshot{other})
		if !slices.Equal(next.Config.Backends, r.Config.Backends) {
			t.Errorf("at most %d: backends were made anew", most)
		}
	}
}

func TestASecretThatIsTooBigIsNotKept(t *testing.T) {
	crt, key := certificate{names: []string{"a.test"}}.make(t)
	for most, want := range map[int]string{
		0: "", 100_000: "", // 0 means the default bound
		len(crt) + len(key): "",
		len(crt) + len(key) - 1: fmt.Sprintf(
			"Secret default/it holds %d bytes; allowed: %d (clusters[].ingress.limits.secretBytes)", len(crt)+len(key),
			len(crt)+len(key)-1),
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "it"},
			Data:       map[string][]byte{"tls.crt": crt, "tls.key": key},
		}
		Options{Limits: Limits{SecretBytes: most}}.Strip(secret)
		s := snapshot(t, Unnamed, app("web")+
			ingress("a", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+
				"], tls: [{hosts: [a.test], secretName: it}]"))
		s.Secrets = []*corev1.Secret{secret}
		s.Ingresses[0].Annotations = map[string]string{"client-ca": "it"}
		r := Compile([]Snapshot{s})
		var got []string
		for _, p := range r.Problems {
			if strings.Contains(p.Why, "bytes") {
				got = append(got, p.Why)
			}
		}
		if (want == "") != (len(got) == 0) ||
			want != "" && (len(got) != 2 || !strings.Contains(got[0], want) || !strings.Contains(got[1], want)) {
			t.Errorf("of at most %d bytes: want %q of the certificate and the key, got %q", most, want, got)
		}
		if kept := len(secret.Data["tls.key"]) > 0; kept != (want == "") {
			t.Errorf("of at most %d bytes: kept %v", most, kept)
		}
	}
}

func TestOneObjectDoesNotFillTheStatus(t *testing.T) {
	s := snapshot(t, Unnamed, ingress("b", 2020, fallback("gone")))
	bad := s.Ingresses[0].DeepCopy()
	bad.Name = "a"
	for i := range 50 {
		bad.Spec.Rules = append(bad.Spec.Rules, networkingv1.IngressRule{Host: fmt.Sprintf("no host %02d", i)})
	}
	s.Ingresses = append(s.Ingresses, bad)
	r := Compile([]Snapshot{s})
	if len(r.Problems) != 22 ||
		r.Problems[20].Why != "there are 30 more problems with this object: correct the first 20 to see the next" ||
		r.Problems[21].Name != "b" {
		t.Errorf("got %d problems: %v", len(r.Problems), r.Problems)
	}
}

// BenchmarkCompile compiles a namespace with 10,000 Ingresses from nothing: without
// limits, far from them, near them and beyond them.
func BenchmarkCompile(b *testing.B) {
	for name, limits := range map[string]Limits{
		"without limits": {},
		"far from them": {
			Hosts: 1_000_000, Paths: 1_000_000, RegularExpressions: 200, Backends: 1_000_000,
			Certificates: 2000,
		},
		"near them":   {Hosts: 10_000, Paths: 10_000, RegularExpressions: 200, Backends: 10_000, Certificates: 2000},
		"beyond them": {Hosts: 5000, Paths: 5000, RegularExpressions: 200, Backends: 5000, Certificates: 2000},
	} {
		b.Run(name, func(b *testing.B) {
			s := Snapshot{Options: Options{Class: "haproxy", WatchWithoutClass: true, Limits: limits}}
			kind := networkingv1.PathTypePrefix
			for i := range 10_000 {
				meta := metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("a%05d", i)}
				s.Services = append(s.Services,
					&corev1.Service{
						ObjectMeta: meta,
						Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
					})
				s.Ingresses = append(s.Ingresses,
					&networkingv1.Ingress{
						ObjectMeta: meta,
						Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
							Host: meta.Name + ".test",
							IngressRuleValue: networkingv1.IngressRuleValue{
								HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
									Path: "/", PathType: &kind,
									Backend: networkingv1.IngressBackend{
										Service: &networkingv1.IngressServiceBackend{
											Name: meta.Name,
											Port: networkingv1.ServiceBackendPort{Number: 80},
										},
									},
								}}},
							},
						}}},
					})
			}
			for b.Loop() {
				Compile([]Snapshot{s})
			}
		})
	}
}
