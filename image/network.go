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

// A unit is a configuration file of systemd: lines in sections.
type unit []string

func (u *unit) section(name string, lines ...string) {
	if len(*u) > 0 {
		u.add("")
	}
	u.add("[" + name + "]")
	u.add(lines...)
}

func (u *unit) add(lines ...string) { *u = append(*u, lines...) }

func (u *unit) file() file { return file{0o644, strings.Join(*u, "\n") + "\n"} }

// networkFiles returns the files of systemd-networkd (systemd.network(5),
// systemd.netdev(5)) that configure the interfaces.
func networkFiles(s config.System) map[string]file {
	files := map[string]file{}
	add := func(name string, u *unit) { files[networkDir+name] = u.file() }
	if len(s.Interfaces) == 0 {
		u := new(unit)
		u.section("Match", "Type=ether", "Kind=!*") // no virtual interface, such as a bridge
		networkOf(u, config.Interface{DHCP: true}, nil, s)
		add(ours+"any.network", u)
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
		name := fmt.Sprintf("%s%02d", ours, i)
		if dev := netdev(in); dev != nil {
			add(name+".netdev", dev)
		}
		u := new(unit)
		if in.MAC != "" {
			// a VLAN has the MAC address of its parent
			u.section("Match", "PermanentMACAddress="+strings.ToLower(in.MAC), "Kind=!*")
		} else {
			u.section("Match", "Name="+in.Name)
		}
		networkOf(u, in, carries[in.Name], s)
		add(name+".network", u)
	}
	for i, name := range slices.Sorted(maps.Keys(carries)) {
		if listed[name] {
			continue
		}
		u := new(unit)
		u.section("Match", "Name="+name)
		networkOf(u, config.Interface{}, carries[name], s)
		// 40 comes before 50: an exact name overrides a pattern.
		add(fmt.Sprintf("40-sallyport-%02d.network", i), u)
	}
	return files
}

// netdev returns the file that creates a virtual interface. It returns nil for a physical
// interface.
func netdev(in config.Interface) *unit {
	u := new(unit)
	switch {
	case in.VLAN.Link != "":
		u.section("NetDev", "Name="+in.Name, "Kind=vlan")
		u.section("VLAN", fmt.Sprintf("Id=%d", in.VLAN.ID))
	case len(in.Bond.Members) > 0:
		u.section("NetDev", "Name="+in.Name, "Kind=bond")
		u.section("Bond", "Mode="+in.Bond.Mode, "MIIMonitorSec=100ms") // without it, a bond does not notice a lost link
		if in.Bond.Mode == "802.3ad" {
			u.add("LACPTransmitRate=fast", "TransmitHashPolicy=layer3+4")
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
		u.add(fmt.Sprintf("MTUBytes=%d", in.MTU))
	}
	// systemd-networkd-wait-online is off; this keeps the state from "degraded".
	u.add("RequiredForOnline=no")
	u.section("Network", carries...)
	switch {
	case in.DHCP && s.DHCP.UseRA:
		u.add("DHCP=yes")
	case in.DHCP:
		u.add("DHCP=ipv4") // without router advertisements nothing announces a DHCPv6 server
	default:
		u.add("DHCP=no")
	}
	u.add("IPv6AcceptRA=" + yesNo(in.DHCP && s.DHCP.UseRA))
	if slices.ContainsFunc(carries, func(s string) bool { return strings.HasPrefix(s, "Bond=") }) {
		u.add("LinkLocalAddressing=no")
	}
	for _, a := range in.Addresses {
		u.add("Address=" + a.String())
	}
	if in.Gateway.IsValid() {
		u.add("Gateway=" + in.Gateway.String())
	}
	for _, a := range in.DNS {
		u.add("DNS=" + a.String())
	}
	if in.VLAN.Link != "" || len(in.Bond.Members) > 0 || len(in.Addresses) > 0 {
		// HAProxy and BGP can listen on the addresses before the link is up.
		u.add("ConfigureWithoutCarrier=yes")
	}
	for _, r := range in.Routes {
		u.section("Route", "Destination="+r.To.String(), "Gateway="+r.Via.String())
		if r.Metric != 0 {
			u.add(fmt.Sprintf("Metric=%d", r.Metric))
		}
	}
	if in.DHCP {
		learn(u, s)
	}
}

// learn writes the settings that the machine accepts from DHCP servers and routers. Anybody on the
// link may answer as a DHCP server or router, and must not divert traffic from the pods.
func learn(u *unit, s config.System) {
	dns, ntp, routes := "UseDNS="+yesNo(s.DHCP.UseDNS), "UseNTP="+yesNo(s.DHCP.UseNTP), yesNo(s.DHCP.UseRoutes)
	// Reservations name the MAC address, which the operator reads on the machine. With
	// RoutesToDNS, an answer that names a pod as its DNS server adds a route to that pod.
	u.section("DHCPv4", "UseHostname=no", "ClientIdentifier=mac", "UseGateway=yes", "UseRoutes="+routes, dns, ntp,
		"RoutesToDNS=no", "RoutesToNTP=no")
	if !slices.ContainsFunc(s.Interfaces, func(in config.Interface) bool {
		return in.Gateway.IsValid() || len(in.Routes) > 0
	}) {
		// The kernel reads this table after main, where the routes to pods are: a network
		// that the server invents never overrides them. With routes of the file, main has
		// an answer for every address, and would hide this table.
		u.add("RouteTable=default")
	}
	if !s.DHCP.UseRA {
		return
	}
	u.section("DHCPv6", "UseHostname=no", dns, ntp)
	// A router may advertise a single pod's address as on-link. The kernel has a rule for
	// this table in IPv4 only.
	u.section("IPv6AcceptRA", dns, "UseRoutePrefix="+routes, "RouteTable=default")
	u.section("RoutingPolicyRule", "Family=ipv6", "Table=default", "Priority=32767")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
