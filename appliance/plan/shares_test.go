package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"sallyport/haproxy"
)

func TestWeightsAreTheSmallestThatMeetTheShares(t *testing.T) {
	for name, tt := range map[string]struct {
		parts []float64
		want  []int
	}{
		"equal":                             {[]float64{7, 7, 7}, []int{1, 1, 1}},
		"95 to 5":                           {[]float64{95, 5}, []int{19, 1}},
		"one to three":                      {[]float64{25, 75}, []int{1, 3}},
		"half of each, and 4 pods beside 3": {[]float64{50. / 4, 50. / 3}, []int{3, 4}},
		"1.5 to 1":                          {[]float64{1.5, 1}, []int{3, 2}},
		"more than HAProxy's weights":       {[]float64{1, 0.001}, []int{256, 1}},
		"a cluster with nothing":            {[]float64{3, 0, 1}, []int{3, 1, 1}},
		"nothing at all":                    {[]float64{0, 0}, []int{1, 1}},
		"nobody":                            {nil, []int{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Weights(tt.parts); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// shareOf returns the part of the requests that HAProxy sends to the servers of each cluster, and whether one
// of them has no weight.
func shareOf(
	b *haproxy.Backend, states []haproxy.State, live *haproxy.LiveBackend,
) (share map[string]float64, none bool) {
	share, sum := make(map[string]float64), 0.0
	for i, s := range b.Servers {
		if one, _ := live.Find(s.Name); states[i] != haproxy.Open || one.Check == haproxy.Down {
			continue
		}
		weight := float64(max(s.Weight, 1))
		none = none || s.Weight < 0 || s.Weight > haproxy.MaxWeight
		share[b.ClusterOf(&b.Servers[i])] += weight
		sum += weight
	}
	for cluster := range share {
		share[cluster] /= sum
	}
	return share, none
}

// TestClustersHaveTheSharesThatAreAskedForWhateverTheirPods holds the shares of two clusters to those asked
// for, after each change of their pods. A cluster that gives way, or whose pods fail, hands its share over.
func TestClustersHaveTheSharesThatAreAskedForWhateverTheirPods(t *testing.T) {
	both, alone := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		shares := map[string]Share{}
		for _, cluster := range []string{"blue", "green"} {
			shares[cluster] = Share{Weight: 1 + r.IntN(100), Percent: 1 + r.IntN(100)}
		}
		p := new(Planner)
		for range 4 {
			var of [2][]haproxy.Live
			for i := range of {
				for range r.IntN(8) {
					of[i] = append(of[i], haproxy.Live{
						State: draw(r, []haproxy.State{haproxy.Absent, haproxy.Closed, haproxy.Drain, haproxy.Open}),
						Check: draw(r, []string{haproxy.Up, haproxy.Up, haproxy.Down, haproxy.Unchecked}), Weight: 1,
					})
				}
			}
			s := sharedBy(of[0], of[1], map[string]bool{"green": r.IntN(4) == 0})
			if s.want.Shares = map[string]Share{"blue": {Percent: 100}}; r.IntN(2) == 0 {
				p.Plan(s.want, s.have) // and then nothing but the shares changes
			}
			s.want.Shares = shares
			p.Plan(s.want, s.have)
			b, fresh := p.Backends()[0], new(Planner)
			if fresh.Plan(s.want, s.have); !slices.Equal(b.Servers, fresh.Backends()[0].Servers) {
				t.Fatalf("seed %d: got %v, from nothing %v", seed, b.Servers, fresh.Backends()[0].Servers)
			}
			got, none := shareOf(b, p.States()[0], s.have.Backends.Get("web"))
			if none {
				t.Fatalf("seed %d: a server has no weight: %v", seed, b.Servers)
			}
			if len(got) < 2 {
				alone += len(got) // it has all
				continue
			}
			both++
			asked, sum := map[string]float64{}, 0.0
			perServer := []float64{}
			for cluster, share := range shares {
				asked[cluster] = float64(share.Weight * share.Percent)
				sum += asked[cluster]
			}
			serving := map[string]float64{}
			for i, one := range b.Servers {
				if live, _ := s.have.Backends.Get("web").Find(one.Name); p.States()[0][i] == haproxy.Open &&
					live.Check != haproxy.Down {
					serving[b.ClusterOf(&b.Servers[i])]++
				}
			}
			for cluster := range shares {
				perServer = append(perServer, asked[cluster]/serving[cluster])
			}
			if ratio := slices.Max(perServer) / slices.Min(perServer); ratio > haproxy.MaxWeight {
				continue // HAProxy has no such weights
			}
			for cluster, has := range got {
				if want := asked[cluster] / sum; math.Abs(has/want-1) > 0.011 {
					t.Fatalf("seed %d: cluster %s has %.4f of the requests, want %.4f: %v", seed, cluster, has, want,
						b.Servers)
				}
			}
		}
	}
	if both < 2000 || alone < 500 {
		t.Errorf("%d times both clusters serve, %d times one: the test hardly tests it", both, alone)
	}
}

func TestEqualWeightsAreTheSameBackend(t *testing.T) {
	up := haproxy.Live{State: haproxy.Open, Check: haproxy.Up, Weight: 1}
	down := haproxy.Live{State: haproxy.Open, Check: haproxy.Down, Weight: 1}
	s := sharedBy([]haproxy.Live{up, up}, []haproxy.Live{up}, nil)
	failing := sharedBy([]haproxy.Live{up, down}, []haproxy.Live{up}, nil)
	var p Planner
	ask := func(blue, green int, have Have) *haproxy.Backend {
		s.want.Shares = map[string]Share{"blue": {Weight: blue, Percent: 100}, "green": {Weight: green, Percent: 100}}
		if steps := p.Plan(s.want, have); len(steps) > 0 {
			t.Errorf("weights %d and %d take the steps %v, want none", blue, green, steps)
		}
		return p.Backends()[0]
	}
	if got := ask(2, 1, s.have); got != s.want.Backends[0] {
		t.Errorf("weights that are all 1 make another backend: %v", got.Servers)
	}
	first := ask(1, 1, s.have)
	if first == s.want.Backends[0] || first.Servers[2].Weight != 2 || first.Servers[0].Weight != 1 {
		t.Errorf("at equal shares, two servers beside one: %v", first.Servers)
	}
	if again := ask(10, 10, s.have); again != first {
		t.Errorf("the same weights are another backend")
	}
	if got := ask(10, 10, failing.have); got != s.want.Backends[0] {
		t.Errorf("one server of each cluster passes its checks, and the weights are not equal: %v", got.Servers)
	}
	if s.want.Shares = nil; p.Plan(s.want, s.have) != nil || p.Backends()[0] != s.want.Backends[0] {
		t.Errorf("without shares there are weights: %v", p.Backends()[0].Servers)
	}
}
