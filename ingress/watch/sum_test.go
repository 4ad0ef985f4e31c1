package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// TestTheSecretsOfANamespaceHaveNoMoreBytesThanItsLimit fills the memory for the Secrets of a namespace
// with certificates and passwords. What needs a Secret that has no room is closed, until there is room.
func TestTheSecretsOfANamespaceHaveNoMoreBytesThanItsLimit(t *testing.T) {
	const size, most, many = 4 << 10, 20 << 10, 8
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	w := c.watch(t, Config{Options: input.Options{Limits: input.Limits{ObjectBytes: most}}})
	synced(t, w)
	mustCreate(t, c.CoreV1().Services("default").Create, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	})
	hash := "$5$salt$" + strings.Repeat("a", 43)
	for i := range many {
		name := fmt.Sprint("a", i)
		server.add(tlsSecret("default", "z-"+name, size))
		passwords := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "users-" + name, ResourceVersion: "1"},
			Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{},
		}
		for i := range size / len(hash) {
			passwords.Data[fmt.Sprint("ann", i)] = []byte(hash)
		}
		server.add(passwords)
		ing := named(name, "z-"+name)
		ing.Annotations = map[string]string{"haproxy.org/auth-secret": passwords.Name}
		kind, to := networkingv1.PathTypePrefix, &networkingv1.IngressServiceBackend{Name: "web"}
		to.Port.Number = 80
		ing.Spec.Rules = []networkingv1.IngressRule{{Host: name + ".test"}}
		ing.Spec.Rules[0].HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
			Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{Service: to},
		}}}
		mustCreate(t, c.NetworkingV1().Ingresses("default").Create, ing)
	}
	state := func() (bytes, with int) {
		s, err := w.Snapshot()
		if err != nil {
			return 0, 0
		}
		for _, one := range s.Secrets {
			if n := input.Size(one); n > 0 {
				bytes, with = bytes+n, with+1
			}
		}
		return bytes, with
	}
	all := func() int { s, _ := w.Snapshot(); return len(s.Secrets) }
	until(t, w, "all Secrets, with or without data", func() bool { return all() == 2*many })
	if got, with := state(); got > most || with < 4 {
		t.Errorf("%d Secrets with %d bytes are kept, the bound is %d", with, got, most)
	}
	r := ingress.Compile([]input.Snapshot{synced(t, w)})
	told := func(of string) bool {
		return slices.ContainsFunc(r.Problems, func(p ingress.Problem) bool {
			return strings.Contains(p.Why, of) && strings.Contains(p.Why, "(clusters[].ingress.limits.objectBytes)")
		})
	}
	if !told("Secret default/z-a") && !told("Secret default/users-a") {
		t.Errorf("nobody is told of the bound: %v", r.Problems)
	}
	seen := map[bool]bool{}
	for _, s := range synced(t, w).Secrets {
		host, users := strings.CutPrefix(s.Name, "users-")
		at := slices.IndexFunc(r.Config.Routes, func(to *haproxy.Route) bool { return to.Host == host+".test" })
		if !users || at < 0 {
			continue
		}
		is := slices.IndexFunc(r.Config.Backends, func(b *haproxy.Backend) bool {
			return b.Name == r.Config.Routes[at].Backend
		})
		if closed := slices.Contains(r.Config.Backends[is].Directives, haproxy.Close()); closed != (input.Size(s) == 0) {
			t.Errorf("%s has %d bytes, and its path is closed: %v", s.Name, input.Size(s), closed)
		}
		seen[input.Size(s) > 0] = true
	}
	if !seen[false] || !seen[true] {
		t.Errorf("no path is open, or none is closed: %v", seen)
	}
	for i := range many - 2 {
		err := c.NetworkingV1().Ingresses("default").Delete(t.Context(), fmt.Sprint("a", i), metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	until(t, w, "the data of all that are left", func() bool { _, with := state(); return with == 4 && all() == 4 })
}
