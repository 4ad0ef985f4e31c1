package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"debug/pe"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/test/lab/world"
)

// cache returns the folder of the build's keys and tools.
func cache(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SALLYPORT_CACHE")
	if dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(caches, "sallyport")
	}
	return filepath.Join(dir, "image")
}

// variant writes another version of the image to dir, as the newest one there. Its kernel
// command line and files are extended, and the build's key signs it.
func variant(t *testing.T, dir, version, cmdline string, files map[string]string) string {
	t.Helper()
	image, err := pe.Open(newest(t, ".efi"))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close() //nolint:errcheck // only read
	part := func(name string) []byte {
		section := image.Section(name)
		if section == nil {
			t.Fatalf("the image has no section %s", name)
		}
		data, err := section.Data()
		if err != nil {
			t.Fatal(err)
		}
		return data[:min(len(data), int(section.VirtualSize))]
	}
	var release strings.Builder
	for line := range strings.Lines(string(bytes.TrimRight(part(".osrel"), "\x00"))) {
		if strings.HasPrefix(line, "IMAGE_VERSION=") {
			line = "IMAGE_VERSION=" + version + "\n"
		}
		release.WriteString(line)
	}
	layer := archive(append([]string{"usr/lib/os-release", release.String()}, flat(files)...)...)

	tools, err := filepath.Glob(cache(t) + "/tools-????????????")
	if err != nil || len(tools) != 1 {
		t.Fatalf("%d trees of tools in %s, want 1 (%v)", len(tools), cache(t), err)
	}
	work, err := os.MkdirTemp(tools[0]+"/tmp", "variant-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // scratch
	args := []string{tools[0], "/usr/bin/ukify", "build", "--stub", "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"}
	name := fmt.Sprintf("sallyport_%s.efi", version)
	for file, data := range map[string][]byte{
		"linux": part(".linux"), "initrd": part(".initrd"), "layer": layer, "os-release": []byte(release.String()),
		"cmdline": []byte(strings.TrimRight(string(part(".cmdline")), "\x00\n ") + " " + cmdline),
	} {
		if err := os.WriteFile(filepath.Join(work, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(file string) string { return "/tmp/" + filepath.Base(work) + "/" + file }
	args = append(args, "--linux", at("linux"), "--initrd", at("initrd"), "--initrd", at("layer"),
		"--os-release", "@"+at("os-release"), "--cmdline", "@"+at("cmdline"), "--output", at(name))
	if err := run(t.Context(), "chroot", args...); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(work, name))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(cache(t) + "/update.key")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Appendf(nil, `{"name": %q, "version": %q, "size": %d, "sha256": "%x"}`, name, version, len(data),
		sha256.Sum256(data))
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, name), data, 0o644),
		os.WriteFile(filepath.Join(dir, name+".manifest"), manifest, 0o644),
		os.WriteFile(filepath.Join(dir, name+".manifest.sig"), ed25519.Sign(key.(ed25519.PrivateKey), manifest), 0o644),
		os.WriteFile(filepath.Join(dir, "latest"), []byte(name+"\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	return name
}

func flat(files map[string]string) (list []string) {
	for name, content := range files {
		list = append(list, name, content)
	}
	return list
}

// archive returns a cpio of pairs of file name and content, as the kernel reads it
// (Documentation/driver-api/early-userspace/buffer-format.rst).
func archive(files ...string) []byte {
	var b bytes.Buffer
	add := func(name, content string, mode int) {
		fmt.Fprintf(&b, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
			0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name)
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
		b.WriteString(content)
		for b.Len()%4 != 0 {
			b.WriteByte(0)
		}
	}
	for i := 0; i < len(files); i += 2 {
		for at, r := range files[i] {
			if r == '/' {
				add(files[i][:at], "", 0o040755)
			}
		}
		add(files[i], files[i+1], 0o100644)
	}
	add("TRAILER!!!", "", 0)
	return b.Bytes()
}

// serveFolder runs this program as a web server on the client's host.
const serveFolder = "SALLYPORT_TEST_SERVE"

func serve(dir string) error {
	server := http.Server{Addr: ":8000", Handler: http.FileServer(http.Dir(dir)), ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

// offers returns a folder that http://192.168.50.10:8000/ serves to the machine.
func (p *place) offers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := p.Command(ctx, world.Client, self)
	cmd.Env = append(os.Environ(), serveFolder+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
	})
	return dir
}

// version waits until the machine serves and runs this version.
func (p *place) version(t *testing.T, vm *VM, want string) {
	t.Helper()
	p.until(t, vm, "version "+want+" runs", func() error {
		out, err := vm.Run(t.Context(), "/usr/bin/cat", "/usr/lib/os-release")
		if got := inside(out, "IMAGE_VERSION="); err == nil && strings.Trim(got, `"`) != want {
			err = fmt.Errorf("%s runs", got)
		}
		return err
	})
	p.serves(t, vm)
}

// rebooting returns a machine that goes off instead of a reset. Without KVM, QEMU takes
// minutes for a reset, and seconds for a new start.
func (p *place) rebooting(t *testing.T) Machine {
	t.Helper()
	m := p.configured(t)
	m.Args = []string{"-no-reboot"}
	return m
}

// update runs an update on the machine, and returns how long it does not serve, over one
// start or several.
func (p *place) update(t *testing.T, vm *VM, name string, more ...string) (*VM, time.Duration) {
	t.Helper()
	// The reboot ends the agent, so nothing waits for its answer.
	if _, err := vm.Run(t.Context(), "/usr/bin/systemd-run", append([]string{
		"--property=StandardError=journal+console", "--",
		"/usr/bin/sallyport", "image", "update", "http://192.168.50.10:8000/" + name,
	}, more...)...); err != nil {
		t.Fatal(err)
	}
	var served time.Time
	p.until(t, vm, "the update ends what runs", func() error {
		if err := p.served(t); err != nil {
			return nil //nolint:nilerr // this error is awaited
		}
		served = time.Now()
		return errors.New("it serves on")
	})
	for {
		err := soon(vm, func() error { return p.served(t) })
		if !errors.Is(err, errOff) {
			p.held(t, vm, "it serves again", err)
			return vm, time.Since(served)
		}
		t.Logf("it rebooted %s after power on", time.Since(vm.Began).Round(time.Second))
		vm = p.on(t, vm.Machine)
	}
}

func (p *place) anUpdateIsUsed(t *testing.T) {
	dir := p.offers(t)
	m := p.rebooting(t)
	m.Memory = 1024 // enough for two kernels
	vm := p.on(t, m)
	p.serves(t, vm)
	first := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(newest(t, ".efi")), "sallyport_"), ".efi")

	two := variant(t, dir, "90.2", "", nil)
	vm, took := p.update(t, vm, two)
	figure(t, "update, started by the kernel → serving again", took.Round(100*time.Millisecond))
	p.version(t, vm, "90.2")
	p.knows(t, vm)
	p.until(t, vm, "it is blessed", func() error {
		return p.versions(t, vm, "sallyport_90.2.efi", "sallyport_"+first+".efi")
	})

	// The third never gets ready.
	three := variant(t, dir, "90.3", "systemd.mask=sallyport.service", map[string]string{
		"usr/lib/systemd/system/sallyport-ready.service.d/soon.conf": "[Service]\nExecStart=\n" +
			"ExecStart=/usr/bin/sallyport image ready --within 5s\n",
	})
	vm, took = p.update(t, vm, three)
	figure(t, "update that never gets ready → three starts, one by the kernel → serving again",
		took.Round(100*time.Millisecond))
	p.version(t, vm, "90.2")
	if err := p.versions(t, vm, "sallyport_90.2.efi", "sallyport_90.3+0-3.efi"); err != nil {
		t.Error(err)
	}

	// An operator installs an older version by its name. The firmware starts it, for lack
	// of memory.
	vm.Pull()
	m.Memory = 512
	vm = p.on(t, m)
	p.serves(t, vm)
	one := variant(t, dir, "0.1", "", nil)
	vm, took = p.update(t, vm, one, "--allow-downgrade")
	figure(t, "update, started by the firmware → serving again", took.Round(100*time.Millisecond))
	p.version(t, vm, "0.1")
	// The mark of the failed version is still there, and does not start.
	p.until(t, vm, "it is blessed", func() error {
		return p.versions(t, vm, "sallyport_0.1.efi", "sallyport_90.2+0.efi", "sallyport_90.3+0-3.efi")
	})

	// A version without the key's signature is not installed.
	forged := variant(t, dir, "90.4", "", nil)
	if err := os.WriteFile(filepath.Join(dir, forged+".manifest.sig"), make([]byte, ed25519.SignatureSize),
		0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := vm.Run(t.Context(), "/usr/bin/sallyport", "image", "update",
		"http://192.168.50.10:8000/"+forged); err == nil {
		t.Errorf("a forged version is installed: %s", out)
	}
}

// aServerThatLiesRemovesNothing offers versions that fit only in place of the older one.
func (p *place) aServerThatLiesRemovesNothing(t *testing.T) {
	dir := p.offers(t)
	vm := p.on(t, p.configured(t))
	p.serves(t, vm)
	const fallback, mark = "sallyport_0.0.2.efi", "sallyport_0.0.3+0-3.efi"
	running := filepath.Base(newest(t, ".efi"))
	// Less than 100 of 320 MB are free.
	shell(t, vm, "cd /efi/EFI/Linux && head -c 1000 /dev/zero >"+mark+
		" && head -c $(($(df --output=avail -B1 . | tail -1) - 95000000)) /dev/zero >"+fallback+" && sync -f .")
	update := func(name string) (string, error) {
		return vm.Run(t.Context(), "/usr/bin/sallyport", "image", "update", "--no-reboot",
			"http://192.168.50.10:8000/"+name)
	}
	const large, far = "sallyport_91.0.efi", "sallyport_91.1.efi"
	for name, size := range map[string]int64{large: 96_000_000, far: 1 << 40} {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, name), nil, 0o644),
			os.Truncate(filepath.Join(dir, name), size)); err != nil {
			t.Fatal(err)
		}
		if out, err := update(name); err == nil || !strings.Contains(err.Error(), "its manifest: ") {
			t.Errorf("%s without a manifest: got %q, %v", name, out, err)
		}
	}
	// The manifest is valid, but the length differs.
	good := variant(t, dir, "91.2", "", nil)
	data, err := os.ReadFile(filepath.Join(dir, good))
	if err == nil {
		err = os.Truncate(filepath.Join(dir, good), 1<<40)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := update(good); err == nil ||
		!strings.Contains(err.Error(), "the server offers 1099511627776 bytes, and its manifest says") {
		t.Errorf("another length than its manifest says: got %q, %v", out, err)
	}
	if err := p.versions(t, vm, fallback, mark, running); err != nil {
		t.Error(err)
	}
	// A signed version replaces them, and the mark of the failed one stays.
	if err := os.WriteFile(filepath.Join(dir, good), data, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := update(good); err != nil {
		t.Errorf("a good version: got %q, %v", out, err)
	}
	if err := p.versions(t, vm, mark, running, "sallyport_91.2+3.efi"); err != nil {
		t.Error(err)
	}
}

// versions checks the files of versions on the machine's disk.
func (p *place) versions(t *testing.T, vm *VM, want ...string) error {
	t.Helper()
	got, err := versions(t, vm)
	if err == nil && !same(got, want) {
		err = fmt.Errorf("versions %q, want %q", got, want)
	}
	return err
}

// versions returns the files of versions on the disk.
func versions(t *testing.T, vm *VM) ([]string, error) {
	t.Helper()
	out, err := vm.Run(t.Context(), "/usr/bin/ls", "/efi/EFI/Linux")
	return strings.Fields(out), err
}

func same(got, want []string) bool {
	has := map[string]bool{}
	for _, g := range got {
		has[g] = true
	}
	for _, w := range want {
		if !has[w] {
			return false
		}
	}
	return len(got) == len(want)
}

// thePowerIsCutInUpdates cuts the power while a version is written, and while it starts.
func (p *place) thePowerIsCutInUpdates(t *testing.T) {
	dir := p.offers(t)
	m := p.rebooting(t)
	m.Forgets = true
	for i := range max(1, *cuts/5) {
		name := variant(t, dir, fmt.Sprintf("90.%d", i+1), "", nil)
		m.Memory = 1024 >> (i % 2) // the kernel starts it, or the firmware
		vm := p.on(t, m)
		took := p.serves(t, vm)
		p.until(t, vm, "what runs is blessed", func() error {
			_, err := vm.Run(t.Context(), "/usr/bin/sh", "-c",
				". /usr/lib/os-release && ls /efi/EFI/Linux/sallyport_$IMAGE_VERSION.efi")
			return err
		})
		done := make(chan error, 1)
		go func() {
			_, err := vm.Run(context.WithoutCancel(t.Context()), "/usr/bin/sallyport", "image", "update",
				"http://192.168.50.10:8000/"+name)
			done <- err
		}()
		// A moment between the update and the next time it is ready.
		after := moment(took * 3 / 2)
		cut := time.After(after)
		rebooted := false
		select {
		case <-vm.Ended():
			rebooted = true
			vm = p.on(t, m)
			<-cut
		case <-cut:
		}
		if err := vm.Cut(); err != nil {
			t.Fatal(err)
		}
		<-done //nolint:errcheck // it may have had its answer, or not
		t.Logf("cut %d, %s after the update began; rebooted by then: %v", i+1, after.Round(10*time.Millisecond),
			rebooted)
	}
	vm := p.on(t, m)
	p.serves(t, vm)
	have, err := versions(t, vm)
	t.Logf("versions in the end: %q (%v)", have, err)
}

// onlyWhatIsSignedStarts boots with Secure Boot and the keys of the build.
func (p *place) onlyWhatIsSignedStarts(t *testing.T) {
	m := p.configured(t)
	m.Secure = true
	loader, err := os.ReadFile("../recipe/loader.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.put(t.Context(), "ESP", "loader/loader.conf",
		append(loader, "secure-boot-enroll force\nsecure-boot-enroll-timeout-sec 1\n"...)); err != nil {
		t.Fatal(err)
	}
	// systemd-boot enrols the keys in the folder auto without a question.
	for _, list := range []string{"PK", "KEK", "db"} {
		data, err := m.get(t.Context(), "ESP", "loader/keys/sallyport/"+list+".auth")
		if err == nil {
			err = m.put(t.Context(), "ESP", "loader/keys/auto/"+list+".auth", data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	vm := p.on(t, m)
	p.serves(t, vm)
	out, err := vm.Run(t.Context(), "/usr/bin/od", "-An", "-tu1",
		"/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
	if err != nil || !strings.HasSuffix(strings.TrimSpace(out), "1") {
		t.Errorf("SecureBoot is %q (%v), want it on", out, err)
	}
	vm.Pull()

	// The unsigned variant replaces the signed one.
	dir := t.TempDir()
	name := variant(t, dir, "90.2", "", nil)
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err == nil {
		err = m.put(t.Context(), "ESP", "EFI/Linux/"+name, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := p.on(t, m)
	p.says(t, again, "enied")
}

// get returns the content of a file on a partition of the disk.
func (m Machine) get(ctx context.Context, partition, name string) ([]byte, error) {
	at, err := m.partition(ctx, partition)
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, "mcopy", "-i", m.Disk()+at, "::"+name, "-").Output()
}
