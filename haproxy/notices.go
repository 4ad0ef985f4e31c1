package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/time/rate"
)

// checkNotice matches the line that HAProxy logs when its checks, or the errors that
// it meets ("Health analyze"), change the state of a server. Lines about our own
// commands have no reason of this kind.
var checkNotice = regexp.MustCompile(`^Server ([^/ ]+)/(\S+) is (UP|DOWN), reason: ([^,.\n]+)(?:, code: (\d+))?[,.]`)

// listen opens the socket to which each backend logs. HAProxy sends to its path, and never waits
// for a reader. While nobody listens, only notices are lost.
//
// HAProxy's worker runs as another user, so handOver gives the socket to the worker's
// group. Without CAP_CHOWN this process has to be in that group.
func (p *Proxy) listen() (*net.UnixConn, error) {
	path := p.files.NoticeSocket
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	if err := p.handOver(path); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("letting HAProxy write to %s: %w", path, err)
	}
	return conn, nil
}

// handOver lets HAProxy's group write to the socket, and pass through the directories
// that lead to it. Without a group only this process's own user may write.
func (p *Proxy) handOver(path string) error {
	if p.opt.Group == "" {
		return os.Chmod(path, 0o600)
	}
	group, err := user.LookupGroup(p.opt.Group)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return err
	}
	err = errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o620)) //nolint:gosec // the group writes
	dirs := []string{filepath.Dir(path)}
	if p.files.Jail == "" {
		dirs = append(dirs, p.opt.RunDir)
	}
	for _, dir := range dirs {
		err = errors.Join(err, os.Chown(dir, -1, gid), os.Chmod(dir, 0o710)) //nolint:gosec // the group may pass, no more
	}
	return err
}

// screenful limits the notices that are logged one by one when many come at once.
const screenful = 20

// hear logs what checks find, and signals heard, until ctx ends. A notice is only a
// signal: the truth is read from the worker.
func (p *Proxy) hear(ctx context.Context, conn *net.UnixConn, heard chan<- struct{}) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	buf := make([]byte, 2048)
	said, unsaid := rate.NewLimiter(rate.Every(time.Second), screenful), 0
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		m := checkNotice.FindSubmatch(buf[:n])
		if m == nil {
			continue
		}
		select {
		case heard <- struct{}{}:
		default:
		}
		if !said.Allow() {
			unsaid++
			continue
		}
		attrs := []any{"backend", string(m[1]), "server", string(m[2]), "reason", string(m[4])}
		if len(m[5]) > 0 {
			attrs = append(attrs, "code", string(m[5]))
		}
		if unsaid > 0 {
			attrs, unsaid = append(attrs, "unlogged", unsaid), 0
		}
		if string(m[3]) == "DOWN" {
			p.log.Warn("server fails its check", attrs...)
		} else {
			p.log.Info("server passes its check again", attrs...)
		}
	}
}
