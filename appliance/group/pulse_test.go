package group

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/test/namespace"
)

// TestMain runs the tests where lo has several IPv6 addresses.
func TestMain(m *testing.M) {
	os.Exit(namespace.Main(m, func() error {
		// a process that fuzzes prepares again
		script := `ip link set lo up && for a in fd00::11 fd00::12 fd00::13; do ip addr replace $a/128 dev lo; done`
		return exec.Command("sh", "-ec", script).Run()
	}))
}

var secret = bytes.Repeat([]byte("s"), 32)

// A network carries packets between the sockets of a test without delay.
type network struct {
	mu    sync.Mutex
	ports map[netip.Addr]*socket
	seen  []datagram                     // all packets that appliances sent
	loses func(from, to netip.Addr) bool // nil: none
	ahead map[string]time.Duration       // the clocks of some appliances
}

type datagram struct {
	from, to netip.Addr
	bytes    []byte
}

type socket struct {
	network *network
	at      netip.Addr
	inbox   chan datagram
	closed  chan struct{}
	once    sync.Once
}

func (s *socket) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case d := <-s.inbox:
		return copy(b, d.bytes), netip.AddrPortFrom(d.from, Port), nil
	case <-s.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

func (s *socket) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	d := datagram{s.at, to.Addr(), bytes.Clone(b)}
	s.network.mu.Lock()
	s.network.seen = append(s.network.seen, d)
	s.network.mu.Unlock()
	s.network.deliver(d)
	return len(b), nil
}

func (s *socket) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// deliver puts a packet on the wire, as a hostile neighbour can.
func (n *network) deliver(d datagram) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if to := n.ports[d.to]; to != nil && (n.loses == nil || !n.loses(d.from, d.to)) {
		select {
		case to.inbox <- d:
		default: // the buffer of the socket is full
		}
	}
}

// sent returns the packets from one address to another.
func (n *network) sent(from, to string) (all []datagram) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.seen {
		if d.from == addr(from) && d.to == addr(to) {
			all = append(all, d)
		}
	}
	return all
}

func (n *network) lose(f func(from, to netip.Addr) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loses = f
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// list reads members as "gate-1 192.168.50.21".
func list(members ...string) (all []Member) {
	for _, m := range members {
		name, address, _ := strings.Cut(m, " ")
		all = append(all, Member{name, addr(address)})
	}
	return all
}

var (
	gates = list("gate-1 192.168.50.21", "gate-2 192.168.50.22", "gate-3 192.168.50.23")
	one   = "192.168.50.21"
	two   = "192.168.50.22"
	three = "192.168.50.23"
)

// start starts an appliance. It runs until the test ends or the function returned is
// called.
func (n *network) start(t *testing.T, self string, members []Member, key []byte) (*Pulse, func()) {
	t.Helper()
	p, err := prepare(Options{Self: self, Members: members, Secret: key})
	if err != nil {
		t.Fatal(err)
	}
	s := &socket{network: n, at: p.self.Address, inbox: make(chan datagram, 100000), closed: make(chan struct{})}
	p.conn = s
	p.now = func() time.Time { return time.Now().Add(n.ahead[self]) }
	n.mu.Lock()
	if n.ports == nil {
		n.ports = map[netip.Addr]*socket{}
	}
	n.ports[s.at] = s
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: Run: %v", self, err)
		}
	})
	t.Cleanup(stop)
	return p, stop
}

// settle lets the given time pass, and all that is due happen.
func settle(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // time of the bubble
	synctest.Wait()
}

// says describes what a pulse hears, without times.
func says(p *Pulse) string {
	var b strings.Builder
	for _, h := range p.Heard() {
		fmt.Fprintf(&b, "%s %s %s", h.Member.Name, h.Member.Address,
			map[bool]string{true: "alive", false: "silent"}[h.Alive])
		if h.Word.Class != "" {
			fmt.Fprintf(&b, " %s", h.Word.Class)
		}
		if h.Problem != "" {
			fmt.Fprintf(&b, ": %s", h.Problem)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func wantSays(t *testing.T, who string, p *Pulse, want ...string) {
	t.Helper()
	if got := says(p); got != strings.Join(want, "\n")+"\n" {
		t.Errorf("%s hears\n%swant\n%s", who, got, strings.Join(want, "\n"))
	}
}

func knocked(p *Pulse) bool {
	select {
	case <-p.Changed():
		return true
	default:
		return false
	}
}

func TestMembersHearEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates, secret)
		g2, _ := n.start(t, "gate-2", gates, secret)
		g3, _ := n.start(t, "gate-3", gates, secret)
		g1.Say(Word{Class: "full"})
		g2.Say(Word{Class: "spare", Draining: true, Version: "v1", Config: "c", Serves: "s", Since: time.Minute})
		settle(250 * time.Millisecond)
		wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 alive spare", "gate-3 192.168.50.23 alive")
		wantSays(t, "gate-2", g2, "gate-1 192.168.50.21 alive full", "gate-3 192.168.50.23 alive")
		wantSays(t, "gate-3", g3, "gate-1 192.168.50.21 alive full", "gate-2 192.168.50.22 alive spare")
		want := Word{
			Class: "spare", Draining: true, Version: "v1", Config: "c", Serves: "s",
			Since: time.Minute + 200*time.Millisecond,
		}
		if got := g1.Heard()[0]; got.Word != want || got.Age != 50*time.Millisecond {
			t.Errorf("got %+v of age %v, want %+v of 50ms", got.Word, got.Age, want)
		}
	})
}

func TestASilentMemberIsNotAliveAfter350Milliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		_, stop := n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second) // the last heartbeat is of this moment
		stop()
		knocked(g1)
		settle(Silence - time.Millisecond)
		if wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 alive"); knocked(g1) {
			t.Error("a knock before anything changed")
		}
		settle(time.Millisecond)
		if wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 silent"); !knocked(g1) {
			t.Error("no knock when gate-2 became silent")
		}
		settle(time.Minute)
		if knocked(g1) {
			t.Error("a knock though nothing changed")
		}
		_, stop = n.start(t, "gate-2", gates[:2], secret)
		settle(Interval)
		if wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 alive"); !knocked(g1) {
			t.Error("no knock when gate-2 came back")
		}
		stop()
	})
}

func TestTwoLostHeartbeatsAreNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second + Interval/2)
		knocked(g1)
		n.lose(func(_, _ netip.Addr) bool { return true })
		settle(2 * Interval)
		n.lose(nil)
		settle(Interval)
		if knocked(g1) {
			t.Error("a knock for two lost heartbeats")
		}
	})
}

func TestAKnockForEachChangeOfAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		g2, _ := n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second)
		for _, w := range []Word{
			{Class: "full"},
			{Class: "full", Draining: true},
			{Class: "full", Config: "other"},
			{Class: "spare", Why: "a cable was cut"},
		} {
			knocked(g1)
			g2.Say(w)
			settle(Interval)
			if !knocked(g1) {
				t.Errorf("no knock for %+v", w)
			}
			g2.Say(w)
			settle(time.Second)
			if knocked(g1) {
				t.Errorf("a knock though %+v was said before", w)
			}
		}
	})
}

// Whoever drains one member after another asks the next one as soon as the router has the first.
func TestAChangeOfClassIsHeardAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		g2, _ := n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second)
		for _, w := range []Word{{Class: "spare"}, {Class: "full"}, {Class: "full", Draining: true}} {
			g2.Say(w)
			synctest.Wait()
			if got := g1.Heard()[0].Word; got.Class != w.Class || got.Draining != w.Draining {
				t.Errorf("got %+v, want %+v", got, w)
			}
		}
	})
}

func TestForgedAndReplayedPacketsDoNothingButCount(t *testing.T) {
	for _, c := range []struct {
		what  string
		count func(Counts) uint64
		send  func(n *network)
	}{
		{"changed bytes", func(c Counts) uint64 { return c.Forged }, func(n *network) {
			d := n.sent(two, one)[0]
			for i := range d.bytes {
				b := bytes.Clone(d.bytes)
				b[i] ^= 1
				n.deliver(datagram{d.from, d.to, b})
			}
		}},
		{"noise of every length", func(c Counts) uint64 { return c.Forged }, func(n *network) {
			for i := range longest + 10 {
				n.deliver(datagram{addr(two), addr(one), bytes.Repeat([]byte{'S'}, i)})
			}
		}},
		{"recorded packets of this session", func(c Counts) uint64 { return c.Replayed }, func(n *network) {
			for _, d := range n.sent(two, one) {
				n.deliver(d)
			}
		}},
		{"packets that were for another member", func(c Counts) uint64 { return c.Forged }, func(n *network) {
			for _, d := range n.sent(two, three) {
				n.deliver(datagram{d.from, addr(one), d.bytes})
			}
		}},
		{"its own packets", func(c Counts) uint64 { return c.Forged }, func(n *network) {
			for _, d := range n.sent(one, two) {
				n.deliver(datagram{d.to, d.from, d.bytes})
			}
		}},
		{"recorded packets from other addresses", func(c Counts) uint64 { return c.Unproven }, func(n *network) {
			for i, d := range n.sent(two, one) {
				n.deliver(datagram{netip.AddrFrom4([4]byte{192, 168, 50, byte(100 + i)}), d.to, d.bytes})
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				g1, _ := n.start(t, "gate-1", gates, secret)
				n.start(t, "gate-2", gates, secret)
				n.start(t, "gate-3", gates, secret)
				settle(time.Second)
				knocked(g1)
				before, counts := says(g1), g1.Counts()
				for range 20 { // two seconds of it
					c.send(n)
					settle(Interval)
				}
				if got := says(g1); got != before {
					t.Errorf("gate-1 hears\n%sbefore\n%s", got, before)
				}
				if knocked(g1) {
					t.Error("a knock though nothing changed")
				}
				if got := c.count(g1.Counts()) - c.count(counts); got == 0 {
					t.Errorf("the packets were not counted: %+v", g1.Counts())
				}
			})
		})
	}
}

// A member died. Whoever recorded its packets plays them back, of this session and of an
// earlier one, to a receiver who knows the sessions and to one that has just started.
func TestRecordedPacketsDoNotWakeADeadMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		_, stop1 := n.start(t, "gate-1", gates[:2], secret)
		_, stop2 := n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second)
		stop2()
		_, stop2 = n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second)
		stop2()
		stop1()
		recorded := n.sent(two, one)
		g1, stop1 := n.start(t, "gate-1", gates[:2], secret)
		defer stop1()
		settle(time.Second)
		for _, d := range recorded {
			n.deliver(d)
			settle(10 * time.Millisecond)
			wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 silent")
		}
		if c := g1.Counts(); c.Unproven != uint64(len(recorded)) || c.Accepted != 0 {
			t.Errorf("got %+v, want all %d unproven", c, len(recorded))
		}
	})
}

// While recorded packets pour in, a member that starts again is heard all the same.
func TestAMemberStartsAgainDuringReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		_, stop := n.start(t, "gate-2", gates[:2], secret)
		settle(time.Second)
		stop()
		recorded := n.sent(two, one)
		settle(time.Second)
		n.start(t, "gate-2", gates[:2], secret)
		for range 20 {
			for i := range 3 {
				n.deliver(recorded[i])
			}
			settle(Interval / 2)
		}
		wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 alive")
	})
}

func TestAMistakeIsASentenceOnBothSides(t *testing.T) {
	for _, c := range []struct {
		what        string
		self        string
		members     []Member
		secret      []byte
		here, there []string
	}{
		{
			"another secret", "gate-2", gates[:2], bytes.Repeat([]byte("o"), 32),
			[]string{"gate-2 192.168.50.22 silent: Packets of gate-2 at 192.168.50.22 are not signed with the secret " +
				"of this group: compare group.secret on both."},
			[]string{"gate-1 192.168.50.21 silent: Packets of gate-1 at 192.168.50.21 are not signed with the secret " +
				"of this group: compare group.secret on both."},
		},
		{
			"a name that is not in the list", "gate-9", list("gate-9 192.168.50.29", "gate-1 192.168.50.21"), secret,
			[]string{
				"gate-2 192.168.50.22 silent",
				"gate-9 192.168.50.29 silent: gate-9 at 192.168.50.29 has the secret of this group, but is not in " +
					"group.members: add it on every member, or give it another group.",
			},
			[]string{"gate-1 192.168.50.21 alive: gate-1 does not have gate-9 in its group.members: add it there."},
		},
		{
			"the name of a member with another address", "gate-2", list("gate-2 192.168.50.29", "gate-1 192.168.50.21"),
			secret,
			[]string{"gate-2 192.168.50.22 silent: Another appliance has the name gate-2, too: give each an " +
				"identity of its own.", "gate-2 192.168.50.29 silent: gate-2 speaks from 192.168.50.29, but " +
				"group.members has it at another address: there are two of this name, or one list is wrong."},
			[]string{"gate-1 192.168.50.21 alive: gate-1 has another address for gate-2 in its group.members than " +
				"192.168.50.29: there are two of this name, or one list is wrong."},
		},
		{
			"a member's name for the receiver's address", "gate-2",
			list("gate-2 192.168.50.22", "gate-8 192.168.50.21"), secret,
			[]string{"gate-2 192.168.50.22 alive: gate-2 does not have gate-1 in its group.members: add it there."},
			[]string{
				"gate-8 192.168.50.21 silent",
				"gate-1 192.168.50.21 silent: gate-1 at 192.168.50.21 has the secret of this group, but is not in " +
					"group.members: add it on every member, or give it another group.",
			},
		},
		{
			"the name of the receiver", "gate-1", list("gate-1 192.168.50.29", "gate-7 192.168.50.21"), secret,
			[]string{
				"gate-2 192.168.50.22 silent",
				"gate-1 192.168.50.29 silent: The appliance at 192.168.50.29 has the name gate-1 like this one: give " +
					"each an identity of its own.",
			},
			[]string{
				"gate-7 192.168.50.21 silent",
				"gate-1 192.168.50.21 silent: The appliance at 192.168.50.21 has the name gate-1 like this one: give " +
					"each an identity of its own.",
			},
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{}
				g1, _ := n.start(t, "gate-1", gates[:2], secret)
				settle(time.Second)
				knocked(g1)
				other, _ := n.start(t, c.self, c.members, c.secret)
				settle(3 * time.Second)
				if !knocked(g1) || !knocked(other) {
					t.Error("no knock")
				}
				wantSays(t, "gate-1", g1, c.here...)
				wantSays(t, "the other", other, c.there...)
				settle(memory)
				if knocked(g1) || knocked(other) {
					t.Error("a knock though nothing changed")
				}
				wantSays(t, "gate-1", g1, c.here...)
				wantSays(t, "the other", other, c.there...)
			})
		})
	}
}

func TestClocksThatDifferAreASentenceOnBothSides(t *testing.T) {
	for ahead, want := range map[time.Duration][2]string{
		0:                {},
		4 * time.Second:  {},
		-4 * time.Second: {},
		time.Hour: {
			": The clock of gate-2 is 1h0m0s ahead of that of gate-1: synchronise",
			": The clock of gate-1 is 1h0m0s behind that of gate-2: synchronise",
		},
		-10 * time.Second: {
			": The clock of gate-2 is 10s behind that of gate-1: synchronise",
			": The clock of gate-1 is 10s ahead of that of gate-2: synchronise",
		},
	} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{ahead: map[string]time.Duration{"gate-2": ahead}}
				g1, _ := n.start(t, "gate-1", gates[:2], secret)
				g2, stop := n.start(t, "gate-2", gates[:2], secret)
				settle(time.Second)
				for i, says := range []string{says(g1), says(g2)} {
					start := []string{"gate-2 192.168.50.22 alive", "gate-1 192.168.50.21 alive"}[i] + want[i]
					if !strings.HasPrefix(says, start) || want[i] == "" && says != start+"\n" {
						t.Errorf("member %d hears %q, want %q", i+1, says, start)
					}
				}
				knocked(g1)
				settle(time.Minute)
				if knocked(g1) {
					t.Error("a knock though nothing changed")
				}
				stop()
				settle(time.Minute)
				wantSays(t, "gate-1", g1, "gate-2 192.168.50.22 silent")
			})
		})
	}
}

// Two of one name: the true gate-2 learns it from gate-1, for the two do not speak with
// each other.
func TestTheOwnerOfANameLearnsThatAnotherHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		n.start(t, "gate-1", gates[:2], secret)
		g2, _ := n.start(t, "gate-2", gates[:2], secret)
		_, stop := n.start(t, "gate-2", list("gate-2 192.168.50.29", "gate-1 192.168.50.21"), secret)
		settle(time.Second)
		wantSays(t, "gate-2", g2,
			"gate-1 192.168.50.21 alive: gate-1 hears another appliance with the name gate-2, too: give each an "+
				"identity of its own.")
		stop()
		settle(memory + Interval)
		wantSays(t, "gate-2", g2, "gate-1 192.168.50.21 alive")
	})
}

// Two machines with one address, and the network delivers to the one that spoke last, as
// ARP does.
func TestTwoProcessesWithOneAddressAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		n.start(t, "gate-2", gates[:2], secret)
		n.mu.Lock()
		first := n.ports[addr(two)]
		n.mu.Unlock()
		n.start(t, "gate-2", gates[:2], secret)
		n.mu.Lock()
		second := n.ports[addr(two)]
		n.mu.Unlock()
		for i := range 20 {
			settle(Interval)
			n.mu.Lock()
			n.ports[addr(two)] = []*socket{first, second}[i/4%2]
			n.mu.Unlock()
		}
		wantSays(t, "gate-1", g1,
			"gate-2 192.168.50.22 alive: Two processes speak in turn as gate-2 from 192.168.50.22: give each "+
				"appliance an identity and an address of its own.")
	})
}

func TestAnotherVersionOfTheHeartbeatIsASentence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		n.deliver(datagram{addr(two), addr(one), []byte("SPG\x02whatever comes later")})
		settle(Interval)
		wantSays(t, "gate-1", g1,
			"gate-2 192.168.50.22 silent: gate-2 at 192.168.50.22 speaks another version of the heartbeat: install "+
				"one version of Sallyport on all members.")
	})
}

// A flood as fast as the kernel hands it out. Each round of it is more than the bound.
func TestAFloodCostsBoundedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		g1, _ := n.start(t, "gate-1", gates[:2], secret)
		settle(time.Second)
		before := g1.Counts().Forged
		for range 3 * most {
			n.deliver(datagram{addr(three), addr(one), []byte("noise")})
		}
		settle(Interval - time.Millisecond)
		if got := g1.Counts().Forged - before; got != most {
			t.Errorf("%d packets were read in an interval, want %d", got, most)
		}
		settle(5 * Interval)
		if got := g1.Counts().Forged - before; got != 3*most {
			t.Errorf("%d packets were read afterwards, want all %d", got, 3*most)
		}
	})
}

func TestRepliesToReplaysAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		_, stop := n.start(t, "gate-2", gates[:2], secret)
		settle(Interval)
		stop()
		d := n.sent(two, one)[0]
		n.start(t, "gate-1", gates[:2], secret)
		settle(time.Second)
		before := len(n.sent(one, two))
		for range 1000 {
			n.deliver(d)
		}
		settle(Interval)
		if got := len(n.sent(one, two)) - before; got > 1+2*replies {
			t.Errorf("1000 replays had %d packets sent", got)
		}
	})
}

func TestAForgedPacketAllocatesNothing(t *testing.T) {
	p, err := prepare(Options{Self: "gate-1", Members: gates, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	packet := bytes.Repeat([]byte("SPG\x01"), 50)
	p.handle(packet, addr(two))
	if got := testing.AllocsPerRun(100, func() { p.handle(packet, addr(two)) }); got != 0 {
		t.Errorf("a forged packet costs %v allocations", got)
	}
}

func TestBadOptionsAreSentences(t *testing.T) {
	for _, c := range []struct {
		what    string
		options Options
		want    string
	}{
		{"a short secret", Options{"gate-1", gates, secret[:31], 0}, "the secret of the group has 31 bytes"},
		{
			"not a member",
			Options{"gate-9", gates, secret, 0},
			`this appliance, "gate-9", is not in the list of members`,
		},
		{
			"one name twice",
			Options{"gate-1", list("gate-1 10.0.0.1", "gate-2 10.0.0.2", "gate-2 10.0.0.3"), secret, 0},
			"in the list twice",
		},
		{
			"one address twice",
			Options{"gate-1", list("gate-1 10.0.0.1", "gate-2 10.0.0.1"), secret, 0},
			"in the list twice",
		},
		{
			"two families",
			Options{"gate-1", list("gate-1 10.0.0.1", "gate-2 fd00::2"), secret, 0},
			"all members need addresses of one family",
		},
		{
			"a name of control characters",
			Options{"gate-1", list("gate-1 10.0.0.1", "gate\n 10.0.0.2"), secret, 0},
			`the name "gate\n" of a member`,
		},
		{
			"an address of another machine",
			Options{"gate-1", list("gate-1 192.0.2.1"), secret, 0},
			"does this machine have the address that group.members gives gate-1?",
		},
	} {
		if _, err := Listen(c.options); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.what, err, c.want)
		}
	}
}

// The real sockets, in both families.
func TestMembersHearEachOtherOverUDP(t *testing.T) {
	for family, members := range map[string][]Member{
		"IPv4": list("gate-1 127.0.0.11", "gate-2 127.0.0.12", "gate-3 127.0.0.13"),
		"IPv6": list("gate-1 fd00::11", "gate-2 fd00::12", "gate-3 fd00::13"),
	} {
		t.Run(family, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			var all []*Pulse
			for _, m := range members {
				p, err := Listen(Options{Self: m.Name, Members: members, Secret: secret, Port: 17477})
				if err != nil {
					t.Fatal(err)
				}
				p.Say(Word{Class: Class("of " + m.Name)})
				all = append(all, p)
				running.Go(func() {
					if err := p.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			for i, p := range all {
				hang := time.After(time.Minute)
				for !slices.Equal(classes(p), classesBut(members, i)) {
					select {
					case <-p.Changed():
					case <-hang:
						t.Fatalf("%s hears\n%s", members[i].Name, says(p))
					}
				}
			}
		})
	}
}

func classes(p *Pulse) (all []string) {
	for _, h := range p.Heard() {
		all = append(all, string(h.Word.Class))
	}
	return all
}

func classesBut(members []Member, i int) (all []string) {
	for j, m := range members {
		if j != i {
			all = append(all, "of "+m.Name)
		}
	}
	return all
}

// Members of different versions have to derive the same keys. The value was computed by
// another implementation of HKDF.
func TestAKeyIsOfItsSecretAndPurposeAlone(t *testing.T) {
	want := "52ca3521b6aa605e5f3db117ca2197cfa9d5f168930c168949af32ac7a26f423"
	if got := fmt.Sprintf("%x", Key(secret, "heartbeat")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := fmt.Sprintf("%x", Key(secret, "peers")); got == want {
		t.Error("two purposes have one key")
	}
}

func FuzzParse(f *testing.F) {
	m := message{
		counter: 7, verdict: doubled, name: "gate-1",
		word: Word{
			Class: "full", Draining: true, Version: "v", Config: "c", Serves: "s",
			Why: strings.Repeat("w", maxWhy), Since: time.Hour,
		}, clock: 1,
	}
	f.Add(append(m.appendTo(nil), make([]byte, signature)...))
	m.word = Word{}
	f.Add(append(m.appendTo(nil), make([]byte, signature)...))
	m.page = page{asks: true}
	f.Add(append(m.appendTo(nil), make([]byte, signature)...))
	m.page = page{number: 1, of: 2, sum: id{1}, text: "x"}
	f.Add(append(m.appendTo(nil), make([]byte, signature)...))
	m.page, m.orders = page{}, "blue+1764312345678"
	f.Add(append(m.appendTo(nil), make([]byte, signature)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := parse(b)
		if ok && !bytes.Equal(m.appendTo(nil), b[:len(b)-signature]) {
			t.Errorf("%x is read as %+v, which is written otherwise", b, m)
		}
	})
}
