// Package namespace runs the tests of a package in a network namespace of their own.
package namespace

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
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
func Again(mark string) int { return again(mark, os.Args[1:], os.Stdout, os.Stderr) }

// Divided does as Again, but divides the tests of a package among some processes at a time, each in
// a namespace of its own, and prints the output of each when it ends. With flags that choose tests,
// benchmarks or fuzzing there is one process.
func Divided(processes int, mark string) int {
	for _, name := range []string{"run", "skip", "list", "bench", "fuzz", "coverprofile"} {
		if slices.ContainsFunc(os.Args[1:], func(arg string) bool {
			return strings.HasPrefix(arg, "-test."+name+"=") && !strings.HasSuffix(arg, "=")
		}) {
			processes = 1
		}
	}
	if processes == 1 {
		return Again(mark)
	}
	var names bytes.Buffer
	if code := again(mark, []string{"-test.list=^Test|^Fuzz|^Example"}, &names, os.Stderr); code != 0 {
		return code
	}
	parts := make([][]string, processes)
	for i, name := range strings.Fields(names.String()) {
		parts[i%processes] = append(parts[i%processes], name)
	}
	var group sync.WaitGroup
	codes, outputs := make([]int, processes), make([]bytes.Buffer, processes)
	for i, part := range parts {
		args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
			return i > 0 && strings.HasPrefix(arg, "-test.testlogfile=") // one process writes it
		})
		args = append(args, "-test.run=^("+strings.Join(part, "|")+")$")
		group.Go(func() { codes[i] = again(mark, args, &outputs[i], &outputs[i]) })
	}
	group.Wait()
	for i := range outputs {
		_, _ = outputs[i].WriteTo(os.Stdout)
	}
	if slices.ContainsFunc(codes, func(code int) bool { return code != 0 }) {
		return 1
	}
	return 0
}

func again(mark string, args []string, stdout, stderr io.Writer) int {
	runtime.LockOSThread() // Pdeathsig is the death of the thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, stderr
	cmd.Env = append(os.Environ(), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, "these tests run as root, in a network namespace of their own:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}
