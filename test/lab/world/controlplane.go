package world

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
)

// kubernetesVersion is the version that all parts report. The control plane's go.mod has the same.
const kubernetesVersion = "v1.36.3"

const (
	apiPort  = 6443
	etcdPort = 2379
)

// ControlPlane returns the program with all parts of the control plane, and compiles it if the
// cache does not have it.
func ControlPlane(ctx context.Context, progress io.Writer) (string, error) {
	major, minor, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+kubernetesVersion, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor)
	}
	m := module{
		folder: "lab/controlplane", title: "the control plane", takes: "about 8 minutes on 2 cores", ldflags: flags,
	}
	return m.fetch(ctx, progress)
}

// startControlPlane starts etcd, the API server, the controller manager and the scheduler on the
// master, and waits until the API is complete.
func (l *Lab) startControlPlane(ctx context.Context) error {
	var err error
	if l.ca, err = newAuthority(); err != nil {
		return err
	}
	l.say("starting etcd and kube-apiserver %s on %s", kubernetesVersion, Master)
	if err := l.startAPIServer(); err != nil {
		return err
	}
	if err := l.connect(); err != nil {
		return err
	}
	if err := l.awaitAPIServer(ctx); err != nil {
		return err
	}
	l.say("starting kube-controller-manager and kube-scheduler")
	return l.startControllers()
}

func (l *Lab) startAPIServer() error {
	master, _ := l.Host(Master)
	addrs := []net.IP{net.IPv4(127, 0, 0, 1), master.Addr.Addr().AsSlice(), service4.Addr().Next().AsSlice()}
	services, advertised := service4.String(), master.Addr.Addr()
	if l.opts.IPv6 {
		addrs = append(addrs, net.IPv6loopback, master.Addr6.Addr().AsSlice(), service6.Addr().Next().AsSlice())
		services += "," + service6.String()
	}
	if l.opts.IPv6Only {
		services, advertised = service6.String(), master.Addr6.Addr()
	}
	serving, err := l.ca.server("kube-apiserver", []string{
		"localhost", Master, "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local",
	}, addrs)
	if err != nil {
		return err
	}
	tokens, err := l.ca.client("token signer") // only its key is used
	if err != nil {
		return err
	}
	asking, err := l.ca.client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"ca.crt": l.ca.pem, "apiserver.crt": serving.cert, "apiserver.key": serving.key, "tokens.key": tokens.key,
		"kubelet-client.crt": asking.cert, "kubelet-client.key": asking.key,
	} {
		if err := os.WriteFile(l.path("pki", name), text, 0o600); err != nil {
			return err
		}
	}
	client := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", etcdPort+1)
	etcd := []string{
		"etcd", "--name", Master, "--data-dir", l.path("etcd"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", Master + "=" + peer,
		"--unsafe-no-fsync", "--log-level", "warn",
	}
	apiserver := []string{
		"kube-apiserver", "--etcd-servers", client,
		"--bind-address", bindAll(l.opts.IPv6), "--secure-port", fmt.Sprint(apiPort), "--advertise-address",
		advertised.String(),
		"--tls-cert-file", l.path("pki", "apiserver.crt"), "--tls-private-key-file", l.path("pki", "apiserver.key"),
		"--client-ca-file", l.path("pki", "ca.crt"), "--authorization-mode", "Node,RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", l.path("pki", "tokens.key"), "--service-account-signing-key-file",
		l.path("pki", "tokens.key"),
		"--service-cluster-ip-range", services, "--allow-privileged", "--profiling=false",
		"--kubelet-preferred-address-types=InternalIP", "--kubelet-certificate-authority", l.path("pki", "ca.crt"),
		"--kubelet-client-certificate", l.path("pki", "kubelet-client.crt"),
		"--kubelet-client-key", l.path("pki", "kubelet-client.key"),
	}
	for _, args := range [][]string{etcd, apiserver} {
		if err := l.startPart(args...); err != nil {
			return err
		}
	}
	return nil
}

func bindAll(ipv6 bool) string {
	if ipv6 {
		return netip.IPv6Unspecified().String()
	}
	return netip.IPv4Unspecified().String()
}

func (l *Lab) startControllers() error {
	manager, err := l.writeKubeconfig("kube-controller-manager", "system:kube-controller-manager")
	if err != nil {
		return err
	}
	scheduler, err := l.writeKubeconfig("kube-scheduler", "system:kube-scheduler")
	if err != nil {
		return err
	}
	// Nobody reads their metrics: they need not listen.
	for _, args := range [][]string{{
		"kube-controller-manager", "--kubeconfig", manager, "--leader-elect=false", "--secure-port=0",
		"--profiling=false",
		"--use-service-account-credentials", "--service-account-private-key-file", l.path("pki", "tokens.key"),
		"--root-ca-file", l.path("pki", "ca.crt"),
	}, {
		"kube-scheduler", "--kubeconfig", scheduler, "--leader-elect=false", "--secure-port=0", "--profiling=false",
	}} {
		if err := l.startPart(args...); err != nil {
			return err
		}
	}
	return nil
}

// startPart starts a part of the control plane. args begin with the part's name. Its garbage collector runs each
// time the heap has five times its live bytes: a lab has more memory than processor time.
func (l *Lab) startPart(args ...string) error {
	return l.runPart(args[0], append([]string{"env", "GOGC=400", l.program}, args...)...)
}

// runPart runs a command as a part of the control plane.
func (l *Lab) runPart(name string, command ...string) error {
	p, err := l.start(name, netnsName(l.opts.Name, Master), command...)
	if err != nil {
		return err
	}
	l.parts = append(l.parts, p)
	return nil
}

// partsAlive returns an error that names a part of the control plane that has ended, with the end
// of its log.
func (l *Lab) partsAlive() error {
	for _, p := range l.parts {
		if err := p.alive(); err != nil {
			return fmt.Errorf("%w; it said:\n%s", err, tail(l.path("log", p.name+".log"), 2000))
		}
	}
	return nil
}

// tail returns the end of a file, at most n bytes.
func tail(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-n):])
}
