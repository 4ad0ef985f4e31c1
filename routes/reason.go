package routes

// Reason is the reason to refuse an offer, in one word: a label for metrics.
type Reason string

// The reasons, in the order of the checks.
const (
	UnknownCluster Reason = "unknown-cluster" // nothing is known of the cluster, or not yet
	UnknownPeer    Reason = "unknown-peer"    // the session is with no node and no reflector of the cluster
	WrongAS        Reason = "wrong-as"        // the peer is in another AS than the cluster says
	Malformed      Reason = "malformed"       // no prefix a kernel could hold
	DefaultRoute   Reason = "default-route"   // 0.0.0.0/0 or ::/0
	SpecialRange   Reason = "special-range"   // loopback, link-local, multicast, reserved
	OwnNetwork     Reason = "own-network"     // overlaps an address or a connected network of this machine
	Protected      Reason = "protected"       // covers an address no route may cover: the API server's
	NoSource       Reason = "no-source"       // the machine lacks the address to reach the cluster's pods from
	OtherCluster   Reason = "other-cluster"   // overlaps a network of another cluster
	NotPods        Reason = "not-pods"        // announced for others than us: services, tunnels, node networks
	NoAffinity     Reason = "no-affinity"     // no confirmed block of any node
	WrongLength    Reason = "wrong-length"    // part of a block, or more than a block
	UnknownNode    Reason = "unknown-node"    // the block's owner is no known node
	NotOwner       Reason = "not-owner"       // the block is another node's
	Ambiguous      Reason = "ambiguous"       // the cluster contradicts itself about the owner or its address
	BadNextHop     Reason = "bad-next-hop"    // the next hop is not the owner's address
	BadASPath      Reason = "bad-as-path"     // the path comes from further away than the owner
	OutOfBounds    Reason = "out-of-bounds"   // outside the configured bounds, or nothing bounds it
	NoExport       Reason = "no-export"       // its pool disables the export by BGP
	NotOnLink      Reason = "not-on-link"     // the owner is not directly connected to this machine
	Stale          Reason = "stale"           // the session is lost, and its offers count no longer
)

// Reasons returns every Reason, for metrics.
func Reasons() []Reason {
	return []Reason{
		UnknownCluster, UnknownPeer, WrongAS, Malformed, DefaultRoute, SpecialRange, OwnNetwork, Protected,
		NoSource, OtherCluster, NotPods, NoAffinity, WrongLength, UnknownNode, NotOwner, Ambiguous, BadNextHop,
		BadASPath, OutOfBounds, NoExport, NotOnLink, Stale,
	}
}
