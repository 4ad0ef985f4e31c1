package balance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/allot"
	"sallyport/ingress/annotations"
	"sallyport/ingress/gateway"
)

// demandGate reads the addresses and ports that a Gateway asks for, within the limits of its
// namespace.
func (g *giver) demandGate(one *balancer) {
	w, gate, d := g.Worlds[one.World], one.gate, &one.Demand
	d.Ref, d.Of = gate.Ref, allot.Tenant{Cluster: gate.World, Namespace: gate.Ref.Namespace}
	d.Owner = w.Options.Owner(gate.Ref.Namespace)
	d.Holder = strings.Join([]string{"gateway", w.Cluster, gate.Ref.Namespace, gate.Ref.Name}, "\x00")
	for _, in := range gate.Object.Status.Addresses {
		if addr, err := netip.ParseAddr(in.Value); err == nil && gateway.IsIP(in.Type) {
			d.Had = append(d.Had, addr)
		}
	}
	var usable, rest []netip.Addr
	for _, a := range gate.Object.Spec.Addresses {
		if !gateway.IsIP(a.Type) {
			gate.Refuse(gateway.Refusal{
				Reason: string(gatewayv1.GatewayReasonUnsupportedAddress),
				Why: fmt.Sprintf("spec.addresses has an address of type %s; allowed are IPAddress",
					annotations.Quote(string(*a.Type))),
			})
			return
		}
		if a.Value == "" {
			continue // any will do
		}
		switch addr, err := netip.ParseAddr(a.Value); {
		case err != nil:
			gate.Refused = &gateway.Refusal{
				Reason: string(gatewayv1.GatewayReasonAddressNotUsable),
				Why:    fmt.Sprintf("%s in spec.addresses is not an address", annotations.Quote(a.Value)),
			}
		case w.Options.Pools.Contain(addr) && (!w.Options.Pools.Local || slices.Contains(g.Machine, addr)):
			usable = append(usable, addr)
		default:
			rest = append(rest, addr)
		}
	}
	d.Asked = slices.Concat(usable, rest)
	for i, addr := range usable {
		if slices.ContainsFunc(usable[:i], func(a netip.Addr) bool { return a.Is6() == addr.Is6() }) {
			gate.Refused = &gateway.Refusal{
				Reason: string(gatewayv1.GatewayReasonAddressNotUsable),
				Why: fmt.Sprintf("%s in spec.addresses is the second address of its family: a Gateway has one IPv4 "+
					"address and one IPv6 address at most", addr),
			}
			break
		}
	}
	for _, port := range gate.Ports() {
		if most := w.Options.Limits.Ports; most > 0 && g.opened[d.Of] >= most {
			for _, l := range gate.On(port) {
				l.Close(gateway.Refusal{Reason: "LimitReached", Why: fmt.Sprintf("the Services and Gateways of "+
					"namespace %s have %d ports, as many as they may have (clusters[].ingress.limits.ports)",
					gate.Ref.Namespace, most)})
			}
			continue
		}
		g.opened[d.Of]++
		d.Ports = append(d.Ports, port)
	}
	if !gate.Serves() || len(d.Ports) == 0 {
		return
	}
	for _, a := range d.Asked {
		d.Four, d.Six = d.Four || a.Is4(), d.Six || a.Is6()
	}
	d.Four = d.Four || !d.Six
}

// settleGate gives a Gateway its addresses. It listens at those that its status records.
func (g *giver) settleGate(one *balancer, got allot.Allotment) {
	gate := one.gate
	out := Balancer{ObjectRef: gate.Ref, Addresses: got.Addresses, Ports: one.Demand.Ports}
	refuse := func(reason gatewayv1.GatewayConditionReason, format string, args ...any) {
		gate.Refused = cmp.Or(gate.Refused, &gateway.Refusal{Reason: string(reason), Why: fmt.Sprintf(format, args...)})
	}
	for _, p := range got.Problems {
		if len(one.Asked) > 0 {
			refuse(gatewayv1.GatewayReasonAddressNotUsable, "%s", p.Why)
		} else {
			refuse(gatewayv1.GatewayReasonAddressNotAssigned, "%s", p.Why)
		}
		g.report(gate.Ref, p.Reason, "%s", p.Why)
	}
	for _, addr := range one.Asked { // got has no problem for the second one of a family
		if why := g.allotter.Foreign(addr); why.Reason != "" && !slices.Contains(got.Addresses, addr) {
			refuse(gatewayv1.GatewayReasonAddressNotUsable, "%s", why.Why)
		}
	}
	if len(one.Demand.Ports) > 0 && len(g.allotter.Ranges) == 0 {
		refuse(gatewayv1.GatewayReasonAddressNotAssigned, "the appliance has no addresses for Gateways "+
			"(haproxy.addresses, or group.pools)")
	}
	for _, addr := range got.Addresses {
		out.Reasons = append(out.Reasons, one.reason(addr))
		gate.Addresses = append(gate.Addresses, addr.String())
		switch {
		case !slices.Contains(one.Had, addr):
			refuse(gatewayv1.GatewayReasonAddressNotAssigned, "%s is not in the status yet", addr)
		case g.allotter.Lacks(addr): // HAProxy does not start with an address that the machine lacks
			out.Recorded = append(out.Recorded, addr)
			refuse(gatewayv1.GatewayReasonAddressNotUsable, "the appliance does not have %s any more", addr)
		default:
			out.Recorded, gate.At = append(out.Recorded, addr), append(gate.At, addr)
		}
	}
	g.Balancers = append(g.Balancers, out)
}
