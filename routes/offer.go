// Package routes decides which of the paths that BGP peers offer may become
// routes to pods, and holds those routes in the kernel.
//
// It owns every route and every rule in the kernel with the appliance's protocol number. It changes
// and removes no other one. It alone knows when an offer is trustworthy (Verify), and how to
// read and change the kernel's routes (Kernel). The two do not know each other, and
// exchange a Table. It also finds and ends TCP connections over a dead route, by the
// kernel's retransmissions (Kernel.Mute, Kernel.Abort).
//
// It promises that a prefix is in the table of Verify only if the cluster says that the
// node of the next hop owns it, and in the table of Kernel.List only if packets really
// take that route.
//
// Its limit: it believes the cluster's API within the bounds of our own configuration. It
// sees the main table of the kernel and the tables of its sources. It does not see the table
// of local addresses. For a cluster without a source it does not see policy rules either.
package routes

import (
	"net/netip"
	"time"
)

// An Offer is one path a BGP peer announces, or announced until its session
// ended.
type Offer struct {
	Cluster   string       // name of the cluster the peer belongs to
	Peer      netip.Addr   // remote address of the session
	PeerAS    uint32       // AS the peer opened the session with
	Prefix    netip.Prefix // NLRI
	NextHop   netip.Addr   // NEXT_HOP, or the first next hop of MP_REACH_NLRI
	ASPath    []uint32     // AS_PATH flattened; empty from an iBGP peer that originates
	Since     time.Time    // when the session was established; zero means long ago
	Announced time.Time    // since when the prefix is announced without a break; zero means long ago
	Lost      Loss         // zero while the session is established

	// Silent reports that the session is still established, but that its peer has missed
	// a keepalive. The offer counts as before. If other sessions are lost, a silent one
	// is evidence of a common cause.
	Silent bool
}

// A Loss is the time and the cause of the end of an offer's session.
type Loss struct {
	Cause Cause     `json:"cause,omitempty"`
	At    time.Time `json:"at,omitzero"`
}

// Cause is the way a BGP session ended. It is "" if the session has not ended.
type Cause string

// The causes that Verify treats differently.
const (
	// Closed is the end of the TCP connection without a NOTIFICATION, as when BIRD is
	// killed. A restart of calico-node kills it.
	Closed Cause = "connection closed"
	// Reconfigured is a Cease for Other Configuration Change (RFC 4486, subcode 6), which
	// BIRD sends when it restarts a session to take over new settings, such as another AS.
	Reconfigured Cause = "peer reconfigured"
	// HoldExpired is silence for the negotiated hold time (RFC 4271, 6.5).
	HoldExpired Cause = "hold timer expired"
	// Notified is a NOTIFICATION from the peer: it meant to end the session.
	Notified Cause = "notification received"
	// Refused is a NOTIFICATION we sent, after a bad message or too many prefixes.
	Refused Cause = "notification sent"
)

// A Refusal is an offer that did not become a route, and why.
type Refusal struct {
	Offer   Offer
	Reason  Reason // one word for metrics
	Why     string // one sentence for people
	Passing bool   // the offer will probably be withdrawn in a moment, so there is nothing to tell people
}
