package main

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/config"
)

// upstreamCommand returns the command that runs the sessions with the upstream routers. It is for
// "sallyport run", and not for people.
func upstreamCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "upstream SOCKET",
		Short:  "Keep the BGP sessions with the upstream routers, for \"sallyport run\"",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
	}
	format := oneOfFlag(cmd, "log-format", "", "form of a line of the log", string(config.Text), string(config.JSON))
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		// The log may go to a terminal or a program that has ended with sallyport.
		signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		level := new(slog.LevelVar)
		return appliance.Upstream(ctx, args[0], logger(config.Format(format.value), level, cmd.ErrOrStderr()), level)
	})
	return cmd
}

// upstreamProcess returns the command as a process of this program, with the same log.
func upstreamProcess(socket string, format config.Format, log io.Writer) *exec.Cmd {
	cmd := exec.Command(program, "upstream", "--log-format", string(format), socket)
	cmd.Args[0] = "sallyport"
	cmd.Stderr = log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	return cmd
}
