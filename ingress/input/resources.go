package input

import (
	"cmp"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Custom is a custom resource of HAProxy's own controller. Of tells the kinds apart.
type Custom[Of any] struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
}

// A CustomList is a list of such resources as an API server sends it.
type CustomList[Of any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Custom[Of] `json:"items"`
}

// The kinds of custom resources.
type (
	// A Backend has settings of the backends of the objects that name it by cr-backend.
	Backend = Custom[ofBackend]
	// A TCP has ports, each with a Service that takes its connections.
	TCP = Custom[ofTCP]
	// A Global has settings of the whole process. The ConfigMap names it by cr-global.
	Global = Custom[ofGlobal]
	// A Defaults has settings of all frontends and backends. The ConfigMap names it by cr-defaults.
	Defaults = Custom[ofDefaults]
	// A Frontend has settings of the frontend for HTTP or HTTPS. The ConfigMap names it by cr-frontend-http or
	// cr-frontend-https.
	Frontend = Custom[ofFrontend]

	// ValidationRules define annotations, and templates that make lines of their values.
	ValidationRules = Custom[ofRules]

	BackendList  = CustomList[ofBackend]  // as an API server sends it
	TCPList      = CustomList[ofTCP]      // as an API server sends it
	GlobalList   = CustomList[ofGlobal]   // as an API server sends it
	DefaultsList = CustomList[ofDefaults] // as an API server sends it
	FrontendList = CustomList[ofFrontend] // as an API server sends it
	RulesList    = CustomList[ofRules]    // as an API server sends it

	ofBackend  struct{}
	ofTCP      struct{}
	ofGlobal   struct{}
	ofDefaults struct{}
	ofFrontend struct{}
	ofRules    struct{}
)

// The API groups of custom resources, with their versions.
const (
	CustomV1 = "ingress.v1.haproxy.org/v1"
	CustomV3 = "ingress.v3.haproxy.org/v3"
)

// RulesKind is the kind of ValidationRules.
const RulesKind = "ValidationRules"

// CustomClass is the annotation with the class of a TCP.
const CustomClass = "ingress.class"

// Older reports whether the resource is of ingress.v1.haproxy.org.
func (c *Custom[Of]) Older() bool { return c.APIVersion == CustomV1 }

// NewerFirst orders resources by name. Of two with one name, that of ingress.v3.haproxy.org comes first.
func NewerFirst[Of any](a, b *Custom[Of]) int {
	rank := func(c *Custom[Of]) int {
		if c.Older() {
			return 1
		}
		return 0
	}
	return cmp.Or(ByName(a, b), rank(a)-rank(b))
}

// DropOlder leaves out each resource of ingress.v1.haproxy.org with the name of one of ingress.v3.haproxy.org, and
// adds a problem for each of them to Beyond. The lists are in the order of NewerFirst.
func (s *Snapshot) DropOlder() {
	var backends, tcps, globals, defaults []Problem
	s.Backends, backends = dropOlder(s.Backends, s.Cluster)
	s.TCPs, tcps = dropOlder(s.TCPs, s.Cluster)
	s.Globals, globals = dropOlder(s.Globals, s.Cluster)
	s.Defaults, defaults = dropOlder(s.Defaults, s.Cluster)
	s.Beyond = slices.Concat(s.Beyond, backends, tcps, globals, defaults)
}

// dropOlder returns a list without the resources that others override, and a problem for each of them.
func dropOlder[Of any](list []*Custom[Of], cluster string) (all []*Custom[Of], odd []Problem) {
	twice := func(a, b *Custom[Of]) bool { return KeyOf(a) == KeyOf(b) }
	for i, c := range list {
		if i > 0 && twice(c, list[i-1]) {
			odd = append(odd, Problem{
				ObjectRef: ObjectRef{
					Cluster: cluster, Kind: c.Kind, Namespace: c.Namespace, Name: c.Name, UID: string(c.UID),
				},
				Reason: "UnusedResource",
				Why:    "a " + c.Kind + " of ingress.v3.haproxy.org with this name overrides it",
			})
		}
	}
	if len(odd) == 0 { // as nearly always: the list is not copied
		return list, nil
	}
	return slices.CompactFunc(slices.Clone(list), twice), odd
}

// DeepCopyObject returns a copy.
func (c *Custom[Of]) DeepCopyObject() runtime.Object {
	return &Custom[Of]{c.TypeMeta, *c.ObjectMeta.DeepCopy(), slices.Clone(c.Spec)}
}

// DeepCopyObject returns a copy.
func (l *CustomList[Of]) DeepCopyObject() runtime.Object {
	next := &CustomList[Of]{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		next.Items = append(next.Items, *l.Items[i].DeepCopyObject().(*Custom[Of]))
	}
	return next
}
