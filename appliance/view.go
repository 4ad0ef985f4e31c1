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

// view holds what one round saw and decided, for the status endpoint. It is never
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
	behind   bool                  // the process before may have served what this one does not know yet
	left     bool                  // drained: nothing is announced, and HAProxy ends what is kept
	group    *GroupStatus          // nil: in no group
	troubles []trouble             // with the group's addresses and routers
	waits    []haproxy.Wait        // whose changes wait for a reload
	closed   map[netip.Addr]string // addresses of the pools that no Service gets, each with what it is

	connections int // that HAProxy is configured to accept; 0: nobody says
}

// sessions holds what a round saw of BGP.
type sessions struct {
	peers     []bgp.PeerState
	unguarded []string // clusters whose pods could take a node's BGP session
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
	gone     bool // the configuration does not have the cluster any more
	// health of the watcher with newer settings, while it has not read the whole cluster; nil: there is none
	next *watch.Health
}
