package appliance

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sallyport/ingress"
)

func TestAPictureComesBackAsItWas(t *testing.T) {
	p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
	want := demoSnapshot("demo")
	want.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "web"}}}}
	want.Secrets = []*corev1.Secret{{Data: map[string][]byte{"tls.key": []byte("secret")}}}
	p.keep(want, ingress.Result{})
	p.save()
	got, err := p.load("demo")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got.Taken.IsZero() || time.Since(got.Taken) > time.Hour {
		t.Errorf("taken %s", got.Taken)
	}
	info, err := os.Stat(p.path("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o, want 600: it holds keys", mode)
	}
}

// snapshotOfEveryKind returns a snapshot with at least one object of each kind.
func snapshotOfEveryKind() ingress.Snapshot {
	s := demoSnapshot("demo")
	named := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	s.Secrets = []*corev1.Secret{{ObjectMeta: named, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.key": []byte("secret")}}}
	s.ConfigMaps = []*corev1.ConfigMap{{ObjectMeta: named, Data: map[string]string{"timeout-client": "30s"}}}
	s.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "web"}}}}
	s.Options = ingress.Options{ConfigMap: "default/web", NamespaceSelector: "team=web", Hosts: []ingress.HostRule{{Host: "*", Namespaces: []string{"default"}}}}
	s.Owners = &ingress.Owners{Namespaces: map[string]string{"test.local": "default"}}
	return s
}

// TestAPictureThatAnOlderProgramKeptIsRead reads a file from a program that did not
// have ingress.Objects yet. After an update the appliance starts with such a file. Only
// a new pictureVersion may change the format.
func TestAPictureThatAnOlderProgramKeptIsRead(t *testing.T) {
	text, err := os.ReadFile("testdata/picture-demo.json")
	if err != nil {
		t.Fatal(err)
	}
	pic, err := decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(snapshotOfEveryKind(), pic.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	// An older program reads the pictures of this one after a downgrade.
	var again bytes.Buffer
	if _, err := newPictures("", nil).encode(&again, pic.Snapshot); err != nil {
		t.Fatal(err)
	}
	_, want, _ := bytes.Cut(text, []byte("\n"))
	if _, got, _ := bytes.Cut(again.Bytes(), []byte("\n")); !bytes.Equal(want, got) {
		t.Errorf("the objects are written as\n%s\nnot as\n%s", got, want)
	}
}

func TestAPictureThatCannotBeUsedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct{ text, why string }{
		"empty":          {``, "EOF"},
		"torn":           {`{"version": 5, "snap`, "unexpected EOF"},
		"older":          {`{"version": 4, "snapshot": {"Cluster": "demo"}}`, "version 4"},
		"of the future":  {`{"version": 99}`, "version 99"},
		"of another one": {`{"version": 5, "snapshot": {"Cluster": "other"}, "counts": [0, 0, 0, 0, 0, 0, 0]}`, `"other"`},
		"too short":      {`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [1, 0, 0, 0, 0, 0, 0]}`, "the end of the picture is missing"},
		"too long":       {`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [0, 0, 0, 0, 0, 0, 0]} {}`, "more objects than it counts"},
		"other lists":    {`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [0]}`, "1 lists"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
			if err := os.WriteFile(p.path("demo"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := p.load("demo"); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want a word of %q", err, c.why)
			}
			if _, err := os.Stat(p.path("demo") + ".bad"); err != nil {
				t.Errorf("not set aside: %v", err)
			}
			if _, err := p.load("demo"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the second time: %v, want that there is none", err)
			}
		})
	}
}

func TestAPictureThatIsNoFileIsSetAside(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a named pipe":     func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a symbolic link":  func(path string) error { return os.Symlink("/dev/zero", path) },
		"a directory":      func(path string) error { return os.MkdirAll(filepath.Join(path, "more"), 0o700) },
		"are allowed":      func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
		"a device or a so": func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) }, // zero(4)
	} {
		t.Run(name, func(t *testing.T) {
			p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
			for _, path := range []string{p.path("demo"), p.path("demo") + ".bad"} {
				if err := put(path); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := p.load("demo"); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one sentence with %q", err, name)
			}
			p.keep(demoSnapshot("demo"), ingress.Result{})
			p.save()
			if _, err := p.load("demo"); err != nil {
				t.Errorf("once one is saved: %v", err)
			}
		})
	}
}

func TestAPictureCutAnywhereIsNotTaken(t *testing.T) {
	p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
	var whole bytes.Buffer
	if _, err := p.encode(&whole, demoSnapshot("demo")); err != nil {
		t.Fatal(err)
	}
	text := bytes.TrimSuffix(whole.Bytes(), []byte("\n"))
	if _, err := decode(bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for n := range text {
		if _, err := decode(bytes.NewReader(text[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes were taken for a picture", n, len(text))
		}
	}
}

func TestAnUnchangedSnapshotIsNotWrittenAgain(t *testing.T) {
	p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	p.keep(s, ingress.Result{})
	p.save()
	if err := os.Remove(p.path("demo")); err != nil {
		t.Fatal(err)
	}
	s.At = time.Now()
	p.keep(s, ingress.Result{})
	p.save()
	if _, err := os.Stat(p.path("demo")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written again although only the time differs (%v)", err)
	}
	s.Slices = nil
	p.keep(s, ingress.Result{})
	p.save()
	if _, err := os.Stat(p.path("demo")); err != nil {
		t.Errorf("a changed one is not written: %v", err)
	}
}

// FuzzPicture checks that decode returns an error for a file that is not a picture, and
// that a picture is written again as it was read.
func FuzzPicture(f *testing.F) {
	p := newPictures(f.TempDir(), slog.New(slog.DiscardHandler))
	var text bytes.Buffer
	if _, err := p.encode(&text, demoSnapshot("demo")); err != nil {
		f.Fatal(err)
	}
	f.Add(text.Bytes())
	f.Add([]byte(`{"version": 5, "snapshot": {"Cluster": "demo"}, "counts": [-1, 0, 0, 0, 0, 1e9]} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		pic, err := decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		p := newPictures("", nil)
		var text bytes.Buffer
		if _, err := p.encode(&text, pic.Snapshot); err != nil {
			t.Fatal(err)
		}
		again, err := decode(&text)
		if err != nil {
			t.Fatal(err)
		}
		if !cmp.Equal(pic.Snapshot, again.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()) {
			t.Error("it came back as another one")
		}
	})
}

func TestAPictureThatCannotBeSavedIsToldOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var log bytes.Buffer
	p := newPictures(dir, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		p.keep(demoSnapshot("demo"), ingress.Result{})
		p.save()
	}
	if err := p.fault("demo"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the fault is %v", err)
	}
	if told := strings.Count(log.String(), "level=ERROR"); told != 1 {
		t.Errorf("told %d times:\n%s", told, &log)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.keep(demoSnapshot("demo"), ingress.Result{})
	p.save()
	if err := p.fault("demo"); err != nil {
		t.Errorf("once saved it is still %v", err)
	}
	if _, err := p.load("demo"); err != nil {
		t.Error(err)
	}
}
