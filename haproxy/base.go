package haproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	parser "github.com/haproxytech/client-native/v6/config-parser"
)

// base is the operator's own text, by section.
type base struct {
	global, defaults []string // lines, without indent
}

// foreign lists the sections that an operator's text must not have. The cluster owns
// routing and servers.
var foreign = []parser.Section{
	parser.Resolvers, parser.UserList, parser.Peers, parser.Mailers, parser.Frontends, parser.Backends, parser.Listen, parser.Cache,
	parser.Program, parser.HTTPErrors, parser.Ring, parser.LogForward, parser.FCGIApp, parser.CrtStore, parser.LogProfile, parser.Acme,
}

// mine lists the global keywords by which we run HAProxy and find it again.
var mine = []string{"daemon", "nbproc", "master-worker", "pidfile", "mworker-max-reloads", "ca-base", "crt-base"}

// parseBase reads text and refuses whatever is not a line of a global or an
// unnamed defaults section. Whether HAProxy knows the keywords is for HAProxy
// to say, when it checks the whole file.
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
	if err := p.Process(strings.NewReader(text)); err != nil {
		return b, fmt.Errorf("haproxy base: %w", err)
	}
	for _, s := range foreign {
		if names, err := p.SectionsGet(s); err == nil && len(names) > 0 {
			return b, fmt.Errorf("haproxy base: it has a %s section (%s); only global and defaults are yours", s, strings.Join(names, ", "))
		}
	}
	if err := b.take(p.String()); err != nil {
		return b, fmt.Errorf("haproxy base: %w", err)
	}
	return b, nil
}

// take sorts the lines of a text config-parser has written.
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
				return fmt.Errorf("defaults %q has a name; only one defaults section without a name is in use", words[1])
			}
			section = &b.defaults
		case section == nil || line[0] != ' ':
			return fmt.Errorf("%q is outside of global and defaults", strings.TrimSpace(line))
		case section == &b.global && slices.Contains(mine, words[0]):
			return errors.New(words[0] + " decides how HAProxy is run, which is not the base text's to say")
		default:
			*section = append(*section, strings.TrimSpace(line))
		}
	}
	return nil
}
