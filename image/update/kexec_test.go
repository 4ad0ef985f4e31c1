package update

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
)

// A starter is a house with a version that was installed, and records what its
// kernel was given to start.
type starter struct {
	*house
	kernel, initrd, cmdline string
	refusal                 error
	said                    []string
}

func newStarter(t *testing.T) *starter {
	s := &starter{house: newHouse(t)}
	s.Kexec = func(kernel, initrd *os.File, cmdline string) error {
		one, err := io.ReadAll(kernel)
		other, oerr := io.ReadAll(initrd)
		s.kernel, s.initrd, s.cmdline = string(one), string(other), cmdline
		return errors.Join(err, oerr, s.refusal)
	}
	s.runs(newPublisher(t), "1.9", "sallyport_1.9.efi")
	s.put(versionsDir+"/sallyport_1.10+3.efi",
		string(efi("sallyport", "1.10", ".cmdline", "quiet rdinit=/init\n\x00", ".linux", "kernel", ".initrd", "root")))
	s.put("/proc/meminfo", "MemTotal:  2000000 kB\nMemAvailable:  1000000 kB\n")
	s.put(secureFile, "\x06\x00\x00\x00\x00")
	s.put(stateDir+"/picture", "")
	return s
}

func (s *starter) reboot() {
	s.t.Helper()
	if err := s.Reboot(s.t.Context(), "1.10", func(text string) { s.said = append(s.said, text) }); err != nil {
		s.t.Error(err)
	}
}

func TestTheKernelStartsAnUpdate(t *testing.T) {
	s := newStarter(t)
	s.reboot()
	if want := []string{"kexec"}; !slices.Equal(s.verbs, want) || len(s.said) > 0 {
		t.Errorf("started %q, want %q; said %q", s.verbs, want, s.said)
	}
	if s.kernel != "kernel" || s.initrd != "root" || s.cmdline != "quiet rdinit=/init "+blessing {
		t.Errorf("loaded %q, %q, %q", s.kernel, s.initrd, s.cmdline)
	}
	if want := []string{"sallyport_1.10+2-1.efi", "sallyport_1.9.efi"}; !slices.Equal(s.versions(), want) {
		t.Errorf("the partition has %q, want %q", s.versions(), want)
	}
	left, err := os.ReadDir(s.path(stateDir))
	if err != nil || len(left) != 1 {
		t.Errorf("on the state partition is %v, %v; want the picture alone", left, err)
	}

	// It is ready.
	s.put(systemFile, "IMAGE_ID=sallyport\nIMAGE_VERSION=1.10\n")
	for range 2 {
		if err := s.Bless(); err != nil {
			t.Error(err)
		}
		if want := []string{"sallyport_1.10.efi", "sallyport_1.9.efi"}; !slices.Equal(s.versions(), want) {
			t.Errorf("once it is ready the partition has %q, want %q", s.versions(), want)
		}
	}
	if err := s.stepBack("1.10"); err != nil {
		t.Error(err)
	}
	if err := s.Bless(); err != nil || s.versions()[0] != "sallyport_1.10+0.efi" {
		t.Errorf("stepped back from, the partition has %q (%v)", s.versions(), err)
	}
}

// In a group, an error would let this machine serve again while it stops.
func TestTheEndOfTheCommandByTheRebootIsNoFailure(t *testing.T) {
	for name, row := range map[string]struct {
		end  bool // systemd ends the command when it stops the machine
		want string
	}{
		"the machine stops":         {true, ""},
		"systemd rejects the order": {false, "signal: terminated"},
	} {
		s := newStarter(t)
		ctx, end := context.WithCancel(t.Context())
		s.Systemctl = func(ctx context.Context, _ string) error {
			if row.end {
				end()
			}
			return errors.Join(ctx.Err(), errors.New("signal: terminated"))
		}
		err := s.Reboot(ctx, "1.10", func(string) {})
		if got := fmt.Sprint(err); got != cmp.Or(row.want, "<nil>") {
			t.Errorf("%s: got %s, want %q", name, got, row.want)
		}
		end()
		s.Systemctl = func(context.Context, string) error {
			t.Errorf("%s: a command that has ended reboots", name)
			return nil
		}
		if err := s.Reboot(ctx, "1.10", func(string) {}); err == nil {
			t.Errorf("%s: a command that has ended reports success", name)
		}
	}
}

func TestTheFirmwareStartsWhatTheKernelMayNot(t *testing.T) {
	for name, row := range map[string]struct {
		make func(s *starter)
		want string
	}{
		"the file says so": {func(s *starter) { s.put(NoKexecFile, "") }, "system.update.kexec is false"},
		"Secure Boot":      {func(s *starter) { s.put(secureFile, "\x06\x00\x00\x00\x01") }, "Secure Boot is on"},
		"little memory": {
			func(s *starter) { s.put("/proc/meminfo", "MemAvailable:  60000 kB\n") },
			"64 MB of memory, and 58 are available",
		},
		"no state partition": {func(s *starter) { _ = os.RemoveAll(s.path(stateDir)) }, "no such file"},
		"no root": {func(s *starter) {
			s.put(versionsDir+"/sallyport_1.10+3.efi", string(efi("sallyport", "1.10", ".cmdline", "", ".linux", "")))
		}, "no section .initrd"},
		"the kernel refuses": {func(s *starter) { s.refusal = errors.New("exec format error") }, "exec format error"},
	} {
		s := newStarter(t)
		row.make(s)
		s.reboot()
		if want := []string{"reboot"}; !slices.Equal(s.verbs, want) {
			t.Errorf("%s: started %q, want %q", name, s.verbs, want)
		}
		if len(s.said) != 1 || !strings.Contains(s.said[0], row.want) {
			t.Errorf("%s: said %q, want %q", name, s.said, row.want)
		}
		if want := []string{"sallyport_1.10+3.efi", "sallyport_1.9.efi"}; !slices.Equal(s.versions(), want) {
			t.Errorf("%s: the partition has %q, want %q", name, s.versions(), want)
		}
	}
}
