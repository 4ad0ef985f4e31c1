package ingress

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
)

// snapshot reads manifests, as kubectl would, into a Snapshot.
func snapshot(t testing.TB, cluster, manifests string) Snapshot {
	t.Helper()
	s := Snapshot{Cluster: cluster}
	for doc := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		var err error
		switch kind.Kind {
		case "Ingress":
			err = add(&s.Ingresses, doc)
		case "IngressClass":
			err = add(&s.Classes, doc)
		case "Service":
			err = add(&s.Services, doc)
		case "EndpointSlice":
			err = add(&s.Slices, doc)
		case "Secret":
			err = add(&s.Secrets, doc)
		case "GatewayClass":
			err = add(&s.API.Classes, doc)
		case "Gateway":
			err = add(&s.API.Gateways, doc)
		case "ListenerSet":
			err = add(&s.API.ListenerSets, doc)
		case "HTTPRoute":
			err = add(&s.API.HTTPRoutes, doc)
		case "GRPCRoute":
			err = add(&s.API.GRPCRoutes, doc)
		case "TLSRoute":
			err = add(&s.API.TLSRoutes, doc)
		case "TCPRoute":
			err = add(&s.API.TCPRoutes, doc)
		case "ReferenceGrant":
			err = add(&s.API.Grants, doc)
		case "Backend":
			err = add(&s.Backends, doc)
		case "TCP":
			err = add(&s.TCPs, doc)
		case "Global":
			err = add(&s.Globals, doc)
		case "Defaults":
			err = add(&s.Defaults, doc)
		case "Frontend":
			err = add(&s.Frontends, doc)
		case input.RulesKind:
			err = add(&s.Rules, doc)
		case "ConfigMap":
			err = add(&s.ConfigMaps, doc)
		case "ServiceExport":
			err = add(&s.Exports, doc)
		case "BackendTLSPolicy":
			err = add(&s.API.TLSPolicies, doc)
		default:
			err = fmt.Errorf("kind %q is not known here", kind.Kind)
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
	}
	s.NoClasses = len(s.Classes) == 0
	return s
}

func add[T any](list *[]*T, doc string) error {
	o := new(T)
	err := yaml.UnmarshalStrict([]byte(doc), o)
	*list = append(*list, o)
	return err
}

// read returns a Result as text that a person can read.
func read(r Result) string {
	var b strings.Builder
	for _, route := range r.Config.Routes {
		to := route.Backend
		if to == "" {
			to = "404"
		}
		if route.TLSOnly {
			to += " (https)"
		}
		for _, c := range r.Config.Choices {
			for _, one := range c.Cases {
				if c.Name == route.Choice {
					to += ", " + one.Backend + " if " + one.If.String()
				}
			}
		}
		fmt.Fprintf(&b, "%s %s%s -> %s\n", route.Match, route.Host, route.Path, to)
	}
	if r.Config.DefaultBackend != "" {
		fmt.Fprintf(&b, "default -> %s\n", r.Config.DefaultBackend)
	}
	for _, be := range r.Config.Backends {
		fmt.Fprintf(&b, "backend %s:", be.Name)
		for _, s := range be.Servers {
			fmt.Fprintf(&b, " %s", s.Name)
			if s.Drain {
				b.WriteString("(drain)")
			}
		}
		b.WriteString("\n")
	}
	for _, c := range r.Config.Certs {
		fmt.Fprintf(&b, "cert %s for %s\n", c.Name, strings.Join(c.Hosts, " "))
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem %s %s/%s %s\n", p.Kind, p.Namespace, p.Name, p.Reason)
	}
	return b.String()
}

// app returns manifests of a Service with one ready pod.
func app(name string) string {
	return service(name, "http", 80) + slice(name, "a", "http", 8080, "172.16.1.1")
}

func service(name, port string, number int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, uid: svc-%[1]s}
spec: {ports: [{name: %q, port: %d, protocol: TCP}]}
---
`, name, port, number)
}

func slice(service, suffix, port string, number int, addrs ...string) string {
	var endpoints []string
	for _, a := range addrs {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%q], conditions: {ready: true}}", a))
	}
	family := "IPv4"
	if strings.Contains(addrs[0], ":") {
		family = "IPv6"
	}
	return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports: [{name: %[4]q, port: %[5]d, protocol: TCP}]
endpoints: [%[6]s]
---
`, service, suffix, family, port, number, strings.Join(endpoints, ", "))
}

// ingress returns the manifest of an Ingress of our class, created in the given year.
func ingress(name string, year int, spec string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %s, namespace: default, uid: ing-%[1]s, creationTimestamp: "%[2]d-01-01T00:00:00Z"}
spec: {ingressClassName: haproxy, %[3]s}
---
`, name, year, spec)
}

func rule(host string, paths ...string) string {
	if host != "" {
		host = fmt.Sprintf("host: %q, ", host)
	}
	return fmt.Sprintf("{%shttp: {paths: [%s]}}", host, strings.Join(paths, ", "))
}

func path(p, kind, service string) string {
	return fmt.Sprintf("{path: %q, pathType: %s, backend: {service: {name: %s, port: {number: 80}}}}", p, kind, service)
}

const to = "{service: {name: %s, port: {number: 80}}}"

func fallback(service string) string { return "defaultBackend: " + fmt.Sprintf(to, service) }

func TestIngressesBecomeRoutes(t *testing.T) {
	const web = "backend default_svc_web_http: s_172-16-1-1_8080\n"
	for name, tt := range map[string]struct{ manifests, want string }{
		"a host and a path": {
			app("web") + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_http\n" + web,
		},
		"every type of path; unmatched paths of a known host are 404": {
			app("web") + ingress("i", 2020,
				"rules: ["+rule("a.test", path("/e/", "Exact", "web"), path("/p/", "Prefix", "web"),
					path("/s", "ImplementationSpecific", "web"))+"]"),
			"prefix a.test/ -> 404\nexact a.test/e/ -> default_svc_web_http\n" +
				"prefix a.test/p -> default_svc_web_http\nprefix a.test/s -> default_svc_web_http\n" + web,
		},
		"an empty path is all paths": {
			app("web") + ingress("i", 2020, "rules: ["+rule("a.test", path("", "ImplementationSpecific", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_http\n" + web,
		},
		"no host, and a wildcard": {
			app("web") + ingress("i", 2020, "rules: ["+rule("", path("/x", "Prefix", "web"))+", "+
				rule("*.a.test", path("/x", "Prefix", "web"))+"]"),
			"prefix /x -> default_svc_web_http\nprefix *.a.test/ -> 404\nprefix *.a.test/x -> default_svc_web_http\n" +
				web,
		},
		"the default of an Ingress without rules is everybody's": {
			app("web") + app("other") + ingress("i", 2020, fallback("web")) +
				ingress("j", 2021, "rules: ["+rule("a.test", path("/x", "Prefix", "other"))+"]"),
			"prefix a.test/ -> default_svc_web_http\nprefix a.test/x -> default_svc_other_http\n" +
				"default -> default_svc_web_http\n" +
				"backend default_svc_other_http: s_172-16-1-1_8080\n" + web,
		},
		"the default of an Ingress with rules is its hosts'": {
			app("web") + app("other") +
				ingress("i", 2020, fallback("web")+", rules: ["+rule("a.test", path("/x", "Prefix", "other"))+
					", {host: b.test}]"),
			"prefix a.test/ -> default_svc_web_http\nprefix a.test/x -> default_svc_other_http\n" +
				"prefix b.test/ -> default_svc_web_http\n" +
				"backend default_svc_other_http: s_172-16-1-1_8080\n" + web,
		},
		"a younger explicit / goes before an older implicit default": {
			app("web") + app("other") +
				ingress("i", 2020, fallback("other")+", rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]") +
				ingress("j", 2021, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_http\nprefix a.test/x -> default_svc_web_http\n" + web,
		},
		"of two who claim a path the older wins": {
			app("web") + app("other") +
				ingress("a", 2021, "rules: ["+rule("a.test", path("/", "Prefix", "other"))+"]") +
				ingress("z", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_http\n" + web + "problem Ingress default/a PathConflict\n",
		},
		"Exact and Prefix of one path are two paths": {
			app("web") + app("other") +
				ingress("a", 2021, "rules: ["+rule("a.test", path("/", "Exact", "other"), path("/", "Prefix", "web"))+
					"]"),
			"exact a.test/ -> default_svc_other_http\nprefix a.test/ -> default_svc_web_http\n" +
				"backend default_svc_other_http: s_172-16-1-1_8080\n" + web,
		},
		"two defaults for all": {
			app("web") + app("other") + ingress("a", 2021, fallback("other")) + ingress("z", 2020, fallback("web")),
			"default -> default_svc_web_http\n" + web + "problem Ingress default/a DefaultBackendConflict\n",
		},
		"odd hosts and paths cost only themselves": {
			app("web") + ingress("i", 2020, "rules: ["+strings.Join([]string{
				rule("a b.test", path("/", "Prefix", "web")), rule("10.0.0.1", path("/", "Prefix", "web")),
				rule("*.*.test", path("/", "Prefix", "web")),
				rule("good.test", path("/a b", "Prefix", "web"), path(`/a\n`, "Prefix", "web"),
					path("/a\x01", "Prefix", "web"), path("rel", "ImplementationSpecific", "web"),
					path("/../x", "Prefix", "web"), path("/%zz", "Exact", "web"), path("/a//b", "Prefix", "web"),
					path("/x(/|$)(.*)", "ImplementationSpecific", "web"), path("/ok%20;v=1", "Prefix", "web")),
			}, ", ")+"]"),
			"prefix good.test/ -> 404\nprefix good.test/ok%20;v=1 -> default_svc_web_http\n" + web +
				strings.Repeat("problem Ingress default/i InvalidHost\n", 3) +
				strings.Repeat("problem Ingress default/i InvalidPath\n", 8),
		},
		"a Service or a port that does not exist answers 503": {
			app("web") + ingress("i", 2020,
				"rules: ["+rule("a.test", path("/", "Prefix", "gone"),
					`{path: /p, pathType: Prefix, backend: {service: {name: web, port: {number: 81}}}}`)+"]"),
			"prefix a.test/ -> default_svc_gone_80\nprefix a.test/p -> default_svc_web_81.none\n" +
				"backend default_svc_gone_80:\nbackend default_svc_web_81.none:\n" +
				"problem Ingress default/i PortNotFound\nproblem Ingress default/i ServiceNotFound\n",
		},
		"a port by name and by number is one backend": {
			app("web") + ingress("i", 2020,
				"rules: ["+rule("a.test", path("/", "Prefix", "web"),
					`{path: /p, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}`)+"]"),
			"prefix a.test/ -> default_svc_web_http\nprefix a.test/p -> default_svc_web_http\n" + web,
		},
		"a resource backend is refused": {
			app("web") + ingress("i", 2020,
				"rules: ["+rule("a.test", path("/", "Prefix", "web"),
					`{path: /p, pathType: Prefix, backend: {resource: {kind: Bucket, name: x}}}`)+"]"),
			"prefix a.test/ -> default_svc_web_http\n" + web + "problem Ingress default/i InvalidBackend\n",
		},
		"ExternalName is refused": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n" +
				"spec: {type: ExternalName, externalName: evil.test, ports: [{port: 80}]}\n---\n" +
				slice("web", "a", "", 80, "172.16.1.1") + ingress("i", 2020,
				"rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_80\nbackend default_svc_web_80:\n" +
				"problem Ingress default/i ExternalName\n",
		},
		"UDP is not a port to send requests to": {
			"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\n" +
				"spec: {ports: [{name: u, port: 80, protocol: UDP}, {name: t, port: 80}]}\n---\n" +
				slice("web", "a", "t", 8080, "172.16.1.1") +
				ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"),
			"prefix a.test/ -> default_svc_web_t\nbackend default_svc_web_t: s_172-16-1-1_8080\n",
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
		})
	}
}

func TestEndpointsBecomeServers(t *testing.T) {
	for name, tt := range map[string]struct{ slices, want string }{
		"several slices, a port that differs": {
			slice("web", "a", "http", 8080, "172.16.1.1") + slice("web", "b", "http", 9090, "172.16.1.2"),
			"s_172-16-1-1_8080 s_172-16-1-2_9090",
		},
		"twice the same in two slices": {
			slice("web", "a", "http", 8080, "172.16.1.1", "172.16.1.2") + slice("web", "b", "http", 8080, "172.16.1.2"),
			"s_172-16-1-1_8080 s_172-16-1-2_8080",
		},
		"both families": {
			slice("web", "a", "http", 8080, "172.16.1.1") + slice("web", "b", "http", 8080, "fd00::1"),
			"s_172-16-1-1_8080 s_fd00--1_8080",
		},
		"another port, another Service": {
			slice("web", "a", "metrics", 8080, "172.16.1.1") + slice("webs", "b", "http", 8080, "172.16.1.2"),
			"",
		},
		"conditions": {`
kind: EndpointSlice
metadata: {name: x, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints:
- {addresses: [172.16.1.1]}
- {addresses: [172.16.1.2], conditions: {ready: false}}
- {addresses: [172.16.1.3], conditions: {ready: false, terminating: true, serving: true}}
- {addresses: [172.16.1.4], conditions: {ready: false, terminating: true, serving: false}}
- {addresses: [172.16.1.5], conditions: {ready: false, serving: true}}
- {addresses: []}
---
` + slice("web", "z", "http", 80, "172.16.1.6") + `
kind: EndpointSlice
metadata: {name: moving, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [172.16.1.6], conditions: {ready: false, terminating: true, serving: true}}]
`, "s_172-16-1-1_80 s_172-16-1-3_80(drain) s_172-16-1-6_80"},
		"addresses that are not a pod's": {
			slice("web", "a", "http", 8080, "127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255",
				"x", "::1", "172.16.1.1") + `
kind: EndpointSlice
metadata: {name: names, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
ports: [{name: http, port: 80}]
endpoints: [{addresses: [evil.test]}]
---
` + slice("web", "c", "http", 8080, "fe80::1", "::ffff:10.0.0.1", "fd00::1%eth0", "fd00::2"),
			"s_172-16-1-1_8080 s_fd00--2_8080" + strings.Repeat("\nproblem Service default/web InvalidEndpoint", 10) +
				"\nproblem Service default/web UnsupportedEndpoints",
		},
		"no slices": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := Compile([]Snapshot{
				snapshot(t, Unnamed, service("web", "http", 80)+ingress("i", 2020, fallback("web"))+tt.slices),
			})
			want := strings.TrimSuffix("default -> default_svc_web_http\nbackend default_svc_web_http: "+tt.want, " ") +
				"\n"
			want = strings.ReplaceAll(want, ": \n", ":\n")
			if diff := cmp.Diff(want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestWhatAnIngressSaysIsForItsOwnRequests(t *testing.T) {
	said := func(name, host, annotations string) string {
		return "kind: Ingress\nmetadata: {name: " + name + ", namespace: default, annotations: {" + annotations +
			"}}\nspec: {ingressClassName: haproxy, rules: [{host: " + host +
			", http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}\n" +
			"---\n"
	}
	s := snapshot(t, Unnamed, app("web")+
		said("a", "a.test", "")+
		said("b", "b.test", `haproxy.org/timeout-server: 1s`)+
		said("c", "c.test", `haproxy.org/timeout-server: 2s, haproxy.org/ssl-redirect: "true"`)+
		said("d", "d.test", `haproxy.org/timeout-server: soon, haproxy.org/nothing: x`)+
		said("e", "e.test", `haproxy.org/standalone-backend: "true"`))
	want := `prefix a.test/ -> default_svc_web_http
prefix b.test/ -> default_ing_b_svc_web_http
prefix c.test/ -> default_ing_c_svc_web_http (https)
prefix d.test/ -> default_svc_web_http
prefix e.test/ -> default_svc_web_http
backend default_ing_b_svc_web_http: s_172-16-1-1_8080
backend default_ing_c_svc_web_http: s_172-16-1-1_8080
backend default_svc_web_http: s_172-16-1-1_8080
problem Ingress default/d InvalidAnnotation
problem Ingress default/d UnknownAnnotation
`
	r := Compile([]Snapshot{s})
	if diff := cmp.Diff(want, read(r)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if b := r.Config.Backends[0]; !slices.Contains(b.Directives, haproxy.Timeout("server", time.Second)) ||
		b.Origin != "Ingress default/b, Service default/web port http" {
		t.Errorf("the backend of b: %+v", b)
	}

	// The keys of the Service are for all Ingresses, and override the Ingresses' own:
	// b and c have no backend of their own any more.
	s.Services[0].Annotations = map[string]string{
		"haproxy.org/timeout-server": "3s",
		"haproxy.org/allow-list":     "10.0.0.0/8",
	}
	r = Compile([]Snapshot{s})
	if n := len(r.Config.Backends); n != 1 ||
		!slices.Contains(r.Config.Backends[0].Directives, haproxy.Timeout("server", 3*time.Second)) {
		t.Errorf("%d backends, of which the first is %+v", n, r.Config.Backends[0])
	}
	if got := read(r); !strings.HasSuffix(got, "problem Service default/web UnknownAnnotation\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestAGuardWithoutAPrefixGuards(t *testing.T) {
	for name, row := range map[string]struct {
		said   map[string]string
		want   string // a part of the directive
		reason string
	}{
		"a list": {map[string]string{"deny-list": "10.0.0.0/8"}, "deny deny_status 403", ""},
		"users that there are": {
			map[string]string{"auth-type": "basic-auth", "auth-secret": "users"},
			"http-request auth realm", "",
		},
		"users that there are not": {map[string]string{"auth-secret": "gone"}, "status 503", "InvalidAnnotation"},
		"a list of nobody":         {map[string]string{"deny-list": "nobody"}, "status 503", "InvalidAnnotation"},
		"mistyped, under a prefix": {
			map[string]string{"haproxy.org/deny-lists": "10.0.0.0/8"},
			"status 503",
			"UnknownAnnotation",
		},
		"mistyped, and without it": {map[string]string{"deny-lists": "10.0.0.0/8"}, "", "UnknownAnnotation"},
		"a class, and a list, without": {
			map[string]string{"ingress.class": "haproxy", "whitelist": "10.0.0.0/8"},
			"deny deny_status 403", "OlderAnnotation",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("web")+ingress("a", 2020,
				"rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]")+
				ingress("b", 2021, "rules: ["+rule("b.test", path("/", "Prefix", "web"))+"]"))
			s.Secrets = []*corev1.Secret{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "users"},
				Data:       map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))},
			}}
			s.Ingresses[0].Annotations = row.said
			r := Compile([]Snapshot{s})
			says := map[string]string{}
			for _, b := range r.Config.Backends {
				for _, d := range b.Directives {
					says[b.Name] += d.String() + "\n"
				}
			}
			if got := says[r.Config.Routes[0].Backend]; !strings.Contains(got, row.want) ||
				row.want == "" && strings.Contains(got, "status") {
				t.Errorf("want %q in\n%s", row.want, got)
			}
			if got := says[r.Config.Routes[1].Backend]; strings.Contains(got, "status") ||
				strings.Contains(got, "auth") {
				t.Errorf("the other Ingress has it too:\n%s", got)
			}
			reason := ""
			if len(r.Problems) > 0 {
				reason = r.Problems[0].Reason
			}
			if reason != row.reason {
				t.Errorf("want %q told, got %v", row.reason, r.Problems)
			}
		})
	}
}

func TestTheBackendsOfAnIngressCountInOneTable(t *testing.T) {
	r := Compile([]Snapshot{snapshot(t, Unnamed, app("web")+app("api")+`
kind: Ingress
metadata: {name: a, namespace: default, annotations: {haproxy.org/rate-limit-requests: "10"}}
spec: {ingressClassName: haproxy, rules: [{host: a.test, http: {paths: [
  {path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}},
  {path: /api, pathType: Prefix, backend: {service: {name: api, port: {name: http}}}}]}}]}
`)})
	want := []haproxy.Table{{Name: "default_ing_a_rate", Size: 100 << 10, Period: time.Second}}
	if diff := cmp.Diff(want, r.Config.Tables); diff != "" || len(r.Config.Backends) != 2 {
		t.Errorf("%d backends; want (-), got (+):\n%s", len(r.Config.Backends), diff)
	}
}

func TestAConfigMapSpeaksForAll(t *testing.T) {
	s := snapshot(t, Unnamed, app("web")+`
kind: Ingress
metadata: {name: a, namespace: default}
spec: {ingressClassName: haproxy, rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}
`)
	s.Options.ConfigMap = "kube-system/defaults"
	reasons := func(r Result) (all []string) {
		for _, p := range r.Problems {
			all = append(all, p.Kind+" "+p.Namespace+"/"+p.Name+" "+p.Reason)
		}
		return all
	}
	var c Compiler
	if got, want := reasons(c.Compile([]Snapshot{s})),
		[]string{"ConfigMap kube-system/defaults ConfigMapNotFound"}; !slices.Equal(got, want) {
		t.Errorf("without it: want %q, got %q", want, got)
	}
	s.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "defaults"},
		Data: map[string]string{
			"timeout-server": "7s", "ssl-redirect": "true", "check-interval": "soon",
			"tiemout-server": "1s",
		},
	}}
	r := c.Compile([]Snapshot{s})
	if got, want := reasons(r),
		[]string{
			"ConfigMap kube-system/defaults InvalidAnnotation",
			"ConfigMap kube-system/defaults UnknownAnnotation",
		}; !slices.Equal(got, want) {
		t.Errorf("with it: want %q, got %q", want, got)
	}
	if b := r.Config.Backends[0]; b.Name != "default_svc_web_http" ||
		!slices.Contains(b.Directives, haproxy.Timeout("server", 7*time.Second)) {
		t.Errorf("got %+v", b)
	}
	if !r.Config.Routes[0].TLSOnly {
		t.Error("plain HTTP is not redirected")
	}
}

func TestAnIngressIsExplained(t *testing.T) {
	s := snapshot(t, Unnamed, app("web")+`
kind: Ingress
metadata: {name: a, namespace: default, creationTimestamp: 2020-01-01T00:00:00Z, annotations: {haproxy.org/timeout-server: 1s, haproxy.org/ssl-redirect: "true", haproxy.org/ssl-redirect-port: "8443"}}
spec: {ingressClassName: haproxy, rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}
---
kind: Ingress
metadata: {name: b, namespace: default, creationTimestamp: 2021-01-01T00:00:00Z}
spec: {ingressClassName: haproxy, rules: [{host: a.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}
---
kind: Ingress
metadata: {name: other, namespace: default}
spec: {ingressClassName: nginx}
`)
	s.Services[0].Annotations = map[string]string{"haproxy.org/check-interval": "7s", "haproxy.org/typo": "x"}
	r := Compile([]Snapshot{s})
	got, ok := r.Explain(Unnamed, "default", "a")
	want := Explanation{
		Ingress: ObjectRef{Cluster: Unnamed, Kind: "Ingress", Namespace: "default", Name: "a"},
		Rules: []ExplainedRule{{
			Host: "a.test", Path: "/", Match: haproxy.Prefix,
			Backend: "default_ing_a_svc_web_http", HTTPS: "302 to port 8443",
		}},
		Backends: []ExplainedBackend{{
			Name: "default_ing_a_svc_web_http", Origin: "Ingress default/a, Service default/web port http", Own: true,
			Keys: []annotations.Effective{
				{Key: "timeout-server", As: "haproxy.org/timeout-server", Value: "1s", Scope: "Ingress"},
				{Key: "check-interval", As: "haproxy.org/check-interval", Value: "7s", Scope: "Service"},
			},
			Directives: []string{"option forwardfor", "timeout server 1000ms"},
		}},
	}
	if len(got.Problems) != 1 || got.Problems[0].Kind != "Service" {
		t.Errorf("want the problem of the Service, got %v", got.Problems)
	}
	got.Problems = nil
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if got, ok := r.Explain(Unnamed, "default", "b"); !ok || len(got.Rules) != 0 || len(got.Problems) != 1 {
		t.Errorf("of one that came too late: %+v", got)
	}
	for _, name := range []string{"other", "nobody"} {
		if _, ok := r.Explain(Unnamed, "default", name); ok {
			t.Errorf("%s is not ours", name)
		}
	}
}

func TestAServerSaysWhoItIs(t *testing.T) {
	r := Compile([]Snapshot{snapshot(t, Unnamed, service("web", "http", 80)+ingress("i", 2020, fallback("web"))+`
kind: EndpointSlice
metadata: {name: x, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [172.16.1.1], nodeName: worker1, targetRef: {kind: Pod, name: web-1, namespace: default}}]
`)})
	got := r.Config.Backends[0]
	if got.Servers[0].Pod != "default/web-1" || got.Servers[0].Node != "worker1" ||
		got.Origin != "Service default/web port http" || !got.Options.Check {
		t.Errorf("got %+v", got)
	}
	want := ObjectRef{Cluster: Unnamed, Kind: "Ingress", Namespace: "default", Name: "i", UID: "ing-i"}
	if len(r.Served) != 1 || r.Served[0] != want {
		t.Errorf("want %v served, got %v", want, r.Served)
	}
}

// TestABackendIsOfTheNamespaceOfItsService does not trust the namespaces of pods in a
// slice: the author of the slice chooses them.
func TestABackendIsOfTheNamespaceOfItsService(t *testing.T) {
	r := Compile([]Snapshot{snapshot(t, Unnamed, service("web", "http", 80)+ingress("i", 2020, fallback("web"))+`
kind: EndpointSlice
metadata: {name: x, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [172.16.1.1], targetRef: {kind: Pod, name: till, namespace: shop}}]
`)})
	if got := r.Config.Backends[0]; got.Cluster != Unnamed || got.Namespace != "default" {
		t.Errorf("it is of namespace %q of cluster %q", got.Namespace, got.Cluster)
	}
}

func TestOnlyOurClassesAreServed(t *testing.T) {
	const class = "kind: IngressClass\n" +
		"metadata: {name: %s, annotations: {ingressclass.kubernetes.io/is-default-class: %q}}\n" +
		"spec: {controller: %s}\n---\n"
	for name, tt := range map[string]struct {
		classes, annotation, class string
		options                    Options
		want                       bool
	}{
		"by name, classes cannot be read": {class: "haproxy", want: true},
		"by name, there is no such class": {
			classes: fmt.Sprintf(class, "other", "false", "example.org/c"),
			class:   "haproxy",
		},
		"by name, of another controller": {
			classes: fmt.Sprintf(class, "haproxy", "false", "example.org/c"),
			class:   "haproxy",
		},
		"by name, of our controller": {classes: fmt.Sprintf(class, "haproxy", "false",
			"haproxy.org/ingress-controller"), class: "haproxy", want: true},
		"the annotation, there is no such class": {
			classes:    fmt.Sprintf(class, "other", "false", "example.org/c"),
			annotation: "haproxy", want: true,
		},
		"the annotation, of another controller": {
			classes:    fmt.Sprintf(class, "haproxy", "false", "example.org/c"),
			annotation: "haproxy",
		},
		"another name": {class: "nginx"},
		"a class of our controller": {classes: fmt.Sprintf(class, "edge", "false",
			"haproxy.org/ingress-controller"), class: "edge", want: true},
		"a class of our controller and class": {classes: fmt.Sprintf(class, "edge", "false",
			"haproxy.org/ingress-controller/haproxy"), class: "edge", want: true},
		"a class of another controller": {
			classes: fmt.Sprintf(class, "edge", "false", "example.org/c"),
			class:   "edge",
		},
		"the annotation":                       {annotation: "haproxy", want: true},
		"the annotation goes before the field": {annotation: "nginx", class: "haproxy"},
		"none at all":                          {},
		"none at all, and we take those":       {options: Options{WatchWithoutClass: true}, want: true},
		"none at all, our class is the default": {classes: fmt.Sprintf(class, "edge", "true",
			"haproxy.org/ingress-controller"), want: true},
		"none at all, another is the default": {
			classes: fmt.Sprintf(class, "edge", "true", "example.org/c"),
			options: Options{WatchWithoutClass: true},
		},
		"the configured name": {class: "own", options: Options{Class: "own"}, want: true},
		"the configured controller": {
			classes: fmt.Sprintf(class, "edge", "false", "example.org/own"),
			class:   "edge", options: Options{Controller: "example.org/own"}, want: true,
		},
		"a namespace that is not to be looked at": {class: "haproxy", options: Options{Namespaces: []string{"other"}}},
		"a namespace that is never looked at": {
			class:   "haproxy",
			options: Options{NotNamespaces: []string{"default"}},
		},
		"a namespace with the labels": {
			class:   "haproxy",
			options: Options{NamespaceSelector: "team in (web, shop),!old"}, want: true,
		},
		"a namespace without them": {class: "haproxy", options: Options{NamespaceSelector: "team=shop"}},
		"a selector that is none":  {class: "haproxy", options: Options{NamespaceSelector: "team in"}},
		"a namespace that is":      {class: "haproxy", options: Options{Namespaces: []string{"default"}}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, tt.classes+app("web")+ingress("i", 2020, fallback("web")))
			s.Options = tt.options
			s.Namespaces = []*corev1.Namespace{
				{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "web"}}},
			}
			s.Ingresses[0].Spec.IngressClassName = nil
			if tt.class != "" {
				s.Ingresses[0].Spec.IngressClassName = &tt.class
			}
			if tt.annotation != "" {
				s.Ingresses[0].Annotations = map[string]string{"kubernetes.io/ingress.class": tt.annotation}
			}
			r := Compile([]Snapshot{s})
			if got := len(r.Served) == 1; got != tt.want || len(r.Problems) > 0 {
				t.Errorf("want served %v, got %v; problems %v", tt.want, got, r.Problems)
			}
		})
	}
}

func TestAnIngressSaysHowItsPathsAreCompared(t *testing.T) {
	const first, web = "prefix a.test/ -> 404\nprefix a.test/p -> default_svc_web_http\n",
		"backend default_svc_web_http: s_172-16-1-1_8080\n"
	for _, tt := range []struct{ kind, path, want string }{
		{"exact", "/v/", first + "exact a.test/v/ -> default_svc_web_http\n" + web},
		{"begin", "/v/", first + "begin a.test/v/ -> default_svc_web_http\n" + web},
		{"prefix", "/v/", first + "prefix a.test/v -> default_svc_web_http\n" + web},
		{"regex", "/v[0-9]/", first + "regex a.test/v[0-9]/ -> default_svc_web_http\n" + web},
		{"begin", "/v[0-9]/", first + web + "problem Ingress default/i InvalidPath\n"},
		{"regex", "/(", first + web + "problem Ingress default/i InvalidPath\n"},
		{"regex", "/ ", first + web + "problem Ingress default/i InvalidPath\n"},
	} {
		s := snapshot(t, Unnamed, app("web")+
			ingress("i", 2020, "rules: ["+rule("a.test", path(tt.path, "ImplementationSpecific", "web"),
				path("/p", "Prefix", "web"))+"]"))
		s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/path-type": tt.kind}
		r := Compile([]Snapshot{s})
		got := strings.Split(read(r), "\n")
		want := strings.Split(tt.want, "\n")
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s: want (-), got (+):\n%s", tt.kind, tt.path, diff)
		}
		if err := r.Config.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestAHostHasSoManyRegularExpressions(t *testing.T) {
	var paths []string
	for i := range maxPatterns + 2 {
		paths = append(paths, path(fmt.Sprintf("/v%d[0-9]", i), "ImplementationSpecific", "web"))
	}
	s := snapshot(t, Unnamed, app("web")+
		ingress("i", 2020, "rules: ["+rule("a.test", paths...)+", "+rule("b.test", paths[0])+"]"))
	s.Ingresses[0].Annotations = map[string]string{"sallyport.dev/path-type": "regex"}
	r := Compile([]Snapshot{s})
	got := make(map[string]int)
	for _, route := range r.Config.Routes {
		if route.Match == haproxy.Regexp {
			got[route.Host]++
		}
	}
	if want := map[string]int{"a.test": maxPatterns, "b.test": 1}; !maps.Equal(got, want) || len(r.Problems) != 2 ||
		r.Problems[0].Reason != "TooManyPatterns" {
		t.Errorf("got %v and the problems %v, want %v and two of the reason TooManyPatterns", got, r.Problems, want)
	}
}

func TestAnOlderAnnotationNamesTheClass(t *testing.T) {
	for annotation, want := range map[string]bool{
		"haproxy.org/ingress.class": true, "haproxy.com/ingress.class": true,
		"ingress.kubernetes.io/ingress.class": true, "nginx.ingress.kubernetes.io/ingress.class": false,
	} {
		s := snapshot(t, Unnamed, app("web")+ingress("i", 2020, fallback("web")))
		s.Ingresses[0].Spec.IngressClassName = nil
		s.Ingresses[0].Annotations = map[string]string{annotation: "haproxy"}
		r := Compile([]Snapshot{s})
		if got := len(r.Served) == 1; got != want ||
			got != (len(r.Problems) == 1 && r.Problems[0].Reason == "OlderAnnotation") {
			t.Errorf("%s: served %v, want %v; problems %v", annotation, got, want, r.Problems)
		}
	}
}

func TestTheFirstClusterWins(t *testing.T) {
	first := snapshot(t, "east",
		app("web")+ingress("young", 2024, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	second := snapshot(t, "west",
		app("web")+ingress("old", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+", "+
			rule("b.test", path("/", "Prefix", "web"))+"]"))
	r := Compile([]Snapshot{first, second})
	want := `prefix a.test/ -> east__default_svc_web_http
prefix b.test/ -> west__default_svc_web_http
backend east__default_svc_web_http: s_172-16-1-1_8080
backend west__default_svc_web_http: s_172-16-1-1_8080
problem Ingress default/old HostOwned
`
	if diff := cmp.Diff(want, read(r)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if why := r.Problems[0].Why; !strings.Contains(why, "Ingress default/young of cluster east") {
		t.Errorf("the winner is not named: %s", why)
	}
}

func TestAClusterThatComesOrGoesRenamesNothingOfAnother(t *testing.T) {
	for name, first := range map[string]string{"east": "east__default_", Unnamed: "default_"} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, name, app("web")+ingress("i", 2024, "tls: [{secretName: tls, hosts: [a.test]}], rules: ["+
				rule("a.test", path("/", "Prefix", "web"))+"]"))
			crt, key := certificate{names: []string{"a.test"}}.make(t)
			s.Secrets = []*corev1.Secret{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"},
				Type:       corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": crt, "tls.key": key},
			}}
			var c Compiler
			alone := c.Compile([]Snapshot{s})
			if got, want := backendNames(alone), []string{first + "svc_web_http"}; !slices.Equal(got, want) {
				t.Errorf("backends %q, want %q", got, want)
			}
			if got, want := alone.Config.Certs[0].Name, first+"tls.pem"; got != want {
				t.Errorf("certificate %s, want %s", got, want)
			}
			same := func(when string, r Result) {
				t.Helper()
				if r.Config.Backends[0] != alone.Config.Backends[0] || r.Config.Certs[0] != alone.Config.Certs[0] {
					t.Errorf("%s: %s and %s are others than before", when, r.Config.Backends[0].Name, r.Config.Certs[0].Name)
				}
			}
			c.Unknown = []Snapshot{{Cluster: "west"}}
			same("another cluster is configured", c.Compile([]Snapshot{s}))
			c.Unknown = nil
			same("another cluster is known", c.Compile([]Snapshot{s, {Cluster: "west"}}))
			same("the other cluster is first", c.Compile([]Snapshot{{Cluster: "west"}, s}))
			same("the other cluster is removed", c.Compile([]Snapshot{s}))
		})
	}
}

func TestNoTwoClustersShareAName(t *testing.T) {
	asking := snapshot(t, Unnamed, app("web")+of("ops", app("door"))+ingress("i", 2024,
		"rules: ["+rule("a.test", path("/", "Prefix", "web"))+"]"))
	asking.Ingresses[0].Annotations = map[string]string{"sallyport.dev/auth-url": "svc://ops/door:http"}
	asking.Options.AuthServices = []string{"ops/door"}
	named := snapshot(t, "ops", of("auth", app("door")+ingress("i", 2024,
		"rules: ["+rule("b.test", path("/", "Prefix", "door"))+"]")))
	got := backendNames(Compile([]Snapshot{asking, named}))
	want := []string{"default_ing_i_svc_web_http", "ops__auth_svc_door_http", "ops_auth_svc_door_http"}
	if !slices.Equal(got, want) {
		t.Errorf("backends %q, want %q", got, want)
	}
}

func backendNames(r Result) (all []string) {
	for _, b := range r.Config.Backends {
		all = append(all, b.Name)
	}
	return all
}

// With keys of an unknown cluster, guards for every host would be missing.
func TestTheKeysOfTheProcessStayUntilTheirClusterIsKnown(t *testing.T) {
	const guard, other = "10.0.0.0/8", "192.0.2.0/24"
	leading := func(cluster, from string) Snapshot {
		return Snapshot{
			Cluster: cluster, Options: Options{Process: true, ConfigMap: "ops/keys"},
			Objects: Objects{ConfigMaps: []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
				Data:       map[string]string{"proxy-protocol": from},
			}}},
		}
	}
	east, north := leading("east", guard), leading("north", other)
	unread := func(s Snapshot) []Snapshot { return []Snapshot{{Cluster: s.Cluster, Options: s.Options}} }
	west := leading("west", other)
	west.Options.Process = false
	c := new(Compiler)
	step := func(when string, snaps, unknown []Snapshot, awaits, from string) {
		t.Helper()
		c.Unknown = unknown
		r := c.Compile(snaps)
		if r.Awaits != awaits {
			t.Errorf("%s: it awaits cluster %q, want %q", when, r.Awaits, awaits)
		}
		got := ""
		for _, p := range r.Config.Process.ProxyFrom {
			got += p.String()
		}
		if got != from {
			t.Errorf("%s: connections begin with a PROXY header from %q, want %q", when, got, from)
		}
	}
	bare := unread(east)
	bare[0].Options.ConfigMap = ""
	step("the unknown cluster has no ConfigMap", []Snapshot{west}, bare, "", "")
	step("the unknown cluster has one", []Snapshot{west}, unread(east), "east", "")
	step("it is known", []Snapshot{east, west}, nil, "", guard)
	step("another cluster is to set the keys, and is unknown", []Snapshot{west}, unread(north), "", guard)
	step("the same, and the last one is known", []Snapshot{leading("east", "172.16.0.0/12"), west}, unread(north),
		"", "172.16.0.0/12")
	step("that cluster is known, too", []Snapshot{north, west}, nil, "", other)
}

func TestOneClusterSetsTheProcessForAll(t *testing.T) {
	configured := func(cluster string, keys, files map[string]string) Snapshot {
		s := Snapshot{Cluster: cluster}
		s.Options.ConfigMap, s.Options.ErrorFiles = "ops/keys", "ops/files"
		for name, data := range map[string]map[string]string{"keys": keys, "files": files} {
			s.ConfigMaps = append(s.ConfigMaps,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Data: data})
		}
		return s
	}
	page := func(text string) map[string]string {
		return map[string]string{"404": "HTTP/1.0 404 Not Found\r\n\r\n" + text}
	}
	silent := configured("silent", map[string]string{"timeout-server": "3s"}, nil)
	east := configured("east", map[string]string{"maxconn": "1000", "nbthread": "2"}, page("east"))
	named := east
	named.Options.Process = true
	west := func(keys map[string]string) Snapshot { return configured("west", keys, nil) }
	for name, row := range map[string]struct {
		before, unknown []Snapshot
		leader, other   Snapshot
		maxConn         int
		want            string // problems
	}{
		"nothing": {nil, nil, east, silent, 1000, ""},
		"the same": {
			nil, nil, east,
			configured("west", map[string]string{"maxconn": "1000"}, page("east")), 1000, "",
		},
		"a key for each backend": {nil, nil, east, west(map[string]string{"timeout-server": "1s"}), 1000, ""},
		"another value": {
			nil, nil, east, west(map[string]string{"maxconn": "2000", "nbthread": "2"}),
			1000, "west ConfigMap ops/keys SetByAnotherCluster maxconn\n",
		},
		"keys that east leaves": {
			nil, nil, east,
			west(map[string]string{"timeout-client": "1s", "maxconn": "2000"}), 1000,
			"west ConfigMap ops/keys SetByAnotherCluster maxconn, timeout-client\n",
		},
		"another page for a status": {
			nil, nil, east, configured("west", nil, page("west")), 1000,
			"west ConfigMap ops/files SetByAnotherCluster 404\n",
		},
		"though the first is silent": {
			nil, nil, silent,
			west(map[string]string{
				"maxconn": "2000", "frontend-config-snippet": "http-request deny",
				"default-backend-service": "a/b",
			}), 0,
			"west ConfigMap ops/keys SetByAnotherCluster default-backend-service, frontend-config-snippet, maxconn\n",
		},
		"though the first has no ConfigMap": {
			nil, nil,
			Snapshot{Cluster: "bare"},
			west(map[string]string{
				"proxy-protocol": "0.0.0.0/0", "syslog-server": "address:10.0.0.1",
				"client-ca": "a/ca", "ssl-certificate": "a/tls",
			}), 0,
			"west ConfigMap ops/keys SetByAnotherCluster client-ca, proxy-protocol, ssl-certificate, syslog-server\n",
		},
		"the one that is named": {
			[]Snapshot{configured("first", map[string]string{"maxconn": "500"}, nil)},
			nil, named,
			silent, 1000, "first ConfigMap ops/keys SetByAnotherCluster maxconn\n",
		},
		"the one that is named is unknown": {
			nil,
			[]Snapshot{{Cluster: "east", Options: Options{Process: true}}},
			configured("west", map[string]string{"maxconn": "2000"}, nil), silent, 0,
			"west ConfigMap ops/keys SetByAnotherCluster maxconn\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Compiler{Unknown: row.unknown}
			r := c.Compile(append(row.before, row.leader, row.other))
			got := ""
			for _, p := range r.Problems {
				_, keys, _ := strings.Cut(p.Why, "no effect on the process: ")
				got += fmt.Sprintf("%s %s %s/%s %s %s\n", p.Cluster, p.Kind, p.Namespace, p.Name, p.Reason, keys)
				if leader := c.leader(c.snapshots()); !strings.Contains(p.Why, "cluster "+leader+" ") {
					t.Errorf("%q does not name cluster %s", p.Why, leader)
				}
			}
			if got != row.want {
				t.Errorf("got problems %q, want %q", got, row.want)
			}
			if r.Config.Process.MaxConn != row.maxConn {
				t.Errorf("got maxconn %d, want %d", r.Config.Process.MaxConn, row.maxConn)
			}
			p := r.Config.Process
			if len(p.Texts)+len(p.Lines)+len(p.ProxyFrom) > 0 || p.ClientCA != "" || r.Config.DefaultCert != nil ||
				r.Config.DefaultBackend != "" {
				t.Errorf("of a cluster that does not set the process, this is set: %+v, %q", p, r.Config.DefaultBackend)
			}
		})
	}
}

// snapshots returns those of the last call of Compile.
func (c *Compiler) snapshots() (all []Snapshot) {
	for _, w := range c.worlds {
		all = append(all, w.Snapshot)
	}
	return all
}

func TestOnlyTheClusterThatSetsTheProcessBringsSnippets(t *testing.T) {
	text := app("web") + ingress("i", 2020, "rules: ["+rule("b.test", path("/", "Prefix", "web"))+"]")
	for name, row := range map[string]struct {
		options func(*Options)
		asked   bool
	}{
		"the second cluster":                         {func(*Options) {}, false},
		"the second cluster as one tenant":           {func(o *Options) { o.OneTenant = true }, false},
		"the second cluster, if the file allows it":  {func(o *Options) { o.Snippets = true }, true},
		"the second cluster, if it sets the process": {func(o *Options) { o.Process = true }, true},
	} {
		two := snapshot(t, "two", text)
		two.Options.ConfigMap = "ops/keys"
		two.ConfigMaps = []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
			Data:       map[string]string{"backend-config-snippet": "http-request set-map(hosts.map) shop.test two"},
		}}
		row.options(&two.Options)
		r := Compile([]Snapshot{{Cluster: "one"}, two})
		if got := len(r.Questions) > 0; got != row.asked {
			t.Errorf("%s: the snippet is asked about: %v, want %v; problems %v", name, got, row.asked, r.Problems)
		}
		if said := fmt.Sprint(r.Problems); !row.asked && !strings.Contains(said, "clusters[].ingress.snippets") {
			t.Errorf("%s: the problems are %s, and do not name the key", name, said)
		}
	}
}

func TestTheDefaultOfAllHostsIsNotAnotherClusters(t *testing.T) {
	one := snapshot(t, "one", app("web")+ingress("i", 2020, "rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]"))
	one.Options.ConfigMap = "ops/keys"
	one.ConfigMaps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
		Data:       map[string]string{"default-backend-service": "default/web"},
	}}
	two := snapshot(t, "two", app("web")+ingress("j", 2019, fallback("web")))
	two.Options.OneTenant = true
	two.Options.ConfigMap, two.ConfigMaps = one.Options.ConfigMap, one.ConfigMaps
	if r := Compile([]Snapshot{one, two}); r.Config.DefaultBackend != "one__default_svc_web_http" {
		t.Errorf("the default of all hosts is %q, want that of cluster one", r.Config.DefaultBackend)
	}
	one.Options.ConfigMap, two.Ingresses = "", nil
	if r := Compile([]Snapshot{one, two}); r.Config.DefaultBackend != "" {
		t.Errorf("the default of all hosts is %q, want none: cluster one sets none", r.Config.DefaultBackend)
	}
}

func TestHostsAreKeptForAClusterThatIsNotKnownYet(t *testing.T) {
	east := snapshot(t, "east",
		app("web")+ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "web"))+", "+
			rule("kept.west.test", path("/", "Prefix", "web"))+"]"))
	west := Snapshot{
		Cluster: "west", Options: Options{Hosts: []HostRule{{Host: "*.west.test", Namespaces: []string{"*"}}}},
	}
	c := Compiler{Unknown: []Snapshot{west}}
	before := c.Compile([]Snapshot{east})
	want := `prefix a.test/ -> east__default_svc_web_http
backend east__default_svc_web_http: s_172-16-1-1_8080
problem Ingress default/i HostOwned
`
	if diff := cmp.Diff(want, read(before)); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	c.Unknown = nil
	after := c.Compile([]Snapshot{east, west})
	if diff := cmp.Diff(want, read(after)); diff != "" {
		t.Errorf("once it is known: want (-), got (+):\n%s", diff)
	}
}

func TestLongNamesStayApart(t *testing.T) {
	long := strings.Repeat("x", 62)
	var seen []string
	for _, ns := range []string{long + "a", long + "b"} {
		for _, svc := range []string{long + "a", long + "b"} {
			for _, port := range []string{long + "a", long + "b"} {
				var s Snapshot
				s.Ingresses = []*networkingv1.Ingress{{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: ns, Name: "i",
						Annotations: map[string]string{"kubernetes.io/ingress.class": "haproxy"},
					},
					Spec: networkingv1.IngressSpec{
						DefaultBackend: &networkingv1.IngressBackend{
							Service: &networkingv1.IngressServiceBackend{
								Name: svc,
								Port: networkingv1.ServiceBackendPort{Name: port},
							},
						},
					},
				}}
				for _, s.Cluster = range []string{Unnamed, long} {
					r := Compile([]Snapshot{s})
					if err := r.Config.Validate(); err != nil {
						t.Error(err)
					}
					seen = append(seen, r.Config.DefaultBackend)
				}
			}
		}
	}
	slices.Sort(seen)
	if got := len(slices.Compact(seen)); got != 16 {
		t.Errorf("want 16 names, got %d", got)
	}
}

func TestAnEndpointTouchesOnlyItsOwnBackend(t *testing.T) {
	s := snapshot(t, Unnamed, app("web")+app("other")+ingress("i", 2020,
		"rules: ["+rule("a.test", path("/", "Prefix", "web"), path("/o", "Prefix", "other"))+"]"))
	var c Compiler
	before := c.Compile([]Snapshot{s})
	changed := s.Slices[0].DeepCopy() // of web
	changed.Endpoints = append(changed.Endpoints, discoveryv1.Endpoint{Addresses: []string{"172.16.1.9"}})
	s.Slices = []*discoveryv1.EndpointSlice{s.Slices[1], changed}
	after := c.Compile([]Snapshot{s})
	if before.Config.Backends[0] != after.Config.Backends[0] {
		t.Error("the backend of other was made anew")
	}
	if len(after.Config.Backends[1].Servers) != 2 || len(before.Config.Backends[1].Servers) != 1 {
		t.Errorf("want one more server, got %v", after.Config.Backends[1].Servers)
	}
	if &before.Config.Routes[0] != &after.Config.Routes[0] {
		t.Error("the routes were made anew")
	}

	// New objects with the same content, as after a new list, change nothing.
	again := s
	again.Ingresses = []*networkingv1.Ingress{s.Ingresses[0].DeepCopy()}
	again.Services = []*corev1.Service{s.Services[0].DeepCopy(), s.Services[1].DeepCopy()}
	again.Slices = []*discoveryv1.EndpointSlice{s.Slices[0].DeepCopy(), s.Slices[1].DeepCopy()}
	third := c.Compile([]Snapshot{again})
	if &third.Config.Routes[0] != &after.Config.Routes[0] ||
		!slices.Equal(third.Config.Backends, after.Config.Backends) {
		t.Error("equal objects made new routes or backends")
	}
}

func TestCertificates(t *testing.T) {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	good := secretText(t, "tls", certificate{names: []string{"a.test", "*.b.test"}})
	const tlsA = "tls: [{hosts: [a.test], secretName: tls}], "
	rules := "rules: [" + rule("a.test", path("/", "Prefix", "web")) + ", " +
		rule("x.b.test", path("/", "Prefix", "web")) + "]"
	const plain = "prefix a.test/ -> default_svc_web_http\nprefix x.b.test/ -> default_svc_web_http\n" +
		"backend default_svc_web_http: s_172-16-1-1_8080\n"
	const secureA = "prefix a.test/ -> default_svc_web_http (https)\nprefix x.b.test/ -> default_svc_web_http\n" +
		"backend default_svc_web_http: s_172-16-1-1_8080\n"
	const secure = "prefix a.test/ -> default_svc_web_http (https)\n" +
		"prefix x.b.test/ -> default_svc_web_http (https)\nbackend default_svc_web_http: s_172-16-1-1_8080\n"
	const certA = "cert default_tls.pem for a.test\n"
	for name, tt := range map[string]struct{ secret, spec, redirect, want string }{
		"for the hosts that are named": {secret: good, spec: tlsA, want: secureA + certA},
		"without hosts, for the certificate's own": {
			secret: good, spec: "tls: [{secretName: tls}], ",
			want: secure + "cert default_tls.pem for *.b.test a.test\n",
		},
		"redirect switched off":        {secret: good, spec: tlsA, redirect: "false", want: plain + certA},
		"redirect forced, without TLS": {redirect: "true", want: secure},
		"redirect written wrongly": {
			secret: good, spec: tlsA, redirect: "maybe",
			want: secureA + certA + "problem Ingress default/i InvalidAnnotation\n",
		},
		"no such Secret": {spec: tlsA, want: plain + "problem Ingress default/i SecretNotFound\n"},
		"no Secret named": {
			spec: "tls: [{hosts: [a.test]}], ",
			want: plain + "problem Ingress default/i NoCertificate\n",
		},
		"expired": {
			secret: secretText(t, "tls",
				certificate{names: []string{"a.test"}, until: now.Add(-time.Hour)}), spec: tlsA,
			want: secureA + certA + "problem Ingress default/i CertificateExpired\n",
		},
		"for another host": {
			secret: secretText(t, "tls", certificate{names: []string{"z.test"}}),
			spec:   tlsA, want: secureA + certA + "problem Ingress default/i CertificateHostMismatch\n",
		},
		"a key that is not the certificate's": {
			secret: secretText(t, "tls",
				certificate{names: []string{"a.test"}, otherKey: true}), spec: tlsA,
			want: plain + "problem Ingress default/i CertificateUnusable\n",
		},
		"a key OpenSSL calls weak": {
			secret: secretText(t, "tls", certificate{names: []string{"a.test"}, rsa: 1024}),
			spec:   tlsA, want: plain + "problem Ingress default/i CertificateUnusable\n",
		},
		"rubbish": {
			secret: "kind: Secret\nmetadata: {name: tls, namespace: default}\n" +
				"data: {tls.crt: aGVsbG8=, tls.key: aGVsbG8=}\n---\n", spec: tlsA,
			want: plain + "problem Ingress default/i CertificateUnusable\n",
		},
		"empty": {
			secret: "kind: Secret\nmetadata: {name: tls, namespace: default}\n---\n", spec: tlsA,
			want: plain + "problem Ingress default/i CertificateUnusable\n",
		},
		"a host that is not one": {
			secret: good,
			spec:   `tls: [{hosts: ["a b", a.test], secretName: tls}], `,
			want:   secureA + certA + "problem Ingress default/i InvalidTLS\n",
		},
		"no good host is not all of the certificate's": {
			secret: good,
			spec:   `tls: [{hosts: ["a b"], secretName: tls}], `, want: plain + "problem Ingress default/i InvalidTLS\n",
		},
		"a second Secret for the same host": {
			secret: good +
				secretText(t, "two", certificate{names: []string{"a.test"}}),
			spec: "tls: [{hosts: [a.test], secretName: tls}, {hosts: [a.test], secretName: two}], ",
			want: secureA + certA + "problem Ingress default/i CertificateConflict\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("web")+tt.secret+ingress("i", 2020, tt.spec+rules))
			s.At = now
			if tt.redirect != "" {
				s.Ingresses[0].Annotations = map[string]string{"haproxy.org/ssl-redirect": tt.redirect}
			}
			r := Compile([]Snapshot{s})
			if diff := cmp.Diff(tt.want, read(r)); diff != "" {
				t.Errorf("want (-), got (+):\n%s\n%v", diff, r.Problems)
			}
			if err := r.Config.Validate(); err != nil {
				t.Errorf("haproxy refuses it: %v", err)
			}
			for _, p := range r.Problems {
				if strings.Contains(p.Why, "PRIVATE") {
					t.Errorf("a key shows: %s", p.Why)
				}
			}
		})
	}
}

func TestACertificateExpiresWithoutAnythingElseChanging(t *testing.T) {
	end := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	s := snapshot(t, Unnamed, app("web")+secretText(t, "tls", certificate{names: []string{"a.test"}, until: end})+
		ingress("i", 2020, "tls: [{hosts: [a.test], secretName: tls}], "+fallback("web")))
	var c Compiler
	for _, tt := range []struct {
		at   time.Time
		want int
	}{
		{end.Add(-time.Hour), 0},
		{end, 0},
		{end.Add(time.Second), 1},
		{end.Add(time.Hour), 1},
		{end.Add(-time.Second), 0},
	} {
		s.At = tt.at
		if got := c.Compile([]Snapshot{s}).Problems; len(got) != tt.want {
			t.Errorf("at %v: want %d problems, got %v", tt.at, tt.want, got)
		}
	}
}

// FuzzCompile checks that any input compiles to a valid Config and to problems of one
// line each.
func FuzzCompile(f *testing.F) {
	f.Add([]byte(
		`{"Ingresses": [{"metadata": {"name": "a", "namespace": "n", "annotations": {"kubernetes.io/ingress.class": "haproxy", "haproxy.org/ssl-redirect": "true"}},
		"spec": {"tls": [{"hosts": ["A.test"], "secretName": "s"}], "defaultBackend": {"service": {"name": "s", "port": {"number": 80}}},
		"rules": [{"host": "*.a.test", "http": {"paths": [{"path": "/x y", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"name": "web"}}}}]}}]}}],
		"Services": [{"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"name": "web", "port": 80, "targetPort": "http"}]}}],
		"Slices": [{"metadata": {"name": "s-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}}, "addressType": "IPv4",
		"endpoints": [{"addresses": ["172.16.171.65", "::1%eth0"], "conditions": {"ready": true}}], "ports": [{"name": "web", "port": 70000}]}],
		"Secrets": [{"metadata": {"name": "s", "namespace": "n"}, "type": "kubernetes.io/tls", "data": {"tls.crt": "LS0t", "tls.key": ""}}]}`))
	f.Add([]byte(`{"Ingresses": [null, {}], "Slices": [{"endpoints": [{"addresses": [""]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Snapshot
		if json.Unmarshal(data, &s) != nil {
			return
		}
		// A Watcher never returns nil objects.
		s.Ingresses = slices.DeleteFunc(s.Ingresses, func(o *networkingv1.Ingress) bool { return o == nil })
		s.Classes = slices.DeleteFunc(s.Classes, func(o *networkingv1.IngressClass) bool { return o == nil })
		s.Services = slices.DeleteFunc(s.Services, func(o *corev1.Service) bool { return o == nil })
		s.Slices = slices.DeleteFunc(s.Slices, func(o *discoveryv1.EndpointSlice) bool { return o == nil })
		s.Secrets = slices.DeleteFunc(s.Secrets, func(o *corev1.Secret) bool { return o == nil })
		s.ConfigMaps = slices.DeleteFunc(s.ConfigMaps, func(o *corev1.ConfigMap) bool { return o == nil })
		s.Cluster = "demo"
		res := Compile([]Snapshot{s})
		if err := res.Config.Validate(); err != nil {
			t.Error(err)
		}
		for _, p := range res.Problems {
			if strings.ContainsAny(p.Why, "\n\x1b") {
				t.Errorf("a problem in several lines: %q", p.Why)
			}
		}
	})
}

func TestACanaryTakesRequestsByHeaderAndCookie(t *testing.T) {
	const name, main, canary = "sallyport.dev/canary-by-", "default_svc_old_http", "default_svc_new_http"
	both := func(sample string) string {
		return fmt.Sprintf(", %s if { %s -m str -- 'always' }, %s if { %[2]s -m str -- 'never' }", canary, sample, main)
	}
	for what, tt := range map[string]struct {
		set   map[string]string
		limit int
		want  string // after the backend of the route
		told  string
	}{
		"a header": {set: map[string]string{name + "header": "X-New"}, want: both("req.fhdr(X-New)")},
		"both": {
			set:  map[string]string{name + "header": "X-New", name + "cookie": "new"},
			want: both("req.fhdr(X-New)") + both("req.cook(new)"),
		},
		"a value": {
			set:  map[string]string{name + "header": "X-New", name + "header-value": "-f it's"},
			want: ", " + canary + ` if { req.fhdr(X-New) -m str -- '-f it'\''s' }`,
		},
		"an expression": {
			set:  map[string]string{name + "header": "X-New", name + "header-pattern": "^(a|b)$"},
			want: ", " + canary + " if { req.fhdr(X-New) -m reg -- '(*LIMIT_MATCH=10000)^(a|b)$' }",
		},
		"an expression that is none": {
			set:  map[string]string{name + "header": "X-New", name + "header-pattern": "(?=a)"},
			told: "InvalidAnnotation",
		},
		"a name that is none": {set: map[string]string{name + "cookie": "a,b) -f /x"}, told: "InvalidAnnotation"},
		"a value that ends the condition": {
			set:  map[string]string{name + "header": "X-New", name + "header-value": "}"},
			told: "InvalidAnnotation",
		},
		"beyond the limit": {
			set: map[string]string{name + "cookie": "new"}, limit: 1, want: both("req.cook(new)"), told: "LimitReached",
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("old")+app("new")+
				ingress("old", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "old"), path("/x", "Prefix", "old"))+"]")+
				ingress("new", 2021, "rules: ["+rule("a.test", path("/", "Prefix", "new"), path("/x", "Prefix", "new"))+"]"))
			s.Ingresses[1].Annotations, s.Options.Limits.Conditions = tt.set, tt.limit
			if s.Ingresses[0].Name == "new" {
				s.Ingresses[0].Annotations, s.Ingresses[1].Annotations = tt.set, nil
			}
			r := Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			if got, _, _ := strings.Cut(read(r), "\n"); got != "prefix a.test/ -> "+main+tt.want {
				t.Errorf("want %s, got\n%s", tt.want, got)
			}
			if rest := strings.Count(read(r), " if {"); rest != 0 && (tt.limit == 0) != (rest%2 == 0 && strings.Contains(
				read(r), "a.test/x -> "+main+tt.want)) {
				t.Errorf("the limit is %d:\n%s", tt.limit, read(r))
			}
			told := ""
			for _, p := range r.Problems {
				told = p.Reason
			}
			if told != tt.told {
				t.Errorf("want %q, got %v", tt.told, r.Problems)
			}
		})
	}
}

func TestACanarySharesWhatItsNamespaceHas(t *testing.T) {
	said := func(name, weight string, ings []*networkingv1.Ingress) {
		for _, i := range ings {
			if i.Name == name {
				i.Annotations = map[string]string{"sallyport.dev/canary-weight": weight}
			}
		}
	}
	rules := func(paths ...string) string { return "rules: [" + rule("a.test", paths...) + "]" }
	for name, tt := range map[string]struct {
		text, weight, namespace, canary, reason string
		one                                     bool // tenant
	}{
		"its share": {
			text: ingress("new", 2021, rules(path("/", "Prefix", "new"))), weight: "25",
			canary: "default_svc_new_http 25",
		},
		"older than what it is of": {
			text: ingress("new", 2001, rules(path("/", "Prefix", "new"))), weight: "25",
			canary: "default_svc_new_http 25",
		},
		"a path nobody has": {
			text: ingress("new", 2021, rules(path("/x", "Prefix", "new"))), weight: "25",
			canary: " 0", reason: "CanaryOfNothing",
		},
		"of another namespace": {
			text: ingress("new", 2021, rules(path("/", "Prefix", "new"))), weight: "25",
			namespace: "other", canary: " 0", reason: "HostOwned",
		},
		"of another, of one team": {
			text: ingress("new", 2021, rules(path("/", "Prefix", "new"))), weight: "25",
			namespace: "other", canary: " 0", reason: "CanaryOfNothing", one: true,
		},
		"a weight that is none": {
			text: ingress("new", 2021, rules(path("/", "Prefix", "new"))), weight: "many",
			canary: "default_svc_new_http 0", reason: "InvalidAnnotation",
		},
		"a default": {text: ingress("new", 2021, fallback("new")), weight: "25", canary: " 0", reason: "CanaryDefault"},
		"a second one": {
			text: ingress("new", 2021, rules(path("/", "Prefix", "new"))) +
				ingress("newer", 2022, rules(path("/", "Prefix", "old"))), weight: "25",
			canary: "default_svc_new_http 25", reason: "PathConflict",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, app("old")+app("new")+ingress("old", 2020, rules(path("/", "Prefix", "old")))+tt.text)
			said("new", tt.weight, s.Ingresses)
			said("newer", tt.weight, s.Ingresses)
			for _, i := range s.Ingresses {
				if i.Name == "new" && tt.namespace != "" {
					i.Namespace = tt.namespace
				}
			}
			s.Options.OneTenant = tt.one
			r := Compile([]Snapshot{s})
			route := r.Config.Routes[0]
			if got := route.Canary + " " + strconv.Itoa(route.CanaryWeight); got != tt.canary ||
				route.Backend != "default_svc_old_http" {
				t.Errorf("%s with the canary %s, want default_svc_old_http with %s", route.Backend, got, tt.canary)
			}
			reason := ""
			for _, p := range r.Problems {
				reason = p.Reason
			}
			if reason != tt.reason || len(r.Problems) > 1 {
				t.Errorf("problems %v, want %s", r.Problems, tt.reason)
			}
		})
	}
}

func TestAConfigMapNamesTheDefaultOfAll(t *testing.T) {
	text := app("web") + app("errors") + ingress("i", 2020, "rules: ["+rule("a.test", path("/x", "Prefix", "web"))+"]")
	for name, tt := range map[string]struct {
		said, more, want, reason string
		one                      bool // tenant
	}{
		"its first port": {said: "default/errors", want: "default_svc_errors_http"},
		"by name":        {said: "default/errors:http", want: "default_svc_errors_http"},
		"by number":      {said: "default/errors:80", want: "default_svc_errors_http"},
		"no such port":   {said: "default/errors:81", want: "default_svc_errors_81.none", reason: "PortNotFound"},
		"no such one":    {said: "default/gone:80", want: "default_svc_gone_80", reason: "ServiceNotFound"},
		"an Ingress is": {
			said: "default/errors", more: ingress("all", 2021, fallback("web")),
			want: "default_svc_web_http", one: true,
		},
		"a tenant's not": {
			said: "default/errors", more: ingress("all", 2019, fallback("web")),
			want: "default_svc_errors_http", reason: "DefaultBackendConflict",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, Unnamed, text+tt.more)
			s.Options.ConfigMap = "default/keys"
			s.ConfigMaps = []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"},
				Data:       map[string]string{"default-backend-service": tt.said},
			}}
			s.Options.OneTenant = tt.one
			r := Compile([]Snapshot{s})
			if r.Config.DefaultBackend != tt.want {
				t.Errorf("the default is %q, want %q", r.Config.DefaultBackend, tt.want)
			}
			if err := r.Config.Validate(); err != nil {
				t.Error(err)
			}
			for _, p := range r.Problems {
				if p.Reason != tt.reason || (p.Kind == "ConfigMap") != (tt.more == "") {
					t.Errorf("problem %v, want %q", p, tt.reason)
				}
			}
			if tt.reason != "" && len(r.Problems) != 1 {
				t.Errorf("problems %v", r.Problems)
			}
		})
	}
}

func TestConfigMapsHoldFiles(t *testing.T) {
	s := snapshot(t, Unnamed, app("web")+ingress("i", 2020, fallback("web")))
	s.Ingresses[0].Annotations = map[string]string{"haproxy.org/deny-list": "patterns/bad"}
	s.Options.ErrorFiles, s.Options.PatternFiles = "ops/errors", "ops/lists"
	held := func(name string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Data: data}
	}
	s.ConfigMaps = []*corev1.ConfigMap{
		held("errors", map[string]string{"503": "HTTP/1.1 503 Sorry\n\nsorry", "teapot": "x"}),
		held("lists", map[string]string{"bad": "192.0.2.0/24"}),
	}
	var c Compiler
	r := c.Compile([]Snapshot{s})
	lists := func(r Result) string {
		return fmt.Sprint(len(r.Config.Lists), r.Config.Lists[0],
			strings.Count(fmt.Sprint(r.Config.Backends[0].Directives), r.Config.Lists[0].Name))
	}
	if got, want := lists(r), "1 &{default_bad [192.0.2.0/24]} 1"; got != want {
		t.Errorf("got lists %s, want %s", got, want)
	}
	if len(r.Config.Extras) != 1 || !slices.Equal(r.Config.Process.ErrorFiles, []int{503}) {
		t.Errorf("files %v for %v", r.Config.Extras, r.Config.Process.ErrorFiles)
	}
	if len(r.Problems) != 1 || r.Problems[0].Name != "errors" || r.Problems[0].Reason != "InvalidErrorFile" {
		t.Errorf("problems %v", r.Problems)
	}
	if err := r.Config.Validate(); err != nil {
		t.Error(err)
	}

	// Another list keeps the rule; without the list nobody is let in.
	before := r.Config.Backends[0].Directives
	s.ConfigMaps = []*corev1.ConfigMap{s.ConfigMaps[0], held("lists", map[string]string{"bad": "10.0.0.0/8"})}
	r = c.Compile([]Snapshot{s})
	if got, want := lists(r), "1 &{default_bad [10.0.0.0/8]} 1"; got != want ||
		!slices.Equal(r.Config.Backends[0].Directives, before) {
		t.Errorf("got lists %s, want %s; rules %v, before %v", got, want, r.Config.Backends[0].Directives, before)
	}
	s.ConfigMaps = s.ConfigMaps[:1]
	r = c.Compile([]Snapshot{s})
	if got := r.Config.Backends[0].Directives; !slices.Equal(got, []haproxy.Directive{haproxy.Close()}) {
		t.Errorf("without the list: %v", got)
	}
	if !slices.ContainsFunc(r.Problems, func(p Problem) bool {
		return p.Name == "lists" && p.Reason == "ConfigMapNotFound"
	}) {
		t.Errorf("nobody is told: %v", r.Problems)
	}
}

// TestTheLongestHostAndPathAreServed has a host and a path that are as long as each may be.
// A configuration that is not valid would stop the changes of everybody.
func TestTheLongestHostAndPathAreServed(t *testing.T) {
	host := strings.Repeat("a", 61) + strings.Repeat("."+strings.Repeat("b", 63), 3) // RFC 1035, 2.3.4
	for length, served := range map[int]bool{haproxy.MaxPath: true, haproxy.MaxPath + 1: false} {
		long := "/" + strings.Repeat("p", length-1)
		s := snapshot(t, Unnamed, app("web")+ingress("a", 2020, "rules: ["+rule(host, path(long, "Prefix", "web"))+"]"))
		r := Compile([]Snapshot{s})
		if err := r.Config.Validate(); err != nil {
			t.Errorf("%d bytes: the configuration is not valid: %.200s", length, err)
		}
		is := slices.ContainsFunc(r.Config.Routes, func(r *haproxy.Route) bool {
			return r.Host == host && r.Path == long
		})
		if is != served || served == (len(r.Problems) > 0) {
			t.Errorf("%d bytes: served %v, want %v; %d problems", length, is, served, len(r.Problems))
		}
	}
}
