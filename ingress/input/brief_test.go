package input

import (
	"fmt"
	"strings"
	"testing"
)

func TestANamespaceDoesNotFillTheStatus(t *testing.T) {
	var all []Problem
	for i := range mostOfNamespace + 7 {
		all = append(all, Problem{ObjectRef: ObjectRef{
			Cluster: "default", Kind: "Ingress", Namespace: "evil",
			Name: fmt.Sprintf("i%06d", i),
		}, Reason: "R", Why: "w"})
	}
	for i := range mostTold + 3 {
		all = append(all, Problem{
			ObjectRef: ObjectRef{Cluster: "default", Kind: "Ingress", Namespace: "victim", Name: "i"},
			Reason:    "R", Why: fmt.Sprint(i),
		})
	}
	got := Brief(all)
	if len(got) != mostOfNamespace+1+mostTold+1 {
		t.Fatalf("%d of %d problems are reported", len(got), len(all))
	}
	for at, want := range map[int]string{
		mostOfNamespace: "there are 7 more problems with objects of namespace evil",
		len(got) - 1:    "there are 3 more problems with this object",
	} {
		if got[at].Reason != "MoreProblems" || !strings.HasPrefix(got[at].Why, want) {
			t.Errorf("problem %d: %+v, want %q", at, got[at], want)
		}
	}
}
