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
	"time"
)

// System configures a whole machine. The bootable image applies it; elsewhere it has no
// effect.
type System struct {
	// Name of the machine. Default: sallyport.
	Hostname string `json:"hostname"`
	// The network interfaces. Empty: each wired one uses DHCP. Otherwise an interface that is not
	// in the list stays down.
	Interfaces []Interface `json:"interfaces"`
	// Which settings are taken from DHCP servers and routers.
	DHCP DHCP `json:"dhcp"`
	// DNS servers, in addition to those of the interfaces.
	DNS []netip.Addr `json:"dns"`
	// NTP servers, by name or address. Empty: those from DHCP, else Debian's.
	NTP []string `json:"ntp"`
	// Syslog server that gets the whole log of the machine by UDP (RFC 5424), as address:port. Empty: none.
	Syslog netip.AddrPort `json:"syslog"`
	// Show the status screen on the consoles, VGA and serial.
	Console bool `json:"console" jsonschema:"default=true"`
	// Public SSH keys that root may log in with, as lines of authorized_keys without options. Empty: SSH is off.
	MaintenanceKey []string `json:"maintenanceKey"`
	// Let the hypervisor run programs and change files as root, through QEMU's guest agent.
	// Otherwise the agent only reports addresses, freezes the disk for a backup, and shuts the
	// machine down.
	GuestExec bool `json:"guestExec"`
	// Volumes that this file may be read from, in addition to what the hypervisor gives. boot: only
	// the partition CONFIG of the disk that started the machine. any: other volumes too, while that
	// partition has no file.
	Volumes Volumes `json:"volumes" jsonschema:"default=any,enum=any,enum=boot"`
	// Where newer versions are looked for.
	Update Update `json:"update"`
}

// DHCP says which settings an interface takes from DHCP servers and routers, besides
// addresses and the default route.
type DHCP struct {
	// Take the DNS servers. Default: true, unless system.dns or an interface names some.
	UseDNS bool `json:"useDNS"`
	// Take the NTP servers. Default: true, unless system.ntp names some.
	UseNTP bool `json:"useNTP"`
	// Take routes to single networks (DHCP options 33 and 121, RFC 4191).
	UseRoutes bool `json:"useRoutes"`
	// Take IPv6 addresses and the default route from router advertisements, and ask DHCPv6 if an advertisement says so.
	UseRA bool `json:"useRA" jsonschema:"default=true"`
}

// Volumes says which volumes the one file may be read from.
type Volumes string

// BootVolume allows only the volume on the disk that started the machine.
const BootVolume Volumes = "boot"

// Interface is one network interface that exists, or a VLAN or bond to make.
type Interface struct {
	// Name, such as eth0, or a pattern such as en*. With mac: its name in this file. With vlan or
	// bond: the name that it gets.
	Name string `json:"name" jsonschema:"required"`
	// Hardware address that identifies the interface, instead of its name.
	MAC string `json:"mac"`
	// Get addresses, the default route and servers by DHCP and IPv6 router advertisements;
	// system.dhcp says which of them are taken. Default: true for an interface without addresses
	// that is in no bond.
	DHCP bool `json:"dhcp"`
	// Addresses, each with its prefix length.
	Addresses []Address `json:"addresses"`
	// Default gateway, in one of the networks of the interface. A second gateway, for IPv6, goes into routes.
	Gateway netip.Addr `json:"gateway"`
	// DNS servers that are reached through this interface.
	DNS []netip.Addr `json:"dns"`
	// More routes through this interface.
	Routes []Static `json:"routes"`
	// Largest packet (MTU), in bytes. Default: that of the hardware.
	MTU uint16 `json:"mtu" jsonschema:"minimum=576,maximum=65535"`
	// Makes this interface a VLAN on another one.
	VLAN VLAN `json:"vlan"`
	// Makes this interface a bond of others.
	Bond Bond `json:"bond"`
}

// Address is an address of an interface with its prefix length. Unlike a network it may
// have bits set after the prefix.
type Address struct{ netip.Prefix }

// Static is a static route.
type Static struct {
	// Destination network; 0.0.0.0/0 and ::/0 are everything.
	To netip.Prefix `json:"to" jsonschema:"required"`
	// Router that takes the packets.
	Via netip.Addr `json:"via" jsonschema:"required"`
	// Metric: of several routes to one network, the one with the lowest metric is used. Default:
	// that of systemd-networkd.
	Metric uint32 `json:"metric" jsonschema:"minimum=1,maximum=4294967295"`
}

// VLAN is the tag of an interface that shares another one (IEEE 802.1Q).
type VLAN struct {
	// VLAN ID.
	ID uint16 `json:"id" jsonschema:"minimum=1,maximum=4094"`
	// Name of the interface that carries the VLAN.
	Link string `json:"link"`
}

// Bond makes several interfaces act as one.
type Bond struct {
	// Names of the interfaces.
	Members []string `json:"members"`
	// How the members share the traffic; 802.3ad needs a switch with LACP.
	Mode string `json:"mode" jsonschema:"default=active-backup,enum=active-backup,enum=802.3ad,enum=balance-xor,enum=balance-alb"`
}

// Update says where and when newer versions of the image are looked for.
type Update struct {
	// URL of a folder, by HTTPS or HTTP, whose file "latest" names the newest image in the folder.
	// Empty: no newer version is looked for.
	URL string `json:"url"`
	// When newer versions are looked for: a time of day, or a weekday and a time of day such as
	// "Sun 04:00". The clock of the machine is in UTC.
	Schedule string `json:"schedule" jsonschema:"default=04:00"`
	// In a group the members are updated one by one, the one with the lowest name first. This is
	// how long those before have to have served with the new version until the next one follows,
	// from 10m to 720h. Each looks at the time of schedule only: with the default one member is
	// updated a day.
	Stagger time.Duration `json:"stagger" jsonschema:"default=12h"`
	// Start a new version from the running kernel (kexec), which saves the minutes that the
	// firmware of a server takes. Set it to false on hardware that cannot do that. With Secure Boot
	// or little memory the firmware starts the new version in any case.
	Kexec bool `json:"kexec" jsonschema:"default=true"`
}

// imageDir exists only on a machine that the bootable image has configured.
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
		s.DHCP.UseDNS = len(s.DNS) == 0 && !slices.ContainsFunc(s.Interfaces, func(in Interface) bool {
			return len(in.DNS) > 0
		})
	}
	if !p.given("system.dhcp.useNTP") {
		s.DHCP.UseNTP = len(s.NTP) == 0
	}
}

// BondOf returns the name of the bond that the interface is a member of, or nothing.
func (s *System) BondOf(name string) string {
	for _, in := range s.Interfaces {
		if slices.Contains(in.Bond.Members, name) {
			return in.Name
		}
	}
	return ""
}

var (
	// hostname matches a host name in one or more labels (RFC 1123 section 2.1). Linux takes at most 64 bytes.
	hostname = regexp.MustCompile(
		`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$`)
	// link matches the name of an interface: at most 15 bytes (IFNAMSIZ), none of which systemd or
	// sysctl would read as something else.
	link        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)
	linkPattern = regexp.MustCompile(`^[A-Za-z0-9_*?][A-Za-z0-9_.*?-]{0,14}$`)
	mac         = regexp.MustCompile(`^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$`)
	schedule    = regexp.MustCompile(`^((Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?([01][0-9]|2[0-3]):[0-5][0-9]$`)
)

func (c *Config) checkSystem(p *problems) {
	s := &c.System
	if s.Hostname != "" && (len(s.Hostname) > 64 || !hostname.MatchString(s.Hostname)) {
		p.add("system.hostname",
			"%q is not allowed; allowed: letters, digits and dashes, in labels joined by dots, 64 bytes in all",
			s.Hostname)
	}
	each(p, "system.dns", s.DNS, netip.Addr.IsGlobalUnicast, notAMachine)
	each(p, "system.ntp", s.NTP, func(server string) bool {
		_, err := netip.ParseAddr(server)
		return err == nil || len(server) <= 253 && hostname.MatchString(server)
	}, "%q is not the name or address of a machine")
	if a := s.Syslog.Addr(); s.Syslog.IsValid() && !a.IsGlobalUnicast() {
		p.add("system.syslog", notAMachine, a)
	}
	for i, key := range s.MaintenanceKey {
		if err := checkPublicKey(key); err != nil {
			p.add(fmt.Sprintf("system.maintenanceKey[%d]", i), "%v", err)
		}
	}
	if s.Update.URL != "" {
		u, err := url.Parse(s.Update.URL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil ||
			u.RawQuery != "" || u.Fragment != "" {
			p.add("system.update.url",
				"is not allowed; allowed: https://HOST/FOLDER or http://HOST/FOLDER, without a password")
		}
	}
	if !schedule.MatchString(s.Update.Schedule) {
		p.add("system.update.schedule",
			"%q is not allowed; allowed: a time of day, or a weekday and a time of day, such as 04:00 or Sun 04:00",
			s.Update.Schedule)
	}
	if s.Update.Stagger < 10*time.Minute || s.Update.Stagger > 720*time.Hour {
		p.add("system.update.stagger", "%s is not allowed; allowed: 10m to 720h", s.Update.Stagger)
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
			p.add(at+".name", "%q is not allowed; allowed: up to 15 letters, digits and _ . -, and * or ? in the "+
				"name of an existing interface", in.Name)
		case slices.Contains(names, in.Name):
			p.add(at+".name", "%q is listed twice", in.Name)
		}
		names = append(names, in.Name)
		if in.MAC != "" && !mac.MatchString(in.MAC) {
			p.add(at+".mac", "%q is not a hardware address, such as 52:54:00:12:34:56", in.MAC)
		}
		switch {
		case isVLAN && isBond:
			p.add(at, "is a VLAN and a bond; make each an interface of its own")
		case made && in.MAC != "":
			p.add(at+".mac", "identifies an existing interface, and not a VLAN or a bond")
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
			p.add(key, "%q is already in the bond %q", member, owner)
		}
		for k := range c.System.Interfaces {
			in := &c.System.Interfaces[k]
			if in.Name == member && (in.DHCP || len(in.Addresses) > 0 || in.Gateway.IsValid() || len(in.Routes) > 0 ||
				in.VLAN != VLAN{}) {
				p.add(fmt.Sprintf("system.interfaces[%d]", k),
					"%q is in the bond %q, which has the addresses, routes and VLANs", member, bond.Name)
			}
		}
	}
}

func (c *Config) checkAddresses(p *problems, at string, in *Interface) {
	reached := func(addr netip.Addr) bool {
		return in.DHCP || addr.IsLinkLocalUnicast() ||
			slices.ContainsFunc(in.Addresses, func(a Address) bool { return a.Contains(addr) && a.Addr() != addr })
	}
	each(p, at+".addresses", in.Addresses, func(a Address) bool {
		return a.Addr().IsGlobalUnicast() && a.Bits() > 0
	}, notAMachine+" in a network")
	if in.Gateway.IsValid() && !reached(in.Gateway) {
		p.add(at+".gateway", "%s is in no network of the interface", in.Gateway)
	}
	each(p, at+".dns", in.DNS, netip.Addr.IsGlobalUnicast, notAMachine)
	for j, r := range in.Routes {
		key := fmt.Sprintf("%s.routes[%d]", at, j)
		switch {
		case !r.To.IsValid() || !r.Via.IsValid():
			p.add(key, "needs to, a network, and via, the address of a router")
		case r.To.Addr().Is4() != r.Via.Is4():
			p.add(key, "%s and %s are of different families (IPv4 and IPv6)", r.To, r.Via)
		case !reached(r.Via):
			p.add(key+".via", "%s is in no network of the interface", r.Via)
		}
	}
}

// publicKeys lists the types of keys that OpenSSH 10 accepts for a login.
var publicKeys = []string{
	"ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
	"sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
}

// checkPublicKey rejects a line that is not "TYPE BASE64 [COMMENT]" with a blob that
// begins with its type (RFC 4253 section 6.6). Options before the type could run
// programs.
func checkPublicKey(line string) error {
	words := strings.Fields(line)
	if len(words) < 2 || !slices.Contains(publicKeys, words[0]) {
		return fmt.Errorf("is not a public SSH key; allowed: a line such as ssh-ed25519 AAAA... name, of type %s",
			strings.Join(publicKeys, ", "))
	}
	blob, err := base64.StdEncoding.DecodeString(words[1])
	if err != nil || len(blob) < 4+len(words[0]) || int(binary.BigEndian.Uint32(blob)) != len(words[0]) ||
		string(blob[4:4+len(words[0])]) != words[0] {
		return fmt.Errorf("is not a complete public SSH key of type %s", words[0])
	}
	return nil
}
