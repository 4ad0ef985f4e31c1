package picture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"sallyport/haproxy"
	"sallyport/ingress"
	"sallyport/ingress/input"
)

// A Store holds the pictures of all clusters. Run saves a change after Interval at the earliest, so
// that a change that causes a crash is not saved.
//
// Changes since the last whole picture are appended to a second file (see update). Once that file
// is as large as the picture, a whole picture replaces both.
//
// Keep, Forget, Fault and LeftOut are safe beside Run. Load is called before the first Keep
// of its cluster.
type Store struct {
	dir  string
	log  *slog.Logger
	most int // the largest size of a picture in bytes, when it is loaded or saved

	mu      sync.Mutex
	pending map[string]unsaved
	kept    map[string]unsaved           // noted last, by cluster
	left    map[string][]ingress.Problem // the namespaces that the last picture leaves out, by cluster
	failing map[string]error             // why the last attempt to save failed, by cluster
	wake    chan struct{}

	saved map[string]*saved      // by cluster; owned by Save
	sizes map[string]map[any]int // bytes of the objects that were measured last, by cluster; owned by Save
}

// unsaved is a snapshot to be saved, with the Result that served it.
type unsaved struct {
	input.Snapshot
	by ingress.Result
}

// saved holds the last snapshot of a cluster that this process has written, and the size of its
// files.
type saved struct {
	snapshot input.Snapshot
	taken    time.Time // of the whole picture
	whole    int64     // bytes of the whole picture
	updates  int64     // bytes of the updates
}

const (
	// Interval is the shortest time between a change and its saving.
	Interval = 5 * time.Second
	// version is the version of the format.
	version = 5
	// largest bounds the bytes of a picture. A picture of 10,000 Services has 60 MB.
	largest = 256 << 20
	// updatesLeast is the size that the updates may reach in any case, in bytes.
	updatesLeast = 1 << 20
)

// A Picture holds the objects of a cluster as they were once served. The first line of the file has
// the Picture without its objects. Every object follows on a line of its own, in the order of
// input.Objects.All, as many as Counts says.
type Picture struct {
	Version  int            `json:"version"`
	Taken    time.Time      `json:"taken"`
	Snapshot input.Snapshot `json:"snapshot"` // without the objects
	Counts   []int          `json:"counts"`
}

// New returns a Store with its files in a folder.
func New(dir string, log *slog.Logger) *Store {
	return &Store{
		dir: dir, log: log, most: largest,
		pending: map[string]unsaved{}, kept: map[string]unsaved{},
		left: map[string][]ingress.Problem{}, failing: map[string]error{},
		wake: make(chan struct{}, 1), saved: map[string]*saved{}, sizes: map[string]map[any]int{},
	}
}

// Dir returns the folder of the pictures.
func (p *Store) Dir() string { return p.dir }

func (p *Store) path(cluster string) string {
	return filepath.Join(p.dir, "picture-"+cluster+".json")
}

// Keep notes a snapshot to be saved soon, and the Result that served it. It never blocks.
func (p *Store) Keep(s input.Snapshot, by ingress.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.kept[s.Cluster]
	if same(last.Snapshot, s) && by.LeadsAs(last.by, s.Cluster) {
		return
	}
	p.kept[s.Cluster] = unsaved{s, by}
	p.pending[s.Cluster] = unsaved{s, by}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Forget drops the snapshot and the errors of a cluster from memory. The file of the
// cluster stays.
func (p *Store) Forget(cluster string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, cluster)
	delete(p.kept, cluster)
	delete(p.failing, cluster)
	delete(p.left, cluster)
}

// Run saves changes until ctx ends, and then the pending rest.
func (p *Store) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			p.Save()
			return
		case <-p.wake:
		}
		// This keeps a change that crashes the process at once out of the picture.
		select {
		case <-ctx.Done():
		case <-time.After(Interval):
		}
		p.Save()
	}
}

// Save saves all pending changes at once.
func (p *Store) Save() {
	p.mu.Lock()
	pending := p.pending
	p.pending = map[string]unsaved{}
	p.mu.Unlock()
	for cluster, s := range pending {
		p.outcome(cluster, p.write(s.Snapshot, s.by))
	}
}

// outcome records the result of an attempt to save, and logs each failure once.
func (p *Store) outcome(cluster string, err error) {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err // without the file's name, which differs each time
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.failing[cluster]
	switch {
	case err != nil:
		delete(p.kept, cluster) // so that Keep notes the snapshot again
		p.failing[cluster] = err
		if was == nil || was.Error() != err.Error() {
			p.log.Error("the last good picture cannot be saved; a start without the API uses an older one",
				"cluster", cluster, "err", err)
		}
	case was != nil:
		delete(p.failing, cluster)
		p.log.Info("the last good picture is saved again", "cluster", cluster)
	}
}

// Fault returns why the last good picture of a cluster could not be saved, or nil if it was saved.
func (p *Store) Fault(cluster string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failing[cluster]
}

// same reports whether two snapshots hold the same objects. Objects are never changed
// in place, so comparing pointers is enough.
func same(a, b input.Snapshot) bool {
	return a.Same(b.Objects) && a.Owners == b.Owners && reflect.DeepEqual(a.Topology, b.Topology)
}

// encode writes a picture that is taken now.
func (p *Store) encode(to io.Writer, s input.Snapshot) (taken time.Time, err error) {
	head := Picture{Version: version, Taken: time.Now()}
	lists := s.All()
	for _, objects := range lists {
		head.Counts = append(head.Counts, len(objects))
	}
	s.Objects = input.Objects{}
	head.Snapshot = s
	e := json.NewEncoder(to)
	if err := e.Encode(head); err != nil {
		return head.Taken, err
	}
	for _, objects := range lists {
		for _, o := range objects {
			if err := e.Encode(o); err != nil {
				return head.Taken, err
			}
		}
	}
	return head.Taken, nil
}

// decode reads a picture that encode wrote, to its end.
func decode(from io.Reader) (Picture, error) {
	var pic Picture
	d := json.NewDecoder(from)
	if err := d.Decode(&pic); err != nil {
		return pic, err
	}
	if pic.Version != version {
		return pic, fmt.Errorf("the picture has version %d, and this program reads version %d", pic.Version, version)
	}
	err := pic.Snapshot.Read(pic.Counts, d)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the end of the picture is missing")
	}
	if err != nil {
		return pic, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return pic, errors.New("the picture has more objects than it counts")
	}
	return pic, nil
}

// write saves the objects of a snapshot that something served refers to, as far as they fit. It
// appends an update if that is shorter than a whole picture.
func (p *Store) write(s input.Snapshot, by ingress.Result) error {
	if served, known := by.Services(s.Cluster); known {
		s.Objects = s.Referred(served)
	}
	if p.sizes[s.Cluster] == nil {
		p.sizes[s.Cluster] = map[any]int{}
	}
	s, left, err := bound(s, p.most, p.sizes[s.Cluster])
	if err != nil {
		return err
	}
	p.noteLeft(s.Cluster, left)
	if was := p.saved[s.Cluster]; was != nil && was.updates < max(was.whole, updatesLeast) && p.append(was, s) == nil {
		return nil
	}
	// After an update that failed, the end of its file is unknown.
	delete(p.saved, s.Cluster)
	return p.replace(s)
}

// replace replaces the file in one step, so that after a crash the file has either the old picture
// or the new picture. Updates of the old picture do not apply to the new picture.
func (p *Store) replace(s input.Snapshot) error {
	var taken time.Time
	to := &bounded{most: p.most, rest: p.most}
	err := haproxy.Replace(p.path(s.Cluster), 0o600, func(file io.Writer) (err error) {
		to.Writer = file
		buffer := bufio.NewWriterSize(to, 64<<10)
		taken, err = p.encode(buffer, s)
		return errors.Join(err, buffer.Flush())
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(p.updatesPath(s.Cluster)); err != nil {
		return err
	}
	p.saved[s.Cluster] = &saved{snapshot: s, taken: taken, whole: int64(to.most - to.rest)}
	return nil
}

// bounded is a file of limited size, so that a picture that is too large to be loaded never
// replaces a good picture.
type bounded struct {
	io.Writer
	most, rest int
}

func (b *bounded) Write(text []byte) (int, error) {
	if b.rest -= len(text); b.rest < 0 {
		return 0, fmt.Errorf("the picture would have more than %d bytes, and could not be loaded", b.most)
	}
	return b.Writer.Write(text)
}

func (p *Store) syncDir() error {
	dir, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Load returns the last good picture of a cluster. It renames a picture that cannot be
// used, and the error says why and to what name. If there is no picture, the error is
// fs.ErrNotExist.
func (p *Store) Load(cluster string) (Picture, error) {
	var pic Picture
	f, err := haproxy.OpenRegular(p.path(cluster), int64(p.most))
	if errors.Is(err, fs.ErrNotExist) {
		return pic, err
	}
	if err == nil {
		defer f.Close() //nolint:errcheck // only read
		pic, err = decode(bufio.NewReader(f))
	}
	if err == nil && pic.Snapshot.Cluster != cluster {
		err = fmt.Errorf("the picture is of cluster %q", pic.Snapshot.Cluster)
	}
	if err == nil {
		p.update(&pic)
		return pic, nil
	}
	aside := p.path(cluster) + ".bad"
	if rmErr := os.RemoveAll(aside); rmErr != nil {
		return Picture{}, errors.Join(err, rmErr)
	}
	if moveErr := os.Rename(p.path(cluster), aside); moveErr != nil && !errors.Is(moveErr, fs.ErrNotExist) {
		return Picture{}, errors.Join(err, moveErr)
	}
	return Picture{}, fmt.Errorf("the picture cannot be used, and was renamed to %s: %w", aside, err)
}
