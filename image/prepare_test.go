package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/image/update"
)

// A house is a machine below a root folder, and records the programs it starts.
type house struct {
	Machine
	t       *testing.T
	started []string
	volumes map[string]blockDevice // by name
}

// A blockDevice is an entry of lsblk's JSON.
type blockDevice struct {
	Name   string  `json:"name"`
	PKName *string `json:"pkname"`
	FSType string  `json:"fstype"`
	Label  string  `json:"label"`
}

func newHouse(t *testing.T) *house {
	h := &house{t: t, volumes: map[string]blockDevice{}}
	h.Root = t.TempDir()
	h.Mount = func(device, dir, _ string) error {
		return unix.Mount(device, dir, "", unix.MS_BIND, "")
	}
	h.list()
	h.Start = func(_ context.Context, _, program string, args ...string) error {
		h.started = append(h.started, strings.ReplaceAll(program+" "+strings.Join(args, " "), h.Root, ""))
		return nil
	}
	return h
}

func (h *house) put(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(h.path(name), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) get(name string) string {
	h.t.Helper()
	text, err := os.ReadFile(h.path(name))
	if err != nil {
		return ""
	}
	return string(text)
}

func (h *house) prepare() State {
	h.t.Helper()
	want, err := h.Prepare(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	got, err := h.State()
	if err != nil || got.Source != want.Source || !slices.Equal(got.Lines(), want.Lines()) {
		h.t.Errorf("the state left is %+v, %v; want %+v", got, err, want)
	}
	return want
}

func (h *house) again() (said []string) {
	h.t.Helper()
	if err := h.Machine.again(h.t.Context(), func(s string) { said = append(said, s) }); err != nil {
		h.t.Fatal(err)
	}
	return said
}

const credential = "/run/credentials/@system/sallyport.yaml"

func named(name string) string { return cluster + "system: {hostname: " + name + "}\n" }

func TestABadFileLeavesTheLastGoodOne(t *testing.T) {
	h := newHouse(t)
	h.put(credential, named("one"))
	if s := h.prepare(); s.Source != sources[0].name || s.Refused != nil || s.Hostname != "one" {
		t.Errorf("a good file: got %+v", s)
	}
	if got := h.get(configFile); got != named("one") {
		t.Errorf("got %q for the process", got)
	}
	for _, name := range []string{configFile, keptFile} {
		if info, err := os.Stat(h.path(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v; want mode 0600", name, info.Mode(), err)
		}
	}

	for name, bad := range map[string]string{
		"not YAML":            "clusters: [",
		"empty":               "",
		"an unknown key":      cluster + "systems: {}\n",
		"a kubeconfig's path": "clusters:\n- kubeconfig: /etc/kubeconfig\n",
		"a place of its own":  cluster + "stateDir: /elsewhere\n",
		"port 22 given away":  cluster + "haproxy: {reservedPorts: [53, 68, 546]}\n",
		"too large":           strings.Repeat("#", maxFile+1),
	} {
		h.put(credential, bad)
		s := h.prepare()
		if s.Source != "the last good file, from "+sources[0].name && name != "too large" || s.Hostname != "one" ||
			len(s.Lines()) == 0 {
			t.Errorf("%s: got %+v, want the last good file and what is wrong", name, s)
		}
		if got := h.get(configFile); got != named("one") {
			t.Errorf("%s: got %q for the process", name, got)
		}
		if got := h.get(noticeFile); !strings.Contains(got, "sallyport.yaml") {
			t.Errorf("%s: the notices are %q", name, got)
		}
	}

	h.put(credential, named("two"))
	if s := h.prepare(); s.Refused != nil || s.Hostname != "two" || h.get(configFile) != named("two") {
		t.Errorf("a mended file: got %+v", s)
	}
	if err := os.Remove(h.path(credential)); err != nil {
		t.Fatal(err)
	}
	if s := h.prepare(); s.Source != "the last good file, from "+sources[0].name || s.Hostname != "two" {
		t.Errorf("a file that is gone: got %+v", s)
	}
}

func TestWithoutAFileThereIsOnlyTheWayToGiveOne(t *testing.T) {
	h := newHouse(t)
	s := h.prepare()
	if s.Source != "" || s.Status != "http://127.0.0.1:9090" {
		t.Errorf("got %+v", s)
	}
	if h.get(configFile) != "" || h.get(networkDir+"50-sallyport-any.network") == "" {
		t.Error("want DHCP, and nothing for the process")
	}
	if want := []string{"nft -f " + wallFile}; !slices.Equal(h.started, want) {
		t.Errorf("started %q, want %q", h.started, want)
	}

	h.put(credential, "clusters: [")
	if said := h.again(); len(said) == 0 || h.get(configFile) != "" {
		t.Errorf("a bad file: said %q", said)
	}
	if s, _ := h.State(); s.Refused == nil {
		t.Errorf("a bad file: got %+v", s)
	}
}

func TestAFileThatChangesIsUsedFromThenOn(t *testing.T) {
	h := newHouse(t)
	full := cluster +
		"system: {interfaces: [{name: eth0}], ntp: [10.0.0.1], console: false, update: {url: 'http://10.0.0.1/'}}\n"
	h.put(credential, full)
	h.prepare()
	h.started = nil
	if h.again(); len(h.started) > 0 {
		t.Errorf("nothing changed, and it started %q", h.started)
	}

	h.put(credential, "clusters: [")
	if said := strings.Join(h.again(), "\n"); !strings.Contains(said, "is not used: ") || len(h.started) > 0 ||
		h.get(configFile) != full {
		t.Errorf("a bad file: said %q, started %q", said, h.started)
	}
	if h.again(); len(h.started) > 0 {
		t.Errorf("the same bad file: started %q", h.started)
	}
	if !strings.Contains(h.get(noticeFile), "is not used: ") {
		t.Errorf("a bad file, a moment later: notices %q", h.get(noticeFile))
	}

	h.put(credential, named("two"))
	if said := strings.Join(h.again(), "\n"); !strings.Contains(said, "is in use now") ||
		h.get(configFile) != named("two") {
		t.Errorf("another file: said %q", said)
	}
	if !strings.Contains(strings.Join(h.started, "\n"), "restart sallyport.service") {
		t.Errorf("another file: started %q", h.started)
	}
	if left, _ := filepath.Glob(h.path("/run/systemd/*/*")); len(left) != 1 {
		t.Errorf("of the files of the first machine there are %q", left)
	}
	if h.get(dumbFile) != "" || strings.Contains(h.get(noticeFile), "is not used") {
		t.Errorf("another file: notices %q", h.get(noticeFile))
	}
}

func TestTheProcessIsRestartedOnlyWhereReadingTheFileAgainIsNotEnough(t *testing.T) {
	for name, row := range map[string]struct {
		was, now string
		inactive bool
		want     string
	}{
		"another setting of the process": {
			was: cluster, now: cluster + "haproxy: {maxConnections: 1000}\n",
			want: "reload",
		},
		"another cluster": {
			was: cluster,
			now: strings.Replace(cluster, "- ", "- name: one\n  ", 1), want: "reload",
		},
		"a key that needs a restart": {
			was: cluster, now: cluster + "routes: {table: 100}\n",
			want: "restart",
		},
		"another machine": {was: cluster, now: named("two"), want: "restart"},
		"the process is not ready for another": {
			was: cluster, now: cluster + "haproxy: {maxConnections: 1000}\n",
			inactive: true, want: "restart",
		},
		"the first file": {was: "clusters: [", now: cluster, want: "restart"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			run := h.Start
			h.Start = func(ctx context.Context, stdin, program string, args ...string) error {
				if row.inactive && slices.Contains(args, "is-active") {
					return errors.New("exit status 3")
				}
				return run(ctx, stdin, program, args...)
			}
			h.put(credential, row.was)
			h.prepare()
			h.started = nil
			h.put(credential, row.now)
			h.again()
			if want := "systemctl --no-block " + row.want + " sallyport.service"; !slices.Contains(h.started, want) {
				t.Errorf("started %q, want %q", h.started, want)
			}
		})
	}
}

// volume plugs in a volume with these files. It is a folder: this machine's kernel may
// lack the file systems. The tests that boot the image have real ones.
func (h *house) volume(device, label string, files map[string]string) {
	h.t.Helper()
	d := blockDevice{Name: device, FSType: "vfat", Label: label}
	if disk := strings.TrimRight(device, "0123456789"); disk != device {
		d.PKName = &disk
	}
	h.volumes[device] = d
	h.list()
	_ = os.RemoveAll(h.path(device))
	for _, folder := range []string{device, "/run"} {
		if err := os.MkdirAll(h.path(folder), 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	for name, text := range files {
		h.put(device+"/"+name, text)
	}
}

// pull removes a volume.
func (h *house) pull(device string) {
	h.t.Helper()
	delete(h.volumes, device)
	h.list()
}

// list replaces lsblk by a program that lists the volumes, by name.
func (h *house) list() {
	h.t.Helper()
	all := []blockDevice{{Name: "/dev/zram0", FSType: "swap"}}
	for _, name := range slices.Sorted(maps.Keys(h.volumes)) {
		all = append(all, h.volumes[name])
	}
	text, err := json.Marshal(map[string]any{"blockdevices": all})
	if err != nil {
		h.t.Fatal(err)
	}
	h.program("/usr/bin/lsblk", "cat <<'END'\n"+string(text)+"\nEND")
}

// program replaces a program by a shell script.
func (h *house) program(name, script string) {
	h.t.Helper()
	h.put(name, "#!/bin/sh\n"+script+"\n")
	if err := os.Chmod(h.path(name), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// link makes a symbolic link.
func (h *house) link(name, target string) {
	h.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(h.path(name)), 0o755),
		os.Symlink(target, h.path(name))); err != nil {
		h.t.Fatal(err)
	}
}

// startedFrom sets the disk that started the machine.
func (h *house) startedFrom(disk string) { h.link(diskLink, disk) }

func TestTheFirstSourceThatHasAFileWins(t *testing.T) {
	h := newHouse(t)
	at := func(want string) {
		t.Helper()
		if s := h.prepare(); s.Hostname != want || s.Refused != nil {
			t.Errorf("got the machine %q from %q (%v), want %q", s.Hostname, s.Source, s.Lines(), want)
		}
	}
	h.volume("/dev/sr0", "cidata", map[string]string{"user-data": "#cloud-config\n" + named("seed"), "meta-data": ""})
	at("seed")
	h.volume("/dev/sr1", "CIDATA",
		map[string]string{"user-data": "#cloud-config\nusers: []\n", "sallyport.yaml": named("seed2")})
	at("seed2")
	h.volume("/dev/sdb1", "CONFIG", map[string]string{"README.TXT": "nothing", "user-data": named("another")})
	at("seed2")
	h.volume("/dev/sdc", "CONFIG", map[string]string{"sallyport.yaml": named("stick")})
	at("stick")
	h.startedFrom("/dev/vda")
	at("stick")
	h.volume("/dev/vda2", "CONFIG", map[string]string{"README.TXT": "nothing"})
	at("stick")
	h.volume("/dev/vda2", "CONFIG", map[string]string{"sallyport.yaml": named("partition")})
	at("partition")
	h.put("/sys/class/dmi/id/sys_vendor", "VMware, Inc.\n")
	h.program("/usr/bin/vmware-rpctool", "[ \"$1\" = 'info-get guestinfo.sallyport.yaml' ] && echo "+
		base64.StdEncoding.EncodeToString([]byte(named("guest"))))
	at("guest")
	h.program("/usr/bin/vmware-rpctool", "echo No value found; exit 1")
	at("partition")
	h.put(credential, named("credential"))
	at("credential")
	if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), h.Root) {
		t.Errorf("something stays mounted:\n%s", mounts)
	}
}

func TestAForeignVolumeNeverReplacesTheBootDisksFile(t *testing.T) {
	h := newHouse(t)
	h.startedFrom("/dev/vda")
	h.volume("/dev/vda2", "CONFIG", map[string]string{"sallyport.yaml": named("own")})
	const own = "/dev/vda2 (CONFIG, boot disk)"
	check := func(when, hostname, source string, notices ...string) {
		t.Helper()
		s, err := h.State()
		if err != nil || s.Hostname != hostname || s.Source != source || s.Refused != nil {
			t.Errorf("%s: got %+v, %v; want %q from %q", when, s, err, hostname, source)
		}
		for _, n := range notices {
			if !strings.Contains(strings.Join(s.Notices, "\n"), n) {
				t.Errorf("%s: the notices are %q, want %q", when, s.Notices, n)
			}
		}
	}
	h.prepare()
	check("alone", "own", own)

	// Plugged in later. It comes before the boot disk in the order of names.
	h.volume("/dev/sda1", "CONFIG", map[string]string{"sallyport.yaml": named("evil")})
	h.volume("/dev/sr0", "CIDATA", map[string]string{"user-data": named("evil")})
	h.started = nil
	h.again()
	check("a stick later", "own", own, "/dev/sda1 (CONFIG) is not read: the file in use is from the boot disk")
	if len(h.started) > 0 {
		t.Errorf("a stick later: started %q", h.started)
	}
	h.prepare()
	check("a stick at a start", "own", own, "/dev/sda1 (CONFIG) is not read: the boot disk has a file")

	// What the operator changes is seen, with the stick still there.
	h.volume("/dev/vda2", "CONFIG", map[string]string{"sallyport.yaml": named("changed")})
	h.again()
	check("another file on the boot disk", "changed", own)

	// While it is being written there is none for a moment, or half of one.
	for name, text := range map[string]string{"README.TXT": "", "sallyport.yaml": "clusters: ["} {
		h.volume("/dev/vda2", "CONFIG", map[string]string{name: text})
		h.again()
		if s, err := h.State(); err != nil || s.Hostname != "changed" || s.Source != own {
			t.Errorf("%s alone: got %+v, %v", name, s, err)
		}
	}
	// A boot disk that cannot be read may have one.
	mount := h.Mount
	h.Mount = func(device, dir, kind string) error {
		if strings.HasSuffix(device, "/vda2") {
			return unix.EUCLEAN
		}
		return mount(device, dir, kind)
	}
	h.prepare()
	check("a damaged boot disk", "changed", lastGood+", from "+own, "/dev/vda2 (CONFIG, boot disk) cannot be read",
		"/dev/sda1 (CONFIG) is not read: the boot disk may have a file")
	h.Mount = mount

	// At a start the boot disk has none: the operator took it away.
	h.volume("/dev/vda2", "CONFIG", map[string]string{"README.TXT": ""})
	h.prepare()
	check("no file on the boot disk at a start", "evil", "/dev/sda1 (CONFIG)")
	// And has one again.
	h.volume("/dev/vda2", "CONFIG", map[string]string{"sallyport.yaml": named("own")})
	h.again()
	check("a file on the boot disk again", "own", own)
}

func TestAKeyRefusesForeignVolumes(t *testing.T) {
	h := newHouse(t)
	h.startedFrom("/dev/vda")
	only := cluster + "system: {hostname: own, volumes: boot}\n"
	h.put(credential, only)
	h.volume("/dev/sda1", "CONFIG", map[string]string{"sallyport.yaml": named("evil")})
	h.volume("/dev/vda2", "CONFIG", nil)
	h.prepare()
	if err := os.Remove(h.path(credential)); err != nil {
		t.Fatal(err)
	}
	const notice = "/dev/sda1 (CONFIG) is not read: system.volumes is boot"
	if said := h.again(); !slices.Contains(said, notice) || h.get(configFile) != only {
		t.Errorf("while it runs: said %q, and uses %q", said, h.get(configFile))
	}
	// At a start the last good file says so.
	if s := h.prepare(); s.Hostname != "own" || !slices.Contains(s.Notices, notice) {
		t.Errorf("at a start: got %+v", s)
	}
	h.volume("/dev/vda2", "CONFIG", map[string]string{"sallyport.yaml": named("boot")})
	if h.again(); h.get(configFile) != named("boot") {
		t.Errorf("the boot disk's own is not used: %q", h.get(configFile))
	}
}

func TestAStickOfTheSameFileIsNoOtherFile(t *testing.T) {
	h := newHouse(t)
	h.volume("/dev/sdb1", "CONFIG", map[string]string{"sallyport.yaml": named("stick")})
	if s := h.prepare(); s.Source != "/dev/sdb1 (CONFIG)" {
		t.Errorf("got %+v", s)
	}
	h.pull("/dev/sdb1")
	h.started = nil
	h.again()
	h.volume("/dev/sdc1", "CONFIG", map[string]string{"sallyport.yaml": named("stick")})
	if h.again(); len(h.started) > 0 {
		t.Errorf("it is plugged in again, and %q is started", h.started)
	}
}

func TestOfVolumesOnlyRegularFilesOfABoundedSizeAreRead(t *testing.T) {
	for name, row := range map[string]struct {
		make func(path string) error
		want string
	}{
		"a FIFO":   {func(path string) error { return unix.Mkfifo(path, 0o600) }, "is not a regular file"},
		"a folder": {func(path string) error { return os.Mkdir(path, 0o755) }, "is not a regular file"},
		"a device": {func(path string) error {
			return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5)))
		}, "is not a regular file"},
		"a symbolic link": {func(path string) error { return os.Symlink("/etc/passwd", path) }, "is a symbolic link"},
		"4 GB": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 4<<30))
		}, fmt.Sprintf("is larger than %d bytes", maxFile)},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.volume("/dev/sdb1", "CONFIG", nil)
			if err := row.make(h.path("/dev/sdb1/sallyport.yaml")); err != nil {
				t.Fatal(err)
			}
			h.volume("/dev/sr0", "CIDATA", map[string]string{"user-data": named("seed")})
			s := h.prepare()
			if want := "/dev/sdb1 (CONFIG) cannot be read: "; s.Hostname != "seed" || len(s.Notices) != 2 ||
				!strings.Contains(s.Notices[1], want) || !strings.Contains(s.Notices[1], row.want) {
				t.Errorf("got %+v, want the seed and %q", s, want+row.want)
			}

			// So it is with what was kept.
			h.pull("/dev/sr0")
			h.pull("/dev/sdb1")
			if err := os.Remove(h.path(keptFile)); err != nil {
				t.Fatal(err)
			}
			if err := row.make(h.path(keptFile)); err != nil {
				t.Fatal(err)
			}
			if s := h.prepare(); s.Source != "" ||
				!strings.Contains(strings.Join(s.Notices, "\n"), "the last good file cannot be read: ") {
				t.Errorf("kept: got %+v", s)
			}
			if name == "a folder" {
				return // nothing replaces it
			}
			h.put(credential, named("new"))
			if s := h.prepare(); s.Hostname != "new" ||
				strings.Contains(strings.Join(s.Notices, "\n"), "could not be saved") {
				t.Errorf("replaced: got %+v", s)
			}
		})
	}
}

func TestADamagedVolumeIsToldAndNotTheEnd(t *testing.T) {
	h := newHouse(t)
	h.volume("/dev/sdb1", "CONFIG", nil)
	h.volume("/dev/sr0", "CIDATA", map[string]string{"user-data": named("seed")})
	mount := h.Mount
	h.Mount = func(device, dir, kind string) error {
		if strings.HasSuffix(device, "/sdb1") {
			return unix.EUCLEAN
		}
		return mount(device, dir, kind)
	}
	if s := h.prepare(); s.Hostname != "seed" || s.Source != "/dev/sr0 (CIDATA)" ||
		!strings.Contains(strings.Join(s.Notices, "\n"), "/dev/sdb1 (CONFIG) cannot be read") {
		t.Errorf("got %+v", s)
	}
	// It is not the end of the file in use either.
	h.program("/usr/bin/lsblk", "echo no such table >&2; exit 1")
	if s := h.prepare(); s.Hostname != "seed" ||
		!strings.Contains(strings.Join(s.Notices, "\n"), "the volumes cannot be listed: lsblk: exit status 1") {
		t.Errorf("no list of volumes: got %+v", s)
	}
}

func TestGuestinfoIsPlainBase64OrZipped(t *testing.T) {
	want := named("guest")
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(want))
	_ = z.Close()
	wrapped := base64.StdEncoding.EncodeToString(zipped.Bytes())
	for name, text := range map[string]string{
		"plain":           want,
		"base64":          base64.StdEncoding.EncodeToString([]byte(want)) + "\n",
		"gzip, two lines": wrapped[:40] + "\n" + wrapped[40:],
	} {
		if got, err := unpack([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}

// TestAStateThatCannotBeWrittenIsPutIntoMemory starts a machine on a full disk.
func TestAStateThatCannotBeWrittenIsPutIntoMemory(t *testing.T) {
	h := newHouse(t)
	state := h.path(stateDir)
	h.put(stateDir+"/x", "")
	mount := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
			t.Fatalf("mount %q: %v\n%s", args, err, out)
		}
		t.Cleanup(func() {
			for exec.Command("umount", "--lazy", args[len(args)-1]).Run() == nil {
				continue // what was put over it too
			}
		})
	}
	if err := os.MkdirAll(h.path("/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	mount("-t", "tmpfs", "tmpfs", h.path("/run"))
	mount("-t", "tmpfs", "-o", "size=2M", "tmpfs", state)
	h.put(credential, named("one"))
	if s := h.prepare(); len(s.Notices) > 0 {
		t.Fatalf("a disk with room: got %q", s.Notices)
	}
	filler, err := os.Create(filepath.Join(state, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 64<<10))
	}
	_ = filler.Close()

	h.put(credential, "clusters: [")
	s := h.prepare()
	if !strings.Contains(strings.Join(s.Notices, "\n"), "no space left on device") || s.Hostname != "one" {
		t.Fatalf("a full disk: got %+v", s)
	}
	if err := tryWrite(state); err != nil {
		t.Errorf("the state still cannot be written: %v", err)
	}
	h.put(credential, named("two"))
	if said := h.again(); h.get(configFile) != named("two") {
		t.Errorf("a file that changes then: said %q", said)
	}
}

func TestTheStatusSaysWhyAnUpdateWaits(t *testing.T) {
	h := newHouse(t)
	h.prepare()
	const why = "version 1.3 waits: gate-2 drains"
	h.put(update.WaitFile, why+"\n")
	h.again()
	if got := h.get(noticeFile); !strings.Contains(got, why+"\n") {
		t.Errorf("the notices are %q, want %q", got, why)
	}
	if err := os.Remove(h.path(update.WaitFile)); err != nil {
		t.Fatal(err)
	}
	h.again()
	if got := h.get(noticeFile); strings.Contains(got, why) {
		t.Errorf("after the update the notices are %q", got)
	}
}
