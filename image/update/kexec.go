package update

import (
	"bytes"
	"context"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// secureFile is the firmware's variable of Secure Boot: four bytes of attributes, and
// one that is 1 if Secure Boot is on.
const secureFile = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// blessing is an option of the kernel's command line. It starts the service that
// waits until a version is ready, and reboots if that takes too long. systemd-boot
// adds it when it counts a start.
const blessing = "systemd.wants=systemd-bless-boot.service"

// Reboot starts the version that Install installed. It uses kexec where it can, for
// the firmware of a server takes minutes. Where it cannot, it calls say with the
// reason and reboots through the firmware.
func (m Machine) Reboot(ctx context.Context, version string, say func(string)) error {
	how := "kexec"
	if err := m.load(version); err != nil {
		say(fmt.Sprintf("%s is started by the firmware: %v", version, err))
		how = "reboot"
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// A machine that stops also ends this process and its children. That is no failure.
	if err := m.systemctl(context.WithoutCancel(ctx), how); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// load loads the version's kernel, to be started next. It counts that start in the
// version's name, as systemd-boot does.
func (m Machine) load(version string) error {
	if _, err := os.Stat(m.path(NoKexecFile)); err == nil {
		return errors.New("system.update.kexec is false")
	}
	if secure, err := os.ReadFile(m.path(secureFile)); err == nil && bytes.HasSuffix(secure, []byte{1}) {
		return errors.New("Secure Boot is on, and the firmware has to verify it")
	}
	fresh := freshName(version)
	image, err := pe.Open(filepath.Join(m.path(versionsDir), fresh))
	if err != nil {
		return err
	}
	defer image.Close() //nolint:errcheck // only read
	var cmdline strings.Builder
	if err := section(&cmdline, image, ".cmdline"); err != nil {
		return err
	}
	kernel, err := m.unpack(image, ".linux")
	if err != nil {
		return err
	}
	defer kernel.Close() //nolint:errcheck // only read
	root, err := m.unpack(image, ".initrd")
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read
	if err := m.spare(kernel, root); err != nil {
		return err
	}
	if err := m.kexec(kernel, root, strings.TrimRight(cmdline.String(), "\x00\n ")+" "+blessing); err != nil {
		return fmt.Errorf("the kernel rejects it: %w", err)
	}
	return m.rename(fresh, fmt.Sprintf("sallyport_%s+%d-1.efi", version, tries-1))
}

// section copies a section of the file, without its padding.
func section(to io.Writer, image *pe.File, name string) error {
	s := image.Section(name)
	if s == nil {
		return fmt.Errorf("it has no section %s", name)
	}
	_, err := io.Copy(to, io.LimitReader(s.Open(), int64(s.VirtualSize)))
	return err
}

// unpack copies a section to a file of its own that no process has open for writing: the kernel
// refuses a file that is open for writing (ETXTBSY).
func (m Machine) unpack(image *pe.File, name string) (*os.File, error) {
	out, err := os.CreateTemp(m.path(stateDir), ".kexec-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name()) //nolint:errcheck // the open file stays readable
	err = section(out, image, name)
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return os.Open(out.Name())
}

// spare returns an error if there is too little memory to load these files. The
// kernel reads each file, and then copies it to its place; no process is to be killed
// for that.
func (m Machine) spare(files ...*os.File) error {
	need := int64(64 << 20)
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		need += 2 * info.Size()
	}
	text, err := os.ReadFile(m.path("/proc/meminfo"))
	if err != nil {
		return err
	}
	var have int64
	for line := range strings.Lines(string(text)) {
		if kib, is := strings.CutPrefix(line, "MemAvailable:"); is {
			_, err = fmt.Sscan(kib, &have)
			have <<= 10
		}
	}
	if err == nil && have < need {
		err = fmt.Errorf("it needs %d MB of memory, and %d are available", need>>20, have>>20)
	}
	return err
}

func (m Machine) kexec(kernel, root *os.File, cmdline string) error {
	if m.Kexec != nil {
		return m.Kexec(kernel, root, cmdline)
	}
	return unix.KexecFileLoad(int(kernel.Fd()), int(root.Fd()), cmdline, 0)
}

// Bless removes the count of starts from the name of the version that runs, so that it may start
// any number of times. Callers call it when the version has been ready. The program
// systemd-bless-boot does the same, but not after a kexec.
func (m Machine) Bless() error {
	running, err := m.running()
	if err != nil {
		return err
	}
	have, err := m.releases()
	if err != nil {
		return err
	}
	// stepBack counts a version down without a start.
	counted := slices.IndexFunc(have, func(r release) bool {
		return r.version == running && r.left >= 0 && r.file != backName(running)
	})
	if counted < 0 {
		return nil
	}
	return m.rename(have[counted].file, "sallyport_"+running+".efi")
}
