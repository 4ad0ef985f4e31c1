package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sallyport/test/rig"
)

// A proxy is a HAProxy of the benchmark's own, with one empty backend named "floor".
type proxy struct {
	cmd    *exec.Cmd
	socket string
}

// haproxyProgram returns the HAProxy that the appliance has, too (see rig.Configure).
func haproxyProgram() string { return cmp.Or(os.Getenv("SALLYPORT_TEST_HAPROXY"), "/usr/sbin/haproxy") }

// ownProxy starts a HAProxy with its files in dir, and waits until its socket answers.
func ownProxy(ctx context.Context, dir string) (*proxy, error) {
	p := &proxy{socket: filepath.Join(dir, "floor.sock")}
	file := filepath.Join(dir, "floor.cfg")
	text := "global\n  stats socket " + p.socket +
		" level admin\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n" +
		"backend floor\n  balance random\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(context.WithoutCancel(ctx), haproxyProgram(), "-db", "-f", file)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, rig.Eventually(ctx, "a HAProxy answers on its socket", func() error {
		_, err := p.ask("show info")
		return err
	})
}

func (p *proxy) close() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.cmd.Wait()
}

func (p *proxy) ask(line string) (string, error) { return exchange(p.socket, line) }

// tell sends commands, so many to a line as HAProxy takes, and returns the time until the
// last answer.
func (p *proxy) tell(commands []string) (time.Duration, error) {
	const lineLength, lineCommands = 8 << 10, 500
	began := time.Now()
	for len(commands) > 0 {
		n, size := 0, 0
		for n < len(commands) && n < lineCommands && size+len(commands[n]) < lineLength {
			size += len(commands[n]) + 1
			n++
		}
		answer, err := p.ask(strings.Join(commands[:n], ";"))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(answer) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "New server") &&
				!strings.HasPrefix(line, "Server deleted") {
				return 0, fmt.Errorf("the floor's HAProxy: %s", line)
			}
		}
		commands = commands[n:]
	}
	return time.Since(began), nil
}
