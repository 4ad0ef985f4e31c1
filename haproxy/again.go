package haproxy

import (
	"slices"
	"time"
)

// Apply is given the same order again and again, so that an error that no reading shows does
// not last. Such a repetition should find nothing to do. Whatever an order cannot bring at once
// has its time in Result.RetryAt. A repetition that changes something before that time corrects
// an error of ours, or a change that somebody else made to the worker. This file tells the two
// apart, and counts them.

// MissedLine is the message of the log line about changes that an order before had left out.
const MissedLine = "a repetition changed what an order before should have changed: please report this bug of Sallyport"

// An order holds the arguments of the last Apply, and its result.
type order struct {
	cfg     Config
	states  States
	done    bool      // without an error
	retryAt time.Time // as Result.RetryAt
}

// repetition compares an order with the one before.
type repetition int

const (
	another  repetition = iota // it differs, or the one before failed, or asked for a time that has come
	repeated                   // it is the same, and the worker has confirmed all of it
	restored                   // it is the same, and the worker was read anew since
)

// compare compares an order with the one before. The time that the one before asked for is left out:
// it may come while the order is carried out (see came).
func (p *Proxy) compare(cfg *Config, states States) repetition {
	last := &p.last
	switch {
	case !last.done, !last.cfg.Same(cfg), !slices.EqualFunc(last.states, states, SameList[State]):
		return another
	case p.belief.run == nil || p.belief.run.told == nil:
		return restored
	}
	return repeated
}

// came reports whether a time that an order asked for has come.
func came(retryAt time.Time) bool { return !retryAt.IsZero() && !time.Now().Before(retryAt) }

// countRepetition counts and logs what a repetition has changed. Removals of servers are no
// change: they wait until the connections of the server have ended.
func (p *Proxy) countRepetition(as repetition, res *Result) {
	changes := res.made
	if res.Reloaded {
		changes = []string{"a reload: " + res.Reason}
	}
	if len(changes) == 0 {
		return
	}
	switch as {
	case repeated:
		p.note(func(i *Info) { i.Missed++ })
		p.log.Error(MissedLine, "changes", len(changes), "first", changes[:min(len(changes), 5)])
	case restored:
		p.note(func(i *Info) { i.Restored++ })
		p.log.Warn("HAProxy was changed by something else, and has its configuration again", "changes", len(changes),
			"first", changes[:min(len(changes), 5)])
	}
}
