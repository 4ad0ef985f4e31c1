package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// neighbourArg makes this program a hostile neighbour of a group, a process on a host in the
// network of its members. Until its input ends it sends every few milliseconds, to each member:
//
//   - heartbeats in the name of another member, without the secret of the group
//   - VRRP from its own address, and from that of another member with a TTL of 254
//   - BFD from the router with a TTL of 254, which says that the session is down
//   - packets of no connection to the service addresses, with each count of hops
const neighbourArg = "neighbour"

func addresses(list string) (all []netip.Addr, err error) {
	for text := range strings.SplitSeq(list, ",") {
		a, perr := netip.ParseAddr(text)
		all, err = append(all, a), errors.Join(err, perr)
	}
	return all, err
}

// neighbour runs the process that neighbourArg names.
func neighbour(args []string) error {
	flags := flag.NewFlagSet(neighbourArg, flag.ContinueOnError)
	members := flags.String("members", "", "addresses of the members")
	services := flags.String("services", "", "service addresses")
	of := flags.String("router", "", "address of the router")
	self := flags.String("self", "", "own address")
	if err := flags.Parse(args); err != nil {
		return err
	}
	all, err1 := addresses(*members)
	served, err2 := addresses(*services)
	router, err3 := netip.ParseAddr(*of)
	own, err4 := netip.ParseAddr(*self)
	fd, err5 := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := uint32(0); ; n++ {
		for i, to := range all {
			other := all[(i+1)%len(all)]
			for _, packet := range [][]byte{
				datagram(other, to, 7477, 255, heartbeat()),
				ip(own, to, 112, 255, 0, advertisement(own, to, served)),
				ip(other, to, 112, 254, 0, advertisement(other, to, served)),
				datagram(router, to, 3784, 254, sessionDown()),
				ip(own, served[int(n)%len(served)], 6, 64, byte(n%9), segment(n)),
			} {
				at := unix.SockaddrInet4{Addr: netip.AddrFrom4([4]byte(packet[16:20])).As4()}
				if err := unix.Sendto(fd, packet, 0, &at); err != nil {
					return fmt.Errorf("sending to %v: %w", at.Addr, err)
				}
			}
		}
		select {
		case <-ended:
			return nil
		case <-tick.C:
		}
	}
}

// ip returns an IPv4 packet. The kernel fills in length and checksum.
func ip(from, to netip.Addr, protocol, ttl, dscp byte, payload []byte) []byte {
	src, dst := from.As4(), to.As4()
	return slices.Concat([]byte{0x45, dscp << 2, 0, 0, 0, 0, 0, 0, ttl, protocol, 0, 0}, src[:], dst[:], payload)
}

// datagram returns a UDP packet without a checksum.
func datagram(from, to netip.Addr, port uint16, ttl byte, payload []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 49152+port%1000)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload))) //nolint:gosec // small
	return ip(from, to, unix.IPPROTO_UDP, ttl, 0, append(append(udp, 0, 0), payload...))
}

// heartbeat returns a packet that begins like one of a member. Nobody without the secret can sign
// it.
func heartbeat() []byte {
	packet := append([]byte("SPG"), 1)
	for range 80 {
		packet = append(packet, byte(rand.N(256))) //nolint:gosec // nobody's secret
	}
	return packet
}

// sessionDown returns a packet of BFD (RFC 5880, 4.1) by which the other side learns that the
// session is down. It names no session: the receiver finds it by the sender.
func sessionDown() []byte {
	return []byte{0x20 | 1, 1 << 6, 3, 24, 0, 0, 0, 99, 0, 0, 0, 0, 0, 4, 0x93, 0xe0, 0, 4, 0x93, 0xe0, 0, 0, 0, 0}
}

// advertisement returns one of VRRP (RFC 5798, 5.1) with the highest priority.
func advertisement(from, to netip.Addr, claimed []netip.Addr) []byte {
	packet := []byte{0x31, byte(50 + rand.N(len(claimed))), 255, 1, 0, 30, 0, 0} //nolint:gosec // nobody's secret
	address := claimed[packet[1]-50].As4()
	packet = append(packet, address[:]...)
	src, dst := from.As4(), to.As4()
	binary.BigEndian.PutUint16(packet[6:],
		checksum(slices.Concat(src[:], dst[:], []byte{0, 112, 0, byte(len(packet))}, packet)))
	return packet
}

// segment returns a TCP packet of no connection.
func segment(n uint32) []byte {
	packet := binary.BigEndian.AppendUint16(nil, uint16(1024+n%60000)) //nolint:gosec // below 2^16
	packet = binary.BigEndian.AppendUint16(packet, 80)
	packet = binary.BigEndian.AppendUint32(packet, rand.Uint32()) //nolint:gosec // nobody's secret
	packet = binary.BigEndian.AppendUint32(packet, rand.Uint32()) //nolint:gosec // nobody's secret
	return append(packet, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0)
}

// checksum returns that of the Internet protocols (RFC 1071) for an even number of bytes.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum) //nolint:gosec // folded
}

// hostileNeighbour has a node send packets of every kind that it can to the members for a while. No
// member may lose its class, a session, or another member.
func hostileNeighbour(ctx context.Context, s *testbed) (err error) {
	var members []string
	flaps := map[string]int{}
	count := func(then func(m *rig.Rig, flaps int)) error {
		for _, m := range s.members() {
			st, err := m.Status(ctx)
			if err != nil {
				return err
			}
			n := 0
			for _, p := range st.Peers {
				n += p.Flaps
			}
			then(m, n)
		}
		return nil
	}
	for _, m := range s.members() {
		host, _ := s.Host(m.Machine())
		members = append(members, host.Addr.Addr().String())
	}
	if err := count(func(m *rig.Rig, n int) { flaps[m.Machine()] = n }); err != nil {
		return err
	}
	router, _ := s.Host(world.Router)
	self, _ := s.Host("worker2")
	child, err := s.Child(ctx, "worker2", neighbourArg, "-members", strings.Join(members, ","), "-services",
		strings.Join(rig.ServiceAddresses(s.Options()), ","),
		"-router", router.Addr.Addr().String(), "-self", self.Addr.Addr().String())
	if err != nil {
		return err
	}
	for range 20 {
		err = errors.Join(err, rig.Pause(ctx, 500*time.Millisecond))
		serving, serr := s.Serving(ctx)
		if err = errors.Join(err, serr); serr == nil && len(serving) != len(s.members()) {
			s.fail("the router sends clients to %q alone", serving)
		}
	}
	err = errors.Join(err, child.Close())
	for _, m := range s.members() {
		st, serr := m.Status(ctx)
		if err = errors.Join(err, serr); serr != nil {
			continue
		}
		for _, o := range st.Group.Members {
			if !o.Alive || o.Class != "full" {
				s.fail("%s takes %s for %s, alive: %t", m.Machine(), o.Name, o.Class, o.Alive)
			}
		}
	}
	return errors.Join(err, count(func(m *rig.Rig, n int) {
		if n != flaps[m.Machine()] {
			s.fail("%s lost %d BGP sessions", m.Machine(), n-flaps[m.Machine()])
		}
	}))
}
