package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A house is a root folder and what was started in it.
type house struct {
	Machine
	t       *testing.T
	started []string
}

func newHouse(t *testing.T) *house {
	h := &house{t: t}
	h.Root = t.TempDir()
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
		if s.Source != "the last good file, from "+sources[0].name && name != "too large" || s.Hostname != "one" || len(s.Lines()) == 0 {
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
	if s.Source != "" || s.Status.Port() != StatusPort {
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
	full := cluster + "system: {interfaces: [{name: eth0}], ntp: [10.0.0.1], console: false, update: {url: 'http://10.0.0.1/'}}\n"
	h.put(credential, full)
	h.prepare()
	h.started = nil
	if h.again(); len(h.started) > 0 {
		t.Errorf("nothing changed, and it started %q", h.started)
	}

	h.put(credential, "clusters: [")
	if said := strings.Join(h.again(), "\n"); !strings.Contains(said, "is not used: ") || len(h.started) > 0 || h.get(configFile) != full {
		t.Errorf("a bad file: said %q, started %q", said, h.started)
	}
	if h.again(); len(h.started) > 0 {
		t.Errorf("the same bad file: started %q", h.started)
	}
	if !strings.Contains(h.get(noticeFile), "is not used: ") {
		t.Errorf("a bad file, a moment later: notices %q", h.get(noticeFile))
	}

	h.put(credential, named("two"))
	if said := strings.Join(h.again(), "\n"); !strings.Contains(said, "is used from now on") || h.get(configFile) != named("two") {
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

// disk has a volume with these files, known by its label. It stands in for file
// systems that the kernel of this machine need not know: the tests that boot the
// image have the real ones.
func (h *house) disk(label string, files map[string]string) {
	h.t.Helper()
	dir := h.t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	link := h.path("/dev/disk/by-label/" + label)
	for _, folder := range []string{filepath.Dir(link), h.path("/run")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			h.t.Fatal(err)
		}
	}
	_ = os.Remove(link)
	if err := os.Symlink(dir, link); err != nil {
		h.t.Fatal(err)
	}
	h.Mount = func(device, dir string, _ []string) error {
		return unix.Mount(device, dir, "", unix.MS_BIND, "")
	}
}

func TestTheFirstSourceThatHasAFileWins(t *testing.T) {
	h := newHouse(t)
	at := func(want string) {
		t.Helper()
		if s := h.prepare(); s.Hostname != want || s.Refused != nil {
			t.Errorf("got the machine %q from %q (%v), want %q", s.Hostname, s.Source, s.Lines(), want)
		}
	}
	h.disk("cidata", map[string]string{"user-data": "#cloud-config\n" + named("seed"), "meta-data": ""})
	at("seed")
	h.disk("CIDATA", map[string]string{"user-data": "#cloud-config\nusers: []\n", "sallyport.yaml": named("seed2")})
	at("seed2")
	h.disk("CONFIG", map[string]string{"README.TXT": "nothing"})
	at("seed2")
	h.disk("CONFIG", map[string]string{"sallyport.yaml": named("partition")})
	at("partition")
	h.put("/sys/class/dmi/id/sys_vendor", "VMware, Inc.\n")
	h.put("/usr/bin/vmware-rpctool", "#!/bin/sh\n[ \"$1\" = 'info-get guestinfo.sallyport.yaml' ] && echo "+base64.StdEncoding.EncodeToString([]byte(named("guest")))+"\n")
	if err := os.Chmod(h.path("/usr/bin/vmware-rpctool"), 0o755); err != nil {
		t.Fatal(err)
	}
	at("guest")
	h.put("/usr/bin/vmware-rpctool", "#!/bin/sh\necho No value found; exit 1\n")
	at("partition")
	h.put(credential, named("credential"))
	at("credential")
	if mounts, _ := os.ReadFile("/proc/self/mounts"); strings.Contains(string(mounts), h.Root) {
		t.Errorf("something stays mounted:\n%s", mounts)
	}
}

func TestADamagedVolumeIsToldAndNotTheEnd(t *testing.T) {
	h := newHouse(t)
	h.disk("CONFIG", nil)
	h.disk("CIDATA", map[string]string{"user-data": named("seed")})
	mount := h.Mount
	h.Mount = func(device, dir string, kinds []string) error {
		if strings.HasSuffix(device, "/CONFIG") {
			return unix.EUCLEAN
		}
		return mount(device, dir, kinds)
	}
	if s := h.prepare(); s.Hostname != "seed" || !strings.Contains(strings.Join(s.Notices, "\n"), "CONFIG (sallyport.yaml) cannot be read") {
		t.Errorf("got %+v", s)
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

// TestAStateThatCannotBeWrittenIsPutIntoMemory fills a disk, and starts a machine
// on it.
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
