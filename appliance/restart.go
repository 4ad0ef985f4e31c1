package appliance

import (
	"os"
	"path/filepath"
	"time"

	"sallyport/appliance/group"
	"sallyport/appliance/status"
)

// A restart of the process need not move traffic, because HAProxy, the routes and the keepalived of
// a unit go on meanwhile. An appliance that was full therefore begins as full. It has the usual
// grace to read clusters and peers again.

const (
	// fullFile exists in haproxy.runDir if a process is full, or was full when it ended. A reboot
	// empties that directory.
	fullFile = "full"
	// longestRestart is the longest time between two processes after which inherit begins as full.
	longestRestart = 30 * time.Second
	// attestEvery is the time between two calls of attest that write fullFile.
	attestEvery = longestRestart / 3
)

// attest tells the next process that this appliance is full, in case this one crashes. It does so
// only after the process has run for patience, because an appliance that crashes again and again
// must not count as full.
func (ms *membership) attest(dir string) {
	now := ms.now()
	switch {
	case !ms.lasting() && !ms.attested.IsZero():
		_ = os.Remove(filepath.Join(dir, fullFile)) // one that stays is soon too old
		ms.attested = time.Time{}
	case ms.lasting() && now.Sub(ms.started) >= status.Patience && now.Sub(ms.attested) >= attestEvery:
		ms.bequeath(dir)
		ms.attested = now
	}
}

// lasting reports whether the next process may begin as full. It may not after this process has set
// a ring without another member. Routers would then send connections of other members here before
// the next process has set its ring, and this machine would reset them.
func (ms *membership) lasting() bool {
	lone := !ms.ring.at.IsZero() && ms.ring.err == nil && len(ms.ring.of.Members) == 0
	return ms.fit.Class == group.Full && !lone
}

// bequeath tells the next process that this appliance is full.
func (ms *membership) bequeath(dir string) {
	if !ms.lasting() {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, fullFile), nil, 0o600); err != nil {
		ms.log.Warn("the next process does not hear that this appliance is full, and begins as the last resort", "err",
			err)
	}
}

// inherit begins as full if the process before was full, and has only just ended.
func (ms *membership) inherit(dir string) {
	path := filepath.Join(dir, fullFile)
	info, err := os.Lstat(path)
	if err != nil {
		return
	}
	_ = os.Remove(path) // one that stays is soon too old
	if age := ms.started.Sub(info.ModTime()); age >= 0 && age < longestRestart && ms.member != nil {
		ms.fit, ms.fitSince = group.Fitness{Class: group.Full}, ms.started
	}
}
