package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/gateway"
)

// People run other programs beside a gateway. These tests have the rules of such programs for statuses.

// healthOf returns the health of conditions by the rules of Argo CD: what is not accepted or resolved is
// Degraded, and what is not programmed is Progressing.
func healthOf(conditions ...[]metav1.Condition) string {
	for _, part := range conditions {
		for _, c := range part {
			if (c.Type == "ResolvedRefs" || c.Type == "Accepted") && c.Status == metav1.ConditionFalse {
				return "Degraded"
			}
		}
		for _, c := range part {
			if c.Type == "Programmed" && c.Status != metav1.ConditionTrue {
				return "Progressing"
			}
		}
	}
	if len(conditions) == 0 {
		return "Progressing"
	}
	return "Healthy"
}

// readHealth returns the health that Argo CD shows for an object with a status. Of a route only the
// parents of the newest generation count.
func readHealth(s *gateway.Status) string {
	var all [][]metav1.Condition
	if s.Gateway != nil {
		all = append(all, s.Gateway.Conditions)
		for _, l := range s.Gateway.Listeners {
			all = append(all, l.Conditions)
		}
	}
	for _, p := range s.Parents {
		if slices.ContainsFunc(p.Conditions, func(c metav1.Condition) bool { return c.ObservedGeneration == s.Generation }) {
			all = append(all, p.Conditions)
		}
	}
	return healthOf(all...)
}

// readRecords returns the records that external-dns makes of a route, as "HOST ADDRESS". An entry of the
// status counts if its parentRef is one of the spec, and if the route's newest generation is accepted.
// A hostname of the route makes a record if the hostname of a listener covers it.
func readRecords(of *gatewayv1.HTTPRoute, route, gate *gateway.Status, listeners []gatewayv1.Listener) (all []string) {
	for _, p := range route.Parents {
		known := slices.ContainsFunc(of.Spec.ParentRefs, func(ref gatewayv1.ParentReference) bool {
			return cmp.Equal(ref, p.ParentRef)
		})
		accepted := slices.ContainsFunc(p.Conditions, func(c metav1.Condition) bool {
			return c.Type == "Accepted" && c.Status == metav1.ConditionTrue && c.ObservedGeneration == of.Generation
		})
		if !known || !accepted || string(p.ParentRef.Name) != gate.Name {
			continue
		}
		for _, l := range listeners {
			if p.ParentRef.SectionName != nil && *p.ParentRef.SectionName != l.Name {
				continue
			}
			for _, host := range of.Spec.Hostnames {
				wide := ""
				if l.Hostname != nil {
					wide = strings.TrimPrefix(string(*l.Hostname), "*")
				}
				if strings.HasSuffix(string(host), wide) {
					for _, address := range gate.Gateway.Addresses {
						all = append(all, string(host)+" "+address.Value)
					}
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestProgramsThatReadStatusesSeeWhatIsServed(t *testing.T) {
	listeners := "{name: http, port: 80, protocol: HTTP}, {name: other, port: 81, protocol: HTTP, hostname: '*.b.test'}"
	route := func(name, spec string) string {
		return strings.Replace(httpRoute(name, spec), "namespace: default,", "namespace: default, generation: 3,", 1)
	}
	for name, row := range map[string]struct{ gate, route, want string }{
		"a route that is served": {
			listeners, route("r", "hostnames: [a.test, c.b.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
			"Gateway Healthy, route Healthy: a.test 203.0.113.5, c.b.test 203.0.113.5",
		},
		"a route to a Service that is not there": {
			listeners, route("r", "hostnames: [a.test], rules: [{backendRefs: [{name: none, port: 80}]}]"),
			"Gateway Healthy, route Degraded: a.test 203.0.113.5",
		},
		"a route for a listener that is not there": {
			listeners, strings.Replace(route("r", "hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
				"{name: gate}", "{name: gate, sectionName: none}", 1),
			"Gateway Healthy, route Degraded: ",
		},
		"a route for one listener": {
			listeners, strings.Replace(route("r", "hostnames: [a.test, c.b.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
				"{name: gate}", "{name: gate, sectionName: other}", 1),
			"Gateway Healthy, route Healthy: c.b.test 203.0.113.5",
		},
		"a Gateway with a listener that cannot be served": {
			listeners + ", {name: https, port: 443, protocol: HTTPS}",
			route("r", "hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
			"Gateway Degraded, route Healthy: a.test 203.0.113.5",
		},
		"a Gateway whose port is not open yet": {
			"{name: http, port: 8080, protocol: HTTP}",
			route("r", "hostnames: [a.test], rules: [{backendRefs: [{name: app, port: 80}]}]"),
			"Gateway Progressing, route Healthy: a.test 203.0.113.5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			manifests := gateOf(row.gate) + app("app") + row.route
			s := snapshot(t, Unnamed, manifests)
			r := compileGates(t, new(Compiler), manifests, nil)
			var gate, of *gateway.Status
			for _, one := range r.Statuses[Unnamed] {
				switch one.Kind {
				case "Gateway":
					gate = one
				case "HTTPRoute":
					of = one
				}
			}
			got := fmt.Sprintf("Gateway %s, route %s: %s", readHealth(gate), readHealth(of), strings.Join(
				readRecords(s.API.HTTPRoutes[0], of, gate, s.API.Gateways[0].Spec.Listeners), ", "))
			if got != row.want {
				t.Errorf("got  %s\nwant %s\nthe Gateway: %+v\nthe route: %+v", got, row.want, gate.Gateway, of.Parents)
			}
		})
	}
}

// TestTheSolverOfCertManagerIsServed has the route that cert-manager makes for a challenge (HTTP-01),
// beside a redirect of all requests to https.
func TestTheSolverOfCertManagerIsServed(t *testing.T) {
	const path = "/.well-known/acme-challenge/TOKEN"
	solver := strings.Replace(app("cm-acme-http-solver-x"), "port: 80", "port: 8089", 1)
	r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}")+solver+
		httpRoute("redirect", "hostnames: [a.test], rules: [{filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}]")+
		httpRoute("cm-acme-http-solver-y", "hostnames: [a.test], rules: [{matches: [{path: {type: Exact, value: "+path+
			"}}], backendRefs: [{group: '', kind: Service, name: cm-acme-http-solver-x, namespace: default, port: 8089, weight: 1}]}]"),
		nil)
	got := ""
	for _, route := range r.Config.Routes {
		if route.Host == "a.test" && route.Path == path {
			got = fmt.Sprintf("%s to %s", route.Match, route.To)
		}
	}
	if want := "exact to default_svc_cm-acme-http-solver-x_http"; got != want {
		t.Errorf("got %q, want %q:\n%s", got, want, tellGates(r))
	}
}
