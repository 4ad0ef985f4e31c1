package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"sallyport/haproxy"
	"sallyport/ingress/nginx"
)

// TestAHostOfIngressNginxHasOneKindOfPaths checks which paths become regular expressions because of another
// Ingress of the host.
func TestAHostOfIngressNginxHasOneKindOfPaths(t *testing.T) {
	const exact, prefix, any = "Exact", "Prefix", "ImplementationSpecific"
	cause := ingress("cause", 2021, "rules: ["+rule("a.test", path("/x[0-9]", any, "web"))+"]")
	for name, tt := range map[string]struct {
		set   string   // on Ingress cause
		paths []string // of Ingress other
		other string   // annotations of Ingress other
		class string   // of Ingress other, nginx if it is empty
		in    string   // its namespace, default if it is empty
		want  []string // routes of Ingress other
		lone  bool     // cause and other have no host in common
	}{
		"use-regex": {
			set: "use-regex: true", paths: []string{path("/e", exact, "web"), path("/p", prefix, "web"), path("/i", any, "web")},
			want: []string{"regex /(?i:e)", "regex /(?i:i)", "regex /(?i:p)"},
		},
		"rewrite-target":          {set: "rewrite-target: /y", paths: []string{path("/p", prefix, "web")}, want: []string{"regex /(?i:p)"}},
		"rewrite-target, unequal": {set: "rewrite-target: /x[0-9]", paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"}},
		"no annotation":           {paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"}},
		"the root":                {set: "use-regex: true", paths: []string{path("/", exact, "web")}, want: []string{"prefix /"}},
		"a challenge": {
			set: "use-regex: true", paths: []string{path("/.well-known/acme-challenge/t", exact, "web")},
			want: []string{"exact /.well-known/acme-challenge/t"},
		},
		"a path that ingress-nginx refuses": {
			set: "use-regex: true", paths: []string{path("/p(.*)", prefix, "web")}, want: []string{"prefix /p(.*)"},
		},
		"a canary": {set: "use-regex: true, canary: true", paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"}},
		"a key of ours on the cause": {
			set: "use-regex: true, sallyport.dev/path-type: regex", paths: []string{path("/p", prefix, "web")},
			want: []string{"prefix /p"},
		},
		"a key of ours on the other": {
			set: "use-regex: true", other: "sallyport.dev/path-type: begin", paths: []string{path("/p", prefix, "web")},
			want: []string{"prefix /p"},
		},
		"another class": {
			set: "use-regex: true", class: "haproxy", paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"},
		},
		"another namespace": {
			set: "use-regex: true", in: "far", paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"},
		},
		"another host": {
			set: "use-regex: true", lone: true, paths: []string{path("/p", prefix, "web")}, want: []string{"prefix /p"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := "a.test"
			if tt.lone {
				host = "b.test"
			}
			other := ingress("other", 2020, "rules: ["+rule(host, tt.paths...)+"]")
			if tt.in != "" {
				other = of(tt.in, app("web")+other)
			}
			s := snapshot(t, "c", app("web")+cause+other)
			s.Options.OneTenant = true // the host may have Ingresses of two namespaces
			s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
			for _, ing := range s.Ingresses {
				class, said := "nginx", tt.set
				if ing.Name == "other" && tt.class != "" {
					class = tt.class
				}
				if ing.Name == "other" {
					said = tt.other
				}
				ing.Spec.IngressClassName, ing.Annotations = &class, map[string]string{}
				for one := range strings.SplitSeq(said, ", ") {
					key, value, _ := strings.Cut(one, ": ")
					if !strings.Contains(key, "/") {
						key = nginx.Prefix + key
					}
					ing.Annotations[key] = value
				}
			}
			r := Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			var got []string
			for i, ref := range r.Granted() {
				if route := r.Config.Routes[i]; ref.Name == "other" {
					got = append(got, fmt.Sprintf("%s %s", route.Match, route.Path))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q; problems %v", got, tt.want, r.Problems)
			}
		})
	}
}

// TestAHostWithTooManyPathsStaysAsItIs has one path more than a host can have as expressions.
func TestAHostWithTooManyPathsStaysAsItIs(t *testing.T) {
	for more, want := range map[int]int{-1: maxPatterns, 0: 1} {
		var paths []string
		for i := range maxPatterns + more {
			paths = append(paths, path(fmt.Sprintf("/p%d", i), "Prefix", "web"))
		}
		s := snapshot(t, "c", app("web")+ingress("other", 2020, "rules: ["+rule("a.test", paths...)+"]")+
			ingress("cause", 2021, "rules: ["+rule("a.test", path("/x[0-9]", "ImplementationSpecific", "web"))+"]"))
		s.Options.Nginx = nginx.Options{Classes: []string{"nginx"}, Controllers: []string{"k8s.io/ingress-nginx"}}
		for _, ing := range s.Ingresses {
			ing.Spec.IngressClassName = new("nginx")
		}
		var c Compiler
		c.Compile([]Snapshot{s}) // what comes is an amendment
		s.Ingresses = slices.Clone(s.Ingresses)
		at := slices.IndexFunc(s.Ingresses, func(i *networkingv1.Ingress) bool { return i.Name == "cause" })
		s.Ingresses[at] = s.Ingresses[at].DeepCopy()
		s.Ingresses[at].Annotations = map[string]string{nginx.Prefix + "use-regex": "true"}
		for name, r := range map[string]Result{"amended": c.Compile([]Snapshot{s}), "from nothing": Compile([]Snapshot{s})} {
			got := 0
			for _, route := range r.Config.Routes {
				if route.Match == haproxy.Regexp {
					got++
				}
			}
			if got != want || len(r.Problems) != 1-min(-more, 1) {
				t.Errorf("%s: %d expressions, want %d; problems %v", name, got, want, r.Problems)
			}
		}
	}
}
