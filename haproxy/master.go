package haproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/haproxytech/client-native/v6/runtime"
)

// master is HAProxy's master process, reached through its own socket. We ask it for
// reloads and for the processes that live, and for nothing else: HAProxy 2.6 hides
// the errors of commands that go to a worker through it.
type master struct{ sock *runtime.SingleRuntime }

// procs holds the answer to "show proc".
type procs struct {
	master  int // pid
	reloads int
	failed  bool // the last reload
	workers []int
	old     []int // workers that finish what they have
}

func (m master) show() (procs, error) {
	answer, err := m.sock.ExecuteMaster("show proc")
	if err != nil {
		return procs{}, fmt.Errorf("HAProxy's master: %w", err)
	}
	var p procs
	old := false
	for line := range strings.Lines(answer) {
		if strings.HasPrefix(line, "# old workers") {
			old = true
		}
		words := strings.Fields(line)
		if len(words) < 3 || words[0][0] == '#' {
			continue
		}
		pid, err := strconv.Atoi(words[0])
		if err != nil {
			continue
		}
		switch {
		case words[1] == "master":
			p.master = pid
			p.reloads, _ = strconv.Atoi(words[2])
			p.failed = strings.Contains(line, "[failed:") && !strings.Contains(line, "[failed: 0]")
		case words[1] == "worker" && old:
			p.old = append(p.old, pid)
		case words[1] == "worker":
			p.workers = append(p.workers, pid)
		}
	}
	if p.master == 0 {
		return procs{}, errors.New("HAProxy's master: the answer to \"show proc\" names no master")
	}
	return p, nil
}

// errRefused says that HAProxy rejected the new configuration; the old worker goes on
// serving.
var errRefused = errors.New("HAProxy rejected the reload")

// reload makes the master start a worker from the files, and returns once arrived
// reports that the worker serves. HAProxy from 2.7 answers when the reload is over,
// with its complaints. 2.6 answers nothing, and closes its socket for a moment, so
// reload repeats the order until the master has counted it. 3.1 and newer reject
// the order while another worker starts; reload repeats it then, too.
func (m master) reload(ctx context.Context, arrived func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if _, err := m.show(); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var before procs    // as the order found them
	var asked time.Time // zero: nobody heard it
	for {
		now, serr := m.show()
		counted := serr == nil && !asked.IsZero() && (now.reloads > before.reloads || now.master != before.master)
		if serr == nil && !counted && time.Since(asked) > 2*time.Second {
			if asked.IsZero() {
				before = now
			}
			answer, err := m.sock.ExecuteMaster("reload")
			asked = time.Now()
			switch {
			case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT),
				strings.Contains(answer, "Another reload is still in progress"):
				asked = time.Time{}
			case err != nil: // it may have been heard; the count will tell
			case strings.Contains(answer, "Success=0"):
				_, report, _ := strings.Cut(answer, "--\n")
				return fmt.Errorf("%w: %s", errRefused, complaints(report))
			}
			if !asked.IsZero() {
				continue
			}
		}
		if counted && now.failed {
			return errRefused
		}
		if counted && arrived() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("HAProxy has not finished the reload: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// complaints keeps the alerts of HAProxy's report, or else all of it, on one
// line.
func complaints(report string) string {
	all := alerts(report)
	if len(all) == 0 {
		for line := range strings.Lines(report) {
			if line = strings.TrimSpace(line); line != "" {
				all = append(all, line)
			}
		}
	}
	text := strings.Join(all, "; ")
	if len(text) > 2000 {
		text = text[:2000] + " ..."
	}
	return text
}

// alerts returns the text of the lines of a report that keep HAProxy from starting.
func alerts(report string) (all []string) {
	for line := range strings.Lines(report) {
		_, text, is := strings.Cut(line, "[ALERT]")
		if !is {
			continue
		}
		if _, rest, ok := strings.Cut(text, ") : "); ok {
			text = rest
		}
		// The spare backends repeat what is wrong with the backend that they are like.
		if text = strings.TrimSpace(text); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// alive reports whether a process runs; one that waits to be reaped does not.
func alive(pid int) bool {
	if pid <= 0 || syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after := cutLast(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}
