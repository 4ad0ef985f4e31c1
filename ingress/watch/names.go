package watch

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress"
	"sallyport/ingress/apiserver"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// Names of Gateways
//
// With GatewayOptions.Named, each Gateway with an address has a headless Service, and an EndpointSlice
// for each family of its addresses. Pods then reach the Gateway by the name of the Service. Both have
// the labels and annotations of spec.infrastructure. The Gateway owns them, so Kubernetes deletes them
// with it. One member of a group writes (Publication.Replace).

const (
	// NameSuffix ends the name of the Service of a Gateway. `sallyport manifests` prints a policy that
	// lets the appliance write no other Service.
	NameSuffix = "-sallyport"
	// managedBy is the label of all that the appliance creates, with the value manager.
	managedBy, manager = "app.kubernetes.io/managed-by", "sallyport"
	// madeFor is an annotation with the controller of the Gateway's class. Each appliance changes
	// only objects with its own.
	madeFor = "sallyport.dev/gateway-controller"
	// namesPerSecond bounds the writes.
	namesPerSecond = 10
)

// names keep the Services of Gateways. One goroutine owns them.
type names struct {
	*publisher
	knocks   chan struct{}
	services made[*corev1.Service]
	slices   made[*discoveryv1.EndpointSlice]
	budget   *rate.Limiter
	tried    map[string]time.Time // when an object was last written
	told     map[string]string    // why an object cannot be written
	last     string               // namespace that had its turn last
}

// A made keeps the objects of one kind.
type made[T object] struct {
	kind  string
	shelf *shelf[T] // those with the label managedBy
	in    func(namespace string) writer[T]
	// same reports whether an object has the content that another one wants.
	same func(is, wants T) bool
	// give gives an object that content.
	give func(is, wants T)
}

// newNames returns the names of the Gateways of a cluster, or nil if the options do not ask for them.
func newNames(w *Watcher) *names {
	if !w.cfg.Options.Gateway.Named {
		return nil
	}
	n := &names{
		publisher: w.publisher, knocks: make(chan struct{}, 1), tried: make(map[string]time.Time),
		told:   make(map[string]string),
		budget: rate.NewLimiter(namesPerSecond, 2*namesPerSecond),
	}
	n.services = made[*corev1.Service]{
		kind: "Service", in: func(namespace string) writer[*corev1.Service] { return w.kube.Services(namespace) },
		shelf: shelfOfMade[*corev1.Service](w, n, corev1.GroupName, "services", "Service",
			func(namespace string) reader[*corev1.ServiceList] { return w.kube.Services(namespace) }),
		same: func(is, wants *corev1.Service) bool {
			return is.Spec.ClusterIP == wants.Spec.ClusterIP && len(is.Spec.Selector) == 0 &&
				slices.Equal(is.Spec.Ports, wants.Spec.Ports)
		},
		give: func(is, wants *corev1.Service) { is.Spec.Selector, is.Spec.Ports = nil, wants.Spec.Ports },
	}
	n.slices = made[*discoveryv1.EndpointSlice]{
		kind: "EndpointSlice",
		in: func(namespace string) writer[*discoveryv1.EndpointSlice] {
			return w.kube.EndpointSlices(namespace)
		},
		shelf: shelfOfMade[*discoveryv1.EndpointSlice](w, n, discoveryv1.GroupName, "endpointslices", "EndpointSlice",
			func(namespace string) reader[*discoveryv1.EndpointSliceList] { return w.kube.EndpointSlices(namespace) }),
		same: func(is, wants *discoveryv1.EndpointSlice) bool {
			return equality.Semantic.DeepEqual(is.Endpoints, wants.Endpoints) &&
				equality.Semantic.DeepEqual(is.Ports, wants.Ports)
		},
		give: func(is, wants *discoveryv1.EndpointSlice) { is.Endpoints, is.Ports = wants.Endpoints, wants.Ports },
	}
	return n
}

// shelfOfMade returns a shelf for the objects of one kind that have the label managedBy. A namespace may
// have others with that label, so they have a bound as all objects.
func shelfOfMade[T object, L runtime.Object](
	w *Watcher, n *names, group, resource, kind string, from func(namespace string) reader[L],
) *shelf[T] {
	s := newShare(w, group, resource, input.ByName[T],
		newAllowance("objectBytes", kind, w.objectBytes(), func(T) bool { return true }),
		func(namespace string) reader[L] { return labelled[L]{from(namespace), managedBy + "=" + manager} })
	s.strip, s.knock = func(o T) { o.SetManagedFields(nil) }, func() { knock(n.knocks) }
	return s
}

// labelled reads the objects that a selector of labels matches.
type labelled[L runtime.Object] struct {
	from     reader[L]
	selector string
}

func (l labelled[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	o.LabelSelector = l.selector
	return l.from.List(ctx, o)
}

func (l labelled[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.LabelSelector = l.selector
	return l.from.Watch(ctx, o)
}

// run keeps the Services of Gateways until ctx ends.
func (n *names) run(ctx context.Context, wg *sync.WaitGroup) {
	n.services.shelf.start(ctx, wg)
	n.slices.shelf.start(ctx, wg)
	n.each(ctx, n.knocks, republish, func(wish *Publication) {
		if wish.Replace {
			n.write(ctx, wish)
		}
	})
}

// A change writes one object.
type change struct {
	kind, verb      string
	namespace, name string
	of              metav1.OwnerReference // the Gateway
	do              func(context.Context) error
}

func (c change) String() string { return c.kind + " " + c.namespace + "/" + c.name }

// write creates, changes and deletes what is not as wished. Namespaces take turns.
func (n *names) write(ctx context.Context, wish *Publication) {
	for _, s := range []anyShelf{n.services.shelf, n.slices.shelf} {
		if full, _ := s.state(); !full {
			return
		}
	}
	services, endpoints, kept := n.wanted(wish)
	changes := slices.Concat(
		n.services.changes(services, n.controller, kept), n.slices.changes(endpoints, n.controller, kept))
	now := time.Now()
	maps.DeleteFunc(n.tried, func(_ string, at time.Time) bool { return now.Sub(at) >= republish })
	due := make(map[string]bool, len(changes))
	for _, c := range changes {
		due[c.String()] = true
	}
	maps.DeleteFunc(n.told, func(of, _ string) bool { return !due[of] })
	for _, c := range inTurns(changes, n.last, func(c change) string { return c.namespace }) {
		if _, rests := n.tried[c.String()]; rests {
			continue
		}
		if n.budget.Wait(ctx) != nil {
			return
		}
		n.last, n.tried[c.String()] = c.namespace, time.Now()
		call, cancel := context.WithTimeout(ctx, apiserver.Patience)
		err := c.do(call)
		cancel()
		n.note(ctx, c, err)
		if err != nil && !apiserver.IsAnswer(err) || n.old(wish) {
			return // the API server is away, or another wish has its turn
		}
	}
}

// note logs a write. A refusal of an object becomes an Event of its Gateway.
func (n *names) note(ctx context.Context, c change, err error) {
	log := n.log.With("kind", c.kind, "namespace", c.namespace, "name", c.name, "verb", c.verb)
	n.refuse(c.kind+" "+c.verb, fmt.Sprintf("the appliance may not %s the %s of a Gateway (clusters[].gateway.named): "+
		"apply what `sallyport manifests` prints", c.verb, c.kind), err)
	why := ""
	switch {
	case err == nil:
		log.Info("the name of a Gateway was published")
	case apierrors.IsAlreadyExists(err):
		why = fmt.Sprintf("the Gateway has no name in the cluster: %s %s exists, and the appliance did not create it: "+
			"delete it, or give the Gateway another name", c.kind, c.name)
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		why = fmt.Sprintf("the Gateway has no name in the cluster: %v", err)
	default: // the object has changed, and its new version arrives at any moment
		log.Debug("the name of a Gateway was not published", "err", err)
	}
	if why == "" || n.told[c.String()] == why {
		return
	}
	n.told[c.String()] = why
	call, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	problem := ingress.Problem{
		ObjectRef: ingress.ObjectRef{Kind: c.of.Kind, Namespace: c.namespace, Name: c.of.Name, UID: string(c.of.UID)},
		Reason:    "NameNotPublished", Why: why,
	}
	if err := n.kube.CreateEvent(call, event(problem, time.Now())); err != nil && !apierrors.IsAlreadyExists(err) {
		log.Warn("a Gateway has no name in the cluster", "why", why, "err", err)
	}
}

// wanted returns the objects that are wanted. EndpointSlices are wanted only for a Service that the
// appliance has made: those for another Service would lead its clients to the Gateway. kept are the UIDs
// of Gateways about which the wish is too old. Their objects stay as they are for now.
func (n *names) wanted(
	wish *Publication,
) (services []*corev1.Service, endpoints []*discoveryv1.EndpointSlice, kept map[types.UID]bool) {
	wishes, kept := make(map[types.UID]*gateway.Status, len(wish.Statuses)), make(map[types.UID]bool)
	for _, of := range wish.Statuses {
		wishes[types.UID(of.UID)] = of
	}
	for _, o := range n.objects("gateways") {
		g, is := o.(*gatewayv1.Gateway)
		of := wishes[o.GetUID()]
		if !is || of == nil || of.Gateway == nil || len(of.Gateway.Addresses) == 0 {
			continue
		}
		if of.Generation < g.Generation {
			kept[g.UID] = true
			continue
		}
		s := &corev1.Service{ObjectMeta: n.meta(g, g.Name+NameSuffix, nil)}
		s.Spec.ClusterIP = corev1.ClusterIPNone
		var ports []discoveryv1.EndpointPort
		for _, port := range portsOf(g) {
			name, tcp := fmt.Sprintf("port-%d", port), corev1.ProtocolTCP
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
				Name: name, Protocol: tcp, Port: port, TargetPort: intstr.FromInt32(port),
			})
			ports = append(ports, discoveryv1.EndpointPort{Name: &name, Protocol: &tcp, Port: &port})
		}
		services = append(services, s)
		if made, has := n.services.shelf.newestOf(input.KeyOf(s)); !has || made.Annotations[madeFor] != n.controller {
			continue
		}
		for family, addresses := range byFamily(of.Gateway.Addresses) {
			if len(addresses) == 0 {
				continue
			}
			e := &discoveryv1.EndpointSlice{
				ObjectMeta: n.meta(g, s.Name+families[family].suffix, map[string]string{
					discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: manager,
				}),
				AddressType: families[family].of,
				Ports:       ports,
			}
			for _, a := range addresses {
				ready := true
				e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{a.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				})
			}
			endpoints = append(endpoints, e)
		}
	}
	return services, endpoints, kept
}

// meta returns the metadata of an object of a Gateway. The labels more, and those of the appliance,
// override those that the Gateway asks for.
func (n *names) meta(g *gatewayv1.Gateway, name string, more map[string]string) metav1.ObjectMeta {
	labels, annotations := make(map[string]string), make(map[string]string)
	if in := g.Spec.Infrastructure; in != nil {
		for key, value := range in.Labels {
			labels[string(key)] = string(value)
		}
		for key, value := range in.Annotations {
			annotations[string(key)] = string(value)
		}
	}
	maps.Copy(labels, more)
	labels[gatewayv1.GatewayNameLabelKey], labels[managedBy] = g.Name, manager
	annotations[madeFor] = n.controller
	return metav1.ObjectMeta{
		Namespace: g.Namespace, Name: name, Labels: labels, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: gatewayv1.GroupVersion.String(), Kind: "Gateway", Name: g.Name, UID: g.UID,
		}},
	}
}

// portsOf returns the ports of the listeners of a Gateway, each once.
func portsOf(g *gatewayv1.Gateway) (ports []int32) {
	for _, l := range g.Spec.Listeners {
		ports = append(ports, l.Port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// families has what an EndpointSlice of each family of addresses has.
var families = [2]struct {
	suffix string // of its name
	of     discoveryv1.AddressType
}{{"-ipv4", discoveryv1.AddressTypeIPv4}, {"-ipv6", discoveryv1.AddressTypeIPv6}}

// byFamily returns the IPv4 addresses and the IPv6 addresses of a status, in order.
func byFamily(all []gatewayv1.GatewayStatusAddress) (by [2][]netip.Addr) {
	for _, one := range all {
		a, err := netip.ParseAddr(one.Value)
		switch {
		case err != nil: // a host name
		case a.Is4():
			by[0] = append(by[0], a)
		default:
			by[1] = append(by[1], a)
		}
	}
	for _, one := range by {
		slices.SortFunc(one, netip.Addr.Compare)
	}
	return by
}

// changes returns what makes the objects of a kind as wished. It changes only objects that the appliance
// has made for the controller.
func (m *made[T]) changes(wanted []T, controller string, kept map[types.UID]bool) (all []change) {
	add := func(o T, verb string, do func(context.Context) error) {
		c := change{kind: m.kind, verb: verb, namespace: o.GetNamespace(), name: o.GetName(), do: do}
		if owners := o.GetOwnerReferences(); len(owners) == 1 {
			c.of = owners[0]
		}
		all = append(all, c)
	}
	has := make(map[types.NamespacedName]T)
	for _, o := range m.shelf.newest() {
		if o.GetAnnotations()[madeFor] == controller {
			has[input.KeyOf(o)] = o
		}
	}
	for _, wants := range wanted {
		is, exists := has[input.KeyOf(wants)]
		delete(has, input.KeyOf(wants))
		to := m.in(wants.GetNamespace())
		switch {
		case !exists:
			add(wants, "create", func(ctx context.Context) error {
				_, err := to.Create(ctx, wants, metav1.CreateOptions{})
				return err
			})
		case !sameMeta(is, wants) || !m.same(is, wants):
			next := copied(is)
			next.SetLabels(wants.GetLabels())
			next.SetAnnotations(wants.GetAnnotations())
			next.SetOwnerReferences(wants.GetOwnerReferences())
			m.give(next, wants)
			add(wants, "update", func(ctx context.Context) error {
				_, err := to.Update(ctx, next, metav1.UpdateOptions{})
				return err
			})
		}
	}
	for _, o := range has {
		if owners := o.GetOwnerReferences(); len(owners) == 1 && kept[owners[0].UID] {
			continue
		}
		uid, version := o.GetUID(), o.GetResourceVersion()
		to := m.in(o.GetNamespace())
		add(o, "delete", func(ctx context.Context) error {
			return to.Delete(ctx, o.GetName(), metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
			})
		})
	}
	return all
}

func sameMeta(a, b metav1.Object) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		slices.Equal(a.GetOwnerReferences(), b.GetOwnerReferences())
}
