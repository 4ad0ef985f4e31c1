package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/status"
)

const (
	// drainPoll is the time between two questions of drain --wait.
	drainPoll = 200 * time.Millisecond
	// controlTimeout bounds a request to the control socket.
	controlTimeout = 10 * time.Second
)

func drainCommand() *cobra.Command {
	var path, cluster string
	var wait, force, stopping, partial, dry bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Let the other members of the group take over from this appliance, or other clusters from one",
		Long: `Let the other members of the group take over from this appliance. It withdraws the
service addresses, and HAProxy closes each connection that is kept after its next
answer. What goes on longer, such as a WebSocket or a download, goes on. Everything else
of the appliance runs as before, until "sallyport undrain".

A restart of sallyport does not end the drain, a reboot of the machine does. The command
is refused while no other member is full, because nobody would serve then. If the last of
the others fails later, the appliance announces the addresses again, as the last resort.

With --cluster, the other clusters of a set take over from one cluster
(clusters[].set). Its pods get no new requests for a Service that another cluster serves.
What is under way goes on, and clients with a session cookie return to their pod. The
drain outlives restarts and reboots, until "sallyport undrain --cluster NAME". It is
refused if no other cluster has a ready server for a Service; with --partial the
cluster goes on serving such Services, and --dry-run tells beforehand which these are. All
members of a group follow; --wait waits for the connections of this one.`,
		Example: `  sallyport drain --wait
  sallyport drain --force
  sallyport drain --cluster blue --dry-run
  sallyport drain --cluster blue --wait`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	cmd.Flags().BoolVar(&wait, "wait", false,
		"wait until no connections to the service addresses are left, at most for group.drain.timeout")
	cmd.Flags().BoolVar(&force, "force", false, "drain even if no other member is full")
	cmd.Flags().BoolVar(&stopping, "stopping", false,
		"drain even if no other member is full, and only until the process ends; do nothing if no appliance runs "+
			"here, or in no group (for the unit file)")
	cmd.Flags().StringVar(&cluster, "cluster", "", "drain this cluster of a set, and not the appliance")
	cmd.Flags().BoolVar(&partial, "partial", false,
		"with --cluster: drain it even if it alone serves a Service, which it goes on serving")
	cmd.Flags().BoolVar(&dry, "dry-run", false,
		"with --cluster: tell whether the drain would be refused, and drain nothing")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "with --cluster: how long --wait waits at most")
	cmd.MarkFlagsMutuallyExclusive("cluster", "stopping")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		if cluster == "" && (partial || dry || cmd.Flags().Changed("timeout")) {
			return errors.New("--partial, --dry-run and --timeout need --cluster")
		}
		if cluster != "" && force {
			return fmt.Errorf("--force is for the appliance: a cluster goes on serving what no other cluster serves; "+
				"--partial drains the rest; remove cluster %s from the configuration file to end that, too", cluster)
		}
		socket, err := controlSocket(cmd, path)
		if err != nil {
			return err
		}
		var words []string
		if partial {
			words = append(words, "partial")
		}
		switch {
		case dry:
			return socket.foresee(cmd, cluster, words)
		case cluster != "":
			return socket.drainCluster(cmd, cluster, words, wait, timeout)
		}
		status, err := socket.send(cmd.Context(), http.MethodPost,
			fmt.Sprintf("/drain?force=%t&stopping=%t", force, stopping))
		if stopping && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)) {
			return nil
		}
		if err != nil || !wait {
			return err
		}
		return socket.wait(cmd, status)
	})
	return cmd
}

func undrainCommand() *cobra.Command {
	var path, cluster string
	cmd := &cobra.Command{
		Use:   "undrain",
		Short: "End a drain: serve again, or let a cluster serve again",
		Long: `End a drain: the appliance announces the service addresses again, at first as the last
resort, and plainly once it has served well for some seconds.

With --cluster, it ends the drain of a cluster, whose pods get requests again at once.
All members of a group follow.`,
		Example: "  sallyport undrain\n  sallyport undrain --cluster blue",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().StringVarP(&path, "config", "c", defaultConfig, "the configuration file")
	cmd.Flags().StringVar(&cluster, "cluster", "", "end the drain of this cluster, and not of the appliance")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		socket, err := controlSocket(cmd, path)
		if err != nil {
			return err
		}
		if cluster != "" {
			s, err := socket.cluster(cmd.Context(), http.MethodPost, "undrain", cluster)
			return errors.Join(err, followers(cmd, s))
		}
		_, err = socket.send(cmd.Context(), http.MethodPost, "/undrain")
		return err
	})
	return cmd
}

// A control is the path of the control socket of the appliance that runs here.
type control string

func controlSocket(cmd *cobra.Command, path string) (control, error) {
	cfg, err := runningConfig(cmd, path, "the default of haproxy.runDir is used")
	if err != nil {
		return "", err
	}
	return control(cfg.ControlSocket()), nil
}

// send sends one request, and returns the state afterwards.
func (c control) send(ctx context.Context, method, page string) (s appliance.DrainStatus, err error) {
	err = c.ask(ctx, method, page, &s)
	return s, err
}

// ask sends one request, and reads the answer into v.
func (c control) ask(ctx context.Context, method, page string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	client, url := status.Endpoint{At: string(c)}.Client()
	req, err := http.NewRequestWithContext(ctx, method, url+page, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no appliance of a group answers at %s: does it run, and does its configuration "+
			"have a group? %w", string(c), err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", string(c), err)
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.Map(status.Printable, strings.TrimSpace(string(body))))
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s does not answer like an appliance of this version: %w", string(c), err)
	}
	return nil
}

// wait waits until the appliance has left and holds no connection, or until its timeout.
func (c control) wait(cmd *cobra.Command, s appliance.DrainStatus) error {
	began := time.Now()
	for {
		lasted := time.Since(began)
		switch {
		case !s.Draining:
			return errors.New("the drain was ended meanwhile, by sallyport undrain")
		case s.Left && s.Connections == 0:
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "drained: no connections are left")
			return err
		case lasted >= s.Timeout && s.Left:
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "drained, but after %s (group.drain.timeout) %s\n", s.Timeout,
				left(s.Connections))
			return err
		case lasted >= s.Timeout:
			return fmt.Errorf("the appliance has not left after %s: it is %s: %s", s.Timeout, s.Class,
				strings.Map(status.Printable, s.Why+s.Error))
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(drainPoll):
		}
		next, err := c.send(cmd.Context(), http.MethodGet, "/drain")
		if err != nil {
			return err
		}
		if next.Left && !s.Left && next.Connections > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "withdrawn: %s\n", left(next.Connections))
		}
		s = next
	}
}

// left tells in words how many connections are left.
func left(n int) string {
	verb := "are"
	if n == 1 {
		verb = "is"
	}
	return status.Counted(n, "connection") + " " + verb + " left"
}
