package ingress

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"sallyport/haproxy"
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
				got, err := Learn(text)
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
					if !owners[cluster].equal(learned[cluster]) {
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

// manyOwners returns a Memory of many hosts of one namespace, and of one host of another.
func manyOwners(n int) Memory {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	o := &Owners{
		Namespaces: map[string]string{"a.test": "shop"}, Left: map[string]time.Time{"a.test": at.Add(-time.Minute)},
	}
	for i := range n {
		host := fmt.Sprintf("x%d.test", i)
		o.Namespaces[host], o.Left[host] = "evil", at.Add(time.Duration(i)*time.Millisecond)
	}
	return Memory{Clusters: map[string]*Owners{"one": o}}
}

func TestANamespaceDisplacesNoOtherFromWhatMembersTell(t *testing.T) {
	const most = 2000
	text, told := manyOwners(5000).Encode(most)
	got, err := Learn(text)
	if err != nil || len(text) > most {
		t.Fatalf("%d bytes: %v", len(text), err)
	}
	o := got.Clusters["one"]
	if o.Namespaces["a.test"] != "shop" || o.Left["a.test"].IsZero() || o.Namespaces["x4999.test"] != "evil" {
		t.Errorf("the owner of a.test and the newest of evil are not among the %d that have room", len(o.Namespaces))
	}
	if len(o.Namespaces) < 50 || got.Left != 5001-len(o.Namespaces) || told.Left != got.Left {
		t.Errorf("%d owners have room, %d do not", len(o.Namespaces), got.Left)
	}
	own := &Owners{Namespaces: map[string]string{"mine.test": "shop", "a.test": "evil"}}
	if o, _ := got.Owners("one", own); o.Namespaces["mine.test"] != "shop" || o.Namespaces["a.test"] != "shop" {
		t.Errorf("what had no room is not what the member knew itself: %v", o.Namespaces)
	}
	if own.Namespaces["a.test"] != "evil" {
		t.Error("the owners that the member had are changed")
	}
}

func TestOnlyWhatIsValidIsLearned(t *testing.T) {
	at := func(addr, namespace, service string) map[string]any {
		who := map[string]any{"namespace": namespace, "service": service, "left": "2999-01-01T00:00:00Z"}
		return map[string]any{addr: who}
	}
	good := func() map[string]any {
		return map[string]any{
			"namespaces": map[string]any{"a.test": "shop", "*.b.test": "*", "": "shop"},
			"left":       map[string]any{"a.test": "2999-01-01T00:00:00Z"},
			"addresses":  at("203.0.113.1", "shop", "shop/db"),
		}
	}
	encode := func(o any) []byte {
		plain, err := json.Marshal(map[string]any{"clusters": map[string]any{"one": o}})
		if err != nil {
			t.Fatal(err)
		}
		return deflated(plain)
	}
	m, err := Learn(encode(good()))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("nothing is kept for longer than releaseAfter", func(t *testing.T) {
		h := begin(t)
		h.owners["one"], _ = m.Owners("one", nil)
		h.round(0, claiming("evil/b", 2020, "a.test"))
		h.serves("a.test", "")
		h.round(time.Hour+2*time.Minute, claiming("evil/b", 2020, "a.test"))
		h.serves("a.test", "evil")
	})
	for name, change := range map[string]func(o map[string]any){
		"a host that is none": func(o map[string]any) { o["namespaces"] = map[string]any{"a b": "shop"} },
		"a wildcard in the middle": func(o map[string]any) {
			o["namespaces"] = map[string]any{"a.*.test": "shop"}
		},
		"a namespace that is none": func(o map[string]any) { o["namespaces"] = map[string]any{"a.test": "Shop"} },
		"no namespaces":            func(o map[string]any) { delete(o, "namespaces"); delete(o, "left") },
		"a host that nobody had":   func(o map[string]any) { o["namespaces"] = map[string]any{"b.test": "shop"} },
		"a time that is none":      func(o map[string]any) { o["left"] = map[string]any{"a.test": "soon"} },
		"an address that is none": func(o map[string]any) {
			o["addresses"] = map[string]any{"?": map[string]any{}}
		},
		"an address with a zone": func(o map[string]any) {
			o["addresses"] = at("fe80::1%eth0", "shop", "shop/db")
		},
		"a Service without a name": func(o map[string]any) { o["addresses"] = at("203.0.113.1", "shop", "shop") },
		"a Service of somebody else": func(o map[string]any) {
			o["addresses"] = at("203.0.113.1", "evil", "shop/db")
		},
		"owners that are a text":        func(o map[string]any) { o["namespaces"] = "shop" },
		"owners that are far too large": func(o map[string]any) { o["pad"] = strings.Repeat("x", mostMemory) },
	} {
		o := good()
		change(o)
		if m, err := Learn(encode(o)); err == nil || m.Clusters != nil {
			t.Errorf("%s: %+v is learned", name, m)
		}
	}
	text := encode(good())
	for i := range text {
		if m, err := Learn(text[:i]); err == nil {
			t.Fatalf("%+v is learned of the first %d of %d bytes", m, i, len(text))
		}
	}
}

// FuzzLearn learns of any bytes, and tells on what it learned.
func FuzzLearn(f *testing.F) {
	text, _ := manyOwners(2).Encode(1 << 20)
	f.Add(text)
	f.Add(deflated([]byte(`{"clusters":{"one":{"namespaces":{},` +
		`"addresses":{"203.0.113.1":{"namespace":"*","service":"a/b"}}}}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Learn(text)
		if err != nil {
			return
		}
		again, all := m.Encode(1 << 24)
		if got, err := Learn(again); err != nil || got.Left != m.Left || all.Left != m.Left {
			t.Errorf("%+v is told on as %+v: %v", m, got, err)
		}
	})
}
