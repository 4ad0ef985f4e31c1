package haproxy

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Another process asks, which has no Proxy.
func TestWhetherHAProxyAnswersIsAskedWithoutAProxy(t *testing.T) {
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		socket := WorkerSocket(r.opt.RunDir)
		if err := Answers(t.Context(), socket); err == nil {
			t.Error("a HAProxy answers that does not run")
		}
		cfg := r.config(backend("app", origin(t, "a")))
		r.settle(cfg, states(cfg, Open))
		if err := Answers(t.Context(), socket); err != nil {
			t.Errorf("HAProxy does not answer: %v", err)
		}
		if err := syscall.Kill(r.p.Info().Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r.eventually("a dead HAProxy does not answer", func() bool { return Answers(t.Context(), socket) != nil })
	})
}

func TestAnotherAnswerIsNoAnswerOfHAProxy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was written
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 100))
			_, _ = conn.Write([]byte("Permission denied\n"))
			_ = conn.Close()
		}
	}()
	if err := Answers(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("got %v", err)
	}
}

func TestAHAProxyThatSaysNothingDoesNotAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Answers(ctx, socket); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
