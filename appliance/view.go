package appliance

import (
	"net/netip"
	"time"

	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/watch"
	"sallyport/routes"
)

// A view holds everything that one round saw and decided, for the status endpoint. It is never
// changed afterwards.
type view struct {
	sessions
	settings settings
	file     ConfigStatus
	at       time.Time
	took     time.Duration
	clusters []clusterView
	want     plan.Want
	have     plan.Have
	config   *haproxy.Config
	problems []ingress.Problem
	compiled ingress.Result
	steps    []plan.Step // that the round planned, taken or not
	err      error
	notReady []string
	warnings []string
	capacity []haproxy.Capacity
	fit      group.Fitness
	behind   bool                  // the process before may have served an object that this process does not know yet
	left     bool                  // it drains and announces nothing; HAProxy ends its connections
	group    *GroupStatus          // nil if this appliance is in no group
	troubles []trouble             // with the group's addresses and routers
	waits    []haproxy.Wait        // tenants with changes that wait for a reload
	closed   map[netip.Addr]string // addresses of the pools that no Service gets, each with its use

	connections int // that HAProxy is configured to accept; 0 without a limit in the configuration
}

// sessions holds everything that a round read about BGP.
type sessions struct {
	peers     []bgp.PeerState
	unguarded []string // clusters with nodes that connect to us without a password or TTL security
	contested []string // BGP addresses that several clusters claim, a sentence each
	offers    int
	refusals  []routes.Refusal
	static    map[string]time.Time // clusters that lost every session at once, and until when their routes stay
	withheld  map[netip.Addr]int   // nodes that announce none of their blocks, and how many they own
}

type clusterView struct {
	name     string
	health   watch.Health
	known    bool
	live     bool
	pictured time.Time
	topology routes.Topology
	gone     bool // the cluster was removed from the configuration
	// health of the watcher with newer settings, until it has read the whole cluster; else nil
	next *watch.Health
}
