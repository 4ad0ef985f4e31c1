package appliance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sallyport/appliance/config"
	"sallyport/appliance/picture"
	"sallyport/appliance/plan"
	"sallyport/appliance/status"
	"sallyport/bgp"
	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/budget"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
	"sallyport/routes"
	"sallyport/routes/address"
)

const established = "Established"

// Fakes of the edges. A test reads and sets their state directly, and can make them
// fail.

type fakeSpeaker struct {
	peers  []bgp.Peer
	spoken map[netip.Addr]bool // End-of-RIB has come
	state  string              // the state of every session
	down   map[netip.Addr]bool // peers whose session was lost
	offers []routes.Offer
	err    error

	announced []bgp.Announcement
	deaf      error // of Announce
}

func (f *fakeSpeaker) Announce(all []bgp.Announcement) error {
	if f.deaf == nil {
		f.announced = all
	}
	return f.deaf
}

func (f *fakeSpeaker) Listen([]netip.Addr, uint16) error { return nil }
func (f *fakeSpeaker) SetPeers(peers []bgp.Peer) error   { f.peers = peers; return nil }
func (f *fakeSpeaker) Offers() ([]routes.Offer, error)   { return slices.Clone(f.offers), f.err }
func (f *fakeSpeaker) Changed() <-chan struct{}          { return nil }
func (f *fakeSpeaker) Peers() (states []bgp.PeerState) {
	for _, p := range f.peers {
		state := bgp.PeerState{Peer: p, State: f.state, EndOfRIB: f.spoken[p.Addr]}
		if f.down[p.Addr] {
			state.State, state.Flaps, state.LossReason = "Active", 1,
				"hold timer expired: nothing was heard of it for 9s"
		}
		if p.Upstream && state.Up() {
			for _, a := range f.announced {
				state.Announced = append(state.Announced, a.Prefix)
			}
		}
		states = append(states, state)
	}
	return states
}

// announce offers a block from its owner, and ends the initial table.
func (f *fakeSpeaker) announce(block string, node string) {
	hop := netip.MustParseAddr(node)
	f.offers = append(f.offers,
		routes.Offer{Cluster: "demo", Peer: hop, PeerAS: 65000, Prefix: netip.MustParsePrefix(block), NextHop: hop})
	f.spoken[hop] = true
}

type fakeKernel struct {
	routes  routes.Table
	rules   map[routes.Selector]routes.Rule
	err     error
	failAdd routes.Selector
	mute    map[routes.End]bool
	aborted []string

	networks []netip.Prefix // that we are connected to
	primary  []netip.Addr   // in them, beside 192.168.50.21
	held     []netip.Addr   // service addresses that an earlier process took
}

// endsOf returns far ends for any address of the machine.
func endsOf(addrs map[netip.AddrPort]bool) map[routes.End]bool {
	ends := map[routes.End]bool{}
	for at := range addrs {
		ends[routes.End{To: at}] = true
	}
	return ends
}

// List leaves out routes of a source to which no rule leads, as a Kernel does.
func (f *fakeKernel) List() (routes.Listing, error) {
	l := routes.Listing{Routes: maps.Clone(f.routes), Rules: maps.Clone(f.rules)}
	for s, via := range f.routes {
		led := !s.From.IsValid()
		for r := range f.rules {
			led = led || r.Contains(s)
		}
		if !led {
			delete(l.Routes, s)
			l.Conflicts = append(l.Conflicts, routes.Conflict{Selector: s, Via: via, Why: "no rule leads to it"})
		}
	}
	return l, f.err
}

func (f *fakeKernel) Local() (routes.Local, error) {
	return routes.Local{
		Addrs:    append(addrs("192.168.50.21"), f.held...),
		Networks: f.networks,
		Primary:  append(addrs("192.168.50.21"), f.primary...),
	}, nil
}

func (f *fakeKernel) Add(to routes.Selector, via netip.Addr) error {
	if to == f.failAdd {
		return errors.New("refused by the test")
	}
	f.routes[to] = via
	return nil
}
func (f *fakeKernel) Drop(to routes.Selector) error { delete(f.routes, to); return nil }

func (f *fakeKernel) AddRule(s routes.Selector) error {
	if f.rules == nil {
		f.rules = map[routes.Selector]routes.Rule{}
	}
	f.rules[s] = routes.Rule{}
	return nil
}
func (f *fakeKernel) DropRule(s routes.Selector) error { delete(f.rules, s); return nil }

func (f *fakeKernel) Mute() (map[routes.End]bool, error) { return f.mute, nil }

func (f *fakeKernel) Abort(ends map[routes.End]bool) (int, error) {
	for end := range ends {
		f.aborted = append(f.aborted, end.To.String())
	}
	return len(ends), nil
}
func (f *fakeKernel) Changed() <-chan struct{} { return nil }

type fakeProxy struct {
	backends haproxy.LiveBackends
	applied  int
	unfit    string // HAProxy rejects a whole configuration with that word
	info     haproxy.Info
	result   haproxy.Result // of each Apply
	err      error

	metrics    string // what the exporter writes, after the query; empty: nothing at all
	metricsErr error
}

func (f *fakeProxy) Metrics(_ context.Context, query string, w io.Writer) error {
	if f.metrics != "" {
		_, _ = io.WriteString(w, query+"\n"+f.metrics)
	}
	return f.metricsErr
}

func (f *fakeProxy) Servers() (haproxy.LiveBackends, error) {
	return f.backends, f.err
}

func (f *fakeProxy) Apply(_ context.Context, cfg *haproxy.Config, states haproxy.States) (haproxy.Result, error) {
	f.applied++
	for _, b := range cfg.Backends {
		if f.unfit != "" && strings.Contains(fmt.Sprint(b.Directives), f.unfit) {
			return haproxy.Result{}, fmt.Errorf("reload: %w", haproxy.ErrUnfit)
		}
	}
	next := map[string]*haproxy.LiveBackend{}
	for name := range f.backends.All() {
		next[name] = nil
	}
	for at, b := range cfg.Backends {
		live := liveOf(b, states[at])
		next[b.Name] = live
		if was := f.backends.Get(b.Name); was != nil && slices.Equal(was.Servers, live.Servers) {
			delete(next, b.Name)
		}
	}
	f.backends = f.backends.With(next)
	return f.result, nil
}

// liveOf returns a backend as HAProxy has it, with servers in these states.
func liveOf(b *haproxy.Backend, states []haproxy.State) *haproxy.LiveBackend {
	live := &haproxy.LiveBackend{}
	for i, s := range b.Servers {
		if states[i] > haproxy.Absent {
			live.Servers = append(live.Servers, haproxy.Live{
				Name: s.Name, Addr: s.Addr, Source: s.Source, State: states[i], Weight: max(s.Weight, 1),
			})
		}
	}
	return live
}

func (f *fakeProxy) Former(*haproxy.Config) []*haproxy.Backend { return nil }

// Vet rejects each question with the word "bad".
func (f *fakeProxy) Vet(_ context.Context, questions []haproxy.Question) (haproxy.Verdicts, error) {
	verdicts := haproxy.Verdicts{}
	for _, q := range questions {
		verdicts[q.Part()] = haproxy.Good
		if strings.Contains(q.String(), "bad") {
			verdicts[q.Part()] = haproxy.Refused("HAProxy: unknown keyword 'bad'")
		}
	}
	return verdicts, nil
}

// Blame finds the text with the word in unfit.
func (f *fakeProxy) Blame(_ context.Context, cfg *haproxy.Config) (haproxy.Verdicts, error) {
	verdicts := haproxy.Verdicts{}
	for _, b := range cfg.Backends {
		for _, d := range b.Directives {
			if text, err := haproxy.ParseText(haproxy.BackendSection, d.String()); err == nil &&
				strings.Contains(d.String(), f.unfit) {
				verdicts[text.Part()] = haproxy.Refused("HAProxy refuses the whole with it")
			}
		}
	}
	return verdicts, nil
}

func (f *fakeProxy) Info() haproxy.Info       { return f.info }
func (f *fakeProxy) Changed() <-chan struct{} { return nil }

// String lists the servers with their states, such as "open 172.16.171.66:80".
func (f *fakeProxy) String() string {
	var lines []string
	for live := range (plan.Have{Backends: f.backends}).Servers() {
		lines = append(lines, fmt.Sprintf("%s %s", live.State, live.Addr))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

type fakeWatcher struct {
	snapshot  input.Snapshot
	err       error
	published []watch.Publication
}

func (f *fakeWatcher) Snapshot() (input.Snapshot, error) { return f.snapshot, f.err }
func (f *fakeWatcher) Health() watch.Health {
	if f.err != nil {
		return watch.Health{Error: f.err.Error()}
	}
	return watch.Health{APIGroup: "crd.projectcalico.org/v1"}
}
func (f *fakeWatcher) Serve(ingress.Result)        {}
func (f *fakeWatcher) Publish(p watch.Publication) { f.published = append(f.published, p) }
func (f *fakeWatcher) Changed() <-chan struct{}    { return nil }

// scene is a loop with fake edges. Its one cluster has two workers. The Ingress for
// test.local has one pod on each worker.
type scene struct {
	*loop
	speaker *fakeSpeaker
	kernel  *fakeKernel
	proxy   *fakeProxy
	watcher *fakeWatcher
	samples *status.Samples // for the page
	clock   time.Time
}

const (
	block1, node1, pod1 = "172.16.171.64/26", "192.168.50.23", "172.16.171.66"
	block2, node2, pod2 = "172.16.189.64/26", "192.168.50.24", "172.16.189.66"
)

func addrs(ss ...string) (as []netip.Addr) {
	for _, s := range ss {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// to returns the selector of all packets to a prefix.
func to(prefix string) routes.Selector { return routes.To(netip.MustParsePrefix(prefix)) }

func prefixes(ss ...string) (ps []netip.Prefix) {
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func newScene(t testing.TB) *scene {
	s := &scene{
		speaker: &fakeSpeaker{spoken: map[netip.Addr]bool{}, down: map[netip.Addr]bool{}},
		kernel:  &fakeKernel{routes: routes.Table{}, networks: prefixes("192.168.50.0/24")},
		proxy:   &fakeProxy{},
		watcher: &fakeWatcher{snapshot: demoSnapshot("demo")},
		samples: &status.Samples{},
		clock:   time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	s.loop = &loop{
		follower: follower{
			settings: settings{cfg: &config.Config{
				BGP: config.BGP{ASN: 65000, Retain: 2 * time.Minute, FailStatic: 10 * time.Minute},
			}},
			pictures: picture.New(t.TempDir(), slog.New(slog.DiscardHandler)),
			clusters: []*cluster{{name: "demo", opened: opened{watcher: s.watcher}}},
			crashed:  &quarantine{},
		},
		log: slog.New(slog.DiscardHandler), now: func() time.Time { return s.clock },
		speaker: s.speaker, kernel: s.kernel, proxy: s.proxy, alive: func() {},
		membership: membership{
			probe: func(context.Context, []netip.Addr, []netip.Addr) (map[netip.Addr]address.Owner, error) {
				return nil, nil
			},
			loopback: loopback{hold: func(want []netip.Addr) ([]netip.Addr, error) { return want, nil }},
			chance:   &fakeRing{},
			drains:   &drains{path: filepath.Join(t.TempDir(), "drain"), boot: "one"},
		},
		compiler: budget.New(&ingress.Compiler{}),
	}
	s.begin()
	return s
}

// settle runs rounds until nothing is left to do.
func (s *scene) settle(t testing.TB) {
	t.Helper()
	for range roundsAtOnce {
		if !s.round(t.Context()) {
			return
		}
	}
	t.Fatalf("not settled after %d rounds, last steps %v", roundsAtOnce, s.view.Load().Steps)
}

func demoSnapshot(name string) input.Snapshot {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	class, path, ready, port, portName := "haproxy", networkingv1.PathTypePrefix, true, int32(80), ""
	tcp := corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &tcp}},
	}
	for _, pod := range []string{pod1, pod2} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pod}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return input.Snapshot{
		Cluster: name,
		Objects: input.Objects{
			Classes: []*networkingv1.IngressClass{{
				ObjectMeta: metav1.ObjectMeta{Name: "haproxy"},
				Spec:       networkingv1.IngressClassSpec{Controller: "haproxy.org/ingress-controller"},
			}},
			Ingresses: []*networkingv1.Ingress{{ObjectMeta: meta, Spec: networkingv1.IngressSpec{
				IngressClassName: &class,
				Rules: []networkingv1.IngressRule{{Host: "test.local", IngressRuleValue: networkingv1.IngressRuleValue{
					HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
						Path: "/", PathType: &path,
						Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
							Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80},
						}},
					}}},
				}}},
			}}},
			Services: []*corev1.Service{{ObjectMeta: meta, Spec: corev1.ServiceSpec{
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80), Protocol: tcp}},
			}}},
			Slices: []*discoveryv1.EndpointSlice{slice},
		},
		Topology: routes.Topology{
			Cluster: name, ASN: 65000,
			Nodes: []routes.Node{
				{Name: "worker1", ASN: 65000, BGP: prefixes(node1 + "/24"), Addresses: addrs(node1)},
				{Name: "worker2", ASN: 65000, BGP: prefixes(node2 + "/24"), Addresses: addrs(node2)},
			},
			Affinities: []routes.Affinity{
				{
					Name: "worker1-172-16-171-64-26", Node: "worker1", Prefix: netip.MustParsePrefix(block1),
					State: "confirmed",
				},
				{
					Name: "worker2-172-16-189-64-26", Node: "worker2", Prefix: netip.MustParsePrefix(block2),
					State: "confirmed",
				},
			},
			Blocks: []*routes.IPAMBlock{
				{Prefix: netip.MustParsePrefix(block1), Affinity: "host:worker1", Pods: podsOf(block1)},
				{Prefix: netip.MustParsePrefix(block2), Affinity: "host:worker2", Pods: podsOf(block2)},
			},
			Pools: []routes.Pool{{Name: "default", CIDR: netip.MustParsePrefix("172.16.0.0/16"), BlockSize: 26}},
		},
	}
}

// Only the picture tells which namespace owned a host. The oldest Ingress of the owner
// may be gone, and another namespace may have an older one than the owner still has.
func TestAHostKeepsItsOwnerOverARestart(t *testing.T) {
	s := newScene(t)
	s.settle(t)
	ing := s.watcher.snapshot.Ingresses[0]
	younger, other := ing.DeepCopy(), ing.DeepCopy()
	younger.Name, younger.CreationTimestamp = "younger", metav1.Unix(300, 0)
	other.Namespace, other.CreationTimestamp = "other", metav1.Unix(200, 0)
	s.watcher.snapshot.Ingresses = []*networkingv1.Ingress{ing, other, younger}
	s.settle(t)
	s.watcher.snapshot.Ingresses = s.watcher.snapshot.Ingresses[1:]
	s.settle(t)
	s.pictures.Save()

	again := newScene(t)
	again.pictures = picture.New(s.pictures.Dir(), s.log)
	pic, err := again.pictures.Load("demo")
	if err != nil {
		t.Fatal(err)
	}
	again.clusters[0].snapshot, again.clusters[0].known = pic.Snapshot, true
	again.watcher.snapshot = s.watcher.snapshot
	for _, life := range []*scene{s, again} {
		life.settle(t)
		if got := life.view.Load().Compiled.Served; len(got) != 1 || got[0].Name != "younger" {
			t.Errorf("served are %v, want default/younger alone", got)
		}
	}
}

// podsOf gives every address of a block to a pod of namespace default.
func podsOf(block string) map[netip.Addr]string {
	pods, p := map[netip.Addr]string{}, netip.MustParsePrefix(block)
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		pods[a] = "default"
	}
	return pods
}

// snippets sets the snippet of the scene's Ingress.
func (s *scene) snippets(lines string) {
	s.watcher.snapshot.Options.OneTenant = true
	ing := s.watcher.snapshot.Ingresses[0].DeepCopy()
	ing.Annotations = map[string]string{"haproxy.org/backend-config-snippet": lines}
	s.watcher.snapshot.Ingresses = []*networkingv1.Ingress{ing}
}

func TestASnippetIsAskedAboutBeforeItIsUsed(t *testing.T) {
	s := newScene(t)
	s.snippets("good")
	if s.round(t.Context()); s.proxy.applied > 0 {
		t.Error("HAProxy was asked to serve without it: what was served before may have had it")
	}
	<-s.vetter.changed
	s.settle(t)
	last := func() string { return fmt.Sprint(s.view.Load().Config.Backends[0].Directives) }
	if !strings.Contains(last(), "good") {
		t.Errorf("it is not used: %s", last())
	}

	// The old snippet stays until HAProxy has judged the new one.
	s.snippets("bad")
	s.settle(t)
	if !strings.Contains(last(), "good") {
		t.Errorf("it stands without one: %s", last())
	}
	<-s.vetter.changed
	s.settle(t)
	if problems := s.view.Load().Problems; len(problems) != 1 ||
		!strings.Contains(problems[0].Why, "unknown keyword 'bad'") || strings.Contains(last(), "bad") {
		t.Errorf("problems %v, directives %s", problems, last())
	}
}

// mute is a proxy that answers no question until held is closed.
type mute struct {
	proxy
	held chan struct{}
}

func (m mute) Vet(context.Context, []haproxy.Question) (haproxy.Verdicts, error) {
	<-m.held
	return nil, nil
}

func TestAnAnswerThatDoesNotComeHoldsNothingUpForLong(t *testing.T) {
	s := newScene(t)
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.settle(t)
	held := make(chan struct{})
	defer close(held)
	s.vetter.proxy = mute{s.proxy, held}
	s.snippets("slow")
	slice := s.watcher.snapshot.Slices[0].DeepCopy()
	slice.Endpoints = slice.Endpoints[:1]
	s.watcher.snapshot.Slices = []*discoveryv1.EndpointSlice{slice}
	if s.settle(t); s.proxy.String() != bothOpen {
		t.Errorf("%s: it was not waited for", s.proxy)
	}
	s.clock = s.clock.Add(vetting)
	if s.settle(t); s.proxy.String() != "open 172.16.171.66:80" {
		t.Errorf("%s: it is still waited for", s.proxy)
	}
}

func TestASnippetThatBreaksTheWholeIsLeftOut(t *testing.T) {
	s := newScene(t)
	s.proxy.unfit = "together"
	s.snippets("together")
	s.round(t.Context())
	<-s.vetter.changed // the text alone is good
	s.round(t.Context())
	<-s.vetter.changed
	s.settle(t)
	v := s.view.Load()
	if len(v.Problems) != 1 || !strings.Contains(v.Problems[0].Why, "refuses the whole with it") ||
		strings.Contains(fmt.Sprint(v.Config.Backends[0].Directives), "together") {
		t.Errorf("problems %v, directives %s", v.Problems, v.Config.Backends[0].Directives)
	}
}

const bothOpen = "open 172.16.171.66:80, open 172.16.189.66:80"

func TestServersOpenOnceTheirRoutesAreInTheKernel(t *testing.T) {
	s := newScene(t)
	s.settle(t)
	if got, want := s.proxy.String(), "closed 172.16.171.66:80, closed 172.16.189.66:80"; got != want {
		t.Errorf("without offers: servers %s, want %s", got, want)
	}
	s.speaker.announce(block1, node1)
	s.settle(t)
	if got, want := s.proxy.String(), "closed 172.16.189.66:80, open 172.16.171.66:80"; got != want {
		t.Errorf("with one block: servers %s, want %s", got, want)
	}
	s.speaker.announce(block2, node2)
	s.settle(t)
	if got := s.proxy.String(); got != bothOpen {
		t.Errorf("with both: servers %s, want %s", got, bothOpen)
	}
	if got, want := s.kernel.routes.String(), (routes.Table{
		to(block1): netip.MustParseAddr(node1), to(block2): netip.MustParseAddr(node2),
	}).String(); got != want {
		t.Errorf("routes %s, want %s", got, want)
	}
}

// running returns a scene in full service, with the routes and servers that an earlier
// process left.
func running(t *testing.T) *scene {
	t.Helper()
	before := newScene(t)
	before.speaker.announce(block1, node1)
	before.speaker.announce(block2, node2)
	before.settle(t)
	s := newScene(t)
	s.kernel, s.proxy = before.kernel, before.proxy
	s.loop.kernel, s.loop.proxy = s.kernel, s.proxy
	return s
}

func TestARestartClosesAndDropsNothing(t *testing.T) {
	s := running(t)
	s.settle(t)
	if got := s.proxy.String(); got != bothOpen {
		t.Errorf("before any peer has spoken: servers %s, want %s", got, bothOpen)
	}
	s.speaker.announce(block1, node1)
	s.clock = s.clock.Add(time.Minute)
	s.settle(t)
	if got := s.proxy.String(); got != bothOpen {
		t.Errorf("after one peer has spoken: servers %s, want %s", got, bothOpen)
	}
	if len(s.kernel.aborted) > 0 {
		t.Errorf("sessions were ended of %s", s.kernel.aborted)
	}
}

func TestAnAdoptedRouteGoesWhenItsPeerDoesNotOfferItAnyMore(t *testing.T) {
	s := running(t)
	s.settle(t)
	s.speaker.announce(block1, node1)
	s.speaker.spoken[netip.MustParseAddr(node2)] = true // End-of-RIB without an offer
	s.settle(t)
	if got, want := s.proxy.String(), "closed 172.16.189.66:80, open 172.16.171.66:80"; got != want {
		t.Errorf("servers %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(s.kernel.aborted), "[172.16.189.66:80]"; got != want {
		t.Errorf("sessions were ended of %s, want %s", got, want)
	}
	if _, there := s.kernel.routes[to(block2)]; there {
		t.Errorf("routes %s, want none for %s", s.kernel.routes, block2)
	}
}

func TestConnectionsToANodeThatIsGoneAreEndedBeforeBGPKnows(t *testing.T) {
	gone := map[netip.AddrPort]bool{netip.MustParseAddrPort(pod1 + ":80"): true}
	for _, c := range []struct {
		name   string
		check1 string // check of the server on node 1
		check2 string
		mute   map[netip.AddrPort]bool
		want   string
	}{
		{"all is well", haproxy.Up, haproxy.Up, nil, "[]"},
		{"a pod is too busy for checks", haproxy.Down, haproxy.Up, nil, "[]"},
		{"packets are lost for a moment", haproxy.Up, haproxy.Up, gone, "[]"},
		{
			"a filter cut the session, and a pod is busy", haproxy.Down, haproxy.Up,
			map[netip.AddrPort]bool{netip.MustParseAddrPort(node1 + ":179"): true},
			"[]",
		},
		{"our own link is down", haproxy.Down, haproxy.Down, gone, "[]"},
		{"a node is gone", haproxy.Down, haproxy.Up, gone, "[" + pod1 + ":80]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := running(t)
			s.speaker.announce(block1, node1)
			s.speaker.announce(block2, node2)
			for _, b := range s.proxy.backends.All() {
				for i := range b.Servers {
					b.Servers[i].Check = c.check2
					if b.Servers[i].Addr.Addr() == netip.MustParseAddr(pod1) {
						b.Servers[i].Check = c.check1
					}
				}
			}
			s.kernel.mute = endsOf(c.mute)
			s.settle(t)
			if got := fmt.Sprint(s.kernel.aborted); got != c.want {
				t.Errorf("got connections ended to %s, want %s", got, c.want)
			}
			if got := s.proxy.String(); got != bothOpen {
				t.Errorf("got servers %s, want %s: the check and BGP decide that", got, bothOpen)
			}
		})
	}
}

func TestADoubtThatIsOldIsNotLookedInto(t *testing.T) {
	s := running(t)
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	for _, b := range s.proxy.backends.All() {
		for i := range b.Servers {
			b.Servers[i].Check = haproxy.Up
			if b.Servers[i].Addr.Addr() == netip.MustParseAddr(pod1) {
				b.Servers[i].Check = haproxy.Down
			}
		}
	}
	s.settle(t)
	s.clock = s.clock.Add(plan.DoubtLasts + time.Second)
	s.kernel.mute = map[routes.End]bool{{To: netip.MustParseAddrPort(pod1 + ":80")}: true}
	s.settle(t)
	if len(s.kernel.aborted) > 0 {
		t.Errorf("got connections ended to %s, want none", s.kernel.aborted)
	}
}

func TestAnAdoptedRouteGoesWhenItsPeerStaysAway(t *testing.T) {
	s := running(t)
	s.settle(t)
	s.speaker.announce(block1, node1)
	s.clock = s.clock.Add(s.cfg.BGP.Retain + time.Second)
	s.settle(t)
	if got, want := s.proxy.String(), "closed 172.16.189.66:80, open 172.16.171.66:80"; got != want {
		t.Errorf("servers %s, want %s", got, want)
	}
}

func TestAFailedReadIsNotAnEmptyWorld(t *testing.T) {
	for name, fail := range map[string]func(*scene){
		"the BGP table": func(s *scene) { s.speaker.offers, s.speaker.err = nil, errors.New("no answer") },
		"the kernel":    func(s *scene) { s.kernel.err = errors.New("no answer") },
		"HAProxy":       func(s *scene) { s.proxy.err = errors.New("no answer") },
		"the API": func(s *scene) {
			s.watcher.snapshot, s.watcher.err = input.Snapshot{}, errors.New("no answer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := running(t)
			s.speaker.announce(block1, node1)
			s.speaker.announce(block2, node2)
			s.settle(t)
			routed := s.kernel.routes.String()
			fail(s)
			s.clock = s.clock.Add(time.Hour)
			s.settle(t)
			if got := s.proxy.String(); got != bothOpen {
				t.Errorf("servers %s, want %s", got, bothOpen)
			}
			if got := s.kernel.routes.String(); got != routed {
				t.Errorf("routes %s, want %s", got, routed)
			}
		})
	}
}

func TestNothingIsDoneBeforeTheClustersAreKnown(t *testing.T) {
	s := running(t)
	s.proxy.info.Worker = 1
	silent := &fakeWatcher{err: errors.New("connection refused")}
	s.clusters = append(s.clusters, &cluster{name: "other", opened: opened{watcher: silent}})
	applied := s.proxy.applied
	s.settle(t)
	if s.proxy.applied != applied {
		t.Error("HAProxy was changed although one cluster has not answered yet")
	}
	s.clock = s.clock.Add(status.Patience + time.Second)
	s.settle(t)
	if s.proxy.applied == applied {
		t.Error("after the patience of a start the known cluster still waits for the other")
	}
}

func TestAFreshStartServesAtOnceWhatNoUnknownClusterCanOwn(t *testing.T) {
	for name, c := range map[string]struct {
		all    string // clusters, in the order of the file; the default is blue and green
		away   string
		leader string // the cluster that sets the keys of the whole process
		none   bool   // by no ConfigMap: it leaves them as they are
		worker int    // of a HAProxy that serves already
		want   bool   // at once
		never  bool   // not even after the patience of a start
	}{
		"the second cluster is away":                         {away: "green", leader: "blue", want: true},
		"the first cluster is away":                          {away: "blue", leader: "blue", never: true},
		"the first cluster is away, without keys":            {away: "blue", leader: "blue", none: true},
		"the first cluster is away, the second one leads":    {away: "blue", leader: "green"},
		"the second of three clusters is away":               {all: "blue green red", away: "green", leader: "blue"},
		"the second cluster is away, and it leads":           {away: "green", leader: "green", never: true},
		"it leads without keys":                              {away: "green", leader: "green", none: true, want: true},
		"the second cluster is away, and HAProxy serves yet": {away: "green", leader: "blue", worker: 1},
		"the leader is away, and HAProxy serves yet":         {away: "blue", leader: "blue", worker: 1, never: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.proxy.info.Worker = c.worker
			s.clusters = nil
			watchers := map[string]*fakeWatcher{}
			for name := range strings.FieldsSeq(cmp.Or(c.all, "blue green")) {
				w := &fakeWatcher{snapshot: demoSnapshot(name)}
				if name == c.away {
					w.err = errors.New("connection refused")
				}
				w.snapshot.Options.Process = name == c.leader
				if !c.none {
					w.snapshot.Options.ConfigMap = "ops/keys"
				}
				watchers[name] = w
				one := input.Snapshot{Options: w.snapshot.Options}
				s.clusters = append(s.clusters, &cluster{name: name, opened: opened{watcher: w}, snapshot: one})
			}
			s.clock = s.clock.Add(overtaken) // a picture would be used by now
			s.settle(t)
			if s.settle(t); s.proxy.applied > 0 != c.want {
				t.Errorf("HAProxy was configured %d times, want any: %v", s.proxy.applied, c.want)
			}
			s.clock = s.clock.Add(status.Patience)
			if s.settle(t); s.proxy.applied > 0 == c.never {
				t.Errorf("HAProxy was configured %d times after the patience of a start, want none: %v",
					s.proxy.applied, c.never)
			}
			why := strings.Join(s.view.Load().NotReady, " ")
			if strings.Contains(why, "nothing is served before") != c.never {
				t.Errorf("not ready because %q, want a word of the keys of the whole process: %v", why, c.never)
			}
			watchers[c.away].err = nil
			s.settle(t)
			s.settle(t)
			if all := s.view.Load().Config.Backends; s.proxy.applied == 0 || len(all) != 1 || all[0].Cluster != "blue" {
				t.Errorf("all clusters are known, and the backends of the host are %v, want that of blue", all)
			}
		})
	}
}

func TestHAProxyIsAskedAgainSoonAfterAChangeAndAtOnceAfterAnotherHand(t *testing.T) {
	s := running(t)
	quiet := func(when string) {
		t.Helper()
		applied := s.proxy.applied
		if s.settle(t); s.proxy.applied != applied {
			t.Errorf("%s: HAProxy got the same order again", when)
		}
	}
	busy := func(when string) {
		t.Helper()
		applied := s.proxy.applied
		if s.settle(t); s.proxy.applied == applied {
			t.Errorf("%s: HAProxy did not get the same order again", when)
		}
	}
	s.clock = s.clock.Add(reapply)
	busy("after a while")
	quiet("at once")
	s.clock = s.clock.Add(2 * reapplySoon)
	quiet("soon after an order that did nothing")

	s.proxy.result.Commands = 1
	s.clock = s.clock.Add(reapply)
	busy("after a while")
	s.proxy.result.Commands = 0
	quiet("at once after an order that did something")
	s.clock = s.clock.Add(reapplySoon)
	busy("soon after it")

	s.proxy.info.Reread = true
	busy("after HAProxy was read anew")
}

func TestAClusterThatIsAwayRenamesNothingOfTheOthers(t *testing.T) {
	s := newScene(t)
	away := &fakeWatcher{err: errors.New("connection refused")}
	s.clusters = append(s.clusters, &cluster{name: "other", opened: opened{watcher: away}})
	s.clock = s.clock.Add(status.Patience + time.Second)
	s.settle(t)
	alone := s.view.Load().Config.Backends
	away.snapshot, away.err = input.Snapshot{Cluster: "other"}, nil
	s.settle(t)
	if both := s.view.Load().Config.Backends; len(alone) != 1 || !slices.Equal(both, alone) {
		t.Errorf("got backends %v before and %v after the other cluster answered, want the same one", alone, both)
	}
}

func TestThePictureServesUntilTheAPIAnswers(t *testing.T) {
	first := running(t)
	first.pictures.Keep(first.watcher.snapshot, ingress.Result{})
	first.pictures.Save()
	// After a reboot kernel and HAProxy are empty and the API is unreachable, but the
	// nodes connect.
	s := newScene(t)
	s.pictures = picture.New(first.pictures.Dir(), s.log)
	s.watcher.err = errors.New("connection refused")
	c := s.clusters[0]
	pic, err := s.pictures.Load("demo")
	if err != nil {
		t.Fatal(err)
	}
	c.snapshot, c.pictured, c.known = pic.Snapshot, pic.Taken, true
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	s.settle(t)
	if got := s.proxy.String(); got != bothOpen {
		t.Errorf("servers %s, want %s", got, bothOpen)
	}
	if why := strings.Join(s.view.Load().NotReady, "\n"); !strings.Contains(why, "picture") {
		t.Errorf("not ready because %q, want a word of the picture", why)
	}
}

func TestOneFailedRouteLeavesTheOthersTheirWay(t *testing.T) {
	s := newScene(t)
	s.kernel.failAdd = to(block1)
	s.speaker.announce(block1, node1)
	s.speaker.announce(block2, node2)
	for range 3 {
		s.round(t.Context())
	}
	if got, want := s.proxy.String(), "closed 172.16.171.66:80, open 172.16.189.66:80"; got != want {
		t.Errorf("servers %s, want %s", got, want)
	}
	if err := s.view.Load().Err; err == nil || !strings.Contains(err.Error(), "refused by the test") {
		t.Errorf("the round says %v, want the kernel's refusal", err)
	}
}

// A strangeStep is a Step of a kind that take does not know.
type strangeStep struct{ plan.SetServer }

func TestAStepOfAnUnknownKindIsAnErrorAndNoProgress(t *testing.T) {
	s := newScene(t)
	s.settle(t)
	v := *s.view.Load()
	v.Steps = []plan.Step{strangeStep{}}
	progress, err := s.take(t.Context(), &v)
	if progress || err == nil || !strings.Contains(err.Error(), "appliance.strangeStep") {
		t.Errorf("got progress %v and error %v, want none and one that names the type", progress, err)
	}
}

func TestTheFirewallHearsOfEveryChangeOnce(t *testing.T) {
	var told []Admission
	broken := true
	l := &firewall{admit: func(a Admission) error {
		if broken {
			return errors.New("no firewall")
		}
		told = append(told, a)
		return nil
	}}
	pod, node := netip.MustParseAddrPort("172.16.171.66:80"), netip.MustParseAddrPort("192.168.50.24:80")
	log, err := haproxy.Syslog{Address: "10.0.0.4", Port: 514, Facility: "local0"}.Line()
	if err != nil {
		t.Fatal(err)
	}
	cfg := &haproxy.Config{
		Shape: haproxy.Shape{
			Streams: []haproxy.Stream{
				{Port: 3306},
				{Addr: netip.MustParseAddr("203.0.113.5"), Port: 443},
			},
			Process: haproxy.Process{Lines: []haproxy.Line{log, haproxy.HardStop(time.Minute)}},
		},
		Backends: []*haproxy.Backend{
			{Cluster: "demo", Servers: []haproxy.Server{{Addr: pod}, {Addr: node}}},
			{Cluster: "demo", Servers: []haproxy.Server{{Addr: node}}},
			{Cluster: "demo", Servers: []haproxy.Server{{Addr: netip.AddrPortFrom(node.Addr(), 10250)}}}, // the kubelet
		},
	}
	peers := []bgp.Peer{
		{Addr: netip.MustParseAddr("192.168.50.24")},
		{Addr: netip.MustParseAddr("192.168.50.22")},
		{Addr: netip.MustParseAddr("192.168.50.22")},
		{Addr: netip.MustParseAddr("192.168.50.25"), Active: true}, // we dial this peer
	}
	first, second := netip.MustParsePrefix("172.16.171.64/26"), netip.MustParsePrefix("172.16.189.64/26")
	source := netip.MustParseAddr("192.168.51.21")
	wish := plan.Want{
		Routes: routes.Table{
			routes.To(second): peers[1].Addr, routes.To(first): peers[0].Addr,
			{From: source, To: second}: peers[1].Addr, {From: source, To: first}: peers[0].Addr,
		},
		Allocations: routes.Allocate(routes.Facts{
			Topologies: []routes.Topology{{
				Cluster: "demo", HostNetwork: true,
				Nodes: []routes.Node{{Name: "worker2", Addresses: []netip.Addr{node.Addr()}}},
			}},
		}),
	}
	have := plan.Have{Direct: map[netip.Addr]bool{node.Addr(): true}}
	if l.letIn(peers, wish, have, cfg) == nil {
		t.Error("a firewall that takes nothing: want an error")
	}
	broken = false
	for range 2 {
		if err := l.letIn(peers, wish, have, cfg); err != nil {
			t.Fatal(err)
		}
	}
	other := &haproxy.Config{Shape: haproxy.Shape{Process: haproxy.Process{QUIC: haproxy.QUIC{Port: 443}}}}
	if err := l.letIn(peers[:1], plan.Want{}, have, other); err != nil {
		t.Fatal(err)
	}
	want := []Admission{
		{
			Peers: []netip.Addr{peers[1].Addr, peers[0].Addr}, TCP: []uint16{3306},
			Pods: []netip.Prefix{first, second}, Servers: []netip.AddrPort{node},
			Sourced:  map[netip.Addr][]netip.Prefix{source: {first, second}},
			Logs:     []netip.AddrPort{netip.MustParseAddrPort("10.0.0.4:514")},
			Services: []netip.AddrPort{netip.MustParseAddrPort("203.0.113.5:443")},
		},
		{Peers: []netip.Addr{peers[0].Addr}, UDP: []uint16{443}},
	}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("got %v, want %v", told, want)
	}
}

func TestNodesThatDoNotComplyAreWarnedOf(t *testing.T) {
	for name, row := range map[string]struct {
		peering config.Peering
		state   string
		down    bool
		asn     uint32 // of the node; 0: the cluster's
		told    bool   // its End-of-RIB has come
		blocks  string // that it announces
		after   time.Duration
		want    string // empty: no warning
	}{
		"up, and announces its block": {
			peering: config.Peering{Mode: config.Active}, state: established,
			told: true, blocks: block1, after: time.Hour,
		},
		"up, and announces nothing": {
			peering: config.Peering{Mode: config.Active}, state: established,
			told: true, after: time.Minute,
			want: "node worker1 (192.168.50.23) has announced none of its blocks (1) for 1m0s",
		},
		"up, and announces nothing yet": {
			peering: config.Peering{Mode: config.Active}, state: established,
			told: true, after: 10 * time.Second,
		},
		"up, and announces a service": {
			peering: config.Peering{Mode: config.Active}, state: established,
			told: true, blocks: "10.96.0.0/16", after: time.Minute, want: "bgpfilters.crd.projectcalico.org",
		},
		"in an AS of its own, and not up": {
			peering: config.Peering{Mode: config.Active}, state: "Active", asn: 65001,
			after: time.Minute, want: "AS 65001 is expected of it, not the cluster's 65000",
		},
		"in an AS of its own, and up": {
			peering: config.Peering{Mode: config.Active}, state: established,
			asn: 65001, after: time.Minute,
		},
		"dialled, and up": {
			peering: config.Peering{Mode: config.Active}, state: established,
			after: time.Hour,
		},
		"dialled, not up yet": {
			peering: config.Peering{Mode: config.Active}, state: "Active",
			after: 10 * time.Second,
		},
		"dialled, and not up for long": {
			peering: config.Peering{Mode: config.Active, Port: 179}, state: "Active",
			after: time.Minute, want: "node worker1 (192.168.50.23:179) has accepted no BGP session for 1m0s",
		},
		"the cluster knows": {
			peering: config.Peering{Mode: config.Active}, state: "Active", down: true,
			after: time.Hour,
		},
		"it dials, unguarded": {state: established, want: "any pod can do so in the place of its node"},
		"it dials, with a password": {
			peering: config.Peering{Password: config.NewSecret("x")},
			state:   established,
		},
		"it dials, with TTL security": {peering: config.Peering{TTLSecurity: true}, state: established},
		"it should dial, and has not yet": {
			peering: config.Peering{Password: config.NewSecret("x")}, state: "Active",
			after: time.Minute, want: "node worker1 (192.168.50.23) has not opened a BGP session for 1m0s",
		},
	} {
		s := newScene(t)
		s.watcher.snapshot.Topology.Nodes = s.watcher.snapshot.Topology.Nodes[:1]
		s.watcher.snapshot.Topology.Nodes[0].Down, s.watcher.snapshot.Topology.ASN = row.down, 65000
		if row.asn != 0 {
			s.watcher.snapshot.Topology.Nodes[0].ASN = row.asn
		}
		if row.blocks != "" {
			s.speaker.announce(row.blocks, node1)
		}
		s.speaker.spoken[netip.MustParseAddr(node1)] = row.told
		s.clusters[0].peering = row.peering
		s.speaker.state = row.state
		s.settle(t)
		s.clock = s.clock.Add(row.after)
		s.round(t.Context())
		got := strings.Join(s.view.Load().Warnings, "; ")
		if row.want == "" && got != "" || !strings.Contains(got, row.want) {
			t.Errorf("%s: warnings are %q, want %q", name, got, row.want)
		}
	}
}

func TestAnOfferThatWillPassIsARefusalOnceItStays(t *testing.T) {
	s := newScene(t)
	var log strings.Builder
	s.judge.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.speaker.announce(block1, node1)
	s.speaker.announce(pod1+"/32", node1)
	s.speaker.offers[1].Announced = s.clock
	s.settle(t)
	s.clock = s.clock.Add(5 * time.Second)
	s.round(t.Context())
	if v := s.view.Load(); len(v.BGP.Refusals) > 0 || strings.Contains(log.String(), "level=WARN") ||
		strings.Count(log.String(), "offer not routed") != 1 {
		t.Errorf("refusals %v and log\n%s\nwant none, and one line at level debug", v.BGP.Refusals, log.String())
	}
	s.clock = s.clock.Add(5 * time.Second)
	s.round(t.Context())
	if v := s.view.Load(); len(v.BGP.Refusals) != 1 || strings.Count(log.String(), "offer refused") != 1 {
		t.Errorf("refusals %v and log\n%s\nwant one, and one warning", v.BGP.Refusals, log.String())
	}
}

func TestABGPAddressOfTwoClustersIsTheFirstOnes(t *testing.T) {
	s := newScene(t)
	other := demoSnapshot("other")
	other.Topology.Nodes[0].Name = "liar"
	other.Topology.Nodes = other.Topology.Nodes[:1]
	s.clusters = append(s.clusters, &cluster{name: "other", opened: opened{watcher: &fakeWatcher{snapshot: other}}})
	s.settle(t)
	v := s.view.Load()
	if len(s.speaker.peers) != 2 || s.speaker.peers[0].Node != "worker1" || s.speaker.peers[0].Cluster != "demo" {
		t.Errorf("peers are %v, want those of the first cluster", s.speaker.peers)
	}
	want := "cluster other: the BGP address 192.168.50.23 of node liar also belongs to node worker1 in cluster demo, " +
		"which keeps it: give each node an address of its own"
	if v.Err != nil || !slices.Contains(v.Warnings, want) {
		t.Errorf("error %v and warnings %q, want none and %q", v.Err, v.Warnings, want)
	}
}
