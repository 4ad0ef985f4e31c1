package image

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// backlog returns how many connections each listening port holds that are half open, or not
// accepted yet, on a machine with that much memory in bytes: 4 for each MiB. A half open connection
// takes 0.9 kB, and anybody can leave such connections by invented addresses. The kernel answers
// further connections with SYN cookies, which take no memory, so the limit refuses nobody. A higher
// value in listen(2) has no effect.
func backlog(memory uint64) int {
	return int(min(max(memory>>20*4, 1024), 65535)) //nolint:gosec // bounded
}

// limitBacklogs sets the limit of the kernel by the memory of this machine.
func (m Machine) limitBacklogs() error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	n := []byte(strconv.Itoa(backlog(uint64(info.Totalram) * uint64(info.Unit)))) //nolint:unconvert // not so everywhere
	var errs []error
	for _, key := range []string{"net/core/somaxconn", "net/ipv4/tcp_max_syn_backlog"} {
		if err := os.WriteFile(m.path("/proc/sys/"+key), n, 0o644); err != nil { //nolint:gosec // it is there, with its mode
			errs = append(errs, fmt.Errorf("limit half-open connections: %w", err))
		}
	}
	return errors.Join(errs...)
}
