package ingress

import (
	"slices"
	"strings"
	"testing"

	"sallyport/haproxy"
)

func TestAnObjectWhoseChangeWaitsForAReloadSaysSo(t *testing.T) {
	own := strings.Replace(ingress("own", 2021, "rules: ["+rule("own.test", path("/", "Prefix", "web"))+"]"),
		"namespace: default,", "namespace: default, annotations: {haproxy.org/timeout-server: 1s},", 1)
	s := snapshot(t, Unnamed, service("web", "http", 80)+own+ingress("shared", 2020,
		"rules: ["+rule("shared.test", path("/", "Prefix", "web"))+"]"))
	s.Options.Limits.Reloads = 7
	r := Compile([]Snapshot{s})
	if got := r.Config.Reloads[Unnamed]; got != 7 {
		t.Fatalf("got a budget of %d reloads, want 7", got)
	}
	var names []string
	for _, b := range r.Config.Backends {
		names = append(names, b.Name)
	}
	evil := haproxy.Tenant{Cluster: Unnamed, Namespace: "default"}
	got := r.Delayed([]haproxy.Wait{{Tenant: evil, Most: 7, Backends: append(names, "gone"), Closed: names[:1]}})
	var told []string
	for _, p := range got.Problems {
		told = append(told, p.Kind+" "+p.Name+" "+p.Reason)
		if closed := strings.Contains(p.Why, "no requests"); closed != strings.Contains(p.Why, names[0]+" ") ||
			!strings.Contains(p.Why, "more than 7 ") {
			t.Errorf("got %q", p.Why)
		}
	}
	if want := []string{"Ingress own LimitReached", "Ingress shared LimitReached"}; !slices.Equal(told, want) {
		t.Errorf("got %q, want %q", told, want)
	}
	if len(r.Problems) > 0 {
		t.Errorf("the Result itself got %v", r.Problems)
	}
	crowded := r.Delayed([]haproxy.Wait{{Tenant: evil, Backends: names[:1]}})
	if len(crowded.Problems) != 1 || crowded.Problems[0].Reason != "ReloadDelayed" {
		t.Errorf("old workers: got %v", crowded.Problems)
	}
	if e, _ := got.Explain(Unnamed, "default", "own"); len(e.Problems) != 1 {
		t.Errorf("explain: got %v", e.Problems)
	}
}
