package kubelet

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A block is the spec of an IPAMBlock (crd.projectcalico.org/v1): the addresses in use, and their
// owners. The ordinal of an address is its distance from the first address of the CIDR.
type block struct {
	CIDR        string      `json:"cidr"`
	Affinity    string      `json:"affinity,omitempty"` // "host:NODE"
	Allocations []*int      `json:"allocations"`        // by ordinal: index into Attributes, nil is free
	Unallocated []int       `json:"unallocated"`        // ordinals in the order they are handed out
	Attributes  []attribute `json:"attributes"`
	Sequence    int64       `json:"sequenceNumber,omitempty"`
	// by ordinal: Sequence when it was taken
	SequenceFor map[string]int64 `json:"sequenceNumberForAllocation,omitempty"`
	Deleted     bool             `json:"deleted"`
	Strict      bool             `json:"strictAffinity"`
}

// An attribute names the owner of addresses of a block.
type attribute struct {
	Handle     string            `json:"handle_id,omitempty"`
	Secondary  map[string]string `json:"secondary,omitempty"` // pod, namespace, node, timestamp, type
	Alternate  map[string]string `json:"alternateOwnerAttrs,omitempty"`
	ReleasedAt string            `json:"releasedAt,omitempty"`
}

// newBlock returns an IPAMBlock whose addresses are all free.
func newBlock(cidr netip.Prefix, node string) block {
	n := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	b := block{
		CIDR: cidr.String(), Affinity: "host:" + node,
		Allocations: make([]*int, n), Unallocated: make([]int, n), Attributes: []attribute{},
	}
	for i := range n {
		b.Unallocated[i] = i
	}
	return b
}

// held returns the address that belongs to handle.
func (b *block) held(handle string) (netip.Addr, bool) {
	for ordinal, at := range b.Allocations {
		if at != nil && *at >= 0 && *at < len(b.Attributes) && b.Attributes[*at].Handle == handle {
			return b.addr(ordinal)
		}
	}
	return netip.Addr{}, false
}

// take allocates the next free address. If there is none it returns false and changes nothing.
func (b *block) take(owner attribute) (netip.Addr, bool) {
	for i, ordinal := range b.Unallocated {
		// An ordinal may be in both lists only by damage from elsewhere. The allocation wins: a lost
		// address is better than one with two owners.
		if ordinal < 0 || ordinal >= len(b.Allocations) || b.Allocations[ordinal] != nil {
			continue
		}
		addr, ok := b.addr(ordinal)
		if !ok {
			continue
		}
		at := len(b.Attributes)
		b.Attributes = append(b.Attributes, owner)
		b.Allocations[ordinal] = &at
		b.Unallocated = slices.Delete(slices.Clone(b.Unallocated), i, i+1)
		b.Sequence++
		if b.SequenceFor == nil {
			b.SequenceFor = map[string]int64{}
		}
		b.SequenceFor[strconv.Itoa(ordinal)] = b.Sequence
		return addr, true
	}
	return netip.Addr{}, false
}

// release frees every address whose owner is gone, and reports whether that changed anything. A
// freed address goes to the end of the queue, so that it is reused as late as possible.
func (b *block) release(gone func(attribute) bool) bool {
	move := make([]int, len(b.Attributes)) // old index to new
	var kept []attribute
	for i, owner := range b.Attributes {
		if gone(owner) {
			move[i] = -1
			continue
		}
		move[i] = len(kept)
		kept = append(kept, owner)
	}
	if len(kept) == len(b.Attributes) {
		return false
	}
	for ordinal, at := range b.Allocations {
		if at == nil || *at < 0 || *at >= len(move) {
			continue
		}
		to := move[*at]
		if to >= 0 {
			b.Allocations[ordinal] = &to
			continue
		}
		b.Allocations[ordinal] = nil
		if !slices.Contains(b.Unallocated, ordinal) {
			b.Unallocated = append(b.Unallocated, ordinal)
		}
		delete(b.SequenceFor, strconv.Itoa(ordinal))
	}
	b.Attributes = slices.Concat([]attribute{}, kept)
	b.Sequence++
	return true
}

func (b *block) addr(ordinal int) (netip.Addr, bool) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil || cidr.Addr().BitLen()-cidr.Bits() > 16 {
		return netip.Addr{}, false
	}
	addr := plus(cidr.Masked().Addr(), uint64(ordinal))
	return addr, cidr.Contains(addr)
}

// plus returns the address n after a. It wraps within the low 64 bits.
func plus(a netip.Addr, n uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}

// blocksOf yields the blocks of a pool once around. It begins at a hash of the node's name, so
// that nodes rarely claim the same block at the same time.
func blocksOf(pool netip.Prefix, bits int, node string) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		spread := bits - pool.Bits()
		if spread < 0 || bits > pool.Addr().BitLen() {
			return
		}
		n := uint64(1) << min(spread, 16)
		h := fnv.New64a()
		_, _ = h.Write([]byte(node))
		begin := h.Sum64() % n
		size := uint64(1) << min(pool.Addr().BitLen()-bits, 63)
		for i := range n {
			if !yield(netip.PrefixFrom(plus(pool.Masked().Addr(), (begin+i)%n*size), bits)) {
				return
			}
		}
	}
}

// blockName returns the name of the IPAMBlock of a CIDR.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String())
}

// affinityName returns the name of a node's BlockAffinity for a CIDR.
func affinityName(node string, cidr netip.Prefix) string {
	return fmt.Sprintf("%s-%s", node, blockName(cidr))
}
