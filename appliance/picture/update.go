package picture

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"sallyport/haproxy"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// An update is a line of the file beside a picture. It has the changes since the line before, or
// since the picture. A crash while a line is appended leaves a part of it, which the reader leaves
// out. The next process appends nothing there: it begins with a whole picture.
type update struct {
	Of         time.Time           `json:"of"` // when the picture was taken
	Taken      time.Time           `json:"taken"`
	Snapshot   input.Snapshot      `json:"snapshot"` // without the objects, and without the blocks of its Topology
	Changes    []input.Change      `json:"changes,omitempty"`
	Blocks     []*routes.IPAMBlock `json:"blocks,omitempty"`     // new ones, and new versions
	GoneBlocks []netip.Prefix      `json:"goneBlocks,omitempty"` // networks of blocks that are gone
}

func (p *Store) updatesPath(cluster string) string { return p.path(cluster) + ".updates" }

// append writes the changes since the last save. After an error the contents of the file are
// unknown.
func (p *Store) append(was *saved, s input.Snapshot) error {
	whole, err := os.Lstat(p.path(s.Cluster))
	if err != nil {
		return err
	}
	if !whole.Mode().IsRegular() || whole.Size() != was.whole {
		return errors.New("the picture is no longer the one that was saved")
	}
	u := update{Of: was.taken, Taken: time.Now(), Snapshot: s}
	u.Snapshot.Objects, u.Snapshot.Topology.Blocks = input.Objects{}, nil
	if u.Changes, err = s.Since(was.snapshot.Objects); err != nil {
		return err
	}
	u.Blocks, u.GoneBlocks = blocksSince(s.Topology.Blocks, was.snapshot.Topology.Blocks)
	line, err := json.Marshal(u)
	if err != nil {
		return err
	}
	if was.updates+int64(len(line)) >= int64(p.most) {
		return errors.New("the updates would be too large to be loaded")
	}
	flags := os.O_CREATE | os.O_APPEND | os.O_WRONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	f, err := os.OpenFile(p.updatesPath(s.Cluster), flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // synced before
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != was.updates {
		return errors.New("the updates are no longer those that were saved")
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if was.updates == 0 {
		if err := p.syncDir(); err != nil {
			return err
		}
	}
	was.snapshot, was.updates = s, was.updates+int64(len(line))+1
	return nil
}

// blocksSince returns the blocks that are new or changed since older, and the prefixes of those
// that are gone.
func blocksSince(newer, older []*routes.IPAMBlock) (changed []*routes.IPAMBlock, gone []netip.Prefix) {
	had, has := make(map[*routes.IPAMBlock]bool, len(older)), make(map[netip.Prefix]bool, len(newer))
	for _, b := range older {
		had[b] = true
	}
	for _, b := range newer {
		has[b.Prefix] = true
		if !had[b] {
			changed = append(changed, b)
		}
	}
	for _, b := range older {
		if !has[b.Prefix] {
			gone = append(gone, b.Prefix)
		}
	}
	return changed, gone
}

// update brings a picture up to date by its updates. It leaves out an incomplete line and all lines
// after it.
func (p *Store) update(pic *Picture) {
	f, err := haproxy.OpenRegular(p.updatesPath(pic.Snapshot.Cluster), int64(p.most))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			p.log.Warn("the newest changes to the last good picture cannot be read", "cluster", pic.Snapshot.Cluster,
				"err", err)
		}
		return
	}
	defer f.Close() //nolint:errcheck // only read
	if err := replay(bufio.NewReader(f), pic); err != nil {
		p.log.Warn("the newest changes to the last good picture cannot be read", "cluster", pic.Snapshot.Cluster, "err",
			err)
	}
}

// replay takes updates until an update belongs to another picture or cannot be read.
func replay(from io.Reader, pic *Picture) error {
	of, d := pic.Taken, json.NewDecoder(from)
	for {
		var u update
		err := d.Decode(&u)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !u.Of.Equal(of) || u.Snapshot.Cluster != pic.Snapshot.Cluster {
			return nil // of the picture before: a crash came between
		}
		next := u.Snapshot
		next.Objects = pic.Snapshot.Objects
		if err := next.Take(u.Changes); err != nil {
			return err
		}
		changed := slices.Clone(u.GoneBlocks)
		for _, b := range u.Blocks {
			if b == nil {
				return errors.New("a block is null")
			}
			changed = append(changed, b.Prefix)
		}
		kept := slices.DeleteFunc(slices.Clone(pic.Snapshot.Topology.Blocks), func(b *routes.IPAMBlock) bool {
			return slices.Contains(changed, b.Prefix)
		})
		next.Topology.Blocks = slices.Concat(kept, u.Blocks)
		slices.SortStableFunc(next.Topology.Blocks, func(a, b *routes.IPAMBlock) int {
			return a.Prefix.Compare(b.Prefix)
		})
		pic.Snapshot, pic.Taken = next, u.Taken
	}
}
