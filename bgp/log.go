package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// What GoBGP says in its log and nowhere else.
const (
	saysKeyRefused = "failed to set md5"
	saysDeaf       = "Failed to AcceptTCP"
	saysDown       = "Peer Down"
)

// settle is how long GoBGP is held up where it says that a session is over. It has
// then put a last word into the peer's queue, and is about to look, once and without
// waiting, whether it is to be taken out. What is still on its way through the queue's
// goroutine at that moment keeps the goroutine for ever, one for each session lost.
const settle = 5 * time.Millisecond

// A tap is the slog.Handler GoBGP writes to. It passes on to ours at levels
// that fit: what GoBGP says about every connection that knocks, and about
// session ups and downs, which we log ourselves, becomes Debug; what remains
// above is passed on once a second for each message, because a peer decides
// how often. It listens for the two failures GoBGP only logs, and waits where
// GoBGP does not (settle).
type tap struct {
	next  slog.Handler
	heard *heard // shared by all derived from one
}

type heard struct {
	mu   sync.Mutex
	keys map[string]string // peer's address to the error of setting its key
	deaf string
	last map[string]time.Time // message to when it was passed on; GoBGP's messages are constants, a few dozen
}

func newTap(next slog.Handler) *tap {
	return &tap{next: next, heard: &heard{keys: make(map[string]string), last: make(map[string]time.Time)}}
}

// forget clears what was heard about the key of a peer.
func (t *tap) forget(peer netip.Addr) {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	delete(t.heard.keys, peer.String())
}

// refused returns why the key of a peer could not be set, or nothing.
func (t *tap) refused(peer netip.Addr) string {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	return t.heard.keys[peer.String()]
}

// deaf returns an error when a listener has given up.
func (t *tap) deaf() error {
	t.heard.mu.Lock()
	defer t.heard.mu.Unlock()
	if t.heard.deaf == "" {
		return nil
	}
	return fmt.Errorf("bgp: a listener has failed and no peer can connect to it any more, restart to repair: %s", t.heard.deaf)
}

// hears forgets that a listener has given up.
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
		time.Sleep(settle) //nolint:forbidigo // the queue tells nobody
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
		"hold timer expired", "prefix limit reached", "failed to unset md5", "failed to send":
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
