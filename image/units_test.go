package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const unitDir = "units/usr/lib/systemd/system"

const recipeDir = "recipe/tree/usr/lib/systemd/system"

// exposed has systemd judge a unit: a line with the figure, and an error if it is
// over this many tenths, of 100. Up to 49 is what systemd calls OK.
func exposed(unit string, most int) (string, error) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", fmt.Sprintf("--threshold=%d", most), unit).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err
}

// TestEveryUnitIsHardened holds each unit to what it has reached. HAProxy is in the
// unit of the process. Those that mount for all, or give a shell, cannot have more.
func TestEveryUnitIsHardened(t *testing.T) {
	most := map[string]int{
		"sallyport.service": 30, "sallyport-wait.service": 16, "sallyport-screen@.service": 23, "sallyport-ready.service": 16,
		"sallyport-update.service": 22, "sallyport-swap.service": 32,
		"sallyport-state.service": 40, "sallyport-prepare.service": 45, "sallyport-watch.service": 48, "sallyport-ssh.service": 41,
	}
	var units []string
	for _, dir := range []string{unitDir, recipeDir} {
		found, err := filepath.Glob(dir + "/sallyport*.service")
		if err != nil {
			t.Fatal(err)
		}
		units = append(units, found...)
	}
	for _, unit := range units {
		bound, ok := most[filepath.Base(unit)]
		if !ok {
			t.Errorf("%s has no bound", unit)
		}
		said, err := exposed(unit, bound)
		if err != nil {
			t.Errorf("%s: %v, over %d: %s", unit, err, bound, said)
		}
		t.Log(said)
		delete(most, filepath.Base(unit))
	}
	if len(most) > 0 {
		t.Errorf("no such units: %v", most)
	}
	// The judge does not find everything right.
	bare := filepath.Join(t.TempDir(), "bare.service")
	if err := os.WriteFile(bare, []byte("[Service]\nExecStart=/usr/bin/true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exposed(bare, 49); err == nil {
		t.Errorf("a unit with all rights: got %s", said)
	}
}

// TestWhatAKeyboardStartsIsMasked looks at what is masked.
func TestWhatAKeyboardStartsIsMasked(t *testing.T) {
	for _, unit := range []string{"ctrl-alt-del.target", "debug-shell.service"} {
		if to, err := os.Readlink(filepath.Join(unitDir, unit)); err != nil || to != os.DevNull {
			t.Errorf("%s leads to %q (%v), want %s", unit, to, err, os.DevNull)
		}
	}
	for file, want := range map[string]string{
		"units/usr/lib/systemd/system.conf.d/sallyport.conf": "CtrlAltDelBurstAction=none", "units/usr/lib/sysctl.d/60-sallyport.conf": "kernel.sysrq = 0",
		"recipe/mkosi.conf": "sysctl.kernel.sysrq=0",
	} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %s (%v)", file, want, err)
		}
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
