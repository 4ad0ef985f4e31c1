package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/appliance/status"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// kept is how many connections the clients of a group keep.
const kept = 150

// group returns the suite of a group behind a router. By BGP the router spreads connections over
// the members, by VRRP each member has an address.
func group(members int, router world.RouterKind) suite {
	s := suite{
		name:    fmt.Sprint("bgp", members),
		suffix:  fmt.Sprintf(", %d members by BGP", members),
		options: world.Options{Name: "chaos", Workers: 2},
		asn:     65000,
	}.grouped(members, router)
	// A dead member is out when the router misses three packets of BFD, one each 0.25 s, or the next
	// member misses three advertisements of VRRP, one each 0.3 s. The clients' window is longer by the
	// requests that were under way. A SYN that was lost is sent again after 1 s, and after 3 s.
	out := 800 * time.Millisecond
	dies := bounds{others: true, slowest: 2 * time.Second}
	if router == world.RouterPlain {
		s.name, s.suffix = fmt.Sprint("vrrp", members), fmt.Sprintf(", %d members by VRRP", members)
		out, dies.slowest = 1200*time.Millisecond, 4*time.Second
	}
	dies.window, dies.gap = out+200*time.Millisecond, out+200*time.Millisecond
	s.scenarios = []scenario{
		{21, "a member drained, and back", nothing, drainMember},
		{22, "the process of a member restarted, then killed", nothing, restartMember},
		{23, "a member dies", dies, cutMember(out)},
		{24, "every member updated, one by one", nothing, updateMembers},
		{
			25, "HAProxy of a member killed",
			bounds{others: true, window: time.Second, gap: time.Second},
			killMembersHAProxy,
		},
		{26, "a member loses the nodes", bounds{window: 5 * time.Second, gap: time.Second}, cutFromNodes},
		{27, "no member reaches the API server for 20 s", nothing, apiAwayForAll},
		{28, "all members are spare", nothing, allSpare},
		{29, "a member that flaps", nothing, flap},
		{30, "the router restarts", bounds{lasting: true, window: 10 * time.Second}, restartRouter},
		{31, "the heartbeats of a member are lost", nothing, loseHeartbeats},
		{32, "the members hear nothing of each other", bounds{gap: time.Second}, split(world.AllTraffic)},
	}
	s.scenarios = append(s.scenarios, scenario{37, "the processes of all members crash at once", nothing, crashAll})
	s.scenarios = append(s.scenarios, scenario{36, "a hostile neighbour of the members", nothing, hostileNeighbour})
	if router == world.RouterPlain {
		s.scenarios = append(s.scenarios,
			scenario{33, "two members have an address at once", nothing, split(world.OnlyVRRP)},
			scenario{34, "keepalived of a member killed", nothing, killKeepalived},
		)
	} else {
		s.scenarios = append(s.scenarios, scenario{35, "the router sends a full table", nothing, floodFromRouter})
	}
	return s
}

// grouped returns a suite with so many members in place of one appliance.
func (h suite) grouped(members int, router world.RouterKind) suite {
	h.options.Appliances, h.options.Router = members, router
	h.load = []string{"-kept", strconv.Itoa(kept)}
	h.target = strings.Join(rig.ServiceAddresses(h.options), ",")
	h.manifests = append(h.manifests, addressFlags(h.options)...)
	return h
}

// addressFlags returns the flags of `sallyport manifests` for the addresses of a lab's further appliances.
func addressFlags(o world.Options) (flags []string) {
	for n := 2; n <= o.Appliances; n++ {
		flags = append(flags, "--address", fmt.Sprintf("192.168.%d.%d", 50+o.Site, 10+n))
	}
	return flags
}

// members returns all appliances.
func (s *testbed) members() []*rig.Rig { return append([]*rig.Rig{s.Rig}, s.others...) }

// last returns the member that faults befall. The observer watches the first one.
func (s *testbed) last() *rig.Rig { return s.others[len(s.others)-1] }

// serve waits until the router sends clients to these members, and to no others.
func (s *testbed) serve(ctx context.Context, members ...*rig.Rig) error {
	var want []string
	for _, m := range members {
		want = append(want, m.Machine())
	}
	return rig.Eventually(ctx, fmt.Sprint(want, " have the service addresses"), func() error {
		return s.SendsTo(ctx, want...)
	})
}

// avoid waits until the router sends clients only to other members.
func (s *testbed) avoid(ctx context.Context, m *rig.Rig) error {
	return rig.Eventually(ctx, m.Machine()+" gets no clients", func() error {
		got, err := s.Serving(ctx)
		if err == nil && (len(got) == 0 || slices.Contains(got, m.Machine())) {
			err = fmt.Errorf("the router sends clients to %q", got)
		}
		return err
	})
}

// without returns all members but one.
func (s *testbed) without(m *rig.Rig) []*rig.Rig {
	return slices.DeleteFunc(s.members(), func(o *rig.Rig) bool { return o == m })
}

// spread has the clients keep other connections, so that each member has some. Those of a member
// that was drained have gone to the others, and stay there.
func (s *testbed) spread(ctx context.Context) error {
	if len(s.others) == 0 {
		return nil
	}
	var before report
	if err := errors.Join(s.load.Say(spreading), s.load.Hear(&before)); err != nil {
		return err
	}
	return rig.Eventually(ctx, "each member has a fair share of the kept connections", func() error {
		for _, m := range s.members() {
			if has, err := s.connections(ctx, m); err != nil || len(has) < kept/len(s.members())/2 {
				return errors.Join(err, fmt.Errorf("%s has %d", m.Machine(), len(has)))
			}
		}
		return nil
	})
}

// connections returns the connections to a member's HAProxy, as load.Ends has them.
func (s *testbed) connections(ctx context.Context, m *rig.Rig) (all []string, err error) {
	sockets, err := s.sockets(ctx, m.Machine(), "state", "established", "( sport = :80 or sport = :443 )")
	for _, at := range sockets {
		all = append(all, at.peer+" > "+at.local)
	}
	return all, err
}

// forgets waits until a member has no connections that the client does not have.
func (s *testbed) forgets(ctx context.Context, m *rig.Rig) error {
	return rig.Eventually(ctx, m.Machine()+" has forgotten connections that are gone", func() error {
		has, err := s.connections(ctx, m)
		if err != nil {
			return err
		}
		sockets, err := s.sockets(ctx, world.Client, "state", "all", "( dport = :80 or dport = :443 )")
		if err != nil {
			return err
		}
		known := map[string]bool{}
		for _, at := range sockets {
			known[at.local+" > "+at.peer] = true
		}
		if gone := slices.DeleteFunc(has, func(ends string) bool { return known[ends] }); len(gone) > 0 {
			return fmt.Errorf("it has %d of them", len(gone))
		}
		return nil
	})
}

// A socket is a TCP socket of a host, with both its addresses and ports.
type socket struct{ local, peer string }

// sockets returns the sockets of a host that match a filter of ss(8).
func (s *testbed) sockets(ctx context.Context, host string, filter ...string) (all []socket, err error) {
	out, err := s.Exec(ctx, host, append([]string{"ss", "-Htn"}, filter...)...)
	for line := range strings.Lines(out) {
		f := strings.Fields(line) // the state first, unless there is only one; the addresses last
		if len(f) < 4 {
			continue
		}
		local, bad := netip.ParseAddrPort(f[len(f)-2])
		peer, worse := netip.ParseAddrPort(f[len(f)-1])
		if bad == nil && worse == nil {
			all = append(all, socket{unmapped(local), unmapped(peer)})
		}
	}
	return all, err
}

func unmapped(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
}

// remember notes which connections the other members have now. They may not break.
func (s *testbed) remember(ctx context.Context, m *rig.Rig) error {
	for _, member := range s.members() {
		has, err := s.connections(ctx, member)
		if err != nil {
			return err
		}
		if member == m {
			s.note("the member had %d connections", len(has))
			continue
		}
		for _, ends := range has {
			s.theirs[ends] = true
		}
	}
	return nil
}

// run runs a command of sallyport for a member.
func command(ctx context.Context, m *rig.Rig, args ...string) error {
	if out, err := m.Run(ctx, args...); err != nil {
		return fmt.Errorf("%s: sallyport %s: %w: %s", m.Machine(), strings.Join(args, " "), err, out)
	}
	return nil
}

func drainMember(ctx context.Context, s *testbed) error {
	if err := errors.Join(command(ctx, s.last(), "drain", "--wait"), s.serve(ctx, s.without(s.last())...)); err != nil {
		return err
	}
	return errors.Join(command(ctx, s.last(), "undrain"), s.serve(ctx, s.members()...))
}

func restartMember(ctx context.Context, s *testbed) error {
	m := s.last()
	if err := errors.Join(m.Stop(syscall.SIGTERM), s.serve(ctx, s.without(m)...), m.Start(ctx),
		s.settle(ctx)); err != nil {
		return err
	}
	return errors.Join(s.crash(ctx, m, s.members()...), m.Start(ctx), s.settle(ctx))
}

// crash kills the process of a member, and waits until the clients have met that. By BGP the router still
// sends clients to these members, the dead one among them. Here keepalived is a child of the process, and
// ends with it.
func (s *testbed) crash(ctx context.Context, m *rig.Rig, serving ...*rig.Rig) error {
	if err := m.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	if s.Options().Router != world.RouterBIRD {
		return s.avoid(ctx, m)
	}
	return errors.Join(rig.Pause(ctx, 2*time.Second), s.serve(ctx, serving...))
}

// crashAll kills the processes of all members in the same moment, and starts them again later.
func crashAll(ctx context.Context, s *testbed) error {
	var pids []int
	for _, m := range s.members() {
		pids = append(pids, m.Pid())
	}
	if err := faults.Kill(pids...); err != nil {
		return err
	}
	err := rig.Pause(ctx, 4*time.Second)
	for _, m := range s.members() {
		err = errors.Join(err, m.Stop(syscall.SIGKILL), m.Start(ctx)) // Stop waits for the end
	}
	for _, m := range s.members() {
		err = errors.Join(err, m.Ready(ctx))
	}
	return err
}

// cutMember takes the cable of a member away, and then gives it back. limit bounds the time in which
// the router sends clients to the dead member.
func cutMember(limit time.Duration) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		m := s.last()
		w, err := s.watch(m)
		if err != nil {
			return err
		}
		defer w.close()
		type outcome struct {
			lasts time.Duration
			err   error
		}
		seen := make(chan outcome, 1)
		go func() {
			lasts, err := w.lasts(ctx)
			seen <- outcome{lasts, err}
		}()
		if err := errors.Join(s.KillNode(ctx, m.Machine()), s.remember(ctx, m)); err != nil {
			return err
		}
		router := <-seen
		s.note("the router sent clients to the dead member for %d ms", router.lasts.Milliseconds())
		if router.lasts > limit {
			s.fail("the router sent clients to the dead member for %d ms, at most %s is allowed",
				router.lasts.Milliseconds(), limit)
		}
		err = errors.Join(router.err, s.serve(ctx, s.without(m)...), rig.Pause(ctx, 2*time.Second))
		if err = errors.Join(err, s.ReviveNode(ctx, m.Machine()), s.serve(ctx, s.members()...)); err != nil {
			return err
		}
		back := time.Now()
		err = s.forgets(ctx, m)
		s.note("the member had connections that its clients have not, until %.1f s after it served again",
			time.Since(back).Seconds())
		return err
	}
}

// updateMembers ends all that runs on a member and starts a new program, as an update does, then
// goes on to the next one.
func updateMembers(ctx context.Context, s *testbed) error {
	if err := s.replaceProgram(); err != nil {
		return err
	}
	for _, m := range s.members() {
		if err := errors.Join(command(ctx, m, "drain", "--wait"), s.serve(ctx, s.without(m)...)); err != nil {
			return err
		}
		if err := errors.Join(faults.KillHAProxy(ctx, m), m.Stop(syscall.SIGTERM), m.Start(ctx), m.Ready(ctx)); err != nil {
			return err
		}
		if err := errors.Join(command(ctx, m, "undrain"), s.settle(ctx)); err != nil {
			return err
		}
	}
	return nil
}

func killMembersHAProxy(ctx context.Context, s *testbed) error {
	return errors.Join(s.remember(ctx, s.last()), faults.KillHAProxy(ctx, s.last()), rig.Pause(ctx, 2*time.Second))
}

// cutFromNodes keeps a member from hearing the nodes. The router and the other members still hear
// it.
func cutFromNodes(ctx context.Context, s *testbed) error {
	m := s.last()
	cut := faults.Cut(s.Rig, m.Machine(), world.AllTraffic, world.Master, "worker1", "worker2")
	return cut.During(ctx, func() error {
		return errors.Join(s.serve(ctx, s.without(m)...), rig.Pause(ctx, 2*time.Second))
	})
}

// noAPI is an API server that no member reaches.
func (s *testbed) noAPI() faults.Fault {
	var all []faults.Fault
	for _, m := range s.members() {
		all = append(all, faults.API(s.Rig, m.Machine()))
	}
	return faults.All(all...)
}

func apiAwayForAll(ctx context.Context, s *testbed) error {
	return s.noAPI().During(ctx, func() error {
		err := rig.Pause(ctx, 20*time.Second)
		for _, m := range s.members() {
			st, serr := m.Status(ctx)
			if err = errors.Join(err, serr); serr == nil && st.Group.Class != "full" {
				s.fail("%s is %s: %s", m.Machine(), st.Group.Class, st.Group.Why)
			}
		}
		return err
	})
}

// allSpare restarts all members, one by one, while none of them reaches the API server: they serve
// what they remember. The members that have not restarted yet are full, so the router prefers them.
func allSpare(ctx context.Context, s *testbed) error {
	return s.noAPI().During(ctx, func() error {
		all := s.members()
		for i, m := range all {
			if err := errors.Join(s.crash(ctx, m, all[i:]...), m.Start(ctx), s.isSpare(ctx, m)); err != nil {
				return err
			}
		}
		return errors.Join(s.serve(ctx, all...), rig.Pause(ctx, 3*time.Second))
	})
}

// isSpare waits until a member is spare, and the router knows it.
func (s *testbed) isSpare(ctx context.Context, m *rig.Rig) error {
	return rig.Eventually(ctx, m.Machine()+" is spare", func() error {
		st, err := m.Status(ctx)
		if err != nil {
			return err
		}
		if st.Group == nil {
			return errors.New("it has had no round yet")
		}
		unknown := s.Options().Router == world.RouterBIRD && len(st.Group.Addresses[0].Announced) == 0
		if st.Group.Class != "spare" || unknown {
			return fmt.Errorf("group %+v", st.Group)
		}
		return nil
	})
}

func flap(ctx context.Context, s *testbed) error {
	m := s.last()
	for range 5 {
		if err := errors.Join(m.Stop(syscall.SIGTERM), s.serve(ctx, s.without(m)...), m.Start(ctx),
			s.serve(ctx, s.members()...)); err != nil {
			return err
		}
	}
	return nil
}

// restartRouter restarts BIRD on the router. One without BIRD forgets its neighbours.
func restartRouter(ctx context.Context, s *testbed) error {
	if s.Options().Router == world.RouterBIRD {
		return s.RestartRouter(ctx, time.Second)
	}
	_, err := s.Exec(ctx, world.Router, "ip", "neigh", "flush", "dev", "eth0")
	return err
}

// pairs calls do for each two of the members.
func pairs(members []*rig.Rig, do func(a, b string) error) (err error) {
	for i, a := range members {
		for _, b := range members[:i] {
			err = errors.Join(err, do(a.Machine(), b.Machine()))
		}
	}
	return err
}

// loseHeartbeats drops the heartbeats between a member and the others.
func loseHeartbeats(ctx context.Context, s *testbed) error {
	m := s.last()
	var others []string
	for _, other := range s.without(m) {
		others = append(others, other.Machine())
	}
	cut := faults.Cut(s.Rig, m.Machine(), world.OnlyHeartbeat, others...)
	if err := cut.Make(ctx); err != nil {
		return err
	}
	err := rig.Eventually(ctx, m.Machine()+" is silent", func() error {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(st.Group.Members, func(o status.MemberStatus) bool { return o.Name == m.Machine() })
		if i < 0 || st.Group.Members[i].Alive {
			return fmt.Errorf("members %+v", st.Group.Members)
		}
		return nil
	})
	return errors.Join(err, rig.Pause(ctx, 5*time.Second), cut.Mend(ctx))
}

// split returns a fault that drops packets among the members, long enough for two masters of
// VRRP to claim an address twice each.
func split(what world.Traffic) func(context.Context, *testbed) error {
	return func(ctx context.Context, s *testbed) error {
		err := pairs(s.members(), func(a, b string) error { return s.Partition(ctx, a, b, what) })
		err = errors.Join(err, rig.Pause(ctx, 12*time.Second))
		return errors.Join(err, pairs(s.members(), func(a, b string) error { return s.Heal(ctx, a, b) }))
	}
}

func killKeepalived(ctx context.Context, s *testbed) error {
	pids := func() ([]string, error) {
		out, err := s.Exec(ctx, s.last().Machine(), "pgrep", "-f", "^[^ ]*keepalived .*"+s.last().Dir+"/run/vrrp/")
		return strings.Fields(out), err
	}
	killed, err := pids()
	if err != nil {
		return err
	}
	for _, word := range killed {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return err
		}
		if err := faults.Kill(pid); err != nil { // one may have followed the other
			return err
		}
	}
	err = rig.Eventually(ctx, "keepalived runs again", func() error {
		now, err := pids()
		if err == nil && (len(now) < len(killed) || slices.ContainsFunc(now, func(p string) bool {
			return slices.Contains(killed, p)
		})) {
			err = fmt.Errorf("processes %q", now)
		}
		return err
	})
	return errors.Join(err, rig.Pause(ctx, 3*time.Second))
}

// floodFromRouter makes the router announce far more to a member than an upstream router may.
func floodFromRouter(ctx context.Context, s *testbed) error {
	m := s.last()
	if err := s.FloodFromRouter(m.Machine(), 20000); err != nil {
		return err
	}
	err := s.serve(ctx, s.without(m)...)
	err = errors.Join(err, rig.Eventually(ctx, m.Machine()+" reports it", func() error {
		st, err := m.Status(ctx)
		if err != nil {
			return err
		}
		for _, p := range st.Peers {
			if p.Upstream && strings.Contains(p.LossReason, "prefixes") {
				s.note("the session was lost: %s; warnings: %q", p.LossReason, st.Warnings)
				return nil
			}
		}
		return fmt.Errorf("peers %+v", st.Peers)
	}))
	return errors.Join(err, rig.Pause(ctx, 3*time.Second), s.FloodFromRouter(m.Machine(), 0))
}
