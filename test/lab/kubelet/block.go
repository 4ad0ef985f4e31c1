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

// A block is the spec of an IPAMBlock (crd.projectcalico.org/v1): which of its
// addresses are taken, and by whom. The ordinal of an address is its distance
// from the first address of the CIDR.
type block struct {
	CIDR        string           `json:"cidr"`
	Affinity    string           `json:"affinity,omitempty"` // "host:NODE"
	Allocations []*int           `json:"allocations"`        // by ordinal: index into Attributes, nil is free
	Unallocated []int            `json:"unallocated"`        // ordinals in the order they are handed out
	Attributes  []attribute      `json:"attributes"`
	Sequence    int64            `json:"sequenceNumber,omitempty"`
	SequenceFor map[string]int64 `json:"sequenceNumberForAllocation,omitempty"` // by ordinal: Sequence when it was taken
	Deleted     bool             `json:"deleted"`
	Strict      bool             `json:"strictAffinity"`
}

// An attribute says who holds addresses of a block.
type attribute struct {
	Handle     string            `json:"handle_id,omitempty"`
	Secondary  map[string]string `json:"secondary,omitempty"` // pod, namespace, node, timestamp, type
	Alternate  map[string]string `json:"alternateOwnerAttrs,omitempty"`
	ReleasedAt string            `json:"releasedAt,omitempty"`
}

// newBlock is an IPAMBlock with every address free.
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

// held is the address that handle holds.
func (b *block) held(handle string) (netip.Addr, bool) {
	for ordinal, at := range b.Allocations {
		if at != nil && *at >= 0 && *at < len(b.Attributes) && b.Attributes[*at].Handle == handle {
			return b.addr(ordinal)
		}
	}
	return netip.Addr{}, false
}

// take hands out the next free address. It reports false, and changes nothing,
// if there is none.
func (b *block) take(owner attribute) (netip.Addr, bool) {
	for i, ordinal := range b.Unallocated {
		// An ordinal that both lists claim is damage of someone else's: the
		// allocation wins, because an address handed out twice is worse than
		// one never handed out.
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

// release frees every address whose owner is to go, and reports whether that
// changed anything. What is freed goes to the end of the queue, so that an
// address rests as long as possible before it is used again.
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

// plus is the address n further on; it wraps within the low 64 bits.
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

// blocksOf walks the blocks of a pool once around, beginning where the node's
// name falls, so that nodes rarely reach for the same block at the same time.
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

// blockName is the name of the IPAMBlock of a CIDR.
func blockName(cidr netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr.String())
}

// affinityName is the name of a node's BlockAffinity for a CIDR.
func affinityName(node string, cidr netip.Prefix) string {
	return fmt.Sprintf("%s-%s", node, blockName(cidr))
}
