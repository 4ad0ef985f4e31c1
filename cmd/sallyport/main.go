// Command sallyport is the appliance and the few tools around it.
//
// It owns the command line, the logger, the signals and the notifications to systemd. Package
// appliance does the rest.
//
// The exit code is 0 for success, and 1 for a failure. It is 2 for a mistake in the command line,
// or in a configuration that a command checks or uses. The exit code 78 (EX_CONFIG of sysexits.h)
// means that the appliance cannot start with its configuration: a restart does not fix it. It is
// not 2, because a Go program that crashes exits with 2.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitConfig  = 78
)

// defaultConfig is the path of the configuration without --config.
const defaultConfig = "/etc/sallyport/sallyport.yaml"

// program is the path of this program, for a process of its own; empty in tests of the commands.
var program string

func main() {
	program = "/proc/self/exe" // the same file after an update has replaced it
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	var failed *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &failed):
		fmt.Fprintln(stderr, failed)
		return failed.code
	default:
		fmt.Fprintf(stderr, "%v\nSee '%s --help'.\n", err, cmd.CommandPath())
		return exitUsage
	}
}

// A failure is an error of a command's work. Any other error is cobra's, about the
// command line.
type failure struct {
	code int
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// badConfig returns the failure of a configuration with mistakes.
func badConfig(err error) error { return &failure{exitUsage, err} }

// work wraps a command's work, and turns its errors into failures.
func work(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		var failed *failure
		if err == nil || errors.As(err, &failed) {
			return err
		}
		return &failure{exitFailure, err}
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "sallyport",
		Short: "External ingress appliance for Kubernetes clusters that run Calico",
		Long: `Sallyport serves the Ingresses of a Kubernetes cluster from outside it. It learns
the routes to the pods from the Calico nodes by BGP, and opens a server in
HAProxy only while the kernel holds the verified route to its pod.`,
		Example: `  sallyport manifests --address 192.168.50.21 | kubectl apply -f -
  sallyport config check /etc/sallyport/sallyport.yaml
  sallyport run --config /etc/sallyport/sallyport.yaml
  sallyport status`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(
		runCommand(), statusCommand(), explainCommand(), topCommand(), eventsCommand(), doctorCommand(), drainCommand(),
		undrainCommand(),
		migrateCommand(), parityCommand(), manifestsCommand(), configCommand(), imageCommand(), versionCommand(),
		upstreamCommand(),
	)
	return root
}

// A oneOf is the value of a flag that accepts one of a few words.
type oneOf struct {
	value string
	words []string
}

// oneOfFlag adds a flag that accepts one of the words, with completion. The first word
// is the default.
func oneOfFlag(cmd *cobra.Command, name, short, usage string, words ...string) *oneOf {
	o := &oneOf{words[0], words}
	cmd.Flags().VarP(o, name, short, usage)
	err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	cobra.CheckErr(err)
	return o
}

// String returns the word.
func (o *oneOf) String() string { return o.value }

// Type returns the words, for the help.
func (o *oneOf) Type() string { return strings.Join(o.words, "|") }

// Set accepts one of the words.
func (o *oneOf) Set(s string) error {
	if !slices.Contains(o.words, s) {
		return fmt.Errorf("allowed: %s", o.Type())
	}
	o.value = s
	return nil
}
