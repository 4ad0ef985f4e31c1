package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/test/lab/bird"
	"sallyport/test/lab/debian"
	"sallyport/test/lab/kubelet"
)

const controlPlaneRole = "node-role.kubernetes.io/control-plane"

// node is a running node of the cluster: its kubelet, and a BIRD for each family.
type node struct {
	Host
	stop context.CancelFunc // ends the kubelet
	gone chan struct{}      // closed when the kubelet has ended

	mu    sync.Mutex // guards what follows
	birds []*daemon  // of the stand-in
	parts []*service // of real Calico
}

// daemon is one BIRD. Its node's lock guards it.
type daemon struct {
	name    string // bird or bird6, and the node
	program string // of the right version and family
	client  string // birdc or birdc6
	dir     string
	ns      string
	source  netip.Addr
	config  []byte   // as last written
	process *process // nil while it is down
	held    bool     // down on purpose: not to be started by a new configuration
}

// joinNode makes a host a node: it creates the Node object, and starts Calico and the kubelet.
func (l *Lab) joinNode(ctx context.Context, h Host) error {
	object := l.nodeObject(h)
	l.calico.complete(h, object)
	var podCIDRs []netip.Prefix
	if l.opts.HostLocal {
		podCIDRs = h.Blocks
		for _, p := range podCIDRs {
			object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, p.String())
		}
		object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	}
	if _, err := l.kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("register node %s: %w", h.Name, err)
	}
	n, err := l.calico.node(h)
	if err != nil {
		return err
	}
	if l.installed {
		if err := l.calico.join(ctx, n); err != nil {
			return errors.Join(err, l.calico.stop(n))
		}
	}
	c, err := l.clientsFrom(h.Netns)
	if err != nil {
		return err
	}
	scratch := filepath.Join(l.path("nodes", h.Name), "kubelet")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return err
	}
	serving, err := l.ca.kubelet(h)
	if err != nil {
		return err
	}
	life, stop := context.WithCancel(l.life)
	n.stop = stop
	l.background.Go(func() {
		defer close(n.gone)
		err := kubelet.Run(life, kubelet.Config{
			Node: h.Name, Netns: h.Netns, NetnsPrefix: h.Netns, Client: c.kube, Dynamic: c.dynamic,
			ImagesFile: l.path("images.json"),
			Dir:        scratch, NodeAddr: l.addrs(h)[0], IPv6: l.opts.IPv6, PodCIDRs: podCIDRs, FirstBlocks: h.Blocks,
			CNI: l.calico.plugin(h), TLS: serving, Log: l.log,
		})
		if err != nil && life.Err() == nil {
			l.log.Error("kubelet ended", "node", h.Name, "err", err)
		}
	})
	l.mu.Lock()
	l.nodes[h.Name] = n
	l.mu.Unlock()
	l.mirror.knock()
	return nil
}

// newNode prepares the BIRDs of a node. They start when they are configured.
func (l *Lab) newNode(h Host) (*node, error) {
	n := &node{Host: h, gone: make(chan struct{}), stop: func() {}}
	programs, err := debian.BIRD(l.life, l.opts.Bird, l.progress)
	if err != nil {
		return nil, err
	}
	for _, addr := range n.addrs() {
		d := &daemon{name: "bird-" + h.Name, ns: h.Netns, source: addr, program: "bird", client: "birdc"}
		if addr.Is6() {
			d.name = "bird6-" + h.Name
			if l.opts.Bird == 1 {
				d.program, d.client = "bird6", "birdc6"
			}
		}
		d.dir = l.path("nodes", h.Name, fmt.Sprint(family(addr)))
		d.program, d.client = filepath.Join(programs, d.program), filepath.Join(programs, d.client)
		if err := os.MkdirAll(d.dir, 0o700); err != nil {
			return nil, err
		}
		n.birds = append(n.birds, d)
	}
	return n, nil
}

// addrs returns a node's addresses in the families of the cluster.
func (l *Lab) addrs(h Host) []netip.Addr {
	if l.opts.IPv6Only {
		return []netip.Addr{h.Addr6.Addr()}
	}
	return h.addrs()
}

// addrs returns the source addresses of the node's BIRDs.
func (h Host) addrs() []netip.Addr {
	addrs := []netip.Addr{h.Addr.Addr()}
	if h.Addr6.IsValid() {
		addrs = append(addrs, h.Addr6.Addr())
	}
	return addrs
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 4
	}
	return 6
}

func (l *Lab) nodeObject(h Host) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: h.Name,
			Labels: map[string]string{
				corev1.LabelHostname:   h.Name,
				corev1.LabelOSStable:   "linux",
				corev1.LabelArchStable: runtime.GOARCH,
			},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: h.Name}},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("64"),
				corev1.ResourceMemory: resource.MustParse("256Gi"),
				corev1.ResourcePods:   resource.MustParse("500"),
			},
		},
	}
	n.Status.Allocatable = n.Status.Capacity
	for _, a := range l.addrs(h) {
		n.Status.Addresses = append(n.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	if h.Name == Master {
		n.Labels[controlPlaneRole] = ""
		n.Spec.Taints = []corev1.Taint{{Key: controlPlaneRole, Effect: corev1.TaintEffectNoSchedule}}
	}
	return n
}

// networkAvailable returns the condition with which calico-node reports whether it runs.
func networkAvailable(up bool) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue,
		Reason: "CalicoIsDown", Message: "Calico is shutting down on this node",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}
	if up {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "CalicoIsUp", "Calico is running on this node"
	}
	return c
}

func (l *Lab) sayNetworkAvailable(ctx context.Context, node string, up bool) error {
	patch, err := json.Marshal(
		map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{networkAvailable(up)}}})
	if err != nil {
		return err
	}
	_, err = l.kube.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status")
	return err
}

func (l *Lab) awaitReady(ctx context.Context, name string) error {
	return await(ctx, "node "+name+" to be Ready", patience, func(ctx context.Context) (bool, error) {
		if err := l.partsAlive(); err != nil {
			return false, &fatalError{err}
		}
		n, err := l.kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && ready(n), err
	})
}

// ready reports whether a node is Ready and has lost the taint of new nodes, which keeps pods
// away.
func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
}

// node returns a running node.
func (l *Lab) node(name string) (*node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.nodes[name]
	if !ok {
		return nil, fmt.Errorf("no node is called %q", name)
	}
	return n, nil
}

// AddNode adds a host that joins the cluster, and waits until it is Ready.
func (l *Lab) AddNode(ctx context.Context, name string) (Host, error) {
	l.changing.Lock()
	defer l.changing.Unlock()
	if err := checkNode(name); err != nil {
		return Host{}, err
	}
	if _, taken := l.Host(name); taken {
		return Host{}, fmt.Errorf("node %s is there already", name)
	}
	h, err := l.opts.next(name, l.Hosts())
	if err != nil {
		return Host{}, err
	}
	l.mu.Lock()
	l.hosts = append(l.hosts, h)
	l.mu.Unlock()
	err = l.addNode(ctx, h)
	if err != nil {
		return Host{}, errors.Join(fmt.Errorf("add node %s: %w", name, err), l.discard(context.WithoutCancel(ctx), h))
	}
	return h, nil
}

func (l *Lab) addNode(ctx context.Context, h Host) error {
	if err := l.save(); err != nil {
		return err
	}
	if err := makeHost(ctx, netnsName(l.opts.Name, lanHost), h); err != nil {
		return err
	}
	if l.opts.Bare {
		return l.joinBare(h)
	}
	if err := l.joinNode(ctx, h); err != nil {
		return err
	}
	return l.awaitReady(ctx, h.Name)
}

// RemoveNode removes a node from the cluster as an operator does: it drains and deletes the node,
// and switches it off. Its blocks are released afterwards, once no address of theirs is in use.
func (l *Lab) RemoveNode(ctx context.Context, name string) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if name == Master {
		return fmt.Errorf("node %s holds the control plane: take the lab down instead", name)
	}
	n, err := l.node(name)
	if err != nil {
		return err
	}
	if !l.opts.Bare {
		if err := l.drain(ctx, name); err != nil {
			return fmt.Errorf("drain node %s: %w", name, err)
		}
	}
	return l.discard(ctx, n.Host)
}

// drain makes a node unschedulable and waits until its pods have ended.
func (l *Lab) drain(ctx context.Context, name string) error {
	if _, err := l.kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType,
		[]byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		return err
	}
	here := metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}
	return await(ctx, "its pods to end", patience, func(ctx context.Context) (bool, error) {
		pods, err := l.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, here)
		if err != nil {
			return false, err
		}
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				continue
			}
			// One may have come after the others left: the scheduler hears late of what is unschedulable.
			if err := l.kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil &&
				!apierrors.IsNotFound(err) {
				return false, err
			}
		}
		return len(pods.Items) == 0, nil
	})
}

// LoseNode ends a node as a loss of power does: no packet leaves it any more, then its processes
// and pods are gone. The cluster keeps the Node, the pods and their addresses, and finds out by
// itself. Once somebody has deleted the Node, AddNode may bring the node back under its name.
func (l *Lab) LoseNode(ctx context.Context, name string) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if name == Master {
		return fmt.Errorf("node %s holds the control plane: take the lab down instead", name)
	}
	n, err := l.node(name)
	if err != nil {
		return err
	}
	if err := l.setCable(ctx, name, "down"); err != nil {
		return err
	}
	l.forget(n.Host)
	return l.switchOff(ctx, n.Host, n)
}

// discard removes a node from the cluster and switches it off, also one that is incomplete.
func (l *Lab) discard(ctx context.Context, h Host) error {
	n := l.forget(h)
	var failed []error
	if !l.opts.Bare {
		err := l.kube.CoreV1().Nodes().Delete(ctx, h.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, err)
		}
	}
	return errors.Join(append(failed, l.switchOff(ctx, h, n))...)
}

// forget takes a host off the lab's lists and ends its kubelet. It returns the node that the host
// was, or nil.
func (l *Lab) forget(h Host) *node {
	l.mu.Lock()
	n := l.nodes[h.Name]
	delete(l.nodes, h.Name)
	l.hosts = slices.DeleteFunc(l.hosts, func(o Host) bool { return o.Name == h.Name })
	l.mu.Unlock()
	if n != nil {
		n.stop()
		if !l.opts.Bare {
			<-n.gone
		}
	}
	return n
}

// switchOff ends what runs on a forgotten host and removes the host. n is nil if the host was no
// node yet.
func (l *Lab) switchOff(ctx context.Context, h Host, n *node) error {
	var failed []error
	if n != nil {
		failed = append(failed, l.calico.stop(n))
	}
	failed = append(failed, l.repartition(ctx, func(all []partition) []partition {
		return slices.DeleteFunc(all, func(p partition) bool { return p.a == h.Name || p.b == h.Name })
	}))
	failed = append(failed, l.removeNamespaces(ctx, h), os.RemoveAll(l.path("nodes", h.Name)), l.save())
	return errors.Join(failed...)
}

// removeNamespaces ends the processes on a host and in its pods, then removes the namespaces.
func (l *Lab) removeNamespaces(ctx context.Context, h Host) error {
	spaces, err := namespaces(l.opts.Name)
	if err != nil {
		return err
	}
	for _, ns := range spaces {
		if ns != h.Netns && !podOf(ns, h, l.Hosts()) {
			continue
		}
		pids, err := pidsIn(ctx, ns)
		if err != nil {
			return err
		}
		if err := endAll(pids, grace); err != nil {
			return err
		}
		if err := ip(ctx, "netns", "delete", ns); err != nil {
			return err
		}
	}
	// The kernel removes the port later, with the namespace. A new node of the same name may come
	// earlier.
	_ = ip(ctx, "-netns", netnsName(l.opts.Name, lanHost), "link", "delete", "dev", h.Name)
	return nil
}

// podOf reports whether a namespace belongs to a pod of the node: its name begins with the node's,
// and with no longer name of another node.
func podOf(ns string, h Host, others []Host) bool {
	return named(ns, h) && !slices.ContainsFunc(others, func(o Host) bool {
		return len(o.Netns) > len(h.Netns) && (ns == o.Netns || named(ns, o))
	})
}

func named(ns string, h Host) bool {
	return len(ns) > len(h.Netns) && ns[:len(h.Netns)+1] == h.Netns+"-"
}

// KillNode pulls the cable of a node, of an appliance or of the router: no packet leaves it any
// more, so no session is closed properly. Its processes run on.
func (l *Lab) KillNode(ctx context.Context, name string) error { return l.cable(ctx, name, "down") }

// ReviveNode plugs the cable in again.
func (l *Lab) ReviveNode(ctx context.Context, name string) error { return l.cable(ctx, name, "up") }

func (l *Lab) cable(ctx context.Context, name, state string) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if _, ok := l.Host(name); !ok {
		return fmt.Errorf("no host is called %q", name)
	}
	return l.setCable(ctx, name, state)
}

func (l *Lab) setCable(ctx context.Context, name, state string) error {
	return ipBatch(ctx, netnsName(l.opts.Name, lanHost), fmt.Sprintf("link set dev %s %s", name, state))
}

// RestartCalico restarts Calico on a node as a restart of the calico-node pod does: it kills all
// parts, so that BIRD's sessions end without a NOTIFICATION, and starts them again after the time
// that a container takes to start. Routes and pods stay.
func (l *Lab) RestartCalico(ctx context.Context, name string, down time.Duration) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	n, err := l.node(name)
	if err != nil {
		return err
	}
	return l.calico.restart(ctx, n, down)
}

// BIRD runs birdc on a node, for the BIRD of IPv6 if the family is 6.
func (l *Lab) BIRD(ctx context.Context, name string, family int, args ...string) (string, error) {
	if name != Router || l.router == nil {
		if _, err := l.node(name); err != nil {
			return "", err
		}
	}
	cmd, err := birdc(ctx, l.path("nodes", name), family, args...)
	if err != nil {
		return "", err
	}
	return output(cmd)
}

// birdc returns a birdc command for a node with this directory.
func birdc(ctx context.Context, dir string, family int, args ...string) (*exec.Cmd, error) {
	client := "birdc"
	if family == 6 {
		client = "birdc6"
	}
	folder, err := debian.BIRD(ctx, 1, nil) // its birdc talks to series 2, too
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, filepath.Join(folder, client),
		append([]string{"-s", socket(dir, family)}, args...)...), nil
}

// socket returns the path of the control socket of a node's BIRD.
func socket(dir string, family int) string { return filepath.Join(dir, fmt.Sprint(family), "ctl") }

func (d *daemon) socket() string { return filepath.Join(d.dir, "ctl") }
func (d *daemon) file() string   { return filepath.Join(d.dir, "bird.conf") }

// configure writes the configuration of each BIRD of the node. It starts a BIRD with its first
// configuration, and makes it reload a later one.
func (n *node) configure(l *Lab, compose func(source netip.Addr) (bird.Config, error)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, d := range n.birds {
		failed = append(failed, d.configure(l, compose))
	}
	return errors.Join(failed...)
}

func (d *daemon) configure(l *Lab, compose func(netip.Addr) (bird.Config, error)) error {
	c, broken := compose(d.source) // what is not broken goes on
	if c.Node == "" {
		return broken
	}
	return errors.Join(broken, d.apply(l, c))
}

func (d *daemon) apply(l *Lab, c bird.Config) error {
	text, err := bird.Render(c)
	if err != nil {
		return err
	}
	return d.applyText(l, text)
}

func (d *daemon) applyText(l *Lab, text []byte) error {
	if bytes.Equal(text, d.config) {
		return nil
	}
	// BIRD never sees a configuration that it would reject: it keeps the old one.
	trial := d.file() + ".trial"
	if err := os.WriteFile(trial, text, 0o600); err != nil {
		return err
	}
	if _, err := output(exec.Command(d.program, "-p", "-c", trial)); err != nil {
		return err
	}
	if err := os.Rename(trial, d.file()); err != nil {
		return err
	}
	d.config = text
	switch {
	case d.held:
		return nil
	case d.process != nil && d.process.alive() == nil:
		return d.process.signal(syscall.SIGHUP)
	default:
		return d.start(l)
	}
}

// start starts BIRD in recovery mode (-R), as Calico always does.
func (d *daemon) start(l *Lab) (err error) {
	if err := os.Remove(d.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.process, err = l.start(d.name, d.ns, d.program, "-R", "-f", "-c", d.file(), "-s", d.socket(), "-P",
		filepath.Join(d.dir, "pid"))
	if err != nil {
		return err
	}
	// Before birdc answers, BIRD may have no handler for SIGHUP, which would end it.
	return await(l.life, d.name, grace, func(ctx context.Context) (bool, error) {
		if err := d.process.alive(); err != nil {
			return false, &fatalError{err}
		}
		_, err := d.ask(ctx, "show", "status")
		return err == nil, err
	})
}

// ask runs birdc.
func (d *daemon) ask(ctx context.Context, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, d.client, append([]string{"-s", d.socket()}, args...)...))
}

// stopBird ends the node's BIRDs for good.
func (n *node) stopBird() error { return n.holdBird() }

// holdBird kills the node's BIRDs and keeps them down.
func (n *node) holdBird() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, d := range n.birds {
		d.held = true
		if d.process != nil {
			failed = append(failed, d.process.end(0))
			d.process = nil
		}
	}
	return errors.Join(failed...)
}

// freeBird starts the node's BIRDs again.
func (n *node) freeBird(l *Lab) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, d := range n.birds {
		d.held = false
		if d.process == nil && d.config != nil {
			failed = append(failed, d.start(l))
		}
	}
	return errors.Join(failed...)
}

// startBare starts the nodes of a lab without a control plane.
func (l *Lab) startBare() error {
	for _, h := range l.nodeHosts() {
		if err := l.joinBare(h); err != nil {
			return err
		}
	}
	return nil
}

// joinBare starts the BIRDs of a node with its block, and with the appliances as neighbours, since
// there is no API to configure them.
func (l *Lab) joinBare(h Host) error {
	n, err := l.newNode(h)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.nodes[h.Name] = n
	l.mu.Unlock()
	return n.configure(l, func(source netip.Addr) (bird.Config, error) {
		c := bird.Config{Node: h.Name, Version: l.opts.Bird, RouterID: h.Addr.Addr(), Source: source, AS: l.opts.AS}
		pool := l.opts.pool4()
		if source.Is6() {
			pool = l.opts.pool6()
		}
		for _, b := range h.Blocks {
			if b.Addr().Is4() == source.Is4() {
				c.Blocks = append(c.Blocks, bird.Block{Prefix: b, Confirmed: true})
			}
		}
		c.Pools = []bird.Pool{{Prefix: pool}}
		for _, a := range l.appliances() {
			for _, neighbour := range a.addrs() {
				if neighbour.Is4() == source.Is4() {
					c.Peers = append(c.Peers,
						bird.Peer{Name: protocolName("Global", neighbour, 0), Addr: neighbour, AS: l.opts.PeerAS})
				}
			}
		}
		return c, nil
	})
}
