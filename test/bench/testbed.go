package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
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
	kube   kubernetes.Interface
	pods   []string // their addresses
	size   int      // Services there are
	poller *rig.Child
}

func newTestbed(ctx context.Context, dir string, endpoints int) (*testbed, error) {
	if err := rig.Configure(dir, "log: {level: warn}"); err != nil {
		return nil, err
	}
	r, err := rig.New(ctx, dir, world.Options{Name: "bench", Workers: 1, Progress: os.Stderr})
	if err != nil {
		return nil, err
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
	if s.poller, err = s.Child(ctx, world.Client, pollArg); err != nil {
		return err
	}
	return s.Start(ctx)
}

func name(i int) string { return fmt.Sprintf("svc-%d", i) }
func host(i int) string { return fmt.Sprintf("h%d.bench", i) }

// populate grows the cluster to n Services and waits until all are served.
func (s *testbed) populate(ctx context.Context, n int) error {
	hosts := make([]string, 0, n)
	for ; s.size < n; s.size++ {
		if err := s.addService(ctx, name(s.size)); err != nil {
			return err
		}
		if err := s.addIngress(ctx, name(s.size), host(s.size), name(s.size)); err != nil {
			return err
		}
	}
	for i := range n {
		hosts = append(hosts, host(i))
	}
	_, err := s.served(hosts...)
	return err
}

func (s *testbed) addService(ctx context.Context, name string) error {
	meta := metav1.ObjectMeta{Name: name}
	_, err := s.kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = s.kube.DiscoveryV1().EndpointSlices("default").Create(ctx, s.slice(name), metav1.CreateOptions{})
	return err
}

// slice returns the EndpointSlice of a Service: all pods, and further addresses.
func (s *testbed) slice(name string, more ...string) *discoveryv1.EndpointSlice {
	port, empty, ready := int32(8080), "", true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &empty, Port: &port}},
	}
	for _, a := range append(append([]string{}, s.pods...), more...) {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}

func (s *testbed) addIngress(ctx context.Context, name, host, service string) error {
	class, kind := "haproxy", networkingv1.PathTypePrefix
	_, err := s.kube.NetworkingV1().Ingresses("default").Create(ctx, &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
			Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &kind, Backend: networkingv1.IngressBackend{
					Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 80}},
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

// exchange sends one command to HAProxy's worker and returns the answer.
func (s *testbed) exchange(command string) (string, error) {
	c, err := net.Dial("unix", s.Dir+"/run/worker.sock")
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // only an exchange
	if _, err := fmt.Fprintln(c, command); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(c)
	return string(answer), err
}
