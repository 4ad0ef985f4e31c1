package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"sallyport/bgp"
	"sallyport/ingress"
	"sallyport/routes"
)

// reopen is how long an edge that could not be opened is left alone.
const reopen = 5 * time.Second

// late is an edge that may not open at the first try. The loop turns without
// it meanwhile, and hears why it is not there.
type late[T interface{ Changed() <-chan struct{} }] struct {
	what    string
	value   atomic.Pointer[T]
	why     atomic.Pointer[error]
	changed chan struct{}
}

func newLate[T interface{ Changed() <-chan struct{} }](what string) *late[T] {
	l := &late[T]{what: what, changed: make(chan struct{}, 1)}
	err := fmt.Errorf("%s is being started", what)
	l.why.Store(&err)
	return l
}

// open tries until it has the edge or ctx ends, then runs it.
func (l *late[T]) open(ctx context.Context, log *slog.Logger, try func() (T, error), run func(T)) {
	for {
		value, err := try()
		if err == nil {
			l.value.Store(&value)
			l.knock()
			go l.forward(ctx, value.Changed())
			run(value)
			return
		}
		err = fmt.Errorf("%s cannot be started: %w", l.what, err)
		l.why.Store(&err)
		log.Error("cannot be started, trying again", "what", l.what, "err", err, "in", reopen)
		l.knock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(reopen):
		}
	}
}

func (l *late[T]) forward(ctx context.Context, inner <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-inner:
			l.knock()
		}
	}
}

func (l *late[T]) knock() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// Changed knocks for the edge, and when it opens or fails to.
func (l *late[T]) Changed() <-chan struct{} { return l.changed }

// get returns the edge, or why it is not there.
func (l *late[T]) get() (value T, err error) {
	if v := l.value.Load(); v != nil {
		return *v, nil
	}
	return value, *l.why.Load()
}

// lateSpeaker is the BGP speaker; its port may be taken at first.
type lateSpeaker struct{ *late[*bgp.Speaker] }

func (l lateSpeaker) SetPeers(peers []bgp.Peer) error {
	s, err := l.get()
	if err != nil {
		return err
	}
	return s.SetPeers(peers)
}

func (l lateSpeaker) Peers() []bgp.PeerState {
	s, err := l.get()
	if err != nil {
		return nil
	}
	return s.Peers()
}

// Offers of a speaker that is not there are none, and that is the truth: no
// session is up. What a former life left in the kernel is adopted elsewhere.
func (l lateSpeaker) Offers() ([]routes.Offer, error) {
	s, err := l.get()
	if err != nil {
		return nil, nil //nolint:nilerr // SetPeers has told it
	}
	return s.Offers()
}

// lateWatcher watches a cluster; its credentials may be unusable at first.
type lateWatcher struct{ *late[*ingress.Watcher] }

func (l lateWatcher) Snapshot() (ingress.Snapshot, error) {
	w, err := l.get()
	if err != nil {
		return ingress.Snapshot{}, err
	}
	return w.Snapshot()
}

func (l lateWatcher) Health() ingress.Health {
	w, err := l.get()
	if err != nil {
		return ingress.Health{Error: err.Error()}
	}
	return w.Health()
}

func (l lateWatcher) Publish(served []ingress.ObjectRef, problems []ingress.Problem) {
	if w, err := l.get(); err == nil {
		w.Publish(served, problems)
	}
}
