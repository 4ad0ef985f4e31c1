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

	"sallyport/test/rig"
)

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

// fullBlocks takes the free addresses of all blocks away, and restarts the application, so that the nodes of its pods
// claim further blocks.
func fullBlocks(ctx context.Context, a *arena) error {
	before, err := a.blocks(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(a.fill(ctx, before...), restart(ctx, a))
	after, listed := a.blocks(ctx)
	if err == nil && len(after) == len(before) {
		err = errors.New("no node claimed a block")
	}
	return errors.Join(err, listed, a.free(ctx, before...), restart(ctx, a))
}

// lentPool is the pool of one block, which one node claims. The pods of the other nodes borrow from it.
const lentPool = "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: lent}\n" +
	"spec: {cidr: 172.17.0.0/26, blockSize: 26, ipipMode: Never, vxlanMode: Never, nodeSelector: all()}\n"

// borrow leaves one block to all nodes, and restarts the application.
func borrow(ctx context.Context, a *arena) error {
	pool, err := a.Kubectl(ctx, "get", "ippools.crd.projectcalico.org", "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return err
	}
	disable := func(yes bool) error {
		_, err := a.Kubectl(ctx, "patch", "ippools.crd.projectcalico.org", pool, "--type", "merge", "-p",
			fmt.Sprintf(`{"spec":{"disabled":%t}}`, yes))
		return err
	}
	err = errors.Join(a.Apply(ctx, lentPool), disable(true), restart(ctx, a))
	nodes, listed := a.Kubectl(ctx, "get", "pods", "-l", "app=app", "-o",
		`jsonpath={range .items[*]}{.status.podIP} {.spec.nodeName}{"\n"}{end}`)
	on := map[string]bool{}
	for line := range strings.Lines(nodes) {
		if strings.HasPrefix(line, "172.17.0.") {
			on[field(line, 1)] = true
		}
	}
	if err == nil && len(on) < 2 {
		err = fmt.Errorf("pods of one block are on %d nodes", len(on))
	}
	err = errors.Join(err, listed, disable(false), restart(ctx, a), a.gone(ctx, replicas))
	_, deleted := a.Kubectl(ctx, "delete", "ippools.crd.projectcalico.org", "lent")
	return errors.Join(err, deleted)
}

// moveBlock drains worker2, and gives its blocks to worker1, whose own blocks are full. The application's next pods
// are in the blocks that moved.
func moveBlock(ctx context.Context, a *arena) error {
	own, err := a.blocks(ctx, "host:worker1")
	moved, listed := a.blocks(ctx, "host:worker2")
	_, drained := a.Kubectl(ctx, "drain", "worker2", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
	if err := errors.Join(err, listed, drained, a.rollout(ctx), a.gone(ctx, replicas)); err != nil {
		return err
	}
	for _, b := range moved {
		_, released := a.Kubectl(ctx, "delete", "blockaffinities.crd.projectcalico.org", "worker2-"+b)
		_, claimed := a.Kubectl(ctx, "patch", "ipamblocks.crd.projectcalico.org", b, "--type", "merge", "-p",
			`{"spec":{"affinity":"host:worker1"}}`)
		cidr, read := a.Kubectl(ctx, "get", "ipamblocks.crd.projectcalico.org", b, "-o", "jsonpath={.spec.cidr}")
		err = errors.Join(err, released, claimed, read, a.Apply(ctx, fmt.Sprintf(
			"apiVersion: crd.projectcalico.org/v1\nkind: BlockAffinity\nmetadata: {name: worker1-%s}\n"+
				"spec: {cidr: %s, node: worker1, state: confirmed, deleted: 'false'}\n", b, cidr)))
	}
	err = errors.Join(err, a.fill(ctx, own...), restart(ctx, a), a.gone(ctx, replicas))
	_, uncordoned := a.Kubectl(ctx, "uncordon", "worker2")
	return errors.Join(err, uncordoned, a.free(ctx, own...), restart(ctx, a))
}

// A block is a part of Calico's IPAMBlock.
type block struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Affinity    string `json:"affinity,omitempty"`
		Allocations []*int `json:"allocations,omitempty"`
		Unallocated []int  `json:"unallocated"`
	} `json:"spec"`
}

// blocks returns the names of all blocks, or of those with one of some affinities.
func (a *arena) blocks(ctx context.Context, affinities ...string) (names []string, err error) {
	out, err := a.Kubectl(ctx, "get", "ipamblocks.crd.projectcalico.org", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []block `json:"items"`
	}
	err = json.Unmarshal([]byte(out), &list)
	for _, b := range list.Items {
		if len(affinities) == 0 || slices.Contains(affinities, b.Spec.Affinity) {
			names = append(names, b.Metadata.Name)
		}
	}
	return names, err
}

// queue changes which addresses a block gives, and in which order.
func (a *arena) queue(ctx context.Context, name, what string, change func(block) ([]int, error)) error {
	return rig.Eventually(ctx, what, func() error {
		out, err := a.Kubectl(ctx, "get", "ipamblocks.crd.projectcalico.org", name, "-o", "json")
		if err != nil {
			return err
		}
		var b, patch block
		if err := json.Unmarshal([]byte(out), &b); err != nil {
			return err
		}
		patch.Metadata = b.Metadata
		if patch.Spec.Unallocated, err = change(b); err != nil {
			return err
		}
		text, err := json.Marshal(patch)
		if err == nil {
			_, err = a.Kubectl(ctx, "patch", "ipamblocks.crd.projectcalico.org", name, "--type", "merge", "-p", string(text))
		}
		return err
	})
}

// fill has blocks give no further address.
func (a *arena) fill(ctx context.Context, names ...string) (err error) {
	for _, name := range names {
		err = errors.Join(err, a.queue(ctx, name, name+" is full", func(block) ([]int, error) { return []int{}, nil }))
	}
	return err
}

// free undoes fill.
func (a *arena) free(ctx context.Context, names ...string) (err error) {
	for _, name := range names {
		err = errors.Join(err, a.queue(ctx, name, name+" has free addresses", func(b block) ([]int, error) {
			free := b.Spec.Unallocated
			for i, owner := range b.Spec.Allocations {
				if owner == nil && !slices.Contains(free, i) {
					free = append(free, i)
				}
			}
			return free, nil
		}))
	}
	return err
}

// next waits until an address is free, and makes it the next that its block gives.
func (a *arena) next(ctx context.Context, address string) error {
	at, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	cidr := netip.PrefixFrom(at, 26).Masked()
	name := strings.NewReplacer(".", "-", "/", "-").Replace(cidr.String())
	first, last := cidr.Addr().As4(), at.As4()
	ordinal := int(last[3] - first[3])
	return a.queue(ctx, name, address+" is the next of its block", func(b block) ([]int, error) {
		free := b.Spec.Unallocated
		i := slices.Index(free, ordinal)
		if i < 0 {
			return nil, errors.New("it is not free")
		}
		return slices.Insert(slices.Delete(free, i, i+1), 0, ordinal), nil
	})
}
