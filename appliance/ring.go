package appliance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/routes/address"
)

// secondChance is the ring in the kernel. kernelRing implements it; tests use a fake.
type secondChance interface {
	Set(context.Context, address.Ring) error
	Clear(context.Context) error
	Counted(context.Context) (address.Count, error)
	Cookies() (uint64, error)
	Answers(context.Context, netip.AddrPort) bool
	Forget([]netip.Addr) (int, error)
	Guard(context.Context, address.Guard) error
	Unguard(context.Context) error
}

// kernelRing is the ring of package address.
type kernelRing struct{}

func (kernelRing) Set(ctx context.Context, r address.Ring) error { return address.SetRing(ctx, r) }

func (kernelRing) Clear(ctx context.Context) error { return address.ClearRing(ctx) }

func (kernelRing) Counted(ctx context.Context) (address.Count, error) { return address.Counted(ctx) }

func (kernelRing) Cookies() (uint64, error)            { return address.SYNCookies() }
func (kernelRing) Forget(of []netip.Addr) (int, error) { return address.Forget(of) }

// Guard and Unguard set and remove the rules for the ports of the group.
func (kernelRing) Guard(ctx context.Context, g address.Guard) error { return address.SetGuard(ctx, g) }

func (kernelRing) Unguard(ctx context.Context) error { return address.ClearGuard(ctx) }

// Answers reports whether a machine accepts or rejects a TCP connection. In both cases its kernel is
// alive. Answers tries several times: if this process got no processor for a while, the answer and the
// deadline are there at once, and Go reports the deadline.
func (kernelRing) Answers(ctx context.Context, at netip.AddrPort) bool {
	for range asks {
		conn, err := (&net.Dialer{Timeout: quickly}).DialContext(ctx, "tcp", at.String())
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			return true
		}
	}
	return false
}

const (
	// ringEvery is the time after which the same ring is set again, well within the time
	// for which the kernel follows it.
	ringEvery = 10 * time.Second
	// ringRetry is the time after which a ring that failed is tried again.
	ringRetry = time.Second
	// firstWords is how long a process that starts waits for each member to be heard. Both sides
	// need a few heartbeats to prove that theirs are no replay.
	firstWords = 2 * time.Second
	// asks is how often a round asks the machine of a member that fell silent, and quickly how long it
	// waits each time.
	asks    = 3
	quickly = 100 * time.Millisecond
	// afterwards is how long routers may take to follow a member that has changed. Until then
	// this machine closes connections that it has to forget.
	afterwards = 2 * time.Second
	// flooded is how long there is no ring after the kernel has sent a SYN cookie.
	flooded = 30 * time.Second
)

// ring is the ring that this process has set last. The goroutine of the loop owns it.
type ring struct {
	of      address.Ring
	at      time.Time // when it was set; zero if there is no ring of this process
	err     error     // why the ring could not be set
	failed  time.Time // since when setting it fails; zero if it succeeds
	passed  uint64
	dropped uint64 // beyond the limit
	cookies uint64
	counted bool      // cookies is known
	flood   time.Time // when the kernel last sent a SYN cookie
	live    map[netip.Addr]bool
	moves   moves
}

// moves remembers when service addresses have moved between members, as far as this member can
// tell.
type moves struct {
	stray  bool      // packets of other members' connections have come since it was asked last
	serve  string    // who serves, in words that differ when addresses may have moved
	at     time.Time // when that changed last
	forgot time.Time // when closed connections were forgotten last
}

// unmet reports whether there is no ring because a member has just appeared. Its first heartbeat
// comes before the kernel has its MAC address, and until the ring is there a connection that moves
// to this appliance breaks.
func (r *ring) unmet(now time.Time) bool {
	return errors.Is(r.err, address.ErrUnknown) && now.Sub(r.failed) < plan.DoubtLasts
}

func (r *ring) status() status.RingStatus {
	s := status.RingStatus{Passed: r.passed, Dropped: r.dropped}
	switch {
	case r.err != nil:
		s.Problem = r.err.Error()
	case !r.at.IsZero() && len(r.of.Members) > 0:
		s.Members = 1 + len(r.of.Members)
	}
	return s
}

// passOn keeps the ring up to date. The ring has all members that are alive, of any class, because
// a member that drains still holds connections. A member that fell silent stays in the ring while
// its machine answers, because HAProxy may still run there. Once its machine did not answer, the
// member returns with its next heartbeat.
func (ms *membership) passOn(ctx context.Context, v *status.View, heard []group.Heard, serving []netip.Addr) {
	now, r, m := v.At, &ms.ring, ms.member
	if m == nil || !m.of.SecondChance || len(m.of.Members) < 2 {
		// Rules of an earlier process have lapsed by themselves.
		if !r.at.IsZero() && ms.chance.Clear(ctx) == nil {
			*r = ring{}
		}
		return
	}
	ms.countCookies(now)
	want := ms.wantRing(ctx, v, heard, serving)
	// The rules of an earlier process still work for a while. New rules would reset two kinds of
	// connections: those of a member that has not spoken yet, and those to a listener that this
	// process does not know yet.
	silent := len(want.Silent) > 0 && now.Sub(ms.started) < firstWords
	if r.at.IsZero() && now.Sub(r.flood) >= flooded && (silent || v.Behind) {
		return
	}
	again := ringEvery
	switch {
	case r.unmet(now):
		again = 0
	case r.err != nil:
		again = ringRetry
	}
	if !r.at.IsZero() && now.Sub(r.at) < again && reflect.DeepEqual(want, r.of) {
		return
	}
	ms.setRing(ctx, now, want)
}

// countCookies notes when the kernel sends SYN cookies. Second chance then pauses.
func (ms *membership) countCookies(now time.Time) {
	r := &ms.ring
	cookies, err := ms.chance.Cookies()
	if grown := err == nil && r.counted && cookies > r.cookies; grown {
		if now.Sub(r.flood) >= flooded {
			ms.log.Warn("the kernel sends SYN cookies, so second chance pauses", "for", flooded)
		}
		r.flood = now
	}
	r.cookies, r.counted = cookies, err == nil
}

// wantRing returns the ring of the members that are alive now.
func (ms *membership) wantRing(
	ctx context.Context, v *status.View, heard []group.Heard, serving []netip.Addr,
) address.Ring {
	r, m := &ms.ring, ms.member
	want := address.Ring{Addresses: serving, Limit: m.of.SecondChanceLimit}
	// A process that starts does not know yet which of the ports are free: HAProxy may listen at
	// any of them. For a port that nothing listens on, a listener in the ring makes no difference.
	for _, b := range v.Compiled.Balancers {
		for _, a := range b.Recorded {
			for _, port := range b.Ports {
				want.Listeners = append(want.Listeners, netip.AddrPortFrom(a, port))
			}
		}
	}
	want.Listeners = once(want.Listeners, netip.AddrPort.Compare)
	for _, other := range m.of.Members {
		if other.Name == m.self {
			want.Self = other.Address
		}
	}
	live := map[netip.Addr]bool{}
	for _, h := range heard {
		a := h.Member.Address
		if !slices.Contains(m.of.Members, config.Member(h.Member)) {
			continue
		}
		live[a] = h.Alive || r.live[a] && ms.chance.Answers(ctx, netip.AddrPortFrom(a, m.of.Port))
		if live[a] && v.At.Sub(r.flood) >= flooded {
			want.Members = append(want.Members, a)
		} else {
			want.Silent = append(want.Silent, a)
		}
	}
	r.live = live
	return want
}

// setRing sets the ring in the kernel, and reads what it has counted.
func (ms *membership) setRing(ctx context.Context, now time.Time, want address.Ring) {
	r := &ms.ring
	if !reflect.DeepEqual(want, r.of) {
		ms.log.Debug("second chance changes",
			"members", want.Members, "silent", want.Silent, "addresses", want.Addresses, "listeners", want.Listeners)
	}
	was := r.err
	// The end of the process must not interrupt this command, because that would end second chance.
	r.of, r.at, r.err = want, now, ms.chance.Set(context.WithoutCancel(ctx), want)
	switch {
	case r.err == nil:
		r.failed = time.Time{}
	case was == nil:
		r.failed = now
	}
	if r.err != nil && (was == nil || was.Error() != r.err.Error()) {
		ms.log.Warn("second chance is off", "err", r.err)
	}
	if r.err == nil && len(want.Members) > 0 {
		if sum, err := ms.chance.Counted(ctx); err == nil {
			r.moves.stray = sum.Passed > r.passed
			if sum.Dropped > r.dropped {
				ms.log.Warn("more packets of unknown connections came than second chance passes on; the "+
					"rest was dropped",
					"dropped", sum.Dropped-r.dropped, "limit", want.Limit)
			}
			r.passed, r.dropped = sum.Passed, sum.Dropped
		}
	}
}

// forget forgets the closed connections of this machine at each move of an address, and once more
// when the routers have followed. Their addresses and ports may belong to new connections of
// another member. A member does not see every move: routers may hash anew, or may choose another of
// two members that have an address at once. A packet that has to be passed on is a sign of such a
// move.
func (ms *membership) forget(v *status.View, heard []group.Heard, addresses []netip.Addr) {
	now, g := v.At, &ms.member.of
	if !g.SecondChance || len(g.Members) < 2 {
		return
	}
	var serve strings.Builder
	fmt.Fprintln(&serve, ms.fit.Class, ms.member.turns.held)
	for _, h := range heard {
		fmt.Fprintln(&serve, h.Member.Name, h.Alive, h.Word.Class, h.Word.Draining)
	}
	for _, p := range v.BGP.Peers {
		if p.Upstream {
			fmt.Fprintln(&serve, p.Addr, p.State)
		}
	}
	m := &ms.ring.moves
	if who := serve.String(); who != m.serve || m.stray {
		*m = moves{serve: who, at: now}
	}
	if late := m.at.Add(afterwards); !m.forgot.IsZero() && (now.Before(late) || !m.forgot.Before(late)) {
		return
	}
	m.forgot = now
	n, err := ms.chance.Forget(addresses)
	if err != nil {
		ms.log.Warn("closed connections stay for a minute, and a client that uses a port of one again may wait as long",
			"err", err)
	}
	if n > 0 {
		ms.log.Debug("closed connections forgotten", "count", n)
	}
}
