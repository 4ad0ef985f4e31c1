package image

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/appliance/config"
)

const networkDir = "/run/systemd/network/"

// ours is what the names of our files in folders of systemd begin with; systemd
// reads them in the order of their names, and takes the first that matches.
const ours = "50-sallyport-"

// unit is a file of systemd's: sections of lines.
type unit struct{ text strings.Builder }

func (u *unit) section(name string) {
	if u.text.Len() > 0 {
		u.text.WriteByte('\n')
	}
	fmt.Fprintf(&u.text, "[%s]\n", name)
}

func (u *unit) set(key string, value any) { fmt.Fprintf(&u.text, "%s=%v\n", key, value) }

// networkFiles returns the files of systemd-networkd (systemd.network(5),
// systemd.netdev(5)) that make the interfaces.
func networkFiles(s config.System) map[string]file {
	files := map[string]file{}
	add := func(name string, u *unit) { files[networkDir+ours+name] = file{0o644, u.text.String()} }
	if len(s.Interfaces) == 0 {
		u := new(unit)
		u.section("Match")
		u.set("Type", "ether")
		u.set("Kind", "!*") // none that is made, such as a bridge
		networkOf(u, config.Interface{DHCP: true}, nil, s)
		add("any.network", u)
		return files
	}
	// What an interface carries: VLANs on it, or the bond it is in.
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
			u.set("Kind", "!*") // a VLAN has the address of what is below it
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
		// Before the others: a name is more than a pattern.
		files[fmt.Sprintf("%s40-sallyport-%02d.network", networkDir, i)] = file{0o644, u.text.String()}
	}
	return files
}

// netdev is the file that makes an interface, or nil for one that is there.
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
		u.set("MIIMonitorSec", "100ms") // without it a bond does not notice a lost link
		if in.Bond.Mode == "802.3ad" {
			u.set("LACPTransmitRate", "fast")
			u.set("TransmitHashPolicy", "layer3+4")
		}
	default:
		return nil
	}
	return u
}

// networkOf writes all of a .network file but its [Match].
func networkOf(u *unit, in config.Interface, carries []string, s config.System) {
	u.section("Link")
	if in.MTU != 0 {
		u.set("MTUBytes", in.MTU)
	}
	// systemd-networkd-wait-online is off, but a state of "degraded" is not for this.
	u.set("RequiredForOnline", "no")
	u.section("Network")
	for _, line := range carries {
		u.text.WriteString(line + "\n")
	}
	switch {
	case in.DHCP && s.DHCP.UseRA:
		u.set("DHCP", "yes")
	case in.DHCP:
		u.set("DHCP", "ipv4") // routers say whether there is a DHCPv6 server to ask
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
		// Addresses are there before the link is: HAProxy and BGP can listen on them.
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

// learn writes what is taken from a DHCP server and from routers. Whoever answers
// first is one of them, and is not to lead traffic away from the pods.
func learn(u *unit, s config.System) {
	u.section("DHCPv4")
	u.set("UseHostname", "no")
	u.set("ClientIdentifier", "mac") // what the operator sees on the machine is what a reservation names
	u.set("UseGateway", "yes")
	u.set("UseRoutes", yesNo(s.DHCP.UseRoutes))
	u.set("UseDNS", yesNo(s.DHCP.UseDNS))
	u.set("UseNTP", yesNo(s.DHCP.UseNTP))
	// Otherwise a pod that is called a server for names gets a route of its own.
	u.set("RoutesToDNS", "no")
	u.set("RoutesToNTP", "no")
	if !slices.ContainsFunc(s.Interfaces, func(in config.Interface) bool { return in.Gateway.IsValid() || len(in.Routes) > 0 }) {
		// The kernel looks there after the table main has nothing: no network that the
		// server invents is more specific than the routes to pods. Routes of the file,
		// which are in main, would hide it.
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
	// Any router may call a single pod on-link. IPv4 alone has the rule for this table
	// from the kernel.
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
