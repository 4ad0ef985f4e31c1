package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestANamespaceNamesNoMoreSecretsThanItsLimit(t *testing.T) {
	at := func(ing *networkingv1.Ingress, namespace string, minute int64) *networkingv1.Ingress {
		ing.Namespace, ing.CreationTimestamp = namespace, metav1.Unix(60*minute, 0)
		return ing
	}
	naming := func(name string, secrets ...string) *networkingv1.Ingress {
		class := "haproxy"
		ing := &networkingv1.Ingress{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressSpec{IngressClassName: &class},
		}
		for _, secret := range secrets {
			ing.Spec.TLS = append(ing.Spec.TLS, networkingv1.IngressTLS{SecretName: secret})
		}
		return ing
	}
	class := &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "haproxy"},
		Spec:       networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
	}
	s := Snapshot{Cluster: Unnamed, Options: Options{Limits: Limits{Secrets: 3}}, Objects: Objects{
		Classes: []*networkingv1.IngressClass{class},
		Ingresses: []*networkingv1.Ingress{
			at(naming("a", "late", "old-1", "later"), "evil", 2), at(naming("b", "old-1", "old-1", "old-2"), "evil", 1),
			at(naming("c", "one", "two", "three", "three"), "victim", 3),
		},
	}}
	keys, _, beyond := s.AllNamed()
	want := "[evil/late evil/old-1 evil/old-2 victim/one victim/three victim/two]"
	if fmt.Sprint(keys) != want {
		t.Errorf("got %v, want %v", keys, want)
	}
	if len(beyond) != 1 || !strings.HasSuffix(beyond[0].Why,
		": 1 of this Ingress are not read, the first is evil/later") {
		t.Fatalf("got %+v", beyond)
	}
	s.Beyond = beyond
	problems := Compile([]Snapshot{s}).Problems
	if !slices.ContainsFunc(problems, func(p Problem) bool {
		return p.Reason == "LimitReached" && p.Name == "a" &&
			strings.Contains(p.Why, "more than 3 Secrets (clusters[].ingress.limits.secrets)")
	}) {
		t.Errorf("nobody is told: %v", problems)
	}
}

func TestANamespaceNamesNoMoreConfigMapsThanItsLimit(t *testing.T) {
	policy := func(namespace, name string, minute int64, configMaps ...string) *gatewayv1.BackendTLSPolicy {
		p := &gatewayv1.BackendTLSPolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, CreationTimestamp: metav1.Unix(60*minute, 0),
		}}
		for _, one := range configMaps {
			p.Spec.Validation.CACertificateRefs = append(p.Spec.Validation.CACertificateRefs,
				gatewayv1.LocalObjectReference{Kind: "ConfigMap", Name: gatewayv1.ObjectName(one)})
		}
		return p
	}
	s := Snapshot{Cluster: Unnamed, Options: Options{Limits: Limits{Secrets: 2}}}
	s.API.TLSPolicies = []*gatewayv1.BackendTLSPolicy{
		policy("evil", "a", 2, "late", "later"), policy("evil", "b", 1, "old"), policy("victim", "c", 3, "one", "two"),
	}
	_, keys, beyond := s.AllNamed()
	if got, want := fmt.Sprint(keys), "[evil/late evil/old victim/one victim/two]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(beyond) != 1 || !strings.Contains(beyond[0].Why, "more than 2 ConfigMaps") || !strings.HasSuffix(beyond[0].Why,
		": 1 of this BackendTLSPolicy are not read, the first is evil/later") {
		t.Errorf("got %+v", beyond)
	}
	if keys, _, _ := s.AllNamed(); len(keys) > 0 {
		t.Errorf("policies name the Secrets %v", keys)
	}
}
