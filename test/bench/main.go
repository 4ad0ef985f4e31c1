// Command bench measures the appliance and prints a table, one row or several for each
// subject. In the same run it measures a floor or a rival, where there is one. Read the
// ratios: the milliseconds depend on the machine.
//
// A subject is a value of type row. Rows share a lab, except those that need none or
// bring one up themselves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sallyport/test/rig"
)

func main() {
	if len(os.Args) > 1 && children[os.Args[1]] != nil {
		children[os.Args[1]]()
		return
	}
	rig.Main("bench", run)
}

func run(ctx context.Context) error {
	var o options
	only := flag.String("only", "", "rows to measure, by their numbers, as 6,11; empty: all")
	list := flag.Bool("list", false, "print the rows, and measure nothing")
	file := flag.String("json", ".build/bench.json", "file for the table as JSON; empty: none")
	flag.IntVar(&o.services, "services", 1000, "Services of the large cluster, each with an Ingress")
	flag.IntVar(&o.endpoints, "endpoints", 5, "endpoints of each Service")
	flag.IntVar(&o.samples, "samples", 200, "samples of each latency")
	flag.IntVar(&o.starts, "starts", 3, "starts of each kind")
	flag.DurationVar(&o.churn, "churn", 20*time.Second, "how long endpoints change in row 11")
	flag.StringVar(&o.profiles, "profiles", "", "folder for profiles of the appliance; empty: none")
	flag.Parse()

	some, err := chosen(rows(), *only)
	if err != nil {
		return err
	}
	if *list {
		slices.SortFunc(some, func(a, b row) int { return a.number - b.number })
		for _, r := range some {
			fmt.Printf("%d\t%s\n", r.number, r.what)
		}
		return nil
	}
	if o.profiles != "" {
		if err := os.MkdirAll(o.profiles, 0o750); err != nil {
			return err
		}
	}
	table, err := o.run(ctx, some)
	return errors.Join(err, report(table, *file))
}

// run measures rows: those that are alone, then those of the common lab.
func (o options) run(ctx context.Context, some []row) (table []figure, err error) {
	b := &bench{options: o, table: &table}
	if b.dir, err = os.MkdirTemp("", "sallyport-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if o.profiles != "" {
		err = errors.Join(os.Setenv("GOFLAGS", os.Getenv("GOFLAGS")+" -tags=profile"),
			os.Setenv(profileSocket, filepath.Join(b.dir, "profile.sock")))
		if err != nil {
			return nil, err
		}
	}
	progress("building")
	if err := rig.Build(ctx, b.dir); err != nil {
		return nil, err
	}
	if err := b.measure(ctx, some, alone); err != nil {
		return table, err
	}
	if !slices.ContainsFunc(some, func(r row) bool { return r.where != alone }) {
		return table, nil
	}
	if b.testbed, err = newTestbed(ctx, b.dir, o.endpoints, ""); err != nil {
		return table, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, here := range []place{small, large} {
		if !slices.ContainsFunc(some, func(r row) bool { return r.where&here != 0 }) {
			continue
		}
		if err := b.grow(ctx, map[place]int{small: 1, large: o.services}[here]); err != nil {
			return table, err
		}
		if err := b.measure(ctx, some, here); err != nil {
			return table, err
		}
	}
	return table, nil
}

// measure measures the rows of a place, in their order.
func (b *bench) measure(ctx context.Context, some []row, here place) error {
	for _, r := range some {
		if r.where != here && r.where&here == 0 {
			continue
		}
		b.row = r
		progress("row %d: %s", r.number, r.what)
		if err := r.measure(ctx, b); err != nil {
			return fmt.Errorf("row %d: %w", r.number, err)
		}
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// percentile returns a percentile of unsorted samples, in milliseconds.
func percentile(samples []time.Duration, p float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]) / float64(time.Millisecond)
}
