package haproxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// checking bounds how long HAProxy may take to read a configuration. HAProxy takes 0.4 s for 10,000
// backends, and 3 s for 3,000 certificates.
const checking = 30 * time.Second

// starving bounds how long HAProxy may take to read a configuration, with the time that it waits
// for a processor.
const starving = 5 * time.Minute

// errStarved says that HAProxy got too little processor to read a configuration.
var errStarved = fmt.Errorf("HAProxy got so little processor that it read no configuration within %s", starving)

// report has HAProxy read a configuration without acting on it, with the environment of a start. It
// returns HAProxy's report if HAProxy rejects the configuration, or takes longer than limit. The
// time that HAProxy waits for a processor does not count: a busy machine is not the fault of who
// wrote the configuration. It returns "" if HAProxy accepts the configuration. An error means that
// HAProxy did not read it.
func (p *Proxy) report(ctx context.Context, file string, limit time.Duration) (string, error) {
	p.checks.Add(1)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, p.opt.Binary, "-c", "-f", file) //nolint:gosec // the operator's own program
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", []string{"PATH=" + os.Getenv("PATH")}, &out, &out
	var late error
	err := cmd.Start()
	if err == nil {
		ended, told := make(chan struct{}), make(chan error)
		go func() { told <- endure(cmd.Process, limit, ended) }()
		err = cmd.Wait()
		close(ended)
		late = <-told
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &exit) && ctx.Err() == nil && (exit.Exited() || late == nil):
		return cmp.Or(out.String(), err.Error()), nil
	case errors.Is(late, errSlow) && ctx.Err() == nil:
		return fmt.Sprintf("[ALERT] reading it took longer than %s", limit), nil
	}
	return "", fmt.Errorf("running %s to check a configuration: %w", p.opt.Binary,
		errors.Join(cmp.Or(late, err), ctx.Err()))
}

// errSlow says that HAProxy exceeded its limit.
var errSlow = errors.New("it takes too long")

// endure waits until a process has ended, and returns nil. It kills the process and returns errSlow
// once the process has taken longer than limit, not counting the time that it waited for a
// processor. It kills the process and returns errStarved after the time starving.
func endure(process *os.Process, limit time.Duration, ended <-chan struct{}) error {
	begin := time.Now()
	var took, ran time.Duration
	for took < limit {
		select {
		case <-ended:
			return nil
		case <-time.After(max(limit-took, 10*time.Millisecond)):
		}
		passed := time.Since(begin)
		if passed >= starving {
			_ = process.Kill() // it fails if the process has ended
			return errStarved
		}
		now := timesOf(process.Pid)
		if now.runnable { // the kernel adds the present wait to queued only when it ends
			took += now.ran - ran
		} else {
			took = passed - now.queued
		}
		ran = now.ran
	}
	_ = process.Kill()
	return errSlow
}

// times says how the first thread of a process spent its time.
type times struct {
	ran      time.Duration // on a processor
	queued   time.Duration // waiting for a processor, but for the present wait
	runnable bool          // it is on a processor, or waits for one
}

// timesOf returns the times of a process. They are zero if the kernel does not tell them.
func timesOf(pid int) times {
	// The first fields of schedstat are nanoseconds on a processor and nanoseconds in its queue: the
	// kernel's Documentation/scheduler/sched-stats.rst. In stat the state follows the program's name:
	// proc_pid_stat(5).
	dir := "/proc/" + strconv.Itoa(pid)
	stat, _ := os.ReadFile(dir + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	schedstat, _ := os.ReadFile(dir + "/schedstat")
	fields := strings.Fields(string(schedstat))
	if len(fields) < 2 {
		return times{}
	}
	ran, _ := strconv.ParseInt(fields[0], 10, 64)
	queued, _ := strconv.ParseInt(fields[1], 10, 64)
	return times{time.Duration(ran), time.Duration(queued), strings.HasPrefix(state, "R")}
}
