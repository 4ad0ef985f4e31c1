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

// master is HAProxy's master process, reached through its own socket. We use it only for reloads
// and for the list of processes. HAProxy 2.6 hides the errors of commands that go to a worker
// through the master.
type master struct{ sock *runtime.SingleRuntime }

// procs holds the answer to "show proc".
type procs struct {
	master  int // pid
	reloads int
	failed  bool // the last reload failed
	workers []int
	old     []int // workers that finish their connections
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

// errRefused says that HAProxy rejected the new configuration, and that the old worker continues.
var errRefused = errors.New("HAProxy rejected the reload")

// reload makes the master start a worker from the files, and returns once arrived reports that the
// worker serves. HAProxy from 2.7 answers when the reload is over, with its complaints. HAProxy 2.6
// answers nothing, and closes its socket for a moment, so reload repeats the command until the
// master has counted it. HAProxy from 3.1 rejects the command while another worker starts. reload
// then also repeats the command.
func (m master) reload(ctx context.Context, arrived func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	if _, err := m.show(); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var before procs    // state before the command
	var asked time.Time // zero if the master has not got the command
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
			case err != nil: // the master may have got the command; the count shows it
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

// complaints returns the alerts of HAProxy's report on one line. If there are no alerts, it returns
// the whole report.
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

// alerts returns the texts of the errors in a report. Each of them prevents a start of HAProxy.
func alerts(report string) (all []string) {
	for line := range strings.Lines(report) {
		_, text, is := strings.Cut(line, "[ALERT]")
		if !is {
			continue
		}
		if _, rest, ok := strings.Cut(text, ") : "); ok {
			text = rest
		}
		// The spare backends of a class repeat the errors of its backends.
		if text = strings.TrimSpace(text); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// alive reports whether a process runs. A process that has ended, and waits to be reaped, does not
// run.
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
