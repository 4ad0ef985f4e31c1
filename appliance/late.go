package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/ingress/watch"
)

// reopen is the time between two attempts to open a watcher.
const reopen = 5 * time.Second

// A lateWatcher watches a cluster. Its credentials may be unusable at first. Until the watcher
// opens, the loop runs without it, and Snapshot and Health report why.
type lateWatcher struct {
	cluster string
	value   atomic.Pointer[watch.Watcher]
	why     atomic.Pointer[error]
	changed chan struct{}
}

func newLateWatcher(cluster string) *lateWatcher {
	l := &lateWatcher{cluster: cluster, changed: make(chan struct{}, 1)}
	err := fmt.Errorf("the watcher of cluster %s is starting", cluster)
	l.why.Store(&err)
	return l
}

// run tries until the watcher opens, and then runs it. It gives up when ctx ends.
func (l *lateWatcher) run(ctx context.Context, log *slog.Logger, try func() (*watch.Watcher, error)) {
	for {
		w, err := try()
		if err == nil {
			l.value.Store(w)
			knock(l.changed)
			go relay(ctx, w.Changed(), l.changed)
			w.Run(ctx)
			return
		}
		err = fmt.Errorf("the watcher of cluster %s cannot be started: %w", l.cluster, err)
		l.why.Store(&err)
		log.Error("the cluster cannot be watched; sallyport tries again", "err", err, "in", reopen)
		knock(l.changed)
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopen):
		}
	}
}

// Changed returns a channel that knocks when the watcher does, when it opens, and when
// an attempt to open it fails.
func (l *lateWatcher) Changed() <-chan struct{} { return l.changed }

func (l *lateWatcher) Snapshot() (input.Snapshot, error) {
	if w := l.value.Load(); w != nil {
		return w.Snapshot()
	}
	return input.Snapshot{}, *l.why.Load()
}

func (l *lateWatcher) Health() watch.Health {
	if w := l.value.Load(); w != nil {
		return w.Health()
	}
	return watch.Health{Error: (*l.why.Load()).Error()}
}

func (l *lateWatcher) Publish(p watch.Publication) {
	if w := l.value.Load(); w != nil {
		w.Publish(p)
	}
}

func (l *lateWatcher) Serve(r ingress.Result) {
	if w := l.value.Load(); w != nil {
		w.Serve(r)
	}
}
