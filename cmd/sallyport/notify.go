package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// systemd tells the service manager how the service is doing, by datagrams to
// the socket the manager names (sd_notify(3)). Without such a socket it says
// nothing. It is safe for concurrent use.
type systemd struct {
	log      *slog.Logger
	socket   string
	watchdog time.Duration // between two signs of life; 0: none are asked for

	mu    sync.Mutex
	ready bool
	last  time.Time // of the last sign of life
}

// startTime is how long the manager is asked to wait for readiness, again and
// again while the appliance is alive: an API server that is down is no reason to
// be killed.
const startTime = 30 * time.Second

// newSystemd takes the manager's wishes out of the environment, so that HAProxy
// does not inherit them and speak in our place.
func newSystemd(log *slog.Logger) *systemd {
	take := func(key string) string {
		value := os.Getenv(key)
		_ = os.Unsetenv(key)
		return value
	}
	s := &systemd{log: log, socket: take("NOTIFY_SOCKET")}
	pid, limit := take("WATCHDOG_PID"), take("WATCHDOG_USEC")
	usec, err := strconv.ParseInt(limit, 10, 64)
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		// Half the limit is what sd_watchdog_enabled(3) advises.
		s.watchdog = time.Duration(usec) * time.Microsecond / 2
	}
	return s
}

// Ready says that the service has started.
func (s *systemd) Ready(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	s.send("READY=1\nSTATUS=" + status)
}

// Alive is a sign of life, to be called much more often than the watchdog asks.
func (s *systemd) Alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	gap := startTime / 3
	if s.watchdog > 0 {
		// Called every other second, the next chance may come two seconds late.
		gap = min(gap, s.watchdog/2)
	}
	if !s.last.IsZero() && now.Sub(s.last) < gap {
		return
	}
	s.last = now
	if !s.ready {
		s.send(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d\nSTATUS=starting", startTime.Microseconds()))
	}
	if s.watchdog > 0 {
		s.send("WATCHDOG=1")
	}
}

// Stopping says that the service is on its way out.
func (s *systemd) Stopping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send("STOPPING=1")
}

func (s *systemd) send(state string) {
	if s.socket == "" {
		return
	}
	conn, err := net.Dial("unixgram", s.socket)
	if err == nil {
		_, err = conn.Write([]byte(state))
		_ = conn.Close()
	}
	if err != nil {
		s.log.Warn("the service manager cannot be told", "err", err)
		s.socket = ""
	}
}
