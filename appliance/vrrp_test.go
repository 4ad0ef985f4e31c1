package appliance

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
)

// fakeVRRP is a keepalived that gives this appliance the first address.
type fakeVRRP struct {
	class    string
	services []netip.Addr
	cut      bool
}

func (f *fakeVRRP) Set(class string) error { f.class = class; return nil }

func (f *fakeVRRP) Serve(services []netip.Addr) error { f.services = services; return nil }

func (f *fakeVRRP) Cut() bool { return f.cut }

func (f *fakeVRRP) Held() ([]netip.Addr, error) { return addrs("203.0.113.10"), nil }

// newTurns returns a scene of a settled member of a group with VRRP.
func newTurns(t *testing.T) (*scene, *fakePulse, *fakeVRRP) {
	t.Helper()
	s, p := newPair(t)
	f := new(fakeVRRP)
	s.cfg.Group.VRRP = config.VRRP{Interface: "nodes", ID: 50, Interval: time.Second}
	s.member.of = s.cfg.Group
	s.member.turns = turns{start: func(_, _ []netip.Addr) (vrrp, func(), error) { return f, func() {}, nil }}
	return s, p, f
}

func expectClass(t *testing.T, f *fakeVRRP, when, want string) {
	t.Helper()
	if f.class != want {
		t.Errorf("%s VRRP has the class %q, want %q", when, f.class, want)
	}
}

func TestVRRPHasTheClassOfTheAppliance(t *testing.T) {
	s, p, f := newTurns(t)
	s.settle(t)
	expectClass(t, f, "at the start", "spare")
	s.pass(t, firstSteps)
	expectClass(t, f, "after the first rounds", "full")
	if got := s.view.Load().group.Addresses; !got[0].VRRP || got[1].VRRP {
		t.Errorf("the status has the addresses %+v, want the first one by VRRP", got)
	}

	if err := s.drains.begin(s.clock, false, true); err != nil {
		t.Fatal(err)
	}
	p.hear(Full, false)
	s.settle(t)
	expectClass(t, f, "while it drains", "drain")
	s.proxy.err = errors.New("connection refused")
	s.pass(t, 2*time.Second)
	expectClass(t, f, "while it drains without HAProxy", "none")
}

// An appliance whose cable was out takes its addresses back when it knows again which member has
// which connection.
func TestAnApplianceWhoseCableWasOutIsFullLater(t *testing.T) {
	s, _, f := newTurns(t)
	s.settle(t)
	s.pass(t, firstSteps)
	expectClass(t, f, "before", "full")
	f.cut = true
	s.settle(t)
	expectClass(t, f, "without a cable", "spare")
	f.cut = false
	s.settle(t)
	expectClass(t, f, "right after it", "spare")
	s.pass(t, firstWait+time.Second)
	expectClass(t, f, "some seconds later", "full")
}

func TestWithoutKeepalivedTheRoundSaysSoAndTriesAgain(t *testing.T) {
	s, _, f := newTurns(t)
	started := 0
	s.member.turns = turns{start: func(_, _ []netip.Addr) (vrrp, func(), error) {
		if started++; started < 3 {
			return nil, func() {}, errors.New("install Debian's package keepalived")
		}
		return f, func() {}, nil
	}}
	s.clock = s.clock.Add(time.Second)
	for range 3 {
		s.round(t.Context())
		if err := s.view.Load().err; err == nil || !strings.Contains(err.Error(), "install Debian's package keepalived") {
			t.Errorf("got error %v, want one about keepalived", err)
		}
	}
	if started != 1 {
		t.Errorf("it was started %d times at once, want 1", started)
	}
	for range 2 {
		s.clock = s.clock.Add(vrrpRetry)
		s.round(t.Context())
	}
	if started != 3 || f.class == "" {
		t.Errorf("it was started %d times, and has the class %q; want 3 and a class", started, f.class)
	}
}

func TestVRRPIsToldWhoIsWho(t *testing.T) {
	s, _, _ := newTurns(t)
	o := vrrpOptions(s.cfg, nil)
	if o.Self != netip.MustParseAddr("192.168.50.21") || !slices.Equal(o.Members, addrs("192.168.50.21", "192.168.50.22")) || o.Interface != "nodes" || o.ID != 50 {
		t.Errorf("got %+v", o)
	}
}
