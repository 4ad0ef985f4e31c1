package watch

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

func (c *cluster) serveBackends(version schema.GroupVersion) { c.serve(version, backends, backendKind) }

func (c *cluster) createBackend(t *testing.T, version schema.GroupVersion, name string, timeout int64) {
	t.Helper()
	c.createIn(t, version.WithResource(backends), backendKind, "shop", name, map[string]any{"server_timeout": timeout})
}

var readingResources = Config{Options: input.Options{CustomResources: true}}

func TestBackendsOfBothGroupsAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.ready.Store(true)
	newer, older := customVersions[0], customVersions[1]
	for _, version := range customVersions {
		c.serveBackends(version)
		c.createBackend(t, version, "both", 3)
	}
	c.createBackend(t, older, "old", 1)
	w := c.watch(t, readingResources)
	s := synced(t, w)
	var got []string
	for _, b := range s.Backends {
		got = append(got, b.APIVersion+" "+b.Name+" "+string(b.Spec))
	}
	want := []string{newer.String() + ` both {"server_timeout":3}`, older.String() + ` old {"server_timeout":1}`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(s.Beyond) != 1 || s.Beyond[0].Name != "both" || s.Beyond[0].Reason != "UnusedResource" {
		t.Errorf("got %v, want a problem of the older Backend", s.Beyond)
	}
	c.createBackend(t, newer, "new", 2)
	until(t, w, "another Backend", func() bool {
		s, err := w.Snapshot()
		return err == nil && len(s.Backends) == 3
	})
}

func TestGlobalsAndDefaultsOfBothGroupsAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.ready.Store(true)
	for _, version := range customVersions {
		c.serve(version, globals, globalKind)
		c.serve(version, defaults, defaultKind)
		c.createIn(t, version.WithResource(globals), globalKind, "ops", "both", map[string]any{"nbthread": int64(3)})
		c.createIn(t, version.WithResource(defaults), defaultKind, "ops", "both", map[string]any{"retries": int64(2)})
	}
	newer := customVersions[0]
	c.serve(newer, frontends, frontendKind)
	c.createIn(t, newer.WithResource(frontends), frontendKind, "ops", "http", map[string]any{"maxconn": int64(5)})
	c.serve(newer, customRules, rulesKind)
	c.createIn(t, newer.WithResource(customRules), rulesKind, "ops", "house", map[string]any{"prefix": "house.test"})
	s := synced(t, c.watch(t, readingResources))
	if len(s.Rules) != 1 || string(s.Rules[0].Spec) != `{"prefix":"house.test"}` {
		t.Errorf("got the ValidationRules %v", s.Rules)
	}
	if len(s.Frontends) != 1 || string(s.Frontends[0].Spec) != `{"maxconn":5}` {
		t.Errorf("got the Frontends %v", s.Frontends)
	}
	if len(s.Globals) != 1 || string(s.Globals[0].Spec) != `{"nbthread":3}` || s.Globals[0].Older() ||
		len(s.Defaults) != 1 || string(s.Defaults[0].Spec) != `{"retries":2}` || s.Defaults[0].Older() {
		t.Errorf("got the Globals %v and the Defaults %v", s.Globals, s.Defaults)
	}
	if len(s.Beyond) != 2 || s.Beyond[0].Kind != "Global" || s.Beyond[1].Kind != "Defaults" {
		t.Errorf("got %v, want a problem of each older one", s.Beyond)
	}
}

func TestTCPsOfBothGroupsAreRead(t *testing.T) {
	c := newCluster(calico.V1)
	c.ready.Store(true)
	for _, version := range customVersions {
		c.serve(version, tcps, tcpKind)
		c.createIn(t, version.WithResource(tcps), tcpKind, "shop", "both", nil)
	}
	s := synced(t, c.watch(t, readingResources))
	if len(s.TCPs) != 1 || s.TCPs[0].Older() {
		t.Errorf("got the TCPs %v", s.TCPs)
	}
	if len(s.Beyond) != 1 || s.Beyond[0].Kind != tcpKind || s.Beyond[0].Reason != "UnusedResource" {
		t.Errorf("got %v, want a problem of the older one", s.Beyond)
	}
}

func TestAClusterWithoutBackendsLacksNothing(t *testing.T) {
	c := newCluster(calico.V1)
	c.ready.Store(true)
	w := c.watch(t, readingResources)
	synced(t, w)
	for _, why := range w.Health().Missing {
		if strings.Contains(why, "Backend") {
			t.Errorf("got %q", why)
		}
	}
}

func TestNothingAsksForBackendsUnlessTheFileSaysSo(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveBackends(customVersions[0])
	c.createBackend(t, customVersions[0], "slow", 1)
	if s := synced(t, c.watch(t, Config{})); len(s.Backends) != 0 {
		t.Error("a Backend was read")
	}
	for _, a := range c.dynamic.Actions() {
		if a.GetResource().Resource == backends && a.GetVerb() != "create" {
			t.Errorf("asked for %v", a.GetResource())
		}
	}
}

func TestWithoutTheRightNoBackendIsReadAndThatIsTold(t *testing.T) {
	t.Parallel() // it waits until a refusal is believed
	c := newCluster(calico.V1)
	c.ready.Store(true)
	c.serveBackends(customVersions[0])
	c.forbid(backends)
	w := c.watch(t, readingResources)
	if s := synced(t, w); len(s.Backends) != 0 {
		t.Error("a Backend was read")
	}
	want := "Backends of ingress.v3.haproxy.org cannot be read: all clients of the objects that name one are rejected"
	if missing := w.Health().Missing; !slices.Contains(missing, want) {
		t.Errorf("got %q, want %q", missing, want)
	}
}

func TestTheGroupsOfCustomResourcesAreKnownWithoutARight(t *testing.T) {
	for name, served := range map[string][]schema.GroupVersion{
		"no group": nil, "the newer group": customVersions[:1], "both groups": customVersions,
	} {
		c := newCluster(calico.V1)
		var want []string
		for _, version := range served {
			c.serveBackends(version)
			want = append(want, version.Group)
		}
		c.forbid("*")
		if got, err := c.watch(t, Config{}).CustomGroups(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q and %v, want %q", name, got, err, want)
		}
	}
}
