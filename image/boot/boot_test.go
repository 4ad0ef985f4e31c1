package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	view "sallyport/appliance/status"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

var (
	all  = flag.Bool("all", false, "every case, not the short set alone")
	cuts = flag.Int("cuts", 2, "how often the power is cut at random")
	keep = flag.String("keep", "", "folder that screenshots and figures are kept in")
)

// patience bounds every wait. A machine that is emulated on two shared cores is slow.
const patience = 10 * time.Minute

// images is the folder of the built image. newPlace sets it.
var images string

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveFolder); dir != "" {
		fmt.Fprintln(os.Stderr, serve(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// build makes a quick build of the image, unless SALLYPORT_TEST_IMAGE names a folder with
// one.
func build(t *testing.T) {
	t.Helper()
	given := os.Getenv("SALLYPORT_TEST_IMAGE")
	var err error
	if images, err = filepath.Abs(cmp.Or(given, "../../.build/image-test")); err != nil {
		t.Fatal(err)
	}
	if given == "" {
		began := time.Now()
		cmd := exec.Command("../recipe/build")
		cmd.Env = append(os.Environ(), "QUICK=1", "OUT="+images)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the image: %v\n%s", err, tail(string(out), 40))
		}
		figure(t, "make image, for tests", time.Since(began).Round(time.Second))
	}
}

func tail(text string, lines int) string {
	parts := strings.Split(text, "\n")
	return strings.Join(parts[max(0, len(parts)-lines):], "\n")
}

// newest returns the file with that ending in the folder of the image.
func newest(t *testing.T, ending string) string {
	t.Helper()
	names, err := filepath.Glob(images + "/sallyport_*" + ending)
	if err != nil || len(names) != 1 {
		t.Fatalf("%d files sallyport_*%s in %s, want 1 (%v)", len(names), ending, images, err)
	}
	return names[0]
}

// A place is a lab with the sample application. A machine replaces its appliance.
type place struct {
	*rig.Rig
	t    *testing.T
	file string // the one file, good
}

func newPlace(t *testing.T, opts world.Options, manifests ...string) *place {
	t.Helper()
	if *keep != "" {
		if err := os.MkdirAll(*keep, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build(t)
	dir := t.TempDir()
	if err := errors.Join(rig.Build(t.Context(), dir), rig.Configure(dir, "")); err != nil {
		t.Fatal(err)
	}
	r, err := rig.New(t.Context(), dir, opts, manifests...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	sample, err := os.ReadFile("../../test/demo/app.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(t.Context(), string(sample)); err != nil {
		t.Fatal(err)
	}
	credentials, err := os.ReadFile(dir + "/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := os.ReadFile("testdata/status.pem")
	if err != nil {
		t.Fatal(err)
	}
	return &place{Rig: r, t: t, file: oneFile(string(credentials), "edge", string(certificate))}
}

// password is that of the machine's status endpoint.
const password = "only-for-these-tests"

// oneFile returns the content of the machine's one file. certificate holds the key, too.
func oneFile(kubeconfig, hostname, certificate string) string {
	return fmt.Sprintf(`identity: %s
clusters:
- name: lab
  pools: [172.16.0.0/16]
  bgp: {asn: 65000}
  ingress: {publish: [192.168.50.21]}
  kubeconfig: |
    %s
bgp: {asn: 65000, listen: [192.168.50.21]}
status:
  listen: 192.168.50.21:9090
  password: %[4]s
  tls:
    certificate: |
      %[3]s
    key: |
      %[3]s
system:
  hostname: %[1]s
  guestExec: true
  interfaces:
  - {name: "e*", addresses: [192.168.50.21/24]}
`, hostname, strings.ReplaceAll(strings.TrimSpace(kubeconfig), "\n", "\n    "), strings.ReplaceAll(strings.TrimSpace(certificate), "\n", "\n      "), password)
}

// machine returns a new machine that is off.
func (p *place) machine(t *testing.T) Machine {
	t.Helper()
	m, err := NewMachine(t.Context(), p.Netns("lan"), newest(t, ".raw"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// configured returns a machine that has the one file on its partition CONFIG.
func (p *place) configured(t *testing.T) Machine {
	t.Helper()
	m := p.machine(t)
	p.write(t, m, p.file)
	return m
}

func (p *place) write(t *testing.T, m Machine, file string) {
	t.Helper()
	if err := m.Write(t.Context(), "sallyport.yaml", []byte(file)); err != nil {
		t.Fatal(err)
	}
}

func (p *place) on(t *testing.T, m Machine) *VM {
	t.Helper()
	vm, err := m.On(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		vm.Pull()
		if t.Failed() {
			said, _ := os.ReadFile(m.Serial())
			t.Logf("its serial console:\n%s", tail(string(said), 60))
		}
	})
	return vm
}

// ask sends a GET from the client's host, to the status endpoint with its password.
func (p *place) ask(ctx context.Context, url string, more ...string) (string, error) {
	if strings.HasPrefix(url, "https://") {
		more = append(more, "--cacert", "testdata/status.pem", "-u", "operator:"+password)
	}
	return p.Exec(ctx, world.Client, append([]string{"curl", "-sfg", "--max-time", "3", url}, more...)...)
}

// serves waits until the machine answers for test.local out of a pod.
func (p *place) serves(t *testing.T, vm *VM) time.Duration {
	t.Helper()
	p.until(t, vm, "test.local is answered through it", func() error { return p.served(t) })
	return time.Since(vm.Began)
}

func (p *place) served(t *testing.T) error {
	t.Helper()
	out, err := p.ask(t.Context(), "http://192.168.50.21/", "-H", "Host: test.local", "-H", "Accept: application/json")
	if err == nil && !strings.Contains(out, `"pod"`) {
		err = fmt.Errorf("the answer is %q", out)
	}
	return err
}

// until asks until the answer is no error.
func (p *place) until(t *testing.T, vm *VM, what string, ask func() error) {
	t.Helper()
	p.held(t, vm, what, soon(vm, ask))
}

// held ends the test after an error, and keeps a picture of the screen.
func (p *place) held(t *testing.T, vm *VM, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if !errors.Is(err, errOff) {
		p.shot(t, vm, "failed")
	}
	t.Fatalf("not so: %s: %v", what, err)
}

// goesOff waits until the machine is off.
func goesOff(t *testing.T, vm *VM, by string) {
	t.Helper()
	select {
	case <-vm.Ended():
	case <-time.After(patience):
		t.Fatalf("%s does not switch it off", by)
	}
}

// soon asks until the answer is no error. It fails if the machine goes off.
func soon(vm *VM, ask func() error) error {
	deadline := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-deadline:
			return fmt.Errorf("within %s: %w", patience, err)
		case <-vm.Ended():
			return fmt.Errorf("%w: %w", errOff, err)
		case <-tick.C:
		}
	}
}

// status returns the page of the status endpoint.
func (p *place) status(t *testing.T) (s view.Status, err error) {
	t.Helper()
	out, err := p.ask(t.Context(), status, "--max-time", "30")
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	return s, err
}

// shell runs a script on the machine.
func shell(t *testing.T, vm *VM, script string) {
	t.Helper()
	if _, err := vm.Run(t.Context(), "/usr/bin/sh", "-c", script); err != nil {
		t.Fatal(err)
	}
}

// available returns the memory that is available on the machine.
func available(t *testing.T, vm *VM, with string) {
	t.Helper()
	free, err := vm.Run(t.Context(), "/usr/bin/cat", "/proc/meminfo")
	if err != nil {
		t.Error(err)
	}
	figure(t, "memory available in a machine of 512 MiB with "+with, inside(free, "MemAvailable:"))
}

// tells waits until the status page has this text.
func (p *place) tells(t *testing.T, vm *VM, url, want string) {
	t.Helper()
	p.until(t, vm, url+" tells "+want, func() error {
		out, err := p.ask(t.Context(), url)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("it says %q", tail(out, 12))
		}
		return err
	})
}

// says waits until the serial console has this text.
func (p *place) says(t *testing.T, vm *VM, want string) {
	t.Helper()
	p.until(t, vm, "its console says "+want, func() error {
		said, err := os.ReadFile(vm.Serial())
		if err == nil && !bytes.Contains(said, []byte(want)) {
			err = fmt.Errorf("it says %q", tail(string(said), 5))
		}
		return err
	})
}

// shows waits until the first VGA console has this text, and keeps a picture of it.
func (p *place) shows(t *testing.T, vm *VM, want, name string) {
	t.Helper()
	p.until(t, vm, "its screen shows "+want, func() error {
		out, err := vm.Run(t.Context(), "/usr/bin/cat", "/dev/vcs1")
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("it shows %q", strings.Join(strings.Fields(out), " "))
		}
		return err
	})
	p.shot(t, vm, name)
}

// shot keeps a picture of the screen.
func (p *place) shot(t *testing.T, vm *VM, name string) {
	t.Helper()
	if *keep == "" {
		return
	}
	dir, err := filepath.Abs(*keep)
	if err == nil {
		err = vm.Screenshot(filepath.Join(dir, name+".png"))
	}
	if err != nil {
		t.Error(err)
	}
}

const status = "https://192.168.50.21:9090/status"

// TestTheImageServesFromOneFile runs all cases in one lab.
func TestTheImageServesFromOneFile(t *testing.T) {
	p := newPlace(t, world.Options{Name: "image", Workers: 2})
	t.Run("a bad file changes nothing", p.aBadFileChangesNothing)
	if !*all {
		return
	}
	t.Run("the power is cut at random", p.thePowerIsCut)
	t.Run("the clock jumps", p.theClockJumps)
	t.Run("a maintenance key lets in, as long as it is there", p.theKeyLetsIn)
	t.Run("without a file", p.withoutAFile)
	t.Run("by SMBIOS", func(t *testing.T) {
		p.arrives(t, "credential", "-smbios", "type=11,value=io.systemd.credential.binary:sallyport.yaml="+
			base64.StdEncoding.EncodeToString([]byte(p.file)))
	})
	t.Run("by fw_cfg", func(t *testing.T) {
		p.arrives(t, "credential", "-fw_cfg", "name=opt/io.systemd.credentials/sallyport.yaml,file="+
			p.written(t, "sallyport.yaml"))
	})
	t.Run("by a NoCloud seed, past sticks that cannot be read", p.aSeedArrivesPastBadSticks)
	t.Run("a stick replaces nothing", p.aStickReplacesNothing)
	t.Run("without a disk", p.withoutADisk)
	t.Run("the disk is full", p.theDiskIsFull)
	t.Run("the clock is years behind", p.theClockIsWrong)
	t.Run("the link is late", p.theLinkIsLate)
	t.Run("an update is used unless it never gets ready", p.anUpdateIsUsed)
	t.Run("an update server that lies removes nothing", p.aServerThatLiesRemovesNothing)
	t.Run("the power is cut while it updates", p.thePowerIsCutInUpdates)
	t.Run("only what is signed starts", p.onlyWhatIsSignedStarts)
	t.Run("the kernel hangs", p.theKernelHangs)
	t.Run("512 MiB are enough for a thousand Services", p.aThousandServices)
}

// written writes the one file under this name to a new folder, and returns its path.
func (p *place) written(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(p.file), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// knows logs how long the parts of a start took, once systemd has finished it.
func (p *place) knows(t *testing.T, vm *VM) {
	t.Helper()
	p.until(t, vm, "it says where the time went", func() error {
		out, err := vm.Run(t.Context(), "/usr/bin/systemd-analyze", "time")
		if err == nil {
			figure(t, "of that, as systemd knows it", inside(out, "Startup finished in "))
		}
		return err
	})
}

func (p *place) aBadFileChangesNothing(t *testing.T) {
	m := p.configured(t)
	vm := p.on(t, m)
	took := p.serves(t, vm)
	figure(t, "power on → first request served, first start", took.Round(100*time.Millisecond))
	available(t, vm, "1 Service")
	p.knows(t, vm)
	p.says(t, vm, "from /dev/vda2 (CONFIG, boot disk)")
	p.shows(t, vm, "Established", "serving")
	p.isHardened(t, vm)

	p.write(t, m, strings.Replace(p.file, "asn: 65000", "asn: many", 1))
	p.tells(t, vm, status, "is not used")
	p.serves(t, vm)
	vm.Pull()
	if out, err := exec.CommandContext(t.Context(), "partx", "--raw", "--noheadings", "--output", "SIZE", "--nr", "2",
		m.Disk()).Output(); err != nil || strings.TrimSpace(string(out)) != "34M" {
		t.Errorf("the partition CONFIG has %q (%v), want 34M", out, err)
	}
	again := p.on(t, m)
	figure(t, "power on → first request served", p.serves(t, again).Round(100*time.Millisecond))
	p.tells(t, again, status, "is not used")
	p.shows(t, again, "is not used", "refused")

	p.write(t, m, strings.Replace(p.file, "hostname: edge", "hostname: other", 1))
	p.until(t, again, "the mended file is used", func() error {
		out, err := again.Run(t.Context(), "/usr/bin/hostname")
		if err == nil && strings.TrimSpace(out) != "other" {
			err = fmt.Errorf("its name is %q", out)
		}
		return err
	})
	p.serves(t, again)
	if err := again.Button(); err != nil {
		t.Fatal(err)
	}
	goesOff(t, again, "the power button")
}

// isHardened asks the machine for the rights of its units, its keyboard and HAProxy.
func (p *place) isHardened(t *testing.T, vm *VM) {
	t.Helper()
	for range 8 { // systemd acts on seven within two seconds
		if err := vm.Press("ctrl", "alt", "delete"); err != nil {
			t.Fatal(err)
		}
	}
	p.until(t, vm, "systemd hears of Ctrl-Alt-Del", func() error {
		_, err := vm.Run(t.Context(), "/usr/bin/sh", "-c",
			"journalctl --boot _PID=1 | grep -i ctrl-alt-del.target.*masked")
		return err
	})
	const worker = "setpriv --reuid haproxy --regid haproxy --clear-groups bash -c "
	for what, script := range map[string]string{
		"no unit has failed": `failed=$(systemctl list-units --failed --plain --no-legend); echo "$failed"; test -z "$failed"`,
		"SysRq is off":       "grep -qx 0 /proc/sys/kernel/sysrq",
		"half-open connections are bounded": "grep -x 1[0-9][0-9][0-9] /proc/sys/net/core/somaxconn && cmp " +
			"/proc/sys/net/core/somaxconn /proc/sys/net/ipv4/tcp_max_syn_backlog",
		"HAProxy's user does not reach the status":    "! " + worker + "'exec 3<>/dev/tcp/192.168.50.21/9090'",
		"HAProxy's user does not reach a node":        "! " + worker + "'exec 3<>/dev/tcp/192.168.50.22/179'",
		"HAProxy's unit does not see the journal":     `! ls /proc/$(pidof -s haproxy)/root/run/systemd/journal/ | grep .`,
		"HAProxy's unit runs no program of the state": `cp /usr/bin/true /run/sallyport/ && ! nsenter -t $(systemctl show -P MainPID sallyport) -m /run/sallyport/true; rc=$?; rm /run/sallyport/true; exit $rc`,
		"no route of DHCP's is in the way":            "! ip route show table main | grep -q dhcp",
	} {
		if out, err := vm.Run(t.Context(), "/usr/bin/bash", "-c", script); err != nil {
			t.Errorf("not so: %s: %v: %s", what, err, out)
		}
	}
	if err := p.served(t); err != nil {
		t.Error(err)
	}
}

// thePowerIsCut cuts the power at random moments of starts and of changes of the file.
func (p *place) thePowerIsCut(t *testing.T) {
	m := p.configured(t)
	m.Forgets = true
	var took time.Duration
	for range 2 { // the first start is a longer one
		vm := p.on(t, m)
		took = p.serves(t, vm)
		vm.Pull()
	}
	served := 0
	for i := range *cuts {
		vm := p.on(t, m)
		if i%3 == 2 {
			p.write(t, m, p.file+fmt.Sprintf("# changed %d times\n", i))
		}
		after := moment(took * 3 / 2)
		cut := make(chan error, 1)
		time.AfterFunc(after, func() { cut <- vm.Cut() })
		switch err := soon(vm, func() error { return p.served(t) }); {
		case err == nil:
			served++
		case errors.Is(err, errOff) && time.Since(vm.Began) < after:
			t.Fatal("it went off by itself")
		}
		if err := <-cut; err != nil {
			t.Fatal(err)
		}
		t.Logf("cut %d, %s after power on; it has served %d times", i+1, after.Round(10*time.Millisecond), served)
	}
	vm := p.on(t, m)
	figure(t, fmt.Sprintf("power on → first request served, after %d power cuts, %d of them while it served", *cuts,
		served), p.serves(t, vm).Round(100*time.Millisecond))
}

// moment returns a random duration.
func moment(longest time.Duration) time.Duration { return rand.N(longest) } //nolint:gosec // any will do

func (p *place) withoutAFile(t *testing.T) {
	vm := p.on(t, p.machine(t))
	// The lab has no DHCP server: ssh connects to the link-local address of IPv6.
	p.tells(t, vm, "http://[fe80::5054:ff:fe50:21%25eth0]:9090/", "needs one file")
	if out, err := p.ask(t.Context(), "http://[fe80::5054:ff:fe50:21%25eth0]/"); err == nil {
		t.Errorf("port 80 answers %q, want nothing", out)
	}
	p.says(t, vm, "needs one file")
	p.shot(t, vm, "no-file")
	if out, err := vm.Run(t.Context(), "/usr/bin/id"); err == nil || !strings.Contains(err.Error(), "guest-exec") {
		t.Errorf("the hypervisor runs a program: %q, %v", out, err)
	}
}

func (p *place) theKeyLetsIn(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := run(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f", key); err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	in := func(script string) (string, error) {
		return p.Exec(t.Context(), world.Client, "ssh", "-i", key, "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
			"-o", "StrictHostKeyChecking=no",
			"-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "root@192.168.50.21", script)
	}
	const name = "cat /proc/sys/kernel/hostname"
	m := p.configured(t)
	vm := p.on(t, m)
	p.serves(t, vm)
	if out, err := in(name); err == nil {
		t.Errorf("without a key it lets in: %q", out)
	}
	p.write(t, m, strings.Replace(p.file, "  interfaces:",
		fmt.Sprintf("  maintenanceKey: [%q]\n  interfaces:", strings.TrimSpace(string(public))), 1))
	p.until(t, vm, "the key lets in", func() error {
		out, err := in(name)
		if err == nil && strings.TrimSpace(out) != "edge" {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	for _, script := range []string{
		"nft list table inet sallyport && journalctl --lines 1 && ip route && ls /efi/EFI/Linux && sallyport status " +
			"--config /run/sallyport-image/sallyport.yaml",
		// for more, one asks systemd
		"! mount -t tmpfs x /mnt && systemd-run --quiet --pipe --wait mount -t tmpfs x /mnt",
	} {
		if out, err := in(script); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	p.write(t, m, p.file)
	p.until(t, vm, "the key lets in no more", func() error {
		if out, err := in(name); err == nil {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	p.serves(t, vm)
}

// arrives boots a machine that gets its file by these arguments of QEMU.
func (p *place) arrives(t *testing.T, source string, args ...string) *VM {
	t.Helper()
	m := p.machine(t)
	m.Args = args
	vm := p.on(t, m)
	p.serves(t, vm)
	out, err := vm.Run(t.Context(), "/usr/bin/cat", "/run/sallyport-image/state.json")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, source) {
		t.Errorf("the file came by %q, want %q", inside(out, `"source":`), source)
	}
	return vm
}

// aSeedArrivesPastBadSticks plugs in two sticks that come before the seed. The file of one
// is too large. The file of the other claims 4 GB, and its chain of clusters is a loop.
func (p *place) aSeedArrivesPastBadSticks(t *testing.T) {
	args := []string{"-device", "qemu-xhci,id=usb"}
	plug := func(disk, device string) {
		id := fmt.Sprintf("volume%d", len(args))
		args = append(args, "-drive", "if=none,id="+id+",format=raw,readonly=on,file="+option(disk), "-device",
			device+",drive="+id)
	}
	seed := p.written(t, "user-data")
	iso := filepath.Join(t.TempDir(), "seed.iso")
	if err := run(t.Context(), "xorriso", "-as", "mkisofs", "-quiet", "-V", "CIDATA", "-r", "-J", "-o", iso,
		filepath.Dir(seed)); err != nil {
		t.Fatal(err)
	}
	plug(iso, "ide-cd")
	for _, name := range []string{"large", "round"} {
		disk := filepath.Join(t.TempDir(), name)
		file := filepath.Join(t.TempDir(), "sallyport.yaml")
		if err := errors.Join(
			os.WriteFile(file, bytes.Repeat([]byte("#"), 2<<20), 0o600),
			run(t.Context(), "mformat", "-C", "-i", disk, "-T", "40000", "-v", "CONFIG", "::"),
			run(t.Context(), "mcopy", "-i", disk, file, "::"),
		); err != nil {
			t.Fatal(err)
		}
		if name == "round" {
			goRound(t, disk)
		}
		plug(disk, "usb-storage,bus=usb.0")
	}
	vm := p.arrives(t, "(CIDATA)", args...)
	for _, device := range []string{"/dev/sda", "/dev/sdb"} {
		p.tells(t, vm, status, device+" (CONFIG) cannot be read: ")
	}
	p.tells(t, vm, status, "is larger than ")
}

// goRound makes the chain of clusters of sallyport.yaml in a FAT16 file system a loop:
// the first cluster follows itself (Microsoft's FAT specification, sections 3.1, 4 and 6).
func goRound(t *testing.T, disk string) {
	t.Helper()
	data, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	entry := bytes.Index(data, []byte("SALLYP~1YAM"))
	if entry < 0 || string(data[54:59]) != "FAT16" {
		t.Fatalf("the stick has no such file on FAT16: %q", data[54:62])
	}
	little := binary.LittleEndian
	sector, reserved := int(little.Uint16(data[11:])), int(little.Uint16(data[14:]))
	cluster := little.Uint16(data[entry+26:])
	little.PutUint16(data[sector*reserved+2*int(cluster):], cluster)
	little.PutUint32(data[entry+28:], 1<<32-1)
	if err := os.WriteFile(disk, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// aStickReplacesNothing plugs in a copy of the machine's disk, with the same labels and
// UUIDs, but another file on its partition CONFIG.
func (p *place) aStickReplacesNothing(t *testing.T) {
	m := p.configured(t)
	m.Args = []string{"-device", "qemu-xhci,id=usb"}
	vm := p.on(t, m)
	p.serves(t, vm) // its state partition is there now, and is copied too
	vm.Pull()
	stick := Machine{Dir: t.TempDir()}
	if err := run(t.Context(), "cp", "--sparse=always", m.Disk(), stick.Disk()); err != nil {
		t.Fatal(err)
	}
	p.write(t, stick, strings.Replace(p.file, "hostname: edge", "hostname: stolen", 1))
	own := func(vm *VM) {
		t.Helper()
		for file, want := range map[string]string{
			"/proc/sys/kernel/hostname":           "edge\n",
			"/run/sallyport-image/state.json":     `"source": "/dev/vda2 (CONFIG, boot disk)"`,
			"/run/sallyport-image/sallyport.yaml": "hostname: edge\n",
			"/proc/self/mounts":                   "/dev/vda3 /var/lib/sallyport ext4 ",
		} {
			if out, err := vm.Run(t.Context(), "/usr/bin/cat", file); err != nil || !strings.Contains(out, want) {
				t.Errorf("%s has %q (%v), want %q", file, out, err, want)
			}
		}
		// The first access mounts it.
		shell(t, vm, "ls /efi/EFI/Linux && grep '^/dev/vda1 /efi vfat ' /proc/self/mounts")
		p.serves(t, vm)
	}

	vm = p.on(t, m)
	p.serves(t, vm)
	if err := vm.plugIn(stick.Disk()); err != nil {
		t.Fatal(err)
	}
	p.tells(t, vm, status, "/dev/sda2 (CONFIG) is not read: the file in use is from the boot disk")
	own(vm)
	vm.Pull()

	m.Args = append(m.Args, "-drive", "if=none,id=stick,format=raw,file="+option(stick.Disk()), "-device",
		"usb-storage,bus=usb.0,drive=stick,removable=on")
	vm = p.on(t, m)
	p.serves(t, vm)
	p.tells(t, vm, status, "/dev/sda2 (CONFIG) is not read: the boot disk has a file")
	own(vm)
}

// plugIn plugs a stick into the machine's bus usb.
func (vm *VM) plugIn(disk string) error {
	_, err := vm.qmp.ask("blockdev-add",
		map[string]any{
			"driver": "raw", "node-name": "stick",
			"file": map[string]any{"driver": "file", "filename": disk},
		})
	if err == nil {
		_, err = vm.qmp.ask("device_add",
			map[string]any{"driver": "usb-storage", "bus": "usb.0", "drive": "stick", "removable": true})
	}
	return err
}

// withoutADisk starts a machine whose disk fails before the state is mounted.
func (p *place) withoutADisk(t *testing.T) {
	m := p.machine(t)
	m.Diskless = true
	m.Args = []string{
		"-kernel", newest(t, ".efi"), "-fw_cfg", "name=opt/io.systemd.credentials/sallyport.yaml,file=" +
			p.written(t, "sallyport.yaml"),
	}
	vm := p.on(t, m)
	p.serves(t, vm)
	p.tells(t, vm, status, "state partition")
}

// theDiskIsFull fills the state partition to the last byte that root may write.
func (p *place) theDiskIsFull(t *testing.T) {
	m := p.configured(t)
	vm := p.on(t, m)
	p.serves(t, vm)
	const rest = "/var/lib/sallyport/rest"
	shell(t, vm, "fallocate -l $(df --output=avail -B1 /var/lib/sallyport | tail -1) "+rest+"; ! dd if=/dev/zero of="+
		rest+".more bs=64K && sync")
	vm.Pull()
	vm = p.on(t, m)
	p.serves(t, vm)
	const notice = "in memory, and lost at a reboot"
	p.tells(t, vm, status, notice)
	// Memory is mounted over the partition now.
	shell(t, vm, "mount /dev/disk/by-partlabel/sallyport-state /mnt && rm /mnt/rest* && umount /mnt && sync")
	vm.Pull()
	vm = p.on(t, m)
	p.serves(t, vm)
	if said, err := p.ask(t.Context(), status); err != nil || strings.Contains(said, notice) {
		t.Errorf("with room again it says %q (%v)", said, err)
	}
}

// theClockIsWrong starts a machine whose clock battery is empty, without a time server.
// Its clock starts at the build time of the image, and it serves. Then the clock is set
// far back, so that certificates seem not to be valid yet.
func (p *place) theClockIsWrong(t *testing.T) {
	m := p.configured(t)
	m.Args = []string{"-rtc", "base=2001-01-01"}
	vm := p.on(t, m)
	p.serves(t, vm)
	shell(t, vm, "date --set=2001-01-01 && systemctl --no-block restart sallyport")
	p.tells(t, vm, status, "not yet valid")
	p.serves(t, vm) // HAProxy is still there
	shell(t, vm, fmt.Sprintf("date --set=@%d", time.Now().Unix()))
	p.until(t, vm, "it is well again", func() error {
		out, err := p.ask(t.Context(), status)
		if err == nil && (strings.Contains(out, "not yet valid") || !strings.Contains(out, `"ready": true`)) {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
	p.serves(t, vm)
}

func (p *place) theLinkIsLate(t *testing.T) {
	m := p.configured(t)
	m.NoCable = true
	vm := p.on(t, m)
	p.says(t, vm, "no link")
	if err := vm.Cable(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	p.serves(t, vm)
}

// theKernelHangs stops the kernel. The machine's watchdog resets it.
func (p *place) theKernelHangs(t *testing.T) {
	m := p.rebooting(t)
	m.Args = append(m.Args, "-device", "i6300esb", "-action", "watchdog=reset")
	vm := p.on(t, m)
	p.serves(t, vm)
	// The agent would hang, too, and not answer.
	if _, err := vm.Run(t.Context(), "/usr/bin/systemd-run", "--on-active=1", "/usr/bin/sh", "-c",
		"echo 0 >/proc/sys/kernel/panic && echo c >/proc/sysrq-trigger"); err != nil {
		t.Fatal(err)
	}
	p.says(t, vm, "Kernel panic")
	goesOff(t, vm, "its watchdog")
	p.serves(t, p.on(t, m))
}

// aThousandServices serves 1,000 Services of five pods each. HAProxy checks a pod once a
// minute: an emulated processor has no time for more.
func (p *place) aThousandServices(t *testing.T) {
	const many = 1000
	var manifest strings.Builder
	for i := range many {
		fmt.Fprintf(&manifest, `
---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, labels: {many: "true"}, annotations: {haproxy.org/check-interval: 1m}}
spec: {selector: {app: app}, ports: [{name: web, port: 80, targetPort: http}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: s%[1]d, labels: {many: "true"}}
spec:
  ingressClassName: haproxy
  rules:
  - host: s%[1]d.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s%[1]d, port: {name: web}}}}]}
`, i)
	}
	if err := p.Apply(t.Context(), manifest.String()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := p.Kubectl(context.WithoutCancel(t.Context()), "delete", "ingress,service", "-l", "many=true",
			"--wait=false"); err != nil {
			t.Error(err)
		}
	}()
	vm := p.on(t, p.configured(t))
	allOpen := func(reloads int) {
		t.Helper()
		p.until(t, vm, fmt.Sprintf("all are open after %d reloads", reloads), func() error {
			s, err := p.status(t)
			if err != nil {
				return err
			}
			open := 0
			for _, b := range s.Backends {
				if b.Open == 5 {
					open++
				}
			}
			if open < many || s.HAProxy.Reloads < reloads || s.HAProxy.OldWorkers > 0 {
				return fmt.Errorf("%d are, after %d reloads; workers that end: %d; not ready: %q", open,
					s.HAProxy.Reloads, s.HAProxy.OldWorkers, s.NotReady)
			}
			return nil
		})
	}
	allOpen(0)
	figure(t, "power on → 1,000 Services of 5 pods open", time.Since(vm.Began).Round(100*time.Millisecond))
	available(t, vm, "1,000 Services")

	// During a reload two HAProxys run, and a restart reads everything again.
	if _, err := p.Kubectl(t.Context(), "annotate", "ingress", "s7", "haproxy.org/timeout-server=77s"); err != nil {
		t.Fatal(err)
	}
	allOpen(1)
	available(t, vm, "1,000 Services, after a reload")
	shell(t, vm, "systemctl restart sallyport.service")
	allOpen(0)
	shell(t, vm, "grep -qx 'oom_kill 0' /proc/vmstat") // nobody was killed for it
	if _, err := p.ask(t.Context(), "http://192.168.50.21/", "-H", "Host: s999.test", "--max-time", "10"); err != nil {
		t.Error(err)
	}
	// Before it is unmounted, compressed memory has to be read back.
	if err := vm.Button(); err != nil {
		t.Fatal(err)
	}
	goesOff(t, vm, "the power button")
}

// inside returns the rest of the line that begins with this text.
func inside(text, begin string) string {
	_, rest, _ := strings.Cut(text, begin)
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.TrimSpace(rest)
}

// figure logs a measured figure, and keeps it.
func figure(t *testing.T, what string, value any) {
	t.Helper()
	line := fmt.Sprintf("%-64s %v", what, value)
	t.Log(line)
	if *keep == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(*keep, "figures.txt"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintln(f, line)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}
