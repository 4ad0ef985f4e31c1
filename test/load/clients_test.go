package load

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// count runs clients of a server until each kind has so many outcomes, and returns how many failed.
func count(t *testing.T, c Clients, answer http.HandlerFunc) (failed, broken int) {
	t.Helper()
	s := httptest.NewServer(answer)
	defer s.Close()
	c.Targets, c.Host = append(c.Targets, s.Listener.Addr().String()), "test.local"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	fresh, asked := 0, 0
	note := func(o Outcome) {
		mu.Lock()
		defer mu.Unlock()
		n, bad := &fresh, &failed
		if o.Kept {
			n, bad = &asked, &broken
		}
		if *n++; o.Err != nil {
			*bad++
		}
		if (c.New == 0 || fresh >= 10) && (c.Kept == 0 || asked >= 10) {
			cancel()
		}
	}
	c.Run(ctx, func() func(Outcome) { return note })
	return failed, broken
}

func TestAGoodServerFailsNobody(t *testing.T) {
	failed, broken := count(t, Clients{New: time.Millisecond, Kept: 3, Every: time.Millisecond},
		func(http.ResponseWriter, *http.Request) {})
	if failed != 0 || broken != 0 {
		t.Errorf("%d failed and %d broke, want none", failed, broken)
	}
}

func TestAnErrorIsAFailure(t *testing.T) {
	failed, broken := count(t, Clients{New: time.Millisecond, Kept: 3, Every: time.Millisecond},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	if failed < 10 || broken < 10 {
		t.Errorf("%d failed and %d broke, want all", failed, broken)
	}
}

func TestAnAnswerOfSomebodyElseIsAFailure(t *testing.T) {
	for text, good := range map[string]bool{"namespace: mine\n": true, "namespace: other\n": false} {
		failed, broken := count(t, Clients{New: time.Millisecond, Kept: 3, Every: time.Millisecond, Wants: "namespace: mine"},
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
		if none := failed == 0 && broken == 0; none != good {
			t.Errorf("of answers %q %d failed and %d broke", text, failed, broken)
		}
	}
}

// A server that announces the end of a connection breaks nothing; one that resets it does.
func TestAnAnnouncedEndBreaksNothing(t *testing.T) {
	_, broken := count(t, Clients{Kept: 3, Every: time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
	})
	if broken != 0 {
		t.Errorf("%d broke, want none", broken)
	}
	_, broken = count(t, Clients{Kept: 3, Every: time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	})
	if broken < 10 {
		t.Errorf("%d broke, want all", broken)
	}
}

func TestTargetsAreAskedInTurn(t *testing.T) {
	failed, broken := count(t,
		Clients{Targets: []string{"127.0.0.1:1"}, New: time.Millisecond, Kept: 2, Every: time.Millisecond},
		func(http.ResponseWriter, *http.Request) {})
	if failed == 0 || broken != 0 {
		t.Errorf("%d failed and %d broke, want some and none: nothing listens at one of two targets", failed, broken)
	}
}
