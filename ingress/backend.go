package ingress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// part builds the backend of a need out of the EndpointSlices of its Service.
func (c *Compiler) part(n need) part {
	c.made.parts++
	w := c.worlds[n.world]
	if n.named {
		n.origin = c.spellRef(n.by) + n.origin
	}
	backend := &haproxy.Backend{
		Name: n.name, Origin: n.origin + "Service " + n.Service.String() + " port " + n.PortText(),
		Cluster: w.Cluster, Namespace: n.Service.Namespace, Service: n.Service.String() + ":" + n.PortText(),
		TCP:        n.Traffic != annotations.Requests && n.Traffic != claims.Checks,
		Directives: n.settings.Directives, Options: n.settings.Options,
	}
	if n.Traffic == claims.Checks {
		backend.By = n.by.Namespace // the Service may be of another
	}
	if n.Service.Name == "" { // it redirects
		backend.Origin, backend.Service = n.origin, ""
	}
	if w.prefix != "" {
		backend.Origin = "cluster " + w.Cluster + ", " + backend.Origin
	}
	p := part{backend: backend}
	if len(c.verdicts) > 0 {
		c.close(&p, n)
	}
	if !n.exists {
		return p
	}
	p.addServers(w, &n, haproxy.Server{Backup: n.set != "" && w.Options.Standby})
	if backend.Set = n.set; n.set != "" {
		c.addGuests(&p, &n)
	}
	// While an endpoint moves from one slice to another it is in both: it is ready if
	// either says so.
	slices.SortStableFunc(backend.Servers, func(a, b haproxy.Server) int {
		if order := cmp.Compare(a.Name, b.Name); order != 0 || a.Drain == b.Drain {
			return order
		}
		if a.Drain {
			return 1
		}
		return -1
	})
	backend.Servers = slices.CompactFunc(backend.Servers, func(a, b haproxy.Server) bool { return a.Name == b.Name })
	return p
}

// addServers adds a server for each endpoint that a world has for a need. The servers are like of.
func (p *part) addServers(w *world, n *need, of haproxy.Server) {
	report := func(reason, format string, args ...any) {
		why := fmt.Sprintf(format, args...)
		p.problems = append(p.problems, Problem{ObjectRef: n.ref(w.Cluster), Reason: reason, Why: why})
	}
	for _, s := range input.SlicesOf(w.Slices, n.Service) {
		if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 {
			report("UnsupportedEndpoints", "EndpointSlice %s has addresses of type %s; allowed are IPv4 and IPv6; it "+
				"is not used", annotations.Quote(s.Name), annotations.Quote(string(s.AddressType)))
			continue
		}
		port := portOf(s, n.Port)
		if port == 0 {
			continue // a slice of pods that do not have this port
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			drain := !ready && e.Conditions.Terminating != nil && *e.Conditions.Terminating &&
				e.Conditions.Serving != nil && *e.Conditions.Serving
			if !ready && !drain || len(e.Addresses) == 0 {
				continue
			}
			// All addresses of one endpoint lead to the same pod. Every consumer uses
			// the first (discovery/v1, Endpoint.Addresses).
			ip, err := cleanAddress(e.Addresses[0], s.AddressType)
			if err != nil {
				report("InvalidEndpoint", "EndpointSlice %s: %v; the endpoint is not used",
					annotations.Quote(s.Name), err)
				continue
			}
			server := of
			server.Addr, server.Drain = netip.AddrPortFrom(ip, port), drain
			server.Name = haproxy.NameOf(server)
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				server.Pod = cmp.Or(e.TargetRef.Namespace, s.Namespace) + "/" + e.TargetRef.Name
			}
			if e.NodeName != nil {
				server.Node = *e.NodeName
			}
			p.backend.Servers = append(p.backend.Servers, server)
		}
	}
}

// close closes a backend that HAProxy refuses.
func (c *Compiler) close(p *part, n need) {
	part := p.backend.Part()
	why := c.verdicts[part].Why
	if why == "" {
		return
	}
	p.refused = &part
	p.backend.Directives, p.backend.Options = []haproxy.Directive{haproxy.Close()}, haproxy.ServerOptions{}
	if p.backend.TCP {
		p.backend.Directives[0] = haproxy.CloseTCP()
	}
	on := n.ref(c.worlds[n.world].Cluster)
	if by := n.settings.by; by != nil {
		on = by.Ref
	}
	p.problems = append(p.problems, Problem{
		ObjectRef: on, Reason: "RefusedByHAProxy",
		Why: fmt.Sprintf("HAProxy cannot start with the configuration of %s: %s; all clients are rejected until it "+
			"is changed", p.backend.Origin, why),
	})
}

// portOf returns the port number that the pods of a slice have for a port of their Service, or 0. A
// named targetPort can be a different number in every slice.
func portOf(s *discoveryv1.EndpointSlice, name string) uint16 {
	for _, p := range s.Ports {
		switch {
		case p.Port == nil || *p.Port < 1 || *p.Port > 65535:
		case p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP:
		case p.Name == nil && name == "" || p.Name != nil && *p.Name == name:
			return uint16(*p.Port)
		}
	}
	return 0
}

// cleanAddress parses the address of an endpoint. It refuses addresses that lead back
// to the appliance or nowhere, as the API server does (discovery/v1,
// Endpoint.Addresses).
func cleanAddress(s string, family discoveryv1.AddressType) (netip.Addr, error) {
	ip, err := netip.ParseAddr(s)
	if err != nil {
		return ip, fmt.Errorf("%s is not an address", annotations.Quote(s))
	}
	switch {
	case ip.Is4() != (family == discoveryv1.AddressTypeIPv4) || ip.Is4In6() || ip.Zone() != "":
		return ip, fmt.Errorf("%s is not an %s address", annotations.Quote(s), family)
	case ip.IsUnspecified(), ip.IsLoopback(), ip.IsMulticast(), ip.IsLinkLocalUnicast(),
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return ip, fmt.Errorf("%s is not the address of a pod: unspecified, loopback, link-local, multicast and "+
			"broadcast addresses are refused", ip)
	}
	return ip, nil
}
