package haproxy

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// twoWorkers answers at a socket as an old worker for some exchanges, and then as the one that has
// replaced it. It returns the worker to ask, and the lines that each of the two has received.
func twoWorkers(t *testing.T, ofOld int) (w worker, heard func() (old, current []string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var mu sync.Mutex
	var lines [2][]string
	go func() {
		for i := 0; ; i++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			gen, at := replaced, 0
			if i >= ofOld {
				gen, at = "g", 1
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			mu.Lock()
			lines[at] = append(lines[at], strings.TrimSpace(line))
			mu.Unlock()
			_, _ = fmt.Fprintf(conn, "Pid: %d\n\nproc.gen: type=str value=<%s>\n\n", 100+at, gen)
			_ = conn.Close()
		}
	}()
	w.path = path
	if w.sock, err = connect(path); err != nil {
		t.Fatal(err)
	}
	return w, func() (old, current []string) {
		mu.Lock()
		defer mu.Unlock()
		return lines[0], lines[1]
	}
}

func TestNothingIsLostToAWorkerThatAReloadHasReplaced(t *testing.T) {
	for name, exchange := range map[string]func(w worker) error{
		"commands":  func(w worker) error { return w.tell([]string{"set server app/one state maint"}) },
		"a payload": func(w worker) error { _, err := w.pass("add map m", "a b\n"); return err },
		"a reading": func(w worker) error {
			seen, err := w.look()
			if err == nil && seen.pid != 101 {
				t.Errorf("a reading is that of process %d", seen.pid)
			}
			return err
		},
		"the mark of a reload": func(w worker) error {
			gen, err := w.retire()
			if err == nil && gen != "g" {
				t.Errorf("generation %q is marked", gen)
			}
			return err
		},
	} {
		w, heard := twoWorkers(t, 3)
		if err := exchange(w); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		old, current := heard()
		if len(old) != 3 || len(current) != 1 || old[0] != current[0] {
			t.Errorf("%s: the old worker received %q, and the one that replaced it %q", name, old, current)
		}
	}
}

func TestAWorkerThatNothingReplacedCountsAgain(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		if _, err := r.p.worker.retire(); err != nil { // and here the process ends
			t.Fatal(err)
		}
		r.p = r.fresh()
		r.settle(cfg, states(cfg, Open))
		if got, err := r.try("app.test", "/"); err != nil || got != "a" {
			t.Errorf("got %q, %v", got, err)
		}
		r.settle(cfg, states(cfg, Closed))
		if got, err := r.try("app.test", "/"); err == nil && got == "a" {
			t.Error("a server that was closed answers")
		}
		if got := r.p.Info(); got.Reloads != 0 {
			t.Errorf("%d reloads: %s", got.Reloads, got.LastReason)
		}
	})
}
