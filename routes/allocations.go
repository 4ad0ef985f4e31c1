package routes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Allocations hold the owner of each pod address, by the records of the clusters. An
// EndpointSlice is no such record: its author may write any address into it.
type Allocations struct {
	local     map[netip.Addr]bool
	protected map[netip.AddrPort]string // the API servers' sockets, with the names of the clusters
	clusters  map[string]*allocations
}

type allocations struct {
	host    map[netip.Addr]hostAddress // addresses of nodes
	onNodes bool                       // servers at these addresses are allowed
	foreign index[string]              // as returned by claims.of
	servers map[netip.AddrPort]bool    // the API server's sockets, by the cluster's own records
	blocks  index[*IPAMBlock]
	ranges  index[bool] // networks of pods with unknown namespaces; empty if blocks have them
}

// A hostAddress is an address of a node.
type hostAddress struct {
	node   string
	agreed bool // the node's status and its BGP address say the same
}

// nodePorts lists ports of a node that belong to no pod. They stay refused where pods on
// the host's network are served: their programs often trust a node's network, and ask for
// an SSH key or a client certificate at most.
var nodePorts = map[uint16]string{
	22: "SSH", 179: "BGP", 2379: "etcd", 2380: "etcd", 5473: "Typha", 6443: "the API server", 10249: "kube-proxy",
	10250: "the kubelet", 10255: "the kubelet", 10257: "the controller manager", 10259: "the scheduler",
}

// Allocate collects the records of the clusters. If two clusters claim the same addresses,
// one outranks the other, as in Verify.
func Allocate(f Facts) *Allocations {
	a := &Allocations{
		local: map[netip.Addr]bool{}, protected: map[netip.AddrPort]string{},
		clusters: map[string]*allocations{},
	}
	for _, addr := range f.Local.Addrs {
		a.local[addr] = true
	}
	var taken claims
	for _, t := range byRank(f.Topologies) {
		for _, server := range t.Protected {
			a.protected[server] = t.Cluster
		}
		if a.clusters[t.Cluster] != nil {
			continue // the configuration does not allow two of one name
		}
		source, sourced := f.Local.SourceOf(t.Source)
		c := &allocations{
			host: map[netip.Addr]hostAddress{}, onNodes: t.HostNetwork,
			foreign: taken.of(source), servers: map[netip.AddrPort]bool{},
		}
		for _, server := range t.Endpoints {
			c.servers[server] = true
		}
		a.clusters[t.Cluster] = c
		blocks, ranges, territory := map[netip.Prefix]*IPAMBlock{}, map[netip.Prefix]bool{}, t.Bounds
		for _, n := range t.Nodes {
			for _, p := range n.BGP {
				c.host[p.Addr()] = hostAddress{node: n.Name}
			}
			if t.HostLocal {
				for _, p := range n.PodCIDRs {
					ranges[p] = true
				}
			}
		}
		for _, n := range t.Nodes {
			for _, addr := range n.Addresses {
				c.host[addr] = hostAddress{node: n.Name, agreed: true}
			}
		}
		for _, b := range t.Blocks {
			blocks[b.Prefix] = b
		}
		if t.NoBlocks {
			for _, affinity := range t.Affinities {
				ranges[affinity.Prefix] = true
			}
		}
		c.blocks, c.ranges = newIndex(blocks), newIndex(ranges)
		if len(t.Bounds) == 0 {
			for _, p := range t.Pools {
				territory = append(territory, p.CIDR)
			}
			for p := range ranges {
				territory = append(territory, p)
			}
		}
		for _, p := range territory {
			if sourced && p.IsValid() {
				taken = append(taken, claimed{Selector{From: source, To: p.Masked()}, t.Cluster})
			}
		}
	}
	return a
}

// Refuse returns why a Service of a namespace may not have a server at an address, if it may not.
// It also may if the cluster's records do not name the owner of an address in the cluster.
func (a *Allocations) Refuse(cluster, namespace string, server netip.AddrPort) Denial {
	if a == nil {
		return deny(NoRecords, "nothing is known about who has which address")
	}
	at := server.Addr()
	if a.local[at] {
		return deny(OwnAddress, "%s is this machine's own address", at)
	}
	if of, ok := a.protected[server]; ok {
		return deny(APIServer, "%s is the API server of cluster %s", server, of)
	}
	c := a.clusters[cluster]
	if c == nil {
		return deny(NoRecords, "nothing is known about cluster %q", cluster)
	}
	if c.servers[server] {
		return deny(APIServer, "%s is the API server of cluster %s", server, cluster)
	}
	if host, ok := c.host[at]; ok {
		return c.refuseHost(host, server)
	}
	if _, other, ok := c.foreign.covering(single(at)); ok {
		return deny(ForeignCluster, "%s belongs to cluster %s", at, other)
	}
	if _, b, ok := c.blocks.covering(single(at)); ok {
		switch owner, held := b.Pods[at]; {
		case !held:
			return deny(NoPod, "%s is assigned to no pod", at)
		case owner != "" && owner != namespace:
			return deny(OtherNamespace, "%s is assigned to a pod of namespace %s, and the Service is of namespace %s",
				at, owner, namespace)
		}
		return Denial{}
	}
	if _, _, ok := c.ranges.covering(single(at)); ok {
		return Denial{}
	}
	return deny(NoBlock, "%s is in no block of cluster %s", at, cluster)
}

func (c *allocations) refuseHost(host hostAddress, server netip.AddrPort) Denial {
	what, taken := nodePorts[server.Port()]
	switch {
	case !c.onNodes:
		return deny(HostNetwork, "%s is an address of node %s: pods on the host's network are served with "+
			"clusters[].ingress.hostNetwork: true", server.Addr(), host.node)
	case !host.agreed:
		return deny(UnsureNode, "%s is where node %s speaks BGP, and is no InternalIP of its status", server.Addr(),
			host.node)
	case taken:
		return deny(NodePort, "%s is the port of %s on node %s", server, what, host.node)
	}
	return Denial{}
}

// A Denial is why an address may not serve a Service. The zero Denial is none.
type Denial struct {
	Code DenialCode
	Why  string // a sentence
}

// A DenialCode names a kind of denials. The codes are stable: programs may depend on them.
type DenialCode string

// The codes.
const (
	NoRecords      DenialCode = "no-records"
	OwnAddress     DenialCode = "own-address"
	APIServer      DenialCode = "api-server"
	ForeignCluster DenialCode = "foreign-cluster"
	NoPod          DenialCode = "no-pod"
	OtherNamespace DenialCode = "other-namespace"
	NoBlock        DenialCode = "no-block"
	HostNetwork    DenialCode = "host-network"
	UnsureNode     DenialCode = "unsure-node"
	NodePort       DenialCode = "node-port"
)

// None reports whether nothing is denied.
func (d Denial) None() bool { return d.Code == "" }

func deny(code DenialCode, format string, args ...any) Denial {
	return Denial{code, fmt.Sprintf(format, args...)}
}

// Since returns a function that reports whether an address may have another owner than in
// older allocations; nil if none has. It is cheap while the blocks are the same objects.
func (a *Allocations) Since(old *Allocations) (touched func(netip.Addr) bool) {
	if a != nil && a == old {
		return nil
	}
	everything := func(netip.Addr) bool { return true }
	if a == nil || old == nil || !maps.Equal(a.local, old.local) || !maps.Equal(a.protected, old.protected) ||
		len(a.clusters) != len(old.clusters) {
		return everything
	}
	addrs := map[netip.Addr]bool{}
	blocks := map[netip.Prefix]bool{} // that appeared or vanished
	for name, c := range a.clusters {
		was := old.clusters[name]
		if was == nil || c.onNodes != was.onNodes || !maps.Equal(c.host, was.host) ||
			!maps.Equal(c.servers, was.servers) || !maps.Equal(c.foreign.at, was.foreign.at) ||
			!maps.Equal(c.ranges.at, was.ranges.at) {
			return everything
		}
		for p := range was.blocks.at {
			if c.blocks.at[p] == nil {
				blocks[p] = true
			}
		}
		for p, b := range c.blocks.at {
			switch before := was.blocks.at[p]; before {
			case b:
			case nil:
				blocks[p] = true
			default:
				differ(b.Pods, before.Pods, addrs)
				differ(before.Pods, b.Pods, addrs)
			}
		}
	}
	if len(addrs)+len(blocks) == 0 {
		return nil
	}
	few := slices.Collect(maps.Keys(addrs)) // nearly always a single address: comparing is then faster than hashing
	return func(at netip.Addr) bool {
		if len(few) <= 4 && slices.Contains(few, at) || len(few) > 4 && addrs[at] {
			return true
		}
		for p := range blocks {
			if p.Contains(at) {
				return true
			}
		}
		return false
	}
}

// differ collects the addresses that have another entry, or none, in the other map.
func differ(one, other map[netip.Addr]string, into map[netip.Addr]bool) {
	for at, namespace := range one {
		if was, ok := other[at]; !ok || was != namespace {
			into[at] = true
		}
	}
}
