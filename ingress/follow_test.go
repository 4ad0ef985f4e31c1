package ingress

import (
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"sallyport/haproxy"
	"sallyport/ingress/calico"
)

// secretServer tells Secrets as an API server does: those that a field selector
// chooses, and no others.
type secretServer struct {
	mu      sync.Mutex
	held    []*corev1.Secret
	watches []secretWatch
	asked   []string // what was listed
	refuse  bool     // everything but the list of all TLS Secrets
}

type secretWatch struct {
	*watch.FakeWatcher
	wanted fields.Selector
}

func chosen(s *corev1.Secret, by fields.Selector) bool {
	return by.Matches(fields.Set{"type": string(s.Type), "metadata.name": s.Name})
}

func (s *secretServer) serve(c *cluster) {
	c.PrependReactor("list", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		by := a.(k8stesting.ListAction).GetListRestrictions().Fields
		s.asked = append(s.asked, by.String())
		if s.refuse && !strings.HasPrefix(by.String(), "type=") {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)
		}
		list := &corev1.SecretList{}
		for _, one := range s.held {
			if chosen(one, by) {
				list.Items = append(list.Items, *one)
			}
		}
		return true, list, nil
	})
	c.PrependWatchReactor("secrets", func(a k8stesting.Action) (bool, watch.Interface, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := secretWatch{watch.NewFakeWithChanSize(10, false), a.(k8stesting.WatchAction).GetWatchRestrictions().Fields}
		for _, one := range s.held { // what came after the list must not be lost
			if chosen(one, w.wanted) {
				w.Add(one)
			}
		}
		s.watches = append(s.watches, w)
		return true, w, nil
	})
}

func (s *secretServer) add(one *corev1.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, one)
	for _, w := range s.watches {
		if !w.IsStopped() && chosen(one, w.wanted) {
			w.Add(one)
		}
	}
}

func namesOf(s Snapshot) (names []string) {
	for _, one := range s.Secrets {
		names = append(names, one.Name)
	}
	return names
}

func TestOnlySecretsThatAreNamedAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	opaque := func(name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"ann": []byte("x")}}
	}
	server.add(opaque("users"))
	server.add(opaque("others"))
	server.add(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"}, Type: corev1.SecretTypeTLS})
	first := testIngress("first")
	first.Annotations = map[string]string{"haproxy.org/auth-secret": "users", "haproxy.org/client-ca": "elsewhere/ca", "haproxy.org/server-ca": "tls"}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, first)
	foreign := testIngress("foreign")
	foreign.Spec.IngressClassName = new(string)
	foreign.Annotations = map[string]string{"haproxy.org/auth-secret": "others"}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, foreign)

	w := c.watch(t, ClusterConfig{})
	if got := namesOf(synced(t, w)); !slices.Equal(got, []string{"tls", "users"}) {
		t.Fatalf("the first snapshot has the Secrets %q, want tls and users", got)
	}

	// A Secret that is named later, and comes later still.
	second := testIngress("second")
	second.Annotations = map[string]string{"haproxy.org/auth-secret": "late"}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, second)
	until(t, w, "the second Ingress", func() bool { s, err := w.Snapshot(); return err == nil && len(s.Ingresses) == 3 })
	server.add(opaque("late"))
	until(t, w, "its Secret", func() bool { s, err := w.Snapshot(); return err == nil && slices.Contains(namesOf(s), "late") })

	// Whoever is not named any more is not watched any more.
	if err := c.NetworkingV1().Ingresses("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "the end of a watch", func() bool {
		s, err := w.Snapshot()
		server.mu.Lock()
		defer server.mu.Unlock()
		return err == nil && slices.Equal(namesOf(s), []string{"late", "tls"}) &&
			slices.ContainsFunc(server.watches, func(w secretWatch) bool { return w.IsStopped() && w.wanted.String() == "metadata.name=users" })
	})
	server.mu.Lock()
	defer server.mu.Unlock()
	for _, by := range server.asked {
		if !slices.Contains([]string{"type=kubernetes.io/tls", "metadata.name=users", "metadata.name=late"}, by) {
			t.Errorf("it asked for the Secrets with %q", by)
		}
	}
}

func TestASecretThatIsRefusedDoesNotHoldOthersUp(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{refuse: true}
	server.serve(c)
	w := c.watch(t, ClusterConfig{})
	synced(t, w)
	one := testIngress("one")
	one.Annotations = map[string]string{"haproxy.org/auth-secret": "users"}
	one.Spec.DefaultBackend = &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, one)
	until(t, w, "the Ingress, without its Secret", func() bool {
		s, err := w.Snapshot()
		return err == nil && len(s.Ingresses) == 1 && len(s.Secrets) == 0
	})
	s, _ := w.Snapshot()
	r := Compile([]Snapshot{s})
	if !slices.ContainsFunc(r.Problems, func(p Problem) bool { return strings.Contains(p.Why, "there is no Secret default/users") }) {
		t.Errorf("nobody is told: %v", r.Problems)
	}
	if b := r.Config.Backends[0]; !slices.Equal(b.Directives, []haproxy.Directive{haproxy.Close()}) {
		t.Errorf("it is not closed: %v", b.Directives)
	}
}
