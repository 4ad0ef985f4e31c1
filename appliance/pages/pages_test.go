package pages

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/page"
	"sallyport/appliance/status"
	"sallyport/bgp"
)

// The line from the clients to this appliance has the colour of what routers and VRRP do, and not
// that of every warning.
func TestTheEntranceHasTheColourOfItsState(t *testing.T) {
	router := func(addr string, heard ...string) bgp.PeerState {
		p := bgp.PeerState{Peer: bgp.Peer{Upstream: true, Addr: netip.MustParseAddr(addr)}}
		for _, a := range heard {
			p.Announced = append(p.Announced, netip.PrefixFrom(netip.MustParseAddr(a), 32))
		}
		return p
	}
	const one, two = "203.0.113.10", "203.0.113.11"
	silent, full := status.MemberStatus{Name: "gate-2"}, status.MemberStatus{Name: "gate-2", Alive: true, Class: group.Full}
	for name, row := range map[string]struct {
		routers  []bgp.PeerState
		byVRRP   []string    // addresses that are here by VRRP; nil: there is no VRRP
		none     bool        // there is no service address
		class    group.Class // empty: full
		draining bool
		other    status.MemberStatus
		dead     bool // HAProxy does not run
		want     page.Door
	}{
		"no router and no VRRP": {want: page.Door{Mark: page.Good}},
		"every router knows it": {routers: []bgp.PeerState{
			router("192.168.50.1", one, two),
			router("192.168.50.2", one, two),
		}, want: page.Door{Mark: page.Good, Label: "announced to 2 routers"}},
		"one router was lost": {routers: []bgp.PeerState{
			router("192.168.50.1", one, two),
			router("192.168.50.2"),
		}, want: page.Door{Mark: page.Warn, Label: "announced to 1 of 2 routers"}},
		"the only router was lost": {
			routers: []bgp.PeerState{router("192.168.50.1")},
			want:    page.Door{Mark: page.Bad, Label: "announced to no router"},
		},
		"another machine has one": {
			routers: []bgp.PeerState{router("192.168.50.1", one)},
			want:    page.Door{Mark: page.Warn, Label: "1 of 2 addresses announced"},
		},
		"it is spare": {
			routers: []bgp.PeerState{router("192.168.50.1", one, two)}, class: group.Spare,
			want: page.Door{Mark: page.Warn, Label: "announced as last resort"},
		},
		"it drains": {
			routers: []bgp.PeerState{router("192.168.50.1")}, class: group.None,
			draining: true, want: page.Door{Mark: page.Idle, Label: "drained"},
		},
		"no Service has an address": {
			routers: []bgp.PeerState{router("192.168.50.1")}, none: true,
			want: page.Door{Mark: page.Idle, Label: "no service address yet"},
		},
		"HAProxy has died": {
			routers: []bgp.PeerState{router("192.168.50.1", one, two)}, dead: true,
			want: page.Door{Mark: page.Bad, Label: "HAProxy does not run"},
		},
		"all by VRRP": {
			byVRRP: []string{one, two}, other: full,
			want: page.Door{Mark: page.Good, Label: "here by VRRP"},
		},
		"half of them by VRRP": {
			byVRRP: []string{one}, other: full,
			want: page.Door{Mark: page.Good, Label: "1 of 2 addresses, by VRRP"},
		},
		"half of them, and none other": {
			byVRRP: []string{one}, other: silent,
			want: page.Door{Mark: page.Warn, Label: "1 of 2 addresses, by VRRP"},
		},
		"all on another member": {
			byVRRP: []string{}, other: full,
			want: page.Door{Mark: page.Idle, Label: "another member, by VRRP"},
		},
		"on no member": {
			byVRRP: []string{}, other: silent,
			want: page.Door{Mark: page.Bad, Label: "no member, by VRRP"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &config.Config{}
			if row.byVRRP != nil {
				cfg.Group.VRRP.Interface = "eth0"
			}
			g := &status.GroupStatus{
				Class: cmp.Or(row.class, group.Full), Draining: row.draining,
				Members: []status.MemberStatus{{Self: true, Alive: true, Class: group.Full}, row.other},
			}
			s := status.Status{Group: g, Peers: row.routers}
			if !row.dead {
				s.HAProxy.Worker = 4711
			}
			for range row.routers {
				cfg.Group.Upstream.Peers = append(cfg.Group.Upstream.Peers, config.Router{})
			}
			for _, a := range []netip.Addr{netip.MustParseAddr(one), netip.MustParseAddr(two)} {
				of := status.AddressOfGroup{Address: a, VRRP: slices.Contains(row.byVRRP, a.String())}
				for _, r := range row.routers {
					if slices.ContainsFunc(r.Announced, func(p netip.Prefix) bool { return p.Addr() == a }) {
						of.Announced = append(of.Announced, r.Addr)
					}
				}
				if !row.none {
					g.Addresses = append(g.Addresses, of)
				}
			}
			q := request{index: &status.Index{View: &status.View{Settings: status.InUse{Config: cfg}}}, status: s}
			if got := q.entrance(); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// The path over a node stays open for a while without a session, and its row says what is wrong all
// the same.
func TestANodeWithoutASessionStandsOut(t *testing.T) {
	worker := netip.MustParseAddr("192.168.50.23")
	lost := bgp.PeerState{
		Peer: bgp.Peer{Cluster: "demo", Node: "worker1", Addr: worker}, State: "Active",
		LossCode: bgp.HoldTimeExpired, LossReason: "nothing was heard for the hold time",
	}
	n := &status.Node{
		NodeName: status.NodeName{Cluster: "demo", Name: "worker1"}, Peers: []bgp.PeerState{lost},
		Blocks: []*status.Block{{Installed: true}}, Counts: status.Counts{All: 1, Open: 1},
	}
	q := request{index: &status.Index{View: &status.View{}}}
	r := q.row(n)
	if got, want := []page.Mark{r.Mark(), r.Node.Mark, marks[n.Level()]},
		[]page.Mark{page.Good, page.Warn, page.Warn}; !slices.Equal(got, want) {
		t.Errorf("path, node and both are %v, want %v", got, want)
	}
	if want := "there is no BGP session with node worker1 (192.168.50.23); the last session ended: nothing was heard " +
		"for the hold time; look whether the node is up"; len(r.Why) != 1 || !strings.HasPrefix(r.Why[0], want) {
		t.Errorf("got %q, want %q", r.Why, want)
	}
	n.Peers[0].State = "Established"
	if r := q.row(n); r.Node.Mark != page.Good || r.Why != nil {
		t.Errorf("with a session: got %v and %q, want good and no reason", r.Node.Mark, r.Why)
	}
}

func TestATableHasALongReasonOnce(t *testing.T) {
	brief, got := inOneTable(), []string(nil)
	down := func(at string) status.Why {
		return status.Why{Code: status.NoSession, Short: "no route to " + at, Rest: "the session is down: look"}
	}
	for _, why := range []status.Why{
		down("10.0.0.0"), down("10.0.0.1"),
		{Code: status.OfferRefused, Short: "no route to 10.0.0.2", Rest: "refused"},
		{},
		{},
		{Code: status.Opening, Short: "being opened"},
		{Code: status.Opening, Short: "being opened"},
	} {
		got = append(got, brief(why))
	}
	want := []string{
		"no route to 10.0.0.0: the session is down: look", "no route to 10.0.0.1, as above",
		"no route to 10.0.0.2: refused", "", "", "being opened", "being opened",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheDrawingHasTheShareOfEachCluster(t *testing.T) {
	part := func(n float64) *float64 { return &n }
	well := status.ClusterStatus{Name: "blue", State: "active", Share: part(1)}
	alone := status.ClusterStatus{Name: "red", State: "active"}
	many := slices.Repeat([]status.ClusterStatus{well}, 5)
	for name, row := range map[string]struct {
		clusters []status.ClusterStatus
		want     []page.Line
		summary  string
	}{
		"no set": {[]status.ClusterStatus{alone}, nil, ""},
		"one gets nothing": {
			[]status.ClusterStatus{well, alone, {
				Name: "green", State: "active", Share: part(0), Asked: part(0.5), Why: "3 servers fail their checks",
			}},
			[]page.Line{{Mark: page.Good, Text: "blue: 100 %"}, {Mark: page.Warn, Text: "green: 0 % of 50 %"}},
			"Cluster green: 3 servers fail their checks. ",
		},
		"one is drained": {
			[]status.ClusterStatus{well, {Name: "green", State: "drained", Share: part(0), Why: "by sallyport drain"}},
			[]page.Line{{Mark: page.Good, Text: "blue: 100 %"}, {Mark: page.Warn, Text: "green: 0 %, drained"}},
			"Cluster green: by sallyport drain. ",
		},
		"a standby": {
			[]status.ClusterStatus{well, {Name: "green", State: "standby", Share: part(0)}},
			[]page.Line{{Mark: page.Good, Text: "blue: 100 %"}, {Mark: page.Good, Text: "green: 0 %, standby"}},
			"",
		},
		"many": {
			append(many, status.ClusterStatus{Name: "green", State: "silent", Share: part(0), Why: "it is lost"}),
			[]page.Line{{Mark: page.Warn, Text: "green: 0 %, silent"}},
			"Cluster green: it is lost. ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := new(page.Diagram)
			drawClusters(d, row.clusters)
			if !slices.Equal(d.Appliance.Notes, row.want) {
				t.Errorf("the drawing has %+v, want %+v", d.Appliance.Notes, row.want)
			}
			if d.Summary != row.summary {
				t.Errorf("the summary has %q, want %q", d.Summary, row.summary)
			}
		})
	}
}
