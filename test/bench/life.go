package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

var memoryRows = []row{
	{13, "resident memory, and the processor of an idle appliance", small | large, memory},
}

var lifeRows = []row{
	{12, "start from nothing → all served; hitless restart → in control", large, starts},
	{15, "a reload, beside haproxy -c and a start of the same file by hand", large, reload},
}

func memory(ctx context.Context, b *bench) error {
	worker, err := b.worker()
	if err != nil {
		return err
	}
	ours, err1 := rig.Resident(b.Pid())
	theirs, err2 := rig.Resident(worker)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	f := value("resident memory of the appliance", float64(ours)/(1<<20), "MB")
	switch b.size {
	case 1:
		f = f.atMost(60)
	case 1000:
		f = f.atMost(110)
	case 10_000:
		f = f.atMost(500)
	}
	b.add(f)
	b.add(value("resident memory of HAProxy's worker", float64(theirs)/(1<<20), "MB"))
	if b.size == 1 {
		return nil
	}
	if err := b.published(ctx); err != nil {
		return err
	}
	b.add(value("start → every Ingress has its status", time.Since(b.started).Seconds(), "s"))
	const span = 30 * time.Second
	// A picture of the cluster is saved some seconds after a change.
	if err := rig.Pause(ctx, span); err != nil {
		return err
	}
	b.profile(ctx, b.size)
	before, err := rig.CPU(b.Pid())
	if err != nil {
		return err
	}
	if err := rig.Pause(ctx, span); err != nil {
		return err
	}
	after, err := rig.CPU(b.Pid())
	if err := errors.Join(err, b.profiled()); err != nil {
		return err
	}
	b.add(value("processor of an idle appliance", 100*(after-before).Seconds()/span.Seconds(), "%").atMost(1))
	return nil
}

// published waits until every Ingress has the appliance's address in its status, at most
// twice as long as the appliance needs to write them, 50 a second. It asks once a second: the
// answer names every Ingress.
func (s *testbed) published(ctx context.Context) error {
	most := rig.Limit + 2*time.Duration(s.size)*time.Second/50
	return rig.Within(ctx, most, time.Second, "every Ingress has its status", func() error {
		all, err := s.kube.NetworkingV1().Ingresses("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		without := 0
		for _, ing := range all.Items {
			if len(ing.Status.LoadBalancer.Ingress) == 0 {
				without++
			}
		}
		if without > 0 {
			err = fmt.Errorf("%d of %d have none", without, len(all.Items))
		}
		return err
	})
}

// worker returns the process id of HAProxy's worker.
func (s *testbed) worker() (int, error) { return workerAt(s.socket()) }

// starts kills the appliance and starts it again: first with HAProxy and the routes as it
// left them, until it opens an endpoint that came meanwhile; then with nothing but its
// configuration file, until every host is served.
func starts(ctx context.Context, b *bench) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := spot(ctx, time.Millisecond, b.exchange)
	var warm, cold []time.Duration
	reloads := 0
	for i := range b.starts {
		if err := b.Stop(syscall.SIGKILL); err != nil {
			return err
		}
		want := sight{backendOf(name(0)), serverAt(spare(i)), true}
		seen := watch.expect(want)
		if _, err := b.put(ctx, name(0), spare(i)); err != nil {
			return err
		}
		began := time.Now()
		if err := b.Start(ctx); err != nil {
			return err
		}
		at, err := watch.wait(ctx, want, seen)
		if err != nil {
			return err
		}
		status, err := b.Status(ctx)
		if err != nil {
			return err
		}
		if h := status.HAProxy; h.Reloads+h.Starts > 0 {
			progress("a restart was not hitless: %s", h.LastReason)
			reloads += h.Reloads + h.Starts
		}
		warm = append(warm, at.Sub(began))
		progress("restart: %s", at.Sub(began).Round(time.Millisecond))
	}
	for range b.starts {
		if err := b.Stop(syscall.SIGKILL); err != nil {
			return err
		}
		if err := b.wipe(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := b.Start(ctx); err != nil {
			return err
		}
		b.profile(ctx, b.size)
		at, err := b.served(b.hosts()...)
		if err != nil {
			return err
		}
		if err := b.profiled(); err != nil {
			return err
		}
		cold = append(cold, at.Sub(began))
		progress("start from nothing: %s", at.Sub(began).Round(time.Millisecond))
	}
	f := value("start from nothing → all hosts served, slowest", slices.Max(cold).Seconds(), "s")
	switch b.size {
	case 1000:
		f = f.atMost(3)
	case 10_000:
		f = f.atMost(15)
	}
	b.add(f)
	b.add(value("hitless restart → an endpoint that came meanwhile is open, slowest", slices.Max(warm).Seconds(),
		"s").atMost(5))
	b.add(value(fmt.Sprintf("hitless restart: reloads in %d of them", b.starts), float64(reloads), "").atMost(0))
	return nil
}

// wipe ends everything on the appliance's host, and removes the routes and all state.
func (s *testbed) wipe(ctx context.Context) error {
	script := "for p in $(ip netns pids " + s.Netns(world.Appliance) +
		"); do [ $p = $$ ] || kill -9 $p; done; ip route flush proto 78; true"
	if _, err := s.Exec(ctx, world.Appliance, "sh", "-c", script); err != nil {
		return err
	}
	for _, dir := range []string{"haproxy", "run", "state"} {
		if err := os.RemoveAll(filepath.Join(s.Dir, dir)); err != nil {
			return err
		}
	}
	return nil
}

// reload changes a timeout of all clients, which only a reload can do. It returns to the
// table how long until the new worker answers, and what HAProxy and the appliance use until
// then. By hand the same takes a check and a start.
func reload(ctx context.Context, b *bench) error {
	old, err := b.worker()
	if err != nil {
		return err
	}
	before, err := rig.CPU(b.Pid())
	if err != nil {
		return err
	}
	_, err = b.kube.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: settings}, Data: map[string]string{"timeout-client": "49s"},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	began := time.Now()
	var pid int
	err = rig.Eventually(ctx, "a new worker answers", func() error {
		if pid, err = b.worker(); err == nil && pid == old {
			err = errors.New("the old worker answers")
		}
		return err
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	resident := 0
	for _, p := range []int{old, pid} {
		if bytes, err := rig.Resident(p); err == nil { // the old one may have ended
			resident += bytes
		}
	}
	after, err := rig.CPU(b.Pid())
	if err != nil {
		return err
	}
	worker, err := rig.CPU(pid)
	if err != nil {
		return err
	}
	hand, err := b.byHand(ctx)
	if err != nil {
		return err
	}
	b.add(value("reload: committed → the new worker answers", took.Seconds(), "s").beside("by hand",
		hand.Seconds()).timesAtMost(1.3))
	b.add(value("reload: processor of the appliance", (after - before).Seconds(), "s"))
	b.add(value("reload: processor of the new worker", worker.Seconds(), "s"))
	b.add(value("reload: resident memory of both workers", float64(resident)/(1<<20), "MB"))
	return nil
}

// byHand checks the appliance's configuration of HAProxy and starts a HAProxy of it, in a
// network namespace of its own and with other sockets. It returns how long that takes until
// the worker answers.
func (s *testbed) byHand(ctx context.Context) (time.Duration, error) {
	run := filepath.Join(s.Dir, "hand")
	if err := os.MkdirAll(filepath.Join(run, "jail"), 0o711); err != nil { // the file names it as chroot
		return 0, err
	}
	defer os.RemoveAll(run) //nolint:errcheck // scratch
	text, err := os.ReadFile(filepath.Join(s.Dir, "haproxy", "haproxy.cfg"))
	if err != nil {
		return 0, err
	}
	file := filepath.Join(run, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), s.Dir+"/run/", run+"/")), 0o600); err != nil {
		return 0, err
	}
	began := time.Now()
	if out, err := exec.CommandContext(ctx, haproxyProgram(), "-c", "-f", file).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("haproxy -c: %w: %s", err, out)
	}
	cmd := exec.CommandContext(ctx, "unshare", "-n", haproxyProgram(), "-W", "-db", "-f", file)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil && time.Since(began) < limit; <-tick.C {
		if _, err := exchange(run+"/worker.sock", "show info"); err == nil {
			return time.Since(began), nil
		}
		select {
		case <-ended:
			return 0, fmt.Errorf("a HAProxy started by hand ended: %s", cmd.ProcessState)
		default:
		}
	}
	return 0, errors.Join(context.Cause(ctx), errors.New("a HAProxy started by hand does not answer"))
}
