package bgp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"
)

// An Answer is what a BGP speaker does when somebody connects.
type Answer string

// The answers to a Probe.
const (
	Open     Answer = "open"    // it sends an OPEN: it knows the address that connects
	Closes   Answer = "closes"  // it takes the connection and closes it: it does not know the address
	Silent   Answer = "silent"  // it takes the connection, and nothing that it sends arrives
	NotThere Answer = "refuses" // nothing listens
	// A filter drops the packets; or the other end expects another TCP MD5 signature (RFC 2385), or
	// no signature.
	NoAnswer  Answer = "no answer"
	Unrouted  Answer = "no route"   // this machine or one on the way has no route to it
	NotOurs   Answer = "no address" // the local address is not an address of this machine
	OtherFail Answer = "fails"
)

// A Probed is the result of a Probe. ASN and ID are those of its OPEN.
type Probed struct {
	Answer Answer
	Deaf   bool // Open, and what we send is not acknowledged: it demands a TTL (RFC 5082)
	ASN    uint32
	ID     netip.Addr
	Err    error
}

// Probe connects to the BGP speaker of a peer, with the address, password and TTL of a
// session, and hangs up after its OPEN. It sends the first byte of a header and no message.
// A speaker that has a session with the local address may take the connection for a
// collision, so probe only where there is no session. It takes 3 seconds at most.
func Probe(ctx context.Context, p Peer) Probed {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	p = p.withDefaults()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if p.TTLSecurity {
			err = demandTTL(c, p.Addr.Is4())
		}
		if p.Password != "" {
			err = errors.Join(err, sign(c, p.Addr, p.Password))
		}
		return err
	}}
	if p.Local.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Local, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(p.Addr, p.Port).String())
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED):
		return Probed{Answer: NotThere, Err: err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return Probed{Answer: NotOurs, Err: err}
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return Probed{Answer: Unrouted, Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		return Probed{Answer: NoAnswer, Err: err}
	default:
		return Probed{Answer: OtherFail, Err: err}
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	message := make([]byte, bgp.BGP_HEADER_LENGTH, bgp.BGP_MAX_MESSAGE_LENGTH)
	if _, err := io.ReadFull(conn, message); errors.Is(err, os.ErrDeadlineExceeded) {
		return Probed{Answer: Silent, Err: err}
	} else if err != nil {
		return Probed{Answer: Closes, Err: err}
	}
	length := int(binary.BigEndian.Uint16(message[16:18]))
	if length < bgp.BGP_HEADER_LENGTH || length > bgp.BGP_MAX_MESSAGE_LENGTH {
		return Probed{Answer: OtherFail, Err: errors.New("no BGP message")}
	}
	message = message[:length]
	if _, err := io.ReadFull(conn, message[bgp.BGP_HEADER_LENGTH:]); err != nil {
		return Probed{Answer: OtherFail, Err: err}
	}
	parsed, err := bgp.ParseBGPMessage(message)
	if err != nil {
		return Probed{Answer: OtherFail, Err: err}
	}
	open, is := parsed.Body.(*bgp.BGPOpen)
	if !is {
		return Probed{Answer: Closes, Err: errors.New("a NOTIFICATION")}
	}
	found := Probed{Answer: Open, ASN: uint32(open.MyAS), ID: open.ID}
	for _, param := range open.OptParams {
		if c, is := param.(*bgp.OptionParameterCapability); is {
			for _, one := range c.Capability {
				if four, is := one.(*bgp.CapFourOctetASNumber); is {
					found.ASN = four.CapValue
				}
			}
		}
	}
	found.Deaf = !acknowledges(ctx, conn)
	return found
}

// demandTTL makes a socket send with a TTL of 255, and receive only packets with a TTL of 255.
func demandTTL(c syscall.RawConn, four bool) (err error) {
	level, own, least := unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	if four {
		level, own, least = unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	}
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), level, own, 255), unix.SetsockoptInt(int(fd), level, least, 255)) //nolint:gosec // a descriptor
	})
	return errors.Join(failed, err)
}

// sign lets a socket sign its packets to an address, and drop those from there that have not
// the same signature (RFC 2385).
func sign(c syscall.RawConn, to netip.Addr, password Secret) (err error) {
	sig := unix.TCPMD5Sig{Keylen: uint16(min(len(password), len(unix.TCPMD5Sig{}.Key)))} //nolint:gosec // it fits
	copy(sig.Key[:], password)
	const afterPort, afterFlow = 2, 6 // of struct sockaddr_in and struct sockaddr_in6
	if to.Is4() {
		sig.Addr.Family = unix.AF_INET
		copy(sig.Addr.Data[afterPort:], to.AsSlice())
	} else {
		sig.Addr.Family = unix.AF_INET6
		copy(sig.Addr.Data[afterFlow:], to.AsSlice())
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptTCPMD5Sig(int(fd), unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig) //nolint:gosec // a descriptor
	})
	return errors.Join(failed, err)
}

// acknowledges sends a byte, and reports whether the other end acknowledges it within a second. If
// a speaker demands a TTL, its kernel drops packets with a lower TTL, except for the handshake.
func acknowledges(ctx context.Context, conn net.Conn) bool {
	const enough = time.Second
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return true
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return true
	}
	if _, err := conn.Write([]byte{0xff}); err != nil {
		return true // it hung up, and so heard us
	}
	for tick := time.Tick(20 * time.Millisecond); ; {
		unheard := false
		if err := raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) //nolint:gosec // a descriptor
			unheard = err == nil && info.Unacked > 0
		}); err != nil || !unheard {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick:
		}
	}
}
