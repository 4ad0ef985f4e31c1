package ingress

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
	"sallyport/ingress/nginx"
)

// written holds HAProxy's files, read without the code that wrote them.
type written struct {
	files    map[string]string
	sections map[string]string // of haproxy.cfg, by "backend NAME"
}

func write(cfg *haproxy.Config) written {
	w := written{files: map[string]string{}, sections: map[string]string{}}
	states := make(haproxy.States, len(cfg.Backends))
	for i, b := range cfg.Backends {
		states[i] = slices.Repeat([]haproxy.State{haproxy.Open}, len(b.Servers))
	}
	rendered := haproxy.Render(cfg, states, haproxy.RenderOptions{Dir: "/d", StatsSocket: "/s", Secret: "x"})
	for path, f := range rendered.Content {
		w.files[path] = string(f.Content)
	}
	for section := range strings.SplitSeq(w.files["haproxy.cfg"], "\n\n") {
		section = strings.TrimSpace(section[max(strings.Index(section, "backend "), 0):])
		name, _, _ := strings.Cut(section, "\n")
		w.sections[name] = section
	}
	return w
}

// find returns the value of the longest key that a text begins with.
func (w written) find(file, text string) (value string) {
	longest := -1
	for line := range strings.Lines(w.files[file]) {
		key, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if ok && key[0] != '#' && len(key) > longest && strings.HasPrefix(text, key) {
			value, longest = v, len(key)
		}
	}
	return value
}

// route returns the value of the maps for a request.
func (w written) route(host, path string) string {
	_, parent, _ := strings.Cut(host, ".")
	route := w.find("maps/route.map", host+path+"/\x01")
	if route == "" {
		route = w.find("maps/wild.map", parent+path+"/\x01")
	}
	if route == "" {
		route = w.find("maps/wild.map", path+"/\x01")
	}
	if words := strings.Split(route, "/"); len(words) > 5 && words[5] != "" {
		table, first, _ := strings.Cut(words[5], ":")
		for line := range strings.Lines(w.files["maps/regexp-"+table+".map"]) {
			key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if _, pattern, limited := strings.Cut(key, ")"); ok && limited &&
				regexp.MustCompile(pattern).MatchString(first+path) {
				return value
			}
		}
		words[5] = "" // the name of the host whose expressions were tried
		route = strings.TrimRight(strings.Join(words, "/"), "/")
	}
	return route
}

// certificate returns the line of the crt-list for a name, and the file's content.
func (w written) certificate(host string) string {
	_, parent, _ := strings.Cut(host, ".")
	for _, name := range []string{host, "*." + parent} {
		for line := range strings.Lines(w.files["certs/crt-list"]) {
			words := strings.Fields(line)
			if filters := strings.Fields(line[strings.LastIndex(line, "]")+1:]); slices.Contains(filters, name) &&
				!slices.Contains(filters, "!"+host) {
				options := ""
				if i := strings.Index(line, "["); i >= 0 {
					options = line[i : strings.Index(line, "]")+1]
				}
				return options + w.files[strings.TrimPrefix(words[0], "/d/")]
			}
		}
	}
	return "none"
}

// answers returns all that decides on the answers for the hosts of a tenant: the
// backends of the requests, and everything that is made from the tenant's objects.
func answers(r Result, tenant string, hosts []string) map[string]string {
	w := write(&r.Config)
	out := map[string]string{}
	for _, host := range hosts {
		out["certificate of "+host] = w.certificate(host)
		for _, path := range []string{"/", "/a", "/a/", "/a/b", "/b", "/login", "/admin", "/admin/x", "/x.php"} {
			route := w.route(host, path)
			out[host+path] = route
			words := strings.Split(route, "/")
			for _, i := range []int{0, 3} {
				if i < len(words) {
					out["backend "+words[i]] = w.sections["backend "+words[i]]
				}
			}
			for _, c := range r.Config.Choices {
				if len(words) > 6 && c.Name == words[6] {
					out[host+path+" chooses"] = fmt.Sprint(c.Cases)
					for _, one := range c.Cases {
						out["backend "+one.Backend] = w.sections["backend "+one.Backend]
					}
				}
			}
		}
		if name, parent, _ := strings.Cut(host, "."); r.Config.Inspect {
			sni := w.files["maps/sni.map"]
			exact := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(host) + ` (.*)$`).FindStringSubmatch(sni)
			wild := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(parent) + `/ (.*)$`).FindStringSubmatch(sni)
			switch {
			case exact != nil:
				out["TLS of "+host] = exact[1]
			case wild != nil && name != "":
				out["TLS of "+host] = wild[1]
			}
		}
		if out["TLS of "+host] == "" { // TLS ends here with a row that says so, and without a row
			out["TLS of "+host] = "terminator"
		}
	}
	for name, text := range w.sections {
		if strings.Contains(name, " "+tenant+"_") || strings.Contains(name, "users_"+tenant+"_") {
			out[name] = text
		}
	}
	for path, text := range w.files {
		if strings.Contains(path, "/"+tenant+"_") {
			out[path] = text
		}
	}
	return out
}

// valuesOfKeys are values that at least one key accepts, and some that no key does.
var valuesOfKeys = []string{
	"true", "false", "0", "1", "100", "5s", "1h", "roundrobin", "source", "10.0.0.0/8", "patterns/p", "/", "/x",
	"/(.*) /y/\\1", "GET /health",
	"*", "https://a.test", "X-A: b", "X-A b", "X-A", "req.hdr(a)", "src", "basic-auth", "users", "tls", "ca",
	"shop/tls", "shop/users", "shop/ca", "evil/users", "svc://evil/web:80/x", "svc://shop/web:80/x",
	"cookie(beta) -m found", "path /", "https://evil.test", "a.test", "h2", "proxy-v2", "regex", "begin", "exact",
	"http-request deny", "Strict", "JSESSIONID", "403", "?", "\n", "",
}

// drawWords draws values for some of the keys.
func drawWords(t *rapid.T, scope annotations.Scope) map[string]string {
	docs := annotations.Docs()
	said := map[string]string{}
	for range rapid.IntRange(0, 5).Draw(t, "keys") {
		d := docs[rapid.IntRange(0, len(docs)-1).Draw(t, "key")]
		if d.Scopes&scope == 0 {
			continue
		}
		name := d.Name
		if !strings.Contains(name, "/") {
			name = rapid.SampledFrom([]string{"haproxy.org/", "haproxy.com/", "ingress.kubernetes.io/", ""}).Draw(t,
				"prefix") + name
		}
		said[name] = rapid.SampledFrom(valuesOfKeys).Draw(t, "value")
	}
	return said
}

// drawNginx draws values for some of the annotations of ingress-nginx.
func drawNginx(t *rapid.T, annotations map[string]string) {
	rows := nginx.Rows()
	values := append([]string{
		"/$1", "$host", "basic", "cookie", "http://web.evil.svc/x", "http://web.shop.svc/x", "HTTPS", "on", "optional", "10",
	}, valuesOfKeys...)
	for range rapid.IntRange(0, 5).Draw(t, "annotations") {
		row := rows[rapid.IntRange(0, len(rows)-1).Draw(t, "annotation")]
		annotations[nginx.Prefix+row.Name] = rapid.SampledFrom(values).Draw(t, "value")
	}
}

var victimHosts, evilHosts = []string{"a.test", "b.test", "*.w.test", ""},
	[]string{"a.test", "b.test", "*.test", "*.w.test", "x.w.test", "", "evil.test", "*.a.test"}

// drawTenant adds objects of a namespace to a snapshot, or removes some. A TLS entry
// names at least as many hosts as given: a name that only a certificate has belongs
// to nobody.
func drawTenant(t *rapid.T, s *Snapshot, namespace string, hosts []string, least int, secrets []map[string][]byte) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "u",
			CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 9).Draw(t, "age")), 0),
		}
	}
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	for range rapid.IntRange(1, 6).Draw(t, "changes") {
		gone := rapid.IntRange(0, 4).Draw(t, "gone") == 0
		switch rapid.IntRange(0, 10).Draw(t, "kind") {
		default:
			ing := &networkingv1.Ingress{ObjectMeta: meta(one("name", "i", "j", "k"))}
			ing.Annotations = drawWords(t, annotations.Ingress)
			class := one("class", "haproxy", "haproxy", "nginx")
			ing.Spec.IngressClassName = &class
			if class == "nginx" {
				drawNginx(t, ing.Annotations)
			}
			backend := func() networkingv1.IngressBackend {
				return networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{
						Name: one("service", "web", "api", "none"),
						Port: networkingv1.ServiceBackendPort{Number: 80},
					},
				}
			}
			if rapid.IntRange(0, 2).Draw(t, "default") == 0 {
				b := backend()
				ing.Spec.DefaultBackend = &b
			}
			for range rapid.IntRange(0, 3).Draw(t, "rules") {
				kind := networkingv1.PathType(one("type", "Exact", "Prefix", "ImplementationSpecific"))
				ing.Spec.Rules = append(ing.Spec.Rules,
					networkingv1.IngressRule{
						Host: one("host", hosts...),
						IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
							Paths: []networkingv1.HTTPIngressPath{
								{
									Path: one("path", "/", "/a", "/a/b", "/login", "/admin", "/.*", "/[a-z.]+",
										"/.well-known/acme-challenge/t"),
									PathType: &kind, Backend: backend(),
								},
							},
						}},
					})
			}
			for range rapid.IntRange(0, 2).Draw(t, "tls") {
				ing.Spec.TLS = append(ing.Spec.TLS,
					networkingv1.IngressTLS{
						SecretName: one("secret", "tls", "ca"),
						Hosts:      rapid.SliceOfN(rapid.SampledFrom(hosts), least, 2).Draw(t, "hosts"),
					})
			}
			s.Ingresses = change(t, s.Ingresses, ing, gone)
		case 4:
			if namespace == "evil" && rapid.Bool().Draw(t, "gateway") {
				s.API.Gateways = change(t, s.API.Gateways, drawSharing(t, meta("gate")), gone)
				continue
			}
			s.API.HTTPRoutes = change(t, s.API.HTTPRoutes, drawSharedRoute(t, meta(one("name", "i", "j", "k")), hosts), gone)
		case 10:
			s.Backends = change(t, s.Backends, &input.Backend{
				ObjectMeta: meta(one("name", "i", "tls")),
				Spec: []byte(one("spec", `{"server_timeout": 1000}`, `{"retries": 2}`, `{"none": 1}`,
					`{"cookie": {"name": "A"}, "default_server": {"maxconn": 3}}`)),
			}, gone)
		case 0, 1:
			service := &corev1.Service{
				ObjectMeta: meta(one("service", "web", "api")),
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			}
			service.Annotations = drawWords(t, annotations.Service)
			s.Services = change(t, s.Services, service, gone)
		case 2:
			name, port := "http", int32(8080)
			m := meta(one("service", "web", "api"))
			m.Labels = map[string]string{discoveryv1.LabelServiceName: m.Name}
			s.Slices = change(t, s.Slices, &discoveryv1.EndpointSlice{
				ObjectMeta: m, AddressType: discoveryv1.AddressTypeIPv4,
				Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{one("address", "10.0.0.1", "10.0.0.2")}}},
			}, gone)
		case 3:
			s.Secrets = change(t, s.Secrets,
				&corev1.Secret{
					ObjectMeta: meta(one("secret", "tls", "ca", "users")),
					Data:       secrets[rapid.IntRange(0, len(secrets)-1).Draw(t, "data")],
				}, gone)
		}
	}
}

// TestATenantChangesNothingForAnother checks the promise of hosts.go: whatever one
// namespace adds, changes or removes, in any order, the answers for the hosts of
// another stay the same, byte for byte.
func TestATenantChangesNothingForAnother(t *testing.T) {
	var secrets []map[string][]byte
	for _, c := range []certificate{
		{names: []string{"a.test"}},
		{names: []string{"*.test", "b.test"}},
		{names: []string{"*.w.test", "evil.test"}},
	} {
		crt, key := c.make(t)
		secrets = append(secrets,
			map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key, "ca.crt": crt})
	}
	secrets = append(secrets, map[string][]byte{"ann": []byte("$5$salt$" + strings.Repeat("a", 43))})
	owned, attached := map[string]int{}, 0
	property := func(t *rapid.T) {
		s := Snapshot{Cluster: Unnamed, NoClasses: true, At: time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)}
		s.Options.ConfigMap, s.Options.CustomResources = "ops/keys", true
		s.Options.Nginx.Classes = []string{"nginx"}
		share(&s)
		s.API.Classes = []*gatewayv1.GatewayClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "ours"},
			Spec:       gatewayv1.GatewayClassSpec{ControllerName: "sallyport.dev/gateway"},
		}}
		s.API.Gateways = []*gatewayv1.Gateway{drawSharing(t, metav1.ObjectMeta{Namespace: "ops", Name: "gate"})}
		s.ConfigMaps = []*corev1.ConfigMap{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
			Data:       map[string]string{},
		}}
		if rapid.Bool().Draw(t, "a default of all") {
			s.ConfigMaps[0].Data["default-backend-service"] = "ops/none:80"
		}
		if rapid.Bool().Draw(t, "challenges pass the guards of all") {
			s.ConfigMaps[0].Data["allow-list"], s.ConfigMaps[0].Data["acme"] = "10.0.0.0/8", "true"
		}
		for range 4 {
			drawTenant(t, &s, "shop", victimHosts, 1, secrets)
		}
		r := (&Compiler{Shared: sharedPorts}).Compile([]Snapshot{s})
		s.Owners = r.Owners[Unnamed]
		for _, route := range r.Routes() {
			if route.Attached() {
				attached++
			}
		}
		var hosts []string
		for host, namespace := range s.Owners.Namespaces {
			switch {
			case namespace == "shop" && strings.HasPrefix(host, "*."):
				hosts = append(hosts, "any"+host[1:]) // and no name below it that evil may own
			case namespace == "shop" && host == "":
				hosts = append(hosts, "nobody.example")
			case namespace == "shop":
				hosts = append(hosts, host)
			}
		}
		slices.Sort(hosts)
		for _, host := range hosts {
			owned[host]++
		}
		want := answers(r, "shop", hosts)
		c := Compiler{Shared: sharedPorts}
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			drawTenant(t, &s, "evil", evilHosts, 0, secrets)
			r = c.Compile([]Snapshot{s})
			s.Owners = r.Owners[Unnamed]
			got := answers(r, "shop", hosts)
			for _, what := range slices.Sorted(maps.Keys(want)) {
				if got[what] != want[what] {
					t.Fatalf("%s was\n%s\nand is\n%s", what, want[what], got[what])
				}
			}
			for what := range got {
				if _, had := want[what]; !had {
					t.Fatalf("%s is new:\n%s", what, got[what])
				}
			}
		}
	}
	for range 10 { // of a hundred each
		rapid.Check(t, property)
	}
	if attached == 0 {
		t.Error("no route of the victim was ever attached")
	}
	for _, host := range []string{"a.test", "b.test", "any.w.test", "any.test", "nobody.example"} { // beside aliases
		if owned[host] == 0 {
			t.Errorf("%s was never owned; how often others were: %v", host, owned)
		}
	}
}
