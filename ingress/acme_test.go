package ingress

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/input"
)

// challengePath is the path of a challenge (RFC 8555, 8.3).
const challengePath = "/.well-known/acme-challenge/TOKEN"

// solver returns the Ingress and the Service that cert-manager makes for a challenge.
func solver(host, kind string) string {
	return app("solver") + strings.Replace(ingress("cm-acme-http-solver-x", 2025, "rules: ["+
		rule(host, path(challengePath, kind, "solver"))+"]"), "metadata: {", "metadata: {annotations: "+
		`{nginx.ingress.kubernetes.io/whitelist-source-range: "0.0.0.0/0,::/0"}, `, 1)
}

// guardsOf returns the rules of a backend that reject clients, or "" without such a rule.
func guardsOf(t *testing.T, r Result, backend string) (guards string) {
	t.Helper()
	i := slices.IndexFunc(r.Config.Backends, func(b *haproxy.Backend) bool { return b.Name == backend })
	if i < 0 {
		t.Fatalf("there is no backend %s in\n%s", backend, read(r))
	}
	for _, d := range r.Config.Backends[i].Directives {
		for line := range strings.Lines(d.String()) {
			for _, word := range []string{"deny", "http_auth", "http-request auth", "lua.", "return"} {
				if strings.Contains(line, word) {
					guards += line + "\n"
					break
				}
			}
		}
	}
	return guards
}

// TestAChallengeOfAnACMEServerIsServed has the cases of certificates that cert-manager asks for with
// HTTP-01.
func TestAChallengeOfAnACMEServerIsServed(t *testing.T) {
	main := func(spec string) string {
		return ingress("main", 2020, spec+"rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	}
	for name, tt := range map[string]struct {
		manifests string
		on        map[string]string // annotations of the Ingress main
		config    map[string]string
		kind      string // of the path; Exact if it is empty
		want      string // how the challenge is served
		guarded   bool   // the backend of the challenge keeps clients out
		plain     bool
	}{
		"beside the Ingress that it is for": {manifests: main(""), want: "c__default_svc_solver_http"},
		"with the path of older versions": {
			manifests: main(""), kind: "ImplementationSpecific", want: "c__default_svc_solver_http",
		},
		"beside a redirect by the certificate": {
			manifests: main("tls: [{hosts: [a.test], secretName: tls}], ") +
				secretText(t, "tls", certificate{names: []string{"a.test"}}),
			want: "c__default_svc_solver_http",
		},
		"beside a certificate that is not there yet": {
			manifests: main("tls: [{hosts: [a.test], secretName: tls}], "), want: "c__default_svc_solver_http",
		},
		"beside guards of the Ingress": {
			manifests: main(""), on: map[string]string{
				"haproxy.org/allow-list": "10.0.0.0/8", "haproxy.org/auth-secret": "users",
				"haproxy.org/path-rewrite": "/x",
			},
			want: "c__default_svc_solver_http",
		},
		"beside TLS that passes through": {
			manifests: main(""), on: map[string]string{"haproxy.org/ssl-passthrough": "true"},
			want: "c__default_svc_solver_http",
		},
		"under a rule without a host": {
			manifests: ingress("main", 2020, "rules: ["+rule("", path("/", "Prefix", "web"))+"]"),
			want:      "c__default_svc_solver_http",
		},
		"under a wildcard host": {
			manifests: ingress("main", 2020, "rules: ["+rule("*.test", path("/", "Prefix", "web"))+"]"),
			want:      "c__default_svc_solver_http",
		},
		"with a redirect of the ConfigMap": {
			manifests: main(""), config: map[string]string{"ssl-redirect": "true", "ssl-redirect-port": "8443"},
			want: "c__default_svc_solver_http (https)",
		},
		"with a redirect of the ConfigMap that challenges pass": {
			manifests: main(""), config: map[string]string{"ssl-redirect": "true", "acme": "true"},
			want: "c__default_svc_solver_http.acme",
		},
		"with a list of the ConfigMap": {
			manifests: main(""), config: map[string]string{"allow-list": "10.0.0.0/8"},
			want: "c__default_svc_solver_http", guarded: true,
		},
		"with a list of the ConfigMap that challenges pass": {
			manifests: main(""), config: map[string]string{"allow-list": "10.0.0.0/8", "acme": "true"},
			want: "c__default_svc_solver_http.acme",
		},
		"with a password of the ConfigMap": {
			manifests: main(""), config: map[string]string{"auth-secret": "default/users"},
			want: "c__default_svc_solver_http", guarded: true,
		},
		"with a password of the ConfigMap that challenges pass": {
			manifests: main(""), config: map[string]string{"auth-secret": "default/users", "acme": "true"},
			want: "c__default_svc_solver_http.acme",
		},
		"with a service that the ConfigMap asks": {
			manifests: main(""), config: map[string]string{"auth-url": "svc://default/web:80"},
			want: "c__default_svc_solver_http", guarded: true,
		},
		"with a service that the ConfigMap asks, and that challenges pass": {
			manifests: main(""), config: map[string]string{"auth-url": "svc://default/web:80", "acme": "true"},
			want: "c__default_svc_solver_http.acme",
		},
		"with certificates of clients that challenges pass": {
			manifests: main("") + secretText(t, "ca", certificate{names: []string{"ca.test"}}),
			config:    map[string]string{"client-ca": "default/ca", "acme": "true"},
			want:      "c__default_svc_solver_http.acme", plain: true,
		},
		"with certificates of clients that challenges pass if clients have none": {
			manifests: main(""), config: map[string]string{"client-ca": "default/none", "acme": "true"},
			want: "c__default_svc_solver_http.acme", plain: true,
		},
		"with networks that no challenge comes from": {
			manifests: main(""), config: map[string]string{"deny-list": "10.0.0.0/8", "acme": "true"},
			want: "c__default_svc_solver_http.acme", guarded: true,
		},
		"with a misspelled guard of the ConfigMap": {
			manifests: main(""), config: map[string]string{"allow-lists": "10.0.0.0/8", "acme": "true"},
			want: "c__default_svc_solver_http.acme", guarded: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			kind := tt.kind
			if kind == "" {
				kind = "Exact"
			}
			s := snapshot(t, "c", app("web")+solver("a.test", kind)+tt.manifests)
			users := &corev1.Secret{Data: map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))}}
			users.Namespace, users.Name = "default", "users"
			s.Secrets = append(s.Secrets, users)
			for _, ing := range s.Ingresses {
				if ing.Name == "main" {
					ing.Annotations = tt.on
				}
			}
			s.Options.ConfigMap = "ops/keys"
			m := &corev1.ConfigMap{Data: tt.config}
			m.Namespace, m.Name = "ops", "keys"
			s.ConfigMaps = []*corev1.ConfigMap{m}
			r := Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Fatal(err)
			}
			got, backend, plain := "", "", false
			for _, route := range r.Config.Routes {
				switch {
				case route.Host == "a.test" && route.Path == challengePath:
					got, backend, plain = route.Backend, route.Backend, route.Plain
					if route.TLSOnly {
						got += " (https)"
					}
				case route.Plain:
					t.Errorf("plain HTTP is served for %s%s", route.Host, route.Path)
				}
			}
			if got != tt.want || plain != tt.plain {
				t.Errorf("it is served by %q, plain %t; want %q, plain %t", got, plain, tt.want, tt.plain)
			}
			if guards := guardsOf(t, r, backend); (guards != "") != tt.guarded {
				t.Errorf("clients are kept out: %t, want %t\n%s", guards != "", tt.guarded, guards)
			}
			rest := slices.IndexFunc(r.Config.Routes, func(route *haproxy.Route) bool {
				return route.Host == "a.test" && route.Path == "/" && strings.Contains(route.Backend, "_svc_web_")
			})
			if rest < 0 {
				t.Errorf("the rest of the host is not served:\n%s", read(r))
			}
		})
	}
}

// TestAChallengeOfAnotherNamespaceNeedsItsHost has a solver in another namespace than the Ingress of its host.
func TestAChallengeOfAnotherNamespaceNeedsItsHost(t *testing.T) {
	for name, tt := range map[string]struct {
		options input.Options
		want    string
	}{
		"as long as a host belongs to the first namespace": {
			want: "problem Ingress certs/cm-acme-http-solver-x HostOwned\n",
		},
		"if all namespaces are one tenant": {
			options: input.Options{OneTenant: true},
			want:    "exact a.test" + challengePath + " -> c__certs_svc_solver_http\n",
		},
		"if it may have the host": {
			options: input.Options{Hosts: []input.HostRule{{Host: "a.test", Namespaces: []string{"default", "certs"}}}},
			want:    "exact a.test" + challengePath + " -> c__certs_svc_solver_http\n",
		},
	} {
		s := snapshot(t, "c", app("web")+ingress("main", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")+
			strings.ReplaceAll(solver("a.test", "Exact"), "namespace: default", "namespace: certs"))
		s.Options = tt.options
		if got := read(Compile([]Snapshot{s})); !strings.Contains(got, tt.want) {
			t.Errorf("%s: want %q in\n%s", name, tt.want, got)
		}
	}
}

// TestASolverIsTakenAsAnyIngress has solvers of classes, namespaces and clusters that are ours, or not.
func TestASolverIsTakenAsAnyIngress(t *testing.T) {
	main := app("web") + ingress("main", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")
	served, none := "exact a.test"+challengePath+" -> c__default_svc_solver_http\n", ""
	for name, tt := range map[string]struct {
		class string
		has   []*networkingv1.IngressClass
		set   func(*input.Options)
		want  string // a line, or "" if nothing is said of the challenge
	}{
		"of our class":     {class: "haproxy", want: served},
		"of another class": {class: "other", want: none},
		"without a class":  {want: none},
		"without a class, if ours is the default": {
			has: []*networkingv1.IngressClass{{
				ObjectMeta: metav1.ObjectMeta{
					Name: "haproxy", Annotations: map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true"},
				},
				Spec: networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
			}},
			want: served,
		},
		"without a class, if these are taken": {
			set: func(o *input.Options) { o.WatchWithoutClass = true }, want: served,
		},
		"of ingress-nginx": {
			class: "nginx", set: func(o *input.Options) { o.Nginx.Classes = []string{"nginx"} },
			want: "exact a.test" + challengePath + " -> c__default_ing_cm-acme-http-solver-x_svc_solver_http\n",
		},
		"in a namespace that is not taken": {
			class: "haproxy", set: func(o *input.Options) { o.Namespaces = []string{"shop"} }, want: none,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, "c", main+solver("a.test", "Exact"))
			s.Classes, s.NoClasses = tt.has, tt.has == nil
			for _, ing := range s.Ingresses {
				if ing.Name != "main" {
					ing.Spec.IngressClassName = nil
					if tt.class != "" {
						ing.Spec.IngressClassName = &tt.class
					}
				}
			}
			if tt.set != nil {
				tt.set(&s.Options)
			}
			r := Compile([]Snapshot{s})
			if got := read(r); !strings.Contains(got, tt.want) || tt.want == none && strings.Contains(got, "solver") {
				t.Errorf("want %q in\n%s", tt.want, got)
			}
			if to := strings.TrimSpace(tt.want[strings.LastIndex(tt.want, " ")+1:]); to != "" {
				if guards := guardsOf(t, r, to); strings.Contains(guards, "src") || strings.Contains(guards, "return") {
					t.Errorf("clients are kept out:\n%s", guards)
				}
			}
		})
	}
}

// TestASolverOfAnotherClusterNeedsTheHost has the Ingress in the first cluster, and the solver in the second.
func TestASolverOfAnotherClusterNeedsTheHost(t *testing.T) {
	got := read(Compile([]Snapshot{
		snapshot(t, "a", app("web")+ingress("main", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")),
		snapshot(t, "b", solver("a.test", "Exact")),
	}))
	if !strings.Contains(got, "cm-acme-http-solver-x HostOwned") || !strings.Contains(got, "prefix a.test/ -> a__default_svc_web_http") ||
		strings.Contains(got, challengePath) {
		t.Error(got)
	}
}

// TestAChallengeInAnIngressThatIsEditedHasItsGuards has the path of a challenge in the Ingress of the host, as with
// acme.cert-manager.io/http01-edit-in-place.
func TestAChallengeInAnIngressThatIsEditedHasItsGuards(t *testing.T) {
	for _, guard := range []string{"", "10.0.0.0/8"} {
		s := snapshot(t, "c", app("web")+app("solver")+ingress("main", 2020, "rules: ["+rule("a.test",
			path("/", "Prefix", "web"), path(challengePath, "Exact", "solver"))+"]"))
		backend := "c__default_svc_solver_http"
		if guard != "" {
			backend = "c__default_ing_main_svc_solver_http"
			s.Ingresses[0].Annotations = map[string]string{"haproxy.org/allow-list": guard}
		}
		r := Compile([]Snapshot{s})
		if got := read(r); !strings.Contains(got, "exact a.test"+challengePath+" -> "+backend+"\n") {
			t.Errorf("guard %q:\n%s", guard, got)
		}
		if guards := guardsOf(t, r, backend); (guards != "") != (guard != "") {
			t.Errorf("guard %q: %s", guard, guards)
		}
	}
}

// TestOnlyChallengesPassTheGuardsOfTheConfigMap asks for the other paths of a host, and for an Ingress
// that sets a guard itself.
func TestOnlyChallengesPassTheGuardsOfTheConfigMap(t *testing.T) {
	const beside = "/.well-known/acme-challenge"
	s := snapshot(t, "c", app("web")+ingress("main", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"),
		path(challengePath, "Exact", "web"), path(beside, "Prefix", "web"))+"]")+
		ingress("own", 2021, "rules: ["+rule("b.test", path(challengePath, "Exact", "web"))+"]"))
	s.Ingresses[1].Annotations = map[string]string{
		"haproxy.org/allow-list": "10.1.0.0/16", "haproxy.org/ssl-redirect": "true",
	}
	s.Options.ConfigMap = "ops/keys"
	m := &corev1.ConfigMap{Data: map[string]string{"allow-list": "10.0.0.0/8", "ssl-redirect": "true", "acme": "true"}}
	m.Namespace, m.Name = "ops", "keys"
	s.ConfigMaps = []*corev1.ConfigMap{m}
	r := Compile([]Snapshot{s})
	const want = "prefix a.test/ -> c__default_svc_web_http (https)\n" +
		"prefix a.test/.well-known/acme-challenge -> c__default_svc_web_http (https)\n" +
		"exact a.test/.well-known/acme-challenge/TOKEN -> c__default_svc_web_http.acme\n" +
		"prefix b.test/ -> 404\n" +
		"exact b.test/.well-known/acme-challenge/TOKEN -> c__default_ing_own_svc_web_http.acme (https)\n" +
		"backend c__default_ing_own_svc_web_http.acme: s_172-16-1-1_8080\n" +
		"backend c__default_svc_web_http: s_172-16-1-1_8080\n" +
		"backend c__default_svc_web_http.acme: s_172-16-1-1_8080\n"
	if diff := cmp.Diff(want, read(r)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	for backend, guarded := range map[string]bool{
		"c__default_svc_web_http": true, "c__default_svc_web_http.acme": false, "c__default_ing_own_svc_web_http.acme": true,
	} {
		if got := guardsOf(t, r, backend) != ""; got != guarded {
			t.Errorf("%s keeps clients out: %t", backend, got)
		}
	}
}

// TestAListOfAllClientsIsNoSettingOfItsOwn lets a solver share the backend of its Service.
func TestAListOfAllClientsIsNoSettingOfItsOwn(t *testing.T) {
	s := snapshot(t, "c", app("web")+ingress("a", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	s.Ingresses[0].Annotations = map[string]string{"haproxy.org/allow-list": "0.0.0.0/0,::/0"}
	if r := Compile([]Snapshot{s}); r.Config.Routes[0].Backend != "c__default_svc_web_http" {
		t.Errorf("got %s", read(r))
	}
}
