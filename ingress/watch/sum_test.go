package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// TestTheBytesOfAnObjectCountUntilItIsGone goes through the moments between the arrival of an object
// and the snapshot that has it first.
func TestTheBytesOfAnObjectCountUntilItIsGone(t *testing.T) {
	const size, most = 10, 25
	secret := func(name string) *corev1.Secret {
		s := opaque("default", name)
		s.Data = map[string][]byte{"key": make([]byte, size)}
		return s
	}
	is := func(what string, of *corev1.Secret, whole bool) {
		t.Helper()
		if got := input.Size(of) > 0; got != whole {
			t.Errorf("%s: Secret %s has its data: %v, want %v", what, of.Name, got, whole)
		}
	}
	named := func(types.NamespacedName) bool { return true }
	m := newSum[*corev1.Secret](most)
	a, b, c := secret("a"), secret("b"), secret("c")
	m.land(a)
	before := m.now()
	m.land(b) // after the shelves were read
	m.arrive(c)
	if again := m.count([]*corev1.Secret{a}, before, named); again != nil {
		t.Errorf("read again: %v, want none", again)
	}
	is("beside one that no snapshot has yet", c, false)
	m.land(c)
	again := m.count([]*corev1.Secret{a, b, c}, m.now(), named)
	if again != nil {
		t.Errorf("read again without room: %v", again)
	}
	for range 2 { // the second snapshot comes before the answer
		again = append(again, m.count([]*corev1.Secret{a, c}, m.now(), named)...)
	}
	if !slices.Equal(again, []types.NamespacedName{input.KeyOf(c)}) {
		t.Errorf("read again: %v, want c once", again)
	}
	c = secret("c")
	m.land(c)
	is("once there is room", c, true)

	// A list is under way.
	d, e := secret("d"), secret("e")
	m.count(nil, m.now(), named)
	m.arrive(d)
	m.arrive(e)
	m.count(nil, m.now(), named)
	f := secret("f")
	m.arrive(f)
	is("beside two of a list that is under way", f, false)
	m.abandon("other")
	m.abandon("default")
	for _, o := range []*corev1.Secret{secret("g"), secret("h")} {
		m.arrive(o)
		is("after a list that failed", o, true)
	}

	// A list that failed had newer versions of what is kept.
	g, h := secret("g"), secret("h")
	m.land(g)
	m.land(h)
	m.arrive(secret("g"))
	m.arrive(secret("h"))
	m.abandon("")
	m.count([]*corev1.Secret{g, h}, m.now(), named)
	f = secret("f")
	m.arrive(f)
	is("beside two that are kept, whose newer versions were lost", f, false)
	m.count(nil, m.now(), func(types.NamespacedName) bool { return false })
	if len(m.admissions)+len(m.sums) > 0 {
		t.Errorf("what nothing names still counts: %v, %v", m.admissions, m.sums)
	}
}

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
	snapshot := synced(t, w)
	r := ingress.Compile([]input.Snapshot{snapshot})
	told := func(of string) bool {
		return slices.ContainsFunc(r.Problems, func(p ingress.Problem) bool {
			return strings.Contains(p.Why, of) && strings.Contains(p.Why, "(clusters[].ingress.limits.objectBytes)")
		})
	}
	if !told("Secret default/z-a") && !told("Secret default/users-a") {
		t.Errorf("nobody is told of the bound: %v", r.Problems)
	}
	seen := map[bool]bool{}
	for _, s := range snapshot.Secrets {
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
