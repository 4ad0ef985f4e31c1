package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// of returns manifests with their objects moved into a namespace.
func of(namespace, manifests string) string {
	return strings.ReplaceAll(manifests, "namespace: default", "namespace: "+namespace)
}

func TestAHostBelongsToOneParty(t *testing.T) {
	host := func(name string, year int, host string, paths ...string) string {
		return ingress(name, year, "rules: ["+rule(host, paths...)+"]")
	}
	root := path("/", "Prefix", "web")
	const shop, evil = "backend shop_svc_web_http: s_172-16-1-1_8080\n",
		"backend evil_svc_web_http: s_172-16-1-1_8080\n"
	for name, tt := range map[string]struct {
		manifests string // Ingresses; both namespaces have a Service web
		hosts     []HostRule
		one       bool // tenant
		owners    map[string]string
		want      string
	}{
		"the oldest has all of it": {
			manifests: of("shop", host("a", 2020, "a.test", path("/x", "Prefix", "web"))) +
				of("evil", host("b", 2021, "a.test", root, path("/x/y", "Exact", "web"))),
			want: "prefix a.test/ -> 404\nprefix a.test/x -> shop_svc_web_http\n" + shop +
				"problem Ingress evil/b HostOwned\n",
		},
		"younger Ingresses of the namespace too": {
			manifests: of("shop", host("a", 2020, "a.test", root)+
				host("c", 2022, "a.test", path("/c", "Prefix", "web"))) +
				of("evil", host("b", 2021, "a.test", path("/c", "Prefix", "web"))),
			want: "prefix a.test/ -> shop_svc_web_http\nprefix a.test/c -> shop_svc_web_http\n" + shop +
				"problem Ingress evil/b HostOwned\n",
		},
		"of one age, the first by name": {
			manifests: of("shop", host("a", 2020, "a.test", root)) + of("evil", host("b", 2020, "a.test", root)),
			want:      "prefix a.test/ -> evil_svc_web_http\n" + evil + "problem Ingress shop/a HostOwned\n",
		},
		"whoever had it keeps it": {
			manifests: of("shop", host("c", 2022, "a.test", root)) + of("evil", host("b", 2021, "a.test", root)),
			owners:    map[string]string{"a.test": "shop"},
			want:      "prefix a.test/ -> shop_svc_web_http\n" + shop + "problem Ingress evil/b HostOwned\n",
		},
		"until nothing of theirs names it": {
			manifests: of("shop", host("c", 2022, "c.test", root)) + of("evil", host("b", 2021, "a.test", root)),
			owners:    map[string]string{"a.test": "shop"},
			want:      "prefix a.test/ -> evil_svc_web_http\nprefix c.test/ -> shop_svc_web_http\n" + evil + shop,
		},
		"a TLS entry names a host": {
			manifests: of("shop", ingress("a", 2020, "tls: [{hosts: [a.test], secretName: none}], "+fallback("web"))) +
				of("evil", host("b", 2021, "a.test", root)),
			want: "default -> shop_svc_web_http\n" + shop +
				"problem Ingress evil/b HostOwned\nproblem Ingress shop/a SecretNotFound\n",
		},
		"and one of others is not used": {
			manifests: of("shop", host("a", 2020, "a.test", root)) +
				of("evil", ingress("b", 2021, "tls: [{hosts: [a.test], secretName: none}]")),
			want: "prefix a.test/ -> shop_svc_web_http\n" + shop + "problem Ingress evil/b HostOwned\n",
		},
		"a wildcard host does not reach into a host of others": {
			manifests: of("evil", host("b", 2019, "*.test", root)) +
				of("shop", host("a", 2020, "a.test", path("/x", "Prefix", "web"))),
			want: "prefix *.test/ -> evil_svc_web_http\nprefix a.test/ -> 404\nprefix a.test/x -> shop_svc_web_http\n" +
				evil + shop,
		},
		"nor into one that is named by a TLS entry alone": {
			manifests: of("evil", host("b", 2019, "*.test", root)) +
				of("shop", ingress("a", 2020, "tls: [{hosts: [a.test], secretName: none}]")),
			want: "prefix *.test/ -> evil_svc_web_http\nprefix a.test/ -> 404\n" + evil +
				"problem Ingress shop/a SecretNotFound\n",
		},
		"rules without a host answer for hosts that a TLS entry of theirs names": {
			manifests: of("shop", ingress("a", 2020, "tls: [{hosts: [a.test], secretName: none}], rules: ["+
				rule("", root)+"]")),
			want: "prefix / -> shop_svc_web_http\n" + shop + "problem Ingress shop/a SecretNotFound\n",
		},
		"a challenge leaves the rest of its host to the wildcard host": {
			manifests: of("shop", host("b", 2019, "*.test", root, path("/y", "Prefix", "web"))+
				host("a", 2020, "a.test", path("/.well-known/acme-challenge/x", "Exact", "web"))),
			want: "prefix *.test/ -> shop_svc_web_http\nprefix *.test/y -> shop_svc_web_http\n" +
				"prefix a.test/ -> shop_svc_web_http\n" +
				"exact a.test/.well-known/acme-challenge/x -> shop_svc_web_http\n" +
				"prefix a.test/y -> shop_svc_web_http\n" + shop,
		},
		"or to the rules without a host": {
			manifests: of("shop", host("b", 2019, "", root)+
				host("a", 2020, "a.test", path("/.well-known/acme-challenge/x", "Exact", "web"))),
			want: "prefix / -> shop_svc_web_http\nprefix a.test/ -> shop_svc_web_http\n" +
				"exact a.test/.well-known/acme-challenge/x -> shop_svc_web_http\n" + shop,
		},
		"but not to a wildcard host of others": {
			manifests: of("evil", host("b", 2019, "*.test", root)) +
				of("shop", host("a", 2020, "a.test", path("/.well-known/acme-challenge/x", "Exact", "web"))),
			want: "prefix *.test/ -> evil_svc_web_http\nprefix a.test/ -> 404\n" +
				"exact a.test/.well-known/acme-challenge/x -> shop_svc_web_http\n" + evil + shop,
		},
		"nor if the host has another path": {
			manifests: of("shop", host("b", 2019, "*.test", root)+host("a", 2020, "a.test",
				path("/.well-known/acme-challenge/x", "Exact", "web"), path("/z", "Prefix", "web"))),
			want: "prefix *.test/ -> shop_svc_web_http\nprefix a.test/ -> 404\n" +
				"exact a.test/.well-known/acme-challenge/x -> shop_svc_web_http\n" +
				"prefix a.test/z -> shop_svc_web_http\n" + shop,
		},
		"a tenant's default is not for others' hosts": {
			manifests: of("shop", host("a", 2020, "a.test", path("/x", "Prefix", "web"))) +
				of("evil", ingress("b", 2019, fallback("web"))),
			want: "prefix a.test/ -> 404\nprefix a.test/x -> shop_svc_web_http\ndefault -> evil_svc_web_http\n" + evil +
				shop,
		},
		"hosts without a name are a host": {
			manifests: of("shop", host("a", 2020, "", path("/x", "Prefix", "web"))) +
				of("evil", ingress("b", 2021, fallback("web"))),
			want: "prefix /x -> shop_svc_web_http\n" + shop + "problem Ingress evil/b HostOwned\n",
		},
		"a host can be reserved": {
			manifests: of("evil", host("b", 2019, "a.test", root)) + of("shop", host("a", 2020, "a.test", root)),
			hosts:     []HostRule{{Host: "a.test", Namespaces: []string{"shop"}}},
			want:      "prefix a.test/ -> shop_svc_web_http\n" + shop + "problem Ingress evil/b HostOwned\n",
		},
		"before anybody names it": {
			manifests: of("evil", host("b", 2019, "x.a.test", root)),
			hosts:     []HostRule{{Host: "*.a.test", Namespaces: []string{"shop"}}},
			want:      "problem Ingress evil/b HostOwned\n",
		},
		"or shared": {
			manifests: of("shop", host("a", 2020, "a.test", root)) +
				of("evil", host("b", 2021, "a.test", root, path("/y", "Prefix", "web"))),
			hosts: []HostRule{{Host: "a.test", Namespaces: []string{"shop", "evil"}}},
			want: "prefix a.test/ -> shop_svc_web_http\nprefix a.test/y -> evil_svc_web_http\n" + evil + shop +
				"problem Ingress evil/b PathConflict\n",
		},
		"the first rule that matches counts": {
			manifests: of("evil", host("b", 2019, "b.test", root)) + of("shop", host("a", 2020, "a.test", root)),
			hosts:     []HostRule{{Host: "a.test", Namespaces: []string{"*"}}, {Host: "*"}},
			want:      "prefix a.test/ -> shop_svc_web_http\n" + shop + "problem Ingress evil/b HostOwned\n",
		},
		"of one tenant the oldest path wins": {
			manifests: of("shop", host("a", 2020, "a.test", root)) +
				of("evil", host("b", 2021, "a.test", root, path("/y", "Prefix", "web"))),
			one: true,
			want: "prefix a.test/ -> shop_svc_web_http\nprefix a.test/y -> evil_svc_web_http\n" + evil + shop +
				"problem Ingress evil/b PathConflict\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, of("shop", app("web"))+of("evil", app("web"))+tt.manifests)
			s.Options.Hosts, s.Options.OneTenant = tt.hosts, tt.one
			if tt.owners != nil {
				s.Owners = &Owners{Namespaces: tt.owners}
			}
			r := Compile([]Snapshot{s})
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			s.Owners = r.Owners[Unnamed]
			if again := Compile([]Snapshot{s}); read(again) != read(r) || again.Owners[Unnamed] != s.Owners {
				t.Errorf("with the owners it named itself:\n%s", read(again))
			}
		})
	}
}

func TestACertificateIsNotShownForAnothersHost(t *testing.T) {
	wild := secretText(t, "tls", certificate{names: []string{"*.test", "c.test"}})
	text := of("evil", app("web")+wild+
		ingress("b", 2019, "tls: [{hosts: ['*.test'], secretName: tls}], rules: ["+
			rule("b.test", path("/", "Prefix", "web"))+"]")) +
		of("shop", app("web")+ingress("a", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")) +
		of("late", wild+ingress("c", 2021, "tls: [{secretName: tls}]"))
	r := Compile([]Snapshot{snapshot(t, Unnamed, text)})
	if len(r.Config.Certs) != 2 {
		t.Fatalf("certificates %v, want two", r.Config.Certs)
	}
	for i, want := range []struct {
		hosts, except []string
	}{{[]string{"*.test"}, []string{"a.test"}}, {[]string{"c.test"}, nil}} {
		if c := r.Config.Certs[i]; cmp.Diff(want.hosts, c.Hosts) != "" || cmp.Diff(want.except, c.Except) != "" {
			t.Errorf("%s is for %q but %q, want %q but %q", c.Name, c.Hosts, c.Except, want.hosts, want.except)
		}
	}
}

func TestACertificateOfManyHostsHasSeveralEntries(t *testing.T) {
	s := snapshot(t, Unnamed, secretText(t, "tls", certificate{names: []string{"*.test"}})+
		ingress("a", 2020, "tls: [{hosts: [x.test], secretName: tls}]"))
	entry := &s.Ingresses[0].Spec.TLS[0]
	for i := range 1000 {
		entry.Hosts = append(entry.Hosts, strings.Repeat("h", 1+i%60)+".d"+strings.Repeat("i", 1+i/60)+".test")
	}
	s.Ingresses[0].Spec.Rules = []networkingv1.IngressRule{{Host: "x.test"}}
	r := Compile([]Snapshot{s})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, c := range r.Config.Certs {
		for _, h := range c.Hosts {
			seen[h] = true
		}
	}
	if len(seen) != 1001 {
		t.Errorf("%d hosts have the certificate, want 1001", len(seen))
	}
}

// drawClaims changes some Ingresses of a cluster, which claim few hosts for few namespaces.
func drawClaims(t *rapid.T, s *Snapshot) {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	for range rapid.IntRange(0, 2).Draw(t, "changes") {
		ing := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{
			Namespace: one("namespace", "m", "n"), Name: one("name", "i", "j"),
			CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 4).Draw(t, "age")), 0),
		}}
		kind := networkingv1.PathTypePrefix
		backend := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: "web",
			Port: networkingv1.ServiceBackendPort{Number: 80},
		}}
		for range rapid.IntRange(1, 2).Draw(t, "rules") {
			ing.Spec.Rules = append(ing.Spec.Rules, networkingv1.IngressRule{
				Host: one("host", "a.test", "b.test", "*.test"),
				IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{
						Path: one("path", "/", "/x"), PathType: &kind,
						Backend: backend,
					}},
				}},
			})
		}
		s.Ingresses = change(t, s.Ingresses, ing, rapid.IntRange(0, 2).Draw(t, "gone") == 0)
	}
}

// TestAClusterThatComesLateHasWhatItHadFromTheStart lets two members of a group follow one
// history. One of them does not know the first cluster at the beginning. Once it does, both
// serve the same.
func TestAClusterThatComesLateHasWhatItHadFromTheStart(t *testing.T) {
	given, overridden := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		one, two := Snapshot{Cluster: "one"}, Snapshot{Cluster: "two"}
		at := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
		after := time.Duration(rapid.IntRange(0, 2).Draw(t, "released after")) * time.Hour
		for _, s := range []*Snapshot{&one, &two} {
			s.Options.ReleaseAfter = after
			s.Options.WatchWithoutClass, s.Options.OneTenant = true, rapid.Bool().Draw(t, "trust")
			s.At = at
		}
		drawClaims(t, &one)
		var members [2]struct {
			Compiler
			owners map[string]*Owners
			result Result
		}
		late := rapid.IntRange(1, 5).Draw(t, "unknown until")
		for step := range rapid.IntRange(6, 12).Draw(t, "steps") {
			drawClaims(t, &two)
			if step > late {
				drawClaims(t, &one)
			}
			at = at.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "minutes")) * time.Minute)
			for i := range members {
				m := &members[i]
				known := []Snapshot{one, two}
				if m.Unknown = nil; i == 1 && step < late {
					known, m.Unknown = known[1:], known[:1:1]
				}
				for j := range known {
					known[j].At, known[j].Owners = at, m.owners[known[j].Cluster]
				}
				m.result = m.Compile(known)
				m.owners = m.result.Owners
			}
			if step < late {
				for host := range members[1].owners["two"].Namespaces {
					if _, has := members[0].owners["one"].Namespaces[host]; has {
						given++
					}
				}
				continue
			}
			if diff := cmp.Diff(read(members[0].result), read(members[1].result)); diff != "" {
				t.Fatalf("with cluster one from the start (-), and later (+):\n%s", diff)
			}
			for host := range members[0].owners["one"].Namespaces {
				if slices.ContainsFunc(two.Ingresses, func(ing *networkingv1.Ingress) bool {
					return ing.Spec.Rules[0].Host == host
				}) {
					overridden++
				}
			}
		}
	})
	if given < 10 || overridden < 10 {
		t.Errorf("cluster two got %d hosts of cluster one while that was unknown, and lost %d to it: the test "+
			"hardly tests it", given, overridden)
	}
}

func TestClustersThatTrustTheirNamespacesDoNotTrustEachOther(t *testing.T) {
	one := snapshot(t, "one", app("web")+ingress("a", 2022, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	two := snapshot(t, "two", app("web")+secretText(t, "tls", certificate{names: []string{"a.test"}})+
		ingress("b", 2020, "tls: [{hosts: [a.test], secretName: tls}], rules: ["+
			rule("a.test", path("/login", "Prefix", "web"))+"]"))
	one.Options.OneTenant, two.Options.OneTenant = true, true
	want := "prefix a.test/ -> one__default_svc_web_http\nbackend one__default_svc_web_http: s_172-16-1-1_8080\n" +
		"problem Ingress default/b HostOwned\n"
	r := Compile([]Snapshot{one, two})
	if diff := cmp.Diff(want, read(r)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if why := fmt.Sprint(r.Problems); !strings.Contains(why, "it belongs to cluster one, for Ingress default/a") {
		t.Errorf("the owner is not named: %s", why)
	}
}
