package appliance

import (
	"testing"

	"sallyport/appliance/group"
	"sallyport/appliance/status"
)

// TestMoversServeAnAddressAndGiveItBack asks all movers of a group at once, as the rounds do, and
// looks at what each tells of an address.
func TestMoversServeAnAddressAndGiveItBack(t *testing.T) {
	s, _, vrrp := newTurns(t)
	s.announcer.speaker = s.speaker
	addresses := s.cfg.Group.Addresses
	told := func() (a status.AddressOfGroup) {
		a.Address = addresses[0]
		for _, m := range s.movers() {
			m.note(&status.View{}, &a)
		}
		return a
	}
	serve := offer{now: s.clock, of: &s.cfg.Group, class: group.Full, answers: true, mine: addresses}
	if err := s.move(&serve); err != nil {
		t.Fatal(err)
	}
	if a := told(); !a.Held || !a.VRRP || len(s.speaker.announced) != len(addresses) || s.announcer.left {
		t.Errorf("a full member: %+v, announced %v; want all", a, s.speaker.announced)
	}
	expectPriority(t, vrrp, "a full member's", 0)

	if err := s.move(&offer{now: s.clock, of: &s.cfg.Group, class: group.None, mine: addresses}); err != nil {
		t.Fatal(err)
	}
	if a := told(); !a.Held || len(s.speaker.announced) != 0 || !s.announcer.left {
		t.Errorf("a member that serves nothing: %+v, announced %v; want the address on lo alone", a,
			s.speaker.announced)
	}

	s.member = nil
	if err := s.move(&offer{now: s.clock, class: group.None}); err != nil {
		t.Fatal(err)
	}
	if a := told(); a.Held || a.VRRP || len(a.Announced) != 0 || len(s.movers()) != 2 {
		t.Errorf("without a group: %+v, want nothing", a)
	}
}
