package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

func TestNamespacesTakeTurns(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"a1 a2 a3 b1 c1 c2":    "a1 b1 c1 a2 c2 a3",
		"after a: a1 a2 b1 c1": "b1 c1 a1 a2",
		"after c: a1 c1 b1":    "a1 b1 c1",
		"after x: a1 b1":       "a1 b1",
		"after b: a1 c1 c2":    "c1 a1 c2",
	} {
		last, things, found := strings.Cut(in, ": ")
		if !found {
			last, things = "", in
		}
		got := inTurns(strings.Fields(things), strings.TrimPrefix(last, "after "), func(one string) string {
			return one[:1]
		})
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		things := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d"})).Draw(t, "things")
		got := inTurns(things, rapid.SampledFrom([]string{"", "a", "b", "d", "e"}).Draw(t, "last"),
			func(one string) string { return one })
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(things))) {
			t.Fatalf("got %q of %q", got, things)
		}
		// whoever comes twice, everybody else who is left came in between or never comes again
		for i, one := range got {
			for j := i + 1; j < len(got); j++ {
				if got[j] == one {
					for _, other := range got[j:] {
						if !slices.Contains(got[i:j], other) {
							t.Fatalf("%s comes twice before %s: %q", one, other, got)
						}
					}
					break
				}
			}
		}
	})
}

func TestMistakesOfOneNamespaceDelayNoEventOfAnother(t *testing.T) {
	c := newCluster(calico.V1)
	w := c.watch(t, Config{})
	synced(t, w)
	var problems []ingress.Problem
	for i := range 2700 {
		problems = append(problems, ingress.Problem{
			ObjectRef: ingress.ObjectRef{
				Cluster: "c", Kind: "Ingress", Namespace: "evil",
				Name: fmt.Sprintf("i%d", i/20), UID: "1",
			},
			Reason: "InvalidPath", Why: fmt.Sprint("mistake ", i),
		})
	}
	w.Publish(Publication{Problems: problems})
	created := func(namespace string) (count int) {
		for _, a := range c.Actions() {
			if a.Matches("create", "events") && a.(k8stesting.CreateAction).GetNamespace() == namespace {
				count++
			}
		}
		return count
	}
	until(t, w, "the first Event about evil", func() bool { return created("evil") > 0 })
	w.Publish(Publication{Problems: append(problems, ingress.Problem{
		ObjectRef: ingress.ObjectRef{Cluster: "c", Kind: "Ingress", Namespace: "victim", Name: "broken", UID: "2"},
		Reason:    "InvalidAnnotation", Why: "a guard",
	})})
	until(t, w, "the Event about victim", func() bool { return created("victim") == 1 })
	if got := created("evil"); got > 2*eventsAtOnce {
		t.Errorf("%d Events about evil came before", got)
	}
}

// TestStatusesAreWrittenWhileEventsWait fills the budget of Events of a namespace first.
func TestStatusesAreWrittenWhileEventsWait(t *testing.T) {
	c := newCluster(calico.V1)
	served := testIngress("served")
	served.UID = "1"
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, served)
	w := c.watch(t, Config{Publish: []string{"192.168.50.21"}})
	synced(t, w)
	var problems []ingress.Problem
	for i := range 500 {
		problems = append(problems, ingress.Problem{
			ObjectRef: ingress.ObjectRef{Cluster: "c", Kind: "Ingress", Namespace: "default", Name: "served", UID: "1"},
			Reason:    "InvalidPath", Why: fmt.Sprint("mistake ", i),
		})
	}
	w.Publish(Publication{Problems: problems})
	w.Publish(Publication{Served: []ingress.ObjectRef{{
		Cluster: "c", Kind: "Ingress", Namespace: "default", Name: "served", UID: "1",
	}}, Problems: problems, Add: true})
	until(t, w, "the status", func() bool {
		i, err := c.NetworkingV1().Ingresses("default").Get(t.Context(), "served", metav1.GetOptions{})
		return err == nil && len(i.Status.LoadBalancer.Ingress) == 1
	})
}

// documentation are pools with five addresses.
var documentation = input.Pools{Ranges: []input.AddressRange{{
	First: netip.MustParseAddr("203.0.113.5"), Last: netip.MustParseAddr("203.0.113.9"),
}}}

// balancerOf returns a Service of type LoadBalancer with the port 5432 and one pod.
func balancerOf(name string, change func(*corev1.Service)) *corev1.Service {
	class := input.LoadBalancerClass
	namespace, short, _ := strings.Cut(name, "/")
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short, CreationTimestamp: metav1.Unix(1, 0)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			Ports: []corev1.ServicePort{{Name: "db", Port: 5432, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func recordOf(s *corev1.Service, addrs ...string) *corev1.Service {
	for _, a := range addrs {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

func TestAddressesOfServicesAreRecorded(t *testing.T) {
	db := ingress.ObjectRef{Cluster: "c", Kind: "Service", Namespace: "shop", Name: "db", UID: "1"}
	for name, row := range map[string]struct {
		service      *corev1.Service
		want         []netip.Addr // nil: the Service is no Balancer
		add, replace bool
		after        string
	}{
		"a new one": {
			balancerOf("shop/db", nil), addrsOf("203.0.113.5"), true, false,
			"203.0.113.5",
		},
		"a new one of a member that is spare": {balancerOf("shop/db", nil), addrsOf("203.0.113.5"), false, true, ""},
		"another address": {
			recordOf(balancerOf("shop/db", nil), "203.0.113.6"),
			addrsOf("203.0.113.5"), true, true, "203.0.113.5",
		},
		"another address, while the members differ": {
			recordOf(balancerOf("shop/db", nil), "203.0.113.6"), addrsOf("203.0.113.5"), true, false, "203.0.113.6",
		},
		"none any more": {recordOf(balancerOf("shop/db", nil), "203.0.113.6"), addrsOf(), true, true, ""},
		"another type": {
			recordOf(balancerOf("shop/db", func(s *corev1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
			}), "203.0.113.6"), nil, true, true, "",
		},
		"another load balancer's": {
			recordOf(balancerOf("shop/db", func(s *corev1.Service) { *s.Spec.LoadBalancerClass = "other" }),
				"203.0.113.6"), nil, true, true, "203.0.113.6",
		},
		"somebody's without a class": {
			recordOf(balancerOf("shop/db", func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil }), "203.0.113.6"),
			nil, true, true, "203.0.113.6",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(calico.V1)
			row.service.UID = "1"
			mustCreate(t, c.CoreV1().Services("shop").Create, row.service)
			beacon := recordOf(balancerOf("shop/zzz", nil))
			beacon.UID = "2"
			mustCreate(t, c.CoreV1().Services("shop").Create, beacon)
			w := c.watch(t, Config{Options: input.Options{Pools: documentation}})
			synced(t, w)
			p := Publication{
				Add: row.add, Replace: row.replace,
				Problems: []ingress.Problem{{ObjectRef: db, Reason: "R", Why: "w"}},
			}
			if row.want != nil {
				p.Balancers = append(p.Balancers, ingress.Balancer{ObjectRef: db, Addresses: row.want})
			}
			w.Publish(p)
			until(t, w, "the Event", func() bool {
				l, err := c.CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{})
				return err == nil && len(l.Items) == 1 && l.Items[0].InvolvedObject.Kind == "Service"
			})
			until(t, w, "the addresses "+row.after, func() bool { // Events do not wait for statuses
				s, err := c.CoreV1().Services("shop").Get(t.Context(), "db", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, in := range s.Status.LoadBalancer.Ingress {
					got = append(got, in.IP)
				}
				return strings.Join(got, " ") == row.after
			})
			for _, a := range c.Actions() {
				if patch, is := a.(k8stesting.PatchAction); is &&
					!strings.Contains(string(patch.GetPatch()), `"resourceVersion"`) {
					t.Errorf("a write that does not look whether the Service has changed: %s", patch.GetPatch())
				}
			}
		})
	}
}

func addrsOf(texts ...string) []netip.Addr {
	all := []netip.Addr{}
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
