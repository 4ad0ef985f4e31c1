package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sallyport/haproxy"
)

func TestAClusterWithTooFewReadyServersGivesWay(t *testing.T) {
	up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up, Weight: 1}
	down := haproxy.Live{State: haproxy.Open, Check: haproxy.Down, Weight: 1}
	draining := haproxy.Live{State: haproxy.Drain, Check: haproxy.Up, Weight: 1}
	const one, two = "s_172-16-0-1_80", "s_172-16-0-2_80"
	set := func(server string, to haproxy.State, why string) Step {
		return SetServer{haproxy.ServerID{Backend: "web", Server: server}, to, why}
	}
	blue, both := map[string]bool{"blue": true}, map[string]bool{"blue": true, "green": true}
	opens := []Step{set(one, haproxy.Open, "routed")}
	for name, tt := range map[string]struct {
		blue, green []haproxy.Live
		scarce      map[string]bool
		want        []Step
	}{
		"another cluster has enough": {
			[]haproxy.Live{up, down},
			[]haproxy.Live{up},
			blue,
			[]Step{set(one, haproxy.Drain, Scarce), set(two, haproxy.Drain, Scarce)},
		},
		"both have too few":               {[]haproxy.Live{up, down}, []haproxy.Live{up}, both, nil},
		"the other one fails its checks":  {[]haproxy.Live{up, down}, []haproxy.Live{down}, blue, nil},
		"the other one begins to fail":    {[]haproxy.Live{draining}, []haproxy.Live{down}, blue, opens},
		"it has enough again, and serves": {[]haproxy.Live{draining}, []haproxy.Live{up}, nil, opens},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharedBy(tt.blue, tt.green, nil)
			p := new(Planner)
			p.Plan(s.want, s.have) // what is scarce changes alone
			s.want.Scarce = map[string]map[string]bool{"web": tt.scarce}
			if got := p.Plan(s.want, s.have); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestPodsThatComeAndGoDoNotMoveTheTrafficWithThem walks through the minutes of a cluster that should have two
// ready servers. Each moment says how many it has, and whether it should give way then.
func TestPodsThatComeAndGoDoNotMoveTheTrafficWithThem(t *testing.T) {
	for name, moments := range map[string][]struct {
		after time.Duration // the moment before
		ready int
		want  bool
	}{
		"it has enough from the beginning": {{0, 2, false}, {time.Second, 3, false}},
		"its first servers come one by one": {
			{0, 0, true}, {time.Second, 1, true}, {time.Second, 2, false}, {time.Second, 2, false},
		},
		"it fails at once, and returns after ten seconds": {
			{0, 2, false},
			{time.Second, 1, true},
			{time.Second, 2, true},
			{9 * time.Second, 2, true},
			{time.Second, 2, false},
		},
		"all its servers are gone for a while": {
			{0, 2, false}, {time.Second, 0, true}, {time.Minute, 2, true}, {10 * time.Second, 2, false},
		},
		"it fails again, and returns later": {
			{0, 2, false},
			{time.Second, 1, true},
			{time.Second, 2, true},
			{10 * time.Second, 2, false},
			{time.Second, 1, true},
			{time.Second, 2, true},
			{19 * time.Second, 2, true},
			{time.Second, 2, false},
		},
		"it fails again after calm minutes": {
			{0, 2, false},
			{time.Second, 1, true},
			{time.Second, 2, true},
			{10 * time.Second, 2, false},
			{calm, 1, true},
			{time.Second, 2, true},
			{10 * time.Second, 2, false},
		},
		"its pods come and go every five seconds": {
			{0, 2, false},
			{5 * time.Second, 1, true},
			{5 * time.Second, 2, true},
			{5 * time.Second, 1, true},
			{5 * time.Second, 2, true},
			{5 * time.Second, 1, true},
			{5 * time.Second, 2, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s Scarcity
			now := time.Unix(1e9, 0)
			for i, m := range moments {
				now = now.Add(m.after)
				up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}
				of := sharedBy(slices.Repeat([]haproxy.Live{up}, m.ready), []haproxy.Live{up}, nil)
				got := s.Update(of.want.Backends, of.have.Backends, map[string]Least{"blue": {Servers: 2}}, now)
				if s.known["web"]["blue"] != nil && s.known["web"]["blue"].scarce != m.want {
					t.Errorf("moment %d: it gives way: %t, want %t", i, !m.want, m.want)
				}
				if m.ready > 0 && got["web"]["blue"] != m.want || got["web"]["green"] {
					t.Errorf("moment %d: got %v, want that blue is scarce: %t", i, got, m.want)
				}
			}
		})
	}
}

// TestAFlappingClusterReturnsALogarithmOfItsFailures counts how often traffic returns to a cluster whose pods
// fail and recover in any rhythm for five minutes.
func TestAFlappingClusterReturnsALogarithmOfItsFailures(t *testing.T) {
	most := 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		var s stock
		s.update(true, time.Unix(1e9, 0))
		returns, was := 0, false
		pace := 1 + r.IntN(40)
		enough := true
		for second := range 300 {
			if second%pace == 0 {
				enough = !enough
			}
			s.update(enough, time.Unix(1e9+int64(second), 0))
			if was && !s.scarce {
				returns++
			}
			was = s.scarce
		}
		most = max(most, returns)
	}
	if most > 6 || most < 2 {
		t.Errorf("traffic returns %d times in five minutes, want at most 6", most)
	}
}

// TestAShareIsOneOfAllEndpoints walks through the minutes of a cluster that should have half of its endpoints
// ready. Each moment says how many of its servers are up, down and drained, and how many endpoints are not ready.
func TestAShareIsOneOfAllEndpoints(t *testing.T) {
	for name, moments := range map[string][]struct {
		after                   time.Duration // the moment before
		up, down, ends, unready int
		want                    bool
	}{
		"half of them are ready":            {{0, 2, 0, 0, 2, false}},
		"one of two is enough":              {{0, 1, 0, 0, 1, false}},
		"one of three is not":               {{0, 1, 0, 0, 2, true}},
		"those that fail their checks":      {{0, 1, 2, 0, 0, true}},
		"those that terminate do not count": {{0, 1, 0, 5, 1, false}},
		"one endpoint alone":                {{0, 1, 0, 0, 0, false}, {time.Second, 0, 1, 0, 0, true}},
		"more endpoints take more servers": {
			{0, 2, 0, 0, 0, false},
			{time.Second, 2, 0, 0, 2, false},
			{time.Second, 2, 0, 0, 3, true},
			{time.Second, 2, 0, 0, 1, true},
			{10 * time.Second, 2, 0, 0, 1, false},
		},
		"the first servers of a Service come one by one": {
			{0, 0, 0, 0, 4, false}, {time.Second, 1, 0, 0, 3, true}, {time.Second, 2, 0, 0, 2, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s Scarcity
			now := time.Unix(1e9, 0)
			for i, m := range moments {
				now = now.Add(m.after)
				of := sharedBy(drawn(m.up, m.down, m.ends), []haproxy.Live{{State: haproxy.Open, Check: haproxy.Up}}, nil)
				of.terminate(m.ends)
				of.want.Backends[0].Unready = map[string]int{"blue": m.unready}
				got := s.Update(of.want.Backends, of.have.Backends, map[string]Least{"blue": {Percent: 50}}, now)
				if got["web"]["blue"] != m.want || got["web"]["green"] {
					t.Errorf("moment %d: got %v, want that blue is scarce: %t", i, got, m.want)
				}
			}
		})
	}
}

// drawn returns servers in HAProxy: those that pass their checks, those that fail them, and those that end.
func drawn(up, down, ends int) []haproxy.Live {
	return slices.Concat(
		slices.Repeat([]haproxy.Live{{State: haproxy.Open, Check: haproxy.Up}}, up),
		slices.Repeat([]haproxy.Live{{State: haproxy.Open, Check: haproxy.Down}}, down),
		slices.Repeat([]haproxy.Live{{State: haproxy.Drain, Check: haproxy.Up}}, ends))
}

// terminate lets the last pods of blue terminate.
func (s shared) terminate(pods int) {
	servers := s.want.Backends[0].Servers
	blue := slices.IndexFunc(servers, func(one haproxy.Server) bool { return one.Cluster != "" })
	if blue < 0 {
		blue = len(servers)
	}
	for i := range servers[blue-pods : blue] {
		servers[blue-pods+i].Drain = true
	}
}

// TestTheShareDecidesAloneAtFirst compares a Scarcity without a past with the share itself. Then the cluster
// gets one more endpoint, which helps only if it is ready, and changes nothing if it terminates.
func TestTheShareDecidesAloneAtFirst(t *testing.T) {
	scarce := 0
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 7))
		up, down, ends, unready, percent := r.IntN(6), r.IntN(4), r.IntN(3), r.IntN(6), 1+r.IntN(100)
		decide := func(up, down, ends, unready int) bool {
			of := sharedBy(drawn(up, down, ends), drawn(1, 0, 0), nil)
			of.terminate(ends)
			of.want.Backends[0].Unready = map[string]int{"blue": unready}
			return new(Scarcity).Update(of.want.Backends, of.have.Backends,
				map[string]Least{"blue": {Percent: percent}}, time.Unix(1e9, 0))["web"]["blue"]
		}
		got, all := decide(up, down, ends, unready), up+down+unready
		if want := up+down > 0 && (up == 0 || 100*up < percent*all); got != want {
			t.Fatalf("seed %d: %d of %d are ready, want %d %%: it is scarce: %t", seed, up, all, percent, got)
		}
		if got {
			scarce++
		}
		switch {
		case got && !decide(up, down, ends, unready+1), got && !decide(up, down+1, ends, unready):
			t.Fatalf("seed %d: an endpoint that is not ready makes a scarce cluster well", seed)
		case !got && up > 0 && decide(up+1, down, ends, unready):
			t.Fatalf("seed %d: a ready endpoint makes a well cluster scarce", seed)
		case decide(up, down, ends+1, unready) != got:
			t.Fatalf("seed %d: an endpoint that terminates decides", seed)
		}
	}
	if scarce < 500 || scarce > 4500 {
		t.Errorf("%d of 5000 clusters are scarce: the test hardly tests it", scarce)
	}
}

func TestAClusterWhosePodsAreReplacedIsNotScarce(t *testing.T) {
	up, absent := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}, haproxy.Live{}
	var s Scarcity
	for i, blue := range [][]haproxy.Live{{up, up}, {absent, absent}, {up, absent}, {up, up}} {
		of := sharedBy(blue, []haproxy.Live{up}, nil)
		got := s.Update(of.want.Backends, of.have.Backends, map[string]Least{"blue": {Servers: 2}}, time.Unix(1e9+int64(i), 0))
		if len(got) > 0 {
			t.Errorf("moment %d: got %v, want that no cluster gives way", i, got)
		}
	}
}
