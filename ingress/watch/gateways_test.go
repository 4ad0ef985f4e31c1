package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	k8stesting "k8s.io/client-go/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// serveGateways makes the cluster serve resources of Gateway API, as "v1 gateways gatewayclasses".
func (c *cluster) serveGateways(versions ...string) {
	all := make(map[string][]string)
	for _, one := range versions {
		words := strings.Fields(one)
		all[words[0]] = words[1:]
	}
	c.gateways.Store(&all)
}

func (c *cluster) gatewayDocument(version string) ([]byte, error) {
	all := c.gateways.Load()
	if all == nil || (*all)[version] == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: gatewayv1.GroupName}, version)
	}
	list := metav1.APIResourceList{}
	for _, name := range (*all)[version] {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	return json.Marshal(list)
}

// fakeGateways read objects of Gateway API from the dynamic fake, as objects of v1.
type fakeGateways struct{ from dynamic.ResourceInterface }

// typed returns an object of the fake with its type.
func typed(o *unstructured.Unstructured) (runtime.Object, error) {
	of := schema.GroupVersion(gatewayv1.GroupVersion).WithKind(o.GetKind())
	if o.GroupVersionKind().Group != gatewayv1.GroupName {
		of = o.GroupVersionKind()
	}
	out, err := scheme.New(of)
	if err != nil {
		return nil, err
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return out, json.Unmarshal(text, out)
}

func (g fakeGateways) List(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list, err := g.from.List(ctx, o)
	if err != nil {
		return nil, err
	}
	all := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: list.GetResourceVersion()}}
	for i := range list.Items {
		one, err := typed(&list.Items[i])
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, runtime.RawExtension{Object: one})
	}
	return all, nil
}

func (g fakeGateways) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := g.from.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if u, is := e.Object.(*unstructured.Unstructured); is {
			if one, err := typed(u); err == nil {
				e.Object = one
			}
		}
		return e, true
	}), nil
}

func (g fakeGateways) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (runtime.Object, error) {
	return g.from.Patch(ctx, name, pt, data, o, sub...)
}

// createGateway creates an object of Gateway API, as JSON without apiVersion.
func (c *cluster) createGateway(t *testing.T, version, resource, text string) {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetAPIVersion(gatewayv1.GroupName + "/" + version)
	to := c.dynamic.Resource(schema.GroupVersionResource{
		Group: gatewayv1.GroupName, Version: version, Resource: resource,
	}).Namespace(u.GetNamespace())
	if _, err := to.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

const aGateway = `{"kind": "Gateway", "metadata": {"name": "web", "namespace": "shop"},
	"spec": {"gatewayClassName": "sallyport", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"},
		{"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "web"},
			{"name": "shared", "namespace": "certs"}, {"name": "stolen", "namespace": "bank"}]}}]}}`

var gatewayOptions = input.GatewayOptions{Enabled: true, Controller: "sallyport.dev/gateway"}

func TestTheKindsOfGatewayAPIThatAreServedAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes", "v1beta1 referencegrants")
	c.createGateway(t, "v1", "gateways", aGateway)
	c.createGateway(t, "v1beta1", "referencegrants", `{"kind": "ReferenceGrant",
		"metadata": {"name": "old", "namespace": "certs"}, "spec": {"from": [], "to": []}}`)
	mustCreate(t, c.CoreV1().Namespaces().Create, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "web"}},
	})
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	s := synced(t, w)
	if len(s.API.Gateways) != 1 || len(s.API.Grants) != 1 || len(s.Namespaces) != 1 {
		t.Fatalf("got %d Gateways, %d grants, %d Namespaces", len(s.API.Gateways), len(s.API.Grants), len(s.Namespaces))
	}
	c.createGateway(t, "v1", "tlsroutes", `{"kind": "TLSRoute", "metadata": {"name": "new", "namespace": "shop"}}`)
	c.serveGateways("v1 gatewayclasses gateways httproutes tlsroutes", "v1beta1 referencegrants")
	w.askSurvey()
	until(t, w, "the TLSRoute of a newer bundle", func() bool {
		s, err := w.Snapshot()
		return err == nil && len(s.API.TLSRoutes) == 1
	})
}

// An API server that is ready knows all its CRDs, so nothing waits for those that it lacks.
func TestAReadyServerIsBelievedThatItHasNoGateways(t *testing.T) {
	for _, ready := range []bool{true, false} {
		c := newCluster(calico.V1)
		c.ready.Store(ready)
		w := newWatcher(Config{Options: input.Options{Gateway: gatewayOptions}, Log: slog.New(slog.DiscardHandler)},
			fakeAPI{c}, c.dynamic, apiserver.Server{})
		w.surveyGateways(t.Context(), new(sync.WaitGroup))
		if got := w.gateways.known; got != ready {
			t.Errorf("with ready %t: known is %t", ready, got)
		}
		if got := w.withoutGateways() != ""; got != ready {
			t.Errorf("with ready %t: the sentence about CRDs is there: %t", ready, got)
		}
	}
}

func TestTheDoctorLearnsWhichKindsAreMissing(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes", "v1beta1 referencegrants")
	w := newWatcher(Config{Log: slog.New(slog.DiscardHandler)}, fakeAPI{c}, c.dynamic, apiserver.Server{})
	k, err := w.GatewayKinds(t.Context())
	want := []string{"ListenerSet", "GRPCRoute", "TLSRoute", "TCPRoute", "BackendTLSPolicy"}
	if err != nil || !slices.Equal(k.Missing, want) || k.Experimental {
		t.Errorf("got %+v and %v, want %q", k, err, want)
	}
}

func TestWithoutGatewaysNothingOfThemIsRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways")
	c.createGateway(t, "v1", "gateways", aGateway)
	if s := synced(t, c.watch(t, Config{})); len(s.API.Gateways) != 0 {
		t.Error("a Gateway was read")
	}
	for _, a := range c.dynamic.Actions() {
		if a.GetResource().Group == gatewayv1.GroupName && a.GetVerb() != "create" {
			t.Errorf("asked for %v", a.GetResource())
		}
	}
}

// unasked are the options of a configuration file that says nothing about Gateways.
var unasked = input.GatewayOptions{Enabled: true, Unasked: true, Controller: "sallyport.dev/gateway"}

// surveyed returns a watcher, the text of its log, and a survey of its kinds of Gateway API. The API server is
// ready.
func (c *cluster) surveyed(t *testing.T, options input.GatewayOptions) (*Watcher, *strings.Builder, func()) {
	t.Helper()
	c.ready.Store(true)
	var text strings.Builder
	w := newWatcher(Config{Options: input.Options{Gateway: options}, Log: slog.New(slog.NewTextHandler(&text, nil))},
		fakeAPI{c}, c.dynamic, apiserver.Server{})
	ctx, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { end(); wg.Wait() })
	return w, &text, func() { w.surveyGateways(ctx, &wg) }
}

// forbid makes the cluster refuse to list a resource until the returned function is called.
func (c *cluster) forbid(resource string) (allow func()) {
	var allowed atomic.Bool
	c.dynamic.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
	})
	return func() { allowed.Store(true) }
}

// TestAClusterWithoutTheCRDsIsNotAtFault surveys the cluster several times: only the first survey is logged.
func TestAClusterWithoutTheCRDsIsNotAtFault(t *testing.T) {
	for name, kinds := range map[string]string{
		"no kind at all": "", "kinds of an older version": "v1beta1 gateways gatewayclasses referencegrants",
		"routes alone": "v1 httproutes",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(calico.V1)
			if kinds != "" {
				c.serveGateways(kinds)
			}
			w, text, survey := c.surveyed(t, unasked)
			for range 3 {
				survey()
			}
			if h := w.Health(); !w.gateways.known || len(h.Missing)+len(h.Hints) > 0 || len(w.gateways.shelves) > 0 {
				t.Errorf("known %t, missing %q, hints %q, %d shelves; want nothing of Gateways", w.gateways.known, h.Missing,
					h.Hints, len(w.gateways.shelves))
			}
			if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=INFO") ||
				!strings.Contains(got, string(absent)) {
				t.Errorf("the log has %q, want one line", got)
			}
		})
	}
}

// TestCRDsThatComeAreServedWithoutARestart has a cluster without the CRDs, then without the
// rights, then with both.
func TestCRDsThatComeAreServedWithoutARestart(t *testing.T) {
	t.Parallel() // it waits until CRDs are looked for again
	c := newCluster(calico.V1)
	c.ready.Store(true)
	w := c.watch(t, Config{Options: input.Options{Gateway: unasked}})
	hints := func(want ...string) func() bool {
		return func() bool { return slices.Equal(w.Health().Hints, want) && len(w.Health().Missing) == 0 }
	}
	gateways := func(want int) func() bool {
		return func() bool { s, err := w.Snapshot(); return err == nil && len(s.API.Gateways) == want }
	}
	until(t, w, "a snapshot without CRDs", gateways(0))
	until(t, w, "no hint without CRDs", hints())
	allow := c.forbid("gatewayclasses")
	c.createGateway(t, "v1", "gateways", aGateway)
	c.serveGateways("v1 gatewayclasses gateways")
	w.askSurvey()
	until(t, w, "the hint without rights", hints(string(barred)))
	if !gateways(0)() || w.Health().Error != "" {
		t.Errorf("without rights: health %+v", w.Health())
	}
	allow()
	w.askSurvey()
	until(t, w, "the Gateway", gateways(1))
	until(t, w, "no hint with rights", hints())
}

// TestWithoutTheRightsNothingIsAskedAgainAndAgain counts the requests for objects of Gateway API: one for
// each survey.
func TestWithoutTheRightsNothingIsAskedAgainAndAgain(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes")
	c.forbid("gatewayclasses")
	w, text, survey := c.surveyed(t, unasked)
	for range 3 {
		survey()
	}
	if got := len(c.dynamic.Actions()); got != 3 {
		t.Errorf("%d requests in 3 surveys: %v", got, c.dynamic.Actions())
	}
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=INFO") {
		t.Errorf("the log has %q, want one line", got)
	}
	if h := w.Health(); !slices.Equal(h.Hints, []string{string(barred)}) || len(h.Missing) > 0 || w.gateways.err != nil {
		t.Errorf("got hints %q, missing %q, error %v", h.Hints, h.Missing, w.gateways.err)
	}
}

// TestARefusalOfAServerThatStartsIsNotBelieved has a server that has not read its roles yet. A snapshot
// without Gateways would close those that were served before.
func TestARefusalOfAServerThatStartsIsNotBelieved(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways")
	allow := c.forbid("gatewayclasses")
	w, text, survey := c.surveyed(t, unasked)
	c.ready.Store(false)
	survey()
	if h := w.Health(); w.gateways.known || len(h.Hints) > 0 || text.Len() > 0 {
		t.Errorf("known %t, hints %q, log %q", w.gateways.known, h.Hints, text)
	}
	allow()
	survey()
	if !w.gateways.known || len(w.gateways.shelves) == 0 {
		t.Error("nothing is read although it may be")
	}
}

// TestWhoAskedForGatewaysLearnsOfEachFault has the clusters of the tests above.
func TestWhoAskedForGatewaysLearnsOfEachFault(t *testing.T) {
	c := newCluster(calico.V1)
	w, text, survey := c.surveyed(t, gatewayOptions)
	survey()
	if h := w.Health(); !slices.Equal(h.Missing, []string{noGateways}) || len(h.Hints) > 0 || text.Len() > 0 {
		t.Errorf("without CRDs: missing %q, hints %q, log %q", h.Missing, h.Hints, text)
	}
	c.forbid("gatewayclasses")
	c.serveGateways("v1 gatewayclasses gateways")
	survey()
	until(t, w, "an error about the rights", func() bool {
		h := w.Health()
		return strings.Contains(h.Error, "may not list and watch gatewayclasses") && len(h.Hints) == 0
	})
}

func TestAKindThatIsGoneIsNoEmptyList(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes")
	c.createGateway(t, "v1", "gateways", aGateway)
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	synced(t, w)
	c.serveGateways("v1 gatewayclasses")
	w.askSurvey()
	until(t, w, "the end of the empty shelf", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.gateways.shelves["httproutes"] == nil
	})
	if s := synced(t, w); len(s.API.Gateways) != 1 {
		t.Error("the Gateway went with its kind")
	}
}

func TestOneKindThatCannotBeReadClosesAllGateways(t *testing.T) {
	t.Parallel() // it waits until a refusal is believed
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways backendtlspolicies")
	c.createGateway(t, "v1", "gateways", aGateway)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "backendtlspolicies"}, "", nil)
	c.dynamic.PrependReactor("list", "backendtlspolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, forbidden
	})
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	until(t, w, "a snapshot without the policies", func() bool { _, err := w.Snapshot(); return err == nil })
	if s := synced(t, w); len(s.API.Gateways) != 0 {
		t.Error("the Gateway is served without its policies")
	}
	want := "BackendTLSPolicies cannot be read: no Gateway is served"
	if missing := w.Health().Missing; !slices.Contains(missing, want) {
		t.Errorf("got %q, want %q", missing, want)
	}
}

func TestASecretOfAGatewayNeedsAGrantInAnotherNamespace(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways referencegrants")
	c.createGateway(t, "v1", "gatewayclasses", `{"kind": "GatewayClass", "metadata": {"name": "sallyport"},
		"spec": {"controllerName": "sallyport.dev/gateway"}}`)
	c.createGateway(t, "v1", "gateways", aGateway)
	c.createGateway(t, "v1", "referencegrants", `{"kind": "ReferenceGrant",
		"metadata": {"name": "shop", "namespace": "certs"}, "spec": {
			"from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop"}],
			"to": [{"group": "", "kind": "Secret", "name": "shared"}]}}`)
	for _, name := range []string{"shop/web", "certs/shared", "bank/stolen"} {
		namespace, short, _ := strings.Cut(name, "/")
		mustCreate(t, c.CoreV1().Secrets(namespace).Create, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: short, Namespace: namespace}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: []byte("x")},
		})
	}
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	var got []string
	for _, one := range synced(t, w).Secrets {
		got = append(got, one.Namespace+"/"+one.Name)
	}
	if want := []string{"certs/shared", "shop/web"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestConfigMapsOfAuthoritiesAreReadIfTheyAreNamed has ConfigMaps that a policy and a Gateway name, one
// in another namespace with a grant, and ConfigMaps that nothing may name.
func TestConfigMapsOfAuthoritiesAreReadIfTheyAreNamed(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways referencegrants backendtlspolicies")
	c.createGateway(t, "v1", "gatewayclasses", `{"kind": "GatewayClass", "metadata": {"name": "sallyport"},
		"spec": {"controllerName": "sallyport.dev/gateway"}}`)
	c.createGateway(t, "v1", "gateways", `{"kind": "Gateway", "metadata": {"name": "web", "namespace": "shop"},
		"spec": {"gatewayClassName": "sallyport", "listeners": [], "tls": {"frontend": {"default": {"validation": {
			"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "shared", "namespace": "certs"}]}},
			"perPort": [{"port": 8443, "tls": {"validation": {"caCertificateRefs": [
				{"group": "", "kind": "ConfigMap", "name": "clients"}, {"group": "", "kind": "Secret", "name": "unnamed"},
				{"group": "", "kind": "ConfigMap", "name": "stolen", "namespace": "bank"}]}}}]}}}}`)
	c.createGateway(t, "v1", "referencegrants", `{"kind": "ReferenceGrant",
		"metadata": {"name": "shop", "namespace": "certs"}, "spec": {
			"from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "shop"}],
			"to": [{"group": "", "kind": "ConfigMap", "name": "shared"}]}}`)
	for _, name := range []string{"certs/shared", "shop/clients", "shop/servers", "shop/unnamed", "bank/stolen"} {
		namespace, short, _ := strings.Cut(name, "/")
		mustCreate(t, c.CoreV1().ConfigMaps(namespace).Create, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: short, Namespace: namespace, Labels: map[string]string{"a": "b"}},
			Data:       map[string]string{"ca.crt": "x", "other": "y"},
		})
	}
	mustCreate(t, c.CoreV1().ConfigMaps("ops").Create, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "keys", Namespace: "ops"}, Data: map[string]string{"maxconn": "1"},
	})
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions, ConfigMap: "ops/keys"}})
	read := func() (all []string) {
		s, err := w.Snapshot()
		if err != nil {
			return nil
		}
		for _, one := range s.ConfigMaps {
			all = append(all, one.Namespace+"/"+one.Name)
			if one.Name != "keys" && (len(one.Data) != 1 || one.Labels != nil) || len(one.Data) == 0 {
				t.Errorf("of %s/%s %v is kept", one.Namespace, one.Name, one)
			}
		}
		return all
	}
	synced(t, w)
	until(t, w, "the ConfigMaps of the Gateway", func() bool {
		return slices.Equal(read(), []string{"certs/shared", "ops/keys", "shop/clients"})
	})
	c.createGateway(t, "v1", "backendtlspolicies", `{"kind": "BackendTLSPolicy",
		"metadata": {"name": "tls", "namespace": "shop"}, "spec": {"targetRefs": [], "validation": {"hostname": "a.test",
			"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "servers"}]}}}`)
	until(t, w, "the ConfigMap of the policy", func() bool {
		return slices.Equal(read(), []string{"certs/shared", "ops/keys", "shop/clients", "shop/servers"})
	})
	changed := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "servers", Namespace: "shop", ResourceVersion: "2"},
		Data:       map[string]string{"ca.crt": strings.Repeat("x", 1<<20)},
	}
	if _, err := c.CoreV1().ConfigMaps("shop").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "a ConfigMap that is too large, without its data", func() bool {
		s, err := w.Snapshot()
		at := slices.IndexFunc(s.ConfigMaps, func(m *corev1.ConfigMap) bool { return m.Name == "servers" })
		return err == nil && at >= 0 && len(s.ConfigMaps[at].Data) == 0 && len(s.ConfigMaps[at].Annotations) == 1
	})
}

// TestAPolicyIsNeverHeldBackForItsAuthorities creates a policy, and reads of its ConfigMap fail.
// Without the policy, its Service would take requests without TLS.
func TestAPolicyIsNeverHeldBackForItsAuthorities(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways backendtlspolicies")
	mustCreate(t, c.CoreV1().ConfigMaps("shop").Create, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "servers", Namespace: "shop"}, Data: map[string]string{"ca.crt": "x"},
	})
	c.PrependReactor("list", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		by := a.(k8stesting.ListAction).GetListRestrictions().Fields.String()
		if strings.HasPrefix(by, "metadata.name=") {
			return true, nil, apierrors.NewInternalError(fmt.Errorf("not now"))
		}
		return false, nil, nil
	})
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	w.followers.mu.Lock()
	w.followers.patience = time.Hour
	w.followers.mu.Unlock()
	synced(t, w)
	c.createGateway(t, "v1", "backendtlspolicies", `{"kind": "BackendTLSPolicy",
		"metadata": {"name": "tls", "namespace": "shop"}, "spec": {"targetRefs": [], "validation": {"hostname": "a.test",
			"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "servers"}]}}}`)
	until(t, w, "the policy", func() bool { s, err := w.Snapshot(); return err == nil && len(s.API.TLSPolicies) == 1 })
}

func TestTheBundleOfGatewayAPIIsRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways")
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{
			"name":        "gatewayclasses.gateway.networking.k8s.io",
			"annotations": map[string]any{bundleVersion: "v1.6.3", bundleChannel: "experimental"},
		},
	}}
	c.create(t, "apiextensions.k8s.io/v1", "customresourcedefinitions", crd)
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	if got := synced(t, w); got.APIBundle != "v1.6.3" || got.APIChannel != "experimental" {
		t.Errorf("got version %q of channel %q", got.APIBundle, got.APIChannel)
	}
}
