package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait. It measures nothing.
const patience = 60 * time.Second

// eventually asks until the answer is no error.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s: %v", patience, what, err)
		case <-tick.C:
		}
	}
}

// host makes a network namespace that has a loopback interface only.
func host(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("spcmd%d", os.Getpid())
	ip := func(args ...string) {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	ip("netns", "add", name)
	t.Cleanup(func() { ip("netns", "del", name) })
	ip("-n", name, "link", "set", "lo", "up")
	return name
}

// asTheUnit returns a command that runs a program with the capabilities of its unit, and
// no way to get more.
func asTheUnit(t *testing.T) []string {
	t.Helper()
	unit, err := os.ReadFile("../../image/units/usr/lib/systemd/system/sallyport.service")
	if err != nil {
		t.Fatal(err)
	}
	bounds, groups := "-all", ""
	for line := range strings.Lines(string(unit)) {
		if all, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			for name := range strings.FieldsSeq(all) {
				bounds += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
			}
		}
		if all, ok := strings.CutPrefix(line, "SupplementaryGroups="); ok {
			groups = strings.TrimSpace(all)
		}
	}
	if bounds == "-all" || groups == "" {
		t.Fatal("the unit says nothing of capabilities, or of groups")
	}
	return []string{"setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=" + bounds, "--groups=" + groups}
}

// TestAnApplianceWithoutItsClusterRunsTellsSystemdAndLeavesHAProxy runs the real program as
// systemd does. The machine reaches no API server, and has served an empty cluster before.
func TestAnApplianceWithoutItsClusterRunsTellsSystemdAndLeavesHAProxy(t *testing.T) {
	dir, err := os.MkdirTemp("", "spcmd") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "sallyport")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	config := write(t, "sallyport.yaml", fmt.Sprintf(`
identity: lonely
clusters:
- kubeconfig:
    apiVersion: v1
    kind: Config
    current-context: c
    clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
    contexts: [{name: c, context: {cluster: c, user: u}}]
    users: [{name: u, user: {token: tops3cret}}]
bgp: {listen: [127.0.0.1], routerID: 192.0.2.1}
haproxy: {http: ["127.0.0.1:80"], https: [], dir: %[1]s/haproxy, runDir: %[1]s/run}
stateDir: %[1]s/state
log: {format: json}
`, dir))
	if err := os.Mkdir(dir+"/state", 0o700); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile("testdata/picture-empty.json")
	if err == nil {
		err = os.WriteFile(dir+"/state/picture-default.json", picture, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}

	ns := host(t)
	var log bytes.Buffer
	cmd := exec.Command("ip",
		slices.Concat([]string{"netns", "exec", ns}, asTheUnit(t), []string{program, "run", "--config", config})...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket.LocalAddr().String(), "WATCHDOG_USEC=30000000",
		"WATCHDOG_PID=")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if the test has failed before it ended
		if t.Failed() {
			t.Logf("log:\n%s", log.String())
		}
	})

	told := func(want string) {
		t.Helper()
		if err := socket.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1024)
		for {
			n, err := socket.Read(buf)
			if err != nil {
				t.Fatalf("systemd was not told %s: %v", want, err)
			}
			if strings.HasPrefix(string(buf[:n]), want) {
				return
			}
		}
	}
	told("EXTEND_TIMEOUT_USEC=")
	told("WATCHDOG=1")

	var status string
	eventually(t, "sallyport status shows a running HAProxy", func() error {
		out, err := exec.Command("ip", "netns", "exec", ns, program, "status").CombinedOutput()
		status = string(out)
		if err == nil && !strings.Contains(status, "; HAProxy 2.") && !strings.Contains(status, "; HAProxy 3.") {
			err = errors.New(status)
		}
		return err
	})
	if !strings.HasPrefix(status, "lonely is not ready: ") {
		t.Errorf("got status %q, want that lonely is not ready", status)
	}

	shows := func(what string, want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("sallyport status shows %q: %v", what, want), func() error {
			out, err := exec.Command("ip", "netns", "exec", ns, program, "status", "--address",
				"127.0.0.1:9090").Output()
			if err == nil && strings.Contains(string(out), what) != want {
				err = errors.New(string(out))
			}
			return err
		})
	}
	good, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	again := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(config, []byte(text), 0o600),
			cmd.Process.Signal(syscall.SIGHUP)); err != nil {
			t.Fatal(err)
		}
	}
	mistake := fmt.Sprintf("sallyport.yaml:%d: unknown key", strings.Count(string(good), "\n")+1)
	again(string(good) + "routes: {tabel: 1}\n")
	shows(mistake, true)
	again(strings.Replace(string(good), "identity: lonely", "identity: renamed", 1) + "routes: {table: 100}\n")
	shows(mistake, false)
	shows("renamed is not ready: ", true)
	shows("routes.table: takes effect at the next start", true)

	pidFile := filepath.Join(dir, "run", "haproxy.pid")
	var haproxy int
	eventually(t, "HAProxy has written its PID", func() error {
		text, err := os.ReadFile(pidFile)
		if err == nil {
			haproxy, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	t.Cleanup(func() {
		_ = syscall.Kill(haproxy, syscall.SIGTERM)
		eventually(t, "HAProxy ends", func() error {
			if err := syscall.Kill(haproxy, 0); !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("process %d is still there: %w", haproxy, err)
			}
			return nil
		})
	})

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	told("STOPPING=1")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: got %v, want exit code 0", err)
		}
	case <-time.After(patience):
		t.Fatal("the appliance does not end on SIGTERM")
	}
	if err := syscall.Kill(haproxy, 0); err != nil {
		t.Errorf("HAProxy has gone with the appliance: %v", err)
	}
	if strings.Contains(log.String(), "HAProxy cannot tell") {
		t.Error("HAProxy's notices are not heard")
	}
	if strings.Contains(log.String(), "tops3cret") || strings.Contains(status, "tops3cret") {
		t.Error("the token shows in the log or the status")
	}
}
