package update

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

func TestVersionsHaveTheOrderOfSystemdBoot(t *testing.T) {
	// Each is older than the next.
	order := []string{
		"~1", "", "~", "ab", "abb", "abc", "0001", "002", "12", "122", "122.9", "123~rc1", "123", "123-a", "123-a.1",
		"123-3", "123^a", "123.a-1", "123.1-1", "124-1",
		"1000.0~dev", "1000.0", "1000.0-5-gabc", "1000.0.1", "1000.1",
	}
	order = order[3:] // versions of ours have more than separators
	for i, a := range order {
		for j, b := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := compareVersions(a, b); got != want {
				t.Errorf("%s to %s: got %d, want %d", a, b, got, want)
			}
		}
	}
	for _, same := range [][2]string{{"123", "0123"}, {"1_2", "1+2"}, {"", ""}} {
		if got := compareVersions(same[0], same[1]); got != 0 {
			t.Errorf("%q: got %d, want 0", same, got)
		}
	}
}

func TestNamesOfVersionsSayHowOftenTheyMayStart(t *testing.T) {
	for name, want := range map[string]release{
		"sallyport_1.2.3.efi":            {version: "1.2.3", left: -1},
		"sallyport_1.2.3+3.efi":          {version: "1.2.3", left: 3},
		"sallyport_1.2.3-4-gabc+2-1.efi": {version: "1.2.3-4-gabc", left: 2},
		"sallyport_1.2.3+0-3.efi":        {version: "1.2.3", left: 0},
		"sallyport_1.2.3+x.efi":          {},
		"sallyport_.efi":                 {},
		"sallyport_../x.efi":             {},
		"sallyport_1.2.3.efi.sig":        {},
		halfFile:                         {},
		"other_1.efi":                    {},
	} {
		got, ok := parseRelease(name)
		if ok {
			got.file = ""
		}
		if got != want || ok != (want != release{}) {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, ok, want)
		}
	}
}

// efi returns a file that names its system, as a unified kernel image does, and that has
// more sections: pairs of name and content.
func efi(id, version string, more ...string) []byte {
	parts := append([]string{".osrel", fmt.Sprintf("NAME=x\nIMAGE_ID=%s\nIMAGE_VERSION=\"%s\"\n", id, version)},
		more...)
	const header, entry, unit = 20, 40, 512
	count := len(parts) / 2
	var head, body bytes.Buffer
	_ = binary.Write(&head, binary.LittleEndian,
		pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: uint16(count)})
	for i := 0; i < len(parts); i += 2 {
		size := uint32(len(parts[i+1]))
		section := pe.SectionHeader32{
			VirtualSize: size, SizeOfRawData: (size + unit - 1) / unit * unit,
			PointerToRawData: uint32(header + entry*count + body.Len()),
		}
		copy(section.Name[:], parts[i])
		_ = binary.Write(&head, binary.LittleEndian, section)
		body.WriteString(parts[i+1])
		body.Write(make([]byte, section.SizeOfRawData-size))
	}
	body.Write(make([]byte, 1<<20)) // string table and padding
	return append(head.Bytes(), body.Bytes()...)
}

// A publisher writes versions to a folder, and signs their manifests with OpenSSL.
type publisher struct {
	t      *testing.T
	folder string
	key    string
}

func newPublisher(t *testing.T) publisher {
	p := publisher{t, t.TempDir(), filepath.Join(t.TempDir(), "key.pem")}
	p.openssl("genpkey", "-algorithm", "ed25519", "-out", p.key)
	return p
}

func (p publisher) openssl(args ...string) string {
	p.t.Helper()
	out, err := exec.Command("openssl", args...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("openssl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func (p publisher) public() string { return p.openssl("pkey", "-in", p.key, "-pubout") }

func (p publisher) publish(name string, content []byte) string {
	p.t.Helper()
	path := filepath.Join(p.folder, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		p.t.Fatal(err)
	}
	version := strings.TrimSuffix(strings.TrimPrefix(name, "sallyport_"), ".efi")
	p.describe(path, manifest{name, version, int64(len(content)), digest(content)})
	if err := os.WriteFile(filepath.Join(p.folder, "latest"), []byte(name+"\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// describe writes and signs the manifest of a file.
func (p publisher) describe(path string, m manifest) {
	p.t.Helper()
	text, err := json.Marshal(m)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path+".manifest", text, 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.sign(path)
}

// sign signs the manifest of a file.
func (p publisher) sign(path string) {
	p.t.Helper()
	p.openssl("pkeyutl", "-sign", "-rawin", "-inkey", p.key, "-in", path+".manifest", "-out", path+".manifest.sig")
}

// A house is a machine below a root folder.
type house struct {
	Machine
	t     *testing.T
	verbs []string // the arguments of systemctl
}

func newHouse(t *testing.T) *house {
	h := &house{t: t}
	h.Root = t.TempDir()
	h.Systemctl = func(_ context.Context, verb string) error {
		h.verbs = append(h.verbs, verb)
		return nil
	}
	return h
}

func (h *house) put(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) get(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(h.path(name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(text)
}

// runs gives the machine this version as the running one, and these files on its
// partition of versions.
func (h *house) runs(p publisher, version string, files ...string) {
	h.put(systemFile, "ID=debian\nIMAGE_ID=sallyport\nIMAGE_VERSION="+version+"\n")
	h.put(keyFile, newPublisher(h.t).public()+p.public())
	for _, name := range files {
		h.put(versionsDir+"/"+name, "")
	}
}

func (h *house) versions() (all []string) {
	entries, err := os.ReadDir(h.path(versionsDir))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func (h *house) install(r Request) (Result, error) {
	if r.Say == nil {
		r.Say = func(string) {}
	}
	return h.Install(h.t.Context(), r)
}

func TestAnUpdateIsBesideWhatRunsAndReplacesTheRest(t *testing.T) {
	p := newPublisher(t)
	server := httptest.NewServer(http.FileServer(http.Dir(p.folder)))
	t.Cleanup(server.Close)
	path := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	for name, from := range map[string]string{
		"a file": path, "its URL": server.URL + "/sallyport_1.10.efi",
		"the URL of a folder": server.URL,
	} {
		h := newHouse(t)
		h.runs(p, "1.9", "sallyport_1.9.efi", "sallyport_1.8.efi", "sallyport_1.10+0-3.efi", halfFile, "other.efi")
		var said []string
		done, err := h.install(Request{From: from, Say: func(s string) { said = append(said, s) }})
		if err != nil || done.Installed != "1.10" || done.Running != "1.9" ||
			!slices.Equal(done.Removed, []string{"1.8"}) {
			t.Errorf("%s: got %+v, %v", name, done, err)
		}
		if want := []string{"other.efi", "sallyport_1.10+3.efi", "sallyport_1.9.efi"}; !slices.Equal(h.versions(),
			want) {
			t.Errorf("%s: the partition has %q, want %q", name, h.versions(), want)
		}
		if got := h.get(versionsDir + "/sallyport_1.10+3.efi"); got != string(efi("sallyport", "1.10")) {
			t.Errorf("%s: the version has other content", name)
		}
		if len(said) == 0 {
			t.Errorf("%s: nothing was said", name)
		}
	}
}

func TestOnlyWhatIsSignedIsInstalled(t *testing.T) {
	p, other := newPublisher(t), newPublisher(t)
	have := []string{"sallyport_1.8.efi", "sallyport_1.9.efi"}
	good := efi("sallyport", "1.10")
	describe := func(change func(m *manifest)) func(path string) {
		return func(path string) {
			m := manifest{"sallyport_1.10.efi", "1.10", int64(len(good)), digest(good)}
			change(&m)
			p.describe(path, m)
		}
	}
	for name, row := range map[string]struct {
		file string
		make func(path string)
		want string
	}{
		"of another key": {"sallyport_1.10.efi", other.sign, "none of the keys"},
		"no manifest": {"sallyport_1.10.efi", func(path string) {
			_ = os.Remove(path + ".manifest")
		}, "its manifest: "},
		"much manifest": {"sallyport_1.10.efi", func(path string) {
			_ = os.Truncate(path+".manifest", 1<<20)
		}, "larger than 4096"},
		"another manifest": {"sallyport_1.10.efi", func(path string) {
			turn(t, path+".manifest", 10)
		}, "none of the keys"},
		"no signature": {"sallyport_1.10.efi", func(path string) {
			_ = os.Remove(path + ".manifest.sig")
		}, "signature"},
		"half a signature": {"sallyport_1.10.efi", func(path string) {
			_ = os.Truncate(path+".manifest.sig", 32)
		}, "none of the keys"},
		"much signature": {"sallyport_1.10.efi", func(path string) {
			_ = os.Truncate(path+".manifest.sig", 65)
		}, "larger than 64"},
		"a manifest of no JSON": {"sallyport_1.10.efi", func(path string) {
			_ = os.WriteFile(path+".manifest", []byte("x"), 0o600)
			p.sign(path)
		}, "its manifest: invalid"},
		"another file's": {
			"sallyport_1.10.efi", describe(func(m *manifest) { m.Name = "sallyport_1.11.efi" }),
			`"sallyport_1.11.efi" in version "1.10"`,
		},
		"another version's": {
			"sallyport_1.10.efi", describe(func(m *manifest) { m.Version = "1.11" }),
			`in version "1.11"`,
		},
		"of no size": {
			"sallyport_1.10.efi", describe(func(m *manifest) { m.Size = 0 }),
			"0 bytes; allowed: 1 to",
		},
		"of endless size":    {"sallyport_1.10.efi", describe(func(m *manifest) { m.Size = 1 << 40 }), "allowed: 1 to"},
		"of another size":    {"sallyport_1.10.efi", describe(func(m *manifest) { m.Size-- }), "its manifest says"},
		"of another digest":  {"sallyport_1.10.efi", describe(func(m *manifest) { m.SHA256 = digest(nil) }), "digest"},
		"of no digest":       {"sallyport_1.10.efi", describe(func(m *manifest) { m.SHA256 = "" }), "digest"},
		"one bit turned":     {"sallyport_1.10.efi", func(path string) { turn(t, path, 5000) }, "digest"},
		"under another name": {"sallyport_1.11.efi", func(string) {}, `version "1.10"`},
		"empty": {"sallyport_1.10.efi", func(path string) {
			_ = os.Truncate(path, 0)
		}, "the server offers 0 bytes"},
		"a FIFO": {"sallyport_1.10.efi", func(path string) {
			_ = os.Remove(path)
			_ = unix.Mkfifo(path, 0o600)
		}, "not a regular file"},
		"no name": {"sallyport_1.10+3.efi", func(string) {}, "not the name of a version"},
		"older":   {"sallyport_1.8.1.efi", func(string) {}, "--allow-downgrade"},
	} {
		h := newHouse(t)
		h.runs(p, "1.9", have...)
		path := p.publish(row.file, good)
		row.make(path)
		done, err := h.install(Request{From: path})
		if err == nil || !strings.Contains(err.Error(), row.want) || done.Installed != "" ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %+v, %v; want %q", name, done, err, row.want)
		}
		if !slices.Equal(h.versions(), have) {
			t.Errorf("%s: the partition has %q", name, h.versions())
		}
		_ = os.Remove(path)
	}
	h := newHouse(t)
	h.runs(p, "1.9", have...)
	if _, err := h.install(Request{From: p.publish("sallyport_1.10.efi", efi("other", "1.10"))}); err == nil ||
		!strings.Contains(err.Error(), `"other"`) {
		t.Errorf("another system, well signed: got %v", err)
	}
	if _, err := h.install(Request{From: p.publish("sallyport_1.10.efi", []byte("no EFI file at all"))}); err == nil ||
		!strings.Contains(err.Error(), "no EFI file") {
		t.Errorf("another file, well signed: got %v", err)
	}
}

// small limits the machine's partition of versions to this size.
func (h *house) small(size string) {
	h.t.Helper()
	efi := h.path("/efi")
	if err := os.MkdirAll(efi, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", efi).CombinedOutput(); err != nil {
		h.t.Fatalf("mount: %v\n%s", err, out)
	}
	h.t.Cleanup(func() { _ = exec.Command("umount", "--lazy", efi).Run() })
}

// TestNothingIsRemovedForWhatIsNotVerified updates from servers that lie. The partition
// has no room for another version, but where the lie is in the content.
func TestNothingIsRemovedForWhatIsNotVerified(t *testing.T) {
	p, other := newPublisher(t), newPublisher(t)
	good := append(efi("sallyport", "1.10"), make([]byte, 1<<20)...)
	p.publish("sallyport_1.10.efi", good)
	other.publish("sallyport_1.10.efi", good)
	serve := func(folder string, lie http.HandlerFunc) string {
		files := http.FileServer(http.Dir(folder))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".efi") && lie != nil {
				lie(w, r)
				return
			}
			files.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	length := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(n))
			_, _ = w.Write(good[:min(n, len(good))])
		}
	}
	chunks := func(data []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = w.Write(data)
		}
	}
	unsigned := t.TempDir()
	for name, row := range map[string]struct {
		folder string
		lie    http.HandlerFunc
		want   string
		room   string // empty: none
	}{
		"no manifest, and much content":   {unsigned, length(2 << 20), "its manifest: ", ""},
		"another key's, and much content": {other.folder, length(2 << 20), "none of the keys", ""},
		"no such file": {p.folder, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusGone)
		}, "the answer is 410 Gone", ""},
		"it says that it has more": {
			p.folder, length(1 << 40),
			"the server offers 1099511627776 bytes, and its manifest says 2", "",
		},
		"it says that it has less": {p.folder, length(10), "the server offers 10 bytes", ""},
		"less comes":               {p.folder, chunks(good[:5000]), "5000 of 2", "6M"},
		"more comes":               {p.folder, chunks(append(slices.Clip(good), 0)), "it is larger than the 2", "6M"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.small(cmp.Or(row.room, "3M"))
			have := []string{"sallyport_1.7+0-3.efi", "sallyport_1.8.efi", "sallyport_1.9.efi"}
			h.runs(p, "1.9", have...)
			h.put(versionsDir+"/sallyport_1.8.efi", strings.Repeat("x", 1<<20))
			_, err := h.install(Request{From: serve(row.folder, row.lie) + "/sallyport_1.10.efi"})
			if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want a sentence with %q", err, row.want)
			}
			if !slices.Equal(h.versions(), have) || len(h.get(versionsDir+"/sallyport_1.8.efi")) != 1<<20 {
				t.Errorf("the partition has %q, want %q", h.versions(), have)
			}
		})
	}

	// A verified version may replace others, but not before the running one was ready.
	for running, want := range map[string][]string{
		"sallyport_1.9+2-1.efi": {"sallyport_1.7+0-3.efi", "sallyport_1.8.efi", "sallyport_1.9+2-1.efi"},
		"sallyport_1.9.efi":     {"sallyport_1.10+3.efi", "sallyport_1.7+0-3.efi", "sallyport_1.9.efi"},
		"sallyport_1.9+0.efi":   {"sallyport_1.10+3.efi", "sallyport_1.7+0-3.efi", "sallyport_1.9+0.efi"},
	} {
		h := newHouse(t)
		h.small("3M")
		h.runs(p, "1.9", "sallyport_1.7+0-3.efi", "sallyport_1.8.efi", running)
		h.put(versionsDir+"/sallyport_1.8.efi", strings.Repeat("x", 1<<20))
		h.put(versionsDir+"/sallyport_1.7+0-3.efi", strings.Repeat("x", 1<<20))
		_, err := h.install(Request{From: serve(p.folder, nil)})
		if ready := !strings.Contains(running, "+2"); ready != (err == nil) ||
			!ready && !strings.Contains(err.Error(), "kept until 1.9 has been ready") {
			t.Errorf("%s runs: got %v", running, err)
		}
		if !slices.Equal(h.versions(), want) {
			t.Errorf("%s runs: the partition has %q, want %q", running, h.versions(), want)
		}
	}
}

func TestNothingIsRemovedBeforeWhatRunsHasBeenReady(t *testing.T) {
	p := newPublisher(t)
	h := newHouse(t)
	h.runs(p, "1.9", "sallyport_1.8.efi", "sallyport_1.9+2-1.efi")
	if done, err := h.install(Request{From: p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))}); err != nil ||
		done.Installed != "1.10" || len(done.Removed) > 0 {
		t.Errorf("got %+v, %v", done, err)
	}
	if want := []string{
		"sallyport_1.10+3.efi", "sallyport_1.8.efi",
		"sallyport_1.9+2-1.efi",
	}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}
}

func TestTheMarkOfAFailedVersionStays(t *testing.T) {
	p := newPublisher(t)
	h := newHouse(t)
	h.runs(p, "1.9", "sallyport_1.9.efi")
	const mark = versionsDir + "/sallyport_1.10+0-3.efi"
	h.put(mark, "1.10")
	done, err := h.install(Request{From: p.publish("sallyport_1.9.1.efi", efi("sallyport", "1.9.1"))})
	if err != nil || !slices.Equal(done.Removed, []string{"1.10"}) {
		t.Errorf("got %+v, %v", done, err)
	}
	if info, err := os.Stat(h.path(mark)); err != nil || info.Size() != 0 {
		t.Errorf("the mark is %v, %v; want an empty file", info, err)
	}
	h.runs(p, "1.9.1", "sallyport_1.9.1.efi")
	if err := os.Remove(h.path(versionsDir + "/sallyport_1.9.1+3.efi")); err != nil {
		t.Fatal(err)
	}
	path := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	if done, err := h.install(Request{From: path, Newer: true}); err != nil ||
		!strings.Contains(done.Why, "did not get ready") {
		t.Errorf("the timer: got %+v, %v", done, err)
	}
	// An operator who names the version gets it, and its mark is removed.
	if done, err := h.install(Request{From: path}); err != nil || done.Installed != "1.10" {
		t.Errorf("by name: got %+v, %v", done, err)
	}
	if want := []string{"sallyport_1.10+3.efi", "sallyport_1.9.1.efi"}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}
}

// A stream is a server whose answer comes in pieces, and waits before each.
type stream struct {
	ctx   context.Context
	piece int
	wait  time.Duration
}

func (s stream) RoundTrip(r *http.Request) (*http.Response, error) {
	s.ctx = r.Context()
	return &http.Response{StatusCode: http.StatusOK, ContentLength: -1, Body: s}, nil
}

func (s stream) Close() error { return nil }

func (s stream) Read(b []byte) (int, error) {
	select {
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	case <-time.After(s.wait):
		return min(s.piece, len(b)), nil
	}
}

func TestADownloadThatStallsEnds(t *testing.T) {
	usual := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = usual })
	for name, row := range map[string]struct {
		server stream
		want   string
		after  time.Duration
	}{
		"nothing comes": {
			stream{wait: time.Hour},
			"0 of 10000 bytes arrived: no data arrived for 1m0s",
			downloadIdle,
		},
		"a byte now and then": {
			stream{piece: 1, wait: downloadIdle - time.Second},
			"45 of 10000 bytes arrived: the download took longer than 45m0s", downloadLongest,
		},
		"slowly, but all of it": {
			stream{piece: 1000, wait: downloadIdle - time.Second},
			"it is larger than",
			11 * (downloadIdle - time.Second),
		},
		"stopped by the service": {stream{wait: time.Hour}, "0 of 10000 bytes arrived: context canceled", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			half := filepath.Join(t.TempDir(), halfFile)
			synctest.Test(t, func(t *testing.T) {
				http.DefaultTransport = row.server
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if row.after == time.Second {
					time.AfterFunc(row.after, stop)
				}
				from := source{name: "sallyport_1.10.efi", url: &url.URL{Scheme: "http", Host: "example.org"}}
				began := time.Now()
				err := from.fetch(ctx, manifest{Size: 10000}, half, func() error { return nil }, func(string) {})
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %q", err, row.want)
				}
				if got := time.Since(began); got != row.after {
					t.Errorf("it took %s, want %s", got, row.after)
				}
			})
		})
	}
}

func turn(t *testing.T, path string, at int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestADowngradeComesFirstUntilItFails(t *testing.T) {
	p := newPublisher(t)
	h := newHouse(t)
	h.runs(p, "2.0", "sallyport_1.8.efi", "sallyport_2.0.efi")
	path := p.publish("sallyport_1.9.efi", efi("sallyport", "1.9"))
	if done, err := h.install(Request{From: path, Older: true}); err != nil || done.Installed != "1.9" {
		t.Fatalf("got %+v, %v", done, err)
	}
	if want := []string{"sallyport_1.9+3.efi", "sallyport_2.0+0.efi"}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}

	// After a downgrade the timer does not install the newer version again.
	h.runs(p, "1.9")
	h.put(URLFile, "file:///nowhere\n")
	p.publish("sallyport_2.0.efi", efi("sallyport", "2.0"))
	server := httptest.NewServer(http.FileServer(http.Dir(p.folder)))
	t.Cleanup(server.Close)
	h.put(URLFile, server.URL+"\n")
	if done, err := h.install(Request{Newer: true}); err != nil || done.Installed != "" ||
		!strings.Contains(done.Why, "did not get ready") {
		t.Errorf("got %+v, %v", done, err)
	}
	p.publish("sallyport_1.9.efi", efi("sallyport", "1.9"))
	if done, err := h.install(Request{Newer: true}); err != nil || done.Installed != "" ||
		!strings.Contains(done.Why, "running already") {
		t.Errorf("got %+v, %v", done, err)
	}
	p.publish("sallyport_2.0.1.efi", efi("sallyport", "2.0.1"))
	h.put(versionsDir+"/sallyport_1.9.efi", "")
	if err := os.Remove(h.path(versionsDir + "/sallyport_1.9+3.efi")); err != nil {
		t.Fatal(err)
	}
	if done, err := h.install(Request{Newer: true}); err != nil || done.Installed != "2.0.1" {
		t.Errorf("got %+v, %v", done, err)
	}
	if want := []string{
		"sallyport_1.9.efi", "sallyport_2.0+0.efi",
		"sallyport_2.0.1+3.efi",
	}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}
}

func TestAVersionTakesTheRoomOfThoseThatAreNotNeeded(t *testing.T) {
	p := newPublisher(t)
	h := newHouse(t)
	h.small("3M")
	h.runs(p, "1.9", "sallyport_1.9.efi")
	h.put(versionsDir+"/sallyport_1.9.efi", strings.Repeat("x", 1<<20))
	h.put(versionsDir+"/sallyport_1.8.efi", strings.Repeat("x", 1<<20))
	path := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	if done, err := h.install(Request{From: path}); err != nil || done.Installed != "1.10" {
		t.Errorf("got %+v, %v", done, err)
	}
	path = p.publish("sallyport_1.11.efi", append(efi("sallyport", "1.11"), make([]byte, 4<<20)...))
	if _, err := h.install(Request{From: path}); err == nil || !strings.Contains(err.Error(), "has room for") {
		t.Errorf("larger than the partition: got %v", err)
	}
	if want := []string{"sallyport_1.10+3.efi", "sallyport_1.9.efi"}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}
}

func TestOneUpdateAtATime(t *testing.T) {
	h := newHouse(t)
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.install(Request{From: "x"}); err == nil ||
		!strings.Contains(err.Error(), "another update is in progress") {
		t.Errorf("got %v", err)
	}
	unlock()
	if _, err := h.install(Request{From: "x"}); err == nil || !strings.Contains(err.Error(), "has no key of updates") {
		t.Errorf("got %v", err)
	}
}
