package gateway

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// some draws a value, or nil.
func some[T any](t *rapid.T, name string, values ...T) *T {
	if v := rapid.SampledFrom(append(values, values[0])).Draw(t, name); rapid.Bool().Draw(t, name+"?") {
		return &v
	}
	return nil
}

// hostile are values that an API server never admits, beside good ones.
var (
	namespaces = []string{"web", "shop", "bank", "foreign", "", "\x02", "a/b"}
	names      = []string{"gate", "other", "app", "missing", "", "\x00", "*", "../x"}
	hosts      = []gatewayv1.Hostname{
		"", "a.example.com", "*.example.com", "*.a.example.com", "reserved.example.com", "*", "*.", ".", "A.EXAMPLE.COM",
		"a b", "\xff", "1.2.3.4", "*.*.com", "é.com",
	}
	paths = []string{"/", "/a", "/a/b", "/a/", "", "a", "//", "/%", "/%2f", "/..", "/\x00", "/é", "/a b", "/[", "/(.*)"}
)

func drawMeta(t *rapid.T, kind string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: rapid.SampledFrom(namespaces).Draw(t, "namespace"),
		Name:      fmt.Sprintf("%s%d", rapid.SampledFrom(names).Draw(t, "name"), i),
		UID:       "u", CreationTimestamp: metav1.NewTime(time.Unix(int64(rapid.IntRange(0, 2).Draw(t, "age")), 0)),
	}
}

func drawAllowed(t *rapid.T) *gatewayv1.AllowedRoutes {
	from := some(t, "from", gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame, gatewayv1.NamespacesFromSelector,
		gatewayv1.NamespacesFromNone, "\x01")
	out := &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: from}}
	if rapid.Bool().Draw(t, "selects") {
		out.Namespaces.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}}
	}
	if rapid.Bool().Draw(t, "kinds") {
		out.Kinds = []gatewayv1.RouteGroupKind{{Kind: rapid.SampledFrom([]gatewayv1.Kind{
			"HTTPRoute", "GRPCRoute", "TLSRoute", "", "\x00",
		}).Draw(t, "kind")}}
	}
	return out
}

// drawWorld draws the objects of a cluster, with hostile values among them.
func drawWorld(t *rapid.T) (o Objects) {
	o.Classes = []*gatewayv1.GatewayClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "ours"}, Spec: gatewayv1.GatewayClassSpec{ControllerName: controller},
	}}
	for i := range rapid.IntRange(1, 3).Draw(t, "gateways") {
		g := &gatewayv1.Gateway{ObjectMeta: drawMeta(t, "g", 0)}
		g.Name = []string{"gate", "other", "app"}[i]
		g.Spec.GatewayClassName = rapid.SampledFrom([]gatewayv1.ObjectName{"ours", "ours", "theirs", ""}).Draw(t, "class")
		for j := range rapid.IntRange(0, 4).Draw(t, "listeners") {
			g.Spec.Listeners = append(g.Spec.Listeners, gatewayv1.Listener{
				Name: gatewayv1.SectionName(fmt.Sprint("l", j)),
				Port: rapid.SampledFrom([]int32{80, 80, 443, 0, -1, 70000}).Draw(t, "port"),
				Protocol: rapid.SampledFrom([]gatewayv1.ProtocolType{
					"HTTP", "HTTP", "HTTPS", "TLS", "TCP", "UDP", "", "\x00",
				}).Draw(t, "protocol"),
				Hostname: some(t, "hostname", hosts...), AllowedRoutes: drawAllowed(t),
			})
		}
		o.Gateways = append(o.Gateways, g)
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "routes") {
		r := &gatewayv1.HTTPRoute{ObjectMeta: drawMeta(t, "r", i)}
		for range rapid.IntRange(0, 3).Draw(t, "parents") {
			r.Spec.ParentRefs = append(r.Spec.ParentRefs, gatewayv1.ParentReference{
				Group:       some(t, "group", gatewayv1.Group(gatewayv1.GroupName), ""),
				Kind:        some(t, "kind", gatewayv1.Kind("Gateway"), "ListenerSet", "Service", ""),
				Namespace:   some(t, "namespace", gatewayv1.Namespace("web"), "shop", "bank"),
				Name:        rapid.SampledFrom([]gatewayv1.ObjectName{"gate", "other", "app", ""}).Draw(t, "parent"),
				SectionName: some(t, "section", gatewayv1.SectionName("l0"), "l1", ""),
				Port:        some(t, "port", int32(80), 443, -5),
			})
		}
		for range rapid.IntRange(0, 3).Draw(t, "hosts") {
			r.Spec.Hostnames = append(r.Spec.Hostnames, rapid.SampledFrom(hosts).Draw(t, "host"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			var rule gatewayv1.HTTPRouteRule
			for range rapid.IntRange(0, 2).Draw(t, "matches") {
				m := gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{
					Type:  some(t, "type", gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix, "RegularExpression", "\x00"),
					Value: some(t, "path", paths...),
				}, Method: some(t, "method", gatewayv1.HTTPMethod("GET"), "", "\x00")}
				rule.Matches = append(rule.Matches, m)
			}
			rule.BackendRefs = []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
				BackendObjectReference: gatewayv1.BackendObjectReference{
					Name: "app", Namespace: some(t, "to", gatewayv1.Namespace("bank"), "\x00"),
					Port: some(t, "to port", int32(80), 0, -1, 1<<30),
				}, Weight: some(t, "weight", int32(1), 0, -1),
			}}}
			r.Spec.Rules = append(r.Spec.Rules, rule)
		}
		o.HTTPRoutes = append(o.HTTPRoutes, r)
	}
	return o
}

// TestAttachHoldsForAnyObjects checks three things for any objects: their order changes nothing, a
// route is only where its namespace and hostnames may be, and no value makes Attach panic.
func TestAttachHoldsForAnyObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawWorld(t)
		a := Attach(around(o))
		mixed := o
		mixed.Gateways = rapid.Permutation(o.Gateways).Draw(t, "order of gateways")
		mixed.HTTPRoutes = rapid.Permutation(o.HTTPRoutes).Draw(t, "order of routes")
		b := Attach(around(mixed))
		if x, y := a.Statuses(), b.Statuses(); !reflect.DeepEqual(x, y) {
			t.Fatalf("the order of objects changes the statuses: %+v and %+v", x, y)
		}
		for i, g := range a.Gateways {
			var http []*Listener
			for _, l := range g.Listeners {
				if l.HTTP() && l.Serves() && l.Port == 80 {
					http = append(http, l)
				}
				for _, r := range a.At(l) {
					namespace := r.Object.GetNamespace()
					if namespace == "foreign" || !a.allows(l, namespace) {
						t.Fatalf("a route of namespace %q is at %s", namespace, l)
					}
					for _, host := range r.At {
						if !Contains(l.Hostname, host) || host == "reserved.example.com" && namespace != "bank" {
							t.Fatalf("host %q of namespace %q is at %s", host, namespace, l)
						}
					}
				}
			}
			may := func(namespace, host string) bool { return a.world.Host(namespace, host) == nil }
			rows := a.RowsOf(http, Hosts{More: []string{"reserved.example.com"}, May: may, Takes: anyCopies})
			for _, row := range rows {
				for j, e := range row.Chain {
					if e.Bare() && j < len(row.Chain)-1 {
						t.Fatalf("something comes after an entry that takes all requests: %+v", row)
					}
					if !may(e.Route.Object.GetNamespace(), row.Host) {
						t.Fatalf("a route of namespace %q has host %s", e.Route.Object.GetNamespace(), row.Host)
					}
				}
			}
			var others []*Listener
			for _, l := range b.Gateways[i].Listeners {
				if l.HTTP() && l.Serves() && l.Port == 80 {
					others = append(others, l)
				}
			}
			if x, y := written(rows), written(b.RowsOf(others, Hosts{More: []string{"reserved.example.com"}, May: may, Takes: anyCopies})); !reflect.DeepEqual(x, y) {
				t.Fatalf("the order of objects changes rows: %q and %q", x, y)
			}
		}
	})
}
