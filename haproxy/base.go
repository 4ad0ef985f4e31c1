package haproxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	parser "github.com/haproxytech/client-native/v6/config-parser"
)

// parsing is held while client-native's parser works: it writes the name of the defaults section to a
// variable of its package.
var parsing sync.Mutex

// base is the operator's own text, by section.
type base struct {
	global, defaults []string // lines, without indent
}

// mine lists the global keywords that only we may set, because we start HAProxy and find its
// process with them.
var mine = []string{"daemon", "nbproc", "master-worker", "pidfile", "mworker-max-reloads", "ca-base", "crt-base"}

// parseBase parses text. It rejects every line outside a section global or an unnamed section
// defaults. It does not check the keywords, because HAProxy does so when it checks the whole file.
func parseBase(text string) (base, error) {
	var b base
	if strings.TrimSpace(text) == "" {
		return b, nil
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if word := strings.Fields(line)[0]; word != "global" && word != "defaults" {
			return b, fmt.Errorf("haproxy base: the text must begin with \"global\" or \"defaults\", not %q", word)
		}
		break
	}
	p, err := parser.New()
	if err != nil {
		return b, fmt.Errorf("haproxy base: %w", err)
	}
	parsing.Lock()
	err = p.Process(strings.NewReader(text))
	parsing.Unlock()
	if err != nil {
		return b, fmt.Errorf("haproxy base: %w", err)
	}
	if err := b.take(p.String()); err != nil {
		return b, fmt.Errorf("haproxy base: %w", err)
	}
	return b, nil
}

// take adds the lines of a text to their sections. config-parser has written the text, so the lines
// of a section are indented. If config-parser does not know a section, it treats its beginning as a
// line of the section before.
func (b *base) take(text string) error {
	var section *[]string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		switch {
		case line[0] != ' ' && words[0] == "global":
			section = &b.global
		case line[0] != ' ' && words[0] == "defaults":
			if len(words) > 1 && !strings.HasPrefix(words[1], "unnamed_defaults_") {
				return fmt.Errorf("the section defaults %q has a name; allowed is one section defaults, without a name",
					words[1])
			}
			section = &b.defaults
		case section == nil || line[0] != ' ' || slices.Contains(sections, words[0]):
			return fmt.Errorf("%q is not in a section global or defaults; the cluster owns all other sections",
				strings.TrimSpace(line))
		case section == &b.global && slices.Contains(mine, words[0]):
			return fmt.Errorf("the keyword %s is reserved: sallyport decides how HAProxy runs; remove the line",
				words[0])
		default:
			*section = append(*section, strings.TrimSpace(line))
		}
	}
	return nil
}
