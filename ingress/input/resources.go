package input

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Backend is a custom resource of HAProxy's own controller: settings of the backends of the objects that
// name it by cr-backend.
type Backend struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
}

// The API groups of a Backend, with their versions.
const (
	BackendV1 = "ingress.v1.haproxy.org/v1"
	BackendV3 = "ingress.v3.haproxy.org/v3"
)

// Older reports whether the Backend is of ingress.v1.haproxy.org.
func (b *Backend) Older() bool { return b.APIVersion == BackendV1 }

// DeepCopyObject returns a copy.
func (b *Backend) DeepCopyObject() runtime.Object {
	return &Backend{b.TypeMeta, *b.ObjectMeta.DeepCopy(), slices.Clone(b.Spec)}
}

// A BackendList is a list of Backends as an API server sends it.
type BackendList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Backend `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *BackendList) DeepCopyObject() runtime.Object {
	next := &BackendList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		next.Items = append(next.Items, *l.Items[i].DeepCopyObject().(*Backend))
	}
	return next
}
