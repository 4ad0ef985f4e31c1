package input

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A ServiceExport says that the Service of its name is one Service of all clusters of a set
// (multicluster.x-k8s.io, KEP-1645). Nothing but its name counts.
type ServiceExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
}

// DeepCopyObject returns a copy.
func (e *ServiceExport) DeepCopyObject() runtime.Object {
	return &ServiceExport{e.TypeMeta, *e.ObjectMeta.DeepCopy()}
}

// A ServiceExportList is a list of ServiceExports as an API server sends it.
type ServiceExportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ServiceExport `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *ServiceExportList) DeepCopyObject() runtime.Object {
	next := &ServiceExportList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		next.Items = append(next.Items, ServiceExport{l.Items[i].TypeMeta, *l.Items[i].ObjectMeta.DeepCopy()})
	}
	return next
}
