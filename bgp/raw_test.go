package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sallyport/routes"
	"sallyport/test/wait"
)

// Message types, RFC 4271, 4.1 and RFC 2918.
const (
	typeOpen         = 1
	typeUpdate       = 2
	typeNotification = 3
	typeKeepalive    = 4
	typeRefresh      = 5
)

func message(kind byte, body ...byte) []byte {
	m := slices.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(19+len(body)))
	return append(append(m, kind), body...)
}

// open returns an OPEN of AS 65000 with these optional parameters.
func open(hold uint16, id netip.Addr, parameters ...byte) []byte {
	b := []byte{4, 0xfd, 0xe8, byte(hold >> 8), byte(hold)}
	b = append(b, id.AsSlice()...)
	return message(typeOpen, append(append(b, byte(len(parameters))), parameters...)...)
}

// capabilities are the optional parameters of a plain IPv4 speaker with 4-byte AS numbers.
var capabilities = []byte{2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfd, 0xe8}

func update(withdrawn, attributes, nlri []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	b = append(b, withdrawn...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(attributes)))
	return message(typeUpdate, append(append(b, attributes...), nlri...)...)
}

func attribute(flags, kind byte, value ...byte) []byte {
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

// plain holds ORIGIN, an empty AS_PATH, NEXT_HOP and LOCAL_PREF.
func plain(nextHop netip.Addr) []byte {
	return slices.Concat(
		attribute(0x40, 1, 0),
		attribute(0x40, 2),
		attribute(0x40, 3, nextHop.AsSlice()...),
		attribute(0x40, 5, 0, 0, 0, 100),
	)
}

var endOfRIB = update(nil, nil, nil)

// A raw peer writes arbitrary bytes, from an address of this end of the site.
type raw struct {
	site *site
	sp   speaker
	addr netip.Addr
}

func (s *site) raw(t *testing.T, sp speaker, host int) raw {
	t.Helper()
	a := s.addrs(host)
	s.local(t, a)
	return raw{s, sp, a[0]}
}

// connect opens a connection, and returns the OPEN of our speaker.
func (r raw) connect(t *testing.T) (*net.TCPConn, []byte) {
	t.Helper()
	var conn *net.TCPConn
	var hello []byte
	wait.For(t, "an OPEN from us", func() (bool, string) {
		c, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.addr, 0)),
			net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.site.us[0], 179)))
		if err != nil {
			return false, err.Error()
		}
		kind, body, err := read(c)
		if err != nil || kind != typeOpen {
			_ = c.Close()
			return false, fmt.Sprint("type ", kind, err)
		}
		conn, hello = c, body
		return true, ""
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn, hello
}

// session opens a connection, and brings the session to Established.
func (r raw) session(t *testing.T) *net.TCPConn {
	t.Helper()
	c, _ := r.connect(t)
	send(t, c, open(240, r.addr, capabilities...), message(typeKeepalive))
	r.sp.waitPeer(t, r.addr, "established", func(p PeerState) bool { return p.State == established })
	return c
}

func send(t *testing.T, c net.Conn, messages ...[]byte) {
	t.Helper()
	if _, err := c.Write(slices.Concat(messages...)); err != nil {
		t.Fatal(err)
	}
}

func read(c net.Conn) (kind byte, body []byte, err error) {
	if err := c.SetReadDeadline(time.Now().Add(90 * time.Second)); err != nil {
		return 0, nil, err
	}
	var header [19]byte
	if _, err := io.ReadFull(c, header[:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, max(int(binary.BigEndian.Uint16(header[16:]))-19, 0))
	_, err = io.ReadFull(c, body)
	return header[18], body, err
}

// hangUp closes our half of the connection, and waits until the other end has read all of
// it and closed its half.
func hangUp(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.CloseWrite()
	for {
		_, _, err := read(c)
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Fatal("our speaker does not hang up")
		}
		if err != nil {
			break
		}
	}
	_ = c.Close()
}

func (s speaker) waitKnock(t *testing.T) {
	t.Helper()
	limit := time.NewTimer(90 * time.Second)
	defer limit.Stop()
	select {
	case <-s.Changed():
	case <-limit.C:
		t.Fatal("no knock")
	}
}

var quick = pace{
	renew:     time.Millisecond,
	handshake: 10 * time.Second,
	dial:      30 * time.Second,
	endOfRIB:  time.Minute,
	keep:      15 * time.Minute,
	penalty:   200 * time.Millisecond,
	penaltyTo: 5 * time.Minute,
	tick:      50 * time.Millisecond,
}

func block(a, b, c, d byte) []byte { return []byte{26, a, b, c, d} }

func TestLostOffersStayUntilEndOfRIBAndKeepTheirFirstLoss(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, time.Minute, quick)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	one, two := block(172, 16, 1, 0), block(172, 16, 1, 64)
	line := func(n int, cause string) string {
		return fmt.Sprintf("172.16.1.%d/26 via %s path []%s", n, r.addr, cause)
	}
	lossOf := func(n int) routes.Loss {
		all, err := sp.Offers()
		if err != nil || len(all) <= n {
			t.Fatalf("offers are %v, %v", all, err)
		}
		return all[n].Lost
	}
	const closed = " connection closed"

	c := r.session(t)
	sp.waitKnock(t)
	send(t, c, update(nil, plain(r.addr), slices.Concat(one, two)), endOfRIB)
	sp.waitKnock(t)
	sp.waitUp(t, r.addr)
	sp.waitOffers(t, r.addr, line(0, ""), line(64, ""))
	hangUp(t, c)
	sp.waitOffers(t, r.addr, line(0, closed), line(64, closed))
	first := lossOf(0)

	c = r.session(t)
	send(t, c, update(nil, plain(r.addr), one))
	sp.waitOffers(t, r.addr, line(0, ""), line(64, closed))
	hangUp(t, c)
	sp.waitOffers(t, r.addr, line(0, closed), line(64, closed))
	if got := lossOf(0); !got.At.After(first.At) {
		t.Errorf("what was announced again was lost at %s, want after %s", got.At, first.At)
	}
	if got := lossOf(1); got != first {
		t.Errorf("what was not announced again was lost %v, want %v", got, first)
	}

	c = r.session(t)
	send(t, c, update(nil, plain(r.addr), two))
	sp.waitOffers(t, r.addr, line(0, closed), line(64, ""))
	send(t, c, endOfRIB)
	sp.waitOffers(t, r.addr, line(64, ""))
	send(t, c, update(two, nil, nil))
	sp.waitOffers(t, r.addr)
	if got := sp.peer(t, r.addr).Flaps; got != 2 {
		t.Errorf("%d flaps, want 2", got)
	}
}

func TestAnOfferSaysWhatWasAnnouncedAndBelievesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, time.Minute, quick)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	c := r.session(t)
	origin := attribute(0x40, 1, 0)
	via := func(a string) []byte { return attribute(0x40, 3, netip.MustParseAddr(a).AsSlice()...) }
	sequenceAndSet := attribute(0x40, 2, 2, 1, 0, 0, 0xfd, 0xe9, 1, 2, 0, 0, 0, 7, 0, 0, 0, 8)
	send(t, c,
		update(nil, slices.Concat(origin, sequenceAndSet, via("192.0.2.9")), []byte{26, 172, 16, 1, 13}),
		update(nil, plain(r.addr), []byte{0}),
	)
	sp.waitOffers(t, r.addr,
		fmt.Sprintf("0.0.0.0/0 via %s path []", r.addr),
		"172.16.1.0/26 via 192.0.2.9 path [65001 7 8]")
	// A later announcement with fewer attributes replaces the earlier one.
	send(t, c, update([]byte{0}, slices.Concat(origin, attribute(0x40, 2), via("192.0.2.10")),
		[]byte{26, 172, 16, 1, 0}))
	sp.waitOffers(t, r.addr, "172.16.1.0/26 via 192.0.2.10 path []")
	// Even a path through our own AS is among the offers.
	send(t, c, update(nil, slices.Concat(origin, attribute(0x40, 2, 2, 1, 0, 0, 0xfd, 0xe8), via("192.0.2.10")),
		[]byte{26, 172, 16, 1, 0}))
	sp.waitOffers(t, r.addr, "172.16.1.0/26 via 192.0.2.10 path [65000]")
	// Malformed, and so a withdrawal (RFC 7606, 7.3).
	send(t, c, update(nil, slices.Concat(origin, attribute(0x40, 2), attribute(0x40, 3, 1, 2, 3)),
		[]byte{26, 172, 16, 1, 0}))
	sp.waitOffers(t, r.addr)
}

func TestWithoutEndOfRIBTimeEndsTheWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := quick
	p.endOfRIB = 300 * time.Millisecond
	sp := s.speaker(t, 65000, time.Minute, p)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	c := r.session(t)
	send(t, c, update(nil, plain(r.addr), block(172, 16, 1, 0)))
	sp.waitUp(t, r.addr)
	hangUp(t, c)
	sp.waitOffers(t, r.addr, fmt.Sprintf("172.16.1.0/26 via %s path [] connection closed", r.addr))
	r.session(t)
	sp.waitOffers(t, r.addr)
}

func TestALostOfferDoesNotStayForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := quick
	p.keep = 300 * time.Millisecond
	sp := s.speaker(t, 65000, time.Minute, p)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	c := r.session(t)
	send(t, c, update(nil, plain(r.addr), block(172, 16, 1, 0)))
	sp.waitOffers(t, r.addr, fmt.Sprintf("172.16.1.0/26 via %s path []", r.addr))
	hangUp(t, c)
	sp.waitOffers(t, r.addr)
	if got := sp.peer(t, r.addr); got.LastLoss.Cause != routes.Closed {
		t.Errorf("peer is %+v, want its loss to be remembered", got)
	}
}

func TestWeOfferOneFamilyAndNeitherGracefulRestartNorAddPath(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 12*time.Second, quick)
	r, other := s.raw(t, sp, 66), s.raw(t, sp, 67)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000}, Peer{Addr: other.addr, ASN: 65000})
	send(t, other.session(t), update(nil, plain(other.addr), block(172, 16, 2, 0)), endOfRIB)
	sp.waitUp(t, other.addr)

	c, hello := r.connect(t)
	if got := binary.BigEndian.Uint16(hello[3:]); got != 12 {
		t.Errorf("hold time is %d, want 12", got)
	}
	families := 0
	for p := hello[10:]; len(p) > 2; p = p[2+int(p[1]):] {
		for q := p[2 : 2+int(p[1])]; len(q) > 1; q = q[2+int(q[1]):] {
			switch q[0] {
			case 1:
				families++
				if want := []byte{0, 1, 0, 1}; !slices.Equal(q[2:6], want) {
					t.Errorf("family is %v, want %v", q[2:6], want)
				}
			case 64, 69, 71:
				t.Errorf("capability %d is offered", q[0])
			}
		}
	}
	if families != 1 {
		t.Errorf("%d families are offered, want 1", families)
	}

	// Our speaker sends nothing but keepalives and an End-of-RIB.
	send(t, c, open(240, r.addr, capabilities...), message(typeKeepalive))
	sp.waitPeer(t, r.addr, "established", func(p PeerState) bool { return p.State == established })
	send(t, c, message(typeRefresh, 0, 1, 0, 1), update(nil, plain(r.addr), block(172, 16, 1, 0)))
	sp.waitOffers(t, r.addr, fmt.Sprintf("172.16.1.0/26 via %s path []", r.addr))
	_ = c.CloseWrite()
	for {
		kind, body, err := read(c)
		if err != nil {
			break
		}
		if kind != typeKeepalive && (kind != typeUpdate || len(body) != 4) {
			t.Errorf("we sent type %d, %x", kind, body)
		}
	}
	// In GoBGP 4.8.0 two sessions that end at once race for a copy of their settings, which does not
	// change. So the other session ends after this one.
	sp.waitPeer(t, r.addr, "not established", func(p PeerState) bool { return p.State != established })
}

func TestASessionWithoutHoldTimeIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, quick)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	c, _ := r.connect(t)
	send(t, c, open(0, r.addr, capabilities...), message(typeKeepalive))
	got := sp.waitPeer(t, r.addr, "refused", func(p PeerState) bool { return p.LastLoss.Cause == routes.Refused })
	if got.State == established {
		t.Errorf("peer is %+v", got)
	}
	r.session(t) // with a hold time it is welcome again
}

func TestWhoConnectsAndSaysNothingDoesNotHoldThePeerOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := quick
	p.handshake = 300 * time.Millisecond
	sp := s.speaker(t, 65000, 0, p)
	r := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: r.addr, ASN: 65000})
	silent, _ := r.connect(t)
	r.session(t)
	if _, _, err := read(silent); err == nil {
		t.Error("the silent connection is still served")
	}
}

// malformed returns messages, by the state in which to send them.
func malformed(us netip.Addr) (before, after map[string][]byte) {
	before, after = make(map[string][]byte), make(map[string][]byte)
	both := func(name string, m []byte) { before[name], after[name] = m, m }
	header := func(length uint16, kind byte) []byte {
		m := message(kind)
		binary.BigEndian.PutUint16(m[16:], length)
		return m
	}
	both("bad marker", append(make([]byte, 16), 0, 19, typeKeepalive))
	for _, kind := range []byte{0, 6, 7, 128, 255} {
		both(fmt.Sprint("unknown type ", kind), message(kind))
	}
	for _, length := range []uint16{0, 1, 18, 20, 4097, 65535} {
		for kind := byte(typeOpen); kind <= typeRefresh; kind++ {
			both(fmt.Sprint("length ", length, " of type ", kind), header(length, kind))
		}
	}
	for kind := byte(typeOpen); kind <= typeRefresh; kind++ {
		for n := range 12 {
			both(fmt.Sprint("type ", kind, " of ", n, " zeroes"), message(kind, make([]byte, n)...))
			both(fmt.Sprint("type ", kind, " of ", n, " ones"), message(kind, slices.Repeat([]byte{255}, n)...))
		}
	}
	both("OPEN", open(240, us.Next(), capabilities...)) // out of order once established
	before["UPDATE first"] = update(nil, plain(us), block(172, 16, 1, 0))
	before["version 3"] = append(message(typeOpen)[:19], 3, 0xfd, 0xe8, 0, 240, 1, 1, 1, 1, 0)
	before["our own identifier"] = open(240, us, capabilities...)
	before["identifier 0"] = open(240, netip.IPv4Unspecified(), capabilities...)
	before["hold time 1"] = open(1, us.Next(), capabilities...)
	before["another AS"] = open(240, us.Next(), 2, 6, 65, 4, 0, 0, 0, 1)
	before["parameters too long"] = append(open(240, us.Next())[:28], 255, 2, 6)
	before["extended parameters"] = open(240, us.Next(), 255, 0, 200, 2, 0, 1)
	for code := range 80 {
		for n := range byte(6) {
			value := append([]byte{2, 2 + n, byte(code), n}, make([]byte, n)...)
			before[fmt.Sprint("capability ", code, " of ", n)] = open(240, us.Next(), value...)
			value[3] += 3
			before[fmt.Sprint("capability ", code, " of ", n, " that says more")] = open(240, us.Next(), value...)
		}
	}

	nlri := block(172, 16, 9, 0)
	good := plain(us)
	after["withdrawn routes underflow"] = message(typeUpdate, 0, 200, 0, 0)
	after["attributes underflow"] = message(typeUpdate, 0, 0, 0, 200, 64)
	after["one byte of NLRI"] = update(nil, good, []byte{32})
	after["mask of 33"] = update(nil, good, []byte{33, 1, 2, 3, 4, 5})
	after["mask of 255"] = update([]byte{255}, good, []byte{255})
	after["NLRI without attributes"] = update(nil, nil, nlri)
	after["AS4_PATH alone"] = update(nil, attribute(0xc0, 17, 2, 1, 0, 0, 0, 1), nlri)
	after["AS4_PATH before AS_PATH"] = update(nil, slices.Concat(attribute(0xc0, 17, 2, 1, 0, 0, 0, 1), good), nlri)
	after["AS4_PATH longer"] = update(nil, slices.Concat(good, attribute(0xc0, 17, 2, 2, 0, 0, 0, 1, 0, 0, 0, 2)), nlri)
	after["AS_PATH that says more"] = update(nil,
		slices.Concat(attribute(0x40, 1, 0), attribute(0x40, 2, 2, 9, 0, 0), attribute(0x40, 3, 1, 1, 1, 1)), nlri)
	after["AS_PATH of no AS"] = update(nil,
		slices.Concat(attribute(0x40, 1, 0), attribute(0x40, 2, 2, 0), attribute(0x40, 3, 1, 1, 1, 1)), nlri)
	after["IPv6 on this session"] = update(nil,
		slices.Concat(good, attribute(0x80, 14,
			slices.Concat([]byte{0, 2, 1, 16}, make([]byte, 17), []byte{8, 0xfd})...)), nil)
	after["next hop of 200 bytes"] = update(nil, slices.Concat(good, attribute(0x80, 14, 0, 1, 1, 200)), nil)
	after["SRv6 service"] = update(nil, slices.Concat(good, attribute(0xc0, 40, 5, 0, 3, 0, 1, 0)), nlri)
	after["SRv6 service, short"] = update(nil, slices.Concat(good, attribute(0xc0, 40, 5, 0, 1)), nlri)
	after["prefix SID that says more"] = update(nil, slices.Concat(good, attribute(0xc0, 40, 1, 0, 200, 0)), nlri)
	after["extended length that says more"] = update(nil, slices.Concat(good, []byte{0xd0, 40, 255, 255, 0}), nlri)
	after["refresh of no family"] = message(typeRefresh, 255, 255, 255, 255)
	for kind := range 48 {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 8} {
			for _, flags := range []byte{0x40, 0xc0} {
				a := attribute(flags, byte(kind), slices.Repeat([]byte{byte(n)}, n)...)
				after[fmt.Sprint("attribute ", kind, " of ", n, " with flags ", flags)] = update(nil,
					slices.Concat(good, a), nlri)
			}
		}
	}
	return before, after
}

func TestNoMessageOfOnePeerHarmsTheSpeakerOrAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, time.Minute, quick)
	n := s.node(t)
	good := n.addr[0]
	n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"}})
	bad := s.raw(t, sp, 66)
	sp.set(t, Peer{Addr: good, ASN: 65000}, Peer{Addr: bad.addr, ASN: 65000, PrefixLimit: 100})
	sp.waitUp(t, good)
	want := []string{"172.16.1.0/26 via " + good.String() + " path []"}
	stands := func(t *testing.T, after string) {
		t.Helper()
		if p := sp.peer(t, good); p.State != established || p.Flaps != 0 {
			t.Fatalf("after %s the good peer is %+v", after, p)
		}
		if got := sp.offers(t, good); !slices.Equal(got, want) {
			t.Fatalf("after %s the good peer offers %q", after, got)
		}
	}
	before, after := malformed(s.us[0])

	for name, m := range before {
		c, _ := bad.connect(t)
		send(t, c, m)
		hangUp(t, c)
		stands(t, name)
	}
	for name, m := range after {
		c := bad.session(t)
		send(t, c, m)
		hangUp(t, c)
		stands(t, name)
	}

	// The fixed seed makes a failure repeatable.
	random := rand.New(rand.NewPCG(65000, 179))
	seeds := slices.Collect(func(yield func([]byte) bool) {
		for _, m := range after {
			if len(m) > 24 && m[18] == typeUpdate && !yield(m) {
				return
			}
		}
	})
	slices.SortFunc(seeds, slices.Compare)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for range rounds {
		c := bad.session(t)
		for range 50 {
			m := slices.Clone(seeds[random.IntN(len(seeds))])
			for range 1 + random.IntN(3) {
				m[19+random.IntN(len(m)-19)] = byte(random.Uint32())
			}
			if _, err := c.Write(m); err != nil {
				break // the speaker has closed the connection
			}
		}
		hangUp(t, c)
		stands(t, "mutations")
	}
}

// FuzzUpdate checks that reading a message ends, and that Verify can judge the offers in it.
func FuzzUpdate(f *testing.F) {
	node := netip.MustParseAddr("192.168.50.23")
	f.Add(update(nil, plain(node), []byte{26, 172, 16, 171, 64}))
	f.Add(update(nil, slices.Concat(plain(node), attribute(0x80, 14, 0, 2, 1, 16, 0, 0)), nil))
	f.Add(open(9, node, capabilities...))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := packet.ParseBGPMessage(data)
		if err != nil || m == nil {
			return
		}
		u, ok := m.Body.(*packet.BGPUpdate)
		if !ok {
			return
		}
		for _, n := range u.NLRI {
			for _, family := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
				p := &apiutil.Path{Nlri: n.NLRI, Family: family, Attrs: u.PathAttributes}
				if prefix, ok := prefixOf(p); ok && prefix != prefix.Masked() {
					t.Errorf("prefix %s", prefix)
				}
				if hop := pathOf(p).nextHop; hop.Is4In6() {
					t.Errorf("next hop %s", hop)
				}
			}
		}
	})
}

// impostor connects to us in a node's place, again and again, and would keep a session for
// ever. A pod can do so: its packets leave with its node's address. impostor reports the
// result of each attempt.
func impostor(us, node string) {
	id := netip.MustParseAddr(node)
	from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(id, 0))
	for range time.Tick(20 * time.Millisecond) {
		dialer := net.Dialer{LocalAddr: from, Timeout: 300 * time.Millisecond}
		c, err := dialer.Dial("tcp", net.JoinHostPort(us, "179"))
		if err != nil {
			fmt.Println("refused")
			continue
		}
		_, err = c.Write(slices.Concat(open(0xff, id, capabilities...), message(typeKeepalive)))
		for err == nil {
			var kind byte
			if kind, _, err = read(c); kind == typeKeepalive {
				fmt.Println("session")
				_, err = c.Write(message(typeKeepalive))
			}
		}
		fmt.Println("closed")
		_ = c.Close()
	}
}

func TestAPodCannotTakeTheSessionOfItsNode(t *testing.T) {
	t.Parallel()
	const key = "correct horse"
	for name, row := range map[string]struct {
		peer     Peer
		listens  bool // for peers of another cluster
		session  string
		held     bool // what the row is there to show otherwise
		attempts string
	}{
		"we dial, and nobody may connect": {peer: Peer{Active: true}, attempts: "refused"},
		"we dial, and others may connect": {peer: Peer{Active: true}, listens: true, attempts: "closed"},
		"nodes dial, with a password": {
			peer: Peer{Password: key}, listens: true,
			session: "password \"" + key + "\";", attempts: "refused",
		},
		"nodes dial, unguarded": {listens: true, held: true, attempts: "session"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			n := s.node(t)
			var listen []netip.Addr
			if row.listens {
				listen = s.us[:]
			}
			sp := s.speakerAt(t, 65000, 0, usualPace, listen...)
			at := n.addr[0]
			peer := row.peer
			peer.Addr, peer.ASN = at, 65000
			sp.set(t, peer)
			b := n.bird(t, birdConfig{
				us: s.us[0], asn: 65000, ours: 65000, session: row.session,
				blocks: []string{"172.16.1.0/26"},
			})
			sp.waitUp(t, at)
			b.kill() // calico-node restarts

			told := new(wait.Log)
			pod := n.enter("/proc/self/exe", s.us[0].String(), at.String())
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			pod.Args[slices.Index(pod.Args, "/proc/self/exe")] = self
			pod.Env = append(os.Environ(), roleEnv+"=impostor")
			pod.Stdout = told
			if err := pod.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = pod.Process.Kill()
				_ = pod.Wait()
			})
			wait.For(t, "an attempt that is "+row.attempts, func() (bool, string) {
				return strings.Contains(told.String(), row.attempts), told.String()
			})
			if row.held {
				sp.waitPeer(t, at, "held by the impostor", func(p PeerState) bool { return p.State == established })
				return
			}
			b.start()
			sp.waitUp(t, at)
			sp.waitOffers(t, at, "172.16.1.0/26 via "+at.String()+" path []")
			if strings.Contains(told.String(), "session") {
				t.Errorf("the impostor had a session:\n%s", told)
			}
		})
	}
}
