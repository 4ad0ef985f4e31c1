package ingress

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

// TestWhatHAProxyRefusesClosesWhatItGuards checks that a part that HAProxy refuses is
// left out, and that its backend is closed, while its object stays the same.
func TestWhatHAProxyRefusesClosesWhatItGuards(t *testing.T) {
	crt, key := certificate{names: []string{"a.test"}}.make(t)
	text := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	secret := func(name, kind string, data map[string][]byte) string {
		var all []string
		for name, value := range data {
			all = append(all, name+": "+text(value))
		}
		return fmt.Sprintf("kind: Secret\nmetadata: {name: %s, namespace: default}\ntype: %s\ndata: {%s}\n---\n", name,
			kind, strings.Join(all, ", "))
	}
	objects := app("web") + app("other") +
		secret("pair", "kubernetes.io/tls", map[string][]byte{"tls.crt": crt, "tls.key": key}) +
		secret("ca", "Opaque", map[string][]byte{"ca.crt": crt}) +
		secret("users", "Opaque", map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))}) +
		ingress("good", 2020, "rules: ["+rule("b.test", path("/", "Prefix", "other"))+"]")
	const web, closed = "default_ing_i_svc_web_http", `"the access rules of this path are invalid\n"`
	for name, tt := range map[string]struct {
		said   map[string]string
		refuse func(haproxy.Config) haproxy.Part
		reason string
		closed bool // the backend
		certs  int
	}{
		"a certificate": {
			map[string]string{"timeout-server": "3s"},
			func(c haproxy.Config) haproxy.Part { return haproxy.Pair{PEM: c.Certs[0].PEM}.Part() },
			"CertificateUnusable", false, 0,
		},
		"the certificate of a host whose clients need one": {
			map[string]string{"client-ca": "ca"},
			func(c haproxy.Config) haproxy.Part { return haproxy.Pair{PEM: c.Certs[0].PEM}.Part() },
			"CertificateUnusable", false, 0,
		},
		"an authority of clients": {
			map[string]string{"client-ca": "ca"},
			func(c haproxy.Config) haproxy.Part { return c.Extras[0].Part() },
			"InvalidAnnotation", true, 1,
		},
		"an authority of servers": {
			map[string]string{"server-ca": "ca"},
			func(c haproxy.Config) haproxy.Part { return c.Extras[0].Part() },
			"InvalidAnnotation", true, 1,
		},
		"users": {
			map[string]string{"auth-secret": "users"},
			func(c haproxy.Config) haproxy.Part { return c.Userlists[0].Part() },
			"InvalidAnnotation", true, 1,
		},
		"a whole backend": {
			map[string]string{"auth-secret": "users", "allow-list": "10.0.0.0/8"},
			func(c haproxy.Config) haproxy.Part { return find1(t, c, web).Part() },
			"RefusedByHAProxy", true, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, objects+ingress("i", 2021,
				"tls: [{hosts: [a.test], secretName: pair}], rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
			for _, ing := range s.Ingresses {
				if ing.Name == "i" {
					ing.Annotations = map[string]string{}
					for key, value := range tt.said {
						ing.Annotations["haproxy.org/"+key] = value
					}
				}
			}
			var c Compiler
			before := c.Compile([]Snapshot{s})
			part := tt.refuse(before.Config)
			verdicts := haproxy.Verdicts{part: haproxy.Refused("HAProxy rejects it: because")}
			c.Judge(verdicts)
			r := c.Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			if !slices.Contains(r.Refused, part) {
				t.Errorf("%s is not among what is left out: %v", part, r.Refused)
			}
			told := slices.ContainsFunc(r.Problems, func(p Problem) bool {
				return p.Kind == "Ingress" && p.Name == "i" && p.Reason == tt.reason &&
					strings.Contains(p.Why, "because")
			})
			if !told {
				t.Errorf("its author is told nothing: %v", r.Problems)
			}
			own := find1(t, r.Config, web)
			if got := strings.Contains(fmt.Sprint(own.Directives), closed); got != tt.closed {
				t.Errorf("closed is %v: %s", got, own.Directives)
			}
			if tt.said["client-ca"] != "" && !tt.closed && !strings.Contains(fmt.Sprint(own.Directives), "ssl_c_used") {
				t.Errorf("clients need no certificate any more: %s", own.Directives)
			}
			if len(r.Config.Certs) != tt.certs {
				t.Errorf("certificates: %v", r.Config.Certs)
			}
			if other := find1(t, r.Config, "default_svc_other_http"); other != find1(t, before.Config, other.Name) {
				t.Errorf("the other one changed: %v", other)
			}

			// It stays out when compiled again. After it changes no object has the refused
			// part any more.
			if again := new(Compiler); true {
				again.Judge(verdicts)
				if got := again.Compile([]Snapshot{s}); !slices.Contains(got.Refused, part) {
					t.Errorf("from nothing: left out are %v", got.Refused)
				}
			}
			s.Ingresses = slices.Clone(s.Ingresses)
			for i, ing := range s.Ingresses {
				if ing.Name == "i" {
					s.Ingresses[i] = ing.DeepCopy()
					s.Ingresses[i].Annotations, s.Ingresses[i].Spec.TLS = nil, nil
				}
			}
			if r := c.Compile([]Snapshot{s}); len(r.Refused) > 0 {
				t.Errorf("once it changed: left out are %v", r.Refused)
			}
		})
	}
}

func TestAnErrorPageThatHAProxyRefusesIsLeftOut(t *testing.T) {
	s := snapshot(t, Unnamed, app("web"))
	s.Options.ErrorFiles = "ops/pages"
	s.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "pages"},
		Data:       map[string]string{"503": "HTTP/1.1 503 No\n\nno\n"},
	}}
	var c Compiler
	r := c.Compile([]Snapshot{s})
	if len(r.Config.Extras) != 1 {
		t.Fatalf("files are %v", r.Config.Extras)
	}
	part := r.Config.Extras[0].Part()
	c.Judge(haproxy.Verdicts{part: haproxy.Refused("because")})
	r = c.Compile([]Snapshot{s})
	if len(r.Config.Extras)+len(r.Config.Process.ErrorFiles) > 0 || !slices.Contains(r.Refused, part) ||
		len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Why, "because") {
		t.Errorf("got %v, %v, %v, %v", r.Config.Extras, r.Config.Process.ErrorFiles, r.Refused, r.Problems)
	}
}

// find1 returns the backend of that name.
func find1(t *testing.T, c haproxy.Config, name string) *haproxy.Backend {
	t.Helper()
	for _, b := range c.Backends {
		if b.Name == name {
			return b
		}
	}
	t.Fatalf("no backend %s", name)
	return nil
}
