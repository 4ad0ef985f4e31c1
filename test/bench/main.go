// Command bench measures the appliance on real parts and prints a table: a lab
// of its own, an API server with many Services, HAProxy, BIRD. Where there is
// something to hold a figure to, that is measured in the same run, by turns, and
// the table shows the ratio: a figure alone says more about the machine.
//
// It promises figures, not a verdict: its exit status is 0 unless something
// broke. Its limit: appliance, cluster, HAProxy, pods and the clock share one
// machine's processors, so a figure holds what these take from each other.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"sallyport/test/lab/world"
)

func main() {
	var b bench
	flag.IntVar(&b.services, "services", 1000, "number of Services, each with an Ingress")
	flag.IntVar(&b.endpoints, "endpoints", 5, "endpoints of each Service")
	flag.IntVar(&b.samples, "samples", 100, "samples of each figure")
	output := flag.String("o", "table", "output: table or json")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := b.run(ctx)
	if show := b.report.print(os.Stdout, *output); show != nil {
		err = errors.Join(err, show)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	services, endpoints, samples int
	report                       report

	*rig
	floor *floor
}

func (b *bench) run(ctx context.Context) (err error) {
	b.report.Machine = fmt.Sprintf("%d cores, load %s", runtime.NumCPU(), load())
	b.report.Date = time.Now().UTC()
	b.rig, err = newRig(ctx)
	defer func() {
		if b.rig == nil {
			return
		}
		if err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "last words of the appliance:\n%s\n", tail(b.file("appliance.log")))
		}
		err = errors.Join(err, b.close())
	}()
	if err != nil {
		return err
	}
	if b.rig.floor, err = b.newFloor(ctx); err != nil {
		return err
	}
	return nil
}
