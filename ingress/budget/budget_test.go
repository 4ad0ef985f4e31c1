package budget

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

// A cluster has two namespaces, each with a Service and an Ingress.
type cluster struct {
	input.Snapshot
	round int
}

func newCluster() *cluster {
	c := new(cluster)
	c.Cluster, c.Options.WatchWithoutClass, c.Options.Limits.Routing = "demo", true, 10
	for _, namespace := range []string{"evil", "victim"} {
		c.Services = append(c.Services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	return c
}

// change gives each namespace another host, that of evil with a regular expression as its path, and evil
// another pod. It returns the Snapshot, both hosts, and the address of the pod.
func (c *cluster) change() (s input.Snapshot, evil, victim, pod string) {
	c.round++
	evil, victim = fmt.Sprintf("evil-%d.test", c.round), fmt.Sprintf("victim-%d.test", c.round)
	pod = fmt.Sprintf("172.16.0.%d", c.round%250+1)
	c.Ingresses = []*networkingv1.Ingress{
		routed("evil", evil, map[string]string{"sallyport.dev/path-type": "regex"}), routed("victim", victim, nil),
	}
	number := int32(80)
	c.Slices = []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "evil", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &number}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod}}},
	}}
	return c.Snapshot, evil, victim, pod
}

func routed(namespace, host string, annotations map[string]string) *networkingv1.Ingress {
	kind := networkingv1.PathTypeImplementationSpecific
	to := networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "app", Annotations: annotations},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/a", PathType: &kind, Backend: to}},
			}},
		}}},
	}
}

func serves(r ingress.Result, host string) bool {
	return slices.ContainsFunc(r.Config.Routes, func(one *haproxy.Route) bool { return one.Host == host })
}

// A clock goes on by a tenth of a second whenever somebody looks at it: each routing takes that long.
type clock struct{ time.Time }

func (c *clock) now() time.Time {
	c.Time = c.Add(100 * time.Millisecond)
	return c.Time
}

func TestANamespaceThatMakesAllRoutesAnewWaitsForItself(t *testing.T) {
	const rounds = 200
	all, time := newCluster(), new(clock)
	c := New(new(ingress.Compiler))
	c.now = time.now
	wholes, waits := 0, 0
	for range rounds {
		s, evil, victim, pod := all.change()
		r := c.Compile([]input.Snapshot{s})
		if c.Whole() {
			wholes++
		}
		if !serves(r, victim) {
			t.Fatalf("round %d: %s is not served: namespace victim waits for evil", all.round, victim)
		}
		i := slices.IndexFunc(r.Config.Backends, func(b *haproxy.Backend) bool { return b.Namespace == "evil" })
		if servers := r.Config.Backends[i].Servers; len(servers) != 1 || servers[0].Addr.Addr().String() != pod {
			t.Fatalf("round %d: evil has servers %v, want %s: endpoints wait", all.round, servers, pod)
		}
		told := slices.ContainsFunc(r.Problems, func(p input.Problem) bool {
			return p.Reason == "LimitReached" && p.Namespace == "evil" && p.Cluster == "demo"
		})
		if serves(r, evil) == told {
			t.Fatalf("round %d: %s is served: %v; a Problem says that it waits: %v",
				all.round, evil, serves(r, evil), told)
		}
		if told {
			waits++
		}
	}
	// By this clock a round takes 0.3 seconds, and a routing 0.1. A tenth of the time is a routing in 3.3 rounds, and
	// 10 routings are saved at the start.
	if wholes > rounds/2 || waits < rounds/4 {
		t.Errorf("the whole routing was made %d times in %d rounds, and evil waited in %d", wholes, rounds, waits)
	}
	time.Time = time.Add(60 * 1e9)
	s := all.Snapshot
	r, want := c.Compile([]input.Snapshot{s}), ingress.Compile([]input.Snapshot{s})
	if !reflect.DeepEqual(r.Config, want.Config) || !reflect.DeepEqual(r.Problems, want.Problems) {
		t.Errorf("after a minute the result is %+v, want that of the objects from nothing: %+v", r.Config, want.Config)
	}
}

func TestWhatIsOneTenantHasNoBudgetOfItsOwn(t *testing.T) {
	all, time := newCluster(), new(clock)
	all.Options.OneTenant = true
	c := New(new(ingress.Compiler))
	c.now = time.now
	for range 50 {
		s, evil, _, _ := all.change()
		if r := c.Compile([]input.Snapshot{s}); !serves(r, evil) {
			t.Fatalf("round %d: %s waits", all.round, evil)
		}
	}
}
