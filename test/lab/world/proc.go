package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a long-running program of the lab. A file records it, so that a later lab can end it
// after a crash.
type process struct {
	name   string
	args   []string // program and arguments
	record string   // file: pid and start time
	cmd    *exec.Cmd
	done   chan struct{} // closed when it has ended
	err    error         // how; to be read after done
}

// start starts a program inside a namespace. Its output goes to a log file.
func (l *Lab) start(name, ns string, args ...string) (*process, error) {
	log, err := os.OpenFile(l.path("log", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own
	p := &process{name: name, args: args, record: l.path("proc", name), done: make(chan struct{})}
	// The context that started it does not end it: only end, or a later sweep, does.
	p.cmd = exec.Command("ip", append([]string{"netns", "exec", ns}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Dir = l.dir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	started, err := startTime(p.cmd.Process.Pid)
	if err == nil {
		err = os.WriteFile(p.record, fmt.Appendf(nil, "%d %s\n", p.cmd.Process.Pid, started), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write down %s: %w", name, err), p.end(0))
	}
	return p, nil
}

// alive returns nil while the process runs.
func (p *process) alive() error {
	select {
	case <-p.done:
		if p.err == nil {
			return fmt.Errorf("%s has ended", p.name)
		}
		return fmt.Errorf("%s has ended: %w", p.name, p.err)
	default:
		return nil
	}
}

// signal sends a signal. It is no error if the process has ended.
func (p *process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// end sends SIGTERM, after the grace time SIGKILL, and waits for the end. Without grace it sends
// SIGKILL at once.
func (p *process) end(grace time.Duration) error {
	first := syscall.SIGTERM
	if grace <= 0 {
		first = syscall.SIGKILL
	}
	if err := p.signal(first); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(grace):
		if err := p.signal(syscall.SIGKILL); err != nil {
			return err
		}
		<-p.done
	}
	if err := os.Remove(p.record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// startTime returns the start time of a process in clock ticks since boot: field 22 of
// /proc/PID/stat (proc(5)). Pid and start time name a process for good.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	// The second field is the program's name in parentheses, and may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat: only %d fields", pid, len(fields))
	}
	return fields[19], nil
}

// sweepProcesses ends the remaining processes of a lab: the recorded ones, and those in its
// namespaces (pods, and processes that exec started).
func sweepProcesses(ctx context.Context, dir, lab string) error {
	var pids []int
	records, err := filepath.Glob(filepath.Join(dir, "proc", "*"))
	if err != nil {
		return err
	}
	for _, record := range records {
		text, err := os.ReadFile(record)
		if err != nil {
			return err
		}
		var pid int
		var started string
		if _, err := fmt.Sscan(string(text), &pid, &started); err != nil {
			continue // a record cut short: its process is found by its namespace
		}
		if now, err := startTime(pid); err == nil && now == started {
			pids = append(pids, pid)
		}
	}
	spaces, err := namespaces(lab)
	if err != nil {
		return err
	}
	for _, ns := range spaces {
		inside, err := pidsIn(ctx, ns)
		if err != nil {
			return err
		}
		pids = append(pids, inside...)
	}
	return endAll(pids, 3*time.Second)
}

// pidsIn lists the processes inside a namespace, except for this one.
func pidsIn(ctx context.Context, ns string) ([]int, error) {
	out, err := output(exec.CommandContext(ctx, "ip", "netns", "pids", ns))
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(out) {
		if pid, err := strconv.Atoi(field); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// endAll ends processes that need not be our children and waits until they are gone: SIGTERM
// first, SIGKILL after the grace time.
func endAll(pids []int, grace time.Duration) error {
	// A pidfd stays with its process, so no later process of the same number is signalled.
	fds := map[int]int{}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		fds[pid] = fd
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, grace}, {unix.SIGKILL, 10 * time.Second}} {
		for pid, fd := range fds {
			if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
		deadline := time.Now().Add(step.wait)
		for pid, fd := range fds {
			if gone(fd, time.Until(deadline)) {
				_ = unix.Close(fd)
				delete(fds, pid)
			}
		}
	}
	if len(fds) > 0 {
		return fmt.Errorf("%d processes of the lab do not end", len(fds))
	}
	return nil
}

// gone waits for a process to end: its pidfd becomes readable.
func gone(pidfd int, wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}
