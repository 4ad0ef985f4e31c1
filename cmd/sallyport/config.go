package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, make one of other files, or print its schema or an example",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file and the files it names",
		Long: `Check a configuration file and the files it names. Every mistake is shown with its
line, its key, and what is allowed there. The exit code is 2 if there is a mistake.
It also shows how many connections and servers HAProxy holds on this machine, with the
limit of open files of this command: that of a systemd unit may differ.`,
		Example: "  sallyport config check /etc/sallyport/sallyport.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: work(func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0])
			if err != nil {
				return badConfig(err)
			}
			for _, warning := range cfg.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
			}
			doubts := ""
			if n := len(cfg.Warnings); n > 0 {
				doubts = fmt.Sprintf(", with warnings: %d", n)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok%s\n", args[0], doubts)
			if holds := appliance.Holds(cfg); holds != "" && err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "HAProxy on this machine: %s\n", holds)
			}
			return err
		}),
	}, &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `Print the JSON Schema of the configuration file: every key with its meaning, its
default and its allowed values. Editors use it to check and complete YAML.`,
		Example: "  sallyport config schema > sallyport.schema.json",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema())
			return err
		}),
	}, exampleCommand(), importCommand())
	return cmd
}

func exampleCommand() *cobra.Command {
	var group bool
	cmd := &cobra.Command{
		Use:   "example",
		Short: "Print a complete configuration file for the usual case",
		Example: `  sallyport config example > /etc/sallyport/sallyport.yaml
  sallyport config example --group`,
		Args: cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			text := config.Example
			if group {
				text = config.GroupExample
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		}),
	}
	cmd.Flags().BoolVar(&group, "group", false, "the file of one of two appliances that serve the same address")
	return cmd
}
