package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/appliance/group"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// kept is how many connections the clients of a group keep.
const kept = 60

// witnesses are clients behind the router: each 10 ms one sends a request on a connection of its
// own, and some ask again and again on a connection that they keep. Two hundred requests a second are
// what one HAProxy serves while the machine compiles and tests something else.
type witnesses struct {
	*load.Witness
	r       *testbed
	members []member // whose logs tell what happened when requests fail
}

// witnesses sends clients to the addresses of the group, and to others.
func (r *testbed) witnesses(members []member, others ...string) *witnesses {
	r.t.Helper()
	clients := load.Clients{Host: "test.local", New: 10 * time.Millisecond, Kept: kept, Every: 600 * time.Millisecond}
	for _, address := range slices.Concat(rig.ServiceAddresses(r.Options()), others) {
		clients.Targets = append(clients.Targets, address+":80")
	}
	clients.Dial = r.fromClient
	return &witnesses{load.Watch(r.t.Context(), clients), r, members}
}

// fromClient dials from the client's host.
func (r *testbed) fromClient(ctx context.Context, address string) (net.Conn, error) {
	return r.Dial(ctx, world.Client, address)
}

// during calls do while the clients ask, and returns what failed until enough requests more were
// answered.
func (w *witnesses) during(do func()) load.Count {
	w.r.t.Helper()
	count, err := w.During(w.r.t.Context(), 200, 3*kept, func() error { do(); return nil })
	w.r.must(err)
	return count
}

// undisturbed calls do while the clients ask. Nothing may fail.
func (w *witnesses) undisturbed(do func()) {
	w.r.t.Helper()
	w.noLosses(w.during(do))
}

// noLosses fails the test if something was lost, and shows the logs of that time.
func (w *witnesses) noLosses(count load.Count) {
	w.r.t.Helper()
	err := count.Losses()
	if err == nil {
		return
	}
	w.r.t.Error(err)
	failed := slices.Concat(count.Failed, count.Broken)
	byTime := func(a, b load.Outcome) int { return a.Began.Compare(b.Began) }
	from := slices.MinFunc(failed, byTime).Began.Add(-5 * time.Second)
	to := slices.MaxFunc(failed, byTime).Began.Add(5 * time.Second)
	for _, m := range w.members {
		w.r.t.Logf("log of %s then:\n%s", m.Machine(), between(m.log(), from, to))
	}
}

// between returns the last 100 lines of a log in a time, without those of GoBGP.
func between(text string, from, to time.Time) string {
	var lines []string
	for line := range strings.Lines(text) {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339, stamp)
		if err == nil && !at.Before(from) && !at.After(to) && !strings.Contains(line, "gobgp: ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-100):], "")
}

// A member is an appliance of the group.
type member struct{ *testbed }

// secondPeering is the address of the second appliance, which the manifests name.
const secondPeering = "192.168.50.12"

// newMembers brings up a lab with two appliances that are configured as a group, and do not run yet.
// Their part group has further lines. Where addresses move by VRRP, the cluster is a set of its own.
func newMembers(t *testing.T, opts world.Options, lines string) (a, b member) {
	t.Helper()
	opts.Appliances = 2
	cluster := rig.Cluster{Pools: "172.16.0.0/16"}
	if opts.GatewayAPI != "" {
		cluster.Gateway = []string{"enabled: true"}
	}
	if opts.Router == world.RouterPlain {
		cluster.Keys = []string{"set: alone", "share: all"}
	}
	first := newTestbed(t, opts,
		settings{clusters: []rig.Cluster{cluster}, manifests: []string{"--address", secondPeering}})
	other, err := first.Another(2)
	first.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(other.LogFile())
			t.Logf("log of the second:\n%s", tail(string(text), 150))
		}
		if err := other.Stop(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	a, b = member{first}, member{&testbed{Rig: other, t: t}}
	for n, m := range []member{a, b} {
		first.must(rig.Configure(m.Dir, "log: {level: debug}\n"+first.Group(n+1)+lines, cluster))
	}
	return a, b
}

// permitGroup applies the manifests of the group. They have rights that one appliance does not need.
func (r *testbed) permitGroup() {
	r.t.Helper()
	manifests, err := r.Manifests(r.t.Context(), "--address", secondPeering)
	r.must(err)
	r.apply(manifests)
}

// pair brings up a lab with two appliances that are a group, the sample application behind an
// Ingress and behind two Services of type LoadBalancer, and clients that reach it each way. The
// router sends clients to the first one, and to the second.
func pair(t *testing.T, name string, router world.RouterKind) (first *testbed, a, b member, clients *witnesses) {
	t.Helper()
	opts := world.Options{Name: name, Workers: 2, Router: router}
	pool := netip.MustParsePrefix(rig.ServicePool(opts))
	// Clients keep their connections, so a drain takes as long as it may.
	a, b = newMembers(t, opts, "  pools: ["+pool.String()+"]\n  drain: {timeout: 15s}\n")
	first = a.testbed
	first.permitGroup()
	sample, err := os.ReadFile("../demo/app.yaml")
	first.must(err)
	first.apply(string(sample))
	a.start()
	b.start()
	a.ready()
	b.ready()
	// By VRRP two neighbours belong to different members.
	services := []string{pool.Addr().Next().String(), pool.Addr().Next().Next().String()}
	for i, address := range services {
		first.apply(strings.Replace(balancer, "name: web\n",
			fmt.Sprintf("name: web-%d\n  annotations: {sallyport.dev/address: \"%s\"}\n", i, address), 1))
	}
	for _, address := range services {
		first.eventually("the Service at "+address+" answers behind the router", func() error {
			return first.asks(address + ":80")
		})
	}
	clients = first.witnesses([]member{a, b}, services...)
	t.Cleanup(clients.Stop)
	first.spread(a, b)
	clients.during(func() {})
	clients.undisturbed(func() {})
	return first, a, b, clients
}

// spread waits until exactly these members are full, by their own word, and the router sends
// clients to them alone.
func (r *testbed) spread(to ...member) {
	r.t.Helper()
	var want []string
	for _, m := range to {
		want = append(want, m.Machine())
		r.eventually(m.Machine()+" is full", func() error {
			s, err := m.status()
			if err == nil && (s.Group == nil || s.Group.Class != group.Full) {
				err = fmt.Errorf("group %+v", s.Group)
			}
			return err
		})
	}
	r.eventually(fmt.Sprint(want, " have the service addresses"), func() error {
		return r.SendsTo(r.t.Context(), want...)
	})
}

// sends demands that the router sends clients to exactly these members now.
func (r *testbed) sends(to ...member) {
	r.t.Helper()
	var want []string
	for _, m := range to {
		want = append(want, m.Machine())
	}
	if err := r.SendsTo(r.t.Context(), want...); err != nil {
		r.t.Error(err)
	}
}

// Two groups run beside each other, before all other tests: no request may fail, and on a busy machine some would be
// late.
func TestNoRequestFailsWhileMembersLeave(t *testing.T) {
	t.Run("BGP", func(t *testing.T) {
		t.Parallel()
		leaveAndReturn(t, "group", world.RouterBIRD)
	})
	t.Run("VRRP", func(t *testing.T) {
		t.Parallel()
		leaveAndReturn(t, "vrrp", world.RouterPlain)
	})
}

func leaveAndReturn(t *testing.T, name string, router world.RouterKind) {
	t.Helper()
	first, a, b, clients := pair(t, name, router)
	first.sub("a member is drained, and returns", func(t *testing.T, r *testbed) {
		clients.r = r
		clients.undisturbed(func() {
			b.command(t, "drain", "--wait")
			r.spread(a)
		})
		clients.undisturbed(func() {
			b.command(t, "undrain")
			r.spread(a, b)
		})
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		first.sub("the process of a member ends by "+signal.String()+", and starts again",
			func(_ *testing.T, r *testbed) {
				clients.r = r
				clients.undisturbed(func() {
					b.end(signal)
					if signal == syscall.SIGKILL && router == world.RouterBIRD {
						return // the process for the router lives
					}
					r.spread(a)
				})
				if signal == syscall.SIGKILL && router == world.RouterBIRD {
					r.sends(a, b)
				}
				clients.undisturbed(func() {
					b.start()
					b.ready()
					r.spread(a, b)
				})
			})
	}
	if router == world.RouterPlain {
		first.sub("an order about a cluster is for all members, and outlives their processes",
			func(t *testing.T, r *testbed) {
				clients.r = r
				clients.undisturbed(func() {
					a.command(t, "drain", "--cluster", "default", "--partial")
					b.roleOf("default", "drained")
					a.end(syscall.SIGTERM)
					r.spread(b)
					b.command(t, "undrain", "--cluster", "default")
					b.roleOf("default", "active")
				})
				clients.undisturbed(func() {
					a.start() // its file says that the cluster is drained
					a.ready()
					r.spread(a, b)
					a.roleOf("default", "active")
				})
				b.roleOf("default", "active")
			})
	}
	if router == world.RouterBIRD {
		for _, name := range []string{"all processes crash at once", "all processes crash again, soon after"} {
			first.sub(name, func(_ *testing.T, r *testbed) {
				clients.r = r
				clients.undisturbed(func() {
					a.end(syscall.SIGKILL)
					b.end(syscall.SIGKILL)
				})
				r.sends(a, b)
				clients.undisturbed(func() {
					a.start()
					b.start()
					a.ready()
					b.ready()
					r.spread(a, b)
				})
			})
		}
		first.sub("HAProxy dies while its process is gone", func(_ *testing.T, r *testbed) {
			clients.r = r
			worker := b.mustStatus().HAProxy.Worker
			b.end(syscall.SIGKILL)
			clients.during(func() {
				r.must(syscall.Kill(worker, syscall.SIGKILL))
				r.spread(a)
			})
			clients.during(func() {
				b.start()
				b.ready()
				r.spread(a, b)
			})
			clients.undisturbed(func() {})
		})
	}
	first.sub("a member loses its cable", func(t *testing.T, r *testbed) {
		clients.r = r
		count := clients.during(func() {
			r.must(r.KillNode(t.Context(), world.ApplianceHost(2)))
			r.spread(a)
		})
		if len(count.Broken) >= kept {
			t.Errorf("all %d kept connections broke, want those of the lost member alone", len(count.Broken))
		}
		if failed := count.Failed; len(failed) > 0 {
			t.Logf("%d requests failed, begun within %s", len(failed),
				failed[len(failed)-1].Began.Sub(failed[0].Began).Round(time.Millisecond))
		}
		clients.undisturbed(func() {}) // the other has all of it now
		r.must(r.ReviveNode(t.Context(), world.ApplianceHost(2)))
		r.spread(a, b)
		clients.during(func() {})
		clients.undisturbed(func() {})
	})
}

// command runs sallyport on the member's host.
func (m member) command(t *testing.T, args ...string) {
	t.Helper()
	out, err := m.Run(t.Context(), args...)
	if err != nil {
		t.Fatalf("sallyport %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
