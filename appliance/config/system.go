package config

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// System is what only a whole machine has. The bootable image makes itself of
// it; the process alone changes none of it.
type System struct {
	// Name of the machine. Default: sallyport.
	Hostname string `json:"hostname"`
	// The network interfaces. Empty: each wired one asks DHCP. An interface that is not in the list stays down.
	Interfaces []Interface `json:"interfaces"`
	// What is taken from DHCP servers and routers.
	DHCP DHCP `json:"dhcp"`
	// Servers for names, beside those that an interface has.
	DNS []netip.Addr `json:"dns"`
	// Servers for the time, by name or address. Empty: those that DHCP tells, else Debian's.
	NTP []string `json:"ntp"`
	// Where the whole log of the machine is sent by UDP (RFC 5424), as address:port. Empty: nowhere.
	Syslog netip.AddrPort `json:"syslog"`
	// Show the status screen on the consoles, VGA and serial.
	Console bool `json:"console" jsonschema:"default=true"`
	// Public SSH keys that root may log in with, as lines of authorized_keys without options. Empty: there is no SSH.
	MaintenanceKey []string `json:"maintenanceKey"`
	// Let the hypervisor run programs and change files as root, by QEMU's guest agent. Otherwise the agent tells addresses, freezes the disk for a backup,
	// and shuts down.
	GuestExec bool `json:"guestExec"`
	// Volumes that may bring this file, beside what the hypervisor gives: any, or boot, which is the partition CONFIG of the disk that the machine was
	// started from, alone. Other volumes count only while that partition has no file.
	Volumes Volumes `json:"volumes" jsonschema:"default=any,enum=any,enum=boot"`
	// Where newer versions are looked for.
	Update Update `json:"update"`
}

// DHCP is what is taken, beside addresses and the way to everywhere else, by the
// interfaces that ask.
type DHCP struct {
	// Take the servers for names. Default: true, unless system.dns or an interface names some.
	UseDNS bool `json:"useDNS"`
	// Take the servers for the time. Default: true, unless system.ntp names some.
	UseNTP bool `json:"useNTP"`
	// Take routes to single networks (DHCP options 33 and 121, RFC 4191).
	UseRoutes bool `json:"useRoutes"`
	// Take IPv6 addresses and the default route from router advertisements, and ask DHCPv6 where they say so.
	UseRA bool `json:"useRA" jsonschema:"default=true"`
}

// Volumes are those that may bring the one file.
type Volumes string

// BootVolume is the one on the disk that the machine was started from.
const BootVolume Volumes = "boot"

// Interface is one network interface, there or to be made.
type Interface struct {
	// Its name, such as eth0, or a pattern such as en*. With mac, vlan or bond: what it is called in this file, or will be.
	Name string `json:"name" jsonschema:"required"`
	// Hardware address that it is found by, instead of the name.
	MAC string `json:"mac"`
	// Ask for addresses, the default route and servers, by DHCP and IPv6 router advertisements; system.dhcp says what is taken. Default: true for one without addresses that is in no bond.
	DHCP bool `json:"dhcp"`
	// Its addresses, each with the length of its network.
	Addresses []Address `json:"addresses"`
	// Router to everywhere else, in one of its networks. A second one, for IPv6, goes into routes.
	Gateway netip.Addr `json:"gateway"`
	// Servers for names that are reached by it.
	DNS []netip.Addr `json:"dns"`
	// More routes by it.
	Routes []Static `json:"routes"`
	// Largest packet, in bytes. Default: what the hardware says.
	MTU uint16 `json:"mtu" jsonschema:"minimum=576,maximum=65535"`
	// Makes it a VLAN on another interface.
	VLAN VLAN `json:"vlan"`
	// Makes it a bond of other interfaces.
	Bond Bond `json:"bond"`
}

// Address is an address of an interface with the length of its network. Unlike a
// network it has bits behind that length.
type Address struct{ netip.Prefix }

// Static is a route that does not change.
type Static struct {
	// The network it leads to; 0.0.0.0/0 and ::/0 are everything.
	To netip.Prefix `json:"to" jsonschema:"required"`
	// The router.
	Via netip.Addr `json:"via" jsonschema:"required"`
	// Preference: the lowest is taken. Default: that of systemd-networkd.
	Metric uint32 `json:"metric" jsonschema:"minimum=1,maximum=4294967295"`
}

// VLAN is the tag of an interface that shares another (IEEE 802.1Q).
type VLAN struct {
	// The tag.
	ID uint16 `json:"id" jsonschema:"minimum=1,maximum=4094"`
	// Name of the interface below.
	Link string `json:"link"`
}

// Bond is interfaces that act as one.
type Bond struct {
	// Names of the interfaces.
	Members []string `json:"members"`
	// How they share the work; 802.3ad needs a switch that does LACP.
	Mode BondMode `json:"mode" jsonschema:"default=active-backup,enum=active-backup,enum=802.3ad,enum=balance-xor,enum=balance-alb"`
}

// BondMode is how the members of a bond share the work.
type BondMode string

// Update is where newer versions of the image are looked for.
type Update struct {
	// A folder served by HTTPS or HTTP, whose file "latest" names the newest image in it. Empty: none is looked for.
	URL string `json:"url"`
	// When: a time of day, or a weekday and a time of day such as "Sun 04:00". By the clock of the machine, which is UTC.
	Schedule string `json:"schedule" jsonschema:"default=04:00"`
	// Let the kernel that runs start a new version (kexec), which saves the minutes that the firmware of a server takes; false is for hardware that
	// does not bear it. With Secure Boot, or little memory, the firmware starts it in any case.
	Kexec bool `json:"kexec" jsonschema:"default=true"`
}

// imageDir is there where the image has made the machine of the file.
const imageDir = "/run/sallyport-image"

func onImage() bool {
	_, err := os.Stat(imageDir)
	return !errors.Is(err, fs.ErrNotExist)
}

// fillSystem sets the defaults of the machine that depend on other keys.
func (c *Config) fillSystem(p *problems) {
	s := &c.System
	for i := range s.Interfaces {
		in := &s.Interfaces[i]
		if !p.given(fmt.Sprintf("system.interfaces[%d].dhcp", i)) {
			in.DHCP = len(in.Addresses) == 0 && s.BondOf(in.Name) == ""
		}
	}
	if !p.given("system.dhcp.useDNS") {
		s.DHCP.UseDNS = len(s.DNS) == 0 && !slices.ContainsFunc(s.Interfaces, func(in Interface) bool { return len(in.DNS) > 0 })
	}
	if !p.given("system.dhcp.useNTP") {
		s.DHCP.UseNTP = len(s.NTP) == 0
	}
}

// BondOf is the bond that the interface of that name is a member of, or nothing.
func (s *System) BondOf(name string) string {
	for _, in := range s.Interfaces {
		if slices.Contains(in.Bond.Members, name) {
			return in.Name
		}
	}
	return ""
}

var (
	// hostname is a host name in one or more labels (RFC 1123 section 2.1); Linux takes 64 bytes.
	hostname = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`)
	// link is the name of an interface: 15 bytes (IFNAMSIZ), and none that systemd or sysctl would read as something else.
	link        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)
	linkPattern = regexp.MustCompile(`^[A-Za-z0-9_*?][A-Za-z0-9_.*?-]{0,14}$`)
	mac         = regexp.MustCompile(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)
	schedule    = regexp.MustCompile(`^((Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([01][0-9]|2[0-3]):[0-5][0-9]$`)
)

func (c *Config) checkSystem(p *problems) {
	s := &c.System
	if s.Hostname != "" && (len(s.Hostname) > 64 || !hostname.MatchString(s.Hostname)) {
		p.add("system.hostname", "%q is not allowed; allowed: letters, digits and dashes, in labels joined by dots, 64 bytes in all", s.Hostname)
	}
	for i, addr := range s.DNS {
		checkUnicast(p, fmt.Sprintf("system.dns[%d]", i), addr)
	}
	for i, server := range s.NTP {
		if _, err := netip.ParseAddr(server); err != nil && (len(server) > 253 || !hostname.MatchString(server)) {
			p.add(fmt.Sprintf("system.ntp[%d]", i), "%q is not the name or address of a machine", server)
		}
	}
	if s.Syslog.IsValid() {
		checkUnicast(p, "system.syslog", s.Syslog.Addr())
	}
	for i, key := range s.MaintenanceKey {
		if err := checkPublicKey(key); err != nil {
			p.add(fmt.Sprintf("system.maintenanceKey[%d]", i), "%v", err)
		}
	}
	if s.Update.URL != "" {
		u, err := url.Parse(s.Update.URL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			p.add("system.update.url", "is not allowed; allowed: https://HOST/FOLDER or http://HOST/FOLDER, without a password")
		}
	}
	if !schedule.MatchString(s.Update.Schedule) {
		p.add("system.update.schedule", "%q is not allowed; allowed: a time of day, or a weekday and a time of day, such as 04:00 or Sun 04:00", s.Update.Schedule)
	}
	c.checkInterfaces(p)
}

func (c *Config) checkInterfaces(p *problems) {
	all := c.System.Interfaces
	var names []string
	for i := range all {
		in, at := &all[i], fmt.Sprintf("system.interfaces[%d]", i)
		isVLAN, isBond := in.VLAN != VLAN{}, p.given(at+".bond")
		made := isVLAN || isBond
		switch {
		case in.Name == "":
			p.add(at, "name is missing")
		case (made || in.MAC != "") && !link.MatchString(in.Name), !linkPattern.MatchString(in.Name), in.Name == "lo":
			p.add(at+".name", "%q is not allowed; allowed: up to 15 letters, digits and _ . -, and * or ? in the name of one that is there", in.Name)
		case slices.Contains(names, in.Name):
			p.add(at+".name", "%q is listed twice", in.Name)
		}
		names = append(names, in.Name)
		if in.MAC != "" && !mac.MatchString(in.MAC) {
			p.add(at+".mac", "%q is not a hardware address, such as 52:54:00:12:34:56", in.MAC)
		}
		switch {
		case isVLAN && isBond:
			p.add(at, "is a VLAN and a bond; give each a name of its own")
		case made && in.MAC != "":
			p.add(at+".mac", "is for an interface that is there, not for a VLAN or a bond")
		case isVLAN && (in.VLAN.ID == 0 || !link.MatchString(in.VLAN.Link)):
			p.add(at+".vlan", "needs id, a number from 1 to 4094, and link, the name of the interface below")
		case isVLAN && in.VLAN.Link == in.Name:
			p.add(at+".vlan.link", "is the VLAN itself")
		case isBond && len(in.Bond.Members) == 0:
			p.add(at+".bond", "members is missing")
		}
		c.checkMembers(p, at, in)
		c.checkAddresses(p, at, in)
	}
}

func (c *Config) checkMembers(p *problems, at string, bond *Interface) {
	for j, member := range bond.Bond.Members {
		key := fmt.Sprintf("%s.bond.members[%d]", at, j)
		if !link.MatchString(member) || member == bond.Name {
			p.add(key, "%q is not the name of another interface", member)
		}
		if owner := c.System.BondOf(member); owner != bond.Name {
			p.add(key, "%q is in the bond %q already", member, owner)
		}
		for k := range c.System.Interfaces {
			in := &c.System.Interfaces[k]
			if in.Name == member && (in.DHCP || len(in.Addresses) > 0 || in.Gateway.IsValid() || len(in.Routes) > 0 || in.VLAN != VLAN{}) {
				p.add(fmt.Sprintf("system.interfaces[%d]", k), "%q is in the bond %q, which has the addresses, routes and VLANs", member, bond.Name)
			}
		}
	}
}

func (c *Config) checkAddresses(p *problems, at string, in *Interface) {
	reached := func(addr netip.Addr) bool {
		return in.DHCP || addr.IsLinkLocalUnicast() ||
			slices.ContainsFunc(in.Addresses, func(a Address) bool { return a.Contains(addr) && a.Addr() != addr })
	}
	for j, a := range in.Addresses {
		if !a.Addr().IsGlobalUnicast() || a.Bits() == 0 {
			p.add(fmt.Sprintf("%s.addresses[%d]", at, j), "%s is not the address of a machine in a network", a)
		}
	}
	if in.Gateway.IsValid() && !reached(in.Gateway) {
		p.add(at+".gateway", "%s is in no network of the interface", in.Gateway)
	}
	for j, addr := range in.DNS {
		checkUnicast(p, fmt.Sprintf("%s.dns[%d]", at, j), addr)
	}
	for j, r := range in.Routes {
		key := fmt.Sprintf("%s.routes[%d]", at, j)
		switch {
		case !r.To.IsValid() || !r.Via.IsValid():
			p.add(key, "needs to, a network, and via, the address of a router")
		case r.To.Addr().Is4() != r.Via.Is4():
			p.add(key, "%s and %s are not of one family", r.To, r.Via)
		case !reached(r.Via):
			p.add(key+".via", "%s is in no network of the interface", r.Via)
		}
	}
}

// publicKeys are the types of keys that OpenSSH 10 lets log in.
var publicKeys = []string{
	"ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
	"sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
}

// checkPublicKey refuses what is not a line "TYPE BASE64 [COMMENT]" whose blob
// begins with its type (RFC 4253 section 6.6). Options before it could run
// programs.
func checkPublicKey(line string) error {
	words := strings.Fields(line)
	if len(words) < 2 || !slices.Contains(publicKeys, words[0]) {
		return fmt.Errorf("is not a public SSH key; allowed: a line such as ssh-ed25519 AAAA... name, of type %s", strings.Join(publicKeys, ", "))
	}
	blob, err := base64.StdEncoding.DecodeString(words[1])
	if err != nil || len(blob) < 4+len(words[0]) || int(binary.BigEndian.Uint32(blob)) != len(words[0]) || string(blob[4:4+len(words[0])]) != words[0] {
		return fmt.Errorf("is not a whole public SSH key of type %s", words[0])
	}
	return nil
}
