package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/test/lab/world"
)

// A lab lives in one process, its agent. `lab up` starts the agent in the background and repeats
// its output until the lab can be used. The other commands speak to the agent over a Unix socket
// in the lab's directory. On SIGTERM the agent ends the lab, then itself.

type (
	nodeRequest struct {
		Node string        `json:"node"`
		Down time.Duration `json:"down,omitempty"`
	}
	partitionRequest struct {
		A       string        `json:"a"`
		B       string        `json:"b"`
		Traffic world.Traffic `json:"traffic,omitempty"`
	}
	kubeconfigRequest struct {
		Account string        `json:"account"`
		Life    time.Duration `json:"life"`
	}
	answer struct {
		Error string          `json:"error,omitempty"`
		Value json.RawMessage `json:"value,omitempty"`
	}
)

// done is the agent's last line to `lab up` after a success.
const done = "\x00up"

func socket(name string) string  { return filepath.Join(world.Root, name, "agent.sock") }
func logFile(name string) string { return filepath.Join(world.Root, name+".log") }

func absolute(path string) (string, error) { return filepath.Abs(path) }

// up starts the agent, unless it runs already.
func up(ctx context.Context, opts world.Options, out io.Writer) error {
	var s world.Status
	if err := ask(ctx, opts.Name, "GET", "/status", nil, &s); err == nil {
		if diff := different(s.Options, opts); diff != "" {
			return fmt.Errorf("lab %s is up with another %s: run `lab down` first", opts.Name, diff)
		}
		fmt.Fprintf(out, "lab %s is up already\n", opts.Name)
		return ask(ctx, opts.Name, "POST", "/images", opts.Images, nil)
	}
	text, err := json.Marshal(opts)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(world.Root, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(logFile(opts.Name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the agent has its own
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()                                             //nolint:errcheck // only read from
	agent := exec.Command("/proc/self/exe", "agent", string(text)) // go run has removed the file itself when it ends
	agent.Args[0] = "sallyport-lab"
	agent.Stdout, agent.Stderr = log, log
	agent.ExtraFiles = []*os.File{write} // becomes file 3
	agent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = errors.Join(agent.Start(), write.Close())
	if err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = agent.Process.Signal(syscall.SIGTERM) })
	defer stop()
	last := ""
	for lines := bufio.NewScanner(read); last != done && lines.Scan(); {
		if last = lines.Text(); last != done {
			fmt.Fprintln(out, last)
		}
	}
	if last == done {
		return errors.Join(ctx.Err(), agent.Process.Release())
	}
	if err := agent.Wait(); err != nil {
		return errors.New(lastWords(opts.Name, err))
	}
	return context.Cause(ctx)
}

// lastWords returns the error with which the agent ended: the end of its log, from main's own line
// on.
func lastWords(name string, err error) string {
	text, unread := os.ReadFile(logFile(name))
	if unread != nil {
		return err.Error()
	}
	said := "\n" + strings.TrimSpace(string(text))
	if at := strings.LastIndex(said, "\nlab: "); at >= 0 {
		return strings.TrimPrefix(said[at:], "\nlab: ")
	}
	return fmt.Sprintf("the agent ended: %v (see %s)", err, logFile(name))
}

// different returns the first option in which two labs differ. Images may differ.
func different(have, want world.Options) string {
	for _, option := range []struct {
		name       string
		have, want any
	}{
		{"number of workers", have.Workers, want.Workers},
		{"site", have.Site, want.Site},
		{"network of pods", have.SamePods, want.SamePods},
		{"number of appliances", have.Appliances, max(want.Appliances, 1)},
		{"router", have.Router, want.Router},
		{"choice of families", [2]bool{have.IPv6, have.IPv6Only}, [2]bool{want.IPv6 || want.IPv6Only, want.IPv6Only}},
		{"access from the host", have.HostAccess, want.HostAccess},
		{"mesh", have.Mesh, want.Mesh},
		{"AS number", have.AS, want.AS},
		{"beginning of Calico", have.NoCalico, want.NoCalico},
		{"IPAM", have.HostLocal, want.HostLocal},
		{"BIRD", have.Bird, want.Bird},
		{"kind of Calico", have.Calico, want.Calico},
		{"control plane", have.Bare, want.Bare},
	} {
		if option.have != option.want {
			return option.name
		}
	}
	return ""
}

// down ends the agent, then removes the remains of the lab.
func down(ctx context.Context, name string, out io.Writer) error {
	var pid int
	if err := ask(ctx, name, "GET", "/pid", nil, &pid); err == nil {
		agent, err := os.FindProcess(pid) // a handle that stays with this very process
		if err != nil {
			return err
		}
		if err := agent.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := world.Sweep(ctx, name)
		if err == nil {
			if err := os.Remove(logFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			fmt.Fprintf(out, "lab %s is down\n", name)
			return nil
		}
		if !errors.Is(err, world.ErrInUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its agent does not end (see %s): %w", logFile(name), ctx.Err())
		case <-tick.C:
		}
	}
}

func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "agent OPTIONS",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts world.Options
			if err := json.Unmarshal([]byte(args[0]), &opts); err != nil {
				return err
			}
			return runAgent(cmd.Context(), opts)
		},
	}
}

func runAgent(ctx context.Context, opts world.Options) error {
	syscall.CloseOnExec(3) // what the lab starts has no part in it
	progress := os.NewFile(3, "progress")
	opts.Progress = progress
	opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	l, err := world.Up(ctx, opts)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes(l), ReadHeaderTimeout: time.Minute}
	listener, err := net.Listen("unix", socket(opts.Name))
	if err != nil {
		return errors.Join(err, l.Down())
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	_, _ = fmt.Fprintln(progress, done)
	_ = progress.Close()
	err = server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, l.Down())
}

// routes returns the agent's HTTP handlers.
func routes(l *world.Lab) http.Handler {
	mux := http.NewServeMux()
	handle(mux, "GET /pid", func(context.Context, struct{}) (any, error) { return os.Getpid(), nil })
	handle(mux, "GET /status", func(ctx context.Context, _ struct{}) (any, error) { return l.Status(ctx) })
	handle(mux, "POST /images", func(_ context.Context, images map[string]string) (any, error) {
		return nil, l.SetImages(images)
	})
	handle(mux, "POST /kubeconfig", func(ctx context.Context, r kubeconfigRequest) (any, error) {
		namespace, name, ok := strings.Cut(r.Account, "/")
		if !ok {
			return nil, fmt.Errorf("ServiceAccount %q: want NAMESPACE/NAME", r.Account)
		}
		return l.ServiceAccountKubeconfig(ctx, namespace, name, r.Life)
	})
	handle(mux, "POST /install-calico", func(ctx context.Context, _ struct{}) (any, error) {
		return nil, l.InstallCalico(ctx)
	})
	handle(mux, "POST /partition", func(ctx context.Context, r partitionRequest) (any, error) {
		return nil, l.Partition(ctx, r.A, r.B, r.Traffic)
	})
	handle(mux, "POST /heal", func(ctx context.Context, r partitionRequest) (any, error) {
		return nil, l.Heal(ctx, r.A, r.B)
	})
	handle(mux, "POST /etcd/backup", func(ctx context.Context, dir string) (any, error) {
		return nil, l.Backup(ctx, dir)
	})
	handle(mux, "POST /etcd/restore", func(ctx context.Context, dir string) (any, error) {
		return nil, l.Restore(ctx, dir)
	})
	handle(mux, "POST /etcd/restart", func(ctx context.Context, _ struct{}) (any, error) {
		return nil, l.RestartControlPlane(ctx)
	})
	for verb, do := range map[string]func(context.Context, nodeRequest) error{
		"add": func(ctx context.Context, r nodeRequest) error {
			_, err := l.AddNode(ctx, r.Node)
			return err
		},
		"remove": func(ctx context.Context, r nodeRequest) error { return l.RemoveNode(ctx, r.Node) },
		"lose":   func(ctx context.Context, r nodeRequest) error { return l.LoseNode(ctx, r.Node) },
		"kill":   func(ctx context.Context, r nodeRequest) error { return l.KillNode(ctx, r.Node) },
		"revive": func(ctx context.Context, r nodeRequest) error { return l.ReviveNode(ctx, r.Node) },
		"restart-calico": func(ctx context.Context, r nodeRequest) error {
			return l.RestartCalico(ctx, r.Node, r.Down)
		},
	} {
		handle(mux, "POST /node/"+verb, func(ctx context.Context, r nodeRequest) (any, error) {
			return nil, do(ctx, r)
		})
	}
	return mux
}

func handle[Request any](mux *http.ServeMux, pattern string, do func(context.Context, Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var request Request
		var a answer
		err := json.NewDecoder(r.Body).Decode(&request)
		if err == nil || errors.Is(err, io.EOF) {
			var value any
			if value, err = do(r.Context(), request); err == nil {
				a.Value, err = json.Marshal(value)
			}
		}
		if err != nil {
			a = answer{Error: err.Error()}
		}
		_ = json.NewEncoder(w).Encode(a)
	})
}

// ask sends a request to the agent of a lab.
func ask(ctx context.Context, name, method, path string, request, value any) error {
	body := &bytes.Buffer{}
	if request != nil {
		if err := json.NewEncoder(body).Encode(request); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket(name))
	}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("lab %s is not up: run `lab up --name %s`", name, name)
	}
	defer response.Body.Close() //nolint:errcheck // only read from
	var a answer
	if err := json.NewDecoder(response.Body).Decode(&a); err != nil {
		return fmt.Errorf("agent of lab %s: %w", name, err)
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(a.Value, value)
}
