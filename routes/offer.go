// Package routes decides which of the paths that BGP peers offer may become
// routes to pods, and holds those routes in the kernel.
//
// It owns every route in the kernel that carries the appliance's protocol
// number, and nothing else there: what it did not mark it neither changes nor
// removes. It alone knows what makes an offer trustworthy (Verify) and how the
// kernel is asked and told (Kernel). The two do not know each other; a Table
// travels between them. What runs on a route that leads nowhere any more it can
// see in the kernel's retransmissions, and end (Kernel.Mute, Kernel.Abort).
//
// It promises that a prefix is in the table of Verify only if the cluster says
// that the node behind the next hop owns it, and in the table of Kernel.List
// only if packets really take it.
//
// Its limit: it believes the cluster's API within the bounds of our own
// configuration, and of the kernel it sees one routing table: policy rules and
// the kernel's table of local addresses are outside its sight.
package routes

import (
	"net/netip"
	"time"
)

// An Offer is one path a BGP peer announces, or announced until its session
// ended.
type Offer struct {
	Cluster string       // name of the cluster the peer belongs to
	Peer    netip.Addr   // remote address of the session
	PeerAS  uint32       // AS the peer opened the session with
	Prefix  netip.Prefix // NLRI
	NextHop netip.Addr   // NEXT_HOP, or the first next hop of MP_REACH_NLRI
	ASPath  []uint32     // AS_PATH flattened; empty from an iBGP peer that originates
	Since   time.Time    // when the session was established; zero: long ago
	Lost    Loss         // zero while the session is established

	// Silent says that the session still stands, but that its peer has missed a
	// keepalive: rather lost than not. It takes nothing from the offer; it
	// speaks for a common cause where other sessions are lost.
	Silent bool
}

// A Loss says when and how the session that carried an offer ended.
type Loss struct {
	Cause Cause     `json:"cause,omitempty"`
	At    time.Time `json:"at,omitzero"`
}

// Cause is the way a BGP session ended; the empty Cause is "it has not".
type Cause string

// The ways a session ends, as far as they call for different treatment.
const (
	// Closed is the end of the TCP connection without a NOTIFICATION: a
	// killed BIRD, which is what a restart of calico-node looks like.
	Closed Cause = "connection closed"
	// HoldExpired is silence for the negotiated hold time (RFC 4271, 6.5).
	HoldExpired Cause = "hold timer expired"
	// Notified is a NOTIFICATION from the peer: it meant to end the session.
	Notified Cause = "notification received"
	// Refused is a NOTIFICATION we sent: a bad message, too many prefixes.
	Refused Cause = "notification sent"
)

// A Refusal is an offer that did not become a route, and why.
type Refusal struct {
	Offer  Offer
	Reason Reason // one word for metrics
	Why    string // one sentence for people
}
