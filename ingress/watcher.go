package ingress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sallyport/ingress/calico"
	"sallyport/routes"
)

// ClusterConfig is one cluster to watch.
type ClusterConfig struct {
	Name       string // a DNS label
	Kubeconfig []byte // content of a kubeconfig file
	TokenFile  string // where the newest token of our own is kept; empty: nowhere
	APIGroup   string // calico.V1 or calico.V3; empty asks the cluster
	Options    Options
	Publish    []string       // addresses or host names for status.loadBalancer; none writes no status
	OwnAddrs   []netip.Addr   // addresses of the appliance, to find the BGPPeers that name it
	Bounds     []netip.Prefix // handed on in the Topology
	Reflectors []netip.Addr   // handed on in the Topology
	ASN        uint32         // AS of the cluster where its BGPConfiguration cannot be read; 0 is Calico's default

	HostNetwork bool            // handed on in the Topology
	Before      routes.Topology // the last that is known, to tell who had which address; zero: none
	Log         *slog.Logger
}

// A Watcher keeps the objects of one cluster, as its API server tells them.
// Its methods may be called from any goroutine.
type Watcher struct {
	cfg     ClusterConfig
	log     *slog.Logger
	server  string // host of the API server, a name or an address
	port    uint16 // of the API server
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	changed chan struct{}
	look    chan struct{} // asks for a survey now

	watched   []anyShelf // each that Run fills from its start to its end; see watchAll
	ingresses *shelf[*networkingv1.Ingress]
	classes   *shelf[*networkingv1.IngressClass]
	nodes     *shelf[*corev1.Node]

	secrets map[string]*shelf[*corev1.Secret] // of type kubernetes.io/tls that something names, by namespace; "" is all namespaces

	followers   followers
	publisher   publisher
	credentials *credentials // nil: they do not expire, as far as is known

	mu        sync.Mutex     // guards all below
	calico    *calicoShelves // in use
	next      *calicoShelves // to be, once it was read whole
	noneSince time.Time      // since when the cluster shows no group of Calico's; zero: it shows one
	surveyed  error          // why it is not known, or not clear, where Calico's objects are
	protected []netip.Addr   // addresses of the API server, by the name we call it
	health    Health
	logged    map[string]time.Time // sentence to when it was last logged
	topology  topologyMemo
}

// Health is how the watcher gets on with its API server.
type Health struct {
	Connected bool      `json:"connected"`          // the last request was answered
	Since     time.Time `json:"since,omitzero"`     // since when Connected is what it is
	Synced    bool      `json:"synced"`             // every object was read at least once
	SyncedAt  time.Time `json:"syncedAt,omitzero"`  // when that was
	APIGroup  string    `json:"apiGroup,omitempty"` // where Calico's objects are read from; empty: nowhere
	// CredentialsExpire is when the token or certificate in use does; zero: never, as far as is known.
	CredentialsExpire time.Time `json:"credentialsExpire,omitzero"`
	Missing           []string  `json:"missing,omitempty"` // a sentence for each thing the cluster does not have or does not let us do
	Odd               []string  `json:"odd,omitempty"`     // a sentence for each Calico object that cannot be read
	Error             string    `json:"error,omitempty"`   // all that keeps us from reading the cluster now, in sentences; empty: nothing
}

// NewWatcher reads the kubeconfig; it connects to nothing yet. An error is
// about the kubeconfig and says what to do.
func NewWatcher(cfg ClusterConfig) (*Watcher, error) {
	config, err := restConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	credentials, err := credentialsOf(config, cfg.TokenFile, time.Now(), cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", cfg.Name, err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: the kubeconfig cannot be used: %w", cfg.Name, err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: the kubeconfig cannot be used: %w", cfg.Name, err)
	}
	server, port := config.Host, uint16(443)
	if u, err := url.Parse(config.Host); err == nil && u.Hostname() != "" {
		server = u.Hostname()
		if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
			port = uint16(n)
		}
	}
	if _, err := labels.Parse(cfg.Options.NamespaceSelector); err != nil {
		return nil, fmt.Errorf("cluster %s: the selector of namespaces cannot be used (ingress.namespaceSelector): %w", cfg.Name, err)
	}
	w := newWatcher(cfg, kube, dyn, server, port)
	w.credentials = credentials
	return w, nil
}

func newWatcher(cfg ClusterConfig, kube kubernetes.Interface, dyn dynamic.Interface, server string, port uint16) *Watcher {
	w := &Watcher{
		cfg: cfg, log: cfg.Log, server: server, port: port, kube: kube, dynamic: dyn,
		changed: make(chan struct{}, 1), look: make(chan struct{}, 1),
		surveyed: errors.New("the cluster was not asked yet where Calico's objects are"),
		logged:   make(map[string]time.Time),
	}
	w.topology.memory = calico.Remember(cfg.Before)
	w.publisher.knock = make(chan struct{}, 1)
	w.watchAll()
	w.secrets = make(map[string]*shelf[*corev1.Secret])
	for _, namespace := range cfg.Options.secretNamespaces() {
		one := newShelf(w, "", "secrets", byName, func(s *corev1.Secret) {
			for key := range s.Data {
				if key != corev1.TLSCertKey && key != corev1.TLSPrivateKeyKey && key != "ca.crt" {
					delete(s.Data, key)
				}
			}
			w.stripSecret(s)
		})
		one.wanted = w.followers.named
		of := ""
		if namespace != "" {
			of = " of namespace " + namespace
		}
		one.without = "TLS Secrets" + of + " cannot be read: Ingresses are served without their certificates"
		w.secrets[namespace] = one
	}
	return w
}

// watchAll sets up the shelves that Run fills from its start to its end.
func (w *Watcher) watchAll() {
	const all, core = metav1.NamespaceAll, corev1.GroupName
	networking, discovery, options := networkingv1.GroupName, discoveryv1.GroupName, w.cfg.Options
	w.ingresses = watchOne[*networkingv1.Ingress](w, networking, "ingresses", byName, nil, w.kube.NetworkingV1().Ingresses(all), "")
	w.ingresses.same = sameButStatus
	w.classes = watchOne[*networkingv1.IngressClass](w, networking, "ingressclasses", byName, nil, w.kube.NetworkingV1().IngressClasses(), "")
	w.classes.without = "IngressClasses cannot be read: classes are known by name only"
	watchOne(w, core, "services", byName, stripService, w.kube.CoreV1().Services(all), "")
	watchOne(w, discovery, "endpointslices", byService, stripSlice, w.kube.DiscoveryV1().EndpointSlices(all), "")
	w.nodes = watchOne(w, core, "nodes", byName, stripNode, w.kube.CoreV1().Nodes(), "")
	if options.NamespaceSelector != "" {
		watchOne(w, core, "namespaces", byName, stripNamespace, w.kube.CoreV1().Namespaces(), "")
	}
	for _, full := range options.configMaps() {
		namespace, name, _ := strings.Cut(full, "/")
		one := watchOne[*corev1.ConfigMap](w, core, "configmaps", byName, nil, w.kube.CoreV1().ConfigMaps(namespace), "metadata.name="+name)
		one.called, one.without = "ConfigMap "+full, "ConfigMap "+full+" cannot be read: Ingresses are served without what it says"
	}
}

// watchOne sets up a shelf for one kind of objects, and its reader.
func watchOne[T object, L runtime.Object](w *Watcher, group, resource string, order func(a, b T) int, strip func(T), from reader[L], fields string) *shelf[T] {
	s := newShelf(w, group, resource, order, strip)
	s.fill = func(ctx context.Context, wg *sync.WaitGroup) { start(ctx, wg, s, from, fields) }
	w.watched = append(w.watched, s)
	return s
}

// shelves returns every shelf of the watcher but those of followers. The caller
// holds mu.
func (w *Watcher) shelves() []anyShelf {
	all := slices.Clone(w.watched)
	for _, namespace := range sortedKeys(w.secrets) {
		all = append(all, w.secrets[namespace])
	}
	for _, c := range []*calicoShelves{w.calico, w.next} {
		if c == nil {
			continue
		}
		for _, s := range c.all() {
			all = append(all, s)
		}
	}
	return all
}

// sameButStatus compares Ingresses without their status, which is for the
// publisher alone: it asks for the newest.
func sameButStatus(a, b *networkingv1.Ingress) bool {
	x, y := *a, *b
	x.Status, y.Status = networkingv1.IngressStatus{}, networkingv1.IngressStatus{}
	return sameButVersion(&x, &y)
}

// stripService removes the status of a Service.
func stripService(s *corev1.Service) { s.Status = corev1.ServiceStatus{} }

// stripSlice removes from an EndpointSlice what nobody reads.
func stripSlice(s *discoveryv1.EndpointSlice) {
	s.Annotations, s.OwnerReferences = nil, nil
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology, s.Endpoints[i].Hints = nil, nil
	}
}

// maxSecret bounds what is kept of one Secret, in bytes of its values, if Limits do
// not. A bundle of all public authorities has 220,000.
const maxSecret = 256 << 10

// sizeOf is the annotation that a Secret has here, and nowhere else, in place of
// data that is larger than is kept: how large it was, and how large it may be.
const sizeOf = "sallyport.dev/too-large"

// stripSecret leaves of a Secret its type and its data, if that is not too large.
func (w *Watcher) stripSecret(s *corev1.Secret) {
	size, most := 0, cmp.Or(w.cfg.Options.Limits.SecretBytes, maxSecret)
	for _, value := range s.Data {
		size += len(value)
	}
	was := s.Annotations[sizeOf]
	s.Annotations, s.Labels, s.StringData = nil, nil, nil
	switch {
	case size > most:
		s.Data, s.Annotations = nil, map[string]string{sizeOf: fmt.Sprintf("%d of %d", size, most)}
	case size == 0 && was != "": // it was stripped before
		s.Annotations = map[string]string{sizeOf: was}
	}
}

// tooLarge says why a Secret has no data here; empty: it has.
func tooLarge(s *corev1.Secret) string {
	text, large := s.Annotations[sizeOf]
	if !large {
		return ""
	}
	size, most := 0, 0
	_, _ = fmt.Sscanf(text, "%d of %d", &size, &most) // of an annotation that somebody else wrote nothing shows
	return fmt.Sprintf("holds %d bytes; allowed: %d (clusters[].ingress.limits.secretBytes)", size, most)
}

// stripNamespace leaves of a Namespace its labels.
func stripNamespace(n *corev1.Namespace) {
	*n = corev1.Namespace{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}}
}

// stripNode leaves of a Node what calico.Topology reads. A node writes its
// status every few minutes: without its heartbeat that is no change.
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

func newShelf[T object](w *Watcher, group, resource string, order func(a, b T) int, strip func(T)) *shelf[T] {
	return &shelf[T]{
		resource: resource, group: group, order: order, strip: strip, knock: w.tell,
		told: func(err error, lasting bool) { w.answered(group, resource, err, lasting) },
	}
}

// tell knocks.
func (w *Watcher) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Changed is knocked on when Snapshot or Health has something new.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Run watches until ctx ends. Whatever fails is tried again, for ever.
func (w *Watcher) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer w.mayNotFollow()
	for _, s := range w.watched {
		s.start(ctx, &wg)
	}
	wg.Go(func() { w.publish(ctx) })
	if c := w.credentials; c != nil && c.token != nil {
		c.token.knock = w.tell
		wg.Go(func() { c.token.run(ctx, w.kube) })
	}
	w.mayFollow(ctx, &wg)
	w.survey(ctx, &wg)
}

// reader is a typed client of client-go for one resource.
type reader[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

func start[T object, L runtime.Object](ctx context.Context, wg *sync.WaitGroup, s *shelf[T], from reader[L], fields string) {
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

// Snapshot is what is known of the cluster. It is an error until everything
// was read once; from then on it is the last known, also while the API server
// is away.
//
// Of what the appliance may not read, TLS Secrets and IngressClasses are done
// without, and so is what Calico has beyond BlockAffinities. Anything else that
// is refused is an error: a list that cannot be read is not an empty one.
func (w *Watcher) Snapshot() (Snapshot, error) {
	var waiting []string
	s := Snapshot{Cluster: w.cfg.Name, At: time.Now(), Options: w.cfg.Options}
	for _, one := range w.watched {
		if one.awaited() {
			waiting = append(waiting, one.name())
		}
		one.addTo(&s.Objects)
	}
	s.NoClasses = w.classes.barred()
	if len(waiting) == 0 {
		w.mu.Lock()
		synced := w.health.Synced
		w.mu.Unlock()
		waiting = w.referred(&s, synced)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	w.promote()
	if w.calico != nil {
		waiting = append(waiting, w.calico.waiting()...)
	} else { // also if the last of them came just now: its knock asks for another look
		waiting = append(waiting, "Calico's objects")
	}
	if len(waiting) > 0 {
		return Snapshot{}, fmt.Errorf("cluster %s was not read whole yet; waiting for %s: %s", w.cfg.Name, strings.Join(waiting, ", "), cmp.Or(w.troubles(), "no error so far"))
	}
	if !w.health.Synced {
		w.health.Synced, w.health.SyncedAt = true, time.Now()
		w.log.Info("cluster read whole", "ingresses", len(s.Ingresses), "services", len(s.Services), "nodes", len(w.nodes.list()), "calico", w.calico.group)
	}
	s.Topology = w.topologyNow(s.Slices)
	return s, nil
}

// Health is how it stands with the API server.
func (w *Watcher) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Missing, h.Odd = append(w.credentials.sentences(time.Now()), w.missing()...), slices.Clone(w.topology.odd)
	h.CredentialsExpire = w.credentials.expire()
	h.Error = w.troubles()
	if w.calico != nil {
		h.APIGroup = w.calico.group
	}
	return h
}

// answered takes the outcome of a request for a resource. A failure that
// lasts is told once.
func (w *Watcher) answered(group, resource string, err error, lasting bool) {
	connected := err == nil || isAnswer(err)
	w.mu.Lock()
	if connected != w.health.Connected || w.health.Since.IsZero() {
		w.health.Connected, w.health.Since = connected, time.Now()
		defer w.tell()
		if connected {
			w.log.Info("API server answers", "server", w.server)
		}
	}
	if lasting {
		defer w.tell()
		w.say(w.sentence(group, resource, err))
	}
	w.mu.Unlock()
	if apierrors.IsNotFound(err) {
		w.askSurvey() // a CRD is gone: find out where Calico's objects are now
	}
}

// isAnswer reports whether an error came from the API server itself.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// say logs a sentence, and does not repeat it for a while. The caller holds mu.
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

// sentence says what a failed request means and what to do.
func (w *Watcher) sentence(group, resource string, err error) string {
	name := resource
	if group != "" {
		name += "." + group
	}
	var refusedConn *net.OpError
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the appliance may not list and watch %s (verbs list, watch; API group %q; resource %s): apply what `sallyport manifests` prints", name, group, resource)
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials of the kubeconfig: the token or certificate expired or was revoked; make a new one"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server has no resource %s", name)
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return fmt.Sprintf("the API server is behind what it told before of %s (its etcd was restored from a backup, or it lags behind another one): it is read anew", name)
	case isAnswer(err):
		return fmt.Sprintf("the API server answers a request for %s with an error: %v", name, err)
	case strings.Contains(err.Error(), "x509: ") || strings.Contains(err.Error(), "tls: "):
		return fmt.Sprintf("no TLS with the API server (%s): %v; check the server's name, its CA and the client certificate in the kubeconfig", w.server, root(err))
	case errors.As(err, &refusedConn):
		return fmt.Sprintf("the API server (%s) cannot be reached: %v; the last known objects stay", w.server, root(refusedConn))
	}
	return fmt.Sprintf("the API server (%s) does not answer: %v; the last known objects stay", w.server, root(err))
}

// root is the innermost error: what is around it repeats the URL, with
// parameters that change at each attempt.
func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// troubles are the sentences for every read that fails now. The caller holds
// mu.
func (w *Watcher) troubles() string {
	var all []string
	for _, s := range w.shelves() {
		if _, err := s.state(); err != nil {
			group, resource := s.of()
			if why := w.sentence(group, resource, err); !slices.Contains(all, why) {
				all = append(all, why)
			}
		}
	}
	// That there is no Calico is not in our way: missing says what stands in.
	without := w.calico != nil && w.calico.group == "" && errors.Is(w.surveyed, calico.ErrNone)
	if w.surveyed != nil && !without && len(all) == 0 {
		all = append(all, w.surveyed.Error())
	}
	return strings.Join(all, "; ")
}

// protectedNow returns the sockets of the API server: by the name or address we call
// it, and by the endpoints it gives itself. The caller holds mu.
func (w *Watcher) protectedNow(all []*discoveryv1.EndpointSlice) []netip.AddrPort {
	var servers []netip.AddrPort
	for _, ip := range w.protected {
		servers = append(servers, netip.AddrPortFrom(ip, w.port))
	}
	own := serviceKey{"default", "kubernetes"}
	from, _ := slices.BinarySearchFunc(all, own, func(s *discoveryv1.EndpointSlice, k serviceKey) int { return compareKeys(serviceOf(s), k) })
	for _, s := range all[from:] {
		if serviceOf(s) != own {
			break
		}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				ip, err := netip.ParseAddr(text)
				if err != nil {
					continue
				}
				servers = append(servers, netip.AddrPortFrom(ip, w.port))
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

// topologyMemo is the last Topology and what it was made of.
type topologyMemo struct {
	from      topologyInputs
	made      bool
	value     routes.Topology
	odd       []string
	protected []netip.AddrPort
	memory    *calico.Memory
}
