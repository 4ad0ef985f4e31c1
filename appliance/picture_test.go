package appliance

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestAPictureComesBackAsItWas(t *testing.T) {
	p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
	want := demoSnapshot("demo")
	want.Secrets = []*corev1.Secret{{Data: map[string][]byte{"tls.key": []byte("secret")}}}
	p.keep(want)
	p.save()
	got, taken, err := p.load("demo")
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Secrets[0].Data["tls.key"]) != "secret" || len(got.Ingresses) != 1 || got.Topology.Nodes[0].BGP[0] != want.Topology.Nodes[0].BGP[0] {
		t.Errorf("got %+v", got)
	}
	if taken.IsZero() || time.Since(taken) > time.Hour {
		t.Errorf("taken %s", taken)
	}
	info, err := os.Stat(p.path("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o, want 600: it holds keys", mode)
	}
}

func TestAPictureThatCannotBeUsedIsSetAside(t *testing.T) {
	for name, c := range map[string]struct{ text, why string }{
		"torn":           {`{"version": 1, "snap`, "unexpected end"},
		"of the future":  {`{"version": 99}`, "version 99"},
		"of another one": {`{"version": 1, "snapshot": {"Cluster": "other"}}`, `"other"`},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
			if err := os.WriteFile(p.path("demo"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.load("demo"); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want a word of %q", err, c.why)
			}
			if _, err := os.Stat(p.path("demo") + ".bad"); err != nil {
				t.Errorf("not set aside: %v", err)
			}
			if _, _, err := p.load("demo"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the second time: %v, want that there is none", err)
			}
		})
	}
}

func TestAnUnchangedSnapshotIsNotWrittenAgain(t *testing.T) {
	p := newPictures(t.TempDir(), slog.New(slog.DiscardHandler))
	s := demoSnapshot("demo")
	p.keep(s)
	p.save()
	if err := os.Remove(p.path("demo")); err != nil {
		t.Fatal(err)
	}
	s.At = time.Now()
	p.keep(s)
	p.save()
	if _, err := os.Stat(p.path("demo")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("written again although only the time differs (%v)", err)
	}
	s.Slices = nil
	p.keep(s)
	p.save()
	if _, err := os.Stat(p.path("demo")); err != nil {
		t.Errorf("a changed one is not written: %v", err)
	}
}
