package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// limit bounds every wait. It measures nothing.
const limit = 2 * time.Minute

// testbed is a lab with an appliance. Every Service has the same pods, so that thousands of
// servers are real.
type testbed struct {
	*rig.Rig
	kube    kubernetes.Interface
	pods    []string  // their addresses
	size    int       // Services there are
	started time.Time // when the appliance was, for these Services
	poller  *rig.Child

	unchecked bool // HAProxy checks no server of new Services
}

func newTestbed(ctx context.Context, dir string, endpoints int, gateways world.Channel) (*testbed, error) {
	cluster := rig.Cluster{Ingress: []string{"configMap: default/" + settings, "limits: {hosts: 1000000, paths: 1000000, " +
		"backends: 1000000, servers: 1000000, reloads: 1000000, conditions: 100000}"}}
	var pairs []string
	if gateways != "" {
		cluster.Gateway, pairs = []string{"enabled: true"}, []string{"addresses: [" + rig.GatewayPool + "]"}
	}
	if err := rig.ConfigureHAProxy(dir, pairs, "log: {level: warn}", cluster); err != nil {
		return nil, err
	}
	r, err := rig.New(ctx, dir, world.Options{
		Name: "bench", Workers: 2, Mesh: true, GatewayAPI: gateways, Progress: os.Stderr,
	})
	if err != nil {
		return nil, err
	}
	if gateways != "" {
		if err := r.AddGatewayAddresses(ctx); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	s := &testbed{Rig: r}
	if err := s.furnish(ctx, endpoints); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *testbed) close() error {
	if s.poller != nil {
		_ = s.poller.Close()
	}
	return s.Close()
}

func (s *testbed) furnish(ctx context.Context, endpoints int) error {
	config := s.RESTConfig()
	config.QPS = -1
	var err error
	if s.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	deployment := fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: %d
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - {name: app, image: sample-app, ports: [{containerPort: 8080}], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
`, endpoints)
	if err := s.ClaimBlocks(ctx, "worker1", "worker2"); err != nil { // wherever the pods land
		return err
	}
	if err := s.Apply(ctx, deployment); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "rollout", "status", "deployment/app", "--timeout", limit.String()); err != nil {
		return err
	}
	pods, err := s.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		s.pods = append(s.pods, p.Status.PodIP)
	}
	for i := range spares {
		if err := s.Allocate(ctx, "default", netip.MustParseAddr(spare(i))); err != nil {
			return err
		}
	}
	if s.poller, err = s.Child(ctx, world.Client, pollArg); err != nil {
		return err
	}
	return s.Start(ctx)
}

// settings is the name of the ConfigMap with keys for all Ingresses. It is not there at first.
const settings = "settings"

func name(i int) string { return fmt.Sprintf("svc-%d", i) }
func host(i int) string { return fmt.Sprintf("h%d.bench", i) }

// grow adds Services, each with an Ingress, until there are n, and waits until all are served.
// The appliance is away meanwhile: a large cluster is there before the appliance is.
func (s *testbed) grow(ctx context.Context, n int) error {
	if s.size >= n {
		return nil
	}
	// A check of a server takes a file descriptor, and a connection every other second.
	s.unchecked = n*len(s.pods) > 2500
	progress("a cluster with %d Services", n)
	if err := s.Stop(syscall.SIGTERM); err != nil {
		return err
	}
	err := parallel(n-s.size, func(i int) error {
		id := s.size + i
		if err := s.addService(ctx, name(id)); err != nil {
			return err
		}
		return s.addIngress(ctx, name(id), host(id), name(id))
	})
	if err != nil {
		return err
	}
	s.size, s.started = n, time.Now()
	if err := s.Start(ctx); err != nil {
		return err
	}
	_, err = s.served(s.hosts()...)
	return err
}

// hosts returns the hosts of all Services.
func (s *testbed) hosts() []string {
	all := make([]string, s.size)
	for i := range all {
		all[i] = host(i)
	}
	return all
}

// parallel calls do with each number below n, some at a time.
func parallel(n int, do func(i int) error) error {
	var group sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, 32) // etcd writes objects that come together to disk in one step
	for worker := range errs {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && errs[worker] == nil; i = int(next.Add(1)) - 1 {
				errs[worker] = do(i)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// addService adds a Service of all pods.
func (s *testbed) addService(ctx context.Context, name string) error {
	if err := s.addBareService(ctx, name, s.unchecked); err != nil {
		return err
	}
	_, err := s.kube.DiscoveryV1().EndpointSlices("default").Create(ctx, s.slice(name), metav1.CreateOptions{})
	return err
}

// addBareService adds a Service without endpoints. HAProxy checks no server of an unchecked one.
func (s *testbed) addBareService(ctx context.Context, name string, unchecked bool) error {
	meta := metav1.ObjectMeta{Name: name}
	if unchecked {
		meta.Annotations = map[string]string{"haproxy.org/check": "false"}
	}
	_, err := s.kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	return err
}

// slice returns the EndpointSlice of a Service: all pods, and further addresses.
func (s *testbed) slice(name string, more ...string) *discoveryv1.EndpointSlice {
	port, empty := int32(8080), ""
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &empty, Port: &port}},
	}
	for _, a := range append(append([]string{}, s.pods...), more...) {
		slice.Endpoints = append(slice.Endpoints, endpoint(a))
	}
	return slice
}

func endpoint(address string) discoveryv1.Endpoint {
	ready := true
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

func (s *testbed) addIngress(ctx context.Context, name, host, service string) error {
	class, kind := "haproxy", networkingv1.PathTypePrefix
	_, err := s.kube.NetworkingV1().Ingresses("default").Create(ctx, &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{
						Name: service,
						Port: networkingv1.ServiceBackendPort{Number: 80},
					},
				}}},
			}},
		}}},
	}, metav1.CreateOptions{})
	return err
}

// served waits until each host has answered 200, and returns the time of the last such answer.
func (s *testbed) served(hosts ...string) (time.Time, error) {
	if err := s.poller.Say(strings.Join(hosts, " ")); err != nil {
		return time.Time{}, err
	}
	type answer struct {
		ns  int64
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.err = s.poller.Hear(&a.ns)
		done <- a
	}()
	select {
	case a := <-done:
		return time.Unix(0, a.ns), a.err
	case <-s.Ended():
		return time.Time{}, s.Alive()
	case <-time.After(limit):
		return time.Time{}, fmt.Errorf("%d hosts from %s on are not served within %s", len(hosts), hosts[0], limit)
	}
}

// exchange sends one line of commands to HAProxy's worker and returns the answer.
func (s *testbed) exchange(line string) (string, error) {
	return exchange(s.socket(), line)
}

// socket returns the path of the socket of HAProxy's worker.
func (s *testbed) socket() string { return filepath.Join(s.Dir, "run", "worker.sock") }

// exchange sends one line of commands to a socket of HAProxy and returns the answer.
func exchange(socket, line string) (string, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // only an exchange
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}
