package group

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// serving holds the facts of an appliance that lacks nothing.
func serving() Facts {
	return Facts{Settled: true, Clusters: []ClusterFacts{{Name: "demo", Live: true, Peers: 3, Heard: 3}}}
}

func TestTheClassFollowsTheFacts(t *testing.T) {
	for name, row := range map[string]struct {
		facts func(*Facts)
		want  Class
		why   string
	}{
		"nothing is wrong": {func(*Facts) {}, Full, ""},
		"HAProxy is dead": {func(f *Facts) {
			f.HAProxy = "connection refused"
		}, None, "HAProxy does not answer: connection refused"},
		"served from a picture": {func(f *Facts) {
			f.Clusters[0].Live = false
		}, Spare, "the API of cluster demo has not answered since the start"},
		"every session was lost": {func(f *Facts) {
			f.Clusters[0].Lost = true
		}, Spare, "every BGP session with cluster demo was lost at once"},
		"a node is dead at the start": {func(f *Facts) { f.Clusters[0].Heard = 2 }, Full, ""},
		"a start waits for a node": {func(f *Facts) {
			f.Starting, f.Clusters[0].Heard = true, 2
		}, Spare, "1 of 3 BGP peers of cluster demo have not sent all their routes since the start"},
		"a start has heard no node": {func(f *Facts) {
			f.Clusters[0].Heard = 0
		}, Spare, "no BGP peer of cluster demo has sent all its routes since the start"},
		"a cluster without nodes": {func(f *Facts) {
			f.Clusters[0] = ClusterFacts{Name: "demo", Live: true}
		}, Full, ""},
		"the first rounds": {func(f *Facts) {
			f.Settled = false
		}, Spare, "the first rounds have not ended yet"},
		"rounds fail": {func(f *Facts) {
			f.Failing = "no memory"
		}, Spare, "rounds fail: no memory"},
		"routes are missing": {func(f *Facts) {
			f.Missing = 2
		}, Spare, "2 wanted routes not in the kernel"},
		"nobody hears it": {func(f *Facts) {
			f.Isolated = true
		}, Spare, "neither a router nor another member hears it"},
		"every server is down": {func(f *Facts) {
			f.Down = true
		}, Spare, "every open server fails its health check"},
		"it drains, another is full": {func(f *Facts) { f.Draining, f.Others = true, true }, None, "it drains"},
		"it drains, no other is full": {func(f *Facts) {
			f.Draining = true
		}, Spare, "it drains, and stays the last resort because no other member is full"},
		"it drains by force": {func(f *Facts) {
			f.Draining, f.Forced = true, true
		}, None, "it drains, by force"},
		"it drains, and HAProxy is dead": {func(f *Facts) {
			f.Draining, f.HAProxy = true, "gone"
		}, None, "HAProxy does not answer: gone"},
		"forced, and drains no more": {func(f *Facts) { f.Forced = true }, Full, ""},
		"it drains while all is wrong": {func(f *Facts) {
			f.Draining, f.Failing, f.Missing = true, "x", 9
		}, Spare, "it drains, and stays the last resort because no other member is full"},
		"two clusters, one from a picture": {func(f *Facts) {
			f.Clusters = append(f.Clusters, ClusterFacts{Name: "two"})
		}, Spare, "the API of cluster two has not answered since the start"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := serving()
			row.facts(&facts)
			now := time.Unix(1000, 0)
			var got Fitness
			for range 20 { // longer than every wait at a first start
				got = Fit(now, facts, got)
				now = now.Add(time.Second)
			}
			if got.Class != row.want || got.Why != row.why {
				t.Errorf("got %s (%q), want %s (%q)", got.Class, got.Why, row.want, row.why)
			}
		})
	}
}

// A moment is the next second of a story about one appliance.
type moment struct {
	after time.Duration // since the moment before
	facts func(*Facts)
	want  Class
}

func TestAClassChangesNeitherTooSoonNorTooOften(t *testing.T) {
	good := func(*Facts) {}
	dead := func(f *Facts) { f.HAProxy = "gone" }
	slow := func(f *Facts) { f.Missing = 1 }
	cut := func(f *Facts) { f.Isolated = true }
	drains := func(f *Facts) { f.Draining, f.Others = true, true }
	start := []moment{{0, good, Spare}, {2 * time.Second, good, Spare}, {time.Second, good, Full}}
	for name, story := range map[string][]moment{
		"a start is full after three seconds": start,
		"a missing route counts after ten seconds": append(slices.Clone(start),
			moment{time.Second, slow, Full}, moment{9 * time.Second, slow, Full}, moment{time.Second, slow, Spare}),
		"a route that comes back in time counts for nothing": append(slices.Clone(start),
			moment{time.Second, slow, Full}, moment{9 * time.Second, slow, Full}, moment{time.Second, good, Full},
			moment{time.Second, slow, Full}, moment{9 * time.Second, slow, Full}),
		"a HAProxy that is back within a second counts for nothing": append(slices.Clone(start),
			moment{time.Second, dead, Full}, moment{900 * time.Millisecond, dead, Full},
			moment{time.Second, good, Full}, moment{time.Second, dead, Full}),
		"a dead HAProxy counts after a second, and a new one is the last resort first": append(slices.Clone(start),
			moment{time.Second, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{2 * time.Second, good, Spare}, moment{time.Second, good, Full}),
		"a failure begins the wait anew": append(slices.Clone(start),
			moment{time.Second, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{2 * time.Second, slow, Spare}, moment{time.Second, good, Spare},
			moment{2 * time.Second, good, Spare}, moment{time.Second, good, Full}),
		"the second loss within ten minutes doubles the wait": append(slices.Clone(start),
			moment{time.Second, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{3 * time.Second, good, Full},
			moment{time.Minute, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{5 * time.Second, good, Spare}, moment{time.Second, good, Full}),
		"a loss after eleven minutes does not": append(slices.Clone(start),
			moment{time.Second, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{3 * time.Second, good, Full},
			moment{11 * time.Minute, dead, Full}, moment{time.Second, dead, None}, moment{time.Second, good, Spare},
			moment{3 * time.Second, good, Full}),
		"a cable that is back is the last resort first": append(slices.Clone(start),
			moment{time.Second, cut, Spare}, moment{time.Second, good, Spare}, moment{2 * time.Second, good, Spare},
			moment{time.Second, good, Full}),
		"a drain is no loss": append(slices.Clone(start),
			moment{time.Second, drains, None}, moment{time.Second, good, Spare}, moment{3 * time.Second, good, Full},
			moment{time.Second, drains, None}, moment{time.Second, good, Spare}, moment{3 * time.Second, good, Full}),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			var got Fitness
			for i, m := range story {
				now = now.Add(m.after)
				facts := serving()
				m.facts(&facts)
				if got = Fit(now, facts, got); got.Class != m.want {
					t.Fatalf("moment %d: got %s (%s), want %s", i, got.Class, got.Why, m.want)
				}
			}
		})
	}
}

// anyFacts returns facts of all kinds, good ones among them.
func anyFacts(r *rand.Rand) Facts {
	f := serving()
	for range r.IntN(4) {
		switch r.IntN(10) {
		case 0:
			f.HAProxy = "gone"
		case 1:
			f.Settled = false
		case 2:
			f.Failing = "no memory"
		case 3:
			f.Missing = r.IntN(3)
		case 4:
			f.Clusters = nil
		case 5:
			f.Clusters = append(f.Clusters,
				ClusterFacts{
					Name: "two", Live: r.IntN(2) == 0, Lost: r.IntN(2) == 0, Peers: r.IntN(3),
					Heard: r.IntN(3),
				})
		case 6:
			f.Down = true
			f.Isolated = r.IntN(2) == 0
		case 7:
			f.Starting = r.IntN(2) == 0
		case 8:
			f.Draining = true
		case 9:
			f.Draining, f.Forced = true, r.IntN(2) == 0
		}
	}
	return f
}

// TestNoGroupIsSilentWhileOneHAProxyAnswers plays groups of which members fail, drain and
// return in any order. What the members have heard of each other is true at the end of each
// step, and anything in between. Only force may silence a group.
func TestNoGroupIsSilentWhileOneHAProxyAnswers(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(1000, 0)
		facts := make([]Facts, 1+r.IntN(4))
		have := make([]Fitness, len(facts))
		for i := range facts {
			facts[i] = serving()
		}
		for step := range 60 {
			now = now.Add(time.Duration(r.IntN(15000)) * time.Millisecond)
			facts[r.IntN(len(facts))] = anyFacts(r)
			for i := range facts {
				facts[i].Others = r.IntN(2) == 0 // old news
				have[i] = Fit(now, facts[i], have[i])
			}
			for range len(facts) + 1 {
				for i := range facts {
					facts[i].Others = false
					for j := range facts {
						facts[i].Others = facts[i].Others || j != i && have[j].Class == Full && !facts[j].Draining
					}
					have[i] = Fit(now, facts[i], have[i])
				}
			}
			answers := slices.ContainsFunc(facts, func(f Facts) bool {
				return f.HAProxy == "" && (!f.Draining || !f.Forced)
			})
			announced := slices.ContainsFunc(have, func(f Fitness) bool { return f.Class != None })
			if answers && !announced {
				t.Fatalf("seed %d, step %d: a HAProxy answers, and nobody announces: %s", seed, step,
					fmt.Sprintf("%+v %+v", facts, have))
			}
		}
	}
}

// TestAFlappingApplianceReturnsSeldom counts how often an appliance becomes full within
// ten minutes, whatever fails how often.
func TestAFlappingApplianceReturnsSeldom(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		var have Fitness
		var returns []time.Time
		good := true
		steps := 1 + r.IntN(100) // how long it stays as it is, in steps of 100 ms
		for at := range 3 * 6000 {
			now := time.Unix(1000, 0).Add(time.Duration(at) * 100 * time.Millisecond)
			if at%steps == 0 {
				good = !good || r.IntN(4) == 0
			}
			facts := serving()
			if !good {
				facts.HAProxy = "gone"
			}
			before := have.Class
			if have = Fit(now, facts, have); have.Class == Full && before != Full {
				returns = append(returns, now)
			}
		}
		// 3, 3, 6, 12, 24 and 48 seconds fit into less than two minutes, and then there
		// is one return a minute.
		for i := range returns {
			if last := i + 15; last < len(returns) && returns[last].Sub(returns[i]) < flapping {
				t.Fatalf("seed %d: 16 returns within %s", seed, returns[last].Sub(returns[i]))
			}
		}
	}
}
