package ingress

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/listen"
)

// gateAt is the address of the Gateway of gate.
const gateAt = "203.0.113.5"

// gate returns the manifests of a class, and of a Gateway with these listeners whose status has its
// address.
func gateOf(listeners string) string {
	return `
kind: GatewayClass
metadata: {name: ours}
spec: {controllerName: sallyport.dev/gateway}
---
kind: Gateway
metadata: {name: gate, namespace: default, uid: gate}
spec: {gatewayClassName: ours, listeners: [` + listeners + `]}
status: {addresses: [{type: IPAddress, value: ` + gateAt + `}]}
---
`
}

func httpRoute(name, spec string) string {
	return fmt.Sprintf(`
kind: HTTPRoute
metadata: {name: %s, namespace: default, uid: %[1]s}
spec: {parentRefs: [{name: gate}], %[2]s}
---
`, name, spec)
}

// compileGates compiles manifests with Gateway API. All ports are free.
func compileGates(t testing.TB, c *Compiler, manifests string, change func(*Snapshot)) Result {
	t.Helper()
	s := snapshot(t, Unnamed, manifests)
	s.Options.Gateway = GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}
	s.Options.Pools.Ranges = []AddressRange{poolOf(gateAt + "-" + gateAt)}
	if change != nil {
		change(&s)
	}
	verdicts := haproxy.Verdicts{haproxy.LuaSupport().Part(): haproxy.Good}
	for _, port := range []uint16{80, 81, 443, 5432} {
		verdicts[haproxy.FreeListener(netip.AddrPortFrom(netip.MustParseAddr(gateAt), port)).Part()] = haproxy.Good
	}
	c.Judge(verdicts)
	r := c.Compile([]Snapshot{s})
	if err := r.Config.Validate(); err != nil {
		t.Errorf("haproxy refuses it: %v", err)
	}
	return r
}

// tellGates returns the part of a Result that is about Gateways.
func tellGates(r Result) string {
	var b strings.Builder
	for _, l := range r.Config.Listeners {
		fmt.Fprintf(&b, "%s %s\n", l.Kind, l.At)
	}
	for _, route := range r.Config.Routes {
		if route.Scope == "" {
			continue
		}
		fmt.Fprintf(&b, "%s %s %s -> %s\n", route.Match, route.Host, route.Path, route.To)
		for _, p := range r.Config.Picks {
			if p.Name != route.Pick {
				continue
			}
			for _, one := range p.Cases {
				fmt.Fprintf(&b, "  if %s %v %v -> %s\n", one.If.Method, one.If.Headers, one.If.Params, one.To)
			}
		}
	}
	for _, h := range r.Config.Hostnames {
		if h.Streams {
			fmt.Fprintf(&b, "%s is for connections\n", h.Host)
		}
	}
	for _, cert := range r.Config.Certs {
		fmt.Fprintf(&b, "%s %v\n", cert.Name, cert.Hosts)
	}
	for _, be := range r.Config.Backends {
		fmt.Fprintf(&b, "%s %v\n", be.Name, len(be.Servers))
		for _, d := range be.Directives {
			if text := d.String(); text != "option forwardfor" { // as every backend has
				fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(text, "\n", "; "))
			}
		}
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "%s %s/%s %s: %s\n", p.Kind, p.Namespace, p.Name, p.Reason, p.Why)
	}
	for _, s := range r.Statuses[Unnamed] {
		if s.Gateway == nil {
			continue
		}
		for _, c := range s.Gateway.Conditions {
			fmt.Fprintf(&b, "%s %s=%s %s\n", s.Kind, c.Type, c.Status, c.Reason)
		}
	}
	return b.String()
}

func TestGatewaysAreServed(t *testing.T) {
	for name, row := range map[string]struct{ manifests, want string }{
		"a rule without anything shares the backend of Ingresses": {
			gateOf("{name: http, port: 80, protocol: HTTP}") + app("app") +
				ingress("ing", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]") +
				httpRoute("r", "hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
			`http 203.0.113.5:80
prefix  / -> 
prefix a.test / -> default_svc_app_http
default_svc_app_http 1
Gateway Accepted=True Accepted
Gateway Programmed=True Programmed
`,
		},
		"weights, and what cannot be served": {
			gateOf("{name: http, port: 80, protocol: HTTP}") + app("app") + app("more") +
				httpRoute("r", `rules: [{backendRefs: [
					{name: app, port: 80, weight: 3}, {name: more, port: 80, weight: 0}, {name: none, port: 80}]}]`) +
				httpRoute("s", "rules: [{matches: [{path: {value: /no}}]}]"),
			`http 203.0.113.5:80
prefix  / -> 49152@default_svc_app_http+65536@invalid
prefix  /no -> invalid
default_svc_app_http 1
default_svc_more_http 1
Gateway Accepted=True Accepted
Gateway Programmed=True Programmed
`,
		},
		"conditions and filters": {
			gateOf("{name: http, port: 80, protocol: HTTP}") + app("app") +
				httpRoute("r", `rules: [
					{matches: [{headers: [{name: A, value: "1"}], queryParams: [{name: q, value: x}], method: GET}],
					 backendRefs: [{name: app, port: 80}],
					 filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X, value: "5%"}]}}]},
					{matches: [{path: {value: /old}}],
					 filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301,
					   path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]},
					{matches: [{path: {value: /p}}], backendRefs: [{name: app, port: 80}],
					 timeouts: {request: 2s},
					 filters: [{type: URLRewrite, urlRewrite: {hostname: in.test,
					   path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]},
					{matches: [{path: {value: /odd}}], backendRefs: [{name: app, port: 80}],
					 filters: [{type: ExtensionRef, extensionRef: {group: x, kind: y, name: z}}]}]`),
			`http 203.0.113.5:80
prefix  / -> 
  if GET [{a 1 false}] [{q x false}] -> default_svc_app_http.r-1
prefix  /odd -> invalid
prefix  /old -> default_redirect.r-2
prefix  /p -> default_svc_app_http.r-3
default_redirect.r-2 0
  http-request replace-path '^(?:/old)(/.*)?$' '/new\1'; ` +
				`http-request redirect location https://%[req.hdr(host),host_only]%[pathq] code 301
default_svc_app_http.r-1 1
  http-request set-header X '5%%'
default_svc_app_http.r-3 1
  timeout server 2000ms
  http-request set-header Host 'in.test'
  http-request replace-path '^(?:/p)(?:/(.*))?$' '/\1'
Gateway Accepted=True Accepted
Gateway Programmed=True Programmed
`,
		},
		"TLS with certificates, and connections": {
			gateOf(`{name: https, port: 443, protocol: HTTPS, hostname: "*.b.test", tls: {certificateRefs: [{name: web}]}},
				{name: db, port: 5432, protocol: TCP}`) + app("app") +
				secretText(t, "web", certificate{}) + "---\n" +
				httpRoute("r", "hostnames: [a.b.test], rules: [{backendRefs: [{name: app, port: 80}]}]") + `
kind: TCPRoute
metadata: {name: db, namespace: default}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: app, port: 80}]}]}
`,
			`https 203.0.113.5:443
tcp 203.0.113.5:5432
prefix *.b.test / -> 
prefix a.b.test / -> default_svc_app_http
passthrough  / -> default_svc_app_http.tcp
default_web_203.0.113.5-443.pem [*.b.test]
default_svc_app_http 1
default_svc_app_http.tcp 1
Gateway Accepted=True Accepted
Gateway Programmed=True Programmed
`,
		},
		"HTTPS and other TLS on one port": {
			gateOf(`{name: whole, port: 443, protocol: TLS, hostname: "*.whole.test", tls: {mode: Passthrough}},
				{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web}]}},
				{name: lone, port: 443, protocol: TLS, hostname: lone.test, tls: {mode: Passthrough}}`) + app("app") +
				secretText(t, "web", certificate{}) + "---\n" +
				httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}]}]") + `
kind: TLSRoute
metadata: {name: whole, namespace: default}
spec: {parentRefs: [{name: gate}], hostnames: [a.whole.test, b.test], rules: [{backendRefs: [{name: app, port: 80}]}]}
`,
			`mixed 203.0.113.5:443
prefix  / -> default_svc_app_http
prefix *.whole.test / -> 
passthrough a.whole.test / -> default_svc_app_http.tcp
prefix a.whole.test / -> 
prefix lone.test / -> 
*.whole.test is for connections
lone.test is for connections
default_web_203.0.113.5-443.pem []
default_svc_app_http 1
default_svc_app_http.tcp 1
Gateway Accepted=True Accepted
Gateway Programmed=True Programmed
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := tellGates(compileGates(t, new(Compiler), row.manifests, nil))
			got = numbered(got)
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

// TestEachAddressThatAGatewayAsksForIsAnswered has addresses in spec.addresses, beside the one that the
// Gateway has.
func TestEachAddressThatAGatewayAsksForIsAnswered(t *testing.T) {
	for more, want := range map[string]string{
		"":                           "True Programmed",
		"{value: ''}":                "True Programmed",
		"{value: '2001:db8::5'}":     "True Programmed",
		"{value: 203.0.113.6}":       "False AddressNotUsable",
		"{value: 198.51.100.1}":      "False AddressNotUsable",
		"{value: 203.0.113}":         "False AddressNotUsable",
		"{type: Hostname, value: a}": "False Invalid",
	} {
		manifests := strings.Replace(gateOf("{name: web, port: 80, protocol: HTTP}"), "gatewayClassName: ours,",
			"gatewayClassName: ours, addresses: [{value: "+gateAt+"}, "+more+"],", 1)
		manifests = strings.Replace(manifests, "status: {addresses: [", "status: {addresses: [{value: '2001:db8::5'}, ", 1)
		r := compileGates(t, new(Compiler), manifests, func(s *Snapshot) {
			s.Options.Pools.Ranges = []AddressRange{poolOf("2001:db8::5-2001:db8::5"), poolOf(gateAt + "-203.0.113.6")}
		})
		got := ""
		for _, s := range r.Statuses[Unnamed] {
			if s.Gateway != nil {
				c := meta.FindStatusCondition(s.Gateway.Conditions, "Programmed")
				got = fmt.Sprintf("%s %s", c.Status, c.Reason)
			}
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", more, got, want)
		}
	}
}

func TestAForeignAddressOfAGatewayIsToldOnce(t *testing.T) {
	const lacks = "AddressNotUsable: the appliance does not have 203.0.113.8: add it to an interface of that machine, " +
		"or ask for another address of haproxy.addresses"
	for name, row := range map[string]struct {
		asked string
		local bool
		want  string
	}{
		"it is in no pool": {
			"{value: 198.51.100.1}", false,
			"AddressOutsidePools: 198.51.100.1 is in none of the pools of the appliance (group.pools)",
		},
		"it comes after one of its family": {
			"{value: 203.0.113.5}, {value: 198.51.100.1}", true,
			"AddressNotUsable: 198.51.100.1 is in none of the pools of the appliance (haproxy.addresses)",
		},
		"it comes after one of the other family": {
			"{value: 203.0.113.5}, {value: '2001:db8::9'}", false,
			"AddressOutsidePools: 2001:db8::9 is in none of the pools of the appliance (group.pools)",
		},
		"the machine lacks it": {"{value: 203.0.113.8}", true, lacks},
		"the machine lacks it, and has one of its family": {
			"{value: 203.0.113.5}, {value: 203.0.113.8}", true, lacks,
		},
		"the machine lacks it, and has one of the other family": {
			"{value: '2001:db8::5'}, {value: 203.0.113.8}", true, lacks,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := Compiler{Local: []netip.Addr{netip.MustParseAddr(gateAt), netip.MustParseAddr("2001:db8::5")}}
			manifests := strings.Replace(gateOf("{name: web, port: 80, protocol: HTTP}"), "gatewayClassName: ours,",
				"gatewayClassName: ours, addresses: ["+row.asked+"],", 1)
			r := compileGates(t, &c, manifests, func(s *Snapshot) {
				s.Options.Pools = Pools{Local: row.local, Ranges: []AddressRange{
					poolOf("2001:db8::5-2001:db8::5"), poolOf(gateAt + "-203.0.113.8"),
				}}
			})
			var got []string
			for _, p := range r.AllProblems() {
				got = append(got, p.Reason+": "+p.Why)
			}
			if got := strings.Join(got, "\n"); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
}

// A listener whose port another program has is refused like one whose port the appliance needs.
func TestAListenerOnAPortOfAnotherProgramIsNotAccepted(t *testing.T) {
	var c Compiler
	s := compileGates(t, &c, gateOf("{name: http, port: 80, protocol: HTTP}, {name: own, port: 81, protocol: HTTP}")+
		app("app")+httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}]}]"), nil).routing.of[0].Snapshot
	at := func(port uint16) haproxy.Part {
		return haproxy.FreeListener(netip.AddrPortFrom(netip.MustParseAddr(gateAt), port)).Part()
	}
	for _, row := range []struct {
		verdict haproxy.Verdict
		http    string
		has     int // listeners of HAProxy
	}{
		{haproxy.Verdict{}, "Accepted=True Accepted, Programmed=False Pending, " +
			"ResolvedRefs=True ResolvedRefs, Conflicted=False NoConflicts", 1},
		{haproxy.Refused("in use by nginx (pid 714)"), "Accepted=False PortUnavailable, Programmed=False Invalid, " +
			"ResolvedRefs=True ResolvedRefs, Conflicted=False NoConflicts", 1},
		{haproxy.Good, "Accepted=True Accepted, Programmed=True Programmed, " +
			"ResolvedRefs=True ResolvedRefs, Conflicted=False NoConflicts", 2},
	} {
		c.Judge(haproxy.Verdicts{at(80): row.verdict, at(81): haproxy.Good})
		r := c.Compile([]Snapshot{s})
		of := make(map[string][]string)
		for _, status := range r.Statuses[Unnamed] {
			if status.Kind != "Gateway" {
				continue
			}
			for _, is := range status.Conditions() {
				of[is.Of] = append(of[is.Of], is.Type+"="+is.Status+" "+is.Reason)
				const want = "port 80 of 203.0.113.5 is in use by nginx (pid 714) on the appliance: use another port, or " +
					"stop that program; then the listener opens by itself"
				if is.Of == "listener http" && is.Reason == "PortUnavailable" && is.Message != want {
					t.Errorf("got %q, want %q", is.Message, want)
				}
			}
		}
		if got := strings.Join(of["listener http"], ", "); got != row.http {
			t.Errorf("the listener: got %s, want %s", got, row.http)
		}
		if got := of["listener own"][0]; got != "Accepted=True Accepted" || len(r.Config.Listeners) != row.has {
			t.Errorf("the other listener: got %s and %v, want %d", got, r.Config.Listeners, row.has)
		}
	}
}

// TestANamespaceHasNoMoreCopiesOfWiderHostsThanPaths has hosts below a wildcard. The first of them has
// its rows and those of the wildcard. There is no room for those of the second.
func TestANamespaceHasNoMoreCopiesOfWiderHostsThanPaths(t *testing.T) {
	wide := ""
	for i := range 4 {
		wide += fmt.Sprintf("{matches: [{path: {value: /w%d}}]}, ", i)
	}
	r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+
		httpRoute("wide", `hostnames: ["*.test"], rules: [`+wide+"]")+
		httpRoute("one", "hostnames: [a.test, b.test], rules: [{matches: [{path: {value: /own}}]}]")+
		httpRoute("whole", "hostnames: [c.test], rules: [{}]"),
		func(s *Snapshot) { s.Options.Limits.Paths = 7 })
	rows := make(map[string]int)
	for _, route := range r.Config.Routes {
		rows[route.Host]++
	}
	if want := map[string]int{"": 1, "*.test": 5, "a.test": 6, "b.test": 2, "c.test": 1}; !maps.Equal(rows, want) {
		t.Errorf("got %v, want %v", rows, want)
	}
	e, _ := r.ExplainAPI(Unnamed, "httproute", "default", "one")
	want := "hostname b.test: requests that match no rule for it are answered with status 404, because the hostnames of " +
		"namespace default would have more than 7 matches of wider hostnames (clusters[].ingress.limits.paths)"
	if got := strings.Join(e.Attached[1:], "; "); got != want {
		t.Errorf("the status says %q, want %q", got, want)
	}
}

// TestServersAreSpokenToAsTheirPortSays has an Ingress and a route for each Service.
func TestServersAreSpokenToAsTheirPortSays(t *testing.T) {
	for name, row := range map[string]struct{ protocol, key, want string }{
		"nothing":                 {"", "", ""},
		"HTTP/2 without TLS":      {"kubernetes.io/h2c", "", "h2"},
		"WebSockets":              {"kubernetes.io/ws", "", "h1"},
		"WebSockets over TLS":     {"kubernetes.io/wss", "", "h1"},
		"another protocol":        {"https", "", ""},
		"a key that overrides it": {"kubernetes.io/h2c", `haproxy.org/server-proto: "h1"`, "h1"},
	} {
		t.Run(name, func(t *testing.T) {
			service := "kind: Service\nmetadata: {name: app, namespace: default, annotations: {" + row.key + "}}\n" +
				"spec: {ports: [{port: 80, appProtocol: " + strconv.Quote(row.protocol) + "}, {name: other, port: 81}]}\n---\n"
			r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+service+
				ingress("ing", 2020, "rules: ["+rule("a.test", path("/", "Prefix", "app"))+"]")+
				httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}, {name: app, port: 81}]}]"), nil)
			other := ""
			if row.key != "" {
				other = row.want
			}
			if got := r.Config.Backends; len(got) != 2 || got[0].Options.Proto != row.want || got[1].Options.Proto != other {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestRequestsAreMirroredAndServedWhateverIsWrongWithAMirror looks at the backends of a route with
// mirrors.
func TestRequestsAreMirroredAndServedWhateverIsWrongWithAMirror(t *testing.T) {
	const main = `backendRefs: [{name: app, port: 80}]`
	mirror := func(name, more string) string {
		return "{type: RequestMirror, requestMirror: {backendRef: {name: " + name + ", port: 80}" + more + "}}"
	}
	const preamble = "  filter lua.sallyport_mirror; http-request set-var(txn.copy_path) pathq; " +
		"http-request set-var(txn.copy_from) src; "
	const target = "  timeout server 5000ms\n  option abortonclose\n  retries 1\n"
	for name, row := range map[string]struct{ rule, want, said string }{
		"two, one of them of a part": {
			main + ", filters: [" + mirror("more", "") + ", " + mirror("last", ", percent: 20") + "]",
			"prefix  / -> default_svc_app_http.r-1\ndefault_svc_app_http.r-1 1\n" + preamble +
				"http-request set-var(txn.copy0) str(default/default:default_svc_more_http.r-2); " +
				"http-request set-var(txn.copy1) str(default/default:default_svc_last_http.r-2) if { rand(100) lt 20 }\n" +
				"default_svc_last_http.r-2 1\n" + target + "default_svc_more_http.r-2 1\n" + target,
			"",
		},
		"of a backendRef": {
			"backendRefs: [{name: app, port: 80, filters: [" +
				mirror("more", ", fraction: {numerator: 1, denominator: 3}") + "]}]",
			"prefix  / -> default_svc_app_http.r-1\ndefault_svc_app_http.r-1 1\n" + preamble +
				"http-request set-var(txn.copy0) str(default/default:default_svc_more_http.r-2) if { rand(3) lt 1 }\n" +
				"default_svc_more_http.r-2 1\n" + target,
			"",
		},
		"a Service that is not there": {
			main + ", filters: [" + mirror("none", "") + "]",
			"prefix  / -> default_svc_app_http\ndefault_svc_app_http 1\n",
			"there is no Service default/none (BackendNotFound)",
		},
		"a part that is none": {
			main + ", filters: [" + mirror("more", ", fraction: {numerator: 3, denominator: 2}") + "]",
			"prefix  / -> default_svc_app_http\ndefault_svc_app_http 1\n",
			"rule 1: a mirror has 3 of 2 requests; it is left out",
		},
		"too many": {
			main + ", filters: [" + strings.Repeat(mirror("more", "")+", ", 5) + "]",
			"prefix  / -> default_svc_app_http.r-1\ndefault_svc_app_http.r-1 1\n" + preamble +
				"http-request set-var(txn.copy0) str(default/default:default_svc_more_http.r-2); " +
				"http-request set-var(txn.copy1) str(default/default:default_svc_more_http.r-2); " +
				"http-request set-var(txn.copy2) str(default/default:default_svc_more_http.r-2); " +
				"http-request set-var(txn.copy3) str(default/default:default_svc_more_http.r-2)\n" +
				"default_svc_more_http.r-2 1\n" + target,
			"rule 1: a request has 5 mirrors; only the first 4 get copies",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+app("app")+app("more")+
				app("last")+httpRoute("r", "rules: [{"+row.rule+"}]"), nil)
			want := "http 203.0.113.5:80\n" + row.want + "Gateway Accepted=True Accepted\nGateway Programmed=True Programmed\n"
			if diff := cmp.Diff(want, numbered(tellGates(r))); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			e, _ := r.ExplainAPI(Unnamed, "httproute", "default", "r")
			if got := strings.Join(e.Attached[1:], "; "); got != row.said {
				t.Errorf("the status says %q, want %q", got, row.said)
			}
			if got := len(r.Config.Extras) == 1; got != strings.Contains(row.want, "lua.") {
				t.Errorf("extras: %v", r.Config.Extras)
			}
		})
	}
}

// TestARuleIsRepeatedWithinItsTimeouts reads the retries of rules, and the notes in their statuses.
func TestARuleIsRepeatedWithinItsTimeouts(t *testing.T) {
	for name, row := range map[string]struct{ rule, want, note string }{
		"codes and attempts": {
			"retry: {codes: [500, 503], attempts: 2}",
			"retries 2; retry-on conn-failure empty-response response-timeout 500 503", "",
		},
		"no number": {"retry: {}", "retries 3; retry-on conn-failure empty-response response-timeout", ""},
		"too many": {
			"retry: {attempts: 1000}", "retries 10; retry-on conn-failure empty-response response-timeout",
			"rule 1: retry.attempts is 1000; a request is repeated 10 times at most",
		},
		"a backoff": {
			"retry: {attempts: 1, backoff: 1s}", "retries 1; retry-on conn-failure empty-response response-timeout",
			"rule 1: HAProxy repeats a request at once; retry.backoff has no effect",
		},
		"a timeout of the request": {
			"retry: {codes: [504]}, timeouts: {request: 2s}",
			"timeout server 2000ms; retries 3; retry-on conn-failure empty-response 504", "",
		},
		"both timeouts": {
			"retry: {attempts: 9}, timeouts: {request: 10s, backendRequest: 3s}",
			"timeout server 3000ms; retries 2; retry-on conn-failure empty-response response-timeout", "",
		},
		"no time for a second attempt": {
			"retry: {attempts: 9}, timeouts: {request: 3s, backendRequest: 2s}",
			"timeout server 2000ms; retries 9; retry-on conn-failure empty-response", "",
		},
		"a timeout of the attempt": {
			"retry: {attempts: 9}, timeouts: {request: 0s, backendRequest: 2s}",
			"timeout server 2000ms; retries 9; retry-on conn-failure empty-response response-timeout", "",
		},
		"a code that HAProxy cannot retry": {
			"retry: {codes: [418]}", "",
			"rule 1: HAProxy cannot retry after status 418: allowed are 401 403 404 408 425 500 501 502 503 504; " +
				"its requests are answered with status 500",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+app("app")+
				httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}], "+row.rule+"}]"), nil)
			var lines []string
			for _, b := range r.Config.Backends {
				for _, d := range b.Directives {
					if text := d.String(); text != "option forwardfor" {
						lines = append(lines, strings.Split(text, "\n")...)
					}
				}
			}
			if got := strings.Join(lines, "; "); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
			e, _ := r.ExplainAPI(Unnamed, "httproute", "default", "r")
			if got := strings.Join(e.Attached[1:], "; "); got != row.note {
				t.Errorf("the status says %q, want %q", got, row.note)
			}
		})
	}
}

// numbered replaces each hash in the name of a backend by a number, in the order of the text.
func numbered(text string) string {
	seen := map[string]string{}
	parts := strings.Split(text, ".r-")
	for i := 1; i < len(parts); i++ {
		hash := parts[i][:16]
		if seen[hash] == "" {
			seen[hash] = fmt.Sprint(len(seen) + 1)
		}
		parts[i] = seen[hash] + parts[i][16:]
	}
	return strings.Join(parts, ".r-")
}

func TestRoutesAndGatewaysAreExplained(t *testing.T) {
	r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+app("app")+
		httpRoute("r", `hostnames: [a.test], rules: [{matches: [{path: {value: /x}, method: GET}],
			backendRefs: [{name: app, port: 80}]}]`), nil)
	e, ok := r.ExplainAPI(Unnamed, "httproute", "default", "r")
	if !ok || len(e.Backends) != 1 {
		t.Fatalf("got %+v", e)
	}
	want := Explanation{
		Ingress:  ObjectRef{Cluster: Unnamed, Kind: "HTTPRoute", Namespace: "default", Name: "r", UID: "r"},
		Attached: []string{"attached to listener http of Gateway default/gate"},
		Rules: []ExplainedRule{{
			Host: "a.test", Path: "/x", Match: haproxy.Prefix, Backend: "default_svc_app_http", When: "method GET",
			Rule: 1,
		}},
		Backends: e.Backends,
		Conditions: []Condition{
			{Of: "parent Gateway default/gate", Type: "Accepted", Status: "True", Reason: "Accepted"},
			{Of: "parent Gateway default/gate", Type: "ResolvedRefs", Status: "True", Reason: "ResolvedRefs"},
		},
	}
	if diff := cmp.Diff(want, e, cmpopts.EquateComparable(haproxy.Directive{})); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	e, ok = r.ExplainAPI(Unnamed, "gateway", "default", "gate")
	one := "listener http of Gateway default/gate: HTTP on port 80, 1 routes"
	if got := strings.Join(e.Attached, "\n"); !ok || got != one {
		t.Errorf("got %q", got)
	}
	if _, ok = r.ExplainAPI(Unnamed, "gateway", "default", "r"); ok {
		t.Error("a route is explained as a Gateway")
	}
}

// TestNoNamespaceBringsTooManyForms gives a namespace routes that look at ever other headers.
func TestNoNamespaceBringsTooManyForms(t *testing.T) {
	manifests := gateOf("{name: web, port: 80, protocol: HTTP}")
	for i := range listen.MaxForms + 3 {
		manifests += httpRoute(fmt.Sprintf("r%02d", i), fmt.Sprintf(
			"rules: [{matches: [{headers: [{name: x-%d, value: a}]}, {headers: [{name: x-%[1]d, value: b}]}]}]", i))
	}
	r := compileGates(t, &Compiler{}, manifests, nil)
	if got := len(r.Config.Forms); got != listen.MaxForms {
		t.Errorf("got %d forms, want %d", got, listen.MaxForms)
	}
}

// TestAFormThatHAProxyHasNoRoomForIsRefused has 8 namespaces, each with as many forms as it may bring.
// HAProxy has room for all but two. The two youngest routes say so, though their hosts come first.
func TestAFormThatHAProxyHasNoRoomForIsRefused(t *testing.T) {
	const namespaces = 8
	manifests := gateOf("{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}")
	for i := range namespaces * listen.MaxForms {
		manifests += sharedRoute(fmt.Sprint("n", i/listen.MaxForms), fmt.Sprintf("r%02d", i), 2000+i, "", fmt.Sprintf(
			"hostnames: [h%02d.test], rules: [{matches: [{headers: [{name: x-%d, value: a}]}]}]", 99-i, i))
	}
	r := compileGates(t, &Compiler{}, manifests, nil)
	if got := len(r.Config.Forms); got != haproxy.MaxForms {
		t.Errorf("got %d forms, want %d", got, haproxy.MaxForms)
	}
	served := map[string]bool{}
	for _, f := range r.Config.Forms {
		served[f.Headers[0]] = true
	}
	for _, s := range r.Statuses[Unnamed] {
		if s.Kind != "HTTPRoute" {
			continue
		}
		i, err := strconv.Atoi(strings.TrimPrefix(s.Name, "r"))
		if err != nil {
			t.Fatal(err)
		}
		has := meta.FindStatusCondition(s.Parents[0].Conditions, string(gatewayv1.RouteConditionPartiallyInvalid))
		refused := has != nil && has.Reason == string(gatewayv1.RouteReasonUnsupportedValue)
		if want := i >= haproxy.MaxForms; refused != want || served[fmt.Sprint("x-", i)] == want {
			t.Errorf("route %d: refused %v, served %v; want %v", i, refused, served[fmt.Sprint("x-", i)], want)
		}
	}
}

// TestTheConfigMapHoldsForBackendsOfRoutesAndNotForTheirPaths has an HTTPRoute and a TCPRoute at a Gateway
// with an address of its own.
func TestTheConfigMapHoldsForBackendsOfRoutesAndNotForTheirPaths(t *testing.T) {
	manifests := gateOf(`{name: http, port: 80, protocol: HTTP}, {name: db, port: 5432, protocol: TCP}`) + app("app") +
		httpRoute("r", "rules: [{matches: [{path: {value: /v.}}], backendRefs: [{name: app, port: 80}]}]") + `
kind: TCPRoute
metadata: {name: db, namespace: default}
spec: {parentRefs: [{name: gate}], rules: [{backendRefs: [{name: app, port: 80}]}]}
`
	type want struct {
		http, tcp string // directives
		conns     int    // of a server
	}
	for name, row := range map[string]struct {
		keys map[string]string
		want want
	}{
		"nothing": {},
		"a list of networks": {map[string]string{"allow-list": "192.0.2.0/24"}, want{
			http: "acl sp_allowed src 192.0.2.0/24; http-request deny deny_status 403 if !sp_allowed",
			tcp:  "acl sp_allowed src 192.0.2.0/24; tcp-request content reject if !sp_allowed",
		}},
		"a rate of requests": {map[string]string{"rate-limit-requests": "5"}, want{
			http: "http-request track-sc0 src table _rate; http-request deny deny_status 403 " +
				"if { sc_http_req_rate(0,_rate) gt 5 } or !{ sc_tracked(0) }",
		}},
		"timeouts": {map[string]string{"timeout-server": "7s", "timeout-connect": "2s"}, want{
			http: "timeout connect 2000ms; timeout server 7000ms", tcp: "timeout connect 2000ms; timeout server 7000ms",
		}},
		"connections of a pod": {map[string]string{"pod-maxconn": "9"}, want{conns: 9}},
		"passwords that are missing": {map[string]string{"auth-type": "basic-auth", "auth-secret": "none"}, want{
			http: `http-request return status 503 content-type text/plain string "the access rules of this path are ` +
				`invalid\n"`,
			tcp: "tcp-request content reject",
		}},
		"keys of paths": {keys: map[string]string{"ssl-redirect": "true", "path-type": "regex"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := compileGates(t, new(Compiler), manifests, func(s *Snapshot) {
				s.Options.ConfigMap = "default/keys"
				s.ConfigMaps = []*corev1.ConfigMap{{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}, Data: row.keys,
				}}
			})
			got := map[string]want{}
			for _, b := range r.Config.Backends {
				var lines []string
				for _, d := range b.Directives {
					if text := d.String(); text != "option forwardfor" {
						lines = append(lines, strings.Split(text, "\n")...)
					}
				}
				one := want{http: strings.Join(lines, "; "), conns: b.Options.MaxConn}
				if b.TCP {
					one.http, one.tcp = "", one.http
				}
				got[b.Name] = one
			}
			all := map[string]want{
				"default_svc_app_http":     {http: row.want.http, conns: row.want.conns},
				"default_svc_app_http.tcp": {tcp: row.want.tcp, conns: row.want.conns},
			}
			if diff := cmp.Diff(all, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
			for _, route := range r.Config.Routes {
				path := route.Host == "" && route.Path == "/v." && route.Match == haproxy.Prefix
				if route.TLSOnly || route.Scope == gateAt+":80" && route.To.String() != "" && !path {
					t.Errorf("got the route %+v, want the prefix /v. without TLS", route)
				}
			}
		})
	}
}

// TestARouteHearsOfAServiceThatComes has a route that is older than its Service.
func TestARouteHearsOfAServiceThatComes(t *testing.T) {
	var c Compiler
	before := gateOf("{name: http, port: 80, protocol: HTTP}") +
		httpRoute("r", "rules: [{backendRefs: [{name: app, port: 80}]}]")
	compileGates(t, &c, before, nil)
	s := c.worlds[0].Snapshot
	s.Services = snapshot(t, Unnamed, app("app")).Services
	r := c.Compile([]Snapshot{s})
	for _, status := range r.Statuses[Unnamed] {
		for _, p := range status.Parents {
			if got := p.Conditions[1]; got.Status != "True" {
				t.Errorf("got %+v", got)
			}
		}
	}
	if len(r.Config.Backends) != 1 {
		t.Errorf("%d backends, want the one of the Service", len(r.Config.Backends))
	}
}

// TestTheFiltersOfRoutesCountAsConfiguration has more and more routes with a filter. Each takes
// configuration of the namespace, and so do the keys of the Service, which its backend repeats.
func TestTheFiltersOfRoutesCountAsConfiguration(t *testing.T) {
	service := strings.Replace(app("app"), "name: app",
		`name: app, annotations: {haproxy.org/timeout-server: 7s}`, 1)
	filter := func(i int) string {
		return fmt.Sprintf("rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-A, "+
			"value: %q}]}}], backendRefs: [{name: app, port: 80}]}]", strings.Repeat(strconv.Itoa(i), 300))
	}
	manifests := gateOf("{name: http, port: 80, protocol: HTTP}") + service
	for i := range 4 {
		manifests += httpRoute(fmt.Sprint("r", i), fmt.Sprintf("hostnames: [r%d.test], ", i)+filter(i))
	}
	for i := range 4 { // these share the backend of the Service
		manifests += httpRoute(fmt.Sprint("plain", i), "hostnames: [p.test], rules: [{backendRefs: [{name: app, port: 80}]}]")
	}
	for most, want := range map[int]int{0: 0, 1000: 2, 4000: 0} {
		r := compileGates(t, &Compiler{}, manifests, func(s *Snapshot) { s.Options.Limits.ConfigBytes = most })
		refused := 0
		for _, p := range r.Problems {
			if p.Reason == "LimitReached" && strings.Contains(p.Why, "configBytes") && strings.HasPrefix(p.Name, "r") {
				refused++
			}
		}
		if refused != want || len(r.Problems) != want {
			t.Errorf("with at most %d bytes: %d routes are refused, want %d:\n%v", most, refused, want, r.Problems)
		}
	}
}
