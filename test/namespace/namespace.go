// Package namespace runs the tests of a package in a network namespace of their own.
package namespace

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// inside marks the process that runs in the namespace.
const inside = "SALLYPORT_TEST_NETNS"

// Main is the TestMain of such a package: it starts this program again in a new network
// namespace, calls prepare there, and runs the tests. All threads are in the namespace,
// which ends with the process. It returns the exit code.
func Main(m *testing.M, prepare func() error) int {
	if os.Getenv(inside) == "" {
		return Again(inside + "=1")
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "preparing the network namespace of the tests:", err)
		return 1
	}
	return m.Run()
}

// Again starts this program again, with the same arguments, in a new network namespace,
// and returns its exit code. The environment there has mark, "NAME=value", as well.
func Again(mark string) int {
	runtime.LockOSThread() // Pdeathsig is the death of the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "these tests run as root, in a network namespace of their own:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}
