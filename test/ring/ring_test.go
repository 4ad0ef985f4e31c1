package main

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"
)

func eventOf(t *testing.T, name string) event {
	t.Helper()
	i := slices.IndexFunc(events, func(e event) bool { return e.name == name })
	if i < 0 {
		t.Fatalf("there is no event %q", name)
	}
	return events[i]
}

// Three appliances behind one real router, Linux with the routes of BIRD or with a
// resilient group of its own. Persistent connections were open while the event happened.
var measured = []struct {
	event, hashing string
	ring           int // the greatest group with second chance; 1: without
	connections    int
	broken         []int // one for each run
}{
	{"the first leaves", "plain", 1, 150, []int{65}},
	{"one in the middle leaves", "plain", 1, 150, []int{44}},
	{"the first comes in", "plain", 1, 150, []int{80}},
	{"the first leaves and returns", "plain", 1, 150, []int{78}},
	{"the first leaves and returns", "plain", 1, 60, []int{26, 32}},
	{"the first leaves", "resilient", 1, 150, []int{54}},
	{"the first leaves and returns", "resilient", 1, 150, []int{44}},
	{"the first comes in", "resilient", 1, 150, []int{0}},
	{"the first leaves and returns", "plain", largest, 60, []int{0}},
	{"the first leaves and returns", "plain", largest, 200, []int{0}},
	{"all are updated in turn", "plain", largest, 100, []int{0, 0}},
	{"the first dies", "plain", largest, 150, []int{48}},
}

// Each real figure is one that the model shows with seeds of its own: not among the
// least or the greatest 1 %.
func TestTheModelShowsWhatRealRoutersDid(t *testing.T) {
	const seeds = 400
	for _, m := range measured {
		e := eventOf(t, m.event)
		h := hashings[slices.IndexFunc(hashings, func(h hashing) bool { return h.name == m.hashing })]
		var got []int
		for seed := range uint64(seeds) {
			w := newWorld(seed, 3, 1, h, m.ring)
			got = append(got, int(math.Round(e.play(w, m.connections)*float64(m.connections))))
		}
		slices.Sort(got)
		least, greatest := got[seeds/100], got[seeds-1-seeds/100]
		for _, want := range m.broken {
			if want < least || want > greatest {
				t.Errorf("%s, %s hashing, second chance up to %d: %d to %d of %d connections break, and %d did on "+
					"a real router",
					m.event, m.hashing, m.ring, least, greatest, m.connections, want)
			}
		}
	}
}

// Second chance saves every connection whose appliance lives, and no packet goes around
// twice. In a group that is too large it changes nothing.
func TestSecondChanceLosesOnlyWhatDied(t *testing.T) {
	const connections = 200
	for _, e := range events {
		for _, h := range hashings {
			for _, n := range []int{2, 3, 5, 8, 9, 64} {
				for _, r := range []int{1, 3, 8} {
					with, without, fresh := newWorld(7, n, r, h, largest), newWorld(7, n, r, h, 1),
						newWorld(7, n, r, h, 1)
					got, want := e.play(with, connections), 0.0
					switch {
					case n > largest:
						want = e.play(without, connections)
					case e.name == "the first dies":
						fresh.connect(connections)
						want = float64(fresh.owned(0)) / connections
					case e.name == "a random fault": // some die
						want = min(got, e.play(without, connections))
					}
					if got != want {
						t.Errorf("%s, %s hashing, %d appliances, %d routers: with second chance %v of the "+
							"connections break, want %v", e.name, h.name, n, r, got, want)
					}
					if with.longest >= n {
						t.Errorf("%s, %s hashing, %d appliances, %d routers: a packet was passed on %d times", e.name,
							h.name, n, r, with.longest)
					}
				}
			}
		}
	}
}

// owned returns the number of connections that an appliance holds.
func (w *world) owned(by int) (n int) {
	for _, f := range w.flows {
		if f.owner == by {
			n++
		}
	}
	return n
}

func TestTheSameSeedPrintsTheSame(t *testing.T) {
	args := []string{"-appliances", "2,5,9", "-connections", "300", "-o", "json", "-seed"}
	var first, again, other bytes.Buffer
	for out, seed := range map[*bytes.Buffer]string{&first: "5", &again: "5", &other: "6"} {
		if err := run(append(slices.Clone(args), seed), out); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != again.String() {
		t.Error("one seed printed two results")
	}
	if first.String() == other.String() {
		t.Error("two seeds printed one result")
	}
	var got []result
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if want := len(events) * len(hashings) * 2 * 3; len(got) != want {
		t.Errorf("%d results, want %d", len(got), want)
	}
}

func TestWhatCannotBePlayedIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-appliances", "1"},
		{"-appliances", "65"},
		{"-appliances", "three"},
		{"-routers", "0"},
		{"-routers", "9"},
		{"-connections", "0"},
		{"-largest", "65"},
		{"-o", "yaml"},
	} {
		if err := run(args, &bytes.Buffer{}); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
