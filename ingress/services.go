package ingress

import (
	"net/netip"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/balance"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
)

// balance gives addresses to Gateways and to the Services of type LoadBalancer, and opens the ports of the
// Services there.
func (b *builder) balance() {
	made := balance.Give(balance.Round{
		Worlds: b.snapshots, Gates: b.gateways.all, Machine: b.Local, Used: b.Used, Reserved: b.Reserved,
		Fresh: len(b.Unknown) == 0, Now: b.now(), Keys: b.memory.Layer,
	})
	b.Balancers, b.Problems = made.Balancers, append(b.Problems, made.Problems...)
	b.keeps = b.keeps.Both(made.Keeps)
	for cluster, addresses := range made.Owners {
		b.Owners[cluster].Addresses = addresses
	}
	for _, one := range made.Served {
		for _, addr := range one.At {
			b.open(one, addr)
		}
	}
}

// open opens the ports of a Service at one of its addresses.
func (b *builder) open(one balance.Served, addr netip.Addr) {
	for _, p := range one.Ports {
		port := uint16(p.Port) //nolint:gosec // package balance checked it
		free := haproxy.FreeListener(netip.AddrPortFrom(addr, port))
		b.Questions = append(b.Questions, free)
		switch verdict := b.verdicts[free.Part()]; {
		case verdict.Why != "":
			b.reportOn(one.Ref, "PortConflict", "port %d is not served: on the appliance it is %s",
				port, verdict.Why)
			continue
		case !verdict.Known:
			continue
		}
		to := reference{Service: input.KeyOf(one.Service), Number: p.Port, Traffic: annotations.Ended}
		n, why := b.backend(one.Petitioner, to)
		if why.Reason != "" { // its own port is there
			b.reportOn(one.Ref, why.Reason, "port %d is not served: %s", port, why.Why)
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
		b.add(n, one.Petitioner)
		b.Config.Streams = append(b.Config.Streams, haproxy.Stream{Addr: addr, Port: port, Backend: n.name})
	}
}

// sources returns the directive that admits only some clients to a Service, or nil if the Service
// admits all clients.
func (b *builder) sources(one balance.Served) *haproxy.Directive {
	ranges := one.Service.Spec.LoadBalancerSourceRanges
	if text := one.Service.Annotations[balance.SourceRanges]; len(ranges) == 0 && strings.TrimSpace(text) != "" {
		ranges = strings.Split(text, ",")
	}
	if len(ranges) == 0 {
		return nil
	}
	w := b.worlds[one.World]
	networks, err := annotations.SourceRanges(b.env(w, one.Ref.Namespace, new(keys.Found)), ranges)
	if err != nil {
		b.reportOn(one.Ref, "InvalidSourceRanges", "spec.loadBalancerSourceRanges: %v; all clients are "+
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
