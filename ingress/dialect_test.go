package ingress

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress/nginx"
)

// ofNginx returns a Snapshot with one Ingress of class nginx for a.test.
func ofNginx(t *testing.T, set map[string]string, paths ...string) Snapshot {
	t.Helper()
	s := snapshot(t, "c", app("web")+ingress("i", 2020, "rules: ["+rule("a.test", paths...)+"]"))
	class := "nginx"
	s.Ingresses[0].Spec.IngressClassName = &class
	s.Ingresses[0].Annotations = map[string]string{}
	for name, value := range set {
		if !strings.Contains(name, "/") {
			name = nginx.Prefix + name
		}
		s.Ingresses[0].Annotations[name] = value
	}
	s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
	return s
}

// lines returns the directives of the only backend, a line each.
func linesOf(t *testing.T, r Result) string {
	t.Helper()
	if len(r.Config.Backends) != 1 {
		t.Fatalf("want one backend:\n%s", read(r))
	}
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	var all []string
	for _, d := range r.Config.Backends[0].Directives {
		all = append(all, d.String())
	}
	return strings.Join(all, "\n")
}

func TestAnIngressOfNginxIsReadWithItsAnnotations(t *testing.T) {
	everything := path("/", "ImplementationSpecific", "web")
	for name, tt := range map[string]struct {
		set   map[string]string
		paths []string
		route string
		has   []string // lines of the backend
		lacks string
		told  []string // reasons
	}{
		"the defaults": {
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has: []string{
				"timeout server 60000ms",
				"http-request deny deny_status 413 if { req.hdr_val(content-length) gt 1048576 }",
			},
		},
		"no bound for bodies": {
			set: map[string]string{"proxy-body-size": "0"}, route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			lacks: "413",
		},
		"a path is a string": {
			paths: []string{path("/a", "ImplementationSpecific", "web")},
			route: "prefix a.test/ -> 404\nbegin a.test/a -> c__default_ing_i_svc_web_http",
		},
		"a rewrite of an expression": {
			set:   map[string]string{"rewrite-target": "/$2"},
			paths: []string{path("/app(/|$)(.*)", "ImplementationSpecific", "web")},
			route: "prefix a.test/ -> 404\nregex a.test/(?i:app(/|$)(.*)) -> c__default_ing_i_svc_web_http",
			has:   []string{"http-request replace-path '(*LIMIT_MATCH=10000)(?i:/app(/|$)(.*))' '/\\2'"},
		},
		"a redirect with the code of nginx": {
			set:   map[string]string{"force-ssl-redirect": "true"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http (https)",
		},
		"a key of ours overrides": {
			set: map[string]string{
				"denylist-source-range": "10.0.0.0/8", "haproxy.org/deny-list": "192.0.2.0/24",
			},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has:   []string{"acl sp_denied src 192.0.2.0/24\nhttp-request deny deny_status 403 if sp_denied"},
			lacks: "10.0.0.0", told: []string{"UnusedAnnotation"},
		},
		"a guard with an invalid value": {
			set: map[string]string{"denylist-source-range": "all"}, route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has: []string{haproxy.Close().String()}, told: []string{"InvalidAnnotation"},
		},
		"a guard with an invalid value, beside a key of ours": {
			set:   map[string]string{"denylist-source-range": "all\n", "haproxy.org/deny-list": "192.0.2.0/24"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has:   []string{"acl sp_denied src 192.0.2.0/24\nhttp-request deny deny_status 403 if sp_denied"},
			told:  []string{"UnusedAnnotation"},
		},
		"a stranger that is asked": {
			set:   map[string]string{"auth-url": "https://idp.test/check"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has:   []string{haproxy.Close().String()}, told: []string{"InvalidAnnotation"},
		},
		"a stranger that is asked, beside a list of ours": {
			set:   map[string]string{"auth-url": "https://idp.test/check", "haproxy.org/deny-list": "192.0.2.0/24"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has:   []string{haproxy.Close().String()}, told: []string{"InvalidAnnotation"},
		},
		"a guard that has no equal": {
			set: map[string]string{"enable-modsecurity": "true"}, route: "prefix a.test/ -> c__default_ing_i_svc_web_http",
			has: []string{haproxy.Close().String()}, told: []string{"GuardNotKept"},
		},
		"a snippet": {
			set:   map[string]string{"configuration-snippet": "more_set_headers \"X: y\";\n"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http", lacks: "X: y",
			has: []string{haproxy.Close().String()}, told: []string{"GuardNotKept"},
		},
		"samples of HAProxy in a value": {
			set:   map[string]string{"upstream-vhost": "%[src].test"},
			route: "prefix a.test/ -> c__default_ing_i_svc_web_http", has: []string{"%%[src].test"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.paths == nil {
				tt.paths = []string{everything}
			}
			r := Compile([]Snapshot{ofNginx(t, tt.set, tt.paths...)})
			got := linesOf(t, r)
			for _, line := range tt.has {
				if !strings.Contains(got, line) {
					t.Errorf("want %q in\n%s", line, got)
				}
			}
			if tt.lacks != "" && strings.Contains(got, tt.lacks) {
				t.Errorf("want no %q in\n%s", tt.lacks, got)
			}
			route, _, _ := strings.Cut(read(r), "\nbackend ")
			if diff := cmp.Diff(tt.route, route); diff != "" {
				t.Errorf("routes: want (-), got (+):\n%s", diff)
			}
			for _, route := range r.Config.Routes {
				if route.TLSOnly && route.TLSCode != 308 {
					t.Errorf("the redirect has code %d", route.TLSCode)
				}
			}
			var told []string
			for _, p := range r.Problems {
				told = append(told, p.Reason)
			}
			if diff := cmp.Diff(tt.told, told); diff != "" {
				t.Errorf("problems: want (-), got (+):\n%s\n%v", diff, r.Problems)
			}
		})
	}
}

// TestOnlyTheClassOfTheDialectIsReadWithIt has an Ingress with a guard of ingress-nginx, in each class.
func TestOnlyTheClassOfTheDialectIsReadWithIt(t *testing.T) {
	class := func(name, controller string) *networkingv1.IngressClass {
		return &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: controller},
		}
	}
	for name, tt := range map[string]struct {
		class   string // that the Ingress names
		classes []*networkingv1.IngressClass
		without bool // the configuration names no class of ingress-nginx
		want    string
	}{
		"by the name, while classes cannot be read": {class: "nginx", want: "closed"},
		"by a second name":                          {class: "inner", want: "closed"},
		"without the setting":                       {class: "nginx", without: true, want: "none"},
		"of ours":                                   {class: "haproxy", want: "open"},
		"by the controller": {
			class: "web", classes: []*networkingv1.IngressClass{class("web", "k8s.io/ingress-nginx")}, want: "closed",
		},
		"by a second controller": {
			class: "web", classes: []*networkingv1.IngressClass{class("web", "k8s.io/inner")}, want: "closed",
		},
		"of our controller": {
			class: "nginx", classes: []*networkingv1.IngressClass{class("nginx", "haproxy.org/ingress-controller")},
			want: "open",
		},
		"of another controller": {
			class: "nginx", classes: []*networkingv1.IngressClass{class("nginx", "other")}, want: "none",
		},
		"that does not exist": {
			class: "nginx", classes: []*networkingv1.IngressClass{class("web", "other")}, want: "none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ofNginx(t, map[string]string{"enable-modsecurity": "true"}, path("/", "Prefix", "web"))
			s.Ingresses[0].Spec.IngressClassName = &tt.class
			s.Classes, s.NoClasses = tt.classes, tt.classes == nil
			s.Options.Nginx = nginx.Options{
				Classes: []string{"nginx", "inner"}, Controllers: []string{"k8s.io/ingress-nginx", "k8s.io/inner"},
			}
			if tt.without {
				s.Options.Nginx = nginx.Options{}
			}
			r := Compile([]Snapshot{s})
			got := "none"
			if len(r.Config.Backends) == 1 {
				got = "open"
				if slices.Contains(r.Config.Backends[0].Directives, haproxy.Close()) {
					got = "closed"
				}
			}
			if got != tt.want {
				t.Errorf("want %s, got %s\n%s", tt.want, got, read(r))
			}
		})
	}
}

// TestTheDialectCanComeAndGo changes the class and the settings while the Ingress stays the same object.
func TestTheDialectCanComeAndGo(t *testing.T) {
	s := ofNginx(t, map[string]string{"enable-modsecurity": "true"}, path("/", "Prefix", "web"))
	var c Compiler
	for i, change := range []func(){
		func() {},
		func() { s.Options.Nginx.Without = []string{"enable-modsecurity"} },
		func() { s.Options.Nginx = nginx.Options{} },
		func() { s.Options.Class = "nginx" },
		func() {
			s.NoClasses = false
			s.Classes = []*networkingv1.IngressClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "nginx"},
				Spec:       networkingv1.IngressClassSpec{Controller: "k8s.io/ingress-nginx"},
			}}
			s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/inner"}}
		},
		func() { s.Options.Nginx.Controllers = []string{"k8s.io/inner", "k8s.io/ingress-nginx"} },
		func() { s.Classes, s.NoClasses = nil, true },
		func() { s.Options.Nginx.Classes = []string{"web"} },
		func() { s.Options.Nginx.Classes = []string{"web", "nginx"} },
	} {
		change()
		got, want := c.Compile([]Snapshot{s}), Compile([]Snapshot{s})
		if diff := cmp.Diff(read(want), read(got)); diff != "" {
			t.Errorf("after change %d: from nothing (-), remembered (+):\n%s", i, diff)
		}
		if len(got.Config.Backends) > 0 && linesOf(t, got) != linesOf(t, want) {
			t.Errorf("after change %d: %s", i, linesOf(t, got))
		}
	}
}

func TestTheSecretsOfTheDialectAreNamed(t *testing.T) {
	s := ofNginx(t, map[string]string{
		"auth-type": "basic", "auth-secret": "users", "auth-tls-secret": "default/ca",
		"haproxy.org/server-crt": "pair",
	}, path("/", "Prefix", "web"))
	keys, _, _ := s.AllNamed()
	var got []string
	for _, key := range keys {
		got = append(got, key.Name)
	}
	if diff := cmp.Diff([]string{"ca", "pair", "users"}, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestASecretOfAnotherNamespaceClosesAnIngressOfNginx has guards that name a Secret of namespace far, which exists
// there.
func TestASecretOfAnotherNamespaceClosesAnIngressOfNginx(t *testing.T) {
	for name, set := range map[string]map[string]string{
		"passwords":              {"auth-type": "basic", "auth-secret": "far/users"},
		"authority of clients":   {"auth-tls-secret": "far/ca"},
		"certificate for server": {"backend-protocol": "HTTPS", "proxy-ssl-secret": "far/ca", "proxy-ssl-verify": "on"},
	} {
		t.Run(name, func(t *testing.T) {
			s := ofNginx(t, set, path("/", "Prefix", "web"))
			far := snapshot(t, "c", of("far", secretText(t, "ca", certificate{names: []string{"a.test"}})+
				"---\napiVersion: v1\nkind: Secret\nmetadata: {name: users}\nstringData: {auth: \"a:$2y$05$"+
				strings.Repeat("a", 53)+"\"}\n"))
			s.Secrets = append(s.Secrets, far.Secrets...)
			r := Compile([]Snapshot{s})
			if len(r.Config.Backends) != 1 || !slices.Contains(r.Config.Backends[0].Directives, haproxy.Close()) {
				t.Errorf("all clients should be rejected:\n%s", read(r))
			}
			told := func(p Problem) bool { return strings.Contains(p.Why, "far/") && strings.Contains(p.Why, "namespace") }
			if !slices.ContainsFunc(r.Problems, told) {
				t.Errorf("no problem tells of the namespace: %+v", r.Problems)
			}
		})
	}
}

// TestTheDialectCostsNobodyElse compiles a cluster that has no Ingress of ingress-nginx, with the dialect and without.
// It also changes an Ingress.
func TestTheDialectCostsNobodyElse(t *testing.T) {
	var made []int
	var texts []string
	for _, classes := range [][]string{nil, {"nginx"}} {
		s, c := manyServices(100), new(Compiler)
		s.Options.Nginx = nginx.Options{Classes: classes, Controllers: []string{"k8s.io/ingress-nginx"}}
		first := c.Compile([]Snapshot{s})
		made = append(made, c.made.claims, c.made.routed, c.made.parts)
		after := c.Compile([]Snapshot{withPath(s, 50, "/other")})
		made = append(made, c.made.claims, c.made.routed, c.made.parts)
		text := ""
		for _, r := range []Result{first, after} {
			w := write(&r.Config)
			for _, name := range sortedKeys(w.sections) {
				text += name + "\n" + w.sections[name]
			}
		}
		texts = append(texts, text)
	}
	if half := len(made) / 2; !slices.Equal(made[:half], made[half:]) {
		t.Errorf("it makes %v without the dialect, and %v with it", made[:half], made[half:])
	}
	if diff := cmp.Diff(texts[0], texts[1]); diff != "" || !strings.Contains(texts[0], "server s_") {
		t.Errorf("without the dialect (-), with it (+):\n%s", diff)
	}
}
