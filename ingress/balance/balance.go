package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sallyport/haproxy"
	"sallyport/ingress/allot"
	"sallyport/ingress/annotations"
	"sallyport/ingress/claims"
	"sallyport/ingress/input"
)

// A Balancer is a Service of type LoadBalancer, or a Gateway, that is ours.
type Balancer struct {
	input.ObjectRef
	Addresses []netip.Addr // that its status is to have, IPv4 first
	Reasons   []string     // why it has each of the Addresses, in words
	Recorded  []netip.Addr // those of them that its status has already: its ports are open there
	Ports     []uint16     // of TCP
	Why       string       // sentences that say why it lacks an address it asks for; "" if it lacks none
}

// Streams returns the ports of a Service in a Config, at the addresses that are recorded.
func (b Balancer) Streams(c *haproxy.Config) (all []haproxy.Stream) {
	for _, s := range c.Streams {
		if slices.Contains(b.Recorded, s.Addr) && slices.Contains(b.Ports, s.Port) {
			all = append(all, s)
		}
	}
	return all
}

// A Round is all that decides about addresses.
type Round struct {
	Worlds   []*input.Snapshot        // one for each world of the Gates
	Gates    []*claims.Gate           // that have addresses of their own; Give sets their At
	Machine  []netip.Addr             // addresses of the Pools that the machine has, if the Pools are Local
	Used     map[netip.Addr]input.Use // addresses of the Pools that something else has
	Reserved map[uint16]string        // ports that no Service can have, each with its owner
	Fresh    bool                     // every cluster is known, so that addresses without a record are given, too
	Now      time.Time                // the zero time keeps no address

	// Keys returns the keys of a Service.
	Keys func(*corev1.Service) annotations.Layer
}

// An Outcome is the answer to a Round.
type Outcome struct {
	Balancers []Balancer // the older first
	Served    []Served   // the older first
	Problems  []input.Problem
	Owners    map[string]map[netip.Addr]input.AddressOwner // by cluster: who has, or had, each address
	Keeps     claims.Period                                // no address is released that is kept for a namespace
}

// A Served is a Service with ports that may be opened.
type Served struct {
	claims.Petitioner
	Service *corev1.Service
	Ports   []corev1.ServicePort // each from 1 to 65535, of TCP
	At      []netip.Addr         // addresses that its status has, and the machine
}

// A balancer is a Balancer in the making.
type balancer struct {
	claims.Petitioner
	service *corev1.Service // nil for a Gateway
	gate    *claims.Gate    // nil for a Service
	ports   []corev1.ServicePort
	shares  bool // its address with others
	allot.Demand
	// twins are Services of clusters that come later in the configuration file, if all of these clusters export them to
	// one set. They have its address.
	twins []balancer
}

// An exported is a Service that clusters of a set export.
type exported struct {
	set string
	types.NamespacedName
}

// A giver makes an Outcome of its Round.
type giver struct {
	Round
	Outcome
	allotter *allot.Allotter
	opened   map[allot.Tenant]int // ports
}

// Give gives addresses to Gateways and to the Services of type LoadBalancer.
func Give(r Round) Outcome {
	g := &giver{Round: r, opened: make(map[allot.Tenant]int)}
	all, pools := g.collect()
	demands := make([]allot.Demand, len(all))
	for i := range all {
		if one := &all[i]; one.gate != nil {
			g.demandGate(one)
		} else {
			g.demandService(one)
		}
		demands[i] = all[i].Demand
	}
	g.allotter = &allot.Allotter{
		Pools: pools, Machine: r.Machine, Used: r.Used, Kept: g.keptAddresses(pools),
		Most: func(of allot.Tenant) int { return r.Worlds[of.Cluster].Options.Limits.Addresses },
	}
	for i, got := range g.allotter.Allot(demands, r.Fresh) {
		if one := &all[i]; one.gate != nil {
			g.settleGate(one, got)
		} else {
			g.settleService(one, got)
		}
	}
	g.reportKept(all)
	g.remember()
	return g.Outcome
}

// collect returns all that ask for addresses, the older first, and the pools.
func (g *giver) collect() (all []balancer, pools input.Pools) {
	first := map[exported]int{} // the place in all of the Service that comes first
	for _, gate := range g.Gates {
		all = append(all, balancer{Petitioner: gate.Petitioner, gate: gate})
	}
	for i, w := range g.Worlds {
		pools = w.Options.Pools // the same in all clusters
		if len(pools.Ranges) == 0 {
			continue
		}
		admitted := input.ClassesOf(w)
		for _, s := range w.Services {
			if w.Options.Pools.Ours(s) && admitted.Admits(s.Namespace) {
				of := claims.PetitionerFor(i, claims.ReferenceTo(w.Cluster, "Service", s), s.CreationTimestamp.Time)
				one := balancer{Petitioner: of, service: s}
				if key := (exported{w.Options.InSet.Name, input.KeyOf(s)}); w.Exported(key.NamespacedName) {
					if at, known := first[key]; known {
						all[at].twins = append(all[at].twins, one)
						continue
					}
					first[key] = len(all)
				}
				all = append(all, one)
			}
		}
	}
	slices.SortStableFunc(all, func(x, y balancer) int { return claims.OlderOf(x.Petitioner, y.Petitioner) })
	return all, pools
}

// report adds a Problem of an object.
func (g *giver) report(on input.ObjectRef, reason, format string, args ...any) {
	g.Problems = append(g.Problems, input.Problem{ObjectRef: on, Reason: reason, Why: fmt.Sprintf(format, args...)})
}

// reason returns in words why a Service or Gateway has an address.
func (one *balancer) reason(addr netip.Addr) string {
	how, record := "derived from the names of cluster, namespace and "+one.Petitioner.Ref.Kind, "status.loadBalancer"
	if one.gate != nil {
		record = "status.addresses"
	}
	switch {
	case slices.Contains(one.Asked, addr) && one.gate != nil:
		how = "the Gateway asks for it (spec.addresses)"
	case slices.Contains(one.Asked, addr):
		how = "the Service asks for it (sallyport.dev/address or spec.loadBalancerIP)"
	case one.shares:
		how = "derived from the value of sallyport.dev/share-address, which each of its Services has"
	}
	if slices.Contains(one.Had, addr) {
		return how + ", and recorded in " + record + ", which it keeps"
	}
	return how + ", and not in " + record + " yet: its ports are closed until then"
}

// Explain returns Balancers with the problems of each.
func Explain(all []Balancer, problems []input.Problem) []Balancer {
	if len(all) == 0 {
		return nil
	}
	why := make(map[input.ObjectRef][]string)
	for _, p := range problems {
		why[p.ObjectRef] = append(why[p.ObjectRef], p.Why)
	}
	all = slices.Clone(all)
	for i := range all {
		one := &all[i]
		of := why[one.ObjectRef]
		for _, a := range one.Addresses {
			if !slices.Contains(one.Recorded, a) {
				of = append(of, fmt.Sprintf("%s is not in its status yet", a))
			}
		}
		one.Why = strings.Join(of, "; ")
	}
	return all
}
