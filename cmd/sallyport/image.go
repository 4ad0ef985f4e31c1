package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/image"
	"sallyport/image/update"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Commands of the bootable image",
		Long: `Commands of the bootable image. Its services run all of them but update, which is
for whoever has the maintenance key.`,
		Example: "  sallyport image screen --once\n  sallyport image update sallyport_1.2.3.efi",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(prepareCommand(), watchCommand(), waitCommand(), screenCommand(), readyCommand(), blessCommand(), updateCommand())
	return cmd
}

func prepareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prepare",
		Short: "Find the one file, and make the machine of it",
		Long: `Find the one file, and make the machine of it: addresses, names, firewall, and the
configuration of the process. A file with a mistake is not used; the last good one
is, or none.`,
		Example: "  sallyport image prepare",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			s, err := image.Machine{}.Prepare(cmd.Context())
			writeState(cmd.OutOrStdout(), s)
			return err
		}),
	}
}

// writeState says what became of the file.
func writeState(w io.Writer, s image.State) {
	if s.Source != "" {
		_, _ = fmt.Fprintf(w, "the file in use is from %s\n", s.Source)
	}
	for _, line := range s.Lines() {
		_, _ = fmt.Fprintln(w, line)
	}
	if s.Source == "" {
		_, _ = fmt.Fprint(w, image.HowTo)
	}
}

func watchCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "watch",
		Short:   "Look again and again whether the one file has changed",
		Example: "  sallyport image watch",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return image.Machine{}.Watch(ctx, func(text string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), text) })
		}),
	}
}

// untilSignal is a context that ends with the service.
func untilSignal(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
}

func waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "wait",
		Short:   "Answer on the status port how to give this machine its file",
		Example: "  sallyport image wait",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(image.StatusPort))
			if err != nil {
				return err
			}
			return image.Machine{}.Wait(ctx, listener)
		}),
	}
}

func screenCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:     "screen",
		Short:   "Draw the state of the machine, every two seconds",
		Example: "  sallyport image screen --once",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return image.Machine{}.Screen(ctx, cmd.OutOrStdout(), versionText(), once)
		}),
	}
	cmd.Flags().BoolVar(&once, "once", false, "draw it once, without the codes of a terminal")
	return cmd
}

func readyCommand() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:     "ready",
		Short:   "Wait until the machine serves what it should, or says that it needs a file",
		Example: "  sallyport image ready --within 1m",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			return image.Machine{}.Ready(ctx, func(text string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), text) })
		}),
	}
	cmd.Flags().DurationVar(&within, "within", 5*time.Minute, "how long to wait")
	return cmd
}

func blessCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "bless",
		Short:   "Let the version that runs start as often as it likes: it is ready",
		Example: "  sallyport image bless",
		Args:    cobra.NoArgs,
		RunE:    work(func(*cobra.Command, []string) error { return update.Machine{}.Bless() }),
	}
}

func updateCommand() *cobra.Command {
	var r update.Request
	var stay bool
	cmd := &cobra.Command{
		Use:   "update [FILE|URL]",
		Short: "Put another version beside the one that runs, and reboot into it",
		Long: `Put another version beside the one that runs, and reboot into it. It is checked
against the keys in this image before anything can start it. If it does not get
ready in three starts, the one that runs now is started again.

A URL is that of the file, or of a folder whose file "latest" names it; without one
it is system.update.url. Beside the file are its manifest, with .manifest behind the
name, and the manifest's signature, with .manifest.sig.`,
		Example: `  sallyport image update sallyport_1.2.3.efi
  sallyport image update https://updates.example.org/sallyport/ --no-reboot`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&stay, "no-reboot", false, "leave the next start to somebody else")
	cmd.Flags().BoolVar(&r.Older, "allow-downgrade", false, "take a version that is older than the one that runs, too")
	cmd.Flags().BoolVar(&r.Newer, "newer", false, "take only a version that is newer than the one that runs, and has not failed here")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilSignal(cmd)
		defer stop()
		if len(args) > 0 {
			r.From = args[0]
		}
		r.Say = func(text string) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), text) }
		var m update.Machine
		done, err := m.Install(ctx, r)
		if err != nil {
			return err
		}
		switch {
		case output.value == "json":
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			err = e.Encode(done)
		case done.Installed == "":
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "nothing to do, %s runs: %s\n", done.Running, done.Why)
		default:
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s starts next; %s runs, and is kept\n", done.Installed, done.Running)
		}
		if err != nil || done.Installed == "" || stay {
			return err
		}
		return m.Reboot(ctx, done.Installed, r.Say)
	})
	return cmd
}
