package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes/address"
)

type fakePulse struct {
	said  group.Word
	heard []group.Heard
	asks  bool
	tells string
	order string
}

func (f *fakePulse) Ask(asks bool)     { f.asks = asks }
func (f *fakePulse) Tell(text string)  { f.tells = text }
func (f *fakePulse) Order(text string) { f.order = text }

func (f *fakePulse) Say(w group.Word)         { f.said = w }
func (f *fakePulse) Heard() []group.Heard     { return f.heard }
func (f *fakePulse) Changed() <-chan struct{} { return nil }

// fakeRing is a kernel with a ring.
type fakeRing struct {
	set     []string // the members of each ring, and of those that are silent
	last    address.Ring
	cookies uint64
	err     error
	answers bool // the machine of a member that is silent
	passed  uint64
	dropped uint64
	guard   *address.Guard // of the ports; nil: there is none
	guards  int            // how many times it was set
	unsafe  error          // why it cannot be set
	forgot  int            // how many times closed connections were forgotten
}

func (f *fakeRing) Set(_ context.Context, r address.Ring) error {
	f.last, f.set = r, append(f.set, fmt.Sprint(r.Self, r.Members, r.Silent))
	return f.err
}

func (f *fakeRing) Clear(context.Context) error { f.set = append(f.set, "none"); return nil }
func (f *fakeRing) Counted(context.Context) (address.Count, error) {
	return address.Count{Passed: f.passed, Dropped: f.dropped}, nil
}
func (f *fakeRing) Unguard(context.Context) error { f.guard = nil; return f.unsafe }
func (f *fakeRing) Guard(_ context.Context, g address.Guard) error {
	f.guards++
	f.guard = &g
	return f.unsafe
}
func (f *fakeRing) Cookies() (uint64, error)         { return f.cookies, nil }
func (f *fakeRing) Forget([]netip.Addr) (int, error) { f.forgot++; return 1, nil }
func (f *fakeRing) Answers(_ context.Context, at netip.AddrPort) bool {
	return f.answers && at == netip.MustParseAddrPort("192.168.50.22:7477")
}

// hear sets what the pulse hears of gate-2.
func (f *fakePulse) hear(class group.Class, draining bool) {
	f.heard = []group.Heard{{
		Member: group.Member{Name: "gate-2", Address: netip.MustParseAddr("192.168.50.22")}, Alive: class != "",
		Age:  50 * time.Millisecond,
		Word: group.Word{Class: class, Draining: draining},
	}}
}

// newPair returns a scene of a settled member of a group of two. The other one is full.
func newPair(t *testing.T) (*scene, *fakePulse) {
	t.Helper()
	s := newScene(t)
	p := s.enterPair()
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.settle(t)
	return s, p
}

// enterPair makes the scene a member of a group of two. The other one is full.
func (s *scene) enterPair() *fakePulse {
	p := new(fakePulse)
	s.proxy.info = haproxy.Info{Worker: 1}
	s.kernel.held = addrs("203.0.113.10", "2001:db8::10")
	s.cfg.Identity = "gate-1"
	s.cfg.Group = config.Group{
		Name: "edge", Secret: config.NewSecret("c2VjcmV0"), Addresses: addrs("203.0.113.10", "2001:db8::10"),
		Port: 7477, Drain: config.Drain{Timeout: time.Minute},
		Members: []config.Member{
			{Name: "gate-1", Address: netip.MustParseAddr("192.168.50.21")},
			{Name: "gate-2", Address: netip.MustParseAddr("192.168.50.22")},
		},
		Upstream: config.Upstream{
			Peers: []config.Router{{Address: netip.MustParseAddr("192.168.50.1"), ASN: 64512, Port: 179}},
		},
	}
	s.chance = &fakeRing{passed: 5}
	s.cfg.Group.SecondChance = true
	s.member = &member{of: s.cfg.Group, self: "gate-1", pulse: p, leave: func() {}}
	p.hear(group.Full, false)
	for _, c := range s.clusters {
		c.answered = time.Unix(0, 0) // so it does not wait for what gate-2 tells
	}
	return p
}

// pass runs rounds for a time, two a second.
func (s *scene) pass(t *testing.T, d time.Duration) {
	t.Helper()
	for end := s.clock.Add(d); s.clock.Before(end); {
		s.clock = s.clock.Add(500 * time.Millisecond)
		s.settle(t)
	}
}

// announced returns the announcements in words.
func (f *fakeSpeaker) words() string {
	var all []string
	for _, a := range f.announced {
		word := a.Prefix.String()
		if a.LastResort {
			word += " as last resort"
		}
		all = append(all, word)
	}
	return strings.Join(all, ", ")
}

func expectWords(t *testing.T, s *scene, want string) {
	t.Helper()
	if got := s.speaker.words(); got != want {
		t.Errorf("announced is %q, want %q (class %s: %s)", got, want, s.fit.Class, s.fit.Why)
	}
}

const (
	both       = "203.0.113.10/32, 2001:db8::10/128"
	asResort   = "203.0.113.10/32 as last resort, 2001:db8::10/128 as last resort"
	firstSteps = 10 * time.Second
)

func TestAMemberAnnouncesAsItIsFit(t *testing.T) {
	s, p := newPair(t)
	expectWords(t, s, asResort)
	s.pass(t, firstSteps)
	expectWords(t, s, both)
	if p.said.Class != "full" || p.said.Draining {
		t.Errorf("it says %+v, want that it is full", p.said)
	}

	s.proxy.err = errors.New("connection refused")
	s.clock = s.clock.Add(500 * time.Millisecond)
	s.round(t.Context())
	expectWords(t, s, both) // a HAProxy that was killed may be back soon
	s.clock = s.clock.Add(time.Second)
	s.round(t.Context())
	expectWords(t, s, "")
	s.proxy.err = nil
	s.settle(t)
	expectWords(t, s, asResort)
	s.pass(t, firstSteps)
	expectWords(t, s, both)
}

func TestLosingTheAPIServerChangesNothing(t *testing.T) {
	s, _ := newPair(t)
	s.pass(t, firstSteps)
	s.watcher.err = errors.New("connection refused")
	s.pass(t, 2*time.Minute)
	expectWords(t, s, both)
}

func TestAStartWithoutTheAPIServerIsTheLastResort(t *testing.T) {
	s, _ := newPair(t)
	s.pass(t, firstSteps)
	s.clusters[0].live, s.watcher.err = false, errors.New("connection refused")
	s.fit = group.Fitness{}
	s.pass(t, time.Minute)
	expectWords(t, s, asResort)
}

func TestAnAddressThatIsNotOnLoIsNotAnnounced(t *testing.T) {
	s, _ := newPair(t)
	s.pass(t, firstSteps)
	s.loopback.hold = func([]netip.Addr) ([]netip.Addr, error) { return addrs("203.0.113.10"), errors.New("IPv6 is off") }
	s.settle(t)
	expectWords(t, s, "203.0.113.10/32")
	v := s.view.Load()
	if v.Err == nil || v.Err.Error() != "IPv6 is off" {
		t.Errorf("the round has error %v, want that of the address", v.Err)
	}
	if v.Group.Addresses[1].Held || !v.Group.Addresses[0].Held {
		t.Errorf("held are %+v, want the first alone", v.Group.Addresses)
	}
	s.pass(t, time.Minute)
	if s.fit.Class != group.Full {
		t.Errorf("class %s (%s), want full: the other address is served well", s.fit.Class, s.fit.Why)
	}
}

func TestUpstreamRoutersArePeersAndNoNodes(t *testing.T) {
	s, _ := newPair(t)
	var routers, nodes int
	for _, p := range s.speaker.peers {
		if p.Upstream {
			routers++
			if p.Addr != netip.MustParseAddr("192.168.50.1") || p.ASN != 64512 || !p.Active {
				t.Errorf("router %+v", p)
			}
		} else {
			nodes++
		}
	}
	if routers != 1 || nodes != 2 {
		t.Errorf("got %d routers and %d nodes, want 1 and 2", routers, nodes)
	}
	s.pass(t, firstSteps)
	if s.fit.Class != group.Full || len(s.view.Load().NotReady) > 0 {
		t.Errorf("class %s (%s), not ready %q: a router has no routes for us to wait for", s.fit.Class, s.fit.Why,
			s.view.Load().NotReady)
	}
}

func TestADrainWithdrawsAndThenReloads(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	if err := s.drains.begin(s.clock, false, true); err != nil {
		t.Fatal(err)
	}
	s.speaker.deaf = errors.New("no")
	s.settle(t)
	if v := s.view.Load(); v.Config.Leaving || v.Left {
		t.Error("HAProxy is reloaded although the withdrawal failed")
	}
	s.speaker.deaf = nil
	s.settle(t)
	expectWords(t, s, "")
	if v := s.view.Load(); !v.Config.Leaving || !v.Left {
		t.Errorf("HAProxy leaves: %t, all is done: %t; want both", v.Config.Leaving, v.Left)
	}
	if !p.said.Draining || p.said.Class != "none" {
		t.Errorf("it says %+v, want that it drains", p.said)
	}

	p.hear("", false) // the other one dies
	s.settle(t)
	expectWords(t, s, asResort)
	if s.view.Load().Config.Leaving {
		t.Error("HAProxy leaves, and nobody else serves")
	}

	p.hear(group.Full, false)
	if err := s.drains.end(); err != nil {
		t.Fatal(err)
	}
	s.pass(t, firstSteps)
	expectWords(t, s, both)
	if s.view.Load().Config.Leaving {
		t.Error("HAProxy leaves after the drain")
	}
}

func TestWithoutAGroupWhatAnotherProcessLeftIsGivenBackOnce(t *testing.T) {
	s := newScene(t)
	calls := 0
	s.loopback.hold = func(want []netip.Addr) ([]netip.Addr, error) {
		calls++
		if want != nil {
			t.Errorf("%v on lo", want)
		}
		if calls == 1 {
			return nil, errors.New("busy")
		}
		return nil, nil
	}
	s.speaker.announced = []bgp.Announcement{{}}
	s.settle(t)
	s.pass(t, time.Minute)
	if calls != 2 || s.speaker.announced != nil {
		t.Errorf("%d calls, %v announced; want one after the first that failed, and nothing", calls,
			s.speaker.announced)
	}
	if v := s.view.Load(); v.Group != nil || v.Config.Leaving {
		t.Errorf("group %+v", v.Group)
	}
}

func TestTheSumIsTheSameForAllMembersOfAGroup(t *testing.T) {
	s, _ := newPair(t)
	one := *s.cfg
	one.Clusters = []config.Cluster{{Name: "demo", Kubeconfig: config.Kubeconfig{Path: "/a"}}}
	two := one
	two.Identity, two.StateDir, two.BGP.Listen = "gate-2", "/x", addrs("192.168.50.22")
	two.Clusters = []config.Cluster{{
		Name: "demo", Kubeconfig: config.Kubeconfig{Path: "/b"},
		BGP: config.Peering{Password: config.NewSecret("x")},
	}}
	if sumOf(&one) != sumOf(&two) {
		t.Error("the sums of two members differ")
	}
	two.Clusters = []config.Cluster{{Name: "demo", Ingress: config.Ingress{Class: "other"}}}
	if sumOf(&one) == sumOf(&two) {
		t.Error("another class of Ingresses does not change the sum")
	}
	two.Clusters = []config.Cluster{{Name: "demo", State: config.Serving}}
	if sumOf(&one) != sumOf(&two) {
		t.Error("the default state changes the sum")
	}
	two.Clusters = []config.Cluster{{Name: "demo", State: config.Drained}}
	if sumOf(&one) == sumOf(&two) {
		t.Error("another state does not change the sum")
	}
}

func TestADrainOutlivesTheProcessAndNotTheBoot(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0).UTC()
	if err := openDrains(dir, "one").begin(now, true, true); err != nil {
		t.Fatal(err)
	}
	if got, want := openDrains(dir, "one").get(), (&drain{"one", now, true}); got == nil || *got != *want {
		t.Errorf("after a restart: got %+v, want %+v", got, want)
	}
	if got := openDrains(dir, "two").get(); got != nil {
		t.Errorf("after a reboot: got %+v, want none", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "drain")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v; want mode 0600", info, err)
	}
	if err := openDrains(dir, "one").end(); err != nil {
		t.Fatal(err)
	}
	if got := openDrains(dir, "one").get(); got != nil {
		t.Errorf("after undrain: got %+v, want none", got)
	}
	if err := openDrains(dir, "one").begin(now, true, false); err != nil {
		t.Fatal(err)
	}
	if got := openDrains(dir, "one").get(); got != nil {
		t.Errorf("after a stop: got %+v, want none", got)
	}
	for name, text := range map[string]string{"no JSON": "{", "another boot": `{"boot":"two"}`, "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, "drain"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := openDrains(dir, "one").get(); got != nil {
			t.Errorf("%s: got %+v, want none", name, got)
		}
	}
}

func TestADrainIsRefusedWhileNobodyElseIsFull(t *testing.T) {
	for name, row := range map[string]struct {
		hear func(*fakePulse)
		form url.Values
		want string // of the answer; empty: it drains
	}{
		"the other is full": {func(p *fakePulse) { p.hear(group.Full, false) }, nil, ""},
		"the other is spare": {func(p *fakePulse) {
			p.hear(group.Spare, false)
		}, nil, "no other member of the group is full: gate-2 is spare; --force drains all the same, and nobody " +
			"serves then\n"},
		"the other drains": {func(p *fakePulse) {
			p.hear(group.Full, true)
		}, nil, "no other member of the group is full: gate-2 drains; --force drains all the same, and nobody " +
			"serves then\n"},
		"the other was never heard": {func(p *fakePulse) {
			p.hear("", false)
		}, nil, "no other member of the group is full: gate-2 has not been heard; --force drains all the same, and " +
			"nobody serves then\n"},
		"nobody was heard, by force":  {func(p *fakePulse) { p.hear("", false) }, url.Values{"force": {"true"}}, ""},
		"nobody was heard, at a stop": {func(p *fakePulse) { p.hear("", false) }, url.Values{"stopping": {"true"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := newPair(t)
			s.pass(t, firstSteps)
			row.hear(p)
			s.settle(t)
			knocked := 0
			var told []time.Duration
			s.drains.leaving = func(most time.Duration) { told = append(told, most) }
			handler := control(s.view.Load, s.drains, func([]netip.Addr) (int, error) { return 7, nil }, func() {
				knocked++
			}, func() time.Time { return s.clock })
			ask := func(method, path string) (DrainStatus, string) {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
				var status DrainStatus
				if w.Code == http.StatusOK {
					if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
						t.Fatal(err)
					}
					return status, ""
				}
				return status, w.Body.String()
			}
			if _, got := ask("POST", "/drain?"+row.form.Encode()); got != row.want {
				t.Fatalf("got %q, want %q", got, row.want)
			}
			if row.want != "" {
				if s.drains.get() != nil || knocked > 0 {
					t.Error("it drains all the same")
				}
				return
			}
			if stops := row.form.Has("stopping"); stops != slices.Equal(told, []time.Duration{time.Minute}) ||
				!stops && told != nil {
				t.Errorf("who waits for a stop was told %v", told)
			}
			if status, _ := ask("GET", "/drain"); !status.Draining || status.Left {
				t.Errorf("before a round: got %+v", status)
			}
			s.settle(t)
			want := DrainStatus{
				Group: "edge", Draining: true, Class: group.None, Why: "it drains", Left: true,
				Connections: 7, Timeout: time.Minute,
			}
			if row.form != nil {
				want.Why = "it drains, by force"
			}
			got, _ := ask("GET", "/drain")
			if diff := cmp.Diff(want, got); diff != "" || knocked != 1 {
				t.Errorf("%d knocks; want -, got +:\n%s", knocked, diff)
			}
			if got, _ := ask("POST", "/undrain"); got.Draining || got.Left {
				t.Errorf("after undrain: got %+v", got)
			}
		})
	}
}

func TestTheControlSocketTellsOfTheGroup(t *testing.T) {
	s, p := newPair(t)
	handler := control(s.view.Load, s.drains, func([]netip.Addr) (int, error) { return 0, nil }, func() {}, time.Now)
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/group", http.NoBody))
		return w
	}
	s.view.Store(&status.View{Settings: s.settings.shown()}) // as Run begins
	if w := ask(); w.Code != http.StatusServiceUnavailable {
		t.Errorf("before the first round: got %d, %s", w.Code, w.Body)
	}
	s.pass(t, firstSteps)
	p.hear(group.Full, false)
	s.settle(t)
	var got status.GroupStatus
	if err := json.Unmarshal(ask().Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Members) != 2 || !got.Members[0].Self || got.Members[1].Name != "gate-2" || !got.Members[1].Serves() {
		t.Errorf("got %+v, want this one and gate-2, which serves", got.Members)
	}
}

func TestTheControlSocketIsOursAlone(t *testing.T) {
	s, _ := newPair(t)
	dir, err := os.MkdirTemp("", "control") // short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "control.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil { // an earlier process was killed
		t.Fatal(err)
	}
	handler := control(s.view.Load, s.drains, func([]netip.Addr) (int, error) { return 0, nil }, func() {}, time.Now)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serveControl(t.Context(), path, handler, s.log)
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context,
		_, _ string,
	) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	for {
		answer, err := client.Get("http://sallyport/drain")
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("got %s", answer.Status)
			}
			break
		}
		select {
		case <-ended:
			t.Fatal("the socket is not served")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v; want mode 0600", info, err)
	}
}

func TestTheStatusShowsTheGroup(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	stranger := group.Heard{
		Member:  group.Member{Name: "gate-9", Address: netip.MustParseAddr("192.168.50.29")},
		Problem: "gate-9 is not in group.members.",
	}
	p.heard[0].Word.Config, p.heard[0].Word.Version = "another", "v2"
	p.heard = append(p.heard, stranger)
	s.settle(t)
	v := s.view.Load()
	got := fmt.Sprintf("%+v", v.Group.Members)
	want := fmt.Sprintf("%+v", []status.MemberStatus{
		{
			Name: "gate-1", Address: netip.MustParseAddr("192.168.50.21"), Self: true, Alive: true, Class: group.Full,
			For: v.At.Sub(s.fitSince),
		},
		{
			Name: "gate-2", Address: netip.MustParseAddr("192.168.50.22"), Alive: true, Class: group.Full,
			Age: 50 * time.Millisecond, Version: "v2", Differs: true,
		},
		{Name: "gate-9", Address: stranger.Member.Address, Problem: stranger.Problem},
	})
	if got != want {
		t.Errorf("\ngot  %s\nwant %s", got, want)
	}
	for _, sentence := range []string{
		"group edge: gate-2 has another configuration: compare the files, except identity and secrets",
		"group edge: gate-9 is not in group.members.",
	} {
		if !strings.Contains(strings.Join(v.Warnings, "\n"), sentence) {
			t.Errorf("no warning %q in %q", sentence, v.Warnings)
		}
	}
}

// A process that starts has heard nobody yet. The rules of the one before it still work.
func TestAFreshProcessLeavesTheRingUntilItHasHeardTheMembers(t *testing.T) {
	s, p := newPair(t)
	kernel := s.chance.(*fakeRing)
	fresh := func() {
		s.ring, s.started, kernel.set = ring{}, s.clock, nil
		p.hear("", false)
		s.settle(t)
		if len(kernel.set) > 0 {
			t.Errorf("at once it sets %q, want nothing", kernel.set)
		}
	}
	fresh()
	p.hear(group.Full, false)
	s.settle(t)
	if want := []string{"192.168.50.21 [192.168.50.22] []"}; !slices.Equal(kernel.set, want) {
		t.Errorf("when all have spoken it sets %q, want %q", kernel.set, want)
	}
	fresh()
	s.pass(t, firstWords)
	if want := []string{"192.168.50.21 [] [192.168.50.22]"}; !slices.Equal(kernel.set, want) {
		t.Errorf("when nobody speaks it sets %q, want %q", kernel.set, want)
	}
}

// The first heartbeat of a member comes before the kernel has the MAC address of that member.
func TestARingThatWaitsForAnAddressIsTriedInEachRound(t *testing.T) {
	s, p := newPair(t)
	kernel := s.chance.(*fakeRing)
	p.hear("", false)
	s.settle(t)
	kernel.set, kernel.err = nil, fmt.Errorf("second chance is off: %w on eth0", address.ErrUnknown)
	p.hear(group.Full, false)
	tries := func(rounds int) int {
		kernel.set = nil
		for range rounds {
			s.clock = s.clock.Add(plan.DoubtTick)
			s.round(t.Context())
		}
		return len(kernel.set)
	}
	if got := tries(5); got != 5 {
		t.Errorf("%d tries in 5 rounds, want 5", got)
	}
	s.pass(t, plan.DoubtLasts)
	if got := tries(10); got != 1 {
		t.Errorf("%d tries in 10 rounds of 0.1 s after a while, want 1", got)
	}
	kernel.err = nil
	s.pass(t, ringRetry)
	if got := tries(10); got != 0 {
		t.Errorf("%d tries with a ring, want 0", got)
	}
}

func TestTheRingHasTheMembersThatAreAlive(t *testing.T) {
	s, p := newPair(t)
	kernel := s.chance.(*fakeRing)
	expect := func(when string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, kernel.set); diff != "" {
			t.Errorf("%s: want -, got +:\n%s", when, diff)
		}
		kernel.set = nil
	}
	const alive, silent = "192.168.50.21 [192.168.50.22] []", "192.168.50.21 [] [192.168.50.22]"
	expect("at the start", alive)
	if got, want := s.view.Load().Group.Ring, (status.RingStatus{Members: 2, Passed: 5}); got != want {
		t.Errorf("status: got %+v, want %+v", got, want)
	}
	s.pass(t, 9*time.Second)
	expect("soon after")
	s.pass(t, 2*time.Second)
	expect("before the kernel forgets it", alive)
	p.hear(group.None, true)
	s.settle(t)
	expect("while the other one drains")
	p.hear("", false)
	s.settle(t)
	expect("when the other one is silent", silent)
	p.hear(group.Full, false)
	s.settle(t)
	expect("when it speaks again", alive)

	kernel.answers = true
	p.hear("", false)
	s.pass(t, 5*time.Second)
	expect("while the process of the other one is dead, and its machine is not")
	kernel.answers = false
	s.settle(t)
	expect("when its machine dies, too", silent)
	kernel.answers = true
	s.settle(t)
	expect("when that machine answers, and its process does not")
	p.hear(group.Full, false)
	s.settle(t)
	expect("when it speaks at last", alive)

	kernel.cookies = 1
	s.settle(t)
	expect("when the kernel sends SYN cookies", silent)
	s.pass(t, 29*time.Second)
	kernel.set = nil
	s.pass(t, 2*time.Second)
	expect("when it has sent none for a while", alive)

	kernel.answers = false
	kernel.err = errors.New("second chance is off: no nft")
	p.hear("", false)
	s.settle(t)
	expect("when it fails", silent)
	if v := s.view.Load(); v.Err != nil ||
		!strings.Contains(strings.Join(v.Warnings, "\n"), "group edge: second chance is off: no nft") {
		t.Errorf("error %v, warnings %q; want a warning", v.Err, v.Warnings)
	}
	s.pass(t, time.Second)
	expect("a second later", silent)

	s.member.of.SecondChance = false
	s.settle(t)
	expect("without second chance", "none")
	s.pass(t, time.Minute)
	expect("afterwards")
}

func TestClosedConnectionsAreForgottenAfterEachMove(t *testing.T) {
	for name, move := range map[string]struct {
		begins func(*scene, *fakePulse)
		within time.Duration
	}{
		"the other member drains": {func(_ *scene, p *fakePulse) { p.hear(group.None, true) }, 0},
		"the other member dies":   {func(_ *scene, p *fakePulse) { p.hear("", false) }, 0},
		"the session with the router is lost": {func(s *scene, _ *fakePulse) {
			s.speaker.down[netip.MustParseAddr("192.168.50.1")] = true
		}, 0},
		"packets are passed on": {func(s *scene, _ *fakePulse) { s.chance.(*fakeRing).passed++ }, ringEvery},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := newPair(t)
			ring := s.chance.(*fakeRing)
			s.pass(t, time.Minute)
			before := ring.forgot
			s.pass(t, time.Minute)
			if got := ring.forgot - before; got != 0 {
				t.Errorf("without a move: forgotten %d times, want never", got)
			}
			move.begins(s, p)
			s.settle(t)
			for waited := time.Duration(0); waited < move.within &&
				ring.forgot == before; waited += 500 * time.Millisecond {
				s.pass(t, 500*time.Millisecond)
			}
			if got := ring.forgot - before; got != 1 {
				t.Errorf("within %s: forgotten %d times, want once", move.within, got)
			}
			s.pass(t, time.Minute)
			if got := ring.forgot - before; got != 2 {
				t.Errorf("a minute later: forgotten %d times, want twice: at once, and when the routers have followed",
					got)
			}
		})
	}
}

func TestAnApplianceIsIsolatedWhenNobodyHearsIt(t *testing.T) {
	router := func(state string) bgp.PeerState {
		return bgp.PeerState{Peer: bgp.Peer{Upstream: true}, State: state}
	}
	node, silent, alive := bgp.PeerState{State: established}, group.Heard{}, group.Heard{Alive: true}
	for name, row := range map[string]struct {
		heard []group.Heard
		peers []bgp.PeerState
		want  bool
	}{
		"all are there":       {[]group.Heard{alive}, []bgp.PeerState{router(established), node}, false},
		"the router restarts": {[]group.Heard{silent, alive}, []bgp.PeerState{router("Active"), node}, false},
		"the others are dead": {[]group.Heard{silent}, []bgp.PeerState{router(established), router("Idle")}, false},
		"its cable is cut": {
			[]group.Heard{silent, silent},
			[]bgp.PeerState{router("Active"), router("Idle"), node},
			true,
		},
		"a group of one":          {nil, []bgp.PeerState{router("Active")}, false},
		"a group without routers": {[]group.Heard{silent}, []bgp.PeerState{node}, false},
	} {
		ms := &membership{member: new(member)}
		v := &status.View{BGP: status.Sessions{Peers: row.peers}}
		if got := ms.isolated(v, row.heard); got != row.want {
			t.Errorf("%s: got %t, want %t", name, got, row.want)
		}
	}
}
