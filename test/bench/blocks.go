package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

var blockRows = []row{
	{14, "block announced → route in the kernel, beside BIRD", small, blocks},
}

// blocks makes worker1 announce a second block of its own, again and again, to the appliance and
// to a BIRD on the client's host, and compares when each has the route in its kernel.
func blocks(ctx context.Context, s *bench) error {
	const block = "172.16.200.0/26"
	if err := s.Apply(ctx, `
apiVersion: crd.projectcalico.org/v1
kind: BlockAffinity
metadata: {name: worker1-172-16-200-0-26}
spec: {node: worker1, cidr: `+block+`, state: confirmed, deleted: "false"}
`); err != nil {
		return err
	}
	// The lab still has to add the block to the node's own configuration. Until it has
	// done so, it would overwrite the configuration of this benchmark.
	if err := rig.Eventually(ctx, "worker1 has the route of its block", func() error {
		out, err := s.BIRD(ctx, "worker1", 4, "show", "route", block)
		if err == nil && !strings.Contains(out, block) {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		return err
	}
	session := func(neighbour, own, more string) string {
		return fmt.Sprintf("protocol bgp to_%s { local %s as 65000; neighbor %s as 65000; multihop; connect delay time 1; connect retry time 1; import all; %s; }\n",
			strings.ReplaceAll(neighbour, ".", "_"), own, neighbour, more)
	}
	conf := "router id %s;\nprotocol device {}\n"
	sender := fmt.Sprintf(conf, "192.168.50.23") + "protocol static own { route 172.16.171.64/26 blackhole; }\nprotocol static more { disabled; route " + block + " blackhole; }\n" +
		session("192.168.50.21", "192.168.50.23", "export all") + session("192.168.50.10", "192.168.50.23", "export all")
	// Two BIRDs that dial each other may collide, and then wait for a minute.
	receiver := fmt.Sprintf(conf, "192.168.50.10") + "protocol kernel { export all; }\n" +
		session("192.168.50.23", "192.168.50.10", "passive; export none")
	files := map[string]string{"sender.conf": sender, "receiver.conf": receiver}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(s.Dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	programs, err := debian.BIRD(ctx, 1, os.Stderr)
	if err != nil {
		return err
	}
	ctx, stop, err := s.Beside(ctx, world.Client, filepath.Join(programs, "bird"), "-f", "-c", s.Dir+"/receiver.conf", "-s", s.Dir+"/receiver.ctl", "-P", s.Dir+"/receiver.pid")
	if err != nil {
		return err
	}
	defer func() {
		stop()
		// A change makes the lab write the node's own BIRD configuration again.
		_, _ = s.Kubectl(context.WithoutCancel(ctx), "delete", "blockaffinity", "worker1-172-16-200-0-26")
	}()
	tell := func(want string, args ...string) error {
		out, err := s.BIRD(ctx, "worker1", 4, args...)
		if err == nil && !strings.Contains(out, want) { // birdc ends with 0 in any case
			err = fmt.Errorf("worker1: birdc %s: %s", strings.Join(args, " "), out)
		}
		return err
	}
	if err := tell("Reconfig", "configure", `"`+s.Dir+`/sender.conf"`); err != nil {
		return err
	}
	// The appliance may have the route from before, until the new session has sent all.
	if err := rig.Eventually(ctx, "the appliance has no route of the block", func() error {
		out, err := s.Exec(ctx, world.Appliance, "ip", "route", "show", block)
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		return err
	}
	ours, err := s.watchRoute(ctx, world.Appliance, block)
	if err != nil {
		return err
	}
	theirs, err := s.watchRoute(ctx, world.Client, block)
	if err != nil {
		return err
	}
	var us, them []time.Duration
	for i := range s.samples + 1 {
		began := time.Now()
		if err := tell("more: enabled", "enable", "more"); err != nil {
			return err
		}
		a, err := next(ctx, ours, true)
		if err != nil {
			return fmt.Errorf("the appliance's route: %w", err)
		}
		b, err := next(ctx, theirs, true)
		if err != nil {
			return fmt.Errorf("BIRD's route: %w", err)
		}
		if i > 0 { // the first waits for the sessions
			us, them = append(us, a.Sub(began)), append(them, b.Sub(began))
		}
		if err := tell("more: disabled", "disable", "more"); err != nil {
			return err
		}
		if _, err := next(ctx, ours, false); err != nil {
			return err
		}
		if _, err := next(ctx, theirs, false); err != nil {
			return err
		}
	}
	for _, p := range []float64{0.5, 0.99} {
		s.add(value(fmt.Sprintf("block announced → route in the kernel, p%g", p*100), percentile(us, p), "ms").beside("BIRD 1.6", percentile(them, p)).timesAtMost(1))
	}
	return nil
}

// change is a route that was added or removed, and the time.
type change struct {
	added bool
	at    time.Time
}

// watchRoute sends a change whenever a host's kernel adds or removes a route.
func (s *testbed) watchRoute(ctx context.Context, host, prefix string) (<-chan change, error) {
	ns, err := netns.GetFromName(s.Netns(host))
	if err != nil {
		return nil, err
	}
	updates, changes := make(chan netlink.RouteUpdate, 64), make(chan change, 64)
	if err := netlink.RouteSubscribeAt(ns, updates, ctx.Done()); err != nil {
		return nil, err
	}
	want := netip.MustParsePrefix(prefix).String()
	go func() {
		for u := range updates {
			if u.Dst != nil && u.Dst.String() == want {
				changes <- change{u.Type == unix.RTM_NEWROUTE, time.Now()}
			}
		}
	}()
	return changes, nil
}

// next waits until a route is there, or is gone.
func next(ctx context.Context, changes <-chan change, added bool) (time.Time, error) {
	for {
		select {
		case c := <-changes:
			if c.added == added {
				return c.at, nil
			}
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-time.After(limit):
			return time.Time{}, fmt.Errorf("nothing within %s", limit)
		}
	}
}
