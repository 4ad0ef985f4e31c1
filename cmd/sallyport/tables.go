package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"sallyport/appliance/status"
)

// writeTable writes a table, each line after an indent.
func (t writer) writeTable(of status.Listing, s *status.Status, wide bool, indent string) {
	rows := of.Cells(s)
	if len(rows) == 0 {
		t.line(indent + "none")
		return
	}
	t.writeRows(of.About(), rows, wide, indent)
	if rest := of.Rest(s); rest > 0 {
		t.line(fmt.Sprintf("%sand %d more", indent, rest))
	}
}

// writeRows writes the header of a table and some rows, each line after an indent.
func (t writer) writeRows(of *status.Head, rows [][]status.Cell, wide bool, indent string) {
	columns := of.Columns
	shown := func(i int) bool { return wide || !columns[i].Wide }
	var header []any
	for i, c := range columns {
		if shown(i) {
			header = append(header, c.Label())
		}
	}
	header[0] = indent + columns[0].Label()
	t.line(header...)
	for _, row := range rows {
		var cells []any
		for i, c := range row {
			if !shown(i) {
				continue
			}
			if cells = append(cells, inWords(c)); c.Fault() {
				t.alarm()
			}
		}
		for len(cells) > 0 && cells[len(cells)-1] == "" {
			cells = cells[:len(cells)-1]
		}
		for i, c := range cells {
			if c == "" {
				cells[i] = "-" // a program that splits at blanks finds each column
			}
		}
		cells[0] = fmt.Sprint(indent, cells[0])
		t.line(cells...)
	}
}

// inWords returns a cell as the terminal shows it.
func inWords(c status.Cell) string {
	switch {
	case !c.At.IsZero():
		return c.At.Local().Format("15:04:05.000")
	case c.For > 0:
		return c.For.Round(time.Second).String()
	case c.Age > 0 && c.Text == "":
		return c.Age.Round(time.Millisecond).String() + " ago"
	case c.Age > 0:
		return c.Age.Round(time.Second).String() + " ago: " + c.Text
	}
	return c.Text
}

// A writer writes tables for people. It replaces control characters: texts from a cluster
// may hold some, and must not move the cursor.
type writer struct {
	*tabwriter.Writer
	text   *bytes.Buffer
	lines  *int
	alarms map[int]bool // lines that tell of something wrong
}

func newWriter() writer {
	text := &bytes.Buffer{}
	return writer{
		Writer: tabwriter.NewWriter(text, 0, 0, 2, ' ', 0), text: text, lines: new(int), alarms: make(map[int]bool),
	}
}

// writeJSON writes a value as JSON with two blanks for each level.
func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeTo writes all lines. On a terminal, lines with something wrong are red, unless
// NO_COLOR is set (no-color.org).
func (w writer) writeTo(out io.Writer) error {
	if err := w.Flush(); err != nil {
		return err
	}
	if !isTerminal(out) || os.Getenv("NO_COLOR") != "" {
		_, err := w.text.WriteTo(out)
		return err
	}
	n := 0
	for line := range strings.Lines(w.text.String()) {
		if n++; w.alarms[n] {
			line = "\x1b[31m" + strings.TrimSuffix(line, "\n") + "\x1b[0m\n"
		}
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	return nil
}

// isTerminal reports whether a person looks at the output.
func isTerminal(out io.Writer) bool {
	f, is := out.(*os.File)
	if !is {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (w writer) line(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = strings.Map(status.Printable, fmt.Sprint(c))
	}
	*w.lines++
	_, _ = fmt.Fprintln(w, strings.TrimRight(strings.Join(texts, "\t"), "\t"))
}

// alarm marks the next line as a line about a problem.
func (w writer) alarm() { w.alarms[*w.lines+1] = true }

// title begins a table. A line without a tab ends a block of columns, so each table has
// its own column widths.
func (w writer) title(text string) {
	*w.lines += 2
	_, _ = fmt.Fprintf(w, "\n%s\n", text)
}

// servers writes a line for each server of a backend.
func (w writer) servers(b status.BackendStatus) {
	for _, x := range b.Servers {
		if !x.Serves() {
			w.alarm()
		}
		w.line("    "+x.Addr.String(), x.Place(), x.Pod, x.Node, x.Check, x.Why)
	}
}

// writeStatus writes the status for people.
func writeStatus(t writer, s status.Status, wide bool) {
	state := "ready"
	if !s.Ready {
		state = "not ready"
		t.alarm()
	}
	t.line(fmt.Sprintf("%s is %s: sallyport %s, up %s; HAProxy %s, %s", s.Identity, state, s.Version,
		ago(s.Now, s.Started), s.HAProxy.Version, status.Counted(s.HAProxy.Reloads, "reload")))
	for _, why := range s.NotReady {
		t.alarm()
		t.line("  not ready: " + why)
	}
	for _, warning := range s.Warnings {
		t.alarm()
		t.line("  warning: " + warning)
	}
	for _, idle := range s.Idle() {
		t.alarm()
		t.line(fmt.Sprintf("  %s without traffic, %s the first: %s", status.Counted(len(idle.Servers), "server"),
			idle.Servers[0], idle.Why))
	}
	if s.HAProxy.LastReason != "" {
		t.line("  last reload, " + ago(s.Now, s.HAProxy.LastReload) + " ago: " + s.HAProxy.LastReason)
	}
	for _, w := range s.HAProxy.Waits {
		t.alarm()
		t.line("  " + w.Words(s.Now))
	}
	if s.Round.Error != "" {
		t.alarm()
		t.line("  last round: " + s.Round.Error)
	}
	for _, table := range status.Tables {
		if head := table.About(); !head.Brief || len(table.Cells(&s)) > 0 {
			t.title(head.Title)
			t.writeTable(table, &s, wide, "  ")
		}
	}
}
