package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	{name: "a pod's address goes to another tenant's pod", make: reuse},
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

// reuse deletes one pod of the application, and has a pod of another tenant get its address. Calico gives
// an address again as late as it can: so the queue of the block is changed to make it the next.
func reuse(ctx context.Context, a *arena) error {
	out, err := a.Kubectl(ctx, "get", "pods", "-l", "app=app", "-o",
		"jsonpath={.items[0].metadata.name} {.items[0].spec.nodeName} {.items[0].status.podIP}")
	if err != nil {
		return err
	}
	pod, node, address := field(out, 0), field(out, 1), field(out, 2)
	_, err = a.Kubectl(ctx, "annotate", "pod", pod, "controller.kubernetes.io/pod-deletion-cost=-100")
	_, scaled := a.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", replicas-1))
	if err := errors.Join(err, scaled, a.next(ctx, address)); err != nil {
		return err
	}
	other := rig.App{Namespace: "other", Name: "other", Node: node}.Manifest()
	if err := a.Apply(ctx, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"+other); err != nil {
		return err
	}
	err = rig.Eventually(ctx, "another tenant's pod has "+address, func() error {
		got, err := a.Kubectl(ctx, "-n", "other", "get", "pods", "-o", "jsonpath={.items[*].status.podIP}")
		if err == nil && got != address {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
	err = errors.Join(err, rig.Pause(ctx, 10*time.Second))
	_, gone := a.Kubectl(ctx, "delete", "namespace", "other")
	_, scaled = a.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", replicas))
	return errors.Join(err, gone, scaled, a.rollout(ctx))
}

// field returns one of the words of a line, or "".
func field(line string, n int) string {
	if words := strings.Fields(line); n < len(words) {
		return words[n]
	}
	return ""
}

// next waits until an address is free, and makes it the next that its block gives.
func (a *arena) next(ctx context.Context, address string) error {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	block := netip.PrefixFrom(at, 26).Masked()
	name := strings.NewReplacer(".", "-", "/", "-").Replace(block.String())
	first, last := block.Addr().As4(), at.As4()
	ordinal := int(last[3] - first[3])
	return rig.Eventually(ctx, address+" is the next of its block", func() error {
		out, err := a.Kubectl(ctx, "get", "ipamblocks.crd.projectcalico.org", name, "-o", "json")
		if err != nil {
			return err
		}
		var object struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
			Spec struct {
				Unallocated []int `json:"unallocated"`
			} `json:"spec"`
		}
		if err := json.Unmarshal([]byte(out), &object); err != nil {
			return err
		}
		free := object.Spec.Unallocated
		i := slices.Index(free, ordinal)
		if i < 0 {
			return errors.New("it is not free")
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": object.Metadata.ResourceVersion},
			"spec":     map[string]any{"unallocated": slices.Insert(slices.Delete(free, i, i+1), 0, ordinal)},
		})
		if err == nil {
			_, err = a.Kubectl(ctx, "patch", "ipamblocks.crd.projectcalico.org", name, "--type", "merge", "-p", string(patch))
		}
		return err
	})
}
