package rig

import (
	"context"
	_ "embed"
)

//go:embed customresources.yaml
var customResources string

// AddCustomResources makes the API server serve the custom resources of HAProxy's own controller, and waits
// until it does.
func (r *Rig) AddCustomResources(ctx context.Context) error {
	if err := r.Apply(ctx, customResources); err != nil {
		return err
	}
	return Eventually(ctx, "the API server serves custom resources", func() error {
		_, err := r.Kubectl(ctx, "get", "backends.ingress.v1.haproxy.org,backends.ingress.v3.haproxy.org,"+
			"tcps.ingress.v1.haproxy.org,tcps.ingress.v3.haproxy.org,defaults.ingress.v1.haproxy.org,"+
			"defaults.ingress.v3.haproxy.org,globals.ingress.v1.haproxy.org,globals.ingress.v3.haproxy.org,"+
			"frontends.ingress.v3.haproxy.org,validationrules.ingress.v3.haproxy.org",
			"--all-namespaces")
		return err
	})
}
