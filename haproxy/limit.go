package haproxy

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A connection over TLS takes about 50 kB until its handshake is over. It takes twice
// that while its buffers hold a request and the answer.
const memoryOfConnection = 100 << 10

// mostConnections returns the number of client connections that half of the memory
// holds. If there are fewer file descriptors, it returns the number that those allow,
// and short says so. HAProxy by itself would allow as many connections as it has file
// descriptors for.
func mostConnections(memory, files uint64) (most int, short string) {
	const least, all = 1000, 1_000_000
	byMemory := int(min(max(memory/2/memoryOfConnection, least), all)) //nolint:gosec // it fits
	// Each connection takes two file descriptors. The rest is for listeners and checks.
	byFiles := int(min(files/8*3, all)) //nolint:gosec // it fits
	if byFiles >= byMemory {
		return byMemory, ""
	}
	return byFiles, fmt.Sprintf("%d open files allow %d connections, and the memory allows %d: raise LimitNOFILE of the unit to %d", files, byFiles, byMemory, byMemory*8/3+8)
}

// memory returns the memory of the machine or of the container, in bytes; 0 if it
// cannot be read.
func memory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	total := info.Totalram * uint64(info.Unit)
	if text, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			total = min(total, limit)
		}
	}
	return total
}

// openFiles returns how many files a child of this process may have open.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return limit.Max
}
