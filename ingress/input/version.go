package input

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Version is the content of an object at one time, or the fact that it did not exist.
type Version struct {
	List      int    `json:"list"` // its place in All
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Sum       string `json:"sum,omitempty"` // SHA-256 of all but the resourceVersion; "" if there was no such object
}

// Named returns the version without the Sum of its content.
func (v Version) Named() Version {
	v.Sum = ""
	return v
}

// Sums remembers the sums of objects, by their pointers.
type Sums map[any]string

// sumOf returns the sum of an object. It copies the object, which others may be reading.
func sumOf[T any](s Sums, o *T) string {
	if sum, known := s[o]; known {
		return sum
	}
	copied := *o
	any(&copied).(metav1.Object).SetResourceVersion("")
	text, err := json.Marshal(&copied)
	if err != nil {
		text = []byte(err.Error()) // an object that came from JSON always has its text
	}
	hash := sha256.Sum256(text)
	s[o] = hex.EncodeToString(hash[:])
	return s[o]
}

// refOf names an object, without its cluster.
func refOf(o metav1.Object) ObjectRef {
	kind := reflect.TypeOf(o).Elem().Name()
	return ObjectRef{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

// Holding returns the objects, with each held version replaced by its version in older. If older
// has no such object, Holding leaves it out. Holding looks only at versions for which concerned is
// true. It calls held for each of these that differs from older. An object that is gone is also a
// version that differs. The ObjectRef has no cluster.
func (o Objects) Holding(
	older Objects, sums Sums, concerned func(named Version) bool, held func(Version, ObjectRef) bool,
) Objects {
	before := older.lists()
	for i, l := range o.lists() {
		l.hold(i, before[i], sums, concerned, held)
	}
	return o
}

func (l listOf[T]) hold(
	place int, older objectList, sums Sums, concerned func(named Version) bool, held func(Version, ObjectRef) bool,
) {
	named := func(o *T) Version {
		key := KeyOf(any(o).(metav1.Object))
		return Version{List: place, Namespace: key.Namespace, Name: key.Name}
	}
	was := map[Version]*T{}
	for _, o := range *older.(listOf[T]).at {
		if v := named(o); concerned(v) {
			was[v] = o
		}
	}
	list, changed := make([]*T, 0, len(*l.at)), false
	for _, o := range *l.at {
		v := named(o)
		if !concerned(v) {
			list = append(list, o)
			continue
		}
		old := was[v]
		delete(was, v)
		if old != o && (old == nil || sumOf(sums, old) != sumOf(sums, o)) {
			v.Sum = sumOf(sums, o)
			if held(v, refOf(any(o).(metav1.Object))) {
				o, changed = old, true
			}
		}
		if o != nil {
			list = append(list, o)
		}
	}
	for v, old := range was {
		if held(v, refOf(any(old).(metav1.Object))) {
			list, changed = append(list, old), true
		}
	}
	if changed {
		slices.SortStableFunc(list, l.order)
		*l.at = list
	}
}
