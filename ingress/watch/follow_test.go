package watch

import (
	"fmt"
	"slices"
	"strconv"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// A secretServer answers for Secrets as an API server does: it returns only those that
// a field selector matches.
type secretServer struct {
	mu      sync.Mutex
	held    []*corev1.Secret
	watches []secretWatch
	asked   []string // the lists so far
	largest int      // most objects in one answer
	refuse  bool     // it refuses all but the list of all TLS Secrets
}

type secretWatch struct {
	*watch.FakeWatcher
	namespace string
	wanted    fields.Selector
}

func (w secretWatch) wants(s *corev1.Secret) bool {
	return (w.namespace == "" || w.namespace == s.Namespace) && chosen(s, w.wanted)
}

func chosen(s *corev1.Secret, by fields.Selector) bool {
	return by.Matches(fields.Set{"type": string(s.Type), "metadata.name": s.Name})
}

func (s *secretServer) serve(c *cluster) {
	c.PrependReactor("list", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		by := a.(k8stesting.ListAction).GetListRestrictions().Fields
		names := by.String() == namesOnly
		switch in := a.GetNamespace(); {
		case names:
			s.asked = append(s.asked, "names in "+in)
		case in != "" && strings.HasPrefix(by.String(), "type="):
			s.asked = append(s.asked, by.String()+" in "+in)
		default:
			s.asked = append(s.asked, by.String())
		}
		if s.refuse && !strings.HasPrefix(by.String(), "type=") {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)
		}
		options := a.(k8stesting.ListActionImpl).ListOptions
		list := &corev1.SecretList{}
		from, _ := strconv.Atoi(options.Continue)
		for i, one := range s.held[from:] {
			if options.Limit > 0 && len(list.Items) == int(options.Limit) {
				list.Continue = strconv.Itoa(from + i)
				break
			}
			if chosen(one, by) && (a.GetNamespace() == "" || a.GetNamespace() == one.Namespace) {
				list.Items = append(list.Items, *one.DeepCopy())
			}
		}
		if !names {
			s.largest = max(s.largest, len(list.Items))
		}
		return true, list, nil
	})
	c.PrependWatchReactor("secrets", func(a k8stesting.Action) (bool, watch.Interface, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w := secretWatch{
			watch.NewFakeWithChanSize(100, false), a.GetNamespace(),
			a.(k8stesting.WatchAction).GetWatchRestrictions().Fields,
		}
		for _, one := range s.held { // no event after the list may be lost
			if w.wants(one) {
				w.Add(one.DeepCopy())
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
		if !w.IsStopped() && w.wants(one) {
			w.Add(one.DeepCopy())
		}
	}
}

func namesOf(s input.Snapshot) (names []string) {
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
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Type:       corev1.SecretTypeOpaque, Data: map[string][]byte{"ann": []byte("x")},
		}
	}
	server.add(opaque("users"))
	server.add(opaque("others"))
	server.add(opaque("certificate"))
	server.add(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"},
		Type:       corev1.SecretTypeTLS,
	})
	first := testIngress("first")
	first.Annotations = map[string]string{
		"haproxy.org/auth-secret": "users", "haproxy.org/client-ca": "elsewhere/ca",
		"haproxy.org/server-ca": "tls",
	}
	first.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"a.test"}, SecretName: "certificate"}}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, first)
	foreign := testIngress("foreign")
	foreign.Spec.IngressClassName = new(string)
	foreign.Annotations = map[string]string{"haproxy.org/auth-secret": "others"}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, foreign)

	w := c.watch(t, Config{})
	if got := namesOf(synced(t, w)); !slices.Equal(got, []string{"certificate", "tls", "users"}) {
		t.Fatalf("the first snapshot has the Secrets %q, want certificate, tls and users", got)
	}

	// A Secret that is named later, and created later still.
	second := testIngress("second")
	second.Annotations = map[string]string{"auth-secret": "late"} // the prefix is optional
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, second)
	until(t, w, "the second Ingress", func() bool {
		s, err := w.Snapshot()
		return err == nil && len(s.Ingresses) == 3
	})
	server.add(opaque("late"))
	until(t, w, "its Secret", func() bool {
		s, err := w.Snapshot()
		return err == nil && slices.Contains(namesOf(s), "late")
	})

	// A Secret that is no longer named is no longer kept, and not read again.
	if err := c.NetworkingV1().Ingresses("default").Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "the end of the others", func() bool {
		s, err := w.Snapshot()
		return err == nil && slices.Equal(namesOf(s), []string{"late"})
	})
	server.mu.Lock()
	defer server.mu.Unlock()
	slices.Sort(server.asked)
	want := []string{
		"metadata.name=certificate", "metadata.name=late", "metadata.name=users", "names in default",
		"type=kubernetes.io/tls",
	}
	if !slices.Equal(slices.Compact(server.asked), want) {
		t.Errorf("it asked for the Secrets with %q, want %q", server.asked, want)
	}
}

func TestASecretThatIsRefusedDoesNotHoldOthersUp(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{refuse: true}
	server.serve(c)
	w := c.watch(t, Config{})
	synced(t, w)
	one := testIngress("one")
	one.Annotations = map[string]string{"haproxy.org/auth-secret": "users"}
	one.Spec.DefaultBackend = &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
		Name: "web",
		Port: networkingv1.ServiceBackendPort{Number: 80},
	}}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, one)
	until(t, w, "the Ingress, without its Secret", func() bool {
		s, err := w.Snapshot()
		return err == nil && len(s.Ingresses) == 1 && len(s.Secrets) == 0
	})
	s, _ := w.Snapshot()
	r := ingress.Compile([]input.Snapshot{s})
	if !slices.ContainsFunc(r.Problems, func(p ingress.Problem) bool {
		return strings.Contains(p.Why, "there is no Secret default/users")
	}) {
		t.Errorf("nobody is told: %v", r.Problems)
	}
	if b := r.Config.Backends[0]; !slices.Equal(b.Directives, []haproxy.Directive{haproxy.Close()}) {
		t.Errorf("it is not closed: %v", b.Directives)
	}
}

// tlsSecret returns a TLS Secret with a value of size bytes.
func tlsSecret(namespace, name string, size int) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1"},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: make([]byte, size), corev1.TLSPrivateKeyKey: []byte("k"),
			"other": make([]byte, size),
		},
	}
}

func named(ingress string, secrets ...string) *networkingv1.Ingress {
	ing := testIngress(ingress)
	for _, name := range secrets {
		ing.Spec.TLS = append(ing.Spec.TLS, networkingv1.IngressTLS{Hosts: []string{"a.test"}, SecretName: name})
	}
	return ing
}

// kept counts the bytes of all TLS Secrets that a watcher keeps.
func kept(w *Watcher) (bytes int) {
	for _, shelf := range w.followers.tls {
		for _, s := range shelf.newest() {
			for _, value := range s.Data {
				bytes += len(value)
			}
		}
	}
	return bytes
}

func TestOfTLSSecretsOnlyThoseThatAreNamedAreKept(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	for i := range 60 {
		server.add(tlsSecret("default", fmt.Sprintf("unnamed-%02d", i), 1<<20))
	}
	server.add(tlsSecret("default", "first", 1000))
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("one", "first", "second"))
	w := c.watch(t, Config{})
	if got := namesOf(synced(t, w)); !slices.Equal(got, []string{"first"}) {
		t.Fatalf("the first snapshot has the Secrets %q, want first", got)
	}
	if got := kept(w); got > 2000 {
		t.Errorf("%d bytes are kept of Secrets, want those of the one that is named", got)
	}
	if server.largest > secretsPage {
		t.Errorf("%d Secrets came in one answer, want no more than %d", server.largest, secretsPage)
	}
	names := func() []string { s, _ := w.Snapshot(); return namesOf(s) }
	waitFor := func(what string, want ...string) {
		t.Helper()
		until(t, w, what, func() bool { return slices.Equal(names(), want) })
	}

	// A Secret that is created after it was named, and others that nothing names.
	server.add(tlsSecret("default", "unnamed-60", 1<<20))
	server.add(tlsSecret("default", "second", 1000))
	waitFor("the second", "first", "second")

	// A Secret that existed before it was named.
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("two", "unnamed-07"))
	waitFor("one that was passed over", "first", "second", "unnamed-07")
	s, err := w.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if big, _ := input.Find(s.Secrets, types.NamespacedName{Namespace: "default", Name: "unnamed-07"}); len(big.Data) > 0 {
		t.Errorf("a Secret that is too large has %d values", len(big.Data))
	}
	if problems := ingress.Compile([]input.Snapshot{s}).Problems; !slices.ContainsFunc(problems,
		func(p ingress.Problem) bool {
			return strings.Contains(p.Why, "bytes; allowed: 262144")
		}) {
		t.Errorf("nobody is told of a Secret that is too large: %v", problems)
	}
	if err := c.NetworkingV1().Ingresses("default").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor("their end", "unnamed-07")
	if got := kept(w); got > 0 {
		t.Errorf("%d bytes are kept of Secrets that nobody names", got)
	}

	// Many at once take no watch. There are two: of the TLS Secrets, and of the names.
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("unnamed-%02d", i))
	}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("many", many...))
	waitFor("all of them", many...)
	server.mu.Lock()
	defer server.mu.Unlock()
	if got := len(server.watches); got > 2 {
		t.Errorf("there were %d watches, want no more than 2", got)
	}
}

// TestATLSSecretIsMeasuredByTheKeysThatAreRead names one Secret before the list is read,
// and another one after it, which is then watched by its name.
func TestATLSSecretIsMeasuredByTheKeysThatAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	for _, name := range []string{"listed", "followed"} {
		secret := tlsSecret("default", name, 1000)
		secret.Data["other"] = make([]byte, 1<<20)
		server.add(secret)
	}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("one", "listed"))
	w := c.watch(t, Config{})
	synced(t, w)
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("two", "followed"))
	until(t, w, "the second Secret", func() bool { s, _ := w.Snapshot(); return len(s.Secrets) == 2 })
	s, err := w.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range s.Secrets {
		if len(secret.Data["tls.crt"]) == 0 || secret.Data["other"] != nil {
			t.Errorf("Secret %s has %d keys, want the one that is read", secret.Name, len(secret.Data))
		}
	}
}

func TestSecretsAreReadInTheNamespacesOfTheConfigurationOnly(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	server.add(tlsSecret("default", "first", 10))
	server.add(tlsSecret("elsewhere", "first", 10))
	server.add(tlsSecret("ops", "own", 10))
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("one", "first"))
	mustCreate(t, c.CoreV1().ConfigMaps("ops").Create, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "keys"},
		Data:       map[string]string{"client-ca": "own", "ssl-certificate": "elsewhere/first"},
	})
	w := c.watch(t, Config{Options: input.Options{Namespaces: []string{"default", "web"}, ConfigMap: "ops/keys"}})
	s := synced(t, w)
	if len(s.Secrets) != 2 || s.Secrets[0].Namespace != "default" || s.Secrets[1].Namespace != "ops" || s.NoSecrets {
		t.Errorf("got %v, %t", s.Secrets, s.NoSecrets)
	}
	if problems := ingress.Compile([]input.Snapshot{s}).Problems; !slices.ContainsFunc(problems,
		func(p ingress.Problem) bool {
			return strings.Contains(p.Why, "Secret elsewhere/first is in a namespace whose Secrets are not read")
		}) {
		t.Errorf("nobody is told of a Secret that is out of reach: %v", problems)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	slices.Sort(server.asked)
	if want := []string{
		"type=kubernetes.io/tls in default", "type=kubernetes.io/tls in ops",
		"type=kubernetes.io/tls in web",
	}; !slices.Equal(slices.Compact(server.asked), want) {
		t.Errorf("it asked for %q, want %q", server.asked, want)
	}
}

// TestOnlyConfigMapsThatAnIngressNamesAreRead changes the one that is named.
func TestOnlyConfigMapsThatAnIngressNamesAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	for _, name := range []string{"default/headers", "default/others", "web/headers"} {
		namespace, short, _ := strings.Cut(name, "/")
		mustCreate(t, c.CoreV1().ConfigMaps(namespace).Create, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short}, Data: map[string]string{"X-A": "a", "X-B": "b"},
		})
	}
	for name, value := range map[string]string{"i": "headers", "thief": "web/headers"} {
		ing := testIngress(name)
		ing.Annotations = map[string]string{"sallyport.dev/auth-set-headers-from": value}
		mustCreate(t, c.NetworkingV1().Ingresses("default").Create, ing)
	}
	w := c.watch(t, Config{})
	synced(t, w)
	have := func(want string) {
		t.Helper()
		until(t, w, want, func() bool {
			s, err := w.Snapshot()
			return err == nil && len(s.ConfigMaps) == 1 && s.ConfigMaps[0].Name == "headers" &&
				s.ConfigMaps[0].Namespace == "default" && s.ConfigMaps[0].Data["X-A"] == want &&
				s.ConfigMaps[0].Data["X-B"] == "b"
		})
	}
	have("a")
	changed := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headers"}, Data: map[string]string{"X-A": "c", "X-B": "b"},
	}
	if _, err := c.CoreV1().ConfigMaps("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	have("c")
	for _, a := range c.Actions() {
		if a.GetResource().Resource == "configmaps" && a.GetNamespace() != "default" && a.GetVerb() != "create" {
			t.Errorf("%s in namespace %s", a.GetVerb(), a.GetNamespace())
		}
	}
	if !slices.ContainsFunc(Rules, func(r Rule) bool {
		return slices.Contains(r.Resources, "configmaps") && len(r.Names)+len(r.Namespaces) == 0
	}) {
		t.Error("no rule allows to read the ConfigMap")
	}
}
