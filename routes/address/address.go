// Package address serves addresses that several appliances share. It owns these addresses on lo of
// this machine. It owns the rules that pass packets of another appliance's connections on to that
// appliance, and the kernel's records of closed connections to the addresses. It owns the process
// keepalived, which gives each address to one appliance if no router chooses.
//
// It alone knows how a fresh process recognises each of these: the addresses by the protocol number
// 78, the rules by the name of their table, keepalived's files by their folder. It changes nothing
// else on the machine, except two settings of ARP (see Set).
//
// It decides nothing: which address is served, who is alive and which appliance is fit are
// arguments. It changes only the network namespace of the process.
package address

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// protocol marks our addresses, as it marks the routes of package routes.
	protocol = 78
	// ifaProto is IFA_PROTO of linux/if_addr.h: a number that names the program which
	// added an address. Linux has it since 5.18.
	ifaProto = 11
)

// Set puts the addresses on lo, each as a prefix of one address, and removes from lo
// those of ours that are not wanted. It returns those of the wanted addresses that lo has
// afterwards: only these can be served. An address on lo that has not our mark counts, and
// stays when it is no longer wanted.
//
// The kernel gets an address and its mark in one message, so a process that starts after a
// crash finds all addresses of ours. Set may be called at any time, as often as the
// caller likes.
//
// lo answers for an address on every interface of the machine. By ARP, only the
// appliance that holds an address on an interface may answer for it, and the source of a
// question must be an address of the interface. So with an IPv4 address Set also sees to
// net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2. It leaves these
// settings when the last address goes, since nobody knows what they were.
//
// One address that is impossible or that the kernel refuses costs only itself: it is in
// the error.
func Set(want []netip.Addr) (have []netip.Addr, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("looking for the interface lo: %w", err)
	}
	index := lo.Attrs().Index
	there, err := read(index)
	if err != nil {
		return nil, err
	}
	var errs []error
	changed := false
	for p, ours := range there {
		if ours && (!p.IsSingleIP() || !slices.Contains(want, p.Addr())) {
			errs = append(errs, change(unix.RTM_DELADDR, index, p))
			changed = true
		}
	}
	for _, a := range want {
		p := netip.PrefixFrom(a, a.BitLen())
		if err := possible(a); err != nil {
			errs = append(errs, err)
			continue
		}
		if _, ok := there[p]; !ok {
			errs = append(errs, change(unix.RTM_NEWADDR, index, p))
			changed = true
		}
	}
	if slices.ContainsFunc(want, netip.Addr.Is4) {
		errs = append(errs, atLeast("arp_ignore", 1), atLeast("arp_announce", 2))
	}
	if changed { // what counts is what the kernel has now, and not which messages it accepted
		if there, err = read(index); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	for _, a := range want {
		if _, ok := there[netip.PrefixFrom(a, a.BitLen())]; ok && !slices.Contains(have, a) {
			have = append(have, a)
		}
	}
	return have, errors.Join(errs...)
}

// possible returns why no group of appliances can serve an address.
func possible(a netip.Addr) error {
	if a.IsGlobalUnicast() && !a.Is4In6() && a.Zone() == "" {
		return nil
	}
	return fmt.Errorf("serving the address %s: it must be a unicast address that clients can reach, not a loopback, "+
		"link-local, multicast or IPv4-mapped address", a)
}

// change adds an address to lo, or removes it. If the address is there already, or gone already,
// change succeeds.
func change(message, link int, p netip.Prefix) error {
	flags := unix.NLM_F_ACK
	if message == unix.RTM_NEWADDR {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	req := nl.NewNetlinkRequest(message, flags)
	msg := nl.NewIfAddrmsg(unix.AF_INET)
	msg.Index, msg.Prefixlen = uint32(link), uint8(p.Bits())
	if p.Addr().Is4() {
		// The kernel never chooses an address of scope host as the source of a connection
		// of the machine itself: the answers would go to another appliance.
		msg.Scope = unix.RT_SCOPE_HOST
	} else {
		msg.Family = unix.AF_INET6
		// Otherwise the address is tentative until a worker of the kernel sees that lo needs no
		// detection of duplicates, and a bind in that moment fails.
		msg.Flags = unix.IFA_F_NODAD
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(ifaProto, []byte{protocol}))
	if p.Addr().Is6() {
		// For the same reason the address is deprecated (RFC 6724, rule 3): IPv6 has no
		// scope host. It is valid for ever.
		lifetime := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: 0, Valid: ^uint32(0)}} //nolint:misspell // the field's name
		req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, lifetime.Serialize()))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case err == nil,
		message == unix.RTM_NEWADDR && errors.Is(err, unix.EEXIST),
		message == unix.RTM_DELADDR && errors.Is(err, unix.EADDRNOTAVAIL):
		return nil
	case message == unix.RTM_DELADDR:
		return fmt.Errorf("removing the address %s from lo: %w", p, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("adding the address %s to lo needs the capability CAP_NET_ADMIN: run as root, or give the "+
			"service AmbientCapabilities=CAP_NET_ADMIN: %w", p, err)
	case errors.Is(err, unix.EACCES) && p.Addr().Is6():
		return fmt.Errorf("adding the address %s to lo: IPv6 is off there: set net.ipv6.conf.lo.disable_ipv6=0: %w", p,
			err)
	}
	return fmt.Errorf("adding the address %s to lo: %w", p, err)
}

// read returns the addresses of a link, and which of them are ours.
func read(link int) (map[netip.Prefix]bool, error) {
	var all [][]byte
	var err error
	for range 20 { // a dump that a change interrupted may lack addresses
		req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		if all, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of lo: %w", err)
	}
	there := map[netip.Prefix]bool{}
	for _, m := range all {
		msg := nl.DeserializeIfAddrmsg(m)
		if int(msg.Index) != link {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[msg.Len():])
		if err != nil {
			return nil, fmt.Errorf("reading the addresses of lo: %w", err)
		}
		var local, address netip.Addr
		ours := false
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(a.Value)
			case unix.IFA_ADDRESS:
				address, _ = netip.AddrFromSlice(a.Value)
			case ifaProto:
				ours = len(a.Value) == 1 && a.Value[0] == protocol
			}
		}
		if !local.IsValid() {
			local = address // IPv6 has IFA_LOCAL only on a point-to-point link
		}
		there[netip.PrefixFrom(local, int(msg.Prefixlen))] = ours
	}
	return there, nil
}

// atLeast sees to a setting of ARP. The kernel applies the greater one of "all" and of the
// interface.
func atLeast(name string, least int) error {
	file := "/proc/sys/net/ipv4/conf/all/" + name
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading net.ipv4.conf.all.%s: %w", name, err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && now >= least {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(least)), 0o644); err != nil { //nolint:gosec // a setting of the kernel: its mode stays
		return fmt.Errorf("net.ipv4.conf.all.%s is %s, so that this machine speaks by ARP for addresses that another "+
			"appliance holds: write net.ipv4.conf.all.%s=%d into a file in /etc/sysctl.d: %w",
			name, strings.TrimSpace(string(text)), name, least, err)
	}
	return nil
}
