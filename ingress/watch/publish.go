package watch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/apiserver"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A publisher writes to the cluster. It holds one whole wish: all that is to be written. Statuses
// and Events are written side by side: statuses do not wait for Events, nor Events for statuses.
type publisher struct {
	kube      api
	log       *slog.Logger
	addresses []string // addresses or host names that Ingresses get; without one, no status of an Ingress is written
	pools     input.Pools
	ingresses *shelf[*networkingv1.Ingress]
	services  *shelf[*corev1.Service]

	controller string                                // of GatewayClasses that are ours; "" without Gateway API
	objects    func(resource string) []metav1.Object // the last versions of the objects of Gateway API
	// exports returns the ServiceExports with a status that can be written, and their version. It is nil if none are
	// read.
	exports func() (*shelf[*input.ServiceExport], schema.GroupVersion)

	names            *names                      // nil if nobody asked for names of Gateways
	statuses, events chan struct{}               // knock after a new wish
	wish             atomic.Pointer[Publication] // nil until the first wish

	mu        sync.Mutex
	refused   map[string]string               // by kind of object that may not be written: a sentence
	contested map[types.UID]ingress.ObjectRef // objects with a status that somebody else replaces
}

// A Publication has all that is to be written to a cluster.
//
// All members of a group compute the same Publication. They differ while a member is late or has
// another configuration, so only one of them writes over a status: Add and Replace are the
// conditions of a write.
type Publication struct {
	Served    []ingress.ObjectRef // Ingresses, which get the configured addresses in their status
	Balancers []ingress.Balancer  // Services, which get addresses of the pools in theirs
	Statuses  []*gateway.Status   // of objects of Gateway API; never changed
	Exports   []*ingress.Export   // of ServiceExports; never changed
	Pending   map[string]bool     // UIDs of Gateways with a listener that HAProxy does not have yet
	Problems  []ingress.Problem   // each becomes an Event
	Add       bool                // write a status that is empty
	Replace   bool                // write over a status, or remove it
}

// Publish writes to the cluster which of its Ingresses and Services are served. Each
// Ingress gets the configured addresses in status.loadBalancer, and every other one loses
// them. A Service of type LoadBalancer gets its addresses of the pools. A problem that the
// last call did not have becomes an Event on its object. Publish returns at once. Failed
// writes are repeated until the next call replaces them.
//
// The status of an Ingress counts as ours if it is exactly the configured addresses:
// several appliances that serve one cluster have to publish the same addresses.
func (w *Watcher) Publish(p Publication) {
	w.publisher.wish.Store(&p)
	knock(w.publisher.statuses)
	knock(w.publisher.events)
	if names := w.publisher.names; names != nil {
		knock(names.knocks)
	}
}

// old reports whether there is a newer wish.
func (p *publisher) old(wish *Publication) bool { return p.wish.Load() != wish }

func (p *publisher) refusals() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, what := range sortedKeys(p.refused) {
		all = append(all, p.refused[what])
	}
	return all
}

// rivals returns a sentence if somebody else replaces statuses.
func (p *publisher) rivals() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.contested) == 0 {
		return nil
	}
	names := make([]string, 0, len(p.contested))
	for _, o := range p.contested {
		names = append(names, strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")+" ("+o.Kind+")")
	}
	first := slices.Min(names)
	if len(names) > 1 {
		first += fmt.Sprintf(" and %d more", len(names)-1)
	}
	return []string{"somebody else replaces the status of " + first + " again and again: another appliance or group " +
		"with other addresses has the same class; give each a class of its own, or the same ingress.publish. For a " +
		"ServiceExport, give both the same clusters[].set"}
}

// refuse notes whether the appliance may write one kind of object.
func (p *publisher) refuse(what, sentence string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !apierrors.IsForbidden(err) {
		if err == nil {
			delete(p.refused, what)
		}
		return
	}
	if p.refused[what] == "" {
		p.log.Warn("cannot write to the cluster", "err", sentence)
	}
	if p.refused == nil {
		p.refused = make(map[string]string)
	}
	p.refused[what] = sentence
}

// republish is the time until a failed write is repeated. In this time a status that was just
// written is not written again: the shelf has to see the new status first. Two writers of one status
// answer each other more and more seldom (see note).
const republish = 5 * time.Second

// statusesPerSecond bounds the writes of status, which run one at a time. An API server on two busy
// cores commits 80 to 170 objects a second: the rest is for its other clients.
const statusesPerSecond = 50

// statusesRest is how long no status is written after some were: what changes meanwhile is looked through
// together. Each look costs a few milliseconds if there are 10,000 routes, and routing goes first.
const statusesRest = 100 * time.Millisecond

// statusesAtLeast is how many statuses are written although there is a newer wish. Otherwise no status
// would be written while changes come faster than one look takes.
const statusesAtLeast = int(statusesPerSecond * statusesRest / time.Second)

// publishStatuses writes statuses until ctx ends.
func (p *publisher) publishStatuses(ctx context.Context) {
	s := statuses{
		publisher: p, records: make(map[types.UID]record),
		budget: rate.NewLimiter(statusesPerSecond, 2*statusesPerSecond),
	}
	p.each(ctx, p.statuses, republish, func(wish *Publication) {
		now := time.Now()
		s.forget(now)
		s.write(ctx, wish, slices.Concat(
			s.apiStatuses(wish, now), p.ingressStatuses(wish), p.serviceStatuses(wish),
			p.exportStatuses(wish, metav1.NewTime(now))))
		select {
		case <-ctx.Done():
		case <-time.After(statusesRest):
		}
	})
}

// each calls write with the wish after each knock, and after each pause, until ctx ends.
func (p *publisher) each(ctx context.Context, knocks <-chan struct{}, pause time.Duration, write func(*Publication)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-knocks:
		case <-tick.C:
		}
		if wish := p.wish.Load(); wish != nil {
			write(wish)
		}
	}
}

// statuses write the status of objects. One goroutine owns them.
type statuses struct {
	*publisher
	records map[types.UID]record
	lacking map[types.UID]time.Time // since when an object of Gateway API lacks a status of ours
	right   map[types.UID]verdict   // objects of Gateway API that have the status they are to have
	budget  *rate.Limiter
	last    string // namespace that had its turn last
}

// write writes statuses. Namespaces take turns. After statusesAtLeast, it ends when there is a newer wish,
// which may have the change of another namespace.
func (s *statuses) write(ctx context.Context, wish *Publication, patches []statusPatch) {
	now := time.Now()
	patches = slices.DeleteFunc(patches, func(one statusPatch) bool { return s.rests(one, now) })
	denied := make(map[string]bool) // by right
	turns := inTurns(patches, s.last, func(one statusPatch) string { return one.of.GetNamespace() })
	for i, one := range turns {
		if denied[one.right] {
			continue
		}
		if i >= statusesAtLeast && s.old(wish) || s.budget.Wait(ctx) != nil {
			return
		}
		s.last = one.of.GetNamespace()
		one = one.filled()
		err := s.patch(ctx, one)
		switch {
		case apierrors.IsConflict(err):
			// The object has changed, and its new version arrives at any moment.
			time.AfterFunc(firstPause, func() { knock(s.statuses) })
		case err == nil, apierrors.IsNotFound(err), apierrors.IsInvalid(err):
			// The object has changed in the last two cases: the next round decides on its new state.
		case apierrors.IsForbidden(err):
			denied[one.right] = true
		default:
			one.log.Debug("status not published", "err", err)
			return // away; the next round tries again
		}
	}
}

// patch writes the status of an object.
func (s *statuses) patch(ctx context.Context, one statusPatch) error {
	patch, err := json.Marshal(one.body)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, apiserver.Patience)
	err = one.send(call, patch)
	cancel()
	switch {
	case err == nil, apierrors.IsInvalid(err):
		s.note(one, time.Now())
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // the object is gone, or its kind has no status
		s.records[one.of.GetUID()] = record{
			text: one.text, right: one.right, at: time.Now(), rest: republish,
		}
	}
	s.refuse(one.right, one.denied, err)
	if err == nil {
		one.log.Info(one.done) //nolint:sloglint // one of two constants
	}
	return err
}

// inTurns orders things so that namespaces take turns: none comes again before every other
// one had its turn. The namespace after the last one begins.
func inTurns[T any](things []T, last string, of func(T) string) []T {
	by := make(map[string][]T)
	for _, one := range things {
		by[of(one)] = append(by[of(one)], one)
	}
	names := sortedKeys(by)
	next, found := slices.BinarySearch(names, last)
	if found {
		next++
	}
	names = slices.Concat(names[next:], names[:next])
	ordered := make([]T, 0, len(things))
	for turn := 0; len(ordered) < len(things); turn++ {
		names = slices.DeleteFunc(names, func(name string) bool { return len(by[name]) <= turn })
		for _, name := range names {
			ordered = append(ordered, by[name][turn])
		}
	}
	return ordered
}

// ingressStatuses returns the statuses of Ingresses that are not as wished.
func (p *publisher) ingressStatuses(wish *Publication) (all []statusPatch) {
	ours := p.loadBalancer()
	if len(ours) == 0 {
		return nil
	}
	is := make(map[types.UID]bool, len(wish.Served))
	for _, o := range wish.Served {
		is[types.UID(o.UID)] = true
	}
	for _, ing := range p.ingresses.newest() {
		has := ing.Status.LoadBalancer.Ingress
		same := slices.EqualFunc(has, ours, func(a, b networkingv1.IngressLoadBalancerIngress) bool {
			return a.IP == b.IP && a.Hostname == b.Hostname
		})
		if is[ing.UID] == same || !wish.may(len(has)) {
			continue
		}
		all = append(all, statusPatch{
			of: ing, kindName: "Ingress", right: "status", done: "status published",
			denied: "the appliance may not write the status of Ingresses (verb patch; API group networking.k8s.io; " +
				"resource ingresses/status): apply what `sallyport manifests` prints",
			fill: func(one *statusPatch) {
				one.log = p.log.With("namespace", ing.Namespace, "ingress", ing.Name, "served", is[ing.UID])
				if is[ing.UID] {
					one.publish(ing, ours)
				} else {
					one.withdraw(ing)
				}
				to, kind := p.kube.Ingresses(ing.Namespace), one.kind
				one.send = func(ctx context.Context, patch []byte) error {
					_, err := to.Patch(ctx, ing.Name, kind, patch, metav1.PatchOptions{}, "status")
					return err
				}
			},
		})
	}
	return all
}

// publish sets the fields that write addresses into the status of an Ingress.
func (one *statusPatch) publish(ing *networkingv1.Ingress, addresses []networkingv1.IngressLoadBalancerIngress) {
	one.text, _ = json.Marshal(addresses) // addresses and names
	one.kind, one.body = types.MergePatchType, map[string]any{
		"metadata": map[string]any{"uid": ing.UID}, // never of another object of that name
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": addresses}},
	}
}

// withdraw sets the fields that remove the addresses from the status of an Ingress.
func (one *statusPatch) withdraw(ing *networkingv1.Ingress) {
	one.text = []byte("null")
	one.kind, one.body = types.JSONPatchType, []map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": ing.UID},
		{"op": "test", "path": "/status/loadBalancer/ingress", "value": ing.Status.LoadBalancer.Ingress},
		{"op": "remove", "path": "/status/loadBalancer/ingress"},
	}
}

// A statusPatch changes the status of an object.
type statusPatch struct {
	of            metav1.Object
	kindName      string // of the object
	kind          types.PatchType
	body          any
	text          []byte // of the status, as JSON
	send          func(ctx context.Context, patch []byte) error
	right, denied string // the right that it needs, and the sentence if the API server denies it: see refuse
	done          string // what is logged once it was written
	log           *slog.Logger

	fill func(*statusPatch) // sets the fields that take time to make; nil if they are set
}

// filled returns the patch with all its fields.
func (one statusPatch) filled() statusPatch {
	if one.fill != nil {
		one.fill(&one)
		one.fill = nil
	}
	return one
}

// may reports whether a status may be written that has a number of addresses now.
func (p *Publication) may(has int) bool { return has == 0 && p.Add || has > 0 && p.Replace }

// serviceStatuses returns the statuses of Services of type LoadBalancer that are not as wished. A
// write counts only if no other client has changed the Service meanwhile: the first of several
// members of a group writes, and the other members see the record.
func (p *publisher) serviceStatuses(wish *Publication) (all []statusPatch) {
	if len(p.pools.Ranges) == 0 {
		return nil
	}
	ours := make(map[types.UID]*ingress.Balancer, len(wish.Balancers))
	for i := range wish.Balancers {
		ours[types.UID(wish.Balancers[i].UID)] = &wish.Balancers[i]
	}
	for _, s := range p.services.newest() {
		has := s.Status.LoadBalancer.Ingress
		ingress := []corev1.LoadBalancerIngress{}
		if one := ours[s.UID]; one != nil {
			for _, a := range one.Addresses {
				ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String()})
			}
		} else if !p.pools.Stale(s) {
			continue
		}
		same := slices.EqualFunc(has, ingress,
			func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && a.Hostname == b.Hostname })
		if same || !wish.may(len(has)) {
			continue
		}
		text, _ := json.Marshal(ingress) // addresses
		all = append(all, statusPatch{
			of: s, kindName: "Service", kind: types.MergePatchType, text: text, right: "service status",
			done: "addresses of a Service recorded",
			denied: "the appliance may not write the status of Services (verb patch; API group \"\"; resource " +
				"services/status), and gives them no addresses: apply what `sallyport manifests` prints",
			log: p.log.With("namespace", s.Namespace, "service", s.Name, "addresses", ingress),
			body: map[string]any{
				"metadata": map[string]any{"uid": s.UID, "resourceVersion": s.ResourceVersion},
				"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}},
			},
			send: func(ctx context.Context, patch []byte) error {
				to := p.kube.Services(s.Namespace)
				_, err := to.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
				return err
			},
		})
	}
	return all
}

func (p *publisher) loadBalancer() (all []networkingv1.IngressLoadBalancerIngress) {
	for _, text := range p.addresses {
		if _, err := netip.ParseAddr(text); err == nil {
			all = append(all, networkingv1.IngressLoadBalancerIngress{IP: text})
		} else {
			all = append(all, networkingv1.IngressLoadBalancerIngress{Hostname: text})
		}
	}
	return all
}

// The budgets of Events: a namespace may have so many at once, and then one in a second;
// all namespaces together so many in a second.
const (
	eventsAtOnce    = 50
	eventsOfAll     = 25 // per second
	eventsLookEvery = time.Second
)

// publishEvents creates an Event for each problem, until ctx ends.
func (p *publisher) publishEvents(ctx context.Context) {
	e := events{
		publisher: p, told: make(map[ingress.Problem]bool), budgets: make(map[string]*rate.Limiter),
		all: rate.NewLimiter(eventsOfAll, 2*eventsAtOnce),
	}
	p.each(ctx, p.events, eventsLookEvery, func(wish *Publication) { e.write(ctx, wish) })
}

// events write Events. One goroutine owns them.
type events struct {
	*publisher
	told    map[ingress.Problem]bool // problems of the last wish that have their Event
	budgets map[string]*rate.Limiter // by namespace, of those that have used some
	all     *rate.Limiter
	last    string // namespace that had its turn last
}

// write creates an Event for each problem that has none yet. Namespaces take turns. It ends
// when there is a newer wish, which may have the first problem of another namespace.
func (e *events) write(ctx context.Context, wish *Publication) {
	now := make(map[ingress.Problem]bool, len(wish.Problems))
	var untold []ingress.Problem
	for _, p := range wish.Problems {
		if e.told[p] {
			now[p] = true
		} else {
			untold = append(untold, p)
		}
	}
	e.told = now
	at := time.Now()
	maps.DeleteFunc(e.budgets, func(_ string, b *rate.Limiter) bool { return b.TokensAt(at) >= eventsAtOnce })
	denied := 0
	for _, p := range inTurns(untold, e.last, func(p ingress.Problem) string { return p.Namespace }) {
		if ctx.Err() != nil || e.old(wish) {
			return
		}
		if now[p] {
			continue // it is there twice
		}
		budget := e.budgets[p.Namespace]
		if budget == nil {
			budget = rate.NewLimiter(1, eventsAtOnce)
			e.budgets[p.Namespace] = budget
		}
		if budget.Tokens() < 1 {
			continue
		}
		if !e.all.Allow() {
			return
		}
		budget.Allow()
		e.last = p.Namespace
		switch err := e.create(ctx, p); {
		case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err),
			apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			now[p] = true
		case apierrors.IsForbidden(err):
			// A quota of one namespace says nothing about other namespaces. A right that is missing
			// everywhere is not asked for again and again.
			if denied++; denied == 3 {
				return
			}
		default:
			e.log.Debug("event not written", "namespace", p.Namespace, "name", p.Name, "err", err)
			return
		}
	}
}

// create creates the Event of a problem.
func (e *events) create(ctx context.Context, p ingress.Problem) error {
	call, cancel := context.WithTimeout(ctx, apiserver.Patience)
	defer cancel()
	err := e.kube.CreateEvent(call, event(p, time.Now()))
	e.refuse("events", "the appliance may not create Events (verb create; API group \"\"; resource events): apply "+
		"what `sallyport manifests` prints", err)
	return err
}

// event returns the Event of a problem. Its name is a hash of its content, so that a
// fresh process does not repeat an Event that still exists.
func event(p ingress.Problem, at time.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(p.UID + "\x00" + p.Reason + "\x00" + p.Why))
	const longestName, longestMessage = 200, 1024 // a name is at most 253, a message 1024 bytes (core/v1 Event)
	name := strings.TrimRight(p.Name[:min(len(p.Name), longestName)], "-.")
	message := p.Why[:min(len(p.Why), longestMessage)]
	about := corev1.ObjectReference{
		Kind: p.Kind, APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID),
	}
	switch p.Kind {
	case "Ingress", "IngressClass":
		about.APIVersion = "networking.k8s.io/v1"
	case backendKind, tcpKind, globalKind, defaultKind, rulesKind:
		about.APIVersion = input.CustomV3
	case "EndpointSlice":
		about.APIVersion = "discovery.k8s.io/v1"
	case "GatewayClass", "Gateway", "ListenerSet", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "BackendTLSPolicy":
		about.APIVersion = gatewayv1.GroupVersion.String()
	}
	return &corev1.Event{
		// Events of objects without a namespace are in namespace default (core/v1 Event).
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(p.Namespace, metav1.NamespaceDefault), Name: name + "." + hex.EncodeToString(sum[:8]),
		},
		InvolvedObject: about, Type: corev1.EventTypeWarning, Reason: p.Reason, Message: message,
		Source: corev1.EventSource{Component: "sallyport"}, ReportingController: "sallyport",
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at), Count: 1,
	}
}
