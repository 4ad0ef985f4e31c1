package haproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// jail makes the directory that is all the worker may see of the machine's files,
// with the NoticeSocket in it, and reports whether the worker can be locked into it
// (chroot, HAProxy Configuration Manual, 3.1). HAProxy reads all its files before,
// and speaks to itself by abstract addresses.
func (p *Proxy) jail() (dir string, locked bool, err error) {
	dir = p.opt.RunDir + "/jail"
	if err := os.Mkdir(dir, 0o710); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the worker's group passes through
		return "", false, err
	}
	if p.opt.Mode != Managed || p.opt.User == "" {
		return dir, false, nil // somebody else starts HAProxy, or a worker that is root could leave the jail
	}
	if err := p.mayLock(dir); err != nil {
		p.log.Warn("HAProxy's worker can reach files and sockets of this machine: HAProxy cannot lock it into a directory of its own (chroot)", "dir", dir, "error", err)
		return dir, false, nil
	}
	return dir, true, nil
}

var effective = regexp.MustCompile(`(?m)^CapEff:\s*([0-9a-f]+)$`)

// mayLock says what forbids HAProxy to enter a directory for good: a missing
// capability, or a filter of system calls. A HAProxy that runs keeps the
// capabilities that it was started with.
func (p *Proxy) mayLock(dir string) error {
	if master := p.recordedMaster(); master != 0 {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(master) + "/status")
		if err != nil {
			return err
		}
		if m := effective.FindSubmatch(text); m != nil {
			if set, err := strconv.ParseUint(string(m[1]), 16, 64); err != nil || set>>unix.CAP_SYS_CHROOT&1 == 0 {
				return fmt.Errorf("HAProxy, which runs as process %d, was started without CAP_SYS_CHROOT: start it again", master)
			}
		}
	}
	cmd := exec.Command("/nothing")
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
	err := cmd.Start()
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was inside, where no program is
		return nil
	case err == nil: // the filter ended it
		return cmd.Wait()
	}
	return fmt.Errorf("it needs CAP_SYS_CHROOT and the system call chroot (%w)", err)
}
