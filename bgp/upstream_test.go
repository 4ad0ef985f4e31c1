package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"sallyport/routes"
	"sallyport/test/lab/debian"
	"sallyport/test/wait"
)

// A router is a namespace with a BIRD 2 that is upstream of us, in AS 64512.
type router struct {
	*bird

	ours     uint32
	us       [2]netip.Addr
	lines    string   // further lines of both sessions
	sends    []string // prefixes that it announces to us
	interval string   // of BFD; empty is none
}

const routerAS = 64512

func (s *site) router(t *testing.T, r router) *router {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp") // a control socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	r.us = s.us
	r.bird = &bird{t: t, node: s.node(t), dir: dir, log: new(wait.Log)}
	folder, err := debian.BIRD(t.Context(), 2, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	r.bird.folder = folder
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("log of the router at %s:\n%s", r.node.addr[0], r.log)
		}
		_ = os.RemoveAll(dir)
	})
	r.configure()
	r.start()
	return &r
}

// configure writes the router's configuration.
func (r *router) configure() {
	r.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "log stderr all;\nrouter id %s;\nprotocol device { scan time 1; }\n", r.node.addr[0])
	bfd := ""
	if r.interval != "" {
		fmt.Fprintf(&b, "protocol bfd { interface \"*\" { interval %s; multiplier 3; }; }\n", r.interval)
		bfd = "bfd on;"
	}
	for i, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&b, "protocol static s%s {\n  %s;\n", family, family)
		for _, p := range r.sends {
			if netip.MustParsePrefix(p).Addr().Is4() == (i == 0) {
				fmt.Fprintf(&b, "  route %s blackhole;\n", p)
			}
		}
		fmt.Fprintf(&b, `}
protocol bgp u%s {
  local %s as %d; neighbor %s as %d;
  connect delay time 1; connect retry time 1; error wait time 1, 1;
  %s %s
  %s { import all; export all; };
}
`, family, r.node.addr[i], routerAS, r.us[i], r.ours, bfd, r.lines, family)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "bird.conf"), []byte(b.String()), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// upstream returns the router as a peer of ours, by the address of one family.
func (r *router) upstream(family int) Peer {
	return Peer{Addr: r.node.addr[family], ASN: routerAS, Upstream: true}
}

// learned prints the routes that the router has from us, as lines "PREFIX via NEXTHOP path AS... MED COMMUNITIES".
func (r *router) learned() []string {
	var lines []string
	var prefix string
	fields := map[string]string{}
	flush := func() {
		if prefix != "" {
			line := fmt.Sprintf("%s via %s path %s med %s %s", prefix, fields["next_hop"], fields["as_path"],
				fields["med"], fields["community"])
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	for _, family := range []string{"uipv4", "uipv6"} {
		out, err := exec.Command(r.program("birdc"), "-s", r.dir+"/ctl", "show", "route", "all", "protocol",
			family).CombinedOutput()
		if err != nil {
			return []string{string(out)}
		}
		for line := range strings.Lines(string(out)) {
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if p, err := netip.ParsePrefix(words[0]); err == nil {
				flush()
				prefix, fields = p.String(), map[string]string{}
			} else if name, ok := strings.CutPrefix(words[0], "BGP."); ok {
				if value := words[1:]; len(value) > 0 {
					fields[strings.TrimSuffix(name, ":")] = strings.Join(value, " ")
				}
			}
		}
	}
	flush()
	slices.Sort(lines)
	return lines
}

func (r *router) waitLearned(want ...string) {
	r.t.Helper()
	wait.For(r.t, fmt.Sprintf("routes of the router: %q", want), func() (bool, string) {
		got := r.learned()
		return slices.Equal(got, want), fmt.Sprintf("got %q", got)
	})
}

func prefixes(texts ...string) (all []Announcement) {
	for _, text := range texts {
		all = append(all, Announcement{Prefix: netip.MustParsePrefix(text)})
	}
	return all
}

func (s speaker) announces(t *testing.T, all ...Announcement) {
	t.Helper()
	if err := s.Announce(all); err != nil {
		t.Fatal(err)
	}
}

// sentUpdates returns the number of UPDATE messages with prefixes that a node has got from us.
func (s speaker) sentUpdates(t *testing.T, a netip.Addr) (updates uint64) {
	t.Helper()
	s.ops.Lock()
	defer s.ops.Unlock()
	for _, b := range s.servers() {
		err := b.ListPeer(context.Background(), &api.ListPeerRequest{Address: a.String(), EnableAdvertised: true},
			func(p *api.Peer) {
				for _, f := range p.GetAfiSafis() {
					updates += f.GetState().GetAdvertised()
				}
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	return updates
}

func TestAnUpstreamRouterLearnsWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	r := s.router(t, router{ours: 65000})
	sp.announces(t, prefixes("203.0.113.10/32")...) // before there is anybody to hear it
	sp.set(t, r.upstream(0), r.upstream(1))
	plain4 := func(p string) string { return fmt.Sprintf("%s via %s path 65000 med 0", p, s.us[0]) }
	plain6 := func(p string) string { return fmt.Sprintf("%s via %s path 65000 med 0", p, s.us[1]) }
	last4 := fmt.Sprintf("203.0.113.10/32 via %s path 65000 65000 65000 med 100 (65535,0)", s.us[0])
	r.waitLearned(plain4("203.0.113.10/32"))

	sp.announces(t, prefixes("203.0.113.10/32", "2001:db8::10/128")...)
	waitLearned6 := func(first string) {
		t.Helper()
		wait.For(t, "both families", func() (bool, string) {
			got := r.learned()
			return slices.Equal(got, []string{plain6("2001:db8::10/128"), first}), fmt.Sprintf("%q", got)
		})
	}
	waitLearned6(plain4("203.0.113.10/32"))
	if got, want := sp.peer(t, r.node.addr[1]).Announced,
		[]netip.Prefix{netip.MustParsePrefix("2001:db8::10/128")}; !slices.Equal(got, want) {
		t.Errorf("announced over IPv6 is %s, want %s", got, want)
	}

	withdrawn := func() string {
		out := r.ctl("show", "protocols", "all", "uipv4")
		i := strings.Index(out, "Import withdraws:")
		return strings.TrimSpace(strings.Split(out[i:], "\n")[0])
	}
	before := withdrawn()
	sp.announces(t, Announcement{netip.MustParsePrefix("203.0.113.10/32"), true},
		Announcement{netip.MustParsePrefix("2001:db8::10/128"), false})
	waitLearned6(last4)
	if got := withdrawn(); got != before {
		t.Errorf("%s, want %s: the address was withdrawn in between", got, before)
	}
	sp.announces(t, prefixes("203.0.113.10/32", "203.0.113.11/32")...)
	r.waitLearned(plain4("203.0.113.10/32"), plain4("203.0.113.11/32"))
	sp.announces(t)
	r.waitLearned()
	if got := sp.peer(t, r.node.addr[0]); got.Flaps != 0 || got.Announced != nil {
		t.Errorf("peer is %+v, want no flap and nothing announced", got)
	}
}

func TestANodeNeverHearsAPrefix(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	var peers []Peer
	var birds []*bird
	for _, row := range []struct {
		asn     uint32
		active  bool
		session string
	}{{65000, false, ""}, {65001, false, ""}, {65000, true, "passive on;"}, {65001, true, "passive on;"}} {
		n := s.node(t)
		peers = append(peers, Peer{Cluster: "main", Node: "worker", Addr: n.addr[0], ASN: row.asn, Active: row.active})
		birds = append(birds, n.bird(t, birdConfig{us: s.us[0], asn: row.asn, ours: 65000, session: row.session}))
	}
	one, other := s.router(t, router{ours: 65000, sends: []string{"0.0.0.0/0"}}), s.router(t, router{ours: 65000})
	a, b := one.upstream(0), other.upstream(0)
	with := func(more ...Peer) []Peer { return append(slices.Clone(peers), more...) }
	address := netip.MustParsePrefix("203.0.113.10/32")
	plain, last := Announcement{address, false}, Announcement{address, true}
	limited := a
	limited.PrefixLimit = 7
	learned := func(r *router, a *Announcement) {
		t.Helper()
		switch {
		case a == nil:
			r.waitLearned()
		case a.LastResort:
			r.waitLearned(fmt.Sprintf("%s via %s path 65000 65000 65000 med 100 (65535,0)", address, s.us[0]))
		default:
			r.waitLearned(fmt.Sprintf("%s via %s path 65000 med 0", address, s.us[0]))
		}
	}
	sp.set(t, with()...)
	for _, p := range peers {
		sp.waitUp(t, p.Addr)
	}

	for _, step := range []struct {
		what     string
		peers    []Peer
		announce []Announcement
		a, b     *Announcement
	}{
		{"announced without an upstream router", with(), []Announcement{plain}, nil, nil},
		{"an upstream router added", with(a), []Announcement{plain}, &plain, nil},
		{"another added", with(a, b), []Announcement{plain}, &plain, &plain},
		{"announced as a last resort", with(a, b), []Announcement{last}, &last, &last},
		{"announced plainly again", with(a, b), []Announcement{plain}, &plain, &plain},
		{"the first replaced by the second", with(b), []Announcement{plain}, nil, &plain},
		{"given other settings", with(limited, b), []Announcement{plain}, &plain, &plain},
		{"withdrawn", with(limited, b), nil, nil, nil},
		{"announced again, as a last resort", with(limited, b), []Announcement{last}, &last, &last},
		{"all upstream routers removed", with(), []Announcement{last}, nil, nil},
		{"announced plainly without an upstream router", with(), []Announcement{plain}, nil, nil},
		{"both added again", with(a, b), []Announcement{plain}, &plain, &plain},
		{"a node leaves", with(a, b)[1:], []Announcement{last}, &last, &last},
		{"the node comes back", with(a, b), []Announcement{plain}, &plain, &plain},
	} {
		sp.set(t, step.peers...)
		sp.announces(t, step.announce...)
		learned(one, step.a)
		learned(other, step.b)
		for i, p := range peers {
			if !slices.Contains(step.peers, p) {
				continue
			}
			sp.waitUp(t, p.Addr)
			if got := sp.sentUpdates(t, p.Addr); got != 0 {
				t.Errorf("%s: %d prefixes were announced to node %d", step.what, got, i)
			}
			if got := birds[i].ctl("show", "route", "protocol", "appliance"); strings.Contains(got, "/") {
				t.Errorf("%s: node %d heard from us:\n%s", step.what, i, got)
			}
		}
	}
	for i, b := range birds {
		if got := b.ctl("show", "protocols", "all", "appliance"); !strings.Contains(got,
			"Import updates:              0          0          0          0          0") {
			t.Errorf("node %d counted updates from us:\n%s", i, got)
		}
	}
	// What one router sends reaches neither the other one nor a node.
	if got := other.learned(); len(got) != 1 {
		t.Errorf("the second router learned %q", got)
	}
}

func TestWhatARouterSendsIsNeverAnOffer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	n := s.node(t)
	n.bird(t, birdConfig{us: s.us[0], asn: 65000, ours: 65000, blocks: []string{"172.16.1.0/26"}})
	r := s.router(t, router{ours: 65000, sends: []string{"172.16.1.0/26", "172.16.9.0/26", "0.0.0.0/0"}})
	at := r.node.addr[0]
	// A cluster has a node with the router's address.
	err := sp.SetPeers([]Peer{
		{Addr: n.addr[0], ASN: 65000},
		{Cluster: "main", Node: "false", Addr: at, ASN: routerAS},
		r.upstream(0),
	})
	if want := `is asked for twice, as upstream router and as node "false" of cluster "main"`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q in it", err, want)
	}
	sp.waitUp(t, n.addr[0])
	wait.For(t, "what the router sends", func() (bool, string) {
		received := uint64(0)
		sp.ops.Lock()
		defer sp.ops.Unlock()
		err := sp.announcer.ListPeer(t.Context(), &api.ListPeerRequest{Address: at.String()}, func(p *api.Peer) {
			for _, f := range p.GetAfiSafis() {
				received += f.GetState().GetReceived()
			}
		})
		return received == 3, fmt.Sprint(received, err)
	})
	sp.waitOffers(t, n.addr[0], "172.16.1.0/26 via "+n.addr[0].String()+" path []")
	if got := sp.offers(t, at); got != nil {
		t.Errorf("the router offers %q", got)
	}
	if got := sp.peer(t, at); got.EndOfRIB || got.Received != 0 || !got.Upstream {
		t.Errorf("the router is %+v, want an upstream router that nothing was received from", got)
	}
	r.kill()
	sp.waitPeer(t, at, "lost", func(p PeerState) bool { return p.Flaps == 1 })
	if got := sp.offers(t, at); got != nil {
		t.Errorf("the lost router offers %q", got)
	}
}

func TestARouterThatSendsTooMuchIsAnErrorAndComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	quick := usualPace
	quick.penalty = 500 * time.Millisecond
	sp := s.speaker(t, 65000, 0, quick)
	r := s.router(t, router{ours: 65000, sends: []string{"10.0.0.0/24", "10.0.1.0/24", "10.0.2.0/24"}})
	sp.announces(t, prefixes("203.0.113.10/32")...)
	up := r.upstream(0)
	if got := up.withDefaults().PrefixLimit; got != 1000 {
		t.Errorf("a router may send %d prefixes, want 1000", got)
	}
	up.PrefixLimit = 2
	sp.set(t, up)
	got := sp.waitPeer(t, up.Addr, "refused", func(p PeerState) bool { return p.LastLoss.Cause == routes.Refused })
	if !strings.Contains(got.LossReason, "has to export none to us") {
		t.Errorf("reason is %q, want what to do", got.LossReason)
	}
	wait.For(t, "an error in the log", func() (bool, string) {
		log := sp.log.String()
		return strings.Contains(log, "level=ERROR msg=\"BGP session lost\""), log
	})
	r.sends = nil
	r.configure()
	r.ctl("configure")
	r.waitLearned(fmt.Sprintf("203.0.113.10/32 via %s path 65000 med 0", s.us[0]))
}

func TestSessionsWithRoutersAreProtectedAsThoseWithNodes(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		lines string
		peer  Peer
		up    bool
	}{
		"TTL security": {"ttl security on;", Peer{TTLSecurity: true}, true},
		"password":     {`password "correct horse";`, Peer{Password: "correct horse"}, true},
		"both, a passive router": {
			`passive on; ttl security on; password "correct horse";`,
			Peer{TTLSecurity: true, Password: "correct horse"},
			true,
		},
		"neither":                {"", Peer{}, true},
		"another password":       {`passive on; password "battery";`, Peer{Password: "correct horse"}, false},
		"our TTL security alone": {"passive on;", Peer{TTLSecurity: true}, false},
	} {
		for family, version := range []string{"IPv4", "IPv6"} {
			t.Run(name+", "+version, func(t *testing.T) {
				variant(t, family == 1)
				t.Parallel()
				s := newSite(t)
				p := usualPace
				p.handshake, p.dial, p.tick = 2*time.Second, 3*time.Second, 100*time.Millisecond
				sp := s.speaker(t, 65000, 0, p)
				r := s.router(t, router{ours: 65000, lines: row.lines})
				up := r.upstream(family)
				up.TTLSecurity, up.Password = row.peer.TTLSecurity, row.peer.Password
				sp.announces(t, prefixes("203.0.113.10/32", "2001:db8::10/128")...)
				sp.set(t, up)
				if row.up {
					wait.For(t, "the address", func() (bool, string) {
						got := r.learned()
						return len(got) == 1, fmt.Sprintf("%q", got)
					})
					return
				}
				wait.For(t, "an attempt given up", func() (bool, string) {
					log := sp.log.String()
					return strings.Contains(log, "Delete a peer configuration"), log
				})
				if strings.Contains(sp.log.String(), "BGP session established") {
					t.Error("there was a session")
				}
			})
		}
	}
}

func TestBFDFindsARouterLostAndFoundAgain(t *testing.T) {
	t.Parallel()
	for family, version := range []string{"IPv4", "IPv6"} {
		t.Run(version, func(t *testing.T) {
			variant(t, family == 1)
			t.Parallel()
			aloneWithBFD(t)
			s := newSite(t)
			// Only BFD finds the loss: the hold time is longer than the test waits.
			sp := s.speaker(t, 65000, 10*time.Minute, usualPace)
			r := s.router(t, router{ours: 65000, interval: "300 ms"})
			up := r.upstream(family)
			up.BFD = BFD{Interval: 300 * time.Millisecond, Multiplier: 3}
			sp.announces(t, prefixes("203.0.113.10/32", "2001:db8::10/128")...)
			sp.set(t, up)
			learned := func(n int) {
				t.Helper()
				wait.For(t, fmt.Sprintf("%d routes at the router", n), func() (bool, string) {
					got := r.learned()
					return len(got) == n, fmt.Sprintf("%q", got)
				})
			}
			both := func() {
				t.Helper()
				sp.waitPeer(t, up.Addr, "up, BFD too", func(p PeerState) bool {
					return p.State == established && p.BFD == "up"
				})
				// A session that is up at one end alone is none whose loss the other notices.
				wait.For(t, "BFD up at the router", func() (bool, string) {
					got := r.ctl("show", "bfd", "sessions")
					return strings.Contains(got, " Up "), got
				})
				learned(1)
			}
			both()
			run(t, "bridge", "link", "set", "dev", r.node.leg, "state", "0") // both ends keep their carrier
			got := sp.waitPeer(t, up.Addr, "lost", func(p PeerState) bool {
				return p.Flaps == 1 && p.BFD == "down" && p.Announced == nil
			})
			// whichever end noticed first
			if !strings.HasPrefix(got.LossReason, "BFD is down") &&
				!strings.HasPrefix(got.LossReason, "cease, BFD down") {
				t.Errorf("reason is %q, want BFD", got.LossReason)
			}
			learned(0)
			run(t, "bridge", "link", "set", "dev", r.node.leg, "state", "3")
			both()

			// Its BFD is turned off: as a router without it, and the session stays.
			r.interval = ""
			r.configure()
			r.ctl("configure")
			sp.waitPeer(t, up.Addr, "up without BFD", func(p PeerState) bool {
				return p.State == established && p.BFD == "down"
			})
			learned(1)
		})
	}
}

func TestAStopWithdrawsWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	r := s.router(t, router{ours: 65000})
	sp.announces(t, prefixes("203.0.113.10/32")...)
	sp.set(t, r.upstream(0))
	r.waitLearned(fmt.Sprintf("203.0.113.10/32 via %s path 65000 med 0", s.us[0]))
	sp.Stop()
	r.waitLearned()
	if got := r.ctl("show", "protocols", "all", "uipv4"); !strings.Contains(got, "Received: ") {
		t.Errorf("the router got no NOTIFICATION:\n%s", got)
	}
	if err := sp.Announce(nil); err != ErrStopped { //nolint:errorlint // it is returned as it is
		t.Errorf("error is %v, want %v", err, ErrStopped)
	}
}

func TestABadUpstreamRouterOrAnnouncementIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	addr := netip.MustParseAddr
	peers := map[string]Peer{
		"10.77.250.1 (upstream router) has our own AS number 65000": {
			Addr: addr("10.77.250.1"), ASN: 65000,
			Upstream: true,
		},
		"has BFD, which only upstream routers can have": {
			Addr: addr("10.77.250.2"), ASN: 65000,
			BFD: BFD{time.Second, 3},
		},
		"interval of 1ms and a multiplier of 3": {
			Addr: addr("10.77.250.3"), ASN: 65001, Upstream: true,
			BFD: BFD{time.Millisecond, 3},
		},
		"interval of 1s and a multiplier of 0": {
			Addr: addr("10.77.250.4"), ASN: 65001, Upstream: true,
			BFD: BFD{time.Second, 0},
		},
	}
	for want, p := range peers {
		if err := sp.SetPeers([]Peer{p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
	good := s.router(t, router{ours: 65000})
	sp.set(t, good.upstream(0))
	for want, a := range map[string]Announcement{
		"cannot be announced":            {},
		"has bits set behind its length": {Prefix: netip.MustParsePrefix("203.0.113.10/24")},
		"announced twice":                {Prefix: netip.MustParsePrefix("203.0.113.11/32"), LastResort: true},
	} {
		err := sp.Announce(append(prefixes("203.0.113.11/32"), a))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q in it", err, want)
		}
	}
	good.waitLearned(fmt.Sprintf("203.0.113.11/32 via %s path 65000 med 0", s.us[0]))
}
