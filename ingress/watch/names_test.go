package watch

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/calico"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// namedGateway is Gateway shop/web with two ports, labels and annotations.
const namedGateway = `{"kind": "Gateway", "metadata": {"name": "web", "namespace": "shop", "uid": "g1", "generation": 1},
	"spec": {"gatewayClassName": "sallyport", "infrastructure": {"labels": {"team": "shop"}, "annotations": {"note": "x"}},
		"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}, {"name": "a", "port": 443, "protocol": "HTTPS"},
			{"name": "b", "port": 443, "protocol": "HTTPS", "hostname": "b.example"}]}}`

// addressed returns the status of Gateway shop/web with some addresses.
func addressed(generation int64, addresses ...string) *gateway.Status {
	s := &gateway.Status{
		Kind: "Gateway", Namespace: "shop", Name: "web", UID: "g1", Generation: generation,
		Gateway: &gatewayv1.GatewayStatus{},
	}
	for _, a := range addresses {
		s.Gateway.Addresses = append(s.Gateway.Addresses, gatewayv1.GatewayStatusAddress{Value: a})
	}
	return s
}

// shop returns what is in namespace shop: each Service, and each EndpointSlice with its addresses.
func (c *cluster) shop(t *testing.T) (all []string) {
	t.Helper()
	services, err := c.CoreV1().Services("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.Items {
		all = append(all, s.Name)
	}
	endpoints, err := c.DiscoveryV1().EndpointSlices("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range endpoints.Items {
		text := e.Name
		for _, p := range e.Endpoints {
			text += " " + strings.Join(p.Addresses, " ")
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func namedCluster(t *testing.T, others ...*corev1.Service) (*cluster, *Watcher) {
	t.Helper()
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes")
	c.createGateway(t, "v1", "gateways", namedGateway)
	for _, s := range others {
		mustCreate(t, c.CoreV1().Services("shop").Create, s)
	}
	options := gatewayOptions
	options.Named = true
	w := c.watch(t, Config{Options: input.Options{Gateway: options}})
	synced(t, w)
	return c, w
}

func TestEachGatewayHasAName(t *testing.T) {
	t.Parallel() // it waits between two rounds of writing
	c, w := namedCluster(t)
	comes := func(statuses []*gateway.Status, want ...string) {
		t.Helper()
		w.Publish(Publication{Statuses: statuses, Add: true, Replace: true})
		until(t, w, strings.Join(want, ", "), func() bool { return slices.Equal(c.shop(t), want) })
	}
	comes([]*gateway.Status{addressed(1, "203.0.113.9", "2001:db8::9", "203.0.113.8")},
		"web-sallyport", "web-sallyport-ipv4 203.0.113.8 203.0.113.9", "web-sallyport-ipv6 2001:db8::9")
	s, err := c.CoreV1().Services("shop").Get(t.Context(), "web-sallyport", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{
		"team": "shop", gatewayv1.GatewayNameLabelKey: "web", "app.kubernetes.io/managed-by": "sallyport",
	}
	if !maps.Equal(s.Labels, labels) || s.Annotations["note"] != "x" || s.Spec.ClusterIP != corev1.ClusterIPNone ||
		len(s.Spec.Ports) != 2 || s.Spec.Ports[1].Port != 443 || s.OwnerReferences[0].UID != "g1" {
		t.Errorf("got Service %+v", s)
	}
	slice, err := c.DiscoveryV1().EndpointSlices("shop").Get(t.Context(), "web-sallyport-ipv4", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slice.Labels["kubernetes.io/service-name"] != "web-sallyport" || slice.Labels["team"] != "shop" ||
		slice.OwnerReferences[0].UID != "g1" {
		t.Errorf("got EndpointSlice %+v", slice)
	}
	comes([]*gateway.Status{addressed(1, "203.0.113.7")}, "web-sallyport", "web-sallyport-ipv4 203.0.113.7")
	comes(nil)
}

// A wish about an older version of a Gateway says nothing about the newer one.
func TestAnOlderWishDeletesNoName(t *testing.T) {
	c, w := namedCluster(t)
	n := w.publisher.names
	wish := &Publication{Statuses: []*gateway.Status{addressed(1, "203.0.113.9")}, Replace: true}
	w.Publish(*wish)
	until(t, w, "the Service and its EndpointSlice", func() bool { return len(c.shop(t)) == 2 })
	if services, _, kept := n.wanted(wish); len(services) != 1 || len(kept) != 0 {
		t.Errorf("a present wish: got %d Services, %d kept", len(services), len(kept))
	}
	wish.Statuses[0] = addressed(0, "203.0.113.9")
	services, endpoints, kept := n.wanted(wish)
	if len(services) != 0 || len(endpoints) != 0 || !kept[types.UID("g1")] {
		t.Errorf("an older wish: got %d Services, kept %v", len(services), kept)
	}
	if got := n.services.changes(services, n.controller, kept); len(got) != 0 {
		t.Errorf("an older wish changes %v", got)
	}
}

func TestOnlyTheWriterOfAGroupGivesNames(t *testing.T) {
	c, w := namedCluster(t)
	w.Publish(Publication{Statuses: []*gateway.Status{addressed(1, "203.0.113.9")}, Add: true})
	w.publisher.names.knocks <- struct{}{} // room for this knock proves that the one before was handled
	w.publisher.names.knocks <- struct{}{}
	if got := c.shop(t); len(got) != 0 {
		t.Errorf("a member that is not the writer made %v", got)
	}
}

// A Service that somebody else has made stays as it is, and gets no EndpointSlice.
func TestTheServiceOfSomebodyElseIsNotTaken(t *testing.T) {
	own := map[string]string{managedBy: manager}
	for name, other := range map[string]*corev1.Service{
		"without our label": {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-sallyport"}},
		"of another appliance": {ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-sallyport", Labels: own,
			Annotations: map[string]string{madeFor: "sallyport.dev/other"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, w := namedCluster(t, other)
			w.Publish(Publication{Statuses: []*gateway.Status{addressed(1, "203.0.113.9")}, Replace: true})
			until(t, w, "an Event about it", func() bool {
				return slices.ContainsFunc(c.Actions(), func(a k8stesting.Action) bool {
					if !a.Matches("create", "events") {
						return false
					}
					e := a.(k8stesting.CreateAction).GetObject().(*corev1.Event)
					return e.Reason == "NameNotPublished" && e.InvolvedObject.Name == "web" &&
						strings.Contains(e.Message, "Service web-sallyport exists")
				})
			})
			w.Publish(Publication{Replace: true})
			w.publisher.names.knocks <- struct{}{}
			w.publisher.names.knocks <- struct{}{}
			if got := c.shop(t); !slices.Equal(got, []string{"web-sallyport"}) {
				t.Errorf("got %v", got)
			}
		})
	}
}
