package appliance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"sallyport/appliance/config"
	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/ingress/input"
	"sallyport/routes"
	"sallyport/routes/address"
)

// balancing is a settled member of a pair that gives the Service default/web an address.
type balancing struct {
	*scene
	vrrp   *fakeVRRP
	probes chan map[netip.Addr]address.Owner // the answers of the probes, one for each
	asked  chan []netip.Addr
}

func newBalancing(t *testing.T) *balancing {
	t.Helper()
	s, _, v := newTurns(t)
	b := &balancing{
		scene: s, vrrp: v, probes: make(chan map[netip.Addr]address.Owner, 1),
		asked: make(chan []netip.Addr, 100),
	}
	s.pass(t, firstSteps)
	s.probe = func(ctx context.Context, addresses, _ []netip.Addr) (map[netip.Addr]address.Owner, error) {
		b.asked <- addresses
		select {
		case a := <-b.probes:
			return a, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	pool := config.Pool{First: netip.MustParseAddr("192.168.50.210"), Last: netip.MustParseAddr("192.168.50.211")}
	s.cfg.Group.Pools = []config.Pool{pool}
	s.member.of = s.cfg.Group
	s.watcher.snapshot.Options.Pools = PoolsOf(s.cfg)
	web := s.watcher.snapshot.Services[0].DeepCopy()
	class := input.LoadBalancerClass
	web.Spec.Type, web.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	s.watcher.snapshot.Services = []*corev1.Service{web}
	return b
}

// until plays rounds until a condition holds.
func (b *balancing) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 100_000 {
		if b.settle(t); ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// allotted returns what the status of the Service is to have, by the last publication.
func (b *balancing) allotted() string {
	for _, one := range b.watcher.published[len(b.watcher.published)-1].Balancers {
		return strings.Trim(fmt.Sprint(one.Addresses), "[]")
	}
	return ""
}

// record writes an address into the status of the Service.
func (b *balancing) record(at string) {
	web := b.watcher.snapshot.Services[0].DeepCopy()
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: at}}
	b.watcher.snapshot.Services = []*corev1.Service{web}
}

// serveThenRestart serves the Service, and begins a process whose picture is older. The API does not
// answer yet.
func (b *balancing) serveThenRestart(t *testing.T) (given netip.Addr) {
	t.Helper()
	b.until(t, "it asks who has the address", func() bool { return len(b.asked) > 0 })
	given = (<-b.asked)[0]
	b.probes <- nil
	b.until(t, "the address is published", func() bool { return b.allotted() == given.String() })
	old := b.watcher.snapshot
	b.record(given.String())
	b.until(t, "it is served", func() bool { return len(b.view.Load().Config.Streams) == 1 })
	b.pass(t, ringEvery)

	b.kernel.held = append(b.kernel.held, given)
	b.adopted, b.applied, b.ring, b.settled, b.caughtUp, b.started = nil, applied{}, ring{}, false, false, b.clock
	b.vetter = newVetter(b.proxy, b.log)
	b.member.claims = claims{}
	b.watcher.err = errors.New("connection refused")
	c := b.clusters[0]
	c.snapshot, c.known, c.live, c.pictured = old, true, false, b.clock
	return given
}

// The process before crashed before it could save a Service that it served.
func TestAFreshProcessTakesNothingAwayThatIsNewerThanItsPicture(t *testing.T) {
	b := newBalancing(t)
	given := b.serveThenRestart(t)
	kernel, orders := b.chance.(*fakeRing), b.proxy.applied
	kernel.set = nil
	announces := func(when string) {
		t.Helper()
		if got := b.speaker.words(); !strings.Contains(got, given.String()) {
			t.Errorf("%s: announced is %q, want %s too", when, got, given)
		}
	}
	b.pass(t, overtaken-time.Second)
	announces("before the API answers")
	if b.proxy.applied != orders || len(kernel.set) > 0 {
		t.Errorf("before the API answers HAProxy got %d orders, and the rings %q; want none", b.proxy.applied-orders,
			kernel.set)
	}
	b.watcher.err = nil
	for len(kernel.set) == 0 {
		b.round(t.Context())
		announces("when it answers")
	}
	if got, want := fmt.Sprint(kernel.last.Listeners), fmt.Sprintf("[%s:80]", given); len(kernel.set) != 1 ||
		got != want {
		t.Errorf("when the API answers the rings %q are set, the last for the listeners %s; want one for %s",
			kernel.set, got, want)
	}
	b.until(t, "it is served again", func() bool {
		return b.proxy.applied > orders && len(b.view.Load().Config.Streams) == 1
	})
	announces("in the end")
}

func TestWithoutTheAPIAFreshProcessFollowsItsPictureInTheEnd(t *testing.T) {
	b := newBalancing(t)
	given := b.serveThenRestart(t)
	orders := b.proxy.applied
	b.pass(t, overtaken)
	if got := b.speaker.words(); strings.Contains(got, given.String()) || b.proxy.applied == orders {
		t.Errorf("after %s announced is %q, and HAProxy got %d orders; want what the picture has", overtaken, got,
			b.proxy.applied-orders)
	}
}

func TestTheAddressOfAServiceIsAskedForAndThenRecordedAndServed(t *testing.T) {
	b := newBalancing(t)
	b.until(t, "it asks who has the address", func() bool { return len(b.asked) > 0 })
	given := (<-b.asked)[0] // of the sorted list
	b.settle(t)
	if got := b.allotted(); got != "" {
		t.Errorf("before the answer the Service is to have %s", got)
	}
	expectWords(t, b.scene, both)
	b.probes <- nil
	b.until(t, "the address is published", func() bool { return b.allotted() == given.String() })
	expectWords(t, b.scene, both)

	b.record(given.String())
	at := netip.AddrPortFrom(given, 80)
	b.until(t, "it is served", func() bool { return len(b.view.Load().Config.Streams) == 1 })
	expectWords(t, b.scene, "203.0.113.10/32, 2001:db8::10/128, "+given.String()+"/32")
	if got := b.vrrp.services; !reflect.DeepEqual(got, []netip.Addr{given}) {
		t.Errorf("VRRP moves %v, too, want %s", got, given)
	}
	ring := b.chance.(*fakeRing).last
	if got, want := fmt.Sprint(ring.Addresses, ring.Listeners),
		fmt.Sprintf("[203.0.113.10 2001:db8::10 %s] [%s]", given, at); got != want {
		t.Errorf("second chance is for %s, want %s", got, want)
	}

	// of the Ingress and the Service of that name
	explained := b.explained(t, url.Values{"ingress": {"default/web"}}).(status.ExplainStatus)
	if explained.Ingress.Kind != "Ingress" || len(explained.Rules) != 1 || len(explained.Backends) != 2 ||
		len(explained.Servers) != 2 || len(explained.Addresses) != 1 {
		t.Errorf("default/web is explained by %+v", explained)
	}
	var facts []string
	for _, f := range b.explained(t, url.Values{"address": {given.String()}}).(status.AddressStatus).Facts {
		facts = append(facts, fmt.Sprintf("%s %t %s", f.Part, f.OK, f.Saw))
	}
	if diff := cmp.Diff([]string{
		"pool true 192.168.50.210-192.168.50.211 (group.pools[0])",
		"Service true default/web of cluster demo: derived from the names of cluster, namespace and Service, and " +
			"recorded in status.loadBalancer, which it keeps",
		"machine true it is on lo, and this appliance is full",
		"BGP false announced to nobody: no router of its family has a session with this appliance (sallyport " +
			"status peers)",
		"VRRP true another member has it",
		"port true 80 leads to backend demo__default_svc_web_80.lb: 2 of 2 servers open",
	}, facts); diff != "" {
		t.Errorf("the address is explained otherwise; want -, got +:\n%s", diff)
	}

	// A stranger who comes later does not end the service.
	b.clock = b.clock.Add(claimWatch)
	b.settle(t)
	b.probes <- map[netip.Addr]address.Owner{given: stranger}
	b.until(t, "there is a warning", func() bool {
		return warned(b.scene, "another machine (02:00:00:00:00:09 on nodes) has the address "+given.String()+
			" of Service default/web too, so clients reach one or the other")
	})
	if got := b.allotted(); got != given.String() {
		t.Errorf("the Service is to have %q", got)
	}
}

var stranger = address.Owner{Link: "nodes", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}}

func (b *balancing) explained(t *testing.T, what url.Values) any {
	t.Helper()
	answer, err := status.NewIndex(b.view.Load()).Explain(what)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestAServiceGetsNoAddressOfAnotherMachine(t *testing.T) {
	b := newBalancing(t)
	b.until(t, "it asks who has the address", func() bool { return len(b.asked) > 0 })
	taken := (<-b.asked)[0] // of the sorted list
	b.probes <- map[netip.Addr]address.Owner{taken: stranger}
	b.until(t, "it asks for another one", func() bool { return len(b.asked) > 0 })
	b.probes <- map[netip.Addr]address.Owner{taken: stranger}
	other := map[string]string{"192.168.50.210": "192.168.50.211", "192.168.50.211": "192.168.50.210"}[taken.String()]
	b.until(t, "the other one is published", func() bool { return b.allotted() == other })

	facts := b.explained(t, url.Values{"address": {taken.String()}}).(status.AddressStatus).Facts
	if want := (status.Fact{
		Part: "network",
		Saw:  "it is an address of another machine (02:00:00:00:00:09 on nodes), and no Service gets it",
	}); !slices.Contains(
		facts, want) {
		t.Errorf("got %+v, want %+v", facts, want)
	}

	// An address that it asks for by name is refused with a sentence.
	web := b.watcher.snapshot.Services[0].DeepCopy()
	web.Annotations = map[string]string{"sallyport.dev/address": taken.String()}
	b.watcher.snapshot.Services = []*corev1.Service{web}
	b.until(t, "it is refused", func() bool {
		for _, p := range b.view.Load().Problems {
			if p.Reason == "AddressInUse" && p.Why == taken.String()+
				" is an address of another machine (02:00:00:00:00:09 on nodes)" {
				return true
			}
		}
		return false
	})
}

func TestTheFirstFullMemberThatStaysWritesOverStatuses(t *testing.T) {
	heard := func(name string, class group.Class, alive, draining bool) group.Heard {
		return group.Heard{
			Member: group.Member{Name: name}, Alive: alive, Word: group.Word{Class: class, Draining: draining},
		}
	}
	for name, row := range map[string]struct {
		self  string
		class group.Class
		heard []group.Heard
		want  consent
	}{
		"a spare member":           {"a", group.Spare, nil, consent{}},
		"the first":                {"a", group.Full, []group.Heard{heard("b", group.Full, true, false)}, consent{true, true}},
		"the second":               {"b", group.Full, []group.Heard{heard("a", group.Full, true, false)}, consent{true, false}},
		"the first is silent":      {"b", group.Full, []group.Heard{heard("a", group.Full, false, false)}, consent{true, true}},
		"the first is spare":       {"b", group.Full, []group.Heard{heard("a", group.Spare, true, false)}, consent{true, true}},
		"the first drains":         {"b", group.Full, []group.Heard{heard("a", group.Full, true, true)}, consent{true, true}},
		"it hears nobody":          {"c", group.Full, nil, consent{true, true}},
		"the second is before it":  {"c", group.Full, []group.Heard{heard("b", group.Full, true, false)}, consent{true, false}},
		"only the third is silent": {"a", group.Full, []group.Heard{heard("c", group.Full, false, false)}, consent{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &membership{
				fit: group.Fitness{Class: row.class}, drains: &drains{},
				member: &member{self: row.self, pulse: &fakePulse{heard: row.heard}, of: config.Group{Members: []config.Member{
					{Name: "a"}, {Name: "b"}, {Name: "c"},
				}}},
			}
			if got := l.consent(); got != row.want {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
	if got := (&membership{}).consent(); got != (consent{true, true}) {
		t.Errorf("without a group: got %+v", got)
	}
}

func TestTheAddressOfANodeOrAnotherMachineIsNoServices(t *testing.T) {
	pools := []config.Pool{{First: netip.MustParseAddr("192.168.50.20"), Last: netip.MustParseAddr("192.168.50.30")}}
	topologies := []routes.Topology{{
		Cluster: "demo",
		Nodes: []routes.Node{
			{Name: "worker1", Addresses: []netip.Addr{
				netip.MustParseAddr("192.168.50.23"),
				netip.MustParseAddr("10.0.0.1"),
			}},
		},
		Protected: []netip.AddrPort{netip.MustParseAddrPort("192.168.50.22:6443")},
	}}
	topologies = append(topologies, routes.Topology{
		Cluster: "later",
		Nodes: []routes.Node{{Name: "other", Addresses: []netip.Addr{
			netip.MustParseAddr("192.168.50.23"), netip.MustParseAddr("192.168.50.24"),
		}}},
		Protected: []netip.AddrPort{netip.MustParseAddrPort("192.168.50.25:6443")},
	})
	want := map[netip.Addr]input.Use{
		netip.MustParseAddr("192.168.50.22"): {By: "an address of the API server of cluster demo"},
		netip.MustParseAddr("192.168.50.23"): {By: "an address of node worker1"},
		netip.MustParseAddr("192.168.50.24"): {By: "an address of node other", Cluster: 1},
		netip.MustParseAddr("192.168.50.25"): {By: "an address of the API server of cluster later", Cluster: 1},
	}
	strangers := map[netip.Addr]string{
		netip.MustParseAddr("192.168.50.21"): "an address of another machine",
		netip.MustParseAddr("192.168.50.99"): "outside the pools",
	}
	want[netip.MustParseAddr("192.168.50.21")] = input.Use{By: "an address of another machine"}
	if got := uses(pools, topologies, strangers); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := uses(nil, topologies, strangers); got != nil {
		t.Errorf("without pools: got %v", got)
	}
}
