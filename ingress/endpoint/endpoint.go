// Package endpoint makes servers of the endpoints in EndpointSlices. It alone knows which endpoints take
// requests, and which addresses no pod can have.
package endpoint

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/haproxy"
	"sallyport/ingress/annotations"
)

// A Fault is why an endpoint, or a whole EndpointSlice, is not used.
type Fault struct{ Reason, Why string }

// Servers returns a server for each endpoint that takes requests at a port of its Service. port is the name of
// that port. The servers are like of, and one that terminates has Drain.
func Servers(list []*discoveryv1.EndpointSlice, port string, of haproxy.Server) (all []haproxy.Server, odd []Fault) {
	report := func(reason, format string, args ...any) {
		odd = append(odd, Fault{Reason: reason, Why: fmt.Sprintf(format, args...)})
	}
	for _, s := range list {
		if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 {
			report("UnsupportedEndpoints", "EndpointSlice %s has addresses of type %s; allowed are IPv4 and IPv6; it "+
				"is not used", annotations.Quote(s.Name), annotations.Quote(string(s.AddressType)))
			continue
		}
		number := portOf(s, port)
		if number == 0 {
			continue // a slice of pods that do not have this port
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ready := isReady(e)
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
			server.Addr, server.Drain = netip.AddrPortFrom(ip, number), drain
			server.Name = haproxy.NameOf(server)
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				server.Pod = cmp.Or(e.TargetRef.Namespace, s.Namespace) + "/" + e.TargetRef.Name
			}
			if e.NodeName != nil {
				server.Node = *e.NodeName
			}
			all = append(all, server)
		}
	}
	return all, odd
}

// Unready counts the endpoints at a port of their Service that take no requests since they are not ready, each
// address once. An endpoint that terminates does not count: the Service is to have one less.
func Unready(list []*discoveryv1.EndpointSlice, port string) (count int) {
	ready := make(map[netip.AddrPort]bool)
	for _, s := range list {
		number := portOf(s, port)
		if number == 0 {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Terminating != nil && *e.Conditions.Terminating || len(e.Addresses) == 0 {
				continue
			}
			if ip, err := cleanAddress(e.Addresses[0], s.AddressType); err == nil {
				at := netip.AddrPortFrom(ip, number)
				ready[at] = ready[at] || isReady(e)
			}
		}
	}
	for _, is := range ready {
		if !is {
			count++
		}
	}
	return count
}

// isReady reports whether an endpoint is ready. An endpoint without that condition is (discovery/v1,
// EndpointConditions).
func isReady(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// Merge sorts servers by name, and returns each once. While an endpoint moves from one slice to another it is
// in both: its server takes requests if either of them says so.
func Merge(all []haproxy.Server) []haproxy.Server {
	slices.SortStableFunc(all, func(a, b haproxy.Server) int {
		if order := cmp.Compare(a.Name, b.Name); order != 0 || a.Drain == b.Drain {
			return order
		}
		if a.Drain {
			return 1
		}
		return -1
	})
	return slices.CompactFunc(all, func(a, b haproxy.Server) bool { return a.Name == b.Name })
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
