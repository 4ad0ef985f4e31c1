package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/kubelet"
)

// RealCalico returns a folder with Calico itself, and compiles it if the cache does not have it:
//
//	calico       the program with all parts (test/lab/calico); calico-ipam is the same
//	confd        the configuration of confd, with the templates of BIRD's configuration
//	calico.yaml  the manifest with CRDs and RBAC
//
// All of it is Calico's own, except for one line in the template of IPv4: the filter of the
// kernel's routes sets krt_tunnel, which only Calico's fork of BIRD knows. For Debian's BIRD the
// filter declares it as a variable. No neighbour hears the difference. IPIP between nodes is lost.
func RealCalico(ctx context.Context, progress io.Writer) (string, error) {
	const filter = "filter calico_kernel_programming "
	m := module{
		folder: "lab/calico", title: "Calico", takes: "about 6 minutes on 2 cores",
		source: "github.com/projectcalico/calico",
		copies: [][2]string{{"confd/etc/calico/confd", "confd"}, {"manifests/calico.yaml", "calico.yaml"}},
		edits:  []edit{{"confd/templates/bird_ipam.cfg.template", filter + "{", filter + "string krt_tunnel; {"}},
		links:  []string{"calico-ipam"},
	}
	return m.fetch(ctx, progress)
}

// real is Calico itself. What calico-node runs in a container runs in the node's network namespace
// here, each part in a mount namespace of its own, which ends with it.
type real struct {
	*Lab
	folder string // as RealCalico returns it
	config []byte // of the CNI plugin, without the node's name
}

// The parts' ServiceAccounts in kube-system, by the names of the manifest.
const (
	nodeAccount        = "calico-node"
	pluginAccount      = "calico-cni-plugin"
	controllersAccount = "calico-kube-controllers"
)

// tokenLife outlasts every lab. Calico's own agent, which the lab does not run, renews tokens.
const tokenLife = 365 * 24 * time.Hour

// tools are the programs that Calico finds in PATH, and the package and program of Debian that each
// stands for. Those that concern the whole machine are left out on purpose: modprobe and bpftool.
var tools = map[string][2]string{
	"iptables":              {"iptables", "iptables-nft"},
	"ip6tables":             {"iptables", "ip6tables-nft"},
	"iptables-nft-save":     {"iptables", "iptables-nft-save"},
	"ip6tables-nft-save":    {"iptables", "ip6tables-nft-save"},
	"iptables-nft-restore":  {"iptables", "iptables-nft-restore"},
	"ip6tables-nft-restore": {"iptables", "ip6tables-nft-restore"},
	"ipset":                 {"ipset", "ipset"},
	"conntrack":             {"conntrack", "conntrack"},
}

func fetchTools(ctx context.Context, progress io.Writer) error {
	for _, t := range tools {
		if _, err := calicoTool(t[0]).Fetch(ctx, progress); err != nil {
			return err
		}
	}
	return nil
}

func (r *real) fetch(ctx context.Context) (err error) {
	if err := fetchTools(ctx, r.progress); err != nil {
		return err
	}
	r.folder, err = RealCalico(ctx, r.progress)
	return err
}

func calicoTool(name string) debian.Package { return debian.Package{Suite: "bookworm", Name: name} }

// complete leaves the Node as a kubelet registers it: startup does the rest.
func (r *real) complete(Host, *corev1.Node) {}

func (r *real) install(ctx context.Context) error {
	r.say("installing Calico itself: CRDs, RBAC, kube-controllers")
	if err := r.writeTools(ctx); err != nil {
		return err
	}
	if err := r.applyManifest(ctx); err != nil {
		return err
	}
	if err := r.createOne(ctx, calicoObject("BGPConfiguration", "default", map[string]any{
		"asNumber": int64(r.opts.AS), "nodeToNodeMeshEnabled": r.opts.Mesh, "logSeverityScreen": "Info",
	})); err != nil {
		return err
	}
	for _, account := range []string{nodeAccount, pluginAccount, controllersAccount} {
		text, err := r.ServiceAccountKubeconfig(ctx, metav1.NamespaceSystem, account, tokenLife)
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.kubeconfigOf(account), text, 0o600); err != nil {
			return err
		}
	}
	r.serve("kube-controllers", netnsName(r.opts.Name, Master), "env", "DATASTORE_TYPE=kubernetes",
		"ENABLED_CONTROLLERS=node",
		"KUBECONFIG="+r.kubeconfigOf(controllersAccount), r.program(), "kube-controllers")
	r.mu.Lock()
	nodes := slices.Collect(maps.Values(r.nodes))
	r.mu.Unlock()
	for _, n := range nodes {
		if err := r.join(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (r *real) program() string                    { return filepath.Join(r.folder, "calico") }
func (r *real) kubeconfigOf(account string) string { return r.path("pki", account+".kubeconfig") }

// writeTools makes the folder of the programs that Calico finds in PATH.
func (r *real) writeTools(ctx context.Context) error {
	folder, err := debian.BIRD(ctx, 1, r.progress)
	if err != nil {
		return err
	}
	scripts := map[string]string{
		// runit's command with which confd makes BIRD read a new configuration: sv hup bird|bird6
		"sv": fmt.Sprintf("exec '%s' -s /var/run/calico/$2.ctl configure", filepath.Join(folder, "birdc")),
	}
	for _, name := range []string{"bird", "bird6"} {
		scripts[name] = fmt.Sprintf(`exec '%s' "$@"`, filepath.Join(folder, name))
	}
	for _, name := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		scripts[name] = ":" // Felix counts the rules of the older kind, whose program would load kernel modules
	}
	for name, t := range tools {
		from, err := calicoTool(t[0]).Folder()
		if err != nil {
			return err
		}
		scripts[name] = fmt.Sprintf(`XTABLES_LIBDIR=$(echo '%s'/root/usr/lib/*/xtables) exec '%s' "$@"`, from,
			filepath.Join(from, t[1]))
	}
	if err := os.MkdirAll(r.path("bin"), 0o700); err != nil {
		return err
	}
	for name, text := range scripts {
		if err := writeScript(r.path("bin", name), text); err != nil {
			return err
		}
	}
	return nil
}

func writeScript(file, text string) error {
	return os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700) //nolint:gosec // it must be executable
}

// applyManifest gives the cluster what Calico's manifest has, except for the pods: their parts
// run on the nodes themselves.
func (r *real) applyManifest(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.folder, "calico.yaml"))
	if err != nil {
		return err
	}
	var wanted [][]byte
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			return fmt.Errorf("calico.yaml: %w", err)
		}
		switch o.GetKind() {
		case "DaemonSet", "Deployment", "PodDisruptionBudget", "":
			continue
		case "ConfigMap":
			if r.config, err = r.pluginConfig(o); err != nil {
				return fmt.Errorf("calico.yaml: %w", err)
			}
		}
		wanted = append(wanted, document)
	}
	cmd := r.Kubectl(ctx, "apply", "--server-side", "-f", "-")
	cmd.Stdin = bytes.NewReader(bytes.Join(wanted, []byte("\n---\n")))
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("install Calico: %w", err)
	}
	_, err = output(r.Kubectl(ctx, "wait", "--for", "condition=Established", "--timeout", "1m", "crd", "--all"))
	return err
}

// pluginConfig returns the configuration of the CNI plugin in the manifest's ConfigMap, filled in as
// Calico's installer does. The node's name is still missing.
func (r *real) pluginConfig(configMap *unstructured.Unstructured) ([]byte, error) {
	text, _, err := unstructured.NestedString(configMap.Object, "data", "cni_network_config")
	if err != nil {
		return nil, err
	}
	text = strings.NewReplacer("__CNI_MTU__", "0", "__KUBECONFIG_FILEPATH__",
		r.kubeconfigOf(pluginAccount)).Replace(text)
	var list struct {
		Name       string           `json:"name"`
		CNIVersion string           `json:"cniVersion"`
		Plugins    []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("cni_network_config: %w", err)
	}
	calico := list.Plugins[0] // portmap and bandwidth follow, which no pod of a lab asks for
	calico["name"], calico["cniVersion"] = list.Name, list.CNIVersion
	calico["ipam"] = map[string]any{
		"type": "calico-ipam", "assign_ipv4": strconv.FormatBool(!r.opts.IPv6Only),
		"assign_ipv6": strconv.FormatBool(r.opts.IPv6),
	}
	return json.Marshal(calico)
}

// node makes the folders that the parts see as their own below /etc and /var.
func (r *real) node(h Host) (*node, error) {
	n := &node{Host: h, gone: make(chan struct{}), stop: func() {}}
	for _, dir := range []string{"etc", "lib", "log", "run", "4", "6"} {
		if err := os.MkdirAll(r.path("nodes", h.Name, dir), 0o755); err != nil { //nolint:gosec // as in a container
			return nil, err
		}
	}
	for _, dir := range []string{"etc/calico", "var/lib/calico", "var/log/calico", "var/run/calico"} {
		if err := os.MkdirAll(r.path("skeleton", dir), 0o755); err != nil { //nolint:gosec // as in a container
			return nil, err
		}
	}
	for f, name := range map[string]string{"4": "bird.ctl", "6": "bird6.ctl"} {
		link := r.path("nodes", h.Name, f, "ctl")
		if err := os.Symlink(filepath.Join("..", "run", name), link); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return n, writeScript(r.enter(h), r.enterScript(h))
}

// enter returns the script that runs a command as calico-node runs it on the node: with Calico's
// folders and environment.
func (r *real) enter(h Host) string { return r.path("nodes", h.Name, "enter") }

// enterScript returns the text of that script. `ip netns exec` runs it in a new mount namespace:
// nothing that is mounted there is seen outside, and new network namespaces of pods are seen inside.
func (r *real) enterScript(h Host) string {
	dir := func(name string) string { return r.path("nodes", h.Name, name) }
	lines := []string{
		"set -e",
		"mount -t overlay -o ro,lowerdir=" + r.path("skeleton/etc") + ":/etc overlay /etc",
		"mount -t overlay -o ro,lowerdir=" + r.path("skeleton/var") + ":/var overlay /var",
		"mount --bind " + dir("etc") + " /etc/calico",
		"mount --bind " + dir("lib") + " /var/lib/calico",
		"mount --bind " + dir("log") + " /var/log/calico",
		"mount --bind " + dir("run") + " /var/run/calico",
	}
	for _, v := range r.environment(h) {
		lines = append(lines, "export '"+v+"'")
	}
	return strings.Join(append(lines, `exec "$@"`), "\n")
}

// environment returns the variables of calico-node's container. They are those of the manifest,
// except for what a lab decides: families and pools, no encapsulation, logs on standard output.
func (r *real) environment(h Host) []string {
	vars := []string{
		"PATH=" + r.path("bin") + ":/usr/bin:/bin", // without the machine's own iptables
		"NODENAME=" + h.Name, "DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + r.kubeconfigOf(nodeAccount),
		"WAIT_FOR_DATASTORE=true",
		"CALICO_NETWORKING_BACKEND=bird", "CLUSTER_TYPE=k8s,bgp", "CALICO_DISABLE_FILE_LOGGING=true",
		"CALICO_MANAGE_CNI=false",
		"CALICO_IPV4POOL_CIDR=" + r.opts.pool4().String(), "CALICO_IPV4POOL_IPIP=Never", "CALICO_IPV4POOL_VXLAN=Never",
		"FELIX_FELIXHOSTNAME=" + h.Name, "FELIX_DATASTORETYPE=kubernetes",
		"FELIX_IPV6SUPPORT=" + strconv.FormatBool(r.opts.IPv6),
		"FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT", "FELIX_IPTABLESBACKEND=NFT", "FELIX_XDPENABLED=false",
		"FELIX_USAGEREPORTINGENABLED=false",
		"FELIX_LOGSEVERITYSYS=none", "FELIX_LOGFILEPATH=none",
	}
	if r.opts.IPv6 {
		vars = append(vars, "IP6=autodetect", "CALICO_IPV6POOL_CIDR="+r.opts.pool6().String(),
			"CALICO_IPV6POOL_VXLAN=Never")
	} else {
		vars = append(vars, "IP6=none")
	}
	if r.opts.IPv6Only {
		return append(vars, "IP=none", "CALICO_ROUTER_ID=hash")
	}
	return append(vars, "IP=autodetect")
}

func (r *real) plugin(h Host) *kubelet.CNI {
	return &kubelet.CNI{
		Plugin: []string{"ip", "netns", "exec", h.Netns, r.enter(h), r.program()},
		Path:   r.folder,
		Config: r.path("nodes", h.Name, "cni.conf"),
	}
}

// join configures CNI on a node and starts calico-node.
func (r *real) join(ctx context.Context, n *node) error {
	config := bytes.ReplaceAll(r.config, []byte("__KUBERNETES_NODE_NAME__"), []byte(n.Name))
	if err := writeFile(r.plugin(n.Host).Config, config); err != nil {
		return err
	}
	return r.begin(ctx, n)
}

// begin starts calico-node as a new container: first startup, then all parts at the same time. It
// returns when both BIRDs answer.
func (r *real) begin(ctx context.Context, n *node) error {
	// empty in a new container: BIRD starts with a new one, or not at all
	configs := r.path("nodes", n.Name, "etc/confd/config")
	if err := errors.Join(os.RemoveAll(configs), os.MkdirAll(configs, 0o755)); err != nil { //nolint:gosec // as in a container
		return err
	}
	// It ends with an error if somebody else changes the Node meanwhile; a kubelet would start the
	// container again.
	if err := await(ctx, "startup of "+n.Name, patience, func(ctx context.Context) (bool, error) {
		err := r.once(ctx, "startup-"+n.Name, n.Netns, r.enter(n.Host), r.program(), "startup")
		return err == nil, err
	}); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	run := func(name string, args ...string) {
		n.parts = append(n.parts, r.serve(name+"-"+n.Name, n.Netns, append([]string{r.enter(n.Host)}, args...)...))
	}
	run("confd", r.program(), "confd", filepath.Join(r.folder, "confd"))
	run("felix", r.program(), "felix")
	run("allocate-tunnel-addrs", r.program(), "allocate-tunnel-addrs")
	for f, name := range map[int]string{4: "bird", 6: "bird6"} {
		file := filepath.Join(configs, name+".cfg")
		if err := await(ctx, "confd to write "+file, patience, func(context.Context) (bool, error) {
			_, err := os.Stat(file)
			return err == nil, err
		}); err != nil {
			return err
		}
		run(name, name, "-R", "-f", "-s", "/var/run/calico/"+name+".ctl", "-c", "/etc/calico/confd/config/"+name+".cfg",
			"-P", "/var/run/calico/"+name+".pid")
		if err := await(ctx, name+" of "+n.Name, patience, func(ctx context.Context) (bool, error) {
			cmd, err := birdc(ctx, r.path("nodes", n.Name), f, "show", "status")
			if err == nil {
				_, err = output(cmd)
			}
			return err == nil, err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (r *real) stop(n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var failed []error
	for _, p := range n.parts {
		failed = append(failed, p.stop())
	}
	n.parts = nil
	return errors.Join(failed...)
}

// restart does as a restart of the pod does: the hook before its end marks the Node, and the end
// of the container kills all parts.
func (r *real) restart(ctx context.Context, n *node, down time.Duration) error {
	if err := r.once(ctx, "shutdown-"+n.Name, n.Netns, r.enter(n.Host), r.program(), "shutdown"); err != nil {
		return err
	}
	if err := r.stop(n); err != nil {
		return err
	}
	select {
	case <-time.After(down):
	case <-ctx.Done(): // up again all the same
	}
	return errors.Join(ctx.Err(), r.begin(context.WithoutCancel(ctx), n))
}
