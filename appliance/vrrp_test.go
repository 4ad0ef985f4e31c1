package appliance

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/routes/address"
)

// fakeVRRP is a keepalived that gives this appliance the first address.
type fakeVRRP struct {
	priority address.Priority
	set      bool // priority holds one
	services []netip.Addr
	cut      bool
}

func (f *fakeVRRP) Set(p address.Priority) error { f.priority, f.set = p, true; return nil }

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

func expectPriority(t *testing.T, f *fakeVRRP, when string, want address.Priority) {
	t.Helper()
	if f.priority != want {
		t.Errorf("%s VRRP has the priority %d, want %d", when, f.priority, want)
	}
}

func TestVRRPHasTheClassOfTheAppliance(t *testing.T) {
	s, p, f := newTurns(t)
	s.settle(t)
	expectPriority(t, f, "at the start", address.Lower)
	s.pass(t, firstSteps)
	expectPriority(t, f, "after the first rounds", address.Normal)
	if got := s.view.Load().Group.Addresses; !got[0].VRRP || got[1].VRRP {
		t.Errorf("the status has the addresses %+v, want the first one by VRRP", got)
	}

	if err := s.drains.begin(s.clock, false, true); err != nil {
		t.Fatal(err)
	}
	p.hear(group.Full, false)
	s.settle(t)
	expectPriority(t, f, "while it drains", address.Lowest)
	s.proxy.err = errors.New("connection refused")
	s.pass(t, 2*time.Second)
	expectPriority(t, f, "while it drains without HAProxy", address.Released)
}

// An appliance whose cable was out takes its addresses back when it knows again which member has
// which connection.
func TestAnApplianceWhoseCableWasOutIsFullLater(t *testing.T) {
	s, _, f := newTurns(t)
	s.settle(t)
	s.pass(t, firstSteps)
	expectPriority(t, f, "before", address.Normal)
	f.cut = true
	s.settle(t)
	expectPriority(t, f, "without a cable", address.Lower)
	f.cut = false
	s.settle(t)
	expectPriority(t, f, "right after it", address.Lower)
	s.pass(t, 4*time.Second) // after 3 s it is full again
	expectPriority(t, f, "some seconds later", address.Normal)
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
		if err := s.view.Load().Err; err == nil ||
			!strings.Contains(err.Error(), "install Debian's package keepalived") {
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
	if started != 3 || !f.set {
		t.Errorf("it was started %d times, and has a priority: %t; want 3 and a priority", started, f.set)
	}
}

func TestVRRPIsToldWhoIsWho(t *testing.T) {
	s, _, _ := newTurns(t)
	o := vrrpOptions(s.cfg, nil)
	if o.Self != netip.MustParseAddr("192.168.50.21") ||
		!slices.Equal(o.Members, addrs("192.168.50.21", "192.168.50.22")) || o.Interface != "nodes" || o.ID != 50 {
		t.Errorf("got %+v", o)
	}
}
