package rig

import (
	"context"
	_ "embed"
)

//go:embed backends.yaml
var crdsOfBackends string

// AddBackends makes the API server serve the Backends of HAProxy's own controller, and waits until it does.
func (r *Rig) AddBackends(ctx context.Context) error {
	if err := r.Apply(ctx, crdsOfBackends); err != nil {
		return err
	}
	return Eventually(ctx, "the API server serves Backends", func() error {
		_, err := r.Kubectl(ctx, "get", "backends.ingress.v1.haproxy.org,backends.ingress.v3.haproxy.org", "--all-namespaces")
		return err
	})
}
