package image

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const unitDir = "units/usr/lib/systemd/system"

const recipeDir = "recipe/tree/usr/lib/systemd/system"

// exposed returns the line with a unit's exposure level of systemd-analyze security, and
// an error if the level is over this many tenths. systemd calls up to 49 OK.
func exposed(unit string, most int) (string, error) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager",
		fmt.Sprintf("--threshold=%d", most), unit).CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], err
}

// TestEveryUnitIsHardened bounds the exposure level of each unit by its present one.
// HAProxy runs in the unit of the process. Units that mount for all units, or that give a
// shell, cannot be hardened further.
func TestEveryUnitIsHardened(t *testing.T) {
	most := map[string]int{
		"sallyport.service": 32, "sallyport-wait.service": 16, "sallyport-screen@.service": 23,
		"sallyport-ready.service": 16,
		"sallyport-vrrp.service":  28, "sallyport-update.service": 22, "sallyport-swap.service": 32,
		"sallyport-state.service": 40, "sallyport-prepare.service": 45, "sallyport-watch.service": 48,
		"sallyport-ssh.service": 41,
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

func TestWhatAKeyboardStartsIsMasked(t *testing.T) {
	for _, unit := range []string{"ctrl-alt-del.target", "debug-shell.service"} {
		if to, err := os.Readlink(filepath.Join(unitDir, unit)); err != nil || to != os.DevNull {
			t.Errorf("%s leads to %q (%v), want %s", unit, to, err, os.DevNull)
		}
	}
	for file, want := range map[string]string{
		"units/usr/lib/systemd/system.conf.d/sallyport.conf": "CtrlAltDelBurstAction=none",
		"units/usr/lib/sysctl.d/60-sallyport.conf":           "kernel.sysrq = 0",
		"recipe/mkosi.conf":                                  "sysctl.kernel.sysrq=0",
	} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %s (%v)", file, want, err)
		}
	}
}

// verify runs systemd-analyze verify on the units of a root, and returns its complaints.
func verify(t *testing.T, root string, units ...string) string {
	t.Helper()
	out, err := exec.Command("systemd-analyze",
		append([]string{"verify", "--root=" + root}, units...)...).CombinedOutput()
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
	for _, program := range []string{
		"/usr/bin/sallyport", "/usr/bin/sh", "/usr/bin/rm", "/usr/bin/udevadm",
		"/usr/sbin/sshd", "/usr/sbin/keepalived",
	} {
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

// TestThePresetNamesEveryUnit finds a forgotten unit: the image enables only units that
// the preset names.
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

// TestTheDiskIsTheOneThatStartedTheMachine runs the script that finds the disk, with
// stand-ins for the programs that list a machine's disks.
func TestTheDiskIsTheOneThatStartedTheMachine(t *testing.T) {
	script, err := os.ReadFile("recipe/tree/usr/lib/sallyport/state")
	if err != nil {
		t.Fatal(err)
	}
	const stick, own = "../../devices/pci0/usb1/1-1/block/sda/sda1", "../../devices/pci0/virtio2/block/vda/vda1"
	for name, row := range map[string]struct {
		said  string            // by systemd-boot, as a partition's number
		parts map[string]string // the first partition of each disk, with its number
		label string            // the partition that the link to the label ESP leads to
		want  string            // the disk; empty: none
	}{
		"one disk": {"ABC-1", map[string]string{own: "abc-1"}, "vda1", "/dev/vda"},
		"a stick of the same label": {
			"ABC-1",
			map[string]string{own: "abc-1", stick: "def-1"},
			"sda1",
			"/dev/vda",
		},
		"a copy of the disk": {
			"ABC-1",
			map[string]string{own: "abc-1", stick: "abc-1"},
			"sda1",
			"/dev/vda",
		},
		"a stick that started it": {
			"DEF-1",
			map[string]string{own: "abc-1", stick: "def-1"},
			"vda1",
			"/dev/sda",
		},
		"nobody says, and there is one":  {"", map[string]string{own: "abc-1"}, "vda1", "/dev/vda"},
		"nobody says, and there is none": {"", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			var list strings.Builder
			for _, link := range slices.Sorted(maps.Keys(row.parts)) {
				part := filepath.Base(link)
				disk := strings.TrimSuffix(part, "1")
				fmt.Fprintf(&list, "/dev/zram0 \n/dev/%[1]s \n/dev/%[1]s1 %[2]s\n", disk, row.parts[link])
				block := "/sys" + strings.TrimPrefix(filepath.Dir(link), "../..")
				h.put(block+"/size", "400000\n")
				for part, start := range map[string]string{"1": "2048", "3": "200000"} {
					h.put(block+"/"+disk+part+"/start", start+"\n")
					h.put(block+"/"+disk+part+"/size", "199000\n")
					h.link("/sys/class/block/"+disk+part, filepath.Dir(link)+"/"+disk+part)
				}
			}
			h.program("/bin/lsblk", `case "$2" in
NAME,PARTUUID) cat <<'END'
`+list.String()+`END
;;
NAME,PARTLABEL) printf '%s \n%s1 ESP\n%s3 sallyport-state\n' "$3" "$3" "$3" ;;
PKNAME) echo "$2 $3" | sed 's,.*/,,; s/1$//' ;;
esac`)
			h.program("/bin/blkid", "echo ext4")
			for _, program := range []string{"udevadm", "fsck.vfat", "e2fsck", "systemd-repart", "systemd-growfs"} {
				h.program("/bin/"+program, "")
			}
			h.program("/bin/mount", `[ "$*" = "-t ext4 -o nosuid,nodev,noexec,nosymfollow,noatime `+row.want+"3 "+
				h.path(stateDir)+`" ]`)
			if row.said != "" {
				h.put("/sys/firmware/efi/efivars/LoaderDevicePartUUID-4a67",
					"\x06\x00\x00\x00"+strings.Join(strings.Split(row.said, ""), "\x00")+"\x00\x00\x00")
			}
			if row.label != "" {
				h.put("/dev/"+row.label, "")
				h.link("/dev/disk/by-partlabel/ESP", "../../"+row.label)
			}
			text := string(script)
			for _, folder := range []string{"/sys/", "/run/", "/var/", "/dev/disk/"} {
				text = strings.ReplaceAll(text, folder, h.path(folder)+"/")
			}
			text = strings.ReplaceAll(text, "/usr/lib/systemd/", "")
			cmd := exec.Command("/bin/sh", "-c", text)
			cmd.Env = []string{"PATH=" + h.path("/bin") + ":/usr/sbin:/usr/bin:/sbin:/bin"}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			disk, _ := os.Readlink(h.path(diskLink))
			esp, _ := os.Readlink(h.path(filepath.Dir(diskLink) + "/esp"))
			if disk != row.want || strings.TrimPrefix(esp, h.Root) != row.want+
				map[bool]string{true: "1"}[row.want != ""] {
				t.Errorf("got the disk %q with the ESP %q, want the disk %q", disk, esp, row.want)
			}
		})
	}
}

// TestOnlyTheStatePartitionGrows compares the sizes of partitions in the recipe with
// the limits to which a start grows them.
func TestOnlyTheStatePartitionGrows(t *testing.T) {
	for _, name := range []string{"10-esp.conf", "20-config.conf"} {
		made, err := os.ReadFile("recipe/repart/" + name)
		if err != nil {
			t.Fatal(err)
		}
		divided, err := os.ReadFile("recipe/tree/usr/lib/repart.d/" + name)
		if err != nil {
			t.Fatal(err)
		}
		size := regexp.MustCompile(`(?m)^SizeMaxBytes=(\S+)$`)
		want, got := size.FindStringSubmatch(string(made)), size.FindStringSubmatch(string(divided))
		if want == nil || !slices.Equal(got, want) {
			t.Errorf("%s: at a start it may have %q, want %q", name, got, want)
		}
	}
}

// The line of the unit runs with a systemctl that has one job, and a sallyport that tells
// how it was started.
func TestAStopDrainsAndARestartDoesNot(t *testing.T) {
	unit, err := os.ReadFile(filepath.Join(unitDir, "sallyport.service"))
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ExecStop=/usr/bin/sh -c '(.*)'$`).FindStringSubmatch(string(unit))
	if line == nil {
		t.Fatal("the unit has no ExecStop of this form")
	}
	script := strings.NewReplacer("$$", "$", "%n", "sallyport.service").Replace(line[1])
	bin := t.TempDir()
	for name, text := range map[string]string{"systemctl": "echo \"$* $JOB\"", "sallyport": "echo sallyport \"$@\""} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	const drains = "sallyport drain --wait --stopping\n"
	for job, want := range map[string]string{
		"1234 sallyport.service stop running":    drains,
		"1234 sallyport.service restart running": "",
		"":                                       drains, // systemctl cannot ask
	} {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Env = []string{"PATH=" + bin, "JOB=" + job}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("job %q: got %q, %v, want %q", job, out, err, want)
		}
	}
}
