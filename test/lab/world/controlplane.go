package world

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/test/lab/debian"
)

// kubernetesVersion is the version that all parts report. The control plane's go.mod has the same.
const kubernetesVersion = "v1.36.3"

const (
	apiPort  = 6443
	etcdPort = 2379
)

// ControlPlane returns the program with all parts of the control plane, and compiles it if the
// cache does not have it. It looks for the source in the repository around the working directory.
// The cache is $SALLYPORT_CACHE, or sallyport in the user's cache directory.
func ControlPlane(ctx context.Context, progress io.Writer) (string, error) {
	source, err := controlPlaneSource()
	if err != nil {
		return "", err
	}
	key := sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		key.Write(text)
	}
	cache, err := debian.Cache()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return "", err
	}
	program := filepath.Join(cache, "controlplane-"+hex.EncodeToString(key.Sum(nil)[:8]))
	lock, err := os.OpenFile(program+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // closing is unlocking
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(program); !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	return program, compile(ctx, source, program, progress)
}

// controlPlaneSource finds test/lab/controlplane above the working directory.
func controlPlaneSource() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		source := filepath.Join(dir, "test", "lab", "controlplane")
		if _, err := os.Stat(filepath.Join(source, "main.go")); err == nil {
			return source, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no test/lab/controlplane above %s: run this inside the repository", start)
		}
	}
}

// compile builds the program and moves it into place when it is complete.
func compile(ctx context.Context, source, program string, progress io.Writer) error {
	say(progress, "compiling the control plane: this once, about 8 minutes on 2 cores")
	begun := time.Now()
	major, minor, _ := strings.Cut(strings.TrimPrefix(kubernetesVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+kubernetesVersion, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor)
	}
	half := program + ".new"
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-ldflags", strings.Join(flags, " "), "-o", half, ".")
	cmd.Dir = source
	// go build passes an interrupt on to its compilers.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	lines, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("compile the control plane: %w", err)
	}
	packages := make(chan string)
	go func() {
		defer close(packages)
		for scan := bufio.NewScanner(lines); scan.Scan(); {
			packages <- scan.Text()
		}
	}()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	var said []string // go build -v names each package; what else it says is a complaint
	for count := 0; packages != nil; {
		select {
		case line, more := <-packages:
			if !more {
				packages = nil
				break
			}
			count++
			said = append(said, line)
			if len(said) > 20 {
				said = said[1:]
			}
		case <-tick.C:
			say(progress, "compiling the control plane: %s, %d packages", time.Since(begun).Round(time.Second), count)
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("compile the control plane: %w:\n%s", err, strings.Join(said, "\n"))
	}
	say(progress, "compiled the control plane in %s", time.Since(begun).Round(time.Second))
	return os.Rename(half, program)
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
	services := service4.String()
	if l.opts.IPv6 {
		addrs = append(addrs, net.IPv6loopback, master.Addr6.Addr().AsSlice(), service6.Addr().Next().AsSlice())
		services += "," + service6.String()
	}
	serving, err := l.ca.server([]string{
		"localhost", Master, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}, addrs)
	if err != nil {
		return err
	}
	tokens, err := l.ca.client("token signer") // only its key is used
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"ca.crt": l.ca.pem, "apiserver.crt": serving.cert, "apiserver.key": serving.key, "tokens.key": tokens.key,
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
		"--bind-address", bindAll(l.opts.IPv6), "--secure-port", fmt.Sprint(apiPort), "--advertise-address", master.Addr.Addr().String(),
		"--tls-cert-file", l.path("pki", "apiserver.crt"), "--tls-private-key-file", l.path("pki", "apiserver.key"),
		"--client-ca-file", l.path("pki", "ca.crt"), "--authorization-mode", "Node,RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", l.path("pki", "tokens.key"), "--service-account-signing-key-file", l.path("pki", "tokens.key"),
		"--service-cluster-ip-range", services, "--allow-privileged", "--profiling=false",
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
		"kube-controller-manager", "--kubeconfig", manager, "--leader-elect=false", "--secure-port=0", "--profiling=false",
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

// startPart starts a part of the control plane. args begin with the part's name.
func (l *Lab) startPart(args ...string) error {
	p, err := l.start(args[0], netnsName(l.opts.Name, Master), append([]string{l.program}, args...)...)
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
