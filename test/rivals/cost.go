package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// costs measures what a request costs beside each of some numbers of Ingresses, each with a Service, without an
// event. An arena for one application measures one alone.
func (a *arena) costs(ctx context.Context, sizes ...int) (figures []figure, err error) {
	last := 1
	for _, n := range sizes {
		if n > 1 && a.contender.one {
			break
		}
		if n > last {
			f, err := a.crowd(ctx, last, n)
			if figures = append(figures, f); err != nil {
				return figures, err
			}
			last = n
		}
		more, err := a.cost(ctx, n)
		if figures = append(figures, more...); err != nil {
			return figures, err
		}
		if a.contender.one {
			continue
		}
		fresh, err := a.fresh(ctx, n)
		if err != nil {
			return figures, err
		}
		grown, err := a.grown(ctx, n)
		if figures = append(figures, fresh, grown); err != nil {
			return figures, err
		}
		if len(sizes) == 1 {
			break
		}
		start, err := a.boot(ctx, n)
		if figures = append(figures, start); err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// boot kills all programs on the appliance's host at once, and empties the folders that a restart of the machine
// empties. It measures the time until the last host is served. The programs start again after a second, which counts.
func (a *arena) boot(ctx context.Context, n int) (figure, error) {
	f := figure{Contender: a.contender.name, Event: "start of all programs, until the last host is served", Unit: "ms"}
	f.Event += beside(n)
	pids, err := a.processes(ctx)
	if err != nil {
		return f, err
	}
	began := time.Now()
	if err := errors.Join(faults.Kill(pids...), a.emptyVolatile()); err != nil {
		return f, err
	}
	host := "test.local"
	if n > 1 {
		host = crowded(n) + ".local"
	}
	err = rig.Within(ctx, 5*time.Minute, 10*time.Millisecond, host+" is served", func() error { return a.ask(ctx, host) })
	if err != nil {
		return f.endless(ctx, err)
	}
	f.Value = float64(time.Since(began)) / 1e6
	progress("%s: %s: %s", f.Contender, f.Event, f)
	return f, nil
}

// emptyVolatile removes what lies in the contender's volatile folders.
func (a *arena) emptyVolatile() (err error) {
	for _, folder := range a.contender.volatile {
		all, unread := os.ReadDir(a.path(folder))
		err = errors.Join(err, unread)
		for _, one := range all {
			err = errors.Join(err, os.RemoveAll(a.path(folder, one.Name())))
		}
	}
	return err
}

// cost returns how much processor time of all processes on the appliance's host a request takes, at 400 requests a
// second, how much memory these processes have, and how long requests take.
func (a *arena) cost(ctx context.Context, n int) ([]figure, error) {
	before, err := a.used(ctx)
	if err != nil {
		return nil, err
	}
	took, failed, err := a.times(ctx, 20*time.Second)
	if err != nil {
		return nil, err
	}
	after, err := a.used(ctx)
	if err != nil {
		return nil, err
	}
	each := func(spent time.Duration) float64 { return float64(spent.Microseconds()) / float64(len(took)) }
	spent, all := after.since(before), time.Duration(0)
	for _, name := range slices.Sorted(maps.Keys(spent)) {
		progress("%s: of %s: %.0f µs", a.contender.name, name, each(spent[name]))
		all += spent[name]
	}
	figures := []figure{
		{Event: "processor time of a request", Unit: "µs", Value: each(all)},
		{Event: "memory of all processes", Unit: "MB", Value: float64(after.memory) / 1e6},
		{Event: "requests without an event, p50 and p99", P50: share(took, 50), P99: share(took, 99), Failed: failed},
		{Event: "slowest of these requests", Unit: "ms", Value: share(took, 100)},
	}
	for i := range figures {
		figures[i].Contender = a.contender.name
		figures[i].Event += beside(n)
		progress("%s: %s: %s", a.contender.name, figures[i].Event, figures[i])
	}
	return figures, nil
}

// times sends requests for some time. It returns the time of each request, the shortest first, and the number of
// those that failed.
func (a *arena) times(ctx context.Context, long time.Duration) (took []time.Duration, failed int, err error) {
	ctx, cancel := context.WithCancel(ctx) // with a deadline a connection could fail just before it
	defer cancel()
	defer time.AfterFunc(long, cancel).Stop()
	var mu sync.Mutex
	a.clients().Run(ctx, func() func(load.Outcome) {
		return func(o load.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			if took = append(took, o.Took); o.Err != nil {
				failed++
			}
		}
	})
	if len(took) == 0 {
		err = errors.New("no request was answered")
	}
	slices.Sort(took)
	return took, failed, err
}

// share returns in how many milliseconds so many of 100 requests were answered.
func share(took []time.Duration, percent int) float64 {
	return float64(took[(len(took)-1)*percent/100]) / 1e6
}

// usage is what processes have used.
type usage struct {
	of     map[process]rig.Spent
	memory int // bytes, with the part of what several processes share (Pss, proc_pid_smaps_rollup(5))
}

// process is a running program.
type process struct {
	pid  int
	name string // of the program
}

// since returns the processor time that programs used after before. A program's children that ended in between count
// as the program. What a process without a parent here used before it ended does not count.
func (u usage) since(before usage) map[string]time.Duration {
	spent, parents := map[string]time.Duration{}, map[int]string{}
	for p, used := range u.of {
		was := before.of[p]
		spent[p.name] += used.Own + used.Waited - was.Own - was.Waited
		parents[p.pid] = p.name
	}
	for p, was := range before.of {
		_, runs := u.of[p]
		if parent, here := parents[was.Parent]; here && !runs {
			spent[parent] -= was.Own + was.Waited
		}
	}
	return spent
}

// processes returns the processes on the appliance's host.
func (a *arena) processes(ctx context.Context) (pids []int, err error) {
	space, err := a.Exec(ctx, world.Appliance, "readlink", "/proc/self/ns/net")
	links, globbed := filepath.Glob("/proc/[0-9]*/ns/net")
	if err := errors.Join(err, globbed); err != nil {
		return nil, err
	}
	for _, link := range links {
		if at, err := os.Readlink(link); err != nil || at != strings.TrimSpace(space) {
			continue // another namespace, or the process has ended
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// used returns what the processes on the appliance's host have used.
func (a *arena) used(ctx context.Context) (all usage, err error) {
	pids, err := a.processes(ctx)
	if err != nil {
		return all, err
	}
	all.of = map[process]rig.Spent{}
	for _, pid := range pids {
		spent, err := rig.SpentBy(pid)
		memory, failed := shared(pid)
		name, unnamed := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		err = errors.Join(err, failed, unnamed)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return all, err
		}
		all.of[process{pid, strings.TrimSpace(string(name))}] = spent
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
