package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
)

func statusCommand() *cobra.Command {
	var names, described []string
	for _, table := range status.Tables {
		of := table.About()
		names, described = append(names, of.Name), append(described, of.Name+"\t"+of.Title)
	}
	cmd := &cobra.Command{
		Use:   "status [" + strings.Join(names, "|") + "]",
		Short: "Show the state of a running appliance",
		Long: `Show the state of a running appliance: its BGP peers, their routes, the offers it
refused, and the servers. For each that is not in use it shows the reason. The name of
a part shows that part alone.`,
		Example: `  sallyport status
  sallyport status servers --watch
  sallyport status peers -o wide
  sallyport status --address https://192.168.50.21:9090 --ca ca.pem --password-file password -o json`,
		ValidArgs: described,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
	}
	endpoint := endpointFlags(cmd)
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "wide", "json", "yaml")
	watch := watchFlag(cmd)
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		write := func(t writer, s status.Status) { writeStatus(t, s, output.value == "wide") }
		var pick func(status.Status) any // the part alone, as JSON
		if len(args) == 1 {
			table := status.Tables[slices.Index(names, args[0])]
			write = func(t writer, s status.Status) { t.writeTable(table, &s, output.value == "wide", "") }
			pick = func(s status.Status) any { return table.Value(&s) }
		}
		return again(cmd, *watch, func() error { return show(cmd, endpoint, "/status", output, pick, write) })
	})
	return cmd
}

func watchFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("watch", "w", false, "show it again every 2 seconds, until interrupted")
}

// again runs a command's work once, or every 2 seconds until the command is interrupted. On
// a terminal it clears the screen before each.
func again(cmd *cobra.Command, watch bool, work func() error) error {
	if !watch {
		return work()
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for {
		if isTerminal(cmd.OutOrStdout()) {
			_, _ = io.WriteString(cmd.OutOrStdout(), "\x1b[H\x1b[2J")
		}
		if err := work(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

// show requests a JSON page of the status endpoint, and writes it as JSON, as YAML or for people.
// As JSON or YAML it writes the part of the page that pick returns, or the whole page if pick is
// nil.
func show[T any](cmd *cobra.Command, endpoint func() (status.Endpoint, error), page string, output *oneOf,
	pick func(T) any, forPeople func(writer, T),
) error {
	at, err := endpoint()
	if err != nil {
		return err
	}
	body, err := at.Ask(cmd.Context(), page)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if output.value == "json" && pick == nil {
		_, err = out.Write(body)
		return err
	}
	var answer T
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s does not answer like an appliance of this version: %w", at.At, err)
	}
	if output.value == "json" || output.value == "yaml" {
		if pick != nil {
			if body, err = json.MarshalIndent(pick(answer), "", "  "); err != nil {
				return err
			}
			body = append(body, '\n')
		}
		if output.value == "yaml" {
			if body, err = yaml.JSONToYAML(body); err != nil {
				return err
			}
		}
		_, err = out.Write(body)
		return err
	}
	t := newWriter()
	forPeople(t, answer)
	return t.writeTo(out)
}

// endpointFlags adds the flags that name the status endpoint. It returns a function that returns
// the endpoint of the flags, or else the endpoint in the configuration file.
func endpointFlags(cmd *cobra.Command) func() (status.Endpoint, error) {
	var address, path, password, authority string
	cmd.Flags().StringVarP(&address, "address", "a", "",
		"HOST:PORT or https://HOST:PORT of the status endpoint (default: that of the appliance of the "+
			"configuration file)")
	cmd.Flags().StringVar(&password, "password-file", "",
		"file that holds status.password of the appliance at --address")
	cmd.Flags().StringVar(&authority, "ca", "",
		"PEM file with the authority of the certificate of --address (default: the authorities that this "+
			"machine trusts)")
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	return func() (e status.Endpoint, err error) {
		if e.At = address; address == "" {
			cfg, err := runningConfig(cmd, path, "--address names the status endpoint")
			if err != nil {
				return e, err
			}
			return status.Endpoint{At: cfg.Endpoint()}, nil
		}
		if password != "" {
			text, err := os.ReadFile(password)
			if err != nil {
				return e, fmt.Errorf("--password-file: %w", err)
			}
			if !strings.HasPrefix(address, "https://") {
				return e, &failure{
					exitUsage,
					fmt.Errorf("--password-file: the password would cross the network in the clear; give "+
						"--address https://%s", address),
				}
			}
			e.Password = config.NewSecret(strings.TrimRight(string(text), "\r\n"))
		}
		if authority != "" {
			text, err := os.ReadFile(authority)
			if err != nil {
				return e, fmt.Errorf("--ca: %w", err)
			}
			if e.Trusted = x509.NewCertPool(); !e.Trusted.AppendCertsFromPEM(text) {
				return e, fmt.Errorf("--ca: %s holds no certificate in PEM", authority)
			}
		}
		return e, nil
	}
}

// runningConfig returns the configuration of the appliance that runs here. It may still run
// with the file as it was: if the usual file cannot be used, the defaults count, after a
// warning that says what helps.
func runningConfig(cmd *cobra.Command, path, remedy string) (*config.Config, error) {
	cfg, err := config.Load(path)
	switch {
	case err == nil:
		return cfg, nil
	case cmd.Flags().Changed("config"):
		return nil, badConfig(err)
	case !errors.Is(err, fs.ErrNotExist):
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s cannot be used; %s: %v\n", path, remedy, err)
	}
	return config.Default(), nil
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "0s"
	}
	return now.Sub(then).Round(time.Second).String()
}
