package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// sizes are the numbers of Ingresses, each with a Service, beside which a request is measured.
var sizes = []int{1, 1000}

// costs measures what a request costs beside each number of Ingresses, without an event. An arena for one
// application measures the first number alone.
func (a *arena) costs(ctx context.Context, during func(func() error) (load.Count, error)) (
	figures []figure, err error,
) {
	for _, n := range sizes {
		if n > 1 && a.contender.one {
			break
		}
		if err := a.crowd(ctx, n); err != nil {
			return figures, err
		}
		more, err := a.cost(ctx, n, during)
		figures = append(figures, more...)
		if err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// crowd adds Ingresses until there are n of them, and waits until the last one is served.
func (a *arena) crowd(ctx context.Context, n int) error {
	if n == 1 {
		return nil
	}
	var all strings.Builder
	name := ""
	for i := range n - 1 {
		name = fmt.Sprintf("crowd-%d", i)
		all.WriteString(rig.Service("default", name, "app") + a.ingress(name, name+".local", name))
	}
	if err := a.Apply(ctx, all.String()); err != nil {
		return err
	}
	// What was collected for a while counts for no request.
	return errors.Join(a.serves(ctx, name+".local"), rig.Pause(ctx, 10*time.Second))
}

// cost returns how much processor time of all processes on the appliance's host a request takes, at 400
// requests a second, and how much memory these processes have.
func (a *arena) cost(ctx context.Context, n int, during func(func() error) (load.Count, error)) (
	[]figure, error,
) {
	space, err := a.Exec(ctx, world.Appliance, "readlink", "/proc/self/ns/net")
	if err != nil {
		return nil, err
	}
	if _, err := during(func() error { return nil }); err != nil { // what was before counts apart
		return nil, err
	}
	before, err := used(strings.TrimSpace(space))
	if err != nil {
		return nil, err
	}
	count, err := during(func() (err error) { return rig.Pause(ctx, 20*time.Second) })
	if err != nil {
		return nil, err
	}
	after, err := used(strings.TrimSpace(space))
	if err != nil {
		return nil, err
	}
	beside := ""
	if n > 1 {
		beside = fmt.Sprintf(", %d Ingresses", n)
	}
	made := func(event, unit string, value float64) figure {
		f := figure{Contender: a.contender.name, Event: event + beside, Value: value, Unit: unit}
		progress("%s: %s: %s", f.Contender, f.Event, f)
		return f
	}
	requests := count.Sent + count.Asked
	return []figure{
		made("processor time of a request", "µs",
			float64((after.processor-before.processor).Microseconds())/float64(max(requests, 1))),
		made("memory of all processes", "MB", float64(after.memory)/1e6),
		made("slowest request in 20 s without an event", "ms", float64(count.Slowest)/1e6),
	}, nil
}

// usage is what processes have used.
type usage struct {
	processor time.Duration
	memory    int // bytes, with the part of what several processes share (Pss, proc_pid_smaps_rollup(5))
}

// used returns what the processes of a network namespace have used.
func used(space string) (all usage, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return all, err
	}
	for _, link := range links {
		if at, err := os.Readlink(link); err != nil || at != space {
			continue // another namespace, or the process has ended
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return all, err
		}
		processor, err := rig.CPU(pid)
		memory, failed := shared(pid)
		if err = errors.Join(err, failed); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return all, err
		}
		all.processor += processor
		all.memory += memory
	}
	return all, nil
}

// shared returns a process's Pss, in bytes.
func shared(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kB, err := strconv.Atoi(f[1])
			return kB * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no Pss", pid)
}
