package image

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/appliance/config"
	"sallyport/image/update"
)

// maxFile bounds the size of the one file.
const maxFile = config.MaxSize

// found is the file and its source.
type found struct {
	source string // with the device, for the operator
	way    string // without: a stick may get another device when it is plugged in again
	data   []byte
}

// mark returns a digest of the file and its source.
func (f found) mark() string {
	sum := sha256.Sum256(append([]byte(f.way+"\x00"), f.data...))
	return hex.EncodeToString(sum[:])
}

// A source is a place outside the volumes that may hold the file of this machine. Its read returns
// [fs.ErrNotExist] if the source has no file.
type source struct {
	name string
	read func(ctx context.Context, m Machine) ([]byte, error)
}

// sources lists the sources in order. They come before all volumes, for a disk may be
// a copy of another machine's.
var sources = []source{
	{"a systemd credential (sallyport.yaml)", func(_ context.Context, m Machine) ([]byte, error) {
		return readRegular(m.path("/run/credentials/@system/sallyport.yaml"), maxFile)
	}},
	{"VMware guestinfo (guestinfo.sallyport.yaml)", readGuestinfo},
}

// find returns the file of the first source or volume that has a file. It also returns a notice for
// each that cannot be read. With a reason in closed it reads no volume but the boot disk's.
//
// Nobody must take over the machine by plugging in a stick. A foreign volume therefore counts only
// if the boot disk surely has no file: an unreadable boot disk may have a file.
func (m Machine) find(ctx context.Context, closed string) (file *found, notices []string) {
	for _, s := range sources {
		data, err := s.read(ctx, m)
		switch {
		case err == nil:
			return &found{s.name, s.name, data}, notices
		case !errors.Is(err, fs.ErrNotExist):
			notices = append(notices, fmt.Sprintf("%s cannot be read: %v", s.name, err))
		}
	}
	volumes, err := m.volumes(ctx)
	if err != nil {
		return nil, append(notices,
			fmt.Sprintf("no volume is searched for the one file, since the volumes cannot be listed: %v", err))
	}
	for _, v := range volumes {
		if closed != "" && !v.boot {
			// Platforms make a seed for every guest: ignoring one needs no notice.
			if v.label == configLabel {
				notices = append(notices, fmt.Sprintf("%s is not read: %s", v, closed))
			}
			continue
		}
		if file != nil {
			continue
		}
		data, err := m.readVolume(v)
		switch {
		case err == nil:
			file = &found{v.String(), v.way(), data}
			if v.boot {
				closed = cmp.Or(closed, "the boot disk has a file")
			}
		case !errors.Is(err, fs.ErrNotExist):
			notices = append(notices, fmt.Sprintf("%s cannot be read: %v", v, err))
			if v.boot {
				closed = cmp.Or(closed, "the boot disk may have a file")
			}
		}
	}
	return file, notices
}

// configLabel is the label of the volume for the one file.
const configLabel = "CONFIG"

// kinds lists the file systems that a volume may have, by its label.
var kinds = map[string][]string{
	configLabel: {"vfat"},
	"CIDATA":    {"iso9660", "vfat"},
	"cidata":    {"iso9660", "vfat"},
}

// A volume is a file system that may have the file, by its label.
type volume struct {
	device string
	label  string
	kind   string
	boot   bool // CONFIG on the disk that started the machine
}

// bootEnd ends the name of the boot disk's volume, and of no other volume.
const bootEnd = ", boot disk)"

func (v volume) way() string {
	if v.boot {
		return "(" + v.label + bootEnd
	}
	return "(" + v.label + ")"
}

func (v volume) String() string { return v.device + " " + v.way() }

// names returns the names that the file may have on the volume. The first that exists
// counts.
func (v volume) names() []string {
	if v.label == configLabel {
		return []string{"sallyport.yaml"}
	}
	return []string{"sallyport.yaml", "user-data"}
}

// volumes lists the volumes: first the boot disk's, then others labelled CONFIG, then
// seeds. A platform makes a seed for every guest, with user-data of its own.
func (m Machine) volumes(ctx context.Context) (all []volume, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// /dev/disk/by-label has one link for several volumes of the same label.
	out, err := exec.CommandContext(ctx, m.path("/usr/bin/lsblk"), "--json", "--list", "--paths", "--output",
		"NAME,PKNAME,FSTYPE,LABEL").Output()
	if err != nil {
		return nil, fmt.Errorf("lsblk: %w", err)
	}
	var list struct {
		BlockDevices []struct{ Name, PKName, FSType, Label string }
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("lsblk: %w", err)
	}
	// A CD or the network may have started the machine: then all volumes are foreign.
	disk, _ := os.Readlink(m.path(diskLink))
	for _, d := range list.BlockDevices {
		if slices.Contains(kinds[d.Label], d.FSType) {
			boot := d.Label == configLabel && disk != "" && d.PKName == disk
			all = append(all, volume{device: d.Name, label: d.Label, kind: d.FSType, boot: boot})
		}
	}
	rank := func(v volume) int {
		return slices.Index([]string{"(" + configLabel + bootEnd, "(" + configLabel + ")", "(CIDATA)", "(cidata)"},
			v.way())
	}
	slices.SortStableFunc(all, func(a, b volume) int { return cmp.Compare(rank(a), rank(b)) })
	return all, nil
}

// readVolume returns the content of the file on a volume.
func (m Machine) readVolume(v volume) ([]byte, error) {
	dir, err := os.MkdirTemp(m.path("/run"), "sallyport-volume-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(dir) //nolint:errcheck // an empty folder in memory
	if err := m.mount(m.path(v.device), dir, v.kind); err != nil {
		return nil, err
	}
	defer unix.Unmount(dir, unix.MNT_DETACH) //nolint:errcheck // nothing was written
	for _, name := range v.names() {
		data, err := readRegular(filepath.Join(dir, name), maxFile)
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fs.ErrNotExist
}

// readRegular returns the content of a regular file that another program may have written. A file
// of more than most bytes is an error.
func readRegular(path string, most int) ([]byte, error) {
	f, err := update.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return readAll(f, most)
}

func readAll(r io.Reader, most int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(data) > most {
		err = fmt.Errorf("is larger than %d bytes", most)
	}
	return data, err
}

// readGuestinfo asks VMware's hypervisor for the file. On other hypervisors there is no file.
func readGuestinfo(ctx context.Context, m Machine) ([]byte, error) {
	vendor, err := os.ReadFile(m.path("/sys/class/dmi/id/sys_vendor"))
	if err != nil || !strings.HasPrefix(string(vendor), "VMware") {
		return nil, fs.ErrNotExist // without VMware the program fails
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

// unpack decodes base64, and gzip inside it. Other text it returns as it is: a file
// of ours has a colon, and so is no base64.
func unpack(text []byte) ([]byte, error) {
	plain, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		return text, nil //nolint:nilerr // it is plain text
	}
	if !bytes.HasPrefix(plain, []byte{0x1f, 0x8b}) {
		return plain, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(plain))
	if err != nil {
		return nil, err
	}
	return readAll(z, maxFile)
}
