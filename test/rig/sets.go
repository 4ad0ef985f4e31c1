package rig

import (
	"context"
	_ "embed"
	"fmt"
)

//go:embed serviceexports.yaml
var crdOfExports string

// AddExports makes the API server serve ServiceExports, and waits until it does.
func (r *Rig) AddExports(ctx context.Context) error {
	if err := r.Apply(ctx, crdOfExports); err != nil {
		return err
	}
	return Eventually(ctx, "the API server serves ServiceExports", func() error {
		_, err := r.Kubectl(ctx, "get", "serviceexports.multicluster.x-k8s.io", "--all-namespaces")
		return err
	})
}

// Export returns the ServiceExport of a Service.
func Export(namespace, service string) string {
	return fmt.Sprintf("---\napiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\n"+
		"metadata: {namespace: %s, name: %s}\n", namespace, service)
}
