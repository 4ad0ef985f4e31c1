package world

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
)

const appliancePeer = `
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: appliance}
spec: {peerIP: 192.168.50.21, asNumber: 65000%s}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: appliance-6}
spec: {peerIP: "fd00:50::21", asNumber: 65000%[1]s}
`

// A scenario is a cluster's configuration.
type scenario struct {
	config    string     // spec of BGPConfiguration default
	objects   string     // applied
	commands  [][]string // of kubectl
	manifests []string   // flags of `sallyport manifests`, whose output is applied; nil means not
	podCIDRs  bool       // host-local IPAM
}

const meshless = "{asNumber: 65000, nodeToNodeMeshEnabled: false}"

var scenarios = map[string]scenario{
	"a mesh":            {config: "{asNumber: 65000}"},
	"no mesh, no peers": {config: meshless},
	"the printed manifests": {
		config: meshless, manifests: []string{"--address", "192.168.50.21", "--address", "fd00:50::21"},
	},
	"the printed manifests, a mesh": {
		config: "{asNumber: 65000}", manifests: []string{"--address", "192.168.50.21", "--address", "fd00:50::21"},
	},
	"an appliance in another AS, a mesh, no filter": {
		config: "{asNumber: 65001}", objects: fmt.Sprintf(appliancePeer, ""),
	},
	"route reflectors": {
		config: meshless, manifests: []string{
			"--address", "192.168.50.21", "--address", "fd00:50::21", "--reflectors",
			"rr == 'true'",
		},
		commands: [][]string{
			{"annotate", "node", "worker1", "projectcalico.org/RouteReflectorClusterID=244.0.0.1"},
			{"label", "node", "worker1", "rr=true"},
		},
		objects: `
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: all(), peerSelector: rr == 'true'}
`,
	},
	"a reflector in a cluster with a mesh": {
		config:   "{asNumber: 65000, serviceLoadBalancerIPs: [{cidr: 80.15.0.0/24}, {cidr: 80.16.0.7/32}]}",
		objects:  fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{"annotate", "node", "worker1", "projectcalico.org/RouteReflectorClusterID=244.0.0.1"}},
	},
	"peers of single nodes, of selected nodes, and nodes by address": {
		config: meshless, objects: `
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: one}
spec: {node: worker1, peerIP: 192.168.50.21, asNumber: 65000}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: some}
spec: {nodeSelector: "kubernetes.io/hostname == 'worker2'", peerIP: "192.168.50.21:1179", asNumber: 65010, keepOriginalNextHop: true, numAllowedLocalASNumbers: 2}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: node}
spec: {peerIP: 192.168.50.22, asNumber: 65000}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: node-6}
spec: {node: worker2, peerIP: "fd00:50::23", asNumber: 65000}
`,
	},
	"nodes of several AS numbers": {
		config: "{asNumber: 65000}", objects: fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{"annotate", "node", "worker1", "projectcalico.org/ASNumber=65077"}},
	},
	"a password, TTL security, a restart time, no source address": {
		config: meshless, objects: fmt.Sprintf(appliancePeer,
			`, ttlSecurity: 1, maxRestartTime: 30s, sourceAddress: None, password: {secretKeyRef: {name: bgp, key: password}}`),
		commands: [][]string{{
			"create", "secret", "generic", "bgp", "-n", "kube-system",
			"--from-literal=password=sesame",
		}},
	},
	"a password that is missing": {
		config: meshless, objects: fmt.Sprintf(appliancePeer,
			`, password: {secretKeyRef: {name: nowhere, key: password}}`),
	},
	"a filter of another administrator": {
		config: "{asNumber: 65000}", objects: fmt.Sprintf(appliancePeer, ", filters: [theirs, nowhere]") + `
---
apiVersion: crd.projectcalico.org/v1
kind: BGPFilter
metadata: {name: theirs}
spec:
  importV4: [{action: Accept, cidr: 10.20.0.0/16, matchOperator: In}, {action: Reject}]
  exportV4: [{action: Reject, cidr: 172.16.189.0/24, matchOperator: In}, {action: Reject, cidr: 172.16.0.0/16, matchOperator: NotIn}, {action: Accept, source: RemotePeers}]
  importV6: [{action: Accept}]
  exportV6: [{action: Reject, interface: "*.calico"}, {action: Reject, cidr: "fd00:172:16:189::/64", matchOperator: NotIn, source: RemotePeers}]
`,
	},
	"a disabled pool, one that is not announced, one that is gone, one with VXLAN, blocks of other sizes": {
		config: "{asNumber: 65000}", objects: fmt.Sprintf(appliancePeer, "") + `
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: disabled}
spec: {cidr: 172.30.0.0/16, disabled: true, ipipMode: Never, vxlanMode: Never, blockSize: 29, nodeSelector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: hidden}
spec: {cidr: 172.31.0.0/16, disableBGPExport: true, ipipMode: Never, vxlanMode: Never, nodeSelector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: vxlan}
spec: {cidr: 172.29.0.0/16, ipipMode: Never, vxlanMode: Always, nodeSelector: all()}
---
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: hidden-6}
spec: {cidr: "fd00:172:31::/48", disableBGPExport: true, nodeSelector: all()}
` + affinities("worker1", "confirmed", "172.30.4.8/29", "172.31.4.64/26", "172.28.4.64/26", "172.29.4.64/26", "172.16.77.7/32", "fd00:172:31:4::40/122"),
	},
	"blocks that are pending, about to go, and of old versions": {
		config: meshless, objects: fmt.Sprintf(appliancePeer, "") +
			affinities("worker1", "pending", "172.16.90.0/26", "fd00:172:16:90::/122") +
			affinities("worker1", "pendingDeletion", "172.16.91.0/26", "fd00:172:16:91::/122") +
			affinities("worker1", `""`, "172.16.92.0/26", "fd00:172:16:92::/122") +
			affinities("nobody", "confirmed", "172.16.93.0/26"),
	},
	"ranges of Services, and a node that does not announce them": {
		config: "{asNumber: 65000, serviceClusterIPs: [{cidr: 10.96.0.0/16}, {cidr: \"fd00:10:96::/112\"}], " +
			"serviceExternalIPs: [{cidr: 80.14.0.0/24}], serviceLoadBalancerIPs: [{cidr: 80.15.0.0/24}, {cidr: " +
			"80.16.0.7/32}]}",
		objects: fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{
			"label", "node", "worker2",
			"node.kubernetes.io/exclude-from-external-load-balancers=true",
		}},
	},
	"communities, ignored interfaces, a restart time and a password of the mesh": {
		config: `{asNumber: 65000, communities: [{name: ours, value: "65000:7"}], prefixAdvertisements: [{cidr: 172.16.0.0/16, communities: [ours, "65000:1:2"]}, {cidr: "fd00:172:16::/48", communities: [ours]}],
  ignoredInterfaces: ["docker*"], nodeMeshMaxRestartTime: 70s, nodeMeshPassword: {secretKeyRef: {name: bgp, key: password}}}`,
		objects: fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{
			"create", "secret", "generic", "bgp", "-n", "kube-system",
			"--from-literal=password=sesame",
		}},
	},
	"another port, and that of a single node": {
		config: "{asNumber: 65000, listenPort: 1790}", objects: fmt.Sprintf(appliancePeer, "") + `
---
apiVersion: crd.projectcalico.org/v1
kind: BGPConfiguration
metadata: {name: node.worker1}
spec: {listenPort: 1791}
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: two}
spec: {node: worker2, peerIP: 192.168.50.23, asNumber: 65000}
`,
	},
	"IPv4 alone": {
		config: "{asNumber: 65000}", objects: fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{"annotate", "nodes", "--all", "projectcalico.org/IPv6Address-"}},
	},
	"IPv6 alone": {
		config: "{asNumber: 65000}", objects: fmt.Sprintf(appliancePeer, ""),
		commands: [][]string{{"annotate", "nodes", "--all", "projectcalico.org/IPv4Address-"}},
	},
	"podCIDRs": {
		config: meshless, objects: fmt.Sprintf(appliancePeer, ""), podCIDRs: true,
		commands: [][]string{{
			"patch", "node", "worker1", "-p",
			`{"spec":{"podCIDR":"172.16.7.0/24","podCIDRs":["172.16.7.0/24","fd00:172:16:7::/120"]}}`,
		}},
	},
}

// affinities returns BlockAffinities of a node.
func affinities(node, state string, cidrs ...string) string {
	var text strings.Builder
	for _, cidr := range cidrs {
		fmt.Fprintf(&text, "\n---\napiVersion: crd.projectcalico.org/v1\nkind: BlockAffinity\n"+
			"metadata: {name: %s-%s}\nspec: {cidr: %q, node: %s, state: %s, deleted: \"false\"}\n",
			node, dashed(netip.MustParsePrefix(cidr)), cidr, node, state)
	}
	return text.String()
}

// TestTheStandInAnnouncesWhatCalicoAnnounces runs confd of a real Calico against a lab's API, for
// each scenario and two nodes.
func TestTheStandInAnnouncesWhatCalicoAnnounces(t *testing.T) {
	calico, err := RealCalico(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	sallyport := filepath.Join(t.TempDir(), "sallyport")
	if out, err := exec.Command("go", "build", "-o", sallyport,
		"sallyport/cmd/sallyport").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := Up(t.Context(),
		Options{Name: fmt.Sprintf("confd%d", os.Getpid()%1_000_000), Workers: 2, IPv6: true, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	if err := l.ClaimBlocks(t.Context(), "worker1", "worker2"); err != nil {
		t.Fatal(err)
	}
	// One API server holds one scenario after another.
	var all []likeness
	fresh := l.memory(t)
	for name, s := range scenarios {
		s.make(t, l, sallyport)
		v := l.present(t)
		v.hostLocal = s.podCIDRs
		for _, node := range []string{"worker1", "worker2"} {
			h, _ := l.Host(node)
			i := slices.IndexFunc(v.nodes, func(n nodeView) bool { return n.name == node })
			all = append(all, v.likenesses(t, name+"/"+node, v.nodes[i], h.Addr.Addr(),
				l.confd(t, calico, node, s.podCIDRs))...)
		}
		fresh()
	}
	compare(t, all)
}

// memory returns a function that takes the objects of the cluster's configuration back to what
// they are now.
func (l *Lab) memory(t *testing.T) (restore func()) {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		corev1.SchemeGroupVersion.WithResource("secrets"): passwordNamespace,
	}
	for _, plural := range []string{"blockaffinities", "bgppeers", "bgpconfigurations", "bgpfilters", "ippools"} {
		kinds[calicoResource(plural)] = ""
	}
	list := func(what schema.GroupVersionResource) []unstructured.Unstructured {
		t.Helper()
		found, err := l.dynamic.Resource(what).Namespace(kinds[what]).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Items
	}
	was := map[string]bool{}
	for what := range kinds {
		for _, o := range list(what) {
			was[o.GetKind()+o.GetName()] = true
		}
	}
	nodes, err := l.kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for what, namespace := range kinds {
			for _, o := range list(what) {
				if was[o.GetKind()+o.GetName()] {
					continue
				}
				err := l.dynamic.Resource(what).Namespace(namespace).Delete(t.Context(), o.GetName(),
					metav1.DeleteOptions{})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
			}
		}
		for _, n := range nodes.Items {
			err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				now, err := l.kube.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				now.Labels, now.Annotations = n.Labels, n.Annotations
				_, err = l.kube.CoreV1().Nodes().Update(t.Context(), now, metav1.UpdateOptions{})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// make turns a fresh cluster into that of the scenario.
func (s scenario) make(t *testing.T, l *Lab, sallyport string) {
	t.Helper()
	run := func(stdin string, args ...string) {
		t.Helper()
		cmd := l.Kubectl(t.Context(), args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
	}
	apply := func(text string) { run(text, "apply", "-f", "-") }
	if s.manifests != nil {
		out, err := exec.Command(sallyport, append([]string{"manifests"}, s.manifests...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		apply(string(out))
	}
	if s.objects != "" {
		apply(s.objects)
	}
	for _, c := range s.commands {
		run("", c...)
	}
	run("{apiVersion: crd.projectcalico.org/v1, kind: BGPConfiguration, metadata: {name: default}, spec: "+s.config+"}",
		"replace", "-f", "-")
}

// present reads the objects of the cluster as the mirror does, once.
func (l *Lab) present(t *testing.T) view {
	t.Helper()
	var objects []*unstructured.Unstructured
	list := func(what schema.GroupVersionResource, namespace string) {
		t.Helper()
		found, err := l.dynamic.Resource(what).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range found.Items {
			objects = append(objects, &found.Items[i])
		}
	}
	for _, plural := range []string{"blockaffinities", "bgppeers", "bgpconfigurations", "bgpfilters", "ippools"} {
		list(calicoResource(plural), "")
	}
	list(corev1.SchemeGroupVersion.WithResource("nodes"), "")
	list(corev1.SchemeGroupVersion.WithResource("secrets"), passwordNamespace)
	v, err := readView(objects)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// confd runs Calico's confd once for a node, and returns the folder of BIRD's configuration.
func (l *Lab) confd(t *testing.T, calico, node string, podCIDRs bool) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(calico, "confd"))); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "conf.d", "*.toml"))
	if err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(dir, "made")
	if err := os.MkdirAll(made, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text := strings.ReplaceAll(string(read(t, file)), "/etc/calico/confd/config", made)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, _ := l.Host(node)
	cmd := l.Command(context.WithoutCancel(t.Context()), node, filepath.Join(calico, "calico"), "confd", dir, "-once")
	cmd.Env = append(os.Environ(), "NODENAME="+node, "DATASTORE_TYPE=kubernetes", "KUBECONFIG="+l.KubeconfigFile(),
		"CALICO_ROUTER_ID="+h.Addr.Addr().String(),
		fmt.Sprintf("USE_POD_CIDR=%t", podCIDRs))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("confd: %v\n%s", err, out)
	}
	return made
}
