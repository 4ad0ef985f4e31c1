package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/appliance/config"
)

// maxFile bounds what is read as the one file.
const maxFile = config.MaxSize

// found is the file as a source had it.
type found struct {
	source string
	data   []byte
}

// mark tells this found from another.
func (f found) mark() string {
	sum := sha256.Sum256(append([]byte(f.source+"\x00"), f.data...))
	return hex.EncodeToString(sum[:])
}

// A source is one way for the file to arrive. Its read returns [fs.ErrNotExist]
// when it has none.
type source struct {
	name string
	read func(ctx context.Context, m Machine) ([]byte, error)
}

// sources are the ways the file arrives. The first that has one wins.
//
// What is given to this one machine from outside comes before what is on a disk,
// for a disk may be a copy of another machine's. The partition comes before the
// seed: what is on it is for nobody else, while a platform makes a seed for
// every guest, with user-data of its own.
var sources = []source{
	{"a systemd credential (sallyport.yaml)", func(_ context.Context, m Machine) ([]byte, error) {
		return readBounded(m.path("/run/credentials/@system/sallyport.yaml"))
	}},
	{"VMware guestinfo (guestinfo.sallyport.yaml)", readGuestinfo},
	{"the partition CONFIG (sallyport.yaml)", func(_ context.Context, m Machine) ([]byte, error) {
		return m.readVolume([]string{"CONFIG"}, []string{"vfat"}, []string{"sallyport.yaml"})
	}},
	{"a NoCloud seed (CIDATA)", func(_ context.Context, m Machine) ([]byte, error) {
		return m.readVolume([]string{"CIDATA", "cidata"}, []string{"iso9660", "vfat"}, []string{"sallyport.yaml", "user-data"})
	}},
}

// find asks the sources in order. A source that cannot be read is a notice, and
// not the end of the search.
func (m Machine) find(ctx context.Context) (file *found, notices []string) {
	for _, s := range sources {
		data, err := s.read(ctx, m)
		switch {
		case err == nil:
			return &found{s.name, data}, notices
		case !errors.Is(err, fs.ErrNotExist):
			notices = append(notices, fmt.Sprintf("%s cannot be read: %v", s.name, err))
		}
	}
	return nil, notices
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return readAll(f)
}

func readAll(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("is larger than %d bytes", maxFile)
	}
	return data, err
}

// readVolume reads a file of the file system with one of these labels: the first
// of the names that it has.
func (m Machine) readVolume(labels, kinds, names []string) ([]byte, error) {
	device := ""
	for _, label := range labels {
		path := m.path("/dev/disk/by-label/" + label)
		if _, err := os.Stat(path); err == nil {
			device = path
			break
		}
	}
	if device == "" {
		return nil, fs.ErrNotExist
	}
	dir, err := os.MkdirTemp(m.path("/run"), "sallyport-volume-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir) //nolint:errcheck // an empty folder in memory
	if err := m.mount(device, dir, kinds); err != nil {
		return nil, err
	}
	defer unix.Unmount(dir, unix.MNT_DETACH) //nolint:errcheck // nothing was written
	for _, name := range names {
		data, err := readBounded(filepath.Join(dir, name))
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fs.ErrNotExist
}

// readGuestinfo asks VMware's hypervisor, where there is one.
func readGuestinfo(ctx context.Context, m Machine) ([]byte, error) {
	vendor, err := os.ReadFile(m.path("/sys/class/dmi/id/sys_vendor"))
	if err != nil || !strings.HasPrefix(string(vendor), "VMware") {
		return nil, fs.ErrNotExist // elsewhere the question alone would be an error
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.path("/usr/bin/vmware-rpctool"), "info-get guestinfo.sallyport.yaml")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) || strings.TrimSpace(string(out)) == "" {
		return nil, fs.ErrNotExist // "No value found" is an exit code of 1
	}
	if err != nil {
		return nil, err
	}
	return unpack(out)
}

// unpack takes text as it is, in base64, or in base64 of gzip. No file of ours is
// base64: it has a colon.
func unpack(text []byte) ([]byte, error) {
	plain, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		return text, nil //nolint:nilerr // it is as it is
	}
	if !bytes.HasPrefix(plain, []byte{0x1f, 0x8b}) {
		return plain, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(plain))
	if err != nil {
		return nil, err
	}
	return readAll(z)
}
