package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestAHostHasItsPathsUnderFurtherNames checks server-alias, of both controllers.
func TestAHostHasItsPathsUnderFurtherNames(t *testing.T) {
	const alias = "sallyport.dev/server-alias"
	for name, tt := range map[string]struct {
		set   string // on the first Ingress, of a.test, with paths / and /x
		other string // more Ingresses
		want  string // the routes, and the reasons of Problems
	}{
		"two names": {
			set:  "b.test, C.test",
			want: "a.test/ a.test/x b.test/ b.test/x c.test/ c.test/x",
		},
		"the paths of another Ingress of the host": {
			set: "b.test", other: ingress("y", 2021, "rules: ["+rule("a.test", path("/y", "Prefix", "web"))+"]"),
			want: "a.test/ a.test/x a.test/y b.test/ b.test/x b.test/y",
		},
		"a name that a younger rule has": {
			set: "b.test", other: ingress("y", 2021, "rules: ["+rule("b.test", path("/", "Prefix", "web"))+"]"),
			want: "a.test/ a.test/x b.test/ AliasConflict",
		},
		"a name with the challenge of an ACME server": {
			set: "b.test", other: ingress("y", 2021, "rules: ["+rule("b.test",
				path("/.well-known/acme-challenge/t", "Exact", "web"))+"]"),
			want: "a.test/ a.test/x b.test/ b.test/.well-known/acme-challenge/t b.test/x",
		},
		"a name of another namespace": {
			set: "b.test", other: strings.ReplaceAll(ingress("y", 2019, "rules: ["+
				rule("b.test", path("/", "Prefix", "web"))+"]"), "namespace: default", "namespace: other"),
			want: "a.test/ a.test/x b.test/ HostOwned ServiceNotFound",
		},
		"a name that the first alias has": {
			set: "b.test", other: strings.ReplaceAll(ingress("y", 2021, "rules: ["+
				rule("y.test", path("/y", "Prefix", "web"))+"]"), "{name: y,", "{name: y, annotations: {"+alias+": b.test},"),
			want: "a.test/ a.test/x b.test/ b.test/x y.test/ y.test/y AliasConflict",
		},
		"no name":       {set: ",", want: "a.test/ a.test/x InvalidAnnotation"},
		"an address":    {set: "10.0.0.1", want: "a.test/ a.test/x InvalidAnnotation"},
		"a wildcard":    {set: "*.test", want: "a.test/ a.test/x InvalidAnnotation"},
		"its own name":  {set: "a.test", want: "a.test/ a.test/x AliasConflict"},
		"an expression": {set: "~^b", want: "a.test/ a.test/x InvalidAnnotation"},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, "c", app("web")+ingress("i", 2020, "rules: ["+
				rule("a.test", path("/", "Prefix", "web"), path("/x", "Prefix", "web"))+"]")+tt.other)
			for _, ing := range s.Ingresses {
				if ing.Name == "i" {
					ing.Annotations = map[string]string{alias: tt.set}
				}
			}
			var c Compiler
			r := c.Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			var got []string
			for _, route := range r.Config.Routes {
				got = append(got, route.Host+route.Path)
			}
			slices.Sort(got)
			for _, p := range r.Problems {
				got = append(got, p.Reason)
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("got  %s\nwant %s\n%v", got, tt.want, r.Problems)
			}
		})
	}
}

// TestAnAliasIsServedWithItsCertificateAndGoesAgain changes an Ingress with an alias, and one of the same host.
func TestAnAliasIsServedWithItsCertificateAndGoesAgain(t *testing.T) {
	s := snapshot(t, "c", app("web")+secretText(t, "tls", certificate{names: []string{"a.test", "b.test"}})+
		ingress("i", 2020, "tls: [{hosts: [a.test], secretName: tls}], rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")+
		ingress("y", 2021, "rules: ["+rule("a.test", path("/y", "Prefix", "web"))+"]"))
	set := func(name, annotation, value string) {
		s.Ingresses = slices.Clone(s.Ingresses)
		for i, ing := range s.Ingresses {
			if ing.Name == name {
				s.Ingresses[i] = ing.DeepCopy()
				s.Ingresses[i].Annotations = map[string]string{annotation: value}
			}
		}
	}
	var c Compiler
	c.Compile([]Snapshot{s})
	for _, step := range []struct{ on, key, value, want string }{
		{"i", "sallyport.dev/server-alias", "b.test", "a.test/ a.test/y b.test/ b.test/y"},
		{"y", "haproxy.org/timeout-server", "5s", "a.test/ a.test/y b.test/ b.test/y"},
		{"i", "sallyport.dev/server-alias", "d.test", "a.test/ a.test/y d.test/ d.test/y"},
		{"i", "haproxy.org/timeout-server", "5s", "a.test/ a.test/y"},
	} {
		set(step.on, step.key, step.value)
		r := c.Compile([]Snapshot{s})
		var got []string
		for _, route := range r.Config.Routes {
			got = append(got, route.Host+route.Path)
			if strings.HasSuffix(route.Path, "/") && !route.TLSOnly {
				t.Errorf("%s is served by plain HTTP", route.Host+route.Path)
			}
		}
		slices.Sort(got)
		if got := strings.Join(got, " "); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
		if whole := Compile([]Snapshot{s}); len(whole.Config.Routes) != len(r.Config.Routes) {
			t.Errorf("from nothing there are %v", whole.Config.Routes)
		}
	}
}

// TestFurtherNamesAddNoMorePathsThanANamespaceMayHave has Ingresses of one host that each give it further
// names. Without a bound, the paths would be as many as the cube of the Ingresses.
func TestFurtherNamesAddNoMorePathsThanANamespaceMayHave(t *testing.T) {
	const ingresses, most = 12, 100
	var all strings.Builder
	all.WriteString(app("web"))
	for i := range ingresses {
		all.WriteString(ingress(fmt.Sprintf("i%02d", i), 2020+i, "rules: ["+
			rule("a.test", path(fmt.Sprintf("/%d", i), "Prefix", "web"))+"]"))
	}
	s := snapshot(t, "c", all.String())
	s.Options.Limits = Limits{Paths: most}
	for i, ing := range s.Ingresses {
		ing.Annotations = map[string]string{
			"sallyport.dev/server-alias": fmt.Sprintf("n%d-0.test n%d-1.test", i, i),
		}
	}
	r := Compile([]Snapshot{s})
	served := make(map[string]int)
	for _, route := range r.Config.Routes {
		if route.Path != "/" {
			served[route.Host]++
		}
	}
	// A name takes a path, and one more place, of each Ingress: four names fit.
	if len(served) != 1+most/(2*ingresses) {
		t.Errorf("served are %v", served)
	}
	refused := 0
	for _, p := range r.Problems {
		if p.Reason == "LimitReached" && strings.Contains(p.Why, "further names add more than 100 paths") {
			refused++
		}
	}
	if want := 2*ingresses - most/(2*ingresses); refused != want {
		t.Errorf("%d names are refused, want %d: %v", refused, want, r.Problems)
	}
	for host, paths := range served {
		if paths != ingresses {
			t.Errorf("%s has %d paths of %d", host, paths, ingresses)
		}
	}
}
