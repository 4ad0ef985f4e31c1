package input

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// A ServiceExport says that the Service of its name is one Service of all clusters of a set
// (multicluster.x-k8s.io, KEP-1645). Nothing but its name counts.
type ServiceExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            ExportStatus `json:"status,omitzero"` // for the writer of statuses alone
}

// Exported reports whether a Service is exported to the set of its cluster.
func (s *Snapshot) Exported(service types.NamespacedName) (is bool) {
	switch {
	case s.Options.InSet.Name == "":
	case s.Options.InSet.ExportsAll:
		_, is = Find(s.Services, service)
	default:
		_, is = Find(s.Exports, service)
	}
	return is
}

// SharedCondition is the type of the condition that the appliance writes into the status of a ServiceExport.
const SharedCondition = "sallyport.dev/Shared"

// An ExportStatus is the appliance's own condition in the status of a ServiceExport, and its place. Nothing is
// kept of the conditions of others: their number and length have no bound. It is no part of a kept picture.
type ExportStatus struct {
	Exists bool              `json:"-"` // the object has a status
	Listed bool              `json:"-"` // the status has conditions
	Place  int               `json:"-"` // of Own among the conditions
	Own    *metav1.Condition `json:"-"` // nil if there is none
}

// longestCondition bounds the texts of a condition that is kept, in bytes. The appliance writes no longer one.
const longestCondition = 1024

// UnmarshalJSON reads the own condition. It accepts any status, because the schema of a CRD may do so, too: one
// odd object does not hide the others of a list.
func (s *ExportStatus) UnmarshalJSON(text []byte) error {
	var status struct {
		Conditions []json.RawMessage `json:"conditions"`
	}
	*s = ExportStatus{Exists: !bytes.Equal(text, []byte("null"))}
	if json.Unmarshal(text, &status) != nil {
		return nil
	}
	s.Listed = status.Conditions != nil
	for i, one := range status.Conditions {
		var of struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(one, &of) != nil || of.Type != SharedCondition {
			continue
		}
		s.Place, s.Own = i, new(metav1.Condition)
		err := json.Unmarshal(one, s.Own)
		if err != nil || len(s.Own.Status)+len(s.Own.Reason)+len(s.Own.Message) > longestCondition {
			s.Own = &metav1.Condition{Type: SharedCondition} // it is not ours, and is replaced
		}
		break
	}
	return nil
}

// DeepCopyObject returns a copy.
func (e *ServiceExport) DeepCopyObject() runtime.Object { return e.copy() }

func (e *ServiceExport) copy() *ServiceExport {
	next := &ServiceExport{TypeMeta: e.TypeMeta, ObjectMeta: *e.ObjectMeta.DeepCopy(), Status: e.Status}
	next.Status.Own = e.Status.Own.DeepCopy()
	return next
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
		next.Items = append(next.Items, *l.Items[i].copy())
	}
	return next
}
