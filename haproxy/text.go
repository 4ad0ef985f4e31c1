package haproxy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Text holds lines that a user wrote for a section of HAProxy's configuration. Only
// HAProxy knows whether they are valid: see Text.Question. ParseText makes one. Texts
// are compared with ==.
type Text struct {
	section Section
	lines   string
}

// Section names the section that a Text is for.
type Section string

// The sections a Text can be for.
const (
	GlobalSection   Section = "global"
	DefaultsSection Section = "defaults"
	FrontendSection Section = "frontend" // those for HTTP and HTTPS
	HTTPSection     Section = "frontend http"
	HTTPSSection    Section = "frontend https"
	BackendSection  Section = "backend"

	streamSection Section = "stream" // the frontends for TCP
	quicSection   Section = "quic"   // not in a configuration: only Vet uses it
	pairSection   Section = "pair"   // only for Vet, too, with certificates
)

// String returns the lines.
func (t Text) String() string { return t.lines }

// LogFormat returns "log-format" for every frontend.
func LogFormat(format string) (Text, error) {
	word, err := quote(format)
	return Text{DefaultsSection, "log-format " + word}, err
}

// StreamLogFormat returns "log-format" for every frontend for TCP.
func StreamLogFormat(format string) (Text, error) {
	word, err := quote(format)
	return Text{streamSection, "log-format " + word}, err
}

// IsLogFormat reports whether LogFormat made the Text.
func (t Text) IsLogFormat() bool {
	return t.section == DefaultsSection && strings.HasPrefix(t.lines, "log-format ")
}

// Shut returns a Text for HTTPSection or HTTPSSection that rejects all clients. It has a condition, because
// HAProxy warns of rules after one without.
func Shut(section Section) Text {
	return Text{section, answer(503, "the access rules of this frontend are invalid", " if TRUE")}
}

// Directive returns a Text for a backend as a Directive. It comes after all other Directives of the
// backend.
func (t Text) Directive() Directive { return Directive{phase: phaseText, text: t.lines} }

// sections are the keywords that begin a new section, in any version of HAProxy.
var sections = []string{
	"global", "defaults", "frontend", "backend", "listen", "peers", "resolvers", "userlist", "mailers", "cache", "ring",
	"program", "http-errors", "fcgi-app",
	"log-forward", "log-profile", "crt-store", "traces", "acme", "dynamic-update", "haproxy", "healthcheck",
}

// ofFrontend holds the keywords of one frontend that a Text must not use.
const ofFrontend = "mode id guid bind default_backend use_backend monitor-uri monitor disabled enabled stats"

// notYours holds, by section, the keywords that a Text must not use.
var notYours = map[Section]string{
	GlobalSection: strings.Join(mine, " ") + " default-path chroot stats set-var set-var-fmt user group uid gid" +
		// These keywords run code, before HAProxy drops its privileges. A text may come
		// from a picture on a disk that somebody else wrote to.
		" lua-load lua-load-per-thread lua-prepend-path module-load module-path external-check insecure-fork-wanted " +
		"insecure-setuid-wanted ssl-engine ssl-provider ssl-provider-path setenv presetenv resetenv unsetenv",
	DefaultsSection: "mode id guid",
	FrontendSection: "mode id guid",
	HTTPSection:     ofFrontend,
	HTTPSSection:    ofFrontend,
	// The appliance manages the servers, their names and their options. It adds and
	// deletes servers by command, which not every balancing algorithm allows.
	BackendSection: "server server-template use-server dispatch mode id guid balance hash-type enabled disabled " +
		"bind-process",
}

// Reserved returns the keywords that a Text for a section must not begin a line with.
func Reserved(section Section) []string { return strings.Fields(notYours[section]) }

// ourVariables matches an action or a converter that sets a variable of the appliance. The appliance knows
// its worker by some of these variables, and its scripts read the other variables.
var ourVariables = regexp.MustCompile(
	`set-var(-fmt)?\(proc\.(gen|shape|classes|(ask|mirror)(socket|secret))\b`)

// quotes removes the same characters from a word as HAProxy, and spaces.
var quotes = strings.NewReplacer(`"`, "", "'", "", `\`, "", " ", "")

// ErrNoLine is the error of ParseText for a text without a line.
var ErrNoLine = errors.New("the text has no line")

// maxText bounds a Text, in bytes.
const maxText = 64 << 10

// ParseText rejects lines that would leave their section, or that use a reserved
// keyword. It drops empty lines and comments.
func ParseText(section Section, lines string) (Text, error) {
	if len(lines) > maxText {
		return Text{}, fmt.Errorf("the text has %d bytes; at most %d are allowed", len(lines), maxText)
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
			return fmt.Errorf("line %d, %s: %s", n, shown(line), fmt.Sprintf(format, args...))
		}
		if strings.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return Text{}, refuse("control characters are not allowed")
		}
		words := strings.Fields(line)
		if len(words) > 1 && (words[0] == "no" || words[0] == "default") {
			words = words[1:]
		}
		switch word := words[0]; {
		case strings.ContainsAny(strings.Fields(line)[0]+word, `"'\$#`), line[0] == '.':
			return Text{}, refuse("the keyword must not have quotes, or begin with a dot")
		case slices.Contains(sections, word):
			return Text{}, refuse("%q begins a section, which a text cannot have", word)
		case slices.Contains(Reserved(section), word):
			return Text{},
				refuse("the keyword %q is reserved in the section %s: ingress/README.md lists the keys to use instead",
					word, section)
		case ourVariables.MatchString(quotes.Replace(line)):
			return Text{}, refuse("the variable belongs to the appliance: choose another name")
		}
		kept = append(kept, line)
	}
	if len(kept) == 0 {
		return Text{}, ErrNoLine
	}
	return Text{section, strings.Join(kept, "\n")}, nil
}
