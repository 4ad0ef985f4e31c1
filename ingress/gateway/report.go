package gateway

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Condition is a condition of an object, or of a part of it.
type Condition struct {
	Of      string `json:"of,omitempty"` // the part, as "listener http" or "parent Gateway shop/web"; "" for the object
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
}

// Good reports whether nothing is wrong with the object by this condition.
func (c Condition) Good() bool {
	bad := c.Type == string(gatewayv1.ListenerConditionConflicted) ||
		c.Type == string(gatewayv1.RouteConditionPartiallyInvalid)
	return bad == (c.Status == string(metav1.ConditionFalse))
}

// Conditions returns all conditions of a Status: first those of the object, then those of its parts.
func (s *Status) Conditions() (all []Condition) {
	add := func(of string, list []metav1.Condition) {
		for _, c := range list {
			all = append(all, Condition{
				Of: of, Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
			})
		}
	}
	switch {
	case s.Class != nil:
		add("", s.Class.Conditions)
	case s.Gateway != nil:
		add("", s.Gateway.Conditions)
		for _, l := range s.Gateway.Listeners {
			add("listener "+string(l.Name), l.Conditions)
		}
	case s.Listeners != nil:
		add("", s.Listeners.Conditions)
		for _, l := range s.Listeners.Listeners {
			add("listener "+string(l.Name), l.Conditions)
		}
	}
	for _, p := range s.Parents {
		add(parentText(p.ParentRef, s.Namespace), p.Conditions)
	}
	for _, p := range s.Ancestors {
		add(parentText(p.AncestorRef, s.Namespace), p.Conditions)
	}
	return all
}

// parentText names a parentRef of an object of a namespace.
func parentText(ref gatewayv1.ParentReference, namespace string) string {
	text := "parent " + string(value(ref.Kind, "Gateway")) + " " + namespaceOf(ref.Namespace, namespace) + "/" +
		string(ref.Name)
	if ref.SectionName != nil {
		text += " " + string(*ref.SectionName)
	}
	return text
}

// Unprogrammed returns why a Gateway is not programmed, or nil.
func (g *Gateway) Unprogrammed() *Refusal { return g.programmed() }

// Unprogrammed returns why a listener is not programmed, or nil.
func (l *Listener) Unprogrammed() *Refusal {
	return cmp.Or(l.conflict, l.refused, l.Gateway.unusable, l.closed, l.Gateway.programmed())
}

// Unresolved returns why some reference of a listener cannot be used, or nil.
func (l *Listener) Unresolved() *Refusal { return l.unresolved }

// Set returns the namespace and name of the ListenerSet that has the listener, or "" if the Gateway
// itself has it.
func (l *Listener) Set() string {
	if l.set == nil {
		return ""
	}
	return keyOf(l.set.object).String()
}

// A Place is a Gateway or ListenerSet that a route names.
type Place struct {
	Gateway   *Gateway
	Listeners []*Listener // where the route is attached
	Refused   *Refusal    // why the route is not attached
}

// Places returns the Gateways and ListenerSets that the route names, in its order.
func (r *Route) Places() (all []Place) {
	for _, p := range r.parents {
		one := Place{Gateway: p.gateway, Refused: cmp.Or(p.refused, r.refused)}
		if one.Refused == nil {
			one.Listeners = p.on
		}
		all = append(all, one)
	}
	return all
}

// Faults returns why parts of the route are not served as it asks, in sentences.
func (r *Route) Faults() (all []Refusal) {
	if r.unresolved != nil {
		all = append(all, *r.unresolved)
	}
	for _, text := range r.odd {
		all = append(all, Refusal{string(gatewayv1.RouteReasonUnsupportedValue), text})
	}
	return all
}

// Does returns a phrase for each filter, timeout and retry of a rule.
func (r *Rule) Does() (all []string) {
	for _, f := range r.Filters {
		all = append(all, filterText(f))
	}
	if t := r.Timeouts; t != nil {
		if t.Request != nil {
			all = append(all, "timeout of a request: "+string(*t.Request))
		}
		if t.BackendRequest != nil {
			all = append(all, "timeout of a try: "+string(*t.BackendRequest))
		}
	}
	if r.Retry != nil {
		all = append(all, "retry")
	}
	return all
}

// filterText describes a filter by its type and its values.
func filterText(f gatewayv1.HTTPRouteFilter) string {
	var values []string
	add := func(format string, args ...any) { values = append(values, fmt.Sprintf(format, args...)) }
	path := func(p *gatewayv1.HTTPPathModifier) {
		if p != nil && p.ReplaceFullPath != nil {
			add("path %s", quote(*p.ReplaceFullPath))
		}
		if p != nil && p.ReplacePrefixMatch != nil {
			add("prefix of the path %s", quote(*p.ReplacePrefixMatch))
		}
	}
	switch headers := cmp.Or(f.RequestHeaderModifier, f.ResponseHeaderModifier); {
	case headers != nil:
		for _, h := range headers.Set {
			add("set %s", h.Name)
		}
		for _, h := range headers.Add {
			add("add %s", h.Name)
		}
		for _, name := range headers.Remove {
			add("remove %s", name)
		}
	case f.RequestRedirect != nil:
		r := f.RequestRedirect
		add("status %d", value(r.StatusCode, 302))
		if r.Scheme != nil {
			add("scheme %s", *r.Scheme)
		}
		if r.Hostname != nil {
			add("host %s", *r.Hostname)
		}
		if r.Port != nil {
			add("port %d", *r.Port)
		}
		path(r.Path)
	case f.URLRewrite != nil:
		if f.URLRewrite.Hostname != nil {
			add("host %s", *f.URLRewrite.Hostname)
		}
		path(f.URLRewrite.Path)
	case f.RequestMirror != nil:
		ref := f.RequestMirror.BackendRef
		add("to Service %s port %d", ref.Name, value(ref.Port, 0))
	}
	if len(values) == 0 {
		return string(f.Type)
	}
	return string(f.Type) + ": " + strings.Join(values, ", ")
}
