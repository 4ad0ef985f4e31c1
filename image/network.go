package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/appliance/config"
)

const networkDir = "/run/systemd/network/"

// ours begins the names of our files in systemd's folders. systemd reads files in the
// order of their names, and uses the first that matches.
const ours = "50-sallyport-"

// A unit is a configuration file of systemd: sections of lines.
type unit struct{ text strings.Builder }

func (u *unit) section(name string) {
	if u.text.Len() > 0 {
		u.text.WriteByte('\n')
	}
	fmt.Fprintf(&u.text, "[%s]\n", name)
}

func (u *unit) set(key string, value any) { fmt.Fprintf(&u.text, "%s=%v\n", key, value) }

// networkFiles returns the files of systemd-networkd (systemd.network(5),
// systemd.netdev(5)) that configure the interfaces.
func networkFiles(s config.System) map[string]file {
	files := map[string]file{}
	add := func(name string, u *unit) { files[networkDir+ours+name] = file{0o644, u.text.String()} }
	if len(s.Interfaces) == 0 {
		u := new(unit)
		u.section("Match")
		u.set("Type", "ether")
		u.set("Kind", "!*") // no virtual interface, such as a bridge
		networkOf(u, config.Interface{DHCP: true}, nil, s)
		add("any.network", u)
		return files
	}
	// By interface: the VLANs on it, or the bond that it belongs to.
	carries := map[string][]string{}
	for _, in := range s.Interfaces {
		if in.VLAN.Link != "" {
			carries[in.VLAN.Link] = append(carries[in.VLAN.Link], "VLAN="+in.Name)
		}
		for _, member := range in.Bond.Members {
			carries[member] = append(carries[member], "Bond="+in.Name)
		}
	}
	listed := map[string]bool{}
	for i, in := range s.Interfaces {
		listed[in.Name] = true
		name := fmt.Sprintf("%02d", i)
		if dev := netdev(in); dev != nil {
			add(name+".netdev", dev)
		}
		u := new(unit)
		u.section("Match")
		if in.MAC != "" {
			u.set("PermanentMACAddress", strings.ToLower(in.MAC))
			u.set("Kind", "!*") // a VLAN has the MAC address of its parent
		} else {
			u.set("Name", in.Name)
		}
		networkOf(u, in, carries[in.Name], s)
		add(name+".network", u)
	}
	for i, name := range slices.Sorted(maps.Keys(carries)) {
		if listed[name] {
			continue
		}
		u := new(unit)
		u.section("Match")
		u.set("Name", name)
		networkOf(u, config.Interface{}, carries[name], s)
		// 40 comes before 50: an exact name overrides a pattern.
		files[fmt.Sprintf("%s40-sallyport-%02d.network", networkDir, i)] = file{0o644, u.text.String()}
	}
	return files
}

// netdev returns the file that creates a virtual interface; nil for a physical one.
func netdev(in config.Interface) *unit {
	u := new(unit)
	switch {
	case in.VLAN.Link != "":
		u.section("NetDev")
		u.set("Name", in.Name)
		u.set("Kind", "vlan")
		u.section("VLAN")
		u.set("Id", in.VLAN.ID)
	case len(in.Bond.Members) > 0:
		u.section("NetDev")
		u.set("Name", in.Name)
		u.set("Kind", "bond")
		u.section("Bond")
		u.set("Mode", in.Bond.Mode)
		u.set("MIIMonitorSec", "100ms") // without it, a bond does not notice a lost link
		if in.Bond.Mode == "802.3ad" {
			u.set("LACPTransmitRate", "fast")
			u.set("TransmitHashPolicy", "layer3+4")
		}
	default:
		return nil
	}
	return u
}

// networkOf writes a .network file after its section [Match].
func networkOf(u *unit, in config.Interface, carries []string, s config.System) {
	u.section("Link")
	if in.MTU != 0 {
		u.set("MTUBytes", in.MTU)
	}
	// systemd-networkd-wait-online is off; this keeps the state from "degraded".
	u.set("RequiredForOnline", "no")
	u.section("Network")
	for _, line := range carries {
		u.text.WriteString(line + "\n")
	}
	switch {
	case in.DHCP && s.DHCP.UseRA:
		u.set("DHCP", "yes")
	case in.DHCP:
		u.set("DHCP", "ipv4") // without router advertisements nothing announces a DHCPv6 server
	default:
		u.set("DHCP", "no")
	}
	u.set("IPv6AcceptRA", yesNo(in.DHCP && s.DHCP.UseRA))
	if slices.ContainsFunc(carries, func(s string) bool { return strings.HasPrefix(s, "Bond=") }) {
		u.set("LinkLocalAddressing", "no")
	}
	for _, a := range in.Addresses {
		u.set("Address", a)
	}
	if in.Gateway.IsValid() {
		u.set("Gateway", in.Gateway)
	}
	for _, a := range in.DNS {
		u.set("DNS", a)
	}
	if in.VLAN.Link != "" || len(in.Bond.Members) > 0 || len(in.Addresses) > 0 {
		// HAProxy and BGP can listen on the addresses before the link is up.
		u.set("ConfigureWithoutCarrier", "yes")
	}
	for _, r := range in.Routes {
		u.section("Route")
		u.set("Destination", r.To)
		u.set("Gateway", r.Via)
		if r.Metric != 0 {
			u.set("Metric", r.Metric)
		}
	}
	if in.DHCP {
		learn(u, s)
	}
}

// learn writes what the machine accepts from DHCP servers and routers. Anybody on the
// link may answer as one, and must not divert traffic from the pods.
func learn(u *unit, s config.System) {
	u.section("DHCPv4")
	u.set("UseHostname", "no")
	u.set("ClientIdentifier", "mac") // reservations name what the operator reads on the machine
	u.set("UseGateway", "yes")
	u.set("UseRoutes", yesNo(s.DHCP.UseRoutes))
	u.set("UseDNS", yesNo(s.DHCP.UseDNS))
	u.set("UseNTP", yesNo(s.DHCP.UseNTP))
	// Otherwise an answer that names a pod as its DNS server adds a route to that pod.
	u.set("RoutesToDNS", "no")
	u.set("RoutesToNTP", "no")
	if !slices.ContainsFunc(s.Interfaces, func(in config.Interface) bool { return in.Gateway.IsValid() || len(in.Routes) > 0 }) {
		// The kernel reads this table after main, where the routes to pods are: a network
		// that the server invents never overrides them. With routes of the file, main has
		// an answer for every address, and would hide this table.
		u.set("RouteTable", "default")
	}
	if !s.DHCP.UseRA {
		return
	}
	u.section("DHCPv6")
	u.set("UseHostname", "no")
	u.set("UseDNS", yesNo(s.DHCP.UseDNS))
	u.set("UseNTP", yesNo(s.DHCP.UseNTP))
	u.section("IPv6AcceptRA")
	u.set("UseDNS", yesNo(s.DHCP.UseDNS))
	u.set("UseRoutePrefix", yesNo(s.DHCP.UseRoutes))
	// A router may advertise a single pod's address as on-link. The kernel has a rule for
	// this table in IPv4 only.
	u.set("RouteTable", "default")
	u.section("RoutingPolicyRule")
	u.set("Family", "ipv6")
	u.set("Table", "default")
	u.set("Priority", 32767)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
