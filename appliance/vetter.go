package appliance

import (
	"context"
	"log/slog"
	"maps"
	"sync"

	"sallyport/haproxy"
)

// vetter asks HAProxy about texts that objects of a cluster bring for its
// configuration, off the loop's path. A verdict stands as long as somebody has
// the text.
type vetter struct {
	ask     func(context.Context, []haproxy.Text) (map[haproxy.Text]string, error)
	log     *slog.Logger
	changed chan struct{}

	mu       sync.Mutex
	verdicts map[haproxy.Text]string
	busy     bool
}

func newVetter(ask func(context.Context, []haproxy.Text) (map[haproxy.Text]string, error), log *slog.Logger) *vetter {
	return &vetter{ask: ask, log: log, changed: make(chan struct{}, 1), verdicts: map[haproxy.Text]string{}}
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
	if v.busy {
		return false
	}
	v.busy = true
	go func() {
		answers, err := v.ask(ctx, unknown)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.busy = false
		if err != nil {
			if ctx.Err() == nil {
				v.log.Error("HAProxy cannot be asked about snippets", "err", err)
			}
			return // the next look asks again
		}
		v.verdicts = maps.Clone(v.verdicts)
		maps.Copy(v.verdicts, answers)
		select {
		case v.changed <- struct{}{}:
		default:
		}
	}()
	return false
}
