package picture

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sallyport/ingress"
	"sallyport/ingress/input"
	"sallyport/routes"
)

// moments are snapshots of a cluster one after the other.
func moments() []input.Snapshot {
	s := snapshotOfEveryKind()
	var all []input.Snapshot
	add := func(change func()) {
		change()
		all = append(all, s)
	}
	add(func() {})
	add(func() { // an object has a new version
		slice := s.Slices[0].DeepCopy()
		slice.Endpoints = slice.Endpoints[:1]
		s.Slices = slices.Concat([]*discoveryv1.EndpointSlice{slice}, s.Slices[1:])
	})
	add(func() { // one comes, before all others
		secret := s.Secrets[0].DeepCopy()
		secret.Name = "a"
		s.Secrets = slices.Concat([]*corev1.Secret{secret}, s.Secrets)
	})
	add(func() { s.Ingresses = nil }) // all of a kind go
	add(func() {                      // a pod comes
		block := *s.Topology.Blocks[0]
		block.Pods = maps.Clone(block.Pods)
		block.Pods[block.Prefix.Addr()] = "default"
		s.Topology.Blocks = slices.Concat([]*routes.IPAMBlock{&block}, s.Topology.Blocks[1:])
	})
	add(func() { s.Topology.Blocks = s.Topology.Blocks[:1] }) // blocks go
	add(func() { s.Owners = nil })
	return all
}

func samePicture(t *testing.T, what string, want input.Snapshot, got Picture) {
	t.Helper()
	if diff := cmp.Diff(want, got.Snapshot, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
		cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: -want +got\n%s", what, diff)
	}
}

func TestAPictureHoldsTheNewestOfEachObject(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	whole := []byte(nil)
	for i, want := range moments() {
		p.Keep(want, ingress.Result{})
		p.Save()
		got, err := p.Load("demo")
		if err != nil {
			t.Fatal(err)
		}
		samePicture(t, fmt.Sprint("moment ", i), want, got)
		text, err := os.ReadFile(p.path("demo"))
		if err != nil {
			t.Fatal(err)
		}
		if whole == nil {
			whole = text
		} else if !bytes.Equal(whole, text) {
			t.Fatalf("moment %d: the whole picture was written again", i)
		}
	}
}

// A crash while an update is appended costs that update alone, and those after it.
func TestUpdatesCutAnywhereLeaveTheMomentBefore(t *testing.T) {
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	all, ends := moments(), []int{0}
	for i, s := range all {
		p.Keep(s, ingress.Result{})
		p.Save()
		if i > 0 {
			ends = append(ends, int(p.saved["demo"].updates))
		}
	}
	text, err := os.ReadFile(p.updatesPath("demo"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n <= len(text); n += 7 {
		if err := os.WriteFile(p.updatesPath("demo"), text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := p.Load("demo")
		if err != nil {
			t.Fatal(err)
		}
		moment := 0
		for moment+1 < len(ends) && ends[moment+1]-1 <= n { // without the line's end it is whole, too
			moment++
		}
		samePicture(t, fmt.Sprintf("%d of %d bytes", n, len(text)), all[moment], got)
		if t.Failed() {
			return
		}
	}
}

func TestUpdatesOfAnotherPictureDoNotCount(t *testing.T) {
	all := moments()
	p := New(t.TempDir(), slog.New(slog.DiscardHandler))
	for _, s := range all[:3] {
		p.Keep(s, ingress.Result{})
		p.Save()
	}
	old, err := os.ReadFile(p.updatesPath("demo"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.replace(all[6]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.updatesPath("demo"), old, 0o600); err != nil { // as after a crash before they are removed
		t.Fatal(err)
	}
	got, err := p.Load("demo")
	if err != nil {
		t.Fatal(err)
	}
	samePicture(t, "the new picture", all[6], got)
}

// Whatever becomes of the file of updates, the next save is read again.
func TestASaveDoesNotTrustUpdatesThatChanged(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"is removed": os.Remove,
		"is cut":     func(path string) error { return os.Truncate(path, 10) },
		"has more": func(path string) error {
			return os.WriteFile(path, []byte(strings.Repeat("{", 5000)), 0o600)
		},
		"is a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"is a symbolic link": func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := moments()
			p := New(t.TempDir(), slog.New(slog.DiscardHandler))
			for _, s := range all[:3] {
				p.Keep(s, ingress.Result{})
				p.Save()
			}
			if err := spoil(p.updatesPath("demo")); err != nil {
				t.Fatal(err)
			}
			p.Keep(all[3], ingress.Result{})
			p.Save()
			if err := p.Fault("demo"); err != nil {
				t.Fatal(err)
			}
			got, err := p.Load("demo")
			if err != nil {
				t.Fatal(err)
			}
			samePicture(t, name, all[3], got)
		})
	}
}

// One changed object writes as much in a large cluster as in a small one, and the file of
// updates does not grow for ever.
func TestOneChangeWritesTheSameInAnyCluster(t *testing.T) {
	var sizes []int64
	for _, n := range []int{20, 2000} {
		p := New(t.TempDir(), slog.New(slog.DiscardHandler))
		s, toggle := crowd(n)
		p.Keep(*s, ingress.Result{})
		p.Save()
		toggle()
		p.Keep(*s, ingress.Result{})
		p.Save()
		saved := p.saved["demo"]
		if saved == nil || saved.updates == 0 {
			t.Fatalf("%d Services: no update was written", n)
		}
		sizes = append(sizes, saved.updates)
		for i := range 2000 {
			before := saved.updates
			toggle()
			s.Options.Class = strconv.Itoa(i)
			p.Keep(*s, ingress.Result{})
			p.Save()
			if saved = p.saved["demo"]; saved.updates < before {
				break
			}
			if saved.updates > 2*max(saved.whole, updatesLeast) {
				t.Fatalf("%d Services: %d bytes of updates for a picture of %d", n, saved.updates, saved.whole)
			}
			if i == 1999 && n == 20 {
				t.Errorf("the updates have %d bytes, and no whole picture came", saved.updates)
			}
		}
	}
	if sizes[1] > sizes[0]+1000 {
		t.Errorf("one change writes %d bytes with 2,000 Services, %d with 20", sizes[1], sizes[0])
	}
}

func FuzzUpdates(f *testing.F) {
	p := New(f.TempDir(), slog.New(slog.DiscardHandler))
	for _, s := range moments() {
		p.Keep(s, ingress.Result{})
		p.Save()
	}
	text, err := os.ReadFile(p.updatesPath("demo"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		pic := Picture{Taken: p.saved["demo"].taken, Snapshot: moments()[0]}
		_ = replay(bytes.NewReader(data), &pic) // it must not panic, and what it leaves can be written
		if _, err := New("", nil).encode(new(bytes.Buffer), pic.Snapshot); err != nil {
			t.Error(err)
		}
	})
}
