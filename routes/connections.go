package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of the kernel's include/net/tcp_states.h and include/uapi/linux/inet_diag.h.
const (
	tcpEstablished, tcpSynSent, tcpSynRecv, tcpFinWait1, tcpTimeWait, tcpCloseWait, tcpListen = 1, 2, 3, 4, 6, 8, 10

	retransmitting = 1 // the value of idiag_timer
)

// An End is the far end of TCP connections of this machine, with the address of the machine that they have at the
// near end. If From is zero, they may have any.
type End struct {
	From netip.Addr
	To   netip.AddrPort
}

// Any returns the same far end for any address of the machine.
func (e End) Any() End { return End{To: e.To} }

// mute is the number of retransmissions in a row without an acknowledgement after which
// the far end of a connection counts as mute. In a fast network the second comes about
// 0.6 s after the first (RFC 6298).
const mute = 2

// Mute returns the far ends of TCP connections of this machine that no longer acknowledge anything:
// a node without power, or without a cable. If only the application is stuck, the far end is not
// mute, since its kernel acknowledges. It returns each End also with Any.
func (*Kernel) Mute() (map[End]bool, error) {
	ends := make(map[End]bool)
	err := connections(func(s *netlink.Socket, to End) error {
		if s.Timer == retransmitting && s.Retrans >= mute {
			ends[to], ends[to.Any()] = true, true
		}
		return nil
	})
	return ends, err
}

// Abort ends the TCP connections of this machine to these far ends, and returns their
// number. Their programs get ECONNABORTED at once, and do not wait for an answer that will
// not come. It needs CONFIG_INET_DIAG_DESTROY, which kernels of distributions have.
func (*Kernel) Abort(ends map[End]bool) (n int, err error) {
	if len(ends) == 0 {
		return 0, nil
	}
	err = connections(func(s *netlink.Socket, to End) error {
		if !ends[to] && !ends[to.Any()] {
			return nil
		}
		request := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
		request.AddData((*destroyRequest)(s))
		_, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, unix.ENOENT): // it has ended by itself
			return fmt.Errorf("ending the connection to %s: %w", to.To, err)
		}
		return nil
	})
	return n, err
}

// Held returns how many TCP connections to these addresses of this machine are still in use: those
// that are open, and those that this machine has closed while data is under way.
func (*Kernel) Held(addrs []netip.Addr) (n int, err error) {
	err = connections(func(s *netlink.Socket, to End) error {
		if slices.Contains(addrs, to.From) && inUse(s) {
			n++
		}
		return nil
	})
	return n, err
}

// HeldTo returns how many TCP connections of this machine to these far ends are still in use.
func (*Kernel) HeldTo(ends map[End]bool) (n int, err error) {
	if len(ends) == 0 {
		return 0, nil
	}
	err = connections(func(s *netlink.Socket, to End) error {
		if (ends[to] || ends[to.Any()]) && inUse(s) {
			n++
		}
		return nil
	})
	return n, err
}

// inUse reports whether a connection is open, or was closed by this machine while data is under way.
func inUse(s *netlink.Socket) bool {
	return slices.Contains([]uint8{tcpEstablished, tcpFinWait1, tcpCloseWait}, s.State)
}

// connections calls each with every TCP connection of this machine that was established.
func connections(each func(*netlink.Socket, End) error) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		sockets, err := netlink.SocketDiagTCP(family)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // it went on changing meanwhile
			return fmt.Errorf("reading the TCP connections of this machine: %w", err)
		}
		for _, s := range sockets {
			switch s.State {
			case tcpListen, tcpTimeWait, tcpSynSent, tcpSynRecv: // these have none, or not yet
				continue
			}
			near, _ := netip.AddrFromSlice(s.ID.Source)
			far, ok := netip.AddrFromSlice(s.ID.Destination)
			if !ok {
				continue
			}
			to := End{From: near.Unmap(), To: netip.AddrPortFrom(far.Unmap(), s.ID.DestinationPort)}
			if err := each(s, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// destroyRequest is a struct inet_diag_req_v2 that names one socket.
type destroyRequest netlink.Socket

// Len returns the length of Serialize's result.
func (*destroyRequest) Len() int { return 56 }

// Serialize returns the request in the kernel's format: family, protocol, states, then
// struct inet_diag_sockid with ports and addresses in network order.
func (r *destroyRequest) Serialize() []byte {
	b := make([]byte, r.Len())
	b[0], b[1] = r.Family, unix.IPPROTO_TCP
	native := nl.NativeEndian()
	b[8], b[9] = byte(r.ID.SourcePort>>8), byte(r.ID.SourcePort)
	b[10], b[11] = byte(r.ID.DestinationPort>>8), byte(r.ID.DestinationPort)
	source, destination := r.ID.Source.To16(), r.ID.Destination.To16()
	if r.Family == unix.AF_INET {
		source, destination = r.ID.Source.To4(), r.ID.Destination.To4()
	}
	copy(b[12:28], source)
	copy(b[28:44], destination)
	native.PutUint32(b[44:], r.ID.Interface)
	native.PutUint32(b[48:], r.ID.Cookie[0])
	native.PutUint32(b[52:], r.ID.Cookie[1])
	return b
}
