package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/config"
	"sallyport/image"
)

func runCommand() *cobra.Command {
	var path, notices, vrrp string
	var firewall bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the appliance",
		Long: `Run the appliance in the foreground, until SIGTERM or SIGINT.

At its end HAProxy goes on serving, and the routes stay in the kernel: the next start
adopts both. Under systemd (Type=notify) it reports when it is ready, and feeds the
watchdog.

SIGHUP makes it read the configuration file again. Changes take effect at once, except
those of keys that need a restart ("sallyport config schema" marks them). "sallyport
status" shows which keys wait for a restart, and the mistakes of a file that is not used.

The exit code is 78 if the configuration has a mistake: a restart does not fix it.`,
		Example: "  sallyport run --config /etc/sallyport/sallyport.yaml",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	cmd.Flags().StringVar(&notices, "notices", "",
		"file whose lines the status shows as warnings; the bootable image writes it")
	cmd.Flags().BoolVar(&firewall, "firewall", false, "fill the sets of the bootable image's firewall")
	cmd.Flags().StringVar(&vrrp, "vrrp-unit", "",
		"unit of systemd that runs keepalived for group.vrrp; without it keepalived is a child of this process, and "+
			"needs its rights")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(path)
		if err != nil {
			return &failure{exitConfig, err}
		}
		level := new(slog.LevelVar)
		level.Set(cfg.Log.Level)
		hooks := appliance.Hooks{
			Log: logger(cfg.Log.Format, level, cmd.ErrOrStderr()), Level: level,
			Version: versionText(), VRRPUnit: vrrp,
		}
		hooks.Notices = func() []string { return linesOf(notices) }
		hooks.Load = func() (*config.Config, error) { return config.Load(path) }
		if program != "" {
			hooks.Upstream = func(socket string) *exec.Cmd {
				return upstreamProcess(socket, cfg.Log.Format, cmd.ErrOrStderr())
			}
		}
		if firewall {
			hooks.Admit = func(a appliance.Admission) error {
				return image.Machine{}.Admit(cmd.Context(), image.Admission(a))
			}
		}
		return run(cmd.Context(), cfg, hooks)
	})
	return cmd
}

// run runs the appliance until a signal. A second signal kills the process.
func run(ctx context.Context, cfg *config.Config, hooks appliance.Hooks) error {
	log := hooks.Log
	for _, warning := range cfg.Warnings {
		log.Warn("configuration", "warning", warning)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	manager := newSystemd(log)
	told := make(chan struct{})
	context.AfterFunc(ctx, func() {
		stop()
		manager.Stopping()
		close(told)
	})
	log.Info("starting", "version", versionText(), "identity", cfg.Identity, "clusters", len(cfg.Clusters), "status",
		cfg.Status.Listen)
	hooks.Ready, hooks.Alive, hooks.Leaving = manager.Ready, manager.Alive, manager.Leaving
	load := hooks.Load
	hooks.Reload, hooks.Reloaded = hangup, manager.Reloaded
	hooks.Load = func() (*config.Config, error) {
		manager.Reloading()
		return load()
	}
	err := appliance.Run(ctx, cfg, hooks)
	if ctx.Err() != nil {
		<-told // or the process may end before systemd hears of it
	}
	if err == nil {
		log.Info("stopped; HAProxy and the routes stay")
	}
	return err
}

// linesOf returns the lines of a file; none if there is no such file.
func linesOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// logger returns the log of the whole process, in the configured format.
func logger(format config.Format, level slog.Leveler, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == config.JSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
