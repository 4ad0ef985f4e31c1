package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/appliance/status"
)

// refresh is the time between two looks at the appliance, which takes a sample every 10 s.
const refresh = 2 * time.Second

// sortKeys has the key to press for each of status.SortKeys.
var sortKeys = map[byte]string{
	'r': "requests", 'e': "errors", 'c': "connections", 't': "response", 'o': "open",
	'n': "name",
}

func topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the backends with the most requests, errors or connections",
		Long: `Show the load of the backends, those with the most first: requests and errors in a
second, connections, response time, and open servers. The running appliance takes a
sample every 10 seconds. With --by cluster the lines are clusters: a backend whose
servers are in several clusters counts for each by its servers there.

On a terminal the view follows the samples until q is pressed, and other keys change
the order: r requests, e errors, c connections, t response time, o open servers (the
fewest first), n name. Where the output is no terminal, one sample is written.`,
		Example: `  sallyport top
  sallyport top --sort errors
  sallyport top --by cluster
  sallyport top --once --lines 10
  sallyport top -o json`,
		Args: cobra.NoArgs,
	}
	endpoint := endpointFlags(cmd)
	order := oneOfFlag(cmd, "sort", "s", "what comes first", status.SortKeys[:]...)
	by := oneOfFlag(cmd, "by", "", "what a line is; json and yaml have both", "backend", "cluster")
	output := oneOfFlag(cmd, "output", "o", "form of the output; json and yaml write one sample", "text", "json",
		"yaml")
	lines := cmd.Flags().IntP("lines", "n", 0,
		"how many backends (default: as many as the terminal has room for; elsewhere all)")
	once := cmd.Flags().Bool("once", false, "write one sample, and end")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		if *lines < 0 {
			return &failure{exitUsage, fmt.Errorf("--lines %d: want the number of backends to show", *lines)}
		}
		out := cmd.OutOrStdout()
		if *once || output.value != "text" || !isTerminal(out) || os.Getenv("TERM") == "dumb" {
			return show(cmd, endpoint, topPage(order.value, *lines), output, nil,
				func(t writer, s status.TopStatus) { writeTop(t, s, by.value) })
		}
		at, err := endpoint()
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		v := topView{
			out: out.(*os.File), order: order.value, by: by.value, lines: *lines,
			ask: func(page string) ([]byte, error) { return at.Ask(ctx, page) },
		}
		return v.run(ctx, cmd.InOrStdin())
	})
	return cmd
}

// topPage returns the page of the status endpoint with the first few backends. If few is 0, the
// page has all backends.
func topPage(order string, few int) string {
	query := url.Values{"sort": {order}}
	if few > 0 {
		query.Set("n", strconv.Itoa(few))
	}
	return "/top?" + query.Encode()
}

// writeTop writes a sample for people, with a line for each backend or cluster.
func writeTop(t writer, s status.TopStatus, by string) {
	if s.At.IsZero() {
		t.alarm()
		t.line(s.Identity + ": no sample: the appliance takes the first one 10 seconds after its start, and none " +
			"while HAProxy does not answer")
		return
	}
	rate := func(perSecond float64) string { return strconv.FormatFloat(perSecond, 'f', 1, 64) }
	response := func(b status.BackendRate) string {
		if b.Response == nil {
			return "-"
		}
		return strconv.FormatFloat(*b.Response, 'f', 0, 64)
	}
	w := s.Whole
	t.line(fmt.Sprintf("%s, %s ago: %s requests/s, %s errors/s, %s, %s, %s", s.Identity, ago(s.Now, s.At),
		rate(w.Requests), rate(w.Errors),
		status.Counted(w.Connections, "connection"), status.Counted(w.Open, "open server"),
		status.Counted(s.Total, "backend")))
	lines := s.Backends
	if by == "cluster" {
		lines = s.Clusters
	}
	header := []string{strings.ToUpper(by), "REQUESTS/S", "ERRORS/S", "CONNECTIONS", "RESPONSE-MS", "OPEN-SERVERS"}
	row := func(cells ...any) {
		for i := range cells {
			if i > 0 {
				cells[i] = fmt.Sprintf("%*v", len(header[i]), cells[i]) // numbers end below each other
			}
		}
		t.line(cells...)
	}
	row(header[0], header[1], header[2], header[3], header[4], header[5])
	for _, b := range lines {
		if b.Errors > 0 || b.Open == 0 {
			t.alarm()
		}
		row(b.Name, rate(b.Requests), rate(b.Errors), b.Connections, response(b), b.Open)
	}
}

// A topView is the live view on a terminal.
type topView struct {
	out   *os.File
	order string
	by    string // backend or cluster
	lines int    // backends; 0 means as many as there is room for
	ask   func(page string) ([]byte, error)
	last  status.TopStatus
}

// run shows samples until ctx ends, or somebody presses q.
func (v *topView) run(ctx context.Context, in io.Reader) error {
	if err := v.look(); err != nil {
		return err
	}
	keys := make(chan byte)
	if f, is := in.(*os.File); is && isTerminal(f) {
		restore, err := unbuffered(f)
		if err != nil {
			return err
		}
		defer restore()
		go func() {
			defer close(keys)
			for key := make([]byte, 1); ; {
				if n, err := f.Read(key); n == 0 || err != nil {
					return
				}
				select {
				case keys <- key[0]:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	// the other screen, without a cursor (xterm, Control Sequences)
	const begin, end = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	if _, err := io.WriteString(v.out, begin); err != nil {
		return err
	}
	defer io.WriteString(v.out, end) //nolint:errcheck // the terminal is gone then
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	var failed error
	for {
		if _, err := io.WriteString(v.out, v.screen(failed)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case key, open := <-keys:
			if !open {
				keys = nil // the view goes on without keys
				continue
			}
			if key == 'q' {
				return nil
			}
			v.order = cmp.Or(sortKeys[key], v.order)
		case <-resized:
		case <-tick.C:
		}
		if failed = v.look(); ctx.Err() != nil {
			return nil
		}
	}
}

// look asks the appliance for a sample.
func (v *topView) look() error {
	_, height := v.size()
	few := v.lines
	if few == 0 {
		few = max(height-frame, 1)
	}
	body, err := v.ask(topPage(v.order, few))
	if err != nil {
		return err
	}
	var next status.TopStatus
	if err := json.Unmarshal(body, &next); err != nil {
		return fmt.Errorf("the answer is not that of an appliance of this version: %w", err)
	}
	v.last = next
	return nil
}

// frame is how many lines of the screen have no backend.
const frame = 4

// screen returns the text that draws the last sample over the sample before. Lines end at the edge
// of the screen, and it stays still between samples.
func (v *topView) screen(failed error) string {
	width, height := v.size()
	t := newWriter()
	writeTop(t, v.last, v.by)
	_ = t.Flush() // into memory
	lines := strings.Split(strings.TrimSuffix(t.text.String(), "\n"), "\n")
	foot := "order: " + v.order + "; press r, e, c, t, o, n for another, q to leave"
	if failed != nil {
		foot = strings.Map(status.Printable, failed.Error())
	}
	var b strings.Builder
	b.WriteString("\x1b[H")
	write := func(line string, alarm bool) {
		if r := []rune(line); len(r) > width {
			line = string(r[:width])
		}
		if alarm && os.Getenv("NO_COLOR") == "" {
			line = "\x1b[31m" + line + "\x1b[0m"
		}
		b.WriteString(line + "\x1b[K\n")
	}
	for i, line := range lines[:min(len(lines), max(height-2, 1))] {
		write(line, t.alarms[i+1])
	}
	write("", false)
	write(foot, failed != nil)
	return strings.TrimSuffix(b.String(), "\n") + "\x1b[J"
}

// size returns the columns and lines of the terminal.
func (v *topView) size() (width, height int) {
	size, err := unix.IoctlGetWinsize(int(v.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

// unbuffered makes a terminal hand over each key as it is pressed, without showing the key.
// Control-C still interrupts.
func unbuffered(terminal *os.File) (restore func(), err error) {
	fd := int(terminal.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("the keyboard: %w", err)
	}
	now := *was
	now.Lflag &^= unix.ICANON | unix.ECHO
	now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &now); err != nil {
		return nil, fmt.Errorf("the keyboard: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, nil
}
