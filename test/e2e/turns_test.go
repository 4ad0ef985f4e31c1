package e2e

import (
	"slices"
	"sync"
	"testing"
)

// A length is how long a test takes.
type length int

const (
	short length = iota
	long         // more than a minute and a half
)

// labs are the places for tests with labs that run at once. TestMain sets their number.
var labs = &places{}

// beside lets a test run at the same time as others, as t.Parallel does, and waits for a place. A long test gets
// one before all short ones: one that began last would run alone for minutes.
func beside(t *testing.T, takes length) {
	t.Helper()
	t.Parallel()
	labs.take(takes)
	t.Cleanup(labs.leave)
}

// places are given to those who wait, the longest first.
type places struct {
	mu      sync.Mutex
	free    int
	waiting []waiter
}

// A waiter is somebody who waits until turn is closed.
type waiter struct {
	takes length
	turn  chan struct{}
}

// take waits for a place.
func (p *places) take(takes length) {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return
	}
	w := waiter{takes: takes, turn: make(chan struct{})}
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	<-w.turn
}

// leave gives a place back.
func (p *places) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.free++
		return
	}
	next := 0
	for i, w := range p.waiting {
		if w.takes > p.waiting[next].takes {
			next = i
		}
	}
	close(p.waiting[next].turn)
	p.waiting = slices.Delete(p.waiting, next, next+1)
}
