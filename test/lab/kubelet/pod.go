package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const (
	retryEvery = time.Second     // after something that should have worked did not
	goneGrace  = time.Second     // for a pod whose object is deleted already
	hookExtra  = 2 * time.Second // for the program, when its preStop hook used up the grace period
)

// A pod is the running counterpart of one Pod object, and lives as long as that object.
type pod struct {
	*agent
	uid    types.UID
	wire   wire
	onNode bool // hostNetwork
	log    *slog.Logger

	changed chan struct{} // knock: the status may have to be written
	hurry   chan struct{} // knock: the grace period may have become shorter
	leaving chan struct{} // closed when the pod is to end
	gone    chan struct{} // closed when the object is gone

	writing sync.Mutex // one status at a time

	mu         sync.Mutex  // guards what follows
	object     *corev1.Pod // as the watch showed it last
	wrote      *corev1.Pod // as the API answered our last write; nil before
	addrs      []netip.Addr
	trouble    string // why there is no network yet
	inited     bool
	conditions map[corev1.PodConditionType]corev1.PodCondition // as we last computed them
	init, main []*container
}

func newPod(a *agent, object *corev1.Pod) *pod {
	p := &pod{
		agent: a, uid: object.UID,
		wire:    wireOf(a.NetnsPrefix, string(object.UID)),
		onNode:  object.Spec.HostNetwork,
		log:     a.Log.With("node", a.Node, "pod", object.Namespace+"/"+object.Name),
		changed: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		leaving: make(chan struct{}), gone: make(chan struct{}),
		conditions: map[corev1.PodConditionType]corev1.PodCondition{},
	}
	for i := range object.Spec.InitContainers {
		p.init = append(p.init, newContainer(p, &object.Spec.InitContainers[i], object.Status.InitContainerStatuses))
	}
	for i := range object.Spec.Containers {
		p.main = append(p.main, newContainer(p, &object.Spec.Containers[i], object.Status.ContainerStatuses))
	}
	p.learn(object, false)
	return p
}

// learn stores the object as the API has it now. One goroutine calls it, in order.
func (p *pod) learn(object *corev1.Pod, gone bool) {
	p.mu.Lock()
	p.object = object
	p.mu.Unlock()
	if gone {
		closeOnce(p.gone)
	}
	if gone || object.DeletionTimestamp != nil {
		closeOnce(p.leaving)
	}
	knock(p.hurry)
	knock(p.changed)
}

// closeOnce closes a channel unless it is closed. Only one goroutine may close that channel.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

func (p *pod) read() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.object
}

// netns returns the name of the network namespace of the pod's programs.
func (p *pod) netns() string {
	if p.onNode {
		return p.Netns
	}
	return p.wire.Netns
}

// run runs the pod until the object is gone or ctx ends. It is called once, in a goroutine of its own.
func (p *pod) run(ctx context.Context) {
	if !finished(p.read()) && !p.live(ctx) {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-p.leaving:
	}
	for p.remove(ctx) != nil && wait(ctx, retryEvery) {
	}
	select {
	case <-ctx.Done():
	case <-p.gone:
	}
}

// live starts the pod's programs, ends them when the pod must end, and removes its network. It
// returns false if ctx ended it.
func (p *pod) live(ctx context.Context) bool {
	work, stop := context.WithCancel(ctx) // what a pod that is leaving must not begin any more
	defer stop()
	reporting, silence := context.WithCancel(ctx)
	defer silence()
	var reporter, programs sync.WaitGroup
	reporter.Go(func() { p.report(reporting) })
	completed := make(chan struct{})
	programs.Go(func() {
		defer close(completed)
		p.work(work, ctx)
	})
	select {
	case <-ctx.Done():
	case <-completed:
	case <-p.leaving:
		stop()
		p.end(ctx)
	}
	programs.Wait()
	silence()
	reporter.Wait()
	p.killAll()
	if err := os.RemoveAll(p.volumes()); err != nil {
		p.log.Warn("pod's volumes stay", "error", err)
	}
	for p.leave(ctx) != nil || p.write(ctx) != nil {
		if !wait(ctx, retryEvery) {
			p.cut()
			return false
		}
	}
	p.log.Info("pod ended")
	return true
}

// work builds the network and runs the containers, until they have ended for good or the context
// work ends.
func (p *pod) work(work, life context.Context) {
	if !p.connect(work) {
		return
	}
	for _, c := range p.init {
		if code, ok := c.run(work, life); !ok || code != 0 {
			return
		}
	}
	p.mu.Lock()
	p.inited = true
	p.mu.Unlock()
	knock(p.changed)
	var all sync.WaitGroup
	for _, c := range p.main {
		all.Go(func() { c.run(work, life) })
	}
	all.Wait()
}

// connect builds the pod's network, and retries until that succeeds. It returns false if ctx ended
// first.
func (p *pod) connect(ctx context.Context) bool {
	for {
		addrs, err := p.join(ctx)
		if ctx.Err() != nil {
			return false
		}
		p.mu.Lock()
		p.addrs, p.trouble = addrs, ""
		if err != nil {
			p.trouble = err.Error()
		}
		p.mu.Unlock()
		knock(p.changed)
		if err == nil {
			return true
		}
		p.log.Warn("pod has no network yet", "error", err)
		if !wait(ctx, retryEvery) {
			return false
		}
	}
}

// end ends all running containers at once: hook, SIGTERM, and SIGKILL after the grace period. The
// period may become shorter meanwhile.
func (p *pod) end(ctx context.Context) {
	force, kill := context.WithCancel(ctx)
	defer kill()
	var ending, timing sync.WaitGroup
	for _, c := range append(p.init, p.main...) {
		ending.Go(func() { c.end(force) })
	}
	ended := make(chan struct{})
	begun := time.Now()
	timing.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			rest := time.NewTimer(time.Until(begun.Add(p.grace())))
			select {
			case <-ended:
			case <-ctx.Done():
				kill()
			case <-rest.C:
				kill()
			case <-p.hurry:
				rest.Stop()
				continue
			}
			rest.Stop()
			return
		}
	})
	ending.Wait()
	close(ended)
	timing.Wait()
}

// grace returns how long the pod may take to end.
func (p *pod) grace() time.Duration {
	select {
	case <-p.gone:
		return goneGrace
	default:
	}
	object := p.read()
	for _, seconds := range []*int64{object.DeletionGracePeriodSeconds, object.Spec.TerminationGracePeriodSeconds} {
		if seconds != nil {
			return time.Duration(*seconds) * time.Second
		}
	}
	return 30 * time.Second
}

// remove deletes the object, once nothing of the pod is left.
func (p *pod) remove(ctx context.Context) error {
	object, now := p.read(), int64(0)
	err := p.Client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.uid},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // another pod may have the name by now
		return nil
	}
	if err != nil && ctx.Err() == nil {
		p.log.Warn("pod's object cannot be deleted yet", "error", err)
	}
	return err
}

// report writes the status whenever it differs from the API's.
func (p *pod) report(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.changed:
		}
		if err := p.write(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("pod's status is not written yet", "error", err)
			if !wait(ctx, retryEvery) {
				return
			}
			knock(p.changed)
		}
	}
}

func (p *pod) write(ctx context.Context) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.mu.Lock()
	// The watch may not have returned our last write yet. A patch against an older object could leave
	// out a field that must change back.
	base := p.object
	if p.wrote != nil && version(p.wrote) > version(base) {
		base = p.wrote
	}
	want := p.status(base, metav1.Now())
	p.mu.Unlock()
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return fmt.Errorf("write pod's status: %w", err)
	}
	// The UID makes the API reject the patch for another pod of that name.
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: p.uid}, Status: want})
	if err != nil {
		return fmt.Errorf("write pod's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return fmt.Errorf("write pod's status: %w", err)
	}
	if string(patch) == fmt.Sprintf(`{"metadata":{"uid":%q}}`, p.uid) {
		return nil
	}
	wrote, err := p.Client.CoreV1().Pods(base.Namespace).Patch(ctx, base.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err == nil {
		p.mu.Lock()
		p.wrote = wrote
		p.mu.Unlock()
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return wrap("write pod's status", err)
}

// version returns an object's resource version, a number that grows.
func version(p *corev1.Pod) uint64 {
	n, _ := strconv.ParseUint(p.ResourceVersion, 10, 64)
	return n
}
