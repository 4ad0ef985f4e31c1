package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// An arena is a lab with one contender.
type arena struct {
	*rig.Rig
	contender contender
	target    string // HOST:PORT that clients ask
	parts     []*part
}

// A part is a program of a contender on the appliance's host. It is started again a second after its
// end, as systemd would.
type part struct {
	name string
	mu   sync.Mutex
	cmd  *exec.Cmd
	end  context.CancelFunc
	over chan struct{}
}

// again is the time from the end of a part to its next start.
const again = time.Second

// start runs a program on a host of the lab, until the arena closes. Its output goes into a file with
// the part's name.
func (a *arena) start(ctx context.Context, host, name string, args ...string) error {
	log, err := os.OpenFile(a.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{name: name, end: end, over: make(chan struct{})}
	a.parts = append(a.parts, p)
	go func() {
		defer close(p.over)
		defer log.Close() //nolint:errcheck // a log
		for life.Err() == nil {
			cmd := a.Command(life, host, args...)
			cmd.Stdout, cmd.Stderr = log, log
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
			cmd.WaitDelay = 5 * time.Second
			if err := cmd.Start(); err != nil {
				fmt.Fprintln(log, err)
				return
			}
			p.mu.Lock()
			p.cmd = cmd
			p.mu.Unlock()
			fmt.Fprintln(log, "ended:", cmd.Wait())
			select {
			case <-life.Done():
			case <-time.After(again):
			}
		}
	}()
	return nil
}

// kill sends SIGKILL to a part's program, and to no child of it.
func (a *arena) kill(name string) error {
	i := slices.IndexFunc(a.parts, func(p *part) bool { return p.name == name })
	if i < 0 {
		return fmt.Errorf("%s has no part %s", a.contender.name, name)
	}
	p := a.parts[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.cmd.Process == nil {
		return fmt.Errorf("%s does not run", name)
	}
	return p.cmd.Process.Kill()
}

// path returns the path of a file of the arena.
func (a *arena) path(name ...string) string {
	return filepath.Join(append([]string{a.Dir}, name...)...)
}

// play brings up a lab, has a contender serve the application in it, and makes the events. The programs
// of package rig lie in a folder. play returns the figures of the events that were made, and the versions
// of the contender's programs.
func play(ctx context.Context, c contender, programs string, calico world.Calico, only []string) (
	figures []figure, version string, err error,
) {
	if c.build != nil {
		progress("%s: building", c.name)
		if err := c.build(ctx); err != nil {
			return nil, "", fmt.Errorf("%s: %w", c.name, err)
		}
	}
	dir, err := os.MkdirTemp("", "sallyport-rivals-")
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // HAProxy's worker, another user, passes through
		return nil, "", err
	}
	for _, program := range []string{"sallyport", "app"} {
		err = errors.Join(err, os.Symlink(filepath.Join(programs, program), filepath.Join(dir, program)))
	}
	// All Ingresses are of one namespace, which may have 5,000 hosts and 10,000 servers by default.
	limits := fmt.Sprintf("limits: {hosts: 20000, backends: 20000, servers: 20000, reloads: %d}", rig.NoReloadLimit)
	if err := errors.Join(err, rig.Configure(dir, "", rig.Cluster{Ingress: []string{limits}})); err != nil {
		return nil, "", err
	}
	progress("%s: a cluster", c.name)
	r, err := rig.New(ctx, dir, world.Options{
		Name: "rivals", Workers: 2, Calico: calico, Mesh: true, Progress: io.Discard,
	})
	if err != nil {
		return nil, "", err
	}
	a := &arena{Rig: r, contender: c, target: "192.168.50.21:80"}
	defer func() {
		for _, p := range a.parts {
			p.end()
			<-p.over
		}
		if c.stop != nil {
			err = errors.Join(err, c.stop(a))
		}
		if err != nil {
			a.tell()
		}
		err = errors.Join(err, r.Close())
	}()
	if err := a.furnish(ctx); err != nil {
		return nil, "", fmt.Errorf("%s: %w", c.name, err)
	}
	progress("%s: setting up", c.name)
	if version, err = c.serve(ctx, a); err != nil {
		return nil, version, fmt.Errorf("%s: %w", c.name, err)
	}
	if err := a.serves(ctx, "test.local"); err != nil {
		return nil, version, fmt.Errorf("%s: %w", c.name, err)
	}
	figures, err = a.make(ctx, only)
	return figures, version, err
}

// tell shows the ends of the logs of a contender that failed.
func (a *arena) tell() {
	for _, p := range a.parts {
		text, _ := os.ReadFile(a.path(p.name + ".log"))
		progress("log of %s:\n%s", p.name, text[max(0, len(text)-3000):])
	}
}

// replicas is how many pods the application has before and after each event.
const replicas = 5

// furnish makes the application, its Service and its Ingress.
func (a *arena) furnish(ctx context.Context) error {
	if err := a.ClaimBlocks(ctx, world.Master); err != nil {
		return err
	}
	if a.contender.mute {
		// After a restart BIRD changes no route of the kernel until each neighbour has a session again, for four
		// minutes at most. BIRD would wait for an appliance without BGP.
		if _, err := a.Kubectl(ctx, "delete", "bgppeers.crd.projectcalico.org", "--all"); err != nil {
			return err
		}
	}
	// A port of a client comes again only after the kernels forgot the connection that had it.
	if _, err := a.Exec(ctx, world.Client, "sysctl", "-q", "-w", "net.ipv4.ip_local_port_range=1024 65535"); err != nil {
		return err
	}
	// Pods end as they do with a preStop hook: they serve on for a while after the order to end.
	app := rig.App{Name: "app", Replicas: replicas, Grace: 5}.Manifest()
	if err := a.Apply(ctx, app+rig.Service("default", "app", "app")+a.ingress("app", "test.local", "app")); err != nil {
		return err
	}
	return a.rollout(ctx)
}

// ingress returns an Ingress of the contender's class for a host and a Service.
func (a *arena) ingress(name, host, service string) string {
	return rig.Ingress(name, a.contender.ingressClass(), host, service)
}

// rollout waits until all pods of the application are current and available.
func (a *arena) rollout(ctx context.Context) error {
	return a.Rollout(ctx, "app")
}

// serves waits until ten requests for a host in a row are answered.
func (a *arena) serves(ctx context.Context, host string) error {
	good := 0
	return rig.Within(ctx, 5*time.Minute, 20*time.Millisecond, a.contender.name+" serves "+host, func() error {
		if err := a.ask(ctx, host); err != nil {
			good = 0
			return err
		}
		if good++; good < 10 {
			return errors.New("not ten times in a row")
		}
		return nil
	})
}

// ask sends one request for a host.
func (a *arena) ask(ctx context.Context, host string) error {
	conn, err := load.Open(ctx, a.dial, a.target, nil, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	_, err = conn.Ask(host, "Connection: close\r\n")
	return err
}

func (a *arena) dial(ctx context.Context, address string) (net.Conn, error) {
	return a.Dial(ctx, world.Client, address)
}

// clients returns clients who ask 200 times a second on connections of their own, and as often on 20 that they keep.
func (a *arena) clients() load.Clients {
	return load.Clients{
		Targets: []string{a.target}, Host: "test.local", Wants: "namespace: default", New: 5 * time.Millisecond,
		Kept: 20, Every: 100 * time.Millisecond, Dial: a.dial,
	}
}

// make makes the events, one after another, while clients ask.
func (a *arena) make(ctx context.Context, only []string) (figures []figure, err error) {
	clients := load.Watch(ctx, a.clients())
	defer clients.Stop()
	during := func(do func() error) (load.Count, error) { return clients.During(ctx, 200, 40, do) }
	if _, err := during(func() error { return nil }); err != nil {
		return nil, err
	}
	for i, e := range events {
		if len(only) > 0 && !slices.Contains(only, strconv.Itoa(i+1)) || !e.concerns(a.contender) {
			continue
		}
		count, err := during(func() error { return errors.Join(e.make(ctx, a), a.serves(ctx, "test.local")) })
		if err != nil {
			return figures, fmt.Errorf("%s: %s: %w", a.contender.name, e.name, err)
		}
		f := a.losses(e.name, count)
		figures = append(figures, f)
		progress("%s: %s: %s; %s", f.Contender, f.Event, f, f.First)
		// The aftermath of an event counts for no event.
		if _, err := during(func() error { return rig.Pause(ctx, 2*time.Second) }); err != nil {
			return figures, err
		}
	}
	clients.Stop()
	sizes := []int{1}
	switch {
	case slices.Contains(only, sizesWord):
		sizes = []int{1, 1000, 10000}
	case len(only) > 0:
		return figures, nil
	}
	costs, err := a.costs(ctx, sizes...)
	return append(figures, costs...), err
}

// losses returns the figure of what clients lost during an event.
func (a *arena) losses(event string, count load.Count) figure {
	f := figure{
		Contender: a.contender.name, Event: event, Sent: count.Sent, Failed: len(count.Failed),
		Broken: len(count.Broken), Slowest: float64(count.Slowest) / 1e6,
	}
	for i, o := range slices.Concat(count.Failed, count.Broken) {
		if i == 0 {
			f.First = o.String()
		}
		if errors.Is(o.Err, load.ErrWrong) {
			f.Wrong++
		}
	}
	return f
}
