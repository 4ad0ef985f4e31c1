package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress"
	"sallyport/ingress/apiserver"
	"sallyport/ingress/calico"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// A cluster is a small API server.
type cluster struct {
	*fake.Clientset
	dynamic  *dynamicfake.FakeDynamicClient
	gateways atomic.Pointer[map[string][]string] // the resources of Gateway API that it serves, by version
	ready    atomic.Bool                         // /readyz answers that it is ready
}

func newCluster(groups ...string) *cluster {
	kinds := map[schema.GroupVersionResource]string{{
		Group: "apiregistration.k8s.io", Version: "v1",
		Resource: "apiservices",
	}: "APIServiceList"}
	names := map[string]string{
		"blockaffinities": "BlockAffinity", "ipamblocks": "IPAMBlock", "ippools": "IPPool",
		"bgpconfigurations": "BGPConfiguration", "bgppeers": "BGPPeer", "bgpfilters": "BGPFilter",
		"clusterinformations": "ClusterInformation",
	}
	for _, kind := range gatewayKinds {
		for _, version := range []string{"v1", "v1beta1"} {
			kinds[schema.GroupVersionResource{
				Group: gatewayv1.GroupName, Version: version, Resource: kind.resource,
			}] = kind.resource + "List"
		}
	}
	for _, version := range exportsVersions {
		kinds[version.WithResource(exports)] = "ServiceExportList"
	}
	for _, version := range customVersions {
		kinds[version.WithResource(backends)], kinds[version.WithResource(tcps)] = "BackendList", "TCPList"
		kinds[version.WithResource(globals)], kinds[version.WithResource(defaults)] = "GlobalList", "DefaultsList"
		kinds[version.WithResource(frontends)] = "FrontendList"
		kinds[version.WithResource(customRules)] = "ValidationRulesList"
	}
	c := &cluster{Clientset: fake.NewClientset(&networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: "haproxy"},
		Spec:       networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
	})}
	for _, group := range []string{calico.V1, calico.V3} {
		version, _ := schema.ParseGroupVersion(group)
		list := &metav1.APIResourceList{GroupVersion: group}
		for resource, kind := range names {
			kinds[version.WithResource(resource)] = kind + "List"
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: kind})
		}
		if slices.Contains(groups, group) {
			c.Resources = append(c.Resources, list)
		}
	}
	c.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	watchFromTheList(&c.Fake, c.Tracker())
	watchFromTheList(&c.dynamic.Fake, c.dynamic.Tracker())
	return c
}

// A fakeAPI is client-go's fake of an API server.
type fakeAPI struct{ *cluster }

func (f fakeAPI) Ingresses(namespace string) ingressClient {
	return f.NetworkingV1().Ingresses(namespace)
}

func (f fakeAPI) IngressClasses() reader[*networkingv1.IngressClassList] {
	return f.NetworkingV1().IngressClasses()
}

func (f fakeAPI) Services(namespace string) serviceClient {
	return f.CoreV1().Services(namespace)
}

func (f fakeAPI) EndpointSlices(namespace string) sliceClient {
	return f.DiscoveryV1().EndpointSlices(namespace)
}

func (f fakeAPI) API(of schema.GroupVersionResource, namespace string) apiClient {
	return fakeGateways{f.dynamic.Resource(of).Namespace(namespace)}
}

func (f fakeAPI) Nodes() reader[*corev1.NodeList] { return f.CoreV1().Nodes() }

func (f fakeAPI) Namespaces() reader[*corev1.NamespaceList] { return f.CoreV1().Namespaces() }

func (f fakeAPI) ConfigMaps(namespace string) reader[*corev1.ConfigMapList] {
	return f.CoreV1().ConfigMaps(namespace)
}

func (f fakeAPI) Secrets(namespace string) reader[*corev1.SecretList] {
	return f.CoreV1().Secrets(namespace)
}

// namesOnly marks a request for the names of Secrets or ConfigMaps, which a fake cannot tell from one
// for the objects. It matches all.
const namesOnly = "type!="

func (f fakeAPI) Names(resource, namespace string) reader[*metav1.PartialObjectMetadataList] {
	if resource == "configmaps" {
		return fakeNames[*corev1.ConfigMapList]{f.CoreV1().ConfigMaps(namespace)}
	}
	return fakeNames[*corev1.SecretList]{f.CoreV1().Secrets(namespace)}
}

// fakeNames removes from objects all but their names and versions.
type fakeNames[L runtime.Object] struct{ from reader[L] }

func (n fakeNames[L]) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	o.FieldSelector = namesOnly
	list, err := n.from.List(ctx, o)
	if err != nil {
		return nil, err
	}
	version := any(list).(metav1.ListInterface).GetResourceVersion()
	names := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{
		ResourceVersion: version, Continue: any(list).(metav1.ListInterface).GetContinue(),
	}}
	return names, meta.EachListItem(list, func(o runtime.Object) error {
		name := nameOf(o.(metav1.Object))
		name.ResourceVersion = version
		names.Items = append(names.Items, *name)
		return nil
	})
}

func nameOf(o metav1.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), ResourceVersion: o.GetResourceVersion(),
	}}
}

func (n fakeNames[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = namesOnly
	w, err := n.from.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if one, ok := e.Object.(metav1.Object); ok {
			e.Object = nameOf(one)
		}
		return e, true
	}), nil
}

func (f fakeAPI) CreateEvent(ctx context.Context, e *corev1.Event) error {
	_, err := f.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}

func (f fakeAPI) CreateToken(ctx context.Context, namespace, account string,
	request *authenticationv1.TokenRequest,
) (*authenticationv1.TokenRequest, error) {
	return f.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
}

func (f fakeAPI) Document(_ context.Context, path string) ([]byte, error) {
	if version, is := strings.CutPrefix(path, "/apis/"+gatewayv1.GroupName+"/"); is {
		return f.gatewayDocument(version)
	}
	if path == "/readyz" && f.ready.Load() {
		return []byte("ok"), nil
	}
	list, err := f.Discovery().ServerResourcesForGroupVersion(strings.TrimPrefix(path, "/apis/"))
	if err != nil {
		return nil, err
	}
	return json.Marshal(list)
}

// watchFromTheList makes a watch report every change since the list before it, as an
// API server does. The fake by itself loses deletions between the two.
func watchFromTheList(fake *k8stesting.Fake, tracker k8stesting.ObjectTracker) {
	type key struct {
		resource                  schema.GroupVersionResource
		namespace, fields, labels string
	}
	begun := map[key]watch.Interface{} // by the list before; fake calls one reactor at a time
	fake.PrependReactor("list", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		by := a.(k8stesting.ListAction).GetListRestrictions()
		of := key{a.GetResource(), a.GetNamespace(), by.Fields.String(), by.Labels.String()}
		if old := begun[of]; old != nil {
			old.Stop()
		}
		w, err := tracker.Watch(a.GetResource(), a.GetNamespace())
		begun[of] = w
		return err != nil, nil, err
	})
	fake.PrependWatchReactor("*", func(a k8stesting.Action) (bool, watch.Interface, error) {
		by := a.(k8stesting.WatchAction).GetWatchRestrictions()
		of := key{a.GetResource(), a.GetNamespace(), by.Fields.String(), by.Labels.String()}
		w := begun[of]
		delete(begun, of)
		return w != nil, w, nil
	})
}

func resource(group, name string) schema.GroupVersionResource {
	version, _ := schema.ParseGroupVersion(group)
	return version.WithResource(name)
}

func affinity(group, name, node, cidr string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group, "kind": "BlockAffinity", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"cidr": cidr, "node": node, "state": "confirmed", "deleted": "false"},
	}}
}

// create creates an object of Calico.
func (c *cluster) create(t *testing.T, group, plural string, u *unstructured.Unstructured) {
	t.Helper()
	if _, err := c.dynamic.Resource(resource(group, plural)).Create(t.Context(), u,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// watch runs a Watcher until the test ends.
func (c *cluster) watch(t *testing.T, cfg Config) *Watcher {
	t.Helper()
	cfg.Name = "c"
	cfg.Log = slog.New(slog.DiscardHandler)
	w := newWatcher(cfg, fakeAPI{c}, c.dynamic, apiserver.Server{Host: "192.168.50.22", Port: 6443})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		w.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return w
}

// until waits until a condition holds. It checks at every knock, and now and then.
func until(t *testing.T, w *Watcher, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-w.Changed():
		case <-look.C:
		case <-deadline:
			_, err := w.Snapshot()
			t.Fatalf("%s never came; snapshot: %v; health: %+v", what, err, w.Health())
		}
	}
}

func synced(t *testing.T, w *Watcher) input.Snapshot {
	t.Helper()
	until(t, w, "the first snapshot", func() bool { _, err := w.Snapshot(); return err == nil })
	s, err := w.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testIngress(name string) *networkingv1.Ingress {
	class := "haproxy"
	return &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: "uid-" + "x",
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: networkingv1.IngressSpec{IngressClassName: &class},
	}
}

func TestASnapshotHoldsTheWholeCluster(t *testing.T) {
	c := newCluster(calico.V1)
	ctx := t.Context()
	c.create(t, calico.V1, "blockaffinities", affinity(calico.V1, "a", "n1", "172.16.171.64/26"))
	mustCreate(t, c.CoreV1().Nodes().Create, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "n1",
			Annotations: map[string]string{"projectcalico.org/IPv4Address": "192.168.50.23/24", "other": "x"},
		},
		Status: corev1.NodeStatus{
			Images: []corev1.ContainerImage{{Names: []string{"big"}}},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				LastHeartbeatTime: metav1.Now(),
			}},
		},
	})
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, testIngress("b"))
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, testIngress("a"))
	mustCreate(t, c.DiscoveryV1().EndpointSlices("default").Create, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "kubernetes", Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.9.9"}}},
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8443))}},
	})
	w := c.watch(t, Config{Bounds: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}})
	s := synced(t, w)

	if len(s.Ingresses) != 2 || s.Ingresses[0].Name != "a" || s.Ingresses[0].ManagedFields != nil {
		t.Errorf("want the Ingresses in order and stripped, got %v", s.Ingresses)
	}
	topology := s.Topology
	if len(topology.Affinities) != 1 || len(topology.Nodes) != 1 || len(topology.Nodes[0].BGP) != 1 ||
		len(topology.Bounds) != 1 {
		t.Errorf("got topology %+v", topology)
	}
	const servers = "[192.168.50.22:6443] [10.9.9.9:6443 10.9.9.9:8443]"
	if got := fmt.Sprint(topology.Protected, topology.Endpoints); got != servers {
		t.Errorf("want the API server's sockets %s, got %s", servers, got)
	}
	if h := w.Health(); !h.Connected || !h.Synced || h.APIGroup != calico.V1 || h.Error != "" || len(h.Missing) > 0 {
		t.Errorf("got health %+v", h)
	}

	// A heartbeat changes nothing.
	node, err := c.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.ResourceVersion, node.Status.Conditions[0].LastHeartbeatTime = "77", metav1.Unix(5, 0)
	if _, err := c.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, testIngress("c"))
	until(t, w, "the third Ingress", func() bool { s, _ := w.Snapshot(); return len(s.Ingresses) == 3 })
	if err := c.NetworkingV1().Ingresses("default").Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "the end of b", func() bool { s, _ := w.Snapshot(); return len(s.Ingresses) == 2 })
	if len(s.Ingresses) != 2 || s.Ingresses[1].Name != "b" {
		t.Error("a snapshot changed after it was handed out")
	}
}

func mustCreate[T any](t *testing.T, create func(context.Context, *T, metav1.CreateOptions) (*T, error), o *T) {
	t.Helper()
	if _, err := create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTheGroupThatCountsIsRead(t *testing.T) {
	info := func(group string, ready bool) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group, "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"},
			"spec": map[string]any{"datastoreReady": ready},
		}}
	}
	c := newCluster(calico.V1, calico.V3)
	c.create(t, "apiregistration.k8s.io/v1", "apiservices", &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{
			"name":   v3APIService,
			"labels": map[string]any{"kube-aggregator.kubernetes.io/automanaged": "true"},
		},
	}})
	c.create(t, calico.V1, "clusterinformations", info(calico.V1, true))
	c.create(t, calico.V3, "clusterinformations", info(calico.V3, false))
	c.create(t, calico.V1, "blockaffinities", affinity(calico.V1, "old", "n1", "172.16.171.64/26"))
	c.create(t, calico.V3, "blockaffinities", affinity(calico.V3, "new", "n1", "172.16.171.128/26"))
	w := c.watch(t, Config{})
	if got := synced(t, w).Topology.Affinities; len(got) != 1 || got[0].Name != "old" {
		t.Fatalf("want those of v1, got %v", got)
	}

	// While the datastores change nothing is removed.
	change := func(group string, ready bool) {
		t.Helper()
		if _, err := c.dynamic.Resource(resource(group, "clusterinformations")).Update(t.Context(), info(group, ready),
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.askSurvey()
	}
	change(calico.V1, false)
	until(t, w, "the sentence about the migration", func() bool {
		return strings.Contains(w.Health().Error, calico.ErrFrozen.Error())
	})
	if got := synced(t, w).Topology.Affinities; len(got) != 1 || got[0].Name != "old" {
		t.Errorf("want those of v1 to stay, got %v", got)
	}
	change(calico.V3, true)
	until(t, w, "the change to v3", func() bool {
		_, err := w.Snapshot()
		return err == nil && w.Health().APIGroup == calico.V3
	})
	if got := synced(t, w).Topology.Affinities; len(got) != 1 || got[0].Name != "new" {
		t.Errorf("want those of v3, got %v", got)
	}
	if h := w.Health(); h.Error != "" {
		t.Errorf("got health %+v", h)
	}
}

func TestGroupsThatVanishLeaveTheLastKnownObjects(t *testing.T) {
	c := newCluster(calico.V1)
	c.create(t, calico.V1, "blockaffinities", affinity(calico.V1, "a", "n1", "172.16.171.64/26"))
	w := c.watch(t, Config{})
	synced(t, w)
	c.Fake.Lock()
	c.Resources = nil
	c.Fake.Unlock()
	w.askSurvey()
	until(t, w, "the sentence about Calico", func() bool {
		return strings.Contains(w.Health().Error, "none of Calico's objects")
	})
	if s := synced(t, w); len(s.Topology.Affinities) != 1 || s.Topology.HostLocal {
		t.Errorf("want the block to stay, got %+v", s.Topology)
	}
}

func TestACRDThatIsDeletedDoesNotTakeTheBlocksAlong(t *testing.T) {
	t.Parallel() // it waits until a deletion is believed
	c := newCluster(calico.V1)
	blocks := c.dynamic.Resource(resource(calico.V1, "blockaffinities"))
	for name, cidr := range map[string]string{
		"a": "172.16.171.64/26", "b": "172.16.171.128/26",
		"c": "172.16.171.192/26",
	} {
		c.create(t, calico.V1, "blockaffinities", affinity(calico.V1, name, "n1", cidr))
	}
	w := c.watch(t, Config{})
	synced(t, w)
	has := func(n int) func() bool {
		return func() bool { s, err := w.Snapshot(); return err == nil && len(s.Topology.Affinities) == n }
	}
	// A deletion counts once a new list confirms it.
	if err := blocks.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "the end of a", has(2))

	// Without its CRD the resource is not found.
	var lists atomic.Int32
	c.dynamic.PrependReactor("list", "blockaffinities", func(k8stesting.Action) (bool, runtime.Object, error) {
		lists.Add(1)
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "blockaffinities"}, "")
	})
	for _, name := range []string{"b", "c"} {
		if err := blocks.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, w, "the third list", func() bool { return lists.Load() >= 3 })
	if !has(2)() {
		t.Error("want the blocks to stay")
	}
	until(t, w, "the sentence", func() bool {
		return strings.Contains(w.Health().Error, "no resource blockaffinities")
	})
}

func TestOneRefusedResourceDoesNotStopTheRest(t *testing.T) {
	t.Parallel() // it waits until a refusal is believed
	c := newCluster(calico.V1)
	forbid := func(action k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: action.GetResource().Resource}, "",
			errors.New("no"))
	}
	c.PrependReactor("list", "secrets", forbid)
	c.dynamic.PrependReactor("list", "ipamblocks", forbid)
	w := c.watch(t, Config{})
	s := synced(t, w)
	if !s.NoSecrets {
		t.Error("the snapshot does not say that Secrets cannot be read")
	}
	h := w.Health()
	for _, want := range []string{
		`verbs list, watch; API group ""; resource secrets`,
		`API group "crd.projectcalico.org"; resource ipamblocks`,
	} {
		if !strings.Contains(h.Error, want) {
			t.Errorf("want %q in %q", want, h.Error)
		}
	}
	if len(h.Missing) != 2 {
		t.Errorf("want two things missing, got %q", h.Missing)
	}
}

func TestARefusedListIsNotAnEmptyOne(t *testing.T) {
	c := newCluster(calico.V1)
	c.PrependReactor("list", "ingresses", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "ingresses"}, "", errors.New("no"))
	})
	w := c.watch(t, Config{})
	until(t, w, "everything but the Ingresses", func() bool {
		_, err := w.Snapshot()
		return err != nil && strings.Contains(err.Error(), "waiting for ingresses.networking.k8s.io: ")
	})
	if _, err := w.Snapshot(); err == nil {
		t.Error("want an error")
	}
}

func TestServedIngressesAreToldSo(t *testing.T) {
	c := newCluster(calico.V1)
	served, ours, theirs := testIngress("served"), testIngress("ours"), testIngress("theirs")
	served.UID, ours.UID, theirs.UID = "1", "2", "3"
	ours.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{
		{IP: "192.168.50.21"},
		{Hostname: "lb.test"},
	}
	theirs.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "10.0.0.1"}}
	for _, i := range []*networkingv1.Ingress{served, ours, theirs} {
		mustCreate(t, c.NetworkingV1().Ingresses("default").Create, i)
	}
	w := c.watch(t, Config{Publish: []string{"192.168.50.21", "lb.test"}})
	synced(t, w)
	ref := ingress.ObjectRef{Cluster: "c", Kind: "Ingress", Namespace: "default", Name: "served", UID: "1"}
	problem := ingress.Problem{ObjectRef: ref, Reason: "PathConflict", Why: "somebody else has it"}
	for range 3 {
		w.Publish(Publication{
			Served: []ingress.ObjectRef{ref}, Problems: []ingress.Problem{problem}, Add: true,
			Replace: true,
		})
	}
	status := func(name string) string {
		i, err := c.NetworkingV1().Ingresses("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, a := range i.Status.LoadBalancer.Ingress {
			all = append(all, a.IP+a.Hostname)
		}
		return strings.Join(all, " ")
	}
	until(t, w, "the status", func() bool {
		return status("served") == "192.168.50.21 lb.test" && status("ours") == "" && status("theirs") == "10.0.0.1"
	})
	events := func() []corev1.Event {
		l, err := c.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Items
	}
	until(t, w, "the Event", func() bool { return len(events()) == 1 })
	if e := events()[0]; e.Reason != "PathConflict" || e.InvolvedObject.UID != "1" ||
		e.InvolvedObject.Kind != "Ingress" || e.Type != "Warning" {
		t.Errorf("got %+v", e)
	}
}

func TestEveryResourceIsAllowedByTheRules(t *testing.T) {
	for _, options := range []input.Options{
		{},
		{NamespaceSelector: "team=web", ConfigMap: "ops/keys"},
		{Namespaces: []string{"default", "web"}, ConfigMap: "ops/keys"},
		{Pools: documentation},
	} {
		resourcesAreAllowed(t, options)
	}
}

func resourcesAreAllowed(t *testing.T, options input.Options) {
	t.Helper()
	rules := RulesFor(options)
	allowed := func(group, resource, verb, namespace string) bool {
		return slices.ContainsFunc(rules, func(r Rule) bool {
			return (len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
				slices.Contains(r.Groups, group) && slices.Contains(r.Resources, resource) &&
				slices.Contains(r.Verbs, verb)
		})
	}
	c := newCluster(calico.V1)
	w := c.watch(t, Config{Publish: []string{"192.168.50.21"}, Options: options})
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, testIngress("i"))
	service := balancerOf("default/db", nil)
	service.UID = "uid-s"
	if len(options.Pools.Ranges) > 0 {
		mustCreate(t, c.CoreV1().Services("default").Create, service)
	}
	synced(t, w)
	ref := ingress.ObjectRef{Cluster: "c", Kind: "Ingress", Namespace: "default", Name: "i", UID: "uid-x"}
	w.Publish(Publication{
		Served: []ingress.ObjectRef{ref},
		Balancers: []ingress.Balancer{
			{ObjectRef: ingress.ObjectRef{
				Cluster: "c", Kind: "Service", Namespace: "default", Name: "db",
				UID: "uid-s",
			}, Addresses: addrsOf("203.0.113.5")},
		},
		Problems: []ingress.Problem{{ObjectRef: ref, Reason: "R", Why: "w"}}, Add: true, Replace: true,
	})
	until(t, w, "the Event", func() bool {
		return slices.ContainsFunc(c.Actions(), func(a k8stesting.Action) bool {
			return a.GetResource().Resource == "events"
		})
	})
	for _, a := range append(c.Actions(), c.dynamic.Actions()...) {
		name := a.GetResource().Resource
		if a.GetSubresource() != "" {
			name += "/" + a.GetSubresource()
		}
		if a.GetVerb() == "create" && (name == "ingresses" || name == "services") || name == "resource" ||
			name == "group" {
			continue // of this test, and discovery
		}
		if !allowed(a.GetResource().Group, name, a.GetVerb(), a.GetNamespace()) {
			t.Errorf("%s %s of group %q in namespace %q is done and not in the rules", a.GetVerb(), name,
				a.GetResource().Group, a.GetNamespace())
		}
	}
}

func TestNamespacesAreWatchedForTheirLabels(t *testing.T) {
	c := newCluster(calico.V1)
	w := c.watch(t, Config{Options: input.Options{Class: "haproxy", NamespaceSelector: "team=web"}})
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, testIngress("i"))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   "default",
		Labels: map[string]string{"team": "web"}, Annotations: map[string]string{"a": "b"},
	}}
	mustCreate(t, c.CoreV1().Namespaces().Create, namespace)
	served := func() bool {
		s, err := w.Snapshot()
		if err != nil {
			return false
		}
		for _, n := range s.Namespaces {
			if len(n.Annotations) > 0 {
				t.Error("more than the labels is kept")
			}
		}
		_, ours := ingress.Compile([]input.Snapshot{s}).Explain("c", "default", "i")
		return ours
	}
	until(t, w, "the Ingress of a namespace with the label", served)
	namespace = namespace.DeepCopy()
	namespace.Labels = nil
	if _, err := c.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, w, "it gone with the label", func() bool { return !served() })
}

func TestAClusterWithoutCalicoIsSaidOnce(t *testing.T) {
	t.Parallel() // it waits until an absence is believed
	w := newCluster().watch(t, Config{})
	synced(t, w)
	h := w.Health()
	said := append([]string{h.Error}, h.Missing...)
	n := 0
	for _, s := range said {
		if strings.Contains(s, "none of Calico's objects") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("it is said %d times, want once: %q", n, said)
	}
}

// No word of Go's net package reaches a sentence that a paged engineer reads.
func TestSilenceOfTheAPIServerIsToldInWords(t *testing.T) {
	w := &Watcher{server: apiserver.Server{Host: "192.168.50.22", Port: 6443}}
	asked := func(err error) error {
		return &url.Error{Op: "Get", URL: "https://192.168.50.22:6443/apis?x=1", Err: err}
	}
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"packets are dropped": {
			asked(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}),
			"the API server (192.168.50.22) cannot be reached: no answer to a new connection; look whether it runs, " +
				"and whether a firewall drops port 6443",
		},
		"nobody listens": {
			asked(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}),
			"the API server (192.168.50.22) cannot be reached: connection refused; look whether it runs, and whether " +
				"a firewall drops port 6443",
		},
		"it takes the question, no more": {
			asked(context.DeadlineExceeded),
			"the API server (192.168.50.22) does not answer: nothing came within 10s; look whether it runs, and " +
				"whether a firewall drops port 6443",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.undecided("ClusterInformation default", row.err).Error(); got != row.want {
				t.Errorf("the search for Calico's objects: got %q, want %q", got, row.want)
			}
			if got, want := w.server.Sentence("", "pods", row.err),
				row.want+"; the last known objects stay"; got != want {
				t.Errorf("a list: got %q, want %q", got, want)
			}
			if why := apiserver.Root(row.err); !errors.Is(why, syscall.ECONNREFUSED) && !os.IsTimeout(why) {
				t.Errorf("%v does not count as a timeout", why)
			}
		})
	}
}

func TestEveryKindOfObjectsIsWatchedAndAllowed(t *testing.T) {
	options := input.Options{ConfigMap: "ops/defaults", NamespaceSelector: "team=web"}
	options.Gateway.Enabled, options.InSet.Name, options.CustomResources = true, "both", true
	w := newWatcher(Config{Options: options}, new(clients), nil, apiserver.Server{})
	w.watched = append(w.watched, w.shelfOfExports(exportsVersions[0]), w.shelfOfBackends(customVersions[0]),
		w.shelfOfTCPs(customVersions[0]), w.shelfOfGlobals(customVersions[0]), w.shelfOfDefaults(customVersions[0]),
		w.shelfOfFrontends(customVersions[0]), w.shelfOfRules(customVersions[0]))
	for _, kind := range gatewayKinds {
		shelf := kind.open(w, schema.GroupVersion(gatewayv1.GroupVersion))
		w.watched = append(w.watched, shelf)
	}
	rules := RulesFor(options)
	watched := map[string]bool{}
	for _, s := range w.shelves() {
		group, resource := s.of()
		watched[resource] = true
		if !slices.ContainsFunc(rules, func(r Rule) bool {
			return slices.Contains(r.Groups, group) && slices.Contains(r.Resources, resource) &&
				slices.Contains(r.Verbs, "watch")
		}) {
			t.Errorf("%s is watched, and no rule allows it", s.name())
		}
	}
	want := reflect.TypeFor[input.Objects]().NumField() - 1 + reflect.TypeFor[gateway.Objects]().NumField() + 1
	if got := len(watched); got != want {
		t.Errorf("%d resources are watched, want %d: those of Objects, and nodes", got, want)
	}
}
