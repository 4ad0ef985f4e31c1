package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	firstPause = time.Second      // before the second restart; the first is at once
	longPause  = 10 * time.Second // pauses double up to this one
	calmAfter  = time.Minute      // a program that ran this long starts anew with the pauses
	imageRetry = 2 * time.Second
)

// A container is a program of a pod that is started, watched and started again.
type container struct {
	pod  *pod
	spec *corev1.Container

	mu       sync.Mutex // guards what follows; the pod's mu is never taken under it
	ending   bool       // it must not be started any more
	proc     *process   // nil while none runs
	vars     map[string]string
	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	ready    bool
	started  bool
	id       string
}

// newContainer returns a container whose count of restarts continues that of an earlier kubelet.
func newContainer(p *pod, spec *corev1.Container, before []corev1.ContainerStatus) *container {
	c := &container{pod: p, spec: spec}
	c.state.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	for _, s := range before {
		if s.Name == spec.Name && s.ContainerID != "" {
			c.restarts = s.RestartCount + 1
		}
	}
	return c
}

func (c *container) change(edit func()) {
	c.mu.Lock()
	edit()
	c.mu.Unlock()
	knock(c.pod.changed)
}

// run keeps the program running as the pod's restart policy demands, until work ends. life bounds
// how long it may run. It returns the exit code of the last run, and false if there was none.
func (c *container) run(work, life context.Context) (code int, ran bool) {
	pause := time.Duration(0)
	for work.Err() == nil {
		proc, reason, err := c.start(work)
		if err != nil {
			c.cannot(reason, err)
			if !wait(work, imageRetry) {
				return code, ran
			}
			continue
		}
		if proc == nil {
			return code, ran
		}
		c.attend(proc, life)
		code, ran = proc.code, true
		c.finish(proc)
		if work.Err() != nil || !c.again(code) {
			return code, ran
		}
		if proc.ended.Sub(proc.begun) > calmAfter {
			pause = 0
		}
		c.change(func() {
			c.last = c.state
			if pause > 0 {
				c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
					Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting container", pause),
				}}
			}
		})
		if !wait(work, pause) {
			return code, ran
		}
		pause = min(max(2*pause, firstPause), longPause)
		c.change(func() { c.restarts++ })
	}
	return code, ran
}

// cannot records why the program does not start.
func (c *container) cannot(reason string, err error) {
	c.mu.Lock()
	before := c.state.Waiting
	c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
	c.mu.Unlock()
	if before != nil && before.Message == err.Error() {
		return
	}
	knock(c.pod.changed)
	c.pod.log.Warn("container cannot start", "container", c.spec.Name, "reason", reason, "error", err)
}

// again reports whether a program that ended must be restarted.
func (c *container) again(code int) bool {
	switch policy := c.pod.read().Spec.RestartPolicy; {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure || c.isInit():
		return code != 0
	}
	return true
}

func (c *container) isInit() bool {
	return slices.Contains(c.pod.init, c)
}

// start starts the program. It returns neither a process nor an error if the container is ending.
// reason is Kubernetes' word for the failure.
func (c *container) start(ctx context.Context) (proc *process, reason string, err error) {
	program, err := c.pod.program(c.spec.Image)
	if err != nil {
		return nil, "ErrImagePull", err
	}
	argv, vars, err := c.prepare(ctx, program)
	if err != nil {
		return nil, "CreateContainerConfigError", err
	}
	object := c.pod.read()
	log := filepath.Join(c.pod.Dir, logsDir, logName(object.Namespace, object.Name, c.spec.Name))

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil, "", nil
	}
	proc, err = launch(c.pod.netns(), argv, pairs(vars), "/", log, c.pod.notes.noteProcess)
	if err != nil {
		return nil, "RunContainerError", fmt.Errorf("start %s: %w", argv[0], err)
	}
	c.proc, c.vars = proc, vars
	c.id = fmt.Sprintf("process://%s-%d", c.pod.wire.Netns, proc.pid)
	c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(proc.begun)}}
	c.started = c.spec.StartupProbe == nil
	c.ready = c.started && c.spec.ReadinessProbe == nil
	knock(c.pod.changed)
	c.pod.log.Info("container started", "container", c.spec.Name, "pid", proc.pid)
	return proc, "", nil
}

// attend probes a program until it has ended.
func (c *container) attend(proc *process, life context.Context) {
	probing, stop := context.WithCancel(life)
	var probes sync.WaitGroup
	probes.Go(func() { c.probe(probing, proc) })
	select {
	case <-proc.done:
	case <-life.Done():
		proc.signal(syscall.SIGKILL)
		<-proc.done
	}
	stop()
	probes.Wait()
}

// probe runs the startup probe, then the others side by side. Readiness is probed while the pod
// ends, too: the "serving" of an EndpointSlice depends on it.
func (c *container) probe(ctx context.Context, proc *process) {
	by := c.prober()
	restart := func(what string, why error) {
		c.mu.Lock()
		ending := c.ending
		c.mu.Unlock()
		if ending {
			return
		}
		c.pod.log.Warn("container is restarted", "container", c.spec.Name, "probe", what, "error", why)
		force, cancel := context.WithTimeout(ctx, c.pod.grace())
		defer cancel()
		proc.end(force)
	}
	if p := c.spec.StartupProbe; p != nil {
		up, cancel := context.WithCancel(ctx)
		good := false
		watch(up, p, false, func(ctx context.Context) error { return by.do(ctx, p.ProbeHandler) }, func(bool, error) {
			good = true
			cancel()
		})
		cancel()
		if !good {
			return
		}
		c.change(func() { c.started, c.ready = true, c.spec.ReadinessProbe == nil })
	}
	var both sync.WaitGroup
	if p := c.spec.ReadinessProbe; p != nil {
		both.Go(func() {
			watch(ctx, p, false, func(ctx context.Context) error {
				return by.do(ctx, p.ProbeHandler)
			}, func(good bool, why error) {
				c.change(func() { c.ready = good })
				if !good {
					c.pod.log.Info("container is not ready", "container", c.spec.Name, "error", why)
				}
			})
		})
	}
	if p := c.spec.LivenessProbe; p != nil {
		both.Go(func() {
			watch(ctx, p, true, func(ctx context.Context) error {
				return by.do(ctx, p.ProbeHandler)
			}, func(good bool, why error) {
				if !good {
					restart("liveness", why)
				}
			})
		})
	}
	both.Wait()
}

func (c *container) prober() prober {
	p := prober{node: c.pod.Netns, ports: c.spec.Ports, exec: c.exec}
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	if len(c.pod.addrs) > 0 {
		p.pod = c.pod.addrs[0]
	}
	return p
}

// exec runs a command beside the program, with its environment.
func (c *container) exec(ctx context.Context, argv []string) error {
	c.mu.Lock()
	vars := c.vars
	c.mu.Unlock()
	return runIn(ctx, c.pod.netns(), argv, pairs(vars))
}

// finish records how the program ended.
func (c *container) finish(proc *process) {
	reason := "Completed"
	if proc.code != 0 {
		reason = "Error"
	}
	c.change(func() {
		c.proc, c.ready, c.started = nil, false, false
		c.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(proc.code), Reason: reason, ContainerID: c.id,
			StartedAt: metav1.NewTime(proc.begun), FinishedAt: metav1.NewTime(proc.ended),
		}}
	})
	c.pod.log.Info("container ended", "container", c.spec.Name, "code", proc.code)
}

// end runs the preStop hook, then ends the program and waits for its end. force is closed when the
// grace period ends.
func (c *container) end(force context.Context) {
	c.mu.Lock()
	c.ending = true
	proc := c.proc
	c.mu.Unlock()
	if proc == nil {
		return
	}
	if c.spec.Lifecycle != nil && c.spec.Lifecycle.PreStop != nil {
		hook, cancel := context.WithCancel(force)
		go func() { // a program that ends by itself needs no hook any more
			select {
			case <-proc.done:
				cancel()
			case <-hook.Done():
			}
		}()
		if err := c.hook(hook, c.spec.Lifecycle.PreStop); err != nil {
			c.pod.log.Warn("preStop hook failed", "container", c.spec.Name, "error", err)
		}
		cancel()
		if force.Err() != nil {
			extra, cancel := context.WithTimeout(context.WithoutCancel(force), hookExtra)
			defer cancel()
			force = extra
		}
	}
	proc.end(force)
}

func (c *container) hook(ctx context.Context, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return c.exec(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return c.prober().get(ctx, h.HTTPGet)
	case h.Sleep != nil:
		wait(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return nil
}

// withAddresses returns the pod's object with its addresses, which the API may not have yet.
func (p *pod) withAddresses() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	object := p.object.DeepCopy()
	object.Status.HostIP, object.Status.HostIPs = hostIPs(p.hostIPs)
	object.Status.PodIP, object.Status.PodIPs = podIPs(p.addrs)
	return object
}

// data reads a ConfigMap or Secret of the pod's own Kubernetes namespace.
func (p *pod) data(ctx context.Context, kind, name string) (map[string]string, bool, error) {
	data, space := map[string]string{}, p.read().Namespace
	var err error
	if kind == "Secret" {
		var secret *corev1.Secret
		if secret, err = p.Client.CoreV1().Secrets(space).Get(ctx, name, metav1.GetOptions{}); err == nil {
			for key, value := range secret.Data {
				data[key] = string(value)
			}
		}
	} else {
		var config *corev1.ConfigMap
		if config, err = p.Client.CoreV1().ConfigMaps(space).Get(ctx, name, metav1.GetOptions{}); err == nil {
			data = config.Data
		}
	}
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	return data, err == nil, wrap("read "+kind, err)
}

func hostIPs(addrs []netip.Addr) (string, []corev1.HostIP) {
	var all []corev1.HostIP
	for _, a := range addrs {
		all = append(all, corev1.HostIP{IP: a.String()})
	}
	if len(all) == 0 {
		return "", nil
	}
	return all[0].IP, all
}

func podIPs(addrs []netip.Addr) (string, []corev1.PodIP) {
	var all []corev1.PodIP
	for _, a := range addrs {
		all = append(all, corev1.PodIP{IP: a.String()})
	}
	if len(all) == 0 {
		return "", nil
	}
	return all[0].IP, all
}
