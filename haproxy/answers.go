package haproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
)

// WorkerSocket returns the path of the worker's stats socket in a run directory.
func WorkerSocket(runDir string) string { return filepath.Join(runDir, "worker.sock") }

// Answers asks the worker at a stats socket for anything, and returns why it does not answer. It
// needs no Proxy: a process that does not manage HAProxy may ask.
func Answers(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the answer was read
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := io.WriteString(conn, "get var proc.gen\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 1024))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("nothing came from %s: %w", socket, context.Cause(ctx))
	case err != nil:
		return err
	case !bytes.Contains(answer, []byte("proc.gen")):
		return fmt.Errorf("%s answered %q", socket, answer)
	}
	return nil
}
