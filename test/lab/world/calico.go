package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// InstallCalico installs Calico in a lab that was built without it: it defines Calico's resources,
// and the nodes publish their addresses, claim their blocks and speak BGP. Pods that wait for an
// address get one.
func (l *Lab) InstallCalico(ctx context.Context) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.opts.Bare || l.mirror != nil {
		return errors.New("the lab has Calico already, or no control plane to install it in")
	}
	return l.installCalico(ctx)
}

// installCalico installs Calico. The caller holds the lock of changes, or is building the lab. The
// pools come last: once they exist, a waiting pod takes an address, and a node without a block
// would claim another block than its first.
func (l *Lab) installCalico(ctx context.Context) error {
	l.say("defining Calico's resources")
	if err := l.defineCalico(ctx); err != nil {
		return err
	}
	if err := l.createCalico(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	nodes := slices.Collect(maps.Values(l.nodes))
	l.mu.Unlock()
	for _, n := range nodes {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": n.notes()}})
		if err != nil {
			return err
		}
		if _, err := l.kube.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("annotate node %s: %w", n.Name, err)
		}
		if err := l.claimBlocks(ctx, n.Host); err != nil {
			return err
		}
	}
	if err := l.createPools(ctx); err != nil {
		return err
	}
	return l.startMirror(ctx)
}

// notes returns the annotations that calico-node writes to a Node.
func (h Host) notes() map[string]string {
	notes := map[string]string{"projectcalico.org/IPv4Address": h.Addr.String()}
	if h.Addr6.IsValid() {
		notes["projectcalico.org/IPv6Address"] = h.Addr6.String()
	}
	return notes
}

// claimBlocks gives a node its first blocks, unless it has podCIDRs.
func (l *Lab) claimBlocks(ctx context.Context, h Host) error {
	if l.opts.HostLocal {
		return nil
	}
	for _, b := range h.Blocks {
		if err := l.claimBlock(ctx, h.Name, b); err != nil {
			return err
		}
	}
	return nil
}

// createCalico creates the objects of a fresh installation of Calico, except for the pools.
func (l *Lab) createCalico(ctx context.Context) error {
	for _, o := range []*unstructured.Unstructured{
		calicoObject("ClusterInformation", "default", map[string]any{
			"clusterGUID": strings.Repeat("5a", 16), "clusterType": "k8s,bgp,kdd", "calicoVersion": "v3.32.1",
			"datastoreReady": true, "variant": "Calico",
		}),
		calicoObject("BGPConfiguration", "default", map[string]any{
			"asNumber": int64(l.opts.AS), "nodeToNodeMeshEnabled": l.opts.Mesh, "logSeverityScreen": "Info",
		}),
	} {
		if err := l.createOne(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) createPools(ctx context.Context) error {
	if err := l.createOne(ctx, poolObject("default-ipv4-ippool", l.opts.pool4(), 26)); err != nil || !l.opts.IPv6 {
		return err
	}
	return l.createOne(ctx, poolObject("default-ipv6-ippool", l.opts.pool6(), 122))
}

// claimBlock gives a node a block, with the objects that Calico's IPAM would write.
func (l *Lab) claimBlock(ctx context.Context, node string, b netip.Prefix) error {
	size := 1 << (b.Addr().BitLen() - b.Bits())
	free := make([]any, size)
	for i := range free {
		free[i] = int64(i)
	}
	block := calicoObject("IPAMBlock", dashed(b), map[string]any{
		"cidr": b.String(), "affinity": "host:" + node, "strictAffinity": false, "deleted": false,
		"allocations": make([]any, size), "unallocated": free, "attributes": []any{},
	})
	version := "4"
	if b.Addr().Is6() {
		version = "6"
	}
	affinity := calicoObject("BlockAffinity", node+"-"+dashed(b), map[string]any{
		"cidr": b.String(), "node": node, "state": "confirmed", "deleted": "false", "type": "host",
	})
	affinity.SetLabels(map[string]string{
		"projectcalico.org/affinity-type": "host", "projectcalico.org/ip-version": version,
	})
	if err := l.createOne(ctx, block); err != nil {
		return err
	}
	return l.createOne(ctx, affinity)
}

// Allocate records addresses as those of a namespace's pods, as they stay recorded when such pods
// vanish. Nothing answers there.
func (l *Lab) Allocate(ctx context.Context, namespace string, addrs ...netip.Addr) error {
	blocks := l.dynamic.Resource(calicoResource("ipamblocks"))
	for _, addr := range addrs {
		bits := 26
		if addr.Is6() {
			bits = 122
		}
		cidr := netip.PrefixFrom(addr, bits).Masked()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			block, err := blocks.Get(ctx, dashed(cidr), metav1.GetOptions{})
			if err != nil {
				return err
			}
			spec, _, err := unstructured.NestedMap(block.Object, "spec")
			if err != nil {
				return err
			}
			ordinal := int64(0)
			for a := cidr.Addr(); a != addr; a = a.Next() {
				ordinal++
			}
			allocations, _ := spec["allocations"].([]any)
			attributes, _ := spec["attributes"].([]any)
			free, _ := spec["unallocated"].([]any)
			if ordinal >= int64(len(allocations)) || allocations[ordinal] != nil {
				return nil // somebody has it
			}
			allocations[ordinal] = int64(len(attributes))
			spec["allocations"] = allocations
			spec["attributes"] = append(attributes, map[string]any{"handle_id": "leaked-" + addr.String(), "secondary": map[string]any{"namespace": namespace, "pod": "leaked"}})
			spec["unallocated"] = slices.DeleteFunc(free, func(o any) bool { return o == ordinal })
			block.Object["spec"] = spec
			_, err = blocks.Update(ctx, block, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return fmt.Errorf("allocate %s: %w", addr, err)
		}
	}
	return nil
}

// releaseBlocks releases the blocks of a node that has left the cluster.
func (l *Lab) releaseBlocks(ctx context.Context, node string) error {
	affinities := l.dynamic.Resource(calicoResource("blockaffinities"))
	list, err := affinities.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, a := range list.Items {
		if owner, _, _ := unstructured.NestedString(a.Object, "spec", "node"); owner != node {
			continue
		}
		cidr, _, _ := unstructured.NestedString(a.Object, "spec", "cidr")
		if b, err := netip.ParsePrefix(cidr); err == nil {
			if err := l.dynamic.Resource(calicoResource("ipamblocks")).Delete(ctx, dashed(b), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("release block %s: %w", b, err)
			}
		}
		if err := affinities.Delete(ctx, a.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("release block affinity %s: %w", a.GetName(), err)
		}
	}
	return nil
}

func (l *Lab) createOne(ctx context.Context, o *unstructured.Unstructured) error {
	plural := map[string]string{
		"ClusterInformation": "clusterinformations", "BGPConfiguration": "bgpconfigurations",
		"IPPool": "ippools", "IPAMBlock": "ipamblocks", "BlockAffinity": "blockaffinities",
	}[o.GetKind()]
	if _, err := l.dynamic.Resource(calicoResource(plural)).Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func poolObject(name string, p netip.Prefix, blockSize int64) *unstructured.Unstructured {
	return calicoObject("IPPool", name, map[string]any{
		"cidr": p.String(), "blockSize": blockSize, "ipipMode": "Never", "vxlanMode": "Never",
		"natOutgoing": false, "nodeSelector": "all()", "allowedUses": []any{"Workload", "Tunnel"},
	})
}

func calicoObject(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "crd.projectcalico.org/v1",
		"kind":       kind,
		"metadata":   map[string]any{"name": name},
		"spec":       spec,
	}}
}

// dashed returns a prefix in a form that is allowed as an object's name.
func dashed(p netip.Prefix) string {
	return strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(p.String())
}
