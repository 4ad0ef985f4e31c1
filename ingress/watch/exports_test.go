package watch

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// serve makes the cluster serve a kind of a CRD.
func (c *cluster) serve(version schema.GroupVersion, resource, kind string) {
	c.Resources = append(c.Resources, &metav1.APIResourceList{
		GroupVersion: version.String(), APIResources: []metav1.APIResource{{Name: resource, Kind: kind}},
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

func (c *cluster) serveExports(version schema.GroupVersion) {
	c.serve(version, exports, "ServiceExport")
}

func (c *cluster) export(t *testing.T, version schema.GroupVersion, namespace, name string) {
	t.Helper()
	c.createIn(t, version.WithResource(exports), "ServiceExport", namespace, name, nil)
}

var inASet = Config{Options: input.Options{Set: "both"}}

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
	for _, cfg := range []Config{{}, {Options: input.Options{Set: "both", ExportsAll: true}}} {
		if s := synced(t, c.watch(t, cfg)); len(s.Exports) != 0 {
			t.Errorf("an export was read in set %q", cfg.Options.Set)
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
