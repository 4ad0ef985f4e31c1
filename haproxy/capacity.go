package haproxy

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Capacity says how much of a limited resource is in use.
type Capacity struct {
	Resource string `json:"resource"`
	Used     uint64 `json:"used"`
	Limit    uint64 `json:"limit"`
	Remedy   string `json:"remedy"` // what to do before Used reaches Limit, in words
}

// Near reports whether at least four fifths are in use.
func (c Capacity) Near() bool { return float64(c.Used) >= 0.8*float64(c.Limit) }

// Far reports whether less than three quarters are in use.
func (c Capacity) Far() bool { return float64(c.Used) < 0.75*float64(c.Limit) }

// memoryResource is the resource that is counted in bytes.
const memoryResource = "memory"

// Amount returns how much is in use, in words.
func (c Capacity) Amount() string {
	used, limit, unit := c.Used, c.Limit, ""
	if c.Resource == memoryResource {
		used, limit, unit = used>>20, limit>>20, " MiB"
	}
	return fmt.Sprintf("%d of %d%s (%d %%)", used, limit, unit, 100*used/max(limit, 1))
}

// Capacity compares the servers that the clusters want with those that HAProxy can have. It
// compares the clients that the tables of all limits may hold with those for which there is memory.
// It leaves out a resource with an unknown limit.
func (r Room) Capacity(servers int, tables []Table) (all []Capacity) {
	if r.Files > 0 {
		all = append(all, Capacity{
			Resource: "servers", Used: uint64(servers), Limit: uint64(r.Servers()), //nolint:gosec // it fits
			Remedy: fmt.Sprintf("beyond the limit the youngest Services wait; HAProxy may open %d files, so raise "+
				"LimitNOFILE of the unit that starts HAProxy to %d, then end HAProxy and start it again",
				r.Files, 2*max(r.Files, uint64(servers))),
		})
	}
	clients := 0
	for _, t := range tables {
		clients += t.Size
	}
	if most := r.Clients(); most > 0 && clients > 0 {
		all = append(all, Capacity{
			Resource: "clients that limits may count",
			Used:     uint64(clients), Limit: uint64(most), //nolint:gosec // it fits
			Remedy: "beyond the limit they would take more than a quarter of the memory, if as many clients came; " +
				"add memory, " +
				"or lower clusters[].ingress.limits.clients, or rate-limit-size",
		})
	}
	return all
}

// Describe returns in words how many connections and servers HAProxy can hold. want is the
// configured number of connections, or 0.
func (r Room) Describe(want int) string {
	few, wish := r.Connections(0, want), Room{Memory: r.Memory}.Connections(0, want)
	text := fmt.Sprintf("%d connections with up to %d servers, %d connections with up to %d servers",
		few, (r.files()-filesOfConnection*few)*serversOfFile, r.Connections(r.Servers(), want), r.Servers())
	if few < wish {
		who := fmt.Sprintf("the memory holds %d connections", wish)
		if want > 0 {
			who = fmt.Sprintf("%d connections are configured", wish)
		}
		text += fmt.Sprintf("; %s, which need a limit of %d open files (LimitNOFILE, ulimit -Hn), now %d", who,
			filesFor(wish), r.Files)
	}
	if clients := r.Clients(); clients > 0 {
		text += fmt.Sprintf("; a quarter of the memory holds %d clients that rate limits count", clients)
	}
	return text
}

// filesFor returns how many open files suffice for that many connections if a quarter of the files
// is for servers.
func filesFor(connections int) int { return filesOfConnection*connections/3*4 + filesOfProcess + 8 }

// capacity returns how much of their resources the worker and the machine have in use now.
func (p *Proxy) capacity(pic picture, procs procs) (all []Capacity) {
	add := func(resource string, used, limit int, remedy string) {
		if limit > 0 {
			all = append(all, Capacity{
				Resource: resource, Used: uint64(max(used, 0)), Limit: uint64(limit), //nolint:gosec // it fits
				Remedy: remedy,
			})
		}
	}
	remedy := "HAProxy then leaves further connections in the kernel's queue; add memory, or set haproxy.maxConnections"
	if room := p.room(); room.Files > 0 && room.Connections(0, 0) < (Room{Memory: room.Memory}).Connections(0, 0) {
		remedy = fmt.Sprintf("HAProxy then leaves further connections in the kernel's queue; HAProxy may open %d "+
			"files, so raise LimitNOFILE of the unit that starts HAProxy", room.Files)
	}
	add("connections", pic.connections, pic.maxConn, remedy)
	add("old workers of HAProxy", len(procs.old), oldWorkers,
		"each reload leaves a worker to finish its connections, and beyond the limit the oldest ends with them; look "+
			"for connections that last long (timeout-tunnel), and why HAProxy reloads")
	add("ports to one pod", pic.busiest, LocalPorts(),
		"beyond the limit connections to that pod fail; widen net.ipv4.ip_local_port_range, or give the "+
			"Service more pods")
	if tracked, most := Conntrack(); tracked > 0 {
		add("connections tracked by conntrack", tracked, most,
			"beyond the limit the kernel drops packets; raise net.netfilter.nf_conntrack_max, or let the firewall "+
				"not track HAProxy's connections (notrack)")
	}
	used, limit := memoryInUse(memory())
	return append(all, Capacity{
		Resource: memoryResource, Used: used, Limit: limit,
		Remedy: "beyond the limit the kernel ends a process; add memory, or lower haproxy.maxConnections",
	})
}

// LocalPorts returns the number of ports from which the kernel opens connections. At most as many
// connections lead to one pod. It returns 0 if the kernel does not tell.
func LocalPorts() int {
	var first, last int
	if n, _ := fmt.Sscan(readText("/proc/sys/net/ipv4/ip_local_port_range"), &first, &last); n != 2 {
		return 0
	}
	return last - first + 1
}

// Conntrack returns how many connections the kernel tracks, and how many it can track. most is 0 if
// connection tracking is off.
func Conntrack() (used, most int) {
	const folder = "/proc/sys/net/netfilter/"
	return number(readText(folder + "nf_conntrack_count")), number(readText(folder + "nf_conntrack_max"))
}

// memoryInUse returns how much memory of the machine or the container is in use and cannot be
// reclaimed, and the size of that memory.
func memoryInUse(total uint64) (used, limit uint64) {
	current, err := strconv.ParseUint(readText("/sys/fs/cgroup/memory.current"), 10, 64)
	if err == nil {
		return current - min(current, field(readText("/sys/fs/cgroup/memory.stat"), "inactive_file")), total
	}
	available := field(readText("/proc/meminfo"), "MemAvailable:") << 10
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		total = info.Totalram * uint64(info.Unit)
	}
	return total - min(available, total), total
}

// field returns the number after a word that begins a line of text. It returns 0 if no line begins
// with the word.
func field(text, word string) uint64 {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == word {
			n, _ := strconv.ParseUint(words[1], 10, 64)
			return n
		}
	}
	return 0
}

// readText returns the content of a file without the space around it; empty if the file
// cannot be read.
func readText(path string) string {
	text, _ := os.ReadFile(path)
	return strings.TrimSpace(string(text))
}

// number parses a decimal number. It returns 0 if the text is not a number.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}
