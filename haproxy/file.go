package haproxy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// OpenRegular opens a file to read it, if it is a regular one of at most that many bytes. On a
// partition that somebody else may write to, the name may stand for a device, a link to another
// file, or a pipe that makes its reader wait for ever. OpenRegular never waits.
func OpenRegular(path string, most int64) (*os.File, error) {
	found, err := os.Lstat(path) // opening a device may do something
	if err != nil {
		return nil, err
	}
	if err := regular(path, found, most); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // the caller's own path
	if err != nil {
		return nil, err
	}
	if found, err = f.Stat(); err == nil {
		err = regular(path, found, most)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func regular(path string, found os.FileInfo, most int64) error {
	switch mode := found.Mode(); {
	case mode.IsDir():
		return fmt.Errorf("%s is a directory, want a regular file", path)
	case mode&os.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link, want a regular file", path)
	case mode&os.ModeNamedPipe != 0:
		return fmt.Errorf("%s is a named pipe, want a regular file", path)
	case !mode.IsRegular():
		return fmt.Errorf("%s is a device or a socket, want a regular file", path)
	case found.Size() > most:
		return fmt.Errorf("%s has %d bytes; at most %d are allowed", path, found.Size(), most)
	}
	return nil
}

// readRegular reads a file that OpenRegular opens.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := OpenRegular(path, most)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return io.ReadAll(io.LimitReader(f, most))
}

// Replace replaces a file in one step, and returns once the new file is on the disk. After a crash
// at any moment the file has either its old content or its new content. The new file is a regular one,
// also where a symbolic link was. At most one process may replace a file at a time.
func Replace(path string, mode fs.FileMode, content func(io.Writer) error) error {
	if err := replace(path, mode, content); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(path)) //nolint:gosec // the caller's own path
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// replace replaces a file as Replace does. After a crash of the machine the old file may come back.
func replace(path string, mode fs.FileMode, content func(io.Writer) error) error {
	// A process that was killed leaves its scratch file. The next one has the same name for it.
	scratch := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	err := os.Remove(scratch) //nolint:gosec // the caller's own path
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(scratch, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the caller's own path
	if err != nil {
		return err
	}
	err = content(f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(scratch, path) //nolint:gosec // the caller's own path
	}
	if err != nil {
		_ = os.Remove(scratch) //nolint:gosec // the caller's own path
	}
	return err
}
