package world

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// realCalico returns the folder with Calico, from the cache if it is there.
func realCalico(t *testing.T) string {
	t.Helper()
	folder, err := RealCalico(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestTheProgramIsThisCalico(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(realCalico(t), "calico"), "version").CombinedOutput()
	if err != nil || string(out) != "v3.28.5\n" {
		t.Errorf("got %q (%v), want v3.28.5", out, err)
	}
	manifest, err := os.ReadFile(filepath.Join(realCalico(t), "calico.yaml"))
	if err != nil || !strings.Contains(string(manifest), "docker.io/calico/node:v3.28.5\n") {
		t.Errorf("the manifest is not that of v3.28.5 (%v)", err)
	}
}

func TestAnEditNeedsItsTextOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	for text, want := range map[string]string{
		"one":         "two",
		"two":         "\"one\" 0 times",
		"one and one": "\"one\" 2 times",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := (edit{file: file, old: "one", new: "two"}).apply(); err != nil {
			got = err.Error()
		} else if changed, err := os.ReadFile(file); err == nil {
			got = string(changed)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
