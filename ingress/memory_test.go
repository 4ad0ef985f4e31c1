package ingress

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"sallyport/haproxy"
	"sallyport/ingress/input"
)

// drawTenants changes the Ingresses and Services of three namespaces, which want the same hosts and
// addresses. A Service may lose its record, as one that is replaced does.
func drawTenants(t *rapid.T, s *Snapshot) {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		namespace, name := pick("namespace", "shop", "evil", "third"), pick("name", "a", "b")
		age, gone := int64(rapid.IntRange(1, 3).Draw(t, "age")), rapid.IntRange(0, 2).Draw(t, "gone") == 0
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", CreationTimestamp: metav1.Unix(age, 0)}
		if pick("kind", "Ingress", "Ingress", "Service") == "Service" {
			s.Services = change(t, s.Services, balancerOf(namespace+"/"+name, func(s *corev1.Service) {
				s.ObjectMeta = meta
				if asks := pick("asks", "", "", "203.0.113.1", "203.0.113.2"); asks != "" {
					s.Annotations = map[string]string{"sallyport.dev/address": asks}
				}
			}), gone)
			continue
		}
		class, kind := "haproxy", networkingv1.PathTypePrefix
		paths := []networkingv1.HTTPIngressPath{{
			Path: "/", PathType: &kind,
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: "a", Port: networkingv1.ServiceBackendPort{Number: 5432},
			}},
		}}
		ing := &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{IngressClassName: &class}}
		for range rapid.IntRange(1, 2).Draw(t, "hosts") {
			ing.Spec.Rules = append(ing.Spec.Rules, networkingv1.IngressRule{
				Host:             pick("host", "x.test", "y.test", "*.test", ""),
				IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths}},
			})
		}
		s.Ingresses = change(t, s.Ingresses, ing, gone)
	}
}

// TestAMemberThatLearnsDecidesAsTheOthers lets a member that knows nothing learn from one that saw
// everything. From then on both make the same of the same objects.
func TestAMemberThatLearnsDecidesAsTheOthers(t *testing.T) {
	told, differ := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var old, young Compiler
		one, two := Snapshot{Cluster: "one", NoClasses: true}, Snapshot{Cluster: "two", NoClasses: true}
		pools := Pools{Ranges: []AddressRange{poolOf("203.0.113.1-203.0.113.8")}}
		for _, s := range []*Snapshot{&one, &two} {
			s.At = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
			s.Options = Options{
				ReleaseAfter: time.Hour, Pools: pools,
				OneTenant: rapid.IntRange(0, 4).Draw(t, "trust") == 0,
			}
			s.Options.Limits.Hosts = rapid.IntRange(0, 3).Draw(t, "limit")
		}
		owners, learned := map[string]*Owners{}, map[string]*Owners(nil)
		compile := func(c *Compiler, owners map[string]*Owners) Result {
			a, b := one, two
			a.Owners, b.Owners = owners["one"], owners["two"]
			return c.Compile([]Snapshot{a, b})
		}
		steps := rapid.IntRange(1, 8).Draw(t, "steps")
		joins := rapid.IntRange(0, steps-1).Draw(t, "joins")
		for step := range steps {
			drawTenants(t, &one)
			drawTenants(t, &two)
			one.At = one.At.Add(time.Duration(rapid.SampledFrom([]int{1, 60, 1800}).Draw(t, "seconds")) * time.Second)
			two.At = one.At
			want := compile(&old, owners)
			if step == joins {
				memory := want.Memory([]string{"one", "two"})
				text, all := memory.Encode(1 << 20)
				got, err := input.Learn(text)
				if err != nil {
					t.Fatalf("learning %+v: %v", memory, err)
				}
				if all.Left > 0 || got.Left > 0 {
					t.Fatalf("%d of a few owners have no room", got.Left)
				}
				alone := compile(new(Compiler), nil)
				if !cmp.Equal(alone.Config.Routes, want.Config.Routes, cmpopts.EquateComparable(netip.Addr{}, haproxy.Target{})) {
					differ++
				}
				learned = map[string]*Owners{}
				for _, cluster := range []string{"one", "two"} {
					stale := &Owners{Namespaces: map[string]string{"x.test": "third", "stale.test": "shop"}}
					o, known := got.Owners(cluster, stale)
					if !known {
						t.Fatalf("nothing is known of cluster %s", cluster)
					}
					learned[cluster] = o
					told += len(o.Namespaces) + len(o.Addresses)
				}
			}
			owners = maps.Clone(want.Owners)
			if step >= joins {
				got := compile(&young, learned)
				learned = maps.Clone(got.Owners)
				same := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, haproxy.Target{})}
				if diff := cmp.Diff(want.Config.Routes, got.Config.Routes, same); diff != "" {
					t.Fatalf("routes of the old member (-), of the one that learned (+):\n%s", diff)
				}
				if diff := cmp.Diff(want.Kept(), got.Kept(), same); diff != "" {
					t.Fatalf("kept by the old member (-), by the one that learned (+):\n%s", diff)
				}
				if a, b := tellBalancers(want), tellBalancers(got); a != b {
					t.Fatalf("addresses by the old member:\n%sby the one that learned:\n%s", a, b)
				}
				for cluster := range owners {
					if !owners[cluster].Equal(learned[cluster]) {
						t.Fatalf("the old member remembers %+v, the one that learned %+v", owners[cluster],
							learned[cluster])
					}
				}
			}
			for i, s := range one.Services { // the member writes some of the records
				at := slices.IndexFunc(want.Balancers, func(b Balancer) bool {
					return b.Cluster == "one" && b.Namespace == s.Namespace && b.Name == s.Name
				})
				if at >= 0 && rapid.Bool().Draw(t, "written") {
					next := s.DeepCopy()
					next.Status.LoadBalancer.Ingress = nil
					for _, a := range want.Balancers[at].Addresses {
						recordOf(next, a.String())
					}
					one.Services = slices.Clone(one.Services)
					one.Services[i] = next
				}
			}
		}
	})
	if told == 0 || differ == 0 {
		t.Errorf("%d owners were told, and a member that learns nothing differs %d times: no test", told, differ)
	}
}

func TestAMemoryFromTheFutureKeepsNothingForLonger(t *testing.T) {
	left := time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)
	m := input.Memory{Clusters: map[string]*Owners{"one": {
		Namespaces: map[string]string{"a.test": "shop", "*.b.test": "*", "": "shop"},
		Left:       map[string]time.Time{"a.test": left},
		Addresses: map[netip.Addr]AddressOwner{
			netip.MustParseAddr("203.0.113.1"): {Namespace: "shop", Service: "shop/db", Left: left},
		},
	}}}
	h := begin(t)
	h.owners["one"], _ = m.Owners("one", nil)
	h.round(0, claiming("evil/b", 2020, "a.test"))
	h.serves("a.test", "")
	h.round(time.Hour+2*time.Minute, claiming("evil/b", 2020, "a.test"))
	h.serves("a.test", "evil")
}
