package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sallyport/appliance/group"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// groups returns the attacks of neighbours on the ports of a group.
func groups() []attack {
	return []attack{
		{
			by: "neighbour", tries: "leaves 50 handshakes at the port where members share their tables",
			promise: "members alone reach HAProxy's peers",
			objects: func(*testbed) string { // without a table to share there are no peers
				return ingressOf("evil", "limited", []string{"rate-limit-requests: 100"},
					rule("limited."+evilHost, path("/", "app")))
			},
			lab: asMember("", leavesPeers),
		},
		{
			by: "neighbour", tries: "asks BFD, with the address of a router, to wait for 12 days",
			promise: "a packet of BFD asks for 10 s and 50 packets at most",
			lab:     asMember("", delaysBFD),
		},
	}
}

// ghost is the address of a member that does not run.
const ghost = "192.168.50.77"

// asMember makes the appliance a member of a group during an attack, with the client as the router.
// more are lines of the group.
func asMember(more string, attack labAttack) labAttack {
	return func(ctx context.Context, s *testbed, r *rig.Rig) error {
		secret := base64.StdEncoding.EncodeToString([]byte("the-secret-of-a-group-in-a-lab-1"))
		group := fmt.Sprintf(`identity: gate-1
group:
  name: edge
  secret: %s
  addresses: [203.0.113.10]
  members: [{name: gate-1, address: %s}, {name: gate-2, address: %s}]
  upstream: {asn: 64512, peers: [{address: %s}]}
%s`, secret, applianceAddr, ghost, clientAddr, more)
		member := func(want bool) error {
			return s.eventually(ctx, func() error {
				status, err := r.Status(ctx)
				if err == nil && (status.Group != nil) != want {
					err = fmt.Errorf("its group is %+v", status.Group)
				}
				return err
			})
		}
		// A group has addresses for Gateways in its pools alone.
		own := ", addresses: [" + rig.GatewayPool + "]"
		err := configured(ctx, r, func(text string) string { return strings.Replace(text, own, "", 1) + group }, func() error {
			rights, err := r.Manifests(ctx) // to write the status of Services, among others
			if err := errors.Join(err, r.Apply(ctx, rights), member(true)); err != nil {
				return err
			}
			return attack(ctx, s, r)
		})
		// The addresses of Gateways come back.
		return errors.Join(err, member(false), s.eventually(ctx, func() error { return s.unharmed(ctx) }))
	}
}

// routed has the client be a router that takes the routes of the appliance during an attack: without
// one, a lonely member of a group is spare, and gives out no addresses.
func routed(attack labAttack) labAttack {
	return func(ctx context.Context, s *testbed, r *rig.Rig) error {
		l, err := r.Listen(ctx, world.Client, clientAddr+":179")
		if err != nil {
			return err
		}
		var sessions sync.WaitGroup
		defer sessions.Wait()
		defer l.Close() //nolint:errcheck // nothing is lost with it
		ended, end := context.WithCancel(ctx)
		defer end()
		sessions.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				sessions.Go(func() {
					defer conn.Close() //nolint:errcheck // nothing is lost with it
					router := liar{conn}
					if router.establish(64512, netip.MustParseAddr(clientAddr)) != nil {
						return
					}
					sessions.Go(func() { _, _ = io.Copy(io.Discard, conn) })
					for tick := time.NewTicker(time.Second); router.say(keepaliveMessage, nil) == nil; {
						select {
						case <-ended.Done():
							return
						case <-tick.C:
						}
					}
				})
			}
		})
		full := func() error {
			status, err := r.Status(ctx)
			if err == nil && status.Group.Class != group.Full {
				err = fmt.Errorf("the appliance is %s in its group: %s", status.Group.Class, status.Group.Why)
			}
			return err
		}
		if err := s.eventually(ctx, full); err != nil {
			return err
		}
		return attack(ctx, s, r)
	}
}

// leavesPeers opens connections to HAProxy's peers, and says nothing on them. Ten of them are enough
// for HAProxy to accept no other.
func leavesPeers(ctx context.Context, s *testbed, r *rig.Rig) error {
	listening := func() error {
		out, err := r.Exec(ctx, world.Appliance, "ss", "-Htln", "sport", "=", ":7477")
		if err == nil && strings.TrimSpace(out) == "" {
			err = errors.New("HAProxy does not listen for its peers")
		}
		return err
	}
	if err := s.eventually(ctx, listening); err != nil {
		return err
	}
	reached := 0
	for range 50 {
		dial, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		c, err := r.Dial(dial, "worker2", applianceAddr+":7477")
		cancel()
		if err == nil {
			defer c.Close() //nolint:errcheck // nothing was sent
			reached++
		}
	}
	if reached > 0 {
		return fmt.Errorf("%d connections of a neighbour reach HAProxy's peers", reached)
	}
	return nil
}

// bfdDown returns a packet of RFC 5880 in the state Down.
func bfdDown(discriminator uint32, missed byte, micros uint32) []byte {
	p := make([]byte, 24)
	p[0], p[1], p[2], p[3] = 1<<5, 1<<6, missed, 24
	binary.BigEndian.PutUint32(p[4:], discriminator)
	binary.BigEndian.PutUint32(p[12:], micros)
	binary.BigEndian.PutUint32(p[16:], 1_000_000)
	return p
}

// delaysBFD sends packets that bind a session for 12 days, and does what a router does beside them:
// the appliance has to answer the router.
func delaysBFD(ctx context.Context, s *testbed, r *rig.Rig) error {
	const evil, honest = 0xbad, 0x600d
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(applianceAddr + ":3784"))
	conn, err := r.ListenUDP(ctx, world.Client, netip.MustParseAddrPort(clientAddr+":3784"), 255)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	// Its first packets show that the appliance knows the router.
	buffer := make([]byte, 100)
	heard := func() (yours uint32, err error) {
		if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return 0, err
		}
		n, _, err := conn.ReadFrom(buffer)
		if err != nil || n < 24 {
			return 0, fmt.Errorf("the appliance sends no BFD: %d bytes, %w", n, err)
		}
		return binary.BigEndian.Uint32(buffer[8:]), nil
	}
	if err := s.eventually(ctx, func() error { _, err := heard(); return err }); err != nil {
		return err
	}
	// The appliance dials a router anew after a while, and BFD begins anew with it.
	return s.eventually(ctx, func() error {
		_, err1 := conn.WriteTo(bfdDown(evil, 255, 1<<32-1), to)
		_, err2 := conn.WriteTo(bfdDown(honest, 3, 1_000_000), to)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		yours, err := heard()
		if err == nil && yours != honest {
			err = fmt.Errorf("it speaks to discriminator %#x, and not to the router's", yours)
		}
		return err
	})
}
