package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sallyport/ingress"
)

// reopen is how long a watcher that could not be opened is left alone.
const reopen = 5 * time.Second

// lateWatcher watches a cluster; its credentials may be unusable at first. The loop
// turns without it meanwhile, and hears why it is not there.
type lateWatcher struct {
	cluster string
	value   atomic.Pointer[ingress.Watcher]
	why     atomic.Pointer[error]
	changed chan struct{}
}

func newLateWatcher(cluster string) *lateWatcher {
	l := &lateWatcher{cluster: cluster, changed: make(chan struct{}, 1)}
	err := fmt.Errorf("the watcher of cluster %s is being started", cluster)
	l.why.Store(&err)
	return l
}

// run tries until it has the watcher or ctx ends, then runs it.
func (l *lateWatcher) run(ctx context.Context, log *slog.Logger, try func() (*ingress.Watcher, error)) {
	for {
		w, err := try()
		if err == nil {
			l.value.Store(w)
			l.knock()
			go l.forward(ctx, w.Changed())
			w.Run(ctx)
			return
		}
		err = fmt.Errorf("the watcher of cluster %s cannot be started: %w", l.cluster, err)
		l.why.Store(&err)
		log.Error("the cluster cannot be watched, trying again", "err", err, "in", reopen)
		l.knock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopen):
		}
	}
}

func (l *lateWatcher) forward(ctx context.Context, inner <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-inner:
			l.knock()
		}
	}
}

func (l *lateWatcher) knock() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Changed knocks for the watcher, and when it opens or fails to.
func (l *lateWatcher) Changed() <-chan struct{} { return l.changed }

func (l *lateWatcher) Snapshot() (ingress.Snapshot, error) {
	if w := l.value.Load(); w != nil {
		return w.Snapshot()
	}
	return ingress.Snapshot{}, *l.why.Load()
}

func (l *lateWatcher) Health() ingress.Health {
	if w := l.value.Load(); w != nil {
		return w.Health()
	}
	return ingress.Health{Error: (*l.why.Load()).Error()}
}

func (l *lateWatcher) Publish(served []ingress.ObjectRef, problems []ingress.Problem) {
	if w := l.value.Load(); w != nil {
		w.Publish(served, problems)
	}
}
