package address

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	timeWait = 6 // TCP_TIME_WAIT of the kernel's include/net/tcp_states.h
	// Sizes of the kernel's include/uapi/linux/inet_diag.h.
	diagRequest = 56 // struct inet_diag_req_v2, which ends with the socket
	diagSocket  = 48 // struct inet_diag_sockid
	// batch is how many sockets one system call ends.
	batch = 256
)

// Forget removes the kernel's records of connections to the addresses that this machine has closed
// (TIME_WAIT), and returns how many it removed. The kernel keeps such a record for a minute.
//
// After an address has moved, another appliance may have a new connection with the same addresses
// and ports: a client behind NAT uses a port again within a minute. If packets of the new
// connection arrive here, the ring passes them on only if this kernel has no record of such a
// connection. Therefore callers call Forget after each move.
//
// A packet that comes late for a forgotten connection goes round the ring, and is reset. It needs
// CONFIG_INET_DIAG_DESTROY, which kernels of distributions have, and Linux 6.0.
func Forget(addresses []netip.Addr) (n int, err error) {
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		old, err := left(family, addresses)
		errs = append(errs, err, destroy(family, old))
		n += len(old) / diagSocket
	}
	return n, errors.Join(errs...)
}

// left returns the sockets in TIME_WAIT at the addresses, as a list of struct inet_diag_sockid.
func left(family uint8, addresses []netip.Addr) (all []byte, err error) {
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddRawData(diag(family, 1<<timeWait, make([]byte, diagSocket)))
	err = request.ExecuteIter(unix.NETLINK_INET_DIAG, 0, func(m []byte) bool {
		if len(m) < 4+diagSocket { // struct inet_diag_msg
			return true
		}
		socket := m[4 : 4+diagSocket]
		source := socket[4:20]
		if family == unix.AF_INET {
			source = source[:4]
		}
		if own, _ := netip.AddrFromSlice(source); slices.Contains(addresses, own.Unmap()) {
			all = append(all, socket...)
		}
		return true
	})
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // they went on changing meanwhile
		return all, fmt.Errorf("reading the closed connections of this machine: %w", err)
	}
	return all, nil
}

// diag returns a struct inet_diag_req_v2.
func diag(family uint8, states uint32, socket []byte) []byte {
	b := append(make([]byte, 8, diagRequest), socket...)
	b[0], b[1] = family, unix.IPPROTO_TCP
	nl.NativeEndian().PutUint32(b[4:], states)
	return b
}

// destroy ends sockets. There may be hundreds of thousands, so the kernel is not asked for
// an answer to each: it sends one only where it fails.
func destroy(family uint8, sockets []byte) error {
	if len(sockets) == 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return fmt.Errorf("removing closed connections: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is lost with it
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	var failed error
	for some := range slices.Chunk(sockets, batch*diagSocket) {
		var text []byte
		for one := range slices.Chunk(some, diagSocket) {
			native := nl.NativeEndian()
			header := make([]byte, unix.NLMSG_HDRLEN)
			native.PutUint32(header, unix.NLMSG_HDRLEN+diagRequest)
			native.PutUint16(header[4:], nl.SOCK_DESTROY)
			native.PutUint16(header[6:], unix.NLM_F_REQUEST)
			text = append(append(text, header...), diag(family, 0, one)...)
		}
		if err := unix.Sendto(fd, text, 0, kernel); err != nil {
			return fmt.Errorf("removing closed connections: %w", err)
		}
		failed = errors.Join(failed, complaint(fd))
	}
	return failed
}

// complaint returns the first error that the kernel has sent, but for a connection that has
// ended by itself.
func complaint(fd int) error {
	answer := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, answer, unix.MSG_DONTWAIT)
		if err != nil || n < unix.NLMSG_HDRLEN+4 {
			return nil
		}
		if kind := binary.NativeEndian.Uint16(answer[4:]); kind != unix.NLMSG_ERROR {
			continue
		}
		why := unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:]))) //nolint:gosec // the kernel negates the number
		if why != 0 && why != unix.ENOENT {
			return fmt.Errorf("removing closed connections: %w", why)
		}
	}
}
