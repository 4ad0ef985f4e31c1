package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
)

// manyServices returns a cluster of n Services, each with an Ingress and five endpoints.
func manyServices(n int) Snapshot {
	s := Snapshot{Cluster: Unnamed, Options: Options{Limits: Limits{Hosts: 1e6, Paths: 1e6, Backends: 1e6, Servers: 1e6}}}
	s.Classes = []*networkingv1.IngressClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "haproxy"},
		Spec:       networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
	}}
	class, kind, port, empty := "haproxy", networkingv1.PathTypePrefix, int32(8080), ""
	for i := range n {
		meta := metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("svc-%05d", i)}
		s.Services = append(s.Services,
			&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
		s.Ingresses = append(s.Ingresses, &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
			IngressClassName: &class, Rules: []networkingv1.IngressRule{{
				Host: meta.Name + ".test",
				IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
					Paths: []networkingv1.HTTPIngressPath{{
						Path: "/", PathType: &kind,
						Backend: networkingv1.IngressBackend{
							Service: &networkingv1.IngressServiceBackend{
								Name: meta.Name,
								Port: networkingv1.ServiceBackendPort{Number: 80},
							},
						},
					}},
				}},
			}},
		}})
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &empty, Port: &port}},
		}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
		for e := range 5 {
			k := 5*i + e
			slice.Endpoints = append(slice.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", k>>16, k>>8&255, k&255)}})
		}
		s.Slices = append(s.Slices, slice)
	}
	return s
}

// withSlice returns the snapshot with another version of one EndpointSlice, which has an
// endpoint less or has all.
func withSlice(s Snapshot, at int, all bool) Snapshot {
	s.Slices = slices.Clone(s.Slices)
	s.Slices[at] = s.Slices[at].DeepCopy()
	if !all {
		s.Slices[at].Endpoints = s.Slices[at].Endpoints[:4]
	}
	return s
}

// withPath returns the snapshot with another version of one Ingress, for another path.
func withPath(s Snapshot, at int, path string) Snapshot {
	s.Ingresses = slices.Clone(s.Ingresses)
	s.Ingresses[at] = s.Ingresses[at].DeepCopy()
	s.Ingresses[at].Spec.Rules[0].HTTP.Paths[0].Path = path
	return s
}

// BenchmarkOneChange measures what one changed object costs in a cluster of n Services.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		s := manyServices(n)
		versions := map[string][]Snapshot{
			"EndpointSlice": {withSlice(s, n/2, false), s},
			"Ingress":       {withPath(s, n/2, "/other"), s},
		}
		for _, kind := range sortedKeys(versions) {
			b.Run(fmt.Sprintf("%s of %d", kind, n), func(b *testing.B) {
				c := new(Compiler)
				c.Compile([]Snapshot{s})
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					c.Compile([]Snapshot{versions[kind][i%2]})
				}
			})
		}
	}
}

// One change makes Compile read and build as much in a large cluster as in a small one.
func TestOneChangeCompilesTheSameInAnyCluster(t *testing.T) {
	for what, tt := range map[string]struct {
		change                func(s Snapshot, at int) Snapshot
		claims, routed, parts int
	}{
		"an endpoint goes": {func(s Snapshot, at int) Snapshot { return withSlice(s, at, false) }, 0, 0, 1},
		// as it was, and as it is
		"an Ingress changes":  {func(s Snapshot, at int) Snapshot { return withPath(s, at, "/other") }, 1, 2, 0},
		"nothing changes":     {func(s Snapshot, _ int) Snapshot { return s }, 0, 0, 0},
		"a slice is repeated": {func(s Snapshot, at int) Snapshot { return withSlice(s, at, true) }, 0, 0, 1},
	} {
		for _, n := range []int{10, 10_000} {
			s, c := manyServices(n), new(Compiler)
			before := c.Compile([]Snapshot{s})
			if got := len(before.Config.Backends); got != n {
				t.Fatalf("%d backends, want %d", got, n)
			}
			after := c.Compile([]Snapshot{tt.change(s, n/2)})
			if c.made.claims != tt.claims || c.made.routed != tt.routed || c.made.parts != tt.parts {
				t.Errorf("%s: of %d it reads %d claims, routes %d and makes %d parts, want %d, %d and %d", what, n,
					c.made.claims, c.made.routed, c.made.parts, tt.claims, tt.routed, tt.parts)
			}
			for i, b := range after.Config.Backends {
				if i != n/2 && b != before.Config.Backends[i] {
					t.Fatalf("%s: backend %d of %d has another pointer", what, i, n)
				}
			}
		}
	}
}

// manyRoutes returns a cluster of n Services, each with an HTTPRoute of its own host at one Gateway.
func manyRoutes(n int) Snapshot {
	s := manyServices(n)
	s.Ingresses = nil
	s.Options.Gateway = GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}
	s.Options.Pools.Ranges = []AddressRange{poolOf(gateAt + "-" + gateAt)}
	s.API.Classes = []*gatewayv1.GatewayClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "ours"},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: "sallyport.dev/gateway"},
	}}
	s.API.Gateways = []*gatewayv1.Gateway{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gate"},
		Spec: gatewayv1.GatewaySpec{
			GatewayClassName: "ours",
			Listeners:        []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}},
		},
		Status: gatewayv1.GatewayStatus{Addresses: []gatewayv1.GatewayStatusAddress{{Value: gateAt}}},
	}}
	port := int32(80)
	for _, service := range s.Services {
		path, kind := "/app", gatewayv1.PathMatchPathPrefix
		s.API.HTTPRoutes = append(s.API.HTTPRoutes, &gatewayv1.HTTPRoute{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service.Name},
			Spec: gatewayv1.HTTPRouteSpec{
				CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Name: "gate"}}},
				Hostnames:       []gatewayv1.Hostname{gatewayv1.Hostname(service.Name + ".test")},
				Rules: []gatewayv1.HTTPRouteRule{{
					Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &kind, Value: &path}}},
					BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
						BackendObjectReference: gatewayv1.BackendObjectReference{
							Name: gatewayv1.ObjectName(service.Name), Port: &port,
						},
					}}},
				}},
			},
		})
	}
	return s
}

// routesToOne returns the cluster of manyRoutes with all routes to one Service.
func routesToOne(n int) Snapshot {
	s := manyRoutes(n)
	for _, r := range s.API.HTTPRoutes {
		r.Spec.Rules[0].BackendRefs[0].Name = "svc-00000"
	}
	return s
}

// withMatch returns the snapshot with another version of one HTTPRoute, for another path.
func withMatch(s Snapshot, at int, path string) Snapshot {
	s.API.HTTPRoutes = slices.Clone(s.API.HTTPRoutes)
	s.API.HTTPRoutes[at] = s.API.HTTPRoutes[at].DeepCopy()
	s.API.HTTPRoutes[at].Spec.Rules[0].Matches[0].Path.Value = &path
	return s
}

// withGates returns a Compiler for which port 80 of the Gateway is free.
func withGates() *Compiler {
	c := new(Compiler)
	c.Judge(haproxy.Verdicts{
		haproxy.LuaSupport().Part(): haproxy.Good,
		haproxy.FreeListener(netip.AddrPortFrom(netip.MustParseAddr(gateAt), 80)).Part(): haproxy.Good,
	})
	return c
}

// One changed route makes Compile route as much in a large cluster as in a small one, also if all
// routes lead to one Service.
func TestOneChangedRouteCompilesTheSameInAnyCluster(t *testing.T) {
	for what, of := range map[string]func(n int) Snapshot{
		"each with a Service": manyRoutes,
		"all to one Service":  routesToOne,
	} {
		for _, n := range []int{10, 10_000} {
			s, c := of(n), withGates()
			c.Compile([]Snapshot{s})
			after := c.Compile([]Snapshot{withMatch(s, n/2, "/other")})
			if c.made.routed != 2 || c.made.parts > 0 || !c.made.amended { // as it was, and as it is
				t.Errorf("%s: of %d it routes %d and makes %d parts, want 2 and 0", what, n, c.made.routed, c.made.parts)
			}
			if found, _, _ := after.Config.FindAt(haproxy.Request{
				Scope: gateAt + ":80", Host: fmt.Sprintf("svc-%05d.test", n/2), Path: "/other",
			}); found.Path != "/other" {
				t.Errorf("%s: of %d the changed path is not served", what, n)
			}
		}
	}
}

// BenchmarkOneRoute measures what one changed HTTPRoute costs among n, and one that comes and goes among
// n to the same Service.
func BenchmarkOneRoute(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		s, one := manyRoutes(n), routesToOne(n)
		less := one
		less.API.HTTPRoutes = one.API.HTTPRoutes[:n-1]
		for what, versions := range map[string][]Snapshot{
			"changed HTTPRoute of %d":            {s, withMatch(s, n/2, "/other")},
			"HTTPRoute beside %d to one Service": {one, less},
		} {
			b.Run(fmt.Sprintf(what, n), func(b *testing.B) {
				c := withGates()
				c.Compile(versions[:1])
				b.ReportAllocs()
				for i := 1; b.Loop(); i++ {
					if c.Compile(versions[i%2 : i%2+1]); !c.made.amended {
						b.Fatal("all routes are routed")
					}
				}
			})
		}
	}
}
