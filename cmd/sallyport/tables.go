package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"sallyport/appliance/group"
	"sallyport/appliance/status"
)

// A part is a table of the status.
type part struct {
	name, title string
	columns     []string // stable: programs may read them
	wide        int      // how many of the columns, from the end, only -o wide shows
	rows        func(s status.Status, row func(ok bool, cells ...any))
	json        func(status.Status) any
}

var parts = []part{
	{
		name: "clusters", title: "Clusters",
		columns: []string{"CLUSTER", "API", "NODES", "BLOCKS", "ERROR", "CALICO", "CREDENTIALS-UNTIL"},
		wide:    2,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, c := range s.Clusters {
				api := "in sync"
				switch {
				case !c.Live && c.Picture != nil:
					api = "served from the picture of " + c.Picture.Format(time.DateTime)
				case !c.Live:
					api = "not known yet"
				}
				until := ""
				if !c.CredentialsExpire.IsZero() {
					until = c.CredentialsExpire.UTC().Format(time.DateTime)
				}
				row(c.Live && c.Error == "", c.Name, api, c.Nodes, c.Blocks, c.Error, c.APIGroup, until)
			}
		},
		json: func(s status.Status) any { return s.Clusters },
	},
	{
		name: "members", title: "Members of the group",
		columns: []string{"MEMBER", "ADDRESS", "CLASS", "FOR", "HEARD", "VERSION", "PROBLEM"},
		wide:    0,
		rows: func(s status.Status, row func(bool, ...any)) {
			if s.Group == nil {
				return
			}
			for _, m := range s.Group.Members {
				class, lasts := string(m.Class), m.For.Round(time.Second).String()
				heard, problem := m.Age.Round(time.Millisecond).String()+" ago", m.Trouble()
				switch {
				case m.Self:
					heard = "this one"
				case !m.Alive:
					class, lasts = "silent", ""
				}
				if m.Draining {
					class += ", drains"
				}
				row(m.Alive && m.Class == group.Full && problem == "", m.Name, m.Address, class, lasts, heard,
					m.Version, problem)
			}
		},
		json: func(s status.Status) any { return s.Group },
	},
	{
		name: "addresses", title: "Service addresses",
		columns: []string{"ADDRESS", "HELD", "ANNOUNCED-TO", "SERVICES"},
		wide:    0,
		rows: func(s status.Status, row func(bool, ...any)) {
			if s.Group == nil {
				return
			}
			for _, a := range s.Group.Addresses {
				row(a.Held && !s.Unheard(a), a.Address, yes(a.Held), cmp.Or(strings.Join(a.By(), ","), "nobody"),
					strings.Join(a.Services, ","))
			}
		},
		json: func(s status.Status) any { return s.Group },
	},
	{
		name: "services", title: "Services of type LoadBalancer",
		columns: []string{"SERVICE", "ADDRESSES", "PORTS", "WHY", "CLUSTER"},
		wide:    1,
		rows: func(s status.Status, row func(bool, ...any)) {
			if s.Group == nil {
				return
			}
			for _, one := range s.Group.Services {
				var at, ports []string
				for _, a := range one.Addresses {
					at = append(at, a.String())
				}
				for _, p := range one.Ports {
					ports = append(ports, strconv.Itoa(int(p)))
				}
				row(len(at) > 0 && one.Why == "", one.Service, strings.Join(at, ","), strings.Join(ports, ","), one.Why,
					one.Cluster)
			}
		},
		json: func(s status.Status) any { return s.Group },
	},
	{
		name: "peers", title: "BGP peers",
		columns: []string{
			"NODE", "ADDRESS", "AS", "STATE", "FOR", "PREFIXES", "LAST-LOSS", "CLUSTER", "LOSSES", "END-OF-RIB",
			"HOLD-TIME",
		},
		wide: 4,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, p := range s.Peers {
				loss := p.LossReason
				if loss != "" {
					loss = ago(s.Now, p.LastLoss.At) + " ago: " + loss
				}
				name := p.Node
				if p.Upstream {
					name = "(router)"
				}
				hold := ""
				if p.HoldTime > 0 {
					hold = p.HoldTime.String()
				}
				state := p.State
				if p.BFD != "" {
					state += ",BFD-" + p.BFD
				}
				row(p.Up(), name, p.Addr, p.ASN, state, ago(s.Now, p.Since), p.Received, loss,
					p.Cluster, p.Flaps, yes(p.EndOfRIB), hold)
			}
		},
		json: func(s status.Status) any { return s.Peers },
	},
	{
		name: "routes", title: "Routes",
		columns: []string{"PREFIX", "VIA", "NODE", "KERNEL", "OPEN-SERVERS", "CLUSTER", "WHY"},
		wide:    2,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, r := range s.Routes {
				row(r.Installed, r.Prefix, r.Via, r.Node, status.Either(r.Installed, "yes", "NO"),
					r.Servers, r.Cluster, r.Why)
			}
		},
		json: func(s status.Status) any { return s.Routes },
	},
	{
		name: "refusals", title: "Refused offers",
		columns: []string{"PREFIX", "FROM", "REASON", "WHY", "CLUSTER"},
		wide:    1,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, r := range s.Refused.Shown {
				row(true, r.Prefix, r.Peer, r.Reason, r.Why, r.Cluster)
			}
			if more := s.Refused.Total - len(s.Refused.Shown); more > 0 {
				row(true, fmt.Sprintf("and %d more", more))
			}
		},
		json: func(s status.Status) any { return s.Refused },
	},
	{
		name: "capacity", title: "Capacity",
		columns: []string{"RESOURCE", "USED", "REMEDY"},
		wide:    1,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, c := range s.Capacity {
				row(!c.Near(), c.Resource, c.Amount(), c.Remedy)
			}
		},
		json: func(s status.Status) any { return s.Capacity },
	},
	{
		name: "rules", title: "Rules",
		columns: []string{"HOST", "PATH", "MATCH", "BACKEND"},
		wide:    0,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, r := range s.Rules {
				row(true, cmp.Or(r.Host, "*"), r.Path, r.Match, cmp.Or(r.Backend, "answered with 404"))
			}
		},
		json: func(s status.Status) any { return s.Rules },
	},
	{
		name: "servers", title: "Servers",
		columns: []string{"BACKEND", "ADDRESS", "STATE", "POD", "NODE", "CHECK", "WHY", "NAME"},
		wide:    1,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, b := range s.Backends {
				for _, x := range b.Servers {
					row(x.Serves(), b.Name, x.Addr, x.State, x.Pod, x.Node, x.Check, x.Why, x.Name)
				}
				if len(b.Servers) == 0 {
					row(true, b.Name, "", "no servers")
				}
			}
		},
		json: func(s status.Status) any { return s.Backends },
	},
	{
		name: "problems", title: "Problems",
		columns: []string{"OBJECT", "CLUSTER", "REASON", "WHY"},
		wide:    0,
		rows: func(s status.Status, row func(bool, ...any)) {
			for _, p := range s.Problems {
				row(true, p.Object, p.Cluster, p.Reason, p.Why)
			}
		},
		json: func(s status.Status) any { return s.Problems },
	},
}

// write writes the table, each line after an indent.
func (p part) write(t writer, s status.Status, wide bool, indent string) {
	shown := len(p.columns)
	if !wide {
		shown -= p.wide
	}
	header := make([]any, shown)
	for i, c := range p.columns[:shown] {
		header[i] = c
	}
	rows := 0
	p.rows(s, func(ok bool, cells ...any) {
		if rows++; rows == 1 {
			header[0] = indent + p.columns[0]
			t.line(header...)
		}
		if !ok {
			t.alarm()
		}
		cells = cells[:min(shown, len(cells))]
		for len(cells) > 0 && cells[len(cells)-1] == "" {
			cells = cells[:len(cells)-1]
		}
		for i, c := range cells {
			if c == "" {
				cells[i] = "-" // a program that splits at blanks finds each column
			}
		}
		cells[0] = indent + fmt.Sprint(cells[0])
		t.line(cells...)
	})
	if rows == 0 {
		t.line(indent + "none")
	}
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
		w.line("    "+x.Addr.String(), x.State, x.Pod, x.Node, x.Check, x.Why)
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
	for _, p := range parts {
		empty := true
		p.rows(s, func(bool, ...any) { empty = false })
		if empty && slices.Contains([]string{"members", "addresses", "services", "refusals", "problems", "capacity"},
			p.name) {
			continue
		}
		t.title(p.title)
		p.write(t, s, wide, "  ")
	}
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
