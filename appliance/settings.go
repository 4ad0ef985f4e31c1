package appliance

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"sallyport/appliance/config"
	"sallyport/bgp"
	"sallyport/ingress"
	"sallyport/routes"
)

// settings hold the part of the configuration file that may change while the process
// runs: the keys that package config declares live. They are one value, and replaced as
// a whole. Each round reads them. After each reading of the file, follow and use adapt
// the watchers and the status endpoint, which run beside the loop.
type settings struct {
	cfg             *config.Config    // the live keys of the file, and the other keys of the start
	names           []string          // host names that the status endpoint answers to
	certificate     *tls.Certificate  // of the status endpoint; nil without TLS
	base            string            // text of haproxy.base
	taken, takenUDP map[uint16]string // ports that no cluster can use, with their owners
	reserved        map[uint16]string // the ports of taken that no Service can use, not even at an address of its own
	sources         []source          // in the order of the file
	sum             string            // of the settings that have to be the same on all members of a group
}

// source is a cluster of the configuration file.
type source struct {
	config.Cluster
	pools      ingress.Pools
	kubeconfig config.Secret // the document, read with the file; empty if it cannot be read
}

// watched returns the source without the settings that matter only to its BGP sessions.
func (s source) watched() source {
	s.BGP = config.Peering{ASN: s.BGP.ASN, RouteReflectors: s.BGP.RouteReflectors}
	return s
}

// settingsOf returns the settings of a configuration. It reads the files that the
// configuration names.
func settingsOf(cfg *config.Config) (settings, error) {
	s := settings{
		cfg: cfg, names: ownNames(cfg), sum: sumOf(cfg), taken: taken(cfg), takenUDP: takenUDP(cfg),
		reserved: ownPorts(cfg),
	}
	if cfg.HAProxy.Base != "" {
		text, err := os.ReadFile(cfg.HAProxy.Base)
		if err != nil {
			return settings{}, fmt.Errorf("the operator's base configuration cannot be read (key haproxy.base): %w",
				err)
		}
		s.base = string(text)
	}
	if cfg.Status.TLS.Exists() {
		pair, err := cfg.Status.TLS.Pair()
		if err != nil {
			return settings{}, fmt.Errorf("the certificate of the status endpoint cannot be used (key status.tls): %w",
				err)
		}
		s.certificate = &pair
	}
	for _, c := range cfg.Clusters {
		// config.Load warns of a kubeconfig that cannot be read, and the watcher
		// retries.
		text, _ := c.Kubeconfig.Read()
		s.sources = append(s.sources, source{c, PoolsOf(cfg), config.NewSecret(string(text))})
	}
	return s, nil
}

// doors returns the addresses that nodes may connect to. It returns none if the appliance connects
// to every node itself.
func (f *follower) doors() []netip.Addr {
	if slices.ContainsFunc(f.clusters, func(c *cluster) bool { return c.peering.Mode == config.Passive }) {
		return f.cfg.BGP.Listen
	}
	return nil
}

// peer returns a BGP peer, made from the cluster's settings in the configuration file
// and from the node in its API.
func (f *follower) peer(cluster string, n routes.Node, addr netip.Addr) bgp.Peer {
	var p config.Peering
	for _, c := range f.clusters {
		if c.name == cluster {
			p = c.peering
		}
	}
	var local netip.Addr // the address that the BGPPeers name; zero for any address
	for _, a := range f.cfg.BGP.Listen {
		if !local.IsValid() && !a.IsUnspecified() && a.Is4() == addr.Is4() && p.Mode == config.Active {
			local = a
		}
	}
	return bgp.Peer{
		Cluster: cluster, Node: n.Name, Addr: addr, Local: local, ASN: n.ASN, Password: bgp.Secret(p.Password.Reveal()),
		TTLSecurity: p.TTLSecurity, Active: p.Mode == config.Active, Port: p.Port, PrefixLimit: p.PrefixLimit,
	}
}

// reserved returns the TCP and UDP ports that the operator keeps for other programs of
// the machine. They are reserved even while nobody listens on them: at boot HAProxy may
// start before sshd.
func reserved(cfg *config.Config) map[uint16]string {
	ports := map[uint16]string{}
	for _, port := range cfg.HAProxy.ReservedPorts {
		ports[port] = "another program of this machine (haproxy.reservedPorts of the configuration file)"
	}
	if cfg.Group.Exists() {
		ports[cfg.Group.Port] = "the group of appliances"
	}
	return ports
}

// takenUDP returns the UDP ports that no cluster can use, with their owners.
func takenUDP(cfg *config.Config) map[uint16]string {
	ports := reserved(cfg)
	if cfg.Group.Upstream.Exists() {
		ports[bfdPort] = "BFD"
	}
	return ports
}

// bfdPort is the UDP port of BFD (RFC 5881, section 4).
const bfdPort = 3784

// ownPorts returns the TCP ports of this machine's own programs. No Service can have such a port,
// not even at an address of its own: a program that starts after HAProxy could not listen on every
// address any more.
func ownPorts(cfg *config.Config) map[uint16]string {
	ports := reserved(cfg)
	ports[cfg.BGP.Port], ports[cfg.Status.Listen.Port()] = "BGP", "the status page"
	if cfg.Group.Exists() {
		ports[cfg.Group.Port] = "the group of appliances"
	}
	return ports
}

// taken returns the TCP ports that no TCP service can have at every address, with their
// owners.
func taken(cfg *config.Config) map[uint16]string {
	ports := ownPorts(cfg)
	for _, a := range cfg.HAProxy.HTTP {
		ports[a.Port()] = "HTTP"
	}
	for _, a := range cfg.HAProxy.HTTPS {
		ports[a.Port()] = "HTTPS"
	}
	return ports
}

// ConfigStatus tells which part of the configuration file is in use.
type ConfigStatus struct {
	Read    time.Time `json:"read"`              // when the configuration in use was read
	Waiting []string  `json:"waiting,omitempty"` // keys that need a restart, a sentence each
	Errors  []string  `json:"errors,omitempty"`  // why the present file is not used, one mistake each
}
