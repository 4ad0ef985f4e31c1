package bgp

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/routes"
	"sallyport/test/wait"
)

func TestNodesAreHeardInBothFamiliesAndBothKindsOfAS(t *testing.T) {
	t.Parallel()
	blocks := [2][2]string{{"172.16.171.64/26", "172.16.189.64/26"}, {"fd00:10:1::/122", "fd00:10:1::40/122"}}
	for name, row := range map[string]struct {
		family int
		ours   uint32
		path   string
		active bool
		local  uint32 // our AS in this session, if it is another one
	}{
		"IPv4, same AS":           {0, 65000, "[]", false, 0},
		"IPv4, same AS, dialled":  {0, 65000, "[]", true, 0},
		"IPv4, other AS":          {0, 65010, "[65000]", false, 0},
		"IPv4, other AS, dialled": {0, 65010, "[65000]", true, 0},
		"IPv6, same AS":           {1, 65000, "[]", false, 0},
		"IPv6, same AS, dialled":  {1, 65000, "[]", true, 0},
		"IPv6, other AS":          {1, 65010, "[65000]", false, 0},
		"IPv6, other AS, dialled": {1, 65010, "[65000]", true, 0},
		"4-byte AS":               {0, 4200000001, "[65000]", false, 0},
		"4-byte AS, dialled":      {0, 4200000001, "[65000]", true, 0},

		"same AS in this session":           {0, 65010, "[]", false, 65000},
		"same AS in this session, dialled":  {0, 65010, "[]", true, 65000},
		"other AS in this session":          {0, 65000, "[65000]", false, 4200000001},
		"other AS in this session, dialled": {1, 65000, "[65000]", true, 4200000001},
	} {
		t.Run(name, func(t *testing.T) {
			variant(t, row.active != (row.family == 1))
			t.Parallel()
			s := newSite(t)
			n := s.node(t)
			sp := s.speaker(t, row.ours, 0, usualPace)
			at, first, second := n.addr[row.family], blocks[row.family][0], blocks[row.family][1]
			sp.set(t, Peer{
				Cluster: "main", Node: "worker", Addr: at, ASN: 65000, LocalASN: row.local, Active: row.active,
			})
			b := n.bird(t, birdConfig{
				v6: row.family == 1, us: s.us[row.family], asn: 65000, ours: cmp.Or(row.local, row.ours),
				blocks: []string{first},
			})

			sp.waitUp(t, at)
			offer := func(block string) string { return fmt.Sprintf("%s via %s path %s", block, at, row.path) }
			sp.waitOffers(t, at, offer(first))
			all, err := sp.Offers()
			if err != nil {
				t.Fatal(err)
			}
			if got := all[0]; got.Cluster != "main" || got.PeerAS != 65000 || got.Lost != (routes.Loss{}) ||
				got.Since.IsZero() {
				t.Errorf("offer is %+v", got)
			}

			b.setBlocks(first, second)
			sp.waitOffers(t, at, offer(first), offer(second))
			b.setBlocks(second)
			sp.waitOffers(t, at, offer(second))
			if got := sp.peer(t, at); got.Received != 1 || got.Flaps != 0 {
				t.Errorf("peer is %+v, want one prefix and no flap", got)
			}
		})
	}
}

func TestHowASessionEndsIsToldByTheOffersItLeaves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		end  func(*testing.T, *node, *bird)
		want routes.Cause
		back func(*testing.T, *node, *bird)
	}{
		"killed": {
			end:  func(_ *testing.T, _ *node, b *bird) { b.kill() },
			want: routes.Closed,
			back: func(_ *testing.T, _ *node, b *bird) { b.start() },
		},
		"disabled": {
			end:  func(_ *testing.T, _ *node, b *bird) { b.ctl("disable", "appliance") },
			want: routes.Notified,
			back: func(_ *testing.T, _ *node, b *bird) { b.ctl("enable", "appliance") },
		},
		"given new settings": {
			end: func(_ *testing.T, _ *node, b *bird) {
				b.config.session = "  hold time 60;\n"
				b.write()
				b.ctl("configure")
			},
			want: routes.Reconfigured,
			back: func(*testing.T, *node, *bird) {},
		},
		"terminated": {
			end: func(t *testing.T, _ *node, b *bird) {
				if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				_ = b.cmd.Wait()
			},
			want: routes.Notified,
			back: func(_ *testing.T, _ *node, b *bird) { b.start() },
		},
		"cable pulled": {
			end:  func(t *testing.T, n *node, _ *bird) { n.run(t, "ip", "link", "set", "eth0", "down") },
			want: routes.HoldExpired,
			back: func(t *testing.T, n *node, _ *bird) { n.run(t, "ip", "link", "set", "eth0", "up") },
		},
	} {
		for mode, active := range map[string]bool{"it dials": false, "we dial": true} {
			t.Run(name+", "+mode, func(t *testing.T) {
				variant(t, active)
				t.Parallel()
				s := newSite(t)
				n := s.node(t)
				sp := s.speaker(t, 65000, 3*time.Second, usualPace)
				at := n.addr[0]
				sp.set(t, Peer{Addr: at, ASN: 65000, Active: active})
				b := n.bird(t, birdConfig{
					us: s.us[0], asn: 65000, ours: 65000,
					blocks: []string{"172.16.1.0/26", "172.16.1.64/26"},
				})
				sp.waitUp(t, at)
				one, two := "172.16.1.0/26 via "+at.String()+" path []", "172.16.1.64/26 via "+at.String()+" path []"
				sp.waitOffers(t, at, one, two)

				row.end(t, n, b)
				lost := " " + string(row.want)
				sp.waitOffers(t, at, one+lost, two+lost)
				sp.waitPeer(t, at, fmt.Sprintf("one loss of cause %q", row.want), func(p PeerState) bool {
					// A node with new settings comes back by itself.
					return p.LastLoss.Cause == row.want && p.Flaps == 1 && p.LossReason != "" &&
						(!p.EndOfRIB || p.State == established)
				})

				row.back(t, n, b)
				sp.waitUp(t, at)
				sp.waitOffers(t, at, one, two)
				if strings.Contains(sp.log.String(), "IdleHoldTimer expired\" Topic=Peer Key="+at.String()+
					" State=BGP_FSM_IDLE Duration=5") {
					t.Error("the peer was kept in Idle")
				}
			})
		}
	}
}

// One dead node differs from a fault of our own: the peers on the other nodes are still
// heard. This shows before the hold times expire.
func TestAPeerThatMissesAKeepaliveIsCalledSilentUntilItIsHeard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := s.node(t)
	sp := s.speaker(t, 65000, 9*time.Second, usualPace)
	at := n.addr[0]
	sp.set(t, Peer{Addr: at, ASN: 65000})
	b := n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"}})
	sp.waitUp(t, at)
	silent := func(want bool) {
		t.Helper()
		wait.For(t, fmt.Sprintf("silent: %t", want), func() (bool, string) {
			offers, err := sp.Offers()
			return err == nil && len(offers) == 1 && offers[0].Silent == want, fmt.Sprint(offers, err)
		})
	}
	silent(false)
	wait.For(t, "the hold time that both agreed on", func() (bool, string) {
		got := sp.peer(t, at).HoldTime
		return got == 9*time.Second, got.String()
	})
	for _, step := range []struct {
		signal syscall.Signal
		silent bool
	}{{syscall.SIGSTOP, true}, {syscall.SIGCONT, false}} {
		if err := b.cmd.Process.Signal(step.signal); err != nil {
			t.Fatal(err)
		}
		silent(step.silent)
	}
	if got := sp.peer(t, at); got.Flaps != 0 {
		t.Errorf("the session was lost: %+v", got)
	}
}

func TestABlockGivenUpWhileAwayGoesWithEndOfRIB(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := s.node(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	at := n.addr[0]
	sp.set(t, Peer{Addr: at, ASN: 65000})
	b := n.bird(t, birdConfig{
		us: s.us[0], asn: 65000, ours: 65000,
		blocks: []string{"172.16.1.0/26", "172.16.1.64/26"},
	})
	sp.waitUp(t, at)
	b.kill()
	via := " via " + at.String() + " path []"
	sp.waitOffers(t, at, "172.16.1.0/26"+via+" connection closed", "172.16.1.64/26"+via+" connection closed")
	b.config.blocks = []string{"172.16.1.64/26"}
	b.write()
	b.start()
	sp.waitOffers(t, at, "172.16.1.64/26"+via)
}

func TestPasswordsMatchOrThereIsNoSession(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ours   Secret
		theirs string
		active bool
		v6     bool
		up     bool
	}{
		"right":                  {ours: "correct horse", theirs: "correct horse", up: true},
		"right, we dial":         {ours: "correct horse", theirs: "correct horse", active: true, up: true},
		"right, IPv6":            {ours: "correct horse", theirs: "correct horse", v6: true, up: true},
		"right, IPv6, we dial":   {ours: "correct horse", theirs: "correct horse", v6: true, active: true, up: true},
		"wrong":                  {ours: "correct horse", theirs: "battery"},
		"wrong, we dial":         {ours: "correct horse", theirs: "battery", active: true},
		"theirs missing":         {ours: "correct horse"},
		"theirs missing, dialed": {ours: "correct horse", active: true},
		"ours missing":           {theirs: "correct horse"},
	} {
		t.Run(name, func(t *testing.T) {
			variant(t, row.v6 || row.active)
			t.Parallel()
			s := newSite(t)
			n, control := s.node(t), s.node(t)
			sp := s.speaker(t, 65000, 0, usualPace)
			family := 0
			if row.v6 {
				family = 1
			}
			at := n.addr[family]
			sp.set(t, Peer{Addr: at, ASN: 65000, Password: row.ours, Active: row.active},
				Peer{Addr: control.addr[0], ASN: 65000})
			lines := "passive off;"
			if row.active {
				lines = "passive on;"
			}
			if row.theirs != "" {
				lines += fmt.Sprintf(" password %q;", row.theirs)
			}
			n.bird(t, birdConfig{v6: row.v6, us: s.us[family], asn: 65000, ours: 65000, session: lines})
			if row.up {
				sp.waitUp(t, at)
			} else {
				// The control starts second: once it is up, the first attempt of the other
				// has been rejected.
				control.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000})
				sp.waitUp(t, control.addr[0])
				if got := sp.peer(t, at).State; got != active {
					t.Errorf("state is %s, want %s", got, active)
				}
			}
			if row.ours != "" && strings.Contains(sp.log.String(), string(row.ours)) {
				t.Error("the password is in the log")
			}
		})
	}
}

func TestAPeerThatGivesUpItsPasswordIsHeardWithoutOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n := s.node(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	at := n.addr[0]
	with := Peer{Addr: at, ASN: 65000, Password: "correct horse"}
	without := Peer{Addr: at, ASN: 65000}
	sp.set(t, with)
	sp.set(t)
	sp.set(t, without)
	b := n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"}})
	sp.waitUp(t, at)

	sp.set(t, with) // in one step, with the session up
	sp.waitOffers(t, at, "172.16.1.0/26 via "+at.String()+" path [] connection closed")
	b.config.session = `password "correct horse";`
	b.setBlocks("172.16.1.0/26")
	sp.waitUp(t, at)
	sp.waitOffers(t, at, "172.16.1.0/26 via "+at.String()+" path []")
	sp.set(t, without)
	b.config.session = ""
	b.setBlocks("172.16.1.0/26")
	sp.waitPeer(t, at, "established again", func(p PeerState) bool { return p.State == established && p.Flaps == 2 })
}

func TestTTLSecurityHearsOnlyNeighbours(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		session string
		active  bool
		ours    uint32
		up      bool
	}{
		"they send 255": {session: "multihop 1; ttl security on;", ours: 65000, up: true},
		"they send 255, we dial": {
			session: "multihop 1; ttl security on; passive on;", active: true,
			ours: 65000, up: true,
		},
		"they send 255, other AS":       {session: "multihop 1; ttl security on;", ours: 65010, up: true},
		"they send the default, dialed": {session: "passive on;", active: true, ours: 65000},
		"they send the default":         {ours: 65000},
	} {
		t.Run(name, func(t *testing.T) {
			variant(t, row.active)
			t.Parallel()
			s := newSite(t)
			n := s.node(t)
			p := usualPace
			p.handshake, p.dial = 2*time.Second, 5*time.Second
			sp := s.speaker(t, row.ours, 0, p)
			at := n.addr[0]
			sp.set(t, Peer{Addr: at, ASN: 65000, TTLSecurity: true, Active: row.active})
			b := n.bird(t, birdConfig{
				us: s.us[0], asn: 65000, ours: row.ours, session: row.session,
				blocks: []string{"172.16.1.0/26"},
			})
			if row.up {
				sp.waitUp(t, at)
				return
			}
			// The kernel drops its packets silently, but for the first of a connection
			// from it, which comes before the option is set. So there is no rejection to
			// wait for: the speaker gives up.
			wait.For(t, "an attempt given up", func() (bool, string) {
				log := sp.log.String() + b.log.String()
				return strings.Contains(log, "Delete a peer configuration"), log
			})
			if strings.Contains(sp.log.String(), "BGP session established") {
				t.Error("there was a session")
			}
		})
	}
}

func TestTooManyPrefixesEndTheSessionAndFewerBringItBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	n, other := s.node(t), s.node(t)
	quick := usualPace
	quick.penalty = 500 * time.Millisecond
	sp := s.speaker(t, 65000, 0, quick)
	at := n.addr[0]
	sp.set(t, Peer{Addr: at, ASN: 65000, PrefixLimit: 2}, Peer{Addr: other.addr[0], ASN: 65000, PrefixLimit: 2})
	one, two, three := "172.16.1.0/26", "172.16.1.64/26", "172.16.1.128/26"
	b := n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{one, two}})
	other.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.2.0/26"}})
	sp.waitUp(t, at)
	sp.waitUp(t, other.addr[0])

	b.setBlocks(one, two, three)
	got := sp.waitPeer(t, at, "refused", func(p PeerState) bool { return p.LastLoss.Cause == routes.Refused })
	if got.Received > 2 {
		t.Errorf("%d prefixes are held, want no more than 2", got.Received)
	}
	b.setBlocks(one)
	sp.waitUp(t, at)
	sp.waitOffers(t, at, one+" via "+at.String()+" path []")
	if got := sp.peer(t, other.addr[0]); got.Flaps != 0 || got.State != established {
		t.Errorf("the other peer is %+v, want it undisturbed", got)
	}
}

func TestNothingIsAnnouncedToNodes(t *testing.T) {
	t.Parallel()
	// The session is between ASes: within one AS, no speaker passes routes from one peer
	// to another.
	for name, row := range map[string]struct {
		ours uint32
		asn  [2]uint32
	}{
		"ours, another": {65000, [2]uint32{65000, 65001}},
		"two others":    {65010, [2]uint32{65000, 65001}},
		"ours alone":    {65000, [2]uint32{65000, 65000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			sp := s.speaker(t, row.ours, 0, usualPace)
			var peers []Peer
			var birds []*bird
			for i, block := range []string{"172.16.1.0/26", "172.16.2.0/26"} {
				n := s.node(t)
				peers = append(peers, Peer{Addr: n.addr[0], ASN: row.asn[i]})
				sp.set(t, peers...)
				birds = append(birds, n.bird(t,
					birdConfig{us: s.us[0], asn: row.asn[i], ours: row.ours, blocks: []string{block}}))
				sp.waitUp(t, n.addr[0])
				if all, err := sp.Offers(); err != nil || len(all) != i+1 {
					t.Fatalf("offers are %v, %v, want %d", all, err, i+1)
				}
			}
			// If the first ever hears of the second's block, it does before this later
			// change arrives.
			birds[1].setBlocks("172.16.2.0/26", "172.16.3.0/26")
			wait.For(t, "the third block", func() (bool, string) {
				all, err := sp.Offers()
				return err == nil && len(all) == 3, fmt.Sprint(all)
			})
			for _, b := range birds {
				wait.For(t, "an End-of-RIB from us", func() (bool, string) {
					got := b.ctl("show", "protocols", "all", "appliance")
					return strings.Contains(got, "Established"), got
				})
				if got := b.ctl("show", "route", "protocol", "appliance"); strings.Contains(got, "172.16.") {
					t.Errorf("BIRD heard from us:\n%s", got)
				}
				got := b.ctl("show", "protocols", "all", "appliance")
				if !strings.Contains(got,
					"Import updates:              0          0          0          0          0") {
					t.Errorf("BIRD counted updates from us:\n%s", got)
				}
			}
		})
	}
}

func TestPeersComeAndGoWithoutDisturbingTheOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	a, b := s.node(t), s.node(t)
	a.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"}})
	b.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.2.0/26"}})
	pa, pb := Peer{Cluster: "x", Node: "a", Addr: a.addr[0], ASN: 65000, Local: s.us[0]},
		Peer{Cluster: "x", Node: "b", Addr: b.addr[0], ASN: 65000}

	sp.set(t, pa)
	sp.waitUp(t, pa.Addr)
	sp.set(t, pb, pa)
	sp.waitUp(t, pb.Addr)
	sp.set(t, pa, pb)
	sp.set(t, pa)
	if got := sp.offers(t, pb.Addr); got != nil {
		t.Errorf("the peer removed still offers %q", got)
	}
	if got := sp.Peers(); len(got) != 1 || got[0].Flaps != 0 || got[0].State != established {
		t.Errorf("peers are %+v, want the first only, undisturbed", got)
	}
	sp.set(t, pa, pb)
	sp.waitUp(t, pb.Addr)

	renamed := pa
	renamed.Cluster, renamed.Node = "y", "c"
	sp.set(t, renamed, pb)
	all, err := sp.Offers()
	if err != nil || len(all) != 2 || all[0].Cluster != "x" || all[1].Cluster != "y" {
		t.Errorf("offers are %+v, %v, want one of cluster x, then one of y", all, err)
	}
	if got := sp.peer(t, pa.Addr); got.Flaps != 0 || got.Node != "c" {
		t.Errorf("peer is %+v, want another name and no flap", got)
	}
}

func TestABadPeerIsReportedEachTimeAndStopsNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	n := s.node(t)
	n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000})
	good := Peer{Addr: n.addr[0], ASN: 65000}
	addr := netip.MustParseAddr
	want := map[string]Peer{
		"has no usable address": {ASN: 65000},
		"has no AS number":      {Addr: addr("10.77.250.2")},
		"more than the 80 bytes": {
			Addr: addr("10.77.250.3"), ASN: 65000,
			Password: Secret(strings.Repeat("x", 81)),
		},
		"which is of the other":             {Addr: addr("10.77.250.4"), ASN: 65000, Local: s.us[1]},
		"10.77.250.5 is asked for twice":    {Addr: addr("10.77.250.5"), ASN: 65001},
		"we listen on no address of its fa": {Addr: addr("10.77.250.6"), ASN: 65000},
	}
	peers := []Peer{{Addr: addr("10.77.250.5"), ASN: 65000}}
	for _, p := range want {
		peers = append(peers, p)
	}
	peers = append(peers, good)
	delete(want, "we listen on no address of its fa") // it does, here
	for range 2 {
		err := sp.SetPeers(peers)
		if err == nil {
			t.Fatal("no error")
		}
		for text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error misses %q:\n%v", text, err)
			}
		}
	}
	sp.waitUp(t, good.Addr)
}

func TestWherePeersConnectChangesWithoutDisturbingThoseWeDial(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := usualPace
	p.relisten = 10 * time.Millisecond
	sp := s.speakerAt(t, 65000, 0, p)
	dialled, connects := s.node(t), s.node(t)
	dialled.bird(t, birdConfig{
		us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"},
		session: "passive on;",
	})
	connects.bird(t, birdConfig{
		us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.2.0/26"},
		session: `password "secret";`,
	})
	pa := Peer{Addr: dialled.addr[0], ASN: 65000, Active: true}
	pb := Peer{Addr: connects.addr[0], ASN: 65000, Password: "secret"}
	listen := func(addrs ...netip.Addr) {
		t.Helper()
		// A program that another test starts has our last listener until it has begun.
		wait.For(t, fmt.Sprintf("it listens at %s", addrs), func() (bool, string) {
			err := sp.Listen(addrs, 0)
			return err == nil, fmt.Sprint(err)
		})
	}

	if err := sp.SetPeers([]Peer{pa, pb}); err == nil || !strings.Contains(err.Error(), "can never connect") {
		t.Fatalf("error is %v, want that %s can never connect", err, pb.Addr)
	}
	listen(s.us[0])
	sp.set(t, pa, pb)
	sp.waitUp(t, pa.Addr)
	sp.waitUp(t, pb.Addr)
	listen(s.us[0])
	if got := sp.peer(t, pb.Addr); got.Flaps != 0 {
		t.Errorf("peer is %+v, want no flap where nothing changes", got)
	}

	listen(s.us[:]...)
	sp.set(t, pa, pb)
	if got, want := sp.offers(t, pb.Addr),
		[]string{"172.16.2.0/26 via " + pb.Addr.String() + " path [] connection closed"}; !slices.Equal(got, want) {
		t.Errorf("offers are %q, want %q", got, want)
	}
	sp.waitUp(t, pb.Addr)

	for range 2 {
		if err := sp.Listen([]netip.Addr{netip.MustParseAddr("192.0.2.77")}, 0); err == nil ||
			!strings.Contains(err.Error(), "no interface of this machine has") {
			t.Fatalf("error is %v, want that no interface has that address", err)
		}
		sp.set(t, pa, pb)
	}
	if got := sp.offers(t, pb.Addr); len(got) != 1 || !strings.HasSuffix(got[0], " connection closed") {
		t.Errorf("offers are %q, want the lost one while the speaker cannot listen", got)
	}
	listen(s.us[0])
	sp.set(t, pa, pb)
	sp.waitUp(t, pb.Addr)

	listen()
	if c, err := net.Dial("tcp", netip.AddrPortFrom(s.us[0], 179).String()); err == nil {
		_ = c.Close()
		t.Error("somebody can connect, want nobody")
	}
	pb.Active = true
	sp.set(t, pa, pb)
	sp.waitUp(t, pb.Addr)
	if got := sp.peer(t, pa.Addr); got.Flaps != 0 || got.State != established {
		t.Errorf("peer is %+v, want it undisturbed", got)
	}
}
