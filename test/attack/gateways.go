package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/test/rig"
)

// controller is the controller of the GatewayClass sallyport.
const controller = "sallyport.dev/gateway"

// Addresses for Gateways: of victim's Gateway, of evil's, of victim's Service, and one of the pool that
// the appliance does not have.
var (
	gateAddr    = rig.GatewayAddress(2)
	evilGate    = rig.GatewayAddress(4)
	serviceAddr = rig.GatewayAddress(6)
	lackingAddr = rig.GatewayAddress(32)
)

// gates returns the Gateway of victim with its route, before any attack.
func (k *keys) gates() string {
	return "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: sallyport}\n" +
		"spec: {controllerName: " + controller + "}\n" +
		k.gate +
		gatewayOf("victim", "web", gateAddr, `{name: http, port: 80, protocol: HTTP}`,
			`{name: https, port: 443, protocol: HTTPS, hostname: gate.test, tls: {certificateRefs: [{name: gate}]}}`) +
		routeOf("victim", "web", "web", "gate.test",
			`{matches: [{path: {value: /cart}, headers: [{name: x-version, value: "a 2"}]}], `+
				`backendRefs: [{name: app, port: 80}], filters: [{type: ResponseHeaderModifier, `+
				`responseHeaderModifier: {set: [{name: x-chosen, value: "by %[src]"}]}}]}`,
			`{matches: [{path: {value: /old}}], filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}`,
			toApp) + k.front +
		gatewayOf("victim", "front", "", `{name: http, port: 80, protocol: HTTP}`,
			`{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: front}]}}`) +
		at("https", routeOf("victim", "front", "front", "front.test", toApp)) +
		at("http", routeOf("victim", "redirects", "front", "front.test",
			`{filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]}`,
			`{matches: [{path: {value: /plain}}], backendRefs: [{name: app, port: 80}]}`))
}

// at returns the manifest of a route with the name of a listener.
func at(section, route string) string {
	return strings.Replace(route, "parentRefs: [{", "parentRefs: [{sectionName: "+section+", ", 1)
}

// toApp is a rule that leads to Service app of the same namespace.
const toApp = `{backendRefs: [{name: app, port: 80}]}`

// gatewayOf returns the manifest of a Gateway. It asks for no address if address is empty. Listeners
// are YAML.
func gatewayOf(namespace, name, address string, listeners ...string) string {
	asks := ""
	if address != "" {
		asks = fmt.Sprintf("\n  addresses: [{value: %s}]", address)
	}
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n"+
		"metadata: {namespace: %s, name: %s}\nspec:\n  gatewayClassName: sallyport%s\n  listeners: [%s]\n",
		namespace, name, asks, strings.Join(listeners, ", "))
}

// plain is a listener for routes of the Gateway's own namespace.
const plain = `{name: http, port: 80, protocol: HTTP}`

// routeOf returns the manifest of an HTTPRoute. The parent is NAME or NAMESPACE/NAME of a Gateway. Rules
// are YAML.
func routeOf(namespace, name, parent, host string, rules ...string) string {
	ref := "name: " + parent
	if of, gate, elsewhere := strings.Cut(parent, "/"); elsewhere {
		ref = fmt.Sprintf("namespace: %s, name: %s", of, gate)
	}
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n"+
		"metadata: {namespace: %s, name: %s}\nspec:\n  parentRefs: [{%s}]\n  hostnames: [%q]\n  rules:\n  - %s\n",
		namespace, name, ref, host, strings.Join(rules, "\n  - "))
}

// grantOf returns the manifest of a ReferenceGrant of victim that lets a kind of evil's objects name
// victim's objects of another kind.
func grantOf(name, from, to string) string {
	group := `group: ""`
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\n"+
		"metadata: {namespace: victim, name: %s}\nspec:\n"+
		"  from: [{group: gateway.networking.k8s.io, kind: %s, namespace: evil}]\n  to: [{%s, kind: %s}]\n",
		name, from, group, to)
}

// conditions are the conditions in a status of Gateway API.
type conditions struct {
	Conditions []metav1.Condition
	Listeners  []struct {
		Name       string
		Conditions []metav1.Condition
	}
	Parents []struct {
		ControllerName string
		Conditions     []metav1.Condition
	}
}

// String returns a line for each condition: "Accepted=True Accepted: why". The lines of a listener begin
// with its name.
func (c conditions) String() string {
	var b strings.Builder
	write := func(of string, all []metav1.Condition) {
		for _, one := range all {
			fmt.Fprintf(&b, "%s%s=%s %s: %s\n", of, one.Type, one.Status, one.Reason, one.Message)
		}
	}
	write("", c.Conditions)
	for _, l := range c.Listeners {
		write(l.Name+" ", l.Conditions)
	}
	for _, p := range c.Parents {
		if p.ControllerName == controller {
			write("", p.Conditions)
		}
	}
	return b.String()
}

// reports waits until the status of an object has lines that begin with each of these texts.
func reports(kind, namespace, name string, want ...string) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		return s.eventually(ctx, func() error {
			got, err := s.Status(ctx, kind, namespace, name)
			for _, one := range want {
				if err == nil && !strings.Contains("\n"+got.String(), "\n"+one) {
					err = fmt.Errorf("%s %s/%s: want %q, got\n%s", kind, namespace, name, one, got)
				}
			}
			return err
		})
	}
}

// soon waits until an answer begins as wanted.
func soon(want string, r request) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		return s.eventually(ctx, func() error { return s.gets(ctx, want, r) })
	}
}

// all runs several checks.
func all(checks ...func(context.Context, *testbed) error) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check(ctx, s))
		}
		return errors.Join(errs...)
	}
}

// atEvil returns a request to evil's Gateway.
func atEvil(target string, headers ...string) request {
	r := request{at: evilGate, host: "gate." + evilHost, target: target}
	for _, h := range headers {
		r.header += h + "\r\n"
	}
	return r
}

// home returns a Gateway of evil with a route that can be served, and more rules before it.
func home(rules ...string) string {
	return gatewayOf("evil", "home", evilGate, plain) +
		routeOf("evil", "home", "home", "gate."+evilHost, append(rules, toApp)...)
}

// gateways returns the attacks by means of Gateway API.
func gateways() []attack {
	list := []attack{
		{
			tries: "asks Gateways for addresses of victim's Gateway and of a node, for ones that no " +
				"machine has, and for a name",
			promise: "a Gateway listens at free addresses that the appliance has for Gateways, and nowhere else",
			objects: func(*testbed) string {
				return gatewayOf("evil", "victims", gateAddr, plain) + gatewayOf("evil", "node", nodeAddr, plain) +
					gatewayOf("evil", "lacking", lackingAddr, plain) + gatewayOf("evil", "foreign", "192.0.2.1", plain) +
					strings.Replace(gatewayOf("evil", "named", "gate.evil.test", plain), "{value", "{type: Hostname, value", 1) +
					home()
			},
			holds: all(reports("Gateway", "evil", "victims", "Accepted=True", "Programmed=False AddressNotUsable", "http Programmed=False"),
				reports("Gateway", "evil", "node", "Programmed=False AddressNotUsable"),
				reports("Gateway", "evil", "lacking", "Programmed=False AddressNotUsable"),
				reports("Gateway", "evil", "foreign", "Programmed=False AddressNotUsable"),
				reports("Gateway", "evil", "named", "Accepted=False UnsupportedAddress"),
				reports("Gateway", "evil", "home", "Programmed=True"), soon("200 evil", atEvil("/"))),
		},
		{
			tries: "brings certificates to a Gateway that HAProxy refuses, and one of victim",
			promise: "a listener whose certificate cannot be used is closed, and no other; a certificate of " +
				"another namespace takes a ReferenceGrant",
			objects: badListeners,
			holds: all(reports("Gateway", "evil", "home",
				"http Programmed=True", "none ResolvedRefs=False InvalidCertificateRef", "none Programmed=False",
				"mixed ResolvedRefs=False InvalidCertificateRef", "sha1 ResolvedRefs=False InvalidCertificateRef",
				"large ResolvedRefs=False InvalidCertificateRef", "victims ResolvedRefs=False RefNotPermitted",
				"victims Programmed=False"), soon("200 evil", atEvil("/"))),
		},
		{
			tries:   "writes matches and filters with spaces, quotes, NUL and samples of HAProxy",
			promise: "a value of a route is compared and set as it is; what HAProxy cannot take is not served",
			objects: func(*testbed) string { return hostileRules() },
			holds: all(soon("200 evil", atEvil("/")), oddMatches, func(ctx context.Context, s *testbed) error {
				literal := `a "b' %[src] # ; ${HOME}`
				shared := request{host: "shared." + evilHost, target: "/literal", header: "X-Odd: " + literal + "\r\n"}
				err := soon("200 evil", shared)(ctx, s)
				for _, r := range []request{atEvil("/literal", "X-Odd: "+literal), shared} {
					got, failed := s.ask(ctx, r)
					if seen := got.saw.Headers.Get("X-Set"); failed == nil && seen != literal {
						failed = fmt.Errorf("%s: the pod saw the header X-Set: %q, want %q (%.200s)", r, seen, literal, got)
					}
					err = errors.Join(err, failed)
				}
				plain, failed := s.ask(ctx, request{at: gateAddr, host: "gate.test"})
				if failed == nil && plain.header.Get("X-Broken") != "" {
					failed = errors.New("a value has become a line of the configuration")
				}
				return errors.Join(err, failed)
			}),
		},
		{
			tries:   "has 2,000 matches by regular expressions that cost",
			promise: "patterns of one Gateway are not evaluated for another, and a request meets no more than it can pay",
			objects: func(*testbed) string { return costlyRules() },
			holds:   gatewayCheaply,
		},
		{
			tries:   "has matches on 70 sets of headers",
			promise: "a namespace brings 8 sets of headers at most; victim's next set is compared",
			objects: func(*testbed) string {
				var b strings.Builder
				b.WriteString(home())
				for i := range 7 {
					var rules []string
					for j := range 10 {
						rules = append(rules, fmt.Sprintf("{matches: [{headers: [{name: x-form-%d, value: a}]}], "+
							"backendRefs: [{name: app, port: 80}]}", 10*i+j))
					}
					b.WriteString(routeOf("evil", fmt.Sprintf("forms%d", i), "home", fmt.Sprintf("form%d.%s", i, evilHost),
						rules...))
				}
				return b.String() + routeOf("victim", "form", "web", "form.test",
					"{matches: [{headers: [{name: x-new, value: b}]}], backendRefs: [{name: app, port: 80}]}")
			},
			holds: all(reports("HTTPRoute", "evil", "forms6", "PartiallyInvalid=True UnsupportedValue"),
				reports("HTTPRoute", "victim", "form", "Accepted=True"),
				soon("200 victim", request{at: gateAddr, host: "form.test", header: "X-New: b\r\n"})),
		},
		{
			tries: "has 120 routes, each for all hosts of 32 ListenerSets",
			promise: "routes beyond the limit of paths are refused before anything is made of them; victim's next " +
				"route is served",
			objects: manyPlaces,
			holds: all(reports("HTTPRoute", "victim", "next", "Accepted=True"),
				soon("200 victim", request{at: gateAddr, host: "next.test"}),
				soon("200 evil", request{at: evilGate, host: "l63.s31." + evilHost, target: "/p0"})),
		},
		{
			tries:   "has routes at victim's Gateway, and to victim's Service",
			promise: "across namespaces, allowedRoutes and ReferenceGrants decide",
			objects: func(*testbed) string {
				return home(`{matches: [{path: {value: /cross}}], backendRefs: [{namespace: victim, name: app, port: 80}]}`) +
					routeOf("evil", "intrudes", "victim/web", "gate.test", toApp) +
					routeOf("evil", "widens", "victim/web", "*.test", toApp)
			},
			holds: all(reports("HTTPRoute", "evil", "intrudes", "Accepted=False NotAllowedByListeners"),
				reports("HTTPRoute", "evil", "widens", "Accepted=False NotAllowedByListeners"),
				reports("HTTPRoute", "evil", "home", "Accepted=True", "ResolvedRefs=False RefNotPermitted"),
				soon("200 evil", atEvil("/")), soon("500", atEvil("/cross"))),
		},
		{
			tries: "claims victim's hosts by routes of a Gateway at the addresses of Ingresses, and a host of " +
				"victim's route there by an Ingress",
			promise: "a host has one owner there, whatever names it; a Gateway has only the ports of Ingresses",
			objects: sharedHosts,
			holds: all(
				reports("Gateway", "evil", "front", "Programmed=True", "http Programmed=True", "https Programmed=True",
					"status Accepted=False PortUnavailable", "tcp Accepted=False UnsupportedProtocol",
					"victims ResolvedRefs=False RefNotPermitted"),
				reports("HTTPRoute", "evil", "steals", "Accepted=False HostOwned"),
				reports("HTTPRoute", "evil", "reserved", "Accepted=False HostOwned"),
				reports("HTTPRoute", "evil", "intrudes", "Accepted=False NotAllowedByListeners"),
				reports("HTTPRoute", "evil", "own", "Accepted=True", "ResolvedRefs=True"),
				told("steals", "HostOwned"),
				soon("200 evil", request{host: "front." + evilHost}),
				soon("200 evil", request{host: "front." + evilHost, https: true})),
		},
		{
			by: "nobody", tries: "takes a ReferenceGrant away under load",
			promise: "the route leads there no more, from the first 500 on; no request meets anything else",
			objects: func(*testbed) string {
				// Nothing else leads to this Service, so its backend goes with the route.
				return rig.Service("victim", "lent", "app") +
					home(`{matches: [{path: {value: /cross}}], backendRefs: [{namespace: victim, name: lent, port: 80}]}`) +
					grantOf("shares", "HTTPRoute", "Service")
			},
			holds: grantGoes,
		},
		{
			by: "nobody", tries: "deletes a Gateway while it serves",
			promise: "its listener closes, an answer that is on its way ends whole, and others go on under load",
			holds:   gatewayGoes,
		},
	}
	for i, a := range list {
		list[i].by = or(a.by, "tenant")
	}
	return append(list, gatewaysInLab()...)
}

// manyPlaces returns ListenerSets of evil with 64 listeners each, routes that name all of them, and a new
// route of victim.
func manyPlaces(*testbed) string {
	const sets, routes, listeners = 32, 120, 64
	var b strings.Builder
	b.WriteString(strings.Replace(gatewayOf("evil", "home", evilGate, plain), "  listeners:",
		"  allowedListeners: {namespaces: {from: Same}}\n  listeners:", 1))
	var parents []string
	for i := range sets {
		parents = append(parents, fmt.Sprintf("{kind: ListenerSet, name: set%d}", i))
		var all []string
		for j := range listeners {
			all = append(all, fmt.Sprintf("{name: l%d, port: 80, protocol: HTTP, hostname: l%[1]d.s%d.%s}", j, i, evilHost))
		}
		fmt.Fprintf(&b, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\n"+
			"metadata: {namespace: evil, name: set%d}\nspec:\n  parentRef: {name: home}\n  listeners: [%s]\n",
			i, strings.Join(all, ", "))
	}
	for i := range routes {
		fmt.Fprintf(&b, "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n"+
			"metadata: {namespace: evil, name: places%03d}\nspec:\n  parentRefs: [%s]\n  rules:\n"+
			"  - {matches: [{path: {value: /p%[1]d}}], backendRefs: [{name: app, port: 80}]}\n",
			i, strings.Join(parents, ", "))
	}
	return b.String() + routeOf("victim", "next", "web", "next.test", toApp)
}

// sharedHosts returns a Gateway of evil at the addresses of Ingresses, with routes there for its own
// host and for hosts of victim.
func sharedHosts(s *testbed) string {
	const any = "allowedRoutes: {namespaces: {from: All}}"
	return s.evil.certificate("front", "front."+evilHost, "plain.test", "*.test") +
		gatewayOf("evil", "front", "", "{name: http, port: 80, protocol: HTTP, "+any+"}",
			"{name: https, port: 443, protocol: HTTPS, "+any+", tls: {certificateRefs: [{name: front}]}}",
			"{name: status, port: 9090, protocol: HTTP}", "{name: tcp, port: 80, protocol: TCP}",
			"{name: victims, port: 443, protocol: HTTPS, hostname: front.test, tls: {certificateRefs: "+
				"[{namespace: victim, name: front}]}}") +
		routeOf("evil", "own", "front", "front."+evilHost, toApp) +
		routeOf("evil", "steals", "front", "plain.test", toApp) +
		routeOf("evil", "below", "front", "*.test", toApp) +
		routeOf("evil", "reserved", "front", reserved, toApp) +
		routeOf("evil", "intrudes", "victim/front", "front.test", toApp) +
		ingressOf("evil", "steals", nil, rule("front.test", path("/", "app")))
}

// badListeners returns a Gateway of evil. The certificates of its listeners for HTTPS cannot be used.
func badListeners(s *testbed) string {
	crt, _, err := s.evil.pair("mixed." + evilHost)
	_, otherKey, failed := s.evil.pair("mixed." + evilHost)
	if err := errors.Join(err, failed); err != nil {
		panic(err) // no randomness is left
	}
	listeners, secrets := []string{plain}, ""
	for _, one := range []struct {
		name     string
		crt, key []byte
	}{
		{"none", nil, nil},
		{"mixed", crt, otherKey},
		{"sha1", testfile("sha1.crt"), testfile("sha1.key")},
		{"large", testfile("large.crt"), testfile("large.key")},
	} {
		if one.crt != nil {
			secrets += secret("evil", one.name, one.crt, one.key)
		}
		listeners = append(listeners, fmt.Sprintf("{name: %s, port: 443, protocol: HTTPS, hostname: %[1]s.%s, "+
			"tls: {certificateRefs: [{name: %[1]s}]}}", one.name, evilHost))
	}
	listeners = append(listeners, "{name: victims, port: 443, protocol: HTTPS, hostname: gate.test, "+
		"tls: {certificateRefs: [{namespace: victim, name: gate}]}}")
	return secrets + gatewayOf("evil", "home", evilGate, listeners...) +
		routeOf("evil", "home", "home", "gate."+evilHost, toApp)
}

// hostileRules returns routes of evil with values that end a word, a quote or a line where nobody
// escapes them. Each route has one of them, so that the API server rejects no other.
func hostileRules() string {
	var b strings.Builder
	const literal = `{matches: [{path: {value: /literal}, headers: [{name: x-odd, value: "a \"b' %[src] # ; ${HOME}"}]}],
    backendRefs: [{name: app, port: 80}],
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-set, value: "a \"b' %[src] # ; ${HOME}"}]}}]}`
	// At the addresses of Ingresses a condition is a line of the configuration.
	b.WriteString(home(literal) + gatewayOf("evil", "shared", "", plain) +
		routeOf("evil", "shared", "shared", "shared."+evilHost, literal, toApp) +
		routeOf("evil", "large", "home", "large."+evilHost, fmt.Sprintf(
			"{matches: [{headers: [%s]}], backendRefs: [{name: app, port: 80}]}",
			sameHeaders(strings.Repeat("a", 4096))), toApp))
	for i, bad := range breakouts {
		match := fmt.Sprintf("{path: {value: /m%%d}, headers: [%s], queryParams: [{name: q, value: %q}]}",
			sameHeaders(bad), bad)
		var matches []string
		for j := range 16 {
			matches = append(matches, strings.Replace(match, "%d", fmt.Sprint(j), 1))
		}
		path := strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(bad)
		for kind, rule := range map[string]string{
			"matches": fmt.Sprintf("{matches: [%s], backendRefs: [{name: app, port: 80}]}", strings.Join(matches, ", ")),
			"path":    fmt.Sprintf("{matches: [{path: {value: %q}}], backendRefs: [{name: app, port: 80}]}", "/q"+path),
			"regex": fmt.Sprintf("{matches: [{path: {type: RegularExpression, value: %q}}], "+
				"backendRefs: [{name: app, port: 80}]}", "/r"+path),
			"sets": fmt.Sprintf("{matches: [{path: {value: /s}}], backendRefs: [{name: app, port: 80}], filters: ["+
				"{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-a, value: %[1]q}]}}, "+
				"{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: x-b, value: %[1]q}]}}]}", bad),
			"rewrites": fmt.Sprintf("{matches: [{path: {value: /w}}], backendRefs: [{name: app, port: 80}], filters: ["+
				"{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: %q}}}]}", "/"+bad),
			"redirects": fmt.Sprintf("{matches: [{path: {value: /d}}], filters: [{type: RequestRedirect, "+
				"requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: %q}}}]}", "/"+bad),
			"names": fmt.Sprintf("{matches: [{path: {value: /n}, headers: [{name: %[1]q, value: a}], "+
				"queryParams: [{name: %[1]q, value: a}]}], backendRefs: [{name: app, port: 80}]}", bad),
		} {
			b.WriteString(routeOf("evil", fmt.Sprintf("odd-%s-%d", kind, i), "home", fmt.Sprintf("odd%d.%s", i, evilHost),
				rule))
		}
		b.WriteString(routeOf("evil", fmt.Sprint("odd-shared-", i), "shared", fmt.Sprintf("shared%d.%s", i, evilHost),
			fmt.Sprintf("{matches: [{headers: [{name: x-a, value: %[1]q}]}, {queryParams: [{name: q, value: %[1]q}]}, "+
				"{headers: [{name: x-a, type: RegularExpression, value: %[1]q}]}], backendRefs: [{name: app, port: 80}]}", bad),
			toApp))
	}
	return b.String()
}

// oddHeaders is the largest number of headers in a match that the API allows.
const oddHeaders = 16

// sameHeaders returns the YAML of oddHeaders headers of a match, all with one value.
func sameHeaders(value string) string {
	var headers []string
	for i := range oddHeaders {
		headers = append(headers, fmt.Sprintf("{name: x-%d, value: %q}", i, value))
	}
	return strings.Join(headers, ", ")
}

// oddMatches sends requests with all 16 headers of a match of hostileRules, without the last header,
// and with a wrong last header. It leaves out values that no request can have. It also wants the status of
// a route to say that one of its matches is too large for HAProxy.
func oddMatches(ctx context.Context, s *testbed) error {
	err := all(reports("HTTPRoute", "evil", "large", "Accepted=True", "PartiallyInvalid=True UnsupportedValue"),
		soon("200 evil", request{at: evilGate, host: "large." + evilHost}))(ctx, s)
	asked := 0
	for i, value := range breakouts {
		if strings.ContainsAny(value, "\r\n\x00") || len(value) > 100 {
			continue // a request cannot have it, or not 16 times
		}
		asked++
		r := request{at: evilGate, host: fmt.Sprintf("odd%d.%s", i, evilHost), target: "/m0?q=" + url.QueryEscape(value)}
		var right []string
		for j := range oddHeaders {
			right = append(right, fmt.Sprintf("X-%d: %s\r\n", j, value))
		}
		r.header = strings.Join(right, "")
		err = errors.Join(err, soon("200 evil", r)(ctx, s))
		last := oddHeaders - 1
		r.header = strings.Join(right[:last], "")
		lacks := s.gets(ctx, "404 no pod", r)
		r.header += fmt.Sprintf("X-%d: %sx\r\n", last, value)
		err = errors.Join(err, lacks, s.gets(ctx, "404 no pod", r))
	}
	if asked == 0 {
		err = errors.Join(err, errors.New("no value can be sent"))
	}
	return err
}

// costlyRules returns a Gateway of evil with 2,000 regular expressions for four hosts.
func costlyRules() string {
	var b strings.Builder
	b.WriteString(home())
	for i := range 40 {
		var rules []string
		for j := range 10 {
			var matches []string
			for k := range 5 {
				matches = append(matches, fmt.Sprintf(
					`{path: {type: RegularExpression, value: "/(a|b|ab)*x%d-%d-%d"}, `+
						`headers: [{name: x-a, type: RegularExpression, value: "((a|b|ab)*)x%[1]d"}]}`, i, j, k))
			}
			rules = append(rules, fmt.Sprintf("{matches: [%s], backendRefs: [{name: app, port: 80}]}",
				strings.Join(matches, ", ")))
		}
		b.WriteString(routeOf("evil", fmt.Sprintf("costs%d", i), "home", fmt.Sprintf("costs%d.%s", i%4, evilHost),
			rules...))
	}
	return b.String()
}

// gatewayCheaply checks the processor time of requests to victim, and of one to evil's expressions.
func gatewayCheaply(ctx context.Context, s *testbed) error {
	long := "/" + strings.Repeat("ab", 40) + "!x-0123456789"
	if err := soon("200 evil", atEvil("/"))(ctx, s); err != nil {
		return err
	}
	took, err := s.cost(ctx, func() error {
		for range 50 {
			err := errors.Join(s.gets(ctx, "200 victim", request{at: gateAddr, host: "gate.test", target: long}),
				s.gets(ctx, "200 victim", request{host: "plain.test", target: long}))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && took > 200*time.Millisecond {
		err = fmt.Errorf("a hundred requests to victim cost %s of a processor", took)
	}
	if err != nil {
		return err
	}
	took, err = s.cost(ctx, func() error {
		_, err := s.ask(ctx, request{
			at: evilGate, host: "costs1." + evilHost, target: long,
			header: "X-A: " + strings.Repeat("ab", 2000) + "\r\n",
		})
		return err
	})
	if err == nil && took > 300*time.Millisecond {
		err = fmt.Errorf("one request to evil's expressions cost %s of a processor", took)
	}
	return err
}

// under sends requests one after another while do runs. Each answer begins with the first text, until
// one begins with the second. From then on each begins with the second.
func (s *testbed) under(ctx context.Context, r request, first, second string, do func() error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		changed := false
		for {
			got, err := s.ask(ctx, r)
			text := got.String()
			changed = changed || second != "" && strings.HasPrefix(text, second)
			switch {
			case ctx.Err() != nil:
				ended <- nil
				return
			case err != nil:
				ended <- err
				return
			case !changed && !strings.HasPrefix(text, first), changed && !strings.HasPrefix(text, second):
				ended <- fmt.Errorf("%s, after the change: %v: got %.300s", r, changed, text)
				return
			}
		}
	}()
	err := do()
	stop()
	return errors.Join(err, <-ended)
}

// grantGoes deletes the ReferenceGrant of victim while requests use it.
func grantGoes(ctx context.Context, s *testbed) error {
	cross := atEvil("/cross")
	if err := soon("200 victim", cross)(ctx, s); err != nil {
		return err
	}
	err := s.under(ctx, cross, "200 victim", "500", func() error {
		return errors.Join(s.Delete(ctx, grantOf("shares", "HTTPRoute", "Service")), soon("500", cross)(ctx, s),
			reports("HTTPRoute", "evil", "home", "Accepted=True", "ResolvedRefs=False RefNotPermitted")(ctx, s))
	})
	return errors.Join(err, soon("200 evil", atEvil("/"))(ctx, s))
}

// gatewayGoes adds a Gateway of evil, and deletes it while requests go to victim's. A client has begun to
// read an answer of evil, and reads the rest of it once the listener is closed. In a lab, HAProxy listens
// for Ingresses at all addresses, and then answers at evil's address, too.
func gatewayGoes(ctx context.Context, s *testbed) error {
	const size = 64 << 20 // more than all buffers on the way hold
	victims := request{at: gateAddr, host: "gate.test"}
	return s.under(ctx, victims, "200 victim", "", func() (err error) {
		if err := errors.Join(s.Apply(ctx, home()), soon("200 evil", atEvil("/"))(ctx, s)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Delete(ctx, home())) }()
		download := atEvil(fmt.Sprint("/bytes?n=", size))
		conn, err := s.connect(ctx, download)
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // nothing is lost with it
		if _, err := io.WriteString(conn, download.text()); err != nil {
			return err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // only read from
		if err := s.Delete(ctx, gatewayOf("evil", "home", evilGate, plain)); err != nil {
			return err
		}
		err = s.eventually(ctx, func() error {
			conn, err := s.Dial(ctx, evilGate+":80")
			if err != nil {
				return nil //nolint:nilerr // nobody listens
			}
			_ = conn.Close()
			got, err := s.ask(ctx, atEvil("/"))
			if err == nil && got.pod != "default" { // as an unknown host, at the addresses of Ingresses
				err = fmt.Errorf("the listener of a Gateway that is gone is open: got %.300s", got)
			}
			return err
		})
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		got, err := io.Copy(io.Discard, response.Body)
		if err != nil || got != size || response.StatusCode != http.StatusOK {
			err = errors.Join(err, fmt.Errorf("an answer that was on its way: status %d and %d of %d bytes",
				response.StatusCode, got, size))
		}
		return err
	})
}
