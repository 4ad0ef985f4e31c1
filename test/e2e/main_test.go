// Package e2e proves the main job on real parts: a lab's Kubernetes, BIRD and
// kernel on one side, HAProxy on the other, sallyport between them, and a client
// that asks.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
)

const app = "default_svc_app_port-1" // HAProxy's name of the sample application

// bothRoutes are the appliance's routes in a lab with two workers. The master has no pod, and so no
// block.
var bothRoutes = []string{
	"172.16.171.64/26 via 192.168.50.23",
	"172.16.189.64/26 via 192.168.50.24",
}

// Follows the README step by step, in one lab.
func TestAnIngressIsServedFromOutsideTheCluster(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "main", Workers: 2}, settings{})
	sample, err := os.ReadFile("../demo/app.yaml")
	r.must(err)
	r.apply(string(sample))
	r.start()
	r.ready()

	r.sub("three sessions are established, one with a node that has no block", func(_ *testing.T, r *testbed) {
		r.peered("master", "worker1", "worker2")
	})
	r.sub("exactly the two blocks are routed", func(_ *testing.T, r *testbed) { r.routed(bothRoutes) })
	r.sub("all five pods answer in turn", func(_ *testing.T, r *testbed) { r.answeredBy("http://test.local/", 5) })
	r.sub("what no Ingress names is not found", func(t *testing.T, r *testbed) {
		if answer, err := r.get("http://other.local/"); err != nil || answer.Code != 404 {
			t.Errorf("other.local answers %d (%v), want 404", answer.Code, err)
		}
	})
	r.sub("the Ingress tells its address", func(t *testing.T, r *testbed) {
		r.eventually("status.loadBalancer is published", func() error {
			if ip := r.kubectl("get", "ingress", "test-ingress", "-o",
				"jsonpath={.status.loadBalancer.ingress[*].ip}"); ip != "192.168.50.21" {
				return fmt.Errorf("it is %q", ip)
			}
			return nil
		})
	})
	r.sub("scaling changes servers without a reload", func(t *testing.T, r *testbed) {
		before := r.mustStatus()
		r.kubectl("scale", "deployment", "app", "--replicas", "20")
		r.answeredBy("http://test.local/", 20)
		r.kubectl("scale", "deployment", "app", "--replicas", "5")
		r.eventually("five servers are left", func() error { return serversOf(r, 5, 5) })
		r.answeredBy("http://test.local/", 5)
		if after := r.mustStatus(); after.HAProxy.Reloads != before.HAProxy.Reloads {
			t.Errorf("%d reloads, %d before scaling; last because %q", after.HAProxy.Reloads, before.HAProxy.Reloads,
				after.HAProxy.LastReason)
		}
	})
	r.sub("a node that joins is peered and routed, one that leaves gives back servers, then route",
		func(t *testing.T, r *testbed) {
			host, err := r.AddNode(t.Context(), "worker9")
			r.must(err)
			route := fmt.Sprintf("%s via %s", host.Blocks[0], host.Addr.Addr())
			r.peeredWith("worker9")
			r.kubectl("scale", "deployment", "app", "--replicas", "12") // its first pod claims its block
			r.eventually("its block is routed", func() error { return contains(r.routes("-4"), route) })
			r.eventually("a pod on it answers", func() error {
				for range 12 {
					if answer, err := r.get("http://test.local/"); err != nil || answer.Node == "worker9" {
						return err
					}
				}
				return errors.New("none of 12 answers was from it")
			})
			r.must(r.RemoveNode(t.Context(), "worker9"))
			r.eventually("its route is gone", func() error {
				if contains(r.routes("-4"), route) == nil {
					return errors.New("it is still there")
				}
				return nil
			})
			r.eventually("the log tells of both, the servers first", func() error {
				return closedBeforeDropped(r.log(), host)
			})
			r.kubectl("scale", "deployment", "app", "--replicas", "5")
			r.eventually("five servers are left", func() error { return serversOf(r, 5, 5) })
		})
	r.sub("routes that somebody flushes come back", func(t *testing.T, r *testbed) {
		want := r.routes("-4")
		r.exec("ip", "route", "flush", "proto", "78")
		r.routed(want)
		r.eventually("its servers are open again", func() error { return serversOf(r, 5, 5) })
	})
	r.sub("routes come back when the interface does", func(t *testing.T, r *testbed) {
		want := r.routes("-4")
		for _, state := range []string{"down", "up"} {
			r.exec("ip", "link", "set", "eth0", state)
		}
		r.eventually("they are back", func() error {
			if got := r.routes("-4"); !slices.Equal(got, want) {
				return fmt.Errorf("routes %q", got)
			}
			return serversOf(r, 5, 5)
		})
		r.answeredBy("http://test.local/", 5)
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		r.sub("a restart after "+signal.String()+" takes over what runs", func(t *testing.T, r *testbed) {
			before := r.mustStatus()
			routes := r.routes("-4")
			r.end(signal)
			if got := r.routes("-4"); !slices.Equal(got, routes) {
				t.Errorf("after its end: routes %q, want %q", got, routes)
			}
			if seen, err := r.pods("http://test.local/", 10); err != nil || len(seen) != 5 {
				t.Errorf("after its end: answered by %v (%v), want 5 pods", seen, err)
			}
			r.start()
			r.ready()
			after := r.mustStatus()
			if after.HAProxy.Pid != before.HAProxy.Pid {
				t.Errorf("HAProxy's process was %d and is %d", before.HAProxy.Pid, after.HAProxy.Pid)
			}
			if after.HAProxy.Reloads != 0 {
				t.Errorf("%d reloads since the restart, last because %q, want none", after.HAProxy.Reloads,
					after.HAProxy.LastReason)
			}
			r.opened(app, 5)
			r.answeredBy("http://test.local/", 5)
		})
	}
}

// closedBeforeDropped returns an error unless a log has the end of a host's route, after the end of
// its last open server. A closed server may be removed after its route.
func closedBeforeDropped(log string, host world.Host) error {
	dropped, lastServer := -1, -1
	open := map[string]bool{}
	for i, line := range strings.Split(log, "\n") {
		switch {
		case strings.Contains(line, "route dropped") && strings.Contains(line, host.Blocks[0].String()):
			dropped = i
		case strings.Contains(line, "server changed") && strings.Contains(line, serverOn(host)):
			_, rest, _ := strings.Cut(line, "server=")
			name, _, _ := strings.Cut(rest, " ")
			if open[name] && !strings.Contains(line, "state=open") {
				lastServer = i
			}
			open[name] = strings.Contains(line, "state=open")
		}
	}
	if lastServer < 0 || dropped < lastServer {
		return fmt.Errorf("its last server is closed in line %d, its route dropped in line %d: want them in this order",
			lastServer, dropped)
	}
	return nil
}

// serversOf returns an error unless the sample application has this many servers, and this many of
// them open.
func serversOf(r *testbed, all, opened int) error {
	s, err := r.status()
	if err != nil {
		return err
	}
	for _, b := range s.Backends {
		if b.Name == app {
			if len(b.Servers) != all || b.Open != opened {
				return fmt.Errorf("%d servers, %d open: %+v", len(b.Servers), b.Open, b.Servers)
			}
			return nil
		}
	}
	return fmt.Errorf("no backend %s", app)
}

// serverOn returns the beginning of the names of all servers on a host's first block.
func serverOn(h world.Host) string {
	b := h.Blocks[0].Addr().As4()
	return fmt.Sprintf("s_%d-%d-%d-", b[0], b[1], b[2])
}

func contains(all []string, one string) error {
	if !slices.Contains(all, one) {
		return fmt.Errorf("%q is not in %q", one, all)
	}
	return nil
}
