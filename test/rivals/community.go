package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sallyport/test/lab/world"
)

// communityModule is HAProxy Ingress in the newest version that the Go module proxy served when this was
// written. Newer ones exist.
const communityModule = "github.com/jcmoraisjr/haproxy-ingress@v0.14.0"

// noJSON stands in for the library that its image has for external authentication, which no event uses.
const noJSON = "local function none() error('no library for JSON is here') end\n" +
	"return {encode = none, decode = none}\n"

// community returns HAProxy Ingress of jcmoraisjr outside the cluster, beside BIRD. It runs in its local
// mode, which needs the folder rootfs of its source as its working directory has it.
func community(folder, haproxy string) contender {
	home := filepath.Join(folder, "haproxy-ingress")
	program := filepath.Join(home, "controller")
	return contender{
		name:     "haproxy-ingress",
		class:    "community",
		older:    true,
		timeout:  "haproxy-ingress.github.io/timeout-server",
		volatile: []string{"community/var/run/haproxy"},
		build:    func(ctx context.Context) error { return buildCommunity(ctx, home, program) },
		serve: func(ctx context.Context, a *arena) (string, error) {
			bird, err := a.bird(ctx)
			err = errors.Join(err, a.Apply(ctx, ingressClass("community", "haproxy-ingress.github.io/controller")+
				"---\n"+configMap("haproxy-ingress", "")))
			files := a.path("community")
			for _, sub := range []string{"etc/haproxy", "var/run/haproxy", "var/lib/haproxy"} {
				err = errors.Join(err, os.MkdirAll(filepath.Join(files, sub), 0o755))
			}
			err = errors.Join(err, os.CopyFS(filepath.Join(files, "etc/haproxy/lua"),
				os.DirFS(filepath.Join(home, "rootfs/etc/lua"))))
			err = errors.Join(err, os.WriteFile(filepath.Join(files, "etc/haproxy/lua/json.lua"), []byte(noJSON), 0o600))
			err = errors.Join(err, a.start(ctx, world.Appliance, controller, "env", "-C", home,
				"PATH="+filepath.Dir(haproxy)+":"+os.Getenv("PATH"), "POD_NAMESPACE=default", program,
				"--kubeconfig="+a.KubeconfigFile(), "--local-filesystem-prefix="+files, "--update-status=false",
				"--configmap=default/haproxy-ingress"))
			version, err := versions(ctx, err, haproxy, "-v", bird, "--version")
			return communityModule + "; " + version, err
		},
		joined: tellBIRD,
		places: func(most int) string {
			const usual = 6 // beside the place of the Service's only server
			return configMap("haproxy-ingress", fmt.Sprintf("slots-min-free: '%d'", min(most-1, usual)))
		},
		stop: func(a *arena) error {
			pid, err := os.ReadFile(a.path("community", "var/run/haproxy/haproxy.pid"))
			if err != nil {
				return err
			}
			return exec.Command("kill", strings.Fields(string(pid))...).Run() //nolint:gosec,noctx // its own HAProxy
		},
	}
}

// buildCommunity compiles HAProxy Ingress from its module, once, and puts its templates and scripts beside
// the program.
func buildCommunity(ctx context.Context, home, program string) error {
	if _, err := os.Stat(program); err == nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", communityModule).Output()
	if err != nil {
		return fmt.Errorf("go mod download %s: %w", communityModule, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	rootfs := filepath.Join(home, "rootfs")
	if err := errors.Join(os.RemoveAll(home), os.MkdirAll(home, 0o755)); err != nil {
		return err
	}
	if err := os.CopyFS(rootfs, os.DirFS(filepath.Join(module.Dir, "rootfs"))); err != nil {
		return err
	}
	// A module keeps no mode of its files.
	for _, script := range []string{"haproxy-reload.sh", "haproxy-shutdown.sh"} {
		if err := os.Chmod(filepath.Join(rootfs, script), 0o755); err != nil { //nolint:gosec // its controller runs it
			return err
		}
	}
	return compile(ctx, module.Dir, program, "./pkg")
}

// compile builds a package of another module, in the folder of its source.
func compile(ctx context.Context, source, program, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-C", source, "-o", program, pkg)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s of %s: %w\n%s", pkg, source, err, out)
	}
	return nil
}
