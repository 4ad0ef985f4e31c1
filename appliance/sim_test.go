package appliance

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/appliance/plan"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

var (
	simulate = flag.Bool("sim", false, "grow each axis until a bound breaks, and print where (make sim)")
	simAxis  = flag.String("axis", "", "grow only the axis `NAME`, or the axes whose names begin with it and a dash")
	simTo    = flag.Int("to", 0, "grow to `SIZE` at most")
)

// An axis is a number that grows until a bound breaks.
type axis struct {
	name     string
	what     string // that is counted
	from, to int
	measure  func(t *testing.T, size int) []figure
	way      string // past the wall
}

// A figure is what was measured, and the bound beside it.
type figure struct {
	what       string
	got, bound float64
	unit       string
}

func (f figure) holds() bool { return f.got < f.bound }

func (f figure) String() string { return fmt.Sprintf("%s %.3g %s", f.what, f.got, f.unit) }

// axes are all axes, in the order in which they are measured.
var axes = []axis{
	{
		name: "blocks-1", what: "blocks, 1 pod change a second", from: 100, to: 100_000,
		measure: churnAt(1), way: byChange,
	},
	{
		name: "blocks-10", what: "blocks, 10 pod changes a second", from: 100, to: 100_000,
		measure: churnAt(10), way: byChange,
	},
	{
		name: "blocks-50", what: "blocks, 50 pod changes a second", from: 100, to: 100_000,
		measure: churnAt(50), way: byChange,
	},
	{
		name: "blocks-200", what: "blocks, 200 pod changes a second", from: 100, to: 100_000,
		measure: churnAt(200), way: byChange,
	},
	{
		name: "nodes-idle", what: "nodes with 4 blocks each", from: 50, to: 5000, measure: idleRound,
		way: "look only at what changed",
	},
	{
		name: "nodes-change", what: "nodes with 4 blocks each", from: 50, to: 5000, measure: podChange,
		way: byChange,
	},
	{
		name: "ingresses", what: "Ingresses", from: 1000, to: 100_000, measure: ingressChange,
		way: "compare what changed, and not lists of all",
	},
	{
		name: "clusters", what: "clusters with 1,000 Services each, all in one set", from: 1, to: 10,
		measure: clusterMoves, way: "more groups",
	},
	{
		name: "socket-read", what: "servers in HAProxy", from: 1000, to: 200_000, measure: socketRead,
		way: "shorter pauses for HAProxy; reading backend by backend",
	},
	{
		name: "socket-plan", what: "servers in HAProxy", from: 1000, to: 200_000, measure: socketPlan,
		way: "nothing needs to: later rounds plan what changed",
	},
}

// byChange moves the wall of a cluster with many blocks.
const byChange = "read Calico's changed objects alone, and change allocations and tables in place"

// TestWalls grows each axis until a bound breaks, if asked to. Otherwise it only shows that each axis can be
// measured.
func TestWalls(t *testing.T) {
	if *simulate {
		fmt.Println("| axis | bound | holds | measured | breaks | measured | way past it |\n|---|---|---|---|---|---|---|")
	}
	for _, a := range axes {
		if *simAxis != "" && !strings.HasPrefix(a.name+"-", *simAxis+"-") {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			if *simulate {
				a.grow(t)
				return
			}
			for _, f := range a.measure(t, 4) {
				if f.got <= 0 || f.bound <= 0 {
					t.Errorf("got %s, with the bound %g", f, f.bound)
				}
			}
		})
	}
}

// some returns how much of a quantity that is no axis there is: few in a test that only shows that the axis
// can be measured.
func some(many int) int {
	if *simulate {
		return many
	}
	return 4
}

// attempts is how often a size is measured if its bound breaks. Other programs may have had the processor.
const attempts = 2

// grow doubles the size until a bound breaks, and prints a row.
func (a axis) grow(t *testing.T) {
	if *simTo > 0 {
		a.to = *simTo
	}
	var held []figure
	last := 0
	for size := min(a.from, a.to); ; size = min(2*size, a.to) {
		var got []figure
		broke := -1
		for range attempts {
			got = a.measure(t, size)
			fmt.Printf("%-14s %7d  %s\n", a.name, size, listed(got))
			if broke = slices.IndexFunc(got, func(f figure) bool { return !f.holds() }); broke < 0 {
				break
			}
		}
		if broke >= 0 || size == a.to {
			row := []string{a.what, bounds(got), "none", "", strconv.Itoa(size), listed(got), a.way}
			switch {
			case broke < 0:
				row = append(row[:2], strconv.Itoa(size), listed(got), "", "", "")
			case last > 0:
				row[2], row[3], row[5] = strconv.Itoa(last), listed(held), got[broke].String()
			}
			fmt.Println("| " + strings.Join(row, " | ") + " |")
			return
		}
		held, last = got, size
	}
}

func listed(all []figure) string {
	var words []string
	for _, f := range all {
		words = append(words, f.String())
	}
	return strings.Join(words, ", ")
}

func bounds(all []figure) string {
	var words []string
	for _, f := range all {
		words = append(words, fmt.Sprintf("%s < %g %s", f.what, f.bound, f.unit))
	}
	return strings.Join(words, ", ")
}

// churnAt measures pods that come and go in a cluster with so many blocks.
func churnAt(rate float64) func(*testing.T, int) []figure {
	return func(t *testing.T, blocks int) []figure {
		w := newWorld(t, newTown(0, max(1, blocks/20), blocks, some(1000)))
		p99, cores := w.churn(t, rate, some(100))
		return []figure{
			{what: "lag p99", got: 1000 * p99, bound: 50, unit: "ms"},
			{what: "processor", got: cores, bound: 1, unit: "cores"},
		}
	}
}

// idleRound measures the processor time of a second in which nothing changes.
func idleRound(t *testing.T, nodes int) []figure {
	w := newWorld(t, newTown(0, nodes, 4*nodes, some(1000)))
	rounds := some(30)
	used := processor(t)
	for range rounds {
		w.clock = w.clock.Add(tick)
		w.next(t)
	}
	cores := (processor(t) - used).Seconds() / (time.Duration(rounds) * tick).Seconds()
	return []figure{{what: "processor at rest", got: 100 * cores, bound: 10, unit: "% of a core"}}
}

// podChange measures the rounds after a pod has come or gone.
func podChange(t *testing.T, nodes int) []figure {
	w := newWorld(t, newTown(0, nodes, 4*nodes, some(1000)))
	took := median(some(31), func(i int) time.Duration {
		w.towns[0].change(i)
		return w.rest(t)
	})
	return []figure{{what: "rounds after a pod change", got: ms(took), bound: 50, unit: "ms"}}
}

// ingressChange measures the compiler after one Ingress has got another path.
func ingressChange(t *testing.T, n int) []figure {
	s := newTown(0, 1, max(1, n*endpointsEach/podsEach+1), n).snapshot
	c := &ingress.Compiler{}
	c.Compile([]input.Snapshot{s})
	took := median(some(11), func(i int) time.Duration {
		one := s.Ingresses[n/2].DeepCopy()
		one.Spec.Rules[0].HTTP.Paths[0].Path = fmt.Sprintf("/%d", i)
		s.Ingresses = replaced(s.Ingresses, n/2, one)
		return computed(t, func() { c.Compile([]input.Snapshot{s}) })
	})
	return []figure{{what: "compiling a changed Ingress", got: ms(took), bound: 100, unit: "ms"}}
}

// clusterMoves measures the rounds after one more cluster has come, after it is drained, and after it has gone.
func clusterMoves(t *testing.T, n int) []figure {
	make := func(number int) *town { return newTown(number, some(20), some(100), some(1000)) }
	var towns []*town
	for i := range n {
		towns = append(towns, make(i))
	}
	w := newWorld(t, towns...)
	all := []figure{{what: "comes"}, {what: "is drained"}, {what: "goes"}}
	w.add(make(n))
	all[0].got = w.rest(t).Seconds()
	if err := w.retired.begin(w.towns[n].objects.Cluster, w.clock); err != nil {
		t.Fatal(err)
	}
	all[1].got = w.rest(t).Seconds()
	if got, want := w.open(0), n*endpointsEach; got != want {
		t.Fatalf("%d servers of the first Service are open after a cluster of %d was drained, want %d", got, n+1, want)
	}
	w.remove(n)
	all[2].got = w.rest(t).Seconds()
	for i := range all {
		all[i].bound, all[i].unit = 2, "s"
	}
	return all
}

// socketRead measures the reading of a whole HAProxy, with the pauses that it leaves HAProxy.
func socketRead(t *testing.T, servers int) []figure {
	_, _, read := readWorld(t, servers)
	return []figure{{what: "reading", got: ms(read), bound: 100, unit: "ms"}}
}

// socketPlan measures the round of a process that remembers nothing of HAProxy, after the reading.
func socketPlan(t *testing.T, servers int) []figure {
	w, live, _ := readWorld(t, servers)
	w.proxy.backends = live
	took := median(some(5), func(int) time.Duration {
		w.planner = plan.Planner{}
		return w.rest(t)
	})
	return []figure{{what: "a round that plans all", got: ms(took), bound: 100, unit: "ms"}}
}

func ms(d time.Duration) float64 { return 1000 * d.Seconds() }

// median returns the median of n measurements.
func median(n int, measure func(i int) time.Duration) time.Duration {
	all := make([]time.Duration, 0, n)
	for i := range n {
		all = append(all, measure(i))
	}
	slices.Sort(all)
	return all[n/2]
}
