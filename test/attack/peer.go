package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A liar speaks BGP (RFC 4271) in place of a node's BIRD: just enough to send any message.
type liar struct{ net.Conn }

// Types of messages (RFC 4271, 4.1).
const (
	openMessage      = 1
	updateMessage    = 2
	keepaliveMessage = 4
)

func (l liar) say(kind byte, body []byte) error {
	head := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	binary.BigEndian.PutUint16(head[16:], uint16(19+len(body)))
	_, err := l.Write(append(head, body...))
	return err
}

// hear reads messages until one is of this type.
func (l liar) hear(kind byte) error {
	for {
		var head [19]byte
		if _, err := io.ReadFull(l, head[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, l, int64(binary.BigEndian.Uint16(head[16:]))-19); err != nil {
			return err
		}
		if head[18] == kind {
			return nil
		}
	}
}

// establish completes the session, as the node of that address.
func (l liar) establish(as uint16, id netip.Addr) error {
	body := []byte{4, byte(as >> 8), byte(as), 0, 90}
	body = append(body, id.AsSlice()...)
	return errors.Join(l.say(openMessage, append(body, 0)), l.hear(openMessage), l.say(keepaliveMessage, nil),
		l.hear(keepaliveMessage))
}

// offer returns the body of an UPDATE that announces prefixes with a next hop to an iBGP peer.
func offer(hop string, prefixes ...string) []byte {
	attributes := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4} // ORIGIN IGP, an empty AS_PATH, NEXT_HOP
	attributes = append(attributes, netip.MustParseAddr(hop).AsSlice()...)
	attributes = append(attributes, 0x40, 5, 4, 0, 0, 0, 100) // LOCAL_PREF
	body := append([]byte{0, 0, 0, byte(len(attributes))}, attributes...)
	for _, p := range prefixes {
		prefix := netip.MustParsePrefix(p)
		body = append(body, byte(prefix.Bits()))
		body = append(body, prefix.Addr().AsSlice()[:(prefix.Bits()+7)/8]...)
	}
	return body
}

// asNode kills a node's BIRD, as a restart of calico-node does, and takes its place: do gets the
// first connection, dialled by the appliance to the node's BGP port or accepted by the appliance.
// Afterwards the node's BIRD runs again.
func asNode(ctx context.Context, r *rig.Rig, node world.Host, do func(liar) error) error {
	down, up := context.WithCancel(ctx)
	restarted := make(chan error, 1)
	go func() {
		err := r.RestartCalico(down, node.Name, 2*rig.Limit)
		if ctx.Err() == nil && errors.Is(err, context.Canceled) {
			err = nil
		}
		restarted <- err
	}()
	var l net.Listener
	err := rig.Eventually(ctx, "the place of BIRD is free", func() (err error) {
		l, err = r.Listen(ctx, node.Name, node.Addr.Addr().String()+":179")
		return err
	})
	if err == nil {
		err = accept(ctx, l, do)
	}
	up()
	return errors.Join(err, <-restarted)
}

// accept passes the first connection to do.
func accept(ctx context.Context, l net.Listener, do func(liar) error) error {
	defer l.Close() //nolint:errcheck // nothing is lost with it
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(rig.Limit / 3))
	conn, err := l.Accept()
	if err != nil {
		return fmt.Errorf("the appliance does not call: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost with it
	_ = conn.SetDeadline(time.Now().Add(rig.Limit))
	return do(liar{conn})
}

// kernelRoutes returns the appliance's own routes in its kernel.
func kernelRoutes(ctx context.Context, r *rig.Rig) ([]string, error) {
	out, err := r.Exec(ctx, world.Appliance, "ip", "-o", "route", "show", "proto", "78")
	var all []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) > 2 {
			all = append(all, f[0]+" via "+f[2])
		}
	}
	slices.Sort(all)
	return all, err
}

// lies announces prefixes that are not the node's own.
func lies(ctx context.Context, s *testbed, r *rig.Rig) error {
	liarNode, honest := node(r, "worker2"), node(r, "worker1")
	before, err := kernelRoutes(ctx, r)
	if err != nil {
		return err
	}
	own, other := liarNode.Blocks[0], honest.Blocks[0]
	first := func(p netip.Prefix, bits int) string {
		return netip.PrefixFrom(p.Addr(), bits).Masked().String()
	}
	me, them := liarNode.Addr.Addr().String(), honest.Addr.Addr().String()
	err = asNode(ctx, r, liarNode, func(l liar) error {
		if err := l.establish(65000, liarNode.Addr.Addr()); err != nil {
			return err
		}
		for _, o := range [][]byte{
			offer(me, own.String()), // what is its own, so that it is believed at all
			offer(me, other.String()), offer(them, other.String()),
			offer(me, first(other, 27), first(other, 32), first(other, 24), "172.16.0.0/16"),
			offer(me, "0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"),
			offer(me, "192.168.50.0/24", applianceAddr+"/32", clientAddr+"/32", them+"/32", "10.96.0.0/12",
				"127.0.0.0/8", "224.0.0.0/4"),
			offer(clientAddr, first(own, 27)), offer(applianceAddr, own.String()), offer("127.0.0.1", own.String()),
			offer("0.0.0.0", own.String()), offer(them, own.String()), offer(me, own.String()),
		} {
			if err := l.say(updateMessage, o); err != nil {
				return err
			}
		}
		return errors.Join(l.say(keepaliveMessage, nil), s.eventually(ctx, func() error {
			st, err := r.Status(ctx)
			if err == nil && st.Refused.Total < 10 {
				err = fmt.Errorf("%d offers are refused", st.Refused.Total)
			}
			return err
		}), same(ctx, r, before), s.unharmed(ctx))
	})
	return errors.Join(err, s.eventually(ctx, func() error { return same(ctx, r, before) }))
}

// same checks that every route of the appliance is one that it had before.
func same(ctx context.Context, r *rig.Rig, before []string) error {
	now, err := kernelRoutes(ctx, r)
	for _, route := range now {
		if !slices.Contains(before, route) {
			err = errors.Join(err, fmt.Errorf("route %s was not there", route))
		}
	}
	return err
}

// garbage sends bytes that are no BGP.
func garbage(ctx context.Context, s *testbed, r *rig.Rig) error {
	node := node(r, "worker2")
	before, err := kernelRoutes(ctx, r)
	if err != nil {
		return err
	}
	pid := r.Pid()
	good := offer(node.Addr.Addr().String(), node.Blocks[0].String())
	cut := func(n int) []byte { return good[:n] }
	flipped := func(i int, b byte) []byte {
		bad := slices.Clone(good)
		bad[i] = b
		return bad
	}
	bodies := [][]byte{
		nil,
		{0},
		{0xff, 0xff},
		{0, 0, 0xff, 0xff},
		cut(3), cut(7), cut(len(good) - 1), flipped(1, 200), flipped(3, 255), flipped(4, 0xff), flipped(5, 255),
		flipped(6, 255), flipped(13, 0), flipped(len(good)-5, 33), flipped(len(good)-5, 255),
		append(slices.Clone(good), bytes.Repeat([]byte{32, 1, 2, 3, 4}, 700)...), bytes.Repeat([]byte{0}, 4077),
		bytes.Repeat([]byte{0xff}, 4077),
	}
	for session := 0; session < 4 && len(bodies) > 0; session++ {
		err := asNode(ctx, r, node, func(l liar) error {
			if err := l.establish(65000, node.Addr.Addr()); err != nil {
				return err
			}
			for len(bodies) > 0 && l.say(updateMessage, bodies[0]) == nil {
				bodies = bodies[1:]
			}
			_, _ = io.WriteString(l, "GET / HTTP/1.1\r\n\r\n")
			_, _ = io.Copy(io.Discard, l) // until it has had enough
			return nil
		})
		if err != nil {
			return err
		}
	}
	if r.Pid() != pid {
		return errors.New("the appliance has ended")
	}
	return errors.Join(same(ctx, r, before), s.unharmed(ctx))
}

// node returns a host of the lab.
func node(r *rig.Rig, name string) world.Host {
	h, _ := r.Host(name)
	return h
}
