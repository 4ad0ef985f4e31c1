package image

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestVersionsHaveTheOrderOfSystemdBoot(t *testing.T) {
	// Each is older than the next.
	order := []string{
		"~1", "", "~", "ab", "abb", "abc", "0001", "002", "12", "122", "122.9", "123~rc1", "123", "123-a", "123-a.1", "123-3", "123^a", "123.a-1", "123.1-1", "124-1",
		"1000.0~dev", "1000.0", "1000.0-5-gabc", "1000.0.1", "1000.1",
	}
	order = order[3:] // what is nothing but separators is no version of ours
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

// efi is a file that says which system it is, as a unified kernel image does, and
// has these other sections, named and filled in turn.
func efi(id, version string, more ...string) []byte {
	parts := append([]string{".osrel", fmt.Sprintf("NAME=x\nIMAGE_ID=%s\nIMAGE_VERSION=\"%s\"\n", id, version)}, more...)
	const header, entry, unit = 20, 40, 512
	count := len(parts) / 2
	var head, body bytes.Buffer
	_ = binary.Write(&head, binary.LittleEndian, pe.FileHeader{Machine: pe.IMAGE_FILE_MACHINE_AMD64, NumberOfSections: uint16(count)})
	for i := 0; i < len(parts); i += 2 {
		size := uint32(len(parts[i+1]))
		section := pe.SectionHeader32{VirtualSize: size, SizeOfRawData: (size + unit - 1) / unit * unit, PointerToRawData: uint32(header + entry*count + body.Len())}
		copy(section.Name[:], parts[i])
		_ = binary.Write(&head, binary.LittleEndian, section)
		body.WriteString(parts[i+1])
		body.Write(make([]byte, section.SizeOfRawData-size))
	}
	body.Write(make([]byte, 1<<20)) // string table and padding
	return append(head.Bytes(), body.Bytes()...)
}

// A publisher signs versions with OpenSSL, into a folder.
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
	p.openssl("pkeyutl", "-sign", "-rawin", "-inkey", p.key, "-in", path, "-out", path+".sig")
	if err := os.WriteFile(filepath.Join(p.folder, "latest"), []byte(name+"\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// runs makes a machine that runs this version, with these files on its partition.
func (h *house) runs(p publisher, version string, files ...string) {
	h.put(releaseFile, "ID=debian\nIMAGE_ID=sallyport\nIMAGE_VERSION="+version+"\n")
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

func (h *house) update(u Update) (Updated, error) {
	if u.Say == nil {
		u.Say = func(string) {}
	}
	return h.Update(h.t.Context(), u)
}

func TestAnUpdateIsBesideWhatRunsAndReplacesTheRest(t *testing.T) {
	p := newPublisher(t)
	server := httptest.NewServer(http.FileServer(http.Dir(p.folder)))
	t.Cleanup(server.Close)
	path := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	for name, from := range map[string]string{"a file": path, "its URL": server.URL + "/sallyport_1.10.efi", "the URL of a folder": server.URL} {
		h := newHouse(t)
		h.runs(p, "1.9", "sallyport_1.9+2-1.efi", "sallyport_1.8.efi", "sallyport_1.10+0-3.efi", halfFile, "other.efi")
		var said []string
		done, err := h.update(Update{From: from, Say: func(s string) { said = append(said, s) }})
		if err != nil || done.Installed != "1.10" || done.Running != "1.9" || !slices.Equal(done.Removed, []string{"1.8"}) {
			t.Errorf("%s: got %+v, %v", name, done, err)
		}
		if want := []string{"other.efi", "sallyport_1.10+3.efi", "sallyport_1.9+2-1.efi"}; !slices.Equal(h.versions(), want) {
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
	for name, row := range map[string]struct {
		file string
		make func(path string)
		want string
	}{
		"of another key": {"sallyport_1.10.efi", func(path string) {
			other.openssl("pkeyutl", "-sign", "-rawin", "-inkey", other.key, "-in", path, "-out", path+".sig")
		}, "none of the keys"},
		"one bit turned":     {"sallyport_1.10.efi", func(path string) { turn(t, path, 5000) }, "none of the keys"},
		"no signature":       {"sallyport_1.10.efi", func(path string) { _ = os.Remove(path + ".sig") }, "signature"},
		"half a signature":   {"sallyport_1.10.efi", func(path string) { _ = os.Truncate(path+".sig", 32) }, "none of the keys"},
		"much signature":     {"sallyport_1.10.efi", func(path string) { _ = os.Truncate(path+".sig", 65) }, "larger than 64"},
		"under another name": {"sallyport_1.11.efi", func(string) {}, `version "1.10"`},
		"empty":              {"sallyport_1.10.efi", func(path string) { _ = os.Truncate(path, 0) }, "0 bytes"},
		"no name":            {"sallyport_1.10+3.efi", func(string) {}, "not the name of a version"},
		"older":              {"sallyport_1.8.1.efi", func(string) {}, "--allow-downgrade"},
	} {
		h := newHouse(t)
		h.runs(p, "1.9", have...)
		path := p.publish(row.file, efi("sallyport", "1.10"))
		row.make(path)
		done, err := h.update(Update{From: path})
		if err == nil || !strings.Contains(err.Error(), row.want) || done.Installed != "" {
			t.Errorf("%s: got %+v, %v; want %q", name, done, err, row.want)
		}
		if !slices.Equal(h.versions(), have) {
			t.Errorf("%s: the partition has %q", name, h.versions())
		}
	}
	h := newHouse(t)
	h.runs(p, "1.9", have...)
	if _, err := h.update(Update{From: p.publish("sallyport_1.10.efi", efi("other", "1.10"))}); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("another system, well signed: got %v", err)
	}
	if _, err := h.update(Update{From: p.publish("sallyport_1.10.efi", []byte("no EFI file at all"))}); err == nil || !strings.Contains(err.Error(), "no EFI file") {
		t.Errorf("another file, well signed: got %v", err)
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
	if done, err := h.update(Update{From: path, Older: true}); err != nil || done.Installed != "1.9" {
		t.Fatalf("got %+v, %v", done, err)
	}
	if want := []string{"sallyport_1.9+3.efi", "sallyport_2.0+0.efi"}; !slices.Equal(h.versions(), want) {
		t.Errorf("the partition has %q, want %q", h.versions(), want)
	}

	// Whoever went back is not brought forward by the timer again.
	h.runs(p, "1.9")
	h.put(updateFile, "file:///nowhere\n")
	p.publish("sallyport_2.0.efi", efi("sallyport", "2.0"))
	server := httptest.NewServer(http.FileServer(http.Dir(p.folder)))
	t.Cleanup(server.Close)
	h.put(updateFile, server.URL+"\n")
	if done, err := h.update(Update{Newer: true}); err != nil || done.Installed != "" || !strings.Contains(done.Why, "did not get ready") {
		t.Errorf("got %+v, %v", done, err)
	}
	p.publish("sallyport_1.9.efi", efi("sallyport", "1.9"))
	if done, err := h.update(Update{Newer: true}); err != nil || done.Installed != "" || !strings.Contains(done.Why, "running already") {
		t.Errorf("got %+v, %v", done, err)
	}
	p.publish("sallyport_2.0.1.efi", efi("sallyport", "2.0.1"))
	if done, err := h.update(Update{Newer: true}); err != nil || done.Installed != "2.0.1" {
		t.Errorf("got %+v, %v", done, err)
	}
}

func TestAVersionTakesTheRoomOfThoseThatAreNotNeeded(t *testing.T) {
	p := newPublisher(t)
	h := newHouse(t)
	small := h.path("/efi")
	if err := os.MkdirAll(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs", small).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", small).Run() })
	h.runs(p, "1.9", "sallyport_1.9.efi")
	h.put(versionsDir+"/sallyport_1.9.efi", strings.Repeat("x", 1<<20))
	h.put(versionsDir+"/sallyport_1.8.efi", strings.Repeat("x", 1<<20))
	path := p.publish("sallyport_1.10.efi", efi("sallyport", "1.10"))
	if done, err := h.update(Update{From: path}); err != nil || done.Installed != "1.10" {
		t.Errorf("got %+v, %v", done, err)
	}
	path = p.publish("sallyport_1.11.efi", append(efi("sallyport", "1.11"), make([]byte, 4<<20)...))
	if _, err := h.update(Update{From: path}); err == nil || !strings.Contains(err.Error(), "has room for") {
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
	if _, err := h.update(Update{From: "x"}); err == nil || !strings.Contains(err.Error(), "another update") {
		t.Errorf("got %v", err)
	}
	unlock()
	if _, err := h.update(Update{From: "x"}); err == nil || !strings.Contains(err.Error(), "no key of updates") {
		t.Errorf("got %v", err)
	}
}
