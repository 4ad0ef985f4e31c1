package ingress

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// followers watch the Secrets that keys name, each by its name: of what is not
// of type kubernetes.io/tls nothing else ever leaves the API server.
type followers struct {
	mu    sync.Mutex
	begin func(s *shelf[*corev1.Secret], key serviceKey) (stop func()) // nil until Run
	of    map[serviceKey]*follower

	// What the references were made of, and are.
	from  world
	names []serviceKey
}

type follower struct {
	shelf *shelf[*corev1.Secret]
	since time.Time
	stop  func()
}

// patience is how long a Secret that was just named is waited for. Others wait
// as long for what changed since.
const patience = 2 * time.Second

// settled reports whether it is known what there is of a Secret: it was read,
// or the API server has refused to tell, or it was waited for long enough.
// Before anything is known, at the start, an answer is waited for.
func (f *follower) settled(synced bool) bool {
	full, err := f.shelf.state()
	return full || f.shelf.barred() || synced && (err != nil && isAnswer(err) || time.Since(f.since) > patience)
}

// referred finds the Secrets that a snapshot refers to and does not have, adds
// them to it, and names those that are not known yet.
func (w *Watcher) referred(s *Snapshot, synced bool) (waiting []string) {
	f := &w.followers
	f.mu.Lock()
	defer f.mu.Unlock()
	now := world{
		options: s.Options.withDefaults(), noClasses: s.NoClasses, ingresses: s.Ingresses, classes: s.Classes,
		services: s.Services, secrets: s.Secrets, configMaps: s.ConfigMaps, namespaces: s.Namespaces,
	}
	if f.names == nil || !slices.Equal(now.ingresses, f.from.ingresses) || !slices.Equal(now.classes, f.from.classes) ||
		!slices.Equal(now.services, f.from.services) || !slices.Equal(now.secrets, f.from.secrets) || !slices.Equal(now.configMaps, f.from.configMaps) ||
		!slices.Equal(now.namespaces, f.from.namespaces) {
		f.names = slices.DeleteFunc(append([]serviceKey{}, now.references()...), func(key serviceKey) bool {
			_, has := find(now.secrets, key)
			return has
		})
		f.from = now
		w.follow(f.names)
	}
	if len(f.names) == 0 {
		return nil
	}
	s.Secrets = slices.Clone(s.Secrets)
	for _, key := range f.names {
		one := f.of[key]
		if one == nil {
			continue
		}
		if !one.settled(synced) {
			waiting = append(waiting, "Secret "+key.String())
		}
		s.Secrets = append(s.Secrets, one.shelf.list()...)
	}
	slices.SortFunc(s.Secrets, byName)
	return waiting
}

// follow watches those, and no others. They are in order; the caller holds the
// followers' lock.
func (w *Watcher) follow(names []serviceKey) {
	f := &w.followers
	if f.begin == nil {
		return
	}
	for key, one := range f.of {
		if _, named := slices.BinarySearchFunc(names, key, compareKeys); !named {
			one.stop()
			delete(f.of, key)
		}
	}
	for _, key := range names {
		if f.of[key] != nil {
			continue
		}
		one := &follower{since: time.Now(), shelf: newShelf(w, "", "secrets", byName, stripSecret)}
		one.stop = f.begin(one.shelf, key)
		f.of[key] = one
		time.AfterFunc(patience+time.Millisecond, w.tell)
	}
}

// mayNotFollow sees to it that no new watch begins.
func (w *Watcher) mayNotFollow() {
	w.followers.mu.Lock()
	defer w.followers.mu.Unlock()
	w.followers.begin = nil
}

// mayFollow lets followers watch until ctx ends.
func (w *Watcher) mayFollow(ctx context.Context, wg *sync.WaitGroup) {
	w.followers.mu.Lock()
	defer w.followers.mu.Unlock()
	w.followers.of = make(map[serviceKey]*follower)
	w.followers.names = nil
	w.followers.begin = func(s *shelf[*corev1.Secret], key serviceKey) func() {
		each, stop := context.WithCancel(ctx)
		if ctx.Err() == nil {
			start(each, wg, s, w.kube.CoreV1().Secrets(key.namespace), "metadata.name="+key.name)
		}
		return stop
	}
}
