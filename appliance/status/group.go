package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/appliance/group"
	"sallyport/bgp"
	"sallyport/ingress"
)

// GroupStatus is this appliance and its group.
type GroupStatus struct {
	Name      string           `json:"name"`
	Class     group.Class      `json:"class"`
	Why       string           `json:"why,omitempty"` // why it is not full
	Since     time.Time        `json:"since"`         // of the class
	Draining  bool             `json:"draining,omitempty"`
	Addresses []AddressOfGroup `json:"addresses"` // of the group, then those of Services
	Services  []ServiceStatus  `json:"services,omitempty"`
	Ring      RingStatus       `json:"ring"`
	// faults of addresses and routers, one sentence each
	Problems []string       `json:"problems,omitempty"`
	Members  []MemberStatus `json:"members"` // as the file lists them, then others that speak with the group's secret
}

// AddressOfGroup is a service address.
type AddressOfGroup struct {
	Address   netip.Addr   `json:"address"`
	Held      bool         `json:"held"`                // this machine has it on lo
	Announced []netip.Addr `json:"announced,omitempty"` // the routers that have it from this appliance
	VRRP      bool         `json:"vrrp,omitempty"`      // this appliance has it by VRRP
	Services  []string     `json:"services,omitempty"`  // Services of type LoadBalancer that have it, as NAMESPACE/NAME
}

// Unheard reports whether no router knows a service address, although one should.
func (s *Status) Unheard(a AddressOfGroup) bool {
	return len(a.Announced) == 0 && !s.Group.Draining && slices.ContainsFunc(s.Peers, func(p bgp.PeerState) bool {
		return p.Upstream
	})
}

// MemberStatus is a member of the group, as it was last heard.
type MemberStatus struct {
	Name     string        `json:"name"`
	Address  netip.Addr    `json:"address"`
	Self     bool          `json:"self,omitempty"`
	Alive    bool          `json:"alive"`
	Class    group.Class   `json:"class,omitempty"`
	Draining bool          `json:"draining,omitempty"`
	Version  string        `json:"version,omitempty"`
	Age      time.Duration `json:"ageNanoseconds"`           // since its last word
	For      time.Duration `json:"forNanoseconds,omitempty"` // how long it has had this class
	Differs  bool          `json:"differs,omitempty"`        // its configuration differs from ours
	// for how long its HAProxy has served something else than ours, although the configuration is
	// the same
	Lags    time.Duration `json:"lagsNanoseconds,omitempty"`
	Reports string        `json:"reports,omitempty"` // the beginning of the faults that it reports
	Problem string        `json:"problem,omitempty"` // a fault of the heartbeat between it and this appliance
}

// Trouble returns the faults of a member in sentences, or "" if it has no fault. Its silence is in its
// class.
func (m MemberStatus) Trouble() string {
	var all []string
	for _, f := range m.Troubles("It", 0) {
		if f.Code != MemberSilent {
			all = append(all, strings.TrimSuffix(f.Sentence(), ".")+".")
		}
	}
	return strings.Join(all, " ")
}

// Troubles returns the faults of a member. Their sentences name the member as who. Members send
// heartbeats to a UDP port.
func (m MemberStatus) Troubles(who string, port uint16) (all []Finding) {
	add := func(code Code, remedy, command, format string, args ...any) {
		all = append(all, Finding{
			Code: code, Subject: m.Name, Level: Doubt, Saw: fmt.Sprintf(format, args...), Remedy: remedy,
			Command: command,
		})
	}
	const look = "sallyport status members"
	if m.Problem != "" {
		add(MemberUnheard, "", look, "%s", m.Problem)
	}
	if m.Differs {
		add(MemberDiffers, "compare the files, except identity and secrets", "sallyport config check",
			"%s has another configuration", who)
	}
	if m.Lags > 0 {
		add(MemberLags, "see which of the two does not hear its API server, or has an error", look,
			"%s has not served the same Ingresses as this appliance for %s", who, m.Lags.Round(time.Second))
	}
	if m.Reports != "" && !m.Draining {
		add(MemberReports, "", look, "%s is %s, and reports: %s", who, m.Class, m.Reports)
	}
	if len(all) == 0 && !m.Alive {
		add(MemberSilent, fmt.Sprintf("look whether it runs, and whether UDP port %d passes between the members", port),
			"ping -c 3 "+m.Address.String(), "%s (%s) %s", who, m.Address, m.State())
	}
	return all
}

// State returns the state of a member in words.
func (m MemberStatus) State() string {
	switch {
	case !m.Alive && m.Class == "":
		return "has not been heard"
	case !m.Alive:
		return fmt.Sprintf("has been silent for %s", max(m.Age.Round(time.Second), time.Second))
	case m.Draining:
		return "drains"
	}
	return "is " + string(m.Class)
}

// Serves reports whether a member is full, and does not drain.
func (m MemberStatus) Serves() bool { return m.Alive && m.Class == group.Full && !m.Draining }

// Others reports whether another member is full and does not drain.
func (s *GroupStatus) Others() bool {
	return slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return !m.Self && m.Serves() })
}

// findings returns everything in the group that needs attention: in this appliance's part, the troubles
// of addresses, routers and ports, and those of the other members.
func (s *GroupStatus) findings(troubles []Finding, port uint16) (all []Finding) {
	all = append(s.Own(), troubles...)
	for _, m := range s.Members {
		if !m.Self {
			all = append(all, m.Troubles(m.Name, port)...)
		}
	}
	for i := range all {
		all[i].Saw = "group " + s.Name + ": " + all[i].Saw
	}
	return all
}

// Own returns everything in this appliance's part in the group that needs attention.
func (s *GroupStatus) Own() (all []Finding) {
	add := func(code Code, subject, format string, args ...any) {
		all = append(all, Finding{
			Code: code, Subject: subject, Level: Doubt, Saw: fmt.Sprintf(format, args...),
			Command: "sallyport status addresses",
		})
	}
	if s.Class != group.Full {
		add(GroupClass, s.Name, "this appliance is %s: %s", s.Class, s.Why)
	}
	for _, a := range s.Addresses {
		if !a.Held {
			add(AddressNotHeld, a.Address.String(), "this machine does not have the address %s on lo, so it is not "+
				"announced", a.Address)
		}
	}
	if s.Ring.Problem != "" {
		add(SecondChance, s.Name, "%s", s.Ring.Problem)
	}
	return all
}

// Alone returns why no other member would serve without this one, or "" if another member is full.
func (v *View) Alone() string {
	if v.Group == nil || len(v.Group.Members) < 2 {
		return "this appliance is the only member of its group"
	}
	if v.Group.Others() {
		return ""
	}
	var others []string
	for _, m := range v.Group.Members {
		if !m.Self {
			others = append(others, m.Name+" "+m.State())
		}
	}
	return "no other member of the group is full: " + strings.Join(others, ", ")
}

// ServiceStatus is a Service of type LoadBalancer.
type ServiceStatus struct {
	Cluster   string       `json:"cluster"`
	Service   string       `json:"service"`   // as NAMESPACE/NAME
	Addresses []netip.Addr `json:"addresses"` // at which its ports are open
	Ports     []uint16     `json:"ports"`     // of TCP
	Why       string       `json:"why,omitempty"`
}

func ServiceStatuses(all []ingress.Balancer) (list []ServiceStatus) {
	for _, b := range all {
		if b.Kind != "Service" {
			continue
		}
		list = append(list, ServiceStatus{
			Cluster: b.Cluster, Service: b.Namespace + "/" + b.Name,
			Addresses: b.Recorded, Ports: b.Ports, Why: b.Why,
		})
	}
	return list
}
