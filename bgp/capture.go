package bgp

import (
	"context"
	"crypto/md5" //nolint:gosec // RFC 2385 has no other
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// A Capture sees the segments that open BGP connections, on the links of this machine: incoming
// segments before the firewall of this machine may drop them, and outgoing segments after that. It
// is for one goroutine.
type Capture struct {
	fd    int
	ports []uint16
	began time.Time
	seen  map[netip.Addr]Segments
}

// Segments says which segments a Capture has seen of connections with one peer.
type Segments struct {
	Sent     bool // a SYN to the peer's BGP port has left this machine
	Answered bool // an answer to such a one, or a reset, has arrived
	Dialled  bool // a SYN of the peer to the BGP port of this machine has arrived
	Replied  bool // an answer to such a one, or a reset, has left

	dial segment // the last SYN of the peer
}

// dials is how long a speaker that has no session takes at most until it dials again. BIRD
// with Calico's configuration takes 7 seconds (connect retry time, connect delay time).
const dials = 8 * time.Second

// NewCapture begins to capture at some TCP ports. It needs CAP_NET_RAW.
func NewCapture(ports ...uint16) (*Capture, error) {
	program, err := bpf.Assemble(handshakes(ports))
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	// The socket has no protocol until it has the filter, so it receives nothing before.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packets cannot be captured: %w", err)
	}
	c := &Capture{fd: fd, ports: ports, began: time.Now(), seen: map[netip.Addr]Segments{}}
	// Many nodes dial before somebody asks for the first of them. The usual buffer holds 250 packets, and
	// stays without CAP_NET_ADMIN.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}) //nolint:gosec // it fits
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{
			Protocol: binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)),
		})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("packets cannot be captured: %w", err)
	}
	return c, nil
}

// Close ends the capture.
func (c *Capture) Close() { _ = unix.Close(c.fd) }

// handshakes returns a filter for the segments with SYN or RST that have one of the ports.
func handshakes(ports []uint16) []bpf.Instruction {
	const accept, protocolTCP, synOrReset = 0xffff, 6, 0x06
	// of returns the rest of the filter for one version of IP. load reads at an offset from the
	// header of TCP.
	of := func(protocolAt uint32, header []bpf.Instruction,
		load func(at uint32, size int) bpf.Instruction,
	) []bpf.Instruction {
		part := append([]bpf.Instruction{
			bpf.LoadAbsolute{Off: protocolAt, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolTCP, SkipTrue: 1},
			bpf.RetConstant{},
		}, header...)
		part = append(part, load(13, 1), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: synOrReset, SkipTrue: 1},
			bpf.RetConstant{})
		for _, at := range []uint32{0, 2} {
			part = append(part, load(at, 2))
			for _, port := range ports {
				part = append(part, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 1},
					bpf.RetConstant{Val: accept})
			}
		}
		return append(part, bpf.RetConstant{})
	}
	four := of(9, []bpf.Instruction{bpf.LoadMemShift{Off: 0}}, func(at uint32, size int) bpf.Instruction {
		return bpf.LoadIndirect{Off: at, Size: size}
	})
	six := of(6, nil, func(at uint32, size int) bpf.Instruction { return bpf.LoadAbsolute{Off: 40 + at, Size: size} })
	return slices.Concat([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 4, SkipTrue: uint8(len(four))}, //nolint:gosec // there are few ports
	}, four, six)
}

// Of returns the segments of one peer so far.
func (c *Capture) Of(peer netip.Addr) Segments {
	buffer := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(c.fd, buffer, 0)
		if err == unix.EINTR { //nolint:errorlint // an errno
			continue
		}
		if err != nil {
			return c.seen[peer]
		}
		if link, is := from.(*unix.SockaddrLinklayer); is {
			c.note(link.Pkttype, buffer[:n])
		}
	}
}

// Wait returns the segments of one peer as soon as the peer has dialled, or when the peer should
// have dialled by then.
func (c *Capture) Wait(ctx context.Context, peer netip.Addr) Segments {
	for {
		s, left := c.Of(peer), time.Until(c.began.Add(dials))
		if s.Dialled || left <= 0 || ctx.Err() != nil {
			return s
		}
		const look = 100 * time.Millisecond // so that the end of ctx is noticed
		wait := int(min(left, look).Milliseconds()) + 1
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, wait) //nolint:gosec // a descriptor
	}
}

// note adds a packet.
func (c *Capture) note(kind uint8, packet []byte) {
	s, ok := segmentOf(packet)
	if !ok {
		return
	}
	opens := s.flags()&(flagSYN|flagACK) == flagSYN
	to, from := slices.Contains(c.ports, s.port(2)), slices.Contains(c.ports, s.port(0))
	switch kind {
	case unix.PACKET_OUTGOING:
		all := c.seen[s.dst]
		all.Sent = all.Sent || opens && to
		all.Replied = all.Replied || !opens && from
		c.seen[s.dst] = all
	case unix.PACKET_HOST:
		all := c.seen[s.src]
		all.Answered = all.Answered || !opens && from
		if opens && to {
			all.Dialled, all.dial = true, s
		}
		c.seen[s.src] = all
	}
}

// A segment is one of TCP, with the addresses of its packet.
type segment struct {
	src, dst netip.Addr
	text     []byte // header and data
}

const (
	tcpHeader        = 20 // without options
	flagSYN, flagACK = 0x02, 0x10
)

// segmentOf returns the segment of TCP in an IP packet without fragments and without
// headers of extensions.
func segmentOf(packet []byte) (s segment, ok bool) {
	if len(packet) < 1 {
		return s, false
	}
	switch packet[0] >> 4 {
	case 4:
		const least = 20
		header := int(packet[0]&0xf) * 4
		if len(packet) < least || packet[9] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(packet[6:])&0x1fff != 0 {
			return s, false
		}
		total := int(binary.BigEndian.Uint16(packet[2:]))
		if header < least || total < header || total > len(packet) {
			return s, false
		}
		s.src, _ = netip.AddrFromSlice(packet[12:16])
		s.dst, _ = netip.AddrFromSlice(packet[16:20])
		s.text = packet[header:total]
	case 6:
		const fixed = 40
		if len(packet) < fixed || packet[6] != unix.IPPROTO_TCP {
			return s, false
		}
		total := fixed + int(binary.BigEndian.Uint16(packet[4:]))
		if total > len(packet) {
			return s, false
		}
		s.src, _ = netip.AddrFromSlice(packet[8:24])
		s.dst, _ = netip.AddrFromSlice(packet[24:40])
		s.text = packet[fixed:total]
	default:
		return s, false
	}
	if len(s.text) < tcpHeader || s.dataAt() < tcpHeader || s.dataAt() > len(s.text) {
		return s, false
	}
	s.text = slices.Clone(s.text)
	return s, true
}

func (s segment) port(at int) uint16 { return binary.BigEndian.Uint16(s.text[at:]) }
func (s segment) flags() byte        { return s.text[13] }
func (s segment) dataAt() int        { return int(s.text[12]>>4) * 4 }

// signature returns the TCP MD5 signature in the options (RFC 2385), or nil.
func (s segment) signature() []byte {
	const end, nothing, md5Kind, md5Length = 0, 1, 19, 2 + md5.Size
	if s.text == nil {
		return nil
	}
	for options := s.text[tcpHeader:s.dataAt()]; len(options) > 0 && options[0] != end; {
		if options[0] == nothing {
			options = options[1:]
			continue
		}
		if len(options) < 2 || options[1] < 2 || int(options[1]) > len(options) {
			return nil
		}
		if options[0] == md5Kind && options[1] == md5Length {
			return options[2:md5Length]
		}
		options = options[options[1]:]
	}
	return nil
}

// signatureBy returns the signature that a password makes (RFC 2385, 2.0).
func (s segment) signatureBy(password string) []byte {
	length := uint32(len(s.text)) //nolint:gosec // that of a packet
	text := slices.Concat(s.src.AsSlice(), s.dst.AsSlice())
	if s.src.Is4() {
		text = append(text, 0, unix.IPPROTO_TCP)
		text = binary.BigEndian.AppendUint16(text, uint16(length)) //nolint:gosec // that of a packet
	} else {
		text = binary.BigEndian.AppendUint32(text, length)
		text = append(text, 0, 0, 0, unix.IPPROTO_TCP)
	}
	const checksumAt = 16 // of two bytes, which count as zero
	text = slices.Concat(text, s.text[:checksumAt], []byte{0, 0}, s.text[checksumAt+2:tcpHeader], s.text[s.dataAt():],
		[]byte(password))
	sum := md5.Sum(text) //nolint:gosec // RFC 2385 has no other
	return sum[:]
}

// Signed reports whether the last SYN of the peer has a TCP MD5 signature.
func (s Segments) Signed() bool { return s.dial.signature() != nil }

// SignedBy reports whether the signature of the last SYN of the peer is that of a password.
func (s Segments) SignedBy(password string) bool {
	return s.Signed() && slices.Equal(s.dial.signature(), s.dial.signatureBy(password))
}
