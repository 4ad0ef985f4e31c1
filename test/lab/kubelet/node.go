package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	beatEvery     = 10 * time.Second // what a kubelet does by default
	leaseSeconds  = 40
	leaseSpace    = "kube-node-lease"
	kubeVersion   = "v1.36.3"
	beatTimeout   = 5 * time.Second
	beatRetry     = time.Second
	podsPerNode   = "250"
	hostnameLabel = "kubernetes.io/hostname"
)

// register creates the Node unless it exists, and reads the node's addresses. An existing Node
// keeps its labels, annotations and addresses. It retries until the API answers or ctx ends.
func (a *agent) register(ctx context.Context) error {
	for {
		node, err := a.Client.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			node, err = a.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: a.Node,
				Labels: map[string]string{
					hostnameLabel: a.Node, "kubernetes.io/os": "linux",
					"kubernetes.io/arch": runtime.GOARCH,
				},
			}}, metav1.CreateOptions{})
		}
		if err == nil {
			a.hostIPs = a.addresses(node)
			return nil
		}
		a.Log.Warn("node cannot be registered yet", "node", a.Node, "error", err)
		if !wait(ctx, beatRetry) {
			return fmt.Errorf("register node: %w", err)
		}
	}
}

// addresses returns the addresses of hostNetwork pods: NodeAddr, and with IPv6 the Node's
// InternalIP of the other family.
func (a *agent) addresses(node *corev1.Node) []netip.Addr {
	all := []netip.Addr{a.NodeAddr}
	for _, have := range node.Status.Addresses {
		addr, err := netip.ParseAddr(have.Address)
		if a.IPv6 && err == nil && have.Type == corev1.NodeInternalIP && addr.Is4() != a.NodeAddr.Is4() {
			return append(all, addr)
		}
	}
	return all
}

// beat renews the Lease and the Ready condition until ctx ends.
func (a *agent) beat(ctx context.Context) {
	for {
		once, cancel := context.WithTimeout(ctx, beatTimeout)
		err := a.beatOnce(once)
		cancel()
		pause := beatEvery
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("node's heartbeat failed", "node", a.Node, "error", err)
			pause = beatRetry
		}
		if !wait(ctx, pause) {
			return
		}
	}
}

func (a *agent) beatOnce(ctx context.Context) error {
	node, err := a.Client.CoreV1().Nodes().Get(ctx, a.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	patch, err := json.Marshal(map[string]any{"status": a.nodeStatus(node, metav1.Now())})
	if err != nil {
		return fmt.Errorf("write node's status: %w", err)
	}
	_, err = a.Client.CoreV1().Nodes().Patch(ctx, a.Node, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status")
	if err != nil {
		return fmt.Errorf("write node's status: %w", err)
	}
	return a.renew(ctx, node)
}

// nodeStatus sets the part of the status that a kubelet writes. NetworkUnavailable belongs to
// calico-node.
func (a *agent) nodeStatus(node *corev1.Node, now metav1.Time) map[string]any {
	var conditions []corev1.NodeCondition
	for _, c := range []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
		{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			Message: "the lab's kubelet is running",
		},
	} {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		for _, have := range node.Status.Conditions {
			if have.Type == c.Type && have.Status == c.Status {
				c.LastTransitionTime = have.LastTransitionTime
			}
		}
		conditions = append(conditions, c)
	}
	capacity := corev1.ResourceList{
		corev1.ResourcePods:             resource.MustParse(podsPerNode),
		corev1.ResourceCPU:              resource.MustParse("64"),
		corev1.ResourceMemory:           resource.MustParse("256Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	status := map[string]any{
		"conditions": conditions, "capacity": capacity, "allocatable": capacity,
		"nodeInfo": corev1.NodeSystemInfo{
			KubeletVersion: kubeVersion, OperatingSystem: "linux", Architecture: runtime.GOARCH,
			OSImage: "Sallyport lab", ContainerRuntimeVersion: "process://1",
		},
	}
	if a.TLS != nil {
		port := corev1.DaemonEndpoint{Port: kubeletPort}
		status["daemonEndpoints"] = corev1.NodeDaemonEndpoints{KubeletEndpoint: port}
	}
	if len(node.Status.Addresses) == 0 {
		status["addresses"] = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: a.NodeAddr.String()},
			{Type: corev1.NodeHostName, Address: a.Node},
		}
	}
	return status
}

// renew writes the node's Lease.
func (a *agent) renew(ctx context.Context, node *corev1.Node) error {
	leases := a.Client.CoordinationV1().Leases(leaseSpace)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	lease, err := leases.Get(ctx, a.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: a.Node, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: a.Node, UID: node.UID},
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &a.Node, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		return wrap("create lease", err)
	}
	if err != nil {
		return fmt.Errorf("read lease: %w", err)
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &a.Node, &seconds, &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return wrap("renew lease", err)
}
