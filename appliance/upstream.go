package appliance

import (
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/appliance/config"
	"sallyport/bgp"
	"sallyport/bgp/upstream"
	"sallyport/haproxy"
)

// Upstream keeps the sessions with the upstream routers, in a process of its own that Run starts by
// Hooks.Upstream. It returns when nothing is announced any more.
func Upstream(ctx context.Context, socket string, log *slog.Logger, level *slog.LevelVar) error {
	return upstream.Process{Socket: socket, Log: log, Level: level, Answers: haproxy.Answers}.Run(ctx)
}

// outlived returns a speaker that uses the process of the routers' sessions.
func (l *loop) outlived(
	ctx context.Context, cfg *config.Config, nodes *bgp.Speaker, hooks Hooks, sessions bgp.Config,
) *upstream.Speaker {
	o := upstream.Options{
		Config: sessions, Socket: filepath.Join(cfg.HAProxy.RunDir, "upstream.sock"),
		Proxy:   haproxy.WorkerSocket(cfg.HAProxy.RunDir),
		Outlive: func() time.Duration { return l.cfg.Group.Upstream.AfterCrash }, // the loop's goroutine asks
	}
	if hooks.Level != nil {
		o.Level = hooks.Level
	}
	o.Start = func() error {
		cmd := hooks.Upstream(o.Socket)
		// A signal to the group or the terminal of this process does not end the process for the
		// routers.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Dir = "/"
		if err := cmd.Start(); err != nil {
			return err
		}
		go reap(cmd, sessions.Log)
		return nil
	}
	return upstream.New(ctx, nodes, o)
}

// reap waits for the end of a process, so that no zombie stays.
func reap(cmd *exec.Cmd, log *slog.Logger) {
	if err := cmd.Wait(); err != nil {
		log.Error("the process for the routers ended", "err", err)
	}
}
