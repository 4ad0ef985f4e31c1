package routes

import (
	"net/netip"
	"slices"
)

// Topology holds the nodes of a cluster and the blocks they own, by the cluster's API.
type Topology struct {
	Cluster    string     `json:"cluster"`
	Nodes      []Node     `json:"nodes,omitempty"`
	Affinities []Affinity `json:"affinities,omitempty"`
	// an IPAMBlock never changes: the same pointer means the same content
	Blocks []*IPAMBlock `json:"blocks,omitempty"`
	Pools  []Pool       `json:"pools,omitempty"`
	// Bounds are from our own configuration. If there are none, only the pools bound the cluster.
	Bounds []netip.Prefix `json:"bounds,omitempty"`
	// Source is from our own configuration. The machine connects to the pods from its address in this network. If
	// Source is zero, the kernel chooses the address.
	Source netip.Prefix `json:"source,omitzero"`
	// host-local IPAM: podCIDRs replace affinities, which do not exist
	HostLocal bool `json:"hostLocal,omitempty"`
	NoBlocks  bool `json:"noBlocks,omitempty"` // IPAMBlocks cannot be read: the pod of an address is unknown
	// route reflectors that are not nodes, from our own configuration
	Reflectors []netip.Addr `json:"reflectors,omitempty"`
	ASN        uint32       `json:"asn,omitempty"` // AS of the cluster, and so of those reflectors

	// Protected lists the sockets of the API server that we ask. No route covers their addresses, and no
	// server is one of them.
	Protected []netip.AddrPort `json:"protected,omitempty"`
	// Endpoints lists the API server's sockets by the cluster's own records. They bind this cluster alone:
	// no cluster keeps another one from its pods.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// HostNetwork allows servers at the addresses of nodes. Our own configuration sets it.
	HostNetwork bool `json:"hostNetwork,omitempty"`
}

// Node is a Kubernetes node as a BGP neighbour.
type Node struct {
	Name string `json:"name"`
	// addresses its BIRD speaks from, with the subnet's length; at most one a family
	BGP []netip.Prefix `json:"bgp,omitempty"`
	ASN uint32         `json:"asn"` // AS it opens the session to us with
	// those of BGP that its status has as InternalIP, too: where its hostNetwork pods answer
	Addresses []netip.Addr   `json:"addresses,omitempty"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs,omitempty"`
	Reflector bool           `json:"reflector,omitempty"` // it reflects the blocks of other nodes
	// the cluster lets it peer with others only; reflectors announce its blocks
	Behind bool `json:"behind,omitempty"`
	Down   bool `json:"down,omitempty"` // the cluster itself calls it unreachable: condition Ready is Unknown
}

// All returns each address of the node once.
func (n *Node) All() []netip.Addr {
	all := slices.Clone(n.Addresses)
	for _, p := range n.BGP {
		if !slices.Contains(all, p.Addr()) {
			all = append(all, p.Addr())
		}
	}
	return all
}

// Affinity is a BlockAffinity.
type Affinity struct {
	Name    string       `json:"name"` // of the object, for messages
	Node    string       `json:"node"`
	Prefix  netip.Prefix `json:"prefix"`
	State   string       `json:"state"` // confirmed, pending, pendingDeletion; empty is an old form of confirmed
	Deleted bool         `json:"deleted,omitempty"`
	Type    string       `json:"type,omitempty"` // host or virtual; empty is an old form of host
}

// IPAMBlock is Calico's record of a block: its owner, the addresses that are lent to pods
// on other nodes, and the pods that have its addresses.
type IPAMBlock struct {
	Prefix   netip.Prefix          `json:"prefix"`
	Affinity string                `json:"affinity,omitempty"` // "host:NODE", "virtual:NAME", or empty
	Borrowed map[netip.Addr]string `json:"borrowed,omitempty"` // address lent out, to the node that uses it
	// Pods maps the address of a pod to the pod's namespace, or to "" if the block does not name
	// it.
	Pods map[netip.Addr]string `json:"pods,omitempty"`
}

// Pool is an IPPool.
type Pool struct {
	Name      string       `json:"name"`
	CIDR      netip.Prefix `json:"cidr"`
	BlockSize int          `json:"blockSize"`          // prefix length of its blocks
	NoExport  bool         `json:"noExport,omitempty"` // disableBGPExport
}
