package address

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Owner is another machine that answers for an address.
type Owner struct {
	Link string // of this machine, on which the answer came
	MAC  net.HardwareAddr
}

const (
	// asking bounds how long one question lasts. The kernel asks three times, a second apart
	// (neigh/default/mcast_solicit and retrans_time_ms).
	asking = 5 * time.Second
	// atOnce is how many addresses Probe asks for at once. Each takes an entry of the kernel's
	// table of neighbours, which has 1,024 (neigh/default/gc_thresh3).
	atOnce = 128
)

// Probe asks the networks that this machine is connected to for each address, by ARP or by
// neighbour solicitation, as a machine does before it uses an address (RFC 5227, RFC 4862). It
// returns the owners that answer. The answer of another member does not count: by VRRP a member may
// have the address. An address that is in no such network, as usual with BGP, is not asked for.
//
// The kernel asks, by an entry of its table of neighbours. So Probe needs no raw socket, and takes
// no address. It takes three seconds for each 128 addresses if nobody answers. While this machine
// has an IPv6 address on the interface itself, by VRRP, the kernel heeds nobody else's answer.
func Probe(ctx context.Context, addresses, members []netip.Addr) (map[netip.Addr]Owner, error) {
	owners := map[netip.Addr]Owner{}
	for some := range slices.Chunk(addresses, atOnce) {
		found, err := probe(ctx, some, members)
		if err != nil {
			return nil, err
		}
		maps.Copy(owners, found)
	}
	return owners, nil
}

func probe(ctx context.Context, addresses, members []netip.Addr) (map[netip.Addr]Owner, error) {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	networks, err := connected(addresses)
	if err != nil {
		return nil, err
	}
	owners := map[netip.Addr]Owner{}
	for link, asked := range networks {
		if err := solicit(link, asked, members); err != nil {
			return nil, err
		}
	}
	for link, asked := range networks {
		found, err := answers(ctx, link, asked, members)
		if err != nil {
			return nil, err
		}
		for a, mac := range found {
			owners[a] = Owner{link.Attrs().Name, mac}
		}
	}
	return owners, nil
}

// connected returns the links with a network that has one of the addresses, and which of
// the addresses it has.
func connected(addresses []netip.Addr) (map[netlink.Link][]netip.Addr, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("reading the interfaces: %w", err)
	}
	all := map[netlink.Link][]netip.Addr{}
	for _, link := range links {
		at := link.Attrs()
		if at.Flags&net.FlagLoopback != 0 || at.Flags&net.FlagUp == 0 || at.RawFlags&unix.IFF_NOARP != 0 ||
			len(at.HardwareAddr) != 6 {
			continue
		}
		there, err := read(at.Index)
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			for p := range there {
				if !p.IsSingleIP() && p.Contains(a) {
					all[link] = append(all[link], a)
					break
				}
			}
		}
	}
	return all, nil
}

// solicit makes the kernel ask on a link for addresses and members.
func solicit(link netlink.Link, addresses, members []netip.Addr) error {
	for _, a := range slices.Concat(addresses, members) {
		n := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: a.AsSlice(), Family: netlink.FAMILY_V4}
		if a.Is6() {
			n.Family = netlink.FAMILY_V6
		}
		if slices.Contains(addresses, a) {
			// What the kernel has heard before proves nothing about now.
			if err := netlink.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("asking for %s on %s: %w", a, link.Attrs().Name, err)
			}
		}
		n.Flags = netlink.NTF_USE
		if err := netlink.NeighSet(n); err != nil {
			return fmt.Errorf("asking for %s on %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

// answers waits until the kernel has asked for the addresses, and returns the machines that
// answered and are no members.
func answers(ctx context.Context, link netlink.Link, addresses, members []netip.Addr) (
	map[netip.Addr]net.HardwareAddr, error,
) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		waits, err := unanswered(link)
		if err != nil {
			return nil, err
		}
		found, err := neighbours(link, addresses)
		if err != nil {
			return nil, err
		}
		ours, err := neighbours(link, members)
		if err != nil {
			return nil, err
		}
		for a, mac := range found {
			for _, m := range ours {
				if slices.Equal(mac, m) {
					delete(found, a)
				}
			}
		}
		// A member is waited for only if an answer may be its own.
		ready := !slices.ContainsFunc(addresses, waits) && (len(found) == 0 || !slices.ContainsFunc(members, waits))
		select {
		case <-ctx.Done():
			return found, nil
		case <-tick.C:
			if ready {
				return found, nil
			}
		}
	}
}

// unanswered returns a function that reports whether the kernel still asks for an address
// on a link.
func unanswered(link netlink.Link) (func(netip.Addr) bool, error) {
	list, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("reading the neighbours on %s: %w", link.Attrs().Name, err)
	}
	asks := map[netip.Addr]bool{}
	for _, n := range list {
		a, _ := netip.AddrFromSlice(n.IP)
		asks[a.Unmap()] = n.State&netlink.NUD_INCOMPLETE != 0
	}
	return func(a netip.Addr) bool { return asks[a] }, nil
}
