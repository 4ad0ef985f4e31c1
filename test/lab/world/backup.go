package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
)

// Backup copies etcd's data into a directory that does not exist yet. The control plane is down
// meanwhile.
func (l *Lab) Backup(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return fmt.Errorf("%s is there already", dir)
	}
	return l.withoutControlPlane(ctx, func() error { return os.CopyFS(dir, os.DirFS(l.path("etcd"))) })
}

// Restore replaces etcd's data by that of a Backup, with the revisions of that time. The lab's own
// clients, including the kubelets, list everything again, as after a restart.
func (l *Lab) Restore(ctx context.Context, dir string) error {
	return l.withoutControlPlane(ctx, func() error {
		if _, err := os.Stat(dir); err != nil {
			return err
		}
		if err := os.RemoveAll(l.path("etcd")); err != nil {
			return err
		}
		l.epoch.next()
		return os.CopyFS(l.path("etcd"), os.DirFS(dir))
	})
}

// RestartControlPlane kills etcd and the API server with all their connections, and starts them
// again. The new API server has none of the earlier watches.
func (l *Lab) RestartControlPlane(ctx context.Context) error {
	return l.withoutControlPlane(ctx, func() error { return nil })
}

// withoutControlPlane ends the control plane, calls a function, and starts the control plane
// again, also after an error.
func (l *Lab) withoutControlPlane(ctx context.Context, do func() error) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.opts.Bare {
		return errors.New("this lab has no control plane")
	}
	old := l.parts
	for _, p := range slices.Backward(old) { // etcd last
		if err := p.end(0); err != nil {
			return err
		}
	}
	failed := do()
	l.parts = nil
	for i, p := range old {
		if err := l.runPart(p.name, p.args...); err != nil {
			return errors.Join(failed, err)
		}
		if i == 1 { // the controllers would give up
			if err := l.awaitAPIServer(ctx); err != nil {
				return errors.Join(failed, err)
			}
		}
	}
	return failed
}

// epoch counts how often etcd was restored.
type epoch struct {
	mu    sync.Mutex
	now   int
	lists map[string]int // by resource, as its URL names it: value of now at the last list
}

func (e *epoch) next() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now++
}

// watcher returns a transport that answers 410 Gone to watches that continue a list of an earlier
// epoch. An API server would accept them, and send nothing until etcd's revisions have caught up.
func (e *epoch) watcher(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		q := r.URL.Query()
		what := r.URL.Path + "?" + q.Get("fieldSelector")
		if r.Method == http.MethodGet && e.stale(what, q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") {
			text := []byte(
				`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"etcd was restored","code":410}`)
			return &http.Response{
				Status: "410 Gone", StatusCode: http.StatusGone, Proto: r.Proto, ProtoMajor: r.ProtoMajor,
				ProtoMinor: r.ProtoMinor, Request: r,
				Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)),
				ContentLength: int64(len(text)),
			}, nil
		}
		return next.RoundTrip(r)
	})
}

// stale reports whether the last list of a resource is from an earlier epoch. With list, the
// request itself is a new list, and stale returns false.
func (e *epoch) stale(what string, list bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lists == nil {
		e.lists = map[string]int{}
	}
	if list {
		e.lists[what] = e.now
	}
	return e.lists[what] != e.now
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
