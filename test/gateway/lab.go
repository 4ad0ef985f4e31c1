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

// class is the GatewayClass that the manifests of the appliance have.
const class = "sallyport"

// A place says which CRDs a run has, and where its Gateways have their addresses.
type place struct {
	options world.Options
	pool    string // addresses for Gateways
	// an address of the pool that no Gateway of the suite gets by itself: the one that a Gateway gets
	// follows from its name
	usable string
}

// unusable is an address that no machine has.
const unusable = "192.0.2.1"

// alone is a single appliance with addresses in the lan; grouped are two appliances behind a router,
// which learns by BGP where the addresses are.
var (
	alone   = place{pool: rig.GatewayPool, usable: rig.GatewayAddress(31)}
	grouped = place{
		options: world.Options{Appliances: 2, Router: world.RouterBIRD},
		pool:    "203.0.113.64-203.0.113.95", usable: "203.0.113.95",
	}
)

// A session is a lab with the CRDs of Gateway API and appliances that are ready.
type session struct {
	*rig.Rig
	place   place
	suite   string     // folder of world.GatewaySuite
	members []*rig.Rig // the appliances; the first is Rig
}

// in brings up a session, calls do, and removes everything.
func in(ctx context.Context, where place, do func(*session) error) (err error) {
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
	err = errors.Join(writeProgram(idle, []byte("#!/bin/sh\nexec sleep infinity\n")), rig.Build(ctx, dir))
	if err != nil {
		return err
	}
	options := where.options
	options.Name, options.Workers, options.Progress = "gateway", 2, io.Discard
	options.Images = map[string]string{
		"registry.k8s.io/gateway-api/echo-basic": filepath.Join(suite, "echo-basic"),
		"registry.k8s.io/coredns/coredns":        idle,
	}
	r, err := rig.Up(ctx, dir, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	s := &session{Rig: r, place: where, suite: suite, members: []*rig.Rig{r}}
	if err := s.configure(ctx); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	return do(s)
}

// configure configures the appliances. The host of a single one gets the addresses of the pool; a
// group gives them to its members.
func (s *session) configure(ctx context.Context) error {
	cluster := rig.Cluster{
		Gateway: []string{"enabled: true", "named: true"},
		// One namespace of the suite has nearly all Gateways.
		Ingress: []string{fmt.Sprintf("limits: {reloads: %d, addresses: 32}", rig.NoReloadLimit)},
	}
	if s.place.options.Appliances < 2 {
		if err := s.AddGatewayAddresses(ctx); err != nil {
			return err
		}
		return rig.ConfigureHAProxy(s.Dir, []string{"addresses: [" + s.place.pool + "]"}, "", cluster)
	}
	// The suite also asks the API server, which has no route to what is behind the router.
	client, _ := s.Host(world.Client)
	router, _ := s.Host(world.Router)
	if _, err := s.Exec(ctx, world.Master, "ip", "route", "replace", client.Addr.Addr().String(), "via",
		router.Addr.Addr().String()); err != nil {
		return err
	}
	for n := range s.place.options.Appliances {
		member := s.Rig
		if n > 0 {
			var err error
			if member, err = s.Another(n + 1); err != nil {
				return err
			}
			s.members = append(s.members, member)
		}
		lines := s.Group(n+1) + "  pools: [" + s.place.pool + "]\n"
		if err := rig.Configure(member.Dir, lines, cluster); err != nil {
			return err
		}
	}
	return nil
}

// start applies the manifests, and starts the appliances.
func (s *session) start(ctx context.Context) error {
	var peers []string
	for _, m := range s.members[1:] {
		host, _ := s.Host(m.Machine())
		peers = append(peers, "--address", host.Addr.Addr().String())
	}
	if err := s.Install(ctx, peers...); err != nil {
		return err
	}
	for _, m := range s.members {
		if err := m.Start(ctx); err != nil {
			return err
		}
	}
	return s.each(func(m *rig.Rig) error { return m.Ready(ctx) })
}

// each calls a function for each appliance.
func (s *session) each(do func(*rig.Rig) error) error {
	var all []error
	for _, m := range s.members {
		all = append(all, do(m))
	}
	return errors.Join(all...)
}

// restart starts another program as the appliances. HAProxy goes on meanwhile.
func (s *session) restart(ctx context.Context, program string) error {
	if err := s.each(func(m *rig.Rig) error { return m.Stop(syscall.SIGTERM) }); err != nil {
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
	names, err := s.Kubectl(ctx, "api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name")
	if err != nil {
		return err
	}
	for kind := range strings.FieldsSeq(names) {
		if strings.HasPrefix(kind, "gatewayclasses.") {
			continue
		}
		if _, err := s.Kubectl(ctx, "delete", kind, "--all", "--all-namespaces"); err != nil {
			return err
		}
	}
	return nil
}

// play runs the suite on the client's host, and hands its output to the sink. The members of a group
// are drained meanwhile, one after another, and come back.
func (s *session) play(ctx context.Context, o order, to sink) error {
	if err := s.accepted(ctx); err != nil {
		return err
	}
	if len(s.members) == 1 {
		return s.test(ctx, o, to)
	}
	if err := s.serve(ctx, ""); err != nil {
		return err
	}
	drains, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		times, err := s.rotate(drains)
		fmt.Fprintf(os.Stderr, "a member was drained, and came back: %d times\n", times)
		ended <- err
	}()
	err := s.test(ctx, o, to)
	stop()
	return errors.Join(err, <-ended)
}

// test runs the suite, and hands its output to the sink.
func (s *session) test(ctx context.Context, o order, to sink) error {
	suite := s.Command(ctx, world.Client, append([]string{filepath.Join(s.suite, "suite")}, s.flags(o)...)...)
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
	why := <-ended
	if failed := (*exec.ExitError)(nil); errors.As(why, &failed) {
		why = nil // a test failed, and the sink knows which one
	}
	return errors.Join(err, why, context.Cause(ctx), s.each((*rig.Rig).Alive))
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
