package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A World is all that Attach knows of a cluster. Its functions answer questions about objects of
// other kinds. A Refusal of nil means that nothing is wrong.
type World struct {
	Objects
	Controller string // the spec.controllerName of classes that are ours
	Bundle     string // version of the CRDs in the cluster, as "v1.6.3"; empty if it is not known
	Channel    string // of the CRDs: standard, experimental, or empty if it is not known
	Mirrors    bool   // HAProxy can copy requests
	Named      bool   // each Gateway has a Service in the cluster
	// Paths is how many paths the routes of a namespace may have together: each match of a route at each
	// of its hostnames at a listener. A hostname takes a path even if the route has no match. If Paths is
	// 0, there is no bound. A few routes that name many ListenerSets can ask for millions.
	Paths int

	// Admits reports whether the objects of a namespace count.
	Admits func(namespace string) bool
	// Labels returns the labels of a namespace, or nil if the namespace is unknown.
	Labels func(namespace string) labels.Set
	// Shares reports whether a Gateway shares the addresses of Ingresses.
	Shares func(g *gatewayv1.Gateway) bool
	// Port says why no listener of a Gateway may have a port with a protocol.
	Port func(port uint16, protocol gatewayv1.ProtocolType, shared bool) *Refusal
	// Service says why a route of a kind may not lead to a port of a Service.
	Service func(service types.NamespacedName, port int32, kind string) *Refusal
	// Exported says why a Service is not one of several clusters. A route names such a Service by its ServiceImport.
	Exported func(service types.NamespacedName) *Refusal
	// Certificate says why the certificate in a Secret cannot be used.
	Certificate func(secret types.NamespacedName) *Refusal
	// Authorities says why the authorities in a ConfigMap cannot be used.
	Authorities func(configMap types.NamespacedName) *Refusal
	// Host says why routes of a namespace may not have a host.
	Host func(namespace, host string) *Refusal
}

// An Attachment is the outcome of Attach. Its lists are sorted: the older object comes first.
type Attachment struct {
	Gateways []*Gateway
	Routes   []*Route
	Policies []*Policy

	world    *World
	attached map[*Listener][]*Attached          // the routes of each listener, the older first
	classes  map[string]*gatewayv1.GatewayClass // that are ours and accepted
	grants   grants
	policies map[types.NamespacedName][]*Policy // by Service, the older first
	sets     map[types.NamespacedName]*listenerSet
	gateways map[types.NamespacedName]*Gateway
	paths    map[string]int // that the routes of a namespace ask for, see World

	said   map[metav1.Object]*Status // of the objects but routes, once they were asked for
	before map[metav1.Object]*Status // see Recall
}

// A Gateway is a Gateway that is ours.
type Gateway struct {
	Object    *gatewayv1.Gateway
	Listeners []*Listener // its own first, then those of its ListenerSets, the older first
	Shared    bool        // it shares the addresses of Ingresses

	// Addresses are those that its status is to have. Refused says why it has none, or not the
	// ones that it asks for. The caller sets both.
	Addresses []string
	Refused   *Refusal
	// Certificate is the Secret with the certificate that servers see. It is nil if they see none.
	Certificate *types.NamespacedName

	unusable *Refusal // why nothing of it is served
	client   *Refusal // why its certificate for servers cannot be used
	sets     []*listenerSet

	// ports has the listeners by their ports, and owners those of them that are accepted.
	ports  map[uint16][]*Listener
	owners map[uint16]Owners
}

// Serves reports whether anything of the Gateway can be served.
func (g *Gateway) Serves() bool { return g.unusable == nil }

// Refuse says that nothing of the Gateway is served.
func (g *Gateway) Refuse(r Refusal) { g.unusable = cmp.Or(g.unusable, &r) }

// Key returns the namespace and name of the Gateway.
func (g *Gateway) Key() types.NamespacedName { return keyOf(g.Object) }

// Ports returns the ports of the listeners that can be served, in order.
func (g *Gateway) Ports() (all []uint16) {
	for port, listeners := range g.ports {
		if slices.ContainsFunc(listeners, (*Listener).Serves) {
			all = append(all, port)
		}
	}
	slices.Sort(all)
	return all
}

// On returns the listeners of a port, in the order of Listeners.
func (g *Gateway) On(port uint16) []*Listener { return g.ports[port] }

// settlePorts groups the listeners by their ports. No listener is refused afterwards.
func (g *Gateway) settlePorts() {
	g.ports, g.owners = make(map[uint16][]*Listener), make(map[uint16]Owners)
	for _, l := range g.Listeners {
		g.ports[l.Port] = append(g.ports[l.Port], l)
	}
	for port, listeners := range g.ports {
		g.owners[port] = OwnersOf(slices.DeleteFunc(slices.Clone(listeners), func(l *Listener) bool {
			return l.refused != nil || l.conflict != nil
		}))
	}
}

// A listenerSet is a ListenerSet that names a Gateway of ours.
type listenerSet struct {
	object    *gatewayv1.ListenerSet
	gateway   *Gateway
	listeners []*Listener
	refused   *Refusal // why the Gateway does not take it
}

// Mirrors reports whether HAProxy can copy requests.
func (a *Attachment) Mirrors() bool { return a.world.Mirrors }

// Attach decides which listeners exist, and which routes attach to them.
func Attach(w World) *Attachment {
	a := &Attachment{
		world: &w, attached: make(map[*Listener][]*Attached), classes: make(map[string]*gatewayv1.GatewayClass),
		gateways: make(map[types.NamespacedName]*Gateway), sets: make(map[types.NamespacedName]*listenerSet),
		paths: make(map[string]int), said: make(map[metav1.Object]*Status),
	}
	a.grants = grantsOf(w.Grants)
	for _, c := range w.Classes {
		if string(c.Spec.ControllerName) == w.Controller && parametersOf(c) == nil {
			a.classes[c.Name] = c
		}
	}
	for _, g := range byAge(w.Gateways) {
		if a.classes[string(g.Spec.GatewayClassName)] == nil || !w.Admits(g.Namespace) {
			continue
		}
		one := &Gateway{Object: g, Shared: w.Shares(g)}
		one.unusable = parametersOfGateway(g)
		for i := range g.Spec.Listeners {
			one.Listeners = append(one.Listeners, a.listener(one, nil, &g.Spec.Listeners[i]))
		}
		a.Gateways, a.gateways[keyOf(g)] = append(a.Gateways, one), one
	}
	a.addSets()
	for _, g := range a.Gateways {
		settleConflicts(g.Listeners)
		a.resolveClients(g)
		a.resolveCertificate(g)
		g.settlePorts()
	}
	a.readPolicies()
	a.attachRoutes()
	return a
}

// addSets adds the listeners of ListenerSets to their Gateways.
func (a *Attachment) addSets() {
	for _, s := range byAge(a.world.ListenerSets) {
		ref := s.Spec.ParentRef
		if !a.world.Admits(s.Namespace) || !isGateway(ref.Group, ref.Kind) {
			continue
		}
		parent := a.gateways[types.NamespacedName{
			Namespace: namespaceOf(ref.Namespace, s.Namespace), Name: string(ref.Name),
		}]
		if parent == nil {
			continue
		}
		set := &listenerSet{object: s, gateway: parent}
		a.sets[keyOf(s)] = set
		parent.sets = append(parent.sets, set)
		allowed := parent.Object.Spec.AllowedListeners
		from, selector := gatewayv1.NamespacesFromNone, (*metav1.LabelSelector)(nil)
		if allowed != nil && allowed.Namespaces != nil {
			from, selector = value(allowed.Namespaces.From, from), allowed.Namespaces.Selector
		}
		if !a.world.from(from, selector, parent.Object.Namespace, s.Namespace) {
			set.refused = &Refusal{string(gatewayv1.ListenerSetReasonNotAllowed), fmt.Sprintf(
				"spec.allowedListeners of Gateway %s does not allow ListenerSets of namespace %s", parent.Key(),
				s.Namespace)}
			continue
		}
		for i := range s.Spec.Listeners {
			l := gatewayv1.Listener(s.Spec.Listeners[i])
			one := a.listener(parent, set, &l)
			set.listeners, parent.Listeners = append(set.listeners, one), append(parent.Listeners, one)
		}
	}
}

// from reports whether a namespace is among those that an object of another namespace allows.
func (w *World) from(
	from gatewayv1.FromNamespaces, selector *metav1.LabelSelector, home, namespace string,
) bool {
	switch from {
	case gatewayv1.NamespacesFromAll:
		return true
	case gatewayv1.NamespacesFromSame:
		return home == namespace
	case gatewayv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector) // nothing matches no selector
		of := w.Labels(namespace)
		return err == nil && of != nil && s.Matches(of)
	}
	return false
}

// parametersOf returns why the parameters of a class cannot be used.
func parametersOf(c *gatewayv1.GatewayClass) *Refusal {
	ref := c.Spec.ParametersRef
	if ref == nil {
		return nil
	}
	return &Refusal{string(gatewayv1.GatewayClassReasonInvalidParameters), fmt.Sprintf(
		"spec.parametersRef names %s %s: a class has no parameters; remove it",
		quote(string(ref.Kind)), quote(ref.Name))}
}

// parametersOfGateway returns why the parameters of a Gateway cannot be used.
func parametersOfGateway(g *gatewayv1.Gateway) *Refusal {
	if g.Spec.Infrastructure == nil || g.Spec.Infrastructure.ParametersRef == nil {
		return nil
	}
	ref := g.Spec.Infrastructure.ParametersRef
	return &Refusal{string(gatewayv1.GatewayReasonInvalidParameters), fmt.Sprintf(
		"spec.infrastructure.parametersRef names %s %s: a Gateway has no parameters; remove it",
		quote(string(ref.Kind)), quote(ref.Name))}
}

// byAge returns objects, the older first.
func byAge[T metav1.Object](list []T) []T {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y T) int { return olderObject(x, y) })
	return list
}

// olderObject compares objects by age, and then by namespace and name.
func olderObject(x, y metav1.Object) int {
	return cmp.Or(
		x.GetCreationTimestamp().Compare(y.GetCreationTimestamp().Time),
		cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()),
	)
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// value returns the value at p. If p is nil, it returns otherwise.
func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func namespaceOf(n *gatewayv1.Namespace, otherwise string) string {
	return string(value(n, gatewayv1.Namespace(otherwise)))
}

func isGateway(group *gatewayv1.Group, kind *gatewayv1.Kind) bool {
	return value(group, gatewayv1.GroupName) == gatewayv1.GroupName && value(kind, "Gateway") == "Gateway"
}

// quote returns a text from the cluster for a sentence: in quotes, and not too long.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}
