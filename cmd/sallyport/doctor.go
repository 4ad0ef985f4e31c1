package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/appliance/doctor"
	"sallyport/appliance/status"
)

func doctorCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the configuration, this machine, the clusters and the running appliance",
		Long: `Check what the appliance needs, before its first start and in trouble: the
configuration file, this machine, the API server, Calico's objects, the way to each
node and its BGP speaker, when certificates expire, and what the running appliance
reports. Each check shows what was seen and what to do. It changes nothing. The exit code is 1 if a check failed.`,
		Example: `  sallyport doctor
  sallyport doctor --config sallyport.yaml -o json`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		failed := 0
		var all []status.Finding
		doctor.Examine(cmd.Context(), path, func(f status.Finding) {
			if f.Level == status.Failed {
				failed++
			}
			if all = append(all, f); output.value == "text" {
				writeFinding(cmd, f)
			}
		})
		if output.value == "json" {
			if err := writeJSON(cmd.OutOrStdout(), all); err != nil {
				return err
			}
		}
		if failed > 0 {
			return errors.New(status.Counted(failed, "check") + " failed")
		}
		return nil
	})
	return cmd
}

// writeFinding writes a finding for people, as soon as it is there.
func writeFinding(cmd *cobra.Command, f status.Finding) {
	t := newWriter()
	if f.Level == status.Failed {
		t.alarm()
	}
	level := string(f.Level)
	if f.Level == status.Failed {
		level = "FAILED"
	}
	t.line(level + strings.Repeat(" ", max(0, 9-len(level))) + f.Check + ": " + f.Saw)
	if f.Remedy != "" {
		t.line("         do: " + f.Remedy)
	}
	if f.Command != "" {
		t.line("         $ " + f.Command)
	}
	_ = t.writeTo(cmd.OutOrStdout())
}
