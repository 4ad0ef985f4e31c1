package haproxy

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

func TestConnectionsAreBoundedByMemoryAndFiles(t *testing.T) {
	for name, c := range map[string]struct {
		memory, files uint64
		want          int
		short         bool
	}{
		"two gigabytes":         {2 << 30, 524288, 10485, false},
		"half a gigabyte":       {512 << 20, 524288, 2621, false},
		"a large machine":       {1 << 40, 1 << 30, 1_000_000, false},
		"few files":             {2 << 30, 4096, 1536, true},
		"no file":               {2 << 30, 0, 0, true}, // HAProxy chooses
		"memory that is hidden": {0, 524288, 1000, false},
	} {
		got, short := mostConnections(c.memory, c.files)
		if got != c.want || (short != "") != c.short {
			t.Errorf("%s: got %d, %q, want %d", name, got, short, c.want)
		}
	}
	if memory() == 0 || openFiles() == 0 {
		t.Errorf("memory of %d bytes, %d open files", memory(), openFiles())
	}
}

func TestHAProxyTakesNoMoreConnectionsThanItHasMemoryFor(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "ok")))
		r.apply(cfg, states(cfg, Open))
		want, _ := mostConnections(memory(), openFiles())
		if got := r.maxConn(); got != want {
			t.Errorf("HAProxy takes %d connections, want %d", got, want)
		}
		next := *cfg
		next.Process.MaxConn = 300
		r.settle(&next, states(&next, Open))
		r.eventually("what is said counts", func() bool { return r.maxConn() == 300 })
	})
}

// maxConn returns the limit that the worker reports.
func (r *rig) maxConn() (n int) {
	r.t.Helper()
	answer, _, err := r.p.worker.ask("show info")
	if err != nil {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(answer) {
		if rest, is := strings.CutPrefix(line, "Maxconn: "); is {
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
