package haproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Run keeps HAProxy alive until ctx ends: it adopts one that runs, and starts it
// again when it dies (Managed); or it watches for the one someone else runs
// (External). HAProxy outlives Run. Where none runs the first Apply starts it. At its
// end Run writes the files that HAProxy was told.
//
// Four things happen here: the child exits, Run looks for the master, reads the
// worker, and hears from it. Each of them at most knocks.
func (p *Proxy) Run(ctx context.Context) error {
	watch := time.NewTicker(aliveEvery)
	defer watch.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	heard := make(chan struct{}, 1)
	if conn, err := p.listen(); err != nil {
		p.log.Warn("HAProxy cannot report the results of its checks; sallyport reads them at intervals", "every",
			lookEvery, "err", err)
	} else {
		go p.hear(ctx, conn, heard)
	}
	said, born := "", ""
	for ctx.Err() == nil {
		p.mu.Lock()
		err := p.ensure()
		exit := p.exit
		p.mu.Unlock()
		switch {
		case err == nil, errors.Is(err, errUnready):
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			p.noteError(err)
			p.log.Error("HAProxy is not running", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-exit:
			p.mu.Lock()
			if p.exit == exit {
				p.exit = nil
			}
			p.mu.Unlock()
		case <-watch.C:
			if now := p.children(); now != born {
				born = now
				p.lookAgain()
			}
		case <-look.C:
			began := time.Now()
			p.lookAgain()
			look.Reset(max(lookEvery, lookShare*time.Since(began)))
		case <-heard:
			p.lookAgain()
			p.knock()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleOrSay()
	return nil
}

// settleOrSay settles. A failure costs the next process some time, and nothing else.
func (p *Proxy) settleOrSay() {
	if err := p.settle(); err != nil {
		p.log.Warn("HAProxy's files cannot follow its worker; the next start of sallyport reads the worker instead",
			"err", err)
	}
}

// errUnready says that no HAProxy runs, and that it needs an Apply to start one.
var errUnready = errors.New("HAProxy is not running: the first configuration starts it")

// errRevives says that HAProxy has died, and that its next worker does not answer yet.
var errRevives = errors.New("HAProxy has died and starts again")

// errAway says that the HAProxy that someone else should run is not there.
var errAway = errors.New("waiting for HAProxy")

// ensure finds the master, or starts one if the files are ready. It costs next to
// nothing while the master lives.
func (p *Proxy) ensure() error {
	if p.masterLives() {
		return nil
	}
	if p.procs.master != 0 {
		p.log.Warn("HAProxy died", "pid", p.procs.master)
		p.revives.Store(p.belief.ready && p.opt.Mode == Managed)
		defer p.revives.Store(false)
		p.note(func(i *Info) { i.Running, i.Pid, i.Worker, i.MaxConn = false, 0, 0, 0 })
		p.procs = procs{}
		p.belief.forgot()
		p.knock()
	}
	found, err := p.master.show()
	if err == nil {
		p.procs = found
		p.belief.forgot()
		p.note(func(i *Info) { i.Running, i.Pid, i.Room = true, found.master, p.room() })
		p.log.Info("found HAProxy running", "pid", found.master)
		p.knock()
		return nil
	}
	if p.opt.Mode == External {
		return fmt.Errorf("%w: nothing answers on its master socket %s: %w", errAway, p.opt.MasterSocket, err)
	}
	if pid := p.recordedMaster(); pid != 0 {
		// HAProxy 2.6 does not listen for a moment while it reloads. A
		// second HAProxy would be worse than a moment's wait.
		return fmt.Errorf("HAProxy (pid %d) runs, but does not answer on its master socket: %w", pid, err)
	}
	if !p.belief.ready {
		return errUnready
	}
	if err := p.file(p.belief.told); err != nil {
		return err
	}
	p.belief.accepted(p.belief.told)
	if !p.starts.Allow() {
		return errors.New("HAProxy ends soon after each start; the next start comes within a second")
	}
	err = p.start()
	switch {
	case errors.Is(err, errEnded):
		// What HAProxy has checked does not start: an address may be taken. An
		// empty HAProxy at least takes orders.
		p.log.Error("HAProxy does not start from the files on disk", "err", err)
		keep := writeFile(p.path(failedFile), p.disk.have[configFile])
		empty := p.text.outline(&Config{}, nil)
		p.belief.accepted(empty)
		if err2 := errors.Join(keep, p.file(empty), p.start()); err2 != nil {
			return errors.Join(err, err2)
		}
		p.noteError(err)
	case err != nil:
		return err
	}
	p.knock()
	return nil
}

// recordedMaster returns the pid of the master that the pid file names, if it runs
// and runs our files; or 0.
func (p *Proxy) recordedMaster() int { return Left(p.opt.Dir, p.opt.RunDir) }

// Left returns the pid of the master that an earlier process with these folders has left, if it
// runs and runs the files in dir; or 0. Who may not signal it takes it for none.
func Left(dir, runDir string) int {
	text, err := os.ReadFile(pidFile(runDir))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !alive(pid) || !runsFrom(dir, pid) {
		return 0
	}
	return pid
}

// isOurs reports whether a process runs HAProxy from our files.
func (p *Proxy) isOurs(pid int) bool { return runsFrom(p.opt.Dir, pid) }

func runsFrom(dir string, pid int) bool {
	args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && slices.Contains(strings.Split(string(args), "\x00"), dir+"/"+configFile)
}

func (p *Proxy) pidPath() string { return pidFile(p.opt.RunDir) }

func pidFile(runDir string) string { return filepath.Join(runDir, "haproxy.pid") }

// masterLives reports whether the master we know is still there. The pid of an
// External one may be of another namespace, so we ask the master itself.
func (p *Proxy) masterLives() bool {
	if p.procs.master == 0 {
		return false
	}
	if p.opt.Mode == Managed {
		return alive(p.procs.master)
	}
	now, err := p.master.show()
	return err == nil && now.master == p.procs.master
}

// children returns the pids of the workers that the master has, as the kernel lists
// them; empty: not known. Somebody else may order a reload. The files that the new worker
// then loads may be older than what the old one was told.
func (p *Proxy) children() string {
	p.mu.Lock()
	master := p.procs.master
	p.mu.Unlock()
	if p.opt.Mode != Managed || master == 0 {
		return ""
	}
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", master, master))
	if err != nil {
		return "" // a kernel without CONFIG_PROC_CHILDREN
	}
	return string(list)
}

func (p *Proxy) logPath() string { return filepath.Join(p.opt.RunDir, "haproxy.log") }

var errEnded = errors.New("HAProxy ended at once")

// start runs HAProxy from the files on disk, in a session of its own, and
// returns when its worker answers, or it has ended. It cannot be interrupted,
// so that there is never one on its way that nobody waits for. A worker that a
// dead master left behind is told to finish what it has.
func (p *Proxy) start() error {
	offset := p.logSize()
	args := []string{
		"-W", "-S", filepath.Join(p.opt.RunDir, "master.sock") + ",mode,600", "-p", p.pidPath(), "-f",
		p.path(configFile),
	}
	orphan := 0
	if pic, err := p.worker.lookOnce(); err == nil {
		orphan = pic.pid
		_, _ = p.worker.retire() // it is marked already if an earlier start has failed
		args = append(args, "-sf", strconv.Itoa(orphan))
	}
	// Not a pipe to us: HAProxy goes on writing to it when we are gone.
	out, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640) //nolint:gosec // in our own run directory
	if err != nil {
		return err
	}
	cmd := exec.Command(p.opt.Binary, args...) //nolint:gosec // the operator's own program
	cmd.Stdout, cmd.Stderr, cmd.Dir = cmp.Or(p.opt.Stdout, out), out, "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = out.Close()
	if err != nil {
		return fmt.Errorf("starting HAProxy: %w", err)
	}
	exit := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exit)
	}()
	gen := p.disk.gen()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if pic, err := p.worker.lookOnce(); err == nil && pic.pid != orphan && pic.gen == gen {
			if found, err := p.master.show(); err == nil {
				p.procs, p.exit = found, exit
				p.belief.forgot()
				p.revives.Store(false)
				p.note(func(i *Info) { i.Running, i.Pid, i.Room, i.Starts = true, found.master, p.room(), i.Starts+1 })
				p.log.Info("HAProxy started", "pid", found.master, "version", p.version)
				return nil
			}
		}
		select {
		case <-exit:
			return p.explain(errEnded, nil, offset)
		case <-deadline.C:
			_ = cmd.Process.Kill()
			<-exit
			return errors.New("HAProxy started, but its worker does not answer")
		case <-tick.C:
		}
	}
}

// lookAgain reads the worker although nothing happened, to learn what its checks
// found, and to see changes that others made. After such a change it knocks. It does not
// hold the lock while it reads: the answer of 10,000 backends takes 0.1 s and more, and
// changes do not wait for it.
func (p *Proxy) lookAgain() {
	p.mu.Lock()
	if p.logSize() > maxStderrLog {
		_ = os.Truncate(p.logPath(), 0)
	}
	run := p.belief.run
	if run == nil || p.procs.master == 0 || run.pid == 0 {
		p.mu.Unlock()
		return
	}
	before, names := run.picture, run.names()
	p.mu.Unlock()

	procs, err := p.master.show()
	if err != nil {
		return
	}
	pic, err := p.worker.look()
	pic.backends = names.given(pic.backends).sharing(before.backends)

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.belief.run != run || !maps.Equal(run.names(), names) {
		return // what was read is not what is now; the next look comes
	}
	merged, found := merge(before, pic, run.picture)
	switch {
	case found == overtaken:
		return
	case err != nil, found == differs:
		p.belief.forgot()
		p.knock()
		return
	}
	p.procs = procs
	p.belief.looked(merged)
	p.note(func(i *Info) { i.OldWorkers, i.Room, i.Capacity = len(procs.old), p.room(), p.capacity(merged, procs) })
	if merged.gen == ahead && time.Since(p.belief.aheadAt) > lookEvery {
		p.settleOrSay()
	}
}

func (p *Proxy) logSize() int64 {
	info, err := os.Stat(p.logPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// explain adds to err what HAProxy wrote to its log since offset, and who
// holds the addresses it could not have.
func (p *Proxy) explain(err error, cfg *Config, offset int64) error {
	if p.opt.Mode == Managed {
		if f, ferr := os.Open(p.logPath()); ferr == nil {
			text, _ := io.ReadAll(io.NewSectionReader(f, offset, 64<<10))
			_ = f.Close()
			if words := complaints(string(text)); words != "" {
				err = fmt.Errorf("%w: %s", err, words)
			}
		}
	}
	if cfg != nil {
		open := listening()
		for _, a := range cfg.listeners() {
			if who := open.holder(a, p.procs); who != "" {
				err = fmt.Errorf("%w: %s is in use by %s", err, a, who)
			}
		}
	}
	return err
}
