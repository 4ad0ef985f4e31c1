package kubelet

import (
	"context"
	"errors"
	"net/netip"
	"sync"
)

// errNoAddress is the error when the ranges of a hostLocal are used up.
var errNoAddress = errors.New("no podCIDR of the node has a free address")

// A hostLocal allocates addresses from the node's own ranges, as the CNI plugin host-local does.
// The allocations are in its memory alone.
type hostLocal struct {
	mu     sync.Mutex
	ranges []*block
}

// newHostLocal excludes the addresses that the plugin excludes: that of the network, the gateway
// after it, and the broadcast address.
func newHostLocal(node string, ranges []netip.Prefix) *hostLocal {
	m := &hostLocal{}
	for _, r := range ranges {
		b := newBlock(r, node)
		b.Unallocated = b.Unallocated[2 : len(b.Unallocated)-1]
		m.ranges = append(m.ranges, &b)
	}
	return m
}

func (m *hostLocal) take(_ context.Context, family int, owner attribute) (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, get := range []func(*block) (netip.Addr, bool){
		func(b *block) (netip.Addr, bool) { return b.held(owner.Handle) },
		func(b *block) (netip.Addr, bool) { return b.take(owner) },
	} {
		for _, b := range m.ranges {
			if netip.MustParsePrefix(b.CIDR).Addr().BitLen() != family {
				continue
			}
			if addr, ok := get(b); ok {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, errNoAddress
}

func (m *hostLocal) release(_ context.Context, gone func(attribute) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.ranges {
		b.release(gone)
	}
	return nil
}
