package kubelet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const calicoGroup = "crd.projectcalico.org"

var (
	affinities  = schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "blockaffinities"}
	ipamBlocks  = schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "ipamblocks"}
	ipamHandles = schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "ipamhandles"}
	ipamConfigs = schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "ipamconfigs"}
	ipPools     = schema.GroupVersionResource{Group: calicoGroup, Version: "v1", Resource: "ippools"}
)

// handlePrefix begins the handles of pods: the network's name in Calico's CNI configuration. The
// id of the pod's sandbox container follows.
const handlePrefix = "k8s-pod-network."

// handleOf returns the handle of a pod. A sandbox of the lab has no id of its own, so one is made
// of the pod's UID: the handle names one pod for ever.
func handleOf(uid types.UID) string {
	return fmt.Sprintf("%s%x", handlePrefix, sha256.Sum256([]byte(uid)))
}

// errExhausted is the error when no pool has a free address.
var errExhausted = errors.New("no IPPool has a free address")

// errLost is the error when another writer took what was free when it was read.
var errLost = errors.New("others took the addresses that were free")

// An ipam allocates the addresses of a node's blocks. The IPAMBlock objects are the only truth:
// every change is an update of the version that was read, so no two callers, on any nodes, get one
// address.
type ipam struct {
	node    string
	first   []netip.Prefix // the node claims the blocks that begin here before others
	dynamic dynamic.Interface
	mu      sync.Mutex // one change at a time: our own callers should not conflict with each other
}

// take returns the pod's address of the family, the same at each call. It allocates from the
// node's confirmed blocks, then claims a new block, then borrows from another node's unless the
// affinity is strict, as Calico does.
func (m *ipam) take(ctx context.Context, family int, owner attribute) (netip.Addr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range 100 { // others may be quicker with the block that looked free
		addr, err := m.attempt(ctx, family, owner)
		if !errors.Is(err, errLost) {
			return addr, err
		}
	}
	return netip.Addr{}, errLost
}

// note records in a pod's IPAMHandle that the pod has an address of a block. The addresses of both
// families have one handle.
func (m *ipam) note(ctx context.Context, handle, block string) error {
	client, name := m.dynamic.Resource(ipamHandles), strings.ToLower(handle)
	spec := map[string]any{"handleID": handle, "deleted": false, "block": map[string]any{block: int64(1)}}
	_, err := client.Create(ctx, object("IPAMHandle", name, spec), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch := fmt.Appendf(nil, `{"spec":{"block":{%q:1}}}`, block)
		_, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return wrap("note IPAMHandle", err)
}

func (m *ipam) attempt(ctx context.Context, family int, owner attribute) (netip.Addr, error) {
	// Read the pools before the blocks: whoever sees a pool then also sees the blocks that were
	// claimed before the pool existed.
	pools, err := m.pools(ctx, family)
	if err != nil {
		return netip.Addr{}, err
	}
	blocks, err := m.blocks(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, b := range blocks {
		if addr, ok := b.spec.held(owner.Handle); ok && addr.BitLen() == family {
			return addr, m.note(ctx, owner.Handle, b.spec.CIDR)
		}
	}
	own, err := m.own(ctx, pools)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, b := range blocks {
		if !slices.Contains(own, b.spec.CIDR) {
			continue
		}
		addr, err := m.takeFrom(ctx, b.object, "host:"+m.node, owner)
		if err != nil || addr.IsValid() {
			return addr, err
		}
	}
	cidr, err := m.claim(ctx, pools, blocks)
	if errors.Is(err, errExhausted) {
		if strict, err := m.strict(ctx); err != nil || strict {
			return netip.Addr{}, errors.Join(err, errExhausted)
		}
		return m.borrow(ctx, pools, blocks, owner)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	object, err := m.dynamic.Resource(ipamBlocks).Get(ctx, blockName(cidr), metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read claimed block %s: %w", cidr, err)
	}
	addr, err := m.takeFrom(ctx, object, "host:"+m.node, owner)
	if err == nil && !addr.IsValid() {
		err = errLost
	}
	return addr, err
}

// release frees the addresses of every owner that is gone, in every block, and deletes the owners'
// handles.
func (m *ipam) release(ctx context.Context, gone func(attribute) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	blocks, err := m.blocks(ctx)
	if err != nil {
		return err
	}
	handles := map[string]bool{}
	var errs []error
	for _, b := range blocks {
		if !slices.ContainsFunc(b.spec.Attributes, gone) {
			continue
		}
		for _, owner := range b.spec.Attributes {
			if gone(owner) {
				handles[owner.Handle] = true
			}
		}
		_, err := m.change(ctx, b.object, func(b *block) bool { return b.release(gone) })
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for handle := range handles {
		err := m.dynamic.Resource(ipamHandles).Delete(ctx, strings.ToLower(handle), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete IPAMHandle: %w", err))
		}
	}
	return errors.Join(errs...)
}

// takeFrom allocates an address of one block as long as the node has its affinity. The zero Addr
// means that none is free.
func (m *ipam) takeFrom(ctx context.Context, object *unstructured.Unstructured, affinity string,
	owner attribute,
) (netip.Addr, error) {
	var got netip.Addr
	var cidr string
	took, err := m.change(ctx, object, func(b *block) (ok bool) {
		if !b.Deleted && b.Affinity == affinity {
			got, ok = b.take(owner)
		}
		cidr = b.CIDR
		return ok
	})
	if !took {
		return netip.Addr{}, err
	}
	return got, m.note(ctx, owner.Handle, cidr)
}

// change applies edit to an IPAMBlock and updates the version it read; after a conflict it reads
// again. It returns false if edit changed nothing or the block is gone.
func (m *ipam) change(ctx context.Context, object *unstructured.Unstructured, edit func(*block) bool) (bool, error) {
	name := object.GetName()
	for range 1000 { // each lost turn is someone else's success
		b, err := parseBlock(object)
		if err != nil {
			return false, err
		}
		if !edit(&b) {
			return false, nil
		}
		if err := b.into(object); err != nil {
			return false, err
		}
		_, err = m.dynamic.Resource(ipamBlocks).Update(ctx, object, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			object, err = m.dynamic.Resource(ipamBlocks).Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				continue
			}
		}
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, wrap("update IPAMBlock", err)
	}
	return false, fmt.Errorf("update IPAMBlock %s: every attempt met a newer version", name)
}

// claim gives the node a block of a pool in three steps: a pending affinity; the IPAMBlock, which
// decides between nodes that want the same block; the confirmed affinity.
func (m *ipam) claim(ctx context.Context, pools []pool, blocks []storedBlock) (netip.Prefix, error) {
	taken := map[netip.Prefix]bool{}
	for _, b := range blocks {
		if cidr, err := netip.ParsePrefix(b.spec.CIDR); err == nil {
			taken[cidr] = b.spec.Affinity != "host:"+m.node
		}
	}
	for _, pool := range pools {
		for cidr := range m.candidates(pool) {
			if taken[cidr] {
				continue
			}
			// This may be our own block: after a claim that was interrupted, or because it is full. Only the
			// first is worth another claim.
			if slices.ContainsFunc(blocks, func(b storedBlock) bool {
				return b.spec.CIDR == cidr.String() && len(b.spec.Unallocated) == 0
			}) {
				continue
			}
			won, err := m.claimBlock(ctx, cidr)
			if err != nil {
				return netip.Prefix{}, err
			}
			if won {
				return cidr, nil
			}
		}
	}
	return netip.Prefix{}, errExhausted
}

// candidates yields the blocks of a pool in the order in which the node tries to claim them.
func (m *ipam) candidates(p pool) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, f := range m.first {
			if p.cidr.Contains(f.Addr()) && p.cidr.Bits() <= p.blockBits &&
				!yield(netip.PrefixFrom(f.Addr(), p.blockBits).Masked()) {
				return
			}
		}
		blocksOf(p.cidr, p.blockBits, m.node)(yield)
	}
}

// Claim gives a node a block as the node's first pod there does, and leaves it empty, as it is
// after the last pod. It returns an error if another node has the block.
func Claim(ctx context.Context, client dynamic.Interface, node string, block netip.Prefix) error {
	m := &ipam{node: node, dynamic: client}
	for range 100 { // a kubelet may claim it at the same time
		won, err := m.claimBlock(ctx, block)
		if won || err != nil && !errors.Is(err, errLost) {
			return err
		}
		if err == nil {
			return fmt.Errorf("claim block %s for node %s: another node has it", block, node)
		}
	}
	return errLost
}

// Reclaim frees the addresses of the pods that are gone with a deleted node, in every block, and
// releases the node's blocks that have no address in use, as Calico's kube-controllers do. Other
// nodes may have borrowed from the rest.
func Reclaim(ctx context.Context, client dynamic.Interface, node string, gone func(namespace, pod string) bool) error {
	m := &ipam{node: node, dynamic: client}
	err := m.release(ctx, func(owner attribute) bool {
		return owner.Secondary["node"] == node && gone(owner.Secondary["namespace"], owner.Secondary["pod"])
	})
	if err != nil {
		return err
	}
	list, err := client.Resource(affinities).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list BlockAffinities: %w", err)
	}
	var errs []error
	for _, a := range list.Items {
		if owner, _, _ := unstructured.NestedString(a.Object, "spec", "node"); owner == node {
			errs = append(errs, m.releaseBlock(ctx, &a))
		}
	}
	return errors.Join(errs...)
}

// releaseBlock deletes an affinity of the node, with its block, unless an address of the block is
// in use.
func (m *ipam) releaseBlock(ctx context.Context, affinity *unstructured.Unstructured) error {
	cidr, _, _ := unstructured.NestedString(affinity.Object, "spec", "cidr")
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return fmt.Errorf("BlockAffinity %s: %w", affinity.GetName(), err)
	}
	blocks := m.dynamic.Resource(ipamBlocks)
	object, err := blocks.Get(ctx, blockName(prefix), metav1.GetOptions{})
	if err == nil {
		b, err := parseBlock(object)
		if err != nil {
			return err
		}
		if b.Affinity == "host:"+m.node {
			if len(b.Attributes) > 0 {
				return nil
			}
			// Whoever took an address since then has made another version.
			version := object.GetResourceVersion()
			err := blocks.Delete(ctx, object.GetName(),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
			if apierrors.IsConflict(err) {
				return nil
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("release block %s: %w", cidr, err)
			}
		}
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("release block %s: %w", cidr, err)
	}
	err = m.dynamic.Resource(affinities).Delete(ctx, affinity.GetName(), metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return wrap("release BlockAffinity", err)
}

func (m *ipam) claimBlock(ctx context.Context, cidr netip.Prefix) (bool, error) {
	client := m.dynamic.Resource(affinities)
	name := affinityName(m.node, cidr)
	spec := map[string]any{"state": "pending", "node": m.node, "cidr": cidr.String(), "deleted": "false"}
	affinity, err := client.Create(ctx, object("BlockAffinity", name, spec), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		affinity, err = client.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("claim block %s: %w", cidr, err)
	}
	have, _, _ := unstructured.NestedMap(affinity.Object, "spec")
	if have["state"] != "pending" && have["state"] != "confirmed" || fmt.Sprint(have["deleted"]) == "true" {
		return false, nil // on its way out
	}
	var b block
	_, err = m.dynamic.Resource(ipamBlocks).Create(ctx, newBlock(cidr, m.node).object(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var have *unstructured.Unstructured
		if have, err = m.dynamic.Resource(ipamBlocks).Get(ctx, blockName(cidr), metav1.GetOptions{}); err == nil {
			b, err = parseBlock(have)
		}
		if err == nil && b.Affinity != "host:"+m.node {
			version := affinity.GetResourceVersion()
			err = client.Delete(ctx, name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
				err = nil
			}
			return false, wrap("give up lost block", err)
		}
	}
	if err != nil {
		return false, fmt.Errorf("claim block %s: %w", cidr, err)
	}
	spec["state"] = "confirmed"
	affinity.Object["spec"] = spec
	if _, err := client.Update(ctx, affinity, metav1.UpdateOptions{}); apierrors.IsConflict(err) ||
		apierrors.IsNotFound(err) {
		return false, errLost
	} else if err != nil {
		return false, fmt.Errorf("confirm block %s: %w", cidr, err)
	}
	return true, nil
}

// strict reports whether nodes may not borrow addresses: the strict affinity of the IPAMConfig.
func (m *ipam) strict(ctx context.Context) (bool, error) {
	config, err := m.dynamic.Resource(ipamConfigs).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read IPAMConfig: %w", err)
	}
	strict, _, _ := unstructured.NestedBool(config.Object, "spec", "strictAffinity")
	return strict, nil
}

// borrow allocates an address of another node's block.
func (m *ipam) borrow(ctx context.Context, pools []pool, blocks []storedBlock, owner attribute) (netip.Addr, error) {
	for _, b := range blocks {
		cidr, err := netip.ParsePrefix(b.spec.CIDR)
		if err != nil || !slices.ContainsFunc(pools, func(p pool) bool { return p.cidr.Contains(cidr.Addr()) }) {
			continue
		}
		addr, err := m.takeFrom(ctx, b.object, b.spec.Affinity, owner)
		if err != nil || addr.IsValid() {
			return addr, err
		}
	}
	return netip.Addr{}, errExhausted
}

// own lists the CIDRs of the node's confirmed blocks in the pools. If the pool of a block was
// deleted or disabled, the block keeps its pods, and gets no new pods.
func (m *ipam) own(ctx context.Context, pools []pool) ([]string, error) {
	list, err := m.dynamic.Resource(affinities).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list BlockAffinities: %w", err)
	}
	var own []string
	for _, item := range list.Items {
		spec, _, _ := unstructured.NestedMap(item.Object, "spec")
		cidr, err := netip.ParsePrefix(fmt.Sprint(spec["cidr"]))
		kind, _ := spec["type"].(string)
		inside := func(p pool) bool { return p.cidr.Contains(cidr.Addr()) }
		if err != nil || !slices.ContainsFunc(pools, inside) || spec["node"] != m.node ||
			spec["state"] != "confirmed" ||
			fmt.Sprint(spec["deleted"]) == "true" || kind != "" && kind != "host" {
			continue
		}
		own = append(own, cidr.String())
	}
	return own, nil
}

type storedBlock struct {
	object *unstructured.Unstructured
	spec   block
}

func (m *ipam) blocks(ctx context.Context) ([]storedBlock, error) {
	list, err := m.dynamic.Resource(ipamBlocks).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list IPAMBlocks: %w", err)
	}
	var blocks []storedBlock
	for i := range list.Items {
		if b, err := parseBlock(&list.Items[i]); err == nil {
			blocks = append(blocks, storedBlock{&list.Items[i], b})
		}
	}
	slices.SortFunc(blocks, func(a, b storedBlock) int { return cmp.Compare(a.object.GetName(), b.object.GetName()) })
	return blocks, nil
}

type pool struct {
	name      string
	cidr      netip.Prefix
	blockBits int
}

// pools lists the pools of a family whose nodeSelector is all(). Other selectors are not
// supported, and their pools not used.
func (m *ipam) pools(ctx context.Context, family int) ([]pool, error) {
	list, err := m.dynamic.Resource(ipPools).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list IPPools: %w", err)
	}
	var pools []pool
	for _, item := range list.Items {
		spec, _, _ := unstructured.NestedMap(item.Object, "spec")
		cidr, err := netip.ParsePrefix(fmt.Sprint(spec["cidr"]))
		selector, _ := spec["nodeSelector"].(string)
		if err != nil || cidr.Addr().BitLen() != family || spec["disabled"] == true ||
			selector != "" && strings.ReplaceAll(selector, " ", "") != "all()" {
			continue
		}
		size := 26 // Calico's default: 64 addresses in both families
		if family == 128 {
			size = 122
		}
		if n, ok := spec["blockSize"]; ok {
			if size, err = strconv.Atoi(fmt.Sprint(n)); err != nil {
				continue
			}
		}
		pools = append(pools, pool{item.GetName(), cidr.Masked(), size})
	}
	slices.SortFunc(pools, func(a, b pool) int { return cmp.Compare(a.name, b.name) })
	return pools, nil
}

func parseBlock(object *unstructured.Unstructured) (block, error) {
	var b block
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &b)
	}
	if err != nil {
		return block{}, fmt.Errorf("IPAMBlock %s: %w", object.GetName(), err)
	}
	return b, nil
}

// into writes b over the spec of object. Fields that b does not have stay.
func (b block) into(object *unstructured.Unstructured) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&b)
	if err != nil {
		return fmt.Errorf("write IPAMBlock %s: %w", object.GetName(), err)
	}
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	delete(spec, "sequenceNumberForAllocation") // absent when empty
	maps.Copy(spec, fields)
	object.Object["spec"] = spec
	return nil
}

func (b block) object() *unstructured.Unstructured {
	cidr := netip.MustParsePrefix(b.CIDR)
	o := object("IPAMBlock", blockName(cidr),
		map[string]any{"affinityClaimTime": time.Now().UTC().Format(time.RFC3339)})
	_ = b.into(o) // a fresh block holds nothing that cannot be converted
	return o
}

func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": calicoGroup + "/v1", "kind": kind,
		"metadata": map[string]any{"name": name},
		"spec":     spec,
	}}
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
