// Package update replaces the version that runs on the bootable image. It is the boundary of trust
// in what a server or a stick offers as a version.
//
// It owns the files of versions on the EFI system partition. It alone knows their names, the keys
// and the manifests. It promises that a key in this image has vouched for the digest of a file
// before the file gets a name that the boot loader starts. It promises that the version that runs
// stays, and that no version is removed until the version that runs has been ready.
//
// In a group it alone decides which member's turn it is.
//
// Its limit: it does not decide when a version is ready. A unit of the image waits for that, and
// calls Bless. systemd-boot counts the starts, and goes back.
package update

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine runs one version and holds other versions. The zero Machine is the machine that this
// process runs on.
type Machine struct {
	// Root is put before every path. If it is empty, paths are the machine's own.
	Root string
	// Systemctl runs systemctl with this verb. If it is nil, systemctl(1) runs.
	Systemctl func(ctx context.Context, verb string) error
	// Kexec loads a kernel. The machine then starts it in place of the kernel that runs. If Kexec
	// is nil, kexec_file_load(2) does.
	Kexec func(kernel, initrd *os.File, cmdline string) error
}

// Package image writes these files from the machine's one file.
const (
	// URLFile has system.update.url. Without an address there is no file.
	URLFile = "/run/sallyport-image/update-url"
	// NoKexecFile exists if system.update.kexec is false.
	NoKexecFile = "/run/sallyport-image/no-kexec"
	// StaggerFile has system.update.stagger. Without a group there is no file.
	StaggerFile = "/run/sallyport-image/update-stagger"
)

// WaitFile is the path of a file with the reason why an update waits. It is there only while an update
// waits. Package image shows it.
const WaitFile = "/run/sallyport-image/update-waits"

const (
	versionsDir = "/efi/EFI/Linux"
	systemFile  = "/usr/lib/os-release"
	keyFile     = "/usr/lib/sallyport/update.pem"
	lockFile    = "/run/sallyport-image/update.lock"
	stateDir    = "/var/lib/sallyport"
	halfFile    = "sallyport.part" // systemd-boot starts no file of this name
)

// tries is how often a new version may start before it has been ready.
const tries = 3

// freshName returns the file name of a version that has not started yet.
func freshName(version string) string { return fmt.Sprintf("sallyport_%s+%d.efi", version, tries) }

// backName returns the file name of a version that a downgrade replaced.
func backName(version string) string { return "sallyport_" + version + "+0.efi" }

// A Request names the version to install.
type Request struct {
	// From is a file, its URL, or the URL of a folder with a file "latest" that names it. The
	// manifest has the file's name with .manifest after it, the manifest's signature .manifest.sig.
	// If From is empty, system.update.url applies.
	From string
	// Newer installs a version only if it is newer than the running version, and has not failed on
	// this machine.
	Newer bool
	// Older allows a version that is older than the running version.
	Older bool
	// Members returns the name of this machine in its group, and the other members. It is
	// called with Newer, if there is a group.
	Members func(ctx context.Context) (self string, others []Member, err error)
	// Say is called with each line of progress.
	Say func(string)
}

// A Result is the outcome of Install.
type Result struct {
	Running   string   `json:"running"`
	Installed string   `json:"installed,omitempty"` // the version that starts next; "" if nothing was installed
	Why       string   `json:"why,omitempty"`       // why nothing was installed
	Removed   []string `json:"removed,omitempty"`   // versions that were removed
}

// Install puts another version beside the running version, for the next start. It reads the signed
// manifest first: without a valid signature it fetches nothing, and removes nothing. The boot
// loader does not start the file by its first name; Install renames the file when it matches the
// manifest. If the version does not get ready, systemd-boot returns to the version that runs now.
func (m Machine) Install(ctx context.Context, r Request) (Result, error) {
	var done Result
	unlock, err := m.lock()
	if err != nil {
		return done, err
	}
	defer unlock()
	keys, err := m.keys()
	if err != nil {
		return done, err
	}
	if done.Running, err = m.running(); err != nil {
		return done, err
	}
	have, err := m.releases()
	if err != nil {
		return done, err
	}
	if r.From == "" {
		if r.From, err = m.url(); err != nil {
			return done, err
		}
	}
	from, err := locate(ctx, r.From)
	if err != nil {
		return done, err
	}
	to, ok := parseRelease(from.name)
	if !ok || to.left >= 0 {
		return done, fmt.Errorf("%q is not the name of a version; allowed: sallyport_VERSION.efi", from.name)
	}
	order := compareVersions(to.version, done.Running)
	switch {
	case order == 0:
		done.Why = to.version + " is running already"
	case order < 0 && r.Newer:
		done.Why = to.version + " is older than " + done.Running + ", which is running"
	case order < 0 && !r.Older:
		return done, fmt.Errorf("%s is older than %s, which is running; give --allow-downgrade to install it",
			to.version, done.Running)
	case r.Newer && failed(have, to.version):
		done.Why = to.version + " was tried, and did not get ready"
	default:
		why, err := m.waits(ctx, r, to.version)
		if err != nil {
			return done, err
		}
		if why != "" {
			done.Why = fmt.Sprintf("version %s waits: %s", to.version, why)
			return done, m.tell(done.Why)
		}
	}
	if err := m.tell(""); err != nil {
		return done, err
	}
	if done.Why != "" {
		return done, nil
	}

	want, err := from.manifest(ctx, keys, to.version)
	if err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	half := m.path(versionsDir + "/" + halfFile)
	_ = os.Remove(half)   // an interrupted update left it
	defer os.Remove(half) //nolint:errcheck // gone, if all went well
	room := func() error { return m.room(want, have, &done) }
	if err := from.fetch(ctx, want, half, room, r.Say); err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	if err := check(half, want); err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	if err := m.place(half, to.version, &done); err != nil {
		return done, err
	}
	if order < 0 {
		err = m.stepBack(done.Running)
	}
	done.Installed = to.version
	return done, err
}

func (m Machine) path(name string) string { return filepath.Join(m.Root, name) }

func (m Machine) systemctl(ctx context.Context, verb string) error {
	if m.Systemctl != nil {
		return m.Systemctl(ctx, verb)
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "--no-block", verb).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", verb, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (m Machine) lock() (unlock func(), err error) {
	path := m.path(lockFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // systemd's own services read there
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another update is in progress: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// keys returns the keys of updates, which are part of the image.
func (m Machine) keys() (keys []ed25519.PublicKey, err error) {
	text, err := os.ReadFile(m.path(keyFile))
	if err != nil {
		return nil, fmt.Errorf("this machine has no key of updates: %w", err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyFile, err)
		}
		edwards, ok := key.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("%s: a key is not Ed25519", keyFile)
		}
		keys = append(keys, edwards)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key", keyFile)
	}
	return keys, nil
}

// running returns the version that this machine started.
func (m Machine) running() (string, error) {
	text, err := os.ReadFile(m.path(systemFile))
	if err != nil {
		return "", err
	}
	version := field(string(text), "IMAGE_VERSION")
	if version == "" {
		return "", fmt.Errorf("%s has no IMAGE_VERSION: this is not the bootable image", systemFile)
	}
	return version, nil
}

// field returns the value of a key of an os-release file.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}

// url returns system.update.url.
func (m Machine) url() (string, error) {
	text, err := os.ReadFile(m.path(URLFile))
	if err != nil {
		return "", errors.New("system.update.url is not set")
	}
	return strings.TrimSpace(string(text)), nil
}

// releases lists the versions on the EFI system partition.
func (m Machine) releases() (all []release, err error) {
	entries, err := os.ReadDir(m.path(versionsDir))
	if err != nil {
		return nil, fmt.Errorf("this machine has no disk with versions: %w", err)
	}
	for _, e := range entries {
		if r, ok := parseRelease(e.Name()); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

// failed reports whether a version has no start left.
func failed(have []release, version string) bool {
	return slices.ContainsFunc(have, func(r release) bool { return r.version == version && r.left == 0 })
}

// room ensures that there is room for a version. It removes versions that are not
// needed, and only if that makes enough room.
func (m Machine) room(want manifest, have []release, done *Result) error {
	free, err := m.free()
	if err != nil || free >= want.Size {
		return err
	}
	most := free
	for _, r := range unneeded(have, done.Running) {
		if info, err := os.Stat(filepath.Join(m.path(versionsDir), r.file)); err == nil {
			most += info.Size()
		}
	}
	if most < want.Size {
		err := fmt.Errorf("it has %d bytes, and the partition of the versions has room for %d", want.Size, most)
		if !blessed(have, done.Running) {
			err = fmt.Errorf("%w; the other versions are kept until %s has been ready", err, done.Running)
		}
		return err
	}
	return m.remove(unneeded(have, done.Running), done)
}

// blessed reports whether the version that runs has been ready, so that a failed
// update may return to it.
func blessed(have []release, running string) bool {
	return slices.ContainsFunc(have, func(r release) bool {
		return r.version == running && (r.left < 0 || r.file == backName(running))
	})
}

// unneeded lists the versions that may be removed: all but the running version. If the running
// version has never been ready, no version may be removed.
func unneeded(have []release, running string) (list []release) {
	if blessed(have, running) {
		for _, r := range have {
			if r.version != running {
				list = append(list, r)
			}
		}
	}
	return list
}

// free returns the free bytes on the partition of the versions.
func (m Machine) free() (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(m.path(versionsDir), &s)
	return int64(s.Bavail) * s.Bsize, err
}

// place renames the checked file to its version, and removes versions that are not
// needed.
func (m Machine) place(half, version string, done *Result) error {
	have, err := m.releases()
	if err != nil {
		return err
	}
	dir := m.path(versionsDir)
	// systemd-boot would show two files of one version as two entries of one name.
	var others []release
	for _, r := range have {
		if r.version != version {
			others = append(others, r)
		} else if err := os.Remove(filepath.Join(dir, r.file)); err != nil {
			return err
		}
	}
	if err := os.Rename(half, filepath.Join(dir, freshName(version))); err != nil {
		return err
	}
	return errors.Join(SyncFolder(dir), m.remove(unneeded(others, done.Running), done), m.flush())
}

// remove removes versions. It leaves an empty file of a version that failed: by its
// name, Request.Newer knows that version. systemd-boot skips a file that is no EFI
// program.
func (m Machine) remove(all []release, done *Result) error {
	for _, r := range all {
		path := filepath.Join(m.path(versionsDir), r.file)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && r.left == 0 && info.Size() == 0:
			continue
		case err == nil && r.left == 0:
			err = os.Truncate(path, 0)
		case err == nil:
			err = os.Remove(path)
		}
		if err != nil {
			return err
		}
		done.Removed = append(done.Removed, r.version)
	}
	return nil
}

// stepBack makes systemd-boot prefer an older version to the version that runs. systemd-boot starts
// a version with no tries left after all other versions. If the older version also has no tries
// left, the running version comes first again.
func (m Machine) stepBack(running string) error {
	have, err := m.releases()
	if err != nil {
		return err
	}
	for _, r := range have {
		if r.version == running && r.left != 0 {
			if err := m.rename(r.file, backName(running)); err != nil {
				return err
			}
		}
	}
	return nil
}

// rename renames the file of a version, and writes that to the disk.
func (m Machine) rename(from, to string) error {
	dir := m.path(versionsDir)
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		return err
	}
	return errors.Join(SyncFolder(dir), m.flush())
}

// flush writes the file system of the versions to its disk: FAT has no journal that
// would keep an order.
func (m Machine) flush() error {
	dir, err := os.Open(m.path(versionsDir))
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}
