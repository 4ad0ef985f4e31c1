package ingress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
)

// drawGateway draws a Gateway of a namespace. It may ask for any address, and take routes of its own
// namespace alone.
func drawGateway(t *rapid.T, namespace string, i int) *gatewayv1.Gateway {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprint("g", i), UID: "g",
		CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 9).Draw(t, "age")), 0),
	}}
	g.Spec.GatewayClassName = "ours"
	if addr := rapid.SampledFrom([]string{"", gateAt, "203.0.113.6", "192.0.2.1", "x"}).Draw(t, "address"); addr != "" {
		g.Spec.Addresses = []gatewayv1.GatewaySpecAddress{{Value: addr}}
	}
	for j := range rapid.IntRange(1, 3).Draw(t, "listeners") {
		host := rapid.SampledFrom([]gatewayv1.Hostname{"", "a.test", "*.test"}).Draw(t, "hostname")
		g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{
			Name: gatewayv1.SectionName(fmt.Sprint("l", j)), Hostname: &host,
			Port:     rapid.SampledFrom([]int32{80, 81, 443}).Draw(t, "port"),
			Protocol: rapid.SampledFrom([]gatewayv1.ProtocolType{"HTTP", "HTTPS", "TCP", "TLS"}).Draw(t, "protocol"),
		})
	}
	return g
}

// drawRoute draws a route of a namespace. It may name any Gateway in some namespaces, and a Service
// there.
func drawRoute(t *rapid.T, namespace string, i int, service string, among ...string) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: fmt.Sprint("r", i), UID: "r",
		CreationTimestamp: metav1.Unix(int64(rapid.IntRange(1, 9).Draw(t, "age")), 0),
	}}
	for range rapid.IntRange(1, 2).Draw(t, "parents") {
		of := gatewayv1.Namespace(rapid.SampledFrom(among).Draw(t, "parent"))
		r.Spec.ParentRefs = append(r.Spec.ParentRefs, gatewayv1.ParentReference{
			Namespace: &of, Name: gatewayv1.ObjectName(fmt.Sprint("g", rapid.IntRange(0, 1).Draw(t, "gateway"))),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "hosts") {
		r.Spec.Hostnames = append(r.Spec.Hostnames,
			rapid.SampledFrom([]gatewayv1.Hostname{"a.test", "b.test", "*.test"}).Draw(t, "host"))
	}
	for range rapid.IntRange(1, 2).Draw(t, "rules") {
		path := rapid.SampledFrom([]string{"/", "/a", "/b"}).Draw(t, "path")
		rule := gatewayv1.HTTPRouteRule{
			Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Value: &path}}},
		}
		if rapid.Bool().Draw(t, "condition") {
			rule.Matches[0].Headers = []gatewayv1.HTTPHeaderMatch{{
				Name:  gatewayv1.HTTPHeaderName(rapid.SampledFrom([]string{"h", "X-é", "", "i"}).Draw(t, "name")),
				Value: rapid.SampledFrom([]string{"1", "", "\x00", "a b", strings.Repeat("x", 5000)}).Draw(t, "value"),
			}}
		}
		switch scheme := "https"; rapid.IntRange(0, 5).Draw(t, "filter") {
		case 0:
			code := rapid.SampledFrom([]int{301, 308, 1}).Draw(t, "status")
			rule.Filters = []gatewayv1.HTTPRouteFilter{{
				Type:            gatewayv1.HTTPRouteFilterRequestRedirect,
				RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Scheme: &scheme, StatusCode: &code},
			}}
			r.Spec.Rules = append(r.Spec.Rules, rule)
			continue
		case 1, 2:
			rule.Filters = []gatewayv1.HTTPRouteFilter{{
				Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier,
				RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Set: []gatewayv1.HTTPHeader{{
					Name: "X-A", Value: rapid.SampledFrom([]string{"1", "%[src]", "'", "a\nb", "%"}).Draw(t, "sets"),
				}}},
			}}
		}
		of := gatewayv1.Namespace(rapid.SampledFrom(among).Draw(t, "service of"))
		port := rapid.SampledFrom([]int32{80, 81}).Draw(t, "port")
		rule.BackendRefs = []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(service), Namespace: &of, Port: &port},
		}}}
		r.Spec.Rules = append(r.Spec.Rules, rule)
	}
	return r
}

// at returns all that a Config has at the address of the victim's Gateway, and the backends of the
// victim's Services that requests there reach.
func at(c *haproxy.Config) string {
	var b strings.Builder
	reached := map[string]bool{}
	for _, l := range c.Listeners {
		if l.At.Addr().String() == gateAt {
			fmt.Fprintf(&b, "%+v\n", l)
		}
	}
	for _, r := range c.Routes {
		if !strings.HasPrefix(r.Scope, gateAt+":") {
			continue
		}
		fmt.Fprintf(&b, "%+v\n", r)
		for _, s := range r.To.Shares() {
			reached[s.Backend] = true
		}
		for _, p := range c.Picks {
			if p.Name == r.Pick {
				for _, one := range p.Cases {
					fmt.Fprintf(&b, "%+v\n", one)
					for _, s := range one.To.Shares() {
						reached[s.Backend] = true
					}
				}
			}
		}
	}
	for _, h := range c.Hostnames {
		if strings.HasPrefix(h.Scope, gateAt+":") {
			fmt.Fprintf(&b, "%+v\n", h)
		}
	}
	for _, be := range c.Backends {
		if reached[be.Name] {
			fmt.Fprintf(&b, "%s %v %v %+v\n", be.Name, be.Directives, be.Servers, be.Options)
		}
	}
	return b.String()
}

// drawOfAPI adds an object of a namespace that is about Gateway API, changes it or removes it. It may
// name all that another namespace has.
func drawOfAPI(t *rapid.T, s *Snapshot, namespace, other string) {
	gone, i := rapid.IntRange(0, 4).Draw(t, "gone") == 0, rapid.IntRange(0, 2).Draw(t, "number")
	meta := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("x", i), UID: "x"}
	meta.CreationTimestamp = metav1.Unix(int64(rapid.IntRange(1, 9).Draw(t, "age")), 0)
	its := gatewayv1.Namespace(other)
	port := int32(80)
	to := []gatewayv1.BackendRef{{BackendObjectReference: gatewayv1.BackendObjectReference{
		Name: "app", Port: &port, Namespace: some(t, "service of", its),
	}}}
	parents := gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{
		{Name: "g0", Namespace: &its}, {Name: "g0"}, {Name: "g1"},
	}}
	hosts := rapid.SliceOfN(rapid.SampledFrom([]gatewayv1.Hostname{"a.test", "b.test", "*.test"}), 1, 2).Draw(t, "hosts")
	switch rapid.IntRange(0, 10).Draw(t, "kind") {
	case 0, 1:
		s.API.Gateways = change(t, s.API.Gateways, drawGateway(t, namespace, i), gone)
	case 2:
		kinds := []gatewayv1.Kind{"HTTPRoute", "Gateway", "GRPCRoute", "TLSRoute", "TCPRoute", "ListenerSet"}
		s.API.Grants = change(t, s.API.Grants, &gatewayv1.ReferenceGrant{ObjectMeta: meta, Spec: gatewayv1.ReferenceGrantSpec{
			From: []gatewayv1.ReferenceGrantFrom{{
				Group: gatewayv1.GroupName, Kind: rapid.SampledFrom(kinds).Draw(t, "from"),
				Namespace: rapid.SampledFrom([]gatewayv1.Namespace{gatewayv1.Namespace(namespace), its}).Draw(t, "of"),
			}},
			To: []gatewayv1.ReferenceGrantTo{{Kind: rapid.SampledFrom([]gatewayv1.Kind{"Service", "Secret"}).Draw(t, "to")}},
		}}, gone)
	case 3:
		set := &gatewayv1.ListenerSet{ObjectMeta: meta}
		set.Spec.ParentRef = gatewayv1.ParentGatewayReference{Name: "g0", Namespace: some(t, "parent of", its)}
		for _, l := range drawGateway(t, namespace, i).Spec.Listeners {
			set.Spec.Listeners = append(set.Spec.Listeners, gatewayv1.ListenerEntry(l))
		}
		s.API.ListenerSets = change(t, s.API.ListenerSets, set, gone)
	case 4:
		s.API.GRPCRoutes = change(t, s.API.GRPCRoutes, &gatewayv1.GRPCRoute{ObjectMeta: meta, Spec: gatewayv1.GRPCRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts,
			Rules: []gatewayv1.GRPCRouteRule{{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: to[0]}}}},
		}}, gone)
	case 5:
		s.API.TLSRoutes = change(t, s.API.TLSRoutes, &gatewayv1.TLSRoute{ObjectMeta: meta, Spec: gatewayv1.TLSRouteSpec{
			CommonRouteSpec: parents, Hostnames: hosts, Rules: []gatewayv1.TLSRouteRule{{BackendRefs: to}},
		}}, gone)
	case 6:
		policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: meta}
		policy.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{
			LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: "app"},
		}}
		policy.Spec.Validation.Hostname = "evil.test"
		s.API.TLSPolicies = change(t, s.API.TLSPolicies, policy, gone)
	case 7:
		meta.Name = "balancer"
		meta.Annotations = map[string]string{"sallyport.dev/address": gateAt}
		class := "sallyport.dev/appliance"
		s.Services = change(t, s.Services, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Ports: []corev1.ServicePort{{Port: 80}},
		}}, gone)
	case 8:
		s.API.TCPRoutes = change(t, s.API.TCPRoutes, &gatewayv1.TCPRoute{ObjectMeta: meta, Spec: gatewayv1.TCPRouteSpec{
			CommonRouteSpec: parents, Rules: []gatewayv1.TCPRouteRule{{BackendRefs: to}},
		}}, gone)
	default:
		s.API.HTTPRoutes = change(t, s.API.HTTPRoutes, drawRoute(t, namespace, i, "app", other, namespace), gone)
	}
}

// some draws one of some values, or none.
func some[T any](t *rapid.T, what string, values ...T) *T {
	if !rapid.Bool().Draw(t, what+"?") {
		return nil
	}
	v := rapid.SampledFrom(values).Draw(t, what)
	return &v
}

// TestRoutesOfOneTenantChangeNothingOfAnother compiles the Gateways and routes of a victim alone, and
// then with objects of another namespace that come, change and go, and whose values may be hostile.
// What HAProxy does at the victim's address stays the same, and so does the status of the victim's
// Gateway. HAProxy takes the whole.
func TestRoutesOfOneTenantChangeNothingOfAnother(t *testing.T) {
	served := 0
	rapid.Check(t, func(t *rapid.T) {
		s := Snapshot{Cluster: Unnamed, NoClasses: true}
		s.Options.Gateway = GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}
		s.Options.Pools.Ranges = []AddressRange{poolOf("203.0.113.5-203.0.113.8")}
		s.Options.Limits.Paths = rapid.SampledFrom([]int{0, 2, 100}).Draw(t, "limit")
		s.API.Classes = []*gatewayv1.GatewayClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "ours"},
			Spec:       gatewayv1.GatewayClassSpec{ControllerName: "sallyport.dev/gateway"},
		}}
		for _, namespace := range []string{"evil", "victim"} {
			s.Services = append(s.Services, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app"},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			})
		}
		g := drawGateway(t, "victim", 0)
		g.Spec.Addresses, g.Status.Addresses = nil, []gatewayv1.GatewayStatusAddress{{Value: gateAt}}
		plain := gatewayv1.Listener{Name: "plain", Port: 8080, Protocol: "HTTP"}
		g.Spec.Listeners = append(g.Spec.Listeners, plain)
		s.API.Gateways = []*gatewayv1.Gateway{g}
		s.API.HTTPRoutes = append(s.API.HTTPRoutes, plainRoute("victim", plain.Name))
		for i := range rapid.IntRange(1, 3).Draw(t, "routes") {
			// A Service that it names elsewhere is served by consent of the namespace there.
			s.API.HTTPRoutes = append(s.API.HTTPRoutes, drawRoute(t, "victim", i, "app", "victim"))
		}
		var c Compiler
		verdicts := haproxy.Verdicts{}
		compile := func() string {
			for _, q := range c.Compile([]Snapshot{s}).Questions {
				verdicts[q.Part()] = haproxy.Good
			}
			c.Judge(verdicts)
			r := c.Compile([]Snapshot{s})
			if err := r.Config.Validate(); err != nil {
				t.Fatalf("HAProxy does not take it: %v", err)
			}
			text := at(&r.Config)
			for _, one := range r.Statuses[Unnamed] {
				if one.Namespace == "victim" && one.Kind == "Gateway" {
					status, err := json.MarshalIndent(one.Gateway, "", " ")
					if err != nil {
						t.Fatal(err)
					}
					text += string(status)
				}
				if one.Namespace == "evil" && one.Gateway != nil && len(one.Gateway.Addresses) > 0 {
					s.API.Gateways = recorded(s.API.Gateways, one.Name, one.Gateway.Addresses)
				}
			}
			return text
		}
		before := compile()
		if !strings.Contains(before, "victim_svc_app_80") {
			t.Fatalf("the plain route of the victim is not served:\n%s", before)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			drawOfAPI(t, &s, "evil", "victim")
			if after := compile(); after != before {
				t.Fatalf("evil changes the victim's traffic from\n%s\nto\n%s", before, after)
			}
			if len(c.result.Config.Listeners) > strings.Count(before, "At:"+gateAt) {
				served++
			}
		}
	})
	if served == 0 {
		t.Error("no Gateway of evil was ever served")
	}
}

// recorded returns the Gateways, with other addresses in the status of one Gateway of namespace evil.
func recorded(list []*gatewayv1.Gateway, name string, addresses []gatewayv1.GatewayStatusAddress) []*gatewayv1.Gateway {
	list = slices.Clone(list)
	for i, g := range list {
		if g.Namespace == "evil" && g.Name == name && !reflect.DeepEqual(g.Status.Addresses, addresses) {
			list[i] = g.DeepCopy()
			list[i].Status.Addresses = addresses
		}
	}
	return list
}

// plainRoute returns a route that sends all requests at a listener of Gateway g0 of its namespace to
// Service app there.
func plainRoute(namespace string, listener gatewayv1.SectionName) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain", UID: "r"}}
	r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "g0", SectionName: &listener}}
	port := int32(80)
	to := gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{Name: "app", Port: &port}}
	r.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: to}}}}
	return r
}

// changeAPI changes one object of Gateway API in some namespaces: a Gateway, which may have an address
// on record, or a route.
func changeAPI(t *rapid.T, s *Snapshot, address string, gone bool, among ...string) {
	s.API.Classes = []*gatewayv1.GatewayClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "ours"},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: "sallyport.dev/gateway"},
	}}
	namespace, i := rapid.SampledFrom(among).Draw(t, "namespace"), rapid.IntRange(0, 1).Draw(t, "number")
	if rapid.IntRange(0, 2).Draw(t, "which") == 0 {
		g := drawGateway(t, namespace, i)
		if rapid.Bool().Draw(t, "recorded") {
			g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: address}}
		}
		s.API.Gateways = change(t, s.API.Gateways, g, gone)
		return
	}
	service := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "service")
	s.API.HTTPRoutes = change(t, s.API.HTTPRoutes, drawRoute(t, namespace, i, service, among...), gone)
}

// comparesRoutes lets cmp compare what Gateways have in a Config.
var comparesRoutes = cmp.Options{
	cmpopts.EquateComparable(haproxy.Target{}, netip.Addr{}),
	cmp.Comparer(func(a, b *haproxy.Pick) bool { return a.Name == b.Name && reflect.DeepEqual(a, b) }),
}
