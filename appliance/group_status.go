package appliance

import (
	"net/netip"
	"slices"

	"sallyport/appliance/group"
	"sallyport/appliance/status"
)

// status describes the group after a round.
func (ms *membership) status(
	v *status.View, heard []group.Heard, serving []netip.Addr,
) *status.GroupStatus {
	g := &ms.member.of
	s := &status.GroupStatus{
		Name: g.Name, Class: ms.fit.Class, Why: ms.fit.Why, Since: ms.fitSince,
		Draining: ms.drains.get() != nil, Ring: ms.ring.status(),
	}
	s.Services = status.ServiceStatuses(v.Compiled.Balancers)
	for _, a := range serving {
		of := status.AddressOfGroup{Address: a}
		for _, m := range ms.movers() {
			m.note(v, &of)
		}
		for _, b := range v.Compiled.Balancers {
			if slices.Contains(b.Recorded, a) {
				of.Services = append(of.Services, b.Namespace+"/"+b.Name)
			}
		}
		s.Addresses = append(s.Addresses, of)
	}
	add := func(h group.Heard) {
		m := status.MemberStatus{
			Name: h.Member.Name, Address: h.Member.Address, Alive: h.Alive, Class: h.Word.Class,
			Draining: h.Word.Draining, Version: h.Word.Version,
			Age: h.Age, For: h.Word.Since, Problem: h.Problem,
		}
		if h.Alive {
			m.Reports, m.Differs = h.Word.Why, h.Word.Config != "" && h.Word.Config != v.Settings.Sum
		}
		if !m.Differs {
			m.Lags = ms.member.lags(m.Name, v.At)
		}
		s.Members = append(s.Members, m)
	}
	for _, m := range g.Members {
		if m.Name == ms.member.self {
			s.Members = append(s.Members, status.MemberStatus{
				Name: m.Name, Address: m.Address, Self: true, Alive: true, Class: s.Class, Draining: s.Draining,
				Version: ms.version, For: v.At.Sub(ms.fitSince),
			})
			continue
		}
		if i := slices.IndexFunc(heard, func(h group.Heard) bool { return h.Member == group.Member(m) }); i >= 0 {
			add(heard[i])
			heard = slices.Delete(slices.Clone(heard), i, i+1)
		}
	}
	for _, h := range heard {
		add(h)
	}
	return s
}
