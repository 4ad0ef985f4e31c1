package image

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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

// backName returns the file of a version that was stepped back from.
func backName(version string) string { return "sallyport_" + version + "+0.efi" }

// An Update is the wish for another version.
type Update struct {
	// From is a file, its URL, or the URL of a folder whose file "latest" names it.
	// Beside the file are its manifest, with .manifest behind the name, and the
	// manifest's signature, with .manifest.sig. Empty: what the file of this machine
	// says (system.update.url).
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

// Update puts another version beside the one that runs, for the next start. Its
// signed manifest comes first: without one nothing is fetched, and nothing removed.
// Until it has been held to that, the version has a name that nothing starts. When
// it does not get ready, systemd-boot goes back to the one that runs now.
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

	want, err := from.manifest(ctx, keys, to.version)
	if err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	half := m.path(versionsDir + "/" + halfFile)
	_ = os.Remove(half)   // of one that was interrupted
	defer os.Remove(half) //nolint:errcheck // gone, if all went well
	room := func() error { return m.room(want, have, &done) }
	if err := fetch(ctx, from, want, half, room, u.Say); err != nil {
		return done, fmt.Errorf("%s is not installed: %w", from.name, err)
	}
	if err := check(half, want); err != nil {
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

// A manifest is what the publisher says of a version, in JSON.
type manifest struct {
	Name    string `json:"name"` // of its file
	Version string `json:"version"`
	Size    int64  `json:"size"`   // in bytes
	SHA256  string `json:"sha256"` // in hexadecimal digits
}

const (
	// maxManifest bounds a manifest; one has 200 bytes.
	maxManifest = 4 << 10
	// maxVersion bounds a version; one has tens of megabytes.
	maxVersion = 1 << 30
)

// manifest reads the manifest of the file, and holds it to its signature and to the
// version that the name of the file says.
func (p place) manifest(ctx context.Context, keys []ed25519.PublicKey, version string) (want manifest, err error) {
	text, err := p.read(ctx, ".manifest", maxManifest)
	if err != nil {
		return want, fmt.Errorf("its manifest: %w", err)
	}
	signature, err := p.read(ctx, ".manifest.sig", ed25519.SignatureSize)
	if err != nil {
		return want, fmt.Errorf("its manifest's signature: %w", err)
	}
	if !slices.ContainsFunc(keys, func(key ed25519.PublicKey) bool { return ed25519.Verify(key, text, signature) }) {
		return want, errors.New("its manifest's signature is of none of the keys of updates")
	}
	if err := json.Unmarshal(text, &want); err != nil {
		return want, fmt.Errorf("its manifest: %w", err)
	}
	switch {
	case want.Name != p.name || want.Version != version:
		return want, fmt.Errorf("its manifest is that of %q in version %q", want.Name, want.Version)
	case want.Size <= 0 || want.Size > maxVersion:
		return want, fmt.Errorf("its manifest says that it has %d bytes; allowed: 1 to %d", want.Size, maxVersion)
	}
	return want, nil
}

// open begins to read the file, or one with more behind its name, and says how
// large it is; -1 if the server does not tell.
func (p place) open(ctx context.Context, more string) (io.ReadCloser, int64, error) {
	if p.url == nil {
		f, err := openRegular(filepath.Join(p.folder, p.name+more))
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, 0, err
		}
		return f, info.Size(), nil
	}
	at := p.url.JoinPath(p.name + more)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, 0, fmt.Errorf("%s: the answer is %d %s", at.Redacted(), resp.StatusCode, http.StatusText(resp.StatusCode))
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

// A download ends when nothing has come for downloadIdle, and after downloadLongest
// in any case. The next one begins anew.
const (
	downloadIdle    = time.Minute
	downloadLongest = 45 * time.Minute // the timer's unit has an hour for all
)

// fetch copies the version to half, which it makes. Once the server offers what the
// manifest says, it asks for room.
func fetch(ctx context.Context, from place, want manifest, half string, room func() error, say func(string)) error {
	ctx, end := context.WithTimeoutCause(ctx, downloadLongest, fmt.Errorf("it did not come within %s", downloadLongest))
	defer end()
	ctx, stall := context.WithCancelCause(ctx)
	defer stall(nil)
	idle := time.AfterFunc(downloadIdle, func() { stall(fmt.Errorf("nothing came for %s", downloadIdle)) })
	defer idle.Stop()
	because := func(err error) error {
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	r, size, err := from.open(ctx, "")
	if err != nil {
		return because(err)
	}
	defer r.Close() //nolint:errcheck // only read
	if size >= 0 && size != want.Size {
		return fmt.Errorf("%d bytes are offered, and its manifest says %d", size, want.Size)
	}
	if err := room(); err != nil {
		return err
	}
	out, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := io.Copy(out, io.LimitReader(&meter{r: r, size: want.Size, next: began.Add(meterEvery), idle: idle, name: from.name, say: say}, want.Size+1))
	err = because(err)
	switch {
	case n > want.Size:
		err = fmt.Errorf("it is larger than the %d bytes that its manifest says", want.Size)
	case err != nil:
		err = fmt.Errorf("%d of %d bytes came: %w", n, want.Size, err)
	case n < want.Size:
		err = fmt.Errorf("%d of %d bytes came", n, want.Size)
	default:
		say(fmt.Sprintf("%s: %d bytes in %s", from.name, n, time.Since(began).Round(100*time.Millisecond)))
	}
	return errors.Join(err, out.Sync(), out.Close())
}

// room sees to it that there is room for a version, and takes it from those that
// are not needed only if that is enough.
func (m Machine) room(want manifest, have []release, done *Updated) error {
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
			err = fmt.Errorf("%w; the others are kept until %s has been ready", err, done.Running)
		}
		return err
	}
	return m.remove(unneeded(have, done.Running), done)
}

// blessed reports whether what runs has been ready, so that it can be fallen back to.
func blessed(have []release, running string) bool {
	return slices.ContainsFunc(have, func(r release) bool {
		return r.version == running && (r.left < 0 || r.file == backName(running))
	})
}

// unneeded lists the versions that nobody needs: all but what runs, and none before it
// has been ready.
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
	idle      *time.Timer // goes off unless something comes
	name      string
	say       func(string)
}

func (x *meter) Read(b []byte) (int, error) {
	n, err := x.r.Read(b)
	x.now += int64(n)
	if n > 0 {
		x.idle.Reset(downloadIdle)
	}
	if now := time.Now(); now.After(x.next) {
		x.next = now.Add(meterEvery)
		x.say(fmt.Sprintf("%s: %d of %d MB", x.name, x.now>>20, x.size>>20))
	}
	return n, err
}

// check holds the file to its manifest, and to the version that is written in it.
func check(path string, want manifest) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != want.Size || got != want.SHA256 {
		return fmt.Errorf("it has the SHA-256 digest %s, and its manifest says %q", got, want.SHA256)
	}
	image, err := pe.NewFile(f)
	if err != nil {
		return fmt.Errorf("it is no EFI file: %w", err)
	}
	var text strings.Builder
	if err := section(&text, image, ".osrel"); err != nil {
		return fmt.Errorf("it does not say which system it is: %w", err)
	}
	release := strings.TrimRight(text.String(), "\x00")
	if id, is := field(release, "IMAGE_ID"), field(release, "IMAGE_VERSION"); id != "sallyport" || is != want.Version {
		return fmt.Errorf("it says that it is %q in version %q", id, is)
	}
	return nil
}

// install gives the checked file its name, and removes what is not needed any more.
func (m Machine) install(half, version string, done *Updated) error {
	have, err := m.releases()
	if err != nil {
		return err
	}
	dir := m.path(versionsDir)
	// Two files of one version would be two entries of one name.
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
	return errors.Join(syncFolder(dir), m.remove(unneeded(others, done.Running), done), m.flush())
}

// remove removes versions. Of one that failed an empty file stays: its name is the
// mark that keeps Newer from it. systemd-boot passes over what is no EFI file.
func (m Machine) remove(all []release, done *Updated) error {
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
			if err := m.rename(r.file, backName(running)); err != nil {
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
