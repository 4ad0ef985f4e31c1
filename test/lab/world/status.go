package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Status is the present state of a lab.
type Status struct {
	Options
	Dir string `json:"dir"`
	// why this machine is not on the lan though it was asked for
	NoHostAccess string       `json:"noHostAccess,omitempty"`
	Hosts        []HostStatus `json:"hosts"`
}

// HostStatus is the present state of a host.
type HostStatus struct {
	Host
	Ready    bool      `json:"ready,omitempty"` // the Node is
	Sessions []Session `json:"sessions,omitempty"`
}

// Session is a BGP session as a node's BIRD sees it.
type Session struct {
	Name  string `json:"name"`
	State string `json:"state"` // Established, Active...; down if BIRD does not answer
}

// Status asks the API and every BIRD. A node that does not answer counts as not ready, a BIRD as
// down. The blocks of a node are those that it has now.
func (l *Lab) Status(ctx context.Context) (Status, error) {
	s := Status{Options: l.opts, Dir: l.dir, NoHostAccess: l.hostAccess}
	readyNodes := map[string]bool{}
	if !l.opts.Bare {
		nodes, err := l.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return Status{}, err
		}
		for _, n := range nodes.Items {
			readyNodes[n.Name] = ready(&n)
		}
	}
	blocks, err := l.blocks(ctx)
	if err != nil {
		return Status{}, err
	}
	for _, h := range l.Hosts() {
		hs := HostStatus{Host: h, Ready: readyNodes[h.Name]}
		if blocks != nil {
			hs.Blocks = blocks[h.Name]
		}
		for _, a := range h.addrs() {
			if h.Node {
				hs.Sessions = append(hs.Sessions, l.sessions(ctx, h.Name, family(a))...)
			}
		}
		if h.Name == Router && l.router != nil {
			hs.Sessions = l.sessions(ctx, Router, 4)
		}
		s.Hosts = append(s.Hosts, hs)
	}
	return s, nil
}

// blocks returns the confirmed blocks of each node, or nil if the lab has no IPAM of Calico's.
func (l *Lab) blocks(ctx context.Context) (map[string][]netip.Prefix, error) {
	if l.opts.Bare || l.opts.HostLocal || !l.installed {
		return nil, nil
	}
	list, err := l.dynamic.Resource(calicoResource("blockaffinities")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	blocks := map[string][]netip.Prefix{}
	for _, a := range list.Items {
		node, _, _ := unstructured.NestedString(a.Object, "spec", "node")
		state, _, _ := unstructured.NestedString(a.Object, "spec", "state")
		cidr, _, _ := unstructured.NestedString(a.Object, "spec", "cidr")
		if b, err := netip.ParsePrefix(cidr); err == nil && state == "confirmed" {
			blocks[node] = append(blocks[node], b)
		}
	}
	return blocks, nil
}

func (l *Lab) sessions(ctx context.Context, node string, family int) []Session {
	out, err := l.BIRD(ctx, node, family, "show", "protocols")
	if err != nil {
		return []Session{{Name: fmt.Sprintf("BIRD of IPv%d", family), State: "down"}}
	}
	return parseSessions(out)
}

// parseSessions parses `show protocols`: name, protocol, table, state, since, and BGP's own state.
func parseSessions(out string) []Session {
	var sessions []Session
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 6 && f[1] == "BGP" {
			sessions = append(sessions, Session{Name: f[0], State: f[5]})
		}
	}
	return sessions
}

// Record is a lab's file about itself. It suffices to run commands in the lab from another
// process.
type Record struct{ record }

// Read reads the record of a lab that is up.
func Read(name string) (Record, error) {
	if err := checkLab(name); err != nil {
		return Record{}, err
	}
	var r Record
	text, err := os.ReadFile(filepath.Join(Root, name, "lab.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, fmt.Errorf("lab %s is not up: run `lab up --name %s`", name, name)
	}
	if err != nil {
		return Record{}, err
	}
	return r, json.Unmarshal(text, &r.record)
}

// Command returns a command on a host.
func (r Record) Command(ctx context.Context, host string, args ...string) (*exec.Cmd, error) {
	names := []string{}
	for _, h := range r.Hosts {
		names = append(names, h.Name)
	}
	if !slices.Contains(names, host) {
		return nil, fmt.Errorf("no host is called %q: there are %s", host, strings.Join(names, ", "))
	}
	return command(ctx, r.Name, host, args...), nil
}

// Kubeconfig returns the administrator's kubeconfig.
func (r Record) Kubeconfig() ([]byte, error) { return os.ReadFile(r.kubeconfig()) }

func (r Record) kubeconfig() string { return filepath.Join(Root, r.Name, "kubeconfig") }

// Kubectl returns a kubectl command with the administrator's rights.
func (r Record) Kubectl(ctx context.Context, args ...string) (*exec.Cmd, error) {
	if r.Program == "" {
		return nil, fmt.Errorf("lab %s has no control plane", r.Name)
	}
	return kubectl(ctx, r.Name, r.Program, r.kubeconfig(), args), nil
}

// Calicoctl returns a calicoctl command with the administrator's rights. It compiles Calico if the
// cache does not have it.
func (r Record) Calicoctl(ctx context.Context, progress io.Writer, args ...string) (*exec.Cmd, error) {
	folder, err := RealCalico(ctx, progress)
	if err != nil {
		return nil, err
	}
	return command(ctx, r.Name, Master, append([]string{
		"env", "DATASTORE_TYPE=kubernetes", "KUBECONFIG=" + r.kubeconfig(), filepath.Join(folder, "calico"),
		"calicoctl",
	}, args...)...), nil
}

// Birdc returns a birdc command for a node.
func (r Record) Birdc(ctx context.Context, node string, family int, args ...string) (*exec.Cmd, error) {
	return birdc(ctx, filepath.Join(Root, r.Name, "nodes", node), family, args...)
}
