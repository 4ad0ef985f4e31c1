package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
)

// share lets Gateways of a Snapshot share the addresses of Ingresses.
func share(s *Snapshot) {
	s.Options.Gateway = GatewayOptions{
		Enabled: true, Controller: "sallyport.dev/gateway", Shared: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
	}
}

var sharedPorts = map[uint16]haproxy.ListenerKind{80: haproxy.ListenHTTP, 443: haproxy.ListenHTTPS}

// sharing returns the manifests of a class and of a Gateway that shares the addresses of Ingresses. It
// takes routes of all namespaces.
func sharing(listeners ...string) string {
	for i, l := range listeners {
		listeners[i] = "{allowedRoutes: {namespaces: {from: All}}, " + l + "}"
	}
	return `
kind: GatewayClass
metadata: {name: ours}
spec: {controllerName: sallyport.dev/gateway}
---
kind: Gateway
metadata: {name: gate, namespace: default, uid: gate}
spec: {gatewayClassName: ours, listeners: [` + strings.Join(listeners, ", ") + `]}
---
`
}

const (
	plainOnes = "name: http, port: 80, protocol: HTTP"
	tlsOnes   = "name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}"
)

// sharedRoute returns the manifest of a route that was made in a year.
func sharedRoute(namespace, name string, year int, section, spec string) string {
	if section != "" {
		section = ", sectionName: " + section
	}
	return fmt.Sprintf(`
kind: HTTPRoute
metadata: {name: %s, namespace: %s, uid: %[1]s, creationTimestamp: "%[3]d-01-01T00:00:00Z"}
spec: {parentRefs: [{name: gate, namespace: default%[4]s}], %[5]s}
---
`, name, namespace, year, section, spec)
}

func compileShared(t testing.TB, c *Compiler, manifests string, change func(*Snapshot)) Result {
	t.Helper()
	c.Shared = sharedPorts
	return compileGates(t, c, manifests, func(s *Snapshot) {
		share(s)
		if change != nil {
			change(s)
		}
	})
}

// tellShared returns the part of a Result that is about the addresses of Ingresses, and what the
// statuses say.
func tellShared(r Result) string {
	var b strings.Builder
	for _, l := range r.Config.Listeners {
		fmt.Fprintf(&b, "%s %s\n", l.Kind, l.At)
	}
	for _, route := range r.Config.Routes {
		fmt.Fprintf(&b, "%s %s%s -> %s", route.Match, route.Host, route.Path, route.Backend)
		if route.Canary != "" {
			fmt.Fprintf(&b, ", %d %% to %s", route.CanaryWeight, route.Canary)
		}
		if route.TLSOnly {
			fmt.Fprintf(&b, ", https %d %d", route.TLSCode, route.TLSPort)
		}
		b.WriteByte('\n')
		for _, c := range r.Config.Choices {
			if c.Name != route.Choice {
				continue
			}
			for _, one := range c.Cases {
				fmt.Fprintf(&b, "  if %s -> %s\n", one.If, one.Backend)
			}
		}
	}
	for _, cert := range r.Config.Certs {
		fmt.Fprintf(&b, "%s %v\n", cert.Name, cert.Hosts)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s %s/%s %s: %s\n", p.Kind, p.Namespace, p.Name, p.Reason, p.Why)
	}
	for _, s := range r.Statuses[Unnamed] {
		if s.Kind == "GatewayClass" {
			continue
		}
		for _, c := range s.Conditions() {
			if !c.Good() {
				fmt.Fprintf(&b, "%s %s %s: %s=%s %s %s\n", s.Kind, s.Name, c.Of, c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	return b.String()
}

func TestRoutesAreClaimsAtTheAddressesOfIngresses(t *testing.T) {
	const rules = "rules: [{backendRefs: [{name: app, port: 80}]}]"
	for name, row := range map[string]struct{ manifests, want string }{
		"a host and a path": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", "hostnames: [a.test], "+rules),
			"prefix a.test/ -> default_svc_app_http\n",
		},
		"every host": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", rules),
			"prefix / -> default_svc_app_http\n",
		},
		"paths of an Ingress and of a route of one host": {
			sharing(plainOnes) + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("default", "r", 2021, "", "hostnames: [a.test], rules: [{matches: [{path: {value: /new}}, "+
					"{path: {type: Exact, value: /x}}], backendRefs: [{name: app, port: 80}]}]"),
			"prefix a.test/ -> default_svc_app_http\nprefix a.test/new -> default_svc_app_http\n" +
				"exact a.test/x -> default_svc_app_http\n",
		},
		"a path that an older Ingress has": {
			sharing(plainOnes) + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("default", "r", 2021, "", "hostnames: [a.test], "+rules),
			`prefix a.test/ -> default_svc_app_http
HTTPRoute default/r PathConflict: a.test, prefix path / is not served: Ingress default/i is older and has it already
HTTPRoute r parent Gateway default/gate: PartiallyInvalid=True UnsupportedValue Dropped Rule: ` +
				`a.test, prefix path / is not served: Ingress default/i is older and has it already
`,
		},
		"a path that an older route has": {
			sharing(plainOnes) + ingress("i", 2021, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("default", "r", 2020, "", "hostnames: [a.test], "+rules),
			`prefix a.test/ -> default_svc_app_http
Ingress default/i PathConflict: a.test, prefix path / is not served: HTTPRoute default/r is older and has it already
`,
		},
		"a host of an Ingress of another namespace": {
			sharing(plainOnes) + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("other", "r", 2021, "", "hostnames: [a.test], rules: [{}]"),
			`prefix a.test/ -> default_svc_app_http
HTTPRoute other/r HostOwned: this HTTPRoute is not served for a.test: it belongs to namespace default, for Ingress ` +
				`default/i; the operator of the appliance can share a host (clusters[].ingress.hosts)
HTTPRoute r parent Gateway default/gate: Accepted=False HostOwned a.test is not served: it belongs to namespace ` +
				`default, for Ingress default/i
`,
		},
		"one host of two is of a route of another namespace": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", "hostnames: [a.test], "+rules) +
				sharedRoute("other", "s", 2021, "", "hostnames: [a.test, b.test], rules: [{}]"),
			`prefix a.test/ -> default_svc_app_http
prefix b.test/ -> other_invalid.r-1
HTTPRoute other/s HostOwned: this HTTPRoute is not served for a.test: it belongs to namespace default, for HTTPRoute ` +
				`default/r; the operator of the appliance can share a host (clusters[].ingress.hosts)
HTTPRoute s parent Gateway default/gate: PartiallyInvalid=True UnsupportedValue Dropped Rule: hostname a.test is not ` +
				`served: it belongs to namespace default, for HTTPRoute default/r
`,
		},
		"weights, filters, and what cannot be served": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", `hostnames: [a.test], rules: [
				{backendRefs: [{name: app, port: 80, weight: 2}, {name: none, port: 80}]},
				{matches: [{path: {value: /old}}], filters: [{type: RequestRedirect, requestRedirect: {hostname: b.test}}]}]`),
			`prefix a.test/ -> default_svc_app_http, 33 % to default_invalid.r-1
prefix a.test/old -> default_redirect.r-2
HTTPRoute r parent Gateway default/gate: ResolvedRefs=False BackendNotFound there is no Service default/none
`,
		},
		"conditions, the narrower ones first": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", `hostnames: [a.test], rules: [
				{backendRefs: [{name: app, port: 80}]},
				{matches: [{queryParams: [{name: q, value: "1"}]}], backendRefs: [{name: app, port: 80}]},
				{matches: [{headers: [{name: X-A, value: "a b"}]}], backendRefs: [{name: other, port: 80}]},
				{matches: [{path: {value: /x}, method: GET, headers: [{name: x-b, type: RegularExpression, value: "b+"}]}],
					backendRefs: [{name: app, port: 80}]}]`),
			`prefix a.test/ -> default_svc_app_http
  if { req.fhdr(x-a,-1) -m str -- 'a b' } -> default_svc_other_http
  if { url_param(q),url_dec(1) -m str -- '1' } -> default_svc_app_http
prefix a.test/x -> default_svc_app_http
  if { method,concat() -m str -- 'GET' } { req.fhdr(x-b,-1) -m reg -- '(*LIMIT_MATCH=10000)^(?:b+)$' } -> ` +
				`default_svc_app_http
  if { req.fhdr(x-a,-1) -m str -- 'a b' } -> default_svc_other_http
  if { url_param(q),url_dec(1) -m str -- '1' } -> default_svc_app_http
`,
		},
		"a condition beside the path of an Ingress": {
			sharing(plainOnes) + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("default", "r", 2021, "", "hostnames: [a.test], rules: [{matches: [{method: POST}], "+
					"backendRefs: [{name: other, port: 80}]}]"),
			`prefix a.test/ -> default_svc_app_http
  if { method,concat() -m str -- 'POST' } -> default_svc_other_http
`,
		},
		"conditions over TLS, with and without a path for plain HTTP": {
			sharing(plainOnes, tlsOnes) + sharedRoute("default", "r", 2020, "https", `hostnames: [a.test, b.test], rules: [
				{matches: [{method: POST}], backendRefs: [{name: other, port: 80}]}]`) +
				sharedRoute("default", "s", 2021, "", "hostnames: [a.test], "+rules),
			`prefix a.test/ -> default_svc_app_http
  if { method,concat() -m str -- 'POST' } { ssl_fc } -> default_svc_other_http
prefix b.test/ -> , https 0 0
  if { method,concat() -m str -- 'POST' } { ssl_fc } -> default_svc_other_http
default_web.pem [a.test b.test]
`,
		},
		"conditions that cannot be served": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", `hostnames: [a.test], rules: [
				{matches: [{method: GET}], backendRefs: [{name: app, port: 80}, {name: other, port: 80}]},
				{matches: [{method: GET}], filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]`) +
				sharedRoute("default", "s", 2021, "", `hostnames: [a.test], rules: [
				{backendRefs: [{name: app, port: 80}]},
				{matches: [{headers: [{name: a, value: a}, {name: b, value: b}, {name: c, value: c}, {name: d, value: d},
					{name: e, value: e}, {name: f, value: f}, {name: g, value: g}, {name: h, value: h}]},
					{headers: [{name: i, value: "\x01"}]}], backendRefs: [{name: app, port: 80}]}]`),
			`prefix a.test/ -> default_svc_app_http
HTTPRoute r parent Gateway default/gate: Accepted=False UnsupportedValue the Gateway shares the addresses of ` +
				`Ingresses, where this route cannot be served: rule 1 looks at more than the path, and has more than ` +
				`one backendRef with a weight; rule 2 looks at more than the path, and redirects to https
HTTPRoute s parent Gateway default/gate: PartiallyInvalid=True UnsupportedValue Dropped Rule: rule 2: a match cannot ` +
				`be used at the addresses of Ingresses: the condition looks at 8 parts of a request, and has 120 bytes; ` +
				`at most 7 and 2048 are allowed; it is left out; rule 2: a match cannot be used at the addresses of ` +
				`Ingresses: "\x01" has the control character '\x01', which is not allowed; it is left out
`,
		},
		"a condition for a host of another namespace": {
			sharing(plainOnes) + ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				sharedRoute("other", "r", 2021, "", "hostnames: [a.test], rules: [{matches: [{method: GET}]}]"),
			`prefix a.test/ -> default_svc_app_http
HTTPRoute other/r HostOwned: this HTTPRoute is not served for a.test: it belongs to namespace default, for Ingress ` +
				`default/i; the operator of the appliance can share a host (clusters[].ingress.hosts)
HTTPRoute r parent Gateway default/gate: Accepted=False HostOwned a.test is not served: it belongs to namespace ` +
				`default, for Ingress default/i
`,
		},
		"a wildcard": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", `hostnames: ["*.a.test"], `+rules),
			`prefix *.a.test/ -> default_svc_app_http
HTTPRoute r parent Gateway default/gate: PartiallyInvalid=True UnsupportedValue Dropped Rule: hostname *.a.test: at ` +
				`the addresses of Ingresses, which the Gateway shares, it stands for one label in front of a.test, and ` +
				`not for several
`,
		},
		"only over TLS, and the redirect of plain HTTP": {
			sharing(plainOnes, tlsOnes) + sharedRoute("default", "r", 2020, "https", "hostnames: [a.test], rules: ["+
				"{backendRefs: [{name: app, port: 80}]}, {matches: [{path: {value: /x}}], backendRefs: [{name: app, port: 80}]}]") +
				sharedRoute("default", "s", 2021, "http", "hostnames: [a.test, b.test], rules: [{filters: ["+
					"{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]}]"),
			`prefix a.test/ -> default_svc_app_http, https 301 0
prefix a.test/x -> default_svc_app_http, https 301 0
prefix b.test/ -> , https 301 0
default_web.pem [a.test]
`,
		},
		"with TLS and without": {
			sharing(plainOnes, tlsOnes) + sharedRoute("default", "r", 2020, "", "hostnames: [a.test], "+rules) +
				sharedRoute("default", "s", 2021, "https", "hostnames: [b.test], "+rules),
			`prefix a.test/ -> default_svc_app_http
prefix b.test/ -> default_svc_app_http, https 0 0
default_web.pem [a.test b.test]
`,
		},
		"a redirect of a path that is served without TLS": {
			sharing(plainOnes) + sharedRoute("default", "r", 2020, "", "hostnames: [a.test], "+rules) +
				sharedRoute("default", "s", 2021, "http", "hostnames: [a.test], rules: [{filters: ["+
					"{type: RequestRedirect, requestRedirect: {scheme: https}}]}]"),
			`prefix a.test/ -> default_svc_app_http
HTTPRoute default/s PathConflict: a.test, prefix path / is not served: HTTPRoute default/r is older and has it already
HTTPRoute s parent Gateway default/gate http: PartiallyInvalid=True UnsupportedValue Dropped Rule: ` +
				`a.test, prefix path / is not served: HTTPRoute default/r is older and has it already
`,
		},
		"listeners that Ingresses do not have": {
			sharing("name: other, port: 81, protocol: HTTP", "name: http, port: 443, protocol: HTTP",
				"name: tcp, port: 80, protocol: TCP"),
			`Gateway gate : Accepted=False ListenersNotValid some listeners have problems, see their conditions: other, http, tcp
Gateway gate listener other: Accepted=False PortUnavailable port 81 is none of those for HTTP at the addresses of ` +
				`Ingresses, which the Gateway shares (haproxy.http, haproxy.https)
Gateway gate listener other: Programmed=False Invalid port 81 is none of those for HTTP at the addresses of ` +
				`Ingresses, which the Gateway shares (haproxy.http, haproxy.https)
Gateway gate listener http: Accepted=False PortUnavailable port 443 is none of those for HTTP at the addresses of ` +
				`Ingresses, which the Gateway shares (haproxy.http, haproxy.https)
Gateway gate listener http: Programmed=False Invalid port 443 is none of those for HTTP at the addresses of ` +
				`Ingresses, which the Gateway shares (haproxy.http, haproxy.https)
Gateway gate listener tcp: Accepted=False UnsupportedProtocol protocol TCP is not supported at the addresses of ` +
				`Ingresses, which the Gateway shares; allowed are HTTP and HTTPS
Gateway gate listener tcp: Programmed=False Invalid protocol TCP is not supported at the addresses of ` +
				`Ingresses, which the Gateway shares; allowed are HTTP and HTTPS
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := compileShared(t, new(Compiler), row.manifests+app("app")+app("other")+secretText(t, "web", certificate{names: []string{"*.test"}}), nil)
			got := numbered(tellShared(r))
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// TestChallengesOfRoutesPassTheGuardsOfTheConfigMap has a path of a challenge, and another path.
func TestChallengesOfRoutesPassTheGuardsOfTheConfigMap(t *testing.T) {
	r := compileShared(t, new(Compiler), sharing(plainOnes)+app("app")+sharedRoute("default", "r", 2020, "", "hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}], "+
		"matches: [{path: {type: Exact, value: /.well-known/acme-challenge/x}}, {path: {value: /}}]}]"),
		func(s *Snapshot) {
			s.Options.ConfigMap = "default/keys"
			s.ConfigMaps = []*corev1.ConfigMap{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"},
				Data:       map[string]string{"allow-list": "192.0.2.0/24", "acme": "true"},
			}}
		})
	want := "prefix a.test/ -> default_svc_app_http\n" +
		"exact a.test/.well-known/acme-challenge/x -> default_svc_app_http.acme\n"
	if got := tellShared(r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestAGatewayWithAnAddressOfItsOwnSharesNone has Gateways that ask for addresses, on an appliance that
// lets them share those of Ingresses.
func TestAGatewayWithAnAddressOfItsOwnSharesNone(t *testing.T) {
	for asked, want := range map[string][]string{
		"":                                   {"198.51.100.1"},
		"{value: 198.51.100.1}":              {"198.51.100.1"},
		"{value: ''}":                        {"198.51.100.1"},
		"{value: " + gateAt + "}":            {gateAt},
		"{type: Hostname, value: gate.test}": nil,
	} {
		manifests := strings.Replace(sharing(plainOnes), "spec: {gatewayClassName: ours,",
			"spec: {gatewayClassName: ours, addresses: ["+asked+"],", 1)
		r := compileShared(t, new(Compiler), manifests, nil)
		var got []string
		for _, s := range r.Statuses[Unnamed] {
			if s.Gateway == nil {
				continue
			}
			for _, a := range s.Gateway.Addresses {
				got = append(got, a.Value)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("addresses [%s]: the status has %v, want %v", asked, got, want)
		}
	}
}

// drawShared draws whether Gateways may share the addresses of Ingresses.
func drawShared(t *rapid.T) []netip.Addr {
	if !rapid.Bool().Draw(t, "shared") {
		return nil
	}
	return []netip.Addr{netip.MustParseAddr("203.0.113.6")}
}

// drawSharing draws a Gateway that shares the addresses of Ingresses, and takes routes of all
// namespaces.
func drawSharing(t *rapid.T, meta metav1.ObjectMeta) *gatewayv1.Gateway {
	g, all := &gatewayv1.Gateway{ObjectMeta: meta}, gatewayv1.NamespacesFromAll
	g.Spec.GatewayClassName = "ours"
	for i, protocol := range []gatewayv1.ProtocolType{"HTTP", "HTTPS", "HTTPS"} {
		host := rapid.SampledFrom([]gatewayv1.Hostname{"", "a.test", "*.test"}).Draw(t, "listener")
		l := gatewayv1.Listener{
			Name: gatewayv1.SectionName(fmt.Sprint("l", i)), Port: 80, Protocol: protocol, Hostname: &host,
			AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}},
		}
		if protocol == "HTTPS" {
			l.Port, l.TLS = 443, &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "tls"}}}
		}
		g.Spec.Listeners = append(g.Spec.Listeners, l)
	}
	return g
}

// drawSharedRoute draws a route of a namespace at a Gateway of namespace ops, or at one of its own.
func drawSharedRoute(t *rapid.T, meta metav1.ObjectMeta, hosts []string) *gatewayv1.HTTPRoute {
	r := drawRoute(t, meta.Namespace, 0, "web", meta.Namespace, "ops", "evil")
	r.ObjectMeta, r.Spec.ParentRefs, r.Spec.Hostnames = meta, nil, nil
	for _, of := range []gatewayv1.Namespace{"ops", gatewayv1.Namespace(meta.Namespace)} {
		ref := gatewayv1.ParentReference{Name: "gate", Namespace: &of}
		if rapid.Bool().Draw(t, "section") {
			name := rapid.SampledFrom([]gatewayv1.SectionName{"l0", "l1", "l2"}).Draw(t, "name")
			ref.SectionName = &name
		}
		r.Spec.ParentRefs = append(r.Spec.ParentRefs, ref)
	}
	for _, host := range rapid.SliceOfN(rapid.SampledFrom(hosts), 0, 2).Draw(t, "hostnames") {
		if host != "" {
			r.Spec.Hostnames = append(r.Spec.Hostnames, gatewayv1.Hostname(host))
		}
	}
	return r
}

// TestAChangedRouteAtTheAddressesOfIngressesIsRoutedAlone changes a route among other routes, and then
// an Ingress of the same host.
func TestAChangedRouteAtTheAddressesOfIngressesIsRoutedAlone(t *testing.T) {
	s := snapshot(t, Unnamed, sharing(plainOnes)+app("app")+
		ingress("i", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]")+
		sharedRoute("default", "r", 2021, "", "hostnames: [a.test], rules: [{matches: [{path: {value: /r}}], "+
			"backendRefs: [{name: app, port: 80}]}]")+
		sharedRoute("default", "other", 2020, "", "hostnames: [other.test], rules: [{}]"))
	share(&s)
	c := Compiler{Shared: sharedPorts}
	compile := func(what string) {
		got, fresh := c.Compile([]Snapshot{s}), Compiler{Shared: sharedPorts}
		if want := tellShared(fresh.Compile([]Snapshot{s})); tellShared(got) != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, tellShared(got), want)
		}
		if first := what == ""; c.made.amended == first {
			t.Errorf("%q: all is routed again: %v, want %v", what, !c.made.amended, first)
		}
	}
	compile("")
	for _, host := range []gatewayv1.Hostname{"b.test", "other.test", "a.test"} {
		s.API.HTTPRoutes = slices.Clone(s.API.HTTPRoutes)
		i := slices.IndexFunc(s.API.HTTPRoutes, func(r *gatewayv1.HTTPRoute) bool { return r.Name == "r" })
		s.API.HTTPRoutes[i] = s.API.HTTPRoutes[i].DeepCopy()
		s.API.HTTPRoutes[i].Spec.Hostnames[0] = host
		compile("host " + string(host))
	}
	s.Ingresses = []*networkingv1.Ingress{s.Ingresses[0].DeepCopy()}
	s.Ingresses[0].Spec.Rules[0].HTTP.Paths[0].Path = "/r"
	compile("the path of the Ingress")
}

// TestARouteAtTheAddressesOfIngressesIsExplained has routes that redirect, that share requests, that look at
// more than the path, and that lack a path.
func TestARouteAtTheAddressesOfIngressesIsExplained(t *testing.T) {
	r := compileShared(t, new(Compiler), sharing(plainOnes, tlsOnes)+app("app")+app("other")+
		secretText(t, "web", certificate{names: []string{"*.test"}})+
		ingress("i", 2020, "rules: ["+rule("a.test", path("/i", "Prefix", "app"))+"]")+
		sharedRoute("default", "to-https", 2021, "http", "hostnames: [a.test], rules: [{filters: ["+
			"{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]}]")+
		sharedRoute("default", "r", 2021, "https", `hostnames: [a.test], rules: [
			{backendRefs: [{name: app, port: 80, weight: 3}, {name: other, port: 80}]},
			{matches: [{path: {value: /i}}, {path: {value: /x}, method: POST}], backendRefs: [{name: other, port: 80}]}]`), nil)
	for name, want := range map[string][]string{
		"to-https": {"rule 1 a.test/ ->  , https 301 [RequestRedirect: status 301, scheme https] "},
		"r": {
			"rule 1 a.test/ -> default_svc_app_http 25 % to default_svc_other_http, https 301 [] ",
			"rule 2 a.test/x -> default_svc_other_http , https 301 [] method POST",
		},
	} {
		e, ok := r.ExplainAPI(Unnamed, "httproute", "default", name)
		var got []string
		for _, one := range e.Rules {
			got = append(got, fmt.Sprintf("rule %d %s%s -> %s %s, https %s %v %s", one.Rule, one.Host, one.Path, one.Backend,
				one.Canary, one.HTTPS, one.Filters, one.When))
		}
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", name, diff)
		}
		if wantServers := map[string]int{"r": 2}[name]; len(e.Backends) != wantServers {
			t.Errorf("%s: got %d backends, want %d", name, len(e.Backends), wantServers)
		}
	}
}

// TestANamespaceHasNoMoreConditionsThanItsLimit has a limit of two, and routes with one each.
func TestANamespaceHasNoMoreConditionsThanItsLimit(t *testing.T) {
	manifests := sharing(plainOnes) + app("app")
	for i := range 3 {
		manifests += sharedRoute("default", fmt.Sprint("r", i), 2020+i, "", fmt.Sprintf(
			"hostnames: [a.test], rules: [{matches: [{method: POST, path: {value: /%d}}], backendRefs: [{name: app, port: 80}]}]", i))
	}
	r := compileShared(t, new(Compiler), manifests, func(s *Snapshot) { s.Options.Limits.Conditions = 2 })
	want := "more than 2 paths with a condition (clusters[].ingress.limits.conditions): 1 of this HTTPRoute"
	if got := tellShared(r); strings.Count(got, "  if {") != 2 || !strings.Contains(got, want) {
		t.Errorf("want two conditions and %q, got\n%s", want, got)
	}
}
