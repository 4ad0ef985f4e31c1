package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// endpointChanges adds an endpoint to the first Service and removes it again. It returns two
// times, both counted from the API's answer: until the server is open, and until a bare watch has
// the slice and one exchange with HAProxy's socket is done.
func (s *testbed) endpointChanges(ctx context.Context, samples int) (open, floor []time.Duration, err error) {
	slices := s.kube.DiscoveryV1().EndpointSlices("default")
	watch, err := slices.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name(0)})
	if err != nil {
		return nil, nil, err
	}
	defer watch.Stop()
	heard := make(chan time.Time, 16)
	show := "show servers state default_svc_" + name(0) + "_80"
	go func() {
		for range watch.ResultChan() {
			if _, err := s.exchange(show); err == nil {
				heard <- time.Now()
			}
		}
	}()
	<-heard // the slice as it is
	state := func(server string, present bool) error {
		deadline := time.Now().Add(limit)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for time.Now().Before(deadline) {
			answer, err := s.exchange(show)
			if err != nil {
				return err
			}
			if isOpen(answer, server) == present {
				return nil
			}
			<-tick.C
		}
		return fmt.Errorf("server %s is not as wanted within %s", server, limit)
	}
	spare := netip.MustParseAddr("172.16.171.100")
	for range 20 {
		if err := s.Allocate(ctx, "default", spare); err != nil {
			return nil, nil, err
		}
		spare = spare.Next()
	}
	for i := range samples {
		address := fmt.Sprintf("172.16.171.%d", 100+i%20)
		server := "s_" + strings.ReplaceAll(address, ".", "-") + "_8080"
		if _, err := slices.Update(ctx, s.slice(name(0), address), metav1.UpdateOptions{}); err != nil {
			return nil, nil, err
		}
		began := time.Now()
		if err := state(server, true); err != nil {
			return nil, nil, err
		}
		open = append(open, time.Since(began))
		floor = append(floor, max((<-heard).Sub(began), time.Microsecond))
		if _, err := slices.Update(ctx, s.slice(name(0)), metav1.UpdateOptions{}); err != nil {
			return nil, nil, err
		}
		if err := state(server, false); err != nil {
			return nil, nil, err
		}
		<-heard
	}
	return open, floor, nil
}

// isOpen finds a server in the answer to "show servers state": the fourth
// column is its name, the seventh its administrative state (HAProxy's
// management guide, 9.3), where 0 is open.
func isOpen(answer, server string) bool {
	for line := range strings.Lines(answer) {
		if f := strings.Fields(line); len(f) > 6 && f[3] == server {
			return f[6] == "0"
		}
	}
	return false
}

// newIngresses adds Ingresses and waits for their first 200.
func (s *testbed) newIngresses(ctx context.Context, samples int, backend bool) (took []time.Duration, err error) {
	for i := range samples {
		id := fmt.Sprintf("new-%d-%t-%d", s.size, backend, i)
		service := name(0)
		if backend {
			service = id
			if err := s.addService(ctx, id); err != nil {
				return nil, err
			}
		}
		if err := s.addIngress(ctx, id, id+".bench", service); err != nil {
			return nil, err
		}
		began := time.Now()
		at, err := s.served(id + ".bench")
		if err != nil {
			return nil, err
		}
		took = append(took, at.Sub(began))
	}
	return took, nil
}

// restart kills the appliance and starts it again. With cold it also removes HAProxy, the routes
// and all state. It returns the time until every host is served.
func (s *testbed) restart(ctx context.Context, cold bool) (time.Duration, error) {
	if err := s.Stop(syscall.SIGKILL); err != nil {
		return 0, err
	}
	if cold {
		script := "for p in $(ip netns pids " + s.Netns(world.Appliance) + "); do [ $p = $$ ] || kill -9 $p; done; ip route flush proto 78; true"
		if _, err := s.Exec(ctx, world.Appliance, "sh", "-c", script); err != nil {
			return 0, err
		}
		for _, dir := range []string{"haproxy", "run", "state"} {
			if err := os.RemoveAll(filepath.Join(s.Dir, dir)); err != nil {
				return 0, err
			}
		}
	}
	hosts := make([]string, 0, s.size)
	for i := range s.size {
		hosts = append(hosts, host(i))
	}
	began := time.Now()
	if err := s.Start(ctx); err != nil {
		return 0, err
	}
	at, err := s.served(hosts...)
	return at.Sub(began), err
}

// memory returns the resident megabytes of the appliance and of HAProxy's worker.
func (s *testbed) memory() (appliance, worker float64, err error) {
	info, err := s.exchange("show info")
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(info, "\nPid: ")
	line, _, _ := strings.Cut(after, "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0, 0, fmt.Errorf("no pid in %q", info)
	}
	ours, err1 := rig.Resident(s.Pid())
	theirs, err2 := rig.Resident(pid)
	return float64(ours) / (1 << 20), float64(theirs) / (1 << 20), errors.Join(err1, err2)
}

// idle returns the share of one processor that the appliance uses while nothing happens.
func (s *testbed) idle(ctx context.Context, span time.Duration) (float64, error) {
	before, err := rig.CPU(s.Pid())
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(span):
	}
	after, err := rig.CPU(s.Pid())
	return (after - before).Seconds() / span.Seconds(), err
}

// blocks makes worker1 announce a second block of its own, again and again, to the appliance and
// to a BIRD on the client's host, and compares when each has the route in its kernel.
func (s *testbed) blocks(ctx context.Context, t *table, samples int) error {
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
	ours, err := s.watchRoute(ctx, world.Appliance, block)
	if err != nil {
		return err
	}
	theirs, err := s.watchRoute(ctx, world.Client, block)
	if err != nil {
		return err
	}
	var us, them []time.Duration
	for i := range samples + 1 {
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
		t.beside(fmt.Sprintf("block announced → route in the kernel, p%g", p*100), percentile(us, p), percentile(them, p), "ms", "BIRD 1.6")
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
