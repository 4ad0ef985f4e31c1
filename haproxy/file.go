package haproxy

import (
	"fmt"
	"io"
	"os"
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
