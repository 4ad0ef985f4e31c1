package rig

import (
	"context"
	"fmt"
)

// crdOfExports is the CRD of ServiceExports, as far as the appliance reads them.
const crdOfExports = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: serviceexports.multicluster.x-k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/enhancements/pull/1645"}
spec:
  group: multicluster.x-k8s.io
  scope: Namespaced
  names: {plural: serviceexports, singular: serviceexport, kind: ServiceExport, listKind: ServiceExportList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

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
