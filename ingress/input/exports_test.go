package input

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAnyStatusOfAnExportCanBeRead reads statuses that a CRD without a schema accepts.
func TestAnyStatusOfAnExportCanBeRead(t *testing.T) {
	long := strings.Repeat("x", 2000)
	for text, want := range map[string]ExportStatus{
		`null`:                {},
		`"x"`:                 {Exists: true},
		`[]`:                  {Exists: true},
		`{"conditions": {}}`:  {Exists: true},
		`{"conditions": []}`:  {Exists: true, Listed: true},
		`{"conditions": [7]}`: {Exists: true, Listed: true},
		`{"conditions": [null, {"type": "sallyport.dev/Shared", "status": "True"}]}`: {
			Exists: true, Listed: true, Place: 1, Own: &metav1.Condition{Type: SharedCondition, Status: "True"},
		},
		`{"conditions": [{"type": "sallyport.dev/Shared", "status": 7}]}`: {
			Exists: true, Listed: true, Own: &metav1.Condition{Type: SharedCondition},
		},
		`{"conditions": [{"type": "sallyport.dev/Shared", "status": "` + long + `"}]}`: {
			Exists: true, Listed: true, Own: &metav1.Condition{Type: SharedCondition},
		},
	} {
		var l ServiceExportList
		if err := json.Unmarshal([]byte(`{"items": [{"metadata": {"name": "web"}, "status": `+text+`}]}`), &l); err != nil {
			t.Errorf("%.80s: %v", text, err)
			continue
		}
		got := l.DeepCopyObject().(*ServiceExportList).Items[0]
		same := got.Status.Exists == want.Exists && got.Status.Listed == want.Listed && got.Status.Place == want.Place &&
			(got.Status.Own == nil) == (want.Own == nil) && (want.Own == nil || *got.Status.Own == *want.Own)
		if !same || got.Name != "web" {
			t.Errorf("%.80s: got %+v, want %+v", text, got, want)
		}
	}
}
