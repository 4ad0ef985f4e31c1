package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"sallyport/ingress/allot"
	"sallyport/ingress/annotations"
	"sallyport/ingress/input"
)

// demandService reads the addresses and ports that a Service asks for, within the limits of its namespace. The
// records in the statuses of its twins count as its own, so that the address stays when another cluster comes first.
func (g *giver) demandService(one *balancer) {
	w, s := g.Worlds[one.World], one.service
	d := &one.Demand
	d.Ref, d.Of = one.Petitioner.Ref, allot.Tenant{Cluster: one.World, Namespace: s.Namespace}
	d.Owner = w.Options.Owner(s.Namespace)
	if len(validation.IsDNS1123Label(s.Namespace)) > 0 || len(validation.IsDNS1123Label(s.Name)) > 0 {
		g.report(one.Petitioner.Ref, "InvalidName", "the namespace or the name is none that Kubernetes allows; "+
			"the Service gets no address")
		return
	}
	said, problems := annotations.ReadBalancer(g.Keys(s), s.Spec.LoadBalancerIP)
	for _, p := range problems {
		g.Problems = append(g.Problems, input.Problem{ObjectRef: d.Ref, Reason: p.Reason, Why: p.Why, As: p.As})
	}
	d.Asked, d.Holder = said.Addresses, strings.Join([]string{"service", w.Cluster, s.Namespace, s.Name}, "\x00")
	if one.shares = said.Share != ""; one.shares {
		namespace := s.Namespace
		if w.Options.OneTenant {
			namespace = ""
		}
		d.Holder = strings.Join([]string{"key", w.Cluster, namespace, said.Share}, "\x00")
	}
	d.Had = recordsOf(s)
	for _, t := range one.twins {
		for _, a := range recordsOf(t.service) {
			if !slices.Contains(d.Had, a) {
				d.Had = append(d.Had, a)
			}
		}
	}
	for _, p := range s.Spec.Ports {
		owner := g.Reserved[uint16(p.Port)] //nolint:gosec // checked below
		switch most := w.Options.Limits.Ports; {
		case p.Port < 1 || p.Port > 65535:
		case p.Protocol != "" && p.Protocol != corev1.ProtocolTCP:
			g.report(one.Petitioner.Ref, "UnsupportedProtocol", "port %d is not served: it is %s, and the "+
				"appliance passes TCP connections on", p.Port, annotations.Quote(string(p.Protocol)))
		case owner != "":
			g.report(one.Petitioner.Ref, "PortConflict", "port %d is not served: on the appliance it is in use by %s",
				p.Port, owner)
		case most > 0 && g.opened[d.Of] >= most:
			g.report(one.Petitioner.Ref, "LimitReached", "port %d is not served: the Services of namespace %s "+
				"have %d ports, as many as they may have (clusters[].ingress.limits.ports)", p.Port, s.Namespace, most)
		default:
			g.opened[d.Of]++
			one.ports, d.Ports = append(one.ports, p), append(d.Ports, uint16(p.Port)) //nolint:gosec // checked above
		}
	}
	if len(d.Ports) == 0 {
		g.report(one.Petitioner.Ref, "NoPort", "the Service gets no address: it has no TCP port that can be served")
		return
	}
	for _, f := range s.Spec.IPFamilies {
		d.Four, d.Six = d.Four || f == corev1.IPv4Protocol, d.Six || f == corev1.IPv6Protocol
	}
	if !d.Four && !d.Six {
		d.Four = true
	}
	// A client's address needs no pod of its family: HAProxy connects to the pods itself.
	for _, a := range d.Asked {
		d.Four, d.Six = d.Four || a.Is4(), d.Six || a.Is6()
	}
	both := s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack
	d.Spare = d.Four && d.Six && len(d.Asked) == 0 && !both
}

// recordsOf returns the addresses in the status of a Service.
func recordsOf(s *corev1.Service) (all []netip.Addr) {
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// settleService adds a Service with its addresses, and its twins.
func (g *giver) settleService(one *balancer, got allot.Allotment) {
	ref := one.Petitioner.Ref
	for _, p := range got.Problems {
		g.report(ref, p.Reason, "%s", p.Why)
	}
	out := Balancer{ObjectRef: ref, Addresses: got.Addresses, Ports: one.Demand.Ports}
	served := Served{Petitioner: one.Petitioner, Service: one.service, Ports: one.ports}
	for _, addr := range got.Addresses {
		out.Reasons = append(out.Reasons, one.reason(addr))
		if !slices.Contains(one.Had, addr) {
			continue
		}
		out.Recorded = append(out.Recorded, addr)
		if g.allotter.Lacks(addr) { // HAProxy does not start with an address that the machine lacks
			g.report(ref, "AddressNotUsable", "%s is not served: the appliance does not have it any more; add it to "+
				"an interface of that machine", addr)
			continue
		}
		served.At = append(served.At, addr)
	}
	g.Balancers, g.Served = append(g.Balancers, out), append(g.Served, served)
	for _, t := range one.twins {
		g.shareAddresses(one, out, t)
	}
}

// shareAddresses gives a twin the addresses that the first Service has got. Only the first Service opens ports there.
func (g *giver) shareAddresses(first *balancer, got Balancer, t balancer) {
	out := Balancer{ObjectRef: t.Petitioner.Ref, Addresses: got.Addresses, Ports: got.Ports}
	of, records := first.Petitioner.Ref.Cluster, recordsOf(t.service)
	for _, addr := range out.Addresses {
		out.Reasons = append(out.Reasons, "that of the same Service of cluster "+of+", which exports it, too")
		if slices.Contains(records, addr) {
			out.Recorded = append(out.Recorded, addr)
		}
	}
	if differ := fieldsThatDiffer(t.service, first.service); len(differ) > 0 {
		g.report(t.Petitioner.Ref, "TwinDiffers", "its address is served as the Service of cluster %s says, which "+
			"comes first in the configuration file and is exported, too; these differ here: %s", of,
			strings.Join(differ, ", "))
	}
	g.Balancers = append(g.Balancers, out)
}

// fieldsThatDiffer returns the fields and annotations about an address that two Services do not have in common.
func fieldsThatDiffer(a, b *corev1.Service) (differ []string) {
	ports := func(s *corev1.Service) (all []string) {
		for _, p := range s.Spec.Ports {
			all = append(all, fmt.Sprint(p.Port, p.Protocol))
		}
		slices.Sort(all)
		return all
	}
	ranges := func(s *corev1.Service) []string {
		all := append(slices.Clip(s.Spec.LoadBalancerSourceRanges), s.Annotations[SourceRanges])
		return slices.Sorted(slices.Values(all))
	}
	if !slices.Equal(ports(a), ports(b)) {
		differ = append(differ, "spec.ports")
	}
	if !slices.Equal(ranges(a), ranges(b)) {
		differ = append(differ, "spec.loadBalancerSourceRanges")
	}
	if a.Spec.LoadBalancerIP != b.Spec.LoadBalancerIP {
		differ = append(differ, "spec.loadBalancerIP")
	}
	for _, key := range []string{"sallyport.dev/address", "sallyport.dev/share-address"} {
		if a.Annotations[key] != b.Annotations[key] {
			differ = append(differ, key)
		}
	}
	return differ
}

// SourceRanges is the annotation that spec.loadBalancerSourceRanges replaced. Kubernetes
// still follows it where the field is not set.
const SourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"
