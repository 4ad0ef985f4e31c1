package routes

import "net/netip"

// Topology is what one cluster's API says about who may offer which block.
type Topology struct {
	Cluster    string         `json:"cluster"`
	Nodes      []Node         `json:"nodes,omitempty"`
	Affinities []Affinity     `json:"affinities,omitempty"`
	Blocks     []IPAMBlock    `json:"blocks,omitempty"`
	Pools      []Pool         `json:"pools,omitempty"`
	Bounds     []netip.Prefix `json:"bounds,omitempty"`     // from our own configuration; none means: the pools bound alone
	Protected  []netip.Addr   `json:"protected,omitempty"`  // addresses no route may cover: the API server's
	HostLocal  bool           `json:"hostLocal,omitempty"`  // host-local IPAM: no affinities exist, podCIDRs stand in
	Reflectors []netip.Addr   `json:"reflectors,omitempty"` // route reflectors that are not nodes, from our own configuration
	ASN        uint32         `json:"asn,omitempty"`        // AS of the cluster, and so of those reflectors
}

// Node is a Kubernetes node as a BGP neighbour.
type Node struct {
	Name      string         `json:"name"`
	BGP       []netip.Prefix `json:"bgp,omitempty"`       // addresses its BIRD speaks from, with the subnet's length; at most one a family
	ASN       uint32         `json:"asn"`                 // AS it opens the session to us with
	Addresses []netip.Addr   `json:"addresses,omitempty"` // InternalIP and ExternalIP: where its hostNetwork pods answer
	PodCIDRs  []netip.Prefix `json:"podCIDRs,omitempty"`
	Reflector bool           `json:"reflector,omitempty"` // it reflects the blocks of other nodes
	Behind    bool           `json:"behind,omitempty"`    // the cluster has it peer with others only: what is to be heard of it, reflectors tell
	Down      bool           `json:"down,omitempty"`      // the cluster itself calls it unreachable: condition Ready is Unknown
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

// IPAMBlock is the arbiter of a block: who it belongs to, and which of its
// addresses are lent to pods on other nodes.
type IPAMBlock struct {
	Prefix   netip.Prefix          `json:"prefix"`
	Affinity string                `json:"affinity,omitempty"` // "host:NODE", "virtual:NAME", or empty
	Borrowed map[netip.Addr]string `json:"borrowed,omitempty"` // address lent out, to the node that uses it
}

// Pool is an IPPool.
type Pool struct {
	Name      string       `json:"name"`
	CIDR      netip.Prefix `json:"cidr"`
	BlockSize int          `json:"blockSize"`          // prefix length of its blocks
	NoExport  bool         `json:"noExport,omitempty"` // disableBGPExport
}
