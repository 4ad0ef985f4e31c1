package appliance

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/bgp"
)

// A mover is one of the ways in which a service address comes to this machine and leaves it. A
// group has three: loopback, announcer (BGP with routers) and turns (VRRP). The round asks them in
// this order. A mover that the configuration of the group does not have does nothing.
type mover interface {
	// move offers addresses as the class of this appliance says, or takes them back.
	move(*offer) error
	// note adds to the status of an address whether it comes here in this way.
	note(*status.View, *status.AddressOfGroup)
	// cut reports whether this machine has lost the others that this way needs. silent is set if no
	// other member is heard.
	cut(v *status.View, silent bool) bool
	// troubles returns the faults of this way.
	troubles(*status.View) []status.Finding
}

var (
	_ mover = (*loopback)(nil)
	_ mover = (*announcer)(nil)
	_ mover = (*turns)(nil)
)

// An offer holds the wishes of a round for the movers.
type offer struct {
	now      time.Time
	of       *config.Group
	class    group.Class
	draining bool
	answers  bool         // HAProxy answers
	mine     []netip.Addr // the addresses that this appliance may take: those of the group, and those of Services
	held     []netip.Addr // those that this machine has on lo; loopback sets it
}

// movers returns the movers of this appliance, sorted by their turn. In no group they
// only take back the addresses of an earlier group.
func (ms *membership) movers() []mover {
	all := []mover{&ms.loopback, &ms.announcer}
	if ms.member != nil {
		all = append(all, &ms.member.turns)
	}
	return all
}

// move has each mover offer the addresses. An error of one mover stops no other mover.
func (ms *membership) move(o *offer) (err error) {
	for _, m := range ms.movers() {
		err = errors.Join(err, m.move(o))
	}
	return err
}

// isolated reports whether this machine has lost the others that one of its movers needs.
func (ms *membership) isolated(v *status.View, heard []group.Heard) bool {
	return slices.ContainsFunc(ms.movers(), func(m mover) bool { return m.cut(v, silent(heard)) })
}

func (ms *membership) troublesOfMovers(v *status.View) (all []status.Finding) {
	for _, m := range ms.movers() {
		all = append(all, m.troubles(v)...)
	}
	return all
}

// loopback puts the addresses on lo. The goroutine of the loop owns it.
type loopback struct {
	hold func([]netip.Addr) ([]netip.Addr, error) // puts the addresses of the group on lo
	held []netip.Addr
}

func (l *loopback) move(o *offer) (err error) {
	l.held, err = l.hold(o.mine)
	o.held = l.held
	return err
}

func (l *loopback) note(_ *status.View, a *status.AddressOfGroup) {
	a.Held = slices.Contains(l.held, a.Address)
}

func (l *loopback) cut(*status.View, bool) bool { return false }

func (l *loopback) troubles(*status.View) []status.Finding { return nil }

// announcer announces the addresses on lo to the routers. The goroutine of the loop owns it.
type announcer struct {
	speaker speaker
	left    bool // the routers have been told that this appliance serves no address
}

func (b *announcer) move(o *offer) error {
	var announcements []bgp.Announcement
	if o.class != group.None {
		for _, a := range o.held {
			announcements = append(announcements, bgp.Announcement{
				Prefix: netip.PrefixFrom(a, a.BitLen()), LastResort: o.class == group.Spare,
			})
		}
	}
	err := b.speaker.Announce(announcements)
	b.left = err == nil && o.class == group.None
	return err
}

func (b *announcer) note(v *status.View, a *status.AddressOfGroup) {
	for _, p := range v.BGP.Peers {
		if slices.ContainsFunc(p.Announced, func(p netip.Prefix) bool { return p.Addr() == a.Address }) {
			a.Announced = append(a.Announced, p.Addr)
		}
	}
}

// cut reports whether no other member is heard and no router has a session with this appliance. It
// reports false if the group has no routers, because then nothing is lost.
func (b *announcer) cut(v *status.View, silent bool) bool {
	routers := slices.DeleteFunc(slices.Clone(v.BGP.Peers), func(p bgp.PeerState) bool { return !p.Upstream })
	return silent && len(routers) > 0 && !slices.ContainsFunc(routers, bgp.PeerState.Up)
}

// troubles returns a finding for each router without BFD.
func (b *announcer) troubles(v *status.View) (all []status.Finding) {
	for _, p := range v.BGP.Peers {
		if p.Upstream && p.Up() && p.BFD == "down" && v.At.Sub(p.Since) > status.Patience {
			all = append(all, status.Finding{
				Code: status.RouterBFD, Subject: p.Addr.String(), Level: status.Doubt,
				Saw: fmt.Sprintf("BFD with the router %s is down though its BGP session is established, so the loss "+
					"of this machine shows only after the hold time", p.Addr),
				Remedy: fmt.Sprintf("switch BFD on for this appliance on the router, and let UDP %d pass, or set "+
					"group.upstream.bfd: false", config.BFDPort),
				Command: "sallyport status peers",
			})
		}
	}
	return all
}
