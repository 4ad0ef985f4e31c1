package appliance

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/routes"
)

// settings hold the part of the configuration file that may change while the process
// runs: the keys that package config declares live. They are one value, and replaced as
// a whole. Each round reads them. After each reading of the file, follow and use adapt
// the watchers and the status endpoint, which run beside the loop.
type settings struct {
	cfg         *config.Config   // the live keys of the file, and the other keys of the start
	names       []string         // host names that the status endpoint answers to
	certificate *tls.Certificate // of the status endpoint; nil without TLS
	base        string           // text of haproxy.base
	ports       config.Ports     // of the machine: no cluster gets them
	sources     []source         // in the order of the file
	sum         string           // of the settings that have to be the same on all members of a group
}

// settingsOf returns the settings of a configuration. It reads the files that the
// configuration names.
func settingsOf(cfg *config.Config) (settings, error) {
	s := settings{cfg: cfg, names: ownNames(cfg), sum: sumOf(cfg), ports: cfg.Ports()}
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

// shown returns the settings that the view of a round shows.
func (s settings) shown() status.InUse {
	return status.InUse{Config: s.cfg, Names: s.names, Certificate: s.certificate, Sum: s.sum}
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
		Cluster: cluster, Node: n.Name, Addr: addr, Local: local, ASN: n.ASN, LocalASN: p.LocalASN,
		Password: bgp.Secret(p.Password.Reveal()), TTLSecurity: p.TTLSecurity, Active: p.Mode == config.Active,
		Port: p.Port, PrefixLimit: p.PrefixLimit,
	}
}
