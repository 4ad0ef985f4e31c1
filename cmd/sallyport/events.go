package main

import (
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance/status"
)

func eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what changed recently, and why",
		Long: `Show what changed recently, the oldest first: servers, routes, BGP sessions, reloads of
HAProxy, refused offers, limits, and the state of the appliance. For each it shows why,
and how long the appliance took. The running appliance keeps the last 2000 changes in
memory.`,
		Example: `  sallyport events
  sallyport events --since 10m --watch
  sallyport events --since 24h -o json`,
		Args: cobra.NoArgs,
	}
	endpoint := endpointFlags(cmd)
	since := cmd.Flags().Duration("since", time.Hour, "how far back")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json", "yaml")
	watch := watchFlag(cmd)
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		page := "/events?" + url.Values{"since": {since.String()}}.Encode()
		return again(cmd, *watch, func() error { return show(cmd, endpoint, page, output, nil, writeEvents) })
	})
	return cmd
}

// writeEvents writes changes for people, the newest next to the prompt.
func writeEvents(t writer, changes []status.Change) {
	if len(changes) == 0 {
		t.line("nothing changed in that time")
		return
	}
	var rows [][]status.Cell
	for _, c := range slices.Backward(changes) {
		rows = append(rows, status.ChangeTable.Row(nil, c))
	}
	t.writeRows(&status.ChangeTable.Head, rows, false, "")
}
