package world_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
)

// patience bounds every wait. It is long, because the machine may be busy.
const patience = 90 * time.Second

// eventually repeats a check until it succeeds.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// labNamed brings up a lab for one test, under a name that no other test uses.
func labNamed(t *testing.T, prefix string, opts world.Options) *world.Lab {
	t.Helper()
	opts.Name = fmt.Sprintf("%s%d", prefix, os.Getpid()%10_000_000)
	opts.Progress = t.Output()
	l, err := world.Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, opts.Name)
	})
	return l
}

// nothingLeft checks that nothing of a lab is left on the machine.
func nothingLeft(t *testing.T, name string) {
	t.Helper()
	for _, pattern := range []string{
		"/run/netns/sp-" + name + "-*", "/sys/class/net/sp-" + name,
		world.Root + "/" + name + "*",
	} {
		left, err := filepath.Glob(pattern)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	programs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if text, err := os.ReadFile(p); err == nil && strings.Contains(string(text),
			filepath.Join(world.Root, name)+"/") {
			t.Errorf("left behind: process %s", strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
}

// listener is a BIRD on the appliance that accepts the nodes' announcements.
type listener struct {
	lab *world.Lab
	dir string
}

func listen(t *testing.T, l *world.Lab) listener {
	t.Helper()
	dir := t.TempDir()
	config := "router id 192.168.50.21;\nprotocol device { scan time 1; }\nprotocol direct { interface \"eth0\"; }\n" +
		"protocol kernel { export all; }\n"
	for octet := 22; octet < 30; octet++ {
		config += fmt.Sprintf("protocol bgp n%d { local 192.168.50.21 as 65000; neighbor 192.168.50.%d as 65000; "+
			"passive; hold time 9; error wait time 1,2; graceful restart off; import all; export none; }\n", octet,
			octet)
	}
	file := filepath.Join(dir, "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	programs, err := debian.BIRD(ctx, 1, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	cmd := l.Command(ctx, world.Appliance, filepath.Join(programs, "bird"), "-f", "-c", file, "-s",
		filepath.Join(dir, "ctl"), "-P", filepath.Join(dir, "pid"))
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // killed, as it should be
	})
	return listener{l, dir}
}

// want waits until the appliance's kernel has exactly these BGP routes.
func (r listener) want(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	begun := time.Now()
	defer func() { t.Logf("%d routes after %s", len(want), time.Since(begun).Round(100*time.Millisecond)) }()
	eventually(t, "routes on the appliance", func() error {
		out, err := r.lab.Exec(t.Context(), world.Appliance, "ip", "-4", "route", "show", "proto", "bird")
		if err != nil {
			return err
		}
		var got []string
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 && f[1] == "via" {
				got = append(got, f[0]+" via "+f[2])
			}
		}
		slices.Sort(got)
		if !slices.Equal(want, got) {
			return fmt.Errorf("want %q, got %q", want, got)
		}
		return nil
	})
}

const (
	masterRoute  = "172.16.49.64/26 via 192.168.50.22"
	worker1Route = "172.16.171.64/26 via 192.168.50.23"
	worker2Route = "172.16.189.64/26 via 192.168.50.24"
	thirdRoute   = "172.16.4.64/26 via 192.168.50.25"
)

func TestNodesAnnounceTheirBlocksWithoutAControlPlane(t *testing.T) {
	l := labNamed(t, "bare", world.Options{Workers: 2, Bare: true})
	r := listen(t, l)
	r.want(t, masterRoute, worker1Route, worker2Route)

	if _, err := l.AddNode(t.Context(), "edge"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route, thirdRoute)

	if err := l.KillNode(t.Context(), "worker2"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, thirdRoute) // the hold timer notices
	if err := l.ReviveNode(t.Context(), "worker2"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route, thirdRoute)

	if err := l.LoseNode(t.Context(), "edge"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route) // again the hold timer
	if _, err := l.AddNode(t.Context(), "edge"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route, thirdRoute)

	if err := l.RemoveNode(t.Context(), "edge"); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route)

	if err := l.RestartCalico(t.Context(), "worker1", 0); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route)
}

func TestTheSecondKindOfBIRDAnnouncesTheSame(t *testing.T) {
	l := labNamed(t, "two", world.Options{Workers: 1, Bare: true, Bird: 2})
	out, err := l.BIRD(t.Context(), "worker1", 4, "show", "status")
	if err != nil || !strings.Contains(out, "BIRD 2.") {
		t.Fatalf("want BIRD 2, got %q, %v", out, err)
	}
	listen(t, l).want(t, masterRoute, worker1Route)
}

func TestAPartitionIsBetweenTwoHostsAndHeals(t *testing.T) {
	l := labNamed(t, "part", world.Options{Workers: 2, Bare: true})
	r := listen(t, l)
	r.want(t, masterRoute, worker1Route, worker2Route)
	heard := func(from string, to ...string) (n int) {
		for _, addr := range to {
			if _, err := l.Exec(t.Context(), from, "ping", "-c1", "-W1", addr); err == nil {
				n++
			}
		}
		return n
	}
	const appliance, worker1, worker2 = "192.168.50.21", "192.168.50.23", "192.168.50.24"

	if err := l.Partition(t.Context(), "worker1", world.Appliance, world.AllTraffic); err != nil {
		t.Fatal(err)
	}
	if heard(world.Appliance, worker1) != 0 || heard("worker1", appliance) != 0 {
		t.Error("the two hear each other")
	}
	if heard(world.Appliance, worker2) != 1 || heard("worker1", worker2) != 1 {
		t.Error("a third host is not heard by one of the two")
	}
	for _, host := range []string{world.Appliance, "worker1"} {
		if out, err := l.Exec(t.Context(), host, "cat", "/sys/class/net/eth0/carrier"); err != nil ||
			strings.TrimSpace(out) != "1" {
			t.Errorf("the cable of %s: carrier %q, %v; want it plugged in", host, out, err)
		}
	}
	r.want(t, masterRoute, worker2Route) // the hold timer notices

	if err := l.Partition(t.Context(), world.Appliance, "worker2", world.OnlyBGP); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute)
	if heard(world.Appliance, worker2) != 1 {
		t.Error("a filter of BGP keeps a ping back")
	}

	for _, worker := range []string{"worker1", "worker2"} {
		if err := l.Heal(t.Context(), world.Appliance, worker); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel repeats a failed neighbour discovery after a second.
	eventually(t, "the two hear each other again", func() error {
		if n := heard(world.Appliance, worker1, worker2); n != 2 {
			return fmt.Errorf("%d of 2 answer", n)
		}
		return nil
	})
	r.want(t, masterRoute, worker1Route, worker2Route)
}

func TestANodeThatLeavesTakesItsPartitionsWithIt(t *testing.T) {
	l := labNamed(t, "parted", world.Options{Bare: true})
	for range 2 {
		if _, err := l.AddNode(t.Context(), "edge"); err != nil {
			t.Fatal(err)
		}
		// The client may still have the previous host's address in its neighbour table.
		eventually(t, "it answers", func() error {
			_, err := l.Exec(t.Context(), world.Client, "ping", "-c1", "-W1", "192.168.50.23")
			return err
		})
		if err := l.Partition(t.Context(), "edge", world.Client, world.AllTraffic); err != nil {
			t.Fatal(err)
		}
		if err := l.RemoveNode(t.Context(), "edge"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLabsOfTwoNamesNeverMeet(t *testing.T) {
	one := labNamed(t, "one", world.Options{Workers: 1, Bare: true, IPv6: true})
	other := labNamed(t, "other", world.Options{Workers: 1, Bare: true, IPv6: true})
	for _, addr := range []string{"192.168.50.23", "fd00:50::23"} {
		if _, err := one.Exec(t.Context(), world.Client, "ping", "-c1", "-W5", addr); err != nil {
			t.Error(err)
		}
	}
	if err := other.Down(); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Exec(t.Context(), world.Client, "ping", "-c1", "-W5", "192.168.50.23"); err != nil {
		t.Errorf("the first lab after the second went down: %v", err)
	}
}

func TestANameIsTakenWhileItsLabLives(t *testing.T) {
	l := labNamed(t, "taken", world.Options{Bare: true})
	if _, err := world.Up(t.Context(), world.Options{Name: l.Name(), Bare: true}); !errors.Is(err, world.ErrInUse) {
		t.Errorf("want %v, got %v", world.ErrInUse, err)
	}
	if err := world.Sweep(t.Context(), l.Name()); !errors.Is(err, world.ErrInUse) {
		t.Errorf("want %v, got %v", world.ErrInUse, err)
	}
	if _, err := l.Exec(t.Context(), world.Client, "true"); err != nil {
		t.Errorf("the lab that was there: %v", err)
	}
}

func TestOrdersToNodesThatAreNotThereAreRefused(t *testing.T) {
	l := labNamed(t, "refuse", world.Options{Bare: true})
	for what, err := range map[string]error{
		"kill":    l.KillNode(t.Context(), "nobody"),
		"lose":    l.LoseNode(t.Context(), "nobody"),
		"host":    l.LoseNode(t.Context(), world.Master),
		"revive":  l.ReviveNode(t.Context(), "nobody"),
		"remove":  l.RemoveNode(t.Context(), "nobody"),
		"restart": l.RestartCalico(t.Context(), "nobody", 0),
		"master":  l.RemoveNode(t.Context(), world.Master),
		"cut":     l.Partition(t.Context(), world.Master, "nobody", world.AllTraffic),
		"itself":  l.Partition(t.Context(), world.Master, world.Master, world.AllTraffic),
		"kind":    l.Partition(t.Context(), world.Master, world.Client, "some"),
		"heal":    l.Heal(t.Context(), "nobody", world.Client),
	} {
		if err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	if _, err := l.AddNode(t.Context(), world.Client); err == nil {
		t.Error("a node called client: want an error")
	}
	if _, err := l.AddNode(t.Context(), world.Master); err == nil {
		t.Error("a second master: want an error")
	}
}

const application = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 4
  selector: {matchLabels: {run: app}}
  template:
    metadata: {labels: {run: app}}
    spec:
      containers:
      - name: app
        image: example/app
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec:
  selector: {run: app}
  ports: [{name: web, port: 80, targetPort: 8080}]
---
apiVersion: crd.projectcalico.org/v1
kind: BGPPeer
metadata: {name: appliance}
spec: {peerIP: 192.168.50.21, asNumber: 65000}
`

func TestAClusterOfRealParts(t *testing.T) {
	app := filepath.Join(t.TempDir(), "app")
	if out, err := exec.Command("go", "build", "-o", app, "sallyport/test/app").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l := labNamed(t, "full", world.Options{Workers: 2, Images: map[string]string{"example/app": app}})
	r := listen(t, l)
	apply := l.Kubectl(t.Context(), "apply", "-f", "-")
	apply.Stdin = strings.NewReader(application)
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.want(t, worker1Route, worker2Route) // a node without pods has no block
	if err := l.ClaimBlocks(t.Context(), world.Master); err != nil {
		t.Fatal(err)
	}
	r.want(t, masterRoute, worker1Route, worker2Route)

	kube, err := kubernetes.NewForConfig(l.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	// serving maps each Ready pod to its address. Each must answer the appliance.
	serving := func() map[string]string {
		pods, err := kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "run=app"})
		if err != nil {
			t.Fatal(err)
		}
		nodes := map[string]string{}
		for _, p := range pods.Items {
			if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				nodes[p.Status.PodIP] = p.Spec.NodeName
			}
		}
		return nodes
	}
	answer := func() {
		eventually(t, "four pods", func() error {
			if want, got := 4, len(serving()); want != got {
				return fmt.Errorf("want %d ready, got %d", want, got)
			}
			return nil
		})
		for addr, node := range serving() {
			if _, err := l.Exec(t.Context(), world.Appliance, "curl", "-sf", "-m", "10",
				"http://"+addr+":8080/"); err != nil {
				t.Errorf("pod on %s: %v", node, err)
			}
			if node == world.Master {
				t.Error("a pod runs on the control plane's node")
			}
		}
	}
	answer()

	t.Run("kubectl logs shows what a program has printed", func(t *testing.T) {
		eventually(t, "its first line", func() error {
			out, err := l.Kubectl(t.Context(), "logs", "deployment/app").CombinedOutput()
			if err == nil && !strings.Contains(string(out), "INFO listening") {
				err = errors.New("it is missing")
			}
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	})

	t.Run("a ServiceAccount may do what RBAC allows", func(t *testing.T) {
		text, err := l.ServiceAccountKubeconfig(t.Context(), "default", "default", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		config.Dial = l.RESTConfig().Dial
		poor, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := poor.CoreV1().Secrets("default").List(t.Context(),
			metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("want it forbidden, got %v", err)
		}
	})

	t.Run("a node that joins is announced with its first pod, one that leaves is not", func(t *testing.T) {
		if _, err := l.AddNode(t.Context(), "worker3"); err != nil {
			t.Fatal(err)
		}
		r.want(t, masterRoute, worker1Route, worker2Route)
		if err := l.RemoveNode(t.Context(), "worker1"); err != nil {
			t.Fatal(err)
		}
		r.want(t, masterRoute, worker2Route, thirdRoute) // pods have moved
		answer()
		eventually(t, "the block of the node that left is released", func() error {
			out, err := l.Kubectl(t.Context(), "get", "blockaffinities,ipamblocks", "-o", "name").Output()
			if err == nil && strings.Contains(string(out), "172-16-171-64-26") {
				err = fmt.Errorf("there are %s", out)
			}
			return err
		})
	})

	t.Run("the status shows it", func(t *testing.T) {
		eventually(t, "sessions", func() error {
			s, err := l.Status(t.Context())
			if err != nil {
				return err
			}
			for _, h := range s.Hosts {
				if !h.Node {
					continue
				}
				if !h.Ready || len(h.Sessions) != 1 || h.Sessions[0].State != "Established" {
					return fmt.Errorf("%s: ready %t, sessions %v", h.Name, h.Ready, h.Sessions)
				}
			}
			return nil
		})
	})

	t.Run("a cluster taken back to a backup runs as many pods as then", func(t *testing.T) {
		backup := filepath.Join(t.TempDir(), "etcd")
		if err := l.Backup(t.Context(), backup); err != nil {
			t.Fatal(err)
		}
		if out, err := l.Kubectl(t.Context(), "scale", "deployment/app", "--replicas=0").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		eventually(t, "no pods", func() error {
			if got := len(serving()); got != 0 {
				return fmt.Errorf("want none, got %d", got)
			}
			return nil
		})
		if err := l.Restore(t.Context(), backup); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the pods of then", func() error {
			now := serving()
			if len(now) != 4 {
				return fmt.Errorf("want 4, got %v", now)
			}
			for addr := range now {
				if _, err := l.Exec(t.Context(), world.Appliance, "curl", "-sf", "-m", "1",
					"http://"+addr+":8080/"); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
