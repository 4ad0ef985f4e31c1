package appliance

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
	"sallyport/routes/address"
)

// A process that restarts is full in its first round, before it knows anything.
func TestARestartLeavesTheClassAsItIs(t *testing.T) {
	for name, row := range map[string]struct {
		ends  func(*scene)  // the process before
		after time.Duration // the next process starts
		want  group.Class
	}{
		"it was full":          {func(*scene) {}, 2 * time.Second, group.Full},
		"it was away for long": {func(*scene) {}, time.Minute, group.Spare},
		"its clock was set":    {func(*scene) {}, -time.Hour, group.Spare},
		"it was spare": {
			func(s *scene) { s.fit = group.Fitness{Class: group.Spare} }, 2 * time.Second,
			group.Spare,
		},
		"it left": {
			func(s *scene) { s.fit = group.Fitness{Class: group.None} }, 2 * time.Second,
			group.Spare,
		},
		"it heard no other member": {
			func(s *scene) { s.ring.of.Members = nil }, 2 * time.Second,
			group.Spare,
		},
		"second chance failed": {
			func(s *scene) { s.ring.of.Members, s.ring.err = nil, address.ErrUnknown }, 2 * time.Second,
			group.Full,
		},
		"HAProxy ended with it": {
			func(s *scene) { s.proxy.err = errors.New("no such file") }, 2 * time.Second,
			group.None,
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, _ := newPair(t)
			before.pass(t, firstSteps)
			row.ends(before)
			before.bequeath(dir)

			// It has no BGP session yet.
			next := newScene(t)
			next.kernel, next.proxy = before.kernel, before.proxy
			next.loop.kernel, next.loop.proxy = next.kernel, next.proxy
			next.enterPair()
			next.clock = time.Now().Add(row.after)
			next.started = next.clock
			next.inherit(dir)
			next.pass(t, 2*time.Second)
			if next.fit.Class != row.want {
				t.Errorf("got %s (%s), want %s", next.fit.Class, next.fit.Why, row.want)
			}
			if _, err := os.Stat(filepath.Join(dir, fullFile)); err == nil {
				t.Error("the next process but one would inherit, too")
			}
			next.pass(t, 10*time.Second) // a full one stays so no longer if something fails
			if next.fit.Class == group.Full {
				t.Error("it stays full though it hears no node")
			}
		})
	}
}

// A process that crashes cannot say at its end that it was full.
func TestACrashLeavesTheClassAsItIs(t *testing.T) {
	heard := []netip.Addr{netip.MustParseAddr("192.168.50.22")}
	for name, row := range map[string]struct {
		lives time.Duration // the process, full
		then  func(*scene)
		want  group.Class
	}{
		"it has served for a while": {2 * status.Patience, func(*scene) {}, group.Full},
		// else one that crashes again and again stays full
		"it had just begun": {firstSteps, func(*scene) {}, group.Spare},
		"its ring had another member": {2 * status.Patience, func(s *scene) {
			s.ring = ring{of: address.Ring{Members: heard}, at: s.clock}
		}, group.Full},
		"it was alone by then": {2 * status.Patience, func(s *scene) {
			s.ring = ring{at: s.clock}
		}, group.Spare},
		"it was spare by then": {2 * status.Patience, func(s *scene) {
			s.fit = group.Fitness{Class: group.Spare}
		}, group.Spare},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, _ := newPair(t)
			before.started = time.Now()
			before.clock = before.started
			before.fit, before.alone = group.Fitness{Class: group.Full}, false
			before.clock = before.started.Add(row.lives)
			before.attest(dir)
			row.then(before)
			before.attest(dir)

			next := newScene(t)
			next.enterPair()
			next.started = time.Now().Add(time.Second)
			next.inherit(dir)
			if got := next.fit.Class; got != row.want && (got != "" || row.want != group.Spare) {
				t.Errorf("got %s, want %s", got, row.want)
			}
		})
	}
}

// endedRing is a kernel that is told to end its work.
type endedRing struct{ fakeRing }

func (r *endedRing) Set(ctx context.Context, of address.Ring) error {
	return errors.Join(ctx.Err(), r.fakeRing.Set(ctx, of))
}

// A process that follows another one gets its sessions one after another.
func TestSessionsThatComeOneAfterAnotherAreNotLost(t *testing.T) {
	nodes := []netip.Addr{netip.MustParseAddr("192.168.50.22"), netip.MustParseAddr("192.168.50.23")}
	for name, row := range map[string]struct {
		up, heard, left int // sessions that are up, peers heard since the start, routes of the process before
		want            bool
	}{
		"none has come":                           {0, 0, 2, false},
		"the first one is up":                     {1, 0, 2, false},
		"the first one has sent its routes":       {1, 1, 1, false},
		"the first one is lost before the second": {0, 1, 1, true},
		"all are lost":                            {0, 2, 0, true},
		"one of all that were lost is back":       {1, 2, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &loop{
				follower: follower{clusters: []*cluster{{name: "demo"}}},
				adoption: adoption{heard: map[netip.Addr]bool{}, adopted: routes.Table{}},
			}
			v := &status.View{}
			v.Settings.Config = &config.Config{}
			v.BGP.Static = map[string]time.Time{"demo": time.Now()}
			for i, node := range nodes {
				p := bgp.PeerState{Peer: bgp.Peer{Addr: node, Cluster: "demo"}, State: "Active"}
				if i < row.up {
					p.State = "Established"
				}
				v.BGP.Peers = append(v.BGP.Peers, p)
				if l.heard[node] = i < row.heard; i >= len(nodes)-row.left {
					l.adopted[routes.To(netip.PrefixFrom(node, 26).Masked())] = node
				}
			}
			if got := l.facts(v, "silent").Clusters[0].Lost; got != row.want {
				t.Errorf("lost: %t, want %t", got, row.want)
			}
		})
	}
}

// A cluster that is lost costs no connection to this member while the other clusters of its set serve.
func TestAClusterThatOthersReplaceIsNotLost(t *testing.T) {
	node := netip.MustParseAddr("192.168.50.22")
	for name, row := range map[string]struct {
		cluster string
		change  func(*status.View)
		want    bool
	}{
		"green serves nothing alone":    {"green", nil, false},
		"blue serves a Service alone":   {"blue", nil, true},
		"a cluster in no set":           {"alone", nil, true},
		"the other one is lost, too":    {"green", func(v *status.View) { v.Want.Silent = map[string]bool{"blue": true} }, true},
		"the other one is drained":      {"green", func(v *status.View) { v.Want.Drained = map[string]bool{"blue": true} }, true},
		"the only other server is away": {"green", func(v *status.View) { v.Have.Backends = haproxy.LiveBackends{} }, true},
		"blue's own Service is there no more": {"blue", func(v *status.View) {
			v.Compiled.Config.Backends = v.Compiled.Config.Backends[:1]
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &loop{
				follower: follower{clusters: []*cluster{{name: row.cluster}}},
				adoption: adoption{heard: map[netip.Addr]bool{node: true}},
			}
			v := setOfTwo()
			v.Compiled.Config.Backends = v.Config.Backends
			v.BGP.Static = map[string]time.Time{row.cluster: time.Now()}
			v.BGP.Peers = []bgp.PeerState{{Peer: bgp.Peer{Addr: node, Cluster: row.cluster}, State: "Active"}}
			if row.change != nil {
				row.change(v)
			}
			if got := l.facts(v, "silent").Clusters[0].Lost; got != row.want {
				t.Errorf("lost: %t, want %t", got, row.want)
			}
		})
	}
}

// The last round of a process may be the one that sets the ring.
func TestTheEndOfTheProcessDoesNotEndSecondChance(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	s.chance = new(endedRing)
	p.hear("", false)
	s.clock = s.clock.Add(ringEvery)
	ctx, end := context.WithCancel(t.Context())
	end()
	s.round(ctx)
	if s.ring.err != nil {
		t.Errorf("second chance is off: %v", s.ring.err)
	}
}
