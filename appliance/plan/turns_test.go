package plan

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"sallyport/haproxy"
	"sallyport/routes"
)

// A shared is a backend with servers of two clusters, and the state of each in HAProxy. Each cluster has
// a block of pods of namespace shop.
type shared struct {
	want Want
	have Have
}

func sharedBy(blue, green []haproxy.Live, drained map[string]bool) shared {
	s := shared{want: Want{Drained: drained, Routes: routes.Table{}}, have: Have{Routes: routes.Table{}}}
	b := &haproxy.Backend{Name: "web", Cluster: "blue", Set: "both", Namespace: "shop"}
	there := &haproxy.LiveBackend{}
	var facts routes.Facts
	for i, of := range [][]haproxy.Live{blue, green} {
		cluster, block := []string{"blue", "green"}[i], prefixes("172.16.0.0/26", "172.17.0.0/26")[i]
		pods := map[netip.Addr]string{}
		for j, live := range of {
			at := block.Addr().Next()
			for range j {
				at = at.Next()
			}
			pods[at] = "shop"
			one := haproxy.Server{Addr: netip.AddrPortFrom(at, 80)}
			if i > 0 {
				one.Cluster = cluster
			}
			one.Name = haproxy.NameOf(one)
			b.Servers = append(b.Servers, one)
			if live.Name, live.Addr = one.Name, one.Addr; live.State > haproxy.Absent {
				there.Servers = append(there.Servers, live)
			}
		}
		facts.Topologies = append(facts.Topologies, routes.Topology{
			Cluster: cluster, Blocks: []*routes.IPAMBlock{{Prefix: block, Pods: pods}},
			Pools: []routes.Pool{{CIDR: block}},
		})
		s.want.Routes[routes.To(block)], s.have.Routes[routes.To(block)] = worldHops[i], worldHops[i]
	}
	s.want.Backends, s.want.Allocations = []*haproxy.Backend{b}, routes.Allocate(facts)
	s.have.Backends = haproxy.NewLiveBackends(map[string]*haproxy.LiveBackend{"web": there})
	return s
}

func TestADrainedClusterGivesWayToOneThatServes(t *testing.T) {
	up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}
	down := haproxy.Live{State: haproxy.Open, Check: haproxy.Down}
	draining := haproxy.Live{State: haproxy.Drain, Check: haproxy.Up}
	absent := haproxy.Live{}
	const blue, green = "s_172-16-0-1_80", "s_172-17-0-1_80_green"
	for name, tt := range map[string]struct {
		blue, green haproxy.Live
		drained     map[string]bool
		want        []Step
	}{
		"another cluster serves": {up, up, map[string]bool{"blue": true}, []Step{
			SetServer{haproxy.ServerID{Backend: "web", Server: blue}, haproxy.Drain, Drained},
		}},
		"the servers of the other one are not there yet": {up, absent, map[string]bool{"blue": true}, []Step{
			SetServer{haproxy.ServerID{Backend: "web", Server: green}, haproxy.Open, "routed"},
		}},
		"the other one fails its checks": {up, down, map[string]bool{"blue": true}, nil},
		"the other one begins to fail": {draining, down, map[string]bool{"blue": true}, []Step{
			SetServer{haproxy.ServerID{Backend: "web", Server: blue}, haproxy.Open, "routed"},
		}},
		"both are drained": {up, up, map[string]bool{"blue": true, "green": true}, nil},
		"a new pod of the drained one is ready for its return": {absent, up, map[string]bool{"blue": true}, []Step{
			SetServer{haproxy.ServerID{Backend: "web", Server: blue}, haproxy.Drain, Drained},
		}},
		"it returns": {draining, up, nil, []Step{
			SetServer{haproxy.ServerID{Backend: "web", Server: blue}, haproxy.Open, "routed"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharedBy([]haproxy.Live{tt.blue}, []haproxy.Live{tt.green}, tt.drained)
			if got := Plan(s.want, s.have); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAClusterWithoutSessionsGivesWayToOneThatServes(t *testing.T) {
	up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}
	unchecked := haproxy.Live{State: haproxy.Open, Check: haproxy.Unchecked}
	down := haproxy.Live{State: haproxy.Open, Check: haproxy.Down}
	const blue, green = "s_172-16-0-1_80", "s_172-17-0-1_80_green"
	set := func(server string, to haproxy.State, why string) Step {
		return SetServer{haproxy.ServerID{Backend: "web", Server: server}, to, why}
	}
	only := func(cluster string) map[string]bool { return map[string]bool{cluster: true} }
	both := map[string]bool{"blue": true, "green": true}
	for name, tt := range map[string]struct {
		blue, green     haproxy.Live
		drained, silent map[string]bool
		want            []Step
	}{
		"no check finds its dead servers": {
			unchecked, unchecked, nil, only("blue"), []Step{set(blue, haproxy.Drain, Silent)},
		},
		"the other one fails its checks": {up, down, nil, only("blue"), nil},
		"both have lost their sessions":  {up, up, nil, both, nil},
		"it returns": {
			haproxy.Live{State: haproxy.Drain, Check: haproxy.Up}, up, nil, nil, []Step{set(blue, haproxy.Open, "routed")},
		},
		"the other one is drained, and it still answers": {
			up, up, only("green"), only("blue"), []Step{set(green, haproxy.Drain, Drained)},
		},
		"the other one is drained, and it is needed": {
			down, up, only("green"), only("blue"), []Step{set(blue, haproxy.Drain, Silent)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharedBy([]haproxy.Live{tt.blue}, []haproxy.Live{tt.green}, tt.drained)
			s.want.Silent = tt.silent
			if got := Plan(s.want, s.have); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAPodOfAnotherClusterIsRefusedByItsOwnRecords(t *testing.T) {
	up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}
	s := sharedBy([]haproxy.Live{up}, []haproxy.Live{up}, nil)
	b := s.want.Backends[0]
	b.Servers[1].Cluster, b.Servers[0].Cluster = "", "" // as if green's slice were blue's
	steps := Plan(s.want, s.have)
	if len(steps) != 1 || steps[0].(SetServer).State != haproxy.Closed {
		t.Errorf("got %v, want the server in green closed", steps)
	}
}

// TestSomebodyServesWhateverIsDrained takes any of the steps in any order. If a server takes new requests
// before, and may go on, one does at each moment.
func TestSomebodyServesWhateverIsDrained(t *testing.T) {
	serving := func(servers map[string]haproxy.Live) bool {
		for _, s := range servers {
			if s.State == haproxy.Open && s.Check != haproxy.Down {
				return true
			}
		}
		return false
	}
	drains := 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var of [2][]haproxy.Live
		for i := range of {
			for range r.IntN(4) {
				of[i] = append(of[i], haproxy.Live{
					State: haproxy.State(r.IntN(4)), Check: draw(r, []string{haproxy.Up, haproxy.Down, haproxy.Unchecked}),
				})
			}
		}
		drained := map[string]bool{"blue": r.IntN(2) == 0, "green": r.IntN(3) == 0}
		s := sharedBy(of[0], of[1], drained)
		s.want.Silent = map[string]bool{"blue": r.IntN(3) == 0, "green": r.IntN(3) == 0}
		s.want.Scarce = map[string]map[string]bool{"web": {"blue": r.IntN(3) == 0, "green": r.IntN(3) == 0}}
		servers := map[string]haproxy.Live{}
		if there := s.have.Backends.Get("web"); there != nil {
			for _, one := range there.Servers {
				servers[one.Name] = one
			}
		}
		steps := Plan(s.want, s.have)
		before := serving(servers)
		r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
		for _, step := range steps[:r.IntN(len(steps)+1)] {
			set := step.(SetServer)
			one := servers[set.ID.Server]
			one.State = set.State
			servers[set.ID.Server] = one
			if set.State == haproxy.Drain {
				drains++
			}
			if before && !serving(servers) {
				t.Fatalf("seed %d: nobody serves after %v of %v", seed, step, steps)
			}
		}
	}
	if drains < 200 {
		t.Errorf("%d drains: the test hardly tests them", drains)
	}
}
