package appliance

import (
	"cmp"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/page"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
)

// allocations returns how many objects a request for a page allocates, once its view was shown.
func allocations(t *testing.T, s *scene, path string) float64 {
	t.Helper()
	h, _ := endpoint(s)
	return testing.AllocsPerRun(2, func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if w.Code != 200 {
			t.Fatalf("%s: %d", path, w.Code)
		}
	})
}

// A page costs what it shows. What grows with the clusters is counted once for each round, by the
// first request, and a search looks at every server without a copy of each.
func TestAPageCostsWhatItShows(t *testing.T) {
	small, _ := largeScene(t, 100)
	large, _ := largeScene(t, 10_000)
	for _, path := range largePages {
		if path == "/node/demo/worker1" { // it shows each block
			continue
		}
		in := strings.NewReplacer("svc-09", "svc-00", "svc-0777", "svc-0007", "page=1000", "page=2", "172.16.9",
			"172.16.1")
		few, many := allocations(t, small, in.Replace(path)), allocations(t, large, path)
		t.Logf("%s: %.0f and %.0f", path, few, many)
		if bound := 2*few + 500; many > bound {
			t.Errorf("%s allocates %.0f objects among 500 servers, and %.0f among 50,000, want at most %.0f", path, few,
				many, bound)
		}
	}
}

// Whoever reads no further than the heading learns that clients get no answer.
func TestTheHeadingSaysThatNoServerIsOpen(t *testing.T) {
	for name, row := range map[string]struct {
		routed bool
		want   string
	}{
		"there are routes": {true, ">gate-1 is ready</h1>"},
		"there are none":   {false, ">gate-1 is ready, but no server is open</h1>"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.speaker.announce(block1, node1)
			s.speaker.announce(block2, node2)
			if !row.routed {
				s.speaker.offers = nil // nodes have spoken, and announce nothing
			}
			s.settle(t)
			h, _ := endpoint(s)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
			if !strings.Contains(w.Body.String(), row.want) {
				t.Errorf("want %q in:\n%.1500s", row.want, w.Body)
			}
		})
	}
}

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
	silent, full := MemberStatus{Name: "gate-2"}, MemberStatus{Name: "gate-2", Alive: true, Class: group.Full}
	for name, row := range map[string]struct {
		routers  []bgp.PeerState
		byVRRP   []string    // addresses that are here by VRRP; nil: there is no VRRP
		none     bool        // there is no service address
		class    group.Class // empty: full
		draining bool
		other    MemberStatus
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
			g := &GroupStatus{
				Class: cmp.Or(row.class, group.Full), Draining: row.draining,
				Members: []MemberStatus{{Self: true, Alive: true, Class: group.Full}, row.other},
			}
			s := Status{Group: g, Peers: row.routers}
			if !row.dead {
				s.HAProxy.Worker = 4711
			}
			for range row.routers {
				cfg.Group.Upstream.Peers = append(cfg.Group.Upstream.Peers, config.Router{})
			}
			for _, a := range addrs(one, two) {
				of := AddressOfGroup{Address: a, VRRP: slices.Contains(row.byVRRP, a.String())}
				for _, r := range row.routers {
					if slices.ContainsFunc(r.Announced, func(p netip.Prefix) bool { return p.Addr() == a }) {
						of.Announced = append(of.Announced, r.Addr)
					}
				}
				if !row.none {
					g.Addresses = append(g.Addresses, of)
				}
			}
			x := &index{view: &view{settings: settings{cfg: cfg}}}
			if got := x.entrance(s); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// A warning about something else leaves the entrance open: clients reach the appliance.
func TestALostRouterShutsTheEntrance(t *testing.T) {
	s, p := newPair(t)
	s.speaker.state = established
	s.pass(t, firstSteps)
	p.hear("", false) // the other member is silent: a warning
	s.settle(t)
	for _, row := range []struct {
		name string
		lost bool
		want []string
	}{
		{
			"a member is silent", false,
			[]string{
				">gate-1 is ready</h1>", `<path class="good" d="M143 `, ">✓ entrance open<",
				">announced to 1 router<",
			},
		},
		{
			"the router is lost, too", true,
			[]string{
				">gate-1 is ready, but clients do not reach it: announced to no router</h1>",
				`<path class="bad" d="M143 `, ">✕ entrance shut<", "Entrance: announced to no router.",
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			s.speaker.down[netip.MustParseAddr("192.168.50.1")] = row.lost
			s.settle(t)
			h, _ := endpoint(s)
			_, text := ask(t, h, "/")
			for _, want := range row.want {
				if !strings.Contains(text, want) {
					t.Errorf("want %q in:\n%.6000s", want, text)
				}
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
		LossReason: "nothing was heard for the hold time",
	}
	n := &nodeIndex{
		nodeName: nodeName{"demo", "worker1"}, peers: []bgp.PeerState{lost},
		blocks: []*blockIndex{{installed: true}}, counts: serverCounts{all: 1, open: 1},
	}
	r := (&index{view: &view{}}).row(n)
	if got, want := []page.Mark{r.Mark(), r.Node.Mark, n.mark()},
		[]page.Mark{page.Good, page.Warn, page.Warn}; !slices.Equal(got, want) {
		t.Errorf("path, node and both are %v, want %v", got, want)
	}
	if want := "there is no BGP session with node worker1 (192.168.50.23); the last session ended: nothing was heard " +
		"for the hold time; look whether the node is up"; len(r.Why) != 1 || !strings.HasPrefix(r.Why[0], want) {
		t.Errorf("got %q, want %q", r.Why, want)
	}
	n.peers[0].State = established
	if r := (&index{view: &view{}}).row(n); r.Node.Mark != page.Good || r.Why != nil {
		t.Errorf("with a session: got %v and %q, want good and no reason", r.Node.Mark, r.Why)
	}
}

// An address that no node owns has no block to look up. The narrowest reason is an offer that holds
// it and was refused; the default route, which every address is in, says nothing.
func TestAnAddressOfNoBlockSaysWhichOfferWasRefused(t *testing.T) {
	refuse := func(prefix, why string) routes.Refusal {
		return routes.Refusal{Offer: routes.Offer{
			Peer:   netip.MustParseAddr("192.168.50.23"),
			Prefix: netip.MustParsePrefix(prefix),
		}, Why: why}
	}
	x := &index{view: &view{}}
	x.refusals = []routes.Refusal{
		refuse("0.0.0.0/0", "it is the default route"), refuse("172.16.9.0/26", "no node owns it"),
	}
	lone := &blockIndex{cluster: "demo", affinity: routes.Affinity{Prefix: netip.MustParsePrefix("172.16.9.5/32")}}
	owned := &blockIndex{
		cluster:  "demo",
		affinity: routes.Affinity{Node: "worker1", Prefix: netip.MustParsePrefix("172.16.9.5/32")},
	}
	for want, b := range map[string]*blockIndex{
		"the offer of 172.16.9.0/26 by 192.168.50.23 was refused: no node owns it": lone,
		"no BGP peer offers its block":                                             owned,
	} {
		if got := x.whyNoRouteTo(nil, b); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAnIngressShowsWhenItsCertificatesExpire(t *testing.T) {
	s := half(t)
	v := *s.view.Load()
	cfg := *v.config
	in := func(d time.Duration) time.Time { return v.at.Add(d) }
	for name, row := range map[string]struct {
		certs []haproxy.Cert
		want  string // in both pages; empty: no certificate
	}{
		"its own": {
			[]haproxy.Cert{{Hosts: []string{"test.local"}, Expires: in(72 * time.Hour)}},
			"in 3 days",
		},
		"the one that is over": {[]haproxy.Cert{
			{Hosts: []string{"test.local"}, Expires: in(900 * time.Hour)},
			{Hosts: []string{"test.local"}, Expires: in(-25 * time.Hour)},
		}, "expired 25 h ago"},
		"that of a wildcard": {
			[]haproxy.Cert{{Hosts: []string{"*.local"}, Expires: in(9000 * time.Hour)}},
			"in 375 days",
		},
		"not of its wildcard": {
			[]haproxy.Cert{{Hosts: []string{"*.local"}, Except: []string{"test.local"}, Expires: in(time.Hour)}}, "",
		},
		"of another host": {[]haproxy.Cert{{Hosts: []string{"other.local"}, Expires: in(time.Hour)}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v, cfg := v, cfg
			cfg.Certs = nil
			for i := range row.certs {
				cfg.Certs = append(cfg.Certs, &row.certs[i])
			}
			v.config = &cfg
			s.view.Store(&v)
			h, _ := endpoint(s)
			for _, path := range []string{"/ingresses", "/ingress/demo/default/web"} {
				_, text := ask(t, h, path)
				if row.want != "" && !strings.Contains(text, row.want) {
					t.Errorf("%s lacks %q:\n%s", path, row.want, text)
				}
				if row.want == "" && strings.Contains(text, "expires") {
					t.Errorf("%s has a certificate", path)
				}
			}
		})
	}
}

func TestEachErrorOfARoundIsAWarningOfItsOwn(t *testing.T) {
	s := newScene(t)
	s.kernel.err, s.proxy.err = errors.New("no answer from the kernel"), errors.New("no answer from HAProxy")
	s.round(t.Context())
	s.clock = s.clock.Add(time.Minute)
	s.round(t.Context())
	v := s.view.Load()
	for _, warning := range slices.Concat(v.warnings, v.notReady) {
		if strings.Contains(warning, "\n") {
			t.Errorf("two sentences are one: %q", warning)
		}
	}
	if !s.warns("no answer from the kernel") || !s.warns("no answer from HAProxy") {
		t.Errorf("got %q", v.warnings)
	}
}

// Among hundreds of nodes with one fault another fault has to be seen.
func TestNodesThatShareAFaultShareItsWarning(t *testing.T) {
	s := wide(t, 7)
	for name, row := range map[string]struct {
		down int
		want string
	}{
		"one": {1, "cluster demo: there has been no BGP session with node worker1 (192.168.50.23) for 1m0s: the " +
			"last session ended: hold timer expired"},
		"some": {2, "cluster demo: there has been no BGP session with node worker1 (192.168.50.23), node worker2 " +
			"(192.168.50.24) for 1m0s: the last"},
		"all": {7, "node worker4 (192.168.50.26), node worker5 (192.168.50.27) and 2 more for 1m0s: the last " +
			"session ended"},
	} {
		t.Run(name, func(t *testing.T) {
			s.speaker.down = map[netip.Addr]bool{}
			s.settle(t)
			for i := range row.down {
				s.speaker.down[netip.AddrFrom4([4]byte{192, 168, 50, byte(23 + i)})] = true
			}
			s.settle(t)
			s.clock = s.clock.Add(time.Minute)
			s.settle(t)
			if n := countFunc(s.view.Load().warnings, func(w string) bool {
				return strings.Contains(w, noSession)
			}); n != 1 || !s.warns(row.want) {
				t.Errorf("%d warnings of sessions, want one with %q: %q", n, row.want, s.view.Load().warnings)
			}
		})
	}
}

// A pool may have hundreds of Services, each with an address.
func TestServicesAndTheirAddressesAreListedInPages(t *testing.T) {
	s, _ := newPair(t)
	v := *s.view.Load()
	g := *v.group
	for i := range 60 {
		a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		g.Addresses = append(g.Addresses,
			AddressOfGroup{Address: a, Held: true, Services: []string{fmt.Sprintf("shop/svc-%02d", i)}})
		g.Services = append(g.Services,
			ServiceStatus{Cluster: "demo", Service: fmt.Sprintf("shop/svc-%02d", i), Addresses: []netip.Addr{a}})
	}
	g.Services[59].Addresses, g.Services[59].Why = nil, "the pools have no address left"
	v.group = &g
	s.view.Store(&v)
	h, _ := endpoint(s)
	for path, row := range map[string]struct{ has, lacks string }{
		"/":                        {"the pools have no address left", "shop/svc-30"},
		"/services":                {"shop/svc-30", ""},
		"/services?q=svc-3&page=1": {"shop/svc-39", "shop/svc-40"},
		"/addresses?q=100.41":      {"shop/svc-41", "shop/svc-40"},
		"/search?q=198.51.100.33":  {"shop/svc-33", "svc-34"},
	} {
		_, text := ask(t, h, path)
		if !strings.Contains(text, row.has) || row.lacks != "" && strings.Contains(text, row.lacks) {
			t.Errorf("%s: want %q in it and not %q:\n%s", path, row.has, row.lacks, text)
		}
	}
}

func TestATableHasALongReasonOnce(t *testing.T) {
	brief, got := inOneTable(), []string(nil)
	for i, why := range []string{
		"no route to 10.0.0.0: the session is down: look",
		"no route to 10.0.0.1: the session is down: look", "no route to 10.0.0.2: refused", "", "", "being opened",
		"being opened",
	} {
		got = append(got, brief(why, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})))
	}
	want := []string{
		"no route to 10.0.0.0: the session is down: look", "no route to 10.0.0.1, as above",
		"no route to 10.0.0.2: refused", "", "", "being opened", "being opened",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
