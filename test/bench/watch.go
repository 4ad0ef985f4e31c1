package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A spotter asks HAProxy's worker again and again which servers are open, in one exchange
// for all that somebody waits for.
type spotter struct {
	ask func(line string) (string, error)

	mu      sync.Mutex
	waiting map[sight]chan time.Time
	failed  error
}

// A sight is a server that is open, or is not.
type sight struct {
	backend, server string
	open            bool
}

// spot starts a spotter that asks once per tick until the context ends.
func spot(ctx context.Context, tick time.Duration, ask func(line string) (string, error)) *spotter {
	s := &spotter{ask: ask, waiting: map[sight]chan time.Time{}}
	go func() {
		timer := time.NewTicker(tick)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				s.look()
			}
		}
	}()
	return s
}

func (s *spotter) look() {
	s.mu.Lock()
	backends := map[string]bool{}
	for w := range s.waiting {
		backends[w.backend] = true
	}
	s.mu.Unlock()
	if len(backends) == 0 {
		return
	}
	var line []string
	for b := range backends {
		line = append(line, "show servers state "+b)
	}
	answer, err := s.ask(strings.Join(line, ";"))
	now, open := time.Now(), openServers(answer)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	if err != nil {
		return // over a reload the socket may be away for a moment
	}
	for w, seen := range s.waiting {
		if backends[w.backend] && open[w.backend+"/"+w.server] == w.open {
			seen <- now
			delete(s.waiting, w)
		}
	}
}

// expect returns a channel that gets the time at which a server was first seen as wanted.
func (s *spotter) expect(w sight) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(chan time.Time, 1)
	s.waiting[w] = seen
	return seen
}

// wait waits for what expect returned.
func (s *spotter) wait(ctx context.Context, w sight, seen <-chan time.Time) (time.Time, error) {
	select {
	case at := <-seen:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	case <-time.After(limit):
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Time{}, errors.Join(fmt.Errorf("server %s/%s: open is not %t within %s", w.backend, w.server,
			w.open, limit), s.failed)
	}
}

// openServers returns the open servers, as BACKEND/SERVER, of an answer to "show servers
// state": the second column is the backend's name, the fourth the server's, and the
// seventh the administrative state, where 0 is open (HAProxy's management guide, 9.3).
func openServers(answer string) map[string]bool {
	open := map[string]bool{}
	for line := range strings.Lines(answer) {
		if f := strings.Fields(line); len(f) > 6 && f[6] == "0" {
			open[f[1]+"/"+f[3]] = true
		}
	}
	return open
}
