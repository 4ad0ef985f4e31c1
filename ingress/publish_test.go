package ingress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stesting "k8s.io/client-go/testing"
	"pgregory.net/rapid"

	"sallyport/ingress/calico"
)

func TestNamespacesTakeTurns(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "",
		"a1 a2 a3 b1 c1 c2":    "a1 b1 c1 a2 c2 a3",
		"after a: a1 a2 b1 c1": "b1 c1 a1 a2",
		"after c: a1 c1 b1":    "a1 b1 c1",
		"after x: a1 b1":       "a1 b1",
		"after b: a1 c1 c2":    "c1 a1 c2",
	} {
		last, things, found := strings.Cut(in, ": ")
		if !found {
			last, things = "", in
		}
		got := inTurns(strings.Fields(things), strings.TrimPrefix(last, "after "), func(one string) string { return one[:1] })
		if strings.Join(got, " ") != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		things := rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d"})).Draw(t, "things")
		got := inTurns(things, rapid.SampledFrom([]string{"", "a", "b", "d", "e"}).Draw(t, "last"), func(one string) string { return one })
		if !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(things))) {
			t.Fatalf("got %q of %q", got, things)
		}
		for i, one := range got { // whoever comes twice, everybody else who is left came in between or never comes again
			for j := i + 1; j < len(got); j++ {
				if got[j] == one {
					for _, other := range got[j:] {
						if !slices.Contains(got[i:j], other) {
							t.Fatalf("%s comes twice before %s: %q", one, other, got)
						}
					}
					break
				}
			}
		}
	})
}

func TestMistakesOfOneNamespaceDelayNoEventOfAnother(t *testing.T) {
	c := newCluster(calico.V1)
	w := c.watch(t, ClusterConfig{})
	synced(t, w)
	var problems []Problem
	for i := range 2700 {
		problems = append(problems, Problem{ObjectRef{"c", "Ingress", "evil", fmt.Sprintf("i%d", i/20), "1"}, "InvalidPath", fmt.Sprint("mistake ", i)})
	}
	w.Publish(Publication{Problems: problems})
	created := func(namespace string) (count int) {
		for _, a := range c.Actions() {
			if a.Matches("create", "events") && a.(k8stesting.CreateAction).GetNamespace() == namespace {
				count++
			}
		}
		return count
	}
	until(t, w, "the first Event about evil", func() bool { return created("evil") > 0 })
	w.Publish(Publication{Problems: append(problems, Problem{ObjectRef{"c", "Ingress", "victim", "broken", "2"}, "InvalidAnnotation", "a guard"})})
	until(t, w, "the Event about victim", func() bool { return created("victim") == 1 })
	if got := created("evil"); got > 2*eventsAtOnce {
		t.Errorf("%d Events about evil came before", got)
	}
}

// TestStatusesAreWrittenWhileEventsWait fills the budget of Events of a namespace first.
func TestStatusesAreWrittenWhileEventsWait(t *testing.T) {
	c := newCluster(calico.V1)
	served := testIngress("served")
	served.UID = "1"
	mustCreate(t, c.NetworkingV1().Ingresses("default").Create, served)
	w := c.watch(t, ClusterConfig{Publish: []string{"192.168.50.21"}})
	synced(t, w)
	var problems []Problem
	for i := range 500 {
		problems = append(problems, Problem{ObjectRef{"c", "Ingress", "default", "served", "1"}, "InvalidPath", fmt.Sprint("mistake ", i)})
	}
	w.Publish(Publication{Problems: problems})
	w.Publish(Publication{Served: []ObjectRef{{"c", "Ingress", "default", "served", "1"}}, Problems: problems, Add: true})
	until(t, w, "the status", func() bool {
		i, err := c.NetworkingV1().Ingresses("default").Get(t.Context(), "served", metav1.GetOptions{})
		return err == nil && len(i.Status.LoadBalancer.Ingress) == 1
	})
}
