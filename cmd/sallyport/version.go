package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker (-X main.version=v1.2.3).
var version string

// versionText returns the version that the linker set, or else the version of the Go
// module, or else the revision of this build.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	revision := settings["vcs.revision"]
	if revision == "" {
		return "devel"
	}
	revision = "devel-" + revision[:min(12, len(revision))]
	if settings["vcs.modified"] == "true" {
		revision += "-modified"
	}
	return revision
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  sallyport version",
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "sallyport %s (%s, %s/%s)\n", versionText(), runtime.Version(),
				runtime.GOOS, runtime.GOARCH)
			return err
		}),
	}
}
