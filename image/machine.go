package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/image/update"
)

// A Machine is one to be made. The zero Machine is the one this runs on.
type Machine struct {
	// Root is put before every path. Empty: the machine's own.
	Root string
	// Start runs a program to its end, with this standard input. Nil: does so.
	Start func(ctx context.Context, stdin string, program string, args ...string) error
	// Mount mounts a device to be read, as a file system of this kind. Nil: does so.
	Mount func(device, dir, kind string) error
}

// What the parts of the image know one another by. The units name them too.
const (
	runDir   = "/run/sallyport-image"
	keptDir  = "/var/lib/sallyport/image"
	stateDir = "/var/lib/sallyport"

	configFile = runDir + "/sallyport.yaml"
	stateFile  = runDir + "/state.json"
	noticeFile = runDir + "/notices"
	wallFile   = runDir + "/firewall.nft"
	keysFile   = runDir + "/authorized_keys"
	dumbFile   = runDir + "/no-console"
	agentFile  = runDir + "/qemu-ga.conf"
	diskLink   = runDir + "/disk" // to the disk that the machine was started from, if there is one
	keptFile   = keptDir + "/sallyport.yaml"
)

// StatusPort is where a machine without a file says how to give it one.
const StatusPort = 9090

// State is what became of the file. It holds no secret.
type State struct {
	// Source is where the file in use came from. Empty: there is none.
	Source string `json:"source,omitempty"`
	// Refused is a file that was found and is not used.
	Refused *Refusal `json:"refused,omitempty"`
	// Notices are what wants a look, a sentence each, but for Refused.
	Notices []string `json:"notices,omitempty"`
	// Hostname is the name of the machine.
	Hostname string `json:"hostname"`
	// Status is where the process tells about itself (status.listen).
	Status netip.AddrPort `json:"status"`
	// Seen is the mark of what the sources held.
	Seen string `json:"seen,omitempty"`
	// Closed is why only the boot disk's volume may have another file. Empty: all
	// volumes may.
	Closed string `json:"closed,omitempty"`
}

// Refusal is a file that is not used.
type Refusal struct {
	Source string   `json:"source"`
	Why    []string `json:"why"` // a mistake each
}

func (m Machine) path(name string) string { return filepath.Join(m.Root, name) }

func (m Machine) start(ctx context.Context, stdin, program string, args ...string) error {
	if m.Start != nil {
		return m.Start(ctx, stdin, program, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (m Machine) mount(device, dir, kind string) error {
	if m.Mount != nil {
		return m.Mount(device, dir, kind)
	}
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW
	if err := unix.Mount(device, dir, kind, flags, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// State reads what the last Prepare left.
func (m Machine) State() (State, error) {
	var s State
	data, err := os.ReadFile(m.path(stateFile))
	if err != nil {
		return s, fmt.Errorf("nothing has looked for the one file yet: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", stateFile, err)
	}
	return s, nil
}

// tell writes the State, and for the process the notices.
func (m Machine) tell(s State) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		m.write(stateFile, file{0o644, string(data) + "\n"}),
		m.write(noticeFile, file{0o644, strings.Join(s.Lines(), "\n") + "\n"}),
	)
}

// Lines are all that is wrong, a line each.
func (s State) Lines() []string {
	lines := append([]string{}, s.Notices...)
	if s.Refused != nil {
		for _, why := range s.Refused.Why {
			lines = append(lines, fmt.Sprintf("the file from %s is not used: %s", s.Refused.Source, why))
		}
	}
	return lines
}

// file is one to be written.
type file struct {
	mode    fs.FileMode
	content string
}

// write replaces a file in one step. One that is as wanted is left alone.
func (m Machine) write(name string, f file) error {
	path := m.path(name)
	if have, err := readRegular(path, len(f.content)); err == nil && string(have) == f.content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // systemd's own services read there
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".sallyport-*")
	if err != nil {
		return err
	}
	_, err = temp.WriteString(f.content)
	err = errors.Join(err, temp.Chmod(f.mode), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return err
	}
	return update.SyncFolder(filepath.Dir(path))
}
