package image

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

// secureFile is the firmware's variable that says whether it starts only what is
// signed: four bytes of attributes, and one.
const secureFile = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// blessing starts the service that waits for a version to be ready, and reboots if
// it does not get so. systemd-boot asks for it where it counts a start.
const blessing = "systemd.wants=systemd-bless-boot.service"

// Reboot starts the machine anew, as the version that Update installed. Where it
// can, the kernel that runs starts that one's (kexec): the firmware of a server
// takes minutes. Why it cannot it says to say, and leaves it to the firmware.
func (m Machine) Reboot(ctx context.Context, version string, say func(string)) error {
	how := "kexec"
	if err := m.load(version); err != nil {
		say(fmt.Sprintf("%s is started by the firmware: %v", version, err))
		how = "reboot"
	}
	return m.start(ctx, "", "systemctl", how)
}

// load hands the version to the kernel, to be started next. As with systemd-boot
// this is one of its starts.
func (m Machine) load(version string) error {
	if _, err := os.Stat(m.path(firmwareFile)); err == nil {
		return errors.New("system.update.kexec is false")
	}
	if secure, err := os.ReadFile(m.path(secureFile)); err == nil && bytes.HasSuffix(secure, []byte{1}) {
		return errors.New("Secure Boot is on, and the firmware has to see it")
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
		return fmt.Errorf("the kernel does not take it: %w", err)
	}
	return m.rename(fresh, fmt.Sprintf("sallyport_%s+%d-1.efi", version, tries-1))
}

// section copies a section of the file, without what fills it up.
func section(to io.Writer, image *pe.File, name string) error {
	s := image.Section(name)
	if s == nil {
		return fmt.Errorf("it has no section %s", name)
	}
	_, err := io.Copy(to, io.LimitReader(s.Open(), int64(s.VirtualSize)))
	return err
}

// unpack puts a section into a file of its own, as the kernel wants it: one that
// nobody writes to.
func (m Machine) unpack(image *pe.File, name string) (*os.File, error) {
	out, err := os.CreateTemp(m.path(stateDir), ".kexec-*")
	if err != nil {
		return nil, err
	}
	defer os.Remove(out.Name()) //nolint:errcheck // who has it open keeps it
	err = section(out, image, name)
	if err := errors.Join(err, out.Close()); err != nil {
		return nil, err
	}
	return os.Open(out.Name())
}

// spare sees to it that there is memory for what is loaded: the kernel reads it,
// and then copies it to where it is to be. Nobody is to be killed for it.
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
		err = fmt.Errorf("that takes %d MB of memory, and %d are available", need>>20, have>>20)
	}
	return err
}

func (m Machine) kexec(kernel, root *os.File, cmdline string) error {
	if m.Kexec != nil {
		return m.Kexec(kernel, root, cmdline)
	}
	return unix.KexecFileLoad(int(kernel.Fd()), int(root.Fd()), cmdline, 0)
}

// Bless takes the count of starts off the name of the version that runs: it is
// ready, and may start as often as it likes. systemd-bless-boot would do so, but for
// what systemd-boot started alone.
func (m Machine) Bless() error {
	running, err := m.running()
	if err != nil {
		return err
	}
	have, err := m.releases()
	if err != nil {
		return err
	}
	// One that was stepped back from was counted down without a start.
	counted := slices.IndexFunc(have, func(r release) bool {
		return r.version == running && r.left >= 0 && r.file != backName(running)
	})
	if counted < 0 {
		return nil
	}
	return m.rename(have[counted].file, "sallyport_"+running+".efi")
}
