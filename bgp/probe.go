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
)

// An Answer is what a BGP speaker does when somebody connects.
type Answer string

// The answers to a Probe.
const (
	Open      Answer = "open"       // it sends an OPEN: it knows the address that connects
	Closes    Answer = "closes"     // it takes the connection and closes it: it does not know the address
	NotThere  Answer = "refuses"    // nothing listens
	NoAnswer  Answer = "no answer"  // a filter drops the packets; or it demands TCP MD5 (RFC 2385), and drops those without a signature
	Unrouted  Answer = "no route"   // this machine or one on the way has no route to it
	NotOurs   Answer = "no address" // the local address is not an address of this machine
	OtherFail Answer = "fails"
)

// A Probed is the result of a Probe. ASN and ID are those of its OPEN.
type Probed struct {
	Answer Answer
	ASN    uint32
	ID     netip.Addr
	Err    error
}

// Probe connects to a BGP speaker, without a signature, and hangs up after its OPEN. It
// sends nothing. A speaker that has a session with the local address may take the
// connection for a collision, so probe only where there is no session. It takes 3 seconds
// at most. The zero local address is any.
func Probe(ctx context.Context, local netip.Addr, to netip.AddrPort) Probed {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	dialer := net.Dialer{}
	if local.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED):
		return Probed{Answer: NotThere, Err: err}
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return Probed{Answer: NotOurs, Err: err}
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return Probed{Answer: Unrouted, Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return Probed{Answer: NoAnswer, Err: err}
	default:
		return Probed{Answer: OtherFail, Err: err}
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	message := make([]byte, bgp.BGP_HEADER_LENGTH, bgp.BGP_MAX_MESSAGE_LENGTH)
	if _, err := io.ReadFull(conn, message); err != nil {
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
	p := Probed{Answer: Open, ASN: uint32(open.MyAS), ID: open.ID}
	for _, param := range open.OptParams {
		if c, is := param.(*bgp.OptionParameterCapability); is {
			for _, one := range c.Capability {
				if four, is := one.(*bgp.CapFourOctetASNumber); is {
					p.ASN = four.CapValue
				}
			}
		}
	}
	return p
}
