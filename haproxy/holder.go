package haproxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// sockets are the TCP sockets of this machine that listen, by inode, as they were at one moment. Reading
// them costs as much as the machine has connections, so one reading answers for all ports in question.
type sockets struct {
	at     map[string]netip.AddrPort
	owners map[string]int // pid of the process that has each of them; nil until somebody asks
}

// listening reads the sockets that listen (proc(5), /proc/net/tcp).
func listening() *sockets {
	s := &sockets{at: make(map[string]netip.AddrPort)}
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
			n, err := strconv.ParseUint(port, 16, 16)
			if ip, ok := kernelAddr(host); ok && err == nil {
				s.at[words[9]] = netip.AddrPortFrom(ip, uint16(n))
			}
		}
	}
	return s
}

// holder returns the process that listens where HAProxy should, as "nginx (pid 714)". It returns ""
// if nobody listens there, or HAProxy does.
func (s *sockets) holder(addr netip.AddrPort, own procs) string {
	for inode, at := range s.at {
		excludes := at.Addr() == addr.Addr() || at.Addr().IsUnspecified() || addr.Addr().IsUnspecified()
		if at.Port() != addr.Port() || !excludes {
			continue
		}
		pid, known := s.owner(inode)
		if !known || pid == own.master || slices.Contains(own.workers, pid) || slices.Contains(own.old, pid) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
		return strings.TrimSpace(string(name)) + " (pid " + strconv.Itoa(pid) + ")"
	}
	return ""
}

// owner returns the process that has a socket.
func (s *sockets) owner(inode string) (pid int, known bool) {
	if s.owners == nil {
		s.owners = make(map[string]int)
		links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, link := range links {
			target, err := os.Readlink(link)
			of, is := strings.CutPrefix(target, "socket:[")
			if err != nil || !is {
				continue
			}
			of = strings.TrimSuffix(of, "]")
			_, listens := s.at[of]
			if _, found := s.owners[of]; listens && !found {
				s.owners[of], _ = strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
			}
		}
	}
	pid, known = s.owners[inode]
	return pid, known
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
