package watch

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"sallyport/ingress/calico"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
)

const ourController = "sallyport.dev/gateway"

// condition returns a condition from "Accepted True Accepted 1".
func condition(text string) metav1.Condition {
	c := metav1.Condition{}
	_, _ = fmt.Sscan(text, &c.Type, &c.Status, &c.Reason, &c.ObservedGeneration)
	return c
}

// parentOf returns the status of a route by a parent.
func parentOf(controller, name string, conditions ...string) gatewayv1.RouteParentStatus {
	p := gatewayv1.RouteParentStatus{
		ControllerName: gatewayv1.GatewayController(controller),
		ParentRef:      gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)},
	}
	for _, text := range conditions {
		p.Conditions = append(p.Conditions, condition(text))
	}
	return p
}

// aWriter returns a writer that knows some routes.
func aWriter(routes ...*gatewayv1.HTTPRoute) *statuses {
	return &statuses{records: map[types.UID]record{}, publisher: &publisher{
		controller: ourController, log: slog.New(slog.DiscardHandler), objects: func(resource string) (all []metav1.Object) {
			for _, r := range routes {
				if resource == "httproutes" {
					all = append(all, r)
				}
			}
			return all
		},
	}}
}

func aRoute(generation int64, parents ...gatewayv1.RouteParentStatus) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "r", UID: "1", Generation: generation, ResourceVersion: "7",
	}}
	r.Status.Parents = parents
	return r
}

func wishFor(generation int64, parents ...gatewayv1.RouteParentStatus) Publication {
	return Publication{Add: true, Replace: true, Statuses: []*gateway.Status{{
		Kind: "HTTPRoute", Namespace: "shop", Name: "r", UID: "1", Generation: generation, Parents: parents,
	}}}
}

// written returns the parents and conditions of the patches.
func written(patches []statusPatch) string {
	var all []string
	for _, one := range patches {
		var status gatewayv1.RouteStatus
		_ = json.Unmarshal(one.filled().text, &status)
		for _, p := range status.Parents {
			text := string(p.ControllerName) + " " + string(p.ParentRef.Name)
			for _, c := range p.Conditions {
				text += fmt.Sprintf(" %s=%s:%d", c.Type, c.Status, c.ObservedGeneration)
			}
			all = append(all, text)
		}
		if len(status.Parents) == 0 {
			all = append(all, "none")
		}
	}
	return strings.Join(all, ", ")
}

func TestOnlyOurEntriesOfARouteChange(t *testing.T) {
	other := parentOf("example.org/other", "web", "Accepted True Accepted 1")
	ours := parentOf(ourController, "web", "Accepted True Accepted 1")
	for name, row := range map[string]struct {
		has  *gatewayv1.HTTPRoute
		wish Publication
		want string
	}{
		"the first status": {
			aRoute(1, other), wishFor(1, ours), "example.org/other web Accepted=True:1, " + ourController + " web Accepted=True:1",
		},
		"nothing new": {aRoute(1, ours, other), wishFor(1, ours), ""},
		"a newer generation": {
			aRoute(2, ours, other), wishFor(2, parentOf(ourController, "web", "Accepted True Accepted 2")),
			ourController + " web Accepted=True:2, example.org/other web Accepted=True:1",
		},
		"a wish about an older generation": {
			aRoute(3, ours), wishFor(2, parentOf(ourController, "web", "Accepted False X 2")), "",
		},
		"a parent that went": {
			aRoute(2, ours, parentOf(ourController, "old", "Accepted True Accepted 1")),
			wishFor(2, parentOf(ourController, "web", "Accepted True Accepted 2")), ourController + " web Accepted=True:2",
		},
		"a route that is ours no more": {aRoute(2, ours, other), Publication{Replace: true}, "example.org/other web Accepted=True:1"},
		"the last entry":               {aRoute(2, ours), Publication{Replace: true}, "none"},
		"a route of others":            {aRoute(2, other), Publication{Replace: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := written(aWriter(row.has).apiStatuses(&row.wish, time.Unix(100, 0))); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestAConditionKeepsItsTimeWhileItsStatusStays(t *testing.T) {
	has := aRoute(2, parentOf(ourController, "web", "Accepted True Accepted 1", "ResolvedRefs True ResolvedRefs 1"))
	for i := range has.Status.Parents[0].Conditions {
		has.Status.Parents[0].Conditions[i].LastTransitionTime = metav1.Unix(50, 0)
	}
	wish := wishFor(2, parentOf(ourController, "web", "Accepted True Accepted 2", "ResolvedRefs False BackendNotFound 2"))
	var status gatewayv1.RouteStatus
	if err := json.Unmarshal(aWriter(has).apiStatuses(&wish, time.Unix(100, 0))[0].filled().text, &status); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{50, 100} {
		if got := status.Parents[0].Conditions[i].LastTransitionTime.Unix(); got != want {
			t.Errorf("condition %d: got %d, want %d", i, got, want)
		}
	}
}

func TestAMemberThatIsNotTheWriterAddsAStatusLate(t *testing.T) {
	s, now := aWriter(aRoute(1)), time.Unix(100, 0)
	wish := wishFor(1, parentOf(ourController, "web", "Accepted True Accepted 1"))
	wish.Replace = false
	for _, row := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {lonely - time.Second, 0}, {lonely, 1}} {
		if got := len(s.apiStatuses(&wish, now.Add(row.after))); got != row.want {
			t.Errorf("after %s: %d writes, want %d", row.after, got, row.want)
		}
	}
	old := aWriter(aRoute(2, parentOf(ourController, "web", "Accepted True Accepted 1")))
	for range 2 {
		if got := len(old.apiStatuses(&wish, now.Add(time.Hour))); got != 0 {
			t.Errorf("it replaces the status of another member")
		}
	}
}

func TestAStatusThatOthersReplaceIsWrittenMoreAndMoreSeldom(t *testing.T) {
	s, now := aWriter(aRoute(1)), time.Unix(100, 0)
	wish := wishFor(1, parentOf(ourController, "web", "Accepted True Accepted 1"))
	var at []time.Duration
	for after := time.Duration(0); after < 90*time.Second; after += time.Second {
		for _, one := range s.apiStatuses(&wish, now.Add(after)) {
			if one = one.filled(); !s.rests(one, now.Add(after)) {
				s.note(one, now.Add(after))
				at = append(at, after)
			}
		}
		if rivals := s.rivals(); len(rivals) > 0 != (len(at) > 2) {
			t.Errorf("after %d writes: %q", len(at), rivals)
		}
	}
	if want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second, 75 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("got %v, want %v", at, want)
	}
	other := wishFor(1, parentOf(ourController, "web", "Accepted False X 1"))
	if got := s.apiStatuses(&other, now.Add(90*time.Second)); len(got) != 1 || s.rests(got[0], now.Add(90*time.Second)) {
		t.Error("another status waits as well")
	}
	if s.forget(now.Add(time.Hour)); len(s.rivals()) > 0 {
		t.Errorf("a rival that has gone is still there: %q", s.rivals())
	}
}

func TestAGatewayIsProgrammedOnceHAProxyHasItsListeners(t *testing.T) {
	g := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "2", Generation: 3, ResourceVersion: "7",
	}}
	s := aWriter()
	s.objects = func(resource string) []metav1.Object {
		if resource == "gateways" {
			return []metav1.Object{g}
		}
		return nil
	}
	wish := Publication{Add: true, Replace: true, Pending: map[string]bool{"2": true}, Statuses: []*gateway.Status{{
		Kind: "Gateway", UID: "2", Generation: 3, Gateway: &gatewayv1.GatewayStatus{
			Conditions: []metav1.Condition{condition("Programmed True Programmed 3")},
		},
	}}}
	programmed := func() string {
		patches := s.apiStatuses(&wish, time.Unix(100, 0))
		if len(patches) == 0 {
			return "no change"
		}
		g.Status = gatewayv1.GatewayStatus{}
		if err := json.Unmarshal(patches[0].filled().text, &g.Status); err != nil {
			t.Fatal(err)
		}
		return string(g.Status.Conditions[0].Status) + " " + g.Status.Conditions[0].Reason
	}
	want := "False Pending"
	if got := programmed(); got != want {
		t.Errorf("before the reload: got %s, want %s", got, want)
	}
	wish.Pending = nil
	if got, want := programmed(), "True Programmed"; got != want {
		t.Errorf("after the reload: got %s, want %s", got, want)
	}
	wish.Pending = map[string]bool{"2": true}
	if got, want := programmed(), "no change"; got != want {
		t.Errorf("before a reload for something else: got %s, want %s", got, want)
	}
}

func TestAListenerSetWaitsForItsOwnGatewayAlone(t *testing.T) {
	set := &gatewayv1.ListenerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "more", UID: "3", Generation: 1}}
	for of, want := range map[string]string{"2": "False Pending", "9": "True Programmed"} {
		s := aWriter()
		s.objects = func(resource string) []metav1.Object {
			if resource == "listenersets" {
				return []metav1.Object{set}
			}
			return nil
		}
		patches := s.apiStatuses(&Publication{
			Add: true, Replace: true, Pending: map[string]bool{of: true}, Statuses: []*gateway.Status{{
				Kind: "ListenerSet", UID: "3", Parent: "2", Generation: 1, Listeners: &gatewayv1.ListenerSetStatus{
					Conditions: []metav1.Condition{condition("Programmed True Programmed 1")},
				},
			}},
		}, time.Unix(100, 0))
		var got gatewayv1.ListenerSetStatus
		if err := json.Unmarshal(patches[0].filled().text, &got); err != nil {
			t.Fatal(err)
		}
		if text := string(got.Conditions[0].Status) + " " + got.Conditions[0].Reason; text != want {
			t.Errorf("while Gateway %s waits: got %s, want %s", of, text, want)
		}
	}
}

// TestAnIngressThatOthersReplaceIsWrittenMoreAndMoreSeldom has a rival that writes another address at
// once.
func TestAnIngressThatOthersReplaceIsWrittenMoreAndMoreSeldom(t *testing.T) {
	s, now := aWriter(), time.Unix(100, 0)
	one := statusPatch{of: testIngress("web"), kindName: "Ingress", text: []byte(`[{"ip":"203.0.113.1"}]`), right: "status", log: s.log}
	var at []time.Duration
	for after := time.Duration(0); after < 90*time.Second; after += time.Second {
		if !s.rests(one, now.Add(after)) {
			s.note(one, now.Add(after))
			at = append(at, after)
		}
	}
	if want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second, 75 * time.Second}; !slices.Equal(at, want) {
		t.Errorf("got %v, want %v", at, want)
	}
	if got := s.rivals(); len(got) != 1 || !strings.HasPrefix(got[0], "somebody else replaces the status of default/web (Ingress) ") {
		t.Errorf("got %q", got)
	}
	one.text = []byte("null")
	if s.rests(one, now.Add(90*time.Second)) {
		t.Error("the removal waits as well")
	}
}

// TestAWriterThatComesSecondTriesAgainAtOnce refuses the first write as the API server does for an
// object that has changed.
func TestAWriterThatComesSecondTriesAgainAtOnce(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways httproutes")
	c.createGateway(t, "v1", "httproutes", `{"kind": "HTTPRoute",
		"metadata": {"name": "r", "namespace": "shop", "uid": "1", "generation": 1}}`)
	refused := false
	c.dynamic.PrependReactor("patch", "httproutes", func(k8stesting.Action) (bool, runtime.Object, error) {
		if refused {
			return false, nil, nil
		}
		refused = true
		return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "httproutes"}, "r", nil)
	})
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	synced(t, w)
	w.Publish(wishFor(1, parentOf(ourController, "web", "Accepted True Accepted 1")))
	until(t, w, "the status", func() bool {
		all := w.objects("httproutes")
		return len(all) == 1 && len(all[0].(*gatewayv1.HTTPRoute).Status.Parents) == 1
	})
}

// TestAStatusThatIsWrittenIsNothingToCompile has more ListenerSets than the writer writes at once.
func TestAStatusThatIsWrittenIsNothingToCompile(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveGateways("v1 gatewayclasses gateways listenersets")
	wish := Publication{Add: true, Replace: true}
	for i := range 2 * statusesPerSecond {
		c.createGateway(t, "v1", "listenersets", fmt.Sprintf(`{"kind": "ListenerSet",
			"metadata": {"name": "s%d", "namespace": "shop", "uid": "%[1]d", "generation": 1}}`, i))
		wish.Statuses = append(wish.Statuses, &gateway.Status{
			Kind: "ListenerSet", UID: fmt.Sprint(i), Generation: 1, Listeners: &gatewayv1.ListenerSetStatus{
				Conditions: []metav1.Condition{condition("Accepted True Accepted 1")},
			},
		})
	}
	w := c.watch(t, Config{Options: input.Options{Gateway: gatewayOptions}})
	before := synced(t, w).API.ListenerSets
	w.Publish(wish)
	until(t, w, "the statuses", func() bool {
		all := w.objects("listenersets")
		return len(all) == len(before) && !slices.ContainsFunc(all, func(o metav1.Object) bool {
			return len(o.(*gatewayv1.ListenerSet).Status.Conditions) == 0
		})
	})
	if s, err := w.Snapshot(); err != nil || !slices.Equal(s.API.ListenerSets, before) {
		t.Errorf("the ListenerSets have changed: %v", err)
	}
}

// TestAStatusOfAnOlderVersionIsReplaced has statuses as an older version of the appliance, or of the API,
// wrote them: with conditions, listeners and parents that are no more, and without generations.
func TestAStatusOfAnOlderVersionIsReplaced(t *testing.T) {
	old := func(kind string) metav1.Condition { return condition(kind + " True Ready 0") }
	ours := parentOf(ourController, "web", "Accepted True Accepted 0", "Ready True Ready 0")
	named := ours
	kind := gatewayv1.Kind("Gateway")
	named.ParentRef.Kind = &kind // the same parent in other words
	gate := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{UID: "2", Generation: 1}}
	gate.Status = gatewayv1.GatewayStatus{
		Addresses:  []gatewayv1.GatewayStatusAddress{{Value: "192.0.2.9"}},
		Conditions: []metav1.Condition{old("Scheduled"), old("Ready"), old("Programmed")},
		Listeners:  []gatewayv1.ListenerStatus{{Name: "gone", Conditions: []metav1.Condition{old("Detached")}}},
	}
	route := aRoute(1, ours, named, ours)
	policy := &gatewayv1.BackendTLSPolicy{ObjectMeta: metav1.ObjectMeta{UID: "3", Generation: 1}}
	policy.Status.Ancestors = []gatewayv1.PolicyAncestorStatus{{
		ControllerName: ourController, Conditions: []metav1.Condition{old("Ready")},
	}}
	have := map[string]metav1.Object{"gateways": gate, "httproutes": route, "backendtlspolicies": policy}
	s := aWriter()
	s.objects = func(resource string) []metav1.Object {
		if o := have[resource]; o != nil {
			return []metav1.Object{o}
		}
		return nil
	}
	wish := wishFor(1, parentOf(ourController, "web", "Accepted False NoMatchingParent 1"))
	wish.Statuses = append(wish.Statuses, &gateway.Status{
		Kind: "Gateway", UID: "2", Generation: 1, Gateway: &gatewayv1.GatewayStatus{
			Conditions: []metav1.Condition{condition("Accepted True Accepted 1"), condition("Programmed True Programmed 1")},
			Listeners:  []gatewayv1.ListenerStatus{{Name: "http", Conditions: []metav1.Condition{condition("Accepted True Accepted 1")}}},
		},
	})
	got := make(map[string]string)
	for _, one := range s.apiStatuses(&wish, time.Unix(100, 0)) {
		got[one.kindName] = string(untimed(one.filled().text))
	}
	accepted := `{"message":"","observedGeneration":1,"reason":"Accepted","status":"True","type":"Accepted"}`
	want := map[string]string{
		"Gateway": `{"addresses":null,"conditions":[` + accepted + `,{"message":"","observedGeneration":1,` +
			`"reason":"Programmed","status":"True","type":"Programmed"}],"listeners":[{"attachedRoutes":0,` +
			`"conditions":[` + accepted + `],"name":"http"}]}`,
		"HTTPRoute": `{"parents":[{"conditions":[{"message":"","observedGeneration":1,"reason":"NoMatchingParent",` +
			`"status":"False","type":"Accepted"}],"controllerName":"` + ourController + `","parentRef":{"name":"web"}}]}`,
		"BackendTLSPolicy": `{"ancestors":[]}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// BenchmarkStatusesOfRoutes decides which of 10,000 routes need a status, after one of them changed.
func BenchmarkStatusesOfRoutes(b *testing.B) {
	const n = 10_000
	for _, what := range []string{"all have one", "none has one"} {
		b.Run(what, func(b *testing.B) {
			routes, wish := make([]*gatewayv1.HTTPRoute, n), Publication{Add: true, Replace: true}
			for i := range routes {
				uid := fmt.Sprintf("11111111-2222-3333-4444-%012d", i)
				of := wishFor(1, parentOf(ourController, "web", "Accepted True Accepted 1", "ResolvedRefs True ResolvedRefs 1")).Statuses[0]
				of.UID = uid
				routes[i] = aRoute(1)
				routes[i].UID = types.UID(uid)
				if what == "all have one" {
					routes[i].Status.Parents = of.Parents
				}
				wish.Statuses = append(wish.Statuses, of)
			}
			s := aWriter(routes...)
			s.apiStatuses(&wish, time.Unix(100, 0))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				routes[i%n] = routes[i%n].DeepCopy()
				s.apiStatuses(&wish, time.Unix(100, 0))
			}
		})
	}
}

// BenchmarkStatusesOfListenerSets decides which of 120 ListenerSets with 64 listeners each need a status.
func BenchmarkStatusesOfListenerSets(b *testing.B) {
	for _, what := range []string{"all have one", "none has one"} {
		b.Run(what, func(b *testing.B) {
			var sets []metav1.Object
			wish := Publication{Add: true, Replace: true}
			for i := range 120 {
				o := &gatewayv1.ListenerSet{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), Generation: 1}}
				status := gatewayv1.ListenerSetStatus{Conditions: []metav1.Condition{condition("Accepted True Accepted 1")}}
				for j := range 64 {
					status.Listeners = append(status.Listeners, gatewayv1.ListenerEntryStatus{
						Name: gatewayv1.SectionName(fmt.Sprint(j)),
						Conditions: []metav1.Condition{
							condition("Accepted True Accepted 1"), condition("Programmed True Programmed 1"),
							condition("ResolvedRefs True ResolvedRefs 1"), condition("Conflicted False NoConflicts 1"),
						},
					})
				}
				wish.Statuses = append(wish.Statuses, &gateway.Status{
					Kind: "ListenerSet", UID: fmt.Sprint(i), Generation: 1, Listeners: &status,
				})
				if what == "all have one" {
					o.Status = status
				}
				sets = append(sets, o)
			}
			s := aWriter()
			s.objects = func(resource string) []metav1.Object {
				if resource == "listenersets" {
					return sets
				}
				return nil
			}
			b.ReportAllocs()
			for b.Loop() {
				s.apiStatuses(&wish, time.Unix(100, 0))
			}
		})
	}
}
