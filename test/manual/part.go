package manual

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Part returns the text of a page between the marks <!-- name: begin --> and <!-- name: end -->, and the
// texts before and after it, with the marks. ok is false if the page lacks a mark.
func Part(page, name string) (before, part, after string, ok bool) {
	begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->"
	before, rest, begins := strings.Cut(page, begin)
	part, after, ends := strings.Cut(rest, end)
	return before + begin, part, end + after, begins && ends
}

// Hold fails a test if a part of the page in a file is not want. With update it writes the part
// instead.
func Hold(t testing.TB, file, name, want string, update bool) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, got, after, ok := Part(string(page), name)
	if !ok {
		t.Fatalf("%s has no place for %s", file, name)
	}
	if update {
		if err := os.WriteFile(file, []byte(before+want+after), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s is old: run this test with -update, or make golden\n-want +got\n%s", file, diff)
	}
}
