package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const unitDir = "units/usr/lib/systemd/system"

// exposed has systemd judge a unit: a line with the figure, and an error if it is
// over 4.9 of 10, which is what it calls OK.
func exposed(unit string) (string, error) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=49", unit).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err
}

// TestWhatListensIsHardened is about the units that the network reaches. HAProxy
// is in the unit of the process.
func TestWhatListensIsHardened(t *testing.T) {
	for _, unit := range []string{"sallyport.service", "sallyport-wait.service", "sallyport-screen@.service", "sallyport-ready.service"} {
		said, err := exposed(filepath.Join(unitDir, unit))
		if err != nil {
			t.Errorf("%s: %v: %s", unit, err, said)
		}
		t.Log(said)
	}
	// The judge does not find everything right.
	if said, err := exposed(filepath.Join(unitDir, "sallyport-prepare.service")); err == nil {
		t.Errorf("a unit with all rights: got %s", said)
	}
}

// verify has systemd read the units of a root, and returns what it complains of.
func verify(t *testing.T, root string, units ...string) string {
	t.Helper()
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--root=" + root}, units...)...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze: %v", err)
	}
	return string(out)
}

func TestSystemdUnderstandsTheUnits(t *testing.T) {
	h := newHouse(t)
	if err := os.CopyFS(h.Root, os.DirFS("units")); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"/usr/bin/sallyport", "/usr/bin/sh", "/usr/bin/udevadm", "/usr/sbin/sshd"} {
		h.put(program, "#!/bin/sh\n")
		if err := os.Chmod(h.path(program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	targets, err := filepath.Glob("/usr/lib/systemd/system/*.target")
	if err != nil || len(targets) == 0 {
		t.Fatal("this machine has no systemd", err)
	}
	for _, path := range targets {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h.put(path, string(text))
	}
	// One that Prepare makes.
	timer := files(machines(t)["static"], nil)["/run/systemd/system/sallyport-update.timer"]
	h.put("/usr/lib/systemd/system/sallyport-update.timer", timer.content)
	var units []string
	for _, pattern := range []string{"*.service", "*.timer"} {
		found, err := filepath.Glob(h.path("/usr/lib/systemd/system/sallyport" + pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			units = append(units, strings.Replace(filepath.Base(path), "@.", "@tty1.", 1))
		}
	}
	if len(units) < 9 || !slices.Contains(units, "sallyport-update.timer") {
		t.Fatalf("the units are %q", units)
	}
	if said := verify(t, h.Root, units...); said != "" {
		t.Errorf("systemd says: %s", said)
	}
	h.put("/usr/lib/systemd/system/sallyport-bad.service", "[Service]\nExecStart=/usr/bin/sallyport\nKillMod=process\n")
	if said := verify(t, h.Root, "sallyport-bad.service"); !strings.Contains(said, "KillMod") {
		t.Errorf("of a slip systemd says: %q", said)
	}
}

// TestThePresetNamesEveryUnit keeps a unit from being forgotten: in the image
// nothing is on that the preset does not name.
func TestThePresetNamesEveryUnit(t *testing.T) {
	preset, err := os.ReadFile("units/usr/lib/systemd/system-preset/10-sallyport.preset")
	if err != nil {
		t.Fatal(err)
	}
	units, err := filepath.Glob(filepath.Join(unitDir, "*.service"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range units {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Contains(string(text), "[Install]")
		if got := strings.Contains(string(preset), "enable "+filepath.Base(path)); got != want {
			t.Errorf("%s: the preset enables it: %v; it can be: %v", path, got, want)
		}
	}
}
