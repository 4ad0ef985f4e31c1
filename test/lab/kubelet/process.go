package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is a container's program, in a session and so in a process group of its own.
type process struct {
	pid   int
	begun time.Time
	done  chan struct{} // closed when it has ended
	ended time.Time     // valid after done
	code  int           // exit code, 128 + signal if a signal ended it; valid after done
}

// launch starts a program in the network namespace and appends its output to the file log, with a
// time in front of each line. The ledger has the process from its start to its end.
func launch(netnsName string, argv, env []string, dir, log string,
	note func(pid int) (forget func(), err error),
) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	go func() {
		defer out.Close()
		defer read.Close()
		stamp(out, read)
	}()
	defer write.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = env, dir, write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := within(netnsName, cmd.Start); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, begun: time.Now(), done: make(chan struct{})}
	forget, err := note(p.pid)
	go func() {
		_ = cmd.Wait() // what it returns is in ProcessState
		p.signal(syscall.SIGKILL)
		p.ended, p.code = time.Now(), cmd.ProcessState.ExitCode()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			p.code = 128 + int(status.Signal())
		}
		if forget != nil {
			forget()
		}
		close(p.done)
	}()
	if err != nil {
		p.signal(syscall.SIGKILL)
		<-p.done
		return nil, err
	}
	return p, nil
}

// signal sends a signal to the whole process group.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.pid, s) }

// end sends SIGTERM to the process, and SIGKILL when force is closed.
func (p *process) end(force context.Context) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-force.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// runIn runs a short command in the network namespace. Its error has the command's output.
func runIn(ctx context.Context, netnsName string, argv, env []string) error {
	if len(argv) == 0 {
		return errors.New("no command")
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := within(netnsName, cmd.Start); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(out.String()))
	}
	return nil
}

// startOf returns the start time of a process in clock ticks since boot (proc(5), /proc/PID/stat
// field 22). PID and start time name a process for ever.
func startOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is the program's name in brackets and may hold anything.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat is cut short", pid)
	}
	return fields[19], nil
}

func allPIDs() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A ledger is a directory that lists what must be removed after a crash: a file for each pod's
// network, written before the network is built, and one for each process.
type ledger string

func (l ledger) noteProcess(pid int) (func(), error) {
	start, err := startOf(pid)
	if err != nil {
		return nil, fmt.Errorf("note process: %w", err)
	}
	path := filepath.Join(string(l), fmt.Sprintf("pid-%d", pid))
	if err := os.WriteFile(path, []byte(start), 0o600); err != nil {
		return nil, fmt.Errorf("note process: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}

func (l ledger) noteWire(w wire) error {
	return wrap("note network", os.WriteFile(filepath.Join(string(l), "net-"+w.Netns), []byte(w.Link), 0o600))
}

func (l ledger) forgetWire(w wire) { _ = os.Remove(filepath.Join(string(l), "net-"+w.Netns)) }

// sweep ends and removes everything in the ledger. The links of a node whose namespace is gone are
// gone, too.
func (l ledger) sweep(node string) error {
	entries, err := os.ReadDir(string(l))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read leftovers: %w", err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(string(l), e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if pid, ok := strings.CutPrefix(e.Name(), "pid-"); ok {
			if pid, err := strconv.Atoi(pid); err == nil && pid > 1 {
				if start, err := startOf(pid); err == nil && start == string(text) {
					_ = syscall.Kill(-pid, syscall.SIGKILL)
				}
			}
		}
		if name, ok := strings.CutPrefix(e.Name(), "net-"); ok {
			killInhabitants(name)
			wire{Netns: name, Link: string(text)}.tear(node)
		}
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// killInhabitants ends every process in a pod's namespace, including those that left their process
// group.
func killInhabitants(name string) {
	for _, pid := range inhabitants(name) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
