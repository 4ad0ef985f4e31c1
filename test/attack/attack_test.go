package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sallyport/test/lab/debian"
	"sallyport/test/rig"
)

// again runs this program once more, in a new network namespace.
func again(mark string) int {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		panic(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestNobodyTakesReadsWeakensOrStopsWhatBelongsToAnother(t *testing.T) {
	dir := t.TempDir()
	k, err := newKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	startPods(t, dir)
	binaries, err := debian.HAProxies()
	if err != nil {
		t.Fatal(err)
	}
	for _, binary := range binaries {
		t.Run(filepath.Base(filepath.Dir(filepath.Dir(binary)))+" "+filepath.Base(binary), func(t *testing.T) {
			s, err := enter(t.Context(), open(t, binary), k, rig.Limit/12)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range attacks() {
				if a.lab != nil {
					continue
				}
				t.Run(a.name(), func(t *testing.T) {
					if err := s.play(t.Context(), a); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
}
