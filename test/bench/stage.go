package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sallyport/test/lab/world"
)

// limit bounds every wait; it measures nothing.
const limit = 2 * time.Minute

// stage is a lab with an appliance, and with pods that every Service shares, so
// that thousands of servers are real.
type stage struct {
	*world.Lab
	dir     string
	kube    kubernetes.Interface
	pods    []string // their addresses
	size    int      // Services there are
	process *exec.Cmd
	hosts   io.WriteCloser // the poller's lines
	seen    *bufio.Scanner // its answers
	poller  *exec.Cmd
}

func newStage(ctx context.Context, dir string, endpoints int) (*stage, error) {
	lab, err := world.Up(ctx, world.Options{Name: "bench", Workers: 1, Images: map[string]string{"app": dir + "/app"}, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	s := &stage{Lab: lab, dir: dir}
	if err := s.furnish(ctx, endpoints); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *stage) close() error {
	if s.poller != nil {
		_ = s.hosts.Close() // it ends by that
		_ = s.poller.Wait()
	}
	s.stop()
	return s.Down()
}

func (s *stage) furnish(ctx context.Context, endpoints int) error {
	config := s.RESTConfig()
	config.QPS = -1
	var err error
	if s.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	manifests := exec.CommandContext(ctx, s.dir+"/sallyport", "manifests", "--address", "192.168.50.21")
	text, err := manifests.Output()
	if err != nil {
		return err
	}
	deployment := fmt.Sprintf(`
---
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
      - {name: app, image: app, ports: [{containerPort: 8080}], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}
`, endpoints)
	apply := s.Kubectl(ctx, "apply", "-f", "-")
	apply.Stdin = strings.NewReader(string(text) + deployment)
	if out, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if out, err := s.Kubectl(ctx, "rollout", "status", "deployment/app", "--timeout", limit.String()).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	pods, err := s.kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		s.pods = append(s.pods, p.Status.PodIP)
	}

	credentials, err := s.ServiceAccountKubeconfig(ctx, "kube-system", "sallyport", 24*time.Hour)
	if err != nil {
		return err
	}
	file := fmt.Sprintf("clusters: [{kubeconfig: kubeconfig}]\nhaproxy: {dir: %[1]s/haproxy, runDir: %[1]s/run}\nstateDir: %[1]s/state\nlog: {level: warn}\n", s.dir)
	if err := errors.Join(os.WriteFile(s.dir+"/kubeconfig", credentials, 0o600), os.WriteFile(s.dir+"/sallyport.yaml", []byte(file), 0o600)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.poller = s.Command(context.WithoutCancel(ctx), world.Client, self, pollArg)
	out, err := s.poller.StdoutPipe()
	if err != nil {
		return err
	}
	if s.hosts, err = s.poller.StdinPipe(); err != nil {
		return err
	}
	s.seen = bufio.NewScanner(out)
	if err := s.poller.Start(); err != nil {
		return err
	}
	return s.start(ctx)
}

func (s *stage) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	s.process = s.Command(context.WithoutCancel(ctx), world.Appliance, s.dir+"/sallyport", "run", "--config", s.dir+"/sallyport.yaml")
	s.process.Stdout, s.process.Stderr = log, log
	return s.process.Start()
}

func (s *stage) stop() {
	if s.process != nil {
		_ = s.process.Process.Signal(syscall.SIGKILL)
		_ = s.process.Wait()
		s.process = nil
	}
}

func name(i int) string { return fmt.Sprintf("svc-%d", i) }
func host(i int) string { return fmt.Sprintf("h%d.bench", i) }

// populate grows the cluster to n Services and waits until all are served.
func (s *stage) populate(ctx context.Context, n int) error {
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

func (s *stage) addService(ctx context.Context, name string) error {
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

// slice is the EndpointSlice of a Service, with more addresses if wanted.
func (s *stage) slice(name string, more ...string) *discoveryv1.EndpointSlice {
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

func (s *stage) addIngress(ctx context.Context, name, host, service string) error {
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

// served waits until each host has answered 200, and returns when the last did.
func (s *stage) served(hosts ...string) (time.Time, error) {
	if _, err := fmt.Fprintln(s.hosts, strings.Join(hosts, " ")); err != nil {
		return time.Time{}, err
	}
	answer := make(chan string, 1)
	go func() {
		if s.seen.Scan() {
			answer <- s.seen.Text()
		}
		close(answer)
	}()
	select {
	case text, ok := <-answer:
		if !ok {
			return time.Time{}, errors.New("the poller ended")
		}
		ns, err := strconv.ParseInt(text, 10, 64)
		return time.Unix(0, ns), err
	case <-time.After(limit):
		return time.Time{}, fmt.Errorf("%d hosts from %s on are not served within %s", len(hosts), hosts[0], limit)
	}
}

// exchange sends one command to HAProxy's worker and returns the answer.
func (s *stage) exchange(command string) (string, error) {
	c, err := net.Dial("unix", s.dir+"/run/worker.sock")
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
