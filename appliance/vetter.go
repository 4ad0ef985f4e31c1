package appliance

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"sallyport/haproxy"
)

// vetter asks HAProxy about texts that objects of a cluster bring for its
// configuration, off the loop's path. A verdict stands as long as somebody has
// the text.
type vetter struct {
	ask     func(context.Context, []haproxy.Text) (map[haproxy.Text]string, error)
	find    func(context.Context, *haproxy.Config) (map[haproxy.Text]string, error)
	log     *slog.Logger
	changed chan struct{}

	mu       sync.Mutex
	verdicts map[haproxy.Text]string
	busy     bool
	blamed   time.Time // when a configuration was last looked at as a whole
}

func newVetter(
	ask func(context.Context, []haproxy.Text) (map[haproxy.Text]string, error), find func(context.Context, *haproxy.Config) (map[haproxy.Text]string, error), log *slog.Logger,
) *vetter {
	return &vetter{ask: ask, find: find, log: log, changed: make(chan struct{}, 1), verdicts: map[haproxy.Text]string{}}
}

// known are the verdicts so far. They are never changed.
func (v *vetter) known() map[haproxy.Text]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.verdicts
}

// look asks about those of the texts that nothing is known of, one time at once,
// and knocks when it knows. It says whether all are known.
func (v *vetter) look(ctx context.Context, texts []haproxy.Text) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	wanted := make(map[haproxy.Text]string, len(texts))
	var unknown []haproxy.Text
	for _, t := range texts {
		if why, asked := v.verdicts[t]; asked {
			wanted[t] = why
		} else {
			unknown = append(unknown, t)
		}
	}
	if len(unknown) == 0 {
		if len(wanted) < len(v.verdicts) {
			v.verdicts = wanted
		}
		return true
	}
	if !v.busy {
		v.learn(ctx, func() (map[haproxy.Text]string, error) { return v.ask(ctx, unknown) })
	}
	return false
}

// blameEvery bounds how often a configuration is looked at as a whole.
const blameEvery = 30 * time.Second

// blame looks for the texts for which HAProxy refuses a configuration as a whole,
// though it takes each alone, and knocks when it has found some.
func (v *vetter) blame(ctx context.Context, cfg *haproxy.Config, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy || now.Sub(v.blamed) < blameEvery {
		return
	}
	v.blamed = now
	v.learn(ctx, func() (map[haproxy.Text]string, error) { return v.find(ctx, cfg) })
}

// learn adds verdicts as soon as they are there. The caller holds mu.
func (v *vetter) learn(ctx context.Context, verdicts func() (map[haproxy.Text]string, error)) {
	v.busy = true
	go func() {
		answers, err := verdicts()
		v.mu.Lock()
		defer v.mu.Unlock()
		v.busy = false
		if err != nil {
			if ctx.Err() == nil {
				v.log.Error("HAProxy cannot be asked about snippets", "err", err)
			}
			return // the next look asks again
		}
		if len(answers) == 0 {
			return
		}
		v.verdicts = maps.Clone(v.verdicts)
		maps.Copy(v.verdicts, answers)
		select {
		case v.changed <- struct{}{}:
		default:
		}
	}()
}
