package update

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A source offers the file of one version, its manifest and the manifest's signature.
type source struct {
	folder string   // path of the folder; unused with a url
	url    *url.URL // of the folder; nil if the folder is a path
	name   string   // name of the version's file
}

// locate returns the source that Request.From names.
func locate(ctx context.Context, from string) (source, error) {
	u, err := url.Parse(from)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return source{folder: filepath.Dir(from), name: filepath.Base(from)}, nil
	}
	if strings.HasSuffix(u.Path, ".efi") {
		return source{name: filepath.Base(u.Path), url: u.JoinPath("..")}, nil
	}
	s := source{name: "latest", url: u}
	latest, err := s.read(ctx, "", 1<<10)
	if err != nil {
		return s, err
	}
	s.name = strings.TrimSpace(string(latest))
	return s, nil
}

// A manifest describes a version. Its publisher signs it. It is JSON.
type manifest struct {
	Name    string `json:"name"` // of its file
	Version string `json:"version"`
	Size    int64  `json:"size"`   // in bytes
	SHA256  string `json:"sha256"` // in hexadecimal digits
}

const (
	// maxManifest bounds a manifest; a manifest has 200 bytes.
	maxManifest = 4 << 10
	// maxVersion bounds a version; a version has tens of megabytes.
	maxVersion = 1 << 30
)

// manifest reads the manifest of the file, verifies its signature, and compares it
// with the name of the file and the version in that name.
func (s source) manifest(ctx context.Context, keys []ed25519.PublicKey, version string) (want manifest, err error) {
	text, err := s.read(ctx, ".manifest", maxManifest)
	if err != nil {
		return want, fmt.Errorf("its manifest: %w", err)
	}
	signature, err := s.read(ctx, ".manifest.sig", ed25519.SignatureSize)
	if err != nil {
		return want, fmt.Errorf("its manifest's signature: %w", err)
	}
	if !slices.ContainsFunc(keys, func(key ed25519.PublicKey) bool { return ed25519.Verify(key, text, signature) }) {
		return want, errors.New("its manifest is signed by none of the keys of updates, " + keyFile)
	}
	if err := json.Unmarshal(text, &want); err != nil {
		return want, fmt.Errorf("its manifest: %w", err)
	}
	switch {
	case want.Name != s.name || want.Version != version:
		return want, fmt.Errorf("its manifest is that of %q in version %q", want.Name, want.Version)
	case want.Size <= 0 || want.Size > maxVersion:
		return want, fmt.Errorf("its manifest says that it has %d bytes; allowed: 1 to %d", want.Size, maxVersion)
	}
	return want, nil
}

// open opens the file that has the version's name with suffix after it. It returns the file's size,
// or -1 if the server does not report the size.
func (s source) open(ctx context.Context, suffix string) (io.ReadCloser, int64, error) {
	if s.url == nil {
		f, err := OpenRegular(filepath.Join(s.folder, s.name+suffix))
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
	at := s.url.JoinPath(s.name + suffix)
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
		return nil, 0, fmt.Errorf("%s: the answer is %d %s", at.Redacted(), resp.StatusCode,
			http.StatusText(resp.StatusCode))
	}
	return resp.Body, resp.ContentLength, nil
}

// read returns the content of a small file. It is an error if the file is larger than most.
func (s source) read(ctx context.Context, suffix string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, _, err := s.open(ctx, suffix)
	if err != nil {
		return nil, err
	}
	defer r.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", s.name+suffix, most)
	}
	return data, err
}

// A download ends when nothing has come for downloadIdle, and after downloadLongest in any case.
// The next download starts from the beginning.
const (
	downloadIdle    = time.Minute
	downloadLongest = 45 * time.Minute // the timer's unit has an hour in all
)

// fetch copies the version to the new file half. It calls room before the first
// byte is written, once the server offers the size that the manifest says.
func (s source) fetch(ctx context.Context, want manifest, half string, room func() error, say func(string)) error {
	ctx, end := context.WithTimeoutCause(ctx, downloadLongest,
		fmt.Errorf("the download took longer than %s", downloadLongest))
	defer end()
	ctx, stall := context.WithCancelCause(ctx)
	defer stall(nil)
	idle := time.AfterFunc(downloadIdle, func() { stall(fmt.Errorf("no data arrived for %s", downloadIdle)) })
	defer idle.Stop()
	because := func(err error) error {
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	r, size, err := s.open(ctx, "")
	if err != nil {
		return because(err)
	}
	defer r.Close() //nolint:errcheck // only read
	if size >= 0 && size != want.Size {
		return fmt.Errorf("the server offers %d bytes, and its manifest says %d", size, want.Size)
	}
	if err := room(); err != nil {
		return err
	}
	out, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	began := time.Now()
	n, err := io.Copy(out, io.LimitReader(&meter{
		r: r, size: want.Size, next: began.Add(meterEvery), idle: idle,
		name: s.name, say: say,
	}, want.Size+1))
	err = because(err)
	switch {
	case n > want.Size:
		err = fmt.Errorf("it is larger than the %d bytes that its manifest says", want.Size)
	case err != nil:
		err = fmt.Errorf("%d of %d bytes arrived: %w", n, want.Size, err)
	case n < want.Size:
		err = fmt.Errorf("%d of %d bytes arrived", n, want.Size)
	default:
		say(fmt.Sprintf("%s: %d bytes in %s", s.name, n, time.Since(began).Round(100*time.Millisecond)))
	}
	return errors.Join(err, out.Sync(), out.Close())
}

const meterEvery = 2 * time.Second

// meter is a reader that reports its progress.
type meter struct {
	r         io.Reader
	now, size int64
	next      time.Time
	idle      *time.Timer // each byte sets it back
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

// check compares a file with its manifest, and with the system and the version that
// are written in the file.
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
		return fmt.Errorf("it does not name its system: %w", err)
	}
	release := strings.TrimRight(text.String(), "\x00")
	if id, is := field(release, "IMAGE_ID"), field(release, "IMAGE_VERSION"); id != "sallyport" || is != want.Version {
		return fmt.Errorf("it contains %q in version %q", id, is)
	}
	return nil
}
