package haproxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ServerName returns the name of the server at addr: s_10-0-0-1_8080, or
// s_fd00--1_8080. Two addresses never share a name, so a server is its
// address; an IPv4-mapped IPv6 address counts as the IPv4 address it maps.
func ServerName(addr netip.AddrPort) string {
	ip := addr.Addr().Unmap()
	host := strings.NewReplacer(".", "-", ":", "-", "%", "_").Replace(ip.String())
	return serverPrefix + host + "_" + strconv.Itoa(int(addr.Port()))
}

// NameOf returns the name that a server has in a backend. The name begins with that of its address. The address of
// its Source follows, then the cluster of its pod if this is not the Backend's, and ".backup" for a Backup. HAProxy
// has no command that makes a server a backup, or gives it another source, so that these are different servers.
func NameOf(s Server) string {
	name := ServerName(s.Addr)
	if s.Source.IsValid() {
		name += sourceMark + s.Source.String()
	}
	if s.Cluster != "" {
		name += "_" + s.Cluster
	}
	if s.Backup {
		name += ".backup"
	}
	return name
}

// sourceMark precedes the source in the name of a server. No name of a cluster contains it.
const sourceMark = "_from_"

// sourceOf returns the source of a server by its name. It returns the zero address for a server without a source.
func sourceOf(name string) netip.Addr {
	_, after, _ := strings.Cut(name, sourceMark)
	text, _, _ := strings.Cut(strings.TrimSuffix(after, ".backup"), "_")
	source, _ := netip.ParseAddr(text)
	return source
}

// serverPrefix begins the name of every server that is an endpoint, and no other name.
const serverPrefix = "s_"

var stateWords = [...]string{Absent: "absent", Closed: "closed", Drain: "drain", Open: "open"}

// String returns the state in one word: "absent", "closed", "drain" or "open".
func (s State) String() string {
	if s < 0 || int(s) >= len(stateWords) {
		return fmt.Sprintf("State(%d)", int(s))
	}
	return stateWords[s]
}

// String returns "backend/server", as HAProxy's own commands write it.
func (id ServerID) String() string { return id.Backend + "/" + id.Server }
