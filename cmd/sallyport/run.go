package main

import (
	"context"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/config"
)

func runCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the appliance",
		Long: `Run the appliance in the foreground, until SIGTERM or SIGINT.

On the way out HAProxy goes on serving and the routes stay in the kernel: the next
start adopts both. Under systemd (Type=notify) it says when it is ready, and feeds
the watchdog.`,
		Example: "  sallyport run --config /etc/sallyport/sallyport.yaml",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load(path)
		if err != nil {
			return badConfig(err)
		}
		return run(cmd.Context(), cfg, logger(cfg.Log, cmd.ErrOrStderr()))
	})
	return cmd
}

// run runs the appliance until a signal ends it. A second signal kills.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	for _, warning := range cfg.Warnings {
		log.Warn("configuration", "warning", warning)
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	manager := newSystemd(log)
	context.AfterFunc(ctx, func() {
		stop()
		manager.Stopping()
	})
	log.Info("starting", "version", versionText(), "identity", cfg.Identity, "clusters", len(cfg.Clusters), "status", cfg.Status.Listen)
	err := appliance.Run(ctx, cfg, appliance.Hooks{
		Log: log, Version: versionText(), Ready: manager.Ready, Alive: manager.Alive,
	})
	if err == nil {
		log.Info("stopped; HAProxy and the routes stay")
	}
	return err
}

// logger is the log of the whole process, in the form the configuration asks for.
func logger(cfg config.Log, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.Level}
	if cfg.Format == config.JSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
