package world

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"sallyport/test/lab/debian"
)

//go:embed packages.txt
var packageList string

// packages returns the Debian packages that a lab and its appliance need, each with the programs
// that show that it is installed.
func packages() map[string][]string {
	list := map[string][]string{}
	for line := range strings.Lines(packageList) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 0 {
			list[fields[0]] = fields[1:]
		}
	}
	return list
}

// missingPrograms returns the programs that the lab needs and PATH does not have.
func missingPrograms() []string {
	var missing []string
	for _, program := range []string{"ip", "sysctl"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	return missing
}

// Setup installs the missing Debian packages, and fetches BIRD into the cache. With tests it also
// fetches what only tests need: BIRD 2, Prometheus, FRR, nginx, other HAProxys, and what Calico calls.
func Setup(ctx context.Context, tests bool, progress io.Writer) error {
	if err := install(ctx, progress); err != nil {
		return err
	}
	if _, err := debian.BIRD(ctx, 1, progress); err != nil || !tests {
		return err
	}
	if _, err := debian.BIRD(ctx, 2, progress); err != nil {
		return err
	}
	if _, err := debian.Prometheus().Fetch(ctx, progress); err != nil {
		return err
	}
	if _, err := debian.FRR(ctx, progress); err != nil {
		return err
	}
	if _, err := debian.Nginx().Fetch(ctx, progress); err != nil {
		return err
	}
	if err := fetchTools(ctx, progress); err != nil {
		return err
	}
	return debian.FetchHAProxies(ctx, progress)
}

// install installs the missing packages. Installed ones stay as they are. A daemon of a new
// package is not started.
func install(ctx context.Context, progress io.Writer) error {
	var missing []string
	for name, programs := range packages() {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				missing = append(missing, name)
				break
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages %s are missing: run this as root", strings.Join(missing, ", "))
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this is not Debian: install %s yourself", strings.Join(missing, ", "))
	}
	// The scripts of a package run policy-rc.d before they start its daemon: exit status 101 forbids
	// that. Otherwise HAProxy would run on this machine from now on.
	undo, err := forbidDaemons(ctx, missing)
	if err != nil {
		return err
	}
	say(progress, "installing %s", strings.Join(missing, ", "))
	err = apt(ctx, "install", missing)
	if err != nil {
		say(progress, "fetching the package lists first")
		if err = apt(ctx, "update", nil); err == nil {
			err = apt(ctx, "install", missing)
		}
	}
	return errors.Join(err, undo())
}

func apt(ctx context.Context, verb string, names []string) error {
	args := append([]string{verb, "-y", "-q"}, names...)
	if verb == "install" {
		args = append(args, "--no-install-recommends")
	}
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	_, err := output(cmd)
	return err
}

const policy = "/usr/sbin/policy-rc.d"

// forbidDaemons keeps packages from starting daemons during their installation and afterwards. The
// returned function lifts the ban for all other packages.
func forbidDaemons(ctx context.Context, names []string) (undo func() error, err error) {
	undo = func() error { return nil }
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil { //nolint:gosec // it must be executable
			return nil, err
		}
		undo = func() error { return os.Remove(policy) }
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil || !slices.Contains(names, "haproxy") {
		return undo, nil // no systemd: nothing would start it at boot
	}
	if _, err := output(exec.CommandContext(ctx, "systemctl", "mask", "haproxy.service")); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}
