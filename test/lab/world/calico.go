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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"sallyport/test/lab/kubelet"
)

// InstallCalico installs Calico in a lab that was built without it: it defines Calico's resources,
// and the nodes publish their addresses and speak BGP. Pods that wait for an address get one.
func (l *Lab) InstallCalico(ctx context.Context) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.opts.Bare || l.installed {
		return errors.New("the lab has Calico already, or no control plane to install it in")
	}
	return l.installCalico(ctx)
}

// installCalico installs Calico. The caller holds the lock of changes, or is building the lab.
func (l *Lab) installCalico(ctx context.Context) error {
	if err := l.calico.install(ctx); err != nil {
		return err
	}
	l.installed = true
	return nil
}

// installStandIn installs the stand-in.
func (l *Lab) installStandIn(ctx context.Context) error {
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
		if _, err := l.kube.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("annotate node %s: %w", n.Name, err)
		}
	}
	if err := l.createPools(ctx); err != nil {
		return err
	}
	if err := l.startMirror(ctx); err != nil {
		return err
	}
	l.background.Go(l.reclaim)
	return nil
}

// notes returns the annotations that calico-node writes to a Node.
func (h Host) notes() map[string]string {
	notes := map[string]string{"projectcalico.org/IPv4Address": h.Addr.String()}
	if h.Addr6.IsValid() {
		notes["projectcalico.org/IPv6Address"] = h.Addr6.String()
	}
	return notes
}

// ClaimBlocks gives nodes their first blocks, empty. Otherwise a node claims them for its first
// pod, and announces nothing before. An empty block stays after the last pod, too. With real Calico
// the node's first pods then get addresses of the block.
func (l *Lab) ClaimBlocks(ctx context.Context, nodes ...string) error {
	if !l.installed || l.opts.HostLocal {
		return errors.New("the lab has no Calico yet, or host-local IPAM: its nodes claim no blocks")
	}
	for _, name := range nodes {
		n, err := l.node(name)
		if err != nil {
			return err
		}
		for _, b := range n.Blocks {
			if b.Addr().Is4() && l.opts.IPv6Only {
				continue
			}
			if err := kubelet.Claim(ctx, l.dynamic, name, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// reclaim takes back the addresses and blocks of deleted nodes until the lab goes down, as Calico's
// kube-controllers do.
func (l *Lab) reclaim() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last string // the last error, which is logged only once
	for {
		select {
		case <-l.life.Done():
			return
		case <-tick.C:
		}
		said := ""
		if err := l.reclaimOnce(l.life); err != nil && l.life.Err() == nil {
			said = err.Error()
		}
		if said != "" && said != last {
			l.log.Warn("blocks of nodes that left are not released", "err", said)
		}
		last = said
	}
}

func (l *Lab) reclaimOnce(ctx context.Context) error {
	v, err := l.mirror.view()
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, a := range v.affinities {
		if a.Type != "virtual" {
			left[a.Node] = true
		}
	}
	for _, n := range v.nodes {
		delete(left, n.name)
	}
	var failed []error
	for name := range left {
		// The view of nodes may be older than that of affinities.
		if _, err := l.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			failed = append(failed, err)
			continue
		}
		pods, err := l.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + name})
		if err != nil {
			failed = append(failed, err)
			continue
		}
		failed = append(failed, kubelet.Reclaim(ctx, l.dynamic, name, func(namespace, pod string) bool {
			return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
				return p.Namespace == namespace && p.Name == pod
			})
		}))
	}
	return errors.Join(failed...)
}

// createCalico creates the objects of a fresh installation of Calico, except for the pools.
func (l *Lab) createCalico(ctx context.Context) error {
	for _, o := range []*unstructured.Unstructured{
		calicoObject("ClusterInformation", "default", map[string]any{
			"clusterGUID": strings.Repeat("5a", 16), "clusterType": "k8s,bgp,kdd", "calicoVersion": "v3.28.5",
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
		handle := "leaked-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr.String())
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
			spec["attributes"] = append(attributes,
				map[string]any{
					"handle_id": handle,
					"secondary": map[string]any{"namespace": namespace, "pod": "leaked"},
				})
			spec["unallocated"] = slices.DeleteFunc(free, func(o any) bool { return o == ordinal })
			block.Object["spec"] = spec
			_, err = blocks.Update(ctx, block, metav1.UpdateOptions{})
			return err
		})
		if err == nil {
			err = l.createOne(ctx, calicoObject("IPAMHandle", handle, map[string]any{
				"handleID": handle, "deleted": false, "block": map[string]any{cidr.String(): int64(1)},
			}))
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("allocate %s: %w", addr, err)
		}
	}
	return nil
}

func (l *Lab) createOne(ctx context.Context, o *unstructured.Unstructured) error {
	plural := map[string]string{
		"ClusterInformation": "clusterinformations", "BGPConfiguration": "bgpconfigurations",
		"IPPool": "ippools", "IPAMHandle": "ipamhandles",
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
