package debian

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Debian's experimental has a HAProxy at times only.
func TestASuiteWithoutHAProxyIsLeftOut(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("SALLYPORT_CACHE", cache)
	t.Setenv("SALLYPORT_TEST_HAPROXY", "")
	t.Setenv("PATH", cache)
	if err := os.WriteFile(filepath.Join(cache, "haproxy"), nil, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	want := []string{filepath.Join(cache, "haproxy")}
	for _, p := range OtherHAProxies() {
		if _, err := HAProxies(); err == nil || !strings.Contains(err.Error(), "make setup") {
			t.Errorf("before %s is fetched: error %v, want one that names make setup", p, err)
		}
		folder := filepath.Join(cache, "debian", p.Suite, p.Name)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if p.Suite == "experimental" { // Fetch leaves an empty folder
			continue
		}
		want = append(want, filepath.Join(folder, "haproxy"))
		if err := os.WriteFile(filepath.Join(folder, "haproxy"), nil, 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	got, err := HAProxies()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	var progress strings.Builder
	if err := FetchHAProxies(t.Context(), &progress); err != nil ||
		!strings.Contains(progress.String(), "experimental had no haproxy") {
		t.Errorf("got error %v and %q, want none and a sentence about experimental", err, progress.String())
	}
	if _, err := (Package{"experimental", "haproxy"}).Folder(); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want ErrNone", err)
	}
}
