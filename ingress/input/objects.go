package input

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/gateway"
)

// Objects holds the objects of a cluster that are compiled, by kind. An object is
// never changed: a new version of an object is a new pointer.
//
// A new kind takes a field here and its line in lists. In package watch it takes a line in
// watchAll and a rule in Rules.
type Objects struct {
	Ingresses  []*networkingv1.Ingress
	Classes    []*networkingv1.IngressClass
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Secrets    []*corev1.Secret    // that something names
	ConfigMaps []*corev1.ConfigMap // those that Options name, and those that something names
	Namespaces []*corev1.Namespace // if Options select by their labels
	API        gateway.Objects     // the objects of Gateway API
	Exports    []*ServiceExport    // if Options name a set of clusters
	Backends   []*Backend          // if Options read custom resources
	TCPs       []*TCP              // if Options read custom resources
	Globals    []*Global           // if Options read custom resources
	Defaults   []*Defaults         // if Options read custom resources
	Frontends  []*Frontend         // if Options read custom resources
	Rules      []*ValidationRules  // if Options read custom resources
}

// firstLists is the number of lists that each kept picture has. Lists of later kinds are in a
// picture only if they have objects, so that an older program reads a picture without them.
const firstLists = 7

// lists returns the list of each kind, in the order of a kept picture. A new
// kind goes to the end.
func (o *Objects) lists() []objectList {
	return []objectList{
		listAt(&o.Ingresses, ByName),
		listAt(&o.Classes, ByName),
		listAt(&o.Services, ByName),
		listAt(&o.Slices, ByService),
		listAt(&o.Secrets, ByName),
		listAt(&o.ConfigMaps, ByName),
		listAt(&o.Namespaces, ByName),
		listAt(&o.API.Classes, ByName),
		listAt(&o.API.Gateways, ByName),
		listAt(&o.API.ListenerSets, ByName),
		listAt(&o.API.HTTPRoutes, ByName),
		listAt(&o.API.GRPCRoutes, ByName),
		listAt(&o.API.TLSRoutes, ByName),
		listAt(&o.API.TCPRoutes, ByName),
		listAt(&o.API.Grants, ByName),
		listAt(&o.API.TLSPolicies, ByName),
		listAt(&o.Exports, ByName),
		listAt(&o.Backends, ByName),
		listAt(&o.TCPs, ByName),
		listAt(&o.Globals, ByName),
		listAt(&o.Defaults, ByName),
		listAt(&o.Frontends, ByName),
		listAt(&o.Rules, ByName),
	}
}

// Same reports whether both hold the same objects, by their pointers, in the
// same order.
func (o Objects) Same(p Objects) bool {
	others := p.lists()
	for i, l := range o.lists() {
		if !l.equal(others[i]) {
			return false
		}
	}
	return true
}

// WithoutSlices returns the objects on which routing depends.
func (o Objects) WithoutSlices() Objects {
	o.Slices = nil
	return o
}

// Without returns the objects without those of some namespaces.
func (o Objects) Without(namespaces map[string]bool) Objects {
	for _, l := range o.lists() {
		l.filter(func(one metav1.Object) bool { return !namespaces[one.GetNamespace()] })
	}
	return o
}

// APIServer is the Service of the API server.
var APIServer = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// UIDOf returns the UID of an object of All.
func UIDOf(object any) string { return string(object.(metav1.Object).GetUID()) }

// All returns the objects, one list for each kind, as Read wants them. It leaves out empty lists at
// the end, but returns at least firstLists lists.
func (o Objects) All() (lists [][]any) {
	for _, l := range o.lists() {
		lists = append(lists, l.all())
	}
	for len(lists) > firstLists && len(lists[len(lists)-1]) == 0 {
		lists = lists[:len(lists)-1]
	}
	return lists
}

// Read appends objects in the order of All. counts has the length of each list. It returns an error
// if there are fewer than firstLists lists, or more than this program knows.
func (o *Objects) Read(counts []int, from *json.Decoder) error {
	lists := o.lists()
	if len(counts) < firstLists || len(counts) > len(lists) {
		return fmt.Errorf("it has %d lists of objects, not %d to %d", len(counts), firstLists, len(lists))
	}
	for i, count := range counts {
		for range count {
			if err := lists[i].read(from); err != nil {
				return err
			}
		}
	}
	return nil
}

// A Change is an object that came, became another version or went.
type Change struct {
	List      int             `json:"list"` // its place in All
	Namespace string          `json:"namespace,omitempty"`
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object,omitempty"` // "" if the object is gone
}

// Since returns the changes that lead from older objects to these.
func (o Objects) Since(older Objects) (changes []Change, err error) {
	before := older.lists()
	for i, l := range o.lists() {
		more, err := l.since(i, before[i])
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	return changes, nil
}

// Take makes the objects those that Since saw after the changes.
func (o *Objects) Take(changes []Change) error {
	lists := o.lists()
	by := make([]map[types.NamespacedName]json.RawMessage, len(lists))
	for _, c := range changes {
		if c.List < 0 || c.List >= len(lists) {
			return fmt.Errorf("there is no list %d of objects", c.List)
		}
		if by[c.List] == nil {
			by[c.List] = make(map[types.NamespacedName]json.RawMessage)
		}
		by[c.List][types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c.Object
	}
	for i, l := range lists {
		if err := l.take(by[i]); err != nil {
			return err
		}
	}
	return nil
}

// Add puts objects, a slice of pointers, into the list of their type.
func (o *Objects) Add(objects any) {
	for _, l := range o.lists() {
		l.add(objects)
	}
}

// Reuse returns the objects in order, in slices of our own. A list that holds
// the same as in old is the very slice of old.
func (o Objects) Reuse(old Objects) Objects {
	before := old.lists()
	for i, l := range o.lists() {
		l.reuse(before[i])
	}
	return o
}

// An objectList is the list of one kind of objects.
type objectList interface {
	all() []any
	add(objects any)
	read(from *json.Decoder) error
	equal(other objectList) bool
	reuse(old objectList)
	filter(keep func(metav1.Object) bool)
	hold(place int, older objectList, sums Sums, concerned func(named Version) bool, held func(Version, ObjectRef) bool)
	since(place int, older objectList) ([]Change, error)
	take(changes map[types.NamespacedName]json.RawMessage) error
}

type listOf[T any] struct {
	at    *[]*T
	order func(a, b *T) int
}

func listAt[T any](at *[]*T, order func(a, b *T) int) objectList { return listOf[T]{at, order} }

func (l listOf[T]) all() (objects []any) {
	for _, o := range *l.at {
		objects = append(objects, o)
	}
	return objects
}

func (l listOf[T]) add(objects any) {
	more, ok := objects.([]*T)
	switch {
	case !ok:
	case len(*l.at) == 0:
		*l.at = more
	default:
		*l.at = slices.Concat(*l.at, more)
		slices.SortStableFunc(*l.at, l.order)
	}
}

func (l listOf[T]) read(from *json.Decoder) error {
	o := new(T)
	if err := from.Decode(o); err != nil {
		return err
	}
	*l.at = append(*l.at, o)
	return nil
}

func (l listOf[T]) equal(other objectList) bool { return slices.Equal(*l.at, *other.(listOf[T]).at) }

func (l listOf[T]) reuse(old objectList) { *l.at = reuse(*l.at, *old.(listOf[T]).at, l.order) }

func (l listOf[T]) filter(keep func(metav1.Object) bool) {
	drop := func(o *T) bool { return !keep(any(o).(metav1.Object)) }
	if slices.ContainsFunc(*l.at, drop) {
		*l.at = slices.DeleteFunc(slices.Clone(*l.at), drop)
	}
}

func (l listOf[T]) since(place int, older objectList) (changes []Change, err error) {
	was, is := *older.(listOf[T]).at, *l.at
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	had, has := make(map[*T]bool, len(was)), make(map[types.NamespacedName]bool, len(is))
	for _, o := range was {
		had[o] = true
	}
	for _, o := range is {
		key := KeyOf(any(o).(metav1.Object))
		has[key] = true
		if had[o] {
			continue
		}
		text, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		changes = append(changes, Change{List: place, Namespace: key.Namespace, Name: key.Name, Object: text})
	}
	for _, o := range was {
		if key := KeyOf(any(o).(metav1.Object)); !has[key] {
			changes = append(changes, Change{List: place, Namespace: key.Namespace, Name: key.Name, Object: nil})
		}
	}
	return changes, nil
}

func (l listOf[T]) take(changes map[types.NamespacedName]json.RawMessage) error {
	if len(changes) == 0 {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(*l.at), func(o *T) bool {
		_, changed := changes[KeyOf(any(o).(metav1.Object))]
		return changed
	})
	for _, text := range changes {
		if len(text) == 0 {
			continue
		}
		o := new(T)
		if err := json.Unmarshal(text, o); err != nil {
			return err
		}
		list = append(list, o)
	}
	slices.SortStableFunc(list, l.order)
	*l.at = list
	return nil
}

// reuse returns list in order, as a slice of our own. If old holds the same, keep returns old.
func reuse[T comparable](list, old []T, order func(a, b T) int) []T {
	if slices.Equal(list, old) {
		return old
	}
	list = slices.Clone(list)
	if !inOrder(list, old, order) {
		slices.SortStableFunc(list, order)
		if slices.Equal(list, old) {
			return old
		}
	}
	return list
}

// inOrder reports whether list is sorted. old is sorted. inOrder compares only objects with a
// new neighbour in list.
func inOrder[T comparable](list, old []T, order func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if i < len(old) && list[i] == old[i] && list[i-1] == old[i-1] {
			continue
		}
		if order(list[i-1], list[i]) > 0 {
			return false
		}
	}
	return true
}

// Referred returns the objects without the EndpointSlices of Services that are not served. The
// Service of the API server counts as served.
func (o Objects) Referred(served map[types.NamespacedName][]string) Objects {
	listAt(&o.Slices, ByService).filter(func(one metav1.Object) bool {
		service := types.NamespacedName{
			Namespace: one.GetNamespace(), Name: one.GetLabels()[discoveryv1.LabelServiceName],
		}
		_, leads := served[service]
		return leads || service == APIServer
	})
	return o
}
