package watch

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/apiserver"
	"sallyport/ingress/input"
)

// A gatewayKind is a kind of Gateway API that is watched.
type gatewayKind struct {
	resource string
	name     string
	open     func(*Watcher, schema.GroupVersion) gatewayShelf
}

// A gatewayShelf is a shelf for the objects of one kind of Gateway API.
type gatewayShelf interface {
	anyShelf
	empty() bool
	incomplete() []string
	objects() []metav1.Object
}

// gatewayKinds are all kinds of Gateway API that are watched. UDPRoutes are not among them, since
// HAProxy passes no UDP on.
var gatewayKinds = []gatewayKind{
	kindOf(classes, "GatewayClass", "GatewayClasses", func(o *gatewayv1.GatewayClass) {
		o.Status = gatewayv1.GatewayClassStatus{}
	}),
	kindOf("gateways", "Gateway", "Gateways", func(o *gatewayv1.Gateway) {
		o.Status = gatewayv1.GatewayStatus{Addresses: o.Status.Addresses}
	}),
	kindOf("listenersets", "ListenerSet", "ListenerSets", func(o *gatewayv1.ListenerSet) {
		o.Status = gatewayv1.ListenerSetStatus{}
	}),
	kindOf("httproutes", "HTTPRoute", "HTTPRoutes", func(o *gatewayv1.HTTPRoute) {
		o.Status = gatewayv1.HTTPRouteStatus{}
	}),
	kindOf("grpcroutes", "GRPCRoute", "GRPCRoutes", func(o *gatewayv1.GRPCRoute) {
		o.Status = gatewayv1.GRPCRouteStatus{}
	}),
	kindOf("tlsroutes", "TLSRoute", "TLSRoutes", func(o *gatewayv1.TLSRoute) {
		o.Status = gatewayv1.TLSRouteStatus{}
	}),
	kindOf("tcproutes", "TCPRoute", "TCPRoutes", func(o *gatewayv1.TCPRoute) {
		o.Status = gatewayv1.TCPRouteStatus{}
	}),
	kindOf(grants, "ReferenceGrant", "ReferenceGrants", func(*gatewayv1.ReferenceGrant) {}),
	kindOf("backendtlspolicies", "BackendTLSPolicy", "BackendTLSPolicies", func(o *gatewayv1.BackendTLSPolicy) {
		o.Status = gatewayv1.PolicyStatus{}
	}),
}

// Resources of Gateway API with a part of their own.
const (
	classes = "gatewayclasses"
	grants  = "referencegrants"
)

// kindOf returns a kind. Its plural is for sentences. unread removes the part of the status that
// Compile does not read: an object with another such part has not changed.
func kindOf[T any, PT interface {
	*T
	object
}](resource, kind, plural string, unread func(PT)) gatewayKind {
	return gatewayKind{resource, kind, func(w *Watcher, version schema.GroupVersion) gatewayShelf {
		most := w.objectBytes()
		if resource == classes {
			most = 0
		}
		share := newAllowance("objectBytes", kind, most, func(PT) bool { return true })
		share.plural = plural
		share.follows = "each may restrict the access to others, so all clients of the namespace are rejected until " +
			"it has fewer or smaller ones"
		s := newShare(w, version.Group, resource, input.ByName[PT], share,
			func(namespace string) reader[runtime.Object] {
				return w.kube.API(version.WithResource(resource), namespace)
			})
		s.same = func(a, b PT) bool {
			x, y := *a, *b
			unread(&x)
			unread(&y)
			return sameButVersion[PT](&x, &y)
		}
		s.without = plural + " cannot be read: no Gateway is served"
		return s
	}}
}

// gateways are the objects of Gateway API, if Options enable it.
type gateways struct {
	known   bool    // the kinds that the cluster serves were found once
	none    absence // of all of them in the cluster, or of the right to read them
	reach   reach   // "" until known; readable if somebody asked for Gateways
	err     error   // why the kinds cannot be found now
	crds    bundle  // zero if it is not known
	shelves map[string]*openShelf
}

// An openShelf is a shelf that is filled until it is stopped.
type openShelf struct {
	gatewayShelf
	version string // of the API
	stop    context.CancelFunc
}

// all returns the shelves in the order of gatewayKinds.
func (g *gateways) all() (all []gatewayShelf) {
	for _, name := range sortedKeys(g.shelves) {
		all = append(all, g.shelves[name].gatewayShelf)
	}
	return all
}

// objects returns the last versions of the objects of a resource, or none if it is not watched.
func (w *Watcher) objects(resource string) []metav1.Object {
	w.mu.Lock()
	shelf := w.gateways.shelves[resource]
	w.mu.Unlock()
	if shelf == nil {
		return nil
	}
	return shelf.objects()
}

// surveyGateways opens a shelf for each kind of Gateway API that the cluster serves, and closes
// those of kinds that it serves no more. It returns how long to wait before the next survey.
//
// A closed shelf had no objects. When a CRD is deleted, the API server deletes its objects first, one
// by one, and each deletion counts at once. What is on a shelf then was never reported as deleted,
// so it stays.
func (w *Watcher) surveyGateways(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	if !w.cfg.Options.Gateway.Enabled {
		return surveyEvery
	}
	w.mu.Lock()
	g := &w.gateways
	known := g.known
	w.mu.Unlock()
	ready := !known && w.ready(ctx)
	versions, reach, err := w.gatewaysInReach(ctx)
	var crds bundle
	if len(versions) > 0 {
		crds = w.bundleOfGateways(ctx)
	}
	if ctx.Err() != nil {
		return surveyEvery
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if crds != g.crds && crds != (bundle{}) {
		g.crds = crds
		defer w.wake()
	}
	if was := g.err; (err == nil) != (was == nil) {
		defer w.wake()
	}
	if g.err = err; err != nil {
		w.say(err.Error())
		return firstPause * 5
	}
	g.none.note(len(versions) == 0)
	// An API server that starts answers "not found" until it has read its CRDs. It is ready afterwards.
	if len(versions) > 0 || ready || g.none.lasts() {
		if !g.known || g.reach != reach {
			defer w.wake()
		}
		if w.cfg.Options.Gateway.Unasked && g.reach != reach {
			w.log.Info("Gateways follow the cluster", "why", string(reach))
		}
		g.known, g.reach = true, reach
	}
	for _, kind := range gatewayKinds {
		w.settleKind(ctx, wg, kind, versions[kind.resource])
	}
	if len(g.shelves) > 0 {
		w.openNamespaces(ctx, wg)
	}
	if len(versions) == 0 && !w.cfg.Options.Gateway.Unasked {
		return surveyNone
	}
	return surveyEvery
}

// A reach says in a sentence whether the objects of Gateway API can be read.
type reach string

const (
	readable reach = "the cluster has the CRDs of Gateway API: its Gateways are served"
	absent   reach = "the cluster does not have the CRDs of Gateway API: Gateways are served once it has them"
	barred   reach = "the cluster has the CRDs of Gateway API, but no Gateway is served: the appliance lacks the " +
		"rights to read the objects, which `sallyport manifests` prints"
)

// gatewaysInReach returns for each kind of Gateway API that is to be read its group and version. If
// nobody asked for Gateways, it returns none while the cluster lacks one of the kinds that every
// Gateway needs, or the rights to read them. The manifests give all of these rights together, so one
// request tells. It is not made while shelves are open: a lost right is then an error of its shelf.
func (w *Watcher) gatewaysInReach(ctx context.Context) (map[string]schema.GroupVersion, reach, error) {
	versions, err := w.servedGateways(ctx)
	if err != nil || !w.cfg.Options.Gateway.Unasked {
		return versions, readable, err
	}
	if versions[classes].Empty() || versions["gateways"].Empty() {
		return nil, absent, nil
	}
	w.mu.Lock()
	open := len(w.gateways.shelves) > 0
	w.mu.Unlock()
	if open {
		return versions, readable, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	_, err = w.kube.API(versions[classes].WithResource(classes), "").List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsForbidden(err):
		return nil, barred, nil
	case err != nil:
		return nil, "", errors.New(w.server.Sentence(gatewayv1.GroupName, classes, err))
	}
	return versions, readable, nil
}

// GatewayKinds says which kinds of Gateway API a cluster serves, of those that are read.
type GatewayKinds struct {
	All, Missing []string
	Experimental bool // the CRDs are those of the experimental channel
}

// GatewayKinds asks the cluster for its kinds of Gateway API.
func (w *Watcher) GatewayKinds(ctx context.Context) (k GatewayKinds, err error) {
	versions, err := w.servedGateways(ctx)
	if err != nil {
		return k, err
	}
	for _, kind := range gatewayKinds {
		k.All = append(k.All, kind.name)
		if versions[kind.resource].Empty() {
			k.Missing = append(k.Missing, kind.name)
		}
	}
	// only the experimental channel has this field of an HTTPRoute
	schema, err := w.kube.Document(ctx, "/openapi/v3/apis/"+gatewayv1.GroupVersion.String())
	k.Experimental = err == nil && bytes.Contains(schema, []byte(`"sessionPersistence"`))
	return k, nil
}

// ready reports whether the API server says that it is ready.
func (w *Watcher) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	text, err := w.kube.Document(ctx, "/readyz")
	return err == nil && string(text) == "ok"
}

// servedGateways returns for each kind of Gateway API that the cluster serves its group and version.
func (w *Watcher) servedGateways(ctx context.Context) (map[string]schema.GroupVersion, error) {
	v1 := schema.GroupVersion(gatewayv1.GroupVersion)
	versions := map[string]schema.GroupVersion{}
	served, err := w.servedIn(ctx, v1.String())
	if err != nil {
		return nil, err
	}
	var older []string
	if !slices.Contains(served, grants) {
		if older, err = w.servedIn(ctx, grantsV1Beta1.String()); err != nil {
			return nil, err
		}
	}
	for _, kind := range gatewayKinds {
		switch {
		case slices.Contains(served, kind.resource):
			versions[kind.resource] = v1
		case kind.resource == grants && slices.Contains(older, grants):
			versions[grants] = grantsV1Beta1
		}
	}
	return versions, nil
}

// A bundle is a release of the CRDs of Gateway API.
type bundle struct {
	version string // as v1.6.3
	channel string // standard or experimental
}

// bundleOfGateways returns the bundle in the cluster, or the zero bundle if it cannot be read. Only the
// status of GatewayClasses depends on it, so the next survey is soon enough to try again.
func (w *Watcher) bundleOfGateways(ctx context.Context) bundle {
	crd, err := w.get(ctx, "apiextensions.k8s.io/v1", "customresourcedefinitions", classes+"."+gatewayv1.GroupName)
	if err != nil {
		return bundle{}
	}
	notes := crd.GetAnnotations()
	return bundle{notes[bundleVersion], notes[bundleChannel]}
}

// Annotations of the CRDs say which bundle they are of.
const (
	bundleVersion = gatewayv1.GroupName + "/bundle-version"
	bundleChannel = gatewayv1.GroupName + "/channel"
)

// settleKind opens or closes the shelf of a kind. A zero version means that the cluster does not
// serve the kind. The caller holds mu.
func (w *Watcher) settleKind(ctx context.Context, wg *sync.WaitGroup, kind gatewayKind, version schema.GroupVersion) {
	g := &w.gateways
	now := g.shelves[kind.resource]
	if now != nil && (version.Empty() && now.empty() || !version.Empty() && now.version != version.Version) {
		now.stop()
		delete(g.shelves, kind.resource)
		now = nil
		defer w.wake()
	}
	if now == nil && !version.Empty() {
		w.openShelf(ctx, wg, kind.resource, version.Version, kind.open(w, version))
	}
}

// openNamespaces watches Namespaces, unless they are watched already. Their labels decide which
// routes a Gateway admits. The caller holds mu.
func (w *Watcher) openNamespaces(ctx context.Context, wg *sync.WaitGroup) {
	const resource = "namespaces"
	if w.cfg.Options.NamespaceSelector != "" || w.gateways.shelves[resource] != nil {
		return
	}
	s := newOne[*corev1.Namespace](w, corev1.GroupName, resource, input.ByName, w.kube.Namespaces(), "")
	s.without = "Namespaces cannot be read: no Gateway is served"
	w.openShelf(ctx, wg, resource, "v1", s)
}

// openShelf fills a shelf until it is stopped. The caller holds mu.
func (w *Watcher) openShelf(ctx context.Context, wg *sync.WaitGroup, resource, version string, s gatewayShelf) {
	ctx, stop := context.WithCancel(ctx)
	if w.gateways.shelves == nil {
		w.gateways.shelves = make(map[string]*openShelf)
	}
	w.gateways.shelves[resource] = &openShelf{s, version, stop}
	s.start(ctx, wg)
}

// addGateways adds the objects of Gateway API to a snapshot. It returns the names of the lists that
// the snapshot waits for. If one kind cannot be read, it adds none of them, because a policy or a
// grant changes the meaning of a route.
func (w *Watcher) addGateways(s *input.Snapshot) (waiting []string) {
	if !w.cfg.Options.Gateway.Enabled {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.gateways.known {
		return []string{"the kinds of Gateway API"}
	}
	s.APIBundle, s.APIChannel = w.gateways.crds.version, w.gateways.crds.channel
	all := w.gateways.all()
	if slices.ContainsFunc(all, func(one gatewayShelf) bool { return one.lacking() != "" }) {
		return nil
	}
	for _, one := range all {
		if one.awaited() {
			waiting = append(waiting, one.name())
		}
		one.addTo(&s.Objects)
		s.Beyond = append(s.Beyond, one.problems(s.Cluster)...)
		s.Incomplete = append(s.Incomplete, one.incomplete()...)
	}
	slices.Sort(s.Incomplete)
	s.Incomplete = slices.Compact(s.Incomplete)
	return waiting
}

// noGateways is the sentence about a cluster without the CRDs of Gateway API.
const noGateways = "the cluster does not serve GatewayClasses and Gateways of gateway.networking.k8s.io/v1, so no " +
	"Gateway is served: install the CRDs of Gateway API, or set clusters[].gateway.enabled to false"

// withoutGateways returns a sentence if somebody asked for Gateways and the cluster cannot have them, or "".
// The caller holds mu.
func (w *Watcher) withoutGateways() string {
	g := &w.gateways
	if !w.cfg.Options.Gateway.Unasked && g.known && (g.shelves["gateways"] == nil || g.shelves[classes] == nil) {
		return noGateways
	}
	return ""
}
