package haproxy

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestConnectionsAreBoundedByMemoryAndFiles(t *testing.T) {
	const gigabyte = 1 << 30
	for name, c := range map[string]struct {
		memory, files uint64
		servers       int
		configured    int
		want          int
		most          int // servers
	}{
		"two gigabytes":                      {2 * gigabyte, 524288, 0, 0, 10485, 1571364},
		"half a gigabyte":                    {gigabyte / 2, 524288, 0, 0, 2621, 1571364},
		"a large machine":                    {1 << 40, 1 << 40, 0, 0, 1_000_000, 3221223972},
		"few files":                          {2 * gigabyte, 4096, 0, 0, 1348, 10788},
		"few files, few servers":             {2 * gigabyte, 4096, 3400, 0, 1348, 10788},
		"few files, many servers":            {2 * gigabyte, 4096, 3600, 0, 899, 10788},
		"few files, as many servers as fit":  {2 * gigabyte, 4096, 10788, 0, 449, 10788},
		"few files, more servers than fit":   {2 * gigabyte, 4096, 100_000, 0, 449, 10788},
		"hardly any file":                    {2 * gigabyte, 256, 40, 0, 1, 24},
		"files that are hidden":              {2 * gigabyte, 0, 10_000, 0, 10485, 0},
		"memory that is hidden":              {0, 524288, 0, 0, 0, 1571364}, // HAProxy chooses
		"a number that is configured":        {2 * gigabyte, 524288, 0, 30_000, 30_000, 1571364},
		"a configured number beyond files":   {2 * gigabyte, 4096, 0, 30_000, 1348, 10788},
		"ten thousand Services, few files":   {24 * gigabyte, 20_000, 50_000, 0, 2437, 58500},
		"ten thousand Services of five pods": {2 * gigabyte, 524288, 50_000, 0, 10485, 1571364},
	} {
		r := Room{c.memory, c.files}
		if got := r.Connections(c.servers, c.configured); got != c.want {
			t.Errorf("%s: %d connections, want %d", name, got, c.want)
		}
		if got := r.Servers(); got != c.most {
			t.Errorf("%s: at most %d servers, want %d", name, got, c.most)
		}
		if need := filesOfConnection*uint64(c.want) + uint64(min(c.servers, c.most))/serversOfFile +
			filesOfProcess; c.files > 1000 && c.want > 0 && need > c.files {
			t.Errorf("%s: they need %d files", name, need)
		}
	}
	if m := Machine(); m.Memory == 0 || m.Files == 0 {
		t.Errorf("the machine is not known: %+v", m)
	}
}

// TestServersThatComeAndGoTakeTwoReloadsAtMost plays an owner of servers who adds and removes as
// many as there are, again and again: each change of the number of connections takes a reload.
func TestServersThatComeAndGoTakeTwoReloadsAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Room{Memory: 2 << 30, Files: rapid.Uint64Range(0, 1<<16).Draw(t, "files")}
		want := rapid.SampledFrom([]int{0, 100, 30_000}).Draw(t, "configured")
		running, reloads := r.Connections(0, want), 0
		for range 20 {
			servers := rapid.IntRange(0, r.Servers()+100).Draw(t, "servers")
			next := r.Kept(running, servers, want)
			if most := r.Connections(servers, want); next > most {
				t.Fatalf("%d connections with %d servers, which leave room for %d", next, servers, most)
			}
			if least := r.Connections(1<<30, want); next < least {
				t.Fatalf("%d connections, and with any number of servers there is room for %d", next, least)
			}
			if next != running {
				reloads, running = reloads+1, next
			}
		}
		if reloads > 2 {
			t.Fatalf("%d reloads", reloads)
		}
	})
	for _, row := range [][3]int{
		{449, 0, 449},
		{899, 0, 899},
		{899, 10_000, 449},
		{1348, 0, 1348},
		{77, 0, 1348},
		{0, 0, 1348},
	} {
		if got := (Room{2 << 30, 4096}).Kept(row[0], row[1], 0); got != row[2] {
			t.Errorf("%d connections now, and %d servers: got %d, want %d", row[0], row[1], got, row[2])
		}
	}
}

func TestHAProxyTakesNoMoreConnectionsThanItHasMemoryFor(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "ok")))
		r.apply(cfg, states(cfg, Open))
		if got, want := r.maxConn(), Machine().Connections(0, 0); got != want {
			t.Errorf("HAProxy takes %d connections, want %d", got, want)
		}
		next := *cfg
		next.Process.MaxConn = 300
		r.settle(&next, states(&next, Open))
		r.eventually("what is said counts", func() bool { return r.maxConn() == 300 })
	})
}

// TestHAProxyServesWithFewOpenFiles starts HAProxy with few open files, and has it read
// as many servers as its Room holds: more than HAProxy would by itself.
func TestHAProxyServesWithFewOpenFiles(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		const files = 1000
		r := newRig(t, limited(t, binary, files))
		app := backend("app", origin(t, "ok"))
		serve := func(servers, connections int) {
			var others []Server
			for n := range servers - 1 {
				others = append(others, nowhereServer(n))
			}
			cfg := r.config(app, backend("others", others...))
			cfg.Backends[1].Options.Check = true
			cfg.Tune.MaxConn = connections
			r.settle(cfg, states(cfg, Open))
			if got := r.get("app.test", "/"); got != "ok" {
				t.Errorf("with %d servers the answer is %q, want ok", servers, got)
			}
		}
		serve(10, 0)
		room := r.p.Info().Room
		if room.Files != files {
			t.Fatalf("HAProxy has %d open files, want %d", room.Files, files)
		}
		most := room.Servers()
		serve(most, room.Connections(most, 0))
		serve(most, room.Connections(most, 0)-1) // a reload reads what commands have added
		if got := r.number("Maxsock"); got <= files {
			t.Errorf("HAProxy sets aside %d files for %d servers, want more than %d", got, most, files)
		}
	})
}

// limited returns a program that runs HAProxy with a limit of open files.
func limited(t *testing.T, binary string, files int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "haproxy")
	// HAProxy would raise its limit with CAP_SYS_RESOURCE.
	text := fmt.Sprintf("#!/bin/sh\n"+
		"exec setpriv --bounding-set -sys_resource --inh-caps -sys_resource prlimit --nofile=%d:%d %s \"$@\"\n", files,
		files, binary)
	writeProgram(t, path, text)
	return path
}

// maxConn returns the limit that the worker reports.
func (r *rig) maxConn() int { return r.number("Maxconn") }

// number returns a number of "show info".
func (r *rig) number(key string) (n int) {
	r.t.Helper()
	answer, err := r.p.worker.ask("show info")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(answer) {
		if rest, is := strings.CutPrefix(line, key+": "); is {
			for _, c := range strings.TrimSpace(rest) {
				n = 10*n + int(c-'0')
			}
		}
	}
	return n
}

func TestAHandshakeThatDoesNotEndIsEnded(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "ok")))
		silent := time.Hour
		if r.p.version[0] == '2' {
			silent = time.Second // it has no separate timeout for handshakes
		}
		cfg.Process.Lines = []Line{DefaultTimeout("client", silent)}
		r.apply(cfg, states(cfg, Open))
		half := make(map[string]net.Conn)
		for name, begun := range map[string]string{"nothing": "", "the beginning": "\x16\x03\x01\x02\x00\x01\x00"} {
			conn, err := net.Dial("tcp", r.https.String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Minute)) // much less than the hour
			if _, err := io.WriteString(conn, begun); err != nil {
				t.Fatal(err)
			}
			half[name] = conn
		}
		for name, conn := range half {
			if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("%s of a handshake: %v, want the connection closed", name, err)
			}
		}
	})
}
