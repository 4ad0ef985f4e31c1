package main

import (
	"fmt"
	"strings"

	"sallyport/test/rig"
)

// ingressOf returns the manifest of an Ingress; annotations are "key: value", and keys
// without a prefix are haproxy.org's.
func ingressOf(namespace, name string, annotations []string, spec ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: %s\n  name: %s\n",
		namespace, name)
	annotate(&b, annotations)
	b.WriteString("spec:\n  ingressClassName: haproxy\n")
	rules := false
	for _, s := range spec {
		if strings.HasPrefix(s, "  - host") && !rules {
			b.WriteString("  rules:\n")
			rules = true
		}
		b.WriteString(s)
	}
	return b.String()
}

func annotate(b *strings.Builder, annotations []string) {
	for i, a := range annotations {
		if i == 0 {
			b.WriteString("  annotations:\n")
		}
		key, value, _ := strings.Cut(a, ": ")
		switch bare, is := strings.CutPrefix(key, "bare "); {
		case is:
			key = bare
		case !strings.Contains(key, "/"):
			key = "haproxy.org/" + key
		}
		fmt.Fprintf(b, "    %s: %q\n", key, value)
	}
}

// rule returns a rule of an Ingress, path returns one of its paths, withTLS an entry of spec.tls.
func rule(host string, paths ...string) string {
	return fmt.Sprintf("  - host: %q\n    http:\n      paths:\n%s", host, strings.Join(paths, ""))
}

func path(p, service string) string { return pathOf(p, "Prefix", service) }

func pathOf(p, kind, service string) string {
	return fmt.Sprintf("      - {path: %q, pathType: %s, backend: {service: {name: %s, port: {name: web}}}}\n", p, kind,
		service)
}

func withTLS(secret string, hosts ...string) string {
	return fmt.Sprintf("  tls: [{hosts: [%s], secretName: %s}]\n", quoted(hosts), secret)
}

func quoted(words []string) string { return `"` + strings.Join(words, `", "`) + `"` }

func deployment(namespace, name string, args ...string) string {
	return rig.App{Namespace: namespace, Name: name, Args: args, Pod: namespace + "-" + name}.Manifest()
}

func namespace(name string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name)
}

// defaults returns the operator's ConfigMap with further lines.
func defaults(more string) string {
	var text strings.Builder
	text.WriteString("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: default, name: defaults}\ndata:\n" +
		"  default-backend-service: default/fallback\n")
	for line := range strings.Lines(more) {
		text.WriteString("  " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return text.String()
}

// reserved is the pattern of hosts that the operator keeps for victim.
const reserved = "*.reserved.test"

// members holds the user "ann" with the password "secret".
const members = `---
apiVersion: v1
kind: Secret
metadata: {namespace: victim, name: members}
stringData: {ann: "$5$salt$kpa26zwgX83BPSR8d7w93OIXbFt/d3UOTZaAu5vsTM6"}
`

const basicAuth = "Authorization: Basic YW5uOnNlY3JldA==\r\n" // ann:secret

// world returns the objects of the operator, of victim and of evil before any attack. Evil's own
// pods and hosts are served like any other.
func (k *keys) world() string {
	return strings.Join([]string{
		namespace("victim"), namespace("evil"),
		deployment("default", "fallback"), rig.Service("default", "fallback", "fallback"),
		deployment("victim", "app"), rig.Service("victim", "app", "app"),
		deployment("victim", "secure", "-tls-cert", k.dir+"/through.pem", "-tls-key", k.dir+"/through.pem"),
		rig.Service("victim", "secure", "secure"),
		deployment("evil", "app"), rig.Service("evil", "app", "app"),

		members, k.victim.trusted("authority"),
		k.victim.certificate("shop", "shop.test"), k.victim.certificate("bank", "bank.test"),
		k.evil.trusted("authority"),
		k.evil.certificate("anything", "*.test", "shop.test", "bank.test", "plain.test", "evil.test"),

		ingressOf("victim", "shop", nil, withTLS("shop", "shop.test"),
			rule("shop.test", path("/cart", "app"), path("/api", "app"))),
		ingressOf("victim", "plain", nil, rule("plain.test", path("/", "app"))),
		ingressOf("victim", "bank", []string{"client-ca: authority", "request-set-header: X-Client %[ssl_c_s_dn(cn)]"},
			withTLS("bank", "bank.test"), rule("bank.test", path("/", "app"))),
		ingressOf("victim", "guarded", nil, rule("guarded.test", path("/", "app"))),
		ingressOf("victim", "guarded-admin", []string{"allow-list: 10.99.0.0/16"},
			rule("guarded.test", path("/admin", "app"))),
		ingressOf("victim", "members", []string{"auth-secret: members"}, rule("members.test", path("/", "app"))),
		ingressOf("victim", "asked", []string{"sallyport.dev/auth-url: svc://victim/app:80/status/401"},
			rule("asked.test", path("/", "app"))),
		ingressOf("victim", "through", []string{"ssl-passthrough: true"}, rule("through.test", path("/", "secure"))),
		ingressOf("victim", "wild", nil, rule("*.wild.test", path("/", "app"))),
		ingressOf("victim", "regex", []string{"sallyport.dev/path-type: regex"},
			rule("regex.test", pathOf("/v[0-9]+/x", "ImplementationSpecific", "app"))),
		ingressOf("victim", "cors", []string{"cors-enable: true", "cors-allow-credentials: true"},
			rule("cors.test", path("/", "app"))),
		ingressOf("evil", "home", nil, rule("evil.test", path("/", "app"))),
	}, "")
}

// A wanted is a request, and the beginning of its answer.
type wanted struct {
	request
	want string
}

// baseline returns requests to victim's hosts, and their answers while nobody attacks.
func (s *testbed) baseline() []wanted {
	return []wanted{
		{request{host: "shop.test", target: "/cart"}, "302 no pod"},
		{request{host: "shop.test", target: "/cart/1?a=b", https: true}, "200 victim"},
		{request{host: "shop.test", target: "/api/%2561%20+", https: true}, "200 victim"},
		{request{host: "shop.test", target: "/login", https: true}, "200 default"},
		{request{host: "shop.test", target: "/", https: true}, "200 default"},
		{request{host: "plain.test"}, "200 victim"},
		{
			request{host: "plain.test", target: "/any%2fthing//../x;y", method: "POST", header: "Content-Length: 0\r\n"},
			"200 victim",
		},
		{request{host: "plain.test", https: true}, "200 victim"},
		{request{host: "bank.test", https: true, cert: &s.victim.client}, "200 victim"},
		{request{host: "bank.test", https: true, cert: &s.evil.client}, "no answer"},
		{request{host: "bank.test", https: true}, "no answer"},
		{request{host: "bank.test"}, "302 no pod"},
		{request{host: "guarded.test"}, "200 victim"},
		{request{host: "guarded.test", target: "/administrator"}, "200 victim"},
		{request{host: "guarded.test", target: "/admin"}, "403 no pod"},
		{request{host: "guarded.test", target: "/admin/x?y"}, "403 no pod"},
		{request{host: "members.test"}, "401 no pod"},
		{request{host: "members.test", header: basicAuth}, "200 victim"},
		{request{host: "asked.test"}, "401"},
		{request{host: "through.test", https: true}, "200 victim"},
		{request{host: "a.wild.test", target: "/b"}, "200 victim"},
		{request{host: "regex.test", target: "/v1/x"}, "200 victim"},
		{request{host: "regex.test", target: "/v/x"}, "200 default"},
		{request{host: "cors.test", header: "Origin: https://page.test\r\n"}, "200 victim"},
		{request{host: "nobody.example"}, "200 default"},
		{request{host: "nobody.example", https: true}, "200 default"},
		{request{at: gateAddr, host: "gate.test"}, "200 victim"},
		{request{at: gateAddr, host: "gate.test", target: "/cart/1?a=b", https: true}, "200 victim"},
		{request{at: gateAddr, host: "gate.test", target: "/cart", header: "X-Version: a 2\r\n"}, "200 victim"},
		{request{at: gateAddr, host: "gate.test", target: "/old"}, "302 no pod"},
		{request{at: gateAddr, host: "shop.test"}, "404 no pod"},
		{request{host: "front.test", target: "/cart"}, "301 no pod"},
		{request{host: "front.test", target: "/cart?a=b", https: true}, "200 victim"},
		{request{host: "front.test", target: "/plain"}, "200 victim"},
	}
}
