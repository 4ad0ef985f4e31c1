package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/input"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"sallyport/ingress/calico"
)

// stubborn makes reads of single Secrets fail, until it is told to stop.
func stubborn(c *cluster) (stop func()) {
	var ended atomic.Bool
	c.PrependReactor("list", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
		by := a.(k8stesting.ListAction).GetListRestrictions().Fields.String()
		if ended.Load() || !strings.HasPrefix(by, "metadata.name=") {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInternalError(fmt.Errorf("not now"))
	})
	return func() { ended.Store(true) }
}

func opaque(namespace, name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1"},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"ann": []byte("x")},
	}
}

// guardedBy returns an Ingress of a namespace with a password file.
func guardedBy(namespace, name, secret string) *networkingv1.Ingress {
	ing := testIngress(name)
	ing.Namespace, ing.Annotations = namespace, map[string]string{"haproxy.org/auth-secret": secret}
	return ing
}

func mustUpdate(t *testing.T, c *cluster, ing *networkingv1.Ingress) {
	t.Helper()
	if _, err := c.NetworkingV1().Ingresses(ing.Namespace).Update(t.Context(), ing,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// annotationOf returns an annotation of an Ingress in the present snapshot.
func annotationOf(w *Watcher, namespace, name, key string) string {
	s, err := w.Snapshot()
	if err != nil {
		return err.Error()
	}
	ing, _ := input.Find(s.Ingresses, types.NamespacedName{Namespace: namespace, Name: name})
	if ing == nil {
		return "no Ingress"
	}
	return ing.Annotations[key]
}

// TestNewNamesInEachRoundWithholdNoSnapshot has two writers: one names new Secrets in each
// round, and the other changes an Ingress.
func TestNewNamesInEachRoundWithholdNoSnapshot(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	evil, victim := testIngress("evil"), guardedBy("victim", "victim", "users")
	evil.Namespace = "evil"
	server.add(opaque("victim", "users"))
	mustCreate(t, c.NetworkingV1().Ingresses("evil").Create, evil)
	mustCreate(t, c.NetworkingV1().Ingresses("victim").Create, victim)
	w := c.watch(t, Config{})
	synced(t, w)
	withheld := 0
	for round := range 20 {
		evil = evil.DeepCopy()
		evil.Spec.TLS = nil
		for i := range 300 {
			evil.Spec.TLS = append(evil.Spec.TLS,
				networkingv1.IngressTLS{SecretName: fmt.Sprintf("none-%d-%d", round, i)})
		}
		victim = victim.DeepCopy()
		victim.Annotations["round"] = fmt.Sprint(round)
		mustUpdate(t, c, evil)
		mustUpdate(t, c, victim)
		until(t, w, "the change of victim", func() bool {
			if _, err := w.Snapshot(); err != nil {
				withheld++
			}
			return annotationOf(w, "victim", "victim", "round") == fmt.Sprint(round)
		})
	}
	if withheld > 0 {
		t.Errorf("%d times there was no snapshot", withheld)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	slices.Sort(server.asked)
	if want := []string{
		"metadata.name=users", "names in evil", "names in victim",
		"type=kubernetes.io/tls",
	}; !slices.Equal(slices.Compact(server.asked), want) {
		t.Errorf("6,000 names took %d lists: %.500q; want %q", len(server.asked), server.asked, want)
	}
}

// TestAnObjectChangesTogetherWithItsSecrets changes the Secret of an Ingress to one that
// cannot be read for a while.
func TestAnObjectChangesTogetherWithItsSecrets(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	server.add(tlsSecret("default", "former", 10))
	server.add(opaque("default", "later"))
	ours, other := named("ours", "former"), testIngress("other")
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, ours)
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, other)
	w := c.watch(t, Config{})
	w.followers.mu.Lock()
	w.followers.patience = time.Hour
	w.followers.mu.Unlock()
	synced(t, w)
	stop := stubborn(c)

	ours = named("ours", "later")
	mustUpdate(t, c, ours)
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, named("new", "later"))
	other = other.DeepCopy()
	other.Annotations = map[string]string{"changed": "yes"}
	mustUpdate(t, c, other)
	until(t, w, "the change of another Ingress", func() bool {
		return annotationOf(w, "default", "other", "changed") == "yes"
	})
	s := synced(t, w)
	held, _ := input.Find(s.Ingresses, types.NamespacedName{Namespace: "default", Name: "ours"})
	if held == nil || held.Spec.TLS[0].SecretName != "former" || !slices.Equal(namesOf(s), []string{"former"}) {
		t.Errorf("want the former version with its Secret, got %v with %q", held, namesOf(s))
	}
	if _, has := input.Find(s.Ingresses, types.NamespacedName{Namespace: "default", Name: "new"}); has {
		t.Error("a new Ingress is there before its Secret was read")
	}
	stop()
	until(t, w, "the Secret", func() bool { s, _ := w.Snapshot(); return slices.Equal(namesOf(s), []string{"later"}) })
	s = synced(t, w)
	if now, _ := input.Find(s.Ingresses,
		types.NamespacedName{Namespace: "default", Name: "ours"}); now.Spec.TLS[0].SecretName != "later" ||
		len(s.Ingresses) != 3 {
		t.Errorf("got %v", s.Ingresses)
	}
}

func TestAStartDoesNotWaitForeverForASecret(t *testing.T) {
	c := newCluster(calico.V1)
	server := &secretServer{}
	server.serve(c)
	stubborn(c)
	server.add(opaque("default", "users"))
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, guardedBy("default", "one", "users"))
	if s := synced(t, c.watch(t, Config{})); len(s.Ingresses) != 1 || len(s.Secrets) != 0 {
		t.Errorf("got %v", s.Objects)
	}
}

// TestReadsOfANamespaceStayWithinItsBudget takes names of existing Secrets back, and names
// them again, for a minute.
func TestReadsOfANamespaceStayWithinItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const most = 20
		reads, told := 0, atomic.Int32{}
		r := &namedReader[*corev1.Secret]{
			names: &shelf[*metav1.PartialObjectMetadata]{
				order: input.ByName[*metav1.PartialObjectMetadata], knock: func() {},
			},
			wake: make(chan struct{}, 1), budget: rate.NewLimiter(readsPerSecond, most),
			have: make(map[types.NamespacedName]answer[*corev1.Secret]), patience: patience, knock: func() { told.Add(1) },
			lands: func(*corev1.Secret) {},
			fetch: func(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
				reads++
				return opaque(key.Namespace, key.Name), nil
			},
		}
		var all []any
		keys := make(map[types.NamespacedName]bool)
		for i := range most {
			one := nameOf(opaque("evil", fmt.Sprint(i)))
			all, keys[input.KeyOf(one)] = append(all, one), true
		}
		if err := r.names.Replace(all, ""); err != nil {
			t.Fatal(err)
		}
		go r.run(ctx)
		for range 600 {
			r.want(keys, time.Now())
			<-time.After(50 * time.Millisecond)
			r.want(nil, time.Now())
			<-time.After(50 * time.Millisecond)
		}
		synctest.Wait()
		if reads < most || reads > most+60*readsPerSecond+1 {
			t.Errorf("%d reads in a minute, want %d and then %d in a second", reads, most, readsPerSecond)
		}
		if told := int(told.Load()); told > reads+1+int(time.Minute/patience) { // and those at the end of patience
			t.Errorf("%d knocks for %d reads", told, reads)
		}
		// What is wanted for longer than patience holds nothing back.
		r.want(keys, time.Now())
		awaited := make(map[types.NamespacedName]bool)
		if r.answers(time.Now(), awaited); len(awaited) == 0 {
			t.Error("nothing is awaited")
		}
		clear(awaited)
		if r.answers(time.Now().Add(patience+time.Second), awaited); len(awaited) > 0 {
			t.Errorf("%d Secrets are awaited after patience", len(awaited))
		}
	})
}

// TestNamesOfSecretsAreReadWithoutTheirContent is an API server that returns tables.
func TestNamesOfSecretsAreReadWithoutTheirContent(t *testing.T) {
	row := func(version string, names ...string) metav1.Table {
		table := metav1.Table{
			TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: version},
		}
		for _, name := range names {
			table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{name, "Opaque", 1, "5s"}})
		}
		return table
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("includeObject") != "None" ||
			r.Header.Get("Accept") != "application/json;as=Table;g=meta.k8s.io;v=v1" ||
			r.URL.Path != "/api/v1/namespaces/evil/secrets" {
			t.Errorf("got %s, accepting %q", r.URL, r.Header.Get("Accept"))
		}
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		if r.URL.Query().Get("watch") == "" {
			_ = e.Encode(row("7", "a", "b"))
			return
		}
		for _, event := range []map[string]any{
			{"type": "ADDED", "object": row("8", "c")},
			{"type": "BOOKMARK", "object": row("9", "")},
			{"type": "DELETED", "object": row("10", "a")},
			{"type": "MODIFIED", "object": row("11", "")},
		} {
			_ = e.Encode(event)
		}
	}))
	t.Cleanup(api.Close)
	kube, err := newClients(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	names := kube.Names("secrets", "evil")
	list, err := names.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := list.Items; len(got) != 2 || input.KeyOf(&got[1]) != (types.NamespacedName{Namespace: "evil", Name: "b"}) ||
		got[1].ResourceVersion != "7" || list.ResourceVersion != "7" {
		t.Errorf("got %v", list)
	}
	events, err := names.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	var got []string
	for e := range events.ResultChan() {
		line := string(e.Type)
		if one, ok := e.Object.(*metav1.PartialObjectMetadata); ok {
			line += " " + one.Name + " " + one.ResourceVersion
		}
		got = append(got, line)
		if e.Type == watch.Error {
			break
		}
	}
	if want := []string{"ADDED c 8", "BOOKMARK  9", "DELETED a 10", "ERROR"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNoRequestWaitsForTheTurnOfAnother(t *testing.T) {
	config, err := apiserver.Config(
		[]byte("{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: " +
			"{token: x}}], clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]}"))
	if err != nil {
		t.Fatal(err)
	}
	kube, err := newClients(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range []rest.Interface{kube.core, kube.networking, kube.discovery} {
		if group.GetRateLimiter() != nil {
			t.Error("all requests share a rate")
		}
	}
}
