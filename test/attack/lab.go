package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

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

func (l *lab) Dial(ctx context.Context, address string) (net.Conn, error) {
	return l.Rig.Dial(ctx, world.Client, address)
}

func (l *lab) Pod(ctx context.Context, namespace, deployment string) (string, error) {
	return l.Kubectl(ctx, "get", "pods", "-n", namespace, "-l", "app="+deployment, "-o",
		"jsonpath={.items[0].status.podIP}")
}

func (l *lab) Worker(ctx context.Context) (int, error) {
	status, err := l.Rig.Status(ctx)
	return status.HAProxy.Worker, err
}

func (l *lab) Told(ctx context.Context, kind, namespace, name string) (string, error) {
	return l.Kubectl(ctx, "get", "events", "-n", namespace, "--field-selector",
		"involvedObject.kind="+kind+",involvedObject.name="+name, "-o",
		`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
}

func (l *lab) Status(ctx context.Context, kind, namespace, name string) (conditions, error) {
	text, err := l.Kubectl(ctx, "get", kind+"."+gatewayv1.GroupName, "-n", namespace, name, "-o", "json")
	if err != nil {
		return conditions{}, err
	}
	var o struct{ Status conditions }
	return o.Status, json.Unmarshal([]byte(text), &o)
}

// rewrite writes the appliance's configuration file, and tells the appliance to read it.
func rewrite(r *rig.Rig, text string) error {
	return errors.Join(os.WriteFile(r.Dir+"/sallyport.yaml", []byte(text), 0o600),
		syscall.Kill(r.Pid(), syscall.SIGHUP))
}

// configure writes the appliance's configuration file, and waits until it is in use.
func configure(ctx context.Context, r *rig.Rig, text string) error {
	before, err := r.Status(ctx)
	if err != nil {
		return err
	}
	if err := rewrite(r, text); err != nil {
		return err
	}
	return rig.Eventually(ctx, "the appliance reads its file again", func() error {
		now, err := r.Status(ctx)
		if err == nil && !now.Config.Read.After(before.Config.Read) {
			err = fmt.Errorf("it has not: %q", now.Config.Errors)
		}
		return err
	})
}

// configured lets the appliance have another configuration while do runs.
func configured(ctx context.Context, r *rig.Rig, change func(text string) string, do func() error) error {
	before, err := os.ReadFile(r.Dir + "/sallyport.yaml")
	if err != nil {
		return err
	}
	after := change(string(before))
	if after == string(before) {
		return errors.New("the file has no place for the change of the configuration")
	}
	err = configure(ctx, r, after)
	if err == nil {
		err = do()
	}
	return errors.Join(err, configure(ctx, r, string(before)))
}
