package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/test/lab/world"
)

// A lab runs the tool as an operator does.
type lab struct{ program, name string }

func build(t *testing.T) lab {
	t.Helper()
	program := filepath.Join(t.TempDir(), "lab")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l := lab{program, fmt.Sprintf("cli%d", os.Getpid()%10_000_000)}
	t.Cleanup(func() { l.want(t, "is down", "down") })
	return l
}

func (l lab) run(args ...string) (string, error) {
	out, err := exec.Command(l.program, append([]string{"--name", l.name}, args...)...).CombinedOutput()
	return string(out), err
}

// want runs a command that must succeed and print the text.
func (l lab) want(t *testing.T, text string, args ...string) {
	t.Helper()
	out, err := l.run(args...)
	if err != nil || !strings.Contains(out, text) {
		t.Errorf("lab %s: want %q, got %q, %v", strings.Join(args, " "), text, out, err)
	}
}

// refuse runs a command that must fail and print the text.
func (l lab) refuse(t *testing.T, text string, args ...string) {
	t.Helper()
	out, err := l.run(args...)
	if err == nil || !strings.Contains(out, text) {
		t.Errorf("lab %s: want it to fail with %q, got %q, %v", strings.Join(args, " "), text, out, err)
	}
}

func TestALabOutlivesTheCommandThatBroughtItUp(t *testing.T) {
	l := build(t)
	l.refuse(t, "is not up", "status")
	l.refuse(t, "is not up", "exec", "client", "true")
	l.want(t, "5 hosts", "up", "--bare")
	l.want(t, "is up already", "up", "--bare")
	l.refuse(t, "another number of workers", "up", "--bare", "--workers", "3")
	l.refuse(t, "another number of appliances", "up", "--bare", "--appliances", "2")
	l.refuse(t, "want bird, plain or none", "up", "--bare", "--router", "frr")
	l.want(t, "192.168.50.10/24", "exec", "client", "--", "ip", "-br", "address")
	l.refuse(t, "no host is called", "exec", "nobody", "true")
	l.want(t, "Global_192_168_50_21", "birdc", "worker1", "show", "protocols")
	l.want(t, "", "node", "add", "edge")
	l.want(t, "192.168.50.25", "status")
	l.want(t, "", "node", "restart-calico", "edge", "--down", "1ms")
	l.want(t, "", "node", "kill", "edge")
	l.want(t, "", "node", "revive", "edge")
	l.want(t, "", "partition", "edge", "client")
	l.refuse(t, "0 received", "exec", "client", "ping", "-c1", "-W1", "192.168.50.25")
	l.want(t, "", "heal", "client", "edge")
	l.want(t, "1 received", "exec", "client", "ping", "-c1", "-W5", "192.168.50.25")
	l.refuse(t, "no host is called", "partition", "edge", "nobody")
	l.want(t, "", "node", "remove", "edge")
	l.refuse(t, "no node is called", "node", "remove", "edge")
	l.refuse(t, "no control plane", "kubectl", "get", "nodes")
	l.refuse(t, "no control plane", "install-calico")

	out, err := l.run("status", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var s world.Status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	if want, got := 5, len(s.Hosts); want != got {
		t.Errorf("want %d hosts, got %d", want, got)
	}
}

func TestUpCleansUpAfterACrash(t *testing.T) {
	l := build(t)
	l.want(t, "5 hosts", "up", "--bare")
	// A process on a host outlives the agent. It must not outlive the lab.
	orphan := exec.Command(l.program, "--name", l.name, "exec", "client", "tail", "-f", "/dev/null")
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := ask(t.Context(), l.name, "GET", "/pid", nil, &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for ask(t.Context(), l.name, "GET", "/pid", nil, &pid) == nil {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the agent was killed and answers all the same")
		}
	}
	l.refuse(t, "is not up", "status")
	l.want(t, "5 hosts", "up", "--bare")
	_ = orphan.Wait() // it was ended with the lab that crashed
	l.want(t, "Global_192_168_50_21", "birdc", "worker1", "show", "protocols")
	if err := l.gone(); err == nil {
		t.Error("the lab that is up: want its namespaces to be there")
	}
	l.want(t, "is down", "down")
	if err := l.gone(); err != nil {
		t.Error(err)
	}
}

// gone returns an error that names the remains of the lab.
func (l lab) gone() error {
	for _, pattern := range []string{"/run/netns/sp-" + l.name + "-*", world.Root + "/" + l.name + "*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			return fmt.Errorf("left behind: %v, %w", left, err)
		}
	}
	return nil
}

func TestAFailedUpSaysWhyAndLeavesNothing(t *testing.T) {
	l := build(t)
	l.refuse(t, "want 1 or 2", "up", "--bare", "--bird", "3")
	l.refuse(t, "want REF=PATH", "up", "--image", "nonsense")
	l.refuse(t, "no-such-program", "up", "--image", "a=no-such-program")
	l.want(t, "is down", "down")
	if err := l.gone(); err != nil {
		t.Error(err)
	}
}
