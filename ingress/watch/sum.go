package watch

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/input"
)

// A sum bounds the bytes of all Secrets, or ConfigMaps, of each namespace that are kept. An object
// beyond the bound loses its data as it arrives, and is read again when there is room for it. Those
// that came first stay.
//
// An object arrives when it is read, and lands when a shelf or a namedReader keeps it. Between the two
// no snapshot has it, but its bytes count.
type sum[T object] struct {
	most int // bytes of a namespace; 0 means no bound

	mu         sync.Mutex
	admissions map[types.NamespacedName]*admission
	sums       map[string]int // by namespace
	ticks      uint64         // one for each landing
}

// An admission is about one object.
type admission struct {
	bytes  int    // of its data; 0 if that was removed
	landed uint64 // the tick of its landing; 0 while it has only arrived
	asked  bool   // it lost its data, and is being read again
}

func newSum[T object](most int) *sum[T] {
	return &sum[T]{most: most, admissions: make(map[types.NamespacedName]*admission), sums: make(map[string]int)}
}

// arrive counts an object that was read instead of the one of its name, and removes its data if there
// is no room.
func (m *sum[T]) arrive(o T) { m.admit(o, false) }

// land does the same for an object that is kept from now on. The caller holds the lock of what keeps it.
func (m *sum[T]) land(o T) { m.admit(o, true) }

func (m *sum[T]) admit(o T, landed bool) {
	if m.most == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key, size := input.KeyOf(o), input.Size(o)
	m.drop(key)
	if m.sums[key.Namespace]+size > m.most {
		input.Withhold(o, size, m.most)
		size = 0
	}
	if !landed {
		m.enter(key, size, 0)
		return
	}
	m.ticks++
	m.enter(key, size, m.ticks)
}

// enter counts an object without an admission. The caller holds mu.
func (m *sum[T]) enter(key types.NamespacedName, size int, landed uint64) {
	m.sums[key.Namespace] += size
	m.admissions[key] = &admission{bytes: size, landed: landed}
}

// drop ends the admission of an object. The caller holds mu.
func (m *sum[T]) drop(key types.NamespacedName) {
	e := m.admissions[key]
	if e == nil {
		return
	}
	delete(m.admissions, key)
	if m.sums[key.Namespace] -= e.bytes; m.sums[key.Namespace] == 0 {
		delete(m.sums, key.Namespace)
	}
}

// abandon ends the admissions of objects of a namespace that arrived for a list that failed. The namespace
// "" means all.
func (m *sum[T]) abandon(namespace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, e := range m.admissions {
		if e.landed == 0 && (namespace == "" || namespace == key.Namespace) {
			m.drop(key)
		}
	}
}

// now returns the tick of the last landing.
func (m *sum[T]) now() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ticks
}

// count ends the admissions of objects that are gone. Those landed until the tick before, and are not in
// kept, which was collected after that tick; or they only arrived, and nothing names them any more. An
// object of kept counts again if abandon ended its admission. count returns the objects of kept without
// data that now have room. It returns an object once, until the object arrives again.
func (m *sum[T]) count(kept []T, before uint64, named func(types.NamespacedName) bool) (again []types.NamespacedName) {
	if m.most == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	has := make(map[types.NamespacedName]bool, len(kept))
	for _, o := range kept {
		has[input.KeyOf(o)] = true
	}
	for key, e := range m.admissions {
		if !has[key] && (e.landed == 0 && !named(key) || e.landed > 0 && e.landed <= before) {
			m.drop(key)
		}
	}
	planned := make(map[string]int)
	for _, o := range kept {
		key, size := input.KeyOf(o), input.Withheld(o)
		if m.admissions[key] == nil {
			m.enter(key, input.Size(o), m.ticks)
		}
		e := m.admissions[key]
		if size == 0 || e.asked || m.sums[key.Namespace]+planned[key.Namespace]+size > m.most {
			continue
		}
		e.asked = true
		planned[key.Namespace] += size
		again = append(again, key)
	}
	return again
}
