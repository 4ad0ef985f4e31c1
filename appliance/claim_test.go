package appliance

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/routes"
	"sallyport/routes/address"
)

// strangers is a network in which other machines have some addresses.
type strangers struct {
	mu    sync.Mutex // a probe that nobody waits for any more may still read have and err
	have  map[netip.Addr]address.Owner
	err   error
	asked chan struct{}
}

func (f *strangers) probe(_ context.Context, addresses, members []netip.Addr) (map[netip.Addr]address.Owner, error) {
	defer func() { f.asked <- struct{}{} }()
	if len(addresses) != 2 || len(members) != 1 || members[0] != netip.MustParseAddr("192.168.50.22") {
		return nil, errors.New("the probe has other arguments")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.have, f.err
}

// change sets what the next probes find.
func (f *strangers) change(have map[netip.Addr]address.Owner, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.have, f.err = have, err
}

// newClaims returns a pair in whose network a stranger has the first service address.
func newClaims(t *testing.T) (*scene, *fakePulse, *strangers) {
	t.Helper()
	s, p := newPair(t)
	f := &strangers{asked: make(chan struct{}, 100), have: map[netip.Addr]address.Owner{
		netip.MustParseAddr("203.0.113.10"): {Link: "nodes", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}},
	}}
	s.kernel.held, s.probe = nil, f.probe
	s.member.claims = claims{}
	s.pass(t, firstSteps)
	return s, p, f
}

// answered waits for the next probe, and plays the round that learns its answer.
func (s *scene) answered(t *testing.T, f *strangers) {
	t.Helper()
	s.settle(t)
	<-f.asked
	for s.member.claims.answer != nil {
		s.settle(t)
	}
	s.settle(t)
}

func warned(s *scene, sentence string) bool {
	return strings.Contains(strings.Join(s.view.Load().Warnings, "\n"), sentence)
}

func TestAnAddressOfAnotherMachineIsNotTaken(t *testing.T) {
	s, p, f := newClaims(t)
	s.member.claims = claims{}
	for len(f.asked) > 0 {
		<-f.asked
	}
	s.round(t.Context())
	expectWords(t, s, "") // nothing is taken before the answer
	s.answered(t, f)
	expectWords(t, s, "2001:db8::10/128")
	const sentence = "another machine (02:00:00:00:00:09 on nodes) has the service address 203.0.113.10, so this " +
		"appliance does not take it"
	if !warned(s, "group edge: "+sentence) {
		t.Errorf("no warning %q in %q", sentence, s.view.Load().Warnings)
	}
	if !strings.Contains(p.said.Why, sentence[:60]) || s.fit.Class != group.Full {
		t.Errorf("it says %+v (class %s: %s), want full, and the sentence", p.said, s.fit.Class, s.fit.Why)
	}

	f.change(nil, nil)
	s.clock = s.clock.Add(claimAgain)
	s.answered(t, f)
	expectWords(t, s, both)
	if warned(s, "another machine") || p.said.Why != "" {
		t.Errorf("there still is a warning: %q, %q", s.view.Load().Warnings, p.said.Why)
	}
}

func TestAnAddressThatIsTakenStays(t *testing.T) {
	for what, setup := range map[string]func(*scene, *strangers){
		"by this process": func(s *scene, f *strangers) {
			had := f.have
			f.change(nil, nil)
			s.member.claims = claims{}
			for len(f.asked) > 0 {
				<-f.asked
			}
			s.answered(t, f)
			f.change(had, nil)
			s.clock = s.clock.Add(claimWatch)
		},
		"by the process before": func(s *scene, f *strangers) {
			s.member.claims, s.kernel.held = claims{}, addrs("203.0.113.10", "2001:db8::10")
			for len(f.asked) > 0 {
				<-f.asked
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, _, f := newClaims(t)
			setup(s, f)
			s.answered(t, f)
			expectWords(t, s, both)
			if !warned(s, "has the service address 203.0.113.10 too") {
				t.Errorf("no warning in %q", s.view.Load().Warnings)
			}
		})
	}
}

func TestAnAddressThatNobodyCouldAskForIsNotTaken(t *testing.T) {
	s, _, f := newClaims(t)
	f.change(nil, errors.New("no such device"))
	s.member.claims = claims{}
	for len(f.asked) > 0 {
		<-f.asked
	}
	s.answered(t, f)
	expectWords(t, s, "")
	if !warned(s, "nobody could ask whether another machine has 203.0.113.10, so this appliance does not take it: "+
		"no such device") {
		t.Errorf("no warning in %q", s.view.Load().Warnings)
	}
}

// What a cluster says takes no address from the group: it is a sentence.
func TestAnAddressInAClusterIsASentence(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	top := &s.watcher.snapshot.Topology
	top.Pools = append(top.Pools, routes.Pool{Name: "wide", CIDR: netip.MustParsePrefix("203.0.113.0/24")})
	s.cfg.Group.Pools = []config.Pool{{
		First: netip.MustParseAddr("203.0.113.64"),
		Last:  netip.MustParseAddr("203.0.113.79"),
	}}
	s.member.of = s.cfg.Group
	top.Nodes = append(top.Nodes,
		routes.Node{Name: "liar", ASN: top.ASN, BGP: prefixes("2001:db8::10/64")},
		routes.Node{Name: "tor", ASN: top.ASN, BGP: prefixes("192.168.50.1/24")},
		routes.Node{Name: "twin", ASN: top.ASN, Addresses: addrs("192.168.50.22"), BGP: prefixes("192.168.50.99/24")})
	s.pass(t, 2*time.Second)
	expectWords(t, s, both)
	for _, sentence := range []string{
		"group edge: the service address 203.0.113.10 is in IP pool wide (203.0.113.0/24) of cluster demo, and the " +
			"pod that gets it is not reached",
		"group edge: the service address 2001:db8::10 is also the address of node liar in cluster demo, so no route " +
			"is learned from that node",
		"group edge: the router 192.168.50.1 is also the address of node tor in cluster demo, so no route is learned " +
			"from that node: give the router's own address",
		"group edge: 203.0.113.64-203.0.113.79 (group.pools[0]) has addresses of IP pool wide (203.0.113.0/24) of " +
			"cluster demo, and a pod with the address of a Service is not reached: give Services other addresses",
		"group edge: member gate-2, 192.168.50.22 is also the address of node twin in cluster demo",
	} {
		if !warned(s, sentence) {
			t.Errorf("no warning %q in\n%s", sentence, strings.Join(s.view.Load().Warnings, "\n"))
		}
	}
	if p.said.Why == "" {
		t.Error("the other members hear nothing of it")
	}
	for _, peer := range s.speaker.peers {
		if peer.Addr == netip.MustParseAddr("192.168.50.1") && !peer.Upstream {
			t.Error("the router's address is given to the node")
		}
	}
}

func TestARouterWithoutBFDIsASentence(t *testing.T) {
	s, _ := newPair(t)
	v := &status.View{At: s.clock}
	v.BGP.Peers = []bgp.PeerState{{
		Peer: bgp.Peer{Addr: netip.MustParseAddr("192.168.50.1"), Upstream: true}, State: established,
		BFD: "down", Since: s.clock.Add(-time.Hour),
	}}
	if got := strings.Join(status.Sentences(s.troublesOfMovers(v), status.Doubt), "\n"); !strings.HasPrefix(got,
		"BFD with the router 192.168.50.1 is down though its BGP session is established") {
		t.Errorf("got %q", got)
	}
	if f := s.troublesOfMovers(v)[0]; f.Code != status.RouterBFD || f.Subject != "192.168.50.1" || f.Remedy == "" {
		t.Errorf("got %+v, want the code of BFD, the router as its subject, and a remedy", f)
	}
	for _, bfd := range []string{"", "up"} {
		v.BGP.Peers[0].BFD = bfd
		if got := status.Sentences(s.troublesOfMovers(v), status.Doubt); got != nil {
			t.Errorf("BFD %q: got %q", bfd, got)
		}
	}
}

func TestAMemberReportsWhatIsWrongWithAnother(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	p.hear(group.Spare, false)
	p.heard[0].Word.Why = "VRRP needs the program keepalived"
	s.settle(t)
	if want := "group edge: gate-2 is spare, and reports: VRRP needs the program keepalived"; !warned(s, want) {
		t.Errorf("no warning %q in %q", want, s.view.Load().Warnings)
	}
	if got := s.view.Load().Group.Members[1].Trouble(); got !=
		"It is spare, and reports: VRRP needs the program keepalived." {
		t.Errorf("the table has %q", got)
	}
	p.heard[0].Word.Draining = true
	s.settle(t)
	if warned(s, "gate-2") {
		t.Errorf("a warning about a member that drains: %q", s.view.Load().Warnings)
	}
}

func TestAMemberLagsIfItStaysWithAnotherSum(t *testing.T) {
	s, p := newPair(t)
	s.pass(t, firstSteps)
	ours := p.said.Serves
	if ours == "" || ours != s.claimed+s.applied.config.Sum() {
		t.Fatalf("it says the sum %q, want that of HAProxy's configuration", ours)
	}
	hear := func(sum string, d time.Duration) time.Duration {
		p.heard[0].Word.Serves = sum
		s.pass(t, d)
		return s.view.Load().Group.Members[1].Lags
	}
	for i := range 100 { // changes that each of both follows in its own time
		if lags := hear([]string{"other", "another", ours}[i%3], 20*time.Second); lags != 0 {
			t.Fatalf("it lags for %s while it changes", lags)
		}
	}
	if lags := hear("other", 40*time.Second); lags < status.Patience {
		t.Errorf("it lags for %s, want more", lags)
	}
	if !warned(s, "group edge: gate-2 has not served the same Ingresses as this appliance for ") {
		t.Errorf("no warning in %q", s.view.Load().Warnings)
	}
	p.heard[0].Word.Config = "other"
	if lags := hear("other", time.Second); lags != 0 || !s.view.Load().Group.Members[1].Differs {
		t.Error("it lags, though its file is another one")
	}
	p.heard[0].Word.Config = ""
	if lags := hear(ours, time.Second); lags != 0 {
		t.Errorf("it lags for %s, though it serves the same", lags)
	}

	// An endpoint changes nothing; an Apply that fails neither.
	s.watcher.snapshot = demoSnapshot("demo")
	s.pass(t, time.Second)
	if p.said.Serves != ours {
		t.Error("the sum changed with the same Ingresses")
	}
	m := &served{}
	one, two := &haproxy.Config{}, &haproxy.Config{Routes: []*haproxy.Route{{Host: "a.test", Path: "/"}}}
	sum := m.update(one)
	if m.update(nil) != sum || m.update(two) == sum || m.update(two) != two.Sum() {
		t.Error("the sum is not that of the configuration that HAProxy took last")
	}
}
