package config

import "net/netip"

// Protocol is a transport protocol with ports.
type Protocol string

// The two protocols.
const (
	TCP Protocol = "TCP"
	UDP Protocol = "UDP"
)

// Ports that no key of the file changes.
const (
	SSHPort = 22   // TCP
	BFDPort = 3784 // UDP (RFC 5881, section 4)
)

// A Port is a port of this machine that a program uses, or that the file reserves for one.
type Port struct {
	Protocol Protocol
	At       netip.AddrPort // without an address if the file names none
	Key      string         // the key of the file that sets it
	Owner    string         // in words, as "HTTPS"

	// HAProxy is set if HAProxy listens here for clients. A Service may then have the same port at
	// an address of its own. If it is not set, no Service can have the port: a program that starts
	// after HAProxy could not listen on every address any more.
	HAProxy bool
	// Reserved is set if the port is reserved even while nobody listens on it: at boot HAProxy may
	// start before sshd.
	Reserved bool
}

// Keys of the addresses where HAProxy serves Ingresses.
const (
	KeyHTTP  = "haproxy.http"
	KeyHTTPS = "haproxy.https"
)

// Of returns the ports that a key of the file sets.
func (p Ports) Of(key string) (all []uint16) {
	for _, one := range p {
		if one.Key == key {
			all = append(all, one.At.Port())
		}
	}
	return all
}

// Ports are ports with their owners. If two have the same number, the first one is the owner.
type Ports []Port

// Ports returns who owns which port of this machine.
func (c *Config) Ports() (all Ports) {
	for _, at := range c.HAProxy.HTTP {
		all = append(all, Port{Protocol: TCP, At: at, Key: KeyHTTP, Owner: "HTTP", HAProxy: true})
	}
	for _, at := range c.HAProxy.HTTPS {
		all = append(all, Port{Protocol: TCP, At: at, Key: KeyHTTPS, Owner: "HTTPS", HAProxy: true})
	}
	bgp := c.BGP.Listen
	if len(bgp) == 0 {
		bgp = []netip.Addr{{}}
	}
	for _, addr := range bgp {
		at := netip.AddrPortFrom(addr, c.BGP.Port)
		all = append(all, Port{Protocol: TCP, At: at, Key: "bgp.listen", Owner: "BGP"})
	}
	all = append(all, Port{Protocol: TCP, At: c.Status.Listen, Key: "status.listen", Owner: "the status page"})
	if c.Group.Exists() {
		var self netip.Addr
		for _, m := range c.Group.Members {
			if m.Name == c.Identity {
				self = m.Address
			}
		}
		at := netip.AddrPortFrom(self, c.Group.Port)
		for _, protocol := range []Protocol{TCP, UDP} {
			all = append(all, Port{Protocol: protocol, At: at, Key: "group.port", Owner: "the group of appliances"})
		}
	}
	if c.Group.Upstream.Exists() {
		at := netip.AddrPortFrom(netip.Addr{}, BFDPort)
		all = append(all, Port{Protocol: UDP, At: at, Key: "group.upstream.bfd", Owner: "BFD"})
	}
	for _, port := range c.HAProxy.ReservedPorts {
		at := netip.AddrPortFrom(netip.Addr{}, port)
		for _, protocol := range []Protocol{TCP, UDP} {
			all = append(all, Port{
				Protocol: protocol, At: at, Key: "haproxy.reservedPorts", Reserved: true,
				Owner: "another program of this machine (haproxy.reservedPorts of the configuration file)",
			})
		}
	}
	return all
}

// Owners returns the owner of each port of a protocol.
func (p Ports) Owners(of Protocol) map[uint16]string {
	owners := map[uint16]string{}
	for _, port := range p {
		number := port.At.Port()
		if _, twice := owners[number]; !twice && port.Protocol == of {
			owners[number] = port.Owner
		}
	}
	return owners
}

// OwnersBesideHAProxy returns the owner of each TCP port that HAProxy does not use for HTTP or
// HTTPS.
func (p Ports) OwnersBesideHAProxy() map[uint16]string {
	var others Ports
	for _, port := range p {
		if !port.HAProxy {
			others = append(others, port)
		}
	}
	return others.Owners(TCP)
}
