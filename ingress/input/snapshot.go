package input

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/routes"
)

// A Snapshot is one cluster's objects at one moment. The objects it points to are never changed: a
// new version of an object is a new pointer, so package ingress can remember results by
// pointer.
//
// The lists may be in any order. The lists of a watch.Watcher are sorted by namespace and name
// (slices by namespace, Service and name), so that Compile need not sort them.
type Snapshot struct {
	Cluster string    // a DNS label; part of every name, unless it is ingress.Unnamed
	At      time.Time // when it was taken: decides which certificates have expired; zero asks for no such check
	Options Options
	Objects
	NoSecrets bool            // Secrets is empty because we may not read them
	NoClasses bool            // Classes is empty because we may not read them
	Topology  routes.Topology // not for Compile: the nodes and blocks of the cluster at the same moment

	// The version and the channel of the CRDs of Gateway API, as v1.6.3 and standard. Both are empty if
	// they are not known.
	APIBundle  string `json:",omitempty"`
	APIChannel string `json:",omitempty"`

	// Incomplete are the namespaces, in order, with Ingresses that are left out because they are
	// beyond the limits. An Ingress that is left out may have been a guard, so all
	// clients of the others are rejected.
	Incomplete []string `json:",omitempty"`

	// Beyond has a problem for each namespace that exceeds its limits, so that some of its objects
	// are left out. It also has a problem for each object that names more Secrets than its
	// namespace may.
	Beyond []Problem `json:"-"`

	// Owners are the owners of the Result before, or nil if nothing had an owner.
	Owners *Owners
}

// Options say which Ingresses of a cluster are ours and how they are read.
type Options struct {
	// Class is our value of the annotation kubernetes.io/ingress.class, and the name
	// of our IngressClass while IngressClasses cannot be read. Empty means "haproxy".
	Class string
	// Controller is the spec.controller of the IngressClasses that are ours, alone or followed by
	// "/" and Class. If it is empty, it is "haproxy.org/ingress-controller".
	Controller string
	// WatchWithoutClass takes Ingresses without a class while the cluster has no
	// default class.
	WatchWithoutClass bool
	// Namespaces are the namespaces that Ingresses are taken from; none means all.
	Namespaces []string
	// NotNamespaces are namespaces that Ingresses are never taken from.
	NotNamespaces []string
	// NamespaceSelector is a label selector, as "team=web,!old", for the namespaces that
	// Ingresses are taken from. Without it, Ingresses are taken from all.
	NamespaceSelector string
	// CrossNamespaceSecrets lets Ingresses and Services name Secrets of other
	// namespaces. A ConfigMap always may.
	CrossNamespaceSecrets bool
	// AuthServices are the Services, as NAMESPACE/NAME, that Ingresses of every
	// namespace may name in auth-url and mirror-to. The Services of its own namespace every Ingress
	// may name.
	AuthServices []string
	// OneTenant makes one tenant of all namespaces: they share every host, the oldest
	// claim to a path counts, and their Ingresses and Services may bring text for
	// HAProxy's configuration. A ConfigMap always may.
	OneTenant bool
	// Hosts say which namespaces may use which hosts. The first rule that matches
	// counts. OneTenant decides on a host that no rule matches.
	Hosts []HostRule
	// Process says that the ConfigMaps of this cluster set the keys of the whole HAProxy process.
	// The first cluster with it counts. If no cluster has it, the first cluster of all counts.
	Process bool
	// Snippets lets the cluster bring text for HAProxy's configuration although another cluster
	// sets the keys of the whole process.
	Snippets bool
	// ReleaseAfter is how long a host, or an address of a Service, is kept for its namespace
	// after nothing there uses it any more.
	ReleaseAfter time.Duration
	// NoSnippets are the sections (global, frontend and backend) for which no object may bring
	// text.
	NoSnippets []string
	// ConfigMap, as NAMESPACE/NAME, holds keys for all Ingresses. It is optional.
	ConfigMap string
	// ErrorFiles names a ConfigMap of the answers that HAProxy gives, by their status. The
	// ConfigMap is optional.
	ErrorFiles string
	// PatternFiles names a ConfigMap of lists, which keys refer to as "patterns/KEY". The
	// ConfigMap is optional.
	PatternFiles string
	// TCPServices names a ConfigMap of Services by port. Each takes the connections to its port.
	// The ConfigMap is optional.
	TCPServices string
	// Pools hold the addresses for Gateways and Services of type LoadBalancer; the same in all
	// clusters.
	Pools Pools
	// Gateway says whether the objects of Gateway API are served.
	Gateway GatewayOptions
	// Limits bound what one namespace may bring.
	Limits Limits
	// InSet has the set of the cluster, and the part of the cluster in it.
	InSet SetOptions
	// Source is the address of the machine from which HAProxy connects to the pods of the cluster. It is zero if the
	// kernel chooses.
	Source netip.Addr
	// CustomResources says that the custom resources of HAProxy's own controller are read.
	CustomResources bool
	// Nginx says which Ingresses are read with the annotations of ingress-nginx.
	Nginx NginxOptions
}

// SetOptions say which set of clusters a cluster belongs to, and what the cluster serves in the set.
type SetOptions struct {
	// Name is the name of the set. It is empty if the cluster is in no set, and then the other options
	// mean nothing.
	Name string
	// ExportsAll says that every Service of the cluster counts as exported, without a ServiceExport.
	ExportsAll bool
	// Standby says that the pods of the cluster serve an exported Service only while no pod of
	// another cluster of the set can.
	Standby bool
	// CountUnready says that backends of exported Services count the endpoints of the cluster that are
	// not ready.
	CountUnready bool
}

// GatewayOptions say whether the objects of Gateway API of a cluster are served.
type GatewayOptions struct {
	Enabled bool // they are served if they can be read
	// Unasked says that nobody asked for them: a cluster without the CRDs, or without the rights to
	// read the objects, is not at fault.
	Unasked bool
	// Controller is the spec.controllerName of the GatewayClasses that are ours.
	Controller string
	// Shared are the addresses of Ingresses, which Gateways without an address of their own share.
	// Without one, every Gateway has addresses of its own.
	Shared []netip.Addr
	// Named says that each Gateway with an address has a Service in the cluster, with that address.
	Named bool
}

// ConfigMaps returns the name of every ConfigMap of the options once, as NAMESPACE/NAME.
func (o Options) ConfigMaps() []string {
	var names []string
	for _, name := range []string{o.ConfigMap, o.ErrorFiles, o.PatternFiles, o.TCPServices} {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// SecretNamespaces returns the namespaces of the Secrets, and of the ConfigMaps that objects name, that
// are read. One entry "" means all namespaces.
func (o Options) SecretNamespaces() []string {
	if len(o.Namespaces) == 0 || o.CrossNamespaceSecrets {
		return []string{metav1.NamespaceAll}
	}
	all := slices.Clone(o.Namespaces)
	if namespace, _, named := strings.Cut(o.ConfigMap, "/"); named {
		all = append(all, namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// ReadsSecretsOf reports whether the Secrets of a namespace, and the ConfigMaps that objects name, are
// read.
func (o Options) ReadsSecretsOf(namespace string) bool {
	all := o.SecretNamespaces()
	return all[0] == metav1.NamespaceAll || slices.Contains(all, namespace)
}

// WithDefaults returns the Options with the default class and the default controller, if they are empty.
func (o Options) WithDefaults() Options {
	o.Class = cmp.Or(o.Class, "haproxy")
	o.Controller = cmp.Or(o.Controller, "haproxy.org/ingress-controller")
	return o
}

// Limits bound the objects and settings of one namespace: all namespaces share HAProxy's memory,
// its reloads, and the time that some requests take. 0 is no bound.
type Limits struct {
	// Of all Ingresses of the namespace together.
	Hosts, Paths, RegularExpressions, Conditions, Backends, Servers, Certificates int
	// Secrets that all Ingresses and Services of the namespace name.
	Secrets int
	// Reloads that its changes may cause at once, see haproxy.Config.
	Reloads int
	// Routing is the share of time, in per cent, for changes that make the whole routing anew. With 0
	// there is no bound.
	Routing int
	// Of all Services of type LoadBalancer of the namespace together. Without a bound of
	// their own, Addresses are a share of the pools.
	Addresses, Ports int
	// Clients that the tables of all its Ingresses count, and in a second checks of its
	// servers and wrong passwords of its clients.
	Clients, Checks, WrongPasswords int
	// Bytes of configuration that the keys of all its Ingresses and Services take.
	ConfigBytes int
	// Of one annotation.
	Lines, ListEntries int
	// Of all samples of request-capture of one Ingress.
	CaptureBytes int
	// Of one Secret.
	SecretBytes int
	// Bytes of all Ingresses of the namespace together, of all its Services, of all its
	// EndpointSlices, and of all its objects in the last good picture.
	ObjectBytes, SliceBytes, PictureBytes int
}

// A HostRule says which namespaces may use the hosts that a pattern matches.
type HostRule struct {
	// Host is a name; "*.name", which matches every name below it and the wildcard
	// host "*.name" itself; or "*", which matches every host, and rules without a
	// host.
	Host string
	// Namespaces share these hosts: the oldest claim to a path takes effect. "*" means every
	// namespace. If it is empty, no namespace may use the hosts.
	Namespaces []string
}

func (r *HostRule) matches(host string) bool {
	if below, many := strings.CutPrefix(r.Host, "*"); many {
		return strings.HasSuffix(host, below)
	}
	return r.Host == host
}

// Admits reports whether a namespace may use the hosts of the rule.
func (r *HostRule) Admits(namespace string) bool {
	return slices.Contains(r.Namespaces, namespace) || slices.Contains(r.Namespaces, "*")
}

// HostRule returns the first rule for a host, or nil.
func (o *Options) HostRule(host string) *HostRule {
	for i := range o.Hosts {
		if o.Hosts[i].matches(host) {
			return &o.Hosts[i]
		}
	}
	return nil
}

// Release returns when a thing is released that was left at some time. It rounds up to a 60th of
// ReleaseAfter, so releases come together, for two reasons: each release makes the whole routing
// anew; and the members of a group saw the owner leave at slightly different times, but should
// agree on the moment of the release.
func (o *Options) Release(left time.Time) time.Time {
	step := o.ReleaseAfter / 60
	return left.Add(o.ReleaseAfter).Truncate(step).Add(step)
}

// ObjectRef names an object of a cluster.
type ObjectRef struct {
	Cluster   string `json:"cluster"`
	Kind      string `json:"kind"` // Ingress, Service, ConfigMap or EndpointSlice
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// A Problem says why an object, or a part of it, is not served as it asks.
type Problem struct {
	ObjectRef
	Reason string `json:"reason"` // CamelCase, the reason of the Event
	Why    string `json:"why"`    // what, where, what is allowed, what to do
	As     string `json:"-"`      // the annotation or key of the object that has it; empty for a problem of several
}
