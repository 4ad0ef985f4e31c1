package main

import (
	"fmt"
	"io"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/image"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Commands of the bootable image",
		Long: `Commands of the bootable image. Its services run all of them but update, which is
for whoever has the maintenance key.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(prepareCommand(), watchCommand())
	return cmd
}

func prepareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prepare",
		Short: "Find the one file, and make the machine of it",
		Long: `Find the one file, and make the machine of it: addresses, names, firewall, and the
configuration of the process. A file with a mistake is not used; the last good one
is, or none.`,
		Args: cobra.NoArgs,
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
		Use:   "watch",
		Short: "Look again and again whether the one file has changed",
		Args:  cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return image.Machine{}.Watch(ctx, func(text string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), text) })
		}),
	}
}
