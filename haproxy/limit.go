package haproxy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Room holds the memory and the open files that HAProxy may use.
type Room struct {
	Memory uint64 `json:"memory,omitempty"`    // bytes of the machine or of the container; 0 if not known
	Files  uint64 `json:"openFiles,omitempty"` // how many files HAProxy may have open; 0 if not known
}

const (
	// A connection over TLS takes about 50 kB until its handshake is over. It takes twice
	// that while its buffers hold a request and the answer.
	memoryOfConnection = 100 << 10

	// An entry of a table takes 160 bytes (2.6: 92 MB more for 600,000 clients).
	memoryOfClient = 160

	// HAProxy has two open files for each connection, and one for each check that is
	// under way. Beside those 2.6, 3.0 and 3.2 took 29 to 51, one for each listener, and
	// three for each thread; there are at most 64 threads.
	filesOfConnection = 2
	filesOfProcess    = 500

	// HAProxy sets aside a file for each server with a check, although a check of a server that
	// answers takes a millisecond of every two seconds. In a test there were four servers for each
	// file. Half of the servers stopped answering at once, and no other server went DOWN.
	serversOfFile = 4
)

// Connections returns how many client connections HAProxy should accept while it has that many
// servers. This is want, or the number that fits in half of the memory if want is 0. If the open
// files do not suffice, Connections returns fewer. It returns 0 if HAProxy should choose.
//
// A change of the number takes a reload. Connections therefore reserves whole quarters of the files
// for the servers, from one to three, and somewhat more than they need.
func (r Room) Connections(servers, want int) int {
	const least, all = 1000, 1_000_000
	if want == 0 && r.Memory > 0 {
		want = int(min(max(r.Memory/2/memoryOfConnection, least), all)) //nolint:gosec // it fits
	}
	files := r.files()
	if files == 0 || want == 0 {
		return want
	}
	return max(min(want, (files-files/4*r.quarters(servers))/filesOfConnection), 1)
}

// quarters returns how many quarters of the files are reserved for that many servers.
func (r Room) quarters(servers int) int {
	quarters := 1
	for quarters < 3 && r.files()/4*quarters*serversOfFile < servers+servers/20 {
		quarters++
	}
	return quarters
}

// Kept returns Connections for a worker that accepts running connections now. Kept returns running
// if Connections returns it for some larger number of servers. A tenant that adds and removes
// servers again and again therefore causes at most one reload for each quarter of the files.
func (r Room) Kept(running, servers, want int) int {
	for quarters := r.quarters(servers); quarters < 3 && r.files() > 0; quarters++ {
		if few := r.Connections(r.files()/4*quarters*serversOfFile+1, want); few == running {
			return few
		}
	}
	return r.Connections(servers, want)
}

// Clients returns how many clients the tables of limits can hold in a quarter of the memory. It
// returns 0 if the memory is not known.
func (r Room) Clients() int { return int(r.Memory / 4 / memoryOfClient) } //nolint:gosec // it fits

// Servers returns how many servers HAProxy can have, at most. A quarter of the open files is left
// for connections. Servers returns 0 if there is no known bound.
func (r Room) Servers() int { return r.files() / 4 * 3 * serversOfFile }

// files returns how many open files there are for connections and servers. It returns 0 if that is
// not known.
func (r Room) files() int {
	if r.Files == 0 {
		return 0
	}
	const all = 1 << 30
	return max(int(min(r.Files, all))-filesOfProcess, 8) //nolint:gosec // it fits
}

// Machine returns the Room of a HAProxy that this process would start. It also raises the limit of
// open files as far as the kernel permits.
func Machine() Room {
	raise()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		limit.Max = 0
	}
	return Room{Memory: memory(), Files: limit.Max}
}

// memory returns the memory of the machine or of the container, in bytes; 0 if it
// cannot be read.
func memory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	total := info.Totalram * uint64(info.Unit)
	if limit, err := strconv.ParseUint(readText("/sys/fs/cgroup/memory.max"), 10, 64); err == nil {
		total = min(total, limit)
	}
	return total
}

// raise raises the limit of open files of this process, which HAProxy inherits, as far as
// the kernel permits: to the hard limit, and with CAP_SYS_RESOURCE beyond it.
var raise = sync.OnceFunc(func() {
	const all = 1 << 22 // some kernels permit 2^30
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return
	}
	most := max(limit.Max, min(uint64(number(readText("/proc/sys/fs/nr_open"))), all)) //nolint:gosec // it is positive
	for _, most := range []uint64{most, limit.Max} {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err == nil {
			return
		}
	}
})

// room returns the Room of the HAProxy that runs, or of the one that this process would start. A
// HAProxy keeps the limit of open files with which it was started.
func (p *Proxy) room() Room {
	r := Machine()
	if p.opt.Mode == External {
		r = Room{} // the program that starts HAProxy decides
	}
	if pid := p.procs.master; pid != 0 && p.isOurs(pid) {
		r.Files = cmp.Or(filesOf(pid), r.Files)
	}
	return r
}

// filesOf returns how many files a process may have open; 0 if that is not known.
func filesOf(pid int) uint64 {
	for line := range strings.Lines(readText("/proc/" + strconv.Itoa(pid) + "/limits")) {
		if rest, is := strings.CutPrefix(line, "Max open files"); is {
			var soft, hard uint64
			_, _ = fmt.Sscan(rest, &soft, &hard)
			return hard
		}
	}
	return 0
}
