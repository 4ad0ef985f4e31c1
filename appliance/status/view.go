package status

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/watch"
	"sallyport/routes"
)

// A View holds everything that one round saw and decided, for the status endpoint. It is never
// changed afterwards.
type View struct {
	BGP      Sessions
	Settings InUse
	File     ConfigStatus
	At       time.Time
	Took     time.Duration
	Clusters []Cluster
	Want     plan.Want
	Have     plan.Have
	Config   *haproxy.Config
	Problems []ingress.Problem
	Compiled ingress.Result
	Steps    []plan.Step // that the round planned, taken or not
	Err      error
	NotReady []string
	Findings []Finding // what needs attention
	Warnings []string  // the Findings in words
	Capacity []haproxy.Capacity
	Fit      group.Fitness
	Behind   bool                       // an earlier process may have served an object that this one does not know yet
	Left     bool                       // it drains and announces nothing; HAProxy ends its connections
	Group    *GroupStatus               // nil if this appliance is in no group
	Troubles []Finding                  // of the group's addresses, routers and ports; the Subject is the address
	Waits    []haproxy.Wait             // tenants with changes that wait for a reload
	Used     map[netip.Addr]ingress.Use // addresses of the pools that something else than a Service has

	Connections int // that HAProxy is configured to accept; 0 without a limit in the configuration
}

// Sessions holds everything that a round read about BGP.
type Sessions struct {
	Peers     []bgp.PeerState
	Unguarded []string // clusters with nodes that connect to us without a password or TTL security
	Contested []string // BGP addresses that several clusters claim, a sentence each
	Offers    int
	Refusals  []routes.Refusal
	Static    map[string]time.Time // clusters that lost every session at once, and until when their routes stay
	Withheld  map[netip.Addr]int   // nodes that announce none of their blocks, and how many they own
}

// A Cluster is a cluster of the configuration, as a round saw it.
type Cluster struct {
	Name     string
	Health   watch.Health
	Known    bool
	Live     bool
	Pictured time.Time
	Topology routes.Topology
	Source   netip.Addr // from which HAProxy connects to its pods; zero if the kernel chooses
	Unsaved  error      // why the last good picture cannot be saved
	Gone     bool       // the cluster was removed from the configuration
	// Drained is the time since when sallyport drain has taken it out of its set; zero without a drain
	Drained time.Time
	// health of the watcher with newer settings, until it has read the whole cluster; else nil
	Next *watch.Health
}

// InUse holds the part of the configuration that the endpoints use beside the loop.
type InUse struct {
	Config      *config.Config
	Names       []string         // host names that the status endpoint answers to
	Certificate *tls.Certificate // of the status endpoint; nil without TLS
	Sum         string           // of the settings that have to be the same on all members of a group
}

// Listed returns values in words, with commas between them.
func Listed[T fmt.Stringer](all []T) string {
	words := make([]string, len(all))
	for i, e := range all {
		words[i] = e.String()
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// CountFunc returns how many elements of a list meet a condition.
func CountFunc[T any](s []T, is func(T) bool) (n int) {
	for _, e := range s {
		if is(e) {
			n++
		}
	}
	return n
}
