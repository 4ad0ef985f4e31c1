package watch

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress"
)

// A secretSum bounds the bytes of all Secrets of each namespace that are kept. A Secret beyond the
// bound loses its data as it arrives, and is read again when there is room for it. Those that came
// first stay.
type secretSum struct {
	most int // bytes of a namespace; 0 means no bound

	mu      sync.Mutex
	bytes   map[types.NamespacedName]int
	sums    map[string]int               // by namespace
	without map[types.NamespacedName]int // the bytes of the Secrets that lost their data
}

func newSecretSum(most int) *secretSum {
	return &secretSum{
		most: most, bytes: make(map[types.NamespacedName]int), sums: make(map[string]int),
		without: make(map[types.NamespacedName]int),
	}
}

func sizeOf(s *corev1.Secret) (size int) {
	for _, value := range s.Data {
		size += len(value)
	}
	return size
}

// admit counts a Secret that arrives instead of the one of its name, and removes its data if there
// is no room. A second call changes nothing.
func (m *secretSum) admit(s *corev1.Secret) {
	key, size := ingress.KeyOf(s), sizeOf(s)
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
		ingress.Withhold(s, size, m.most)
		size = 0
	}
	m.bytes[key], m.sums[key.Namespace] = size, rest+size
}

// count counts all Secrets that are kept, from zero. It returns Secrets without data that now have
// room.
func (m *secretSum) count(kept []*corev1.Secret) (again []types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most == 0 {
		return nil
	}
	clear(m.bytes)
	clear(m.sums)
	for _, s := range kept {
		size := sizeOf(s)
		m.bytes[ingress.KeyOf(s)] = size
		m.sums[s.Namespace] += size
	}
	planned := make(map[string]int)
	for _, key := range slices.SortedFunc(maps.Keys(m.without), ingress.CompareKeys) {
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
