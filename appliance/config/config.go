// Package config owns the one configuration file: its keys, their defaults and
// bounds, and how a mistake in it is reported.
//
// It alone knows the YAML. What it hands out is typed, complete (every default
// filled in) and consistent; whoever gets a Config checks nothing again. A
// mistake names file, line and key, and what is allowed there; all mistakes of
// a file are reported together.
//
// The file is read again while the process runs. Of each key, or of one around it,
// the tag change says when a change of it takes effect: live is at once, restart at
// the next start. Next applies that; nobody else has such a list.
//
// Its limit: it looks at the file and the files it names, never at the cluster,
// the network or HAProxy.
package config

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config is the whole file.
type Config struct {
	// Name of this appliance in logs, on the status page and in Events. Default: the host name.
	Identity string `json:"identity" change:"live"`
	// The clusters whose Ingresses are served; usually one.
	Clusters []Cluster `json:"clusters" change:"live" jsonschema:"required"`
	// The BGP speaker, as all clusters see it.
	BGP BGP `json:"bgp"`
	// The routes to pods in the kernel. A change needs a restart.
	Routes Routes `json:"routes" change:"restart"`
	// The HAProxy that is driven.
	HAProxy HAProxy `json:"haproxy"`
	// The status page, the metrics and the health endpoints.
	Status Status `json:"status" change:"live"`
	// Directory of the last good picture, which serves a reboot while the API server is away, and of the token that each cluster gave last. A change needs a restart.
	StateDir string `json:"stateDir" change:"restart" jsonschema:"default=/var/lib/sallyport"`
	// The log, written to standard error.
	Log Log `json:"log"`
	// The machine itself: its name, addresses, servers of time and names. The bootable image alone reads it.
	System System `json:"system" change:"live"`

	// Warnings are doubts that do not stop a start, one sentence each. Only Load fills them.
	Warnings []string `json:"-"`

	file *problems // where the file has its keys; nil: it was not read from one
}

// Cluster is one Kubernetes cluster that runs Calico.
type Cluster struct {
	// Name of the cluster: lower-case letters, digits and dashes. With more than one cluster each needs its own.
	Name string `json:"name" jsonschema:"default=default"`
	// Credentials: the path of a kubeconfig file, or the kubeconfig itself (as a block of text or as keys).
	Kubeconfig Kubeconfig `json:"kubeconfig" jsonschema:"required"`
	// Outer bounds of what may be imported, whatever the cluster says. Empty: the cluster's IPPools bound alone.
	Pools []netip.Prefix `json:"pools"`
	// How its nodes are peered with.
	BGP Peering `json:"bgp"`
	// Which Ingresses are served, and how.
	Ingress Ingress `json:"ingress"`
	// How Calico's own objects are read.
	Calico Calico `json:"calico"`
}

// Peering is what the BGP sessions with the nodes of one cluster have in common.
type Peering struct {
	// AS number of the cluster, for when the cluster does not say. Default: bgp.asn.
	ASN uint32 `json:"asn" jsonschema:"minimum=1,maximum=4294967295"`
	// Who opens the connection: active dials the nodes and lets nobody connect, passive waits for them. A pod can connect in its node's place: passive needs password or ttlSecurity.
	Mode Mode `json:"mode" jsonschema:"default=active,enum=active,enum=passive"`
	// Key of TCP MD5 (RFC 2385), at most 80 bytes, the same as in the BGPPeer.
	Password Secret `json:"password"`
	// File that holds the key, instead of password.
	PasswordFile string `json:"passwordFile"`
	// Accept packets of directly connected nodes only (RFC 5082). The BGPPeer then needs ttlSecurity: 1.
	TTLSecurity bool `json:"ttlSecurity" jsonschema:"default=false"`
	// Most prefixes one node may announce.
	PrefixLimit uint32 `json:"prefixLimit" jsonschema:"default=1000,minimum=1,maximum=1000000"`
	// Addresses of route reflectors that are not nodes of the cluster.
	RouteReflectors []netip.Addr `json:"routeReflectors"`
	// TCP port of the nodes, dialled in mode active.
	Port uint16 `json:"port" jsonschema:"default=179,minimum=1,maximum=65535"`
}

// Mode is who opens a BGP connection.
type Mode string

// The two modes of a Peering.
const (
	Passive Mode = "passive"
	Active  Mode = "active"
)

// Limits bound what one namespace may bring, since HAProxy is everybody's.
type Limits struct {
	// Hosts that all Ingresses of a namespace name together, in rules and in TLS entries.
	Hosts int `json:"hosts" jsonschema:"default=5000,minimum=1,maximum=1000000"`
	// Paths of all Ingresses of a namespace together.
	Paths int `json:"paths" jsonschema:"default=20000,minimum=1,maximum=1000000"`
	// Paths that are regular expressions, of all Ingresses of a namespace together. Each costs every request for its host some time.
	RegularExpressions int `json:"regularExpressions" jsonschema:"default=200,minimum=1,maximum=100000"`
	// Paths that lead to a Service with a route-acl, of all Ingresses of a namespace together.
	Conditions int `json:"conditions" jsonschema:"default=200,minimum=1,maximum=100000"`
	// Backends of all Ingresses of a namespace together: one for each port of a Service that they name, and for each Ingress with annotations one of its own.
	Backends int `json:"backends" jsonschema:"default=5000,minimum=1,maximum=1000000"`
	// Servers of all backends of a namespace together: an endpoint counts once for each backend that it is in.
	Servers int `json:"servers" jsonschema:"default=10000,minimum=1,maximum=1000000"`
	// Certificates of all Ingresses of a namespace together.
	Certificates int `json:"certificates" jsonschema:"default=2000,minimum=1,maximum=1000000"`
	// Lines of one annotation that holds several: headers, rewrites.
	Lines int `json:"lines" jsonschema:"default=100,minimum=1,maximum=10000"`
	// Addresses and networks in one annotation; lists of the ConfigMap for patternFiles may be longer.
	ListEntries int `json:"listEntries" jsonschema:"default=2000,minimum=1,maximum=100000"`
	// Bytes of one Secret that is used. The API server allows 1048576.
	SecretBytes int `json:"secretBytes" jsonschema:"default=262144,minimum=1024,maximum=1048576"`
}

// Ingress says which Ingresses of a cluster are served, and how.
type Ingress struct {
	// Name of the IngressClass that is ours.
	Class string `json:"class" jsonschema:"default=haproxy"`
	// Controller an IngressClass must name to be ours (spec.controller).
	Controller string `json:"controller" jsonschema:"default=haproxy.org/ingress-controller"`
	// Serve Ingresses that name no class, even if ours is not the cluster's default.
	WatchWithoutClass bool `json:"watchWithoutClass" jsonschema:"default=false"`
	// Addresses written into status.loadBalancer of the Ingresses served. Empty: nothing is written.
	Publish []netip.Addr `json:"publish"`
	// A ConfigMap, as NAMESPACE/NAME, with keys for all Ingresses (ingress/README.md). Empty: none.
	ConfigMap string `json:"configMap"`
	// A ConfigMap, as NAMESPACE/NAME, whose keys are statuses and whose values whole responses that HAProxy gives with them.
	ErrorFiles string `json:"errorFiles"`
	// A ConfigMap, as NAMESPACE/NAME, of lists that keys refer to as patterns/NAME.
	PatternFiles string `json:"patternFiles"`
	// A ConfigMap, as NAMESPACE/NAME, whose keys are ports and whose values the Services that take their TCP connections (ingress/README.md).
	TCPServices string `json:"tcpServices"`
	// The only namespaces Ingresses are taken from. Secrets are then read in these and in that of configMap alone, unless crossNamespaceSecrets is on. Empty: all.
	Namespaces []string `json:"namespaces"`
	// Namespaces Ingresses are never taken from.
	NotNamespaces []string `json:"notNamespaces"`
	// A label selector (as of kubectl -l: "team=web,env in (a, b),!old") for the namespaces Ingresses are taken from. Empty: all.
	NamespaceSelector string `json:"namespaceSelector"`
	// Let Ingresses and Services name Secrets of other namespaces than their own.
	CrossNamespaceSecrets bool `json:"crossNamespaceSecrets" jsonschema:"default=false"`
	// Services, as NAMESPACE/NAME, that Ingresses of every namespace may name in sallyport.dev/auth-url. Those of its own namespace each may.
	AuthServices []string `json:"authServices"`
	// How far the namespaces of the cluster trust each other. namespace: a host belongs to the namespace whose Ingress named it first, and only the ConfigMap brings snippets, which can read the traffic of all. cluster: one team owns everything; namespaces share each host, the oldest path wins, and every Ingress and Service may bring snippets.
	Trust Trust `json:"trust" jsonschema:"default=namespace,enum=namespace,enum=cluster"`
	// Which namespaces may use which hosts, whoever named them first. The first entry that matches a host counts; a host that none matches is for trust to decide.
	Hosts []Host `json:"hosts"`
	// Serve pods that have hostNetwork: servers at the InternalIP of a node, if it is where the node speaks BGP, but for the ports of the node itself (SSH, BGP, etcd, kubelet, control plane). Nobody knows which namespace such a pod is of: an EndpointSlice of any namespace may name them.
	HostNetwork bool `json:"hostNetwork" jsonschema:"default=false"`
	// Sections of HAProxy's configuration (global, frontend, backend) for which no snippet is taken, not the ConfigMap's either.
	NoSnippets []string `json:"noSnippets"`
	// What one namespace may bring. What goes beyond is not served, and reported; older Ingresses go first.
	Limits Limits `json:"limits"`
}

// Trust is how far the namespaces of a cluster trust each other.
type Trust string

// The two kinds of clusters.
const (
	TrustNamespace Trust = "namespace" // namespaces are tenants
	TrustCluster   Trust = "cluster"   // it is one team's
)

// Host says which namespaces may use the hosts of a pattern.
type Host struct {
	// A host; or *.NAME, which matches every name below it, however deep; or *, which matches every host, and rules without one.
	Host string `json:"host" jsonschema:"required"`
	// Namespaces that share these hosts, the oldest claim to a path winning; * is every namespace. Empty: nobody may use them.
	Namespaces []string `json:"namespaces"`
}

// Calico says how Calico's own objects are read.
type Calico struct {
	// API group and version of Calico's objects; auto asks the cluster.
	APIGroup APIGroup `json:"apiGroup" jsonschema:"default=auto,enum=auto,enum=crd.projectcalico.org/v1,enum=projectcalico.org/v3"`
}

// APIGroup is an API group and version that serves Calico's objects.
type APIGroup string

// The API groups Calico's objects are found in.
const (
	AutoGroup APIGroup = "auto"
	CRDv1     APIGroup = "crd.projectcalico.org/v1"
	APIv3     APIGroup = "projectcalico.org/v3"
)

// BGP is the speaker, as all clusters see it.
type BGP struct {
	// AS number of the appliance. A change needs a restart.
	ASN uint32 `json:"asn" change:"restart" jsonschema:"default=65000,minimum=1,maximum=4294967295"`
	// BGP identifier, in the form of an IPv4 address no node uses. Default: the first IPv4 address of listen, else the address this machine reaches the world from. A change needs a restart.
	RouterID netip.Addr `json:"routerID" change:"restart"`
	// Addresses of the sessions, which the BGPPeers name: where nodes are dialled from, and where those of a cluster in mode passive may connect.
	Listen []netip.Addr `json:"listen" change:"live" jsonschema:"default=0.0.0.0,default=::"`
	// TCP port to accept sessions on, of clusters in mode passive.
	Port uint16 `json:"port" change:"live" jsonschema:"default=179,minimum=1,maximum=65535"`
	// Silence after which a node is lost, in whole seconds from 3s to 65535s. The shorter of ours and the node's (240s) holds; below 9s busy nodes flap. A change needs a restart.
	HoldTime time.Duration `json:"holdTime" change:"restart" jsonschema:"default=9s"`
	// How long the routes of a node stay after its session was closed without a word, which is what a restart of calico-node looks like. 0s: not at all.
	Retain time.Duration `json:"retain" change:"live" jsonschema:"default=120s"`
	// How long all routes of a cluster stay after all its sessions were lost at once. 0s: not at all.
	FailStatic time.Duration `json:"failStatic" change:"live" jsonschema:"default=10m"`
}

// Routes is where the routes to pods go in the kernel.
type Routes struct {
	// Route protocol number that marks a route as ours (ip route show proto 78).
	Protocol uint8 `json:"protocol" jsonschema:"default=78,minimum=20,maximum=185"`
	// Routing table; 254 is main.
	Table uint32 `json:"table" jsonschema:"default=254,minimum=1,maximum=4294967295"`
	// Metric of the routes.
	Metric uint32 `json:"metric" jsonschema:"default=50,minimum=1,maximum=4294967295"`
}

// HAProxy is the HAProxy that is driven.
type HAProxy struct {
	// Who runs HAProxy: managed starts and supervises it, external drives one that something else runs. A change needs a restart.
	Mode Run `json:"mode" change:"restart" jsonschema:"default=managed,enum=managed,enum=external"`
	// The program; it also checks configurations in mode external. A change needs a restart.
	Binary string `json:"binary" change:"restart" jsonschema:"default=/usr/sbin/haproxy"`
	// Addresses for plain HTTP, as address:port; :80 is every address, IPv4 and IPv6.
	HTTP []netip.AddrPort `json:"http" change:"live" jsonschema:"default=:80"`
	// Addresses for HTTPS, in the same form.
	HTTPS []netip.AddrPort `json:"https" change:"live" jsonschema:"default=:443"`
	// Directory of HAProxy's configuration, maps and certificates. It is the state of HAProxy: keep it over a reboot. A change needs a restart.
	Dir string `json:"dir" change:"restart" jsonschema:"default=/var/lib/sallyport/haproxy"`
	// Directory of the sockets and the PID file. A change needs a restart.
	RunDir string `json:"runDir" change:"restart" jsonschema:"default=/run/sallyport"`
	// Socket of HAProxy's master process (haproxy -S). Only in mode external, and required there. A change needs a restart.
	MasterSocket string `json:"masterSocket" change:"restart"`
	// User HAProxy's worker runs as; empty is the user of this process. Default: haproxy, if this machine has that user and this process is root. A change needs a restart.
	User string `json:"user" change:"restart"`
	// Group HAProxy's worker runs as; empty is the group of this process. Default: as for user. A change needs a restart.
	Group string `json:"group" change:"restart"`
	// Threads of HAProxy. 0: one for each processor.
	Threads int `json:"threads" change:"live" jsonschema:"default=0,minimum=0,maximum=64"`
	// Most connections at the same time. 0: as many as half of the memory holds, 100 kB each, if there are file descriptors for them; where HAProxy is external, it chooses.
	MaxConnections int `json:"maxConnections" change:"live" jsonschema:"default=0,minimum=0,maximum=100000000"`
	// Ports of this machine that no ConfigMap of a cluster can take, of TCP (tcpServices) or UDP (quic-bind-port), whether their programs run already or not:
	// those of SSH, names and DHCP. A list replaces these.
	ReservedPorts []uint16 `json:"reservedPorts" change:"live" jsonschema:"default=22,default=53,default=68,default=546,minimum=1,maximum=65535"`
	// Least time between two reloads of HAProxy, from 1ms to 1h. A change needs a restart.
	MinReloadInterval time.Duration `json:"minReloadInterval" change:"restart" jsonschema:"default=1s"`
	// File with global and defaults sections of your own, put in front of what is generated.
	Base string `json:"base" change:"live"`
}

// Run is who runs HAProxy.
type Run string

// The two ways HAProxy is run.
const (
	Managed  Run = "managed"
	External Run = "external"
)

// Status is where the appliance tells about itself.
type Status struct {
	// Address of the status page, /status, /metrics, /healthz and /readyz. There is no password: keep it on loopback or a management network.
	Listen netip.AddrPort `json:"listen" jsonschema:"default=127.0.0.1:9090"`
	// Names it is asked by (the Host of a request), beside its addresses, localhost, identity and the host name. Other names are refused.
	Names []string `json:"names"`
}

// Log is the log, written to standard error.
type Log struct {
	// Least level that is written.
	Level slog.Level `json:"level" change:"live" jsonschema:"default=info,enum=debug,enum=info,enum=warn,enum=error"`
	// Form of a line. A change needs a restart.
	Format Format `json:"format" change:"restart" jsonschema:"default=text,enum=text,enum=json"`
}

// Format is the form of a log line.
type Format string

// The forms of a log line.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Kubeconfig is the credentials of a cluster: one of Path and Inline is set.
type Kubeconfig struct {
	Path   string `json:"path,omitempty"`
	Inline Secret `json:"inline,omitzero"`
}

// Read returns the kubeconfig document. A file is read anew at each call, so
// that replaced credentials are found.
func (k Kubeconfig) Read() ([]byte, error) {
	if k.Path == "" {
		return []byte(k.Inline.Reveal()), nil
	}
	data, err := readFile(k.Path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %w", err)
	}
	if _, line, err := document(data); err != nil {
		return nil, fmt.Errorf("kubeconfig %s:%d: %w", k.Path, line, err)
	}
	return data, nil
}

// Example is a complete configuration file for the usual case.
//
//go:embed example.yaml
var Example string

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of the file (draft 2020-12). It is made from
// the comments and tags of the types of this package; a test holds it to them.
func Schema() []byte {
	return schema
}

// Load reads and checks the file at path and the files it names. Relative paths
// in it are taken from the directory of the file.
func Load(path string) (*Config, error) {
	data, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file; give the configuration with --config, or see sallyport config schema for what belongs in it", path)
	case errors.Is(err, errTooLarge):
		return nil, fmt.Errorf("%s: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("%s: cannot be read: %w", path, unwrapPath(err))
	}
	c, p, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	c.resolve(filepath.Dir(path))
	if p.given("system") && !onImage() {
		c.warn(p, "system", "is for the bootable image alone; this machine keeps the name, the addresses and all the rest that its own system gives it")
	}
	c.readFiles(p)
	c.askMachine(p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Parse checks a configuration file's text without looking at the machine: the
// files it names are not read, and Identity and BGP.RouterID stay empty unless
// they are given. name is the file's name in error messages.
func Parse(name string, data []byte) (*Config, error) {
	c, _, err := parse(name, data)
	return c, err
}

func parse(name string, data []byte) (*Config, *problems, error) {
	p := &problems{file: name, lines: map[string]int{}}
	c := &Config{file: p}
	if decode(data, c, p) {
		c.fill(p)
		c.check(p)
	}
	if err := p.err(); err != nil {
		return nil, nil, err
	}
	return c, p, nil
}

// fill sets the defaults that depend on other keys.
func (c *Config) fill(p *problems) {
	c.fillASN()
	for i := range c.Clusters {
		if len(c.Clusters) > 1 && !p.given(fmt.Sprintf("clusters[%d].name", i)) {
			c.Clusters[i].Name = ""
		}
	}
	c.fillSystem(p)
}

// fillASN gives the clusters that have no AS number of their own that of bgp.asn.
func (c *Config) fillASN() {
	for i := range c.Clusters {
		if asn := &c.Clusters[i].BGP.ASN; *asn == 0 || !c.file.given(fmt.Sprintf("clusters[%d].bgp.asn", i)) {
			*asn = c.BGP.ASN
		}
	}
}

// resolve makes paths absolute, from dir, and plain.
func (c *Config) resolve(dir string) {
	paths := []*string{&c.StateDir, &c.HAProxy.Binary, &c.HAProxy.Dir, &c.HAProxy.RunDir, &c.HAProxy.MasterSocket, &c.HAProxy.Base}
	for i := range c.Clusters {
		paths = append(paths, &c.Clusters[i].Kubeconfig.Path, &c.Clusters[i].BGP.PasswordFile)
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		if filepath.IsAbs(*path) {
			*path = filepath.Clean(*path)
		} else if abs, err := filepath.Abs(filepath.Join(dir, *path)); err == nil {
			*path = abs
		}
	}
}

// readFiles looks at the files the configuration names, and reads the keys of
// signed sessions. A kubeconfig that is not there is a doubt only: the other
// clusters can be served, and this one from its last picture, until it is.
func (c *Config) readFiles(p *problems) {
	for i := range c.Clusters {
		cluster, at := &c.Clusters[i], fmt.Sprintf("clusters[%d]", i)
		if path := cluster.Kubeconfig.Path; path != "" {
			if _, err := readFile(path); err != nil {
				c.warn(p, at+".kubeconfig", "%v", err)
			}
			c.warnIfOpen(p, at+".kubeconfig", path)
		}
		if path := cluster.BGP.PasswordFile; path != "" {
			key, err := readFile(path)
			if err != nil {
				p.add(at+".bgp.passwordFile", "%v", err)
				continue
			}
			cluster.BGP.Password = Secret{strings.TrimRight(string(key), "\r\n")}
			checkPassword(p, at+".bgp.passwordFile", cluster.BGP.Password)
			c.warnIfOpen(p, at+".bgp.passwordFile", path)
		}
	}
	if c.HAProxy.Base != "" {
		if _, err := readFile(c.HAProxy.Base); err != nil {
			p.add("haproxy.base", "%v", err)
		}
	}
}

func (c *Config) warn(p *problems, key, format string, args ...any) {
	c.Warnings = append(c.Warnings, p.where(key)+": "+key+": "+fmt.Sprintf(format, args...))
}

// warnIfOpen warns of credentials that every user of the machine can read.
func (c *Config) warnIfOpen(p *problems, key, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 {
		c.warn(p, key, "every user of this machine can read %s, which holds credentials; chmod 600 it", path)
	}
}

// readFile reads a file that must not be empty. Its errors are sentences.
func readFile(path string) ([]byte, error) {
	data, err := readBounded(path)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, fmt.Errorf("%s %w", path, err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist", path)
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read: %w", path, unwrapPath(err))
	case len(data) == 0:
		return nil, fmt.Errorf("%s is empty", path)
	}
	return data, nil
}

// askMachine fills what only the machine knows: its name, its users and its
// address.
func (c *Config) askMachine(p *problems) {
	if c.Identity == "" {
		name, err := os.Hostname()
		if err != nil || name == "" {
			p.add("identity", "this machine has no host name; set identity")
		}
		c.Identity = name
	}
	if c.HAProxy.Mode == Managed && os.Geteuid() == 0 && !p.given("haproxy.user") && !p.given("haproxy.group") {
		if _, err := user.Lookup("haproxy"); err == nil {
			c.HAProxy.User = "haproxy"
		}
		if _, err := user.LookupGroup("haproxy"); err == nil {
			c.HAProxy.Group = "haproxy"
		}
	}
	if _, err := os.Stat("/proc/net/if_inet6"); errors.Is(err, fs.ErrNotExist) {
		c.withoutIPv6()
	}
	if c.BGP.RouterID.IsValid() {
		return
	}
	for _, addr := range c.BGP.Listen {
		if addr.Is4() && !addr.IsUnspecified() {
			c.BGP.RouterID = addr
			return
		}
	}
	id, ok := ownAddress()
	if !ok {
		p.add("bgp.routerID", "this machine has no IPv4 address to take the router id from; set bgp.routerID to one that no node uses")
	}
	c.BGP.RouterID = id
}

// withoutIPv6 takes out the IPv6 wildcards, for a kernel that was started
// without IPv6: nobody asked for them by name.
func (c *Config) withoutIPv6() {
	six := netip.IPv6Unspecified()
	c.BGP.Listen = slices.DeleteFunc(c.BGP.Listen, func(a netip.Addr) bool { return a == six })
	for _, list := range []*[]netip.AddrPort{&c.HAProxy.HTTP, &c.HAProxy.HTTPS} {
		*list = slices.DeleteFunc(*list, func(a netip.AddrPort) bool { return a.Addr() == six })
	}
	if at := c.Status.Listen; at.Addr() == six {
		c.Status.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
	}
}

// ownAddress is the IPv4 address this machine reaches the world from, or else
// the first that is not loopback.
func ownAddress() (netip.Addr, bool) {
	// Connecting a UDP socket sends nothing; it only makes the kernel choose a source address.
	if conn, err := net.Dial("udp4", "192.0.2.1:9"); err == nil {
		addr := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = conn.Close()
		return addr, true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, false
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Is4() && prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// unwrapPath takes the path out of an error, for sentences that name it already.
func unwrapPath(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
