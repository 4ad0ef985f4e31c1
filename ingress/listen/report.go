package listen

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// A GatewayReport says how a Gateway is served.
type GatewayReport struct {
	input.ObjectRef
	Addresses []netip.Addr     `json:"addresses,omitempty"`
	Listeners []ListenerReport `json:"listeners"`        // its own first, then those of its ListenerSets
	Reason    string           `json:"reason,omitempty"` // why it is not programmed, as in its condition; "" if it is
	Why       string           `json:"why,omitempty"`    // the same in a sentence
}

// A ListenerReport says how a listener is served.
type ListenerReport struct {
	Name       string `json:"name"`
	Set        string `json:"set,omitempty"` // NAMESPACE/NAME of the ListenerSet that has it; "" if the Gateway has it
	Protocol   string `json:"protocol"`
	Port       uint16 `json:"port"`
	Hostname   string `json:"hostname,omitempty"`
	Routes     int    `json:"routes"` // that are attached
	Programmed bool   `json:"programmed"`
	Reason     string `json:"reason,omitempty"` // why it is not programmed, or which reference cannot be used
	Why        string `json:"why,omitempty"`    // the same in a sentence
}

// A RouteReport says how a route of Gateway API is served.
type RouteReport struct {
	input.ObjectRef
	Hostnames []string      `json:"hostnames,omitempty"` // empty stands for those of the listeners
	Places    []PlaceReport `json:"places"`              // one for each parentRef to a Gateway of ours
	Faults    []FaultReport `json:"faults,omitempty"`    // parts that are not served as they ask
}

// A PlaceReport says where a route is attached by one parentRef.
type PlaceReport struct {
	Gateway   string   `json:"gateway"` // NAMESPACE/NAME
	Listeners []string `json:"listeners,omitempty"`
	Reason    string   `json:"reason,omitempty"` // why it is not attached, as in its condition; "" if it is
	Why       string   `json:"why,omitempty"`    // the same in a sentence
}

// A FaultReport is a part of a route that is not served as it asks.
type FaultReport struct {
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// Attached reports whether the route is attached to a listener.
func (r *RouteReport) Attached() bool {
	return slices.ContainsFunc(r.Places, func(p PlaceReport) bool { return p.Reason == "" })
}

// ReportGateways returns how each Gateway of a cluster is served, the older first.
func ReportGateways(cluster string, a *gateway.Attachment) (all []GatewayReport) {
	for _, g := range a.Gateways {
		all = append(all, reportOf(cluster, a, g))
	}
	return all
}

func reportOf(cluster string, a *gateway.Attachment, g *gateway.Gateway) GatewayReport {
	out := GatewayReport{
		ObjectRef: Ref(cluster, "Gateway", g.Key(), string(g.Object.UID)), Listeners: []ListenerReport{},
	}
	for _, text := range g.Addresses {
		if addr, err := netip.ParseAddr(text); err == nil {
			out.Addresses = append(out.Addresses, addr)
		}
	}
	if why := g.Unprogrammed(); why != nil {
		out.Reason, out.Why = why.Reason, why.Why
	}
	for _, l := range g.Listeners {
		one := ListenerReport{
			Name: l.Name, Set: l.Set(), Protocol: string(l.Protocol), Port: l.Port, Hostname: l.Hostname,
			Routes: len(a.At(l)), Programmed: l.Unprogrammed() == nil,
		}
		if why := cmp.Or(l.Unprogrammed(), l.Unresolved()); why != nil {
			one.Reason, one.Why = why.Reason, why.Why
		}
		out.Listeners = append(out.Listeners, one)
	}
	return out
}

// Ref returns a reference to an object of Gateway API.
func Ref(cluster, kind string, key types.NamespacedName, uid string) input.ObjectRef {
	return input.ObjectRef{Cluster: cluster, Kind: kind, Namespace: key.Namespace, Name: key.Name, UID: uid}
}

// ReportRoutes returns how each route of a cluster is served, the older first.
func ReportRoutes(cluster string, a *gateway.Attachment) (all []RouteReport) {
	for _, route := range a.Routes {
		all = append(all, reportOfRoute(cluster, route))
	}
	return all
}

func reportOfRoute(cluster string, route *gateway.Route) RouteReport {
	out := RouteReport{
		ObjectRef: Ref(cluster, route.Kind, route.Key(), string(route.Object.GetUID())),
		Hostnames: route.Hostnames, Places: []PlaceReport{},
	}
	for _, p := range route.Places() {
		one := PlaceReport{Gateway: p.Gateway.Key().String()}
		if p.Refused != nil {
			one.Reason, one.Why = p.Refused.Reason, p.Refused.Why
		}
		for _, l := range p.Listeners {
			one.Listeners = append(one.Listeners, l.Name)
		}
		out.Places = append(out.Places, one)
	}
	for _, f := range route.Faults() {
		out.Faults = append(out.Faults, FaultReport(f))
	}
	return out
}

// Unmet returns a Problem for each sentence that the conditions of objects of a cluster have.
func Unmet(cluster string, statuses []*gateway.Status) (all []input.Problem) {
	for _, s := range statuses {
		if s.Parents != nil && !s.Unmet {
			continue
		}
		on := input.ObjectRef{Cluster: cluster, Kind: s.Kind, Namespace: s.Namespace, Name: s.Name, UID: s.UID}
		said := make(map[string]bool)
		for _, c := range s.Conditions() {
			if c.Good() || said[c.Message] {
				continue
			}
			said[c.Message] = true
			why := c.Message
			if strings.HasPrefix(c.Of, "listener ") {
				why = c.Of + ": " + why
			}
			all = append(all, input.Problem{ObjectRef: on, Reason: c.Reason, Why: why})
		}
	}
	return all
}
