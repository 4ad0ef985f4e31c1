package appliance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"sallyport/ingress"
)

// pictures keeps the last good snapshot of each cluster on disk, so that a
// start without the API serves what was served before. A picture holds the
// certificates' keys: its file is 0600.
//
// Saving is off the loop's path and at most once in pictureInterval: what a
// crash loses is the last seconds of changes, and the API tells them again; only
// if it is away at the next start are they missed.
type pictures struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	pending map[string]ingress.Snapshot
	kept    map[string]ingress.Snapshot // the last one noted, by cluster
	wake    chan struct{}
}

const (
	pictureVersion  = 1
	pictureInterval = 5 * time.Second
)

// picture is the file's content.
type picture struct {
	Version  int              `json:"version"`
	Taken    time.Time        `json:"taken"`
	Snapshot ingress.Snapshot `json:"snapshot"`
}

func newPictures(dir string, log *slog.Logger) *pictures {
	return &pictures{
		dir: dir, log: log,
		pending: map[string]ingress.Snapshot{}, kept: map[string]ingress.Snapshot{},
		wake: make(chan struct{}, 1),
	}
}

func (p *pictures) path(cluster string) string {
	return filepath.Join(p.dir, "picture-"+cluster+".json")
}

// keep notes a snapshot to be saved soon. It never blocks.
func (p *pictures) keep(s ingress.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if same(p.kept[s.Cluster], s) {
		return
	}
	p.kept[s.Cluster] = s
	p.pending[s.Cluster] = s
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run saves until ctx ends, and then what is still pending.
func (p *pictures) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			p.save()
			return
		case <-p.wake:
			p.save()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pictureInterval):
		}
	}
}

func (p *pictures) save() {
	p.mu.Lock()
	pending := p.pending
	p.pending = map[string]ingress.Snapshot{}
	p.mu.Unlock()
	for cluster, s := range pending {
		if err := p.write(s); err != nil {
			p.log.Error("the last good picture could not be saved; a start without the API would use an older one", "cluster", cluster, "err", err)
			p.mu.Lock()
			delete(p.kept, cluster) // so that it is noted again
			p.mu.Unlock()
		}
	}
}

// same says whether two snapshots hold the same objects. Objects are never
// changed in place, so their pointers tell.
func same(a, b ingress.Snapshot) bool {
	return slices.Equal(a.Ingresses, b.Ingresses) && slices.Equal(a.Classes, b.Classes) &&
		slices.Equal(a.Services, b.Services) && slices.Equal(a.Slices, b.Slices) && slices.Equal(a.Secrets, b.Secrets) &&
		reflect.DeepEqual(a.Topology, b.Topology)
}

// write replaces the file in one step, so that a crash leaves the old picture
// or the new one.
func (p *pictures) write(s ingress.Snapshot) error {
	data, err := json.Marshal(picture{pictureVersion, time.Now(), s})
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(p.dir, ".picture-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // nothing there after the rename
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), p.path(s.Cluster)); err != nil {
		return err
	}
	dir, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// load returns the last good picture of a cluster. A picture that cannot be
// used is set aside under another name, with a reason; none at all is
// fs.ErrNotExist.
func (p *pictures) load(cluster string) (ingress.Snapshot, time.Time, error) {
	data, err := os.ReadFile(p.path(cluster))
	if err != nil {
		return ingress.Snapshot{}, time.Time{}, err
	}
	var pic picture
	err = json.Unmarshal(data, &pic)
	switch {
	case err == nil && pic.Version != pictureVersion:
		err = fmt.Errorf("it has version %d, this program knows %d", pic.Version, pictureVersion)
	case err == nil && pic.Snapshot.Cluster != cluster:
		err = fmt.Errorf("it is of cluster %q", pic.Snapshot.Cluster)
	case err == nil:
		return pic.Snapshot, pic.Taken, nil
	}
	aside := p.path(cluster) + ".bad"
	if moveErr := os.Rename(p.path(cluster), aside); moveErr != nil && !errors.Is(moveErr, fs.ErrNotExist) {
		return ingress.Snapshot{}, time.Time{}, errors.Join(err, moveErr)
	}
	return ingress.Snapshot{}, time.Time{}, fmt.Errorf("the picture cannot be used and was set aside as %s: %w", aside, err)
}
