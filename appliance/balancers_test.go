package appliance

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/routes"
)

func TestAMemberRemovesOnlyWhatAllFullMembersDoNotServe(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	same := group.Word{Class: string(Full), Config: "c", Shape: "s"}
	other, reconfigured, behind := same, same, same
	other.Shape, reconfigured.Config, behind.Class = "t", "d", string(Spare)
	behind.Shape = "t"
	for name, row := range map[string]struct {
		class Class
		heard []group.Heard // all the time
		after time.Duration
		want  consent
	}{
		"spare":                                       {Spare, nil, time.Hour, consent{}},
		"full, and alone":                             {Full, nil, agreeing, consent{true, true}},
		"full, and not for long":                      {Full, nil, agreeing - time.Second, consent{true, false}},
		"another full member serves the same":         {Full, []group.Heard{{Word: same, Alive: true}}, agreeing, consent{true, true}},
		"another full member serves something else":   {Full, []group.Heard{{Word: other, Alive: true}}, time.Hour, consent{true, false}},
		"another full member is configured otherwise": {Full, []group.Heard{{Word: reconfigured, Alive: true}}, time.Hour, consent{true, false}},
		"a member that is silent does not count":      {Full, []group.Heard{{Word: other}}, agreeing, consent{true, true}},
		"a member that is spare does not count":       {Full, []group.Heard{{Word: behind, Alive: true}}, agreeing, consent{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			now := start
			l := &loop{member: new(member), fit: Fitness{Class: row.class}, now: func() time.Time { return now }}
			l.member.compare(now, row.heard, "c", "s")
			now = now.Add(row.after)
			l.member.compare(now, row.heard, "c", "s")
			if got := l.consent(); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
	if got := (&loop{}).consent(); got != (consent{true, true}) {
		t.Errorf("without a group: got %+v", got)
	}
}

func TestTheAddressOfANodeIsNoServices(t *testing.T) {
	pools := []config.Pool{{First: netip.MustParseAddr("192.168.50.20"), Last: netip.MustParseAddr("192.168.50.30")}}
	topologies := []routes.Topology{{
		Cluster:   "demo",
		Nodes:     []routes.Node{{Name: "worker1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.50.23"), netip.MustParseAddr("10.0.0.1")}}},
		Protected: []netip.AddrPort{netip.MustParseAddrPort("192.168.50.22:6443")},
	}}
	want := map[netip.Addr]string{
		netip.MustParseAddr("192.168.50.22"): "an address of the API server of cluster demo",
		netip.MustParseAddr("192.168.50.23"): "an address of node worker1",
	}
	if got := closed(pools, topologies); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := closed(nil, topologies); got != nil {
		t.Errorf("without pools: got %v", got)
	}
}
