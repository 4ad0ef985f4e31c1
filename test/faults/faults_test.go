package faults

import (
	"context"
	"errors"
	"os/exec"
	"testing"
)

func TestAFaultIsMendedAlsoIfWhatHappensMeanwhileFails(t *testing.T) {
	made := 0
	one := Fault{
		func(context.Context) error { made++; return nil },
		func(context.Context) error { made--; return nil },
	}
	failed := errors.New("failed")
	err := All(one, one).During(t.Context(), func() error {
		if made != 2 {
			t.Errorf("%d faults are made, want 2", made)
		}
		return failed
	})
	if !errors.Is(err, failed) || made != 0 {
		t.Errorf("got %v with %d faults left, want the failure and none", err, made)
	}
}

func TestKillSparesThisMachine(t *testing.T) {
	for _, pid := range []int{-1, 0, 1} {
		if Kill(pid) == nil {
			t.Errorf("process %d: want an error", pid)
		}
	}
	ended := exec.CommandContext(t.Context(), "true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Kill(ended.Process.Pid); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}
