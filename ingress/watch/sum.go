package watch

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/input"
)

// A sum bounds the bytes of all Secrets, or ConfigMaps, of each namespace that are kept. An object
// beyond the bound loses its data as it arrives, and is read again when there is room for it. Those
// that came first stay.
type sum[T object] struct {
	most int // bytes of a namespace; 0 means no bound

	mu      sync.Mutex
	bytes   map[types.NamespacedName]int
	sums    map[string]int               // by namespace
	without map[types.NamespacedName]int // the bytes of the objects that lost their data
}

func newSum[T object](most int) *sum[T] {
	return &sum[T]{
		most: most, bytes: make(map[types.NamespacedName]int), sums: make(map[string]int),
		without: make(map[types.NamespacedName]int),
	}
}

// admit counts an object that arrives instead of the one of its name, and removes its data if there
// is no room. A second call changes nothing.
func (m *sum[T]) admit(s T) {
	key, size := input.KeyOf(s), input.Size(s)
	if m.most == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := m.sums[key.Namespace] - m.bytes[key]
	if size > 0 {
		delete(m.without, key)
	}
	if rest+size > m.most {
		m.without[key] = size
		input.Withhold(s, size, m.most)
		size = 0
	}
	m.bytes[key], m.sums[key.Namespace] = size, rest+size
}

// count counts all objects that are kept, from zero. It returns objects without data that now have
// room.
func (m *sum[T]) count(kept []T) (again []types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most == 0 {
		return nil
	}
	clear(m.bytes)
	clear(m.sums)
	for _, s := range kept {
		size := input.Size(s)
		m.bytes[input.KeyOf(s)] = size
		m.sums[s.GetNamespace()] += size
	}
	planned := make(map[string]int)
	for _, key := range slices.SortedFunc(maps.Keys(m.without), input.CompareKeys) {
		size := m.without[key]
		if _, is := m.bytes[key]; !is {
			delete(m.without, key)
			continue
		}
		if m.sums[key.Namespace]+planned[key.Namespace]+size <= m.most {
			planned[key.Namespace] += size
			delete(m.without, key)
			again = append(again, key)
		}
	}
	return again
}
