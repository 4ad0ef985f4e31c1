// Command bench measures the appliance in a lab of its own and prints a table.
// In the same run it measures a lower bound or another program for comparison,
// where there is one. Read the ratios: the milliseconds depend on the machine.
//
//	endpoint   change of an EndpointSlice committed → server open in HAProxy,
//	           beside a bare watch of the same object and one exchange with HAProxy's socket
//	block      block announced by a node → route in the kernel, beside BIRD 1.6
//	ingress    Ingress committed → its first 200
//	start      process start → every host served, with and without a former life
//	memory     resident, and the processor time of an appliance with nothing to do
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"sallyport/test/rig"
)

// row is one line of the table.
type row struct {
	What   string  `json:"what"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Beside string  `json:"beside,omitempty"` // the figure it is compared with, measured in the same run
	Ratio  float64 `json:"ratio,omitempty"`
	Target string  `json:"target,omitempty"`
	Met    *bool   `json:"met,omitempty"`
}

type table struct{ rows []row }

func (t *table) add(r row) {
	t.rows = append(t.rows, r)
	progress("%s: %.3g %s", r.What, r.Value, r.Unit)
}

// atMost adds a row with a bound on its value.
func (t *table) atMost(what string, value float64, unit string, bound float64) {
	met := value <= bound
	t.add(row{What: what, Value: value, Unit: unit, Target: fmt.Sprintf("≤ %g %s", bound, unit), Met: &met})
}

// beside adds a row with another figure of the same run for comparison.
func (t *table) beside(what string, value, other float64, unit, name string) {
	t.add(row{What: what, Value: value, Unit: unit, Beside: fmt.Sprintf("%s %.3g %s", name, other, unit), Ratio: value / other})
}

func (t *table) print(format string) error {
	if format == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(t.rows)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT\tFIGURE\tBESIDE\tRATIO\tTARGET\t")
	for _, r := range t.rows {
		ratio, met := "", ""
		if r.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Met != nil {
			met = map[bool]string{true: "met", false: "MISSED"}[*r.Met]
		}
		fmt.Fprintf(w, "%s\t%.3g %s\t%s\t%s\t%s\t%s\n", r.What, r.Value, r.Unit, r.Beside, ratio, r.Target, met)
	}
	return w.Flush()
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// percentile returns a percentile of unsorted samples, in milliseconds.
func percentile(samples []time.Duration, p float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]) / float64(time.Millisecond)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == pollArg {
		poll()
		return
	}
	rig.Main("bench", run)
}

func run(ctx context.Context) (err error) {
	services := flag.Int("services", 1000, "Services of the large cluster, each with an Ingress")
	endpoints := flag.Int("endpoints", 5, "endpoints of each Service")
	samples := flag.Int("samples", 200, "samples of each latency")
	starts := flag.Int("starts", 5, "starts of each kind")
	format := flag.String("o", "text", "text or json")
	flag.Parse()

	dir, err := os.MkdirTemp("", "sallyport-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress("building")
	if err := rig.Build(ctx, dir); err != nil {
		return err
	}
	s, err := newTestbed(ctx, dir, *endpoints)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	t := &table{}
	if err := s.blocks(ctx, t, *samples); err != nil {
		return fmt.Errorf("block: %w", err)
	}
	var p99 []float64
	for _, n := range []int{1, *services} {
		progress("a cluster with %d Services, %d endpoints each", n, *endpoints)
		if err := s.populate(ctx, n); err != nil {
			return err
		}
		of := fmt.Sprintf(", %d Services", n)
		open, floor, err := s.endpointChanges(ctx, *samples)
		if err != nil {
			return fmt.Errorf("endpoint: %w", err)
		}
		for _, p := range []float64{0.5, 0.9, 0.99} {
			t.beside(fmt.Sprintf("endpoint → open, p%g%s", p*100, of), percentile(open, p), percentile(floor, p), "ms", "bare watch + socket")
		}
		p99 = append(p99, percentile(open, 0.99))
		if n == 1 {
			if err := s.ingresses(ctx, t, n, *samples); err != nil {
				return err
			}
		}
		rss, proxy, err := s.memory()
		if err != nil {
			return err
		}
		t.atMost("resident memory of the appliance"+of, rss, "MB", 150)
		t.add(row{What: "resident memory of HAProxy's worker" + of, Value: proxy, Unit: "MB"})
	}
	met := p99[1] <= 2*p99[0]
	t.add(row{What: "endpoint → open, p99, large over small", Value: p99[1] / p99[0], Unit: "×", Target: "≤ 2 ×", Met: &met})
	share, err := s.idle(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	t.add(row{What: fmt.Sprintf("processor of an idle appliance, %d Services", *services), Value: 100 * share, Unit: "%"})
	for _, cold := range []bool{false, true} {
		what := map[bool]string{false: "again, HAProxy and routes adopted", true: "with nothing but its config file"}[cold]
		var took []time.Duration
		for range *starts {
			one, err := s.restart(ctx, cold)
			if err != nil {
				return fmt.Errorf("start: %w", err)
			}
			progress("start %s: %s", what, one.Round(10*time.Millisecond))
			took = append(took, one)
		}
		t.atMost("start "+what+" → all hosts served, p50", percentile(took, 0.5)/1000, "s", 3)
		t.add(row{What: "start " + what + " → all hosts served, slowest", Value: slices.Max(took).Seconds(), Unit: "s"})
	}
	// Last, because each reload leaves a worker that goes on checking every server until its
	// connections end.
	if err := s.ingresses(ctx, t, *services, *samples); err != nil {
		return err
	}
	return t.print(cmp.Or(*format, "text"))
}

// ingresses adds the rows about Ingresses that join a cluster of n Services.
func (s *testbed) ingresses(ctx context.Context, t *table, n, samples int) error {
	for _, backend := range []bool{false, true} {
		kind := map[bool]string{false: "known backend", true: "new backend (reload)"}[backend]
		took, err := s.newIngresses(ctx, max(samples/10, 3), backend)
		if err != nil {
			return fmt.Errorf("ingress: %w", err)
		}
		t.add(row{What: fmt.Sprintf("Ingress → first 200, %s, p50, %d Services", kind, n), Value: percentile(took, 0.5), Unit: "ms"})
	}
	return nil
}
