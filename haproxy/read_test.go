package haproxy

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program writes a shell script that runs in place of HAProxy, and returns a Proxy with it.
func program(t *testing.T, script string) *Proxy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "haproxy")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Proxy{opt: Options{Binary: file}}
}

// TestAConfigurationIsNotRefusedForABusyMachine has a program of the lowest priority read a
// configuration on a processor that others need, too.
func TestAConfigurationIsNotRefusedForABusyMachine(t *testing.T) {
	const limit = 300 * time.Millisecond
	for range 2 {
		hog := exec.CommandContext(t.Context(), "taskset", "-c", "0", "sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = hog.Wait() })
	}
	p := program(t, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	runtime.LockOSThread() // and never unlocks it, so that the thread ends with the test
	var first unix.CPUSet
	first.Set(0)
	if err := errors.Join(unix.SchedSetaffinity(0, &first), unix.Setpriority(unix.PRIO_PROCESS, 0, 19)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	report, err := p.report(t.Context(), "x.cfg", limit)
	took := time.Since(begin)
	if report != "" || err != nil {
		t.Errorf("after %s it is %q, %v", took, report, err)
	}
	t.Logf("it took %s, for a limit of %s", took, limit)
}

func TestAConfigurationThatTakesTooLongIsRefused(t *testing.T) {
	const limit = 100 * time.Millisecond
	for name, script := range map[string]string{
		"it waits for another": "exec sleep 600",
		"it computes":          "while :; do :; done",
	} {
		t.Run(name, func(t *testing.T) {
			report, err := program(t, script).report(t.Context(), "x.cfg", limit)
			if want := "longer than " + limit.String(); !strings.Contains(report, want) || err != nil {
				t.Errorf("%q, %v; want %q", report, err, want)
			}
		})
	}
	for script, want := range map[string]string{
		"echo no; exit 1": "no\n",
		"kill -SEGV $$":   "signal: segmentation fault",
		"exit 0":          "",
	} {
		if report, err := program(t, script).report(t.Context(), "x.cfg", time.Minute); report != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", script, report, err, want)
		}
	}
}

func TestTheTimesOfAProcessAreKnown(t *testing.T) {
	if got := timesOf(-1); got != (times{}) {
		t.Errorf("of no process: %+v", got)
	}
	asleep := exec.CommandContext(t.Context(), "sleep", "600")
	if err := asleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asleep.Wait() })
	eventually(t, "a process that sleeps", func() bool {
		got := timesOf(asleep.Process.Pid)
		return got.ran > 0 && !got.runnable
	})
	// Two processes on one processor wait for it in turns. On a quiet machine, one alone may never wait.
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for n := range 1024 {
		if all.IsSet(n) {
			one.Set(n)
			break
		}
	}
	pid := 0
	for range 2 {
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = busy.Wait() })
		if err := unix.SchedSetaffinity(busy.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		pid = busy.Process.Pid
	}
	eventually(t, "a process that computes", func() bool {
		got := timesOf(pid)
		return got.ran > 50*time.Millisecond && got.queued > 0 && got.runnable
	})
}
