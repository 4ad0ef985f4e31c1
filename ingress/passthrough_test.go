package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

// saying returns the manifest of an Ingress with annotations, created in the given year.
func saying(name string, year int, annotations, spec string) string {
	return strings.Replace(ingress(name, year, spec), "namespace: default,",
		"namespace: default, annotations: {"+annotations+"},", 1)
}

func TestTheOldestWhoNamesAHostSaysWhetherItsTLSEndsHere(t *testing.T) {
	const (
		through = `haproxy.org/ssl-passthrough: "true"`
		web     = "backend default_svc_web_http: s_172-16-1-1_8080\n"
		secure  = "backend default_svc_tls_http.tls: s_172-16-1-1_8080\n"
	)
	all := func(host, service string) string { return "rules: [" + rule(host, path("/", "Prefix", service)) + "]" }
	for name, tt := range map[string]struct{ manifests, want string }{
		"an Ingress passes its hosts through": {
			app("tls") + saying("i", 2020, through, "rules: ["+rule("a.test", path("/", "Prefix", "tls"))+", "+
				rule("*.b.test", path("/", "Prefix", "tls"))+"]"),
			"passthrough *.b.test/ -> default_svc_tls_http.tls (https)\n" +
				"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure,
		},
		"a Service says it": {
			strings.Replace(app("tls"), "uid: svc-tls", "uid: svc-tls, annotations: {"+through+"}", 1) +
				ingress("i", 2020, all("a.test", "tls")),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure,
		},
		"plain HTTP can be refused": {
			app("tls") + saying("i", 2020, through+`, haproxy.org/ssl-redirect: "false"`, all("a.test", "tls")),
			"passthrough a.test/ -> default_svc_tls_http.tls\n" + secure,
		},
		"a younger one has paths of plain HTTP": {
			app("tls") + app("web") + saying("i", 2020, through, all("a.test", "tls")) +
				ingress("j", 2021, "rules: ["+rule("a.test", path("/.well-known", "Prefix", "web"))+"]"),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" +
				"prefix a.test/.well-known -> default_svc_web_http\n" + secure + web,
		},
		"a younger one that redirects is told": {
			app("tls") + app("web") + saying("i", 2020, through, all("a.test", "tls")) +
				saying("j", 2021, `haproxy.org/ssl-redirect: "true"`,
					"rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]"),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" +
				"prefix a.test/x -> default_svc_web_http (https)\n" + secure + web +
				"problem Ingress default/j PassthroughConflict\n",
		},
		"a younger one does not take the host": {
			app("tls") + app("web") + ingress("i", 2020, all("a.test", "web")) +
				saying("j", 2021, through, all("a.test", "tls")),
			"prefix a.test/ -> default_svc_web_http\n" + web + "problem Ingress default/j PassthroughConflict\n",
		},
		"a younger one does not take the path": {
			app("tls") + app("web") + saying("i", 2020, through, all("a.test", "tls")) +
				ingress("j", 2021, all("a.test", "web")),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure +
				"problem Ingress default/j PathConflict\n",
		},
		"paths mean nothing": {
			app("tls") + app("web") + saying("i", 2020, through,
				"rules: ["+rule("a.test", path("/x", "Exact", "tls"), path("/y", "Prefix", "tls"),
					path("/z", "Prefix", "web"))+"]"),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure +
				"problem Ingress default/i PathConflict\n",
		},
		"without a host there is no name": {
			app("tls") + saying("i", 2020, through, all("", "tls")) + saying("j", 2020, through, fallback("tls")),
			"problem Ingress default/i PassthroughWithoutHost\nproblem Ingress default/j PassthroughWithoutHost\n",
		},
		"the default of a host": {
			app("tls") + saying("i", 2020, through, fallback("tls")+", rules: [{host: a.test}]"),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure,
		},
		"what is said for connections makes a backend of its own": {
			app("tls") + saying("i", 2020, through+", haproxy.org/allow-list: 10.0.0.0/8", all("a.test", "tls")),
			"passthrough a.test/ -> default_ing_i_svc_tls_http.tls (https)\n" +
				"backend default_ing_i_svc_tls_http.tls: s_172-16-1-1_8080\n",
		},
		"a guard of requests closes": {
			app("tls") + saying("i", 2020, through+", haproxy.org/auth-type: basic-auth", all("a.test", "tls")),
			"passthrough a.test/ -> default_ing_i_svc_tls_http.tls (https)\n" +
				"backend default_ing_i_svc_tls_http.tls: s_172-16-1-1_8080\n" +
				"problem Ingress default/i GuardNotApplicable\n",
		},
		"a canary has no part of it": {
			app("tls") + app("web") + saying("i", 2020, through, all("a.test", "tls")) +
				saying("j", 2021, `sallyport.dev/canary-weight: "50"`, all("a.test", "web")),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure +
				"problem Ingress default/j CanaryOfNothing\n",
		},
		"a TLS entry needs no Secret": {
			app("tls") + saying("i", 2020, through, "tls: [{hosts: [a.test]}], "+all("a.test", "tls")),
			"passthrough a.test/ -> default_svc_tls_http.tls (https)\n" + secure,
		},
		"a Service that is gone": {
			saying("i", 2020, through, all("a.test", "tls")),
			"passthrough a.test/ -> default_svc_tls_80.tls (https)\nbackend default_svc_tls_80.tls:\n" +
				"problem Ingress default/i ServiceNotFound\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := Compile([]Snapshot{snapshot(t, Unnamed, tt.manifests)})
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			if err := r.Config.Validate(); err != nil {
				t.Errorf("haproxy refuses it: %v", err)
			}
			if want := strings.Contains(tt.want, "passthrough "); r.Config.Inspect != want {
				t.Errorf("Inspect: want %t", want)
			}
			for _, b := range r.Config.Backends {
				if want := strings.HasSuffix(b.Name, ".tls"); b.TCP != want {
					t.Errorf("backend %s: TCP is %t", b.Name, b.TCP)
				}
			}
		})
	}
}

func TestTCPServicesHavePortsOfTheirOwn(t *testing.T) {
	services := func(data map[string]string) []*corev1.ConfigMap {
		return []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "tcp", UID: "tcp"},
			Data:       data,
		}}
	}
	one := snapshot(t, "one", app("db")+slice("other", "a", "", 1, "172.16.1.9"))
	one.Options.TCPServices = "ops/tcp"
	one.ConfigMaps = services(map[string]string{
		"5432": "default/db:80", "5433": "default/db:http:ssl:PROXY:PROXY-V2", "8443": "default/db:80",
		"9000": "default/gone:80", "9001": "default/db:81", "9002": "nonsense", "9100": "default/db:80",
		"0": "default/db:80",
	})
	two := snapshot(t, "two", app("db"))
	two.Options.TCPServices = "ops/tcp"
	two.ConfigMaps = services(map[string]string{"5432": "default/db:80", "5434": "default/db:80"})

	c := Compiler{Taken: map[uint16]string{8443: "HTTPS"}}
	verdicts := haproxy.Verdicts{}
	c.Judge(verdicts)
	if r := c.Compile([]Snapshot{one, two}); len(r.Config.Streams) != 0 ||
		!slices.Contains(r.Questions, haproxy.FreePort(5432)) || slices.Contains(r.Questions, haproxy.FreePort(8443)) {
		t.Errorf("before anybody was asked about ports: %v, asks about %v", r.Config.Streams, r.Questions)
	}
	for _, port := range []uint16{5432, 5433, 5434, 9000, 9001} {
		verdicts[haproxy.FreePort(port).Part()] = haproxy.Good
	}
	verdicts[haproxy.FreePort(9100).Part()] = haproxy.Refused("in use by exporter (pid 1)")
	c.Judge(verdicts)
	r := c.Compile([]Snapshot{one, two})
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}
	want := []haproxy.Stream{
		{Port: 5432, Backend: "one__default_svc_db_http.tcp-5432"},
		{Port: 5433, Backend: "one__default_svc_db_http.tcp-5433", TLS: true, Proxy: true},
		{Port: 5434, Backend: "two__default_svc_db_http.tcp-5434"},
	}
	if diff := cmp.Diff(want, r.Config.Streams, cmpopts.EquateComparable(haproxy.Stream{})); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	var problems strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&problems, "%s %s/%s %s: %s\n", p.Cluster, p.Namespace, p.Name, p.Reason, p.Why)
		if p.Kind != "ConfigMap" || p.UID != "tcp" {
			t.Errorf("told to %+v", p.ObjectRef)
		}
	}
	wantProblems := `one ops/tcp InvalidTCPService: key "0": "0" is not a number from 1 to 65535; it is ignored
one ops/tcp InvalidTCPService: key "9002": "nonsense": want namespace/Service:port, and after it :ssl, :PROXY, :PROXY-V1 or :PROXY-V2; it is ignored
one ops/tcp PortConflict: key 8443: the port is in use by HTTPS; the TCP service is not served
one ops/tcp PortConflict: key 9100: on the appliance the port is in use by exporter (pid 1); the TCP service is not served until that program is stopped
one ops/tcp PortNotFound: key 9001: Service default/db has no TCP port 81, it has http 80; until that is corrected, the port is closed
one ops/tcp ServiceNotFound: key 9000: there is no Service default/gone; until that is corrected, the port is closed
two ops/tcp PortConflict: key 5432: the port is in use by a TCP service of cluster one; the TCP service is not served
`
	if diff := cmp.Diff(wantProblems, problems.String()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	for _, b := range r.Config.Backends {
		sends := map[bool]string{true: "proxy-v2"}[strings.HasSuffix(b.Name, "5433")]
		if !b.TCP || len(b.Servers) != 1 || b.Options.SendProxy != sends || !b.Options.Check {
			t.Errorf("backend %+v", b)
		}
	}

	// A new endpoint becomes a server of each of its ports, and changes nothing else.
	before := r.Config
	one.Slices = append(one.Slices, snapshot(t, "one", slice("db", "b", "http", 8080, "172.16.1.2")).Slices...)
	r = c.Compile([]Snapshot{one, two})
	for i, b := range r.Config.Backends {
		if want := map[bool]int{true: 2, false: 1}[strings.HasPrefix(b.Name, "one_")]; len(b.Servers) != want ||
			(want == 1) != (b == before.Backends[i]) {
			t.Errorf("backend %+v, of %d servers", b, want)
		}
	}

	// The log format in the ConfigMap of TCP services is for both services.
	one.ConfigMaps = services(map[string]string{"log-format-tcp": "%ci %b"})
	format, err := haproxy.StreamLogFormat("%ci %b")
	if err != nil {
		t.Fatal(err)
	}
	if r = c.Compile([]Snapshot{one}); len(r.Questions) != 1 || r.Questions[0] != format.Question() ||
		len(r.Config.Streams) != 0 {
		t.Errorf("questions: got %q", r.Questions)
	}
}
