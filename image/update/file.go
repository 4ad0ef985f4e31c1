package update

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// OpenRegular opens a regular file to read it. Somebody else may have written the
// volume: opening a FIFO would wait for ever, and a symbolic link leads elsewhere.
func OpenRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link; allowed: a regular file", filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Replace replaces a file in one step, and returns once the new file is on the disk. After a crash
// at any moment the file has either its old content or its new content. The new file is a regular one,
// also where a symbolic link was.
func Replace(path string, mode fs.FileMode, content string) error {
	scratch, err := os.CreateTemp(filepath.Dir(path), ".sallyport-*")
	if err != nil {
		return err
	}
	_, err = scratch.WriteString(content)
	err = errors.Join(err, scratch.Chmod(mode), scratch.Sync(), scratch.Close())
	if err == nil {
		err = os.Rename(scratch.Name(), path)
	}
	if err != nil {
		_ = os.Remove(scratch.Name())
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder writes a folder to its disk, so that a rename in it survives a crash.
func SyncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
