package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// An event is something that happens in a cluster, or to a contender.
type event struct {
	name      string
	make      func(context.Context, *arena) error
	ingresses bool // it is about Ingresses, so a contender that serves one application alone has no part in it
	reloads   bool // it is about reloads of HAProxy
}

// concerns reports whether a contender has a part in an event.
func (e event) concerns(c contender) bool {
	return (!e.ingresses || !c.one) && (!e.reloads || c.timeout != "")
}

var events = []event{
	{name: "rolling restart of the Deployment", make: restart},
	{name: "scale 5 to 50 and back", make: scale},
	{name: "a node is drained, and comes back", make: drain},
	{name: "a node loses power for 20 s", make: powerLoss},
	{name: "calico-node restarts on all nodes", make: restartCalico},
	{name: "BGP with one node is filtered for 15 s", make: cutBGP},
	{name: "a node joins, and gets pods", make: join},
	{name: "the API is out of reach for 20 s, and a pod ends", make: apiAway},
	{name: "the controller is killed, and a pod ends", make: killController},
	{name: "100 Ingresses with Services come and go", make: churn, ingresses: true},
	{name: "a setting that takes a reload changes, five times", make: reload, reloads: true},
	{name: "a pod's address goes to another tenant's pod", make: reuse},
	{name: "the nodes' blocks are full, and pods come in new ones", make: fullBlocks},
	{name: "pods borrow addresses of another node's block", make: borrow},
	{name: "a node's block moves to another node", make: moveBlock},
}

func restart(ctx context.Context, a *arena) error {
	_, err := a.Kubectl(ctx, "rollout", "restart", "deployment/app")
	return errors.Join(err, a.rollout(ctx))
}

func scale(ctx context.Context, a *arena) error {
	for _, n := range []int{50, replicas} {
		if _, err := a.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", n)); err != nil {
			return err
		}
		if err := errors.Join(a.rollout(ctx), a.gone(ctx, n)); err != nil {
			return err
		}
	}
	return nil
}

// gone waits until the application has no more than so many pods, also of those that end.
func (a *arena) gone(ctx context.Context, n int) error {
	return rig.Eventually(ctx, fmt.Sprint(n, " pods are left"), func() error {
		out, err := a.Kubectl(ctx, "get", "pods", "-l", "app=app", "-o", "name")
		if left := len(strings.Fields(out)); err == nil && left > n {
			err = fmt.Errorf("%d pods", left)
		}
		return err
	})
}

func drain(ctx context.Context, a *arena) error {
	_, err := a.Kubectl(ctx, "drain", "worker2", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
	err = errors.Join(err, a.rollout(ctx))
	_, uncordon := a.Kubectl(ctx, "uncordon", "worker2")
	return errors.Join(err, uncordon, restart(ctx, a))
}

func powerLoss(ctx context.Context, a *arena) error {
	return faults.Power(a.Rig, "worker2").During(ctx, func() error { return rig.Pause(ctx, 20*time.Second) })
}

func restartCalico(ctx context.Context, a *arena) error {
	all := make(chan error, 3)
	for _, node := range []string{world.Master, "worker1", "worker2"} {
		go func() { all <- a.RestartCalico(ctx, node, 10*time.Second) }()
	}
	return errors.Join(<-all, <-all, <-all)
}

func cutBGP(ctx context.Context, a *arena) error {
	return faults.Cut(a.Rig, world.Appliance, world.OnlyBGP, "worker2").During(ctx, func() error {
		return rig.Pause(ctx, 15*time.Second)
	})
}

// join adds a node, and restarts the application, so that the node gets pods. An operator who has to
// name the node to a router does so 10 s later: see contender.joined.
func join(ctx context.Context, a *arena) error {
	if _, err := a.AddNode(ctx, "worker3"); err != nil {
		return err
	}
	err := restart(ctx, a)
	err = errors.Join(err, rig.Pause(ctx, 10*time.Second))
	if a.contender.joined != nil {
		err = errors.Join(err, a.contender.joined(ctx, a, "worker3"))
	}
	return errors.Join(err, a.serves(ctx, "test.local"), a.RemoveNode(ctx, "worker3"), a.rollout(ctx))
}

// endPod deletes one pod of the application, and waits until another one serves in its place.
func endPod(ctx context.Context, a *arena) error {
	pod, err := a.Kubectl(ctx, "get", "pods", "-l", "app=app", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	_, err = a.Kubectl(ctx, "delete", "pod", pod)
	return errors.Join(err, a.rollout(ctx))
}

func apiAway(ctx context.Context, a *arena) error {
	return faults.API(a.Rig, world.Appliance).During(ctx, func() error {
		return errors.Join(rig.Pause(ctx, 5*time.Second), endPod(ctx, a), rig.Pause(ctx, 15*time.Second))
	})
}

func killController(ctx context.Context, a *arena) error {
	return errors.Join(a.kill(controller), endPod(ctx, a), rig.Pause(ctx, 5*time.Second))
}

func churn(ctx context.Context, a *arena) error {
	const n = 100
	var all strings.Builder
	for i := range n {
		name := fmt.Sprintf("more-%d", i)
		all.WriteString(rig.Service("default", name, "app") + a.ingress(name, name+".local", name))
	}
	if err := a.Apply(ctx, all.String()); err != nil {
		return err
	}
	if err := a.serves(ctx, fmt.Sprintf("more-%d.local", n-1)); err != nil {
		return err
	}
	_, err := a.Kubectl(ctx, "delete", "ingress,service", "--selector", "!nothing", "--field-selector",
		"metadata.name!=app,metadata.name!=kubernetes")
	return err
}

// reload changes how long a server of the application may be silent, which HAProxy reads when it starts.
func reload(ctx context.Context, a *arena) error {
	for i := range 5 {
		value := fmt.Sprintf("%s=%ds", a.contender.timeout, 40+i)
		_, err := a.Kubectl(ctx, "annotate", "--overwrite", "ingress", "app", value)
		if err := errors.Join(err, rig.Pause(ctx, 6*time.Second)); err != nil {
			return err
		}
	}
	return nil
}
