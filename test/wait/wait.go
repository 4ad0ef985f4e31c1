// Package wait has what the tests of several packages wait with: For waits for a condition,
// and a Log is a log that tests read while it is written.
package wait

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// For waits until ok reports true. If it does not within a time that only a hang reaches, the
// test fails with the last state that ok returned.
func For(t testing.TB, what string, ok func() (done bool, state string)) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(90 * time.Second)
	defer limit.Stop()
	for {
		done, state := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited in vain for: %s\n%s", what, state)
		}
	}
}

// A Log is a log that may be read while it is written. The zero value is an empty one.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
