package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
)

// A contender is a way to serve an Ingress from a machine outside the cluster.
type contender struct {
	name  string
	class string // of its Ingresses; empty means haproxy
	one   bool   // it serves one application alone, and reads no Ingress
	mute  bool   // it speaks no BGP, so the nodes are not told to peer with it
	older bool   // it reads Endpoints, and no EndpointSlices
	// timeout is the annotation for the time that a server may be silent, if its change takes a reload of HAProxy
	timeout string
	// build puts the programs where serve finds them; nil means that there is nothing to build
	build func(context.Context) error
	// serve starts the programs, and returns their versions
	serve func(context.Context, *arena) (string, error)
	// joined does by hand what a new node takes; nil means nothing
	joined func(ctx context.Context, a *arena, node string) error
	// places returns the object that bounds the places for servers of each Service; nil means that nothing bounds them
	places   func(most int) string
	volatile []string // folders of the arena that lie below /run elsewhere: a restart of the machine empties them
	// stop ends what outlives the programs that serve started; nil means nothing does
	stop func(*arena) error
}

func (c contender) ingressClass() string { return cmp.Or(c.class, "haproxy") }

// controller is the name of the part that follows the cluster's API.
const controller = "controller"

// contenders returns all contenders. Their programs lie in a folder; empty means the cache.
func contenders(ctx context.Context, folder string) ([]contender, error) {
	if folder == "" {
		cache, err := debian.Cache()
		if err != nil {
			return nil, err
		}
		folder = filepath.Join(cache, "rivals")
	}
	haproxy, err := haproxyProgram(ctx)
	if err != nil {
		return nil, err
	}
	return []contender{
		sallyport(haproxy),
		kic(folder, haproxy),
		traefik(folder),
		community(folder, haproxy),
		nodeport(),
		model(haproxy),
	}, nil
}

// sallyport returns this project.
func sallyport(haproxy string) contender {
	return contender{
		name:     "sallyport",
		timeout:  "haproxy.org/timeout-server",
		volatile: []string{"run"},
		serve: func(ctx context.Context, a *arena) (string, error) {
			err := a.start(ctx, world.Appliance, controller, a.path("sallyport"), "run", "--config",
				a.path("sallyport.yaml"))
			return versions(ctx, err, haproxy, "-v")
		},
	}
}

// haproxyProgram returns the HAProxy that all contenders with HAProxy run: the one that
// SALLYPORT_TEST_HAPROXY names, else 3.2, which KIC 3.2 is made for.
func haproxyProgram(ctx context.Context) (string, error) {
	program := os.Getenv("SALLYPORT_TEST_HAPROXY")
	if program == "" {
		folder, err := debian.Package{Suite: "sid", Name: "haproxy"}.Fetch(ctx, os.Stderr)
		if err != nil {
			return "", err
		}
		program = filepath.Join(folder, "haproxy")
	}
	return program, os.Setenv("SALLYPORT_TEST_HAPROXY", program) // package rig reads it
}

// versions returns the first line that each program prints about itself.
func versions(ctx context.Context, err error, programs ...string) (string, error) {
	if err != nil {
		return "", err
	}
	var all []string
	for i := 0; i+1 < len(programs); i += 2 {
		out, err := exec.CommandContext(ctx, programs[i], programs[i+1]).CombinedOutput()
		if err != nil && len(out) == 0 {
			return "", fmt.Errorf("%s %s: %w", programs[i], programs[i+1], err)
		}
		line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		all = append(all, line)
	}
	return strings.Join(all, "; "), nil
}

// kic returns HAProxy's own ingress controller in its external mode beside BIRD, as its documents
// describe.
func kic(folder, haproxy string) contender {
	program := filepath.Join(folder, "kic")
	return contender{
		name:     "kic",
		class:    "kic",
		timeout:  "haproxy.org/timeout-server",
		volatile: []string{"kic-run"},
		build:    func(ctx context.Context) error { return buildKIC(ctx, program) },
		serve: func(ctx context.Context, a *arena) (string, error) {
			// The controller of its class has to end with the name of the class.
			if err := a.Apply(ctx, ingressClass("kic", "haproxy.org/ingress-controller/kic")+
				"---\n"+configMap("haproxy-kubernetes-ingress", "")); err != nil {
				return "", err
			}
			bird, err := a.bird(ctx)
			for _, name := range []string{"kic-config", "kic-run"} {
				err = errors.Join(err, os.MkdirAll(a.path(name), 0o755))
			}
			err = errors.Join(err, a.start(ctx, world.Appliance, controller, program,
				"--external", "--ingress.class=kic", "--kubeconfig="+a.KubeconfigFile(),
				"--configmap=default/haproxy-kubernetes-ingress",
				"--program="+haproxy, "--disable-ipv6", "--ipv4-bind-address=0.0.0.0",
				"--http-bind-port=80", "--https-bind-port=443", "--config-dir="+a.path("kic-config"),
				"--runtime-dir="+a.path("kic-run")))
			return versions(ctx, err, haproxy, "-v", bird, "--version")
		},
		joined: tellBIRD,
		places: func(most int) string {
			const usual = 42
			return configMap("haproxy-kubernetes-ingress", fmt.Sprintf("scale-server-slots: '%d'", min(most, usual)))
		},
	}
}

// configMap returns a ConfigMap of namespace default.
func configMap(name, data string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: default}, data: {%s}}\n", name,
		data)
}

// traefik returns Traefik outside the cluster, beside BIRD.
func traefik(folder string) contender {
	program := filepath.Join(folder, "traefik")
	return contender{
		name:  "traefik",
		class: "traefik",
		build: func(context.Context) error { return present(program, "Traefik 3") },
		serve: func(ctx context.Context, a *arena) (string, error) {
			bird, err := a.bird(ctx)
			err = errors.Join(err, a.Apply(ctx, ingressClass("traefik", "traefik.io/ingress-controller")))
			err = errors.Join(err, a.start(ctx, world.Appliance, controller, "env", "KUBECONFIG="+a.KubeconfigFile(),
				program, "--entryPoints.web.address=:80", "--providers.kubernetesIngress=true",
				"--providers.kubernetesIngress.ingressClass=traefik", "--global.checkNewVersion=false",
				"--global.sendAnonymousUsage=false"))
			return versions(ctx, err, program, "version", bird, "--version")
		},
		joined: tellBIRD,
	}
}

// ingressClass returns an IngressClass of a controller.
func ingressClass(name, controller string) string {
	return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: %s}, "+
		"spec: {controller: %s}}\n", name, controller)
}

// present returns an error if a program that nothing here builds is not there.
func present(program, what string) error {
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%s is not at %s: build it, or leave it out with -of: %w", what, program, err)
	}
	return nil
}

// buildKIC compiles KIC from the source archive that SALLYPORT_KIC_SOURCE names. The Go module proxy
// does not serve its module.
func buildKIC(ctx context.Context, program string) (err error) {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	archive := os.Getenv("SALLYPORT_KIC_SOURCE")
	if archive == "" {
		return fmt.Errorf("KIC is not at %s: name an archive of its source, as GitHub has for the tag v3.2.11, in "+
			"SALLYPORT_KIC_SOURCE", program)
	}
	dir, err := os.MkdirTemp("", "sallyport-kic-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	unpack := exec.CommandContext(ctx, "tar", "-xzf", archive, "-C", dir, "--strip-components=1")
	if out, err := unpack.CombinedOutput(); err != nil {
		return fmt.Errorf("unpack %s: %w\n%s", archive, err, out)
	}
	return compile(ctx, dir, program, ".")
}

// bird runs Debian's BIRD 2 on the appliance's host, with a session to each node, and returns the
// program.
func (a *arena) bird(ctx context.Context) (string, error) {
	folder, err := debian.BIRD(ctx, 2, os.Stderr)
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "bird")
	return program, errors.Join(
		os.WriteFile(a.path("bird.conf"), []byte(a.birdConfig(world.Master, "worker1", "worker2")), 0o600),
		a.start(ctx, world.Appliance, "bird", program, "-f", "-c", a.path("bird.conf"), "-s", a.path("bird.ctl")))
}

// birdConfig returns BIRD's configuration with a session to each of some nodes. The documents of KIC
// import only the node's own network. Here that is any block of the pools, so that blocks may come.
func (a *arena) birdConfig(nodes ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `router id 192.168.50.21;
protocol device { scan time 1; }
protocol kernel { scan time 20; ipv4 { import none; export all; }; }
`)
	for _, node := range nodes {
		h, _ := a.Host(node)
		fmt.Fprintf(&b, `protocol bgp %s {
  local 192.168.50.21 as 65000;
  neighbor %s as 65000;
  direct;
  ipv4 { import filter { if net ~ [ 172.16.0.0/15{26,32} ] then accept; reject; }; export none; };
}
`, node, h.Addr.Addr())
	}
	return b.String()
}

// tellBIRD adds a session to a new node to BIRD's configuration.
func tellBIRD(ctx context.Context, a *arena, node string) error {
	folder, err := debian.BIRD(ctx, 2, os.Stderr)
	if err != nil {
		return err
	}
	config := a.birdConfig(world.Master, "worker1", "worker2", node)
	if err := os.WriteFile(a.path("bird.conf"), []byte(config), 0o600); err != nil {
		return err
	}
	_, err = a.Exec(ctx, world.Appliance, filepath.Join(folder, "birdc"), "-s", a.path("bird.ctl"), "configure")
	return err
}
