package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// rings returns the attacks on the ring in which members of a group pass packets on (second chance).
func rings() []attack {
	return []attack{{
		by: "client", tries: "sends 20,000 packets of no connection to an address of a group of three",
		promise: "a member passes on as many packets a second as group.secondChanceLimit says, and clients are " +
			"served meanwhile",
		lab: floodsRing,
	}}
}

const (
	strays = 20_000     // packets of one attack
	wide   = 10_000_000 // the greatest group.secondChanceLimit, which does not matter here
	narrow = 1000       // the least
)

// A trio is a group of three appliances behind a router, in a lab of its own.
type trio struct {
	*rig.Rig
	members []*rig.Rig
	address string // that the members serve
}

// floodsRing sends the packets to a group with a limit far above them, which shows that each of them
// travels. Then it sends them to a group with the least limit.
func floodsRing(ctx context.Context, s *testbed, _ *rig.Rig) (err error) {
	t, err := newTrio(ctx, filepath.Join(s.rig.Dir, "ring"), s.rig.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, limit := range []int{wide, narrow} {
		if err := t.run(ctx, limit); err != nil {
			return err
		}
		passed, took, err := t.flood(ctx)
		if err != nil {
			return fmt.Errorf("with a limit of %d: %w", limit, err)
		}
		fmt.Fprintf(os.Stderr, "%s with a limit of %d packets a second, %d packets are passed on %d times in %s\n",
			time.Now().Format(time.TimeOnly), limit, strays, passed, took.Round(time.Millisecond))
		// nft(8) lets a burst of a second pass at once.
		most := len(t.members) * limit * (2 + int(took/time.Second))
		switch {
		case passed > most:
			return fmt.Errorf("members passed %d packets on in %s, want %d at most", passed, took, most)
		case limit == wide && passed < strays:
			return fmt.Errorf("members passed %d packets on, so that %d of them show nothing", passed, strays)
		}
	}
	return nil
}

// newTrio brings up the lab, with the programs of another directory.
func newTrio(ctx context.Context, dir, programs string) (*trio, error) {
	err := os.MkdirAll(dir, 0o711) // HAProxy's worker, another user, passes through
	for _, program := range []string{"sallyport", "app"} {
		err = errors.Join(err, os.Symlink(filepath.Join(programs, program), filepath.Join(dir, program)))
	}
	if err := errors.Join(err, rig.Configure(dir, "")); err != nil {
		return nil, err
	}
	options := world.Options{
		Name: "attackring", Site: 2, Workers: 1, Appliances: 3, Router: world.RouterBIRD, Progress: io.Discard,
	}
	first, err := rig.New(ctx, dir, options)
	if err != nil {
		return nil, err
	}
	t := &trio{Rig: first, members: []*rig.Rig{first}, address: rig.ServiceAddresses(options)[0]}
	for n := 2; n <= options.Appliances; n++ {
		other, failed := first.Another(n)
		err = errors.Join(err, failed)
		t.members = append(t.members, other)
	}
	// The manifests name the addresses of all members.
	var flags []string
	for _, m := range t.members[1:] {
		host, _ := first.Host(m.Machine())
		flags = append(flags, "--address", host.Addr.Addr().String())
	}
	rights, failed := first.Manifests(ctx, flags...)
	err = errors.Join(err, failed, first.Apply(ctx, rights), first.Apply(ctx, strings.Join([]string{
		namespace("victim"), deployment("victim", "app"), rig.Service("victim", "app", "app"),
		ingressOf("victim", "plain", nil, rule("plain.test", path("/", "app"))),
	}, "")))
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// close ends the members and the lab.
func (t *trio) close() error {
	var errs []error
	for _, m := range t.members[1:] {
		errs = append(errs, m.Stop(syscall.SIGKILL))
	}
	return errors.Join(append(errs, t.Close())...)
}

// run starts the members with a limit, and waits until the router sends clients to each of them and
// each of them has a ring of all.
func (t *trio) run(ctx context.Context, limit int) error {
	for n, m := range t.members {
		lines := fmt.Sprintf("%s  secondChanceLimit: %d\n", t.Group(n+1), limit)
		if err := errors.Join(m.Stop(syscall.SIGTERM), rig.Configure(m.Dir, lines), m.Start(ctx)); err != nil {
			return err
		}
	}
	return rig.Eventually(ctx, "three members serve, in a ring", func() error {
		for _, m := range t.members {
			status, err := m.Status(ctx)
			if err != nil {
				return errors.Join(err, m.Alive())
			}
			if g := status.Group; !status.Ready || g == nil || g.Ring.Members != len(t.members) {
				return fmt.Errorf("%s is not ready for %q, its group is %+v", m.Machine(), status.NotReady, g)
			}
		}
		serving, err := t.Serving(ctx)
		if err == nil && len(serving) != len(t.members) {
			err = fmt.Errorf("the router sends clients to %q", serving)
		}
		return err
	})
}

// flood sends stray ACKs to the address of the group while a client asks every 20 ms, and returns how
// often members passed a packet on meanwhile.
func (t *trio) flood(ctx context.Context) (passed int, took time.Duration, err error) {
	client, _ := t.Host(world.Client)
	raw, err := t.ListenIP(ctx, world.Client, "ip4:tcp", client.Addr.Addr())
	if err != nil {
		return 0, 0, err
	}
	defer raw.Close() //nolint:errcheck // nothing is lost with it
	before, err := t.passed(ctx)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	err = t.served(ctx, func() error {
		to := &net.IPAddr{IP: net.ParseIP(t.address)}
		for i := range strays {
			if _, err := raw.WriteTo(stray(uint16(1024+i%50_000)), to); err != nil {
				return err
			}
		}
		return nil
	})
	took = time.Since(began)
	after, failed := t.passed(ctx)
	return after - before, took, errors.Join(err, failed)
}

// served calls do while clients send requests on new connections, and returns an error if one of them
// gets no good answer.
func (t *trio) served(ctx context.Context, do func() error) error {
	clients := load.Watch(ctx, load.Clients{
		Targets: []string{t.address + ":80"}, Host: "plain.test", New: 20 * time.Millisecond,
		Dial: func(ctx context.Context, at string) (net.Conn, error) { return t.Dial(ctx, world.Client, at) },
	})
	defer clients.Stop()
	if _, err := clients.During(ctx, 10, 0, func() error { return nil }); err != nil {
		return err
	}
	count, err := clients.During(ctx, 10, 0, do)
	return errors.Join(err, count.Losses())
}

// stray returns a TCP segment with the flag ACK, of a connection that nobody has.
func stray(port uint16) []byte {
	return []byte{byte(port >> 8), byte(port), 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0}
}

// passed returns how many packets the members have passed on, by the counters of their kernels.
func (t *trio) passed(ctx context.Context) (sum int, err error) {
	for _, m := range t.members {
		out, err := t.Exec(ctx, m.Machine(), "nft", "list", "counter", "ip", "sallyport_ring", "passed")
		if err != nil {
			return 0, err
		}
		n := 0
		if _, after, is := strings.Cut(out, "packets "); !is {
			return 0, fmt.Errorf("the counter of %s is %q", m.Machine(), out)
		} else if _, err := fmt.Sscan(after, &n); err != nil {
			return 0, fmt.Errorf("the counter of %s is %q: %w", m.Machine(), out, err)
		}
		sum += n
	}
	return sum, nil
}
