// Package faults breaks things in a lab, and mends them, for the tests of all kinds.
//
// A Fault is a value, so that a table of tests can have one in each row. It promises that its mend
// removes what it has made, and nothing else. Its limit: a Fault is made once at a time.
package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A Fault is made, and later mended.
type Fault struct{ Make, Mend func(context.Context) error }

// During makes a fault, calls do, and mends the fault.
func (f Fault) During(ctx context.Context, do func() error) error {
	if err := f.Make(ctx); err != nil {
		return err
	}
	return errors.Join(do(), f.Mend(ctx))
}

// All is several faults at once.
func All(all ...Fault) Fault {
	each := func(of func(Fault) func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			var errs []error
			for _, f := range all {
				errs = append(errs, of(f)(ctx))
			}
			return errors.Join(errs...)
		}
	}
	return Fault{
		each(func(f Fault) func(context.Context) error { return f.Make }),
		each(func(f Fault) func(context.Context) error { return f.Mend }),
	}
}

// tables is the number of tables that Filter has named.
var tables atomic.Uint64

// Filter is a firewall on a host. Each rule has the hook of nftables (input, forward, output), what it
// matches, and its verdict: "output tcp dport 179 drop".
func Filter(r *rig.Rig, host string, rules ...string) Fault {
	table := fmt.Sprintf("inet fault%d", tables.Add(1))
	var script strings.Builder
	script.WriteString("add table " + table)
	for _, rule := range rules {
		hook, rest, _ := strings.Cut(rule, " ")
		fmt.Fprintf(&script, "; add chain %s %s { type filter hook %[2]s priority 0; }; add rule %[1]s %[2]s %s",
			table, hook, rest)
	}
	nft := func(script string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.Exec(ctx, host, "nft", script)
			return err
		}
	}
	return Fault{nft(script.String()), nft("delete table " + table)}
}

// API is an API server that a host cannot reach.
func API(r *rig.Rig, host string) Fault { return Filter(r, host, "output tcp dport 6443 drop") }

// Cut is a host that some traffic does not reach from others, nor the other way round.
func Cut(r *rig.Rig, host string, what world.Traffic, others ...string) Fault {
	var all []Fault
	for _, other := range others {
		all = append(all, Fault{
			func(ctx context.Context) error { return r.Partition(ctx, host, other, what) },
			func(ctx context.Context) error { return r.Heal(ctx, host, other) },
		})
	}
	return All(all...)
}

// Power is a node that has lost its power.
func Power(r *rig.Rig, node string) Fault {
	return Fault{
		func(ctx context.Context) error { return r.KillNode(ctx, node) },
		func(ctx context.Context) error { return r.ReviveNode(ctx, node) },
	}
}

// Kill sends SIGKILL to processes of the lab. A process that has ended is no error.
func Kill(pids ...int) error {
	var errs []error
	for _, pid := range pids {
		if pid <= 1 {
			errs = append(errs, fmt.Errorf("process %d is not ours to kill", pid))
		} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// KillHAProxy kills the worker and the master of an appliance that runs.
func KillHAProxy(ctx context.Context, r *rig.Rig) error {
	status, err := r.Status(ctx)
	if err != nil {
		return err
	}
	return Kill(status.HAProxy.Worker, status.HAProxy.Pid)
}
