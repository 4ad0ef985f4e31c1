package gateway

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Statuses returns the Status of each object that is ours: classes first, then Gateways,
// ListenerSets, routes and policies. A Status with the content of before stays the same pointer.
// Nothing may change the objects of a afterwards.
func (a *Attachment) Statuses() []*Status {
	all := make([]*Status, 0, len(a.said)+len(a.Routes)+1)
	for _, c := range a.world.Classes {
		if string(c.Spec.ControllerName) == a.world.Controller {
			all = append(all, a.say(c, func() Status { return a.classStatus(c) }))
		}
	}
	for _, g := range a.Gateways {
		all = append(all, a.say(g.Object, func() Status { return a.gatewayStatus(g) }))
		for _, s := range g.sets {
			all = append(all, a.say(s.object, func() Status { return a.setStatus(s) }))
		}
	}
	for _, r := range a.Routes {
		all = append(all, a.StatusOf(r))
	}
	for _, p := range a.Policies {
		if len(p.ancestors) > 0 {
			all = append(all, a.say(p.Object, func() Status { return p.status(a.world.Controller) }))
		}
	}
	a.before = nil
	return all
}

// say returns the Status of an object that is no route. It makes the Status only once.
func (a *Attachment) say(o metav1.Object, status func() Status) *Status {
	if a.said[o] == nil {
		a.said[o] = a.asBefore(o, status())
	}
	return a.said[o]
}

// asBefore returns a Status of an object. A Status of the Attachment before with the same content stays.
func (a *Attachment) asBefore(o metav1.Object, s Status) *Status {
	if was := a.before[o]; was != nil && reflect.DeepEqual(*was, s) {
		return was
	}
	return &s
}

// Recall lets a keep each Status of the Attachment before it with the same content.
func (a *Attachment) Recall(before *Attachment) {
	a.before = maps.Clone(before.said)
	for _, r := range before.Routes {
		if r.said != nil {
			a.before[r.Object] = r.said
		}
	}
}

// bundle begins the versions of the CRDs whose fields are all known here.
const bundle = "v1.6."

// older reports whether the CRDs of the cluster are older than the bundle. The API server then drops
// fields of a status that came later. A status without them would look as if somebody else had replaced it.
func (w *World) older() bool {
	has, err := version.ParseGeneric(w.Bundle)
	return err == nil && has.LessThan(version.MustParseGeneric(bundle+"0"))
}

func (a *Attachment) classStatus(c *gatewayv1.GatewayClass) Status {
	s := statusOf("GatewayClass", c)
	said := conditions{generation: c.Generation}
	said.hold(string(gatewayv1.GatewayClassConditionStatusAccepted), string(gatewayv1.GatewayClassReasonAccepted),
		parametersOf(c))
	if has := a.world.Bundle; has != "" {
		var other *Refusal
		if !strings.HasPrefix(has, bundle) {
			other = &Refusal{string(gatewayv1.GatewayClassReasonUnsupportedVersion), fmt.Sprintf(
				"the cluster has the CRDs of Gateway API %s; %sx is supported, and fields of other versions may have "+
					"no effect", quote(has), bundle)}
		}
		said.hold(string(gatewayv1.GatewayClassConditionStatusSupportedVersion),
			string(gatewayv1.GatewayClassReasonSupportedVersion), other)
	}
	s.Class = &gatewayv1.GatewayClassStatus{Conditions: said.all}
	if a.world.older() {
		return s
	}
	for _, name := range SupportedFeatures() {
		if !a.world.Mirrors && slices.Contains(mirroring, name) || !a.world.Named && slices.Contains(naming, name) ||
			a.world.Channel != "experimental" && slices.Contains(experimental, name) {
			continue
		}
		s.Class.SupportedFeatures = append(s.Class.SupportedFeatures,
			gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
	}
	return s
}

// programmed returns why a Gateway is not programmed.
func (g *Gateway) programmed() *Refusal {
	switch {
	case g.unusable != nil:
		return &Refusal{string(gatewayv1.GatewayReasonInvalid), g.unusable.Why}
	case g.Refused != nil:
		return g.Refused
	case len(g.Addresses) == 0:
		return &Refusal{string(gatewayv1.GatewayReasonAddressNotAssigned), "the Gateway has no address yet"}
	}
	return nil
}

func (a *Attachment) gatewayStatus(g *Gateway) Status {
	s := statusOf("Gateway", g.Object)
	said := conditions{generation: g.Object.Generation}
	var bad []string
	for _, l := range g.Listeners {
		if l.set == nil && l.faulty() {
			bad = append(bad, l.Name)
		}
	}
	switch {
	case g.unusable != nil:
		said.hold(string(gatewayv1.GatewayConditionAccepted), "", g.unusable)
	case len(bad) > 0:
		own := 0
		for _, l := range g.Listeners {
			if l.set == nil && l.unaccepted() == nil {
				own++
			}
		}
		said.add(string(gatewayv1.GatewayConditionAccepted), own > 0 || len(g.sets) > 0,
			string(gatewayv1.GatewayReasonListenersNotValid),
			"some listeners have problems, see their conditions: "+strings.Join(bad, ", "))
	default:
		said.add(string(gatewayv1.GatewayConditionAccepted), true, string(gatewayv1.GatewayReasonAccepted), "")
	}
	said.hold(string(gatewayv1.GatewayConditionProgrammed), string(gatewayv1.GatewayReasonProgrammed), g.programmed())
	if g.client != nil || g.Certificate != nil {
		said.hold(string(gatewayv1.GatewayConditionResolvedRefs), string(gatewayv1.GatewayReasonResolvedRefs), g.client)
	}
	if slices.ContainsFunc(validationsOf(g.Object), func(v *gatewayv1.FrontendTLSValidation) bool {
		return v.Mode == gatewayv1.AllowInsecureFallback
	}) {
		said.add(string(gatewayv1.GatewayConditionInsecureFrontendValidationMode), true,
			string(gatewayv1.GatewayReasonConfigurationChanged),
			"spec.tls.frontend accepts clients without a valid certificate (AllowInsecureFallback)")
	}
	ip := gatewayv1.IPAddressType
	status := &gatewayv1.GatewayStatus{Conditions: said.all}
	if !a.world.older() {
		attached := int32(0)
		for _, one := range g.sets {
			if one.valid() {
				attached++
			}
		}
		status.AttachedListenerSets = &attached
	}
	for _, addr := range g.Addresses {
		status.Addresses = append(status.Addresses, gatewayv1.GatewayStatusAddress{Type: &ip, Value: addr})
	}
	for _, l := range g.Listeners {
		if l.set == nil {
			status.Listeners = append(status.Listeners, a.listenerStatus(l, g.Object.Generation))
		}
	}
	s.Gateway = status
	return s
}

// listenerStatus returns the status of a listener in an object of that generation.
func (a *Attachment) listenerStatus(l *Listener, generation int64) gatewayv1.ListenerStatus {
	said := conditions{generation: generation}
	said.hold(string(gatewayv1.ListenerConditionAccepted), string(gatewayv1.ListenerReasonAccepted), l.unaccepted())
	programmed := cmp.Or(l.conflict, l.refused, l.Gateway.unusable, l.closed)
	if programmed != nil && programmed != l.conflict && !l.pending() {
		programmed = &Refusal{string(gatewayv1.ListenerReasonInvalid), programmed.Why}
	}
	if waits := l.Gateway.programmed(); programmed == nil && waits != nil {
		programmed = &Refusal{string(gatewayv1.ListenerReasonPending), waits.Why}
	}
	said.hold(string(gatewayv1.ListenerConditionProgrammed), string(gatewayv1.ListenerReasonProgrammed), programmed)
	said.hold(string(gatewayv1.ListenerConditionResolvedRefs), string(gatewayv1.ListenerReasonResolvedRefs),
		l.unresolved)
	if l.conflict != nil {
		said.add(string(gatewayv1.ListenerConditionConflicted), true, l.conflict.Reason, l.conflict.Why)
	} else {
		said.add(string(gatewayv1.ListenerConditionConflicted), false, string(gatewayv1.ListenerReasonNoConflicts), "")
	}
	out := gatewayv1.ListenerStatus{
		Name: gatewayv1.SectionName(l.Name), Conditions: said.all, SupportedKinds: []gatewayv1.RouteGroupKind{},
		AttachedRoutes: int32(len(a.attached[l])), //nolint:gosec // a count of objects
	}
	group := gatewayv1.Group(gatewayv1.GroupName)
	for _, kind := range l.kinds {
		out.SupportedKinds = append(out.SupportedKinds,
			gatewayv1.RouteGroupKind{Group: &group, Kind: gatewayv1.Kind(kind)})
	}
	return out
}

// valid reports whether at least one listener of the set is valid.
func (s *listenerSet) valid() bool {
	return s.refused == nil && slices.ContainsFunc(s.listeners, func(l *Listener) bool {
		uncertified := l.closed != nil && l.closed == l.unresolved
		return l.unaccepted() == nil && !uncertified
	})
}

func (a *Attachment) setStatus(s *listenerSet) Status {
	out := statusOf("ListenerSet", s.object)
	out.Parent = string(s.gateway.Object.UID)
	said := conditions{generation: s.object.Generation}
	var refused *Refusal
	switch parent := s.gateway.unusable; {
	case s.refused != nil:
		refused = s.refused
	case parent != nil:
		refused = &Refusal{string(gatewayv1.ListenerSetReasonParentNotAccepted), parent.Why}
	case !s.valid():
		refused = &Refusal{
			string(gatewayv1.ListenerSetReasonListenersNotValid), "no listener can be served, see their conditions",
		}
	}
	said.hold(string(gatewayv1.ListenerSetConditionAccepted), string(gatewayv1.ListenerSetReasonAccepted), refused)
	if waits := s.gateway.programmed(); refused == nil && waits != nil {
		refused = &Refusal{string(gatewayv1.ListenerSetReasonPending), waits.Why}
	}
	said.hold(string(gatewayv1.ListenerSetConditionProgrammed), string(gatewayv1.ListenerSetReasonProgrammed), refused)
	out.Listeners = &gatewayv1.ListenerSetStatus{Conditions: said.all}
	for _, l := range s.listeners {
		out.Listeners.Listeners = append(out.Listeners.Listeners,
			gatewayv1.ListenerEntryStatus(a.listenerStatus(l, s.object.Generation)))
	}
	return out
}

// StatusOf returns the Status of a route. Nothing may change the route afterwards.
func (a *Attachment) StatusOf(r *Route) *Status {
	if r.said == nil {
		r.said = a.asBefore(r.Object, r.status(a.world.Controller))
	}
	return r.said
}

func (r *Route) status(controller string) Status {
	s := statusOf(r.Kind, r.Object)
	for _, p := range r.parents {
		said := conditions{generation: r.Object.GetGeneration()}
		refused := cmp.Or(p.refused, r.refused)
		said.hold(string(gatewayv1.RouteConditionAccepted), string(gatewayv1.RouteReasonAccepted), refused)
		said.hold(string(gatewayv1.RouteConditionResolvedRefs), string(gatewayv1.RouteReasonResolvedRefs), r.unresolved)
		if len(r.odd) > 0 && refused == nil {
			said.add(string(gatewayv1.RouteConditionPartiallyInvalid), true,
				string(gatewayv1.RouteReasonUnsupportedValue), "Dropped Rule: "+strings.Join(r.odd, "; "))
		}
		s.Unmet = s.Unmet || refused != nil || r.unresolved != nil || len(r.odd) > 0
		s.Parents = append(s.Parents, gatewayv1.RouteParentStatus{
			ParentRef: p.ref, ControllerName: gatewayv1.GatewayController(controller), Conditions: said.all,
		})
	}
	return s
}

// Explain returns a sentence for each listener of a Gateway, and one for each thing that is wrong.
func (a *Attachment) Explain(g *Gateway) (all []string) {
	if why := g.programmed(); why != nil {
		all = append(all, why.Why+" ("+why.Reason+")")
	}
	for _, l := range g.Listeners {
		text := fmt.Sprintf("%s: %s on port %d", l, l.Protocol, l.Port)
		if l.Hostname != "" {
			text += " for " + l.Hostname
		}
		text += fmt.Sprintf(", %d routes", len(a.attached[l]))
		for _, why := range []*Refusal{l.refused, l.conflict, l.unresolved, l.closed} {
			if why != nil && !strings.HasSuffix(text, why.Why+" ("+why.Reason+")") {
				text += "; " + why.Why + " (" + why.Reason + ")"
			}
		}
		all = append(all, text)
	}
	return all
}

// Explain returns, in sentences, what the statuses say about a route: for each parentRef whether and
// why not, and each part that is not served as it asks.
func (r *Route) Explain() (all []string) {
	for _, p := range r.parents {
		if refused := cmp.Or(p.refused, r.refused); refused != nil {
			all = append(all, fmt.Sprintf("not attached to Gateway %s: %s (%s)", p.gateway.Key(), refused.Why,
				refused.Reason))
			continue
		}
		for _, l := range p.on {
			all = append(all, "attached to "+l.String())
		}
	}
	if r.unresolved != nil {
		all = append(all, r.unresolved.Why+" ("+r.unresolved.Reason+")")
	}
	return append(all, r.odd...)
}

// IsIP reports whether an address of a Gateway is of the type IPAddress, which is the default.
func IsIP(t *gatewayv1.AddressType) bool { return t == nil || *t == gatewayv1.IPAddressType }
