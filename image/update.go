package image

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"debug/pe"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where updates come from and go to.
const (
	versionsDir = "/efi/EFI/Linux"
	releaseFile = "/usr/lib/os-release"
	keyFile     = "/usr/lib/sallyport/update.pem"
	lockFile    = runDir + "/update.lock"
	halfFile    = "sallyport.part" // what systemd-boot does not take for a version
)

// tries is how often a new version may start without getting ready.
const tries = 3

// freshName is the file of a version that has not started yet.
func freshName(version string) string { return fmt.Sprintf("sallyport_%s+%d.efi", version, tries) }

// An Update is the wish for another version.
type Update struct {
	// From is a file, its URL, or the URL of a folder whose file "latest" names it.
	// Beside the file is its signature, with .sig behind the name. Empty: what the
	// file of this machine says (system.update.url).
	From string
	// Newer takes only what is newer than what runs, and was not tried before.
	Newer bool
	// Older takes what is older, too.
	Older bool
	// Say hears about progress.
	Say func(string)
}

// Updated is what became of it.
type Updated struct {
	Running   string   `json:"running"`
	Installed string   `json:"installed,omitempty"` // what the next start begins with; empty: nothing was done
	Why       string   `json:"why,omitempty"`       // nothing was done
	Removed   []string `json:"removed,omitempty"`   // versions that are not there any more
}

// Update puts another version beside the one that runs, for the next start. Until
// its signature has been checked it has a name that nothing starts. When it does
// not get ready, systemd-boot goes back to the one that runs now.
func (m Machine) Update(ctx context.Context, u Update) (Updated, error) {
	var done Updated
	unlock, err := m.lock()
	if err != nil {
		return done, err
	}
	defer unlock()
	keys, err := m.updateKeys()
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
	if u.From == "" {
		if u.From, err = m.updateURL(); err != nil {
			return done, err
		}
	}
	from, err := locate(ctx, u.From)
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
		done.Why = "it is running already"
	case order < 0 && u.Newer:
		done.Why = to.version + " is older"
	case order < 0 && !u.Older:
		return done, fmt.Errorf("%s is older than %s, which is running; say --allow-downgrade if that is meant", to.version, done.Running)
	case u.Newer && failed(have, to.version):
		done.Why = to.version + " was tried, and did not get ready"
	}
	if done.Why != "" {
		return done, nil
	}

	half := m.path(versionsDir + "/" + halfFile)
	defer os.Remove(half) //nolint:errcheck // gone, if all went well
	if err := m.fetch(ctx, from, half, have, &done, u.Say); err != nil {
		return done, err
	}
	signature, err := from.read(ctx, ".sig", ed25519.SignatureSize)
	if err != nil {
		return done, fmt.Errorf("its signature: %w", err)
	}
	if err := check(half, signature, keys, to.version); err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	if err := m.install(half, to.version, &done); err != nil {
		return done, err
	}
	if order < 0 {
		err = m.stepBack(done.Running)
	}
	done.Installed = to.version
	return done, err
}

func (m Machine) lock() (unlock func(), err error) {
	path := m.path(lockFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as write does
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("another update is under way: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// updateKeys are the keys that sign versions; they are part of the image.
func (m Machine) updateKeys() (keys []ed25519.PublicKey, err error) {
	text, err := os.ReadFile(m.path(keyFile))
	if err != nil {
		return nil, fmt.Errorf("this machine knows no key of updates: %w", err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyFile, err)
		}
		edwards, ok := key.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("%s: a key is not of Ed25519", keyFile)
		}
		keys = append(keys, edwards)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key", keyFile)
	}
	return keys, nil
}

// running is the version that was started.
func (m Machine) running() (string, error) {
	text, err := os.ReadFile(m.path(releaseFile))
	if err != nil {
		return "", err
	}
	version := field(string(text), "IMAGE_VERSION")
	if version == "" {
		return "", fmt.Errorf("%s has no IMAGE_VERSION: this is not the bootable image", releaseFile)
	}
	return version, nil
}

// field is the value of a line of an os-release file.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}

// releases are the versions on the EFI system partition.
func (m Machine) releases() (all []release, err error) {
	entries, err := os.ReadDir(m.path(versionsDir))
	if err != nil {
		return nil, fmt.Errorf("this machine has no disk with versions (%s): %w", versionsDir, reason(err))
	}
	for _, e := range entries {
		if r, ok := parseRelease(e.Name()); ok {
			all = append(all, r)
		}
	}
	return all, nil
}

func failed(have []release, version string) bool {
	for _, r := range have {
		if r.version == version && r.left == 0 {
			return true
		}
	}
	return false
}

// place is where a version is to be had: a folder, by path or URL.
type place struct {
	folder string
	name   string
	url    *url.URL // of the folder; nil: it is a path
}

// locate finds the file that From means.
func locate(ctx context.Context, from string) (place, error) {
	u, err := url.Parse(from)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return place{folder: filepath.Dir(from), name: filepath.Base(from)}, nil
	}
	if strings.HasSuffix(u.Path, ".efi") {
		return place{name: filepath.Base(u.Path), url: u.JoinPath("..")}, nil
	}
	p := place{name: "latest", url: u}
	latest, err := p.read(ctx, "", 1<<10)
	if err != nil {
		return p, err
	}
	p.name = strings.TrimSpace(string(latest))
	return p, nil
}

// maxVersion bounds a version; one has tens of megabytes.
const maxVersion = 1 << 30

// open begins to read the file, or one with more behind its name, and says how
// large it is.
func (p place) open(ctx context.Context, more string) (io.ReadCloser, int64, error) {
	if p.url == nil {
		f, err := os.Open(filepath.Join(p.folder, p.name+more))
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		return f, info.Size(), err
	}
	at := p.url.JoinPath(p.name + more).String()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, 0, fmt.Errorf("%s: the answer is %s", at, resp.Status)
	}
	return resp.Body, resp.ContentLength, nil
}

// read reads a small file whole; a larger one is an error.
func (p place) read(ctx context.Context, more string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, _, err := p.open(ctx, more)
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", p.name+more, most)
	}
	return data, err
}

// fetch copies the version to half. Versions that are not needed make room, if it
// lacks.
func (m Machine) fetch(ctx context.Context, from place, half string, have []release, done *Updated, say func(string)) error {
	r, size, err := from.open(ctx, "")
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // only read
	if size <= 0 || size > maxVersion {
		return fmt.Errorf("%s: it has %d bytes; allowed: 1 to %d, and the server has to say how many", from.name, size, maxVersion)
	}
	_ = os.Remove(half) // of one that was interrupted
	if err := m.room(from.name, size, have, done); err != nil {
		return err
	}
	out, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = io.Copy(out, io.LimitReader(&meter{r: r, size: size, next: began.Add(meterEvery), name: from.name, say: say}, size+1))
	err = errors.Join(err, out.Sync())
	info, serr := out.Stat()
	err = errors.Join(err, serr, out.Close())
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%s: %d of %d bytes came", from.name, info.Size(), size)
	}
	if err == nil {
		say(fmt.Sprintf("%s: %d bytes in %s", from.name, size, time.Since(began).Round(100*time.Millisecond)))
	}
	return err
}

// room sees to it that there is room for a version, and takes it from those that
// are not needed only if that is enough.
func (m Machine) room(name string, size int64, have []release, done *Updated) error {
	free, err := m.free()
	if err != nil || free >= size {
		return err
	}
	most := free
	for _, r := range have {
		if info, err := os.Stat(filepath.Join(m.path(versionsDir), r.file)); err == nil && r.version != done.Running {
			most += info.Size()
		}
	}
	if most < size {
		return fmt.Errorf("%s has %d bytes, and the partition of the versions has room for %d", name, size, most)
	}
	return m.remove(have, done, done.Running)
}

// free is the room on the partition of the versions, in bytes.
func (m Machine) free() (int64, error) {
	var s unix.Statfs_t
	err := unix.Statfs(m.path(versionsDir), &s)
	return int64(s.Bavail) * s.Bsize, err
}

const meterEvery = 2 * time.Second

// meter tells how far reading has come.
type meter struct {
	r         io.Reader
	now, size int64
	next      time.Time
	name      string
	say       func(string)
}

func (x *meter) Read(b []byte) (int, error) {
	n, err := x.r.Read(b)
	x.now += int64(n)
	if now := time.Now(); now.After(x.next) {
		x.next = now.Add(meterEvery)
		x.say(fmt.Sprintf("%s: %d of %d MB", x.name, x.now>>20, x.size>>20))
	}
	return n, err
}

// check holds the file to its signature, and to its name: the signature is of
// the content alone, so the version it is has to be in there.
func check(path string, signature []byte, keys []ed25519.PublicKey, version string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// Not read into memory: it may be a good part of all there is.
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}
	defer unix.Munmap(data) //nolint:errcheck // only read
	good := false
	for _, key := range keys {
		good = good || ed25519.Verify(key, data, signature)
	}
	if !good {
		return errors.New("its signature is of none of the keys of updates")
	}
	image, err := pe.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("it is no EFI file: %w", err)
	}
	var text strings.Builder
	if err := section(&text, image, ".osrel"); err != nil {
		return fmt.Errorf("it does not say which system it is: %w", err)
	}
	release := strings.TrimRight(text.String(), "\x00")
	if id, is := field(release, "IMAGE_ID"), field(release, "IMAGE_VERSION"); id != "sallyport" || is != version {
		return fmt.Errorf("it says that it is %q in version %q", id, is)
	}
	return nil
}

// install gives the checked file its name, and keeps nothing else but what runs.
func (m Machine) install(half, version string, done *Updated) error {
	have, err := m.releases()
	if err != nil {
		return err
	}
	// Two files of one version would be two entries of one name.
	var same, others []release
	for _, r := range have {
		if r.version == version {
			same = append(same, r)
		} else {
			others = append(others, r)
		}
	}
	dir := m.path(versionsDir)
	if err := m.remove(same, &Updated{}, done.Running); err != nil {
		return err
	}
	if err := os.Rename(half, filepath.Join(dir, freshName(version))); err != nil {
		return err
	}
	return errors.Join(syncFolder(dir), m.remove(others, done, done.Running), m.flush())
}

// remove removes versions, but never the one to keep.
func (m Machine) remove(all []release, done *Updated, keep string) error {
	for _, r := range all {
		if r.version == keep {
			continue
		}
		if err := os.Remove(filepath.Join(m.path(versionsDir), r.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		done.Removed = append(done.Removed, r.version)
	}
	return nil
}

// stepBack lets systemd-boot prefer an older version to the one that runs: as one
// with no tries left it comes last, and first again when the older one has none
// left either.
func (m Machine) stepBack(running string) error {
	have, err := m.releases()
	if err != nil {
		return err
	}
	for _, r := range have {
		if r.version == running && r.left != 0 {
			if err := m.rename(r.file, "sallyport_"+running+"+0.efi"); err != nil {
				return err
			}
		}
	}
	return nil
}

// rename gives the file of a version another name, for good.
func (m Machine) rename(from, to string) error {
	dir := m.path(versionsDir)
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		return err
	}
	return errors.Join(syncFolder(dir), m.flush())
}

// flush writes the file system of the versions out: FAT knows no order.
func (m Machine) flush() error {
	dir, err := os.Open(m.path(versionsDir))
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

// updateURL is where the file of this machine says that newer versions are.
func (m Machine) updateURL() (string, error) {
	text, err := os.ReadFile(m.path(updateFile))
	if err != nil {
		return "", errors.New("system.update.url is not set")
	}
	return strings.TrimSpace(string(text)), nil
}
