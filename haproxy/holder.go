package haproxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// holder returns the process that listens where HAProxy should, as "nginx (pid 714)". It returns ""
// if nobody listens there, or HAProxy does.
func holder(addr netip.AddrPort, own procs) string {
	for inode := range listeners(addr) {
		links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, link := range links {
			if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
				continue
			}
			dir := filepath.Dir(filepath.Dir(link))
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if pid == own.master || slices.Contains(own.workers, pid) || slices.Contains(own.old, pid) {
				break
			}
			name, _ := os.ReadFile(filepath.Join(dir, "comm"))
			return strings.TrimSpace(string(name)) + " (pid " + strconv.Itoa(pid) + ")"
		}
	}
	return ""
}

// listeners returns the inodes of the sockets that listen on addr's port at an
// address that excludes addr (proc(5), /proc/net/tcp).
func listeners(addr netip.AddrPort) map[string]bool {
	out := make(map[string]bool)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) < 10 || words[3] != "0A" {
				continue
			}
			host, port, _ := strings.Cut(words[1], ":")
			if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != addr.Port() {
				continue
			}
			if ip, ok := kernelAddr(host); ok && (ip == addr.Addr() || ip.IsUnspecified() ||
				addr.Addr().IsUnspecified()) {
				out[words[9]] = true
			}
		}
	}
	return out
}

// kernelAddr reads an address as the kernel prints it: 32-bit words in the
// machine's byte order, which is little-endian where we run.
func kernelAddr(hex string) (netip.Addr, bool) {
	if len(hex)%8 != 0 {
		return netip.Addr{}, false
	}
	var out []byte
	for i := 0; i < len(hex); i += 8 {
		n, err := strconv.ParseUint(hex[i:i+8], 16, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		out = append(out, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
	}
	ip, ok := netip.AddrFromSlice(out)
	return ip.Unmap(), ok
}
