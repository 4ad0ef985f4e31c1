package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// Config is one cluster to watch.
type Config struct {
	Name       string // a DNS label
	Kubeconfig []byte // content of a kubeconfig file
	TokenFile  string // path of the newest token that was renewed; "" if it is not kept in a file
	OnlyLook   bool   // another process renews the token
	APIGroup   string // calico.V1 or calico.V3; empty asks the cluster
	Options    input.Options
	Publish    []string       // addresses or host names for status.loadBalancer; without one, none is written
	OwnAddrs   []netip.Addr   // addresses of the appliance, to find the BGPPeers that name it
	Bounds     []netip.Prefix // handed on in the Topology
	Source     netip.Prefix   // likewise
	Reflectors []netip.Addr   // handed on in the Topology
	OwnASN     uint32         // AS of the appliance; 0 if it is not known

	// ASN is the AS that the cluster should be in; 0 is Calico's default. It counts where the
	// BGPConfiguration of the cluster cannot be read.
	ASN uint32

	HostNetwork bool            // handed on in the Topology
	Before      routes.Topology // the last known Topology, which says who had which address, or zero
	Log         *slog.Logger
}

// A Watcher keeps the objects of one cluster as its API server reports them. Its
// methods may be called from any goroutine.
type Watcher struct {
	cfg     Config
	log     *slog.Logger
	server  apiserver.Server
	kube    api
	dynamic dynamic.Interface
	changed chan struct{}
	look    chan struct{} // wakes the survey

	watched   []anyShelf // the shelves that Run fills from its start to its end; see watchAll
	ingresses *shelf[*networkingv1.Ingress]
	classes   *shelf[*networkingv1.IngressClass]
	services  *shelf[*corev1.Service]
	nodes     *shelf[*corev1.Node]
	endpoints endpoints

	followers   followers
	publisher   *publisher
	credentials *apiserver.Credentials // nil if no expiry is known

	mu        sync.Mutex // guards all below
	calico    calicoObjects
	gateways  gateways
	optionals []anyOptional // kinds that the configuration file asks for
	protected []netip.Addr  // addresses that the name of the API server resolves to
	health    Health
	logged    map[string]time.Time // by sentence: when it was last logged
	topology  topologyMemo
}

// Health says how well the watcher can read its API server.
type Health struct {
	Connected bool      `json:"connected"`          // the last request was answered
	Since     time.Time `json:"since,omitzero"`     // since when Connected has its value
	Synced    bool      `json:"synced"`             // every object was read at least once
	SyncedAt  time.Time `json:"syncedAt,omitzero"`  // when Synced became true
	APIGroup  string    `json:"apiGroup,omitempty"` // the group of Calico's objects; "" if the cluster serves none
	// CredentialsExpire is when the token or certificate in use expires. It is zero if no expiry is
	// known.
	CredentialsExpire time.Time `json:"credentialsExpire,omitzero"`
	// Missing has a sentence for each thing that the cluster does not have, or does not let us do.
	Missing []string `json:"missing,omitempty"`
	// Hints has a sentence for each thing that the appliance could do with more rights, and that nobody
	// asked for.
	Hints []string `json:"hints,omitempty"`
	// Odd has a sentence for each Calico object that cannot be read, or is not as it should be.
	Odd []string `json:"odd,omitempty"`
	// Rivals has a sentence if somebody else replaces statuses that we write.
	Rivals []string `json:"rivals,omitempty"`
	// Error has a sentence for each thing that keeps us from reading the cluster now. It is "" if
	// the cluster can be read.
	Error string `json:"error,omitempty"`
}

// New reads the kubeconfig, but does not connect. An error is about the configuration and includes
// the remedy.
func New(cfg Config) (*Watcher, error) {
	config, err := apiserver.Config(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	credentials, err := apiserver.CredentialsOf(config, cfg.TokenFile, time.Now(), cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: the kubeconfig cannot be used: %w", cfg.Name, err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := newClients(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: the kubeconfig cannot be used: %w", cfg.Name, err)
	}
	if _, err := labels.Parse(cfg.Options.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("cluster %s: the selector of namespaces cannot be used (ingress.namespaceSelector): %w",
			cfg.Name, err)
	}
	w := newWatcher(cfg, kube, dyn, apiserver.ServerOf(config.Host))
	w.credentials = credentials
	return w, nil
}

func newWatcher(cfg Config, kube api, dyn dynamic.Interface, server apiserver.Server) *Watcher {
	w := &Watcher{
		cfg: cfg, log: cfg.Log, server: server, kube: kube, dynamic: dyn,
		changed: make(chan struct{}, 1), look: make(chan struct{}, 1),
		calico: calicoObjects{unknown: errors.New("the API group of Calico's objects is not known yet")},
		logged: make(map[string]time.Time),
	}
	w.topology.memory = calico.Remember(cfg.Before)
	w.watchAll()
	w.publisher = &publisher{
		kube: kube, log: cfg.Log, addresses: cfg.Publish, pools: cfg.Options.Pools,
		ingresses: w.ingresses, services: w.services,
		statuses: make(chan struct{}, 1), events: make(chan struct{}, 1),
	}
	if cfg.Options.Gateway.Enabled {
		w.publisher.controller, w.publisher.objects = cfg.Options.Gateway.Controller, w.objects
		w.publisher.names = newNames(w)
	}
	w.watchNamed()
	if readsExports(&cfg.Options) {
		exported := w.exported()
		w.optionals = append(w.optionals, exported)
		w.publisher.exports = func() (*shelf[*input.ServiceExport], schema.GroupVersion) { return exported.written(w) }
	}
	if cfg.Options.CustomResources {
		for _, version := range customVersions {
			w.optionals = append(w.optionals, w.customResources(version)...)
		}
	}
	return w
}

// watchNamed sets up the shelves of TLS Secrets, and the followers of Secrets and ConfigMaps.
func (w *Watcher) watchNamed() {
	w.followers.patience = patience
	w.followers.reading = make(chan struct{}, readersAtOnce)
	most := w.objectBytes()
	secrets, configMaps := &w.followers.secrets, &w.followers.configMaps
	secrets.kind, secrets.resource, secrets.sum = "Secret", "secrets", newSum[*corev1.Secret](most)
	secrets.list = func(ctx context.Context, namespace string, o metav1.ListOptions) ([]*corev1.Secret, error) {
		list, err := w.kube.Secrets(namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return pointersTo(list.Items), nil
	}
	configMaps.kind, configMaps.resource, configMaps.sum = "ConfigMap", "configmaps", newSum[*corev1.ConfigMap](most)
	configMaps.list = func(ctx context.Context, namespace string, o metav1.ListOptions) ([]*corev1.ConfigMap, error) {
		list, err := w.kube.ConfigMaps(namespace).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return pointersTo(list.Items), nil
	}
	w.followers.tls = make(map[string]*shelf[*corev1.Secret])
	for _, namespace := range w.cfg.Options.SecretNamespaces() {
		one := newShelf[*corev1.Secret](w, "", "secrets", input.ByName)
		one.wanted = secrets.named
		one.strip = func(s *corev1.Secret) {
			w.cfg.Options.Strip(s)
			if one.wants(input.KeyOf(s)) {
				secrets.sum.arrive(s)
			}
		}
		one.lands = secrets.sum.land
		of := ""
		if namespace != "" {
			of = " of namespace " + namespace
		}
		one.without = "TLS Secrets" + of + " cannot be read: Ingresses are served without their certificates"
		w.followers.tls[namespace] = one
	}
}

// pointersTo returns a pointer to each item.
func pointersTo[T any](items []T) (all []*T) {
	for i := range items {
		all = append(all, &items[i])
	}
	return all
}

// watchAll sets up the shelves that Run fills from its start to its end.
func (w *Watcher) watchAll() {
	const core = corev1.GroupName
	networking, discovery, options := networkingv1.GroupName, discoveryv1.GroupName, w.cfg.Options
	w.watchClaims()
	w.classes = watchOne[*networkingv1.IngressClass](
		w, networking, "ingressclasses", input.ByName, w.kube.IngressClasses(), "",
	)
	w.classes.without = "IngressClasses cannot be read: classes are known by name only"
	w.endpoints.shelf = watchShare(w, discovery, "endpointslices", input.ByService,
		newAllowance("sliceBytes", "EndpointSlice", options.Limits.SliceBytes, w.endpoints.referred),
		func(namespace string) reader[*discoveryv1.EndpointSliceList] { return w.kube.EndpointSlices(namespace) })
	w.nodes = watchOne[*corev1.Node](w, core, "nodes", input.ByName, w.kube.Nodes(), "")
	w.nodes.strip = stripNode
	if options.NamespaceSelector != "" {
		watchOne[*corev1.Namespace](w, core, "namespaces", input.ByName, w.kube.Namespaces(), "")
	}
	for _, full := range options.ConfigMaps() {
		namespace, name, _ := strings.Cut(full, "/")
		one := watchOne[*corev1.ConfigMap](
			w, core, "configmaps", input.ByName, w.kube.ConfigMaps(namespace), "metadata.name="+name,
		)
		one.called = "ConfigMap " + full
		one.without = one.called + " cannot be read: Ingresses are served without its content"
	}
}

// objectBytes returns how many bytes the objects of a kind of one namespace may have. It returns 0, which
// means no bound, if all namespaces are one tenant.
func (w *Watcher) objectBytes() int {
	if w.cfg.Options.OneTenant {
		return 0
	}
	return w.cfg.Options.Limits.ObjectBytes
}

// watchClaims sets up the shelves of Ingresses and Services. Nobody else bounds how many of
// them a namespace has, nor their bytes. Where all namespaces are one tenant, nothing does.
func (w *Watcher) watchClaims() {
	most := w.objectBytes()
	ings := newAllowance("objectBytes", "Ingress", most, func(*networkingv1.Ingress) bool { return true })
	ings.plural = "Ingresses"
	ings.follows = "each may be a guard, so all clients of the other Ingresses are rejected until the namespace " +
		"has fewer or smaller ones"
	w.ingresses = watchShare(w, networkingv1.GroupName, "ingresses", input.ByName, ings,
		func(namespace string) reader[*networkingv1.IngressList] { return w.kube.Ingresses(namespace) })
	w.ingresses.same = sameButStatus
	services := newAllowance("objectBytes", "Service", most,
		func(s *corev1.Service) bool { return w.endpoints.needed(input.KeyOf(s)) })
	services.follows = "those that something served refers to are used first"
	w.services = watchShare(w, corev1.GroupName, "services", input.ByName, services,
		func(namespace string) reader[*corev1.ServiceList] { return w.kube.Services(namespace) })
}

// watchOne sets up a shelf for one kind of objects that Run fills.
func watchOne[T object, L runtime.Object](
	w *Watcher, group, resource string, order func(a, b T) int, from reader[L], fields string,
) *shelf[T] {
	s := newOne(w, group, resource, order, from, fields)
	w.watched = append(w.watched, s)
	return s
}

// newOne returns a shelf for one kind of objects, which it can fill.
func newOne[T object, L runtime.Object](
	w *Watcher, group, resource string, order func(a, b T) int, from reader[L], fields string,
) *shelf[T] {
	s := newShelf(w, group, resource, order)
	s.fill = func(ctx context.Context, wg *sync.WaitGroup) { start(ctx, wg, s, from, fields) }
	return s
}

// shelves returns every shelf of the watcher but those of followers. The caller
// holds mu.
func (w *Watcher) shelves() []anyShelf {
	all := slices.Clone(w.watched)
	for _, namespace := range sortedKeys(w.followers.tls) {
		all = append(all, w.followers.tls[namespace])
	}
	for _, c := range []*calicoShelves{w.calico.inUse, w.calico.next} {
		if c == nil {
			continue
		}
		for _, s := range c.all() {
			all = append(all, s)
		}
	}
	for _, s := range w.gateways.all() {
		all = append(all, s)
	}
	for _, x := range w.optionals {
		all = append(all, x.shelves()...)
	}
	return all
}

// sameButStatus compares Ingresses without their status. Only the publisher uses the status, and it
// reads the newest.
func sameButStatus(a, b *networkingv1.Ingress) bool {
	x, y := *a, *b
	x.Status, y.Status = networkingv1.IngressStatus{}, networkingv1.IngressStatus{}
	return sameButVersion(&x, &y)
}

// stripNode removes the fields of a Node that calico.Topology does not read. One of
// them is the heartbeat that a node writes into its status every few minutes: without
// the heartbeat the Node does not change.
func stripNode(n *corev1.Node) {
	kept := corev1.Node{
		TypeMeta: n.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels,
			CreationTimestamp: n.CreationTimestamp,
		},
		Spec:   corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
		Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
	}
	for key, value := range n.Annotations {
		if strings.HasPrefix(key, "projectcalico.org/") {
			if kept.Annotations == nil {
				kept.Annotations = make(map[string]string)
			}
			kept.Annotations[key] = value
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			kept.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	*n = kept
}

// newShelf returns a shelf that keeps the fields that Compile reads.
func newShelf[T object](w *Watcher, group, resource string, order func(a, b T) int) *shelf[T] {
	return &shelf[T]{
		resource: resource, group: group, order: order, knock: w.wake,
		strip: func(o T) { w.cfg.Options.Strip(o) },
		told:  func(err error, lasting bool) { w.answered(group, resource, err, lasting) },
	}
}

// wake knocks on Changed.
func (w *Watcher) wake() { knock(w.changed) }

// knock wakes the receiver of a channel that holds one knock.
func knock(on chan<- struct{}) {
	select {
	case on <- struct{}{}:
	default:
	}
}

// Changed returns the channel that receives when Snapshot or Health has something
// new.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Await waits until the cluster was read completely, and returns its objects. If ctx ends before that,
// it returns what the Watcher waits for. Run has to run meanwhile, and nothing else may receive from
// Changed.
func (w *Watcher) Await(ctx context.Context) (input.Snapshot, error) {
	s, err := w.Snapshot()
	for err != nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-w.Changed():
		}
		s, err = w.Snapshot()
	}
	return s, err
}

// Run watches until ctx ends. It repeats failed requests for ever.
func (w *Watcher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.mayNotFollow()
	for _, s := range w.watched {
		s.start(ctx, &wg)
	}
	wg.Go(func() { w.publisher.publishStatuses(ctx) })
	wg.Go(func() { w.publisher.publishEvents(ctx) })
	if names := w.publisher.names; names != nil {
		wg.Go(func() { names.run(ctx, &wg) })
	}
	if !w.cfg.OnlyLook {
		wg.Go(func() { w.credentials.Renew(ctx, w.kube, w.wake) })
	}
	w.mayFollow(ctx, &wg)
	w.survey(ctx, &wg)
}

func start[T object, L runtime.Object](
	ctx context.Context, wg *sync.WaitGroup, s *shelf[T], from reader[L], fields string,
) {
	wg.Go(func() {
		s.run(ctx, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = fields
			return from.List(ctx, o)
		}, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return from.Watch(ctx, o)
		})
	})
}

// Snapshot returns the last known objects of the cluster, also while the API server is away. It
// returns an error until every list was read once.
//
// It does without TLS Secrets, IngressClasses, ConfigMaps, and all of Calico but BlockAffinities if
// the appliance may not read them. If any other list is refused, that is an error: a list that
// cannot be read is not an empty list.
func (w *Watcher) Snapshot() (input.Snapshot, error) {
	var waiting []string
	s := input.Snapshot{Cluster: w.cfg.Name, At: time.Now(), Options: w.cfg.Options}
	for _, one := range w.watched {
		if one.awaited() {
			waiting = append(waiting, one.name())
		}
		one.addTo(&s.Objects)
		s.Beyond = append(s.Beyond, one.problems(s.Cluster)...)
	}
	s.NoClasses, s.Incomplete = w.classes.barred(), w.ingresses.incomplete()
	waiting = append(waiting, slices.Concat(w.addGateways(&s), w.addOptionals(&s))...)
	if len(waiting) == 0 {
		w.mu.Lock()
		synced := w.health.Synced
		w.mu.Unlock()
		waiting = w.referred(&s, synced)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.promote()
	if w.calico.inUse != nil {
		waiting = append(waiting, w.calico.inUse.waiting()...)
	} else { // promote follows at the next knock, which the last of them has given
		waiting = append(waiting, "Calico's objects")
	}
	if len(waiting) > 0 {
		return input.Snapshot{}, fmt.Errorf("cluster %s was not read completely yet; waiting for %s: %s",
			w.cfg.Name, strings.Join(waiting, ", "), cmp.Or(w.troubles(), "no error so far"))
	}
	if !w.health.Synced {
		w.health.Synced, w.health.SyncedAt = true, time.Now()
		w.log.Info("cluster read completely", "ingresses", len(s.Ingresses), "services", len(s.Services),
			"nodes", len(w.nodes.list()), "calico", w.calico.inUse.group)
	}
	s.Topology = w.topologyNow(s.Slices)
	return s, nil
}

// Appliances returns the addresses of the BGPPeers for this appliance and other appliances, by
// name.
func (w *Watcher) Appliances() map[string]netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calico.inUse == nil {
		return nil
	}
	return calico.Appliances(w.calico.inUse.list("bgppeers"))
}

// Apart returns the nodes that BGP connects with no other node, see calico.Apart; none if
// the objects that say so cannot be read.
func (w *Watcher) Apart() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.calico.inUse
	if c == nil || !c.readable("bgpconfigurations") || !c.readable("bgppeers") || !c.readable("ippools") {
		return nil
	}
	return calico.Apart(calico.Objects{
		Nodes: w.nodes.list(), Configs: c.list("bgpconfigurations"), Peers: c.list("bgppeers"),
		Pools: c.list("ippools"), Own: w.cfg.OwnAddrs,
	})
}

// Health returns how well the API server can be read.
func (w *Watcher) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Missing, h.Odd = append(w.credentials.Sentences(time.Now()), w.missing()...), slices.Clone(w.topology.odd)
	h.CredentialsExpire, h.Rivals = w.credentials.Expire(), w.publisher.rivals()
	h.Error = w.troubles()
	if w.gateways.reach == barred {
		h.Hints = []string{string(barred)}
	}
	if w.calico.inUse != nil {
		h.APIGroup = w.calico.inUse.group
	}
	return h
}

// answered notes the outcome of a request for a resource, and logs a failure that
// lasts.
func (w *Watcher) answered(group, resource string, err error, lasting bool) {
	connected := err == nil || apiserver.IsAnswer(err)
	w.mu.Lock()
	if connected != w.health.Connected || w.health.Since.IsZero() {
		w.health.Connected, w.health.Since = connected, time.Now()
		defer w.wake()
		if connected {
			w.log.Info("API server answers", "server", w.server.Host)
		}
	}
	if lasting {
		defer w.wake()
		w.say(w.server.Sentence(group, resource, err))
	}
	w.mu.Unlock()
	if apierrors.IsNotFound(err) {
		w.askSurvey() // a CRD is gone: Calico's objects may be in the other group now
	}
}

// say logs a sentence, once in five minutes. The caller holds mu.
func (w *Watcher) say(sentence string) {
	const silence = 5 * time.Minute
	now := time.Now()
	if now.Sub(w.logged[sentence]) < silence {
		return
	}
	for old, at := range w.logged {
		if now.Sub(at) >= silence {
			delete(w.logged, old)
		}
	}
	w.logged[sentence] = now
	w.log.Warn("cannot read the cluster", "err", sentence)
}

// troubles returns a sentence for each read that fails now. The caller holds mu.
func (w *Watcher) troubles() string {
	var all []string
	for _, s := range w.shelves() {
		if _, err := s.state(); err != nil {
			group, resource := s.of()
			if why := w.server.Sentence(group, resource, err); !slices.Contains(all, why) {
				all = append(all, why)
			}
		}
	}
	faults := []error{w.gateways.err}
	for _, x := range w.optionals {
		faults = append(faults, x.fault())
	}
	for _, err := range faults {
		if err != nil && len(all) == 0 {
			all = append(all, err.Error())
		}
	}
	// A cluster without Calico is no trouble: missing says which records replace Calico's.
	without := w.calico.inUse != nil && w.calico.inUse.group == "" && errors.Is(w.calico.unknown, calico.ErrNone)
	// A shelf already reports an API server that cannot be reached.
	if w.calico.unknown != nil && !without && (len(all) == 0 || errors.Is(w.calico.unknown, calico.ErrFrozen)) {
		all = append(all, w.calico.unknown.Error())
	}
	return strings.Join(all, "; ")
}

// protectedNow returns the sockets of the kubeconfig's server. The caller holds mu.
func (w *Watcher) protectedNow() []netip.AddrPort {
	var servers []netip.AddrPort
	for _, ip := range w.protected {
		servers = append(servers, netip.AddrPortFrom(ip, w.server.Port))
	}
	return servers
}

// endpointsNow returns the sockets of the API server by its own records: the endpoints of Service kubernetes.
// The caller holds mu.
func (w *Watcher) endpointsNow(all []*discoveryv1.EndpointSlice) []netip.AddrPort {
	var servers []netip.AddrPort
	for _, s := range input.SlicesOf(all, input.APIServer) {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				servers = append(servers, netip.AddrPortFrom(ip, w.server.Port))
				for _, p := range s.Ports {
					if p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
						servers = append(servers, netip.AddrPortFrom(ip, uint16(*p.Port)))
					}
				}
			}
		}
	}
	slices.SortFunc(servers, netip.AddrPort.Compare)
	return slices.Compact(servers)
}

// A topologyMemo is the last Topology and its inputs.
type topologyMemo struct {
	from      calico.Objects // without Memory until there is a Topology
	value     routes.Topology
	odd       []string
	protected []netip.AddrPort
	endpoints []netip.AddrPort // of Service kubernetes
	memory    *calico.Memory
}
