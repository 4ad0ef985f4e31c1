package world

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sallyport/test/lab/kubelet"
)

// Calico says what gives the pods of a lab their network, and its nodes their BGP.
type Calico string

// StandIn is quick: our definitions of Calico's resources, our allocation of addresses, and BIRD
// configured as Calico configures it. Real is Calico itself.
const (
	StandIn Calico = "stand-in"
	Real    Calico = "real"
)

// A calico gives the pods of a lab their network and the nodes their BGP.
type calico interface {
	// fetch makes ready what is fetched or compiled once for all labs.
	fetch(ctx context.Context) error
	// install installs Calico in the cluster, and on the nodes that are there already.
	install(ctx context.Context) error
	// node returns a node on which Calico can start.
	node(h Host) (*node, error)
	// complete adds to a Node object what is there from its creation on.
	complete(h Host, o *corev1.Node)
	// join starts Calico on a node whose object exists, after install.
	join(ctx context.Context, n *node) error
	// plugin returns the CNI plugin of a node. Without one, the kubelet makes the network of pods.
	plugin(h Host) *kubelet.CNI
	// restart stops Calico on a node, and starts it again after a time.
	restart(ctx context.Context, n *node, down time.Duration) error
	// stop ends Calico on a node for good.
	stop(n *node) error
}

// A standIn is the stand-in for Calico.
type standIn struct{ *Lab }

func (s standIn) fetch(context.Context) error       { return nil }
func (s standIn) install(ctx context.Context) error { return s.installStandIn(ctx) }
func (s standIn) node(h Host) (*node, error)        { return s.newNode(h) }
func (s standIn) plugin(Host) *kubelet.CNI          { return nil }
func (s standIn) stop(n *node) error                { return n.stopBird() }

func (s standIn) complete(h Host, o *corev1.Node) {
	o.Status.Conditions = []corev1.NodeCondition{networkAvailable(true)}
	if s.installed {
		o.Annotations = h.notes()
	}
}

// join leaves the start of BIRD to the mirror, which knows its configuration.
func (s standIn) join(context.Context, *node) error { return nil }

func (s standIn) restart(ctx context.Context, n *node, down time.Duration) error {
	available := func(up bool) error {
		if s.opts.Bare {
			return nil
		}
		return s.sayNetworkAvailable(context.WithoutCancel(ctx), n.Name, up)
	}
	if err := available(false); err != nil {
		return err
	}
	if err := n.holdBird(); err != nil {
		return err
	}
	select {
	case <-time.After(down):
	case <-ctx.Done(): // up again all the same
	}
	return errors.Join(ctx.Err(), n.freeBird(s.Lab), available(true))
}
