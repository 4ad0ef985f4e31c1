package input

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// LoadBalancerClass is the spec.loadBalancerClass of Services that get an address.
const LoadBalancerClass = "sallyport.dev/appliance"

// Pools hold the addresses for Gateways and Services of type LoadBalancer. If there are no Ranges,
// nothing gets an address.
type Pools struct {
	Ranges    []AddressRange // they never overlap
	Unclassed bool           // Services without a class get addresses, too
	Local     bool           // only addresses that the machine has already can be used, see Compiler.Local
}

// A Use is what has an address of the Pools, if it is no Service: a node, an API server, another machine.
type Use struct {
	By string // as "an address of node worker1"

	// Cluster is the cluster that says so, by its place in the order of the configuration. Its Services
	// and those of later clusters cannot have the address. Those of earlier clusters can, or the operator
	// of one cluster could take addresses from another. It is 0 for what the appliance itself found.
	Cluster int
}

// Bars reports whether a Use takes the address from the Services of a cluster.
func (u Use) Bars(cluster int) bool { return u.By != "" && u.Cluster <= cluster }

// Key returns the key of the configuration file that has the addresses.
func (p Pools) Key() string {
	if p.Local {
		return "haproxy.addresses"
	}
	return "group.pools"
}

// Contain reports whether an address is in the Pools.
func (p Pools) Contain(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r AddressRange) bool { return r.Contains(a) })
}

// Usable returns the ranges of the addresses that can be given, if the machine has the local
// addresses.
func (p Pools) Usable(local []netip.Addr) []AddressRange {
	if !p.Local {
		return p.Ranges
	}
	var all []AddressRange
	for _, addr := range local {
		if p.Contain(addr) {
			all = append(all, AddressRange{addr, addr})
		}
	}
	return all
}

// Ours reports whether a Service asks for an address of the pools.
func (p Pools) Ours(s *corev1.Service) bool {
	if len(p.Ranges) == 0 || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if class := s.Spec.LoadBalancerClass; class != nil {
		return *class == LoadBalancerClass
	}
	return p.Unclassed
}

// Stale reports whether the status of a Service has an address of the pools although the Service no
// longer asks for an address. If the Service names the class of another load balancer, that may
// have given it the address.
func (p Pools) Stale(s *corev1.Service) bool {
	return (s.Spec.Type != corev1.ServiceTypeLoadBalancer || p.Ours(s)) &&
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
			a, err := netip.ParseAddr(in.IP)
			return err == nil && p.Contain(a)
		})
}

// An AddressRange holds the addresses from First to Last, both included. They are of one
// family.
type AddressRange struct{ First, Last netip.Addr }

func (r AddressRange) Contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// mostOfRange bounds how many addresses of a range are given to Services that do not ask for a
// particular address.
const mostOfRange = 1 << 32

// Size returns how many addresses the range has, at most mostOfRange.
func (r AddressRange) Size() uint64 {
	first, last := r.First.As16(), r.Last.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(last[8:]), binary.BigEndian.Uint64(first[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(last[:8]), binary.BigEndian.Uint64(first[:8]), borrow)
	if high > 0 || low >= mostOfRange {
		return mostOfRange
	}
	return low + 1
}

// At returns the address at a place, from 0 to size.
func (r AddressRange) At(place uint64) netip.Addr {
	a := r.First.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(a[8:]), place, 0)
	binary.BigEndian.PutUint64(a[8:], low)
	binary.BigEndian.PutUint64(a[:8], binary.BigEndian.Uint64(a[:8])+carry)
	out := netip.AddrFrom16(a)
	if r.First.Is4() {
		out = out.Unmap()
	}
	return out
}
