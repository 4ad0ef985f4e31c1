package kubelet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// pluginLimit bounds one run of a CNI plugin. The kubelet's own limit is 2 minutes.
const pluginLimit = 2 * time.Minute

// CNI is the network that a CNI plugin builds, called as a container runtime calls it (CNI
// specification 0.3.1).
type CNI struct {
	Plugin []string // command that runs the plugin on the node
	Path   string   // folder of the plugins that it calls
	Config string   // file with the plugin's configuration; pods wait until it is there
}

func (c *CNI) join(_ context.Context, p *pod) ([]netip.Addr, error) {
	if _, err := os.Stat(c.Config); err != nil {
		return nil, fmt.Errorf("CNI is not configured: %w", err)
	}
	p.laying <- struct{}{}
	defer func() { <-p.laying }()
	if err := deleteNetns(p.wire.Netns); err != nil {
		return nil, err
	}
	if err := makeNetns(p.wire.Netns); err != nil {
		return nil, err
	}
	pod, err := openLinks(p.wire.Netns)
	if err != nil {
		return nil, err
	}
	defer pod.close()
	lo, err := pod.LinkByName("lo")
	if err == nil {
		err = pod.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("set lo of %s up: %w", p.wire.Netns, err)
	}
	answer, err := c.run(p, "ADD")
	if err != nil {
		_, undone := c.run(p, "DEL")
		return nil, errors.Join(err, undone)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return nil, fmt.Errorf("CNI plugin answered %q: %w", answer, err)
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		addrs = append(addrs, ip.Address.Addr())
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("CNI plugin gave no address: %q", answer)
	}
	return addrs, nil
}

func (c *CNI) leave(_ context.Context, p *pod) error {
	if _, err := c.run(p, "DEL"); err != nil && !errors.Is(err, fs.ErrNotExist) { // not configured: never joined
		return err
	}
	return deleteNetns(p.wire.Netns)
}

func (c *CNI) cut(p *pod) { _ = deleteNetns(p.wire.Netns) } // and with it the link to the node

// reclaim leaves addresses to calico-kube-controllers, which frees those of pods that are gone.
func (c *CNI) reclaim(context.Context, *agent, []any) {}

// run runs the plugin. No context ends it: a plugin that is killed halfway leaves behind the other one
// that it has called, and that one allocates an address that nobody frees.
func (c *CNI) run(p *pod, verb string) ([]byte, error) {
	config, err := os.ReadFile(c.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration of CNI: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pluginLimit)
	defer cancel()
	object := p.read()
	sum := sha256.Sum256([]byte(p.uid))
	id := hex.EncodeToString(sum[:])
	cmd := exec.CommandContext(ctx, c.Plugin[0], c.Plugin[1:]...)
	cmd.Env = append(os.Environ(),
		"CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_IFNAME=eth0", "CNI_PATH="+c.Path,
		"CNI_NETNS="+filepath.Join(netnsDir, p.wire.Netns),
		"CNI_ARGS="+strings.Join([]string{
			"IgnoreUnknown=1", "K8S_POD_NAMESPACE=" + object.Namespace, "K8S_POD_NAME=" + object.Name,
			"K8S_POD_INFRA_CONTAINER_ID=" + id, "K8S_POD_UID=" + string(p.uid),
		}, ";"),
	)
	cmd.Stdin = bytes.NewReader(config)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	answer, err := cmd.Output()
	if err != nil {
		var said struct{ Msg, Details string }
		if json.Unmarshal(answer, &said) == nil && said.Msg != "" {
			return nil, fmt.Errorf("CNI %s: %s %s", verb, said.Msg, said.Details)
		}
		return nil, fmt.Errorf("CNI %s: %w: %s", verb, err, strings.TrimSpace(complaint.String()))
	}
	return answer, nil
}
