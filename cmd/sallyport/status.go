package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/config"
)

// statusTimeout bounds the request, statusSize its answer.
const (
	statusTimeout = 10 * time.Second
	statusSize    = 256 << 20
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of a running appliance",
		Long: `Show the state of a running appliance: its BGP peers, their routes, the offers it
refused, and the servers. For each that is not in use it shows the reason.`,
		Example: `  sallyport status
  sallyport status --address 192.168.50.21:9090 -o json`,
		Args: cobra.NoArgs,
	}
	endpoint := endpointFlags(cmd)
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		return show(cmd, endpoint, "/status", output, writeStatus)
	})
	return cmd
}

// show requests a JSON page of the status endpoint, and writes it: as it is, or for
// people.
func show[T any](cmd *cobra.Command, endpoint func() (string, error), page string, output *oneOf, forPeople func(writer, T)) error {
	address, err := endpoint()
	if err != nil {
		return err
	}
	body, err := ask(cmd.Context(), address, page)
	if err != nil {
		return err
	}
	if output.value == "json" {
		_, err = cmd.OutOrStdout().Write(body)
		return err
	}
	var answer T
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s does not answer like an appliance of this version: %w", address, err)
	}
	t := writer{tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)}
	forPeople(t, answer)
	return t.Flush()
}

// endpointFlags adds the flags that name the status endpoint. It returns a function
// that returns the address: the flag's, or that of the configuration file.
func endpointFlags(cmd *cobra.Command) func() (string, error) {
	var address, path string
	cmd.Flags().StringVarP(&address, "address", "a", "", "address of the status endpoint (default: status.listen of the configuration file)")
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	return func() (string, error) {
		if address != "" {
			return address, nil
		}
		cfg, err := config.Load(path)
		switch {
		case err == nil:
		case cmd.Flags().Changed("config"):
			return "", badConfig(err)
		default: // an appliance may still run with the file as it was
			if !errors.Is(err, fs.ErrNotExist) {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s cannot be used; --address names the status endpoint: %v\n", path, err)
			}
			cfg = config.Default()
		}
		listen := cfg.Status.Listen
		if listen.Addr().IsUnspecified() {
			loopback := netip.IPv6Loopback()
			if listen.Addr().Is4() {
				loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			}
			listen = netip.AddrPortFrom(loopback, listen.Port())
		}
		return listen.String(), nil
	}
}

// ask requests a JSON page of the status endpoint.
func ask(ctx context.Context, address, page string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+page, nil)
	if err != nil {
		return nil, fmt.Errorf("--address %q: %w", address, err)
	}
	// The transport ignores HTTP_PROXY: an appliance is reached directly.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no appliance answers at %s (is it running, and is that its status.listen?): %w", address, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusSize))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", address, err)
	}
	if resp.StatusCode != http.StatusOK {
		said, _, _ := strings.Cut(string(body), "\n")
		return nil, fmt.Errorf("%s answers %s: %s", address, resp.Status, strings.Map(printable, said))
	}
	return body, nil
}

// A writer writes tables for people. It replaces control characters: texts from a cluster
// may hold some, and must not move the cursor.
type writer struct{ *tabwriter.Writer }

func (w writer) line(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = strings.Map(printable, fmt.Sprint(c))
	}
	_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(texts, "\t"), "\t"))
}

// title begins a table. A line without a tab ends a block of columns, so each table has
// its own column widths.
func (w writer) title(text string) { _, _ = fmt.Fprintf(w, "\n%s\n", text) }

// servers writes a line for each server of a backend.
func (w writer) servers(b appliance.BackendStatus) {
	for _, x := range b.Servers {
		w.line("    "+x.Addr.String(), x.State, x.Pod, x.Node, x.Check, x.Why)
	}
}

// writeStatus writes the status for people.
func writeStatus(t writer, s appliance.Status) {
	line, title := t.line, t.title
	state := "ready"
	if !s.Ready {
		state = "not ready"
	}
	line(fmt.Sprintf("%s is %s: sallyport %s, up %s; HAProxy %s, %s", s.Identity, state, s.Version, ago(s.Now, s.Started), s.HAProxy.Version, appliance.Counted(s.HAProxy.Reloads, "reload")))
	for _, why := range s.NotReady {
		line("  not ready: " + why)
	}
	for _, warning := range s.Warnings {
		line("  warning: " + warning)
	}
	if s.HAProxy.LastReason != "" {
		line("  last reload, " + ago(s.Now, s.HAProxy.LastReload) + " ago: " + s.HAProxy.LastReason)
	}
	if s.Round.Error != "" {
		line("  last round: " + s.Round.Error)
	}

	title("Clusters")
	for _, c := range s.Clusters {
		api := "in sync"
		switch {
		case !c.Live && c.Picture != nil:
			api = "served from the picture of " + c.Picture.Format(time.DateTime)
		case !c.Live:
			api = "not known yet"
		}
		line("  "+c.Name, api, fmt.Sprintf("%d nodes, %d blocks", c.Nodes, c.Blocks), c.Error)
	}
	title("BGP peers")
	for _, p := range s.Peers {
		loss := p.LossReason
		if loss != "" {
			loss = "last lost " + ago(s.Now, p.LastLoss.At) + " ago: " + loss
		}
		line("  "+p.Node, p.Addr, fmt.Sprintf("AS %d", p.ASN), p.State+" for "+ago(s.Now, p.Since), fmt.Sprintf("%d prefixes", p.Received), loss)
	}
	title("Routes")
	for _, r := range s.Routes {
		installed := "in the kernel"
		if !r.Installed {
			installed = "NOT in the kernel"
		}
		line(fmt.Sprintf("  %s", r.Prefix), "via "+r.Via.String(), r.Node, installed, fmt.Sprintf("%d open servers", r.Servers))
	}
	if s.Refused.Total > 0 {
		title(fmt.Sprintf("Refused offers: %d", s.Refused.Total))
		for _, r := range s.Refused.Shown {
			line(fmt.Sprintf("  %s", r.Prefix), "from "+r.Peer.String(), r.Reason, r.Why)
		}
	}
	if len(s.Capacity) > 0 {
		title("Capacity")
		for _, c := range s.Capacity {
			line("  "+c.Resource, c.Amount())
		}
	}
	title("Rules")
	for _, r := range s.Rules {
		line("  "+cmp.Or(r.Host, "any host"), r.Path, r.Match, cmp.Or(r.Backend, "answered with 404"))
	}
	title("Servers")
	for _, b := range s.Backends {
		line(fmt.Sprintf("  %s: %d of %d open", b.Name, b.Open, len(b.Servers)))
		t.servers(b)
	}
	if len(s.Problems) > 0 {
		title("Problems")
		for _, p := range s.Problems {
			line("  "+p.Object, p.Cluster, p.Reason, p.Why)
		}
	}
}

// printable replaces characters that a terminal would act on.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "0s"
	}
	return now.Sub(then).Round(time.Second).String()
}
