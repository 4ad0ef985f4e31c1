package status

import (
	"fmt"
	"slices"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/bgp"
)

// A Way is how clients' packets come to the members of a group: routers choose a member by BGP, or
// the members agree by VRRP.
type Way interface {
	// Name returns the name of its protocol.
	Name() string
	// Program returns the name of the program that moves the addresses, or "" without one.
	Program() string
	// Fact says whether clients of an address come to this appliance, or why not.
	Fact(*GroupStatus, AddressOfGroup) Fact
	// Entrance sums up all addresses of the group. There is at least one, and one is not drained.
	Entrance(*Status) Entrance
}

// An Entrance says whether clients come to this appliance.
type Entrance struct {
	State State
	Label string
}

// State is the state of an Entrance.
type State int

// The states of an Entrance.
const (
	Open      State = iota // every service address leads here
	Partly                 // some do, or some of the routers know it, or this appliance is the last resort
	Shut                   // none does, although it should
	Elsewhere              // none does, and that is right: another member has them
)

// Ways returns the ways of a group, that of the routers first.
func Ways(g *config.Group) (all []Way) {
	if g.Upstream.Exists() {
		all = append(all, byRouters{})
	}
	if g.VRRP.Exists() {
		all = append(all, byVRRP{g.VRRP.Interface})
	}
	return all
}

// Here reports whether clients of an address come to this appliance.
func (a AddressOfGroup) Here() bool { return len(a.Announced) > 0 || a.VRRP }

// By returns who sends clients of an address to this appliance: routers, or VRRP.
func (a AddressOfGroup) By() (all []string) {
	for _, router := range a.Announced {
		all = append(all, router.String())
	}
	if a.VRRP {
		all = append(all, "VRRP")
	}
	return all
}

type byRouters struct{}

func (byRouters) Name() string    { return "BGP" }
func (byRouters) Program() string { return "" }

func (w byRouters) Fact(g *GroupStatus, a AddressOfGroup) Fact {
	switch {
	case len(a.Announced) > 0:
		return Fact{Part: w.Name(), OK: true, Saw: "announced to " + Listed(a.Announced)}
	case g.Class == group.None:
		return Fact{Part: w.Name(), Saw: "announced to nobody, since this appliance is none" + prefixed(": ", g.Why)}
	}
	return Fact{Part: w.Name(), Saw: "announced to nobody: no router of its family has a session with this appliance " +
		"(sallyport status peers)"}
}

func (byRouters) Entrance(s *Status) Entrance {
	g, all := s.Group, len(s.Group.Addresses)
	routers := CountFunc(s.Peers, func(p bgp.PeerState) bool { return p.Upstream })
	hearing := CountFunc(s.Peers, func(p bgp.PeerState) bool { return p.Upstream && len(p.Announced) > 0 })
	announced := CountFunc(g.Addresses, func(a AddressOfGroup) bool { return len(a.Announced) > 0 })
	switch {
	case announced == 0:
		return Entrance{Shut, "announced to no router"}
	case g.Class != group.Full:
		return Entrance{Partly, "announced as last resort"}
	case hearing < routers:
		return Entrance{Partly, fmt.Sprintf("announced to %d of %d routers", hearing, routers)}
	case announced < all:
		return Entrance{Partly, fmt.Sprintf("%d of %d addresses announced", announced, all)}
	}
	return Entrance{Open, "announced to " + Counted(routers, "router")}
}

// byVRRP has the name of the interface that gets the addresses.
type byVRRP struct{ link string }

func (byVRRP) Name() string    { return "VRRP" }
func (byVRRP) Program() string { return "keepalived" }

func (w byVRRP) Fact(g *GroupStatus, a AddressOfGroup) Fact {
	switch {
	case a.VRRP:
		return Fact{Part: w.Name(), OK: true, Saw: "this appliance has it on " + w.link}
	case !g.Others():
		return Fact{Part: w.Name(), Saw: "this appliance does not have it, and no other member is full"}
	}
	return Fact{Part: w.Name(), OK: true, Saw: "another member has it"}
}

func (byVRRP) Entrance(s *Status) Entrance {
	g, all := s.Group, len(s.Group.Addresses)
	here := CountFunc(g.Addresses, func(a AddressOfGroup) bool { return a.VRRP })
	switch {
	case here == all:
		return Entrance{Open, "here by VRRP"}
	case here == 0 && g.Others():
		return Entrance{Elsewhere, "another member, by VRRP"}
	case here == 0:
		return Entrance{Shut, "no member, by VRRP"}
	}
	e := Entrance{Open, fmt.Sprintf("%d of %d addresses, by VRRP", here, all)}
	if !g.Others() {
		e.State = Partly
	}
	return e
}

// ComesHere reports whether clients of any service address come to this appliance.
func (s *GroupStatus) ComesHere() bool { return slices.ContainsFunc(s.Addresses, AddressOfGroup.Here) }
