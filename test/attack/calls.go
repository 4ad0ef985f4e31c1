package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// Keys of two clusters with the same network of pods, and of two clusters with a network each.
const (
	sourceOfOne = "pools: [172.16.0.0/15], source: 192.168.50.0/24, "
	sourceOfTwo = "pools: [172.16.0.0/15], source: " + twoSource + "/32, "
	poolOfOne   = "pools: [172.16.0.0/16], "
	poolOfTwo   = "pools: [172.17.0.0/16], "
)

// Hosts of victim, and of evil in the second cluster. A pod answers each of them, and both pods have the same address.
const victimsTwin, evilsTwin = "twin.one.test", "twin.two.test"

// killedAtCalls kills the appliance after each of its messages to the kernel, from the first change of rules and
// routes to the last, while clients ask for twins. It does so at starts, before which somebody has removed the
// routes, or routes and rules. Then it does so while both clusters lose their sources.
func killedAtCalls(ctx context.Context, s *testbed, two *lab) (err error) {
	if _, err := exec.LookPath("strace"); err != nil {
		return fmt.Errorf("this attack needs strace: run make setup: %w", err)
	}
	leave, err := s.twin(ctx, two)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	const every = 50 * time.Millisecond
	w := &twins{
		testbed: s, one: s.watch(ctx, victimsTwin, "victim-app", every), two: s.watch(ctx, evilsTwin, "evil-twin", every),
	}
	defer w.one.Stop()
	defer w.two.Stop()
	if w.kernel, err = s.ours(ctx); err != nil {
		return err
	}
	file := filepath.Join(s.rig.Dir, "sallyport.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	apart := strings.NewReplacer(sourceOfOne, poolOfOne, sourceOfTwo, poolOfTwo).Replace(string(text))

	heal := func(start func(context.Context) error) error {
		return errors.Join(os.WriteFile(file, text, 0o600), s.rig.Stop(syscall.SIGKILL), start(ctx), w.whole(ctx))
	}
	without := func(rules bool) func(*tracer, int) error {
		return func(t *tracer, n int) error {
			t.kill(n, made)
			return errors.Join(heal(s.start), s.rig.Stop(syscall.SIGKILL), s.unroute(ctx, rules), t.start(ctx))
		}
	}
	err = errors.Join(
		w.killEach(ctx, "at a start without routes", without(false), func(now []string) (bool, error) {
			return slices.Equal(now, w.kernel), nil
		}),
		w.killEach(ctx, "at a start without routes and rules", without(true), func(now []string) (bool, error) {
			return slices.Equal(now, w.kernel), refuses(now)
		}),
		w.killEach(ctx, "while the clusters lose their sources", func(t *tracer, n int) error {
			if err := heal(t.start); err != nil {
				return err
			}
			t.kill(n, changed)
			return rewrite(s.rig, apart)
		}, func(now []string) (bool, error) {
			all := strings.Join(now, "")
			return all != "" && !strings.Contains(all, " lookup ") && !strings.Contains(all, " table "), refuses(now)
		}),
		heal(s.start),
	)
	fmt.Fprintf(os.Stderr, "the appliance was killed %d times; %d of %d requests failed\n",
		w.kills, w.failures, w.requests)
	return err
}

// twin gives the second cluster a pod with the address of victim's pod, and adds a host for each of both. It returns a
// function that removes all this. HAProxy does not check these pods: only requests find out who answers.
func (s *testbed) twin(ctx context.Context, two *lab) (leave func() error, err error) {
	const node = "worker1"
	pod := netip.MustParseAddr(s.pod)
	quick := []string{"check: false", "timeout-connect: 100ms", "timeout-server: 500ms"}
	mine := ingressOf("victim", "twin", quick, rule(victimsTwin, path("/", "app")))
	theirs := recordsOf(netip.PrefixFrom(pod, 26).Masked(), pod) + rig.Service("evil", "twin", "twin") +
		claimed("evil", "twin", s.pod) + ingressOf("evil", "twin", quick, rule(evilsTwin, path("/", "twin")))
	if _, err := two.Exec(ctx, node, "ip", "address", "add", s.pod+"/32", "dev", "lo"); err != nil {
		return nil, err
	}
	_, stop, err := two.Beside(ctx, node, "env", "POD_NAME=evil-twin", "POD_NAMESPACE=evil", two.Dir+"/app",
		"-listen", s.pod+":8080")
	if err != nil {
		return nil, err
	}
	leave = func() error {
		stop()
		_, err := two.Exec(ctx, node, "ip", "address", "del", s.pod+"/32", "dev", "lo")
		return errors.Join(err, s.Delete(ctx, mine), two.Delete(ctx, theirs), s.seen(ctx))
	}
	err = errors.Join(s.Apply(ctx, mine), two.Apply(ctx, theirs),
		s.eventually(ctx, func() error { return s.servesTwins(ctx) }))
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	return leave, nil
}

// servesTwins returns an error unless each twin is answered by its own pod.
func (s *testbed) servesTwins(ctx context.Context) error {
	return errors.Join(s.gets(ctx, "200 victim", request{host: victimsTwin}),
		s.gets(ctx, "200 evil", request{host: evilsTwin}))
}

// ours returns the rules and routes of the appliance in the kernel, a line each.
func (s *testbed) ours(ctx context.Context) ([]string, error) {
	rules, err := s.rig.Exec(ctx, world.Appliance, "ip", "rule", "show")
	routes, failed := s.rig.Exec(ctx, world.Appliance, "ip", "route", "show", "table", "all", "proto", "78")
	lines := slices.Collect(strings.Lines(routes))
	for line := range strings.Lines(rules) {
		if strings.Contains(line, " proto 78") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines, errors.Join(err, failed)
}

// refuses returns an error if a rule leads packets into a table that does not refuse what no other route leads.
func refuses(kernel []string) (err error) {
	for _, line := range kernel {
		_, table, is := strings.Cut(line, " lookup ")
		table, _, _ = strings.Cut(table, " ")
		if is && !slices.ContainsFunc(kernel, func(line string) bool {
			return strings.HasPrefix(line, "unreachable default table "+table+" ")
		}) {
			err = errors.Join(err, fmt.Errorf("a rule leads to table %s, where no route refuses the rest: %q", table, kernel))
		}
	}
	return err
}

// unroute removes the routes of the appliance from the kernel, and maybe its rules.
func (s *testbed) unroute(ctx context.Context, rules bool) error {
	_, err := s.rig.Exec(ctx, world.Appliance, "ip", "route", "flush", "table", "all", "proto", "78")
	if rules && err == nil {
		_, err = s.rig.Exec(ctx, world.Appliance, "ip", "rule", "flush", "protocol", "78")
	}
	return err
}

// Twins are two pods of the same address in two clusters, and clients that ask for them.
type twins struct {
	*testbed
	one, two                  *load.Witness // of victimsTwin, of evilsTwin
	kernel                    []string      // rules and routes while both are served
	kills, requests, failures int
}

// whole waits until the kernel has all rules and routes, and each twin is answered by its own pod.
func (w *twins) whole(ctx context.Context) error {
	return errors.Join(w.rig.Ready(ctx), rig.Eventually(ctx, "rules and routes are back", func() error {
		if err := errors.Join(w.rig.Alive(), w.servesTwins(ctx)); err != nil {
			return err
		}
		now, err := w.ours(ctx)
		if err == nil && !slices.Equal(now, w.kernel) {
			err = fmt.Errorf("the kernel has %q, want %q", now, w.kernel)
		}
		return err
	}))
}

// killEach begins something, and kills the appliance after its first message to the kernel that changes something. It
// begins again, and kills the appliance after the message that follows, and so on. It ends once the rules and routes
// that a crash leaves are those of the end.
func (w *twins) killEach(
	ctx context.Context, when string, begin func(t *tracer, n int) error, judge func(now []string) (end bool, err error),
) error {
	for n, end := 1, false; !end; n++ {
		t := &tracer{testbed: w.testbed}
		err := w.witnessed(ctx, func() error {
			if err := t.run(ctx, n, begin); err != nil {
				return err
			}
			now, err := w.ours(ctx)
			if err == nil {
				end, err = judge(now)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("killed %s, after message %d (%s): %w", when, n, t.message, err)
		}
		w.kills++
	}
	return nil
}

// witnessed calls do, and returns an error if the pod of the other cluster answers a request that begins before some
// others after do have an outcome.
func (w *twins) witnessed(ctx context.Context, do func() error) error {
	var two load.Count
	one, err := w.one.During(ctx, 2, 2, func() (err error) {
		two, err = w.two.During(ctx, 2, 2, do)
		return err
	})
	w.requests += one.Sent + one.Asked + two.Sent + two.Asked
	for _, o := range slices.Concat(one.Failed, one.Broken, two.Failed, two.Broken) {
		w.failures++
		if errors.Is(o.Err, load.ErrWrong) {
			err = errors.Join(err, fmt.Errorf("a request is answered by pod %s of the other cluster: %s", o.Pod, o))
		}
	}
	return err
}

// A tracer runs an appliance and kills it after one of its messages to the kernel. strace stops all threads of the
// appliance after each message, until this process continues or kills it: so the appliance does nothing after that
// message. (strace's own count, when=N, is one of each thread, and a goroutine changes its thread.)
type tracer struct {
	*testbed
	from        *regexp.Regexp // the first message that counts
	left        atomic.Int64   // messages to come until the end, if it is not zero
	message     string         // the last one
	read, write *os.File       // what strace writes
	ended       chan struct{}  // closed once nobody reads that any more
}

// Messages to the kernel: those that make something, and those that change something.
var made, changed = regexp.MustCompile(`^RTM_NEW`), regexp.MustCompile(`^RTM_(NEW|DEL)`)

// run begins something in an appliance, and waits until the appliance is killed.
func (t *tracer) run(ctx context.Context, n int, begin func(t *tracer, n int) error) error {
	err := begin(t, n)
	if err == nil {
		err = rig.Eventually(ctx, "the appliance is killed", func() error {
			if t.rig.Alive() == nil {
				return errors.New("it lives")
			}
			return nil
		})
	}
	if err == nil && t.left.Load() > 0 {
		err = t.rig.Alive() // it has ended by itself
	}
	err = errors.Join(err, t.rig.Stop(syscall.SIGKILL))
	if t.ended != nil {
		err = errors.Join(err, t.read.Close(), t.write.Close())
		<-t.ended
	}
	return err
}

// kill lets the appliance be killed after the n-th message, counted from the first one that matches a pattern.
func (t *tracer) kill(n int, from *regexp.Regexp) {
	t.from = from
	t.left.Store(int64(n))
}

// start starts the appliance under strace, which becomes the appliance and leaves a process beside it.
func (t *tracer) start(ctx context.Context) (err error) {
	if t.read, t.write, err = os.Pipe(); err != nil {
		return err
	}
	t.ended = make(chan struct{})
	err = t.startUnder(ctx, "strace", "--daemonize", "--follow-forks", "--detach-on=execve", "--trace=sendto",
		"--inject=sendto:signal=SIGSTOP", "--signal=SIGSTOP",
		"--output", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), t.write.Fd()))
	go t.follow(t.rig.Pid())
	return err
}

// sendto matches strace's line of a message to the kernel about links, addresses, rules or routes.
var sendto = regexp.MustCompile(`sendto\(.*nlmsg_type=(RTM_\w+)`)

// follow lets the appliance go on after each message, or kills it.
func (t *tracer) follow(pid int) {
	defer close(t.ended)
	begun := false
	for lines := bufio.NewScanner(t.read); lines.Scan(); {
		line := lines.Text()
		if strings.Contains(line, "sendto(") {
			t.message = ""
			if sent := sendto.FindStringSubmatch(line); sent != nil {
				t.message = sent[1]
			}
		}
		if !strings.Contains(line, "--- SIGSTOP {") {
			continue
		}
		signal := syscall.SIGCONT
		if t.message != "" && t.left.Load() > 0 {
			if begun = begun || t.from.MatchString(t.message); begun && t.left.Add(-1) == 0 {
				signal = syscall.SIGKILL
			}
		}
		if syscall.Kill(pid, signal) != nil || signal == syscall.SIGKILL {
			return
		}
	}
}
