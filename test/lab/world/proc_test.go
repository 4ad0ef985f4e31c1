package world

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// sleeper starts a process that ends on a signal only.
func sleeper(t *testing.T) (*exec.Cmd, chan struct{}) {
	t.Helper()
	cmd := exec.Command("tail", "-f", os.DevNull)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, or else the test has failed
		close(ended)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, ended
}

func note(t *testing.T, dir, name string, pid int, started string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "proc"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "proc", name), fmt.Appendf(nil, "%d %s\n", pid, started),
		0o600); err != nil {
		t.Fatal(err)
	}
}

func TestASweepEndsWhatWasWrittenDownAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	ours, ended := sleeper(t)
	other, otherEnded := sleeper(t)
	started, err := startTime(ours.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	note(t, dir, "ours", ours.Process.Pid, started)
	note(t, dir, "reused", other.Process.Pid, "1") // the pid of a process that ended long ago
	note(t, dir, "gone", 1<<30, "1")
	note(t, dir, "torn", 0, "")
	if err := sweepProcesses(t.Context(), dir, "nosuchlab"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the process that was written down runs on")
	}
	select {
	case <-otherEnded:
		t.Error("a process that was not ours was ended")
	default:
	}
}

func TestAProcessThatDoesNotListenIsKilled(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do read line </dev/zero; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, or else the test has failed
		close(ended)
	}()
	if err := endAll([]int{cmd.Process.Pid}, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	<-ended
}
