package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/input"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/calico"
	"sallyport/routes"
)

// calicoShelves hold Calico's objects of one API group.
type calicoShelves struct {
	group   string // with version; "" if the cluster serves none
	stop    context.CancelFunc
	shelves map[string]*shelf[*unstructured.Unstructured]
}

// calicoObjects are the objects of Calico in the API group that the survey has found.
type calicoObjects struct {
	inUse   *calicoShelves // nil until an API group is found
	next    *calicoShelves // replaces inUse once all of it was read
	none    absence        // of any API group of Calico in the cluster
	unknown error          // why the API group is not known; nil if it is known
	have    calico.Presence
}

// calicoResources are the resources of Calico that are watched. Only the first is
// indispensable.
var calicoResources = []string{
	"blockaffinities", "ipamblocks", "ippools", "bgpconfigurations", "bgppeers", calicoFilters,
}

// calicoFilters is a resource of Calico that nothing is compiled from: no snapshot waits
// for it.
const calicoFilters = "bgpfilters"

func (c *calicoShelves) all() (all []*shelf[*unstructured.Unstructured]) {
	for _, r := range calicoResources {
		if s := c.shelves[r]; s != nil {
			all = append(all, s)
		}
	}
	return all
}

func (c *calicoShelves) waiting() (names []string) {
	for _, s := range c.all() {
		if full, _ := s.state(); !full && s.resource != calicoFilters &&
			(s.resource == calicoResources[0] || !s.barred()) {
			names = append(names, s.name())
		}
	}
	return names
}

func (c *calicoShelves) list(resource string) []*unstructured.Unstructured {
	if s := c.shelves[resource]; s != nil {
		return s.list()
	}
	return nil
}

// readable reports whether a resource was read at least once.
func (c *calicoShelves) readable(resource string) bool {
	s := c.shelves[resource]
	if s == nil {
		return false
	}
	full, _ := s.state()
	return full
}

// without reports whether a resource does not exist, or may not be read.
func (c *calicoShelves) without(resource string) bool {
	s := c.shelves[resource]
	return s == nil || s.barred()
}

// surveyEvery is the time between two searches for the API group of Calico's objects.
// It bounds the time until a new CRD, or the end of a migration, is noticed.
const surveyEvery = 30 * time.Second

// surveyNone is the time between two searches while no group is found: Calico may be
// about to be installed.
const surveyNone = 5 * time.Second

func (w *Watcher) askSurvey() { knock(w.look) }

// survey keeps watching the API group that holds Calico's objects until ctx ends.
func (w *Watcher) survey(ctx context.Context, wg *sync.WaitGroup) {
	pause := firstPause
	for ctx.Err() == nil {
		w.resolve(ctx)
		group, served, err := w.chosen(ctx)
		if ctx.Err() != nil {
			return
		}
		if w.settle(ctx, wg, group, served, err) {
			pause = surveyEvery
			if errors.Is(err, calico.ErrNone) {
				pause = surveyNone
			}
		} else {
			pause = min(2*pause, longestPause)
		}
		pause = min(pause, w.surveyGateways(ctx, wg))
		for _, x := range w.optionals {
			pause = min(pause, x.survey(ctx, wg, w))
		}
		wake := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wake.C:
		case <-w.look:
		}
		wake.Stop()
	}
}

// settle acts on the outcome of a survey. The group in use stays in use until all of
// the new one was read (promote): there is no moment without blocks.
func (w *Watcher) settle(
	ctx context.Context, wg *sync.WaitGroup, group string, served []string, err error,
) (found bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calico.none.note(errors.Is(err, calico.ErrNone))
	if w.calico.inUse == nil && w.calico.next == nil && w.calico.none.lasts() {
		// A cluster without Calico's CRDs may still announce its podCIDRs. If Calico's CRDs were
		// removed, the cluster keeps its last known objects: inUse is not nil then.
		w.calico.inUse = &calicoShelves{stop: func() {}}
		defer w.wake()
	}
	if (err == nil) != (w.calico.unknown == nil) || err != nil && err.Error() != w.calico.unknown.Error() {
		defer w.wake()
	}
	w.calico.unknown = err
	if err != nil {
		w.say(err.Error())
		return w.calico.inUse != nil && w.calico.inUse.group == "" && errors.Is(err, calico.ErrNone)
	}
	if w.calico.next != nil && !w.calico.next.serves(group, served) {
		w.calico.next.stop()
		w.calico.next = nil
	}
	if w.calico.next == nil && (w.calico.inUse == nil || !w.calico.inUse.serves(group, served)) {
		w.calico.next = w.open(ctx, wg, group, served)
	}
	return true
}

// promote replaces the group in use by the next one, once all objects of the next one
// were read. The caller holds mu.
func (w *Watcher) promote() {
	if w.calico.next == nil || len(w.calico.next.waiting()) > 0 {
		return
	}
	if w.calico.inUse != nil {
		w.calico.inUse.stop()
		w.log.Info("Calico's objects are read from another API group",
			"was", w.calico.inUse.group, "is", w.calico.next.group)
	}
	w.calico.inUse, w.calico.next = w.calico.next, nil
}

func (c *calicoShelves) serves(group string, served []string) bool {
	if c.group != group {
		return false
	}
	for _, r := range calicoResources {
		if slices.Contains(served, r) != (c.shelves[r] != nil) {
			return false
		}
	}
	return true
}

// open starts watching a group. The caller holds mu.
func (w *Watcher) open(ctx context.Context, wg *sync.WaitGroup, group string, served []string) *calicoShelves {
	ctx, cancel := context.WithCancel(ctx)
	c := &calicoShelves{group: group, stop: cancel, shelves: make(map[string]*shelf[*unstructured.Unstructured])}
	version, _ := schema.ParseGroupVersion(group) // a group that the cluster serves always parses
	for _, r := range calicoResources {
		if !slices.Contains(served, r) {
			continue
		}
		s := newShelf[*unstructured.Unstructured](w, version.Group, r, input.ByName)
		s.strip = func(u *unstructured.Unstructured) {
			// Annotations of v1 objects repeat their metadata.
			u.SetAnnotations(nil)
			unstructured.RemoveNestedField(u.Object, "status")
		}
		// A released block shows that in its state before it is deleted, so that a late
		// deletion delays nothing.
		s.wary = true
		c.shelves[r] = s
		from := w.dynamic.Resource(version.WithResource(r))
		wg.Go(func() {
			s.run(ctx, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return from.List(ctx, o)
			}, from.Watch)
		})
	}
	return c
}

// chosen returns the API group that holds Calico's objects, and the resources that
// the group serves.
func (w *Watcher) chosen(ctx context.Context) (group string, served []string, err error) {
	v1, err1 := w.servedIn(ctx, calico.V1)
	v3, err3 := w.servedIn(ctx, calico.V3)
	switch {
	case w.cfg.APIGroup == calico.V1:
		return given(calico.V1, v1, err1)
	case w.cfg.APIGroup == calico.V3:
		return given(calico.V3, v3, err3)
	case err1 != nil:
		return "", nil, err1
	case err3 != nil && len(v1) > 0:
		// A registered group that does not answer is an aggregated API server that is
		// down. Such a server holds no objects itself.
		return calico.V1, v1, nil
	case err3 != nil:
		return "", nil, err3
	}
	have := calico.Presence{V1: len(v1) > 0, V3: len(v3) > 0}
	if have.V1 && have.V3 {
		if have.V3IsCRD, err = w.v3IsCRD(ctx); err != nil {
			return "", nil, err
		}
		if have.V3IsCRD {
			if have.Ready1, err = w.datastoreReady(ctx, calico.V1); err != nil {
				return "", nil, err
			}
			if have.Ready3, err = w.datastoreReady(ctx, calico.V3); err != nil {
				return "", nil, err
			}
		}
	}
	w.mu.Lock()
	w.calico.have = have
	w.mu.Unlock()
	if group, err = calico.Choose(have); group == calico.V3 {
		return group, v3, err
	}
	return group, v1, err
}

func given(group string, served []string, err error) (string, []string, error) {
	if err == nil && len(served) == 0 {
		err = fmt.Errorf("the cluster does not serve %s, which the configuration names as the API group "+
			"of Calico's objects", group)
	}
	return group, served, err
}

// servedIn returns the resources of a group; none if the group is not served.
func (w *Watcher) servedIn(ctx context.Context, group string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	var list metav1.APIResourceList
	text, err := w.kube.Document(ctx, "/apis/"+group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil && !apiserver.IsAnswer(err) {
		return nil, errors.New(w.server.Unanswered(err))
	}
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the resources of %s: %w", group, apiserver.Root(err))
	}
	var served []string
	for _, r := range list.APIResources {
		served = append(served, r.Name)
	}
	return served, nil
}

// v3IsCRD reports whether projectcalico.org/v3 is made of CRDs.
func (w *Watcher) v3IsCRD(ctx context.Context) (bool, error) {
	service, err := w.get(ctx, "apiregistration.k8s.io/v1", "apiservices", v3APIService)
	if err != nil {
		return false, w.undecided("APIService "+v3APIService, err)
	}
	return service.GetLabels()["kube-aggregator.kubernetes.io/automanaged"] == "true", nil
}

// datastoreReady reports whether Calico calls the objects of a group ready.
func (w *Watcher) datastoreReady(ctx context.Context, group string) (bool, error) {
	info, err := w.get(ctx, group, "clusterinformations", "default")
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, w.undecided("ClusterInformation default of "+group, err)
	}
	ready, _, _ := unstructured.NestedBool(info.Object, "spec", "datastoreReady")
	return ready, nil
}

// get reads one object of no namespace. group is with its version.
func (w *Watcher) get(ctx context.Context, group, resource, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	version, err := schema.ParseGroupVersion(group)
	if err != nil {
		return nil, err
	}
	return w.dynamic.Resource(version.WithResource(resource)).Get(ctx, name, metav1.GetOptions{})
}

func (w *Watcher) undecided(without string, err error) error {
	if !apiserver.IsAnswer(err) {
		return errors.New(w.server.Unanswered(err))
	}
	return fmt.Errorf("the API group of Calico's objects cannot be determined without %s: %w; "+
		"apply what `sallyport manifests` prints, or set the group in the configuration", without, apiserver.Root(err))
}

// resolve looks up the addresses of the API server. The last ones stay while the
// resolver fails.
func (w *Watcher) resolve(ctx context.Context) {
	var addrs []netip.Addr
	if ip, err := netip.ParseAddr(w.server.Host); err == nil {
		addrs = []netip.Addr{ip}
	} else {
		ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
		defer cancel()
		if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", w.server.Host); err != nil {
			return
		}
	}
	for i, a := range addrs {
		addrs[i] = a.Unmap()
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(addrs, w.protected) {
		w.protected = addrs
		defer w.wake()
	}
}

// topologyNow returns the Topology of the Nodes and Calico's objects. It makes a new
// one only if they changed. The caller holds mu.
func (w *Watcher) topologyNow(all []*discoveryv1.EndpointSlice) routes.Topology {
	c, m := w.calico.inUse, &w.topology
	now := calico.Objects{
		Cluster: w.cfg.Name, Nodes: w.nodes.list(),
		Affinities: c.list("blockaffinities"), Blocks: c.list("ipamblocks"), Pools: c.list("ippools"),
		Configs: c.list("bgpconfigurations"), Peers: c.list("bgppeers"), Filters: c.list(calicoFilters),
		NoAffinities: c.shelves["blockaffinities"] == nil, NoBlocks: !c.readable("ipamblocks"),
		NoConfigs: !c.readable("bgpconfigurations"), NoFilters: !c.readable(calicoFilters),
		Group: c.group, ASN: w.cfg.ASN, Own: w.cfg.OwnAddrs, OwnASN: w.cfg.OwnASN, Memory: m.memory,
	}
	protected, endpoints := w.protectedNow(), w.endpointsNow(all)
	if reflect.DeepEqual(m.from, now) && slices.Equal(m.protected, protected) && slices.Equal(m.endpoints, endpoints) {
		return m.value
	}
	t, odd := calico.Topology(now)
	t.Bounds, t.Reflectors, t.HostNetwork = w.cfg.Bounds, w.cfg.Reflectors, w.cfg.HostNetwork
	t.Source = w.cfg.Source
	t.Protected, t.Endpoints = protected, endpoints
	told := m.odd
	*m = topologyMemo{from: now, value: t, protected: protected, endpoints: endpoints, memory: m.memory}
	for _, o := range odd {
		m.odd = append(m.odd, o.String())
		if !slices.Contains(told, o.String()) {
			w.log.Warn("object of Calico not understood, or not as it should be",
				"kind", o.Kind, "name", o.Name, "why", o.Why)
		}
	}
	return t
}

// missing returns a sentence for each thing that the cluster does not have or does not
// allow. The caller holds mu.
func (w *Watcher) missing() (all []string) {
	for _, s := range w.shelves() {
		if why := s.lacking(); why != "" {
			all = append(all, why)
		}
	}
	if w.topology.value.HostLocal {
		all = append(all, "pods get their addresses from the podCIDRs of the nodes (host-local IPAM), and no object "+
			"records which pod has which: an EndpointSlice of any namespace may name any pod of the "+
			"cluster as a server")
	}
	whys := []string{w.withoutGateways()}
	for _, x := range w.optionals {
		whys = append(whys, x.lacking())
	}
	for _, why := range whys {
		if why != "" {
			all = append(all, why)
		}
	}
	c := w.calico.inUse
	switch {
	case c == nil:
		return append(all, w.publisher.refusals()...)
	case c.group == "":
		return append(append(all, calico.ErrNone.Error()+"; the podCIDRs of the nodes replace its blocks"),
			w.publisher.refusals()...)
	}
	if doubt := w.calico.have.Doubt(); doubt != "" {
		all = append(all, doubt)
	}
	for _, r := range []struct{ resource, without string }{
		{"blockaffinities", "the podCIDRs of the nodes replace the blocks"},
		{"ipamblocks", "an EndpointSlice of any namespace may name any pod of the cluster as a server, borrowed " +
			"addresses have no route, and the owner of a block with two affinities is unknown"},
		{"ippools", "only the bounds of the configuration limit the imported routes"},
		{"bgpconfigurations", "the AS number of the configuration replaces the cluster's"},
		{"bgppeers", "a localASNumber for the sessions to the appliance is ignored"},
		{calicoFilters, "it is unknown whether the nodes would learn routes from the appliance"},
	} {
		if !c.readable(r.resource) && (r.resource != calicoFilters || c.without(calicoFilters)) {
			why := fmt.Sprintf("%s of %s cannot be read or do not exist: %s", r.resource, c.group, r.without)
			all = append(all, why)
		}
	}
	return append(all, w.publisher.refusals()...)
}
