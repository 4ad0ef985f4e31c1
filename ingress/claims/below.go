package claims

import (
	"cmp"
	"slices"
	"strings"
)

// PathsBelow finds the paths of a host that begin with another path. It finds each of them once.
type PathsBelow struct {
	keys []Key // in the order of what they reach
	next []int // from each key, the first one at or after it that was not found; one more at the end
}

// NewPathsBelow returns the paths of a host as keys have them. It sorts keys.
func NewPathsBelow(keys []Key) *PathsBelow {
	p := &PathsBelow{keys: keys, next: make([]int, len(keys)+1)}
	slices.SortFunc(p.keys, func(x, y Key) int { return cmp.Compare(x.Reach(), y.Reach()) })
	for i := range p.next {
		p.next[i] = i
	}
	return p
}

// from returns the place of the first key at or after a place that was not found before.
func (p *PathsBelow) from(at int) int {
	end := at
	for p.next[end] != end {
		end = p.next[end]
	}
	for p.next[at] != end { // the next search takes one step
		at, p.next[at] = p.next[at], end
	}
	return end
}

// Take calls a function with each path that begins with a path, and that Take has not found before. A nil
// *PathsBelow has no path.
func (p *PathsBelow) Take(wide Key, with func(Key)) {
	if p == nil {
		return
	}
	first, _ := slices.BinarySearchFunc(p.keys, wide.Reach(), func(k Key, reach string) int {
		return cmp.Compare(k.Reach(), reach)
	})
	below := func(at int) bool { return at < len(p.keys) && strings.HasPrefix(p.keys[at].Reach(), wide.Reach()) }
	for at := p.from(first); below(at); at = p.from(at + 1) {
		if wide.Covers(p.keys[at]) { // it is not the path itself
			with(p.keys[at])
			p.next[at] = at + 1
		}
	}
}
