package ingress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

func TestAServiceThatIsAskedHasABackendOfItsOwn(t *testing.T) {
	const first = "prefix a.test/ -> default_ing_i_svc_web_http\n"
	const web = "backend default_ing_i_svc_web_http: s_172-16-1-1_8080\n"
	const gone = first + "backend default_auth_svc_gone_80:\n" + web + "problem Ingress default/i ServiceNotFound\n"
	other := strings.ReplaceAll(service("door", "http", 80)+slice("door", "a", "http", 8080, "172.16.1.2"),
		"namespace: default", "namespace: ops")
	for name, tt := range map[string]struct {
		url    string
		shared []string
		lua    bool
		want   string
	}{
		"by name": {
			"svc://door:http/check", nil, true,
			first + "backend default_auth_svc_door_http: s_172-16-1-2_8080\n" + web,
		},
		"by number": {
			"svc://default/door:80", nil, true,
			first + "backend default_auth_svc_door_80: s_172-16-1-2_8080\n" + web,
		},
		"that is not there": {"svc://gone:80", nil, true, gone},
		"of another namespace": {
			"svc://ops/door:80", nil, true,
			first + web + "problem Ingress default/i InvalidAnnotation\n",
		},
		"of another one, for all": {
			"svc://ops/door:80",
			[]string{"ops/door"},
			true,
			first + web + "backend ops_auth_svc_door_80: s_172-16-1-2_8080\n",
		},
		"by a HAProxy that never was": {
			"svc://door:80", nil, false,
			first + "backend default_auth_svc_door_80: s_172-16-1-2_8080\n" + web,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("web")+service("door", "http", 80)+slice("door", "a", "http", 8080, "172.16.1.2")+
				other+ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
			s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/auth-url": tt.url}
			s.Options.ConfigMap, s.Options.AuthServices = "ops/keys", tt.shared
			// The allow-list of the ConfigMap applies to applications, not to the Service that checks requests.
			s.ConfigMaps = []*corev1.ConfigMap{
				{Data: map[string]string{"allow-list": "10.0.0.0/8", "timeout-server": "3s"}},
			}
			s.ConfigMaps[0].Namespace, s.ConfigMaps[0].Name = "ops", "keys"
			var c Compiler
			if tt.lua {
				c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
			}
			r := c.Compile([]Snapshot{s})
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			for _, b := range r.Config.Backends {
				if namespace, _, _ := strings.Cut(b.Name, "_"); b.Cluster != Unnamed || b.Namespace != namespace {
					t.Errorf("the servers of %s are those of namespace %q of cluster %q", b.Name, b.Namespace,
						b.Cluster)
				}
				text := ""
				for _, d := range b.Directives {
					text += d.String() + "\n"
				}
				asks, closed := strings.Contains(text, "lua.sallyport_ask"),
					strings.Contains(text, haproxy.Close().String())
				if door := strings.Contains(b.Name, "_auth_"); door != !strings.Contains(text, "sp_allowed") &&
					!closed || !strings.Contains(text, "timeout server 3000ms") && !closed {
					t.Errorf("%s:\n%s", b.Name, text)
				} else if !door && asks == closed ||
					closed != (!door && (!tt.lua || strings.Contains(tt.want, "Invalid"))) {
					t.Errorf("%s asks %v, is closed %v", b.Name, asks, closed)
				}
			}
		})
	}
}

// TestHeadersForAServiceThatIsAskedComeFromTheConfigMapOfTheNamespace changes the ConfigMap, removes it, and names
// one of another namespace.
func TestHeadersForAServiceThatIsAskedComeFromTheConfigMapOfTheNamespace(t *testing.T) {
	s := snapshot(t, Unnamed, app("web")+service("door", "http", 80)+slice("door", "a", "http", 8080, "172.16.1.2")+
		ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	s.Ingresses[0].Annotations = map[string]string{
		"sallyport.dev/auth-url": "svc://door:80", "sallyport.dev/auth-set-headers-from": "headers",
	}
	with := func(namespace, value string) {
		m := &corev1.ConfigMap{Data: map[string]string{"X-Team": value}}
		m.Namespace, m.Name = namespace, "headers"
		s.ConfigMaps = []*corev1.ConfigMap{m}
	}
	var c Compiler
	c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
	sees := func(want string) {
		t.Helper()
		text := fmt.Sprint(find1(t, c.Compile([]Snapshot{s}).Config, "default_ing_i_svc_web_http").Directives)
		if !strings.Contains(text, want) || strings.Contains(text, "sallyport_ask") == strings.Contains(want, "503") {
			t.Errorf("want %q in %s", want, text)
		}
	}
	const closed = "return status 503 content-type text/plain string \"the access rules of this path are invalid"
	sees(closed)
	with("default", "a b")
	sees("(txn.sallyport_ask0) 'a b'")
	with("default", "c %[src]'")
	sees(`(txn.sallyport_ask0) 'c %%[src]'\''`)
	with("default", "c\nx-sallyport-backend: other")
	sees(closed)
	with("other", "a b")
	sees(closed)
	s.Ingresses[0] = s.Ingresses[0].DeepCopy()
	s.Ingresses[0].Annotations["sallyport.dev/auth-set-headers-from"] = "other/headers"
	sees(closed)
	if _, keys, _ := s.AllNamed(); len(keys) != 0 {
		t.Errorf("the ConfigMaps %v are read", keys)
	}
}

// TestCopiesGoToABackendOfTheirOwn has an Ingress whose requests are copied.
func TestCopiesGoToABackendOfTheirOwn(t *testing.T) {
	for name, tt := range map[string]struct{ to, backend, problems string }{
		"by number":            {"svc://door:80", "default_copy_svc_door_80", ""},
		"that is not there":    {"svc://gone:80", "default_copy_svc_gone_80", "ServiceNotFound"},
		"of another namespace": {"svc://ops/door:80", "", "InvalidAnnotation"},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("web")+service("door", "http", 80)+slice("door", "a", "http", 8080, "172.16.1.2")+
				ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
			s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/mirror-to": tt.to}
			var c Compiler
			c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
			r := c.Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			var problems string
			for _, p := range r.Problems {
				problems += p.Reason
			}
			var copied string
			for _, b := range r.Config.Backends {
				text := ""
				for _, d := range b.Directives {
					text += d.String() + "\n"
				}
				if strings.Contains(b.Name, "_copy_") {
					copied = b.Name
					if !strings.Contains(text, "retries 1") {
						t.Errorf("the backend of the copies has %q", text)
					}
				} else if has := strings.Contains(text, "str("+Unnamed+"/default:"+tt.backend+")"); has == (tt.backend == "") {
					t.Errorf("the backend of the requests has %q", text)
				}
			}
			if copied != tt.backend || problems != tt.problems {
				t.Errorf("copies go to %q, problems %q; want %q, %q", copied, problems, tt.backend, tt.problems)
			}
		})
	}
}

// TestPagesComeFromABackendOfTheirOwn lets another Service answer for the servers of an Ingress (error-pages).
func TestPagesComeFromABackendOfTheirOwn(t *testing.T) {
	for name, tt := range map[string]struct{ ingress, config, backend, problems string }{
		"of the Ingress":             {"door", "ops/other:80", "default_page_svc_door_", ""},
		"of the Ingress, not there":  {"gone", "", "default_page_svc_gone_", "ServiceNotFound ServiceNotFound"},
		"of the ConfigMap":           {"", "ops/other:80", "ops_page_svc_other_80", ""},
		"of the ConfigMap, any port": {"", "ops/other", "ops_page_svc_other_", ""},
		"of nobody":                  {"", "", "", "InvalidAnnotation"},
	} {
		t.Run(name, func(t *testing.T) {
			other := strings.ReplaceAll(service("other", "http", 80)+slice("other", "a", "http", 8080, "172.16.1.3"),
				"namespace: default", "namespace: ops")
			s := snapshot(t, Unnamed, app("web")+service("door", "http", 80)+slice("door", "a", "http", 8080, "172.16.1.2")+
				other+ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
			s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/error-pages": "404"}
			if tt.ingress != "" {
				s.Ingresses[0].Annotations["sallyport.dev/default-backend"] = tt.ingress
			}
			if tt.config != "" {
				s.Options.ConfigMap = "ops/keys"
				s.ConfigMaps = []*corev1.ConfigMap{{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
					Data:       map[string]string{"default-backend-service": tt.config},
				}}
			}
			var c Compiler
			c.Judge(haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good})
			r := c.Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			var problems []string
			for _, p := range r.Problems {
				problems = append(problems, p.Reason)
			}
			page := ""
			for _, b := range r.Config.Backends {
				if strings.Contains(b.Name, "_page_") {
					page = b.Name
					if (len(b.Servers) == 1) != (tt.problems == "") {
						t.Errorf("%s has %d servers", b.Name, len(b.Servers))
					}
				}
				text := fmt.Sprint(b.Directives)
				if has := strings.Contains(text, "sallyport_page "+tt.backend+" default if"); has != (tt.backend != "") &&
					b.Name == "default_ing_i_svc_web_http" {
					t.Errorf("%s has %s", b.Name, text)
				}
			}
			if got := strings.Join(problems, " "); page != tt.backend || got != tt.problems {
				t.Errorf("pages come from %q, problems %q; want %q, %q", page, got, tt.backend, tt.problems)
			}
		})
	}
}
