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
				got := s.Update(of.want.Backends, of.have.Backends, map[string]int{"blue": 2}, now)
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

func TestAClusterWhosePodsAreReplacedIsNotScarce(t *testing.T) {
	up, absent := haproxy.Live{State: haproxy.Open, Check: haproxy.Up}, haproxy.Live{}
	var s Scarcity
	for i, blue := range [][]haproxy.Live{{up, up}, {absent, absent}, {up, absent}, {up, up}} {
		of := sharedBy(blue, []haproxy.Live{up}, nil)
		got := s.Update(of.want.Backends, of.have.Backends, map[string]int{"blue": 2}, time.Unix(1e9+int64(i), 0))
		if len(got) > 0 {
			t.Errorf("moment %d: got %v, want that no cluster gives way", i, got)
		}
	}
}
