package watch

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"sallyport/ingress"
	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// serve makes the cluster serve a kind of a CRD.
func (c *cluster) serve(version schema.GroupVersion, resource, kind string) {
	one := metav1.APIResource{Name: resource, Kind: kind}
	for _, list := range c.Resources {
		if list.GroupVersion == version.String() {
			list.APIResources = append(list.APIResources, one)
			return
		}
	}
	c.Resources = append(c.Resources, &metav1.APIResourceList{
		GroupVersion: version.String(), APIResources: []metav1.APIResource{one},
	})
}

// createIn creates an object of a CRD in a namespace. spec may be nil.
func (c *cluster) createIn(
	t *testing.T, of schema.GroupVersionResource, kind, namespace, name string, spec map[string]any,
) {
	t.Helper()
	one := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": of.GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"namespace": namespace, "name": name},
	}}
	if spec != nil {
		one.Object["spec"] = spec
	}
	if _, err := c.dynamic.Resource(of).Namespace(namespace).Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// serveExports makes the cluster serve ServiceExports with a status.
func (c *cluster) serveExports(version schema.GroupVersion) {
	c.serve(version, exports, "ServiceExport")
	c.serve(version, exports+"/status", "ServiceExport")
}

func (c *cluster) export(t *testing.T, version schema.GroupVersion, namespace, name string) {
	t.Helper()
	c.createIn(t, version.WithResource(exports), "ServiceExport", namespace, name, nil)
}

var inASet = Config{Options: input.Options{InSet: input.SetOptions{Name: "both"}}}

func TestExportsAreReadInEachOfTheirVersions(t *testing.T) {
	for _, version := range exportsVersions {
		c := newCluster(calico.V1)
		c.serveExports(version)
		c.export(t, version, "shop", "web")
		w := c.watch(t, inASet)
		if s := synced(t, w); len(s.Exports) != 1 || input.KeyOf(s.Exports[0]).String() != "shop/web" {
			t.Errorf("%s: got %v", version, s.Exports)
		}
		c.export(t, version, "shop", "api")
		until(t, w, "another export", func() bool {
			s, err := w.Snapshot()
			return err == nil && len(s.Exports) == 2
		})
	}
}

func TestNothingAsksForExportsThatSayNothing(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveExports(exportsVersions[0])
	c.export(t, exportsVersions[0], "shop", "web")
	for _, cfg := range []Config{{}, {Options: input.Options{InSet: input.SetOptions{Name: "both", ExportsAll: true}}}} {
		if s := synced(t, c.watch(t, cfg)); len(s.Exports) != 0 {
			t.Errorf("an export was read in set %q", cfg.Options.InSet.Name)
		}
	}
	for _, a := range c.dynamic.Actions() {
		if a.GetResource().Group == exportsGroup && a.GetVerb() != "create" {
			t.Errorf("asked for %v", a.GetResource())
		}
	}
}

func TestAClusterWithoutExportsIsServedAndTold(t *testing.T) {
	c := newCluster(calico.V1)
	c.ready.Store(true)
	w := c.watch(t, inASet)
	synced(t, w)
	want := w.exported().lacks
	if missing := w.Health().Missing; !slices.Contains(missing, want) {
		t.Errorf("got %q, want a sentence about ServiceExports", missing)
	}
}

func TestWithoutTheRightNothingIsExported(t *testing.T) {
	t.Parallel() // it waits until a refusal is believed
	c := newCluster(calico.V1)
	c.serveExports(exportsVersions[0])
	c.export(t, exportsVersions[0], "shop", "web")
	c.forbid(exports)
	w := c.watch(t, inASet)
	if s := synced(t, w); len(s.Exports) != 0 {
		t.Error("an export was read")
	}
	want := "ServiceExports cannot be read: no Service is shared with another cluster of the set"
	if missing := w.Health().Missing; !slices.Contains(missing, want) {
		t.Errorf("got %q, want %q", missing, want)
	}
}

// isShared is the Export of ServiceExport shop/web.
var isShared = []*ingress.Export{{
	ObjectRef: ingress.ObjectRef{Cluster: "c", Kind: "ServiceExport", Namespace: "shop", Name: "web", UID: "1"},
	Shared:    true, Reason: "Shared", Why: "with green",
}}

// A condition of another controller, as old versions of the API have it: without a reason and a time.
const foreign = `{"type":"Valid","status":"True","message":null}`

// own returns the own condition, of generation 1.
func own(status, reason, message string) string {
	return fmt.Sprintf(`{"type":"sallyport.dev/Shared","status":%q,"reason":%q,"message":%q,"observedGeneration":1,`+
		`"lastTransitionTime":"2001-02-03T04:05:06Z"}`, status, reason, message)
}

// exportWith creates ServiceExport shop/web with a status, as JSON, or without one.
func (c *cluster) exportWith(t *testing.T, status string) {
	t.Helper()
	text := `{"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": ` +
		`{"name": "web", "namespace": "shop", "uid": "1", "generation": 1, "resourceVersion": "7"}`
	if status != "" {
		text += `, "status": ` + status
	}
	one := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text+"}"), &one.Object); err != nil {
		t.Fatal(err)
	}
	to := c.dynamic.Resource(exportsVersions[0].WithResource(exports)).Namespace("shop")
	if _, err := to.Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// statusOf returns the status of ServiceExport shop/web as JSON. The time of a condition is "now" or "then".
func (c *cluster) statusOf(t *testing.T) string {
	t.Helper()
	one, err := c.dynamic.Resource(exportsVersions[0].WithResource(exports)).Namespace("shop").Get(
		t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(one.Object["status"])
	if err != nil {
		t.Fatal(err)
	}
	then := strings.ReplaceAll(string(text), "2001-02-03T04:05:06Z", "then")
	return regexp.MustCompile(`"20[0-9-]+T[0-9:]+Z"`).ReplaceAllString(then, `"now"`)
}

// TestTheConditionOfAnExportIsWritten has clusters with other statuses before. The conditions of others stay as
// they are, byte for byte.
func TestTheConditionOfAnExportIsWritten(t *testing.T) {
	const other = `{"message":null,"status":"True","type":"Valid"}`
	written := func(when string) string {
		return `{"lastTransitionTime":"` + when + `","message":"with green","observedGeneration":1,"reason":"Shared",` +
			`"status":"True","type":"sallyport.dev/Shared"}`
	}
	for name, row := range map[string]struct{ before, after string }{
		"no status":                   {"", `{"conditions":[` + written("now") + `]}`},
		"a status without conditions": {`{"x":1}`, `{"conditions":[` + written("now") + `],"x":1}`},
		"no conditions":               {`{"conditions":[]}`, `{"conditions":[` + written("now") + `]}`},
		"a condition of somebody else": {
			`{"conditions":[` + foreign + `]}`, `{"conditions":[` + other + `,` + written("now") + `]}`,
		},
		"conditions that cannot be read": {
			`{"conditions":[7,{"type":7}]}`, `{"conditions":[7,{"type":7},` + written("now") + `]}`,
		},
		"the opposite": {
			`{"conditions":[` + foreign + "," + own("False", "Alone", "x") + "," + foreign + `]}`,
			`{"conditions":[` + other + "," + written("now") + "," + other + `]}`,
		},
		"the same in other words": {
			`{"conditions":[` + own("True", "Shared", "with red") + `]}`, `{"conditions":[` + written("then") + `]}`,
		},
		"an own condition that is too long": {
			`{"conditions":[` + own("True", "Shared", strings.Repeat("x", 2000)) + `]}`,
			`{"conditions":[` + written("now") + `]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(calico.V1)
			c.serveExports(exportsVersions[0])
			c.exportWith(t, row.before)
			w := c.watch(t, inASet)
			before := synced(t, w).Exports
			w.Publish(Publication{Exports: isShared, Add: true, Replace: true})
			until(t, w, "the status", func() bool { return c.statusOf(t) == row.after })
			if s, err := w.Snapshot(); err != nil || !slices.Equal(s.Exports, before) {
				t.Errorf("the status has changed what is compiled: %v", err)
			}
			for _, a := range c.dynamic.Actions() {
				patch, is := a.(k8stesting.PatchAction)
				if is && (a.GetSubresource() != "status" ||
					!strings.Contains(string(patch.GetPatch()), `"path":"/metadata/resourceVersion","value":"7"`)) {
					t.Errorf("patched %q: %s", a.GetSubresource(), patch.GetPatch())
				}
			}
		})
	}
}

func TestTheConditionOfAnExportStays(t *testing.T) {
	now := own("True", "Shared", "with green")
	for name, row := range map[string]struct {
		has          string // the own condition; "" if there is none
		uid          types.UID
		add, replace bool
		want         int // patches
	}{
		"as wished":                             {now, "1", true, true, 0},
		"another version is under way":          {now, "2", true, true, 0},
		"another one, at the writer":            {own("False", "Alone", "x"), "1", true, true, 1},
		"another one, at a spare member":        {own("False", "Alone", "x"), "1", true, false, 0},
		"of an older generation, at the writer": {strings.Replace(now, "n\":1", "n\":0", 1), "1", true, true, 1},
		"none, at a spare member":               {"", "1", true, false, 1},
		"none, at a member that writes nothing": {"", "1", false, false, 0},
	} {
		e := &input.ServiceExport{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: row.uid, Generation: 1, ResourceVersion: "7",
		}}
		if err := json.Unmarshal([]byte(`{"conditions":[`+row.has+`]}`), &e.Status); err != nil {
			t.Fatal(err)
		}
		s := &shelf[*input.ServiceExport]{order: input.ByName[*input.ServiceExport], knock: func() {}}
		s.put(e)
		p := publisher{exports: func() (*shelf[*input.ServiceExport], schema.GroupVersion) { return s, exportsVersions[0] }}
		wish := Publication{Exports: isShared, Add: row.add, Replace: row.replace}
		if got := len(p.exportStatuses(&wish, metav1.Unix(100, 0))); got != row.want {
			t.Errorf("%s: %d patches, want %d", name, got, row.want)
		}
	}
}

// TestAStatusThatMayNotBeWrittenIsTold refuses the patch, and then does not serve the status at all.
func TestAStatusThatMayNotBeWrittenIsTold(t *testing.T) {
	c := newCluster(calico.V1)
	c.serveExports(exportsVersions[0])
	c.exportWith(t, "")
	c.dynamic.PrependReactor("patch", exports, func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: exports}, "web", nil)
	})
	w := c.watch(t, inASet)
	synced(t, w)
	w.Publish(Publication{Exports: isShared, Add: true})
	told := func(what string) func() bool {
		return func() bool {
			return slices.ContainsFunc(w.Health().Missing, func(why string) bool { return strings.Contains(why, what) })
		}
	}
	until(t, w, "the sentence about the right", told("resource serviceexports/status): apply what"))

	mute := newCluster(calico.V1)
	mute.serve(exportsVersions[0], exports, "ServiceExport")
	mute.exportWith(t, "")
	w = mute.watch(t, inASet)
	synced(t, w)
	until(t, w, "the sentence about the CRD", told(w.exported().mute))
	shelf, version := w.publisher.exports()
	if shelf != nil {
		t.Errorf("statuses of %s would be written", version)
	}
}

func TestTheStatusOfExportsIsAskedForWhereTheyAreRead(t *testing.T) {
	for name, row := range map[string]struct {
		options input.Options
		want    bool
	}{
		"in no set":               {input.Options{}, false},
		"in a set":                {input.Options{InSet: input.SetOptions{Name: "both"}}, true},
		"that shares everything":  {input.Options{InSet: input.SetOptions{Name: "both", ExportsAll: true}}, false},
		"with certain namespaces": {input.Options{InSet: input.SetOptions{Name: "both"}, Namespaces: []string{"shop"}}, true},
	} {
		rules := RulesFor(row.options)
		i := slices.IndexFunc(rules, func(r Rule) bool { return slices.Contains(r.Resources, "serviceexports/status") })
		if (i >= 0) != row.want || i >= 0 && !slices.Equal(rules[i].Namespaces, row.options.Namespaces) {
			t.Errorf("%s: got %+v", name, rules)
		}
	}
}
