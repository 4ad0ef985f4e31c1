package ingress

import (
	"fmt"
	"strings"
	"testing"
)

// Conditions and Events may have the same sentence, and conditions of a Gateway and of its listeners,
// too. People see it once.
func TestEachSentenceOfConditionsIsAProblemOnce(t *testing.T) {
	r := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}, "+
		"{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}")+app("app")+
		httpRoute("r", "hostnames: [a.test, b.test], rules: [{backendRefs: [{name: app, port: 80}]}]")+
		httpRoute("s", "rules: [{backendRefs: [{name: gone, port: 80}]}]"), func(s *Snapshot) {
		s.Options.Limits.Hosts = 1
	})
	var got strings.Builder
	for _, p := range r.AllProblems() {
		fmt.Fprintf(&got, "%s %s: %s\n", p.Kind, p.Name, p.Reason)
	}
	const want = "Gateway gate: Invalid\n" +
		"HTTPRoute r: LimitReached\nHTTPRoute s: BackendNotFound\nHTTPRoute s: LimitReached\n"
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
	healthy := compileGates(t, new(Compiler), gateOf("{name: http, port: 80, protocol: HTTP}"), nil)
	if len(healthy.AllProblems()) > 0 {
		t.Errorf("got %+v", healthy.AllProblems())
	}
}
