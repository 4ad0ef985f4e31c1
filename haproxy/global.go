package haproxy

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Process holds the settings of a cluster for the whole process. The settings of the operator, in
// Tune, override them.
type Process struct {
	Lines     []Line // each replaces our own line of its kind
	MaxConn   int    // as Tune.MaxConn
	Threads   int    // as Tune.Threads
	ALPN      string // protocols offered to clients over TLS; empty stands for h2,http/1.1
	StrictSNI bool
	Texts     []Text // for global, defaults and the frontends

	// Signer names an Extra of Signer. If a client asks for a name that has no certificate, HAProxy
	// makes a certificate for the name, and signs it with that of the Signer.
	Signer string

	// ErrorFiles lists the statuses that have an Extra of ErrorFile. HAProxy sends the content of
	// the Extra.
	ErrorFiles []int

	// ProxyFrom lists networks. Their clients have to begin every connection with the PROXY
	// protocol. Clients of other networks must not.
	ProxyFrom []netip.Prefix

	// ClientCA names an Extra of Authorities, or is Nobody. It applies to every server name, except
	// where the Cert of the name has a ClientCA of its own.
	ClientCA       string
	ClientOptional bool

	QUIC QUIC
}

// QUIC holds the settings of HTTP/3, which HAProxy offers at the addresses of Bind.HTTPS. HAProxy
// has to be built with QUIC: see QUICSupport.
type QUIC struct {
	Port     uint16 // UDP port; 0 turns HTTP/3 off
	Announce uint16 // port that responses over TCP announce (alt-svc); 0 stands for Port
	MaxAge   int    // seconds for which clients may rely on the announcement (RFC 7838, 3.1)
}

// Nobody stands for an authority that has issued no certificate. If a server name asks for its
// certificates, no client can connect to the name.
const Nobody = "nobody"

func (p Process) validate() error {
	switch {
	case slices.Contains(p.Lines, Line{}):
		return fmt.Errorf("one of the lines for the process is empty")
	case slices.Contains(p.Texts, Text{}):
		return fmt.Errorf("one of the texts for the process is empty")
	case p.ALPN != "" && !alpn.MatchString(p.ALPN):
		return fmt.Errorf("%q is not a list of protocols: allowed are h2, http/1.1 and http/1.0, with commas", p.ALPN)
	case p.ClientCA != "" && !isName(p.ClientCA), p.Signer != "" && !isName(p.Signer):
		return fmt.Errorf("client CA %q or signer %q is not the name of a file", p.ClientCA, p.Signer)
	case p.QUIC.MaxAge < 0:
		return fmt.Errorf("QUIC for %d seconds: the time must not be negative", p.QUIC.MaxAge)
	}
	return Tune{Threads: p.Threads, MaxConn: p.MaxConn}.validate()
}

var alpn = regexp.MustCompile(`^(h2|http/1\.[01])(,(h2|http/1\.[01]))*$`)

// text returns the lines of all Texts for a section.
func (p Process) text(section Section) (lines []string) {
	for _, t := range p.Texts {
		if t.section == section {
			lines = append(lines, strings.Split(t.lines, "\n")...)
		}
	}
	return lines
}

// streamLog returns the log format of the frontends for TCP, because that of the section defaults
// is for HTTP. It returns no lines if HAProxy does not log.
func (p Process) streamLog(base []string) []string {
	logs := func(line string) bool { return strings.HasPrefix(line, "log ") }
	if !slices.ContainsFunc(base, logs) && !slices.ContainsFunc(p.Lines, func(l Line) bool {
		return !l.global && logs(l.String())
	}) {
		return nil
	}
	if own := p.text(streamSection); len(own) > 0 {
		return own
	}
	return []string{"option tcplog"}
}

// A Line is a line of the section global or defaults. Only the functions below make a Line.
type Line struct {
	global bool
	kind   string // the first words; a line replaces our line with the same words
	rest   string
	target netip.AddrPort // address to which a Syslog sends by UDP, if it is valid
}

// Target returns the address to which a Syslog sends by UDP. For any other Line the address is not
// valid.
func (l Line) Target() netip.AddrPort { return l.target }

// String returns the text of the Line.
func (l Line) String() string { return strings.TrimSpace(l.kind + " " + l.rest) }

// HardStop limits the time that an old worker may take to finish after a reload.
func HardStop(d time.Duration) Line {
	return Line{global: true, kind: "hard-stop-after", rest: milliseconds(d)}
}

// DefaultTimeout returns a timeout for every frontend and backend that does not set it:
// client, client-fin, http-request, http-keep-alive or server-fin.
func DefaultTimeout(name string, d time.Duration) Line {
	return Line{kind: "timeout " + name, rest: milliseconds(d)}
}

// DefaultOption turns an option on or off, for every frontend and backend.
func DefaultOption(name string, on bool) Line {
	if !on {
		return Line{kind: "no option " + name}
	}
	return Line{kind: "option " + name}
}

// Syslog is a target of HAProxy's log, which has HAProxy's own messages and a line for each request
// (HAProxy Configuration Manual, "log" in section global).
type Syslog struct {
	Address  string // an IP address, stdout or stderr
	Port     uint16 // port at an IP address
	Length   int    // of a line, in bytes; 0 stands for 1024
	Format   string // rfc3164, rfc5424, short, raw and so on; empty stands for rfc3164
	Facility string // local0 and so on
	Level    string // the least urgent level that is logged, from emerg to debug; empty stands for all levels
	MinLevel string // the most urgent level that a message may have; HAProxy lowers a more urgent one
}

// The words a Syslog may have.
var (
	SyslogFormats    = []string{"rfc3164", "rfc5424", "priority", "short", "timed", "iso", "raw", "local"}
	SyslogFacilities = []string{
		"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "auth2", "ftp", "ntp",
		"audit", "alert", "cron2",
		"local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
	}
	SyslogLevels = []string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}
)

// Line returns the line for a Syslog.
func (s Syslog) Line() (Line, error) {
	line := Line{global: true, kind: "log"}
	words := []string{s.Address}
	if s.Address != "stdout" && s.Address != "stderr" {
		a, err := netip.ParseAddr(s.Address)
		if err != nil || a.Zone() != "" {
			return Line{}, fmt.Errorf("%s is not a log target: allowed are an IP address, stdout and stderr",
				shown(s.Address))
		}
		line.target = netip.AddrPortFrom(a, s.Port)
		words[0] = line.target.String()
	}
	if s.Length != 0 {
		if s.Length < 80 || s.Length > 65535 {
			return Line{}, fmt.Errorf("a log line of %d bytes: allowed are 80 to 65535", s.Length)
		}
		words = append(words, "len", strconv.Itoa(s.Length))
	}
	for _, w := range []struct {
		before, word, what string
		allowed            []string
	}{
		{"format ", s.Format, "format", SyslogFormats},
		{"", s.Facility, "facility", SyslogFacilities},
		{"", s.Level, "level", SyslogLevels},
		{"", s.MinLevel, "minlevel", SyslogLevels},
	} {
		if w.word == "" {
			continue
		}
		if !slices.Contains(w.allowed, w.word) {
			return Line{}, fmt.Errorf("%s is not a %s: allowed are %s", shown(w.word), w.what,
				strings.Join(w.allowed, ", "))
		}
		words = append(words, w.before+w.word)
	}
	line.rest = strings.Join(words, " ")
	return line, nil
}

// Traffic returns the lines that log each request. If usual is set, the format is HAProxy's own for
// HTTP. usual is for a configuration without a LogFormat.
func Traffic(usual bool) []Line {
	lines := []Line{{kind: "log global"}}
	if usual {
		lines = append(lines, Line{kind: "option httplog"})
	}
	return lines
}

// Requests returns a Process that also logs each request: to a syslog server by UDP, or to
// HAProxy's standard output if the address is not valid. The lines have HAProxy's own format for
// HTTP unless the Process has a LogFormat.
func (p Process) Requests(to netip.AddrPort) Process {
	const length = "len 8192 " // of a line in bytes: HAProxy cuts the rest
	target := Line{global: true, kind: "log", rest: "stdout " + length + "format raw local0"}
	if to.IsValid() {
		target.target, target.rest = to, to.String()+" "+length+"local0"
	}
	for _, l := range append([]Line{target}, Traffic(!slices.ContainsFunc(p.Texts, Text.IsLogFormat))...) {
		if !slices.Contains(p.Lines, l) {
			p.Lines = append(slices.Clip(p.Lines), l)
		}
	}
	return p
}

// instead returns our own lines of a section, followed by the lines of the Process. It leaves out
// our line where the Process has a line of the same kind.
func (p Process) instead(global bool, ours []string) []string {
	said := func(text string) bool {
		return slices.ContainsFunc(p.Lines, func(l Line) bool {
			return l.global == global && (text == l.kind || strings.HasPrefix(text, l.kind+" ") || "no "+text == l.kind)
		})
	}
	out := slices.DeleteFunc(slices.Clone(ours), said)
	for _, l := range p.Lines {
		if l.global == global {
			out = append(out, l.String())
		}
	}
	return out
}
