package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"sallyport/test/rig"
)

//go:embed testdata
var testdata embed.FS

func testfile(name string) []byte {
	text, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		panic(err) // it is in the program
	}
	return text
}

const evilHost = "evil.test"

// tenants returns the attacks by a tenant who may write every object in namespace evil, and
// nothing elsewhere.
func tenants() []attack {
	all := []attack{
		{
			tries:   "resumes under victim's name a TLS session made under its own client-ca",
			promise: "no session made under one client-ca, or none, resumes under another",
			objects: func(s *testbed) string {
				return ingressOf("evil", "session", []string{"client-ca: authority"},
					withTLS("anything", "session."+evilHost), rule("session."+evilHost, path("/", "app")))
			},
			holds: resumes,
		},
		{
			tries:   "brings a certificate and a client-ca for victim's hosts, without a rule",
			promise: "certificates and client-ca of a host come from the namespace that owns it",
			objects: func(s *testbed) string {
				return ingressOf("evil", "tls", []string{"client-ca: authority"},
					withTLS("anything", "bank.test", "shop.test", "plain.test", "*.wild.test"),
					rule("tls."+evilHost, path("/", "app")))
			},
			holds: told("tls", "HostOwned"),
		},
		{
			tries:   "brings a certificate with victim's names in it, and names no host",
			promise: "a certificate is served for hosts of its own namespace",
			objects: func(s *testbed) string {
				return ingressOf("evil", "names", nil, "  tls: [{secretName: anything}]\n",
					rule("names."+evilHost, path("/", "app")))
			},
		},
		{
			tries:   "brings a certificate, a client-ca and rules for *.test",
			promise: "a wildcard does not reach into hosts that others own",
			objects: func(s *testbed) string {
				return ingressOf("evil", "wildcard", []string{"client-ca: authority"}, withTLS("anything", "*.test"),
					rule("*.test", path("/", "app"), path("/login", "app")))
			},
		},
		{
			tries:   "sets its own client-ca where the ConfigMap demands one of all",
			promise: "an Ingress can make stricter what the ConfigMap demands of all, never weaker",
			config:  "client-ca: victim/authority",
			objects: func(s *testbed) string {
				return ingressOf("evil", "own-ca", []string{"client-ca: authority"}, withTLS("anything", evilHost)) +
					ingressOf("evil", "optional", []string{"client-crt-optional: true", "ssl-redirect: false"},
						rule("optional."+evilHost, path("/", "app")))
			},
			holds: demanded,
		},
		{
			tries:   "brings keys that Go parses and HAProxy refuses",
			promise: "a key that HAProxy does not take stops the Ingress that names it, and no other",
			objects: func(s *testbed) string {
				crt, key, err := s.evil.pair("foo." + evilHost)
				if err != nil {
					panic(err) // no randomness is left
				}
				var b strings.Builder
				for _, one := range []struct {
					name     string
					crt, key []byte
				}{
					{"foo", crt, bytes.ReplaceAll(key, []byte(" PRIVATE KEY"), []byte(" FOO PRIVATE KEY"))},
					{"sha1", testfile("sha1.crt"), testfile("sha1.key")},
					{"twice", slices.Concat(crt, crt), slices.Concat(key, key)},
					{
						"mixed", slices.Concat(key, crt,
							[]byte("-----BEGIN DH PARAMETERS-----\nAAAA\n-----END DH PARAMETERS-----\n")),
						slices.Concat(crt, key),
					},
				} {
					host := one.name + "." + evilHost
					b.WriteString(secret("evil", one.name, one.crt, one.key) +
						ingressOf("evil", one.name, nil, withTLS(one.name, host), rule(host, path("/", "app"))))
				}
				return b.String()
			},
		},
		{
			tries:   "brings authorities that Go parses and HAProxy refuses",
			promise: "an authority that HAProxy does not take closes the Ingress that names it, and no other",
			objects: func(s *testbed) string {
				weak := fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: evil, name: weak}\n"+
					"stringData:\n  ca.crt: %q\n  tls.crt: %q\n  tls.key: %q\n", testfile("sha1.crt"),
					testfile("sha1.crt"), testfile("sha1.key"))
				return weak +
					ingressOf("evil", "weak-clients", []string{"client-ca: weak"},
						withTLS("anything", "clients."+evilHost), rule("clients."+evilHost, path("/", "app"))) +
					ingressOf("evil", "weak-servers", []string{"server-ca: weak", "server-crt: weak"},
						rule("servers."+evilHost, path("/", "app")))
			},
		},
		{
			tries:   "uses samples of the wrong direction, type and arguments",
			promise: "a sample that HAProxy does not take stops the Ingress that has it, and no other",
			objects: func(*testbed) string {
				var b strings.Builder
				for i, sample := range badSamples {
					host := fmt.Sprintf("sample%d.%s", i, evilHost)
					said := []string{
						"request-set-header: X-A " + sample, "set-host: " + sample,
						"request-capture: " + strings.Trim(sample, "%[]"), "path-rewrite: (.*) /" + sample,
					}
					b.WriteString(ingressOf("evil", fmt.Sprintf("sample%d", i), said[i%len(said):i%len(said)+1],
						rule(host, path("/", "app"))))
					b.WriteString(ingressOf("evil", fmt.Sprintf("response%d", i),
						[]string{"response-set-header: X-A " + sample}, rule("response-"+host, path("/", "app"))))
				}
				return b.String()
			},
		},
		{
			tries:   "adds younger rules to victim's hosts",
			promise: "rules of a host come from the namespace that owns it",
			objects: func(*testbed) string {
				return ingressOf("evil", "exact", nil,
					rule("guarded.test", pathOf("/", "Exact", "app"), pathOf("/admin", "Exact", "app"),
						path("/login", "app"))) +
					ingressOf("evil", "login", nil,
						rule("shop.test", path("/login", "app"), pathOf("/", "Exact", "app"))) +
					ingressOf("evil", "regex", []string{"sallyport.dev/path-type: regex"},
						rule("guarded.test", pathOf("/.*", "ImplementationSpecific", "app")),
						rule("shop.test", pathOf("/.*", "ImplementationSpecific", "app"))) +
					ingressOf("evil", "wild", nil, rule("*.wild.test", path("/b", "app")))
			},
			holds: both(told("exact", "HostOwned"), both(told("login", "HostOwned"), told("regex", "HostOwned"))),
		},
		{
			tries:   "names hosts that are reserved for victim, before victim does",
			promise: "what ingress.hosts reserves belongs to nobody else",
			objects: func(*testbed) string {
				return ingressOf("evil", "squats", nil, withTLS("anything", "*.reserved.test", "b.reserved.test"),
					rule("a.reserved.test", path("/", "app")), rule("*.reserved.test", path("/", "app")))
			},
			holds: both(told("squats", "Host"), func(ctx context.Context, s *testbed) error {
				return errors.Join(s.gets(ctx, "200 default", request{host: "a.reserved.test"}),
					s.gets(ctx, "200 default", request{host: "b.reserved.test"}),
					s.gets(ctx, "200 default", request{host: "b.reserved.test", https: true}))
			}),
		},
		{
			tries:   "waits for a host until victim replaces its Ingress",
			promise: "a host stays with its last namespace for an hour after nothing there names it",
			holds:   waits,
		},
		{
			tries:   "brings a default backend for victim's host",
			promise: "the default of a host comes from the namespace that owns it",
			objects: func(*testbed) string {
				return ingressOf("evil", "default", nil,
					"  defaultBackend: {service: {name: app, port: {name: web}}}\n"+
						"  rules: [{host: shop.test}, {host: regex.test}]\n")
			},
		},
		{
			tries: "brings a default backend, without a rule", promise: "the operator's default-backend-service stays",
			objects: func(*testbed) string {
				return ingressOf("evil", "default", nil,
					"  defaultBackend: {service: {name: app, port: {name: web}}}\n")
			},
		},
		{
			tries:   "sets ssl-passthrough for victim's hosts",
			promise: "the namespace that owns a host decides whether its TLS ends at the appliance",
			objects: func(*testbed) string {
				return ingressOf("evil", "through", []string{"ssl-passthrough: true"},
					rule("shop.test", path("/", "app")), rule("bank.test", path("/", "app")),
					rule("*.test", path("/", "app"))) +
					ingressOf("evil", "not-through", nil, withTLS("anything", "through.test"),
						rule("through.test", path("/x", "app")))
			},
		},
		{
			tries:   "brings a canary for victim's host",
			promise: "a canary takes requests from Ingresses of its own namespace alone",
			objects: func(*testbed) string {
				return ingressOf("evil", "canary", []string{"sallyport.dev/canary-weight: 100"},
					rule("plain.test", path("/", "app")), rule("shop.test", path("/cart", "app")))
			},
		},
		{
			tries:   "has 10,000 regular expressions, and 5,000 rewrites for a request",
			promise: "rules of one host are not evaluated for another, and a host has no more than it can try",
			objects: func(*testbed) string {
				var b strings.Builder
				for i := range 100 {
					var paths []string
					for j := range 100 {
						paths = append(paths, pathOf(fmt.Sprintf("/(a|b|ab)*x%d-%d", i, j), "ImplementationSpecific",
							"app"))
					}
					b.WriteString(ingressOf("evil", fmt.Sprintf("many%d", i),
						[]string{"sallyport.dev/path-type: regex"},
						rule(fmt.Sprintf("many%d.%s", i, evilHost), paths...)))
				}
				b.WriteString(ingressOf("evil", "rewrites",
					[]string{"path-rewrite: " + strings.Repeat("/((a|b|ab)*)x(.*) /\\1y\n", 5000)},
					rule("rewrites."+evilHost, path("/", "app"))))
				return b.String()
			},
			holds: cheaply,
		},
		{
			tries:   "gives 20 further names to one host by each of 60 Ingresses",
			promise: "further names add no more paths than a namespace may have",
			objects: func(*testbed) string {
				var b strings.Builder
				for i := range 60 {
					var names []string
					for j := range 20 {
						names = append(names, fmt.Sprintf("n%d-%d.%s", i, j, evilHost))
					}
					b.WriteString(ingressOf("evil", fmt.Sprintf("named%d", i),
						[]string{"sallyport.dev/server-alias: " + strings.Join(names, " ")},
						rule("named."+evilHost, path(fmt.Sprintf("/%d", i), "app"))))
				}
				return b.String()
			},
			holds: cheaply,
		},
		{
			tries:   "has an EndpointSlice with victim's pod",
			promise: "a server has an address that the records assign to its namespace",
			objects: func(s *testbed) string {
				return borrowed("pod", s.pod, 8080)
			},
			holds: notServed("pod"),
		},
		{
			tries:   "has EndpointSlices with the ports of nodes",
			promise: "addresses of nodes are closed, unless the operator allows them",
			objects: func(*testbed) string {
				return borrowed("api", nodeAddr, 6443, "server-ssl: true") + borrowed("kubelet", nodeAddr, 10250) +
					borrowed("bgp", nodeAddr, 179)
			},
			holds: both(notServed("api"), both(notServed("kubelet"), notServed("bgp"))),
		},
		{
			tries: "has EndpointSlices with the appliance itself", promise: "the appliance is never its own server",
			objects: func(*testbed) string {
				return borrowed("self", applianceAddr, 80) + borrowed("status", applianceAddr, 9090) +
					borrowed("other", applianceAddr, 8080)
			},
			holds: both(notServed("self"), both(notServed("status"), notServed("other"))),
		},
		{
			tries: "brings Services of type ExternalName", promise: "a Service of type ExternalName has no servers",
			objects: func(*testbed) string {
				const name = "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: evil, name: name}\n" +
					"spec: {type: ExternalName, externalName: app.victim.svc.cluster.local, ports: [{name: web, " +
					"port: 80}]}\n"
				return name + ingressOf("evil", "name", nil, rule("name."+evilHost, path("/", "name")))
			},
			holds: notServed("name"),
		},
		{
			tries: "names Secrets of victim",
			promise: "an Ingress uses Secrets of its own namespace alone; a guard that cannot be set up " +
				"closes its paths",
			objects: func(*testbed) string {
				return ingressOf("evil", "members", []string{"auth-secret: victim/members"},
					rule("members."+evilHost, path("/", "app"))) +
					ingressOf("evil", "ca", []string{"client-ca: victim/authority"},
						withTLS("anything", "ca."+evilHost), rule("ca."+evilHost, path("/", "app"))) +
					ingressOf("evil", "shown", []string{"server-ca: victim/authority", "server-crt: victim/shop"},
						rule("shown."+evilHost, path("/", "app")))
			},
			holds: both(notServed("members"), both(notServed("ca"), notServed("shown"))),
		},
		{
			tries:   "names victim's Service in auth-url",
			promise: "auth-url reaches Services of its own namespace alone",
			objects: func(*testbed) string {
				return ingressOf("evil", "asks", []string{"sallyport.dev/auth-url: svc://victim/app:80/status/200"},
					rule("asks."+evilHost, path("/", "app")))
			},
			holds: notServed("asks"),
		},
		{
			tries: "brings snippets", promise: "snippets of Ingresses and Services are left out, with an Event",
			objects: func(*testbed) string {
				const snippet = "http-request return status 299"
				said := []string{
					"backend-config-snippet: " + snippet, "frontend-config-snippet: " + snippet,
					"global-config-snippet: maxconn 1", "sallyport.dev/backend-config-snippet: " + snippet,
					"route-acl: always_true",
				}
				of := strings.Replace(rig.Service("evil", "snippets", "app"), "name: snippets}",
					"name: snippets, annotations: {haproxy.org/backend-config-snippet: http-request return status "+
						"299, haproxy.org/route-acl: always_true}}", 1)
				return of + ingressOf("evil", "snippets", said, rule("snippets."+evilHost, path("/", "snippets")))
			},
			holds: both(told("snippets", "nippet"), func(ctx context.Context, s *testbed) error {
				got, err := s.ask(ctx, request{host: "snippets." + evilHost})
				if err == nil && got.status == 299 {
					err = errors.New("its snippet is in effect")
				}
				return err
			}),
		},
		{
			tries: "brings rules, hostile values, a Backend of victim and a port by custom resources",
			promise: "a Backend of a tenant sets values for its own namespace, and closes what names it if it has rules; " +
				"a TCP opens nothing",
			objects: customResources,
			holds: all(soon("503", request{host: "rules." + evilHost}), toldOf("Service", "rules", "trust"),
				soon("503", request{host: "foreign." + evilHost}), toldOf("Service", "foreign", "another namespace"),
				soon("503", request{host: "large." + evilHost}), // a cluster may not even keep it
				soon("200 evil", request{host: "hostile." + evilHost}), toldOf("TCP", "ports", "trust")),
		},
		{
			tries:   "writes values that end a line, a quote or a word of the configuration",
			promise: "a value of an object stays one value, whatever characters it has",
			objects: func(*testbed) string {
				var b strings.Builder
				for i, bad := range breakouts {
					host := fmt.Sprintf("quote%d.%s", i, evilHost)
					b.WriteString(ingressOf("evil", fmt.Sprintf("quote%d", i), []string{
						"set-host: " + bad, "request-set-header: X-A " + bad, "response-set-header: X-B " + bad,
						"auth-realm: " + bad, "path-rewrite: /a " + bad,
						"cookie-persistence: " + bad, "request-redirect: " + bad, "cors-enable: true",
						"cors-allow-origin: " + bad, "cors-allow-headers: " + bad,
						"load-balance: " + bad, "check-http: " + bad, "src-ip-header: " + bad,
						"sallyport.dev/app-root: " + bad, "sallyport.dev/session-cookie-domain: " + bad,
						"timeout-server: " + bad, "sallyport.dev/secure-sni: " + bad, "request-capture: " + bad,
						"rate-limit-period: " + bad, "sallyport.dev/auth-url: " + bad,
					}, rule(host, path("/q"+strings.NewReplacer("\n", "", "\r", "").Replace(bad), "app"))))
				}
				return b.String()
			},
			holds: func(ctx context.Context, s *testbed) error {
				got, err := s.ask(ctx, request{host: "plain.test"})
				if err == nil && got.header.Get("X-Broken") != "" {
					err = errors.New("a value has become a line of the configuration")
				}
				return err
			},
		},
		{
			tries:   "uses a class of our name that is another controller's",
			promise: "spec.ingressClassName requires an existing class with our controller", holds: otherClass,
		},
		{
			by: "nobody", tries: "writes guards with the keys without a prefix that HAProxy's own controller reads",
			promise: "a guard counts under every name of its key",
			objects: func(*testbed) string {
				return ingressOf("victim", "bare-deny", []string{"bare deny-list: 192.168.50.0/24"},
					rule("bare-deny.test", path("/", "app"))) +
					ingressOf("victim", "bare-auth",
						[]string{"bare auth-type: basic-auth", "bare auth-secret: members"},
						rule("bare-auth.test", path("/", "app"))) +
					ingressOf("victim", "bare-typo", []string{"bare allow-list: nobody"},
						rule("bare-typo.test", path("/", "app")))
			},
			holds: func(ctx context.Context, s *testbed) error {
				return errors.Join(s.gets(ctx, "403", request{host: "bare-deny.test"}),
					s.gets(ctx, "401", request{host: "bare-auth.test"}),
					s.gets(ctx, "503", request{host: "bare-typo.test"}))
			},
		},
		{
			tries: "brings a key of 8,192 bits", promise: "a key whose handshakes would use up a core is not served",
			objects: func(*testbed) string {
				return secret("evil", "large", testfile("large.crt"), testfile("large.key")) +
					ingressOf("evil", "large", nil, withTLS("large", "large."+evilHost),
						rule("large."+evilHost, path("/", "app")))
			},
			holds: func(ctx context.Context, s *testbed) error {
				conn, err := s.connect(ctx, request{https: true, host: "large." + evilHost})
				if err != nil {
					return err
				}
				defer conn.Close() //nolint:errcheck // nothing is lost with it
				if shown := conn.(*tls.Conn).ConnectionState().PeerCertificates; shown[0].Subject.CommonName ==
					"large."+evilHost {
					return errors.New("it is served")
				}
				return nil
			},
		},
	}
	for i, a := range all {
		all[i].by = or(a.by, "tenant")
	}
	return all
}

// badSamples are log-format strings that look right and that HAProxy rejects.
var badSamples = []string{
	"%[res.hdr(a)]", "%[status]", "%[res.cook(a)]", "%[res.fhdr(a)]", "%[req.hdr(a)]", "%[path]", "%[method]",
	"%[url_param(a)]", "%[capture.req.hdr(99)]", "%[capture.req.hdr(a)]",
	"%[date(a)]", "%[date(1,x)]", "%[rand(x)]", "%[rand(0)]", "%[src,base64]", "%[src,sha2(7)]", "%[str(a),sha2(7)]",
	"%[str(a),mod(0)]", "%[str(a),mod(x)]", "%[str(a),mod]",
	"%[str]", "%[str()]", "%[str(a),word(1)]", "%[str(a),word]", "%[str(a),field(1)]", "%[str(a),field(0,/)]",
	"%[str(a),substr]", "%[str(a),substr(x)]", "%[str(a),json(foo)]", "%[str(a),concat(a,b,c)]",
	"%[str(a),utime]", "%[str(a),http_date(9,9)]", "%[date,http_date(x)]", "%[src,upper]", "%[req.hdr_ip(a,x)]",
	"%[ssl_c_s_dn(a,b,c)]", "%[ssl_c_s_dn(cn,1,x)]", "%[url_param]", "%[cookie(a,b)]", "%[req.cook]",
	"%[str(a),hex,mod(1)]", "%[str(a),ltrim]", "%[str(a),rtrim]", "%[src_port,base64]", "%[unique-id(a)]", "%[uuid(5)]",
	"%[ssl_fc(x)]", "%[str(a),length(1)]", "%[str(a),url_dec(x)]", "%[str(a),xxh32(x)]",
}

// breakouts are values that would end their word, quote or line if they were written without
// quoting.
var breakouts = []string{
	"a\nhttp-response set-header X-Broken yes", "a\" if TRUE\nhttp-response set-header X-Broken yes\n#", "a' if FALSE",
	"a\\", "a # b", "${HOME}", "$HOME", "%[env(HOME)]", "%[src,lua.x]",
	"a\r\nX-Broken: yes", "a\x00b", "a\tb", "\"", "'", "\\\"", "%", "%[", "%[]", "]", "{", "a if { always_true }",
	"backend victim_app", "\nbackend x\n  http-request return status 299\n", strings.Repeat("a", 3000),
}

// both runs two checks.
func both(first, second func(context.Context, *testbed) error) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error { return errors.Join(first(ctx, s), second(ctx, s)) }
}

// customResources returns custom resources of evil, and an Ingress for each Backend that names it by its
// Service.
func customResources(*testbed) string {
	var b, named strings.Builder
	for _, one := range []struct{ name, backend, spec string }{
		{"rules", "rules", `{http_request_rule_list: [{type: return, return_status_code: 299}]}`},
		{"foreign", "victim/own", ""},
		{"large", "large", `{description: "` + strings.Repeat("x", 256<<10) + `"}`},
		{
			"hostile", "hostile", `{server_timeout: -1, cookie: {name: "A\nserver x 192.0.2.1"}, ` +
				`default_server: {sni: "str(a b)", maxconn: 99999999999}, balance: {algorithm: "roundrobin\nmode tcp"}}`,
		},
	} {
		if one.spec != "" {
			fmt.Fprintf(&b, "---\napiVersion: ingress.v3.haproxy.org/v3\nkind: Backend\n"+
				"metadata: {namespace: evil, name: %s}\nspec: %s\n", one.backend, one.spec)
		}
		named.WriteString(strings.Replace(rig.Service("evil", one.name, "app"), "name: "+one.name+"}",
			"name: "+one.name+", annotations: {haproxy.org/cr-backend: "+one.backend+"}}", 1))
		named.WriteString(ingressOf("evil", one.name, nil, rule(one.name+"."+evilHost, path("/", one.name))))
	}
	b.WriteString("---\napiVersion: ingress.v3.haproxy.org/v3\nkind: TCP\nmetadata: {namespace: evil, name: ports}\n" +
		"spec: [{name: all, frontend: {binds: {all: {port: 2222}}}, service: {name: app, port: 80}}]\n")
	b.WriteString("---\napiVersion: ingress.v3.haproxy.org/v3\nkind: Backend\nmetadata: {namespace: victim, name: own}\n" +
		"spec: {server_timeout: 9000}\n")
	return b.String() + named.String()
}

// told checks that an Event on an Ingress of evil contains this word.
func told(name, word string) func(context.Context, *testbed) error {
	return toldOf("Ingress", name, word)
}

// toldOf checks that an Event on an object of evil contains this word.
func toldOf(kind, name, word string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		return s.eventually(ctx, func() error {
			got, err := s.Told(ctx, kind, "evil", name)
			if err == nil && !strings.Contains(got, word) {
				err = fmt.Errorf("want %q told of %s evil/%s, got %q", word, kind, name, got)
			}
			return err
		})
	}
}

// gets checks how an answer begins.
func (s *testbed) gets(ctx context.Context, want string, r request) error {
	got, err := s.ask(ctx, r)
	if err == nil && !strings.HasPrefix(got.String(), want) {
		err = fmt.Errorf("%s: want %s, got %.300s", r, want, got)
	}
	return err
}

// borrowed returns the objects of a host of evil with a server at an address that is not evil's.
func borrowed(name, address string, port int, said ...string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: evil, name: %[1]s}
spec: {ports: [{name: web, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: evil, name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]
ports: [{name: web, port: %[3]d}]
`, name, address, port) + ingressOf("evil", name, said, rule(name+"."+evilHost, path("/", name)))
}

// notServed checks that no pod answers for a host of evil.
func notServed(name string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		for _, https := range []bool{false, true} {
			got, err := s.ask(ctx, request{
				host: name + "." + evilHost, https: https, cert: &s.victim.client,
				header: basicAuth,
			})
			if err != nil {
				return err
			}
			switch got.status {
			case 0, http.StatusFound, http.StatusForbidden, http.StatusNotFound, http.StatusServiceUnavailable:
				continue // by HAProxy itself
			}
			if got.pod != "default" {
				return fmt.Errorf("%s.%s: %.100s", name, evilHost, got)
			}
		}
		return nil
	}
}

// A thief is a cache of TLS sessions that returns the newest session for every name.
type thief struct{ state *tls.ClientSessionState }

func (t *thief) Get(string) (*tls.ClientSessionState, bool) { return t.state, t.state != nil }

func (t *thief) Put(_ string, state *tls.ClientSessionState) {
	if state != nil {
		t.state = state
	}
}

// resumes tries to resume TLS sessions, made with hosts that demand no certificate or another one,
// under the name of the host that demands victim's.
func resumes(ctx context.Context, s *testbed) error {
	var errs []error
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, from := range []string{"session." + evilHost, evilHost, "shop.test", "nobody.example"} {
			cache := &thief{}
			with := func(c *tls.Config) { c.ClientSessionCache, c.MinVersion, c.MaxVersion = cache, version, version }
			got, err := s.ask(ctx, request{https: true, host: from, cert: &s.evil.client}, with)
			if err != nil {
				return err
			}
			if got.status == 0 {
				errs = append(errs, fmt.Errorf("%s: %w", from, got.err))
			}
			got, err = s.ask(ctx, request{https: true, host: "bank.test", cert: &s.evil.client}, with)
			if err != nil {
				return err
			}
			if got.pod != "" {
				errs = append(errs, fmt.Errorf("a session of %s, %s, is good for bank.test: %.60s", from,
					tls.VersionName(version), got))
			}
		}
	}
	return errors.Join(errs...)
}

// demanded checks that no request reaches a pod without a certificate from the ConfigMap's
// authority.
func demanded(ctx context.Context, s *testbed) error {
	var errs []error
	for _, name := range []string{
		evilHost, "optional." + evilHost, "plain.test", "shop.test", "nobody.example",
		noSNI,
	} {
		for _, host := range []string{"plain.test", "shop.test", evilHost, "optional." + evilHost} {
			for _, cert := range []*tls.Certificate{nil, &s.evil.client} {
				got, err := s.ask(ctx, request{https: true, sni: name, host: host, target: "/cart", cert: cert})
				if err != nil {
					return err
				}
				if got.pod != "" {
					errs = append(errs, fmt.Errorf("by the name %s, with %s, to %s: %.40s", name, whose(cert), host,
						got))
				}
			}
		}
	}
	for _, host := range []string{"plain.test", evilHost, "optional." + evilHost} {
		got, err := s.ask(ctx, request{host: host})
		if err != nil {
			return err
		}
		if got.pod != "" {
			errs = append(errs, fmt.Errorf("plain HTTP to %s: %.40s", host, got))
		}
	}
	return errors.Join(append(errs,
		s.gets(ctx, "200 victim", request{https: true, host: "plain.test", cert: &s.victim.client}))...)
}

// waits lets evil name a host of victim, and replaces the Ingress of victim for that host.
func waits(ctx context.Context, s *testbed) (err error) {
	r := request{host: "gap.test"}
	victims := ingressOf("victim", "gap", nil, rule(r.host, path("/", "app")))
	evils := ingressOf("evil", "waits", nil, rule(r.host, path("/", "app")))
	defer func() { err = errors.Join(err, s.Delete(ctx, evils), s.Delete(ctx, victims), s.seen(ctx)) }()
	if err := errors.Join(s.Apply(ctx, victims), s.seen(ctx), s.gets(ctx, "200 victim", r)); err != nil {
		return err
	}
	if err := errors.Join(s.Apply(ctx, evils), s.Delete(ctx, victims), s.seen(ctx),
		s.gets(ctx, "200 default", r)); err != nil {
		return fmt.Errorf("while victim's Ingress is gone: %w", err)
	}
	if err := errors.Join(s.Apply(ctx, victims), s.seen(ctx), s.gets(ctx, "200 victim", r)); err != nil {
		return fmt.Errorf("once victim's Ingress is back: %w", err)
	}
	return told("waits", "HostOwned")(ctx, s)
}

func whose(cert *tls.Certificate) string {
	if cert == nil {
		return "no certificate"
	}
	return "a certificate of evil"
}

// cheaply bounds the cost of requests to victim while requests to evil cost as much as evil can
// arrange.
func cheaply(ctx context.Context, s *testbed) error {
	long := "/" + strings.Repeat("ab", 40) + "!x-0123456789"
	if _, err := s.ask(ctx, request{host: "rewrites." + evilHost, target: long}); err != nil {
		return err
	}
	took, err := s.cost(ctx, func() error {
		for range 50 {
			if err := errors.Join(s.gets(ctx, "200 victim", request{host: "plain.test", target: long}),
				s.gets(ctx, "200 default", request{host: "regex.test", target: long})); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && took > 200*time.Millisecond {
		err = fmt.Errorf("a hundred requests to victim cost %s of a processor", took)
	}
	return err
}

const classManifest = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: haproxy}\n" +
	"spec: {controller: %s}\n"

// otherClass replaces the IngressClass by another controller's, and restores it.
func otherClass(ctx context.Context, s *testbed) error {
	ours, others := fmt.Sprintf(classManifest, "haproxy.org/ingress-controller"),
		fmt.Sprintf(classManifest, "example.com/controller")
	gone := func() error {
		return s.eventually(ctx, func() error {
			got, err := s.ask(ctx, request{host: "plain.test"})
			if err == nil && got.pod == "victim" {
				err = errors.New("its Ingresses are served all the same")
			}
			return err
		})
	}
	err := s.Delete(ctx, ours)
	if err != nil {
		return err
	}
	if err = gone(); err != nil {
		err = fmt.Errorf("without a class: %w", err)
	}
	if e := s.Apply(ctx, others); e != nil {
		return errors.Join(err, e)
	}
	if e := gone(); e != nil {
		err = errors.Join(err, fmt.Errorf("with a class of another controller: %w", e))
	}
	err = errors.Join(err, s.Delete(ctx, others), s.Apply(ctx, ours))
	return errors.Join(err, s.eventually(ctx, func() error { return s.unharmed(ctx) }))
}
