package haproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Text is lines of somebody's own for a section. What they are to HAProxy only
// HAProxy knows: Vet asks it. ParseText makes one. Texts are compared with ==.
type Text struct {
	section Section
	lines   string
}

// Section is where a Text is to stand.
type Section string

// The sections a Text can be for.
const (
	GlobalSection   Section = "global"
	DefaultsSection Section = "defaults"
	FrontendSection Section = "frontend" // both of them
	BackendSection  Section = "backend"

	streamSection Section = "stream" // the frontends for TCP
	quicSection   Section = "quic"   // none: only Vet has it
	portSection   Section = "port"   // nor this
)

// String is its lines.
func (t Text) String() string { return t.lines }

// MarshalText is String, for JSON.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.lines), nil }

// LogFormat is "log-format" for every frontend.
func LogFormat(format string) (Text, error) {
	word, err := quote(format)
	return Text{DefaultsSection, "log-format " + word}, err
}

// StreamLogFormat is "log-format" for every frontend for TCP.
func StreamLogFormat(format string) (Text, error) {
	word, err := quote(format)
	return Text{streamSection, "log-format " + word}, err
}

// QUICSupport is good if HAProxy is built with QUIC. It is only to be asked
// about.
func QUICSupport() Text {
	return Text{quicSection, "bind quic4@127.0.0.1:1 ssl crt " + defaultCert + " alpn h3"}
}

// FreePort is good if a port of TCP is HAProxy's already, or nobody's: a port
// that another program has would cost everybody the reload. It is only to be
// asked about.
func FreePort(port uint16) Text { return Text{portSection, strconv.Itoa(int(port))} }

// IsLogFormat says whether LogFormat made it.
func (t Text) IsLogFormat() bool { return t.section == DefaultsSection }

// Directive is a Text for a backend as one. It stands behind all others.
func (t Text) Directive() Directive { return Directive{phaseText, t.lines} }

// sections are the words that end a section and begin another, in any version of
// HAProxy.
var sections = []string{
	"global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "mailers", "cache", "ring", "program", "http-errors", "fcgi-app",
	"log-forward", "log-profile", "crt-store", "traces", "acme", "dynamic-update", "haproxy", "healthcheck",
}

// notYours are the keywords of a section that are not for others to say.
var notYours = map[Section]string{
	GlobalSection: strings.Join(mine, " ") + " default-path chroot stats set-var user group uid gid" +
		// What runs code, which HAProxy does before it gives up its rights. A text may
		// come from a picture on a disk that somebody else wrote to.
		" lua-load lua-load-per-thread lua-prepend-path module-load module-path external-check insecure-fork-wanted insecure-setuid-wanted ssl-engine ssl-provider ssl-provider-path setenv presetenv resetenv unsetenv",
	DefaultsSection: "mode id guid",
	FrontendSection: "mode id guid",
	// Servers have names and options that the appliance knows of, and come and go
	// by commands, which not every way of balancing takes.
	BackendSection: "server server-template use-server dispatch mode id guid balance hash-type enabled disabled bind-process",
}

// maxText bounds a Text, in bytes.
const maxText = 64 << 10

// ParseText looks at lines for what would let them out of their section, or
// would change what is not theirs. Empty ones and comments are left out.
func ParseText(section Section, lines string) (Text, error) {
	if len(lines) > maxText {
		return Text{}, fmt.Errorf("it has %d bytes; allowed are %d", len(lines), maxText)
	}
	var kept []string
	n := 0
	for line := range strings.Lines(lines) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		refuse := func(format string, args ...any) error {
			return fmt.Errorf("line %d, %s: %s", n, strconv.QuoteToASCII(clip(line)), fmt.Sprintf(format, args...))
		}
		if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return Text{}, refuse("it has a control character")
		}
		words := strings.Fields(line)
		if len(words) > 1 && (words[0] == "no" || words[0] == "default") {
			words = words[1:]
		}
		switch word := words[0]; {
		case strings.ContainsAny(strings.Fields(line)[0]+word, `"'\$#`), line[0] == '.':
			return Text{}, refuse("a keyword is written without quotes, and not as a condition")
		case slices.Contains(sections, word):
			return Text{}, refuse("%q would begin a section of its own", word)
		case slices.Contains(strings.Fields(notYours[section]), word):
			return Text{}, refuse("%q is not for a %s of somebody's own: see what keys there are for it", word, section)
		}
		kept = append(kept, line)
	}
	if len(kept) == 0 {
		return Text{}, errors.New("there is no line in it")
	}
	return Text{section, strings.Join(kept, "\n")}, nil
}

// vetDir is how the names of directories begin in which HAProxy reads texts.
const vetDir = "vet-"

// vetTimeout bounds one look of HAProxy at texts.
const vetTimeout = 10 * time.Second

// Vet lets HAProxy read texts, each in a frame of its own, and says what it has
// against them: nothing for the good ones. Those for frontends and backends are
// read all at once; those it complains of are left out, and the rest is read
// again. An error means that HAProxy could not be asked.
func (p *Proxy) Vet(ctx context.Context, texts []Text) (map[Part]string, error) {
	verdicts := make(map[Part]string, len(texts))
	var ports []Text
	texts = slices.DeleteFunc(slices.Clone(texts), func(t Text) bool {
		is := t.section == portSection
		if is {
			ports = append(ports, t)
		}
		return is
	})
	if err := p.judgePorts(ports, verdicts); err != nil {
		return nil, err
	}
	if p.opt.Binary == "" {
		for _, t := range texts {
			verdicts[t.Part()] = "HAProxy's program is not here to check it (haproxy.binary)"
		}
		return verdicts, nil
	}
	dir, err := os.MkdirTemp(p.opt.RunDir, vetDir)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var apart []Text
	for _, t := range texts {
		if slices.Contains(own, t.section) {
			apart = append(apart, t)
		} else if err := p.judge(ctx, dir, []Text{t}, verdicts); err != nil { // what is for all is seen in each
			return nil, err
		}
	}
	return verdicts, p.judge(ctx, dir, apart, verdicts)
}

// judgePorts adds the verdicts on ports. Whose they are where somebody else runs
// HAProxy is not known here.
func (p *Proxy) judgePorts(ports []Text, verdicts map[Part]string) error {
	for _, t := range ports {
		verdicts[t.Part()] = ""
	}
	if len(ports) == 0 || p.opt.Mode == External {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var own procs
	switch err := p.ensure(); { // until it is found its own ports are like another's
	case err == nil:
		if own, err = p.master.show(); err != nil {
			return err
		}
	case !errors.Is(err, errUnready): // of one that does not run none is
		return err
	}
	for _, t := range ports {
		port, err := strconv.ParseUint(t.lines, 10, 16)
		if err != nil {
			return err
		}
		if who := holder(netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(port)), own); who != "" {
			verdicts[t.Part()] = "taken by " + who
		}
	}
	return nil
}

// judge adds the verdicts on texts.
func (p *Proxy) judge(ctx context.Context, dir string, texts []Text, verdicts map[Part]string) error {
	left := slices.Clone(texts)
	for len(left) > 0 {
		complaints, err := p.vet(ctx, dir, left)
		if err != nil {
			return err
		}
		if len(complaints) == 0 {
			break
		}
		if complaints[-1] != "" && len(left) > 1 { // it does not say whose fault it is
			half := len(left) / 2
			return errors.Join(p.judge(ctx, dir, left[:half], verdicts), p.judge(ctx, dir, left[half:], verdicts))
		}
		for i, why := range complaints {
			verdicts[left[max(i, 0)].Part()] = why
		}
		left = slices.DeleteFunc(left, func(t Text) bool { return verdicts[t.Part()] != "" })
	}
	for _, t := range left {
		verdicts[t.Part()] = ""
	}
	return nil
}

var (
	atLine  = regexp.MustCompile(`\[[^ \]]*vet\.cfg:(\d+)\] ?:? ?(.*)`)
	inFrame = regexp.MustCompile(`\bsp_vet_(\d+)\b`)
)

// own are the sections for which each text has one of its own to be read in.
var own = []Section{FrontendSection, BackendSection, streamSection, routeSection}

// vet is one look: complaints by the index of the text, those without by -1.
func (p *Proxy) vet(ctx context.Context, dir string, texts []Text) (map[int]string, error) {
	var b strings.Builder
	n := 0
	owner := map[int]int{} // line to text
	line := func(of int, text string) {
		b.WriteString(text + "\n")
		n++
		owner[n] = of
	}
	body := func(i int) {
		for l := range strings.SplitSeq(texts[i].lines, "\n") {
			line(i, "  "+l)
		}
	}
	inside := func(section Section) {
		for i, t := range texts {
			if t.section == section {
				body(i)
			}
		}
	}
	line(-1, "global")
	line(-1, "  ca-base "+strings.TrimSuffix(p.path(extraDir), "/"))
	inside(GlobalSection)
	quic := slices.ContainsFunc(texts, func(t Text) bool { return t.section == quicSection })
	if quic {
		line(-1, "  crt-base "+strings.TrimSuffix(p.path(certDir), "/"))
		line(-1, "  "+limitedQUIC)
	}
	line(-1, "defaults")
	line(-1, "  mode http")
	line(-1, "  log 127.0.0.1:514 local0") // without one HAProxy does not read formats
	line(-1, "  timeout connect 1s")
	line(-1, "  timeout client 1s")
	line(-1, "  timeout server 1s")
	inside(DefaultsSection)
	line(-1, "frontend sp_vet")
	line(-1, "  bind 127.0.0.1:1") // it is not bound, but without any HAProxy calls its configuration useless
	inside(quicSection)
	line(-1, "backend sp_vet_none")
	for i, t := range texts {
		switch t.section {
		case FrontendSection:
			line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			line(i, "  bind 127.0.0.1:1")
			line(i, "  default_backend sp_vet_none")
		case streamSection:
			line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			line(i, "  mode tcp")
			line(i, "  bind 127.0.0.1:1")
		case routeSection:
			line(i, fmt.Sprintf("frontend sp_vet_%d", i))
			line(i, "  bind 127.0.0.1:1")
			line(i, "  use_backend sp_vet_none if "+t.lines)
			continue
		case BackendSection:
			line(i, fmt.Sprintf("backend sp_vet_%d", i))
		default:
			continue
		}
		body(i)
	}
	file := filepath.Join(dir, "vet.cfg")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, vetTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.opt.Binary, "-c", "-f", file) //nolint:gosec // the operator's own program
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil:
		return map[int]string{-1: fmt.Sprintf("HAProxy does not come to an end with it within %s", vetTimeout)}, nil
	case !errors.As(err, &exit):
		return nil, fmt.Errorf("asking HAProxy about texts: %w", err)
	}
	found := map[int]string{}
	add := func(i int, why string) {
		if found[i] == "" {
			found[i] = "HAProxy: " + inFrame.ReplaceAllString(why, "of this") // the frame's name says nothing to its author
		}
	}
	var rest []string // what names neither a line nor a frame
	for _, said := range alerts(string(out)) {
		if m := atLine.FindStringSubmatch(said); m != nil {
			number, _ := strconv.Atoi(m[1])
			if i, is := owner[number]; is && i >= 0 {
				add(i, m[2])
				continue
			}
			said = m[2]
		}
		if m := inFrame.FindStringSubmatch(said); m != nil {
			if i, _ := strconv.Atoi(m[1]); i < len(texts) {
				add(i, said)
				continue
			}
		}
		rest = append(rest, said)
	}
	if len(found) == 0 {
		add(-1, strings.Join(rest[:min(len(rest), 1)], ""))
	}
	return found, nil
}
