package appliance

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"sallyport/haproxy"
	"sallyport/ingress"
)

// vetter asks HAProxy about parts that objects of a cluster bring for its
// configuration, off the loop's path: about texts before they are used, about
// anything once HAProxy refuses the whole. A verdict stands as long as somebody
// brings the part.
type vetter struct {
	ask     func(context.Context, []haproxy.Question) (haproxy.Verdicts, error)
	find    func(context.Context, *haproxy.Config) (haproxy.Verdicts, error)
	log     *slog.Logger
	changed chan struct{}

	mu       sync.Mutex
	verdicts haproxy.Verdicts
	fresh    bool // verdicts came since known
	busy     bool
	blamed   time.Time // when a configuration was last looked at as a whole

	// Owned by the goroutine of the loop.
	vouched *ingress.Result // the last whose texts all had a verdict; nil: none yet
	unsure  time.Time       // since when a newer one waits for verdicts; zero: none waits
}

// vetting is how long texts without a verdict hold back everything else, pods
// that come and go too. A verdict takes tens of milliseconds.
const vetting = 2 * time.Second

func newVetter(
	ask func(context.Context, []haproxy.Question) (haproxy.Verdicts, error), find func(context.Context, *haproxy.Config) (haproxy.Verdicts, error), log *slog.Logger,
) *vetter {
	return &vetter{ask: ask, find: find, log: log, changed: make(chan struct{}, 1), verdicts: haproxy.Verdicts{}}
}

// known returns the verdicts so far. They are never changed.
func (v *vetter) known() haproxy.Verdicts {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh = false
	return v.verdicts
}

// vetted returns what may be made of the clusters now, and whether every text in it
// has a verdict. While one has none, the last Result that had them all counts, for
// a while: an Ingress whose snippet changes keeps the old one until then, and what
// HAProxy refuses costs no reload.
func (v *vetter) vetted(ctx context.Context, r ingress.Result, now time.Time) (_ ingress.Result, sure bool) {
	switch {
	case v.look(ctx, r.Questions, r.Refused):
		v.vouched, v.unsure = &r, time.Time{}
		return r, true
	case v.vouched == nil:
		return r, false
	case v.unsure.IsZero():
		v.unsure = now
	}
	if now.Sub(v.unsure) < vetting {
		return *v.vouched, false
	}
	return r, false
}

// look has those of the questions answered that have no verdict, one time at once,
// and knocks when they have one. It reports whether all have. A verdict on any other
// part is forgotten, unless the part is still left out.
func (v *vetter) look(ctx context.Context, questions []haproxy.Question, refused []haproxy.Part) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	wanted := make(haproxy.Verdicts, len(questions)+len(refused))
	for _, p := range refused {
		if verdict := v.verdicts[p]; verdict.Known {
			wanted[p] = verdict
		}
	}
	var open []haproxy.Question
	for _, q := range questions {
		if verdict := v.verdicts[q.Part()]; verdict.Known {
			wanted[q.Part()] = verdict
		} else {
			open = append(open, q)
		}
	}
	if len(open) == 0 {
		if len(wanted) < len(v.verdicts) && !v.fresh {
			v.verdicts = wanted
		}
		return true
	}
	if !v.busy {
		v.learn(ctx, func() (haproxy.Verdicts, error) { return v.ask(ctx, open) })
	}
	return false
}

// blameEvery bounds how often a configuration is looked at as a whole.
const blameEvery = 30 * time.Second

// blame looks for the parts for which HAProxy refuses a configuration as a whole,
// and knocks when it has found some.
func (v *vetter) blame(ctx context.Context, cfg *haproxy.Config, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy || now.Sub(v.blamed) < blameEvery {
		return
	}
	v.blamed = now
	v.learn(ctx, func() (haproxy.Verdicts, error) {
		found, err := v.find(ctx, cfg)
		for part, verdict := range found {
			v.log.Warn("HAProxy refuses a part of the configuration, which is left out from now on", "part", part, "why", verdict.Why)
		}
		return found, err
	})
}

// learn adds verdicts as soon as they are there. The caller holds mu.
func (v *vetter) learn(ctx context.Context, verdicts func() (haproxy.Verdicts, error)) {
	v.busy = true
	go func() {
		answers, err := verdicts()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.busy = false
		if len(answers) > 0 {
			v.blamed = time.Time{} // there may be more
		}
		if err != nil {
			if ctx.Err() == nil {
				v.log.Error("HAProxy cannot be asked about parts of the configuration", "err", err)
			}
			return // the next look asks again
		}
		if len(answers) == 0 {
			return
		}
		v.verdicts, v.fresh = maps.Clone(v.verdicts), true
		maps.Copy(v.verdicts, answers)
		select {
		case v.changed <- struct{}{}:
		default:
		}
	}()
}
