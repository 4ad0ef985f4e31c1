package haproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// jail makes a directory for the NoticeSocket, and reports whether the worker can be locked into it
// (chroot, HAProxy Configuration Manual, 3.1). A worker in the jail sees no other files of the
// machine. HAProxy reads all its files before, and connects to itself at abstract addresses.
func (p *Proxy) jail() (dir string, locked bool, err error) {
	dir = p.opt.RunDir + "/jail"
	if err := os.Mkdir(dir, 0o710); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the worker's group passes through
		return "", false, err
	}
	if p.opt.Mode != Managed || p.opt.User == "" {
		return dir, false, nil // somebody else starts HAProxy, or a worker that is root could leave the jail
	}
	if err := p.mayLock(dir); err != nil {
		p.log.Warn("HAProxy's worker can reach files and sockets of this machine, because HAProxy cannot lock it "+
			"into a directory (chroot)", "dir", dir, "err", err)
		return dir, false, nil
	}
	return dir, true, nil
}

// mayLock returns an error if HAProxy cannot lock itself into a directory. A capability may be
// missing, or a filter may forbid the system call. A running HAProxy keeps the capabilities that it
// was started with.
func (p *Proxy) mayLock(dir string) error {
	if master := p.recordedMaster(); master != 0 {
		// version 3 has 64 bits (capget(2))
		var held [2]unix.CapUserData
		if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(master)}, &held[0]); err != nil { //nolint:gosec // a pid fits
			return fmt.Errorf("the capabilities of HAProxy, process %d, cannot be read: %w", master, err)
		}
		if held[0].Effective>>unix.CAP_SYS_CHROOT&1 == 0 {
			return fmt.Errorf("HAProxy runs as process %d without CAP_SYS_CHROOT: restart HAProxy", master)
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
	return fmt.Errorf("HAProxy needs CAP_SYS_CHROOT and the system call chroot: %w", err)
}
