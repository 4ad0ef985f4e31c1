package kubelet

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A network connects the pods of a node. Its methods are safe for several goroutines, and may be
// called again.
type network interface {
	// join builds the network of a pod and returns its addresses.
	join(ctx context.Context, p *pod) ([]netip.Addr, error)
	// leave removes the network of a pod and frees its addresses.
	leave(ctx context.Context, p *pod) error
	// cut removes the network of a pod as a node's loss of power does: the addresses stay allocated.
	cut(p *pod)
	// reclaim frees the addresses of pods that were deleted while no kubelet ran.
	reclaim(ctx context.Context, a *agent, pods []any)
}

func (p *pod) join(ctx context.Context) ([]netip.Addr, error) {
	if p.onNode {
		return p.hostIPs, nil
	}
	if err := p.notes.noteWire(p.wire); err != nil {
		return nil, err
	}
	return p.network.join(ctx, p)
}

func (p *pod) leave(ctx context.Context) error {
	if p.onNode {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := p.network.leave(ctx, p)
	if err == nil {
		p.notes.forgetWire(p.wire)
	} else if ctx.Err() == nil {
		p.log.Warn("pod's address is not free yet", "error", err)
	}
	return err
}

func (p *pod) cut() {
	if !p.onNode {
		p.network.cut(p)
		p.notes.forgetWire(p.wire)
	}
}

// killAll ends all processes that still run in the pod's network.
func (p *pod) killAll() {
	if !p.onNode {
		killInhabitants(p.wire.Netns)
	}
}

// A standIn is the network that Calico would build, with addresses of an allocator.
type standIn struct {
	ipam interface {
		take(ctx context.Context, family int, owner attribute) (netip.Addr, error)
		release(ctx context.Context, gone func(attribute) bool) error
	}
}

func (s standIn) join(ctx context.Context, p *pod) ([]netip.Addr, error) {
	object := p.read()
	families := []int{32}
	if p.IPv6 {
		families = append(families, 128)
	}
	var addrs []netip.Addr
	for _, family := range families {
		addr, err := s.ipam.take(ctx, family, attribute{
			Handle: handleOf(p.uid),
			Secondary: map[string]string{
				"pod": object.Name, "namespace": object.Namespace, "node": p.Node,
				"timestamp": time.Now().UTC().Format(time.RFC3339),
			},
		})
		if err != nil {
			return nil, fmt.Errorf("take an address: %w", err)
		}
		addrs = append(addrs, addr)
	}
	p.laying <- struct{}{}
	defer func() { <-p.laying }()
	return addrs, p.wire.lay(p.Netns, addrs)
}

// leave frees the addresses when nothing routes to them any more.
func (s standIn) leave(ctx context.Context, p *pod) error {
	s.cut(p)
	handle := handleOf(p.uid)
	return s.ipam.release(ctx, func(owner attribute) bool { return owner.Handle == handle })
}

func (s standIn) cut(p *pod) { p.wire.tear(p.Netns) }

func (s standIn) reclaim(ctx context.Context, a *agent, pods []any) {
	live := map[string]bool{}
	for _, o := range pods {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName == a.Node && !finished(p) {
			live[handleOf(p.UID)] = true
		}
	}
	err := s.ipam.release(ctx, func(owner attribute) bool {
		return strings.HasPrefix(owner.Handle, handlePrefix) && owner.Secondary["node"] == a.Node && !live[owner.Handle]
	})
	if err != nil {
		a.Log.Warn("addresses of pods that are gone stay taken", "node", a.Node, "error", err)
	}
}
