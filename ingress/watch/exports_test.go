package watch

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"sallyport/ingress/calico"
	"sallyport/ingress/input"
)

// serveExports makes the cluster serve a version of ServiceExports.
func (c *cluster) serveExports(version schema.GroupVersion) {
	c.Resources = append(c.Resources, &metav1.APIResourceList{
		GroupVersion: version.String(), APIResources: []metav1.APIResource{{Name: exports, Kind: "ServiceExport"}},
	})
}

func (c *cluster) export(t *testing.T, version schema.GroupVersion, namespace, name string) {
	t.Helper()
	one := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version.String(), "kind": "ServiceExport",
		"metadata": map[string]any{"namespace": namespace, "name": name},
	}}
	if _, err := c.dynamic.Resource(version.WithResource(exports)).Namespace(namespace).
		Create(t.Context(), one, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
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
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: exports}, "", nil)
	c.dynamic.PrependReactor("list", exports, func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, forbidden
	})
	w := c.watch(t, inASet)
	if s := synced(t, w); len(s.Exports) != 0 {
		t.Error("an export was read")
	}
	want := "ServiceExports cannot be read: no Service is shared with another cluster of the set"
	if missing := w.Health().Missing; !slices.Contains(missing, want) {
		t.Errorf("got %q, want %q", missing, want)
	}
}
