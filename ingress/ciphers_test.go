package ingress

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestTheOldestIngressWithACertificateDecidesOfItsCiphers has two Ingresses of one host, and a third one that shares
// their Secret.
func TestTheOldestIngressWithACertificateDecidesOfItsCiphers(t *testing.T) {
	const own, other = "ECDHE-RSA-AES256-GCM-SHA384", "HIGH:!aNULL"
	tls := func(host string) string { return "tls: [{hosts: [" + host + "], secretName: tls}], " }
	s := snapshot(t, Unnamed, app("web")+secretText(t, "tls", certificate{names: []string{"*.test"}})+
		ingress("first", 2020, tls("a.test")+"rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")+
		ingress("second", 2021, tls("a.test")+"rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]")+
		ingress("third", 2022, tls("b.test")+"rules: ["+rule("b.test", path("/", "Prefix", "web"))+"]")+
		ingress("without", 2023, "rules: ["+rule("c.test", path("/", "Prefix", "web"))+"]")+
		ingress("wrong", 2024, tls("d.test")+"rules: ["+rule("d.test", path("/", "Prefix", "web"))+"]"))
	for i, list := range []string{own, other, "", own, "RC4 ssl-min-ver SSLv3"} {
		if list != "" {
			s.Ingresses[i].Annotations = map[string]string{"sallyport.dev/ssl-ciphers": list}
		}
	}
	r := Compile([]Snapshot{s})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	got := make(map[string]string)
	for _, c := range r.Config.Certs {
		for _, host := range c.Hosts {
			got[host] = c.Ciphers
		}
	}
	if len(got) != 3 || got["a.test"] != own || got["b.test"] != "" || got["d.test"] != "" {
		t.Errorf("the hosts have the ciphers %v", got)
	}
	told := make(map[string]string)
	for _, p := range r.Problems {
		told[p.Name] += p.Reason + ": " + p.Why + "\n"
	}
	for name, want := range map[string]string{
		"first": "", "third": "",
		"second":  "CertificateConflict: Ingress default/first is older and decides which certificate and which ciphers",
		"without": "NoCertificate: ssl-ciphers is set on an Ingress without a certificate of its own",
		"wrong":   `InvalidAnnotation: annotation sallyport.dev/ssl-ciphers: "RC4 ssl-min-ver SSLv3" is not a cipher`,
	} {
		if (told[name] == "") != (want == "") || !strings.HasPrefix(told[name], want) {
			t.Errorf("%s is told %q, want %q", name, told[name], want)
		}
	}
}

// TestEachListOfCiphersTakesACertificateOfTheLimit serves one Secret with different ciphers.
func TestEachListOfCiphersTakesACertificateOfTheLimit(t *testing.T) {
	var manifest strings.Builder
	lists := []string{"HIGH", "DEFAULT", "AES128-SHA"}
	for i := range lists {
		host := string(rune('a'+i)) + ".test"
		manifest.WriteString(ingress("i"+host, 2020+i,
			"tls: [{hosts: ["+host+"], secretName: tls}], rules: ["+rule(host, path("/", "Prefix", "web"))+"]"))
	}
	s := snapshot(t, Unnamed, app("web")+secretText(t, "tls", certificate{names: []string{"a.test"}})+manifest.String())
	for i, list := range lists {
		s.Ingresses[i].Annotations = map[string]string{"sallyport.dev/ssl-ciphers": list}
	}
	s.Options.Limits.Certificates = 2
	if r := Compile([]Snapshot{s}); len(r.Config.Certs) != 2 {
		t.Errorf("there are the certificates %v, want 2", r.Config.Certs)
	}
}

// TestOnlyAnIngressThatHasAWholeHostLetsClientsConnectWithoutACertificate tries what else could serve the host.
func TestOnlyAnIngressThatHasAWholeHostLetsClientsConnectWithoutACertificate(t *testing.T) {
	const own = "tls: [{hosts: [a.test], secretName: tls}], "
	root := rule("a.test", path("/", "Prefix", "web"))
	for name, tt := range map[string]struct {
		spec, more string
		config     map[string]string
		want       bool
	}{
		"alone":          {own + "rules: [" + root + "]", "", nil, true},
		"a deeper path":  {own + "rules: [" + rule("a.test", path("/x", "Prefix", "web")) + "]", "", nil, false},
		"the exact path": {own + "rules: [" + rule("a.test", path("/", "Exact", "web")) + "]", "", nil, false},
		"another Ingress with a path": {
			own + "rules: [" + root + "]", "rules: [" + rule("a.test", path("/x", "Prefix", "web")) + "]", nil, false,
		},
		"another Ingress with a certificate": {
			own + "rules: [" + root + "]", own + "rules: [" + rule("b.test", path("/", "Prefix", "web")) + "]", nil, false,
		},
		"another host of another Ingress": {
			own + "rules: [" + root + "]", "rules: [" + rule("b.test", path("/", "Prefix", "web")) + "]", nil, true,
		},
		"a wildcard host": {
			`tls: [{hosts: ["*.test"], secretName: tls}], rules: [` + rule("*.test", path("/", "Prefix", "web")) + "]",
			"", nil, false,
		},
		"the names of the certificate": {"tls: [{secretName: tls}], rules: [" + root + "]", "", nil, false},
		"a demand of the ConfigMap": {
			own + "rules: [" + root + "]", "", map[string]string{"client-ca": "default/ca"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			manifest := app("web") + secretText(t, "tls", certificate{names: []string{"*.test"}}) + secretText(t, "ca",
				certificate{names: []string{"ca"}}) + ingress("i", 2020, tt.spec)
			if tt.more != "" {
				manifest += ingress("more", 2021, tt.more)
			}
			s := snapshot(t, Unnamed, manifest)
			s.Ingresses[0].Annotations = map[string]string{
				"haproxy.org/client-ca": "ca", "sallyport.dev/client-crt-error-page": "https://page.test/",
			}
			if tt.config != nil {
				s.Options.ConfigMap = "ops/keys"
				s.ConfigMaps = []*corev1.ConfigMap{{Data: tt.config}}
				s.ConfigMaps[0].Namespace, s.ConfigMaps[0].Name = "ops", "keys"
			}
			r := Compile([]Snapshot{s})
			asking, optional, told := 0, 0, false
			for _, c := range r.Config.Certs {
				if c.ClientCA != "" {
					asking++
				}
				if c.ClientOptional {
					optional++
				}
			}
			for _, p := range r.Problems {
				told = told || p.Name == "i" && p.Reason == "UnusedAnnotation"
			}
			if asking != 1 || optional == 1 != tt.want || told == tt.want {
				t.Errorf("%d certificates ask for one of the client, %d of them may get none; the Ingress is told: %v\n%v",
					asking, optional, told, r.Problems)
			}
			for _, b := range r.Config.Backends {
				if b.Name == "default_ing_i_svc_web_http" && !strings.Contains(fmt.Sprint(b.Directives), "!{ ssl_c_used }") {
					t.Errorf("a client without a certificate reaches the servers: %v", b.Directives)
				}
			}
		})
	}
}

// TestTheSubjectOfClientsIsForEachPathOfTheHost has further Ingresses for the host, and hosts of another namespace.
func TestTheSubjectOfClientsIsForEachPathOfTheHost(t *testing.T) {
	tls := func(host string) string { return "tls: [{hosts: [" + host + "], secretName: tls}], " }
	spec := func(host, at string) string { return "rules: [" + rule(host, path(at, "Prefix", "web")) + "]" }
	s := snapshot(t, Unnamed, app("web")+secretText(t, "tls", certificate{names: []string{"*.test"}})+
		secretText(t, "ca", certificate{names: []string{"ca"}})+
		ingress("first", 2020, tls("a.test")+spec("a.test", "/"))+
		ingress("second", 2021, spec("a.test", "/other"))+
		ingress("third", 2022, tls("a.test")+spec("a.test", "/third"))+
		ingress("free", 2023, tls("b.test")+spec("b.test", "/"))+
		ingress("wrong", 2024, tls("c.test")+spec("c.test", "/"))+
		ingress("page", 2025, tls("d.test")+spec("d.test", "/")))
	const key = "sallyport.dev/client-crt-match"
	for i, match := range map[int]string{0: "^CN=ann", 2: "^CN=eve", 4: "(?=CN)", 5: "^CN=ann"} {
		s.Ingresses[i].Annotations = map[string]string{"haproxy.org/client-ca": "ca", key: match}
	}
	s.Ingresses[3].Annotations = map[string]string{"haproxy.org/client-ca": "ca"}
	s.Ingresses[5].Annotations["sallyport.dev/client-crt-error-page"] = "https://page.test/"
	r := Compile([]Snapshot{s})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	got := make(map[string]string)
	for _, c := range r.Config.Certs {
		for _, host := range c.Hosts {
			got[host] = c.ClientMatch
		}
	}
	if want := map[string]string{"a.test": "^CN=ann", "b.test": "", "c.test": "a^", "d.test": ""}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	told := make(map[string]string)
	for _, p := range r.Problems {
		told[p.Name] += p.Reason + " "
	}
	if want := map[string]string{"third": "CertificateConflict ", "wrong": "InvalidAnnotation "}; !maps.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
