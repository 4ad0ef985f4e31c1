package ingress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/allot"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

// A Balancer is a Service of type LoadBalancer, or a Gateway, that is ours.
type Balancer struct {
	ObjectRef
	Addresses []netip.Addr // that its status is to have, IPv4 first
	Reasons   []string     // why it has each of the Addresses, in words
	Recorded  []netip.Addr // those of them that its status has already: its ports are open there
	Ports     []uint16     // of TCP
	Why       string       // sentences that say why it lacks an address it asks for; "" if it lacks none
}

// A balancer is a Balancer in the making.
type balancer struct {
	petitioner
	service *corev1.Service // nil for a Gateway
	gate    *gate           // nil for a Service
	ports   []corev1.ServicePort
	shares  bool // its address with others
	allot.Demand
	// twins are Services of clusters that come later in the configuration file, if all of these clusters export them to
	// one set. They have its address.
	twins []balancer
}

// balance gives addresses to Gateways and to the Services of type LoadBalancer, and opens their ports
// there. At an address that the status of the Service does not have yet, no port is open:
// no two members of a group then serve different Services at one address.
func (b *builder) balance() {
	var all []balancer
	var pools Pools
	first := map[exported]int{} // the place in all of the Service that comes first
	for _, g := range b.gateways.all {
		all = append(all, balancer{petitioner: g.Petitioner, gate: g})
	}
	for i, w := range b.worlds {
		pools = w.Options.Pools // the same in all clusters
		if len(pools.Ranges) == 0 {
			continue
		}
		admitted := input.ClassesOf(&w.Snapshot)
		for _, s := range w.Services {
			if w.Options.Pools.Ours(s) && admitted.Admits(s.Namespace) {
				of := &claimant{Ref: w.serviceRef(s), Created: s.CreationTimestamp.Time}
				one := balancer{petitioner: petitioner{Claimant: of, World: i}, service: s}
				if key := (exported{w.Options.InSet.Name, input.KeyOf(s)}); w.exports(key.serviceKey) {
					if at, known := first[key]; known {
						all[at].twins = append(all[at].twins, one)
						continue
					}
					first[key] = len(all)
				}
				all = append(all, one)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y balancer) int { return claims.OlderOf(x.petitioner, y.petitioner) })
	demands := make([]allot.Demand, len(all))
	opened := make(map[allot.Tenant]int) // ports
	for i := range all {
		b.demand(&all[i], opened)
		demands[i] = all[i].Demand
	}
	a := allot.Allotter{
		Pools: pools, Machine: b.Local, Used: b.Used, Kept: b.keptAddresses(pools),
		Most: func(of allot.Tenant) int { return b.worlds[of.Cluster].Options.Limits.Addresses },
	}
	for i, got := range a.Allot(demands, len(b.Unknown) == 0) {
		one := all[i]
		if one.gate != nil {
			b.Balancers = append(b.Balancers, b.settleGate(one, got, &a))
			continue
		}
		for _, p := range got.Problems {
			b.reportOn(one.petitioner.Ref, p.Reason, "%s", p.Why)
		}
		out := Balancer{ObjectRef: one.petitioner.Ref, Addresses: got.Addresses, Ports: one.Demand.Ports}
		for _, addr := range got.Addresses {
			out.Reasons = append(out.Reasons, one.reason(addr))
			if slices.Contains(one.Had, addr) {
				out.Recorded = append(out.Recorded, addr)
				if a.Lacks(addr) { // HAProxy does not start with an address that the machine lacks
					b.reportOn(one.petitioner.Ref, "AddressNotUsable", "%s is not served: the appliance does not "+
						"have it any more; add it to an interface of that machine", addr)
					continue
				}
				b.open(one, addr)
			}
		}
		b.Balancers = append(b.Balancers, out)
		for _, t := range one.twins {
			b.Balancers = append(b.Balancers, b.shareAddresses(one, out, t))
		}
	}
	b.reportKeptAddresses(all, &a)
	b.rememberAddresses(&a)
}

// An exported is a Service that clusters of a set export.
type exported struct {
	set string
	serviceKey
}

// shareAddresses gives a twin the addresses that the first Service has got. Only the first Service opens ports there.
func (b *builder) shareAddresses(first balancer, got Balancer, t balancer) Balancer {
	out := Balancer{ObjectRef: t.petitioner.Ref, Addresses: got.Addresses, Ports: got.Ports}
	of, records := first.petitioner.Ref.Cluster, recordsOf(t.service)
	for _, addr := range out.Addresses {
		out.Reasons = append(out.Reasons, "that of the same Service of cluster "+of+", which exports it, too")
		if slices.Contains(records, addr) {
			out.Recorded = append(out.Recorded, addr)
		}
	}
	if differ := balancersThatDiffer(t.service, first.service); len(differ) > 0 {
		b.reportOn(t.petitioner.Ref, "TwinDiffers", "its address is served as the Service of cluster %s says, which "+
			"comes first in the configuration file and is exported, too; these differ here: %s", of,
			strings.Join(differ, ", "))
	}
	return out
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

// balancersThatDiffer returns the fields and annotations about an address that two Services do not have in common.
func balancersThatDiffer(a, b *corev1.Service) (differ []string) {
	ports := func(s *corev1.Service) (all []string) {
		for _, p := range s.Spec.Ports {
			all = append(all, fmt.Sprint(p.Port, p.Protocol))
		}
		slices.Sort(all)
		return all
	}
	ranges := func(s *corev1.Service) []string {
		all := append(slices.Clip(s.Spec.LoadBalancerSourceRanges), s.Annotations[sourceRanges])
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

// demand reads the addresses and ports that a Service asks for, within the limits of its namespace. The records in the
// statuses of its twins count as its own, so that the address stays when another cluster comes first.
func (b *builder) demand(one *balancer, opened map[allot.Tenant]int) {
	if one.gate != nil {
		b.demandGate(one, opened)
		return
	}
	w, s := b.worlds[one.World], one.service
	d := &one.Demand
	d.Ref, d.Of = one.petitioner.Ref, allot.Tenant{Cluster: one.World, Namespace: s.Namespace}
	d.Owner = w.Options.Owner(s.Namespace)
	if len(validation.IsDNS1123Label(s.Namespace)) > 0 || len(validation.IsDNS1123Label(s.Name)) > 0 {
		b.reportOn(one.petitioner.Ref, "InvalidName", "the namespace or the name is none that Kubernetes allows; "+
			"the Service gets no address")
		return
	}
	said, problems := annotations.ReadBalancer(b.layer(s), s.Spec.LoadBalancerIP)
	b.reportKeys(one.petitioner, s, problems)
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
		owner := b.Reserved[uint16(p.Port)] //nolint:gosec // checked below
		switch most := w.Options.Limits.Ports; {
		case p.Port < 1 || p.Port > 65535:
		case p.Protocol != "" && p.Protocol != corev1.ProtocolTCP:
			b.reportOn(one.petitioner.Ref, "UnsupportedProtocol", "port %d is not served: it is %s, and the "+
				"appliance passes TCP connections on", p.Port, annotations.Quote(string(p.Protocol)))
		case owner != "":
			b.reportOn(one.petitioner.Ref, "PortConflict", "port %d is not served: on the appliance it is in use by %s",
				p.Port, owner)
		case most > 0 && opened[d.Of] >= most:
			b.reportOn(one.petitioner.Ref, "LimitReached", "port %d is not served: the Services of namespace %s "+
				"have %d ports, as many as they may have (clusters[].ingress.limits.ports)", p.Port, s.Namespace, most)
		default:
			opened[d.Of]++
			one.ports, d.Ports = append(one.ports, p), append(d.Ports, uint16(p.Port)) //nolint:gosec // checked above
		}
	}
	if len(d.Ports) == 0 {
		b.reportOn(one.petitioner.Ref, "NoPort", "the Service gets no address: it has no TCP port that can be served")
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

// reason returns in words why a Service or Gateway has an address.
func (one *balancer) reason(addr netip.Addr) string {
	how, record := "derived from the names of cluster, namespace and "+one.petitioner.Ref.Kind, "status.loadBalancer"
	if one.gate != nil {
		record = "status.addresses"
	}
	switch {
	case slices.Contains(one.Asked, addr) && one.gate != nil:
		how = "the Gateway asks for it (spec.addresses)"
	case slices.Contains(one.Asked, addr):
		how = "the Service asks for it (sallyport.dev/address or spec.loadBalancerIP)"
	case one.shares:
		how = "derived from the value of sallyport.dev/share-address, which each of its Services has"
	}
	if slices.Contains(one.Had, addr) {
		return how + ", and recorded in " + record + ", which it keeps"
	}
	return how + ", and not in " + record + " yet: its ports are closed until then"
}

// open opens the ports of a Service at one of its addresses.
func (b *builder) open(one balancer, addr netip.Addr) {
	for _, p := range one.ports {
		port := uint16(p.Port) //nolint:gosec // demand checked it
		free := haproxy.FreeListener(netip.AddrPortFrom(addr, port))
		b.Questions = append(b.Questions, free)
		switch verdict := b.verdicts[free.Part()]; {
		case verdict.Why != "":
			b.reportOn(one.petitioner.Ref, "PortConflict", "port %d is not served: on the appliance it is %s",
				port, verdict.Why)
			continue
		case !verdict.Known:
			continue
		}
		to := reference{Service: input.KeyOf(one.service), Number: p.Port, Traffic: annotations.Ended}
		n, why := b.backend(one.petitioner, to)
		if why.Reason != "" { // its own port is there
			b.reportOn(one.petitioner.Ref, why.Reason, "port %d is not served: %s", port, why.Why)
			continue
		}
		n.name = claims.Shorten(n.name+".lb", ".")
		if known, has := b.needed[n.name]; has {
			n = known
		} else if only := b.sources(one); only != nil {
			own := *n.settings
			own.Directives = append(slices.Clone(own.Directives), *only)
			haproxy.SortDirectives(own.Directives)
			n.settings = &own
		}
		b.add(n, one.petitioner)
		b.Config.Streams = append(b.Config.Streams, haproxy.Stream{Addr: addr, Port: port, Backend: n.name})
	}
}

// sourceRanges is the annotation that spec.loadBalancerSourceRanges replaced. Kubernetes
// still follows it where the field is not set.
const sourceRanges = "service.beta.kubernetes.io/load-balancer-source-ranges"

// sources returns the directive that admits only some clients to a Service, or nil if the Service
// admits all clients.
func (b *builder) sources(one balancer) *haproxy.Directive {
	ranges := one.service.Spec.LoadBalancerSourceRanges
	if text := one.service.Annotations[sourceRanges]; len(ranges) == 0 && strings.TrimSpace(text) != "" {
		ranges = strings.Split(text, ",")
	}
	if len(ranges) == 0 {
		return nil
	}
	w := b.worlds[one.World]
	networks, err := annotations.SourceRanges(b.env(w, one.petitioner.Ref.Namespace, new(settings)), ranges)
	if err != nil {
		b.reportOn(one.petitioner.Ref, "InvalidSourceRanges", "spec.loadBalancerSourceRanges: %v; all clients are "+
			"rejected until it is corrected", err)
		closed := haproxy.CloseTCP()
		return &closed
	}
	only := haproxy.RejectOthers(networks)
	return &only
}

// WithBalancers returns the Result with other addresses for the Balancers. The statuses of Gateways
// have the addresses as well.
func (r Result) WithBalancers(balancers []Balancer) Result {
	left := make(map[string]map[string][]netip.Addr) // by cluster and UID
	for _, b := range balancers {
		if b.Kind != "Gateway" {
			continue
		}
		if left[b.Cluster] == nil {
			left[b.Cluster] = make(map[string][]netip.Addr)
		}
		left[b.Cluster][b.UID] = b.Addresses
	}
	statuses := make(map[string][]*gateway.Status, len(r.Statuses))
	for cluster, list := range r.Statuses {
		list = slices.Clone(list)
		for i, one := range list {
			if one.Gateway == nil {
				continue
			}
			status, of := *one.Gateway, left[cluster][one.UID]
			lacks := func(a gatewayv1.GatewayStatusAddress) bool {
				addr, err := netip.ParseAddr(a.Value)
				return err != nil || !slices.Contains(of, addr)
			}
			if slices.ContainsFunc(status.Addresses, lacks) {
				status.Addresses = slices.DeleteFunc(slices.Clone(status.Addresses), lacks)
				less := *one
				less.Gateway, list[i] = &status, &less
			}
		}
		statuses[cluster] = list
	}
	r.Balancers, r.Statuses = balancers, statuses
	return r
}

// explained returns Balancers with the problems of each.
func explained(all []Balancer, problems []Problem) []Balancer {
	if len(all) == 0 {
		return nil
	}
	why := make(map[ObjectRef][]string)
	for _, p := range problems {
		why[p.ObjectRef] = append(why[p.ObjectRef], p.Why)
	}
	all = slices.Clone(all)
	for i := range all {
		one := &all[i]
		of := why[one.ObjectRef]
		for _, a := range one.Addresses {
			if !slices.Contains(one.Recorded, a) {
				of = append(of, fmt.Sprintf("%s is not in its status yet", a))
			}
		}
		one.Why = strings.Join(of, "; ")
	}
	return all
}
