package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"sallyport/haproxy"
	"sallyport/test/rig"
)

// A side is a measured proxy: a HAProxy that the appliance's packages
// drive, one that a hand-written file configures, or another program.
type side struct {
	name   string
	http   netip.AddrPort
	https  netip.AddrPort
	worker int    // its process
	master int    // of a hand-written file
	family bool   // the processes that it has started serve requests, too
	socket string // for commands
	stop   func() error
}

// The hand-written configurations. pods.cfg makes HAProxy the pods.
var (
	//go:embed rival.cfg
	rivalText string
	//go:embed plain.cfg
	plainText string
	//go:embed pods.cfg
	podsText string
)

// written is what a hand-written configuration is filled in with.
type written struct {
	Dir         string
	HTTP, HTTPS netip.AddrPort
	Pods        []netip.AddrPort
	Backends    []*haproxy.Backend
	Large       netip.AddrPort // for what pods.cfg cannot answer itself, see serveLarge
}

// files are the files that a hand-written configuration names, by name.
type files map[string][]byte

// startWritten starts a HAProxy with a hand-written configuration.
func startWritten(ctx context.Context, binary, dir, name, text string, w written, more files) (*side, error) {
	w.Dir = filepath.Join(dir, name)
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := template.Must(template.New(name).Parse(text)).Execute(&out, w); err != nil {
		return nil, err
	}
	files := maps.Clone(more)
	if files == nil {
		files = make(map[string][]byte)
	}
	files["haproxy.cfg"] = out.Bytes()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(w.Dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	var log bytes.Buffer
	// As systemd starts it: a master with a worker, in a session of its own. The kernel's
	// scheduler treats a session as a whole (sched(7), autogroup).
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, "-W", "-f", w.Dir+"/haproxy.cfg")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &side{name: name, http: w.HTTP, https: w.HTTPS, master: cmd.Process.Pid, socket: w.Dir + "/sock"}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	p.stop = func() error {
		err := cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		return err
	}
	err := rig.Eventually(ctx, name+" answers", func() (err error) {
		p.worker, err = workerAt(p.socket)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, p.stop(), fmt.Errorf("%s", log.String()))
	}
	return p, nil
}

// startDriven starts a HAProxy as the appliance does: from a Config, and then its servers
// come by command.
func startDriven(ctx context.Context, binary, dir, name string, cfg *haproxy.Config) (*side, *haproxy.Proxy, error) {
	dir = filepath.Join(dir, name)
	driver, err := haproxy.New(haproxy.Options{
		Binary: binary, Dir: dir + "/etc", RunDir: dir + "/run",
		MinReload: time.Millisecond,
	})
	if err != nil {
		return nil, nil, err
	}
	p := &side{name: name, http: cfg.Bind.HTTP[0], https: cfg.Bind.HTTPS[0], socket: dir + "/run/worker.sock"}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	// HAProxy outlives Run, and ends by itself once it is told to.
	p.stop = func() error {
		cancel()
		<-done
		master := driver.Info().Pid
		if master == 0 {
			return nil
		}
		return syscall.Kill(master, syscall.SIGTERM)
	}
	go func() {
		defer close(done)
		_ = driver.Run(ctx)
	}()
	bare := *cfg
	bare.Backends = nil
	for _, b := range cfg.Backends {
		empty := *b
		empty.Servers = nil
		bare.Backends = append(bare.Backends, &empty)
	}
	err = settle(ctx, driver, &bare)
	if err == nil {
		err = settle(ctx, driver, cfg)
	}
	if err == nil {
		p.worker, err = workerAt(p.socket)
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.stop())
	}
	return p, driver, nil
}

// settle makes a HAProxy equal to a Config with all servers open.
func settle(ctx context.Context, driver *haproxy.Proxy, cfg *haproxy.Config) error {
	states := make(haproxy.States, len(cfg.Backends))
	for i, b := range cfg.Backends {
		states[i] = slices.Repeat([]haproxy.State{haproxy.Open}, len(b.Servers))
	}
	return rig.Within(ctx, limit, time.Millisecond, "HAProxy is settled", func() error {
		res, err := driver.Apply(ctx, cfg, states)
		if err == nil && !res.RetryAt.IsZero() {
			err = errors.Join(fmt.Errorf("HAProxy has more to do: %s", res.Reason), rig.Pause(ctx, time.Until(res.RetryAt)))
		}
		return err
	})
}

// ask sends one command to the worker.
func (p *side) ask(command string) (string, error) { return exchange(p.socket, command) }

// cpu returns the processor time that its processes have used.
func (p *side) cpu() (time.Duration, error) {
	pids := []int{p.worker}
	if p.family {
		children, err := childrenOf(p.worker)
		if err != nil {
			return 0, err
		}
		pids = append(pids, children...)
	}
	return scheduled(pids...)
}

// workerAt returns the process id of the worker that answers at a socket.
func workerAt(socket string) (int, error) {
	info, err := exchange(socket, "show info")
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(info, "\nPid: ")
	line, _, _ := strings.Cut(after, "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0, fmt.Errorf("no pid in %q", info)
	}
	return pid, nil
}

// awaitWorker waits until a worker answers at a socket, and returns its process id.
func awaitWorker(ctx context.Context, socket string) (pid int, err error) {
	err = rig.Eventually(ctx, "HAProxy answers at "+socket, func() (err error) {
		pid, err = workerAt(socket)
		return err
	})
	return pid, err
}

// scheduled returns the processor time that the threads of processes have used, in
// nanoseconds of the kernel's scheduler (Documentation/scheduler/sched-stats.rst).
func scheduled(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil || len(threads) == 0 {
			return 0, fmt.Errorf("there is no process %d: %w", pid, err)
		}
		for _, file := range threads {
			text, err := os.ReadFile(file)
			if err != nil {
				return 0, err
			}
			first, _, _ := strings.Cut(string(text), " ")
			ns, err := strconv.ParseInt(first, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}

// connections returns how many connections the worker has opened to servers, and how many
// requests took one that was there.
func (p *side) connections() (opened, reused int, err error) {
	answer, err := p.ask("show stat -1 2 -1")
	if err != nil {
		return 0, 0, err
	}
	table, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(strings.TrimSpace(answer), "# "))).ReadAll()
	if err != nil || len(table) == 0 {
		return 0, 0, fmt.Errorf("show stat: %w: %q", err, answer)
	}
	connect, reuse := slices.Index(table[0], "connect"), slices.Index(table[0], "reuse")
	for _, line := range table[1:] {
		c, err1 := strconv.Atoi(line[connect])
		r, err2 := strconv.Atoi(line[reuse])
		if err := errors.Join(err1, err2); err != nil {
			return 0, 0, err
		}
		opened, reused = opened+c, reused+r
	}
	return opened, reused, nil
}
