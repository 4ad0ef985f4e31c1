package appliance

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/status"
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

// An address that no node owns has no block to look up. The narrowest reason is an offer that holds
// it and was refused; the default route, which every address is in, says nothing.
func TestAnAddressOfNoBlockSaysWhichOfferWasRefused(t *testing.T) {
	refuse := func(prefix, why string) routes.Refusal {
		return routes.Refusal{Offer: routes.Offer{
			Peer:   netip.MustParseAddr("192.168.50.23"),
			Prefix: netip.MustParsePrefix(prefix),
		}, Why: why}
	}
	x := &status.Index{View: &status.View{}}
	x.View.BGP.Refusals = []routes.Refusal{
		refuse("0.0.0.0/0", "it is the default route"), refuse("172.16.9.0/26", "no node owns it"),
	}
	lone := &status.Block{Cluster: "demo", Affinity: routes.Affinity{Prefix: netip.MustParsePrefix("172.16.9.5/32")}}
	owned := &status.Block{
		Cluster:  "demo",
		Affinity: routes.Affinity{Node: "worker1", Prefix: netip.MustParsePrefix("172.16.9.5/32")},
	}
	for want, b := range map[string]*status.Block{
		"the offer of 172.16.9.0/26 by 192.168.50.23 was refused: no node owns it": lone,
		"no BGP peer offers its block":                                             owned,
	} {
		if got := x.WhyNoRouteTo(nil, b).String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAnIngressShowsWhenItsCertificatesExpire(t *testing.T) {
	s := half(t)
	v := *s.view.Load()
	cfg := *v.Config
	in := func(d time.Duration) time.Time { return v.At.Add(d) }
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
			v.Config = &cfg
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
	for _, warning := range slices.Concat(v.Warnings, v.NotReady) {
		if strings.Contains(warning, "\n") {
			t.Errorf("two sentences are one: %q", warning)
		}
	}
	if !s.warns("no answer from the kernel") || !s.warns("no answer from HAProxy") {
		t.Errorf("got %q", v.Warnings)
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
			if n := status.CountFunc(s.view.Load().Warnings, func(w string) bool {
				return strings.Contains(w, "there has been no BGP session with ")
			}); n != 1 || !s.warns(row.want) {
				t.Errorf("%d warnings of sessions, want one with %q: %q", n, row.want, s.view.Load().Warnings)
			}
		})
	}
}

// A pool may have hundreds of Services, each with an address.
func TestServicesAndTheirAddressesAreListedInPages(t *testing.T) {
	s, _ := newPair(t)
	v := *s.view.Load()
	g := *v.Group
	for i := range 60 {
		a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		g.Addresses = append(g.Addresses,
			status.AddressOfGroup{Address: a, Held: true, Services: []string{fmt.Sprintf("shop/svc-%02d", i)}})
		g.Services = append(g.Services,
			status.ServiceStatus{Cluster: "demo", Service: fmt.Sprintf("shop/svc-%02d", i), Addresses: []netip.Addr{a}})
	}
	g.Services[59].Addresses, g.Services[59].Why = nil, "the pools have no address left"
	v.Group = &g
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
