package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// kernelOf returns the kernel's view from a host of the lab, or from the lan that joins them.
func (s *testbed) kernelOf(host string) (*netlink.Handle, error) {
	ns, err := netns.GetFromName(s.Netns(host))
	if err != nil {
		return nil, err
	}
	defer ns.Close() //nolint:errcheck // the handle has a socket there
	return netlink.NewHandleAt(ns)
}

// A watch sees, in the kernels of the lab, whether a member has its cable, and whether the router
// sends clients to it. The clients themselves say less: a SYN that nobody answers is sent again
// after a second.
type watch struct {
	lan, router *netlink.Handle
	port        string // of the member in the lan
	at          netip.Addr
	mac         net.HardwareAddr
	addresses   []netip.Addr // of the group
}

func (s *testbed) watch(m *rig.Rig) (*watch, error) {
	host, _ := s.Host(m.Machine())
	w := &watch{port: m.Machine(), at: host.Addr.Addr()}
	for _, a := range rig.ServiceAddresses(s.Options()) {
		w.addresses = append(w.addresses, netip.MustParseAddr(a))
	}
	var err1, err2 error
	w.lan, err1 = s.kernelOf("lan")
	w.router, err2 = s.kernelOf(world.Router)
	member, err3 := s.kernelOf(m.Machine())
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	defer member.Close()
	link, err := member.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	w.mac = link.Attrs().HardwareAddr
	return w, nil
}

func (w *watch) close() {
	w.lan.Close()
	w.router.Close()
}

// plugged reports whether the member has its cable.
func (w *watch) plugged() (bool, error) {
	link, err := w.lan.LinkByName(w.port)
	return err == nil && link.Attrs().Flags&net.FlagUp != 0, err
}

// leads reports whether the router sends clients to the member: by a route, or because it takes the
// member's MAC address for that of a service address.
func (w *watch) leads() (bool, error) {
	for _, a := range w.addresses {
		to := netlink.Route{
			Dst:   &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())},
			Table: unix.RT_TABLE_MAIN,
		}
		found, err := w.router.RouteListFiltered(netlink.FAMILY_V4, &to, netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil {
			return false, err
		}
		for _, r := range found {
			if r.Gw.Equal(w.at.AsSlice()) || slices.ContainsFunc(r.MultiPath, func(n *netlink.NexthopInfo) bool {
				return n.Gw.Equal(w.at.AsSlice())
			}) {
				return true, nil
			}
		}
	}
	known, err := w.router.NeighList(0, netlink.FAMILY_V4)
	return err == nil && slices.ContainsFunc(known, func(n netlink.Neigh) bool {
		a, _ := netip.AddrFromSlice(n.IP)
		return slices.Contains(w.addresses, a.Unmap()) && slices.Equal(n.HardwareAddr, w.mac)
	}), err
}

// lasts waits until the member has lost its cable and the router sends nobody there, and returns the
// time between the two. It looks two hundred times a second.
func (w *watch) lasts(ctx context.Context) (time.Duration, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	gone := time.Now()
	for limit := time.After(rig.Limit); ; {
		plugged, err1 := w.plugged()
		if plugged {
			gone = time.Now()
		}
		leads, err2 := w.leads()
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		if !plugged && !leads {
			return time.Since(gone), nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-limit:
			return 0, errors.New("the router still sends clients to " + w.port)
		case <-tick.C:
		}
	}
}
