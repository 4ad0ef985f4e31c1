package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A lab is a target whose parts are all real.
type lab struct{ *rig.Rig }

func (l *lab) Delete(ctx context.Context, manifest string) error {
	cmd := l.Lab.Kubectl(ctx, "delete", "--ignore-not-found", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl delete: %w\n%s", err, out)
	}
	return nil
}

func (l *lab) Try(ctx context.Context, manifest string) error {
	err := l.Apply(ctx, manifest)
	if err != nil && strings.Contains(err.Error(), " is invalid: ") {
		return nil
	}
	return err
}

func (l *lab) Dial(ctx context.Context, port string) (net.Conn, error) {
	return l.Rig.Dial(ctx, world.Client, applianceAddr+":"+port)
}

func (l *lab) Pod(ctx context.Context, namespace, deployment string) (string, error) {
	return l.Kubectl(ctx, "get", "pods", "-n", namespace, "-l", "app="+deployment, "-o", "jsonpath={.items[0].status.podIP}")
}

func (l *lab) Worker(ctx context.Context) (int, error) {
	status, err := l.Status(ctx)
	return status.HAProxy.Worker, err
}

func (l *lab) Told(ctx context.Context, kind, namespace, name string) (string, error) {
	return l.Kubectl(ctx, "get", "events", "-n", namespace, "--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name, "-o",
		`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
}
