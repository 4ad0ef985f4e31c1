package appliance

import (
	"log/slog"
	"net/netip"
	"path/filepath"

	"sallyport/appliance/config"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
)

// source is a cluster of the configuration file.
type source struct {
	config.Cluster
	pools      input.Pools
	kubeconfig config.Secret // the document, read with the file; empty if it cannot be read
}

// watched returns the source without the settings that matter only to its BGP sessions and to drains.
func (s source) watched() source {
	s.BGP = config.Peering{ASN: s.BGP.ASN, LocalASN: s.BGP.LocalASN, RouteReflectors: s.BGP.RouteReflectors}
	if s.State == config.Drained {
		s.State = config.Serving // the loop drains it
	}
	return s
}

// WatcherConfig returns how a cluster is watched, with the newest token that an appliance has renewed.
func WatcherConfig(
	cfg *config.Config, c *config.Cluster, pools input.Pools, kubeconfig []byte, own []netip.Addr, log *slog.Logger,
) watch.Config {
	publish := make([]string, len(c.Ingress.Publish))
	for i, a := range c.Ingress.Publish {
		publish[i] = a.String()
	}
	group := string(c.Calico.APIGroup)
	if c.Calico.APIGroup == config.AutoGroup {
		group = ""
	}
	return watch.Config{
		Name: c.Name, Kubeconfig: kubeconfig, APIGroup: group, OwnAddrs: own, Publish: publish,
		Options: OptionsOf(c, pools), OwnASN: cfg.ASNTowards(c.Name),
		TokenFile:   filepath.Join(cfg.StateDir, "token-"+c.Name),
		HostNetwork: c.Ingress.HostNetwork, Bounds: c.Pools, Source: c.Source.Prefix, ASN: c.BGP.ASN,
		Reflectors: c.BGP.RouteReflectors,
		Log:        log,
	}
}

// OptionsOf returns the settings of a cluster as package ingress has them.
func OptionsOf(c *config.Cluster, pools input.Pools) input.Options {
	in := &c.Ingress
	var hosts []input.HostRule
	for _, h := range in.Hosts {
		hosts = append(hosts, input.HostRule(h))
	}
	gateways := input.GatewayOptions{
		Enabled: c.Gateway.Looks(), Unasked: !c.Gateway.Asked(), Controller: c.Gateway.Controller,
		Named: c.Gateway.Named,
	}
	if c.Gateway.Shared {
		gateways.Shared = in.Publish
	}
	return input.Options{
		Class: in.Class, Controller: in.Controller, WatchWithoutClass: in.WatchWithoutClass,
		ConfigMap: in.ConfigMap, ErrorFiles: in.ErrorFiles, PatternFiles: in.PatternFiles, TCPServices: in.TCPServices,
		Namespaces: in.Namespaces, NotNamespaces: in.NotNamespaces, NamespaceSelector: in.NamespaceSelector,
		AuthServices: in.AuthServices, CrossNamespaceSecrets: in.CrossNamespaceSecrets,
		OneTenant: in.Trust == config.TrustCluster, Hosts: hosts, ReleaseAfter: in.ReleaseAfter,
		NoSnippets: in.NoSnippets, Snippets: in.Snippets, Process: in.Process,
		Limits: input.Limits(in.Limits), Pools: pools, Gateway: gateways,
		CustomResources: in.CustomResources,
		Nginx:           input.NginxOptions(in.Nginx),
		InSet: input.SetOptions{
			Name: c.Set, ExportsAll: c.Share == config.ShareAll, Standby: c.State == config.Standby,
			CountUnready: c.Set != "" && c.MinReady.Percent > 0,
		},
	}
}

// PoolsOf returns the addresses for Services and Gateways as package ingress has them.
func PoolsOf(c *config.Config) input.Pools {
	p := input.Pools{Unclassed: c.Group.DefaultLoadBalancer, Local: !c.Group.Exists()}
	for _, pool := range c.Pools() {
		p.Ranges = append(p.Ranges, input.AddressRange(pool))
	}
	return p
}

// CompilerOf returns a compiler that gives no port of the machine to a cluster.
func CompilerOf(ports config.Ports) *ingress.Compiler {
	shared := make(map[uint16]haproxy.ListenerKind)
	for _, p := range ports.Of(config.KeyHTTP) {
		shared[p] = haproxy.ListenHTTP
	}
	for _, p := range ports.Of(config.KeyHTTPS) {
		shared[p] = haproxy.ListenHTTPS
	}
	return &ingress.Compiler{
		Shared: shared,
		Taken:  ports.Owners(config.TCP), TakenUDP: ports.Owners(config.UDP), Reserved: ports.OwnersBesideHAProxy(),
	}
}
