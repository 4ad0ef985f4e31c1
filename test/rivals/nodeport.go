package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/test/lab/world"
)

// balanceArg makes this program the balancer in front of a NodePort.
const balanceArg = "balance"

const (
	nodePort    = 30080
	healthzPort = 10256 // of kube-proxy
)

// nodeport returns a Service of type NodePort with the real kube-proxy on each worker, and a balancer of ours in
// front of the workers. The balancer is the kernel, which hands a connection on to a worker. Like the balancers of
// clouds, it asks kube-proxy on each worker for its health. It sees no request, so it serves one application.
func nodeport() contender {
	workers := []string{"worker1", "worker2"}
	program := ""
	return contender{
		name: "nodeport", one: true, mute: true,
		build: func(ctx context.Context) (err error) {
			program, err = world.KubeProxy(ctx, os.Stderr)
			return err
		},
		serve: func(ctx context.Context, a *arena) (string, error) {
			self, err := os.Executable()
			if err != nil {
				return "", err
			}
			_, err = a.Kubectl(ctx, "patch", "service", "app", "-p", fmt.Sprintf(
				`{"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":%d}]}}`, nodePort))
			_, forward := a.Exec(ctx, world.Appliance, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
			err = errors.Join(err, forward)
			var nodes []string
			for _, worker := range workers {
				h, _ := a.Host(worker)
				nodes = append(nodes, h.Addr.Addr().String())
				err = errors.Join(err, a.startProxy(ctx, program, worker))
			}
			err = errors.Join(err, a.start(ctx, world.Appliance, controller, self, balanceArg, "-to", a.target, "-nodes",
				strings.Join(nodes, ",")))
			return versions(ctx, err, program, "--version", "nft", "--version")
		},
		joined: func(ctx context.Context, a *arena, node string) error { return a.startProxy(ctx, program, node) },
		stop: func(a *arena) error {
			return a.Command(context.Background(), world.Appliance, "nft", "delete", "table", "ip", "balancer").Run()
		},
	}
}

// startProxy runs kube-proxy on a worker. The limits of the kernel's table of connections stay as they are, since all
// hosts of the lab share them.
func (a *arena) startProxy(ctx context.Context, program, worker string) error {
	return a.start(ctx, worker, "kube-proxy-"+worker, program, "--proxy-mode=nftables",
		"--kubeconfig="+a.KubeconfigFile(), "--hostname-override="+worker, "--cluster-cidr=172.16.0.0/16",
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0", "--conntrack-udp-timeout=0", "--conntrack-udp-timeout-stream=0")
}

// balance runs the balancer. A worker is left out after two checks that it did not pass, and comes back after one.
func balance(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(balanceArg, flag.ContinueOnError)
	to := flags.String("to", "", "`HOST:PORT` that clients ask")
	list := flags.String("nodes", "", "`addresses` of the workers, with commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	nodes := strings.Split(*list, ",")
	failed := make([]int, len(nodes))
	var in []string
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var good []string
		for i, err := range healths(ctx, nodes) {
			if failed[i]++; err == nil {
				failed[i] = 0
			}
			if failed[i] < 2 {
				good = append(good, nodes[i])
			}
		}
		if in == nil || !slices.Equal(in, good) {
			log.Printf("workers: %v", good)
			if err := spread(ctx, *to, good); err != nil {
				log.Print(err)
			} else {
				in = append([]string{}, good...)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// healths asks kube-proxy on each worker for its health, all at once.
func healths(ctx context.Context, nodes []string) []error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	all := make([]error, len(nodes))
	var asked sync.WaitGroup
	for i, node := range nodes {
		asked.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d/healthz", node,
				healthzPort), nil)
			if err != nil {
				all[i] = err
				return
			}
			answer, err := client.Do(request)
			if err != nil {
				all[i] = err
				return
			}
			if answer.StatusCode != http.StatusOK {
				all[i] = errors.New(answer.Status)
			}
			all[i] = errors.Join(all[i], answer.Body.Close())
		})
	}
	asked.Wait()
	return all
}

// spread has the kernel hand new connections on to the workers in turn. Without a worker it refuses them.
func spread(ctx context.Context, to string, workers []string) error {
	host, port, _ := strings.Cut(to, ":")
	rule := "reject with tcp reset"
	if len(workers) > 0 {
		var turns []string
		for i, w := range workers {
			turns = append(turns, fmt.Sprintf("%d : %s", i, w))
		}
		rule = fmt.Sprintf("dnat to numgen inc mod %d map { %s }:%d", len(workers), strings.Join(turns, ", "), nodePort)
	}
	hook := "type nat hook prerouting priority dstnat"
	if len(workers) == 0 {
		hook = "type filter hook input priority filter"
	}
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table ip balancer
delete table ip balancer
table ip balancer {
  chain to { %s; ip daddr %s tcp dport %s %s; }
  chain from { type nat hook postrouting priority srcnat; ct status dnat masquerade; }
}
`, hook, host, port, rule))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
