package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
)

// A publisher holds one whole wish: all that is to be written to the cluster.
type publisher struct {
	knock chan struct{}
	wish  atomic.Pointer[Publication] // nil: there is none yet

	mu      sync.Mutex
	refused map[string]string // by kind of object that may not be written: a sentence
}

// A Publication is what is to be written to a cluster.
//
// The members of a group all write, and each computes the same. They differ while one of
// them is late or has another configuration, so that each write has its condition.
type Publication struct {
	Served    []ObjectRef // Ingresses, which get the configured addresses in their status
	Balancers []Balancer  // Services, which get addresses of the pools in theirs
	Problems  []Problem   // each becomes an Event
	Add       bool        // write a status that is empty
	Replace   bool        // write over a status, or remove it
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
	knock(w.publisher.knock)
}

func (p *publisher) refusals() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, what := range sortedKeys(p.refused) {
		all = append(all, p.refused[what])
	}
	return all
}

// refuse notes whether the appliance may write one kind of object.
func (w *Watcher) refuse(what, sentence string, err error) {
	p := &w.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	if !apierrors.IsForbidden(err) {
		if err == nil {
			delete(p.refused, what)
		}
		return
	}
	if p.refused[what] == "" {
		w.log.Warn("cannot write to the cluster", "err", sentence)
	}
	if p.refused == nil {
		p.refused = make(map[string]string)
	}
	p.refused[what] = sentence
}

// republish is the time until a failed write is repeated. It is also the time in which
// a status that was just written is not written again: the shelf has to see it first,
// and another writer of the status must not be answered at full speed.
const republish = 5 * time.Second

// publish writes wishes until ctx ends. It limits the rate of Events; the rest of them
// wait.
func (w *Watcher) publish(ctx context.Context) {
	var (
		written = make(map[types.UID]time.Time)
		told    = make(map[Problem]bool)
		limit   = flowcontrol.NewTokenBucketRateLimiter(5, 50)
		tick    = time.NewTicker(republish)
	)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.publisher.knock:
		case <-tick.C:
		}
		if wish := w.publisher.wish.Load(); wish != nil {
			now := time.Now()
			for uid, at := range written {
				if now.Sub(at) >= republish {
					delete(written, uid)
				}
			}
			w.writeStatus(ctx, wish, written)
			w.writeAddresses(ctx, wish, written)
			told = w.writeEvents(ctx, wish.Problems, told, limit)
		}
	}
}

// writeStatus writes the status of Ingresses. It notes in written when it wrote which.
func (w *Watcher) writeStatus(ctx context.Context, wish *Publication, written map[types.UID]time.Time) {
	ours := w.loadBalancer()
	if len(ours) == 0 {
		return
	}
	is := make(map[types.UID]bool, len(wish.Served))
	for _, o := range wish.Served {
		is[types.UID(o.UID)] = true
	}
	for _, ing := range w.ingresses.newest() {
		has := ing.Status.LoadBalancer.Ingress
		same := slices.EqualFunc(has, ours, func(a, b networkingv1.IngressLoadBalancerIngress) bool {
			return a.IP == b.IP && a.Hostname == b.Hostname
		})
		if _, waits := written[ing.UID]; waits || is[ing.UID] == same || !wish.may(len(has)) {
			continue
		}
		var (
			kind types.PatchType
			body any
		)
		if is[ing.UID] {
			kind, body = types.MergePatchType, map[string]any{
				"metadata": map[string]any{"uid": ing.UID}, // never of another object of that name
				"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ours}},
			}
		} else {
			kind, body = types.JSONPatchType, []map[string]any{
				{"op": "test", "path": "/metadata/uid", "value": ing.UID},
				{"op": "test", "path": "/status/loadBalancer/ingress", "value": has},
				{"op": "remove", "path": "/status/loadBalancer/ingress"},
			}
		}
		log := w.log.With("namespace", ing.Namespace, "ingress", ing.Name, "served", is[ing.UID])
		done, more := patchStatus(ctx, w, w.kube.Ingresses(ing.Namespace), written, statusPatch{
			of: ing, kind: kind, body: body, log: log, right: "status",
			denied: "the appliance may not write the status of Ingresses (verb patch; API group networking.k8s.io; resource ingresses/status): apply what `sallyport manifests` prints",
		})
		if done {
			log.Info("status published")
		}
		if !more {
			return
		}
	}
}

// A statusPatch changes the status of an object.
type statusPatch struct {
	of            metav1.Object
	kind          types.PatchType
	body          any
	right, denied string // the right that it needs, and the sentence if the API server denies it: see refuse
	log           *slog.Logger
}

// patchStatus writes the status of an object, and notes in written when. It reports whether
// the API server took it, and whether another write may follow: not if the right is denied,
// nor if the API server is away.
func patchStatus[L runtime.Object, T any](ctx context.Context, w *Watcher, client statusClient[L, T], written map[types.UID]time.Time, p statusPatch) (done, more bool) {
	patch, err := json.Marshal(p.body)
	if err != nil {
		w.log.Error("status cannot be encoded", "err", err)
		return false, true
	}
	if ctx.Err() != nil {
		return false, false
	}
	call, cancel := context.WithTimeout(ctx, askFor)
	_, err = client.Patch(call, p.of.GetName(), p.kind, patch, metav1.PatchOptions{}, "status")
	cancel()
	written[p.of.GetUID()] = time.Now()
	w.refuse(p.right, p.denied, err)
	switch {
	case err == nil:
		return true, true
	case apierrors.IsForbidden(err):
		return false, false
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		return false, true // the object has changed: the next round decides on its new state
	default:
		p.log.Debug("status not published", "err", err)
		return false, false // away; the next round tries again
	}
}

// may reports whether a status may be written that has a number of addresses now.
func (p *Publication) may(has int) bool { return has == 0 && p.Add || has > 0 && p.Replace }

// writeAddresses writes the status of Services of type LoadBalancer. It notes in written
// when it wrote which. A write counts only if nobody has changed the Service meanwhile: of
// several members of a group the first one writes, and the others see the record.
func (w *Watcher) writeAddresses(ctx context.Context, wish *Publication, written map[types.UID]time.Time) {
	pools := w.cfg.Options.Pools
	if len(pools.Ranges) == 0 {
		return
	}
	ours := make(map[types.UID]*Balancer, len(wish.Balancers))
	for i := range wish.Balancers {
		ours[types.UID(wish.Balancers[i].UID)] = &wish.Balancers[i]
	}
	for _, s := range w.services.newest() {
		has := s.Status.LoadBalancer.Ingress
		ingress := []corev1.LoadBalancerIngress{}
		if one := ours[s.UID]; one != nil {
			for _, a := range one.Addresses {
				ingress = append(ingress, corev1.LoadBalancerIngress{IP: a.String()})
			}
		} else if !w.left(s) {
			continue
		}
		same := slices.EqualFunc(has, ingress, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && a.Hostname == b.Hostname })
		if _, waits := written[s.UID]; waits || same || !wish.may(len(has)) {
			continue
		}
		body := map[string]any{
			"metadata": map[string]any{"uid": s.UID, "resourceVersion": s.ResourceVersion},
			"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}},
		}
		log := w.log.With("namespace", s.Namespace, "service", s.Name, "addresses", ingress)
		done, more := patchStatus(ctx, w, w.kube.Services(s.Namespace), written, statusPatch{
			of: s, kind: types.MergePatchType, body: body, log: log, right: "service status",
			denied: "the appliance may not write the status of Services (verb patch; API group \"\"; resource services/status), and gives them no addresses: apply what `sallyport manifests` prints",
		})
		if done {
			log.Info("addresses of a Service recorded")
		}
		if !more {
			return
		}
	}
}

// left reports whether a Service has an address of the pools, and is not ours any more.
// Another load balancer may have given it one, if the Service names that one's class.
func (w *Watcher) left(s *corev1.Service) bool {
	pools := w.cfg.Options.Pools
	return (s.Spec.Type != corev1.ServiceTypeLoadBalancer || pools.ours(s)) &&
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
			a, err := netip.ParseAddr(in.IP)
			return err == nil && pools.contain(a)
		})
}

func (w *Watcher) loadBalancer() (all []networkingv1.IngressLoadBalancerIngress) {
	for _, text := range w.cfg.Publish {
		if _, err := netip.ParseAddr(text); err == nil {
			all = append(all, networkingv1.IngressLoadBalancerIngress{IP: text})
		} else {
			all = append(all, networkingv1.IngressLoadBalancerIngress{Hostname: text})
		}
	}
	return all
}

// writeEvents creates an Event for each problem that has none yet, and returns the
// problems that have one.
func (w *Watcher) writeEvents(ctx context.Context, problems []Problem, told map[Problem]bool, limit flowcontrol.RateLimiter) map[Problem]bool {
	now := make(map[Problem]bool, len(problems))
	for _, p := range problems {
		if told[p] {
			now[p] = true
		}
	}
	for _, p := range problems {
		if now[p] {
			continue
		}
		if ctx.Err() != nil || !limit.TryAccept() {
			return now
		}
		call, cancel := context.WithTimeout(ctx, askFor)
		err := w.kube.CreateEvent(call, event(p, time.Now()))
		cancel()
		w.refuse("events", "the appliance may not create Events (verb create; API group \"\"; resource events): apply what `sallyport manifests` prints", err)
		switch {
		case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			now[p] = true
		case apierrors.IsForbidden(err):
			return now
		default:
			w.log.Debug("event not written", "namespace", p.Namespace, "name", p.Name, "err", err)
			return now
		}
	}
	return now
}

// event returns the Event of a problem. Its name is a hash of its content, so that a
// fresh process does not repeat an Event that still exists.
func event(p Problem, at time.Time) *corev1.Event {
	sum := sha256.Sum256([]byte(p.UID + "\x00" + p.Reason + "\x00" + p.Why))
	const longestName, longestMessage = 200, 1024 // a name is at most 253, a message 1024 bytes (core/v1 Event)
	name := strings.TrimRight(p.Name[:min(len(p.Name), longestName)], "-.")
	message := p.Why[:min(len(p.Why), longestMessage)]
	about := corev1.ObjectReference{Kind: p.Kind, APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}
	switch p.Kind {
	case "Ingress":
		about.APIVersion = "networking.k8s.io/v1"
	case "EndpointSlice":
		about.APIVersion = "discovery.k8s.io/v1"
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: p.Namespace, Name: name + "." + hex.EncodeToString(sum[:8])},
		InvolvedObject: about, Type: corev1.EventTypeWarning, Reason: p.Reason, Message: message,
		Source: corev1.EventSource{Component: "sallyport"}, ReportingController: "sallyport",
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at), Count: 1,
	}
}
