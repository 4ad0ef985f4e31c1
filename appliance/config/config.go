// Package config owns the one configuration file: its keys, their defaults and
// bounds, and how a mistake in it is reported.
//
// It alone knows the YAML. What it hands out is typed, complete (every default
// filled in) and consistent; whoever gets a Config checks nothing again. A
// mistake names file, line and key, and what is allowed there; all mistakes of
// a file are reported together.
//
// The file is read again while the process runs. Each key, or a key around it, has
// the tag change. It says when a changed value takes effect: live means at once,
// restart means at the next start. Next applies the tags; there is no other list.
//
// Its limit: it looks at the file and the files it names, never at the cluster,
// the network or HAProxy.
package config

import (
	"bytes"
	"crypto/tls"
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
	"strconv"
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
	// How HAProxy is run, and where it listens.
	HAProxy HAProxy `json:"haproxy"`
	// The status page, the metrics and the health endpoints.
	Status Status `json:"status" change:"live"`
	// Directory for the last known objects of each cluster (its picture) and the last token that
	// the cluster gave. The picture is used at a start while the API server is unreachable. A
	// change needs a restart.
	StateDir string `json:"stateDir" change:"restart" jsonschema:"default=/var/lib/sallyport"`
	// The log, written to standard error.
	Log Log `json:"log"`
	// Several appliances that serve the same addresses. Leave it out for a single appliance.
	Group Group `json:"group" change:"live"`
	// The machine itself: name, addresses, NTP and DNS servers. Only the bootable image reads it.
	System System `json:"system" change:"live"`

	// Warnings are doubts that do not stop a start, one sentence each. Only Load fills them.
	Warnings []string `json:"-"`

	file *problems // the lines of the keys; nil: the Config was not read from a file
}

// Cluster is one Kubernetes cluster that runs Calico.
type Cluster struct {
	// Name of the cluster: lower-case letters, digits and dashes. With more than one cluster each needs its own.
	// Names in HAProxy begin with it and `__`, except those of a cluster `default`.
	Name string `json:"name" jsonschema:"default=default"`
	// Credentials: the path of a kubeconfig file, or the kubeconfig itself (as a block of text or as keys).
	Kubeconfig Kubeconfig `json:"kubeconfig" jsonschema:"required"`
	// Networks within which routes to pods are accepted, whatever the cluster says. Empty: only the
	// cluster's IPPools bound them.
	Pools []netip.Prefix `json:"pools"`
	// Address of this machine from which HAProxy connects to the pods, or the network of this address. The
	// routes to the pods are then in a table that only packets from this address take. Clusters with different
	// sources may have the same pools. It has to be of IPv4, and needs pools. Empty: the kernel chooses.
	Source Source `json:"source"`
	// Set of clusters that serve a Service as one. A Service that several clusters of a set export
	// (ServiceExport, multicluster.x-k8s.io) has the pods of all of them. A namespace means the same
	// team in each cluster of a set. Empty: the cluster serves alone.
	Set string `json:"set"`
	// Services of the cluster that are shared in its set. exported: those with a ServiceExport. all: every
	// Service, and ServiceExports are not read. A Service has the pods of all clusters of the set that share
	// the Service of its namespace and name.
	Share Share `json:"share" jsonschema:"default=exported,enum=exported,enum=all"`
	// What the cluster does in its set. active: its pods serve. standby: its pods serve an exported
	// Service only while no pod of another cluster of the set can. drained: its pods get no new
	// connection for a Service that another cluster of the set serves.
	State State `json:"state" jsonschema:"default=active,enum=active,enum=standby,enum=drained"`
	// Share of the requests for an exported Service beside the other clusters of the set, however many
	// pods each of them has. All clusters of a set have a weight, or none. Empty: each pod is equal.
	Weight int `json:"weight" jsonschema:"minimum=1,maximum=1000"`
	// Fewest ready servers of an exported Service with which the cluster takes requests for it while another
	// cluster of the set has enough. It is a number, or a share such as 50% of the endpoints that the Service
	// has in the cluster, ready or not. A cluster that had too few takes requests again after 10s with enough,
	// and later if it fails again. Default: 1.
	MinReady MinReady `json:"minReady"`
	// The BGP sessions with the nodes of the cluster.
	BGP Peering `json:"bgp"`
	// Which Ingresses are served, and how.
	Ingress Ingress `json:"ingress"`
	// Whether Gateways and routes of Gateway API are served.
	Gateway Gateway `json:"gateway"`
	// How Calico's own objects are read.
	Calico Calico `json:"calico"`
}

// Share says which Services of a cluster its set shares.
type Share string

// The two kinds of a Share.
const (
	ShareExported Share = "exported"
	ShareAll      Share = "all"
)

// State says what a cluster does in its set.
type State string

// The states of a Cluster.
const (
	Serving State = "active"
	Standby State = "standby"
	Drained State = "drained"
)

// A Source is an IPv4 address of the machine, or the network of such an address. The zero Source stands for no choice.
type Source struct{ netip.Prefix }

// UnmarshalText reads a network, or an address.
func (s *Source) UnmarshalText(text []byte) error {
	p, err := netip.ParsePrefix(string(text))
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(string(text)); err == nil {
			p = netip.PrefixFrom(a, a.BitLen())
		}
	}
	if err != nil || !p.Addr().Is4() || p != p.Masked() || !p.Addr().IsGlobalUnicast() {
		return errNotAllowed
	}
	s.Prefix = p
	return nil
}

// MarshalText returns the network or the address, as UnmarshalText reads it.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s Source) String() string {
	switch {
	case !s.IsValid():
		return ""
	case s.IsSingleIP():
		return s.Addr().String()
	}
	return s.Prefix.String()
}

// MinReady is the number or the share of servers that have to be ready. The zero MinReady stands for 1.
type MinReady struct {
	Servers int // from 1 to 1000; 0 if it is a share
	Percent int // of all endpoints, from 1 to 100; 0 if it is a number
}

// UnmarshalText reads a number, or a share as 50%.
func (m *MinReady) UnmarshalText(text []byte) error {
	number, share := strings.CutSuffix(string(text), "%")
	n, err := strconv.ParseUint(number, 10, 16)
	switch {
	case err != nil || n == 0 || !share && n > 1000 || share && n > 100:
		return errNotAllowed
	case share:
		*m = MinReady{Percent: int(n)}
	default:
		*m = MinReady{Servers: int(n)}
	}
	return nil
}

// MarshalText returns the number or the share, as UnmarshalText reads it.
func (m MinReady) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m MinReady) String() string {
	if m.Percent > 0 {
		return fmt.Sprintf("%d%%", m.Percent)
	}
	return strconv.Itoa(max(m.Servers, 1))
}

// More reports whether one ready server may be too few.
func (m MinReady) More() bool { return m.Servers > 1 || m.Percent > 0 }

// Peering holds the settings that the BGP sessions with the nodes of one cluster share.
type Peering struct {
	// AS number that the cluster's nodes should have; the status warns if it is another one. Used
	// where the cluster's BGPConfiguration cannot be read. Default: localASN, or else bgp.asn.
	ASN uint32 `json:"asn" jsonschema:"minimum=1,maximum=4294967295"`
	// AS number of the appliance in the sessions with this cluster's nodes. Default: bgp.asn.
	LocalASN uint32 `json:"localASN" jsonschema:"minimum=1,maximum=4294967295"`
	// Who opens the connection: active dials the nodes and lets nobody connect, passive waits for
	// the nodes. With passive, set password or ttlSecurity: otherwise a pod can connect in place of
	// its node.
	Mode Mode `json:"mode" jsonschema:"default=active,enum=active,enum=passive"`
	// Key of TCP MD5 (RFC 2385), at most 80 bytes, the same as in the BGPPeer.
	Password Secret `json:"password"`
	// File that holds the key, instead of password.
	PasswordFile string `json:"passwordFile"`
	// Accept packets only from directly connected nodes (RFC 5082). The BGPPeer then needs ttlSecurity: 1.
	TTLSecurity bool `json:"ttlSecurity" jsonschema:"default=false"`
	// Most prefixes one node may announce.
	PrefixLimit uint32 `json:"prefixLimit" jsonschema:"default=1000,minimum=1,maximum=1000000"`
	// Addresses of route reflectors that are not nodes of the cluster.
	RouteReflectors []netip.Addr `json:"routeReflectors"`
	// TCP port of the nodes, dialled in mode active.
	Port uint16 `json:"port" jsonschema:"default=179,minimum=1,maximum=65535"`
}

// Mode says who opens a BGP connection.
type Mode string

// The two modes of a Peering.
const (
	Passive Mode = "passive"
	Active  Mode = "active"
)

// Limits bound what one namespace may bring, because all namespaces share HAProxy.
type Limits struct {
	// Hosts that all Ingresses of a namespace name together, in rules and in TLS entries.
	Hosts int `json:"hosts" jsonschema:"default=5000,minimum=1,maximum=1000000"`
	// Paths of all Ingresses and routes of a namespace together, with at least one for each hostname that a
	// route has at a listener.
	Paths int `json:"paths" jsonschema:"default=20000,minimum=1,maximum=1000000"`
	// Paths that are regular expressions, of all Ingresses of a namespace together. Each costs
	// every request for its host some time.
	RegularExpressions int `json:"regularExpressions" jsonschema:"default=200,minimum=1,maximum=100000"`
	// Paths that lead to a Service with a route-acl, and paths of canaries by header or cookie, of all
	// Ingresses of a namespace together; and matches of routes at the addresses of Ingresses that look at
	// more than the path. Each expression of client-crt-match counts as one, too.
	Conditions int `json:"conditions" jsonschema:"default=200,minimum=1,maximum=100000"`
	// Backends of all Ingresses of a namespace together: one for each Service port that they name.
	// An Ingress with annotations has backends of its own.
	Backends int `json:"backends" jsonschema:"default=5000,minimum=1,maximum=1000000"`
	// Servers of all backends of a namespace together: an endpoint counts once for each backend that it is in.
	Servers int `json:"servers" jsonschema:"default=10000,minimum=1,maximum=1000000"`
	// Certificates of all Ingresses of a namespace together.
	Certificates int `json:"certificates" jsonschema:"default=2000,minimum=1,maximum=1000000"`
	// Secrets that the Ingresses and Services of a namespace name together, whether they exist or
	// not. Older objects count first; Secrets beyond the limit are not read.
	Secrets int `json:"secrets" jsonschema:"default=3000,minimum=1,maximum=1000000"`
	// Reloads of HAProxy that changes of a namespace may cause at once. It gets one back every 30
	// seconds, and more slowly while many old workers finish their connections. Each reload leaves
	// an old worker. HAProxy keeps 20 of them, and the default is a quarter.
	Reloads int `json:"reloads" jsonschema:"default=5,minimum=1,maximum=1000000"`
	// Per cent of the time for changes of a namespace that make all routes anew: those of regular
	// expressions, wildcard hosts, Gateways and exports, and of many objects at once. With 10,000 Ingresses
	// this takes about 0.2 seconds, while all other changes wait. A change beyond it waits for some seconds;
	// other changes and endpoints do not. No bound with trust: cluster.
	Routing int `json:"routing" jsonschema:"default=10,minimum=1,maximum=100"`
	// Addresses of group.pools or haproxy.addresses for the Services and Gateways of a namespace
	// together; a shared address counts once. Default: a quarter of these addresses of each family
	// (IPv4, IPv6), at least one.
	Addresses int `json:"addresses" jsonschema:"minimum=1,maximum=1000000"`
	// TCP ports at these addresses together.
	Ports int `json:"ports" jsonschema:"default=256,minimum=1,maximum=1000000"`
	// Addresses of clients that rate-limit-requests and limit-connections of all Ingresses of a
	// namespace count together, at 160 bytes each. If they would be more, the largest tables of the
	// namespace become smaller; every limit stays in effect.
	Clients int `json:"clients" jsonschema:"default=1048576,minimum=1000,maximum=1000000000"`
	// Checks of all servers of a namespace in a second; one over TLS counts as ten. If they would
	// be more, the time between its checks is doubled, as often as it takes. The default is what
	// 5,000 servers take at the default check-interval.
	Checks int `json:"checks" jsonschema:"default=2500,minimum=10,maximum=1000000"`
	// Wrong passwords for all Ingresses of a namespace in a second: HAProxy hashes each password
	// for up to 15 ms, in a thread that serves others, too. The networks of clients are divided
	// into up to 16 parts with equal shares. While a part has used up its share of 5 seconds,
	// clients of this part whose password is not remembered are answered 429.
	WrongPasswords int `json:"wrongPasswords" jsonschema:"default=10,minimum=1,maximum=1000000"`
	// Bytes of HAProxy's configuration that the keys of all Ingresses of a namespace, and of their
	// Services, take together. The annotations of an Ingress and its Service count once for each
	// backend that the Ingress leads to. Older Ingresses count first. All clients of an Ingress beyond
	// the limit are rejected. The filters of routes count after the Ingresses, and a route beyond the
	// limit is not served. HAProxy reads 4 MiB in 0.2 seconds, and each of its workers takes 50 MB
	// for them.
	ConfigBytes int `json:"configBytes" jsonschema:"default=4194304,minimum=65536,maximum=1073741824"`
	// Lines of one annotation that holds several: headers, rewrites.
	Lines int `json:"lines" jsonschema:"default=100,minimum=1,maximum=10000"`
	// Addresses and networks in one annotation; lists of the ConfigMap for patternFiles may be longer.
	ListEntries int `json:"listEntries" jsonschema:"default=2000,minimum=1,maximum=100000"`
	// Bytes of all samples of request-capture of one Ingress together: request-capture-len times
	// their number. The largest of all Ingresses count for each captured request.
	CaptureBytes int `json:"captureBytes" jsonschema:"default=4096,minimum=128,maximum=1048576"`
	// Bytes of one Secret that is used. The API server allows 1048576.
	SecretBytes int `json:"secretBytes" jsonschema:"default=262144,minimum=1024,maximum=1048576"`
	// Bytes of all Ingresses of a namespace together, of whatever class, as many of all its Services,
	// and as many of all its Secrets that something names, as the appliance keeps them: 20,000 Ingresses
	// of 3 kB, or 13,000 certificates of 5 kB, by default. While a namespace
	// has more Ingresses, all clients of those that are kept are rejected, because one that is left
	// out may be a guard. Services that something served refers to count first. A Secret that has no room
	// counts as one that is too large: what is guarded by it is closed. No bound with trust: cluster.
	ObjectBytes int `json:"objectBytes" jsonschema:"default=67108864,minimum=65536,maximum=1073741824"`
	// Bytes of all EndpointSlices of a namespace together, as far as the appliance reads them: some
	// 100,000 endpoints by default. Those of Services that are served count first.
	SliceBytes int `json:"sliceBytes" jsonschema:"default=16777216,minimum=65536,maximum=1073741824"`
	// Bytes of all objects of a namespace in the last good picture, which a start without the API
	// server uses: a quarter of the largest picture by default. A namespace beyond it is left out
	// there.
	PictureBytes int `json:"pictureBytes" jsonschema:"default=67108864,minimum=65536,maximum=268435456"`
}

// Ingress says which Ingresses of a cluster are served, and how.
type Ingress struct {
	// Name of the IngressClass that is ours.
	Class string `json:"class" jsonschema:"default=haproxy"`
	// Controller that an IngressClass must name to be ours (spec.controller).
	Controller string `json:"controller" jsonschema:"default=haproxy.org/ingress-controller"`
	// Serve Ingresses that name no class, even if ours is not the cluster's default.
	WatchWithoutClass bool `json:"watchWithoutClass" jsonschema:"default=false"`
	// Addresses that are written into status.loadBalancer of each served Ingress. Empty: nothing is
	// written. Default: group.addresses.
	Publish []netip.Addr `json:"publish"`
	// A ConfigMap, as NAMESPACE/NAME, with keys for all Ingresses (ingress/README.md). Empty: none.
	ConfigMap string `json:"configMap"`
	// A ConfigMap, as NAMESPACE/NAME, of error responses: each key is a status, each value the
	// whole response that HAProxy sends with that status.
	ErrorFiles string `json:"errorFiles"`
	// A ConfigMap, as NAMESPACE/NAME, of lists that keys refer to as patterns/NAME.
	PatternFiles string `json:"patternFiles"`
	// A ConfigMap, as NAMESPACE/NAME, of TCP services: each key is a port, each value the Service
	// that takes its connections (ingress/README.md).
	TCPServices string `json:"tcpServices"`
	// The only namespaces that Ingresses are taken from. Secrets are then read only in these
	// namespaces and in the namespace of configMap, unless crossNamespaceSecrets is on. Empty: all.
	Namespaces []string `json:"namespaces"`
	// Namespaces that Ingresses are never taken from.
	NotNamespaces []string `json:"notNamespaces"`
	// A label selector (as of kubectl -l: "team=web,env in (a, b),!old") for the namespaces that
	// Ingresses are taken from. Empty: all.
	NamespaceSelector string `json:"namespaceSelector"`
	// Let Ingresses and Services name Secrets of other namespaces.
	CrossNamespaceSecrets bool `json:"crossNamespaceSecrets" jsonschema:"default=false"`
	// Read the custom resources of HAProxy's own controller (ingress/KIC.md): Backends, TCPs, Defaults, Globals
	// and Frontends. Ingresses, Services and the ConfigMap name Backends by cr-backend. The ConfigMap alone names
	// the others, by cr-defaults, cr-global, cr-frontend-http and cr-frontend-https. trust decides whether Backends
	// may bring lines for HAProxy and serve other namespaces, and whether TCPs may open ports.
	CustomResources bool `json:"customResources" jsonschema:"default=false"`
	// Services, as NAMESPACE/NAME, that Ingresses of every namespace may name in
	// sallyport.dev/auth-url. An Ingress may always name the Services of its own namespace.
	AuthServices []string `json:"authServices"`
	// How far the namespaces of the cluster trust each other. namespace: a host belongs to the
	// namespace whose Ingress named it first; only the ConfigMap may bring snippets, because a
	// snippet can read the traffic of every namespace. cluster: one team owns everything;
	// namespaces share each host, the oldest path wins, and every Ingress and Service may bring
	// snippets.
	Trust Trust `json:"trust" jsonschema:"default=namespace,enum=namespace,enum=cluster"`
	// Which namespaces may use which hosts, whoever named them first. The first entry that matches
	// a host counts. If no entry matches, trust decides.
	Hosts []Host `json:"hosts"`
	// Serve pods that have hostNetwork. The address of such a server is the InternalIP of a node,
	// and must be the node's BGP address. Ports of the node itself (SSH, BGP, etcd, kubelet,
	// control plane) are not served. The namespace of such a pod is unknown: an EndpointSlice of
	// any namespace may name the pod.
	HostNetwork bool `json:"hostNetwork" jsonschema:"default=false"`
	// Let the ConfigMaps of this cluster set what concerns the whole HAProxy process: maxconn, log
	// targets, proxy-protocol, the client-ca of all hosts, error pages, the default backend,
	// snippets. At most one cluster. Default: true for the first cluster, if no other has it.
	Process bool `json:"process"`
	// Let this cluster bring snippets although another cluster sets the process. A snippet can read
	// and change the traffic of every cluster.
	Snippets bool `json:"snippets" jsonschema:"default=false"`
	// Sections of HAProxy's configuration (global, defaults, frontend, backend). Every snippet for them is
	// rejected, also those of the ConfigMap.
	NoSnippets []string `json:"noSnippets"`
	// How long a host, or an address of a Service, stays with its namespace after nothing there
	// names it any more, from 0s to 720h. Meanwhile no other namespace gets it: otherwise another
	// namespace could take it while its owner replaces an object. An entry of hosts that matches a
	// host ends that for the host at once.
	ReleaseAfter time.Duration `json:"releaseAfter" jsonschema:"default=1h"`
	// Limits for each namespace. Anything beyond a limit is reported and not served; older Ingresses take precedence.
	Limits Limits `json:"limits"`
	// Whether Ingresses of ingress-nginx are served, with its annotations (ingress/NGINX.md).
	Nginx Nginx `json:"nginx"`
}

// Nginx says which Ingresses are read with the annotations of ingress-nginx.
type Nginx struct {
	// Names of the IngressClasses whose Ingresses are read with the annotations of ingress-nginx
	// (nginx.ingress.kubernetes.io/), as nginx. Without a name, no Ingress is read with them.
	Classes []string `json:"classes"`
	// Controllers of ingress-nginx. The Ingresses of each IngressClass that names one of them
	// (spec.controller) are read in this way, too.
	Controllers []string `json:"controllers" jsonschema:"default=k8s.io/ingress-nginx"`
	// Annotations that have no effect here, without their prefix, as enable-modsecurity or
	// configuration-snippet. An annotation that may guard an Ingress and has no equal here closes the
	// Ingress, unless this list names it: all clients get 503.
	Without []string `json:"without"`
}

// Gateway says whether the objects of Gateway API of a cluster are served.
type Gateway struct {
	// Serve Gateways and routes of Gateway API (group gateway.networking.k8s.io). They are served by
	// default as soon as the cluster has the CRDs. With true, a cluster without the CRDs, or without the
	// rights to read the objects, is reported as a fault. With false, the appliance reads no such object.
	// A Gateway needs an address: see haproxy.addresses, group.pools and shared. Which namespaces count is
	// in ingress.
	Enabled *bool `json:"enabled"`
	// Controller that a GatewayClass must name to be ours (spec.controllerName).
	Controller string `json:"controller" jsonschema:"default=sallyport.dev/gateway"`
	// Let Gateways that ask for no address, or for one of ingress.publish, share the addresses and ports
	// of Ingresses. There their routes own hosts as Ingresses do. Other Gateways have addresses of
	// their own.
	Shared bool `json:"shared" jsonschema:"default=false"`
	// Keep a headless Service NAME-sallyport, with EndpointSlices, for each Gateway NAME that has an
	// address, so that pods reach the Gateway by a name. Both have the labels and annotations of
	// spec.infrastructure. The appliance then needs the rights to write Services and EndpointSlices, and
	// the policy that keeps it to these: see sallyport manifests.
	Named bool `json:"named" jsonschema:"default=false"`
}

// Looks reports whether the appliance looks for objects of Gateway API.
func (g Gateway) Looks() bool { return g.Enabled == nil || *g.Enabled }

// Asked reports whether the file asks for Gateways, so that a cluster that cannot have them is at fault.
func (g Gateway) Asked() bool { return g.Enabled != nil && *g.Enabled }

// Trust says how far the namespaces of a cluster trust each other.
type Trust string

// The two kinds of clusters.
const (
	TrustNamespace Trust = "namespace" // namespaces are tenants
	TrustCluster   Trust = "cluster"   // one team owns the cluster
)

// Host says which namespaces may use the hosts of a pattern.
type Host struct {
	// A host; or *.NAME, which matches every name below it, however deep; or *, which matches every
	// host, and rules without one.
	Host string `json:"host" jsonschema:"required"`
	// Namespaces that share these hosts, the oldest claim to a path winning; * is every namespace.
	// Empty: nobody may use them.
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
	// BGP identifier, in the form of an IPv4 address no node uses. Default: the first IPv4 address
	// of listen, else the address this machine reaches the world from. A change needs a restart.
	RouterID netip.Addr `json:"routerID" change:"restart"`
	// Own addresses of the BGP sessions, which the BGPPeers name. Nodes are dialled from these
	// addresses; in mode passive nodes connect to them.
	Listen []netip.Addr `json:"listen" change:"live" jsonschema:"default=0.0.0.0,default=::"`
	// TCP port that nodes connect to in mode passive.
	Port uint16 `json:"port" change:"live" jsonschema:"default=179,minimum=1,maximum=65535"`
	// BGP hold time: the silence after which a node is lost, in whole seconds from 3s to 65535s.
	// The shorter of this and the hold time of the node (240s) applies; below 9s the sessions of
	// busy nodes flap. A change needs a restart.
	HoldTime time.Duration `json:"holdTime" change:"restart" jsonschema:"default=9s"`
	// How long the routes of a node stay after its session was closed without a NOTIFICATION, as at
	// a restart of calico-node. 0s: not at all.
	Retain time.Duration `json:"retain" change:"live" jsonschema:"default=120s"`
	// How long all routes of a cluster stay after all its sessions were lost at once. 0s: not at all.
	FailStatic time.Duration `json:"failStatic" change:"live" jsonschema:"default=10m"`
}

// Routes says where in the kernel the routes to pods go.
type Routes struct {
	// Route protocol number that marks a route as ours (ip route show proto 78).
	Protocol uint8 `json:"protocol" jsonschema:"default=78,minimum=20,maximum=185"`
	// Routing table; 254 is main.
	Table uint32 `json:"table" jsonschema:"default=254,minimum=1,maximum=4294967295"`
	// Metric of the routes.
	Metric uint32 `json:"metric" jsonschema:"default=50,minimum=1,maximum=4294967295"`
}

// HAProxy says how HAProxy is run, and where it listens.
type HAProxy struct {
	// Who runs HAProxy: managed starts and supervises it, external drives one that something else
	// runs. A change needs a restart.
	Mode Run `json:"mode" change:"restart" jsonschema:"default=managed,enum=managed,enum=external"`
	// Path of the haproxy program. In mode external it is used to check configurations. A change needs a restart.
	Binary string `json:"binary" change:"restart" jsonschema:"default=/usr/sbin/haproxy"`
	// Addresses for plain HTTP, as address:port; :80 is every address, IPv4 and IPv6.
	HTTP []netip.AddrPort `json:"http" change:"live" jsonschema:"default=:80"`
	// Addresses for HTTPS, in the same form.
	HTTPS []netip.AddrPort `json:"https" change:"live" jsonschema:"default=:443"`
	// Addresses for Gateways, and for Services of type LoadBalancer with the class
	// sallyport.dev/appliance: addresses, networks, or ranges such as 203.0.113.10-203.0.113.20. Each
	// Gateway or Service gets one of its own. Only addresses that this machine has already are used;
	// none is added to an interface. For a single appliance: a group has group.pools.
	Addresses []Pool `json:"addresses" change:"live"`
	// Directory of HAProxy's configuration, maps and certificates. It holds the state of HAProxy:
	// keep it over a reboot. A change needs a restart.
	Dir string `json:"dir" change:"restart" jsonschema:"default=/var/lib/sallyport/haproxy"`
	// Directory of the sockets and the PID file. A change needs a restart.
	RunDir string `json:"runDir" change:"restart" jsonschema:"default=/run/sallyport"`
	// Socket of HAProxy's master process (haproxy -S). Required in mode external, and not allowed
	// otherwise. A change needs a restart.
	MasterSocket string `json:"masterSocket" change:"restart"`
	// User that HAProxy's worker runs as; empty is the user of this process. Default: haproxy, if
	// this machine has that user and this process is root. A change needs a restart.
	User string `json:"user" change:"restart"`
	// Group that HAProxy's worker runs as; empty is the group of this process. Default: as for
	// user. A change needs a restart.
	Group string `json:"group" change:"restart"`
	// Threads of HAProxy. 0: one for each processor.
	Threads int `json:"threads" change:"live" jsonschema:"default=0,minimum=0,maximum=64"`
	// Most connections at the same time; fewer if the limit of open files is lower. 0: as many as
	// fit into half of the memory at 100 kB each; in mode external HAProxy decides.
	MaxConnections int `json:"maxConnections" change:"live" jsonschema:"default=0,minimum=0,maximum=100000000"`
	// TCP and UDP ports of this machine that no ConfigMap of a cluster can take (tcpServices,
	// quic-bind-port), even while no program listens on them. The default holds the ports of SSH,
	// DNS and DHCP. A list replaces the default.
	ReservedPorts []uint16 `json:"reservedPorts" change:"live" jsonschema:"default=22,default=53,default=68,default=546,minimum=1,maximum=65535"`
	// Least time between two reloads of HAProxy, from 1ms to 1h. A change needs a restart.
	MinReloadInterval time.Duration `json:"minReloadInterval" change:"restart" jsonschema:"default=1s"`
	// Where HAProxy writes a line for each request: off, stdout (under systemd: the journal), or
	// the address of a syslog server, by UDP. HAProxy has its stdout from its start: after a change
	// to stdout restart HAProxy.
	AccessLog AccessLog `json:"accessLog" change:"live" jsonschema:"default=off"`
	// File with global and defaults sections of your own, placed before the generated configuration.
	Base string `json:"base" change:"live"`
}

// AccessLog says where HAProxy writes a line for each request. The zero AccessLog is
// nowhere.
type AccessLog struct {
	Stdout bool
	Syslog netip.AddrPort // by UDP; zero: none
}

// On reports whether requests are logged.
func (a AccessLog) On() bool { return a.Stdout || a.Syslog.IsValid() }

// UnmarshalText reads off, stdout, or an address with a port.
func (a *AccessLog) UnmarshalText(text []byte) (err error) {
	*a = AccessLog{}
	switch s := string(text); s {
	case "off":
	case "stdout":
		a.Stdout = true
	default:
		if a.Syslog, err = netip.ParseAddrPort(s); err == nil &&
			(a.Syslog.Port() == 0 || a.Syslog.Addr().Zone() != "" || a.Syslog.Addr().Is4In6()) {
			err = fmt.Errorf("%q is not the address of a syslog server", s)
		}
	}
	return err
}

// Run says who runs HAProxy.
type Run string

// The two ways to run HAProxy.
const (
	Managed  Run = "managed"
	External Run = "external"
)

// Status configures the endpoint on which the appliance reports its state.
type Status struct {
	// Address of the status page, /status, /metrics, /healthz and /readyz. An address other than
	// loopback needs tls and password.
	Listen netip.AddrPort `json:"listen" jsonschema:"default=127.0.0.1:9090"`
	// Names that a request may have as Host, besides addresses, localhost, identity and the host
	// name. Requests with other names are rejected.
	Names []string `json:"names"`
	// Certificate of the endpoint. Leave it out for plain HTTP on loopback.
	TLS TLS `json:"tls"`
	// Password for all pages but /healthz and /readyz, at least 12 characters. HTTP Basic (the user
	// name is ignored) or "Authorization: Bearer PASSWORD". Without it nobody can drain by the
	// page.
	Password Secret `json:"password"`
	// File that holds the password, instead of password.
	PasswordFile string `json:"passwordFile"`
}

// TLS is the certificate of the status endpoint.
type TLS struct {
	// Certificate and its chain: the path of a PEM file, or the PEM itself. A new file is used
	// after systemctl reload sallyport.
	Certificate PEM `json:"certificate"`
	// Private key of the certificate: the path of a PEM file, or the PEM itself.
	Key PEM `json:"key"`
}

// Exists reports whether there is a certificate.
func (t TLS) Exists() bool { return t.Certificate != PEM{} || t.Key != PEM{} }

// Pair reads the certificate and its key.
func (t TLS) Pair() (tls.Certificate, error) {
	certificate, err := t.Certificate.read()
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := t.Key.read()
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certificate, key)
}

// PEM is a document in PEM: either Path or Inline is set.
type PEM struct {
	Path   string
	Inline Secret
}

// UnmarshalText takes PEM for itself, and any other text for a path.
func (m *PEM) UnmarshalText(text []byte) error {
	if strings.Contains(string(text), "-----BEGIN ") {
		*m = PEM{Inline: NewSecret(string(text))}
		return nil
	}
	if bytes.ContainsAny(text, "\r\n") {
		return errNotAllowed
	}
	*m = PEM{Path: string(text)}
	return nil
}

// MarshalText returns the path, or a placeholder.
func (m PEM) MarshalText() ([]byte, error) { return []byte(m.Path + m.Inline.String()), nil }

func (m PEM) read() ([]byte, error) {
	if m.Path == "" {
		return []byte(m.Inline.Reveal()), nil
	}
	return readFile(m.Path)
}

// URL returns the address of the status endpoint for programs on this machine.
func (s Status) URL() string {
	at, scheme := s.Listen, "http://"
	if s.TLS.Exists() {
		scheme = "https://"
	}
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return scheme + at.String()
}

// Endpoint returns where a command on this machine reaches the status endpoint without a
// password: its address, or the control socket, which takes root.
func (c *Config) Endpoint() string {
	if c.Status.TLS.Exists() || !c.Status.Password.IsZero() || c.Status.PasswordFile != "" {
		return c.ControlSocket()
	}
	return c.Status.Listen.String()
}

// ControlSocket returns the path of the socket on which the appliance serves root: the
// status endpoint, drain and undrain.
func (c *Config) ControlSocket() string { return filepath.Join(c.HAProxy.RunDir, "control.sock") }

// Log is the log, written to standard error.
type Log struct {
	// Lowest level that is written.
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

// Kubeconfig holds the credentials of a cluster: either Path or Inline is set.
type Kubeconfig struct {
	Path   string `json:"path,omitempty"`
	Inline Secret `json:"inline,omitzero"`
}

// Read returns the kubeconfig document. It reads a file anew at each call, so that it
// finds replaced credentials.
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

// GroupExample is a complete configuration file for one of two appliances that serve
// the same address.
//
//go:embed group.yaml
var GroupExample string

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema of the file (draft 2020-12). A test makes it from the
// comments and tags of the types of this package, and checks that it is up to date.
func Schema() []byte {
	return schema
}

// Load reads and checks the file at path and the files named in it. Relative paths
// start at the directory of the file.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf("%w; name the configuration file with --config, or write one: sallyport config example prints "+
				"one, sallyport config schema lists the keys", err)
	} else if err != nil {
		return nil, err
	}
	c, p, err := parse(path, data)
	if err != nil {
		return nil, err
	}
	c.resolve(filepath.Dir(path))
	if p.given("system") && !onImage() {
		c.warn(p, "system", "applies only to the bootable image; this machine ignores it")
	}
	c.readFiles(p)
	c.askMachine(p)
	c.warnOfShares(p)
	c.warnOfGateways(p)
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// Parse checks the text of a configuration file without looking at the machine: it does
// not read the files named in it, and Identity and BGP.RouterID stay empty unless they
// are set. name is the name of the file in error messages.
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
	if names := func(cluster Cluster) bool { return cluster.Ingress.Process }; len(c.Clusters) > 0 &&
		!slices.ContainsFunc(c.Clusters, names) {
		c.Clusters[0].Ingress.Process = true
	}
	c.fillGroup(p)
	c.fillSystem(p)
}

// fillASN sets the AS number of the appliance as that of each cluster that has none of its own.
func (c *Config) fillASN() {
	for i := range c.Clusters {
		of := &c.Clusters[i]
		if asn := &of.BGP.ASN; *asn == 0 || !c.file.given(fmt.Sprintf("clusters[%d].bgp.asn", i)) {
			*asn = c.ASNTowards(of.Name)
		}
	}
}

// ASNTowards returns the AS number of the appliance in the sessions with a cluster.
func (c *Config) ASNTowards(cluster string) uint32 {
	for i := range c.Clusters {
		if of := &c.Clusters[i]; of.Name == cluster && of.BGP.LocalASN != 0 {
			return of.BGP.LocalASN
		}
	}
	return c.BGP.ASN
}

// resolve makes relative paths absolute, starting at dir, and cleans all paths.
func (c *Config) resolve(dir string) {
	paths := []*string{
		&c.StateDir, &c.HAProxy.Binary, &c.HAProxy.Dir, &c.HAProxy.RunDir, &c.HAProxy.MasterSocket,
		&c.HAProxy.Base, &c.Group.SecretFile, &c.Status.PasswordFile, &c.Status.TLS.Certificate.Path,
		&c.Status.TLS.Key.Path,
	}
	for i := range c.Clusters {
		paths = append(paths, &c.Clusters[i].Kubeconfig.Path, &c.Clusters[i].BGP.PasswordFile)
	}
	for i := range c.Group.Upstream.Peers {
		paths = append(paths, &c.Group.Upstream.Peers[i].PasswordFile)
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

// readFiles checks that the files named in the configuration can be read, and reads the
// keys of signed sessions. A missing kubeconfig is only a warning: the other clusters
// are served meanwhile, and this one from its last picture.
func (c *Config) readFiles(p *problems) {
	for i := range c.Clusters {
		cluster, at := &c.Clusters[i], fmt.Sprintf("clusters[%d]", i)
		if path := cluster.Kubeconfig.Path; path != "" {
			if _, err := readFile(path); err != nil {
				c.warn(p, at+".kubeconfig", "%v", err)
			}
			c.warnIfOpen(p, at+".kubeconfig", path)
		}
		c.readSecret(p, at+".bgp.passwordFile", cluster.BGP.PasswordFile, &cluster.BGP.Password, checkPassword)
	}
	c.readSecret(p, "group.secretFile", c.Group.SecretFile, &c.Group.Secret, checkSecret)
	for i := range c.Group.Upstream.Peers {
		router := &c.Group.Upstream.Peers[i]
		c.readSecret(p, fmt.Sprintf("group.upstream.peers[%d].passwordFile", i), router.PasswordFile, &router.Password,
			checkPassword)
	}
	c.readSecret(p, "status.passwordFile", c.Status.PasswordFile, &c.Status.Password, checkStatusPassword)
	if t := c.Status.TLS; t.Certificate.Path != "" || t.Key.Path != "" {
		if _, err := c.Status.TLS.Pair(); err != nil {
			p.add("status.tls", "%v", err)
		}
		c.warnIfOpen(p, "status.tls.key", c.Status.TLS.Key.Path)
	}
	if c.HAProxy.Base != "" {
		if _, err := readFile(c.HAProxy.Base); err != nil {
			p.add("haproxy.base", "%v", err)
		}
	}
}

// readSecret reads the secret that a key of the configuration names a file for, if it
// names one.
func (c *Config) readSecret(p *problems, key, path string, secret *Secret, check func(*problems, string, Secret)) {
	if path == "" {
		return
	}
	text, err := readFile(path)
	if err != nil {
		p.add(key, "%v", err)
		return
	}
	*secret = Secret{strings.TrimRight(string(text), "\r\n")}
	check(p, key, *secret)
	c.warnIfOpen(p, key, path)
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

// readFile reads a file that must not be empty. Its errors begin with the path.
func readFile(path string) ([]byte, error) {
	data, err := readBounded(path)
	if err == nil && len(data) == 0 {
		err = errors.New("is empty")
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err // without the path
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// askMachine fills in what only the machine knows: its host name, its users and its
// address.
func (c *Config) askMachine(p *problems) {
	if c.Identity == "" {
		name, err := os.Hostname()
		if err != nil || name == "" {
			p.add("identity", "this machine has no host name; set identity")
		}
		c.Identity = name
		if c.Group.Exists() {
			c.checkIdentity(p)
		}
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
		p.add("bgp.routerID", "this machine has no IPv4 address to take the router id from; set bgp.routerID to one "+
			"that no node uses")
	}
	c.BGP.RouterID = id
}

// withoutIPv6 removes the IPv6 wildcard addresses if the kernel was started without
// IPv6. An address such as :80 stands for every address, and does not ask for IPv6 by
// name.
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

// ownAddress returns the IPv4 address from which this machine reaches the world, or
// else its first global unicast one.
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
