package image

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
)

// The screen fits the smallest terminal: 80 columns, 24 lines.
const (
	columns = 79 // some terminals begin a new line after the last one
	lines   = 24
)

// screenEvery is the time between two drawings of the screen.
const screenEvery = 2 * time.Second

// process is the part of the process's status that the screen shows.
type process struct {
	Version  string   `json:"version"`
	Ready    bool     `json:"ready"`
	NotReady []string `json:"notReady"`
	Warnings []string `json:"warnings"`
	Peers    []struct {
		Node    string     `json:"node"`
		Address netip.Addr `json:"address"`
		State   string     `json:"state"`
	} `json:"peers"`
	Routes []struct {
		Prefix    netip.Prefix `json:"prefix"`
		Via       netip.Addr   `json:"via"`
		Node      string       `json:"node"`
		Installed bool         `json:"installed"`
		Servers   int          `json:"servers"`
	} `json:"routes"`
	Backends []struct {
		Open    int        `json:"open"`
		Servers []struct{} `json:"servers"`
	} `json:"backends"`
}

// scene is the content of the screen.
type scene struct {
	version   string
	now       time.Time
	addresses []string // a line for each interface
	state     State
	stateErr  error
	process   process
	askErr    error
}

// Screen draws the state of the machine on w every two seconds until ctx ends, or
// once. It shows no secret.
func (m Machine) Screen(ctx context.Context, w io.Writer, version string, once bool) error {
	tick := time.NewTicker(screenEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		text := draw(m.scene(ctx, version))
		switch {
		case once:
		case first:
			text = "\x1b[2J\x1b[H" + text
		default:
			// Clearing first would flicker. The kernel may have written between the
			// lines, so each one is cleared to its end.
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(w, text); err != nil || once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m Machine) scene(ctx context.Context, version string) scene {
	s := scene{version: version, now: time.Now().UTC(), addresses: addresses()}
	if s.state, s.stateErr = m.State(); s.stateErr == nil && s.state.Source != "" {
		var body []byte
		if body, s.askErr = ask(ctx, s.state.Control, "/status"); s.askErr == nil {
			s.askErr = json.Unmarshal(body, &s.process)
		}
	}
	return s
}

// addresses returns a line for each interface, with its addresses.
func addresses() (all []string) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return []string{err.Error()}
	}
	for _, in := range interfaces {
		if in.Flags&net.FlagLoopback != 0 {
			continue
		}
		line := []string{fmt.Sprintf("%-10s %-17s", in.Name, in.HardwareAddr)}
		if in.Flags&net.FlagRunning == 0 {
			line = append(line, "no link")
		}
		addrs, _ := in.Addrs()
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				line = append(line, a.String())
			}
		}
		all = append(all, strings.Join(line, "  "))
	}
	return all
}

// draw returns the screen as text.
func draw(s scene) string {
	var out []string
	add := func(indent, text string) { out = append(out, fold(indent, text)...) }
	add("", fmt.Sprintf("Sallyport %s on %s, %s UTC", s.version, cmp.Or(s.state.Hostname, defaultName),
		s.now.Format("2006-01-02 15:04")))
	switch {
	case s.stateErr != nil:
		add("", s.stateErr.Error())
	case s.state.Source == "":
		add("", "NOT READY: there is no file")
	case s.askErr != nil:
		add("", "NOT READY: "+s.askErr.Error())
	case s.process.Ready:
		add("", "READY")
	default:
		add("", "NOT READY: "+strings.Join(s.process.NotReady, "; "))
	}
	if s.state.Source != "" {
		add("", "The file in use is from "+s.state.Source)
	}
	// The process repeats the notices among its warnings.
	warnings := s.process.Warnings
	if len(warnings) == 0 {
		warnings = s.state.Lines()
	}
	for _, text := range warnings {
		add("! ", text)
	}
	out = append(out, "")
	for _, line := range s.addresses {
		add("", line)
	}
	if s.stateErr == nil && s.state.Source == "" {
		out = append(out, "")
		out = append(out, strings.Split(strings.TrimRight(HowTo, "\n"), "\n")...)
	}
	if s.state.Source != "" && s.askErr == nil {
		p := s.process
		var peers, routes []string
		established := 0
		for _, x := range p.Peers {
			peers = append(peers, fmt.Sprintf("  %-16s %-16s %s", x.Address, x.Node, x.State))
			if x.State == "Established" {
				established++
			}
		}
		for _, x := range p.Routes {
			state := "in the kernel"
			if !x.Installed {
				state = "NOT in the kernel"
			}
			routes = append(routes, fmt.Sprintf("  %-19s via %-15s %s, %d open servers", x.Prefix, x.Via, state,
				x.Servers))
		}
		open, servers := 0, 0
		for _, b := range p.Backends {
			open, servers = open+b.Open, servers+len(b.Servers)
		}
		out = append(out, "", fmt.Sprintf("Backends: %d, servers: %d, open: %d", len(p.Backends), servers, open))
		left := max(lines-1-len(out)-2, 2)
		out = append(out, fmt.Sprintf("BGP peers: %d, established: %d", len(p.Peers), established))
		out = append(out, some(peers, max(left/2, left-len(routes)))...)
		out = append(out, fmt.Sprintf("Routes: %d", len(p.Routes)))
		out = append(out, some(routes, max(left/2, left-len(peers)))...)
	}
	return printable(strings.Join(out[:min(len(out), lines-1)], "\n") + "\n")
}

// some returns the lines that fit into room, and a last line with the number of lines left out.
func some(all []string, room int) []string {
	if len(all) <= room {
		return all
	}
	room = max(room, 1)
	return append(all[:room-1:room-1], fmt.Sprintf("  ... and %d more", len(all)-room+1))
}

// fold breaks a text between words into lines of the screen.
func fold(indent, text string) (out []string) {
	line := indent
	for len(text) > columns-len(line) {
		at := strings.LastIndexByte(text[:columns-len(line)+1], ' ')
		if at <= 0 {
			at = columns - len(line)
		}
		out = append(out, line+text[:at])
		text = strings.TrimLeft(text[at:], " ")
		line = strings.Repeat(" ", max(len(indent), 2))
	}
	return append(out, line+text)
}
