package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// Messages of GoBGP about events that it reports only in its log.
const (
	saysKeyRefused = "failed to set md5"
	saysDeaf       = "Failed to AcceptTCP"
	saysDown       = "Peer Down"
)

// settle delays GoBGP when it logs the end of a session. GoBGP has just put a last message into the
// peer's queue. It then tries once, without waiting, to take the message out again. If the message
// has not passed the queue's goroutine by then, that goroutine never ends. So without the delay,
// each lost session could leak a goroutine.
const settle = 5 * time.Millisecond

// A tap is the slog.Handler that GoBGP writes to. It passes records to our handler.
// Records about incoming connections, and about sessions that come up or go down, become
// Debug: this package logs these itself. Others pass once a second for each message, for
// a peer decides how often they come. The tap notes the two failures that GoBGP only logs,
// and waits where GoBGP does not (settle).
type tap struct {
	next  slog.Handler
	heard *heard // shared by all derived from one
}

type heard struct {
	mu   sync.Mutex
	keys map[string]string // by the peer's address: the error of setting its key
	deaf string
	last map[string]time.Time // by message: when it was passed on last. GoBGP's messages are a few dozen constants
}

func newTap(next slog.Handler) *tap {
	return &tap{next: next, heard: &heard{keys: make(map[string]string), last: make(map[string]time.Time)}}
}

// forget clears the failure noted about the key of a peer.
func (t *tap) forget(peer netip.Addr) {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	delete(t.heard.keys, peer.String())
}

// refused returns why the key of a peer could not be set, or "" if it was set.
func (t *tap) refused(peer netip.Addr) string {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	return t.heard.keys[peer.String()]
}

// deaf returns an error if a listener has failed for good.
func (t *tap) deaf() error {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	if t.heard.deaf == "" {
		return nil
	}
	return fmt.Errorf("bgp: a listener has failed and no peer can connect to it any more, restart to repair: %s",
		t.heard.deaf)
}

// hears clears the failure of a listener.
func (t *tap) hears() {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	t.heard.deaf = ""
}

func (t *tap) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || t.next.Enabled(ctx, slog.LevelDebug)
}

func (t *tap) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == saysDown {
		time.Sleep(settle) //nolint:forbidigo // nothing signals that the queue is empty
	}
	level := t.level(r)
	if !t.next.Enabled(ctx, level) {
		return nil
	}
	out := slog.NewRecord(r.Time, level, "gobgp: "+r.Message, 0)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(a)
		return true
	})
	return t.next.Handle(ctx, out)
}

func (t *tap) level(r slog.Record) slog.Level {
	if r.Level < slog.LevelWarn {
		return slog.LevelDebug
	}
	switch r.Message {
	case saysKeyRefused:
		t.keep(r)
		return slog.LevelDebug // becomes an error of SetPeers
	case "Closed an accepted connection", "accepted conn is closed to avoid be blocked",
		"hold timer expired", "prefix limit reached", "failed to unset md5", "failed to send",
		"Expired", "Remote peer signaled BFD down", "Can't dial UDP":
		return slog.LevelDebug
	}
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	if r.Message == saysDeaf {
		t.heard.deaf = t.value(r, "Error")
	}
	if r.Time.Sub(t.heard.last[r.Message]) < time.Second {
		return slog.LevelDebug
	}
	t.heard.last[r.Message] = r.Time
	return r.Level
}

func (t *tap) keep(r slog.Record) {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	t.heard.keys[t.value(r, "Key")] = t.value(r, "Err")
}

func (t *tap) value(r slog.Record, key string) string {
	found := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			found = a.Value.String()
		}
		return found == ""
	})
	return found
}

func (t *tap) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &tap{next: t.next.WithAttrs(attrs), heard: t.heard}
}

func (t *tap) WithGroup(name string) slog.Handler {
	return &tap{next: t.next.WithGroup(name), heard: t.heard}
}
