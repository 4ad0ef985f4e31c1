package appliance

import (
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/haproxy"
)

// servedAt returns the namespaces that serve test.local, and whether the appliance has acted.
func (s *scene) servedAt() (namespaces string, acted bool) {
	v := s.view.Load()
	for _, o := range v.Compiled.Served {
		namespaces += o.Namespace + " "
	}
	return strings.TrimSpace(namespaces), s.proxy.applied > 0
}

// keeper returns a member of which test.local is kept for namespace default, while namespace evil waits.
func keeper(t *testing.T) (*scene, *fakePulse) {
	s, p := newPair(t)
	ing := s.watcher.snapshot.Ingresses[0]
	s.watcher.snapshot.At, s.watcher.snapshot.Options.ReleaseAfter = s.clock, time.Hour
	s.settle(t)
	waits := ing.DeepCopy()
	waits.Namespace, waits.CreationTimestamp = "evil", metav1.Unix(1, 0)
	s.watcher.snapshot.Ingresses = []*networkingv1.Ingress{waits}
	s.settle(t)
	if got, _ := s.servedAt(); got != "" {
		t.Fatalf("test.local is served by %q, want by nobody: it is kept", got)
	}
	return s, p
}

// joins returns a member that starts with an empty state beside another one.
func joins(t *testing.T, other *scene) (*scene, *fakePulse) {
	s := newScene(t)
	p := s.enterPair()
	s.clusters[0].answered = time.Time{}
	s.clock, s.started = other.clock, other.clock
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.watcher.snapshot = other.watcher.snapshot
	s.proxy.info = haproxy.Info{Worker: 1}
	s.round(t.Context())
	return s, p
}

func TestAMemberThatStartsLearnsWhatIsKept(t *testing.T) {
	old, talks := keeper(t)
	s, hears := joins(t, old)
	if got, acted := s.servedAt(); got != "" || acted || !hears.asks {
		t.Fatalf("at once it serves %q (acted: %v) and asks the others: %v", got, acted, hears.asks)
	}
	if talks.tells != "" {
		t.Error("a member tells though nobody asks")
	}
	talks.heard[0].Asks = hears.asks
	old.round(t.Context())
	hears.heard[0].Told = talks.tells
	s.pass(t, listening-500*time.Millisecond)
	if _, acted := s.servedAt(); acted {
		t.Error("it does not wait for the last changes")
	}
	s.pass(t, time.Second)
	if got, acted := s.servedAt(); got != "" || !acted || hears.asks {
		t.Errorf("then it serves %q (acted: %v), and asks still: %v", got, acted, hears.asks)
	}
	s.pass(t, firstSteps)
	expectWords(t, s, both)

	talks.heard[0].Asks = false
	old.round(t.Context())
	if talks.tells != "" {
		t.Error("a member tells though nobody asks any more")
	}
	s.watcher.snapshot.At = s.clock.Add(time.Hour + 2*time.Minute)
	s.settle(t)
	if got, _ := s.servedAt(); got != "evil" {
		t.Errorf("after an hour it is served by %q, want by evil", got)
	}
}

func TestAMemberThatStartsDoesNotWaitForever(t *testing.T) {
	for name, row := range map[string]struct {
		hears func(old *scene, talks, hears *fakePulse)
		wait  time.Duration
	}{
		"nobody else is alive":      {func(_ *scene, _, hears *fakePulse) { hears.hear("", false) }, listening},
		"the other one starts, too": {func(_ *scene, _, hears *fakePulse) { hears.heard[0].Asks = true }, listening},
		"the other one says nothing": {
			func(*scene, *fakePulse, *fakePulse) {}, lesson,
		},
		"what the other one tells is broken": {
			func(old *scene, talks, hears *fakePulse) {
				talks.heard[0].Asks = true
				old.round(t.Context())
				hears.heard[0].Told = talks.tells[:len(talks.tells)-1]
			}, lesson,
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, talks := keeper(t)
			s, hears := joins(t, old)
			row.hears(old, talks, hears)
			s.pass(t, row.wait-500*time.Millisecond)
			if _, acted := s.servedAt(); acted {
				t.Errorf("it does not wait for %s", row.wait)
			}
			s.pass(t, time.Second)
			if got, acted := s.servedAt(); got != "evil" || !acted {
				t.Errorf("served is %q, want evil, which is alone with the host (acted: %v)", got, acted)
			}
		})
	}
}
