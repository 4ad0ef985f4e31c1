package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

const (
	// class is the GatewayClass that the manifests of the appliance have.
	class = "sallyport"
	// pool has the addresses for Gateways, in the lan.
	pool = "192.168.50.128-192.168.50.159"
	// usable is an address of the pool that no Gateway of the suite gets by itself: which one a Gateway
	// gets follows from its name.
	usable = "192.168.50.159"
	// unusable is an address that no machine has.
	unusable = "192.0.2.1"
)

// A session is a lab with the CRDs of Gateway API and an appliance that is ready.
type session struct {
	*rig.Rig
	suite string // folder of world.GatewaySuite
}

// in brings up a session, calls do, and removes everything.
func in(ctx context.Context, do func(*session) error) (err error) {
	suite, err := world.GatewaySuite(ctx, os.Stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sallyport-gateway-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The suite sends no test to CoreDNS but one of UDP. It only wants the pod to be Ready.
	idle := filepath.Join(dir, "idle")
	if err := errors.Join(writeProgram(idle, []byte("#!/bin/sh\nexec sleep infinity\n")), rig.Build(ctx, dir), rig.ConfigureHAProxy(dir, []string{"addresses: [" + pool + "]"}, "",
		rig.Cluster{
			Gateway: []string{"enabled: true"},
			// One namespace of the suite has nearly all Gateways.
			Ingress: []string{fmt.Sprintf("limits: {reloads: %d, addresses: 32}", rig.NoReloadLimit)},
		})); err != nil {
		return err
	}
	r, err := rig.Up(ctx, dir, world.Options{
		Name: "gateway", Workers: 2, Progress: io.Discard, Images: map[string]string{
			"registry.k8s.io/gateway-api/echo-basic": filepath.Join(suite, "echo-basic"),
			"registry.k8s.io/coredns/coredns":        idle,
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	s := &session{r, suite}
	if err := errors.Join(s.addAddresses(ctx), s.define(ctx)); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	return do(s)
}

// addAddresses gives the appliance's host the addresses of the pool. It keeps none for itself.
func (s *session) addAddresses(ctx context.Context) error {
	var batch strings.Builder
	for n := range 32 {
		fmt.Fprintf(&batch, "address add 192.168.50.%d/32 dev eth0\n", 128+n)
	}
	add := s.Command(ctx, world.Appliance, "ip", "-batch", "-")
	add.Stdin = strings.NewReader(batch.String())
	if said, err := add.CombinedOutput(); err != nil {
		return fmt.Errorf("add addresses to %s: %w: %s", world.Appliance, err, said)
	}
	return nil
}

// define applies the CRDs of the standard channel, and waits until the API server lists their
// objects. For a moment it answers 429 instead.
func (s *session) define(ctx context.Context) error {
	crds := filepath.Join(s.suite, "crd")
	if _, err := s.Kubectl(ctx, "apply", "--server-side", "-f", crds); err != nil {
		return err
	}
	names, err := s.kinds()
	if err != nil {
		return err
	}
	return rig.Eventually(ctx, "the kinds of Gateway API are served", func() error {
		_, err := s.Kubectl(ctx, "get", "--all-namespaces", strings.Join(names, ","))
		return err
	})
}

// kinds returns the kinds of Gateway API, as kubectl names them.
func (s *session) kinds() (names []string, err error) {
	const group = "gateway.networking.k8s.io"
	files, err := filepath.Glob(filepath.Join(s.suite, "crd", group+"_*s.yaml"))
	for _, file := range files {
		_, plural, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".yaml"), "_")
		if !strings.HasPrefix(plural, "vap_") {
			names = append(names, plural+"."+group)
		}
	}
	return names, err
}

// start applies the appliance's manifests, and starts it.
func (s *session) start(ctx context.Context) error {
	if err := s.Install(ctx); err != nil {
		return err
	}
	return errors.Join(s.Start(ctx), s.Ready(ctx))
}

// restart starts another program as the appliance. HAProxy goes on meanwhile.
func (s *session) restart(ctx context.Context, program string) error {
	if err := s.Stop(syscall.SIGTERM); err != nil {
		return err
	}
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	if err := writeProgram(filepath.Join(s.Dir, "sallyport"), text); err != nil {
		return err
	}
	return s.start(ctx)
}

// writeProgram replaces a program, which may be running.
func writeProgram(name string, text []byte) error {
	err := os.WriteFile(name+".new", text, 0o700) //nolint:gosec // it must be executable
	return errors.Join(err, os.Rename(name+".new", name))
}

// clear deletes what a run that was interrupted left of its objects. The namespaces and pods of the
// suite stay: it uses them again.
func (s *session) clear(ctx context.Context) error {
	names, err := s.kinds()
	if err != nil {
		return err
	}
	for _, kind := range names {
		if strings.HasPrefix(kind, "gatewayclasses.") {
			continue
		}
		if _, err := s.Kubectl(ctx, "delete", kind, "--all", "--all-namespaces"); err != nil {
			return err
		}
	}
	return nil
}

// play runs the suite on the client's host, and hands its output to the sink.
func (s *session) play(ctx context.Context, o order, to sink) error {
	if err := s.accepted(ctx); err != nil {
		return err
	}
	suite := s.Command(ctx, world.Client, append([]string{filepath.Join(s.suite, "suite")}, o.flags(class)...)...)
	suite.Env = append(os.Environ(), "KUBECONFIG="+s.KubeconfigFile())
	suite.WaitDelay = 10 * time.Second
	translate := exec.CommandContext(ctx, "go", "tool", "test2json", "-t")
	pipe, err := translate.StdinPipe()
	if err != nil {
		return err
	}
	events, err := translate.StdoutPipe()
	if err != nil {
		return err
	}
	suite.Stdout, suite.Stderr, translate.Stderr = pipe, pipe, os.Stderr
	if err := errors.Join(translate.Start(), suite.Start()); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := suite.Wait()
		_ = pipe.Close()
		ended <- err
	}()
	err = errors.Join(to(events), translate.Wait())
	if failed := (*exec.ExitError)(nil); !errors.As(<-ended, &failed) && err == nil {
		err = s.Alive()
	}
	return errors.Join(err, context.Cause(ctx), s.Alive())
}

// accepted waits until the appliance has accepted its GatewayClass. The suite would wait longer, and
// tell less.
func (s *session) accepted(ctx context.Context) error {
	return rig.Within(ctx, 30*time.Second, 200*time.Millisecond, "GatewayClass "+class+" is Accepted", func() error {
		got, err := s.Kubectl(ctx, "get", "gatewayclass", class, "-o",
			`jsonpath={.status.conditions[?(@.type=="Accepted")].status}`)
		if err == nil && got != "True" {
			err = fmt.Errorf("its condition Accepted is %q", got)
		}
		return err
	})
}
