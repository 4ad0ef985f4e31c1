package appliance

import (
	"os"
	"path/filepath"
	"time"

	"sallyport/appliance/group"
)

// A restart of the process moves no traffic that it does not have to: HAProxy, the routes and
// the keepalived of a unit go on meanwhile. So an appliance that was full begins as full, and
// has the usual grace to know again what it knew.

const (
	// fullFile is the file of a process that is full, or was when it ended, in haproxy.runDir,
	// which a reboot empties.
	fullFile = "full"
	// longestRestart is the longest time between two processes.
	longestRestart = 30 * time.Second
	// attestEvery is how often a process that may crash says that it is full.
	attestEvery = longestRestart / 3
)

// attest tells the next process that this appliance is full, in case this one crashes. A process
// that has not yet run for patience does not: what crashes again and again is not full.
func (ms *membership) attest(dir string) {
	now := ms.now()
	switch {
	case ms.fit.Class != group.Full && !ms.attested.IsZero():
		_ = os.Remove(filepath.Join(dir, fullFile)) // one that stays is soon too old
		ms.attested = time.Time{}
	case ms.fit.Class == group.Full && now.Sub(ms.started) >= patience && now.Sub(ms.attested) >= attestEvery:
		ms.bequeath(dir)
		ms.attested = now
	}
}

// bequeath tells the next process that this appliance is full.
func (ms *membership) bequeath(dir string) {
	if ms.fit.Class != group.Full {
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
