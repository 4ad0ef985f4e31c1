package haproxy

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// text returns a content for Replace.
func text(content string) func(io.Writer) error {
	return func(to io.Writer) error {
		_, err := io.WriteString(to, content)
		return err
	}
}

// TestAKilledReplacementLeavesTheOldFile kills a process that has written half of the new content,
// and then replaces the file for good.
func TestAKilledReplacementLeavesTheOldFile(t *testing.T) {
	if path := os.Getenv("SALLYPORT_TEST_REPLACE"); path != "" {
		_ = Replace(path, 0o600, func(to io.Writer) error {
			return errors.Join(text("half")(to), syscall.Kill(os.Getpid(), syscall.SIGKILL))
		})
		t.Fatal("the process lives")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	if err := Replace(path, 0o640, text("old")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		killed := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		killed.Env = append(os.Environ(), "SALLYPORT_TEST_REPLACE="+path)
		if out, err := killed.CombinedOutput(); err == nil {
			t.Fatalf("the process was not killed: %s", out)
		}
		if has, err := os.ReadFile(path); err != nil || string(has) != "old" {
			t.Fatalf("after the kill: %q, %v; want the old content", has, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("got %v, %v; want the file and what the last killed process left", entries, err)
	}
	if err := Replace(path, 0o604, text("new")); err != nil {
		t.Fatal(err)
	}
	has, err := os.ReadFile(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || string(has) != "new" || info.Mode() != 0o604 {
		t.Errorf("got %q, %v, %v; want the new content with mode 0604", has, info, errors.Join(err, statErr))
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v; want the file alone", entries, err)
	}
}

func TestAReplacementThatFailsLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	if err := Replace(path, 0o600, text("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	err := Replace(path, 0o600, func(to io.Writer) error { return errors.Join(text("half")(to), full) })
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	has, _ := os.ReadFile(path)
	if entries, _ := os.ReadDir(dir); string(has) != "old" || len(entries) != 1 {
		t.Errorf("got %q and %v, want the old content and no other file", has, entries)
	}
}

// TestAReplacementFollowsNoLink tries links at both names: that of the file, and that of its
// scratch file.
func TestAReplacementFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	strange, path := filepath.Join(dir, "strange"), filepath.Join(dir, "kept")
	if err := errors.Join(os.WriteFile(strange, []byte("strange"), 0o600), os.Symlink(strange, path),
		os.Symlink(strange, filepath.Join(dir, ".new-kept"))); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, 0o600, text("new")); err != nil {
		t.Fatal(err)
	}
	if has, err := os.ReadFile(strange); err != nil || string(has) != "strange" {
		t.Errorf("the file of a link has %q, %v", has, err)
	}
	f, err := OpenRegular(path, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	if has, err := io.ReadAll(f); err != nil || string(has) != "new" {
		t.Errorf("got %q, %v; want the new content", has, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".new-kept")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the scratch file: %v, want none", err)
	}
}
