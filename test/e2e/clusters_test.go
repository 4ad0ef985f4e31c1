package e2e

import (
	"slices"
	"strings"
	"testing"

	"sallyport/test/lab/world"
)

func TestNodesThatSpeakWithBIRD2AreServedAsAnyOther(t *testing.T) {
	r := newRig(t, world.Options{Name: "bird2", Workers: 2, Bird: 2})
	if out, err := r.BIRD(t.Context(), "worker1", 4, "show", "status"); err != nil || !strings.Contains(out, "BIRD 2.") {
		t.Fatalf("worker1 speaks with %q (%v), want BIRD 2", out, err)
	}
	r.install("")
	r.apply(application("app", 4, "") + ingress("app", "", "test.local / Prefix app"))
	r.start()
	r.ready()
	if got, want := r.sessions(), []string{"master", "worker1", "worker2"}; !slices.Equal(got, want) {
		t.Errorf("sessions with %q, want %q", got, want)
	}
	if got := r.routes("-4"); !slices.Equal(got, threeRoutes) {
		t.Errorf("routes %q, want %q", got, threeRoutes)
	}
	r.answeredBy("http://test.local/", 4)
	r.outlives("worker1")
	r.answeredBy("http://test.local/", 4)
}
