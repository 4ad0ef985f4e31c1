package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/image/update"
)

// A Machine is a machine to configure. The zero Machine is the machine that this process runs on.
type Machine struct {
	// Root is put before every path. If it is empty, paths are the machine's own.
	Root string
	// Start runs a program to its end, with this standard input. If it is nil, the program really
	// runs.
	Start func(ctx context.Context, stdin string, program string, args ...string) error
	// Mount mounts a device read-only, as a file system of this kind. If it is nil, mount(2) does.
	Mount func(device, dir, kind string) error
}

// Paths that the parts of the image share. The units contain the same paths.
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
	diskLink   = runDir + "/disk" // symbolic link to the disk that started the machine, if one did
	keptFile   = keptDir + "/sallyport.yaml"
)

// StatusPort is the port where a machine without a file answers with instructions to provide a
// file.
const StatusPort = 9090

// State describes the file in use, and the problems of the machine. It holds no secret.
type State struct {
	// Source names the place that the file in use came from. It is "" if no file is in use.
	Source string `json:"source,omitempty"`
	// Refused describes a file that was found and is not used.
	Refused *Refusal `json:"refused,omitempty"`
	// Notices lists everything else that needs attention, a sentence each.
	Notices []string `json:"notices,omitempty"`
	// Hostname is the name of the machine.
	Hostname string `json:"hostname"`
	// Status is where everybody reaches the process's status endpoint: http://HOST:PORT, or
	// https://HOST:PORT.
	Status string `json:"status"`
	// Control is the path of the socket where root reaches the status endpoint without a password.
	Control string `json:"control,omitempty"`
	// Seen is the mark of the file that the sources had last.
	Seen string `json:"seen,omitempty"`
	// Closed says why only the boot disk's volume is read. It is "" if all volumes are read.
	Closed string `json:"closed,omitempty"`
}

// Refusal describes a file that is not used.
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

// State returns the State that the last Prepare or Watch wrote.
func (m Machine) State() (State, error) {
	var s State
	data, err := os.ReadFile(m.path(stateFile))
	if err != nil {
		return s, fmt.Errorf("the machine has not looked for its file yet: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", stateFile, err)
	}
	return s, nil
}

// tell writes the State, and the notices that the process shows.
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

// Lines returns everything that is wrong, a line each.
func (s State) Lines() []string {
	lines := append([]string{}, s.Notices...)
	if s.Refused != nil {
		for _, why := range s.Refused.Why {
			lines = append(lines, fmt.Sprintf("the file from %s is not used: %s", s.Refused.Source, why))
		}
	}
	return lines
}

// A file is the mode and the content of a file to write.
type file struct {
	mode    fs.FileMode
	content string
}

// write replaces a file in one step. It does not touch a file that has the content
// already.
func (m Machine) write(name string, f file) error {
	path := m.path(name)
	if have, err := readRegular(path, len(f.content)); err == nil && string(have) == f.content {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // systemd's own services read there
		return err
	}
	return update.Replace(path, f.mode, f.content)
}
