package ingress

import (
	"slices"
	"strings"
	"testing"

	"sallyport/haproxy"
)

const wwwKey = "sallyport.dev/from-to-www-redirect"

// redirects returns the names that a Result redirects, the other routes, and the reasons of its Problems.
func redirects(r Result) string {
	var got []string
	for _, route := range r.Config.Routes {
		switch route.Backend {
		case "": // what no path of the host matches
		case haproxy.WWW:
			got = append(got, route.Host+">"+haproxy.OtherName(route.Host))
		default:
			got = append(got, route.Host+route.Path)
		}
	}
	slices.Sort(got)
	for _, p := range r.Problems {
		got = append(got, p.Reason)
	}
	return strings.Join(got, " ")
}

// TestANameWithOrWithoutWWWIsRedirected checks from-to-www-redirect.
func TestANameWithOrWithoutWWWIsRedirected(t *testing.T) {
	elsewhere := func(manifest string) string {
		return strings.ReplaceAll(manifest, "namespace: default", "namespace: other")
	}
	for name, tt := range map[string]struct {
		hosts []string // of the first Ingress
		set   string   // more annotations
		other string   // more Ingresses
		want  string
	}{
		"to the name without it": {hosts: []string{"a.test"}, want: "a.test/ www.a.test>a.test"},
		"to the name with it":    {hosts: []string{"www.a.test"}, want: "a.test>www.a.test www.a.test/"},
		"of each host": {
			hosts: []string{"a.test", "www.b.test"}, want: "a.test/ b.test>www.b.test www.a.test>a.test www.b.test/",
		},
		"both are hosts": {
			hosts: []string{"a.test", "www.a.test"}, want: "a.test/ www.a.test/ UnusedAnnotation UnusedAnnotation",
		},
		"a wildcard host, and any host": {hosts: []string{"*.a.test", ""}, want: "*.a.test/ /"},
		"beside a wildcard host": {
			hosts: []string{"*.a.test", "a.test"}, want: "*.a.test/ a.test/ www.a.test>a.test",
		},
		"what would be an address": {hosts: []string{"www.10.0.0.1"}, want: "www.10.0.0.1/"},
		"an older Ingress of the namespace has the name": {
			hosts: []string{"a.test"}, other: ingress("z", 2019, "rules: ["+rule("www.a.test", path("/x", "Prefix", "web"))+"]"),
			want: "a.test/ www.a.test/x UnusedAnnotation",
		},
		"a younger Ingress of the namespace has the name": {
			hosts: []string{"a.test"}, other: ingress("z", 2021, "rules: ["+rule("www.a.test", path("/x", "Prefix", "web"))+"]"),
			want: "a.test/ www.a.test/x UnusedAnnotation",
		},
		"an older Ingress of another namespace has the name": {
			hosts: []string{"a.test"},
			other: elsewhere(ingress("z", 2019, "rules: ["+rule("www.a.test", path("/x", "Prefix", "web"))+"]")),
			want:  "a.test/ www.a.test/x HostOwned ServiceNotFound",
		},
		"a younger Ingress of another namespace has the name": {
			hosts: []string{"a.test"},
			other: elsewhere(ingress("z", 2021, "rules: ["+rule("www.a.test", path("/x", "Prefix", "web"))+"]")),
			want:  "a.test/ www.a.test>a.test HostOwned",
		},
		"the host belongs to another namespace": {
			hosts: []string{"a.test"},
			other: elsewhere(ingress("z", 2019, "rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]")),
			want:  "a.test/x HostOwned ServiceNotFound",
		},
		"a further name of a host": {
			hosts: []string{"a.test"}, set: ", sallyport.dev/server-alias: www.a.test",
			want: "a.test/ www.a.test/ UnusedAnnotation",
		},
		"the challenge of an ACME server": {
			hosts: []string{"a.test"}, other: ingress("z", 2021, "rules: ["+rule("www.a.test",
				path("/.well-known/acme-challenge/t", "Exact", "web"))+"]"),
			want: "a.test/ www.a.test/.well-known/acme-challenge/t www.a.test>a.test",
		},
		"a canary": {hosts: []string{"a.test"}, set: ", sallyport.dev/canary-weight: '5'", want: "CanaryOfNothing"},
	} {
		t.Run(name, func(t *testing.T) {
			var rules []string
			for _, host := range tt.hosts {
				rules = append(rules, rule(host, path("/", "Prefix", "web")))
			}
			text := ingress("i", 2020, "rules: ["+strings.Join(rules, ", ")+"]")
			text = strings.Replace(text, "{name: i,", "{name: i, annotations: {"+wwwKey+": 'true'"+tt.set+"},", 1)
			r := Compile([]Snapshot{snapshot(t, "c", app("web")+text+tt.other)})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			if got := redirects(r); got != tt.want {
				t.Errorf("got  %s\nwant %s\n%v", got, tt.want, r.Problems)
			}
		})
	}
}

// TestARedirectedNameHasTheCertificateThatIsForIt checks the certificates of redirected names.
func TestARedirectedNameHasTheCertificateThatIsForIt(t *testing.T) {
	for name, tt := range map[string]struct {
		names []string // of the certificate
		hosts string   // of the entry
		want  []string
	}{
		"for both":                         {[]string{"a.test", "www.a.test"}, "[a.test]", []string{"a.test", "www.a.test"}},
		"both are in the entry":            {[]string{"a.test", "www.a.test"}, "[a.test, www.a.test]", []string{"a.test", "www.a.test"}},
		"for the host alone":               {[]string{"a.test"}, "[a.test]", []string{"a.test"}},
		"a wildcard that has the host":     {[]string{"*.test", "www.a.test"}, "['*.test']", []string{"*.test", "www.a.test"}},
		"a wildcard that has another host": {[]string{"*.w.test", "www.a.test"}, "['*.w.test']", []string{"*.w.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := ingress("i", 2020, "tls: [{hosts: "+tt.hosts+", secretName: tls}], rules: ["+
				rule("a.test", path("/", "Prefix", "web"))+"]")
			text = strings.Replace(text, "{name: i,", "{name: i, annotations: {"+wwwKey+": 'true'},", 1)
			r := Compile([]Snapshot{snapshot(t, "c", app("web")+secretText(t, "tls", certificate{names: tt.names})+text)})
			var got []string
			for _, c := range r.Config.Certs {
				got = append(got, c.Hosts...)
			}
			slices.Sort(got)
			if !slices.Equal(got, tt.want) || len(r.Problems) > 0 {
				t.Errorf("the certificate is shown for %q, want %q; problems %v", got, tt.want, r.Problems)
			}
		})
	}
}

// TestARedirectedNameComesAndGoes changes Ingresses beside one with a redirected name.
func TestARedirectedNameComesAndGoes(t *testing.T) {
	s := snapshot(t, "c", app("web")+ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")+
		ingress("z", 2021, "rules: ["+rule("b.test", path("/y", "Prefix", "web"))+"]"))
	var c Compiler
	c.Compile([]Snapshot{s})
	for _, step := range []struct{ on, value, host, want string }{
		{"i", "true", "a.test", "a.test/ b.test/y www.a.test>a.test"},
		{"z", "false", "www.a.test", "a.test/ www.a.test/y UnusedAnnotation"},
		{"z", "false", "b.test", "a.test/ b.test/y www.a.test>a.test"},
		{"z", "true", "www.a.test", "a.test/ www.a.test/y UnusedAnnotation UnusedAnnotation"},
		{"i", "false", "a.test", "a.test/ www.a.test/y UnusedAnnotation"},
		{"i", "false", "c.test", "a.test>www.a.test c.test/ www.a.test/y"},
	} {
		s.Ingresses = slices.Clone(s.Ingresses)
		for i, ing := range s.Ingresses {
			if ing.Name == step.on {
				s.Ingresses[i] = ing.DeepCopy()
				s.Ingresses[i].Annotations = map[string]string{wwwKey: step.value}
				s.Ingresses[i].Spec.Rules[0].Host = step.host
			}
		}
		r := c.Compile([]Snapshot{s})
		if got := redirects(r); got != step.want {
			t.Errorf("got  %s\nwant %s", got, step.want)
		}
		if whole := Compile([]Snapshot{s}); redirects(whole) != step.want {
			t.Errorf("from nothing: %s", redirects(whole))
		}
	}
}
