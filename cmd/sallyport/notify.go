package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// systemd reports the state of the service to the service manager, by datagrams to
// the socket in NOTIFY_SOCKET (sd_notify(3)). Without that variable it sends nothing.
// It is safe for concurrent use.
type systemd struct {
	log      *slog.Logger
	socket   string
	watchdog time.Duration // interval of keep-alives; 0 if the manager wants no keep-alives

	mu    sync.Mutex
	ready bool
	last  time.Time // of the last keep-alive
}

// moreTime is the time that each keep-alive adds to the manager's timeout of a start: an API
// server that is down is no reason to kill the appliance. A stop that drains gets it in
// addition to what the drain may take.
const moreTime = 30 * time.Second

// newSystemd reads the manager's variables and removes them from the environment, so
// that HAProxy does not inherit them and notify in our place.
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

// Ready reports that the service has started.
func (s *systemd) Ready(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
	s.send("READY=1\nSTATUS=" + status)
}

// Alive sends a keep-alive if one is due. Call it much more often than the watchdog's
// interval.
func (s *systemd) Alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	gap := moreTime / 3
	if s.watchdog > 0 {
		// Called every other second, the next chance may come two seconds late.
		gap = min(gap, s.watchdog/2)
	}
	if !s.last.IsZero() && now.Sub(s.last) < gap {
		return
	}
	s.last = now
	if !s.ready {
		s.send(moreTimeIs(moreTime) + "\nSTATUS=starting")
	}
	if s.watchdog > 0 {
		s.send("WATCHDOG=1")
	}
}

// Leaving reports that a stop of the service begins to drain, and how long the drain may take.
// It says so once: a stop that hangs otherwise ends by the manager's own timeout.
func (s *systemd) Leaving(drain time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(moreTimeIs(drain + moreTime))
}

func moreTimeIs(d time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds())
}

// Reloading reports that the service reads its configuration again. Before it is ready
// for the first time, it sends nothing.
func (s *systemd) Reloading() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.log.Warn("the service manager cannot be notified of a reload", "err", err)
		return
	}
	// From systemd 253 on, the time shows which request this answers; older ones ignore it.
	s.send(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
}

// Reloaded reports the end of Reloading.
func (s *systemd) Reloaded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		s.send("READY=1")
	}
}

// Stopping reports that the service ends.
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
		s.log.Warn("the service manager cannot be notified", "err", err)
		s.socket = ""
	}
}
